"""How long it takes until a fault that is planted in Inductor is a small program, beside torch's minifier.

    python benchmarks/reduce_inductor.py [--only bert-forward] [--no-peer] [--cap 300]
                                         [--isolated bert-forward-compile_error,...] [--isolated-cap 1200]

Forward and backward graphs of a tiny GPT2, BERT and Llama (the backward ones compute activations again), and a graph of
a thousand operators, each with three faults: what Inductor makes of `relu` does not compile, raises when it runs, or is
wrong. Each is recorded as a case with what a program that fails would show (of a wrong result: which one, not by whom);
then, one after another and each with no compiler caches of its own:

    ours        what `sleuth minify` does, to a script that was seen to fail in a fresh interpreter
    the peer    torch's minifier on the same graph and inputs; what it asks, it compiles in its own process
    isolated    the same, with a new interpreter for each question: only for what --isolated names

Each is a process of its own, and its time is from starting Python, with whatever it imports and starts. What the peer
needs to read a case of ours is not counted. It is stopped when the cap is reached; isolated, if no cap is given, when
the goals below are beyond doubt. Then its time, and so the ratio, is only known to be larger (">", "≥"). Both find what
Inductor knows of the processor and a compiled header where somebody who uses Inductor has them. Raising needs a kernel
of one thread: several would end the process, and the peer's minifier with it. And where a compiled graph is called in
process, the peer is helped: by itself it loses its inputs (the graph empties their list) and gives up after the first
question.

Goals on graphs of 200 nodes or more: to the peer's final size ≥ 20 × faster than isolated and ≥ 3 × than in process; to
our verified end ≥ 8 × faster than isolated; never larger; inputs of at most 64 elements, and no data file.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import importlib
import json
import logging
import operator
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import fx
from torch._inductor import config as inductor
from torch.fx.experimental.proxy_tensor import make_fx

from _ours import Ours
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording, Where
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.case.surroundings.state import restored
from torchsleuth.config import After
from torchsleuth.outcome import Mismatched, Raised
from torchsleuth.reduce.order import size_of
from torchsleuth.run.observing.signatures import failure_of
from torchsleuth.run.query import Query
from torchsleuth.run.runners.warm import Warm

BUG = "cpp.inject_relu_bug_TESTING_ONLY"
FAULTS: dict[str, dict[str, Any]] = {
    "compile_error": {BUG: "compile_error"},
    "runtime_error": {BUG: "runtime_error", "cpp.threads": 1},
    "accuracy": {BUG: "accuracy"},
}
STORE = "store"
VOCABULARY = 512
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "relu"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2Model",
        {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64, "activation_function": "relu"}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "bert": (
        "BertConfig",
        "BertModel",
        SIZES | {"intermediate_size": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "llama": ("LlamaConfig", "LlamaModel", SIZES | {"intermediate_size": 384}),
}
"""Its configuration, its class, its settings."""
GRAPHS = (*(f"{model}-{phase}" for model in MODELS for phase in ("forward", "backward")), "dag")
ISOLATED = "bert-forward-compile_error", "llama-forward-runtime_error", "gpt2-forward-accuracy"
LARGE = 200
"""Nodes from which on the goals hold."""
TIMES_IN_PROCESS, TIMES, TIMES_TO_END = 3, 20, 8
"""How many times faster: to the peer's size in process and isolated, and to our own end."""
FEW = 64
"""Elements that the inputs may have in the end."""
aten = torch.ops.aten


# ---- the graphs --------------------------------------------------------------------------------------------


def model_of(name: str) -> torch.nn.Module:
    """A tiny one with random weights, that computes its activations again in the backward pass."""
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    configuration, model, settings = MODELS[name]
    made = getattr(transformers, configuration)(vocab_size=VOCABULARY, use_cache=False, **settings)
    found: torch.nn.Module = getattr(transformers, model)(made).train()
    settable: Any = found
    settable.set_attn_implementation("eager")
    settable.gradient_checkpointing_enable({"use_reentrant": False})
    return found


class Recorder:
    """Takes the place of Inductor's inner compiler: records what it is given, and runs it in eager."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.cases: dict[str, schema.Case] = {}
        """By graph and fault."""

    def __call__(self, gm: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
        phase = "backward" if options.get("is_backward") else "forward"
        recording = Recording(gm, self._store.blobs, examples)

        def run(inputs: list[Any]) -> Any:
            given = list(inputs)
            self.cases |= cases_of(f"{self._name}-{phase}", recording, given, Where(phase))
            inputs.clear()
            with torch.no_grad():
                return gm(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def cases_of(graph: str, recording: Recording, inputs: Sequence[Any], where: Where) -> dict[str, schema.Case]:
    """The graph with each fault; as yet without the failure."""
    found = {}
    for fault, settings in FAULTS.items():
        with inductor.patch(settings):
            found[f"{graph}-{fault}"] = recording.case(inputs, schema.Compiler(After.AOT, "inductor"), where=where)
    return found


def of_model(name: str, store: Store) -> dict[str, schema.Case]:
    """What Inductor is given when a model is trained for a step."""
    from torch._functorch import config as functorch
    from torch._inductor.compile_fx import compile_fx

    model, recorder = model_of(name), Recorder(store, name)
    inner: Any = recorder

    def backend(gm: fx.GraphModule, examples: list[Any]) -> Any:
        return compile_fx(gm, examples, inner_compile=inner)

    torch._dynamo.reset()
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = torch.compile(model, backend=backend)
        compiled(torch.randint(0, VOCABULARY, (2, 32))).last_hidden_state.square().mean().backward()
    return recorder.cases


def of_dag(store: Store, count: int = 1000, relus: int = 4) -> dict[str, schema.Case]:
    """Each operator takes one or two of those shortly before it. Now and then there is a product of matrices, since
    Inductor takes very long for a thousand operators in one kernel. Nothing grows: its matrix is orthogonal, and `tanh`
    follows.
    """
    graph, draw = fx.Graph(), random.Random(count)
    guilty = {(2 * at + 1) * count // (2 * relus) for at in range(relus)}
    alone, pairs = (aten.sin, aten.cos, aten.tanh, aten.neg), (aten.mul.Tensor, aten.maximum.default)
    values = [graph.placeholder("x"), graph.placeholder("y")]
    turn = graph.placeholder("turn")
    for at in range(count):
        one, other = draw.choices(values[-8:], k=2)
        if at in guilty:
            values.append(graph.call_function(aten.relu.default, (one,)))
        elif at % 25 == 0:
            values.append(graph.call_function(aten.mm.default, (one, turn)))
        elif at % 25 == 1:
            values.append(graph.call_function(aten.tanh.default, (values[-1],)))
        elif at % 3 == 0:
            values.append(graph.call_function(draw.choice(alone).default, (one,)))
        else:
            values.append(graph.call_function(pairs[at % 2], (one, other)))
    used = {argument for node in graph.nodes for argument in node.all_input_nodes}
    graph.output(tuple(value for value in values if value not in used))
    torch.manual_seed(0)
    inputs = [torch.rand(16, 64) * 2 - 1 for _ in range(2)]
    inputs.append(torch.linalg.qr(torch.randn(64, 64)).Q.contiguous())
    with torch.no_grad():
        gm = make_fx(fx.GraphModule({}, graph), tracing_mode="fake")(*inputs)
        return cases_of("dag", Recording(gm, store.blobs), inputs, Where())


def recorded(names: Sequence[str], store: Store) -> Iterator[tuple[str, Found]]:
    """The cases of these names, each with the failure that a replay shows. One that fails otherwise is told."""
    cases: dict[str, schema.Case] = {}
    for model in MODELS:
        if any(name.startswith(f"{model}-") for name in names):
            cases |= of_model(model, store)
    if any(name.startswith("dag-") for name in names):
        cases |= of_dag(store)
    for name in names:
        case, accuracy = cases[name], name.endswith("-accuracy")
        with Warm(workers=1) as runner:
            outcome = runner.run(Query(case, store.home, accuracy=accuracy, alone=True, deadline=900.0))
        if not isinstance(outcome, Mismatched if accuracy else Raised):
            print(f"{name} does not fail as planned: {outcome.describe()}", flush=True)
            continue
        entry = store.save(msgspec.structs.replace(case, failure=failure_of(outcome)))
        yield name, store.find(entry.id)


# ---- ours --------------------------------------------------------------------------------------------------


OURS = """
import json, sys
words = json.loads(sys.argv[1])
from torchsleuth.run.runners.warm import Warm
with Warm() as runner:
    runner.start()  # as the command does: workers start while this process imports torch
    sys.path.insert(0, words[0])
    from _ours import be_ours
    be_ours(runner, *words[1:])
"""


def ours_on(found: Found, folder: Path, *, aloud: bool) -> Ours | str:
    """Minify in a process of its own. Returns why it did not come to an end, if that is so."""
    told = folder / "ours"
    told.unlink(missing_ok=True)
    words = [str(Path(__file__).resolve().parent), time.time(), str(folder / STORE), found.id, str(told), aloud]
    done = subprocess.run([sys.executable, "-c", OURS, json.dumps(words)], cwd=folder, check=False)
    return msgspec.json.decode(told.read_bytes(), type=Ours | str) if told.exists() else f"exit {done.returncode}"


# ---- the peer ----------------------------------------------------------------------------------------------


class Told(msgspec.Struct):
    """What the peer's process writes down whenever it has something smaller."""

    seconds: float
    queries: int
    operators: int
    elements: int
    ended: bool = False


@dataclass(frozen=True)
class Peer:
    """What became of the peer."""

    last: Told | None
    seconds: float
    why: str = ""
    """Why it did not come to an end by itself: "" if it did."""
    capped: bool = False

    @property
    def operators(self) -> int | None:
        return None if self.last is None else self.last.operators

    def cells(self) -> list[str]:
        if self.last is None:
            return [self.why or "failed", "–", "–", "–"]
        taken = f"{'> ' if self.capped else ''}{self.seconds:.1f}"
        mark = "" if not self.why or self.capped else f" ({self.why})"
        return [f"{taken}{mark}", str(self.last.queries), str(self.last.operators), str(self.last.elements)]


PEER = """
import json, sys, time
began = time.monotonic()
import torch
from functorch.compile import minifier
from torch._dynamo.repro import after_aot
imported = time.monotonic() - began
words = json.loads(sys.argv[1])
sys.path.insert(0, words[0])
from reduce_inductor import be_peer
be_peer(imported, *words[1:])
"""


def peer_on(found: Found, folder: Path, *, cap: float, isolated: bool) -> Peer:
    """Ask the peer in a process of its own, for as long as the cap allows."""
    with tempfile.TemporaryDirectory(prefix="peer-", dir=folder) as name:
        here = Path(name)
        shutil.copytree(folder / "warm", here / "cache")
        environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(here / "cache"), "TMPDIR": name}
        words = json.dumps([str(Path(__file__).resolve().parent), str(folder / STORE), found.id, isolated])
        with (here / "said").open("w") as said:
            child = subprocess.Popen(
                [sys.executable, "-c", PEER, words],
                cwd=here,
                env=environ,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return watched(child, here, cap)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def watched(child: subprocess.Popen[bytes], here: Path, cap: float) -> Peer:
    told, beginning = here / "told", time.monotonic()
    began: float | None = None
    capped = False
    while child.poll() is None and not capped:
        time.sleep(0.1)
        if began is None:
            began = time.monotonic() if told.exists() else None
            capped = time.monotonic() - beginning > cap
        else:
            capped = time.monotonic() - began > cap
    steps = [msgspec.json.decode(line, type=Told) for line in told.read_text().splitlines()] if told.exists() else []
    last = steps[-1] if steps else None
    if last is not None and last.ended:
        return Peer(last, last.seconds)
    if capped:
        return Peer(last, cap, "the cap", capped=True)
    lines = (here / "said").read_text(errors="replace").strip().splitlines()
    why = lines[-1][:80] if lines and (child.returncode or 0) > 0 else f"ended by {-(child.returncode or 0)}"
    return Peer(last, time.monotonic() - (began or beginning), why)


def be_peer(imported: float, store: str, name: str, isolated: bool) -> None:
    """In the peer's process: what `torch._dynamo.repro` does with a graph that is to be minified.

    `imported`: the seconds that it took to import what that needs.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from functorch.compile import minifier  # type: ignore[import-untyped]
    from torch._dynamo.repro import after_aot

    found = Store.open(store).find(name)
    is_accuracy = found.case.failure is not None and found.case.failure.signature.kind == "mismatched"
    accuracy = "accuracy" if is_accuracy else ""
    compiler = "inductor_accuracy" if is_accuracy else "inductor"
    asks: Callable[..., bool] = after_aot.ACCURACY_FAILS[accuracy]
    folder = str(Path("checkpoints").absolute())
    os.makedirs(folder)
    if isolated:
        asks = functools.partial(after_aot.isolate_fails, compiler_name=compiler, save_dir=folder, accuracy=accuracy)
    asked = 0

    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        nonlocal asked
        asked += 1
        return asks(gm, list(inputs))  # a compiled graph empties the list that it is called with

    def tell(gm: fx.GraphModule, inputs: Sequence[Any], ended: bool = False) -> None:
        called = [node for node in gm.graph.nodes if node.op == "call_function"]
        count = sum(node.target is not operator.getitem for node in called)
        elements = sum(one.numel() for one in inputs if isinstance(one, torch.Tensor))
        told = Told(imported + time.monotonic() - began, asked, count, elements, ended)
        with open("told", "ab") as file:
            file.write(msgspec.json.encode(told) + b"\n")

    reader = GraphReader(found.case, found.blobs)
    gm, inputs = reader.read(), reader.inputs()
    with restored(found.case.state), torch.no_grad():
        gm = make_fx(gm, tracing_mode="real")(*inputs)
        began = time.monotonic()
        tell(gm, inputs)
        smallest, left = minifier(gm, inputs, fails, dump_state=tell, save_dir=folder)
        tell(smallest, left, ended=True)


def warm_up(folder: Path) -> None:
    """A cache that knows the processor and has the compiled header, as that of somebody who uses Inductor has."""
    code = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(64, 64))"
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "warm")}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, cwd=folder)


# ---- the table ---------------------------------------------------------------------------------------------

HEAD = (
    *("case", "nodes", "ops"),
    *("ours: end, s", "queries", "ops", "elements", "inputs", "verified"),
    *("peer: s", "queries", "ops", "elements", "ours to its size, s", "ratio"),
    *("isolated: s", "queries", "ops", "elements", "ours to its size, s", "ratio", "ratio to our end"),
)


@dataclass(frozen=True)
class Ratio:
    """How many times faster ours is."""

    times: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥ ' if self.at_least else ''}{self.times:.1f} ×"


@dataclass(frozen=True)
class Row:
    name: str
    found: Found
    ours: Ours
    peer: Peer | None
    isolated: Peer | None

    @property
    def nodes(self) -> int:
        return len(self.found.case.graph.nodes)

    def to_size_of(self, peer: Peer | None) -> float | None:
        """Seconds until ours was as small as the peer was at last."""
        return None if peer is None or peer.operators is None else self.ours.until(peer.operators)

    def beyond_doubt(self) -> float:
        """Seconds after which the goals are met, whatever an isolated peer still does."""
        until = self.to_size_of(self.peer) or self.ours.seconds
        return max(TIMES * until, TIMES_TO_END * self.ours.seconds) + 1.0

    def ratio(self, peer: Peer | None, seconds: float | None) -> Ratio | None:
        """None where the peer was not asked, or came to no end: then there is nothing to compare with."""
        if peer is None or seconds is None or (peer.why and not peer.capped):
            return None
        return Ratio(peer.seconds / max(seconds, 0.01), peer.capped)

    def cells(self) -> list[str]:
        cells = [self.name, str(self.nodes), str(size_of(self.found.case).operators), *self.ours.cells()]
        for peer in (self.peer, self.isolated):
            until = self.to_size_of(peer)
            cells += ["–"] * 4 if peer is None else peer.cells()
            cells += ["–" if until is None else f"{until:.1f}", str(self.ratio(peer, until) or "–")]
        return [*cells, str(self.ratio(self.isolated, self.ours.seconds) or "–")]


def show(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)


def summarise(rows: Sequence[Row]) -> None:
    """How many of the large graphs meet each goal, and which do not."""
    large = [row for row in rows if row.nodes >= LARGE]

    def faster(peer: Peer | None, row: Row, seconds: float | None, goal: float) -> bool | None:
        ratio = row.ratio(peer, seconds)
        return None if ratio is None else True if ratio.times >= goal else None if ratio.at_least else False

    def smaller(row: Row) -> bool | None:
        sizes = [peer.operators for peer in (row.peer, row.isolated) if peer is not None and peer.operators is not None]
        return row.ours.operators <= min(sizes) if sizes else None

    goals: dict[str, Callable[[Row], bool | None]] = {
        "to the peer's final size ≥ 3 × faster than in process": lambda row: faster(
            row.peer, row, row.to_size_of(row.peer), TIMES_IN_PROCESS
        ),
        "to the peer's final size ≥ 20 × faster than isolated": lambda row: faster(
            row.isolated, row, row.to_size_of(row.isolated), TIMES
        ),
        "to the verified end ≥ 8 × faster than isolated": lambda row: faster(
            row.isolated, row, row.ours.seconds, TIMES_TO_END
        ),
        "never larger than the peer's": smaller,
        "verified in a fresh interpreter": lambda row: row.ours.verified,
        f"inputs ≤ {FEW} elements, no data file": lambda row: (
            row.ours.elements <= FEW and row.ours.inputs != "beside the script"
        ),
    }
    print(f"\nOf {len(large)} cases of {LARGE} nodes or more:\n")
    show(("goal", "met", "missed", "not known"))
    show(("---",) * 4)
    for words, meets in goals.items():
        answers = {row.name: meets(row) for row in large}
        missed = [name for name, answer in answers.items() if answer is False]
        unknown = sum(answer is None for answer in answers.values())
        met = len(answers) - len(missed) - unknown
        show((words, str(met), f"{len(missed)} {' '.join(missed)}".strip(), str(unknown)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="cases whose name has this in it, or matches it: bert-forward")
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--cap", type=float, default=300.0, help="seconds for the peer")
    parser.add_argument("--isolated", default=",".join(ISOLATED), help="for which cases the peer is also isolated")
    parser.add_argument("--isolated-cap", type=float, help="seconds for it then; by default until nothing is in doubt")
    parser.add_argument("--trail", action="store_true", help="tell on stderr what ours does, and when")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    names = [f"{graph}-{fault}" for graph in GRAPHS for fault in FAULTS]
    names = [name for name in names if options.only in name or fnmatch.fnmatch(name, options.only)]
    isolated = [] if options.no_peer else options.isolated.split(",")
    rows = []
    with tempfile.TemporaryDirectory(prefix="sleuth-reduce-") as made:
        folder = Path(made)
        store = Store.open(folder / STORE)
        if not options.no_peer:
            warm_up(folder)
        show(HEAD)
        show(("---",) * len(HEAD))
        for name, found in recorded(names, store):
            ours = ours_on(found, folder, aloud=options.trail)
            if isinstance(ours, str):
                print(f"{name}: {ours}", flush=True)
                continue
            peer = None if options.no_peer else peer_on(found, folder, cap=options.cap, isolated=False)
            row = Row(name, found, ours, peer, None)
            if any(pattern and fnmatch.fnmatch(name, pattern) for pattern in isolated):
                cap = options.isolated_cap or row.beyond_doubt()
                row = replace(row, isolated=peer_on(found, folder, cap=cap, isolated=True))
            rows.append(row)
            show(row.cells())
    summarise(rows)


if __name__ == "__main__":
    main()

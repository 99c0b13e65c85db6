"""What one question costs: a graph of ten nodes, compiled by Inductor and run, with and without a process of its own.

    cold          `Fresh`: a new interpreter
    warm          `Warm`: a worker that has answered before
    in process    `InProcess`: here, not for the first time; with all garbage collected afterwards, as in a worker,
                  but of a process in which nothing is frozen
    bare          the same without going back to a known state: compile and run, nothing else
    the peer      torch's own isolated query on the same graph: a script that is written, and run by a new interpreter

All are asked in turn, in rounds, each time with another constant, so that nothing comes out of a cache and the C++
compiler really runs. Goals: warm / in process ≤ 1.15, cold / warm ≥ 4. The peer looks for the cache of the user, so it
finds what Inductor knows of the processor; so do cold and warm. None compares results with eager.

Then many queries through one `Warm`, and the memory of its server: that should stay as it is.

    python benchmarks/queries.py [--rounds N] [--queries N] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # as in a worker

import torch
from rich.console import Console
from rich.table import Table
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case import schema
from torchsleuth.case.schema import Node, Ref
from torchsleuth.config import After
from torchsleuth.outcome import Outcome, Passed
from torchsleuth.run.performing import perform
from torchsleuth.run.query import Query, Runner
from torchsleuth.run.runners import processes
from torchsleuth.run.runners.fresh import Fresh
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.warm import Warm

NODES = 10
SIZE = 64
OPS = ("mul", "sin", "add", "relu", "mul", "cos", "add", "tanh", "mul", "sigmoid")
constants = itertools.count(1 + random.SystemRandom().random(), 1 / 64)
"""Not those of an earlier run: what was compiled then is still in the cache of the user."""


def query(backend: str = "inductor") -> Query:
    """One that nobody has asked yet."""
    constant = next(constants)
    meta = schema.Meta(val=schema.Fake("float32", (SIZE, SIZE), (SIZE, 1)))
    nodes = [Node("x", "placeholder", "x", meta=meta)]
    for number, op in enumerate(OPS[:NODES]):
        binary = op in ("mul", "add")
        target = f"torch.ops.aten.{op}.{'Tensor' if binary else 'default'}"
        args = (Ref(nodes[-1].name), constant) if binary else (Ref(nodes[-1].name),)
        nodes.append(Node(f"n{number}", "call_function", target, args, meta=meta))
    nodes.append(Node("output", "output", "output", (schema.Tuple((Ref(nodes[-1].name),)),)))
    case = schema.Case(
        graph=schema.Graph(tuple(nodes)),
        compiler=schema.Compiler(After.AOT, backend),
        origin=schema.Origin(str(torch.__version__), "3", "0", graph="ten nodes"),
        inputs=(schema.Tensor("float32", (SIZE, SIZE), (SIZE, 1), storage=0),),
        storages=(schema.Storage(SIZE * SIZE * 4, schema.Generated("normal", "float32", 0, 1, why="any will do")),),
    )
    return Query(case, accuracy=False)


def graph() -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The same for the peer."""
    constant = next(constants)

    def program(x):  # type: ignore[no-untyped-def]  # the peer's script would have the annotations
        for op in OPS[:NODES]:
            x = getattr(torch, op)(x, constant) if op in ("mul", "add") else getattr(torch, op)(x)
        return (x,)

    x = torch.randn(SIZE, SIZE)
    return make_fx(program)(x), [x]


def asked(runner: Runner) -> Callable[[], None]:
    return lambda: passed(runner.run(query()))


def passed(outcome: Outcome) -> None:
    if not isinstance(outcome, Passed):
        raise SystemExit(f"the query does not pass: {outcome}")


def ask_peer() -> None:
    from torch._dynamo.repro.after_aot import isolate_fails

    gm, inputs = graph()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        fails = isolate_fails(gm, inputs, "inductor")
    if fails:
        raise SystemExit(f"the peer's query does not pass: {said.getvalue()}")


def measure(rounds: int) -> dict[str, list[float]]:
    with Fresh(workers=1) as fresh, Warm(workers=1) as warm, InProcess() as here:
        sides = {
            "cold": asked(fresh),
            "warm": asked(warm),
            "in process": asked(here),
            "bare": lambda: passed(perform(query())),
            "the peer": ask_peer,
        }
        for side in sides.values():
            side()
        found: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            # The short ones more often: they are what noise matters to.
            for name in ["cold", "the peer", *["warm", "in process", "bare"] * 3][:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                sides[name]()
                found[name].append(time.perf_counter() - began)
        print(f"workers are made by: {warm.how}")
    return found


def memory(queries: int) -> tuple[list[float], list[float], float]:
    """MiB of the server and of its template after each of some queries, and the seconds for all."""
    with Warm() as warm:
        asked(warm)()
        server = warm.server_pid or 0
        template = min(processes.children(server))
        found: tuple[list[float], list[float]] = ([], [])
        began = time.perf_counter()
        for future in [warm.submit(query()) for _ in range(queries)]:
            passed(future.result())
            for pid, sizes in zip((server, template), found, strict=True):
                sizes.append(processes.resident(pid) / 2**20)
        return *found, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds, queries = (2, 20) if options.quick else (options.rounds, options.queries)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the peer leaves its scripts
        found = measure(rounds)
        os.chdir("/")
    server, template, seconds = memory(queries)
    middle = {name: statistics.median(taken) for name, taken in found.items()}
    console = Console(width=120)
    table = Table(title=f"a query of {NODES} nodes, {rounds} rounds")
    for heading in ("", "median, s", "over rounds, s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, taken in found.items():
        table.add_row(name, f"{middle[name]:.2f}", f"{min(taken):.2f} – {max(taken):.2f}")
    console.print(table)
    ratios = Table(title="ratios of medians")
    for heading in ("", "ratio", "goal"):
        ratios.add_column(heading, justify="left" if not heading else "right")
    ratios.add_row("warm / in process", f"{middle['warm'] / middle['in process']:.2f}", "≤ 1.15")
    ratios.add_row("warm / bare", f"{middle['warm'] / middle['bare']:.2f}", "")
    ratios.add_row("cold / warm", f"{middle['cold'] / middle['warm']:.1f}", "≥ 4")
    ratios.add_row("the peer / warm", f"{middle['the peer'] / middle['warm']:.1f}", "")
    console.print(ratios)
    sizes = Table(title=f"memory over {queries} queries ({seconds / queries:.2f} s each)")
    for heading in ("", "first, MiB", "last, MiB", "most, MiB"):
        sizes.add_column(heading, justify="left" if not heading else "right")
    for name, seen in (("server", server), ("template", template)):
        sizes.add_row(name, f"{seen[0]:.1f}", f"{seen[-1]:.1f}", f"{max(seen):.1f}")
    console.print(sizes)


if __name__ == "__main__":
    main()

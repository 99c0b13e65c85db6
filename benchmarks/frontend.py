"""What capturing costs, ours against Dynamo: each call, the first call, the guards, and the memory of recordings.

    python benchmarks/frontend.py [--rounds 200] [--first 5] [--only NAME ...] [--parts calls first guards memory]

Both sides have the backend "eager" and run on one thread, in inference, so all that is measured is the front end.
Models are tiny, with random weights: the smaller the model, the more the front end shows.

    each call     both in one process; in each round each side makes one call, in an order drawn anew. The row is the
                  ratio of the medians, with its 95 % interval (rounds drawn again and again). "again" is a second
                  captured copy of ours: how far it is from 1 is what this machine can tell apart.
    first call    a fresh process for each measurement. Importing torch._dynamo, compiling a trivial function, making
                  the model and a call in eager come before it, for both sides. Ratios of the medians, of the extremes.
    guards        the time of a call less the time of running the graphs alone, on the inputs that they had: what is
                  spent on guards, on rebuilding results, and on running what broke the graph. In microseconds.
    memory        100 models captured and called once each, all kept: how much the process has grown, and what Python
                  has allocated; then what is left of it when they are dropped.

Goals: each call at most 1.0, the first call at most 0.25.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from frontend_transformers import ARCHITECTURES  # type: ignore[import-not-found]
from torchsleuth.frontend import capture

OURS, DYNAMO = "ours", "Dynamo"
SIDES = (OURS, DYNAMO)
RECORDINGS = 100
PARTS = ("calls", "first", "guards", "memory")


class Mlp(nn.Module):
    """Eight layers; in one of the programs it says how far it is, which breaks the graph."""

    def __init__(self, aloud: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
        self.norm = nn.LayerNorm(32)
        self.aloud = aloud

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.nn.functional.gelu(layer(x))
            if self.aloud and number == 3:
                print("half-way", tuple(x.shape))
        result: torch.Tensor = self.norm(x)
        return result


@dataclass(frozen=True)
class Program:
    """A model, and what it is called with."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]


def programs() -> dict[str, Program]:
    def x() -> dict[str, Any]:
        return {"x": torch.randn(4, 32, generator=torch.Generator().manual_seed(0))}

    made = {"MLP": Program(lambda: Mlp().eval(), x), "MLP with a break": Program(lambda: Mlp(True).eval(), x)}
    for title, name in (("GPT2", "gpt2"), ("Llama", "llama"), ("T5", "t5")):
        made[title] = Program(ARCHITECTURES[name].model, ARCHITECTURES[name].inputs)
    return made


def captured(side: str, model: nn.Module, backend: Any = "eager") -> Callable[..., Any]:
    if side == OURS:
        return capture(model, backend)  # type: ignore[no-any-return]
    # By default, all that is compiled from one function shares one list, which has a limit.
    compile_alone: Any = torch.compile  # whose overloads do not know the option yet
    return compile_alone(model, backend=backend, isolate_recompiles=True)  # type: ignore[no-any-return]


@contextlib.contextmanager
def nobody_listens() -> Iterator[None]:
    """What programs print goes nowhere."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


# ---- each call ----------------------------------------------------------------------------------------------


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """By name, round by round: seconds of a call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    draw = random.Random(0)
    with nobody_listens(), torch.no_grad():
        for call in calls.values():
            for _ in range(5):
                call()
        gc.collect()
        for _ in range(rounds):
            draw.shuffle(order)
            for name in order:
                found[name].append(timed(calls[name]))
    return found


def ratio(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """Of the medians, and its 95 % interval."""
    first, second = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    drawn = torch.randint(len(one), (1000, len(one)), generator=torch.Generator().manual_seed(0))
    ratios = first[drawn].median(1).values / second[drawn].median(1).values
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return statistics.median(one) / statistics.median(other), low, high


def measure_calls(chosen: dict[str, Program], rounds: int, console: Console) -> None:
    table = table_of(f"Each call ({rounds} rounds), ratio of medians", "ours / Dynamo", "from – to", "again / ours",
                     "ours / eager", "µs: ours", "Dynamo", "eager")  # fmt: skip
    for name, program in chosen.items():
        calls: dict[str, Callable[[], Any]] = {}
        for side in (*SIDES, "again", "eager"):
            torch.manual_seed(0)
            model, inputs = program.make(), program.inputs()
            run: Any = model if side == "eager" else captured(OURS if side == "again" else side, model)
            calls[side] = partial(run, **inputs)
        found = in_turn(calls, rounds)
        middle, low, high = ratio(found[OURS], found[DYNAMO])
        median = {side: statistics.median(times) for side, times in found.items()}
        table.add_row(
            name, f"{middle:.2f}", f"{low:.2f} – {high:.2f}", f"{median['again'] / median[OURS]:.2f}",
            f"{median[OURS] / median['eager']:.2f}", *(f"{median[side] * 1e6:,.0f}" for side in (*SIDES, "eager")),
        )  # fmt: skip
    console.print(table)


# ---- the first call -----------------------------------------------------------------------------------------


def first_call(side: str, name: str) -> dict[str, float]:
    """In a process of its own: seconds of the first call."""
    warm_up(side)
    program = programs()[name]
    torch.manual_seed(0)
    model, inputs = program.make(), program.inputs()
    with nobody_listens(), torch.no_grad():
        model(**inputs)
        eager = timed(lambda: model(**inputs))
        run = captured(side, model)
        seconds = timed(lambda: run(**inputs))
    return {"seconds": seconds, "eager": eager}


def warm_up(side: str) -> None:
    """Whatever is done once in a process is done."""
    import torch._dynamo

    captured(side, nn.Identity())(torch.ones(1))


def measure_first_calls(chosen: dict[str, Program], times: int, console: Console) -> None:
    table = table_of(f"First call ({times} fresh processes each)", "ours / Dynamo", "least – most", "ours / eager",
                     "ms: ours", "Dynamo", "eager")  # fmt: skip
    for name in chosen:
        found: dict[str, list[float]] = {side: [] for side in (*SIDES, "eager")}
        for _ in range(times):
            for side in SIDES:
                told = elsewhere("first", side, name)
                found[side].append(told["seconds"])
                found["eager"].append(told["eager"])
        ours, dynamo, eager = (statistics.median(found[side]) for side in (*SIDES, "eager"))
        least, most = min(found[OURS]) / max(found[DYNAMO]), max(found[OURS]) / min(found[DYNAMO])
        table.add_row(name, f"{ours / dynamo:.3f}", f"{least:.3f} – {most:.3f}", f"{ours / eager:,.0f}",
                      *(f"{each * 1e3:,.1f}" for each in (ours, dynamo, eager)))  # fmt: skip
    console.print(table)


def elsewhere(*task: str) -> Any:
    """What a fresh process says, asked for one measurement."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, __file__, "--task", *task]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(task)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- the guards ---------------------------------------------------------------------------------------------


class Keeping:
    """A backend that runs graphs as they are, and keeps what they ran on in one call."""

    def __init__(self) -> None:
        self.on = False
        self.ran: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        forward = gm.forward

        def run(*args: Any) -> Any:
            if self.on:
                self.ran.append((forward, args))
            return forward(*args)

        return run

    def again(self) -> None:
        """The graphs alone, on what they ran on."""
        for forward, args in self.ran:
            forward(*args)


def measure_guards(chosen: dict[str, Program], rounds: int, console: Console) -> None:
    table = table_of(f"A call less its graphs, µs ({rounds} rounds)", "ours", "Dynamo", "ours / Dynamo", "graphs: ours",
                     "Dynamo")  # fmt: skip
    for name, program in chosen.items():
        calls: dict[str, Callable[[], Any]] = {}
        keepers = {side: Keeping() for side in SIDES}
        for side, keeper in keepers.items():
            torch.manual_seed(0)
            model, inputs = program.make(), program.inputs()
            run = captured(side, model, keeper)
            with nobody_listens(), torch.no_grad():
                run(**inputs)
                run(**inputs)
                keeper.on = True
                run(**inputs)
                keeper.on = False
            calls[side] = partial(run, **inputs)
            calls[f"{side}, graphs"] = keeper.again
        found = {each: statistics.median(times) * 1e6 for each, times in in_turn(calls, rounds).items()}
        rest = {side: found[side] - found[f"{side}, graphs"] for side in SIDES}
        table.add_row(name, *(f"{rest[side]:,.0f}" for side in SIDES), f"{rest[OURS] / rest[DYNAMO]:.2f}",
                      *(str(len(keepers[side].ran)) for side in SIDES))  # fmt: skip
    console.print(table)


# ---- memory -------------------------------------------------------------------------------------------------


def memory(side: str, how: str) -> dict[str, float]:
    """In a process of its own: bytes by which it grew with so many recordings kept, and with these dropped."""
    warm_up(side)
    x = torch.randn(4, 32)
    models = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)).eval() for _ in range(RECORDINGS + 10)]
    kept: list[Any] = []
    held = _resident if how == "resident" else _traced
    if how != "resident":
        tracemalloc.start()
    with torch.no_grad():
        for model in models[:10]:
            captured(side, model)(x)
        gc.collect()
        before = held()
        for model in models[10:]:
            kept.append(captured(side, model))
            kept[-1](x)
    gc.collect()
    with_them = held() - before
    kept.clear()
    gc.collect()
    return {"kept": with_them, "dropped": held() - before}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _traced() -> int:
    return tracemalloc.get_traced_memory()[0]


def measure_memory(console: Console) -> None:
    title = f"Memory of {RECORDINGS} recordings, KiB"
    table = table_of(title, "kept: ours", "Dynamo", "ours / Dynamo", "dropped: ours", "Dynamo")
    for how, words in (("resident", "resident size"), ("traced", "allocated by Python")):
        found = {side: elsewhere("memory", side, how) for side in SIDES}
        kept, dropped = ([found[side][each] / 1024 for side in SIDES] for each in ("kept", "dropped"))
        table.add_row(words, *(f"{each:,.0f}" for each in kept), f"{kept[0] / kept[1]:.2f}" if kept[1] else "–",
                      *(f"{each:,.0f}" for each in dropped))  # fmt: skip
    console.print(table)


def table_of(title: str, *heads: str) -> Table:
    table = Table(title=title, width=110)
    for head in ("", *heads):
        table.add_column(head, justify="right" if head else "left")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=5, help="fresh processes for the first call, of each side")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    if options.task:
        what, side, which = options.task
        print(json.dumps(first_call(side, which) if what == "first" else memory(side, which)))
        return
    console = Console(width=120)
    chosen = {name: each for name, each in programs().items() if not options.only or name in options.only}
    if "calls" in options.parts:
        measure_calls(chosen, options.rounds, console)
    if "first" in options.parts:
        measure_first_calls(chosen, options.first, console)
    if "guards" in options.parts:
        measure_guards(chosen, options.rounds, console)
    if "memory" in options.parts:
        measure_memory(console)


if __name__ == "__main__":
    main()

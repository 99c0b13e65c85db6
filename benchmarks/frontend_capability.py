"""What can be captured: small programs that use the language in every way, in eager, by ours, and by Dynamo.

    python benchmarks/frontend_capability.py [--only NAME ...] [--files containers functions tensors] [--seconds 60]

Each program is made afresh, called four times, and compared with eager after every call: results, exceptions, output,
arguments, the state outside, random numbers, modes; types, bits, strides, and which object it was. The backend is
"eager" on both sides, so that whatever differs is the front end's doing.

    right                  nothing differs, in any call
    right, one graph       and nothing broke the graph: for ours no break was noted and nothing ran natively; for
                           Dynamo the same program is right with fullgraph=True as well
    right, settled         and the last call needed nothing new: for ours it came from the cache as a whole; Dynamo
                           looked at no frame anew (one that it has given up and leaves to Python counts as settled)

A program that takes longer than the time limit is not right. A few of Dynamo's differences are by design
(`torch.compiler.is_compiling()` is True in it), or nobody would mind.

Goal: all of them right; more of them one graph, and settled, than with Dynamo.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import frontend_differential as differential  # type: ignore[import-not-found]
from torchsleuth.frontend import capture

FILES = ("containers", "functions", "outside", "protocols", "sizes", "tensors")


@dataclass
class Score:
    """How one side did with one program."""

    differences: list[str] = field(default_factory=list)
    one_graph: bool = False
    settled: bool = False
    crashes: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.differences


class TooLong(BaseException):
    """A case took longer than it may. No program catches it by `except Exception`."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def compared(maker: Any, wrap: Any, probe: Callable[[Any], Any], seconds: int) -> tuple[list[str], list[Any]]:
    """Differences to eager, in words, and what the probe said before the first call and after each."""
    try:
        with time_limit(seconds):
            eager = differential.run(maker)
            other = differential.run(maker, wrap, probe)
        return differential.differences(eager, other), other.probed
    except TooLong:
        return [f"longer than {seconds} s"], [0, 0]
    except Exception as error:  # noqa: BLE001 - a line of the table, with its reason
        return [f"{type(error).__name__}: {error}"], [0, 0]


def ours(maker: Any, seconds: int) -> Score:
    made: list[Any] = []

    def wrap(function: Any) -> Any:
        made.append(capture(function))
        return made[-1]

    found, probed = compared(maker, wrap, lambda captured: captured.hits, seconds)
    captured = made[0] if made else None
    score = Score(found)
    if captured is not None:
        score.one_graph = not (captured.breaks or captured.natives or captured.uncacheable or captured.crashes)
        score.settled = probed[-1] > probed[-2]
        score.crashes = [f"{type(each.error).__name__}: {each.error}" for each in captured.crashes]
        score.breaks = [each.reason for each in captured.breaks]
    return score


def dynamo(maker: Any, seconds: int) -> Score:
    def frames(_: Any) -> int:
        return int(counters["frames"]["total"])

    reset()
    found, probed = compared(maker, lambda fn: torch.compile(fn, backend="eager"), frames, seconds)
    score = Score(found, settled=probed[-1] == probed[-2])
    if score.right:
        reset()
        whole, _ = compared(maker, lambda fn: torch.compile(fn, backend="eager", fullgraph=True), frames, seconds)
        score.one_graph = not whole
    reset()
    return score


def reset() -> None:
    torch._dynamo.reset()
    counters.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", nargs="*", default=FILES, choices=FILES)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--alone", action="store_true", help="ours only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sides: dict[str, Callable[[Any, int], Score]] = {"ours": ours}
    if not options.alone:
        sides["Dynamo"] = dynamo
        sys.unraisablehook = lambda _: None  # it wants to remove globals of its own that we have removed already
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    console = Console(width=120)
    scores: dict[str, dict[str, dict[str, Score]]] = {side: {} for side in sides}
    seconds = dict.fromkeys(sides, 0.0)
    for file in options.files:
        before = set(differential.CASES)
        importlib.import_module(f"frontend_cases_{file}")
        for name in [each for each in differential.CASES if each not in before]:
            if options.only and name not in options.only:
                continue
            for side, judge in sides.items():
                began = time.perf_counter()
                score = judge(differential.CASES[name], options.seconds)
                seconds[side] += time.perf_counter() - began
                scores[side].setdefault(file, {})[name] = score
                if not score.right:
                    print(f"{side}: {name}: {score.differences[0][:240]}", flush=True)
                if options.only:
                    print(side, name, score, flush=True)
    for side, files in scores.items():
        _print(console, side, files, seconds[side])
    unsettled = [
        name for cases in scores["ours"].values() for name, each in cases.items() if each.right and not each.settled
    ]
    crashes = Counter(
        words for cases in scores["ours"].values() for each in cases.values() for words in set(each.crashes)
    )
    print(f"ours, right and not settled: {', '.join(unsettled) or 'none'}")
    print(f"ours, crashes of the translator: {dict(crashes) or 'none'}")


def _print(console: Console, side: str, files: dict[str, dict[str, Score]], seconds: float) -> None:
    table = Table(title=f"{side}: programs ({seconds:,.0f} s)", width=100)
    for head in ("", "programs", "right", "right, one graph", "right, settled"):
        table.add_column(head, justify="right" if head else "left")
    groups = [*files.items(), ("all", {name: each for cases in files.values() for name, each in cases.items()})]
    for file, cases in groups:
        right = [each for each in cases.values() if each.right]
        whole, settled = sum(each.one_graph for each in right), sum(each.settled for each in right)
        table.add_row(file, *map(str, (len(cases), len(right), whole, settled)))
    console.print(table)


if __name__ == "__main__":
    main()

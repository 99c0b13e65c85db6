"""Everything that a captured program reads, changed one thing at a time: does the cache ever give what is stale?

    python benchmarks/frontend_guards.py [--rows programs models cases] [--only WORDS] [--changes WORDS]
                                         [--models 500] [--cases 60] [--seed 0]

Under a captured program that has settled one thing is changed: an attribute, an item of a container, a cell, a default,
a global, a method, a hook, a parameter's values, kind or gradients, an argument, torch's modes. The program itself and
the captured one make a call from the same state on the same random numbers, and are compared bit for bit: results,
gradients, exceptions, output, and whatever was changed on the way. Then it is changed back, and both call again.

Up to 24 changes are made under one captured program, so a call could also be served from a recording that was made
under another change. Programs are those of `tests/frontend_guard_programs.py`, four models from transformers (of whose
tens of thousands of changes `--models` are drawn, of every kind some), and the capability cases (`--cases` of each).

    perturbations    changes made
    different        so many of them made the program do something else, so many of these made it raise
    stale            the cache gave something that a program captured anew does not give: a guard is missing
    wrong            so does a program captured anew: it is recorded wrongly
    from the cache   so many calls, after a change was taken back, came from the cache

Goals: at least 5,000 perturbations, none stale, none wrong. Each stale or wrong one is printed with what was changed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import frontend_differential as differential  # type: ignore[import-not-found]
from frontend_fuzz import Fuzzed, Subject, fuzz  # type: ignore[import-not-found]
from frontend_guard_programs import PROGRAMS  # type: ignore[import-not-found]
from frontend_transformers import ARCHITECTURES, MAIN  # type: ignore[import-not-found]
from torchsleuth.frontend import capture

CASES = ("containers", "functions", "tensors")
ROWS = ("programs", "models", "cases")
UNLIMITED = 10**6


def capturing(program: Any) -> Any:
    """However many recordings are made, none is refused: a program that runs natively has no guards to test."""
    return capture(program, limit=UNLIMITED)


def of_model(name: str) -> Subject:
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    return Subject(architecture.model(), [], architecture.inputs())


def of_case(name: str) -> Subject:
    """The first call of a capability case."""
    case = differential.CASES[name]()
    call = case.calls[0]
    if call.before is not None:
        call.before()

    def under(make: Callable[[], Any]) -> Any:
        with call.under():
            return make()

    outside = [] if case.state is None else [case.state()]
    through = None if call.under is contextlib.nullcontext else under
    return Subject(case.fn, list(call.args), dict(call.kwargs), outside, through=through)


def subjects(options: argparse.Namespace) -> Iterator[tuple[str, list[tuple[str, Callable[[], Subject]]], int | None]]:
    """Rows of the table: their name, the programs they are about, and how many changes are made to each."""
    for name, maker in PROGRAMS.items() if "programs" in options.rows else ():
        yield name, [(name, maker)], None
    for name in MAIN if "models" in options.rows else ():
        yield f"{name} (transformers)", [(name, partial(of_model, name))], options.models
    for file in CASES if "cases" in options.rows else ():
        before = set(differential.CASES)
        importlib.import_module(f"frontend_cases_{file}")
        names = [each for each in differential.CASES if each not in before]
        yield f"{len(names)} cases: {file}", [(name, partial(of_case, name)) for name in names], options.cases


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="programs in whose name this occurs")
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS)
    parser.add_argument("--changes", default="", help="changes in whose words this occurs")
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shown", type=int, default=20, help="how many of a program's are printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    console = Console(width=120)
    table = Table(title="Changes under captured programs", width=118)
    for head in ("", "perturbations", "different", "stale", "wrong", "from the cache", "s"):
        table.add_column(head, justify="right" if head else "left")
    rows: list[tuple[Fuzzed, str]] = []
    left_out: list[str] = []
    began = time.perf_counter()
    for row, programs, most in subjects(options):
        found: list[Fuzzed] = []
        for name, make in programs:
            if options.only not in f"{row} {name}":
                continue
            try:
                result = fuzzed(make, options, most)
            except Exception as error:  # noqa: BLE001 - a change that also hits the fuzz itself: said, and left out
                left_out.append(f"{name}: given up, {type(error).__name__}: {str(error)[:200]}")
                continue
            if result.why_not:
                left_out.append(f"{name}: {result.why_not[:200]}")
            elif not result.settled:
                left_out.append(f"{name}: it does not settle (changed all the same)")
            found.append(result)
            tell(name, result, options.shown)
        if found:
            table.add_row(*cells(row, found))
            rows += [(each, row) for each in found]
    table.add_section()
    table.add_row(*cells("all", [each for each, _ in rows]))
    console.print(table)
    for words in left_out:
        print(words)
    print(f"{time.perf_counter() - began:,.0f} s")


def fuzzed(make: Callable[[], Subject], options: argparse.Namespace, most: int | None) -> Fuzzed:
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return fuzz(make(), capturing, most=most, seed=options.seed, only=options.changes)


def tell(name: str, result: Fuzzed, shown: int) -> None:
    for each in result.found[:shown]:
        print(f"{name}: {str(each)[:600]}", flush=True)
    if len(result.found) > shown:
        print(f"{name}: and {len(result.found) - shown} more", flush=True)
    for words in result.crashes:
        print(f"{name}: the translator crashed: {words}", flush=True)
    for words in result.unexplained[:3]:
        print(f"{name}: no guard was named after: {words}", flush=True)


def cells(row: str, found: list[Fuzzed]) -> list[str]:
    def total(of: Callable[[Fuzzed], int]) -> int:
        return sum(map(of, found))

    changes, different, raised = total(lambda f: f.changes), total(lambda f: f.different), total(lambda f: f.raised)
    return [
        row,
        f"{changes:,}",
        f"{different:,} ({raised:,})",
        str(total(lambda f: len(f.stale))),
        str(total(lambda f: len(f.wrong))),
        f"{total(lambda f: f.hits):,}",
        f"{sum(each.seconds for each in found):,.0f}",
    ]


if __name__ == "__main__":
    main()

"""Each level × each way to fail × each graph that can be watched: what is on the disk, and what propagates.

The expectation are the tables `TABLE` and `PROPAGATES`; the rest of this file runs their cells. Programs that die do so
in forked children.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backend_samples import (
    Ended,
    aot_backend,
    ended,
    ended_forked,
    hangs,
    inputs_of,
    listed,
    off_by_one,
    plain_backend,
    raises,
    values_of,
)
from capture_samples import segfault
from torchsleuth.capture import keeping
from torchsleuth.capture.backends import watch
from torchsleuth.config import patch


@dataclass(frozen=True)
class Way:
    """A way to fail: what the compiler does, what its product does, and whether the program survives."""

    compiling: Callable[[], Any] | None = None
    then: Callable[..., Any] | None = None
    forked: bool = False
    sent: signal.Signals | None = None
    """The signal that somebody sends when it hangs."""


WAYS = {
    "clean": Way(),
    "compile error": Way(compiling=raises),
    "run-time error": Way(then=raises),
    "wrong result": Way(then=off_by_one),
    "segfault while compiling": Way(compiling=segfault, forked=True),
    "segfault while running": Way(then=segfault, forked=True),
    "^C while compiling": Way(compiling=hangs, forked=True, sent=signal.SIGINT),
    "^C while running": Way(then=hangs, forked=True, sent=signal.SIGINT),
    "kill -9 while compiling": Way(compiling=hangs, forked=True, sent=signal.SIGKILL),
    "kill -9 while running": Way(then=hangs, forked=True, sent=signal.SIGKILL),
}

# What is kept, one line a case:   graph | kind, stage | inputs | beside it | parent
# `levels`: at the others nothing is kept. A case is ready to be minified (todo) at all levels but the first.
# "plain" is after="dynamo" with a backend that knows nothing of AOT. What a process leaves that dies is what was
# written ahead: each step that was going on, as a case of its own. With `sleuth run`, script, parent and signal follow.
TABLE = """
way to fail               levels  watched        kept
------------------------- ------- -------------- ---------------------------------------------------------------
clean                     none    aot
clean                     none    dynamo
clean                     none    plain
clean                     none    both

compile error             1-4     aot            forward | raised, compile     | recipes | repro.py |
compile error             1-4     dynamo         dynamo  | raised, compile     | values  | repro.py |
compile error             1-4     plain          dynamo  | raised, compile     | values  | repro.py |
compile error             1-4     both           dynamo  | raised, compile     | values  | repro.py |
                                                 forward | raised, compile     | recipes | repro.py | dynamo

run-time error            1-4     aot            forward | raised, run         | values  | repro.py |
run-time error            1-4     dynamo         dynamo  | raised, run         | values  | repro.py |
run-time error            1-4     plain          dynamo  | raised, run         | values  | repro.py |
run-time error            1-4     both           dynamo  | raised, run         | values  | repro.py |
                                                 forward | raised, run         | values  | repro.py | dynamo

wrong result              4       aot            forward | mismatched, compare | values  | repro.py |
wrong result              4       dynamo         dynamo  | mismatched, compare | values  | repro.py |
wrong result              4       plain          dynamo  | mismatched, compare | values  | repro.py |
wrong result              4       both           dynamo  | mismatched, compare | values  | repro.py |
                                                 forward | mismatched, compare | values  | repro.py | dynamo

segfault while compiling  3-4     aot            dynamo  | crashed, compile    | values  |          |
                                                 forward | crashed, compile    | recipes |          |
segfault while compiling  3-4     dynamo         dynamo  | crashed, compile    | values  |          |
segfault while compiling  3-4     plain          dynamo  | crashed, compile    | values  |          |
segfault while compiling  3-4     both           dynamo  | crashed, compile    | values  |          |
                                                 forward | crashed, compile    | recipes |          |

segfault while running    3-4     aot            forward | crashed, run        | values  |          |
segfault while running    3-4     dynamo         dynamo  | crashed, run        | values  |          |
segfault while running    3-4     plain          dynamo  | crashed, run        | values  |          |
segfault while running    3-4     both           dynamo  | crashed, run        | values  |          |
                                                 forward | crashed, run        | values  |          |

^C while compiling        1-4     aot            forward | timed out, compile  | recipes | repro.py |
^C while compiling        1-4     dynamo         dynamo  | timed out, compile  | values  | repro.py |
^C while compiling        1-4     plain          dynamo  | timed out, compile  | values  | repro.py |
^C while compiling        1-4     both           dynamo  | timed out, compile  | values  | repro.py |
                                                 forward | timed out, compile  | recipes | repro.py | dynamo

^C while running          1-4     aot            forward | timed out, run      | values  | repro.py |
^C while running          1-4     dynamo         dynamo  | timed out, run      | values  | repro.py |
^C while running          1-4     plain          dynamo  | timed out, run      | values  | repro.py |
^C while running          1-4     both           dynamo  | timed out, run      | values  | repro.py |
                                                 forward | timed out, run      | values  | repro.py | dynamo

kill -9 while compiling   3-4     aot            dynamo  | crashed, compile    | values  |          |
                                                 forward | crashed, compile    | recipes |          |
kill -9 while compiling   3-4     dynamo         dynamo  | crashed, compile    | values  |          |
kill -9 while compiling   3-4     plain          dynamo  | crashed, compile    | values  |          |
kill -9 while compiling   3-4     both           dynamo  | crashed, compile    | values  |          |
                                                 forward | crashed, compile    | recipes |          |

kill -9 while running     3-4     aot            forward | crashed, run        | values  |          |
kill -9 while running     3-4     dynamo         dynamo  | crashed, run        | values  |          |
kill -9 while running     3-4     plain          dynamo  | crashed, run        | values  |          |
kill -9 while running     3-4     both           dynamo  | crashed, run        | values  |          |
                                                 forward | crashed, run        | values  |          |
"""

# What the program sees: the same as unwatched, apart from a note, with one exception. For every graph that is watched.
PROPAGATES = """
way to fail               unwatched, levels 1-3    level 4
------------------------- ------------------------ -------------------------
clean                     the right result         the right result
compile error             BackendCompilerFailed    BackendCompilerFailed
run-time error            ZeroDivisionError        ZeroDivisionError
wrong result              the wrong result         AccuracyError
segfault while compiling  SIGSEGV                  SIGSEGV
segfault while running    SIGSEGV                  SIGSEGV
^C while compiling        KeyboardInterrupt        KeyboardInterrupt
^C while running          KeyboardInterrupt        KeyboardInterrupt
kill -9 while compiling   SIGKILL                  SIGKILL
kill -9 while running     SIGKILL                  SIGKILL
"""


@dataclass(frozen=True)
class Expected:
    """A case that is to be on the disk."""

    graph: str
    what: str
    inputs: str
    beside: str
    parent: str


@dataclass(frozen=True)
class Row:
    way: str
    levels: range
    watched: str
    kept: tuple[Expected, ...]


def _columns(line: str) -> tuple[str, str, str, str]:
    return line[:25].strip(), line[26:33].strip(), line[34:48].strip(), line[49:].strip()


def _rows() -> list[Row]:
    rows: list[Row] = []
    for line in TABLE.splitlines()[3:]:
        way, levels, watched, kept = _columns(line)
        case = [Expected(*(part.strip() for part in kept.split("|")))] if kept else []
        if way:
            first, _, last = levels.partition("-")
            span = range(0) if levels == "none" else range(int(first), int(last or first) + 1)
            rows.append(Row(way, span, watched, tuple(case)))
        elif kept:
            rows[-1] = Row(rows[-1].way, rows[-1].levels, rows[-1].watched, (*rows[-1].kept, *case))
    return rows


ROWS = _rows()
ENDS = {line[:25].strip(): (line[26:50].strip(), line[51:].strip()) for line in PROPAGATES.splitlines()[3:]}


# ---- the cells -----------------------------------------------------------------------------------------------


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight).sum(1)


X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8 - 0.5
WEIGHT = torch.arange(8, dtype=torch.float32).reshape(4, 2).requires_grad_()
RIGHT = program(X, WEIGHT).tolist()


def _maker(row: Row) -> Callable[..., Any]:
    return plain_backend if row.watched == "plain" else aot_backend


@functools.cache
def _unwatched(way: str, backend: Callable[..., Any]) -> Ended:
    """How the program ends if nobody watches."""
    return _run(WAYS[way], backend(WAYS[way].compiling, WAYS[way].then))


def _run(way: Way, backend: Any) -> Ended:
    """Compile and run the program once, as if it were all that there is."""

    def call() -> Any:
        return torch.compile(program, backend=backend)(X, WEIGHT).tolist()

    torch._dynamo.reset()
    return ended_forked(call, way.sent) if way.forked else ended(call)


@pytest.fixture(autouse=True)
def hangs_are_found_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who interrupts after a second waits for a hang; so that the tests need not, here it is much less."""
    monkeypatch.setattr(keeping, "HANG", 0.05)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.way}, {row.watched}")
def test_what_is_kept_and_what_propagates(row: Row, level: int, tmp_path: Path) -> None:
    """Covers: S6, S6b, S7, S8, S9, S12, U19, U24"""
    way, make = WAYS[row.way], _maker(row)
    unwatched = _unwatched(row.way, make)
    after = "dynamo" if row.watched == "plain" else row.watched
    store = tmp_path / "store"
    watched = _run(way, watch(make(way.compiling, way.then), after=after, level=level, store=str(store)))

    assert _kept(store) == (_told(row) if level in row.levels else [])
    for _, case in listed(store):
        assert case.todo == (None if level == 1 else "minify")
        if inputs_of(case) == "values":
            wanted = {tuple(value.flatten().tolist()) for value in (X, WEIGHT)}
            assert {tuple(value.flatten().tolist()) for value in values_of(store, case)} == wanted
    usual, at_level_4 = ENDS[row.way]
    assert _end(unwatched) == usual
    assert _end(watched) == (at_level_4 if level == 4 else usual)
    if _end(watched) == usual:
        assert dataclasses.replace(watched, notes=()) == unwatched
    else:
        assert "computes something else than eager at output" in watched.message
    _check_notes(store, watched)


def _end(one: Ended) -> str:
    if one.signal is not None:
        return signal.Signals(one.signal).name
    if one.error is not None:
        return one.error
    return {str(RIGHT): "the right result", str([value + 1 for value in RIGHT]): "the wrong result"}[str(one.result)]


def _kept(store: Path) -> list[Expected]:
    found = listed(store)
    phases = {folder.name: case.origin.phase for folder, case in found}
    kept = []
    for folder, case in found:
        assert case.failure is not None
        signature = case.failure.signature
        beside = ", ".join(sorted(path.name for path in folder.iterdir() if path.name != "case.json"))
        parent = "" if case.origin.parent is None else phases[case.origin.parent]
        what = f"{signature.kind}, {signature.stage}"
        kept.append(Expected(case.origin.phase, what, inputs_of(case), beside, parent))
    return sorted(kept, key=lambda case: case.graph)


def _told(row: Row) -> list[Expected]:
    return sorted(row.kept, key=lambda case: case.graph)


def _check_notes(store: Path, watched: Ended) -> None:
    """What propagates names, in one note, the case of the graph that failed, and the next command."""
    if watched.error is None:
        assert watched.notes == ()
        return
    parents = {case.origin.parent for _, case in listed(store)}
    (folder,) = (folder for folder, _ in listed(store) if folder.name not in parents)
    (note,) = watched.notes
    assert str(folder) in note
    assert note.splitlines()[-1].startswith("Next: sleuth ")


def test_every_cell_is_in_the_table() -> None:
    cells = [(row.way, row.watched) for row in ROWS]
    assert sorted(cells) == sorted((way, watched) for way in WAYS for watched in ("aot", "dynamo", "plain", "both"))
    assert list(ENDS) == list(WAYS)


def test_with_watching_off_nothing_is_kept_of_any_failure(tmp_path: Path) -> None:
    """Covers: S1"""
    for way in WAYS.values():
        if not way.forked:
            with patch(after=None):
                _run(way, watch(aot_backend(way.compiling, way.then), level=4, store=str(tmp_path / "store")))
    assert not (tmp_path / "store").exists()

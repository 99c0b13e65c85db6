"""Replaying a case: the graph is compiled and run again as it was, and what happens is an `Outcome`.

    outcome = replay("3f9a")                              in a fresh interpreter
    outcome = replay(found, runner, compiler="aot_eager")

    found = Store.open().find("3f9a")
    ask(runner, question(found, deadline=60.0))           the same in two steps

A process that dies cannot say whether eager would have died as well: so after a crash, a hang, or a want of memory,
eager is asked too. If it fares no better, the case is `Unrunnable`. And after a wrong result it is asked once more, for
the operator to blame: what that does to a process must not cost the answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from torchsleuth.case import schema
from torchsleuth.case.script import expected
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import CaseError
from torchsleuth.outcome import Crashed, Mismatched, Outcome, OutOfMemory, TimedOut, Unrunnable
from torchsleuth.run.query import Progress, Query, Runner
from torchsleuth.run.runners.fresh import Fresh

_DEADLY: Final = ("crashed", "timed out", "out of memory")


def replay(
    case: Found | str | os.PathLike[str],
    runner: Runner | None = None,
    *,
    compiler: str | None = None,
    accuracy: bool | None = None,
    trust: bool = False,
    deadline: float | None = None,
    memory: int | None = None,
    with_history: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Compile and run a case again, by default in a fresh interpreter, and say what happened.

    `case` is a `Found`, or the id, the label or the path of one. `compiler` takes the place of the case's own;
    `accuracy` says whether results are compared with eager (by default if the case is about them); `deadline` is in
    seconds, `memory` in bytes; `with_history` first compiles the graphs that the program had compiled before.
    """
    found = case if isinstance(case, Found) else Store.open().find(case)
    query = question(
        found,
        compiler=compiler,
        accuracy=accuracy,
        trust=trust,
        deadline=deadline,
        memory=memory,
        with_history=with_history,
    )
    if runner is not None:
        return ask(runner, query, progress)
    with Fresh(workers=1) as fresh:
        return ask(fresh, query, progress)


def question(
    found: Found,
    *,
    compiler: str | None = None,
    accuracy: bool | None = None,
    trust: bool = False,
    deadline: float | None = None,
    memory: int | None = None,
    with_history: bool = False,
) -> Query:
    """The query that replays a case."""
    failure = found.case.failure
    kind = None if failure is None else failure.signature.kind
    if deadline is None and failure is not None and kind == "timed out":
        deadline = expected.deadline_of(failure)
    return Query(
        found.case,
        found.home,
        compiler,
        accuracy,
        trust=trust,
        history=history_of(found).cases if with_history else (),
        alone=kind in _DEADLY or with_history,
        deadline=deadline,
        memory=memory,
    )


def ask(runner: Runner, query: Query, progress: Progress | None = None, *, blame: bool = True) -> Outcome:
    """The outcome of a query. What eager does not survive either is `Unrunnable`.

    `blame`: after a wrong result, look for its operator.
    """
    outcome = runner.run(query, progress)
    if isinstance(outcome, Mismatched) and outcome.op is None and blame:
        again = runner.run(msgspec.structs.replace(query, find_op=True))
        return replace(outcome, op=again.op) if isinstance(again, Mismatched) else outcome
    if query.compiler == "eager" or not isinstance(outcome, (Crashed, TimedOut, OutOfMemory)):
        return outcome
    return fares_alike(outcome, runner.run(in_eager(query)))


def in_eager(query: Query) -> Query:
    """The same question about eager."""
    return msgspec.structs.replace(query, compiler="eager", accuracy=False, history=(), alone=True)


def fares_alike(outcome: Outcome, eager: Outcome) -> Outcome:
    """The outcome of a run that died, unless eager fared no better: then it says nothing about the compiler."""
    if not _dies_alike(outcome, eager):
        return outcome
    return Unrunnable(
        eager.stage,
        outcome.seconds + eager.seconds,
        eager.stdout,
        eager.stderr,
        notes=outcome.notes,
        reason=f"eager fares no better: it {_words(eager)}",
    )


def _dies_alike(outcome: Outcome, eager: Outcome) -> bool:
    if isinstance(outcome, Crashed) and isinstance(eager, Crashed):
        return (outcome.signal, outcome.exit_code) == (eager.signal, eager.exit_code)
    return type(outcome) is type(eager)


def _words(eager: Outcome) -> str:
    said = eager.describe()
    return said if said.startswith(("ran", "timed", "crashed", "ended")) else f"is {said}"


# ---- the history of its process --------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The graphs that the program had compiled before, as far as they are at hand."""

    cases: tuple[schema.Case, ...] = ()
    missing: tuple[str, ...] = ()
    """What is not there, and why, in words."""


def history_of(found: Found) -> History:
    """The cases that a case lists as compiled before it. One that is gone is not an error: it is `missing`."""
    earlier = found.case.origin.history
    store = _store_of(found) if earlier else None
    cases, missing = [], []
    for one in earlier:
        if one.case is None:
            missing.append(f"{one.graph} (it was not kept)")
        elif store is None:
            missing.append(f"{one.graph} (the case does not lie in a store)")
        else:
            try:
                cases.append(store.load(one.case))
            except CaseError as error:
                missing.append(f"{one.graph} ({error.what})")
    return History(tuple(cases), tuple(missing))


def _store_of(found: Found) -> Store | None:
    """The store that a case lies in."""
    return next((Store.open(root) for root in _roots(found)), None)


def _roots(found: Found) -> Iterator[str]:
    if "://" in found.home:
        yield found.home
    here = Path(found.path).absolute().parent.parent
    if here.name == "cases":
        yield str(here.parent)

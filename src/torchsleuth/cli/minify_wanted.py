"""What `sleuth minify` is asked for, whether that makes sense, and the terms that it comes to."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchsleuth.case.signatures import Match
from torchsleuth.cli.replay import size_of
from torchsleuth.errors import SleuthError

if TYPE_CHECKING:
    from torchsleuth.reduce.jobs import Job
    from torchsleuth.reduce.minifying import Terms

_NEEDS: Final = re.compile(r"(\d{1,4})/(\d{1,4})")


@dataclass(frozen=True)
class Wanted:
    """What `sleuth minify` was asked for; None where it was not asked."""

    name: str
    store: str | None = None
    test: str | None = None
    resume: bool = False
    again: bool = False
    timeout: float | None = None
    queries: int | None = None
    deadline: float | None = None
    memory: str | None = None
    workers: int | None = None
    needs: str | None = None
    match: str | None = None
    trust: bool = False
    output: Path | None = None


def check(wanted: Wanted) -> None:
    """A `SleuthError` for what cannot be done as asked: before the work, not after it."""
    if wanted.resume and wanted.again:
        raise SleuthError(
            "to go on, or to begin anew?",
            cause="--resume and --again were both given",
            remedy="leave out one of the two",
        )
    theirs = {"--match": wanted.match, "--needs": wanted.needs, "--memory": wanted.memory}
    given = [name for name, value in theirs.items() if value is not None]
    if wanted.test is not None and given:
        raise SleuthError(
            f"{' and '.join(given)} cannot be given with --test",
            cause="what counts as the failure, and how it is run, is for the test to say",
            remedy="leave it out, and see to it in the test",
        )
    if wanted.output is not None:
        _check_output(wanted.output)


def _check_output(out: Path) -> None:
    """See that a script can be written there."""
    if out.is_dir():
        raise _no_output(out, "it is a folder", f"say the name of a file: -o {shlex.quote(str(out / 'repro.py'))}")
    there = out
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if there != out and not there.is_dir():
        raise _no_output(out, f"{there} is no folder", "choose another place")
    if not os.access(there, os.W_OK):
        raise _no_output(out, f"{there} cannot be written to", "choose another place, or see who may write there")


def _no_output(out: Path, cause: str, remedy: str) -> SleuthError:
    return SleuthError(f"no script can be written to {out}", cause=cause, remedy=remedy)


def job_of(wanted: Wanted, folder: Path, case: str) -> Job:
    """The terms: what was given, or else what the interrupted one had."""
    from torchsleuth.reduce.commanding import words_of
    from torchsleuth.reduce.jobs import Job, to_resume

    before = to_resume(folder, case) if wanted.resume else Job(case)
    test = () if wanted.test is None else words_of(wanted.test)
    if (before.test and not test) or (before.trust and not wanted.trust):
        said = " and ".join(
            [*([f"--test {shlex.join(before.test)!r}"] if before.test else []), *["--trust"] * before.trust]
        )
        raise SleuthError(
            "what may be executed has to be said again",
            cause=f"the interrupted one had {said}, and a file is no authority for that",
            remedy="say it again, if that is what you want",
        )
    needs = before.needs if wanted.needs is None else needs_of(wanted.needs)
    return Job(
        case,
        match=wanted.match or ("origin" if test else before.match),
        deadline=before.deadline if wanted.deadline is None else wanted.deadline,
        memory=before.memory if wanted.memory is None else size_of(wanted.memory),
        needs=(1, 1) if test else needs,
        workers=wanted.workers or before.workers,
        test=test,
        trust=wanted.trust,
    )


def needs_of(text: str) -> tuple[int, int]:
    """How many of how many runs have to show the failure: `2/5`."""
    found = _NEEDS.fullmatch(text.strip())
    needs = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= needs[0] <= needs[1]:
        raise SleuthError(
            f"{text!r:.40} does not say how many of how many runs have to fail",
            cause="it is two numbers, and the second is no smaller than the first",
            remedy="say 2/5",
        )
    return needs


def terms_of(wanted: Wanted, job: Job) -> Terms:
    """The same for reducing, with the budget, which holds for this time only."""
    from torchsleuth.reduce.minifying import Terms
    from torchsleuth.reduce.problem import Budget

    return Terms(
        match=Match.parse(job.match),
        trust=job.trust,
        deadline=job.deadline,
        memory=job.memory,
        needs=job.needs,
        workers=job.workers,
        budget=Budget(wanted.timeout, wanted.queries),
        again=wanted.again,
    )

"""`sleuth breaks`: where the graphs of a script's function break, why, and what to change; and what Dynamo says of it.

The script is run in this process, with its own `sys.argv`. What it prints goes to stderr: stdout is for the answer.
"""

from __future__ import annotations

import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from rich.console import Console
from rich.text import Text

from torchsleuth.case.words.wording import clean
from torchsleuth.cli.answers import Answer, stdout_apart

if TYPE_CHECKING:
    from torchsleuth.frontend.breaks import Place
    from torchsleuth.frontend.second_opinion import Objection
    from torchsleuth.frontend.surveying import Finding, Survey, Surveyed

_FILTERS: Final = tuple(warnings.filters)
"""Which warnings are shown, by Python's options: as it was before anybody has changed it."""


@dataclass(frozen=True)
class Asked:
    """What `sleuth breaks` was asked for."""

    script: str
    arguments: tuple[str, ...] = ()
    limit: int | None = None
    dynamo: bool = True
    deadline: float | None = None

    def command(self, verb: str) -> str:
        words = ["sleuth", verb, self.script]
        return shlex.join([*words, "--", *self.arguments] if self.arguments else words)


def breaks(err: Console, asked: Asked, *, width: int, as_json: bool = False) -> Answer:
    """0: no graph breaks. 1: one does, in ours or in Dynamo's. 2: nothing could be looked at. 3: our own fault."""
    from torchsleuth.frontend.scripts import Script
    from torchsleuth.frontend.surveying import CALLS, survey_script
    from torchsleuth.report.breaks import render_survey

    def told(words: str) -> None:
        if not as_json:
            err.print(Text(f"torchsleuth: {clean(words)}"), soft_wrap=True, highlight=False)

    script = Script.parse(asked.script, asked.arguments)
    limit = CALLS if asked.limit is None else asked.limit
    with stdout_apart(), _warnings_as_usual(), _at_most(asked.deadline):
        survey = survey_script(script, limit=limit, dynamo=asked.dynamo, told=told)
    code = _code(survey.functions)
    return Answer(_data(survey), render_survey(survey, width=width), _next(asked, survey, code), code)


def _code(functions: Sequence[Surveyed]) -> int:
    if any(each.breaks for each in functions):
        return 1
    if any(each.failures for each in functions):
        return 3
    return 0 if any(each.recordings for each in functions) else 2


def _next(asked: Asked, survey: Survey, code: int) -> str:
    if code == 3:
        records = [failure.record for each in survey.functions for failure in each.failures if failure.record]
        return shlex.join(["sleuth", "replay", records[0], "--trust"]) if records else "sleuth doctor"
    if code == 1:
        return asked.command("breaks")  # once something was changed
    if survey.ended.error is not None or code == 2:
        return shlex.join(["python", survey.script.path, *asked.arguments])
    if not survey.ended.compiles:  # then there is nothing that could be watched
        return asked.command("witness")
    return shlex.join(["sleuth", "run", survey.script.path, *asked.arguments])


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """What takes longer is stopped, if it is Python code of this thread, or lets signals interrupt it."""
    from torchsleuth.frontend.scripts import OutOfTime

    if seconds is None:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise OutOfTime(f"{seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _warnings_as_usual() -> Iterator[None]:
    """Warnings of the script are its own: they go to stderr, as they do without us."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.filters = list(_FILTERS)
        warnings.showwarning = show
        yield


# ---- data ------------------------------------------------------------------------------------------------------


def _data(survey: Survey) -> dict[str, Any]:
    return {
        "script": survey.script.path,
        "function": survey.script.function,
        "arguments": list(survey.script.arguments),
        "ended": survey.ended.words,
        "stopped": survey.stopped,
        "uncalled": list(survey.ended.uncalled),
        "functions": [_function_data(each) for each in survey.functions],
    }


def _function_data(surveyed: Surveyed) -> dict[str, Any]:
    opinion = surveyed.opinion
    return {
        "name": surveyed.name,
        "calls": surveyed.calls,
        "looked_at": surveyed.looked_at,
        "objects": surveyed.objects,
        "graphs": {"first_call": list(surveyed.graphs), "all": surveyed.all_graphs},
        "hits": surveyed.hits,
        "recordings": surveyed.recordings,
        "breaks": [_finding_data(each) for each in surveyed.findings],
        "settled": surveyed.settled,
        "misses": [asdict(each) for each in surveyed.misses],
        "uncacheable": surveyed.uncacheable,
        "natives": surveyed.natives,
        "failures": [
            {
                "words": each.words,
                "place": None if each.place is None else _place_data(each.place),
                "record": each.record,
            }
            for each in surveyed.failures
        ],
        "dynamo": None
        if opinion is None
        else {
            "graphs": list(opinion.graphs),
            "breaks": [_objection_data(each) for each in opinion.objections],
            "failure": opinion.failure,
        },
    }


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {
        **_place_data(finding.place),
        "number": finding.number,
        "reason": finding.reason,
        "advice": finding.advice,
        "natively": finding.natively,
        "home": _place_data(finding.home),
        "stack": [_place_data(each) for each in finding.stack],
        "dynamo": [each.headline for each in finding.objections],
    }


def _objection_data(objection: Objection) -> dict[str, Any]:
    return {"reason": objection.reason, "stack": [_place_data(each) for each in objection.stack]}


def _place_data(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "function": place.function, "source": place.source}

"""`sleuth breaks`: where the graphs of a script's function break, why, and what to change; and what Dynamo says of it.

The script is run in a process of its own, with its own `sys.argv`. What it prints goes to stderr: stdout is for the
answer. If that process dies, what was known by then is told, and what it died of.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from rich.console import Console
from rich.text import Text

from torchsleuth.case.words.wording import clean
from torchsleuth.cli.answers import Answer, stdout_apart
from torchsleuth.cli.witness import CHILD, where_it_was
from torchsleuth.errors import NeverCalled, ScriptError, SleuthError
from torchsleuth.run.child import Ended, interpreter, run_child

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchsleuth.frontend.breaks import Place
    from torchsleuth.frontend.scripts import Script
    from torchsleuth.frontend.second_opinion import Objection
    from torchsleuth.frontend.surveying import Finding, Progress, Survey, Surveyed

_FILTERS: Final = tuple(warnings.filters)
"""Which warnings are shown, by Python's options: as it was before anybody has changed it."""
NOTES: Final = "TORCHSLEUTH_BREAKS_NOTES"
"""The environment variable by which the child knows in which folder it is to note how far it is."""
_LATEST: Final = 20.0
"""So many seconds after the deadline of the script a process is stopped, whatever it is at."""


@dataclass(frozen=True)
class Asked:
    """What `sleuth breaks` was asked for."""

    script: str
    arguments: tuple[str, ...] = ()
    limit: int | None = None
    dynamo: bool = True
    deadline: float | None = None

    @property
    def path(self) -> str:
        """The script without the function."""
        path, colon, _ = self.script.rpartition(":")
        return path if colon and not os.path.exists(self.script) else self.script

    def command(self, verb: str) -> str:
        words = ["sleuth", verb, self.script]
        return shlex.join([*words, "--", *self.arguments] if self.arguments else words)

    def words(self, *, as_json: bool) -> list[str]:
        """All of it as it is typed."""
        options = [] if self.limit is None else ["--limit", str(self.limit)]
        options += [] if self.dynamo else ["--no-dynamo"]
        options += [] if self.deadline is None else ["--deadline", str(self.deadline)]
        options += ["--json"] if as_json else []
        return [*options, self.script, *(["--", *self.arguments] if self.arguments else [])]


def breaks(err: Console, asked: Asked, *, width: int, as_json: bool = False) -> Answer:
    """0: no graph breaks. 1: one does, in ours or in Dynamo's. 2: nothing could be looked at. 3: our own fault.

    130: it was interrupted. Leaves (`SystemExit`) if a process of its own has given the answer.
    """

    def told(words: str) -> None:
        if not as_json:
            err.print(Text(f"torchsleuth: {clean(words)}"), soft_wrap=True, highlight=False)

    folder = os.environ.pop(NOTES, None)
    if folder is None and hasattr(signal, "sigtimedwait"):
        return _in_a_child(asked, told, as_json=as_json)
    notes = Notes(None if folder is None else Path(folder), asked, width)
    try:
        answer = _answer(asked, told, notes, width)
    except BaseException as error:
        notes.done(2 if isinstance(error, SleuthError) else 130 if isinstance(error, KeyboardInterrupt) else 3)
        raise
    notes.done(answer.code)
    return answer


def _answer(asked: Asked, told: Callable[[str], None], notes: Notes, width: int) -> Answer:
    """Run the script in this process."""
    from torchsleuth.frontend.scripts import Script
    from torchsleuth.frontend.surveying import CALLS, survey_script
    from torchsleuth.report.breaks import render_survey

    script = Script.parse(asked.script, asked.arguments)
    limit = CALLS if asked.limit is None else asked.limit
    with stdout_apart(), _warnings_as_usual(), _at_most(asked.deadline), notes.open(script) as progress:
        try:
            survey = survey_script(script, limit=limit, dynamo=asked.dynamo, told=told, progress=progress)
        except NeverCalled as never:
            if isinstance(never.__cause__, KeyboardInterrupt):
                raise never.__cause__ from None
            raise
    code = _code(survey.functions)
    following = _next(asked, survey, code)
    code = 130 if isinstance(survey.ended.error, KeyboardInterrupt) else code
    return Answer(_data(survey), render_survey(survey, width=width), following, code)


# ---- in a process of its own -------------------------------------------------------------------------------------


def _in_a_child(asked: Asked, told: Callable[[str], None], *, as_json: bool) -> Answer:
    """The same in a process of its own, which gives the answer. If it dies, what is known is the answer."""
    folder = Path(tempfile.mkdtemp(prefix="sleuth-breaks-"))
    timeout = None if asked.deadline is None else asked.deadline + _LATEST
    try:
        os.environ[NOTES] = str(folder)
        try:
            command = [*interpreter(), "-c", CHILD, "breaks", *asked.words(as_json=as_json)]
            ended = run_child(command, timeout=timeout, say=told)
        finally:
            del os.environ[NOTES]
        noted = Noted.read(folder)
        if noted.code is not None:
            raise SystemExit(noted.code)  # whatever became of the process after its answer
        if ended.stopped_by is not None or not noted.has_begun:
            raise SystemExit(ended.exit_code)
        return _of_the_dead(asked, ended, noted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_the_dead(asked: Asked, ended: Ended, noted: Noted) -> Answer:
    """What is known of a script whose process has died."""
    from torchsleuth.capture.deaths import death_of

    death = death_of(ended)
    during = f" in {noted.call}" if noted.call else ""
    words = f"its process {death.words if death is not None else 'ended'}{during}{where_it_was(noted.stack)}"
    by_itself = shlex.join(["python", asked.path, *asked.arguments])
    if noted.known is None:
        whose = "; if it does, our own front end may be at fault: please report it" if noted.call else ""
        raise ScriptError(
            f"{asked.script} could not be looked at",
            cause=words,
            remedy=f"see that it runs by itself first: {by_itself}{whose}",
        )
    known = noted.known
    shown = [Text.from_ansi(known["shown"]), Text(f"\nnote: {clean(words)}", "yellow")]
    following = asked.command("breaks") if known["code"] == 1 else by_itself
    return Answer({**known["data"], "ended": words}, shown, following, known["code"])


class Notes:
    """What the child notes in a folder, if it has one: where it is, what is known, and that it has answered."""

    def __init__(self, folder: Path | None, asked: Asked, width: int) -> None:
        self._folder = folder
        self._asked = asked
        self._width = width

    @contextmanager
    def open(self, script: Script) -> Iterator[Progress]:
        """Somebody who hears how far a survey is. Inside, a death leaves its stack."""
        from torchsleuth.frontend.scripts import Ended as ScriptEnded
        from torchsleuth.frontend.surveying import Progress, Survey
        from torchsleuth.report.breaks import render_survey

        if self._folder is None:
            yield Progress()
            return
        notes, in_colour = self, sys.stdout.isatty()

        class Noting(Progress):
            def begins(self, call: str) -> None:
                notes.write("call", call)

            def knows(self, functions: tuple[Surveyed, ...]) -> None:
                ended = ScriptEnded(sum(each.calls for each in functions))
                survey = Survey(script, ended, False, functions)
                shown = _as_text(render_survey(survey, width=notes._width), notes._width, in_colour=in_colour)
                known = {"data": _data(survey), "shown": shown, "code": _code(functions)}
                notes.write("known", json.dumps(known))
                notes.write("call", "")

        self.write("call", "")
        with contextlib.ExitStack() as stack:
            if not faulthandler.is_enabled():
                faulthandler.enable(stack.enter_context(open(self._folder / "stack", "wb", buffering=0)))
                stack.callback(faulthandler.disable)
            yield Noting()

    def done(self, code: int) -> None:
        """The answer is about to be given."""
        if self._folder is not None:
            self.write("code", str(code))

    def write(self, name: str, text: str) -> None:
        assert self._folder is not None
        new = self._folder / f"{name}.new"
        new.write_text(text)
        new.replace(self._folder / name)


@dataclass(frozen=True)
class Noted:
    """What a child has noted before its end."""

    has_begun: bool = False
    call: str = ""
    """The call that it was looking at."""
    known: dict[str, Any] | None = field(default=None, repr=False)
    stack: str = ""
    code: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Noted:
        def text(name: str) -> str | None:
            path = folder / name
            return path.read_text(errors="replace") if path.exists() else None

        call, known, code = text("call"), text("known"), text("code")
        return cls(
            call is not None,
            call or "",
            None if known is None else json.loads(known),
            text("stack") or "",
            None if code is None else int(code),
        )


def _as_text(parts: Iterable[RenderableType], width: int, *, in_colour: bool) -> str:
    """What the parts look like on the terminal."""
    console = Console(file=io.StringIO(), width=width, force_terminal=in_colour)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text), highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


# ---- the answer ----------------------------------------------------------------------------------------------------


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

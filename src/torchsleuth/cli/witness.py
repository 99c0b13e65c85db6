"""`sleuth witness`: one call of a script's function, made in eager, by Dynamo and by our own front end: who is wrong?

The script runs in a process of its own, unless that is not wanted. When the process dies, or a run takes longer than it
may, then that is what came of this run: the script is started again, to find out what can be known without it. What the
script prints goes to stderr: stdout is for the answer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rich.console import Console
from rich.text import Text

from torchsleuth.case.words.wording import clean
from torchsleuth.cli.answers import Answer, give, stdout_apart
from torchsleuth.errors import NeverCalled, ScriptError
from torchsleuth.outcome import Crashed, Outcome, Stage, TimedOut, from_data, to_data
from torchsleuth.run.child import Ended, interpreter, run_child

if TYPE_CHECKING:
    from torchsleuth.frontend.scripts import Call
    from torchsleuth.frontend.testimony import Testimony

DEADLINE: Final = 600.0
"""Seconds that a run has."""
_ENOUGH: Final = 2.0
"""So many times the deadline of a run is time enough for a script."""
_SHORTEST: Final = 30.0
_ATTEMPTS: Final = 20
CHILD: Final = (
    "import os, sys; safe = getattr(sys.flags, 'safe_path', 0); safe or sys.path.pop(0); "
    "from torchsleuth.cli.main import main; safe or sys.path.insert(0, os.path.dirname(sys.executable)); main()"
)
"""What a child is given to do. The folder that we are in must not be where we import from."""
UP_TO_THE_CALL: Final = "the script, up to the call"
_FRAME: Final = re.compile(r'^  File "([^"\n]+)", line (\d+) in ', re.MULTILINE)
_TIME_IS_UP: Final = "Timeout ("
"""How the fault handler's words begin."""


@dataclass(frozen=True)
class Asked:
    """What `sleuth witness` was asked for."""

    script: str
    arguments: tuple[str, ...] = ()
    backend: str = "inductor"
    call: int = 1
    dynamic: bool | None = None
    deadline: float = DEADLINE
    isolate: bool = True
    steps: str | None = None
    """In the child: the folder in which its steps are noted."""

    @property
    def path(self) -> str:
        """The script without the function."""
        path, colon, _ = self.script.rpartition(":")
        return path if colon and not os.path.exists(self.script) else self.script

    def words(self, *, as_json: bool) -> list[str]:
        """All of it as it is typed."""
        options = ["--backend", self.backend, "--call", str(self.call), "--deadline", str(self.deadline)]
        options += [] if self.dynamic is None else ["--dynamic" if self.dynamic else "--no-dynamic"]
        options += ["--json"] if as_json else []
        return [*options, self.script, *(["--", *self.arguments] if self.arguments else [])]

    def next(self, verb: str, *more: str, function: bool = False) -> str:
        """Another command on the same script."""
        words = ["sleuth", verb, *more, self.script if function else self.path]
        apart = ["--"] if self.arguments and verb != "run" else []
        return shlex.join([*words, *apart, *self.arguments])

    def again(self, *more: str, deadline: float | None = None) -> str:
        """The same once more, with more options."""
        given = ["--backend", self.backend]
        given += ["--call", str(self.call)] if self.call != 1 else []
        given += [] if self.dynamic is None else ["--dynamic" if self.dynamic else "--no-dynamic"]
        given += ["--deadline", f"{deadline or self.deadline:g}"] if (deadline or self.deadline) != DEADLINE else []
        return self.next("witness", *given, *more, function=True)


def run(out: Console, err: Console, asked: Asked, *, as_json: bool) -> int:
    """0: nobody is wrong. 1: somebody is. 2: it cannot be said, or not be done. 3: our own fault."""

    def say(words: str) -> None:
        if words and not as_json:
            err.print(Text(f"torchsleuth: {clean(words)}", "dim"), soft_wrap=True, highlight=False)

    if asked.isolate:
        return _in_children(out, asked, say, as_json=as_json)
    log = StepLog(None if asked.steps is None else Path(asked.steps), asked.deadline, say)
    code = give(out, lambda: _answer(asked, log), as_json=as_json)
    log.done(code)
    return code


# ---- in this process -----------------------------------------------------------------------------------------


def _answer(asked: Asked, log: StepLog) -> Answer:
    from torchsleuth.report.witness import render_testimony, testimony_data

    with stdout_apart():
        name, testimony, compiles = _examine(asked, log)
    code = 1 if testimony.somebody_is_wrong else 0 if testimony.blame.value == "nobody" else 2
    code = 3 if testimony.we_failed else code
    title = Text.assemble((clean(name), "bold"), (f"  call {asked.call}, backend {clean(testimony.backend)}", "dim"))
    data = {"script": asked.path, "function": name, "call": asked.call, **testimony_data(testimony)}
    return Answer(
        data, (title, *render_testimony(testimony)), next_command(asked, name, testimony, compiles=compiles), code
    )


def _examine(asked: Asked, log: StepLog) -> tuple[str, Testimony, bool]:
    """Run the script up to the call, and examine that. Also whether the script was seen to call torch.compile."""
    from torchsleuth.cli.keeping import Keeping
    from torchsleuth.frontend.scripts import Enough, Script
    from torchsleuth.frontend.witness import witness

    script = Script.parse(asked.script, asked.arguments)
    found = _Found()

    def on_call(call: Call) -> Any:
        found.calls += 1
        if found.calls < asked.call:
            return call.go()
        if not found.is_over:
            found.name = call.name
            dynamic = call.dynamic if asked.dynamic is None else asked.dynamic
            try:
                backend = _backend(asked.backend)
                keeper = Keeping(log.folder)
                found.testimony = witness(
                    call.fn, call.args, backend, kwargs=call.kwargs, dynamic=dynamic, steps=log, keeper=keeper
                )
            except BaseException as error:  # noqa: BLE001 - the script must not catch what is not its own
                found.error = error
        raise Enough

    with log.up_to_the_call():
        ended = script.run(on_call)
    if found.error is not None:
        raise found.error
    if found.testimony is None:
        if isinstance(ended.error, KeyboardInterrupt):
            raise ended.error
        times = "once" if found.calls == 1 else f"{found.calls} times"
        raise NeverCalled(
            f"{script} is called {times}, so there is no call {asked.call}",
            cause=ended.words or "the script ran to its end",
            remedy=f"ask for an earlier one: --call {found.calls}",
        )
    return found.name, found.testimony, ended.compiles


@dataclass
class _Found:
    """What came of a script."""

    calls: int = 0
    name: str = ""
    testimony: Testimony | None = None
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.testimony is not None or self.error is not None


def _backend(name: str) -> str | Callable[..., Any]:
    """A name that torch.compile knows, or module:function, where the script finds modules."""
    from torchsleuth.run import own_code

    return own_code.find(name) if ":" in name else name


def next_command(asked: Asked, name: str, testimony: Testimony, *, compiles: bool) -> str:
    """What to type after this verdict. `compiles`: the script was seen to call torch.compile."""
    from torchsleuth.frontend.testimony import Blame

    if testimony.cases:
        return testimony.cases[-1].next
    match testimony.blame:
        case Blame.FRONT_END:
            return asked.next("breaks", function=True)
        case Blame.OURS if testimony.records:
            return shlex.join(["sleuth", "replay", testimony.records[0], "--trust"])
        case Blame.OURS:  # what to send us
            return asked.again("--json")
        case Blame.UNCLEAR if not testimony.somebody_is_wrong:
            if isinstance(testimony.eager.failure, TimedOut):
                return asked.again(deadline=_ENOUGH * asked.deadline)
            if testimony.eager.failure is not None:
                return shlex.join(["python", asked.path, *asked.arguments])
            return asked.next("breaks", function=True)
        case Blame.NOBODY if not compiles:
            return asked.next("breaks", function=True)
    failure = testimony.dynamo.failure
    hangs = isinstance(failure, TimedOut)
    was_watched = testimony.blame is Blame.BACKEND and not hangs  # in vain, or there would be a case
    if was_watched or testimony.dynamo.effect or testimony.ours.effect:  # where values agree, watching shows nothing
        return asked.again("--json")
    if hangs:
        return _to_be_stopped(asked, name, compiles=compiles)
    level = "accuracy" if failure is None else "minify" if failure.verb == "raised" else "always"
    return asked.next("run", "--level", level) if compiles else _to_be_watched(asked, name)


def _to_be_stopped(asked: Asked, name: str, *, compiles: bool) -> str:
    """How to have a hang kept: it is stopped after some time. What a script does before the call has its time, too."""
    timeout = max(_ENOUGH * asked.deadline, _SHORTEST)
    following = asked.next("run", "--timeout", f"{timeout:g}", "--level", "always")
    if compiles:
        return following
    return f"call torch.compile({name}, backend={_in_code(asked)}) in {shlex.quote(asked.path)}, then: {following}"


def _in_code(asked: Asked) -> str:
    """The backend as a script would name it."""
    return f'"{asked.backend}"' if ":" not in asked.backend else asked.backend.replace(":", ".")


def _to_be_watched(asked: Asked, name: str) -> str:
    """What to add to a script that compiles nothing: `sleuth run` would see no failure in it."""
    watched = f"torch.compile({name}, backend=torchsleuth.watch({_in_code(asked)}, level=4))"
    return f"call {watched} in {shlex.quote(asked.path)}, and run that"


# ---- in processes of its own ---------------------------------------------------------------------------------


def _in_children(out: Console, asked: Asked, say: Callable[[str], None], *, as_json: bool) -> int:
    """The same in a process of its own; once more, without the step that it died in, until it comes to an end."""
    from torchsleuth.cli.keeping import Keeping
    from torchsleuth.frontend.witness import KEEPING

    folder = Path(tempfile.mkdtemp(prefix="sleuth-witness-"))
    log = StepLog(folder, asked.deadline, say)
    keeping = Keeping(folder)
    words = ["witness", "--no-isolate", "--steps", str(folder), *asked.words(as_json=as_json)]
    try:
        for _ in range(_ATTEMPTS):
            ended = run_child([*interpreter(), "-c", CHILD, *words], say=say)
            log.read()
            if log.code is not None:
                return log.code  # whatever became of the process after its answer
            if ended.stopped_by is not None or (log.current is None and ended.signal is None):
                return ended.exit_code
            if log.current is None:
                return give(out, partial(_died_elsewhere, asked, ended), as_json=as_json)
            outcome = log.note_death(ended)
            if log.current == UP_TO_THE_CALL:
                return give(out, partial(_never_came, asked, ended, outcome), as_json=as_json)
            if log.current == KEEPING:
                keeping.settle(ended, outcome.stack)
            said = outcome.describe().removesuffix(f" ({Stage.UNKNOWN})")
            say(f"{log.current} {said}; once more, without that")
        return give(out, partial(_died_elsewhere, asked, ended), as_json=as_json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _never_came(asked: Asked, ended: Ended, outcome: Crashed | TimedOut) -> NoReturn:
    if isinstance(outcome, Crashed):
        _died_elsewhere(asked, ended)
    raise ScriptError(
        f"{asked.script} does not come to the call in {outcome.deadline:g} s",
        cause=f"the script was stopped{where_it_was(outcome.stack)}",
        remedy="give it more time (--deadline SECONDS), or a script that comes to the call sooner",
    )


def where_it_was(stack: str) -> str:
    """The line that a script was at, as the fault handler's words have it, innermost first: it was called by us."""
    frames = _FRAME.findall(stack)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    called = [frame for frame, caller in itertools.pairwise(frames) if caller[0].startswith(own)]
    return f" at {called[0][0]}:{called[0][1]}" if called else ""


def _died_elsewhere(asked: Asked, ended: Ended) -> NoReturn:
    from torchsleuth.capture.deaths import death_of

    death = death_of(ended, stack="", orderly=False)
    raise ScriptError(
        f"{asked.script} could not be examined",
        cause=f"its process {death.words if death is not None else 'ended'}, in none of the runs that are compared",
        remedy=f"see that it runs by itself first: python {asked.path}",
    )


@dataclass
class StepLog:
    """The steps, as they are noted in a folder: by the child when they begin and end, by us when it died in one.

    Without a folder nothing is noted, and a run has all the time that it takes.
    """

    folder: Path | None
    deadline: float
    say: Callable[[str], None]
    deaths: dict[str, Outcome] = field(default_factory=dict)
    current: str | None = None
    """The step that has begun last, if it has not ended."""
    code: int | None = None
    """The exit code that was given with the answer."""
    _is_read: bool = False

    def died(self, step: str) -> Outcome | None:
        if not self._is_read:
            self.read()
        return self.deaths.get(step)

    @contextlib.contextmanager
    def at(self, step: str) -> Iterator[None]:
        self.say(f"running: {step}")
        with self._timed(step):
            yield

    @contextlib.contextmanager
    def up_to_the_call(self) -> Iterator[None]:
        """The script itself. It has as much time as each run has; the steps that begin in it take over."""
        with self._timed(UP_TO_THE_CALL):
            yield

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        self.note(begin=step)
        with open(self.folder / "stack", "wb", buffering=0) as stack:
            faulthandler.enable(stack, all_threads=True)
            faulthandler.dump_traceback_later(self.deadline, exit=True, file=stack)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                faulthandler.disable()
                self.note(end=step)

    def done(self, code: int) -> None:
        """The answer was given."""
        self.note(code=code)

    def note_death(self, ended: Ended) -> Crashed | TimedOut:
        """The process has ended in the current step."""
        assert self.folder is not None
        assert self.current is not None
        outcome = _outcome(ended, (self.folder / "stack").read_text(errors="replace"), self.deadline)
        self.note(died=self.current, outcome=to_data(outcome))
        return outcome

    def read(self) -> None:
        self._is_read = True
        if self.folder is None or not (self.folder / "steps").exists():
            return
        self.current = None
        for line in (self.folder / "steps").read_text().splitlines():
            noted = json.loads(line)
            if "begin" in noted:
                self.current = noted["begin"]
            elif "died" in noted:
                self.deaths[noted["died"]] = from_data(noted["outcome"])
                self.current = None
            elif "end" in noted:
                self.current = None
            self.code = noted.get("code", self.code)

    def note(self, **what: Any) -> None:
        """Write it down, if there is a folder."""
        if self.folder is not None:
            with open(self.folder / "steps", "a") as file:  # closed at once: nothing of it is lost with the process
                file.write(json.dumps(what) + "\n")


def _outcome(ended: Ended, stack: str, deadline: float) -> Crashed | TimedOut:
    """How a process has ended, as what came of the run that it was at."""
    from torchsleuth.run.observing.stages import locate_stack

    stage = locate_stack(stack, default=Stage.UNKNOWN)
    if stack.startswith(_TIME_IS_UP):
        return TimedOut(stage, deadline=deadline, stack=stack)
    if ended.signal is not None:
        return Crashed(stage, signal=ended.signal, stack=stack)
    return Crashed(stage, exit_code=ended.code, stack=stack)

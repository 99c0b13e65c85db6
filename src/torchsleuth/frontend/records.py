"""Execution records: what it takes to make the translator fail again, in another process.

    entry = Entry(fn, args, kwargs)                   when a call begins to be recorded: copies of its arguments, and a
                                                      note of the state that the function can reach
    crash = Crash.of(frames, fault, entry, folder)    the translator has failed: writes a record, and says where it is

    step-20260102-130501-3f9a1c/record.json           what happened, as data: reading it runs nothing (`replaying`)
                                state.pt              the function and its arguments, as torch saves them: a pickle

A record is there as a whole or not at all. Nothing here raises: the user's call goes on natively, whatever happens to
the record. What went wrong with it is in the log, and with the `Crash`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import platform
import re
import secrets
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, BinaryIO, Final

import msgspec
import torch

from torchsleuth import __version__, config, torch_compat
from torchsleuth.case.disk import sync_folder, temporary_name
from torchsleuth.case.format.digests import Hasher, digest
from torchsleuth.case.schema import State
from torchsleuth.case.stores.files import LocalFiles, open_files
from torchsleuth.case.surroundings import state as surroundings
from torchsleuth.compare.rng import RngState
from torchsleuth.errors import in_words
from torchsleuth.frontend import pickling
from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.copying import Copies
from torchsleuth.frontend.frames import Frame
from torchsleuth.frontend.machine import Machine
from torchsleuth.frontend.record_file import (
    FORMAT,
    LONGEST,
    RECORD_FILE,
    STATE_FILE,
    VERSION,
    Failure,
    Function,
    Line,
    Record,
    StateFile,
    encode,
)
from torchsleuth.frontend.remembering import Remembered

log = logging.getLogger("torchsleuth.frontend")

OWN: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_WORDS: Final = 20


# ---- the beginning of a call ---------------------------------------------------------------------------------


class Entry:
    """A call at its beginning: what is called, copies of its arguments, random numbers and modes of torch.

    Of what the function can reach otherwise there is a note, by which it is put back when a record is written.
    """

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool | None = None) -> None:
        self.fn = fn
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] = {}
        self.dynamic = dynamic
        self.why_unknown = ""
        self.copies = Copies()
        self.random: RngState | None = None
        self.surroundings: State | None = None
        self.state: Remembered | None = None
        self.why_no_state = ""
        try:
            with torch_compat.plain_torch():
                self.state = Remembered(_roots(fn, args, kwargs))
        except Exception as error:  # noqa: BLE001 - objects of the user's, which may refuse to be looked at
            self.why_no_state = f"whatever it can reach, for that could not be noted ({in_words(error)})"
        try:
            with torch_compat.plain_torch():
                self.kwargs = {name: self.copies.of(f"kwargs[{name!r}]", value) for name, value in kwargs.items()}
                self.args = tuple(self.copies.of(f"args[{number}]", value) for number, value in enumerate(args))
            self.random = RngState.capture()
            self.surroundings = msgspec.structs.replace(surroundings.observe(stable=True), rng=())  # those are above
        except Exception as error:  # noqa: BLE001 - without a copy there is no record; the call goes on
            self.args = None
            self.why_unknown = f"the arguments could not be copied: {in_words(error)}"

    @classmethod
    def unknown(cls, fn: Any) -> Entry:
        """A call whose beginning was not seen: it came from the cache."""
        entry = cls.__new__(cls)
        entry.fn, entry.args, entry.kwargs, entry.dynamic = fn, None, {}, None
        entry.copies, entry.random, entry.surroundings = Copies(), None, None
        entry.state, entry.why_no_state = None, ""
        entry.why_unknown = "the translator did not see the call from its beginning"
        return entry

    @contextlib.contextmanager
    def state_put_back(self) -> Iterator[list[str]]:
        """Inside, what the function can reach is as it was at the beginning. Tells of what is not."""
        if self.state is None:
            yield [self.why_no_state] if self.why_no_state else []
            return
        with self.state.put_back() as left:
            yield left


def _roots(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a call can change, and is not copied: the function, and those among the arguments."""
    yield (
        (type(fn).__qualname__ if isinstance(fn, torch.nn.Module) else getattr(fn, "__qualname__", "the function")),
        fn,
    )
    for number, value in enumerate(args):
        if isinstance(value, FunctionType):
            yield f"args[{number}]", value
    for name, value in kwargs.items():
        if isinstance(value, FunctionType):
            yield f"kwargs[{name!r}]", value


# ---- the crash -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crash:
    """The translator has failed: what it was at, and where the record of it is."""

    error: BaseException
    """The exception itself, without its traceback, which would keep the user's tensors alive."""
    stack: tuple[Place, ...]
    failure: Failure
    instruction: str = ""
    path: str | None = None
    """The folder of the record."""
    why_no_record: str = ""
    why_no_replay: str = ""
    """Why the record can be read, but not replayed."""

    @classmethod
    def of(
        cls,
        frames: list[Frame],
        fault: BaseException,
        entry: Entry,
        folder: str | None,
        known: Sequence[Crash] = (),
    ) -> Crash:
        """Writes the record of a crash, and tells of it; unless it is one of those that are `known`: that was done."""
        work = Work.of(frames, fault)
        failure = failure_of(fault)
        fault.__traceback__ = fault.__context__ = fault.__cause__ = None
        replay = _REPLAY.get()
        if replay is not None:
            crash = cls(fault, work.stack, failure, work.instruction, why_no_record="this is a replay")
            replay.met(crash)
            return crash
        crash = cls(fault, work.stack, failure, work.instruction)
        before = next((each for each in known if crash.is_like(each) and each.has_record), None)
        if before is not None:
            return replace(crash, path=before.path, why_no_replay=before.why_no_replay)
        path, why_no_record, why_no_replay = None, "", ""
        try:
            path, why_no_replay = write(_folder(folder), entry, failure, work)
        except Exception as error:  # noqa: BLE001 - the user's call has to go on
            why_no_record = in_words(error)
        crash = replace(crash, path=path, why_no_record=why_no_record, why_no_replay=why_no_replay)
        log.warning("%s", crash)
        return crash

    @property
    def has_record(self) -> bool:
        """Whether there is a record, and nobody has removed it."""
        return self.path is not None and os.path.isdir(self.path)

    def is_like(self, other: Crash) -> bool:
        """Whether it is the same failure, at the same line of the program."""
        return self.failure.is_like(other.failure) and self.stack[-1:] == other.stack[-1:]

    def __str__(self) -> str:
        users = [place for place in self.stack if not place.file.startswith(OWN)]
        where = f" at {users[-1]}" if users else ""
        lines = [f"the translator failed{where}; the call went on natively", f"  cause: {in_words(self.error)}"]
        if self.path is None:
            lines.append(f"  no record could be written: {self.why_no_record}")
        elif self.why_no_replay:
            lines += [f"  record: {self.path}", f"  it can be read, but not replayed: {self.why_no_replay}"]
            lines.append(f"Next: sleuth show {shlex.quote(self.path)}")
        else:
            lines += [f"  record: {self.path}", f"Next: sleuth replay {shlex.quote(self.path)} --trust"]
        return "\n".join(lines)


def failure_of(error: BaseException) -> Failure:
    """An exception of the translator's, as data."""
    trace = traceback.extract_tb(error.__traceback__)
    place = Line(trace[-1].filename, trace[-1].lineno or 0, trace[-1].name) if trace else Line("?", 0, "?")
    try:
        message = str(error)
        told = "".join(traceback.format_exception(error, chain=False))
    except Exception:  # noqa: BLE001 - somebody else's __str__
        message, told = "", "".join(traceback.format_tb(error.__traceback__))
    return Failure(type(error).__qualname__, message[:LONGEST], place, told[-LONGEST:])


@dataclass(frozen=True)
class Work:
    """What the translator was at."""

    stack: tuple[Place, ...]
    instruction: str
    read: tuple[str, ...]
    graph: str

    @classmethod
    def of(cls, frames: list[Frame], fault: BaseException) -> Work:
        stack: tuple[Place, ...] = ()
        instruction, graph = "", ""
        read: tuple[str, ...] = ()
        with contextlib.suppress(Exception):
            stack = tuple(map(Place.of, frames))
        found = loop_in(fault)
        if found is not None:
            known: dict[str, Any] = found.f_locals
            machine: Any = known.get("self")
            frame: Any = known.get("frame")
            at_work: Any = known.get("instruction")
            with contextlib.suppress(Exception):  # the machine is broken: whatever can be said is good
                instruction = f"{at_work.name} {at_work.arg}"
                # By now its frame stands before the instruction, so that it can go on natively.
                stack = (*stack[:-1], Place(frame.code.co_filename, at_work.line, frame.code.co_qualname))
            with contextlib.suppress(Exception):
                read = tuple(line.words for line in machine.recorder.guards.lines if line.words)
            with contextlib.suppress(Exception):
                graph = str(machine.recorder.graph)[:LONGEST]
        return cls(stack, instruction, read, graph)


def loop_in(fault: BaseException) -> FrameType | None:
    """The innermost loop of the machine that the exception came through. It knows what was at work."""
    found = None
    for frame, _ in traceback.walk_tb(fault.__traceback__):
        if frame.f_code is Machine.run.__code__:
            found = frame
    return found


# ---- while a record is replayed ------------------------------------------------------------------------------


class CrashMet(BaseException):
    """Ends a replay: the translator has failed. No handler in between takes it for an error of the user's."""


class Replay:
    """While it is open, crashes are collected here. `strict`: the first one ends the call."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.crashes: list[Crash] = []

    def met(self, crash: Crash) -> None:
        self.crashes.append(crash)
        if self.strict:
            raise CrashMet

    @contextlib.contextmanager
    def open(self) -> Iterator[Replay]:
        token = _REPLAY.set(self)
        try:
            yield self
        finally:
            _REPLAY.reset(token)


_REPLAY: ContextVar[Replay | None] = ContextVar("torchsleuth.replay", default=None)


# ---- writing -------------------------------------------------------------------------------------------------


def _folder(told: str | None) -> Path:
    """Where records go: the folder that somebody has named, or `frontend` in the store of the settings."""
    if told is not None:
        return Path(told).absolute()
    files = open_files(config.current().store)
    if not isinstance(files, LocalFiles):
        raise OSError(
            f"the store {files.root} is no folder of this machine: name one with capture(..., records=FOLDER)"
        )
    return files.folder / "frontend"


def write(folder: Path, entry: Entry, failure: Failure, work: Work) -> tuple[str, str]:
    """Writes a record into a folder of its own in `folder`: that one, and why it cannot be replayed, if so."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / temporary_name()
    new.mkdir()
    try:
        with entry.state_put_back() as left:
            state, why = _write_state(new, entry)
        record = _record(entry, failure, work, state, why, left)
        with open(new / RECORD_FILE, "xb") as file:
            file.write(encode(record))
            _flush(file)
        sync_folder(new)
        name = _NOT_IN_NAMES.sub("", record.function.name.replace("<locals>.", ""))[-60:].strip("-.") or "call"
        path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        os.rename(new, path)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    sync_folder(folder)
    return str(path), why


def _write_state(folder: Path, entry: Entry) -> tuple[StateFile | None, str]:
    """Writes the function and its arguments; or says why they cannot be written."""
    if entry.args is None:
        return None, entry.why_unknown
    state = {"fn": entry.fn, "args": entry.args, "kwargs": entry.kwargs, "random": entry.random}
    path = folder / STATE_FILE
    try:
        with open(path, "xb") as file:
            pickling.save(state, file, entry.copies.computed)
            _flush(file)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - what is not in the record is said in the record
        path.unlink(missing_ok=True)
        return None, _why_not(entry, error)
    hasher = Hasher()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return StateFile(hasher.digest(), path.stat().st_size), ""


def _why_not(entry: Entry, error: BaseException) -> str:
    """Why a state could not be written: what part of it is to blame."""
    assert entry.args is not None
    parts = [(getattr(entry.fn, "__qualname__", "the function"), entry.fn)]
    parts += [(f"args[{number}]", value) for number, value in enumerate(entry.args)]
    parts += [(f"kwargs[{name!r}]", value) for name, value in entry.kwargs.items()]
    for name, value in parts:
        try:
            with torch.serialization.skip_data():
                pickling.save(value, io.BytesIO(), entry.copies.computed)
        except Exception as its_own:  # noqa: BLE001 - it is what is looked for
            return f"{name} cannot be kept ({in_words(its_own)})"
    return in_words(error)


def _record(
    entry: Entry, failure: Failure, work: Work, state: StateFile | None, why_no_state: str, left: Sequence[str] = ()
) -> Record:
    users = [place for place in work.stack if not place.file.startswith(OWN)]
    return Record(
        format=FORMAT,
        version=VERSION,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        torchsleuth=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        failure=failure,
        function=function_of(entry.fn),
        instruction=work.instruction,
        stack=tuple(Line(place.file, place.line, place.function, place.source) for place in users),
        read=work.read,
        graph=work.graph,
        dynamic=entry.dynamic,
        surroundings=entry.surroundings,
        path=tuple(os.path.abspath(each) for each in sys.path),
        kept=(*entry.copies.kept, *left[:_MOST_WORDS]),
        state=state,
        why_no_state=why_no_state,
    )


def function_of(fn: Any) -> Function:
    """What was captured, as far as it has a name."""
    if isinstance(fn, torch.nn.Module):
        fn = type(fn).forward
    plain = inspect.unwrap(fn.__func__ if isinstance(fn, MethodType) else fn)
    code = getattr(plain, "__code__", None)
    return Function(
        name=getattr(plain, "__qualname__", type(plain).__qualname__),
        module=str(getattr(plain, "__module__", "")),
        file="" if code is None else code.co_filename,
        line=0 if code is None else code.co_firstlineno,
        code="" if code is None else digest(repr(_parts_of(code)).encode()),
    )


def _parts_of(code: CodeType) -> tuple[Any, ...]:
    """What code does, wherever it stands."""
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(map(_constant, code.co_consts))


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _parts_of(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())

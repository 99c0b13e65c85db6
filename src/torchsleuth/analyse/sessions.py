"""A search that goes on from process to process, with its state in a folder.

    session = Session(default_folder())
    with session.alone(new=True):
        session.begin(select())
        session.state.step                     what is to be tried now
        session.judge(tried)                   the next `State`, or an `Answer`: then the folder is gone

    <torch's cache folder>/sleuth-bisect/session.json        the state; appears whole or not at all
                                         told/<step>-<pid>   what a process has told that took part in a step
                                         trouble             why a process could not take part

Nobody is affected by a session who does not ask for it (`taking_part`). torch is not imported here.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from torchsleuth.analyse.parts import Parts, Subsystem, find_part
from torchsleuth.analyse.searching import Answer, Phase, Plan, Seen, Step, Tried
from torchsleuth.case.disk import temporary_name
from torchsleuth.case.stores.locking import locked
from torchsleuth.errors import NoSession, SessionError, StoreError, in_words

FORMAT: Final = "torchsleuth bisection 1"
PATIENCE = 2.0
"""Seconds to wait for another process that is at work in a session."""


_NOT_IN_NAMES: Final = re.compile(r'[\\/:*?"<>|]')


def default_folder() -> Path:
    """In torch's cache folder, as torch documents it: it takes seconds to ask torch."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache is None:
        try:
            user = getpass.getuser()
        except (KeyError, ImportError, OSError):  # a number without a name
            user = f"uid_{os.getuid()}"
        cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{_NOT_IN_NAMES.sub('_', user)}")
    return Path(cache).absolute() / "sleuth-bisect"


@dataclass(frozen=True)
class State:
    """How far a search has come."""

    format: str
    parts: Mapping[str, tuple[str, ...]]
    step: Step
    taken: int = 0
    """How many steps were judged so far."""
    alone: int = 0
    """In how many of them nobody had taken part."""

    @property
    def plan(self) -> Plan:
        return Plan({backend: tuple(_part(backend, name) for name in names) for backend, names in self.parts.items()})


class Session:
    """A session in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "session.json"
        self._told = folder / "told"
        self.trouble = folder / "trouble"

    @contextmanager
    def alone(self, *, new: bool = False) -> Iterator[None]:
        """Inside, no other process changes the session. It has to be there, unless a `new` one will do."""
        if not new:
            self._expect()
        with ExitStack() as stack:
            with _told_of(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(locked(self.folder / "lock", alone=True, patience=PATIENCE))
                except StoreError as error:
                    raise SessionError(
                        "another process is at work in this session",
                        cause=f"it holds {self.folder / 'lock'}",
                        remedy="wait until it has finished its step, and try again",
                    ) from error
            try:
                yield
            finally:
                if not self._file.exists():
                    self.end()

    @property
    def state(self) -> State:
        """How far it has come."""
        return self._expect()

    def _expect(self) -> State:
        found = self.find()
        if found is None:
            raise NoSession(
                "there is no session to continue",
                cause=f"{self._file} does not exist",
                remedy="begin one with `start`",
            )
        return found

    def find(self) -> State | None:
        """The state, if there is a session."""
        with _told_of(self._file):
            try:
                data = self._file.read_bytes()
            except FileNotFoundError:
                return None
        try:
            state = msgspec.json.decode(data, type=State)
            _check(state)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SessionError(
                f"{self._file} is damaged",
                cause=in_words(error),
                remedy="begin anew with `start`, or give it up with `end`",
            ) from error
        return state

    def begin(self, parts: Parts) -> State:
        """A new session. One that was there is given up."""
        with _told_of(self.folder):
            shutil.rmtree(self._told, ignore_errors=True)
            self.trouble.unlink(missing_ok=True)
            self._told.mkdir(parents=True, exist_ok=True)
        names = {backend: tuple(part.name for part in subsystems) for backend, subsystems in parts.items()}
        return self._write(State(FORMAT, names, Plan(parts).first))

    def judge(self, tried: Tried) -> State | Answer:
        """Go on from a step that went like this. With an answer the session is over."""
        state = self.state
        following = state.plan.after(tried)
        if isinstance(following, Answer):
            self.end()
            return following
        alone = state.alone + (not tried.attended)
        return self._write(replace(state, step=following, taken=state.taken + 1, alone=alone))

    def end(self) -> bool:
        """Remove everything. Whether there was a session."""
        there = self._file.exists()
        with _told_of(self.folder), suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
        return there

    def file_of(self, state: State, pid: int) -> Path:
        """Where a process that takes part tells what it sees: a line for each application, `[number, info]`."""
        return self._told / f"{state.taken}-{pid}"

    def tried(self, passed: bool) -> Tried:
        """The step of now, with what was told in it. Of several processes, the one that applied most counts."""
        state = self.state
        files = sorted(self._told.glob(f"{state.taken}-*"))
        count = 0
        infos: dict[int, str] = {}
        for file in files:
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError):  # a process that died while it wrote
                    number, info = json.loads(line)
                    count = max(count, int(number) + 1)
                    if info is not None:
                        infos[int(number)] = str(info)
        return Tried(state.step, passed, Seen(count, infos), attended=bool(files))

    def _write(self, state: State) -> State:
        temporary = self.folder / temporary_name()
        with _told_of(self.folder):
            try:
                temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
                os.replace(temporary, self._file)
            finally:
                temporary.unlink(missing_ok=True)
        return state


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Say in our words what the system said."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SessionError(
            f"the session in {path} cannot be read or written",
            cause=in_words(error),
            remedy="see to the folder, or name another one (TORCHINDUCTOR_CACHE_DIR)",
        ) from error


def _part(backend: str, name: str) -> Subsystem:
    part = find_part(backend, name)
    if part is None:
        raise ValueError(f"there is no subsystem {name!r} of {backend!r}")
    return part


def _check(state: State) -> None:
    """That it makes sense; a ValueError if it does not."""
    step = state.step
    if state.format != FORMAT:
        raise ValueError(f"its format is {state.format!r}, and this is {FORMAT!r}")
    _ = state.plan
    if step.backend not in state.parts:
        raise ValueError(f"there is no backend {step.backend!r} among its parts")
    if (step.phase is Phase.BACKEND) != (step.subsystem is None):
        raise ValueError(f"a step of this kind ({step.phase.value}) is not for the subsystem {step.subsystem!r}")
    if step.subsystem is not None and step.subsystem not in state.parts[step.backend]:
        raise ValueError(f"there is no subsystem {step.subsystem!r} among its parts")
    if not 0 <= step.low <= step.high or state.taken < 0 or state.alone < 0:
        raise ValueError("its numbers make no sense")

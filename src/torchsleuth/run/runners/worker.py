"""What runs in a worker: it reads a query, answers it on the slate, goes back to how it began, and reads the next one.

A worker is forked off a template, or begins as a new interpreter (`main`). It has a session and a folder of its own.
It ends when the server closes its socket, and is killed when the server ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import json
import os
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from torchsleuth.outcome import Broken, Outcome, Stage, to_data
from torchsleuth.run.runners import folders, processes
from torchsleuth.run.runners.slate import Slate
from torchsleuth.run.runners.supervision import ASK_FOR_STACK

_HEAD: Final = struct.Struct("<QQ")
_SPARE: Final = 1 << 30
"""Bytes of address space that a limit leaves beyond what it allows to be used."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """A worker in an interpreter of its own. Its arguments: the server, its folder, its files."""
    server, folder, fds = json.loads((arguments or sys.argv[1:])[0])
    live(server, folder, fds, warm=lambda: None)


def live(server: int, folder: str, fds: Sequence[int], *, warm: Callable[[], None]) -> NoReturn:
    """The life of a worker. `warm` is what is left to do once its surroundings are as they will stay."""
    asked, slate_fd, dump, waking, stdout, stderr = fds
    processes.die_with(server)
    for fd, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    for fd in (asked, slate_fd, dump, waking):
        os.set_inheritable(fd, False)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was said before a crash counts
    faulthandler.enable(dump, all_threads=True)
    faulthandler.register(ASK_FOR_STACK, dump, all_threads=True, chain=False)
    _limit("RLIMIT_CORE", 0)
    slate = Slate(slate_fd)
    if folders.current() is None:
        os.chdir(folder)
    try:
        warm()
        answering = Answering(folder, fds[:4])
        os.write(waking, struct.pack("<Q", os.getpid()))
        sock = socket.socket(fileno=asked)
        while True:
            length, limit = _HEAD.unpack(_read(sock, _HEAD.size))
            slate.write(answering.answer(_read(sock, length), limit, slate))
            with contextlib.suppress(OSError):  # closed by the program; the server looks at the slate anyway
                os.write(waking, b"!")
    except EOFError:
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the last words of a worker
        traceback.print_exc()
        os._exit(70)


class Answering:
    """Answers queries in this process, which is nobody else's."""

    def __init__(self, folder: str, fds: Sequence[int]) -> None:
        from torchsleuth.run import performing, query
        from torchsleuth.run.observing import raising
        from torchsleuth.run.runners.known import Known

        self._perform = performing.perform
        self._raised = raising.raised
        self._decode = query.from_bytes
        self._folder = folder
        self._fds = {fd: _identity(fd) for fd in fds}
        self._known = Known()
        self._pid = os.getpid()
        gc.collect()
        gc.freeze()  # what is there now stays

    def answer(self, query: bytes, limit: int, slate: Slate) -> dict[str, Any]:
        began = time.monotonic()
        outcome: Outcome | None = None
        is_clean = False
        slate.enter(Stage.PREPARE)  # from now on, whatever happens is the query's doing
        try:
            with self._known.kept(), _limited(limit):
                outcome = self._performed(query, slate)
            _flush()
            folders.empty(self._folder)
            is_clean = not self._known.differences() and all(_identity(fd) == one for fd, one in self._fds.items())
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            if outcome is None:
                outcome = Broken(reason=f"{type(error).__name__} in the worker", traceback=traceback.format_exc())
        if not outcome.seconds:
            outcome = dataclasses.replace(outcome, seconds=time.monotonic() - began)
        return {"outcome": to_data(outcome), "clean": is_clean}

    def _performed(self, query: bytes, slate: Slate) -> Outcome:
        """What the query did, also if it raised what nobody should catch."""
        asked = self._decode(query)
        try:
            return self._perform(asked, slate.enter)
        except BaseException as error:
            stage, _, _ = slate.progress()
            if isinstance(error, Exception) or stage is Stage.PREPARE:  # a fault of ours
                raise
            return self._raised(error, stage)
        finally:
            if os.getpid() != self._pid:  # a fork that the query made, which came back
                os._exit(0)


def _identity(fd: int) -> tuple[int, int] | None:
    """Which file this is; None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def surround(given: Mapping[str, str | None]) -> None:
    """Give these variables to a process that has read its own already. None: take it away."""
    for name, value in given.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None
    tempfile.gettempdir()


def _read(sock: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        data = sock.recv(min(length - len(found), 1 << 20))
        if not data:
            raise EOFError
        found += data
    return bytes(found)


def _flush() -> None:
    """Whatever was printed is on its way, also what C has in its buffers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


# ---- limits ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _limited(limit: int) -> Any:
    """An allocation that goes far beyond the limit fails, before the machine has to give it."""
    used = _data()
    if not limit or not used:
        yield
        return
    _limit("RLIMIT_DATA", used + limit + _SPARE)
    try:
        yield
    finally:
        _limit("RLIMIT_DATA", None)


def _data() -> int:
    """Bytes of address space that this process can write to."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError):
        return 0


def _limit(name: str, soft: int | None) -> None:
    """Set a limit of this process, or put it back to the highest that there may be."""
    try:
        import resource

        kind = getattr(resource, name)
        highest = resource.getrlimit(kind)[1]
        wanted = highest if soft is None else soft if highest == resource.RLIM_INFINITY else min(soft, highest)
        resource.setrlimit(kind, (wanted, highest))
    except (ImportError, AttributeError, OSError, ValueError):
        pass


if __name__ == "__main__":
    main()

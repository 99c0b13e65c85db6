"""The runner's side of a server: starts it, sends it queries, and hands its answers to those who wait.

A thread reads what the server says. If the server dies, it is started anew, and what it still owed is asked once more.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import msgspec

from torchsleuth.case.surroundings import environment
from torchsleuth.errors import SleuthError, in_words
from torchsleuth.outcome import Broken, Outcome, Stage, from_data
from torchsleuth.run.query import Closing, Progress, Query, to_bytes
from torchsleuth.run.runners import folders, processes, server, wire
from torchsleuth.run.runners.starting import start

log = logging.getLogger("torchsleuth.run")

_GRACE: Final = 5.0
"""Seconds that a server has to end."""
_CLOSED: Final = "the runner was closed before there was an answer"


@dataclass
class _Owed:
    """A query that is being answered."""

    ask: wire.Ask
    future: Future[Outcome]
    told: Callable[[Stage, int, int], None] | None
    again: bool = False
    """It was asked a second time, because the server died."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Served(Closing):
    """A runner whose queries are answered by a server. May be used by several threads; not after a fork."""

    def __init__(
        self, *, how: str, queries: int, workers: int | None, deadline: float | None, memory: int | None
    ) -> None:
        self._options = (how, workers or cores(), queries)
        self._limits = (deadline, memory)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._owed: dict[int, _Owed] = {}
        self._link: _Link | None = None
        self._started: Future[wire.Started] = Future()
        self._closed = False

    # ---- what a runner does ----------------------------------------------------------------------------------

    def submit(self, query: Query) -> Future[Outcome]:
        """Ask. The future can be cancelled until it is answered."""
        return self._submit(query, None)

    def run(self, query: Query, progress: Progress | None = None) -> Outcome:
        """Ask, and wait. `progress` is called in the thread that waits."""
        told: queue.SimpleQueue[tuple[Stage, int, int] | None] = queue.SimpleQueue()
        future = self._submit(query, None if progress is None else lambda *how: told.put(how))
        try:
            if progress is not None:
                future.add_done_callback(lambda _: told.put(None))
                while (news := told.get()) is not None:
                    progress(*news)
            return future.result()
        except BaseException:  # Ctrl-C, or the caller's own `progress` raised
            future.cancel()
            raise

    def close(self) -> None:
        """End the server and all that it has started. What is still being asked is answered with `Broken`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
            owed = list(self._owed.values())
            self._owed.clear()
        if link is not None:
            link.end()
        for one in owed:
            _settle(one.future, Broken(reason=_CLOSED))
        if not self._started.done():
            self._started.cancel()

    @property
    def server_pid(self) -> int | None:
        """The process that looks after the workers, if there is one now."""
        link = self._link
        return None if link is None else link.process.pid

    # ---- asking ----------------------------------------------------------------------------------------------

    def _submit(self, query: Query, told: Callable[[Stage, int, int], None] | None) -> Future[Outcome]:
        if os.getpid() != self._pid:
            raise SleuthError(
                "this runner cannot be used here",
                cause=f"it belongs to process {self._pid}, and this is a fork of that one",
                remedy="make a runner of its own in each process",
            )
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closed:
                raise SleuthError(
                    "this runner is closed", cause="close() was called, or its `with` is over", remedy="make a new one"
                )
            ask = wire.Ask(
                next(self._numbers),
                to_bytes(query),
                query.alone,
                query.deadline,
                query.memory,
                told is not None,
                _variables(query),
            )
            link = self._connected()
            self._owed[ask.id] = _Owed(ask, future, told)
            future.add_done_callback(lambda done: self._cancel(ask.id) if done.cancelled() else None)
        link.send(ask)
        return future

    def _cancel(self, id: int) -> None:
        with self._lock:
            if self._owed.pop(id, None) is not None and self._link is not None:
                self._link.send(wire.Cancel(id))

    def _connected(self) -> _Link:
        if self._link is None:
            how, workers, queries = self._options
            self._link = _Link(self, how, workers, queries, *self._limits)
            weakref.finalize(self, self._link.end)  # also at the end of the program
        return self._link

    # ---- what the server says --------------------------------------------------------------------------------

    def _hear(self, message: wire.Message) -> None:
        if isinstance(message, wire.Answered):
            with self._lock:
                owed = self._owed.pop(message.id, None)
            if owed is not None:
                try:
                    outcome = from_data(message.outcome)
                except ValueError as error:
                    outcome = Broken(reason=f"an answer that makes no sense: {in_words(error)}")
                _settle(owed.future, outcome)
        elif isinstance(message, wire.Told):
            owed = self._owed.get(message.id)
            if owed is not None and owed.told is not None:
                owed.told(Stage(message.stage), message.done, message.of)
        elif isinstance(message, wire.Started):
            self._said_how(message)
            if not self._started.done():
                self._started.set_result(message)

    def _said_how(self, started: wire.Started) -> None:
        """For those who have something to say about it."""

    def _lost(self, link: _Link) -> None:
        """The server has died. Ask again what it owed; what it owed twice is not asked again."""
        link.end()
        new: _Link | None = None
        with self._lock:
            if self._closed or self._link is not link:
                return
            self._link = None
            once = [one for one in self._owed.values() if not one.again]
            try:
                new = self._connected() if once else None
            except SleuthError:
                once = []
            lost = [one for one in self._owed.values() if one not in once]
            for one in lost:
                del self._owed[one.ask.id]
            if not self._owed and not self._started.done():
                self._started.set_result(wire.Started("", "the server of the workers does not live"))
        for one in lost:
            _settle(one.future, Broken(reason="the server of the workers died, and so did the one after it"))
        for one in once:
            one.again = True
            if new is not None:
                new.send(one.ask)


class _Link:
    """A server process, and the thread that listens to it."""

    def __init__(
        self, owner: Served, how: str, workers: int, queries: int, deadline: float | None, memory: int | None
    ) -> None:
        if os.name != "posix":
            raise SleuthError(
                "queries cannot be given to other processes here",
                cause=f"that needs Linux or macOS, and this is {sys.platform}",
                remedy="run queries in this process: InProcess()",
            )
        self.folder = tempfile.mkdtemp(prefix="sleuth-runner-")
        self._owner = weakref.ref(owner)
        self._sending = threading.Lock()
        self._ending = False
        self._pid = os.getpid()
        self._ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process: subprocess.Popen[bytes] = start(
                    "torchsleuth.run.runners.server",
                    [theirs.fileno()],
                    [theirs.fileno()],
                    variables={server.MARK: self.folder},
                )
        except OSError as error:
            folders.remove(self.folder)
            raise SleuthError(
                "a process for queries cannot be started",
                cause=in_words(error),
                remedy="see to it that Python can be started here, or run queries in this process: InProcess()",
            ) from error
        self.send(wire.Begin(how, workers, queries, self.folder, os.getpid(), deadline, memory))
        self._thread = threading.Thread(target=self._listen, name="torchsleuth runner", daemon=True)
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        with contextlib.suppress(OSError), self._sending:  # if it is gone, the thread will notice
            self._ours.sendall(wire.encoded(message))

    def _listen(self) -> None:
        incoming = wire.Incoming()
        while True:
            try:
                data = self._ours.recv(1 << 20)
            except OSError:
                data = b""
            owner = self._owner()
            if not data or owner is None:
                break
            try:
                for message in incoming.add(data):
                    owner._hear(message)
            except (ValueError, msgspec.MsgspecError):
                log.exception("the server of the workers makes no sense")
                break
            del owner
        if owner is not None and not self._ending:
            owner._lost(self)

    def end(self) -> None:
        """Have the server end everything; end it ourselves if it does not. May be called twice."""
        if self._ending or os.getpid() != self._pid:
            return
        self._ending = True
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self.sweep()
        if threading.current_thread() is not self._thread:
            self._thread.join(_GRACE)
        self._ours.close()

    def sweep(self) -> None:
        """Wait for the server, and end what it may have left behind."""
        try:
            self.process.wait(_GRACE)
            clean = self.process.returncode == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            clean = False
        if not clean:
            processes.kill(processes.marked(server.mark(self.folder)), signal.SIGKILL)
        folders.remove(self.folder)


def _variables(query: Query) -> dict[str, str]:
    """What torch has to find in the environment when it is imported. Whoever runs the query says what is wrong with
    it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return environment.for_child(query.case.state.environment, {})
        except SleuthError:
            return {}


def _settle(future: Future[Outcome], outcome: Outcome) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(outcome)

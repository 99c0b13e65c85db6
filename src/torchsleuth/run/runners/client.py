"""The runner's side of a server: starts it, sends it queries, and hands its answers to those who wait.

A thread reads what the server says. If the server dies, it is started anew, and what it still owed is asked once more,
one query at a time: whoever is alone with a server that dies, too, has killed both.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from torchsleuth.case.surroundings import environment
from torchsleuth.config import After
from torchsleuth.errors import SleuthError, in_words
from torchsleuth.outcome import Broken, Outcome, Stage, from_data
from torchsleuth.run.query import Closing, Progress, Query, to_bytes
from torchsleuth.run.runners import wire
from torchsleuth.run.runners.link import Link

_CLOSED: Final = "the runner was closed before there was an answer"
_STARTS: Final = ("auto", "fork", "spawn")
_STILLBORN: Final = 2
"""How many servers in a row may die before they can do anything."""


@dataclass
class _Owed:
    """A query that is being answered."""

    ask: wire.Ask
    future: Future[Outcome]
    told: Callable[[Stage, int, int], None] | None
    is_sent: bool = False
    """The server that there is now has it."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Served(Closing):
    """A runner whose queries are answered by a server. May be used by several threads; not after a fork."""

    def __init__(
        self, *, how: str, queries: int, workers: int | None, deadline: float | None, memory: int | None
    ) -> None:
        _check(workers is None or workers >= 1, "workers", workers, "a runner has one at least")
        _check(queries >= 1, "queries", queries, "a worker answers one at least")
        _check(deadline is None or deadline > 0, "deadline", deadline, "a query needs time")
        _check(memory is None or memory > 0, "memory", memory, "a query needs memory")
        _check(how in _STARTS, "start", how, f"it is one of {', '.join(_STARTS)}")
        self._options = (how, workers or cores(), queries)
        self._limits = (deadline, memory)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._owed: dict[int, _Owed] = {}
        self._suspects: dict[int, _Owed] = {}
        """Of those, what a server owed when it died. The first is alone with the next server."""
        self._stillborn = 0
        self._link: Link | None = None
        self._started: Future[wire.Started] = Future()
        self._closed = False

    # ---- what a runner does ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to get ready, if that has not begun."""
        with self._lock:
            self._check_open()
            self._connected()

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
            self._suspects.clear()
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
            self._check_open()
            ask = wire.Ask(
                next(self._numbers),
                to_bytes(query),
                query.alone,
                query.deadline,
                query.memory,
                told is not None,
                _variables(query),
                _needs_whole(query),
            )
            link = self._connected()
            self._owed[ask.id] = owed = _Owed(ask, future, told, is_sent=not self._suspects)
            future.add_done_callback(lambda done: self._cancel(ask.id) if done.cancelled() else None)
        if owed.is_sent:
            link.send(ask)
        return future

    def _check_open(self) -> None:
        if self._closed:
            raise SleuthError(
                "this runner is closed", cause="close() was called, or its `with` is over", remedy="make a new one"
            )

    def _cancel(self, id: int) -> None:
        with self._lock:
            if self._owed.get(id) is not None and self._link is not None:
                self._link.send(wire.Cancel(id))
            self._forget(id)

    def _forget(self, id: int) -> _Owed | None:
        """A query is no longer owed. If it was alone, it is somebody else's turn."""
        with self._lock:
            owed = self._owed.pop(id, None)
            if self._suspects.pop(id, None) is not None:
                self._send_due()
            return owed

    def _send_due(self) -> None:
        """Send what the server may have now and has not: the first suspect, or everything if there is none."""
        if self._link is not None:
            for one in list(self._suspects.values())[:1] or list(self._owed.values()):
                if not one.is_sent:
                    one.is_sent = True
                    self._link.send(one.ask)

    def _connected(self) -> Link:
        if self._link is None:
            how, workers, queries = self._options
            self._link = Link(self, how, workers, queries, *self._limits)
            weakref.finalize(self, self._link.end)  # also at the end of the program
        return self._link

    # ---- what the server says --------------------------------------------------------------------------------

    def _hear(self, message: wire.Message) -> None:
        if isinstance(message, wire.Answered):
            owed = self._forget(message.id)
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

    def _lost(self, link: Link) -> None:
        """The server has died. Whoever was alone with it is to blame; the others are asked again."""
        link.end()
        lost: list[_Owed] = []
        with self._lock:
            if self._closed or self._link is not link:
                return
            self._link = None
            why = f"the server of the workers died, and so did the one after it ({link.last_words})"
            self._stillborn = 0 if link.has_spoken else self._stillborn + 1
            if not link.has_spoken:  # nobody was asked anything
                lost = list(self._owed.values()) if self._stillborn >= _STILLBORN else []
            elif self._suspects:
                lost = list(self._suspects.values())[:1]
            else:
                self._suspects = {id: one for id, one in self._owed.items() if one.is_sent}
            try:
                if len(self._owed) > len(lost):
                    self._connected()
            except Exception as error:  # noqa: BLE001 - somebody waits for an answer, whatever it is
                cause = error.cause if isinstance(error, SleuthError) else in_words(error)
                lost, why = list(self._owed.values()), f"the server of the workers died, and there is no other: {cause}"
            for one in lost:
                self._owed.pop(one.ask.id)
                self._suspects.pop(one.ask.id, None)
            for one in self._owed.values():
                one.is_sent = False
            self._send_due()
            if not self._owed and not self._started.done():
                self._started.set_result(wire.Started("", "the server of the workers does not live"))
        for one in lost:
            _settle(one.future, Broken(reason=why))


def _variables(query: Query) -> dict[str, str]:
    """What torch has to find in the environment when it is imported. Whoever runs the query says what is wrong with
    it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return environment.for_child(query.case.state.environment, {})
        except SleuthError:
            return {}


def _needs_whole(query: Query) -> bool:
    """Whether more of torch.compile takes part than Inductor's compiler of graphs after AOT."""
    compiler = query.case.compiler
    is_inductor = (query.compiler or compiler.backend) == "inductor"
    return not query.record and not (is_inductor and compiler.after is After.AOT)


def _check(is_fine: bool, name: str, value: object, why: str) -> None:
    if not is_fine:
        raise SleuthError(f"{name}={value!r} is no option of a runner", cause=why, remedy="give another, or none")


def _settle(future: Future[Outcome], outcome: Outcome) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(outcome)

"""The server of a runner: a small process without torch that has workers made, asks them, and sees them through.

One thread, one loop. It never runs a query itself, so there is nothing that could take it along. Everything that is
started on its behalf is its child or becomes one, and ends with it; it ends when the runner closes the socket, or dies.

Workers are forked off a template (`template`) that warms up once, or are new interpreters where that is not safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from torchsleuth.errors import in_words
from torchsleuth.outcome import Broken, Outcome, to_data
from torchsleuth.run import memory
from torchsleuth.run.runners import folders, processes, wire
from torchsleuth.run.runners.deadlines import START, Deadlines
from torchsleuth.run.runners.making import Maker
from torchsleuth.run.runners.supervision import Ending, Worker

TICK: Final = 0.05
"""Seconds between two looks at the workers while somebody waits."""
REST: Final = 0.5
"""Seconds between two looks at our parent while nobody does."""
GROWTH: Final = 2 << 30
"""Bytes that a worker may keep after its queries."""
TRIES: Final = 3
"""How often a query is given to workers that do not get so far as to begin it."""


@dataclass
class _Waiting:
    ask: wire.Ask
    fresh: bool
    """Only a worker that has answered nothing may answer it."""
    tries: int = 0


class Server:
    """The loop and what it works on."""

    def __init__(self, runner: socket.socket, begin: wire.Begin) -> None:
        self._begin = begin
        self._runner = wire.Channel(runner)
        self._maker = Maker(begin)
        self._deadlines = Deadlines(begin.deadline)
        self._waiting: deque[_Waiting] = deque()
        self._workers: list[Worker] = []
        self._given: dict[Worker, _Waiting] = {}
        self._strays: dict[int, set[int]] = {}
        """Orphans that we have, and the queries of which one may have made each."""
        self._said: wire.Started | None = None
        self._memory = begin.memory if begin.memory is not None else _fair_share(begin.workers)

    def serve(self) -> None:
        """Until the runner is gone."""
        while not self._runner.closed and os.getppid() == self._begin.parent:
            self._wait()
            for message in self._runner.receive():
                if isinstance(message, wire.Ask):
                    self._waiting.append(_Waiting(message, message.alone))
                elif isinstance(message, wire.Cancel):
                    self._cancel(message.id)
            self._maker.look()
            how = wire.Started(self._maker.how, self._maker.why)
            if how.how and how != self._said:
                self._said = how
                self._runner.send(how)
            for worker in list(self._workers):
                self._see_to(worker)
            self._see_to_strays()
            self._hand_out()

    def end(self) -> None:
        """Leave nothing behind."""
        for worker in self._workers:
            worker.end()
        self._maker.end()
        for pid in processes.children(os.getpid()):
            processes.kill_all_of(pid)
        _reap()

    # ---- waiting ---------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until something happens, but not for long."""
        with selectors.DefaultSelector() as selector:
            sending = selectors.EVENT_WRITE if self._runner.has_more_to_send else 0
            selector.register(self._runner.sock, selectors.EVENT_READ | sending)
            for fd in self._maker.readable():
                selector.register(fd, selectors.EVENT_READ)
            for worker in self._workers:
                for fd in worker.readable():
                    selector.register(fd, selectors.EVENT_READ)
                if worker.has_more_to_send:
                    selector.register(worker.socket, selectors.EVENT_WRITE)
            is_idle = not (self._waiting or self._given or self._strays or self._maker.is_at_work)
            selector.select(REST if is_idle else TICK)
        self._runner.flush()

    # ---- workers ---------------------------------------------------------------------------------------------

    def _see_to(self, worker: Worker) -> None:
        given = self._given.get(worker)
        try:
            self._look_at(worker)
        except Exception as error:  # noqa: BLE001 - the others are not to suffer from it
            self._give_up(worker, given, error)

    def _look_at(self, worker: Worker) -> None:
        worker.read()
        worker.flush()
        now = time.monotonic()
        if worker.busy is not None:
            ending = worker.look(now)
            if ending is not None:
                self._finish(worker, ending)
            elif worker.busy.ask.watched and (told := worker.progress()) is not None:
                self._runner.send(wire.Told(worker.busy.ask.id, told[0].value, told[1], told[2]))
        elif worker.is_gone():
            self._lost(worker, "a worker ended before it could begin")
        elif worker.pid is None and now - worker.started > START:
            self._lost(worker, f"a worker was not ready after {START:g} s")

    def _finish(self, worker: Worker, ending: Ending) -> None:
        waiting = self._given.pop(worker)
        spent = worker.answered >= self._begin.queries or worker.grown > GROWTH
        if not ending.clean or spent:
            self._retire(worker, headers=ending.clean)
        if not ending.is_believed:
            waiting.fresh = True
            self._waiting.appendleft(waiting)
        elif isinstance(ending.outcome, Broken) and waiting.tries < TRIES and not ending.clean:
            waiting.fresh, waiting.tries = True, waiting.tries + 1
            self._waiting.appendleft(waiting)
        else:
            self._deadlines.learn(ending.outcome)
            self._answer(ending.ask.id, ending.outcome)

    def _lost(self, worker: Worker, why: str) -> None:
        """A worker died while it had nothing to do, or never came to be."""
        never_was = worker.pid is None
        worker.stderr.read()
        said = worker.stderr.text()
        self._retire(worker)
        if never_was:
            self._maker.failed()
            for waiting in [one for one in self._waiting if one.tries >= TRIES]:
                self._waiting.remove(waiting)
                self._answer(waiting.ask.id, Broken(reason=why, stderr=said))
            if self._waiting:
                self._waiting[0].tries += 1

    def _give_up(self, worker: Worker, given: _Waiting | None, error: Exception) -> None:
        """We cannot deal with a worker."""
        self._given.pop(worker, None)
        if worker in self._workers:
            with contextlib.suppress(Exception):
                self._retire(worker)
        if given is not None and given not in self._waiting:
            said = "".join(traceback.format_exception(error))
            self._answer(given.ask.id, Broken(reason=f"no sense in a worker: {in_words(error)}", traceback=said))

    def _retire(self, worker: Worker, *, headers: bool = False) -> None:
        self._workers.remove(worker)
        worker.stderr.read()
        if headers:
            folders.give_back(worker.folder)
        worker.end()

    def _answer(self, id: int, outcome: Outcome) -> None:
        for suspects in self._strays.values():
            suspects.discard(id)
        self._runner.send(wire.Answered(id, to_data(outcome)))

    def _cancel(self, id: int) -> None:
        self._waiting = deque(one for one in self._waiting if one.ask.id != id)
        for worker, waiting in list(self._given.items()):
            if waiting.ask.id == id:
                del self._given[worker]
                self._retire(worker)
                for suspects in self._strays.values():
                    suspects.discard(id)

    # ---- queries ---------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give what waits to whoever may have it, in the order in which it came."""
        if not self._waiting:
            return
        if self._maker.why_not:
            while self._waiting:
                self._answer(self._waiting.popleft().ask.id, Broken(reason=self._maker.why_not))
            return
        held: deque[_Waiting] = deque()
        starting = sum(worker.pid is None for worker in self._workers)
        while self._waiting:
            waiting = self._waiting.popleft()
            able = [one for one in self._workers if one.may_answer(waiting.ask)]
            idle = [one for one in able if not (waiting.fresh and one.answered)]
            if idle:
                # Those that have answered something are of no use to those who want to be alone.
                worker = max(idle, key=lambda one: one.answered)
                self._given[worker] = waiting
                limit = waiting.ask.memory if waiting.ask.memory is not None else self._memory
                worker.ask(waiting.ask, self._deadlines.of(waiting.ask.deadline), limit)
                continue
            held.append(waiting)
            if starting >= len(held) or not self._maker.is_ready:
                continue
            if not self._has_room():
                continue
            try:
                self._workers.append(self._maker.make(waiting.ask.variables, whole=waiting.ask.whole))
                starting += 1
            except OSError as error:
                held.pop()
                self._answer(waiting.ask.id, Broken(reason=f"a worker cannot be started: {in_words(error)}"))
        self._waiting = held
        self._spare()

    def _spare(self) -> None:
        """Have a new worker ready for the next query, if the last one wanted to be alone: there will be more."""
        last = next(reversed(self._given.values()), None)
        if last is None or not last.fresh or self._waiting or self._maker.how != "fork":
            return
        if any(worker.pid is None or (worker.is_ready and not worker.answered) for worker in self._workers):
            return
        if not self._has_room():
            return
        with contextlib.suppress(OSError):  # whoever asks next will hear of it
            self._workers.append(self._maker.make({}, whole=last.ask.whole))

    def _has_room(self) -> bool:
        """Whether one more worker may be made. One that has nothing to do goes for it."""
        if len(self._workers) < self._begin.workers:
            return True
        useless = next((one for one in self._workers if one.is_ready), None)
        if useless is not None:
            self._retire(useless, headers=True)
        return useless is not None

    # ---- orphans ---------------------------------------------------------------------------------------------

    def _see_to_strays(self) -> None:
        """End processes that were left behind, as soon as no query is running that may have made them."""
        known = {pid for worker in self._workers if (pid := worker.process_id) is not None} | self._maker.pids()
        found = set(processes.children(os.getpid())) - known
        if any(worker.pid is None for worker in self._workers):
            found &= self._strays.keys()  # one of the others may be a worker that has not said so yet
        running = {waiting.ask.id for waiting in self._given.values()}
        self._strays = {pid: self._strays.get(pid, running) & running for pid in found}
        for pid, suspects in self._strays.items():
            if not suspects:
                processes.kill_all_of(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _fair_share(workers: int) -> int | None:
    free = memory.available()
    return None if free is None else int(free * 0.9) // workers


def _reap() -> None:
    """Wait for all children, which are dying."""
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            processes.kill(processes.children(os.getpid()))
            time.sleep(0.01)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The server of the runner at the other end of this socket."""
    (fd,) = json.loads((arguments or sys.argv[1:])[0])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _nothing)  # it ends when its runner does; what it starts does not inherit this
    processes.adopt_orphans()
    runner = socket.socket(fileno=fd)
    begin = _first_message(runner)
    server = Server(runner, begin)
    try:
        server.serve()
    finally:
        try:
            server.end()
        finally:
            processes.kill(processes.marked(mark(begin.folder)))
            _reap()
            folders.remove(begin.folder)
    os._exit(0)


def _nothing(_number: int, _frame: object) -> None:
    """What we do about a signal."""


def mark(folder: str) -> str:
    """What stands in the environment of every process of a runner."""
    return f"{MARK}={folder}"


MARK: Final = "RUNNER_OF_TORCHSLEUTH"


def _first_message(runner: socket.socket) -> wire.Begin:
    """Read no more than it."""
    length = int.from_bytes(_exactly(runner, 8), "little")
    found = wire.Incoming().add(length.to_bytes(8, "little") + _exactly(runner, length))
    assert isinstance(found[0], wire.Begin)
    return found[0]


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


if __name__ == "__main__":
    main()

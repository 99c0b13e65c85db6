"""One worker as it is seen from outside: a process in a session of its own, which owes an answer or does not.

    worker.ask(ask, deadline, memory)
    worker.look(now)              an `Ending` when the query is over, whichever way
    worker.end()                  the process and all that it started are gone

How a query can be over: the slate has an answer; the process died; its time is up, and it was asked for its Python
stack; it had more memory than it may have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torchsleuth.outcome import (
    Broken,
    Crashed,
    Outcome,
    OutOfMemory,
    Passed,
    Raised,
    Stage,
    TimedOut,
    Unrunnable,
    from_data,
)
from torchsleuth.run import memory
from torchsleuth.run.observing.stages import locate_stack
from torchsleuth.run.runners import folders, processes
from torchsleuth.run.runners.files import Files
from torchsleuth.run.runners.output import Output
from torchsleuth.run.runners.slate import Spoilt
from torchsleuth.run.runners.wire import Ask

ASK_FOR_STACK: Final = signal.SIGUSR2
"""What a worker answers with the Python stack of all its threads."""
PATIENCE: Final = 0.5
"""Seconds for that."""
MOST_STACK: Final = 200_000
_PID: Final = struct.Struct("<Q")
_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class Ending:
    """A query is over."""

    ask: Ask
    outcome: Outcome
    clean: bool
    """The worker says that it is as it was before."""
    earlier: int
    """How many queries the worker had answered before."""

    @property
    def is_believed(self) -> bool:
        """What an earlier query may have caused by damage to the process is asked again elsewhere."""
        return self.earlier == 0 or isinstance(self.outcome, (Passed, Raised, Unrunnable))


@dataclass
class _Busy:
    ask: Ask
    began: float
    deadline: float
    memory: int | None
    kills: int | None
    until: float | None = None
    """It is out of time, and has until then to write its stack."""
    dumped: int = 0
    told: tuple[Stage, int, int] | None = None


class Worker:
    """A worker process. `pid` is None until it has said that it is there."""

    def __init__(
        self,
        files: Files,
        folder: str,
        process: subprocess.Popen[bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.variables = variables
        """Those that it was started with for the sake of a query; None if it was forked."""
        self.answered = 0
        self.pid: int | None = None
        self.started = time.monotonic()
        self.busy: _Busy | None = None
        self._files = files
        self._process = process
        self._outgoing = bytearray()
        self._first_words = bytearray()
        self._resident = 0
        self._status: int | None = None
        self.stdout, self.stderr = Output(files.stdout), Output(files.stderr)

    # ---- what the event loop watches -------------------------------------------------------------------------

    def readable(self) -> list[int]:
        """The files at which something may come."""
        outputs = [output.fd for output in (self.stdout, self.stderr) if not output.ended]
        return [*outputs, *([] if self._woken_for_good else [self._files.wake])]

    _woken_for_good = False
    """Nobody has the other end of the pipe any more."""

    @property
    def socket(self) -> int:
        return self._files.ours.fileno()

    @property
    def has_more_to_send(self) -> bool:
        return bool(self._outgoing)

    @property
    def is_ready(self) -> bool:
        return self.pid is not None and self.busy is None

    def may_answer(self, ask: Ask) -> bool:
        """Whether it has nothing to do, and was started as the query needs it."""
        return self.is_ready and (self.variables is None or self.variables == ask.variables)

    @property
    def grown(self) -> int:
        """Bytes of memory that it has more than when it began."""
        return processes.resident(self.pid) - self._resident if self.pid is not None else 0

    def read(self) -> None:
        """Take what has come."""
        self.stdout.read()
        self.stderr.read()
        try:
            data = os.read(self._files.wake, 4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._woken_for_good = not data
        if self.pid is None:
            self._first_words += data
            if len(self._first_words) >= _PID.size:
                (self.pid,) = _PID.unpack_from(self._first_words)
                self._resident = processes.resident(self.pid)

    def flush(self) -> None:
        while self._outgoing:
            try:
                del self._outgoing[: self._files.ours.send(memoryview(self._outgoing)[:_AT_ONCE].tobytes())]
            except BlockingIOError:
                return
            except OSError:  # it has died, which `look` will find
                self._outgoing.clear()

    # ---- a query ---------------------------------------------------------------------------------------------

    def ask(self, ask: Ask, deadline: float, limit: int | None) -> None:
        """Give it a query."""
        for output in (self.stdout, self.stderr):
            output.read()
            output.forget()
        os.ftruncate(self._files.dump, 0)
        self._files.slate.wipe()
        self.busy = _Busy(ask, time.monotonic(), deadline, limit, memory.kills())
        self._outgoing += struct.pack("<QQ", len(ask.query), limit or 0) + ask.query
        self.flush()

    def progress(self) -> tuple[Stage, int, int] | None:
        """Where it is, if that is news."""
        now = self._files.slate.progress()
        if self.busy is None or self.busy.told == now or self._files.slate.is_blank:
            return None
        self.busy.told = now
        return now

    def look(self, now: float) -> Ending | None:
        """Whether its query is over, and how."""
        busy = self.busy
        if busy is None or self.pid is None:
            return None
        if busy.until is not None:
            return self._out_of_time(busy, now)
        died = self._has_died()  # asked first: what it wrote before it died counts
        try:
            answer = self._files.slate.answer()
            if answer is not None:
                if not isinstance(answer["outcome"], dict):
                    raise Spoilt("no outcome")
                outcome = from_data(answer["outcome"])
                if isinstance(outcome, OutOfMemory) and not outcome.limit_bytes:
                    outcome = dataclasses.replace(outcome, limit_bytes=busy.memory or 0)
                return self._over(outcome, clean=answer["clean"] is True)
        except (Spoilt, ValueError, KeyError, TypeError) as error:
            return self._over(Broken(self._stage(""), reason=f"the worker's answer is spoilt: {error}"))
        if died:
            return self._over(self._post_mortem(busy))
        if busy.memory is not None and self._has_more_than(busy.memory):
            return self._over(OutOfMemory(self._stage(""), limit_bytes=busy.memory, message="it had more than that"))
        if now - busy.began > busy.deadline:
            busy.until = now + PATIENCE
            for number in (signal.SIGCONT, ASK_FOR_STACK):
                processes.kill([self.pid], number)
        return None

    def _out_of_time(self, busy: _Busy, now: float) -> Ending | None:
        """Wait until its stack is there, but not for long."""
        size = os.fstat(self._files.dump).st_size
        is_there = size > 0 and size == busy.dumped
        busy.dumped = size
        if not (is_there or self._has_died()) and busy.until is not None and now < busy.until:
            return None
        stack = self._stack()
        frames = _frames(stack)
        return self._over(TimedOut(self._stage(stack), deadline=busy.deadline, stack=stack, frames=frames))

    def _over(self, outcome: Outcome, *, clean: bool = False) -> Ending:
        busy, self.busy = self.busy, None
        assert busy is not None
        for output in (self.stdout, self.stderr):
            output.read()
        printed = {
            name: text
            for name in ("stdout", "stderr")
            if not getattr(outcome, name) and (text := getattr(self, name).text())
        }
        seconds = outcome.seconds or time.monotonic() - busy.began
        ending = Ending(busy.ask, dataclasses.replace(outcome, seconds=seconds, **printed), clean, self.answered)
        self.answered += 1
        return ending

    def _post_mortem(self, busy: _Busy) -> Outcome:
        if self._files.slate.is_blank:
            return Broken(Stage.PREPARE, reason="the worker ended before it could begin")
        status = self._status or 0
        stack = self._stack()
        stage = self._stage(stack)
        if not os.WIFSIGNALED(status):
            return Crashed(stage, exit_code=os.WEXITSTATUS(status), stack=stack, frames=_frames(stack))
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and memory.grew(busy.kills, memory.kills()):
            return OutOfMemory(stage, message="the kernel killed it")
        return Crashed(stage, signal=number, stack=stack, frames=_frames(stack))

    def _stage(self, stack: str) -> Stage:
        entered = self._files.slate.progress()[0]
        return locate_stack(stack, default=entered) if stack else entered

    def _stack(self) -> str:
        return os.pread(self._files.dump, MOST_STACK, 0).decode("utf-8", "replace")

    def _has_more_than(self, limit: int) -> bool:
        """Whether what it took since it began, with what its children have, is more than that."""
        assert self.pid is not None
        left = limit - self.grown
        kin = processes.descendants(self.pid)
        if sum(map(processes.resident, kin)) <= left:
            return left < 0
        return sum(map(processes.private, kin)) > left  # what they share with it was counted

    # ---- its end ---------------------------------------------------------------------------------------------

    @property
    def process_id(self) -> int | None:
        """Its process id, as soon as that is known."""
        return self._process.pid if self._process is not None else self.pid

    def _has_died(self) -> bool:
        pid = self.process_id
        if self._status is None and pid is not None:
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                found, status = pid, 0
            if found:
                self._reaped(status)
        return self._status is not None

    def is_gone(self) -> bool:
        """It has died, or cannot start."""
        return self._has_died() or (self.pid is None and self._woken_for_good)

    def _reaped(self, status: int) -> None:
        self._status = status
        if self._process is not None:
            self._process.returncode = status  # it is not to be waited for again

    def end(self) -> None:
        """Kill it and whatever it started, wait for it, and remove what it had."""
        pid = self.process_id
        if pid is not None:
            if self._status is None:
                processes.kill_all_of(pid)
                until = time.monotonic() + 1.0  # a process that the kernel holds is waited for later, as an orphan
                while not self._has_died() and time.monotonic() < until:
                    time.sleep(0.001)
            with contextlib.suppress(OSError):  # those of its session that it has left behind
                os.killpg(pid, signal.SIGKILL)
        self._files.close_ours()
        folders.remove(self.folder)


def _frames(stack: str) -> tuple[str, ...]:
    try:
        from torchsleuth.run.observing.stacks import frames_of_dump
    except ImportError:
        return ()
    return frames_of_dump(stack)

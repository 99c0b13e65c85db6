"""A program in a process of its own that has our terminal, seen through to its end, whatever that is.

    ended = run_child(command, timeout=60, say=print)
    ended.exit_code                what a shell would make of it; 124 if it was out of time
    ended.signal                   what it died of, if it died

Input and output are ours, so a terminal stays a terminal. A signal that was sent to us is passed on; one that came from
the terminal has reached the program already. At the second Ctrl-C within a minute, and when its time is up, the program
is asked for its stack (SIGABRT, which faulthandler answers), and killed if it does not end then. If we are killed, it
gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from torchsleuth.errors import SleuthError, in_words
from torchsleuth.run import memory
from torchsleuth.run.runners import processes

GRACE: Final = 3.0
"""Seconds between the request for a stack and the end."""
PATIENCE: Final = 2.0
"""Seconds after the first Ctrl-C until we say what a second one does."""
FORGOTTEN: Final = 60.0
"""Seconds after which a Ctrl-C is a first one again: the program has gone on, so it has dealt with the last one."""
OUT_OF_TIME: Final = 124
_PASSED_ON: Final = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    pid: int
    code: int | None
    """Its exit code, if it came to an end by itself."""
    signal: int | None = None
    """What it died of."""
    out_of_time: float | None = None
    """The seconds that it had, if it did not end in them."""
    stopped_by: int | None = None
    """The signal that somebody sent to have it ended, if that is why it died."""
    out_of_memory: bool = False
    """It was killed, and the kernel says that it killed for want of memory."""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """What we leave with."""
        if self.out_of_time is not None:
            return OUT_OF_TIME
        if self.signal is None:
            return self.code or 0
        return 128 + (self.stopped_by or self.signal)


def interpreter() -> list[str]:
    """This Python with the options that it was started with."""
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    return [sys.executable, *options, *unbuffered]


def run_child(command: Sequence[str], *, timeout: float | None = None, say: Callable[[str], None]) -> Ended:
    """Run a command to its end, for at most `timeout` seconds. `say` is for what the user has to know meanwhile."""
    if not hasattr(signal, "sigtimedwait"):
        raise SleuthError(
            "a program cannot be run in a process of its own here",
            cause=f"{sys.platform} has no sigtimedwait",
            remedy="run it in this process: --no-isolate",
        )
    kills = memory.kills()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    try:
        began = time.monotonic()
        watch = _Watch(_start(command, before), began, timeout, say)
        watch.wait()
        # A signal that came with the death must not kill us, now that there is something to report.
        while signal.sigtimedwait(_PASSED_ON, 0) is not None:
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = watch.process.returncode
    died_of = -code if code < 0 else None
    return Ended(
        pid=watch.process.pid,
        code=code if code >= 0 else None,
        signal=died_of,
        out_of_time=timeout if watch.timed_out else None,
        stopped_by=watch.stopped_by if died_of == watch.stopped_by or watch.gave_up else None,
        out_of_memory=died_of == signal.SIGKILL and not watch.gave_up and memory.grew(kills, memory.kills()),
        seconds=time.monotonic() - began,
    )


def _start(command: Sequence[str], mask: Iterable[int]) -> subprocess.Popen[bytes]:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return subprocess.Popen(command, preexec_fn=_BeforeExec(mask))
    except OSError as error:
        raise SleuthError(
            f"{command[0]} cannot be started",
            cause=in_words(error),
            remedy="see to it that Python can be started here, or run the program in this process: --no-isolate",
        ) from error


class _BeforeExec:
    """What the new process does before it becomes the program: it hears signals again, and dies with us."""

    def __init__(self, mask: Iterable[int]) -> None:
        self._mask = set(mask)
        self._parent = os.getpid()

    def __call__(self) -> None:
        processes.die_with(self._parent, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class _Watch:
    """Waits for a process to end, and hears signals meanwhile."""

    def __init__(
        self, process: subprocess.Popen[bytes], began: float, timeout: float | None, say: Callable[[str], None]
    ) -> None:
        self.process = process
        self.timed_out = False
        self.stopped_by: int | None = None
        self.gave_up = False
        """We have asked it for its stack, or killed it."""
        self._say = say
        self._interrupted = -math.inf
        """When the last Ctrl-C came."""
        self._next: tuple[float, Callable[[], None]] | None = None
        """What is to be done when, unless the program ends before."""
        if timeout is not None:
            self._next = (began + timeout, self._out_of_time)

    def wait(self) -> None:
        heard = (*_PASSED_ON, signal.SIGCHLD)
        while self.process.poll() is None:
            left = 3600.0 if self._next is None else self._next[0] - time.monotonic()
            info = signal.sigtimedwait(heard, max(left, 0.0))
            if info is None:
                self._do_next()
            elif info.si_signo != signal.SIGCHLD and info.si_pid != self.process.pid:
                self._hear(signal.Signals(info.si_signo), sent=info.si_code <= 0)

    def _do_next(self) -> None:
        if self._next is not None and self._next[0] <= time.monotonic():
            _, action = self._next
            self._next = None
            action()

    def _hear(self, number: signal.Signals, *, sent: bool) -> None:
        """A signal for us: `sent` by a process, to us alone as far as we know; or by the terminal, to all of us."""
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self.stopped_by = number
        if number == signal.SIGINT:
            before, self._interrupted = self._interrupted, time.monotonic()
            if self._interrupted - before < FORGOTTEN:
                self._ask_for_stack()
                return
            if self._next is None:
                self._next = (time.monotonic() + PATIENCE, self._explain)
        if sent:
            self._send(number)

    def _explain(self) -> None:
        self._say("waiting for the program to end; another Ctrl-C asks for its stack, and ends it")

    def _out_of_time(self) -> None:
        self.timed_out = True
        self._ask_for_stack()

    def _ask_for_stack(self) -> None:
        self.gave_up = True
        self._next = (time.monotonic() + GRACE, self._kill)
        self._send(signal.SIGABRT)
        self._send(signal.SIGCONT)  # a stopped process would not hear it

    def _kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self.process.send_signal(number)

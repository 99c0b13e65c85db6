"""What is between the server and a worker: both ends of it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

from torchsleuth.run.runners.slate import Slate, dump_file

_PIPE: Final = 1 << 20
"""Bytes that a program may print before somebody has to read."""


class Files:
    """A socket, a slate, a file for the Python stack, and three pipes: to wake the server, stdout, stderr."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as opened:
            self.ours, self.theirs = map(opened.enter_context, socket.socketpair())
            self.slate = Slate()
            opened.callback(self.slate.close)
            self.dump = dump_file()
            opened.callback(os.close, self.dump)
            self.wake, self.waking = _pipe(opened)
            self.stdout, self.stdout_end = _pipe(opened)
            self.stderr, self.stderr_end = _pipe(opened)
            for end in (self.stdout_end, self.stderr_end):
                _widen(end)
            self.ours.setblocking(False)
            os.set_blocking(self.wake, False)
            opened.pop_all()

    def of_worker(self) -> list[int]:
        """What the worker gets, in the order in which it expects it."""
        return [self.theirs.fileno(), self.slate.fd, self.dump, self.waking, self.stdout_end, self.stderr_end]

    def close_worker_s(self) -> None:
        self.theirs.close()
        for fd in (self.waking, self.stdout_end, self.stderr_end):
            os.close(fd)

    def close_ours(self) -> None:
        self.ours.close()
        self.slate.close()
        for fd in (self.dump, self.wake, self.stdout, self.stderr):
            os.close(fd)


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _widen(pipe: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[attr-defined,unused-ignore]

"""A lock on a folder that processes share: many may hold it at once, or one alone.

It is a lock of the operating system on an open file, so that it ends with the process that holds it, however that
ends. Whoever only reads a store takes no lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchsleuth.errors import StoreError

PATIENCE: Final = 60.0
"""Seconds to wait for others. They hold it for fractions of one."""


@contextlib.contextmanager
def locked(path: Path, *, alone: bool, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock at that file while the block runs: together with others, or alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        _acquire(fd, path, alone, patience)
        try:
            yield
        finally:
            # Said explicitly: a process that was forked off meanwhile holds the same open file, and would keep it.
            _release(fd)
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path, alone: bool, patience: float) -> None:
    deadline = time.monotonic() + patience
    pause = 0.001
    while not _try(fd, alone):
        if time.monotonic() > deadline:
            raise StoreError(
                "another process holds the store",
                cause=f"its lock was not free within {patience:g} s",
                remedy="see what is writing to the store, and try again",
                file=str(path),
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _try(fd: int, alone: bool) -> bool:
    try:
        _take(fd, alone)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


_BUSY: Final = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, errno.EWOULDBLOCK})

if os.name == "nt":
    import msvcrt

    # Windows has no lock for many on one file: there, one at a time.
    def _take(fd: int, alone: bool) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

    def _release(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]

else:
    import fcntl

    def _take(fd: int, alone: bool) -> None:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def _release(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

"""Processes as the kernel shows them: who is whose child, how much memory each has, and ending all of them.

Where there is no /proc, only what the calls of the operating system give is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LINUX: Final = sys.platform == "linux"
_LIBC: Final = ctypes.CDLL(None) if LINUX else None
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """From now on we get that signal when our parent's thread that started us ends; we end, if that has happened."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def adopt_orphans() -> None:
    """From now on the children of children that ended are ours."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The children that a process has. Zombies are among them."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    left = children(pid)
    while left:
        one = left.pop()
        found.append(one)
        left += children(one)
    return found


def threads() -> int:
    """How many threads this process has, whoever made them. 0: nobody says."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 if it is gone, or nobody says."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def private(pid: int) -> int:
    """Bytes of memory that a process has for itself alone. Takes the kernel a while to find out."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))
    except (OSError, ValueError, IndexError):
        return 0


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_all_of(pid: int) -> None:
    """End a leader of a session, which is our child, with all that it started. It stays to be waited for."""
    kin = descendants(pid)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    kill([pid, *kin])


def marked(mark: str) -> list[int]:
    """The processes that were started with this in their environment, or forked off such a one; without ourselves."""
    wanted = mark.encode()
    found = []
    for entry in os.listdir("/proc") if LINUX else ():
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found

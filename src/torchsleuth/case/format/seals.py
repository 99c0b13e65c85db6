"""Tensor files that are known to be whole and on the disk, so that they are not hashed each time somebody opens them.

    seal(fd, digest)                who has flushed the file and found its bytes to be the right ones seals it
    is_sealed(fstat(fd), digest)    nobody has written to it since
    touch(path, digest)             makes it look new and leaves the seal whole

The seal is in the file's time of change: its nanoseconds are made from the digest and the number of the file. Whoever
writes to the file, the system gives it another time; whoever copies it, the copy has another number. Either way it is
hashed again, as is everything where times are kept less finely. So a seal is never wrong about what programs do to a
file by accident. It does not keep out somebody who forges times, and it does not notice a disk that forgets: for these,
`sleuth check-file` hashes all, whatever is sealed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from blake3 import blake3

_SECOND: Final = 10**9


def is_sealed(found: os.stat_result, digest: str) -> bool:
    return found.st_mtime_ns % _SECOND == _nanoseconds(found, digest)


def seal(fd: int, digest: str) -> None:
    """Seal an open file, which makes it older by less than a second. Not a word if that cannot be done: whoever opens
    the file hashes it."""
    with contextlib.suppress(OSError):
        found = os.fstat(fd)
        nanoseconds = _nanoseconds(found, digest)
        earlier = nanoseconds > found.st_mtime_ns % _SECOND
        _set(fd, found, found.st_mtime_ns // _SECOND - earlier, nanoseconds)


def touch(path: Path, digest: str) -> None:
    """Give a file the present time: if it is sealed, the next moment that has the nanoseconds of its seal."""
    before = path.stat()
    os.utime(path)
    if is_sealed(before, digest):
        now = path.stat()  # by the clock of the file system, which on a network is another machine's
        nanoseconds = before.st_mtime_ns % _SECOND
        later = nanoseconds < now.st_mtime_ns % _SECOND
        _set(path, now, now.st_mtime_ns // _SECOND + later, nanoseconds)


def _set(file: int | Path, found: os.stat_result, second: int, nanoseconds: int) -> None:
    os.utime(file, ns=(found.st_atime_ns, second * _SECOND + nanoseconds))


def _nanoseconds(found: os.stat_result, digest: str) -> int:
    told = f"{digest} {found.st_dev} {found.st_ino} {found.st_size}"
    return int.from_bytes(blake3(told.encode()).digest(length=8), "big") % _SECOND

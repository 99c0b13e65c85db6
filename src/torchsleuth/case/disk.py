"""What all who write files need: names for files that are not finished, names that reach the disk, and what the system
said in our words."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchsleuth.errors import CaseError, StoreError, in_words

TEMPORARY: Final = ".tmp"
"""How the names of files end that are being written. One that stays behind was abandoned."""

_REMEDIES: Final = {
    errno.ENOSPC: "make room on the disk, or keep cases elsewhere (SLEUTH_STORE)",
    errno.EDQUOT: "make room on the disk, or keep cases elsewhere (SLEUTH_STORE)",
    errno.EROFS: "keep cases in a folder that can be written to (SLEUTH_STORE)",
    errno.EACCES: "see who may use the folder, or keep cases elsewhere (SLEUTH_STORE)",
    errno.EPERM: "see who may use the folder, or keep cases elsewhere (SLEUTH_STORE)",
    errno.ENOTDIR: "a store is a folder: name another one, or move the file that has its name",
    errno.EEXIST: "a store is a folder: name another one, or move the file that has its name",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def temporary_name() -> str:
    return f".{secrets.token_hex(8)}{TEMPORARY}"


@contextlib.contextmanager
def told(do: str, path: object, kinds: type[Exception] | tuple[type[Exception], ...] = OSError) -> Iterator[None]:
    """Say in our words what the system said. That a file is not there stays what it is: whoever asked knows why."""
    try:
        yield
    except (FileNotFoundError, CaseError):
        raise
    except kinds as error:
        raise failed(do, path, error) from error


def failed(do: str, path: object, error: BaseException) -> StoreError:
    """What the system said, with the file and what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    return StoreError(
        f"cannot {do}",
        cause=in_words(error),
        remedy=_REMEDIES.get(number or 0, "see to the disk or the connection, or keep cases elsewhere (SLEUTH_STORE)"),
        file=str(path),
    )


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk. Where folders cannot be opened, the system does not let us."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

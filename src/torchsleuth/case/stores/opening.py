"""Cases that lie anywhere: in an archive, in the folder of another store, or in a folder of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchsleuth.case.format import reading
from torchsleuth.case.schema import Case
from torchsleuth.case.stores.archive import Archive, is_archive
from torchsleuth.case.stores.files import read_local
from torchsleuth.case.stores.garbage import CASE_FILE
from torchsleuth.errors import NotFound

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs


@dataclass(frozen=True)
class Opened:
    """A case and where its tensors are, be it in a store, in an archive, or in a folder of its own."""

    case: Case
    blobs: Blobs
    path: str
    id: str | None = None
    """Its id, if it lies in the store that was asked."""


def exists(path: str) -> bool:
    """Whether something is there. False also for what cannot be a path."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):  # too long to be a path, or with a zero in it
        return False


def open_path(path: Path) -> Opened:
    """A case that lies anywhere."""
    if path.is_dir():
        path /= CASE_FILE
    if is_archive(path):
        archive = Archive.open(path)
        return Opened(archive.case, archive.blobs, str(path))
    try:
        data = read_local(path, reading.MAX_BYTES)
    except FileNotFoundError:
        raise NotFound(
            f"{path.parent} is not the folder of a case",
            cause="it has no case.json",
            remedy="give the folder of a case, its case.json, or a .sleuth.zip",
        ) from None
    case = reading.decode(data, file=str(path))
    return Opened(case, _blobs_near(path), str(path))


def _blobs_near(path: Path) -> Blobs:
    """The tensors of a case: beside it, as in an unpacked archive, or two floors up, as in a store."""
    from torchsleuth.case.storages.blobs import FolderBlobs

    beside = path.absolute().parent / "tensors"
    return FolderBlobs(beside if beside.is_dir() else path.absolute().parent.parent.parent / "tensors")

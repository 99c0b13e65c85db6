"""A case that was found, wherever it lies: read it, check every byte of its tensors, or get at them to run it.

found = store.find("bert-backward")         by id, beginning of an id, label, or path
found = open_path(path)                     a case's folder, its case.json, or an archive
check_tensors(found)                        how many bytes were read and found to be the right ones
found.blobs                                 its tensors, for those who want to run it; that alone takes torch
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from torchsleuth.case.disk import told
from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.format.tensor_files import SUFFIX, data_in
from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.stores import zip_form
from torchsleuth.case.stores.archive import Archive, is_archive
from torchsleuth.case.stores.files import CASE_FILE, open_local, read_local
from torchsleuth.errors import GET_IT_AGAIN, BadCase, HashMismatch, MissingTensor, NotFound

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs

_PIECE: Final = 1 << 22


@dataclass(frozen=True)
class Found:
    """A case, where it lies, and how to get at the bytes of its tensors."""

    case: Case
    path: str
    tensor: Callable[[str], Iterator[bytes]]
    """The bytes of a tensor's file, in pieces, by its digest. `FileNotFoundError` if it is not there."""
    home: str
    """Where its tensors are, for whoever has no more than this word: `blobs_at` finds them again."""
    open_blobs: Callable[[], Blobs]
    id: str | None = None
    """Its id, if it lies in the store that was asked."""
    labels: tuple[str, ...] = ()

    @cached_property
    def blobs(self) -> Blobs:
        """Where its tensors are. Imports torch."""
        return self.open_blobs()


def exists(path: str) -> bool:
    """Whether something is there. False also for what cannot be a path."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):  # too long to be a path, or with a zero in it
        return False


def open_path(path: Path) -> Found:
    """The case in a folder, in a file `case.json`, or in an archive."""
    if path.is_dir():
        path /= CASE_FILE
    if is_archive(path):
        archive = Archive.open(path)
        home = str(path.absolute())
        return Found(archive.case, str(path), partial(_unpacked, archive), home, lambda: archive.blobs)
    try:
        data = read_local(path, reading.MAX_BYTES)
    except FileNotFoundError:
        raise _no_case(path) from None
    case = reading.decode(data, file=str(path))
    # Beside it, as in an unpacked archive, or two floors up, as in a store.
    here = path.absolute().parent
    folder = here / "tensors" if (here / "tensors").is_dir() else here.parent.parent / "tensors"
    tensor = partial(in_pieces, lambda digest: open_local(folder / f"{digest}{SUFFIX}"))
    return Found(case, str(path), tensor, str(folder), partial(_folder_blobs, folder))


def _no_case(path: Path) -> NotFound:
    remedy = "give the folder of a case, its case.json, or a .sleuth.zip"
    if path.name != CASE_FILE:
        cause = "there is no such file"
    elif (path.parent / "cases").is_dir():
        cause, remedy = "it is a store, not a case", f"give its cases one by one: {path.parent / 'cases' / '*'}"
    else:
        cause = "it has no case.json" if path.parent.is_dir() else "there is no such folder"
    return NotFound("there is no case", cause=cause, remedy=remedy, file=str(path))


def blobs_at(home: str) -> Blobs:
    """The tensors at a `Found.home`: a folder of them, an archive, or the URL of a store. Imports torch."""
    if "://" in home:
        from torchsleuth.case.stores.store import Store

        return Store.open(home).blobs
    path = Path(home)
    return Archive.open(path).blobs if is_archive(path) else _folder_blobs(path)


def _folder_blobs(folder: Path) -> Blobs:
    from torchsleuth.case.storages.blobs import FolderBlobs

    return FolderBlobs(folder)


# ---- the bytes of tensors --------------------------------------------------------------------------------


def check_tensors(found: Found) -> int:
    """Read every tensor of a case, and raise a `CaseError` if one is missing, or its bytes are not the right ones."""
    needed = {
        storage.content.digest: (index, storage.nbytes)
        for index, storage in enumerate(found.case.storages)
        if isinstance(storage.content, Stored)
    }
    for digest, (index, nbytes) in needed.items():
        _check_tensor(found, digest, nbytes, f"storages[{index}]")
    return sum(nbytes for _, nbytes in needed.values())


def _check_tensor(found: Found, digest: str, nbytes: int, field: str) -> None:
    hasher = Hasher(nbytes)
    size = 0
    cause = f"{digest}{SUFFIX} does not hold the {nbytes:,} bytes that have this digest"
    try:
        for piece in data_in(found.tensor(digest), nbytes, ""):
            hasher.update(piece)
            size += len(piece)
    except FileNotFoundError as error:
        raise MissingTensor(
            "the bytes of a tensor are not there",
            cause=f"there is no file {digest}{SUFFIX}",
            remedy="get the case again from where it was written: as an archive (`sleuth pack`) it is in one piece",
            file=found.path,
            field=field,
        ) from error
    except (BadCase, HashMismatch) as error:
        cause = f"{digest}{SUFFIX}: {error.what} ({error.cause})"
    if size != nbytes or hasher.digest() != digest:
        raise HashMismatch(
            "the bytes of a tensor are not the ones that were written",
            cause=cause,
            remedy=GET_IT_AGAIN,
            file=found.path,
            field=field,
        )


def in_pieces(opened: Callable[[str], BinaryIO], digest: str) -> Iterator[bytes]:
    """The bytes of a file, a few megabytes at a time."""
    with told("read it", digest + SUFFIX, Exception), closing(opened(digest)) as file:
        while piece := file.read(_PIECE):
            yield piece


def _unpacked(archive: Archive, digest: str) -> Iterator[bytes]:
    with told("read the archive", archive.path), open_local(archive.path) as file:
        yield from zip_form.unpacked(file, archive.tensors[digest], str(archive.path))

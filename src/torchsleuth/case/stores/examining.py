"""Looking at a case without torch: find it, read it, check every byte of its tensors. Nothing of it is run.

    found = find(store, "bert-backward")        by id, beginning of an id, label, or path
    found = open_path(path)                     a case's folder, its case.json, or an archive
    check_tensors(found)                        how many bytes were read and found to be the right ones

`Store.find` gives a case together with its tensors, for those who want to run it; that takes torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.stores import zip_form
from torchsleuth.case.stores.archive import Archive, is_archive
from torchsleuth.case.stores.files import open_local, read_local, told
from torchsleuth.case.stores.garbage import CASE_FILE, SUFFIX
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import HashMismatch, MissingTensor, NotFound

_PIECE: Final = 1 << 22
_LONGEST_HEADER: Final = 4096


@dataclass(frozen=True)
class Found:
    """A case, where it lies, and how to get at the bytes of its tensors."""

    case: Case
    path: str
    tensor: Callable[[str], Iterator[bytes]]
    """The bytes of a tensor's file, in pieces, by its digest. `FileNotFoundError` if it is not there."""
    id: str | None = None
    """Its id, if it lies in the store that was asked."""
    labels: tuple[str, ...] = ()


def find(store: Store, name: str | os.PathLike[str]) -> Found:
    """A case, by its id, the beginning of that, its label, or a path to one that lies anywhere."""
    text = os.fspath(name)
    try:
        entry = store.entry(text)
    except NotFound:
        path = Path(text)
        if "\0" in text or not path.exists():
            raise
        return open_path(path)
    file = f"cases/{entry.id}/{CASE_FILE}"
    case = reading.decode(store.files.read(file, reading.MAX_BYTES), file=store.files.path(file))
    tensor = partial(_in_pieces, lambda digest: store.files.open(f"tensors/{digest}{SUFFIX}"))
    return Found(case, store.files.path(file), tensor, entry.id, entry.labels)


def open_path(path: Path) -> Found:
    """The case in a folder, in a file `case.json`, or in an archive."""
    if path.is_dir():
        path /= CASE_FILE
    if is_archive(path):
        archive = Archive.open(path)
        return Found(archive.case, str(path), partial(_unpacked, archive))
    try:
        data = read_local(path, reading.MAX_BYTES)
    except FileNotFoundError:
        raise _no_case(path) from None
    case = reading.decode(data, file=str(path))
    here = path.absolute().parent
    folder = here / "tensors" if (here / "tensors").is_dir() else here.parent.parent / "tensors"
    return Found(case, str(path), partial(_in_pieces, lambda digest: open_local(folder / f"{digest}{SUFFIX}")))


def _no_case(path: Path) -> NotFound:
    remedy = "give the folder of a case, its case.json, or a .sleuth.zip"
    if path.name != CASE_FILE:
        cause = "there is no such file"
    elif (path.parent / "cases").is_dir():
        cause, remedy = "it is a store, not a case", f"give its cases one by one: {path.parent / 'cases' / '*'}"
    else:
        cause = "it has no case.json" if path.parent.is_dir() else "there is no such folder"
    return NotFound("there is no case", cause=cause, remedy=remedy, file=str(path))


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
    try:
        for piece in _data(found.tensor(digest), nbytes):
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
    if size != nbytes or hasher.digest() != digest:
        raise HashMismatch(
            "the bytes of a tensor are not the ones that were written",
            cause=f"{digest}{SUFFIX} does not hold the {nbytes:,} bytes that have this digest",
            remedy="get the case again from where it was written",
            file=found.path,
            field=field,
        )


def _data(pieces: Iterator[bytes], nbytes: int) -> Iterator[bytes]:
    """What comes after the header of a safetensors file; nothing, if the header is not that of so many bytes."""
    start = b""
    for piece in pieces:
        start += piece
        end = 8 + int.from_bytes(start[:8], "little")
        if len(start) < 8:
            continue
        if end > 8 + _LONGEST_HEADER:
            return
        if len(start) >= end:
            if _describes(start[8:end], nbytes):
                yield start[end:]
                yield from pieces
            return


def _describes(header: bytes, nbytes: int) -> bool:
    try:
        return bool(msgspec.json.decode(header)["data"]["data_offsets"] == [0, nbytes])
    except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError):
        return False


def _in_pieces(opened: Callable[[str], BinaryIO], digest: str) -> Iterator[bytes]:
    with told("read it", digest + SUFFIX), closing(opened(digest)) as file:
        while piece := file.read(_PIECE):
            yield piece


def _unpacked(archive: Archive, digest: str) -> Iterator[bytes]:
    with told("read the archive", archive.path), open_local(archive.path) as file:
        yield from zip_form.unpacked(file, archive.tensors[digest], str(archive.path))

"""A case as one file that can be mailed: `NAME.sleuth.zip`, with `case.json` and every tensor that it refers to.

    pack(store, "bert-backward")        writes bert-backward.sleuth.zip, the same bytes for the same case
    unpack(path, store)                 puts the case and its tensors into a store
    Archive.open(path)                  .case and .blobs, straight from the file

An archive comes from strangers. Its form is checked as a whole (`zip_form`); its names are `case.json` and digests,
nothing else; it holds what the case refers to, no more and no less; tensors are not compressed, so that nothing in it
is larger than the file itself but `case.json`, whose size is limited. Nothing in it says where it was packed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from torchsleuth.case.disk import sync_folder, temporary_name, told
from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import PREFIX, Hasher, digest as digest_of
from torchsleuth.case.format.tensor_files import START, SUFFIX, data_in
from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.stores import zip_form
from torchsleuth.case.stores.files import CASE_FILE, open_local
from torchsleuth.case.stores.zip_form import DEFLATED, STORED, Member, damaged
from torchsleuth.errors import GET_IT_AGAIN, CaseError, HashMismatch, MissingTensor, NotFound, StoreError

if TYPE_CHECKING:
    import torch

    from torchsleuth.case.stores.store import Listed, Store

ENDING: Final = ".sleuth.zip"

_TENSOR = re.compile(rf"tensors/({PREFIX}[0-9a-f]{{64}}){re.escape(SUFFIX)}")
_COMMENT = len(PREFIX) + 64
_RATIO: Final = 100
"""How many times smaller than itself `case.json` may be packed, if it is larger than `_SMALL`."""
_SMALL: Final = 1 << 20


def is_archive(path: Path) -> bool:
    """Whether a path is to be read as an archive: it begins as zips do, or is named as ours are."""
    if path.name.endswith(ENDING):
        return True
    try:
        with open_local(path) as file:
            return file.read(4) in (b"PK\3\4", b"PK\5\6")
    except (OSError, CaseError):
        return False


# ---- packing ---------------------------------------------------------------------------------------------


def pack(store: Store, name: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Write a case of a store as one file: to `out`, or into the working folder under its label or id."""
    entry = store.entry(name)
    if entry.error is not None:
        raise entry.error
    label = name if name in entry.labels else (entry.labels[0] if entry.labels else entry.id)
    path = Path(f"{label}{ENDING}" if out is None else out)
    if path.is_dir():
        path /= f"{label}{ENDING}"
    data = store.files.read(f"cases/{entry.id}/{CASE_FILE}", reading.MAX_BYTES)
    case = reading.decode(data, file=store.files.path(f"cases/{entry.id}/{CASE_FILE}"))
    temporary = path.with_name(temporary_name())
    try:
        with told("write the archive", path):
            with open(temporary, "xb") as file:
                _write(file, data, case, store)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except FileNotFoundError as error:
        raise StoreError(
            "cannot write the archive",
            cause="its folder does not exist, or something that it should hold was removed meanwhile",
            remedy="make the folder first, or name another one",
            file=str(path),
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def _write(file: BinaryIO, data: bytes, case: Case, store: Store) -> None:
    packed = _deflated(data)
    method = DEFLATED if _ratio_is_fine(len(data), len(packed)) else STORED
    packed = packed if method == DEFLATED else data
    first = Member(CASE_FILE, len(data), zlib.crc32(data), method, len(packed))
    members = [first]
    file.write(zip_form.local_header(first) + packed)
    needed = _needed(case)
    if len(needed) >= zip_form.MAX_MEMBERS:
        raise StoreError(
            f"the case has {len(needed):,} tensors",
            cause=f"an archive has less than {zip_form.MAX_MEMBERS:,}",
            remedy="send the store as a whole, or make the case smaller first: `sleuth minify`",
        )
    for digest, nbytes in sorted(needed.items()):
        name = f"tensors/{digest}{SUFFIX}"
        size, crc = _examine(store, name, digest, nbytes)
        member = Member(name, size, crc, STORED, size, members[-1].end)
        file.write(zip_form.local_header(member))
        for piece in _pieces(store, name):
            file.write(piece)
        if file.tell() != member.end:
            raise _not_the_bytes(store.files.path(name), digest)
        members.append(member)
    file.write(zip_form.directory(members, digest_of(packed).encode()))


def _deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def _ratio_is_fine(size: int, packed: int) -> bool:
    return size <= _SMALL or size <= _RATIO * packed


def _needed(case: Case) -> dict[str, int]:
    """The digests that a case refers to, and how many bytes each has."""
    return {each.content.digest: each.nbytes for each in case.storages if isinstance(each.content, Stored)}


def _examine(store: Store, name: str, digest: str, nbytes: int) -> tuple[int, int]:
    """Size and checksum of a tensor file, whose bytes are seen to be the right ones."""
    hasher = Hasher(nbytes)
    crc, size = 0, 0

    def whole() -> Iterator[bytes]:
        nonlocal crc, size
        for piece in _pieces(store, name):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            yield piece

    try:
        for piece in data_in(whole(), nbytes, store.files.path(name)):
            hasher.update(piece)
    except FileNotFoundError as error:
        raise MissingTensor(
            "the bytes of a tensor are not there",
            cause="the store has no such file",
            remedy=GET_IT_AGAIN,
            file=store.files.path(name),
        ) from error
    if hasher.digest() != digest or size != START + nbytes:
        raise _not_the_bytes(store.files.path(name), digest)
    return size, crc


def _pieces(store: Store, name: str) -> Iterator[bytes]:
    with told("read it", store.files.path(name), Exception), store.files.open(name) as file:
        while piece := file.read(1 << 22):
            yield piece


def _not_the_bytes(file: str, digest: str) -> HashMismatch:
    return HashMismatch(
        "its bytes are not the ones that were written",
        cause=f"they do not have the digest {digest}",
        remedy=GET_IT_AGAIN,
        file=file,
    )


# ---- reading ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Archive:
    """An archive whose form, names and case have been checked. Its tensors are checked when they are read."""

    path: Path
    data: bytes
    case: Case
    tensors: Mapping[str, Member]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Archive:
        """Read an archive's directory and its case."""
        path = Path(path)
        try:
            with told("read the archive", path), open_local(path) as file:
                members, comment = zip_form.read_directory(file, str(path), _COMMENT)
                tensors = _check_members(members, str(path))
                data = _read_case(file, members[0], comment, str(path))
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no archive {path}",
                cause="the file does not exist",
                remedy="give the path of a .sleuth.zip",
            ) from error
        case = reading.decode(data, file=f"{path}/{CASE_FILE}")
        _check_complete(case, tensors, str(path))
        return cls(path, data, case, tensors)

    @cached_property
    def blobs(self) -> ArchiveBlobs:
        """The tensors in the archive, to be read only."""
        return ArchiveBlobs(self.path, self.tensors)


def _check_members(members: list[Member], file: str) -> dict[str, Member]:
    if not members or members[0].name != CASE_FILE:
        raise damaged(file, "its first member is not case.json")
    tensors: dict[str, Member] = {}
    for member in members[1:]:
        match = _TENSOR.fullmatch(member.name)
        if match is None or match[1] in tensors:
            raise damaged(file, f"it has no use for a member {member.name!r:.120}, or has it twice")
        if member.method != STORED or member.size != member.packed:
            raise damaged(file, f"{member.name} is compressed, and tensors are not")
        tensors[match[1]] = member
    return tensors


def _read_case(file: BinaryIO, member: Member, comment: bytes, name: str) -> bytes:
    if member.method not in (STORED, DEFLATED) or member.size > reading.MAX_BYTES:
        raise damaged(name, f"case.json is packed in an unknown way, or claims to have {member.size:,} bytes")
    if not _ratio_is_fine(member.size, member.packed):
        raise damaged(name, f"{member.packed:,} bytes claim to unpack to {member.size:,}")
    file.seek(member.begin)
    if digest_of(file.read(member.packed)).encode() != comment:
        raise HashMismatch(
            "its case is not the one that was packed",
            cause="the bytes of case.json do not have the digest that the archive's comment names",
            remedy=GET_IT_AGAIN,
            file=name,
            field=CASE_FILE,
        )
    return b"".join(zip_form.unpacked(file, member, name))


def _check_complete(case: Case, tensors: Mapping[str, Member], file: str) -> None:
    needed = _needed(case)
    for digest, nbytes in needed.items():
        member = tensors.get(digest)
        if member is None:
            raise MissingTensor(
                "the bytes of a tensor are not in the archive",
                cause=f"it has no tensors/{digest}{SUFFIX}",
                remedy="pack the case again where it was written",
                file=file,
            )
        if member.size != START + nbytes:
            raise damaged(file, f"{member.name} has {member.size:,} bytes, and the case has {nbytes:,} there")
    if unneeded := tensors.keys() - needed.keys():
        raise damaged(file, f"its case does not refer to {min(unneeded)}")


class ArchiveBlobs:
    """The tensors of an archive."""

    def __init__(self, path: Path, tensors: Mapping[str, Member]) -> None:
        self._path = path
        self._tensors = tensors

    def put(self, storage: torch.UntypedStorage) -> str:
        """Nothing is put into an archive."""
        raise StoreError(
            "an archive cannot be added to",
            cause="it is written as a whole",
            remedy="unpack it into a store first: `sleuth unpack`",
            file=str(self._path),
        )

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        """A storage of its own with the bytes of that digest."""
        from torchsleuth.case.storages.memory import allocate, memory

        member = self._tensors.get(digest)
        if member is None or member.size != START + nbytes:
            raise MissingTensor(
                "the bytes of a tensor are not in the archive",
                cause=f"it has no {nbytes:,} bytes of the digest {digest:.80}",
                remedy="pack the case again where it was written",
                file=str(self._path),
            )
        storage = allocate(nbytes)
        rest = memory(storage)
        hasher = Hasher(nbytes)
        head = member.size - nbytes
        with told("read the archive", self._path), open_local(self._path) as file:
            for piece in zip_form.unpacked(file, member, str(self._path)):
                body = memoryview(piece)[min(head, len(piece)) :]
                head -= min(head, len(piece))
                rest[: len(body)] = body
                rest = rest[len(body) :]
                hasher.update(body)
        if hasher.digest() != digest:
            raise _not_the_bytes(f"{self._path}/{member.name}", digest)
        return storage


def unpack(path: str | os.PathLike[str], store: Store, label: str | None = None) -> Listed:
    """Put the case of an archive into a store, with all of its tensors."""
    archive = Archive.open(path)
    for digest, nbytes in _needed(archive.case).items():
        store.blobs.put(archive.blobs.get(digest, nbytes))
    return store.save_bytes(archive.data, archive.case, label)

"""A folder of tensors, in the format of torch's own content store: each side reads what the other one wrote.

    writer = ContentStoreWriter("intermediates")
    writer.write_tensor("eager/add_1", tensor)
    ContentStoreReader("intermediates").read_tensor("eager/add_1")

`storages/<hash>` has the bytes of a storage, once for all that are equal, `tensors/<name>` has the view of them that a
tensor is. Files appear whole or not at all, and a reader looks whether the bytes are those that were written. For a
hash nothing is compiled, and it is the same in every process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import IO, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchsleuth import torch_compat
from torchsleuth.case.disk import temporary_name
from torchsleuth.case.format.digests import PREFIX
from torchsleuth.case.storages.memory import address_to_read, digest_of, pieces
from torchsleuth.errors import BadValue, CannotHold, HashMismatch, StoreError, in_words

STORAGES: Final = "storages"
TENSORS: Final = "tensors"

_DIGITS: Final = 40
"""Of a hash: those of SHA-1."""
_WRITE_AGAIN: Final = "write it again, or get it again from where it came from"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Metadata = tuple[torch.dtype, str, int, tuple[int, ...], tuple[int, ...], dict[str, bool]]
"""Of a tensor: dtype, hash of the storage, offset, sizes, strides, and what is done when it is read."""


def hash_storage(storage: torch.UntypedStorage, *, stable_hash: bool = False) -> str:
    """40 hex digits for the bytes of a storage: of SHA-1 if `stable_hash`, otherwise of BLAKE3, which is faster."""
    _check_bytes(storage)
    if not stable_hash:
        return digest_of(storage).removeprefix(PREFIX)[:_DIGITS]
    sha1 = hashlib.sha1(usedforsecurity=False)
    for piece in pieces(storage):
        sha1.update(piece)
    return sha1.hexdigest()


class ContentStoreWriter:
    """Writes tensors to a folder. Any number of writers may do so at once."""

    def __init__(self, loc: str, stable_hash: bool = False) -> None:
        self.loc = loc
        self.stable_hash = stable_hash
        self.seen_storage_hashes: set[str] = set()

    def write_storage(self, storage: torch.UntypedStorage) -> str:
        """Write the bytes, if they are not there yet. Returns their hash."""
        digest = hash_storage(storage, stable_hash=self.stable_hash)
        if digest not in self.seen_storage_hashes:
            file = _place(self.loc, STORAGES, digest)
            if not _holds(file, storage.nbytes()):
                _write(storage, file)
            self.seen_storage_hashes.add(digest)
        return digest

    def compute_tensor_metadata(self, t: torch.Tensor, h: str | None = None) -> Metadata:
        """What `write_tensor` writes under the name of a tensor. `h`: the hash of its storage, if it is known."""
        _check_tensor(t)
        digest = hash_storage(t.untyped_storage(), stable_hash=self.stable_hash) if h is None else h
        return t.dtype, digest, int(t.storage_offset()), tuple(t.shape), t.stride(), torch_compat.tensor_flags(t)

    def write_tensor(self, name: str, t: torch.Tensor) -> None:
        """Write a tensor under a name, which may have folders in it."""
        file = _place(self.loc, TENSORS, name)
        _check_tensor(t)
        metadata = self.compute_tensor_metadata(t, self.write_storage(t.untyped_storage()))
        _write(metadata, file)


class ContentStoreReader:
    """Reads tensors. With a `cache`, those that shared memory when they were written share it again."""

    def __init__(self, loc: str, *, cache: bool = True) -> None:
        self.loc = loc
        self.storage_cache: dict[torch.device | None, dict[str, StorageWeakRef]] | None = None
        if cache:
            self.storage_cache = defaultdict(dict)

    def read_storage(self, h: str, *, device: Any = None) -> torch.UntypedStorage:
        """The bytes of a hash, on the device that they were written from, or on another one."""
        device = None if device is None else torch.device(device)
        cache = {} if self.storage_cache is None else self.storage_cache[device]
        found = torch_compat.storage_again(cache[h]) if h in cache else None
        if found is None:
            file = _place(self.loc, STORAGES, h)
            found = _untyped(_read(file, device), file)
            _check_hash(found, h, file)
            cache[h] = StorageWeakRef(found)
        return found

    def read_tensor_metadata(self, name: str) -> Metadata:
        """What is known of a tensor, without its bytes."""
        file = _place(self.loc, TENSORS, name)
        match _read(file):
            case (torch.dtype() as dtype, str(digest), int(offset), tuple(size), tuple(stride), dict(flags)):
                if all(isinstance(number, int) for number in (*size, *stride)):
                    return dtype, digest, offset, size, stride, flags
        raise _damaged(file, "what it holds does not describe a tensor")

    def read_tensor(self, name: str, *, device: Any = None) -> torch.Tensor:
        """The tensor of a name."""
        dtype, digest, offset, size, stride, flags = self.read_tensor_metadata(name)
        storage = self.read_storage(digest, device=device)
        file = _place(self.loc, TENSORS, name)
        if not _fits(storage.nbytes() // dtype.itemsize, offset, size, stride):
            raise _damaged(file, f"it reaches out of its storage, which has {storage.nbytes():,} bytes")
        with _told("read", file), torch_compat.plain_torch():
            found = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)
            torch_compat.set_tensor_flags(found, flags)
        if found.is_quantized:
            raise _damaged(file, "it is quantised, and its scale was not written")
        return found


# ---- what can be written ---------------------------------------------------------------------------------


def _check_tensor(t: torch.Tensor) -> None:
    plain = type(t) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not torch_compat.is_wrapper(t)
    if not plain or t.layout != torch.strided or t.is_quantized or t.is_nested:
        kind = "quantised Tensor" if t.is_quantized else "nested Tensor" if t.is_nested else type(t).__qualname__
        raise CannotHold(
            f"a {kind} with the layout {t.layout} has no place in a content store",
            cause="only a plain, dense tensor is a view of one storage, and nothing else",
            remedy="write the tensors that it is made of, or a dense copy",
        )


def _check_bytes(storage: torch.UntypedStorage) -> None:
    """Memory that is not there cannot be hashed: of meta tensors, of fakes, of what wraps other tensors."""
    there = storage.device.type != "meta"
    if there and storage.device.type == "cpu" and storage.nbytes():
        there = address_to_read(storage) != 0
    if not there:
        raise CannotHold(
            f"a storage of {storage.nbytes():,} bytes on {storage.device} has no bytes to hash or to write",
            cause="it belongs to a meta tensor, a fake one, or to one that is a wrapper around others",
            remedy="write tensors with values, such as those of a run on real inputs",
        )


# ---- files -----------------------------------------------------------------------------------------------


def _place(loc: str, folder: str, name: str) -> Path:
    """The file of a name. One that leads out of the folder is refused."""
    parts = PurePath(name)
    leaves = parts.is_absolute() or parts.drive or ".." in parts.parts
    if leaves or not parts.parts or "\0" in name or name.endswith(("/", os.sep)):
        raise BadValue(
            f"{name!r} is no name of a file in {os.path.join(loc, folder)}",
            cause="it is empty, is a folder, or leads out of there",
            remedy="use a name such as 'buf0' or 'eager/add_1'",
        )
    return Path(loc, folder, name)


def _write(value: Any, file: Path) -> None:
    """Write a file: under a temporary name, which it gets rid of when it is complete."""
    temporary = file.parent / temporary_name()
    with _told("written", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as opened, torch_compat.plain_torch():
                _Sink(opened).save(value)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


class _Sink:
    """A file that keeps what the system said: when writing fails, torch speaks of an unexpected position."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def save(self, value: Any) -> None:
        try:
            torch.save(value, self)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise self.error or error from None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _read(file: Path, device: torch.device | None = None) -> Any:
    """What torch.save wrote; no code is run for it. A file that is not there is a FileNotFoundError."""
    with _told("read", file), torch_compat.plain_torch():
        return torch.load(file, weights_only=True, map_location=device)


@contextlib.contextmanager
def _told(done: str, file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in _NO_ROOM
        remedy = "make room on the disk, or use another folder" if full else "see to the folder, or use another one"
        raise StoreError(
            f"it cannot be {done}",
            cause=in_words(error),
            remedy=remedy if done == "written" else _WRITE_AGAIN,
            file=str(file),
        ) from error


def _damaged(file: Path, cause: str) -> StoreError:
    return StoreError("it cannot be read", cause=cause, remedy=_WRITE_AGAIN, file=str(file))


def _holds(file: Path, nbytes: int) -> bool:
    """Whether a file is there, is complete, and has that many bytes of data. One that was cut off has no directory."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(one.filename.endswith("/data/0") and one.file_size == nbytes for one in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return False


def _untyped(value: Any, file: Path) -> torch.UntypedStorage:
    if isinstance(value, torch.UntypedStorage):
        return value
    if not isinstance(value, torch.TypedStorage):
        raise _damaged(file, f"it holds a {type(value).__qualname__}, not a storage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # typed storages are deprecated; torch.load gives one
        found: torch.UntypedStorage = value.untyped()
    return found


def _check_hash(storage: torch.UntypedStorage, digest: str, file: Path) -> None:
    """Whether the bytes are those that were written.

    Torch's own hash, unless it is stable, is that of one process and cannot be computed again: then the checksum in the
    file decides.
    """
    if storage.device.type == "meta" or any(digest == hash_storage(storage, stable_hash=one) for one in (False, True)):
        return
    with _told("read", file), zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise HashMismatch(
            "its bytes are not the ones that were written",
            cause=f"the checksum of {damaged} is another one",
            remedy=_WRITE_AGAIN,
            file=str(file),
        )


def _fits(numel: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether a view stays within so many elements. (Torch would make a storage larger that is too short.)"""
    if len(size) != len(stride) or min((offset, *size, *stride)) < 0:
        return False
    if 0 in size:
        return True
    return offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) <= numel

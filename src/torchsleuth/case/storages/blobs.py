"""Where the bytes under tensors are kept: one storage, one file, named by the digest of what is in it.

    put(storage) -> digest             writes what is not there yet, straight from the storage's memory
    get(digest, nbytes) -> storage     reads it back; bytes that are not those of the digest are an error

`FolderBlobs` keeps them in a local folder, `FileSystemBlobs` wherever fsspec reaches, `MemoryBlobs` nowhere (for
tests). `blob_format` knows what the files look like.

A file gets its name when it is complete and on the disk, and is never changed after. Therefore a large one need not
be read into memory: it is mapped, privately, and writing to the storage does not reach the file. And a large one that
was written or hashed here, and not touched since, is not hashed again: see `seals`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import torch

from torchsleuth import torch_compat
from torchsleuth.case.format import seals
from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.format.tensor_files import LONGEST_HEADER, START, SUFFIX, file_name, find_data, head
from torchsleuth.case.storages.memory import CHUNK, allocate, digest_of, memory, pieces
from torchsleuth.errors import BadCase, HashMismatch, MissingTensor, StoreError, in_words

if TYPE_CHECKING:
    import fsspec  # type: ignore[import-untyped]

__all__ = ["TEMPORARY", "Blobs", "FileSystemBlobs", "FolderBlobs", "MemoryBlobs", "allocate", "digest_of", "memory"]

TEMPORARY: Final = ".tmp"
"""How the names of files end that are being written. One that stays behind was abandoned."""

_LARGE: Final = 2**20
"""Bytes from which a file is mapped, and sealed. Smaller ones are read and hashed: it takes no time, and there may be
more of them than a process may map."""


class Blobs(Protocol):
    """A place for the bytes of storages."""

    def put(self, storage: torch.UntypedStorage) -> str:
        """Keep the bytes of a storage; returns their digest. Those that are there already are not written again."""
        ...

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        """A storage of its own with the bytes of that digest, on the CPU."""
        ...


def _check(storage: torch.UntypedStorage, digest: str, file: str) -> torch.UntypedStorage:
    found = digest_of(storage)
    if found != digest:
        raise HashMismatch(
            "its bytes are not the ones that were written",
            cause=f"they have the digest {found}",
            remedy="take the file from where the case was written",
            file=file,
        )
    return storage


def _missing(file: str, error: BaseException | None = None) -> MissingTensor:
    return MissingTensor(
        "the bytes of a tensor are not there",
        cause=in_words(error) if error else "the store has no such file",
        remedy="take the file from where the case was written; `sleuth pack` sends a case along with its tensors",
        file=file,
    )


def _check_unchanged(storage: torch.UntypedStorage, digest: str, file: str) -> None:
    """Otherwise a file would lie under a name that is not its own, and keep the right one from being written."""
    if digest_of(storage) != digest:
        raise StoreError(
            "a tensor changed while it was written",
            cause="another thread or device wrote to its memory",
            remedy="write the case where nothing else works on its tensors",
            file=file,
        )


# ---- a local folder --------------------------------------------------------------------------------------


class FolderBlobs:
    """Blobs in a local folder, which is made when the first one comes.

    `mapped=False` reads large files into memory of their own instead of mapping them. That takes longer; the storages
    can then be resized, which a graph might do.
    """

    def __init__(self, folder: Path, *, mapped: bool = True) -> None:
        self.folder = folder
        self._mapped = mapped

    def path(self, digest: str) -> Path:
        return self.folder / file_name(digest)

    def put(self, storage: torch.UntypedStorage) -> str:
        digest = digest_of(storage)
        path = self.path(digest)
        try:
            if not self._is_there(path, storage.nbytes()):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._write(path, storage, digest)
        except OSError as error:
            raise _cannot("write", path, error) from error
        return digest

    def _is_there(self, path: Path, nbytes: int) -> bool:
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == START + nbytes

    def _write(self, path: Path, storage: torch.UntypedStorage, digest: str) -> None:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            try:
                _write_all(fd, memoryview(head(storage.nbytes())))
                at = START
                for piece in pieces(storage):
                    _write_all(fd, piece)
                    _begin_to_flush(fd, at, len(piece))
                    at += len(piece)
                _flush(fd, meanwhile=lambda: _check_unchanged(storage, digest, str(path)))
                if storage.nbytes() >= _LARGE:
                    seals.seal(fd, digest)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(self.folder)

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        path = self.path(digest)
        try:
            with open(path, "rb", buffering=0, opener=_open_at_once) as file:
                return self._checked(file, digest, nbytes, path)
        except FileNotFoundError as error:
            raise _missing(str(path), error) from error
        except OSError as error:
            raise _cannot("read", path, error) from error

    def _checked(self, file: Any, digest: str, nbytes: int, path: Path) -> torch.UntypedStorage:
        before = os.fstat(file.fileno())
        storage = self._read(file, before, nbytes, path)
        large = nbytes >= _LARGE
        if large and seals.is_sealed(before, digest):
            return storage
        _begin_to_read(file.fileno())
        _check(storage, digest, str(path))
        if large and os.fstat(file.fileno()).st_mtime_ns == before.st_mtime_ns:
            seals.seal(file.fileno(), digest)
        return storage

    def _read(self, file: Any, found: os.stat_result, nbytes: int, path: Path) -> torch.UntypedStorage:
        if not stat.S_ISREG(found.st_mode):
            raise BadCase(
                "this is not a file",
                cause="something else has the name of a tensor's bytes",
                remedy="take the file from where the case was written",
                file=str(path),
            )
        start = find_data(file.read(8 + LONGEST_HEADER), found.st_size, nbytes, str(path))
        if self._mapped and nbytes >= _LARGE and start % 64 == 0:
            with contextlib.suppress(OSError, ValueError):  # some file systems cannot; then it is read
                return _mapped(file.fileno(), start, nbytes)
        file.seek(start)
        return _read_into(allocate(nbytes), file, str(path))


def _mapped(fd: int, start: int, nbytes: int) -> torch.UntypedStorage:
    whole = mmap.mmap(fd, start + nbytes, access=mmap.ACCESS_COPY)
    with torch_compat.plain_torch():
        return torch.frombuffer(whole, dtype=torch.uint8, count=nbytes, offset=start).untyped_storage()


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe of that name must not hold us up."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _begin_to_read(fd: int) -> None:
    """All of a file is about to be looked at: the disk may begin."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)


def _begin_to_flush(fd: int, begin: int, length: int) -> None:
    """Let the disk begin with what was written, so that there is less to wait for in the end.

    The advice is that these pages are not needed in memory. They stay there while they are not on the disk; and being
    put on the disk is what begins.
    """
    if length == CHUNK and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, begin, length, os.POSIX_FADV_DONTNEED)


def _flush(fd: int, meanwhile: Callable[[], None]) -> None:
    """Wait until a file is on the disk, and do something meanwhile."""
    if os.fstat(fd).st_size < 2 * CHUNK:
        os.fsync(fd)
        meanwhile()
        return
    with ThreadPoolExecutor(1) as waiting:
        flushed = waiting.submit(os.fsync, fd)
        meanwhile()
        flushed.result()


def _read_into(storage: torch.UntypedStorage, file: BinaryIO, name: str) -> torch.UntypedStorage:
    rest = memory(storage)
    while rest:
        count = file.readinto(rest[:CHUNK])  # type: ignore[attr-defined]
        if not count:
            raise HashMismatch(
                "the file is cut off",
                cause=f"{len(rest):,} bytes are missing at its end",
                remedy="take the file from where the case was written",
                file=name,
            )
        rest = rest[count:]
    return storage


def _sync_folder(folder: Path) -> None:
    """Make sure that the names of new files are on the disk, too. Where folders cannot be opened, nobody can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _cannot(do: str, path: object, error: OSError) -> StoreError:
    remedies = {
        errno.ENOSPC: "make room on the disk, or keep cases elsewhere",
        errno.EDQUOT: "make room on the disk, or keep cases elsewhere",
        errno.EROFS: "keep cases in a folder that can be written to",
        errno.EACCES: "see who may use the folder, or keep cases elsewhere",
        errno.EPERM: "see who may use the folder, or keep cases elsewhere",
    }
    return StoreError(
        f"cannot {do} the bytes of a tensor",
        cause=in_words(error),
        remedy=remedies.get(error.errno or 0, "see to the disk, or keep cases elsewhere"),
        file=str(path),
    )


# ---- anywhere else ---------------------------------------------------------------------------------------


class FileSystemBlobs:
    """Blobs on any file system that fsspec knows: object stores, archives, other machines."""

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        self.fs = fs
        self.root = root.rstrip("/")

    def path(self, digest: str) -> str:
        return f"{self.root}/{file_name(digest)}" if self.root else file_name(digest)

    def put(self, storage: torch.UntypedStorage) -> str:
        digest = digest_of(storage)
        path = self.path(digest)
        try:
            if self._length(path) != START + storage.nbytes():
                self._write(path, storage, digest)
        except Exception as error:
            raise self._failed("write", path, error) from error
        return digest

    def _length(self, path: str) -> int | None:
        try:
            found = self.fs.info(path)
        except FileNotFoundError:
            return None
        return int(found["size"]) if found.get("type") == "file" and found.get("size") is not None else None

    def _write(self, path: str, storage: torch.UntypedStorage, digest: str) -> None:
        temporary = f"{path}.{secrets.token_hex(8)}{TEMPORARY}"
        self.fs.makedirs(self.root, exist_ok=True)
        try:
            with self.fs.open(temporary, "wb") as file:
                file.write(head(storage.nbytes()))
                for piece in pieces(storage):
                    file.write(piece)
            _check_unchanged(storage, digest, path)
            self.fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self.fs.rm_file(temporary)
            raise

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        path = self.path(digest)
        try:
            length = self._length(path)
            if length is None:
                raise _missing(path)
            with self.fs.open(path, "rb") as file:
                beginning = file.read(8 + LONGEST_HEADER)
                start = find_data(beginning, length, nbytes, path)
                file.seek(start)
                storage = _read_into(allocate(nbytes), file, path)
        except FileNotFoundError as error:
            raise _missing(path, error) from error
        except Exception as error:
            raise self._failed("read", path, error) from error
        return _check(storage, digest, path)

    def _failed(self, do: str, path: str, error: Exception) -> Exception:
        """File systems raise what they like. It is theirs to say and ours to name the file."""
        ours = (StoreError, BadCase, HashMismatch, MissingTensor)
        if isinstance(error, ours):
            return error
        return _cannot(do, path, error if isinstance(error, OSError) else OSError(in_words(error)))


class MemoryBlobs:
    """Blobs in memory, for tests and for cases that are not written anywhere."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, storage: torch.UntypedStorage) -> str:
        data = b"".join(pieces(storage))
        hasher = Hasher(len(data))
        hasher.update(data)
        return self._keep(hasher.digest(), data)

    def _keep(self, digest: str, data: bytes) -> str:
        self.kept.setdefault(digest, data)
        return digest

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        data = self.kept.get(file_name(digest).removesuffix(SUFFIX))
        if data is None:
            raise _missing(digest)
        if len(data) != nbytes:
            raise HashMismatch(
                f"the case has {nbytes:,} bytes there",
                cause=f"there are {len(data):,}",
                remedy="take the case from where it was written",
                file=digest,
            )
        storage = allocate(nbytes)
        memory(storage)[:] = data
        return _check(storage, digest, digest)

"""Where the bytes under tensors are kept: one storage, one file, named by the digest of what is in it.

    put(storage) -> digest             writes what is not there yet, straight from the storage's memory
    get(digest, nbytes) -> storage     reads it back; bytes that are not those of the digest are an error

`FolderBlobs` keeps them in a local folder, `FileSystemBlobs` wherever fsspec reaches, `MemoryBlobs` nowhere (for
tests). `tensor_files` knows what the files look like.

A file gets its name when it is complete, and is never changed after. Therefore a large one need not be read into
memory: it is mapped, privately, and writing to the storage does not reach the file. When a case that needs it is saved,
it is put on the disk, checked and sealed (`FolderBlobs.settle`); from then on a large one is not hashed again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import torch

from torchsleuth import torch_compat
from torchsleuth.case.disk import TEMPORARY, failed, sync_folder, temporary_name, told
from torchsleuth.case.format import seals
from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.format.tensor_files import LONGEST_HEADER, START, SUFFIX, file_name, find_data, head
from torchsleuth.case.storages.memory import CHUNK, allocate, digest_of, memory, pieces
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CaseError, HashMismatch, MissingTensor, StoreError, in_words

if TYPE_CHECKING:
    import fsspec  # type: ignore[import-untyped]

__all__ = ["Blobs", "FileSystemBlobs", "FolderBlobs", "MemoryBlobs", "allocate", "digest_of", "memory"]

_LARGE: Final = 2**20
"""Bytes from which a file is mapped, and its seal believed. Smaller ones are read and hashed: it takes no time, and
there may be more of them than a process may map."""

_BEGINNING: Final = 4096
"""How many bytes tell whether two storages of one length might be equal."""


class Blobs(Protocol):
    """A place for the bytes of storages."""

    def put(self, storage: torch.UntypedStorage) -> str:
        """Keep the bytes of a storage; returns their digest. Those that are there already are not written again."""
        ...

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        """A storage of its own with the bytes of that digest, on the CPU."""
        ...


def _check(storage: torch.UntypedStorage, digest: str, file: str) -> torch.UntypedStorage:
    _compare(digest_of(storage), digest, file)
    return storage


def _compare(found: str, digest: str, file: str) -> None:
    if found != digest:
        raise HashMismatch(
            "its bytes are not the ones that were written",
            cause=f"they have the digest {found}",
            remedy=GET_IT_AGAIN,
            file=file,
        )


def _missing(file: str, error: BaseException | None = None) -> MissingTensor:
    return MissingTensor(
        "the bytes of a tensor are not there",
        cause=in_words(error) if error else "the store has no such file",
        remedy="take the file from where the case was written; `sleuth pack` sends a case along with its tensors",
        file=file,
    )


def _changed(file: str) -> StoreError:
    return StoreError(
        "a tensor changed while it was written",
        cause="another thread or device wrote to its memory, or something wrote to the file",
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

    # ---- writing -------------------------------------------------------------------------------------------

    def put(self, storage: torch.UntypedStorage) -> str:
        """Large storages are hashed while they are written, and only those that may be there already before that."""
        nbytes = storage.nbytes()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if nbytes <= CHUNK or self._has_alike(storage):
                digest = digest_of(storage)
                if self._is_there(digest, nbytes):
                    return digest
            return self._write(storage)
        except OSError as error:
            raise failed("write the bytes of a tensor", self.folder, error) from error

    def _has_alike(self, storage: torch.UntypedStorage) -> bool:
        """Whether a file here has the length and the beginning that this storage would have as a file."""
        beginning = head(storage.nbytes()) + bytes(next(pieces(storage))[:_BEGINNING])
        with os.scandir(self.folder) as entries:
            return any(_begins(entry, beginning, START + storage.nbytes()) for entry in entries)

    def _is_there(self, digest: str, nbytes: int) -> bool:
        """Whether the file is there and whole. One that is not is written anew."""
        try:
            with self._opened(digest, "read") as file:
                if not seals.is_sealed(os.fstat(file.fileno()), digest):
                    _check_file(file, digest, nbytes, str(self.path(digest)))
        except CaseError:
            return False
        return True

    def _write(self, storage: torch.UntypedStorage) -> str:
        temporary = self.folder / temporary_name()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            try:
                _write_all(fd, memoryview(head(storage.nbytes())))
                digest = _write_and_hash(fd, storage)
            finally:
                os.close(fd)
            os.replace(temporary, self.path(digest))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return digest

    def settle(self, tensors: Iterable[tuple[str, int]]) -> None:
        """Make sure that these (digest, nbytes) are on the disk and whole, and seal them."""
        for digest, nbytes in tensors:
            with self._opened(digest, "write") as file:
                before = os.fstat(file.fileno())
                if not seals.is_sealed(before, digest):
                    path = str(self.path(digest))
                    try:
                        with _flushing(file.fileno(), nbytes):
                            _check_file(file, digest, nbytes, path)
                    except HashMismatch as error:
                        raise _changed(path) from error
                    _seal(file.fileno(), before, digest)
        sync_folder(self.folder)

    # ---- reading -------------------------------------------------------------------------------------------

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        path = str(self.path(digest))
        with self._opened(digest, "read") as file:
            before = os.fstat(file.fileno())
            storage = self._read(file, nbytes, path)
            if nbytes < _LARGE:
                return _check(storage, digest, path)
            if not seals.is_sealed(before, digest):
                _begin_to_read(file.fileno())
                _check(storage, digest, path)
                with contextlib.suppress(OSError):  # then it is hashed again the next time
                    os.fsync(file.fileno())
                    _seal(file.fileno(), before, digest)
            return storage

    @contextlib.contextmanager
    def _opened(self, digest: str, do: str) -> Iterator[Any]:
        path = self.path(digest)
        try:
            with told(f"{do} the bytes of a tensor", path), open(path, "rb", 0, opener=_open_at_once) as file:
                yield file
        except FileNotFoundError as error:
            raise _missing(str(path), error) from error

    def _read(self, file: Any, nbytes: int, path: str) -> torch.UntypedStorage:
        start = _find_data(file, nbytes, path)
        if self._mapped and nbytes >= _LARGE and start % 64 == 0:
            with contextlib.suppress(OSError, ValueError):  # some file systems cannot; then it is read
                return _mapped(file.fileno(), start, nbytes)
        return _read_into(allocate(nbytes), file, path)


def _find_data(file: Any, nbytes: int, path: str) -> int:
    """Go to where the bytes begin in an open file, if it is one that holds so many."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise BadCase(
            "this is not a file",
            cause="something else has the name of a tensor's bytes",
            remedy=GET_IT_AGAIN,
            file=path,
        )
    start = find_data(file.read(8 + LONGEST_HEADER), found.st_size, nbytes, path)
    file.seek(start)
    return start


def _check_file(file: Any, digest: str, nbytes: int, path: str) -> None:
    """Hash the bytes in an open file, a few megabytes at a time."""
    _find_data(file, nbytes, path)
    hasher = Hasher(nbytes)
    buffer = memoryview(bytearray(min(nbytes, CHUNK)))
    while count := file.readinto(buffer):
        hasher.update(buffer[:count])
    _compare(hasher.digest(), digest, path)


def _begins(entry: os.DirEntry[str], beginning: bytes, length: int) -> bool:
    with contextlib.suppress(OSError):  # it may be gone by now
        if entry.is_file() and entry.stat().st_size == length:
            with open(entry.path, "rb", 0) as file:
                return file.read(len(beginning)) == beginning
    return False


def _write_and_hash(fd: int, storage: torch.UntypedStorage) -> str:
    """Write the bytes of a storage; meanwhile a second thread hashes them, if there are many."""
    hasher = Hasher()
    with _second_thread(storage.nbytes() > CHUNK) as beside:
        for piece in pieces(storage):
            hashed = _begin(beside, hasher.update, piece)
            _write_all(fd, piece)
            hashed.result()
    return hasher.digest()


@contextlib.contextmanager
def _flushing(fd: int, nbytes: int) -> Iterator[None]:
    """Put a file on the disk, a large one while something else is done."""
    with _second_thread(nbytes > CHUNK) as beside:
        flushed = _begin(beside, os.fsync, fd)
        yield
        flushed.result()


@contextlib.contextmanager
def _second_thread(wanted: bool) -> Iterator[ThreadPoolExecutor | None]:
    """A thread to work beside this one. None if it is not wanted, or none can be had: the interpreter goes down."""
    with ThreadPoolExecutor(1) as pool:
        started = False
        if wanted:
            with contextlib.suppress(RuntimeError):
                pool.submit(int).result()
                started = True
        yield pool if started else None


def _begin(beside: ThreadPoolExecutor | None, call: Callable[..., object], *args: object) -> Future[object]:
    """Do something in the second thread; without one, at once."""
    if beside is not None:
        return beside.submit(call, *args)
    done: Future[object] = Future()
    done.set_result(call(*args))
    return done


def _seal(fd: int, before: os.stat_result, digest: str) -> None:
    """Seal a file that was flushed and hashed, unless somebody wrote to it meanwhile."""
    if os.fstat(fd).st_mtime_ns == before.st_mtime_ns:
        seals.seal(fd, digest)


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


def _read_into(storage: torch.UntypedStorage, file: BinaryIO, name: str) -> torch.UntypedStorage:
    rest = memory(storage)
    while rest:
        count = file.readinto(rest[:CHUNK])  # type: ignore[attr-defined]
        if not count:
            raise HashMismatch(
                "the file is cut off",
                cause=f"{len(rest):,} bytes are missing at its end",
                remedy=GET_IT_AGAIN,
                file=name,
            )
        rest = rest[count:]
    return storage


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
            if digest_of(storage) != digest:  # its file would lie under a name that is not its own
                raise _changed(path)
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
        return failed(f"{do} the bytes of a tensor", path, error)


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
                remedy=GET_IT_AGAIN,
                file=digest,
            )
        storage = allocate(nbytes)
        memory(storage)[:] = data
        return _check(storage, digest, digest)

"""Where a store keeps its files: a local folder, or anything that fsspec reaches. Names are relative, with slashes.

    open_files(".sleuth")            -> LocalFiles: temporary name, fsync, rename; a lock between processes
    open_files("memory://cases")     -> RemoteFiles: what the file system gives; `case.json` is always written last

Both say the same things in the same words: a file that is not there is a `FileNotFoundError`, whatever else goes
wrong is a `StoreError` that names the file. A name that begins with a dot is being written, or was abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from torchsleuth.case.disk import sync_folder, temporary_name, told
from torchsleuth.case.format import seals
from torchsleuth.case.stores.locking import locked
from torchsleuth.errors import GET_IT_AGAIN, BadCase, StoreError, in_words

LOCK: Final = ".lock"
CASE_FILE: Final = "case.json"

_THERE_ALREADY: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EACCES, errno.EPERM})


class Files(Protocol):
    """The files of a store."""

    root: str

    def path(self, name: str) -> str:
        """The whole name of a file, for people."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """All of a file. A `BadCase` if that is more than `limit` bytes."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A file to read from."""
        ...

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in order. Nothing, if there is no such folder."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes a file has; None if there is no such file."""
        ...

    def modified(self, name: str) -> float | None:
        """When a file or folder was last written, in seconds of `now`; None if that cannot be known."""
        ...

    def now(self) -> float:
        """The time, by the clock that dates the files."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file. It is there with all of its bytes, or as it was before."""
        ...

    def add_folder(self, folder: str, files: Mapping[str, bytes]) -> bool:
        """Make a folder with these files. It is there with all of them or not at all; False if it was there before."""
        ...

    def remove(self, name: str, *, unless_after: float | None = None) -> bool:
        """Remove a file or folder, unless it was written after that moment; whether it was removed."""
        ...

    def lock(self, *, alone: bool) -> AbstractContextManager[None]:
        """Hold the store, together with others or alone."""
        ...


def too_large(path: object, size: int, limit: int) -> BadCase:
    return BadCase(
        f"the file has {size:,} bytes",
        cause=f"such a file has at most {limit:,}",
        remedy=GET_IT_AGAIN,
        file=str(path),
    )


# ---- a local folder --------------------------------------------------------------------------------------


def open_local(path: Path) -> BinaryIO:
    """A regular file to read from. Anything else (a pipe would hold us up) is a `StoreError`."""
    with told("read it", path):
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return open(fd, "rb")
        os.close(fd)
    raise StoreError(
        "this is not a file",
        cause="it is a folder, a pipe or a device",
        remedy="give the name of a file",
        file=str(path),
    )


def read_local(path: Path, limit: int) -> bytes:
    """All of a local file, if it is no larger than the limit."""
    with told("read it", path), open_local(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise too_large(path, size, limit)
        return file.read(size)


def write_local(path: Path, data: bytes) -> None:
    """Write a file so that its name never stands for half of it, not even after a power cut."""
    temporary = path.with_name(temporary_name())
    try:
        _write(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class LocalFiles:
    """The files of a store in a local folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str, limit: int) -> bytes:
        return read_local(self.folder / name, limit)

    def open(self, name: str) -> BinaryIO:
        return open_local(self.folder / name)

    def names(self, folder: str) -> list[str]:
        path = self.folder / folder
        try:
            with told("list the folder", path):
                return sorted(os.listdir(path)) if path.is_dir() else []
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int | None:
        found = self._stat(name)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def modified(self, name: str) -> float | None:
        found = self._stat(name)
        return None if found is None else found.st_mtime

    def _stat(self, name: str) -> os.stat_result | None:
        path = self.folder / name
        try:
            with told("look at it", path):
                return path.stat() if path.exists() else None
        except FileNotFoundError:
            return None

    def now(self) -> float:
        """By the clock of the file system, which on a network is another machine's."""
        path = self.folder / temporary_name()
        with told("write it", path):
            path.touch()
            try:
                return path.stat().st_mtime
            finally:
                path.unlink()

    def touch(self, name: str, digest: str) -> None:
        """Make a tensor's file look as if it were written now. `FileNotFoundError` if it is not there."""
        with told("write it", self.folder / name):
            seals.touch(self.folder / name, digest)

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with told("write it", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_local(path, data)

    def add_folder(self, folder: str, files: Mapping[str, bytes]) -> bool:
        path = self.folder / folder
        with told("write it", path):
            new = path.parent / temporary_name()
            first = not path.parent.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            new.mkdir()
            try:
                for name, data in files.items():
                    _write(new / name, data)
                sync_folder(new)
                os.rename(new, path)
            except OSError as error:
                if error.errno in _THERE_ALREADY and os.path.lexists(path):
                    return False
                raise
            finally:
                shutil.rmtree(new, ignore_errors=True)
            sync_folder(path.parent)
            if first:
                sync_folder(self.folder)
        return True

    def remove(self, name: str, *, unless_after: float | None = None) -> bool:
        """Two steps: away from its name, then away. Whoever still needs it finds it there, or finds it gone."""
        path = self.folder / name
        aside = path.with_name(temporary_name())
        try:
            with told("remove it", path):
                if unless_after is not None and path.stat().st_mtime > unless_after:
                    return False
                os.rename(path, aside)
                if unless_after is not None and aside.stat().st_mtime > unless_after:
                    os.rename(aside, path)  # somebody touched it in between
                    return False
                if stat.S_ISDIR(os.lstat(aside).st_mode):
                    shutil.rmtree(aside)
                else:
                    aside.unlink()
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def lock(self, *, alone: bool) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with told("use the store", self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.folder / LOCK, alone=alone))
            yield


# ---- either ----------------------------------------------------------------------------------------------


def open_files(where: str | os.PathLike[str]) -> Files:
    """The files at a folder or URL. Nothing is made or changed there."""
    text = os.fspath(where)
    if "\0" in text or not text.strip():
        raise _no_store(repr(text), "it is no name of a folder")
    if "://" not in text and "::" not in text:
        return LocalFiles(Path(os.path.abspath(os.path.expanduser(text))))
    import fsspec  # type: ignore[import-untyped]

    from torchsleuth.case.stores.remote_files import RemoteFiles

    try:
        fs, root = fsspec.url_to_fs(text)
    except (ValueError, ImportError, OSError, TypeError) as error:
        raise _no_store(text, in_words(error)) from error
    if "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
        return LocalFiles(Path(root))
    return RemoteFiles(fs, root)


def _no_store(where: str, cause: str) -> StoreError:
    return StoreError(
        f"{where} cannot be a store",
        cause=cause,
        remedy="give a folder, or a URL that fsspec knows (memory://cases; s3://bucket/cases with s3fs installed)",
    )

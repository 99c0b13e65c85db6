"""The files of a store on any file system that fsspec knows. `files` has what all kinds of stores have in common."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, cast

from torchsleuth.case.disk import told
from torchsleuth.case.stores.files import too_large
from torchsleuth.errors import StoreError

if TYPE_CHECKING:
    import fsspec  # type: ignore[import-untyped]


class RemoteFiles:
    """The files of a store on any file system of fsspec. Nothing there can be counted on to be atomic, or locked."""

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        self.fs = fs
        self._base = root.rstrip("/")
        self.root = fs.unstrip_protocol(self._base)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def at(self, name: str) -> str:
        """The name that the file system knows a file by."""
        return f"{self._base}/{name}"

    def read(self, name: str, limit: int) -> bytes:
        with told("read it", self.path(name), Exception):
            size = int(self.fs.info(self.at(name))["size"])
            if size > limit:
                raise too_large(self.path(name), size, limit)
            with self.open(name) as file:
                return file.read(size)

    def open(self, name: str) -> BinaryIO:
        with told("read it", self.path(name), Exception):
            return cast("BinaryIO", self.fs.open(self.at(name), "rb"))

    def names(self, folder: str) -> list[str]:
        try:
            with told("list the folder", self.path(folder), Exception):
                self.fs.invalidate_cache()
                return sorted(each.rstrip("/").rsplit("/", 1)[-1] for each in self.fs.ls(self.at(folder), detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int | None:
        try:
            with told("look at it", self.path(name), Exception):
                found = self.fs.info(self.at(name))
        except FileNotFoundError:
            return None
        return int(found["size"]) if found.get("type") == "file" else None

    def modified(self, name: str) -> float | None:
        try:
            with told("look at it", self.path(name), Exception):
                return float(self.fs.modified(self.at(name)).timestamp())
        except (FileNotFoundError, NotImplementedError, StoreError):
            return None

    def now(self) -> float:
        return time.time()

    def put(self, name: str, data: bytes) -> None:
        path = self.at(name)
        folder = path.rsplit("/", 1)[0]
        with told("write it", self.path(name), Exception):
            self.fs.makedirs(folder, exist_ok=True)
            self.fs.pipe_file(path, data)

    def add_folder(self, folder: str, files: Mapping[str, bytes]) -> bool:
        if self.names(folder):
            return False
        for name, data in files.items():
            self.put(f"{folder}/{name}", data)
        return True

    def remove(self, name: str, *, unless_after: float | None = None) -> bool:
        when = self.modified(name)
        if unless_after is not None and (when is None or when > unless_after):
            return False
        try:
            with told("remove it", self.path(name), Exception):
                self.fs.rm(self.at(name), recursive=self.fs.isdir(self.at(name)))
        except FileNotFoundError:
            return False
        return True

    def lock(self, *, alone: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

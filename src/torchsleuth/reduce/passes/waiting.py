"""Patches that make new values: bytes are written only for what turned out to be legal."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.storages.blobs import Blobs, MemoryBlobs
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.graphs import pruned
from torchsleuth.reduce.patches import Material, Patch


class Waiting:
    """Blobs over others: what is put here is not there before it is settled."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._new = MemoryBlobs()

    def put(self, storage: torch.UntypedStorage) -> str:
        return self._new.put(storage)

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        return (self._new if digest in self._new.kept else self._blobs).get(digest, nbytes)

    def settle(self, case: Case) -> None:
        """Write what the case needs."""
        for storage in case.storages:
            content = storage.content
            if isinstance(content, Stored) and content.digest in self._new.kept:
                self._blobs.put(self._new.get(content.digest, storage.nbytes))


def patch(words: str, material: Material, edit: Callable[[Case, Blobs], Case | None]) -> Patch:
    """A patch that may put bytes. What of the case cannot be read is nothing that it could change."""

    def apply(case: Case) -> Case | None:
        blobs = Waiting(material.blobs)
        try:
            made = edit(case, blobs)
        except SleuthError:
            return None
        if made is None:
            return None
        made = pruned(made)
        blobs.settle(made)
        return made

    return Patch(words, apply)

"""Tensors of a graph that may become a case: they go to a store only if it does.

A graph is recorded before it is compiled, and most graphs never fail. Until one does, small constants are copied and
large ones referred to; what has changed since by the time that it fails is noticed by its digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from torchsleuth.case.storages.memory import digest_of
from torchsleuth.errors import MissingTensor
from torchsleuth.locks import ForkableLock

if TYPE_CHECKING:
    import torch

    from torchsleuth.case.storages.blobs import Blobs

_SMALL: Final = 2**20


class HeldBlobs:
    """Blobs that hold storages in memory; inside of `written_to`, blobs that write them to others."""

    def __init__(self) -> None:
        self._held: dict[str, torch.UntypedStorage] = {}
        self._target: Blobs | None = None
        self._writing = ForkableLock()

    @property
    def nbytes(self) -> int:
        """How much is held."""
        return sum(storage.nbytes() for storage in self._held.values())

    def put(self, storage: torch.UntypedStorage) -> str:
        if self._target is not None:
            return self._target.put(storage)
        digest = digest_of(storage)
        small = storage.nbytes() <= _SMALL and storage.device.type == "cpu"
        self._held.setdefault(digest, storage.clone() if small else storage)
        return digest

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        if self._target is not None:
            return self._target.get(digest, nbytes)
        return self._held[digest]

    @contextmanager
    def written_to(self, target: Blobs) -> Iterator[None]:
        """Everything that is held is written to `target`, and so is whatever is put inside. One thread at a time."""
        with self._writing:
            for digest, storage in self._held.items():
                if target.put(storage) != digest:
                    raise MissingTensor(
                        "a constant of the graph is not what it was when the graph was compiled",
                        cause="the program has written to it since, and it was too large to be copied",
                        remedy="watch it with level always, which keeps the graph before it runs",
                    )
            self._target = target
            try:
                yield
            finally:
                self._target = None

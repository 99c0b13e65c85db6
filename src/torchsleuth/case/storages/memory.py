"""The memory of storages: reading it a few megabytes at a time, hashing it, making new memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Final

import torch

from torchsleuth import torch_compat
from torchsleuth.case.format.digests import Hasher
from torchsleuth.errors import StoreError, in_words

CHUNK: Final = 4 * 2**20


def memory(storage: torch.UntypedStorage) -> memoryview:
    """The memory of a storage on the CPU itself, not a copy. Good for as long as the storage is."""
    return _memory_at(storage.data_ptr(), storage.nbytes())


def _memory_at(address: int, nbytes: int) -> memoryview:
    if nbytes == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


def address_to_read(storage: torch.UntypedStorage) -> int:
    """Where the bytes of a storage are. Unlike its `data_ptr`, it may not be written to: so what is copied only when
    it is written to (copy-on-write) is not copied."""
    with torch_compat.plain_torch():
        there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        address: int = there.const_data_ptr()  # type: ignore[attr-defined]
    return address


def pieces(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    """The bytes of a storage on any device, a few megabytes at a time. They are not to be changed."""
    if storage.device.type == "cpu":
        whole = _memory_at(address_to_read(storage), storage.nbytes())
        for begin in range(0, len(whole), CHUNK):
            yield whole[begin : begin + CHUNK]
    else:
        yield from copied_pieces(storage)


def copied_pieces(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    """The same, each piece copied to the CPU when it is its turn."""
    for begin in range(0, storage.nbytes(), CHUNK):
        length = min(CHUNK, storage.nbytes() - begin)
        with torch_compat.plain_torch():
            there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, begin, (length,), (1,))
            here = there.to("cpu", copy=True)
        yield memory(here.untyped_storage())


def digest_of(storage: torch.UntypedStorage) -> str:
    hasher = Hasher(storage.nbytes())
    for piece in pieces(storage):
        hasher.update(piece)
    return hasher.digest()


def allocate(nbytes: int) -> torch.UntypedStorage:
    """New memory on the CPU; a `StoreError` if there is not that much."""
    try:
        return torch.UntypedStorage(nbytes, device="cpu")
    except (RuntimeError, MemoryError, OverflowError, ValueError, TypeError) as error:
        raise StoreError(
            f"no memory for a tensor of {nbytes:,} bytes",
            cause=in_words(error),
            remedy="run it where there is more memory",
        ) from error

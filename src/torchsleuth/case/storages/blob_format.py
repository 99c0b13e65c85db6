"""The file that holds the bytes of one storage, and the memory of storages, a few megabytes at a time.

Each file is a valid safetensors file with one tensor of bytes called "data", so that other tools can open it:

    8 bytes       length of the header
    120 bytes     the header, JSON: {"data": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}, and spaces
    n bytes       the storage

What is wrong with a file is found before anything of the size that it claims is allocated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Final

import msgspec
import torch

from torchsleuth import torch_compat
from torchsleuth.case.format.digests import Hasher, is_digest
from torchsleuth.errors import BadCase, HashMismatch, StoreError, in_words

SUFFIX: Final = ".safetensors"
START: Final = 128
"""Where the bytes begin in the files that are written here. A multiple of what any vector instruction aligns to."""
LONGEST_HEADER: Final = 4096
CHUNK: Final = 4 * 2**20


# ---- the memory of storages ------------------------------------------------------------------------------


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


# ---- the form of a file ----------------------------------------------------------------------------------


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int]
    data_offsets: tuple[int, int]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data: _Data


def head(nbytes: int) -> bytes:
    """What comes before the bytes of a storage."""
    header = msgspec.json.encode(_Header(_Data("U8", (nbytes,), (0, nbytes))))
    return (START - 8).to_bytes(8, "little") + header.ljust(START - 8)


def find_data(beginning: bytes, length: int, nbytes: int, file: str) -> int:
    """Where in a file of this length the bytes begin, if it holds one storage of `nbytes` and nothing else."""

    def wrong(what: str, cause: str) -> BadCase:
        return BadCase(what, cause=cause, remedy="take the file from where the case was written", file=file)

    if len(beginning) < 8:
        raise wrong("this is no tensor file", f"it has {length} bytes, too few for a safetensors header")
    size = int.from_bytes(beginning[:8], "little")
    if size > LONGEST_HEADER:
        raise wrong("this is no tensor file", f"its header claims to have {size:,} bytes; one storage needs 120")
    if 8 + size > len(beginning):
        raise HashMismatch(
            "the file is cut off",
            cause=f"it ends in its header: {length} bytes of at least {8 + size}",
            remedy="take the file from where the case was written",
            file=file,
        )
    try:
        data = msgspec.json.decode(beginning[8 : 8 + size], type=_Header).data
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise wrong("its header is not the one of a tensor file", in_words(error)) from error
    if data.dtype != "U8" or data.data_offsets != (0, data.shape[0]):
        raise wrong(
            "it does not hold one storage", f"dtype {data.dtype}, shape {data.shape}, offsets {data.data_offsets}"
        )
    if data.shape[0] != nbytes or length != 8 + size + nbytes:
        raise HashMismatch(
            f"the case has {nbytes:,} bytes there, the file does not",
            cause=f"its header says {data.shape[0]:,}, and {max(0, length - 8 - size):,} follow",
            remedy="take the file from where the case was written",
            file=file,
        )
    return 8 + size


def file_name(digest: str) -> str:
    if not is_digest(digest):
        raise BadCase(
            "this is not the digest of a tensor",
            cause=f"{digest[:80]!r} is not b3- and 64 hex digits",
            remedy="take the case from where it was written",
            field="digest",
        )
    return digest + SUFFIX

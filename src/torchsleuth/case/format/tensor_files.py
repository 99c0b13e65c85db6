"""What a file with the bytes of one storage looks like. Knows no torch.

Each is a valid safetensors file with one tensor of bytes called "data", so that other tools can open it:

    8 bytes       length of the header
    120 bytes     the header, JSON: {"data": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}, and spaces
    n bytes       the storage

What is wrong with a file is found before anything of the size that it claims is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from torchsleuth.case.format.digests import is_digest
from torchsleuth.errors import GET_IT_AGAIN, BadCase, HashMismatch, in_words

SUFFIX: Final = ".safetensors"
START: Final = 128
"""Where the bytes begin in the files that are written here. A multiple of what any vector instruction aligns to."""
LONGEST_HEADER: Final = 4096


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int]
    data_offsets: tuple[int, int]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data: _Data


def file_name(digest: str) -> str:
    """The name of the file that holds the bytes of that digest."""
    if not is_digest(digest):
        raise BadCase(
            "this is not the digest of a tensor",
            cause=f"{digest[:80]!r} is not b3- and 64 hex digits",
            remedy=GET_IT_AGAIN,
            field="digest",
        )
    return digest + SUFFIX


def head(nbytes: int) -> bytes:
    """What comes before the bytes of a storage."""
    header = msgspec.json.encode(_Header(_Data("U8", (nbytes,), (0, nbytes))))
    return (START - 8).to_bytes(8, "little") + header.ljust(START - 8)


def find_data(beginning: bytes, length: int, nbytes: int, file: str) -> int:
    """Where in a file of this length the bytes begin, if it holds one storage of `nbytes` and nothing else."""
    start, claimed = read_head(beginning, file)
    if claimed != nbytes or length != start + nbytes:
        raise HashMismatch(
            f"the case has {nbytes:,} bytes there, the file does not",
            cause=f"its header says {claimed:,}, and {max(0, length - start):,} follow",
            remedy=GET_IT_AGAIN,
            file=file,
        )
    return start


def read_head(beginning: bytes, file: str) -> tuple[int, int]:
    """Where the bytes of the storage begin, and how many the header says there are."""

    def wrong(what: str, cause: str) -> BadCase:
        return BadCase(what, cause=cause, remedy=GET_IT_AGAIN, file=file)

    if len(beginning) < 8:
        raise wrong("this is no tensor file", f"it has {len(beginning)} bytes, too few for a safetensors header")
    size = int.from_bytes(beginning[:8], "little")
    if size > LONGEST_HEADER:
        raise wrong("this is no tensor file", f"its header claims to have {size:,} bytes; one storage needs 120")
    if 8 + size > len(beginning):
        raise HashMismatch(
            "the file is cut off",
            cause=f"it ends in its header: {len(beginning)} bytes of at least {8 + size}",
            remedy=GET_IT_AGAIN,
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
    return 8 + size, data.shape[0]


def data_in(pieces: Iterator[bytes], nbytes: int, file: str) -> Iterator[bytes]:
    """The bytes of the storage, of a file that comes in pieces. How many follow the header is for the caller to see."""
    beginning = b""
    for piece in pieces:
        beginning += piece
        if len(beginning) >= 8 + LONGEST_HEADER:
            break
    start, claimed = read_head(beginning, file)
    if claimed != nbytes:
        raise HashMismatch(
            f"the case has {nbytes:,} bytes there, the file does not",
            cause=f"its header says {claimed:,}",
            remedy=GET_IT_AGAIN,
            file=file,
        )
    yield beginning[start:]
    yield from pieces

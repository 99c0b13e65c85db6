"""The names that bytes go by: a digest is "b3-" and the 64 hex digits of their BLAKE3 hash. Knows no torch.

digest(b"...")                          of bytes at hand
hasher = Hasher(); hasher.update(...)   of bytes that come in pieces
is_digest(text)                         before a text from a file becomes the name of one
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from blake3 import blake3

if TYPE_CHECKING:
    from typing_extensions import Buffer

PREFIX: Final = "b3-"

_DIGEST = re.compile(rf"{PREFIX}[0-9a-f]{{64}}")

_WORTH_THREADS: Final = 4 * 2**20
"""Bytes from which a second core saves more than starting its thread costs."""

# A number, never blake3's AUTO: that one starts threads which live as long as the process, and in a child that was
# forked off later they are gone, so that hashing there waits for them forever.
_THREADS: Final = min(8, os.cpu_count() or 1)


class Hasher:
    """The digest of bytes that come in pieces. `nbytes`: about how many, which decides if threads pay off."""

    def __init__(self, nbytes: int = 0) -> None:
        self._hash = blake3(max_threads=_THREADS if nbytes >= _WORTH_THREADS else 1)

    def update(self, data: Buffer) -> None:
        self._hash.update(data)

    def digest(self) -> str:
        """The digest of all that came so far."""
        return PREFIX + self._hash.hexdigest()


def digest(data: Buffer) -> str:
    """The digest of these bytes."""
    hasher = Hasher(memoryview(data).nbytes)
    hasher.update(data)
    return hasher.digest()


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest. One that has is safe as the name of a file."""
    return _DIGEST.fullmatch(text) is not None

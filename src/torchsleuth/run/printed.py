"""What a process printed: the beginning and the end of it, however much it was."""

from __future__ import annotations

from typing import Final

MOST: Final = 256 * 1024
"""Bytes that are kept of a stream. A program that prints without end must not fill our memory."""


class Printed:
    """Takes what was printed piece by piece."""

    def __init__(self, most: int = MOST) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        self._head += piece[:room]
        self._tail += piece[max(room, 0) :]
        if len(self._tail) > self._half:
            self._lost += len(self._tail) - self._half
            del self._tail[: -self._half]

    def text(self) -> str:
        """As much as was kept, and how much is missing in between."""
        gap = f"\n... {self._lost:,} bytes ...\n".encode() if self._lost else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")

"""What a worker prints: read as it comes, the beginning and the end of it kept."""

from __future__ import annotations

import os
from typing import Final

MOST: Final = 256 * 1024
"""Bytes that are kept of each stream. A program that prints without end must not fill our memory."""
_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 16


class Output:
    """The reading end of a pipe that must never be full for long."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        os.set_blocking(fd, False)
        self.forget()

    def forget(self) -> None:
        """Begin anew: what comes now belongs to another query."""
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0

    def read(self, chunks: int = _AT_ONCE) -> None:
        """Take what is there, but no more than that many chunks: others wait."""
        for _ in range(chunks):
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.ended = True
                return
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        half = MOST // 2
        room = half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(room, 0) :]
        if len(self._tail) > half:
            self._lost += len(self._tail) - half
            del self._tail[:-half]

    def text(self) -> str:
        gap = f"\n... {self._lost:,} bytes ...\n".encode() if self._lost else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.fd)

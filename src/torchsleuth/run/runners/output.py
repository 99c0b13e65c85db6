"""What a worker prints: read as it comes, the beginning and the end of it kept."""

from __future__ import annotations

import os
from typing import Final

from torchsleuth.run.printed import Printed

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
        self._printed = Printed()

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
            self._printed.add(chunk)

    def text(self) -> str:
        return self._printed.text()

    def close(self) -> None:
        os.close(self.fd)

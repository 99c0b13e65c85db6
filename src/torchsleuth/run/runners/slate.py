"""The slate between a worker and the server: memory of both, on which the worker writes where it is and what it found.

    state · stage · done · of · length · checksum · answer

A program that is run may close every file of the worker's, but what is mapped stays mapped. The answer counts
when the state says so, which is written last; a checksum tells whether somebody wrote over it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import zlib
from typing import Any, Final

from torchsleuth.outcome import Stage

SIZE: Final = 8 * 1024 * 1024
"""Bytes. Pages that nobody writes to take no memory."""
_HEAD: Final = struct.Struct("<BBxxxxxxQQQI")
_STATE: Final = 0
_BUSY, _ANSWERED = 1, 2
_STAGES: Final = tuple(Stage)
_CUT: Final = ("code", "traceback", "stdout", "stderr", "stack", "explanation", "message", "reason")
"""What is cut first in an answer that is too long, in this order."""
_KEPT: Final = (100_000, 1_000)
"""Characters that are left of it. The second time there is room, however they are written."""
_ITEMS: Final = 10


class Spoilt(Exception):
    """What stands on a slate is not what a worker of ours writes."""


class Slate:
    """One side of it. `fd` is what the other side maps."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _new_file("sleuth-slate", SIZE) if fd is None else fd
        self._memory = mmap.mmap(self.fd, SIZE)
        self._owner = os.getpid()

    def close(self) -> None:
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # ---- the server's side -----------------------------------------------------------------------------------

    def wipe(self) -> None:
        """Before a query is asked."""
        self._memory[: _HEAD.size] = bytes(_HEAD.size)

    @property
    def is_blank(self) -> bool:
        """Nothing was written yet."""
        return self._memory[_STATE] == 0

    def progress(self) -> tuple[Stage, int, int]:
        """Where the worker is."""
        _, stage, done, of, _, _ = _HEAD.unpack_from(self._memory)
        return _STAGES[stage] if stage < len(_STAGES) else Stage.UNKNOWN, done, of

    def answer(self) -> dict[str, Any] | None:
        """What it found, if it has written that."""
        state, _, _, _, length, checksum = _HEAD.unpack_from(self._memory)
        if state in (0, _BUSY):
            return None
        if state != _ANSWERED or length > SIZE - _HEAD.size:
            raise Spoilt(f"state {state}, {length} bytes")
        text = self._memory[_HEAD.size : _HEAD.size + length]
        if zlib.crc32(text) != checksum:
            raise Spoilt(f"{length} bytes that are not what was written")
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Spoilt(str(error)) from error
        if not isinstance(found, dict):
            raise Spoilt("no answer")
        return found

    # ---- the worker's side -----------------------------------------------------------------------------------

    def enter(self, stage: Stage, done: int = 0, of: int = 0) -> None:
        """Say which stage begins. Called as a `Progress`; a fork of the worker has nothing to say."""
        if os.getpid() != self._owner:
            return
        _HEAD.pack_into(self._memory, 0, _BUSY, _STAGES.index(stage), max(done, 0), max(of, 0), 0, 0)

    def write(self, answer: dict[str, Any]) -> None:
        """Say what was found. What does not fit is cut."""
        text = _fitted(answer, SIZE - _HEAD.size)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _, stage, done, of, _, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, _BUSY, stage, done, of, len(text), zlib.crc32(text))
        self._memory[_STATE] = _ANSWERED


def _fitted(answer: dict[str, Any], room: int) -> bytes:
    text = _encoded(answer)
    outcome = dict(answer["outcome"])
    for kept in _KEPT:
        for field in sorted(outcome, key=lambda name: _CUT.index(name) if name in _CUT else len(_CUT)):
            if len(text) <= room:
                return text
            outcome[field] = _cut(outcome[field], kept)
            text = _encoded({**answer, "outcome": outcome})
    return text


def _cut(value: Any, kept: int) -> Any:
    if isinstance(value, list):
        left = [f"... {len(value) - _ITEMS:,} more ..."] if len(value) > _ITEMS else []
        return [_cut(one, kept // _ITEMS) for one in value[:_ITEMS]] + left
    if isinstance(value, str) and len(value) > kept:
        return f"{value[: kept // 2]}\n... {len(value) - kept:,} characters ...\n{value[-kept // 2 :]}"
    return value


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()  # ASCII: half a surrogate pair is no reason to have no answer


def dump_file() -> int:
    """Where last words are written to, also if no folder has room for them. It begins at the beginning again when it
    was emptied."""
    import fcntl

    fd = _new_file("sleuth-dump", 0)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def _new_file(name: str, size: int) -> int:
    """A file that is nowhere: it is gone when nobody has it open."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile(prefix=name) as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd

"""What a runner and its server, and the server and its template, say to each other: one list of messages.

    runner → server        Begin (once), Ask, Cancel
    server → runner        Started, Told, Answered
    server → template      Cast (with the files of the worker that is to be)
    template → server      Warmed

A message is its length in eight bytes, and msgpack.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, TypeAlias

import msgspec

_LENGTH: Final = struct.Struct("<Q")
_CHUNK: Final = 1 << 20
LONGEST: Final = 1 << 31


class Begin(msgspec.Struct, tag=True, frozen=True):
    """What a server is to be."""

    start: str
    """How workers come to be: "fork", "spawn", or "auto": forked if that is safe here."""
    workers: int
    queries: int
    """How many a worker answers before it is replaced."""
    folder: str
    parent: int
    deadline: float | None
    memory: int | None


class Ask(msgspec.Struct, tag=True, frozen=True):
    """A query. The server does not look into it."""

    id: int
    query: bytes
    alone: bool = False
    deadline: float | None = None
    memory: int | None = None
    watched: bool = False
    """Somebody wants to be told how it goes."""
    variables: dict[str, str] = {}
    """What a new interpreter has in its environment when it imports torch. One that was forked has it already."""
    whole: bool = False
    """It needs all of torch.compile, not only what Inductor does with a graph after AOT."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Nobody waits for the answer any more."""

    id: int


class Started(msgspec.Struct, tag=True, frozen=True):
    """How workers come to be in the end; `why` it is not as it was asked for."""

    how: str
    why: str = ""


class Told(msgspec.Struct, tag=True, frozen=True):
    """How a query goes."""

    id: int
    stage: str
    done: int
    of: int


class Answered(msgspec.Struct, tag=True, frozen=True):
    """An outcome, as `to_data` makes it."""

    id: int
    outcome: dict[str, Any]


class Warmed(msgspec.Struct, tag=True, frozen=True):
    """The template is ready. `unsafe`: why nothing may be forked off it, if that is so."""

    unsafe: str = ""


class Cast(msgspec.Struct, tag=True, frozen=True):
    """Make a worker. Its files come along."""

    server: int
    folder: str
    variables: dict[str, str | None]
    """Those that are not as in the template; None: there is none."""
    whole: bool = False
    """It is for a query that needs all of torch.compile."""


Message: TypeAlias = Begin | Ask | Cancel | Started | Told | Answered | Warmed | Cast

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def encoded(message: Message) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Incoming:
    """Bytes as they come, messages as they are complete."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> list[Message]:
        self._bytes += data
        found: list[Message] = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > LONGEST:
                raise ValueError(f"a message of {length:,} bytes")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            found.append(_DECODER.decode(memoryview(self._bytes)[_LENGTH.size : end].tobytes()))
            del self._bytes[:end]
        return found


class Channel:
    """The end of a socket in an event loop: neither reading nor writing ever waits."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._incoming = Incoming()
        self._outgoing = bytearray()
        self.closed = False

    @property
    def has_more_to_send(self) -> bool:
        return bool(self._outgoing) and not self.closed

    def send(self, message: Message) -> None:
        self._outgoing += encoded(message)
        self.flush()

    def flush(self) -> None:
        while self.has_more_to_send:
            try:
                del self._outgoing[: self.sock.send(memoryview(self._outgoing)[:_CHUNK].tobytes())]
            except BlockingIOError:
                return
            except OSError:
                self.closed = True

    def receive(self) -> list[Message]:
        found: list[Message] = []
        while not self.closed:
            try:
                data = self.sock.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            found += self._incoming.add(data)
        return found

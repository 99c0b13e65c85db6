"""The file `record.json`: what an execution record says of a crash, as data. Reading it runs nothing.

    encode(record)                 its bytes
    read_record(path)              a record, and the folder that it lies in
    check_state(record, folder)    the bytes of its state are those that were written

Everything that is wrong with a record is a `BadRecord`, with its cause and what to do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.schema import State
from torchsleuth.case.stores.files import open_local, read_local
from torchsleuth.errors import GET_IT_AGAIN, BadRecord, CaseError, in_words

FORMAT: Final = "torchsleuth execution record"
VERSION: Final = 1
RECORD_FILE: Final = "record.json"
STATE_FILE: Final = "state.pt"
LONGEST: Final = 200_000
"""So many characters are kept of a text."""

_MOST_BYTES: Final = 64 * 2**20


class Line(msgspec.Struct, frozen=True):
    """A line of a file, in a function."""

    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Failure(msgspec.Struct, frozen=True):
    """The exception with which the translator failed."""

    type: str
    message: str
    place: Line
    """Where it was raised."""
    traceback: str

    def is_like(self, other: Failure) -> bool:
        """Whether it is the same failure: of one type, and in one place or with one message."""
        here, there = self.place, other.place
        same_line = (os.path.basename(here.file), here.function, here.line) == (
            os.path.basename(there.file), there.function, there.line,
        )  # fmt: skip
        return self.type == other.type and (same_line or self.message == other.message)


class Function(msgspec.Struct, frozen=True):
    """What was captured."""

    name: str
    module: str
    file: str
    line: int
    code: str = ""
    """The digest of its code. Empty if it has none, or where an older torchsleuth wrote the record."""


class StateFile(msgspec.Struct, frozen=True):
    """The file with the function and its arguments."""

    digest: str
    size: int


class Record(msgspec.Struct, frozen=True):
    """What happened. Everything that is written, but for the state."""

    format: str
    version: int
    created: str
    torchsleuth: str
    python: str
    torch: str
    failure: Failure
    function: Function
    instruction: str
    stack: tuple[Line, ...]
    """The user's frames, outermost first."""
    read: tuple[str, ...]
    """What the translator had read of the outside, and taken for granted."""
    graph: str
    """The graph as far as it was written."""
    dynamic: bool | None
    """Whether sizes were symbolic. None: nobody has said."""
    surroundings: State | None
    path: tuple[str, ...]
    """Where modules were looked for."""
    kept: tuple[str, ...]
    """What could not be copied before the call, nor put back: it is as the crash left it."""
    state: StateFile | None
    why_no_state: str


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int


def encode(record: Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def is_record(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a folder that has a record, or to the file in it."""
    try:
        there = Path(path)
        return there.is_file() if there.name == RECORD_FILE else (there / RECORD_FILE).is_file()
    except (OSError, ValueError):  # too long to be a path, or with a zero in it
        return False


def read_record(path: str | os.PathLike[str]) -> tuple[Record, Path]:
    """The record in a folder, or in the file `record.json`; and the folder."""
    file = Path(path)
    if file.name != RECORD_FILE:
        file = file / RECORD_FILE
    try:
        data = read_local(file, _MOST_BYTES)
    except (OSError, CaseError) as error:
        cause = error.cause if isinstance(error, CaseError) else in_words(error)
        raise BadRecord(
            f"{path} is no execution record",
            cause=f"{file} cannot be read ({cause})",
            remedy=f"give the folder that holds {RECORD_FILE} and {STATE_FILE}: the log of the crash names it",
        ) from error
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.format != FORMAT:
            raise BadRecord(
                f"{file} is no execution record",
                cause=f"its format is {header.format!r:.60}, not {FORMAT!r}",
                remedy="give the folder that the log of the crash names",
            )
        if header.version != VERSION:
            raise BadRecord(
                f"{file} cannot be used by this version of torchsleuth",
                cause=f"it is an execution record of version {header.version}, and only {VERSION} is known here",
                remedy="use the torchsleuth that wrote it, or make the program crash again with this one",
            )
        return msgspec.json.decode(data, type=Record), file.parent
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"{file} is damaged", cause=in_words(error), remedy=GET_IT_AGAIN) from error


def check_state(record: Record, folder: Path) -> Path:
    """The file with the state, whose bytes are those that were written."""
    if record.state is None:
        raise BadRecord(
            f"the record {folder} can only be read",
            cause=f"it holds no arguments: {record.why_no_state}",
            remedy=f"see what it says: sleuth show {folder}",
        )
    path = folder / STATE_FILE
    hasher = Hasher(record.state.size)
    try:
        with open_local(path) as file:
            while piece := file.read(1 << 20):
                hasher.update(piece)
    except (OSError, CaseError) as error:
        cause = error.cause if isinstance(error, CaseError) else in_words(error)
        raise BadRecord(
            f"the state of the record {folder} is not there", cause=f"{path}: {cause}", remedy=GET_IT_AGAIN
        ) from error
    if hasher.digest() != record.state.digest:
        raise BadRecord(
            f"the state of the record {folder} is damaged",
            cause=f"the bytes of {path} are not the ones that were written",
            remedy=GET_IT_AGAIN,
        )
    return path

"""What is known of a graph break: where, why, and what its author may do about it."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass
from typing import Final

from torchsleuth.frontend.bytecode import qualified
from torchsleuth.frontend.frames import Frame

_OWN: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Frames of our own: where captured calls begin, and functions that stand for native ones."""


_ANYBODYS: Final = ("", "<string>", "<stdin>")
"""Names that any text goes by: what Python remembers under them may be another one."""


def source_lines(file: str) -> list[str]:
    """The lines of a file, or of whatever else has a source (a cell of a notebook). None if it cannot be read."""
    return [] if file in _ANYBODYS else linecache.getlines(file)


@dataclass(frozen=True)
class Place:
    """A line of a function."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: Frame) -> Place:
        return cls(frame.code.co_filename, frame.instruction.line, qualified(frame.code))

    @property
    def source(self) -> str:
        """The line as it is written, as far as it can be read."""
        lines = source_lines(self.file)
        return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class GraphBreak:
    """Something that a graph can't hold."""

    reason: str
    place: Place
    """The line at work: in an inlined function, if it is there."""
    stack: tuple[Place, ...]
    """How it got there, outermost first; the last one is `place`."""
    advice: str = ""
    natively: bool = False
    """Not only this instruction, but whatever is left of the call runs natively."""

    @property
    def file(self) -> str:
        return self.place.file

    @property
    def line(self) -> int:
        return self.place.line

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line}: {self.reason}"


def break_in(frames: list[Frame], reason: str, advice: str = "", *, natively: bool = False) -> GraphBreak:
    """A break at the instruction that the innermost of these frames has at work."""
    stack = tuple(Place.of(each) for each in frames if not each.code.co_filename.startswith(_OWN))
    stack = stack or (Place.of(frames[-1]),)
    return GraphBreak(reason, stack[-1], stack, advice, natively)

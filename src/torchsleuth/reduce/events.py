"""What a reduction tells those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torchsleuth.case.schema import Case
from torchsleuth.reduce.executors import Answer
from torchsleuth.reduce.order import Size


@dataclass(frozen=True)
class Began:
    """With this case, for the first time or once more."""

    case: Case
    size: Size


@dataclass(frozen=True)
class Entered:
    """A pass begins."""

    name: str
    words: str
    """What it does, for people."""


@dataclass(frozen=True)
class Answered:
    """There is an answer."""

    words: str
    """What was tried."""
    answer: Answer
    asked: bool
    """Whether it had to be asked: if not, it was known already."""


@dataclass(frozen=True)
class Improved:
    """There is something smaller that still fails."""

    case: Case
    size: Size
    words: str
    """What was done."""


@dataclass(frozen=True)
class Met:
    """Another failure was met on the way."""

    answer: Answer
    case: Case


@dataclass(frozen=True)
class Ended:
    """It is over."""

    why: str
    """Why, if it was before the end; "" if there is nothing left to try."""


Event: TypeAlias = Began | Entered | Answered | Improved | Met | Ended
Observer: TypeAlias = Callable[[Event], None]

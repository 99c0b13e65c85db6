"""What watching has kept, in a few lines: for each case what went wrong, where it is, and the next command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torchsleuth.case.words.wording import clean

NOTHING = "no failure was seen"


class KeptCase(Protocol):
    """A case that was kept, wherever that was written down."""

    @property
    def path(self) -> str: ...

    @property
    def words(self) -> str: ...

    @property
    def next(self) -> str: ...


def each_once(kept: Iterable[KeptCase]) -> list[KeptCase]:
    """The cases in order; one that was kept twice is one."""
    return list({one.path: one for one in kept}.values())


def watched_lines(kept: Sequence[KeptCase]) -> Iterator[str]:
    """Lines for people. The last one is the next command."""
    cases = each_once(kept)
    yield "1 case was kept" if len(cases) == 1 else f"{len(cases)} cases were kept"
    for case in cases:
        yield ""
        yield from block(case)


def block(case: KeptCase) -> Iterator[str]:
    """One case."""
    yield clean(case.words)
    yield f"  {clean(case.path)}"
    yield f"Next: {clean(case.next)}"

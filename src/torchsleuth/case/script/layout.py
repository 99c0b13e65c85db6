"""Lines of Python laid out as a formatter would: one place that knows about width, indentation and blank lines.

Sections say statements, each on one line however long; `Page` breaks the long ones at their brackets, so that a
script reads well and `ruff format` has nothing to change in it.
"""

from __future__ import annotations

import io
import itertools
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WIDTH = 120
_OPEN, _CLOSE = "([{", ")]}"


class Page:
    """A text that grows by statements."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, statement: str = "", comment: str = "") -> None:
        """A statement, with a comment behind it if there is room for some of it."""
        indent = "    " * self._depth
        if not statement:
            self._lines.append(f"{indent}# {tidy(comment)}"[:WIDTH].rstrip() if comment else "")
            return
        pieces = wrap(statement, indent)
        if comment and len(pieces) == 1 and (room := WIDTH - len(pieces[0]) - 4) >= 8:
            comment = tidy(comment)
            pieces = [f"{pieces[0]}  # {comment if len(comment) <= room else comment[: room - 1] + '…'}"]
        self._lines += pieces

    def comment(self, text: str) -> None:
        """A comment on its own line; one line, cut if it is longer than a line."""
        room = WIDTH - 4 * self._depth - 2
        text = tidy(text)
        self._lines.append(f"{'    ' * self._depth}# {text if len(text) <= room else text[: room - 1] + '…'}")

    def blank(self, lines: int = 1) -> None:
        """Empty lines; never more than asked for in a row."""
        while self._lines and not self._lines[-1]:
            self._lines.pop()
        if self._lines:
            self._lines += [""] * lines

    def text(self, text: str) -> None:
        """Lines that are laid out already, at the depth they have."""
        self._lines += text.strip("\n").split("\n")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is written inside is indented under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def __str__(self) -> str:
        return "\n".join(self._lines).rstrip("\n") + "\n"


def tidy(text: str) -> str:
    """The text on one line, with nothing in it that does not print: what a comment may hold."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


@dataclass(frozen=True)
class _Split:
    """A line cut at its last pair of outermost brackets."""

    head: str
    items: tuple[str, ...]
    tail: str
    one_tuple: bool
    literal: bool
    """It is a list, a tuple, a dict: these go an item a line. The arguments of a call may share one."""


def wrap(statement: str, indent: str = "") -> list[str]:
    """The statement as lines of at most `WIDTH` where brackets allow: all inside on one line, or an item a line."""
    if len(indent) + len(statement) <= WIDTH:
        return [indent + statement]
    split = _split(statement)
    if split is None:
        return [indent + statement]
    inner = indent + "    "
    inside = ", ".join(split.items) + ("," if split.one_tuple else "")
    if len(inner) + len(inside) <= WIDTH and (not split.literal or len(split.items) == 1):
        lines = [inner + inside]
    else:
        lines = [line for item in split.items for line in wrap(item + ",", inner)]
    return [indent + split.head, *lines, indent + split.tail]


def _split(statement: str) -> _Split | None:
    """None if there is nothing in brackets."""
    depth = 0
    start = -1
    commas: list[int] = []
    best: tuple[int, int, list[int], str] | None = None
    for token in tokenize.generate_tokens(io.StringIO(statement).readline):
        if token.type != tokenize.OP:
            continue
        column = token.start[1]
        if token.string in _OPEN:
            if depth == 0:
                start, commas = column, []
            depth += 1
        elif token.string in _CLOSE:
            depth -= 1
            if depth == 0 and statement[start + 1 : column].strip():
                best = (start, column, commas, token.string)
        elif token.string == "," and depth == 1:
            commas.append(column)
    if best is None:
        return None
    start, end, commas, close = best
    edges = [start, *commas, end]
    items = [statement[a + 1 : b].strip() for a, b in itertools.pairwise(edges)]
    trailing = bool(items) and not items[-1]
    kept = tuple(item for item in items if item)
    literal = not (start and (statement[start - 1].isalnum() or statement[start - 1] in "_)]"))
    return _Split(statement[: start + 1], kept, statement[end:], trailing and len(kept) == 1 and close == ")", literal)

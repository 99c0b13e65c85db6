"""The source of the functions in which graphs break, as lines with notes; long functions shortened around the notes.

for listing in listings_of(surveyed):
    listing.file, listing.function
    listing.rows                    Row(number, text, notes), and None where lines are left out
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from torchsleuth.frontend.breaks import Place, source_lines
from torchsleuth.frontend.surveying import Surveyed, home_of

WHOLE: Final = 24
"""A function of so many lines is shown whole."""
AROUND: Final = 3
"""So many lines are shown before and after one with a note, in longer ones."""


@dataclass(frozen=True)
class Note:
    """What is said of a line."""

    words: str
    number: int = 0
    """The number of the finding. 0: it is Dynamo's."""
    natively: bool = False


@dataclass(frozen=True)
class Row:
    """A line of source."""

    number: int
    text: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Listing:
    """A function, or what is around a line outside of any."""

    file: str
    function: str
    rows: tuple[Row | None, ...]
    """None: here lines are left out."""


@dataclass(frozen=True)
class _Span:
    """Lines of a file that belong together, and the line of the name."""

    first: int
    last: int
    head: int
    function: str


def listings_of(surveyed: Surveyed) -> list[Listing]:
    """A listing for each function in which a graph breaks, in the order of the breaks. None for what has no source."""
    notes: dict[tuple[str, int], list[Note]] = {}
    names: dict[tuple[str, int], str] = {}
    for place, note in _notes(surveyed):
        notes.setdefault((place.file, place.line), []).append(note)
        names.setdefault((place.file, place.line), place.function)
    spans: dict[tuple[str, _Span], None] = {}
    for file, line in notes:
        span = _span(file, line, names[file, line])
        if span is not None:
            spans[file, span] = None
    return [_listing(file, span, notes) for file, span in spans if not _is_inside_another(file, span, spans)]


def _is_inside_another(file: str, span: _Span, spans: Iterable[tuple[str, _Span]]) -> bool:
    """Whether it is a function in a function that is shown as well, notes and all."""
    return any(
        file == other_file and other != span and other.first <= span.first and span.last <= other.last
        for other_file, other in spans
    )


def _notes(surveyed: Surveyed) -> Iterator[tuple[Place, Note]]:
    for finding in surveyed.findings:
        inside = finding.place != finding.home and f" (in {finding.place.function})"
        yield finding.home, Note(f"{finding.reason}{inside or ''}", finding.number, finding.natively)
    for objection in surveyed.dynamo_alone:
        if objection.stack:
            yield home_of(objection.stack), Note(objection.headline)


def _listing(file: str, span: _Span, notes: dict[tuple[str, int], list[Note]]) -> Listing:
    lines = source_lines(file)
    wanted = _wanted(span, [line for noted, line in notes if noted == file])
    rows: list[Row | None] = []
    for number in range(span.first, span.last + 1):
        if number in wanted:
            rows.append(Row(number, lines[number - 1].rstrip(), tuple(notes.get((file, number), ()))))
        elif rows and rows[-1] is not None:
            rows.append(None)
    return Listing(file, span.function, tuple(rows))


def _wanted(span: _Span, noted: Iterable[int]) -> set[int]:
    whole = range(span.first, span.last + 1)
    if len(whole) <= WHOLE:
        return set(whole)
    around = {line for at in noted if at in whole for line in range(at - AROUND, at + AROUND + 1)}
    wanted = {span.head, *around}
    # A gap of one line takes as much room as the line.
    return wanted | {line for line in whole if line - 1 in wanted and line + 1 in wanted}


def _span(file: str, line: int, function: str) -> _Span | None:
    """The innermost function that this line is in; without one, what is around the line. None without source."""
    total = len(source_lines(file))
    if not 1 <= line <= total:
        return None
    inside = [span for span in _functions(file) if span.first <= line <= span.last]
    if inside:
        return max(inside, key=lambda span: span.first)
    return _Span(max(1, line - AROUND), min(total, line + AROUND), line, function)


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[_Span, ...]:
    """Every function of a file."""
    try:
        tree = ast.parse("".join(source_lines(file)))
    except (SyntaxError, ValueError):  # it has changed since it was imported, or is no Python
        return ()
    return tuple(_functions_in(tree, ""))


def _functions_in(node: ast.AST, inside: str) -> Iterator[_Span]:
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{inside}.{child.name}" if inside else child.name
            if not isinstance(child, ast.ClassDef):
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                yield _Span(first, child.end_lineno or child.lineno, child.lineno, name)
        yield from _functions_in(child, name)

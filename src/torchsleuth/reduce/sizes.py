"""Symbolic sizes of a case as numbers, and which symbols nodes mention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchsleuth.case.schema import Apply, Fake, Node, Symbolic, Symbols, Term, Value
from torchsleuth.reduce.graphs import leaves_in


class Hints:
    """The values that the symbols of a case had."""

    def __init__(self, symbols: Symbols) -> None:
        self._known = {
            one.name: one.hint
            for one in symbols.symbols
            if isinstance(one.hint, (int, float)) and not isinstance(one.hint, bool)
        }

    def number(self, term: Term) -> bool | int | float | None:
        """What a term is. None, if that is not known."""
        if isinstance(term, str):
            return self._known.get(term)
        if not isinstance(term, Apply):
            return term
        return self._worked_out(term)

    def numbers(self, terms: Sequence[Term]) -> tuple[int, ...] | None:
        """What sizes or strides are. None, if one of them is not known."""
        found = []
        for term in terms:
            number = self.number(term)
            if not isinstance(number, int):
                return None
            found.append(int(number))
        return tuple(found)

    def _worked_out(self, term: Apply) -> bool | int | float | None:
        import sympy  # type: ignore[import-untyped]

        from torchsleuth.case.graphs.expressions import decode_expr

        names = set(symbols_in(term))
        if not names <= self._known.keys():
            return None
        symbols: dict[str, Any] = {name: sympy.Symbol(name, integer=True, positive=True) for name in names}
        found = decode_expr(term, symbols).subs({symbols[name]: self._known[name] for name in names})
        return int(found) if getattr(found, "is_integer", False) else None


def symbols_in(term: Term) -> Iterator[str]:
    """The symbols of a term."""
    if isinstance(term, str):
        yield term
    elif isinstance(term, Apply):
        for part in term.args:
            yield from symbols_in(part)


def symbols_of(value: Value) -> Iterator[str]:
    """The symbols that a value mentions."""
    for leaf in leaves_in(value):
        match leaf:
            case Fake():
                for term in (*leaf.size, *leaf.stride, leaf.offset):
                    yield from symbols_in(term)
            case Symbolic():
                yield from symbols_in(leaf.expr)


def mentioned(nodes: Iterable[Node]) -> set[str]:
    """The symbols that nodes mention: in their arguments, and in what they produce."""
    found: set[str] = set()
    for node in nodes:
        for value in (*node.args, *(entry.value for entry in node.kwargs), node.meta.val, node.meta.example):
            found.update(symbols_of(value))
    return found

"""Sizes that only running tells. A graph that runs again makes new symbols for them, which get the names of the old."""

from __future__ import annotations

from collections.abc import Sequence

from torchsleuth.case.schema import Apply, Binding, Case, Fake, Symbolic, Term, Value
from torchsleuth.reduce.graphs import map_values, replace
from torchsleuth.reduce.sizes import symbols_in


class Refused(Exception):
    """The candidate is no legal case."""


class Unbacked:
    """The unbacked symbols of a case, by what they are called when its graph runs again."""

    def __init__(self, case: Case) -> None:
        self.known = {symbol.name for symbol in case.symbols.symbols}
        self._old: dict[str, str] = {}

    def renamed(self, value: Value, new: set[str], bindings: Sequence[Binding]) -> Value:
        """What a node produces, with the names that its symbols had. `bindings` are those that it made then."""
        fresh = sorted(new - self._old.keys(), key=_by_number)
        bound = sorted({name for one in bindings for name in symbols_in(one.symbol)}, key=_by_number)
        if len(fresh) > len(bound):
            raise Refused("it needs a symbol that there is not")
        self._old |= dict(zip(fresh, bound, strict=False))
        return map_values(value, self._leaf)

    def _leaf(self, value: Value) -> Value:
        match value:
            case Fake():
                size, stride = (tuple(map(self._term, terms)) for terms in (value.size, value.stride))
                return replace(value, size=size, stride=stride, offset=self._term(value.offset))
            case Symbolic():
                return replace(value, expr=self._term(value.expr))
        return value

    def _term(self, term: Term) -> Term:
        if isinstance(term, str):
            return self._old.get(term, term)
        return Apply(term.op, tuple(map(self._term, term.args))) if isinstance(term, Apply) else term


def _by_number(name: str) -> tuple[int, str]:
    return int("".join(filter(str.isdigit, name)) or 0), name

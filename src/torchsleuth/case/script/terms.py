"""Expressions over symbolic sizes, and what is made of them, as calls of the script's own few functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.schema import Apply, Term
from torchsleuth.case.script.source import call_source, items_source, term_source, text_source, torch_source

_OF_SYMPY: Final = frozenset(
    "Eq Ne Lt Le Gt Ge And Or Xor Not ITE Piecewise Abs floor ceiling Rational oo zoo nan".split()
)
_BY_OPERATORS: Final = frozenset({"Add", "Mul", "Pow", "Float"})
_FOR_NOTHING: Final = ("-", "sympy.")


class Terms:
    """Writes expressions, and remembers which names they take."""

    def __init__(self) -> None:
        self._ops: set[str] = set()

    def source(self, term: Term) -> str:
        self._learn(term)
        return term_source(term)

    def sources(self, terms: Iterable[Term]) -> str:
        return items_source(map(self.source, terms), "()")

    def _learn(self, term: Term) -> None:
        if isinstance(term, Apply):
            self._ops.add(term.op.removeprefix("-"))
            for arg in term.args:
                self._learn(arg)

    def imports(self) -> set[str]:
        """The import statements for the names that were met."""
        named = {op for op in self._ops if op not in _BY_OPERATORS and not op.startswith(_FOR_NOTHING)}
        lines = set()
        if of_sympy := sorted(named & _OF_SYMPY):
            lines.add(f"from sympy import {', '.join(of_sympy)}")
        if "int_oo" in named:
            lines.add("from torch.utils._sympy.numbers import int_oo")
        if of_torch := sorted(named - _OF_SYMPY - {"int_oo"}):
            lines.add(f"from torch.utils._sympy.functions import {', '.join(of_torch)}")
        return lines


def expr_source(term: Term, terms: Terms) -> str:
    """An expression that is sympy's even if it is a plain number."""
    return f"sympy.sympify({terms.source(term)})" if isinstance(term, (bool, int, float)) else terms.source(term)


def fake_source(fake: schema.Fake, terms: Terms, *, shared: bool = False) -> str:
    """A call of `fake`."""
    return call_source(
        "fake",
        torch_source(fake.dtype),
        terms.sources(fake.size),
        terms.sources(fake.stride),
        offset=terms.source(fake.offset) if fake.offset != 0 else None,
        device=text_source(fake.device) if fake.device != "cpu" else None,
        memory=repr(fake.memory) if shared and fake.memory is not None else None,
        requires_grad="True" if fake.requires_grad else None,
        leaf="False" if not fake.leaf else None,
        parameter="True" if fake.parameter else None,
        conj="True" if fake.conj else None,
        neg="True" if fake.neg else None,
    )


def symbolic_source(value: schema.Symbolic, terms: Terms) -> str:
    """A SymInt, SymFloat or SymBool."""
    if value.type == "int" and isinstance(value.expr, (str, Apply)):
        return f"size_of({terms.source(value.expr)})"
    hinted = "" if value.hint is not None else ", False"
    return f"symbolic(torch.Sym{value.type.capitalize()}, {expr_source(value.expr, terms)}{hinted})"

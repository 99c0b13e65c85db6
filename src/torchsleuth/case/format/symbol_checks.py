"""Whether what is written of symbols can be rebuilt, and nothing in it would hurt. Knows neither sympy nor torch.

Names are such as torch makes, numbers are numbers, expressions are expressions over these symbols, and replacements
lead to an end. `symbols` does the rebuilding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from torchsleuth.case.format.terms import Sort, check_term
from torchsleuth.case.schema import Apply, Symbol, Symbols, Term
from torchsleuth.errors import GET_IT_AGAIN, BadCase

SETTINGS: Final[Mapping[str, bool]] = {
    "allow_scalar_outputs": True,
    "allow_dynamic_output_shape_ops": True,
    "assume_static_by_default": False,
    "specialize_zero_one": True,
    "duck_shape": True,
    "prefer_deferred_runtime_asserts_over_guards": False,
    "trace_asserts": False,
}
"""The settings of a ShapeEnv, with their defaults."""

NAME: Final = re.compile(r"(s|u|zf|zuf)([0-9]{1,9})")
"""What torch calls symbols: backed and unbacked integers, backed and unbacked floats."""

_MOST_SYMBOLS = 10**9
_CHAIN = 50  # how many replacements may hang on one another; torch follows them recursively
_PREFIXES: Final[Mapping[tuple[bool, str], str]] = {
    (True, "int"): "s",
    (False, "int"): "u",
    (True, "float"): "zf",
    (False, "float"): "zuf",
}


def check_symbols(symbols: Symbols, *, field: str = "symbols", file: str = "") -> None:
    """Raise `BadCase` if these symbols cannot be rebuilt. Needs neither torch nor sympy."""
    _Check(symbols, field, file).run()


class _Check:
    def __init__(self, symbols: Symbols, field: str, file: str) -> None:
        self.symbols = symbols
        self.field = field
        self.file = file
        self.names = {symbol.name for symbol in symbols.symbols}

    def run(self) -> None:
        symbols = self.symbols
        for number, symbol in enumerate(symbols.symbols):
            self._symbol(symbol, f"{self.field}.symbols[{number}]")
        if len(self.names) != len(symbols.symbols):
            raise self._bad("two symbols have the same name", f"{self.field}.symbols")
        self._replacements(f"{self.field}.replacements")
        for number, (old, new) in enumerate(symbols.renamings):
            if old not in self.names or new not in self.names:
                raise self._bad("it names a symbol that is not there", f"{self.field}.renamings[{number}]")
        for number, term in enumerate(symbols.divisible):
            self._term(term, "number", f"{self.field}.divisible[{number}]")
        for number, term in enumerate(symbols.guards):
            self._term(term, "truth", f"{self.field}.guards[{number}]")
        for number, (term, _) in enumerate(symbols.axioms or ()):
            self._term(term, "truth", f"{self.field}.axioms[{number}]")
        for number, each in enumerate(symbols.asserts):
            self._term(each.expr, "truth", f"{self.field}.asserts[{number}].expr")
            if each.symbol is not None and each.symbol not in self.names:
                raise self._bad("it waits for a symbol that is not there", f"{self.field}.asserts[{number}].symbol")
        for number, (name, _) in enumerate(symbols.settings):
            if name not in SETTINGS:
                raise self._bad(f"there is no setting {name[:80]!r}", f"{self.field}.settings[{number}]")
        for name in ("unbacked_ints", "unbacked_floats"):
            if not 0 <= getattr(symbols, name) <= _MOST_SYMBOLS:
                raise self._bad("it counts symbols", f"{self.field}.{name}")

    def _symbol(self, symbol: Symbol, field: str) -> None:
        found = NAME.fullmatch(symbol.name)
        if not found or found[1] != _PREFIXES[symbol.backed, symbol.type]:
            kind = f"{'a backed' if symbol.backed else 'an unbacked'} {symbol.type}"
            raise self._bad(f"{symbol.name[:80]!r} is no name of {kind}", f"{field}.name")
        if symbol.backed and symbol.hint is None:
            raise self._bad("a backed symbol has a hint", f"{field}.hint")
        if (symbol.lower is None) != (symbol.upper is None):
            raise self._bad("a range has two ends", f"{field}.lower")
        for name in ("hint", "observed", "lower", "upper"):
            value: Term | None = getattr(symbol, name)
            if value is not None:
                check_term(value, (), field=f"{field}.{name}", file=self.file)
            if isinstance(value, (bool, str)) or (symbol.type == "int" and isinstance(value, float)):
                raise self._bad(f"{value!r} is no value of {symbol.name}", f"{field}.{name}")
            if isinstance(value, Apply) and value.args:
                raise self._bad("it has to be a number", f"{field}.{name}")
            if isinstance(value, int) and value.bit_length() > 64:
                raise self._bad("it is larger than 64 bits", f"{field}.{name}")

    def _replacements(self, field: str) -> None:
        """Each leads to an end: torch would follow a circle until it runs out of stack."""
        leads: dict[str, set[str]] = {}
        for number, (name, term) in enumerate(self.symbols.replacements):
            if name not in self.names or name in leads:
                raise self._bad(f"{name[:80]!r} is no symbol, or replaced twice", f"{field}[{number}]")
            self._term(term, "number", f"{field}[{number}]")
            leads[name] = set(symbols_of(term))
        front = set(leads)
        for _ in range(_CHAIN):
            front = {name for name in front if leads[name] & front}
            if not front:
                return
        raise self._bad("they lead in a circle, or in a chain that is too long", field)

    def _term(self, term: Term, sort: Sort, field: str) -> None:
        check_term(term, self.names, sort=sort, field=field, file=self.file)

    def _bad(self, cause: str, field: str) -> BadCase:
        return BadCase("the symbols cannot be rebuilt", cause=cause, remedy=GET_IT_AGAIN, field=field, file=self.file)


def symbols_of(term: Term) -> Iterator[str]:
    """The symbols of an expression, by name."""
    if isinstance(term, str):
        yield term
    elif isinstance(term, Apply):
        for arg in term.args:
            yield from symbols_of(arg)

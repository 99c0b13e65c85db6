"""What a term over symbolic sizes may be: the closed table of operations, and the bounds. Needs no sympy, no torch.

    OPERATIONS              every operation there is: how many arguments it takes, of which sort, and what it gives
    check_term(term)        `BadCase` if the term is no expression, or one that would hurt whoever evaluates it

A term is measured without being evaluated: how large its value can get if each symbol is a number of 64 bits, how many
summands it has if multiplied out. So a case of a hundred bytes cannot ask for a number of a gigabyte, nor for a
division by the constant 0. `expressions` turns terms into sympy's objects and back.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from torchsleuth.case.schema import Apply, Term
from torchsleuth.errors import GET_IT_AGAIN, BadCase

MAX_DEPTH: Final = 200
"""How deep operations may be nested."""
MAX_NODES: Final = 100_000
"""How many constants, symbols and operations an expression may have."""
MAX_BITS: Final = 8192
"""How large a number may be, be it written down or computed when each symbol is a number of 64 bits."""
MAX_TERMS: Final = 10_000
"""How many summands an expression may have when it is multiplied out."""

_SYMBOL_BITS = 64
_FROM_FLOAT_BITS = 1100  # the integer part of the largest float has 1024
_MAX_EXPONENT = 128  # in bits: torch computes powers of integers recursively, bit by bit


Sort = Literal["number", "truth", "any"]


@dataclass(frozen=True)
class Operation:
    """How many arguments an operation takes (`most` is None: any number), of which sort, and what it gives."""

    least: int
    most: int | None
    takes: Sort = "number"
    gives: Sort = "number"


def _table() -> dict[str, Operation]:
    table: dict[str, Operation] = {}
    table |= {name: Operation(0, 0) for name in ("oo", "-oo", "int_oo", "-int_oo", "zoo", "nan")}
    table |= {"Rational": Operation(2, 2), "Float": Operation(3, 3)}
    table |= {name: Operation(2, None) for name in ("Add", "Mul", "Max", "Min", "sympy.Max", "sympy.Min")}
    table |= {name: Operation(2, 2, "number", "truth") for name in ("Lt", "Le", "Gt", "Ge")}
    table |= {name: Operation(2, 2, "any", "truth") for name in ("Eq", "Ne")}
    table |= {name: Operation(2, None, "truth", "truth") for name in ("And", "Or", "Xor")}
    table |= {"Not": Operation(1, 1, "truth", "truth"), "ITE": Operation(3, 3, "truth", "truth")}
    table |= {"Piecewise": Operation(2, None, "any", "any"), "Where": Operation(3, 3, "any", "any")}
    table |= {name: Operation(1, 1) for name in ("Abs", "floor", "ceiling")}
    table |= {name: Operation(2, 2) for name in ("Pow", "sympy.Mod", "FloorDiv", "PythonMod", "Mod", "CleanDiv")}
    table |= {name: Operation(2, 2) for name in ("LShift", "RShift", "PowByNatural", "FloatPow")}
    table |= {name: Operation(2, 2) for name in ("FloatTrueDiv", "IntTrueDiv", "RoundDecimal")}
    table |= {"ModularIndexing": Operation(3, 3), "IsNonOverlappingAndDenseIndicator": Operation(2, None)}
    for name in ("CeilToInt", "FloorToInt", "TruncToFloat", "TruncToInt", "RoundToInt"):
        table[name] = Operation(1, 1)
    table |= {name: Operation(1, 1, "any", "any") for name in ("ToFloat", "Identity")}
    for name in "sqrt cos cosh sin sinh tan tanh asin acos atan exp log asinh log2".split():
        table[f"OpaqueUnaryFn_{name}"] = Operation(1, 1)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        table[f"BitwiseFn_{name}"] = Operation(2, 2, "any", "any")
    return table


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(_table())
"""Every operation that an expression can have, by name."""

_DIVISORS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("FloorDiv", "CleanDiv", "Mod", "PythonMod", "sympy.Mod", "IntTrueDiv", "FloatTrueDiv"), (1,)),
    "ModularIndexing": (1, 2),
}
_GIVES_FLOAT = frozenset({"FloatTrueDiv", "IntTrueDiv", "FloatPow", "RoundDecimal", "TruncToFloat", "ToFloat"})
_FROM_FLOAT = frozenset({"CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt", "floor", "ceiling"})
_EVEN = frozenset({"IsNonOverlappingAndDenseIndicator", "Piecewise"})

# ---- checking ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
    """What is known of a term without evaluating it."""

    sort: Sort
    bits: int
    """How large its value can get, in bits."""
    terms: int = 1
    """How many summands it has when multiplied out."""
    value: int | float | None = None
    """What it is, if it is a constant."""


def check_term(
    term: Term, symbols: Container[str] | None = None, *, sort: Sort = "any", field: str = "", file: str = ""
) -> None:
    """Raise `BadCase` if the term is no expression of this sort over these symbols (None: any symbols)."""
    check = _Check(symbols, field, file)
    found = check.measure(term, 1).sort
    if "any" not in (sort, found) and sort != found:
        raise check.bad(f"it is a {found}, and has to be a {sort}")


class _Check:
    def __init__(self, symbols: Container[str] | None, field: str, file: str) -> None:
        self.symbols = symbols
        self.field = field
        self.file = file
        self.nodes = 0

    def measure(self, term: Term, depth: int) -> _Measure:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise self.bad(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(term, bool):
            return _Measure("truth", 1)
        if isinstance(term, int):
            return self._in_bounds(_Measure("number", term.bit_length(), value=term), "a number")
        if isinstance(term, float):
            if not math.isfinite(term):
                raise self.bad(f'{term} is no constant of an expression; it is written as an operation ("oo", "nan")')
            return _Measure("number", _SYMBOL_BITS, value=term)
        if isinstance(term, str):
            if self.symbols is not None and term not in self.symbols:
                raise self.bad(f"there is no symbol {term[:80]!r}")
            return _Measure("number", _SYMBOL_BITS)
        if isinstance(term, Apply):
            return self._operation(term, depth)
        raise self.bad(f"{type(term).__name__} is no part of an expression")

    def _operation(self, term: Apply, depth: int) -> _Measure:
        operation = OPERATIONS.get(term.op)
        if operation is None:
            raise self.bad(f"there is no operation {term.op[:80]!r}")
        given = len(term.args)
        if self.nodes + given > MAX_NODES:
            raise self.bad(f"it has more than {MAX_NODES:,} parts")
        if given < operation.least or (operation.most is not None and given > operation.most):
            most = "or more" if operation.most is None else f"to {operation.most}"
            wanted = str(operation.least) if operation.least == operation.most else f"{operation.least} {most}"
            raise self.bad(f"{term.op} takes {wanted} arguments, not {given}")
        if term.op in _EVEN and given % 2:
            raise self.bad(f"{term.op} takes its arguments in pairs, and there are {given}")
        if term.op in ("Rational", "Float"):
            return self._number(term)
        args = [self.measure(arg, depth + 1) for arg in term.args]
        self._sorts(term.op, operation, args)
        for position in _DIVISORS.get(term.op, ()):
            if args[position].value == 0:
                raise self.bad(f"{term.op} divides by zero")
        return self._in_bounds(self._result(term.op, operation, args), term.op)

    def _number(self, term: Apply) -> _Measure:
        numbers = [arg for arg in term.args if isinstance(arg, int) and not isinstance(arg, bool)]
        self.nodes += len(term.args)
        if len(numbers) != len(term.args):
            raise self.bad(f"{term.op} is made of integers")
        for number in numbers:
            self._in_bounds(_Measure("number", number.bit_length()), "a number")
        if term.op == "Rational":
            above, below = numbers
            if below < 2 or math.gcd(above, below) != 1:
                raise self.bad(f"Rational({above}, {below}) is not in lowest terms")
            return _Measure("number", max(above.bit_length(), below.bit_length()))
        mantissa, exponent, precision = numbers
        if not 2 <= precision <= MAX_BITS or mantissa.bit_length() > precision or mantissa % 2 == 0:
            raise self.bad("the mantissa of a Float is odd, and has no more bits than its precision")
        return self._in_bounds(_Measure("number", abs(exponent) + precision), "Float")

    def _sorts(self, op: str, operation: Operation, args: list[_Measure]) -> None:
        if operation.takes == "any":
            conditions = {"Where": args[:1], "Piecewise": args[1::2]}.get(op, [])
            if any(arg.sort == "number" for arg in conditions):
                raise self.bad(f"{op} chooses by a number, where a condition has to be")
        elif any(arg.sort not in (operation.takes, "any") for arg in args):
            raise self.bad(f"{op} takes a {operation.takes} in each place")

    def _result(self, op: str, operation: Operation, args: list[_Measure]) -> _Measure:
        most = max((arg.bits for arg in args), default=1)
        if operation.gives == "truth":
            return _Measure("truth", 1)
        if op in _GIVES_FLOAT or op.startswith("OpaqueUnaryFn_"):
            return _Measure("number", _SYMBOL_BITS)
        if op in _FROM_FLOAT:
            return _Measure("number", max(most, _FROM_FLOAT_BITS))
        values = [arg.value for arg in args]
        if op == "Add":
            whole = [value for value in values if isinstance(value, int)]
            total = sum(whole) if len(whole) == len(args) else None
            return _Measure("number", most + len(args).bit_length(), sum(arg.terms for arg in args), total)
        if op == "Mul":
            product = 0 if 0 in values else None
            return _Measure(
                "number", sum(arg.bits for arg in args), math.prod(min(arg.terms, MAX_TERMS) for arg in args), product
            )
        if op in ("Pow", "PowByNatural", "LShift", "RShift"):
            return self._power(op, *args)
        return _Measure(operation.gives, most + 1)

    def _power(self, op: str, base: _Measure, exponent: _Measure) -> _Measure:
        if exponent.bits > _MAX_EXPONENT and not isinstance(exponent.value, float):
            raise self.bad(f"the second argument of {op} is too large")
        if op != "Pow" and exponent.value is None:
            return _Measure("number", base.bits + _SYMBOL_BITS)  # torch gives up on what 64 bits cannot hold
        if exponent.value is None and exponent.bits >= _SYMBOL_BITS:
            raise self.bad("Pow takes a constant as its exponent")
        by = abs(exponent.value) if exponent.value is not None else 2.0**exponent.bits
        if op in ("LShift", "RShift"):
            if exponent.value is not None and exponent.value < 0:
                raise self.bad(f"{op} shifts by a negative number")
            return _Measure("number", base.bits + math.ceil(min(by, MAX_BITS + 1)))
        if base.value == 0 and exponent.value is not None and exponent.value < 0:
            raise self.bad(f"{op} divides by zero")
        by = math.ceil(min(by, MAX_BITS + 1))
        terms = min(base.terms, MAX_TERMS + 1)
        return _Measure("number", max(base.bits, 1) * by, 1 if terms == 1 else terms ** min(by, 16))

    def _in_bounds(self, measure: _Measure, what: str) -> _Measure:
        if measure.bits > MAX_BITS:
            raise self.bad(f"{what} is, or can become, larger than {MAX_BITS} bits")
        if measure.terms > MAX_TERMS:
            raise self.bad(f"{what} has more than {MAX_TERMS:,} terms when multiplied out")
        return measure

    def bad(self, cause: str) -> BadCase:
        return BadCase(
            "an expression over symbolic sizes cannot be used",
            cause=cause,
            remedy=GET_IT_AGAIN,
            field=self.field,
            file=self.file,
        )

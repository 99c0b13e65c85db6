"""Expressions over symbolic sizes as data: sympy's objects as terms and back, through a closed table.

    encode_expr(4 * s77 + 1)          Apply("Add", (1, Apply("Mul", (4, "s77"))))
    decode_expr(term, symbols)        the same expression: equal, of the same structure

Nothing is parsed or evaluated. `OPERATIONS` (of `terms`) has every operation there is; what is not in it is refused.
Decoding puts an expression together as it was, and does not simplify it on the way, so that a strange expression costs
no more time than a plain one. Neither sympy nor torch is imported before an expression is really read or written.

    constants        true, 3, 0.5; Rational and Float (of any precision) as operations on integers; infinities, nan
    symbols          by name
    torch's own      FloorDiv, ModularIndexing, Min, ... by the names they have in torch
    sympy's          Add, Mul, Eq, And, ...; "sympy.Mod", "sympy.Min", "sympy.Max" where torch has one of the same name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from torchsleuth import torch_compat
from torchsleuth.case.format.terms import MAX_DEPTH, MAX_NODES, OPERATIONS, Sort, check_term
from torchsleuth.case.schema import Apply, Term
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold, in_words

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]

__all__ = ["OPERATIONS", "check_term", "decode_expr", "encode_expr"]

# ---- from sympy ------------------------------------------------------------------------------------------


def encode_expr(expr: sympy.Basic | int | float | bool) -> Term:
    """The expression as a term. `CannotHold` if it has a part that the table does not have, or is out of bounds."""
    import sympy

    try:
        term = _Encoder().encode(sympy.sympify(expr, strict=True), 1)
        check_term(term)
    except BadCase as error:
        raise _cannot_hold(error.cause) from error
    return term


class _Encoder:
    def __init__(self) -> None:
        self.nodes = 0

    def encode(self, expr: sympy.Basic, depth: int) -> Term:
        import sympy

        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise _cannot_hold(f"it is nested more than {MAX_DEPTH} deep, or has more than {MAX_NODES:,} parts")
        if isinstance(expr, sympy.Symbol):
            return str(expr.name)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Rational):
            return Apply("Rational", (int(expr.p), int(expr.q)))
        if isinstance(expr, sympy.Float):
            return _encode_float(expr)
        if expr is sympy.true or expr is sympy.false:
            return bool(expr)
        name = _names().get(expr if expr.is_Atom else type(expr))
        if name is None:
            raise _cannot_hold(f"sympy's {type(expr).__name__} has no place in a case")
        args = expr.args
        if name == "Piecewise":
            args = tuple(part for pair in args for part in pair.args)
        return Apply(name, tuple(self.encode(arg, depth + 1) for arg in args))


def _encode_float(expr: sympy.Float) -> Term:
    import sympy

    try:
        plain = float(expr)
    except OverflowError:
        plain = math.inf
    if math.isfinite(plain) and (same := sympy.Float(plain)) == expr and same._prec == expr._prec:
        return plain
    sign, mantissa, exponent, _ = expr._mpf_
    return Apply("Float", (-int(mantissa) if sign else int(mantissa), int(exponent), int(expr._prec)))


def _cannot_hold(cause: str) -> CannotHold:
    return CannotHold(
        "an expression over symbolic sizes cannot be written",
        cause=cause,
        remedy="capture the failure with static sizes (dynamic=False) if it still occurs",
    )


# ---- to sympy --------------------------------------------------------------------------------------------


def decode_expr(term: Term, symbols: Mapping[str, sympy.Symbol], *, sort: Sort = "any", field: str = "") -> sympy.Basic:
    """The expression that a term describes, put together as it was. `BadCase` if it describes none of this sort."""
    check_term(term, symbols, sort=sort, field=field)
    try:
        return _decode(term, symbols)
    except Exception as error:
        raise BadCase(
            "an expression over symbolic sizes cannot be used",
            cause=in_words(error),
            remedy=GET_IT_AGAIN,
            field=field,
        ) from error


def _decode(term: Term, symbols: Mapping[str, sympy.Symbol]) -> sympy.Basic:
    import sympy

    if isinstance(term, bool):
        return sympy.true if term else sympy.false
    if isinstance(term, int):
        return sympy.Integer(term)
    if isinstance(term, float):
        return sympy.Float(term)
    if isinstance(term, str):
        return symbols[term]
    if term.op == "Rational":
        return sympy.Rational(*term.args)
    if term.op == "Float":
        mantissa, exponent, precision = (int(arg) for arg in term.args if isinstance(arg, int))
        return sympy.Float((int(mantissa < 0), abs(mantissa), exponent, mantissa.bit_length()), precision=precision)
    return _put_together(term.op, tuple(_decode(arg, symbols) for arg in term.args))


def _put_together(op: str, args: tuple[sympy.Basic, ...]) -> sympy.Basic:
    """An operation on arguments as it stands, whatever sympy would have made of it."""
    import sympy
    from sympy.core.function import Application  # type: ignore[import-untyped]
    from sympy.functions.elementary.piecewise import ExprCondPair  # type: ignore[import-untyped]

    kind = _parts()[op]
    if OPERATIONS[op].most == 0:
        return kind
    if op in _OF_A_SET and len(frozenset(args)) != len(args):
        raise ValueError(f"{op} has the same argument twice")
    if op in ("And", "Or", "Xor", "Not", "ITE"):
        made = Application.__new__(kind, *args, evaluate=False)
    elif op == "Piecewise":
        pairs = (sympy.Basic.__new__(ExprCondPair, *args[i : i + 2]) for i in range(0, len(args), 2))
        made = sympy.Basic.__new__(kind, *pairs)
    elif op in _OF_A_SET:
        made = sympy.Basic.__new__(kind, *args)
    else:
        made = kind(*args, evaluate=False)
    if op in _OF_A_SET:
        made._argset = frozenset(args)
    if op in ("Max", "Min"):
        made.unique_summations_symbols = None
    return made


# ---- the table in sympy's and torch's objects ------------------------------------------------------------


_OF_A_SET = frozenset({"And", "Or", "Xor", "Max", "Min", "sympy.Max", "sympy.Min"})
_SYMPY = frozenset(
    "Add Mul Pow Abs floor ceiling Piecewise Eq Ne Lt Le Gt Ge And Or Xor Not ITE sympy.Max sympy.Min sympy.Mod".split()
)


@cache
def _parts() -> Mapping[str, Any]:
    """What each operation is: a class, or a constant."""
    import sympy

    infinity = torch_compat.integer_infinity()
    parts = {"oo": sympy.oo, "-oo": -sympy.oo, "zoo": sympy.zoo, "nan": sympy.nan}
    parts |= {"int_oo": infinity, "-int_oo": -infinity}
    functions = torch_compat.size_functions()
    for name in OPERATIONS.keys() - parts.keys() - {"Rational", "Float"}:
        parts[name] = getattr(sympy, name.removeprefix("sympy.")) if name in _SYMPY else functions[name]
    return parts


@cache
def _names() -> Mapping[Any, str]:
    """What each class and constant is called."""
    return {part: name for name, part in _parts().items()}

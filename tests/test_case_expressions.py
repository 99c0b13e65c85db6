"""Expressions over symbolic sizes: what is written is read again as it was, and what is no expression is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sympy
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.utils._sympy import functions as f
from torch.utils._sympy.numbers import int_oo

from torchsleuth.case.format.terms import MAX_DEPTH, MAX_NODES
from torchsleuth.case.graphs.expressions import OPERATIONS, check_term, decode_expr, encode_expr
from torchsleuth.case.schema import Apply, Term
from torchsleuth.errors import BadCase, CannotHold

s0 = sympy.Symbol("s0", positive=True, integer=True)
s1 = sympy.Symbol("s1", integer=True)
u0 = sympy.Symbol("u0", integer=True)
u1 = sympy.Symbol("u1", integer=True)
zf0 = sympy.Symbol("zf0", real=True)
SYMBOLS = {symbol.name: symbol for symbol in (s0, s1, u0, u1, zf0)}


def same(a: sympy.Basic, b: sympy.Basic) -> bool:
    """Not only equal: of the same classes throughout, and printed the same.

    Not by `srepr`: sympy caches results, and may give one that was made of an equal symbol whose assumptions were
    written down in another order. Nor by the order of parts, which sets (And, Or, Xor) do not have.
    """
    classes = [Counter(type(part) for part in sympy.preorder_traversal(one)) for one in (a, b)]
    return bool(a == b and hash(a) == hash(b) and classes[0] == classes[1] and str(a) == str(b))


def written(term: Term) -> Term:
    """The term as it comes out of a file."""
    return msgspec.json.decode(msgspec.json.encode(term), type=Term)


EXPRESSIONS = [
    4 * s0 + 1,
    s0 / 2,
    1 / s0,
    s0**3 * u0,
    sympy.sqrt(s0),
    f.FloorDiv(s0 + 1, 2),
    f.FloorDiv(s0 * u0, s1) + f.CleanDiv(u0, 3),
    f.ModularIndexing(s0, 3, s1),
    f.PythonMod(u0, 3) - sympy.Mod(u1, 5),
    f.Max(1, u0) - f.Min(s0, u0 + u1),
    f.Max(u0 + u1, s0 + s1),
    sympy.Max(s1, u0) + sympy.Min(u0, 5),
    f.PowByNatural(2, u0),
    f.LShift(1, u0),
    f.RShift(s0, u0),
    f.FloatPow(zf0, 2.5) + f.FloatTrueDiv(zf0, 3.0),
    f.TruncToInt(f.IntTrueDiv(s0, 3)),
    f.RoundDecimal(zf0, 2) + f.TruncToFloat(zf0) + f.ToFloat(s0),
    f.CeilToInt(zf0) + f.FloorToInt(zf0) + f.RoundToInt(zf0),
    f.Identity(s0 + 1) + 1,
    f.IsNonOverlappingAndDenseIndicator(s0, s1, s1, 1),
    f.OpaqueUnaryFn_sqrt(zf0) + f.OpaqueUnaryFn_log2(f.ToFloat(s0)),
    f.BitwiseFn_bitwise_and(s0, u0) + f.BitwiseFn_bitwise_or(u0, 3),
    f.Where(s0 < u0, s0, u0),
    sympy.Piecewise((1, u0 > 3), (0, True)),
    sympy.Abs(u0) + sympy.floor(s0 / 2) + sympy.ceiling(zf0),
    sympy.Eq(f.Mod(s0, 2), 0),
    sympy.Ne(u0, 1, evaluate=False),
    sympy.Eq(u0 < 3, s0 > 4, evaluate=False),
    sympy.And(s0 < 3, u0 > 4, u1 >= s0),
    sympy.Or(s0 < 3, sympy.Eq(u0, u1)),
    sympy.Xor(s0 < 3, u0 > 4),
    sympy.Not(sympy.Eq(s0, 2), evaluate=False),
    sympy.ITE(u0 < 3, s0 < 4, s1 < u0),
    sympy.Le(0, u0, evaluate=False),
    # torch makes some expressions without evaluating them, and they have to stay so
    sympy.Add(1, 2, s0, evaluate=False),
    sympy.Add(u1, u0, evaluate=False),
    sympy.Mul(2, s0 + 1, evaluate=False),
    sympy.Mul(s0, sympy.Pow(s0, -1, evaluate=False), evaluate=False),
    sympy.Eq(s0, s0, evaluate=False),
    f.FloorDiv(s0, 1, evaluate=False),
    # constants
    sympy.Integer(0),
    sympy.Integer(-(2**63)),
    sympy.Integer(2) ** 200,
    sympy.Rational(1, 3),
    sympy.Rational(-7, 2),
    sympy.Float(0.1),
    sympy.Float(0.0),
    sympy.Float(2.0) * zf0,
    sympy.Float(5e-324),
    sympy.Float("0.1", 50),
    sympy.Float("-1e400", 15),
    sympy.oo,
    -sympy.oo,
    int_oo,
    -int_oo,
    sympy.zoo,
    sympy.nan,
    sympy.true,
    sympy.false,
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_an_expression_is_read_as_it_was_written(expr: sympy.Basic) -> None:
    assert same(decode_expr(written(encode_expr(expr)), SYMBOLS), expr)


def example(op: str) -> Apply:
    """Some call of an operation."""
    if op in ("Rational", "Float"):
        return Apply(op, (-7, 3) if op == "Rational" else (5, -70, 80))
    operation = OPERATIONS[op]
    arguments = (Apply("Gt", ("u0", 3)), "s0", "u1") if op == "Where" else ("u0", Apply("Lt", ("u1", 7)), "s0", True)
    if operation.takes == "truth":
        arguments = (Apply("Eq", ("s0", 8)), Apply("Gt", ("u0", 3)), Apply("Lt", ("u1", 7)))
    elif op != "Where" and op != "Piecewise":
        arguments = ("u0", 3, "s0", 1)
    return Apply(op, arguments[: operation.most or 2 * operation.least])


@pytest.mark.parametrize("op", [*OPERATIONS])
def test_every_operation_of_the_table_is_read_and_written_without_being_evaluated(op: str) -> None:
    term = example(op)
    expr = decode_expr(term, SYMBOLS)
    assert encode_expr(expr) == term
    assert same(decode_expr(encode_expr(expr), SYMBOLS), expr)


def test_every_function_that_torch_has_for_sizes_is_in_the_table() -> None:
    made = {name for name in vars(f) if name.startswith(("OpaqueUnaryFn_", "BitwiseFn_"))}
    never_there = {"CeilDiv"}  # making one gives a FloorDiv or CleanDiv
    assert {*f.__all__, "Max", "Min"} | made <= {*OPERATIONS} | never_there
    assert not isinstance(f.CeilDiv(s0, 3), f.CeilDiv)


def test_the_table_needs_neither_torch_nor_sympy() -> None:
    program = (
        "import sys; from torchsleuth.case.graphs.expressions import OPERATIONS, check_term; check_term('s0'); "
        "from torchsleuth.case.format.symbol_checks import check_symbols; "
        "sys.exit('torch' in sys.modules or 'sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_same_expression_is_the_same_bytes_in_every_process() -> None:
    program = (
        "import sys, msgspec; sys.path.insert(0, sys.argv[1]); from test_case_expressions import *; "
        "print(msgspec.json.encode([encode_expr(e) for e in EXPRESSIONS]).decode())"
    )
    here = msgspec.json.encode([encode_expr(expr) for expr in EXPRESSIONS]).decode()
    there = subprocess.run(
        [sys.executable, "-c", program, os.path.dirname(__file__)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_a_rebuilt_expression_goes_on_as_the_original_does() -> None:
    for expr in EXPRESSIONS:
        if not isinstance(expr, sympy.Expr) or not expr.free_symbols:
            continue
        again = decode_expr(encode_expr(expr), SYMBOLS)
        assert same(again + s0, expr + s0)
        assert again.xreplace({u0: sympy.Integer(6)}) == expr.xreplace({u0: sympy.Integer(6)})
        assert again.is_integer == expr.is_integer
        assert again.is_nonnegative == expr.is_nonnegative


# ---- random ones -----------------------------------------------------------------------------------------

leaves = st.sampled_from([s0, s1, u0, u1]) | st.integers(-20, 20).map(sympy.Integer)
divisors = st.integers(1, 9).map(sympy.Integer) | st.just(s0)


BUILDERS: list[Callable[..., sympy.Basic]] = [
    lambda a, b, _: a + b,
    lambda a, b, _: a * b,
    lambda a, b, _: f.Max(a, b),
    lambda a, b, _: f.Min(a, b),
    lambda a, b, _: sympy.Add(a, b, evaluate=False),
    lambda a, _, n: f.FloorDiv(a, n),
    lambda a, _, n: f.PythonMod(a, n),
    lambda a, b, n: f.ModularIndexing(a, n, f.Max(1, b)),
    lambda a, b, n: sympy.Piecewise((a, b < n), (b, True)),
    lambda a, b, n: f.Where(sympy.Eq(a, n), a, b),
    lambda a, _, n: f.TruncToInt(f.IntTrueDiv(a, n)),
    lambda a, b, _: f.Identity(a) + b,
]
CONDITIONS: list[Callable[..., sympy.Basic]] = [
    lambda a, b, _: sympy.Le(a, b),
    lambda a, b, n: sympy.And(sympy.Ne(a, n), a < b),
    lambda a, b, n: sympy.Or(sympy.Eq(f.PythonMod(a, n), 0), b > 2),
]


def built(builder: Callable[..., sympy.Basic], *args: sympy.Basic) -> sympy.Basic:
    """What sympy makes of it; its first argument if sympy loses its way, which it sometimes does."""
    try:
        return builder(*args)
    except Exception:  # noqa: BLE001
        return args[0]


def larger(smaller: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(built, st.sampled_from(BUILDERS), smaller, smaller, divisors)


expressions = st.recursive(leaves, larger, max_leaves=8)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions | st.builds(built, st.sampled_from(CONDITIONS), expressions, expressions, divisors))
def test_any_expression_is_read_as_it_was_written(expr: sympy.Basic) -> None:
    assert same(decode_expr(written(encode_expr(expr)), SYMBOLS), expr)


numbers = st.integers() | st.integers(-(10**30), 10**30) | st.sampled_from([0, 1, -1, 2, 10**9, 2**63])
junk = st.recursive(
    st.booleans() | numbers | st.floats() | st.sampled_from([*SYMBOLS, "s9", "", "__import__('os')", "x" * 1000]),
    lambda inner: st.builds(
        Apply,
        st.sampled_from([*OPERATIONS, "eval", "Integral", "sympy.Symbol", ""]),
        st.lists(inner, max_size=4).map(tuple),
    ),
    max_leaves=12,
)


@settings(max_examples=600, deadline=2000, suppress_health_check=list(HealthCheck))
@given(junk)
def test_any_term_is_an_expression_or_is_refused(term: Term) -> None:
    try:
        expr = decode_expr(term, SYMBOLS, field="somewhere")
    except BadCase as error:
        refused = error
    else:
        assert encode_expr(expr) is not None
        return
    assert refused.field == "somewhere"
    assert len(str(refused)) < 2000


# ---- what is refused -------------------------------------------------------------------------------------


def nested(depth: int, op: str = "Identity") -> Term:
    term: Term = "u0"
    for _ in range(depth - 1):
        term = Apply(op, (term,))
    return term


def tower(height: int) -> Term:
    term: Term = "s0"
    for _ in range(height):
        term = Apply("Pow", (term, 100))
    return term


HOSTILE: dict[str, Term] = {
    "an operation that is not there": Apply("eval", ("s0",)),
    "one of sympy's that no size has": Apply("Integral", ("s0",)),
    "too few arguments": Apply("FloorDiv", ("s0",)),
    "too many arguments": Apply("FloorDiv", ("s0", 2, 3)),
    "an odd number of arguments": Apply("IsNonOverlappingAndDenseIndicator", ("s0", 2, 3)),
    "an odd piecewise": Apply("Piecewise", (1, True, 2)),
    "a symbol that is not there": Apply("Add", ("s0", "s9")),
    "a truth where a number has to be": Apply("Add", ("s0", True)),
    "a number where a truth has to be": Apply("And", ("s0", True)),
    "a number as a condition": Apply("Where", ("s0", 1, 2)),
    "no value of a float": float("nan"),
    "an infinite float": Apply("Add", ("s0", float("inf"))),
    "something else": ["Add", 1, 2],  # type: ignore[dict-item]
    "None": None,  # type: ignore[dict-item]
    "too deep": nested(MAX_DEPTH + 1),
    "much too deep": nested(900),
    "too many parts": Apply("Add", ("s0",) * (MAX_NODES + 1)),
    "a power of constants": Apply("Pow", (10, 10**9)),
    "a power of a symbol": Apply("Pow", ("s0", 10**9)),
    "a power by a symbol": Apply("Pow", (2, "s0")),
    "a tower of powers": tower(5),
    "a power to a huge number": Apply("PowByNatural", (2, 10**300)),
    "a huge shift": Apply("LShift", (1, 10**9)),
    "a negative shift": Apply("RShift", ("s0", -1)),
    "a huge number": 10**5000,
    "a huge product": Apply("Mul", (2**4000,) * 3),
    "a huge exponent": Apply("Float", (1, 10**9, 53)),
    "a huge precision": Apply("Float", (1, 1, 10**9)),
    "an even mantissa": Apply("Float", (4, 1, 53)),
    "a mantissa beyond its precision": Apply("Float", (2**60 + 1, 1, 53)),
    "a Float of symbols": Apply("Float", ("s0", 1, 53)),
    "a Rational by zero": Apply("Rational", (1, 0)),
    "a Rational not in lowest terms": Apply("Rational", (2, 4)),
    "a Rational of truths": Apply("Rational", (True, 2)),
    "a division by zero": Apply("FloorDiv", ("s0", 0)),
    "a division by zero in disguise": Apply("FloorDiv", ("s0", Apply("Add", (1, -1)))),
    "a division by zero times something": Apply("FloorDiv", ("s0", Apply("Mul", (0, "u0")))),
    "a division by a zero float": Apply("FloatTrueDiv", ("zf0", 0.0)),
    "a remainder by zero": Apply("Mod", ("s0", 0)),
    "Python's remainder by zero": Apply("PythonMod", ("s0", 0)),
    "sympy's remainder by zero": Apply("sympy.Mod", ("s0", 0)),
    "an index divided by zero": Apply("ModularIndexing", ("s0", 0, 3)),
    "an index modulo zero": Apply("ModularIndexing", ("s0", 3, 0)),
    "a negative power of zero": Apply("Pow", (0, -1)),
    "a power that multiplies out to millions": Apply("Pow", (Apply("Add", ("s0", "s1", "u0", "u1")), 50)),
    "a product that multiplies out to millions": Apply("Mul", (Apply("Add", ("s0", "s1", "u0", "u1")),) * 12),
}


@pytest.mark.parametrize("what", [*HOSTILE])
def test_a_term_that_is_no_expression_is_refused_at_once(what: str) -> None:
    """Covers: S21."""
    for refuse in (
        lambda: decode_expr(HOSTILE[what], SYMBOLS, field="graph.nodes[3]"),
        lambda: check_term(HOSTILE[what], SYMBOLS, field="graph.nodes[3]"),
    ):
        start = time.perf_counter()
        with pytest.raises(BadCase, match=r"graph\.nodes\[3\]") as caught:
            refuse()
        assert time.perf_counter() - start < 5
        assert caught.value.field == "graph.nodes[3]"
        assert caught.value.cause


def test_the_deepest_and_the_longest_expression_still_work() -> None:
    for term in (nested(MAX_DEPTH), Apply("Add", ("s0", "u0") * 2000)):
        assert encode_expr(decode_expr(term, SYMBOLS)) == term


def test_what_the_table_does_not_have_is_not_written() -> None:
    for expr in (sympy.gamma(s0), sympy.I * s0, sympy.Symbol("x") ** s0, sympy.Function("g")(s0), sympy.pi):
        with pytest.raises(CannotHold):
            encode_expr(expr)


def test_text_is_never_parsed() -> None:
    with pytest.raises(sympy.SympifyError):
        encode_expr("__import__('os').getcwd()")  # type: ignore[arg-type]


def test_an_expression_that_is_too_deep_or_too_large_is_not_written() -> None:
    deep: sympy.Basic = u0
    for _ in range(MAX_DEPTH):
        deep = f.Identity(deep)
    with pytest.raises(CannotHold, match="nested more than"):
        encode_expr(deep)
    wide: sympy.Basic = u0
    for _ in range(40):  # small in memory, because its parts are shared; as a tree, larger than any disk
        wide = sympy.Add(f.Identity(wide), f.CeilToInt(wide, evaluate=False), evaluate=False)
    start = time.perf_counter()
    with pytest.raises(CannotHold, match="parts"):
        encode_expr(wide)
    assert time.perf_counter() - start < 10

"""Values of a case as Python source: what is written makes the same value again, and nothing else."""

from __future__ import annotations

import ast
import math
import struct
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings, strategies as st

from torchsleuth.case import schema
from torchsleuth.case.graphs.expressions import decode_expr, encode_expr
from torchsleuth.case.plain import encode_plain
from torchsleuth.case.schema import Apply
from torchsleuth.case.script.source import (
    float_source,
    target_source,
    term_source,
    text_source,
    torch_source,
    value_source,
    values_in,
)
from torchsleuth.errors import BadCase

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=6)
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=8,
)


def run(source: str) -> Any:
    return eval(source, {"torch": torch, "struct": struct})  # noqa: S307 - our own source, that is what is tested


def bits(value: Any) -> Any:
    """The value in a form that is equal only for the same bits and types."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, complex):
        return ("complex", bits(value.real), bits(value.imag))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(bits, value))
    if isinstance(value, dict):
        return ("dict", *((bits(key), bits(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return ("slice", bits(value.start), bits(value.stop), bits(value.step))
    return (type(value).__name__, value)


@settings(max_examples=300, deadline=None)
@given(PLAIN)
def test_the_source_of_a_plain_value_makes_that_value_bit_for_bit(value: Any) -> None:
    """Covers: S21, U17, U18"""
    assert bits(run(value_source(encode_plain(value)))) == bits(value)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(), max_size=20))
def test_a_string_is_one_literal_on_one_line_in_double_quotes_unless_that_needs_more_escapes(text: str) -> None:
    """Covers: U17"""
    source = text_source(text)
    assert ast.literal_eval(source) == text
    assert len(source.splitlines()) == 1
    assert source[0] == ("'" if text.count('"') > text.count("'") else '"')


@pytest.mark.parametrize("number", ["7ff8000000000001", "fff8000000000000", "7ff0000000000000", "8000000000000000"])
def test_every_bit_of_a_strange_float_survives(number: str) -> None:
    """Covers: S21"""
    (value,) = struct.unpack(">d", bytes.fromhex(number))
    assert struct.pack(">d", run(float_source(value))).hex() == number


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (schema.Torch("float8_e4m3fn"), torch.float8_e4m3fn),
        (schema.Torch("channels_last"), torch.channels_last),
        (schema.Torch("sparse_csr"), torch.sparse_csr),
        (schema.Device("cuda", 1), torch.device("cuda", 1)),
        (schema.Device("cpu"), torch.device("cpu")),
        (schema.Size((2, 3)), torch.Size([2, 3])),
        (schema.Set((1, "a"), frozen=True), frozenset({1, "a"})),
        (schema.Set(), set()),
        (schema.Range(0, 8, 2), range(0, 8, 2)),
        (schema.Ellipsis_(), ...),
        (schema.Function("torch.ops.aten.add.Tensor"), torch.ops.aten.add.Tensor),
        (schema.Function("torch.nn.functional.gelu"), torch.nn.functional.gelu),
        (schema.Text("d800dc00d800"), "\U00010000\ud800"),
    ],
)
def test_torchs_own_values_are_made_by_their_names(value: schema.Value, made: object) -> None:
    """Covers: U18"""
    found = run(value_source(value))
    assert found == made
    assert type(found) is type(made)


def test_nodes_tensors_and_what_is_missing_are_named() -> None:
    assert value_source(schema.List((schema.Ref("add_1"), 2))) == "[add_1, 2]"
    assert value_source(schema.Tensor("float32", (2, 3), (3, 1), storage=4)).startswith("view(storage_4, torch.float32")
    assert value_source(schema.Fake("float32", ("s0", 4), (4, 1))) == "fake(torch.float32, (s0, 4), (4, 1))"
    assert "ScriptObject" in value_source(schema.Noticed("ScriptObject", "it is code"))


@pytest.mark.parametrize(
    "attack",
    [
        lambda: target_source("__import__('os').system('true')"),
        lambda: target_source("torch.ops.aten.add.Tensor(1)"),
        lambda: target_source("torch.nn.functional.gelu.__globals__"),
        lambda: torch_source("float32; import os"),
        lambda: torch_source("hub"),
        lambda: term_source("s0) or exit("),
        lambda: term_source(Apply("__import__", ("s0",))),
        lambda: value_source(schema.Float("zz")),
        lambda: value_source(schema.Text("d8")),
    ],
)
def test_what_is_no_name_is_refused_and_never_becomes_code(attack: Any) -> None:
    """Covers: U17"""
    with pytest.raises(BadCase):
        attack()


s0, s1, u0 = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1", "u0"))


@pytest.mark.parametrize(
    ("expr", "source"),
    [
        (4 * s0 + 1, "1 + 4 * s0"),
        (-s0, "-s0"),
        (s0 - s1, "s0 - s1"),
        ((s0 + 1) * s1, "s1 * (1 + s0)"),
        ((s0 + 1) ** 2, "(1 + s0)**2"),
        (-(s0**2), "-s0**2"),
        (sympy.Rational(1, 2) * s0, "Rational(1, 2) * s0"),
        (sympy.Le(2, s0), "Le(2, s0)"),
        (sympy.Lt(s0, s1), "s0 < s1"),
        (sympy.Eq(s0, s1), "Eq(s0, s1)"),
    ],
)
def test_an_expression_reads_as_one_would_write_it_and_evaluates_to_itself(expr: Any, source: str) -> None:
    """Covers: U4"""
    term = encode_expr(expr)
    assert sorted(term_source(term)) == sorted(source)  # sympy orders summands and factors as it likes
    again = eval(term_source(term), vars(sympy) | {"s0": s0, "s1": s1})  # noqa: S307 - our own source
    assert again == expr == decode_expr(term, {"s0": s0, "s1": s1})


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.sampled_from([s0, s1, u0]) | st.integers(-5, 5).map(sympy.Integer),
        lambda inner: st.tuples(inner, inner).flatmap(
            lambda pair: st.sampled_from([pair[0] + pair[1], pair[0] * pair[1], pair[0] - pair[1], pair[0] ** 2])
        ),
        max_leaves=8,
    )
)
def test_brackets_are_where_they_have_to_be(expr: Any) -> None:
    """Covers: U4"""
    again = eval(term_source(encode_expr(expr)), vars(sympy) | {"s0": s0, "s1": s1, "u0": u0})  # noqa: S307
    assert sympy.sympify(again) == expr


def test_constants_of_expressions_have_their_names() -> None:
    assert term_source(Apply("int_oo")) == "int_oo"
    assert term_source(Apply("-int_oo")) == "-int_oo"
    assert term_source(Apply("Add", (1, Apply("-oo")))) == "1 - oo"
    assert run(term_source(0.5)) == 0.5
    assert math.isinf(run(value_source(float("inf"))))


def test_every_value_inside_a_value_is_found() -> None:
    tensor = schema.Tensor("float32", (1,), (1,), storage=0)
    nest = schema.Dict((("a", schema.List((tensor, schema.Slice(1, schema.Ref("x"))))),))
    found = list(values_in(nest))
    assert tensor in found
    assert schema.Ref("x") in found

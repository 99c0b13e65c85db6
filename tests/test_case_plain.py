"""Plain values as data: same type, same bits, whatever they are."""

from __future__ import annotations

import enum
import math
import struct
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, strategies as st

from case_samples import small_case
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.plain import DEEPEST, LARGEST_INT_BITS, decode_plain, encode_plain
from torchsleuth.errors import BadCase, CannotHold

ODD_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]


def through_json(x: object) -> Any:
    """The object after a trip through the file format."""
    data = msgspec.json.encode(schema.Entry("x", encode_plain(x)))
    return decode_plain(msgspec.json.decode(data, type=schema.Entry).value)


def exact(x: Any) -> Any:
    """Something that is equal only for the same type and bits, all the way down."""
    if isinstance(x, float):
        return float, struct.pack(">d", x)
    if isinstance(x, complex):
        return complex, exact(x.real), exact(x.imag)
    if isinstance(x, (list, tuple)):
        return type(x), [exact(item) for item in x]
    if isinstance(x, (set, frozenset)):
        return type(x), sorted(map(repr, map(exact, x)))
    if isinstance(x, dict):
        return dict, [(exact(key), exact(value)) for key, value in x.items()]
    return type(x), x


@pytest.mark.parametrize(
    "x",
    [
        None,
        True,
        0,
        -(2**63) - 1,
        2**200,
        -0.0,
        1.0,
        5e-324,
        math.inf,
        -math.inf,
        ODD_NAN,
        complex(-0.0, math.nan),
        'it\'s a "quote", a \\ and a\nline',
        "\x00\x1b[31m\u202e",
        "\ud800 alone",
        b"\x00\xff",
        ...,
        slice(None, 2, -1),
        range(10, 0, -3),
        [1, [2.0, ("a",)], {}],
        {1: "a", 1.5: [None], (1, 2): {"deep": {3, 4}}},
        {"z", "a"},
        frozenset({1, (2, 3)}),
        torch.Size([2, 3]),
        torch.float8_e4m3fn,
        torch.channels_last,
        torch.sparse_csr,
        torch.per_tensor_affine,
        torch.device("cuda", 3),
        torch.device("cpu"),
    ],
)
def test_a_plain_value_comes_back_as_it_was(x: object) -> None:
    """Covers: U17, U18"""
    assert exact(through_json(x)) == exact(x)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
any_text = st.text(st.characters())  # lone surrogates included
keys = st.integers() | any_text | st.booleans()
values = st.recursive(
    leaves | any_text,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=12,
)


@given(values)
def test_any_nest_of_plain_values_comes_back_as_it_was(x: object) -> None:
    """Covers: U17, U18"""
    assert exact(through_json(x)) == exact(x)


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_a_set_is_the_same_bytes_in_whatever_order_it_is_met(members: list[str]) -> None:
    """Covers: S22"""
    assert encode_plain(set(members)) == encode_plain({"a", "b", "c", "d", "e"})


class Colour(enum.IntEnum):
    RED = 1


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("x", [Colour.RED, print, Unprintable(), object, 1 << 9000, torch.ones(1)])
def test_what_is_not_plain_is_noticed_with_a_reason(x: object) -> None:
    noticed = encode_plain(x)
    assert isinstance(noticed, schema.Noticed)
    assert noticed.reason
    with pytest.raises(CannotHold, match="not in the case"):
        decode_plain(noticed)


def test_what_is_not_plain_inside_of_a_container_is_noticed_in_its_place() -> None:
    assert isinstance(encode_plain([1, print]), schema.List)
    assert encode_plain([1, print]).items[0] == 1  # type: ignore[union-attr]
    with pytest.raises(CannotHold):
        decode_plain(encode_plain([1, print]))


def test_others_are_asked_for_what_is_not_plain() -> None:
    encoded = encode_plain({"a": [print]}, lambda leaf: schema.Function(leaf.__name__))  # type: ignore[attr-defined]
    assert decode_plain(encoded, lambda value: ("found", value.name)) == {"a": [("found", "print")]}  # type: ignore[union-attr]


def test_what_contains_itself_or_is_nested_too_deep_is_noticed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 0
    for _ in range(DEEPEST + 5):
        deep = (deep,)
    assert "contains itself" in str(encode_plain(loop))
    assert "deep" in str(encode_plain(deep))


def test_a_value_nested_too_deep_is_refused_on_reading() -> None:
    deep: schema.Value = 0
    for _ in range(DEEPEST + 5):
        deep = schema.Tuple((deep,))
    with pytest.raises(BadCase, match="nested"):
        decode_plain(deep)


@pytest.mark.parametrize(
    "value",
    [
        schema.Float("12"),
        schema.Float("no hex digits!!"),
        schema.Text("zz"),
        schema.Text("00"),
        schema.Complex("a", 1),
        schema.Range(0, 1, 0),
        schema.Range("a", 1, 1),
        schema.Size(("a",)),
        schema.Set((schema.List(),)),
        schema.Dict(((schema.Dict(), 1),)),
        schema.Torch("save"),
        schema.Torch("load"),
        schema.Torch("_C"),
        schema.Device("nonsense"),
        schema.Device("cuda", 2**70),
        schema.Device("cuda", -5),
        schema.Ref("x"),
        schema.Function("os.system"),
    ],
)
def test_what_is_no_plain_value_is_a_bad_case_that_names_the_field(value: schema.Value) -> None:
    with pytest.raises(BadCase) as caught:
        decode_plain(value, file="case.json", field="state.config[3]")
    assert "case.json: state.config[3]" in str(caught.value)


def test_every_integer_that_is_written_can_be_read() -> None:
    """What is too long for a case is noticed where it stands; it never keeps the case from being written."""
    for bits in (64, 4096, 4097, LARGEST_INT_BITS, LARGEST_INT_BITS + 1, 20_000):
        for number in (2**bits - 1, 1 - 2**bits):
            value = encode_plain([number])
            assert decode(encode(small_case(inputs=(value,)))).inputs == (value,)
            noticed = isinstance(value, schema.List) and isinstance(value.items[0], schema.Noticed)
            assert noticed == (bits > LARGEST_INT_BITS)

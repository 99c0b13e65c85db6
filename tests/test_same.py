"""`same`: every kind of value and tensor, where it says two results differ, and in what words."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Bernoulli, Categorical, Geometric, Independent, Normal
from torch.testing._internal.two_tensor import TwoTensor

from support import Output
from torchsleuth.compare import Comparison, Tolerance, same
from torchsleuth.compare.agree import compare_pairs
from torchsleuth.compare.comparison import rmse_multiplier
from torchsleuth.compare.leaves import metadata_difference
from torchsleuth.compare.objects import equal
from torchsleuth.compare.tree import Leaves, Misfit, Opened, open_container, walk
from torchsleuth.errors import BadValue, FakeTensorGiven, UnknownSetting
from torchsleuth.outcome import Symptom

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: sparse, nested and quantised are "beta"

inf, nan = math.inf, math.nan
F64 = torch.float64


# ---- values to compare -----------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Batch:
    inputs: Any
    mask: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    inputs: Any


@dataclasses.dataclass
class Lazy:
    """A dataclass whose second field nobody may have set yet."""

    ready: int
    later: Any = dataclasses.field(init=False)


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, shown: Any, hidden: Any) -> None:
        self.shown = shown
        self.__hidden = hidden


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Key:
    def __repr__(self) -> str:
        return "Key"


def t(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def differs(found: Comparison, path: str, symptom: Symptom) -> Comparison:
    assert not found, found
    assert (found.path, found.symptom) == (path, symptom), found
    return found


# ---- structure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda x: x, ""),
        (lambda x: [1, x], "[1]"),
        (lambda x: (x, 1), "[0]"),
        (lambda x: deque([0, x]), "[1]"),
        (lambda x: Point(1, x), "[1]"),
        (lambda x: {"a": 1, "b": x}, "['b']"),
        (lambda x: {3: x}, "[3]"),
        (lambda x: OrderedDict(k=x), "['k']"),
        (lambda x: defaultdict(list, k=x), "['k']"),
        (lambda x: UserDict(k=x), "['k']"),
        (lambda x: MappingProxyType({"k": x}), "['k']"),
        (lambda x: Batch(x), ".inputs"),
        (lambda x: Frozen(x), ".inputs"),
        (lambda x: Output(loss=1, logits=x), "['logits']"),
        (lambda x: Plain(a=1, b=x), ".b"),
        (lambda x: SimpleNamespace(a=x), ".a"),
        (lambda x: Slotted(1, x), "._Slotted__hidden"),
        (lambda x: Slotted(x, 1), ".shown"),
        (lambda x: {"a": [Batch(mask=(1, {"k": x}), inputs=0)]}, "['a'][0].mask[1]['k']"),
        (lambda x: Output(logits=[Point(Plain(deep=x), 0)]), "['logits'][0][0].deep"),
    ],
)
def test_a_difference_anywhere_is_found_with_its_path(wrap: Any, path: str) -> None:
    """Covers: S33"""
    assert same(wrap(3), wrap(3))
    found = same(wrap(3), wrap(4))
    assert not found
    assert found.path == path


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        dict,
        deque,
        lambda: None,
        lambda: "text",
        lambda: b"bytes",
        lambda: True,
        lambda: 3,
        lambda: 2.5,
        lambda: 1 + 2j,
        lambda: nan,
        lambda: complex(nan, 1),
        lambda: -inf,
        lambda: 10**400,
        lambda: torch.Size([2, 3]),
        lambda: torch.float32,
        lambda: torch.device("cpu"),
        lambda: torch.strided,
        lambda: torch.channels_last,
        lambda: range(3),
        lambda: slice(1, 2),
        lambda: {1, "two", (3, 4)},
        lambda: frozenset({1}),
        lambda: Colour.RED,
        lambda: int,
        lambda: len,
        lambda: Ellipsis,
        lambda: Plain(),
        lambda: np.float32(0.5),
        lambda: np.float64(nan),
        lambda: np.int8(-3),
        lambda: np.True_,
        lambda: np.arange(6.0).reshape(2, 3),
        lambda: np.array([1.0, nan]),
        lambda: np.array(["a", "b"]),
        lambda: np.array(["a", None, 3], dtype=object),
        lambda: np.array(["NaT", "2024-01-01"], dtype="M8[D]"),
        lambda: np.array([nan, 1], dtype=np.longdouble),
        lambda: np.array([1.0, nan], dtype=">f4"),
        lambda: np.arange(4.0)[::-1],
        lambda: np.zeros((0, 3)),
        lambda: np.array(3.0),
        lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        lambda: torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(1))]),
        lambda: torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(2))}),
        lambda: Normal(t(0.0, 1.0), t(1.0, 2.0)),
        lambda: Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1),
        lambda: Lazy(1),
    ],
)
def test_two_of_the_same_agree(make: Any) -> None:
    """Covers: S33"""
    assert same(make(), make())
    assert same([make()], (make(),)), "a tuple may stand for a list"


def test_read_only_arrays_are_compared_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    """Covers: S33"""
    array = np.arange(3.0)
    array.flags.writeable = False
    assert same(array, array)
    differs(same(array, array + 1), "", Symptom.VALUE)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("ref", "res", "path", "symptom", "says"),
    [
        ([1, 2], [1], "", Symptom.STRUCTURE, "expected 2, got 1. The lengths differ."),
        ([1, [2, 3]], [1, [2, 3, 4]], "[1]", Symptom.STRUCTURE, "differ at [1] (structure): expected 2, got 3"),
        (torch.Size([2, 3]), torch.Size([2, 4]), "[1]", Symptom.INTEGER, "expected 3, got 4"),
        (torch.Size([2]), torch.Size([2, 4]), "", Symptom.STRUCTURE, "The lengths differ."),
        ({"a": 1}, {"b": 1}, "", Symptom.STRUCTURE, "Keys missing: ['a']; not expected: ['b']."),
        ({"a": {"b": 1}}, {"a": {}}, "['a']", Symptom.STRUCTURE, "Keys missing: ['b']."),
        ({}, {1: 2}, "", Symptom.STRUCTURE, "Keys not expected: [1]."),
        ([1], {0: 1}, "", Symptom.TYPE, "expected list, got dict. One is not the kind of container the other is."),
        ([[1]], [1], "[0]", Symptom.TYPE, "differ at [0] (type): expected list, got int."),
        ([None], [[]], "[0]", Symptom.TYPE, "expected NoneType, got list"),
        (Batch(1), Frozen(1), "", Symptom.TYPE, "expected Batch, got Frozen"),
        (Batch(1), {"inputs": 1, "mask": None}, "", Symptom.TYPE, "expected Batch, got dict"),
        (Plain(a=1), Plain(b=1), "", Symptom.STRUCTURE, "Keys missing: .a; not expected: .b."),
        (Plain(a=1), SimpleNamespace(a=1), "", Symptom.TYPE, "expected Plain, got SimpleNamespace"),
        (1, 1.0, "", Symptom.TYPE, "expected int, got float"),
        (1, True, "", Symptom.TYPE, "expected int, got bool"),
        (None, 0, "", Symptom.TYPE, "expected NoneType, got int"),
        ("a", b"a", "", Symptom.TYPE, "expected str, got bytes"),
        (np.True_, True, "", Symptom.TYPE, "expected numpy.bool, got builtins.bool"),
        (np.float32(1), np.float64(1), "", Symptom.TYPE, "expected float32, got float64"),
        (np.ones(2), torch.ones(2), "", Symptom.TYPE, "expected ndarray, got Tensor"),
        (torch.ones(()), 1.0, "", Symptom.TYPE, "expected Tensor, got float"),
        ("cat", "dog", "", Symptom.OBJECT, "expected 'cat', got 'dog'"),
        (True, False, "", Symptom.INTEGER, "expected True, got False"),
        (1.0, 1.1, "", Symptom.VALUE, "expected 1, got 1.1. Differences: max abs error 0.1."),
        (1 + 1j, 1 + 2j, "", Symptom.VALUE, "expected (1+1j), got (1+2j)"),
        (1.0, nan, "", Symptom.NAN, "expected 1, got nan"),
        (inf, -inf, "", Symptom.NAN, "expected inf, got -inf"),
        ({1, 2}, {1, 3}, "", Symptom.OBJECT, "expected {1, 2}, got {1, 3}"),
        (torch.float16, torch.float32, "", Symptom.OBJECT, "expected torch.float16, got torch.float32"),
        (Colour.RED, Colour.BLUE, "", Symptom.OBJECT, "RED"),
        (object(), object(), "", Symptom.OBJECT, "expected <object object at"),
        (np.int64(3), np.int64(4), "", Symptom.INTEGER, "expected np.int64(3), got np.int64(4)"),
        (np.float16(6e4), np.float16(-6e4), "", Symptom.VALUE, "max abs error 120000"),
        (np.array([1, 2]), np.array([1, 3]), "", Symptom.INTEGER, "expected 2, got 3, first at element [1]"),
        (np.ones(3), np.ones(1), "", Symptom.SHAPE, "expected (3,), got (1,)"),
        (np.ones(3, "f4"), np.ones(3), "", Symptom.DTYPE, "expected float32, got float64"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "", Symptom.OBJECT, "['a', 'c']"),
        (np.array(["a", "a"]), np.array(["a"]), "", Symptom.SHAPE, ""),
        (np.array([nan], "g"), np.array([1], "g"), "", Symptom.OBJECT, "nan"),
        (np.array(["NaT"], "M8[D]"), np.array(["2024-01-01"], "M8[D]"), "", Symptom.OBJECT, "NaT"),
    ],
)
def test_what_differs_and_where_is_said(ref: Any, res: Any, path: str, symptom: Symptom, says: str) -> None:
    """Covers: S33, S35"""
    found = differs(same(ref, res), path, symptom)
    assert says in str(found)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_kinds_of_numpy_arrays_are_compared_by_their_own_equality() -> None:
    """Covers: S33, S35"""
    assert same(np.matrix([[1.0, 2.0]]), np.matrix([[1.0, 2.0]]))
    differs(same(np.matrix([[1, 1]]), np.matrix([[1, 2]])), "", Symptom.OBJECT)
    differs(same(np.matrix([[1, 1]]), np.matrix([[1]])), "", Symptom.OBJECT)
    masked = np.ma.array([1, 2], mask=[False, True])
    assert same(masked, masked)
    differs(same(masked, np.ma.array([1, 3], mask=[False, False])), "", Symptom.OBJECT)


def test_a_field_that_was_never_set_is_a_missing_field() -> None:
    """Covers: S33"""
    one, other = Lazy(1), Lazy(1)
    other.later = 2
    assert "not expected: .later" in str(differs(same(one, other), "", Symptom.STRUCTURE))


def test_keys_that_print_alike_do_not_hide_one_another() -> None:
    """Covers: S33"""
    first, second = Key(), Key()
    assert same({first: 1, second: 2}, {first: 1, second: 2})
    differs(same({first: 1, second: 2}, {first: 9, second: 2}), "[Key]", Symptom.INTEGER)
    differs(same({first: 1, second: 2}, {first: 1, second: 9}), "[Key #2]", Symptom.INTEGER)
    differs(same({first: 1, second: 2}, {first: 1}), "", Symptom.STRUCTURE)


def test_the_order_of_keys_does_not_matter_and_the_expected_one_decides_what_comes_first() -> None:
    """Covers: S33"""
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert same({"z": 1, "a": 1}, {"a": 2, "z": 2}).path == "['z']"


def test_keys_of_unlike_types_are_no_trouble() -> None:
    """Covers: S33"""
    assert same({1: 1, "1": 2, None: 3, (1, 2): 4}, {"1": 2, None: 3, (1, 2): 4, 1: 1})
    assert same({1: 1, "1": 2}, {1: 1, "1": 3}).path == "['1']"


def test_a_container_that_holds_itself_is_compared_once() -> None:
    """Covers: S33"""

    def knot(value: int) -> list[Any]:
        made: list[Any] = [value]
        made.append(made)
        return made

    assert same(knot(1), knot(1)).leaves == 1
    assert same(knot(1), knot(2)).path == "[0]"
    ring, other = Plain(value=1), Plain(value=1)
    ring.me, other.me = ring, other  # type: ignore[attr-defined]
    assert same(ring, other)
    other.value = 2  # type: ignore[attr-defined]
    assert same(ring, other).path == ".value"


def test_a_list_in_two_places_is_compared_in_both() -> None:
    """Covers: S33"""
    shared = [1]
    assert same([shared, shared], [shared, [2]]).path == "[1][0]"


def test_parameter_lists_may_stand_against_lists_and_parameters_against_tensors() -> None:
    """Covers: S33"""
    parameters = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))])
    assert same(parameters, [torch.ones(2), torch.zeros(2)])
    differs(same(parameters, [torch.ones(2), torch.ones(2)]), "[1]", Symptom.VALUE)
    by_name = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(2))})
    assert same(by_name, {"w": torch.ones(2)})
    differs(same(by_name, {"w": torch.zeros(2)}), "['w']", Symptom.VALUE)


def test_distributions_are_compared_by_their_parameters() -> None:
    """Covers: S33"""
    assert same(Normal(0.0, 1.0), Normal(0.0, 1.0))
    differs(same(Normal(0.0, 1.0), Normal(0.0, 2.0)), ".scale", Symptom.VALUE)
    differs(same(Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)), ".loc", Symptom.SHAPE)
    assert not same(Normal(0.0, 1.0), Categorical(torch.ones(2)))


@pytest.mark.parametrize("kind", [Bernoulli, Categorical, Geometric])
def test_a_distribution_that_was_asked_for_its_probabilities_still_agrees(kind: Any) -> None:
    """Covers: S33. Distributions keep what they computed on the way; nothing is computed in the one given."""
    asked, fresh, other = (kind(logits=t(0.5, 0.1 + i)) for i in (0, 0, 1))
    assert asked.probs is not None
    assert same(asked, fresh)
    assert same(fresh, asked)
    assert "probs" not in vars(fresh)
    assert not same(asked, other)
    assert not same(other, asked)


def test_numbers_within_tolerance_agree_and_integers_have_none() -> None:
    """Covers: S33, S34"""
    assert same(1.0, 1.00005)
    assert not same(1.0, 1.0003)
    assert same(1.0, 1.0003, tol=1e-3)
    assert not same(10**6, 10**6 + 1, tol=1.0)
    assert same(np.float32(1.0), np.float32(1.00005))


def test_an_fp64_number_can_excuse_a_float() -> None:
    """Covers: S34"""
    assert not same(1.0, 1.2)
    assert same(1.0, 1.2, 1.1)
    assert not same(1.0, 1.5, 1.1)


def test_dtypes_of_numbers_may_be_relaxed() -> None:
    """Covers: S33, S34"""
    assert same(1, 1.0, exact_dtype=False)
    assert same(np.float32(1), 1.0, exact_dtype=False)
    assert not same(1, True, exact_dtype=False)
    assert not same("1", 1, exact_dtype=False)
    assert not same(10**400, 1.0, exact_dtype=False)


@pytest.mark.parametrize(
    ("scalar", "number"), [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.complex64(1j), 1j), (np.True_, True)]
)
def test_numpy_scalars_may_stand_against_numbers_on_request(scalar: Any, number: Any) -> None:
    """Covers: S33"""
    for ref, res in ((scalar, number), (number, scalar)):
        differs(same(ref, res), "", Symptom.TYPE)
        assert same(ref, res, relax_numpy_equality=True)
    differs(same(np.int64(3), 4, relax_numpy_equality=True), "", Symptom.INTEGER)


def test_an_equality_that_raises_vouches_for_nothing() -> None:
    """Covers: S33"""

    class Moody:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not today")

        __hash__ = None  # type: ignore[assignment]

    moody = Moody()
    assert same(moody, moody)
    differs(same(moody, Moody()), "", Symptom.OBJECT)


def test_the_first_difference_is_reported_and_the_leaves_up_to_it_are_counted() -> None:
    """Covers: S33"""
    found = same([1, 2, 3, 4], [1, 2, 9, 9])
    assert (found.path, found.leaves) == ("[2]", 3)
    assert same([1, [2, 3], {"a": 4}], [1, [2, 3], {"a": 4}]).leaves == 4


def test_what_a_container_is_can_be_said_by_another() -> None:
    """Covers: S33"""

    def only_lists(value: Any) -> Opened | None:
        return open_container(value) if isinstance(value, list) else None

    pairs = list(walk([1, {"a": 2}], [1, {"a": 3}], opener=only_lists))
    assert [pair.path for pair in pairs] == ["[0]", "[1]"]
    found = compare_pairs(pairs, Tolerance())
    differs(found, "[1]", Symptom.OBJECT)
    assert (found.ref, found.res) == ({"a": 2}, {"a": 3})


def test_parts_that_do_not_fit_are_at_hand() -> None:
    """Covers: S33"""
    for ref, res in (([1], [1, 2]), ({"a": 1}, {"b": 1}), ([1], 1), (1, [1])):
        (pair,) = walk(ref, res)
        assert isinstance(pair, Misfit)
        assert pair.sides == (ref, res)
        assert not compare_pairs([pair], Tolerance())


# ---- tensors: metadata -----------------------------------------------------------------------------------


def test_dtypes_must_be_equal_unless_relaxed() -> None:
    """Covers: S34"""
    one, wide = torch.ones(2), torch.ones(2, dtype=F64)
    found = differs(same(one, wide), "", Symptom.DTYPE)
    assert (str(found.ref), str(found.res)) == ("torch.float32", "torch.float64")
    assert same(one, wide, exact_dtype=False)
    assert same(torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int64), exact_dtype=False)
    assert same(torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.int64), exact_dtype=False)
    assert same(torch.ones(2, dtype=torch.int32), one, exact_dtype=False)
    assert not same(one, wide * 2, exact_dtype=False)


@pytest.mark.parametrize(
    ("ref", "res"),
    [((3,), (1,)), ((1,), (3,)), ((3,), ()), ((2, 3), (3,)), ((2, 3), (3, 2)), ((6,), (2, 3)), ((0, 3), (0, 2))],
)
def test_a_shape_mismatch_is_a_mismatch_and_nothing_is_broadcast(ref: tuple[int, ...], res: tuple[int, ...]) -> None:
    """Covers: S35"""
    for value in (torch.ones, lambda shape: torch.ones(shape, dtype=torch.int32)):
        found = differs(same(value(ref), value(res)), "", Symptom.SHAPE)
        assert (found.ref, found.res) == (str(ref), str(res))
        assert not same(value(ref), value(res), value(ref).double(), cos_similarity=True)
    assert not same(torch.ones(ref).to_sparse(), torch.ones(res).to_sparse())


def test_torch_itself_broadcasts() -> None:
    """Covers: S35. If this fails, torch was mended, and the row can say so."""
    assert torch._dynamo.utils.same(torch.ones(3), torch.ones(1))


def test_a_broadcastable_reference_is_no_reference() -> None:
    """Covers: S35"""
    ref, res = torch.ones(4), torch.full((4,), 1.2)
    assert same(ref, res, torch.full((4,), 1.1, dtype=F64))
    assert not same(ref, res, torch.full((1,), 1.1, dtype=F64))


def test_layouts_must_be_equal() -> None:
    """Covers: S34"""
    dense = torch.eye(4)
    kinds = [
        dense,
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsr((2, 2)),
        dense.to_mkldnn(),
        torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        torch.quantize_per_channel(dense, torch.ones(4), torch.zeros(4, dtype=torch.int64), 0, torch.qint8),
        TwoTensor(dense, dense),
    ]
    for i, ref in enumerate(kinds):
        for j, res in enumerate(kinds):
            found = same(ref, res)
            assert bool(found) == (i == j)
            assert i == j or found.symptom is Symptom.LAYOUT, found


def test_devices_must_be_equal() -> None:
    """Covers: S34"""
    found = differs(same(torch.ones(2), torch.ones(2, device="meta")), "", Symptom.DEVICE)
    assert (str(found.ref), str(found.res)) == ("cpu", "meta")


def test_meta_tensors_are_compared_by_shape_and_dtype_and_the_answer_says_so() -> None:
    """Covers: S34"""
    found = same(torch.ones(2, device="meta"), torch.zeros(2, device="meta"))
    assert found
    assert "Meta tensors have no values" in str(found)
    differs(same(torch.ones(2, device="meta"), torch.ones(3, device="meta")), "", Symptom.SHAPE)


def test_fake_tensors_are_rejected_with_their_place() -> None:
    """Covers: S34"""
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
    real = torch.ones(2)
    for ref, res in ((fake, real), (real, fake), (fake, fake)):
        with pytest.raises(FakeTensorGiven, match=r"at \['a'\]\[1\]"):
            same({"a": [1, ref]}, {"a": [1, res]})
    with pytest.raises(FakeTensorGiven):
        same(real, real + 1, mode.from_tensor(real.double()))
    with pytest.raises(FakeTensorGiven):
        same(TwoTensor(fake, fake), TwoTensor(fake, fake))


def test_metadata_can_be_compared_alone_with_or_without_dtypes() -> None:
    """Covers: S34"""
    one, other = Leaves("[0]", t(1), t(2), None), Leaves("[0]", t(1), t(2.0), None)
    assert metadata_difference(one) is None
    differs(metadata_difference(other), "[0]", Symptom.DTYPE)
    assert metadata_difference(other, Tolerance(exact_dtype=False)) is None


def test_numbers_of_python_and_numpy_are_equal_if_they_say_so() -> None:
    """Covers: S33"""
    assert equal(3, np.int64(3))
    assert equal(np.int64(3), 3)
    assert not equal(3, np.int64(4))
    assert not equal(3, np.array([3])), "arrays broadcast"
    assert not equal(np.ones(1), np.ones(2))


def test_requires_grad_and_parameters_do_not_matter() -> None:
    """Covers: S34"""
    leaf = torch.ones(3, requires_grad=True)
    assert same(leaf, torch.ones(3))
    assert same(torch.nn.Parameter(torch.ones(3)), leaf * 1)
    differs(same(leaf * 2, torch.ones(3)), "", Symptom.VALUE)
    assert same(leaf * 1.5, leaf, leaf.double() * 1.25), "with a reference as well"
    assert leaf.grad is None


# ---- tensors: values -------------------------------------------------------------------------------------

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
EIGHT_BITS = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *EIGHT_BITS])
def test_one_wrong_element_is_found_in_every_floating_dtype(dtype: torch.dtype) -> None:
    """Covers: S34"""
    ref = torch.ones(3, 4).to(dtype)
    res = ref.clone()
    assert same(ref, res)
    res[1, 2] = 2.0
    res[2, 0] = 4.0
    found = differs(same(ref, res), "", Symptom.VALUE)
    assert (found.index, found.ref, found.res, found.outside, found.numel) == ((1, 2), 1, 2, 2, 12)
    assert found.max_abs == 3.0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_wrong_element_is_found_in_every_integer_dtype(dtype: torch.dtype) -> None:
    """Covers: S34. The largest values are the ones that a detour over floats would lose."""
    top = torch.iinfo(dtype).max
    ref = torch.tensor([[0, 1, top], [top - 1, top, 0]], dtype=dtype)
    res = torch.tensor([[0, 1, top], [top, top, 0]], dtype=dtype)
    assert same(ref, ref.clone())
    found = differs(same(ref, res), "", Symptom.INTEGER)
    assert (found.index, found.ref, found.res, found.outside, found.numel) == ((1, 0), top - 1, top, 1, 6)
    assert not same(ref, res, tol=1.0, cos_similarity=True), "no tolerance is for integers"
    assert same(ref.T, ref.T.contiguous())
    differs(same(ref.T, res.T), "", Symptom.INTEGER)


def test_integers_of_unlike_dtypes_are_compared_as_numbers() -> None:
    """Covers: S34. As bits, -1 and 2**64 - 1 are the same."""
    top = torch.tensor([2**64 - 1], dtype=torch.uint64)
    for ref, res in ((top, t(-1)), (t(-1), top), (t(255, dtype=torch.uint8), t(-1, dtype=torch.int8))):
        found = differs(same(ref, res, exact_dtype=False), "", Symptom.INTEGER)
        assert {found.ref, found.res} <= {2**64 - 1, 255, -1}
    assert same(t(7, dtype=torch.uint64), t(7), exact_dtype=False)
    assert not same(t(2**53 + 1), t(2**53, dtype=torch.uint64), exact_dtype=False)


def test_bools_are_equal_or_not() -> None:
    """Covers: S34"""
    ref = t(True, False, True)
    assert same(ref, ref.clone())
    found = differs(same(ref, t(True, True, True), tol=1.0), "", Symptom.INTEGER)
    assert (found.index, found.ref, found.res) == ((1,), False, True)


def test_masks_may_overlap_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S34"""
    monkeypatch.setattr("torchsleuth.compare.numeric.CHUNK", 7)
    many, fewer, none = (torch.arange(100) < marked for marked in (100, 90, 0))
    assert not same(many, fewer)
    found = same(many, fewer, iou_threshold=0.9)
    assert found
    assert found.rule == "intersection over union of at least 0.9"
    found = differs(
        same({"a": many.view(4, 25)}, {"a": fewer.view(4, 25)}, iou_threshold=0.91), "['a']", Symptom.INTEGER
    )
    assert (found.index, found.outside, found.numel) == ((3, 15), 10, 100)
    assert "Both mark 90 of the 100 elements that either marks." in str(found)
    assert same(none, none.clone(), iou_threshold=1.0)
    assert not same(none, fewer, iou_threshold=0.01)
    assert same(many.numpy(), fewer.numpy(), iou_threshold=0.9)


def test_only_bools_are_masks_and_their_shapes_must_agree() -> None:
    """Covers: S34, S35"""
    many, fewer = (torch.arange(100) < marked for marked in (100, 99))
    assert not same(many.int(), fewer.int(), iou_threshold=0.9)
    assert not same(many, fewer.int(), iou_threshold=0.9, exact_dtype=False)
    differs(same(many, many[:1], iou_threshold=0.5), "", Symptom.SHAPE)
    assert same(many.to_sparse(), fewer.to_sparse(), iou_threshold=0.9)


@pytest.mark.parametrize(
    ("dtype", "carrier"),
    [
        (torch.bits8, torch.uint8),
        (torch.bits1x8, torch.uint8),
        (torch.bits16, torch.int16),
        (torch.float4_e2m1fn_x2, torch.uint8),
        (torch.uint4, torch.uint8),
    ],
)
def test_packed_numbers_and_bare_bits_are_compared_as_bits(dtype: torch.dtype, carrier: torch.dtype) -> None:
    """Covers: S34"""
    ref, again, res = (torch.tensor(v, dtype=carrier).view(dtype) for v in ([1, 2, 3], [1, 2, 3], [1, 7, 3]))
    assert same(ref, again)
    found = differs(same(ref, res), "", Symptom.INTEGER)
    assert (found.index, found.outside) == ((1,), 1)


def test_a_scalar_tensor_has_no_element_to_name() -> None:
    """Covers: S34"""
    for ref, res in ((torch.tensor(1.0), torch.tensor(2.0)), (torch.tensor(1), torch.tensor(2))):
        found = same(ref, res)
        assert not found
        assert found.index is None
        assert "element [" not in str(found)
    assert same(torch.tensor(1.0), torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_empty_tensors_agree_when_their_shapes_do(dtype: torch.dtype) -> None:
    """Covers: S34"""
    assert same(torch.zeros(0, 3, dtype=dtype), torch.ones(0, 3, dtype=dtype))
    assert not same(torch.zeros(0, 3, dtype=dtype), torch.zeros(0, 4, dtype=dtype))


def test_signs_of_zero_do_not_matter() -> None:
    """Covers: S34"""
    assert same(t(0.0), t(-0.0), tolerance=Tolerance.exact())


def test_all_nans_are_one_nan() -> None:
    """Covers: S34"""
    bits = torch.tensor([0x7FC00000, 0x7FC00001, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert bits.isnan().all()
    assert same(bits, torch.full((4,), nan), tolerance=Tolerance.exact())


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize(
    ("ref", "res"), [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf), (inf, nan), (nan, -inf)]
)
def test_what_is_not_finite_must_be_so_on_both_sides(dtype: torch.dtype, ref: float, res: float) -> None:
    """Covers: S34"""
    good, bad = (torch.tensor([1.0, 1.0, value, 1.0]).to(dtype) for value in (ref, res))
    assert same(good, good.clone())
    for options in ({}, {"cos_similarity": True}, {"tol": 1e3}, {"cos_similarity": True, "cos_threshold": 0.0}):
        found = differs(same(good, bad, **options), "", Symptom.NAN)
        assert (found.index, found.outside) == ((2,), 1)


def test_a_nan_anywhere_in_a_leaf_is_what_the_leaf_shows() -> None:
    """Covers: S34. The first element outside may be a finite one; the NaN is the graver, and is the one shown."""
    found = differs(same(t(1.0, 2.0), t(1.5, nan)), "", Symptom.NAN)
    assert (found.index, found.outside) == ((1,), 2)
    assert math.isnan(found.res)


def test_nan_on_both_sides_is_a_difference_on_request() -> None:
    """Covers: S34"""
    value = t(1.0, nan)
    assert same(value, value)
    found = differs(same(value, value, equal_nan=False), "", Symptom.NAN)
    assert found.index == (1,)
    assert not same(value, value, value.double(), equal_nan=False)
    assert same(t(1.0, inf), t(1.0, inf), equal_nan=False)
    assert not same(nan, nan, equal_nan=False)


def test_infinity_and_huge_numbers_do_not_spoil_the_figures() -> None:
    """Covers: S34"""
    found = same(t(inf, 1.0, -inf), t(inf, 1.00001, -inf))
    assert found
    assert found.max_abs == pytest.approx(1e-5, rel=0.01)
    huge = torch.tensor([1e300, 1.0], dtype=F64)
    assert same(huge, huge * (1 + 1e-6))
    differs(same(huge, huge * 2), "", Symptom.VALUE)
    differs(same(huge, -huge, torch.zeros(2, dtype=F64)), "", Symptom.VALUE)


def test_views_are_compared_by_their_elements() -> None:
    """Covers: S34"""
    base = torch.arange(12.0).reshape(3, 4)
    assert same(base.T, base.T.contiguous())
    assert same(base[:, ::2], base[:, ::2].clone())
    assert same(torch.ones(1).expand(5), torch.ones(5))
    assert same(torch.ones(1, 3).expand(4, 3), torch.ones(4, 3))
    wrong = base.clone()
    wrong[2, 1] += 1
    assert same(base.T, wrong.T).index == (1, 2)
    assert same(base.flip(0), wrong.flip(0)).index == (0, 1)
    assert same(base.to(memory_format=torch.contiguous_format), base.T.contiguous().T)


def test_lazy_conjugation_and_negation_are_looked_through() -> None:
    """Covers: S34"""
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert value.conj().is_conj()
    assert same(value.conj(), torch.tensor([1 - 2j, 3 + 4j]))
    assert same(value.conj().conj(), value)
    differs(same(value.conj(), value), "", Symptom.VALUE)
    negative = value.conj().imag
    assert negative.is_neg()
    assert same(negative, t(-2.0, 4.0))
    differs(same(negative, value.imag), "", Symptom.VALUE)


# ---- tensors: sparse, quantised, nested, wrapped ---------------------------------------------------------

SPARSE = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool])
def test_sparse_tensors_differ_at_an_index_of_the_whole(layout: str, dtype: torch.dtype) -> None:
    """Covers: S34"""
    dense = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]).to(dtype)
    wrong, gained, lost = dense.clone(), dense.clone(), dense.clone()
    wrong[2, 2], gained[2, 1], lost[2, 2] = (2 if dtype != torch.bool else 0), 1, 0
    ref = SPARSE[layout](dense)
    assert same(ref, SPARSE[layout](dense))
    for other, index in ((wrong, (2, 2)), (gained, (2, 1)), (lost, (2, 2))):
        found = same(ref, SPARSE[layout](other))
        assert not found
        assert found.index == index
        assert (found.ref, found.res) == (dense[index].item(), other[index].item())
        assert same(SPARSE[layout](other), ref).index == index


def test_explicit_zeros_and_repeated_indices_are_a_matter_of_storage() -> None:
    """Covers: S34"""
    plain = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), t(2.0, 5.0), (4,))
    padded = torch.sparse_coo_tensor(torch.tensor([[0, 1, 3]]), t(0.0, 2.0, 5.0), (4,))
    split = torch.sparse_coo_tensor(torch.tensor([[3, 1, 3]]), t(4.0, 2.0, 1.0), (4,))
    assert same(plain, padded)
    assert same(padded, split)
    assert not split.is_coalesced()
    found = same(plain, torch.sparse_coo_tensor(torch.tensor([[3, 1, 3]]), t(4.0, 2.0, 2.0), (4,)))
    assert (found.index, found.ref, found.res) == ((3,), 5.0, 6.0)


def test_hybrid_sparse_tensors_have_an_index_in_both_parts() -> None:
    """Covers: S34"""
    ref = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3))
    values = torch.ones(2, 3)
    values[1, 2] = 7
    res = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (4, 3))
    assert same(ref, ref.clone())
    assert same(ref, res).index == (2, 2)


def test_sparse_tensors_without_values_agree() -> None:
    """Covers: S34"""
    empty = torch.zeros(3, 3).to_sparse()
    assert same(empty, empty.clone())
    assert same(empty, torch.eye(3).to_sparse()).index == (0, 0)


@pytest.mark.parametrize("value", [complex(inf, 0), complex(0, -inf), complex(nan, 1), 1 + 1j])
def test_sparse_infinities_survive(value: complex) -> None:
    """Covers: S34. Torch's own sum of a complex infinity and nothing is NaN."""
    for layout in (torch.sparse_coo, torch.sparse_csr):
        ref, again, res = (torch.tensor([[0, v], [0, 0]]).to_sparse(layout=layout) for v in (value, value, 2j))
        assert same(ref, again, tolerance=Tolerance.exact())
        found = same(ref, res)
        assert (found.index, repr(found.ref), found.res) == ((0, 1), repr(value), 2j)


def test_a_sparse_scalar_is_compared() -> None:
    """Covers: S34"""
    ref, res = (torch.tensor(value).to_sparse() for value in (1.0, 2.0))
    assert same(ref, ref.clone())
    found = differs(same(ref, res), "", Symptom.VALUE)
    assert (found.ref, found.res, found.index) == (1.0, 2.0, None)


def test_batches_of_sparse_matrices_are_compared() -> None:
    """Covers: S34"""
    dense = torch.eye(3).expand(2, 3, 3).clone()
    wrong = dense.clone()
    wrong[1, 2, 2] = 5
    assert same(dense.to_sparse_csr(), dense.to_sparse_csr())
    assert same(dense.to_sparse_csr(), wrong.to_sparse_csr()).index == (1, 2, 2)


def test_dense_dimensions_of_sparse_tensors_are_a_matter_of_layout() -> None:
    """Covers: S34"""
    found = differs(same(torch.ones(2, 3).to_sparse(), torch.ones(2, 3).to_sparse(1)), "", Symptom.LAYOUT)
    assert "with 0 dense dimensions, got sparse_coo with 1 dense" in str(found)


def test_sparse_tensors_have_a_reference_too() -> None:
    """Covers: S34"""
    ref, res = (torch.eye(3).mul(value).to_sparse() for value in (1.0, 1.2))
    assert not same(ref, res)
    assert same(ref, res, torch.eye(3, dtype=F64).mul(1.1).to_sparse())
    assert not same(ref, torch.eye(3).mul(2).to_sparse(), torch.eye(3, dtype=F64).mul(1.1).to_sparse())


def test_a_reference_never_blurs_sparse_integers_or_imaginary_parts() -> None:
    """Covers: S34"""

    def at_zero(value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([value], dtype=dtype), (2,))

    big = at_zero(2**53 + 1, torch.int64)
    differs(same(big, at_zero(2**53, torch.int64), at_zero(2**53, F64)), "", Symptom.INTEGER)
    one = at_zero(1 + 1j, torch.complex64)
    differs(same(one, at_zero(1 + 2j, torch.complex64), at_zero(1, F64)), "", Symptom.VALUE)


def test_quantised_tensors_are_compared_by_the_numbers_they_stand_for() -> None:
    """Covers: S34"""
    value = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    ref = torch.quantize_per_tensor(value, 0.5, 0, torch.qint8)
    assert same(ref, torch.quantize_per_tensor(value, 0.25, 3, torch.qint8)), "other bits, same numbers"
    found = differs(same(ref, torch.quantize_per_tensor(value + torch.eye(2), 0.5, 0, torch.qint8)), "", Symptom.VALUE)
    assert (found.index, found.ref, found.res) == ((0, 0), 0.0, 1.0)
    differs(same(ref, torch.quantize_per_tensor(value, 0.5, 0, torch.quint8)), "", Symptom.DTYPE)
    scales, zeros = torch.tensor([0.5, 0.25]), torch.zeros(2, dtype=torch.int64)
    per_channel = torch.quantize_per_channel(value, scales, zeros, 0, torch.qint8)
    assert same(per_channel, per_channel.clone())
    wrong = torch.quantize_per_channel(value + torch.tensor([[0.0, 0.0], [0.0, 1.0]]), scales, zeros, 0, torch.qint8)
    assert same(per_channel, wrong).index == (1, 1)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_compared_by_their_components(layout: torch.layout) -> None:
    """Covers: S34"""

    def nested(*parts: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.nested.nested_tensor(list(parts), layout=layout, **options)

    ref = nested(torch.ones(2, 3), torch.zeros(1, 3))
    assert same(ref, nested(torch.ones(2, 3), torch.zeros(1, 3), requires_grad=True))
    wrong = torch.zeros(1, 3)
    wrong[0, 2] = 5
    found = differs(same([ref], [nested(torch.ones(2, 3), wrong)]), "[0].unbind()[1]", Symptom.VALUE)
    assert found.index == (0, 2)
    differs(same(ref, nested(torch.ones(2, 3), torch.zeros(2, 3))), ".unbind()[1]", Symptom.SHAPE)
    differs(same(ref, nested(torch.ones(2, 3))), "", Symptom.STRUCTURE)
    differs(same(ref, nested(torch.ones(2, 3), torch.zeros(1, 3), dtype=F64)), "", Symptom.DTYPE)
    assert same(ref, ref + 0.2, ref.double() + 0.1)
    assert not same(ref, ref + 0.2, ref.double())


def test_a_nested_tensor_without_components_agrees_with_itself() -> None:
    """Covers: S34"""
    assert same(torch.nested.nested_tensor([]), torch.nested.nested_tensor([]))


def test_tensor_subclasses_are_compared_by_what_is_inside() -> None:
    """Covers: S34"""
    ref = TwoTensor(torch.ones(2), torch.zeros(2))
    assert same(ref, TwoTensor(torch.ones(2), torch.zeros(2)))
    differs(same({"k": ref}, {"k": TwoTensor(torch.ones(2), torch.ones(2))}), "['k'].b", Symptom.VALUE)
    assert same(ref, ref + 0.2, TwoTensor(ref.a.double() + 0.1, ref.b.double() + 0.1))


def test_mkldnn_tensors_are_compared() -> None:
    """Covers: S34"""
    assert same(torch.ones(2).to_mkldnn(), torch.ones(2).to_mkldnn())
    assert not same(torch.ones(2).to_mkldnn(), torch.zeros(2).to_mkldnn())


# ---- the rules -------------------------------------------------------------------------------------------


def test_relative_and_absolute_tolerance_add_up() -> None:
    """Covers: S34. The bound is atol + rtol * |expected|, inclusive, as in torch.allclose."""
    ref = torch.tensor([8.0, 0.0], dtype=F64)
    for rtol, atol, by, agrees in [
        (0.5, 0.0, 4.0, True),
        (0.5, 0.0, 4.0000001, False),
        (0.0, 0.25, 0.25, True),
        (0.0, 0.25, 0.2500001, False),
        (0.5, 0.25, 4.25, True),
        (0.5, 0.25, 4.2500001, False),
    ]:
        res = ref + torch.tensor([by, 0.0], dtype=F64)
        assert bool(same(ref, res, rtol=rtol, atol=atol)) is agrees
        assert torch.allclose(res, ref, rtol=rtol, atol=atol) is agrees
    assert not same(t(1.0), t(2.0), rtol=0.5, atol=0.0)
    assert same(t(2.0), t(1.0), rtol=0.5, atol=0.0), "the expected value is the one that scales"


def test_one_tolerance_stands_for_both_until_one_is_named() -> None:
    """Covers: S34"""
    assert (Tolerance(tol=0.5).rtol_or_default, Tolerance(tol=0.5).atol_or_default) == (0.5, 0.5)
    assert (Tolerance(tol=0.5, atol=0).rtol_or_default, Tolerance(tol=0.5, atol=0).atol_or_default) == (0.5, 0)
    assert not same(t(0.0), t(0.1), tol=1.0, atol=0.0)


def test_an_exact_tolerance_lets_nothing_through() -> None:
    """Covers: S34"""
    one = torch.ones(3)
    next_up = torch.nextafter(one, torch.full((3,), 2.0))
    assert same(one, next_up)
    differs(same(one, next_up, tolerance=Tolerance.exact()), "", Symptom.VALUE)
    assert same(one, next_up, tolerance=Tolerance.exact(), atol=1e-6), "options go on top"


def test_cosine_mode_looks_at_the_direction() -> None:
    """Covers: S34"""
    ref = t(1.0, 2.0, 3.0)
    found = same(ref, ref * 3, cos_similarity=True)
    assert found
    assert "cosine similarity" in found.rule
    assert found.cosine == pytest.approx(1.0)
    assert not same(ref, ref * 3)
    assert not same(ref, -ref, cos_similarity=True)
    turned = t(1.0, 2.0, 0.0)
    expected = float(torch.nn.functional.cosine_similarity(ref, turned, dim=0))
    assert same(ref, turned, cos_similarity=True).cosine == pytest.approx(expected)
    assert not same(ref, turned, cos_similarity=True)
    assert same(ref, turned, cos_similarity=True, cos_threshold=expected - 1e-6)
    assert not same(ref, turned, cos_similarity=True, cos_threshold=expected + 1e-6)
    assert same(torch.zeros(3), torch.zeros(3), cos_similarity=True), "zero has no direction, but equals itself"
    assert not same(torch.zeros(3), ref, cos_similarity=True)
    assert same(torch.tensor([1 + 1j]), torch.tensor([2 + 2j]), cos_similarity=True)
    assert not same(torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), cos_similarity=True)


def away(shape: tuple[int, ...], dtype: torch.dtype, ref_off: float, res_off: float) -> tuple[torch.Tensor, ...]:
    """Expected values, result and reference with RMSEs of `ref_off` and `res_off` in steps that the dtype has."""
    unit = 2.0**-3
    fp64 = torch.zeros(shape, dtype=F64)
    return torch.full(shape, ref_off * unit, dtype=dtype), torch.full(shape, res_off * unit, dtype=dtype), fp64


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "multiplier"),
    [
        ((1000,), torch.float32, {}, 2.0),
        ((999,), torch.float32, {}, 3.0),
        ((), torch.float32, {}, 3.0),
        ((1000,), torch.float16, {}, 3.0),
        ((1000,), torch.bfloat16, {}, 3.0),
        ((10, 100, 1, 1), torch.float32, {}, 3.0),
        ((10, 100, 1), torch.float32, {}, 2.0),
        ((1, 1, 40, 25), torch.float32, {}, 2.0),
        ((1000,), torch.float32, {"tol": 2e-2}, 3.0),
        ((1000,), torch.float32, {"tol": 1.9e-2}, 2.0),
        ((10,), torch.float32, {"use_larger_multiplier_for_smaller_tensor": True}, 10.0),
        ((11,), torch.float32, {"use_larger_multiplier_for_smaller_tensor": True}, 8.0),
        ((500,), torch.float16, {"use_larger_multiplier_for_smaller_tensor": True}, 8.0),
        ((501,), torch.float32, {"use_larger_multiplier_for_smaller_tensor": True}, 3.0),
        ((1000,), torch.float32, {"use_larger_multiplier_for_smaller_tensor": True}, 2.0),
    ],
)
def test_the_result_may_be_off_by_as_many_times_as_torch_allows(
    shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any], multiplier: float
) -> None:
    """Covers: S34. On both sides of the bound the answer is that of torch's own `same`."""
    tolerance = Tolerance().replace(**options)
    low = dtype in (torch.float16, torch.bfloat16)
    assert rmse_multiplier(low_precision=low, shape=shape, tolerance=tolerance) == multiplier
    for factor, agrees in ((multiplier, True), (multiplier + 0.125, False)):
        ref, res, fp64 = away(shape, dtype, 1.0, factor)
        found = same(ref, res, fp64, **options)
        assert bool(found) is agrees, found
        assert found.rule == "RMSE against fp64"
        assert (found.ref_rmse, found.res_rmse, found.multiplier) == (0.125, 0.125 * factor, multiplier)
        assert torch._dynamo.utils.same(ref, res, fp64, **options, log_error=lambda *_: None) is agrees


def test_a_tenth_of_the_tolerance_is_given_on_top() -> None:
    """Covers: S34"""
    fp64 = torch.zeros(1000, dtype=F64)
    ref = torch.zeros(1000)
    for by, agrees in ((0.0009, True), (0.0011, False)):
        res = torch.zeros(1000)
        res[0] = by * math.sqrt(1000)  # an RMSE of `by`
        assert bool(same(ref, res, fp64, tol=0.01)) is agrees
        assert torch._dynamo.utils.same(ref, res, fp64, tol=0.01, log_error=lambda *_: None) is agrees


def test_a_multiplier_can_be_given() -> None:
    """Covers: S34"""
    ref, res, fp64 = away((4,), torch.float32, 1.0, 5.0)
    assert not same(ref, res, fp64)
    assert same(ref, res, fp64, multiplier=5.0)
    assert not same(ref, res, fp64, multiplier=4.5)


def test_only_double_precision_of_the_same_shape_is_a_reference() -> None:
    """Covers: S34"""
    ref, res, fp64 = away((4,), torch.float32, 1.0, 1.5)
    assert same(ref, res, fp64)
    for useless in (fp64.float(), fp64[:2], fp64.to(torch.complex128), fp64.to_sparse(), [fp64], 0.0, "x"):
        assert not same(ref, res, useless)


def test_the_reference_is_opened_alongside_and_may_lack_a_part() -> None:
    """Covers: S34"""
    ref, res, fp64 = away((4,), torch.float32, 1.0, 1.5)
    assert same({"a": [ref], "b": 1}, {"a": [res], "b": 1}, {"a": [fp64], "b": 1})
    assert not same({"a": [ref], "b": 1}, {"a": [res], "b": 1}, {"a": [fp64]})
    assert not same([ref, ref], [res, res], [fp64])


def test_a_reference_does_not_excuse_what_only_the_result_shows() -> None:
    """Covers: S34. NaN and infinities take no part in an RMSE, so they are looked at one by one."""
    numbers = {"finite": 1.0, "nan": nan, "inf": inf, "-inf": -inf}
    for ref_name, ref in numbers.items():
        for res_name, res in numbers.items():
            for fp64_name, fp64 in numbers.items():
                found = same(t(ref, 1.0), t(res, 1.0), t(fp64, 1.0, dtype=F64))
                names = f"expected {ref_name}, got {res_name}, reference {fp64_name}"
                assert bool(found) == (res_name in (ref_name, fp64_name)), names


def test_where_no_nan_equals_another_a_result_must_be_a_number_to_be_excused() -> None:
    """Covers: S34"""
    numbers = {"finite": 1.0, "nan": nan, "inf": inf, "-inf": -inf}
    for ref_name, ref in numbers.items():
        for res_name, res in numbers.items():
            for fp64_name, fp64 in numbers.items():
                found = same(t(ref, 1.0), t(res, 1.0), t(fp64, 1.0, dtype=F64), equal_nan=False)
                names = f"expected {ref_name}, got {res_name}, reference {fp64_name}"
                assert bool(found) == (res_name in (ref_name, fp64_name) and res_name != "nan"), names


def test_where_eager_is_not_finite_a_result_may_be_near_the_reference_on_request() -> None:
    """Covers: S34"""
    fp64 = t(1.0, 1.0, dtype=F64)
    for wrong in (nan, inf):
        ref = t(wrong, 1.0)
        assert not same(ref, t(1.03, 1.0), fp64)
        assert same(ref, t(1.03, 1.0), fp64, loose_tol=0.02)
        assert same(ref, t(1.03, 1.0), fp64, loose_tol=0.02, equal_nan=False)
        assert not same(ref, t(1.05, 1.0), fp64, loose_tol=0.02)
        assert not same(ref, t(nan if wrong == inf else inf, 1.0), fp64, loose_tol=0.02)
    assert not same(t(1.0, 1.0), t(1.03, 1.0), fp64, loose_tol=0.02), "eager is finite: it shows its noise"
    assert not same(t(nan, 1.0), t(1.03, 1.0), loose_tol=0.02), "there is no reference"


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_reference_works_for_eight_bit_floats(dtype: torch.dtype) -> None:
    """Covers: S34. They have no kernel for most questions (is it finite?)."""
    fp64 = t(1.0, 2.0, dtype=F64)
    assert same(t(1.0, nan).to(dtype), t(1.0, 2.0).to(dtype), fp64)
    assert not same(t(1.0, 2.0).to(dtype), t(1.0, nan).to(dtype), fp64)


def test_complex_results_have_complex_references() -> None:
    """Covers: S34"""
    ref, res, fp64 = (torch.full((4,), 1 + value, dtype=d) for value, d in
                      ((1.0j, torch.complex64), (1.2j, torch.complex64), (1.1j, torch.complex128)))  # fmt: skip
    assert same(ref, res, fp64)
    assert not same(ref, res, fp64.real)
    assert same(torch.tensor([complex(inf, 1)]), torch.tensor([complex(inf, 1)]))
    assert not same(torch.tensor([complex(inf, 0)]), torch.tensor([complex(0, inf)]))


def test_what_is_not_floating_point_can_be_ignored() -> None:
    """Covers: S13, S34"""
    ref = {"x": torch.ones(2), "index": t(3), "mask": t(True), "name": "a", "n": np.int64(2), "f": 1.0, "none": None}
    res = {"x": torch.ones(2), "index": t(4), "mask": t(False), "name": "b", "n": np.int64(3), "f": 1.0, "none": 7}
    assert not same(ref, res)
    found = same(ref, res, ignore_non_fp=True)
    assert found
    assert (found.leaves, found.ignored) == (2, 5)
    for name, wrong in (("x", torch.zeros(2)), ("f", 2.0)):
        assert same(ref, {**res, name: wrong}, ignore_non_fp=True).path == f"['{name}']"
    for wrong in (torch.tensor([1j]), np.float32(2), np.array([2.0]), 2j):
        assert not same([wrong], [wrong * 2], ignore_non_fp=True)
    quantised = (torch.quantize_per_tensor(torch.ones(2) * i, 1.0, 0, torch.qint8) for i in (1, 2))
    assert not same(*quantised, ignore_non_fp=True)
    assert not same([1, 2], [1], ignore_non_fp=True), "structure is not a number"


# ---- options ---------------------------------------------------------------------------------------------


def test_an_unknown_option_is_an_error_that_lists_the_valid_ones() -> None:
    """Covers: S34"""
    with pytest.raises(UnknownSetting, match="tolerence") as error:
        same(1, 1, tolerence=0.1)  # type: ignore[call-arg]
    for field in dataclasses.fields(Tolerance):
        assert field.name in error.value.remedy
    with pytest.raises(UnknownSetting, match="a, b"):
        Tolerance().replace(b=1, a=2)


@pytest.mark.parametrize("name", ["tol", "rtol", "atol", "cos_threshold", "multiplier", "loose_tol", "iou_threshold"])
@pytest.mark.parametrize("value", [-1e-9, nan, inf, -inf, "1e-3", True, [1]])
def test_a_bad_tolerance_is_an_error_that_names_it(name: str, value: Any) -> None:
    """Covers: S34"""
    with pytest.raises(BadValue, match=name):
        same(1, 1, **{name: value})


@pytest.mark.parametrize("name", ["tol", "cos_threshold"])
def test_some_tolerances_must_be_numbers(name: str) -> None:
    with pytest.raises(BadValue, match=name):
        Tolerance().replace(**{name: None})


def test_zero_is_a_tolerance() -> None:
    assert same(t(1.0), t(1.0), tol=0)
    assert not same(t(1.0), t(1.0000001), tol=0, rtol=0, atol=0)


def test_options_replace_fields_of_a_given_tolerance() -> None:
    tolerance = Tolerance(tol=0.5, ignore_non_fp=True)
    found = same(t(1.0), t(1.4), tolerance=tolerance, equal_nan=False)
    assert found
    assert found.tolerance == Tolerance(tol=0.5, ignore_non_fp=True, equal_nan=False)
    assert tolerance.equal_nan


# ---- in words --------------------------------------------------------------------------------------------


def text(*sentences: str) -> str:
    return " ".join(sentences)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            lambda: same([1, 2], [1, 3]),
            "The results differ at [1] (integer): expected 2, got 3. The rule was exact equality.",
        ),
        (
            lambda: same({"loss": [t(1.0, 2.0)]}, {"loss": [t(1.0, 3.0)]}),
            text(
                "The results differ at ['loss'][0] (value): expected 2, got 3, first at element [1].",
                "1 of 2 elements are outside the bound.",
                "Differences: max abs error 1, max rel error 0.5, RMSE 0.707107, cosine 0.989949.",
                "The rule was allclose with rtol 0.0001 and atol 0.0001.",
            ),
        ),
        (
            lambda: same(torch.ones(2, 3), torch.ones(3, 2)),
            "The results differ (shape): expected (2, 3), got (3, 2). The rule was exact equality.",
        ),
        (
            lambda: same(Batch(torch.ones(2)), Batch(torch.ones(2, dtype=torch.float16))),
            text(
                "The results differ at .inputs (dtype): expected torch.float32, got torch.float16.",
                "The rule was exact equality.",
            ),
        ),
        (
            lambda: same({"a": 1, "b": 2}, {"a": 1, "c": 2}),
            text(
                "The results differ (structure): expected [\"['a']\", \"['b']\"], got [\"['a']\", \"['c']\"].",
                "Keys missing: ['b']; not expected: ['c'].",
                "The rule was exact equality.",
            ),
        ),
        (
            lambda: same(torch.zeros(4), torch.full((4,), 0.75), torch.full((4,), 0.125, dtype=F64)),
            text(
                "The results differ (value): expected 0, got 0.75, first at element [0].",
                "4 of 4 elements are outside the bound.",
                "Differences: max abs error 0.75, max rel error 0, RMSE 0.75, cosine 0.",
                "Against fp64 the expected values are off by RMSE 0.125 and the result by 0.625",
                "(allowed: 3 times as much). The rule was RMSE against fp64.",
            ),
        ),
        (
            lambda: same([torch.ones(2), t(3)], [torch.ones(2), t(4)], ignore_non_fp=True),
            text(
                "The results agree: 1 leaf was compared, 1 ignored as not floating point.",
                "Largest differences at [0]: max abs error 0, max rel error 0, RMSE 0, cosine 1.",
                "The rule was allclose with rtol 0.0001 and atol 0.0001.",
            ),
        ),
        (
            lambda: same([t(1.0), t(2.0)], [t(1.0), t(2.0001220703125)]),
            text(
                "The results agree: 2 leaves were compared.",
                "Largest differences at [1]: max abs error 0.00012207, max rel error 6.10352e-05, RMSE 0.00012207,",
                "cosine 1. The rule was allclose with rtol 0.0001 and atol 0.0001.",
            ),
        ),
        (lambda: same([], []), "The results agree: 0 leaves were compared."),
        (
            lambda: same(torch.ones(1500), torch.zeros(1500), tol=0.25),
            text(
                "The results differ (value): expected 1, got 0, first at element [0].",
                "1,500 of 1,500 elements are outside the bound.",
                "Differences: max abs error 1, max rel error 1, RMSE 1, cosine 0.",
                "The rule was allclose with rtol 0.25 and atol 0.25.",
            ),
        ),
    ],
)
def test_the_answer_prints_as_one_paragraph(found: Any, says: str) -> None:
    """Covers: S33, S34"""
    assert str(found()) == says


def test_long_values_are_cut() -> None:
    assert len(str(same("a" * 1000, "b" * 1000))) < 400


def test_truth_is_agreement() -> None:
    assert bool(same(1, 1)) is True
    assert bool(same(1, 2)) is False


def test_the_agreement_that_came_closest_to_its_bound_is_kept() -> None:
    """Covers: S34"""
    found = same([t(1.0), t(1.0), t(1.0)], [t(1.0), t(1.00009), t(1.00001)])
    assert found
    assert (found.path, found.leaves) == ("[1]", 3)
    assert collections.Counter(str(found).split())["compared."] == 1


class Box:
    """A class with an equality of its own that tensors break, as attrs and pydantic make them."""

    def __init__(self, value: torch.Tensor, name: str) -> None:
        self.value, self.name = value, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and (self.value, self.name) == (other.value, other.name)

    __hash__ = None  # type: ignore[assignment]


def test_objects_around_tensors_are_opened_whatever_their_equality() -> None:
    """Covers: S33"""
    assert same(Box(t(1.0, 2.0), "a"), Box(t(1.0, 2.0), "a"))
    assert differs(same(Box(t(1.0, 2.0), "a"), Box(t(1.0, 3.0), "a")), ".value", Symptom.VALUE).index == (1,)
    differs(same(Box(t(1.0), "a"), Box(t(1.0), "b")), ".name", Symptom.OBJECT)

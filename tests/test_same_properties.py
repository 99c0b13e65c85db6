"""What holds for `same` whatever the values are: nested containers of every kind, leaves of every dtype and layout.

A value is drawn as a plan, a nested description. From one plan any number of equal values can be built, and
values in which exactly one element of one leaf is wrong, together with the path and the index of it.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field, make_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from support import Output
from torchsleuth.compare import Tolerance, same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: sparse, nested and quantised are "beta"

EXACT = Tolerance.exact()
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOAT = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
LAYOUTS = "plain transposed sliced grad conj coo csr quantised nested jagged".split()


# ---- leaves ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A leaf that can be built again and again; `wrong` is the element to spoil, if any."""

    kind: str
    dtype: Any
    shape: tuple[int, ...]
    elements: tuple[Any, ...]

    def build(self, wrong: int | None = None) -> Any:
        elements = list(self.elements)
        if wrong is not None:
            elements[wrong] = spoil(elements[wrong])
        if self.kind == "object":
            return elements[0]
        if self.kind == "array":
            return np.array(elements, dtype=self.dtype).reshape(self.shape)
        return build_tensor(self, elements)

    def place(self, wrong: int) -> tuple[str, tuple[int, ...] | None]:
        """What `same` is expected to say of where: a path from the leaf on, and the index."""
        if self.kind == "object" or not self.shape:
            return "", None
        index = tuple(int(i) for i in np.unravel_index(wrong, self.shape))
        if self.kind in ("nested", "jagged"):
            return f".unbind()[{index[0]}]", index[1:]
        return "", index


def spoil(element: Any) -> Any:
    """A value of the same type, well outside any default tolerance and representable in eight bits."""
    if isinstance(element, bool):
        return not element
    if isinstance(element, str):
        return element + "!"
    if element is None:
        return "something"
    if isinstance(element, torch.dtype):
        return torch.float64
    if isinstance(element, int):
        return element + 1
    return type(element)(1.0) if not np.isfinite(element) else element + type(element)(4)


def build_tensor(leaf: Leaf, elements: list[Any]) -> torch.Tensor:
    dtype, shape = leaf.dtype, leaf.shape
    narrow = dtype.is_floating_point and dtype.itemsize == 1
    plain = torch.tensor(elements, dtype=torch.float32 if narrow else dtype).to(dtype).reshape(shape)
    if leaf.kind == "transposed":
        return plain.mT.contiguous().mT
    if leaf.kind == "sliced":
        wider = torch.empty((*shape, 2), dtype=dtype)
        wider[..., 1].copy_(plain)
        return wider[..., 1]
    if leaf.kind == "grad":
        return plain.requires_grad_()
    if leaf.kind == "conj":
        return plain.conj().resolve_conj().conj()
    if leaf.kind == "coo":
        return plain.to_sparse()
    if leaf.kind == "csr":
        return plain.to_sparse_csr()
    if leaf.kind == "quantised":
        return torch.quantize_per_tensor(plain, 0.5, 0, torch.qint8)
    if leaf.kind in ("nested", "jagged"):
        layout = torch.jagged if leaf.kind == "jagged" else torch.strided
        return torch.nested.nested_tensor(list(plain.unbind()), layout=layout)
    return plain


numbers = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, -0.0, 1.5])
any_floats = st.one_of(numbers, st.sampled_from([math.nan, math.inf, -math.inf]))
complexes = st.builds(complex, any_floats, numbers)
objects = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    any_floats,
    complexes,
    st.text(max_size=4),
    st.sampled_from([np.float32(1.5), np.int64(3), np.float64(math.nan), torch.float32]),
)


@st.composite
def leaves(draw: Any) -> Leaf:
    kind = draw(st.sampled_from(["object", "object", "array", *LAYOUTS]))
    if kind == "object":
        return Leaf(kind, None, (), (draw(objects),))
    rank = {"csr": 2, "nested": 3, "jagged": 3}.get(kind)
    low = {"transposed": 2, "coo": 1, "quantised": 1}.get(kind, 0)
    shape = draw(st.lists(st.integers(1, 3), min_size=rank or low, max_size=rank or 3).map(tuple))
    if kind == "array":
        dtype, element = draw(st.sampled_from([("f4", any_floats), ("i8", st.integers(-9, 9)), (">f8", any_floats)]))
    elif kind == "conj":
        dtype, element = draw(st.sampled_from(COMPLEX)), complexes
    elif kind == "quantised":
        dtype, element = torch.float32, numbers
    else:
        common = [torch.float32, torch.float64]
        chosen = {
            "grad": [*common, torch.float16],
            "nested": common,
            "jagged": common,
            "coo": [*common, torch.int64, torch.complex64],
            "csr": [*common, torch.int64, torch.complex64],
        }.get(kind, [*WHOLE, *FLOAT, *COMPLEX, torch.bool])
        dtype = draw(st.sampled_from(chosen))
        element = {torch.bool: st.booleans()}.get(dtype, st.integers(0, 5))
        element = any_floats if dtype.is_floating_point else complexes if dtype.is_complex else element
        if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            element = st.one_of(numbers, st.just(math.nan))
    count = math.prod(shape)
    return Leaf(kind, dtype, shape, tuple(draw(st.lists(element, min_size=count, max_size=count))))


# ---- containers ------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")
Record = make_dataclass("Record", ["one", "two"])


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclass(frozen=True)
class Node:
    """A container: its kind, and its children by key."""

    kind: str
    children: tuple[tuple[Any, Any], ...]


Plan = Any  # a Leaf or a Node
PAIRS = {"namedtuple": ("left", "right"), "dataclass": ("one", "two")}
keys = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.none(), st.tuples(st.integers(0, 2), st.text(max_size=1)))


@st.composite
def nodes(draw: Any, plans: st.SearchStrategy[Plan]) -> Node:
    kind = draw(st.sampled_from("list tuple deque dict ordered output thing namespace namedtuple dataclass".split()))
    if kind in PAIRS:
        return Node(kind, tuple((name, draw(plans)) for name in PAIRS[kind]))
    children = draw(st.lists(plans, max_size=3))
    if kind in ("list", "tuple", "deque"):
        return Node(kind, tuple(enumerate(children)))
    names = keys if kind in ("dict", "ordered") else st.sampled_from(["a", "b2", "_c", "logits"])
    chosen = draw(st.lists(names, min_size=len(children), max_size=len(children), unique=True))
    return Node(kind, tuple(zip(chosen, children, strict=True)))


plans = st.recursive(leaves(), nodes, max_leaves=8)


@dataclass
class Built:
    """A value, and every leaf of it with its path, in order."""

    value: Any
    leaves: list[tuple[str, Leaf, Any]] = field(default_factory=list)


def build(plan: Plan, wrong: tuple[int, int] | None = None) -> Built:
    """The value of a plan; `wrong` = (number of the leaf, number of the element) is spoiled."""
    built = Built(None)

    def make(plan: Plan, path: str) -> Any:
        if isinstance(plan, Leaf):
            spoiled = wrong is not None and wrong[0] == len(built.leaves)
            value = plan.build(wrong[1] if wrong is not None and spoiled else None)
            built.leaves.append((path, plan, value))
            return value
        attributes = plan.kind in ("thing", "namespace", "dataclass")
        made = {}
        for number, (key, child) in enumerate(plan.children):
            step = f".{key}" if attributes else f"[{number if plan.kind == 'namedtuple' else key!r}]"
            made[key] = make(child, path + step)
        return {
            "list": lambda: list(made.values()),
            "tuple": lambda: tuple(made.values()),
            "deque": lambda: deque(made.values()),
            "dict": lambda: made,
            "ordered": lambda: OrderedDict(made),
            "output": lambda: Output(**made),
            "thing": lambda: Thing(**made),
            "namespace": lambda: SimpleNamespace(**made),
            "namedtuple": lambda: Pair(**made),
            "dataclass": lambda: Record(**made),
        }[plan.kind]()

    built.value = make(plan, "")
    return built


def choose(data: Any, plan: Plan) -> tuple[int, int] | None:
    """Some element of some leaf of a plan, or None if there is none."""
    leaves = build(plan).leaves
    if not leaves:
        return None
    leaf = data.draw(st.integers(0, len(leaves) - 1))
    return leaf, data.draw(st.integers(0, len(leaves[leaf][1].elements) - 1))


few = settings(deadline=None, max_examples=120)


# ---- properties ------------------------------------------------------------------------------------------


@few
@given(plans)
def test_a_value_agrees_with_itself_and_its_like(plan: Plan) -> None:
    """Covers: S33, S34. NaN included."""
    one, other = build(plan), build(plan)
    for tolerance in (Tolerance(), EXACT, Tolerance(cos_similarity=True), Tolerance(ignore_non_fp=True)):
        assert same(one.value, one.value, tolerance=tolerance)
        found = same(one.value, other.value, tolerance=tolerance)
        assert found, found
        assert found.leaves + found.ignored == len(one.leaves)
        assert same(one.value, other.value, build(plan).value, tolerance=tolerance)


@few
@given(plans, st.data())
def test_one_wrong_element_is_found_at_its_path_and_index(plan: Plan, data: Any) -> None:
    """Covers: S33, S34"""
    wrong = choose(data, plan)
    if wrong is None:
        return
    good, bad = build(plan), build(plan, wrong)
    path, leaf, expected = good.leaves[wrong[0]]
    suffix, index = leaf.place(wrong[1])
    for tolerance in (Tolerance(), EXACT):
        found = same(good.value, bad.value, tolerance=tolerance)
        assert not found
        assert found.path == path + suffix
        assert found.index == index
        assert found.leaves in (wrong[0], wrong[0] + 1)  # the leaf itself is not counted where its type differs
        assert path + suffix in str(found)
    value = good.value
    reached = eval("value" + found.path, {"value": value})  # noqa: S307 - that it can be pasted is the point
    if suffix:
        assert reached.equal(expected.unbind()[wrong[1] // math.prod(leaf.shape[1:])]) or reached.isnan().any()
    else:
        assert reached is expected


@few
@given(plans, plans, st.data())
def test_exact_agreement_is_symmetric(plan: Plan, another: Plan, data: Any) -> None:
    """Covers: S33, S34. Between values that differ in one element, in kind, or not at all."""
    wrong = choose(data, plan)
    for other in (build(plan, wrong), build(another)):
        one = build(plan)
        there, back = (same(*pair, tolerance=EXACT) for pair in ((one.value, other.value), (other.value, one.value)))
        assert bool(there) == bool(back)


@few
@given(plans, st.data(), st.floats(0, 0.1), st.floats(0, 2))
def test_what_agrees_goes_on_agreeing_as_the_tolerance_grows(plan: Plan, data: Any, tol: float, more: float) -> None:
    """Covers: S34"""
    one, other = build(plan).value, build(plan, choose(data, plan)).value
    if same(one, other, tol=tol):
        assert same(one, other, tol=tol + more)


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a comparison could change in a tensor without changing its values."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return (
        tensor._version,
        tensor.stride() if strided else None,
        tensor.data_ptr() if strided else None,
        tensor.requires_grad,
        tensor.grad,
        tensor.is_conj(),
        tensor.is_coalesced() if tensor.layout == torch.sparse_coo else None,
    )


@few
@given(plans, st.data())
def test_nothing_is_changed_by_comparing(plan: Plan, data: Any) -> None:
    """Covers: S13, S33. Neither values, versions, strides and gradients nor the state of any generator."""
    sides = [build(plan), build(plan, choose(data, plan)), build(plan)]
    tensors = [leaf for side in sides for _, _, leaf in side.leaves if isinstance(leaf, torch.Tensor)]
    before = [state_of(tensor) for tensor in tensors]
    generators = (torch.get_rng_state(), random.getstate(), repr(np.random.get_state()))
    for options in ({}, {"cos_similarity": True}, {"exact_dtype": False, "ignore_non_fp": True}):
        same(*(side.value for side in sides), **options)
        same(sides[0].value, sides[2].value, **options)
    assert [state_of(tensor) for tensor in tensors] == before
    for side in sides[::2]:
        for path, leaf, value in side.leaves:
            assert same(leaf.build(), value, tolerance=EXACT), path
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), repr(np.random.get_state())) == generators[1:]

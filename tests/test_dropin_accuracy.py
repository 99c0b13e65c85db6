"""The drop-in's `same` and its companions against torch's own: the same answers, and where torch's are wrong, the right
ones. `DIFFERENCES` is the one table of all that differs, each with its reason."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing as torch_testing
import torch._dynamo.utils as torch_utils
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Bernoulli, Normal
from torch.testing._internal.two_tensor import TwoTensor

from support import Output
from torchsleuth.compare import models
from torchsleuth.dropin import accuracy
from torchsleuth.dropin.accuracy import as_list, collect_results, reduce_to_scalar_loss, requires_bwd_pass, same
from torchsleuth.errors import BadValue, CannotReduce

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch: sparse, nested, quantised, gradients of what is no leaf

inf, nan = math.inf, math.nan
F64, BF16 = torch.float64, torch.bfloat16


# ---- values and answers ----------------------------------------------------------------------------------


def t(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def f64(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def mask(marked: int, of: int = 100) -> torch.Tensor:
    return torch.arange(of) < marked


def coo(scale: float, dtype: torch.dtype = torch.float32, size: int = 3) -> torch.Tensor:
    return (torch.eye(size, dtype=dtype) * scale).to_sparse()


def csr(scale: float) -> torch.Tensor:
    return (torch.eye(3) * scale).to_sparse_csr()


def nested(scale: float, layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2) * scale, torch.ones(3)], layout=layout)


def quantised(scale: float) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3) * scale, 0.1, 0, torch.qint8)


def fake(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2, dtype=dtype)


def itself() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


Point = namedtuple("Point", "x y")


class Foo:
    """torch compares objects of a few classes by their attributes; it knows this one by its name."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Stranger(Foo):
    """The same under a name that it does not know."""


class MaskedLMOutput(Output):
    pass


class QuestionAnsweringModelOutput(Output):
    pass


@dataclasses.dataclass
class Batch:
    inputs: Any
    mask: Any = None


@dataclass(frozen=True)
class Call:
    """A call of `same`; its values are made anew for each side."""

    sides: Callable[[], tuple[Any, ...]]
    options: dict[str, Any]

    def answer(self, function: Callable[..., Any]) -> tuple[Any, list[str]]:
        """What a function answers (True, False, the type of an exception), and what it logs."""
        logged: list[str] = []
        try:
            found = function(*self.sides(), log_error=lambda said, *args: logged.append(said % args), **self.options)
        except Exception as error:  # noqa: BLE001 - this is the answer
            return type(error), [str(error)]
        return bool(found), logged


def call(*sides: Any, **options: Any) -> Call:
    """Values, or functions that make them."""
    made = [side if callable(side) and not isinstance(side, (torch.nn.Module, type)) else None for side in sides]
    return Call(
        lambda: tuple(side if make is None else make() for side, make in zip(sides, made, strict=True)), options
    )


# ---- what is the same ------------------------------------------------------------------------------------

WIDE = torch.linspace(1, 2, 2000, dtype=F64)


def off(by: float, dtype: torch.dtype = torch.float32, numel: int = 2000) -> torch.Tensor:
    return (WIDE[:numel] * (1 + by)).to(dtype)


AGREED = {
    "equal tensors": call(t(1.0, 2.0), t(1.0, 2.0)),
    "within the tolerance": call(t(1.0, 2.0), t(1.00001, 2.0)),
    "outside of it": call(t(1.0, 2.0), t(1.01, 2.0)),
    "within a larger one": call(t(1.0, 2.0), t(1.01, 2.0), tol=0.1),
    "no tolerance": call(t(1.0), t(1.0000001), tol=0.0),
    "empty": call(torch.ones(0), torch.ones(0)),
    "scalars": call(torch.tensor(1.0), torch.tensor(2.0)),
    "requires grad": call(torch.ones(2, requires_grad=True), torch.ones(2)),
    "a parameter": call(torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    "other strides": call(torch.ones(2, 3), torch.ones(3, 2).t()),
    "a lazy conjugate": call(t(1 + 1j).conj(), t(1 - 1j)),
    "complex": call(t(1 + 1j), t(1 - 1j)),
    "complex within": call(t(1 + 1j), t(1 + 1.00001j)),
    "half of a complex": call(partial(t, 1 + 1j, dtype=torch.complex32), partial(t, 1 + 1j, dtype=torch.complex32)),
    "dtypes": call(t(1.0), f64(1.0)),
    "dtypes relaxed": call(t(1.0), f64(1.0), exact_dtype=False),
    "rounded to the narrower dtype": call(t(1.003), t(1.003).bfloat16(), exact_dtype=False),
    "not even that": call(t(1.1), t(1.003).bfloat16(), exact_dtype=False),
    "overflow of the narrower dtype": call(t(1e6), t(1e6).half(), exact_dtype=False),
    "integers": call(t(1, 2, 3), t(1, 2, 3)),
    "unequal integers": call(t(1, 2, 3), t(1, 2, 4)),
    "integers of two sizes": call(t(1), t(1, dtype=torch.int32)),
    "integers of two sizes, relaxed": call(t(1), t(1, dtype=torch.int32), exact_dtype=False),
    "an integer for a float, relaxed": call(t(1), t(1.0), exact_dtype=False),
    "the ends of integers": call(t(-(2**63)), t(2**63 - 1)),
    "integers that no float holds": call(t(2**53), t(2**53 + 1), tol=0.0),
    "unsigned": call(t(1, 2).to(torch.uint32), t(1, 2).to(torch.uint32)),
    "bools": call(t(True, False), t(True, False)),
    "unequal bools": call(t(True, False), t(True, True)),
    "unequal bools, relaxed": call(t(True, False), t(True, True), exact_dtype=False),
    "NaN": call(t(nan), t(nan)),
    "NaN may equal": call(t(nan, 1.0), t(nan, 1.0), equal_nan=True),
    "NaN for a number": call(t(nan), t(1.0), equal_nan=True),
    "a number for NaN": call(t(1.0), t(nan), equal_nan=True),
    "infinity": call(t(inf, -inf), t(inf, -inf)),
    "the other infinity": call(t(inf), t(-inf)),
    # against fp64
    "as far off as eager": call(off(1e-3), off(-1e-3), WIDE),
    "twice as far": call(off(1e-3), off(-1.9e-3), WIDE),
    "three times as far": call(off(1e-3), off(-2.9e-3), WIDE),
    "three times, in half precision": call(off(1e-1, BF16), off(-2.8e-1, BF16), WIDE),
    "three times, of a small one": call(off(1e-3, numel=500), off(-2.9e-3, numel=500), WIDE[:500]),
    "eight times, of a small one": call(off(1e-3, numel=500), off(-7.9e-3, numel=500), WIDE[:500]),
    "eight times, on request": call(
        off(1e-3, numel=500), off(-7.9e-3, numel=500), WIDE[:500], use_larger_multiplier_for_smaller_tensor=True
    ),
    "ten times, of ten": call(
        off(1e-3, numel=10), off(-9.9e-3, numel=10), WIDE[:10], use_larger_multiplier_for_smaller_tensor=True
    ),
    "ten times, by force": call(off(1e-3), off(-9.9e-3), WIDE, force_max_multiplier=True),
    "eleven times, by force": call(off(1e-3), off(-11e-3), WIDE, force_max_multiplier=True),
    "three times, of a map of 1x1": call(
        lambda: off(1e-3).view(-1, 1, 1, 1), lambda: off(-2.9e-3).view(-1, 1, 1, 1), WIDE.view(-1, 1, 1, 1)
    ),
    "a tenth of the tolerance on top": call(off(0), off(0.5e-4), WIDE, tol=1e-3),
    "a reference in fp32": call(t(1.0), t(1.2), t(1.1)),
    "a reference of integers": call(t(1), t(2), t(1)),
    "double precision is a reference for itself": call(
        torch.zeros(1000, dtype=F64), torch.zeros(1000, dtype=F64).index_fill(0, t(3), 2e-4)
    ),
    "single precision is not": call(torch.zeros(1000), torch.zeros(1000).index_fill(0, t(3), 2e-4)),
    "and neither is complex": call(
        torch.zeros(1000, dtype=torch.complex128), torch.zeros(1000, dtype=torch.complex128).index_fill(0, t(3), 2e-4)
    ),
    "a reference that is None in its place": call(
        [torch.zeros(1000, dtype=F64)], [torch.zeros(1000, dtype=F64).index_fill(0, t(3), 2e-4)], [None]
    ),
    "better than eager": call(t(nan, 1.0), t(1.0, 1.0), f64(1.0, 1.0)),
    "nearly as fp64 where eager is NaN": call(t(nan, 1.0), t(1.03, 1.0), f64(1.0, 1.0)),
    "not as fp64 where eager is NaN": call(t(nan, 1.0), t(1.1, 1.0), f64(1.0, 1.0)),
    "NaN where eager and fp64 are not": call(t(1.0, 1.0), t(nan, 1.0), f64(1.0, 1.0)),
    "NaN on both sides, with a reference": call(t(nan, 1.0), t(nan, 1.0), f64(1.0, 1.0)),
    "NaN all over": call(t(nan, 1.0), t(nan, 1.0), f64(nan, 1.0), equal_nan=True),
    # cosine
    "one direction": call(t(1.0, 2.0), t(1.1, 2.1), cos_similarity=True),
    "another direction": call(t(1.0, 0.0), t(0.0, 1.0), cos_similarity=True),
    "no direction": call(torch.zeros(3), torch.zeros(3), cos_similarity=True),
    "a direction for none": call(torch.zeros(3), torch.ones(3), cos_similarity=True),
    "the direction of NaN": call(t(nan, 1.0), t(nan, 1.0), cos_similarity=True),
    # bools as masks
    "masks that overlap": call(mask(100), mask(99), use_iou_for_bool=True),
    "masks that do not": call(mask(100), mask(98), use_iou_for_bool=True),
    "masks, by a threshold": call(mask(100), mask(60), use_iou_for_bool=True, iou_threshold=0.5),
    "empty masks": call(mask(0), mask(0), use_iou_for_bool=True),
    "an empty mask": call(mask(0), mask(1), use_iou_for_bool=True),
    "a threshold that nobody asked for": call(mask(100), mask(99), iou_threshold=0.5),
    # what is not floating point
    "ignored integers": call(t(1), t(2), ignore_non_fp=True),
    "ignored bools": call(t(True), t(False), ignore_non_fp=True),
    "ignored numbers": call([1, "a", None, True], [2, "b", 3, False], ignore_non_fp=True),
    "nothing for a tensor, ignored": call(None, t(1.0), ignore_non_fp=True),
    "a dtype is not ignored": call(t(1), t(1, dtype=torch.int32), ignore_non_fp=True),
    "a float for an ignored integer": call(t(1), t(1.0), ignore_non_fp=True),
    "floats are not ignored": call(t(1.0), t(2.0), f64(1.0), ignore_non_fp=True),
    # numbers
    "floats": call(1.0, 1.00001),
    "unlike floats": call(1.0, 1.1),
    "NaN as a float": call(nan, nan),
    "NaN as a float may equal": call(nan, nan, equal_nan=True),
    "a float and a tensor": call(1.0, torch.tensor(1.0)),
    "a tensor and a float": call(torch.tensor(1.0), 1.0),
    "a float and a double": call(1.0, torch.tensor(1.0, dtype=F64)),
    "a float and an int": call(1.0, 1),
    "a float and an int, relaxed": call(1.0, 1, exact_dtype=False),
    "an int and a float": call(1, 1.0),
    "a bool and an int": call(True, 1),
    "an int and another": call(1, 2),
    "an int and a tensor": call(3, torch.tensor(3)),
    "an int and numpy's": call(3, np.int64(3)),
    "numpy's and an int": call(np.int64(3), 3),
    "numpy's and an int, relaxed": call(np.int64(3), 3, relax_numpy_equality=True),
    "numpy's and another int, relaxed": call(np.int64(3), 4, relax_numpy_equality=True),
    "numpy's and a tensor, relaxed": call(np.int64(3), torch.tensor(3), relax_numpy_equality=True),
    "numpy's": call(np.int64(3), np.int64(3)),
    "numpy's of two sizes": call(np.int64(3), np.int32(3)),
    "a float and numpy's single": call(1.0, np.float32(1)),
    "a float and numpy's double": call(1.0, np.float64(1)),
    "numpy's double and a float": call(np.float64(1), 1.0),
    "numpy's floats": call(np.float32(1), np.float32(1)),
    "numpy's unlike floats": call(np.float32(1), np.float32(2)),
    "text": call("a", "a"),
    "other text": call("a", "b"),
    "text and a number": call("1", 1),
    "None": call(None, None),
    "None and a number": call(None, 0),
    "None and a tensor": call(None, t(1.0)),
    "None and a list": call(None, [1]),
    "an int and a list": call(3, [3]),
    "devices": call(torch.device("cpu"), torch.device("cpu")),
    "other devices": call(torch.device("cpu"), torch.device("meta")),
    # numpy
    "arrays": call(np.ones(3), np.ones(3)),
    "unlike arrays": call(np.ones(3), np.zeros(3)),
    "arrays of two dtypes": call(np.ones(3), np.ones(3, dtype=np.float32)),
    "arrays of two dtypes, relaxed": call(np.full(3, 1.003), np.full(3, 1.003, dtype=np.float16), exact_dtype=False),
    "arrays with a reference": call(np.ones(3, dtype=np.float32), np.full(3, 1.2, dtype=np.float32), np.full(3, 1.1)),
    "ignored arrays": call(np.ones(3, dtype=int), np.zeros(3, dtype=int), ignore_non_fp=True),
    "ignored arrays of two dtypes": call(np.ones(3, dtype=int), np.zeros(3), ignore_non_fp=True),
    "a tensor and an array": call(torch.ones(3, dtype=F64), np.ones(3)),
    "an array and a tensor": call(np.ones(3), torch.ones(3, dtype=F64)),
    # containers
    "a list and a tuple": call([1, t(1.0)], (1, t(1.0))),
    "a deque": call(deque([1]), [1]),
    "a named tuple": call(Point(1, 2), (1, 2)),
    "a size": call(torch.Size([1, 2]), [1, 2]),
    "parameters and a list": call(torch.nn.ParameterList([torch.ones(2)]), [torch.ones(2)]),
    "lengths": call([1], [1, 2]),
    "lengths, deep": call({"a": [[1]]}, {"a": [[1, 2]]}),
    "nothing": call([], ()),
    "dicts": call({"a": 1, "b": [t(1.0)]}, {"b": [t(1.0)], "a": 1}),
    "unlike dicts": call({"a": 1, "b": [t(1.0)]}, {"b": [t(2.0)], "a": 1}),
    "an ordered dict": call(OrderedDict(a=1), {"a": 1}),
    "an output": call(Output(loss=t(1.0)), Output(loss=t(1.0))),
    "sets": call({1, "a"}, {"a", 1}),
    "an object": call(Foo(a=t(1.0), b=[1]), Foo(a=t(1.0), b=[1])),
    "an unlike object": call(Foo(a=t(1.0), b=[1]), Foo(a=t(1.0), b=[2])),
    "a distribution": call(Normal(0.0, 1.0), Normal(0.0, 1.0)),
    "another distribution": call(Normal(0.0, 1.0), Normal(0.0, 2.0)),
    "answers, by their loss": call(
        QuestionAnsweringModelOutput(loss=t(1.0), start_logits=t(1.0)),
        QuestionAnsweringModelOutput(loss=t(1.0), start_logits=t(9.0)),
    ),
    "answers with another loss": call(
        QuestionAnsweringModelOutput(loss=t(1.0), start_logits=t(1.0)),
        QuestionAnsweringModelOutput(loss=t(2.0), start_logits=t(1.0)),
    ),
    "the first difference comes before what does not fit": call([1, [1]], [2, 3]),
    "sparse": call(coo(1), coo(1)),
    "sparse with another value": call(coo(1), coo(2)),
    # what does not fit at all
    "a list and a number": call([1], 1),
    "a list and nothing": call([1], None),
    "a list and a tensor": call([1], t(1)),
    "a list and a dict": call([1], {0: 1}),
    "a dict and a list": call({0: 1}, [1]),
    "a dict and nothing": call({0: 1}, None),
    "other keys": call({"a": 1}, {"b": 1}),
    "more keys": call({"a": 1}, {"a": 1, "b": 1}),
    "other elements": call({1}, {2}),
    "a set and a list": call({1}, [1]),
    "a set and a number": call({1}, 1),
    "an object and a number": call(Foo(a=1), 1),
    "an object and another": call(Foo(a=1), Stranger(a=1)),
    "what does not fit, deep": call({"a": [1, [2]]}, {"a": [1, 2]}),
    "what does not fit, ignored": call([1], 1, ignore_non_fp=True),
    "a fake tensor": call(fake, torch.ones(2)),
    "a fake result": call(torch.ones(2), fake),
    "a fake for a number": call(1.0, fake),
    "a fake tensor, ignored": call(partial(fake, torch.int64), torch.ones(2, dtype=torch.int64), ignore_non_fp=True),
    "sparse and dense": call(coo(1), torch.eye(3)),
    "sparse and dense, ignored": call(coo(1, torch.int64), torch.eye(3, dtype=torch.int64), ignore_non_fp=True),
    "two kinds of sparse": call(coo(1), partial(csr, 1)),
    # what nobody knows
    "an object without a name": call(object(), object()),
    "an unknown object": call(Stranger(a=1), Stranger(a=1)),
    "an unknown object and a list": call(Stranger(a=1), [1]),
    "an unknown object, deep": call([1, {"a": Stranger()}], [1, {"a": Stranger()}]),
    "an unknown object, ignored": call([Stranger()], [Stranger()], ignore_non_fp=True),
    "a frozen set": call(frozenset({1}), frozenset({1})),
    "a function": Call(lambda: (len, len), {}),
    "a module": call(torch.nn.ReLU(), torch.nn.ReLU()),
    "an unknown result": call(1, Stranger()),
    "an unknown result for a text": call("a", Stranger()),
}


@pytest.mark.parametrize("name", AGREED)
def test_the_answer_is_that_of_torch(name: str) -> None:
    """Covers: S33, S34"""
    theirs, _ = AGREED[name].answer(torch_utils.same)
    ours, said = AGREED[name].answer(same)
    assert ours == theirs
    assert bool(said) == (ours is not True), "a difference is told, and nothing else is"


def test_what_does_not_fit_says_where() -> None:
    """Covers: S33"""
    answers = [one.answer(same) for one in AGREED.values()]
    refusals = [said for answer, said in answers if answer is AssertionError]
    assert len(refusals) > 15
    assert all(said[0].startswith("the results do not fit at") for said in refusals)


@pytest.mark.parametrize("path", ["[1]", "['a'][0]", ".inputs['k']"])
@pytest.mark.parametrize(
    ("ref", "res", "says"),
    [
        (1, 2, "expected 1, got 2"),
        (t(1.0, 1.0), t(1.0, 2.0), "element [1]"),
        (t(1.0), t(1.0, 1.0), "expected (1,), got (2,)"),
        (t(1.0), f64(1.0), "expected torch.float32, got torch.float64"),
        (t(1.0), None, "expected Tensor, got NoneType"),
        ([1], [1, 2], "The lengths differ"),
        ([1], 1, "expected a list, got a int"),
        ({"a": 1}, {"b": 1}, "missing: ['a']; not expected: ['b']"),
        ({1}, {2}, "expected {1}, got {2}"),
        (torch.ones(2), fake(), "a fake tensor"),
        (coo(1), torch.eye(3), "layout torch.sparse_coo"),
        (Stranger(), Stranger(), "unsupported type: Stranger"),
    ],
)
def test_each_answer_says_where_and_what(path: str, ref: Any, res: Any, says: str) -> None:
    """Covers: S33"""
    wrap = {
        "[1]": lambda x: [0, x],
        "['a'][0]": lambda x: {"a": (x, 0)},
        ".inputs['k']": lambda x: Batch({"k": x}),
    }[path]
    answer, said = call(wrap(ref), wrap(res)).answer(same)
    assert answer is not True
    assert len(said) == 1
    assert f"at {path}" in said[0]
    assert says in said[0]


# ---- what is not -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A call that torch answers otherwise, and why. `theirs` is checked too: it may be mended one day."""

    call: Call
    theirs: Any
    ours: Any
    why: str


DIFFERENCES = {
    # shapes
    "another shape": Difference(
        call(torch.ones(3), torch.ones(1)), True, False, "torch broadcasts: a shape mismatch is a mismatch (S35)"
    ),
    "a number for many": Difference(call(torch.ones(3), 1.0), True, False, "the same"),
    "nothing for one": Difference(call(torch.ones(1), torch.ones(0)), True, False, "the same"),
    "another shape of masks": Difference(
        call(mask(10, 10), mask(1, 1), use_iou_for_bool=True), True, False, "the same"
    ),
    "another shape of arrays": Difference(call(np.ones(3), np.ones(1)), True, False, "the same"),
    "another shape, by direction": Difference(
        call(torch.ones(2, 3), torch.ones(3, 2), cos_similarity=True), True, False, "torch flattens first"
    ),
    "another shape, ignored": Difference(
        call(t(True, True), t(True), ignore_non_fp=True), True, False, "values are ignored, shapes are not"
    ),
    "another shape that cannot be broadcast": Difference(
        call(torch.ones(2, 3), torch.ones(3, 2)), RuntimeError, False, "a difference is an answer, not an exception"
    ),
    "another shape of the reference": Difference(
        call(torch.ones(4), torch.full((4,), 1.2), f64(1.1)), True, False, "a reference that is broadcast is none"
    ),
    # the structure of the reference
    "a reference that is too short": Difference(
        call([1, 2, 3], [1, 5, 6], [1]), True, False, "torch compares no more leaves than the reference has"
    ),
    "an empty reference": Difference(call([t(1.0)], [t(2.0)], []), True, False, "the same: then everything is equal"),
    "a reference without a key": Difference(
        call({"a": t(1.0)}, {"a": t(1.0)}, {}), KeyError, True, "what the reference lacks is compared without it"
    ),
    "a reference of another kind": Difference(call([t(1.0)], [t(1.0)], 1.0), TypeError, True, "the same"),
    # NaN and infinity
    "one NaN for all": Difference(
        call(f64(nan, 1.0), f64(nan, 5.0), equal_nan=True),
        True,
        False,
        "both RMSE are NaN, and with equal_nan torch takes that for agreement: the other elements are not looked at",
    ),
    "an infinity for all": Difference(
        call(t(inf, 1.0), t(inf, 100.0), f64(7e4, 1.0)),
        True,
        False,
        "the RMSE of eager is infinite, and anything is less: the other elements are not looked at",
    ),
    "the other infinity": Difference(call(t(-inf, 1.0), t(inf, 1.0), f64(7e4, 1.0)), True, False, "the same"),
    "an infinity that all three have": Difference(
        call(t(1.0, inf), t(1.2, inf), f64(1.1, inf)), False, True, "inf - inf is NaN: then no reference ever helps"
    ),
    "a NaN that both have, by direction": Difference(
        call(t(nan, 1.0), t(nan, 1.1), cos_similarity=True),
        False,
        True,
        "one NaN makes the cosine NaN, though torch lets NaN equal NaN there",
    ),
    # numbers
    "floats beyond single precision": Difference(
        call(1e300, 1e301), True, False, "torch rounds Python's floats to single precision: both are infinite"
    ),
    "floats of more digits": Difference(call(1.0, 1.0 + 1e-12, tol=0.0), True, False, "the same"),
    "a float with a reference": Difference(
        call(0.5, 0.6, 0.55), False, True, "the same: so the reference is not in double precision, and not heeded"
    ),
    "floats, by direction": Difference(
        call(1.0, 2.0, cos_similarity=True), True, False, "one number has no direction: all of them would be the same"
    ),
    "numpy's floats": Difference(
        call(np.float32(1), np.float32(1.000001)), False, True, "torch gives all floats a tolerance but these"
    ),
    "numpy's NaN": Difference(call(np.float32(nan), np.float32(nan), equal_nan=True), False, True, "the same"),
    "numpy's double, relaxed": Difference(
        call(np.float64(1), 1.0, relax_numpy_equality=True), False, True, "torch relaxes all numpy scalars but this one"
    ),
    "two of numpy's, relaxed": Difference(
        call(np.int64(1), np.int32(1), relax_numpy_equality=True), False, True, "both stand for the number 1"
    ),
    "numpy's int, ignored": Difference(
        call(np.int64(1), np.int64(2), ignore_non_fp=True), False, True, "an int is no float, numpy's or not"
    ),
    "dtypes of numpy's, relaxed": Difference(
        call(np.int64(1), np.int32(1), exact_dtype=False), False, True, "exact_dtype is for all numbers"
    ),
    "an int near a float, relaxed": Difference(
        call(1, 1.00001, exact_dtype=False), False, True, "the other way round torch has a tolerance"
    ),
    "large integers": Difference(
        call(t(10000), t(10001)), True, False, "integers have no noise: another index is another row"
    ),
    "integers within a tolerance": Difference(call(t(1), t(2), tol=1.0), True, False, "the same"),
    "integers, by direction": Difference(call(t(1), t(2), cos_similarity=True), True, False, "the same"),
    "the scale of a tolerance": Difference(
        call(t(1.0), t(2.0), tol=0.4), True, False, "torch scales with the result: what is wrong widens its own bound"
    ),
    "the scale of a tolerance, downwards": Difference(call(t(2.0), t(1.0), tol=0.4), False, True, "the same"),
    "an endless tolerance": Difference(call(t(1.0), t(2.0), tol=inf), True, BadValue, "that compares nothing"),
    "a negative tolerance": Difference(call(t(1.0), t(1.0), tol=-1.0), RuntimeError, BadValue, "none either"),
    # dtypes
    "a float cut to an integer": Difference(
        call(t(1.5), t(1), exact_dtype=False), True, False, "torch casts the expected value to the dtype of the result"
    ),
    "NaN cut to a bool": Difference(call(t(nan), t(True), exact_dtype=False), True, False, "the same"),
    "an imaginary part cut off": Difference(call(t(1 + 1j), t(1.0), exact_dtype=False), True, False, "the same"),
    "an imaginary part, by direction": Difference(
        call(t(1 + 1j), t(1 - 1j), cos_similarity=True), True, False, "torch casts to float32 and forgets it"
    ),
    "a complex reference": Difference(
        call(t(1 + 0j), t(1.2 + 0j), t(1.1 + 0j, dtype=torch.complex128)), False, True, "torch heeds only real ones"
    ),
    "a real reference of complex": Difference(
        call(t(1 + 0j), t(1.2 + 0j), f64(1.1)), TypeError, False, "a difference is an answer, not an exception"
    ),
    "floats that are ignored": Difference(
        call(t(1.0), t(2.0), ignore_non_fp=True), True, False, "without a reference torch ignores floats as well"
    ),
    "eight bits": Difference(
        call(t(1.0).to(torch.float8_e4m3fn), t(1.0).to(torch.float8_e4m3fn)), NotImplementedError, True, "no kernel"
    ),
    "bare bits": Difference(
        call(t(1, dtype=torch.uint8).view(torch.bits8), t(1, dtype=torch.uint8).view(torch.bits8)),
        NotImplementedError,
        True,
        "no kernel",
    ),
    # masks
    "masks at the threshold": Difference(
        call(mask(10, 10), mask(9, 10), use_iou_for_bool=True, iou_threshold=0.9),
        False,
        True,
        "in single precision 9 / 10 is less than 0.9",
    ),
    "masks in arrays": Difference(
        call(mask(100).numpy(), mask(99).numpy(), use_iou_for_bool=True), False, True, "torch forgets the option there"
    ),
    "masks in objects": Difference(
        call(Foo(a=mask(100)), Foo(a=mask(99)), use_iou_for_bool=True), False, True, "the same"
    ),
    "a multiplier in objects": Difference(
        call(Foo(a=off(1e-3)), Foo(a=off(-9.9e-3)), Foo(a=WIDE), force_max_multiplier=True), False, True, "the same"
    ),
    "masks, relaxed": Difference(
        call(mask(100), mask(99), use_iou_for_bool=True, exact_dtype=False), False, True, "bools are bools"
    ),
    # kinds of tensors
    "compressed sparse": Difference(
        call(partial(csr, 1), partial(csr, 1)), RuntimeError, True, "torch knows only one kind of sparse"
    ),
    "compressed sparse with another value": Difference(
        call(partial(csr, 1), partial(csr, 2)), RuntimeError, False, "the same"
    ),
    "compressed sparse and dense": Difference(
        call(partial(csr, 1), torch.eye(3)), RuntimeError, AssertionError, "the same"
    ),
    "dense and sparse": Difference(
        call(torch.eye(3), coo(1)), NotImplementedError, AssertionError, "torch refuses the other way round only"
    ),
    "sparse doubles": Difference(
        call(coo(1, F64), coo(2, F64)), RuntimeError, False, "torch subtracts a dense tensor from a sparse one"
    ),
    "sparse with a reference": Difference(call(coo(1), coo(1.2), coo(1.1, F64)), RuntimeError, True, "the same"),
    "nested": Difference(call(partial(nested, 1), partial(nested, 1)), NotImplementedError, True, "no kernel"),
    "nested with another value": Difference(
        call(partial(nested, 1), partial(nested, 2)), NotImplementedError, False, "no kernel"
    ),
    "jagged": Difference(
        call(partial(nested, 1, torch.jagged), partial(nested, 2, torch.jagged)), NotImplementedError, False, "the same"
    ),
    "quantised": Difference(call(partial(quantised, 1), partial(quantised, 1)), RuntimeError, True, "no kernel"),
    "a subclass": Difference(
        call(TwoTensor(torch.ones(2), torch.ones(2)), TwoTensor(torch.ones(2), torch.zeros(2))),
        True,
        False,
        "torch asks the subclass, and this one looks at one of its two tensors",
    ),
    "without values": Difference(
        call(torch.ones(2, device="meta"), torch.ones(2, device="meta")), RuntimeError, True, "shape and dtype agree"
    ),
    "another device": Difference(
        call(torch.ones(2), torch.ones(2, device="meta")), RuntimeError, False, "a difference is an answer"
    ),
    # types
    "a tensor and nothing": Difference(
        call(t(1.0), None), RuntimeError, False, "a gradient that is missing is a difference, not a crash"
    ),
    "a tensor and text": Difference(call(t(1.0), "a"), TypeError, False, "the same"),
    "an ignored tensor and text": Difference(call(t(1), "a", ignore_non_fp=True), TypeError, False, "the same"),
    "a tensor and a list": Difference(
        call(t(1.0, 2.0), [1.0, 2.0]), True, False, "a list is no tensor: the other way round torch says so itself"
    ),
    "a tensor and a dict": Difference(call(t(1.0), {}), RuntimeError, False, "the same"),
    "an int and a tensor of two": Difference(call(3, t(3, 3)), RuntimeError, False, "a difference is an answer"),
    "an int and a list, ignored": Difference(
        call(3, [t(1.0)], ignore_non_fp=True), True, False, "structure is not a number"
    ),
    "a float and an endless int": Difference(call(1.0, 10**30), ValueError, False, "a difference is an answer"),
    "complex numbers": Difference(call(1j, 1j), RuntimeError, True, "they are numbers"),
    "bytes": Difference(call(b"a", b"a"), RuntimeError, True, "plainly equal"),
    "dtypes": Difference(call(torch.float32, torch.float64), RuntimeError, False, "plainly unequal"),
    "numpy's bool": Difference(call(np.bool_(True), np.bool_(True)), RuntimeError, True, "plainly equal"),
    "arrays of text": Difference(call(np.array(["a"]), np.array(["a"])), TypeError, True, "plainly equal"),
    "arrays backwards": Difference(call(np.ones(3)[::-1], np.ones(3)), ValueError, True, "strides are no matter"),
    # containers
    "lists of parameters": Difference(
        call(torch.nn.ParameterList([torch.ones(2)]), torch.nn.ParameterList([torch.ones(2)])),
        AssertionError,
        True,
        "torch does not know its own list when it is the result (S33)",
    ),
    "dataclasses": Difference(call(Batch(t(1.0)), Batch(t(1.0))), RuntimeError, True, "field by field (S33)"),
    "unlike dataclasses": Difference(call(Batch(t(1.0)), Batch(t(2.0))), RuntimeError, False, "the same"),
    "mappings": Difference(call(UserDict(a=1), UserDict(a=1)), RuntimeError, True, "as dicts"),
    "other distributions": Difference(
        call(Bernoulli(torch.tensor(0.1)), Bernoulli(torch.tensor(0.1))), RuntimeError, True, "torch knows Normal only"
    ),
    "keys that have no order": Difference(
        call({1: 1, "a": 2}, {1: 1, "a": 2}), TypeError, True, "torch sorts the keys, for no reason"
    ),
    "an object that lacks something": Difference(
        call(Foo(a=1), Foo()), AttributeError, AssertionError, "as for keys of dicts"
    ),
    "an object that has more": Difference(
        call(Foo(), Foo(a=1)), True, AssertionError, "torch looks at what was expected only"
    ),
    "answers without a loss": Difference(
        call(QuestionAnsweringModelOutput(loss=None, start_logits=t(1.0)),
             QuestionAnsweringModelOutput(loss=None, start_logits=t(2.0))),
        True,
        False,
        "the loss stands for the logits; without one torch compares nothing at all",
    ),
    "a list in itself": Difference(call(itself, itself), RecursionError, True, "what was opened is not opened again"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_where_torch_is_wrong_the_answer_is_right(name: str) -> None:
    """Covers: S33, S34, S35"""
    known = DIFFERENCES[name]
    theirs, _ = known.call.answer(torch_utils.same)
    ours, said = known.call.answer(same)
    assert theirs == known.theirs, f"torch was mended, or changed: {known.why}"
    assert ours == known.ours
    assert bool(said) == (ours is not True)


def test_whatever_is_false_was_told() -> None:
    """torch says nothing of an array against a list, or of another direction; its own analyser relies on being told."""
    for silent in (call(np.ones(2), [1.0, 1.0]), call(t(1.0, 0.0), t(0.0, 1.0), cos_similarity=True)):
        assert silent.answer(torch_utils.same) == (False, [])
        answer, said = silent.answer(same)
        assert answer is False
        assert len(said) == 1


def test_the_answer_is_a_bool() -> None:
    """torch may return a tensor, or numpy's bool."""
    for ref, res in ((3, torch.tensor(3)), (3, np.int64(3)), (np.float32(1), np.float32(2))):
        assert not isinstance(torch_utils.same(ref, res), bool)
        assert isinstance(same(ref, res), bool)


def test_messages_go_where_those_of_torch_go(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="torch._dynamo.utils"):
        assert not same({"100%": t(1.0)}, {"100%": t(2.0)})
        assert same(1, 1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("torch._dynamo.utils", "ERROR")
    assert "differ at ['100%'] (value): expected 1, got 2" in record.getMessage()


@pytest.mark.parametrize("name", ["same", "reduce_to_scalar_loss", "requires_bwd_pass", "collect_results"])
def test_names_order_and_defaults_of_the_arguments_are_those_of_torch(name: str) -> None:
    theirs = inspect.signature(getattr(torch_utils if name == "same" else torch_testing, name))
    ours = inspect.signature(getattr(accuracy, name))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]


def test_nothing_is_changed_and_nothing_is_drawn() -> None:
    ref, res = torch.ones(3, requires_grad=True), torch.full((3,), 1.2)
    before = torch.get_rng_state()
    same([ref, {"a": res}], [res, {"a": ref}], [ref.double() * 1.1, {"a": ref.double()}])
    assert torch.equal(ref, torch.ones(3))
    assert ref.grad is None
    assert ref.requires_grad
    assert torch.equal(before, torch.get_rng_state())


def test_a_default_dtype_is_that_of_python_s_floats() -> None:
    theirs, ours = [], []
    for default in (torch.float32, F64):
        torch.set_default_dtype(default)
        try:
            theirs.append(torch_utils.same(1.0, torch.tensor(1.0, dtype=F64)))
            ours.append(same(1.0, torch.tensor(1.0, dtype=F64)))
        finally:
            torch.set_default_dtype(torch.float32)
    assert ours == theirs == [False, True]


# ---- a property ------------------------------------------------------------------------------------------
#
# Drawn are calls that torch answers rightly: equal shapes, finite numbers (and NaN where there is no reference to
# be spoiled), small integers, noise that is well inside or well outside of every bound.

NOISE = {"none": 0.0, "tiny": 1e-6, "large": 0.05}
DTYPES = [torch.float32, torch.float16, BF16, F64, torch.complex64, torch.int64, torch.int32, torch.bool]
SHAPES = [(), (3,), (2, 2), (0,), (1, 1, 1, 1), (1200,)]
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "tol": st.sampled_from([1e-3, 1e-4]),
    "equal_nan": st.booleans(),
    "relax_numpy_equality": st.booleans(),
    "use_larger_multiplier_for_smaller_tensor": st.booleans(),
    "force_max_multiplier": st.booleans(),
    "use_iou_for_bool": st.booleans(),
    "iou_threshold": st.sampled_from([0.3, 0.7]),
}
Trio = tuple[Any, Any, Any]
"""What was expected, what was got, and the reference."""


def build(numbers: list[float], dtype: torch.dtype, shape: tuple[int, ...], noise: float = 0.0) -> torch.Tensor:
    wide = torch.complex128 if dtype.is_complex else F64
    signs = torch.tensor([-1.0, 1.0]).repeat(len(numbers))[: len(numbers)]
    return (torch.tensor(numbers, dtype=wide) * (1 + noise * signs)).to(dtype).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> Trio:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    numel = math.prod(shape)
    pattern = draw(st.lists(st.sampled_from([0.0, 1.0, -2.0, 3.0]), min_size=1, max_size=4))
    numbers = (pattern * numel)[:numel]
    got = list(numbers)
    if numel and draw(st.booleans()):
        got[draw(st.integers(0, numel - 1))] += 1
    wide = torch.complex128 if dtype.is_complex else F64
    ref = build(numbers, dtype, shape)
    res = build(got, dtype, shape, NOISE[draw(st.sampled_from(list(NOISE)))])
    fp64 = build(numbers, wide, shape, NOISE[draw(st.sampled_from(list(NOISE)))])
    if not dtype.is_floating_point:
        fp64 = ref.clone()  # integers and their noise: a difference that is listed above
    if draw(st.booleans()) and dtype not in (F64, BF16) and not dtype.is_complex:
        return ref.numpy(), res.numpy(), fp64.numpy()
    if dtype in (torch.float32, BF16) and numel and draw(st.integers(0, 4)) == 0:
        spot = draw(st.integers(0, numel - 1))
        ref.view(-1)[spot] = nan
        if draw(st.booleans()):
            res.view(-1)[spot] = nan
        return ref, res, ref
    return ref, res, fp64


VALUES = [0, 1, 2, True, False, 1.0, 2.0, nan, "a", "b", None, np.int64(1), np.float32(1), torch.device("cpu")]
objects = st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)).filter(
    lambda pair: not isinstance(pair[0], float) or isinstance(pair[1], (float, int, np.number))
)
leaves = st.one_of(
    tensors(), objects.map(lambda pair: (*pair, pair[0])), st.sampled_from(VALUES).map(lambda x: (x,) * 3)
)


@st.composite
def trees(draw: st.DrawFn, depth: int = 2) -> Trio:
    kind = draw(st.sampled_from(["leaf", "list", "tuple", "dict", "object"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaves)
    children = [draw(trees(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
    columns = [list(column) for column in zip(*children, strict=True)] or [[], [], []]
    misfit = draw(st.integers(0, 15))
    if kind in ("list", "tuple"):
        if misfit == 0:
            columns[1].append(1)
        made: list[Any] = [tuple(column) if kind == "tuple" else column for column in columns]
    else:
        made = [dict(zip("abc", column, strict=False)) for column in columns]
        if misfit == 0:
            made[1]["z"] = 1
        if kind == "object":
            made = [Foo(**column) for column in made] if misfit else made
    if misfit == 1:
        made[1] = draw(st.sampled_from([None, 1, [], {}]))
    return made[0], made[1], made[2]


@settings(max_examples=400, deadline=None)
@given(trio=trees(), with_reference=st.booleans(), options=st.fixed_dictionaries({}, optional=OPTIONS))
def test_whatever_is_drawn_the_answer_is_that_of_torch(
    trio: Trio, with_reference: bool, options: dict[str, Any]
) -> None:
    """Covers: S33, S34"""
    if loses_options(trio[0]):  # a difference that is listed above
        options = {name: value for name, value in options.items() if name not in LOST_IN_ARRAYS}
    asked = call(*(trio if with_reference else trio[:2]), **options)
    theirs, _ = asked.answer(torch_utils.same)
    ours, said = asked.answer(same)
    assert ours == theirs
    assert bool(said) == (ours is not True)


LOST_IN_ARRAYS = {"force_max_multiplier", "use_iou_for_bool", "iou_threshold"}


def loses_options(value: Any) -> bool:
    """Whether there is something in a value into which torch does not hand on all options."""
    if isinstance(value, (list, tuple)):
        return any(map(loses_options, value))
    if isinstance(value, dict):
        return any(map(loses_options, value.values()))
    return isinstance(value, (np.ndarray, Foo))


# ---- losses and results ----------------------------------------------------------------------------------


LOSSES = {
    "a tensor": t(1.0, 2.0, 6.0),
    "integers": t(1, 2, 6),
    "bools": t(True, False),
    "a scalar": torch.tensor(2.0),
    "a list": [t(1.0, 3.0), t(5.0)],
    "nested": [t(1.0, 3.0), (t(5.0), [t(7)])],
    "a dict": {"a": t(1.0), "b": [t(2.0), t(4.0)]},
    "a named tuple": Point(t(1.0), t(4.0)),
    "an output with logits": MaskedLMOutput(loss=t(100.0), logits=t(1.0, 3.0)),
    "another output with logits": Output(loss=t(100.0), logits=t(1.0, 3.0)),
    "outputs in a list": [MaskedLMOutput(loss=t(100.0), logits=t(1.0)), Output(loss=t(100.0), logits=t(1.0))],
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_torch(name: str) -> None:
    """Covers: S37"""
    theirs, ours = torch_testing.reduce_to_scalar_loss(LOSSES[name]), reduce_to_scalar_loss(LOSSES[name])
    assert torch.equal(ours, theirs)
    assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("out", ["text", 1, None, object(), {"a": object()}, [t(1.0), object()], {1}])
def test_what_has_no_loss_is_named(out: Any) -> None:
    """Covers: S37"""
    with pytest.raises(NotImplementedError):
        torch_testing.reduce_to_scalar_loss(out)
    with pytest.raises(CannotReduce, match=r"a (str|int|NoneType|object|set) cannot be reduced") as error:
        reduce_to_scalar_loss(out)
    assert isinstance(error.value, NotImplementedError)


@pytest.mark.parametrize(
    ("out", "theirs", "ours", "why"),
    [
        (Normal(t(1.0, 2.0), 1.0), NotImplementedError, 3.0, "torch knows one distribution by its name (S37)"),
        ([t(2.0), None, 3], NotImplementedError, 2.0, "what has no gradient is passed over"),
        (Batch(t(2.0), t(4.0)), NotImplementedError, 3.0, "dataclasses are containers (S33)"),
        (UserDict(a=t(2.0)), NotImplementedError, 2.0, "and so are mappings"),
        (torch.ones(0), nan, 0.0, "nothing has no mean, and no influence"),
        (t(1 + 3j), 1 + 3j, 2.0, "backward needs a real number"),
        ([], ZeroDivisionError, NotImplementedError, "an error that explains"),
        ({}, ZeroDivisionError, NotImplementedError, "the same"),
    ],
    ids=str,
)
def test_where_a_loss_is_not_that_of_torch(out: Any, theirs: Any, ours: Any, why: str) -> None:
    """Covers: S37"""
    for function, expected in ((torch_testing.reduce_to_scalar_loss, theirs), (reduce_to_scalar_loss, ours)):
        if isinstance(expected, type):
            with pytest.raises(expected):
                function(out)
        else:
            assert torch.allclose(function(out), torch.tensor(expected), equal_nan=True), why


def test_a_loss_of_integers_beside_floats_has_a_gradient() -> None:
    """Covers: S37"""
    x = torch.ones(4, requires_grad=True)
    reduce_to_scalar_loss([x * 2, t(1, 2)]).backward()
    assert torch.equal(x.grad, torch.full((4,), 0.25))


GRAD = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize("out", [GRAD, t(1.0), [t(1.0), GRAD], [], [t(1.0), (None, 3, [GRAD])], None, 3, True, (t(1),)])
def test_whether_a_backward_is_needed_is_as_torch_says(out: Any) -> None:
    """Covers: S37"""
    found = requires_bwd_pass(out)
    assert found is torch_testing.requires_bwd_pass(out)
    assert isinstance(found, bool)


@pytest.mark.parametrize(
    ("out", "needed"),
    [
        ({"a": GRAD}, True),
        ({"a": t(1.0)}, False),
        (Output(logits=GRAD), True),
        (Batch(1, GRAD), True),
        (Normal(GRAD, 1.0), True),
        (Normal(0.0, 1.0), False),
        ([1.5, "text", np.ones(2)], False),
    ],
    ids=str,
)
def test_whatever_has_a_loss_is_known_to_need_a_backward_or_not(out: Any, needed: bool) -> None:
    """Covers: S37. torch reduces dicts, and does not know whether they require grad."""
    with pytest.raises(NotImplementedError):
        torch_testing.requires_bwd_pass(out)
    assert requires_bwd_pass(out) is needed


@pytest.mark.parametrize(
    ("out", "path"), [(object(), "the result itself"), ([t(1.0), {"a": Stranger()}], r"\[1\]\['a'\]")]
)
def test_what_may_need_a_backward_is_named(out: Any, path: str) -> None:
    """Covers: S37"""
    with pytest.raises(NotImplementedError):
        torch_testing.requires_bwd_pass(out)
    with pytest.raises(NotImplementedError, match=rf"a (object|Stranger) at {path} requires grad"):
        requires_bwd_pass(out)


def test_a_yes_needs_no_look_at_the_rest() -> None:
    assert torch_testing.requires_bwd_pass([GRAD, object()])
    assert requires_bwd_pass([GRAD, object()])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(2, 2)
        self.idle = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor, others: Any, scale: float = 1.0) -> torch.Tensor:
        return self.norm(self.used(x)) * others[0] * scale


def after_a_run(model: Any) -> tuple[Any, Any, list[Any]]:
    """Output, loss and inputs of a run forward and backward."""
    torch.manual_seed(0)
    inputs: list[Any] = [
        torch.randn(3, 2, requires_grad=True),
        (torch.randn(3, 2, requires_grad=True), t(1.0), 5),
        2.0,
        None,
    ]
    model.zero_grad()
    out = model(*inputs[:2])
    loss = reduce_to_scalar_loss(out)
    loss.backward()
    return out, loss, inputs


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")])
def test_results_are_collected_as_torch_does_it(wrap: Any) -> None:
    """Covers: S36"""
    torch.manual_seed(0)
    model = wrap(Model())
    out, loss, inputs = after_a_run(model)
    theirs = torch_testing.collect_results(model, out, loss, inputs)
    ours = collect_results(model, out, loss, inputs)
    assert isinstance(ours, list)
    assert [type(part) for part in ours] == [type(part) for part in theirs]
    assert ours[0] is out
    assert ours[1] is loss
    for mine, yours in zip(ours[2:5], theirs[2:5], strict=True):
        assert list(mine) == list(yours)
        assert same(yours, mine, tol=0.0)
    assert next(iter(ours[2])) == "used.weight.grad"
    assert next(iter(ours[3])) == "used.weight"
    assert not ours[2]["idle.weight.grad"].any(), "no gradient counts as zero"
    assert ours[3]["used.weight"] is next(model.parameters())
    grads = [inputs[0].grad, inputs[1][0].grad, None]
    assert all(mine is yours for mine, yours in zip(ours[5:], grads, strict=True))


def test_names_are_those_of_the_model_whatever_part_of_it_is_compiled() -> None:
    """Covers: S36. torch takes its prefix away only from the front, so that the names of the two do not fit."""
    plain, compiled = Model(), Model()
    compiled.load_state_dict(plain.state_dict())
    compiled.used = torch.compile(compiled.used, backend="eager")
    results = [collect_results(model, None, None, []) for model in (plain, compiled)]
    assert same(*results)
    with pytest.raises(AssertionError):
        torch_utils.same(*(torch_testing.collect_results(model, None, None, []) for model in (plain, compiled)))


def test_gradients_of_inputs_are_collected_however_deep_they_are() -> None:
    """Covers: S36. torch opens lists once, and no dicts."""
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    model = torch.nn.ReLU()
    for inputs in ([{"a": x}], [[[x]]], [Batch(x)]):
        assert len(torch_testing.collect_results(model, None, None, inputs)) == 5
        assert torch.equal(collect_results(model, None, None, inputs)[5], torch.full((2,), 3.0))


def test_a_run_of_the_engine_can_be_had_as_torch_s_list() -> None:
    """Covers: S36"""
    torch.manual_seed(0)
    model = Model()
    inputs = [torch.randn(3, 2, requires_grad=True), (torch.randn(3, 2), 1)]
    results = as_list(models.run_fwd_maybe_bwd(model, inputs))
    assert len(results) == 7
    assert results[2]["used.weight.grad"].any()
    assert results[5].any()
    assert results[6] is None
    assert inputs[0].grad is None, "the run had copies"


def test_wrong_gradients_are_told_by_the_name_of_the_parameter() -> None:
    """Covers: S32, S36"""
    results = []
    for scale in (1.0, 2.0):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        (model(torch.ones(1, 2)).sum() * scale).backward()
        results.append(collect_results(model, None, None, []))
    answer, said = call(*results).answer(same)
    assert answer is False
    assert "differ at [2]['weight.grad']" in said[0]

"""Running models and comparing two: nothing of the caller's changes, and every way a run can differ is seen."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Normal

from support import Output
from torchsleuth import config
from torchsleuth.compare import (
    Results,
    Tolerance,
    clone_inputs,
    collect_results,
    reduce_to_scalar_loss,
    requires_bwd_pass,
    run_fwd_maybe_bwd,
    same,
    same_two_models,
)
from torchsleuth.compare.rng import RngState, preserved
from torchsleuth.errors import CannotReduce, NoReference
from torchsleuth.outcome import Symptom

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: sparse, nested and quantised are "beta"


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> Any:
    with preserved():
        torch.manual_seed(0)
        yield


class Net(nn.Module):
    """A linear layer, dropout, and a buffer that counts the calls."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.drop = nn.Dropout(drop)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.drop(self.linear(x))


class TamperedGradient(torch.autograd.Function):
    """The identity forward; backward it is off by a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1.5


class Around(nn.Module):
    """A model with something done to its output."""

    def __init__(self, model: nn.Module, then: Callable[[Any], Any]) -> None:
        super().__init__()
        self._orig_mod = model
        self.then = then

    def forward(self, *args: Any) -> Any:
        return self.then(self._orig_mod(*args))


@dataclasses.dataclass
class Batch:
    inputs: Any
    mask: Any = None


Pair = namedtuple("Pair", "left right")


def ones(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=grad)


# ---- one number from any output (S37) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (torch.tensor([1.0, 2.0, 6.0]), 3.0),
        (torch.tensor(5.0), 5.0),
        (torch.tensor([1, 2, 4]), 7 / 3),
        (torch.tensor([True, False]), 0.5),
        (torch.tensor([250, 254], dtype=torch.uint8), 252.0),
        (torch.tensor([1, 3], dtype=torch.uint16), 2.0),
        (torch.tensor([1.0, 3.0], dtype=torch.bfloat16), 2.0),
        (torch.tensor([1.0, 3.0]).to(torch.float8_e4m3fn), 2.0),
        (torch.tensor([1 + 3j, 1 + 3j]), 2.0),
        (torch.tensor([1 + 3j, 1 + 3j]).conj(), -1.0),
        (torch.zeros(0), 0.0),
        (torch.zeros(0, 3, dtype=torch.int64), 0.0),
        (torch.eye(2).to_sparse(), 0.5),
        (torch.eye(2, dtype=torch.complex64).to_sparse(), 0.25),
        ([torch.tensor([1.0, 3.0]), torch.tensor(4.0)], 3.0),
        ((torch.tensor(1.0), [torch.tensor(2.0), torch.tensor(4.0)]), 2.0),
        (deque([torch.tensor(1.0), torch.tensor(3.0)]), 2.0),
        (Pair(torch.tensor(1.0), torch.tensor(3.0)), 2.0),
        ({"a": torch.tensor(1.0), "b": {"c": torch.tensor(3.0)}}, 2.0),
        (Batch(torch.tensor(1.0), torch.tensor(3.0)), 2.0),
        (Batch(torch.tensor(1.0)), 1.0),
        ([torch.tensor(1.0), None, "text", 7, 2.5, True, 1j, b"x"], 1.0),
        ([torch.tensor(1.0), [], (), {}, [None, [3]]], 1.0),
        (Output(logits=torch.tensor([1.0, 3.0]), loss=torch.tensor(100.0)), 2.0),
        (Output(loss=torch.tensor(1.0), extra=torch.tensor(3.0)), 2.0),
        (Output(logits=None, extra=torch.tensor(3.0)), 3.0),
        ([Output(logits=torch.tensor([1.0, 3.0])), torch.tensor(4.0)], 3.0),
        (Normal(torch.tensor([1.0, 2.0]), torch.ones(2)), 3.0),
        (Bernoulli(probs=torch.tensor([0.25, 0.5])), 0.75),
    ],
)
def test_any_output_reduces_to_one_number(output: Any, expected: float) -> None:
    """Covers: S37"""
    loss = reduce_to_scalar_loss(output)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.tensor([1 + 3j]).to(torch.complex32), 2.0),
        (lambda: torch.eye(2).to_sparse_csr(), 0.5),
        (lambda: torch.eye(2).to_sparse_bsr((1, 1)), 0.5),
        (lambda: torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8), 1.5),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(1, 2)]), 0.5),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(1, 2)], layout=torch.jagged), 0.5),
    ],
)
def test_any_kind_of_tensor_reduces_to_one_number(make: Any, expected: float) -> None:
    """Covers: S37"""
    assert reduce_to_scalar_loss(make()).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("text", "str"),
        (None, "NoneType"),
        (3.0, "float"),
        ([], "list"),
        ({"a": None}, "dict"),
        ([1, [2, None]], "list"),
        ([torch.ones(1), object()], "object"),
        ({1, 2}, "set"),
        (nn.Linear(1, 1), "Linear"),
        (np.ones(2), "ndarray"),
        (torch.Tensor, "_TensorMeta"),
    ],
)
def test_an_output_that_is_no_number_is_an_error_that_names_its_type(output: Any, names: str) -> None:
    """Covers: S37"""
    with pytest.raises(NotImplementedError, match=f"a {names} cannot be reduced") as error:
        reduce_to_scalar_loss(output)
    assert isinstance(error.value, CannotReduce)


def test_gradients_flow_through_the_loss() -> None:
    """Covers: S37"""
    for make in (
        lambda x: x,
        lambda x: [x, {"a": x}],
        lambda x: x.to(torch.complex64).conj(),
        lambda x: x.to_sparse(),
        lambda x: Normal(x, 1.0),
        lambda x: Output(logits=x),
        lambda x: x.half(),
    ):
        x = ones(4)
        reduce_to_scalar_loss(make(x)).backward()
        assert x.grad is not None
        assert (x.grad != 0).all()


def test_a_distribution_is_asked_for_nothing_but_its_mean() -> None:
    """Covers: S37. Its logits would be computed and kept in it."""
    distribution = Bernoulli(probs=torch.tensor([0.5]))
    reduce_to_scalar_loss(distribution)
    assert "logits" not in vars(distribution)


def test_a_backward_pass_is_needed_if_any_tensor_says_so_however_deep() -> None:
    """Covers: S36"""
    quiet = torch.ones(1)
    for deep in (
        lambda x: x,
        lambda x: [quiet, (x,)],
        lambda x: {"a": {"b": deque([x])}},
        lambda x: Batch(None, x),
        lambda x: Output(loss=x),
        lambda x: Normal(x, 1.0),
        lambda x: (1, None, "a", x),
    ):
        assert requires_bwd_pass(deep(ones(1)))
        assert not requires_bwd_pass(deep(quiet))
    assert not requires_bwd_pass(None)
    assert not requires_bwd_pass([])
    assert not requires_bwd_pass(torch.tensor([1]))


# ---- copies of the inputs (S36) --------------------------------------------------------------------------


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3),
        lambda: torch.randn(2, 3, requires_grad=True),
        lambda: torch.randn(2, 3).T,
        lambda: torch.randn(4, 6)[::2, 1::2],
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(8).unfold(0, 4, 2),
        lambda: torch.arange(4),
        lambda: torch.tensor(True),
        lambda: torch.zeros(0, 3),
        lambda: torch.randn(3, dtype=torch.complex64),
        lambda: torch.empty_strided((2, 2), (7, 3)).fill_(1.0),
        lambda: nn.Parameter(torch.randn(2)),
        lambda: nn.Parameter(torch.randn(2), requires_grad=False),
        lambda: torch.tensor([1.0, 3.0]).to(torch.float8_e4m3fn),
        lambda: torch.tensor([1, 2], dtype=torch.uint64),
    ],
)
def test_a_copy_has_the_values_strides_and_gradness_of_the_input(make: Any) -> None:
    """Covers: S36"""
    given = make()
    (copied,) = clone_inputs([given])
    assert same(given, copied, tolerance=Tolerance.exact())
    assert layout_of(copied) == layout_of(given)
    assert type(copied) is type(given)
    if given.numel():
        assert copied.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_copies_of_results_are_leaves() -> None:
    """Covers: S36"""
    result = ones(3) * 2
    (copied,) = clone_inputs([result])
    assert copied.is_leaf
    assert copied.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse().requires_grad_(),
        lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(1, 2)]),
        lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(1, 2)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.tensor([1 + 2j]).conj().imag,
        lambda: torch.ones(2, device="meta"),
    ],
)
def test_tensors_without_plain_storage_are_copied_too(make: Any) -> None:
    """Covers: S36"""
    given = make()
    (copied,) = clone_inputs([given])
    assert copied is not given
    assert copied.requires_grad == given.requires_grad
    assert same(given, copied, tolerance=Tolerance.exact())


def test_what_was_one_tensor_is_one_copy_and_what_shared_memory_still_does() -> None:
    """Covers: S36"""
    base = torch.arange(12.0)
    rows = base.view(3, 4)
    twice, again, row, other = clone_inputs([base, base, rows[1], torch.ones(2)])
    assert twice is again
    assert row.untyped_storage().data_ptr() == twice.untyped_storage().data_ptr()
    row.fill_(-1)
    assert torch.equal(twice[4:8], torch.full((4,), -1.0))
    assert torch.equal(base, torch.arange(12.0))
    assert other.untyped_storage().data_ptr() != twice.untyped_storage().data_ptr()
    as_float, as_bits = clone_inputs([base, base.view(torch.int32)])
    as_bits.zero_()
    assert not as_float.any()


def test_an_expanded_input_still_overlaps_itself() -> None:
    """Covers: S36"""
    (copied,) = clone_inputs([torch.ones(3, 1).expand(3, 4)])
    copied[0, 0] = 5
    assert torch.equal(copied[0], torch.full((4,), 5.0))


def test_inputs_in_containers_are_copied_and_the_containers_keep_their_kind() -> None:
    """Covers: S36"""
    x = ones(2)
    given = [
        [x, 1],
        (x, "a"),
        {"k": x, 3: None},
        Pair(x, 2),
        deque([x], maxlen=3),
        Batch(x, mask=[x]),
        defaultdict(list, {1: x}),
        OrderedDict(k=x),
        Output(logits=x, loss=None),
        torch.Size([2]),
        7,
    ]
    copied = clone_inputs(given)
    assert [type(value) for value in copied] == [type(value) for value in given]
    assert same(given, copied, tolerance=Tolerance.exact())
    inner = copied[0][0]
    assert inner is not x
    assert inner.requires_grad
    holders = [copied[1][0], copied[2]["k"], copied[3].left, copied[4][0], copied[5].inputs, copied[5].mask[0]]
    holders += [copied[6][1], copied[7]["k"], copied[8]["logits"], copied[8].logits]
    assert all(tensor is inner for tensor in holders), "one tensor, one copy"
    assert copied[4].maxlen == 3
    assert copied[6].default_factory is list
    assert given[2]["k"] is x


def test_anything_else_is_passed_on_as_it_is() -> None:
    """Covers: S36"""
    things = [object(), "text", None, torch.Generator(), nn.Linear(1, 1), [1, 2], {"a": 1}]
    assert all(copied is thing for copied, thing in zip(clone_inputs(things), things, strict=True))


# ---- one run (S36) ---------------------------------------------------------------------------------------


def snapshot(*models: nn.Module) -> list[Any]:
    return [
        (name, value.detach().clone(), None if value.grad is None else value.grad.clone(), value._version)
        for model in models
        for name, value in (*model.named_parameters(), *model.named_buffers())
    ]


def test_a_run_changes_neither_the_model_nor_the_inputs() -> None:
    """Covers: S36"""
    model, x = Net(), ones(4, 3)
    model.linear.weight.grad = torch.full((2, 3), 9.0)
    x.grad = torch.full((4, 3), 8.0)
    before = snapshot(model)
    results = run_fwd_maybe_bwd(model, [x])
    assert same(before, snapshot(model), tolerance=Tolerance.exact())
    assert x.grad.eq(8.0).all()
    assert results.buffers["calls"] == 1
    assert torch.equal(results.output, Net.forward(copy.deepcopy(model), x))


def test_gradients_start_from_zero() -> None:
    """Covers: S36"""
    model, x = Net(), ones(4, 3)
    model.linear.bias.grad = torch.full((2,), 100.0)
    grads = run_fwd_maybe_bwd(model, [x]).grads
    assert torch.equal(grads["linear.bias"], torch.full((2,), 0.5))
    assert torch.equal(grads["linear.weight"], torch.full((2, 3), 0.5))


def test_gradients_of_inputs_are_kept_wherever_the_inputs_are() -> None:
    """Covers: S36"""
    x = ones(4)
    results = run_fwd_maybe_bwd(lambda batch, scale: batch["x"][0] * 3 * scale, [{"x": [x], "n": 1}, torch.tensor(2.0)])
    assert torch.equal(results.input_grads[0]["x"][0], torch.full((4,), 1.5))
    assert results.input_grads[1] is None
    assert x.grad is None


def test_forward_only_returns_the_output_alone() -> None:
    """Covers: S36"""
    model = Net()
    output = run_fwd_maybe_bwd(model, [ones(4, 3)], only_fwd=True)
    assert isinstance(output, torch.Tensor)
    assert model.linear.weight.grad is None


def test_a_run_without_gradients_has_no_backward() -> None:
    """Covers: S36"""
    results = run_fwd_maybe_bwd(lambda x: x.argmax(), [torch.ones(3)])
    assert results == Results(output=results.output, input_grads=[None], inputs=results.inputs)


def test_inputs_are_used_as_they_are_on_request() -> None:
    """Covers: S36"""
    seen = []
    x = torch.ones(3)
    run_fwd_maybe_bwd(lambda value: seen.append(value), [x], disable_clone=True)
    run_fwd_maybe_bwd(lambda value: seen.append(value), [x])
    assert seen[0] is x
    assert seen[1] is not x


def test_what_a_run_writes_into_its_inputs_is_seen_and_stays_out_of_the_callers() -> None:
    """Covers: S36"""
    x = torch.zeros(3)
    results = run_fwd_maybe_bwd(lambda x: x.add_(1).sum(), [x])
    assert torch.equal(results.inputs[0], torch.ones(3))
    assert not x.any()


def test_a_boxed_callable_gets_one_list_and_may_empty_it() -> None:
    """Covers: S36"""

    def boxed(args: list[Any]) -> Any:
        assert isinstance(args, list)
        x, y = args
        args.clear()
        return x * y

    boxed._boxed_call = True  # type: ignore[attr-defined]
    results = run_fwd_maybe_bwd(boxed, (ones(2), torch.full((2,), 3.0)))
    assert torch.equal(results.output, torch.full((2,), 3.0))
    assert torch.equal(results.input_grads[0], torch.full((2,), 1.5))
    assert len(results.inputs) == 2
    assert same_two_models(lambda x, y: x * y, boxed, [ones(2), torch.full((2,), 3.0)])


def test_results_are_collected_by_plain_names() -> None:
    """Covers: S36. Those that torch.compile puts in front are taken off."""
    model = torch.compile(Net(), backend="eager")
    x = ones(4, 3)
    x.grad = torch.full((4, 3), 2.0)
    results = collect_results(model, "output", "loss", [x, (torch.ones(1), ones(1)), 3])
    assert (results.output, results.loss) == ("output", "loss")
    assert list(results.params) == ["linear.weight", "linear.bias"]
    assert list(results.buffers) == ["calls"]
    assert all(not grad.any() for grad in results.grads.values()), "a gradient that is None counts as zero"
    assert results.grads["linear.weight"].shape == (2, 3)
    assert results.input_grads[0] is x.grad
    assert results.input_grads[1][0] is None
    assert torch.equal(results.input_grads[1][1], torch.zeros(1))
    assert results.input_grads[2] == 3
    assert results.inputs[0] is x


def test_a_function_has_no_parameters_to_collect() -> None:
    """Covers: S36"""
    assert collect_results(len, 1, None, []) == Results(output=1)


# ---- two models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only_fwd", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_match_leaves_everything_as_it_was(only_fwd: bool, backend: str) -> None:
    """Covers: S13, U10. RNG, inputs, parameters, gradients, buffers."""
    model = Net(drop=0.5)
    compiled = torch.compile(model, backend=backend)
    x = ones(4, 3)
    x.grad = torch.full((4, 3), 8.0)
    model.linear.weight.grad = torch.full((2, 3), 9.0)
    before, state, versions = snapshot(model), RngState.capture(), x._version
    found = same_two_models(model, compiled, [x], only_fwd)
    assert found, found
    assert state.same_as(RngState.capture())
    assert same(before, snapshot(model), tolerance=Tolerance.exact())
    assert x._version == versions
    assert x.eq(1).all()
    assert x.grad.eq(8.0).all()


def test_a_mismatch_leaves_everything_as_it_was() -> None:
    """Covers: S13, S36"""
    model = Net(drop=0.5)
    x = ones(4, 3)
    before, state = snapshot(model), RngState.capture()
    assert not same_two_models(model, Around(model, lambda y: y + torch.rand(1)), [x])
    assert state.same_as(RngState.capture())
    assert same(before, snapshot(model), tolerance=Tolerance.exact())
    assert x.grad is None


def test_a_model_that_draws_is_compared_on_the_same_numbers() -> None:
    """Covers: U10. Dropout alone agrees; dropout with a wrong operator does not."""
    model = Net(drop=0.5)
    assert same_two_models(model, Around(model, lambda y: y), [ones(4, 3)])
    found = same_two_models(model, Around(model, lambda y: y * 1.1), [ones(4, 3)])
    assert (bool(found), found.path) == (False, ".output")


def test_python_and_numpy_draw_the_same_numbers_too() -> None:
    """Covers: U10"""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * np.random.random() + torch.rand(1)

    assert same_two_models(noisy, lambda x: noisy(x), [ones(2)])
    assert not same_two_models(noisy, lambda x: noisy(x) * 0 + noisy(x), [ones(2)], only_fwd=True)


def test_equal_outputs_with_other_gradients_differ_unless_forward_only() -> None:
    """Covers: S32"""
    model = Net()
    tampered = Around(model, TamperedGradient.apply)
    x = ones(4, 3)
    found = same_two_models(model, tampered, [x])
    assert not found
    assert found.path == ".grads['linear.weight']"
    assert found.symptom is Symptom.VALUE
    assert same_two_models(model, tampered, [x], only_fwd=True)


def test_gradients_of_inputs_count() -> None:
    """Covers: S32"""
    x = ones(3)
    found = same_two_models(lambda x: x * 2, lambda x: TamperedGradient.apply(x * 2), [x])
    assert (bool(found), found.path) == (False, ".input_grads[0]")


def test_a_gradient_that_is_missing_is_zero() -> None:
    """Covers: S32. Compilers may leave None where eager leaves zeros, and the other way about."""

    def uses_y_in_vain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * 0

    assert same_two_models(uses_y_in_vain, lambda x, y: x + 0, [ones(2), ones(2)])
    assert not same_two_models(lambda x, y: x + y - y.detach(), lambda x, y: x + 0, [ones(2), ones(2)])


def test_buffers_and_written_inputs_count() -> None:
    """Covers: S36"""
    model = Net()

    class Forgetful(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    forgetful = Forgetful()
    forgetful.load_state_dict(model.state_dict())
    assert same_two_models(model, forgetful, [ones(4, 3)]).path == ".buffers['calls']"
    found = same_two_models(lambda x: x.add_(1) * 0, lambda x: x * 0, [torch.ones(2)])
    assert (bool(found), found.path) == (False, ".inputs[0]")
    assert same_two_models(lambda x: x.add_(1) * 0, lambda x: x * 0, [torch.ones(2)], only_fwd=True)


def test_a_function_may_stand_for_a_module_and_what_cannot_be_seen_is_said() -> None:
    """Covers: S36. Backends return functions; that they show no parameters is no divergence."""
    model = nn.Linear(3, 2)
    compiled = copy.deepcopy(model)
    for pair in ((model, lambda x: compiled(x)), (lambda x: compiled(x), model)):
        found = same_two_models(*pair, [ones(4, 3)])
        assert found, found
        assert "parameters, their gradients and buffers were not compared" in str(found)
    assert not same_two_models(model, lambda x: compiled(x) * 1.1, [ones(4, 3)])
    found = same_two_models(model, lambda x: TamperedGradient.apply(compiled(x)), [ones(4, 3)])
    assert found.path == ".input_grads[0]"
    assert "not compared" not in str(same_two_models(model, compiled, [ones(4, 3)]))


@pytest.mark.parametrize("only_fwd", [False, True])
def test_a_compiled_model_that_raises_is_another_failure(only_fwd: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S30"""
    raised = ValueError("no such kernel")

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        raise raised

    model, state = Net(), RngState.capture()
    with caplog.at_level(logging.ERROR, logger="torchsleuth.compare"):
        found = same_two_models(model, broken, [ones(4, 3)], only_fwd)
    assert found
    assert found.raised is raised
    assert str(found) == "The compiled model raised ValueError, so there was nothing to compare."
    assert "another failure" in caplog.text
    assert "no such kernel" in caplog.text
    assert state.same_as(RngState.capture())


def test_a_compiled_model_that_raises_only_in_its_backward_is_another_failure_too() -> None:
    """Covers: S30"""

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("backward")

    found = same_two_models(lambda x: x * 1, Breaks.apply, [ones(2)])
    assert found
    assert isinstance(found.raised, ArithmeticError)


def test_an_eager_model_that_raises_is_the_callers_to_know() -> None:
    """Covers: S30"""

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        same_two_models(broken, lambda x: x, [torch.ones(1)])
    assert same_two_models(lambda x: x, lambda x: x, [torch.ones(1)]).raised is None


def noisy_sum(x: torch.Tensor) -> torch.Tensor:
    """Eager's own error against fp64 is large here: ten thousand small numbers vanish beside a big one."""
    return (x.half() + 2048.0).half() - 2048.0


def noisy_but_better(x: torch.Tensor) -> torch.Tensor:
    return (x + 2048.0 - 2048.0).half()


def test_eager_noise_is_excused_by_the_reference() -> None:
    """Covers: S31, U11"""
    x = torch.full((2000,), 0.9)
    assert same_two_models(noisy_sum, noisy_but_better, [x])
    with config.patch(fp64=False):
        assert not same_two_models(noisy_sum, noisy_but_better, [x])
    with config.patch(fp64=False):
        assert same_two_models(noisy_sum, noisy_but_better, [x], require_fp64=True)


def bitcast(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32).view(torch.float32) + 1


def test_without_a_reference_there_is_a_warning_and_a_note(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S31"""
    with caplog.at_level(logging.WARNING, logger="torchsleuth.compare"):
        found = same_two_models(bitcast, lambda x: x + 1, [torch.ones(3)])
    assert found
    assert len(caplog.records) == 1
    assert "no fp64 reference: view reinterprets the bits" in caplog.text
    assert "There was no fp64 reference: view reinterprets the bits" in str(found)
    found = same_two_models(bitcast, lambda x: x + 2, [torch.ones(3)])
    assert not found
    assert "There was no fp64 reference" in str(found)


def test_a_required_reference_that_cannot_be_made_is_an_error() -> None:
    """Covers: S31"""
    state = RngState.capture()
    with pytest.raises(NoReference, match="reinterprets the bits"):
        same_two_models(bitcast, bitcast, [torch.ones(3)], require_fp64=True)
    assert state.same_as(RngState.capture())
    assert torch.get_default_dtype() == torch.float32


def test_a_program_that_fails_in_double_precision_has_no_reference_and_the_reason_is_its_own() -> None:
    """Covers: S31, U11"""

    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise TypeError("only fp32, please\nand more lines")
        return x + 1

    with pytest.raises(NoReference, match="raises TypeError: only fp32, please") as error:
        same_two_models(picky, picky, [torch.ones(3)], require_fp64=True)
    assert isinstance(error.value.__cause__, TypeError)
    assert "more lines" not in error.value.cause


def test_a_reference_that_would_draw_other_numbers_is_none() -> None:
    """Covers: S31, U10, U11"""

    def fickle(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.rand(3) if x.dtype == torch.float32 else torch.randn(3))

    with pytest.raises(NoReference, match=r"TapeMismatch: the run asks for aten\.randn"):
        same_two_models(fickle, fickle, [torch.ones(3)], require_fp64=True)


def test_no_reference_is_made_when_that_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S31"""
    dtypes = []

    def watching(x: torch.Tensor) -> torch.Tensor:
        dtypes.append(x.dtype)
        return x + 1

    same_two_models(watching, watching, [torch.ones(3)])
    assert dtypes == [torch.float32, torch.float64, torch.float32]
    dtypes.clear()
    with config.patch(fp64=False):
        assert same_two_models(watching, watching, [torch.ones(3)])
        assert same_two_models(bitcast, bitcast, [torch.ones(3)])
    assert dtypes == [torch.float32, torch.float32]
    assert not caplog.records


def test_the_settings_give_the_tolerance_and_arguments_win() -> None:
    """Covers: S34"""

    def off(x: torch.Tensor) -> torch.Tensor:
        return x + 0.01

    x = [torch.ones(2000)]
    with config.patch(tolerance=1e-4, fp64=False):
        assert not same_two_models(lambda x: x + 0, off, x)
        assert same_two_models(lambda x: x + 0, off, x, tol=0.1)
        assert same_two_models(lambda x: x + 0, off, x, tolerance=Tolerance(tol=0.1))
    with config.patch(tolerance=0.1, fp64=False):
        found = same_two_models(lambda x: x + 0, off, x)
        assert found
        assert found.tolerance.tol == 0.1
        assert not same_two_models(lambda x: x + 0, off, x, tolerance=Tolerance())


def test_outputs_that_are_not_floating_point_can_be_ignored_by_setting() -> None:
    """Covers: S13"""

    def first(x: torch.Tensor) -> Any:
        return x * 1, torch.tensor(0)

    def second(x: torch.Tensor) -> Any:
        return x * 1, torch.tensor(1)

    with config.patch(ignore_non_fp=False):
        assert not same_two_models(first, second, [torch.ones(2)])
    with config.patch(ignore_non_fp=True):
        assert same_two_models(first, second, [torch.ones(2)])
        assert not same_two_models(first, second, [torch.ones(2)], ignore_non_fp=False)


def test_nan_that_eager_shows_too_is_no_difference() -> None:
    """Covers: S34"""
    nowhere = torch.tensor([-1.0, 4.0])
    found = same_two_models(lambda x: x.sqrt(), lambda x: x.sqrt(), [nowhere])
    assert found
    assert not same_two_models(lambda x: x.sqrt(), lambda x: x.abs().sqrt(), [nowhere])
    assert math.isnan(same_two_models(lambda x: x.abs(), lambda x: x.sqrt(), [nowhere]).res)


def test_the_setting_forward_only_leaves_gradients_out() -> None:
    """Covers: S32"""
    x = torch.ones(3, requires_grad=True)

    def wrong_backward(x: torch.Tensor) -> torch.Tensor:
        return x.detach() * 2 + (x - x.detach())

    assert not same_two_models(lambda x: x * 2, wrong_backward, [x])
    with config.patch(forward_only=True):
        assert same_two_models(lambda x: x * 2, wrong_backward, [x])
        assert not same_two_models(lambda x: x * 2, wrong_backward, [x], only_fwd=False)


def test_other_random_numbers_are_mentioned() -> None:
    """Covers: U10"""

    def other_numbers(x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return torch.nn.functional.dropout(x)

    found = same_two_models(torch.nn.functional.dropout, other_numbers, [torch.ones(100)])
    assert not found
    assert "drew random numbers differently" in str(found)
    assert "random" not in str(
        same_two_models(torch.nn.functional.dropout, torch.nn.functional.dropout, [torch.ones(9)])
    )


# ---- inputs that are written to, forward only ------------------------------------------------------------


def _adding(amount: float) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x, y: (x.add_(amount).sum() * 0 + y,))(torch.zeros(3), torch.zeros(3))


def test_forward_only_inputs_that_are_written_to_count_as_well() -> None:
    """A graph of an optimiser returns nothing but that. Covers: S32"""
    inputs = [torch.zeros(3), torch.ones(3)]
    assert same_two_models(_adding(1), _adding(1), inputs, only_fwd=True, written=True)
    found = same_two_models(_adding(1), _adding(2), inputs, only_fwd=True, written=True)
    assert not found
    assert found.path == "inputs[0]"
    assert torch.equal(inputs[0], torch.zeros(3))


def test_what_only_compiled_code_writes_to_is_its_scratch_memory() -> None:
    def scribbles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        result = y + 1
        x.fill_(7)
        return (result,)

    def plain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (y + 1,)

    assert same_two_models(plain, scribbles, [torch.zeros(3), torch.ones(3)], only_fwd=True, written=True)

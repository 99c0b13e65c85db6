"""`judge` on right and wrong programs: the verdict, and that nothing of the caller's is touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import elsewhere
from torchsleuth.compare import Effort, Judgement, Verdict, judge
from torchsleuth.outcome import Symptom

X = torch.randn(64, 48, generator=torch.Generator().manual_seed(1))
QUICK = Effort(seeds=16)


RIGHT: dict[str, tuple[Callable[..., Any], Callable[..., Any], torch.Tensor]] = {
    "the same": (torch.sin, torch.sin, X),
    "another order of a sum": (lambda x: x.sum(), lambda x: x.t().reshape(-1).flip(0).view(48, -1).sum(1).sum(), X),
    "one product in two halves": (
        lambda x: x @ x.t(),
        lambda x: x[:, :24] @ x[:, :24].t() + x[:, 24:] @ x[:, 24:].t(),
        X,
    ),
    "bf16 with wide intermediates": (
        lambda x: F.gelu(x * 1.7 + 0.3) * x.sigmoid(),
        lambda x: (F.gelu(x.float() * 1.7 + 0.3) * x.float().sigmoid()).bfloat16(),
        X.bfloat16(),
    ),
    "fp16 with wide intermediates": (
        lambda x: (x.exp() / (x.exp() + 1)).log(),
        lambda x: (x.float().exp() / (x.float().exp() + 1)).log().half(),
        X.half(),
    ),
    "a cast inside": (
        lambda x: (x.half() * 3).float().softmax(-1),
        lambda x: (x.half().float() * 3).softmax(-1),
        X,
    ),
    "cancellation": (lambda x: (x + 1000.0) - 1000.0, lambda x: x + (1000.0 - 1000.0), X),
    "variance by moments": (
        lambda x: x.var(-1, correction=0),
        lambda x: (x * x).mean(-1) - x.mean(-1) ** 2,
        X,
    ),
    "flips at an edge": (lambda x: (x * 3 / 3 >= x).long(), lambda x: (x * (3 / 3) >= x).long(), X),
    "eager overflows, compiled does not": (
        lambda x: x * 60000 / 60000,
        lambda x: (x.float() * 60000 / 60000).half(),
        (X * 10).half(),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_no_bugs(name: str) -> None:
    """Covers: U12"""
    model, compiled, x = RIGHT[name]
    found = judge(model, compiled, [x])
    assert found.verdict is Verdict.NOISE, str(found)


def _one_wrong(x: torch.Tensor, value: float) -> torch.Tensor:
    y = x.sin()
    y.view(-1)[1234] = value
    return y


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], Symptom | None]] = {
    "a small factor": (torch.sin, lambda x: x.sin() * 1.0001, Symptom.VALUE),
    "one element": (torch.sin, lambda x: _one_wrong(x, 0.5), Symptom.VALUE),
    "one NaN": (torch.sin, lambda x: _one_wrong(x, torch.nan), Symptom.NAN),
    "one infinity": (torch.sin, lambda x: _one_wrong(x, torch.inf), Symptom.NAN),
    "off by one": (lambda x: x[:-1], lambda x: x[1:], Symptom.VALUE),
    "the dtype": (lambda x: x.half(), lambda x: x.half().float(), Symptom.DTYPE),
    "the shape": (lambda x: x.sum(0), lambda x: x.sum(0, keepdim=True), Symptom.SHAPE),
    "a missing output": (lambda x: (x, x), lambda x: (x,), Symptom.STRUCTURE),
    "an integer": (lambda x: x.argmax(-1), lambda x: x.argmin(-1), Symptom.INTEGER),
    "a Python number": (lambda x: (x, 3), lambda x: (x, 4), Symptom.INTEGER),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_bugs(name: str) -> None:
    """Covers: U12"""
    model, compiled, symptom = WRONG[name]
    found = judge(model, compiled, [X])
    assert found.verdict is Verdict.BUG, str(found)
    assert found.leaf is not None
    assert found.leaf.symptom is symptom


def test_the_guilty_element_is_named() -> None:
    """Covers: U12"""
    found = judge(torch.sin, lambda x: _one_wrong(x, 0.5), [X])
    assert found.leaf is not None
    assert found.leaf.path == "output"
    assert found.leaf.index == (1234 // 48, 1234 % 48)
    assert found.leaf.compiled_value == 0.5
    assert found.leaf.noise is not None
    assert found.leaf.noise.unexplained == 1


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-4])
def test_the_size_of_a_tensor_does_not_change_the_verdict(factor: float) -> None:
    """Covers: U12. The peer's multiplier jumps below 1,000 elements."""
    verdicts = set()
    for size in (1, 8, 100, 999, 1000, 1001, 20_000, 1_000_000):
        x = torch.rand(size, generator=torch.Generator().manual_seed(size)) + 0.5
        verdicts.add(judge(lambda x: x.exp().log(), lambda x: x.double().exp().log().float() * factor, [x]).verdict)
    assert verdicts == {Verdict.NOISE if factor == 1.0 else Verdict.BUG}


# ── random programs ──────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_operator_beside_a_dropout_is_a_bug() -> None:
    """Covers: U10. The peer passes it silently."""
    found = judge(
        lambda x: F.dropout(F.relu(x), 0.5), elsewhere(lambda x: F.dropout(F.relu(x) + 0.5, 0.5)), [X], effort=QUICK
    )
    assert found.verdict is Verdict.BUG
    assert found.rng.eager_drew
    assert found.rng.compiled_drew
    assert not found.rng.same_consumption
    assert any("bernoulli" in name for name in found.rng.operators)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_with_other_masks_is_noise(p: float) -> None:
    """Covers: U10"""
    found = judge(lambda x: F.dropout(x, p) * 2, elsewhere(lambda x: F.dropout(x * 2, p)), [X], effort=QUICK)
    assert found.verdict is Verdict.NOISE, str(found)
    assert found.leaf is not None
    assert found.leaf.distribution is not None


@pytest.mark.parametrize(
    "compiled",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x, 0.5) * 1.02,
        lambda x: F.dropout(x, 0.5) * 0.5,
        lambda x: x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.5) * 2,
    ],
    ids=["another probability", "a factor", "no scaling", "a mask that never changes"],
)
def test_a_wrong_dropout_is_a_bug(compiled: Callable[..., Any]) -> None:
    """Covers: U10"""
    assert judge(lambda x: F.dropout(x, 0.5), elsewhere(compiled), [X], effort=QUICK).verdict is Verdict.BUG


def test_outputs_that_no_random_number_reaches_are_compared_exactly() -> None:
    """Covers: U10"""
    found = judge(
        lambda x: (F.dropout(x, 0.5), x.sin()),
        elsewhere(lambda x: (F.dropout(x, 0.5), x.sin() * 1.0001)),
        [X],
        effort=QUICK,
    )
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert found.leaf.path == "output[1]"


def test_the_same_random_numbers_need_no_statistics() -> None:
    """Covers: U10"""
    found = judge(lambda x: F.dropout(x, 0.5) * 3, lambda x: F.dropout(x, 0.5) * 3, [X])
    assert found.verdict is Verdict.NOISE
    assert found.rng.same_consumption
    assert found.runs < 20


# ── nondeterminism and what cannot be known ──────────────────────────────────────────────────────────────


def test_sums_in_any_order_are_nondeterministic() -> None:
    """Covers: U12. As atomics do it, with a generator of its own."""
    generator = torch.Generator().manual_seed(0)
    values, places = torch.randn(5000, generator=generator), torch.randint(4, (5000,), generator=generator)

    def in_order(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4).index_add(0, places, x)

    def any_order(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(x), generator=generator)
        return in_order(x[order], places[order])

    found = judge(in_order, any_order, [values, places])
    assert found.verdict is Verdict.NONDETERMINISTIC
    assert found.eager_spread == 0.0
    assert found.compiled_spread > 0.0


def test_a_race_in_the_compiled_code_is_a_bug() -> None:
    """Covers: U12"""
    generator = torch.Generator().manual_seed(0)

    def race(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand((), generator=generator)

    assert judge(lambda x: x + 0, race, [X]).verdict is Verdict.BUG


def test_without_an_fp64_form_the_answer_is_unknown_with_the_reason() -> None:
    """Covers: U11"""

    def bits(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) + 0).view(torch.float32) * 3

    found = judge(bits, lambda x: bits(x) * (1 + 1e-6), [X])
    assert found.verdict is Verdict.UNKNOWN
    assert found.no_reference is not None
    assert "bits" in found.no_reference
    assert found.no_reference in str(found)


def test_without_an_fp64_form_equal_results_are_still_equal() -> None:
    """Covers: U11"""

    def bits(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) + 0).view(torch.float32)

    assert judge(bits, bits, [X]).verdict is Verdict.NOISE


def test_hard_coded_casts_do_not_keep_the_reference_from_being_made() -> None:
    """Covers: U11"""
    found = judge(lambda x: x.to(torch.bfloat16).float() * 2, lambda x: x * 2.5, [X])
    assert found.verdict is Verdict.BUG
    assert found.no_reference is None


@pytest.mark.parametrize("who", ["eager", "compiled"])
def test_a_side_that_raises_leaves_nothing_to_compare(who: str) -> None:
    """Covers: S30"""

    def boom(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("by nought")

    sides = (boom, torch.sin) if who == "eager" else (torch.sin, boom)
    found = judge(*sides, [X])
    assert found.verdict is Verdict.UNKNOWN
    assert isinstance(found.raised, ZeroDivisionError)
    assert f"{who} raised ZeroDivisionError: by nought" in found.reason
    assert "repeats itself" not in str(found)


# ── everything counts, and everything is put back ────────────────────────────────────────────────────────


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2.01


def test_a_wrong_gradient_alone_is_a_bug() -> None:
    """Covers: S32"""
    x = X.clone().requires_grad_()
    found = judge(lambda x: x * 2, WrongGradient.apply, [x])
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert "grad" in found.leaf.path
    assert judge(lambda x: x * 2, WrongGradient.apply, [x], backward=False).verdict is Verdict.NOISE


def test_a_gradient_that_a_plain_sum_cannot_see_is_judged() -> None:
    """A softmax sums to one, so the gradient of its mean is zero whatever the backward computes."""

    class WrongSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            y = x.softmax(-1)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            (y,) = ctx.saved_tensors
            return 1.1 * y * (grads[0] - (grads[0] * y).sum(-1, keepdim=True))

    x = X.clone().requires_grad_()
    assert judge(lambda x: x.softmax(-1), WrongSoftmax.apply, [x]).verdict is Verdict.BUG


def test_a_buffer_that_was_not_updated_is_a_bug() -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm1d(48)

    def forgetful(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, model.weight, model.bias, training=True)

    found = judge(model, forgetful, [X])
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert "running_mean" in " ".join(leaf.path for leaf in found.leaves if leaf.verdict is Verdict.BUG)


def test_an_input_that_was_not_written_to_is_a_bug() -> None:
    def forgetful(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    found = judge(lambda x: x.add_(1), forgetful, [X])
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert found.leaf.path == "inputs[0]"


def test_nothing_of_the_callers_is_changed() -> None:
    """Covers: S13"""
    torch.manual_seed(3)
    random.seed(3)
    model = Net()
    model(X).sum().backward()  # gradients that must survive
    compiled = torch.compile(model, backend="aot_eager")
    x = X.clone().requires_grad_()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    rng, python = torch.get_rng_state(), random.getstate()
    found = judge(model, compiled, [x], effort=QUICK)
    assert found.verdict is Verdict.NOISE, str(found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        kept, value = grads[name]
        assert parameter.grad is kept
        assert torch.equal(kept, value)
    assert x.grad is None
    assert torch.equal(x, X)
    assert torch.equal(torch.get_rng_state(), rng)
    assert random.getstate() == python
    assert model.training


def test_boxed_callables_get_one_list() -> None:
    class Boxed:
        _boxed_call = True

        def __call__(self, args: list[torch.Tensor]) -> tuple[torch.Tensor]:
            (x,) = args
            args.clear()
            return (x.sin(),)

    assert judge(lambda x: (x.sin(),), Boxed(), [X]).verdict is Verdict.NOISE


def test_a_judgement_is_not_a_bool() -> None:
    with pytest.raises(TypeError, match="four answers"):
        bool(Judgement(Verdict.NOISE, "equal"))


def test_a_judgement_prints_its_verdict_its_reason_and_its_evidence() -> None:
    told = str(judge(torch.sin, lambda x: x.sin() * 1.01, [X]))
    assert told.startswith("BUG: at output, ")
    assert "Against fp64 eager is off by at most" in told
    assert "Each side repeats itself bit for bit." in told
    assert "Neither side drew random numbers." in told

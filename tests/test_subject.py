"""A program under judgement: what it can reach is found, compared, and put back as it was."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchsleuth.compare.reach import find_state
from torchsleuth.compare.rng import RngState
from torchsleuth.compare.subject import Observation, Subject, probe_loss

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def observe(program: Callable[..., Any], *inputs: Any, backward: bool = True) -> Observation:
    with Subject(program, inputs, backward=backward) as subject:
        return subject.run(RngState.capture())


def names(program: Any) -> set[str]:
    return {slot.name for slot in find_state(program)[0]}


# ── what a program can reach ─────────────────────────────────────────────────────────────────────────────

LINEAR = nn.Linear(4, 4)
WEIGHT = torch.ones(4, requires_grad=True)


def uses_globals(x: torch.Tensor) -> torch.Tensor:
    return LINEAR(x) * WEIGHT


def calls_another(x: torch.Tensor) -> torch.Tensor:
    return uses_globals(x) + 1


class Holder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def step(self, x: torch.Tensor) -> Any:
        return self.model(x)

    def __call__(self, x: torch.Tensor) -> Any:
        return self.model(x)


def of_a_closure() -> Callable[..., Any]:
    held = nn.Linear(4, 4)
    return lambda x: held(x)


def of_a_default() -> Callable[..., Any]:
    model = nn.Linear(4, 4)
    return lambda x, held=model: held(x)


def wrapped() -> Callable[..., Any]:
    held = nn.Linear(4, 4)

    @functools.wraps(held.forward)
    def outer(x: torch.Tensor) -> Any:
        return held(x)

    return outer


REACHING: dict[str, Callable[[], Any]] = {
    "a module": lambda: nn.Linear(4, 4),
    "a method of a module": lambda: nn.Linear(4, 4).forward,
    "a closure": of_a_closure,
    "a default": of_a_default,
    "a decorated function": wrapped,
    "a partial": lambda: functools.partial(lambda model, x: model(x), nn.Linear(4, 4)),
    "a partial with names": lambda: functools.partial(lambda x, model: model(x), model=nn.Linear(4, 4)),
    "a method of an object": lambda: Holder(nn.Linear(4, 4)).step,
    "an object": lambda: Holder(nn.Linear(4, 4)),
    "a list in a closure": lambda: (lambda held: lambda x: held[0](x))([nn.Linear(4, 4)]),
    "a compiled module": lambda: torch.compile(nn.Linear(4, 4), backend="eager"),
    "a compiled function": lambda: torch.compile(of_a_closure(), backend="eager"),
    "a function without gradients": lambda: torch.no_grad()(of_a_closure()),
}


@pytest.mark.parametrize("name", REACHING)
def test_parameters_are_found_in(name: str) -> None:
    assert names(REACHING[name]()) == {"weight", "bias"}


def test_globals_are_found_too_through_other_functions() -> None:
    assert names(calls_another) == {"weight", "bias", "WEIGHT"}


def test_names_are_unique_and_tell_where() -> None:
    """Two modules with parameters of the same name: one must not be put back as the other."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    values = [first.weight.clone(), second.weight.clone()]
    with Subject(lambda x: first(x) + second(x), [X]) as subject:
        found = subject.run(RngState.capture())
    assert set(found.results.grads) == {"weight", "bias", "second.weight", "second.bias"}
    assert torch.equal(first.weight, values[0])
    assert torch.equal(second.weight, values[1])


def test_tied_parameters_are_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert names(model) == {"0.weight"}


@pytest.mark.parametrize(
    "program",
    [torch.sin, len, X.add, 3, None, math, "text"],
    ids=["operator", "builtin", "method", "number", "nothing", "module", "text"],
)
def test_programs_without_state(program: Any) -> None:
    assert names(program) <= {""}  # of `X.add`, X itself


# ── what a run leaves behind ─────────────────────────────────────────────────────────────────────────────


def test_a_run_reports_outputs_gradients_and_what_was_written() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = X.clone().requires_grad_()
    found = observe(lambda x: model(x.mul(2)).add_(1), x).results
    assert found.output.shape == (5, 4)
    assert not found.output.requires_grad
    assert set(found.grads) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(found.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert found.input_grads[0].shape == x.shape
    assert torch.equal(found.inputs[0], X)


def test_an_input_that_is_written_to_is_seen_and_the_callers_is_not_touched() -> None:
    x = X.clone()
    found = observe(lambda x: x.add_(1).sum(), x).results
    assert torch.equal(found.inputs[0], X + 1)
    assert torch.equal(x, X)


def test_without_backward_there_are_no_gradients() -> None:
    found = observe(nn.Linear(4, 4), X, backward=False).results
    assert found.grads == {}
    assert found.input_grads == []


def test_a_gradient_that_is_not_there_counts_as_zero() -> None:
    model = nn.Linear(4, 4)
    found = observe(lambda x: F.linear(x, model.weight, model.bias.detach()), X).results
    assert torch.equal(found.grads["bias"], torch.zeros(4))
    assert float(found.grads["weight"].abs().sum()) > 0


def test_leaves_that_nothing_was_known_of_are_found_in_the_graph() -> None:
    hidden = types.ModuleType("hidden")
    hidden.w = torch.ones(4, requires_grad=True)  # type: ignore[attr-defined]
    hidden.w.grad = kept = torch.full((4,), 7.0)  # type: ignore[attr-defined]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * hidden.w  # type: ignore[no-any-return, attr-defined]

    found = observe(program, X).results
    assert list(found.grads) == ["leaf 0 of the graph"]
    assert float(found.grads["leaf 0 of the graph"].abs().sum()) > 0
    assert hidden.w.grad is kept  # type: ignore[attr-defined]
    assert torch.equal(kept, torch.full((4,), 7.0))


def test_drawing_random_numbers_is_noticed() -> None:
    assert observe(lambda x: F.dropout(x), X).drew
    assert not observe(lambda x: x * 2, X).drew


def test_boxed_programs_get_one_list_and_may_empty_it() -> None:
    def boxed(args: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = args
        args.clear()
        return [x * 2]

    boxed._boxed_call = True  # type: ignore[attr-defined]
    assert torch.equal(observe(boxed, X).results.output[0], X * 2)


# ── and puts back ────────────────────────────────────────────────────────────────────────────────────────


class Restless(nn.Module):
    """Changes everything that a module can change of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("bound", torch.ones(4))
        self.plain = torch.ones(4)
        self.steps = 0
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.bound = self.bound * 2
        self.plain.mul_(2)
        self.steps += 1
        self.last = x.detach()
        self.brand_new = True
        with torch.no_grad():
            self.linear.weight.mul_(2)
        self.eval()
        return self.linear(x) * self.plain * self.bound * self.steps


def _state(model: Restless) -> tuple[Any, ...]:
    tensors = [*model.parameters(), *model.buffers(), model.plain]
    attributes = (model.steps, model.last, model.training, model.linear.training, hasattr(model, "brand_new"))
    return [id(t) for t in tensors], [t.data_ptr() for t in tensors], [t.tolist() for t in tensors], attributes


def test_each_run_starts_from_the_same_state() -> None:
    model = Restless()
    before = _state(model)
    with Subject(model, [X]) as subject:
        first, second = (subject.run(RngState.capture()).results for _ in range(2))
        assert _state(model) == before
    assert torch.equal(first.output, second.output)
    assert set(first.buffers) == {"count", "bound", "plain", "linear.weight"}
    assert torch.equal(first.buffers["bound"], torch.full((4,), 2.0))


def test_gradients_are_put_back_as_the_same_objects() -> None:
    model = nn.Linear(4, 4)
    model(X).sum().backward()
    kept = [(p, p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    observe(model, X)
    for parameter, grad, value in kept:
        assert parameter.grad is grad
        assert torch.equal(grad, value)


def test_a_run_that_raises_is_undone_too() -> None:
    model = Restless()
    before = _state(model)

    def program(x: torch.Tensor) -> None:
        model(x).sum().backward()
        raise ZeroDivisionError

    with Subject(program, [X]) as subject, pytest.raises(ZeroDivisionError):
        subject.run(RngState.capture())
    assert _state(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_was_resized_or_is_nan_is_put_back() -> None:
    model = nn.Module()
    model.register_buffer("cache", torch.zeros(2))
    model.register_buffer("lost", torch.full((2,), math.nan))

    def program(x: torch.Tensor) -> torch.Tensor:
        model.cache.resize_(5).fill_(1)  # type: ignore[operator, union-attr]
        return x * 2

    found = observe(lambda x: (program(x), model)[0], X).results
    assert list(found.buffers) == ["cache"]
    assert model.cache.tolist() == [0.0, 0.0]  # type: ignore[operator, union-attr]


def test_the_state_in_double_precision_for_a_while() -> None:
    """Covers: U11"""
    model = nn.Linear(4, 4)
    data = model.weight.data_ptr()
    with Subject(lambda x: model(x), [X.double()]) as subject, subject.widened():
        assert model.weight.dtype == torch.float64
        grads = subject.run(RngState.capture()).results.grads
        assert {grad.dtype for grad in grads.values()} == {torch.float64}
    assert model.weight.dtype == torch.float32
    assert model.weight.data_ptr() == data
    assert model.weight.grad is None


def test_putting_back_does_not_make_a_compiler_compile_again() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    torch.compiler.reset()
    with Subject(torch.compile(Restless(), backend=backend), [X]) as subject:
        for _ in range(4):
            subject.run(RngState.capture())
    assert len(compiled) == 1


# ── two subjects ─────────────────────────────────────────────────────────────────────────────────────────


def aligned(one: Any, two: Any) -> Iterator[set[str]]:
    with Subject(one, [X]) as eager, Subject(two, [X]) as other:
        other.align(eager)
        start = RngState.capture()
        yield from (set(subject.run(start).results.grads) for subject in (eager, other))


def test_one_tensor_has_one_name_on_both_sides() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    ours, theirs = aligned(lambda x: first(x) + second(x), lambda x: second(x) + first(x))
    assert ours == theirs == {"weight", "bias", "second.weight", "second.bias"}


def test_what_only_one_side_reaches_is_watched_on_both() -> None:
    model = nn.Linear(4, 4)
    ours, theirs = aligned(model, lambda x: x * 2)
    assert ours == theirs == {"weight", "bias"}


def test_a_copy_has_the_names_of_the_original() -> None:
    ours, theirs = aligned(nn.Linear(4, 4), nn.Linear(4, 4))
    assert ours == theirs == {"weight", "bias"}


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "output",
    [
        lambda w: w * 2,
        lambda w: {"a": [w, None, 3], "b": w.detach()},
        lambda w: torch.complex(w, w * 2),
        lambda w: (w * 2).to_sparse(),
        lambda w: torch.nested.as_nested_tensor([w, w[:1]], layout=torch.jagged),
        lambda w: w.bfloat16(),
        lambda w: (w.half(), w.double()),
        lambda w: w[:0],
    ],
    ids="tensor containers complex sparse nested narrow dtypes empty".split(),
)
def test_a_loss_of_any_output(output: Callable[[torch.Tensor], Any]) -> None:
    w = torch.ones(3, 2, requires_grad=True)
    loss = probe_loss(output(w))
    assert loss.ndim == 0
    loss.backward()
    assert w.grad is not None
    assert bool(w.grad.isfinite().all())


def test_each_element_has_a_weight_of_its_own() -> None:
    w = torch.ones(50, requires_grad=True)
    probe_loss(w * 1.0).backward()
    assert w.grad is not None
    assert len(w.grad.unique()) == 50

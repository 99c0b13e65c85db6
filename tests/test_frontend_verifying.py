"""`verify=True`: every call is held against eager, and what the user gets are one call's result and effects."""

from __future__ import annotations

import copy
import gc
import logging
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchsleuth.errors import AccuracyError

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

COUNT = 0
SEEN: list[Any] = []


def captured(fn: Any, backend: Any = "eager") -> Any:
    from torchsleuth.frontend import capture

    return capture(fn, backend, verify=True)


def stale(captured: Any, run: Callable[[Callable[..., Any], list[Any]], Any]) -> None:
    """From here on the recorded segment does that instead: `run(as it was, live values)`."""
    (segment,) = captured.segments
    recorded = segment.run
    segment.run = lambda live: run(recorded, live)


def cause_of(call: Callable[[], Any]) -> str:
    with pytest.raises(AccuracyError) as raised:
        call()
    return raised.value.cause


# ---- what is right passes --------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(8, 2)
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))  # type: ignore[no-any-return]


def test_a_module_with_dropout_and_batch_norm_is_left_as_one_eager_call_leaves_it() -> None:
    """Covers: F6, F9"""
    torch.manual_seed(3)
    net, x = Net(), torch.randn(5, 4)
    twin = copy.deepcopy(net)
    fast = captured(net)
    for _ in range(3):
        torch.manual_seed(7)
        expected = twin(x)
        after = torch.get_rng_state()
        torch.manual_seed(7)
        got = fast(x)
        assert torch.equal(got, expected)
        assert torch.equal(torch.get_rng_state(), after)
        expected.sum().backward()
        got.sum().backward()
    assert net.calls == twin.calls == [1, 1, 1]
    assert fast.hits > 0
    for (name, ours), theirs in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class Box:
    total = 0

    def __init__(self) -> None:
        self.items: set[int] = set()


def test_effects_happen_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists, dicts, sets, attributes, globals, closures, classes, defaults, random numbers, output. Covers: F6"""
    monkeypatch.setattr(sys.modules[__name__], "COUNT", 0)
    monkeypatch.setattr(sys.modules[__name__], "SEEN", [])
    log, table, box, state = [], {"n": 0}, Box(), 0
    monkeypatch.setattr(Box, "total", 0)
    dice, generator = random.Random(1), torch.Generator().manual_seed(1)

    def program(x: torch.Tensor, seen: list[int], kept: list[int] = []) -> torch.Tensor:  # noqa: B006
        global COUNT
        nonlocal state
        COUNT += 1
        state += 1
        Box.total += 1
        SEEN.append(x)
        log.append(len(log))
        seen.insert(0, state)
        kept.append(state)
        table["n"] += 1
        table[state] = state
        box.items.add(state)
        box.last = state
        print("printed", state)
        return x + dice.randint(0, 9) + torch.rand(2, generator=generator).sum() * 0

    fast = captured(program)
    x, seen = torch.ones(2), []
    results = [fast(x, seen) for _ in range(3)]
    again = random.Random(1)
    assert [result[0].item() - 1 for result in results] == [again.randint(0, 9) for _ in range(3)]
    assert torch.equal(torch.rand(1, generator=generator), _after_six(1))
    assert (COUNT, state, Box.total, table["n"], box.last) == (3, 3, 3, 3, 3)
    assert log == [0, 1, 2]
    assert seen == [3, 2, 1]
    assert program.__defaults__ == ([1, 2, 3],)
    assert list(table) == ["n", 1, 2, 3]
    assert box.items == {1, 2, 3}
    assert [each is x for each in SEEN] == [True] * 3
    assert capsys.readouterr().out == "printed 1\nprinted 2\nprinted 3\n"


def _after_six(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        torch.rand(2, generator=generator)
    return torch.rand(1, generator=generator)


def test_tensors_are_put_back_wherever_they_lie() -> None:
    """Views, expanded tensors, memory that is shared, a shape that changes, a gradient. Covers: F6"""
    base = torch.arange(6.0).reshape(2, 3)
    row, wide, weight = base[1], torch.zeros(1).expand(4), nn.Parameter(torch.ones(3))

    def program(x: torch.Tensor) -> torch.Tensor:
        base.mul_(2)
        row.add_(1)
        with torch.no_grad():
            weight.add_(1)
        (weight * row).sum().backward()
        x.t_()
        return base[0], x, wide

    twins = [copy.deepcopy(each) for each in (base, weight)]
    fast, x = captured(program), torch.ones(2, 5)
    for calls in range(1, 4):
        view, same, _ = fast(x)
        assert torch.equal(view, twins[0][0] * 2**calls)
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        assert same is x
        assert x.shape == ((5, 2) if calls % 2 else (2, 5))
        assert weight[0].item() == 1 + calls
        assert weight.grad is not None
    assert not x.requires_grad


def test_a_whole_training_step_leaves_what_eager_leaves() -> None:
    """Covers: F6, F9"""

    def make() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimiser.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimiser.step()
            return loss.detach()

        return net, step

    (net, step), (twin, eager) = make(), make()
    fast, x = captured(step), torch.randn(4, 3)
    for _ in range(4):
        assert torch.equal(fast(x), eager(x))
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_functions_that_call_themselves_and_one_another_are_verified_once() -> None:
    runs = []

    def inner(x: torch.Tensor, depth: int) -> torch.Tensor:
        runs.append(depth)
        return x if not depth else fast_inner(x, depth - 1) + 1

    fast_inner = captured(inner)
    assert torch.equal(captured(lambda x: fast_inner(x, 3))(torch.zeros(2)), torch.full((2,), 3.0))
    assert runs == [3, 2, 1, 0]


def test_what_both_raise_reaches_the_user() -> None:
    error = KeyError("no")
    log = []

    def program(x: torch.Tensor) -> None:
        log.append(1)
        raise error

    fast = captured(program)
    for _ in range(3):
        with pytest.raises(KeyError) as raised:
            fast(torch.ones(1))
        assert raised.value is error
    assert log == [1, 1, 1]


def test_nothing_is_kept_alive() -> None:
    fast = captured(lambda x: [x + 1])
    fast(torch.ones(3))
    x = torch.zeros(3)
    result = fast(x)
    alive = weakref.ref(result[0]), weakref.ref(x)
    del result, x
    gc.collect()
    assert [each() for each in alive] == [None, None]


# ---- what is wrong is found ------------------------------------------------------------------------------------


def test_a_stale_result_is_found() -> None:
    """Covers: F6, F7"""
    fast = captured(lambda x: {"out": [x * 2, x + 1]})
    fast(torch.ones(2))
    kept = fast(torch.ones(2))
    stale(fast, lambda recorded, live: kept)
    assert torch.equal(fast(torch.ones(2))["out"][0], torch.full((2,), 2.0))
    cause = cause_of(lambda: fast(torch.zeros(2)))
    assert "the outcome['out'][0]" in cause
    assert "expected 0, got 2" in cause


def test_an_effect_that_is_forgotten_is_found() -> None:
    """Covers: F6"""
    log: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x + 1

    fast = captured(program)
    fast(torch.ones(1))

    def forgets(recorded: Callable[..., Any], live: list[Any]) -> Any:
        result = recorded(live)
        log.pop()
        return result

    stale(fast, forgets)
    cause = cause_of(lambda: fast(torch.ones(1)))
    assert "differ at log" in cause
    assert "[1]" in cause


def test_a_write_that_is_forgotten_and_one_that_is_made_up_are_found() -> None:
    """Covers: F6"""
    writes, reads = captured(lambda x: x.add_(1)), captured(lambda x: x + 1)
    writes(torch.ones(1))
    reads(torch.ones(1))
    stale(writes, lambda recorded, live: live[0][0])
    assert "args[0] (value): expected 2, got 1" in cause_of(lambda: writes(torch.ones(1)))

    def makes_up(recorded: Callable[..., Any], live: list[Any]) -> Any:
        result = recorded(live)
        live[0][0].add_(1)
        return result

    stale(reads, makes_up)
    assert "args[0] (value): expected 1, got 2" in cause_of(lambda: reads(torch.ones(1)))


@pytest.mark.parametrize(
    ("program", "instead", "words"),
    [
        (lambda x: x.view(-1), lambda x: x.clone().view(-1), "memory"),
        (lambda x: x, lambda x: x.clone(), "the object args[0]"),
        (lambda x: x * -0.0, lambda x: x * 0.0, "negative zeros"),
        (lambda x: (x + 1).t(), lambda x: (x + 1).t().contiguous(), "stride"),
        (lambda x: x + 1, lambda x: (x + 1).requires_grad_(), "requires_grad"),
        (lambda x: (x + 1, [x.shape[0]]), lambda x: (x + 1, (x.shape[0],)), "expected list, got tuple"),
        (lambda x: x.shape[0], lambda x: x.shape[0] + 1, "expected 2, got 3"),
        (lambda x: {"a": x + 1, "b": 1}, lambda x: {"b": 1, "a": x + 1}, "order"),
        (lambda x: [x + 1] * 2, lambda x: [x + 1, x + 1], "the outcome[0] again"),
        (lambda x: x + 1, lambda x: (torch.rand(1), x + 1)[1], "random numbers"),
    ],
    ids=[
        *("a copy of a view", "a copy of an argument", "a sign of zero", "strides", "a gradient", "a type", "a number"),
        *("an order", "one object that became two", "a random number"),
    ],
)
def test_the_smallest_differences_are_found(program: Any, instead: Any, words: str) -> None:
    """Covers: F6"""
    fast = captured(program)
    fast(torch.ones(2, 3))
    stale(fast, lambda recorded, live: instead(live[0][0]))
    assert words in cause_of(lambda: fast(torch.ones(2, 3)))


def test_another_exception_is_found() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        if n > 1:
            raise ValueError(n)
        return x + n

    fast = captured(program)
    fast(torch.ones(1), 1)
    stale(fast, lambda recorded, live: live[0][0] + 1)
    assert "a result" in cause_of(lambda: fast(torch.ones(1), 2))

    def raises(recorded: Callable[..., Any], live: list[Any]) -> Any:
        raise KeyError("planted")

    stale(fast, raises)
    assert "KeyError" in cause_of(lambda: fast(torch.ones(1), 2))
    with pytest.raises(KeyError, match="planted") as raised:  # eager raises nothing: what is raised is what is seen
        fast(torch.ones(1), 1)
    assert "eager does not raise this" in "".join(raised.value.__notes__)


def test_a_grad_mode_that_is_left_behind_is_found() -> None:
    fast = captured(lambda x: x + 1)
    fast(torch.ones(1))
    before = torch.is_grad_enabled()

    def leaves(recorded: Callable[..., Any], live: list[Any]) -> Any:
        result = recorded(live)
        torch.set_grad_enabled(False)
        return result

    stale(fast, leaves)
    try:
        assert "torch's modes" in cause_of(lambda: fast(torch.ones(1)))
    finally:
        torch.set_grad_enabled(before)


# ---- other backends --------------------------------------------------------------------------------------------


def shifted(by: float) -> Callable[..., Any]:
    """A backend whose results are off by so much."""

    def backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(each + by for each in gm(*inputs))

    return backend


def test_another_backend_may_round_differently_but_not_be_wrong() -> None:
    """The first call is eager's own, whatever the backend. Covers: F9"""
    for by in (1e-6, 1.0):
        fast = captured(lambda x: x * 3, shifted(by))
        fast(torch.ones(2))
        if by < 1e-3:
            fast(torch.ones(2))
        else:
            assert "the outcome (value)" in cause_of(lambda: fast(torch.ones(2)))  # noqa: B023


def test_a_wrong_backend_is_not_taken_for_a_fault_of_ours_alone() -> None:
    """Covers: F9"""

    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    fast = captured(triple, shifted(1.0))
    fast(torch.ones(2))
    with pytest.raises(AccuracyError) as raised:
        fast(torch.ones(2))
    assert "find out whether it is the backend backend or torchsleuth (`sleuth witness SCRIPT:" in raised.value.remedy
    assert "report" not in raised.value.remedy


def test_another_backend_may_draw_other_random_numbers() -> None:
    fast = captured(lambda x: torch.nn.functional.dropout(x, 0.5), shifted(3.0))
    fast(torch.ones(20))
    fast(torch.ones(20))

    def reshaped(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(each[:-1] for each in gm(*inputs))

    fast = captured(lambda x: torch.nn.functional.dropout(x, 0.5), reshaped)
    fast(torch.ones(20))
    assert "(19,)" in cause_of(lambda: fast(torch.ones(20)))


def test_a_backend_that_raises_is_heard() -> None:
    """Covers: F5"""

    def backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        raise NotImplementedError("not today")

    with pytest.raises(NotImplementedError, match="not today"):
        captured(lambda x: x + 1, backend)(torch.ones(1))


# ---- what cannot be called twice -------------------------------------------------------------------------------


def test_a_generator_is_not_used_up_twice(caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield from range(6)

    def takes_one(x: torch.Tensor, source: Iterator[int]) -> torch.Tensor:
        return x + next(source)

    fast, source = captured(takes_one), numbers()
    with caplog.at_level(logging.WARNING, "torchsleuth"):
        assert [fast(torch.zeros(1), source).item() for _ in range(4)] == [0, 1, 2, 3]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "takes_one is not verified" in told
    assert "args[1] is a generator" in told


def test_a_write_that_autograd_keeps_account_of_is_made_once(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.ones(2, requires_grad=True)

    def activate(x: torch.Tensor) -> torch.Tensor:
        print("once")
        return x.mul_(3)

    fast = captured(activate)
    with caplog.at_level(logging.WARNING, "torchsleuth"):
        for calls in range(1, 4):
            hidden = weight * 2
            fast(hidden).sum().backward()
            assert torch.equal(weight.grad, torch.full((2,), 6.0 * calls))
            assert torch.equal(hidden, torch.full((2,), 6.0))
    assert capsys.readouterr().out == "once\n" * 3
    (told,) = [record.getMessage() for record in caplog.records]
    assert "args[0] was written to in place" in told


def test_state_that_is_out_of_reach_is_left_alone() -> None:
    """Objects of native code that cannot be asked for their state are not touched."""
    import threading

    lock = threading.Lock()

    def program(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x + 1

    assert torch.equal(captured(program)(torch.ones(1)), torch.full((1,), 2.0))
    assert not lock.locked()

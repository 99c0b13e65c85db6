"""Random numbers: every generator is saved and restored, and what one run drew can be played to another."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.compare.rng import RngState, Tape, TapeMismatch, is_random, preserved, random_ops_in, reseed

aten = torch.ops.aten


def draw() -> tuple[Any, ...]:
    """Something from each generator."""
    return torch.rand(2).tolist(), random.random(), np.random.random(), np.random.normal(), random.gauss(0, 1)


# ---- the state of the generators -------------------------------------------------------------------------


def test_a_restored_state_gives_the_same_numbers_again() -> None:
    """Covers: U10"""
    with preserved():
        draw()  # numpy and Python keep half a pair of normals: that is state as well
        state = RngState.capture()
        first = draw()
        assert draw() != first
        state.restore()
        assert draw() == first


def test_a_state_knows_whether_anything_was_drawn() -> None:
    """Covers: U10"""
    for pull in (lambda: torch.rand(1), random.random, np.random.random, np.random.normal, lambda: torch.randn(3)):
        with preserved() as before:
            assert before.same_as(RngState.capture())
            pull()
            assert not before.same_as(RngState.capture())
        assert before.same_as(RngState.capture())


def test_the_state_comes_back_even_when_the_program_raises() -> None:
    """Covers: U10"""
    before = RngState.capture()
    with pytest.raises(ZeroDivisionError), preserved():
        print(draw(), 1 / 0)
    assert before.same_as(RngState.capture())


def test_reseeding_seeds_every_generator() -> None:
    """Covers: U10"""
    with preserved():
        reseed(7)
        first = draw()
        reseed(7)
        assert draw() == first
        reseed(2**40)  # more than numpy takes
        assert draw() != first


def test_numpy_is_left_alone_where_nobody_imported_it() -> None:
    """Covers: U10"""
    script = """
import sys
sys.modules["numpy"] = None  # an import of it raises
import torch
from torchsleuth.compare.rng import RngState, preserved, reseed
sys.modules.pop("numpy")
with preserved() as state:
    reseed(1)
    torch.rand(1)
assert state.numpy is None and state.same_as(RngState.capture())
assert "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- which operators are random --------------------------------------------------------------------------


def test_random_operators_are_recognised() -> None:
    """Covers: U10"""
    for operator in (aten.rand.default, aten.native_dropout.default, aten.normal_.default, aten.bernoulli.p):
        assert is_random(operator)
    for operator in (aten.add.Tensor, aten.zeros_like.default, torch.rand, torch.ops.higher_order.cond, "rand"):
        assert not is_random(operator)


def test_random_operators_of_a_graph_are_listed_at_any_level() -> None:
    """Covers: U10"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x) + torch.rand_like(x) + x.clone().normal_() + x.sin()

    names = random_ops_in(torch.fx.symbolic_trace(program))
    assert len(names) == 3
    assert random_ops_in(make_fx(program)(torch.ones(2))) == (
        "aten.bernoulli_.float",
        "aten.rand_like.default",
        "aten.normal_.default",
    )

    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x.sin(), (x,))

    with preserved():
        assert random_ops_in(make_fx(branch)(torch.ones(2))) == ("aten.rand_like.default",)
    assert random_ops_in(program) == ()
    assert random_ops_in(torch.nn.Dropout()) == ()


# ---- the tape --------------------------------------------------------------------------------------------


def record(program: Callable[[], Any]) -> tuple[Any, Tape]:
    tape = Tape()
    with tape.recording():
        return program(), tape


def play(tape: Tape, program: Callable[[], Any]) -> Any:
    with tape.playing():
        return program()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


RATES = torch.tensor([0.2, 0.5, 3.0, 0.9])

DRAWS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "rand": lambda d: torch.rand(4, dtype=d),
    "randn": lambda d: torch.randn(4, dtype=d),
    "randint": lambda d: torch.randint(0, 100, (4,), dtype=d),
    "randperm": lambda d: torch.randperm(4),
    "rand_like": lambda d: torch.rand_like(RATES, dtype=d),
    "randn_like": lambda d: torch.randn_like(RATES, dtype=d),
    "randint_like": lambda d: torch.randint_like(RATES, 100, dtype=d),
    "normal of numbers": lambda d: torch.normal(0.0, 1.0, (4,), dtype=d),
    "normal of tensors": lambda d: torch.normal(RATES.to(d), RATES.to(d)),
    "bernoulli": lambda d: torch.bernoulli(RATES.clamp(max=1).to(d)),
    "bernoulli p": lambda d: torch.bernoulli(RATES.to(d), 0.5),
    "poisson": lambda d: torch.poisson(RATES.to(d)),
    "binomial": lambda d: torch.binomial(torch.full((4,), 9.0, dtype=d), RATES.clamp(max=1).to(d)),
    "multinomial": lambda d: torch.multinomial(RATES.to(d), 3),
    "normal_": lambda d: torch.empty(4, dtype=d).normal_(),
    "uniform_": lambda d: torch.empty(4, dtype=d).uniform_(-1, 1),
    "bernoulli_": lambda d: torch.empty(4, dtype=d).bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda d: torch.empty(4, dtype=d).bernoulli_(RATES.clamp(max=1)),
    "exponential_": lambda d: torch.empty(4, dtype=d).exponential_(),
    "cauchy_": lambda d: torch.empty(4, dtype=d).cauchy_(),
    "geometric_": lambda d: torch.empty(4, dtype=d).geometric_(0.3),
    "log_normal_": lambda d: torch.empty(4, dtype=d).log_normal_(),
    "random_": lambda d: torch.empty(4, dtype=d).random_(100),
    "out": lambda d: torch.rand(4, dtype=d, out=torch.empty(4, dtype=d)),
    "generator": lambda d: torch.rand(4, dtype=d, generator=torch.Generator().manual_seed(1)),
    "a view": lambda d: torch.zeros(2, 4, dtype=d)[1].normal_(),
    "scalar": lambda d: torch.rand((), dtype=d),
    "empty": lambda d: torch.rand(0, dtype=d),
}


@pytest.mark.parametrize("name", DRAWS)
def test_double_precision_gets_the_numbers_of_the_recording(name: str) -> None:
    """Covers: U10, U11. In fp64 torch would draw others."""
    with preserved():
        reseed(3)
        recorded, tape = record(lambda: DRAWS[name](torch.float32))
        reseed(4)
        played = play(tape, lambda: DRAWS[name](torch.float64))
    assert len(tape.operators) == 1
    assert played.dtype == (torch.float64 if recorded.is_floating_point() else torch.int64)
    assert torch.equal(played, wide(recorded))


def test_recording_changes_nothing() -> None:
    """Covers: S13, U10"""

    def program() -> list[Any]:
        return [torch.rand(2), torch.randn(3).normal_(), torch.nn.functional.dropout(torch.ones(4)), random.random()]

    with preserved() as start:
        plain = program()
        end = RngState.capture()
        start.restore()
        recorded, _ = record(program)
        assert end.same_as(RngState.capture())
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(plain, recorded, strict=True))


def test_a_tape_is_not_changed_by_what_is_done_with_its_numbers() -> None:
    """Covers: U10"""
    with preserved():
        drawn, tape = record(lambda: torch.rand(3))
        kept = drawn.clone()
        drawn.zero_()
        play(tape, lambda: torch.rand(3)).zero_()
        assert torch.equal(play(tape, lambda: torch.rand(3)), kept)


def test_a_tape_can_be_recorded_anew() -> None:
    """Covers: U10"""
    with preserved():
        _, tape = record(lambda: torch.rand(3))
        with tape.recording():
            torch.randn(3)
    assert tape.operators == ("aten.randn.default",)


def test_dropout_keeps_the_same_elements_in_double_precision() -> None:
    """Covers: U10"""
    x = torch.arange(1.0, 65.0)
    for drop in (
        lambda x: torch.nn.functional.dropout(x, 0.3),
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        lambda x: torch.nn.functional.alpha_dropout(x, 0.3, training=True),
        lambda x: torch.nn.functional.dropout1d(x.reshape(8, 8), 0.3).reshape(-1),
        lambda x: torch.nn.functional.dropout(x, 1.0),
        lambda x: torch.nn.functional.dropout(x, 0.0),
    ):
        with preserved():
            recorded, tape = record(lambda drop=drop: drop(x))
            played = play(tape, lambda drop=drop: drop(x.double()))
        assert played.dtype == torch.float64
        torch.testing.assert_close(played, recorded.double(), rtol=1e-6, atol=1e-6)


def gamma(x: torch.Tensor) -> torch.Tensor:
    return torch._standard_gamma(x)


@pytest.mark.parametrize(
    "mixed",
    [
        gamma,
        lambda x: torch.nn.functional.rrelu(-x, training=True),
        lambda x: torch._sample_dirichlet(x),
        lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.reshape(1, 4, 4)] * 3, dropout_p=0.5),
    ],
    ids=["gamma", "rrelu", "dirichlet", "attention"],
)
def test_what_mixes_numbers_with_data_is_computed_from_the_same_state(mixed: Any) -> None:
    """Covers: U10. Also after draws that were played, and so did not move the generator."""
    x = torch.linspace(0.5, 2.0, 16)
    untouched = x.clone()
    with preserved():
        recorded, tape = record(lambda: (torch.rand(5), mixed(x), torch.rand(5)))
        wide_x = x.double()
        played = play(tape, lambda: (torch.rand(5).double(), mixed(wide_x), torch.rand(5).double()))
    for one, other in zip(recorded, played, strict=True):
        torch.testing.assert_close(other, one.double(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(played[1], recorded[1].double()), "it was computed, not copied"
    assert torch.equal(x, untouched)
    assert torch.equal(wide_x, untouched.double())


def test_gradients_flow_through_what_was_computed() -> None:
    """Covers: U10"""

    def grad_of(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        torch.nn.functional.rrelu(x, training=True).sum().backward()
        assert x.grad is not None
        return x.grad

    x = torch.linspace(-1, 1, 8)
    with preserved():
        recorded, tape = record(lambda: grad_of(x))
        played = play(tape, lambda: grad_of(x.double()))
    torch.testing.assert_close(played, recorded.double())


@pytest.mark.parametrize(
    ("recorded", "played", "says"),
    [
        (lambda: torch.rand(2), lambda: torch.randn(2), "asks for aten.randn.default where .* has aten.rand.default"),
        (lambda: torch.rand(2), lambda: (torch.rand(2), torch.rand(2)), "asks for aten.rand.default .* nothing more"),
        (lambda: (torch.rand(2), torch.rand(2)), lambda: torch.rand(2), "ends where the recording has aten.rand"),
        (lambda: torch.rand(2), lambda: None, "ends where the recording has aten.rand"),
        (lambda: torch.rand(2), lambda: torch.rand(3), r"shape \(3,\) where the recording has \(2,\)"),
        (lambda: torch.rand(1), lambda: torch.rand(4), r"shape \(4,\) where the recording has \(1,\)"),
        (lambda: torch.empty(1).normal_(), lambda: torch.empty(4).normal_(), r"aten.normal_.default for the shape"),
        (
            lambda: torch.native_dropout(torch.ones(1), 0.5, True),
            lambda: torch.native_dropout(torch.ones(4), 0.5, True),
            "aten.native_dropout.default for the shape",
        ),
    ],
)
def test_a_run_that_takes_another_way_is_reported(recorded: Any, played: Any, says: str) -> None:
    """Covers: U10, U11"""
    with preserved():
        _, tape = record(recorded)
        with pytest.raises(TapeMismatch, match=says):
            play(tape, played)


def test_an_exception_of_the_program_is_not_hidden_by_what_is_left_on_the_tape() -> None:
    """Covers: U11"""

    def fail() -> None:
        raise ZeroDivisionError

    with preserved():
        _, tape = record(lambda: torch.rand(2))
        with pytest.raises(ZeroDivisionError):
            play(tape, fail)


def test_attention_that_drops_nothing_takes_nothing_from_the_tape() -> None:
    """Covers: U10. It is marked random, and draws only if it is told to."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x) * torch.rand(4, 4).to(x.dtype)

    x = torch.linspace(0, 1, 16).reshape(1, 4, 4)
    with preserved():
        recorded, tape = record(lambda: program(x))
        assert tape.operators == ("aten.rand.default",)
        torch.testing.assert_close(play(tape, lambda: program(x.double())).float(), recorded)

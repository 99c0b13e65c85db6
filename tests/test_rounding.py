"""Perturbed runs: what is exact stays exact, the rest moves by as much as rounding may, and nothing else happens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchsleuth import torch_compat
from torchsleuth.compare.decompositions import Decompositions
from torchsleuth.compare.rounding import UNITS, perturbed, rounds, summands, summing

aten = torch.ops.aten
EPS = torch.finfo(torch.float32).eps
X = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
WAYS = [None, Decompositions()]
WAYS_IDS = ["as it is", "written out"]


def shaken(
    program: Callable[..., Any], *args: Any, runs: int = 8, decompositions: Decompositions | None = None
) -> list[Any]:
    """What a program computes in some perturbed runs."""
    found = []
    for seed in range(runs):
        with perturbed(seed, decompositions):
            found.append(program(*args))
    return found


def spread(program: Callable[..., Any], *args: Any, runs: int = 8, **options: Any) -> torch.Tensor:
    """The largest distance of a perturbed run from a plain one, for each element."""
    plain = program(*args).double()
    return torch.stack([(run.double() - plain).abs() for run in shaken(program, *args, runs=runs, **options)]).amax(0)


# ── what is exact ────────────────────────────────────────────────────────────────────────────────────────

EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copies": lambda x: x.clone().contiguous(),
    "views": lambda x: x.t()[2:, ::3].flip(0).reshape(-1),
    "gathering": lambda x: torch.cat([x[:, [3, 1]], x.roll(1, 0)[:, :2]], 1).index_select(0, torch.tensor([5, 0])),
    "padding": lambda x: F.pad(x, (1, 2)),
    "choosing": lambda x: torch.where(x > 0, x, x.amin()).clamp(-1, 2).relu(),
    "sorting": lambda x: x.sort(-1).values[:, :4],
    "pooling": lambda x: F.max_pool2d(x[None], 2),
    "the largest": lambda x: x.topk(3).values,
    "negation": lambda x: -x.abs(),
    "widening": lambda x: x.double(),
    "rounding to integers": lambda x: (x * 4).round().floor() * 0 + x.trunc(),
    "finding": lambda x: x.argmax(-1) + torch.searchsorted(x[0].sort().values, x[:, 0].contiguous()),
    "values without repetition": lambda x: x.round(decimals=1).trunc().unique(),
    "comparing": lambda x: torch.isclose(x, x.clone(), rtol=0.0, atol=0.0).long() + torch.equal(x, x.clone()),
    "a mask": lambda x: (x > 0).float(),
    "a count": lambda x: (x > 0).float().sum(-1),
    "counting on": lambda x: (x > 0).float().cumsum(-1) + 1,
    "positions": lambda x: torch.arange(30.0).mul(2).add(1) @ torch.eye(30),
    "a one-hot product": lambda x: F.one_hot(torch.arange(30) % 7).float() @ torch.arange(14.0).view(7, 2),
    "whole division": lambda x: torch.div(torch.arange(50.0), 7, rounding_mode="floor"),
    "a written slice": lambda x: torch.zeros_like(x).index_copy(0, torch.tensor([3]), x[:1]),
}


@pytest.mark.parametrize("way", WAYS, ids=WAYS_IDS)
@pytest.mark.parametrize("name", EXACT)
def test_what_is_exact_stays_exact(name: str, way: Decompositions | None) -> None:
    """Covers: U12"""
    assert float(spread(EXACT[name], X, decompositions=way).max()) == 0.0


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "inexact"),
    [
        (aten.add.Tensor, (X, X), {}, True),
        (aten.relu.default, (X,), {}, False),
        (aten.view.default, (X, [-1]), {}, False),
        (aten.transpose_.default, (X, 0, 1), {}, False),
        (aten._to_copy.default, (X,), {"dtype": torch.bfloat16}, True),
        (aten._to_copy.default, (X,), {"dtype": torch.float64}, False),
        (aten._to_copy.default, (X,), {"dtype": torch.int64}, False),
        (aten._to_copy.default, (torch.ones(3, dtype=torch.int64),), {"dtype": torch.float32}, True),
        (aten.copy_.default, (X.half(), X), {}, True),
        (aten.copy_.default, (X, X.half()), {}, False),
        (aten.index_put.default, (X, [torch.tensor([0])], X[:1]), {}, False),
        (aten.index_put.default, (X, [torch.tensor([0])], X[:1], True), {}, True),
        (aten.rand.default, ([3],), {}, False),
        (len, (X,), {}, False),
    ],
    ids=str,
)
def test_which_operators_round(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inexact: bool) -> None:
    assert rounds(operator, args, kwargs) is inexact


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_numbers_are_not_taken_for_counts(dtype: torch.dtype) -> None:
    """Beyond a size a narrow dtype has nothing but integers, and they are rounded like any other numbers."""
    large = (torch.linspace(1.0, 2.0, 500) * 4000).to(dtype)
    assert bool((large == large.round()).all())
    assert float((spread(lambda x: x * 1.1, large) > 0).double().mean()) > 0.9


def test_a_result_that_is_an_integer_by_rounding_is_moved() -> None:
    """0.3 + 0.7 is 1 in bf16, by rounding: a wider intermediate may fall on either side of it."""
    x = torch.full((64,), 0.7, dtype=torch.bfloat16)
    assert bool((x * 1.001 + 0.3 == 1.0).all())
    assert float(spread(lambda x: (x * 1.001 + 0.3).long(), x).max()) == 1.0


# ── how far the rest moves ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS, ids=WAYS_IDS)
def test_a_product_moves_by_a_few_units(dtype: torch.dtype, way: Decompositions | None) -> None:
    """Covers: U12"""
    x = (X + 0.1).to(dtype)
    eps = torch.finfo(dtype).eps
    units = spread(lambda x: x * 1.7, x, runs=12, decompositions=way) / ((x * 1.7).double().abs() * eps)
    bound = UNITS if eps <= EPS else 1.0
    assert float(units.max()) <= bound + 2.0  # and what the last rounding, and an input's unit, add
    assert float(units.median()) >= 0.4 * bound


def test_every_run_is_another_one_and_a_seed_repeats_it() -> None:
    first, second, *_ = shaken(torch.sin, X)
    assert not torch.equal(first, second)
    assert torch.equal(shaken(torch.sin, X)[1], second)


def test_a_sum_that_cancels_shows_it() -> None:
    """Covers: U12. Its noise is that of its terms, not that of the little they leave."""
    x = torch.cat([X.flatten() + 100, -X.flatten() - 100])[torch.randperm(2400, generator=torch.Generator())]
    noise = float(spread(torch.sum, x))
    assert abs(float(x.sum())) < 0.01
    assert EPS * 100 < noise < 100 * EPS * 100 * math.sqrt(2400)


def test_small_rows_beside_large_ones_keep_their_own_noise() -> None:
    """Covers: U12"""
    x = X * torch.logspace(-10, 10, 40)[:, None]
    relative = spread(lambda x: x.sum(-1), x) / (x.double().norm(dim=-1) * EPS)
    assert float(relative.max()) < 50
    assert float(relative.min()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_longer_sum_is_noisier(dtype: torch.dtype) -> None:
    short, long = (
        float((spread(lambda x: x.sum(-1), x, runs=4) / x.double().sum(-1)).mean())
        for x in (torch.rand(20, n, generator=torch.Generator().manual_seed(0)).to(dtype) for n in (4, 40_000))
    )
    assert long > (5 * short if dtype == torch.float32 else 0.5 * short)


def test_what_a_fused_kernel_cancels_shows_when_it_is_written_out() -> None:
    """Covers: U12. 1 + erf(x) is a multiple of 2**-24, which is all that gelu has to go by at -5."""
    x = torch.linspace(-5.6, -4.8, 200)
    apart, fused = (spread(F.gelu, x, decompositions=way) / F.gelu(x.double()).abs() for way in (WAYS[1], None))
    assert float((apart > 0.01).double().mean()) > 0.9
    assert float((fused > 0.01).double().mean()) < 0.5


def test_batch_norm_moves_what_it_writes_to() -> None:
    """Its schema does not say that it does."""
    layer = nn.BatchNorm1d(30)
    layer(X)
    start = {name: value.clone() for name, value in layer.state_dict().items()}

    def running(x: torch.Tensor) -> torch.Tensor:
        layer.load_state_dict(start)
        layer(x)
        return layer.running_mean.clone()

    for way in WAYS:
        noise = spread(running, X, decompositions=way)
        assert 0 < float(noise.max()) < 1e-5


# ── and nothing else ─────────────────────────────────────────────────────────────────────────────────────


def test_the_programs_own_random_numbers_are_not_touched() -> None:
    """Covers: U10"""
    torch.manual_seed(5)
    mask = torch.bernoulli(torch.full((50,), 0.5))
    plain, after = torch.rand(3), torch.get_rng_state()
    torch.manual_seed(5)
    with perturbed(0, Decompositions()):
        assert torch.equal(torch.bernoulli(torch.full((50,), 0.5)), mask)
        assert torch.equal(torch.rand(3), plain)
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(5)
    with perturbed(0, Decompositions()):
        F.gelu(F.dropout(X, 0.5).softmax(-1)).sum()
    drawn = torch.get_rng_state()
    torch.manual_seed(5)
    F.dropout(X, 0.5)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_inputs_stay_as_they_are() -> None:
    x = X.clone()
    shaken(lambda x: (x * 2).exp().softmax(-1) @ x.t(), x, runs=2)
    assert torch.equal(x, X)


@pytest.mark.parametrize("way", WAYS, ids=WAYS_IDS)
def test_writing_in_place_and_through_views(way: Decompositions | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[1:, ::2].mul_(1.5).sin_()
        y.t()[0].exp_()
        y.transpose_(0, 1)
        torch._foreach_mul_([y], 1.1)
        return torch.add(y, 1.0, out=torch.empty(30, 40))

    plain = program(X)
    for run in shaken(program, X, decompositions=way, runs=3):
        assert run.shape == plain.shape
        assert not torch.equal(run, plain)
        assert torch.allclose(run, plain, rtol=1e-5, atol=1e-5)


def test_what_an_operator_left_alone_is_no_result_of_its() -> None:
    places = torch.tensor([3])
    noise = spread(lambda x: x.clone().index_add_(0, places, x[:1]), X)
    assert float(noise[3].max()) > 0
    assert float(noise[[row for row in range(40) if row != 3]].max()) == 0


def test_an_operator_that_writes_is_called_once() -> None:
    """Covers: U12. A counter of steps is an integer; counting twice would excuse a compiler that does not count."""
    for way in WAYS:
        steps = torch.zeros((), dtype=torch.int64)
        found = torch.zeros(3, dtype=torch.bool)
        with perturbed(0, way):
            steps.add_(1)
            found.logical_xor_(torch.ones(3, dtype=torch.bool))
        assert steps == 1
        assert bool(found.all())


def test_an_in_place_operator_returns_what_it_wrote_to() -> None:
    with perturbed(0, Decompositions()):
        x = X.clone()
        assert x.exp_() is x
        assert F.elu_(x) is x


def test_strides_stay_as_the_operator_made_them() -> None:
    x = X.view(1, 40, 6, 5).contiguous(memory_format=torch.channels_last)
    with perturbed(1, Decompositions()):
        for y in (F.gelu(x), F.silu(x) * 2, F.gelu(x.bfloat16())):
            assert y.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_perturbed_too() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (F.gelu(x).log_softmax(-1) * X).sum().backward()
        assert x.grad is not None
        return x.grad

    for way in WAYS:
        assert 0 < float(spread(program, X, decompositions=way).max()) < 1e-4


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.complex(x, x * 2).exp().conj().resolve_conj().real,
        lambda x: (x * (x > 0)).to_sparse().to_dense() * 1.5,
        lambda x: torch.nested.as_nested_tensor([x, x[:3]], layout=torch.jagged).values() * 1.5,
        lambda x: (x * 1.5).to(torch.float8_e4m3fn).float(),
        lambda x: torch.cond(x.sum() > 1e6, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        lambda x: torch.vmap(lambda row: row.softmax(-1))(x),
        lambda x: torch.func.hessian(lambda row: (row.sin() * row.exp()).sum())(x[0, :5]),
        lambda x: torch.stft(x.flatten(), 64, return_complex=True, window=torch.ones(64)).real,
        lambda x: x[:0].sum(0) + x.sum(0) * 1.5,
        lambda x: x.double().mul(1.1).to(torch.bfloat16).float(),
    ],
    ids="complex sparse nested float8 cond vmap hessian stft empty dtypes".split(),
)
@pytest.mark.parametrize("way", WAYS, ids=WAYS_IDS)
def test_programs_of_every_kind_can_be_perturbed(program: Any, way: Decompositions | None) -> None:
    """Covers: U1, U12"""
    assert float(spread(program, X, decompositions=way).max()) > 0


@pytest.mark.parametrize("way", WAYS, ids=WAYS_IDS)
def test_under_autocast_the_dtypes_are_the_same(way: Decompositions | None) -> None:
    """Covers: U15"""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
            return [y, F.layer_norm(y, (40,)), F.gelu(y), y.softmax(-1), F.gelu(x)]

    expected = [y.dtype for y in program(X)]
    for run in shaken(program, X, decompositions=way, runs=2):
        assert [y.dtype for y in run] == expected


# ── its parts ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("operator", "args", "length"),
    [
        (aten.add.Tensor, (X, X), 1),
        (torch.ops.prims.mul.default, (X, X), 1),
        (aten.sum.default, (X,), 1200),
        (aten.sum.dim_IntList, (X, [0]), 40),
        (aten.mean.dim, (X, [0, 1]), 1200),
        (torch.ops.prims.sum.default, (X, [1]), 30),
        (aten.cumsum.default, (X, 0), 40),
        (aten._softmax.default, (X, -1, False), 30),
        (aten.mm.default, (X, X.t()), 30),
        (aten.addmm.default, (X[:, :5], X, X[:30, :5]), 30),
        (aten.native_layer_norm.default, (X, [30], None, None, 1e-5), 30),
        (
            aten.convolution.default,
            (X[None, None], torch.ones(2, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
            9,
        ),
        (aten.sum.default, (torch.ones(3, dtype=torch.int64),), 1),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_how_many_numbers_go_into_one(operator: Any, args: tuple[Any, ...], length: int) -> None:
    assert summands(operator, args, {}) == length


def test_the_error_of_a_sum_grows_with_the_root_of_its_length() -> None:
    assert summing(1, EPS) == 0.0
    assert summing(400, EPS) == pytest.approx(2 * summing(100, EPS))
    assert summing(100, 2**-7) == summing(100, EPS)  # narrow numbers are summed in fp32
    assert summing(100, 2**-52) < summing(100, EPS)


def test_a_text_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[Any, Any] = {
        aten.gelu.default: lambda x, approximate="none": x * 0.5 * (1 + torch.tanh(x)),
        aten.silu.default: lambda x: x * torch.sigmoid(x),
        aten.exp.default: lambda x: torch.exp(x),
        aten.cumsum.default: lambda x, dim: (x[..., None, :] * torch.ones(30, 30).tril()).sum(-1),
    }
    monkeypatch.setattr(torch_compat, "decomposition", texts.get)
    known = Decompositions()
    assert known.find(aten.silu.default, (X,), {}) is texts[aten.silu.default]
    assert known.find(aten.gelu.default, (X,), {}) is None
    assert known.find(aten.exp.default, (X,), {}) is None, "a single operator is not written out"
    assert known.find(aten.cumsum.default, (X, -1), {}) is None, "its intermediates are too large"
    assert known.find(aten.sin.default, (X,), {}) is None, "there is no text"
    assert float(spread(F.gelu, X, decompositions=known).max()) < 1e-4


def test_a_text_that_fails_in_double_precision_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise NotImplementedError("not for these")
        return x * torch.sigmoid(x)

    monkeypatch.setattr(torch_compat, "decomposition", lambda op: picky)
    assert Decompositions().find(aten.silu.default, (X,), {}) is None

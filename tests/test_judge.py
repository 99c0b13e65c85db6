"""`judge` put to the proof: right programs that round differently, wrong ones that are wrong by little.

`test_verdicts.py` tells the rules; here are the many cases, most of which some earlier `judge` got wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import elsewhere
from torchsleuth.compare import Effort, Judgement, Verdict, judge
from torchsleuth.outcome import Symptom

Program = Callable[..., Any]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def randn(*shape: int, seed: int = 1, scale: float = 1.0, dtype: torch.dtype = FP32) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def wide(program: Program) -> Program:
    """The program with fp32 intermediates (fp64 for fp32), rounded once at the end: as if it were fused."""

    def run(*args: torch.Tensor) -> Any:
        dtype = args[0].dtype
        wider = torch.float64 if dtype == FP32 else FP32
        result = program(*(x.to(wider) for x in args))
        return torch.utils._pytree.tree_map(lambda y: y.to(dtype) if y.is_floating_point() else y, result)

    return run


def in_chunks(x: torch.Tensor, size: int = 16) -> torch.Tensor:
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for part in x.split(size, -1):
        total = total + part.sum(-1)
    return total


def one_after_another(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).cumsum(-1)[..., -1]


# ── right programs ───────────────────────────────────────────────────────────────────────────────────────


def two_pass(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)


def welford(x: torch.Tensor) -> torch.Tensor:
    mean = total = torch.zeros(x.shape[:-1])
    for number in range(x.shape[-1]):
        delta = x[..., number] - mean
        mean = mean + delta / (number + 1)
        total = total + delta * (x[..., number] - mean)
    return total / (x.shape[-1] - 1)


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    largest, total = torch.full_like(x[..., :1], -math.inf), torch.zeros_like(x[..., :1])
    for part in x.split(8, -1):
        new = torch.maximum(largest, part.amax(-1, keepdim=True))
        total = total * (largest - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        largest = new
    return (x - largest).exp() / total


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-5)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def chaos(x: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        x = 3.7 * x * (1 - x)
    return x


def chaos_expanded(x: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        x = 3.7 * x - 3.7 * x * x
    return x


def recurrent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(4, 16, dtype=x.dtype)
    for step in x:
        state = torch.tanh(step + state @ w)
    return state


def gelu_by_hand(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


SCALES = torch.logspace(-12, 12, 32)[:, None]
QKV = [randn(2, 24, 16, seed=seed) for seed in (1, 2, 3)]
COUNTS = torch.randint(0, 10, (500,), generator=torch.Generator().manual_seed(3))

RIGHT: dict[str, tuple[Program, Program, list[torch.Tensor]]] = {
    "a sum in chunks": (lambda x: x.sum(-1), in_chunks, [randn(4, 3000)]),
    "a sum one after another": (lambda x: x.sum(-1), one_after_another, [randn(4, 3000)]),
    "one long sum": (torch.sum, one_after_another, [randn(300_000)]),
    "a sum that cancels": (torch.sum, one_after_another, [torch.cat([randn(999), -randn(999) + 1e-7])]),
    "rows of very different scales": (lambda x: x.sum(-1), in_chunks, [randn(32, 64) * SCALES]),
    "scales that meet in a sum": (lambda x: x.sum(0), lambda x: in_chunks(x.t()), [randn(32, 64) * SCALES]),
    "a split product": (
        lambda a, b: a @ b,
        lambda a, b: sum(x @ y for x, y in zip(a.split(8, 1), b.split(8, 0), strict=True)),
        [randn(32, 256), randn(256, 8, seed=2)],
    ),
    "Welford": (lambda x: x.var(-1), welford, [randn(5, 40) + 1000]),
    "two passes": (welford, two_pass, [randn(5, 40) + 1000]),
    "moments that cancel": (
        lambda x: x.square().mean(-1) - x.mean(-1).square(),
        lambda x: in_chunks(x.square()) / 64 - (in_chunks(x) / 64).square(),
        [randn(5, 64) + 30],
    ),
    "layer norm": (lambda x: F.layer_norm(x, (64,)), layer_norm, [randn(9, 64) + 50]),
    "a constant, normalised": (lambda x: F.layer_norm(x, (64,)), layer_norm, [torch.full((2, 64), 0.1)]),
    "batch norm": (
        lambda x: F.batch_norm(x, None, None, training=True),
        wide(lambda x: F.batch_norm(x, None, None, training=True)),
        [randn(32, 4) + 100],
    ),
    "online softmax": (lambda x: x.softmax(-1), online_softmax, [randn(9, 64, scale=20)]),
    "attention": (F.scaled_dot_product_attention, attention, QKV),
    "the tail of gelu, fused": (F.gelu, gelu_by_hand, [torch.linspace(-6, -4, 64)]),
    "the tail of gelu, few": (F.gelu, gelu_by_hand, [randn(16, scale=0.5, seed=14) - 5]),
    "logsumexp of much": (lambda x: x.logsumexp(-1), lambda x: x.exp().sum(-1).log(), [randn(9, 64, scale=3) - 4]),
    "a difference of equals": (
        lambda x: x.exp().sum(-1).log() - x.logsumexp(-1),
        lambda x: x[:, 0] * 0,
        [randn(9, 64)],
    ),
    "division by little": (
        lambda x: x / x.sum(-1, keepdim=True),
        lambda x: x / in_chunks(x)[:, None],
        [randn(99, 64)],
    ),
    "a running sum": (lambda x: x.cumsum(-1), lambda x: x.double().cumsum(-1).float(), [randn(3, 2000)]),
    "a running product": (lambda x: x.cumprod(-1), lambda x: x.log().cumsum(-1).exp(), [randn(3, 99).abs() + 0.5]),
    "exp and log": (lambda x: x.exp().log().exp(), wide(lambda x: x.exp().log().exp()), [randn(200, scale=9)]),
    "chaos": (chaos, chaos_expanded, [torch.rand(200, generator=torch.Generator().manual_seed(3))]),
    "an ill-conditioned system": (
        torch.linalg.solve,
        lambda a, b: torch.linalg.inv(a) @ b,
        [torch.tensor([[1 / (i + j + 1) for j in range(7)] for i in range(7)]), randn(7, 2)],
    ),
    "a distance": (
        lambda x: torch.cdist(x, x[:9] + 0.01),
        lambda x: (x[:, None] - (x[:9] + 0.01)[None]).square().sum(-1).sqrt(),
        [randn(30, 16)],
    ),
    "numbers too small to be normal": (lambda x: x * x, lambda x: x.pow(2), [randn(99, scale=1e-20)]),
    "numbers flushed to zero": (
        lambda x: x * 1e-38,
        lambda x: torch.where((x * 1e-38).abs() < 1.2e-38, 0.0, x * 1e-38),
        [randn(99)],
    ),
    "sums by index": (
        lambda x, i: torch.zeros(10, 4).index_add(0, i, x),
        lambda x, i: F.one_hot(i, 10).float().t() @ x,
        [randn(500, 4), COUNTS],
    ),
    "an FFT there and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), lambda x: x + 0.0, [randn(4, 128)]),
    "complex numbers": (
        lambda x: torch.complex(x, x).exp(),
        lambda x: torch.complex(x.exp() * x.cos(), x.exp() * x.sin()),
        [randn(99)],
    ),
    "sparse results": (
        lambda x: (x * (x > 0) * 1.3 + 0.0).to_sparse(),
        wide(lambda x: (x * (x > 0) * 1.3 + 0.0).to_sparse()),
        [randn(9, 9)],
    ),
}
for _dtype in (BF16, FP16):
    _name = str(_dtype)[6:]
    _x, _w = randn(40, 32, dtype=_dtype), randn(32, 32, seed=2, scale=0.3, dtype=_dtype)

    def _chain(x: torch.Tensor) -> torch.Tensor:
        return ((x * 3 + 1).exp().log() * 7 - x).sin() + x.cos() * x

    for _what, _program, _inputs in (
        ("a chain", _chain, [_x]),
        ("layer norm", layer_norm, [(_x.float() + 5).to(_dtype)]),
        ("softmax", lambda x: (x * 3).exp() / (x * 3).exp().sum(-1, keepdim=True), [_x]),
        ("attention", attention, [t.to(_dtype) for t in QKV]),
        ("a recurrence", recurrent, [randn(20, 4, 16, dtype=_dtype), randn(16, 16, seed=2, dtype=_dtype)]),
        ("products", lambda x, w: (x @ w).relu() @ w.t(), [_x, _w]),
        ("1 + x - 1", lambda x: (1 + x * 1e-2) - 1, [_x]),
        ("large numbers", lambda x: (x * 900 + 1000) * 1.1 - 1000, [_x]),
        ("the floor", lambda x: (x * 7.3 + 0.1).floor(), [randn(5000, dtype=_dtype)]),
        ("integers", lambda x: (x * 7.3 + 0.3).long(), [randn(5000, dtype=_dtype)]),
        ("a comparison", lambda x: x * 1.1 + 0.3 > 0.5, [randn(5000, dtype=_dtype)]),
        ("the largest", lambda x, w: (x @ w).argmax(-1), [randn(400, 32, dtype=_dtype), _w]),
        ("the five largest", lambda x: (x * 1.1).softmax(-1).topk(5), [_x]),
        ("a branch", lambda x: torch.where(x.mean(-1, keepdim=True) * 3 > x, x.exp(), x.sin()), [_x]),
        ("a remainder", lambda x: torch.remainder(x * 13, 0.7), [_x]),
        ("a selection", lambda x: x[x * 1.3 > 0.5], [randn(3000, dtype=_dtype)]),
    ):
        RIGHT[f"{_what}, {_name}"] = (_program, wide(_program), _inputs)
_HUGE = randn(300, scale=300, dtype=FP16)
for _what, _program in {
    "a square and its root": lambda x: (x * x).sqrt(),
    "infinity over infinity": lambda x: (x * x) / (x * x + 1),
    "exp and log": lambda x: (x * 0.1).exp().log(),
    "a sum of squares": lambda x: (x * x).sum() / 300,
}.items():
    RIGHT[f"{_what} that overflows, float16"] = (_program, wide(_program), [_HUGE])


@pytest.mark.parametrize("name", RIGHT)
def test_another_way_to_round_is_noise(name: str) -> None:
    """Covers: U12"""
    model, compiled, inputs = RIGHT[name]
    found = judge(model, compiled, inputs)
    assert found.verdict is Verdict.NOISE, str(found)


@pytest.mark.parametrize("seed", range(12))
def test_few_elements_in_the_tail_of_a_fused_kernel(seed: int) -> None:
    """Covers: U12. One in eight of these was once no noise: eager happens to be exact where a kernel cancels."""
    x = randn(16, scale=0.5, seed=seed) - 5
    assert judge(F.gelu, gelu_by_hand, [x]).verdict is Verdict.NOISE


# ── wrong programs ───────────────────────────────────────────────────────────────────────────────────────


def smooth(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).sin() * x.exp()


def spoiled(program: Program, change: Callable[[torch.Tensor], Any]) -> Program:
    """The program with one element changed, in the middle."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = program(x).clone()
        y.view(-1)[y.numel() // 2] = change(y.view(-1)[y.numel() // 2])
        return y

    return run


ONE_WRONG: dict[str, tuple[Program, Callable[[torch.Tensor], Any]]] = {
    "by a thousandth": (smooth, lambda v: v * 1.001),
    "by a ten-thousandth": (smooth, lambda v: v * 1.0001),
    "a NaN": (smooth, lambda v: v * math.nan),
    "an infinity": (smooth, lambda v: v + math.inf),
    "a zero": (smooth, lambda v: v * 0),
    "a floor": (lambda x: (x * 100).floor(), lambda v: v + 1),
    "an integer": (lambda x: (x * 100).long(), lambda v: v + 1),
    "a bool": (lambda x: x * 1.3 > 0.5, lambda v: ~v),
}


@pytest.mark.parametrize("size", [8, 1000, 1_000_000])
@pytest.mark.parametrize("name", ONE_WRONG)
def test_one_wrong_element_is_a_bug_whatever_the_size(name: str, size: int) -> None:
    """Covers: U12. Others may tip over when eager rounds differently: that is no excuse for this one."""
    program, change = ONE_WRONG[name]
    found = judge(program, spoiled(program, change), [randn(size)])
    assert found.verdict is Verdict.BUG, str(found)
    assert found.leaf is not None
    assert found.leaf.index == (size // 2,)


@pytest.mark.parametrize("size", [1, 8, 64, 999, 1001, 30_000, 1_000_000])
@pytest.mark.parametrize("factor", [1.0, 1 + 1e-4, 1 + 1e-5])
def test_the_size_alone_changes_nothing(size: int, factor: float) -> None:
    """Covers: U12"""
    x = torch.rand(size, generator=torch.Generator().manual_seed(size)) + 0.5
    found = judge(lambda x: x.exp() * (x + 1).sqrt(), wide(lambda x: x.exp() * (x + 1).sqrt() * factor), [x])
    assert found.verdict is (Verdict.NOISE if factor == 1.0 else Verdict.BUG), str(found)


WRONG: dict[str, tuple[Program, Program, list[torch.Tensor]]] = {
    "another dimension": (lambda x: x.softmax(-1), lambda x: x.softmax(0), [randn(8, 8)]),
    "the other gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), [randn(500)]),
    "another epsilon": (
        lambda x: F.layer_norm(x, (64,)),
        lambda x: F.layer_norm(x, (64,), eps=1e-4),
        [randn(20, 64)],
    ),
    "a leak": (F.relu, lambda x: F.leaky_relu(x, 1e-4), [randn(500)]),
    "one number fewer in a sum": (torch.sum, lambda x: x[:-1].sum(), [randn(1000)]),
    "one fewer in a mean": (torch.mean, lambda x: x.sum() / (x.numel() + 1), [randn(1000)]),
    "another correction": (torch.var, lambda x: x.var(correction=0), [randn(1000)]),
    "shifted by one": (
        lambda x: x.cumsum(-1),
        lambda x: F.pad(x.cumsum(-1)[:, :-1], (1, 0)),
        [randn(4, 500)],
    ),
    "no mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention,
        QKV,
    ),
    "a count": (lambda x: (x > 0).float().sum(-1), lambda x: (x > 0).float().sum(-1) + 1, [randn(4, 100)]),
    "a copy": (torch.clone, lambda x: x * (1 + 1e-5), [randn(50)]),
    "bf16 off by a tenth": (smooth, wide(lambda x: smooth(x) * 1.1), [randn(500, dtype=BF16)]),
    "fp16 off by a twentieth": (smooth, wide(lambda x: smooth(x) * 1.05), [randn(500, dtype=FP16)]),
    "float8 doubled": (
        lambda x: (x * 1.3).to(torch.float8_e4m3fn),
        lambda x: (x * 2.6).to(torch.float8_e4m3fn),
        [randn(50)],
    ),
    "fp64 computed in fp32": (
        lambda x: x.sin().exp().sum(),
        lambda x: x.float().sin().exp().sum().double(),
        [randn(500).double()],
    ),
    "NaN for minus infinity": (
        torch.log,
        lambda x: torch.where(x == 0, math.nan, x.log()),
        [torch.tensor([0.0, 1.0])],
    ),
    "the other infinity": (
        torch.reciprocal,
        lambda x: torch.where(x == 0, -math.inf, 1 / x),
        [torch.tensor([0.0, 1.0])],
    ),
    "a conjugate": (
        lambda x: torch.complex(x, x).exp(),
        lambda x: torch.complex(x, x).exp().conj(),
        [randn(50)],
    ),
    "a sparse value": (lambda x: x.to_sparse() * 2, lambda x: (x * 2.01).to_sparse(), [torch.eye(4) * 1.3]),
    "a nested value": (
        lambda x: torch.nested.as_nested_tensor([x, x[:2]], layout=torch.jagged) * 2,
        lambda x: torch.nested.as_nested_tensor([x * 2, x[:2] * 2.1], layout=torch.jagged),
        [randn(4, 3)],
    ),
    "a number of numpy's": (lambda x: x.numpy() * 2, lambda x: x.numpy() * 2.001, [randn(5)]),
    "a Python float": (lambda x: x.sum().item(), lambda x: x.sum().item() * 1.001, [randn(500)]),
    "a constant branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        lambda x: x.cos() if x.sum() > 0 else x.sin(),
        [randn(10)],
    ),
    "one row of large numbers": (
        lambda x: x.sum(-1),
        lambda x: x.sum(-1) * (1 + 1e-3 * (torch.arange(32) == 31)),
        [randn(32, 64) * SCALES],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_a_bug(name: str) -> None:
    """Covers: U12"""
    model, compiled, inputs = WRONG[name]
    found = judge(model, compiled, inputs)
    assert found.verdict is Verdict.BUG, str(found)


# ── neither the one nor the other ────────────────────────────────────────────────────────────────────────


def test_a_coarser_formula_for_small_values_is_unknown() -> None:
    """Covers: U12. Inductor's expm1. A fault that hits small values only looks the same."""
    x = torch.cat([randn(100), randn(20, scale=1e-4)])
    found = judge(torch.expm1, lambda x: x.exp() - 1, [x])
    assert found.verdict is Verdict.UNKNOWN, str(found)
    assert "less than one rounding of a typical element" in found.reason
    assert found.leaf is not None
    assert found.leaf.noise is not None
    assert found.leaf.noise.faint == found.leaf.noise.unexplained > 0
    assert judge(torch.expm1, lambda x: x.exp() - 1, [x * 1e-2]).verdict is Verdict.BUG


def test_a_reference_that_draws_other_numbers_is_no_excuse() -> None:
    """Covers: U11. A generator of its own gives fp64 other numbers than fp32."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    assert judge(program, wide(lambda x: program(x.float())), [randn(50)]).verdict is Verdict.NOISE
    found = judge(program, lambda x: program(x) + 0.01, [randn(50)])
    assert found.verdict is Verdict.UNKNOWN, str(found)
    assert "eager is far from fp64 too" in found.reason


def test_perturbed_runs_that_all_raise_leave_the_noise_unmeasured() -> None:
    """Covers: U11"""

    def picky(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        if not torch.equal(y, x.clone().exp_()) and y.dtype == FP32:
            raise ArithmeticError("not the same twice")
        return y

    found = judge(picky, lambda x: x.exp() * 1.01, [randn(20)])
    assert found.verdict is Verdict.UNKNOWN, str(found)
    assert found.not_perturbed is not None
    assert "ArithmeticError: not the same twice" in found.not_perturbed
    assert found.not_perturbed in str(found)


def test_a_compiled_program_that_raises_late_is_unknown() -> None:
    """Covers: S30"""
    calls = []

    def tired(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 10:
            raise MemoryError("enough")
        torch.rand(1)
        return F.dropout(x)

    found = judge(lambda x: F.dropout(x), tired, [randn(100)])
    assert found.verdict is Verdict.UNKNOWN
    assert "compiled raised MemoryError: enough" in found.reason


def test_what_differs_from_run_to_run_of_eager_is_nondeterministic() -> None:
    """Covers: U12"""
    generator = torch.Generator().manual_seed(0)

    def number() -> int:
        return int(torch.randint(1, 50, (), generator=generator))

    kinds: dict[str, Program] = {
        "values": lambda x: x + torch.rand((), generator=generator),
        "integers": lambda x: torch.randint(0, 3, (50,), generator=generator),
        "shapes": lambda x: x[: number()],
        "structure": lambda x: [x] * number(),
        "a mask": lambda x: x * (torch.rand(50, generator=generator) > 0.5),
    }
    for name, program in kinds.items():
        found = judge(program, program, [randn(50)])
        assert found.verdict is Verdict.NONDETERMINISTIC, f"{name}: {found}"
        assert found.eager_spread > 0
        assert found.compiled_spread > 0
        assert "neither side repeats itself" in found.reason


def test_a_nondeterministic_program_can_still_be_wrong() -> None:
    """Covers: U12"""
    generator = torch.Generator().manual_seed(0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 1e-3 * torch.randn(x.shape, generator=generator))

    found = judge(program, lambda x: program(x) * 1.2, [randn(100)])
    assert found.verdict is Verdict.BUG
    assert found.eager_spread > 0


# ── random programs ──────────────────────────────────────────────────────────────────────────────────────


RANDOM: dict[str, tuple[Program, Program, list[torch.Tensor]]] = {
    "dropout after a long product": (
        lambda x, w: F.dropout(x @ w, 0.5),
        lambda x, w: F.dropout(x.flip(-1) @ w.flip(0), 0.5),
        [randn(4, 1000), randn(1000, 16, seed=2)],
    ),
    "heavy dropout of ill-conditioned values": (
        lambda x: F.dropout(F.layer_norm(x + 100, (64,)), 0.9),
        lambda x: F.dropout(layer_norm(x + 100), 0.9),
        [randn(8, 64)],
    ),
    "coins": (
        lambda x: torch.bernoulli(x.sigmoid()) * x.exp(),
        lambda x: torch.bernoulli(x.double().sigmoid().float()) * x.double().exp().float(),
        [randn(20, 20)],
    ),
    "three numbers": (lambda x: F.dropout(x.exp(), 0.1), lambda x: F.dropout(x.exp(), 0.1), [randn(3)]),
    "integers": (lambda x: torch.randint(0, 5, (99,)), lambda x: torch.randint(0, 5, (99,)), [randn(3)]),
    "complex numbers": (
        lambda x: torch.complex(torch.randn(30), x),
        lambda x: torch.complex(torch.randn(30), x),
        [randn(30)],
    ),
    "bf16": (
        lambda x: F.dropout(x * 1.1, 0.3).softmax(-1),
        wide(lambda x: F.dropout(x * 1.1, 0.3).softmax(-1)),
        [randn(8, 32, dtype=BF16)],
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_right_random_programs_are_noise(name: str) -> None:
    """Covers: U10. That a compiler rounds alike in every run must not give it away."""
    model, compiled, inputs = RANDOM[name]
    found = judge(model, elsewhere(compiled), inputs)
    assert found.verdict is Verdict.NOISE, str(found)
    assert found.leaf is not None
    assert found.leaf.distribution is not None


def _last_wrong(x: torch.Tensor) -> torch.Tensor:
    y = F.dropout(x, 0.5)
    y[-1] = x[-1] * -2
    return y


WRONG_RANDOM: dict[str, tuple[Program, Program, list[torch.Tensor]]] = {
    "channels for elements": (
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout2d(x[None], 0.5)[0],
        [randn(16, 5, 5)],
    ),
    "one element of many": (lambda x: F.dropout(x, 0.5), _last_wrong, [randn(100_000)]),
    "nothing dropped, of few": (lambda x: F.dropout(x, 0.1), lambda x: x + 0.0, [randn(8)]),
    "scale, of few": (lambda x: F.dropout(x, 0.3), lambda x: F.dropout(x, 0.3) * 0.7, [randn(8)]),
    "uniform for normal": (lambda x: torch.randn(99), lambda x: torch.rand(99), [randn(1)]),
    "integers, one fewer": (lambda x: torch.randint(0, 6, (99,)), lambda x: torch.randint(0, 5, (99,)), [randn(1)]),
    "the same twice": (lambda x: torch.randperm(40), lambda x: torch.randint(0, 40, (40,)), [randn(1)]),
}


@pytest.mark.parametrize("name", WRONG_RANDOM)
def test_wrong_random_programs_are_bugs(name: str) -> None:
    """Covers: U10"""
    model, compiled, inputs = WRONG_RANDOM[name]
    found = judge(model, elsewhere(compiled), inputs)
    assert found.verdict is Verdict.BUG, str(found)


def test_agreement_by_chance_is_not_trusted() -> None:
    """Covers: U10. Of eight elements often none is dropped, and then a program that never drops agrees."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    while not bool((F.dropout(torch.ones(8), 0.1) > 0).all()):
        state = torch.get_rng_state()
    torch.set_rng_state(state)
    found = judge(lambda x: F.dropout(x, 0.1) * 0.9, lambda x: x * 1.0, [torch.ones(8)])
    assert found.comparison is not None
    assert found.comparison.agree
    assert found.verdict is Verdict.BUG, str(found)
    assert not found.rng.compiled_drew


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


@pytest.mark.parametrize(
    ("momentum", "counts", "verdict"),
    [(0.1, True, Verdict.NOISE), (0.11, True, Verdict.BUG), (0.1, False, Verdict.BUG)],
    ids=["right", "another momentum", "no count"],
)
def test_buffers_count(momentum: float, counts: bool, verdict: Verdict) -> None:
    """Covers: S32"""
    model = Counting()
    model(randn(6, 4, seed=8))  # statistics that are no longer 0 and 1
    norm = model.norm

    def compiled(x: torch.Tensor) -> torch.Tensor:
        mean, var = norm.running_mean, norm.running_var
        if counts and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        return F.batch_norm(x, mean, var, norm.weight, norm.bias, training=True, momentum=momentum)

    found = judge(model, compiled, [randn(6, 4)])
    assert found.verdict is verdict, str(found)
    if verdict is Verdict.BUG:
        assert found.leaf is not None
        assert found.leaf.path.startswith("buffers[")


def test_a_parameter_without_its_gradient_is_a_bug() -> None:
    """Covers: S32"""
    model = nn.Linear(4, 4)
    found = judge(model, lambda x: F.linear(x, model.weight, model.bias.detach()), [randn(3, 4)])
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert found.leaf.path == "grads['bias']"


def test_noise_in_the_gradients_of_a_closure_is_noise() -> None:
    """Covers: U11. The fp64 reference reaches what a function closes over."""
    model = nn.Linear(16, 8)
    found = judge(
        lambda x: model(x).softmax(-1).log().sum(-1),
        lambda x: model(x).log_softmax(-1).flip(-1).sum(-1),
        [randn(64, 16)],
    )
    assert found.verdict is Verdict.NOISE, str(found)
    assert found.no_reference is None
    assert model.weight.dtype == FP32


def test_a_wrong_gradient_of_a_global_that_nothing_names_is_a_bug() -> None:
    hidden = {"w": [torch.ones(4, requires_grad=True)]}

    class Secret:
        __slots__ = ("of",)

        def __init__(self) -> None:
            self.of = hidden

    secret = Secret()
    found = judge(lambda x: x * secret.of["w"][0], lambda x: x * secret.of["w"][0].detach(), [randn(3, 4)])
    assert found.verdict is Verdict.BUG, str(found)
    assert hidden["w"][0].grad is None


def test_a_real_wrong_gradient() -> None:
    """Covers: S32. torch 2.13, AOTAutograd: a buffer that the forward writes to is scaled again in the backward.

    constraints.txt pins that torch; a later one may have mended it.
    """

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale.mul_(1.5)  # type: ignore[operator, union-attr]
            return x * self.weight * self.scale

    model = Scaled()
    found = judge(model, torch.compile(model, backend="aot_eager"), [torch.ones(3)])
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert found.leaf.path == "grads['weight']"
    assert torch.equal(model.scale, torch.ones(3))  # type: ignore[arg-type]


def test_compiled_with_the_backends_that_change_nothing() -> None:
    torch.compiler.reset()
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    for backend in ("eager", "aot_eager"):
        found = judge(model, torch.compile(model, backend=backend), [randn(2, 5, 16)])
        assert found.verdict is Verdict.NOISE, str(found)


def test_cond_still_works_after_a_judgement() -> None:
    """Covers: U1. A dispatch mode makes Dynamo skip frames for good; eager's cond is compiled by it."""

    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    x = randn(10)
    assert judge(program, lambda x: program(x) * (1 + 2**-22), [x]).verdict is Verdict.NOISE
    assert torch.equal(program(x), x.sin() if x.sum() > 0 else x.cos())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.vmap(lambda row: row.softmax(-1) * row.exp().sum())(x),
        lambda x: torch.func.jacfwd(lambda row: row.sin().cumsum(-1))(x[0]),
        lambda x: torch.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False),
        lambda x: torch.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), x, use_reentrant=True),
        lambda x: torch._foreach_add(torch._foreach_mul([x, x * 2], 1.7), 0.3),
        lambda x: torch.stft(x.flatten(), 16, return_complex=True, window=torch.ones(16)),
        lambda x: torch.sparse.mm((x * (x > 0)).to_sparse(), x.t() * 1.3),
        lambda x: torch.distributions.Normal(x * 1.3, 1.0).log_prob(x),
        torch.compile(lambda x: x.sin().exp(), backend="eager"),
        nn.GRUCell(10, 4),
        lambda x: {"loss": x.sin().sum(), "none": None, "text": "a", "size": x.shape, "inner": [(x.exp(),)]},
    ],
    ids="vmap jacfwd checkpoint reentrant foreach stft sparse distribution compiled cell containers".split(),
)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "with gradients"])
def test_programs_of_every_kind(program: Program, requires_grad: bool) -> None:
    """Covers: U1, U12"""

    def scaled(factor: float) -> Program:
        def run(x: torch.Tensor) -> Any:
            return torch.utils._pytree.tree_map(
                lambda leaf: leaf * factor if isinstance(leaf, torch.Tensor) else leaf, program(x)
            )

        return run

    x = randn(6, 10).requires_grad_(requires_grad)
    assert judge(program, scaled(1 + 2**-22), [x]).verdict is Verdict.NOISE
    assert judge(program, scaled(1.001), [x]).verdict is Verdict.BUG


@pytest.mark.parametrize(
    "program",
    [
        lambda: 3,
        lambda: torch.ones(3),
        lambda: None,
        list,
        lambda: torch.zeros(0, 4).sum(0),
        lambda: torch.zeros(0, 4),
        lambda: torch.empty(3, device="meta"),
        lambda: np.float32(0.5),
    ],
    ids="number tensor none list sum empty meta numpy".split(),
)
def test_programs_with_little_to_say(program: Program) -> None:
    found = judge(program, program, [])
    assert found.verdict is Verdict.NOISE, str(found)


# ── the evidence ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_evidence_of_a_bug() -> None:
    """Covers: U12"""
    found = judge(smooth, spoiled(smooth, lambda v: v + 1), [randn(100)])
    leaf = found.leaf
    assert leaf is not None
    assert (leaf.path, leaf.symptom, leaf.index, leaf.numel) == ("output", Symptom.VALUE, (50,), 100)
    assert leaf.compiled_value == pytest.approx(leaf.eager_value + 1)
    assert leaf.fp64_value == pytest.approx(leaf.eager_value, abs=1e-5)
    assert leaf.noise is not None
    assert leaf.noise.result_max == pytest.approx(1, rel=1e-3)
    assert leaf.noise.eager_max < 1e-5
    assert leaf.ratio == leaf.noise.worst > 1000
    assert leaf.unexplained == 1
    assert leaf in found.leaves
    assert found.comparison is not None
    assert not found.comparison.agree
    assert (found.eager_spread, found.compiled_spread, found.no_reference, found.raised) == (0, 0, None, None)
    assert found.runs == 6 + 1 + 2 * Effort().perturbed


@pytest.mark.parametrize("program", [smooth, lambda x: (x * 9).long()], ids=["floats", "integers"])
def test_the_evidence_comes_from_the_run_that_is_wrong(program: Program) -> None:
    """Covers: U12. A fault that shows only now and then: the first run is right."""
    calls = []

    def moody(x: torch.Tensor) -> Any:
        calls.append(1)
        return program(x) if len(calls) == 1 else spoiled(program, lambda v: v + 7)(x)

    leaf = judge(program, moody, [randn(100)]).leaf
    assert leaf is not None
    assert (leaf.verdict, leaf.index) == (Verdict.BUG, (50,))
    assert leaf.compiled_value == pytest.approx(leaf.eager_value + 7)


def test_the_evidence_of_flips() -> None:
    """Covers: U12"""
    program, compiled, inputs = RIGHT["integers, bfloat16"]
    found = judge(program, compiled, inputs)
    assert found.leaf is not None
    assert found.leaf.flips is not None
    assert found.leaf.flips.differing > 10
    assert found.leaf.flips.unexplained == found.leaf.unexplained == 0
    assert found.leaf.symptom is Symptom.INTEGER
    assert "as they do in other runs of eager" in found.reason


def test_equal_results_take_no_more_than_the_plain_runs() -> None:
    found = judge(smooth, smooth, [randn(100)])
    assert found.runs == 2 * Effort().repeats
    assert found.reason == "eager and compiled agree bit for bit"


def test_more_effort_is_more_runs() -> None:
    efforts = (Effort(perturbed=2), Effort(perturbed=10, repeats=5))
    few, many = (judge(smooth, wide(smooth), [randn(100)], effort=effort).runs for effort in efforts)
    assert (few, many) == (6 + 1 + 2, 10 + 1 + 10)


def test_the_first_wrong_leaf_is_the_one_that_is_told() -> None:
    found = judge(lambda x: (x, x.sin(), x.cos()), lambda x: (x, x.sin() * 1.01, x.cos() * 2), [randn(9)])
    assert found.leaf is not None
    assert found.leaf.path == "output[1]"
    assert [leaf.path for leaf in found.leaves if leaf.verdict is Verdict.BUG] == ["output[1]", "output[2]"]
    assert found.reason.startswith("at output[1], ")


def test_a_bug_outweighs_what_is_unknown() -> None:
    def sides(factor: float) -> Program:
        return lambda x: (x.view(torch.int32).float() * factor, x.long() + int(factor > 1))

    found = judge(sides(1.0), sides(1.1), [randn(9)])
    assert found.verdict is Verdict.BUG
    assert {leaf.verdict for leaf in found.leaves if leaf.path.startswith("output")} == {Verdict.UNKNOWN, Verdict.BUG}


def test_every_answer_prints() -> None:
    answers: list[Judgement] = [
        judge(smooth, smooth, [randn(9)]),
        judge(smooth, wide(smooth), [randn(9)]),
        judge(smooth, torch.cos, [randn(9)]),
        judge(lambda x: F.dropout(x), elsewhere(lambda x: F.dropout(x)), [randn(99)]),
        judge(lambda x: x.long(), lambda x: x.long() + 1, [randn(9)]),
        judge(lambda x: [x], lambda x: x, [randn(9)]),
        judge(lambda x: 1 / 0, smooth, [randn(9)]),
        judge(torch.sum, lambda x: x.sum() * 2, [randn(9)]),
    ]
    for answer in answers:
        told = str(answer)
        assert told.splitlines()[0] == f"{answer.verdict.value.upper()}: {answer.reason}"
        assert "None" not in told
        with pytest.raises(TypeError, match="four answers"):
            bool(answer)

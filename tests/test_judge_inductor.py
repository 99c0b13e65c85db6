"""`judge` on what Inductor really compiles: its own test faults, right programs, and bugs of torch 2.13 as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.nn import functional as F

from torchsleuth.cli.demo import build_block
from torchsleuth.compare import Judgement, Verdict, judge
from torchsleuth.outcome import Symptom

pytestmark = pytest.mark.inductor


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


X = randn(2, 16, 64)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def judge_inductor(model: Callable[..., Any], inputs: Sequence[Any], **faults: str) -> Judgement:
    options = {f"cpp.inject_{name}_bug_TESTING_ONLY": kind for name, kind in faults.items()}
    with inductor_config.patch(options):
        return judge(model, torch.compile(model), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transformer_block_is_noise(dtype: torch.dtype) -> None:
    """Covers: U12"""
    found = judge_inductor(build_block("relu", 0.0).to(dtype), [X.to(dtype)])
    assert found.verdict is Verdict.NOISE, str(found)
    assert found.leaf is not None
    assert found.leaf.noise is not None  # it was not equal by chance: there was something to explain


@pytest.mark.parametrize("fault", ["relu", "log1p"])
def test_a_planted_fault_is_a_bug(fault: str) -> None:
    """Covers: U12"""
    found = judge_inductor(build_block(fault, 0.0), [X], **{fault: "accuracy"})
    assert found.verdict is Verdict.BUG
    assert found.leaf is not None
    assert found.leaf.path == "output"


def test_dropout_with_inductors_own_random_numbers_is_noise() -> None:
    """Covers: U10"""
    found = judge_inductor(lambda x: x + F.dropout(F.relu(x), 0.5), [X])
    assert found.verdict is Verdict.NOISE, str(found)
    assert found.rng.eager_drew
    assert not found.rng.same_consumption


def test_a_planted_fault_beside_a_dropout_is_a_bug() -> None:
    """Covers: U10. torch's own level 4 passes it silently."""
    assert judge_inductor(lambda x: x + F.dropout(F.relu(x), 0.5), [X], relu="accuracy").verdict is Verdict.BUG


def _scatter_then_flip(x: torch.Tensor) -> torch.Tensor:
    x.index_put_((torch.arange(x.size(0)),), x * 2.0)
    x.add_(x.flip(0))
    return x


UINT8 = torch.tensor([5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80], dtype=torch.uint8)
RAND = torch.rand(4, 8, generator=torch.Generator().manual_seed(0))

REAL_BUGS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], Symptom]] = {
    # pytorch/pytorch#191499
    "minimum of uint8": (torch.min, [UINT8], Symptom.INTEGER),
    # pytorch/pytorch#197091
    "dtype of ldexp": (torch.ldexp, [torch.ones(3, 4, dtype=torch.bool), torch.ones(3, 4).half()], Symptom.DTYPE),
    # pytorch/pytorch#198270
    "in-place aliasing": (_scatter_then_flip, [RAND], Symptom.VALUE),
}


@pytest.mark.parametrize("name", REAL_BUGS)
def test_a_bug_that_nobody_planted_is_a_bug(name: str) -> None:
    """Covers: U12. Bugs of torch 2.13, which constraints.txt pins; a later torch may have mended them."""
    program, inputs, symptom = REAL_BUGS[name]
    found = judge_inductor(program, inputs)
    assert found.verdict is Verdict.BUG, str(found)
    assert found.leaf is not None
    assert found.leaf.symptom is symptom


# ── where its rounding is as unlike eager's as can be ────────────────────────────────────────────────────


def flips(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 37.3 + 0.1).floor(), (x * 12.7 + 0.3).long(), x * 1.1 > 0.25


RIGHT: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "the tail of gelu": (F.gelu, torch.linspace(-6, -4, 2000)),
    "a million flips in bf16": (flips, randn(1_000_000, dtype=torch.bfloat16)),
    "fp16 that overflows": (lambda x: (x * x).softmax(-1) + (x * x) / (x * x + 1), randn(64, 64).mul(300).half()),
    "a convolution in training": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        randn(4, 3, 8, 8),
    ),
    "dropout of ill-conditioned values": (lambda x: F.dropout(F.layer_norm(x + 100, (64,)), 0.9) * 3, randn(8, 64)),
    "coins": (lambda x: torch.bernoulli(x.sigmoid()) * x.exp(), randn(40, 20)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_inductor_compiles_right_is_noise(name: str) -> None:
    """Covers: U10, U12"""
    program, x = RIGHT[name]
    found = judge_inductor(program, [x])
    assert found.verdict is Verdict.NOISE, str(found)
    assert any(leaf.noise or leaf.flips or leaf.distribution for leaf in found.leaves), "equal by chance"


def test_a_coarser_formula_is_not_called_a_bug() -> None:
    """Covers: U12. Inductor computes expm1 as exp(x) - 1, in vectors."""
    x = torch.cat([randn(400), randn(112) * 1e-4])
    found = judge_inductor(F.elu, [x])
    assert found.verdict is Verdict.UNKNOWN, str(found)
    assert "coarse formula" in found.reason

"""`judge` on what Inductor really compiles, where its rounding is as unlike eager's as can be.

`test_verdicts_inductor.py` has the planted faults and the bugs of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchsleuth.compare import Verdict, judge

pytestmark = pytest.mark.inductor


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


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
    found = judge(program, torch.compile(program), [x])
    assert found.verdict is Verdict.NOISE, str(found)
    assert any(leaf.noise or leaf.flips or leaf.distribution for leaf in found.leaves), "equal by chance"


def test_a_coarser_formula_is_not_called_a_bug() -> None:
    """Covers: U12. Inductor computes expm1 as exp(x) - 1, in vectors."""
    x = torch.cat([randn(400), randn(112) * 1e-4])
    found = judge(F.elu, torch.compile(F.elu), [x])
    assert found.verdict is Verdict.UNKNOWN, str(found)
    assert "coarse formula" in found.reason

"""`sleuth demo`: the main job, on something built in.

A transformer block is compiled with Inductor while one of Inductor's own test faults is switched on, run beside
eager, and judged. The faults are torch's (`inject_relu_bug_TESTING_ONLY` and its like), so what is caught is
wrong code that a real compiler really generated.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

from rich.console import Console

from torchsleuth import torch_compat
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Word

if TYPE_CHECKING:
    import torch


class Fault(Word):
    """A fault that Inductor can be told to make."""

    RELU = "relu"
    LOG1P = "log1p"
    NONE = "none"


def run(console: Console, *, fault: Fault, dropout: float) -> int:
    """Compile, judge, print. 0: the judgement is what it should be, 1: it is not."""
    _require_compiler()
    console.print("Loading torch …", style="dim")
    import torch

    from torchsleuth.compare import Verdict, judge
    from torchsleuth.report.judgement import render_judgement

    torch.manual_seed(0)
    model = build_block("log1p" if fault is Fault.LOG1P else "relu", dropout)
    inputs = [torch.randn(2, 16, 64)]
    planted = "no fault" if fault is Fault.NONE else f"its {fault.value} made wrong on purpose"
    console.print(f"Compiling a transformer block with Inductor ({planted}) and running it beside eager …", style="dim")
    began = time.perf_counter()
    options = {} if fault is Fault.NONE else {f"cpp.inject_{fault.value}_bug_TESTING_ONLY": "accuracy"}
    with torch_compat.inductor_config_patch(**options):
        torch.compiler.reset()
        judgement = judge(model, torch.compile(model), inputs)
    torch.compiler.reset()
    console.print(render_judgement(judgement, title=f"transformer block, Inductor, {planted}"))
    took = time.perf_counter() - began
    expected = Verdict.NOISE if fault is Fault.NONE else Verdict.BUG
    console.print(f"{judgement.runs} runs in {took:.0f} s.", style="dim", highlight=False)
    if judgement.verdict is not expected:
        console.print(f"[bold red]Expected {expected}.[/] Please report this with the panel above.")
        return 1
    console.print(f"Next: [bold]{_next(fault, dropout)}[/]", highlight=False)
    return 0


def build_block(activation: str, dropout: float) -> torch.nn.Module:
    """A pre-norm transformer block: attention and a two-layer perceptron, each with its residual."""
    import torch
    from torch import nn

    class TransformerBlock(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.attention_norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.project = nn.Linear(width, width)
            self.mlp_norm = nn.LayerNorm(width)
            self.widen = nn.Linear(width, 4 * width)
            self.narrow = nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attend(self.attention_norm(x))
            hidden = self.widen(self.mlp_norm(x))
            hidden = torch.relu(hidden) if activation == "relu" else torch.log1p(hidden.abs())
            out: torch.Tensor = x + self.narrow(nn.functional.dropout(hidden, dropout, self.training))
            return out

        def attend(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, width = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            out: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
            return out

    return TransformerBlock(width=64, heads=4)


def _next(fault: Fault, dropout: float) -> str:
    """The demo in another colour; its last stop is the examination of the user's own machine."""
    if fault is Fault.RELU:
        return "sleuth demo --fault none" if not dropout else "sleuth doctor"
    if fault is Fault.NONE:
        return "sleuth demo --fault relu --dropout 0.1" if not dropout else "sleuth doctor"
    return "sleuth demo --fault none"


def _require_compiler() -> None:
    compiler = (os.environ.get("CXX") or "g++").split()[0]
    if shutil.which(compiler) is None:
        raise SleuthError(
            "the demo needs a C++ compiler",
            cause=f"Inductor compiles its CPU code with {compiler}, which is not there",
            remedy="install g++, or name a compiler in the environment variable CXX",
        )

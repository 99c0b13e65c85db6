"""Small programs that watching must not disturb, and what can be seen of a run of one: everything.

seen = observe(SAMPLES["dropout"], "inductor")          code, results, gradients, buffers, inputs, generators
seen.differences(observe(SAMPLES["dropout"], watch("inductor", level=4)))
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch._functorch.aot_autograd as aot_autograd
import torch.nn.functional as F
from torch import nn
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache
from torch._inductor.graph import GraphLowering
from torch.utils.checkpoint import checkpoint

from corpus import Cube
from round_trip import bitwise, normalised

STEPS = 2
SAMPLES: dict[str, Callable[[], Sample]] = {}


@dataclass
class Sample:
    """A program, made anew for each run. `trains`: each step runs backward."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    module: nn.Module | None = None
    """Whose parameters and buffers are looked at."""
    trains: bool = True
    dynamic: bool | None = False
    graphs: int = 1
    """How many graphs Dynamo makes of it."""

    @property
    def compiled_graphs(self) -> int:
        """How many graphs AOT makes of those: forward, and backward if there is one."""
        return self.graphs * (2 if self.trains else 1)


@dataclass
class Seen:
    """All that a run of a program left behind."""

    code: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def differences(self, other: Seen) -> list[str]:
        """What is not the same there, bit for bit; empty if all is. Modules of code may be made in another order."""
        names = dict.fromkeys((*self.values, *other.values))
        missing = "there is none"
        return [
            *difflib.unified_diff(_lines(self.code), _lines(other.code), "code", "code there", n=0, lineterm=""),
            *(name for name in names if not bitwise(self.values.get(name, missing), other.values.get(name, missing))),
        ]


def _lines(code: list[str]) -> list[str]:
    return [line for text in sorted(code) for line in text.splitlines()]


# ---- looking -----------------------------------------------------------------------------------------------


def observe(make: Callable[[], Sample], backend: Any) -> Seen:
    """Compile a program in which nothing is known of earlier ones, run its steps, and look at everything."""
    seen = Seen()
    seed()
    sample = make()
    seed()
    inputs = tuple(_input(value) for value in sample.inputs)
    with generated_code(seen.code):
        compiled = torch.compile(sample.function, backend=backend, dynamic=sample.dynamic)
        for step in range(STEPS):
            with contextlib.nullcontext() if sample.trains else torch.no_grad():
                result = compiled(*inputs)
            if sample.trains:
                _loss(result).backward()
            for name, value in _left(result, inputs, sample.module):
                seen.values[f"{name}, step {step}"] = value
    return seen


def _left(result: Any, inputs: tuple[Any, ...], module: nn.Module | None) -> Iterator[tuple[str, Any]]:
    results = [*result] if isinstance(result, (tuple, list)) else [result]
    tensors = {f"result {number}": value for number, value in enumerate(results)}
    tensors |= {f"input {number}": value for number, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    if module is not None:
        tensors |= {f"parameter {name}": value for name, value in module.named_parameters()}
        tensors |= {f"buffer {name}": value for name, value in module.named_buffers()}
    storages: list[int] = []
    for name, value in tensors.items():
        yield name, value.detach().clone(memory_format=torch.preserve_format)
        yield f"stride of {name}", (*value.stride(), value.storage_offset(), value.requires_grad, value._version)
        if value.is_leaf and value.grad is not None:
            yield f"gradient of {name}", value.grad.detach().clone()
        storages.append(value.untyped_storage().data_ptr())
    yield "who shares memory", tuple(storages.index(each) for each in storages)
    yield "torch's generator", torch.get_rng_state()
    yield "Python's generator", random.getstate()
    yield "numpy's generator", str(np.random.get_state())
    yield "modes", (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def _input(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _loss(result: Any) -> torch.Tensor:
    results = result if isinstance(result, (tuple, list)) else [result]
    losses = [each.float().pow(2).sum() for each in results if each.requires_grad]
    return torch.stack(losses).sum()


@contextlib.contextmanager
def generated_code(code: list[str]) -> Iterator[None]:
    """Inside, Inductor generates code for every graph, however often it has seen it, and all of it is noted.

    Its cache and AOT's are there, as ever, but empty. What g++ made of equal code is used again.
    """
    torch._dynamo.reset()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(FxGraphCache, "_get_tmp_dir", return_value=os.path.join(folder, "inductor")),
        mock.patch.object(AOTAutogradCache, "_get_tmp_dir", return_value=os.path.join(folder, "aot")),
        mock.patch.object(GraphLowering, "save_output_code", lambda text: code.append(normalised(text))),
        mock.patch.object(aot_autograd, "AOT_COUNTER", itertools.count()),  # it is in the first line of the code
    ):
        yield


# ---- programs ----------------------------------------------------------------------------------------------


def sample(make: Callable[[], Sample]) -> Callable[[], Sample]:
    SAMPLES[make.__name__] = make
    return make


def of_module(module: nn.Module, *inputs: Any, **more: Any) -> Sample:
    return Sample(module, inputs, module, **more)


@sample
def mlp() -> Sample:
    return of_module(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(6, 8))


@sample
def convolution_and_batch_norm() -> Sample:
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return of_module(layers, torch.randn(2, 2, 6, 6, requires_grad=True))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.3)
        return F.dropout(scores @ v, 0.1)


@sample
def attention_with_dropout() -> Sample:
    return of_module(_Attention(), torch.randn(2, 5, 8))


@sample
def embedding_and_layer_norm() -> Sample:
    layers = nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    return of_module(layers, torch.randint(0, 20, (2, 5)))


@sample
def dynamic_shapes() -> Sample:
    module = nn.Linear(4, 4)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        half = (x.shape[0] + 1) // 2
        return module(x)[:half] * y.shape[0], torch.cat([x, y]).sum(1)

    return Sample(function, (torch.randn(7, 4), torch.randn(3, 4)), module, dynamic=True)


@sample
def cond() -> Sample:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    return Sample(function, (torch.randn(4, 3),), trains=False)


@sample
def input_written_to() -> Sample:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x[1:].add_(y[:-1] * 2)
        y.mul_(0.5)
        return x.sum(0) + torch.rand(4)

    return Sample(function, (torch.randn(5, 4), torch.randn(5, 4)), trains=False)


@sample
def views_and_aliases() -> Sample:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * y
        return x.view(-1), z, z.t(), y[1:], y

    return Sample(function, (torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)))


@sample
def autocast_to_bf16() -> Sample:
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))

    def function(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)

    return Sample(function, (torch.randn(4, 8),), module)


@sample
def custom_autograd_function() -> Sample:
    return Sample(lambda x: Cube.apply(x).sin() + 1, (torch.randn(4, 3, requires_grad=True),))


@sample
def activation_checkpointing() -> Sample:
    module = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 6))
    return Sample(lambda x: checkpoint(module, x, use_reentrant=False) * 2, (torch.randn(4, 6),), module)


@sample
def graph_break() -> Sample:
    module = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> Any:
        y = module(x).relu()
        torch._dynamo.graph_break()
        return y.cumsum(0) * 2

    return Sample(function, (torch.randn(5, 4),), module, graphs=2)

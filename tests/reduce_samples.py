"""Cases for the tests of passes: recorded from Python functions, as AOT would hand them to a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After


def recorded(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, made_up: bool = False
) -> tuple[schema.Case, MemoryBlobs]:
    """The case of a function on these inputs. `made_up`: there are no values, only recipes."""
    blobs = MemoryBlobs()
    with torch.no_grad():
        gm = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    fakes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    recording = Recording(gm, blobs, fakes)
    return recording.case(
        fakes if made_up else inputs, schema.Compiler(After.AOT, "inductor"), state=schema.State(), stable=True
    ), blobs


def runs(case: schema.Case, blobs: MemoryBlobs) -> list[Any]:
    """What eager makes of the case."""
    reader = GraphReader(case, blobs)
    gm = reader.read()
    gm.graph.lint()
    with torch.no_grad():
        result = gm(*reader.inputs())
    return list(result) if isinstance(result, (tuple, list)) else [result]


def recorded_after_dynamo(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> tuple[schema.Case, MemoryBlobs]:
    """The case of a function as Dynamo hands it to a compiler."""
    found: list[tuple[schema.Case, MemoryBlobs]] = []

    def compiler(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        blobs = MemoryBlobs()
        made = schema.Compiler(After.DYNAMO, "inductor")
        found.append((Recording(gm, blobs, examples).case(examples, made, stable=True), blobs))
        return gm

    torch.compiler.reset()
    torch.compile(function, backend=compiler, fullgraph=True, dynamic=dynamic)(*inputs)
    return found[0]


# ---- assorted programs -------------------------------------------------------------------------------------


def _randn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)


def _attention(x: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    q, k = ((x @ w).view(batch, length, 2, width // 2).transpose(1, 2) for w in (wq, wk))
    return (torch.softmax(q @ k.transpose(-1, -2), -1) @ q).transpose(1, 2).reshape(batch, length, width) + x


def _epilogue(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(y * 2)
    return y + 1


Program: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


def programs() -> dict[str, Program]:
    """Small programs that use sizes, dtypes and values in many ways."""
    functional = torch.nn.functional
    return {
        "elementwise": (lambda x, y: (x * y).sin() + 1, (_randn(4, 6), _randn(6))),
        "linear": (lambda x, w, b: functional.linear(x, w, b).relu(), (_randn(2, 6, 10), _randn(8, 10), _randn(8))),
        "reductions": (lambda x: (x.sum(1), x.amax(-1, keepdim=True), x.mean((0, 2))), (_randn(4, 6, 3),)),
        "reshapes": (lambda x: x.flatten(1).reshape(2, 4, 9).permute(0, 2, 1).reshape(-1), (_randn(4, 6, 3),)),
        "embedding": (
            lambda i, w: functional.embedding(i, w).sum(-1),
            (torch.arange(15).reshape(3, 5) % 10, _randn(10, 4)),
        ),
        "split": (lambda x: torch.cat([part.sin() for part in x.split(2, 1)], 0), (_randn(4, 6),)),
        "slices": (lambda x: x[:, 1:5] + x[:, 5:9] - x[:, 0:1], (_randn(4, 10),)),
        "convolution": (
            lambda x, w: functional.max_pool2d(functional.conv2d(x, w, padding=1), 2),
            (_randn(2, 3, 8, 8), _randn(4, 3, 3, 3)),
        ),
        "attention": (_attention, (_randn(2, 5, 8), _randn(8, 8), _randn(8, 8))),
        "casts": (
            lambda x, y: (x.to(torch.bfloat16) @ y).to(torch.float64),
            (_randn(4, 6, dtype=torch.float64), _randn(6, 3, dtype=torch.bfloat16)),
        ),
        "epilogue": (_epilogue, (_randn(3, 4), _randn(3, 4))),
        "mask": (
            lambda x, m: torch.where(m, x, x.new_zeros(4, 6)) + torch.full((4, 6), 2.0),
            (_randn(4, 6), _randn(4, 6) > 0),
        ),
        "constant": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), (_randn(4, 3),)),
        "strides": (lambda x, y: x + y, (_randn(6, 4).t(), _randn(8, 12)[2:6, ::2])),
        "complex": (lambda x: torch.view_as_real(x * 2), (_randn(3, 4, dtype=torch.complex64),)),
    }

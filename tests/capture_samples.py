"""Graphs, compilers and backends of known behaviour for the tests of watching."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case.schema import Case
from torchsleuth.case.stores.store import Store


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(x) + y,)


def aot_graph(*shapes: tuple[int, ...]) -> tuple[fx.GraphModule, list[torch.Tensor], list[torch.Tensor]]:
    """A graph as AOT makes it, the fakes that its compiler gets, and real inputs."""
    shapes = shapes or ((3, 4), (3, 4))
    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty(shape) for shape in shapes]
    gm = make_fx(program, tracing_mode="real")(*(torch.randn(shape) for shape in shapes))
    for node, fake in zip(gm.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta["val"] = fake
    return gm, fakes, [torch.randn(shape) for shape in shapes]


class Boxed:
    """A compiled graph: notes what it is called with, empties its list, and does as it was told."""

    def __init__(self, gm: fx.GraphModule, then: Callable[[list[Any]], Any] | None = None) -> None:
        self.gm = gm
        self.then = then
        self.seen: list[list[Any]] = []
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        mine = list(inputs)
        inputs.clear()
        self.seen.append(mine)
        return self.gm(*mine) if self.then is None else self.then(mine)


class Compiler:
    """A compiler of graphs after AOT that does as it was told."""

    def __init__(
        self,
        then: Callable[[list[Any]], Any] | None = None,
        compiling: Callable[[fx.GraphModule], None] | None = None,
    ) -> None:
        self.then = then
        self.compiling = compiling
        self.examples: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.made: list[Boxed] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Boxed:
        """Compiles."""
        self.examples = list(example_inputs)
        self.kwargs = kwargs
        if self.compiling is not None:
            self.compiling(gm)
        self.made.append(Boxed(gm, self.then))
        return self.made[-1]


def cases(store: Path | str) -> list[Case]:
    """Every case of a store, the oldest first."""
    found = Store.open(str(store))
    return [found.load(entry.id) for entry in found.entries()]


def files(store: Path) -> list[str]:
    """The names of all files that are kept in a store, other than its lock."""
    return sorted(path.name for path in store.rglob("*") if path.is_file() and "lock" not in path.name)


# ---- ways to fail ------------------------------------------------------------------------------------------


def raise_error(*_: Any) -> Any:
    raise ZeroDivisionError("the compiled graph divides by zero")


def segfault(*_: Any) -> Any:
    return ctypes.string_at(0)


def hang(*_: Any) -> Any:
    time.sleep(120)


def kill(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def wrong(inputs: list[Any]) -> Any:
    return tuple(value + 1 for value in program(*inputs))

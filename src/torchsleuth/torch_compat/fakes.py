"""Fake tensors, and the surroundings in which a compiler gets them."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
from torchsleuth.torch_compat.names import resolve
from torchsleuth.torch_compat.shapes import symbolic_expr


def fake_mode(shape_env: Any) -> Any:
    """A fresh fake mode over a shape environment."""
    return resolve("FakeTensorMode")(shape_env=shape_env)


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """Inside, operators that refuse fake tensors only raise, and do not log that they do."""
    log = logging.getLogger(resolve("FakeTensorMode").__module__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def shape_env_of(fake: torch.Tensor) -> Any:
    """The ShapeEnv in which a fake tensor was made; None if there is none."""
    return getattr(getattr(fake, "fake_mode", None), "shape_env", None)


def as_fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake of a real tensor, with its sizes as numbers."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def know_as(mode: Any, tensor: torch.Tensor, fake: torch.Tensor) -> None:
    """From now on the fake of a real tensor, in this mode, is this one."""
    mode.fake_tensor_converter.set_tensor_memo(tensor, fake)


def know_item(fake: torch.Tensor, number: Any) -> None:
    """From now on the number in a fake tensor of one element is this symbolic one."""
    fake.item_memo = number  # type: ignore[attr-defined]


def subclass_name(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's own class; None for plain tensors, parameters and their fakes."""
    import torch

    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, resolve("FakeTensor")):
        return None
    return f"{kind.__module__}.{kind.__qualname__}"


def symbols_of(value: Any) -> tuple[Any, frozenset[Any]]:
    """The ShapeEnv of a symbolic number, and the symbols it is made of."""
    node = value.node
    as_made = symbolic_expr(value)
    made_of = frozenset() if as_made is None else frozenset(as_made.free_symbols)
    return getattr(node, "shape_env", None), made_of | node.expr.free_symbols


@contextmanager
def quiet_shapes(shape_env: Any) -> Iterator[None]:
    """Inside, decisions on symbolic sizes are taken on their hints, and leave no guard behind."""
    with shape_env.suppress_guards(), shape_env.ignore_fresh_unbacked_symbols():
        yield


@contextmanager
def tracing(mode: Any, name: str | None = None, donated: Sequence[int] | None = None) -> Iterator[None]:
    """The surroundings in which Inductor expects to be called: a tracing context with that fake mode.

    `name` is what AOTAutograd called the graph; generated code says it in its first line. `donated` are the inputs of a
    backward graph whose memory may be used for something else.
    """
    context = resolve("TracingContext")(mode)
    context.aot_graph_name = None if name is None else [name]
    if donated is not None:
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated))
    with importlib.import_module("torch._guards").tracing(context):
        yield


def donated_inputs() -> tuple[int, ...] | None:
    """Which inputs of the backward graph that is being compiled may be overwritten; None if nobody said."""
    context = resolve("TracingContext").try_get()
    found = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None)
    return None if found is None else tuple(int(index) for index in found)


def aot_name() -> str | None:
    """What AOTAutograd calls the graph that is being compiled ("0_forward"); None if there is none."""
    context = resolve("TracingContext").try_get()
    names = None if context is None else context.aot_graph_name
    return str(names[0]) if isinstance(names, list) and len(names) == 1 else None

"""Compiled functions as programs that can be run again and again, on copies of inputs, to be compared and judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsleuth.compare import clone_inputs


class Hidden:
    """A compiled function whose state is not to be looked for: the graph's own is known."""

    __slots__ = ("program",)

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program

    def __call__(self, *inputs: Any) -> Any:
        return self.program(*inputs)


class Again:
    """A boxed function that may use some of its inputs as scratch memory: of those it gets copies."""

    __slots__ = ("program", "scratch")

    def __init__(self, program: Callable[..., Any], scratch: frozenset[int]) -> None:
        self.program = program
        self.scratch = scratch

    def __call__(self, *inputs: Any) -> Any:
        copies = iter(clone_inputs([inputs[number] for number in sorted(self.scratch)]))
        return self.program([next(copies) if number in self.scratch else value for number, value in enumerate(inputs)])


class Lending:
    """A program that may write to inputs which are leaves: it gets copies of them, and what it wrote is copied back."""

    def __init__(self, program: Callable[..., Any], lent: frozenset[int]) -> None:
        self.program = program
        self.lent = lent

    def __call__(self, *inputs: Any) -> Any:
        given = [_differentiable_copy(value) if number in self.lent else value for number, value in enumerate(inputs)]
        output = self.program(*given)
        with torch.no_grad():
            for number in self.lent:
                inputs[number].copy_(given[number])
        return output


def may_be_lent(value: Any) -> bool:
    """Whether eager lets a program write to this input while gradients are recorded, but not to a leaf like it."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.is_leaf:
        return False
    plain = value.layout == torch.strided and not value.is_nested
    return plain and not any(stride == 0 < size - 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _differentiable_copy(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return empty.copy_(tensor)


def scratch_inputs(inputs: list[Any], written: frozenset[int]) -> frozenset[int]:
    """The inputs that a compiled function may overwrite without a trace: all that share no memory with written ones."""
    storages = {_storage(inputs[number]) for number in written}
    tensors = [number for number, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    return frozenset(number for number in tensors if number not in written and _storage(inputs[number]) not in storages)


def _storage(value: Any) -> int:
    try:
        return int(value.untyped_storage().data_ptr())
    except (AttributeError, NotImplementedError, RuntimeError):
        return id(value)  # sparse and other tensors that have no one storage

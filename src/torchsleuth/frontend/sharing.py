"""Inputs of a graph that share memory with one that the graph writes to.

Run node by node, a graph minds no such thing: each operator sees what lies there then. A compiler does: it makes a
graph without writes of it, in which who shares memory with whom, and where, is as it was in the example inputs. So for
every backend but "eager" a later call has to be alike in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsleuth import torch_compat


def memory(tensor: torch.Tensor) -> int:
    """Equal for tensors of one storage."""
    try:
        return torch_compat.storage_key(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return id(tensor)


class Sharing:
    """Which inputs share memory with those that a graph writes to, and where they lie in it."""

    def __init__(self, written: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        self._written = written
        self.found = self._of(tensors)

    @classmethod
    def of(cls, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> Sharing | None:
        """None if there is nothing to find: no input is written to, or there is no other."""
        memories = set(map(memory, written))
        places = [number for number, each in enumerate(inputs) if memory(each) in memories]
        return cls(places, inputs) if places and len(inputs) > 1 else None

    def holds(self, *tensors: torch.Tensor) -> bool:
        """Whether it is the same with these."""
        return self._of(tensors) == self.found

    def _of(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
        keys = list(map(memory, tensors))
        together = ([number for number, key in enumerate(keys) if key == keys[place]] for place in self._written)
        return [tuple((number, *_where(tensors[number])) for number in each) for each in together if len(each) > 1]


def _where(tensor: torch.Tensor) -> tuple[Any, ...]:
    base = tensor._base
    return (tensor.storage_offset(), None if base is None else (tuple(base.shape), base.stride(), base.dtype))

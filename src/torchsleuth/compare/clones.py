"""Copies of a program's inputs that behave as the inputs do: strides, sharing and `requires_grad` are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .tree import map_tensors, tensors_in


def clone_inputs(inputs: Sequence[Any], dtype: Callable[[torch.dtype], torch.dtype] | None = None) -> list[Any]:
    """Copies of the inputs as leaves: values, strides and `requires_grad` kept; what shared memory still does.

    Tensors are copied inside lists, tuples, dicts and dataclasses too. Anything else is passed on as it is.
    `dtype` says which dtype each one becomes (None: it keeps its own).
    """
    return list(_Cloner(tensors_in(inputs), dtype or _unchanged).clone(list(inputs)))


class _Cloner:
    """Clones tensors; those that share a storage are laid out on one copy of it."""

    def __init__(self, tensors: list[torch.Tensor], dtype: Callable[[torch.dtype], torch.dtype]) -> None:
        self.dtype = dtype
        self.clones: dict[int, torch.Tensor] = {}
        self.storages: dict[tuple[int, torch.dtype | None], torch.UntypedStorage] = {}
        self.owners: dict[int, int] = {}
        for tensor in {id(t): t for t in tensors}.values():
            if _has_plain_storage(tensor):
                key = tensor.untyped_storage().data_ptr()
                self.owners[key] = self.owners.get(key, 0) + 1

    def clone(self, value: Any) -> Any:
        return map_tensors(self._clone_tensor, value)

    def _clone_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.clones:
            copied = self._copy(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=tensor.requires_grad)
            elif tensor.requires_grad:
                copied = copied.requires_grad_(True)
            self.clones[id(tensor)] = copied
        return self.clones[id(tensor)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype(tensor.dtype)
        if not _has_plain_storage(tensor) or tensor.is_conj() or tensor.is_neg():
            return tensor.clone() if dtype == tensor.dtype else tensor.to(dtype)
        if self.owners.get(tensor.untyped_storage().data_ptr(), 0) > 1:
            storage, offset = self._storage(tensor, dtype), tensor.storage_offset()
        elif tensor.is_contiguous() and dtype == tensor.dtype:
            return tensor.clone()
        else:
            storage, offset = _span(tensor).to(dtype, copy=True).untyped_storage(), 0
        empty = torch.empty(0, dtype=dtype, device=tensor.device)
        return empty.set_(storage, offset, tensor.shape, tensor.stride())

    def _storage(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.UntypedStorage:
        """The copy of a tensor's storage. In another dtype, it is shared only by those that had one dtype."""
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), None if dtype == tensor.dtype else tensor.dtype)
        if key not in self.storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
            self.storages[key] = storage.clone() if dtype == tensor.dtype else whole.to(dtype).untyped_storage()
        return self.storages[key]


def _unchanged(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _has_plain_storage(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return (
        plain
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, with what lies between (a program may address that)."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,))

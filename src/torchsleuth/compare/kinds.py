"""What kind of tensor a leaf is, and how each kind is brought down to plain numbers.

Sparse tensors to the values on the union of their indices (never to a dense copy), nested ones to their
components, quantised ones to the numbers they stand for, subclasses to the tensors inside, bare bits to integers.
"""

from __future__ import annotations

from typing import Any

import torch

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
"""The layouts of sparse tensors."""


def is_floating(value: Any) -> bool:
    """Whether a leaf is floating point (complex included): what rounding can touch."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex() or value.is_quantized
    if type(value).__module__ == "numpy":
        return getattr(value, "dtype", None) is not None and value.dtype.kind in "fc"
    return isinstance(value, (float, complex))


def widen(value: torch.Tensor) -> torch.Tensor:
    """Floating point to fp64, complex to complex128, anything else as it is."""
    if value.is_complex():
        return value.to(torch.complex128)
    return value.to(torch.float64) if value.is_floating_point() else value


def dense_parts(path: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor of any kind as strided tensors by path: components of a nested one, values of a sparse one, …"""
    if tensor.is_nested:
        parts = {f"{path}.unbind()[{i}]": part for i, part in enumerate(tensor.unbind())}
    elif (names := inner_tensors(tensor)) is not None:
        parts = {f"{path}.{name}": getattr(tensor, name) for name in names}
    elif tensor.layout != torch.strided:
        return {path: tensor.detach().to_dense()}
    else:
        return {path: tensor.detach().dequantize() if tensor.is_quantized else tensor.detach()}
    return {name: leaf for part_path, part in parts.items() for name, leaf in dense_parts(part_path, part).items()}


def kind(tensor: torch.Tensor) -> str:
    """Layout, quantisation and subclass of a tensor, in words that are compared and shown."""
    words = [str(tensor.layout).removeprefix("torch.")]
    if tensor.is_nested:
        words.insert(0, "nested")
    if tensor.layout == torch.sparse_coo:
        words.append(f"with {tensor.dense_dim()} dense dimensions")
    if tensor.is_quantized:
        words.insert(0, f"quantised ({tensor.qscheme()})")
    if inner_tensors(tensor) is not None:
        words.append(type(tensor).__qualname__)
    return " ".join(words)


def inner_tensors(tensor: torch.Tensor) -> list[str] | None:
    """Names of the tensors inside a wrapper subclass; None for a plain tensor (and for nested ones)."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or tensor.is_nested:
        return None
    return list(flatten()[0])


def is_reference(fp64: torch.Tensor, ref: torch.Tensor) -> bool:
    """Whether a tensor can serve as the exact answer for `ref`: twice as wide as anything else, same shape."""
    wide = torch.complex128 if ref.is_complex() else torch.float64
    return fp64.dtype == wide and fp64.shape == ref.shape and fp64.layout == ref.layout


def measurable(tensor: torch.Tensor) -> bool:
    """Whether the dtype converts to fp64 (packed sub-byte floats do not)."""
    try:
        torch.empty(1, dtype=tensor.dtype).to(torch.complex128 if tensor.is_complex() else torch.float64)
    except (RuntimeError, NotImplementedError):
        return False
    return True


_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def bits_as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Bare bits (`torch.bits8`) and packed integers (`torch.uint4`) as unsigned ones; any other tensor as it is."""
    numbers = (torch.bool, *_SIGNED.values(), *_UNSIGNED.values())
    return tensor if tensor.dtype in numbers else tensor.view(_UNSIGNED[tensor.element_size()])


def as_signed(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as a signed integer: unsigned dtypes lack most kernels."""
    if tensor.dtype == torch.bool or tensor.dtype in _SIGNED.values():
        return tensor
    return tensor.view(_SIGNED[tensor.element_size()])


def to_coo(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()


def align_sparse(sides: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The union of the sides' indices, and each side's values on it (zero where it has none).

    Values are only moved, never added up (torch's sum of a complex infinity and zero is NaN), and no dense copy
    is made.
    """
    parts = [side.coalesce() for side in sides]
    sizes = tuple(sides[0].shape[: sides[0].sparse_dim()])
    flat = [_ravel(part.indices(), sizes) for part in parts]
    union, places = torch.cat(flat).unique(return_inverse=True)
    aligned = []
    for part, place in zip(parts, places.split([len(each) for each in flat]), strict=True):
        values = part.values()
        spread = values.new_zeros((len(union), *values.shape[1:]))
        spread[place] = values
        aligned.append(spread)
    return _unravel(union, sizes), aligned


def _ravel(indices: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Row-major places of the indices, one per column."""
    places = indices.new_zeros(indices.shape[1])
    for size, row in zip(sizes, indices, strict=True):
        places = places * size + row
    return places


def _unravel(places: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """The other way about."""
    indices = places.new_zeros((len(sizes), len(places)))
    for dim, size in reversed(list(enumerate(sizes))):
        indices[dim] = places % size
        places = places // size
    return indices

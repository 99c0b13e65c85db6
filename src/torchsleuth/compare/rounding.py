"""Eager with its roundings perturbed: what else could it have computed, had it rounded differently?

A compiler may reorder sums, fuse operators and keep intermediates wider. None of that is a bug, and all of
it amounts to other roundings. `perturbed(seed)` runs a program with every inexact result moved by about one
unit in its last place, up or down at random (Monte Carlo arithmetic, at the grain of operators). The spread of
a few such runs is the noise of *this* program on *these* inputs: large where it cancels or sits on the edge of a
comparison, zero where it only moves data or counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchsleuth import torch_compat

_MATRIX = frozenset("mm addmm bmm baddbmm addmv mv dot vdot linear matmul".split())
_EXACT = frozenset(
    # data movement
    "alias arange as_strided_scatter cat clone constant_pad_nd copy detach diag_embed diagonal_scatter embedding "
    "empty empty_like empty_strided expand_copy eye fill flip full full_like gather im2col index index_select lift "
    "lift_fresh masked_fill masked_scatter masked_select narrow_copy new_empty new_empty_strided new_full new_ones "
    "new_zeros ones ones_like permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d "
    "reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d resize roll rot90 scalar_tensor "
    "scatter select_scatter slice_scatter split_copy squeeze_copy stack take t_copy transpose_copy tril triu "
    "unfold_copy _unsafe_index unsqueeze_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy "
    "where zero zeros zeros_like _local_scalar_dense _unsafe_view _reshape_copy "
    # choosing among values, and rounding to integers
    "abs amax amin aminmax ceil clamp clamp_max clamp_min copysign cummax cummin floor fmax fmin frexp hardtanh "
    "kthvalue max max_pool2d_with_indices max_pool3d_with_indices maximum median min minimum mode nan_to_num "
    "nanmedian neg relu round sgn sign sort threshold topk trunc conj _conj _conj_physical real imag "
    # bits and truth
    "bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_not logical_xor isnan isinf eq ne "
    "lt le gt ge signbit".split()
)
_FP32_EPS = torch.finfo(torch.float32).eps


@contextmanager
def perturbed(seed: int) -> Iterator[None]:
    """Programs run inside round at random; the program's own random numbers are not touched."""
    noise = RoundingNoise(seed)
    with torch_compat.dispatch_mode(noise.call):
        yield


class RoundingNoise:
    """Calls operators and moves what they returned by about one unit in the last place."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._rounds(operator, args, kwargs):
            return operator(*args, **kwargs)
        length = reduction_length(operator, args)
        if torch_compat.op_is_mutable(operator):
            result = operator(*args, **kwargs)
            for tensor in _tensors(result):
                if _is_float(tensor):
                    tensor.copy_(self._moved(tensor, length))
            return result
        args = torch_compat.tree_map(self._move_input, args)
        result = operator(*args, **kwargs)
        return torch_compat.tree_map(lambda leaf: self._moved(leaf, length), result)

    def _rounds(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not torch_compat.is_op_overload(operator) or torch_compat.op_is_view(operator):
            return False
        name = base_name(operator)
        if name == "_to_copy":
            return _narrows(args[0], kwargs.get("dtype"))
        if name == "copy":
            return len(args) > 1 and isinstance(args[1], torch.Tensor) and _narrows(args[1], args[0].dtype)
        if name in ("index_put", "_unsafe_index_put", "put"):
            return bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
        seeded = torch.Tag.nondeterministic_seeded in torch_compat.op_tags(operator)
        draws = seeded and not any(_is_float(value) for value in _tensors(args))
        return name not in _EXACT and not draws

    def _move_input(self, value: Any) -> Any:
        """An input, moved: then a kernel's own roundings fall differently, and cancelling sums show it.

        Narrow inputs are left alone. Kernels compute them in fp32, whose unit they cannot express.
        """
        if isinstance(value, torch.Tensor) and value.dtype in (
            torch.float32,
            torch.float64,
            torch.complex64,
            torch.complex128,
        ):
            return self._moved(value, 1)
        return value

    def _moved(self, value: Any, length: int) -> Any:
        if (
            not isinstance(value, torch.Tensor)
            or not _is_float(value)
            or value.numel() == 0
            or value.layout != torch.strided
        ):
            return value
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj()).clone()
            return torch.view_as_complex(self._moved(parts, length)) if not _integral(parts) else value
        if _integral(value):
            return value
        wide = value.to(torch.float64)
        eps = torch.finfo(value.dtype).eps
        summing = math.sqrt(length) / 2 * min(eps, _FP32_EPS) if length > 1 else 0.0
        unit = wide.abs() * (eps + summing)
        if length > 1:
            finite = wide.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            unit = unit + summing * finite.square().mean().sqrt()
        moved = wide + unit * self._signs(value)
        return torch.where(wide.isfinite(), moved, wide).to(value.dtype)

    def _signs(self, like: torch.Tensor) -> torch.Tensor:
        generator = self.generators.get(like.device)
        if generator is None:
            generator = torch.Generator(device=like.device).manual_seed(self.seed)
            self.generators[like.device] = generator
        coin = torch.empty(like.shape, dtype=torch.float64, device=like.device)
        return coin.uniform_(-1.0, 1.0, generator=generator)


def reduction_length(operator: Any, args: tuple[Any, ...]) -> int:
    """Roughly how many numbers go into one element of the result; 1 for pointwise operators."""
    if torch.Tag.pointwise in torch_compat.op_tags(operator) or base_name(operator) in ("_to_copy", "copy"):
        return 1
    tensors = [value for value in _tensors(args) if _is_float(value) and value.ndim]
    if not tensors:
        return 1
    name = base_name(operator)
    if name.startswith("convolution") and len(tensors) > 1:
        return max(1, tensors[1].numel() // max(1, tensors[1].shape[0]))
    if name in _MATRIX or "attention" in name:
        return max(tensor.shape[-1] for tensor in tensors)
    if torch.Tag.reduction in torch_compat.op_tags(operator):
        return max(1, max(tensor.numel() for tensor in tensors))
    return max(tensor.shape[-1] for tensor in tensors)


def base_name(operator: Any) -> str:
    """`aten.add_.Tensor` → `add`: the operator without namespace, overload and in-place mark."""
    return str(getattr(operator, "__name__", operator)).partition(".")[0].removesuffix("_")


def _narrows(value: Any, dtype: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return False
    if not value.is_floating_point():
        return value.dtype in (torch.int32, torch.int64)
    return torch.finfo(dtype).eps > torch.finfo(value.dtype).eps


def _integral(value: torch.Tensor) -> bool:
    """Counts and masks are exact in floating point: rounding never touches them."""
    return bool((value == value.round()).logical_or_(value.isnan()).all())


def _is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for child in value for tensor in _tensors(child)]
    return []

"""Eager with its roundings perturbed: what else could it have computed, had it rounded differently?

A compiler may reorder sums, fuse operators, split fused ones, and keep intermediates wider. None of that is a bug,
and all of it amounts to other roundings. `perturbed(seed)` runs a program with every inexact result moved at
random, about as far as rounding could have moved it (Monte Carlo arithmetic, at the grain of operators). The
spread of some such runs is the noise of *this* program on *these* inputs: large where it cancels or sits on the
edge of a comparison, zero where it only moves data or counts.

How far is that? One unit in the last place for bf16 and its like: their kernels compute in fp32 and round once.
`UNITS` of them for fp32 and wider, whose kernels are approximations. More for a long sum, whose terms may be
added one after another: there the inputs are moved too, so that a sum that cancels shows it. What happens inside
a fused kernel is reached by writing it out in simpler operators (`decompositions`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from torchsleuth import torch_compat

from .decompositions import Decompositions
from .rng import is_random

UNITS = 4.0
"""Kernels of fp32 and wider types are good to this many units in the last place; the spread shows that far."""
_POOL = 65_521
"""Random numbers drawn per run; they are used again and again from another place (a prime: no rows in step)."""
_FP32_EPS = torch.finfo(torch.float32).eps
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_MATRIX = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "linear": 0,
    "matmul": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
}
"""Products of matrices, and which argument is the left factor."""
_EXACT = frozenset(
    # data movement
    "alias arange as_strided_scatter cat channel_shuffle clone constant_pad_nd copy detach diag_embed diagonal_copy "
    "diagonal_scatter embedding empty empty_like empty_permuted empty_strided expand_copy eye fill flip full full_like "
    "gather im2col index index_copy index_fill index_select lift lift_fresh lift_fresh_copy masked_fill masked_scatter "
    "masked_select max_unpool2d max_unpool3d narrow_copy native_channel_shuffle new_empty new_empty_strided new_full "
    "new_ones new_zeros ones ones_like pad permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d "
    "reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d "
    "resize roll rot90 scalar_tensor scatter select_backward select_scatter slice_backward slice_scatter "
    "split_copy split_with_sizes_copy squeeze_copy stack take t_copy transpose_copy tril triu unbind_copy unfold_copy "
    "_unsafe_index _unsafe_masked_index unsqueeze_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "view_as_real_copy view_copy where zero zeros zeros_like _local_scalar_dense _unsafe_view _reshape_copy "
    "broadcast_in_dim collapse iota "
    # choosing among values, and rounding to integers
    "abs amax amin aminmax ceil clamp clamp_max clamp_min copysign cummax cummin floor fmax fmin frexp hardtanh "
    "heaviside histc kthvalue max max_pool2d_with_indices max_pool3d_with_indices maximum median min minimum mode "
    "nan_to_num nanmedian neg nextafter relu relu6 round sgn sign sort threshold threshold_backward topk trunc "
    "unique_consecutive unique_dim _unique2 conj _conj _conj_physical real imag "
    # bits and truth
    "bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_not logical_xor isfinite isnan "
    "isinf eq ne lt le gt ge equal signbit".split()
)


@contextmanager
def perturbed(seed: int, decompositions: Decompositions | None = None) -> Iterator[None]:
    """Programs run inside round at random; the program's own random numbers are not touched.

    With `decompositions`, fused operators are written out in simpler ones, which round each for itself.
    """
    noise = RoundingNoise(seed, decompositions)
    with torch_compat.dispatch_mode(noise.call, noise.call_higher_order):
        yield


class RoundingNoise:
    """Calls operators and moves what goes in and what comes out by as much as rounding might."""

    def __init__(self, seed: int, decompositions: Decompositions | None = None) -> None:
        self.seed = seed
        self.decompositions = decompositions
        self.places = random.Random(seed)
        self.pools: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not rounds(operator, args, kwargs):
            return operator(*args, **kwargs)
        if not is_random(operator):  # these may be called twice
            if self.decompositions and (written := self.decompositions.find(operator, args, kwargs)):
                return self._call_written(written, operator, args, kwargs)
            if _is_narrow_sum(operator, args, kwargs):
                return self._call_wide(operator, args, kwargs)
        return self._call_moved(operator, args, kwargs)

    def call_higher_order(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of an operator that takes functions only these can be seen; it may do more (attention: two products)."""
        length = max((max(tensor.shape[-2:]) for tensor in _floats(args) if tensor.ndim), default=1)
        inputs = torch_compat.tree_map(lambda leaf: self._moved_input(leaf, length), args)
        result = operator(*inputs, **kwargs)
        return torch_compat.tree_map(lambda leaf: self._moved(leaf, length), result)

    def _call_moved(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator on inputs that are moved, and what it computes moved again."""
        length = summands(operator, args, kwargs)
        targets = _targets(operator, args, kwargs)
        before = [target.clone() for target in targets]
        inputs = torch_compat.tree_map(
            lambda leaf: leaf if _is_one_of(leaf, targets) else self._moved_input(leaf, length), args
        )
        result = operator(*inputs, **kwargs)
        if not _floats(result) and not _writes(operator, args, kwargs) and not is_random(operator):
            return operator(*args, **kwargs)  # it compares or searches, and its inputs are what they are
        if _counts(operator, args, kwargs, result):
            return result
        for target, old in zip(targets, before, strict=True):
            # What the operator left alone is no result of its. (In eager, a write through a view is seen by all.)
            target.copy_(torch.where(target == old, target, self._moved(target, length)))
        return torch_compat.tree_map(
            lambda leaf: leaf if _is_one_of(leaf, targets) else self._moved(leaf, length), result
        )

    def _call_written(
        self, written: Callable[..., Any], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The operator written out in simpler ones, each of which rounds; as for dtypes and strides, as it is."""
        plain = operator(*(_cloned(args) if _writes(operator, args, kwargs) else args), **kwargs)
        inner = RoundingNoise(self.places.getrandbits(32))  # not written out any further
        with torch_compat.dispatch_mode(inner.call), _no_autocast(args):
            return _pour(written(*args, **kwargs), plain)

    def _call_wide(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A sum of narrow numbers, as kernels add them: in fp32, rounded once. There its terms can be moved."""
        plain = operator(*args, **kwargs)
        length = summands(operator, args, kwargs)
        wide = torch_compat.tree_map(lambda leaf: leaf.float() if _is_narrow(leaf) else leaf, args)
        inputs = torch_compat.tree_map(lambda leaf: self._moved_input(leaf, length), wide)
        try:
            with _no_autocast(args):
                result = _pour(operator(*inputs, **kwargs), plain)
        except (RuntimeError, TypeError):  # it insists on narrow inputs (or on what goes with them)
            result = plain
        return torch_compat.tree_map(lambda leaf: self._moved(leaf, length), result)

    def _moved_input(self, value: Any, length: int) -> Any:
        """An input, moved by one unit (more in a sum). Narrow ones stay: their kernels compute with finer units."""
        if isinstance(value, torch.Tensor) and _is_float(value) and value.dtype in _WIDE and not _is_integral(value):
            return self._move(value, _eps(value) + summing(length, _eps(value)))
        return value

    def _moved(self, value: Any, length: int) -> Any:
        """A result, moved by as much as another kernel's rounding might."""
        if isinstance(value, torch.Tensor) and _is_float(value):
            eps = _eps(value)
            return self._move(value, (UNITS if value.dtype in _WIDE else 1.0) * eps + summing(length, eps))
        return value

    def _move(self, value: torch.Tensor, amount: float) -> torch.Tensor:
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj()).clone()
            return torch.view_as_complex(self._move(parts, amount))
        wide = value if value.dtype in _WIDE else value.float()
        moved = wide * self._coins(wide).mul(amount).add_(1.0)  # in this order: the strides of the first are kept
        return moved.to(value.dtype)

    def _coins(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers between -1 and 1, one for each element: a new piece of the pool each time."""
        key = (like.device, like.dtype)
        if key not in self.pools:
            generator = torch.Generator(device=like.device).manual_seed(self.seed)
            self.pools[key] = torch.empty(_POOL, dtype=like.dtype, device=like.device).uniform_(
                -1.0, 1.0, generator=generator
            )
        place, numel = self.places.randrange(_POOL), like.numel()
        laps = -(-(place + numel) // _POOL)
        return self.pools[key].repeat(laps)[place : place + numel].view(like.shape)


def rounds(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what an operator returns may be inexact."""
    if not torch_compat.is_op_overload(operator) or torch_compat.op_is_view(operator):
        return False
    if torch.Tag.inplace_view in torch_compat.op_tags(operator):
        return False  # `transpose_` and its like
    name = _plain_name(operator)
    if name == "_to_copy":
        return _narrows(args[0], kwargs.get("dtype"))
    if name == "convert_element_type":
        return _narrows(args[0], args[1])
    if name in ("copy", "copy_to"):
        return len(args) > 1 and isinstance(args[1], torch.Tensor) and _narrows(args[1], args[0].dtype)
    if name in ("index_put", "_unsafe_index_put", "put"):
        return bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
    data = args[1:] if torch_compat.op_is_mutable(operator) else args  # `uniform_` overwrites what it is given
    draws = is_random(operator) and not _floats(data)
    return name not in _EXACT and not draws


def summands(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Roughly how many numbers go into one element of the result; 1 for pointwise operators."""
    name, tags = _plain_name(operator), _tags(operator)
    tensors = [tensor for tensor in _floats(args) if tensor.ndim]
    if torch.Tag.pointwise in tags or name in ("_to_copy", "copy") or not tensors:
        return 1
    if name in _MATRIX:
        return int(args[_MATRIX[name]].shape[-1])
    if name.startswith("convolution") and len(tensors) > 1:
        channels = max(1, tensors[1].shape[0])
        pixels = tensors[0].numel() // channels if name == "convolution_backward" else 1
        return max(1, tensors[1].numel() // channels, pixels)
    if "attention" in name:
        return max(max(tensor.shape[-2:]) for tensor in tensors)
    dims = next((one.value for one in torch_compat.op_arguments(operator, args, kwargs) if one.name in _DIMS), None)
    if isinstance(dims, int) or (isinstance(dims, (list, tuple)) and dims):
        chosen = [dims] if isinstance(dims, int) else dims
        return max(1, *(_extent(tensor, chosen) for tensor in tensors))
    if torch.Tag.reduction in tags:
        return max(1, *(tensor.numel() for tensor in tensors))
    return max(1, *(tensor.shape[-1] for tensor in tensors))


_DIMS = ("dim", "dims")


def summing(length: int, eps: float) -> float:
    """How far, as a fraction, a sum may be off if so many numbers are added one after another (in fp32 at least)."""
    return math.sqrt(length) / 2 * min(eps, _FP32_EPS) if length > 1 else 0.0


def _extent(tensor: torch.Tensor, dims: Sequence[int]) -> int:
    return math.prod(tensor.shape[dim] for dim in dims if -tensor.ndim <= dim < tensor.ndim)


def _tags(operator: Any) -> frozenset[torch.Tag]:
    """The tags of an operator; a primitive has none of use, so those of its namesake."""
    tags = torch_compat.op_tags(operator)
    if str(operator).startswith("prims."):
        namesake = getattr(torch.ops.aten, _plain_name(operator), None)
        for overload in namesake.overloads() if namesake is not None else ():
            tags |= torch_compat.op_tags(getattr(namesake, overload))
    return tags


def _counts(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether the result is integers made of integers: counts, masks and indices are exact in floating point.

    Or an operator rounded to them, or drew them.
    """
    whole = _plain_name(operator) == "floor_divide" or kwargs.get("rounding_mode") is not None or is_random(operator)
    sources = [] if whole else _floats(args)
    return all(_is_integral(tensor) for tensor in (*_floats(result), *sources))


def _is_integral(value: torch.Tensor) -> bool:
    """Whether all elements are integers, and small enough that the dtype has finer numbers beside them."""
    if value.is_complex():
        return False
    corner = value[tuple(slice(0, 4) for _ in value.shape)]  # it mostly answers already
    parts = (part if part.dtype in _WIDE else part.float() for part in (corner, value))
    return all(bool(((part == part.round()) & (part.abs() < 1 / _eps(value))).all()) for part in parts)


def _targets(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors an operator writes to. (Batch norm does not say so of its running statistics.)"""
    given = torch_compat.op_arguments(operator, args, kwargs)
    return _floats([one.value for one in given if one.written or one.name.startswith("running_")])


def _writes(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether calling the operator twice is not the same as calling it once."""
    return torch_compat.op_is_mutable(operator) or bool(_targets(operator, args, kwargs))


def _is_narrow_sum(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return (
        not _writes(operator, args, kwargs)
        and any(map(_is_narrow, _floats(args)))
        and summands(operator, args, kwargs) > 1
    )


def _pour(values: Any, plain: Any) -> Any:
    """`values` in tensors of the dtypes and strides that `plain` has."""
    if isinstance(plain, torch.Tensor) and isinstance(values, torch.Tensor):
        return plain.copy_(values) if _is_float(plain) and values.shape == plain.shape else plain
    if isinstance(plain, (list, tuple)):
        return type(plain)(_pour(value, one) for value, one in zip(values, plain, strict=True))
    return plain


def _cloned(args: tuple[Any, ...]) -> Any:
    return torch_compat.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, args)


def _no_autocast(args: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Inside an operator there is no autocast any more."""
    device = next((tensor.device.type for tensor in _floats(args)), "cpu")
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _narrows(value: Any, dtype: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return False
    if not value.is_floating_point():
        return value.dtype in (torch.int32, torch.int64)
    return torch.finfo(dtype).eps > torch.finfo(value.dtype).eps


def _plain_name(operator: Any) -> str:
    """`aten.add_.Tensor` → `add`: the in-place operator goes by the name of the other."""
    return torch_compat.op_name(operator).removesuffix("_")


def _eps(value: torch.Tensor) -> float:
    return float(torch.finfo(value.dtype).eps)


def _is_float(value: torch.Tensor) -> bool:
    """Whether rounding can touch it: floating point, in memory (the zeros of forward-mode gradients are not)."""
    floating = value.is_floating_point() or value.is_complex()
    return floating and value.layout == torch.strided and not value.is_nested and value.data_ptr() != 0


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _is_float(value) and value.dtype not in _WIDE


def _is_one_of(value: Any, tensors: Sequence[torch.Tensor]) -> bool:
    return any(value is tensor for tensor in tensors)


def _floats(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors in an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [value] if _is_float(value) else []
    if isinstance(value, (list, tuple)):
        return [tensor for child in value for tensor in _floats(child)]
    return []

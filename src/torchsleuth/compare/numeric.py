"""How far two dense tensors of one shape are apart: one pass, in fp64, in chunks.

Nothing here holds more than four buffers of `CHUNK` elements besides its arguments, whatever their size
and strides: a chunk is a view that is copied into a buffer, widened to fp64 (complex128) and measured there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHUNK = 1 << 18
"""Elements measured at a time on the CPU: the buffers stay in cache, which is what makes this fast."""
DEVICE_CHUNK = 1 << 24
"""The same on an accelerator, where launches cost more than memory traffic."""

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Measure:
    """The distance of two tensors. Non-finite pairs that disagree count in `nonfinite`, not in the errors."""

    numel: int = 0
    outside: int = 0
    nonfinite: int = 0
    first: tuple[int, ...] | None = None
    """Index of the first element outside the tolerance, in row-major order."""
    first_nonfinite: tuple[int, ...] | None = None
    """Index of the first of the `nonfinite` ones."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    rmse: float = 0.0
    cosine: float | None = None

    def numbers(self) -> dict[str, Any]:
        """What a `Comparison` says of it, under the same names."""
        names = ("numel", "outside", "max_abs", "max_rel", "rmse", "cosine")
        return {name: getattr(self, name) for name in names}


@dataclass
class _Sums:
    """What is carried from chunk to chunk."""

    squares: float = 0.0
    dot: float = 0.0
    a_norm: float = 0.0
    b_norm: float = 0.0
    finite: int = 0


def chunks(shape: tuple[int, ...], limit: int) -> Iterator[Slices]:
    """Slices that cut `shape` into boxes of at most `limit` elements, in row-major order.

    >>> list(chunks((2, 3), 2))
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 3, None)), \
(slice(1, 2, None), slice(0, 2, None)), (slice(1, 2, None), slice(2, 3, None))]
    """
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= limit:
        yield tuple(slice(0, size) for size in shape)
        return
    inner = math.prod(shape[1:])
    step = max(1, limit // inner)
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        if inner <= limit:
            yield (rows, *(slice(0, size) for size in shape[1:]))
        else:
            for rest in chunks(shape[1:], limit):
                yield (rows, *rest)


def measure(a: torch.Tensor, b: torch.Tensor, *, rtol: float, atol: float, equal_nan: bool = True) -> Measure:
    """How far `b` is from `a`; the bound of an element is `atol + rtol * |a|`."""
    a, b = a.detach(), b.detach()
    shape = tuple(a.shape)
    numel = a.numel()
    if numel == 0:
        return Measure()
    if _bitwise_same(a, b):
        return Measure(numel=numel, cosine=1.0)
    device = _working_device(a.device)
    limit = CHUNK if device.type == "cpu" else DEVICE_CHUNK
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a_buffer, b_buffer = (torch.empty(min(limit, numel), dtype=wide, device=device) for _ in range(2))
    sums = _Sums()
    outside = nonfinite = 0
    first: tuple[int, ...] | None = None
    first_nonfinite: tuple[int, ...] | None = None
    max_abs = max_rel = 0.0
    for box in chunks(shape, limit):
        x = _load(a_buffer, a[box])
        y = _load(b_buffer, b[box])
        error, scale, strange = _errors(x, y, sums, equal_nan)
        bound = scale * rtol + atol
        bad = error > bound
        if strange is not None:
            bad |= strange
            nonfinite += int(strange.sum())
            first_nonfinite = _first(strange, box) if first_nonfinite is None else first_nonfinite
        max_abs = max(max_abs, float(error.max()))
        max_rel = max(max_rel, _largest_relative(error, scale))
        here = int(bad.sum())
        if here and first is None:
            first = _first(bad, box)
        outside += here
    norms = math.sqrt(sums.a_norm) * math.sqrt(sums.b_norm)
    return Measure(
        numel=numel,
        outside=outside,
        nonfinite=nonfinite,
        first=first,
        first_nonfinite=first_nonfinite,
        max_abs=max_abs,
        max_rel=max_rel,
        rmse=math.sqrt(sums.squares / sums.finite) if sums.finite else 0.0,
        cosine=_cosine(sums, norms),
    )


def spoiled(ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor, *, equal_nan: bool = True) -> int:
    """Elements where `res` is finite, NaN, or an infinity, and neither of the others is the same of these.

    Eager itself may overflow where the result does not, or the reverse: that is no loss as long as one of
    them shows the same. What neither shows is. Unless `equal_nan`, no NaN is the same as another.
    """
    count = 0
    wide = torch.complex128 if ref.is_complex() else torch.float64
    for box in chunks(tuple(ref.shape), CHUNK):
        ours, eager, exact = (tensor.detach()[box].to(res.device, wide) for tensor in (res, ref, fp64))
        count += int((~_alike(ours, eager, equal_nan) & ~_alike(ours, exact, equal_nan)).sum())
    return count


def _alike(x: torch.Tensor, y: torch.Tensor, equal_nan: bool) -> torch.Tensor:
    """Where both are finite, both NaN, or both the same infinity."""
    alike = (x.isfinite() & y.isfinite()) | (x == y)
    return alike | (x.isnan() & y.isnan()) if equal_nan else alike


def unequal(a: torch.Tensor, b: torch.Tensor) -> tuple[int, tuple[int, ...] | None]:
    """How many elements of two integer or bool tensors differ as numbers, and the index of the first."""
    # Of unsigned integers only 64-bit ones do not fit int64; no negative number of the other side equals them.
    one_is_huge = (a.dtype == torch.uint64) != (b.dtype == torch.uint64)
    count, first = 0, None
    for box in chunks(tuple(a.shape), CHUNK):
        x, y = a[box], b[box]
        if a.dtype != b.dtype:
            x, y = x.to(torch.int64), y.to(torch.int64)
        bad = x != y
        if one_is_huge:
            bad |= (x < 0) | (y < 0)
        here = int(bad.sum())
        if here and first is None:
            first = _first(bad, box)
        count += here
    return count, first


def overlap(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int]:
    """How many elements two masks both mark, and how many at least one does."""
    both = either = 0
    for box in chunks(tuple(a.shape), CHUNK):
        both += int((a[box] & b[box]).sum())
        either += int((a[box] | b[box]).sum())
    return both, either


def _bitwise_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """A cheap yes for the common case. NaN is never equal here, so a no decides nothing."""
    try:
        return a.dtype == b.dtype and torch.equal(a, b)
    except (RuntimeError, NotImplementedError):
        return False  # some dtypes (float8 among them) have no kernel for equality


def _load(buffer: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    return buffer[: part.numel()].view(part.shape).copy_(part)


def _errors(
    x: torch.Tensor, y: torch.Tensor, sums: _Sums, equal_nan: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """|x - y|, |x|, and which pairs disagree in a non-finite way (None: none can). Adds to the sums."""
    difference = x - y
    flat = difference.view(-1)
    squares = float(torch.vdot(flat, flat).real)
    if math.isfinite(squares):  # then every difference is: no NaN, no infinity on either side
        strange = None
        sums.finite += x.numel()
    else:
        equal = x == y  # infinities of one sign among them
        if equal_nan:
            equal |= x.isnan() & y.isnan()
        finite = x.isfinite() & y.isfinite()
        strange = ~(finite | equal)
        keep = finite.to(x.dtype)
        x, y = (torch.where(finite, side, torch.zeros_like(side)) for side in (x, y))
        difference = (x - y) * keep
        flat = difference.view(-1)
        squares = float(torch.vdot(flat, flat).real)
        sums.finite += int(finite.sum())
    sums.squares += squares
    sums.dot += float(torch.vdot(x.reshape(-1), y.reshape(-1)).real)
    sums.a_norm += float(torch.vdot(x.reshape(-1), x.reshape(-1)).real)
    sums.b_norm += float(torch.vdot(y.reshape(-1), y.reshape(-1)).real)
    return difference.abs(), x.abs(), strange


def _largest_relative(error: torch.Tensor, scale: torch.Tensor) -> float:
    """The largest relative error over the elements that have one (the expected value is not zero)."""
    largest = float((error / scale).max())
    if not math.isfinite(largest):
        largest = float(torch.where(scale == 0, 0.0, error / scale).max())
    return largest


def _cosine(sums: _Sums, norms: float) -> float | None:
    if not math.isfinite(norms) or not math.isfinite(sums.dot):
        return None
    if norms == 0.0:
        return 1.0 if sums.a_norm == sums.b_norm else 0.0
    return max(-1.0, min(1.0, sums.dot / norms))


def _first(bad: torch.Tensor, box: Slices) -> tuple[int, ...] | None:
    """Where the first of the elements is that are marked, if any is."""
    spot = int(bad.reshape(-1).to(torch.uint8).argmax())
    return global_index(spot, box) if bool(bad.reshape(-1)[spot]) else None


def global_index(spot: int, box: Slices) -> tuple[int, ...]:
    """The index in the whole tensor of the element at place `spot` of a flattened box."""
    index = []
    for part in reversed(box):
        size = part.stop - part.start
        index.append(part.start + spot % size)
        spot //= size
    return tuple(reversed(index))


def _working_device(device: torch.device) -> torch.device:
    """Where the measuring runs: in place, except on devices that have no fp64."""
    return device if device.type in ("cpu", "cuda", "xpu") else torch.device("cpu")

"""Comparing two leaves: tensors of every kind, numpy arrays, and what `objects` knows.

A tensor is first brought down to what `numeric` measures; `kinds` knows how.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import FakeTensorGiven
from torchsleuth.outcome import Symptom

from .comparison import (
    ALLCLOSE,
    COSINE,
    EXACT,
    IOU,
    RMSE,
    Comparison,
    Tolerance,
    describe_rule,
    raw,
    rmse_multiplier,
)
from .kinds import (
    SPARSE,
    align_sparse,
    as_signed,
    bits_as_numbers,
    inner_tensors,
    is_floating,
    is_reference,
    kind,
    measurable,
    to_coo,
)
from .numeric import Measure, measure, overlap, spoiled, unequal
from .objects import compare_objects, equal, equal_but_for_nan, is_numpy_array
from .tree import ABSENT, Leaves

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def compare_leaves(pair: Leaves, tolerance: Tolerance) -> Comparison | None:
    """What the two leaves show; None when they are to be ignored."""
    if tolerance.ignore_non_fp and not is_floating(pair.ref):
        return None
    ref, res = pair.ref, pair.res
    if isinstance(ref, torch.Tensor) and isinstance(res, torch.Tensor):
        return _Tensors(pair.path, tolerance).compare(ref, res, pair.fp64)
    if is_numpy_array(ref) and is_numpy_array(res):
        return _compare_arrays(pair, tolerance)
    return compare_objects(pair, tolerance)


def metadata_difference(pair: Leaves, tolerance: Tolerance | None = None) -> Comparison | None:
    """The first difference of two leaves that needs no numbers: type, layout, device, shape, dtype."""
    tolerance = tolerance or Tolerance()
    if not isinstance(pair.ref, torch.Tensor) or not isinstance(pair.res, torch.Tensor):
        return compare_objects(pair, tolerance)
    return _Tensors(pair.path, tolerance).describe_difference(pair.ref, pair.res)


class _Tensors:
    """Compares two tensors at one path; a method per kind of tensor."""

    def __init__(self, path: str, tolerance: Tolerance) -> None:
        self.path = path
        self.tolerance = tolerance

    def compare(self, ref: torch.Tensor, res: torch.Tensor, fp64: Any) -> Comparison:
        if any(torch_compat.is_fake(side) for side in (ref, res, fp64)):
            raise FakeTensorGiven(
                f"a fake tensor stands at {self.path or 'the result'}",
                cause="fake tensors carry shapes and dtypes, no values",
                remedy="compare the results of runs on real inputs",
            )
        differs = self.describe_difference(ref, res)
        if differs is not None:
            return differs
        if ref.is_nested:
            return self._nested(ref, res, fp64)
        if ref.layout in SPARSE:
            return self._sparse(ref, res, fp64)
        inner = inner_tensors(ref)
        if inner is not None:
            return self._inner(inner, ref, res, fp64)
        if ref.device.type == "meta":
            return self._agree(EXACT, notes=("Meta tensors have no values: only their shape and dtype were compared.",))
        if ref.is_mkldnn:
            ref, res = ref.to_dense(), res.to_dense()
        if ref.is_quantized:
            ref, res = ref.dequantize(), res.dequantize()
        return self._dense(ref, res, fp64)

    def describe_difference(self, ref: torch.Tensor, res: torch.Tensor) -> Comparison | None:
        checks: list[tuple[Symptom, Any, Any]] = [
            (Symptom.LAYOUT, kind(ref), kind(res)),
            (Symptom.DEVICE, ref.device, res.device),
        ]
        if not ref.is_nested and not res.is_nested:
            checks.append((Symptom.SHAPE, tuple(ref.shape), tuple(res.shape)))
        if self.tolerance.exact_dtype:
            checks.append((Symptom.DTYPE, ref.dtype, res.dtype))
        for symptom, expected, got in checks:
            if expected != got:
                return self._differ(symptom, raw(expected), raw(got), rule=EXACT)
        return None

    def _dense(
        self,
        ref: torch.Tensor,
        res: torch.Tensor,
        fp64: Any,
        locate: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
    ) -> Comparison:
        """Strided tensors of one shape. `locate` turns an index into one the user knows."""
        ref, res = ref.detach(), res.detach()
        if not is_floating(ref) and not is_floating(res):
            return self._integers(ref, res, locate)
        tolerance = self.tolerance
        if not (measurable(ref) and measurable(res)):
            return self._integers(ref.view(torch.uint8), res.view(torch.uint8), locate)
        found = measure(
            ref,
            res,
            rtol=tolerance.rtol_or_default,
            atol=tolerance.atol_or_default,
            equal_nan=tolerance.equal_nan,
        )
        if not found.outside:
            return self._agree(ALLCLOSE, found)
        if tolerance.cos_similarity:
            if found.cosine is not None and found.cosine >= tolerance.cos_threshold and not found.nonfinite:
                return self._agree(COSINE, found)
            return self._values_differ(ref, res, found, COSINE, locate)
        if isinstance(fp64, torch.Tensor) and is_reference(fp64, ref):
            return self._against_fp64(ref, res, fp64.detach(), found, locate)
        return self._values_differ(ref, res, found, ALLCLOSE, locate)

    def _against_fp64(
        self,
        ref: torch.Tensor,
        res: torch.Tensor,
        fp64: torch.Tensor,
        found: Measure,
        locate: Callable[[tuple[int, ...]], tuple[int, ...]],
    ) -> Comparison:
        tolerance = self.tolerance
        ref_rmse = measure(fp64, ref, rtol=0.0, atol=0.0).rmse
        res_rmse = measure(fp64, res, rtol=0.0, atol=0.0).rmse
        multiplier = rmse_multiplier(
            low_precision=res.dtype in _LOW_PRECISION, shape=tuple(ref.shape), tolerance=tolerance
        )
        numbers = {"ref_rmse": ref_rmse, "res_rmse": res_rmse, "multiplier": multiplier}
        close = math.isfinite(res_rmse) and res_rmse <= multiplier * ref_rmse + tolerance.atol_or_default / 10
        nan_blames = found.nonfinite and spoiled(ref, res, fp64, equal_nan=tolerance.equal_nan)
        if (close and not nan_blames) or (found.nonfinite and self._is_near(fp64, res)):
            return self._agree(RMSE, found, **numbers)
        return self._values_differ(ref, res, found, RMSE, locate, **numbers)

    def _is_near(self, fp64: torch.Tensor, res: torch.Tensor) -> bool:
        """Whether a result may stand for a wrong one of eager's, by `loose_tol`."""
        loose = self.tolerance.loose_tol
        if loose is None:
            return False
        return not measure(fp64, res, rtol=loose, atol=loose, equal_nan=self.tolerance.equal_nan).outside

    def _integers(
        self, ref: torch.Tensor, res: torch.Tensor, locate: Callable[[tuple[int, ...]], tuple[int, ...]]
    ) -> Comparison:
        """Bools, integers and raw bits: equal or not (of masks, with `iou_threshold`: nearly)."""
        ref, res = bits_as_numbers(ref), bits_as_numbers(res)
        if ref.dtype == res.dtype:
            outside, first = unequal(as_signed(ref), as_signed(res))
        else:  # dtypes may differ (exact_dtype=False)
            outside, first = unequal(ref, res)
        if first is None:
            return self._agree(EXACT, Measure(numel=ref.numel()))
        rule, said = EXACT, ""
        if self.tolerance.iou_threshold is not None and ref.dtype == res.dtype == torch.bool:
            both, either = overlap(ref, res)
            if both / either >= self.tolerance.iou_threshold:
                return self._agree(IOU, Measure(numel=ref.numel()))
            rule, said = IOU, f"Both mark {both:,} of the {either:,} elements that either marks."
        return self._differ(
            Symptom.INTEGER,
            ref[first].item(),
            res[first].item(),
            rule=rule,
            message=said,
            index=locate(first) or None,
            outside=outside,
            numel=ref.numel(),
        )

    def _sparse(self, ref: torch.Tensor, res: torch.Tensor, fp64: Any) -> Comparison:
        sides = [ref, res]
        if is_floating(ref) and isinstance(fp64, torch.Tensor) and is_reference(fp64, ref):
            sides.append(fp64)
        indices, (ref_values, res_values, *rest) = align_sparse([to_coo(side) for side in sides])

        def locate(index: tuple[int, ...]) -> tuple[int, ...]:
            return (*indices[:, index[0]].tolist(), *index[1:])

        return self._dense(ref_values, res_values, rest[0] if rest else ABSENT, locate)

    def _nested(self, ref: torch.Tensor, res: torch.Tensor, fp64: Any) -> Comparison:
        refs, ress = ref.unbind(), res.unbind()
        if len(refs) != len(ress):
            return self._differ(Symptom.STRUCTURE, len(refs), len(ress), rule=EXACT)
        same_layout = isinstance(fp64, torch.Tensor) and fp64.is_nested
        exacts = fp64.unbind() if same_layout else [ABSENT] * len(refs)
        exacts = exacts if len(exacts) == len(refs) else [ABSENT] * len(refs)
        parts = {f".unbind()[{i}]": part for i, part in enumerate(zip(refs, ress, exacts, strict=True))}
        return self._parts(parts)

    def _inner(self, names: list[str], ref: torch.Tensor, res: torch.Tensor, fp64: Any) -> Comparison:
        return self._parts(
            {f".{name}": (getattr(ref, name), getattr(res, name), getattr(fp64, name, ABSENT)) for name in names}
        )

    def _parts(self, parts: dict[str, tuple[Any, Any, Any]]) -> Comparison:
        """The first part that differs, or the one that came closest to it."""
        closest = self._agree(EXACT)
        for step, (ref, res, fp64) in parts.items():
            found = _Tensors(self.path + step, self.tolerance).compare(ref, res, fp64)
            if not found.agree:
                return found
            closest = closer(closest, found)
        return closest

    def _values_differ(
        self,
        ref: torch.Tensor,
        res: torch.Tensor,
        found: Measure,
        rule: str,
        locate: Callable[[tuple[int, ...]], tuple[int, ...]],
        **numbers: float,
    ) -> Comparison:
        spot = found.first if found.first_nonfinite is None else found.first_nonfinite
        assert spot is not None  # something is outside the bound
        return self._differ(
            Symptom.NAN if found.nonfinite else Symptom.VALUE,
            ref[spot].item(),
            res[spot].item(),
            rule=rule,
            index=locate(spot) or None,
            **found.numbers(),
            **numbers,
        )

    def _agree(self, rule: str, found: Measure | None = None, **details: Any) -> Comparison:
        numbers = (found or Measure()).numbers()
        return Comparison(True, self.path, rule=self._rule(rule), tolerance=self.tolerance, **numbers, **details)

    def _differ(self, symptom: Symptom, ref: Any, res: Any, *, rule: str, **details: Any) -> Comparison:
        return Comparison(
            False,
            self.path,
            symptom,
            ref=ref,
            res=res,
            rule=self._rule(rule),
            tolerance=self.tolerance,
            **details,
        )

    def _rule(self, rule: str) -> str:
        return describe_rule(rule, self.tolerance)


def closer(one: Comparison, other: Comparison) -> Comparison:
    """Of two agreements, the one with the larger relative difference."""
    return max(one, other, key=lambda found: (found.max_rel or 0.0, found.max_abs or 0.0, found.numel))


def _compare_arrays(pair: Leaves, tolerance: Tolerance) -> Comparison:
    """Numpy arrays: as tensors where torch knows the dtype, else by numpy's own equality."""
    ref, res = pair.ref, pair.res
    if tolerance.exact_dtype and ref.dtype != res.dtype:
        return Comparison(
            False,
            pair.path,
            Symptom.DTYPE,
            ref=raw(ref.dtype),
            res=raw(res.dtype),
            rule=EXACT,
            tolerance=tolerance,
        )
    fp64 = array_as_tensor(pair.fp64) if is_numpy_array(pair.fp64) and pair.fp64.dtype.kind in "fc" else pair.fp64
    try:
        sides = [array_as_tensor(side) for side in (ref, res)]
    except TypeError:
        agree = equal(ref, res) or (tolerance.equal_nan and equal_but_for_nan(ref, res))
        symptom = Symptom.OBJECT if ref.shape == res.shape else Symptom.SHAPE
        return Comparison(
            agree, pair.path, None if agree else symptom, ref=ref, res=res, rule=EXACT, tolerance=tolerance
        )
    return _Tensors(pair.path, tolerance).compare(sides[0], sides[1], fp64)


def array_as_tensor(array: Any) -> torch.Tensor:
    """A numpy array as a tensor on the same memory; a copy only where torch cannot have that.

    A `TypeError` if torch does not know the dtype (strings, objects, dates).
    """
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    plain = native.flags.c_contiguous and native.flags.writeable
    return torch.as_tensor(native if plain else native.copy())

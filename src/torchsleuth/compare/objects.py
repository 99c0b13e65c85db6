"""Comparing leaves that are not tensors: numbers, numpy scalars, and anything with an equality."""

from __future__ import annotations

import math
from typing import Any

from torchsleuth.outcome import Symptom

from .comparison import ALLCLOSE, EXACT, Comparison, Tolerance, describe_rule, raw, rmse_multiplier
from .kinds import is_floating
from .tree import Leaves, type_names


def compare_objects(pair: Leaves, tolerance: Tolerance) -> Comparison:
    """Numbers within the tolerance, everything else by its own equality."""
    ref, res = pair.ref, pair.res
    if tolerance.relax_numpy_equality:
        ref, res = (_unwrap_numpy(side) for side in (ref, res))

    def answer(agree: bool, symptom: Symptom, rule: str = EXACT, **details: Any) -> Comparison:
        if agree:
            return Comparison(True, pair.path, rule=describe_rule(rule, tolerance), tolerance=tolerance, **details)
        return Comparison(
            False, pair.path, symptom, ref=details.pop("ref", ref), res=details.pop("res", res),
            rule=describe_rule(rule, tolerance), tolerance=tolerance, **details,
        )  # fmt: skip

    if type(ref) is not type(res) and (tolerance.exact_dtype or not _both_numbers(ref, res)):
        expected, got = type_names(ref, res)
        return answer(False, Symptom.TYPE, ref=raw(expected), res=raw(got))
    if _both_numbers(ref, res) and (is_floating(ref) or is_floating(res)):
        error, agree = _number_error(ref, res, pair.fp64, tolerance)
        symptom = Symptom.VALUE if math.isfinite(error) else Symptom.NAN
        return answer(agree, symptom, ALLCLOSE, max_abs=error if math.isfinite(error) else None)
    whole = isinstance(ref, int) or (_is_numpy_number(ref) and ref.dtype.kind in "biu")
    symptom = Symptom.INTEGER if whole else Symptom.OBJECT
    return answer(equal(ref, res), symptom)


def _number_error(ref: Any, res: Any, fp64: Any, tolerance: Tolerance) -> tuple[float, bool]:
    """|ref - res| and whether that is within the tolerance (or within eager's own error against fp64)."""
    ref, res, fp64 = (_unwrap_numpy(side) for side in (ref, res, fp64))  # numpy's own arithmetic overflows
    both_nan = ref != ref and res != res
    if ref == res or (both_nan and tolerance.equal_nan):
        return 0.0, True
    try:
        error = float(abs(ref - res))
    except OverflowError:  # an integer beyond any float
        return math.inf, False
    if not math.isfinite(error):
        return math.inf, False
    if error <= tolerance.atol_or_default + tolerance.rtol_or_default * abs(ref):
        return error, True
    if isinstance(fp64, (float, complex)):
        multiplier = rmse_multiplier(low_precision=False, shape=(), tolerance=tolerance)
        return error, bool(abs(res - fp64) <= multiplier * abs(ref - fp64) + tolerance.atol_or_default / 10)
    return error, False


def equal_but_for_nan(ref: Any, res: Any) -> bool:
    """Whether arrays torch does not know are equal where they equal themselves (NaN and NaT do not)."""
    try:
        return bool(ref.shape == res.shape and ((ref == res) | ((ref != ref) & (res != res))).all())
    except Exception:  # noqa: BLE001 - as in _equal
        return False


def equal(ref: Any, res: Any) -> bool:
    try:
        if ref is res:
            return True
        equal = ref == res
        if type(equal).__module__ == "numpy" and equal.ndim:  # of arrays, which broadcast
            return bool(ref.shape == res.shape and equal.all())
        return bool(equal)
    except Exception:  # noqa: BLE001 - an equality that raises cannot vouch for the values
        return False


def _both_numbers(ref: Any, res: Any) -> bool:
    return all(
        (isinstance(side, (int, float, complex)) and not isinstance(side, bool)) or _is_numpy_number(side)
        for side in (ref, res)
    )


def is_numpy_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _is_numpy_number(value: Any) -> bool:
    return _is_numpy_scalar(value) and value.dtype.kind in "iufc"


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.ndim == 0


def _unwrap_numpy(value: Any) -> Any:
    return value.item() if _is_numpy_scalar(value) and not is_numpy_array(value) else value

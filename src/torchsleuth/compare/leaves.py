"""Comparing two leaves: tensors of every kind, numbers, numpy values, and anything with an equality.

A tensor is first brought down to what `numeric` measures: sparse tensors to the values on the union of
their indices (never to a dense copy), nested ones to their components, quantised ones to the numbers they
stand for, subclasses to the tensors inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import FakeTensorGiven
from torchsleuth.outcome import Symptom

from .comparison import Comparison, Tolerance, raw, rmse_multiplier
from .numeric import Measure, measure, spoiled, unequal
from .tree import ABSENT, Leaves, type_names

EXACT = "exact equality"
ALLCLOSE = "allclose"
RMSE = "RMSE against fp64"
COSINE = "cosine similarity"

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_floating(value: Any) -> bool:
    """Whether a leaf is floating point (complex included): what rounding can touch."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex() or value.is_quantized
    if type(value).__module__ == "numpy":
        return getattr(value, "dtype", None) is not None and value.dtype.kind in "fc"
    return isinstance(value, (float, complex))


def compare_leaves(pair: Leaves, tolerance: Tolerance) -> Comparison | None:
    """What the two leaves show; None when they are to be ignored."""
    if tolerance.ignore_non_fp and not is_floating(pair.ref):
        return None
    ref, res = pair.ref, pair.res
    if isinstance(ref, torch.Tensor) and isinstance(res, torch.Tensor):
        return _Tensors(pair.path, tolerance).compare(ref, res, pair.fp64)
    if _is_numpy_array(ref) and _is_numpy_array(res):
        return _compare_arrays(pair, tolerance)
    return _compare_objects(pair, tolerance)


def metadata_difference(pair: Leaves) -> Comparison | None:
    """The first difference of two leaves that needs no numbers: type, layout, device, shape, dtype."""
    if not isinstance(pair.ref, torch.Tensor) or not isinstance(pair.res, torch.Tensor):
        return _compare_objects(pair, Tolerance())
    return _Tensors(pair.path, Tolerance()).describe_difference(pair.ref, pair.res)


def dense_parts(path: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor of any kind as strided tensors by path: components of a nested one, values of a sparse one, …"""
    if tensor.is_nested:
        parts = {f"{path}.unbind()[{i}]": part for i, part in enumerate(tensor.unbind())}
    elif (names := _inner_tensors(tensor)) is not None:
        parts = {f"{path}.{name}": getattr(tensor, name) for name in names}
    elif tensor.layout != torch.strided:
        return {path: tensor.detach().to_dense()}
    else:
        return {path: tensor.detach().dequantize() if tensor.is_quantized else tensor.detach()}
    return {name: leaf for part_path, part in parts.items() for name, leaf in dense_parts(part_path, part).items()}


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
        if ref.layout in _SPARSE:
            return self._sparse(ref, res, fp64)
        inner = _inner_tensors(ref)
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
            (Symptom.LAYOUT, _kind(ref), _kind(res)),
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
        if not (_measurable(ref) and _measurable(res)):
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
        if isinstance(fp64, torch.Tensor) and _is_reference(fp64, ref):
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
        nan_blames = found.nonfinite and (not tolerance.equal_nan or spoiled(ref, res, fp64))
        if close and not nan_blames:
            return self._agree(RMSE, found, **numbers)
        return self._values_differ(ref, res, found, RMSE, locate, **numbers)

    def _integers(
        self, ref: torch.Tensor, res: torch.Tensor, locate: Callable[[tuple[int, ...]], tuple[int, ...]]
    ) -> Comparison:
        """Bools, integers and raw bits: equal or not."""
        ref, res = _bits_as_numbers(ref), _bits_as_numbers(res)
        if ref.dtype == res.dtype:
            outside, first = unequal(_as_signed(ref), _as_signed(res))
        else:  # dtypes may differ (exact_dtype=False)
            outside, first = unequal(ref, res)
        if first is None:
            return self._agree(EXACT, Measure(numel=ref.numel()))
        return self._differ(
            Symptom.INTEGER,
            ref[first].item(),
            res[first].item(),
            rule=EXACT,
            index=locate(first) or None,
            outside=outside,
            numel=ref.numel(),
        )

    def _sparse(self, ref: torch.Tensor, res: torch.Tensor, fp64: Any) -> Comparison:
        sides = [ref, res]
        if is_floating(ref) and isinstance(fp64, torch.Tensor) and _is_reference(fp64, ref):
            sides.append(fp64)
        indices, (ref_values, res_values, *rest) = _align_sparse([_to_coo(side) for side in sides])

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
            outside=found.outside,
            numel=found.numel,
            max_abs=found.max_abs,
            max_rel=found.max_rel,
            rmse=found.rmse,
            cosine=found.cosine,
            **numbers,
        )

    def _agree(self, rule: str, found: Measure | None = None, **details: Any) -> Comparison:
        found = found or Measure()
        return Comparison(
            True,
            self.path,
            rule=self._rule(rule),
            max_abs=found.max_abs,
            max_rel=found.max_rel,
            rmse=found.rmse,
            cosine=found.cosine,
            numel=found.numel,
            outside=found.outside,
            tolerance=self.tolerance,
            **details,
        )

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


def describe_rule(rule: str, tolerance: Tolerance) -> str:
    """The rule with its numbers, as a Comparison shows it."""
    if rule == ALLCLOSE:
        return f"allclose with rtol {tolerance.rtol_or_default:g} and atol {tolerance.atol_or_default:g}"
    if rule == COSINE:
        return f"cosine similarity of at least {tolerance.cos_threshold:g}"
    return rule


def closer(one: Comparison, other: Comparison) -> Comparison:
    """Of two agreements, the one with the larger relative difference."""
    return max(one, other, key=lambda found: (found.max_rel or 0.0, found.max_abs or 0.0, found.numel))


def _compare_objects(pair: Leaves, tolerance: Tolerance) -> Comparison:
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
    return answer(_equal(ref, res), symptom)


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
    fp64 = _array_as_tensor(pair.fp64) if _is_numpy_array(pair.fp64) and pair.fp64.dtype.kind in "fc" else pair.fp64
    try:
        sides = [_array_as_tensor(side) for side in (ref, res)]
    except TypeError:  # strings, objects, dates
        agree = _equal(ref, res) or (tolerance.equal_nan and _equal_but_for_nan(ref, res))
        symptom = Symptom.OBJECT if ref.shape == res.shape else Symptom.SHAPE
        return Comparison(
            agree, pair.path, None if agree else symptom, ref=ref, res=res, rule=EXACT, tolerance=tolerance
        )
    return _Tensors(pair.path, tolerance).compare(sides[0], sides[1], fp64)


def _array_as_tensor(array: Any) -> torch.Tensor:
    """A numpy array as a tensor on the same memory; a copy only where torch cannot have that."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    plain = native.flags.c_contiguous and native.flags.writeable
    return torch.as_tensor(native if plain else native.copy())


def _equal_but_for_nan(ref: Any, res: Any) -> bool:
    """Whether arrays torch does not know are equal where they equal themselves (NaN and NaT do not)."""
    try:
        return bool(ref.shape == res.shape and ((ref == res) | ((ref != ref) & (res != res))).all())
    except Exception:  # noqa: BLE001 - as in _equal
        return False


def _equal(ref: Any, res: Any) -> bool:
    try:
        if ref is res:
            return True
        equal = ref == res
        if type(equal).__module__ == "numpy":  # of arrays, which broadcast
            return bool(ref.shape == res.shape and equal.all())
        return bool(equal)
    except Exception:  # noqa: BLE001 - an equality that raises cannot vouch for the values
        return False


def _both_numbers(ref: Any, res: Any) -> bool:
    return all(
        (isinstance(side, (int, float, complex)) and not isinstance(side, bool)) or _is_numpy_number(side)
        for side in (ref, res)
    )


def _is_numpy_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _is_numpy_number(value: Any) -> bool:
    return _is_numpy_scalar(value) and value.dtype.kind in "iufc"


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.ndim == 0


def _unwrap_numpy(value: Any) -> Any:
    return value.item() if _is_numpy_scalar(value) and not _is_numpy_array(value) else value


def _kind(tensor: torch.Tensor) -> str:
    """Layout, quantisation and subclass of a tensor, in words that are compared and shown."""
    words = [str(tensor.layout).removeprefix("torch.")]
    if tensor.is_nested:
        words.insert(0, "nested")
    if tensor.layout == torch.sparse_coo:
        words.append(f"with {tensor.dense_dim()} dense dimensions")
    if tensor.is_quantized:
        words.insert(0, f"quantised ({tensor.qscheme()})")
    if _inner_tensors(tensor) is not None:
        words.append(type(tensor).__qualname__)
    return " ".join(words)


def _inner_tensors(tensor: torch.Tensor) -> list[str] | None:
    """Names of the tensors inside a wrapper subclass; None for a plain tensor (and for nested ones)."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or tensor.is_nested:
        return None
    return list(flatten()[0])


def _is_reference(fp64: torch.Tensor, ref: torch.Tensor) -> bool:
    """Whether a tensor can serve as the exact answer for `ref`: twice as wide as anything else, same shape."""
    wide = torch.complex128 if ref.is_complex() else torch.float64
    return fp64.dtype == wide and fp64.shape == ref.shape and fp64.layout == ref.layout


def _measurable(tensor: torch.Tensor) -> bool:
    """Whether the dtype converts to fp64 (packed sub-byte floats do not)."""
    try:
        torch.empty(1, dtype=tensor.dtype).to(torch.complex128 if tensor.is_complex() else torch.float64)
    except (RuntimeError, NotImplementedError):
        return False
    return True


_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def _bits_as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Bare bits (`torch.bits8`) and packed integers (`torch.uint4`) as unsigned ones; any other tensor as it is."""
    numbers = (torch.bool, *_SIGNED.values(), *_UNSIGNED.values())
    return tensor if tensor.dtype in numbers else tensor.view(_UNSIGNED[tensor.element_size()])


def _as_signed(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as a signed integer: unsigned dtypes lack most kernels."""
    if tensor.dtype == torch.bool or tensor.dtype in _SIGNED.values():
        return tensor
    return tensor.view(_SIGNED[tensor.element_size()])


def _to_coo(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()


def _align_sparse(sides: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
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

"""The two values of a comparison: how to compare (`Tolerance`) and what was found (`Comparison`)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypedDict

from torchsleuth.errors import BadValue, UnknownSetting
from torchsleuth.outcome import Symptom

EXACT = "exact equality"
ALLCLOSE = "allclose"
RMSE = "RMSE against fp64"
COSINE = "cosine similarity"
IOU = "intersection over union"


class ToleranceOptions(TypedDict, total=False):
    """The fields of `Tolerance` as keyword arguments, for `same(ref, res, tol=1e-3)`."""

    tol: float
    rtol: float | None
    atol: float | None
    cos_similarity: bool
    cos_threshold: float
    equal_nan: bool
    exact_dtype: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    multiplier: float | None
    use_larger_multiplier_for_smaller_tensor: bool
    loose_tol: float | None
    iou_threshold: float | None


@dataclass(frozen=True)
class Tolerance:
    """How two values are compared.

    Floating-point values agree when `|ref - res| <= atol + rtol * |ref|` for every element. Where that
    fails and an fp64 reference is at hand, they still agree when the result's RMSE against the reference
    is at most `multiplier` times eager's own, plus a tenth of `atol`. Integers, bools and strings must be
    equal.

    >>> Tolerance(tol=1e-3).rtol_or_default
    0.001
    """

    tol: float = 1e-4
    """Both relative and absolute tolerance, unless `rtol` or `atol` says otherwise."""
    rtol: float | None = None
    atol: float | None = None
    cos_similarity: bool = False
    """Compare directions instead of elements: agree when the cosine is at least `cos_threshold`."""
    cos_threshold: float = 0.99
    equal_nan: bool = True
    """NaN at the same place on both sides is agreement."""
    exact_dtype: bool = True
    relax_numpy_equality: bool = False
    """A numpy scalar may stand against a Python number of the same value."""
    ignore_non_fp: bool = False
    """Pass over whatever is not floating point (rounding noise may tip an index or a mask)."""
    multiplier: float | None = None
    """For the RMSE rule; None: chosen by dtype and size, see `rmse_multiplier`."""
    use_larger_multiplier_for_smaller_tensor: bool = False
    loose_tol: float | None = None
    """Where eager is NaN or infinite, it shows no noise to go by: a result that is within this of fp64 agrees."""
    iou_threshold: float | None = None
    """Compare bools as masks: agree when they share at least this part of what either marks. None: must be equal."""

    def __post_init__(self) -> None:
        for name in ("tol", "rtol", "atol", "cos_threshold", "multiplier", "loose_tol", "iou_threshold"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is None and name not in ("tol", "cos_threshold"):
                continue
            if not number or not value >= 0 or math.isinf(value):
                raise BadValue(
                    f"{name}={value!r} is not a tolerance",
                    cause=f"{name} bounds a difference, so it is a finite number that is not negative",
                    remedy=f"give {name} a value such as 1e-4, or 0 for an exact comparison",
                )

    @classmethod
    def exact(cls, **options: Any) -> Tolerance:
        """No difference at all is let through (NaN still equals NaN, and -0.0 equals 0.0)."""
        return cls().replace(tol=0.0, rtol=0.0, atol=0.0, **options)

    def replace(self, **options: Any) -> Tolerance:
        """A copy with some fields changed; an unknown name is an error that lists the valid ones."""
        valid = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(options) - set(valid))
        if unknown:
            raise UnknownSetting(
                f"no such option of a comparison: {', '.join(unknown)}",
                cause="the keyword arguments of a comparison are the fields of Tolerance",
                remedy=f"use one of: {', '.join(valid)}",
            )
        return dataclasses.replace(self, **options)

    @property
    def rtol_or_default(self) -> float:
        return self.tol if self.rtol is None else self.rtol

    @property
    def atol_or_default(self) -> float:
        return self.tol if self.atol is None else self.atol


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. Truthy when the values agree; prints as one paragraph.

    Where the values disagree, everything below speaks of the *first* leaf that does. Where they agree, the
    numbers are those of the leaf that came closest to its bound.

    >>> from torchsleuth.compare import same
    >>> print(same([1, 2], [1, 3]))
    The results differ at [1] (integer): expected 2, got 3. The rule was exact equality.
    """

    agree: bool
    path: str = ""
    """Where, as a Python expression on the result: `['loss'][0].logits`; empty for the result itself."""
    symptom: Symptom | None = None
    index: tuple[int, ...] | None = None
    """The first element that differs (of a NaN or infinity: the first that shows it), where the leaf is a tensor."""
    ref: Any = None
    """The expected value: of that element, or of the leaf where it is no tensor (or the shape, dtype, …)."""
    res: Any = None
    message: str = ""
    rule: str = ""
    """The rule that decided: 'allclose', 'RMSE against fp64', 'cosine similarity', 'exact equality', …"""
    max_abs: float | None = None
    max_rel: float | None = None
    rmse: float | None = None
    cosine: float | None = None
    ref_rmse: float | None = None
    """RMSE of the expected values against the fp64 reference, where that decided."""
    res_rmse: float | None = None
    multiplier: float | None = None
    outside: int = 0
    """Elements outside the tolerance, of `numel`."""
    numel: int = 0
    leaves: int = 0
    """How many leaves were compared before this answer stood."""
    ignored: int = 0
    """How many leaves were passed over because of `ignore_non_fp`."""
    notes: tuple[str, ...] = ()
    raised: BaseException | None = None
    """Set when there was nothing to compare because one side raised: another failure, not a divergence."""
    tolerance: Tolerance = Tolerance()

    def __bool__(self) -> bool:
        return self.agree

    def __str__(self) -> str:
        return " ".join(self._sentences())

    def _sentences(self) -> list[str]:
        return [*self._verdict(), *self._numbers(), *self.notes]

    def _verdict(self) -> list[str]:
        if self.raised is not None:
            return []
        if self.agree:
            leaves = "1 leaf was" if self.leaves == 1 else f"{self.leaves} leaves were"
            ignored = f", {self.ignored} ignored as not floating point" if self.ignored else ""
            return [f"The results agree: {leaves} compared{ignored}."]
        where = f"differ at {self.path}" if self.path else "differ"
        place = "" if self.index is None else f", first at element {_show_index(self.index)}"
        ref, res = _show_both(self.ref, self.res)
        return [
            f"The results {where} ({self.symptom}): expected {ref}, got {res}{place}.",
            *([self.message] if self.message else []),
            *([f"{self.outside:,} of {self.numel:,} elements are outside the bound."] if self.outside else []),
        ]

    def _numbers(self) -> list[str]:
        shown = {
            "max abs error": self.max_abs,
            "max rel error": self.max_rel,
            "RMSE": self.rmse,
            "cosine": self.cosine,
        }
        numbers = ", ".join(f"{name} {_show(value)}" for name, value in shown.items() if value is not None)
        said = []
        if numbers:
            closest = f" at {self.path}" if self.agree and self.path else ""
            said.append(f"{'Largest differences' if self.agree else 'Differences'}{closest}: {numbers}.")
        if self.ref_rmse is not None and self.res_rmse is not None:
            said.append(
                f"Against fp64 the expected values are off by RMSE {_show(self.ref_rmse)} and the result by "
                f"{_show(self.res_rmse)} (allowed: {_show(self.multiplier)} times as much)."
            )
        if self.rule:
            said.append(f"The rule was {self.rule}.")
        return said


def describe_rule(rule: str, tolerance: Tolerance) -> str:
    """The rule with its numbers, as a Comparison shows it."""
    if rule == ALLCLOSE:
        return f"allclose with rtol {tolerance.rtol_or_default:g} and atol {tolerance.atol_or_default:g}"
    if rule == COSINE:
        return f"cosine similarity of at least {tolerance.cos_threshold:g}"
    if rule == IOU:
        return f"intersection over union of at least {tolerance.iou_threshold:g}"
    return rule


def rmse_multiplier(*, low_precision: bool, shape: tuple[int, ...], tolerance: Tolerance) -> float:
    """How many times eager's own RMSE against fp64 a result may show.

    The peer's figures, so that `same` answers as its users expect: twice; three times for half precision, for
    fewer than 1,000 elements, for 1×1 maps, and for a tolerance of 2 % or more, where noise dominates. They
    jump with size: shrinking a tensor can flip the answer of `same`. `judge` does not use them.
    """
    if tolerance.multiplier is not None:
        return tolerance.multiplier
    numel = math.prod(shape)
    if tolerance.use_larger_multiplier_for_smaller_tensor and numel <= 500:
        return 10.0 if numel <= 10 else 8.0
    one_by_one = len(shape) == 4 and shape[-1] == shape[-2] == 1
    noisy = low_precision or numel < 1000 or one_by_one or tolerance.atol_or_default >= 2e-2
    return 3.0 if noisy else 2.0


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = repr(value) if not isinstance(value, _Raw) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _show_both(ref: Any, res: Any) -> tuple[str, str]:
    """Two values with as many digits as it takes to tell them apart."""
    shown = _show(ref), _show(res)
    if shown[0] == shown[1] and isinstance(ref, float) and isinstance(res, float) and ref != res:
        return repr(ref), repr(res)
    return shown


def _show_index(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"


class _Raw(str):
    """Text that is shown as it is, without quotes (a shape, a type's name)."""

    __slots__ = ()


def raw(value: object) -> str:
    """`value` as text that a Comparison prints without quotes."""
    return _Raw(value)

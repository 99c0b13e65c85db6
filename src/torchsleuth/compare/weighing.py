"""One leaf of the results, weighed: is what `compiled` gives there explained by what eager may give?

Three questions, from the plainest to the subtlest: are the two alike in shape and dtype, are they equal, and if
not, is the difference one that rounding makes? The last needs grounds: eager's fp64 values and its perturbed runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchsleuth.outcome import Symptom

from .agree import same
from .comparison import Tolerance
from .judgement import LeafEvidence, Verdict
from .kinds import is_floating
from .leaves import compare_leaves, metadata_difference
from .noise import weigh, weigh_integers
from .tree import Leaves

AGREES = "eager and compiled agree bit for bit"


@dataclass
class Grounds:
    """What is known of eager beyond its plain runs; leaves by path."""

    fp64: dict[str, Any] = field(default_factory=dict)
    perturbed: list[dict[str, Any]] = field(default_factory=list)
    """Runs with perturbed roundings."""
    tried: int = 0
    """How many of those were tried; some may have raised."""
    no_reference: str | None = None
    """Why there is no fp64 run."""
    not_perturbed: str | None = None
    """Why there is no perturbed run, or fewer than were tried."""

    def reference(self, path: str, first: torch.Tensor) -> torch.Tensor | None:
        """The fp64 value of a leaf, if there is one of use."""
        value = self.fp64.get(path)
        wide = isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)
        return value if wide and value is not None and value.shape == first.shape else None


def weigh_leaf(path: str, eager: list[Any], compiled: list[Any], grounds: Grounds) -> LeafEvidence:
    """What the runs of both sides show at one path. The first run of eager is what was expected."""
    first = eager[0]
    if not isinstance(first, torch.Tensor):
        return _weigh_object(path, first, compiled)
    rounded = [run.get(path) for run in grounds.perturbed]
    for value in compiled:
        differs = metadata_difference(Leaves(path, first, value, None))
        if differs is None:
            continue
        others = [one for one in (*eager, *rounded, grounds.fp64.get(path)) if isinstance(one, torch.Tensor)]
        reason = f"the {differs.symptom} differs: eager gives {differs.ref}, compiled {differs.res}"
        if differs.symptom is Symptom.SHAPE and any(other.shape != first.shape for other in others):
            said = "the shape differs, as it does in other runs of eager"
            return LeafEvidence(path, Verdict.NOISE, said, symptom=Symptom.SHAPE)
        return LeafEvidence(path, Verdict.BUG, reason, symptom=differs.symptom)
    if all(same(first, value, tolerance=Tolerance.exact()) for value in (*eager, *compiled)):
        return LeafEvidence(path, Verdict.NOISE, AGREES, numel=first.numel())
    eager, rounded = ([value for value in runs if is_alike(value, first)] for runs in (eager, rounded))
    if is_floating(first):
        return _weigh_floats(path, eager, compiled, rounded, grounds)
    return _weigh_integers(path, eager, compiled, rounded, grounds)


def is_alike(value: Any, first: torch.Tensor) -> bool:
    """Whether a leaf of another run can be compared with this one element by element."""
    return isinstance(value, torch.Tensor) and value.shape == first.shape and value.dtype == first.dtype


def _weigh_floats(
    path: str, eager: list[Any], compiled: list[Any], rounded: list[Any], grounds: Grounds
) -> LeafEvidence:
    first = eager[0]
    centre = grounds.reference(path, first)
    noise = weigh(first if centre is None else centre, eager, rounded, compiled, first.dtype)
    index = noise.index
    found = LeafEvidence(
        path,
        Verdict.NOISE,
        f"compiled is as far from fp64 as rounding may lead{_in_units(noise.worst, 'the noise of eager')}",
        symptom=Symptom.NAN if noise.nonfinite else Symptom.VALUE,
        index=index,
        eager_value=None if index is None else first[index].item(),
        compiled_value=None if index is None else compiled[noise.run][index].item(),
        fp64_value=None if index is None or centre is None else centre[index].item(),
        noise=noise,
        numel=first.numel(),
    )
    if noise.nonfinite:
        said = f"{noise.nonfinite:,} of {first.numel():,} elements are NaN or infinite as in no run of eager"
        return replace(found, verdict=Verdict.BUG, reason=said)
    if centre is None or not rounded:
        why = grounds.no_reference or grounds.not_perturbed or "the fp64 run has no such value"
        said = (
            f"the values differ{_in_units(noise.worst, 'what perturbed eager shows')}, but without an fp64 reference"
            if centre is None
            else "the values differ, but without a measure of the noise"
        )
        return replace(found, verdict=Verdict.UNKNOWN, reason=f"{said} bug and noise cannot be told apart: {why}")
    if noise.explained:
        return found
    said = (
        f"{noise.unexplained:,} of {first.numel():,} elements are further from fp64 than rounding explains, "
        f"the worst {_times(noise.worst)} the noise of eager"
    )
    if noise.faint == noise.unexplained:
        said += ", but all by less than one rounding of a typical element: small values at fault, or a coarse formula"
    elif noise.astray:
        said += f"; at {noise.astray:,} of them eager is far from fp64 too, for other reasons than rounding"
    return replace(found, verdict=Verdict.BUG if noise.blatant else Verdict.UNKNOWN, reason=said)


def _weigh_integers(
    path: str, eager: list[Any], compiled: list[Any], rounded: list[Any], grounds: Grounds
) -> LeafEvidence:
    first = eager[0]
    exact: list[Any] = [value for value in (grounds.fp64.get(path),) if is_alike(value, first)]
    flips = weigh_integers(eager, [*rounded, *exact], compiled)
    index = flips.index
    found = LeafEvidence(
        path,
        Verdict.BUG,
        f"{flips.differing:,} of {first.numel():,} integers differ, "
        f"{flips.unexplained:,} of them as in no run of eager, however it rounds",
        symptom=Symptom.INTEGER,
        index=index,
        eager_value=None if index is None else first[index].item(),
        compiled_value=None if index is None else compiled[flips.run][index].item(),
        flips=flips,
        numel=first.numel(),
    )
    if flips.explained:
        said = f"{flips.differing:,} of {first.numel():,} integers differ, as they do in other runs of eager"
        return replace(found, verdict=Verdict.NOISE, reason=said)
    if grounds.tried and not rounded:
        said = f"the integers differ, and whether rounding turns them could not be measured: {grounds.not_perturbed}"
        return replace(found, verdict=Verdict.UNKNOWN, reason=said)
    return found


def _weigh_object(path: str, eager: Any, compiled: list[Any]) -> LeafEvidence:
    for value in compiled:
        found = compare_leaves(Leaves(path, eager, value, None), Tolerance.exact())
        if found is not None and not found.agree:
            reason = f"the {found.symptom} differs: eager gives {found.ref!r}, compiled {found.res!r}"
            return LeafEvidence(path, Verdict.BUG, reason, found.symptom, eager_value=eager, compiled_value=value)
    return LeafEvidence(path, Verdict.NOISE, AGREES)


def _in_units(ratio: float, of: str) -> str:
    """How far, if that says anything."""
    return f" ({ratio:.2g} times {of})" if ratio > 0 else ""


def _times(ratio: float) -> str:
    return "beyond measure of" if math.isinf(ratio) else f"{ratio:.3g} times"

"""The answer of `judge` as data: the verdict, and everything that was measured on the way to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torchsleuth.outcome import Symptom, Word

from .comparison import Comparison
from .distribution import DistributionReport
from .noise import FlipReport, NoiseReport


class Verdict(Word):
    """What the difference between two results is."""

    BUG = "bug"
    NOISE = "noise"
    NONDETERMINISTIC = "nondeterministic"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LeafEvidence:
    """One leaf of the result, and what was measured there."""

    path: str
    verdict: Verdict
    reason: str
    symptom: Symptom | None = None
    index: tuple[int, ...] | None = None
    eager_value: Any = None
    compiled_value: Any = None
    fp64_value: Any = None
    noise: NoiseReport | None = None
    flips: FlipReport | None = None
    distribution: DistributionReport | None = None
    numel: int = 0

    @property
    def ratio(self) -> float:
        """How many times its noise the leaf is off (0 where it is equal, infinite where noise cannot explain it)."""
        if self.noise is not None:
            return self.noise.worst
        return math.inf if self.verdict is Verdict.BUG else 0.0

    @property
    def unexplained(self) -> int:
        """How many elements no run of eager explains so far."""
        if self.noise is not None:
            return self.noise.unexplained + self.noise.nonfinite
        return self.flips.unexplained if self.flips is not None else 0


@dataclass(frozen=True)
class RngEvidence:
    """Whether random numbers were drawn, and by whom."""

    operators: tuple[str, ...] = ()
    """Random operators that eager ran (or that its graph holds)."""
    eager_drew: bool = False
    compiled_drew: bool = False
    same_consumption: bool = True
    """Both sides left the generators in the same state."""

    def __str__(self) -> str:
        if not self.eager_drew and not self.compiled_drew:
            return "Neither side drew random numbers."
        names = f" ({', '.join(dict.fromkeys(self.operators))})" if self.operators else ""
        if self.eager_drew and self.compiled_drew:
            alike = "and left" if self.same_consumption else "but did not leave"
            return f"Both sides drew random numbers{names} {alike} the generators in the same state."
        who, other = ("eager", "compiled") if self.eager_drew else ("compiled", "eager")
        return f"Only {who} drew random numbers{names}; {other} did not."


@dataclass(frozen=True)
class Judgement:
    """Bug or noise, why, and all that was measured on the way.

    It is not a bool: there are four answers. Ask `judgement.verdict is Verdict.BUG`.
    """

    verdict: Verdict
    reason: str
    leaf: LeafEvidence | None = None
    """The leaf that decided."""
    leaves: tuple[LeafEvidence, ...] = ()
    comparison: Comparison | None = None
    """Eager against compiled by plain `same`, for reference."""
    rng: RngEvidence = field(default_factory=RngEvidence)
    eager_spread: float = 0.0
    """Largest difference between repeated eager runs from one state."""
    compiled_spread: float = 0.0
    no_reference: str | None = None
    """Why there is no fp64 reference; None when there is one, or none was needed."""
    not_perturbed: str | None = None
    """Why the noise could not be measured, or not in each run; None when it was, or was not needed."""
    raised: BaseException | None = None
    runs: int = 0
    """Runs it took, both sides together."""

    def __bool__(self) -> NoReturn:
        raise TypeError("a judgement has four answers; compare judgement.verdict with Verdict.BUG, NOISE, …")

    def __str__(self) -> str:
        said = [f"{self.verdict.value.upper()}: {self.reason}", *self.evidence()]
        return "\n".join(said)

    def evidence(self) -> list[str]:
        """The measurements, a sentence each."""
        said = []
        noise = self.leaf.noise if self.leaf else None
        if noise is not None and self.no_reference is None:
            said.append(
                f"Against fp64 eager is off by at most {noise.eager_max:.3g} (RMS {noise.eager_rms:.3g}), "
                f"compiled by {noise.result_max:.3g} (RMS {noise.result_rms:.3g}); "
                f"rounding alone may cause {noise.noise_rms:.3g} (RMS)."
            )
        if self.leaf is not None and self.leaf.index is not None:
            exact = "" if self.leaf.fp64_value is None else f", fp64 {_show(self.leaf.fp64_value)}"
            element = f"[{', '.join(map(str, self.leaf.index))}]" if self.leaf.index else ""
            said.append(
                f"Worst at {self.leaf.path}{element}: "
                f"eager {_show(self.leaf.eager_value)}, compiled {_show(self.leaf.compiled_value)}{exact}."
            )
        if self.no_reference is not None:
            said.append(f"There is no fp64 reference: {self.no_reference}.")
        if self.not_perturbed is not None:
            said.append(f"Not every way of rounding could be tried: {self.not_perturbed}.")
        for who, spread in (("eager", self.eager_spread), ("compiled", self.compiled_spread)):
            if spread > 0:
                said.append(f"Repeated runs of {who} from one random state differ by up to {spread:.3g}.")
        if self.eager_spread == 0 and self.compiled_spread == 0 and self.leaves:
            said.append("Each side repeats itself bit for bit.")
        return [*said, str(self.rng)] if self.raised is None else said


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)

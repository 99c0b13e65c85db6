"""Do two random programs draw from the same distribution? Permutation tests on repeated runs.

A compiler has its own random number generator, so the masks of a dropout differ from eager's and no element can
be compared with its twin. What must agree is the distribution. Each run is reduced to a sketch (some thousand
of its elements, and summaries of all of them); if both programs are the same, it cannot matter which sketch came
from which. So the sketches are shuffled between the two sides, thousands of times, and a statistic that is
larger for the true division than for all but a few shuffles is evidence. That is exact for any dependence between
elements. The statistics look for a shift, a change of scale, of spread, of single elements, and of the values that
occur at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SHUFFLES = 1999
SIGNIFICANT = 0.005
"""After correction for the number of statistics; a finding must repeat on fresh runs to count."""
_SAMPLED = 2048


@dataclass(frozen=True)
class DistributionReport:
    """What the test found."""

    p_value: float
    statistic: str
    resolution: float
    """The smallest systematic change of scale that would have shown, as a fraction of the values."""

    @property
    def differs(self) -> bool:
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True)
class Sketcher:
    """Reduces runs to sketches. `quiet` is how far rounding alone may move each element: that is no difference."""

    quiet: torch.Tensor

    def sketch(self, value: torch.Tensor) -> torch.Tensor:
        """Some elements (always the same ones) and summaries of all of them."""
        flat = _flat(value)
        finite = flat.isfinite()
        clean = torch.where(finite, flat, torch.zeros_like(flat))
        hushed = clean.abs() <= _flat(self.quiet)
        summaries = [
            clean.mean(),
            clean.square().mean().sqrt(),
            clean.abs().mean(),
            clean.min(),
            clean.max(),
            hushed.to(torch.float64).mean(),
            (~finite).to(torch.float64).mean(),
        ]
        return torch.cat([_sampled(clean), torch.stack(summaries)]).cpu()

    def dead_zone(self) -> torch.Tensor:
        """For each number of a sketch, the differences that are none."""
        quiet = _flat(self.quiet)
        loudest, mean, nothing = quiet.max(), quiet.mean(), quiet.new_zeros(())
        summaries = [mean, quiet.square().mean().sqrt(), mean, loudest, loudest, nothing, nothing]
        return torch.cat([_sampled(quiet), torch.stack(summaries)]).cpu()


def compare_distributions(
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    dead_zone: torch.Tensor,
    *,
    unit: float,
    seed: int = 0,
) -> DistributionReport:
    """Test whether two equally long lists of sketches come from one distribution.

    `unit` is the relative rounding error of the values: differences of a few units are none either.
    """
    if len(ours) != len(theirs) or len(ours) < 4:
        raise ValueError("two lists of at least four sketches, equally long, are needed")
    pooled = torch.stack([*ours, *theirs])
    generator = torch.Generator().manual_seed(seed)
    division = _true_division(len(ours))
    shuffled = [division[torch.randperm(len(division), generator=generator)] for _ in range(SHUFFLES)]
    dead_zone = torch.maximum(dead_zone, 8 * unit * pooled.abs().amax(0))
    statistics, scale_change = _statistics(pooled, torch.stack([division, *shuffled]), dead_zone, unit)
    p_values = {
        name: (1 + int((values[1:] >= values[0] * (1 - 1e-12)).sum())) / (1 + SHUFFLES)
        for name, values in statistics.items()
        if float(values[0]) > 0
    }
    resolution = float(scale_change[1:].abs().quantile(0.995))
    if not p_values:
        return DistributionReport(1.0, "no difference", resolution)
    name = min(p_values, key=lambda key: p_values[key])
    return DistributionReport(min(1.0, p_values[name] * len(statistics)), name, resolution)


def varies(sketches: Sequence[torch.Tensor], dead_zone: torch.Tensor) -> bool:
    """Whether runs with other seeds give other values, beyond rounding."""
    stacked = torch.stack(list(sketches))
    return bool((stacked.amax(0) - stacked.amin(0) > 2 * dead_zone).any())


def _flat(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.to(torch.float64)


def _sampled(flat: torch.Tensor) -> torch.Tensor:
    if flat.numel() <= _SAMPLED:
        return flat
    chooser = torch.Generator().manual_seed(flat.numel())
    return flat[torch.randint(flat.numel(), (_SAMPLED,), generator=chooser).to(flat.device)]


def _true_division(count: int) -> torch.Tensor:
    """+1/n for our runs and -1/n for theirs, so that labels @ sketches is the difference of the means."""
    return torch.cat([torch.full((count,), 1 / count), torch.full((count,), -1 / count)]).to(torch.float64)


def _statistics(
    pooled: torch.Tensor, labels: torch.Tensor, dead_zone: torch.Tensor, unit: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Each statistic for the true division (first) and for every shuffle; and the change of scale."""
    spread = pooled.std(0)
    loud = (spread > dead_zone) & (spread > 0)
    values, spread, dead_zone = pooled[:, loud], spread[loud], dead_zone[loud]
    if values.shape[1] == 0:
        none = torch.zeros(labels.shape[0], dtype=torch.float64)
        return {"shift": none}, none
    mean = values.mean(0)
    weight = mean / spread
    differences = labels @ values
    scale_change = (differences / spread) @ weight / weight.square().sum().clamp_min(1e-300)
    beyond = (differences.abs() - dead_zone).clamp_min(0) * differences.sign() / spread
    squares = labels @ ((values - mean) / spread).square()
    return {
        "a shift of the values": beyond.mean(1).abs(),
        "a change of scale": (scale_change.abs() - 8 * unit).clamp_min(0),
        "differences all over": beyond.square().mean(1),
        "a difference at single elements": beyond.abs().amax(1),
        "a change of spread": squares.mean(1).abs(),
        "changes of spread all over": squares.square().mean(1),
        "values that the other side does not take": _neighbours(values, dead_zone, labels),
    }, scale_change


def _neighbours(values: torch.Tensor, dead_zone: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How often the nearest value of the same element comes from the same side (ties are shared out)."""
    runs = values.shape[0]
    nearest = torch.zeros(runs, runs, dtype=torch.float64)
    for run in range(runs):
        distance = ((values - values[run]).abs() - dead_zone).clamp_min(0)
        distance[run] = torch.inf
        closest = (distance == distance.amin(0)).to(torch.float64)
        nearest[run] = (closest / closest.sum(0)).sum(1)
    side = labels.sign()
    return ((side @ nearest) * side).sum(1) / (runs * values.shape[1])

"""Do two random programs draw from the same distribution? Permutation tests on repeated runs.

A compiler has its own random number generator, so the masks of a dropout differ from eager's and no element can
be compared with its twin. What must agree is the distribution. Each run is reduced to a sketch (some thousand
of its elements, and summaries of all of them); if both programs are the same, it cannot matter which sketch came
from which. So the sketches are shuffled between the two sides, thousands of times, and a statistic that is
larger for the true division than for all but a few shuffles is evidence. That is exact for any dependence between
elements. The statistics look for a shift, a change of scale, of spread, of single elements, of the values that
occur at all, and of how far the whole varies (it does not vary alike if elements are dropped in groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SHUFFLES = 1999
SIGNIFICANT = 0.005
"""After correction for the number of statistics; a finding must repeat on fresh runs to count."""
SAMPLED = 2048
"""Elements of a large tensor that a sketch keeps."""
_SUMMARIES = 7
"""Numbers at the end of a sketch that sum up the whole tensor."""
_SUSPICIOUS = 64
"""Elements kept besides because they differed most in a first look."""


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


class Scout:
    """Where two programs differ most, element by element: where to look closely on fresh runs.

    What it finds is no evidence (of a million elements, some always differ), only a place to look for it.
    """

    def __init__(self) -> None:
        self.counts = [0, 0]
        self.sums: list[torch.Tensor | float] = [0.0, 0.0]
        self.squares: list[torch.Tensor | float] = [0.0, 0.0]

    def look(self, side: int, value: torch.Tensor) -> None:
        """Take in a run of ours (0) or theirs (1)."""
        flat = _flat(value).nan_to_num()
        self.counts[side] += 1
        self.sums[side] = self.sums[side] + flat
        self.squares[side] = self.squares[side] + flat.square()

    def suspicious(self) -> torch.Tensor:
        """The elements whose means differ most for their spread, and those whose spreads do."""
        means = [torch.as_tensor(total) / count for total, count in zip(self.sums, self.counts, strict=True)]
        spreads = [
            (torch.as_tensor(square) / count - mean.square()).clamp_min(0)
            for square, count, mean in zip(self.squares, self.counts, means, strict=True)
        ]
        both = (spreads[0] + spreads[1]).clamp_min(1e-300)
        shifted, spread = (means[0] - means[1]).square() / both, (spreads[0] - spreads[1]).abs() / both
        many = min(_SUSPICIOUS, both.numel())
        chosen: torch.Tensor = torch.cat([shifted.topk(many).indices, spread.topk(many).indices]).unique()
        return chosen


class Sketcher:
    """Reduces runs to sketches. `quiet` is how far rounding alone may move each element: that is no difference."""

    def __init__(self, quiet: torch.Tensor, suspicious: torch.Tensor | None = None) -> None:
        self.quiet = _flat(quiet)
        numel = self.quiet.numel()
        if numel <= SAMPLED:
            self.places = torch.arange(numel)
        else:
            chosen = torch.randint(numel, (SAMPLED,), generator=torch.Generator().manual_seed(numel))
            self.places = chosen if suspicious is None else torch.cat([chosen, suspicious.cpu()])

    def sketch(self, value: torch.Tensor) -> torch.Tensor:
        """Some elements (always the same ones) and summaries of all of them."""
        flat = _flat(value)
        finite = flat.isfinite()
        clean = torch.where(finite, flat, torch.zeros_like(flat))
        hushed = clean.abs() <= self.quiet
        summaries = [
            clean.mean(),
            clean.square().mean().sqrt(),
            clean.abs().mean(),
            clean.min(),
            clean.max(),
            hushed.to(torch.float64).mean(),
            (~finite).to(torch.float64).mean(),
        ]
        return torch.cat([clean[self.places.to(clean.device)], torch.stack(summaries)]).cpu()

    def dead_zone(self) -> torch.Tensor:
        """For each number of a sketch, the differences that are none."""
        quiet = self.quiet
        loudest, mean, nothing = quiet.max(), quiet.mean(), quiet.new_zeros(())
        summaries = [mean, quiet.square().mean().sqrt(), mean, loudest, loudest, nothing, nothing]
        return torch.cat([quiet[self.places.to(quiet.device)], torch.stack(summaries)]).cpu()


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
    statistics, scale_change = _statistics(
        _snapped(pooled, dead_zone), torch.stack([division, *shuffled]), dead_zone, unit
    )
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


def _true_division(count: int) -> torch.Tensor:
    """+1/n for our runs and -1/n for theirs, so that labels @ sketches is the difference of the means."""
    return torch.cat([torch.full((count,), 1 / count), torch.full((count,), -1 / count)]).to(torch.float64)


def _snapped(pooled: torch.Tensor, dead_zone: torch.Tensor) -> torch.Tensor:
    """Values of an element that are as good as equal, made equal (whichever side they came from).

    A compiler rounds differently in each run alike. Were that left in, the smallest such difference would tell the
    sides apart wherever an element takes few values, and breaks ties between shuffles.
    """
    ordered, order = pooled.sort(0)
    snapped = torch.empty_like(ordered)
    start = ordered[0]
    for row, values in enumerate(ordered):
        start = torch.where(values - start > dead_zone, values, start)
        snapped[row] = start
    return torch.empty_like(pooled).scatter_(0, order, snapped)


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
        "a change of spread at single elements": squares.abs().amax(1),
        "values that the other side does not take": _neighbours(values, dead_zone, labels),
        "a change in how far the whole varies": _variances(values, int(loud[-_SUMMARIES:].sum()), labels),
    }, scale_change


def _variances(values: torch.Tensor, summaries: int, labels: torch.Tensor) -> torch.Tensor:
    """How unlike the two sides vary in one of the summaries (the last columns): the largest ratio of variances."""
    if summaries == 0:
        return torch.zeros(labels.shape[0], dtype=torch.float64)
    last = values[:, -summaries:]
    last = (last - last.mean(0)) / last.std(0)
    count = values.shape[0] / 2
    sides = ((labels > 0).to(torch.float64), (labels < 0).to(torch.float64))
    ours, theirs = (side @ last.square() / count - (side @ last / count).square() for side in sides)
    return ((ours + 1e-3) / (theirs + 1e-3)).log().abs().amax(1)


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

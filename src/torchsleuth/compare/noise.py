"""Is one result within the noise of a program? Element by element, against the spread of its perturbed runs.

The centre is the fp64 reference. The noise of an element is the largest distance from it that eager showed, in
plain and in perturbed runs. A result is explained when it is at most `EXPLAINED` times as far out. Where a program
decides on the edge of a comparison, an element may tip over in one run and no other; how often that happens
is itself measured, by asking of each perturbed run what is asked of the result.

Nothing here depends on the number of elements, so shrinking a tensor does not change the answer by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .numeric import chunks, global_index

EXPLAINED = 8.0
"""Up to this many times eager's noise is noise."""
BLATANT = 32.0
"""From this many times on it is no noise. In between: measured again, and then said to be unknown."""
TIPPING = 4
"""A result may tip over this many times more elements than the worst perturbed run."""
_BOX = 1 << 22
"""Elements weighed at a time."""


@dataclass(frozen=True)
class NoiseReport:
    """How a result stands to the noise of its program."""

    worst: float
    """The largest distance from the centre, in units of that element's noise."""
    unexplained: int
    tipping: int
    """The most elements that any perturbed run left unexplained by the others."""
    nonfinite: int
    """Elements that are NaN or infinite (or are not) without any run of eager to excuse it."""
    index: tuple[int, ...] | None
    eager_max: float
    eager_rms: float
    result_max: float
    result_rms: float
    noise_rms: float

    @property
    def explained(self) -> bool:
        return not self.nonfinite and self.unexplained <= TIPPING * self.tipping

    @property
    def blatant(self) -> bool:
        return not self.explained and (self.nonfinite > 0 or self.worst > BLATANT)


def weigh(
    centre: torch.Tensor,
    eager: Sequence[torch.Tensor],
    perturbed: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> NoiseReport:
    """Weigh results (repeated runs of the compiled program) against eager's plain and perturbed runs.

    All of one shape. `centre` is the fp64 reference, or eager's first run where there is none.
    """
    tally = _Tally(plain=len(eager), runs=len(eager) + len(perturbed), results=len(results))
    for box in chunks(tuple(centre.shape), _BOX):
        tally.add(box, centre[box], [run[box] for run in (*eager, *perturbed)], [one[box] for one in results], dtype)
    return tally.report()


def noise_of(centre: torch.Tensor, runs: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """How far each element may be from the centre by rounding alone."""
    centre = _centre(centre, dtype)
    noise = _floor(centre, dtype)
    for run in runs:
        noise = torch.maximum(noise, _distance(_wide(run), centre))
    return noise


class _Tally:
    """What `weigh` carries from one box of elements to the next."""

    def __init__(self, *, plain: int, runs: int, results: int) -> None:
        self.plain = plain
        self.alone = [0] * runs
        self.unexplained = [0] * results
        self.nonfinite = [0] * results
        self.worst = 0.0
        self.index: tuple[int, ...] | None = None
        self.eager, self.result, self.noise = _Errors(), _Errors(), _Errors()

    def add(
        self,
        box: tuple[slice, ...],
        centre: torch.Tensor,
        runs: list[torch.Tensor],
        results: list[torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        centre = _centre(centre, dtype)
        runs = [_wide(run) for run in runs]
        finite = torch.stack([run.isfinite() for run in runs])
        excused, usual = ~finite.all(0), finite.any(0) | centre.isfinite()
        floor = _floor(centre, dtype)
        distances = torch.stack([_distance(run, centre) for run in runs])
        noise = distances.amax(0)
        self.noise.add(noise)
        self.eager.add(distances[: self.plain].amax(0))
        self._count_loners(distances, floor)
        farthest = torch.zeros_like(noise)
        for number, result in enumerate(results):
            result = _wide(result)
            strange = torch.where(result.isfinite(), ~usual, ~excused)
            distance = _distance(result, centre)
            farthest = torch.maximum(farthest, distance)
            ratio = distance / (noise + floor)
            self.unexplained[number] += int((ratio > EXPLAINED).sum())
            self.nonfinite[number] += int(strange.sum())
            self._keep_worst(box, torch.where(strange, math.inf, ratio))
        self.result.add(farthest)

    def _count_loners(self, distances: torch.Tensor, floor: torch.Tensor) -> None:
        """For each run, the elements that all the other runs together do not explain."""
        if len(self.alone) < 2:
            return
        top = distances.topk(2, dim=0)
        alone = top.values[0] > EXPLAINED * (top.values[1] + floor)
        for run, count in enumerate(
            torch.bincount(top.indices[0][alone].reshape(-1), minlength=len(self.alone)).tolist()
        ):
            self.alone[run] += count

    def _keep_worst(self, box: tuple[slice, ...], ratio: torch.Tensor) -> None:
        flat = ratio.reshape(-1)
        spot = int(flat.argmax())
        if self.index is None or float(flat[spot]) > self.worst:
            self.worst = float(flat[spot])
            self.index = global_index(spot, box)

    def report(self) -> NoiseReport:
        return NoiseReport(
            worst=self.worst,
            unexplained=max(self.unexplained, default=0),
            tipping=max(self.alone, default=0),
            nonfinite=max(self.nonfinite, default=0),
            index=self.index,
            eager_max=self.eager.largest,
            eager_rms=self.eager.rms,
            result_max=self.result.largest,
            result_rms=self.result.rms,
            noise_rms=self.noise.rms,
        )


class _Errors:
    """The largest and the root of the mean square of some distances."""

    def __init__(self) -> None:
        self.largest = self.squares = 0.0
        self.count = 0

    def add(self, distance: torch.Tensor) -> None:
        self.largest = max(self.largest, float(distance.max()))
        self.squares += float(distance.square().sum())
        self.count += distance.numel()

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(frozen=True)
class FlipReport:
    """How an integer or bool result stands to eager, whose own flips under perturbation are known."""

    differing: int
    unexplained: int
    tipping: int
    index: tuple[int, ...] | None

    @property
    def explained(self) -> bool:
        return self.unexplained <= TIPPING * self.tipping


def weigh_integers(
    eager: Sequence[torch.Tensor], perturbed: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> FlipReport:
    """The same for values that are equal or not: what perturbed eager flips, a result may flip too."""
    centre = eager[0]
    flips = torch.stack([run != centre for run in (*eager, *perturbed)])
    often = flips.sum(0)
    tipping = max((int((flip & (often == 1)).sum()) for flip in flips), default=0)
    differing, unexplained, index = 0, 0, None
    for result in results:
        wrong = result != centre
        blamed = wrong & (often == 0)
        if int(wrong.sum()) >= differing and bool(wrong.any()):
            differing = int(wrong.sum())
            chosen = blamed if bool(blamed.any()) else wrong
            index = tuple(int(i) for i in torch.unravel_index(chosen.to(torch.uint8).argmax(), centre.shape))
        unexplained = max(unexplained, int(blamed.sum()))
    return FlipReport(differing, unexplained, tipping, index)


def _floor(centre: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What rounding to `dtype` alone may do to an element, however well the program is conditioned."""
    info = torch.finfo(dtype)
    size = torch.where(centre.isfinite(), centre, torch.zeros_like(centre)).abs()
    return size * (2 * info.eps) + 4 * info.smallest_normal * info.eps


def _distance(run: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """|run - centre|; zero where either is not finite (that is counted apart)."""
    both = run.isfinite() & centre.isfinite()
    return torch.where(both, (run - centre).abs(), torch.zeros((), dtype=torch.float64, device=centre.device))


def _centre(centre: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The centre in fp64, infinite where `dtype` has nothing so large."""
    wide = _wide(centre)
    if wide.is_complex():
        return wide
    return torch.where(wide.abs() > torch.finfo(dtype).max, wide.sign() * math.inf, wide)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)

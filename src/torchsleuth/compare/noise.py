"""Is one result within the noise of a program? Element by element, against the spread of its perturbed runs.

The centre is the fp64 reference. The noise of an element is the largest distance from it that eager showed, in
plain and in perturbed runs, and at least what rounding to the dtype may do. A result is explained when it is at
most `EXPLAINED` times as far out. An element on the edge of a comparison may tip over in one run and not in
another; perturbed runs are shaken hard enough to tip it as well, so that its jump is part of *its* noise,
and no excuse for any other element.

A small element among large ones may be off by many times its own noise, and still by no more than one rounding of
its neighbours: so does a less accurate formula (Inductor's exp(x) - 1 for expm1), and so does a fault in small values
only. Such an element is not explained, but it is not blatant either.

Eager itself may be far from fp64 for other reasons than rounding (the reference drew other random numbers, or eager
has a fault of its own). That is no licence for the result to be anywhere: there it must be near the one or the other.

Nothing here depends on the number of elements, so shrinking a tensor does not change the answer by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .numeric import chunks, global_index
from .rounding import UNITS

EXPLAINED = 3.0
"""Up to this many times eager's noise is noise."""
BLATANT = 6.0
"""From this many times on it is no noise. In between: measured again, and then said to be unknown."""
_BOX = 1 << 16
"""Elements weighed at a time: few enough to stay in the cache."""


@dataclass(frozen=True)
class NoiseReport:
    """How a result stands to the noise of its program."""

    worst: float
    """The largest distance from the centre, in units of that element's noise (of the elements that count most)."""
    unexplained: int
    """Elements that are further out than the noise explains."""
    faint: int
    """Those of them that are off by less than the grain: one rounding of a typical element of the tensor."""
    astray: int
    """Of the others, those where eager is no nearer to fp64, as if that were the reference of another program."""
    nonfinite: int
    """Elements that are NaN or infinite (or are not) without any run of eager to excuse it."""
    index: tuple[int, ...] | None
    """Where the worst element is."""
    run: int
    """In which of the results."""
    eager_max: float
    eager_rms: float
    result_max: float
    result_rms: float
    noise_rms: float

    @property
    def explained(self) -> bool:
        return not self.nonfinite and not self.unexplained

    @property
    def blatant(self) -> bool:
        certain = self.unexplained - self.faint - self.astray
        return self.nonfinite > 0 or (self.worst > BLATANT and certain > 0)


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
    tally = _Tally(len(results), _grain(centre, dtype))
    for box in chunks(tuple(centre.shape), _BOX):
        tally.add(
            box,
            _centre(centre[box], dtype),
            [_wide(run[box]) for run in eager],
            [_wide(run[box]) for run in perturbed],
            [_wide(one[box]) for one in results],
            dtype,
        )
    return tally.report()


@dataclass
class _Counts:
    """What was counted in one of the results."""

    unexplained: int = 0
    faint: int = 0
    astray: int = 0
    nonfinite: int = 0

    @property
    def weight(self) -> tuple[int, int, int]:
        """The worse of two results has the larger one."""
        return self.nonfinite, self.unexplained - self.faint - self.astray, self.unexplained


class _Tally:
    """What `weigh` carries from one box of elements to the next."""

    def __init__(self, results: int, grain: float) -> None:
        self.grain = grain
        self.counts = [_Counts() for _ in range(results)]
        self.rank = self.worst = 0.0
        self.index: tuple[int, ...] | None = None
        self.run = 0
        self.eager, self.result, self.noise = _Errors(), _Errors(), _Errors()

    def add(
        self,
        box: tuple[slice, ...],
        centre: torch.Tensor,
        eager: list[torch.Tensor],
        perturbed: list[torch.Tensor],
        results: list[torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        plain = _farthest(eager, centre)
        noise = torch.maximum(plain, _farthest(perturbed, centre))
        self.eager.add(plain)
        self.noise.add(noise)
        self.result.add(_farthest(results, centre))
        floor = _floor(centre, dtype)
        bound = torch.maximum(noise, floor)
        spread = _farthest([*eager[1:], *perturbed], eager[0]).maximum(floor)
        astray = plain > BLATANT * spread if perturbed else torch.zeros_like(plain, dtype=torch.bool)
        bound = torch.where(astray, spread, bound)
        for run, (result, counts) in enumerate(zip(results, self.counts, strict=True)):
            distance = _distance(result, centre)
            distance = torch.where(astray, distance.minimum(_distance(result, eager[0])), distance)
            ratio = distance / bound
            unexplained, faint = ratio > EXPLAINED, distance <= self.grain
            counts.unexplained += int(unexplained.sum())
            counts.faint += int((unexplained & faint).sum())
            counts.astray += int((unexplained & astray & ~faint).sum())
            doubtful = faint | astray
            strange = _strange(result, [centre, *eager, *perturbed])
            if strange is not None:
                counts.nonfinite += int(strange.sum())
                ratio = torch.where(strange, math.inf, ratio)
                doubtful &= ~strange
            self._keep_worst(run, box, ratio, doubtful)

    def _keep_worst(self, run: int, box: tuple[slice, ...], ratio: torch.Tensor, doubtful: torch.Tensor) -> None:
        """The largest ratio; doubtful elements count only where there are no others that are unexplained."""
        rank = torch.where(doubtful, ratio.clamp_max(EXPLAINED), ratio).reshape(-1)
        spot = int(rank.argmax())
        if float(rank[spot]) <= EXPLAINED:
            spot = int(ratio.reshape(-1).argmax())
        found = (float(rank[spot]), float(ratio.reshape(-1)[spot]))
        if self.index is None or found > (self.rank, self.worst):
            self.rank, self.worst = found
            self.run, self.index = run, global_index(spot, box)

    def report(self) -> NoiseReport:
        counts = max(self.counts, key=lambda one: one.weight)
        return NoiseReport(
            worst=self.worst,
            unexplained=counts.unexplained,
            faint=counts.faint,
            astray=counts.astray,
            nonfinite=counts.nonfinite,
            index=self.index,
            run=self.run,
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
    """Elements that differ and that no perturbed run of eager turns."""
    index: tuple[int, ...] | None
    run: int = 0
    """In which of the results that is."""

    @property
    def explained(self) -> bool:
        return not self.unexplained


def weigh_integers(
    eager: Sequence[torch.Tensor], perturbed: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> FlipReport:
    """The same for values that are equal or not: what perturbed eager flips, a result may flip too.

    (The fp64 reference is one more way to round.)
    """
    centre = eager[0]
    steady = torch.ones(centre.shape, dtype=torch.bool, device=centre.device)
    for other in (*eager, *perturbed):
        steady &= other == centre
    worst = FlipReport(0, 0, None)
    for run, result in enumerate(results):
        wrong = result != centre
        blamed = wrong & steady
        found = (int(blamed.sum()), int(wrong.sum()))
        if found > (worst.unexplained, worst.differing):
            chosen = (blamed if found[0] else wrong).reshape(-1).to(torch.uint8).argmax()
            index = tuple(int(i) for i in torch.unravel_index(chosen, centre.shape))
            worst = FlipReport(differing=found[1], unexplained=found[0], index=index, run=run)
    return worst


def _floor(centre: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What rounding to `dtype` alone may do to an element, however well the program is conditioned.

    Numbers too small to be normal may be flushed to zero; for fp16, whose range is short, that is not done.
    """
    info, fp32 = torch.finfo(dtype), torch.finfo(torch.float32)
    return _sizes(centre) * _rounding(dtype) + max(min(info.tiny, fp32.tiny), info.tiny * info.eps)


def _grain(centre: torch.Tensor, dtype: torch.dtype) -> float:
    """What one rounding does to a typical element."""
    return float(_sizes(_wide(centre)).square().mean().sqrt()) * _rounding(dtype) if centre.numel() else 0.0


def _rounding(dtype: torch.dtype) -> float:
    eps = torch.finfo(dtype).eps
    return (UNITS if eps <= torch.finfo(torch.float32).eps else 1.0) * eps


def _sizes(centre: torch.Tensor) -> torch.Tensor:
    return torch.where(centre.isfinite(), centre, torch.zeros_like(centre)).abs()


def _farthest(runs: Sequence[torch.Tensor], centre: torch.Tensor) -> torch.Tensor:
    """The largest distance of any run, for each element."""
    farthest = torch.zeros(centre.shape, dtype=torch.float64, device=centre.device)
    for run in runs:
        farthest = torch.maximum(farthest, _distance(run, centre), out=farthest)
    return farthest


def _distance(run: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """|run - centre|; zero where either is not finite (that is counted apart)."""
    return (run - centre).abs().nan_to_num_(nan=0.0, posinf=0.0)


def _strange(result: torch.Tensor, runs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Where the result is NaN, infinite, or finite, and no other run is so; None where all is finite."""
    everything = (result, *runs)
    if all(bool(one.sum().isfinite()) for one in everything):
        return None
    strange = torch.zeros(result.shape, dtype=torch.bool, device=result.device)
    for kind in (torch.isfinite, torch.isnan, *_infinities(result)):
        known = torch.stack([kind(run) for run in runs]).any(0)
        strange |= kind(result) & ~known
    return strange


def _infinities(like: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
    return (torch.isinf,) if like.is_complex() else (torch.isposinf, torch.isneginf)


def _centre(centre: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The centre in fp64, infinite where `dtype` has nothing so large."""
    wide = _wide(centre)
    if wide.is_complex():
        return wide
    return torch.where(wide.abs() > torch.finfo(dtype).max, wide.sign() * math.inf, wide)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)

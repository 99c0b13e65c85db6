"""Leaves that depend on random numbers: both sides run with many fresh seeds, and distributions are compared.

A compiler may draw its random numbers in another order than eager, so with one seed the values prove nothing. Over
many seeds they do: a dropout at the right rate beside a wrong operator gives the wrong distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsleuth.outcome import Symptom

from .distribution import SAMPLED, Scout, Sketcher, compare_distributions, varies
from .judgement import LeafEvidence, Verdict
from .kinds import is_floating
from .noise import EXPLAINED
from .rng import RngState, reseed
from .weighing import is_alike

QUIET_SEEDS = 8
"""Seeds with which the noise of a random leaf is measured."""
MEASURING, SCOUTING = 6, 4
"""Streams of seeds. Two batches of samples of two sides have 0 to 3."""

Run = dict[str, Any]
"""The leaves of one run, by path."""
Sketches = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class Chance:
    """How to run both sides from a given random state."""

    sides: tuple[Callable[[RngState], Run], Callable[[RngState], Run]]
    """Eager and compiled."""
    shake: Callable[[RngState, int], Run | None]
    """Eager with perturbed roundings; None if it raises."""
    expected: Run
    seeds: int
    """Runs of each side, at least."""

    def excuse(self, leaves: list[LeafEvidence], *, drew_alike: bool) -> list[LeafEvidence]:
        """The leaves, with a new verdict on those that differ and depend on random numbers.

        And on those that agree too, if the two sides did not draw alike: few elements may agree by chance.
        """
        numbers = (Symptom.VALUE, Symptom.NAN, Symptom.INTEGER)
        suspects = [
            leaf
            for leaf in leaves
            if (leaf.verdict is Verdict.NOISE and not drew_alike)
            or (leaf.verdict is not Verdict.NOISE and leaf.symptom in numbers)
        ]
        quiet = self._measure_quiet([leaf.path for leaf in suspects])
        if not quiet:
            return leaves
        sketchers = self._scout(quiet)
        batches: list[tuple[Sketches, Sketches]] = []
        found: dict[str, LeafEvidence] = {}
        for batch in range(2):  # what the first finds, the second must find again
            ours, theirs = (self._sample(side, 2 * batch + side, sketchers) for side in (0, 1))
            batches.append((ours, theirs))
            found = {
                leaf.path: self._decide(leaf, sketchers[leaf.path], batches)
                for leaf in suspects
                if leaf.path in sketchers
            }
            if not any(leaf.distribution and leaf.verdict is Verdict.BUG for leaf in found.values()):
                break
        return [found.get(leaf.path, leaf) for leaf in leaves]

    def _measure_quiet(self, paths: list[str]) -> dict[str, torch.Tensor]:
        """How far rounding alone may move each element of a leaf, whatever the random numbers; tensors only.

        A dropped element shows no noise, so this is measured over a few seeds. What was dropped in all of them is
        taken to be about as noisy as its neighbours.
        """
        values = {path: self.expected[path] for path in paths if isinstance(self.expected[path], torch.Tensor)}
        moved = {path: torch.zeros(value.shape, dtype=torch.float64) for path, value in values.items() if value.numel()}
        eager, _ = self.sides
        for number in range(QUIET_SEEDS if any(map(is_floating, values.values())) else 0):
            start = _fresh_state(MEASURING, number)
            plain = eager(start)
            shaken = self.shake(start, number)
            for path, noise in moved.items() if shaken is not None else ():
                pair = [leaves.get(path) for leaves in (plain, shaken or {})]
                if is_floating(values[path]) and all(is_alike(one, values[path]) for one in pair):
                    torch.maximum(noise, _apart(*pair), out=noise)
        return {path: EXPLAINED * _as_neighbours(values[path], noise) for path, noise in moved.items()}

    def _scout(self, quiet: dict[str, torch.Tensor]) -> dict[str, Sketcher]:
        """How to sketch each leaf. Of a large one some elements are kept, and those that differ most at first sight."""
        large = {path: Scout() for path, noise in quiet.items() if noise.numel() > SAMPLED}
        if large:
            for side in (0, 1):
                for leaves in self._fresh_runs(side, SCOUTING + side, self.seeds // 2):
                    for path, scout in large.items():
                        scout.look(side, leaves[path])
        return {
            path: Sketcher(noise, large[path].suspicious() if path in large else None) for path, noise in quiet.items()
        }

    def _sample(self, side: int, stream: int, sketchers: dict[str, Sketcher]) -> Sketches:
        """Sketches of some leaves over runs with fresh seeds; of more runs if the program is a small one."""
        total = sum(leaf.numel() for leaf in self.expected.values() if isinstance(leaf, torch.Tensor))
        count = self.seeds * max(1, min(8, SAMPLED // max(1, total)))
        sketches: Sketches = {path: [] for path in sketchers}
        for leaves in self._fresh_runs(side, stream, count):
            for path, sketcher in sketchers.items():
                sketches[path].append(sketcher.sketch(leaves[path]))
        return sketches

    def _fresh_runs(self, side: int, stream: int, count: int) -> Iterator[Run]:
        for number in range(count):
            yield self.sides[side](_fresh_state(stream, number))

    def _decide(self, leaf: LeafEvidence, sketcher: Sketcher, batches: list[tuple[Sketches, Sketches]]) -> LeafEvidence:
        dead_zone = sketcher.dead_zone()
        if not varies(batches[0][0][leaf.path], dead_zone):
            return leaf  # the seed does not reach this leaf: what was measured stands
        unit = _unit(self.expected[leaf.path])
        reports = [
            compare_distributions(eager[leaf.path], compiled[leaf.path], dead_zone, unit=unit)
            for eager, compiled in batches
        ]
        report = max(reports, key=lambda one: one.p_value)
        runs = sum(len(side[leaf.path]) for batch in batches for side in batch)
        decided = replace(leaf, distribution=report, noise=None, flips=None, index=None)
        if report.differs:
            said = f"compiled shows {report.statistic} (p = {report.p_value:.2g})"
            return replace(decided, verdict=Verdict.BUG, reason=f"over {runs} runs with fresh seeds {said}")
        said = (
            f"the values are random and agree in distribution over {runs} runs with fresh seeds "
            f"(a change of scale above {report.resolution:.2%} would have shown)"
        )
        return replace(decided, verdict=Verdict.NOISE, reason=said)


def _fresh_state(stream: int, number: int) -> RngState:
    """A random state of its own for each run of each stream."""
    reseed(1_000_003 * (stream + 1) + number)
    return RngState.capture()


def _apart(one: Any, other: Any) -> torch.Tensor:
    """How far each element is from its twin."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    apart: torch.Tensor = (one.to(wide) - other.to(wide)).abs().nan_to_num(nan=0.0, posinf=0.0).cpu()
    return apart


def _as_neighbours(value: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The noise of each number in a leaf (complex ones are two); where there was none, that of the others."""
    if bool((noise > 0).any()):
        noise = torch.where(noise > 0, noise, noise[noise > 0].square().mean().sqrt())
    return torch.stack([noise, noise], -1) if value.is_complex() else noise


def _unit(value: torch.Tensor) -> float:
    if value.is_floating_point() or value.is_complex():
        return float(torch.finfo(value.dtype).eps)
    return 0.0

"""`judge`: a bug, or noise? Measured, with the evidence.

    eager, several times from one random state      → is the program itself deterministic?
    compiled, several times from the same state     → and what the compiler made of it?
    structure, shapes, dtypes                       → a difference there is a bug, no numbers needed
    eager in fp64, on the same random numbers       → the true values
    eager with its roundings perturbed, in rounds   → how far from them rounding alone may lead
    each leaf weighed against that noise            → explained, blatant, or in between
    leaves that depend on the random numbers        → compared as distributions over many seeds

The verdict on the whole is the worst over its leaves: one bug makes a bug; else one unknown leaves it unknown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsleuth.errors import NoReference
from torchsleuth.outcome import Symptom

from .agree import same
from .comparison import Comparison, Tolerance
from .decompositions import Decompositions
from .distribution import SAMPLED, Scout, Sketcher, compare_distributions, varies
from .fp64 import cast_to_fp64
from .judgement import Judgement, LeafEvidence, RngEvidence, Verdict
from .leaves import compare_leaves, dense_parts, is_floating, metadata_difference
from .models import Results
from .noise import EXPLAINED, weigh, weigh_integers
from .rng import RngState, Tape, preserved, random_ops_in, reseed
from .rounding import perturbed
from .subject import Observation, Subject
from .tree import Leaves, Misfit, walk

log = logging.getLogger("torchsleuth.compare")

ROUNDS = 5
"""Rounds of perturbed runs, at most."""
QUIET_SEEDS = 8
"""Seeds with which the noise of a random leaf is measured."""


@dataclass(frozen=True)
class Effort:
    """How much is measured before an answer is given."""

    repeats: int = 3
    """Plain runs of each side from one random state."""
    perturbed: int = 6
    """Runs of eager with perturbed roundings, in each round of them."""
    seeds: int = 24
    """Runs of each side with fresh seeds, for leaves that depend on random numbers (more if the program is small)."""


def judge(
    model: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    backward: bool = True,
    effort: Effort | None = None,
) -> Judgement:
    """Whether the differences between `model` and `compiled` on `inputs` are a bug or noise.

    Both are called as `f(*inputs)` (or with one list, if boxed). Gradients are part of the result where there
    are any and `backward` is true, as are buffers and inputs that a run writes to. Parameters, buffers,
    gradients, inputs and random state are afterwards as they were.

        verdict = judge(model, torch.compile(model), [x]).verdict
    """
    with (
        preserved() as start,
        Subject(model, inputs, backward=backward) as eager,
        Subject(compiled, inputs, backward=backward) as other,
    ):
        other.align(eager)
        return _Trial(eager, other, start, effort or Effort()).judge()


class _SideRaised(Exception):
    """A plain run of one side raised: data, not our failure. It becomes the answer."""

    def __init__(self, who: str, error: Exception) -> None:
        super().__init__(who, error)
        self.who = who
        self.error = error


class _Trial:
    """One judgement in the making."""

    def __init__(self, eager: Subject, compiled: Subject, start: RngState, effort: Effort) -> None:
        self.eager = eager
        self.compiled = compiled
        self.start = start
        self.effort = effort
        self.runs = 0
        self.eager_runs: list[Observation] = []
        self.compiled_runs: list[Observation] = []
        self.expected: dict[str, Any] = {}
        """The leaves of eager's first run."""
        self.disputed: set[str] = set()
        """The leaves that are not plainly equal."""
        self.perturbed: list[dict[str, Any]] = []
        """Those leaves in perturbed runs."""
        self.shaken = 0
        self.decompositions = Decompositions()
        self.tape: Tape | None = None
        self.fp64: dict[str, Any] = {}
        self.no_reference: str | None = None
        self.not_perturbed: str | None = None

    # ── the way to a verdict ─────────────────────────────────────────────────────────────────────────

    def judge(self) -> Judgement:
        try:
            return self._judge()
        except _SideRaised as raised:
            return self._raised(raised.who, raised.error)

    def _judge(self) -> Judgement:
        for subject, runs in ((self.eager, self.eager_runs), (self.compiled, self.compiled_runs)):
            for _ in range(self.effort.repeats):
                observed = self._run_plainly(subject)
                if not runs or not same(runs[0].results, observed.results, tolerance=Tolerance.exact()):
                    runs.append(observed)  # a run that repeats the first adds nothing but memory
        ref, res = self._complete(self.eager_runs[0]), self._complete(self.compiled_runs[0])
        comparison = same(ref, res)
        misfit = _misfit(ref, res)
        if misfit is not None:
            if any(_misfit(ref, self._complete(run)) for run in self.eager_runs[1:]):
                misfit = replace(misfit, verdict=Verdict.NOISE, reason=f"{misfit.reason}, as between runs of eager")
            return self._conclude([misfit], comparison)
        self.expected = _flatten(ref)
        leaves = self._weigh_leaves()
        self.disputed = {leaf.path for leaf in leaves if leaf.verdict is not Verdict.NOISE}
        if self.disputed:
            self._measure_reference()
            leaves = self._perturb_until_settled()
        return self._conclude(self._excuse_randomness(leaves), comparison)

    def _conclude(self, leaves: list[LeafEvidence], comparison: Comparison) -> Judgement:
        verdicts = [leaf.verdict for leaf in leaves]
        verdict = next((kind for kind in (Verdict.BUG, Verdict.UNKNOWN) if kind in verdicts), Verdict.NOISE)
        leaf = _deciding(leaves, verdict)
        reason = leaf.reason if leaf is not None else "there was nothing to compare"
        if leaf is not None and leaf.reason != AGREES:
            reason = f"at {leaf.path}, {reason}"
        eager_spread, compiled_spread = (self._spread(runs) for runs in (self.eager_runs, self.compiled_runs))
        if verdict is Verdict.NOISE and (eager_spread or compiled_spread):
            verdict = Verdict.NONDETERMINISTIC
            one_side = f"{'eager' if eager_spread else 'compiled'} does not repeat itself"
            who = "neither side repeats itself" if eager_spread and compiled_spread else one_side
            reason = f"{who}, and {reason}"
        return Judgement(
            verdict,
            reason,
            leaf=leaf,
            leaves=tuple(leaves),
            comparison=comparison,
            rng=self._rng_evidence(),
            eager_spread=eager_spread,
            compiled_spread=compiled_spread,
            no_reference=self.no_reference,
            not_perturbed=self.not_perturbed,
            runs=self.runs,
        )

    def _raised(self, who: str, error: Exception) -> Judgement:
        log.warning("%s raised while its results were to be judged", who, exc_info=error)
        return Judgement(
            Verdict.UNKNOWN,
            f"{who} raised {_in_words(error)}, so there are no results to compare",
            raised=error,
            rng=self._rng_evidence(),
            runs=self.runs,
        )

    # ── measurements ─────────────────────────────────────────────────────────────────────────────────

    def _run(self, subject: Subject, around: AbstractContextManager[Any] | None = None) -> Observation:
        self.runs += 1
        return subject.run(self.start, around)

    def _run_plainly(self, subject: Subject, start: RngState | None = None) -> Observation:
        """A run as the user would run it. If that raises, there is nothing to compare."""
        self.runs += 1
        try:
            return subject.run(start or self.start)
        except Exception as error:
            raise _SideRaised("eager" if subject is self.eager else "compiled", error) from error

    def _measure_reference(self) -> None:
        """Eager in fp64, on the random numbers that eager drew."""
        try:
            if self.eager_runs[0].drew:
                self.tape = Tape()
                self._run(self.eager, self.tape.recording())
            wide, wide_inputs = cast_to_fp64(self.eager.program, self.eager.inputs)
            with Subject(wide, wide_inputs, backward=self.eager.backward) as subject:
                subject.align(self.eager)
                with subject.widened():
                    observed = self._run(subject, self.tape.playing() if self.tape else None)
                    buffers = {**subject.saved, **observed.results.buffers}
            self.fp64 = _flatten(replace(observed.results, buffers=buffers))
        except NoReference as missing:
            self.no_reference = missing.cause
        except Exception as error:  # noqa: BLE001 - then there is no reference, and this is why
            self.no_reference = f"in double precision eager raises {_in_words(error)}"

    def _perturb_until_settled(self) -> list[LeafEvidence]:
        """Weigh the leaves against perturbed runs of eager; again while that explains most of what is open.

        Each round tips most of the elements that rounding can tip at all. What is still open when a round has
        not halved it is not for rounding to explain.
        """
        leaves: list[LeafEvidence] = []
        remaining = math.inf
        for _ in range(ROUNDS):
            self._perturb()
            leaves = self._weigh_leaves()
            before, remaining = remaining, sum(leaf.unexplained for leaf in leaves)
            if remaining == 0 or remaining > before / 2:
                break
        return leaves

    def _perturb(self) -> None:
        """Some more runs of eager with perturbed roundings, every other one with its fused operators written out."""
        for _ in range(self.effort.perturbed):
            seed, self.shaken = self.shaken, self.shaken + 1
            leaves = self._shake(self.start, seed)
            if leaves is not None:
                self.perturbed.append({path: leaves[path] for path in self.disputed if path in leaves})

    def _shake(self, start: RngState, seed: int) -> dict[str, Any] | None:
        """The leaves of one perturbed run; None if it raises."""
        self.runs += 1
        try:
            observed = self.eager.run(start, perturbed(seed, self.decompositions if seed % 2 else None))
        except Exception as error:  # noqa: BLE001 - then this run shows nothing; if none shows anything, that is said
            self.not_perturbed = f"with its roundings perturbed eager raises {_in_words(error)}"
            return None
        return _flatten(self._complete(observed))

    def _complete(self, run: Observation) -> Results:
        """The run's results, with the buffers that this run left alone and another run changed."""
        saved = {**self.compiled.saved, **self.eager.saved}
        runs = (*self.eager_runs, *self.compiled_runs)
        names = dict.fromkeys(name for other in runs for name in other.results.buffers)
        buffers = {name: run.results.buffers.get(name, saved[name]) for name in names}
        return replace(run.results, buffers=buffers)

    def _spread(self, runs: list[Observation]) -> float:
        """The largest difference between repeated runs; infinite where they differ in kind."""
        first = self._complete(runs[0]) if runs else None
        found = [same(first, self._complete(run), tolerance=Tolerance.exact()) for run in runs[1:]]
        return max((_size_of(one) for one in found), default=0.0)

    def _rng_evidence(self) -> RngEvidence:
        eager, compiled = (runs[0] if runs else None for runs in (self.eager_runs, self.compiled_runs))
        return RngEvidence(
            operators=self.tape.operators if self.tape else random_ops_in(self.eager.program),
            eager_drew=eager is not None and eager.drew,
            compiled_drew=compiled is not None and compiled.drew,
            same_consumption=eager is not None and compiled is not None and eager.end.same_as(compiled.end),
        )

    # ── leaves ───────────────────────────────────────────────────────────────────────────────────────

    def _weigh_leaves(self) -> list[LeafEvidence]:
        eager = [self.expected, *(_flatten(self._complete(run)) for run in self.eager_runs[1:])]
        compiled = [_flatten(self._complete(run)) for run in self.compiled_runs]
        return [
            self._weigh(path, [run.get(path) for run in eager], [run.get(path) for run in compiled])
            for path in self.expected
        ]

    def _weigh(self, path: str, eager: list[Any], compiled: list[Any]) -> LeafEvidence:
        first = eager[0]
        if not isinstance(first, torch.Tensor):
            return self._weigh_object(path, first, compiled)
        rounded = [run.get(path) for run in self.perturbed]
        for value in compiled:
            differs = metadata_difference(Leaves(path, first, value, None))
            if differs is None:
                continue
            others = [one for one in (*eager, *rounded, self.fp64.get(path)) if isinstance(one, torch.Tensor)]
            reason = f"the {differs.symptom} differs: eager gives {differs.ref}, compiled {differs.res}"
            if differs.symptom is Symptom.SHAPE and any(other.shape != first.shape for other in others):
                said = "the shape differs, as it does in other runs of eager"
                return LeafEvidence(path, Verdict.NOISE, said, symptom=Symptom.SHAPE)
            return LeafEvidence(path, Verdict.BUG, reason, symptom=differs.symptom)
        if all(_equal(first, value) for value in (*eager, *compiled)):
            return LeafEvidence(path, Verdict.NOISE, AGREES, numel=first.numel())
        eager, rounded = ([v for v in runs if _is_alike(v, first)] for runs in (eager, rounded))
        if is_floating(first):
            return self._weigh_floats(path, eager, compiled, rounded)
        return self._weigh_integers(path, eager, compiled, rounded)

    def _weigh_floats(self, path: str, eager: list[Any], compiled: list[Any], rounded: list[Any]) -> LeafEvidence:
        first, centre = eager[0], self._reference(path)
        noise = weigh(first if centre is None else centre, eager, rounded, compiled, first.dtype)
        index = noise.index
        found = LeafEvidence(
            path,
            Verdict.NOISE,
            f"compiled is as far from fp64 as rounding may lead ({noise.worst:.2g} times the noise of eager)",
            symptom=Symptom.NAN if noise.nonfinite else Symptom.VALUE,
            index=index,
            eager_value=None if index is None else first[index].item(),
            compiled_value=None if index is None else compiled[0][index].item(),
            fp64_value=None if index is None or centre is None else centre[index].item(),
            noise=noise,
            numel=first.numel(),
        )
        if noise.nonfinite:
            said = f"{noise.nonfinite:,} of {first.numel():,} elements are NaN or infinite as in no run of eager"
            return replace(found, verdict=Verdict.BUG, reason=said)
        if centre is None or not rounded:
            why = self.no_reference or self.not_perturbed or "the fp64 run has no such value"
            said = (
                f"the values differ ({noise.worst:.2g} times what perturbed eager shows), but without an fp64 reference"
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
            said += (
                ", but all by less than one rounding of a typical element: small values at fault, or a coarse formula"
            )
        elif noise.astray:
            said += f"; at {noise.astray:,} of them eager is far from fp64 too, for other reasons than rounding"
        return replace(found, verdict=Verdict.BUG if noise.blatant else Verdict.UNKNOWN, reason=said)

    def _weigh_integers(self, path: str, eager: list[Any], compiled: list[Any], rounded: list[Any]) -> LeafEvidence:
        first = eager[0]
        exact: list[Any] = [value for value in (self.fp64.get(path),) if _is_alike(value, first)]
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
            compiled_value=None if index is None else compiled[0][index].item(),
            flips=flips,
            numel=first.numel(),
        )
        if flips.explained:
            said = f"{flips.differing:,} of {first.numel():,} integers differ, as they do in other runs of eager"
            return replace(found, verdict=Verdict.NOISE, reason=said)
        if self.shaken and not rounded:
            said = f"the integers differ, and whether rounding turns them could not be measured: {self.not_perturbed}"
            return replace(found, verdict=Verdict.UNKNOWN, reason=said)
        return found

    def _reference(self, path: str) -> torch.Tensor | None:
        """The fp64 value of a leaf, if there is one of use."""
        value, first = self.fp64.get(path), self.expected[path]
        wide = isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)
        return value if wide and value is not None and value.shape == first.shape else None

    def _weigh_object(self, path: str, eager: Any, compiled: list[Any]) -> LeafEvidence:
        for value in compiled:
            found = compare_leaves(Leaves(path, eager, value, None), Tolerance.exact())
            if found is not None and not found.agree:
                reason = f"the {found.symptom} differs: eager gives {found.ref!r}, compiled {found.res!r}"
                return LeafEvidence(path, Verdict.BUG, reason, found.symptom, eager_value=eager, compiled_value=value)
        return LeafEvidence(path, Verdict.NOISE, AGREES)

    # ── leaves that depend on random numbers ─────────────────────────────────────────────────────────

    def _excuse_randomness(self, leaves: list[LeafEvidence]) -> list[LeafEvidence]:
        """Where eager drew random numbers, compare leaves that depend on them as distributions instead.

        Those that agree too, if the two sides did not draw alike: few elements may agree by chance.
        """
        if not self.eager_runs[0].drew:
            return leaves
        alike = self.eager_runs[0].end.same_as(self.compiled_runs[0].end)
        numbers = (Symptom.VALUE, Symptom.NAN, Symptom.INTEGER)
        suspects = [
            leaf
            for leaf in leaves
            if (leaf.verdict is Verdict.NOISE and not alike)
            or (leaf.verdict is not Verdict.NOISE and leaf.symptom in numbers)
        ]
        quiet = self._measure_quiet([leaf.path for leaf in suspects])
        if not quiet:
            return leaves
        sketchers = self._scout(quiet)
        batches: list[tuple[Sketches, Sketches]] = []
        found: dict[str, LeafEvidence] = {}
        for batch in range(2):  # what the first finds, the second must find again
            ours, theirs = (
                self._sample(subject, 2 * batch + side, sketchers)
                for side, subject in enumerate((self.eager, self.compiled))
            )
            batches.append((ours, theirs))
            found = {
                leaf.path: self._judge_distribution(leaf, sketchers[leaf.path], batches)
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
        for number in range(QUIET_SEEDS if any(map(is_floating, values.values())) else 0):
            reseed(1_000_003 * 7 + number)
            start = RngState.capture()
            plain = _flatten(self._complete(self._run_plainly(self.eager, start)))
            shaken = self._shake(start, number)
            for path, noise in moved.items() if shaken is not None else ():
                pair = [leaves.get(path) for leaves in (plain, shaken or {})]
                if is_floating(values[path]) and all(_is_alike(one, values[path]) for one in pair):
                    torch.maximum(noise, _apart(*pair), out=noise)
        return {path: EXPLAINED * _as_neighbours(values[path], noise) for path, noise in moved.items()}

    def _scout(self, quiet: dict[str, torch.Tensor]) -> dict[str, Sketcher]:
        """How to sketch each leaf. Of a large one some elements are kept, and those that differ most at first sight."""
        large = {path: Scout() for path, noise in quiet.items() if noise.numel() > SAMPLED}
        if large:
            for side, subject in enumerate((self.eager, self.compiled)):
                for leaves in self._fresh_runs(subject, 4 + side, self.effort.seeds // 2):
                    for path, scout in large.items():
                        scout.look(side, leaves[path])
        return {
            path: Sketcher(noise, large[path].suspicious() if path in large else None) for path, noise in quiet.items()
        }

    def _sample(self, subject: Subject, stream: int, sketchers: dict[str, Sketcher]) -> Sketches:
        """Sketches of some leaves over runs with fresh seeds; of more runs if the program is a small one."""
        total = sum(leaf.numel() for leaf in self.expected.values() if isinstance(leaf, torch.Tensor))
        count = self.effort.seeds * max(1, min(8, SAMPLED // max(1, total)))
        sketches: Sketches = {path: [] for path in sketchers}
        for leaves in self._fresh_runs(subject, stream, count):
            for path, sketcher in sketchers.items():
                sketches[path].append(sketcher.sketch(leaves[path]))
        return sketches

    def _fresh_runs(self, subject: Subject, stream: int, count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            reseed(1_000_003 * (stream + 1) + number)
            yield _flatten(self._complete(self._run_plainly(subject, RngState.capture())))

    def _judge_distribution(
        self, leaf: LeafEvidence, sketcher: Sketcher, batches: list[tuple[Sketches, Sketches]]
    ) -> LeafEvidence:
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


Sketches = dict[str, list[torch.Tensor]]
AGREES = "eager and compiled agree bit for bit"


def _deciding(leaves: list[LeafEvidence], verdict: Verdict) -> LeafEvidence | None:
    """The leaf to tell of: the first that is wrong (errors flow from there), else the one nearest its bound."""
    candidates = [leaf for leaf in leaves if leaf.verdict is verdict]
    if verdict is Verdict.NOISE:
        return max(candidates, key=lambda leaf: (leaf.distribution is not None, leaf.ratio), default=None)
    return next(iter(candidates), None)


def _misfit(ref: Results, res: Results) -> LeafEvidence | None:
    """A difference in structure, which needs no numbers to be a bug."""
    for pair in walk(ref, res):
        if isinstance(pair, Misfit):
            reason = f"the {pair.symptom} differs: eager gives {pair.ref}, compiled {pair.res}. {pair.message}"
            return LeafEvidence(_path(pair.path), Verdict.BUG, reason.rstrip(". "), symptom=pair.symptom)
    return None


def _flatten(results: Results) -> dict[str, Any]:
    """Leaves by path, each tensor brought down to dense parts that can be weighed."""
    leaves: dict[str, Any] = {}
    for pair in walk(results, results):
        if not isinstance(pair, Leaves):
            continue
        path = _path(pair.path)
        if isinstance(pair.ref, torch.Tensor):
            leaves.update(dense_parts(path, pair.ref))
        elif isinstance(pair.ref, (float, complex)):
            leaves[path] = torch.tensor(
                pair.ref, dtype=torch.complex128 if isinstance(pair.ref, complex) else torch.float64
            )
        elif is_floating(pair.ref):  # numpy's
            leaves[path] = torch.as_tensor(pair.ref).clone()
        else:
            leaves[path] = pair.ref
    return leaves


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


def _path(path: str) -> str:
    return path.removeprefix(".")


def _is_alike(value: Any, first: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == first.shape and value.dtype == first.dtype


def _equal(one: torch.Tensor, other: Any) -> bool:
    return bool(same(one, other, tolerance=Tolerance.exact()))


def _size_of(found: Comparison) -> float:
    """How far apart two runs are that should be equal."""
    if found.agree:
        return 0.0
    return found.max_abs if found.max_abs and math.isfinite(found.max_abs) else math.inf


def _unit(value: torch.Tensor) -> float:
    if value.is_floating_point() or value.is_complex():
        return float(torch.finfo(value.dtype).eps)
    return 0.0


def _in_words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__qualname__}: {said}" if said else type(error).__qualname__


def _times(ratio: float) -> str:
    return "beyond measure of" if math.isinf(ratio) else f"{ratio:.3g} times"

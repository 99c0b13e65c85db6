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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsleuth.errors import NoReference, in_words

from .agree import same
from .chance import Chance
from .comparison import Comparison, Tolerance
from .decompositions import Decompositions
from .fp64 import cast_to_fp64
from .judgement import Judgement, LeafEvidence, RngEvidence, Verdict
from .kinds import dense_parts, is_floating
from .models import Results
from .rng import RngState, Tape, preserved, random_ops_in
from .rounding import perturbed
from .subject import Observation, Subject
from .tree import Leaves, Misfit, walk
from .weighing import AGREES, Grounds, weigh_leaf

log = logging.getLogger("torchsleuth.compare")

ROUNDS = 5
"""Rounds of perturbed runs, at most."""


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
        self.grounds = Grounds()
        """What they are weighed against."""
        self.decompositions = Decompositions()
        self.tape: Tape | None = None

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
        if self.eager_runs[0].drew:
            alike = self.eager_runs[0].end.same_as(self.compiled_runs[0].end)
            leaves = self._chance().excuse(leaves, drew_alike=alike)
        return self._conclude(leaves, comparison)

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
            no_reference=self.grounds.no_reference,
            not_perturbed=self.grounds.not_perturbed,
            runs=self.runs,
        )

    def _raised(self, who: str, error: Exception) -> Judgement:
        log.warning("%s raised while its results were to be judged", who, exc_info=error)
        return Judgement(
            Verdict.UNKNOWN,
            f"{who} raised {in_words(error)}, so there are no results to compare",
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
            self.grounds.fp64 = _flatten(replace(observed.results, buffers=buffers))
        except NoReference as missing:
            self.grounds.no_reference = missing.cause
        except Exception as error:  # noqa: BLE001 - then there is no reference, and this is why
            self.grounds.no_reference = f"in double precision eager raises {in_words(error)}"

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
            seed, self.grounds.tried = self.grounds.tried, self.grounds.tried + 1
            leaves = self._shake(self.start, seed)
            if leaves is not None:
                self.grounds.perturbed.append({path: leaves[path] for path in self.disputed if path in leaves})

    def _shake(self, start: RngState, seed: int) -> dict[str, Any] | None:
        """The leaves of one perturbed run; None if it raises."""
        self.runs += 1
        try:
            observed = self.eager.run(start, perturbed(seed, self.decompositions if seed % 2 else None))
        except Exception as error:  # noqa: BLE001 - then this run shows nothing; if none shows anything, that is said
            self.grounds.not_perturbed = f"with its roundings perturbed eager raises {in_words(error)}"
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

    def _weigh_leaves(self) -> list[LeafEvidence]:
        eager = [self.expected, *(_flatten(self._complete(run)) for run in self.eager_runs[1:])]
        compiled = [_flatten(self._complete(run)) for run in self.compiled_runs]
        return [
            weigh_leaf(path, [run.get(path) for run in eager], [run.get(path) for run in compiled], self.grounds)
            for path in self.expected
        ]

    def _chance(self) -> Chance:
        def runs_of(subject: Subject) -> Callable[[RngState], dict[str, Any]]:
            return lambda start: _flatten(self._complete(self._run_plainly(subject, start)))

        return Chance((runs_of(self.eager), runs_of(self.compiled)), self._shake, self.expected, self.effort.seeds)


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


def _path(path: str) -> str:
    return path.removeprefix(".")


def _size_of(found: Comparison) -> float:
    """How far apart two runs are that should be equal."""
    if found.agree:
        return 0.0
    return found.max_abs if found.max_abs and math.isfinite(found.max_abs) else math.inf

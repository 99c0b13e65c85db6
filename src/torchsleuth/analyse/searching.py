"""The search for the part that fails, as a table of steps: what is tried now, and what follows from how it went.

    plan = Plan(select())
    step = plan.first
    following = plan.after(Tried(step, passed, seen))        the next step, or an `Answer`

Nothing is run here, so whoever runs may be a loop, a command line with a file in between, or a test.

1. Each backend, until one fails.
2. That backend without one of its subsystems, until it passes. If it never does, the backend is all there is to say.
3. A counted subsystem: once more with all of it, to count how often it is applied, and to see that it still fails.
4. Bisecting: only the first so many are applied. With n it fails and with n - 1 it does not: it is number n, from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from torchsleuth.analyse.parts import Counted, Option, Parts, find_part
from torchsleuth.errors import NobodyTookPart, Unsteady


@dataclass(frozen=True)
class BisectionResult:
    """What makes the function fail. The names of the fields are torch's."""

    backend: str
    subsystem: str | None = None
    """None: leaving out any one of them did not help, or there are none."""
    bisect_number: int | None = None
    """Which application of the subsystem, counted from 0."""
    debug_info: str | None = None
    """What is applied there: an operator, a node or a pass."""

    @property
    def by_hand(self) -> list[tuple[str, str]]:
        """How to see it by hand: ("bad", settings), then ("good", settings)."""
        part = None if self.subsystem is None else find_part(self.backend, self.subsystem)
        chosen = f"TORCH_BISECT_BACKEND={self.backend}"
        if isinstance(part, Counted) and self.bisect_number is not None:
            limit = f"{chosen} TORCH_BISECT_SUBSYSTEM={part.name} TORCH_BISECT_MAX="
            return [("bad", f"{limit}{self.bisect_number}"), ("good", f"{limit}{self.bisect_number - 1}")]
        if isinstance(part, Option):
            return [("bad", chosen), ("good", f"{chosen}, with {part.option} = {part.value} in its configuration")]
        return [("bad", chosen)]


class Phase(str, Enum):
    """What a step is for."""

    BACKEND = "backend"
    """All of a backend: does it fail?"""
    WITHOUT = "without"
    """A backend without one of its subsystems: does it pass?"""
    COUNTING = "counting"
    """All of it again. How often is the subsystem applied?"""
    BISECTING = "bisecting"
    """The subsystem applied only so many times: does it fail?"""


_NONE: Final = -1


@dataclass(frozen=True)
class Step:
    """One run of the function, and what is left out of it."""

    phase: Phase
    backend: str
    subsystem: str | None = None
    low: int = 0
    """While bisecting: the number that is looked for is at least this,"""
    high: int = 0
    """and at most this."""

    @property
    def last(self) -> int | None:
        """The last application of the subsystem that is let through; None: all are."""
        if self.phase is Phase.BISECTING:
            return (self.low + self.high) // 2
        return _NONE if self.phase is Phase.WITHOUT else None

    def __str__(self) -> str:
        part = None if self.subsystem is None else find_part(self.backend, self.subsystem)
        if self.phase is Phase.BISECTING:
            return f"{self.backend}, {self.subsystem} 0 to {self.last} only (looking in {self.low} to {self.high})"
        if self.phase is Phase.COUNTING:
            return f"{self.backend} again, to count {self.subsystem}"
        if isinstance(part, Option):
            return f"{self.backend} with {part.option} = {part.value}"
        return self.backend if self.subsystem is None else f"{self.backend} without {self.subsystem}"


@dataclass(frozen=True)
class Seen:
    """What was learnt of the subsystem in one run."""

    count: int = 0
    """How often it was to be applied."""
    infos: Mapping[int, str] = field(default_factory=dict)
    """What some of the applications were about."""


@dataclass(frozen=True)
class Tried:
    """A step that was taken, and how it went."""

    step: Step
    passed: bool
    seen: Seen
    attended: bool = True
    """Whether torch asked anything, as far as that can be known."""


@dataclass(frozen=True)
class Answer:
    """The end of a search. None: no backend failed."""

    result: BisectionResult | None


@dataclass(frozen=True)
class Plan:
    """Which parts are gone through."""

    parts: Parts

    @property
    def first(self) -> Step:
        return Step(Phase.BACKEND, next(iter(self.parts)))

    def after(self, tried: Tried) -> Step | Answer:
        """What follows from how a step went."""
        step = tried.step
        match step.phase:
            case Phase.BACKEND:
                return self._next_backend(step) if tried.passed else self._next_subsystem(step)
            case Phase.WITHOUT:
                return self._helped(step) if tried.passed else self._next_subsystem(step)
            case Phase.COUNTING:
                _refuse_unsteady(tried)
                return _narrowed(replace(step, phase=Phase.BISECTING), 0, tried.seen.count - 1, tried.seen)
            case Phase.BISECTING:
                middle = (step.low + step.high) // 2
                low, high = (middle + 1, step.high) if tried.passed else (step.low, middle)
                return _narrowed(step, low, high, tried.seen)

    def _next_backend(self, step: Step) -> Step | Answer:
        names = list(self.parts)
        rest = names[names.index(step.backend) + 1 :]
        return Step(Phase.BACKEND, rest[0]) if rest else Answer(None)

    def _next_subsystem(self, step: Step) -> Step | Answer:
        names = [part.name for part in self.parts[step.backend]]
        rest = names if step.subsystem is None else names[names.index(step.subsystem) + 1 :]
        return Step(Phase.WITHOUT, step.backend, rest[0]) if rest else Answer(BisectionResult(step.backend))

    def _helped(self, step: Step) -> Step | Answer:
        assert step.subsystem is not None
        if isinstance(find_part(step.backend, step.subsystem), Counted):
            return replace(step, phase=Phase.COUNTING)
        return Answer(BisectionResult(step.backend, step.subsystem, 0, step.subsystem))


def _narrowed(step: Step, low: int, high: int, seen: Seen) -> Step | Answer:
    if low < high:
        return replace(step, low=low, high=high)
    return Answer(BisectionResult(step.backend, step.subsystem, low, seen.infos.get(low)))


def _refuse_unsteady(tried: Tried) -> None:
    """That a step with nothing left out fails again, as it did before, and that there is something to leave out."""
    step = tried.step
    if tried.passed:
        raise Unsteady(
            f"the function fails now and then: with all of {step.backend} it failed, and now it passes",
            cause="nothing was left out in either run, so it depends on something else: "
            "time, threads, files, or what earlier runs left behind",
            remedy="make it do the same each time it is called, or let it try often enough to fail whenever it can",
        )
    if not tried.attended:
        raise NobodyTookPart(
            f"nobody knows how often {step.subsystem} is applied",
            cause="no process took part in this step",
            remedy="run the program by means of `try`, then say again how it went",
        )
    if tried.seen.count == 0:
        raise Unsteady(
            f"leaving out {step.subsystem} seemed to help, but there was none of it to leave out",
            cause=f"torch applied no {step.subsystem} while the function ran, so it passed for another reason",
            remedy="make it do the same each time it is called",
        )

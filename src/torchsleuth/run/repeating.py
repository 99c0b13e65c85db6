"""How often a case fails: the same query, asked again and again.

rate = measure(runner, query, signature, 20)
rate.describe()         "fails in 3 of 20 runs (5–36 %)"
rate.runs_needed()      how many runs it takes to miss the failure at most once in a hundred times
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torchsleuth.case.schema import Signature
from torchsleuth.case.signatures import ORIGIN, Match
from torchsleuth.outcome import Outcome
from torchsleuth.run.oracle import Verdict, verdict_of
from torchsleuth.run.query import Query, Runner

_Z: Final = 1.959964
"""An interval of 95 %."""
MISSED: Final = 0.01


@dataclass(frozen=True)
class Rate:
    """How several runs of one query ended."""

    outcomes: tuple[Outcome, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def n(self) -> int:
        """The runs that say something: not those that could not be made."""
        return len(self.verdicts) - self.verdicts.count(Verdict.INVALID) - self.verdicts.count(Verdict.BROKEN)

    @property
    def same(self) -> int:
        return self.verdicts.count(Verdict.SAME)

    @property
    def other(self) -> int:
        """Runs that failed in another way, or did not end in time."""
        return self.verdicts.count(Verdict.OTHER) + self.verdicts.count(Verdict.TIMEOUT)

    @property
    def passed(self) -> int:
        return self.verdicts.count(Verdict.PASSED)

    @property
    def is_flaky(self) -> bool:
        """Some runs show the failure, and some do not."""
        return 0 < self.same < self.n

    def interval(self) -> tuple[float, float]:
        """Where the true rate is, with 95 % confidence (Wilson's interval)."""
        if not self.n:
            return 0.0, 1.0
        share, spread = self.same / self.n, _Z * _Z / self.n
        middle = (share + spread / 2) / (1 + spread)
        half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / self.n + spread / (4 * self.n))
        low = 0.0 if not self.same else middle - half
        return low, 1.0 if self.same == self.n else middle + half

    def runs_needed(self, missed: float = MISSED) -> int | None:
        """How many runs it takes so that a failure of this rate is missed at most that often; None if it was not seen.

        Reckoned with the lower end of the interval: the promise holds even if the measurement was lucky.
        """
        if self.same == 0:
            return None
        return 1 if not self.is_flaky else math.ceil(math.log(missed) / math.log1p(-self.interval()[0]))

    def describe(self) -> str:
        low, high = (round(100 * end) for end in self.interval())
        words = f"fails in {self.same} of {self.n} runs ({low}–{high} %)"
        return f"{words}, in another way in {self.other}" if self.other else words


def measure(
    runner: Runner,
    query: Query,
    signature: Signature | None,
    times: int,
    match: Match = ORIGIN,
    *,
    enough: Callable[[Rate], bool] | None = None,
    told: Callable[[Rate], None] | None = None,
) -> Rate:
    """Ask the same thing so many times; fewer, if `enough` says so. `told` hears of each answer."""
    rate = Rate()
    for _ in range(times):
        rate = add(rate, runner.run(query), signature, match)
        if told is not None:
            told(rate)
        if enough is not None and enough(rate):
            break
    return rate


def add(rate: Rate, outcome: Outcome, signature: Signature | None, match: Match = ORIGIN) -> Rate:
    """The rate with one run more."""
    return Rate((*rate.outcomes, outcome), (*rate.verdicts, verdict_of(outcome, signature, match)))

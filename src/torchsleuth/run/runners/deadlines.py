"""How long a query may take: as long as somebody says, or as the first one that ran suggests."""

from __future__ import annotations

from typing import Final

from torchsleuth.outcome import Mismatched, Outcome, Passed, Raised, Stage

SHORTEST: Final = 10.0
LONGEST: Final = 600.0
FACTOR: Final = 10.0
START: Final = 300.0
"""How long a process may take until it can answer anything: torch is imported, and a first graph compiled."""


class Deadlines:
    """The seconds that queries have. If nobody said: `LONGEST` until one has run, then `FACTOR` times what it took."""

    def __init__(self, explicit: float | None = None) -> None:
        self._explicit = explicit
        self._first: float | None = None

    def of(self, asked: float | None) -> float:
        """The seconds of a query that asks for so many."""
        if asked is not None:
            return asked
        if self._explicit is not None:
            return self._explicit
        if self._first is None:
            return LONGEST
        return min(max(FACTOR * self._first, SHORTEST), LONGEST)

    def learn(self, outcome: Outcome) -> None:
        """A query was answered. One that did not come so far as to run says nothing of how long others take."""
        has_run = isinstance(outcome, (Passed, Mismatched, Raised)) and outcome.stage in (Stage.RUN, Stage.COMPARE)
        if has_run and self._first is None:
            self._first = outcome.seconds

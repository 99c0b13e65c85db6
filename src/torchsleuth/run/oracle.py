"""Is it still the same failure? The question that everything which changes a case asks about the result.

    oracle = Oracle(runner, case.failure.signature)
    oracle(query)                       Verdict.SAME, OTHER, PASSED, INVALID, TIMEOUT or BROKEN

A failure that does not show each time is asked for more than once: `needs=(2, 5)` is `SAME` if two of at most five runs
show it. It stops as soon as the answer cannot change.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from torchsleuth.case.schema import Signature
from torchsleuth.case.signatures import ORIGIN, Match
from torchsleuth.outcome import Broken, Mismatched, Outcome, Passed, TimedOut, Unrunnable, Word
from torchsleuth.run.observing.signatures import said, signature_of
from torchsleuth.run.query import Query, Runner


class Verdict(Word):
    """What a run says about a failure that is looked for."""

    SAME = "same"
    OTHER = "other"
    """It fails, in another way."""
    PASSED = "passed"
    INVALID = "invalid"
    """The program itself cannot run: that says nothing about the compiler."""
    TIMEOUT = "timeout"
    """It was stopped at its deadline, and that is not the failure that is looked for."""
    BROKEN = "broken"
    """Our own machinery failed."""


_WORTH: Final = (Verdict.OTHER, Verdict.PASSED, Verdict.TIMEOUT, Verdict.INVALID, Verdict.BROKEN)
"""Of the verdicts of several runs that were not enough: the one that is told, if two came equally often."""


def verdict_of(outcome: Outcome, signature: Signature | None, match: Match = ORIGIN) -> Verdict:
    """What an outcome says about the failure with this signature. None: whatever fails is it."""
    match outcome:
        case Passed():
            return Verdict.PASSED
        case Unrunnable():
            return Verdict.INVALID
        case Broken():
            return Verdict.BROKEN
    if signature is None or _matching(outcome, signature, match) is not None:
        return Verdict.SAME
    return Verdict.TIMEOUT if isinstance(outcome, TimedOut) and signature.kind != "timed out" else Verdict.OTHER


def as_wanted(outcome: Outcome, signature: Signature | None, match: Match = ORIGIN) -> Outcome:
    """An outcome as it is told by someone who looks for this failure: results may differ in several ways at once."""
    wanted = None if signature is None else _matching(outcome, signature, match)
    return outcome if wanted is None else wanted


def _matching(outcome: Outcome, signature: Signature, match: Match) -> Outcome | None:
    """What of an outcome is the failure with this signature; None if it is another one."""
    for reading in outcome.readings if isinstance(outcome, Mismatched) else (outcome,):
        seen = signature_of(reading)
        if seen is not None and match(signature, seen, said(reading)):
            return reading
    return None


class Oracle:
    """Answers a query with a verdict. Keeps the other failures that it met on the way."""

    def __init__(
        self,
        runner: Runner,
        signature: Signature | None,
        match: Match = ORIGIN,
        *,
        needs: tuple[int, int] = (1, 1),
    ) -> None:
        """`needs`: how many of how many runs have to show the failure."""
        if not 1 <= needs[0] <= needs[1]:
            raise ValueError(f"{needs[0]} of {needs[1]} runs cannot be needed")
        self._runner = runner
        self._signature = signature
        self._match = match
        self._needs = needs
        self.others: list[tuple[Query, Outcome]] = []
        """What failed in another way."""
        self.runs = 0

    def __call__(self, query: Query) -> Verdict:
        enough, of = self._needs
        met: Counter[Verdict] = Counter()
        for done in range(of):
            if met[Verdict.SAME] + of - done < enough:
                break
            met[self._ask(query)] += 1
            if met[Verdict.SAME] == enough:
                return Verdict.SAME
            if met[Verdict.INVALID]:
                return Verdict.INVALID  # eager fails as well, and would again
        return max(_WORTH, key=lambda verdict: met[verdict])

    def _ask(self, query: Query) -> Verdict:
        signature = self._signature
        if signature is not None and signature.kind == "mismatched" and signature.op is not None:
            query = msgspec.structs.replace(query, find_op=True)
        outcome = self._runner.run(query)
        self.runs += 1
        verdict = verdict_of(outcome, self._signature, self._match)
        if verdict is Verdict.OTHER:
            self.others.append((query, outcome))
        return verdict

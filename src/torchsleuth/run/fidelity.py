"""Does a case reproduce its failure, and if not, what differs?

    fidelity = verify(Store.open().find("3f9a"))
    fidelity.reproduces         the replay fails as recorded, and so does the script, each in an interpreter of its own
                                (where the script may not be run, or needs other graphs first, `describe` says so)
    fidelity.findings           otherwise: what differs, the likeliest reason first

Only what was tried is claimed. If the failure does not show, the replay is repeated, since it may not show each time;
and if that is of no avail, the graphs that the program had compiled before are compiled first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchsleuth.case.script import expected
from torchsleuth.case.signatures import ORIGIN, Match
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.outcome import Broken, Outcome, Unrunnable
from torchsleuth.run import delivery as deliveries
from torchsleuth.run.delivery import Delivery, deliver
from torchsleuth.run.differences import Finding, Kind, code_differs, differences
from torchsleuth.run.oracle import Verdict, verdict_of
from torchsleuth.run.query import Progress, Query, Runner
from torchsleuth.run.repeating import Rate, add
from torchsleuth.run.replay import History, ask, history_of, question
from torchsleuth.run.runners.fresh import Fresh
from torchsleuth.run.scripts import TIMEOUT, run_script

REPEATS: Final = 5
_SURE: Final = 3
"""A failure that the replay shows so many times in a row is none of chance: if the script does not, that is why."""


@dataclass(frozen=True)
class Fidelity:
    """What became of a case when it was run again."""

    expected: str
    """The failure that is recorded, in words."""
    outcome: Outcome
    """What the replay did."""
    verdict: Verdict
    reproduces: bool
    rate: Rate
    """All runs of the replay."""
    delivery: Delivery | None = None
    """What is known of the script."""
    findings: tuple[Finding, ...] = ()
    """What differs, or may: nothing, if it reproduces."""
    notes: tuple[str, ...] = ()
    """What else there is to know."""

    @property
    def cannot_be_run(self) -> str:
        """Why not, if it cannot."""
        return self.outcome.reason if isinstance(self.outcome, Unrunnable) else ""

    @property
    def exit_code(self) -> int:
        """0: it reproduces. 1: something differs. 2: it cannot be run here. 3: it is our own fault."""
        if isinstance(self.outcome, Broken):
            return 3
        return 2 if isinstance(self.outcome, Unrunnable) else 0 if self.reproduces else 1

    def describe(self) -> str:
        """One line for people."""
        if isinstance(self.outcome, (Broken, Unrunnable)):
            return self.outcome.describe()
        if self.reproduces:
            return self._confirmed()
        if self.rate.is_flaky:
            return f"does not reproduce each time: expected that it {self.expected}; it {self.rate.describe()}"
        if self.verdict is Verdict.SAME and self.delivery is not None and self.delivery.reproduces is False:
            return f"the replay reproduces, the script does not: expected that it {self.expected}"
        return f"does not reproduce: expected that it {self.expected}; seen: {self.outcome.describe()}"

    def _confirmed(self) -> str:
        if self.expected == expected.in_words(None):
            return "no failure is recorded, and none shows"
        if self.delivery is None or self.delivery.reproduces is None:
            return "the replay reproduces; the script was not run"
        if not self.delivery.reproduces:
            return "the replay reproduces, after the graphs that were compiled before it; the script alone does not"
        return "reproduces"


@dataclass(frozen=True)
class _Terms:
    """How a case is tried."""

    repeats: int
    trust: bool
    with_history: bool
    deadline: float | None
    memory: int | None
    match: Match
    run_script: deliveries.Runner


def verify(
    case: Found | str | os.PathLike[str],
    *,
    runner: Runner | None = None,
    repeats: int = REPEATS,
    trust: bool = False,
    with_history: bool = False,
    deadline: float | None = None,
    memory: int | None = None,
    match: Match = ORIGIN,
    run_script: deliveries.Runner = run_script,
    progress: Progress | None = None,
) -> Fidelity:
    """Replay a case, run its script, and say whether both fail as recorded, or what differs.

    `repeats`: how often the replay is run at most, before it is said not to show the failure.
    """
    found = case if isinstance(case, Found) else Store.open().find(case)
    terms = _Terms(repeats, trust, with_history, deadline, memory, match, run_script)
    with ExitStack() as stack:
        if runner is None:
            runner = stack.enter_context(Fresh(workers=1))
        return _Verifying(found, terms, runner, progress).verify()


class _Verifying:
    def __init__(self, found: Found, terms: _Terms, runner: Runner, progress: Progress | None) -> None:
        self._found = found
        self._terms = terms
        self._runner = runner
        self._progress = progress
        self._failure = found.case.failure
        self._signature = None if self._failure is None else self._failure.signature

    def verify(self) -> Fidelity:
        outcome = self._replay(with_history=self._terms.with_history)
        if isinstance(outcome, (Unrunnable, Broken)):
            return self._answer(outcome, reproduces=False)
        delivery = self._deliver()
        fits = self._fits(outcome)
        alone = not self._terms.with_history
        if fits and (delivery.reproduces is not False or not alone):
            return self._answer(outcome, delivery, reproduces=True, notes=self._notes(outcome, delivery))
        rate = self._repeat(outcome)
        findings = [*self._tried(rate, delivery), *differences(self._found, outcome)]
        findings += self._untried(rate)
        order = sorted(findings, key=lambda finding: not finding.certain)  # stable: else as they came
        return self._answer(outcome, delivery, reproduces=False, rate=rate, findings=tuple(order))

    def _answer(
        self,
        outcome: Outcome,
        delivery: Delivery | None = None,
        *,
        reproduces: bool,
        rate: Rate | None = None,
        findings: tuple[Finding, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Fidelity:
        return Fidelity(
            expected.in_words(self._failure),
            outcome,
            self._verdict(outcome),
            reproduces,
            add(Rate(), outcome, self._signature, self._terms.match) if rate is None else rate,
            delivery,
            findings,
            notes,
        )

    # ---- trying --------------------------------------------------------------------------------------------

    def _query(self, *, with_history: bool) -> Query:
        terms = self._terms
        return question(
            self._found, trust=terms.trust, deadline=terms.deadline, memory=terms.memory, with_history=with_history
        )

    def _replay(self, *, with_history: bool) -> Outcome:
        return ask(self._runner, self._query(with_history=with_history), self._progress, blame=False)

    def _verdict(self, outcome: Outcome) -> Verdict:
        return verdict_of(outcome, self._signature, self._terms.match)

    def _fits(self, outcome: Outcome) -> bool:
        """It did what is recorded: that failure, or none if none is."""
        return self._verdict(outcome) is (Verdict.PASSED if self._failure is None else Verdict.SAME)

    def _deliver(self) -> Delivery:
        timeout = TIMEOUT if self._terms.deadline is None else self._terms.deadline
        with tempfile.TemporaryDirectory(prefix="sleuth-", ignore_cleanup_errors=True) as folder:
            return deliver(
                self._found.blobs,
                self._found.case,
                Path(folder) / "repro.py",
                trust=self._terms.trust,
                timeout=timeout,
                runner=self._terms.run_script,
            )

    def _repeat(self, first: Outcome) -> Rate:
        """More runs of the replay, to tell what differs from what does not show each time."""
        signature, match = self._signature, self._terms.match
        rate = add(Rate(), first, signature, match)
        if self._failure is None:
            return rate
        query = self._query(with_history=self._terms.with_history)
        most = min(_SURE, self._terms.repeats) if rate.same else self._terms.repeats
        while len(rate.outcomes) < most:
            rate = add(rate, ask(self._runner, query, blame=False), signature, match)
            if rate.is_flaky:
                most = self._terms.repeats
        return rate

    # ---- findings ------------------------------------------------------------------------------------------

    def _tried(self, rate: Rate, delivery: Delivery) -> Iterator[Finding]:
        """What the runs themselves have shown."""
        if rate.is_flaky:
            yield Finding(
                Kind.NONDETERMINISM,
                rate.describe(),
                f"ask more than once: {rate.runs_needed()} runs miss it at most once in a hundred times (--times)",
            )
        elif self._failure is not None and rate.same == 0:
            if delivery.reproduces:
                words = "the script shows the failure, and the replay does not"
                yield Finding(Kind.SCRIPT, words, "go on with the script: sleuth export")
            elif not self._terms.with_history:
                yield from self._with_history()
        elif rate.same and delivery.reproduces is False:
            words = f"the replay shows the failure, and the script does not: {delivery.seen}"
            yield Finding(Kind.SCRIPT, words, "go on with the replay: sleuth replay")

    def _with_history(self) -> Iterator[Finding]:
        if history_of(self._found).cases and self._fits(self._replay(with_history=True)):
            words = "it fails only after the graphs that the program had compiled before it"
            yield Finding(Kind.HISTORY, words, "replay it with them: --with-history")

    def _untried(self, rate: Rate) -> Iterator[Finding]:
        history = history_of(self._found)
        if rate.same or not history.missing:
            return
        words = f"graphs that the program had compiled before it are not at hand: {_some(history)}"
        yield Finding(Kind.HISTORY, words, "watch the program again, and keep the store", certain=False)

    def _notes(self, outcome: Outcome, delivery: Delivery) -> tuple[str, ...]:
        notes = []
        if delivery.not_run:
            notes.append(f"the script was not run: {delivery.not_run}")
        elif delivery.reproduces is False:
            notes.append("the script does not show it: it compiles no other graph first")
        code = code_differs(self._found, outcome)
        if code is not None:
            notes.append(code.words)
        return tuple(notes)


def _some(history: History) -> str:
    more = len(history.missing) - 3
    return ", ".join(history.missing[:3]) + (f" and {more} more" if more > 0 else "")

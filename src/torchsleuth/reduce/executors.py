"""Whoever answers whether a case still fails: the seam between reducing and what runs cases.

    Executor ── Oracular        a runner and a signature: what `sleuth minify` uses
             ├─ Commanded       a command of the user's (`commanding`)
             └─ Predicate       a function, for tests and benchmarks

Another engine (a cluster, a service) is one more class with `workers`, `terms` and `submit`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol

import msgspec

from torchsleuth.case.schema import Case, Failure, Signature
from torchsleuth.case.signatures import ORIGIN, Match
from torchsleuth.outcome import Broken, Crashed, Outcome, OutOfMemory, Passed, Raised, TimedOut, Unrunnable
from torchsleuth.run.observing.signatures import failure_of
from torchsleuth.run.oracle import Verdict, as_wanted, verdict_of
from torchsleuth.run.query import Query, Runner
from torchsleuth.run.replay import fares_alike, in_eager


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a case that was asked about."""

    verdict: Verdict
    seconds: float = 0.0
    words: str = ""
    """What happened, in one line."""
    failure: Failure | None = None
    """How it failed, whichever failure it was."""


class Executor(Protocol):
    """Answers, several at a time."""

    @property
    def workers(self) -> int:
        """How many questions can be worked on at the same time."""

    @property
    def terms(self) -> bytes:
        """What an answer depends on besides the case: whom it is asked from, and about which failure."""

    def submit(self, case: Case) -> Future[Answer]:
        """Ask. The future can be cancelled; it raises nothing but what is a fault of the executor's own."""


class Predicate:
    """Answers by a function of the case, at once."""

    workers = 1

    def __init__(self, holds: Callable[[Case], bool | Verdict]) -> None:
        self._holds = holds
        self.asked = 0
        self._terms = uuid.uuid4().bytes

    @property
    def terms(self) -> bytes:
        """No other one has the same: nobody can tell whether two functions answer alike."""
        return self._terms

    def submit(self, case: Case) -> Future[Answer]:
        self.asked += 1
        future: Future[Answer] = Future()
        found = self._holds(case)
        verdict = found if isinstance(found, Verdict) else Verdict.SAME if found else Verdict.PASSED
        future.set_result(Answer(verdict))
        return future


class Oracular:
    """Asks a runner, and compares what it sees with a signature.

    A process that dies cannot say whether eager would have died as well: then eager is asked too. A failure that does
    not show each time is asked for more than once: `needs` says how many of how many runs have to show it. `also`: what
    else the questions have that answers depend on.
    """

    def __init__(
        self,
        runner: Runner,
        question: Callable[[Case], Query],
        signature: Signature | None,
        match: Match = ORIGIN,
        *,
        also: tuple[object, ...] = (),
        workers: int = 1,
        needs: tuple[int, int] = (1, 1),
    ) -> None:
        self._runner = runner
        self._question = question
        self._signature = signature
        self._match = match
        self._also = also
        self._needs = needs
        self.workers = workers

    @property
    def terms(self) -> bytes:
        return _ENCODER.encode((self._signature, str(self._match), self._also, self._needs))

    def submit(self, case: Case) -> Future[Answer]:
        return _Asked(self._runner, self._question(case), self._judged, self._needs).answer

    def _judged(self, outcome: Outcome) -> tuple[Verdict, Outcome]:
        """What an outcome says of the failure, and as what it is kept."""
        judged = self._signature, self._match
        return verdict_of(outcome, *judged), as_wanted(outcome, *judged)


_ENCODER: Final = msgspec.json.Encoder()
_DEADLY: Final = (Crashed, TimedOut, OutOfMemory)


class _Asked:
    """One question on its way: as many runs as it takes, each begun when the one before is over."""

    def __init__(
        self, runner: Runner, query: Query, judged: Callable[[Outcome], tuple[Verdict, Outcome]], needs: tuple[int, int]
    ) -> None:
        self._runner = runner
        self._query = query
        self._judged = judged
        self._enough, self._most = needs
        self._met: list[tuple[Verdict, Outcome]] = []
        self._seconds = 0.0
        self._died: Outcome | None = None
        self._running: Future[Outcome] | None = None
        self.answer: Future[Answer] = Future()
        self.answer.add_done_callback(self._cancelled)
        self._run(query)

    def _cancelled(self, answer: Future[Answer]) -> None:
        if answer.cancelled() and self._running is not None:
            self._running.cancel()

    def _run(self, query: Query) -> None:
        self._running = self._runner.submit(query)
        self._running.add_done_callback(self._done)

    def _done(self, running: Future[Outcome]) -> None:
        if self.answer.done():
            return
        if running.cancelled():  # by the runner: it is being closed
            self.answer.cancel()
            return
        try:
            self._take(running.result())
        except BaseException as error:  # noqa: BLE001 - it is the waiting side's to raise
            if not self.answer.done():
                self.answer.set_exception(error)

    def _take(self, outcome: Outcome) -> None:
        self._seconds += outcome.seconds
        if self._died is not None:
            died, self._died = self._died, None
            outcome = outcome if isinstance(outcome, (Raised, Unrunnable)) else fares_alike(died, outcome)
            if isinstance(outcome, Raised):
                outcome = Unrunnable(outcome.stage, reason=f"eager fails: {outcome.describe()}")
        elif isinstance(outcome, _DEADLY) and self._judged(outcome)[0] is Verdict.SAME:
            self._died = outcome
            self._run(in_eager(self._query))
            return
        verdict, outcome = self._judged(outcome)
        self._met.append((verdict, outcome))
        same = sum(one is Verdict.SAME for one, _ in self._met)
        left = self._most - len(self._met)
        if same < self._enough <= same + left and verdict is not Verdict.INVALID:
            self._run(self._query)
            return
        self._settle(same >= self._enough)

    def _settle(self, is_same: bool) -> None:
        told = [one for one in self._met if (one[0] is Verdict.SAME) == is_same] or self._met
        verdict, outcome = max(told, key=lambda one: sum(other[0] is one[0] for other in self._met))
        if verdict is Verdict.SAME and not is_same:  # it shows, but too rarely
            verdict = Verdict.PASSED
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(answer_of(verdict, outcome, self._seconds))


def answer_of(verdict: Verdict, outcome: Outcome, seconds: float) -> Answer:
    """What is kept of an outcome."""
    clean = isinstance(outcome, (Passed, Unrunnable, Broken))
    return Answer(verdict, seconds, outcome.describe()[:500], None if clean else failure_of(outcome))

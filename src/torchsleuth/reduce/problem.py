"""The one place that knows how small it has become: the best case so far, and how to find out about another.

    problem = Problem(case, executor)
    problem.holds(candidate)        is it smaller, legal, and does it fail in the same way? Then it is the best one now
    problem.ahead([...])            may be worked on meanwhile: somebody is about to ask

It hides what is asked and what is known, how many questions are worked on at the same time, and how much may be spent.
What it answers does not depend on any of that, except when the budget is spent: then it raises `Stopped`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Final

from torchsleuth.case.schema import Case
from torchsleuth.reduce.events import Answered, Began, Event, Improved, Met, Observer
from torchsleuth.reduce.executors import Answer, Executor
from torchsleuth.reduce.legality import legal
from torchsleuth.reduce.order import Size, size_of
from torchsleuth.reduce.verdicts import Verdicts, key_of
from torchsleuth.run.oracle import Verdict

_MOST_MEASURED: Final = 100
_MOST_BROKEN: Final = 3
"""So many questions in a row that cannot be answered, and it is of no use to go on."""


class Stopped(Exception):
    """It was stopped before the end: the budget is spent."""


@dataclass(frozen=True)
class Budget:
    """How much may be spent."""

    seconds: float | None = None
    queries: int | None = None


@dataclass
class Spent:
    """How much was."""

    queries: int = 0
    """Asked and answered."""
    known: int = 0
    """Answered without asking."""
    wasted: int = 0
    """Begun ahead of time, and not needed."""
    seconds: float = 0.0
    """Of the queries, one after another."""
    began: float = field(default_factory=time.monotonic)
    """When it began, by the clock of this process."""


@dataclass(frozen=True)
class Other:
    """Another failure that was met."""

    case: Case
    answer: Answer


class Problem:
    """A case that is made smaller and smaller."""

    def __init__(
        self,
        case: Case,
        executor: Executor,
        verdicts: Verdicts | None = None,
        *,
        budget: Budget = Budget(),  # noqa: B008 - immutable
        observers: Sequence[Observer] = (),
        spent: Spent | None = None,
        is_legal: Callable[[Case], bool] = legal,
    ) -> None:
        self.best = case
        self.size = size_of(case)
        self.original = case
        self.spent = spent or Spent()
        self.others: list[Other] = []
        """Other failures that were met, each once."""
        self.passed: list[Case] = []
        """What did not fail at all since the best case was found."""
        self.seen = Answer(Verdict.SAME)
        """How the best case fails, as far as that is known."""
        self.trail: list[tuple[Case, Answer | None]] = [(case, None)]
        """The best cases, one after another, and how each failed."""
        self.cleared: set[str] = set()
        """Operators of the whole case that were seen to be right, each by itself."""
        self.at_edge = False
        """Whether each operator matters a little, and only all of them together make it fail (what takes longer and
        longer does). Then to leave out a single one tells nothing, and is not asked about."""
        self.unanswered = 0
        """Questions that our own machinery could not answer."""
        self._executor = executor
        self._terms = executor.terms
        self._verdicts = verdicts or Verdicts()
        self._budget = budget
        self._observers = observers
        self._is_legal = is_legal
        self._broken = 0
        self._flying: dict[bytes, Future[Answer]] = {}
        self._measured: dict[int, tuple[Case, Size]] = {}
        self.tell(Began(case, self.size))

    # ---- asking ----------------------------------------------------------------------------------------------

    def holds(self, case: Case | None, words: str = "") -> bool:
        """Whether a case is smaller than the best one and still fails in the same way. Then it is the best one."""
        if case is None or not self._is_candidate(case):
            return False
        answer = self.answer(case, words)
        if answer.verdict is not Verdict.SAME:
            return False
        self._adopt(case, answer, words)
        return True

    def each(self, cases: Sequence[Case | None], words: Sequence[str]) -> list[bool]:
        """Whether each is smaller and fails in the same way. The best one stays as it is."""
        self.ahead(cases, most=len(cases))
        return [
            case is not None and self._is_candidate(case) and self.answer(case, said).verdict is Verdict.SAME
            for case, said in zip(cases, words, strict=True)
        ]

    def answer(self, case: Case, words: str = "", *, anew: bool = False) -> Answer:
        """What is known of a case, or found out now. `anew`: it is asked again, unless it is known to fail alike."""
        key = self.key(case)
        answer = None if key in self._flying else self._verdicts.get(key)
        if anew and answer is not None and answer.verdict is not Verdict.SAME:
            answer = None
        asked = answer is None
        if answer is None:
            answer = self._asked(key, case)
            self._verdicts.put(key, answer)
        else:
            self.spent.known += 1
        self.tell(Answered(words, answer, asked))
        self._note(case, answer)
        return answer

    def ahead(self, cases: Iterable[Case | None], most: int | None = None) -> None:
        """These are likely to be asked about, the likeliest first.

        As many as there are workers (or `most`) are worked on from now on, and nothing else.
        """
        if self._executor.workers < 2 and most is None:
            return
        wanted: dict[bytes, Case] = {}
        for case in cases:
            if len(wanted) >= max(self._executor.workers, most or 0):
                break
            if case is not None and self._is_candidate(case):
                key = self.key(case)
                if key in self._flying or self._verdicts.get(key) is None:
                    wanted[key] = case
        self._give_up(self._flying.keys() - wanted.keys())
        for key, case in wanted.items():
            if key not in self._flying:
                self._flying[key] = self._executor.submit(case)

    def ask_instead(self, executor: Executor) -> None:
        """Have somebody else answer from now on."""
        self.cancel()
        self._executor = executor
        self._terms = executor.terms

    def begin(self, case: Case) -> None:
        """Have a case worked on, whatever its size: its answer is wanted later."""
        key = self.key(case)
        if key not in self._flying and self._verdicts.get(key) is None:
            self.check_budget()
            self._flying[key] = self._executor.submit(case)

    def _adopt(self, case: Case, answer: Answer, words: str) -> None:
        """Take a case that is known to fail in the same way as the best one."""
        self.best, self.size = case, self.measure(case)
        self.seen = answer
        self.trail.append((case, answer))
        self.passed.clear()
        self.tell(Improved(case, self.size, words))

    def start_over(self) -> None:
        """From the whole case: what was found is not small in the way that counts from now on."""
        self.best, self.size = self.original, self.measure(self.original)
        self.seen = Answer(Verdict.SAME)
        self.trail[1:] = []
        self.passed.clear()
        self.tell(Began(self.best, self.size))

    def cancel(self) -> None:
        """Whatever was begun is given up; what is answered already is kept."""
        self._give_up(set(self._flying))

    def _give_up(self, keys: Set[bytes]) -> None:
        for key in keys:
            future = self._flying.pop(key)
            if not future.cancel() and future.done() and future.exception() is None:
                self._verdicts.put(key, future.result())
            self.spent.wasted += 1

    def tell(self, event: Event) -> None:
        """Say something to whoever watches."""
        for observer in self._observers:
            observer(event)

    def key(self, case: Case) -> bytes:
        """What the answer about a case is kept under."""
        return key_of(self.measure(case).digest, self._terms)

    def measure(self, case: Case) -> Size:
        """How large a case is."""
        known = self._measured.get(id(case))
        if known is None:
            if len(self._measured) >= _MOST_MEASURED:
                self._measured.clear()
            known = self._measured[id(case)] = (case, size_of(case))
        return known[1]

    # ---- inside ----------------------------------------------------------------------------------------------

    def _is_candidate(self, case: Case) -> bool:
        size = self.measure(case)
        if self.at_edge and size.operators == self.size.operators - 1:
            return False
        return size < self.size and self._is_legal(case)

    def _asked(self, key: bytes, case: Case) -> Answer:
        answer = self._tried(key, case)
        if answer.verdict is Verdict.BROKEN:  # it may have been an accident
            answer = self._tried(key, case)
        if answer.verdict is not Verdict.BROKEN:
            self._broken = 0
            return answer
        self.unanswered += 1
        self._broken += 1
        if self._broken >= _MOST_BROKEN:
            self.cancel()
            raise Stopped(f"our own machinery failed {self._broken} times in a row: {answer.words}")
        return answer

    def _tried(self, key: bytes, case: Case) -> Answer:
        self.check_budget()
        if key not in self._flying:
            self._flying[key] = self._executor.submit(case)
        try:
            answer = self._waited_for(self._flying[key])
        except BaseException:  # Ctrl-C, a test that is broken
            self.cancel()
            raise
        del self._flying[key]
        self.spent.queries += 1
        self.spent.seconds += answer.seconds
        return answer

    def _waited_for(self, future: Future[Answer]) -> Answer:
        """The answer. What else is answered meanwhile is kept at once: nobody knows how long we live."""
        waiting = set(self._flying.values())
        while not future.done():
            done, waiting = wait(waiting, self._seconds_left(), FIRST_COMPLETED)
            if not done:
                raise Stopped("its time is over")
            self._keep(done - {future})
        return future.result()

    def _keep(self, done: set[Future[Answer]]) -> None:
        for key, future in self._flying.items():
            if future in done and not future.cancelled() and future.exception() is None:
                self._verdicts.put(key, future.result())

    def check_budget(self) -> None:
        """Raise `Stopped` if there is nothing left to spend."""
        left = self._seconds_left()
        if left is not None and left <= 0:
            self.cancel()
            raise Stopped("its time is over")
        if self._budget.queries is not None and self.spent.queries >= self._budget.queries:
            self.cancel()
            raise Stopped(f"{self._budget.queries:,} queries were asked")

    def _seconds_left(self) -> float | None:
        if self._budget.seconds is None:
            return None
        return self._budget.seconds - (time.monotonic() - self.spent.began)

    def _note(self, case: Case, answer: Answer) -> None:
        if answer.verdict is Verdict.PASSED:
            self.passed.append(case)
        elif answer.verdict is Verdict.OTHER and answer.failure is not None:
            self.meet(case, answer)

    def meet(self, case: Case, answer: Answer) -> None:
        """Another failure was met. Of each, the smallest case that shows it is kept."""
        assert answer.failure is not None
        for at, other in enumerate(self.others):
            assert other.answer.failure is not None
            if other.answer.failure.signature.matches(answer.failure.signature):
                if self.measure(case) < size_of(other.case):
                    self.others[at] = Other(case, answer)
                return
        self.others.append(Other(case, answer))
        self.tell(Met(answer, case))

"""A runner for tests: its answers are written down beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchsleuth.outcome import Outcome
from torchsleuth.run.query import AtOnce, Progress, Query


class Scripted(AtOnce):
    """Answers with these outcomes one after another, or by a function of the query. Keeps what it was asked."""

    def __init__(self, answers: Iterable[Outcome] | Callable[[Query], Outcome]) -> None:
        self._answer = answers if callable(answers) else _Next(answers)
        self.queries: list[Query] = []
        self.closed = False

    def run(self, query: Query, progress: Progress | None = None) -> Outcome:
        self.queries.append(query)
        return self._answer(query)

    def close(self) -> None:
        self.closed = True


class _Next:
    def __init__(self, answers: Iterable[Outcome]) -> None:
        self._answers = iter(answers)

    def __call__(self, query: Query) -> Outcome:
        try:
            return next(self._answers)
        except StopIteration:
            raise AssertionError("the script has no more answers") from None

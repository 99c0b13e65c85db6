"""Making do with fewer operators: the search for the fewest that still fail.

First whatever the failure itself points to (`guiding`), then by halves and growing steps (`searching.least`), then one
by one, until none can be left out by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from torchsleuth.case.schema import Case, Failure
from torchsleuth.reduce.guiding import guesses, likely_needed
from torchsleuth.reduce.problem import Problem
from torchsleuth.reduce.restricting import Values, Whole
from torchsleuth.reduce.searching import innermost, least, one_minimal


def shortcut(problem: Problem, values: Values | None = None, failure: Failure | None = None) -> bool:
    """Try a few operators that may be enough to fail like that. True: some are.

    The failure of a smaller part may point to it more closely: so again, as long as that helps.
    """
    helped = False
    while _guessed(problem, values, failure):
        helped = True
        failure = problem.seen.failure
    return helped


def _guessed(problem: Problem, values: Values | None, failure: Failure | None) -> bool:
    whole = Whole(problem.best, values)
    of = f"of {len(whole.operators)} operators"
    cut = functools.cache(lambda guess: guess.of(whole))
    found = list(guesses(whole, failure))
    problem.ahead(map(cut, found))
    for guess in found:
        case = cut(guess)
        if problem.holds(case, f"{len(guess.names)} {of}"):
            return True
        if guess.apart and case is not None and problem.passed and problem.passed[-1] is case:
            problem.cleared |= guess.names & {node.name for node in case.graph.nodes}
    return False


def fewer_operators(problem: Problem, values: Values | None = None) -> bool:
    """Leave out operators of the best case, until none can be left out by itself. True: some are gone."""
    before = problem.best
    whole = Whole(before, values)
    if len(whole.operators) < 2:
        return False
    question = Operators(problem, whole)
    names: Sequence[str] = whole.operators
    if len(names) > 2:
        question.fewer_outputs()
        if problem.at_edge:
            names = innermost(names, question)
        names = least(names, question)
    if not problem.at_edge:
        names = one_minimal(names, question, likely_needed(whole))
        question.sweep(names)
    return problem.best is not before


class Operators:
    """Whether some of the operators of a case are enough."""

    def __init__(self, problem: Problem, whole: Whole) -> None:
        self._problem = problem
        self._whole = whole
        self._outputs = True
        """What is returned still is, as long as it is there."""
        self._cut: dict[tuple[frozenset[str], bool], Case | None] = {}
        self._held: list[str] = list(whole.operators)

    def fewer_outputs(self) -> None:
        """Return only what nobody uses, if that is enough."""
        if self._problem.holds(self._whole.only(set(self._whole.operators), outputs=False), "fewer outputs"):
            self._outputs = False

    def holds(self, names: Sequence[str]) -> bool:
        words = f"{len(names)} of {len(self._whole.operators)} operators"
        if set(names) == set(self._held):
            return True  # the best case is made of them
        if self._problem.holds(self._only(names), words):
            self._held = list(names)
            return True
        return False

    def ahead(self, guesses: Iterable[Sequence[str]]) -> None:
        self._problem.ahead(self._only(names) for names in guesses)

    def sweep(self, names: Sequence[str]) -> None:
        """Leave out each by itself once more, with what it computed as an input."""
        if len(names) < 2:
            return
        for name in reversed(names):
            rest = [one for one in self._held if one != name]
            if rest and len(rest) < len(self._held) and self._problem.holds(self._only(rest, bypass=False), "one less"):
                self._held = rest

    def _only(self, names: Sequence[str], *, bypass: bool = True) -> Case | None:
        key = (frozenset(names), bypass)
        if key not in self._cut:
            if len(self._cut) > 64:
                self._cut.clear()
            self._cut[key] = self._whole.only(key[0], outputs=self._outputs, bypass=bypass)
        return self._cut[key]

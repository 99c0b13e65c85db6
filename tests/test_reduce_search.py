"""The searches: they find exactly what is needed, with few questions, and end with nothing that could be left out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from torchsleuth.reduce.searching import find_integer, innermost, least, one_minimal


class Counting:
    """A question about numbers, that counts. What was asked once is known."""

    def __init__(self, holds: Callable[[frozenset[int]], bool]) -> None:
        self._holds = holds
        self.known: dict[frozenset[int], bool] = {}
        self.guessed: set[frozenset[int]] = set()

    def holds(self, things: Sequence[int]) -> bool:
        assert len(set(things)) == len(things)
        return self.known.setdefault(frozenset(things), self._holds(frozenset(things)))

    def ahead(self, guesses: Iterable[Sequence[int]]) -> None:
        self.guessed.update(frozenset(guess) for guess in guesses)


def searched(count: int, holds: Callable[[frozenset[int]], bool]) -> tuple[list[int], Counting]:
    question = Counting(holds)
    return one_minimal(least(range(count), question), question), question


@pytest.mark.parametrize("count", [50, 200, 1000, 5000])
@pytest.mark.parametrize("needed", [1, 2, 4])
def test_finds_exactly_what_is_needed_near_the_bound(count: int, needed: int) -> None:
    """Covers: U25. At most three times what information theory asks for, and ten; wherever the needed ones are."""
    draw = random.Random(count + needed)
    for _ in range(10):
        wanted = frozenset(draw.sample(range(count), needed))
        found, question = searched(count, wanted.issubset)
        assert found == sorted(wanted)
        assert len(question.known) <= 3 * math.log2(math.comb(count, needed)) + 10


def test_neighbours_that_are_needed_together_cost_little() -> None:
    found, question = searched(2000, frozenset(range(700, 730)).issubset)
    assert found == list(range(700, 730))
    assert len(question.known) <= 22 + 3 * 30


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_oracle_the_result_holds_and_is_one_minimal(seed: int) -> None:
    """Covers: U25. Oracles that are not monotone: what is left holds, and none of it can be left out by itself."""
    draw = random.Random(seed)
    needed = [frozenset(draw.sample(range(40), draw.randint(1, 6))) for _ in range(3)]
    never = frozenset(draw.sample(range(40), 2))

    def holds(things: frozenset[int]) -> bool:
        return len(things) == 40 or (
            any(map(things.issuperset, needed)) and not (never & things and len(things) % 3 == 0)
        )

    found, question = searched(40, holds)
    assert holds(frozenset(found))
    if len(found) > 1:
        assert not any(holds(frozenset(found) - {one}) for one in found)
    assert len(question.known) < 400


def test_most_of_what_is_asked_was_foretold() -> None:
    """Whoever asks several at once needs to know what comes next."""
    _, question = searched(1000, frozenset({3, 400, 777}).issubset)
    assert len(question.guessed & question.known.keys()) >= 0.8 * len(question.known)


def test_within_a_group_that_is_needed_the_next_question_is_foretold_one_ahead() -> None:
    """Two workers are as busy as one there, and twice as fast."""

    class Noting(Counting):
        def __init__(self, holds: Callable[[frozenset[int]], bool]) -> None:
            super().__init__(holds)
            self.early = 0
            self.guessed_before: set[frozenset[int]] = set()

        def holds(self, things: Sequence[int]) -> bool:
            self.early += frozenset(things) in self.guessed_before
            return super().holds(things)

        def ahead(self, guesses: Iterable[Sequence[int]]) -> None:
            self.guessed_before = set(self.guessed)
            super().ahead(guesses)

    question = Noting(frozenset(range(700, 760)).issubset)
    assert least(range(2000), question) == list(range(700, 760))
    assert question.early >= 50


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 7, 31, 1000])
def test_find_integer(limit: int) -> None:
    asked = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert find_integer(holds) == limit
    assert len(asked) == len(set(asked)) <= 6 + 2 * math.log2(limit + 1)


def lasts(things: frozenset[int]) -> bool:
    """Whether they last a minute: each in the middle a quarter longer than those before it, each around it a little."""
    run = longest = 0
    for thing in range(86, 139):
        run = run + 1 if thing in things else 0
        longest = max(longest, run)
    return 0.1 * len(things) + 0.17 * 1.25**longest >= 60.0


def test_what_is_slow_is_found_among_what_is_not() -> None:
    """Covers: U19. The shortest beginning lasts hardly longer than it has to: then all of it would seem to be needed,
    also what hardly takes any time.
    """
    question = Counting(lasts)
    found = least(innermost(range(224), question), question)
    assert lasts(frozenset(found))
    assert len(found) <= 32
    assert len(least(range(224), Counting(lasts))) > 35


@pytest.mark.parametrize("count", [1, 2, 3, 16, 50])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 1.0])
def test_innermost(count: int, place: float) -> None:
    """What is needed stays, wherever it is, and not much more if that is in the middle."""
    needed = frozenset({round(place * (count - 1))})
    question = Counting(needed.issubset)
    found = innermost(range(count), question)
    assert needed <= set(found)
    assert found == sorted(found)
    assert len(question.known) <= 4
    if place == 0.5:
        assert len(found) <= 2 * -(-count // 16)

"""Searches for the fewest of many things that still do. They know nothing of cases: only whether some things do.

    least(things, question)         few of the things that still do; all by itself
    innermost(things, question)     without what can be left out on both sides, roughly
    one_minimal(things, question)   so few that none can be left out by itself
    find_integer(holds)             the largest number that still does

If whatever has what is needed does (the oracle is *monotone*), `least` finds exactly the k things of n that are needed
with about 2 k log₂ n questions at most, fewer if they lie close together: first where the last of them is, then the
first, then the others from the end backwards, in steps that grow from one. Real failures are not always so well
behaved: then what it finds does, as everything that is said to do was asked for, but may not be the least, and
`one_minimal` goes on from there, by probabilistic delta debugging.

A question may take long, and several can be asked at once. So a search tells which questions are likely to come next
(`ahead`), and never depends on whether anybody listened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
_T = TypeVar("_T", contravariant=True)


class Question(Protocol[_T]):
    """Whether some things still do."""

    def holds(self, things: Sequence[_T]) -> bool:
        """Whether these do."""

    def ahead(self, guesses: Iterable[Sequence[_T]]) -> None:
        """These are likely to be asked next, the likeliest first."""


def least(things: Sequence[T], question: Question[T]) -> list[T]:
    """Few of the things that still do, given that all of them do."""
    things = _without_end(list(things), question)
    if len(things) > 2 and question.holds(things[-1:]):  # most often one is to blame
        return things[-1:]
    things = _without_beginning(things, question)
    if len(things) <= 2:
        return things
    first, between, last = things[:1], things[1:-1], things[-1:]
    needed = last
    wait, pause = 0, 1
    is_needed = False
    while between:
        # Whether these are all. In the midst of a group that is needed together it is asked less and less often.
        if wait == 0:
            if question.holds([*first, *needed]):
                return [*first, *needed]
            wait, pause = pause, pause * 2
        left = _fewer(first, between, needed, question, is_needed)
        is_needed = len(left) == len(between)
        wait, pause = (wait - 1, pause) if is_needed else (0, 1)
        needed, between = [left[-1], *needed], left[:-1]
    return [*first, *needed]


def innermost(things: Sequence[T], question: Question[T], parts: int = 16) -> list[T]:
    """The things without as many parts as can be left out on both sides alike, given that all of them do.

    For where every thing matters a little, and only all of them together do: to look for the shortest beginning first
    would use up what there is to spare, and then all of it would seem to be needed.
    """
    size = -(-len(things) // parts)
    blocks = [things[start : start + size] for start in range(0, len(things), size)]
    inner = sorted(range(len(blocks)), key=lambda at: abs(2 * at + 1 - len(blocks)))

    def part(count: int) -> list[T]:
        return [thing for at in sorted(inner[:count]) for thing in blocks[at]]

    return part(_bisected(len(blocks), part, question))


def _without_end(things: list[T], question: Question[T]) -> list[T]:
    """The shortest beginning that still does."""
    return things[: _bisected(len(things), lambda count: things[:count], question)]


def _without_beginning(things: list[T], question: Question[T]) -> list[T]:
    """The shortest end that still does."""
    return things[len(things) - _bisected(len(things), lambda count: things[len(things) - count :], question) :]


def _bisected(most: int, part: Callable[[int], Sequence[T]], question: Question[T]) -> int:
    """The smallest number from 1 to `most` whose part still does, given that the largest does."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        halves = [(low + middle) // 2, (middle + high) // 2]
        question.ahead(part(count) for count in (middle, *halves) if low < count < high)
        if question.holds(part(middle)):
            high = middle
        else:
            low = middle
    return high


def _fewer(first: list[T], between: list[T], needed: list[T], question: Question[T], is_needed: bool) -> list[T]:
    """What of `between` is left when as many as possible are taken from its end; the last of that is needed.

    `is_needed`: the one after it is, so that its last may be needed, too; then the one before that is asked about next.
    """

    def part(count: int) -> list[T]:
        return [*first, *between[: len(between) - count], *needed]

    # Neighbours are often needed together: so in steps that grow from one.
    good, step = 0, 1
    while good + step < len(between):
        further = part(good + 3 * step) if good + 3 * step < len(between) else []
        next_one = [*first, *between[:-2], between[-1], *needed]
        question.ahead(one for one in (part(good + step), next_one if is_needed and not good else further) if one)
        if not question.holds(part(good + step)):
            break
        good += step
        step *= 2
    bad = min(good + step, len(between))
    while bad - good > 1:
        middle = (good + bad) // 2
        halves = [(good + middle) // 2, (middle + bad) // 2]
        question.ahead(part(count) for count in (middle, *halves) if good < count < bad)
        if question.holds(part(middle)):
            good = middle
        else:
            bad = middle
    return between[: len(between) - good]


def find_integer(holds: Callable[[int], bool]) -> int:
    """The largest number that holds, given that 0 does and that whatever is below one that holds does as well.

    Small answers are the common ones: so 1 to 4 one by one, then in steps that double, then by halves.
    """
    for number in range(1, 5):
        if not holds(number):
            return number - 1
    low, high = 4, 5
    while holds(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


# ---- one-minimal -----------------------------------------------------------------------------------------


_SURE: Final = 1.0 - 1e-9
_FEW: Final = 4
"""So few things are simply tried one after another."""


def one_minimal(things: Sequence[T], question: Question[T], likely: Mapping[T, float] | None = None) -> list[T]:
    """Of the things, which still do, so few that none can be left out by itself.

    `likely`: how likely each is to be needed, from 0 to 1, for those of which something is known.
    """
    kept = list(things)
    if len(kept) > _FEW:
        kept = _by_chance(kept, question, likely or {})
    return _swept(kept, question)


def _by_chance(things: list[T], question: Question[T], likely: Mapping[T, float]) -> list[T]:
    """Probabilistic delta debugging: leave out what promises to make the most of it, and learn from what is needed."""
    usual = 1.0 / len(things)
    chance = {at: min(max(likely.get(thing, usual), 1e-3), 0.999) for at, thing in enumerate(things)}
    kept = list(range(len(things)))
    while True:
        group = _promising(kept, chance)
        if len(group) < 2:  # single ones are swept in the end
            return [things[at] for at in kept]
        left = [at for at in kept if at not in group]
        if left and question.holds([things[at] for at in left]):
            kept = left
            continue
        free = 1.0
        for at in group:
            free *= 1.0 - chance[at]
        for at in group:
            chance[at] = min(chance[at] / (1.0 - free), 1.0) if free < 1.0 else 1.0


def _promising(kept: Sequence[int], chance: Mapping[int, float]) -> set[int]:
    """What to leave out next: of those least likely to be needed, as many as promise the most."""
    best, promise, free = 0, 0.0, 1.0
    order = sorted((at for at in kept if chance[at] < _SURE), key=lambda at: (chance[at], -at))
    for count, at in enumerate(order, start=1):
        free *= 1.0 - chance[at]
        if count * free > promise:
            best, promise = count, count * free
    return set(order[:best])


def _swept(things: list[T], question: Question[T]) -> list[T]:
    """Try to leave out each by itself, until a whole round was in vain."""
    at, in_vain = len(things) - 1, 0
    while len(things) > 1 and in_vain < len(things):
        at %= len(things)
        places = [(at - more) % len(things) for more in range(min(len(things) - in_vain, 4))]
        question.ahead([*things[:place], *things[place + 1 :]] for place in places)
        if question.holds([*things[:at], *things[at + 1 :]]):
            del things[at]
            in_vain = 0
        else:
            in_vain += 1
        at -= 1
    return things

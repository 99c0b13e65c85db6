"""How far minifying has come: a few lines that change on a terminal, a line now and then elsewhere.

with shown(console, Sofar("3f9a1c07be")) as observer:
    minify(..., observers=[observer])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchsleuth.case.schema import Case
from torchsleuth.case.words.wording import one_line
from torchsleuth.reduce.events import Answered, Began, Ended, Entered, Event, Improved, Met, Observer
from torchsleuth.reduce.order import Size
from torchsleuth.reduce.problem import Budget
from torchsleuth.report.reduction import time_words

_A_LINE_EVERY: Final = 2.0
"""Seconds, where lines stay."""


class Sofar:
    """What the events came to. `passes`: how many there are in a round, if that is known."""

    def __init__(
        self,
        name: str,
        *,
        passes: int | None = None,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.before: tuple[Case, Size] | None = None
        self.best: tuple[Case, Size] | None = None
        self.asked = 0
        self.known = 0
        self.others = 0
        self.doing = "does the whole case fail?"
        self.ended = False
        self._tried = ""
        self._passes = passes
        self._budget = budget or Budget()
        self._clock = clock
        self._began = clock()
        self._round: dict[str, float] = {}
        """When each pass of this round began."""
        self._before: dict[str, float] = {}
        """How long each pass took in the round before."""
        self._rounds = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Began(case, size):
                self.before = self.before or (case, size)
                self.best = case, size  # it may begin once more
            case Entered(name, words):
                self._enter(name)
                self.doing = words
            case Answered(words, answer, asked):
                self.asked += asked
                self.known += not asked
                self._tried = f"{words}: {answer.verdict.value}" if words else ""
            case Improved(case, size, _):
                self.best = case, size
            case Met():
                self.others += 1
            case Ended(why):
                self.ended = True
                self.doing = f"{'stopped' if why else 'nothing is left to try'}; trying the smallest one by itself"

    def _enter(self, name: str) -> None:
        now = self._clock()
        if not self._rounds or name in self._round:
            names, begins = list(self._round), list(self._round.values())
            took = {each: end - begin for each, begin, end in zip(names, begins, [*begins[1:], now], strict=False)}
            first = names.index(name) if name in names else 0  # what came before it is done once and for all
            self._before = {each: took[each] for each in names[first:]}
            self._round.clear()
            self._rounds += 1
        self._round[name] = now

    # ---- in words --------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def line(self) -> str:
        """All of it in one line that is worth keeping."""
        return f"{self.name}: {self._size()}; {self._effort()}; {self.doing}; {time_words(self.seconds)}"

    def lines(self) -> list[str]:
        """A few lines, for a place where they are replaced by the next ones."""
        where = self._where()
        lines = [f"minifying {self.name}  {self.doing}" + (f" ({where})" if where else "")]
        if self.best is not None:
            lines.append(f"  {self._size()}")
        lines.append(f"  {self._effort()}" + (f"  {one_line(self._tried, 60)}" if self._tried else ""))
        left = self._left()
        lines.append(f"  {time_words(self.seconds)}" + (f", {left}" if left else ""))
        return lines

    def _size(self) -> str:
        if self.before is None or self.best is None:
            return "nothing yet"
        (whole, was), (case, now) = self.before, self.best
        return (
            f"{now.operators:,} of {was.operators:,} operators, {len(case.inputs):,} of {len(whole.inputs):,} inputs, "
            f"{now.elements:,} of {was.elements:,} elements"
        )

    def _effort(self) -> str:
        minutes = self.seconds / 60
        rate = f", {self.asked / minutes:.0f} a minute" if self.asked and minutes > 0.05 else ""
        known = f" + {self.known:,} known" if self.known else ""
        others = f", {self.others:,} other failures" if self.others else ""
        return f"{self.asked:,} queries{known}{rate}{others}"

    def _where(self) -> str:
        if not self._rounds or self.ended:
            return ""
        of = len(self._before) or self._passes
        done = len(self._round)
        which = f"pass {done} of {max(of, done)}" if of else f"pass {done}"
        return f"{which}, round {self._rounds}"

    def _left(self) -> str:
        """How long it will take: at most, if a budget says so; about, if the round before tells. Else nobody knows."""
        if self.ended:
            return ""
        if self._budget.seconds is not None:
            return f"at most {time_words(max(self._budget.seconds - self.seconds, 0.0))} more"
        if self._budget.queries is not None and self.asked:
            left = max(self._budget.queries - self.asked, 0) * self.seconds / self.asked
            return f"about {time_words(left)} more at most"
        if not self._before:
            return ""
        name, began = list(self._round.items())[-1]
        left = max(self._before.get(name, 0.0) - (self._clock() - began), 0.0)
        left += sum(took for each, took in self._before.items() if each not in self._round)
        return f"about {time_words(left)} more in this round"


@contextmanager
def shown(console: Console, sofar: Sofar, *, quiet: bool = False) -> Iterator[Observer]:
    """Show how far it is while the block lasts; what it yields is told the events."""
    if quiet:
        yield sofar
    elif console.is_terminal:
        rendered: Callable[[], Text] = lambda: Text("\n".join(sofar.lines()))  # noqa: E731
        with Live(console=console, get_renderable=rendered, refresh_per_second=4, transient=True):
            yield sofar
    else:
        lines = _Lines(console, sofar)
        yield lines
        lines.flush()


class _Lines:
    """A line for what became smaller, but not for each of many in a moment."""

    def __init__(self, console: Console, sofar: Sofar) -> None:
        self._console = console
        self._sofar = sofar
        self._said = -_A_LINE_EVERY
        self._due = False

    def __call__(self, event: Event) -> None:
        self._sofar(event)
        if isinstance(event, Improved):
            self._due = True
            if self._sofar.seconds - self._said >= _A_LINE_EVERY:
                self.flush()
        elif isinstance(event, Ended):
            self._due = True
            self.flush()

    def flush(self) -> None:
        if self._due:
            self._due = False
            self._said = self._sofar.seconds
            self._console.print(Text(self._sofar.line()), soft_wrap=True, highlight=False)

"""Ours, as `reduce_inductor.py` measures it: no more is imported than `sleuth minify` imports."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from pathlib import Path

import msgspec

from torchsleuth.case.stores.store import Store
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.events import Answered, Began, Entered, Event, Improved
from torchsleuth.reduce.minifying import Terms, minify
from torchsleuth.run.query import Runner


class Trail:
    """How small it was, and when."""

    def __init__(self, began: float, *, aloud: bool) -> None:
        self.steps: list[tuple[float, int]] = []
        """Seconds, operators."""
        self._began = began
        self._aloud = aloud
        self._entered = ""

    @property
    def seconds(self) -> float:
        return time.time() - self._began

    def __call__(self, event: Event) -> None:
        if self._aloud:
            self._tell(event)
        if isinstance(event, (Began, Improved)):
            self.steps.append((self.seconds, event.size.operators))

    def _tell(self, event: Event) -> None:
        match event:
            case Entered():
                self._entered = event.words
                return
            case Answered() if event.asked:
                words = f"{event.answer.verdict}: {event.words}"
            case Improved():
                words = f"now {event.size.in_words}"
            case _:
                return
        print(f"{self.seconds:8.1f} s  {self._entered}: {words}", file=sys.stderr, flush=True)


class Ours(msgspec.Struct):
    """What became of ours."""

    steps: list[tuple[float, int]]
    seconds: float
    queries: int
    operators: int
    elements: int
    inputs: str
    """Where the inputs of the script are."""
    verified: bool

    def until(self, operators: int) -> float | None:
        """Seconds until there were no more operators than these."""
        return next((seconds for seconds, count in self.steps if count <= operators), None)

    def cells(self) -> list[str]:
        verified = "yes" if self.verified else "no"
        row = f"{self.seconds:.1f}", self.queries, self.operators, self.elements, self.inputs, verified
        return [str(cell) for cell in row]


def be_ours(runner: Runner, began: float, store: str, name: str, told: str, aloud: bool) -> None:
    """In the process of ours."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    trail, home = Trail(began, aloud=aloud), Store.open(store)
    try:
        reduction = minify(home.find(name), store=home, runner=runner, terms=Terms(again=True), observers=[trail])
        delivery, size = reduction.delivery, reduction.size
        inputs = "–" if delivery is None else delivery.inputs
        made = (reduction.spent.queries, size.operators, size.elements, inputs, reduction.is_verified)
        ours: Ours | str = reduction.why or Ours(trail.steps, trail.seconds, *made)
    except SleuthError as error:
        ours = str(error)
    Path(told).write_bytes(msgspec.json.encode(ours))

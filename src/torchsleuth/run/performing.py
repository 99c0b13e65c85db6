"""The repro run, in this process: prepare → compile → compare, if asked for → run → synchronise."""

from __future__ import annotations

from torchsleuth.outcome import Outcome, Stage, Unrunnable
from torchsleuth.run.query import Progress, Query


def no_progress(_stage: Stage, _done: int, _of: int) -> None:
    """For those whom nobody watches."""


def perform(query: Query, progress: Progress = no_progress) -> Outcome:
    """What happens when a query is answered here. Whatever the compiler raises is an outcome."""
    return Unrunnable(reason="to be written")

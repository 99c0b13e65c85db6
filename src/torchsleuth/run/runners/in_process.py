"""The runner without a process of its own."""

from __future__ import annotations

from torchsleuth.locks import ForkableLock
from torchsleuth.outcome import Outcome
from torchsleuth.run.query import AtOnce, Progress, Query


class InProcess(AtOnce):
    """Answers here, one query at a time. A crash takes us along; deadlines and limits of memory are not kept, and
    nobody is `alone`. Modes, configuration, random numbers and environment are as before afterwards; what torch had
    compiled in this process is forgotten.
    """

    def __init__(self) -> None:
        self._lock = ForkableLock()

    def run(self, query: Query, progress: Progress | None = None) -> Outcome:
        from torchsleuth.run.performing import no_progress, perform
        from torchsleuth.run.runners.known import Known

        with self._lock, Known().kept():
            return perform(query, progress or no_progress)

"""The runner without a process of its own."""

from __future__ import annotations

from concurrent.futures import Future

from torchsleuth.locks import ForkableLock
from torchsleuth.outcome import Outcome
from torchsleuth.run.query import Closing, Progress, Query


class InProcess(Closing):
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

    def submit(self, query: Query) -> Future[Outcome]:
        """The future has its result already."""
        future: Future[Outcome] = Future()
        try:
            future.set_result(self.run(query))
        except Exception as error:  # noqa: BLE001 - it is the future's to raise
            future.set_exception(error)
        return future

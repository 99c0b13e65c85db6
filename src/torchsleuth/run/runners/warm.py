"""The runner for many queries: workers that have imported torch and compiled something before they are asked."""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError
from typing import Final, Literal

from torchsleuth.run.runners import wire
from torchsleuth.run.runners.client import Served

log = logging.getLogger("torchsleuth.run")

QUERIES: Final = 50
"""How many a worker answers. Each leaves a little behind in memory; a new worker takes a fraction of a second."""


class Warm(Served):
    """Asks workers that are forked off a process which has warmed up. Whatever a query does, it is an outcome.

        with Warm() as runner:
            futures = [runner.submit(query) for query in queries]

    `workers`: as many as there are cores, if nothing is said. `deadline`: seconds for each query; if nothing is said,
    ten times what the first one that ran took, but at least 10 s and at most 10 min, which is what all have until
    then. `memory`: bytes for each query beyond what torch itself takes; if nothing is said, a fair share of what was
    available when the first query was asked: nine tenths of it, divided by the number of workers. `queries`: after so
    many a worker is replaced, as it is after a crash, a missed deadline, too much memory, or if it is not as it was
    before.

    Crashes, missed deadlines and wrong results of a worker that has answered other queries are not believed: the query
    is asked again in a worker that has not. `start`: "auto" forks where that is safe and says (`how`, `why`, and a
    warning in the log) where it is not; "spawn" always uses new interpreters, "fork" insists.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        deadline: float | None = None,
        memory: int | None = None,
        queries: int = QUERIES,
        start: Literal["auto", "fork", "spawn"] = "auto",
    ) -> None:
        super().__init__(how=start, queries=queries, workers=workers, deadline=deadline, memory=memory)

    @property
    def how(self) -> str:
        """How workers come to be: "fork" or "spawn". Waits until that is known."""
        return self._how().how

    @property
    def why(self) -> str:
        """Why they are not forked, if that is so and was not asked for."""
        return self._how().why

    def _how(self) -> wire.Started:
        with self._lock:
            self._check_open()
            self._connected()
        try:
            return self._started.result()
        except CancelledError:  # closed meanwhile
            self._check_open()
            raise

    def _said_how(self, started: wire.Started) -> None:
        if started.why:
            log.warning("workers are new interpreters, which takes longer than forking them: %s", started.why)

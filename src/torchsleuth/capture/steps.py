"""One step of a graph: compiling it, or running it. If it fails, that becomes a case, and the exception goes on.

    with Step(watch, settings, graph, inputs, "compile", ahead=True):
        compiled = compiler(gm, inputs)

`ahead`: the case is on the disk while the step lasts, so that it is there even if the process does not survive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.capture import keeping
from torchsleuth.capture.ahead import Ahead, write_ahead
from torchsleuth.capture.graphs import Graph
from torchsleuth.capture.guarding import guarded
from torchsleuth.capture.history import PROCESS
from torchsleuth.capture.journal import Doing
from torchsleuth.capture.keeping import Evidence, Outer
from torchsleuth.capture.watching import Watch, writes_ahead
from torchsleuth.case import schema
from torchsleuth.compare.rng import RngState, preserved
from torchsleuth.config import Settings


class Step:
    """What is known before a step, in case that it fails."""

    def __init__(
        self,
        watch: Watch,
        settings: Settings,
        graph: Graph,
        inputs: Sequence[Any],
        doing: Doing,
        *,
        ahead: bool = False,
        outer: Outer | None = None,
        random: RngState | None = None,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        self._watch = watch
        self._settings = settings
        self._graph = graph
        self._inputs = inputs
        self._doing: Doing = doing
        self._wants_ahead = ahead
        self._outer = outer
        self._random = random
        self._compiled = compiled
        self._ahead: Ahead | None = None
        self._began = 0.0

    def __enter__(self) -> None:
        if self._wants_ahead and self._has_inputs():
            self._ahead = write_ahead(self._watch, self._settings, self._graph, self._inputs, self._doing)
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error, time.monotonic() - self._began)
        elif self._doing == "compile":
            journal = self._watch.journal if writes_ahead(self._settings) and self._watch.journal.outlives else None
            guarded(self._settings, None, lambda: PROCESS.add(self._graph, self._inputs, journal))
        if self._ahead is not None:
            self._ahead.drop()

    def failed(self, error: BaseException, seconds: float) -> None:
        """It ended with an exception, after so many seconds. Whoever calls this lets it go on."""
        if guarded(self._settings, error, lambda: self._is_failure(error, seconds)):
            keeping.keep_error(self._watch, self._settings, error, lambda: self._evidence(error, seconds))

    def _is_failure(self, error: BaseException, seconds: float) -> bool:
        return keeping.is_failure(error, self._doing, seconds) and self._has_inputs()

    def _has_inputs(self) -> bool:
        """A graph compiles on fake inputs and runs on real ones; torch may also run it on fakes, to see what comes."""
        return self._doing == "compile" or are_real(self._inputs)

    def _evidence(self, error: BaseException, seconds: float) -> Evidence:
        failure = keeping.failure_of(error, self._doing, seconds)
        state = self._graph.state if self._doing == "compile" else state_at(self._graph, self._random)
        code = torch_compat.output_code_of(self._compiled)
        return Evidence(self._graph, self._inputs, failure, state, self._outer, code)


def state_at(graph: Graph, random: RngState | None) -> schema.State:
    """The state of the calling thread; the generators as they were then, if they may have been used since."""
    if random is None:
        return graph.state_now()
    with preserved():
        random.restore()
        return graph.state_now()


def are_real(inputs: Sequence[Any]) -> bool:
    return not any(isinstance(value, torch.Tensor) and torch_compat.is_fake(value) for value in inputs)

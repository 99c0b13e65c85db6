"""Level 4 for one graph: which of its calls are checked, and what happens when one is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from torchsleuth import torch_compat
from torchsleuth.capture import keeping
from torchsleuth.capture.graphs import Graph
from torchsleuth.capture.keeping import Evidence, Outer
from torchsleuth.capture.steps import state_at
from torchsleuth.capture.watching import Watch
from torchsleuth.config import Settings
from torchsleuth.errors import AccuracyError
from torchsleuth.outcome import Mismatched, Stage, Symptom
from torchsleuth.run.checking.check import Checked, run_checked
from torchsleuth.run.observing.signatures import failure_of

log = logging.getLogger("torchsleuth.capture")

_HOPELESS: Final = 3
"""After so many checks in a row that came to nothing, there are no more: nobody wants to read why at each call."""


class Judge:
    """Counts the calls of a graph, and checks some of them."""

    def __init__(self, watch: Watch, graph: Graph, compiled: Callable[..., Any], *, boxed: bool) -> None:
        self._watch = watch
        self._graph = graph
        self._compiled = compiled
        self._boxed = boxed
        self._steps = watch.steps(graph.identity.frame, graph.recording.begins_at(), graph.identity.where.phase)
        self._last_good = 0
        self._unknown = 0
        """How many checks in a row came to nothing."""
        self.calls = 0
        self.checks = 0

    def count(self) -> None:
        """One more call begins."""
        self.calls += 1
        self._steps.count += 1

    def is_due(self, settings: Settings) -> bool:
        """Whether the next call is to be checked: the first few, then each so-many-th, until there were enough."""
        if self._unknown >= _HOPELESS or (settings.max_checks is not None and self.checks >= settings.max_checks):
            return False
        beyond = self.calls + 1 - settings.check_first
        return beyond <= 0 or beyond % settings.check_every == 0

    def run(self, settings: Settings, inputs: Sequence[Any], outer: Outer | None) -> Any:
        """Call the compiled graph, compare with eager, and return its result; if that is wrong, an `AccuracyError`."""
        self.checks += 1
        checked = run_checked(self._compiled, self._graph.reference, inputs, boxed=self._boxed, settings=settings)
        step = self._steps.count
        self._unknown = self._unknown + 1 if checked.unknown is not None else 0
        if self._unknown == _HOPELESS:
            log.warning("%s is not checked any more: %s", self._graph.name, checked.unknown)
        if checked.agrees:
            self._last_good = self._last_good if self._unknown else step
            return checked.result
        raise self._wrong(settings, checked, step, outer)

    def _wrong(self, settings: Settings, checked: Checked, step: int, outer: Outer | None) -> AccuracyError:
        name = self._graph.name
        where = f" at {checked.path}" if checked.path else ""
        before = _before(self._last_good, step)
        error = AccuracyError(
            f"{name} computes something else than eager{where}, in step {step}{before}",
            cause=checked.words,
            remedy="see the case that was kept: it replays this call; a lower level watches without comparing",
        )
        keeping.keep_error(self._watch, settings, error, lambda: self._evidence(checked, str(error), outer))
        return error

    def _evidence(self, checked: Checked, message: str, outer: Outer | None) -> Evidence:
        found = Mismatched(Stage.COMPARE, symptom=checked.symptom or Symptom.VALUE, path=checked.path)
        failure = replace(failure_of(found), message=message)
        code = torch_compat.output_code_of(self._compiled)
        return Evidence(self._graph, checked.inputs or (), failure, state_at(self._graph, checked.start), outer, code)


def _before(last_good: int, step: int) -> str:
    """What is known of the steps before a wrong one."""
    if last_good == 0:
        return " (none was checked before)" if step > 1 else ""
    if last_good == step - 1:
        return f" (step {last_good} was right)"
    return f" (step {last_good} was right; those between were not checked)"

"""What a compiled graph is called through: it runs as it would have, and if it fails, that is a case.

    DeferredCall     a graph after AOT: takes one list, and may empty it
    DynamoCall       a graph of Dynamo's: takes its inputs one by one

The settings are read at each call. What is not to be watched is called straight away; whatever runs inside of a call
that is watched is not watched itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from torchsleuth import config, torch_compat
from torchsleuth.capture.graphs import Graph
from torchsleuth.capture.judging import Judge
from torchsleuth.capture.keeping import Outer
from torchsleuth.capture.steps import Step
from torchsleuth.capture.watching import Watch, inside, writes_ahead
from torchsleuth.case.surroundings.state import observe_autocast
from torchsleuth.compare.rng import RngState, random_ops_in
from torchsleuth.config import After, Level, Settings
from torchsleuth.run.synchronising import synchroniser

_outer: ContextVar[Outer | None] = ContextVar("torchsleuth.outer", default=None)
"""The call of Dynamo's graph that is going on."""


class _Call:
    """What both kinds of calls share: one graph, what was compiled from it, and how often it ran."""

    def __init__(
        self,
        watch: Watch,
        graph: Graph,
        compiled: Callable[..., Any],
        *,
        boxed: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """`boxed`: what was compiled, if it is a graph after AOT, as a function that takes one list."""
        self._watch = watch
        self._graph = graph
        self._compiled = compiled
        self._judge = Judge(watch, graph, compiled if boxed is None else boxed, boxed=boxed is not None)
        self._synchronise = synchroniser(graph.accelerators)
        self._is_random = bool(random_ops_in(graph.reference))
        self._has_run = False
        self._is_plain = False
        """It ran once, and below level 4 there is nothing more to do than to call it."""
        self.__wrapped__ = compiled

    def _call(self, settings: Settings, inputs: Sequence[Any], given: Sequence[Any], whole: Any) -> Any:
        """Call what was compiled with `given`. `inputs` are its own, even if the callee empties its list.

        `whole` is what a check calls it with.
        """
        due = settings.level is Level.ACCURACY and self._judge.is_due(settings)
        self._judge.count()
        if self._is_plain and not due:
            began = time.monotonic()
            try:
                return self._compiled(*given)
            except BaseException as error:
                self._step(settings, inputs).failed(error, time.monotonic() - began)
                raise
        with self._step(settings, inputs):
            result = self._judge.run(settings, whole, _outer.get()) if due else self._compiled(*given)
            if self._synchronise is not None:
                self._synchronise()
        self._is_plain = self._synchronise is None and not self._is_random
        self._has_run = True
        return result

    def _step(self, settings: Settings, inputs: Sequence[Any]) -> Step:
        return Step(
            self._watch,
            settings,
            self._graph,
            inputs,
            "run",
            ahead=not self._has_run and writes_ahead(settings),
            outer=_outer.get(),
            random=RngState.of_torch() if self._is_random else None,
            compiled=self._compiled,
        )


class DeferredCall(_Call):
    """A compiled graph after AOT. To whoever looks at it, it is what the compiler returned."""

    def __init__(self, watch: Watch, graph: Graph, compiled: Callable[[list[Any]], Any]) -> None:
        super().__init__(watch, graph, compiled, boxed=compiled)
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        settings = self._watch.settings()
        if settings.after is not After.AOT and settings.after is not After.BOTH:
            return self._compiled(inputs)
        token = config.watch_less(None)
        try:
            return self._call(settings, tuple(inputs), (inputs,), inputs)
        finally:
            config.watch_again(token)

    def __getattr__(self, name: str) -> Any:
        if name == "_compiled":  # not there yet: somebody copies or unpickles
            raise AttributeError(name)
        return getattr(self._compiled, name)

    @property
    def __class__(self) -> type:
        """Torch asks what kind of compiled graph it got, and goes on differently if it is none of its own."""
        compiled = self.__dict__.get("_compiled")
        return type(compiled) if torch_compat.is_output_code(compiled) else DeferredCall

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError("the class of a watched call cannot be changed")


class UnboxedCall(_Call):
    """A compiled graph after AOT that takes its inputs one by one. Torch warns of such, and boxes them itself."""

    def __init__(self, watch: Watch, graph: Graph, compiled: Callable[..., Any]) -> None:
        super().__init__(watch, graph, compiled, boxed=_Boxed(compiled))

    def __call__(self, *inputs: Any) -> Any:
        settings = self._watch.settings()
        if settings.after is not After.AOT and settings.after is not After.BOTH:
            return self._compiled(*inputs)
        token = config.watch_less(None)
        try:
            return self._call(settings, inputs, inputs, list(inputs))
        finally:
            config.watch_again(token)


class _Boxed:
    """A function that takes one list, for one that takes its inputs one by one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, inputs: list[Any]) -> Any:
        return self._function(*inputs)


class DynamoCall(_Call):
    """A compiled graph of Dynamo's."""

    def __init__(self, watch: Watch, graph: Graph, compiled: Callable[..., Any]) -> None:
        super().__init__(watch, graph, compiled)

    def __call__(self, *inputs: Any) -> Any:
        settings = self._watch.settings()
        if settings.after is None or not self._is_watched(settings.after):
            return self._compiled(*inputs)
        token = config.watch_less(inside(settings.after))
        outer = _outer.set(_outer_of(inputs) if settings.after is After.BOTH else None)
        try:
            return self._call(settings, inputs, inputs, inputs)
        finally:
            _outer.reset(outer)
            config.watch_again(token)

    def _is_watched(self, after: After) -> bool:
        return after.sees_dynamo


class OnlyCall(DynamoCall):
    """A compiled graph of Dynamo's from a backend that has no graphs after AOT: whatever is watched, it is this."""

    def _is_watched(self, after: After) -> bool:
        return True


def _outer_of(inputs: Sequence[Any]) -> Outer:
    return Outer(inputs, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), observe_autocast())

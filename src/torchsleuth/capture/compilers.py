"""A compiler of graphs after AOT, under watch.

    compiler = wrap_compiler_debug(compile_fx_inner, "inductor")

It compiles on fake inputs as ever. If that fails, the graph as it was before is a case; if not, a `DeferredCall` waits
for real inputs. With watching off (`after` is neither "aot" nor "both") the compiler's own object is returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from torch import fx

from torchsleuth import config
from torchsleuth.capture.deferred import DeferredCall, UnboxedCall
from torchsleuth.capture.graphs import Graph, identify
from torchsleuth.capture.guarding import guarded
from torchsleuth.capture.options import Options, in_order, observed
from torchsleuth.capture.steps import Step
from torchsleuth.capture.watching import Watch, writes_ahead
from torchsleuth.case import schema
from torchsleuth.case.recording import arguments
from torchsleuth.config import After, Settings


def wrap_compiler_debug(compiler_fn: Callable[..., Any], compiler_name: str) -> WatchedCompiler:
    """The compiler, watched as the settings say each time that it is called, and each time what it made is called."""
    return WatchedCompiler(compiler_fn, schema.Compiler(After.AOT, compiler_name))


class WatchedCompiler:
    """Takes a graph and example inputs, as the compiler does; keyword arguments are passed on."""

    def __init__(
        self,
        compiler: Callable[..., Any],
        described: schema.Compiler,
        *,
        watch: Watch | None = None,
        phase: str | None = None,
        parent: Graph | None = None,
        options: Options | None = None,
    ) -> None:
        functools.update_wrapper(self, compiler, updated=())
        self._compiler = compiler
        self._described = described
        self._watch = Watch() if watch is None else watch
        self._phase = phase
        self._parent = parent
        self._options = options

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        settings = self._watch.settings()
        is_watched = settings.after is not None and settings.after.sees_aot
        if not is_watched and self._parent is None:
            return self._compiler(gm, example_inputs, **kwargs)
        graph = guarded(settings, None, lambda: self._record(gm, example_inputs, kwargs))
        if graph is None:
            return self._compiler(gm, example_inputs, **kwargs)
        if is_watched:
            compiled = self._compile(settings, graph, gm, example_inputs, kwargs)
        else:  # a backward graph that a check compiles before the user does: what it does for the user is watched
            compiled = self._compiler(gm, example_inputs, **kwargs)
        if not callable(compiled):  # Inductor ahead of time: files, to be loaded by somebody else
            return compiled
        kind = DeferredCall if self._parent is None or getattr(compiled, "_boxed_call", False) else UnboxedCall
        call = guarded(settings, None, lambda: kind(self._watch, graph, compiled))
        return compiled if call is None else call

    def _compile(
        self,
        settings: Settings,
        graph: Graph,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        step = Step(self._watch, settings, graph, tuple(example_inputs), "compile", ahead=writes_ahead(settings))
        token = config.watch_less(None)
        try:
            with step:
                return self._compiler(gm, example_inputs, **kwargs)
        finally:
            config.watch_again(token)

    def _record(self, gm: fx.GraphModule, examples: Sequence[Any], kwargs: Mapping[str, Any]) -> Graph:
        given = {**_bound(self._compiler), **kwargs}
        phase = self._phase
        if given.get("is_backward"):
            phase = "backward"
        elif given.get("is_inference"):
            phase = "inference"
        number = given.get("graph_id")
        described = msgspec.structs.replace(self._described, arguments=arguments(given))
        now = observed() if self._options is None else self._options.in_place_of(observed())
        return Graph.record(
            gm,
            examples,
            identify(phase, number if isinstance(number, int) else None),
            described,
            in_order(now),
            self._parent,
        )


def _bound(compiler: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments that were bound to a compiler before it got here."""
    found: dict[str, Any] = {}
    while isinstance(compiler, functools.partial):
        found = {**compiler.keywords, **found}
        compiler = compiler.func
    return found

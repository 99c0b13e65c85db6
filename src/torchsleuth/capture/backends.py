"""Any backend of torch.compile, under watch.

    torch.compile(f, backend=watch("inductor"))
    torch.compile(f, backend=watch(my_backend, after="both", level=3), mode="max-autotune")

The backend itself is called as it is, with the graph and the options that it would have got. Its compilers for graphs
after AOT are wrapped on the way (`torch_compat.aot_compilers_wrapped`); a backend that has none is watched as a whole.
What fails between Dynamo and those compilers is a case of Dynamo's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import fx

from torchsleuth import config, torch_compat
from torchsleuth.capture.compilers import WatchedCompiler
from torchsleuth.capture.deferred import DynamoCall, OnlyCall
from torchsleuth.capture.graphs import Graph, identify_dynamo
from torchsleuth.capture.guarding import guarded
from torchsleuth.capture.naming import describe_backend, describe_compiler, name_of
from torchsleuth.capture.options import Options, in_order, observed, without_aot_cache
from torchsleuth.capture.steps import Step
from torchsleuth.capture.watching import Watch, settings_for, writes_ahead
from torchsleuth.case import schema
from torchsleuth.case.script.compilers import KNOWN
from torchsleuth.config import After, Level, Settings
from torchsleuth.errors import SleuthError


def watch(
    backend: str | Callable[..., Any] = "inductor",
    *,
    after: After | str | None = "aot",
    level: Level | int | str | None = None,
    store: str | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **settings: Any,
) -> WatchedBackend:
    """A backend for torch.compile that does what `backend` does, and keeps what goes wrong as cases.

    `after`, `level`, `store` and further settings (`check_every=100`) hold for this backend; what is not given is as
    the settings of the process say. `mode` and `options` are those of torch.compile, which may be given there as well.
    """
    if not isinstance(backend, str) and not callable(backend):
        raise SleuthError(
            f"{backend!r:.80} cannot be watched",
            cause="a backend is a name, or a function that takes a graph and example inputs",
            remedy='name a backend ("inductor"), or give the function',
        )
    if isinstance(backend, WatchedBackend):
        backend = backend.backend
    # Not `settings_for(after=after)`: None is a value here, and means that nothing is watched.
    base = settings_for(level=level, store=store, **settings)
    watching = Watch(replace(base, after=after))  # type: ignore[arg-type]
    watched = WatchedBackend(backend, watching, mode=mode, options=options, dynamic=dynamic)
    watched.require()
    return watched


class WatchedBackend:
    """A backend of torch.compile. To Dynamo it looks like the one that it calls."""

    def __init__(
        self,
        backend: str | Callable[..., Any],
        watching: Watch,
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        dynamic: bool | None = None,
    ) -> None:
        self.backend = backend
        self.__name__ = name_of(backend)
        self._watch = watching
        self._chosen = {"mode": mode, "options": dict(options) if options else None}
        self._dynamic = dynamic
        # Not by `__getattr__`: Dynamo looks for attributes of a backend while it is in no state to run Python.
        for attribute in ("compiler_name", "get_compiler_config", "reset", "backend_ctx_ctor"):
            if hasattr(backend, attribute):
                setattr(self, attribute, getattr(backend, attribute))
        guarded(watching.settings(), None, torch_compat.carry_notes)

    def require(self) -> None:
        """Find the backend now: what torch says of a wrong name, mode or option, it says at once."""
        _ = self._plain

    def __repr__(self) -> str:
        return f"watch({self.__name__!r})"

    def __eq__(self, other: object) -> bool:
        """Dynamo compiles anew for another backend."""
        return isinstance(other, WatchedBackend) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self.__name__)

    def _parts(self) -> tuple[Any, ...]:
        return self.backend, self._watch.base, id(self._watch.journal), self._chosen, self._dynamic

    @cached_property
    def _plain(self) -> Callable[..., Any]:
        return self._with({})

    def _with(self, given: Mapping[str, Any]) -> Callable[..., Any]:
        """The backend, with the mode and the options that were chosen here or there."""
        chosen = {name: value for name, value in {**self._chosen, **given}.items() if value is not None}
        if self.backend == "inductor":
            mode, options = chosen.pop("mode", None), chosen.pop("options", None)
            return _Bound(torch_compat.inductor_backend(mode, options, self._dynamic), chosen)
        plain = torch_compat.find_backend(self.backend) if isinstance(self.backend, str) else self.backend
        return _Bound(plain, chosen)

    # ---- compiling -----------------------------------------------------------------------------------------

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        settings = self._watch.settings()
        plain = self._with(given) if given else self._plain
        if settings.after is None or guarded(settings, None, torch_compat.is_for_serialising):
            return plain(gm, example_inputs)
        compilation = guarded(settings, None, lambda: self._compilation(settings, plain, given))
        return plain(gm, example_inputs) if compilation is None else compilation.compile(gm, example_inputs)

    def _compilation(self, settings: Settings, plain: Callable[..., Any], given: Mapping[str, Any]) -> _Compilation:
        described = describe_backend(self.backend, {**self._chosen, **given}, self._dynamic)
        return _Compilation(self._watch, settings, plain, described)


class _Bound:
    """A backend with the keyword arguments that it is to be called with."""

    def __init__(self, backend: Callable[..., Any], given: Mapping[str, Any]) -> None:
        self._backend = backend
        self._given = given

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return self._backend(gm, example_inputs, **self._given)


class _Compilation:
    """One graph of Dynamo's on its way through a backend."""

    def __init__(
        self, watching: Watch, settings: Settings, backend: Callable[..., Any], described: schema.Compiler
    ) -> None:
        self._watch = watching
        self._settings = settings
        self._backend = backend
        self._described = described
        self._before = observed()
        self._graph: Graph | None = None
        self._has_aot = False

    def compile(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Any:
        settings = self._settings
        self._graph = guarded(settings, None, lambda: self._record(gm, examples))
        if self._graph is None:
            return self._backend(gm, examples)
        compiled = self._compile(self._graph, gm, examples)
        if not callable(compiled):  # torch will say what it thinks of that
            return compiled
        if not self._has_aot:
            return OnlyCall(self._watch, self._graph, compiled)
        if settings.after is not None and settings.after.sees_dynamo:
            return DynamoCall(self._watch, self._graph, compiled)
        return compiled

    def _record(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Graph:
        return Graph.record(
            gm,
            examples,
            identify_dynamo(),
            self._described,
            in_order(self._before),
            keeps_sketch=self._settings.after is After.BOTH,
        )

    def _compile(self, graph: Graph, gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        graph.examples = tuple(examples)
        try:
            with Step(
                self._watch, self._settings, graph, graph.examples, "compile", ahead=writes_ahead(self._settings)
            ):
                return self._call_backend(gm, examples)
        finally:
            graph.examples = None

    def _call_backend(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        assert self._settings.after is not None
        if not self._settings.after.sees_aot:
            self._has_aot = True  # it may have; nobody wants to know
            token = config.watch_less(None)
            try:
                return self._backend(gm, examples)  # type: ignore[no-any-return]
            finally:
                config.watch_again(token)
        with ExitStack() as stack:
            guarded(self._settings, None, lambda: self._stand_between(stack))
            return self._backend(gm, examples)  # type: ignore[no-any-return]

    def _stand_between(self, stack: ExitStack) -> None:
        """Between the backend and its compilers of graphs after AOT."""
        stack.enter_context(torch_compat.aot_compilers_wrapped(self._wrap, inductor=self._may_be_inductor()))
        stack.enter_context(without_aot_cache())

    def _may_be_inductor(self) -> bool:
        """Any function may call Inductor; torch's own other backends do not."""
        return self._described.backend == "inductor" or self._described.backend not in KNOWN

    def _wrap(self, compiler: Callable[..., Any], phase: str | None) -> Callable[..., Any]:
        """A compiler that the backend has for graphs after AOT."""
        watched = guarded(self._settings, None, lambda: self._watched(compiler, phase))
        self._has_aot = watched is not None
        return compiler if watched is None else watched

    def _watched(self, compiler: Callable[..., Any], phase: str | None) -> WatchedCompiler:
        return WatchedCompiler(
            compiler,
            describe_compiler(compiler),
            watch=self._watch,
            phase=phase,
            parent=self._graph,
            options=Options(self._before, observed()),
        )

"""Where a watcher comes between Dynamo, AOTAutograd and a compiler.

    with aot_compilers_wrapped(wrap):     each compiler of a graph after AOT that is handed on in here becomes wrap(it)
        compiled = backend(gm, inputs)

The backend itself is called as it is. Inductor is met where it is about to make the compilers that AOTAutograd will
call from its `inner_compile`; any other backend, where AOTAutograd takes its compilers. Both places belong to the whole
process, so each finds out by a context variable whether it is this thread's turn, and is put back when nobody needs it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Final, Protocol

from torchsleuth.locks import ForkableLock
from torchsleuth.torch_compat.configuration import config_values
from torchsleuth.torch_compat.names import NAMES, resolve

INDUCTOR_COMPILER: Final = "torch._inductor.compile_fx.compile_fx_inner"
"""What Inductor's compiler of graphs after AOT is called."""


class Wrap(Protocol):
    """Makes a watched compiler of a compiler. `phase` is what it will be called for, if that is known already."""

    def __call__(self, compiler: Callable[..., Any], phase: str | None) -> Callable[..., Any]: ...


_WRAP: ContextVar[Wrap | None] = ContextVar("torchsleuth.seams", default=None)


@contextmanager
def aot_compilers_wrapped(wrap: Wrap, *, inductor: bool = True) -> Iterator[None]:
    """Inside, in this thread or task, compilers of graphs after AOT are wrapped before they are used.

    `inductor`: those of Inductor as well, which is imported for it, if nobody has done that yet.
    """
    with _SEAMS.taken(inductor=inductor):
        token = _WRAP.set(wrap)
        try:
            yield
        finally:
            _WRAP.reset(token)


class _Seam:
    """Stands in the place of a function of torch's, which is `original`."""

    key: ClassVar[str]
    """What the function is called in `NAMES`."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original


class _InductorSeam(_Seam):
    """In the place of the function that makes compilers for AOTAutograd from `inner_compile`."""

    key = "inductor_main"

    def __call__(
        self, model: Any, inputs: Any, inner_compile: Callable[..., Any], *more: Any, **options: Any
    ) -> Callable[..., Any]:
        wrap = _WRAP.get()
        if wrap is None:
            return self.original(model, inputs, inner_compile, *more, **options)  # type: ignore[no-any-return]
        token = _WRAP.set(None)
        try:
            return self.original(model, inputs, wrap(inner_compile, None), *more, **options)  # type: ignore[no-any-return]
        finally:
            _WRAP.reset(token)


class _AotSeam(_Seam):
    """In the place of the function that hands AOTAutograd's graphs to compilers."""

    key = "aot_compile"

    def __call__(
        self, state: Any, captured: Any, partition: Any, forward: Any, backward: Any = None, inference: Any = None
    ) -> Any:
        wrap = _WRAP.get()
        if wrap is not None:
            inference = wrap(inference or forward, "inference")
            backward = _Untraced(wrap(backward or forward, "backward"))
            forward = wrap(forward, "forward")
        return self.original(state, captured, partition, forward, backward, inference)


class _Untraced:
    """A compiler that Dynamo does not look into, nor into what it makes.

    A backward pass may run while Dynamo is at work on the frame that called it.
    """

    def __init__(self, compiler: Callable[..., Any]) -> None:
        self.compiler = compiler

    def __call__(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        import torch

        compiled = torch.compiler.disable(self.compiler)(gm, inputs)
        return torch.compiler.disable(compiled)  # type: ignore[no-any-return]


class _Seams:
    """Both places, each taken while somebody needs it."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._users: Counter[str] = Counter()
        self._standing: dict[str, _Seam] = {}

    @contextmanager
    def taken(self, *, inductor: bool) -> Iterator[None]:
        kinds: list[type[_Seam]] = [_AotSeam]
        if inductor or NAMES[_InductorSeam.key].module in sys.modules:
            kinds.append(_InductorSeam)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing Inductor warns; that is none of the user's doing
            for kind in kinds:
                resolve(kind.key)
        with self._lock:
            for kind in kinds:
                self._take(kind)
        try:
            yield
        finally:
            with self._lock:
                for kind in kinds:
                    self._leave(kind.key)

    def _take(self, kind: type[_Seam]) -> None:
        home, attribute = _home(kind.key), NAMES[kind.key].attribute
        if self._users[kind.key] == 0:
            self._standing[kind.key] = kind(getattr(home, attribute))
            setattr(home, attribute, self._standing[kind.key])
        self._users[kind.key] += 1

    def _leave(self, key: str) -> None:
        self._users[key] -= 1
        if self._users[key] == 0:
            seam = self._standing.pop(key)
            home, attribute = _home(key), NAMES[key].attribute
            if getattr(home, attribute) is seam:  # not if somebody else has taken its place meanwhile
                setattr(home, attribute, seam.original)


_SEAMS = _Seams()


def _home(key: str) -> Any:
    return importlib.import_module(NAMES[key].module)


def inner_compiler(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler inside torch's wrapper of a backward compiler, which hides it from Dynamo; any other as it is."""
    if getattr(compiler, "_is_wrapped_bw_compiler", False) and inspect.isfunction(compiler):
        found = inspect.getclosurevars(compiler).nonlocals.get("bw_compiler_fn")
        return found if callable(found) else compiler
    return compiler


# ---- Dynamo and its backends ---------------------------------------------------------------------------------


def find_backend(name: str) -> Callable[..., Any]:
    """A backend of torch.compile by its name. If there is none, torch's own error."""
    found: Callable[..., Any] = resolve("lookup_backend")(name)
    return found


def inductor_backend(mode: str | None, options: dict[str, Any] | None, dynamic: bool | None) -> Callable[..., Any]:
    """What torch.compile makes of the backend "inductor" with this mode and these options."""
    found: Callable[..., Any] = resolve("inductor_backend")(mode, options, dynamic)
    return found


def other_backend(
    name: str, mode: str | None, options: dict[str, Any] | None, dynamic: bool | None
) -> Callable[..., Any]:
    """What torch.compile makes of any other backend with this mode and these options."""
    found: Callable[..., Any] = resolve("other_backend")(name, mode, options, dynamic)
    return found


def inductor_compiler() -> Callable[..., Any]:
    """Inductor's compiler of graphs after AOT: takes a graph, fake inputs and keyword arguments."""
    found: Callable[..., Any] = resolve("inductor_inner")
    return found


def is_inductor_backend(backend: object) -> bool:
    """Whether it is what torch.compile makes of the backend "inductor"."""
    return isinstance(backend, resolve("inductor_backend"))


def is_named_backend(backend: object) -> bool:
    """Whether it is what torch.compile makes of any other backend (`compiler_fn`) with mode and options (`kwargs`)."""
    return isinstance(backend, resolve("other_backend"))


@contextmanager
def dynamo_backends_wrapped(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, in all threads, every backend that torch.compile gives to Dynamo is wrapped first.

    Where several are open it is done by the one that was opened last, in whatever order they are left.
    """
    _OPTIMIZE.add(wrap)
    try:
        yield
    finally:
        _OPTIMIZE.remove(wrap)


class _OptimizeSeam:
    """Stands in the place of the function by which torch.compile calls Dynamo."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._wraps: list[Callable[[Any], Any]] = []
        self._original: Callable[..., Any] | None = None

    def __call__(self, backend: Any = "inductor", *more: Any, **options: Any) -> Any:
        wraps = self._wraps[-1:]
        original = self._original or resolve("dynamo_optimize")
        return original(wraps[0](backend) if wraps else backend, *more, **options)

    def add(self, wrap: Callable[[Any], Any]) -> None:
        resolve("dynamo_optimize")
        home = _home("dynamo_optimize")
        with self._lock:
            self._wraps = [*self._wraps, wrap]
            if self._original is None:
                self._original, home.optimize = home.optimize, self

    def remove(self, wrap: Callable[[Any], Any]) -> None:
        home = _home("dynamo_optimize")
        with self._lock:
            self._wraps = [one for one in self._wraps if one is not wrap]
            if not self._wraps and home.optimize is self:
                home.optimize, self._original = self._original, None


_OPTIMIZE = _OptimizeSeam()


def is_for_serialising() -> bool:
    """Whether torch is compiling something that is to be written to a file: what it makes has to be torch's own."""
    return bool(config_values("torch._functorch.config").get("bundled_autograd_cache"))


def compiled_frame() -> str | None:
    """Which frame of the user's program Dynamo is compiling: recompilations of a frame have the same number."""
    number = resolve("CompileContext").current_compile_id()
    return None if number is None else str(getattr(number, "frame_id", number))


def is_control_flow(error: BaseException) -> bool:
    """Whether an exception is one by which torch itself starts over or breaks a graph, and no failure."""
    return isinstance(error, (resolve("RestartAnalysis"), resolve("SkipFrame"), *resolve("fallback_exceptions")))


def carry_notes() -> None:
    """From now on, what Dynamo makes of a backend's exception has the notes of that exception as well."""
    kind = resolve("BackendCompilerFailed")
    original = kind.__init__
    if getattr(original, "carries_notes", False):
        return

    @functools.wraps(original)
    def initialise(self: Any, backend: Any, inner: BaseException, *more: Any, **options: Any) -> None:
        original(self, backend, inner, *more, **options)
        notes = [note for note in getattr(inner, "__notes__", ()) if isinstance(note, str)]
        if notes:
            self.__notes__ = [*getattr(self, "__notes__", ()), *notes]

    initialise.carries_notes = True  # type: ignore[attr-defined]
    kind.__init__ = initialise


def is_output_code(compiled: object) -> bool:
    """Whether it is one of Inductor's kinds of compiled graphs. If Inductor was never asked, nothing is."""
    home = sys.modules.get(NAMES["OutputCode"].module)
    return home is not None and isinstance(compiled, resolve("OutputCode"))


def output_code_of(compiled: object) -> str | None:
    """The code that Inductor generated for a compiled graph, if that is what it is."""
    code = getattr(compiled, "source_code", None)
    return code if isinstance(code, str) and code else None

"""Which settings hold here and now: those of the process, under the patches that are open in a thread or task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from torchsleuth.config.kinds import After
from torchsleuth.config.sources import load
from torchsleuth.config.table import ARGUMENT, Settings, parse_all, shown
from torchsleuth.errors import ConfigError

_P = ParamSpec("_P")
_R = TypeVar("_R")

# The settings of the process, under the one key "settings" once they are known. A dict, because `setdefault`
# is atomic: the first use may come from several threads at once, and a lock could be held at a fork.
_PROCESS: dict[str, Settings] = {}


class _Patched:
    """The patches that are open in one thread or task (outermost first), and what they add up to."""

    def __init__(self, outside: Settings, patches: tuple[Patch, ...]) -> None:
        self.outside = outside
        self.patches = patches
        self._over: dict[int, tuple[Settings, Settings]] = {}
        self.settings = self.over(outside)

    def over(self, base: Settings) -> Settings:
        """What the patches make of other settings than the process's."""
        known = self._over.get(id(base))
        if known is None or known[0] is not base:
            changes: dict[str, Any] = {}
            for each in self.patches:
                changes.update(each._changes)
            known = self._over[id(base)] = (base, replace(base, **changes))
        return known[1]


_PATCHED: ContextVar[_Patched | None] = ContextVar("torchsleuth.settings", default=None)


def current(base: Settings | None = None) -> Settings:
    """The settings that hold here and now: the innermost patch of this thread or task, or the process's.

    `base` stands in the place of the process's: what somebody was told by arguments. Patches change that as well.
    """
    patched = _PATCHED.get()
    if patched is None:
        return _of_process() if base is None else base
    return patched.settings if base is None else patched.over(base)


def _of_process() -> Settings:
    settings = _PROCESS.get("settings")
    return _PROCESS.setdefault("settings", load()) if settings is None else settings


def configure(*, start: Path | None = None, environ: Mapping[str, str] | None = None, **arguments: object) -> Settings:
    """Load the settings with these arguments and make them the process's own, in all threads.

    A second call replaces what the first one set; it does not add to it. A patch that is open goes on
    holding where it is open.
    """
    settings = load(start=start, environ=environ, **arguments)
    _PROCESS["settings"] = settings
    return settings


def patch(**changes: object) -> Patch:
    """Other settings for a while, in this thread or task only. Bad names and values are rejected here.

    As a context manager, `with patch(after=None): ...`; as a decorator, `@patch(after="aot", level=3)`.
    Inside another patch it changes what it names and inherits the rest.
    """
    return Patch(parse_all(changes, ARGUMENT))


class Patch:
    """What `patch` returns: a context manager and a decorator that can be entered any number of times.

    Nothing of an entry is kept in this object, so that threads and tasks may share it. What is open is kept
    in the context (`_Patched`), and leaving takes *this* patch out of it, wherever it stands: two
    generators that leave in the order in which they entered end up with what was there before.
    """

    def __init__(self, changes: Mapping[str, Any]) -> None:
        self._changes = dict(changes)

    def __repr__(self) -> str:
        return f"patch({', '.join(f'{name}={value!r}' for name, value in self._changes.items())})"

    def __enter__(self) -> Settings:
        patched = _PATCHED.get()
        if patched is None:
            _open(_of_process(), (self,))
        else:
            _open(patched.outside, (*patched.patches, self))
        return current()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patched = _PATCHED.get()
        if patched is not None and self in patched.patches:
            innermost = len(patched.patches) - 1 - patched.patches[::-1].index(self)
            _open(patched.outside, patched.patches[:innermost] + patched.patches[innermost + 1 :])
        elif error is None:  # never hide the exception that is on its way
            raise ConfigError(
                f"{self!r} was left in a thread or task that never entered it",
                cause="the with block was entered in one thread, task or context and left in another one, "
                "or it was left twice; the settings here are as they were",
                remedy="keep the whole with block in one thread or task: do not hold it open across a yield "
                "of a generator that is resumed elsewhere",
            )

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function, plain or async: the patch holds during each call."""
        _reject_undecoratable(function)
        if _is(inspect.iscoroutinefunction, function):

            @functools.wraps(function)
            async def call_async(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with self:
                    return await function(*args, **kwargs)  # type: ignore[misc]

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return call


def _open(outside: Settings, patches: tuple[Patch, ...]) -> None:
    _PATCHED.set(_Patched(outside, patches) if patches else None)


# ---- watching less, for the time of one call -----------------------------------------------------------------

_LESS: dict[tuple[int, After | None], tuple[object, _Patched]] = {}
_MOST_LESS: Final = 256


def watch_less(after: After | None) -> Token[_Patched | None]:
    """From here to `watch_again`, in this thread or task, that is what is watched. For what runs a million times:
    it is `patch(after=after)`, made once."""
    patched = _PATCHED.get()
    outer: Settings | _Patched = _of_process() if patched is None else patched
    key = (id(outer), after)
    known = _LESS.get(key)
    if known is None or known[0] is not outer:
        if len(_LESS) >= _MOST_LESS:
            _LESS.clear()
        less = patch(after=after)
        made = (
            _Patched(outer, (less,)) if isinstance(outer, Settings) else _Patched(outer.outside, (*outer.patches, less))
        )
        known = _LESS[key] = (outer, made)
    return _PATCHED.set(known[1])


def watch_again(token: Token[_Patched | None]) -> None:
    """What was watched before `watch_less` is watched again."""
    _PATCHED.reset(token)


def _is(test: Callable[[object], bool], function: object) -> bool:
    """Ask a test of `inspect` about a function, or about the `__call__` of an object that acts as one."""
    return test(function) or test(getattr(type(function), "__call__", None))  # noqa: B004


def _reject_undecoratable(function: object) -> None:
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        cause = "it is a generator: its body runs between the caller's own steps, not during one call"
        remedy = "use `with patch(...)` inside it, around a part without a yield"
    elif isinstance(function, (staticmethod, classmethod)):
        cause = f"it is a {type(function).__name__} object, not yet a function"
        remedy = f"put @{type(function).__name__} above the patch, not below it"
    elif isinstance(function, type):
        cause = "it is a class"
        remedy = "decorate the methods that need it"
    elif not callable(function):
        cause = "it is not a function"
        remedy = "decorate a function, or use `with patch(...)`"
    else:
        return
    raise ConfigError(f"patch cannot decorate {shown(function)}", cause=cause, remedy=remedy)

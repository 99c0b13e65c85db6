"""What the ways to run a function are made of: the call itself, its surroundings, and a look at its graphs.

Program(fn, inputs, call, ...)      a way to run a function, as `judge` and `Subject` want a program
World(fn, args, kwargs)             Python's objects in its reach: put back before each run, and compared afterwards
Kept(backend)                       a backend that notes the graphs which it is given
Settling()                          calls our own front end until it runs what it has recorded
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import logging
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch

from torchsleuth.compare import clone_inputs, same
from torchsleuth.compare.tree import map_tensors
from torchsleuth.errors import in_words
from torchsleuth.frontend.aligning import DescribedGraph, described
from torchsleuth.frontend.undoing import Reach, TensorHolder

_NOT_COMPARED: Final = (random.Random, torch.Generator, types.BuiltinFunctionType, functools._lru_cache_wrapper)
"""State that a run need not leave as eager does: generators have a place of their own, caches are nobody's result."""
_Found = TypeVar("_Found")
log = logging.getLogger("torchsleuth.frontend")

SETTLED: Final = 5
"""So many calls of ours at most, until one runs what was recorded."""


class Program:
    """A way to run the function, called with all inputs in a row. Whatever way it is, the same state is in its reach.

    `compare` finds that state by `__wrapped__` and `__self__`; and nothing else, for there are no other attributes.
    """

    __slots__ = ("__self__", "__wrapped__", "_call", "_names", "_without_dynamo", "_world")

    def __init__(
        self,
        fn: Any,
        inputs: Sequence[Any],
        call: Callable[..., Any],
        names: tuple[str, ...],
        world: World,
        *,
        without_dynamo: bool,
    ) -> None:
        self.__wrapped__ = fn
        self.__self__ = [value for value in inputs if not isinstance(value, (torch.Tensor, list, tuple, dict))]
        self._call = call
        self._names = names
        self._world = world
        self._without_dynamo = without_dynamo

    def __call__(self, *values: Any) -> Any:
        self._world.put_back()
        plain = len(values) - len(self._names)
        with ExitStack() as stack:
            if self._without_dynamo:  # also where the function calls what was compiled
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
            result = self._call(*values[:plain], **dict(zip(self._names, values[plain:], strict=True)))
        self._world.listen(result)
        result = _apart(result)  # a list of the program's may be in it, and is going to be put back
        self._world.put_back()
        return result


@dataclass(eq=False)
class Whole:
    """A graph that can be run again."""

    graph: torch.fx.GraphModule | None
    inputs: list[Any] | None = None


class Kept:
    """A backend that notes the graphs on their way to the real one. To Dynamo it looks like that one."""

    def __init__(self, backend: Callable[..., Any], *, whole: bool = False) -> None:
        self.backend = backend
        self.__name__ = name_of(backend)
        self.graphs: list[DescribedGraph] = []
        self.whole: list[Whole] = []
        self._is_whole = whole
        for attribute in ("compiler_name", "get_compiler_config", "reset", "backend_ctx_ctor"):
            if hasattr(backend, attribute):
                setattr(self, attribute, getattr(backend, attribute))

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        try:
            self.graphs.append(described(gm, example_inputs, len(self.graphs)))
        except Exception:
            log.warning("a graph could not be described", exc_info=True)
        compiled: Callable[..., Any]
        if not self._is_whole:
            compiled = self.backend(gm, example_inputs, **options)
            return compiled
        whole = Whole(_copied(gm))
        self.whole.append(whole)
        compiled = self.backend(gm, example_inputs, **options)

        def run(*inputs: Any) -> Any:
            if whole.inputs is None:
                whole.inputs = clone_inputs(inputs)
            return compiled(*inputs)

        return run


def _copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    try:
        return copy.deepcopy(gm)
    except Exception:
        log.warning("a graph could not be copied", exc_info=True)
        return None


def name_of(backend: Callable[..., Any]) -> str:
    """What a backend is called."""
    return str(getattr(backend, "__name__", None) or type(backend).__name__)


# ---- what is not tensors -------------------------------------------------------------------------------------


@dataclass
class Heard:
    """What a call gives back, and what it changes in objects of Python's: where, and what is there now. Copies."""

    output: Any = None
    effects: dict[str, Any] = field(default_factory=dict)


class World:
    """The objects of Python's that the call can reach: put back before each run; what eager changes, others must."""

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = [*((f"args[{number}]", value) for number, value in enumerate(args)), *kwargs.items()]
        self._reach = Reach([*given, (getattr(fn, "__name__", "self"), fn)])
        self.why_not = self._reach.why_not
        self._holders = [each for each in self._reach.holders if not isinstance(each, TensorHolder)]
        self._compared = [each for each in self._holders if not isinstance(each.value, _NOT_COMPARED)]
        self._expected: dict[str, Any] = {}
        self._heard: Heard | None = None

    def put_back(self) -> None:
        """All of it as it was. (Tensors and what is in them are put back by who runs the program.)"""
        if not self.why_not:
            for holder in self._holders:
                holder.put_back()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Heard]:
        """Inside, it is noted what a call gives back and what it changes."""
        self._heard = heard = Heard()
        try:
            yield heard
        finally:
            self._heard = None

    def listen(self, result: Any) -> None:
        """A call is over, and nothing is put back yet."""
        if self._heard is None:
            return
        self._heard.output = _copied_value(result)
        for holder in () if self.why_not else self._compared:
            if not holder.changed():
                continue
            before = {holder.step(key): value for key, value in holder.before}
            now = {holder.step(key): value for key, value in holder.read()}
            for step in {**before, **now}:
                if step not in now or step not in before or now[step] is not before[step]:
                    self._heard.effects[f"{holder.path}{step}"] = _copied_value(now.get(step, _GONE))

    def expect(self, once: dict[str, Any], again: dict[str, Any]) -> None:
        """What eager changes, in one run as in the other."""
        self._expected = {path: value for path, value in once.items() if path in again and _same(value, again[path])}

    def difference(self, effects: Mapping[str, Any]) -> str:
        """What eager changes, and this run has not or otherwise."""
        for path, value in self._expected.items():
            if path not in effects:
                return f"{path} is left as it was; eager makes it {value!r:.60}"
            if not _same(value, effects[path]):
                return f"{path} is {effects[path]!r:.60}; eager makes it {value!r:.60}"
        return ""


def _copied_value(value: Any) -> Any:
    """The value with tensors of its own, in containers of its own."""
    return _apart(map_tensors(lambda tensor: tensor.detach().clone(), value))


def _apart(value: Any) -> Any:
    """The value in containers of its own."""
    if type(value) in (list, tuple, set, collections.deque):
        return type(value)(map(_apart, value))
    if isinstance(value, dict):
        try:
            made = copy.copy(value)
            for key, each in value.items():
                made[key] = _apart(each)
        except Exception:  # noqa: BLE001 - a dict of the user's own that does not let itself be copied
            return value
        return made
    return bytearray(value) if type(value) is bytearray else value


class _Gone:
    def __repr__(self) -> str:
        return "nothing: it is deleted"


_GONE: Final = _Gone()


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(same(one, other))
    except Exception:  # noqa: BLE001 - an object of the user's that cannot be compared tells nothing
        return True


# ---- our own front end ---------------------------------------------------------------------------------------


class Settling:
    """Our own front end, called until a call runs what it has recorded: the first call is recorded in eager."""

    def __init__(self) -> None:
        self.captured: Any = None
        """What `capture` has made of the function."""
        self.no_witness = ""
        """Why its results say nothing of the backend, though they may be right."""

    def settled(self, again: Callable[[], _Found], found: _Found) -> _Found:
        """What the last call gave. `found` is what the first one gave, `again` makes another."""
        for _ in range(SETTLED - 1):
            before = self.captured.recordings, self.captured.natives
            found = again()
            if before == (self.captured.recordings, self.captured.natives):
                break
        else:
            because = "".join(f": {why}" for why in self.captured.uncacheable[-1:])
            self.no_witness = f"each call is recorded anew, so none runs what was compiled{because}"
        self.no_witness = self._why_native() or self.no_witness
        return found

    def _why_native(self) -> str:
        captured = self.captured
        if captured.crashes:
            return f"it went on natively after a bug of its own ({in_words(captured.crashes[0].error)})"
        for each in captured.breaks:
            if each.natively:
                return f"from {each.place} on, it ran natively: {each.reason}"
        if captured.natives:
            return "it ran natively, since it could not be recorded"
        return "" if captured.graphs else "it has put nothing into a graph"

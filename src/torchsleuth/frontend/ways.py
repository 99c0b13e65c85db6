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
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch

from torchsleuth import torch_compat
from torchsleuth.compare import clone_inputs, same
from torchsleuth.compare.tree import map_tensors
from torchsleuth.errors import in_words
from torchsleuth.frontend.aligning import DescribedGraph, described
from torchsleuth.frontend.traits import Owners, other_traits, traits_of
from torchsleuth.frontend.undoing import Holder, Reach, TensorHolder

_NOT_COMPARED: Final = (random.Random, torch.Generator, types.BuiltinFunctionType, functools._lru_cache_wrapper)
"""State that a run need not leave as eager does: generators have a place of their own, caches are nobody's result."""
_Found = TypeVar("_Found")
log = logging.getLogger("torchsleuth.frontend")

_INDUCTOR: Final = "torch._inductor.compile_fx"
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
        self._world.listen(result, self._named(values))
        result = _apart(result)  # a list of the program's may be in it, and is going to be put back
        self._world.put_back()
        return result

    def _named(self, values: Sequence[Any]) -> list[tuple[str, Any]]:
        plain = len(values) - len(self._names)
        names = [*(f"args[{number}]" for number in range(plain)), *self._names]
        return list(zip(names, values, strict=True))


@dataclass(eq=False)
class Whole:
    """A graph that can be run again."""

    graph: torch.fx.GraphModule | None
    inputs: list[Any] | None = None


class Kept:
    """A backend that notes the graphs on their way to the real one. To Dynamo it looks like that one."""

    def __init__(self, backend: Callable[..., Any], *, whole: bool = False) -> None:
        self.backend = backend
        self.__name__ = self.__qualname__ = name_of(backend)
        self.graphs: list[DescribedGraph] = []
        self.whole: list[Whole] = []
        self.is_later = False
        """A call was made before: what it has given need not be noted again."""
        self.has_aot = False
        """AOT was seen at work in the backend."""
        self._is_whole = whole
        for attribute in ("compiler_name", "get_compiler_config", "reset", "backend_ctx_ctor"):
            if hasattr(backend, attribute):
                setattr(self, attribute, getattr(backend, attribute))

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        self._note(gm, example_inputs)
        if not self._is_whole:
            return self._compiled(gm, example_inputs, options)
        whole = Whole(_copied(gm))
        self.whole.append(whole)
        compiled = self._compiled(gm, example_inputs, options)

        def run(*inputs: Any) -> Any:
            if whole.inputs is None:
                whole.inputs = clone_inputs(inputs)
            return compiled(*inputs)

        return run

    def _note(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        try:
            graph = described(gm, example_inputs, len(self.graphs))
        except Exception:
            log.warning("a graph could not be described", exc_info=True)
            return
        if not self.is_later or all(graph.operations != known.operations for known in self.graphs):
            self.graphs.append(graph)

    def _compiled(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Callable[..., Any]:
        with torch_compat.aot_compilers_wrapped(self._see_aot, inductor=_INDUCTOR in sys.modules):
            compiled: Callable[..., Any] = self.backend(gm, example_inputs, **options)
        return compiled

    def _see_aot(self, compiler: Callable[..., Any], phase: str | None) -> Callable[..., Any]:
        self.has_aot = True
        return compiler


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
    traits: dict[str, str] = field(default_factory=dict)
    """What values do not tell of all this."""


class World:
    """The objects of Python's that the call can reach: put back before each run; what eager changes, others must."""

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = [*((f"args[{number}]", value) for number, value in enumerate(args)), *kwargs.items()]
        self._reach = Reach([*given, (getattr(fn, "__name__", "self"), fn)])
        self.why_not = self._reach.why_not
        self._holders = [each for each in self._reach.holders if not isinstance(each, TensorHolder)]
        self._compared = [each for each in self._holders if not isinstance(each.value, _NOT_COMPARED)]
        self._expected = Heard()
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

    def listen(self, result: Any, given: Iterable[tuple[str, Any]] = ()) -> None:
        """A call is over, and nothing is put back yet. `given`: its arguments, with their names."""
        if self._heard is None:
            return
        self._heard.output = _copied_value(result)
        with torch_compat.plain_torch():
            owners = Owners(given, self._reach.paths, self._reach.memories)
            self._heard.traits = traits_of("output", result, owners)
        for holder in () if self.why_not else self._compared:
            if holder.changed():
                self._note_effects(self._heard, holder)

    def _note_effects(self, heard: Heard, holder: Holder) -> None:
        before = {holder.step(key): value for key, value in holder.before}
        content = holder.read()
        now = {holder.step(key): value for key, value in content}
        for step in {**before, **now}:
            if step not in now or step not in before or now[step] is not before[step]:
                path = f"{holder.path}{step}"
                heard.effects[path] = _copied_value(now.get(step, _GONE))
                heard.traits.update(traits_of(path, heard.effects[path]))
        if holder.has_order and list(before) != list(now):
            heard.effects[f"the order of {holder.path}"] = [key for key, _ in content]

    def expect(self, once: Heard, again: Heard) -> None:
        """What eager gives and changes, in one run as in the other."""
        effects, traits = again.effects, again.traits
        self._expected = Heard(
            effects={
                path: each for path, each in once.effects.items() if path in effects and _same(each, effects[path])
            },
            traits={path: words for path, words in once.traits.items() if traits.get(path) == words},
        )

    def difference(self, heard: Heard) -> str:
        """What eager changes, and this run has not or otherwise; or what eager gives in another form."""
        for path, value in self._expected.effects.items():
            if path not in heard.effects:
                return f"{path} is left as it was; eager makes it {value!r:.60}"
            if not _same(value, heard.effects[path]):
                return f"{path} is {heard.effects[path]!r:.60}; eager makes it {value!r:.60}"
        return other_traits(self._expected.traits, heard.traits)


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

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        """The backend that it has."""
        self.captured: Any = None
        """What `capture` has made of the function."""
        self.no_witness = ""
        """Why its results say nothing of the backend, though they may be right."""

    def settled(self, again: Callable[[], _Found], found: _Found) -> _Found:
        """What the last call gave. `found` is what the first one gave, `again` makes another.

        After a fault of its own it goes on natively: one record of that is enough.
        """
        self.kept.is_later = True
        for _ in range(SETTLED - 1):
            if self.captured.crashes:
                break
            before = self.captured.recordings, self.captured.natives
            found = again()
            if before == (self.captured.recordings, self.captured.natives):
                break
        else:
            self.no_witness = f"each call is recorded anew, so none runs what was compiled{self._why_anew()}"
        if self.captured.crashes:
            self.captured.limit = 0
        self.no_witness = self._why_native() or self.no_witness
        return found

    @property
    def crashes(self) -> Sequence[Any]:
        """The faults of our own translator."""
        return () if self.captured is None else self.captured.crashes

    def _why_anew(self) -> str:
        for why in self.captured.uncacheable[-1:]:
            return f": {why}"
        for guard, found in self.captured.misses[-1:]:
            return f": the guard {guard!r} does not hold ({found})"
        return ""

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

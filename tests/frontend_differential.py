"""Two runs of one program, eager and captured, and everything in which they differ.

    @case
    def a_list_is_appended_to():
        '''A maker: it builds the program and everything around it afresh.'''
        log = []
        return Case(lambda x: log.append(x + 1), repeat(torch.ones(3)), state=lambda: log)

    differences(run(a_list_is_appended_to), run(a_list_is_appended_to, capture))    # [] if there are none

A run makes four calls and notes after each of them whatever the program could have changed: what came back or was
raised, what was written to stdout and stderr, the arguments, the state outside, random numbers, and modes of torch.
Notes are exact: types, bits of floats (any NaN is like any other, -0.0 is not 0.0), the strides of a tensor, whose
memory it shares, and which object it was. Objects are numbered as they are met, through all four calls, so a copy in
the place of the object itself shows.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import itertools
import os
import random
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

CALLS = 4
"""A recording, a cached call, and two more in which something may have changed."""
MOST_ITEMS = 12
"""So many are taken of a generator that comes back: it may have no end."""


# ---- cases ---------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a case."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    before: Callable[[], Any] | None = None
    """What the outside changes before it."""
    under: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What it is called under: `torch.no_grad`, for one."""


@dataclass
class Case:
    """A program, how it is called, and what outside of it is worth a look."""

    fn: Callable[..., Any]
    calls: list[Call]
    state: Callable[[], Any] | None = None
    """Gives the objects outside that the program could change."""
    backward: bool = False
    """Whether gradients are taken of what comes back."""

    def __post_init__(self) -> None:
        if len(self.calls) != CALLS:
            raise ValueError(f"{len(self.calls)} calls: a case makes {CALLS}")


Maker = Callable[[], Case]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
CASES: dict[str, Maker] = {}


def case(maker: Maker) -> Maker:
    """Puts a maker among the cases."""
    if maker.__name__ in CASES:
        raise ValueError(f"there are two cases named {maker.__name__}")
    CASES[maker.__name__] = maker
    return maker


def call(
    *args: Any, before: Callable[[], Any] | None = None, under: Any = contextlib.nullcontext, **kwargs: Any
) -> Call:
    return Call(args, kwargs, before, under)


def repeat(*args: Any, **kwargs: Any) -> list[Call]:
    """Four calls on the same objects."""
    return [Call(args, kwargs) for _ in range(CALLS)]


def fresh(make: Callable[[], tuple[Any, ...]]) -> list[Call]:
    """Four calls, each on objects of its own."""
    return [Call(make()) for _ in range(CALLS)]


def each(*arguments: tuple[Any, ...] | Call) -> list[Call]:
    """Calls written out: each is a tuple of arguments, or a call. Two of them are made twice, in turn."""
    calls = [one if isinstance(one, Call) else Call(one) for one in arguments]
    return [*calls, *calls] if len(calls) == CALLS // 2 else calls


class Noted(UserWarning):
    """A warning of the program's own. Those of torch are not looked at."""


# ---- notes ---------------------------------------------------------------------------------------------------


@dataclass
class Thing:
    """What there is to say about an object."""

    kind: str
    number: int | None
    parts: list[tuple[str, Note]]


Note = str | Thing

ATOMS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, re.Pattern, re.Match, np.generic, np.dtype),
)
"""Their repr says it all, and which of two equal ones it is makes no difference."""
ITERATORS = (
    *{type(iter(made)) for made in ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0))},
    *(zip, map, filter, enumerate, reversed, type(reversed([])), type(reversed({})), type(iter(range(2**70)))),
    *(itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice, itertools.accumulate),
    *(itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.product),
    *(itertools.zip_longest, itertools.groupby, itertools.pairwise, itertools.permutations, itertools.combinations),
)
SEALED = (type, types.ModuleType, torch.SymInt, torch.SymFloat, torch.SymBool, torch.jit.ScriptFunction)
"""What their attributes hold is of no interest."""
OURS = ("frontend_cases", "test_frontend")
"""Modules whose classes are looked into."""


@dataclass
class Drained:
    """What came out of a generator."""

    items: list[Any]
    end: str
    last: Any = None


class Notebook:
    """Makes notes of objects, and knows again those it has met. It keeps them alive: no address is used twice."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []
        self._here: set[int] = set()
        self._drained: dict[int, Drained] = {}

    def turn_the_page(self) -> None:
        """What is met from here on is described again: it may have changed."""
        self._here.clear()

    def drain(self, value: Any) -> None:
        """Runs the generators in a value to their end: that is part of the program."""
        kind = type(value)
        if issubclass(kind, (list, tuple, collections.deque)):
            for item in kind.__iter__(value):
                self.drain(item)
        elif issubclass(kind, dict):
            for item in dict.values(value):
                self.drain(item)
        elif issubclass(kind, (types.GeneratorType, *ITERATORS)) and id(value) not in self._drained:
            self._kept.append(value)
            self._drained[id(value)] = drained = Drained([], "goes on")
            try:
                for _ in range(MOST_ITEMS):
                    drained.items.append(next(value))
            except StopIteration as stop:
                drained.end, drained.last = "ended", stop.value
            except Exception as error:  # noqa: BLE001 - it is what the program raises
                drained.end, drained.last = "raised", error.with_traceback(None)
            self.drain(drained.items)

    def note(self, value: Any) -> Note:
        kind = type(value)
        name = name_of(kind)
        if issubclass(kind, enum.Enum):
            return f"{name} {value!r}"
        if kind in ATOMS or issubclass(kind, (np.generic, np.dtype)):
            return f"{name} {value!r}"
        if issubclass(kind, (tuple, frozenset)) and all(type(item) in ATOMS for item in kind.__iter__(value)):
            return Thing(name, None, list(self._parts(value)))  # may be a constant: it does not matter which
        key = id(value)
        number = self._numbers.setdefault(key, len(self._numbers))
        if key in self._here:
            return f"{name} #{number} again"
        self._here.add(key)
        self._kept.append(value)
        thing = Thing(name, number, [])
        thing.parts.extend(self._parts(value))
        return thing

    def _parts(self, value: Any) -> Iterator[tuple[str, Note]]:
        yield from self._own_parts(value)
        with contextlib.suppress(AttributeError, TypeError):
            inside = object.__getattribute__(value, "__dict__")
            if type(inside) is dict and not issubclass(type(value), SEALED):
                yield from self._attributes(value, inside)
        for slot in _slots(type(value)):
            with contextlib.suppress(AttributeError):
                yield f".{slot}", self.note(object.__getattribute__(value, slot))

    def _own_parts(self, value: Any) -> Iterator[tuple[str, Note]]:
        kind = type(value)
        if id(value) in self._drained:
            drained = self._drained[id(value)]
            yield from self._numbered(drained.items)
            yield drained.end, self.note(drained.last)
        elif issubclass(kind, torch.Tensor):
            yield from self._tensor(value)
        elif issubclass(kind, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield "symbol", repr(value)  # no eager program has one
        elif issubclass(kind, torch.Generator):
            yield "state", digest(value.get_state().numpy().tobytes())
        elif issubclass(kind, np.ndarray):
            yield "array", f"{value.dtype} {value.strides} {value.tolist()!r}"
        elif issubclass(kind, (int, float, complex, str, bytes)):
            base = next(base for base in (int, float, complex, str, bytes) if issubclass(kind, base))
            yield "value", base.__repr__(value)
        elif issubclass(kind, bytearray):
            yield "bytes", repr(bytes(value))
        elif issubclass(kind, collections.deque):
            yield "maxlen", str(value.maxlen)
            yield from self._numbered(kind.__iter__(value))
        elif issubclass(kind, list):
            yield from self._numbered(list.__iter__(value))
        elif issubclass(kind, tuple):
            yield from self._numbered(tuple.__iter__(value))
        elif issubclass(kind, (set, frozenset)):
            base = set if issubclass(kind, set) else frozenset
            yield from self._numbered(sorted(base.__iter__(value), key=self._order))
        elif issubclass(kind, (dict, types.MappingProxyType)):
            yield from self._dict(value)
        elif issubclass(kind, BaseException):
            yield from self._exception(value)
        elif issubclass(kind, type):
            if value.__module__.startswith(OURS):
                yield "bases", ", ".join(name_of(base) for base in value.__bases__)
                yield from self._attributes(value, {k: v for k, v in vars(value).items() if _is_plain(k, v)})
        elif issubclass(kind, types.FunctionType):
            yield "name", value.__qualname__
            yield "defaults", self.note(value.__defaults__)
            yield "keyword defaults", self.note(value.__kwdefaults__)
            for place, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield f"closure {place}", self.note(cell)
        elif issubclass(kind, types.CellType):
            with contextlib.suppress(ValueError):  # it is empty
                yield "holds", self.note(value.cell_contents)
        elif issubclass(kind, types.MethodType):
            yield "self", self.note(value.__self__)
            yield "function", self.note(value.__func__)
        elif issubclass(kind, functools.partial):
            yield "function", self.note(value.func)
            yield "args", self.note(value.args)
            yield "keywords", self.note(value.keywords)
        elif issubclass(kind, types.GeneratorType):
            yield "generator", f"{value.__qualname__} {inspect.getgeneratorstate(value)}"
        elif issubclass(kind, ITERATORS):
            yield "rest", self.note(value.__reduce__())
        elif issubclass(kind, random.Random):
            yield "state", digest(repr(value.getstate()).encode())
        elif issubclass(kind, weakref.ReferenceType):
            yield "refers to", self.note(value())
        elif not _has_dict(value) and " at 0x" not in (words := kind.__repr__(value)):
            yield "repr", words

    def _order(self, item: Any) -> tuple[str, int]:
        """The order in which elements of a set are described: those that look alike as they were met."""
        return repr(Notebook().note(item)), self._numbers.get(id(item), len(self._numbers))

    def _numbered(self, items: Iterable[Any]) -> Iterator[tuple[str, Note]]:
        for index, item in enumerate(items):
            yield f"[{index}]", self.note(item)

    def _dict(self, value: Any) -> Iterator[tuple[str, Note]]:
        if isinstance(value, collections.defaultdict):
            yield "default", self.note(value.default_factory)
        pairs = dict.items(value) if type(value).items is not collections.OrderedDict.items else value.items()
        for index, (key, item) in enumerate(pairs):
            if type(key) in ATOMS:
                yield f"[{key!r}]", self.note(item)
            else:
                yield f"key {index}", self.note(key)
                yield f"[key {index}]", self.note(item)

    def _attributes(self, owner: Any, inside: dict[str, Any]) -> Iterator[tuple[str, Note]]:
        for name, item in inside.items():
            if isinstance(owner, nn.Module) and "_hooks" in name:
                yield f".{name}", self.note(list(item.values()))  # the keys count every hook of the process
            elif not name.startswith("_dynamo") and name != "__notes__":  # notes may be added to what is raised
                yield f".{name}", self.note(item)

    def _tensor(self, value: torch.Tensor) -> Iterator[tuple[str, Note]]:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            yield "dtype", str(value.dtype)
            yield "shape", str(tuple(value.shape))
            plain = value.detach()
            if value.layout is torch.strided:
                yield "strides", f"{value.stride()} from {value.storage_offset()}"
                memory = value.untyped_storage()._cdata
                yield "memory", f"#{self._storages.setdefault(memory, len(self._storages))}"
            else:
                yield "layout", str(value.layout)
                plain = plain.to_dense()
            yield "values", repr(plain.tolist())
            yield "requires_grad", str(value.requires_grad)
            yield "made by", "nothing" if value.grad_fn is None else type(value.grad_fn).__name__
            if value.is_inference():
                yield "inference", "yes"
            if value.is_leaf and value.grad is not None:
                yield ".grad", self.note(value.grad)

    def _exception(self, error: BaseException) -> Iterator[tuple[str, Note]]:
        yield "args", self.note(error.args)
        yield "cause", self.note(error.__cause__)
        yield "context", self.note(error.__context__)
        yield "context is suppressed", str(error.__suppress_context__)
        for name in ("name", "value", "code"):
            if name not in vars(error) and hasattr(error, name):
                yield f".{name}", self.note(getattr(error, name))
        if isinstance(getattr(error, "exceptions", None), tuple):
            yield "exceptions", self.note(error.exceptions)


def name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _has_dict(value: Any) -> bool:
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return True


def _is_plain(name: str, value: Any) -> bool:
    """Whether an attribute of a class is state, and no part of how it works."""
    works = (types.FunctionType, classmethod, staticmethod, property, types.GetSetDescriptorType)
    return not name.startswith("__") and not name.startswith("_abc") and not isinstance(value, works)


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        if base.__module__.startswith(OURS):
            names.extend([slots] if isinstance(slots, str) else slots)
    return [name for name in names if not name.startswith("__")]


# ---- runs ----------------------------------------------------------------------------------------------------


@dataclass
class Aftermath:
    """Everything noted after one call."""

    value: Note
    raised: Note
    told: list[tuple[str, str]]
    """What was written, and where to."""
    arguments: Note
    state: Note
    chance: dict[str, str]
    """The state of each generator of random numbers."""
    modes: dict[str, str]


@dataclass
class Run:
    """What became of the four calls."""

    calls: list[Aftermath]
    wrapped: Callable[..., Any]
    probed: list[Any]
    """What the probe said before the first call and after each one."""


def as_it_is(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def run(maker: Maker, wrap: Wrap = as_it_is, probe: Callable[[Any], Any] = lambda wrapped: None) -> Run:
    """Makes the case afresh, wraps its function, and makes its calls. Leaves the process as it was."""
    with _put_back(maker):
        made = maker()
        wrapped = wrap(made.fn)
        notebook = Notebook()
        probed = [probe(wrapped)]
        calls = []
        for one in made.calls:
            if one.before is not None:
                one.before()
            calls.append(_make(one, made, wrapped, notebook))
            probed.append(probe(wrapped))
    return Run(calls, wrapped, probed)


def _make(one: Call, made: Case, wrapped: Callable[..., Any], notebook: Notebook) -> Aftermath:
    value: Any = None
    raised: BaseException | None = None
    told: list[tuple[str, str]] = []
    notebook.turn_the_page()
    with one.under():
        with (
            contextlib.redirect_stdout(Pen("stdout", told)),
            contextlib.redirect_stderr(Pen("stderr", told)),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", Noted)
            try:
                value = wrapped(*one.args, **one.kwargs)
                notebook.drain(value)
                if made.backward:
                    take_gradients(value)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - it is what the program raises
                raised = error.with_traceback(None)
            modes = modes_of_now()
        told.extend(("warning", str(warning.message)) for warning in warned if warning.category is Noted)
    chance = chance_of_now()
    arguments = notebook.note([*one.args, *one.kwargs.values()])
    state = notebook.note(None if made.state is None else made.state())
    return Aftermath(notebook.note(value), notebook.note(raised), told, arguments, state, chance, modes)


class Pen(io.TextIOBase):
    """Writes down what is printed, in one list with what others write."""

    def __init__(self, name: str, told: list[tuple[str, str]]) -> None:
        super().__init__()
        self._name = name
        self._told = told

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._told and self._told[-1][0] == self._name:
            text_before = self._told.pop()[1]
            self._told.append((self._name, text_before + text))
        else:
            self._told.append((self._name, text))
        return len(text)


def take_gradients(value: Any) -> None:
    """Backward through every float in a result."""
    total = [leaf.float().sum() for leaf in leaves_of(value) if leaf.requires_grad]
    if total:
        torch.stack(total).sum().backward()


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    elif dataclasses.is_dataclass(value):
        yield from leaves_of(list(vars(value).values()))


def chance_of_now() -> dict[str, str]:
    return {
        "random": digest(repr(random.getstate()).encode()),
        "torch": digest(torch.get_rng_state().numpy().tobytes()),
        "numpy": digest(repr(np.random.get_state()).encode()),
    }


def modes_of_now() -> dict[str, str]:
    """Whatever a call could forget to put back."""
    modes = {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "modes of functions": torch._C._len_torch_function_stack(),
        "modes of dispatch": torch._C._len_torch_dispatch_stack(),
        "profiled": sys.getprofile() is not None,
        "traced": sys.gettrace() is not None,
        "recursion limit": sys.getrecursionlimit(),
        "filters of warnings": len(warnings.filters),
    }
    return {name: str(value) for name, value in modes.items()}


@contextlib.contextmanager
def _put_back(maker: Maker) -> Iterator[None]:
    """Seeds everything, and afterwards puts back what a case may have changed."""
    names = maker.__globals__
    globals_before, environment = dict(names), dict(os.environ)
    chance = random.getstate(), torch.get_rng_state(), np.random.get_state()
    modes = torch.get_default_dtype(), torch.is_grad_enabled()
    random.seed(0)
    torch.manual_seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(chance[0])
        torch.set_rng_state(chance[1])
        np.random.set_state(chance[2])
        torch.set_default_dtype(modes[0])
        torch.set_grad_enabled(modes[1])
        os.environ.clear()
        os.environ.update(environment)
        for name in names.keys() - globals_before.keys():
            del names[name]
        names.update(globals_before)


# ---- differences ---------------------------------------------------------------------------------------------


def differences(eager: Run, other: Run, most: int = 12) -> list[str]:
    """What differs, in words, beginning with the first call. [] if nothing does."""
    found: list[str] = []
    for number, (right, got) in enumerate(zip(eager.calls, other.calls, strict=True), 1):
        for about in dataclasses.fields(Aftermath):
            for words in _between(getattr(right, about.name), getattr(got, about.name), about.name):
                found.append(f"call {number}: {words}")
                if len(found) == most:
                    return [*found, "..."]
    return found


def _between(right: Any, got: Any, path: str) -> Iterator[str]:
    if right == got:
        return
    if isinstance(right, dict) and isinstance(got, dict):
        for name in right:
            yield from _between(right[name], got[name], f"{path} {name}")
    elif isinstance(right, Thing) and isinstance(got, Thing) and right.kind == got.kind:
        if right.number != got.number:
            yield f"{path}: {right.kind} is object #{right.number} in eager, #{got.number} here"
        names = [[name for name, _ in thing.parts] for thing in (right, got)]
        if names[0] != names[1]:
            yield f"{path}: {in_words(right)} in eager, {in_words(got)} here"
        else:
            for (name, part), (_, part_got) in zip(right.parts, got.parts, strict=True):
                yield from _between(part, part_got, f"{path} {name}")
    else:
        yield f"{path}: {in_words(right)} in eager, {in_words(got)} here"


def in_words(note: Any) -> str:
    if isinstance(note, Thing):
        number = "" if note.number is None else f" #{note.number}"
        parts = ", ".join(f"{name}: {in_words(part)}" for name, part in note.parts)
        return _cut(f"{note.kind}{number} ({parts})")
    return _cut(note if isinstance(note, str) else repr(note))


def _cut(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"

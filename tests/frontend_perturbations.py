"""Everything that a program reads, changed one thing at a time.

    for change in perturbations(subject):
        with change.made():
            ...                     the program runs in a world in which this one thing is different
        ...                         and here in the world as it was

What there is to change is found by walking: from the program and its arguments through attributes, containers, closures
and defaults to whatever can be reached; to the classes of what was met; and to the globals that are loaded by the code
that runs in a call (it is watched once). Some changes make no difference to the program, some make it raise, and some
are as nasty as only a debugger session is: all that matters is that the captured program does what the program does.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import enum
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from frontend_changes import ABSENT, Change, Name, Subject, Undo, is_ours, put_name, slots_of
from frontend_others import altering, others, plain_tensors
from frontend_settings import calls, doubled, hooks_of, itself, registered, settings

CLOSED = ("logging", "threading", "weakref", "contextvars", "_thread", "re", "concurrent", "abc", "typing", "builtins")
"""Objects of classes that live in these modules are left alone."""

# ---- what runs in a call ------------------------------------------------------------------------------------


@dataclass
class Watched:
    """What ran in a call of the program itself."""

    codes: set[types.CodeType]
    names: set[str]
    """All names and texts that occur in what ran."""
    globals: list[tuple[dict[str, Any], str]]
    """Namespaces, and names that were loaded from them."""
    paths: list[tuple[types.ModuleType, str]]
    """Modules, and attributes that were loaded from them."""


def watch(subject: Subject) -> Watched:
    """Makes the call, and notes which code runs."""
    ran: dict[types.CodeType, dict[str, Any]] = {}

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            ran.setdefault(frame.f_code, frame.f_globals)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        subject.call(subject.program)
    except Exception:  # noqa: BLE001 - a program may raise
        pass
    finally:
        sys.setprofile(before)
    for code in (Subject.call.__code__, note.__code__):
        ran.pop(code, None)
    found = Watched(set(ran), set(), [], [])
    known: set[tuple[int, str]] = set()
    for code, names in ran.items():
        found.names.update(code.co_names, code.co_freevars, (each for each in code.co_consts if type(each) is str))
        _note_globals(code, names, found, known)
    return found


def _note_globals(code: types.CodeType, names: dict[str, Any], found: Watched, known: set[tuple[int, str]]) -> None:
    at: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL":
            at = names.get(name)
            if (id(names), name) not in known:
                known.add((id(names), name))
                found.globals.append((names, name))
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(at, types.ModuleType):
            if (id(at), name) not in known:
                known.add((id(at), name))
                found.paths.append((at, name))
            at = vars(at).get(name)
        elif instruction.opname not in ("CACHE", "PRECALL"):
            at = None


# ---- walking ------------------------------------------------------------------------------------------------


def perturbations(subject: Subject, watched: Watched | None = None) -> list[Change]:
    """Every change that we can think of. Each can be made, and taken back, at any time and in any order."""
    return list(_Walk(subject, watched or watch(subject)).changes())


class _Walk:
    def __init__(self, subject: Subject, watched: Watched) -> None:
        self.subject = subject
        self.watched = watched
        self.seen: set[int] = set()
        self.kept: list[Any] = []  # an id is good only while its object lives
        self.kinds: dict[type, Any] = {}
        self.todo: deque[tuple[str, Any]] = deque()

    def changes(self) -> Iterator[Change]:
        subject = self.subject
        yield from settings(subject)
        yield from calls(subject)
        self.todo.append(("program", subject.program))
        for number, each in enumerate(subject.args):
            yield from self.place(f"argument {number}", subject.args, number, each)
        for name, each in subject.kwargs.items():
            yield from self.place(f"argument {name}", subject.kwargs, name, each)
        self.todo += [("outside", each) for each in subject.outside]
        yield from self.names()
        while self.todo:
            yield from self.inside(*self.todo.popleft())
        for kind, example in list(self.kinds.items()):
            yield from self.of_class(kind, example)

    def place(self, where: str, holder: Any, key: Any, value: Any) -> Iterator[Change]:
        """Other values for an item of a container; the walk goes on behind it."""
        self.todo.append((where, value))
        for words, other in others(value):
            yield Change(where, words, holder, partial(holder.__setitem__, key, other))

    def inside(self, where: str, value: Any) -> Iterator[Change]:
        """Changes to an object that stays the same object."""
        if id(value) in self.seen or isinstance(value, (torch.dtype, torch.device, torch.layout, enum.Enum)):
            return
        self.seen.add(id(value))
        self.kept.append(value)
        kind = type(value)
        if isinstance(value, torch.Tensor):
            yield from in_tensor(where, value)
        elif isinstance(value, type):
            self.kinds.setdefault(value, ABSENT)
        elif isinstance(value, types.FunctionType):
            yield from self.in_function(where, value)
        elif isinstance(value, types.MethodType):
            self.todo += [(f"{where}.__self__", value.__self__), (f"{where}.__func__", value.__func__)]
        elif isinstance(value, partial):
            self.todo += [(f"{where}.func", value.func), (f"{where}.args", value.args)]
            yield from self.in_dict(f"{where}.keywords", value.keywords)
        elif isinstance(value, dict):
            yield from self.in_dict(where, value)
            yield from self.attributes(where, value)
        elif isinstance(value, (list, deque)):
            yield from self.in_sequence(where, value)
        elif isinstance(value, set):
            yield from self.in_set(where, value)
        elif isinstance(value, (tuple, frozenset)):
            self.todo += [(f"{where}[{number}]", each) for number, each in enumerate(value)]
        elif isinstance(value, types.CellType):
            with contextlib.suppress(ValueError):
                yield from self.in_cell(where, value)
        elif not isinstance(value, (types.ModuleType, types.GeneratorType)) and not kind.__module__.startswith(CLOSED):
            yield from self.attributes(where, value)

    # -- containers

    def in_dict(self, where: str, value: dict[Any, Any]) -> Iterator[Change]:
        keys = list(value)
        if not value:
            yield Change(where, "a key is added", value, partial(value.__setitem__, "extra", 1))
            return
        first, last = keys[0], keys[-1]
        yield Change(where, "a key is added", value, partial(value.__setitem__, "extra", value[last]))
        yield Change(where, "the first key is dropped", value, partial(value.pop, first))
        yield Change(where, "the last key is dropped", value, partial(value.pop, last))
        if len(keys) > 1:
            yield Change(where, "the keys change their order", value, partial(_turn, value, first))
            yield Change(where, "values are exchanged", value, partial(_exchange, value, first, last))
        yield Change(where, "emptied", value, value.clear)
        for key in keys:
            if type(key) in (str, int, bool, float):
                if type(key) is str and len(keys) > 12 and key not in self.watched.names:
                    continue
                yield from self.place(f"{where}[{key!r}]", value, key, value[key])

    def in_sequence(self, where: str, value: Any) -> Iterator[Change]:
        element = value[-1] if value else 1
        yield Change(where, "an element is added", value, partial(value.append, element))
        if value:
            yield Change(where, "the last element is dropped", value, value.pop)
            yield Change(where, "the first element is dropped", value, partial(value.__delitem__, 0))
            yield Change(where, "emptied", value, value.clear)
        if len(value) > 1:
            yield Change(where, "turned round", value, value.reverse)
            yield Change(where, "elements are exchanged", value, partial(_exchange, value, 0, -1))
        for number, each in enumerate(list(value)[:6]):
            yield from self.place(f"{where}[{number}]", value, number, each)

    def in_set(self, where: str, value: set[Any]) -> Iterator[Change]:
        yield Change(where, "an element is added", value, partial(value.add, "extra"))
        yield Change(where, "0 is added", value, partial(value.add, 0))
        for each in sorted(value, key=repr)[:4]:
            yield Change(where, f"{each!r:.30} is dropped", value, partial(value.discard, each))
            self.todo.append((f"{where}'s {each!r:.30}", each))

    def in_cell(self, where: str, value: types.CellType) -> Iterator[Change]:
        content = value.cell_contents
        self.todo.append((where, content))
        for words, other in others(content):
            yield Change(where, words, value, partial(setattr, value, "cell_contents", other))

    # -- functions

    def in_function(self, where: str, value: types.FunctionType) -> Iterator[Change]:
        code = value.__code__
        if code not in self.watched.codes and not is_ours(value.__module__):
            return
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            self.todo.append((f"{where}'s {name}", cell))
        for number, each in enumerate(value.__defaults__ or ()):
            self.todo.append((f"{where}.__defaults__[{number}]", each))
            for words, other in list(others(each))[:6]:
                made = (*value.__defaults__[:number], other, *value.__defaults__[number + 1 :])  # type: ignore[index]
                yield Change(where, f"default {number}: {words}", value, partial(setattr, value, "__defaults__", made))
        if value.__defaults__:
            yield Change(where, "no defaults", value, partial(setattr, value, "__defaults__", None))
        if value.__kwdefaults__:
            yield from self.in_dict(f"{where}.__kwdefaults__", value.__kwdefaults__)
            yield Change(where, "no keyword defaults", value, partial(setattr, value, "__kwdefaults__", None))
        if not code.co_freevars:
            for other in (_other_code, _raising_code):
                yield Change(where, f"{other.__name__[1:]}", value, partial(_recode, value, other.__code__))
        renamed = code.replace(co_name="renamed")
        yield Change(where, "equal code", value, partial(setattr, value, "__code__", renamed))
        constants = _other_constants(code)
        if constants is not None:
            changed = code.replace(co_consts=constants)
            yield Change(where, "another constant in the code", value, partial(setattr, value, "__code__", changed))
        yield from self.attributes(where, value)

    # -- objects

    def attributes(self, where: str, value: Any) -> Iterator[Change]:
        kind = type(value)
        if kind.__module__ != "builtins":
            self.kinds.setdefault(kind, value)
        if isinstance(value, nn.Module):
            yield from self.in_module(where, value)
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, dict):
            yield from self.instance_attributes(where, value, inside)
        for name in slots_of(value):
            here = f"{where}.{name}"
            self.todo.append((here, getattr(value, name)))
            for words, other in others(getattr(value, name)):
                yield Change(here, words, value, partial(object.__setattr__, value, name, other))
            yield Change(here, "deleted", value, partial(object.__delattr__, value, name))
        if kind.__flags__ & (1 << 9) and kind.__flags__ & (1 << 10) and not isinstance(value, torch.Tensor):
            same = type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, "__slots__": ()})
            yield Change(where, "of a subclass now", value, partial(object.__setattr__, value, "__class__", same))

    def instance_attributes(self, where: str, value: Any, inside: dict[str, Any]) -> Iterator[Change]:
        is_module = isinstance(value, nn.Module)
        for name, held in list(inside.items()):
            if is_module and name.startswith("_") and isinstance(held, (dict, set)) and not held:
                continue  # hooks that nobody has registered: `in_module` does
            here = f"{where}.{name}"
            if is_module and name in ("_parameters", "_buffers", "_modules"):
                yield from self.in_store(where, name, held)
                continue
            used = name in self.watched.names
            self.todo.append((here, held)) if used or not isinstance(held, (dict, list)) else None
            choice = list(others(held))
            for words, other in choice if used else choice[:1]:
                yield Change(here, words, inside, partial(inside.__setitem__, name, other))
            if used:
                yield Change(here, "deleted", inside, partial(inside.pop, name))
        yield Change(where, "an attribute more", inside, partial(inside.__setitem__, "extra", 1))
        for kind in type(value).__mro__[:-1]:  # what the class has is hidden by what the object has
            for name, held in list(vars(kind).items()):
                if name in inside or name not in self.watched.names or name.startswith("__"):
                    continue
                if isinstance(held, types.FunctionType):
                    method = types.MethodType(altering(held), value)
                    yield Change(
                        f"{where}.{name}", "a method of its own", inside, partial(inside.update, {name: method})
                    )
                elif not hasattr(held, "__get__"):
                    for words, other in list(others(held))[:2]:
                        make = partial(inside.__setitem__, name, other)
                        yield Change(f"{where}.{name}", f"hidden by {words}", inside, make)

    def in_store(self, where: str, store: str, held: dict[str, Any]) -> Iterator[Change]:
        """The parameters, the buffers or the modules of a module."""
        for name, each in list(held.items()):
            here = f"{where}.{name}"
            self.todo.append((here, each))
            for words, other in others(each):
                yield Change(here, words, held, partial(held.__setitem__, name, _as(each, other)))
            if isinstance(each, nn.Parameter):
                yield Change(here, "a plain tensor", held, partial(held.__setitem__, name, each.detach().clone() + 1))
            yield Change(here, "deleted", held, partial(held.pop, name))
        names = list(held)
        if len(names) > 1:
            yield Change(f"{where}.{store}", "another order", held, partial(_turn, held, names[0]))
            yield Change(f"{where}.{store}", "two are exchanged", held, partial(_exchange, held, names[0], names[-1]))
            yield Change(
                f"{where}.{store}", "two are the same", held, partial(held.__setitem__, names[0], held[names[-1]])
            )
        if names and store == "_modules":
            more = {str(len(names)): held[names[-1]]}
            yield Change(f"{where}.{store}", "one more", held, partial(held.update, more))

    def in_module(self, where: str, value: nn.Module) -> Iterator[Change]:
        """Hooks and modes of a module."""
        yield Change(where, "the other mode", None, partial(train, value, not value.training))
        for words, register in hooks_of(value):  # a full backward hook leaves a mark on the module when it goes
            yield Change(where, words, vars(value), partial(registered, register))
        if type(value).forward.__code__ in self.watched.codes if hasattr(type(value).forward, "__code__") else False:
            inside = vars(value)
            for words, other in list(others(value.forward))[:2]:
                yield Change(f"{where}.forward", words, inside, partial(inside.__setitem__, "forward", other))
        wanting = [each for each in value.parameters(recurse=False) if each.requires_grad]
        if wanting:
            yield Change(where, "frozen", None, partial(freeze, wanting))

    # -- classes

    def of_class(self, kind: type, example: Any) -> Iterator[Change]:
        for each in kind.__mro__:
            if id(each) in self.seen or not each.__flags__ & (1 << 9) or each is nn.Module:
                continue
            if each.__module__.split(".")[0] in ("torch", "enum", "abc", "typing") and not issubclass(each, nn.Module):
                continue
            self.seen.add(id(each))
            self.kept.append(each)
            yield from self.in_class(each)
        if is_ours(kind.__module__) and not issubclass(kind, enum.Enum):
            yield from self.shadows(kind, example)

    def in_class(self, kind: type) -> Iterator[Change]:
        where = f"class {kind.__qualname__}"
        for name, held in list(vars(kind).items()):
            here = f"{where}.{name}"
            if name in ("__dict__", "__weakref__", "__module__", "__doc__", "__slots__", "__init__", "__class__"):
                continue
            inner = held
            wrap: Callable[[Any], Any] = itself
            if isinstance(held, property):
                inner, wrap = held.fget, property
            elif isinstance(held, (classmethod, staticmethod)):
                inner, wrap = held.__func__, type(held)
            if isinstance(inner, types.FunctionType):
                if inner.__code__ not in self.watched.codes:
                    continue
                for words, other in others(inner):
                    yield Change(here, words, kind, partial(type.__setattr__, kind, name, wrap(other)))
                self.todo.append((here, inner))
                yield from self._now(here, inner)
            elif name in self.watched.names and not hasattr(held, "__get__"):
                for words, other in others(held):
                    yield Change(here, words, kind, partial(type.__setattr__, kind, name, other))
                yield from self._now(here, held)
            elif name not in self.watched.names:
                continue
            if is_ours(kind.__module__) and not isinstance(held, types.MemberDescriptorType):
                yield Change(here, "deleted", kind, partial(type.__delattr__, kind, name))

    def _now(self, where: str, value: Any) -> Iterator[Change]:
        self.todo.clear()
        self.todo.append((where, value))
        while self.todo:
            yield from self.inside(*self.todo.popleft())

    def shadows(self, kind: type, example: Any) -> Iterator[Change]:
        """What a class may gain that comes before what its objects have."""
        where = f"class {kind.__qualname__}"
        for name, held in list(getattr(example, "__dict__", {}).items()):
            if name in self.watched.names and isinstance(held, (int, float, str, torch.Tensor)):
                for words, other in list(others(held))[:1]:
                    made = property(partial(_given, other))
                    yield Change(
                        f"{where}.{name}", f"a property: {words}", kind, partial(type.__setattr__, kind, name, made)
                    )
        yield Change(
            where, "gains __getattribute__", kind, partial(type.__setattr__, kind, "__getattribute__", _reading)
        )
        yield Change(where, "gains an attribute", kind, partial(type.__setattr__, kind, "extra", 1))
        for base in kind.__mro__[1:-1]:
            for name, held in list(vars(base).items()):
                if (
                    isinstance(held, types.FunctionType)
                    and held.__code__ in self.watched.codes
                    and name not in vars(kind)
                ):
                    made = altering(held)
                    make = partial(type.__setattr__, kind, name, made)
                    yield Change(f"{where}.{name}", "a method instead of the inherited one", kind, make)

    # -- globals

    def names(self) -> Iterator[Change]:
        for names, name in self.watched.globals:
            module = str(names.get("__name__", ""))
            if module.startswith("torch") or module.split(".")[0] in sys.stdlib_module_names - {"__main__"}:
                continue
            where = f"{module}.{name}"
            here = Name(names, name)
            value = names.get(name, ABSENT)
            if value is ABSENT:
                if is_ours(module) and hasattr(builtins, name) and not isinstance(getattr(builtins, name), type):
                    made = altering(getattr(builtins, name))
                    yield Change(where, "a builtin is hidden", here, partial(names.__setitem__, name, made))
                continue
            if isinstance(value, types.ModuleType):
                continue
            self.todo.append((where, value))
            for words, other in others(value):
                yield Change(where, words, here, partial(names.__setitem__, name, other))
            if is_ours(module):
                yield Change(where, "deleted", here, partial(names.pop, name))
        for module, name in self.watched.paths:
            value = vars(module).get(name)
            where = f"{module.__name__}.{name}"
            here = Name(vars(module), name)
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
                yield Change(
                    where,
                    "a function that gives other results",
                    here,
                    partial(put_name, vars(module), name, altering(value)),
                )
            elif isinstance(value, (int, float)):
                for words, other in list(others(value))[:2]:
                    yield Change(where, words, here, partial(put_name, vars(module), name, other))


def _as(original: Any, other: Any) -> Any:
    """A tensor that is to be put where a parameter was has to be one."""
    if not isinstance(original, nn.Parameter) or type(other) is not torch.Tensor:
        return other
    if not other.is_leaf or other.is_inference():
        return other
    return nn.Parameter(other.detach(), other.requires_grad)


def _turn(value: dict[Any, Any], key: Any) -> None:
    value[key] = value.pop(key)


def _exchange(value: Any, one: Any, other: Any) -> None:
    value[one], value[other] = value[other], value[one]


def train(module: nn.Module, mode: bool) -> Undo:
    modes = [(each, each.training) for each in module.modules()]
    module.train(mode)
    return Undo(lambda: [setattr(each, "training", mode) for each, mode in modes])


def freeze(parameters: list[nn.Parameter]) -> Undo:
    for each in parameters:
        each.requires_grad_(False)
    return Undo(lambda: [each.requires_grad_() for each in parameters])


def _given(other: Any, _: Any) -> Any:
    return other


def _reading(self: Any, name: str) -> Any:
    found = object.__getattribute__(self, name)
    return found + 1 if type(found) is int else found


def _other_code(*args: Any, **kwargs: Any) -> Any:
    return next((each for each in args if hasattr(each, "shape")), 7)


def _raising_code(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("this function was replaced")


def _recode(function: types.FunctionType, code: types.CodeType) -> None:
    function.__code__ = code


def _other_constants(code: types.CodeType) -> tuple[Any, ...] | None:
    """The constants of a function, one number among them changed."""
    for number, each in enumerate(code.co_consts):
        if type(each) in (int, float) and number > 0:
            return (*code.co_consts[:number], each + 1, *code.co_consts[number + 1 :])
    return None


def in_tensor(where: str, value: torch.Tensor) -> Iterator[Change]:
    """Changes to a tensor in place."""
    if value.is_floating_point():
        yield Change(where, "its values change", value, lambda: value.data.add_(0.5))
        yield Change(where, "its gradients flip", value, lambda: value.requires_grad_(not value.requires_grad))
        yield Change(where, "it has a gradient", value, lambda: setattr(value, "grad", torch.ones_like(value)))
        yield Change(where, "a hook on its gradient", value, partial(registered, lambda: value.register_hook(doubled)))
    elif value.dtype is not torch.bool:
        yield Change(where, "its values change", value, lambda: value.data.add_(1))
    else:
        yield Change(where, "its values change", value, lambda: value.data.logical_not_())
    for words, other in plain_tensors(value.detach()):
        if (isinstance(value, nn.Parameter) or value.requires_grad) and other.shape != value.shape:
            continue  # what accumulates its gradients keeps the shape that it has seen first
        if words not in ("an equal tensor", "other values"):
            yield Change(where, f"its data: {words}", value, partial(setattr, value, "data", other))
    yield Change(where, "an attribute more", value, lambda: setattr(value, "extra", 1))


def sampled(changes: list[Change], most: int | None, seed: int = 0) -> list[Change]:
    """So many of these changes: of every kind some, those of the rare kinds first."""
    if most is None or len(changes) <= most:
        return changes
    kinds: dict[str, list[Change]] = {}
    shuffled = list(changes)
    random.Random(seed).shuffle(shuffled)
    for each in shuffled:
        kinds.setdefault(each.what, []).append(each)
    chosen: list[Change] = []
    while len(chosen) < most:
        for kind in list(kinds):
            chosen.append(kinds[kind].pop())
            if not kinds[kind]:
                del kinds[kind]
    order = {id(each): number for number, each in enumerate(changes)}
    return sorted(chosen[:most], key=lambda each: order[id(each)])

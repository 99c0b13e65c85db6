"""The outside: whatever a segment did not make itself. What of it was read is guarded, what was changed is an effect.

An object of the outside has a `Source`. It gets one when it is first met (`touch`): its kind is guarded then, and a
`Snapshot` of its state is taken. Reading goes through the methods here, which guard what is read *as it was at the
start of the segment*; what the segment has written itself is not the outside's any more, and needs no guard. What the
snapshots and the objects differ by in the end is what the segment did to the outside (`rebuilding.py`).
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Iterable
from contextvars import ContextVar, Token
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth.frontend.bytecode import qualified
from torchsleuth.frontend.frames import ABSENT, Generator, Layout, Untouched
from torchsleuth.frontend.guards import Guards, Source, identity, is_constant
from torchsleuth.frontend.kinds import is_a

PINNED: Final = (
    type, FunctionType, ModuleType, CodeType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, BuiltinFunctionType,
    types.MethodWrapperType, functools._lru_cache_wrapper, property, staticmethod, classmethod, ContextVar,
    types.GenericAlias, types.UnionType,
)  # fmt: skip
"""Kinds of objects that programs do not make anew at each call: guarded by identity."""

_DEEPEST: Final = 60
RESET: Final = object()
"""Stands for the value that a context variable has had before."""
EVERYTHING: Final = object()
"""Stands for all places of a container."""
read = object.__getattribute__
"""Reads an attribute without calling anything of the user's (but its descriptors)."""


class Snapshot:
    """The state of an object when it was first met."""

    __slots__ = ("attributes", "content", "slots", "value")

    content: Any
    attributes: dict[str, Any] | None
    slots: dict[str, Any]

    def __init__(self, value: Any) -> None:
        self.value = value
        if type(value) is Generator:  # ours: what becomes of its frame is no matter of attributes
            self.content, self.attributes, self.slots = None, None, {}
            return
        self.content = content_of(value)
        attributes = attributes_of(value)
        self.attributes = None if attributes is None else dict(attributes)
        names = slots_of(type(value))
        self.slots = {name: slot_of(value, name) for name in names}


def content_of(value: Any) -> Any:
    """A copy of what a container holds (of a set, as keys in their order); None for what is not a container."""
    if is_a(value, collections.OrderedDict):
        return dict(collections.OrderedDict.items(value))
    if is_a(value, dict):
        return dict.copy(value)  # which asks no key for its hash
    if is_a(value, list):
        return list(list.__iter__(value))
    if is_a(value, collections.deque):
        return list(value)
    if type(value) in (set, frozenset):
        return dict.fromkeys(value)
    if is_a(value, (set, frozenset)):
        return dict.fromkeys(set.__iter__(value) if is_a(value, set) else frozenset.__iter__(value))
    if is_a(value, tuple):
        return value
    if type(value) is CellType:
        return cell_content(value)
    return None


def cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The instance dictionary, if there is one."""
    try:
        found = read(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: Any) -> tuple[str, ...]:
    """The names of the slots of a class that was written in Python."""
    found = []
    for each in kind.__mro__:
        if "__slots__" in each.__dict__ and each.__flags__ & (1 << 9):
            for name, member in each.__dict__.items():
                if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                    found.append(name)
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _native_base(kind: Any) -> Any:
    return next((each for each in kind.__mro__ if not _is_of_python(each)), object)


def native_base(kind: Any) -> Any:
    """The class of C code on which a class that was written in Python is built; a class of C code itself."""
    return _native_base(kind)


def _is_of_python(kind: Any) -> bool:
    return bool(kind.__flags__ & (1 << 9)) and not type(kind).__name__.startswith("pybind11")


def slots_of(kind: Any) -> tuple[str, ...]:
    """The names of the slots of a class that was written in Python."""
    return _slots_of(kind)


def slot_of(value: Any, name: str) -> Any:
    try:
        return read(value, name)
    except AttributeError:
        return ABSENT


class Outside:
    """What one segment knows of the outside."""

    def __init__(self, guards: Guards) -> None:
        self.guards = guards
        self.sources: dict[int, Source] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.tensors: dict[int, Source] = {}
        self._kinds: dict[int, type] = {}
        self.written: dict[int, dict[tuple[Any, bool], bool]] = {}
        """What was put where: (key, whether that is an attribute) of objects of the outside."""
        self.instance_dictionaries: dict[int, Any] = {}
        """Whose they are: what is put into them are attributes."""
        self._kept: list[Any] = []
        self._seen: dict[Any, Any] = {}
        self.contexts: dict[int, tuple[ContextVar[Any], Any]] = {}
        self.context_changes: dict[int, list[tuple[Any, Any]]] = {}
        """What was done to context variables, as far as it was not undone: (token, value) where one was set, (token,
        `RESET`) where it was reset by a token from before the segment."""
        self.tokens: dict[int, tuple[Any, ContextVar[Any]]] = {}
        """Tokens of the segment's own."""

    # -- meeting objects

    def touch(self, value: Any, source: Source) -> None:
        """`value` was read from the outside, where `source` says. Guards what has to hold for its kind."""
        if source.code in self._seen:
            return
        self._seen[source.code] = source
        self._kept.append(value)
        guards = self.guards
        if is_constant(value):
            guards.exactly(source.code, value, source.words)
            return
        kind = type(value)
        if is_a(value, torch.Tensor):
            self._touch_tensor(value, source)
            return
        if is_a(value, PINNED) and not self._by_structure(value, source):
            if source.code != guards.constant(value):
                guards.is_object(source.code, value, source.words)
            self.sources.setdefault(id(value), Source(guards.constant(value), source.words))
            return
        if kind is weakref.ref:
            guards.is_object(source.code, value, source.words)
            return
        known = self.sources.get(id(value))
        if known is not None:
            if known.code != source.code:
                guards.check(f"{source.code} is {known.code}", f"{source.words} is {known.words}")
            return
        here = self._variable(source)
        self.sources[id(value)] = here
        if source.code != _name_of(guards, value) or (attributes_of(value) is not None and kind.__flags__ & (1 << 9)):
            guards.check(
                f"type({here.code}) is {guards.constant(kind)}", f"{here.words} is a {kind.__qualname__}", here.code
            )
            self._class(kind)
        self.snapshots[id(value)] = Snapshot(value)
        if kind is FunctionType:
            guards.is_object(f"{here.code}.__code__", value.__code__, f"the code of {here.words}")
        elif kind is MethodType or (kind in (BuiltinFunctionType, types.MethodWrapperType)):
            if kind is not MethodType:
                guards.exactly(f"{here.code}.__name__", value.__name__, f"the name of {here.words}")
            else:
                self.touch(value.__func__, Source(f"{here.code}.__func__", f"{here.words}.__func__", here.live))
            self.touch(value.__self__, Source(f"{here.code}.__self__", f"{here.words}.__self__", here.live))
        elif kind is functools.partial:
            for part in ("func", "args", "keywords"):
                self.touch(getattr(value, part), Source(f"{here.code}.{part}", f"{here.words}.{part}", here.live))
        elif is_a(value, tuple):
            self.length(value)

    def _by_structure(self, value: Any, source: Source) -> bool:
        """Whether an object is likely to be made anew for each call: a closure, a method of some object."""
        if type(value) is FunctionType:
            return source.live and "<locals>" in qualified(value.__code__)
        if type(value) in (BuiltinFunctionType, types.MethodWrapperType):
            return not is_a(value.__self__, (ModuleType, type, type(None)))
        return False

    def _touch_tensor(self, value: torch.Tensor, source: Source) -> None:
        known = self.tensors.get(id(value))
        if known is not None:
            self.guards.check(f"{source.code} is {known.code}", f"{source.words} is {known.words}")
            return
        here = self._variable(source)
        self.tensors[id(value)] = here
        self._kinds[id(value)] = type(value)

    def tensor_fact(self, tensor: torch.Tensor, asked: str, answer: bool | int) -> None:
        """A tensor was asked what does not follow from its kind: `asked` (`.is_leaf`) behind its name gave `answer`."""
        here = self.tensors.get(id(tensor))
        if here is not None and self.once("fact", here.code, asked):
            self.guards.check(
                f"{here.code}{asked} == {answer!r}", f"{here.words}{asked} is {answer}", here.code + asked
            )

    def check_kinds(self, inputs: Iterable[torch.Tensor]) -> None:
        """Guards the classes of tensors that are no inputs of the graph; those of inputs are checked elsewhere."""
        checked = set(map(id, inputs))
        for key, here in self.tensors.items():
            if key not in checked:
                kind = self._kinds[key]
                self.guards.check(
                    f"type({here.code}) is {self.guards.constant(kind)}",
                    f"{here.words} is a {kind.__qualname__}",
                    here.code,
                )

    def store(self, module: torch.nn.Module, name: str) -> None:
        """The dict of parameters, buffers or modules was read. Whatever lies there is asked for its items alone."""
        value = (attributes_of(module) or {}).get(name)
        source = self.sources.get(id(module))
        if source is None or self.sources.get(id(value)) is not None or not is_a(value, dict):
            self.attribute(module, name)
            return
        before = self._before(module).attributes
        if before is None or before.get(name) is not value:
            return
        self._kept.append(value)
        code = f"{self.dictionary(module)}[{name!r}]"
        self._seen[code] = source
        self.sources[id(value)] = Source(self.guards.assign(code), f"{source.words}.{name}", source.live)
        self.snapshots[id(value)] = Snapshot(value)

    def _variable(self, source: Source) -> Source:
        code = source.code
        if not code.isidentifier():
            code = self.guards.assign(code)
        return Source(code, source.words, source.live)

    def root(self, value: Any, words: str) -> Source:
        """An object that the recording was made for: it is a constant, so nothing but its state has to be guarded."""
        source = Source(self.guards.constant(value), words)
        self.touch(value, source)
        return self.sources.get(id(value), source)

    def literal(self, value: Any) -> None:
        """A constant of some code: the very same object at each call."""
        if id(value) not in self.sources:
            self.sources[id(value)] = Source(self.guards.constant(value), "a constant of the code")
            self.snapshots[id(value)] = Snapshot(value)

    def source(self, value: Any) -> Source | None:
        """Where an object of the outside lies; None for what the segment made itself."""
        return self.sources.get(id(value)) or self.tensors.get(id(value))

    def is_ours(self, value: Any) -> bool:
        """Whether the segment made this object (or it is a constant)."""
        return id(value) not in self.sources and id(value) not in self.tensors

    def once(self, *key: Any) -> bool:
        """True the first time that it is asked with this key."""
        if key in self._seen:
            return False
        self._seen[key] = True
        return True

    def states(self) -> list[Any]:
        """What the objects hold that have been met, by identity: equal as long as nothing has changed in them."""
        return [_parts_of(Snapshot(each.value)) for each in self.snapshots.values()]

    def has_changed(self) -> bool:
        """Whether any object that has been met holds something else than it did then."""
        return any(_parts_of(Snapshot(each.value)) != _parts_of(each) for each in self.snapshots.values())

    # -- reading

    def _before(self, value: Any) -> Snapshot:
        """The state of an object of the outside when it was first met."""
        found = self.snapshots.get(id(value))
        if found is None:
            found = self.snapshots[id(value)] = Snapshot(value)
        return found

    def length(self, value: Any) -> None:
        """The number of elements was read."""
        source = self.sources.get(id(value))
        if source is None or not self.once("length", source.code):
            return
        content = self._before(value).content
        if content is not None and content is not ABSENT:
            self.guards.check(
                f"len({source.code}) == {len(content)}",
                f"the length of {source.words} is {len(content)}",
                f"len({source.code})",
            )

    def truth(self, value: Any, answer: bool) -> None:
        """It was asked whether an object of C code is true. (Of containers of Python's own, the length tells that.)"""
        source = self.sources.get(id(value))
        if source is not None and content_of(value) is None and self.once("truth", source.code):
            self.guards.check(f"bool({source.code}) is {answer}", f"{source.words} is {'true' if answer else 'false'}")

    def item(self, value: Any, index: int) -> None:
        """The element at an index of a list, a tuple or a deque was read."""
        source = self.sources.get(id(value))
        if source is None:
            return
        content = self._before(value).content
        size = len(content)
        if not -size <= index < size:
            self.length(value)
            return
        now = value[index] if -len(value) <= index < len(value) else ABSENT
        if now is not content[index]:
            self.length(value)  # what is read was written here, at a place that depends on the length
            return
        if index < 0 or len(value) != size:
            self.length(value)
            index %= size
        self.touch(content[index], Source(f"{source.code}[{index}]", f"{source.words}[{index}]", source.live))

    def key(self, value: Any, key: Any) -> None:
        """One key of a dict was looked up."""
        source = self.sources.get(id(value))
        if source is None:
            return
        content = self._before(value).content
        self.key_in(source, content, key, exact=type(value) is dict)

    def key_in(self, source: Source, content: dict[Any, Any], key: Any, *, exact: bool = True) -> None:
        written = self._key(key)
        if key not in content:
            if self.once("absent", source.code, written):
                self.guards.check(
                    f"{written} not in {source.code}",
                    f"{source.words} has no {key!r}" if is_constant(key) else f"{source.words} lacks a key",
                )
            return
        words = f"{source.words}[{key!r}]" if is_constant(key) else f"a value of {source.words}"
        code = f"{source.code}[{written}]" if exact else f"dict.get({source.code}, {written}, ABSENT)"
        self.touch(content[key], Source(code, words, source.live))

    def _key(self, key: Any) -> str:
        """A key in the generated code. An object of the outside is the one that lies there then."""
        source = self.sources.get(id(key))
        return source.code if source is not None else self.guards.literal(key)

    def element_source(self, value: Any, key: Any, element: Any) -> Source | None:
        """Where an element of a container of the outside lies that is still as it was; None if it is ours."""
        source = self.sources.get(id(value))
        if source is None:
            return None
        content = self._before(value).content
        there = content.get(key, ABSENT) if is_a(content, dict) else content[key]
        if there is not element:
            return None
        return Source(f"{source.code}[{self._key(key)}]", f"{source.words}[{key!r}]", source.live)

    def deep_keys(self, value: dict[Any, Any]) -> None:
        """The keys of a dict were read, and nothing of its values."""
        source = self.sources.get(id(value))
        if source is None or not self.once("keys", source.code):
            return
        keys = list(self._before(value).content)
        if not keys:
            self.length(value)
        else:
            self.guards.check(
                f"SAME_KEYS({source.code}, {self.guards.constant(keys)})",
                f"the keys of {source.words} are {keys!r}"[:120],
            )

    def membership(self, value: Any, element: Any) -> None:
        """Whether a set holds something was asked."""
        source = self.sources.get(id(value))
        if source is None:
            return
        written = self._key(element)
        is_in = element in self._before(value).content
        if self.once("member", source.code, written):
            self.guards.check(
                f"{written} {'in' if is_in else 'not in'} {source.code}",
                f"{source.words} {'holds' if is_in else 'does not hold'} {element!r}"[:120],
            )

    def shallow(self, value: Any) -> None:
        """All elements of a container were read, but not what they hold."""
        source = self.sources.get(id(value))
        if source is None or not self.once("shallow", source.code):
            return
        content = self._before(value).content
        if is_a(value, dict):
            keys = list(content)
            if all(map(is_constant, keys)):
                self.guards.check(
                    f"EXACTLY(tuple({_keys_of(value)}({source.code})), {self.guards.constant(tuple(keys))})",
                    f"the keys of {source.words} are {keys!r}"[:120],
                    f"list({source.code})",
                ) if keys else self.length(value)
            else:
                self.length(value)
                for key in keys:
                    self.pin(key)
                self.guards.check(
                    f"SAME_KEYS({source.code}, {self.guards.constant(keys)})", f"{source.words} has the same keys"
                )
            for key in keys:
                self.key_in(source, content, key, exact=type(value) is dict)
        elif is_a(value, (list, tuple, collections.deque)):
            self.length(value)
            for number, each in enumerate(content):
                self.touch(each, Source(f"{source.code}[{number}]", f"{source.words}[{number}]", source.live))
        elif is_a(value, (set, frozenset)):
            self.length(value)
            self.guards.check(
                f"SAME_KEYS({source.code}, {self.guards.constant(list(content))})",
                f"{source.words} has the same elements, in the same order",
            )
            for each in content:
                if not is_constant(each):
                    self._kept.append(each)

    def deep(self, value: Any, depth: int = 0) -> None:
        """Something that we do not see into reads all of it, and may compare it: by content, or by identity."""
        if is_constant(value) or is_a(value, torch.Tensor):
            return
        if depth > _DEEPEST:
            self.guards.check("False", "nothing is nested too deep to be looked at")
            return
        source = self.sources.get(id(value))
        if is_a(value, (list, tuple, set, frozenset, collections.deque, dict)):
            if source is not None:
                if not self.once("deep", source.code):
                    return
                self.shallow(value)
            elif ("deep", id(value)) in self._seen:
                return
            elif depth:
                self._seen["deep", id(value)] = value
            for each in list(dict.values(value)) + list(dict.keys(value)) if is_a(value, dict) else list(value):
                self.deep(each, depth + 1)
        elif type(value) is types.SimpleNamespace:
            if source is not None and not self.once("deep", source.code):
                return
            self.all_attributes(value)
            for each in list(vars(value).values()):
                self.deep(each, depth + 1)
        elif source is not None:
            self.pin(value)

    def pin(self, value: Any) -> None:
        """It matters which object it is."""
        source = self.sources.get(id(value))
        if source is not None and source.code != _name_of(self.guards, value) and self.once("pin", source.code):
            self.guards.is_object(source.code, value, source.words)

    def same(self, a: Any, b: Any) -> None:
        """It was asked whether two objects are one."""
        one, other = self.source(a), self.source(b)
        if one is None or other is None or one.code == other.code:
            return
        relation = "is" if a is b else "is not"
        if self.once("same", one.code, other.code):
            self.guards.check(f"{one.code} {relation} {other.code}", f"{one.words} {relation} {other.words}")

    # -- attributes

    def dictionary(self, value: Any) -> str | None:
        """A variable with the instance dictionary of an object of the outside."""
        source = self.sources.get(id(value))
        if source is None:
            return None
        found: str | None = self._seen.get(("dictionary", source.code))
        if found is None:
            plain = lookup(type(value), "__getattribute__") is lookup(object, "__getattribute__") or is_a(
                value, torch.nn.Module
            )
            code = f"{source.code}.__dict__" if plain else f"READ({source.code}, '__dict__')"
            found = self._seen["dictionary", source.code] = self.guards.assign(code)
        return found

    def instance_dictionary(self, owner: Any, inside: dict[str, Any]) -> None:
        """The instance dictionary of an object is used as such: from now on it is an object of the outside, too."""
        source = self.sources.get(id(owner))
        code = self.dictionary(owner)
        if source is None or code is None or id(inside) in self.sources:
            return
        self._kept.append(inside)
        self.sources[id(inside)] = Source(code, f"{source.words}.__dict__", source.live)
        snapshot = self.snapshots[id(inside)] = Snapshot(inside)
        snapshot.content = dict(self._before(owner).attributes or {})
        self.instance_dictionaries[id(inside)] = owner

    def attribute(self, value: Any, name: str) -> None:
        """An attribute was read from the instance dictionary (or looked for there, in vain)."""
        tensor = self.tensors.get(id(value))
        if tensor is not None:
            found = attributes_of(value) or {}
            if name in found:
                self.touch(
                    found[name], Source(f"{tensor.code}.__dict__[{name!r}]", f"{tensor.words}.{name}", tensor.live)
                )
            elif self.once("no attribute", tensor.code, name):
                self.guards.check(f"{name!r} not in {tensor.code}.__dict__", f"{tensor.words} has no {name} of its own")
            return
        source = self.sources.get(id(value))
        if source is None:
            return
        before = self._before(value).attributes
        now = attributes_of(value)
        if before is None or now is None:
            return
        if name in before:
            if now.get(name, ABSENT) is before[name]:
                self.touch(
                    before[name], Source(f"{self.dictionary(value)}[{name!r}]", f"{source.words}.{name}", source.live)
                )
        elif name not in now and self.once("no attribute", source.code, name):
            self.guards.check(f"{name!r} not in {self.dictionary(value)}", f"{source.words} has no {name} of its own")

    def all_attributes(self, value: Any) -> None:
        """All attributes that an object has were read."""
        code = self.dictionary(value)
        before = None if code is None else self._before(value).attributes
        if code is None or before is None or not self.once("all attributes", code):
            return
        names = list(before)
        self.guards.check(
            f"list({code}) == {self.guards.constant(names)}", f"{self.sources[id(value)].words} has the same attributes"
        )
        for name in names:
            self.attribute(value, name)

    def slot(self, value: Any, name: str) -> None:
        """A slot of an object was read."""
        source = self.sources.get(id(value))
        if source is None:
            return
        before = self._before(value).slots.get(name, ABSENT)
        if slot_of(value, name) is before and before is not ABSENT:
            self.touch(before, Source(f"READ({source.code}, {name!r})", f"{source.words}.{name}", source.live))
        elif before is ABSENT and self.once("no slot", source.code, name):
            self.guards.check(f"SLOT({source.code}, {name!r}) is ABSENT", f"{source.words} has no {name}")

    def cell(self, cell: CellType) -> None:
        """The content of a cell was read."""
        source = self.sources.get(id(cell))
        if source is None:
            return
        before = self._before(cell).content
        if before is ABSENT:
            if self.once("empty", source.code):
                self.guards.check(f"CELL({source.code}) is ABSENT", f"{source.words} is not set")
        elif cell_content(cell) is before:
            self.touch(before, Source(f"{source.code}.cell_contents", source.words, source.live))

    def global_(self, namespace: dict[str, Any], name: str) -> None:
        """A name was looked up in the globals of a function."""
        source = self._globals(namespace)
        before = self.snapshots[id(namespace)].content if id(namespace) in self.snapshots else namespace
        if name in before and name in namespace and namespace[name] is not before[name]:
            return
        if name in before:
            self.touch(before[name], Source(f"{source.code}[{name!r}]", name))
        elif name not in namespace and self.once("no global", source.code, name):
            self.guards.check(f"{name!r} not in {source.code}", f"there is no global {name}")

    def _globals(self, namespace: dict[str, Any]) -> Source:
        """Globals are not copied until they are written to: there are many of them."""
        found = self.sources.get(id(namespace))
        if found is None:
            name = str(namespace.get("__name__", "a module"))
            found = self.sources[id(namespace)] = Source(self.guards.constant(namespace), f"the globals of {name}")
            self._kept.append(namespace)
        return found

    def writes_global(self, namespace: dict[str, Any]) -> None:
        """The globals of a function are about to be written to."""
        self._globals(namespace)
        if id(namespace) not in self.snapshots:
            self.snapshots[id(namespace)] = Snapshot(namespace)

    def writes(self, value: Any) -> None:
        """An object is about to be changed, of which perhaps nothing but its identity was of interest."""
        if id(value) in self.sources and id(value) not in self.snapshots:
            self.snapshots[id(value)] = Snapshot(value)

    def wrote(self, value: Any, key: Any, *, attribute: bool = False) -> None:
        """Something is about to be put somewhere. Even if it is what lies there already: later it may not be."""
        if id(value) in self.sources:
            self._before(value)
            self.written.setdefault(id(value), {})[key, attribute] = True

    def was_written(self, value: Any, key: Any, *, attribute: bool = False) -> bool:
        if (key, attribute) in self.written.get(id(value), ()):
            return True
        return attribute and (key, False) in self.written.get(id(attributes_of(value)), ())

    def module_attribute(self, module: ModuleType, name: str) -> None:
        """A name was read from a module."""
        self.global_(module.__dict__, name)

    def field(self, value: Any, name: str, found: Any) -> None:
        """Something that Python's own objects know of themselves was read (`__defaults__` of a function)."""
        source = self.sources.get(id(value))
        if source is not None:
            self.touch(found, Source(f"{source.code}.{name}", f"{source.words}.{name}", source.live))

    def function_attribute(self, value: FunctionType, name: str) -> None:
        """An attribute that somebody has given to a function was read."""
        self.writes(value)
        self.attribute(value, name)

    def class_field(self, kind: type, name: str, found: Any) -> None:
        """Something that a class knows of itself was read (`__name__`)."""
        code = self.guards.constant(kind)
        self.touch(found, Source(f"{code}.{name}", f"{kind.__qualname__}.{name}"))

    def pinned_tensor(self, value: torch.Tensor) -> None:
        """A tensor that lies at a place of which it is guarded already that it does not change."""
        self.touch(value, Source(self.guards.constant(value), "a tensor of a class"))

    def function(self, value: FunctionType) -> Source | None:
        """A function of the outside is interpreted: its code has to be the same."""
        source = self.sources.get(id(value))
        if source is not None and self.once("code", source.code) and id(value) not in self.snapshots:
            self.guards.is_object(f"{source.code}.__code__", value.__code__, f"the code of {source.words}")
        return source

    def class_attribute(self, kind: type, name: str, found: Any) -> None:
        """A name was looked up in a class and those it inherits from."""
        if not kind.__flags__ & (1 << 9) or not self.once("class", kind, name):
            return
        code = self.guards.constant(kind)
        words = f"{kind.__qualname__}.{name}"
        if (
            type(found) in (FunctionType, property, types.MemberDescriptorType)
            and type(kind) is type
            and name.isidentifier()
        ):
            self.guards.check(
                f"{code}.{name} is {self.guards.constant(found)}", f"{words} is the same {type(found).__name__}"
            )
        elif type(found) is staticmethod and type(kind) is type and name.isidentifier():
            self.guards.check(
                f"{code}.{name} is {self.guards.constant(found.__func__)}", f"{words} is the same function"
            )
        elif found is not ABSENT:
            self.guards.check(f"LOOKUP({code}, {name!r}) is {self.guards.constant(found)}", f"{words} is the same")
        self._class(kind)

    def no_attribute(self, kind: type, name: str) -> None:
        """Instances of a class were found to have no such attribute."""
        if self.once("no attribute", kind, name):
            self.guards.check(
                f"not hasattr({self.guards.constant(kind)}, {name!r})", f"{kind.__qualname__} has no {name}"
            )

    def _class(self, kind: type) -> None:
        """No attribute was added to a class or taken away. torch's own are not watched: Dynamo adds some to modules."""
        if kind.__flags__ & (1 << 9) and not kind.__module__.startswith("torch.") and self.once("bases", kind):
            code = self.guards.constant(kind)
            self.guards.check(
                f"{code}.__mro__ is {self.guards.constant(kind.__mro__)}", f"{kind.__qualname__} inherits from the same"
            )
        for each in kind.__mro__:
            if each.__module__.startswith("torch.") or not each.__flags__ & (1 << 9) or each.__flags__ & (1 << 8):
                continue
            if self.once("class size", each):
                code, names = self.guards.constant(each), each.__dict__
                self.guards.check(
                    f"len(d := {code}.__dict__) == {len(names)} and next(reversed(d)) == {next(reversed(names))!r}",
                    f"the class {each.__qualname__} has the same attributes",
                )

    def context(self, variable: ContextVar[Any]) -> None:
        """A context variable was read or is about to be set."""
        if id(variable) not in self.contexts:
            before = variable.get(ABSENT)
            self.contexts[id(variable)] = (variable, before)
            code = f"{self.guards.constant(variable)}.get(ABSENT)"
            if before is ABSENT:
                self.guards.check(f"{code} is ABSENT", f"the context variable {variable.name} is not set")
            else:
                self.touch(before, Source(code, f"the context variable {variable.name}", live=True))

    def context_read(self, variable: ContextVar[Any]) -> None:
        """A context variable is read. If a token from before has reset it, that knows what is there now."""
        changes = self.context_changes.get(id(variable))
        if not changes:
            return
        token, value = changes[-1]
        source = self.sources.get(id(token))
        if value is not RESET or source is None:
            return
        code, words = f"{source.code}.old_value", f"what the context variable {variable.name} was before"
        if token.old_value is Token.MISSING:
            self.guards.check(f"{code} is {self.guards.constant(Token.MISSING)}", f"{words} is nothing")
        else:
            self.touch(token.old_value, Source(code, words, live=True))

    def context_set(self, variable: ContextVar[Any], token: Any, value: Any) -> None:
        self.tokens[id(token)] = (token, variable)
        self.context_changes.setdefault(id(variable), []).append((token, value))

    def context_reset(self, variable: ContextVar[Any], token: Any) -> None:
        """By a token of the segment's own, all is as if the variable had not been set, nor what was done since."""
        changes = self.context_changes.setdefault(id(variable), [])
        if id(token) not in self.tokens:
            changes.append((token, RESET))
            return
        at = next((number for number, (each, _) in enumerate(changes) if each is token), None)
        if at is not None:
            del changes[at:]
        else:  # one that was set before has been reset in the meantime
            changes.append((None, variable.get(ABSENT)))

    # -- the frames that a segment begins with

    def arrive(self, layout: Layout, live: list[Any]) -> list[Any]:
        """The live values with which frames of this layout begin: locals and operands are `Untouched` as yet."""
        arrived = list(live)

        def touched(slot: int, words: str) -> None:
            self.touch(live[slot], Source(f"L[{slot}]", words, live=True))

        for frame in layout:
            for name, slot in frame.locals:
                arrived[slot] = Untouched(Source(f"L[{slot}]", name, live=True), live[slot])
            for name, slot in frame.cells:
                touched(slot, name)
            if isinstance(frame.outcome, int):
                touched(frame.outcome, "an object under construction")
            if frame.generator is not None:
                touched(frame.generator, f"the generator {frame.code.co_name}")
            for each in frame.stack:
                if each is not None and each < 0:
                    touched(-1 - each, "the exception that is handled")
                elif each is not None:
                    arrived[each] = Untouched(Source(f"L[{each}]", "the result of a break", live=True), live[each])
        return arrived

    def settle(self, value: Any) -> Any:
        """Somebody looks at a value: from now on it is guarded."""
        if type(value) is Untouched:
            self.touch(value.value, value.source)
            return value.value
        return value


def _name_of(guards: Guards, value: Any) -> str:
    number = guards._numbers.get(id(value))
    return f"K{number}" if number is not None else ""


def _parts_of(state: Snapshot) -> Any:
    """The parts of a state, by their ids."""
    content = state.content
    if is_a(content, dict):
        content = [*map(id, content), *map(id, content.values())]
    elif is_a(content, (list, tuple)):
        content = [*map(id, content)]
    else:
        content = id(content)
    held = [state.attributes or {}, state.slots]
    return content, [(name, id(each)) for part in held for name, each in part.items()]


def lookup(kind: type, name: str) -> Any:
    """What a class or one that it inherits from has under that name, as it is; ABSENT if none does."""
    for each in kind.__mro__:
        if name in each.__dict__:
            return each.__dict__[name]
    return ABSENT


def _keys_of(value: Any) -> str:
    return "OrderedDict.keys" if is_a(value, collections.OrderedDict) else "dict.keys"


def same_keys(found: Any, keys: list[Any]) -> bool:
    """Whether a dict or a set has these keys in this order: the same constants, or the same objects."""
    return list(map(identity, found)) == list(map(identity, keys))

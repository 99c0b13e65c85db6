"""What a cached call has to make anew, as code: the values that live on, and what was done to the outside.

While a segment is recorded everything happens for real. A later call runs the compiled graph instead, and then this
code: it builds the live values from the graph's outputs, from the outside and from constants, and repeats the effects.
Effects are what the snapshots of the outside differ by from what is there now; nobody had to note them down.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
import weakref
from contextvars import ContextVar
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import fx

from torchsleuth.frontend import tracebacks
from torchsleuth.frontend.bytecode import GROUPS, qualified
from torchsleuth.frontend.frames import ABSENT, Generator, Untouched
from torchsleuth.frontend.generators import HandedOver
from torchsleuth.frontend.guards import identity, is_constant
from torchsleuth.frontend.iterating import ITERATORS, VIEWS, dict_of
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import Machine
from torchsleuth.frontend.outside import (
    EVERYTHING,
    PINNED,
    RESET,
    Snapshot,
    attributes_of,
    cell_content,
    content_of,
    slot_of,
    slots_of,
)
from torchsleuth.frontend.positions import dict_of_iterator, is_over_dict, made_again
from torchsleuth.frontend.symbolic import Symbolic

BASES: Final = (
    collections.OrderedDict,
    collections.defaultdict,
    dict,
    list,
    set,
    frozenset,
    tuple,
    int,
    float,
    str,
    bytes,
)


_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None))
"""Equal ones are one: which of them it is does not matter, and ids say nothing."""


_OF_EXCEPTIONS: Final = (
    "name", "obj", "path", "code", "errno", "strerror", "filename", "filename2", "encoding", "object", "start", "end",
    "reason", "msg", "lineno", "offset", "text", "print_file_and_line", "end_lineno", "end_offset",
)  # fmt: skip
"""What Python's own exceptions have besides `args`."""


class CannotRebuild(Exception):
    """There is no way to make this value anew in a later call."""


class Rebuilder:
    """Writes the code for one segment. `outputs`: the nodes whose values it needs, `o0`, `o1`, …"""

    def __init__(self, machine: Machine, handed_over: HandedOver) -> None:
        self.machine = machine
        self.handed_over = handed_over
        self.recorder = machine.recorder
        self.outside = machine.outside
        self.guards = machine.outside.guards
        self.outputs: list[fx.Node] = []
        self.body: list[str] = []
        self.effects: list[str] = []
        self.last: list[str] = []
        self._written: dict[int, str] = {}
        self._kept: list[Any] = []
        self._mutated: list[Any] = []
        self._cells: list[tuple[str, CellType]] = []

    # -- values

    def value(self, value: Any) -> str:
        """An expression for this value."""
        if type(value) is Untouched:
            return str(value.source.code)
        known = self._written.get(id(value))
        if known is not None:
            return known
        self._kept.append(value)
        if type(value) is Symbolic:
            return self._output(value.node())
        if is_a(value, torch.Tensor):
            return self._tensor(value)
        source = self.outside.sources.get(id(value))
        if source is not None and type(value) not in _ATOMS:
            return source.code
        if is_constant(value) and not is_a(value, tuple):
            return self.guards.literal(value)
        if value is ABSENT:
            return "ABSENT"
        return self._object(value)

    def _bound(self, value: Any) -> str:
        """A method of C code, bound to an object: that of the class that has it, whatever its heirs call so."""
        me, name = value.__self__, value.__name__
        for kind in type(me).__mro__:
            found: Any = kind.__dict__.get(name)
            is_native = is_a(found, (types.MethodDescriptorType, types.WrapperDescriptorType))
            if is_native and found.__get__(me) == value:
                return self._make(value, f"{self.guards.constant(found)}.__get__({self.value(me)})")
        raise CannotRebuild(f"{name}() of a {type(me).__qualname__}")

    def _output(self, node: fx.Node) -> str:
        if node not in self.outputs:
            self.outputs.append(node)
        return f"o{self.outputs.index(node)}"

    def _tensor(self, value: torch.Tensor) -> str:
        source = self.outside.tensors.get(id(value))
        if source is not None:
            return source.code
        if not self.recorder.knows(value):
            raise CannotRebuild("a tensor that came from nowhere")
        name = self._written[id(value)] = self._output(self.recorder.node(value))
        for attribute, each in (attributes_of(value) or {}).items():
            self.body.append(f"{name}.{attribute} = {self.value(each)}")
        return name

    def _make(self, value: Any, code: str) -> str:
        """A variable that holds what `code` makes; everybody who holds `value` refers to it."""
        name = f"v{len(self._written)}_{len(self.body)}"
        self.body.append(f"{name} = {code}")
        self._written[id(value)] = name
        return name

    def _items(self, values: Any) -> str:
        return "".join(f"{self.value(each)}, " for each in values)

    def _object(self, value: Any) -> str:
        kind = type(value)
        constant = self.guards.constant
        if kind is FunctionType and id(value) in self.machine.made:
            return self._function(value)
        if kind in (BuiltinFunctionType, types.MethodWrapperType) and not is_a(
            value.__self__, (ModuleType, type, type(None))
        ):
            return self._bound(value)
        if is_a(value, PINNED):
            return constant(value)
        if kind is tuple or kind is torch.Size:
            inside = self._items(self._held(value, value))
            return self._make(value, f"({inside})" if kind is tuple else f"{constant(kind)}(({inside}))")
        if kind is list:
            name = self._make(value, "[]")
            if value:
                self.body.append(f"{name}.extend(({self._items(self._held(value, value))}))")
            return name
        if kind is dict:
            name = self._make(value, "{}")
            for key, each in zip(value, self._held(value, value.values()), strict=True):
                self.body.append(f"{name}[{self.value(key)}] = {self.value(each)}")
            return name
        if kind in (set, frozenset):
            return self._make(value, f"{kind.__name__}(({self._items(value)}))")
        if kind is slice:
            return self._make(value, f"slice({self._items((value.start, value.stop, value.step))})")
        if kind is CellType:
            name = self._make(value, "CellType()")
            self._cells.append((name, value))
            return name
        if kind is MethodType:
            return self._make(value, f"MethodType({self.value(value.__func__)}, {self.value(value.__self__)})")
        if kind is functools.partial:
            keywords = self.value(value.keywords)
            name = self._make(value, f"partial({self.value(value.func)}, *({self._items(value.args)}), **{keywords})")
            for attribute, each in value.__dict__.items():
                self.body.append(f"{name}.__dict__[{attribute!r}] = {self.value(each)}")
            return name
        if kind is super:
            if value.__self__ is None:
                raise CannotRebuild("an unbound super()")
            return self._make(value, f"super({self.value(value.__thisclass__)}, {self.value(value.__self__)})")
        if is_a(value, (Generator, types.GeneratorType)):
            return self._generator(value)
        if kind in VIEWS:
            which = {VIEWS[0]: "keys", VIEWS[1]: "values", VIEWS[2]: "items"}[kind]
            return self._make(value, f"{self.value(dict_of(value))}.{which}()")
        if kind in ITERATORS:
            return self._iterator(value)
        if kind in (operator.attrgetter, operator.itemgetter, operator.methodcaller):
            return self._make(value, f"{constant(kind)}(*({self._items(value.__reduce__()[1])}))")
        if id(value) in self.outside.tokens:
            self._context(self.outside.tokens[id(value)][1])
            if id(value) not in self._written:
                raise CannotRebuild("a token of a context variable that was used")
            return self._written[id(value)]
        if kind.__module__ == "torch.return_types":
            return self._make(value, f"{constant(kind)}(({self._items(value)}))")
        if kind is weakref.ref and value.__callback__ is None:
            return self._make(value, f"{constant(kind)}({self.value(value())})")
        if is_a(value, BaseException):
            return self._exception(value)
        if is_a(value, types.TracebackType):
            return self.guards.constant(tracebacks.that_holds_nothing(value))
        return self._instance(value)

    def _held(self, container: Any, values: Any) -> Any:
        """What a container holds; of the one that goes to the user, what nobody has looked at as that."""
        made, held = self.machine.handed_on
        return held if made is container else values

    def _function(self, value: FunctionType) -> str:
        constant = self.guards.constant
        closure = f"({self._items(value.__closure__)})" if value.__closure__ else "None"
        code, namespace = constant(value.__code__), constant(value.__globals__)
        name = self._make(value, f"FunctionType({code}, {namespace}, {value.__code__.co_name!r}, None, {closure})")
        for attribute, each in value.__dict__.items():
            self.body.append(f"{name}.__dict__[{attribute!r}] = {self.value(each)}")
        for attribute in ("__kwdefaults__", "__annotations__"):
            each = getattr(value, attribute)
            if each:
                self.body.append(f"{name}.{attribute} = {self.value(each)}")
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            each = getattr(value, attribute)
            plain = {"__name__": value.__code__.co_name, "__qualname__": qualified(value.__code__)}
            if (attribute in plain and each != plain[attribute]) or (
                attribute == "__module__" and each != value.__globals__.get("__name__")
            ):
                self.body.append(f"{name}.{attribute} = {self.value(each)}")
        if value.__defaults__:
            self.body.append(f"{name}.__defaults__ = {self.value(value.__defaults__)}")
        return name

    def _fill_cells(self) -> None:
        """What new cells hold. Last of all: it may be the very function whose cell it is."""
        for name, cell in self._cells:
            if cell_content(cell) is not ABSENT:
                self.body.append(f"{name}.cell_contents = {self.value(cell.cell_contents)}")

    def _generator(self, value: Any) -> str:
        if type(value) is Generator and any(frame.generator is value for frame in self.machine.frames):
            return self._make(value, "AT_WORK()")  # its frame is among those that go on
        made = self.handed_over.made.get(id(value))
        if made is None:
            raise CannotRebuild("a generator that goes on natively")
        _, layout, live = made
        name = self._make(value, "None")
        self.body.append(f"{name} = REAL_GENERATOR({self.guards.constant(layout)}, [{self._items(live)}])")
        return name

    def _iterator(self, value: Any) -> str:
        if is_over_dict(value):
            self._must_be_as_before(dict_of_iterator(value))
            try:
                code = made_again(value, self.value)
            except ValueError as reason:
                raise CannotRebuild(str(reason)) from None
            return self._make(value, code or "iter(())")
        try:
            reduced = value.__reduce__()
        except TypeError:
            raise CannotRebuild(f"a {type(value).__qualname__}") from None
        self._kept.append(reduced)
        name = self._make(value, "None")
        made = f"{self.guards.constant(reduced[0])}({self._items(reduced[1])})"
        self.body.append(f"{name} = {made}")
        for each in reduced[1]:
            if is_a(each, collections.deque):
                self._must_be_as_before(each)
        if len(reduced) > 2 and reduced[2] is not None:
            # Behind the effects: a list that has grown has to have done so before its iterator can stand in it.
            self.last.append(f"{name}.__setstate__({self.value(reduced[2])})")
        return name

    def _must_be_as_before(self, container: Any) -> None:
        """An iterator over it is made before the effects: they must not change what it stands in."""
        snapshot = self.outside.snapshots.get(id(container))
        if snapshot is not None and list(snapshot.content) != list(content_of(container)):
            raise CannotRebuild("an iterator over a container that has changed")

    def _exception(self, value: BaseException) -> str:
        kind = type(value)
        constant = self.guards.constant
        python = type(kind.__init__) is FunctionType or type(kind.__new__) is FunctionType
        if isinstance(value, GROUPS[0]):
            name = self._make(value, f"{constant(kind)}({value.message!r}, [{self._items(value.exceptions)}])")
        elif python:
            name = self._make(value, f"{constant(kind)}.__new__({constant(kind)})")
            self.body.append(f"{name}.args = {self.value(value.args)}")
        else:
            name = self._make(value, f"{constant(kind)}(*({self._items(value.args)}))")
        for attribute in _OF_EXCEPTIONS:
            if attribute not in value.__dict__ and getattr(value, attribute, None) is not None:
                self.body.append(f"{name}.{attribute} = {self.value(getattr(value, attribute))}")
        for attribute in ("__cause__", "__context__"):
            each = getattr(value, attribute)
            if each is not None:
                self.body.append(f"{name}.{attribute} = {self.value(each)}")
        if value.__traceback__ is not None:
            self.body.append(f"{name}.__traceback__ = {self.value(value.__traceback__)}")
        if value.__suppress_context__ or value.__cause__ is not None:
            self.body.append(f"{name}.__suppress_context__ = {value.__suppress_context__!r}")
        for attribute, each in value.__dict__.items():
            self.body.append(f"{name}.__dict__[{attribute!r}] = {self.value(each)}")
        return name

    def _instance(self, value: Any) -> str:
        """An object of a class that was written in Python, or of a container's class: from its state."""
        kind = type(value)
        constant = self.guards.constant
        base = next((each for each in BASES if is_a(value, each)), object)
        attributes, slots = attributes_of(value), slots_of(kind)
        asked: Any = (kind, base)
        if not _is_made_plainly(*asked):
            raise CannotRebuild(f"a {kind.__module__}.{kind.__qualname__}")
        if base in (tuple, frozenset, int, float, str, bytes):
            content_type: Any = base
            plain: Any = content_type(value) if base is not tuple else tuple(tuple.__iter__(value))
            self._kept.append(plain)
            name = self._make(value, f"{base.__name__}.__new__({constant(kind)}, {self.value(plain)})")
        elif base is collections.defaultdict:
            name = self._make(value, f"{constant(kind)}.__new__({constant(kind)})")
            self.body.append(f"{name}.default_factory = {self.value(value.default_factory)}")
        elif kind is types.SimpleNamespace:
            name = self._make(value, f"{constant(kind)}()")
        elif kind is collections.deque:
            name = self._make(value, f"{constant(kind)}((), {value.maxlen!r})")
            self.body.append(f"{name}.extend(({self._items(value)}))")
        else:
            name = self._make(value, f"{constant(base)}.__new__({constant(kind)})")
        if is_a(value, dict):
            how = f"{constant(collections.OrderedDict if base is collections.OrderedDict else dict)}.__setitem__"
            for key in list(base.__iter__(value)):  # type: ignore[attr-defined]
                self.body.append(f"{how}({name}, {self.value(key)}, {self.value(dict.__getitem__(value, key))})")
        elif base is list:
            self.body.append(f"list.extend({name}, ({self._items(list.__iter__(value))}))")
        elif base is set:
            self.body.append(f"set.update({name}, ({self._items(set.__iter__(value))}))")
        if attributes:
            held = f"READ({name}, '__dict__')"
            for attribute, each in attributes.items():
                self.body.append(f"{held}[{attribute!r}] = {self.value(each)}")
        for slot in slots:
            each = slot_of(value, slot)
            if each is not ABSENT:
                self.body.append(f"object.__setattr__({name}, {slot!r}, {self.value(each)})")
        return name

    # -- effects

    def all_effects(self) -> None:
        """What the segment did to the outside."""
        outside = self.outside
        for variable, _ in outside.contexts.values():
            self._context(variable)
        done: set[int] = set()
        while True:
            rest = [(key, each) for key, each in outside.snapshots.items() if key not in done]
            if not rest:
                break
            for key, snapshot in rest:
                done.add(key)
                before = len(self.effects)
                self._changes(snapshot)
                if len(self.effects) > before:
                    self._mutated.append(snapshot.value)
        for iterator, steps in self.machine.adopted.values():
            source = self.outside.sources[id(iterator)]
            self.effects.append(f"ADVANCED({source.code}, {steps})")
        self._generators()
        self._fill_cells()
        self._distinct()

    def _context(self, variable: ContextVar[Any]) -> None:
        """What was done to a context variable, in that order: a token knows what was there before."""
        code = self.guards.constant(variable)
        for token, value in self.outside.context_changes.pop(id(variable), ()):
            if value is RESET:
                self.body.append(f"{code}.reset({self.value(token)})")
            elif value is ABSENT:
                raise CannotRebuild("a context variable that is not set any more")
            elif token is None:
                self.body.append(f"{code}.set({self.value(value)})")
            else:
                self._make(token, f"{code}.set({self.value(value)})")

    def _changes(self, snapshot: Snapshot) -> None:
        value = snapshot.value
        source = self.outside.sources[id(value)]
        code = source.code
        if id(value) in self.outside.instance_dictionaries:
            return  # its owner's attributes tell
        if is_a(value, dict):
            self._dict_changes(content_of(value), snapshot.content, code, type(value), value)
        elif is_a(value, (list, collections.deque)):
            self._list_changes(value, snapshot.content, code)
        elif is_a(value, set):
            self._set_changes(value, snapshot.content, code)
        elif type(value) is CellType:
            now = cell_content(value)
            if now is ABSENT and snapshot.content is not ABSENT:
                self.effects.append(f"del {code}.cell_contents")
            elif now is not snapshot.content or self.outside.was_written(value, "cell_contents"):
                self.effects.append(f"{code}.cell_contents = {self.value(now)}")
        if snapshot.attributes is not None:
            inside = attributes_of(value)
            written = self.outside.written
            if inside is not None and (
                _differs(inside, snapshot.attributes) or id(value) in written or id(inside) in written
            ):
                held = self.outside.dictionary(value)
                self._dict_changes(inside, snapshot.attributes, str(held), dict, value, attributes=True)
        for name, before in snapshot.slots.items():
            now = slot_of(value, name)
            if now is before and not self.outside.was_written(value, name, attribute=True):
                continue
            if now is ABSENT:
                self.effects.append(f"object.__delattr__({code}, {name!r})")
            else:
                self.effects.append(f"object.__setattr__({code}, {name!r}, {self.value(now)})")

    def _dict_changes(
        self, now: dict[Any, Any], before: dict[Any, Any], code: str, kind: type, owner: Any, attributes: bool = False
    ) -> None:
        if {identity(key) for key in before if key in now} != {identity(key) for key in now if key in before}:
            raise CannotRebuild("a dict in which an equal key has come in the place of one")
        gone = [key for key in before if key not in now]
        stayed = [key for key in before if key in now]
        if not _same_order(stayed, [key for key in now if key in before]) or any(
            key in before for key in list(now)[len(stayed) :]
        ):
            raise CannotRebuild("a dict in which keys have changed their order")
        plain = kind is dict
        base = "OrderedDict" if issubclass(kind, collections.OrderedDict) else "dict"
        if base == "OrderedDict" and list(owner) != list(dict.keys(owner)):
            raise CannotRebuild("an OrderedDict in which keys have changed their order")
        for key in gone:
            written = self._key(key)
            self.effects.append(f"del {code}[{written}]" if plain else f"{base}.__delitem__({code}, {written})")
        for key, each in now.items():
            if (
                key not in before
                or before[key] is not each
                or self.outside.was_written(owner, key, attribute=attributes)
            ):
                written, new = self._key(key), self.value(each)
                self.effects.append(
                    f"{code}[{written}] = {new}" if plain else f"{base}.__setitem__({code}, {written}, {new})"
                )

    def _key(self, key: Any) -> str:
        return self.value(key)

    def _list_changes(self, value: Any, before: list[Any], code: str) -> None:
        now = list(value)
        same = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        if same and id(value) not in self.outside.written:
            return
        anew = self.outside.was_written(value, EVERYTHING)
        kept = now[: len(before)]
        grown = len(now) > len(before) and all(a is b for a, b in zip(kept, before, strict=True))
        if grown and (is_a(value, list) or value.maxlen is None):
            how = f"list.extend({code}, " if is_a(value, list) else f"{code}.extend("
            self.effects.append(f"{how}({self._items(now[len(before) :])}))")
            return
        if len(now) == len(before) and is_a(value, list) and not anew:
            for number, (new, old) in enumerate(zip(now, before, strict=True)):
                if new is not old or self.outside.was_written(value, number):
                    self.effects.append(f"list.__setitem__({code}, {number}, {self.value(new)})")
            return
        self.outside.shallow(value)
        items = self._items(now)
        if is_a(value, list):
            self.effects.append(f"list.__setitem__({code}, slice(None), ({items}))")
        else:
            self.effects += [f"{code}.clear()", f"{code}.extend(({items}))"]

    def _set_changes(self, value: set[Any], before: dict[Any, Any], code: str) -> None:
        was, now = ({identity(each): each for each in elements} for elements in (before, set.__iter__(value)))
        gone = [each for key, each in was.items() if key not in now]
        new = [each for key, each in now.items() if key not in was]
        if gone:
            self.effects.append(f"set.difference_update({code}, ({self._items(gone)}))")
        if new:
            self.effects.append(f"set.update({code}, ({self._items(new)}))")

    def _generators(self) -> None:
        """Generators that were at work when the segment began: some have come to their end, some wait at a `yield`."""
        for generator in self.machine.began_with:
            source = self.outside.sources.get(id(generator))
            if source is None or generator.frame is not None:
                continue
            real = "None" if generator.native is None else self.value(generator.native)
            self.effects.append(f"GOES_ON({source.code}, {real})")

    def _distinct(self) -> None:
        """What was changed must not be, next time, the same object as something else that was looked at."""
        sources = self.outside.sources
        changed = {id(each) for each in self._mutated}
        by_kind: dict[type, dict[int, Any]] = {}
        for key, snapshot in self.outside.snapshots.items():
            if key not in self.outside.instance_dictionaries:
                by_kind.setdefault(type(snapshot.value), {})[key] = snapshot.value
        for kind, group in by_kind.items():
            if not changed.intersection(group):
                continue
            codes = [sources[key].code for key in group]
            if all(code.startswith("K") for code in codes) or len(codes) < 2:
                continue  # these very objects, at each call
            ids = ", ".join(f"id({code})" for code in codes)
            self.guards.check(
                f"len({{{ids}}}) == {len(codes)}",
                f"no two of {len(codes)} objects of the class {kind.__qualname__} are one",
            )


@functools.cache
def _is_made_plainly(kind: Any, base: Any) -> bool:
    """Whether an object can be made by the `__new__` of its container, or that of `object`: it has no hidden state."""
    if kind is collections.deque or kind is types.SimpleNamespace or base is collections.defaultdict:
        return True
    if not kind.__flags__ & (1 << 9):
        return False
    try:
        base.__new__(kind)
    except TypeError:
        return False
    return True


def _differs(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(now) != len(before) or any(before.get(key, ABSENT) is not each for key, each in now.items())


def _same_order(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(a is b or a == b for a, b in zip(one, other, strict=True))


def advanced(iterator: Any, steps: int) -> Any:
    """The iterator, so many values further."""
    for _ in range(steps):
        next(iterator, None)
    return iterator

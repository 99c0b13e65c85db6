"""Builtins that are understood: each does what CPython's does, with guards on what it reads, and interprets callbacks.

`FUNCTIONS` and `CLASSES` at the end say who handles what.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import functools
import inspect
import types
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch

from torchsleuth.frontend import polyfills, torch_calls
from torchsleuth.frontend.attributes import is_python
from torchsleuth.frontend.frames import ABSENT, Generator, Instead, Untouched
from torchsleuth.frontend.guards import is_constant
from torchsleuth.frontend.iterating import CONTAINERS, EXHAUSTED, VIEWS, a_, dict_of
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, UserError
from torchsleuth.frontend.natives import Natives
from torchsleuth.frontend.outside import attributes_of, cell_content, lookup, slots_of
from torchsleuth.frontend.symbolic import Symbolic, as_plain, made_plain
from torchsleuth.frontend.torch_calls import is_torch


def type_of(value: Any) -> type:
    """What the program takes this for."""
    kind = type(value)
    return types.GeneratorType if kind is Generator else int if kind is Symbolic else kind


class Builtins(Natives):
    def _getattr(self, owner: Any, name: str, *default: Any) -> Any:
        if not default:
            return self.load_attr(owner, name)
        try:
            return self.attr_now(owner, name)
        except UserError as raised:
            if is_a(raised.error, AttributeError):
                return default[0]
            raise

    def _setattr(self, owner: Any, name: str, value: Any) -> Any:
        result = self.store_attr(owner, name, value)
        if result is PUSHED:
            self.frames[-1].outcome = Instead(None)
        return result

    def _len(self, value: Any) -> Any:
        if is_a(value, torch.Tensor):
            return self._tensor_method(value, "__len__", [], {})
        found = lookup(type(value), "__len__")
        if is_python(found):
            self.outside.class_attribute(type(value), "__len__", found)
            return self.look(len, Sized(self.call_now(found, value)))
        self._must_be_seen_into(value)
        self.outside.length(dict_of(value) if type(value) in VIEWS else value)
        return self.look(len, value)

    def _method(self, value: Any, name: str) -> Any:
        """What the class of a value has for a special method: that it is this one is guarded."""
        found = lookup(type(value), name)
        self.outside.class_attribute(type(value), name, found)
        return found

    def _callable(self, value: Any) -> Any:
        self.outside.class_attribute(type(value), "__call__", lookup(type(value), "__call__"))
        return self.look(callable, value)

    def _isinstance(self, value: Any, kinds: Any) -> Any:
        check = lookup(type(kinds), "__instancecheck__")
        if is_a(kinds, type) and is_python(check) and type(kinds).__module__ not in ("abc", "typing"):
            self.outside.class_attribute(type(kinds), "__instancecheck__", check)
            return self.truth(self.call_now(check, kinds, value))
        if type(value) is Generator:
            return issubclass(types.GeneratorType, kinds)
        if is_a(kinds, tuple):
            self.outside.shallow(kinds)
        answer = self.look(isinstance, value, kinds)
        self._may_be_registered(value, kinds, answer)
        return answer

    def _may_be_registered(self, value: Any, kinds: Any, answer: bool) -> None:
        """Abstract classes and protocols may answer otherwise later: a class is registered, an attribute added."""
        outside = self.outside
        source = outside.source(value)
        asked = kinds if is_a(kinds, tuple) else (kinds,)
        if source is None or is_constant(value) or is_a(value, torch.Tensor):
            return
        if any(is_a(each, abc.ABCMeta) and not is_torch(each) for each in asked):
            code = f"isinstance({source.code}, {outside.guards.constant(kinds)})"
            if outside.once("isinstance", code):
                outside.guards.check(f"{code} is {answer}", f"isinstance({source.words}, ...) is {answer}", code)

    def _next(self, iterator: Any, *default: Any) -> Any:
        if is_a(iterator, torch.Tensor):
            return self.native(next, iterator)
        if type(iterator) is Generator and not default:
            return self._generator_method(iterator, "__next__", [])
        step = self._method(iterator, "__next__")
        if is_python(step) and not default:
            return self.call(step, [iterator], {})
        if step is ABSENT:
            return self.native(next, iterator)
        value = self.next_of(iterator)
        if value is not EXHAUSTED:
            return value
        return default[0] if default else self.raises(StopIteration())

    def _iter(self, value: Any, *sentinel: Any) -> Any:
        if sentinel:
            raise Break("iter() with a sentinel")
        return self.iterate(value)

    def _any(self, values: Any) -> Any:
        return self.call(polyfills.any_of, [values], {})

    def _all(self, values: Any) -> Any:
        return self.call(polyfills.all_of, [values], {})

    def _sum(self, values: Any, start: Any = 0) -> Any:
        if is_a(start, (str, bytes, bytearray)):
            return self.look(sum, (), start)  # raises
        if (
            type(values) in CONTAINERS
            and all(type(each) in (int, float, bool) for each in values)
            and type(start) in (int, float)
        ):
            self.outside.deep(values)
            return self.look(sum, values, start)
        return self.call(polyfills.sum_of, [values, start], {})

    def _reduce(self, function: Any, values: Any, *start: Any) -> Any:
        return self.call(polyfills.reduced, [function, values, *start], {})

    def _sorted(self, values: Any, *, key: Any = None, reverse: Any = False) -> Any:
        if type(key) is BuiltinFunctionType and type(key.__self__) is list and key.__name__ == "__getitem__":
            keys = key.__self__  # what `in_order` sorts by
            if not all(map(is_constant, keys)):
                raise Break("sorting by what is no constant")
            self.outside.deep(keys)
            return self.look(functools.partial(sorted, key=key, reverse=reverse), values)
        if key is not None:
            return self.call(polyfills.in_order, [values, key, reverse], {})
        values = self.native_iterable(values, counts=True)
        self._for_native(values)
        if not all(map(is_constant, values)):
            raise Break("sorting what is no constant")
        return self.look(functools.partial(sorted, reverse=reverse), values)

    def _extreme(self, largest: bool, *values: Any, key: Any = None, default: Any = polyfills.NO_DEFAULT) -> Any:
        name = "max" if largest else "min"
        if len(values) > 1 and default is not polyfills.NO_DEFAULT:
            return self.native(functools.partial(max if largest else min, 1, 2, default=None))  # raises
        items = values[0] if len(values) == 1 else values
        if len(values) == 1 and not is_a(items, torch.Tensor):
            items = self.native_iterable(items) if self._is_lazy(items) or type(items) in VIEWS else items
        if (
            key is None
            and type(items) in (*CONTAINERS, *VIEWS)
            and all(type(each) in (int, float, bool, str, Symbolic) for each in items)
        ):
            if any(type(each) not in (int, Symbolic) for each in items):
                items = [as_plain(each) for each in items]
            self.outside.deep(items)
            if items or default is polyfills.NO_DEFAULT:
                if len(values) == 1 and len(items) == 1:
                    return next(iter(items))
                return self.look(max if largest else min, items)
            return default
        return self.call(polyfills.first_in_order, [items, key or _itself, largest, default, name], {})

    def _max(self, *values: Any, key: Any = None, default: Any = polyfills.NO_DEFAULT) -> Any:
        return self._extreme(True, *values, key=key, default=default) if values else self.native(max)

    def _min(self, *values: Any, key: Any = None, default: Any = polyfills.NO_DEFAULT) -> Any:
        return self._extreme(False, *values, key=key, default=default) if values else self.native(min)

    def _repr(self, value: Any) -> Any:
        return self._text(value, "__repr__", repr)

    def _text(self, value: Any, name: str, function: Callable[[Any], str]) -> Any:
        value = as_plain(value)
        found = self._method(value, name)
        if name == "__str__" and found is object.__str__ and is_python(self._method(value, "__repr__")):
            name, found = "__repr__", lookup(type(value), "__repr__")
        if is_python(found):
            return self.look(function, answering(name, self.call_now(found, value)))
        self._must_be_spelled(value)
        self._for_native(value)
        return self.look(function, value)

    def _must_be_spelled(self, value: Any, depth: int = 0) -> None:
        """Breaks unless the text of a value is made of constants alone."""
        if is_a(value, torch.Tensor):
            raise Break("the text of a tensor", "print it outside, or print its shape")
        if is_constant(value) or type(value) is Symbolic:
            return
        if depth < 6 and is_a(value, (list, tuple, set, frozenset)) and not is_python(lookup(type(value), "__repr__")):
            for each in value:
                self._must_be_spelled(each, depth + 1)
        elif depth < 6 and is_a(value, dict) and not is_python(lookup(type(value), "__repr__")):
            for key, each in value.items():
                self._must_be_spelled(key, depth + 1)
                self._must_be_spelled(each, depth + 1)
        elif is_a(value, BaseException) and not is_python(lookup(type(value), "__str__")):
            for each in value.args:
                self._must_be_spelled(each, depth + 1)
        elif not is_a(value, type):
            raise Break(f"the text of a {type(value).__qualname__}")

    def _hash(self, value: Any) -> Any:
        value = as_plain(value)
        found = self._method(value, "__hash__")
        if is_python(found):
            return self.look(hash, answering("__hash__", self.call_now(found, value)))
        if is_constant(value):
            return self.look(hash, value)
        raise Break("the hash of an object may be its address")

    def _type(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            return type_of(args[0])
        raise Break("a class is made")

    def _super(self, *args: Any) -> Any:
        if args:
            return self.look(super, *args)
        frame = self.frames[-1]
        cell = frame.cells.get("__class__")
        if cell is None or not frame.code.co_argcount:
            raise Break("super() outside of a method")
        self.outside.cell(cell)
        defined_in = cell_content(cell)
        first = frame.code.co_varnames[0]
        held = frame.cells.get(first)
        found = frame.locals.get(first, ABSENT if held is None else cell_content(held))
        if not is_a(defined_in, type) or found is ABSENT:
            raise Break("super() in a method whose class or first argument is gone")
        me = self.outside.settle(found)
        if type(found) is Untouched:
            frame.locals[first] = me
        return self.look(super, defined_in, me)

    def _bool(self, *args: Any) -> Any:
        return self.truth(args[0]) if args else False

    def _number(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        if args and is_a(args[0], torch.Tensor):
            raise Break(f"{kind.__name__}() of a tensor depends on the data", torch_calls.advice_for("item"))
        if args and type(args[0]) is Symbolic and kind is int and len(args) == 1:
            return args[0]
        for name in (f"__{kind.__name__}__", "__index__", "__trunc__") if len(args) == 1 and not kwargs else ():
            found = self._method(args[0], name)
            if is_python(found):
                return self.look(kind, answering(name, self.call_now(found, args[0]), type(args[0])))
            if found is not ABSENT:
                break
        return self.look(functools.partial(kind, *map(self._for_native, args), **kwargs))

    def _int(self, *args: Any, **kwargs: Any) -> Any:
        return self._number(int, *args, **kwargs)

    def _float(self, *args: Any) -> Any:
        return self._number(float, *args)

    def _complex(self, *args: Any, **kwargs: Any) -> Any:
        return self._number(complex, *args, **kwargs)

    def _str(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            return self._text(args[0], "__str__", str)
        return self.look(functools.partial(str, *map(self._for_native, args), **kwargs))

    def _collection(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        """list(), tuple(), set(), frozenset(), deque()."""
        counts = kind in (list, tuple)
        args = tuple(self.native_iterable(each, counts=counts) if not is_a(each, int) else each for each in args)
        if kind in (set, frozenset) and args and not all(map(self._is_plain_key, args[0])):
            raise Break("a set of what has a hash of its own")
        return self.native(kind, *args, **kwargs)

    def _list(self, *args: Any) -> Any:
        return self._collection(list, *args)

    def _tuple(self, *args: Any) -> Any:
        return self._collection(tuple, *args)

    def _set(self, *args: Any) -> Any:
        return self._collection(set, *args)

    def _frozenset(self, *args: Any) -> Any:
        return self._collection(frozenset, *args)

    def _dict(self, /, *args: Any, **kwargs: Any) -> Any:
        is_own = not (args and is_a(args[0], dict)) or is_python(lookup(type(args[0]), "__iter__"))
        if args and is_own and (is_a(args[0], dict) or is_python(lookup(type(args[0]), "keys"))):
            keys = self.items(self.call_now(self.attr_now(args[0], "keys")))
            made = {key: self.subscript_now(args[0], key) for key in keys}
            return {**made, **kwargs}
        made_of = [self.native_iterable(each) for each in args]
        return self.native(dict, *made_of, **kwargs)

    def _ordered_dict(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.native(collections.OrderedDict, *[self.native_iterable(each) for each in args], **kwargs)

    def _iterators(self, *values: Any) -> list[Any]:
        return [self.iterate_now(each) for each in values]

    def _zip(self, *values: Any, strict: Any = False) -> Any:
        found = self._iterators(*values)
        if strict and any(map(self.is_interpreted, found)):
            raise Break("zip() that is strict, over what is interpreted")
        return self.native(functools.partial(zip, strict=True) if strict else zip, *found)

    def _map(self, function: Any, *values: Any) -> Any:
        return self.native(map, function, *self._iterators(*values))

    def _filter(self, function: Any, values: Any) -> Any:
        return self.native(filter, function, *self._iterators(values))

    def _enumerate(self, iterable: Any, start: Any = 0) -> Any:
        found = self.iterate_now(iterable)
        if self.is_interpreted(found):
            return self.call(polyfills.numbered, [found, start], {})
        return self.native(enumerate, found, start)

    def _reversed(self, value: Any) -> Any:
        found = self._method(value, "__reversed__")
        if is_python(found):
            return self.call(found, [value], {})
        if is_a(value, torch.Tensor) or is_python(lookup(type(value), "__len__")):
            raise Break(f"reversed() of a {type(value).__qualname__}")
        self.view(value)
        self.outside.shallow(value)
        return self.native(reversed, value)

    def _slice(self, *args: Any) -> Any:
        return self.look(slice, *args)

    def _range(self, *args: Any) -> Any:
        return self.look(
            range,
            *[
                made_plain(each)
                if not hasattr(type(each), "__index__") or type(each) is Symbolic
                else self._for_native(each)
                for each in args
            ],
        )

    def _locals(self) -> Any:
        frame = self.frames[-1]
        found = {name: self.outside.settle(value) for name, value in frame.locals.items()}
        for name, cell in frame.cells.items():
            with contextlib.suppress(ValueError):
                self.outside.cell(cell)
                found[name] = cell.cell_contents
        order = (*frame.code.co_varnames, *frame.code.co_cellvars, *frame.code.co_freevars)
        return {name: found[name] for name in order if name in found}

    def _vars(self, *args: Any) -> Any:
        return self.dictionary_of(args[0]) if args else self._locals()

    def _globals(self) -> Any:
        namespace = self.frames[-1].globals
        self.outside.writes_global(namespace)
        return namespace

    def _dir(self, *args: Any) -> Any:
        if args:
            raise Break("dir() of an object")
        return sorted(self._locals())

    def _runs_text(self, text: Any, *namespaces: Any) -> Any:
        raise Break("text is run as code (eval, exec)")

    def _copy(self, value: Any) -> Any:
        if type(value) in (list, dict, set, collections.deque, collections.OrderedDict):
            return self.call(self.attr_now(value, "copy"), [], {})
        self._must_be_data(value, "copy.copy", most=1)
        return self._copied(copy.copy, value)

    def _deepcopy(self, value: Any, *memo: Any) -> Any:
        if memo:
            raise Break("copy.deepcopy with a memo")
        self._must_be_data(value, "copy.deepcopy")
        return self._copied(copy.deepcopy, value)

    def _copied(self, function: Callable[[Any], Any], value: Any) -> Any:
        with self.recorder.auditor.unrecorded():
            return self.native(function, value)

    def _must_be_data(self, value: Any, what: str, *, most: int = 20, depth: int = 0) -> None:
        """Breaks unless a value is made of constants, containers and plain objects. All that it holds is guarded."""
        if is_constant(value) or is_a(value, (type, FunctionType, BuiltinFunctionType)):
            return
        if depth >= most:
            if most > 1:
                raise Break(f"{what} of what is nested {most} deep")
            return
        kind = type(value)
        if kind in (list, tuple, dict, set, frozenset, collections.OrderedDict):
            self.outside.shallow(value)
            inside = [*value.values(), *value.keys()] if is_a(value, dict) else list(value)
        else:
            self._must_be_copied_plainly(value, what)
            self.outside.all_attributes(value)
            inside = list((attributes_of(value) or {}).values())
        for each in inside:
            self._must_be_data(each, what, most=most, depth=depth + 1)

    def _must_be_copied_plainly(self, value: Any, what: str) -> None:
        kind = type(value)
        plain = all(lookup(kind, name) in (ABSENT, lookup(object, name)) for name in _COPYING)
        if not plain or attributes_of(value) is None or slots_of(kind) or is_a(value, torch.Tensor):
            raise Break(f"{what} of {a_(kind)}")
        for name in _COPYING:
            self.outside.class_attribute(kind, name, lookup(kind, name))

    def _is_generator(self, value: Any) -> bool:
        return is_a(value, (Generator, types.GeneratorType))

    def _partial(self, /, *args: Any, **kwargs: Any) -> Any:
        make: Any = functools.partial
        return self.look(make(make, *args, **kwargs))


class Sized:
    """An object whose size and truth are what an interpreted method gave: so that it is judged as CPython does it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __len__(self) -> Any:
        return self.answer


class Truthful(Sized):
    def __bool__(self) -> Any:
        return self.answer


def answering(name: str, answer: Any, kind: type = object) -> Any:
    """An object whose special method is known to have answered that: so that the answer is judged as CPython does it.

    `kind`: the class that its name is told of, if the answer will not do.
    """
    return type(kind.__name__, (), {name: lambda *_: answer})()


def _itself(value: Any) -> Any:
    return value


_COPYING: Final = ("__deepcopy__", "__copy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
"""Methods by which a class has its own idea of copying."""

FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    getattr: Builtins._getattr,
    setattr: Builtins._setattr,
    hasattr: Builtins.has_attr,
    delattr: Builtins.delete_attr,
    len: Builtins._len,
    isinstance: Builtins._isinstance,
    callable: Builtins._callable,
    next: Builtins._next,
    iter: Builtins._iter,
    any: Builtins._any,
    all: Builtins._all,
    sum: Builtins._sum,
    functools.reduce: Builtins._reduce,
    sorted: Builtins._sorted,
    max: Builtins._max,
    min: Builtins._min,
    repr: Builtins._repr,
    hash: Builtins._hash,
    locals: Builtins._locals,
    vars: Builtins._vars,
    globals: Builtins._globals,
    dir: Builtins._dir,
    eval: Builtins._runs_text,
    exec: Builtins._runs_text,
    inspect.isgenerator: Builtins._is_generator,
    copy.copy: Builtins._copy,
    copy.deepcopy: Builtins._deepcopy,
}
FUNCTIONS.update(
    (
        getattr(Generator, name),
        functools.partial(lambda name, calls, owner, *args: calls._generator_method(owner, name, args), name),
    )
    for name in ("__iter__", "__next__", "send", "throw", "close")
)
CLASSES: Final[dict[Any, Callable[..., Any]]] = {
    type: Builtins._type,
    super: Builtins._super,
    bool: Builtins._bool,
    int: Builtins._int,
    float: Builtins._float,
    str: Builtins._str,
    complex: Builtins._complex,
    list: Builtins._list,
    tuple: Builtins._tuple,
    set: Builtins._set,
    frozenset: Builtins._frozenset,
    dict: Builtins._dict,
    collections.OrderedDict: Builtins._ordered_dict,
    zip: Builtins._zip,
    map: Builtins._map,
    filter: Builtins._filter,
    enumerate: Builtins._enumerate,
    reversed: Builtins._reversed,
    slice: Builtins._slice,
    range: Builtins._range,
    functools.partial: Builtins._partial,
}

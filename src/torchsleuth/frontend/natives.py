"""Native functions and methods: which are harmless, what they read, and what they do to the outside.

The rule is: deny. A native function is called while a graph is recorded only if it is known to read nothing but its
arguments, and to change nothing but what is looked at afterwards. What it reads is guarded before it is called.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import re
import types
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any, Final

import torch

from torchsleuth.frontend import polyfills
from torchsleuth.frontend.attributes import HIDDEN_STATE, is_python
from torchsleuth.frontend.frames import PUSH, Generator, Instead
from torchsleuth.frontend.guards import is_constant
from torchsleuth.frontend.iterating import CONTAINERS, EXHAUSTED, ITERATORS, VIEWS, a_
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, UserError
from torchsleuth.frontend.operators import Operators
from torchsleuth.frontend.outside import EVERYTHING, lookup, native_base
from torchsleuth.frontend.symbolic import Symbolic, has_symbolic, made_plain, product

HARMLESS_MODULES: Final = frozenset(
    [
        *("builtins", "math", "operator", "_operator", "itertools", "_functools", "functools", "_collections"),
        *(
            "collections",
            "_abc",
            "_weakref",
            "_sre",
            "re",
            "_struct",
            "_bisect",
            "bisect",
            "enum",
            "_heapq",
            "cmath",
            "_string",
        ),
    ]
)
"""Modules whose native functions read their arguments and nothing else."""

NATIVE_PYTHON: Final = (
    inspect.signature,
    functools.update_wrapper,
    inspect.isclass,
    inspect.isfunction,
    inspect.ismethod,
)
"""Functions of Python's library that are called as they are: interpreting them would tell nothing."""

_READS_NOTHING: Final = {
    list: ("append", "extend", "__init__", "__len__"),
    collections.deque: ("append", "appendleft", "extend", "extendleft", "__len__"),
    dict: (
        "__setitem__",
        "get",
        "__getitem__",
        "__contains__",
        "setdefault",
        "pop",
        "__delitem__",
        "update",
        "__len__",
        "__init__",
    ),
    set: ("__len__", "__contains__", "add", "discard", "remove"),
}
"""Methods of containers of whose content our handlers guard only what they look at."""

_REARRANGES: Final = frozenset(
    "clear pop popleft remove insert reverse rotate sort __delitem__ __setitem__ __imul__".split()
)
"""Methods of lists and deques behind which anything may lie anywhere."""
_OF_ELEMENTS: Final = frozenset(["add", "discard", "remove", "__contains__", "count", "index", "__eq__", "__ne__"])
"""Methods that get an element, and leave it alone, whatever it can be iterated over."""

HARMLESS_CLASSES: Final = (
    types.SimpleNamespace, weakref.ref, re.Pattern, re.Match, types.MappingProxyType, torch.Size,
)  # fmt: skip


_OPERATORS_AS_FUNCTIONS: Final = (
    "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs eq ne lt le gt ge "
    "getitem setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor"
).split()
_OF_TENSORS: Final[dict[Any, Callable[..., Any]]] = {
    **{getattr(operator, name): getattr(operator, name) for name in _OPERATORS_AS_FUNCTIONS},
    abs: operator.abs,
    pow: operator.pow,
}
"""Native functions that are operators of tensors: by which function they stand in graphs."""


class Natives(Operators):
    def _for_native(self, value: Any) -> Any:
        """An argument of native code that reads it: all of it is guarded, and what is symbolic becomes plain."""
        if is_a(value, torch.Tensor):
            self.recorder.knows_kind(value)
            return value
        if has_symbolic(value):
            value = made_plain(value)
        self._must_be_seen_into(value)
        if type(value) in VIEWS:
            self.view(value)
        self.outside.deep(value)
        return value

    def _must_be_seen_into(self, value: Any) -> None:
        """Breaks if nobody can tell, later on, whether what a native function reads of this is still the same."""
        kind = type(value)
        hidden = kind in (*HIDDEN_STATE, bytearray, memoryview) or kind.__module__ == "array"
        if hidden and self.outside.source(value) is not None:
            raise Break(f"native code reads a {kind.__qualname__}")

    def _foreign(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A native function that belongs to no object."""
        module = getattr(function, "__module__", None)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type):
            module = owner.__module__
            if is_python(lookup(owner, function.__name__)) or (
                owner.__flags__ & (1 << 9) and module not in HARMLESS_MODULES
            ):
                owner = native_base(owner)
                module = owner.__module__
        if function in _OF_TENSORS and any(is_a(each, torch.Tensor) for each in args) and not kwargs:
            return self._operator(_OF_TENSORS[function], args)
        if module not in HARMLESS_MODULES and function not in NATIVE_PYTHON:
            raise Break(f"the native function {module}.{function.__qualname__} is not known to be free of hidden state")
        if function.__name__ == "fromkeys" or is_a(owner, type):
            args = [self.native_iterable(each) if self._is_lazy(each) else each for each in args]
        if any(type(each) is FunctionType for each in (*args, *kwargs.values())) and function not in NATIVE_PYTHON:
            raise Break(f"the native function {function.__qualname__} calls back")
        args = [self._for_native(each) for each in args]
        for each in kwargs.values():
            self._for_native(each)
        for each in args if function in NATIVE_PYTHON else ():
            if type(each) is FunctionType:
                for field in ("__defaults__", "__kwdefaults__"):
                    self.outside.field(each, field, getattr(each, field))
        return self.native(function, *args, **kwargs)

    def _operator(self, function: Any, args: list[Any]) -> Any:
        """An operator of Python's that is called as a function, with tensors."""
        return self.torch_call(function, False, tuple(args), {})

    def _is_lazy(self, value: Any) -> bool:
        """Whether iterating over it is no native matter."""
        kind = type(value)
        return (
            kind is Generator or kind in ITERATORS or (kind not in CONTAINERS and is_python(lookup(kind, "__iter__")))
        )

    def _native_method(self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any], function: Any) -> Any:
        """A method of a native class."""
        if is_a(owner, torch.Tensor):
            return self._tensor_method(owner, name, args, kwargs)
        kind = type(owner)
        if kind is Generator:
            return self._generator_method(owner, name, args)
        if name in ("__getattribute__", "__setattr__", "__delattr__", "__init__", "__init_subclass__", "__new__"):
            return self._of_object(owner, name, args, kwargs, function)
        if name in ("__enter__", "__exit__"):
            raise Break(f"with a {kind.__module__}.{kind.__qualname__}")
        base = next((each for each in (list, dict, set, collections.deque) if is_a(owner, each)), None)
        if base is not None:
            return self._container_method(base, owner, name, args, kwargs, function)
        if kind is torch.Size and name == "numel":
            return product(owner)
        if is_a(owner, (tuple, list)) and name == "index":
            return self._index(owner, args)
        if is_a(owner, ContextVar):
            return self._context_variable(owner, name, args, function)
        if name == "join" and is_a(owner, (str, bytes)) and len(args) == 1:
            return self.look(owner.join, self._for_native(self.native_iterable(args[0])))
        if kind in ITERATORS:
            return self._iterator_method(owner, name, args, function)
        known = is_constant(owner) or is_a(owner, (tuple, frozenset, *VIEWS, BaseException, types.MappingProxyType))
        if type(function) is types.MethodWrapperType and name in (
            "__eq__",
            "__ne__",
            "__hash__",
            "__repr__",
            "__str__",
            "__get__",
        ):
            if name in ("__hash__", "__repr__", "__str__") and not is_constant(owner):
                raise Break(f"{name} of a {kind.__qualname__} may give an address")
            known = True
        if kind in (bytearray, memoryview):
            raise Break(f"{kind.__qualname__}.{name}() works on bytes that are not looked at")
        if not known and kind.__module__ not in HARMLESS_MODULES and kind not in HARMLESS_CLASSES:
            raise Break(f"the native method {kind.__qualname__}.{name} is not known to be free of hidden state")
        if any(type(each) is FunctionType for each in (*args, *kwargs.values())):
            raise Break(f"the native method {kind.__qualname__}.{name} calls back")
        self._for_native(owner)
        self.outside.deep(owner)
        return self.native(function, *self._arguments_for(function, owner, args), **kwargs)

    def _arguments_for(self, function: Any, owner: Any, args: list[Any]) -> list[Any]:
        if getattr(function, "__name__", "") not in _OF_ELEMENTS:
            args = [self.native_iterable(each) if self._is_lazy(each) else each for each in args]
        found = list(map(self._for_native, args))
        return [owner, *found] if type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType) else found

    def _of_object(self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any], function: Any) -> Any:
        """Methods that every object has, called by their names (`super().__setattr__(name, value)`)."""
        if name == "__getattribute__":
            return self.generic_attr(owner, args[0], alone=True)
        if name == "__setattr__":
            result = self.generic_store(owner, *args)
            if result is PUSHED:
                self.frames[-1].outcome = Instead(None)
            return result
        if name == "__delattr__":
            return self.delete_attr(owner, args[0])
        if (name == "__init__" and is_a(owner, (list, dict, set, BaseException))) or name in (
            "__init__",
            "__init_subclass__",
        ):
            self.outside.writes(owner)
            counts = is_a(owner, list)
            args = [
                self._for_native(self.native_iterable(each, counts=counts) if self._is_lazy(each) else each)
                for each in args
            ]
            unbound = type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType)
            return self.native(function, *([owner, *args] if unbound else args), **kwargs)
        raise Break(f"{type(owner).__qualname__}.{name} is called")

    def _container_method(
        self, base: Any, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any], function: Any
    ) -> Any:
        outside = self.outside
        reorders = is_a(owner, collections.OrderedDict) and name in ("move_to_end", "popitem")
        if reorders and outside.source(owner) is not None:
            raise Break(f"OrderedDict.{name}() of something from before the graph")
        if (base is dict and name in ("keys", "values", "items", "copy", "popitem", "__iter__", "__reversed__")) or (
            is_a(owner, collections.deque) and owner.maxlen is not None
        ):
            outside.shallow(owner)
        elif name not in _READS_NOTHING[base]:
            if base in (list, collections.deque) and name in (
                "pop",
                "insert",
                "clear",
                "popleft",
                "__setitem__",
                "__getitem__",
                "__delitem__",
            ):
                outside.length(owner)
                if name in ("__getitem__", "__delitem__"):
                    self._indexed(owner, args[0] if args else None)
                if name == "__setitem__":
                    outside.shallow(owner)
                if name in ("pop", "popleft"):
                    self._popped(owner, name, args)
            elif (base is dict and name == "clear") or name in (
                "copy",
                "reverse",
                "__iter__",
                "__reversed__",
                "rotate",
            ):
                outside.shallow(owner)
            else:
                if name in ("sort",) and kwargs.get("key") is not None:
                    return self._sort(owner, **kwargs)
                if name == "index":
                    return self._index(owner, args)
                outside.deep(owner)
        if (
            base is dict
            and args
            and name in ("get", "__getitem__", "__contains__", "setdefault", "pop", "__setitem__", "__delitem__")
        ):
            if not self._is_plain_key(args[0]):
                raise Break(f"a key of a dict is {a_(type(args[0]))}")
            args[0] = made_plain(args[0])
            if name == "__setitem__":
                outside.wrote(owner, args[0])
            else:
                outside.key(owner, args[0])
        if base is set and args and name in ("__contains__", "add", "discard", "remove"):
            if not self._is_plain_key(args[0]):
                raise Break(f"an element of a set is {a_(type(args[0]))}")
            args[0] = made_plain(args[0])
            outside.membership(owner, args[0])
        if base in (list, collections.deque) and name in _REARRANGES:
            outside.wrote(owner, EVERYTHING)
        if base in (list, collections.deque) and name == "extend" and len(args) == 1:
            add_all, add = functools.partial(base.extend, owner), functools.partial(base.append, owner)
            return self.one_by_one(add_all, add, args[0], counts=base is list)
        if (base in (list, collections.deque) and name in ("extendleft", "__iadd__")) or (
            base is dict and name in ("update", "__init__", "__ior__")
        ):
            args = [self.native_iterable(each, counts=name == "__iadd__") for each in args]
            if base is dict:
                self._updates(owner, args, kwargs)
        elif base is set and name not in _OF_ELEMENTS:
            args = [self._for_native(self.native_iterable(each) if self._is_lazy(each) else each) for each in args]
        if base is list and name in ("count", "remove", "__contains__") and not all(map(is_constant, (*owner, *args))):
            raise Break(f"list.{name}() compares {a_(type(args[0]))}")
        unbound = type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType)
        return self.native(function, *([owner, *args] if unbound else args), **kwargs)

    def _updates(self, owner: dict[Any, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """A dict gets what others hold."""
        for each in args:
            if is_a(each, dict):
                for key in each:
                    self.outside.wrote(owner, key)
            else:
                self.outside.shallow(owner)
        for key in kwargs:
            self.outside.wrote(owner, key)

    def _is_plain_key(self, key: Any) -> bool:
        """Whether hashing and comparing it runs no code of the user's."""
        kind = type(key)
        if lookup(kind, "__hash__") is None:
            self.look(hash, key)  # raises
        if is_constant(key) or kind is Symbolic:
            return True
        if kind is tuple:
            return all(map(self._is_plain_key, key))
        return (
            not is_a(key, torch.Tensor)
            and not is_python(lookup(kind, "__hash__"))
            and not is_python(lookup(kind, "__eq__"))
        )

    def _indexed(self, owner: Any, index: Any) -> None:
        if type(index) is int:
            self.outside.item(owner, index)
        else:
            self.outside.shallow(owner)

    def _popped(self, owner: Any, name: str, args: list[Any]) -> None:
        index = 0 if name == "popleft" else args[0] if args else -1
        if type(index) is int and -len(owner) <= index < len(owner):
            self.outside.item(owner, index)

    def _index(self, owner: Any, args: list[Any]) -> Any:
        """`index` of a list or a tuple: by its Python definition, unless nothing but constants are compared."""
        if is_constant(args[0]) and all(map(is_constant, owner)):
            self.outside.deep(owner)
            return self.look(owner.index, *args)
        return self.call(polyfills.index_of, [owner, *args], {})

    def _sort(self, owner: list[Any], key: Any = None, reverse: Any = False) -> Any:
        self.outside.shallow(owner)
        owner[:] = self.call_now(polyfills.in_order, owner, key, reverse)
        return None

    def _iterator_method(self, owner: Any, name: str, args: list[Any], function: Any) -> Any:
        if name == "__next__":
            value = self.next_of(owner)
            return self.raises(StopIteration()) if value is EXHAUSTED else value
        if name == "__iter__":
            return owner
        if self.outside.source(owner) is not None:
            raise Break(f"{type(owner).__qualname__}.{name} of something from before the graph")
        return self.native(function, *args)

    def _generator_method(self, owner: Generator, name: str, args: list[Any]) -> Any:
        if name == "__iter__":
            return owner
        if owner.frame is None and owner.native is None:
            if name == "throw":
                return self.raises(self._thrown(*args))
            return None if name == "close" else self.raises(StopIteration())
        if owner.native is not None:
            raise Break(f"{name}() of a generator that goes on natively")
        if name == "__next__":
            return self.resume(owner, PUSH)
        begun = owner.has_begun
        if name == "send":
            if not begun and args[0] is not None:
                self.raises(TypeError("can't send non-None value to a just-started generator"))
            return self.resume(owner, PUSH, args[0])
        if name == "throw":
            error = self._thrown(*args)
            if not begun:
                owner.frame = None
                return self.raises(error)
            return self.resume(owner, PUSH, error=error)
        if name == "close":
            return self.close(owner)
        raise Break(f"{name} of a generator")

    def _thrown(self, kind: Any, value: Any = None, trace: Any = None) -> BaseException:
        """The exception that `throw` is given, in one of its two forms."""
        if isinstance(kind, BaseException):
            if value is not None:
                self.raises(TypeError("instance exception may not have a separate value"))
            return kind
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            what = "exceptions must be classes or instances deriving from BaseException, not "
            self.raises(TypeError(f"{what}{type(kind).__name__}"))
        error: BaseException
        if is_a(value, kind):
            error = value
            return error
        error = self.call_now(kind) if value is None else self.call_now(kind, value)
        return error

    def _context_variable(self, owner: ContextVar[Any], name: str, args: list[Any], function: Any) -> Any:
        self.outside.context(owner)
        if name == "get":
            self.outside.context_read(owner)
            return self.look(function, *args)
        if name == "set" and args:
            token = self.native(function, *args)
            self.outside.context_set(owner, token, args[0])
            return token
        is_known = bool(args) and (id(args[0]) in self.outside.tokens or self.outside.source(args[0]) is not None)
        if name == "reset" and is_known:
            self.native(function, *args)
            self.outside.context_reset(owner, args[0])
            return None
        raise Break(f"ContextVar.{name}()")

    def _call_cached(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What `lru_cache` wraps: its author says that the result depends on the arguments alone. So that it does is a
        guard: a later call asks the cache again, which counts that and remembers it, or, if it was emptied, computes.
        """
        args, kwargs = [made_plain(each) for each in args], {name: made_plain(each) for name, each in kwargs.items()}
        if not all(map(is_constant, (*args, *kwargs.values()))):
            raise Break(f"{function.__qualname__} has a cache, and its arguments are no constants")
        before = function.cache_info().misses, self.outside.states()
        try:
            with self.recorder.auditor.unrecorded():
                result = self.native(function, *args, **kwargs)
        except UserError:
            self.recorder.lose(f"{function.__qualname__} has raised: no cache holds that")
            raise
        if function.cache_info().misses != before[0] and self.outside.states() != before[1]:
            self.recorder.lose(f"{function.__qualname__} has filled its cache, which a later call does not do again")
        guards = self.outside.guards
        asked = "".join(f"{guards.literal(each)}, " for each in args)
        asked += "".join(f"{name}={guards.literal(each)}, " for name, each in kwargs.items())
        again, words = f"{guards.constant(function)}({asked})", f"the result of {function.__qualname__}"
        if is_constant(result):
            guards.exactly(again, result, words)
        else:
            guards.is_object(again, result, words)
        if not is_constant(result):
            if not is_a(result, (FunctionType, type, ModuleType)):
                self.recorder.spoil(f"{function.__qualname__} has a cache, and its result is {a_(type(result))}")
            self.outside.root(result, f"a result of {function.__qualname__}")
        return result

    def _call_getter(self, function: Any, args: list[Any]) -> Any:
        what = function.__reduce__()[1]
        if type(function) is operator.attrgetter and len(what) == 1 and args:
            value = args[0]
            for name in what[0].split("."):
                value = self.attr_now(value, name)
            return value
        if type(function) is operator.itemgetter and args:
            found = [self.subscript_now(args[0], each) for each in what]
            return found[0] if len(found) == 1 else tuple(found)
        raise Break(f"calling a {type(function).__qualname__}")

    def subscript_now(self, owner: Any, index: Any) -> Any:
        return self.call_now(_subscript, owner, index)


def _subscript(owner: Any, index: Any) -> Any:
    return owner[index]

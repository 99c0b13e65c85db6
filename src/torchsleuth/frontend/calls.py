"""What happens when something is called: interpreted, recorded, done natively, or a break.

The order in which `call` decides:

1. What only wraps a call is taken off: bound methods, partials, captured functions.
2. Functions of Python's: torch's leaves are recorded, what is to be skipped breaks, everything else is inlined.
3. Classes: objects are made step by step (`__new__`, `__init__`).
4. Native functions and methods: a handler of ours, a table of what is known to be harmless, or a break.
5. Objects with a `__call__`.

The rule for everything native: unless it is known to read nothing but its arguments, and to change nothing but what we
look at afterwards, it breaks the graph.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend import torch_calls
from torchsleuth.frontend.attributes import is_python
from torchsleuth.frontend.builtin_calls import CLASSES, FUNCTIONS, Builtins
from torchsleuth.frontend.frames import ABSENT, PUSH, Frame, Instead
from torchsleuth.frontend.guards import Source
from torchsleuth.frontend.iterating import a_
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import MOST_FRAMES, PUSHED, Break
from torchsleuth.frontend.moving import note
from torchsleuth.frontend.natives import HARMLESS_CLASSES, HARMLESS_MODULES, NATIVE_PYTHON
from torchsleuth.frontend.operations import looks_at_frame
from torchsleuth.frontend.outside import attributes_of, lookup, native_base

NATIVE_KINDS: Final = (
    BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE

_BREAKING: Final[dict[Any, str]] = {
    print: "print", input: "input", open: "open", compile: "compile", breakpoint: "breakpoint",
    id: "id() gives an address", memoryview: "memoryview",
    __import__: "__import__",
}  # fmt: skip

_WATCHES: Final = (sys.settrace, sys.setprofile)
"""Whoever is told of each line or call from now on is told of the user's: the interpreter has none."""

_LIBRARY: Final = sysconfig.get_paths()["stdlib"] + os.sep

_LOOKED_INTO: Final = frozenset(
    [
        *("_collections_abc", "collections", "contextlib", "dataclasses", "enum", "functools", "typing", "types"),
        *(
            "abc",
            "operator",
            "numbers",
            "fractions",
            "statistics",
            "string",
            "reprlib",
            "heapq",
            "bisect",
            "weakref",
            "os",
        ),
        *(
            "_weakrefset",
            "queue",
            "textwrap",
            "inspect",
            "keyword",
            "colorsys",
            "graphlib",
            "collections.abc",
            "genericpath",
            "posixpath",
        ),
    ]
)
"""Modules of Python's library whose functions are interpreted. Those of the others run natively, as a whole."""

_ADVICE: Final = {
    "print": "print outside of what is captured, or drop the print: the graph is cut in two here",
    "logging": "log outside of what is captured",
    "torch.compile": "it has graphs of its own: ask about it by its own name",
    "id() gives an address": "keep objects apart by something of their own",
}


class Calls(Builtins):
    # -- deciding

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result, or `PUSHED`. Arguments may be `Untouched`."""
        args = list(args)
        while True:
            kind = type(function)
            if kind is MethodType:
                args.insert(0, function.__self__)
                function = function.__func__
            elif kind is functools.partial:
                self.outside.shallow(function.args)
                self.outside.shallow(function.keywords)
                args = [*function.args, *args]
                kwargs = {**function.keywords, **kwargs}
                function = function.func
            elif getattr(kind, "is_captured", False) is True:
                function = function.fn
            else:
                break
        if kind is FunctionType:
            return self._call_python(function, args, kwargs)
        if is_a(function, type):
            return self.construct(function, self._settled(args), self._settled_values(kwargs))
        if is_a(function, NATIVE_KINDS):
            return self._call_native(function, args, kwargs)
        return self._call_object(function, args, kwargs)

    def _handled(self, handler: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a handler of ours makes of a call; arguments that it does not know break the graph."""
        try:
            return handler(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        raise Break(f"{function.__name__}() is given other arguments than usual")

    def _settled(self, args: Sequence[Any]) -> list[Any]:
        return [self.outside.settle(each) for each in args]

    def _settled_values(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self.outside.settle(each) for name, each in kwargs.items()}

    def _call_python(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = torch_compat.plain_init(function)
        if function in self.home.skipped or getattr(function, "_torchdynamo_disable", False):
            raise Break(f"{function.__qualname__} is to be run natively")
        handler = FUNCTIONS.get(function)
        if handler is not None:
            return self._handled(handler, function, self._settled(args), self._settled_values(kwargs))
        compiled = torch_compat.plain_function(function)
        if compiled is not function:
            name = getattr(compiled, "__qualname__", type(compiled).__qualname__)
            raise Break(f"{name} is compiled by torch.compile", _ADVICE["torch.compile"])
        if looks_at_frame(function, args):
            raise Break(f"{function.__qualname__}() looks at the stack of frames")
        if function in NATIVE_PYTHON:
            return self._foreign(function, self._settled(args), self._settled_values(kwargs))
        if torch_calls.is_torch(function) and not torch_calls.is_interpreted(function):
            return self.call_torch(function, self._settled(args), self._settled_values(kwargs))
        if function.__code__.co_flags & _ASYNC:
            raise Break(f"{function.__qualname__} is a coroutine")
        if not _is_looked_into(function.__code__.co_filename, function.__globals__.get("__name__", "")):
            module = str(function.__globals__.get("__name__"))
            raise Break(f"{module}.{function.__qualname__} of Python's library", _ADVICE.get(module, ""))
        return self.push_frame(function, args, kwargs)

    def _call_object(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        kind = type(function)
        if is_a(function, torch_compat.operator_kinds()):
            return self.call_torch(function, self._settled(args), self._settled_values(kwargs))
        if kind is functools._lru_cache_wrapper:
            return self._call_cached(function, self._settled(args), self._settled_values(kwargs))
        if kind is weakref.ref and not args and not kwargs:
            return self._referent(function)
        found = lookup(kind, "__call__")
        if torch_compat.is_compiled_module(function):
            name = type(torch_compat.plain_function(function)).__qualname__
            raise Break(f"a {name} is compiled by torch.compile", _ADVICE["torch.compile"])
        if is_a(function, torch.nn.Module) and found is torch.nn.Module.__call__:
            return self._call_module(function, args, kwargs)
        if is_python(found):
            self.outside.class_attribute(kind, "__call__", found)
            return self.call(found, [function, *args], kwargs)
        if kind in (operator.attrgetter, operator.itemgetter, operator.methodcaller):
            return self._call_getter(function, self._settled(args))
        if is_a(found, (staticmethod, classmethod)):
            return self.call(found.__get__(function, kind), args, kwargs)
        if found is ABSENT:
            self.outside.class_attribute(kind, "__call__", ABSENT)
            return self.native(function, *args, **kwargs)
        raise Break(f"calling a {kind.__module__}.{kind.__qualname__}")

    def _referent(self, reference: Any) -> Any:
        """What a weak reference stands for. One of the outside is the same at each call; what it stands for may go."""
        value = self.look(reference)
        if id(reference) not in self.made:
            self.outside.touch(
                value, Source(f"{self.outside.guards.constant(reference)}()", "a weak reference's object")
            )
        return value

    def _call_module(self, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Without hooks, calling a module is calling its `forward`."""
        outside = self.outside
        kind = type(module)
        outside.class_attribute(kind, "__call__", torch.nn.Module.__call__)
        implementation = lookup(kind, "_call_impl")
        outside.class_attribute(kind, "_call_impl", implementation)
        if implementation is not torch_compat.module_call():
            return self.push_frame(torch.nn.Module.__call__, [module, *args], kwargs)  # type: ignore[arg-type]
        inside = attributes_of(module) or {}
        own = [inside.get(name) for name in _MODULE_HOOKS]
        every = torch_compat.module_hooks()
        if any(own) or any(every) or any(each is None for each in own) or any(name in inside for name in _CALL_INSTEAD):
            return self.push_frame(torch.nn.Module.__call__, [module, *args], kwargs)  # type: ignore[arg-type]
        dictionary = outside.dictionary(module)
        if dictionary is not None and outside.once("no hooks", dictionary):
            hooks = " or ".join(f"{dictionary}[{name!r}]" for name in _MODULE_HOOKS)
            words = outside.sources[id(module)].words
            instead = " or ".join(f"{name!r} in {dictionary}" for name in _CALL_INSTEAD)
            outside.guards.check(f"not ({hooks} or {instead})", f"{words} has no hooks")
        if outside.once("no global hooks"):
            names = " or ".join(map(outside.guards.constant, every))
            outside.guards.check(f"not ({names})", "there are no hooks for all modules")
        return self.call(self.attr_now(module, "forward"), args, kwargs)

    # -- inlining

    def push_frame(
        self, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any], outcome: str | Instead = PUSH
    ) -> Any:
        code = function.__code__
        if len(self.frames) >= MOST_FRAMES:
            raise Break(f"calls are nested {MOST_FRAMES} deep", leave=True)
        closure = function.__closure__ or ()
        if id(function) not in self.made:
            self._guard_function(function)
        frame = Frame(code, function.__globals__, closure)
        frame.outcome = outcome
        frame.locals = self._bound(function, args, kwargs)
        self.frames.append(frame)
        return PUSHED

    def _guard_function(self, function: FunctionType) -> None:
        """An inlined function has to be the same one, with the same code; its cells are of the outside."""
        outside = self.outside
        if outside.sources.get(id(function)) is None:
            outside.root(function, function.__qualname__)
        source = outside.function(function)
        if source is None:
            return
        for number, (name, cell) in enumerate(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        ):
            if id(cell) not in self.made:
                outside.touch(cell, source._replace(code=f"{source.code}.__closure__[{number}]", words=name))

    def _bound(self, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The locals with which a function begins."""
        code = function.__code__
        names = code.co_varnames
        positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
        named = positional + keyword_only
        bound = dict(zip(names[:positional], args, strict=False))
        rest = named
        fits = True
        if code.co_flags & inspect.CO_VARARGS:
            bound[names[rest]] = tuple(self._settled(args[positional:]))
            rest += 1
        elif len(args) > positional:
            fits = False
        extra = {}
        takeable = names[code.co_posonlyargcount : named]
        for name, value in kwargs.items():
            if name in takeable:
                fits = fits and name not in bound
                bound[name] = value
            else:
                extra[name] = value
        if code.co_flags & inspect.CO_VARKEYWORDS:
            bound[names[rest]] = self._settled_values(extra)
        elif extra:
            fits = False
        if fits and not all(name in bound for name in names[:named]):
            fits = self._fill_in(function, bound)
        if not fits:
            self._does_not_fit(function, self._settled(args), self._settled_values(kwargs))
        return bound

    def _fill_in(self, function: FunctionType, bound: dict[str, Any]) -> bool:
        """Defaults for what was not given. False if something is missing even so."""
        code = function.__code__
        names, positional = code.co_varnames, code.co_argcount
        defaults = function.__defaults__ or ()
        if any(name not in bound for name in names[:positional]):
            self.outside.field(function, "__defaults__", function.__defaults__)
        begin = positional - len(defaults)
        for number, name in enumerate(names[:positional]):
            if name not in bound:
                if number < begin:
                    return False
                self.outside.item(defaults, number - begin)
                bound[name] = defaults[number - begin]
        by_name = {} if function.__kwdefaults__ is None else function.__kwdefaults__
        for name in names[positional : positional + code.co_kwonlyargcount]:
            if name not in bound:
                self.outside.field(function, "__kwdefaults__", function.__kwdefaults__)
                self.outside.key(by_name, name)
                if name not in by_name:
                    return False
                bound[name] = by_name[name]
        return True

    def _does_not_fit(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Raises the TypeError that CPython raises, with a note of where and with what it was called."""
        code = function.__code__
        make: Any = CodeType
        empty = make(
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, len(code.co_varnames), 1,
            code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS), _NOTHING.co_code, (None,), (),
            code.co_varnames, code.co_filename, code.co_name, function.__qualname__, code.co_firstlineno, b"", b"",
        )  # fmt: skip
        stand_in = FunctionType(empty, {}, code.co_name, function.__defaults__)
        stand_in.__kwdefaults__ = function.__kwdefaults__
        stand_in.__qualname__ = function.__qualname__
        try:
            stand_in(*args, **kwargs)
        except TypeError as error:
            wrong = error
        else:
            return
        given = ", ".join(
            [type(each).__name__ for each in args] + [f"{name}: {type(each).__name__}" for name, each in kwargs.items()]
        )
        where = f"{code.co_filename}:{code.co_firstlineno}"
        note(wrong, f"{function.__qualname__} ({where}) was called from {' in '.join(self.where())} with ({given})")
        self.raises(wrong.with_traceback(None))

    # -- making objects

    def construct(self, kind: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calling a class."""
        handler = CLASSES.get(kind)
        if handler is not None:
            return self._handled(handler, kind, args, kwargs)
        if kind in _BREAKING:
            raise Break(_BREAKING[kind])
        if issubclass(kind, enum.Enum):
            return self.look(functools.partial(kind, *args, **kwargs))
        if issubclass(kind, torch.nn.Module) and kind not in _MODULES_OF_MODULES:
            raise Break(f"a module is made ({kind.__qualname__})", "make modules outside of what is captured")
        if issubclass(kind, torch.Tensor):
            raise Break(f"{a_(kind)} is made")
        if lookup(kind, "__del__") is not ABSENT:
            raise Break(f"{a_(kind)} is made, which wants to know when it is dropped", leave=True)
        if kind is weakref.finalize:
            raise Break("somebody wants to know when an object is dropped", leave=True)
        if issubclass(kind, type):
            if kind is type and len(args) == 1:
                return type(args[0])
            raise Break("a class is made")
        of_kind = lookup(type(kind), "__call__")
        if is_python(of_kind):
            return self.push_frame(of_kind, [kind, *args], kwargs)
        new, init = lookup(kind, "__new__"), torch_compat.plain_init(lookup(kind, "__init__"))
        if is_a(new, (staticmethod, classmethod)):
            new = new.__func__
        python_new, python_init = is_python(new), is_python(init)
        if (type(new) is FunctionType and not python_new) or (type(init) is FunctionType and not python_init):
            if not torch_calls.is_fact(kind):
                raise Break(f"a {kind.__module__}.{kind.__qualname__} is made")
            return self._make_natively(kind, args, kwargs, known=True)
        if not python_new and not python_init:
            return self._make_natively(kind, args, kwargs)
        for name, found in (("__new__", new), ("__init__", init)):
            if type(found) is FunctionType:
                self.outside.class_attribute(kind, name, lookup(kind, name))
        if python_new:
            made = self.call_now(new, kind, *args, **kwargs)
        elif new is object.__new__:
            made = self.native(object.__new__, kind)
        else:
            self._may_be_called(new, kind)
            if not issubclass(kind, (dict, list, set, BaseException)):  # these take no notice, or only keep them
                args = [self._for_native(self.native_iterable(each) if self._is_lazy(each) else each) for each in args]
                kwargs = {name: self._for_native(each) for name, each in kwargs.items()}
            made = self.native(new, kind, *args, **kwargs)
        if not is_a(made, kind):
            return made
        if python_init:
            return self.push_frame(init, [made, *args], kwargs, Instead(made, must_be_none=True))
        if init is not object.__init__:
            self.native(init, made, *args, **kwargs)
        return made

    def _may_be_called(self, new: Any, kind: type) -> None:
        home = native_base(kind)
        if home.__module__ not in HARMLESS_MODULES and not issubclass(kind, BaseException):
            raise Break(f"a {kind.__module__}.{kind.__qualname__} is made")

    def _make_natively(self, kind: type, args: list[Any], kwargs: dict[str, Any], *, known: bool = False) -> Any:
        home = native_base(kind)
        is_known = known or home.__module__ in HARMLESS_MODULES or home in HARMLESS_CLASSES or torch_calls.is_fact(kind)
        if not is_known and not issubclass(kind, BaseException):
            raise Break(f"a {kind.__module__}.{kind.__qualname__} is made")
        if kind is weakref.ref and len(args) == 1 and not kwargs:
            made = self.look(weakref.ref, *args)  # nothing of the object is read
            self.made[id(made)] = made
            return made
        args = [self._for_native(each) for each in args]
        kwargs = {name: self._for_native(each) for name, each in kwargs.items()}
        if kind is torch.Size:
            return self.look(functools.partial(torch.Size, *args, **kwargs))
        return self.native(kind, *args, **kwargs)

    # -- native functions

    def _call_native(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if any(function is each for each in _WATCHES):
            raise Break(f"sys.{function.__name__} is called", leave=True)
        if function in _BREAKING:
            reason = _BREAKING[function]
            raise Break(reason, _ADVICE.get(reason, ""))
        args, kwargs = self._settled(args), self._settled_values(kwargs)
        handler = FUNCTIONS.get(function) if type(function) is BuiltinFunctionType else None
        if handler is not None:
            return self._handled(handler, function, args, kwargs)
        if looks_at_frame(function, args):
            raise Break(f"{function.__qualname__}() looks at the stack of frames")
        if torch_calls.is_fact(function):
            return self.call_torch(function, args, kwargs)
        name = function.__name__
        owner = getattr(function, "__self__", None)
        if is_a(owner, ModuleType) or type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            owner = None
        if owner is None and args and type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            if not is_a(args[0], function.__objclass__):
                return self.native(function, *args, **kwargs)
            return self._native_method(args[0], name, args[1:], kwargs, function)
        if owner is not None and not is_a(owner, type):
            return self._native_method(owner, name, args, kwargs, function)
        if torch_calls.is_torch(function) or (is_a(owner, type) and torch_calls.is_torch(owner)):
            return self.call_torch(function, args, kwargs)
        return self._foreign(function, args, kwargs)


def _nothing() -> None:
    return None


_NOTHING: Final = _nothing.__code__.replace(co_code=bytes([151, 0, 100, 0, 83, 0]))

_MODULES_OF_MODULES: Final = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
"""Modules without parameters of their own: they may be made in a graph (a slice of a list of layers is one)."""
_CALL_INSTEAD: Final = ("_compiled_call_impl", "_call_impl")
"""Attributes of a module that may be called instead of its `forward`."""
_MODULE_HOOKS: Final = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


@functools.cache
def _is_looked_into(file: str, module: str) -> bool:
    """Whether a function is interpreted: what is not of Python's library, and some of that."""
    in_library = file.startswith((_LIBRARY, "<frozen")) and "site-packages" not in file
    return not in_library or module in _LOOKED_INTO

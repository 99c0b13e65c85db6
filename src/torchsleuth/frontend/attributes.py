"""Reading and writing attributes as CPython does, but with every step in sight.

`getattr` runs through instance dictionaries, classes, descriptors, properties and `__getattr__`. What of that is Python
is interpreted; what is read from the outside is guarded on the way: the value in the dictionary, that nothing in the
dictionary hides the class's attribute, that the class still has it.
"""

from __future__ import annotations

import collections
import enum
import functools
import operator
import threading
import types
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth.frontend import torch_calls
from torchsleuth.frontend.frames import ABSENT, DISCARD, Generator
from torchsleuth.frontend.guards import is_constant
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, Machine, UserError
from torchsleuth.frontend.outside import attributes_of, lookup, read, slot_of, slots_of
from torchsleuth.frontend.symbolic import as_plain

_STORES = ("_parameters", "_buffers", "_modules")
_CALLABLES = (FunctionType, BuiltinFunctionType, MethodType, types.MethodWrapperType, types.MethodDescriptorType)
_FUNCTION_FACTS = ("__name__", "__qualname__", "__module__", "__code__", "__globals__", "__get__", "__call__")
HIDDEN_STATE: Final = (types.MappingProxyType, threading.local, *weakref.ProxyTypes)
"""Kinds of objects of which nobody knows when they have changed."""
_CONTAINERS = (list, dict, set, collections.deque)
_GENERIC_WRITERS: Final = tuple(
    each.__setattr__ for each in (object, BaseException, types.SimpleNamespace, functools.partial)
)
"""How attributes are set that lie in the dictionary of the object, or in what a descriptor says."""
_UNBOUND: Final = (types.WrapperDescriptorType, types.MethodDescriptorType)
"""Methods of C code that a class may have given a name of its own choice."""


def _reader(kind: type) -> Any:
    """What reads attributes of such objects, once `__getattribute__` of the user's has had its say."""
    found = lookup(kind, "__getattribute__")
    return read if is_a(found, FunctionType) else found


def _made() -> Any:
    yield


_a_generator: Final = _made()
"""Knows what generators know."""


def is_python(function: Any) -> bool:
    """Whether it is a function of Python's that we interpret, rather than call."""
    return type(function) is FunctionType and not torch_calls.is_leaf(function)


def _is_native(method: Any, name: str) -> bool:
    """Whether a class has the method of that name from C code; not another one that it has given the name to."""
    return is_a(method, types.WrapperDescriptorType) and method.__name__ == name


class Attributes(Machine):
    # -- reading

    def load_attr(self, owner: Any, name: str) -> Any:
        """The attribute, or `PUSHED`."""
        owner = as_plain(owner)
        kind = type(owner)
        if kind in HIDDEN_STATE and self.outside.source(owner) is not None:
            raise Break(f"{name} of a {kind.__qualname__} is read, into which nobody can look")
        if is_a(owner, torch.Tensor):
            return self._of_tensor(owner, name)
        if kind is ModuleType or is_a(owner, ModuleType):
            return self._of_module(owner, name)
        if is_a(owner, type):
            return self._of_class(owner, name)
        if kind is FunctionType:
            return self._of_function(owner, name)
        if kind is MethodType and lookup(MethodType, name) is ABSENT:
            return self.load_attr(owner.__func__, name)
        if kind is super:
            return self._of_super(owner, name)
        if kind is Generator:
            return self._of_generator(owner, name)
        reader = lookup(kind, "__getattribute__")
        if is_python(reader):
            self.outside.class_attribute(kind, "__getattribute__", reader)
            return self._with_own_reader(reader, owner, name)
        if not _is_native(reader, "__getattribute__"):
            raise Break(f"attributes of a {kind.__qualname__} are read by {reader!r:.60}")
        return self.generic_attr(owner, name)

    def _of_generator(self, owner: Generator, name: str) -> Any:
        """A generator whose frame is ours answers as a real one does."""
        found = Generator.__dict__.get(name)
        if type(found) is FunctionType:
            return MethodType(found, owner)
        if name == "gi_running":
            return owner.running
        if name.startswith(("gi_", "__name__", "__qualname__", "__del__")):
            raise Break(f"{name} of a generator is read")
        return self.look(getattr, _a_generator, name)

    def _with_own_reader(self, reader: Any, owner: Any, name: str) -> Any:
        """`__getattribute__` of the user's, and then `__getattr__`."""
        fallback = lookup(type(owner), "__getattr__")
        if fallback is ABSENT:
            return self.call(reader, [owner, name], {})
        try:
            return self.call_now(reader, owner, name)
        except UserError as raised:
            if not is_a(raised.error, AttributeError):
                raise
        return self.call(fallback, [owner, name], {})

    def generic_attr(self, owner: Any, name: str, *, alone: bool = False) -> Any:
        """What `object.__getattribute__`, and then (unless it is `alone`) `__getattr__`, gives."""
        kind = type(owner)
        if is_a(owner, enum.Enum):
            self.outside.literal(owner)  # it is a constant, but may have attributes that are not
        found = lookup(kind, name)
        fallback = ABSENT if alone else lookup(kind, "__getattr__")
        inside = attributes_of(owner)
        is_data = found is not ABSENT and (hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"))
        if not is_data and inside is not None:
            self.outside.attribute(owner, name)
            if name in inside:
                # The class's, if there is one, is hidden: as long as it is, or becomes, no property.
                self.outside.class_attribute(kind, name, found)
                return inside[name]
        if found is ABSENT:
            return self._missing(owner, name, inside, alone)
        self.outside.class_attribute(kind, name, found)
        of = type(found)
        if of is FunctionType:
            return MethodType(found, owner)
        if of in (staticmethod, classmethod):
            return found.__get__(owner, kind)
        getter = lookup(of, "__get__")
        if getter is ABSENT:
            return self._of_class_value(found)
        if fallback is ABSENT:
            return self._computed(owner, name, found, self.call)
        try:
            return self._computed(owner, name, found, self._now)
        except UserError as raised:
            if not is_a(raised.error, AttributeError):
                raise
        self.outside.class_attribute(kind, "__getattr__", fallback)
        return self.call(fallback, [owner, name], {})

    def _now(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.call_now(function, *args, **kwargs)

    def _computed(self, owner: Any, name: str, found: Any, call: Callable[..., Any]) -> Any:
        """What a property, a slot or another descriptor of the class gives. Code of the user's is run by `call`."""
        kind, of = type(owner), type(found)
        if of is property:
            if found.fget is None:
                return self.native(getattr, owner, name)
            return call(found.fget, [owner], {})
        if of is functools.cached_property:
            value = self.call_now(found.func, owner)
            self.outside.writes(owner)
            inside = attributes_of(owner)
            if inside is None:
                raise Break("a cached property of an object without a dictionary")
            inside[name] = value
            return value
        if of is types.MemberDescriptorType and name in slots_of(kind):
            self.outside.slot(owner, name)
            value = slot_of(owner, name)
            return self._absent(owner, name) if value is ABSENT else value
        getter = lookup(of, "__get__")
        if is_python(getter):
            self._of_class_value(found)
            return call(getter, [found, owner, kind], {})
        return self._native_descriptor(owner, name)

    def _absent(self, owner: Any, name: str) -> Any:
        """Raises what CPython does for a slot that is empty."""
        try:
            read(owner, name)
        except AttributeError as error:
            missing = error.with_traceback(None)
            missing.name, missing.obj = name, owner  # `getattr` adds them
        return self.raises(missing)

    def _missing(self, owner: Any, name: str, inside: dict[str, Any] | None, alone: bool) -> Any:
        kind = type(owner)
        fallback = ABSENT if alone else lookup(kind, "__getattr__")
        self.outside.class_attribute(kind, name, ABSENT)
        if is_a(owner, torch.nn.Module) and fallback is torch.nn.Module.__getattr__ and inside is not None:
            for store in _STORES:
                held: Any = inside.get(store)
                if type(held) in (dict, collections.OrderedDict) and name in held:
                    self.outside.store(owner, store)
                    self.outside.key(held, name)
                    return held[name]
            for store in _STORES:
                if type(inside.get(store)) in (dict, collections.OrderedDict):
                    self.outside.attribute(owner, store)
                    self.outside.key(inside[store], name)
            self.outside.no_attribute(kind, name)
            return self.raises(
                AttributeError(f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=owner)
            )
        if is_python(fallback) or is_a(fallback, _UNBOUND):
            self.outside.class_attribute(kind, "__getattr__", fallback)
            return self.call(fallback, [owner, name], {})
        if fallback is not ABSENT:
            raise Break(f"{kind.__qualname__} looks up attributes natively")
        return self.native(_reader(kind), owner, name)

    def _native_descriptor(self, owner: Any, name: str) -> Any:
        """An attribute that C code computes."""
        source = self.outside.sources.get(id(owner))
        if name == "__dict__":
            return self.dictionary_of(owner)
        if name in ("__traceback__", "__context__", "__cause__", "__suppress_context__"):
            raise Break(f"{name} of an exception is read")
        value = self.look(_reader(type(owner)), owner, name)
        if name != "__class__" and source is not None:
            self.outside.field(owner, name, value)
        return value

    def dictionary_of(self, owner: Any) -> Any:
        """The dictionary in which an object has its attributes."""
        value = attributes_of(owner)
        if value is None or is_a(owner, (ModuleType, type, FunctionType, torch.Tensor)):
            raise Break(f"the dictionary of a {type(owner).__qualname__} is read")
        self.outside.instance_dictionary(owner, value)
        return value

    def _of_class_value(self, value: Any) -> Any:
        """A plain value that lies in a class; that it is the same one is guarded already."""
        if not is_constant(value) and not is_a(value, torch.Tensor):
            self.outside.root(value, f"a {type(value).__qualname__} of a class")
        elif is_a(value, torch.Tensor):
            self.outside.pinned_tensor(value)
        return value

    def _of_module(self, owner: ModuleType, name: str) -> Any:
        if name in owner.__dict__:
            self.outside.module_attribute(owner, name)
            return owner.__dict__[name]
        if name in ("__dict__", "__class__"):
            raise Break(f"{name} of a module is read")
        if type(owner) is not ModuleType and lookup(type(owner), name) not in (ABSENT, lookup(ModuleType, name)):
            raise Break(f"{owner.__name__}.{name} is computed each time")
        try:
            value = self.look(getattr, owner, name)
        except UserError:
            self.outside.module_attribute(owner, name)  # that there is none
            raise
        if name in owner.__dict__:  # a module that imports lazily has it now
            self.outside.module_attribute(owner, name)
        elif not is_a(value, (type, FunctionType, ModuleType, BuiltinFunctionType)) and not is_constant(value):
            raise Break(f"{owner.__name__}.{name} is computed each time")
        return value

    def _of_class(self, owner: type, name: str) -> Any:
        above = lookup(type(owner), name)
        if type(owner) is not type:
            self.outside.class_attribute(type(owner), name, above)
            if type(lookup(type(owner), "__getattribute__")) is FunctionType:
                raise Break(f"the class {owner.__qualname__} looks up attributes in its own way")
        if above is not ABSENT and hasattr(type(above), "__set__"):
            if name == "__dict__":
                raise Break("the dictionary of a class is read")
            if type(above) is property:
                return self.call(above.fget, [owner], {})
            value = self.look(getattr, owner, name)
            if not is_constant(value) and not is_a(value, (type, tuple)):
                raise Break(f"{name} of a class is read")
            if name not in ("__mro__", "__base__", "__bases__"):
                self.outside.class_field(owner, name, value)
            return value
        found = lookup(owner, name)
        if found is ABSENT:
            if issubclass(owner, enum.Enum):
                return self.look(getattr, owner, name)
            if above is not ABSENT:
                self.outside.class_attribute(owner, name, ABSENT)
                return self._of_metaclass(owner, name, above)
            fallback = lookup(type(owner), "__getattr__")
            if is_python(fallback):
                return self.call(fallback, [owner, name], {})
            self.outside.class_attribute(owner, name, ABSENT)
            return self.native(getattr, owner, name)
        self.outside.class_attribute(owner, name, found)
        of = type(found)
        if of is FunctionType:
            return found
        if of in (staticmethod, classmethod):
            return found.__get__(None, owner)
        getter = lookup(of, "__get__")
        if getter is ABSENT:
            if is_a(found, enum.Enum):
                return found
            return self._of_class_value(found)
        if is_python(getter):
            self._of_class_value(found)
            return self.call(getter, [found, None, owner], {})
        return self.look(getattr, owner, name)

    def _of_metaclass(self, owner: type, name: str, above: Any) -> Any:
        """What a class has from its own class, as an instance has it from its class."""
        if type(above) is FunctionType:
            return MethodType(above, owner)
        if type(above) is property and above.fget is not None:
            return self.call(above.fget, [owner], {})
        getter = lookup(type(above), "__get__")
        if getter is ABSENT:
            return self._of_class_value(above)
        if is_python(getter):
            self._of_class_value(above)
            return self.call(getter, [above, owner, type(owner)], {})
        return self.look(getattr, owner, name)

    def _of_function(self, owner: FunctionType, name: str) -> Any:
        if id(owner) in self.made:
            return self.look(getattr, owner, name)
        if self.outside.sources.get(id(owner)) is None:  # found in a class
            self.outside.root(owner, owner.__qualname__)
        inside = attributes_of(owner)
        if inside is not None and (name in inside or not hasattr(FunctionType, name)):
            self.outside.function_attribute(owner, name)
            if name in inside:
                return inside[name]
            return self.native(getattr, owner, name)
        if name in ("__dict__", "__annotations__"):
            raise Break(f"{name} of a function is read")
        value = self.look(getattr, owner, name)
        if name in (
            "__defaults__",
            "__kwdefaults__",
            "__closure__",
            "__doc__",
            "__name__",
            "__qualname__",
            "__module__",
        ):
            self.outside.field(owner, name, value)
        elif name == "__code__":
            self.outside.function(owner)
        return value

    def _of_super(self, owner: Any, name: str) -> Any:
        me = owner.__self__
        if name == "__class__" or me is None:
            return self.look(getattr, owner, name)
        kind = me if is_a(me, type) and issubclass(me, owner.__thisclass__) else type(me)
        order = kind.__mro__
        for each in order[order.index(owner.__thisclass__) + 1 :]:
            if name in each.__dict__:
                found = each.__dict__[name]
                self.outside.class_attribute(each, name, found)
                if type(found) is FunctionType:
                    return found if me is kind else MethodType(found, me)
                if type(found) is property:
                    return self.call(found.fget, [me], {})
                if lookup(type(found), "__get__") is ABSENT:
                    return self._of_class_value(found)
                break
        return self.look(getattr, owner, name)

    def _of_tensor(self, owner: torch.Tensor, name: str) -> Any:
        inside = attributes_of(owner)
        if inside and name in inside:
            self.outside.attribute(owner, name)
            return inside[name]
        if not torch_calls.is_plain(owner):
            nested = type(owner) in torch_calls.TENSORS
            words = "a nested tensor" if nested else f"a tensor of the class {type(owner).__qualname__}"
            raise Break(words, "make a plain tensor of it first")
        found = lookup(type(owner), name)
        if found is ABSENT:
            self.outside.attribute(owner, name)
            self.recorder.knows_kind(owner)
            return self.native(getattr, owner, name)
        if name in torch_calls.RECORDED_ATTRIBUTES:
            return self.torch_call(getattr, False, (owner, name), {})
        if name == "shape":
            return self.recorder.size(owner)
        if name in torch_calls.FACTS:
            self.recorder.knows_kind(owner)
            value = self.look(getattr, owner, name)
            if name == "nbytes" and self.recorder.dynamic:
                self.recorder.sizes.ask_tensor(operator.attrgetter(name), self.recorder.node(owner), value)
            return value
        if name in torch_calls.OWN_FACTS:
            value = self.look(getattr, owner, name)
            self.outside.tensor_fact(owner, f".{name}", value)
            return value
        if is_a(found, (FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, classmethod)):
            return self.look(getattr, owner, name)
        if is_a(found, property) and found.fget is not None and not is_a(found.fget, FunctionType):
            raise Break(f"Tensor.{name} is read")
        raise Break(f"Tensor.{name} is read", torch_calls.advice_for(name))

    def torch_call(self, target: Any, method: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    # -- writing

    def store_attr(self, owner: Any, name: str, value: Any) -> Any:
        """None, or `PUSHED`: a frame that discards its result does it."""
        kind = type(owner)
        if is_a(owner, torch.Tensor):
            raise Break(f"an attribute of a tensor is set ({name})")
        if is_a(owner, type):
            raise Break(f"an attribute of a class is set ({owner.__qualname__}.{name})")
        if is_a(owner, ModuleType):
            self.outside.writes_global(owner.__dict__)
            self.outside.wrote(owner.__dict__, name)
            self.native(setattr, owner, name, value)
            return None
        writer = lookup(kind, "__setattr__")
        if writer is torch.nn.Module.__setattr__:
            return self._store_in_module(owner, name, value)
        if is_python(writer):
            self.outside.class_attribute(kind, "__setattr__", writer)
            return self._discarded(writer, [owner, name, value])
        if any(writer is each for each in _GENERIC_WRITERS):
            return self.generic_store(owner, name, value)
        if _is_native(writer, "__setattr__"):
            raise Break(f"an attribute of a {kind.__qualname__} is set")
        if is_a(writer, _UNBOUND):  # `__setattr__ = dict.__setitem__`
            self.outside.class_attribute(kind, "__setattr__", writer)
            result = self.call(writer, [owner, name, value], {})
            if result is PUSHED:
                self.frames[-1].outcome = DISCARD
            return result
        raise Break(f"an attribute of a {kind.__qualname__} is set")

    def generic_store(self, owner: Any, name: str, value: Any) -> Any:
        """What `object.__setattr__` does."""
        kind = type(owner)
        if is_a(owner, enum.Enum):
            self.outside.literal(owner)
        found = lookup(kind, name)
        if found is not ABSENT:
            self.outside.class_attribute(kind, name, found)
        if type(found) is property:
            if found.fset is None:
                return self.native(setattr, owner, name, value)
            return self._discarded(found.fset, [owner, value])
        setter = ABSENT if found is ABSENT else lookup(type(found), "__set__")
        if is_python(setter):
            self._of_class_value(found)
            return self._discarded(setter, [found, owner, value])
        if setter is not ABSENT and type(found) is not types.MemberDescriptorType:
            raise Break(f"{name} of a {kind.__qualname__} is set")
        self.outside.wrote(owner, name, attribute=True)
        self.native(object.__setattr__ if not is_a(owner, BaseException) else setattr, owner, name, value)
        return None

    def _discarded(self, function: Any, args: list[Any]) -> Any:
        if not is_python(function):
            raise Break(f"{function!r:.60} sets an attribute")
        return self.push_frame(function, args, {}, DISCARD)

    def _store_in_module(self, owner: torch.nn.Module, name: str, value: Any) -> Any:
        inside = attributes_of(owner)
        stores: dict[str, dict[str, Any]] = {}
        for store in _STORES:
            held = None if inside is None else inside.get(store)
            if held is None or type(held) not in (dict, collections.OrderedDict):
                raise Break("a module is not set up yet")
            stores[store] = held
            self.outside.attribute(owner, store)
            self.outside.key(held, name)
        if (
            is_a(value, (torch.nn.Parameter, torch.nn.Module))
            or name in stores["_parameters"]
            or name in stores["_modules"]
        ):
            raise Break(f"a parameter or a module is set ({name})")
        if name in stores["_buffers"]:
            if (value is not None and not is_a(value, torch.Tensor)) or torch_calls.buffers_are_hooked():
                raise Break(f"a buffer is set ({name})")
            self.native(stores["_buffers"].__setitem__, name, value)
            return None
        if isinstance(value, torch.nn.Buffer):  # of which only its class can tell
            raise Break(f"a buffer is set ({name})")
        return self.generic_store(owner, name, value)

    def delete_attr(self, owner: Any, name: str) -> None:
        kind = type(owner)
        if is_a(owner, (torch.Tensor, type, torch.nn.Module)) or not _is_native(
            lookup(kind, "__delattr__"), "__delattr__"
        ):
            raise Break(f"an attribute is deleted ({name})")
        found = lookup(kind, name)
        if found is not ABSENT and type(found) is not types.MemberDescriptorType and hasattr(type(found), "__delete__"):
            raise Break(f"an attribute is deleted ({name})")
        if is_a(owner, ModuleType):
            self.outside.writes_global(owner.__dict__)
        else:
            self.outside.attribute(owner, name)
            self.outside.writes(owner)
        self.native(delattr, owner, name)

    # -- by name, waiting for the result

    def attr_now(self, owner: Any, name: str) -> Any:
        base = len(self.frames)
        self.bases.append(base)
        try:
            result = self.load_attr(owner, name)
            if result is PUSHED:
                result = self.run(base)
                self.acted = True
            return result
        except UserError:
            del self.frames[base:]
            raise
        finally:
            self.bases.pop()

    def has_attr(self, owner: Any, name: str) -> bool:
        try:
            self.attr_now(owner, name)
        except UserError as raised:
            if is_a(raised.error, AttributeError):
                return False
            raise
        return True

"""Whatever a call can reach, and so could change: noted, and put back.

    reach = Reach([("step", function), ("args[0]", argument)])
    if reach.why_not: ...                    something is in reach that cannot be put back once it was used
    function(argument)
    reach.changed()                          the holders whose content is not what it was
    reach.put_back()                         everything is as it was noted; unless `reach.lost()` says what cannot be

In reach is what hangs on the roots: elements, attributes, tensors and their memory, what functions close over, their
defaults, the globals that they name, the classes of instances. Of functions, classes and modules only the user's own
are looked into, not torch's, Python's, or those of installed packages. State that native code hides is not seen.

(`compare.Subject` does the like for models, on copies of the inputs. Here the call has to see the very objects, and all
that Python can change is undone.)
"""

from __future__ import annotations

import collections
import enum
import functools
import io
import os
import random
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.outside import attributes_of, slots_of

MOST: Final = 300_000
"""With more objects in reach, a call can't be undone in any useful time."""

ATOMS: Final = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented), enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, re.Pattern, CodeType,
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
"""What can't change, and holds nothing."""

_SEALED: Final = (
    "torchsleuth", "logging", "threading", "multiprocessing", "asyncio", "concurrent", "importlib", "inspect",
    "unittest", "subprocess", "socket", "ctypes", "torch._dynamo", "torch._inductor",
)  # fmt: skip
"""Instances of these modules' classes hold half of the process, and no state of a program."""
_FUNCTIONS: Final = (FunctionType, staticmethod, classmethod, property)
_TABLES: Final = ("_parameters", "_buffers", "_modules")
_FOREIGN: Final = tuple(
    {os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, os.path.dirname(torch.__file__) + os.sep}
    | {sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib")}
)
_OTHERS: Final = sys.stdlib_module_names | {"torch", "torchsleuth"}

Pairs = list[tuple[Any, Any]]
"""What a holder holds: under which key, and what."""


class Holder:
    """Something whose content can change."""

    has_order = False
    """The order of its keys is seen by the program."""

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value
        self.before: Pairs = []
        """What it held when it was noted."""

    def read(self) -> Pairs:
        raise NotImplementedError

    def write(self, content: Pairs) -> None:
        raise NotImplementedError

    def step(self, key: Any) -> str:
        """What follows the holder's path where this key is meant."""
        return f"[{key!r}]" if isinstance(key, ATOMS) else f"[{type(key).__name__}]"

    def note(self) -> None:
        self.before = self.read()

    def changed(self) -> bool:
        now = self.read()
        return len(now) != len(self.before) or any(
            value is not old or not _is_same_key(key, was)
            for (key, value), (was, old) in zip(now, self.before, strict=True)
        )

    def put_back(self) -> None:
        if self.changed():
            self.write(self.before)

    def lost(self) -> str:
        """Why it cannot be put back as it was. Empty, if it can."""
        return ""


def _is_same_key(key: Any, other: Any) -> bool:
    return key is other or (isinstance(key, ATOMS) and type(key) is type(other) and key == other)


class _Sequence(Holder):
    """A list, a deque, a bytearray."""

    def read(self) -> Pairs:
        return list(enumerate(self._base().__iter__(self.value)))

    def write(self, content: Pairs) -> None:
        base, values = self._base(), [value for _, value in content]
        base.clear(self.value)
        base.extend(self.value, values)

    def _base(self) -> Any:
        return next(base for base in (list, collections.deque, bytearray) if isinstance(self.value, base))


class _Mapping(Holder):
    """A dict, or the attributes of an object."""

    def __init__(self, path: str, value: Any, *, attributes: bool = False) -> None:
        super().__init__(path, value)
        self._attributes = attributes
        self.has_order = not attributes
        self._base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def read(self) -> Pairs:
        return list(self._base.items(self.value))

    def write(self, content: Pairs) -> None:
        self._base.clear(self.value)
        for key, value in content:
            self._base.__setitem__(self.value, key, value)

    def step(self, key: Any) -> str:
        return f".{key}" if self._attributes else super().step(key)


class _Set(Holder):
    def read(self) -> Pairs:
        return [(element, element) for element in set.__iter__(self.value)]

    def write(self, content: Pairs) -> None:
        set.clear(self.value)
        set.update(self.value, [element for element, _ in content])

    def changed(self) -> bool:
        return {id(element) for element in set.__iter__(self.value)} != {id(element) for element, _ in self.before}


class _Names(Holder):
    """Names in a module, as far as functions in reach know them."""

    def __init__(self, path: str, value: dict[str, Any]) -> None:
        super().__init__(path, value)
        self.names: dict[str, None] = {}

    def read(self) -> Pairs:
        return [(name, self.value[name]) for name in self.names if name in self.value]

    def write(self, content: Pairs) -> None:
        kept = dict(content)
        for name in self.names:
            if name in kept:
                self.value[name] = kept[name]
            else:
                self.value.pop(name, None)

    def step(self, key: Any) -> str:
        return f".{key}" if self.path else str(key)


class _Class(Holder):
    """The attributes of a class."""

    def read(self) -> Pairs:
        return [(name, value) for name, value in vars(self.value).items() if not _is_pythons(name, value)]

    def write(self, content: Pairs) -> None:
        kept = dict(content)
        for name in [name for name, _ in self.read() if name not in kept]:
            type.__delattr__(self.value, name)
        for name, value in kept.items():
            if vars(self.value).get(name, self) is not value:
                type.__setattr__(self.value, name, value)

    def step(self, key: Any) -> str:
        return f".{key}"


class _Slots(Holder):
    def read(self) -> Pairs:
        found = []
        kind: Any = type(self.value)
        for name in own_slots(kind):
            try:
                found.append((name, object.__getattribute__(self.value, name)))
            except AttributeError:
                continue
        return found

    def write(self, content: Pairs) -> None:
        kept = dict(content)
        for name, _ in self.read():
            if name not in kept:
                object.__delattr__(self.value, name)
        for name, value in kept.items():
            object.__setattr__(self.value, name, value)

    def step(self, key: Any) -> str:
        return f".{key}"


class _Cell(Holder):
    """A variable that functions share."""

    def read(self) -> Pairs:
        try:
            return [("", self.value.cell_contents)]
        except ValueError:
            return []

    def write(self, content: Pairs) -> None:
        if content:
            self.value.cell_contents = content[0][1]
        else:
            del self.value.cell_contents

    def step(self, key: Any) -> str:
        return ""


class _Native(Holder):
    """State that native code keeps, but gives to who asks: generators of random numbers, arrays of numpy."""

    def note(self) -> None:
        super().note()
        self._exactly = self._state()

    def read(self) -> Pairs:
        state = self._state()
        return [("", repr(state) if isinstance(state, dict) else _as_bytes(state))]

    def write(self, content: Pairs) -> None:
        value, state = self.value, self._exactly
        if isinstance(value, random.Random):
            value.setstate(state)
        elif hasattr(value, "bit_generator"):
            value.bit_generator.state = state
        elif hasattr(value, "set_state"):
            value.set_state(state)
        else:
            value[...] = state

    def changed(self) -> bool:
        return self.read() != self.before

    def step(self, key: Any) -> str:
        return ""

    def _state(self) -> Any:
        value = self.value
        if isinstance(value, random.Random):
            return value.getstate()
        if hasattr(value, "bit_generator"):
            return value.bit_generator.state
        if isinstance(value, torch.Generator):
            return value.get_state()
        return value.get_state(legacy=False) if hasattr(value, "get_state") else value.copy()


class _Cache(Holder):
    """What `functools.lru_cache` keeps: it can be counted, and thrown away as a whole."""

    def read(self) -> Pairs:
        info = self.value.cache_info()
        return [("", (info.misses, info.currsize))]

    def write(self, content: Pairs) -> None:
        self.value.cache_clear()

    def lost(self) -> str:
        if self.read() != self.before and self.before[0][1] != (0, 0):
            return f"the cache of {self.path} has more in it now, which cannot be taken out by itself"
        return ""

    def step(self, key: Any) -> str:
        return "'s cache"


def _as_bytes(state: Any) -> Any:
    """The state in a form that can be compared."""
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    return state if isinstance(state, tuple) else (str(state.dtype), state.shape, state.tobytes())


class TensorHolder(Holder):
    """A tensor: where its memory is and how it lies there, whether it requires a gradient, and the gradient.

    What is in the memory is the business of `_Memory`: tensors share it.
    """

    def __init__(self, path: str, value: torch.Tensor, memory: _Memory | None) -> None:
        super().__init__(path, value)
        self.memory = memory
        self._same_place = value.detach()
        self._copy = None if memory is not None else value.detach().clone()
        self._history = value.grad_fn
        self._may_lose_history = value.is_leaf and not value._is_view()
        """An operation in place gives it a history, which can be taken away again."""

    def read(self) -> Pairs:
        tensor = self.value
        place: Any = None
        if self.memory is not None:
            storage = torch_compat.storage_key(tensor.untyped_storage())
            place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, storage)
        return [("", place), ("requires_grad", tensor.requires_grad), ("grad", tensor.grad if tensor.is_leaf else None)]

    def changed(self) -> bool:
        (_, place), (_, required), (_, grad) = self.read()
        (_, old_place), (_, was_required), (_, old_grad) = self.before
        return place != old_place or required is not was_required or grad is not old_grad or not self._looks_the_same()

    @property
    def had_history(self) -> bool:
        return self._history is not None

    def tensor_before(self) -> torch.Tensor:
        """A tensor with the values that it had."""
        if self.memory is None:
            return self._same_place if self._copy is None else self._copy
        same = self._same_place
        empty = torch.empty(0, dtype=same.dtype, device=same.device)
        return empty.set_(self.memory.before, same.storage_offset(), same.shape, same.stride())

    def lost(self) -> str:
        if self.value.grad_fn is not self._history and not self._may_lose_history:
            return f"{self.path} was written to in place, and autograd keeps account of that"
        if not self._looks_the_same():
            return f"the memory of {self.path}, a tensor of another kind than most, cannot be written back"
        return ""

    def put_back(self) -> None:
        tensor = self.value
        (_, place), (_, required), (_, grad) = self.before
        with torch.no_grad():
            if tensor.grad_fn is not self._history:
                tensor.detach_()
            if self.read()[0][1] != place:
                tensor.data = self._same_place
            if tensor.requires_grad is not required:
                tensor.requires_grad_(required)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad

    def step(self, key: Any) -> str:
        return f".{key}" if key else ""

    def _looks_the_same(self) -> bool:
        if self._copy is None or self._copy.device.type == "meta":
            return True
        try:
            return bool(torch.equal(self.value.detach().to_dense(), self._copy.to_dense()))
        except (RuntimeError, NotImplementedError):
            return False


class _Memory:
    """The bytes under tensors, and what they were."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        self.before = storage.clone()

    def changed(self) -> bool:
        if self._storage.nbytes() != self.before.nbytes():
            return True
        return not torch.equal(_bytes(self._storage), _bytes(self.before))

    def put_back(self) -> None:
        if self._storage.nbytes() != self.before.nbytes():
            self._storage.resize_(self.before.nbytes())
        self._storage.copy_(self.before)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether its values lie in memory that can be read as bytes, in the plain way."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or torch_compat.is_fake(tensor))
        and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    )


class Reach:
    """Everything in reach of some roots, as it was when this was made."""

    most = MOST
    """Objects, at most: else `why_not` says so."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.paths: dict[int, str] = {}
        """Where each object was found first, by its id."""
        self.holders: list[Holder] = []
        self.memories: dict[int, str] = {}
        """Whose memory it is, by its key."""
        self.why_not = ""
        """Why a call cannot be undone at all."""
        self._kept: list[Any] = []
        self._waiting: list[tuple[str, Any]] = list(reversed(list(roots)))
        self._names: dict[int, _Names] = {}
        self._memories: dict[int, _Memory] = {}
        while self._waiting and not self.why_not:
            self._meet(*self._waiting.pop())
            if len(self.paths) > self.most:
                self.why_not = f"more than {self.most:,} objects are in its reach"
        for holder in self.holders:
            holder.note()

    def changed(self) -> list[Holder]:
        """The holders whose content is not what it was."""
        written = {id(memory) for memory in self._memories.values() if memory.changed()}
        return [
            holder
            for holder in self.holders
            if not isinstance(holder, _Cache)  # whether something is computed again changes nothing
            and ((isinstance(holder, TensorHolder) and id(holder.memory) in written) or holder.changed())
        ]

    def lost(self) -> str:
        """What cannot be put back as it was, and why. Empty, if everything can."""
        return next((words for words in (holder.lost() for holder in self.holders) if words), "")

    def put_back(self) -> None:
        for holder in self.holders:
            holder.put_back()
        for memory in self._memories.values():
            if memory.changed():
                memory.put_back()

    # -- finding it

    def _meet(self, path: str, value: Any) -> None:
        if is_a(value, ATOMS) or id(value) in self.paths:
            return
        self.paths[id(value)] = path
        self._kept.append(value)
        if is_a(value, torch.Tensor):
            self._meet_tensor(path, value)
        elif is_a(value, FunctionType):
            self._meet_function(path, value)
        elif is_a(value, type):
            if _is_users(getattr(sys.modules.get(value.__module__), "__file__", None), value.__module__):
                self._hold(_Class(value.__qualname__, value))
                self._follow(value.__qualname__, *value.__bases__)
            return
        elif is_a(value, ModuleType):
            return
        elif is_a(value, MethodType):
            self._follow(path, value.__func__)
            self._follow(f"{path}.__self__", value.__self__)
        elif is_a(value, CellType):
            self._hold(_Cell(path, value))
        elif is_a(value, functools.partial):
            self._follow(path, value.func, value.args, value.keywords)
        elif is_a(value, (staticmethod, classmethod)):
            self._follow(path, value.__func__)
        elif is_a(value, property):
            self._follow(path, value.fget, value.fset, value.fdel)
        else:
            self._meet_object(path, value)
        attributes = attributes_of(value)
        if attributes is not None and self._is_open(value):
            self._meet_attributes(path, value, attributes)

    def _meet_object(self, path: str, value: Any) -> None:
        kind: Any = type(value)
        if is_a(value, (list, collections.deque, bytearray)):
            self._hold(_Sequence(path, value))
        elif is_a(value, dict):
            self._hold(_Mapping(path, value))
        elif is_a(value, set):
            self._hold(_Set(path, value))
        elif is_a(value, (tuple, frozenset)):
            self._waiting.extend((f"{path}[{number}]", each) for number, each in enumerate(kind.__iter__(value)))
        elif is_a(value, types.MappingProxyType):
            self._waiting.extend((f"{path}[{key!r:.40}]", each) for key, each in value.items())
        elif is_a(value, (torch.Generator, random.Random)) or _is_numpys(value):
            self._hold(_Native(path, value))
        elif is_a(value, functools._lru_cache_wrapper):
            self._hold(_Cache(path, value))
        elif is_a(value, (types.CoroutineType, types.AsyncGeneratorType)) or _is_used_up(kind):
            self.why_not = f"{path} is a {kind.__qualname__}, which a call uses up"
        if own_slots(kind) and self._is_open(value):
            self._hold(_Slots(path, value))
        if _is_users(getattr(sys.modules.get(kind.__module__), "__file__", None), kind.__module__):
            self._follow(path, kind)

    def _meet_attributes(self, path: str, value: Any, attributes: dict[str, Any]) -> None:
        if getattr(type(value), "is_captured", False) is True:
            self._follow(path, attributes.get("fn"))
            return
        if is_a(value, torch.nn.Module):
            for name in _TABLES:  # as their owner's attributes, which they are to everybody
                table = attributes.get(name)
                if isinstance(table, dict) and id(table) not in self.paths:
                    self.paths[id(table)] = path
                    self._hold(_Mapping(path, table, attributes=True))
        if id(attributes) not in self.paths:
            self.paths[id(attributes)] = path
            self._hold(_Mapping(path, attributes, attributes=True))

    def _meet_tensor(self, path: str, value: torch.Tensor) -> None:
        memory = None
        if has_memory(value):
            storage = value.untyped_storage()
            key = torch_compat.storage_key(storage)
            if key not in self._memories:
                self._memories[key] = _Memory(storage)
                self.memories[key] = path
            memory = self._memories[key]
        self.holders.append(TensorHolder(path, value, memory))
        if value.is_leaf and value.grad is not None:
            self._follow(f"{path}.grad", value.grad)

    def _meet_function(self, path: str, function: FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._follow(name, cell)
        self._follow(path, function.__defaults__, function.__kwdefaults__)
        if not _is_users(function.__code__.co_filename, str(function.__module__)):
            return
        names = named_by(function.__code__)
        self._meet_names("", function.__globals__, names)
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType) and _is_users(getattr(value, "__file__", None), value.__name__):
                self._meet_names(name, vars(value), names)

    def _meet_names(self, path: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
        holder = self._names.get(id(namespace))
        if holder is None:
            holder = self._names[id(namespace)] = _Names(path, namespace)
            self.holders.append(holder)
        for name in names:
            if name not in holder.names:
                holder.names[name] = None
                if name in namespace:
                    self._follow(holder.path + holder.step(name), namespace[name])

    def _is_open(self, value: Any) -> bool:
        home = type(value).__module__
        return getattr(type(value), "is_captured", False) is True or not any(
            home == sealed or home.startswith(f"{sealed}.") for sealed in _SEALED
        )

    def _follow(self, path: str, *values: Any) -> None:
        self._waiting.extend((path, value) for value in values)

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        for key, value in holder.read():
            if key is not value and not isinstance(key, ATOMS):
                self._follow(f"a key of {holder.path}", key)
            self._follow(holder.path + holder.step(key), value)


@functools.lru_cache(maxsize=4096)
def named_by(code: CodeType) -> tuple[str, ...]:
    """The names that code looks up, that of functions inside of it included."""

    def find(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from find(constant)

    return tuple(dict.fromkeys(find(code)))


@functools.lru_cache(maxsize=4096)
def own_slots(kind: Any) -> tuple[str, ...]:
    """The slots that classes of Python's declare, which can be written. (Native classes have members, too.)"""
    declared = [vars(each) for each in kind.__mro__ if "__slots__" in vars(each)]
    return tuple(name for name in slots_of(kind) if any(name in each for each in declared))


def _is_users(file: str | None, module: str) -> bool:
    """Whether code of this file is the user's own; if it is in no file, it is if its module is nobody else's."""
    if file is None:
        return module.partition(".")[0] not in _OTHERS
    return not file.startswith(("<frozen", *_FOREIGN))


def _is_pythons(name: str, value: Any) -> bool:
    """What Python itself puts into a class."""
    return name == "_abc_impl" or (name.startswith("__") and name.endswith("__") and not isinstance(value, _FUNCTIONS))


def _is_numpys(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and is_a(
        value, (numpy.ndarray, numpy.random.Generator, numpy.random.RandomState)
    )  # fmt: skip


def _is_used_up(kind: type) -> bool:
    """Iterators that were not written in Python, and files: what they have given is gone."""
    if issubclass(kind, io.IOBase):
        return True
    step = getattr(kind, "__next__", None)
    return step is not None and not isinstance(step, FunctionType)

"""Copies of a call's arguments, as they are before the call can change them.

    copies = Copies()
    args = copies.of("args", args)
    copies.kept             what is no copy but the very object, in words: it may have been changed since
    copies.computed         copies of tensors that were results of operators; the copies themselves are leaves

Values, strides and shared memory of tensors are as in the originals, and an object that occurs twice is copied once.
Functions, classes and modules are not copied: they are code.
"""

from __future__ import annotations

import collections
import functools
import random
import types
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend.outside import attributes_of
from torchsleuth.frontend.undoing import ATOMS, has_memory, own_slots

_HEAP_TYPE: Final = 1 << 9
_BASES: Final = (list, dict, set, collections.OrderedDict, collections.defaultdict, types.SimpleNamespace)
_MOST_KEPT: Final = 20


class Copies:
    """The copies that were made so far."""

    def __init__(self, *, computed_again: bool = False) -> None:
        self.computed_again = computed_again
        """Copies of results of operators are such results themselves."""
        self.kept: list[str] = []
        self.computed: list[torch.Tensor] = []
        self._made: dict[int, Any] = {}
        self._originals: list[Any] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, path: str, value: Any) -> Any:
        """The copy of a value; the value itself where it can't change, or can't be copied."""
        if isinstance(value, (*ATOMS, type, FunctionType, ModuleType)):
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        self._originals.append(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if isinstance(value, (tuple, frozenset)):
            return self._constant(path, value)
        made = self._shell(value)
        if made is None:
            if getattr(type(value), "is_captured", False) is not True and len(self.kept) < _MOST_KEPT:
                self.kept.append(f"{path}, a {type(value).__qualname__}")
            made = value
        self._made[id(value)] = made
        if made is not value:
            self._fill(path, value, made)
        return made

    def _constant(self, path: str, value: Any) -> Any:
        base: Any = tuple if isinstance(value, tuple) else frozenset
        parts = [self.of(f"{path}[{number}]", each) for number, each in enumerate(base.__iter__(value))]
        if all(part is each for part, each in zip(parts, base.__iter__(value), strict=True)):
            made = value
        elif hasattr(value, "n_sequence_fields"):  # what native functions return instead of a namedtuple
            made = type(value)(parts)
        else:
            made = base.__new__(type(value), parts)
        return self._made.setdefault(id(value), made)

    def _shell(self, value: Any) -> Any:
        """A new object of that type that is to be filled; or filled already. None, if nobody knows how to make one."""
        kind: Any = type(value)
        if hasattr(kind, "__del__"):
            return None  # what it does at its end it would do twice
        if kind is MethodType:
            return MethodType(value.__func__, self.of("self", value.__self__))
        if kind is functools.partial:
            arguments = [self.of("an argument of a partial", each) for each in value.args]
            keywords = {name: self.of(f"{name} of a partial", each) for name, each in value.keywords.items()}
            return functools.partial(value.func, *arguments, **keywords)
        if kind is CellType:
            return CellType()
        if kind is collections.deque:
            return collections.deque(maxlen=value.maxlen)
        if kind is bytearray:
            return bytearray(value)
        if kind is torch.Generator:
            return value.clone_state()
        if kind is random.Random:
            made = random.Random()
            made.setstate(value.getstate())
            return made
        if kind.__module__ == "numpy" and hasattr(value, "copy"):
            return value.copy()
        base: Any = next(each for each in kind.__mro__ if not each.__flags__ & _HEAP_TYPE)
        own = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
        if base not in _BASES and not (base is object and own and kind is not object):
            return None
        try:
            made = base.__new__(kind)
        except TypeError:
            return None  # a class of native code that looks like one of Python's: a lock
        if base is collections.defaultdict:
            made.default_factory = value.default_factory
        return made

    def _fill(self, path: str, value: Any, made: Any) -> None:
        if isinstance(value, list):
            list.extend(made, [self.of(f"{path}[{number}]", each) for number, each in enumerate(list.__iter__(value))])
        elif isinstance(value, dict):
            base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            for key, each in base.items(value):
                base.__setitem__(made, self.of(f"a key of {path}", key), self.of(f"{path}[{key!r:.40}]", each))
        elif isinstance(value, set):
            set.update(made, [self.of(f"an element of {path}", each) for each in set.__iter__(value)])
        elif isinstance(value, collections.deque):
            made.extend(self.of(f"{path}[{number}]", each) for number, each in enumerate(value))
        elif isinstance(value, CellType):
            try:
                made.cell_contents = self.of(path, value.cell_contents)
            except ValueError:
                return
        attributes = attributes_of(value)
        if attributes:
            made.__dict__.update({name: self.of(f"{path}.{name}", each) for name, each in attributes.items()})
        kind: Any = type(value)
        for name in own_slots(kind):
            if hasattr(value, name):
                object.__setattr__(made, name, self.of(f"{path}.{name}", getattr(value, name)))

    # -- tensors

    def _tensor(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        made = self._view(plain) if has_memory(tensor) else plain.clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        elif isinstance(tensor, torch.nn.Buffer):
            made = torch.nn.Buffer(made, persistent=tensor.persistent)
        elif tensor.requires_grad:
            made.requires_grad_()
            if not tensor.is_leaf and self.computed_again:
                made = made.clone()
            elif not tensor.is_leaf:
                self.computed.append(made)
        self._made[id(tensor)] = made
        if tensor.is_leaf and tensor.grad is not None:
            made.grad = self.of(f"{path}.grad", tensor.grad)
        return made

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that lies in the copy of its storage as the original does in the storage."""
        storage = tensor.untyped_storage()
        key = torch_compat.storage_key(storage)
        if key not in self._storages:
            self._storages[key] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self._storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())

"""The state a program can reach: parameters, buffers and other tensors of modules, and tensors it closes over.

A program is a module, a method bound to one, a function with modules in its closure, its defaults or the globals it
names, a `functools.partial`, an object that holds a model. They are followed a few steps deep, and never into
torch's own machinery.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_DEPTH = 4
_MANY = 1000
"""Longer lists and dicts are data, not places where models are kept."""
_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Slot:
    """A tensor of the program's state, and where it hangs (nowhere, if it is in a closure)."""

    name: str
    tensor: torch.Tensor
    module: torch.nn.Module | None = None
    attribute: str = ""

    def current(self) -> torch.Tensor:
        """The tensor that hangs there now."""
        value = getattr(self.module, self.attribute, None) if self.module is not None else None
        return value if isinstance(value, torch.Tensor) else self.tensor

    def named(self, name: str) -> Slot:
        return replace(self, name=name)


class Snapshot:
    """What a module's attributes were bound to. (Objects that were changed in place are not undone.)"""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.attributes = dict(vars(module))
        self.tables = {name: dict(vars(module)[name]) for name in _TABLES if name in vars(module)}

    def put_back(self) -> None:
        _restore(vars(self.module), self.attributes)
        for name, content in self.tables.items():
            _restore(vars(self.module)[name], content)


def _restore(table: dict[str, Any], content: dict[str, Any]) -> None:
    if list(table) == list(content) and all(table[name] is value for name, value in content.items()):
        return
    table.clear()
    table.update(content)


def find_state(program: Any) -> tuple[list[Slot], list[Snapshot]]:
    """Every tensor that belongs to the program, each once and under a name of its own; and its modules' attributes."""
    slots: dict[str, Slot] = {}
    snapshots: dict[int, Snapshot] = {}
    seen: set[int] = set()
    for holder, value in _reachable("", program, _DEPTH, set()):
        found = _slots(value) if isinstance(value, torch.nn.Module) else [Slot(holder, value)]
        for slot in found:
            if id(slot.tensor) in seen:
                continue
            seen.add(id(slot.tensor))
            candidates = (slot.name, f"{holder}.{slot.name}", *(f"{slot.name} #{n}" for n in range(2, len(seen) + 3)))
            name = next(name for name in candidates if name not in slots)
            slots[name] = slot.named(name)
        for module in value.modules() if isinstance(value, torch.nn.Module) else ():
            if not _is_torch_machinery(module):
                snapshots.setdefault(id(module), Snapshot(module))
    return list(slots.values()), list(snapshots.values())


def _slots(module: torch.nn.Module) -> Iterator[Slot]:
    for prefix, owner in module.named_modules():
        own = dict((*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)))
        own.update({name: value for name, value in vars(owner).items() if isinstance(value, torch.Tensor)})
        for attribute, tensor in own.items():
            name = f"{prefix}.{attribute}" if prefix else attribute
            yield Slot(name.replace("_orig_mod.", ""), tensor, owner, attribute)


def _reachable(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Modules and tensors, with the name they are held by."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.nn.Module, torch.Tensor)):
        yield name, value
    elif depth > 0:
        for child_name, child in _held(value):
            yield from _reachable(child_name or name, child, depth - 1, seen)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds that may hold state, with the names it is held by."""
    if isinstance(value, (ModuleType, type, str, bytes, int, float)) or value is None:
        return
    if isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((str(key), child) for key, child in items) if len(value) <= _MANY else ()
    elif isinstance(value, functools.partial):
        yield from (("", value.func), *(("", child) for child in value.args), *value.keywords.items())
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, FunctionType):
        yield "", getattr(value, "__wrapped__", None)
        yield from _held_by_function(value)
    else:
        yield from (("", getattr(value, name, None)) for name in ("__wrapped__", "__self__"))
        if not _is_torch_machinery(value):
            yield from getattr(value, "__dict__", {}).items()


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # an empty cell
    for value in function.__defaults__ or ():
        yield "", value
    yield from (function.__kwdefaults__ or {}).items()
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, (torch.nn.Module, torch.Tensor, list, tuple, dict)) or _is_users_function(value):
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    """The names that code looks up, that of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_users_function(value: Any) -> bool:
    return isinstance(value, FunctionType) and not str(value.__module__).startswith("torch.")


def _is_torch_machinery(value: Any) -> bool:
    """An object of torch's that is no part of a model: the wrappers and contexts of compilers above all."""
    home = type(value).__module__
    inside = home == "torch" or home.startswith("torch.")
    return inside and (not isinstance(value, torch.nn.Module) or home.startswith("torch._dynamo"))

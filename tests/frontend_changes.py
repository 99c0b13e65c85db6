"""A change to something that a program reads, and how it is taken back.

with change.made():
    ...                     in here the world differs in this one thing
"""

from __future__ import annotations

import contextlib
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

OURS = ("program", "frontend_", "test_frontend", "__main__")
"""Modules whose classes and functions may be changed in every way. Of others, only what runs in the call is."""
ABSENT = object()


def is_ours(module: str | None) -> bool:
    return module is not None and module.startswith(OURS)


@dataclass(eq=False)
class Subject:
    """A program, and how it is called. Some changes are made here: to the arguments, or to the way of calling."""

    program: Callable[..., Any]
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    outside: list[Any] = field(default_factory=list)
    """What else is worth a look after a call."""
    seed: int = 0
    through: Callable[[Callable[[], Any]], Any] | None = None
    """What makes the call."""

    def call(self, program: Callable[..., Any]) -> Any:
        if self.through is None:
            return program(*self.args, **self.kwargs)
        return self.through(lambda: program(*self.args, **self.kwargs))


class Impossible(Exception):
    """This change cannot be made here: torch or Python refuses it."""


@dataclass(frozen=True)
class Undo:
    """What takes a change back."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Change:
    """One thing to change."""

    where: str
    what: str
    holder: Any
    """What the change is made to: its content is put back afterwards."""
    make: Callable[[], Any]
    """Makes it. What has to be done to take it back, beside putting back the holder's content, it gives as `Undo`."""

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        put_back = keep(self.holder)
        undo: Any = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    undo = self.make()
                except Exception as error:
                    raise Impossible(str(error)) from error
            yield
        finally:
            if isinstance(undo, Undo):
                undo.call()
            put_back()

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Name:
    """One name of a namespace that lives on: a module's, for one."""

    names: dict[str, Any]
    name: str


def keep(holder: Any) -> Callable[[], None]:
    """Remembers the content of an object; what this returns puts it back."""
    if holder is None or is_a(holder, (tuple, frozenset)):
        return _nothing
    if is_a(holder, Name):
        return partial(put_name, holder.names, holder.name, holder.names.get(holder.name, ABSENT))
    if is_a(holder, torch.Tensor):
        return _keep_tensor(holder)
    if is_a(holder, type):
        return partial(_put_class, holder, dict(vars(holder)), holder.__bases__)
    if is_a(holder, types.CellType):
        return partial(_put_cell, holder, _content(holder))
    if is_a(holder, types.FunctionType):
        attributes = ("__code__", "__defaults__", "__kwdefaults__")
        return partial(_put_object, holder, dict(vars(holder)), {each: getattr(holder, each) for each in attributes})
    if is_a(holder, dict):
        return partial(_put_dict, holder, list(holder.items()))
    if is_a(holder, (list, deque)):
        return partial(_put_sequence, holder, list(holder))
    if is_a(holder, set):
        return partial(_put_set, holder, set(holder))
    fields = {name: object.__getattribute__(holder, name) for name in slots_of(holder)} | {"__class__": type(holder)}
    return partial(_put_object, holder, dict(attributes_of(holder) or {}), fields)


def put_name(names: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        names.pop(name, None)
    else:
        names[name] = value


def _nothing() -> None:
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _put_cell(cell: types.CellType, content: Any) -> None:
    if content is not ABSENT:
        cell.cell_contents = content
    elif _content(cell) is not ABSENT:
        del cell.cell_contents


def _keep_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    if tensor.layout is not torch.strided or tensor.is_inference() or tensor.device.type != "cpu":
        return _nothing
    memory, storage = tensor.detach(), tensor.untyped_storage()
    content = storage.clone()
    wants, grad, attributes = tensor.requires_grad, tensor.grad if tensor.is_leaf else None, dict(vars(tensor))

    def put_back() -> None:
        with torch.no_grad():
            storage.copy_(content)
            if tensor.is_leaf and not _is_same_memory(tensor, memory):
                tensor.data = memory
            if tensor.is_leaf and tensor.requires_grad is not wants:
                tensor.requires_grad_(wants)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad
        _put_dict(vars(tensor), list(attributes.items()))

    return put_back


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype is other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.data_ptr() == other.data_ptr()
    )


def _put_class(kind: type, content: dict[str, Any], bases: tuple[type, ...]) -> None:
    if kind.__bases__ != bases:
        kind.__bases__ = bases
    for name in [each for each in vars(kind) if each not in content]:
        type.__delattr__(kind, name)
    for name, value in content.items():
        if vars(kind).get(name, ABSENT) is not value:
            type.__setattr__(kind, name, value)


def _put_object(value: Any, attributes: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, each in fields.items():
        if name == "__class__":
            if type(value) is not each:
                object.__setattr__(value, name, each)
        elif _slot(value, name) is not each:
            object.__setattr__(value, name, each)
    inside = attributes_of(value)
    if inside is not None:
        _put_dict(inside, list(attributes.items()))


def _put_dict(value: dict[Any, Any], content: list[tuple[Any, Any]]) -> None:
    own: Any = OrderedDict if isinstance(value, OrderedDict) else dict  # a Counter's `update` adds
    now = list(own.items(value))
    if len(now) != len(content) or any(a is not c or b is not d for (a, b), (c, d) in zip(now, content, strict=True)):
        own.clear(value)
        for key, each in content:
            own.__setitem__(value, key, each)


def _put_sequence(value: Any, content: list[Any]) -> None:
    if len(value) != len(content) or any(a is not b for a, b in zip(value, content, strict=True)):
        value.clear()
        value.extend(content)


def _put_set(value: set[Any], content: set[Any]) -> None:
    value.clear()
    value.update(content)


def is_a(value: Any, kinds: Any) -> bool:
    """`isinstance`, without asking the object: what is asked may have been replaced by something that raises."""
    return issubclass(type(value), kinds)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """What an object holds in its dictionary, without asking it; None if it has none."""
    try:
        inside = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return inside if type(inside) is dict else None


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return ABSENT


def slots_of(value: Any) -> list[str]:
    """The slots of an object that hold something."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names.extend([slots] if type(slots) is str else slots)
    return [name for name in names if not name.startswith("__") and _slot(value, name) is not ABSENT]

"""Replacing what is ours by what is the user's, wherever it lies, before anybody else sees it.

While a segment is recorded, frames, containers and objects may hold values that only the interpreter knows what to do
with: generators whose frames are ours (`generators.py`), sizes that are symbolic. When it ends they have to go. They
can lie in what the segment has made, and in objects of the outside where it has put something; nowhere else is looked.
(A module, say, is never made by a segment: whoever looked into one would come to all there is in the process.)
"""

from __future__ import annotations

import collections
import functools
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth.frontend.frames import ABSENT, Frame, Generator, Instead, Untouched
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.outside import Outside, Snapshot, attributes_of, cell_content, slot_of, slots_of
from torchsleuth.frontend.symbolic import as_number, as_plain

_NOTHING: dict[Any, Any] = {}
_ITERATORS: Final[tuple[type, ...]] = (
    type(iter(())),
    type(iter([])),
    type(reversed([])),
    reversed,
    enumerate,
    zip,
    map,
    filter,
)
"""What hands out the parts of something."""
_LEFT_ALONE: Final = (type, ModuleType, CodeType, torch.Tensor, Frame, Generator)
"""Into these nobody looks: no segment makes them, or, if they are ours, they are cared for elsewhere."""


class Replacing:
    """Walks through values. What can be changed is changed in place; of what can't be there is a new one."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._seen: dict[int, tuple[Any, Any]] = {}

    def instead(self, value: Any) -> Any:
        """What comes in the place of a value; itself, if it may stay."""
        raise NotImplementedError

    def in_frames(self, frames: list[Frame]) -> None:
        """In all that frames hold."""
        for frame in frames:
            for name, value in frame.locals.items():
                frame.locals[name] = self.put(value)
            frame.stack[:] = map(self.put, frame.stack)
            for cell in frame.cells.values():
                self.put(cell)
            if isinstance(frame.outcome, Instead):
                frame.outcome = Instead(self.put(frame.outcome.value))

    def in_the_outside(self) -> None:
        """In all that was put into objects of the outside."""
        for snapshot in list(self._outside.snapshots.values()):
            self._inside(snapshot.value, snapshot)

    def put(self, value: Any) -> Any:
        """The value without what has to go."""
        new = self.instead(value)
        if new is not value or type(value) is Untouched or self._outside.source(value) is not None:
            return new
        known = self._seen.get(id(value))
        if known is not None:
            return known[1]
        before = _parts(value)
        parts = tuple(map(self.put, before))
        if any(a is not b for a, b in zip(parts, before, strict=True)):
            new = _made_anew(value, parts)
        self._seen[id(value)] = value, new
        self._inside(new, None)
        return new

    def _inside(self, value: Any, before: Snapshot | None) -> None:
        if is_a(value, _LEFT_ALONE):
            return
        if is_a(value, dict):
            content = _NOTHING if before is None else before.content
            for key, each in list(dict.items(value)):
                if content.get(key, ABSENT) is not each and (new := self.put(each)) is not each:
                    dict.__setitem__(value, key, new)
        elif is_a(value, (list, collections.deque)):
            there = () if before is None else before.content
            setter: Any = list.__setitem__ if is_a(value, list) else collections.deque.__setitem__
            for number, each in enumerate(list(value)):
                same = number < len(there) and there[number] is each
                if not same and (new := self.put(each)) is not each:
                    setter(value, number, new)
        elif is_a(value, set):
            for each in list(value):
                if (new := self.instead(each)) is not each:
                    value.remove(each)
                    value.add(new)
        elif type(value) is CellType:
            held = cell_content(value)
            if held is not ABSENT and (before is None or before.content is not held):
                new = self.put(held)
                if new is not held:
                    value.cell_contents = new
        elif is_a(value, BaseException):
            args = self.put(value.args)
            if args is not value.args:
                value.args = args
        elif type(value) is FunctionType and before is None:
            self._inside_function(value)
        elif type(value) is functools.partial and before is None:
            held = (value.func, value.args, value.keywords)
            put = tuple(map(self.put, held))
            if any(a is not b for a, b in zip(put, held, strict=True)):
                value.__setstate__((*put, value.__dict__ or None))  # type: ignore[attr-defined]
        attributes, known = attributes_of(value), (before and before.attributes) or _NOTHING
        for name, each in list((attributes or _NOTHING).items()):
            if known.get(name, ABSENT) is not each and (new := self.put(each)) is not each:
                attributes[name] = new  # type: ignore[index]
        slots = before.slots if before else _NOTHING
        for name in slots_of(type(value)):
            each = slot_of(value, name)
            if each is not ABSENT and slots.get(name, ABSENT) is not each and (new := self.put(each)) is not each:
                object.__setattr__(value, name, new)

    def _inside_function(self, function: FunctionType) -> None:
        """What a function that the segment has made takes along."""
        for cell in function.__closure__ or ():
            self.put(cell)
        for name in ("__defaults__", "__kwdefaults__"):
            held = getattr(function, name)
            if (new := self.put(held)) is not held:
                setattr(function, name, new)


def _parts(value: Any) -> tuple[Any, ...]:
    """What cannot be changed in place is made of."""
    if is_a(value, tuple):
        return tuple(tuple.__iter__(value))
    if is_a(value, frozenset):
        return tuple(frozenset.__iter__(value))
    if type(value) is MethodType:
        return (value.__self__,)
    if type(value) is slice:
        return value.start, value.stop, value.step
    if type(value) in _ITERATORS:
        return tuple(value.__reduce__()[1])
    return ()


def _made_anew(value: Any, parts: tuple[Any, ...]) -> Any:
    """The same of other parts."""
    if is_a(value, tuple):
        return torch.Size(parts) if type(value) is torch.Size else tuple.__new__(type(value), parts)
    if is_a(value, frozenset):
        return frozenset.__new__(type(value), parts)
    if type(value) is MethodType:
        return MethodType(value.__func__, *parts)
    if type(value) is slice:
        return slice(*parts)
    how, _, *state = value.__reduce__()
    new = how(*parts)
    if state and state[0] is not None:
        new.__setstate__(state[0])
    return new


class Guarded(Replacing):
    """Numbers for symbolic sizes, which are guarded then."""

    def instead(self, value: Any) -> Any:
        return as_plain(value)


class Numbers(Replacing):
    """Numbers for sizes that were symbolic in a recording that is over."""

    def instead(self, value: Any) -> Any:
        return as_number(value)

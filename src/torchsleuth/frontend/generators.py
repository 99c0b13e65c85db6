"""Generators that outlive a segment: from our hands into Python's.

Inside a segment a generator is a frame that we interpret (`frames.Generator`). Whoever gets it afterwards (native code,
another segment, the user) expects a real one. So at the end of each segment those that are suspended become generators
of Python's own that go on at the same `yield`, and take the place of ours wherever they lie. Only those at work, whose
frames are on our stack, stay.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from types import CellType, MethodType
from typing import Any

from torchsleuth.frontend.frames import ABSENT, Frame, FrameLayout, Generator, Untouched, flatten, plain, unflatten_one
from torchsleuth.frontend.outside import attributes_of, cell_content, slot_of, slots_of
from torchsleuth.frontend.resuming import native_generator


class HandedOver:
    """The real generators that were made of ours, and from what."""

    def __init__(self, generators: Iterable[Generator], at_work: list[Frame]) -> None:
        self.made: dict[int, tuple[Any, FrameLayout, list[Any]]] = {}
        """For each real one: itself, and the frame that it was made of, as layout and values."""
        self._instead: dict[int, Any] = {}
        self._seen: dict[int, Any] = {}
        busy = {id(frame) for frame in at_work}
        for each in generators:
            frame = each.frame
            if frame is None or id(frame) in busy:
                continue
            layout, live = flatten([frame])
            real = native_generator(frame)
            each.native, each.frame = real, None
            self.made[id(real)] = (real, layout[0], live)
            self._instead[id(each)] = real

    def __bool__(self) -> bool:
        return bool(self._instead)

    def in_frames(self, frames: list[Frame]) -> None:
        """Puts the real ones into frames."""
        for frame in frames:
            for name, value in frame.locals.items():
                frame.locals[name] = self.put(value)
            frame.stack[:] = [self.put(value) for value in frame.stack]
            for cell in frame.cells.values():
                self.put(cell)
        for _, _, live in self.made.values():
            live[:] = [self.put(each) for each in live]

    def put(self, value: Any) -> Any:
        """The value with real generators in it. Containers and objects are changed in place."""
        instead = self._instead.get(id(plain(value)))
        if instead is not None:
            return instead
        if id(value) in self._seen or type(value) is Untouched:
            return value
        kind = type(value)
        if kind is MethodType and id(value.__self__) in self._instead:
            return getattr(self._instead[id(value.__self__)], value.__name__)
        if kind is tuple:
            found = tuple(map(self.put, value))
            return value if all(a is b for a, b in zip(found, value, strict=True)) else found
        if isinstance(value, (list, dict, set, collections.deque, CellType)) or attributes_of(value) is not None:
            self._seen[id(value)] = value
            self._inside(value)
        return value

    def _inside(self, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in list(dict.items(value)):
                if (new := self.put(each)) is not each:
                    dict.__setitem__(value, key, new)
        elif isinstance(value, (list, collections.deque)):
            for number, each in enumerate(value):
                if (new := self.put(each)) is not each:
                    value[number] = new
        elif isinstance(value, set):
            for each in [each for each in value if id(each) in self._instead]:
                value.remove(each)
                value.add(self._instead[id(each)])
        elif type(value) is CellType:
            content = cell_content(value)
            if content is not ABSENT and (new := self.put(content)) is not content:
                value.cell_contents = new
        attributes = attributes_of(value)
        if attributes is not None and not isinstance(value, type):
            for name, each in list(attributes.items()):
                if (new := self.put(each)) is not each:
                    attributes[name] = new
        for name in slots_of(type(value)):
            each = slot_of(value, name)
            if each is not ABSENT and (new := self.put(each)) is not each:
                object.__setattr__(value, name, new)


def real_generator(layout: FrameLayout, live: list[Any]) -> Any:
    """What a cached call makes: a generator of Python's own that stands where the recorded one stood."""
    return native_generator(unflatten_one(layout, live))

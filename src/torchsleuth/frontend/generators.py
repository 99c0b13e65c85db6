"""Generators that outlive a segment: from our hands into Python's.

Inside a segment a generator is a frame that we interpret (`frames.Generator`). Whoever gets it afterwards (native code,
another segment, the user) expects a real one. So at the end of each segment those that are suspended become generators
of Python's own that go on at the same `yield`, and take the place of ours wherever they lie. Only those at work, whose
frames are on our stack, stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from torchsleuth.frontend.frames import Frame, FrameLayout, Generator, flatten, plain, unflatten_one
from torchsleuth.frontend.outside import Outside
from torchsleuth.frontend.replacing import Guarded, Replacing
from torchsleuth.frontend.resuming import native_generator


class HandedOver(Replacing):
    """The real generators that were made of ours, and from what."""

    def __init__(self, generators: Iterable[Generator], at_work: list[Frame], outside: Outside, dynamic: bool) -> None:
        super().__init__(outside)
        self.made: dict[int, tuple[Any, FrameLayout, list[Any]]] = {}
        """For each real one: itself, and the frame that it was made of, as layout and values."""
        self._instead: dict[int, Any] = {}
        busy = {id(frame) for frame in at_work}
        for each in generators:
            frame = each.frame
            if frame is None or id(frame) in busy:
                continue
            if dynamic:
                Guarded(outside).in_frames([frame])  # it waits for somebody to whom sizes are numbers
            layout, live = flatten([frame])
            real = native_generator(frame)
            each.native, each.frame = real, None
            self.made[id(real)] = (real, layout[0], live)
            self._instead[id(each)] = real

    def __bool__(self) -> bool:
        return bool(self._instead)

    def in_frames(self, frames: list[Frame]) -> None:
        super().in_frames(frames)
        for _, _, live in self.made.values():
            live[:] = [self.put(each) for each in live]

    def instead(self, value: Any) -> Any:
        if type(value) is MethodType and id(value.__self__) in self._instead:
            return getattr(self._instead[id(value.__self__)], value.__name__)
        return self._instead.get(id(plain(value)), value)


def real_generator(layout: FrameLayout, live: list[Any]) -> Any:
    """What a cached call makes: a generator of Python's own that stands where the recorded one stood."""
    return native_generator(unflatten_one(layout, live))

"""Frames as data: what the interpreter works on, and what a graph break cuts up and puts together again.

A `Frame` is what CPython keeps for a running function: code, place, locals, cells, stack. Because ours are plain
objects, execution can stop anywhere: `flatten` turns a stack of frames into a `Layout` (constant, known when a segment
is recorded) and a list of live values (other ones at each call); `unflatten` makes frames of the two again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, CodeType, GeneratorType
from typing import Any, Final

from torchsleuth.frontend.bytecode import Instruction, decode, exception_table, needed, qualified


class _Marker:
    """A unique value that is no value of the user's."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


NULL: Final = _Marker("NULL")
"""What PUSH_NULL pushes."""
ABSENT: Final = _Marker("ABSENT")
"""There is no such thing: an empty cell, a missing key."""


class Handled:
    """Lies on a frame's stack where CPython has the exception that was handled before: `current` is handled now."""

    __slots__ = ("current",)

    def __init__(self, current: BaseException) -> None:
        self.current = current


class Untouched:
    """A value from before the segment that nobody has looked at: handed on from where it lies, and not guarded."""

    __slots__ = ("source", "value")

    def __init__(self, source: Any, value: Any) -> None:
        self.source = source
        self.value = value


def plain(value: Any) -> Any:
    """The value itself."""
    return value.value if type(value) is Untouched else value


PUSH: Final = "push"
DISCARD: Final = "discard"
ITERATE: Final = "iterate"
SEND: Final = "send"
"""What becomes of a frame's result in the frame that called it. Any other value is pushed instead of the result."""


class Instead:
    """The result of a frame is thrown away, and `value` is pushed in its place (`__init__`)."""

    __slots__ = ("must_be_none", "value")

    def __init__(self, value: Any, *, must_be_none: bool = False) -> None:
        self.value = value
        self.must_be_none = must_be_none
        """The function is an `__init__`."""


class Frame:
    """A function at work. `place` is the index of the next instruction."""

    __slots__ = (
        "cells", "code", "decoded", "generator", "globals", "instructions", "keywords", "locals", "outcome", "place",
        "stack",
    )  # fmt: skip

    def __init__(self, code: CodeType, globals_: dict[str, Any], free: tuple[CellType, ...] = ()) -> None:
        self.code = code
        self.globals = globals_
        self.decoded = decode(code)
        self.instructions = self.decoded.instructions
        self.locals: dict[str, Any] = {}
        self.cells: dict[str, CellType] = dict(zip(code.co_freevars, free, strict=True))
        self.stack: list[Any] = []
        self.place = 0
        self.keywords: tuple[str, ...] = ()
        self.outcome: str | Instead = PUSH
        self.generator: Generator | None = None

    @property
    def instruction(self) -> Instruction:
        """The one at work, or the last one that was."""
        return self.instructions[max(self.place - 1, 0)]

    def where(self) -> str:
        return f"{self.code.co_filename}:{self.instruction.line} in {qualified(self.code)}"


class Generator:
    """A generator whose frame we interpret. Driven by anything but the interpreter it goes on natively."""

    __slots__ = ("__weakref__", "dropped", "frame", "name", "native", "running")

    def __init__(self, frame: Frame, dropped: Callable[[Generator], None] | None = None) -> None:
        self.frame: Frame | None = frame
        self.native: Any = None
        self.running = False
        self.dropped = dropped
        self.name = qualified(frame.code)
        frame.generator = None  # while it does not run: or they would keep each other alive
        """Is told if nobody holds it any more, and it may have something to do about that (`finally`, `with`)."""

    @property
    def finished(self) -> bool:
        return self.frame is None and self.native is None

    @property
    def has_begun(self) -> bool:
        return self.frame is None or self.frame.place > _start_of(self.frame)

    def __iter__(self) -> Generator:
        return self

    def __repr__(self) -> str:
        return f"<generator object {self.name} at {id(self):#x}>"

    def _natively(self) -> Any:
        if self.native is None and self.frame is not None:
            from torchsleuth.frontend.resuming import native_generator

            if self.running:
                raise ValueError("generator already executing")
            self.native, self.frame = native_generator(self.frame), None
        return self.native if self.native is not None else iter(())

    def __next__(self) -> Any:
        return next(self._natively())

    def send(self, value: Any) -> Any:
        natively = self._natively()
        return natively.send(value) if hasattr(natively, "send") else next(natively)

    def throw(self, *error: Any) -> Any:
        natively = self._natively()
        if hasattr(natively, "throw"):
            return natively.throw(*error)
        raise error[0] if isinstance(error[0], BaseException) else error[0](*error[1:2])

    def close(self) -> None:
        if not self.has_begun:
            self.frame = None
            return
        natively = self._natively()
        if hasattr(natively, "close"):
            natively.close()

    def __del__(self) -> None:
        """Left early: as CPython does it, `finally` and `with` inside of it come to their end."""
        frame = self.frame
        if (
            frame is None
            or self.running
            or not self.has_begun
            or frame.decoded.handler_at(frame.instruction.offset) is None
        ):
            return
        if self.dropped is not None:
            self.dropped(self)
            return
        try:
            self.close()
        except BaseException as error:  # noqa: BLE001 - nobody is there to get it; CPython tells about it, too
            unraisable(error, self)


def unraisable(error: BaseException, owner: Any) -> None:
    """Tells of an exception that nobody is there to get, as CPython does."""
    sys.unraisablehook(_what_hooks_get()((type(error), error, error.__traceback__, None, owner)))


@functools.cache
def _what_hooks_get() -> Callable[[tuple[Any, ...]], Any]:
    """The class of what `sys.unraisablehook` is given. It has no name at run time; so one such call is provoked."""

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    met: list[type] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda given: met.append(type(given))
    try:
        Failing()
    finally:
        sys.unraisablehook = before
    return met[0]


def _start_of(frame: Frame) -> int:
    """The instruction at which a generator that has not begun stands."""
    return next(i for i, each in enumerate(frame.instructions) if each.name == "RETURN_GENERATOR") + 1


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """A frame without its values: for each of them the number of its live slot."""

    code: CodeType
    globals: dict[str, Any]
    place: int
    keywords: tuple[str, ...]
    locals: tuple[tuple[str, int], ...]
    cells: tuple[tuple[str, int], ...]
    outcome: str | int
    generator: int | None
    stack: tuple[int | None, ...]
    """None where NULL lies; -1 - slot where the exception in that slot is handled. The slots of the stack come last: a
    graph break puts results where operands were."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for frames that stand at one place with values in the same slots."""
        return (
            self.code, id(self.globals), self.place, self.keywords, self.locals, self.cells, self.outcome,
            self.generator, self.stack,
        )  # fmt: skip


Layout = tuple[FrameLayout, ...]
"""A stack of frames, outermost first."""


def wants_closing(value: Any) -> bool:
    """Whether a generator waits in the middle of a `try` or a `with`: who drops it last lets that come to its end."""
    value = plain(value)
    if type(value) is Generator:
        frame = value.frame
        return (
            frame is not None and value.has_begun and not value.running and _is_guarded(frame.code, frame.instruction)
        )
    if type(value) is not GeneratorType or value.gi_frame is None or value.gi_frame.f_lasti < 0:
        return False
    last = value.gi_frame.f_lasti
    return any(start <= last < end for start, end, *_ in exception_table(value.gi_code))


def _is_guarded(code: CodeType, instruction: Instruction) -> bool:
    return decode(code).handler_at(instruction.offset) is not None


def flatten(frames: list[Frame], *, at_work: bool = False, everything: bool = False) -> tuple[Layout, list[Any]]:
    """The layout of `frames` and their live values. Those that nobody looked at are still `Untouched`.

    Of the locals there are those that may be read yet, and those that want to be closed when they are dropped.
    `at_work`: the innermost frame's instruction before its place is still to be run. So it is in the other frames: a
    call may raise. `everything`: all locals, somebody looks at them.
    """
    live: list[Any] = []

    def slot(value: Any) -> int:
        live.append(value)
        return len(live) - 1

    def stack_slot(value: Any) -> int | None:
        if value is NULL:
            return None
        return -1 - slot(value.current) if type(value) is Handled else slot(value)

    layouts = []
    for frame in frames:
        alive = needed(frame.code)[frame.place]
        if frame.place and (at_work or frame is not frames[-1]):
            alive |= needed(frame.code)[frame.place - 1]
        layouts.append(
            FrameLayout(
                code=frame.code,
                globals=frame.globals,
                place=frame.place,
                keywords=frame.keywords,
                locals=tuple(
                    (name, slot(value))
                    for name, value in frame.locals.items()
                    if everything or name in alive or wants_closing(value)
                ),
                cells=tuple((name, slot(cell)) for name, cell in frame.cells.items()),
                outcome=slot(frame.outcome.value) if isinstance(frame.outcome, Instead) else frame.outcome,
                generator=None if frame.generator is None else slot(frame.generator),
                stack=tuple(map(stack_slot, frame.stack)),
            )
        )
    return tuple(layouts), live


def handled_in(layout: Layout) -> int | None:
    """The slot of the exception that the innermost of these frames that handles one is handling."""
    for frame in reversed(layout):
        for slot in reversed(frame.stack):
            if slot is not None and slot < 0:
                return -1 - slot
    return None


def slots_again(before: Layout, after: Layout) -> list[int] | None:
    """Where the live values of `after` are among those of `before`, whose operands were replaced by results.

    None if they are the same ones in the same order.
    """
    where: list[int] = []
    for old, new in zip(before, after, strict=True):
        slots = dict(old.locals)
        cells = dict(old.cells)
        where += [slots[name] for name, _ in new.locals]
        where += [cells[name] for name, _ in new.cells]
        if isinstance(new.outcome, int):
            where.append(old.outcome)  # type: ignore[arg-type]
        if new.generator is not None:
            where.append(old.generator)  # type: ignore[arg-type]
        kept = [slot if slot >= 0 else -1 - slot for slot in old.stack if slot is not None]
        count = sum(slot is not None for slot in new.stack)
        if new is after[-1]:
            first = min(kept, default=0) if kept else _live_count(before)
            where += range(first, first + count)
        else:
            where += kept
    return None if where == list(range(len(where))) else where


def _live_count(layout: Layout) -> int:
    """How many live values frames of this layout have."""
    return sum(
        len(each.locals)
        + len(each.cells)
        + isinstance(each.outcome, int)
        + (each.generator is not None)
        + sum(slot is not None for slot in each.stack)
        for each in layout
    )


def unflatten(layout: Layout, live: list[Any]) -> list[Frame]:
    """Frames of that layout with these values."""
    return [unflatten_one(each, live) for each in layout]


def unflatten_one(layout: FrameLayout, live: list[Any]) -> Frame:
    frame = Frame.__new__(Frame)
    frame.code, frame.globals, frame.place, frame.keywords = layout.code, layout.globals, layout.place, layout.keywords
    frame.decoded = decode(layout.code)
    frame.instructions = frame.decoded.instructions
    frame.locals = {name: live[slot] for name, slot in layout.locals}
    frame.cells = {name: live[slot] for name, slot in layout.cells}
    frame.stack = [
        NULL if slot is None else live[slot] if slot >= 0 else Handled(plain(live[-1 - slot])) for slot in layout.stack
    ]
    frame.outcome = layout.outcome if isinstance(layout.outcome, str) else Instead(live[layout.outcome])
    frame.generator = None if layout.generator is None else live[layout.generator]
    if frame.generator is not None:
        frame.generator.frame = frame
        frame.generator.running = True
    return frame

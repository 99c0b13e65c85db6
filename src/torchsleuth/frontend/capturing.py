"""`capture`: a function that is recorded once, and from then on runs its graphs.

    fast = capture(fn, backend="inductor")
    fast(x)            recorded: interpreted instruction by instruction, for real, while the graphs are written down
    fast(x)            the recorded segments are run, if their guards hold

A call goes from `Point` to `Point`. A point is a layout of frames: the beginning of the call, or what is behind a graph
break. At each point there are segments that were recorded there before; the first whose guards hold is run. If there is
none, the machine records one. Between segments the instruction that broke the graph is run natively.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, MethodType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import SleuthError
from torchsleuth.frontend import backends, tracebacks
from torchsleuth.frontend.breaks import GraphBreak, Place, break_in
from torchsleuth.frontend.bytecode import require_known_python
from torchsleuth.frontend.frames import (
    NULL,
    Frame,
    FrameLayout,
    Layout,
    flatten,
    handled_in,
    plain,
    slots_again,
    unflatten,
    wants_closing,
)
from torchsleuth.frontend.generators import HandedOver
from torchsleuth.frontend.guards import MISS, Explained
from torchsleuth.frontend.machine import Break, Machine, Stop
from torchsleuth.frontend.moving import (
    Jump,
    Operation,
    handled_now,
    is_handled,
    note,
    perform,
    set_context,
    unwind,
    while_handling,
)
from torchsleuth.frontend.opcodes import Interpreter
from torchsleuth.frontend.rebuilding import CannotRebuild
from torchsleuth.frontend.records import Crash, Entry
from torchsleuth.frontend.resuming import finish
from torchsleuth.frontend.segments import BackendRaised, GraphFailed, Segment, compile_segment
from torchsleuth.frontend.verifying import checked

LIMIT: Final = 8
"""So many segments are recorded at one point; then what does not fit any of them runs natively."""


@dataclass(eq=False)
class Point:
    """A place where execution can go on: frames without their values, and the segments recorded from there."""

    layout: Layout
    segments: list[Segment] = field(default_factory=list)
    recorded: int = 0


@dataclass(frozen=True)
class Way:
    """From the end of a segment, once the instruction behind it has run, to the next point."""

    point: Point
    slots: list[int] | None
    """Which of the live values live on, in the order of the point's layout. None: all, as they are."""


@dataclass(frozen=True)
class _Done:
    """The call is over."""

    value: Any


def _call(args: tuple[Any, ...], kwargs: dict[str, Any], fn: Callable[..., Any]) -> Any:
    """Where every captured call begins, as far as the interpreter is concerned."""
    return fn(*args, **kwargs)


_BEGIN: Final[Layout] = (
    FrameLayout(
        code=_call.__code__, globals=_call.__globals__, place=0, keywords=(),
        locals=(("args", 0), ("kwargs", 1), ("fn", 2)), cells=(), outcome="push", generator=None, stack=(),
    ),
)  # fmt: skip


class Captured:
    """A function, a method or a module whose graphs are recorded by us. Called like the original."""

    is_captured: Final = True

    def __init__(
        self,
        fn: Callable[..., Any],
        backend: str | Callable[..., Any] = "eager",
        *,
        dynamic: bool = False,
        verify: bool = False,
        skip: Iterable[Any] = (),
        limit: int = LIMIT,
        records: str | None = None,
    ) -> None:
        require_known_python()
        _hide()
        if not callable(fn):
            raise SleuthError(
                f"{fn!r:.60} cannot be captured",
                cause="it is not callable",
                remedy="give a function, a method or a module",
            )
        _must_be(limit, int, "limit", "a number of recordings, 1 or more", fits=lambda each: each >= 1)
        _must_be(dynamic, bool, "dynamic", "True or False")
        _must_be(verify, bool, "verify", "True or False")
        _must_be(skip, Iterable, "skip", "a list of functions", fits=lambda each: not isinstance(each, str))
        _must_be(records, (str, type(None)), "records", "the path of a folder, or None")
        self.fn: Any = fn.fn if isinstance(fn, Captured) else fn
        self.backend = backends.found(backend)
        self.dynamic = dynamic
        self.verify = verify
        self.skipped = frozenset(skip)
        for each in self.skipped:
            _must_be(each, Callable, "an element of skip", "a function")
        self.limit = limit
        self.records = records
        """The folder for execution records; None: as the settings say."""
        self.breaks: list[GraphBreak] = []
        """Every graph break that was met, each once."""
        self.crashes: list[Crash] = []
        """Bugs of the translator that were met. The calls went on natively."""
        self.misses: list[Explained] = []
        """For each recording that was not the first at its point: which guard of the last one did not hold."""
        self.uncacheable: list[str] = []
        """Why recordings could not be kept."""
        self.hits = 0
        """Calls that came from the cache as a whole."""
        self.recordings = 0
        self.natives = 0
        """Calls, or ends of calls, that ran natively because a limit was reached."""
        self.learned: dict[tuple[CodeType, int], str] = {}
        self.unrolled: set[tuple[CodeType, int]] = set()
        self._lock = threading.RLock()
        self._begin = Point(_BEGIN)
        self._points: dict[tuple[Any, ...], Point] = {}
        self._noted: set[tuple[Any, ...]] = set()
        self._names = 0
        functools.update_wrapper(self, self.fn, updated=()) if not isinstance(fn, torch.nn.Module) else None

    # -- looking at it

    @property
    def segments(self) -> list[Segment]:
        """All that was recorded, in the order of points."""
        return [segment for point in (self._begin, *self._points.values()) for segment in point.segments]

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        """The graphs that were given to the backend."""
        return [segment.graph for segment in self.segments if segment.graph is not None]

    def forget(self) -> None:
        """Drops everything that was recorded."""
        with self._lock:
            self._begin = Point(_BEGIN)
            self._points.clear()
            self.learned.clear()

    def __repr__(self) -> str:
        name = getattr(self.fn, "__qualname__", None) or type(self.fn).__qualname__
        return f"<captured {name}: {len(self.graphs)} graphs, {len(self.breaks)} breaks>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Captured:
        return _decorate(self.backend, self._options(), copy.deepcopy(self.fn, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _decorate, (self.backend, self._options(), self.fn)

    def _options(self) -> dict[str, Any]:
        return {
            "dynamic": self.dynamic, "verify": self.verify, "skip": tuple(self.skipped), "limit": self.limit,
            "records": self.records,
        }  # fmt: skip

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "fn" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.fn, name)

    # -- calling it

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch_compat.modes_active():
            self.natives += 1
            return self.fn(*args, **kwargs)
        try:
            return checked(self, args, kwargs) if self.verify else self.run(args, kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, without verifying anything."""
        point = self._begin
        live: list[Any] = [args, kwargs, self.fn]
        entry: Entry | None = None
        recorded = False
        while True:
            tried = len(point.segments)
            failed: GraphFailed | None = None
            for segment in point.segments:
                try:
                    result = segment.run(live)
                except GraphFailed as raised:
                    failed = raised.with_traceback(None)  # it would keep this frame, and all that it holds
                    break
                if result is not MISS:
                    break
            else:
                if entry is None:
                    entry = (
                        Entry(self.fn, args, kwargs, dynamic=self.dynamic)
                        if point is self._begin
                        else Entry.unknown(self.fn)
                    )
                recorded = True
                step = self._record(point, live, entry, tried)
                if isinstance(step, _Done):
                    return step.value
                point, live = step
                if torch_compat.modes_active():
                    return self._under_modes(point, live)
                continue
            if failed is not None:
                return self._failed(point, segment, live, failed)
            if segment.returns:
                self.hits += not recorded
                return result
            if segment.operation is None:
                live.clear()  # what the program drops is gone at once
                return self._leave(segment, result)
            point, live = self._over(segment, segment.operation, result)
            if torch_compat.modes_active():
                return self._under_modes(point, live)

    # -- from one segment to the next

    def _under_modes(self, point: Point, live: list[Any]) -> Any:
        """The program has entered a mode, which wants to see each function or operator: it goes on natively."""
        self.natives += 1
        frames = unflatten(point.layout, live)
        live.clear()
        return finish(frames)

    def _failed(self, point: Point, segment: Segment, live: list[Any], failed: GraphFailed) -> Any:
        """A graph has raised. If the program does so on this data, then from its own line, behind all that comes first:
        nothing has been done yet, so the segment is run again natively. If it does not, that is the backend's error.
        """
        if not segment.fails_in_eager(failed):
            graph = "" if segment.graph is None else f":\n{segment.graph.code.strip()}"
            note(failed.error, f"raised by what the backend has made of the graph {segment.graph_name}{graph}")
            raise failed.error
        frames = unflatten(point.layout, live)
        live.clear()
        return finish(frames)

    def _leave(self, segment: Segment, live: list[Any]) -> Any:
        """What is behind a segment runs natively."""
        frames = unflatten(segment.layout, live)
        error = live[-1] if segment.raises else None
        live.clear()
        return finish(frames, error)

    def _over(self, segment: Segment, operation: Operation, live: list[Any]) -> tuple[Point, list[Any]]:
        """Runs the instruction behind a segment natively; where that leads, and with what."""
        begin = len(live) - segment.operands
        if segment.generators:
            return self._slowly(segment, operation, live)
        try:
            if segment.handling is None:
                results = operation.run(*live[begin:])
            else:
                results = while_handling(live[segment.handling], operation.run, *live[begin:])
        except BaseException as error:  # noqa: BLE001 - it goes where the program handles it
            caught = error
        else:
            jumped = type(results) is Jump
            way: Way | None = segment.next_when_jumped if jumped else segment.next
            if way is not None:
                live[begin:] = [each for each in results if each is not NULL]
                return way.point, live if way.slots is None else [live[slot] for slot in way.slots]
            operation = Operation(operation.operands, lambda *_: results)
            return self._slowly(segment, operation, live)

        def fail(*_: Any) -> Any:
            raise caught

        return self._slowly(segment, Operation(operation.operands, fail), live)

    def _slowly(self, segment: Segment, operation: Operation, live: list[Any]) -> tuple[Point, list[Any]]:
        frames = unflatten(segment.layout, live)
        return self._behind(frames, operation, segment)

    def _behind(self, frames: list[Frame], operation: Operation, segment: Segment | None) -> tuple[Point, list[Any]]:
        """The point behind an instruction that is run natively, on real frames. May raise what escapes them."""
        jumped, error = perform(frames, operation)
        if error is not None:
            set_context(error, handled_now(frames))
            if not is_handled(frames):
                finish(frames, error)
            error = unwind(frames, 0, error)
            if error is not None:
                raise error
            segment = None
        layout, live = flatten(frames)
        point = self._point(layout)
        if segment is not None:
            way = Way(point, slots_again(segment.layout, layout))
            if jumped:
                segment.next_when_jumped = way
            else:
                segment.next = way
        return point, [plain(each) for each in live]

    def _point(self, layout: Layout) -> Point:
        key = tuple(each.key for each in layout)
        found = self._points.get(key)
        if found is None:
            found = self._points.setdefault(key, Point(layout))
        return found

    # -- recording

    def _record(self, point: Point, live: list[Any], entry: Entry, tried: int) -> _Done | tuple[Point, list[Any]]:
        """Records a segment from here, and goes on to where it ends. `tried`: so many are there that do not fit."""
        segment: Segment | None = None
        returned: Any = None
        with self._lock:
            if len(point.segments) > tried:
                return point, live  # another thread has recorded one meanwhile
            if point.recorded >= self.limit or any(map(wants_closing, live)):
                # A recording would keep a generator alive that the program drops in the middle of it.
                self.natives += 1
                frames, stop = unflatten(point.layout, live), None
            else:
                machine = Interpreter(self, dynamic=self.dynamic)
                machine.entry = entry
                try:
                    self._begin_recording(point, live, machine)
                except Exception as fault:  # noqa: BLE001 - a bug of ours: the call goes on natively
                    machine.frames = unflatten(point.layout, live)
                    self._crash(machine, fault, entry)
                    live.clear()
                    return _Done(finish(machine.frames))
                with machine.recorder.auditor:
                    stop = machine.record()
                try:
                    segment, returned = self._cut(machine, stop, entry)
                except BaseException:
                    machine.release()  # the backend has raised: nobody needs what was recorded
                    raise
                if self.dynamic:
                    with contextlib.suppress(RecursionError):  # whatever is nested so deep computes with symbols, too
                        returned = machine.without_symbols(machine.frames, returned, stop.error)
                goes_round = stop.operation is not None and self._goes_round(point, machine)
                frames = machine.frames
                machine.release()
                if goes_round:
                    frames[-1].place -= 1
                    stop = None
                elif segment is not None:
                    point.segments.append(segment)
        live.clear()
        if stop is None or stop.fault is not None:
            return _Done(finish(frames))
        if stop.error is not None:
            finish(frames, stop.error)
        if stop.returned:
            return _Done(plain(returned))
        if stop.operation is not None:
            return self._behind(frames, stop.operation, segment)
        if stop.broken is not None:
            return _Done(finish(frames))
        layout, values = flatten(frames)  # spoiled: the segment is lost, the next one begins here
        return self._point(layout), [plain(each) for each in values]

    def _begin_recording(self, point: Point, live: list[Any], machine: Machine) -> None:
        """The frames of a point, with these values, for a machine."""
        if point.segments:
            self.misses.append(point.segments[-1].explain(live))
        point.recorded += 1
        self.recordings += 1
        machine.frames = unflatten(point.layout, machine.outside.arrive(point.layout, live))
        machine.began_with = [each.generator for each in machine.frames if each.generator is not None]

    def _goes_round(self, point: Point, machine: Machine) -> bool:
        """Whether a segment is one turn of a loop that nothing else breaks.

        From now on such a loop is taken as a whole, and its iterator looked into. This call goes on natively.
        """
        here, frame = point.layout[-1], machine.frames[-1]
        loop = (frame.code, frame.place - 1)
        again = (here.code, here.place - 1) == loop and len(point.layout) == len(machine.frames)
        if not again or frame.instruction.name != "FOR_ITER" or loop in self.unrolled:
            return False
        self.unrolled.add(loop)
        for each in (self._begin, *self._points.values()):
            each.segments[:] = [known for known in each.segments if not known.ends_at(*loop)]
            each.recorded = len(each.segments)
        place = Place.of(frame)
        self.breaks = [each for each in self.breaks if each.place != place or "from before" not in each.reason]
        return True

    def _cut(self, machine: Machine, stop: Stop, entry: Entry) -> tuple[Segment | None, Any]:
        """Compiles what was recorded, unless it can't be kept. Also gives what is returned, generators made real."""
        if stop.broken is not None:
            natively = stop.operation is None
            self._note(break_in(_at_work(machine, stop), stop.broken.reason, stop.broken.advice, natively=natively))
        if stop.fault is not None:
            self._crash(machine, stop.fault, entry)
            return None, None
        try:
            handed_over, returned = self._hand_over(machine, stop)
        except RecursionError:
            self.uncacheable.append("a value that lives on is nested too deep")
            return None, stop.value
        why = machine.recorder.why_spoiled
        if not why:
            layout: Layout = ()
            values = [returned]
            failed: Exception | None = None
            if not stop.returned:
                at_work = stop.operation is not None
                looked_at = stop.broken is not None and not stop.broken.leave and not at_work
                layout, values = flatten(machine.frames, at_work=at_work, everything=looked_at)
                values += [] if stop.error is None else [stop.error]
            try:
                segment = self._compiled(machine, values, handed_over, returns=stop.returned)
            except CannotRebuild as reason:
                why = f"a later call could not make {reason} anew"
            except RecursionError:
                why = "a value that lives on refers to itself"
            except BackendRaised as raised:
                failed = raised.error
            except Exception as fault:  # noqa: BLE001 - a bug of ours: the call goes on, and nothing is kept
                why = f"the translator failed: {type(fault).__name__}: {fault}"
                self._crash(machine, fault, entry)
            else:
                segment.layout = layout
                segment.operation = stop.operation
                segment.raises = stop.error is not None
                segment.generators = any(each.generator is not None for each in layout)
                segment.handling = handled_in(layout)
                if stop.operation is not None:
                    stack = machine.frames[-1].stack
                    taken = stack[len(stack) - stop.operation.operands :]
                    segment.operands = sum(each is not NULL for each in taken)
                return segment, returned
            if failed is not None:
                machine.frames.clear()
                values.clear()
                raise failed
        self.uncacheable.append(why)
        return None, returned

    def _hand_over(self, machine: Machine, stop: Stop) -> tuple[HandedOver, Any]:
        """Whoever goes on from here gets real generators."""
        suspended = [
            *machine.generators,
            *machine.began_with,
        ]
        handed_over = HandedOver(suspended, machine.frames, machine.outside, self.dynamic)
        returned = stop.value
        if handed_over:
            handed_over.in_frames(machine.frames)
            returned = handed_over.put(returned)
            handed_over.in_the_outside()
        return handed_over, returned

    def _compiled(self, machine: Machine, values: list[Any], handed_over: HandedOver, *, returns: bool) -> Segment:
        self._names += 1
        fn = self.fn
        of = getattr(fn, "__name__", None) or type(fn).__name__
        name = f"{of}_{self._names}" if str(of).isidentifier() else f"graph_{self._names}"
        return compile_segment(machine, values, handed_over, backend=self.backend, name=name, returns=returns)

    def _note(self, found: GraphBreak) -> None:
        key = (found.reason, found.place, found.natively)
        if key not in self._noted:
            self._noted.add(key)
            self.breaks.append(found)

    def _crash(self, machine: Machine, fault: BaseException, entry: Entry) -> None:
        self.crashes.append(Crash.of(machine.frames, fault, entry, self.records, self.crashes))

    # What happens inside of a call that a handler waits for.

    def nested_break(self, machine: Machine, broken: Break) -> None:
        self._note(break_in(machine.frames, broken.reason, broken.advice))

    def nested_fault(self, machine: Machine, fault: BaseException) -> None:
        self._crash(machine, fault, machine.entry)


@functools.cache
def _hide() -> None:
    """Dynamo has no business in here: what calls us may be compiled by it."""
    torch_compat.hide_from_dynamo(Captured.__call__)


def _must_be(value: Any, kind: Any, name: str, wanted: str, fits: Callable[[Any], bool] = lambda value: True) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or not fits(value):
        raise SleuthError(
            f"{name}={value!r:.60} is not understood", cause=f"it is {wanted}", remedy=f"give {wanted}, or leave it out"
        )


def _at_work(machine: Machine, stop: Stop) -> list[Frame]:
    """The frames, the innermost one at the instruction that broke the graph."""
    if stop.operation is None:
        machine.frames[-1].place += 1
        frames = [_copy_of(each) for each in machine.frames]
        machine.frames[-1].place -= 1
        return frames
    return machine.frames


def _copy_of(frame: Frame) -> Frame:
    made = Frame.__new__(Frame)
    made.code, made.place, made.instructions = frame.code, frame.place, frame.instructions
    return made


def capture(
    fn: Any = None,
    backend: str | Callable[..., Any] = "eager",
    *,
    dynamic: bool = False,
    verify: bool = False,
    skip: Iterable[Any] = (),
    limit: int = LIMIT,
    records: str | None = None,
) -> Any:
    """A function, method or module whose graphs we record, each given to `backend`. Also a decorator.

    `dynamic`: sizes stay symbolic, so that one recording serves many of them. `verify`: each call is checked
    against eager. `skip`: functions that are not to be looked into: the graph breaks at their calls.
    `limit`: so many recordings are made at one place, before what fits none of them runs natively. `records`: the
    folder in which an execution record is left if the translator fails (the call itself goes on).
    """
    options: dict[str, Any] = {
        "dynamic": dynamic, "verify": verify, "skip": skip, "limit": limit, "records": records,
    }  # fmt: skip
    if fn is None or isinstance(fn, str):
        return functools.partial(_decorate, fn or backend, options)
    return Captured(fn, backend, **options)


def _decorate(backend: Any, options: dict[str, Any], fn: Any) -> Captured:
    return Captured(fn, backend, **options)

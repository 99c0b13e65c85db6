"""The machine under the interpreter: frames that run, calls that return, exceptions that unwind.

    Machine       the loop and its bookkeeping (this file)
    Attributes    reading and writing attributes          (attributes.py)
    Iterating     whatever hands out one value at a time  (iterating.py)
    Calls         what happens when something is called   (calls.py)
    Interpreter   a method for each opcode                (opcodes.py)

Each stands on the one above it. A handler looks at its operands, and then either

- does the real thing (`native`, or torch through the recorder) and pushes the result,
- pushes a frame (`push_frame`, it returns `PUSHED`) whose result arrives later, or
- raises `Break`: what the recording can't hold. The stack is put back as it was, and the machine stops before the
  instruction. Whoever runs it cuts the graph there, runs the instruction natively and begins a new recording.

So a machine records one segment. Its frames come from the one before, and go to the next one.
"""

from __future__ import annotations

import dis
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from torchsleuth.frontend import tracebacks
from torchsleuth.frontend.bytecode import Instruction, qualified
from torchsleuth.frontend.frames import PUSH, SEND, Frame, Generator, Instead, plain, unraisable
from torchsleuth.frontend.moving import (
    Operation,
    deliver,
    handled_now,
    is_handled,
    note,
    perform,
    set_context,
    unwind,
    while_handling,
)
from torchsleuth.frontend.outside import Outside
from torchsleuth.frontend.recorder import Recorder
from torchsleuth.frontend.replacing import Numbers
from torchsleuth.frontend.resuming import finish

PUSHED: Final = object()
"""A handler's result is not there yet: a frame was pushed that computes it."""
ENDED: Final = object()
"""The frame that `run` was to run has returned."""
MOST_FRAMES: Final = 300
MOST_STEPS: Final = 400_000
"""So many instructions are interpreted in one segment; then the rest of the call runs natively."""


class Break(Exception):
    """This instruction can't be part of a graph: `reason`, and what the user may do about it (`advice`)."""

    def __init__(self, reason: str, advice: str = "", *, leave: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.leave = leave
        """Nor can it be run by itself between two graphs: whatever is left of the call has to run natively."""


class UserError(Exception):
    """Carries what the user's code, or native code, has raised: so it is never taken for a fault of ours."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Fault(Exception):
    """The translator has met what can't be, or does not know what it should."""


@dataclass(frozen=True)
class Stop:
    """Why a machine has stopped, its frames being as they are then."""

    broken: Break | None = None
    operation: Operation | None = None
    """Runs the instruction that breaks the graph. None: the rest of the call has to run natively."""
    error: BaseException | None = None
    """Nobody in these frames handles it."""
    fault: BaseException | None = None
    """The translator has a bug."""
    returned: bool = False
    value: Any = None


class Home(Protocol):
    """What a machine needs to know of what it works for."""

    learned: dict[tuple[CodeType, int], str]
    skipped: frozenset[Any]
    unrolled: set[tuple[CodeType, int]]
    """Loops that began before a break, and that nothing else breaks: their iterators are looked into."""

    def nested_break(self, machine: Machine, broken: Break) -> None: ...

    def nested_fault(self, machine: Machine, fault: BaseException) -> None: ...


def _argument(instruction: Instruction) -> int | None:
    return instruction.arg if dis.opmap[instruction.name] >= dis.HAVE_ARGUMENT else None


class Machine:
    """The frames of one segment, and what moves them."""

    def __init__(self, home: Home, *, dynamic: bool) -> None:
        self.home = home
        self.frames: list[Frame] = []
        self.recorder = Recorder(
            dynamic=dynamic, where=self.where, handled=lambda: is_handled(self.frames), spoiled=self._spoiled
        )
        self.bases: list[int] = []
        """How deep the frame stack was at each call that a handler is waiting for."""
        self.drained: dict[int, tuple[Any, list[Any]]] = {}
        """Iterators that the instruction at work has taken values from, and these values."""
        self.entry: Any = None
        """What the call began with, for whoever has to make it again."""
        self.steps = 0
        self.checkpoint: list[Any] = []
        """The stack to go back to if the instruction at work breaks the graph."""
        self.acted = False
        """The instruction at work has done something that can't be done twice."""
        self.began_with: list[Generator] = []
        """Those that were at work when the segment began."""
        self.adopted: dict[int, list[Any]] = {}
        """Iterators from before the segment into which we have looked, and how many values were taken from them."""
        self.handed_on: tuple[Any, list[Any]] = (None, [])
        """A container that goes straight to the user, and what it holds: some of it may be `Untouched`."""
        self.made: dict[int, Any] = {}
        """Functions, cells and weak references that this segment has made."""
        self.generators: weakref.WeakSet[Generator] = weakref.WeakSet()
        """Those that this segment has made, as long as somebody holds them."""
        self.to_close: list[Generator] = []
        """Generators that nobody holds any more, in the middle of a `try` or a `with`."""
        self._result: Any = None

    # What the layers above provide.

    def execute(self, frame: Frame, instruction: Instruction) -> Any:
        raise NotImplementedError

    def operation(self, frame: Frame, instruction: Instruction) -> Operation | None:
        """How to run this instruction natively, between two graphs."""
        raise NotImplementedError

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a call, or `PUSHED`."""
        raise NotImplementedError

    def push_frame(
        self, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any], outcome: str | Instead = PUSH
    ) -> Any:
        """Calls a function of Python's by interpreting it. Returns `PUSHED`."""
        raise NotImplementedError

    # -- short ways to the recording

    @property
    def outside(self) -> Outside:
        return self.recorder.outside

    def where(self) -> tuple[str, str]:
        """(file:line, function) of the instruction at work."""
        if not self.frames:
            return "?", "?"
        frame = self.frames[-1]
        return f"{frame.code.co_filename}:{frame.instruction.line}", qualified(frame.code)

    def _spoiled(self, why: str) -> None:
        """The recording can't be kept because of the instruction at work: next time the graph breaks there."""
        if self.frames:
            frame = self.frames[self.bases[0] - 1] if self.bases else self.frames[-1]
            self.home.learned.setdefault((frame.code, frame.place - 1), why)

    # -- real operations

    def native(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a native function for real. What it raises is the user's."""
        self.acted = True
        try:
            return self.recorder.auditor.run(function, args, kwargs)
        except (UserError, Break):
            raise
        except BaseException as error:  # noqa: BLE001 - it goes where the program handles it
            error.__traceback__ = tracebacks.without_ours(error)
            caught = error
        return self.raises(caught)

    def look(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """The same for what changes nothing: it may be done twice."""
        acted = self.acted
        result = self.native(function, *args)
        self.acted = acted
        return result

    def raises(self, error: BaseException) -> Any:
        """The user's program raises this."""
        set_context(error, handled_now(self.frames))
        raise UserError(error)

    # -- the loop

    def record(self) -> Stop:
        """Runs the frames until the segment has to end."""
        stop = self.run(0)
        self.checkpoint, self.drained = [], {}  # they hold what the last instruction has dropped
        self.close_dropped()
        if isinstance(stop, Stop):
            return stop
        return Stop(returned=True, value=stop)

    def run(self, base: int) -> Any:
        """Runs until the frame above `base` has returned, and gives its result.

        With `base` 0, nobody waiting: may return a `Stop` instead. Otherwise what can't be recorded is run natively,
        and spoils the recording.
        """
        signal: Exception
        while True:
            try:
                while True:
                    frame = self.frames[-1]
                    if self.to_close:
                        self.close_dropped()
                    if self.recorder.why_spoiled and not self.bases:
                        return Stop()
                    self.checkpoint = before = frame.stack.copy()
                    frames = self.frames.copy()
                    instruction = frame.instructions[frame.place]
                    frame.place += 1
                    self.steps += 1
                    self.acted = False
                    if self.drained:
                        self.drained = {}
                    if self.home.learned and not self.bases and (frame.code, frame.place - 1) in self.home.learned:
                        raise Break(self.home.learned[frame.code, frame.place - 1])
                    if self.steps > MOST_STEPS:
                        raise Break(f"more than {MOST_STEPS:,} instructions were interpreted", leave=True)
                    if self.execute(frame, instruction) is ENDED:
                        return self._result
            except (UserError, Break) as raised:
                signal = raised
            except Exception as fault:
                if self.acted and not self._has_completed(frame, instruction, len(before), len(frames)):
                    note(fault, "torchsleuth: the translator failed half-way through an instruction, and can't go on")
                    raise
                signal = fault
            # Outside of `except`: what is raised natively from here on must not say that it came of `signal`.
            if isinstance(signal, UserError):
                error = signal.error
            else:
                if not self.acted or isinstance(signal, Break):
                    self.frames[:] = frames
                    frame.stack[:] = map(self._undrained, before)
                if not self.bases:
                    return self._stop(frame, instruction, signal)
                error_or_result = self._natively(frame, instruction, signal, base)
                if error_or_result is None:
                    continue
                if not isinstance(error_or_result, UserError):
                    return error_or_result[0]
                error = error_or_result.error
            if not self.bases and not is_handled(self.frames):
                return Stop(error=error)
            escaped = unwind(self.frames, base, error)
            if escaped is not None:
                raise UserError(escaped)

    def without_symbols(self, frames: list[Frame], value: Any = None, error: BaseException | None = None) -> Any:
        """The value, what these frames hold, and what was put into the outside: with numbers for symbolic sizes.

        The recording is over, or spoiled: for whoever goes on from here there are no symbols.
        """
        if self.recorder.dynamic:
            numbers = Numbers(self.outside)
            numbers.in_frames(frames)
            numbers.in_the_outside()
            numbers.put(error)
            value = numbers.put(value)
        return value

    def _undrained(self, value: Any) -> Any:
        """An iterator that gives once more what was taken from it: the instruction is going to be run again."""
        iterator, taken = self.drained.get(id(value), (None, []))
        return itertools.chain(taken, value) if iterator is value and taken else value

    def release(self) -> None:
        """Lets go of all values: they live only as long as the program holds them."""
        self.frames, self.checkpoint, self.began_with, self.handed_on = [], [], [], (None, [])
        self.adopted = {}
        self.made, self.drained, self.entry, self._result = {}, {}, None, None
        self.recorder.release()

    def _has_completed(self, frame: Frame, instruction: Instruction, before: int, frames: int) -> bool:
        """Whether an instruction has done all that it does to the stack: what failed then was of no consequence."""
        grown = len(frame.stack) - before
        effects = {
            dis.stack_effect(dis.opmap[instruction.name], _argument(instruction), jump=each) for each in (True, False)
        }
        return len(self.frames) == frames and grown in effects

    def _stop(self, frame: Frame, instruction: Instruction, signal: Exception) -> Stop:
        """Nobody waits: the segment ends before this instruction."""
        if isinstance(signal, Break):
            signal.__traceback__ = None  # it would keep all values alive
        if not isinstance(signal, Break):
            frame.place -= not self.acted
            return Stop(fault=signal)
        operation = None if signal.leave else self.operation(frame, instruction)
        if operation is None:
            frame.place -= 1
        return Stop(broken=signal, operation=operation)

    def _natively(self, frame: Frame, instruction: Instruction, signal: Exception, base: int) -> Any:
        """A handler waits: what can't be recorded runs natively. None to go on, or (result,), or a `UserError`."""
        operation = None
        if isinstance(signal, Break):
            self.home.nested_break(self, signal)
            self.recorder.spoil(signal.reason)
            operation = None if signal.leave else self.operation(frame, instruction)
        else:
            self.home.nested_fault(self, signal)
            self.recorder.spoil(f"the translator failed: {type(signal).__name__}: {signal}")
        acted, self.acted = self.acted, True
        self.without_symbols(self.frames if operation is not None else self.frames[base:])
        with self.recorder.auditor.unrecorded():
            if operation is not None:
                error = perform(self.frames, operation)[1]
                return None if error is None else self._in_context(error)
            frame.place -= isinstance(signal, Break) or not acted
            rest, outermost = self.frames[base:], self.frames[base]
            del self.frames[base:]
            try:
                result = finish(rest)
            except BaseException as raised:  # noqa: BLE001 - the user's
                return UserError(raised)
            if outermost.generator is not None and outermost.generator.finished:
                return UserError(StopIteration(result))
            return (result,)

    def _in_context(self, error: BaseException) -> UserError:
        set_context(error, handled_now(self.frames))
        return UserError(error)

    # -- calls that a handler waits for

    def call_now(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls something and waits for its result. What breaks inside of it runs natively and spoils the recording."""
        base = len(self.frames)
        self.bases.append(base)
        try:
            result = self.call(function, args, kwargs)
            if result is not PUSHED:
                return result
            result = self.run(base)
            self.acted = True
            return result
        except Break as raised:
            if not self.acted:
                raise  # nothing was done: the instruction that waits breaks the graph itself
            broken = raised
        finally:
            self.bases.pop()
        self.acted = True
        self.home.nested_break(self, broken)
        self.recorder.spoil(broken.reason)
        args, kwargs = self.without_symbols([], (args, kwargs))
        with self.recorder.auditor.unrecorded():
            return self.native(while_handling, handled_now(self.frames), functools.partial(function, *args, **kwargs))

    def close_dropped(self) -> None:
        """As CPython does when the last reference to a generator is gone. What it raises then goes to nobody."""
        while self.to_close:
            generator = self.to_close.pop()
            try:
                self.close(generator)
            except UserError as raised:
                unraisable(raised.error, generator)
                self.recorder.spoil("a generator that nobody holds any more raises while it is closed")
            except Exception as fault:  # noqa: BLE001 - a bug of ours: the instruction at work has nothing to do with it
                self.home.nested_fault(self, fault)
                self.recorder.spoil(f"the translator failed: {type(fault).__name__}: {fault}")

    def close(self, generator: Generator) -> None:
        """What `close()` of a generator does."""
        if not generator.has_begun:
            generator.frame = None
            return
        leaving = GeneratorExit()
        set_context(leaving, handled_now(self.frames))
        try:
            self.resume_now(generator, error=leaving)
        except Break as broken:
            self.recorder.spoil(broken.reason)
            with self.recorder.auditor.unrecorded():
                self.native(generator.close)
        except UserError as raised:
            if not isinstance(raised.error, (GeneratorExit, StopIteration)):
                raise
        else:
            self.raises(RuntimeError("generator ignored GeneratorExit"))

    def resume_now(self, generator: Generator, value: Any = None, error: BaseException | None = None) -> Any:
        """The next value of an interpreted generator. Raises its StopIteration."""
        base = len(self.frames)
        self.bases.append(base)
        try:
            if self.resume(generator, PUSH, value, error) is PUSHED:
                return self.run(base)
            return self._result
        finally:
            self.bases.pop()
            self.acted = True

    def resume(self, generator: Generator, outcome: str, value: Any = None, error: BaseException | None = None) -> Any:
        """Lets an interpreted generator go on: `PUSHED`."""
        frame = generator.frame
        if frame is None:
            raise Fault("a generator without a frame")
        if generator.running:
            self.raises(ValueError("generator already executing"))
        delegate = self._delegate(frame, error)
        frame.outcome = outcome
        frame.generator = generator
        base = len(self.frames)
        self.frames.append(frame)
        generator.running = True
        if error is None:
            frame.stack.append(value)
            return PUSHED
        set_context(error, handled_now([frame]))
        try:
            if delegate is not None and self._throw_into(delegate, frame, error):
                return PUSHED
        except UserError as raised:
            error = raised.error
        escaped = unwind(self.frames, base, error)
        if escaped is not None:
            generator.running = False
            raise UserError(escaped)
        return PUSHED

    def _delegate(self, frame: Frame, error: BaseException | None) -> Generator | None:
        """The generator that a frame waits for in a `yield from`, if an exception is to be thrown there."""
        at = frame.instructions[frame.place]
        if error is None or at.name != "RESUME" or at.arg & 3 != 2:
            return None
        delegate = plain(frame.stack[-1])
        if type(delegate) is Generator and delegate.native is None:
            return delegate if delegate.frame is not None else None
        if hasattr(delegate, "close" if isinstance(error, GeneratorExit) else "throw"):
            raise Break("an exception is thrown into what a `yield from` waits for")
        return None

    def _throw_into(self, delegate: Generator, frame: Frame, error: BaseException) -> bool:
        """Throws into what a frame waits for: whether it goes on there. Before a generator is closed, that is."""
        if isinstance(error, GeneratorExit):
            self.close(delegate)
            return False
        send = frame.instructions[frame.place + 1].target
        assert send is not None
        frame.place = send + 1  # what the delegate yields or returns arrives where it would behind this SEND
        self.resume(delegate, SEND, error=error)
        return True

    def returned(self, frame: Frame, value: Any, *, ended: bool = False) -> Any:
        """The innermost frame (taken off already) has returned or yielded `value`; `ended`: a generator has ended."""
        if len(self.frames) == (self.bases[-1] if self.bases else 0):
            if ended:
                raise UserError(StopIteration() if value is None else StopIteration(value))
            self._result = value
            return ENDED
        error = deliver(self.frames[-1], frame.outcome, value, ended)
        if error is not None:
            self.raises(error)
        return None

"""How frames move: a result that arrives, an exception that looks for its handler, an instruction run natively.

Nothing but frames is known here: the interpreter, the calls that come from the cache and native continuation share it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torchsleuth.frontend import tracebacks
from torchsleuth.frontend.bytecode import qualified
from torchsleuth.frontend.frames import DISCARD, ITERATE, NULL, SEND, Frame, Handled, Instead, plain
from torchsleuth.frontend.tracebacks import CALLED_FROM_HERE


@dataclass(frozen=True)
class Operation:
    """What a graph break runs natively: so many slots off the stack, and what it returns onto it."""

    operands: int
    run: Callable[..., Sequence[Any]]


Call = Callable[[Any, Any, Any], Any]


def _call(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


@functools.lru_cache(maxsize=1024)
def _call_at(code: CodeType, line: int) -> CodeType:
    return _call.__code__.replace(  # type: ignore[call-arg]
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=qualified(code),
        co_firstlineno=line - 1,
        co_consts=(*_call.__code__.co_consts, CALLED_FROM_HERE),
    )


def called_from(frames: Sequence[Frame]) -> Call:
    """`call(function, args, kwargs)` as from these frames' lines: whoever looks at who called (`warnings.warn`, a
    logger) sees the user's functions there."""
    callers = [FunctionType(_call_at(each.code, each.instruction.line), each.globals) for each in reversed(frames)]

    def call(function: Any, args: Any, kwargs: Any) -> Any:
        for caller in callers:
            function, args, kwargs = caller, (function, args, kwargs), {}
        return function(*args, **kwargs)

    return call


class Jump(tuple[Any, ...]):
    """What an operation returns if its instruction jumps: the values that are pushed, on the way to its target."""


def deliver(caller: Frame, outcome: str | Instead, result: Any, ended: bool) -> BaseException | None:
    """Puts the result of a frame where the one that called it expects it.

    `ended`: it was a generator, and has come to its end. Where nobody expects that, it is the StopIteration to raise.
    """
    if ended and outcome not in (ITERATE, SEND):
        return StopIteration() if result is None else StopIteration(result)
    if ended:
        caller.stack.pop()
        if outcome == SEND:
            caller.stack.append(result)
        jump(caller)
    elif isinstance(outcome, Instead):
        if result is not None and outcome.must_be_none:
            return TypeError(f"__init__() should return None, not '{type(plain(result)).__name__}'")
        caller.stack.append(outcome.value)
    elif outcome != DISCARD:
        caller.stack.append(result)
    return None


def jump(frame: Frame) -> None:
    """To where the instruction at work jumps."""
    target = frame.instruction.target
    assert target is not None
    frame.place = target


def while_handling(handled: BaseException | None, function: Callable[..., Any], *args: Any) -> Any:
    """Calls natively what is called while `handled` is being handled: `sys.exc_info()` tells of it."""
    if handled is None:
        return function(*args)
    trace, context = handled.__traceback__, handled.__context__
    try:
        raise handled
    except BaseException:  # noqa: BLE001 - it is not handled here
        handled.__traceback__, handled.__context__ = trace, context
        return function(*args)


def perform(frames: Sequence[Frame], operation: Operation) -> tuple[bool, BaseException | None]:
    """Runs the instruction at work natively: whether it has jumped, and what it has raised."""
    frame = frames[-1]
    stack = frame.stack
    begin = len(stack) - operation.operands
    operands = [plain(value) for value in stack[begin:] if value is not NULL]
    del stack[begin:]
    frame.keywords = ()
    try:
        results = while_handling(handled_now(frames), operation.run, *operands)
    except BaseException as error:  # noqa: BLE001 - it goes to whoever handles it
        tracebacks.clean(error)
        return False, error
    finally:
        del operands
    stack.extend(results)
    if type(results) is Jump:
        jump(frame)
        return True, None
    return False, None


def is_handled(frames: Sequence[Frame]) -> bool:
    """Whether any of these frames does something about an exception in its instruction at work."""
    return any(frame.decoded.handler_at(frame.instruction.offset) is not None for frame in frames)


def raises_again(frame: Frame, error: BaseException) -> bool:
    """Whether the instruction at work raises what was raised before: its traceback does not get longer there."""
    at = frame.instruction
    if error.__traceback__ is None:
        return False
    return at.name == "RERAISE" or (at.name == "RAISE_VARARGS" and at.arg == 0)


def unwind(frames: list[Frame], base: int, error: BaseException) -> BaseException | None:
    """Takes an exception to the innermost handler above `base`. If there is none: the exception, all frames gone."""
    again = raises_again(frames[-1], error)
    while len(frames) > base:
        frame = frames[-1]
        if not again:
            tracebacks.passes(error, frame)
        again = False
        offset = frame.instruction.offset
        handler = frame.decoded.handler_at(offset)
        if handler is not None:
            del frame.stack[handler.depth :]
            if handler.keeps_place:
                frame.stack.append(offset)
            frame.stack.append(error)
            frame.keywords = ()
            frame.place = handler.target
            return None
        frames.pop()
        if frame.generator is not None:
            frame.generator.frame = None
            if isinstance(error, StopIteration):
                wrapped = RuntimeError("generator raised StopIteration")
                wrapped.__cause__ = wrapped.__context__ = error
                error = wrapped
    return error


def handled_now(frames: Sequence[Frame]) -> BaseException | None:
    """The exception that the innermost of these frames that handles one is handling."""
    for frame in reversed(frames):
        for value in reversed(frame.stack):
            if type(value) is Handled:
                return value.current
    return None


def set_context(error: BaseException, handled: BaseException | None) -> None:
    """An exception that is raised while another one is handled says so, without going round in circles."""
    if handled is None or error is handled:
        return
    each: BaseException | None = handled
    while each is not None:
        if each.__context__ is error:
            each.__context__ = None
            break
        each = each.__context__
    error.__context__ = handled


def note(error: BaseException, words: str) -> None:
    """Adds a note to an exception, as tracebacks show it."""
    error.add_note(words)  # type: ignore[attr-defined]

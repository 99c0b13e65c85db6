"""Leaving the interpreter: frames that go on natively, at the instruction where they stand.

    finish(frames)                  runs what is left of each frame, innermost first, and returns the result
    native_generator(frame)         a real generator that goes on where an interpreted one stopped

All jumps of Python 3.11 are relative. So a function that resumes is the unchanged bytecode with a prologue in front: it
restores cells, locals and stack, and jumps. Only the tables (who handles exceptions, which line is where) shift.
"""

from __future__ import annotations

import functools
import inspect
import threading
from types import CellType, CodeType, FunctionType
from typing import Any

from torchsleuth.frontend.assembling import lines, one, table_entry
from torchsleuth.frontend.bytecode import exception_table
from torchsleuth.frontend.frames import NULL, Frame, Generator, Handled, plain
from torchsleuth.frontend.moving import Call, called_from, deliver, handled_now, raises_again, while_handling
from torchsleuth.frontend.tracebacks import without_ours

_VALUE, _NULL, _HANDLED = "value", "null", "handled"
_FIRST, _AGAIN = "raised here", "raised again"


class _Handover(threading.local):
    """Values on their way into a resumed frame. The prologue takes them before any code of the user's runs."""

    def __init__(self) -> None:
        self.values: list[Any] = []


_HANDOVER = _Handover()


def _take() -> Any:
    return _HANDOVER.values.pop()


def finish(frames: list[Frame], error: BaseException | None = None) -> Any:
    """Runs the frames to their end natively, innermost first. `error` is raised in the innermost one first."""
    result: Any = None
    while frames:
        frame = frames.pop()
        generator = frame.generator
        outcome = frame.outcome
        stopped = False
        handled, call = handled_now(frames), called_from(frames)
        try:
            if generator is not None:
                result, stopped = while_handling(handled, _step_of_generator, generator, frame, error, call)
            else:
                result = while_handling(handled, _begun, frame, error, call)
            error = None
        except BaseException as raised:  # noqa: BLE001 - it is raised in the frame that called this one
            error = raised
        if error is None and frames:
            error = deliver(frames[-1], outcome, result, stopped)
    if error is not None:
        try:
            raise error.with_traceback(without_ours(error))
        finally:
            error = None
    return result


def _step_of_generator(generator: Generator, frame: Frame, error: BaseException | None, call: Call) -> tuple[Any, bool]:
    """Runs a generator that was at work until it yields (value, False) or returns (value, True)."""
    generator.frame = None
    generator.native = natively = _begun(frame, error, call, yields=True)
    try:
        return call(next, (natively,), {}), False
    except StopIteration as stop:
        generator.native = None
        return stop.value, True
    except BaseException:
        generator.native = None
        raise


def native_generator(frame: Frame) -> Any:
    """A generator of Python's own that goes on where `frame`, suspended at a `yield` or not begun yet, stands."""
    if frame.instruction.name == "RETURN_GENERATOR":
        return _not_begun(frame)
    generator = _begun(frame, None, called_from(()), yields=True, suspended=True)
    next(generator)  # runs the prologue up to its own yield, where the next value sent arrives
    return generator


def _not_begun(frame: Frame) -> Any:
    """A generator of the same function with the same arguments."""
    code = frame.code
    held = {**{name: cell.cell_contents for name, cell in frame.cells.items() if _is_full(cell)}, **frame.locals}
    names = code.co_varnames
    args = [plain(held[name]) for name in names[: code.co_argcount]]
    rest = code.co_argcount + code.co_kwonlyargcount
    kwargs = {name: plain(held[name]) for name in names[code.co_argcount : rest]}
    if code.co_flags & inspect.CO_VARARGS:
        args += held[names[rest]]
        rest += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(held[names[rest]])
    closure = tuple(frame.cells[name] for name in code.co_freevars)
    return FunctionType(code, frame.globals, code.co_name, None, closure)(*args, **kwargs)


def _is_full(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _begun(
    frame: Frame, error: BaseException | None, call: Call, *, yields: bool = False, suspended: bool = False
) -> Any:
    """Calls what resumes `frame`: its result, or the generator."""
    code = frame.code
    while frame.keywords and error is None and frame.instructions[frame.place].name != "KW_NAMES":
        frame.place -= 1  # they belong to the call that follows, and are named again
    own = {name: cell for name, cell in frame.cells.items() if name in code.co_cellvars}
    kinds = tuple(_NULL if v is NULL else _HANDLED if type(v) is Handled else _VALUE for v in frame.stack)
    place = frame.place if error is None else max(frame.place - 1, 0)
    first = code.co_varnames[: min(code.co_argcount, 1)]
    resumed = resuming_code(
        code,
        frame.instructions[place].begin,
        frame.instructions[max(frame.place - 1, 0)].offset,
        (*frame.locals, *own),
        kinds,
        None if error is None else _AGAIN if raises_again(frame, error) else _FIRST,
        yields,
        suspended,
        all(name in frame.locals or name in own for name in first),
        _behind_delegate(frame) if suspended else None,
    )
    values = [*map(plain, frame.locals.values()), *own.values()]
    values += [v.current if type(v) is Handled else plain(v) for v in frame.stack if v is not NULL]
    if error is not None:
        values.append(error)
    _HANDOVER.values.extend(reversed(values))
    closure = tuple(frame.cells[name] for name in code.co_freevars)
    function = FunctionType(resumed, frame.globals, code.co_name, None, closure)
    arguments = [plain(frame.locals.get(name)) for name in first]
    # Whoever is dropped by the resumed code has to be gone then: nothing of it is held here.
    values.clear()
    frame.stack.clear()
    frame.locals.clear()
    del error
    return call(function, arguments, {})


def _behind_delegate(frame: Frame) -> int | None:
    """Where a generator goes on behind the `yield from` that it waits in; None if it waits in a plain `yield`."""
    at = frame.instructions[frame.place]
    if at.name != "RESUME" or at.arg & 3 != 2:
        return None
    send = frame.instructions[frame.place + 1].target
    behind = None if send is None else frame.instructions[send].target
    return None if behind is None else frame.instructions[behind].begin


@functools.lru_cache(maxsize=4096)
def resuming_code(
    code: CodeType,
    offset: int,
    last: int,
    names: tuple[str, ...],
    stack: tuple[str, ...],
    raising: str | None,
    yields: bool,
    suspended: bool,
    has_first: bool,
    delegates_to: int | None,
) -> CodeType:
    """`code` behind a prologue that restores `names` and the stack and goes on at `offset`, or raises there.

    A generator (`yields`) that is `suspended` yields once in its prologue; what is sent then is what its own `yield`,
    the instruction at `last`, returns. The first argument stays one, for the sake of `super()`; unless it `has_first`,
    the local has been deleted.

    In a `yield from`, `delegates_to` is where the code goes on once what it waits for has come to its end. Python's
    `throw()` and `close()` look for the delegate if a RESUME says so, and for that place at the SEND before the yield.
    """
    slots = _slots(code)
    take = len(code.co_consts)
    get = one("PUSH_NULL") + one("LOAD_CONST", take) + one("PRECALL", 0) + one("CALL", 0)
    prologue = one("COPY_FREE_VARS", len(code.co_freevars)) if code.co_freevars else b""
    if yields:
        prologue += one("RETURN_GENERATOR") + one("POP_TOP")
    prologue += one("RESUME", 0)
    if code.co_argcount and not has_first:
        prologue += one("DELETE_FAST", 0)
    for name in names:
        prologue += get + one("STORE_FAST", slots[name])
    for kind in stack:
        if kind == _NULL:
            prologue += one("PUSH_NULL")
        else:
            prologue += get
            if kind == _HANDLED:
                prologue += one("PUSH_EXC_INFO") + one("POP_TOP")
    guarded: tuple[int, int, int] | None = None  # from, to (in the prologue), whose handler is meant (in the code)
    marked: int | None = None
    if raising:
        prologue += get
        marked = len(prologue)
        prologue += one("RAISE_VARARGS", 1) if raising == _FIRST else one("RERAISE")
        guarded = (marked, len(prologue), offset)
        prologue += one("NOP")
    elif suspended:
        prologue += one("LOAD_CONST", take + 1)
        there = b"" if delegates_to is None else one("JUMP_FORWARD", delegates_to // 2)
        back = one("JUMP_FORWARD", (offset + len(there)) // 2)
        if delegates_to is not None:
            prologue += one("JUMP_FORWARD", 1) + one("SEND", 2 + len(back) // 2)
        begin = len(prologue)
        prologue += one("YIELD_VALUE")
        guarded = (begin, len(prologue) + 2, last)
        prologue += one("RESUME", 1 if delegates_to is None else 2) + back + there
    else:
        prologue += one("JUMP_FORWARD", offset // 2)
    size = len(prologue)
    table = [(s + size, e + size, t + size, depth, place) for s, e, t, depth, place in exception_table(code)]
    if guarded is not None:
        begin, end, meant = guarded
        handler = next((entry for entry in exception_table(code) if entry[0] <= meant < entry[1]), None)
        if handler is not None:
            table.insert(0, (begin, end, handler[2] + size, handler[3], handler[4]))
    return code.replace(  # type: ignore[call-arg]
        co_code=prologue + code.co_code,
        co_consts=(*code.co_consts, _take, None),
        co_argcount=min(code.co_argcount, 1),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~0x0C,
        co_stacksize=code.co_stacksize + 6,
        co_linetable=lines(code, offset, size // 2, None if marked is None else marked // 2) + code.co_linetable,
        co_exceptiontable=b"".join(table_entry(*entry) for entry in table),
    )


def _slots(code: CodeType) -> dict[str, int]:
    """Where each local, cell and free variable lies in a frame."""
    slots: dict[str, int] = {}
    name_at = code._varname_from_oparg  # type: ignore[attr-defined]
    for number in range(len(code.co_varnames) + len(code.co_cellvars) + len(code.co_freevars)):
        try:
            slots.setdefault(name_at(number), number)
        except IndexError:
            break
    return slots

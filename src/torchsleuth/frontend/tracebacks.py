"""Tracebacks of what is raised while we interpret: they name the user's lines, as if CPython had run them.

An exception that goes through an interpreted frame gets an entry for it. An entry needs a frame object; so there is a
`_stand_in` for the user's code: the same lines, never run, and holding no values.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.frontend import polyfills
from torchsleuth.frontend.assembling import lines_nowhere, one
from torchsleuth.frontend.frames import Frame

_OWN: Final = tuple(os.path.dirname(os.path.abspath(each)) + os.sep for each in (__file__, torch_compat.__file__))

CALLED_FROM_HERE: Final = "a line of the user's that we call from"
"""Among the constants of code that only looks as if it were the user's: no frame of it is shown."""
_STANDS_IN: Final = "a line of the user's that we have interpreted"

_A_GENERATOR: Final = 0x20
_TAKES_ANY: Final = 0x0C
_ASYNC: Final = 0x80 | 0x100 | 0x200


def passes(error: BaseException, frame: Frame) -> None:
    """An exception goes through a frame, at the instruction at work."""
    if frame.globals is vars(polyfills):
        return  # where the program runs natively, that is native
    prologue, code = _stand_in(frame.code)
    stands_in: Any = FunctionType(code, frame.globals)()
    at = frame.instruction
    error.__traceback__ = _entry(error.__traceback__, stands_in.gi_frame, prologue + at.offset, at.line)


def _entry(following: TracebackType | None, frame: FrameType, last: int, line: int | None) -> TracebackType:
    """One entry. Some instructions (the end of a `with`) stand in no line."""
    return TracebackType(following, frame, last, -1 if line is None else line)


@functools.lru_cache(maxsize=1024)
def _stand_in(code: CodeType) -> tuple[int, CodeType]:
    """Code of a generator that never begins, with the lines of `code` behind so many bytes."""
    prologue = one("RETURN_GENERATOR") + one("POP_TOP")
    return len(prologue), code.replace(  # type: ignore[call-arg]
        co_code=prologue + code.co_code,
        co_consts=(*code.co_consts, _STANDS_IN),
        co_argcount=0,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_freevars=(),
        co_flags=code.co_flags & ~(_TAKES_ANY | _ASYNC) | _A_GENERATOR,
        co_linetable=lines_nowhere(len(prologue) // 2) + code.co_linetable,
        co_exceptiontable=b"",
    )


def clean(error: BaseException) -> None:
    """Takes our own frames out of a traceback, unless nothing else is in it."""
    error.__traceback__ = _only(error.__traceback__, _is_of_the_program) or error.__traceback__


def of_operator(error: BaseException) -> TracebackType | None:
    """The traceback of what an operator raised that we have called: as if it had been called from C++, as in eager."""
    trace = error.__traceback__
    trace = trace and trace.tb_next  # the line that called it
    return trace and trace.tb_next  # the operator's own `__call__`


def without_ours(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of our own files."""
    return _only(error.__traceback__, _is_of_the_program)


def that_holds_nothing(trace: TracebackType) -> TracebackType | None:
    """What a later call may have of a traceback: frames of the program's hold its values."""
    return _only(trace, lambda code: _STANDS_IN in code.co_consts)


def _is_of_the_program(code: CodeType) -> bool:
    return not code.co_filename.startswith(_OWN) and CALLED_FROM_HERE not in code.co_consts


def _only(trace: TracebackType | None, wanted: Callable[[CodeType], bool]) -> TracebackType | None:
    kept = []
    while trace is not None:
        if wanted(trace.tb_frame.f_code):
            kept.append(trace)
        trace = trace.tb_next
    tidy: TracebackType | None = None
    for each in reversed(kept):
        tidy = _entry(tidy, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return tidy

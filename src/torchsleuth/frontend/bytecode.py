"""Bytecode of CPython 3.11 as data: instructions, who handles an exception where, which locals are still needed.

    decode(code)          the instructions, and the exception table, with jumps as indexes of instructions
    needed(code)[i]       the names of locals that may be read at instruction i or later

The front end knows one version's bytecode. `require_known_python` says so on any other.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from torchsleuth.errors import UnsupportedPython

KNOWN_PYTHON: Final = (3, 11)

_ENDS = frozenset(
    ["RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"]
)
"""Instructions after which the next one is not what follows."""

_LOOKS_AT_LOCALS: Final = frozenset(
    ["locals", "vars", "dir", "eval", "exec", "breakpoint", "set_trace", "_getframe", "currentframe"]
)
"""Names of what may read locals which the bytecode does not mention."""


GROUPS: Final[tuple[Any, ...]] = tuple(
    getattr(builtins, name, BaseException) for name in ("BaseExceptionGroup", "ExceptionGroup")
)
"""The classes of groups of exceptions, new in 3.11."""


def qualified(code: CodeType) -> str:
    """The name of a function with those that it is nested in."""
    return str(getattr(code, "co_qualname", code.co_name))


def require_known_python() -> None:
    """`UnsupportedPython` unless this is the version whose bytecode is known here."""
    if sys.version_info[:2] != KNOWN_PYTHON or sys.implementation.name != "cpython":
        known = ".".join(map(str, KNOWN_PYTHON))
        raise UnsupportedPython(
            f"the front end does not know the bytecode of {sys.implementation.name} {sys.version.split()[0]}",
            cause=f"it interprets the instructions of CPython {known}, and they change with each version",
            remedy=f"run it with CPython {known}; everything else in torchsleuth works here as well",
        )


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `target` is the index of the instruction that it may jump to."""

    name: str
    arg: int
    value: Any
    begin: int
    """Where it begins, its prefixes (EXTENDED_ARG) included: who goes there has to run these, too."""
    offset: int
    """Where it lies itself."""
    line: int
    target: int | None


@dataclass(frozen=True, slots=True)
class Handler:
    """Where an exception in [start, end) (offsets) is handled: at instruction `target`, on a stack cut to `depth`."""

    start: int
    end: int
    target: int
    depth: int
    keeps_place: bool
    """Whether the offset of the failing instruction is pushed, for a later RERAISE."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A code object, taken apart."""

    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler, ...]

    def handler_at(self, offset: int) -> Handler | None:
        return next((handler for handler in self.handlers if handler.start <= offset < handler.end), None)


@functools.cache
def decode(code: CodeType) -> Decoded:
    """The instructions of `code` without caches and prefixes, and its exception table."""
    index: dict[int, int] = {}
    raw: list[tuple[dis.Instruction, int, int]] = []
    line = code.co_firstlineno
    pending: list[int] = []
    for each in dis.get_instructions(code):
        line = each.starts_line or line
        if each.opname == "EXTENDED_ARG":
            pending.append(each.offset)
            continue
        for offset in (*pending, each.offset):
            index[offset] = len(raw)
        raw.append((each, (*pending, each.offset)[0], line))
        pending.clear()
    instructions = tuple(
        Instruction(
            name=each.opname,
            arg=0 if each.arg is None else each.arg,
            value=each.argval,
            begin=begin,
            offset=each.offset,
            line=at,
            target=index[each.argval] if each.opcode in dis.hasjrel else None,
        )
        for each, begin, at in raw
    )
    handlers = tuple(
        Handler(start, end, index[target], depth, lasti) for start, end, target, depth, lasti in exception_table(code)
    )
    return Decoded(instructions, handlers)


def exception_table(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, whether the place is kept) of each entry, in offsets of bytes."""
    data = iter(code.co_exceptiontable)  # type: ignore[attr-defined]

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(data)
            value = value << 6 | first & 63
        return value

    found = []
    for first in data:
        start = number(first) * 2
        length, target, depth_and_place = number(next(data)) * 2, number(next(data)) * 2, number(next(data))
        found.append((start, start + length, target, depth_and_place >> 1, bool(depth_and_place & 1)))
    return found


@functools.cache
def needed(code: CodeType) -> tuple[frozenset[str], ...]:
    """For each instruction (and one past the last): the locals that may still be read from there on.

    All of them anywhere, where the code has the name of something that looks at locals.
    """
    if not _LOOKS_AT_LOCALS.isdisjoint(code.co_names):
        return (frozenset(code.co_varnames),) * (len(decode(code).instructions) + 1)
    decoded = decode(code)
    instructions = decoded.instructions
    count = len(instructions)
    always = code.co_varnames[: "super" in code.co_names]  # it reads the first argument
    alive: list[frozenset[str]] = [frozenset(always)] * (count + 1)
    handled_at = [[h.target for h in decoded.handlers if h.start <= each.offset < h.end] for each in instructions]
    changed = True
    while changed:
        changed = False
        for place in range(count - 1, -1, -1):
            each = instructions[place]
            now = set() if each.name in _ENDS else set(alive[place + 1])
            if each.target is not None:
                now |= alive[each.target]
            if each.name == "STORE_FAST":
                now.discard(each.value)
            for target in handled_at[place]:
                now |= alive[target]
            now.update(always)
            if each.name in ("LOAD_FAST", "DELETE_FAST", "MAKE_CELL"):
                now.add(each.value)
            if now != alive[place]:
                alive[place] = frozenset(now)
                changed = True
    return tuple(alive)

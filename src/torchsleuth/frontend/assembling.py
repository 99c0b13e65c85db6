"""Bytecode of CPython 3.11 that we write ourselves: instructions, entries of exception tables, tables of lines."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

_OPCODES = dis.opmap
_CACHES: Any = getattr(dis, "_inline_cache_entries", [])


def one(name: str, arg: int = 0) -> bytes:
    """One instruction with its prefixes and caches."""
    code = b"".join(bytes([_OPCODES["EXTENDED_ARG"], arg >> shift & 255]) for shift in (24, 16, 8) if arg >> shift)
    return code + bytes([_OPCODES[name], arg & 255]) + b"\0\0" * int(_CACHES[_OPCODES[name]])


def table_entry(start: int, end: int, target: int, depth: int, keeps_place: bool) -> bytes:
    """One entry of an exception table."""
    return (
        _big_endian(start // 2, first=True)
        + _big_endian((end - start) // 2)
        + _big_endian(target // 2)
        + _big_endian(depth << 1 | keeps_place)
    )


def _big_endian(value: int, first: bool = False) -> bytes:
    digits = [value & 63]
    while value := value >> 6:
        digits.insert(0, value & 63)
    head: Sequence[int] = [digit | 64 for digit in digits[:-1]]
    out = [*head, digits[-1]]
    if first:
        out[0] |= 128
    return bytes(out)


def lines(code: CodeType, offset: int, units: int, marked: int | None) -> bytes:
    """The line table of a prologue: no line; but one unit may stand for the instruction of `code` at `offset`."""
    if marked is None:
        return lines_nowhere(units)
    line, last, column, end = list(code.co_positions())[offset // 2]  # type: ignore[attr-defined]
    if line is None:
        return lines_nowhere(units)
    delta = line - code.co_firstlineno
    if last is None or column is None or end is None:
        here = bytes([0x80 | 13 << 3]) + _signed(delta)
    else:
        here = bytes([0x80 | 14 << 3]) + _signed(delta) + b"".join(map(_digits, (last - line, column + 1, end + 1)))
    return (
        lines_nowhere(marked)
        + here
        + bytes([0x80 | 13 << 3]) + _signed(-delta)
        + lines_nowhere(units - marked - 2)
    )  # fmt: skip


def lines_nowhere(units: int) -> bytes:
    out = b""
    while units > 0:
        now = min(units, 8)
        out += bytes([0x80 | 15 << 3 | now - 1])
        units -= now
    return out


def _signed(value: int) -> bytes:
    return _digits(-value << 1 | 1 if value < 0 else value << 1)


def _digits(value: int) -> bytes:
    """The lowest six bits first."""
    out = []
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    return bytes([*out, value])

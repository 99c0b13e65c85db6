"""Guards: what a recording took for granted, as lines of Python that look whether it still holds.

Each line is either `name = where it lies` or a check. Together they are the first part of a segment's code, so that
checking is as fast as Python can be; one by one they tell which of them does not hold (`explain`).

    guards.constant(x)             a name for the very object x in the generated code
    guards.assign("L[0]")          a variable with that value
    guards.check("s0 is K1", ...)  a condition, with words for people
    guards.exactly("s0", 3, ...)   this value, of this type, bit for bit
"""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import dataclass, field
from types import EllipsisType, NotImplementedType
from typing import Any, Final, NamedTuple

import torch

from torchsleuth.frontend.kinds import is_a

MISS: Final = object()
"""What a segment returns if one of its guards does not hold."""

GUARD_ERRORS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, ReferenceError)
"""What looking for something that is gone may raise."""

_SINGLETONS = (bool, type(None), EllipsisType, NotImplementedType)
_SCALARS = (int, str, float, bytes, complex)
_ATOMS: Final = (*_SINGLETONS, *_SCALARS)
_TORCH_SINGLETONS = (torch.dtype, torch.layout, torch.memory_format)
_MANY = 64


class Source(NamedTuple):
    """Where a value of the outside lies: in the generated code, and in words."""

    code: str
    words: str
    live: bool = False
    """Reached from a value that each call brings: another object may lie there next time."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of guards: `target = code`, or, without a target, the condition `code`."""

    code: str
    target: str = ""
    words: str = ""
    subject: str = ""
    """What to show if the condition does not hold."""

    def python(self) -> str:
        return f"{self.target} = {self.code}" if self.target else f"if not ({self.code}): return MISS"


@dataclass
class Guards:
    """The guards of one segment, in the order in which what they check was read."""

    lines: list[Line] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _variables: int = 0

    def constant(self, value: Any) -> str:
        """A name for this object."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.constants)
            self.constants.append(value)
        return f"K{number}"

    def literal(self, value: Any) -> str:
        """An expression for a constant: as it is written, if it is simple."""
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        return self.constant(value)

    def assign(self, code: str) -> str:
        """A new variable that holds what `code` says."""
        self._variables += 1
        name = f"s{self._variables}"
        self.lines.append(Line(code, target=name))
        return name

    def check(self, condition: str, words: str, subject: str = "") -> None:
        self.lines.append(Line(condition, words=words, subject=subject))

    def exactly(self, code: str, value: Any, words: str) -> None:
        """What lies at `code` is a constant: the same one, of the same type."""
        kind = type(value)
        said = f"{words} is {_shown(value)}"
        if kind in _SINGLETONS or is_a(value, (enum.Enum, *_TORCH_SINGLETONS)):
            self.check(f"{code} is {self.literal(value)}", said, code)
        elif kind in (int, str, bytes):
            self.check(f"type(v := {code}) is {kind.__name__} and v == {value!r}", said, code)
        elif kind is float and value == value and value != 0 and not math.isinf(value):
            self.check(f"type(v := {code}) is float and v == {value!r}", said, code)
        else:
            self.check(f"EXACTLY({code}, {self.constant(value)})", said, code)

    def is_object(self, code: str, value: Any, words: str) -> None:
        """This very object lies at `code`."""
        self.check(f"{code} is {self.constant(value)}", f"{words} is the same {type(value).__name__}", code)

    def names(self) -> dict[str, Any]:
        """What the generated code has to know."""
        return {f"K{number}": value for number, value in enumerate(self.constants)} | {"EXACTLY": exactly}


def is_constant(value: Any, depth: int = 0) -> bool:
    """Whether a value is known wholly by its type and its content, and has neither state nor identity of its own."""
    kind = type(value)
    if any(kind is each for each in _ATOMS) or is_numpy_scalar(kind) or is_a(value, (*_TORCH_SINGLETONS, torch.device)):
        return True
    if kind in (tuple, frozenset, torch.Size):
        return len(value) <= _MANY and depth < 8 and all(is_constant(each, depth + 1) for each in value)
    if kind is range:
        return True
    if kind is slice:
        return all(is_constant(each, depth + 1) for each in (value.start, value.stop, value.step))
    return is_a(value, enum.Enum)


def is_numpy_scalar(kind: type) -> bool:
    """Whether it is the class of single numbers of numpy's, or of its booleans. (This does not import numpy.)"""
    return kind.__module__ == "numpy" and any(each.__name__ in ("number", "bool", "bool_") for each in kind.__mro__)


def exactly(found: Any, value: Any) -> bool:
    """Whether two constants are the same: of one type, and bit for bit."""
    if type(found) is not type(value):
        return False
    if is_numpy_scalar(type(value)):
        return bool(found.tobytes() == value.tobytes())
    if type(value) in (float, complex):
        return bits(found) == bits(value)
    if type(value) is tuple:
        return len(found) == len(value) and all(map(exactly, found, value))
    if type(value) is slice:
        return all(exactly(getattr(found, part), getattr(value, part)) for part in ("start", "stop", "step"))
    if type(value) is frozenset:
        return list(map(identity, found)) == list(map(identity, value))
    if type(value) is range:
        return all(exactly(getattr(found, part), getattr(value, part)) for part in ("start", "stop", "step"))
    return bool(found == value)


def bits(value: complex) -> bytes:
    """The bits of a float, or of a complex number: zeros and NaNs have a sign, too."""
    return struct.pack("dd", value.real, value.imag)


def identity(value: Any) -> Any:
    """Equal for constants that are the same ones, and for what is one object."""
    kind = type(value)
    if not is_constant(value):
        return id(value)
    if kind in (float, complex):
        return kind, bits(value)
    if is_numpy_scalar(kind):
        return kind, value.tobytes()
    if kind in (tuple, frozenset, torch.Size):
        return kind, tuple(map(identity, value))
    if kind is range:
        return kind, value.start, value.stop, value.step
    return kind, value


class Explained(NamedTuple):
    """Which guard does not hold, and what was found instead."""

    guard: str
    found: str


def explain(lines: list[Line], names: dict[str, Any], live: Any) -> Explained | None:
    """The first of these lines that does not hold for these live values."""
    scope = {**names, "L": live}
    for line in lines:
        if line.target:
            try:
                scope[line.target] = eval(line.code, scope)  # noqa: S307 - our own generated code
            except GUARD_ERRORS as error:
                return Explained(f"{line.code} can be read", f"{type(error).__name__}: {error}")
            continue
        try:
            if eval(line.code, scope):  # noqa: S307 - our own generated code
                continue
        except GUARD_ERRORS as error:
            return Explained(line.words, f"it is gone ({type(error).__name__}: {error})")
        found = ""
        if line.subject:
            try:
                found = f"it is {_shown(eval(line.subject, scope))} now"  # noqa: S307 - our own generated code
            except GUARD_ERRORS as error:
                found = f"it is gone ({type(error).__name__})"
        return Explained(line.words, found or "it does not hold")
    return None


def _shown(value: Any) -> str:
    """A value in a few words; says nothing that calls code of the user's."""
    if is_constant(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if is_a(value, torch.Tensor):
        return "a tensor"
    return f"a {type(value).__qualname__}"

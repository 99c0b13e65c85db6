"""What a setting may be: the words and numbers, and how each kind is read from a file, a variable or an argument."""

from __future__ import annotations

import math
import os
import re
from enum import IntEnum

from torchsleuth.outcome import Word


class After(Word):
    """After which stage the graph is watched."""

    DYNAMO = "dynamo"
    AOT = "aot"
    BOTH = "both"

    @property
    def sees_dynamo(self) -> bool:
        """Whether the graph that Dynamo made is watched while it runs."""
        return self is not After.AOT

    @property
    def sees_aot(self) -> bool:
        """Whether the graphs that AOTAutograd made are."""
        return self is not After.DYNAMO


class Level(IntEnum):
    """When the watcher looks and what it keeps: the four policies, by number or by name."""

    DUMP = 1
    MINIFY = 2
    ALWAYS = 3
    ACCURACY = 4

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        # Without this, f"{level}" is the number on some Pythons and the name on others.
        return format(str(self), spec)


class DoesNotFit(Exception):
    """A parser's no; whoever knows the setting's name and source turns it into a `BadValue`."""


_LEVELS = {form: level for level in Level for form in (str(level.value), level.name.lower())}
_BYTES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kmgt])i?b?")
_BOOLS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def parse_after(value: object) -> After | None:
    if value is None or (isinstance(value, str) and value in ("", "none", "off")):
        return None
    if isinstance(value, str):
        try:
            return After(value)
        except ValueError:
            raise DoesNotFit from None
    raise DoesNotFit


def parse_level(value: object) -> Level:
    # By exact type: a bool, a float or another enum's member may equal 1 and still not be a level.
    if type(value) is int and value in Level.__members__.values():
        return Level(value)
    if isinstance(value, Level):
        return value
    if isinstance(value, str) and value.lower() in _LEVELS:
        return _LEVELS[value.lower()]
    raise DoesNotFit


def parse_tolerance(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise DoesNotFit
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise DoesNotFit from None
    if not math.isfinite(number) or number <= 0:
        raise DoesNotFit
    return number


def parse_store(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise DoesNotFit
    return value


def parse_count(value: object, least: int = 1) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if type(value) is not int or not least <= value < 2**63:
        raise DoesNotFit
    return value


def parse_count_or_zero(value: object) -> int:
    return parse_count(value, 0)


def parse_limit(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("none", "off")):
        return None
    return parse_count(value)


def parse_bytes(value: object) -> int:
    found = _BYTES.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        return parse_count_or_zero(value)
    return parse_count_or_zero(int(float(found[1]) * 1024 ** "kmgt".index(found[2]) * 1024))


def parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLS:
        return _BOOLS[value.lower()]
    raise DoesNotFit

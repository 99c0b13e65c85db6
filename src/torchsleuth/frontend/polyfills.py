"""Native functions that call code of the user's, written out in Python: so they are interpreted like the user's own.

They are used only where something of the user's has to run in the middle: `sorted` with a key, `sum` over tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

_NONE: Any = object()


def any_of(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110 - this is what `any` means
        if value:
            return True
    return False


def all_of(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110 - this is what `all` means
        if not value:
            return False
    return True


def sum_of(values: Iterable[Any], start: Any = 0) -> Any:
    total = start
    for value in values:
        total = total + value
    return total


def reduced(function: Callable[[Any, Any], Any], values: Iterable[Any], start: Any = _NONE) -> Any:
    iterator = iter(values)
    if start is _NONE:
        try:
            result = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    else:
        result = start
    for value in iterator:
        result = function(result, value)
    return result


def in_order(values: Iterable[Any], key: Callable[[Any], Any], reverse: bool = False) -> list[Any]:
    items = list(values)
    keys = [key(item) for item in items]
    return [items[number] for number in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)]


def first_in_order(values: Iterable[Any], key: Callable[[Any], Any], largest: bool, default: Any, name: str) -> Any:
    best = best_key = _NONE
    for value in values:
        now = key(value)
        if best is _NONE or (now > best_key if largest else now < best_key):
            best, best_key = value, now
    if best is _NONE:
        if default is _NONE:
            raise ValueError(f"{name}() arg is an empty sequence")
        return default
    return best


def numbered(values: Iterable[Any], start: int = 0) -> Iterator[Any]:
    number = start
    for value in values:
        yield number, value
        number += 1


def index_of(values: Any, wanted: Any, start: int = 0, stop: int | None = None) -> int:
    """`index` of a list or a tuple, where comparing is Python code."""
    size = len(values)
    begin = max(start + size, 0) if start < 0 else start
    end = size if stop is None else max(stop + size, 0) if stop < 0 else min(stop, size)
    for number in range(begin, end):
        if values[number] is wanted or values[number] == wanted:
            return number
    if type(values) is list:
        raise ValueError(f"{wanted!r} is not in list")
    raise ValueError("tuple.index(x): x not in tuple")


def contains(values: Iterable[Any], wanted: Any) -> bool:
    for value in values:  # noqa: SIM110 - `any` would not be interpreted faster
        if value is wanted or value == wanted:
            return True
    return False


NO_DEFAULT = _NONE

"""Where a native iterator stands: what it iterates over, and how far it has come.

Only for iterators of which that can be said without taking anything out of them.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from typing import Any, Final

_DICTS: Final[dict[type, str]] = {
    type(iter({})): "keys",
    type(iter({}.values())): "values",
    type(iter({}.items())): "items",
}
_SEQUENCES: Final[tuple[type, ...]] = (type(iter([])), type(iter(())), type(iter(range(0))))
POSITIONED: Final = (*_DICTS, *_SEQUENCES, enumerate, zip)


def parts(iterator: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """What an iterator is made of (containers, or other iterators), and the numbers that say where it stands."""
    kind = type(iterator)
    if kind in _DICTS:
        owner = dict_of_iterator(iterator)
        return (owner,), (-1 if owner is None else taken_of(iterator, owner),)
    reduced = iterator.__reduce__()
    if kind is enumerate:
        inner, count = reduced[1]
        return (inner,), (count,)
    if kind is zip:
        return tuple(reduced[1]), (len(reduced),)
    position = reduced[2] if len(reduced) > 2 else -1
    return (reduced[1][0],), (position,)


def can_be_told(iterator: Any) -> bool:
    """Whether `parts` says all there is."""
    kind = type(iterator)
    if kind in (enumerate, zip):
        return all(map(can_be_told, parts(iterator)[0]))
    if kind in _DICTS:
        owner = dict_of_iterator(iterator)
        return owner is not None and _is_intact(iterator)
    return kind in _SEQUENCES


def dict_of_iterator(iterator: Any) -> dict[Any, Any] | None:
    """The dict that an iterator goes through; None if it has come to its end."""
    return next((each for each in gc.get_referents(iterator) if isinstance(each, dict)), None)


def taken_of(iterator: Any, owner: dict[Any, Any]) -> int:
    """How many items an iterator over a dict has given."""
    return len(owner) - operator.length_hint(iterator)


def _is_intact(iterator: Any) -> bool:
    """Whether the dict has the size that it had when the iterator was made."""
    try:
        iterator.__reduce__()
    except RuntimeError:
        return False
    return True


def made_again(iterator: Any, write: Callable[[Any], str]) -> str | None:
    """Code for another iterator that stands where this one over a dict stands. None if that has come to its end."""
    owner = dict_of_iterator(iterator)
    if owner is None:
        return None
    if not _is_intact(iterator):
        raise ValueError("an iterator over a dict that has changed its size")
    return f"ADVANCED(iter({write(owner)}.{_DICTS[type(iterator)]}()), {taken_of(iterator, owner)})"


def is_over_dict(iterator: Any) -> bool:
    return type(iterator) in _DICTS

"""What two results may differ in though their values are the same, in words that can be compared.

    traits = traits_of("output", result, Owners([("args[0]", x)]))      {"output": "a tuple", "output[0]": ...}
    other_traits(expected, traits)             "output is a list; eager gives a tuple"; empty if nothing is otherwise

A trait is what the program sees, and no compiler may choose:

- the type of each container and of each leaf, the order of keys, and whether a tensor requires a gradient;
- that a list or a dict is one and the same object in two places, or is what the call was given;
- that a tensor lies in memory of an argument, a parameter, a buffer or a global. Whoever writes to it later writes to
  those, too: AOT makes such results anew out of the inputs, for this very reason. To lie in it and to lie beside it
  are both told. Which of the tensors that lie there are one object does not matter to who writes to them;
- that a tensor with new memory is one and the same object in two places.

No traits are strides and layouts, which a compiler may choose. Nor is memory that results share among themselves
alone: a compiler may compute each of them by itself, or make one a view of the other; nothing from before the call
hangs on it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.compare.tree import open_container
from torchsleuth.frontend.undoing import ATOMS, has_memory

_LONGEST: Final = 160
_HAVE_IDENTITY: Final = (torch.Tensor, list, dict, collections.deque)
"""Of these the program can tell whether two are one, since it can write to them."""


class Owners:
    """What was there before the call: objects by their ids, and whose memory it is."""

    def __init__(
        self,
        given: Iterable[tuple[str, Any]] = (),
        objects: Mapping[int, str] | None = None,
        memories: Mapping[int, str] | None = None,
    ) -> None:
        self.objects = dict(objects or {})
        self.memories = dict(memories or {})
        self._kept = [part for path, value in given for part in _parts(path, value)]
        for step, each in self._kept:
            if isinstance(each, _HAVE_IDENTITY):
                self.objects[id(each)] = step
            key = _memory(each)
            if key is not None:
                self.memories.setdefault(key, step)


def traits_of(path: str, value: Any, owners: Owners | None = None) -> dict[str, str]:
    """The traits of a value and its parts, by path. Without `owners`, only types, order and gradients."""
    met: dict[int, str] = {}
    return {step: ", ".join(_traits(step, each, owners, met)) for step, each in _parts(path, value)}


def other_traits(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The first trait that is not as expected, in words. What is at one place only has no traits to compare."""
    for path, words in expected.items():
        now = found.get(path, words)
        if now != words:
            return f"{path} is {_cut(now)}; eager gives {_cut(words)}"
    return ""


def _traits(path: str, value: Any, owners: Owners | None, met: dict[int, str]) -> Iterator[str]:
    yield kind_of(value)
    if isinstance(value, torch.Tensor) and value.requires_grad:
        yield "which requires a gradient"
    if isinstance(value, dict):
        yield f"with the keys {', '.join(map(_key_words, value))}" if value else "without keys"
    if owners is None or not isinstance(value, _HAVE_IDENTITY):
        return
    first = met.setdefault(id(value), path)
    memory = _memory(value)
    if memory in owners.memories:
        yield f"in the memory of {owners.memories[memory]}"
    elif id(value) in owners.objects:
        yield f"the very object {owners.objects[id(value)]}"
    elif first != path:
        yield f"the same object as {first}"
    elif memory is not None:
        yield "in new memory"


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    """A value and all that is in it, each with its path. What is in two places is opened at the first."""
    found: list[tuple[str, Any]] = []
    opened: set[int] = set()
    waiting = [(path, value)]
    while waiting:
        step, each = waiting.pop()
        found.append((step, each))
        container = None if id(each) in opened else open_container(each)
        if container is not None:
            opened.add(id(each))
            waiting += [(step + name, child) for name, child in reversed(list(container.children.items()))]
    return found


def _memory(value: Any) -> int | None:
    """Which memory a tensor lies in. None where nobody can write to it."""
    if not isinstance(value, torch.Tensor) or not has_memory(value) or not value.numel():
        return None
    return torch_compat.storage_key(value.untyped_storage())


def kind_of(value: Any) -> str:
    """The type of a value, with an article."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _key_words(key: Any) -> str:
    return repr(key) if isinstance(key, ATOMS) else f"a {type(key).__qualname__}"


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"

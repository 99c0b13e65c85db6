"""What a call left behind, in a form in which two calls can be compared, however different their objects.

    notes = Notes(reach, exact=True)
    notes.take(value, None, reach.changed())       what it returned (or raised), and the content of what it has changed
    compared(notes, others, values=True)           a `Comparison`: the first place where they differ

What was in reach before the call is noted as the object that it is, by its path; what is new is opened, down to numbers
and tensors. Tensors are copied: whoever undoes the call writes to their memory.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.compare.agree import compare_pairs
from torchsleuth.compare.comparison import Comparison, Tolerance
from torchsleuth.compare.tree import ABSENT, Leaves, Misfit, Opened, is_numpy, walk
from torchsleuth.frontend.outside import attributes_of, slots_of
from torchsleuth.frontend.undoing import ATOMS, Holder, Pairs, Reach, TensorHolder, has_memory
from torchsleuth.outcome import Symptom

DEEPEST: Final = 60
"""What is nested deeper is compared by its type alone."""

_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]+\b")


@dataclass(frozen=True)
class Words:
    """What is named instead of shown."""

    words: str

    def __repr__(self) -> str:
        return self.words


class Notes:
    """The outcome of one call, and what it has changed. `exact`: tensors bit by bit, with strides and shared memory."""

    def __init__(self, reach: Reach, *, exact: bool) -> None:
        self.outcome: Any = None
        self.reach = reach
        self.exact = exact
        self._changes: dict[int, Any] = {}
        self._paths: dict[int, str] = {}
        self._memories = dict(reach.memories)
        self._kept: list[Any] = []

    def take(self, value: Any, error: BaseException | None, changed: Iterable[Holder]) -> None:
        if error is not None:
            self.outcome = Opened("an exception", {"": self._of("the outcome", error, DEEPEST)})
        else:
            self.outcome = Opened("a result", {"": self._of("the outcome", value, DEEPEST)})
        places = {id(holder): place for place, holder in enumerate(self.reach.holders)}
        for holder in changed:
            self._changes[places[id(holder)]] = self._content(holder, holder.read())

    @property
    def changes(self) -> set[int]:
        """The places of the holders whose content is noted."""
        return set(self._changes)

    def at(self, place: int) -> Any:
        """The content of a holder: the old one, if the call has not changed it."""
        if place not in self._changes:
            holder = self.reach.holders[place]
            self._changes[place] = self._content(holder, holder.before, was=True)
        return self._changes[place]

    def _content(self, holder: Holder, content: Pairs, *, was: bool = False) -> Any:
        if isinstance(holder, TensorHolder):
            now = dict(content)
            tensor = holder.tensor_before() if was else holder.value
            history = holder.had_history if was else holder.value.grad_fn is not None
            return self._tensor(holder.path, tensor, now["requires_grad"], history, now["grad"], DEEPEST)
        if isinstance(holder.value, set):
            return self._elements(element for element, _ in content)
        steps = [holder.step(key) if isinstance(key, ATOMS) else f"[{self._name(key)}]" for key, _ in content]
        children = {
            step: self._of(holder.path + step, value, DEEPEST) for step, (_, value) in zip(steps, content, strict=True)
        }
        if holder.has_order:
            children["'s order"] = Words(", ".join(steps))
        return Opened(type(holder.value).__qualname__, children)

    def _of(self, path: str, value: Any, depth: int) -> Any:
        """A value as it is compared."""
        if isinstance(value, float) and self.exact and value == 0.0 and math.copysign(1.0, value) < 0:
            return Words("-0.0")
        if isinstance(value, (*ATOMS, type, ModuleType)):
            return value
        if not isinstance(value, (tuple, frozenset)):  # those may be constants: it does not matter which of two it is
            if id(value) in self.reach.paths:
                return Words(f"the object {self.reach.paths[id(value)]}")
            if id(value) in self._paths:
                return Words(f"the object {self._paths[id(value)]} again")
            self._paths[id(value)] = path
        self._kept.append(value)
        if depth == 0:
            return Words(f"a {type(value).__qualname__}")
        if isinstance(value, torch.Tensor):
            grad = value.grad if value.is_leaf else None
            return self._tensor(path, value, value.requires_grad, value.grad_fn is not None, grad, depth)
        if is_numpy(value):
            return value.copy() if hasattr(value, "copy") else value
        if isinstance(value, (set, frozenset)):
            return self._elements(value)
        if isinstance(value, BaseException):
            return Opened(type(value).__qualname__, {".args": Words(_ADDRESS.sub("0x…", repr(value.args)))})
        parts = [*self._parts(value), *_attributes(value)]
        if not parts and not isinstance(value, (list, tuple, dict, collections.deque)):
            return value if _has_equality(value) else Words(f"a {type(value).__qualname__}")
        return Opened(type(value).__qualname__, {step: self._of(path + step, each, depth - 1) for step, each in parts})

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, (list, tuple, collections.deque)):
            base: Any = next(base for base in (list, tuple, collections.deque) if isinstance(value, base))
            yield from ((f"[{number}]", each) for number, each in enumerate(base.__iter__(value)))
        elif isinstance(value, dict):
            base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            steps = {f"[{self._name(key)}]": each for key, each in base.items(value)}
            yield from steps.items()
            yield "'s order", ", ".join(steps)
        elif isinstance(value, FunctionType):
            yield "'s code", value.__code__
            yield "'s defaults", value.__defaults__
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield f"'s variable {name}", cell
        elif isinstance(value, MethodType):
            yield "'s function", value.__func__
            yield ".__self__", value.__self__
        elif isinstance(value, CellType) and value != CellType():
            yield "", value.cell_contents

    def _name(self, key: Any) -> str:
        """A key, or an element of a set, in words."""
        if isinstance(key, (*ATOMS, type)):
            return repr(key)
        if id(key) in self.reach.paths:
            return self.reach.paths[id(key)]
        if isinstance(key, (tuple, frozenset)):
            return f"{type(key).__qualname__}({', '.join(map(self._name, key))})"
        return f"a {type(key).__qualname__}"

    def _elements(self, elements: Iterable[Any]) -> Any:
        return Opened("set", {"'s elements": Words(", ".join(sorted(map(self._name, elements))))})

    def _tensor(
        self, path: str, tensor: torch.Tensor, requires_grad: bool, history: bool, grad: Any, depth: int
    ) -> Any:
        values = tensor.detach().clone()
        parts: dict[str, Any] = {"": values, ".requires_grad": requires_grad}
        parts[".grad"] = self._of(f"{path}.grad", grad, depth - 1)
        if self.exact:
            parts[".grad_fn"] = Words("a history" if history else "no history")
        if self.exact and has_memory(tensor):
            key = torch_compat.storage_key(tensor.untyped_storage())
            parts[".stride()"] = tensor.stride()
            parts["'s memory"] = Words(f"that of {self._memories.setdefault(key, path)}")
            if values.is_floating_point():
                parts["'s negative zeros"] = values.signbit() & (values == 0)
        return Opened(type(tensor).__qualname__, parts)


def _has_equality(value: Any) -> bool:
    equality: Any = type(value).__eq__
    return equality is not object.__eq__


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", each) for name, each in (attributes_of(value) or {}).items())
    kind: Any = type(value)
    for name in slots_of(kind):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


# ---- comparing -----------------------------------------------------------------------------------------------


def compared(expected: Notes, found: Notes, tolerance: Tolerance, *, values: bool = True) -> Comparison:
    """The first difference: in the result, then in what was changed. Without `values`, numbers may be any."""
    pairs = _pairs(expected, found)
    return compare_pairs(pairs if values else map(_kinds_only, pairs), tolerance)


def _pairs(expected: Notes, found: Notes) -> Iterator[Leaves | Misfit]:
    places = sorted(expected.changes | found.changes)
    walks = [walk(expected.outcome, found.outcome, ABSENT, "the outcome", _opened)]
    walks += [
        walk(expected.at(place), found.at(place), ABSENT, expected.reach.holders[place].path, _opened)
        for place in places
    ]
    for pair in itertools.chain.from_iterable(walks):
        if isinstance(pair, Misfit) and pair.symptom is Symptom.TYPE:
            right, got = map(_kind, pair.sides)
            yield dataclasses.replace(pair, ref=right, res=got, message="")
        else:
            yield pair


def _opened(value: Any) -> Opened | None:
    return value if isinstance(value, Opened) else None


def _kind(value: Any) -> str:
    if isinstance(value, Opened):
        return value.kind
    return repr(value) if isinstance(value, (*ATOMS, Words)) else type(value).__qualname__


def _kinds_only(pair: Leaves | Misfit) -> Leaves | Misfit:
    if isinstance(pair, Misfit):
        return pair
    return dataclasses.replace(pair, ref=_without_values(pair.ref), res=_without_values(pair.res))


def _without_values(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return Words(f"{leaf.dtype} {tuple(leaf.shape)}")
    return Words(type(leaf).__qualname__) if isinstance(leaf, (int, float, complex)) else leaf

"""Walking two results (and a reference) side by side: containers are opened here, leaves come out.

What counts as a container is decided in one place, `children`: sequences, mappings, dataclasses, modules'
parameter lists, distributions and other plain objects. Each child has a path that is a Python expression on
the result, so that a user can paste it.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributions import Distribution

from torchsleuth.outcome import Symptom


class Absent:
    """The type of `ABSENT`: there is no reference for this part (None would be a value)."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


@dataclass(frozen=True)
class Leaves:
    """Two leaves that stand at the same place, with the reference's leaf or ABSENT."""

    path: str
    ref: Any
    res: Any
    fp64: Any


@dataclass(frozen=True)
class Misfit:
    """Two parts whose structure already differs, so that there are no leaves to compare."""

    path: str
    symptom: Symptom
    ref: Any
    res: Any
    message: str
    sides: tuple[Any, Any] = field(default=(None, None), compare=False, repr=False)
    """The two parts themselves."""


@dataclass(frozen=True)
class Opened:
    """A container, opened: what kind of container, and its children by path suffix."""

    kind: str
    children: Mapping[str, Any]


_ATOMS = (
    str, bytes, bytearray, bool, int, float, complex, type(None), type, range, slice, Enum, FunctionType, ModuleType,
    torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
)  # fmt: skip
SEQUENCES = (list, tuple, collections.deque, torch.nn.ParameterList)
"""What is compared item by item. One may stand for another."""


def open_container(value: Any) -> Opened | None:
    """The children of `value`, or None when it is a leaf."""
    if isinstance(value, _ATOMS) or is_numpy(value):
        return None
    if isinstance(value, SEQUENCES):
        return Opened("sequence", {f"[{i}]": child for i, child in enumerate(value)})
    if isinstance(value, (Mapping, torch.nn.ParameterDict)):
        return Opened("mapping", _by_key(value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return Opened(type(value).__qualname__, {f".{name}": getattr(value, name) for name in names})
    if not callable(value):
        attributes = _attributes(value)
        if attributes is not None and (_has_no_equality(value) or _holds_tensors(attributes)):
            return Opened(type(value).__qualname__, attributes)
    return None


Opener = Callable[[Any], Opened | None]
"""Gives the children of a container, None for a leaf."""


def walk(
    ref: Any, res: Any, fp64: Any = ABSENT, path: str = "", opener: Opener = open_container
) -> Iterator[Leaves | Misfit]:
    """Leaves and misfits of two results in the order a reader meets them, first to last.

    `fp64` is opened alongside for as long as it has the same structure; where it has not, there is no
    reference. An object met again inside itself is not opened twice. Who has other ideas of what a container is
    gives another `opener`.
    """
    yield from _walk(ref, res, fp64, path, frozenset(), opener)


def _walk(
    ref: Any, res: Any, fp64: Any, path: str, inside: frozenset[tuple[int, int]], opener: Opener
) -> Iterator[Leaves | Misfit]:
    opened_ref, opened_res = opener(ref), opener(res)
    if opened_ref is None and opened_res is None:
        yield Leaves(path, ref, res, fp64)
        return
    if opened_ref is None or opened_res is None or opened_ref.kind != opened_res.kind:
        said = "One is not the kind of container the other is."
        yield Misfit(path, Symptom.TYPE, *type_names(ref, res), said, (ref, res))
        return
    here = (id(ref), id(res))
    if here in inside:
        return
    opened_fp64 = None if fp64 is ABSENT else opener(fp64)
    if isinstance(ref, Distribution):
        steps = {**opened_ref.children, **opened_res.children}
        opened_ref, opened_res = _complete(ref, opened_ref, steps), _complete(res, opened_res, steps)
        opened_fp64 = None if opened_fp64 is None else _complete(fp64, opened_fp64, steps)
    missing = _key_misfit(opened_ref, opened_res, path)
    if missing is not None:
        yield dataclasses.replace(missing, sides=(ref, res))
        return
    exact: Mapping[str, Any] = {}
    if opened_fp64 is not None and opened_fp64.children.keys() == opened_ref.children.keys():
        exact = opened_fp64.children
    for step, child in opened_ref.children.items():
        twin, reference = opened_res.children[step], exact.get(step, ABSENT)
        yield from _walk(child, twin, reference, path + step, inside | {here}, opener)


def type_names(ref: Any, res: Any) -> tuple[str, str]:
    """The names of two types, with their modules where the names alone do not tell them apart."""
    kinds = (type(ref), type(res))
    if kinds[0].__qualname__ != kinds[1].__qualname__:
        return kinds[0].__qualname__, kinds[1].__qualname__
    expected, got = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return expected, got


def _by_key(value: Any) -> dict[str, Any]:
    """The values of a mapping by path. Keys that print alike are numbered: none may stand for another."""
    children: dict[str, Any] = {}
    for key, child in value.items():
        step, again = f"[{key!r}]", 2
        while step in children:
            step, again = f"[{key!r} #{again}]", again + 1
        children[step] = child
    return children


def _complete(distribution: Any, opened: Opened, steps: Iterable[str]) -> Opened:
    """A distribution with what it computes when first asked, where the other one was asked. Its own state stays."""
    twin = copy.copy(distribution)
    missing = {step: getattr(twin, step[1:], ABSENT) for step in steps if step not in opened.children}
    found = {step: child for step, child in missing.items() if child is not ABSENT}
    return Opened(opened.kind, {**opened.children, **found})


def _key_misfit(ref: Opened, res: Opened, path: str) -> Misfit | None:
    if ref.children.keys() == res.children.keys():
        return None
    if ref.kind == "sequence":
        return Misfit(path, Symptom.STRUCTURE, len(ref.children), len(res.children), "The lengths differ.")
    lost = [key for key in ref.children if key not in res.children]
    gained = [key for key in res.children if key not in ref.children]
    told = [f"missing: {', '.join(lost)}"] if lost else []
    told += [f"not expected: {', '.join(gained)}"] if gained else []
    return Misfit(path, Symptom.STRUCTURE, list(ref.children), list(res.children), f"Keys {'; '.join(told)}.")


def map_tensors(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` rebuilt with `fn` applied to each tensor in its lists, tuples, dicts and dataclasses.

    Anything else (and any container without a tensor) is passed through as it is, not copied.
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, (list, tuple, collections.deque)):
        return _rebuild_sequence(value, [map_tensors(fn, child) for child in value])
    if isinstance(value, dict):
        children = {key: map_tensors(fn, child) for key, child in value.items()}
        if all(children[key] is child for key, child in value.items()):
            return value
        if type(value) is dict:
            return children
        rebuilt = copy.copy(value)  # constructors differ (defaultdict's, those of outputs with named fields)
        for key, child in children.items():
            rebuilt[key] = child
        return rebuilt
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        mapped = {name: map_tensors(fn, child) for name, child in fields.items()}
        if all(mapped[name] is child for name, child in fields.items()):
            return value
        return dataclasses.replace(value, **mapped)
    return value


def _rebuild_sequence(value: Any, children: list[Any]) -> Any:
    if all(new is old for new, old in zip(children, value, strict=True)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*children)
    if isinstance(value, collections.deque):
        return collections.deque(children, value.maxlen)
    return tuple(children) if isinstance(value, tuple) else children


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a result, in order."""
    if type(value) in (list, tuple) and all(isinstance(child, _ATOMS) for child in value):
        return [child for child in value if isinstance(child, torch.Tensor)]  # as the inputs of a graph are
    found: list[torch.Tensor] = []
    for pair in walk(value, value):
        if isinstance(pair, Leaves) and isinstance(pair.ref, torch.Tensor):
            found.append(pair.ref)
    return found


def _has_no_equality(value: Any) -> bool:
    """Whether a type leaves `==` as object has it, which compares identities (or only has attributes)."""
    own = getattr(type(value), "__eq__", None)
    return own in (vars(object)["__eq__"], SimpleNamespace.__eq__)


def _holds_tensors(attributes: Mapping[str, Any]) -> bool:
    """An equality that compares tensors raises, or answers with a tensor; so such objects are opened."""
    return any(isinstance(child, torch.Tensor) for child in attributes.values())


def is_numpy(value: Any) -> bool:
    """Whether a value is numpy's: an array, a scalar, a dtype."""
    return type(value).__module__.partition(".")[0] == "numpy"


def _attributes(value: Any) -> Mapping[str, Any] | None:
    """The state of a plain object: its slots and its dictionary, or None when it can have neither."""
    slots: list[str] = []
    for kind in type(value).__mro__:
        declared = vars(kind).get("__slots__", ())
        names = [declared] if isinstance(declared, str) else list(declared)
        private = f"_{kind.__name__.lstrip('_')}"  # what Python puts in front of a name like __this
        slots += [private + name if name.startswith("__") else name for name in names if not name.endswith("__")]
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    state.update(getattr(value, "__dict__", {}))
    if not state and not hasattr(value, "__dict__"):
        return None
    return {f".{name}": child for name, child in state.items()}

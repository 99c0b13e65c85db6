"""What a value could be instead: of another kind, of another content, equal and not the same, or nothing at all."""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from frontend_changes import is_ours


class Surprise(Exception):
    """What a function raises that was replaced."""


def altered(result: Any) -> Any:
    """Another result of the same kind."""
    if isinstance(result, torch.Tensor):
        return result + 1 if result.is_floating_point() else result
    if isinstance(result, bool):
        return not result
    if isinstance(result, (int, float)):
        return result + 1
    if type(result) in (tuple, list) and result:
        return type(result)([altered(result[0]), *result[1:]])
    if isinstance(result, dict) and result and any(isinstance(each, torch.Tensor) for each in result.values()):
        made = copy.copy(result)
        name = next(name for name, each in result.items() if isinstance(each, torch.Tensor))
        made[name] = altered(result[name])
        return made
    return result


def altering(function: Callable[..., Any]) -> Callable[..., Any]:
    def altered_function(*args: Any, **kwargs: Any) -> Any:
        return altered(function(*args, **kwargs))

    return altered_function


def raising(function: Callable[..., Any]) -> Callable[..., Any]:
    def raising_function(*args: Any, **kwargs: Any) -> Any:
        raise Surprise

    return raising_function


class Altered(nn.Module):
    """A module in the place of another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return altered(self.inner(*args, **kwargs))


class Marked(torch.Tensor):
    """A subclass of tensors that changes nothing."""


Others = Iterator[tuple[str, Any]]


def others(value: Any, depth: int = 0) -> Others:
    """Values that could stand in the place of this one, with what they are in words."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        yield from other_tensors(value)
    elif kind is bool:
        yield f"{not value} for {value}", not value
        yield f"{int(value)} for {value}", int(value)
        yield "None for a bool", None
    elif kind is int:
        yield "one more", value + 1
        yield "negative" if value > 0 else "one", -value if value > 0 else 1
        yield "a float for an int", float(value)
        yield "a bool for an int", bool(value)
        yield "a subclass of int", _Number(value)
        yield "None for an int", None
    elif kind is float:
        yield "a half more", value + 0.5
        yield "the other sign", -value
        yield "nan", float("nan")
        yield "an int for a float", int(value) if value == value and abs(value) < 1e9 else 3
        yield "None for a float", None
    elif kind is complex:
        yield "another complex", value + 1j
    elif kind is str:
        yield "another text", value + "x"
        yield "no text", ""
        yield "None for a text", None
    elif kind is bytes:
        yield "other bytes", value + b"x"
    elif value is None:
        yield "0 for None", 0
        yield "True for None", True
        yield "1.5 for None", 1.5
        yield "a text for None", "x"
    elif isinstance(value, enum.Enum):
        yield from (("another member", each) for each in kind if each is not value)
    elif isinstance(value, torch.dtype):
        yield "another dtype", torch.float64 if value is not torch.float64 else torch.float32
    elif kind is range:
        yield "a longer range", range(value.start, value.stop + value.step, value.step)
    elif kind is slice:
        yield "another slice", slice(value.start, value.stop, 2)
    elif isinstance(value, tuple):
        yield from other_tuples(value, depth)
    elif isinstance(value, nn.Module):
        yield "a module that gives other results", Altered(value)
        yield "a copy of the module", copy.copy(value)
        yield "the identity for a module", nn.Identity()
        yield "None for a module", None
    elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        yield "a function that gives other results", altering(value)
        yield "a function that raises", raising(value)
        if isinstance(value, types.FunctionType):
            yield "a copy of the function", _copied(value)
    elif type(value) is type:
        if is_ours(value.__module__):
            yield "a subclass", type(value)(value.__name__, (value,), {"__module__": value.__module__})
    elif kind in (list, dict, set, deque):
        yield "an equal container", copy.copy(value)
        yield "an empty container", kind()
        yield "None for a container", None
        if kind is list:
            yield "a tuple for a list", tuple(value)
        elif kind is dict:
            yield "an ordered dict for a dict", OrderedDict(value)
            yield "a defaultdict for a dict", collections.defaultdict(int, value)
        elif kind is set:
            yield "a frozen set for a set", frozenset(value)
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        yield "a copy of the object", copy.copy(value)
        yield "None for an object", None


class _Number(int):
    pass


def _copied(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def other_tuples(value: tuple[Any, ...], depth: int) -> Others:
    kind = type(value)
    make = kind._make if hasattr(kind, "_make") else kind  # type: ignore[attr-defined]
    if kind is tuple or kind is torch.Size:
        yield "one element more", kind([*value, value[-1] if value else 1])
        if value:
            yield "one element less", kind(value[:-1])
            yield "the elements in another order", kind(value[::-1])
        yield "a list for a tuple", list(value)
    if depth < 2:
        for number, each in enumerate(value[:3]):
            for words, other in [*others(each, depth + 1)][:3]:
                with contextlib.suppress(TypeError):
                    yield f"element {number}: {words}", make([*value[:number], other, *value[number + 1 :]])


def other_tensors(value: torch.Tensor) -> Others:
    """Each as a leaf that wants gradients if the original does."""
    wants = value.requires_grad
    for words, plain in plain_tensors(value.detach()):
        if words == "no rows" and isinstance(value, nn.Parameter):
            continue  # attention without heads divides by zero: not an exception, but the end of the process
        yield words, plain.requires_grad_(wants and (plain.is_floating_point() or plain.is_complex()))
    plain = value.detach().clone()
    if plain.is_floating_point():
        yield "gradients wanted" if not wants else "no gradients wanted", plain.clone().requires_grad_(not wants)
        yield "not a leaf", plain.clone().requires_grad_() * 1
        yield "a parameter for a tensor", nn.Parameter(plain.clone(), wants)
    yield "a tensor of a subclass", plain.clone().as_subclass(Marked)
    with torch.inference_mode():
        yield "a tensor of inference", plain.clone()
    noted = plain.clone().requires_grad_(wants)
    noted.note = 1  # type: ignore[attr-defined]
    yield "a tensor with an attribute", noted
    yield "None for a tensor", None
    yield "a number for a tensor", 2


def plain_tensors(value: torch.Tensor) -> Others:
    yield "an equal tensor", value.clone()
    if value.numel() == 0:
        yield "one row more", value.new_zeros((*value.shape[:1], *value.shape[1:]))
        return
    if value.is_floating_point():
        yield "other values", value + 0.5
        yield "values without end", torch.full_like(value, float("nan"))
        yield "doubles", value.double() if value.dtype is not torch.double else value.float()
        yield "half precision", value.half()
        yield "the negative bit", torch._neg_view(-value)
    elif value.dtype is torch.bool:
        yield "the opposite", ~value
        yield "ints for bools", value.long()
    else:
        yield "other values", value.flip(-1) + 1 if value.dim() else value + 1
        yield "negative values", -1 - value
        yield "ints of 32 bits", value.int() if value.dtype is not torch.int32 else value.long()
        yield "floats for ints", value.float()
    yield "one dimension more", value.clone()[None]
    if value.dim() == 0:
        return
    yield "one row more", torch.cat([value, value[:1]])
    yield "a single row", value[:1].clone()
    yield "two rows", torch.cat([value[:1], value[:1]])
    yield "no rows", value[:0].clone()
    yield "fewer columns", value[..., :-1].clone()
    yield "more columns", torch.cat([value, value[..., :1]], -1)
    yield "one dimension less", value.clone().reshape(-1) if value.dim() > 1 else value[0].clone()
    yield "rows that are all the same memory", value[:1].expand_as(value)
    yield "elements that lie apart", torch.stack([value, value], -1)[..., 0]
    yield "from the middle of its memory", torch.cat([value, value])[value.shape[0] :]
    if value.dim() > 1:
        yield "columns before rows", value.transpose(-1, -2).contiguous().transpose(-1, -2)
    if value.dim() == 4:
        yield "channels last", value.contiguous(memory_format=torch.channels_last)

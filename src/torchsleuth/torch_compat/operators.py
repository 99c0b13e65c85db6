"""Operators: what they are called, what they take, write to and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
from torchsleuth.torch_compat.names import resolve


def is_op_overload(x: object) -> bool:
    """Whether x is an operator with one schema: `torch.ops.aten.add.Tensor`, but not `torch.ops.aten.add`."""
    return isinstance(x, resolve("OpOverload"))


def is_higher_order_op(x: object) -> bool:
    """Whether x is an operator that takes functions (`torch.ops.higher_order.cond`). It has no schema."""
    return isinstance(x, resolve("HigherOrderOperator"))


def op_name(op: object) -> str:
    """The name of an operator or function without namespace and overload: `aten.add_.Tensor` → `add_`."""
    return str(getattr(op, "__name__", op)).partition(".")[0]


def op_tags(op: object) -> frozenset[torch.Tag]:
    """What torch says of an overload, as `torch.Tag`s: random, pointwise, core, ..."""
    resolve("tags")
    return frozenset(_overload(op).tags)


def op_is_mutable(op: object) -> bool:
    """Whether an overload writes to one of its inputs (in place, or into `out=`)."""
    resolve("is_mutable")
    return bool(_overload(op)._schema.is_mutable)


@dataclass(frozen=True)
class Argument:
    """An argument in a call of an operator: the name it has there, what was given, and whether it is written to."""

    name: str
    value: Any
    written: bool
    optional: bool = False
    """Whether it may be None. Operators take None for any tensor, but not all of them know what to do with it."""


def op_arguments(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Argument]:
    """The arguments that a call of an overload gives, in the operator's order. Those left to default are not there."""
    resolve("arguments")
    given = []
    for position, argument in enumerate(_overload(op)._schema.arguments):
        written = bool(argument.alias_info and argument.alias_info.is_write)
        optional = argument.type.kind() == "OptionalType"
        if position < len(args) and not argument.kwarg_only:
            given.append(Argument(argument.name, args[position], written, optional))
        elif argument.name in kwargs:
            given.append(Argument(argument.name, kwargs[argument.name], written, optional))
    return given


def op_is_view(op: object) -> bool:
    """Whether what an overload returns may share memory with an input that it does not write to.

    So it is true for `reshape` and `contiguous`, which copy only if they must, and false for `transpose_`.
    """
    resolve("is_view")
    return bool(_overload(op).is_view)


def op_returns_list(op: object) -> bool:
    """Whether an overload returns a list of tensors, of a length that its arguments decide."""
    resolve("arguments")
    return any(str(returned.type).startswith("List[") for returned in _overload(op)._schema.returns)


def decomposition(op: object) -> Callable[..., Any] | None:
    """The same computation as an overload's, written out in simpler operators; None where torch has no such text."""
    table: Mapping[Any, Callable[..., Any]] = resolve("decomposition_table")
    return table.get(_overload(op))


def _overload(op: object) -> Any:
    # Asked about anything else (a packet, a higher-order operator, a Python function) there is no answer,
    # and "no" would be a wrong one.
    if not is_op_overload(op):
        raise TypeError(f"{op!r} is not an operator overload; ask is_op_overload first")
    return op

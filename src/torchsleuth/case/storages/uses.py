"""How a graph uses one of its inputs, and which values that allows.

A graph that failed while it was compiled never had real inputs. Made-up ones have to respect what the graph does with
them: an index into an embedding has to be smaller than the embedding, a variance is not negative. `limits_of` follows
an input forward through the graph, through views, casts and arithmetic with constants, into nested graphs, up to the
operators that care (`sinks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case.storages.sinks import Limit, Tracked, Use, attribute_of, limits

_MOST_NODES: Final = 20_000


def limits_of(placeholder: fx.Node) -> Iterator[Limit]:
    """What the uses of an input allow, one after another."""
    todo: list[Tracked] = [Tracked(placeholder)]
    seen: set[Tracked] = set(todo)
    while todo and len(seen) < _MOST_NODES:
        value = todo.pop()
        for user in value.node.users:
            use = Use(user, value)
            yield from limits(use)
            for after in _passed_on(use):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)


def asks_for_gradients(gm: fx.GraphModule) -> bool:
    """Whether a graph, or one nested in it, looks at the `.grad` of a tensor."""
    return any(
        _is_about_gradient(node)
        for each in gm.modules()
        if isinstance(each, fx.GraphModule)
        for node in each.graph.nodes
    )


def _is_about_gradient(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1:2] == ("grad",)
    return torch_compat.op_name(node.target).startswith("accumulate_grad")


_SAME: Final = frozenset(
    """
    view view_as reshape reshape_as _unsafe_view _reshape_alias unsqueeze squeeze expand expand_as permute transpose t
    swapaxes movedim moveaxis slice select narrow flatten unflatten ravel diagonal as_strided alias detach clone
    contiguous lift_fresh lift_fresh_copy pin_memory cpu cuda to _to_copy type type_as long int short char byte float
    double half bfloat16 convert_element_type repeat repeat_interleave tile chunk split split_with_sizes unbind flip
    roll cat concat concatenate stack hstack vstack broadcast_to broadcast_tensors tril triu sort unique gather index
    index_select take take_along_dim masked_select where masked_fill copy getitem abs floor ceil round trunc
    constant_pad_nd pad max min amax amin nan_to_num index_put index_copy device_put
    """.split()
)
"""What these give out are values of their input, in another place or form."""


def _passed_on(use: Use) -> Iterator[Tracked]:
    """The values that the user makes of it and that are still known."""
    user, value = use.user, use.value
    if user.op in ("output", "call_module"):
        return
    if torch_compat.is_higher_order_op(user.target):
        yield from _into_nested_graphs(use)
        return
    if use.name in _SAME and not _only_picks(use):
        yield value.at(user)
        return
    constant = _constant_beside(use)
    if constant is None:
        return
    if isinstance(constant, float):  # it is no index; a small number that keeps it from 0
        if constant > 0 and use.name == "add":
            yield value.at(user)
        return
    match use.name:
        case "add" | "iadd" | "radd":
            yield Tracked(user, value.times, value.plus + constant)
        case "sub" | "isub" | "subtract" if use.is_first:
            yield Tracked(user, value.times, value.plus - constant)
        case "mul" | "imul" | "rmul" | "multiply" if constant > 0:
            yield Tracked(user, value.times * constant, value.plus * constant)


def _only_picks(use: Use) -> bool:
    """Whether the value says which values to take, and is not among them."""
    if use.name in ("index", "index_select", "gather", "take", "take_along_dim", "getitem", "index_put", "index_copy"):
        return not use.is_first
    if use.name in ("where", "masked_fill", "masked_select"):
        return use.is_at(0 if use.name == "where" else 1, "condition", "mask")
    return False


def _constant_beside(use: Use) -> int | float | None:
    """The number that the value is added to or multiplied with."""
    args = use.user.args
    if len(args) != 2 or use.user.kwargs:
        return None
    other = args[1] if args[0] is use.value.node else args[0]
    return other if isinstance(other, (int, float)) and not isinstance(other, bool) else None


def _into_nested_graphs(use: Use) -> Iterator[Tracked]:
    """Where the value comes into the graphs that a higher-order operator runs: operands are their last inputs."""
    graphs: list[fx.GraphModule] = []
    operands: list[fx.Node] = []

    def sort(node: fx.Node) -> fx.Node:
        found = attribute_of(node)
        if isinstance(found, fx.GraphModule):
            graphs.append(found)
        else:
            operands.append(node)
        return node

    fx.map_arg((use.user.args, use.user.kwargs), sort)
    for graph in graphs:
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for operand, inner in zip(reversed(operands), reversed(inputs), strict=False):
            if operand is use.value.node:
                yield use.value.at(inner)

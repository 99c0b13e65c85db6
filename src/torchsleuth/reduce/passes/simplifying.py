"""Simpler operators in the place of others.

    simplified      one site for each call: a part of what it does, or any simple operator on what it was given

It does not matter what is computed, only whether it still fails. The types may change, if those who use the result take
what they are given then. Only operators are put in that compilers take as they are: what AOT always decomposes would be
a failure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from torchsleuth.case.schema import Case, Fake, Graph, List, Node, Ref, Tuple, Value
from torchsleuth.reduce.graphs import name_of, picks_one, produced, refs_of, replace, users_of
from torchsleuth.reduce.legality import is_constant
from torchsleuth.reduce.order import complexity
from torchsleuth.reduce.passes.editing import (
    Edit,
    calls,
    is_dynamo,
    looks,
    meta_like,
    node_named,
    patch,
    with_node,
)
from torchsleuth.reduce.patches import Material, Patch, Site


@dataclass(frozen=True)
class _Part:
    """What is left of an operator: another one, which takes some of its arguments."""

    name: str
    overload: str
    takes: tuple[int, ...]


_PARTS: Final[Mapping[str, _Part]] = {
    "addmm": _Part("mm", "default", (1, 2)),
    "baddbmm": _Part("bmm", "default", (1, 2)),
    "addcmul": _Part("mul", "Tensor", (1, 2)),
    "addcdiv": _Part("div", "Tensor", (1, 2)),
    "lerp": _Part("add", "Tensor", (0, 1)),
    "where": _Part("add", "Tensor", (1, 2)),
    "_softmax": _Part("exp", "default", (0,)),
    "_log_softmax": _Part("exp", "default", (0,)),
    "softmax": _Part("exp", "default", (0,)),
    "log_softmax": _Part("exp", "default", (0,)),
    "scaled_dot_product_attention": _Part("add", "Tensor", (0, 1)),
    "linear": _Part("mm", "default", (0, 1)),
}
"""What is tried first."""
_UNARY: Final[Mapping[str, tuple[str, ...]]] = {"float": ("relu", "sin"), "bfloat": ("relu", "sin")}
_OTHER_UNARY: Final = ("neg", "abs")
_BINARY: Final = "add"


def simplified(case: Case, material: Material) -> Iterator[Site]:
    """Each call as a simpler one."""
    known = {node.name: node for node in case.graph.nodes}
    users = users_of(case.graph)
    dynamo = is_dynamo(case)
    for node in calls(case.graph):
        if picks_one(node, known) or not users[node.name] or is_constant(node):
            continue
        if isinstance(produced(node), (Tuple, List)):
            yield [_parts_computed(node.name, op, material, dynamo) for op in _UNARY["float"]]
        elif isinstance(produced(node), Fake):
            made = [one for one in _simpler(case.graph, node, dynamo) if complexity(one) < complexity(node)]
            yield [_instead(one, material) for one in dict.fromkeys(made)]


def _simpler(graph: Graph, node: Node, dynamo: bool) -> Iterator[Node]:
    part = _PARTS.get(name_of(node))
    if part is not None and len(node.args) > max(part.takes):
        yield _call(node, part.name, part.overload, [node.args[at] for at in part.takes], dynamo)
    given = _tensors_of(graph, node)
    alike = [one for one in given if looks(produced(one)) == looks(produced(node))]
    for source in alike[:1]:
        for op in _unary(source):
            yield _call(node, op, "default", [Ref(source.name)], dynamo)
    if len(given) > 1:
        first, second = [*alike, *(one for one in given if one not in alike)][:2]
        yield _call(node, _BINARY, "Tensor", [Ref(first.name), Ref(second.name)], dynamo)
    if given and not alike:
        yield _call(node, _unary(given[0])[0], "default", [Ref(given[0].name)], dynamo)


def _tensors_of(graph: Graph, node: Node) -> list[Node]:
    """The tensors that a call is given, each once."""
    known = {one.name: one for one in graph.nodes}
    return [known[name] for name in dict.fromkeys(refs_of(node)) if isinstance(produced(known[name]), Fake)]


def _unary(source: Node) -> tuple[str, ...]:
    value = produced(source)
    assert isinstance(value, Fake)
    if value.dtype == "bool":
        return ("clone",)
    return next((ops for kind, ops in _UNARY.items() if value.dtype.startswith(kind)), _OTHER_UNARY)


def _call(node: Node, name: str, overload: str, args: list[Value], dynamo: bool) -> Node:
    target = f"torch.{name}" if dynamo else f"torch.ops.aten.{name}.{overload}"
    return Node(node.name, "call_function", target, tuple(args), meta=meta_like(node, produced(node)))


def _instead(made: Node, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        there = node_named(case.graph, made.name)
        if there is None or not _are_earlier(case.graph, made):
            return None
        return Edit(with_node(case.graph, made))

    return patch(f"{made.name}: {name_of(made)} in its place", material, edit)


def _are_earlier(graph: Graph, made: Node) -> bool:
    names = [node.name for node in graph.nodes]
    return set(names[: names.index(made.name)]).issuperset(refs_of(made))


def _parts_computed(name: str, op: str, material: Material, dynamo: bool) -> Patch:
    """A call with several results: each that is used is computed from one of the arguments."""

    def edit(case: Case) -> Edit | None:
        graph = case.graph
        node = node_named(graph, name)
        given = [] if node is None else _tensors_of(graph, node)
        if node is None or not given:
            return None
        for user in users_of(graph)[name]:
            part = node_named(graph, user)
            if part is None or not picks_one(part, {name: node}):
                return None
            alike = [one for one in given if looks(produced(one)) == looks(produced(part))]
            source = [*alike, *given][0]
            chosen = op if op in _unary(source) else _unary(source)[0]
            graph = with_node(graph, _call(part, chosen, "default", [Ref(source.name)], dynamo))
        return Edit(replace(graph, nodes=tuple(one for one in graph.nodes if one.name != name)))

    return patch(f"{name}: {op} in its place", material, edit)

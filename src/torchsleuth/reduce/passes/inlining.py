"""Calls of nested graphs: the graph in the place of the call, or a call that hands on less.

inlined             a branch or a body in the place of the call, so that it is an ordinary graph
unused_operands     what a branch or a body is given and does not use, what it returns and nobody uses
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from torchsleuth.case.schema import Case, Entry, Graph, List, Node, Ref, Tuple, Value
from torchsleuth.reduce.graphs import (
    map_arguments,
    name_of,
    output_of,
    picks_one,
    placeholders,
    refs_of,
    replace,
    users_of,
)
from torchsleuth.reduce.order import outputs_of
from torchsleuth.reduce.passes.editing import (
    Edit,
    cleaned,
    is_higher_order,
    node_named,
    patch,
    with_graph_at,
    with_node,
    with_outputs,
    with_uses,
)
from torchsleuth.reduce.patches import Material, Patch, Site

_CALLED_ONCE: Final = frozenset(
    "cond invoke_subgraph wrap tag_activation_checkpoint wrap_activation_checkpoint wrap_with_set_grad_enabled "
    "wrap_with_autocast hints_wrapper".split()
)
"""Higher-order operators that call one of their graphs, once, with what follows it in their arguments."""
_CALLED_FOR_EACH: Final = frozenset({"map_impl"})
"""Those that call it many times, and what it is given and returns is independent of one another."""


@dataclass(frozen=True)
class _Call:
    """A call of nested graphs."""

    node: Node
    bodies: tuple[tuple[str, Graph], ...]
    """The names of their attributes, and the graphs."""
    operands: tuple[Value, ...]
    """What each of them is called with."""


def _call_at(graph: Graph, name: str, kinds: Set[str] = _CALLED_ONCE) -> _Call | None:
    node = node_named(graph, name)
    if node is None or not is_higher_order(node) or name_of(node) not in kinds:
        return None
    known = {one.name: one for one in graph.nodes}
    attributes = {entry.name: entry.value for entry in graph.attributes}
    bodies: list[tuple[str, Graph]] = []
    operands: list[Value] = []
    for value in node.args:
        source = known[value.name] if isinstance(value, Ref) else None
        body = attributes.get(source.target) if source is not None and source.op == "get_attr" else None
        if isinstance(body, Graph) and source is not None:
            bodies.append((source.target, body))
        elif bodies and isinstance(value, (List, Tuple)):
            operands.extend(value.items)
        elif bodies and not isinstance(value, str):
            operands.append(value)
    if not bodies or any(len(placeholders(body)) != len(operands) for _, body in bodies):
        return None
    return _Call(node, tuple(bodies), tuple(operands))


# ---- inlining ----------------------------------------------------------------------------------------------


def inlined(case: Case, material: Material) -> Iterator[Site]:
    """Each call of a nested graph: its nodes in the place of the call. Of a condition, either branch."""
    for node in reversed(case.graph.nodes):
        found = _call_at(case.graph, node.name)
        if found is not None:
            yield [_inline(node.name, at, material) for at in range(len(found.bodies))]


def _inline(name: str, which: int, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        found = _call_at(case.graph, name)
        if found is None or which >= len(found.bodies):
            return None
        return _with_body(case.graph, found, found.bodies[which][1])

    return patch(f"{name}: graph {which + 1} of it in its place", material, edit)


def _with_body(graph: Graph, call: _Call, body: Graph) -> Edit | None:
    taken = {node.name for node in graph.nodes} | {entry.name for entry in graph.attributes}
    now: dict[str, Value] = dict(zip((node.name for node in placeholders(body)), call.operands, strict=True))
    owned = {entry.name: _unlike(entry.name, taken) for entry in body.attributes}
    made: list[Node] = []
    for node in body.nodes:
        if node.op in ("placeholder", "output"):
            continue
        copy = _renamed(node, now, _unlike(node.name, taken))
        made.append(replace(copy, target=owned.get(node.target, node.target)) if node.op == "get_attr" else copy)
        now[node.name] = Ref(copy.name)
    returned = [now[one.name] if isinstance(one, Ref) else one for one in outputs_of(body)]
    uses = _uses_of_results(graph, call.node, returned)
    if uses is None:
        return None
    at = graph.nodes.index(call.node)
    attributes = (*graph.attributes, *(Entry(owned[entry.name], entry.value) for entry in body.attributes))
    whole = replace(graph, nodes=(*graph.nodes[:at], *made, *graph.nodes[at:]), attributes=attributes)
    return Edit(with_uses(whole, uses))


def _renamed(node: Node, now: dict[str, Value], name: str) -> Node:
    def changed(value: Value) -> Value:
        return now[value.name] if isinstance(value, Ref) else value

    return replace(map_arguments(node, changed), name=name)


def _unlike(name: str, taken: set[str]) -> str:
    """A name like this one that is not taken; it is, from now on."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _uses_of_results(graph: Graph, call: Node, returned: list[Value]) -> dict[str, Value] | None:
    """What is used in the place of each result of a call."""
    uses: dict[str, Value] = {}
    for user in users_of(graph)[call.name]:
        node = node_named(graph, user)
        if node is None or not picks_one(node, {call.name: call}):
            return {call.name: returned[0]} if len(returned) == 1 else None
        place = node.args[1]
        if not isinstance(place, int) or place >= len(returned):
            return None
        uses[user] = returned[place]
    return uses


# ---- operands and results ----------------------------------------------------------------------------------


def unused_operands(case: Case, material: Material) -> Iterator[Site]:
    """Whatever goes into a nested graph, or comes out of it, for nothing."""
    for node in case.graph.nodes:
        if _call_at(case.graph, node.name, _CALLED_ONCE | _CALLED_FOR_EACH) is not None:
            yield [patch(f"{node.name}: only what is used goes in", material, partial(_fewer_operands, node.name))]
            yield [patch(f"{node.name}: only what is used comes out", material, partial(_fewer_results, node.name))]


def _fewer_operands(call_name: str, case: Case) -> Edit | None:
    """The call, given only what its graphs use."""
    call = _only_call(case.graph, call_name)
    if call is None:
        return None
    idle = set(range(len(call.operands)))
    for _, body in call.bodies:
        users = users_of(body)
        idle -= {place for place, node in enumerate(placeholders(body)) if users[node.name]}
    if not idle:
        return None
    graph = case.graph
    for name, body in call.bodies:
        gone = {node.name for place, node in enumerate(placeholders(body)) if place in idle}
        inner = replace(body, nodes=tuple(node for node in body.nodes if node.name not in gone))
        graph = with_graph_at(graph, (name,), inner)
    return Edit(with_node(graph, _without_operands(case.graph, call, idle)))


def _without_operands(graph: Graph, call: _Call, idle: set[int]) -> Node:
    known = {node.name: node for node in graph.nodes}
    at = -1
    seen = False
    args: list[Value] = []
    for value in call.node.args:
        if (
            isinstance(value, Ref)
            and known[value.name].op == "get_attr"
            and known[value.name].target in dict(call.bodies)
        ):
            seen = True
        elif seen and isinstance(value, (List, Tuple)):
            start = at + 1
            at += len(value.items)
            value = replace(value, items=tuple(v for place, v in enumerate(value.items, start) if place not in idle))
        elif seen and not isinstance(value, str):
            at += 1
            if at in idle:
                continue
        args.append(value)
    return replace(call.node, args=tuple(args))


def _fewer_results(call_name: str, case: Case) -> Edit | None:
    """The call, whose graphs return only what is used."""
    call = _only_call(case.graph, call_name)
    if call is None:
        return None
    known = {node.name: node for node in case.graph.nodes}
    picks = [known[user] for user in users_of(case.graph)[call_name]]
    if not all(picks_one(one, known) for one in picks):
        return None
    used = sorted({place for one in picks if isinstance(place := one.args[1], int)})
    count = len(outputs_of(call.bodies[0][1]))
    if not used or len(used) == count or any(place >= count for place in used):
        return None
    graph = case.graph
    for name, body in call.bodies:
        returned = outputs_of(body)
        inner = cleaned(body, with_outputs(body, [returned[place] for place in used]), keep_inputs=True)
        graph = with_graph_at(graph, (name,), inner)
    for one in picks:
        place = one.args[1]
        assert isinstance(place, int)
        graph = with_node(graph, replace(one, args=(one.args[0], used.index(place))))
    return Edit(graph)


def _only_call(graph: Graph, name: str) -> _Call | None:
    """A call of graphs that nobody else calls."""
    call = _call_at(graph, name, _CALLED_ONCE | _CALLED_FOR_EACH)
    if call is None:
        return None
    for target in dict(call.bodies):
        its = {node.name for node in graph.nodes if node.op == "get_attr" and node.target == target}
        if any(its.intersection(refs_of(node)) for node in graph.nodes if node.name != name):
            return None
    return call if isinstance(output_of(call.bodies[0][1]).args[0], (List, Tuple)) else None

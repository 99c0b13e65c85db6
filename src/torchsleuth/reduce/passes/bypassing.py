"""Stepping over an operator: whoever used its result uses something else that is there already.

bypassed        one site for each call, from the last to the first
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.case.schema import Case, Fake, Graph, List, Node, Ref, Symbolic, Tuple, Value
from torchsleuth.reduce.graphs import is_call, picks_one, produced, refs_of, users_of
from torchsleuth.reduce.order import complexity
from torchsleuth.reduce.passes.adapters import adapters
from torchsleuth.reduce.passes.editing import (
    Edit,
    ancestors,
    before,
    calls,
    is_dynamo,
    looks,
    node_named,
    patch,
    with_node,
    with_uses,
    without_node,
)
from torchsleuth.reduce.patches import Material, Patch, Site

_MOST_VALUES = 4
_MOST_OTHERS = 2
_MOST_ADAPTERS = 2


def bypassed(case: Case, material: Material) -> Iterator[Site]:
    """Each call, replaced by what it was computed from, by another value of its type, or by a simpler call."""
    known = {node.name: node for node in case.graph.nodes}
    users = users_of(case.graph)
    for node in calls(case.graph):
        if picks_one(node, known):
            continue
        if not users[node.name] or not _has_type(node):
            yield [_left_out(node.name, material)]
        elif isinstance(produced(node), (Tuple, List)):
            yield [_parts_replaced(node.name, material), _parts_replaced(node.name, material, of_any_type=True)]
        else:
            yield [*_by_values(case.graph, node, material), *_by_adapters(case, node, material)]


def _has_type(node: Node) -> bool:
    return isinstance(produced(node), (Fake, Symbolic, Tuple, List, bool, int, float))


# ---- by what is there --------------------------------------------------------------------------------------


def _by_values(graph: Graph, node: Node, material: Material) -> list[Patch]:
    value = produced(node)
    if isinstance(value, (bool, int, float)):
        return [_used_instead(node.name, value, f"{node.name}: {value}", material)]
    found = [*candidates(graph, node), *of_other_types(graph, node)]
    return [_used_instead(node.name, Ref(one.name), f"{node.name}: {one.name} in its place", material) for one in found]


def candidates(graph: Graph, node: Node, value: Value = None) -> list[Node]:
    """What can stand for a node, or for one of its results: the nearest of what it was computed from, then others."""
    wanted = _type(produced(node) if value is None else value)
    if wanted is None:
        return []
    direct = set(refs_of(node))
    above = [one for one in ancestors(graph, node.name) if _type(produced(one)) == wanted]
    near = [one for one in above if one.name in direct][:2]
    far = [one for one in above if one.name not in direct][:1]
    earlier = [one for one in before(graph, node.name) if _type(produced(one)) == wanted]
    inputs = [one for one in earlier if one.op == "placeholder"][:1]
    found = {one.name: one for one in (*near, *far, *inputs, *earlier[-1:])}
    return list(found.values())[:_MOST_VALUES]


def of_other_types(graph: Graph, node: Node) -> list[Node]:
    """What a node was given that is of another type: those who use its result may take that as well."""
    if not isinstance(produced(node), (Fake, Tuple, List)):
        return []
    direct = [one for one in ancestors(graph, node.name) if one.name in set(refs_of(node))]
    wanted = _type(produced(node))
    return [one for one in direct if isinstance(produced(one), Fake) and _type(produced(one)) != wanted][:_MOST_OTHERS]


def _type(value: Value) -> object:
    return ("number", value.expr) if isinstance(value, Symbolic) else looks(value)


def _used_instead(name: str, value: Value, words: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        graph = case.graph
        if node_named(graph, name) is None or not _is_earlier(graph, value, name):
            return None
        return Edit(with_uses(graph, {name: value}))

    return patch(words, material, edit)


def _is_earlier(graph: Graph, value: Value, name: str) -> bool:
    return not isinstance(value, Ref) or any(one.name == value.name for one in before(graph, name))


def _parts_replaced(name: str, material: Material, *, of_any_type: bool = False) -> Patch:
    """Each of several results, by something of its type; or by the first argument, if others may take that."""

    def edit(case: Case) -> Edit | None:
        graph = case.graph
        node = node_named(graph, name)
        if node is None:
            return None
        uses: dict[str, Value] = {}
        for user in users_of(graph)[name]:
            part = node_named(graph, user)
            assert part is not None
            if not is_call(part) or not picks_one(part, {name: node}):
                return None
            found = of_other_types(graph, node) if of_any_type else candidates(graph, node, produced(part))
            if not found:
                return None
            uses[user] = Ref(found[0].name)
        return Edit(with_uses(graph, uses)) if uses else None

    what = "its first argument" if of_any_type else "what it was computed from"
    return patch(f"{name}: {what} in its place", material, edit)


def _left_out(name: str, material: Material) -> Patch:
    """A call that is there for what it does: it goes, and what only ends what it began goes with it."""

    def edit(case: Case) -> Edit | None:
        graph = case.graph
        if node_named(graph, name) is None:
            return None
        users = users_of(graph)
        if any(users[user] for user in users[name]) or graph.nodes[-1].name in users[name]:
            return None
        for gone in (*users[name], name):
            graph = without_node(graph, gone)
        return Edit(graph)

    return patch(f"{name}: left out", material, edit)


# ---- by something simpler ----------------------------------------------------------------------------------


def _by_adapters(case: Case, node: Node, material: Material) -> list[Patch]:
    wanted = produced(node)
    if not isinstance(wanted, Fake):
        return []
    found: list[Patch] = []
    sources = {one.name: one for one in (*ancestors(case.graph, node.name), *before(case.graph, node.name))}
    for source in sources.values():
        given = produced(source)
        if not isinstance(given, Fake) or len(found) >= _MOST_ADAPTERS:
            continue
        for made in adapters(node, wanted, source.name, given, methods=is_dynamo(case)):
            if complexity(made) < complexity(node):
                found.append(_adapted(made, source.name, material))
    return found[:_MOST_ADAPTERS]


def _adapted(made: Node, source: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        there = node_named(case.graph, made.name)
        if there is None or not _is_earlier(case.graph, Ref(source), made.name):
            return None
        return Edit(with_node(case.graph, made))

    name = made.target.removeprefix("torch.ops.")
    return patch(f"{made.name}: {name} of {source} in its place", material, edit)

"""Graphs inside graphs, made smaller from inside: the branches of a condition, the body of a loop, a region.

shrunk_bodies       what is proposed for each nested graph, as for the outer one
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.case.schema import Case, Graph, Ref, Value
from torchsleuth.reduce.graphs import name_of, output_of, placeholders, produced, refs_in, refs_of, replace
from torchsleuth.reduce.legality import results
from torchsleuth.reduce.order import outputs_of
from torchsleuth.reduce.passes.arguments import arguments
from torchsleuth.reduce.passes.bypassing import bypassed
from torchsleuth.reduce.passes.editing import (
    Edit,
    Path,
    Rewrite,
    cleaned,
    is_higher_order,
    looks,
    node_named,
    patch,
    with_graph_at,
)
from torchsleuth.reduce.passes.simplifying import simplified
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.propagating import propagated


def shrunk_bodies(case: Case, material: Material) -> Iterator[Site]:
    """What is proposed for each nested graph, as if it stood alone."""
    for path, body in _nested(case.graph):
        alone = _alone(case, body)
        for propose in (bypassed, simplified, arguments):
            for site in propose(alone, material):
                yield [_inside(path, one, material) for one in site if isinstance(one, Rewrite)]


def _nested(graph: Graph, path: Path = ()) -> Iterator[tuple[Path, Graph]]:
    for entry in graph.attributes:
        if isinstance(entry.value, Graph):
            yield (*path, entry.name), entry.value
            yield from _nested(entry.value, (*path, entry.name))


def _inside(path: Path, rewrite: Rewrite, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        body = _at(case.graph, path)
        if body is None:
            return None
        made = rewrite.edit(_alone(case, body))
        if made is None or made.inputs:
            return None
        inner = cleaned(body, made.graph, keep_inputs=True)
        if not _returns_as_before(body, inner) or not _may_end(case.graph, path, inner):
            return None
        alone = propagated(_alone(case, inner), material.blobs)
        if alone is None or _types_returned(alone.graph) != _types_returned(body):
            return None
        return Edit(with_graph_at(case.graph, path, alone.graph))

    return patch(f"{'.'.join(path)}: {rewrite.words}", material, edit)


def _alone(case: Case, body: Graph) -> Case:
    """A nested graph as if it were the graph of the case. What it is called with is known by its placeholders only."""
    return replace(case, graph=body, inputs=(None,) * len(placeholders(body)), examples=None)


def _returns_as_before(body: Graph, inner: Graph) -> bool:
    """Whether results are still results, and not one of them twice: operators refuse what shares memory."""
    before, after = (set(refs_in(output_of(graph).args[0])) for graph in (body, inner))
    return results(inner) == results(body) and len(after) >= len(before)


def _types_returned(graph: Graph) -> list[object]:
    known = {node.name: node for node in graph.nodes}
    return [looks(produced(known[name])) for value in outputs_of(graph) for name in refs_in(value)]


def _at(graph: Graph, path: Path) -> Graph | None:
    for name in path:
        found = next((entry.value for entry in graph.attributes if entry.name == name), None)
        if not isinstance(found, Graph):
            return None
        graph = found
    return graph


# ---- loops that have to end --------------------------------------------------------------------------------


def _may_end(graph: Graph, path: Path, inner: Graph) -> bool:
    """Whether a loop is left as it was before: what its condition depends on may not change."""
    outer = _at(graph, path[:-1])
    body = _at(graph, path)
    assert outer is not None
    assert body is not None
    names = {node.name for node in outer.nodes if node.op == "get_attr" and node.target == path[-1]}
    for node in outer.nodes:
        if name_of(node) != "while_loop" or not is_higher_order(node) or not names.intersection(refs_of(node)):
            continue
        if isinstance(node.args[0], Ref) and node.args[0].name in names:
            return _calls_for(body, None) == _calls_for(inner, None)
        condition = _body_of(outer, node.args[0])
        if condition is None:
            return False
        places = _counters(condition, body)
        return _calls_for(body, places) == _calls_for(inner, places)
    return True


def _body_of(graph: Graph, value: Value) -> Graph | None:
    node = node_named(graph, value.name) if isinstance(value, Ref) else None
    return None if node is None else _at(graph, (node.target,))


def _counters(condition: Graph, body: Graph) -> set[int]:
    """The places of what a condition depends on, from one turn to the next."""
    places = _places_of(condition, None)
    while True:
        more = places | {place for place in _places_of(body, places) if place < len(outputs_of(body))}
        if more == places:
            return places
        places = more


def _places_of(graph: Graph, outputs: set[int] | None) -> set[int]:
    needed = _needed(graph, outputs)
    return {place for place, node in enumerate(placeholders(graph)) if node.name in needed}


def _needed(graph: Graph, outputs: set[int] | None) -> set[str]:
    """The nodes that outputs are computed from. None: all of them."""
    returned = outputs_of(graph)
    needed = {name for at, one in enumerate(returned) if outputs is None or at in outputs for name in refs_in(one)}
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(refs_of(node))
    return needed


def _calls_for(graph: Graph, outputs: set[int] | None) -> list[tuple[object, ...]]:
    needed = _needed(graph, outputs)
    calls = [(node.name, node.target, node.args, node.kwargs) for node in graph.nodes if node.name in needed]
    returned = [one for at, one in enumerate(outputs_of(graph)) if outputs is None or at in outputs]
    return [*calls, tuple(returned)]

"""What the passes on structure share: graphs with other uses or outputs, and a case that is whole again after that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from torchsleuth.case.schema import Case, Entry, Fake, Graph, List, Meta, Node, Ref, Storage, Tuple, Value
from torchsleuth.reduce.graphs import (
    is_call,
    map_arguments,
    name_of,
    output_of,
    picks_one,
    produced,
    pruned,
    refs_in,
    refs_of,
    replace,
    users_of,
    with_inputs,
)
from torchsleuth.reduce.legality import legal, results
from torchsleuth.reduce.order import outputs_of, size_of
from torchsleuth.reduce.patches import Material, Patch
from torchsleuth.reduce.propagating import propagated

Path: TypeAlias = tuple[str, ...]
"""Where a nested graph is: the names of attributes, from outside in."""


@dataclass(frozen=True)
class Edit:
    """A graph that is to take the place of a case's, and what its new placeholders are called with."""

    graph: Graph
    inputs: Mapping[str, Value] = field(default_factory=dict)
    storages: tuple[Storage, ...] | None = None
    """All of the case's, if there are others than before."""


@dataclass(frozen=True)
class Rewrite(Patch):
    """A patch that makes another graph."""

    edit: Callable[[Case], Edit | None]


def patch(words: str, material: Material, edit: Callable[[Case], Edit | None]) -> Rewrite:
    """A patch that makes another graph, and sees to it that the case is whole again."""

    def apply(case: Case) -> Case | None:
        made = edit(case)
        return None if made is None else finished(case, made, material)

    return Rewrite(words, apply, edit)


def finished(case: Case, edit: Edit, material: Material) -> Case | None:
    """The case with the graph, without whatever nobody needs any more. None if it is not legal, or not smaller."""
    return smaller(case, completed(case, edit, material))


def completed(case: Case, edit: Edit, material: Material) -> Case | None:
    """The same, smaller or not."""
    graph = cleaned(case.graph, without_idle_outputs(case.graph, edit.graph))
    made = _with_graph(case, Edit(graph, edit.inputs, edit.storages))
    whole = propagated(made, material.blobs) if legal(made) else None
    if whole is None or not legal(whole) or not _bodies_fit(case.graph, whole.graph) or _returns_nothing(whole.graph):
        return None
    return whole if _empty(whole.graph) <= _empty(case.graph) else None


def _returns_nothing(graph: Graph) -> bool:
    """Whether one of the results that are returned has become None, as an operator gives for what is not asked for."""
    known = {node.name: node for node in graph.nodes}
    returned = (known[name] for value in outputs_of(graph) for name in refs_in(value))
    return any(picks_one(node, known) and produced(node) is None for node in returned)


def _empty(graph: Graph) -> int:
    """How many results have no elements. Operators that are given none do nothing, whatever else is wrong."""
    return sum(isinstance(value := produced(node), Fake) and 0 in value.size for node in graph.nodes)


def _bodies_fit(before: Graph, graph: Graph) -> bool:
    """Whether nested graphs are given values of the types that they were made for."""
    known = {node.name: node for node in before.nodes if is_higher_order(node)}
    for node in filter(is_higher_order, graph.nodes):
        if node.name in known:
            given = iter(_types_given(before, known[node.name]))
            if not all(kind in given for kind in _types_given(graph, node)):
                return False
    return True


def is_higher_order(node: Node) -> bool:
    """Whether a call takes graphs."""
    return node.target.startswith("torch.ops.higher_order.")


def _types_given(graph: Graph, node: Node) -> list[object]:
    known = {one.name: one for one in graph.nodes}
    return [kind for name in refs_of(node) if (kind := looks(produced(known[name]))) is not None]


def _with_graph(case: Case, edit: Edit) -> Case:
    examples = {node.name: produced(node) for node in edit.graph.nodes if node.name in edit.inputs}
    if edit.storages is not None:
        case = replace(case, storages=edit.storages)
    return pruned(with_inputs(case, edit.graph, edit.inputs, examples))


def smaller(case: Case, made: Case | None) -> Case | None:
    """What was made, if it is a smaller case than before."""
    return made if made is not None and size_of(made) < size_of(case) else None


# ---- graphs ------------------------------------------------------------------------------------------------


def node_named(graph: Graph, name: str) -> Node | None:
    return next((node for node in graph.nodes if node.name == name), None)


def with_node(graph: Graph, node: Node) -> Graph:
    """The graph with another node of the same name."""
    return replace(graph, nodes=tuple(node if one.name == node.name else one for one in graph.nodes))


def without_node(graph: Graph, name: str) -> Graph:
    """The graph without a node that nobody uses."""
    return replace(graph, nodes=tuple(node for node in graph.nodes if node.name != name))


def with_uses(graph: Graph, values: Mapping[str, Value]) -> Graph:
    """The graph in which other values are used in the place of these nodes."""

    def changed(value: Value) -> Value:
        return values.get(value.name, value) if isinstance(value, Ref) else value

    return replace(graph, nodes=tuple(map_arguments(node, changed) for node in graph.nodes))


def with_outputs(graph: Graph, outputs: Sequence[Value]) -> Graph:
    """The graph that returns these. What is noted of the outputs one by one no longer holds."""
    last = output_of(graph)
    kind = type(last.args[0]) if last.args and isinstance(last.args[0], (List, Tuple)) else Tuple
    return replace(graph, nodes=(*graph.nodes[:-1], replace(last, args=(kind(tuple(outputs)),), meta=Meta())))


def without_idle_outputs(before: Graph, graph: Graph) -> Graph:
    """The graph without those outputs that used to be results, and are inputs, constants or another output now."""
    old = outputs_of(before)
    new = outputs_of(graph)
    if len(old) != len(new) or output_of(graph) == output_of(before):
        return graph
    kept = [
        value
        for value, was, made, was_made in zip(new, old, results(graph), results(before), strict=True)
        if value == was or made or not was_made
    ]
    if len(set(old)) == len(old):
        kept = list(dict.fromkeys(kept))
    return with_outputs(graph, kept) if kept else graph


def cleaned(before: Graph, graph: Graph, *, keep_inputs: bool = False) -> Graph:
    """The graph without the nodes that have lost their last user.

    A call that never had one is there for what it does, unless it only picks one of several results.
    """
    known = {node.name: node for node in before.nodes}
    idle = {name for name, users in users_of(before).items() if not users and not picks_one(known[name], known)}
    used: set[str] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        stays = node.op == "output" or (keep_inputs and node.op == "placeholder")
        if stays or node.name in used or node.name in idle:
            used.update(refs_of(node))
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def with_graph_at(graph: Graph, path: Path, inner: Graph) -> Graph:
    """The graph with another one nested in it."""
    if not path:
        return inner
    attributes = tuple(
        Entry(entry.name, with_graph_at(entry.value, path[1:], inner))
        if entry.name == path[0] and isinstance(entry.value, Graph)
        else entry
        for entry in graph.attributes
    )
    return replace(graph, attributes=attributes)


def ancestors(graph: Graph, name: str) -> list[Node]:
    """What a node was computed from, the nearest first."""
    known = {node.name: node for node in graph.nodes}
    found: dict[str, None] = {}
    front = [name]
    while front:
        above = [one for each in front for one in refs_of(known[each]) if one in known]
        front = [one for one in dict.fromkeys(above) if one not in found]
        found.update(dict.fromkeys(front))
    return [known[one] for one in found]


def before(graph: Graph, name: str) -> list[Node]:
    """The nodes that come before one, in order."""
    found: list[Node] = []
    for node in graph.nodes:
        if node.name == name:
            break
        found.append(node)
    return found


def looks(value: Value) -> tuple[object, ...] | None:
    """What has to agree if another value is to take its place, and strides are worked out anew."""
    if isinstance(value, Fake):
        return (value.dtype, value.size, value.device, value.layout)
    return None


def is_dynamo(case: Case) -> bool:
    """Whether the graph calls torch's functions and methods, not operators."""
    return case.compiler.after.value == "dynamo"


def calls(graph: Graph) -> Iterable[Node]:
    """The nodes that compute something and may be another call, from the last one to the first."""
    return [node for node in reversed(graph.nodes) if is_call(node) and name_of(node) not in _FIXED]


_FIXED: Final = frozenset({"inductor_seeds", "inductor_lookup_seed"})
"""Calls whose results Inductor's random operators take, and nothing else in their place. They go with those."""


def meta_like(node: Node, value: Value) -> Meta:
    """What is known of a new node that stands where another one stood."""
    if node.meta.val is None and node.meta.example is not None:
        return Meta(example=value, stack_trace=node.meta.stack_trace)
    return Meta(val=value, stack_trace=node.meta.stack_trace, tensor_meta=node.meta.tensor_meta)

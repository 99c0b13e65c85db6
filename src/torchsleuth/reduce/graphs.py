"""Small questions about graphs that are data: who uses whom, what a node produces, a graph with other nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from torchsleuth.case.schema import (
    Case,
    Complex,
    Dict,
    Entry,
    Graph,
    List,
    Module,
    Node,
    Range,
    Ref,
    Set,
    Size,
    Slice,
    Storage,
    Symbolic,
    Tensor,
    Tuple,
    Value,
)

replace = msgspec.structs.replace
GETITEM: Final = "operator.getitem"


def is_call(node: Node) -> bool:
    """Whether it computes something."""
    return node.op.startswith("call_")


def name_of(node: Node) -> str:
    """What a call is called without namespace and overload: `torch.ops.aten.add.Tensor` is "add"."""
    return _named(node.target)


@functools.lru_cache(maxsize=4096)
def _named(target: str) -> str:
    parts = target.split(".")
    return parts[3] if target.startswith("torch.ops.") and len(parts) > 3 else parts[-1]


def produced(node: Node) -> Value:
    """What a node is known to produce: fakes, symbols, or a nest of them."""
    return node.meta.val if node.meta.val is not None else node.meta.example


def picks_one(node: Node, known: Mapping[str, Node]) -> bool:
    """Whether a node only takes one of the several results of another: part of the call, not one of its own."""
    if node.op != "call_function" or node.target != GETITEM or not node.args or not isinstance(node.args[0], Ref):
        return False
    source = known.get(node.args[0].name)
    return source is not None and isinstance(produced(source), (Tuple, List))


def operators(graph: Graph) -> list[Node]:
    """The calls of a graph, those that only pick one of several results apart."""
    known = {node.name: node for node in graph.nodes}
    return [node for node in graph.nodes if is_call(node) and not picks_one(node, known)]


def leaves_in(value: Value) -> Iterator[Value]:
    """Whatever in a value is no container, in order."""
    match value:
        case List(items) | Tuple(items) | Size(items) | Set(items):
            parts: tuple[Value, ...] = items
        case Dict(pairs):
            parts = tuple(item for pair in pairs for item in pair)
        case Slice(start, stop, step) | Range(start, stop, step):
            parts = (start, stop, step)
        case Complex(real, imag):
            parts = (real, imag)
        case _:
            yield value
            return
    for part in parts:
        yield from leaves_in(part)


def refs_in(value: Value) -> Iterator[str]:
    """The nodes that a value refers to, in order, as often as it does."""
    return (leaf.name for leaf in leaves_in(value) if isinstance(leaf, Ref))


def refs_of(node: Node) -> Iterator[str]:
    """The nodes that a node refers to."""
    for value in node.args:
        yield from refs_in(value)
    for entry in node.kwargs:
        yield from refs_in(entry.value)


def map_values(value: Value, change: Callable[[Value], Value]) -> Value:
    """The value with each leaf (whatever is no container) changed."""
    match value:
        case List(items) | Tuple(items) | Size(items) | Set(items):
            return replace(value, items=tuple(map_values(item, change) for item in items))
        case Dict(pairs):
            return Dict(tuple((map_values(key, change), map_values(item, change)) for key, item in pairs))
        case Slice(start, stop, step):
            return Slice(*(map_values(item, change) for item in (start, stop, step)))
        case Range(start, stop, step):
            return Range(*(map_values(item, change) for item in (start, stop, step)))
    return change(value)


def map_arguments(node: Node, change: Callable[[Value], Value]) -> Node:
    """The node with each leaf of its arguments changed."""
    return replace(
        node,
        args=tuple(map_values(value, change) for value in node.args),
        kwargs=tuple(Entry(entry.name, map_values(entry.value, change)) for entry in node.kwargs),
    )


def users_of(graph: Graph) -> dict[str, list[str]]:
    """Who refers to each node; every node has an entry."""
    users: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for name in dict.fromkeys(refs_of(node)):
            if name in users:
                users[name].append(node.name)
    return users


def placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def output_of(graph: Graph) -> Node:
    return graph.nodes[-1]


def tensors_in(value: Value) -> Iterator[Tensor]:
    """The tensors in a value, with all that hangs on them."""
    for leaf in leaves_in(value):
        if isinstance(leaf, Tensor):
            yield leaf
            for part in (leaf.base, leaf.grad, *leaf.parts):
                yield from tensors_in(part)


def tensors_of(case: Case) -> Iterator[Tensor]:
    """The tensors of a case: its inputs, and what its graphs and their modules own."""
    for value in (*case.inputs, case.graph):
        yield from _tensors_owned(value)


def _tensors_owned(value: Value) -> Iterator[Tensor]:
    match value:
        case Graph():
            entries = (*value.attributes, *value.meta)
        case Module():
            entries = (*value.attributes, *value.parameters, *value.buffers, *value.children)
        case _:
            yield from tensors_in(value)
            return
    for entry in entries:
        yield from _tensors_owned(entry.value)


def is_number(value: Value) -> bool:
    """Whether what a node produces is a number, known or symbolic."""
    return isinstance(value, (bool, int, float, Symbolic))


# ---- a case with another graph ---------------------------------------------------------------------------


_INDICES: Final = ("static_input_idxs", "inputs_to_check")
"""Arguments of compilers that are places of inputs."""


def with_inputs(case: Case, graph: Graph, inputs: Mapping[str, Value], examples: Mapping[str, Value]) -> Case:
    """The case with another graph, whose placeholders may be other ones than before.

    `inputs` and `examples` have what the new placeholders are called with, and what the compiler is given, by name; the
    others keep what they had. Whatever goes by the places of inputs is brought in line. Storages stay as they are:
    `pruned` drops what is no longer used.
    """
    old = [node.name for node in placeholders(case.graph)]
    given = dict(zip(old, case.inputs, strict=False)) | dict(inputs)
    names = [node.name for node in placeholders(graph)]
    before = {name: place for place, name in enumerate(old)}
    places = {before[name]: place for place, name in enumerate(names) if name in before}
    described = case.examples
    if described is not None:
        known = dict(zip(old, described, strict=False)) | dict(examples)
        described = tuple(known[name] for name in names)
    compiler = case.compiler
    arguments = tuple(
        Entry(entry.name, _moved(entry.value, places)) if entry.name in _INDICES else entry
        for entry in compiler.arguments
    )
    donated = compiler.donated
    if donated is not None:
        donated = tuple(places[at] for at in donated if at in places)
    return replace(
        case,
        graph=graph,
        inputs=tuple(given[name] for name in names),
        examples=described,
        compiler=replace(compiler, arguments=arguments, donated=donated),
    )


def _moved(value: Value, places: Mapping[int, int]) -> Value:
    if not isinstance(value, (List, Tuple)):
        return value
    return replace(value, items=tuple(places[at] for at in value.items if isinstance(at, int) and at in places))


def pruned(case: Case) -> Case:
    """The case without attributes that its graph does not ask for, and without storages that nothing refers to."""
    graph = case.graph
    asked = {node.target for node in graph.nodes if node.op in ("get_attr", "call_module")}
    attributes = tuple(entry for entry in graph.attributes if entry.name in asked)
    if len(attributes) < len(graph.attributes):
        graph = replace(graph, attributes=attributes)
        case = replace(case, graph=graph)
    used: dict[int, int] = {}
    for tensor in tensors_of(case):
        if tensor.storage is not None:
            used.setdefault(tensor.storage, len(used))
    if list(used) == list(range(len(case.storages))):
        return case
    storages = tuple(case.storages[number] for number in used)
    return _renumbered(replace(case, storages=storages), used)


def _renumbered(case: Case, numbers: Mapping[int, int]) -> Case:
    def number(value: Value) -> Value:
        if isinstance(value, Graph):
            return of_graph(value)
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, Module):
            return replace(
                value,
                **{
                    field: tuple(Entry(one.name, map_values(one.value, number)) for one in getattr(value, field))
                    for field in ("attributes", "parameters", "buffers", "children")
                },
            )
        return value

    def tensor(value: Tensor) -> Tensor:
        return replace(
            value,
            storage=None if value.storage is None else numbers[value.storage],
            base=None if value.base is None else tensor(value.base),
            grad=None if value.grad is None else tensor(value.grad),
            parts=tuple(map(tensor, value.parts)),
        )

    def of_graph(graph: Graph) -> Graph:
        return replace(
            graph,
            attributes=tuple(Entry(one.name, map_values(one.value, number)) for one in graph.attributes),
            meta=tuple(Entry(one.name, map_values(one.value, number)) for one in graph.meta),
        )

    return replace(case, graph=of_graph(case.graph), inputs=tuple(map_values(value, number) for value in case.inputs))


def add_storage(case: Case, storage: Storage) -> tuple[Case, int]:
    """The case with one more storage, and its number."""
    return replace(case, storages=(*case.storages, storage)), len(case.storages)

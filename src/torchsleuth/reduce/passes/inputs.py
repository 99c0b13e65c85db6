"""What goes into a graph and what comes out of it: less of it, and plainer.

outputs             each output left out; first of all those that are no results
merged_inputs       one input in the place of several of the same type
unused_inputs       inputs that nobody uses
plain_inputs        no parameters, no gradients, no views of others
plain_constants     constants of the graph with values that need no file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchsleuth.case.schema import (
    Case,
    Entry,
    Fake,
    Generated,
    Graph,
    Meta,
    Node,
    Ref,
    Storage,
    Stored,
    Tensor,
    Value,
)
from torchsleuth.reduce.graphs import placeholders, produced, refs_in, replace, tensors_in, users_of
from torchsleuth.reduce.legality import results
from torchsleuth.reduce.order import elements_of, outputs_of
from torchsleuth.reduce.passes.editing import (
    Edit,
    completed,
    patch,
    smaller,
    with_outputs,
    with_uses,
    without_node,
)
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.restricting import type_of

# ---- outputs -----------------------------------------------------------------------------------------------


def outputs(case: Case, material: Material) -> Iterator[Site]:
    """Less is returned."""
    returned = outputs_of(case.graph)
    if len(returned) < 2:
        return
    if not all(results(case.graph)) or len({repr(one) for one in returned}) < len(returned):
        yield [patch("outputs that are no results: left out", material, _only_results)]
    for value in reversed(list(dict.fromkeys(returned))):
        words = f"output {'/'.join(refs_in(value)) or value}: left out"
        yield [patch(words, material, lambda one, value=value: _without_output(one, value))]  # type: ignore[misc]


def _only_results(case: Case) -> Edit | None:
    returned = outputs_of(case.graph)
    made = [value for value, is_result in zip(returned, results(case.graph), strict=True) if is_result]
    return _returning(case, list(dict.fromkeys(made)))


def _without_output(case: Case, value: Value) -> Edit | None:
    return _returning(case, [one for one in outputs_of(case.graph) if one != value])


def _returning(case: Case, kept: Sequence[Value]) -> Edit | None:
    if not kept or len(kept) == len(outputs_of(case.graph)):
        return None
    return Edit(with_outputs(case.graph, kept))


# ---- fewer inputs ------------------------------------------------------------------------------------------


def merged_inputs(case: Case, material: Material) -> Iterator[Site]:
    """Inputs of one type are one: all of them; those of one type; one after another."""
    groups = _alike(case)
    if groups:
        yield [_merge([name for group in groups for name in group], "inputs of one type: one", material)]
    if len(groups) > 1:
        for group in groups:
            if len(group) > 2:
                yield [_merge(group, f"inputs like {group[0]}: one", material)]
    if sum(map(len, groups)) > 2:
        for group in groups:
            for name in reversed(group[1:]):
                yield [_merge([group[0], name], f"input {name}: the same as {group[0]}", material)]
    yield from _by_smaller(case, material)


def _by_smaller(case: Case, material: Material) -> Iterator[Site]:
    """Another input in the place of one, the smallest of its dtype, where its users take that as well."""
    inputs = {
        node.name: given
        for node, given in zip(placeholders(case.graph), case.inputs, strict=True)
        if isinstance(given, Tensor) and isinstance(produced(node), Fake)
    }
    for name, tensor in inputs.items():
        others = [one for one, other in inputs.items() if one != name and other.dtype == tensor.dtype]
        if others:
            least = min(others, key=lambda one: elements_of(inputs[one]))
            yield [_uses(name, least, material)]


def _uses(name: str, other: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        there = {node.name for node in placeholders(case.graph)}
        return Edit(with_uses(case.graph, {name: Ref(other)})) if {name, other} <= there else None

    return patch(f"input {name}: {other} in its place", material, edit)


def _alike(case: Case) -> list[list[str]]:
    """The inputs that are used, and the graph's constants, by what they are; those that are like no other left out."""
    users = users_of(case.graph)
    found: dict[object, list[str]] = {}
    for node in case.graph.nodes:
        value = produced(node)
        kind = type_of(value)
        if node.op in ("placeholder", "get_attr") and users[node.name] and kind is not None:
            extra = (value.requires_grad, value.parameter) if isinstance(value, Fake) else ()
            found.setdefault((kind, extra), []).append(node.name)
    return [names for names in found.values() if len(names) > 1]


def _merge(names: Sequence[str], words: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        uses = {
            other: Ref(group[0])
            for group in ([name for name in alike if name in names] for alike in _alike(case))
            for other in group[1:]
        }
        return Edit(with_uses(case.graph, uses)) if uses else None

    return patch(words, material, edit)


def unused_inputs(case: Case, material: Material) -> Iterator[Site]:
    """Inputs that nobody uses: all of them, then one after another."""
    idle = _idle(case.graph)
    if not idle:
        return
    yield [_without_inputs(idle, "inputs that nobody uses: left out", material)]
    if len(idle) > 1:
        for name in idle:
            yield [_without_inputs([name], f"input {name}: left out", material)]


def _idle(graph: Graph) -> list[str]:
    users = users_of(graph)
    return [node.name for node in graph.nodes if node.op in ("placeholder", "get_attr") and not users[node.name]]


def _without_inputs(names: Iterable[str], words: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        graph = case.graph
        for name in names:
            if name in _idle(case.graph):
                graph = without_node(graph, name)
        return None if graph is case.graph else Edit(graph)

    return patch(words, material, edit)


# ---- plain inputs ------------------------------------------------------------------------------------------


def plain_inputs(case: Case, material: Material) -> Iterator[Site]:
    """Inputs without gradients and without a past: all of them, then one after another."""
    odd = [node.name for node, given in zip(placeholders(case.graph), case.inputs, strict=True) if _is_odd(node, given)]
    if not odd:
        return
    yield [_plain(odd, "inputs: no gradients, no views", material)]
    if len(odd) > 1:
        for name in odd:
            yield [_plain([name], f"input {name}: no gradients, no view", material)]


def _is_odd(node: Node, given: Value) -> bool:
    known = produced(node)
    odd = isinstance(known, Fake) and known != _plain_fake(known)
    return odd or (isinstance(given, Tensor) and given != _plain_tensor(given))


def _plain_tensor(tensor: Tensor) -> Tensor:
    return replace(tensor, requires_grad=False, parameter=False, leaf=True, inference=False, base=None, grad=None)


def _plain_fake(value: Value) -> Value:
    return replace(value, requires_grad=False, parameter=False, leaf=True) if isinstance(value, Fake) else value


def _plain_meta(meta: Meta) -> Meta:
    return replace(meta, val=_plain_fake(meta.val), example=_plain_fake(meta.example))


def _plain(names: Sequence[str], words: str, material: Material) -> Patch:
    def apply(case: Case) -> Case | None:
        chosen = [node.name in names for node in placeholders(case.graph)]
        nodes = tuple(
            replace(node, meta=_plain_meta(node.meta)) if node.op == "placeholder" and node.name in names else node
            for node in case.graph.nodes
        )
        inputs = tuple(
            _plain_tensor(value) if choose and isinstance(value, Tensor) else value
            for choose, value in zip(chosen, case.inputs, strict=True)
        )
        examples = case.examples
        if examples is not None:
            examples = tuple(
                _plain_fake(value) if choose else value for choose, value in zip(chosen, examples, strict=True)
            )
        graph = replace(case.graph, nodes=nodes)
        made = completed(replace(case, graph=graph, inputs=inputs, examples=examples), Edit(graph), material)
        return smaller(case, made)

    return Patch(words, apply)


# ---- constants of the graph --------------------------------------------------------------------------------


def plain_constants(case: Case, material: Material) -> Iterator[Site]:
    """Constants that need no file, and no parameters among them."""
    for entry in case.graph.attributes:
        if isinstance(entry.value, Tensor):
            yield [
                _constant(entry.name, how, f"{entry.name}: {words}", material)
                for how, words in (("constant", "zeros"), ("normal", "drawn numbers"), ("", "a plain tensor"))
            ]


def _constant(name: str, how: str, words: str, material: Material) -> Patch:
    def apply(case: Case) -> Case | None:
        entry = next((one for one in case.graph.attributes if one.name == name), None)
        if entry is None or not isinstance(entry.value, Tensor):
            return None
        tensor = _plain_tensor(entry.value)
        storages = case.storages
        if how:
            if tensor.storage is None or _is_shared(case, tensor.storage):
                return None
            storages = _with_recipe(storages, tensor, how)
        graph = replace(
            case.graph,
            attributes=tuple(Entry(name, tensor) if one.name == name else one for one in case.graph.attributes),
        )
        made = replace(case, graph=graph, storages=storages)
        return None if made == case else smaller(case, completed(made, Edit(graph), material))

    return Patch(words, apply)


def _with_recipe(storages: tuple[Storage, ...], tensor: Tensor, how: str) -> tuple[Storage, ...]:
    assert tensor.storage is not None
    entry = storages[tensor.storage]
    if not isinstance(entry.content, Stored) or (how == "normal" and "float" not in tensor.dtype):
        return storages
    recipe = Generated("normal" if how == "normal" else "constant", tensor.dtype)
    return tuple(replace(one, content=recipe) if one is entry else one for one in storages)


def _is_shared(case: Case, storage: int) -> bool:
    """Whether an input has the same memory."""
    return any(tensor.storage == storage for value in case.inputs for tensor in tensors_in(value))

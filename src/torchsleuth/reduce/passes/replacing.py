"""Cutting off what is above an operator: its result is an input, or a constant.

replaced        one site for each call, from the last to the first
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.case.schema import (
    Case,
    Device,
    Entry,
    Fake,
    List,
    Meta,
    Node,
    Storage,
    Torch,
    Tuple,
    Value,
)
from torchsleuth.reduce.graphs import picks_one, placeholders, produced, replace, users_of
from torchsleuth.reduce.legality import is_constant
from torchsleuth.reduce.passes.editing import (
    Edit,
    calls,
    is_dynamo,
    meta_like,
    node_named,
    patch,
    with_node,
)
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.restricting import made_up
from torchsleuth.reduce.sizes import Hints


def replaced(case: Case, material: Material) -> Iterator[Site]:
    """Each call: its result is an input, or a constant."""
    known = {node.name: node for node in case.graph.nodes}
    users = users_of(case.graph)
    for node in calls(case.graph):
        if picks_one(node, known) or not users[node.name]:
            continue
        value = produced(node)
        if isinstance(value, (Tuple, List)):
            yield [_as_inputs(node.name, material)]
        elif isinstance(value, Fake):
            yield [_as_inputs(node.name, material), *_as_constant(case, node, value, material)]


# ---- an input ----------------------------------------------------------------------------------------------


def _as_inputs(name: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        node = node_named(case.graph, name)
        if node is None:
            return None
        parts = [node]
        if isinstance(produced(node), (Tuple, List)):
            found = [node_named(case.graph, user) for user in users_of(case.graph)[name]]
            parts = [one for one in found if one is not None and picks_one(one, {name: node})]
            if len(parts) < len(found):
                return None
        return _with_inputs_for(case, parts)

    return patch(f"{name}: an input", material, edit)


def _with_inputs_for(case: Case, parts: list[Node]) -> Edit | None:
    """The graph in which the results of these are new inputs, which come after those that it has."""
    hints = Hints(case.symbols)
    storages: list[Storage] = list(case.storages)
    given: dict[str, Value] = {}
    new: list[Node] = []
    for part in parts:
        value = produced(part)
        made = made_up(value, hints) if isinstance(value, Fake) else None
        if made is None:
            return None
        tensor, storage = made
        given[part.name] = replace(tensor, storage=len(storages))
        storages.append(storage)
        new.append(Node(part.name, "placeholder", part.name, meta=_of_input(meta_like(part, value))))
    rest = [node for node in case.graph.nodes if node.op != "placeholder" and node.name not in given]
    nodes = (*placeholders(case.graph), *new, *rest)
    return Edit(replace(case.graph, nodes=nodes), given, tuple(storages))


def _of_input(meta: Meta) -> Meta:
    """What is known of a result, when it is an input: its memory is its own."""
    val, example = (
        replace(one, offset=0, memory=None, leaf=True) if isinstance(one, Fake) else one
        for one in (meta.val, meta.example)
    )
    return replace(meta, val=val, example=example)


# ---- a constant --------------------------------------------------------------------------------------------


def _as_constant(case: Case, node: Node, value: Fake, material: Material) -> list[Patch]:
    if is_constant(node) or value.layout != "strided" or not all(isinstance(term, int) for term in value.size):
        return []
    size = tuple(term for term in value.size if isinstance(term, int))
    number = 1 if value.dtype.startswith(("float", "bfloat", "complex")) else 0
    device, _, index = value.device.partition(":")
    kwargs = (Entry("dtype", Torch(value.dtype)), Entry("device", Device(device, int(index) if index else None)))
    target = "torch.full" if is_dynamo(case) else "torch.ops.aten.full.default"
    meta = meta_like(node, replace(value, requires_grad=False, leaf=True))
    made = Node(node.name, "call_function", target, (List(size), number), kwargs, meta)

    def edit(case: Case) -> Edit | None:
        return None if node_named(case.graph, made.name) is None else Edit(with_node(case.graph, made))

    return [patch(f"{node.name}: {number} everywhere", material, edit)]

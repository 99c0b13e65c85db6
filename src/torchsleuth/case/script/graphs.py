"""The graphs of a case as functions of a script: a line for each node, under the user's line that it comes from.

    def graph(m):
        g = Builder()
        g.arg0_1 = placeholder()  # f32[8, 4]
        # model.py:12, in forward: y = F.relu(x)
        g.relu = call(aten.relu.default, g.arg0_1)  # f32[8, 4]
        g.output = output((g.relu,))
        return finished(g)

Names are attributes of `g` and so can be any name at all; one that is no name of Python stands in
brackets.
"""

from __future__ import annotations

import contextlib
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from torchsleuth.case import schema
from torchsleuth.case.graphs import modules, targets
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.pieces.graphs import BUILDER, GENERATOR, MODULES
from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.sizes import FAKE
from torchsleuth.case.script.shapes import line_of, shape_of
from torchsleuth.case.script.source import Spelling, call_source, items_source, target_source, text_source, values_in
from torchsleuth.case.script.terms import Terms, fake_source, symbolic_source
from torchsleuth.errors import CannotHold, NeedsTrust

PEOPLE_ONLY: Final = frozenset(
    "seq_nr from_node torch_fn fwd_nn_module_stack fwd_source_fn_stack custom_stack tensor_meta autograd_backward "
    "is_gradient_acc desc mutation_region_id output_stack_traces stack_trace original_aten source_fn_stack "
    "nn_module_stack".split()
)
"""Keys of a node's `meta` that no compiler decides by."""
_OF_DYNAMO: Final = frozenset({"backend_id", "dynamo_flat_name_to_original_fqn", "dynamo_compile_id"})
"""The same of a module's `meta`: Dynamo's own bookkeeping."""

_POLICIES: Final = frozenset(CheckpointPolicy.__members__)
_STEPS: Final = {
    "index": "SequenceKey",
    "key": "MappingKey",
    "method": "CallMethodKey",
    "divide": "DivideByKey",
    "inner": "InnerTensorKey",
    "convert": "ConvertIntKey",
}
_ALIASES: Final = {"torch.ops.aten": "aten", "torch.ops.prims": "prims"}


def plain_name(text: str) -> bool:
    """Whether it can stand behind a dot, or before an equals sign, as it is."""
    dunder = text.startswith("__") and text.endswith("__")
    return text.isidentifier() and text.isascii() and not keyword.iskeyword(text) and not dunder


@dataclass
class Called:
    """What the graphs of a script call, so that the script imports it."""

    own: Mapping[str, str] = field(default_factory=dict)
    """Functions of the user's own that the script defines: their names in the case, and in the script."""
    aliases: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)

    def function(self, name: str) -> str:
        """The source of a function that is in the table of what graphs may call, or the user's own."""
        if name in self.own:
            return self.own[name]
        with contextlib.suppress(NeedsTrust):  # code of the user's own: the script defines or imports it
            targets.resolve(name, field="graph")
        source = target_source(name)
        for path, alias in _ALIASES.items():
            if source.startswith(f"{path}."):
                self.aliases.add(f"{alias} = {path}")
                return f"{alias}{source.removeprefix(path)}"
        module = _module_of(source)
        if module not in ("torch", "torch.ops"):
            self.modules.add(module)
        if name.startswith("torch.ops.higher_order."):
            self.modules.add("torch._higher_order_ops")
        return source.removeprefix("builtins.")


def _module_of(source: str) -> str:
    """What has to be imported so that the name can be reached; packages of torch that `import torch` brings along."""
    if source.startswith("builtins."):
        return "torch"
    home = source.rpartition(".")[0]
    always = ("torch.ops", "torch.Tensor", "torch._C", "torch.nn", "torch.linalg", "torch.fft", "torch.special")
    if home == "torch" or home.startswith(always) or not home.isascii():
        return "torch"
    return home


class GraphSpelling(Spelling):
    """Values as they stand in a graph function: other nodes are attributes of `g`, tensors are views of `m`."""

    def __init__(self, called: Called, tensor: Callable[[schema.Tensor], str], terms: Terms) -> None:
        self.called = called
        self.terms = terms
        self.pieces: list[Piece] = [BUILDER]
        self._tensor = tensor
        self.graphs: dict[int, str] = {}

    def ref(self, name: str) -> str:
        return f"g.{name}" if plain_name(name) else f"g[{text_source(name)}]"

    def function(self, name: str) -> str:
        return self.called.function(name)

    def tensor(self, value: schema.Tensor) -> str:
        return self._tensor(value)

    def symbolic(self, value: schema.Symbolic) -> str:
        self.pieces.append(FAKE)
        return symbolic_source(value, self.terms)

    def fake(self, value: schema.Fake) -> str:
        self.pieces.append(FAKE)
        return fake_source(value, self.terms)

    def scalar(self, value: schema.Value) -> str:
        if isinstance(value, schema.Generator):
            self.pieces.append(GENERATOR)
        return super().scalar(value)

    def noticed(self, value: schema.Noticed) -> str:
        raise cannot_write(value)

    def graph(self, value: schema.Graph) -> str:
        return f"{self.graphs[id(value)]}(m)"

    def module(self, value: schema.Module) -> str:
        self.pieces.append(MODULES)
        if modules.check(value) is not getattr(torch.nn, value.type, None):
            raise cannot_write(schema.Noticed(value.type, "it is not a module of torch.nn"))
        return call_source(
            "torch_module",
            f"torch.nn.{value.type}",
            attributes=self._entries(value.attributes),
            parameters=self._entries(value.parameters),
            buffers=self._entries(value.buffers),
            children=self._entries(value.children),
            transient=items_source(map(text_source, value.transient), "()") if value.transient else None,
        )

    def _entries(self, entries: tuple[schema.Entry, ...]) -> str | None:
        pairs = (f"{text_source(entry.name)}: {self.value(entry.value)}" for entry in entries)
        return items_source(pairs, "{}") if entries else None


def cannot_write(value: schema.Noticed) -> CannotHold:
    """The error for what a case could only notice, and a script would need."""
    return CannotHold(
        f"the graph needs {value.type}, which is not in the case",
        cause=value.reason or "it cannot be held as data",
        remedy="run the user's own program instead; the case keeps everything else (`sleuth show`)",
    )


def write_graphs(page: Page, top: schema.Graph, spelling: GraphSpelling, *, described: bool) -> None:
    """A function for each graph, the inner ones first. `described`: inner ones say what they are called with."""
    taken: set[str] = set()
    for path, one in graphs_in(top, ""):
        if id(one) in spelling.graphs:
            continue
        name = _unique("graph" if one is top else f"graph_{path}", taken)
        spelling.graphs[id(one)] = name
        page.blank(2)
        _write_graph(page, one, name, spelling, described=described and one is not top)


def graphs_in(graph: schema.Graph, path: str) -> Iterator[tuple[str, schema.Graph]]:
    """Every graph with its path, a graph after those that it contains."""
    owned = [(entry.name, entry.value) for entry in graph.attributes]
    given = [(node.name, arg) for node in graph.nodes for arg in (*node.args, *(entry.value for entry in node.kwargs))]
    for name, value in (*owned, *given):
        for one in values_in(value):
            if isinstance(one, schema.Graph):
                inner = name.replace(".", "_")
                yield from graphs_in(one, f"{path}_{inner}" if path else inner)
    yield path, graph


def _unique(wanted: str, taken: set[str]) -> str:
    base = "".join(char if char.isalnum() or char == "_" else "_" for char in wanted)
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _write_graph(page: Page, graph: schema.Graph, name: str, spelling: GraphSpelling, *, described: bool) -> None:
    with page.block(f"def {name}(m):"):
        page.line("g = Builder()")
        before = ""
        for node in graph.nodes:
            line = line_of(node.meta.stack_trace) if node.op not in ("placeholder", "output") else ""
            if line and line != before:
                page.comment(line)
            before = line
            _write_node(page, node, spelling, described=described)
        page.line(f"return {_module(graph, spelling)}")


def _write_node(page: Page, node: schema.Node, spelling: GraphSpelling, *, described: bool) -> None:
    made = node_source(node, spelling)
    if described and node.op == "placeholder":
        joint = "" if made.endswith("()") else ", "
        made = f"{made[:-1]}{joint}val={spelling.value(node.meta.val)})"
    comment = "" if node.op == "output" else shape_of(node.meta.val) or shape_of(node.meta.example)
    page.line(f"{spelling.ref(node.name)} = {made}", comment)
    if notes := list(_notes(node, spelling)):
        page.line(f"note({spelling.ref(node.name)}, {', '.join(notes)})")


def _notes(node: schema.Node, spelling: GraphSpelling) -> Iterator[str]:
    """What a compiler reads from the node's meta and cannot find out by itself, as keywords."""
    if node.meta.bindings:
        paths = (f"{spelling.terms.source(one.symbol)}: {_path(one, spelling)}" for one in node.meta.bindings)
        yield f"val={spelling.value(node.meta.val)}"
        yield f"unbacked_bindings={items_source(paths, '{}')}"
    for entry in node.meta.more:
        if not plain_name(entry.name) or entry.name in PEOPLE_ONLY or entry.name.endswith("_stack"):
            continue
        if entry.name == "recompute" and entry.value in _POLICIES:
            spelling.called.modules.add("torch.utils.checkpoint")
            yield f"recompute=torch.utils.checkpoint.CheckpointPolicy.{entry.value}"
        elif can_be_said(entry.value, fakes=entry.name == "eager_input_vals"):
            yield f"{entry.name}={spelling.value(entry.value)}"


def _path(binding: schema.Binding, spelling: GraphSpelling) -> str:
    steps = []
    for step in binding.path:
        name = _STEPS[step.how]
        home = "torch.utils._pytree" if step.how in ("index", "key") else "torch.fx.experimental.symbolic_shapes"
        spelling.called.modules.add(f"from {home} import {name}")
        steps.append(f"{name}()" if step.how == "convert" else f"{name}({spelling.value(step.what)})")
    return items_source(steps, "()")


def can_be_said(value: schema.Value, *, fakes: bool = False) -> bool:
    """Whether a value can be written as plain source: nothing that was only noticed, no tensors, `fakes` if wanted."""
    match value:
        case schema.Fake(layout="strided") | schema.Symbolic() if fakes:
            return True
        case schema.Fake() | schema.Noticed() | schema.Graph() | schema.Symbolic() | schema.Tensor() | schema.Ref():
            return False
        case schema.Module() | schema.Generator():
            return False
        case schema.List(items) | schema.Tuple(items) | schema.Size(items) | schema.Set(items):
            return all(can_be_said(item, fakes=fakes) for item in items)
        case schema.Dict(items):
            return all(can_be_said(one, fakes=fakes) for pair in items for one in pair)
        case schema.Slice(start, stop, step) | schema.Range(start, stop, step):
            return all(can_be_said(one, fakes=fakes) for one in (start, stop, step))
    return True


def node_source(node: schema.Node, spelling: GraphSpelling) -> str:
    """What makes the node, without its name."""
    args = [spelling.value(arg) for arg in node.args]
    kwargs = [_keyword(entry, spelling) for entry in node.kwargs]
    match node.op:
        case "placeholder":
            named = [] if node.target == node.name and not args else [text_source(node.target)]
            return call_source("placeholder", *named, *args)
        case "get_attr":
            return call_source("attribute", text_source(node.target))
        case "call_function":
            if node.target == "builtins.getattr" and (len(node.args) < 2 or node.args[1] not in targets.PROPERTIES):
                raise cannot_write(schema.Noticed("getattr", "it may only ask for a property of a tensor"))
            return call_source("call", spelling.function(node.target), *args, *kwargs)
        case "call_method":
            return call_source("method", text_source(targets.method(node.target)), *args, *kwargs)
        case "call_module":
            return call_source("module", text_source(node.target), *args, *kwargs)
        case "output":
            return call_source("output", *args)


def _keyword(entry: schema.Entry, spelling: GraphSpelling) -> str:
    value = spelling.value(entry.value)
    return f"{entry.name}={value}" if plain_name(entry.name) else f"**{{{text_source(entry.name)}: {value}}}"


def _module(graph: schema.Graph, spelling: GraphSpelling) -> str:
    attributes = [f"{text_source(entry.name)}: {spelling.value(entry.value)}" for entry in graph.attributes]
    meta = [
        f"{text_source(entry.name)}: {spelling.value(entry.value)}"
        for entry in graph.meta
        if entry.name not in _OF_DYNAMO and can_be_said(entry.value)
    ]
    arguments = []
    if graph.name != "GraphModule" and plain_name(graph.name):
        arguments.append(text_source(graph.name))
    if attributes:
        arguments.append("attributes=" + items_source(attributes, "{}"))
    if meta:
        arguments.append("meta=" + items_source(meta, "{}"))
    return call_source("finished", "g", *arguments)

"""FX graphs as data, and back: node by node, nothing traced, nothing of the case's own executed.

    GraphWriter(blobs)          .write(gm) → schema.Graph; keeps the storages and symbols that it met on the way
    GraphReader(case, blobs)    .read() → GraphModule with the same nodes, names and meta, nested graphs included

A graph is read twice over: first its nodes, from the closed table of `targets`; then, in `fakes`, what each node
produces. Nothing of the user's is imported or run for it.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import names, schema
from torchsleuth.case.graphs import symbols, targets
from torchsleuth.case.graphs.fakes import EXAMPLE, VAL, FakeReader, FakeWriter, rebuild_vals
from torchsleuth.case.graphs.meta import MetaReader, MetaWriter, add_tensor_meta, is_noticed
from torchsleuth.case.graphs.values import ValueReader, ValueWriter
from torchsleuth.case.plain import printable
from torchsleuth.case.storages.tensors import TensorReader, TensorWriter
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold, CaseError, in_words

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs

_DEEPEST = 32
"""How deep graphs may be nested in each other."""


# ---- writing ---------------------------------------------------------------------------------------------


class GraphWriter:
    """Turns graph modules into data. One writer is for one case: all of its tensors and symbols go together."""

    def __init__(self, blobs: Blobs) -> None:
        self.tensors = TensorWriter(blobs)
        self.fakes = FakeWriter()
        self.values = ValueWriter(self.tensors, self.fakes, self.write)
        self._meta = MetaWriter(self.values.encode)
        self._open: list[fx.GraphModule] = []

    def write(self, gm: fx.GraphModule) -> schema.Graph:
        """The graph and everything it owns."""
        if any(each is gm for each in self._open) or len(self._open) >= _DEEPEST:
            raise CannotHold(
                "the graph contains itself, or is nested too deep",
                cause=f"graphs may be nested {_DEEPEST} deep",
                remedy="report this: no compiler is known to make such graphs",
            )
        self._open.append(gm)
        try:
            return schema.Graph(
                tuple(self._node(node) for node in gm.graph.nodes),
                tuple(self._attribute(gm, name) for name in _attribute_names(gm.graph)),
                printable(type(gm).__name__),
                torch_compat.takes_nested_values(gm.graph),
                tuple(
                    schema.Entry(str(key), written)
                    for key, item in gm.meta.items()
                    if not is_noticed(written := self.values.encode(item))
                ),
            )
        finally:
            self._open.pop()

    def storages(self) -> tuple[schema.Storage, ...]:
        """The memory under every tensor that was met."""
        return self.tensors.storages

    def symbols(self) -> schema.Symbols:
        """What is known of every symbol that was met."""
        if self.fakes.shape_env is None:
            return schema.Symbols()
        return symbols.record_symbols(self.fakes.shape_env, self.fakes.used)

    def _node(self, node: fx.Node) -> schema.Node:
        return schema.Node(
            node.name,
            node.op,  # type: ignore[arg-type]
            targets.target_name(node.target) if node.op == "call_function" else str(node.target),
            tuple(self.values.argument(argument) for argument in node.args),
            tuple(schema.Entry(name, self.values.argument(item)) for name, item in node.kwargs.items()),
            self._meta.encode(node.meta),
        )

    def _attribute(self, gm: fx.GraphModule, name: str) -> schema.Entry:
        found: Any = gm
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError as error:
            return schema.Entry(
                name, schema.Noticed("missing", "the graph asks for it, and its module has none", str(error))
            )
        return schema.Entry(name, self.values.encode(found))


def _attribute_names(graph: fx.Graph) -> list[str]:
    """What the graph asks its module for, each once, in order."""
    return list(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")))


# ---- reading ---------------------------------------------------------------------------------------------


class GraphReader:
    """Makes the graph of a case again, and whatever else in it refers to the same tensors and symbols."""

    def __init__(
        self,
        case: schema.Case,
        blobs: Blobs,
        *,
        file: str = "",
        own: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        """`own`: functions of the user's that the caller has and trusts, by what the graph calls them."""
        self._case = case
        self._file = file
        self._own = own
        self.tensors = TensorReader(blobs, case.storages, file=file)
        with self._only_case_errors("symbols"):
            self.fakes = FakeReader(case.symbols, file)
        self.values = ValueReader(self.tensors, self.fakes, self._read, file)
        self._meta = MetaReader(self.values.decode, self.fakes.environment.symbols)
        self._depth = 0

    def read(self) -> fx.GraphModule:
        """The graph module, every node with its meta."""
        with self._only_case_errors("graph"):
            return self._read(self._case.graph, "graph")

    def inputs(self, read: Callable[[int], None] | None = None) -> list[Any]:
        """What the graph was called with: real tensors, numbers. `read` is told how many there are so far."""
        found = []
        with self._only_case_errors("inputs"):
            for at, value in enumerate(self._case.inputs):
                found.append(self.values.decode(value, f"inputs[{at}]"))
                if read is not None:
                    read(at + 1)
        return found

    def examples(self, gm: fx.GraphModule) -> list[Any]:
        """What the compiler of the graph was given: as recorded, or what the graph says of its placeholders."""
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        found = [node.meta.get(VAL, node.meta.get(EXAMPLE)) for node in placeholders]
        if self._case.examples is not None:
            with self._only_case_errors("examples"):
                found = [self.values.decode(value, f"examples[{at}]") for at, value in enumerate(self._case.examples)]
        for node, value in zip(placeholders, found, strict=False):
            if isinstance(value, torch.Tensor) and (number := _number_in(node)) is not None:
                torch_compat.know_item(value, number)
        return found

    def _read(self, record: schema.Graph, field: str) -> fx.GraphModule:
        if self._depth >= _DEEPEST:
            raise self._bad(f"graphs are nested more than {_DEEPEST} deep", field)
        self._depth += 1
        try:
            attributes = {
                entry.name: self.values.decode(entry.value, f"{field}.attributes.{entry.name}")
                for entry in record.attributes
            }
            graph = self._nodes(record, field, attributes)
            gm = self._module(attributes, graph, record.name, field)
            gm.meta.update({e.name: self.values.decode(e.value, f"{field}.meta.{e.name}") for e in record.meta})
        finally:
            self._depth -= 1
        rebuild_vals(gm, record, self.fakes, self.values.decode, field)
        for node, written in zip(gm.graph.nodes, record.nodes, strict=True):
            if written.meta.tensor_meta:
                add_tensor_meta(node)
        return gm

    def _module(self, attributes: dict[str, Any], graph: fx.Graph, name: str, field: str) -> fx.GraphModule:
        try:
            return fx.GraphModule(_root(attributes), graph, name if name.isidentifier() else "GraphModule")
        except Exception as error:  # FX writes the graph as Python, and may stumble over anything on the way
            raise self._bad(f"FX cannot write it as code: {in_words(error)}", field) from error

    def _nodes(self, record: schema.Graph, field: str, attributes: Mapping[str, Any]) -> fx.Graph:
        graph = fx.Graph()
        nodes: dict[str, fx.Node] = {}
        for number, written in enumerate(record.nodes):
            where = f"{field}.nodes[{number}]"
            if written.name in nodes or not written.name.isidentifier():
                raise self._bad(f"{written.name!r} is no name for a node, or is one already", where)
            node = graph.create_node(
                written.op,
                self._target(written, f"{where}.target", attributes),
                tuple(self.values.argument(a, f"{where}.args[{at}]", nodes) for at, a in enumerate(written.args)),
                self._kwargs(written, where, nodes),
                written.name,
            )
            node.name = written.name
            node.meta = self._meta.decode(written.meta, f"{where}.meta")
            nodes[written.name] = node
        if [number for number, node in enumerate(record.nodes) if node.op == "output"] != [len(record.nodes) - 1]:
            raise self._bad("the output is not the last node, and that alone", f"{field}.nodes")
        return graph

    def _kwargs(self, node: schema.Node, where: str, nodes: Mapping[str, fx.Node]) -> dict[str, Any]:
        found = {}
        for entry in node.kwargs:
            if not entry.name.isidentifier() or keyword.iskeyword(entry.name):
                raise self._bad(f"{entry.name!r} is no name for an argument", f"{where}.kwargs")
            found[entry.name] = self.values.argument(entry.value, f"{where}.kwargs.{entry.name}", nodes)
        return found

    def _target(self, node: schema.Node, field: str, attributes: Mapping[str, Any]) -> Any:
        match node.op:
            case "call_function":
                if node.target == "builtins.getattr" and not _asks_for_property(node):
                    raise self._bad("getattr may only ask for a property of a tensor", field)
                if node.target in self._own:
                    return self._own[node.target]
                return targets.resolve(node.target, file=self._file, field=field)
            case "call_method":
                return targets.method(node.target, file=self._file, field=field)
            case "get_attr" | "call_module":
                if node.target not in attributes or not names.is_attribute_path(node.target):
                    raise self._bad(f"the graph has no attribute {node.target!r}", field)
                if node.op == "call_module" and not isinstance(attributes[node.target], torch.nn.Module):
                    raise self._bad(f"{node.target!r} is not a module", field)
            case "placeholder":
                if not names.is_placeholder(node.target):
                    raise self._bad(f"{node.target!r} is no name for an input", field)
        return node.target

    @contextmanager
    def _only_case_errors(self, field: str) -> Iterator[None]:
        """Whatever torch makes of nonsense, it is the case that is at fault."""
        try:
            yield
        except (CaseError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise self._bad(f"torch refuses a part of it: {in_words(error)}", field) from error

    def _bad(self, cause: str, field: str) -> BadCase:
        return BadCase(
            "the graph is not one that can be made",
            cause=cause,
            remedy=GET_IT_AGAIN,
            file=self._file,
            field=field,
        )


def _number_in(placeholder: fx.Node) -> Any:
    """The symbol for the number in an input that is a number in the user's program; None if it is none."""
    for user in placeholder.users:
        if user.target in ("item", torch.ops.aten.item.default) and user.args == (placeholder,):
            number = user.meta.get(VAL, user.meta.get(EXAMPLE))
            if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return number
    return None


def _root(attributes: Mapping[str, Any]) -> torch.nn.Module:
    """A module with the attributes, each under its dotted name. What lies in a module of the case is that module's."""
    root = torch.nn.Module()
    for path in sorted(attributes, key=lambda path: path.count(".")):
        *parents, name = path.split(".")
        home = root
        for parent in parents:
            if not hasattr(home, parent):
                home.add_module(parent, torch.nn.Module())
            home = getattr(home, parent)
        value = attributes[path]
        if hasattr(home, name):
            continue
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            home.register_buffer(name, value)
        else:
            setattr(home, name, value)
    return root


def _asks_for_property(node: schema.Node) -> bool:
    return len(node.args) in (2, 3) and node.args[1] in targets.PROPERTIES

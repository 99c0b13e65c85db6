"""What every node of a case produces, worked out anew from its inputs.

    propagated(case, blobs)             the same case, each node with what it does produce; None if it cannot be
    propagated(case, blobs, repair)     the same, where arguments may have to follow: `repair` says how they might

A pass changes inputs (`inputs`), arguments or operators, and what the nodes after them produce changes with them. Here
the graph runs once on fakes: no values, no user code, no random numbers. What an operator refuses is no legal case.

Symbols stay the symbols they were. A candidate that makes one a number, or that needs a new one, is refused as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case.graphs.fakes import EXAMPLE, VAL
from torchsleuth.case.graphs.graph import GraphReader, GraphWriter
from torchsleuth.case.graphs.meta import is_noticed
from torchsleuth.case.schema import (
    Case,
    Dict,
    Entry,
    Fake,
    Graph,
    List,
    Meta,
    Node,
    Ref,
    State,
    Symbolic,
    Tuple,
    Value,
)
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.surroundings.state import restored
from torchsleuth.config import After
from torchsleuth.reduce.graphs import is_call, map_values, name_of, placeholders, produced, refs_of, replace
from torchsleuth.reduce.sizes import symbols_of
from torchsleuth.reduce.unbacked import Refused, Unbacked

_EAGER_INPUTS: Final = "eager_input_vals"
"""What the arguments of a node were in eager: Inductor gives some operators exactly those strides."""
_ITEM: Final = frozenset({"item", "_local_scalar_dense"})

Repair: TypeAlias = Callable[[Node, Mapping[str, Node], Mapping[str, Value]], Iterable[Node]]
"""(a node, the nodes of its graph as they were, what those before it produce now) → what the node could be, the best
first. The first that runs, and gives as many results as the node did and none that is empty, is taken."""


def propagated(case: Case, blobs: Blobs, repair: Repair | None = None) -> Case | None:
    """The case with what every node does produce. None if it is no legal case: an operator refuses its arguments."""
    try:
        return _Propagation(case, blobs, repair).case()
    except Exception:  # noqa: BLE001 - whatever an operator says of arguments that it cannot take
        return None


# ---- running a graph on fakes ------------------------------------------------------------------------------


class _Propagation:
    """One run of a case's graph."""

    def __init__(self, case: Case, blobs: Blobs, repair: Repair | None = None) -> None:
        self._case = case
        self.repair = repair
        self.reader = GraphReader(replace(case, graph=_bare(case.graph)), blobs)
        self.writer = GraphWriter(blobs)
        self.names = Unbacked(case)
        self._inputs = {id(node) for node in placeholders(case.graph)}
        self._entered: list[Any] = []

    def case(self) -> Case:
        """The case as it is now."""
        case = self._case
        gm = self.reader.read()
        shape_env = self.reader.fakes.environment.shape_env
        before = dict(shape_env.replacements)
        run = _Run(gm, case.graph, self)
        given = [self._given(node, value) for node, value in zip(_inputs(gm), case.inputs, strict=True)]
        with self._surroundings(shape_env):
            run.run(*given, enable_io_processing=False)
        if any(before.get(symbol) != found for symbol, found in shape_env.replacements.items()):
            raise Refused("a symbol has become something else")
        graph = run.written()
        examples = None
        if case.examples is not None:
            decoded = self.reader.examples(gm)
            examples = tuple(map(self._described, case.examples, decoded))
        return replace(case, graph=graph, examples=examples)

    def _given(self, node: fx.Node, value: Value) -> Any:
        """What stands for an input: what the graph says of it, or else the fake of what it is called with."""
        for key in (VAL, EXAMPLE):
            if node.meta.get(key) is not None:
                return node.meta[key]
        found = self.reader.values.decode(value, "inputs")
        return torch_compat.as_fake(self.reader.fakes.mode, found) if isinstance(found, torch.Tensor) else found

    @contextmanager
    def _surroundings(self, shape_env: Any) -> Iterator[None]:
        """As the case has it, as far as types depend on it: autocast, gradients after Dynamo, the default dtype."""
        state = State(grad=False)
        if self._case.compiler.after is not After.AOT:
            fields = ("grad", "inference", "autocast", "autocast_cache", "default_dtype", "default_device")
            state = replace(state, **{field: getattr(self._case.state, field) for field in fields})
        with ExitStack() as stack:
            stack.enter_context(torch_compat.quiet_fakes())
            stack.enter_context(torch_compat.transforms_left())
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(restored(state))
            stack.enter_context(self.reader.fakes.mode)
            stack.enter_context(shape_env.ignore_fresh_unbacked_symbols())
            stack.callback(self._leave)
            yield

    def noted(self, node: fx.Node, result: Any) -> None:
        """Remember what a graph has entered, so that it is left whatever happens."""
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            self._entered.append(result)
        elif name == "_exit_autocast" and self._entered:
            self._entered.pop()

    def _leave(self) -> None:
        while self._entered:
            self._entered.pop().__exit__(None, None, None)

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a constant of the graph."""
        return torch_compat.as_fake(self.reader.fakes.mode, tensor)

    def _described(self, record: Value, value: Any) -> Value:
        """The record of what is given, with the numbers of memory that are told apart here."""
        found = self.writer.values.encode(value)
        if isinstance(record, Fake) and isinstance(found, Fake):
            return replace(record, memory=found.memory)
        return record

    def encoded(self, record: Node, value: Any) -> tuple[Any, Value]:
        """What a node has produced, and its description: with the symbols that it had before."""
        if id(record) in self._inputs:
            return value, self._described(produced(record), value)
        found = self.writer.values.encode(value)
        symbols = set(symbols_of(found)) - self.names.known
        if not symbols:
            return value, found
        renamed = self.names.renamed(found, symbols, record.meta.bindings)
        return self.reader.values.decode(renamed, record.name), renamed


class _Run(fx.Interpreter):
    """Runs one graph, and writes down what each node produces. Graphs nested in it are run by their operators."""

    def __init__(self, gm: fx.GraphModule, record: Graph, whole: _Propagation) -> None:
        super().__init__(gm, graph=gm.graph)
        self.extra_traceback = False
        self._record = record
        self._nodes = {node.name: node for node in record.nodes}
        self._whole = whole
        self._found: dict[str, Value] = {}
        self._taken: dict[str, Node] = {}
        self._eager: dict[str, Value] = {}
        self._inner: dict[str, _Run] = {}
        for entry in record.attributes:
            if isinstance(entry.value, Graph):
                inner = gm.get_submodule(entry.name)
                assert isinstance(inner, fx.GraphModule)
                self._inner[entry.name] = made = _Run(inner, entry.value, whole)
                inner.graph = made.shell()

    def shell(self) -> fx.Graph:
        """A graph that is run here, whoever runs it: some operators call a nested graph, others walk over its nodes."""
        graph = fx.Graph()
        given = tuple(graph.placeholder(f"given_{place}") for place, _ in enumerate(placeholders(self._record)))
        graph.output(graph.call_function(self._run_here, given))
        return graph

    def _run_here(self, *args: Any) -> Any:
        return self.run(*args, enable_io_processing=False)

    def run_node(self, node: fx.Node) -> Any:
        record = self._nodes[node.name]
        if self._whole.repair is None or not is_call(record):
            return self._one(node, record)
        why: Exception = Refused(f"there is nothing that {node.name} could be")
        for candidate in self._whole.repair(record, self._nodes, self._found):
            try:
                result = self._changed(node, record, candidate)
            except Exception as error:  # noqa: BLE001 - as above
                why = error
            else:
                self._taken[node.name] = candidate
                return result
        raise why

    def _changed(self, node: fx.Node, record: Node, candidate: Node) -> Any:
        """What a node produces that is called in another way than it was."""
        if candidate is not record:
            argument, known = self._whole.reader.values.argument, {one.name: one for one in self.env}
            node.args = tuple(argument(value, node.name, known) for value in candidate.args)
            node.kwargs = {entry.name: argument(entry.value, node.name, known) for entry in candidate.kwargs}
        result = self._one(node, record)
        if not _is_of_the_kind(self._found.get(node.name), produced(record)):
            raise Refused(f"{node.name} gives something else")
        return result

    def _one(self, node: fx.Node, record: Node) -> Any:
        known = _number_in_input(record)
        result = super().run_node(node) if known is None else self._whole.reader.values.decode(known, node.name)
        self._whole.noted(node, result)
        if isinstance(result, torch.nn.Module):
            return result
        result, found = self._whole.encoded(record, result)
        if is_noticed(found):
            if produced(record) is not None:
                raise Refused(f"what {node.name} produces cannot be told any more")
            return result
        self._found[node.name] = found
        if any(entry.name == _EAGER_INPUTS for entry in record.meta.more):
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            self._eager[node.name] = self._whole.writer.values.encode((tuple(args), dict(kwargs)))
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        return self._whole.fake_of(found) if isinstance(found, torch.Tensor) else found

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        owned = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes = {name: self._whole.fake_of(tensor) for name, tensor in owned.items()}
        return torch.func.functional_call(module, fakes, args, kwargs)

    # ---- writing -------------------------------------------------------------------------------------------

    def written(self) -> Graph:
        """The graph with what its nodes produce."""
        key = "example" if not any(node.meta.val is not None for node in self._record.nodes) else "val"
        nodes = tuple(self._node(node, key) for node in self._record.nodes)
        attributes = tuple(
            Entry(entry.name, self._attribute(entry.name)) if entry.name in self._inner else entry
            for entry in self._record.attributes
        )
        return replace(self._record, nodes=nodes, attributes=attributes)

    def _attribute(self, name: str) -> Graph:
        inner = self._inner[name]
        if inner._found:
            return inner.written()
        if not self._is_called_as_before(name):
            raise Refused(f"{name} is not run by its operator, and what it is given has changed")
        return inner._record

    def _is_called_as_before(self, name: str) -> bool:
        """Whether those who call a nested graph do so with what they did before."""
        its_nodes = {node.name for node in self._record.nodes if node.op == "get_attr" and node.target == name}
        given = {
            argument
            for node in self._record.nodes
            if its_nodes & set(refs_of(node))
            for argument in refs_of(node)
            if argument in self._found
        }
        return all(self._is_as_before(argument) for argument in given)

    def _is_as_before(self, name: str) -> bool:
        return _without_memory(self._found.get(name)) == _without_memory(produced(self._nodes[name]))

    def _node(self, node: Node, key: str) -> Node:
        node = self._taken.get(node.name, node)
        if node.name not in self._found:
            return node
        found, meta = self._found[node.name], node.meta
        keys = [one for one in ("val", "example") if getattr(meta, one) is not None]
        if not keys and not is_call(node):
            return node
        more = tuple(kept for entry in meta.more if (kept := self._more(node, entry)) is not None)
        return replace(node, meta=replace(meta, more=more, **dict.fromkeys(keys or [key], found)))

    def _more(self, node: Node, entry: Entry) -> Entry | None:
        """What else is said of a node, if it is still true."""
        if entry.name == _EAGER_INPUTS:
            old = _without_memory(entry.value)
            if old == _without_memory(self._arguments_before(node)):
                return Entry(entry.name, self._eager[node.name])
            unchanged = all(self._is_as_before(name) for name in refs_of(node))
        else:
            old = _without_memory(entry.value)
            if old == entry.value and not any(True for _ in symbols_of(old)):
                return entry
            unchanged = self._is_as_before(node.name)
        return Entry(entry.name, old) if unchanged else None

    def _arguments_before(self, node: Node) -> Value:
        def known(value: Value) -> Value:
            return produced(self._nodes[value.name]) if isinstance(value, Ref) else value

        kwargs = ((entry.name, map_values(entry.value, known)) for entry in node.kwargs)
        return Tuple((Tuple(tuple(map_values(value, known) for value in node.args)), Dict(tuple(kwargs))))


def _bare(graph: Graph) -> Graph:
    """The graph without what its nodes are known to produce, its inputs apart."""
    nodes = tuple(
        replace(node, meta=Meta(node.meta.val, node.meta.example) if node.op == "placeholder" else Meta())
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, meta=())


def _inputs(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _number_in_input(node: Node) -> Symbolic | None:
    """The symbol of the number in an input, if a node asks for it: torch knows it from there, and not by running."""
    value = produced(node)
    return value if name_of(node) in _ITEM and isinstance(value, Symbolic) and not node.meta.bindings else None


def _is_of_the_kind(found: Value, before: Value) -> bool:
    """Whether it has as many results as before, and none that is empty and was not."""
    match before:
        case Tuple(items) | List(items):
            if not isinstance(found, (Tuple, List)) or len(found.items) != len(items):
                return False
            return all(map(_is_of_the_kind, found.items, items))
        case Fake():
            return isinstance(found, Fake) and (0 not in found.size or 0 in before.size)
    return True


def _without_memory(value: Value) -> Value:
    return map_values(value, lambda leaf: replace(leaf, memory=None) if isinstance(leaf, Fake) else leaf)

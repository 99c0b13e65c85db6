"""Whether a case makes sense: what the types of the schema alone cannot say. Knows neither torch nor files.

`check(case)` goes through everything once and raises `BadCase` at the first thing that is wrong, with the field where
it stands (`graph.nodes[3].args[0]`). A case that passes has graphs whose nodes refer to earlier nodes only, tensors
that lie within their storages, and no name that torch does not have; what it calls is looked up later, in `targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from torchsleuth.case import names, schema
from torchsleuth.case.format.check_values import (
    DOTTED,
    END,
    MAX_DEPTH,
    MAX_ITEMS,
    NO_NODES,
    Fault,
    ValueCheck,
    borrowed,
    device_name,
    dtype,
    generator,
    number,
    require,
    shown,
    within,
)
from torchsleuth.case.format.digests import is_digest
from torchsleuth.case.format.symbol_checks import check_symbols
from torchsleuth.case.format.tensor_checks import check_storage
from torchsleuth.config import After
from torchsleuth.errors import BadCase

MAX_GRAPHS: Final = 32
"""How deep graphs may be nested in one another."""
MAX_THREADS: Final = 4096
"""How many threads a case may ask for."""

_NO_META: Final = schema.Meta()
_OWNERS: Final = (schema.Module, schema.Graph, schema.Noticed)
_TARGETS: Final[dict[str, Callable[[str], bool]]] = {
    "placeholder": names.is_placeholder,
    "get_attr": names.is_attribute_path,
    "call_module": names.is_attribute_path,
    "call_function": names.is_path,
    "call_method": lambda text: names.is_path(text) and "." not in text,
    "output": lambda text: text == "output",
}


def check(case: schema.Case, *, file: str = "") -> None:
    """Raise `BadCase` if any part of the case does not fit the rest, or names what cannot be."""
    try:
        _CaseCheck(case).check()
    except Fault as fault:
        raise BadCase(
            fault.what,
            cause=fault.cause,
            remedy="the file was changed, or made by something else: write the case again, or get it again",
            file=file,
            field=fault.field,
        ) from None
    except RecursionError:
        raise BadCase(
            "it is nested too deep",
            cause="going through its values takes more of Python's stack than there is",
            remedy="call this from less deep in your program, or do not trust the file",
            file=file,
        ) from None


class _CaseCheck:
    """One walk through a case."""

    def __init__(self, case: schema.Case) -> None:
        self._case = case
        self._depth_of_graphs = 0
        known = {each.name for each in case.symbols.symbols}
        replaced = {name for name, _ in case.symbols.replacements}
        unbounded = {each.name for each in case.symbols.symbols if each.lower is None} - replaced
        self._values = ValueCheck(case.storages, known, self._graph, unbounded=unbounded)
        self._arguments = ValueCheck(case.storages, known, self._graph, unbounded=unbounded, arguments=True)

    def check(self) -> None:
        case = self._case
        sizes: dict[str, int] = {}
        for index, storage in enumerate(case.storages):
            within(f"storages[{index}]", _storage, storage, sizes)
        self._values.values("inputs", case.inputs)
        within("graph", self._graph, case.graph, NO_NODES, 0)
        takes = sum(node.op == "placeholder" for node in case.graph.nodes)
        require(takes == len(case.inputs), "inputs", f"there are {len(case.inputs)} inputs", f"the graph takes {takes}")
        if case.examples is not None:
            self._values.values("examples", case.examples)
            given = len(case.examples)
            require(takes == given, "examples", f"there are {given} examples", f"the graph takes {takes}")
        for index, place in enumerate(case.compiler.donated or ()):
            fits = 0 <= place < takes
            require(fits, f"compiler.donated[{index}]", f"there is no input {place}", f"the graph takes {takes}")
        borrowed(check_symbols, case.symbols)
        within("state", self._state, case.state)
        one = case.compiler.after is not After.BOTH
        require(one, "compiler.after", "a case has one graph", "it came after Dynamo or after AOT, not after both")
        self._values.entries("compiler.options", case.compiler.options)
        self._values.entries("compiler.arguments", case.compiler.arguments)
        for index, code in enumerate(case.code):
            within(f"code[{index}]", self._code, code)

    # ---- graphs --------------------------------------------------------------------------------------------

    def _graph(self, graph: schema.Graph, _nodes: Collection[str], depth: int) -> None:
        self._depth_of_graphs += 1
        fits = self._depth_of_graphs <= MAX_GRAPHS
        require(fits, "", "graphs are nested too deep", f"they may be nested {MAX_GRAPHS} deep")
        require(bool(graph.nodes), "nodes", "the graph is empty", "a graph has an output at least")
        require(len(graph.nodes) <= MAX_ITEMS, "nodes", "there are too many", f"a graph has at most {MAX_ITEMS:,}")
        known = self._attributes(graph, depth)
        every = {node.name for node in graph.nodes}
        earlier: set[str] = set()
        last = graph.nodes[-1]
        for index, node in enumerate(graph.nodes):
            try:
                self._node(node, earlier, every, depth)
                if node.op in ("get_attr", "call_module"):
                    found = node.target in known or _has_attribute(graph, node.target)
                    require(found, "target", f"the graph has no attribute {shown(node.target)}", "a node asks for it")
                right = (node.op == "output") == (node is last)
                require(right, "op", f"a {node.op} stands in the wrong place", "a graph ends with its one output")
            except Fault as fault:
                raise fault.under(f"nodes[{index}]") from None
            earlier.add(node.name)
        self._values.entries("meta", graph.meta, every, depth)
        self._depth_of_graphs -= 1

    def _attributes(self, graph: schema.Graph, depth: int) -> set[str]:
        self._values.entries("attributes", graph.attributes, NO_NODES, depth)
        known = {entry.name: entry.value for entry in graph.attributes}
        for index, entry in enumerate(graph.attributes):
            where = f"attributes[{index}].name"
            possible = names.is_attribute_path(entry.name)
            require(possible, where, f"{shown(entry.name)} cannot be the name of an attribute", DOTTED)
            parts = entry.name.split(".")
            around = {".".join(parts[:count]) for count in range(1, len(parts))} & known.keys()
            possible = all(isinstance(known[name], _OWNERS) for name in around)
            require(possible, where, f"{shown(entry.name)} lies within a plain value", "only modules have attributes")
        return set(known)

    def _node(self, node: schema.Node, earlier: set[str], every: set[str], depth: int) -> None:
        name = node.name
        require(
            names.is_identifier(name),
            "name",
            f"a node cannot be called {shown(name)}",
            "its name has to be one that a variable can have",
        )
        require(name not in earlier, "name", f"two nodes are called {shown(name)}", "names of nodes are unique")
        require(_TARGETS[node.op](node.target), "target", f"{shown(node.target)} is no target of a {node.op}", DOTTED)
        if node.op == "call_method":
            require(
                bool(node.args), "args", "a method of nothing is called", "the first argument is what it belongs to"
            )
        if node.op == "output":
            right = len(node.args) == 1 and not node.kwargs
            require(right, "args", f"the output has {len(node.args)} arguments", "it has one, which is the result")
        self._arguments.values("args", node.args, earlier, depth)
        self._arguments.entries("kwargs", node.kwargs, earlier, depth)
        for index, entry in enumerate(node.kwargs):
            where = f"kwargs[{index}].name"
            require(names.is_identifier(entry.name), where, f"no argument is called {shown(entry.name)}", DOTTED)
        if node.meta is not _NO_META:
            within("meta", self._meta, node.meta, every, depth)

    def _meta(self, meta: schema.Meta, nodes: set[str], depth: int) -> None:
        within("val", self._values.value, meta.val, nodes, depth)
        within("example", self._values.value, meta.example, nodes, depth)
        self._values.entries("more", meta.more, nodes, depth)
        within("from_node", _provenance, meta.from_node)
        for index, binding in enumerate(meta.bindings):
            within(f"bindings[{index}].symbol", self._values.term, binding.symbol)

    # ---- the rest ------------------------------------------------------------------------------------------

    def _state(self, state: schema.State) -> None:
        dtype("default_dtype", state.default_dtype)
        device_name("default_device", state.default_device)
        precision = state.matmul_precision
        known = precision in ("highest", "high", "medium")
        require(known, "matmul_precision", f"there is no precision {shown(precision)}", "it is highest, high or medium")
        possible = state.threads is None or 0 < state.threads <= MAX_THREADS
        require(possible, "threads", f"there cannot be {state.threads} threads", f"there are 1 to {MAX_THREADS}")
        for index, autocast in enumerate(state.autocast):
            dtype(f"autocast[{index}].dtype", autocast.dtype)
            device_name(f"autocast[{index}].device", autocast.device)
        for index, rng in enumerate(state.rng):
            within(f"rng[{index}]", generator, rng, NO_NODES, 0)
        for index, (name, value) in enumerate(state.environment):
            possible = bool(name) and "=" not in name and "\0" not in name + value
            require(possible, f"environment[{index}]", f"{shown(name)} cannot be set", "no environment can hold it")
        self._values.entries("flags", state.flags)
        for index, config in enumerate(state.config):
            within(f"config[{index}]", self._config, config)

    def _config(self, config: schema.Config) -> None:
        for field, name in (("module", config.module), ("name", config.name)):
            require(names.is_path(name), field, f"{shown(name)} is no name", DOTTED)
        within("value", self._values.value, config.value)

    def _code(self, code: schema.Code) -> None:
        module = code.module
        require(module is None or names.is_module(module), "module", f"{shown(module)} is no module", DOTTED)
        for field, count in (("line", code.line), ("index", code.index)):
            require(count is None or 0 <= count < END, field, f"{count} is no {field}", "it is not negative")
        self._values.entries("constants", code.constants)


def _has_attribute(graph: schema.Graph, target: str) -> bool:
    """Whether `get_attr` finds it: an attribute, one of a graph or module that is an attribute, or a module around."""
    for entry in graph.attributes:
        if entry.name == target or entry.name.startswith(f"{target}."):
            return True
        if target.startswith(f"{entry.name}."):
            inner = entry.value
            if isinstance(inner, (schema.Module, schema.Noticed)):
                return True
            if isinstance(inner, schema.Graph) and _has_attribute(inner, target[len(entry.name) + 1 :]):
                return True
    return False


def _provenance(origins: tuple[schema.Provenance, ...]) -> None:
    for _ in range(MAX_DEPTH):
        origins = tuple(inner for each in origins for inner in each.origins)
        if not origins:
            return
    raise Fault("it is nested too deep", f"a node may come from another {MAX_DEPTH} times, no more")


def _storage(storage: schema.Storage, sizes: dict[str, int]) -> None:
    borrowed(check_storage, storage, "")
    content = storage.content
    if isinstance(content, schema.Stored):
        right = is_digest(content.digest)
        require(right, "content.digest", f"{shown(content.digest)} is no digest", "it is b3- and 64 hex digits")
        size = sizes.setdefault(content.digest, storage.nbytes)
        require(size == storage.nbytes, "nbytes", f"it has {storage.nbytes} bytes", f"the same ones were {size} before")
    elif isinstance(content, schema.Generated):
        dtype("content.dtype", content.dtype)
        for field in ("low", "high", "seed"):
            number(f"content.{field}", getattr(content, field))

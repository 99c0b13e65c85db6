"""What is known of a node besides its call: the user's lines, where it came from, tags for compilers.

`val` and `example_value` are read back by `fakes`, since they need the other nodes; everything else is here. Addresses
that torch uses as keys (of modules, of graphs) become small numbers, so that equal graphs are equal data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import fx
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils.checkpoint import CheckpointPolicy

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs import targets
from torchsleuth.case.graphs.expressions import decode_expr, encode_expr
from torchsleuth.case.graphs.fakes import EXAMPLE, VAL
from torchsleuth.case.plain import printable
from torchsleuth.errors import CannotHold, CaseError

_FOLLOWS: Final = frozenset({"desc", "grapharg", "tensor_dict", "creation_timestamp", "tensor_meta", "arg_kwarg_vals"})
"""Keys that are not kept: the tracer's own bookkeeping, of no use after it, or something that follows from `val`."""

_OWN_FIELDS: Final = frozenset(
    {
        VAL,
        EXAMPLE,
        "stack_trace",
        "original_aten",
        "source_fn_stack",
        "nn_module_stack",
        "unbacked_bindings",
        "from_node",
    }
)
_COUNTERS: Final = frozenset({"seq_nr", "ac_graph_id"})
"""Numbers that a process counts on and on. Only their distances mean something."""
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_MOST_ORIGINS: Final = 16
"""How long a chain of origins may be. Passes that copy graphs over and over make them longer, to no use."""


class MetaWriter:
    """Turns the `meta` of nodes into data; `value` writes values."""

    def __init__(self, value: Callable[[object], schema.Value]) -> None:
        self._value = value
        self._keys: dict[str, int] = {}
        self._graphs: dict[int, int] = {}
        self._first: dict[str, int] = {}

    def encode(self, meta: dict[str, Any]) -> schema.Meta:
        more, dropped = self._more(meta)
        known = {key: self._value(meta.get(key)) for key in (VAL, EXAMPLE)}
        for key in [key for key, written in known.items() if is_noticed(written)]:
            known[key] = None
            dropped.append(key)
        return schema.Meta(
            val=known[VAL],
            example=known[EXAMPLE],
            stack_trace=None if meta.get("stack_trace") is None else printable(str(meta["stack_trace"])),
            original_aten=None if meta.get("original_aten") is None else _function(meta["original_aten"]),
            source_fns=_source_fns(meta.get("source_fn_stack")),
            modules=self._modules(meta.get("nn_module_stack")),
            bindings=_bindings(meta.get("unbacked_bindings")),
            from_node=self._origins(meta.get("from_node"), 0),
            tensor_meta="tensor_meta" in meta,
            more=more,
            dropped=tuple(sorted(dropped)),
        )

    def _more(self, meta: dict[str, Any]) -> tuple[tuple[schema.Entry, ...], list[str]]:
        more, dropped = [], []
        for key, item in meta.items():
            if key == "original_aten" and item is None:
                more.append(schema.Entry(key))  # that it is known to have none makes a difference to tracers
            if key in _OWN_FIELDS or key in _FOLLOWS or not isinstance(key, str):
                continue
            if key in _COUNTERS and type(item) is int:
                more.append(schema.Entry(key, item - self._first.setdefault(key, item)))
            elif isinstance(item, CheckpointPolicy):
                more.append(schema.Entry(key, item.name))
            elif key.endswith("nn_module_stack"):
                more.append(schema.Entry(key, self._value([list(each) for each in self._modules(item) or ()])))
            elif key.endswith("source_fn_stack"):
                more.append(schema.Entry(key, self._value([list(each) for each in _source_fns(item) or ()])))
            elif is_noticed(written := self._value(item)):
                dropped.append(key)
            else:
                more.append(schema.Entry(key, written))
        return tuple(more), dropped

    def _modules(self, stack: Any) -> tuple[tuple[str, str, str], ...] | None:
        if not isinstance(stack, dict):
            return None
        found = []
        for key, item in stack.items():
            path, kind = item if isinstance(item, tuple) and len(item) == 2 else (item, "")
            name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
            found.append((self._stable(str(key)), str(path), name))
        return tuple(found)

    def _stable(self, key: str) -> str:
        """The key itself, unless there is an address in it; then a number that tells it from others."""
        digits = "".join(character for character in key if character.isdigit())
        return key if len(digits) < 9 else f"module {self._keys.setdefault(key, len(self._keys))}"

    def _origins(self, sources: Any, depth: int) -> tuple[schema.Provenance, ...]:
        if not isinstance(sources, (list, tuple)) or depth >= _MOST_ORIGINS:
            return ()
        return tuple(
            schema.Provenance(
                source.name,
                printable(_ADDRESS.sub("0x…", source.target)),
                source.pass_name,
                tuple(action.value for action in source.action),
                self._graphs.setdefault(source.graph_id, len(self._graphs)) if source.graph_id >= 0 else -1,
                self._origins(source.from_node, depth + 1),
            )
            for source in sources
            if isinstance(source, NodeSource)
        )


def is_noticed(value: schema.Value) -> bool:
    """Whether there is something in the value that a case cannot hold."""
    match value:
        case schema.Noticed():
            return True
        case schema.Tuple(items) | schema.List(items) | schema.Size(items) | schema.Set(items):
            return any(map(is_noticed, items))
        case schema.Dict(items):
            return any(is_noticed(part) for pair in items for part in pair)
        case schema.Slice(start, stop, step):
            return any(map(is_noticed, (start, stop, step)))
    return False


def _function(function: Any) -> str:
    try:
        return targets.function_name(function)
    except CannotHold:
        return printable(str(getattr(function, "__name__", function)))


def _source_fns(stack: Any) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(stack, (list, tuple)):
        return None
    return tuple((str(name), _source(function)) for name, function in stack)


def _source(function: Any) -> str:
    if isinstance(function, str):
        return printable(function)
    if isinstance(function, type):
        return f"{function.__module__}.{function.__qualname__}"
    return _function(function)


_STEPS: Final = {"SequenceKey": ("index", "idx"), "MappingKey": ("key", "key"), "CallMethodKey": ("method", "name")}
_STEPS_OF_SHAPES: Final = {"DivideByKey": ("divide", "divisor"), "InnerTensorKey": ("inner", "inner_name")}


def _bindings(found: Any) -> tuple[schema.Binding, ...]:
    if not found:
        return ()
    return tuple(
        schema.Binding(encode_expr(symbol), tuple(step for key in path if (step := _step(key)) is not None))
        for symbol, path in found.items()
    )


def _step(key: Any) -> schema.Step | None:
    named = {**_STEPS, **_STEPS_OF_SHAPES}.get(type(key).__name__)
    if named is None:
        return schema.Step("convert", 0) if type(key).__name__ == "ConvertIntKey" else None
    how, attribute = named
    what = getattr(key, attribute)
    return schema.Step(how, what if isinstance(what, (int, str)) else str(what))  # type: ignore[arg-type]


class MetaReader:
    """Turns data into the `meta` of nodes, all but `val` and `example_value`."""

    def __init__(self, value: Callable[[schema.Value, str], Any], symbols: Mapping[str, Any]) -> None:
        self._value = value
        self._symbols = symbols

    def decode(self, record: schema.Meta, field: str) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        if record.stack_trace is not None:
            meta["stack_trace"] = record.stack_trace
        if record.original_aten is not None:
            meta["original_aten"] = _named(record.original_aten)
        if record.source_fns is not None:
            meta["source_fn_stack"] = [(name, _named(function)) for name, function in record.source_fns]
        if record.modules is not None:
            meta["nn_module_stack"] = {key: (path, kind) for key, path, kind in record.modules}
        if record.bindings:
            meta["unbacked_bindings"] = {
                decode_expr(each.symbol, self._symbols, field=field): tuple(map(_key, each.path))
                for each in record.bindings
            }
        if record.from_node:
            meta["from_node"] = [_origin(each) for each in record.from_node]
        for entry in record.more:
            meta[entry.name] = self._more(entry, f"{field}.{entry.name}")
        return meta

    def _more(self, entry: schema.Entry, field: str) -> Any:
        found = self._value(entry.value, field)
        if entry.name == "eager_input_vals":  # compared with arguments of nodes, which FX makes immutable
            return fx.node.map_aggregate(found, lambda leaf: leaf)
        if entry.name == "recompute" and found in CheckpointPolicy.__members__:
            return CheckpointPolicy[found]
        if entry.name.endswith("nn_module_stack") and isinstance(found, list):
            return {each[0]: tuple(each[1:]) for each in found if isinstance(each, list) and each}
        if entry.name.endswith("source_fn_stack") and isinstance(found, list):
            return [(each[0], _named(each[1])) for each in found if isinstance(each, list) and len(each) == 2]
        return found


def _named(name: Any) -> Any:
    """The function of that name if it is in the table; otherwise the name says enough."""
    try:
        return targets.resolve(str(name))
    except CaseError:
        return str(name).rpartition(".")[2]


def _key(step: schema.Step) -> Any:
    what = targets.method(str(step.what)) if step.how == "method" else step.what
    return torch_compat.path_key(step.how, what)


def _origin(record: schema.Provenance) -> NodeSource:
    source = NodeSource(None, record.made_by, [NodeSourceAction(a) for a in record.actions if a in _ACTIONS])
    if record.name or record.target:
        source.node_info = NodeSource.NodeInfo(record.name, record.target, record.graph)
    source.from_node = [_origin(each) for each in record.origins]
    return source


_ACTIONS: Final = frozenset(action.value for action in NodeSourceAction)


def add_tensor_meta(node: fx.Node) -> None:
    """`tensor_meta`, as it follows from the node's `val`."""
    val = node.meta.get(VAL)
    if isinstance(val, torch.Tensor):
        node.meta["tensor_meta"] = torch_compat.tensor_metadata(val)

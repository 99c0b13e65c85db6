"""A graph that lives in this process, as a case, so that the engine can cut it down; and back.

    live = Live(gm, inputs)
    live.case                       its structure: nodes, and what each produces. No bytes of any tensor
    gm, inputs = live.back(case)    a part of it, with the functions, modules and tensors of the original

What an operator that is left out computed becomes an input: those values are taken from one run of the graph on copies
of its inputs, and kept in memory, or, if that is too much, on the disk.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.capture.graphs import without_values
from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.config import After
from torchsleuth.dropin.content_store import ContentStoreReader, ContentStoreWriter
from torchsleuth.dropin.models import clones_like
from torchsleuth.reduce.graphs import leaves_in, placeholders

_VAL, _EXAMPLE = "val", "example_value"


class Intermediates(Protocol):
    """Where the results of nodes are kept."""

    def keep(self, name: str, value: Any) -> None: ...

    def get(self, name: str) -> Any: ...


class InMemory:
    """Each result as a copy: what the graph writes to later does not change it."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def keep(self, name: str, value: Any) -> None:
        self._kept[name] = clones_like([value])[0]

    def get(self, name: str) -> Any:
        return self._kept[name]


class OnDisk:
    """In a content store, under `eager/<node>`. `written`: they are there already, from an earlier time."""

    def __init__(self, folder: str, *, written: bool = False) -> None:
        self._writer = ContentStoreWriter(folder)
        self._reader = ContentStoreReader(folder, cache=False)
        self._written = written
        self._others: dict[str, Any] = {}
        self._asks: dict[str, bool] = {}

    def keep(self, name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            self._others[name] = value
            return
        self._asks[name] = value.requires_grad
        if not self._written:
            self._writer.write_tensor(f"eager/{name}", clone_inputs([value.detach()])[0])

    def get(self, name: str) -> Any:
        if name not in self._asks:
            return self._others[name]
        found = self._reader.read_tensor(f"eager/{name}")
        with torch.enable_grad():  # it was computed, and may be written to
            return found.requires_grad_().clone(memory_format=torch.preserve_format) if self._asks[name] else found


class Live:
    """A graph module with its inputs, and the case that stands for it."""

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        intermediates: Intermediates | None = None,
        *,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._gm = gm
        self._originals = {node.name: node for node in gm.graph.nodes}
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        if len(names) != len(inputs):
            raise AssertionError(f"the graph takes {len(names)} inputs, and {len(inputs)} were given")
        self._inputs = dict(zip(names, inputs, strict=True))
        self._kept: Intermediates = InMemory() if intermediates is None else intermediates
        known = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        _Observer(known, self._kept, progress).run(*clone_inputs(inputs))
        recording = Recording(known, MemoryBlobs())
        described = schema.Compiler(After.AOT, "unknown")
        self.case = recording.case([_without_value(one) for one in inputs], described, state=schema.State())
        self._records = {node.name: node for node in self.case.graph.nodes}

    def back(self, case: schema.Case) -> tuple[fx.GraphModule, list[Any]]:
        """The graph module of a part, and its inputs."""
        graph = fx.Graph()
        made: dict[str, fx.Node] = {}
        for record in case.graph.nodes:
            original = self._originals.get(record.name)
            if record.op == "output":
                node = graph.output(self._returned(record, made))
            elif record.op == "placeholder" or original is None:
                kind = original.type if original is not None and original.op == "placeholder" else None
                node = graph.create_node("placeholder", record.target, name=record.name, type_expr=kind)
            else:
                args, kwargs = self._arguments(record, original, made)
                node = graph.create_node(original.op, original.target, args, kwargs, record.name, original.type)
            node.meta = copy.copy(original.meta) if original is not None else {}
            made[record.name] = node
        values = zip(placeholders(case.graph), case.inputs, strict=True)
        return fx.GraphModule(self._gm, graph), [self._input(record.name, value) for record, value in values]

    def _input(self, name: str, value: schema.Value) -> Any:
        if name in self._inputs:
            return self._inputs[name]
        return self._kept.get(name) if name in self._originals else value  # a symbolic size: its number

    def _arguments(self, record: schema.Node, original: fx.Node, made: dict[str, fx.Node]) -> Any:
        """Those of the original, with whatever stands in the place of each node now."""
        pairs = zip(_leaves(self._records[record.name]), _leaves(record), strict=True)
        now = iter([new for old, new in pairs if isinstance(old, schema.Ref)])

        def standing(_node: fx.Node) -> Any:
            value = next(now)
            return made[value.name] if isinstance(value, schema.Ref) else value

        return fx.map_arg((original.args, original.kwargs), standing)

    def _returned(self, record: schema.Node, made: dict[str, fx.Node]) -> Any:
        def read(value: schema.Value) -> Any:
            match value:
                case schema.Ref(name):
                    return made[name]
                case schema.Tuple(items) | schema.Size(items):
                    return tuple(map(read, items))
                case schema.List(items):
                    return list(map(read, items))
                case schema.Dict(pairs):
                    return {read(key): read(item) for key, item in pairs}
            return value

        return read(record.args[0]) if record.args else None


def _without_value(value: Any) -> Any:
    try:
        return without_values([value])[0]
    except Exception:  # noqa: BLE001 - of a kind that has no fakes: its place is all that is needed
        return None


def _leaves(node: schema.Node) -> Iterator[schema.Value]:
    for value in (*node.args, *(entry.value for entry in node.kwargs)):
        yield from leaves_in(value)


class _Observer(fx.Interpreter):
    """Keeps what each call computes, and what is known of each node, where the graph does not say."""

    def __init__(self, gm: fx.GraphModule, kept: Intermediates, progress: Callable[[], object]) -> None:
        super().__init__(gm)
        self._kept = kept
        self._progress = progress
        self._mode = torch_compat.fake_mode(None)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self._progress()
        if n.op.startswith("call_") and isinstance(result, (torch.Tensor, bool, int, float)):
            self._kept.keep(n.name, result)
        if n.op != "output" and not _is_symbolic(n.meta.get(_VAL, n.meta.get(_EXAMPLE))):
            n.meta.pop(_EXAMPLE, None)
            n.meta.pop(_VAL, None)
            with contextlib.suppress(Exception):  # some kinds of tensors have no fakes: then nothing is known
                n.meta[_VAL] = torch_compat.tree_map(self._fake, result)
        return result

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not torch_compat.is_fake(value):
            return torch_compat.as_fake(self._mode, value)
        return value


def _is_symbolic(value: Any) -> bool:
    """Whether what is known of a node has sizes that are symbols: a run does not tell these."""
    found = False

    def look(one: Any) -> Any:
        nonlocal found
        parts = (*one.shape, *one.stride()) if isinstance(one, torch.Tensor) and one.layout == torch.strided else (one,)
        found = found or any(isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)) for part in parts)
        return one

    torch_compat.tree_map(look, value)
    return found

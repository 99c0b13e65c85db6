"""Making a case: a graph, what it was called with, and the circumstances.

    recording = Recording(gm, store.blobs, example_inputs)                # before the compiler changes the graph
    store.save(recording.case(inputs, Compiler(After.AOT, "inductor")))   # before the call changes the inputs

Inputs may be real (their bytes are kept), fake (a recipe is recorded that makes fitting ones), or numbers.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch import fx

from torchsleuth import __version__, torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs.code import find_code
from torchsleuth.case.graphs.fakes import EXAMPLE
from torchsleuth.case.graphs.graph import GraphWriter
from torchsleuth.case.graphs.meta import is_noticed
from torchsleuth.case.graphs.values import ValueWriter
from torchsleuth.case.plain import encode_plain, notice
from torchsleuth.case.storages.sinks import Limit, number_hint
from torchsleuth.case.storages.uses import asks_for_gradients, limits_of
from torchsleuth.case.surroundings import state as states
from torchsleuth.case.surroundings.machine import machine
from torchsleuth.case.words.listing import frames
from torchsleuth.errors import CannotHold

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs
    from torchsleuth.case.storages.tensors import TensorWriter

_MOST_FRAMES: Final = 50
_WHOSE: Final = {"dynamo": "Dynamo's"}


@dataclass(frozen=True)
class Where:
    """Where a graph stands in the user's program."""

    phase: Any = "inference"
    number: int = 0
    parent: str | None = None

    @property
    def name(self) -> str:
        """What messages call the graph: "forward graph 0"."""
        return f"{_WHOSE.get(self.phase, self.phase)} graph {self.number}"


class Recording:
    """A graph as it is now, to become a case later: compilers change graphs, and real inputs come after them.

    It may become several, with other inputs each time. The constants of the graph have the bytes that they have now;
    where an input shares their memory, those that it has when the case is made.

    `examples` are what the compiler is given: they may have other strides than the graph's placeholders.
    """

    def __init__(self, gm: fx.GraphModule, blobs: Blobs, examples: Sequence[Any] | None = None) -> None:
        self._writer = GraphWriter(blobs)
        self._writer.tensors.gradients = asks_for_gradients(gm)
        with torch_compat.plain_torch():
            self._limits = [tuple(limits_of(node)) for node in gm.graph.nodes if node.op == "placeholder"]
            self._graph = self._writer.write(gm)
            self._examples = None if examples is None else self._described(gm, examples)
            self._symbols = self._writer.symbols()
            self._code = find_code(gm)
        self._aot_name = torch_compat.aot_name()
        self._donated = torch_compat.donated_inputs()

    def case(
        self,
        inputs: Sequence[Any],
        compiler: schema.Compiler,
        *,
        failure: schema.Failure | None = None,
        where: Where = Where(),  # noqa: B008 - immutable
        state: schema.State | None = None,
        stable: bool = False,
    ) -> schema.Case:
        """The case of the graph with these inputs. `stable`: the same bytes wherever and whenever it is recorded."""
        if len(self._limits) != len(inputs):
            raise CannotHold(
                f"the graph takes {len(self._limits)} inputs, and {len(inputs)} were given",
                cause="a case keeps one value for each placeholder of its graph",
                remedy="record the graph together with the inputs that it is called with",
            )
        with torch_compat.plain_torch():
            tensors = self._writer.tensors.fork()
            values = ValueWriter(tensors, self._writer.fakes, _no_graph)
            given = tuple(
                _input(each, limits, tensors, values) for each, limits in zip(inputs, self._limits, strict=True)
            )
        return schema.Case(
            graph=self._graph,
            compiler=msgspec.structs.replace(compiler, donated=self._donated if where.phase == "backward" else None),
            origin=_origin(self._graph, where, self._aot_name, stable),
            inputs=given,
            examples=self._examples,
            storages=tensors.storages,
            symbols=self._symbols,
            state=states.observe(stable=stable) if state is None else state,
            failure=failure,
            code=self._code,
        )

    @property
    def nodes(self) -> int:
        """How many the graph has."""
        return len(self._graph.nodes)

    def begins_at(self) -> str:
        """Where in the user's program the graph begins; "" if that is not known."""
        for node in self._graph.nodes:
            for frame in frames(node.meta.stack_trace)[:1]:
                return f"{frame.file}:{frame.line} {frame.function}"
        return ""

    def frame_of(self, node: str) -> schema.Frame | None:
        """The line of the user's program that made a node of the graph, or the node that it was made from."""
        for one in self._graph.nodes:
            if one.name == node or any(source.name == node for source in one.meta.from_node):
                return next(reversed(frames(one.meta.stack_trace)), None)
        return None

    def _described(self, gm: fx.GraphModule, examples: Sequence[Any]) -> tuple[schema.Value, ...]:
        """What a compiler was given. Dynamo hands on real tensors: of those it is kept what their fakes tell, whose
        sizes may be symbolic."""
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        known = [node.meta.get(EXAMPLE) for node in placeholders]
        if len(known) != len(examples):
            known = [None] * len(examples)
        return tuple(self._example(value, fake) for value, fake in zip(examples, known, strict=True))

    def _example(self, value: Any, known: Any) -> schema.Value:
        if not isinstance(value, torch.Tensor) or torch_compat.is_fake(value):
            return self._writer.values.encode(value)
        return self._writer.fakes.encode(known if torch_compat.is_fake(known) else value)


def _input(value: Any, limits: Iterable[Limit], tensors: TensorWriter, values: ValueWriter) -> schema.Value:
    """What a graph is called with: real values, or such as the real ones might have been."""
    if isinstance(value, torch.Tensor) and torch_compat.is_fake(value):
        return tensors.add_fake(value, limits)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if torch_compat.symbolic_expr(value) is None:
            return notice(value, "it is no number but stands for the lengths of a nested tensor")
        return values.encode(number_hint(value))
    return values.encode(value)


def _no_graph(_gm: fx.GraphModule) -> schema.Graph:
    raise CannotHold(
        "a graph is among the inputs",
        cause="compilers are given graphs as attributes of other graphs, never as inputs",
        remedy="make it an attribute of the graph that calls it",
    )


def arguments(given: Mapping[str, Any]) -> tuple[schema.Entry, ...]:
    """The keyword arguments of a compiler, as far as they are data. Functions that it was handed are left out."""
    found = []
    for name, value in sorted(given.items()):
        written = encode_plain(torch_compat.unboxed(value))
        if not is_noticed(written):
            found.append(schema.Entry(name, written))
    return tuple(found)


# ---- the user's program ----------------------------------------------------------------------------------


def _origin(graph: schema.Graph, where: Where, aot_name: str | None, stable: bool) -> schema.Origin:
    return schema.Origin(
        torch=str(torch.__version__),
        python=platform.python_version(),
        sleuth=__version__,
        platform="" if stable else machine(),
        graph=where.name,
        phase=where.phase,
        number=where.number,
        aot_name=aot_name,
        frames=tuple(_frames(graph.nodes)),
        parent=where.parent,
        created=None if stable else datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _frames(nodes: Iterable[schema.Node]) -> Iterator[schema.Frame]:
    """The lines of the user's program that the graph came from, in the graph's order, each once."""
    seen: set[tuple[str, int]] = set()
    for node in nodes:
        for frame in frames(node.meta.stack_trace)[-1:]:
            if (frame.file, frame.line) not in seen and len(seen) < _MOST_FRAMES:
                seen.add((frame.file, frame.line))
                yield frame

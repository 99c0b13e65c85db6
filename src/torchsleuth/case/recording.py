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
from torchsleuth.case.graphs.graph import GraphWriter
from torchsleuth.case.graphs.meta import is_noticed
from torchsleuth.case.plain import encode_plain
from torchsleuth.case.surroundings import state as states
from torchsleuth.case.words.listing import frames
from torchsleuth.errors import CannotHold

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs

_MOST_FRAMES: Final = 50


@dataclass(frozen=True)
class Where:
    """Where a graph stands in the user's program."""

    phase: Any = "inference"
    number: int = 0
    parent: str | None = None


class Recording:
    """A graph as it is now, to become a case later: compilers change graphs, and real inputs come after them.

    `examples` are what the compiler is given: they may have other strides than the graph's placeholders.
    """

    def __init__(self, gm: fx.GraphModule, blobs: Blobs, examples: Sequence[Any] | None = None) -> None:
        self._writer = GraphWriter(blobs)
        self._placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        with torch_compat.plain_torch():
            self._graph = self._writer.write(gm)
            self._examples = None if examples is None else tuple(map(self._example, examples))
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
        if len(self._placeholders) != len(inputs):
            raise CannotHold(
                f"the graph takes {len(self._placeholders)} inputs, and {len(inputs)} were given",
                cause="a case keeps one value for each placeholder of its graph",
                remedy="record the graph together with the inputs that it is called with",
            )
        with torch_compat.plain_torch():
            values = tuple(map(self._input, inputs, self._placeholders))
        return schema.Case(
            graph=self._graph,
            compiler=msgspec.structs.replace(compiler, donated=self._donated),
            origin=_origin(self._graph, where, self._aot_name, stable),
            inputs=values,
            examples=self._examples,
            storages=self._writer.storages(),
            symbols=self._symbols,
            state=states.observe(stable=stable) if state is None else state,
            failure=failure,
            code=self._code,
        )

    def _example(self, value: Any) -> schema.Value:
        """What a compiler was given. Of a real tensor only what a fake would tell is kept."""
        real = isinstance(value, torch.Tensor) and not torch_compat.is_fake(value)
        return self._writer.fakes.encode(value) if real else self._writer.values.encode(value)

    def _input(self, value: Any, node: fx.Node) -> schema.Value:
        if isinstance(value, torch.Tensor) and torch_compat.is_fake(value):
            return self._writer.tensors.add_fake(value, node)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._writer.fakes.encode_symbolic(value).hint
        return self._writer.values.encode(value)


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
    name = "Dynamo's graph" if where.phase == "dynamo" else f"{where.phase} graph"
    return schema.Origin(
        torch=str(torch.__version__),
        python=platform.python_version(),
        sleuth=__version__,
        platform="" if stable else f"{platform.system()} {platform.machine()}",
        graph=f"{name} {where.number}",
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

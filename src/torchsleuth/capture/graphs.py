"""A graph under watch: what it is called, how it was before the compiler got it, and the cases made of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.capture.held import HeldBlobs
from torchsleuth.case import schema
from torchsleuth.case.recording import Recording, Where
from torchsleuth.case.surroundings import state as states
from torchsleuth.run.checking.reference import reference_of
from torchsleuth.run.synchronising import accelerators_of

if TYPE_CHECKING:
    from torchsleuth.case.storages.blobs import Blobs

_AOT_NAME = re.compile(r"(?:.*__)?(\d+)_(forward|backward|inference|joint)")
_dynamo_graphs = itertools.count()
_graphs = itertools.count()


@dataclass(frozen=True)
class Identity:
    """Which graph of the program it is."""

    where: Where
    frame: str | None = None
    """The frame of the user's program that Dynamo was compiling."""


def identify(phase: str | None, number: int | None = None) -> Identity:
    """Which graph after AOT is being compiled in this thread. What the caller knows better is not asked for."""
    found = _AOT_NAME.fullmatch(torch_compat.aot_name() or "")
    if found is not None:
        phase, number = phase or found[2], int(found[1]) if number is None else number
    return Identity(Where(phase or "inference", number or 0), torch_compat.compiled_frame())


def identify_dynamo() -> Identity:
    return Identity(Where("dynamo", next(_dynamo_graphs)), torch_compat.compiled_frame())


@dataclass
class Graph:
    """One graph: recorded, ready to become a case, and to be run as a reference."""

    identity: Identity
    compiler: schema.Compiler
    recording: Recording
    reference: fx.GraphModule
    blobs: HeldBlobs
    state: schema.State
    """In which it was compiled."""
    parent: Graph | None = None
    """Dynamo's graph, from which it was made."""
    accelerators: tuple[str, ...] = ()
    """The devices besides the CPU on which it computes."""
    sketch: schema.Case | None = None
    """The case that it would be with inputs like those that it was compiled for."""
    examples: Sequence[Any] | None = None
    """What it is being compiled for, while it is."""
    cases: int = field(default=0)
    """How many cases of it were kept."""
    number: int = field(default_factory=_graphs.__next__)
    """Which of the graphs that were watched in this process."""

    @classmethod
    def record(
        cls,
        gm: fx.GraphModule,
        examples: Sequence[Any],
        identity: Identity,
        compiler: schema.Compiler,
        config: tuple[schema.Config, ...],
        parent: Graph | None = None,
        *,
        keeps_sketch: bool = False,
    ) -> Graph:
        """The graph as it is now. `keeps_sketch`: it may become a case when nobody has inputs of it."""
        state = msgspec.structs.replace(states.observe(), config=config)
        blobs = HeldBlobs()
        recording = Recording(gm, blobs, examples)
        return cls(
            identity,
            compiler,
            recording,
            reference_of(gm),
            blobs,
            state,
            parent,
            tuple(accelerators_of(examples)),
            recording.case(without_values(examples), compiler, where=identity.where, state=state)
            if keeps_sketch
            else None,
        )

    @property
    def name(self) -> str:
        return self.identity.where.name

    def state_now(self) -> schema.State:
        """The state of the calling thread. Torch's configuration is what it was when the graph was compiled: by now it
        may be another one."""
        return msgspec.structs.replace(states.observe(), config=self.state.config)

    def case(
        self,
        inputs: Sequence[Any] | None,
        failure: schema.Failure,
        state: schema.State,
        blobs: Blobs,
        *,
        parent: str | None,
        minify: bool,
        history: tuple[schema.Earlier, ...] = (),
    ) -> schema.Case:
        """The graph with these inputs in this state; its tensors are written to `blobs`.

        Without inputs, with such as it was compiled for.
        """
        where = replace(self.identity.where, parent=parent)
        with self.blobs.written_to(blobs):
            if inputs is None and self.sketch is not None:
                case = msgspec.structs.replace(self.sketch, failure=failure, state=state)
            else:
                case = self.recording.case(inputs or (), self.compiler, failure=failure, where=where, state=state)
        origin = msgspec.structs.replace(case.origin, history=history)
        return msgspec.structs.replace(case, origin=origin, todo="minify" if minify else None)


def without_values(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with fakes in the place of real tensors."""
    mode = torch_compat.fake_mode(None)
    return [
        torch_compat.as_fake(mode, each) if isinstance(each, torch.Tensor) and not torch_compat.is_fake(each) else each
        for each in inputs
    ]

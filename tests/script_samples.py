"""Cases for the tests of scripts: small programs, recorded as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.schema import Entry, Node, Ref
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.outcome import Symptom

DYNAMO = schema.Compiler(After.DYNAMO, "eager")
AOT = schema.Compiler(After.AOT, "inductor", arguments=(Entry("is_inference", True),))
PLAIN = schema.State()


FAILURES = {
    "raised": schema.Failure(
        schema.Signature("raised", types=("torch._inductor.exc.InductorError", "builtins.IndexError")),
        message="IndexError: tuple index 3 out of range at 0x7f00\nmore",
    ),
    "mismatched": schema.Failure(schema.Signature("mismatched", symptom=Symptom.VALUE)),
    "crashed": schema.Failure(schema.Signature("crashed", signal=11)),
    "timed out": schema.Failure(schema.Signature("timed out"), message="timed out after 45 s (lowering)"),
}


def recorded(
    program: Any, *inputs: Any, compiler: schema.Compiler = DYNAMO, **changes: Any
) -> tuple[schema.Case, MemoryBlobs]:
    """A case of a program, traced to operators or given as a graph."""
    blobs = MemoryBlobs()
    gm = program if isinstance(program, fx.GraphModule) else make_fx(program)(*inputs)
    case = Recording(gm, blobs).case(list(inputs), compiler, state=PLAIN, stable=True)
    return msgspec.structs.replace(case, **changes), blobs


def placeholders(count: int) -> fx.GraphModule:
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{at}") for at in range(count)]
    graph.output(tuple(nodes))
    return fx.GraphModule({}, graph)


def calling(target: str, *code: schema.Code, **kwargs: schema.Value) -> tuple[schema.Case, MemoryBlobs]:
    case, blobs = recorded(placeholders(1), torch.ones(2))
    x, _ = case.graph.nodes
    entries = tuple(Entry(name, value) for name, value in kwargs.items())
    made = Node("y", "call_function", target, () if kwargs else (Ref("x0"),), entries)
    end = Node("output", "output", "output", (schema.Tuple((Ref("y"),)),))
    return msgspec.structs.replace(case, graph=schema.Graph((x, made, end)), code=code), blobs

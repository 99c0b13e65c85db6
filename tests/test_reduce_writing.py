"""Memory that nobody wrote to is not shown by what a reduction asks about.

Covers: U25
"""

from __future__ import annotations

import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from case_samples import output
from torchsleuth.case.schema import Entry, Fake, Graph, List, Meta, Node, Ref, Value
from torchsleuth.reduce.writing import shows_unwritten, writes_in_place, written_by

X = Node("x", "placeholder", "x", meta=Meta(val=Fake("float32", (2, 3), (3, 1))))
Y = Node("y", "placeholder", "y", meta=Meta(val=Fake("float32", (2, 3), (3, 1))))


def call(name: str, target: str, *args: Value, size: tuple[int, ...] = (2, 3), **kwargs: Value) -> Node:
    entries = tuple(Entry(key, value) for key, value in kwargs.items())
    return Node(name, "call_function", f"torch.ops.{target}", args, entries, Meta(val=Fake("float32", size)))


E = call("e", "aten.empty.memory_format", List((2, 3)))
x, y, e, r = map(Ref, "xyer")


@pytest.mark.parametrize(
    ("nodes", "shows"),
    [
        ([call("r", "aten.sum.default", e, size=())], True),
        ([call("r", "aten.mm.default", e, x)], True),
        ([call("r", "aten.cat.default", List((e, x)))], True),
        ([call("c", "aten.copy_.default", y, e), call("r", "aten.relu.default", y)], True),
        ([call("c", "aten.copy_.default", y, e), call("r", "aten.relu.default", x)], True),
        (
            [
                call("s", "aten.relu.default", e),
                call("c", "aten.fill_.Scalar", e, 1),
                call("r", "aten.neg.default", Ref("s")),
            ],
            True,
        ),
        ([call("r", "aten.add_.Tensor", e, x)], True),
        ([call("r", "aten.masked_fill.Scalar", e, x, 0)], True),
        ([call("r", "aten.bernoulli.default", e)], True),
        ([call("r", "aten.slice_scatter.default", e, x, 0, 0, 1)], False),
        (
            [
                call("h", "aten.neg.default", x, size=(1, 3)),
                call("r", "aten.slice_scatter.default", e, Ref("h"), 0, 0, 1),
            ],
            True,
        ),
        ([call("r", "aten.index_put.default", e, List((y,)), x, True)], True),
        ([call("r", "aten.index_put.default", e, List((y,)), x)], False),
        ([call("r", "aten.fill.Scalar", e, 1)], False),
        ([call("r", "aten.copy.default", e, x)], False),
        ([call("c", "aten.copy_.default", e, x), call("r", "aten.relu.default", e)], False),
        ([call("c", "aten.zero_.default", e), call("r", "aten.add_.Tensor", Ref("c"), x)], False),
        ([call("r", "aten.bernoulli.p", e, 0.5)], False),
        ([call("r", "aten.bernoulli_.float", e)], False),
        ([call("s", "aten.topk.values", x, 3, values=e, indices=y), call("r", "aten.relu.default", e)], False),
        ([call("r", "aten.full_like.default", e, 1)], False),
        ([call("r", "aten.mm.out", x, y, out=e)], False),
        ([call("r", "aten.addmm.default", e, x, y, beta=0)], False),
        ([call("r", "aten.addmm.default", e, x, y)], True),
        ([call("s", "aten.sum.default", e), call("r", "aten.relu.default", x)], False),
    ],
)
def test_chance_is_handed_on_until_it_is_overwritten(nodes: list[Node], shows: bool) -> None:
    assert shows_unwritten(Graph((X, Y, E, *nodes, output("r")))) is shows


def halves(a: torch.Tensor, b: torch.Tensor, *, both: bool = True) -> torch.Tensor:
    whole = torch.empty(4, 3)
    whole[:2] = a
    if both:
        whole[2:].copy_(b)
    return whole * 2


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_what_is_written_piece_by_piece_is_written_in_the_end(functional: bool, both: bool) -> None:
    """As programs do it, in place; and as it looks after functionalization."""

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return halves(a, b, both=both)

    traced = torch.func.functionalize(program, remove="mutations_and_views") if functional else program
    gm = make_fx(traced, tracing_mode="fake")(torch.ones(2, 3), torch.ones(2, 3))
    assert shows_unwritten(graph_of(gm)) is not both


def graph_of(gm: torch.fx.GraphModule) -> Graph:
    from torchsleuth.case import schema
    from torchsleuth.case.recording import Recording
    from torchsleuth.case.storages.blobs import MemoryBlobs
    from torchsleuth.config import After

    inputs = torch.ones(2, 3), torch.ones(2, 3)
    fakes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    return Recording(gm, MemoryBlobs(), fakes).case(inputs, schema.Compiler(After.AOT, "inductor")).graph


def test_an_operator_writes_to_what_its_schema_says() -> None:
    assert written_by(call("c", "aten.copy_.default", y, x)) == ["y"]
    assert written_by(call("c", "aten.add.out", x, y, out=e)) == ["e"]
    assert written_by(call("c", "aten.add.Tensor", x, y)) == []
    method = Node("m", "call_method", "add_", (y, x))
    assert (writes_in_place(method), written_by(method)) == (True, ["y"])
    assert written_by(Node("m", "call_function", "operator.setitem", (y, 0, x))) == ["y"]


def test_a_large_graph_is_looked_at_in_a_moment() -> None:
    nodes = [call(f"n{i}", "aten.add.Tensor", Ref(f"n{i - 1}") if i else x, y) for i in range(20_000)]
    graph = Graph((X, Y, E, *nodes, output("n19999")))
    began = time.monotonic()
    assert not shows_unwritten(graph)
    assert time.monotonic() - began < 5

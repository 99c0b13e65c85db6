"""Random graphs over a table of sixty-odd operations come back as they were and compute the same bits."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import fx

from round_trip import bitwise
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After

aten = torch.ops.aten
prims = torch.ops.prims

# What an operation takes and gives: f a float matrix, i an integer matrix with values from 0 to 2, b a bool matrix, c a
# complex matrix, s a float without dimensions, n a Python integer, t a tuple of two float matrices.
# (op, target, what it takes, further arguments, keyword arguments, what it gives)
OPERATIONS: tuple[tuple[str, Any, str, tuple[Any, ...], dict[str, Any], str], ...] = (
    ("call_function", aten.add.Tensor, "ff", (), {"alpha": 2}, "f"),
    ("call_function", aten.sub.Tensor, "ff", (), {}, "f"),
    ("call_function", aten.mul.Tensor, "ff", (), {}, "f"),
    ("call_function", aten.div.Tensor_mode, "ff", (), {"rounding_mode": "floor"}, "f"),
    ("call_function", aten.relu.default, "f", (), {}, "f"),
    ("call_function", aten.sigmoid.default, "f", (), {}, "f"),
    ("call_function", aten.tanh.default, "f", (), {}, "f"),
    ("call_function", aten.gelu.default, "f", (), {"approximate": "tanh"}, "f"),
    ("call_function", aten.exp.default, "f", (), {}, "f"),
    ("call_function", aten.clamp.default, "f", (-math.inf, 0.75), {}, "f"),
    ("call_function", aten.pow.Tensor_Scalar, "f", (2,), {}, "f"),
    ("call_function", aten.maximum.default, "ff", (), {}, "f"),
    ("call_function", aten.where.self, "bff", (), {}, "f"),
    ("call_function", aten.masked_fill.Scalar, "fb", (-math.inf,), {}, "f"),
    ("call_function", aten.nan_to_num.default, "f", (math.nan, 3.5, -0.0), {}, "f"),
    ("call_function", aten.cumsum.default, "f", (1,), {}, "f"),
    ("call_function", aten.flip.default, "f", ([0, 1],), {}, "f"),
    ("call_function", aten.roll.default, "f", ([1], [0]), {}, "f"),
    ("call_function", aten.sort.default, "f", (1, True), {}, "t*"),
    ("call_function", aten._softmax.default, "f", (-1, False), {}, "f"),
    ("call_function", aten.index_select.default, "f", (0, "rows"), {}, "f"),
    ("call_function", aten.gather.default, "f", (1, "columns"), {}, "f"),
    ("call_function", aten.index.Tensor, "f", ([None, "columns0"],), {}, "f"),
    ("call_function", aten.slice_scatter.default, "ff", (1, 0, 9223372036854775807, 1), {}, "f"),
    ("call_function", aten._to_copy.default, "i", (), {"dtype": torch.float32}, "f"),
    ("call_function", aten._to_copy.default, "f", (), {"dtype": torch.bool, "layout": torch.strided}, "b"),
    ("call_function", aten.clone.default, "f", (), {"memory_format": torch.contiguous_format}, "f"),
    ("call_function", aten.full_like.default, "f", (-0.0,), {"pin_memory": False}, "f"),
    ("call_function", aten.full.default, "", ([3, 4], 1e30), {"dtype": torch.float32}, "f"),
    ("call_function", aten.arange.start_step, "", (0, 4, 1), {"device": torch.device("cpu")}, None),
    ("call_function", aten.gt.Scalar, "f", (0,), {}, "b"),
    ("call_function", aten.eq.Tensor, "ff", (), {}, "b"),
    ("call_function", aten.logical_and.default, "bb", (), {}, "b"),
    ("call_function", aten.bitwise_not.default, "b", (), {}, "b"),
    ("call_function", aten.isnan.default, "f", (), {}, "b"),
    ("call_function", aten.remainder.Scalar, "i", (3,), {}, "i"),
    ("call_function", aten.minimum.default, "ii", (), {}, "i"),
    ("call_function", aten.argsort.default, "f", (0,), {}, "i"),
    ("call_function", aten.sum.default, "f", (), {}, "s"),
    ("call_function", aten.mean.dim, "f", ([0, 1],), {}, "s"),
    ("call_function", aten.add.Tensor, "fs", (), {}, "f"),
    ("call_function", aten.mul.Tensor, "fn", (), {}, "f"),
    ("call_function", aten.complex.default, "ff", (), {}, "c"),
    ("call_function", aten.mul.Tensor, "c", (complex(-0.0, 2.5),), {}, "c"),
    ("call_function", aten.conj.default, "c", (), {}, "c"),
    ("call_function", aten.real.default, "c", (), {}, "f"),
    ("call_function", aten.abs.default, "c", (), {}, "f"),
    ("call_function", aten.permute.default, "f", ([1, 0],), {}, None),
    ("call_function", aten.expand.default, "s", ([3, 4],), {}, "f"),
    ("call_function", aten.sym_size.int, "f", (1,), {}, "n"),
    ("call_function", prims.convert_element_type.default, "b", (torch.float32,), {}, "f"),
    ("call_function", prims.add.default, "ff", (), {}, "f"),
    ("call_function", operator.add, "ff", (), {}, "f"),
    ("call_function", operator.neg, "f", (), {}, "f"),
    ("call_function", operator.floordiv, "n", (2,), {}, "n"),
    ("call_function", operator.mul, "nn", (), {}, "n"),
    ("call_function", operator.getitem, "f", ((Ellipsis, slice(None, None, 1)),), {}, "f"),
    ("call_function", max, "nn", (), {}, "n"),
    ("call_function", torch.nn.functional.softplus, "f", (), {"beta": 2}, "f"),
    ("call_function", torch.clamp, "f", (), {"min": -1.5}, "f"),
    ("call_function", torch.stack, "[ff]", (), {}, None),
    ("call_function", torch.sym_max, "nn", (), {}, "n"),
    ("call_function", getattr, "f", ("T",), {}, None),
    ("call_method", "add_", "ff", (), {}, "f"),
    ("call_method", "abs", "f", (), {}, "f"),
    ("call_method", "to", "f", (torch.float32,), {}, "f"),
    ("call_method", "size", "f", (0,), {}, "n"),
    ("call_method", "view", "f", (3, 4), {}, None),
)

_INDEXES = {"rows": torch.tensor([2, 0, 1]), "columns": torch.tensor([[0, 1, 2, 3]] * 3), "columns0": torch.arange(4)}


def test_the_table_has_sixty_operations() -> None:
    assert len({(op, str(target), takes) for op, target, takes, *_ in OPERATIONS}) >= 60


@st.composite
def programs(draw: st.DrawFn) -> tuple[fx.GraphModule, list[Any]]:
    """A graph that runs, and inputs for it."""
    graph = fx.Graph()
    pool: dict[str, list[fx.Node]] = {kind: [] for kind in "fibcsn"}
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    inputs: list[Any] = [torch.randn(3, 4, generator=generator) for _ in range(2)]
    inputs += [torch.randint(0, 3, (3, 4), generator=generator), torch.tensor([[True, False] * 2] * 3), 2]
    for number, kind in enumerate("ffibn"):
        pool[kind].append(graph.placeholder(f"x{number}"))
    constants: dict[str, torch.Tensor] = {}
    results: list[fx.Node] = []
    for op, target, takes, further, keywords, gives in draw(
        st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=25)
    ):
        wanted = takes.strip("[]")
        if any(not pool[kind] for kind in wanted):
            continue
        taken: Any = [draw(st.sampled_from(pool[kind])) for kind in wanted]
        args = (*([taken] if takes.startswith("[") else taken), *(_index(graph, constants, each) for each in further))
        node = graph.create_node(op, target, args, keywords)
        if gives == "t*":
            pool["f"].append(graph.call_function(operator.getitem, (node, 0)))
            pool["i"].append(
                graph.call_function(aten.remainder.Scalar, (graph.call_function(operator.getitem, (node, 1)), 3))
            )
        elif gives == "n":
            pool["n"].append(graph.call_function(min, (node, 5)))
        elif gives is None:
            results.append(node)
        else:
            pool[gives].append(node)
    graph.output(tuple(results + [node for nodes in pool.values() for node in nodes]))
    return fx.GraphModule(constants, graph), inputs


def _index(graph: fx.Graph, constants: dict[str, torch.Tensor], argument: Any) -> Any:
    if isinstance(argument, list):
        return [_index(graph, constants, each) for each in argument]
    if not isinstance(argument, str) or argument not in _INDEXES:
        return argument
    constants[argument] = _INDEXES[argument]
    return graph.get_attr(argument)


def _again(gm: fx.GraphModule, inputs: list[Any]) -> tuple[fx.GraphModule, list[Any], schema.Case]:
    blobs = MemoryBlobs()
    case = Recording(gm, blobs).case(inputs, schema.Compiler(After.DYNAMO, "eager"), state=schema.State())
    case = decode(encode(case))
    reader = GraphReader(case, blobs)
    return reader.read(), reader.inputs(), case


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_a_random_graph_comes_back_and_computes_the_same_bits(made: tuple[fx.GraphModule, list[Any]]) -> None:
    """Covers: S10, S21, U18"""
    gm, inputs = made
    again, inputs_again, case = _again(gm, inputs)
    assert bitwise(inputs, inputs_again)
    assert [(node.op, node.name, node.target, str(node.args), str(node.kwargs)) for node in again.graph.nodes] == [
        (node.op, node.name, node.target, str(node.args), str(node.kwargs)) for node in gm.graph.nodes
    ]
    assert bitwise((gm(*inputs), inputs), (again(*inputs_again), inputs_again))
    _, _, case_again = _again(again, inputs_again)
    assert case_again.graph == case.graph


@pytest.mark.parametrize("entry", OPERATIONS, ids=[str(at) for at in range(len(OPERATIONS))])
def test_every_operation_of_the_table_has_a_name_that_finds_it(entry: tuple[Any, ...]) -> None:
    from torchsleuth.case.graphs import targets

    op, target, *_ = entry
    if op == "call_method":
        assert targets.method(target) == target
    else:
        assert targets.resolve(targets.function_name(target)) is target

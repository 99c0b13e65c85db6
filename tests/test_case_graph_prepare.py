"""A case made ready to run: the graph module and its arguments, from data alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.errors import MissingTensor


def prepared(gm: fx.GraphModule, *inputs: Any) -> tuple[fx.GraphModule, list[Any]]:
    """The graph and its arguments, from the bytes of the case."""
    blobs = MemoryBlobs()
    case = Recording(gm, blobs).case(inputs, schema.Compiler(After.AOT, "inductor"), stable=True)
    reader = GraphReader(decode(encode(case)), blobs)
    return reader.read(), reader.inputs()


def program(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight).relu() + torch.tensor([0.5, 1.5])


def test_preparing_gives_a_graph_without_parameters_and_its_arguments() -> None:
    """Covers: S24"""
    weight, x = nn.Parameter(torch.randn(2, 3)), torch.randn(4, 3)
    gm = make_fx(program)(weight, x)
    graph, arguments = prepared(gm, weight, x)
    assert isinstance(graph, fx.GraphModule)
    assert list(graph.parameters()) == []
    assert [type(argument) for argument in arguments] == [nn.Parameter, torch.Tensor]
    assert torch.equal(arguments[0], weight)
    assert torch.equal(arguments[1], x)
    assert torch.equal(graph(*arguments), gm(weight, x))


class Owner(nn.Module):
    """Calls a module as a whole, and uses one of its parameters besides."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) + self.lin.weight


def test_a_graph_that_calls_a_module_has_its_parameters_with_their_values() -> None:
    """Graphs before AOT own modules. Nothing is left out: the parameters are the graph's, as they were.

    Covers: S24
    """
    gm = fx.symbolic_trace(Owner())
    x = torch.randn(3, 3)
    graph, arguments = prepared(gm, x)
    assert {name for name, _ in graph.named_parameters()} == {"lin.weight", "lin.bias"}
    for name, parameter in graph.named_parameters():
        assert torch.equal(parameter, gm.get_parameter(name))
    assert torch.equal(graph(*arguments), gm(x))


def test_preparing_without_the_bytes_of_an_argument_says_that_they_are_missing() -> None:
    """Covers: S24"""
    blobs = MemoryBlobs()
    x = torch.randn(4, 3)
    gm = make_fx(torch.relu)(x)
    case = Recording(gm, blobs).case((x,), schema.Compiler(After.AOT, "inductor"), stable=True)
    reader = GraphReader(case, MemoryBlobs())
    reader.read()
    with pytest.raises(MissingTensor):
        reader.inputs()

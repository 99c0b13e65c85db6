"""Which operator is wrong by itself. The compilers here are stand-ins: they run the graph, but for what is planted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.run.checking import isolating
from torchsleuth.run.checking.isolating import TOGETHER, guilty_op, op_at

aten = torch.ops.aten


def replacing(target: object, wrong: Callable[..., Any], method: str = "") -> isolating.Compile:
    """A compiler that gets one operator wrong."""

    def compile(gm: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if node.target is target or (method and node.target == method):
                node.op, node.target = "call_function", wrong
        gm.recompile()
        return gm

    return compile


def right(gm: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
    return gm


def graph_of(function: Callable[..., Any]) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def wrong_relu(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_min(0) + 1


def test_the_first_operator_that_is_wrong_by_itself_is_found() -> None:
    """Covers: U5"""

    def f(x: torch.Tensor) -> Any:
        y = torch.relu(torch.sin(x) * 2)
        return torch.relu(y) + x, y.max(0)

    found = guilty_op(graph_of(f), [torch.randn(4, 3)], replacing(torch.relu, wrong_relu))
    assert found == ("relu", "relu")


def test_if_each_is_right_by_itself_they_are_wrong_together() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).add_(1)[0]

    assert guilty_op(graph_of(f), [torch.randn(4)], right) == (TOGETHER, None)


def test_operators_that_return_several_tensors_or_write_are_tried_too() -> None:
    def f(x: torch.Tensor) -> Any:
        values, places = torch.max(x, 0)
        x.mul_(2)
        return values + places, x

    def last(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x.max(dim)[0], x.max(dim)[1] * 0 + len(x) - 1

    x = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    kept = x.clone()
    assert guilty_op(graph_of(f), [x], replacing(torch.max, last)) == ("max", "max_1")
    assert guilty_op(graph_of(f), [x], replacing(None, lambda x, _: x + 1, "mul_")) == ("mul_", "mul_")
    assert torch.equal(x, kept)


def test_another_dtype_is_wrong_as_well() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ldexp(x, x)

    halves = [torch.ones(3, dtype=torch.float16)]
    found = guilty_op(graph_of(f), halves, replacing(torch.ldexp, lambda x, y: torch.ldexp(x, y).float()))
    assert found == ("ldexp", "ldexp")


def test_where_something_could_not_be_tried_nothing_is_said_unless_one_is_wrong() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + torch.rand_like(x)

    before = torch.random.get_rng_state()
    assert guilty_op(graph_of(f), [torch.randn(3)], right) is None
    assert guilty_op(graph_of(f), [torch.randn(3)], replacing(torch.relu, wrong_relu)) == ("relu", "relu")
    torch.random.set_rng_state(before)
    guilty_op(graph_of(f), [torch.zeros(3)], right)
    assert torch.equal(before, torch.random.get_rng_state())


def test_calls_without_tensors_and_with_sizes_get_what_eager_computed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(operator.add(x.size(0), 1)).sum() + torch.cat([x, x])[:, None].expand(-1, 2).sum()

    assert guilty_op(graph_of(f), [torch.randn(3)], right) == (TOGETHER, None)
    found = guilty_op(graph_of(f), [torch.randn(3)], replacing(torch.arange, lambda n: torch.arange(n) + 1))
    assert found == ("arange", "arange")


def test_a_compiler_that_fails_or_a_graph_that_is_too_large_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_gm: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("no")

    graph = graph_of(lambda x: torch.relu(x))
    assert guilty_op(graph, [torch.randn(3)], broken) is None
    assert guilty_op(graph, [], right) is None
    monkeypatch.setattr(isolating, "_MOST_BYTES", 4)
    assert guilty_op(graph, [torch.randn(3)], right) is None
    monkeypatch.setattr(isolating, "_MOST_NODES", 2)
    assert guilty_op(graph, [torch.randn(3)], right) is None


@pytest.mark.inductor
def test_inductor_s_planted_bug_is_found_in_a_graph_of_aot_s() -> None:
    """Covers: U5"""
    graph = fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(aten.mul.Tensor, (graph.call_function(aten.log1p.default, (x,)), x))
    graph.output((graph.call_function(aten.relu.default, (both,)),))
    gm = fx.GraphModule({}, graph)
    planted = {"cpp.inject_log1p_bug_TESTING_ONLY": "accuracy", "compile_threads": 1}
    with torch_compat.config_patch("torch._inductor.config", planted):
        found = guilty_op(gm, [torch.rand(9)], torch_compat.inductor_backend(None, {}, None))
    assert found == ("aten.log1p.default", "log1p_default")


def test_what_has_nothing_to_do_with_others_is_to_blame_for_itself() -> None:
    """Nothing has to be compiled to know that."""

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        values, _ = aten.max.dim(y, 0)
        return aten.relu.default(x), values, aten.neg.default(aten.sin.default(z)), x

    graph = graph_of(f)
    assert op_at(graph, "output[0]") == ("aten.relu.default", "relu_default")
    assert op_at(graph, "output[1]") == ("aten.max.dim", "max_dim")
    for path in ("output", "output[2]", "output[3]", "output[4]", "inputs[0]", "", "output.logits"):
        assert op_at(graph, path) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (aten.relu.default(x), aten.exp.default(x)),  # one kernel may compute both
        lambda x: (operator.add(x, 1)[1], x),
        lambda x: (operator.add(x, 1)[x > 0], 1),
        lambda x: (x.sin(), x),
    ],
)
def test_of_what_shares_anything_it_cannot_be_told_without_compiling(function: Callable[..., Any]) -> None:
    graph = graph_of(function)
    (name, *_) = [node.name for node in graph.graph.nodes if node.op.startswith("call_")]
    expected = ("sin", name) if name == "sin" else None  # it is the only one
    assert op_at(graph, "output[0]") == expected


def test_modules_are_no_operators() -> None:
    assert op_at(graph_of(torch.nn.Sequential(torch.nn.Linear(2, 2))), "output") is None


def test_one_that_somebody_else_may_write_to_is_not_told() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = aten.sin.default(x)
        aten.add_.Tensor(y, 1)
        return y

    assert op_at(graph_of(f), "output") is None
    assert op_at(graph_of(lambda x: aten.sin.default(x)), "output") == ("aten.sin.default", "sin_default")

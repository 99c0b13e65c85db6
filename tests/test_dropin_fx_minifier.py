"""The smallest graph for which a function says that it fails: torch's minifier, by the engine's search."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch import make_fx
from hypothesis import given, settings, strategies as st
from torch import fx
from torch._functorch.fx_minifier import minifier as theirs

from torchsleuth.dropin.fx_minifier import dump_state, minifier

Fails = Callable[[fx.GraphModule, Sequence[Any]], Any]


def silent(*_args: Any) -> None:
    """Instead of printing each graph."""


def calls(gm: fx.GraphModule, target: Any) -> bool:
    return any(node.target is target for node in gm.graph.nodes)


def makes_nan(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    if any(torch.isnan(one).any() for one in inputs):
        return False
    return torch.isnan(gm(*inputs)[0]).any()


def with_mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y = y / 3
    x = x + 3
    x = x * y
    return x + y


def with_nan(x: torch.Tensor) -> tuple[torch.Tensor]:
    x = (x * 3 + 5).cos()
    zero = x - x
    return ((zero / zero + 3) * 2,)


def with_pair(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    both = torch.std_mean(a)
    return (both[0] + b * both[1],)


def returning_an_input(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, c = a.sin(), c.cos()
    return a, b, c, a * c


def returns_an_input(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    nodes = list(gm.graph.nodes)
    returned = nodes[-1].args[0]
    return any(node.op == "placeholder" and node in returned for node in nodes)


PROGRAMS: dict[str, tuple[Callable[..., Any], int, Fails, tuple[int, int]]] = {
    "one operator": (with_mul, 2, lambda gm, _: calls(gm, torch.ops.aten.mul.Tensor), (4, 2)),
    "a value": (with_nan, 1, makes_nan, (3, 1)),
    "an input that is returned": (returning_an_input, 3, returns_an_input, (2, 1)),
    "one of several results": (with_pair, 2, lambda gm, _: calls(gm, torch.ops.aten.add.Tensor), (4, 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_answer_is_torch_s(name: str) -> None:
    function, count, fails, size = PROGRAMS[name]
    inputs = [torch.randn(3) for _ in range(count)]
    for search in (minifier, theirs):
        gm, given = search(make_fx(function)(*inputs), inputs, fails, silent)
        assert (len(gm.graph.nodes), len(given)) == size
        assert fails(gm, given)


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(x)
        zero = y - y
        return zero / zero + 3


def test_graphs_that_nobody_has_run_are_taken_as_well() -> None:
    """Nothing is known of their nodes. Methods, modules and operators of Python's stay what they are."""
    gm, given = minifier(fx.symbolic_trace(Module()), [torch.randn(3)], makes_nan, silent)
    assert (len(gm.graph.nodes), len(given)) == (3, 1)
    called = lambda gm, _: any(node.op == "call_module" for node in gm.graph.nodes)  # noqa: E731
    gm, _ = minifier(fx.symbolic_trace(Module()), [torch.randn(3)], called, silent)
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_module", "output"]


def own(x: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    return x * how["times"]


def test_functions_of_the_user_s_own_stay_the_very_same() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.sin, (x,))
    second = graph.call_function(own, (first, {"times": 2, "what": (slice(0, 1), None)}))
    graph.output((graph.call_function(torch.cos, (second,)),))
    gm, given = minifier(fx.GraphModule({}, graph), [torch.randn(3)], lambda gm, _: calls(gm, own), silent)
    node = next(one for one in gm.graph.nodes if one.op == "call_function")
    assert node.target is own
    assert node.args[1] == {"times": 2, "what": (slice(0, 1), None)}
    assert torch.equal(gm(*given)[0], given[0] * 2)


def test_an_operator_in_the_middle_can_go_first() -> None:
    """Torch can cut only what lies together, and ends with eleven operators. Covers: U25"""

    def chain(x: torch.Tensor) -> tuple[torch.Tensor]:
        x = torch.relu(x)
        for _ in range(9):
            x = torch.sin(x)
        return (torch.tanh(x),)

    def both(gm: fx.GraphModule, _inputs: Sequence[Any]) -> bool:
        nodes = list(gm.graph.nodes)
        tanh = [node for node in nodes if node.target is torch.ops.aten.tanh.default]
        return bool(tanh) and any(_leads(node, tanh[0]) for node in nodes if node.target is torch.ops.aten.relu.default)

    inputs = [torch.randn(3)]
    traced = make_fx(chain)(*inputs)
    gm, _ = minifier(traced, inputs, both, silent)
    assert len([node for node in gm.graph.nodes if node.op == "call_function"]) == 2
    with contextlib.redirect_stderr(io.StringIO()):
        assert len(theirs(traced, inputs, both, silent)[0].graph.nodes) > len(gm.graph.nodes)


def _leads(one: fx.Node, other: fx.Node) -> bool:
    return any(user is other or _leads(user, other) for user in one.users)


def test_intermediate_values_are_those_of_their_time() -> None:
    """What is written to later does not change them: torch keeps the tensor itself."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = y.sin()
        y.add_(100)
        return z, y

    x = torch.ones(3)
    _, given = minifier(make_fx(f)(x), [x], lambda gm, _: calls(gm, torch.ops.aten.sin.default), silent)
    assert torch.equal(given[0], torch.full((3,), 2.0))


def test_neither_the_graph_nor_the_inputs_are_changed() -> None:
    x = torch.zeros(3)
    traced = make_fx(lambda x: (x.add_(1).sin().cos(),))(x)
    before, x = traced.code, torch.zeros(3)

    def spoils(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        for one in inputs:
            one.fill_(7)
        return calls(gm, torch.ops.aten.sin.default)

    _, given = minifier(traced, [x], spoils, silent)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(given[0], torch.ones(3))
    assert traced.code == before


def test_what_does_not_fail_is_torch_s_error() -> None:
    gm, inputs = make_fx(with_mul)(torch.ones(1), torch.ones(1)), [torch.ones(1), torch.ones(1)]
    for search in (minifier, theirs):
        with pytest.raises(RuntimeError, match="Input graph did not fail the tester"):
            search(gm, inputs, lambda *_: False, silent)
        with pytest.raises(RuntimeError, match="not power of two"):
            search(gm, inputs, lambda *_: True, silent, max_granularity=3)
        with pytest.raises(AssertionError):
            search(gm, inputs, lambda *_: True, silent, offload_to_disk=True)
        with pytest.raises(AssertionError):
            search(gm, [*inputs, *inputs], lambda *_: True, silent)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_functions_of_the_caller_s_raise_is_raised(at: int) -> None:
    """In the midst of the search as well."""
    asked: list[int] = []

    def broken(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        asked.append(1)
        if len(asked) == at:
            raise KeyError("mine")
        return calls(gm, torch.ops.aten.mul.Tensor)

    def dumps(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        if len(gm.graph.nodes) < 7:
            raise KeyError("mine")

    inputs = [torch.ones(1), torch.ones(1)]
    with pytest.raises(KeyError, match="mine"):
        minifier(make_fx(with_mul)(*inputs), inputs, broken, silent)
    with pytest.raises(KeyError, match="mine"):
        minifier(make_fx(with_mul)(*inputs), inputs, lambda gm, _: calls(gm, torch.ops.aten.mul.Tensor), dumps)


def test_what_was_computed_may_be_written_to() -> None:
    """A leaf that requires grad may not: that would be another failure."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * 2).add_(1).sin(),)

    graph = fx.symbolic_trace(f)
    raised: list[Exception] = []

    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        try:
            gm(*inputs)
        except RuntimeError as error:
            raised.append(error)
            return False
        return any(node.target == "add_" for node in gm.graph.nodes)

    gm, given = minifier(graph, [torch.ones(2, requires_grad=True)], fails, silent)
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_method", "output"]
    assert given[0].requires_grad
    assert raised == []


def test_kinds_of_tensors_that_have_no_fakes_are_taken_as_well() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.quantize_per_tensor(x.sin(), 0.1, 0, torch.quint8).dequantize().cos(),)

    gm, given = minifier(
        fx.symbolic_trace(f),
        [torch.ones(2)],
        lambda gm, _: any(node.target == "dequantize" for node in gm.graph.nodes),
        silent,
    )
    assert any(node.target == "dequantize" for node in gm.graph.nodes)
    assert gm(*given)[0].shape == (2,)


def test_without_a_sanity_check_the_whole_graph_is_believed_to_fail() -> None:
    asked = []

    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        asked.append(len(gm.graph.nodes))
        return calls(gm, torch.ops.aten.mul.Tensor)

    inputs = [torch.ones(1), torch.ones(1)]
    minifier(make_fx(with_mul)(*inputs), inputs, fails, silent, skip_sanity=True)
    assert 7 not in asked


def test_intermediate_results_may_lie_on_the_disk(tmp_path: Path) -> None:
    inputs = [torch.randn(3)]
    for more in ({}, {"skip_offload": True}):  # the second time they are there
        gm, given = minifier(
            make_fx(with_nan)(*inputs), inputs, makes_nan, silent, save_dir=str(tmp_path), offload_to_disk=True, **more
        )
        assert (len(gm.graph.nodes), len(given)) == (3, 1)
        assert (tmp_path / "tensors" / "eager").is_dir()


def test_each_better_graph_is_dumped_and_the_result_last(capsys: pytest.CaptureFixture[str]) -> None:
    sizes: list[int] = []
    inputs = [torch.randn(3)]
    gm, _ = minifier(make_fx(with_nan)(*inputs), inputs, makes_nan, lambda gm, _: sizes.append(len(gm.graph.nodes)))
    assert sizes[0] == 9
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == len(gm.graph.nodes) == 3
    assert "Started off with 9 nodes" in capsys.readouterr().err


def test_a_dump_names_sizes_dtypes_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    gm = make_fx(lambda x: (x + 1,))(torch.ones(2, 3))
    dump_state(gm, [torch.ones(2, 3, dtype=torch.float64), torch.ones(1, device="meta"), 3])
    said = capsys.readouterr().out
    assert "((2, 3), torch.float64, 'cpu')" in said
    assert "'meta'" in said
    assert "torch.ops.aten.add.Tensor" in said


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.data())
def test_exactly_the_operators_that_are_needed_are_left(count: int, data: st.DataObject) -> None:
    """And not many more questions than the peer would need for one of them alone."""
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))

    def chain(x: torch.Tensor) -> tuple[torch.Tensor]:
        for step in range(count):
            x = torch.ops.aten.add.Scalar(x, step)
        return (x,)

    def fails(gm: fx.GraphModule, _inputs: Sequence[Any]) -> bool:
        asked.append(1)
        found = {node.args[1] for node in gm.graph.nodes if node.target is torch.ops.aten.add.Scalar}
        return needed <= found

    asked: list[int] = []
    inputs = [torch.zeros(1)]
    gm, _ = minifier(make_fx(chain)(*inputs), inputs, fails, silent)
    left = [node.args[1] for node in gm.graph.nodes if node.target is torch.ops.aten.add.Scalar]
    assert left == sorted(needed)
    assert len(asked) <= 8 * len(needed) * count.bit_length() + 10

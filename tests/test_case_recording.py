"""Making cases: each of a recording's has what its own call had, whatever happened before and after."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from script_samples import placeholders
from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.script.builder import build
from torchsleuth.case.script.ways import choose
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.errors import CannotHold

COMPILER = schema.Compiler(After.AOT, "inductor")
PLAIN: Any = {"state": schema.State(), "stable": True}


def inputs_of(case: schema.Case, blobs: MemoryBlobs) -> list[Any]:
    return GraphReader(decode(encode(case)), blobs).inputs()


class Counted(MemoryBlobs):
    """Blobs that count how often bytes are hashed."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0

    def put(self, storage: torch.UntypedStorage) -> str:
        self.puts += 1
        return super().put(storage)


# ---- one recording, several calls ------------------------------------------------------------------------


def test_an_input_that_changed_between_two_calls_has_the_values_of_each() -> None:
    """Covers: S5, U9"""
    blobs = MemoryBlobs()
    recording = Recording(placeholders(1), blobs)
    x = torch.zeros(3)
    before = recording.case([x], COMPILER, **PLAIN)
    x.fill_(7)
    after = recording.case([x], COMPILER, **PLAIN)
    assert inputs_of(before, blobs)[0].tolist() == [0, 0, 0]
    assert inputs_of(after, blobs)[0].tolist() == [7, 7, 7]


def test_a_case_has_the_memory_of_its_own_call_only() -> None:
    """Covers: S5"""
    recording = Recording(placeholders(1), MemoryBlobs())
    fake = FakeTensorMode().from_tensor(torch.zeros(20))
    cases = [recording.case([x], COMPILER, **PLAIN) for x in (torch.ones(3), fake, torch.ones(5), fake)]
    assert [[entry.nbytes for entry in case.storages] for case in cases] == [[12], [80], [20], [80]]
    assert cases[1] == cases[3]


def with_constant(constant: torch.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.get_attr("constant"), x))
    root = torch.nn.Module()
    root.constant = constant
    return fx.GraphModule(root, graph)


def test_an_input_in_the_memory_of_a_constant_that_changed_is_right_and_so_is_the_constant() -> None:
    """Covers: S5, S21"""
    blobs = Counted()
    constant = torch.zeros(4)
    recording = Recording(with_constant(constant), blobs)
    early = recording.case([constant[1:]], COMPILER, **PLAIN)
    constant.fill_(5)
    late = recording.case([constant[1:]], COMPILER, **PLAIN)
    for case, value in ((early, 0), (late, 5)):
        assert len(case.storages) == 1
        reader = GraphReader(decode(encode(case)), blobs)
        kept, [x] = reader.read().constant, reader.inputs()
        assert kept.tolist() == [value] * 4
        assert x.tolist() == [value] * 3
        x[0] = 99
        assert kept[1] == 99


def test_a_constant_is_looked_at_again_only_where_an_input_shares_its_memory() -> None:
    blobs = Counted()
    constant = torch.zeros(4)
    recording = Recording(with_constant(constant), blobs)
    assert blobs.puts == 1
    recording.case([1], COMPILER, **PLAIN)
    assert blobs.puts == 1
    recording.case([[constant, constant[1:], torch.ones(2)]], COMPILER, **PLAIN)
    assert blobs.puts == 3


def test_memory_of_a_constant_that_shrank_is_an_error_and_emptied_memory_is_not() -> None:
    blobs = MemoryBlobs()
    constant = torch.zeros(4)
    recording = Recording(with_constant(constant), blobs)
    constant.untyped_storage().resize_(8)
    with pytest.raises(CannotHold, match="smaller"):
        recording.case([torch.empty(0).set_(constant.untyped_storage())], COMPILER, **PLAIN)
    constant.untyped_storage().resize_(0)
    [x] = inputs_of(recording.case([constant], COMPILER, **PLAIN), blobs)
    assert x.untyped_storage().nbytes() == 0


# ---- the graph as it was ---------------------------------------------------------------------------------


def lookup() -> fx.GraphModule:
    table, rows = torch.zeros(1000, 4), torch.zeros(4, dtype=torch.int64)
    return make_fx(lambda rows, table: torch.ops.aten.embedding(table, rows), tracing_mode="fake")(rows, table)


def test_recipes_suit_the_graph_as_it_was_before_the_compiler_changed_it() -> None:
    """Covers: S10"""
    gm = lookup()
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    recording = Recording(gm, MemoryBlobs(), fakes)
    [used] = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    with gm.graph.inserting_before(used):
        used.replace_all_uses_with(gm.graph.call_function(torch.ops.aten.relu.default, (used.args[1],)))
    gm.graph.erase_node(used)
    content = recording.case(fakes, COMPILER, **PLAIN).storages[0].content
    assert isinstance(content, schema.Generated)
    assert (content.how, content.high) == ("integers", 1000)


def test_a_recording_does_not_keep_the_graph_alive() -> None:
    gm = lookup()
    recording = Recording(gm, MemoryBlobs())
    gone = weakref.ref(gm), weakref.ref(gm.graph)
    del gm
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert recording.case([torch.zeros(4), torch.zeros(1000, 4)], COMPILER, **PLAIN).inputs


# ---- symbolic numbers ------------------------------------------------------------------------------------


def sized(dynamic: DimDynamic) -> Any:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[dynamic])
    return mode.from_tensor(torch.zeros(6), symbolic_context=context)


def _source() -> Any:
    return torch_compat.named_source("L['x']", ephemeral=False)


def test_a_number_that_only_running_tells_is_the_size_that_tensors_have_for_it() -> None:
    blobs = MemoryBlobs()
    fake = sized(DimDynamic.UNBACKED)
    size = fake.shape[0]
    case = Recording(placeholders(4), blobs).case([size, fake, size * 2 + 1, size > 2], COMPILER, **PLAIN)
    number, tensor, more, condition = inputs_of(case, blobs)
    assert number == tensor.shape[0]
    assert more == 2 * number + 1
    assert condition is True


def test_symbolic_numbers_that_had_values_have_these() -> None:
    blobs = MemoryBlobs()
    size = sized(DimDynamic.DYNAMIC).shape[0]
    case = Recording(placeholders(4), blobs).case([size, size - 10, size / 4, size > 10], COMPILER, **PLAIN)
    assert inputs_of(case, blobs) == [6, -4, 1.5, False]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.5])
def test_symbolic_floats_that_are_not_finite_keep_their_values(value: float) -> None:
    blobs = MemoryBlobs()
    environment = ShapeEnv()
    symbol = environment.create_unspecified_symbol(value, _source(), dynamic_dim=DimDynamic.DYNAMIC)
    number = environment.create_symfloatnode(symbol, hint=value, source=_source())
    [back] = inputs_of(Recording(placeholders(1), blobs).case([number], COMPILER, **PLAIN), blobs)
    assert type(back) is float
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_a_float_that_only_running_tells_is_some_float() -> None:
    blobs = MemoryBlobs()
    number = ShapeEnv().create_unbacked_symfloat()
    [back] = inputs_of(Recording(placeholders(1), blobs).case([number], COMPILER, **PLAIN), blobs)
    assert type(back) is float
    assert math.isfinite(back)


def test_the_ragged_size_of_a_nested_tensor_is_noticed() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    [value] = Recording(placeholders(1), MemoryBlobs()).case([nested.shape[1]], COMPILER, **PLAIN).inputs
    assert isinstance(value, schema.Noticed)
    assert "nested" in value.reason


def test_a_graph_among_the_inputs_is_an_error_that_says_so() -> None:
    with pytest.raises(CannotHold, match="graph is among the inputs"):
        Recording(placeholders(1), MemoryBlobs()).case([placeholders(1)], COMPILER, **PLAIN)


# ---- gradients -------------------------------------------------------------------------------------------


def with_gradient() -> torch.Tensor:
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.tensor([1.0, math.nan, -0.0])
    return x


def test_gradients_are_kept_where_the_graph_asks_for_them() -> None:
    """Covers: U9"""
    blobs = MemoryBlobs()
    x = with_gradient()
    gm = fx.symbolic_trace(lambda x, y: x.grad * y.detach())
    case = Recording(gm, blobs).case([x, x.grad], COMPILER, **PLAIN)
    reader = GraphReader(decode(encode(case)), blobs)
    back, gradient = reader.inputs()
    assert torch.equal(back.grad.view(torch.int32), x.grad.view(torch.int32))  # type: ignore[union-attr]
    gradient.zero_()
    assert not back.grad.any()
    assert torch.equal(reader.read()(back, gradient), torch.zeros(3))


def test_the_script_has_the_gradients_too() -> None:
    """Covers: S21, U9"""
    x = with_gradient()
    base = torch.zeros(6)
    view = base[2:5].requires_grad_()
    view.grad = torch.full((3,), 8.0)
    gm = fx.symbolic_trace(lambda x, gradient, view: x.grad + gradient + view.grad)
    blobs = MemoryBlobs()
    case = decode(encode(Recording(gm, blobs).case([x, x.grad, view], COMPILER, **PLAIN)))
    names: dict[str, Any] = {"__name__": "a script", "__file__": "repro.py"}
    exec(compile(build(case, choose(case, blobs)), "repro.py", "exec"), names)
    one, gradient, three = names["inputs"](names["memory"]())
    assert torch.equal(one.grad.view(torch.int32), x.grad.view(torch.int32))  # type: ignore[union-attr]
    assert three.grad.tolist() == [8, 8, 8]
    assert three._is_view()
    gradient.zero_()
    assert not one.grad.any()


def test_gradients_that_no_graph_asks_for_take_no_room() -> None:
    x = with_gradient()
    case = Recording(placeholders(1), MemoryBlobs()).case([x], COMPILER, **PLAIN)
    assert len(case.storages) == 1
    x.grad = torch.nn.Parameter(torch.ones(3)).as_subclass(type("Own", (torch.Tensor,), {})).detach()
    [value] = Recording(fx.symbolic_trace(lambda x: x.grad), MemoryBlobs()).case([x], COMPILER, **PLAIN).inputs
    assert isinstance(value, schema.Noticed)
    assert "gradient" in value.reason

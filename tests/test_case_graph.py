"""Graphs as data and back: everything that a compiler or a person needs to see again."""

from __future__ import annotations

import math
import struct
import sys
import types
from typing import Any

import msgspec
import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import CheckpointPolicy

import corpus
from round_trip import bitwise
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.graphs import code
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording, Where, arguments
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.errors import BadCase, CannotHold, CaseError, MissingTensor, NeedsTrust

COMPILER = schema.Compiler(After.AOT, "inductor")


def case_of(gm: fx.GraphModule, inputs: list[Any], blobs: MemoryBlobs, **options: Any) -> schema.Case:
    return decode(encode(Recording(gm, blobs).case(inputs, COMPILER, **options)))


def again(gm: fx.GraphModule, inputs: list[Any]) -> tuple[fx.GraphModule, list[Any]]:
    blobs = MemoryBlobs()
    reader = GraphReader(case_of(gm, inputs, blobs), blobs)
    return reader.read(), reader.inputs()


def graphs_of(name: str, after: str = "aot") -> dict[str, tuple[fx.GraphModule, schema.Case, MemoryBlobs]]:
    """The graphs of a program of the corpus by phase, each with its case."""
    found: dict[str, tuple[fx.GraphModule, schema.Case, MemoryBlobs]] = {}
    blobs = MemoryBlobs()

    def on_graph(one: corpus.Captured) -> None:
        one.extra["recording"] = Recording(one.gm, blobs)

    def on_call(one: corpus.Captured, args: list[Any]) -> None:
        recorded = one.extra["recording"].case(args, COMPILER, where=Where(one.phase))
        found[one.phase] = (one.gm, decode(encode(recorded)), blobs)

    corpus.capture(name, corpus.PROGRAMS[name](), on_graph, on_call, after=after)
    return found


def graph_with(*arguments: Any, target: Any = torch.ops.aten.add.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(target, (x, *arguments)))
    return fx.GraphModule({}, graph)


# ---- values ----------------------------------------------------------------------------------------------

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000abcdef"))[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**80,
        -0.0,
        math.inf,
        -math.inf,
        1e-320,
        1 - 2j,
        complex(math.nan, -0.0),
        "quotes ' \" and \\ and \n and é 中 \x00",
        "lone \ud800 surrogate",
        b"\x00\xff",
        ...,
        slice(None, 9223372036854775807, 2),
        [1, (2.5, None), [], ()],
        {"a": 1, 2: [True]},
        torch.float8_e4m3fn,
        torch.channels_last,
        torch.strided,
        torch.per_channel_affine,
        torch.device("cpu"),
        torch.device("cuda", 1),
        torch.Size([1, 2]),
    ],
    ids=repr,
)
def test_an_argument_comes_back_as_it_was(value: Any) -> None:
    """Covers: U18"""
    gm = graph_with(value)
    loaded, _ = again(gm, [torch.ones(1)])
    one, other = (next(n for n in each.graph.nodes if n.op == "call_function").args[1] for each in (gm, loaded))
    assert repr(one) == repr(other)
    assert type(one) is type(other)


def test_a_nan_keeps_its_payload() -> None:
    """Covers: S21"""
    loaded, _ = again(graph_with(NAN_WITH_PAYLOAD), [torch.ones(1)])
    argument = next(n for n in loaded.graph.nodes if n.op == "call_function").args[1]
    assert struct.pack(">d", argument) == struct.pack(">d", NAN_WITH_PAYLOAD)


def test_a_generator_keeps_its_state() -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    graph = fx.Graph()
    graph.output(graph.call_function(torch.rand, ([4],), {"generator": graph.placeholder("g")}))
    loaded, (again_,) = again(fx.GraphModule({}, graph), [generator])
    assert torch.equal(loaded(again_), torch.rand(4, generator=generator))


def test_operators_can_be_arguments() -> None:
    """Covers: U1: effect tokens and other higher-order operators take operators as arguments."""
    gm = graph_with(torch.ops.aten.relu.default, target=torch.ops.higher_order.with_effects)
    loaded, _ = again(gm, [torch.ones(1)])
    assert next(n for n in loaded.graph.nodes if n.op == "call_function").args[1] is torch.ops.aten.relu.default


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda: torch.classes.quantized, "a case"),
        (lambda: object(), "a case has no word"),
        (lambda: lambda x: x, "not in the table"),
    ],
)
def test_what_a_case_cannot_hold_is_noticed_and_said_when_it_is_needed(odd: Any, words: str) -> None:
    """Covers: S20, U18"""
    blobs = MemoryBlobs()
    gm = graph_with(1)
    recording = Recording(gm, blobs)
    case = recording.case([odd()], COMPILER)
    (noticed,) = case.inputs
    assert isinstance(noticed, schema.Noticed)
    assert words in noticed.reason
    reader = GraphReader(decode(encode(case)), blobs)
    reader.read()
    with pytest.raises(CannotHold, match=r"inputs\[0\]"):
        reader.inputs()


def test_the_state_of_a_backward_hook_is_noticed() -> None:
    """Covers: S20"""
    from torch.fx.experimental._backward_state import BackwardState

    case = Recording(graph_with(1), MemoryBlobs()).case([BackwardState()], COMPILER)
    assert isinstance(case.inputs[0], schema.Noticed)
    assert "backward hook" in case.inputs[0].reason


def test_a_graph_is_recorded_with_as_many_inputs_as_it_takes() -> None:
    with pytest.raises(CannotHold, match="takes 1 inputs, and 2 were given"):
        Recording(graph_with(1), MemoryBlobs()).case([1, 2], COMPILER)


# ---- constants and modules -------------------------------------------------------------------------------


def test_a_large_constant_is_kept_bit_for_bit() -> None:
    """Covers: S25"""
    graph = fx.Graph()
    graph.output(graph.get_attr("inner.table"))
    table = torch.randn(300, 300)
    table[0, 0] = -0.0
    root = nn.Module()
    root.inner = nn.Module()
    root.inner.register_buffer("table", table.t())
    loaded, _ = again(fx.GraphModule(root, graph), [])
    assert bitwise(loaded(), table.t())


def test_a_missing_constant_is_an_error_and_nothing_takes_its_place() -> None:
    """Covers: U9, S25"""
    graph = fx.Graph()
    graph.output(graph.get_attr("table"))
    case = case_of(fx.GraphModule({"table": torch.randn(30)}, graph), [], MemoryBlobs())
    with pytest.raises(MissingTensor):
        GraphReader(case, MemoryBlobs()).read()


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(4, 3), torch.randn(2, 4)),
        (nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.BatchNorm2d(3), nn.ReLU()), torch.randn(2, 2, 5, 5)),
        (nn.LSTM(4, 5, num_layers=2, batch_first=True), torch.randn(2, 3, 4)),
        (nn.MultiheadAttention(8, 2).eval(), None),
        (nn.Embedding(10, 3, padding_idx=1), torch.tensor([1, 4])),
        (nn.ModuleDict({"a": nn.GELU("tanh")})["a"], torch.randn(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_of_torch_that_a_graph_calls_come_back(module: nn.Module, x: Any) -> None:
    """Covers: U18"""
    graph = fx.Graph()
    taken = graph.placeholder("x")
    graph.output(graph.call_module("layer", (taken,) if x is not None else (taken, taken, taken)))
    x = torch.randn(3, 2, 8) if x is None else x
    gm = fx.GraphModule({"layer": module}, graph)
    loaded, (same_x,) = again(gm, [x])
    assert bitwise(gm(x), loaded(same_x))
    assert [name for name, _ in loaded.layer.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert loaded.layer.state_dict().keys() == module.state_dict().keys()


class Mine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_modules_of_the_users_own_and_modules_with_hooks_are_noticed() -> None:
    """Covers: U18"""
    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda *args: None)
    for module, word in ((Mine(), "user's own"), (hooked, "hooks")):
        graph = fx.Graph()
        graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
        blobs = MemoryBlobs()
        case = case_of(fx.GraphModule({"layer": module}, graph), [torch.ones(1)], blobs)
        with pytest.raises(CannotHold, match=word):
            GraphReader(case, blobs).read()


# ---- meta ------------------------------------------------------------------------------------------------


def test_what_is_known_of_a_node_survives() -> None:
    """Covers: S10, U29"""
    for _phase, (gm, case, blobs) in graphs_of("checkpoint_training").items():
        loaded = GraphReader(case, blobs).read()
        for node, copy in zip(gm.graph.nodes, loaded.graph.nodes, strict=True):
            assert node.name == copy.name
            for key in ("stack_trace", "original_aten", "recompute", "partitioner_tag", "autograd_backward"):
                assert str(node.meta.get(key)) == str(copy.meta.get(key)), (node.name, key)
            one, other = node.meta.get("from_node", []), copy.meta.get("from_node", [])
            assert [(s.name, s.pass_name, s.action) for s in one] == [(s.name, s.pass_name, s.action) for s in other]
            one, other = node.meta.get("source_fn_stack", []), copy.meta.get("source_fn_stack", [])
            assert [name for name, _ in one] == [name for name, _ in other]
    assert any(isinstance(node.meta.get("recompute"), CheckpointPolicy) for node in loaded.graph.nodes)
    assert any("checkpoint(model, x" in (node.meta.get("stack_trace") or "") for node in loaded.graph.nodes)


@pytest.mark.parametrize(
    "name",
    ["aliasing_inputs", "views_of_outputs", "dynamic_arithmetic", "unbacked_sizes", "unbacked_nonzero", "cond_dynamic"],
)
def test_what_nodes_produce_is_rebuilt_with_the_same_sizes_strides_and_sharing(name: str) -> None:
    """Covers: U4"""
    ((gm, case, blobs),) = graphs_of(name).values()
    loaded = GraphReader(case, blobs).read()

    def described(graph: fx.Graph) -> list[Any]:
        memories: dict[int, int] = {}

        def shape(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                memory = memories.setdefault(value.untyped_storage()._cdata, len(memories))
                return (str(value.dtype), str(value.shape), str(value.stride()), str(value.storage_offset()), memory)
            return [shape(each) for each in value] if isinstance(value, (tuple, list)) else str(value)

        return [
            (node.name, shape(node.meta.get("val")), str(node.meta.get("unbacked_bindings"))) for node in graph.nodes
        ]

    assert described(gm.graph) == described(loaded.graph)


def test_the_case_shows_the_graph_as_it_was_before_the_compiler_changed_it() -> None:
    """Covers: S10"""
    gm = graph_with(torch.ones(3))
    blobs = MemoryBlobs()
    recording = Recording(gm, blobs)
    before = [node.name for node in gm.graph.nodes]
    gm.graph.erase_node(next(n for n in gm.graph.nodes if n.op == "output"))
    gm.graph.output(())
    case = recording.case([torch.ones(3)], COMPILER)
    assert [node.name for node in case.graph.nodes] == before


def test_equal_graphs_are_equal_bytes_wherever_they_are_recorded() -> None:
    """Covers: S22"""
    texts = set()
    for _ in range(2):
        gm, _, _ = graphs_of("dynamic_mlp_training")["forward"]
        inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
        texts.add(encode(Recording(gm, MemoryBlobs()).case(inputs, COMPILER, stable=True)))
    assert len(texts) == 1


def test_a_case_knows_the_lines_of_the_users_program() -> None:
    """Covers: U29"""
    _, case, _ = graphs_of("in_place")["inference"]
    assert any("x.index_put_" in frame.code for frame in case.origin.frames)


def test_the_arguments_of_a_compiler_are_kept_as_far_as_they_are_data() -> None:
    given = {"is_backward": True, "static_input_idxs": [0, 2], "get_decomp_fn": print, "layout_opt": None}
    assert arguments(given) == (
        schema.Entry("is_backward", True),
        schema.Entry("layout_opt", None),
        schema.Entry("static_input_idxs", schema.List((0, 2))),
    )


# ---- nested graphs, Dynamo's graphs ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cond_dynamic", "while_loop", "scan", "map_", "flex_attention", "invoke_subgraph"])
def test_nested_graphs_come_back(name: str) -> None:
    """Covers: U1"""
    ((gm, case, blobs),) = graphs_of(name).values()
    loaded = GraphReader(case, blobs).read()
    for path, module in gm.named_modules():
        if isinstance(module, fx.GraphModule):
            copy = loaded.get_submodule(path)
            assert [(n.op, n.name, str(n.target)) for n in module.graph.nodes] == [
                (n.op, n.name, str(n.target)) for n in copy.graph.nodes
            ]


@pytest.mark.parametrize(
    "name",
    [
        "autograd_function_training",
        "checkpoint_training",
        "flex_attention",
        "vmap_jacobian",
        "dynamic_mlp_training",
        "autocast",
    ],
)
def test_dynamos_graphs_come_back_and_compute_the_same(name: str) -> None:
    """Covers: U1, U4"""
    results: list[Any] = []
    blobs = MemoryBlobs()

    def on_graph(one: corpus.Captured) -> None:
        one.extra["recording"] = Recording(one.gm, blobs)

    def on_call(one: corpus.Captured, args: list[Any]) -> None:
        one.extra["case"] = one.extra["recording"].case(args, COMPILER)

    def on_result(one: corpus.Captured, result: Any) -> None:
        reader = GraphReader(decode(encode(one.extra["case"])), blobs)
        gm, inputs = reader.read(), reader.inputs()
        from torchsleuth.case.surroundings.state import restored

        with restored(one.extra["case"].state):
            results.append(bitwise(result[0], gm(*inputs)))

    corpus.capture(name, corpus.PROGRAMS[name](), on_graph, on_call, on_result, after="dynamo")
    assert results
    assert all(results)


@pytest.mark.parametrize(
    "name", "bert gpt2_training_dynamic embedding_and_loss sorting_and_scattering in_place unbacked_sizes cond".split()
)
def test_a_graph_whose_inputs_were_only_fake_runs_on_what_the_recipes_make(name: str) -> None:
    """Covers: U9: indices are in range, so the graph runs; nothing is claimed to be the user's data."""
    blobs = MemoryBlobs()
    cases: list[schema.Case] = []

    def on_graph(one: corpus.Captured) -> None:
        recording = Recording(one.gm, blobs, one.example_inputs)
        cases.append(decode(encode(recording.case(one.example_inputs, COMPILER))))

    corpus.capture(name, corpus.PROGRAMS[name](), on_graph, lambda one, args: None)
    for case in cases:
        reader = GraphReader(case, blobs)
        reader.read()(*reader.inputs())
        made = [storage.content for storage in case.storages]
        assert any(isinstance(content, schema.Generated) for content in made)


# ---- code of the user's own ------------------------------------------------------------------------------


def test_a_custom_operator_is_kept_with_its_source_and_where_it_came_from() -> None:
    """Covers: U3"""
    _, case, _ = graphs_of("custom_op")["inference"]
    (found,) = case.code
    assert (found.kind, found.name, found.module) == ("python op", "corpus::twice_plus", "corpus")
    assert found.source is not None
    assert "return x * 2 + by" in found.source
    assert [entry.name for entry in found.constants] == ["fake"]
    assert found.file == "corpus.py"


def test_a_custom_operator_that_nobody_registered_asks_for_trust() -> None:
    """Covers: U3"""
    _, case, blobs = graphs_of("custom_op")["inference"]
    text = msgspec.json.encode(case).replace(b"corpus.twice_plus", b"elsewhere.twice_plus")
    with pytest.raises(NeedsTrust, match=r"elsewhere::twice_plus.*not torch's own"):
        GraphReader(msgspec.json.decode(text, type=schema.Case), blobs).read()


FACTOR = 3


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


@torch.compiler.allow_in_graph
def whole(x: torch.Tensor) -> torch.Tensor:
    return scaled(x)


def test_a_function_that_dynamo_keeps_whole_is_named_and_needs_trust() -> None:
    """Covers: U3"""
    gm = graph_with(target=whole)
    blobs = MemoryBlobs()
    case = case_of(gm, [torch.ones(2)], blobs)
    (found,) = case.code
    assert (found.kind, found.name, found.module) == ("function", "test_case_graph.whole", "test_case_graph")
    assert "return scaled(x)" in str(found.source)
    helpers = {entry.name: entry.value for entry in found.constants}
    assert helpers["FACTOR"] == 3
    assert "return x * FACTOR" in str(helpers["scaled"])
    with pytest.raises(NeedsTrust, match="whole"):
        GraphReader(case, blobs).read()


def test_a_triton_kernel_is_kept_with_its_helpers_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U2. There is no Triton here, so the kernel is a stand-in with the attributes of one."""
    (here,) = (sys.modules[__name__],)

    def helper(x):  # type: ignore[no-untyped-def]
        return x * SCALE  # noqa: F821

    def kernel(x_ptr, n, BLOCK):  # type: ignore[no-untyped-def]
        return helper_kernel(x_ptr) + SCALE + BLOCK  # noqa: F821

    monkeypatch.setattr(here, "helper_kernel", types.SimpleNamespace(fn=helper), raising=False)
    monkeypatch.setattr(here, "SCALE", 4, raising=False)
    monkeypatch.setattr(code.torch_compat, "triton_kernel", lambda number: types.SimpleNamespace(fn=kernel))
    graph = fx.Graph()
    graph.output(
        graph.call_function(
            torch.ops.higher_order.triton_kernel_wrapper_functional, (), {"kernel_idx": 7, "constant_args_idx": 0}
        )
    )
    (found,) = code.find_code(fx.GraphModule({}, graph))
    assert (found.kind, found.name, found.index) == ("triton kernel", "kernel", 7)
    assert "BLOCK" in str(found.source)
    assert {entry.name: entry.value for entry in found.constants}["SCALE"] == 4
    assert any(entry.name == "helper_kernel" and "x * SCALE" in str(entry.value) for entry in found.constants)


# ---- garbage ---------------------------------------------------------------------------------------------


def tampered(case: schema.Case, **changes: Any) -> schema.Case:
    nodes = list(case.graph.nodes)
    nodes[1] = msgspec.structs.replace(nodes[1], **changes)
    return msgspec.structs.replace(case, graph=msgspec.structs.replace(case.graph, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "os.system"},
        {"target": "torch.ops.aten.nothing.default"},
        {"args": (schema.Ref("nobody"),)},
        {"args": (schema.Dict(((schema.List(), 1),)),)},
        {"name": "x"},
        {"name": "not a name"},
        {"op": "call_method", "target": "__reduce_ex__"},
        {"op": "get_attr", "target": "nothing.there"},
        {"op": "placeholder", "target": "1x"},
        {"op": "call_function", "target": "builtins.getattr", "args": (schema.Ref("x"), "__class__")},
        {"op": "output"},
        {"meta": schema.Meta(val=schema.Fake("float32", (-3,), (1,)))},
        {"meta": schema.Meta(val=schema.Fake("float33", (3,), (1,)))},
        {"meta": schema.Meta(val=schema.Fake("float32", ("s0",), (1,)))},
        {"meta": schema.Meta(val=schema.Symbolic("int", schema.Apply("eval", (1,))))},
        {"meta": schema.Meta(bindings=(schema.Binding("u0", (schema.Step("method", "__reduce_ex__"),)),))},
    ],
    ids=str,
)
def test_a_graph_that_makes_no_sense_is_one_clear_error(changes: dict[str, Any]) -> None:
    """Covers: U25: what is not a legal graph is refused, not run."""
    blobs = MemoryBlobs()
    case = tampered(case_of(graph_with(1), [torch.ones(1)], blobs), **changes)
    with pytest.raises(CaseError) as caught:
        GraphReader(case, blobs, file="case.json").read()
    assert caught.value.remedy


def test_a_graph_nested_without_end_is_refused() -> None:
    blobs = MemoryBlobs()
    case = case_of(graph_with(1), [torch.ones(1)], blobs)
    graph = case.graph
    for _ in range(100):
        graph = msgspec.structs.replace(case.graph, attributes=(schema.Entry("body", graph),))
    with pytest.raises(BadCase, match="nested"):
        GraphReader(msgspec.structs.replace(case, graph=graph), blobs).read()


# ---- hostile cases ---------------------------------------------------------------------------------------


def hostile(value: schema.Value, *, where: str) -> tuple[schema.Case, MemoryBlobs]:
    """A case with a value where the graph would print it, call it, or hand it to what calls functions."""
    blobs = MemoryBlobs()
    case = case_of(graph_with(1), [torch.ones(1)], blobs)
    x, add, output = case.graph.nodes
    attributes: tuple[schema.Entry, ...] = ()
    if where == "default":
        x = msgspec.structs.replace(x, args=(value,))
    elif where == "argument":
        add = msgspec.structs.replace(add, args=(schema.Ref("x"), value))
    else:
        attributes = (schema.Entry("f", value),)
        add = schema.Node("add", "get_attr", "f")
    return msgspec.structs.replace(case, graph=schema.Graph((x, add, output), attributes)), blobs


def overriding(attribute: str, function: str, kind: str = "Hardshrink") -> schema.Module:
    """A module whose attribute stands before a method of its class; what it prints as is up to the case."""
    text = schema.Entry("lambd", "__import__('os').system('exit 1')")
    return schema.Module(kind, (text, schema.Entry(attribute, schema.Function(function))))


@pytest.mark.parametrize("where", ["default", "argument", "attribute"])
@pytest.mark.parametrize(
    "value",
    [
        overriding("_get_name", "builtins.str"),
        overriding("_get_name", "torch.relu"),
        overriding("extra_repr", "torch.relu"),
        overriding("_init_flat_weights", "torch.manual_seed", "RNN"),
        schema.Module("Sequential", (schema.Entry("_modules", schema.Dict()),)),
        schema.Module("Module", (schema.Entry("__class__", 1),)),
        schema.Module("os.system"),
        schema.Function("builtins.getattr"),
        schema.Function("builtins.eval"),
        schema.Function("operator.getitem"),
        schema.Function("torch.Tensor.add_"),
        schema.Function("canary.boom"),
    ],
    ids=lambda value: f"{value.type}.{value.attributes}" if isinstance(value, schema.Module) else value.name,
)
def test_nothing_that_a_case_could_call_or_print_gets_into_a_graph(value: schema.Value, where: str) -> None:
    """Covers: U25. FX writes arguments into code by what they print as, and some operators call what they are given."""
    case, blobs = hostile(value, where=where)
    with pytest.raises(CaseError):
        GraphReader(case, blobs).read()


@pytest.mark.parametrize("name", ["a b", "x=1)\n    import os  #", "for", "", "1x"])
def test_the_name_of_an_argument_is_a_name(name: str) -> None:
    case, blobs = hostile(1, where="argument")
    x, add, output = case.graph.nodes
    add = msgspec.structs.replace(add, kwargs=(schema.Entry(name, 1),))
    with pytest.raises(CaseError):
        GraphReader(msgspec.structs.replace(case, graph=schema.Graph((x, add, output))), blobs).read()


def test_asking_for_operators_leaves_nothing_behind() -> None:
    before = set(vars(torch.ops))
    for number in range(50):
        with pytest.raises(NeedsTrust):
            code.targets.resolve(f"torch.ops.nobodys_{number}.foo.default")
    assert set(vars(torch.ops)) == before


# ---- graphs that somebody traced -------------------------------------------------------------------------


class Traced(nn.Module):
    def __init__(self, run: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


class TakesAny(nn.Module):
    def forward(self, x: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize(
    "module",
    [
        Traced(lambda self, x: self.lin(x) + self.lin.weight, lin=nn.Linear(3, 3)),
        Traced(lambda self, x: self.net(x) + self.net[0](x), net=nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
        Traced(lambda self, x: self.parts["0a"](x), parts=nn.ModuleDict({"0a": nn.Linear(3, 3)})),
        Traced(lambda self, x: self.parts["my-layer"](x), parts=nn.ModuleDict({"my-layer": nn.ReLU()})),
        Traced(lambda self, x: {"best": torch.max(x, 0).values, "where": torch.max(x, 0).indices, "n": None}),
    ],
    ids=["inner weight", "inner layer", "odd name", "dashed name", "return type"],
)
def test_graphs_of_symbolic_tracing_come_back(module: nn.Module) -> None:
    """Covers: U18"""
    x = torch.randn(3, 3)
    gm = fx.symbolic_trace(module)
    loaded, (same_x,) = again(gm, [x])
    one, other = gm(x), loaded(same_x)
    assert bitwise(list(one.values()), list(other.values())) if isinstance(one, dict) else bitwise(one, other)


def test_a_graph_that_takes_any_number_of_inputs_comes_back() -> None:
    """Covers: U18"""
    gm = fx.symbolic_trace(TakesAny())
    loaded, _ = again(gm, [torch.ones(2), ()])
    assert [node.target for node in loaded.graph.find_nodes(op="placeholder")] == ["x", "*args"]


def test_sizes_of_nested_tensors_are_noticed_not_an_error() -> None:
    """Covers: U18"""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    gm = graph_with(1)
    next(iter(gm.graph.nodes)).meta["val"] = nested.shape[1]
    case = Recording(gm, MemoryBlobs()).case([torch.ones(1)], COMPILER)
    assert case.graph.nodes[0].meta.dropped == ("val",)


def test_a_graph_of_torch_export_is_kept_flat_and_says_so() -> None:
    """Covers: U18"""
    program = torch.export.export(Traced(lambda self, x: {"a": x + 1, "b": [x * 2]}), (torch.ones(3),))
    gm = program.graph_module
    blobs = MemoryBlobs()
    case = case_of(gm, [torch.ones(3)], blobs)
    assert not case.graph.flattened
    assert bitwise(list(GraphReader(case, blobs).read()(torch.ones(3))), list(gm(torch.ones(3))))
    gm = fx.symbolic_trace(lambda pair: pair[0] + pair[1], concrete_args={"pair": (fx.PH, fx.PH)})
    case = case_of(gm, [torch.ones(3), torch.ones(3)], blobs)
    assert case.graph.flattened
    assert bitwise(GraphReader(case, blobs).read()(torch.ones(3), torch.ones(3)), [gm((torch.ones(3), torch.ones(3)))])


def test_reading_a_graph_is_no_work_however_often_it_splits_tensors() -> None:
    """Covers: U25: two kilobytes of splits would take seconds."""
    x = schema.Node("x", "placeholder", "x", meta=schema.Meta(val=schema.Fake("float32", (10_000, 2), (2, 1))))
    part = schema.Meta(val=schema.List((schema.Fake("float32", (2,), (1,)),)))
    splits = [
        schema.Node(f"u{at}", "call_function", "torch.ops.aten.unbind.int", (schema.Ref("x"),), meta=part)
        for at in range(8)
    ]
    output = schema.Node("output", "output", "output", (schema.Ref("x"),))
    case = case_of(graph_with(1), [torch.ones(1)], MemoryBlobs())
    reader = GraphReader(msgspec.structs.replace(case, graph=schema.Graph((x, *splits, output))), MemoryBlobs())
    assert len(reader.read().graph.nodes) == 10
    assert reader.fakes.parts_left < 0

"""A case as a script: what the script builds is what the case holds, bit for bit, and it says what it sees.

Most scripts here are executed in this process: what counts is what their functions make. That a script needs nothing
but torch, and fails as recorded in a fresh interpreter, is in test_delivery.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from script_samples import AOT, DYNAMO, FAILURES, calling, placeholders, recorded
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.graphs.symbols import record_symbols
from torchsleuth.case.schema import Apply, Entry, Meta, Node, Ref
from torchsleuth.case.script.builder import build, notice
from torchsleuth.case.script.graphs import graphs_in
from torchsleuth.case.script.layout import WIDTH, wrap
from torchsleuth.case.script.pieces.running import BACKWARD
from torchsleuth.case.script.pieces.tensors import MADE
from torchsleuth.case.script.shapes import line_of, shape_of
from torchsleuth.case.script.states import draws_random_numbers
from torchsleuth.case.script.ways import Beside, InText, Literal, choose, recipes_for, write_beside
from torchsleuth.case.storages import recipes
from torchsleuth.case.storages.blobs import MemoryBlobs, memory
from torchsleuth.compare.subject import probe_loss
from torchsleuth.config import After
from torchsleuth.errors import BadCase, CannotHold


def script(case: schema.Case, blobs: MemoryBlobs, **options: Any) -> str:
    return build(case, choose(case, blobs), **options)


def executed(text: str, file: Path | None = None) -> dict[str, Any]:
    """The names that the script defines; its `main` does not run."""
    names: dict[str, Any] = {"__name__": "a script", "__file__": str(file or "repro.py")}
    exec(compile(text, "repro.py", "exec"), names)
    return names


def made_by(text: str, file: Path | None = None) -> tuple[fx.GraphModule, list[Any]]:
    names = executed(text, file)
    m = names["memory"]() if "memory" in names else {}
    return names["graph"](m), names["inputs"](m)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also of NaNs, and of the sign of zeros."""
    flat = [x.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for x in (a, b)]
    return torch.equal(*flat)


def described(gm: fx.GraphModule) -> list[tuple[Any, ...]]:
    return [(n.name, n.op, n.target, str(n.args), str(n.kwargs)) for n in gm.graph.nodes]


# ---- graphs ----------------------------------------------------------------------------------------------


def branches(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos(), (x,))


PROGRAMS = {
    "arithmetic": (
        lambda x, y: (x @ y + 1.5).relu().sum(dim=[0], keepdim=True),
        (torch.randn(3, 4), torch.randn(4, 2)),
    ),
    "keywords and dtypes": (lambda x: torch.zeros_like(x, dtype=torch.float16).to(torch.int64), (torch.randn(3),)),
    "infinities": (lambda x: x.clamp(min=float("-inf"), max=float("inf")).nan_to_num(nan=-0.0), (torch.randn(3),)),
    "several results": (lambda x: torch.split(x, [1, 2], 0), (torch.randn(3, 2),)),
    "constants": (lambda x: x + torch.tensor([1.0, float("nan"), -0.0]), (torch.randn(3),)),
    "in place": (lambda x: x.add_(1).t_(), (torch.randn(2, 3),)),
    "branches": (branches, (torch.randn(4),)),
    "slices and indices": (lambda x, i: x[1:, None, ::2][i], (torch.randn(4, 6), torch.tensor([2, 0]))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_script_builds_the_graph_node_by_node_as_it_was(name: str) -> None:
    """Covers: U1, U18"""
    program, inputs = PROGRAMS[name]
    case, blobs = recorded(program, *inputs)
    gm, args = made_by(script(case, blobs))
    stored = GraphReader(case, blobs).read()
    assert described(gm) == described(stored)
    assert [n for n, _ in gm.named_modules()] == [n for n, _ in stored.named_modules()]
    results = [tree_leaves(graph(*given)) for graph, given in ((gm, args), (stored, [x.clone() for x in inputs]))]
    for ours, theirs in zip(*results, strict=True):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_is_laid_out_as_a_formatter_would(name: str, tmp_path: Path) -> None:
    program, inputs = PROGRAMS[name]
    compiled_by = {"branches": AOT}.get(name, DYNAMO)
    case, blobs = recorded(program, *inputs, compiler=compiled_by, failure=FAILURES["raised"])
    path = tmp_path / "repro.py"
    path.write_text(script(case, blobs))
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(WIDTH), "--diff", str(path)]
    ran = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_a_node_is_one_line_under_the_users_line_with_its_shape() -> None:
    fake = schema.Fake("float32", (8, "s77"), ("s77", 1))
    trace = (
        '  File "/home/me/model.py", line 12, in forward\n    y = F.relu(x)\n'
        '  File "/usr/lib/site-packages/torch/nn/functional.py", line 9, in relu\n    return torch.relu(x)\n'
    )
    nodes = (
        Node("x", "placeholder", "L_x_", meta=Meta(val=fake)),
        Node("relu", "call_function", "torch.ops.aten.relu.default", (Ref("x"),), meta=Meta(fake, stack_trace=trace)),
        Node("output", "output", "output", (schema.Tuple((Ref("relu"),)),)),
    )
    case, blobs = recorded(lambda x: x.relu(), torch.ones(1))
    text = script(msgspec.structs.replace(case, graph=schema.Graph(nodes)), blobs)
    assert (
        '    g.x = placeholder("L_x_")  # f32[8, s77]\n'
        "    # model.py:12, in forward: y = F.relu(x)\n"
        "    g.relu = call(aten.relu.default, g.x)  # f32[8, s77]\n"
    ) in text


def test_any_name_of_a_node_attribute_or_keyword_is_safe() -> None:
    """Covers: U17, U18"""
    odd = ("torch", "g", "class", "graph", "call", "__dict__")
    nodes = [Node(name, "placeholder", f"in_{at}") for at, name in enumerate(odd)]
    total = schema.List(tuple(map(Ref, odd)))
    nodes += [
        Node("weight.0", "get_attr", "layers.0.weight"),
        Node("s", "call_function", "torch.ops.aten.stack.default", (total,)),
        Node("output", "output", "output", (schema.Tuple((Ref("s"), Ref("weight.0"))),)),
    ]
    case, blobs = recorded(lambda *xs: sum(xs), *[torch.ones(1)] * len(odd))
    attributes = (Entry("layers.0.weight", schema.Tensor("float32", (1,), (1,), storage=0)),)
    gm, args = made_by(script(msgspec.structs.replace(case, graph=schema.Graph(tuple(nodes), attributes)), blobs))
    assert [node.name for node in gm.graph.nodes][: len(odd)] == list(odd)
    stacked, weight = gm(*args)
    assert stacked.shape == (len(odd), 1)
    assert weight.tolist() == [1.0]


@pytest.mark.parametrize(
    "node",
    [
        Node("a", "call_function", "builtins.exec", ("1",)),
        Node("a", "call_function", "torch.load", ("x",)),
        Node("a", "call_function", "builtins.getattr", (Ref("x"), "__class__")),
        Node("a", "call_method", "__reduce_ex__", (Ref("x"), 2)),
        Node("a", "call_method", "x'); import os; ('", (Ref("x"),)),
    ],
)
def test_a_script_calls_only_what_graphs_may_call(node: Node) -> None:
    """Covers: U17"""
    case, blobs = recorded(lambda x: x + 1, torch.ones(1))
    x, _, output = case.graph.nodes
    case = msgspec.structs.replace(case, graph=schema.Graph((x, node, output)))
    with pytest.raises((BadCase, CannotHold)):
        script(case, blobs)


def test_tags_for_the_compiler_are_kept_and_bookkeeping_is_not() -> None:
    case, blobs = recorded(lambda x: x.relu(), torch.ones(1))
    x, relu, output = case.graph.nodes
    more = (Entry("recompute", "MUST_SAVE"), Entry("seq_nr", 7), Entry("ac_graph_id", 3))
    relu = msgspec.structs.replace(relu, meta=Meta(more=more))
    gm, _ = made_by(script(msgspec.structs.replace(case, graph=schema.Graph((x, relu, output))), blobs))
    meta = next(node.meta for node in gm.graph.nodes if node.op == "call_function")
    assert meta == {"recompute": torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE, "ac_graph_id": 3}


# ---- inputs ----------------------------------------------------------------------------------------------


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(3)


def without_memory() -> torch.Tensor:
    tensor = torch.randn(3, 2)
    tensor.untyped_storage().resize_(0)
    return tensor


def strange_inputs() -> dict[str, torch.Tensor]:
    nans = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 0x3F800000]).to(torch.int32).view(torch.float32)
    storage = torch.arange(24.0)
    quantised = torch.quantize_per_tensor(torch.randn(6), 0.1, 3, torch.quint8)
    by_channel = torch.quantize_per_channel(
        torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    )
    return {
        "nan payloads": nans,
        "signed zeros": torch.tensor([-0.0, 0.0]),
        "a plain few": torch.tensor([[0.1, 1 / 3], [1e30, -2.0]]),
        "transposed": torch.randn(3, 4).t(),
        "a view": storage[2:20:3],
        "overlapping": storage.as_strided((3, 3), (1, 1), 4),
        "expanded": torch.randn(1, 3).expand(4, 3),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "0-dim": torch.tensor(3, dtype=torch.int16),
        "empty": torch.empty(0, 3),
        "bool": torch.tensor([True, False]),
        "float8": torch.randn(5).to(torch.float8_e4m3fn),
        "bfloat16": torch.randn(5).bfloat16(),
        "many": torch.randn(40, 40),
        "middling": torch.randn(100),
        "wants a gradient": torch.randn(3, requires_grad=True),
        "not a leaf": torch.randn(3, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "made in inference mode": in_inference_mode(),
        "its memory given back": without_memory(),
        "quantised": quantised,
        "by channel": by_channel,
    }


def test_inputs_come_back_bit_for_bit_with_all_that_torch_knows_of_them(tmp_path: Path) -> None:
    """Covers: S21, U9"""
    wanted = strange_inputs()
    case, blobs = recorded(placeholders(len(wanted)), *wanted.values())
    ways = choose(case, blobs)
    assert {Literal, InText, Beside} <= {type(way) for way in ways.values()}
    (tmp_path / "repro.safetensors").write_bytes(b"".join(write_beside(case, ways, blobs)))
    _, inputs = made_by(build(case, ways, beside="repro.safetensors"), tmp_path / "repro.py")
    for (name, expected), found in zip(wanted.items(), inputs, strict=True):
        assert (found.dtype, found.shape, found.layout) == (expected.dtype, expected.shape, expected.layout), name
        assert (found.requires_grad, found.is_leaf, type(found)) == (
            expected.requires_grad,
            expected.is_leaf,
            type(expected),
        ), name
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg()), name
        assert (found.is_inference(), found._is_view()) == (expected.is_inference(), expected._is_view()), name
        if expected.untyped_storage().nbytes() == 0 if expected.layout is torch.strided else False:
            assert found.untyped_storage().nbytes() == 0, name
        elif expected.is_quantized:
            assert str(found) == str(expected), name
        elif expected.layout is torch.strided:
            assert found.stride() == expected.stride(), name
            assert found.storage_offset() == expected.storage_offset(), name
            assert same_bits(found, expected), name
        else:
            assert same_bits(found.to_dense(), expected.to_dense()), name


def test_inputs_that_share_memory_share_it_in_the_script_too() -> None:
    """Covers: S21"""
    base = torch.arange(8.0)
    case, blobs = recorded(placeholders(3), base[:4], base[2:6], torch.arange(8.0))
    _, (a, b, other) = made_by(script(case, blobs))
    a[2] = 99.0
    assert b[0] == 99.0
    assert a._base is b._base is not None
    assert other.tolist() == list(range(8))


@pytest.mark.parametrize("how", ["uniform", "normal", "integers", "constant", "arange"])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "int64", "uint8", "bool", "complex64", "float8_e5m2", "qint8"]
)
def test_the_scripts_recipes_make_the_same_bytes_as_ours(how: Any, dtype: str) -> None:
    """Covers: U9"""
    recipe = schema.Generated(how, dtype, 1, 7, seed=3)
    names: dict[str, Any] = {"torch": torch}
    exec(MADE.text, names)
    ours = recipes.make(recipe, 66)
    theirs = names["made"](66, how, getattr(torch, dtype), 1, 7, 3)
    assert bytes(memory(theirs)) == bytes(memory(ours))


def test_a_recipe_of_the_case_is_written_as_the_recipe() -> None:
    recipe = schema.Generated("integers", "int64", 0, 30522, seed=5, why="indexes a dimension of size 30522")
    case, blobs = recorded(placeholders(1), torch.zeros(4, dtype=torch.int64))
    case = msgspec.structs.replace(case, storages=(schema.Storage(32, recipe),))
    text = script(case, blobs)
    assert 'made(32, "integers", torch.int64, high=30522, seed=5),  # indexes a dimension of size 30522' in text
    held = recipes.make(recipe, 32)
    assert bytes(memory(made_by(text)[1][0].untyped_storage())) == bytes(memory(held))


def test_the_file_beside_the_script_is_asked_for_and_never_replaced_by_anything(tmp_path: Path) -> None:
    """Covers: U9, U30"""
    case, blobs = recorded(placeholders(1), torch.randn(2000))
    ways = choose(case, blobs)
    data = b"".join(write_beside(case, ways, blobs))
    text = build(case, ways, beside="big.safetensors")
    beside = tmp_path / "big.safetensors"
    names = executed(text, tmp_path / "repro.py")
    with pytest.raises(SystemExit, match="is not there"):
        names["memory"]()
    for damage in (b"", data[:4], data[:20], data[:-10], b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]"):
        beside.write_bytes(damage)
        with pytest.raises(SystemExit, match=r"cut short|belongs to another|no safetensors"):
            names["memory"]()
    other, its_blobs = recorded(placeholders(1), torch.randn(2000))
    beside.write_bytes(b"".join(write_beside(other, choose(other, its_blobs), its_blobs)))
    with pytest.raises(SystemExit, match="belongs to another script"):
        names["memory"]()
    beside.write_bytes(data)
    assert same_bits(
        made_by(text, tmp_path / "repro.py")[1][0], torch.frombuffer(bytearray(data[-8000:]), dtype=torch.float32)
    )


def test_large_inputs_have_recipes_of_the_same_kind_or_none() -> None:
    case, blobs = recorded(
        placeholders(3), torch.randn(4000) * 3 + 5, torch.randint(0, 9, (4000,)), torch.full((4000,), 2.0)
    )
    normal, integers, constant = recipes_for(case, blobs).values()
    assert normal.how == "normal"
    assert abs(float(normal.low) - 5) < 0.5
    assert (integers.how, integers.low, integers.high) == ("integers", 0, 9)
    assert (constant.how, constant.low) == ("constant", 2.0)
    case, blobs = recorded(placeholders(2), torch.randn(4000), torch.full((4000,), float("nan")))
    assert recipes_for(case, blobs) == {}


# ---- symbols ---------------------------------------------------------------------------------------------


def test_symbolic_sizes_are_rebuilt_with_the_same_facts() -> None:
    """Covers: S23, U4"""
    symbols = schema.Symbols(
        symbols=(
            schema.Symbol("s77", positive=True, hint=8, lower=2, upper=Apply("int_oo"), source="L['x'].size()[0]"),
            schema.Symbol("s27", positive=True, hint=8, lower=2, upper=64),
            schema.Symbol("u0", backed=False, nonnegative=True, lower=0, upper=100, size_like=True),
        ),
        replacements=(("s27", "s77"),),
        divisible=(Apply("Mod", ("s77", 4)),),
        guards=(Apply("Le", (2, "s77")), Apply("Ne", ("s77", 7))),
        asserts=(schema.Assert(Apply("Lt", ("u0", "s77")), "u0 < s77", "u0"),),
        unbacked_ints=1,
    )
    fake = schema.Fake("float32", ("s77", Apply("FloorDiv", ("s77", 4))), (Apply("FloorDiv", ("s77", 4)), 1))
    case, blobs = recorded(lambda n, x: x * 2, 8, torch.ones(8, 2))
    nodes = (
        Node("n", "placeholder", "n", meta=Meta(val=schema.Symbolic("int", "s77", 8))),
        Node("x", "placeholder", "x", meta=Meta(val=fake)),
        Node("mul", "call_function", "torch.ops.aten.mul.Tensor", (Ref("x"), 2)),
        Node("output", "output", "output", (schema.Tuple((Ref("mul"),)),)),
    )
    inputs = (8, schema.Tensor("float32", (8, 2), (2, 1), storage=0))
    case = msgspec.structs.replace(case, graph=schema.Graph(nodes), symbols=symbols, inputs=inputs, compiler=AOT)
    names = executed(script(case, blobs))
    found = record_symbols(names["symbols"]())
    assert msgspec.structs.replace(found, axioms=None) == symbols
    n, x = names["fakes"]([8, torch.ones(8, 2)])
    assert str(n) == "s77"
    assert [str(size) for size in x.shape] == ["s77", "(s77//4)"]
    gm = names["graph"](names["memory"]() if "memory" in names else {})
    names["propagate"](gm, [n, x])
    mul = next(node for node in gm.graph.nodes if node.op == "call_function")
    assert str(mul.meta["val"].shape[0]) == "s77"


def test_a_number_of_the_user_that_became_a_tensor_is_known_by_its_symbol() -> None:
    """Covers: U4"""
    symbols = schema.Symbols((schema.Symbol("zf1", type="float", hint=2.0, lower=Apply("-oo"), upper=Apply("oo")),))
    nodes = (
        Node("x", "placeholder", "x", meta=Meta(example=schema.Fake("float64", (), ()))),
        Node("item", "call_method", "item", (Ref("x"),), meta=Meta(example=schema.Symbolic("float", "zf1", 2.0))),
        Node("output", "output", "output", (schema.Tuple((Ref("item"),)),)),
    )
    case, blobs = recorded(placeholders(1), torch.tensor(2.0, dtype=torch.float64), symbols=symbols)
    names = executed(script(msgspec.structs.replace(case, graph=schema.Graph(nodes)), blobs))
    (x,) = names["fakes"]([torch.tensor(2.0)])
    with names["fake_mode"]():
        assert str(x.item()) == "zf1"


# ---- state -----------------------------------------------------------------------------------------------


def with_state(**state: Any) -> str:
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), state=schema.State(**state))
    return script(case, blobs)


def test_environment_and_configuration_go_through_quotes_and_odd_characters() -> None:
    """Covers: U17"""
    odd = 'it\'s "quoted" {x} %s \n\t\u202e end'
    text = with_state(
        environment=(("TORCH_ODD", odd), ("TORCHINDUCTOR_MAX_AUTOTUNE", "1")),
        config=(
            schema.Config("torch._inductor.config", "cpp.simdlen", 256),
            schema.Config("torch._inductor.config", "triton.cudagraphs", value=True),
        ),
    )
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    values = {ast.unparse(node.targets[0]): node.value for node in assigned}
    assert ast.literal_eval(values["os.environ['TORCH_ODD']"]) == odd
    assert text.index("os.environ") < text.index("import torch")
    assert "        torch._inductor.config.cpp.simdlen = 256\n" in text


@pytest.mark.parametrize(
    "option",
    [
        schema.Config("os", "environ", 1),
        schema.Config("torch._inductor.config", "x = 1; import os", 1),
        schema.Config("torch._inductor.config", "cpp.__class__", 1),
    ],
)
def test_only_options_of_torchs_configuration_are_set(option: schema.Config) -> None:
    """Covers: U17"""
    with pytest.raises(BadCase):
        with_state(config=(option,))


def test_what_could_name_a_program_is_a_comment_unless_the_case_is_trusted() -> None:
    option = schema.Config("torch._inductor.config", "cpp.cxx", schema.Tuple((None, "/tmp/evil")))
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), state=schema.State(config=(option,)))
    assert "# not set here" in script(case, blobs)
    assert "\n        torch._inductor.config.cpp.cxx = " not in script(case, blobs)
    assert "\n        torch._inductor.config.cpp.cxx = " in script(case, blobs, trust=True)


def test_options_that_the_user_chose_go_to_the_backend_but_no_program_does() -> None:
    """Covers: U17"""
    options = (Entry("max_autotune", value=True), Entry("cpp.cxx", schema.Tuple((None, "/tmp/evil"))))
    compiler = schema.Compiler(After.DYNAMO, "inductor", mode=None, options=options)
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), compiler=compiler)
    text = script(case, blobs)
    assert 'torch._TorchCompileInductorWrapper(None, {"max_autotune": True}, None)' in text
    assert "evil" not in text
    assert "evil" in script(case, blobs, trust=True)


def test_modes_are_restored() -> None:
    """Covers: U15"""
    text = with_state(
        grad=False,
        autocast=(schema.Autocast("cpu", enabled=True, dtype="bfloat16"),),
        deterministic="warn",
        default_dtype="float64",
        matmul_precision="medium",
        threads=torch.get_num_threads(),
    )
    state = executed(text)["state"]
    before = (torch.get_default_dtype(), torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision())
    try:
        with state():
            assert not torch.is_grad_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_deterministic_debug_mode() == 1
            assert torch.get_default_dtype() is torch.float64
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(before[0])
        torch.set_deterministic_debug_mode(before[1])
        torch.set_float32_matmul_precision(before[2])
    assert torch.is_grad_enabled()


def test_random_state_is_there_for_graphs_that_draw_and_for_no_others() -> None:
    """Covers: U15"""
    drawn = torch.Generator().manual_seed(7)
    seeded = bytes(drawn.get_state().tolist())
    torch.rand(3, generator=drawn)
    moved = bytes(drawn.get_state().tolist())

    def text(program: Any, state: bytes) -> str:
        case, blobs = recorded(program, torch.ones(4), state=schema.State(rng=(schema.Rng("cpu", state),)))
        return script(case, blobs)

    assert "torch.manual_seed(7)" in text(torch.bernoulli, seeded)
    assert "seed" not in text(torch.sin, seeded).partition("# ---- from here on")[0]
    names = executed(text(torch.bernoulli, moved))
    with torch.random.fork_rng(), names["state"]():
        assert bytes(torch.get_rng_state().tolist()) == moved
    assert draws_random_numbers(schema.Graph((Node("m", "call_module", "drop", (Ref("x"),)),)))


# ---- the failure -----------------------------------------------------------------------------------------


def run_main(
    kind: str | None, attempt: Any, capsys: pytest.CaptureFixture[str]
) -> tuple[int | BaseException | None, str]:
    """What `main` of the script for such a failure returns or raises if the graph does what `attempt` does."""
    failure = FAILURES[kind] if kind else None
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), failure=failure)
    names = executed(script(case, blobs))
    names["attempt"] = attempt
    names["alarm"] = lambda seconds: None
    try:
        result: int | BaseException | None = names["main"]()
    except Exception as error:  # noqa: BLE001 - that is what is asked for
        result = error
    return result, capsys.readouterr().out


def raising(error: Exception) -> Any:
    def attempt() -> Any:
        raise error

    return attempt


def test_the_recorded_exception_is_told_and_raised_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: S21, S23"""
    error = IndexError("tuple index 12 out of range at 0xdead")
    result, said = run_main("raised", raising(error), capsys)
    assert result is error
    assert "expected: raises torch._inductor.exc.InductorError: IndexError: tuple index 3 out of range" in said
    assert said.splitlines()[-1] == "verdict:  fails as recorded"


@pytest.mark.parametrize("error", [ValueError("tuple index 3 out of range"), IndexError("list index out of range")])
def test_another_exception_is_another_failure(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U5"""
    result, said = run_main("raised", raising(error), capsys)
    assert result == 2
    assert said.splitlines()[-1] == "verdict:  fails, but not as recorded"
    assert str(error) in said


@pytest.mark.parametrize("kind", [*FAILURES, None])
def test_no_failure_is_said_to_be_none(kind: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: S21"""
    result, said = run_main(kind, list, capsys)
    assert result == 0
    assert said.splitlines()[-2:] == ["seen:     no failure", "verdict:  does not fail here"]


def test_a_difference_of_the_recorded_kind_is_the_failure_and_of_another_kind_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Covers: S21, U5"""
    result, said = run_main("mismatched", lambda: [("value", "result[0]: 3 of 4")], capsys)
    assert isinstance(result, AssertionError)
    assert "verdict:  fails as recorded" in said
    result, said = run_main("mismatched", lambda: [("shape", "result[0]: shape")], capsys)
    assert result == 2
    result, said = run_main("mismatched", raising(RuntimeError("no")), capsys)
    assert result == 2


def test_a_crash_is_told_by_its_signal_or_its_exit_code() -> None:
    """Covers: U19"""
    for signature, words, data in (
        (schema.Signature("crashed", signal=11), "dies of SIGSEGV", '"signal": 11'),
        (schema.Signature("crashed", signal=99), "dies of signal 99", '"signal": 99'),
        (schema.Signature("crashed", message="the process died"), "dies of a signal", '"signal": None'),
        (
            schema.Signature("crashed", message="left with exit code 3"),
            "ends itself with exit code 3",
            '"exit_code": 3',
        ),
    ):
        text = script(*recorded(placeholders(1), torch.ones(1), failure=schema.Failure(signature)))
        assert f'"words": "{words}"' in text
        assert data in text


def test_a_hang_has_the_recorded_deadline() -> None:
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), failure=FAILURES["timed out"])
    text = script(case, blobs)
    assert '"seconds": 45.0' in text
    assert 'alarm(EXPECTED["seconds"])' in text


def test_results_are_compared_like_numbers_that_were_rounded() -> None:
    case, blobs = recorded(lambda x: x + 1, torch.ones(1), failure=FAILURES["mismatched"])
    differences = executed(script(case, blobs))["differences"]
    x = torch.tensor([1.0, float("nan"), float("inf"), 0.0])
    assert differences([x], (x.clone(),)) == []
    assert differences([x], [x + 1e-7]) == []
    assert [symptom for symptom, _ in differences([x], [x + 1])] == ["value"]
    assert [symptom for symptom, _ in differences(x, torch.zeros(4))] == ["nan"]
    huge = torch.tensor([float("inf")])
    for other in (torch.tensor([44.0]), -huge, huge * 0):  # as the signature of a wrong result has it
        assert [symptom for symptom, _ in differences(huge, other)] == ["nan"]
        assert [symptom for symptom, _ in differences(other, huge, huge.double())] == ["nan"]
    assert [symptom for symptom, _ in differences(x, x.double())] == ["dtype"]
    assert [symptom for symptom, _ in differences(x[:1], x)] == ["shape"]
    assert [symptom for symptom, _ in differences(torch.tensor([1, 2]), torch.tensor([1, 3]))] == ["integer"]
    assert [symptom for symptom, _ in differences([x], [x, x])] == ["structure"]
    far, near, exact = torch.tensor([1.001]), torch.tensor([1.0]), torch.tensor([1.0005], dtype=torch.float64)
    assert differences(far, near, exact) == []
    assert differences(far, near, near.double()) != []


def test_compiled_by_a_backend_of_dynamo_it_runs_and_is_differentiated() -> None:
    """Covers: S21"""
    weight = torch.nn.Parameter(torch.randn(3, 2))
    case, blobs = recorded(lambda x, w: (x @ w).relu(), torch.randn(4, 3), weight)
    names = executed(script(case, blobs))
    assert names["attempt"]() == []
    result = names["graph"](names.get("memory", dict)())(*names["inputs"](names.get("memory", dict)()))
    args = names["inputs"](names.get("memory", dict)())
    assert isinstance(args[1], torch.nn.Parameter)
    assert isinstance(result, torch.Tensor)


# ---- what is not plain -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * 2, torch.softmax(x, 0)),
        lambda x: [x.log(), {"half": x.half() * x}],
        lambda x: torch.complex(x, x * x),
        lambda x: torch.sparse_coo_tensor([[1, 2]], x[:2], (5,)),
        lambda x: (x[:0], x.detach(), 3, (x > 0)),
    ],
)
def test_a_script_asks_for_the_gradients_that_a_check_compares(program: Any) -> None:
    """Of results with NaN in them, too: the sum of such a result would spoil all gradients. Covers: S32, U26"""
    names: dict[str, Any] = {"torch": torch}
    exec(BACKWARD.text, names)
    x, y = (torch.tensor([1.0, -2.0, 3.0], requires_grad=True) for _ in range(2))
    probe_loss(program(x)).backward()
    (found,) = names["backward"](program(y), [y, 3])
    assert x.grad is not None
    assert same_bits(found, x.grad)
    assert names["backward"]((y.detach(), None), [y]) == []


def test_a_graph_that_takes_a_backward_state_gets_a_plain_notice() -> None:
    """Covers: S20"""
    case, blobs = recorded(placeholders(1), torch.ones(1))
    missing = schema.Noticed("BackwardState", "it is the state of a hook in the user's backward")
    case = msgspec.structs.replace(case, inputs=(missing,))
    with pytest.raises(CannotHold) as caught:
        script(case, blobs)
    text = notice(case, caught.value)
    ast.parse(text)
    assert "BackwardState" in text
    with pytest.raises(SystemExit, match="There is no script for this failure"):
        executed(text)


CUSTOM = """@torch.library.custom_op("sleuth_script::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * FACTOR
"""
FAKE = """@twice.register_fake
def _(x):
    return torch.empty_like(x)
"""


def test_a_custom_operator_is_defined_in_the_script_with_where_it_came_from() -> None:
    """Covers: U3"""
    code = schema.Code(
        "python op",
        "sleuth_script::twice",
        module="mylib.ops",
        file="ops.py",
        line=12,
        source=CUSTOM,
        constants=(Entry("FACTOR", 2), Entry("fake", FAKE)),
    )
    text = script(*calling("torch.ops.sleuth_script.twice.default", code))
    assert "# python op sleuth_script::twice, from ops.py:12" in text
    assert (
        text.index("FACTOR = 2") < text.index("def twice") < text.index("twice.register_fake") < text.index("def graph")
    )
    gm, args = made_by(text)
    assert gm(*args)[0].tolist() == [2.0, 2.0]


def test_an_operator_gets_its_gradient_and_what_decorators_did_not_register() -> None:
    """Covers: U3"""
    source = "def half(x: Tensor) -> Tensor:\n    return x / 2\n"
    fake = "def shape(x):\n    return torch.empty_like(x)\n"
    backward = "def gradient(ctx, grad):\n    return grad / 2\n"
    code = schema.Code(
        "python op",
        "sleuth_script::half",
        source=source,
        constants=(Entry("backward", backward), Entry("fake", fake)),
    )
    executed(script(*calling("torch.ops.sleuth_script.half.default", code)))
    x = torch.ones(2, requires_grad=True)
    torch.ops.sleuth_script.half(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.5]
    assert torch.ops.sleuth_script.half(torch.empty(3, device="meta")).shape == (3,)


def test_source_that_needs_what_the_case_does_not_hold_is_imported_instead_or_says_what_is_missing() -> None:
    """Covers: U3"""
    source = "def scaled(x):\n    y = [SCALE for _ in x]\n    return x * SCALE\n"
    code = schema.Code("function", "mylib.ops.scaled", module="mylib.ops", source=source)
    text = script(*calling("mylib.ops.scaled", code))
    assert "is not in the case (SCALE), so it is imported\nimport mylib.ops\n" in text
    assert "call(mylib.ops.scaled, g.x0)" in text
    code = schema.Code("function", "__main__.scaled", module="__main__", source=source)
    text = script(*calling("__main__.scaled", code))
    assert "# not in the case, define it here: SCALE\n" in text
    assert "call(scaled, g.x0)" in text


def test_an_operator_without_source_is_asked_for_by_name() -> None:
    """Covers: U3"""
    target = "torch.ops.sleuth_missing.op.default"
    text = script(*calling(target, schema.Code("library", "sleuth_missing::op")))
    with pytest.raises(SystemExit, match="sleuth_missing::op is not registered"):
        executed(text)
    text = script(*calling(target, schema.Code("library", "sleuth_missing::op", file="libops.so")))
    assert 'torch.ops.load_library("libops.so")' in text
    text = script(*calling(target, schema.Code("python op", "sleuth_missing::op", module="mylib.ops")))
    assert "import mylib.ops" in text


def test_a_function_of_the_users_own_is_defined_or_imported() -> None:
    """Covers: U3, U18"""
    source = "def outer():\n    return 1\n\n\ndef thrice(x):\n    return x * 3\n"
    code = schema.Code("function", "__main__.thrice", module="__main__", file="train.py", line=9, source=source)
    gm, args = made_by(script(*calling("__main__.thrice", code)))
    assert gm(*args)[0].tolist() == [3.0, 3.0]
    text = script(*calling("mylib.ops.thrice", schema.Code("function", "mylib.ops.thrice", module="mylib.ops")))
    assert "import mylib.ops\n" in text
    assert "call(mylib.ops.thrice, g.x0)" in text


def test_source_that_is_not_python_by_itself_gives_no_broken_script() -> None:
    """Covers: U3, U18"""
    code = schema.Code("python op", "sleuth_script::broken", source="    return x +\n")
    with pytest.raises(CannotHold, match="is not Python by itself"):
        script(*calling("torch.ops.sleuth_script.broken.default", code))


def test_a_triton_kernel_is_embedded_with_its_helpers_and_constants_under_its_number() -> None:
    """Covers: U2"""
    kernel = "@triton.jit\ndef add_kernel(x, out, n, B: tl.constexpr):\n    tl.store(out, helper(tl.load(x)) + SHIFT)\n"
    helper = "@triton.jit\ndef helper(x):\n    return x * 2\n"
    code = schema.Code(
        "triton kernel",
        "add_kernel",
        file="kernels.py",
        line=3,
        source=kernel,
        index=4,
        constants=(Entry("helper", helper), Entry("SHIFT", 1.5)),
    )
    case, blobs = calling("torch.ops.higher_order.triton_kernel_wrapper_mutation", code, kernel_idx=4)
    text = script(case, blobs)
    ast.parse(text)
    order = ["import triton\n", "import triton.language as tl", "SHIFT = 1.5", "def helper", "def add_kernel"]
    positions = [text.index(piece) for piece in order]
    assert max(positions[:3]) < positions[3] < positions[4]
    assert "kernel_side_table.id_to_kernel[4] = add_kernel" in text


def test_collectives_run_on_one_process_and_say_so() -> None:
    """Covers: U20"""
    case, blobs = calling("torch.ops._c10d_functional.all_reduce.default")
    x, made, end = case.graph.nodes
    made = msgspec.structs.replace(made, args=(Ref("x0"), "sum", "dp"))
    gather = Node("z", "call_function", "torch.ops._c10d_functional.all_gather_into_tensor.default", (Ref("y"), 8, "0"))
    text = script(msgspec.structs.replace(case, graph=schema.Graph((x, made, gather, end))), blobs)
    assert '    one_process(8, "dp", "0")\n' in text
    assert "their values are not to be trusted" in text


def test_a_backend_of_the_users_own_is_imported_by_name() -> None:
    """Covers: U24"""
    case, blobs = recorded(
        lambda x: x + 1, torch.ones(1), compiler=schema.Compiler(After.DYNAMO, "mylib.backends:mine")
    )
    text = script(case, blobs)
    assert "import mylib.backends\n" in text
    assert "compiled = mylib.backends.mine(gm, " in text
    case, blobs = recorded(lambda x: x, torch.ones(1), compiler=schema.Compiler(After.DYNAMO, "a.b(); import os"))
    with pytest.raises(CannotHold):
        script(case, blobs)


# ---- the text --------------------------------------------------------------------------------------------


def test_many_small_inputs_do_not_make_a_long_script() -> None:
    case, blobs = recorded(placeholders(20), *(torch.randn(1000) for _ in range(20)))
    assert {type(way) for way in choose(case, blobs).values()} == {Beside}
    assert len(recipes_for(case, blobs)) == 20


def test_the_same_case_is_the_same_bytes() -> None:
    """Covers: S22"""
    texts = {script(*recorded(branches, torch.ones(3), compiler=AOT)) for _ in range(3)}
    assert len(texts) == 1


def test_nothing_of_the_machine_is_in_a_script() -> None:
    """Covers: S22, U30"""
    program, inputs = PROGRAMS["arithmetic"]
    text = script(*recorded(program, *inputs))
    assert str(Path.home()) not in text
    assert str(Path(__file__).parent) not in text


def test_a_long_statement_is_broken_at_its_brackets_and_stays_the_same_statement() -> None:
    statement = f"g.cat = call(aten.cat.default, [{', '.join(f'g.some_node_{i}' for i in range(20))}], dim=(1,))"
    lines = wrap(statement, "    ")
    assert max(map(len, lines)) <= WIDTH
    assert ast.dump(ast.parse("if 1:\n" + "\n".join(lines))) == ast.dump(ast.parse(f"if 1:\n    {statement}"))


def test_comments_are_one_line_whatever_they_say() -> None:
    assert (
        line_of('  File "C:\\\\x\\\\model.py", line 3, in f\n    y = "a\u202eb"\n')
        == 'model.py:3, in f: y = "a\u202eb"'
    )
    fake = schema.Fake("bfloat16", (2, 3), (1, 2), device="cuda:0")
    assert shape_of(schema.Tuple((fake, None))) == "(bf16[2, 3][1, 2] cuda:0, None)"
    nasty = schema.Failure(schema.Signature("raised", types=("E",)), message='"""\n\x00\u2028 print(1)')
    text = script(*recorded(lambda x: x + 1, torch.ones(1), failure=nasty))
    assert ast.parse(text)


def test_every_graph_inside_a_graph_is_found_inner_ones_first() -> None:
    inner = schema.Graph((Node("output", "output", "output", (None,)),))
    outer = schema.Graph((Node("output", "output", "output", (None,)),), (Entry("a.b", inner),))
    assert [path for path, _ in graphs_in(schema.Graph((), (Entry("top", outer),)), "")] == ["top_a_b", "top", ""]


def test_a_world_without_symbols_has_the_settings_of_the_original() -> None:
    """Covers: S23, U4: whether an operator may give a symbolic number decides whether the compiler raises."""
    case, blobs = recorded(lambda x: x + 1, torch.ones(2), compiler=AOT)
    case = msgspec.structs.replace(case, symbols=schema.Symbols(settings=(("allow_scalar_outputs", False),)))
    made = executed(script(case, blobs))
    assert made["symbols"]().settings.allow_scalar_outputs is False
    case = msgspec.structs.replace(case, symbols=schema.Symbols())
    assert executed(script(case, blobs))["symbols"]().settings.allow_scalar_outputs is True


def test_the_compiler_is_told_which_inputs_it_may_overwrite() -> None:
    """Covers: S23: the code of a backward graph depends on it."""
    case, blobs = recorded(lambda x: x + 1, torch.ones(2), compiler=AOT)
    assert "bw_donated_idxs" not in script(case, blobs)
    donated = msgspec.structs.replace(case.compiler, donated=(0, 2))
    assert "bw_donated_idxs=[0, 2]" in script(msgspec.structs.replace(case, compiler=donated), blobs)

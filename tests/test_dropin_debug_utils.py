"""The helpers of torch's own tool: on the same call ours does what torch's does, wherever that is right."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._dynamo.debug_utils as theirs
import torch._inductor.config
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchsleuth.dropin import debug_utils as ours
from torchsleuth.dropin.modules import Constants, has_its_data, module_source
from torchsleuth.errors import MissingTensor, StoreError


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


# ---- environment and configuration -----------------------------------------------------------------------


def only(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in list(os.environ):
        if any(part in name for part in ("TORCH", "DYNAMO", "INDUCTOR", "TRITON")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_environment_variables_are_set_as_torch_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U17"""
    only(monkeypatch, TORCHINDUCTOR_MAX_AUTOTUNE="1", TORCH_X='a "b"', OTHER="x", TRITON_PTXAS_PATH="/x")
    monkeypatch.setenv("TORCHDYNAMO_REPRO_AFTER", "aot")
    assert lines_of(ours.generate_env_vars_string()) == lines_of(theirs.generate_env_vars_string())


@pytest.mark.parametrize("value", ["inductor_'env'", "back\\slash", "two\nlines", "'\"", "", "…"])
def test_any_value_of_a_variable_comes_back(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Torch turns single quotes into double ones, and breaks on others. Covers: U17"""
    only(monkeypatch, TORCHINDUCTOR_SOME=value)
    text = ours.generate_env_vars_string()
    monkeypatch.setenv("TORCHINDUCTOR_SOME", "other")
    exec(text, {})
    assert os.environ["TORCHINDUCTOR_SOME"] == value


def test_secrets_stay_out_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, TORCH_HUB_TOKEN="hunter2")
    text = ours.generate_env_vars_string()
    assert "hunter2" not in text
    exec(text, {})


def test_stable_output_has_no_environment_and_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S22"""
    only(monkeypatch, TORCHINDUCTOR_X="1")
    with torch._dynamo.config.patch(recompile_limit=3):
        found = ours.generate_env_vars_string(stable_output=True), ours.generate_config_string(stable_output=True)
    for text in found:
        assert all(line.startswith("#") for line in text.splitlines())


def test_options_that_were_set_are_set_by_a_script() -> None:
    """Covers: U17"""
    with torch._dynamo.config.patch(recompile_limit=3), torch._inductor.config.patch({"cpp.threads": 3}):
        text = ours.generate_config_string()
        assert "torch._dynamo.config.recompile_limit = 3" in lines_of(theirs.generate_config_string())
    assert "torch._dynamo.config.recompile_limit = 3" in lines_of(text)
    assert "torch._inductor.config.cpp.threads = 3" in lines_of(text)
    assert "repro_after" not in text


def test_an_option_that_cannot_be_said_is_a_comment() -> None:
    """Torch writes what it prints as, which is no Python. Covers: U17"""
    with torch._inductor.config.patch(post_grad_custom_pre_pass=lambda graph: None):
        text = ours.generate_config_string()
    assert any(line.startswith("# not set here") and "post_grad_custom_pre_pass" in line for line in lines_of(text))
    exec(text, {"torch": torch})


# ---- places ----------------------------------------------------------------------------------------------


@pytest.fixture
def _debug_dir(tmp_path: Path) -> Any:
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path)):
        yield


@pytest.mark.usefixtures("_debug_dir")
def test_files_are_where_torch_puts_them(tmp_path: Path) -> None:
    """Covers: S17, U28"""
    assert ours.minifier_dir() == theirs.minifier_dir()
    assert ours.minifier_dir().startswith(str(tmp_path))
    assert os.path.isdir(ours.minifier_dir())
    assert ours.get_minifier_repro_path() == theirs.get_minifier_repro_path()


@pytest.mark.usefixtures("_debug_dir")
def test_the_launcher_is_written_whole_and_its_path_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: U28"""
    caplog.set_level(logging.WARNING, logger="torch._dynamo")
    logging.getLogger("torch._dynamo").addHandler(caplog.handler)
    try:
        ours.helper_for_dump_minify("print('x')\n")
    finally:
        logging.getLogger("torch._dynamo").removeHandler(caplog.handler)
    path = Path(ours.get_minifier_repro_path())
    assert path.read_text() == "print('x')\n"
    assert str(path) in caplog.text
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_launcher_that_cannot_be_written_is_torch_s_error(tmp_path: Path) -> None:
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path)):
        os.mkdir(ours.get_minifier_repro_path())  # a folder in its place
        with pytest.raises(NotImplementedError, match="minifier_launcher"):
            ours.helper_for_dump_minify("x")
        with pytest.raises(NotImplementedError):
            theirs.helper_for_dump_minify("x")


# ---- running and comparing -------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return torch.relu(self.linear(x))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("only_fwd", [True, False])
def test_a_run_gives_what_torch_s_run_gives(grad: bool, only_fwd: bool) -> None:
    """Covers: S36"""
    model, x = Model(), torch.randn(4, 3, requires_grad=grad)
    model.linear.weight.grad = torch.ones(2, 3)  # is not there at the start of a run
    found, expected = (side.run_fwd_maybe_bwd(model, [x], only_fwd) for side in (ours, theirs))
    assert equal(found, expected)
    assert model.count == 0
    assert x.grad is None
    assert torch.equal(model.linear.weight.grad, torch.ones(2, 3))


def test_a_boxed_function_gets_a_list_and_inputs_are_cloned_unless_said_otherwise() -> None:
    """Covers: S36"""
    seen: list[Any] = []

    def boxed(args: list[Any]) -> Any:
        seen.append(args[0])
        result = args[0] * 2
        args.clear()
        return (result,)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(ours.run_fwd_maybe_bwd(boxed, [x], True)[0], 2 * x)
    ours.run_fwd_maybe_bwd(boxed, [x], True, disable_clone=True)
    assert seen[0] is not x
    assert seen[0].requires_grad
    assert seen[1] is x


def graph_of(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    return make_fx(function)(*args)


WRONG = {
    "right": lambda gm: gm,
    "a little off": lambda gm: lambda *args: [one * (1 + 1e-9) for one in gm(*args)],
    "wrong": lambda gm: lambda *args: [one + 1 for one in gm(*args)],
    "other dtype": lambda gm: lambda *args: [one.double() for one in gm(*args)],
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_two_models_are_the_same_where_torch_says_so(change: Callable[..., Any]) -> None:
    """Covers: S32"""
    x = torch.randn(5)
    gm = graph_of(lambda x: (x.sin() + 2,), x)
    opt = change(gm)
    assert ours.same_two_models(gm, opt, [x], only_fwd=True) == theirs.same_two_models(gm, opt, [x], only_fwd=True)


def test_wrong_gradients_count_unless_forward_only() -> None:
    """Covers: S32"""
    x = torch.randn(5, requires_grad=True)
    gm = graph_of(lambda x: (x.sin(),), x)

    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return ((x.sin() - x).detach() + x,)

    assert not ours.same_two_models(gm, Other(), [x])
    assert ours.same_two_models(gm, Other(), [x], only_fwd=True)


def test_what_raises_is_another_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S30"""

    def raises(*args: Any) -> Any:
        raise ValueError("boom")

    x = torch.randn(2)
    gm = graph_of(lambda x: (x,), x)
    assert ours.same_two_models(gm, raises, [x], only_fwd=True) is True
    assert "boom" in caplog.text
    assert ours.backend_accuracy_fails(gm, [x], lambda gm, inputs: raises()) is False


def test_fp64_that_cannot_be_had_is_an_error_only_where_it_is_required() -> None:
    """Covers: S31"""
    x = torch.randn(4, dtype=torch.float32)
    gm = graph_of(lambda x: (x.view(torch.int32) + 1,), x)
    assert ours.same_two_models(gm, gm, [x], only_fwd=True)
    with pytest.raises(RuntimeError, match="fp64"):
        ours.same_two_models(gm, gm, [x], only_fwd=True, require_fp64=True)
    with torch._dynamo.config.patch(same_two_models_use_fp64=False):
        assert ours.same_two_models(gm, gm, [x], only_fwd=True, require_fp64=True)


def test_the_tolerance_is_torch_s_setting() -> None:
    x = torch.ones(3)
    gm = graph_of(lambda x: (x,), x)
    off = lambda x: (x + 0.05,)  # noqa: E731
    assert not ours.same_two_models(gm, off, [x], only_fwd=True)
    with torch._dynamo.config.patch(repro_tolerance=0.1):
        assert ours.same_two_models(gm, off, [x], only_fwd=True)


def test_dropout_with_a_wrong_operator_is_noticed() -> None:
    """Torch draws other numbers each time, and takes whatever comes for noise. Covers: U10"""
    x = torch.ones(2000)
    torch.manual_seed(0)
    gm = graph_of(lambda x: (torch.nn.functional.dropout(x, 0.5) + 1,), x)
    wrong = lambda *args: (gm(*args)[0] + 0.01,)  # noqa: E731
    assert ours.same_two_models(gm, gm, [x], only_fwd=True)
    assert not ours.same_two_models(gm, wrong, [x], only_fwd=True)
    assert theirs.same_two_models(gm, wrong, [x], only_fwd=True)


@pytest.mark.parametrize("compiler", WRONG.values(), ids=WRONG.keys())
def test_a_backend_fails_where_torch_says_so(compiler: Callable[..., Any]) -> None:
    x = torch.randn(5)
    gm = graph_of(lambda x: (x.sin() + 2,), x)
    asked = [side.backend_accuracy_fails(gm, [x], lambda gm, _: compiler(gm), True) for side in (ours, theirs)]
    assert asked[0] == asked[1]


def test_a_graph_in_fp64_has_the_casts_that_torch_gives_it() -> None:
    """The model is changed in place, and the inputs stay nested as they are. Covers: U11"""

    def fn(x: torch.Tensor) -> Any:
        return (
            torch.ops.prims.convert_element_type(x, torch.float16),
            x.to(torch.float16),
            torch.full(x.shape, 2, dtype=torch.float32),
            x.new_empty(x.shape),
            x.to(torch.int32),
        )

    x = torch.randn(4)
    gm = make_fx(fn, decomposition_table=torch._decomp.core_aten_decompositions())(x)
    other = copy.deepcopy(gm)
    model, inputs = ours.cast_to_fp64(gm, (x, [x, 3]))
    assert model is gm
    assert equal(inputs, (x.double(), [x.double(), 3]))
    assert isinstance(inputs, tuple)
    theirs.cast_to_fp64(other, (x,))
    assert gm.code == other.code


def test_an_accuracy_error_is_made_of_a_text() -> None:
    assert str(ours.AccuracyError("Bad accuracy detected")) == "Bad accuracy detected"
    assert not issubclass(ours.AccuracyError, AssertionError)


# ---- modules as text -------------------------------------------------------------------------------------


def calling(**modules: torch.nn.Module) -> fx.GraphModule:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for name in modules:
        value = graph.call_module(name, (value,))
    graph.output((value,))
    return fx.GraphModule(dict(modules), graph)


MODULES = {
    "linear": torch.nn.Linear(2, 3),
    "norm": torch.nn.BatchNorm2d(3),
    "lstm": torch.nn.LSTM(2, 3),
    "conv": torch.nn.Conv2d(1, 2, 3, padding=1),
    "softmax": torch.nn.Softmax(dim=1),
    "fake quant": torch.ao.quantization.get_default_qat_qconfig("fbgemm").activation(),
    "qat": torch.ao.nn.intrinsic.qat.ConvBnReLU2d(
        3, 4, kernel_size=3, stride=2, bias=False, qconfig=torch.ao.quantization.get_default_qat_qconfig("x86")
    ),
    "qat linear": torch.ao.nn.qat.Linear(3, 4, qconfig=torch.ao.quantization.get_default_qat_qconfig("qnnpack")),
}


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_modules_of_torch_s_become_the_calls_that_torch_writes(module: torch.nn.Module) -> None:
    """But for the order of keywords."""
    gm = calling(m=module)
    found, expected = (lines_of(side.NNModuleToString.convert(gm)) for side in (ours, theirs))
    assert sorted(found[4].replace(")", ",").split()) == sorted(expected[4].replace(")", ",").split())
    assert found[:4] + found[5:] == expected[:4] + expected[5:]
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(found), names)
    assert type(names["Repro"]().m) is type(module)


def test_buffers_and_parameters_become_what_torch_writes() -> None:
    """Larger ones have random data: there is no folder to keep theirs in. Covers: S25"""
    gm = calling(m=torch.nn.ReLU())
    gm.register_buffer("large", torch.empty(5))
    gm.register_buffer("ids", torch.arange(9))
    gm.register_buffer("small", torch.tensor([1, 2]))
    gm.register_parameter("weight", torch.nn.Parameter(torch.ones(5)))
    found, expected = (lines_of(side.NNModuleToString.convert(gm)) for side in (ours, theirs))
    assert found == expected


def test_text_without_quotes_is_quoted() -> None:
    """Torch writes `padding=same`, which is no Python. Covers: U18"""
    text = ours.NNModuleToString.convert(calling(m=torch.nn.Conv2d(1, 2, 3, padding="same")))
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    assert names["Repro"]().m.padding == "same"


class Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def __repr__(self) -> str:
        return "<a module of mine>"


def test_a_module_that_cannot_be_written_is_an_error_or_a_gap_in_a_script_that_parses() -> None:
    """Torch writes what it prints as into the script of a graph after AOT. Covers: U18"""
    gm = calling(m=Own())
    for side in (ours, theirs):
        assert not side.NNModuleToString.can_convert_to_string(gm)
        with pytest.raises(AssertionError, match="a module of mine"):
            side.NNModuleToString.convert(gm)
    names: dict[str, Any] = {"torch": torch}
    exec(ours.NNModuleToString.convert(gm, allow_unsafe_repr=True), names)
    with pytest.raises(AssertionError, match="a module of mine"):
        names["Repro"]()(torch.ones(1))


def made(gm: fx.GraphModule, constants: Constants) -> torch.nn.Module:
    names: dict[str, Any] = {"torch": torch, "tensor": torch.tensor, "nan": float("nan"), "inf": float("inf")}
    exec(module_source(gm, constants), names)
    found: torch.nn.Module = names["Repro"]()
    return found


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


ODD = {
    "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    "payload": torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
    "half": torch.tensor([1.5, float("-inf")], dtype=torch.float16),
    "complex": torch.tensor([complex(1, float("nan"))]),
    "bool": torch.tensor(True),
    "empty": torch.empty(0, 3),
    "int8": torch.tensor([[1], [2]], dtype=torch.int8),
    "large": torch.arange(300.0),
    "strided": torch.arange(12.0).reshape(3, 4).t(),
    "bfloat16": torch.arange(7.0).bfloat16(),
}


@pytest.mark.parametrize("in_folder", [True, False])
@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_constants_come_back_bit_for_bit(tmp_path: Path, value: torch.Tensor, in_folder: bool) -> None:
    """Covers: S21, S25, U18"""
    gm = calling(m=torch.nn.ReLU())
    gm.register_buffer("c", value)
    again = made(gm, Constants(str(tmp_path) if in_folder else None)).c
    assert bits(again) == bits(value)
    assert (again.dtype, again.shape, again.stride()) == (value.dtype, value.shape, value.stride())
    assert has_its_data(again)


def test_a_constant_too_large_for_a_script_without_a_folder_is_known_to_lack_its_data() -> None:
    """Covers: S25"""
    gm = calling(m=torch.nn.ReLU())
    gm.register_buffer("c", torch.arange(10_000.0))
    assert not has_its_data(made(gm, Constants(None)).c)


def test_a_constant_whose_bytes_are_gone_is_an_error(tmp_path: Path) -> None:
    """Covers: U9"""
    gm = calling(m=torch.nn.ReLU())
    gm.register_buffer("c", torch.arange(300.0))
    text = module_source(gm, Constants(str(tmp_path)))
    for file in (tmp_path / "storages").iterdir():
        file.unlink()
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    with pytest.raises((FileNotFoundError, StoreError)):
        names["Repro"]()


def test_modules_keep_their_state_and_their_mode(tmp_path: Path) -> None:
    """Torch's scripts have other weights than the program. Covers: U9"""
    linear, norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
    norm(torch.randn(5, 3))
    norm.eval()
    gm = calling(linear=linear, norm=norm, drop=torch.nn.Dropout(0.5).eval())
    again = made(gm, Constants(str(tmp_path)))
    x = torch.randn(4, 3)
    assert torch.equal(again(x)[0], gm(x)[0])
    assert all(has_its_data(value) for value in (*again.parameters(), *again.buffers()))


def test_graphs_in_graphs_become_classes() -> None:
    """Torch writes what they print as: a SyntaxError. Covers: U1"""

    def f(p: torch.Tensor, x: torch.Tensor) -> Any:
        return (torch.cond(p, lambda x: x.sin(), lambda x: x.cos() + 1, (x,)),)

    p, x = torch.tensor(True), torch.randn(3)
    gm = make_fx(f)(p, x)
    again = made(gm, Constants(None))
    for flag in (p, ~p):
        assert torch.equal(again(flag, x)[0], gm(flag, x)[0])
    with pytest.raises((SyntaxError, AssertionError)):
        exec(theirs.NNModuleToString.convert(gm, allow_unsafe_repr=True), {"torch": torch})


def test_children_that_are_counted_are_found_again() -> None:
    """Torch writes `self.0 = ...`. Covers: U18"""
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    gm = fx.symbolic_trace(torch.nn.Sequential(inner, torch.nn.Linear(2, 2)))
    again = made(gm, Constants(None))
    x = torch.randn(3, 2)
    assert torch.equal(again(x), gm(x))


def test_the_first_constant_of_a_process_can_be_written() -> None:
    """Torch imports a part of itself when it first makes a tensor of numbers."""
    code = (
        "import torch, torch.fx as fx\n"
        "from torchsleuth.dropin.debug_utils import NNModuleToString\n"
        "gm = fx.symbolic_trace(torch.nn.Identity())\n"
        "gm.register_buffer('scale', torch.ones(2))\n"
        "print(NNModuleToString.convert(gm))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "self.register_buffer('scale', tensor([1.0, 1.0]))" in ran.stdout, ran.stderr


def test_a_function_without_a_name_is_a_gap_in_a_script_that_parses() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(lambda x: x, (graph.placeholder("x"),)),))
    text = module_source(fx.GraphModule({}, graph), Constants(None), allow_unsafe_repr=True)
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    with pytest.raises(AssertionError, match="lambda"):
        names["Repro"]()(torch.ones(1))


def test_attributes_with_dots_are_found_again() -> None:
    root = torch.nn.Module()
    root.add_module("block", torch.nn.Module())
    root.block.register_buffer("scale", torch.tensor([2.0]))
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.mul, (x, graph.get_attr("block.scale"))),))
    again = made(fx.GraphModule(root, graph), Constants(None))
    assert torch.equal(again(torch.ones(1))[0], torch.tensor([2.0]))


# ---- inputs ----------------------------------------------------------------------------------------------


def _inputs() -> dict[str, Any]:
    base = torch.randn(10)
    return {
        "plain": torch.zeros(3, 4),
        "int": torch.ones(3, 4, dtype=torch.int32),
        "channels last": torch.empty((3, 4, 5, 6), memory_format=torch.channels_last).fill_(2),
        "view": base[2:6],
        "transposed": torch.randn(3, 4).t(),
        "grad": torch.randn(2, requires_grad=True),
        "no leaf": torch.randn(2, requires_grad=True) * 2,
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "expanded": torch.randn(1).expand(5),
    }


@pytest.mark.parametrize("name", _inputs())
def test_a_tensor_is_written_in_torch_s_lines_and_comes_back(tmp_path: Path, name: str) -> None:
    """Covers: S21"""
    tensor = _inputs()[name]
    written = []
    for side, folder in ((ours, "ours"), (theirs, "theirs")):
        writer = side.InputWriter(str(tmp_path / folder), stable_hash=True)
        writer.tensor("x", tensor)
        written.append(writer._lines)
    assert written[0] == written[1]
    for folder, reader in (("ours", ours.InputReader), ("theirs", ours.InputReader), ("ours", theirs.InputReader)):
        found = reader(str(tmp_path / folder))
        exec("\n".join(written[0]), {"reader": found, "torch": torch})
        again = found.args[0]
        assert torch.equal(again, tensor)
        assert (again.stride(), again.dtype) == (tensor.stride(), tensor.dtype)
        assert (again.requires_grad, again.is_leaf) == (tensor.requires_grad, tensor.is_leaf)
        assert (again.is_conj(), again.is_neg()) == (tensor.is_conj(), tensor.is_neg())


def test_views_of_one_memory_share_it_again(tmp_path: Path) -> None:
    """Covers: S21"""
    base = torch.arange(10.0)
    writer = ours.InputWriter(str(tmp_path))
    writer.tensor("a", base[:6])
    writer.tensor("b", base[4:])
    reader = ours.InputReader(str(tmp_path))
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(writer.lines()), names)
    names["load_args"](reader)
    reader.args[0][5] = -1
    assert reader.args[1][1] == -1
    counted = ours.NopInputReader()
    names["load_args"](counted)
    assert counted.total == 1
    assert names["load_args"]._version == 0


def test_other_kinds_of_inputs_are_written_as_torch_writes_them() -> None:
    environment = ShapeEnv()
    symbol = environment.create_unbacked_symint()
    written = []
    for side in (ours, theirs):
        writer = side.InputWriter(None)
        writer.symint("n", 5)
        writer.generator("g", torch.Generator())
        writer.opaque("o", "__torch__.MyClass")
        writer.const("c")
        writer.unsupported("u", object())
        written.append([line.partition("#")[0].strip() for line in writer._lines])
    assert written[0] == written[1]
    assert "expr='u0'" in _written_symint(symbol)
    reader = ours.InputReader(None)
    exec("\n".join(written[0]), {"reader": reader})
    assert reader.args[0] == 5
    assert isinstance(reader.args[1], torch.Generator)
    assert reader.args[2:] == [None, None, None]


def _written_symint(symbol: Any) -> str:
    writer = ours.InputWriter(None)
    writer.symint("u", symbol)
    return writer._lines[0]


def test_expressions_of_symbolic_sizes_are_kept() -> None:
    """Covers: U4"""
    gm = make_fx(lambda x: (x.shape[0] * 2, x), tracing_mode="symbolic")(torch.randn(6, 3))
    size = next(node.meta["val"] for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.SymInt))
    said = str(size.node.expr)
    writer = ours.InputWriter(None)
    writer.symint("n", size)
    reader = ours.InputReader(None)
    exec("\n".join(writer._lines), {"reader": reader})
    assert reader.args == [6]
    assert reader.symint_exprs == {0: said}


def test_missing_bytes_are_an_error_and_never_random(tmp_path: Path) -> None:
    """Torch makes up data, and goes on. Covers: U9"""
    writer = ours.InputWriter(str(tmp_path))
    writer.tensor("x", torch.randn(4))
    for file in (tmp_path / "storages").iterdir():
        file.unlink()
    with pytest.raises(MissingTensor, match="--no-save-dir"):
        exec("\n".join(writer._lines), {"reader": ours.InputReader(str(tmp_path)), "torch": torch})
    made_up = ours.InputReader(None)  # somebody says that any data will do
    exec("\n".join(writer._lines), {"reader": made_up, "torch": torch})
    assert made_up.args[0].shape == (4,)
    assert made_up.made_up == [0]


def test_fakes_are_written_without_data_and_read_as_fitting_numbers() -> None:
    """Covers: U9"""
    gm = make_fx(lambda x: (x,), tracing_mode="fake")(torch.randint(5, (4,)))
    fake = next(iter(gm.graph.nodes)).meta["val"]
    writer = ours.InputWriter(None)
    writer.tensor("x", fake)
    assert writer._lines[0] == "buf0 = reader.storage(None, 32, dtype_hint=torch.int64)"
    reader = ours.InputReader(None)
    exec("\n".join(writer._lines), {"reader": reader, "torch": torch})
    assert set(reader.args[0].tolist()) <= {0, 1}  # as an index, or as a truth value


def test_a_script_that_was_moved_with_its_data_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U30"""
    there, here = tmp_path / "there" / "checkpoints", tmp_path / "here"
    writer = ours.InputWriter(str(there))
    writer.tensor("x", torch.arange(4.0))
    there.parent.rename(here)
    import __main__

    monkeypatch.setattr(__main__, "__file__", str(here / "minifier_launcher.py"), raising=False)
    reader = ours.InputReader(str(there))
    exec("\n".join(writer._lines), {"reader": reader, "torch": torch})
    assert torch.equal(reader.args[0], torch.arange(4.0))


# ---- inputs for a printed graph --------------------------------------------------------------------------


def printed(
    self: Any,
    primals_1: "f32[10, 6]",  # noqa: F821, UP037
    primals_2: "i64[s0]",  # noqa: F821, UP037
    primals_3: "Sym(s0)",  # noqa: F821, UP037
    primals_4: "bf16[s1, 3]",  # noqa: F821, UP037
    primals_5: "f32[]",  # noqa: F722
) -> Any:
    _tensor_constant0: "i64[4]" = self._tensor_constant0  # noqa: F821, UP037
    return _tensor_constant0, primals_1, primals_2, primals_3, primals_4, primals_5


def test_inputs_of_a_printed_graph_are_like_those_that_torch_makes() -> None:
    options: dict[str, Any] = {"device": "cpu", "sym_shapes": {"s0": 10}, "default_sym_shape": 5}
    found, expected = (side.aot_graph_input_parser(printed, **options) for side in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
        elif name != "self":
            assert found[name] == value
    assert found["self"]._tensor_constant0.shape == (4,)
    assert found["primals_2"]._dynamo_dynamic_indices == expected["primals_2"]._dynamo_dynamic_indices
    printed(**found)


def test_sizes_that_are_computed_are_computed() -> None:
    """Torch looks them up as they stand, and finds nothing."""

    def forward(x: f32[2 * s0, s1 + 1]) -> None:  # noqa: F821
        """Nothing."""

    forward.__annotations__["x"] = "f32[2*s0, s1 + 1]"
    found = ours.aot_graph_input_parser(forward, device="cpu", sym_shapes={"s0": 3}, default_sym_shape=4)
    assert found["x"].shape == (6, 5)


def test_a_size_that_nobody_knows_is_torch_s_error() -> None:
    for side in (ours, theirs):
        with pytest.raises(RuntimeError, match="s0"):
            side.aot_graph_input_parser(printed, device="cpu")

"""Graphs after AOT by torch's names: a compiler under debugging, the scripts, and the commands of a script."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._dynamo.repro.after_aot as theirs
import torch._inductor.compile_fx
import torch._inductor.config
from torch import fx
from torch.fx.experimental._backward_state import BackwardState
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.dropin import after_aot as ours
from torchsleuth.dropin.debug_utils import get_minifier_repro_path


class Boom(Exception):
    pass


def graph_of(function: Callable[..., Any], *args: Any, mode: Any = "real") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*args)


def small() -> tuple[fx.GraphModule, list[torch.Tensor]]:
    x = torch.arange(4.0)
    return graph_of(lambda x: (x.sin() + 1,), x), [x]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files go to a folder of the test's own, and options that commands set are as before afterwards."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    hooks = torch._inductor.config.generate_intermediate_hooks
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "debug")):
        yield
    torch._inductor.config.generate_intermediate_hooks = hooks


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What torch's loggers say."""
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def debugging(after: str | None, level: int = 2, **more: Any) -> Any:
    return torch._dynamo.config.patch(repro_after=after, repro_level=level, **more)


def written() -> list[str]:
    """The names of all files that there are, without what belongs to the content store."""
    root = Path.cwd().parent
    return sorted(str(one.name) for one in root.rglob("*") if one.is_file() and "storages" not in one.parts)


class Compiler:
    """A compiler that notes what it is given, and does what a test says."""

    def __init__(self, run: Callable[[list[Any]], Any] | None = None, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, Sequence[Any], dict[str, Any]]] = []
        self.run = run
        self.error = error
        self.__name__ = "a compiler of mine"
        self.__doc__ = "Compiles."

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        self.calls.append((gm, inputs, kwargs))
        for node in gm.graph.nodes:  # compilers change what they are given
            if node.op == "call_function" and node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default
        gm.recompile()
        if self.error is not None:
            raise self.error
        return self.run or (lambda inputs: gm(*inputs))


# ---- the wrapper -----------------------------------------------------------------------------------------


def test_off_the_compiler_s_own_object_is_returned_and_nothing_is_written() -> None:
    """Covers: S1, S14"""
    result = object()
    gm, inputs = small()
    for after in (None, "dynamo"):
        with debugging(after):
            wrapped = ours.wrap_compiler_debug(lambda gm, inputs, **kwargs: result, "inductor")
            assert wrapped(gm, inputs) is result
    assert written() == []


def test_whatever_else_the_compiler_is_given_is_passed_on() -> None:
    """Torch adds an argument of its own. Covers: S14"""
    compiler = Compiler()
    wrapped = ours.wrap_compiler_debug(compiler, "inductor")
    gm, inputs = small()
    with debugging("aot"):
        wrapped(gm, inputs, is_backward=True, graph_id=3)
    assert compiler.calls[0][2] == {"is_backward": True, "graph_id": 3}
    assert (wrapped.__name__, wrapped.__doc__) == ("a compiler of mine", "Compiles.")


def test_any_other_setting_is_rejected_at_once() -> None:
    """Covers: S15"""
    gm, inputs = small()
    for side in (ours, theirs):
        wrapped = side.wrap_compiler_debug(lambda *args, **kwargs: None, "inductor")
        with debugging("sometimes"), pytest.raises(AssertionError, match="sometimes"):
            wrapped(gm, inputs)


def test_the_setting_is_read_again_at_each_call() -> None:
    """Covers: S2"""

    def run(inputs: list[Any]) -> Any:
        raise Boom

    gm, inputs = small()
    with debugging("aot"):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
    with debugging(None), pytest.raises(Boom):
        compiled(list(inputs))
    assert written() == []


@pytest.mark.parametrize("error", [None, Boom()], ids=["returns", "raises"])
def test_during_the_call_the_setting_is_none_and_it_is_restored(error: Exception | None) -> None:
    """Covers: S3, S38"""
    seen = []

    def run(inputs: list[Any]) -> Any:
        seen.append(torch._dynamo.config.repro_after)
        if error is not None:
            raise error

    gm, inputs = small()
    with debugging("aot", level=1):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        with contextlib.suppress(Boom):
            compiled(list(inputs))
        assert torch._dynamo.config.repro_after == "aot"
    assert seen == [None]
    assert compiled._boxed_call


@pytest.mark.parametrize(
    ("level", "files"), [(1, ["4.py", "repro.py"]), (2, ["minifier_launcher.py"]), (3, ["minifier_launcher.py"])]
)
def test_an_error_while_compiling_leaves_what_its_level_says(
    level: int, files: list[str], logged: pytest.LogCaptureFixture
) -> None:
    """At level 3 torch leaves nothing: a compile error would be lost, and so would a crash. Covers: S6, S7, S8"""
    error = Boom("no")
    gm, inputs = small()
    with debugging("aot", level), pytest.raises(Boom) as caught:
        ours.wrap_compiler_debug(Compiler(error=error), "inductor")(gm, inputs)
    assert caught.value is error
    assert written() == files
    assert "CompilerError" in logged.text


@pytest.mark.parametrize(
    ("level", "files"), [(1, ["4.py", "repro.py"]), (2, ["minifier_launcher.py"]), (3, ["minifier_launcher.py"])]
)
def test_an_error_while_running_leaves_what_its_level_says(level: int, files: list[str]) -> None:
    """Covers: S5, S6, S7"""
    error = Boom("no")

    def run(inputs: list[Any]) -> Any:
        inputs.clear()  # as compiled functions do
        raise error

    gm, inputs = small()
    with debugging("aot", level):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        with pytest.raises(Boom) as caught:
            compiled([torch.tensor([float("nan"), -0.0, 1.0, 2.0])])
    assert caught.value is error
    assert written() == files


def test_a_script_has_the_graph_as_it_was_and_the_inputs_bit_for_bit() -> None:
    """Torch's have random numbers of the same size at levels 1 and 2. Covers: S5, S10, S21"""

    def run(inputs: list[Any]) -> Any:
        inputs.clear()
        raise Boom

    gm, inputs = small()
    given = torch.tensor([float("nan"), -0.0, 1.0, 2.0])
    with debugging("aot", 1):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        with pytest.raises(Boom):
            compiled([given])
        with pytest.raises(Boom):
            compiled([given[:2]])  # its own shapes
    mod, args = loaded(Path("repro.py").read_text())
    assert args[0].shape == (2,)
    assert args[0].view(torch.int32).tolist() == given[:2].view(torch.int32).tolist()
    assert torch.equal(mod(torch.ones(2))[0], torch.ones(2).sin() + 1)


def loaded(text: str) -> tuple[torch.nn.Module, list[Any]]:
    """The module and the inputs of a script, without running it."""
    names: dict[str, Any] = {"__name__": "a script"}
    exec(text, names)
    call = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "run_repro"
    )
    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    reader = ours.InputReader(given["save_dir"])
    names["load_args"](reader)
    return names["mod"], reader.args


@pytest.mark.parametrize("writes", [torch.ops.aten.add_.Tensor, torch.Tensor.add_], ids=["operator", "method"])
def test_what_a_graph_writes_to_before_it_raises_is_kept_as_it_was(writes: Any) -> None:
    """Covers: S21"""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(writes, (x, y)),))
    gm = fx.GraphModule({}, graph)

    def run(inputs: list[Any]) -> Any:
        inputs[0].add_(100)
        raise Boom

    with debugging("aot", 1):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, [])
        with pytest.raises(Boom):
            compiled([torch.zeros(2), torch.ones(2)])
    assert torch.equal(loaded(Path("repro.py").read_text())[1][0], torch.zeros(2))


def test_copies_share_memory_as_their_originals_do() -> None:
    base = torch.arange(4.0)
    inputs = [base[:2], 3, base[2:], torch.ones(2)]
    found = ours.with_copies(inputs, [0])
    assert found[3] is inputs[3]
    assert found[1] == 3
    found[0].untyped_storage().fill_(0)
    assert torch.equal(found[2], torch.zeros(2))
    assert torch.equal(base, torch.arange(4.0))


def test_options_of_torch_compile_are_in_the_script_though_they_are_gone_by_then() -> None:
    """They are set only while a graph is compiled. Covers: U17"""

    def run(inputs: list[Any]) -> Any:
        raise Boom

    gm, inputs = small()
    with debugging("aot", 1):
        with torch._inductor.config.patch(max_fusion_size=7):
            compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        with pytest.raises(Boom):
            compiled(list(inputs))
    assert "torch._inductor.config.max_fusion_size = 7" in Path("repro.py").read_text()
    assert torch._inductor.config.max_fusion_size != 7


def test_made_up_inputs_are_not_all_the_same() -> None:
    """Otherwise x - y would always be zero."""
    gm = graph_of(lambda x, y: (x - y,), torch.ones(3), torch.ones(3))
    mod, args = loaded(ours.generate_standalone_repro(gm, [torch.randn(3), torch.randn(3)]))
    assert mod(*args)[0].abs().min() > 0


def test_inputs_of_odd_kinds_do_not_cost_the_script() -> None:
    """Covers: U18"""
    graph = fx.Graph()
    names = [graph.placeholder(name) for name in "abcd"]
    graph.output((names[0],))
    gm = fx.GraphModule({}, graph)
    odd = [torch.ones(2), torch.eye(3).to_sparse(), 1.5, torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)]
    args = loaded(script_of(gm, odd))[1]
    assert args[1:] == [None, 1.5, None]


def test_level_4_that_cannot_write_still_says_that_results_differ() -> None:
    gm, inputs = small()
    with debugging("aot", 4), torch._dynamo.config.patch(debug_dir_root="/proc/nowhere"):
        compiled = ours.wrap_compiler_debug(Compiler(lambda inputs: (inputs[0] * 3,)), "inductor")(gm, inputs)
        with pytest.raises(ours.AccuracyError):
            compiled(list(inputs))


def test_at_level_3_everything_is_on_the_disk_before_the_call() -> None:
    """Covers: S9"""
    seen: list[torch.Tensor] = []

    def run(inputs: list[Any]) -> Any:
        seen.append(loaded(Path(get_minifier_repro_path()).read_text())[1][0])
        return inputs

    gm, inputs = small()
    with debugging("aot", 3):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        compiled([torch.tensor([5.0, 6.0, 7.0, 8.0])])
    assert torch.equal(seen[0], torch.tensor([5.0, 6.0, 7.0, 8.0]))


def test_level_4_is_for_inductor_only_as_torch_has_it() -> None:
    """Covers: S11"""
    gm, inputs = small()
    for side in (ours, theirs):
        with debugging("aot", 4):
            compiled = side.wrap_compiler_debug(lambda gm, inputs, **kwargs: gm, "mine")(gm, inputs)
            with pytest.raises(NotImplementedError, match="inductor only"):
                compiled(list(inputs))


def test_level_4_returns_the_compiled_result_where_it_is_right() -> None:
    """Covers: S13"""
    calls = []

    def run(inputs: list[Any]) -> Any:
        calls.append(1)
        return (inputs[0].sin() + 1,)

    gm, inputs = small()
    with debugging("aot", 4):
        compiled = ours.wrap_compiler_debug(Compiler(run), "inductor")(gm, inputs)
        torch.manual_seed(3)
        before = torch.get_rng_state()
        result = compiled(list(inputs))
    assert torch.equal(result[0], inputs[0].sin() + 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert written() == []


def test_level_4_raises_where_it_is_wrong_and_writes_both(logged: pytest.LogCaptureFixture) -> None:
    """Covers: S12"""
    gm, inputs = small()
    with debugging("aot", 4):
        compiled = ours.wrap_compiler_debug(Compiler(lambda inputs: (inputs[0] * 3,)), "inductor")(gm, inputs)
        with pytest.raises(ours.AccuracyError, match="Bad accuracy detected") as caught:
            compiled(list(inputs))
    assert written() == ["4.py", "minifier_launcher.py", "repro.py"]
    assert "accuracy=True" in Path("repro.py").read_text()
    assert "Accuracy failed for the AOT Autograd graph" in logged.text
    assert get_minifier_repro_path() in "".join(caught.value.__notes__)


def test_an_input_that_is_written_to_wrongly_is_noticed() -> None:
    """A graph of an optimiser returns nothing: torch compares nothing, and passes. Covers: S12"""
    gm = graph_of(lambda x: (x.add_(1) * 0,), torch.zeros(3))

    def run(inputs: list[Any]) -> Any:
        return (inputs[0].add_(2) * 0,)

    for side, raises in ((ours, True), (theirs, False)):
        compiler = lambda gm, inputs, **kwargs: boxed_function(run)  # noqa: E731
        with debugging("aot", 4):
            compiled = side.wrap_compiler_debug(compiler, "inductor")(gm, [])
            with pytest.raises(ours.AccuracyError) if raises else contextlib.nullcontext():
                compiled([torch.zeros(3)])


def boxed_function(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def test_forward_and_backward_are_watched_each_by_itself() -> None:
    """What only the backward fails on is the backward graph. Covers: S16, S41"""
    from functorch.compile import aot_module, make_boxed_func

    def compiler(gm: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        if any(node.target is torch.ops.aten.cos.default for node in gm.graph.nodes):
            raise Boom
        return make_boxed_func(gm.forward)

    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    wrapped = ours.wrap_compiler_debug(compiler, "mine")
    x = torch.ones(3, requires_grad=True)
    with debugging("aot", 1), pytest.raises(Boom):
        aot_module(Sine(), fw_compiler=wrapped, bw_compiler=wrapped)(x).sum().backward()
    text = Path("repro.py").read_text()
    assert "aten.cos" in text
    assert "tangents_1" in text


@pytest.mark.parametrize("level", [1, 2, 3])
def test_training_goes_on_as_it_would(level: int) -> None:
    """Torch hides the backward from Dynamo by a function around it, which has to know how it is called."""
    from functorch.compile import aot_module, make_boxed_func

    wrapped = ours.wrap_compiler_debug(lambda gm, inputs: make_boxed_func(gm.forward), "mine")
    linear = torch.nn.Linear(3, 2)
    x = torch.ones(4, 3, requires_grad=True)
    expected = torch.autograd.grad(linear(x).sin().sum(), [x, *linear.parameters()])
    with debugging("aot", level):
        compiled = aot_module(linear, fw_compiler=wrapped, bw_compiler=wrapped)
        found = torch.autograd.grad(compiled(x).sin().sum(), [x, *compiled.parameters()])
        hidden = torch.compiler.disable(wrapped(*small()))
        assert hidden._boxed_call
    assert all(map(torch.equal, found, expected))


def test_an_integer_that_differs_counts_unless_it_is_to_be_passed_over() -> None:
    """Covers: S13, S34"""
    gm = graph_of(lambda x: (x > 1, x), torch.arange(4.0))
    with debugging("aot", 4):
        compiled = ours.wrap_compiler_debug(Compiler(lambda inputs: (inputs[0] > 2, inputs[0])), "inductor")(gm, [])
        with pytest.raises(ours.AccuracyError):
            compiled([torch.arange(4.0)])
    with debugging("aot", 4, repro_ignore_non_fp=True):
        compiled([torch.arange(4.0)])


def test_what_cannot_be_written_does_not_replace_the_user_s_error(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ours, "write_whole", full)
    monkeypatch.setattr(ours, "helper_for_dump_minify", full)
    gm, inputs = small()
    for level in (1, 2, 3):
        with debugging("aot", level), pytest.raises(Boom):
            ours.wrap_compiler_debug(Compiler(error=Boom()), "inductor")(gm, inputs)
    assert "No space left on device" in logged.text


def test_no_accelerator_no_synchronising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S39"""
    called = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *args: called.append(1))
    gm, inputs = small()
    with debugging("aot"):
        ours.wrap_compiler_debug(Compiler(), "inductor")(gm, inputs)(list(inputs))
    assert not called


# ---- scripts ---------------------------------------------------------------------------------------------


def script_of(gm: fx.GraphModule, args: Sequence[Any], name: str = "inductor", **options: Any) -> str:
    out = io.StringIO()
    ours.save_graph_repro(out, gm, args, name, **options)
    return out.getvalue()


def test_a_script_has_what_users_of_torch_s_rely_on(tmp_path: Path) -> None:
    gm, args = small()
    text = script_of(gm, args, "inductor_accuracy", save_dir=str(tmp_path), command="minify", check_str="it's")
    assert "class Repro(torch.nn.Module):\n    def __init__(self) -> None:\n        super().__init__()" in text
    assert "    def forward(self, x_1):" in text
    assert "def load_args(reader):" in text
    assert "load_args._version = 0" in text
    assert "mod = Repro()" in text
    assert "from torchsleuth.dropin.after_aot import run_repro" in text
    assert "accuracy=True, command='minify'" in text
    assert f"""tracing_mode='real', check_str={"it's"!r})""" in text
    theirs_ = io.StringIO()
    theirs.save_graph_repro(theirs_, gm, args, "inductor", save_dir=str(tmp_path / "theirs"), stable_hash=True)
    forward = [line for line in theirs_.getvalue().splitlines() if line.startswith("        ") and "torch.ops" in line]
    assert all(line in text for line in forward)
    names: dict[str, Any] = {"__compile_source__": text}
    exec(text, names)  # as torch's own tests do it
    assert torch.equal(names["mod"](*args)[0], gm(*args)[0])


def test_by_default_a_script_compares_if_the_name_says_so_and_keeps_symbols(tmp_path: Path) -> None:
    """Torch bakes sizes in as soon as the inputs are real. Covers: S23, U4"""
    gm, args = small()
    assert "accuracy=False" in script_of(gm, args)
    assert "accuracy='strict_accuracy'" in script_of(gm, args, "inductor_accuracy", accuracy="strict_accuracy")
    x = torch.randn(4, 6)
    symbolic = graph_of(lambda x: (x.reshape(-1) * x.shape[0],), x, mode="symbolic")
    assert "tracing_mode='symbolic'" in script_of(symbolic, [x])
    assert "tracing_mode='real'" in script_of(symbolic, [x], tracing_mode="real")
    fakes = [node.meta["val"] for node in symbolic.graph.nodes if node.op == "placeholder"]
    text = script_of(symbolic, fakes)
    assert "tracing_mode='symbolic'" in text
    assert loaded(text)[1][0].shape == (4, 6)


def test_stable_output_is_the_same_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S22"""
    gm, args = small()
    first = script_of(gm, args, stable_output=True)
    monkeypatch.setenv("TORCHINDUCTOR_SOMETHING", "1")
    with torch._dynamo.config.patch(recompile_limit=3):
        assert script_of(gm, args, stable_output=True) == first
        assert script_of(gm, args) != first


def test_the_state_of_a_backward_pass_is_a_notice_instead_of_a_script() -> None:
    """Covers: S20"""
    gm, args = small()
    text = script_of(gm, [*args, BackwardState()])
    assert "BackwardState" in text
    assert "def forward" not in text
    ast.parse(text)


def test_an_input_that_cannot_be_written_is_a_line_that_says_so() -> None:
    """Covers: U18"""
    graph = fx.Graph()
    names = [graph.placeholder(name) for name in ("a", "b", "c")]
    graph.output((names[0],))
    gm = fx.GraphModule({}, graph)
    text = script_of(gm, [torch.ones(2), [torch.ones(1), 3, "x"], object()])
    assert loaded(text)[1][1:] == [None, None]


def test_a_custom_operator_comes_along_with_its_source(tmp_path: Path) -> None:
    """Torch's script does not find it. Covers: U3"""
    program = tmp_path / "with_op.py"
    program.write_text(
        "import sys, torch\n"
        "from torch.fx.experimental.proxy_tensor import make_fx\n"
        "from torchsleuth.dropin.after_aot import save_graph_repro\n"
        "@torch.library.custom_op('mine_aot::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
        "@twice.register_fake\n"
        "def _(x):\n"
        "    return torch.empty_like(x)\n"
        "gm = make_fx(lambda x: (torch.ops.mine_aot.twice(x) + 1,))(torch.randn(3))\n"
        "save_graph_repro(sys.stdout, gm, [torch.ones(3)], 'inductor')\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    mod, args = loaded(ran.stdout)
    assert torch.equal(mod(*args)[0], args[0] * 2 + 1)


def test_a_standalone_script_is_text_and_a_file(tmp_path: Path) -> None:
    gm, args = small()
    path = tmp_path / "alone.py"
    text = ours.generate_standalone_repro(gm, args, save_path=str(path))
    assert path.read_text() == text
    assert "save_dir=None" in text
    assert ours.generate_standalone_repro(gm, args) == text
    assert text.startswith(ours.generate_compiler_repro_string(gm, args))


def test_a_checkpoint_is_named_by_its_nodes_and_copied_byte_for_byte(logged: pytest.LogCaptureFixture) -> None:
    """Covers: S17, S18"""
    gm, args = small()
    ours.dump_compiler_graph_state(gm, args, "inductor")
    path = Path(ours.minifier_dir(), "checkpoints", "4.py")
    assert path.read_bytes() == Path("repro.py").read_bytes()
    assert f"Writing checkpoint with 4 nodes to {path}" in logged.text
    assert "command='run'" in path.read_text()


def test_a_copy_that_cannot_be_made_is_a_warning(logged: pytest.LogCaptureFixture) -> None:
    """Covers: S19"""
    os.mkdir("repro.py")  # a folder in its place
    gm, args = small()
    ours.dump_compiler_graph_state(gm, args, "inductor")
    assert "No write permissions for" in logged.text


def test_the_launcher_minifies(logged: pytest.LogCaptureFixture) -> None:
    gm, args = small()
    ours.dump_to_minify(gm, args, "inductor_accuracy")
    text = Path(get_minifier_repro_path()).read_text()
    assert "accuracy=True, command='minify'" in text
    assert get_minifier_repro_path() in logged.text


# ---- process groups --------------------------------------------------------------------------------------


def test_process_groups_are_found_and_set_up_again() -> None:
    """Covers: U20"""
    import torch.distributed as dist

    info = {"tp": {"size": 4, "rank": 0}, "dp": {"size": 2, "rank": 0}}
    ours.setup_fake_process_groups(info)
    try:
        graph = fx.Graph()
        x = graph.placeholder("x")
        name = graph.placeholder("name")
        reduce = torch.ops._c10d_functional.all_reduce.default
        calls = [graph.call_function(reduce, (x, "sum", group)) for group in ("tp", "dp", "tp", name)]
        graph.output(tuple(calls))
        gm = fx.GraphModule({}, graph)
        assert ours._extract_distributed_info(gm) == info == theirs._extract_distributed_info(gm)
        text = script_of(gm, [torch.ones(2), None])
        assert f"setup_fake_process_groups({info!r})" in text
        assert "dist.destroy_process_group()" in text
    finally:
        dist.destroy_process_group()
    ours.setup_fake_process_groups({})
    assert not dist.is_initialized()


# ---- does it fail? ---------------------------------------------------------------------------------------


def compiling(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> None:
    """In the place of Inductor."""
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", compiler)


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler whose functions do this with the graph and their list of inputs."""

    def compiler(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        def compiled(args: list[Any]) -> Any:
            return function(gm, args)

        compiled._boxed_call = True  # type: ignore[attr-defined]
        return compiled

    return compiler


def raising(error: Exception) -> Callable[..., Any]:
    def compiler(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        raise error

    return compiler


def running_raises(gm: fx.GraphModule, args: list[Any]) -> Any:
    raise Boom("while running")


@pytest.mark.parametrize("side", [ours, theirs], ids=["ours", "theirs"])
def test_inductor_fails_if_it_raises_where_eager_does_not(monkeypatch: pytest.MonkeyPatch, side: Any) -> None:
    gm, args = small()
    compiling(monkeypatch, boxed(lambda gm, args: gm(*args)))
    assert side.inductor_fails(gm, args) is False
    for compiler in (raising(Boom("while running")), boxed(running_raises)):
        compiling(monkeypatch, compiler)
        assert side.inductor_fails(gm, args) is True
        assert side.inductor_fails(gm, args, check_str="while running") is True
        assert side.inductor_fails(gm, args, check_str="another") is False
    assert side.inductor_fails(graph_of(lambda x: ((x, x), x), *args), args) is False  # not what AOT makes
    assert side.inductor_fails(fx.symbolic_trace(torch.nn.Linear(2, 2)), args) is False  # eager fails


def test_asking_does_not_change_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own writes to them."""
    gm = graph_of(lambda x: (x.add_(1),), torch.zeros(2))
    compiling(monkeypatch, boxed(lambda gm, args: gm(*args)))
    x = torch.zeros(2)
    ours.inductor_fails(gm, [x])
    ours.inductor_accuracy_fails(gm, [x])
    assert torch.equal(x, torch.zeros(2))


@pytest.mark.parametrize("side", [ours, theirs], ids=["ours", "theirs"])
def test_inductor_s_accuracy_fails_if_results_differ(monkeypatch: pytest.MonkeyPatch, side: Any) -> None:
    gm = graph_of(lambda x: (x > 1, x * 2), torch.arange(4.0))
    args = [torch.arange(4.0)]
    compiling(monkeypatch, boxed(lambda gm, args: gm(*args)))
    assert side.inductor_accuracy_fails(gm, args) is False
    compiling(monkeypatch, boxed(lambda gm, args: (args[0] > 1, args[0])))
    assert side.inductor_accuracy_fails(gm, args) is True
    compiling(monkeypatch, boxed(lambda gm, args: (args[0] > 2, args[0] * 2)))
    assert side.inductor_accuracy_fails(gm, args) is True
    assert side.inductor_accuracy_fails(gm, args, require_fp64=True, ignore_non_fp=True) is False
    assert side.ACCURACY_FAILS["strict_accuracy"](gm, args) is True
    assert side.ACCURACY_FAILS["accuracy"](gm, args) is False
    compiling(monkeypatch, raising(Boom()))
    assert side.inductor_accuracy_fails(gm, args) is False  # another failure


@pytest.mark.inductor
def test_a_graph_is_asked_about_in_an_interpreter_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Covers: U19"""
    x = torch.arange(4.0)
    fails = graph_of(lambda x: (torch.relu(x),), x)
    passes = graph_of(lambda x: (torch.sin(x),), x)
    options = {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}
    with torch._inductor.config.patch(options):
        assert ours.isolate_fails(fails, [x], "inductor") is True
        assert ours.isolate_fails(passes, [x], "inductor") is False
    said = capfd.readouterr()
    assert ">>  minifier-query: fails" in said.out
    assert ">>  minifier-query: does not fail" in said.out


def test_what_does_not_come_to_the_graph_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch takes any exit code but 0 for a failure of the graph: a missing file, for one. Covers: U5"""
    gm, args = small()
    real = ours.save_graph_repro

    def without_data(fd: Any, *more: Any, **options: Any) -> None:
        real(fd, *more, **options)
        for file in (tmp_path / "data" / "storages").iterdir():
            file.unlink()

    monkeypatch.setattr(ours, "save_graph_repro", without_data)
    assert ours.isolate_fails(gm, args, "inductor", save_dir=str(tmp_path / "data")) is False
    assert "MissingTensor" in capfd.readouterr().err


# ---- the commands of a script ----------------------------------------------------------------------------


class Repro(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.ops.aten.sin.default(x),)


def load_args(reader: Any) -> None:
    buf0 = reader.storage(None, 16)
    reader.tensor(buf0, (4,), is_leaf=True)


load_args._version = 0  # type: ignore[attr-defined]


def options(**more: Any) -> Namespace:
    return Namespace(**{"accuracy": "", "save_dir": None, "tracing_mode": "real", "check_str": None, **more})


def test_preparing_gives_a_graph_and_its_inputs() -> None:
    """Covers: S24, S27"""
    gm, args = ours.repro_common(options(), Repro(), load_args)
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_function", "output"]
    assert torch.equal(gm(*args)[0], args[0].sin())
    assert torch._inductor.config.generate_intermediate_hooks is True
    again = ours.repro_get_args(options(), Repro(), load_args)
    assert again[0].code == gm.code


def test_preparing_rejects_a_module_with_parameters() -> None:
    """Covers: S24"""
    for side in (ours, theirs):
        with pytest.raises(AssertionError, match="parameters"):
            side.repro_common(options(), torch.nn.Linear(2, 2), load_args)


def test_preparing_warns_of_constants_without_data_and_of_other_versions(logged: pytest.LogCaptureFixture) -> None:
    """Covers: S25, S26"""
    mod = Repro()
    mod.register_buffer("small", torch.ones(4))
    mod.register_buffer("large", torch.randn(5))

    def newer(reader: Any) -> None:
        load_args(reader)

    newer._version = 1  # type: ignore[attr-defined]
    ours.repro_common(options(), mod, newer)
    assert "Constant large was not serialized" in logged.text
    assert "Constant small" not in logged.text
    assert "version 1" in logged.text

    def unmarked(reader: Any) -> None:
        load_args(reader)

    ours.repro_common(options(), Repro(), unmarked)
    assert "no _version" in logged.text


def test_preparing_does_not_change_the_inputs() -> None:
    """Torch traces on the inputs themselves, and what writes to them has done so by then."""

    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.ops.aten.add_.Tensor(x, 1),)

    def ones(reader: Any) -> None:
        reader.args = [torch.ones(3)]

    ones._version = 0  # type: ignore[attr-defined]
    _, args = ours.repro_common(options(), Writes(), ones)
    assert torch.equal(args[0], torch.ones(3))


def test_a_run_compiles_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S28"""
    ran = []
    compiling(monkeypatch, boxed(lambda gm, args: ran.append(args) or gm(*args)))
    ours.repro_run(SimpleNamespace(accuracy=""), Repro(), load_args)
    assert len(ran) == 1
    compiling(monkeypatch, raising(Boom()))
    with pytest.raises(Boom):
        ours.repro_run(options(), Repro(), load_args)


def test_a_run_that_compares_raises_where_results_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S28, S29"""
    compiling(monkeypatch, boxed(lambda gm, args: gm(*args)))
    ours.repro_run(options(accuracy="accuracy"), Repro(), load_args)
    compiling(monkeypatch, boxed(lambda gm, args: (args[0] + 1,)))
    with pytest.raises(ours.AccuracyError, match="Bad accuracy detected"):
        ours.repro_run(options(accuracy="accuracy"), Repro(), load_args)


@pytest.mark.parametrize(
    ("compiler", "code"), [(boxed(lambda gm, args: gm(*args)), 0), (raising(Boom()), 1)], ids=["passes", "fails"]
)
def test_a_query_leaves_with_its_answer(monkeypatch: pytest.MonkeyPatch, compiler: Any, code: int) -> None:
    compiling(monkeypatch, compiler)
    with pytest.raises(SystemExit) as leaving:
        ours.repro_minifier_query(options(), Repro(), load_args)
    assert leaving.value.code == code


def test_a_query_that_cannot_be_asked_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        ours.repro_minifier_query(options(), torch.nn.Linear(2, 2), load_args)
    assert leaving.value.code == 125
    assert "parameters" in capsys.readouterr().err


def test_a_granularity_is_a_power_of_two() -> None:
    given = options(isolate=False, skip_sanity=False, max_granularity=3)
    with pytest.raises(RuntimeError, match="not power of two"):
        ours.repro_minify(given, Repro(), load_args)


@pytest.mark.inductor
def test_a_graph_without_fault_is_not_minified() -> None:
    given = options(isolate=False, skip_sanity=False, max_granularity=None)
    with torch.no_grad(), pytest.raises(RuntimeError, match="Input graph did not fail the tester"):
        ours.repro_minify(given, Repro(), load_args)


@pytest.mark.inductor
def test_analysing_names_the_node_that_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Covers: U14"""

    class Wrong(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            sin = torch.ops.aten.sin.default(x)
            relu = torch.ops.aten.relu.default(sin)
            return sin, relu

    given = options(
        save_dir=str(tmp_path),
        stable_hash=False,
        skip_saving_inductor_intermediates=False,
        skip_saving_float64_intermediates=False,
        skip_check_deterministic=False,
    )
    planted = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy", "compile_threads": 1}
    with torch._inductor.config.patch(planted), torch.no_grad():
        ours.repro_analyze(given, Wrong(), lambda reader: setattr(reader, "args", [torch.randn(8)]))
    said = "".join(capfd.readouterr())
    assert "DIVERGED at relu" in said
    assert "DIVERGED at sin" not in said
    assert "NONDETERMINISTIC" not in said


def test_analysing_needs_a_folder() -> None:
    with pytest.raises(AssertionError, match="--save-dir"):
        ours.repro_analyze(options(), Repro(), load_args)


COMMANDS = {
    "run": {"accuracy": "accuracy", "save_dir": "here", "tracing_mode": "real"},
    "minify": {
        "isolate": True,
        "offload_to_disk": False,
        "skip_saving_eager_intermediates": False,
        "skip_sanity": False,
        "max_granularity": None,
        "check_str": "boom",
    },
    "analyze": {"skip_check_deterministic": False, "stable_hash": False},
    "minifier-query": {"check_str": "boom"},
    "get_args": {"save_dir": "here"},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_arguments_a_script_does_what_it_was_written_for(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """And each command knows its flags, with torch's defaults."""
    for side in (ours, theirs):
        seen: list[Namespace] = []
        name = f"repro_{command.replace('-', '_')}"
        monkeypatch.setattr(side, name, lambda options, mod, load_args, seen=seen: seen.append(options))
        monkeypatch.setattr(sys, "argv", ["script.py"])
        given: dict[str, Any] = {"accuracy": True, "save_dir": "here", "tracing_mode": "real", "check_str": "boom"}
        side.run_repro(Repro(), load_args, command=command, **given)
        assert vars(seen[0]).items() >= COMMANDS[command].items()


FLAGS = {
    "minify --no-isolate --strict-accuracy --check-str x --max-granularity 4": {
        "isolate": False,
        "accuracy": "strict_accuracy",
        "check_str": "x",
        "max_granularity": 4,
    },
    "minify --isolate --offload-to-disk --skip-saving-eager-intermediates --skip-sanity": {
        "isolate": True,
        "offload_to_disk": True,
        "skip_saving_eager_intermediates": True,
        "skip_sanity": True,
    },
    "run --no-accuracy --save-dir there --tracing-mode symbolic": {
        "accuracy": "",
        "save_dir": "there",
        "tracing_mode": "symbolic",
    },
    "run --accuracy --no-save-dir": {"accuracy": "accuracy", "save_dir": None},
}


@pytest.mark.parametrize("words", FLAGS)
def test_flags_mean_what_they_mean_to_torch(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for side in (ours, theirs):
        seen: list[Namespace] = []
        name = f"repro_{words.split()[0]}"
        monkeypatch.setattr(side, name, lambda options, mod, load_args, seen=seen: seen.append(options))
        monkeypatch.setattr(sys, "argv", ["script.py", *words.split()])
        side.run_repro(Repro(), load_args, accuracy=True, save_dir="here")
        assert vars(seen[0]).items() >= FLAGS[words].items()


def test_a_wrong_command_is_an_error_that_lists_the_right_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", "shrink"])
    with pytest.raises(SystemExit) as leaving:
        ours.run_repro(Repro(), load_args)
    assert leaving.value.code == 2
    assert "minify" in capsys.readouterr().err


def test_arguments_of_a_newer_torch_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    """Covers: S26"""
    monkeypatch.setattr(sys, "argv", ["script.py"])
    monkeypatch.setattr(ours, "repro_run", lambda *args: "ran")
    assert ours.run_repro(Repro(), load_args, shiny=1, patch_code="x") == "ran"
    assert "shiny" in logged.text
    assert "patch_code" in logged.text


# ---- what a compiler is given ----------------------------------------------------------------------------


def test_symbolic_sizes_reach_the_compiler() -> None:
    """Torch looks for symbolic numbers among the inputs only, and bakes in the sizes of tensors. Covers: U4"""
    args = [torch.randn(10), 5]
    gm = graph_of(lambda x, size: (x[:size],), *args, mode="symbolic")
    found = ours._get_compile_args(gm, args)
    assert isinstance(found[0], torch._subclasses.FakeTensor)
    assert isinstance(found[1], torch.SymInt)
    only = [torch.randn(4, 8)]
    gm = graph_of(lambda x: (x * 2,), *only, mode="symbolic")
    assert isinstance(ours._get_compile_args(gm, only)[0].shape[0], torch.SymInt)
    assert theirs._get_compile_args(gm, only) is only


def test_concrete_inputs_are_given_as_they_are() -> None:
    for side in (ours, theirs):
        gm, args = small()
        assert side._get_compile_args(gm, args) is args
        empty = fx.Graph()
        empty.output(None)
        assert side._get_compile_args(fx.GraphModule({}, empty), args) is args


@pytest.mark.inductor
def test_control_flow_runs_in_a_script(tmp_path: Path) -> None:
    """Torch's script is a SyntaxError. Covers: U1"""

    def f(x: torch.Tensor) -> Any:
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

    gm = graph_of(f, torch.ones(3))
    path = tmp_path / "loop.py"
    path.write_text(script_of(gm, [torch.ones(3)], "inductor_accuracy", save_dir=str(tmp_path)))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr

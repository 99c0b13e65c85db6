"""Dynamo's graphs by torch's names: a backend under debugging, the scripts, and the commands of a script."""

from __future__ import annotations

import ast
import contextlib
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.config
import torch._dynamo.repro.after_dynamo as theirs
from torch import fx
from torch.nn import functional as F

from torchsleuth.dropin import after_dynamo as ours
from torchsleuth.dropin.debug_utils import InputReader, get_minifier_repro_path

ERROR = "relu_compile_error_TESTING_ONLY"


class Boom(Exception):
    pass


def right(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return gm.forward


def wrong(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Computes something else wherever there is a relu."""
    extra = any(node.target in (torch.relu, F.relu) for node in gm.graph.nodes)

    def run(*args: Any) -> Any:
        return [one + 1 for one in gm(*args)] if extra else gm(*args)

    return run


def no_relu(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    if any(node.target in (torch.relu, F.relu) for node in gm.graph.nodes):
        raise Boom("there is a relu in it")
    return gm.forward


def captured(function: Callable[..., Any], *args: Any) -> tuple[fx.GraphModule, list[Any]]:
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.extend((gm, list(inputs)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    return found[0], found[1]


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin()).cos() + 1


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "debug")):
        yield
    torch._dynamo.reset()


def debugging(after: str | None, level: int = 2, **more: Any) -> Any:
    return torch._dynamo.config.patch(repro_after=after, repro_level=level, **more)


def written() -> list[str]:
    root = Path.cwd().parent
    return sorted(str(one.name) for one in root.rglob("*") if one.is_file() and "storages" not in one.parts)


# ---- the wrapper -----------------------------------------------------------------------------------------


def test_to_dynamo_it_looks_like_the_backend() -> None:
    """Covers: S14"""

    def backend(gm: Any, inputs: Any) -> Any:
        """Mine."""

    backend.get_compiler_config = lambda: {"a": 1}  # type: ignore[attr-defined]
    backend.mine = 3  # type: ignore[attr-defined]
    for side in (ours, theirs):
        wrapped = side.wrap_backend_debug(backend, "mine")
        assert isinstance(wrapped, side.WrapBackendDebug)
        assert wrapped.__name__ == "backend"
        assert wrapped._torchdynamo_orig_backend is backend
        assert wrapped.get_compiler_config() == {"a": 1}
        assert wrapped.mine == 3
    named = type("Named", (), {"compiler_name": "its name", "__call__": lambda self: None})()
    assert ours.wrap_backend_debug(named, None).__name__ == "its name"


@pytest.mark.parametrize("after", [None, "aot"])
def test_off_the_backend_is_called_as_it_is(after: str | None) -> None:
    """Covers: S1, S14"""
    seen = []

    def backend(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append((gm, inputs, kwargs))
        return "compiled"

    gm, inputs = captured(program, torch.randn(3))
    with debugging(after):
        assert ours.wrap_backend_debug(backend, None)(gm, inputs, mode="fast") == "compiled"
    assert seen == [(gm, inputs, {"mode": "fast"})]
    assert written() == []


def test_any_other_setting_is_rejected_at_once() -> None:
    """Covers: S15"""
    gm, inputs = captured(program, torch.randn(3))
    for side in (ours, theirs):
        with debugging("sometimes"), pytest.raises(AssertionError, match="sometimes"):
            side.wrap_backend_debug(right, None)(gm, inputs)


@pytest.mark.parametrize(
    ("level", "files"),
    [(1, ["minified_6_nodes.py", "repro.py"]), (2, ["minifier_launcher.py"]), (3, ["minifier_launcher.py"])],
)
def test_what_a_backend_raises_is_what_the_user_gets(level: int, files: list[str]) -> None:
    """Covers: S6, S6b, S7, U24"""
    gm, inputs = captured(program, torch.randn(3))
    with debugging("dynamo", level), pytest.raises(Boom, match="there is a relu") as caught:
        ours.wrap_backend_debug(no_relu, None)(gm, inputs)
    assert written() == files
    if level == 1:
        assert str(Path("repro.py").absolute()) in "".join(caught.value.__notes__)
        assert not hasattr(caught.value, "minifier_path")  # there is none
    else:
        assert caught.value.minifier_path == get_minifier_repro_path()  # type: ignore[attr-defined]
        assert get_minifier_repro_path() in "".join(caught.value.__notes__)


def test_what_compiled_functions_raise_is_seen_while_compiling() -> None:
    """Covers: S6b"""
    error = Boom("while running")

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise error

        return run

    gm, inputs = captured(program, torch.randn(3))
    with debugging("dynamo"), pytest.raises(Boom) as caught:
        ours.wrap_backend_debug(backend, None)(gm, inputs)
    assert caught.value is error
    assert written() == ["minifier_launcher.py"]


def test_a_trial_run_changes_nothing() -> None:
    """Inputs, gradients and random numbers are as before, and nothing that it runs is debugged. Covers: S3, S38"""
    seen = []

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            seen.append(torch._dynamo.config.repro_after)
            torch.rand(3)
            args[0].detach().add_(1)
            return gm(*args)

        return run

    x = torch.zeros(3, requires_grad=True)
    gm, inputs = captured(program, x)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with debugging("dynamo"):
        ours.wrap_backend_debug(backend, None)(gm, inputs)
        assert torch._dynamo.config.repro_after == "dynamo"
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, torch.zeros(3))
    assert x.grad is None
    assert seen == [None]


def test_what_says_that_it_is_boxed_is_called_as_dynamo_calls_it() -> None:
    """Inductor's functions do: torch hands them one list, and raises a ValueError of its own. Covers: S6b"""

    def backend(gm: Any, inputs: Any) -> Any:
        def run(x: torch.Tensor) -> Any:
            return gm(x)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    gm, inputs = captured(program, torch.randn(3))
    with debugging("dynamo", 2):
        with pytest.raises(Exception, match="list"):
            theirs.wrap_backend_debug(backend, None)(gm, inputs)
        ours.wrap_backend_debug(backend, None)(gm, inputs)
    with debugging("dynamo", 4):
        ours.wrap_backend_debug(backend, None)(gm, inputs)
    assert ours._error(gm, inputs, backend) is None
    assert not ours._accuracy_fails(gm, inputs, lambda gm, inputs: backend(gm, inputs))


def test_wrong_results_of_a_function_are_noticed() -> None:
    """Torch asks it for its parameters, logs that there are none, and takes that for a pass. Covers: S12, U24"""
    gm, inputs = captured(program, torch.randn(3))
    with debugging("dynamo", 4):
        theirs.wrap_backend_debug(wrong, None)(gm, inputs)
        with pytest.raises(ours.AccuracyError, match="Bad accuracy detected"):
            ours.wrap_backend_debug(wrong, None)(gm, inputs)
        assert ours.wrap_backend_debug(right, None)(gm, inputs)(*inputs)[0].shape == (3,)
    assert "accuracy=True, command='minify'" in Path(get_minifier_repro_path()).read_text()


@pytest.mark.parametrize(("extra", "raises"), [(0.0, False), (0.5, True)], ids=["right", "wrong"])
def test_a_backend_may_draw_other_random_numbers_but_not_compute_something_else(extra: float, raises: bool) -> None:
    """Torch passes both. Covers: U10"""

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            torch.rand(5)  # another place in the stream
            return [one + extra for one in gm(*args)]

        return run

    gm, inputs = captured(lambda x: F.dropout(x.sin(), 0.5), torch.ones(500))
    with debugging("dynamo", 4), pytest.raises(ours.AccuracyError) if raises else contextlib.nullcontext():
        ours.wrap_backend_debug(backend, None)(gm, inputs)


def test_wrong_gradients_count_unless_forward_only() -> None:
    """Covers: S32, U16"""

    def backend(gm: Any, inputs: Any) -> Any:
        return lambda *args: [one * 1.0 + (args[0] - args[0].detach()) for one in gm(*args)]

    gm, inputs = captured(program, torch.randn(3, requires_grad=True))
    with debugging("dynamo", 4), pytest.raises(ours.AccuracyError):
        ours.wrap_backend_debug(backend, None)(gm, inputs)
    with debugging("dynamo", 4, repro_forward_only=True):
        ours.wrap_backend_debug(backend, None)(gm, inputs)


# ---- scripts ---------------------------------------------------------------------------------------------


def text_of(backend: Any = "eager", *, function: Callable[..., Any] = program, **options: Any) -> str:
    gm, inputs = captured(function, torch.randn(3))
    return ours.generate_dynamo_fx_repro_string(gm, inputs, backend, **options)


def test_a_script_has_what_users_of_torch_s_rely_on(tmp_path: Path) -> None:
    gm, inputs = captured(program, torch.randn(3))
    text = ours.generate_dynamo_fx_repro_string(gm, inputs, "eager", True, save_dir=str(tmp_path), command="minify")
    expected = theirs.generate_dynamo_fx_repro_string(gm, inputs, "eager", True, save_dir=str(tmp_path / "theirs"))
    for line in expected.splitlines():
        if line.startswith("    ") and ("torch.relu" in line or "reader.tensor" in line or "def forward" in line):
            assert line in text
    assert "from torchsleuth.dropin.after_dynamo import run_repro" in text
    assert "accuracy=True, command='minify'" in text
    assert f"save_dir={str(tmp_path)!r}, autocast=False, backend='eager')" in text
    names: dict[str, Any] = {"__name__": "a script"}
    exec(text, names)
    reader = InputReader(str(tmp_path))
    names["load_args"](reader)
    assert torch.equal(names["mod"](*reader.args)[0], gm(*inputs)[0])


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (torch.no_grad(), "with torch.no_grad():"),
        (torch.inference_mode(), "with torch.inference_mode():"),
        (torch.autocast("cpu"), "autocast=True, backend="),
        (torch.autocast("cpu", dtype=torch.float16), "autocast=True, autocast_dtype=torch.float16"),
    ],
    ids=["no_grad", "inference", "autocast", "autocast to half"],
)
def test_the_modes_of_the_program_are_those_of_the_script(context: Any, said: str) -> None:
    """Torch keeps neither. Covers: U15"""
    gm, inputs = captured(program, torch.randn(3))
    with context:
        text = ours.generate_dynamo_fx_repro_string(gm, inputs, "eager")
    assert said in text
    ast.parse(text)


def test_a_backend_is_named_imported_or_brought_along() -> None:
    """Torch writes the name of a function, which its launcher does not find. Covers: U24"""
    assert "backend='eager')" in text_of("eager")
    assert "backend=None)" in text_of(None)
    text = text_of(wrong)
    assert f"import {__name__}" in text
    assert f"backend={__name__}.wrong)" in text

    def local(gm: Any, inputs: Any) -> Any:
        return gm.forward

    text = text_of(local)
    assert "def local(gm: Any, inputs: Any) -> Any:" in text
    assert "backend=local)" in text
    hidden = 3

    def closing(gm: Any, inputs: Any) -> Any:
        return gm.forward if hidden else None

    text = text_of(closing)
    assert "backend=None)" in text
    assert "hidden" in text


def test_inputs_that_are_neither_tensors_nor_numbers_are_torch_s_error() -> None:
    gm, _ = captured(program, torch.randn(3))
    for side in (ours, theirs):
        with pytest.raises(TypeError):
            side.generate_dynamo_fx_repro_string(gm, ["text"], "eager")


def test_a_dump_goes_to_the_current_folder(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S18, S19"""
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(caplog.handler)
    gm, inputs = captured(program, torch.randn(3))
    ours.dump_backend_repro_as_file(gm, inputs, "eager")
    assert Path("checkpoints/minified_6_nodes.py").read_bytes() == Path("repro.py").read_bytes()
    Path("repro.py").unlink()
    Path("repro.py").mkdir()
    ours.dump_backend_state(gm, inputs, "eager", True)
    logger.removeHandler(caplog.handler)
    assert "No write permissions for" in caplog.text
    assert "accuracy=True" in Path("checkpoints/minified_6_nodes.py").read_text()


# ---- minifying in this process ---------------------------------------------------------------------------


def test_a_graph_is_made_smaller_by_a_backend() -> None:
    """For backends by name, and for functions."""
    for backend in (ERROR, no_relu):
        gm, inputs = captured(program, torch.randn(3))
        assert ours.dynamo_minifier_backend(gm, inputs, backend) is gm
        text = Path("repro.py").read_text()
        assert "torch.relu" in text
        assert "sin(" not in text.partition("class Repro")[2]
    with pytest.raises(ValueError, match="No issue was detected"):
        ours.dynamo_minifier_backend(*captured(torch.sin, torch.randn(3)), no_relu)


def test_a_graph_with_wrong_results_is_made_smaller(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: U5"""
    gm, inputs = captured(program, torch.randn(3))
    ours.dynamo_accuracy_minifier_backend(gm, inputs, wrong)
    text = Path("repro.py").read_text()
    assert "accuracy=True" in text
    assert "cos(" not in text.partition("class Repro")[2]
    Path("repro.py").unlink()
    logging.getLogger("torch._dynamo").addHandler(caplog.handler)
    ours.dynamo_accuracy_minifier_backend(*captured(torch.sin, torch.randn(3)), wrong)
    logging.getLogger("torch._dynamo").removeHandler(caplog.handler)
    assert "does not fail accuracy testing" in caplog.text
    assert not Path("repro.py").exists()


def two_bugs(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    targets = [str(node.target) for node in gm.graph.nodes]
    if any("tanh" in one for one in targets):
        raise Boom("this is about tanh")
    if any("relu" in one for one in targets):
        raise KeyError("and this about relu")
    return gm.forward


def test_another_failure_is_not_this_one() -> None:
    """Torch compares texts loosely, or not at all. Covers: U5"""
    gm, inputs = captured(lambda x: torch.tanh(torch.relu(x)), torch.randn(3))
    ours.dynamo_minifier_backend(gm, inputs, two_bugs)
    module = Path("repro.py").read_text().partition("class Repro")[2]
    assert "torch.tanh" in module
    assert "torch.relu" not in module


def test_a_text_is_compared_without_names_and_numbers() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        raise Boom("node relu_99 with id 999 at 0x7f00 is not for me")

    gm, inputs = captured(program, torch.randn(3))
    assert ours.backend_fails(gm, inputs, backend, "node relu_17 with id 12345 at 0x7fff is not for me")
    assert not ours.backend_fails(gm, inputs, backend, "something else entirely")


def test_what_raises_at_level_4_is_written_down_as_well() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise Boom("while running")

        return run

    gm, inputs = captured(program, torch.randn(3))
    with debugging("dynamo", 4), pytest.raises(Boom):
        ours.wrap_backend_debug(backend, None)(gm, inputs)
    assert "accuracy=False, command='minify'" in Path(get_minifier_repro_path()).read_text()


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_folder_that_cannot_be_written_to_does_not_replace_the_user_s_error(level: int) -> None:
    gm, inputs = captured(program, torch.randn(3))
    error = ours.AccuracyError if level == 4 else Boom
    nowhere = torch._dynamo.config.patch(debug_dir_root="/proc/nowhere")
    with debugging("dynamo", level), nowhere, pytest.raises(error) as caught:
        ours.wrap_backend_debug(wrong if level == 4 else no_relu, None)(gm, inputs)
    assert not hasattr(caught.value, "minifier_path")


def test_fake_inputs_are_not_run() -> None:
    gm, inputs = captured(program, torch.randn(3))
    mode = torch._subclasses.FakeTensorMode()
    fakes = [mode.from_tensor(one) for one in inputs]
    for level in (1, 2, 4):
        with debugging("dynamo", level):
            ours.wrap_backend_debug(wrong, None)(gm, fakes)
    assert written() == []


class Compiler:
    """Has a method that is a backend."""

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        raise Boom("mine")


def test_a_method_is_not_brought_along_as_a_function() -> None:
    """As one it would fail for want of an argument, which is another failure."""
    text = text_of(Compiler().compile)
    assert "backend=None)" in text
    assert "belongs to an object" in text
    with pytest.raises(RuntimeError, match="backend"):
        ours.dynamo_minifier_backend(*captured(program, torch.randn(3)), None)


def test_a_module_with_nothing_to_compile_cannot_be_minified() -> None:
    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(RuntimeError, match="did not fail the tester"):
        ours.repro_minify(options(backend=no_relu), Nothing(), load_args)


# ---- the commands of a script ----------------------------------------------------------------------------


class Repro(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(x.sin()),)


def load_args(reader: Any) -> None:
    reader.tensor(reader.storage(None, 12), (3,), is_leaf=True)


load_args._version = 0  # type: ignore[attr-defined]


def options(**more: Any) -> Namespace:
    given = {"accuracy": "", "save_dir": None, "autocast": False, "backend": "eager", "only_fwd": False}
    return Namespace(**{**given, "isolate": False, **more})


def test_a_run_runs_eager_and_compiled() -> None:
    """Covers: S28, S29"""
    ours.repro_run(options(), Repro(), load_args)
    ours.repro_run(options(accuracy="accuracy"), Repro(), load_args)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="there is a relu"):
        ours.repro_run(options(backend=no_relu), Repro(), load_args)
    with pytest.raises(ours.AccuracyError):
        ours.repro_run(options(accuracy="accuracy", backend=wrong), Repro(), load_args)


def test_minifying_needs_a_backend() -> None:
    for side in (ours, theirs):
        with pytest.raises(RuntimeError, match="backend"):
            side.repro_minify(options(backend=None), Repro(), load_args)


def test_minifying_in_this_process_leaves_the_smallest_as_a_script() -> None:
    ours.repro_minify(options(backend=no_relu), Repro(), load_args)
    text = Path("repro.py").read_text()
    assert "sin(" not in text.partition("class Repro")[2]


FLAGS = ("", "run --only-fwd --autocast", "minify --no-isolate --accuracy", "run --backend another")


@pytest.mark.parametrize("words", FLAGS)
def test_flags_mean_what_they_mean_to_torch(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """But for isolation, which torch does not have here."""
    seen: list[dict[str, Any]] = []
    for side in (ours, theirs):
        for name in ("repro_run", "repro_minify"):
            monkeypatch.setattr(side, name, lambda options, mod, load_args: seen.append(vars(options)))
        monkeypatch.setattr(sys, "argv", ["script.py", *words.split()])
        side.run_repro(Repro(), load_args, accuracy=False, save_dir="here", autocast=False, backend="eager")
    ignored = {"isolate", "autocast_dtype"}
    assert {k: v for k, v in seen[0].items() if k not in ignored} == {
        k: v for k, v in seen[1].items() if k not in ignored
    }

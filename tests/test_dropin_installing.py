"""The drop-in in the places of torch that call its own tool, and out of them again; whole programs with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import functorch.compile
import pytest
import torch
import torch._dynamo
import torch._dynamo.backends.registry as registry
import torch._dynamo.debug_utils as debug_utils
import torch._dynamo.repro.after_aot as after_aot
import torch._dynamo.repro.after_dynamo as after_dynamo
import torch._functorch.fx_minifier as fx_minifier
import torch._inductor.compile_fx as compile_fx
import torch._inductor.debug as debug

from torchsleuth import dropin
from torchsleuth.dropin import (
    after_aot as our_aot,
    after_dynamo as our_dynamo,
    debug_utils as our_utils,
    fx_minifier as our_minifier,
    installing,
)

TESTS = str(Path(__file__).parent)
PLACES = [(one.theirs, name) for one in installing._PLACES for name in one.names]


def standing() -> dict[tuple[str, str], object]:
    return {(module, name): getattr(sys.modules[module], name) for module, name in PLACES}


@pytest.fixture
def _installed() -> Iterator[None]:
    dropin.install()
    yield
    dropin.uninstall()


def test_the_places_that_torch_calls_are_ours_and_then_theirs_again() -> None:
    torch._dynamo.list_backends()  # loads them all
    before = standing()
    backends = dict(registry._COMPILER_FNS)
    dropin.install()
    dropin.install()  # twice is once
    try:
        assert compile_fx.wrap_compiler_debug is our_aot.wrap_compiler_debug
        assert debug.save_graph_repro is our_aot.save_graph_repro
        assert after_aot.save_graph_repro is our_aot.save_graph_repro
        assert after_dynamo.wrap_backend_debug is our_dynamo.wrap_backend_debug
        assert debug_utils.InputReader is our_utils.InputReader
        assert functorch.compile.minifier is fx_minifier.minifier is our_minifier.minifier
        assert "dynamo_minifier_backend" in torch._dynamo.list_backends(exclude_tags=())
        assert all(one is not before[key] for key, one in standing().items())
    finally:
        dropin.uninstall()
    assert standing() == before
    assert backends == registry._COMPILER_FNS
    dropin.uninstall()  # as is


def test_what_is_imported_later_is_torch_s_again_as_well() -> None:
    """Modules that are imported after us have ours from the beginning."""
    code = (
        "from torchsleuth.dropin import installing\n"
        "installing.install_when_needed()\n"
        "installing.install_when_needed()\n"
        "import sys, importlib\n"
        "for one in installing._PLACES: importlib.import_module(one.theirs)\n"
        "import torch._inductor.compile_fx as c\n"
        "assert c.wrap_compiler_debug.__module__.startswith('torchsleuth')\n"
        "installing.uninstall()\n"
        "print([(o.theirs, n) for o in installing._PLACES for n in o.names\n"
        "       if getattr(getattr(sys.modules[o.theirs], n, None), '__module__', '').startswith('torchsleuth')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stderr


def test_for_a_while_is_for_as_long_as_anybody_needs_it() -> None:
    with installing.installed():
        with installing.installed():
            pass
        assert compile_fx.wrap_compiler_debug is our_aot.wrap_compiler_debug
        dropin.install()
    assert compile_fx.wrap_compiler_debug is our_aot.wrap_compiler_debug
    dropin.uninstall()
    assert compile_fx.wrap_compiler_debug is not our_aot.wrap_compiler_debug


def test_whoever_took_a_place_meanwhile_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dropin.install()
    own = object()
    original = installing._INSTALLATION._before["functorch.compile", "minifier"][0]
    monkeypatch.setattr(functorch.compile, "minifier", own)
    dropin.uninstall()
    assert functorch.compile.minifier is own
    monkeypatch.undo()
    functorch.compile.minifier = original


@pytest.mark.usefixtures("_installed")
def test_dynamo_wraps_backends_with_ours() -> None:
    wrapped = torch._dynamo.eval_frame.get_compiler_fn("eager")
    assert isinstance(wrapped, our_dynamo.WrapBackendDebug)
    compiled = torch.compile(lambda x: x.sin(), backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())


@pytest.mark.usefixtures("_installed")
def test_torch_s_backends_for_minifying_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = torch._dynamo.lookup_backend("dynamo_minifier_backend")
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(x.sin()))
    assert backend(gm, [torch.ones(2)], "relu_compile_error_TESTING_ONLY") is gm
    assert "torchsleuth" in (tmp_path / "repro.py").read_text()


def run(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHDYNAMO_")}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**kept, **environment},
        check=False,
    )


PROGRAM = """
import os, sys
os.environ["TORCHDYNAMO_REPRO_LEVEL"] = "2"  # torch reads it when it is imported: not before this
import torch

@torch.compile(backend="relu_compile_error_TESTING_ONLY")
def inner(x):
    return torch.relu(x.sin())

print(sys.argv[1:])
inner(torch.randn(3))
"""


def test_a_program_with_torch_s_variables_goes_all_three_steps(tmp_path: Path) -> None:
    """`python -m torchsleuth.dropin`; the launcher and `repro.py` need only Python. Covers: S7, U28"""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("-m", "torchsleuth.dropin", "program.py", "--epochs", "3")
    program = run(*words, folder=tmp_path, TORCHDYNAMO_REPRO_AFTER="dynamo")
    assert program.returncode == 1
    assert program.stdout == "['--epochs', '3']\n"
    assert "ReluCompileError" in program.stderr
    launcher = next(tmp_path.rglob("minifier_launcher.py"))
    assert str(launcher) in program.stderr
    small = run(str(launcher), "minify", "--no-isolate", folder=tmp_path)
    assert small.returncode == 0, small.stderr
    repro = run("repro.py", folder=tmp_path)
    assert repro.returncode == 1
    assert "ReluCompileError" in repro.stderr
    assert "sin(" not in (tmp_path / "repro.py").read_text().partition("class Repro")[2]


def test_a_program_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    ran = run("-m", "torchsleuth.dropin", "nothing.py", folder=tmp_path)
    assert ran.returncode == 2
    assert "there is no script 'nothing.py'" in ran.stderr


THEIRS = """
import torch, torch._dynamo.repro.after_dynamo as theirs, torch._dynamo.config, sys
torch._dynamo.config.debug_dir_root = sys.argv[1]
found = []

def keep(gm, inputs):
    found.extend((gm, inputs))
    return gm.forward

torch.compile(lambda x: torch.relu(x.sin()), backend=keep)(torch.arange(3.0))
theirs.dump_to_minify_after_dynamo(*found, "relu_compile_error_TESTING_ONLY")
theirs.dump_backend_repro_as_file(*found, "relu_compile_error_TESTING_ONLY")
"""


def test_scripts_that_torch_wrote_run_with_ours(tmp_path: Path) -> None:
    """With torch's own tool made to raise by then."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    assert run("theirs.py", str(tmp_path / "debug"), folder=tmp_path).returncode == 0
    launcher = next((tmp_path / "debug").rglob("minifier_launcher.py"))
    assert "torch._dynamo.repro" in launcher.read_text()
    poisoned = tmp_path / "poisoned.py"
    poisoned.write_text(
        f"import sys\nsys.path.insert(0, {TESTS!r})\nimport dropin_poison\ndropin_poison.poison()\n"
        "import runpy\nfrom torchsleuth.dropin.__main__ import main\nsys.exit(main())\n"
    )
    repro = run(str(poisoned), "repro.py", folder=tmp_path)
    assert repro.returncode == 1
    assert "ReluCompileError" in repro.stderr
    small = run(str(poisoned), str(launcher), "minify", "--no-isolate", folder=tmp_path)
    assert small.returncode == 0, small.stderr
    text = (tmp_path / "repro.py").read_text()
    assert "from torchsleuth.dropin.after_dynamo import run_repro" in text
    assert "sin(" not in text.partition("class Repro")[2]


OLD_AOT = """
import io, sys, torch
import torch._dynamo.repro.after_aot as theirs
from torch.fx.experimental.proxy_tensor import make_fx
x = torch.arange(4.0)
gm = make_fx(lambda x: (torch.relu(x.sin()),))(x)
with open("old.py", "w") as file:
    theirs.save_graph_repro(file, gm, [x], "inductor_accuracy", save_dir="data")
"""


@pytest.mark.inductor
def test_a_script_of_a_graph_after_aot_that_torch_wrote_runs_with_ours(tmp_path: Path) -> None:
    """Covers: S29"""
    (tmp_path / "theirs.py").write_text(OLD_AOT)
    assert run("theirs.py", folder=tmp_path).returncode == 0
    ours = run("-m", "torchsleuth.dropin", "old.py", folder=tmp_path)
    assert ours.returncode == 0, ours.stderr
    text = (tmp_path / "old.py").read_text()
    planted = "import torch._inductor.config\ntorch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = 'accuracy'\n"
    (tmp_path / "old.py").write_text(text.replace("import torch\n", f"import torch\n{planted}", 1))
    ours = run("-m", "torchsleuth.dropin", "old.py", folder=tmp_path)
    assert ours.returncode == 1
    assert "torchsleuth.dropin.models.AccuracyError: Bad accuracy detected" in ours.stderr


TRACED = """
import torch, torch._inductor.config as config
config.trace.enabled = True
torch.compile(lambda x: x.sin() + 1)(torch.arange(4.0))
"""


@pytest.mark.inductor
def test_inductor_s_debug_trace_has_a_script_of_ours(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRACED)
    without = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # what is found in a cache is not traced
    ran = run("-m", "torchsleuth.dropin", "program.py", folder=tmp_path, **without)
    assert ran.returncode == 0, ran.stderr
    found = next(tmp_path.rglob("fx_graph_runnable.py"))
    assert "from torchsleuth.dropin.after_aot import run_repro" in found.read_text()
    again = run(str(found), folder=tmp_path)
    assert again.returncode == 0, again.stderr

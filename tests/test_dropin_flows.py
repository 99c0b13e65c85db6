"""The three steps from a program to `repro.py`, for each kind of failure, with torch's own tool made to raise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dropin_poison
from dropin_flows import Flow, standing_in

RELU = "cpp.inject_relu_bug_TESTING_ONLY"
LOG1P = "cpp.inject_log1p_bug_TESTING_ONLY"

AFTER_AOT = """
@torch.compile()
def inner(x):
    x = torch.sin(x)
    x = torch.relu(x)
    return torch.cos(x)

inner(torch.randn(20, 20))
"""
CONSTANT = """
@torch.compile()
def inner(x):
    return torch.tensor(2) + torch.relu(x)

inner(torch.randn(2))
"""
WITH_MASK = """
@torch.compile()
def inner(x):
    b = torch.logical_not(torch.logical_not(torch.log1p(x) > 0))
    x = torch.relu(x)
    return torch.where(b, x, x)

inner(torch.linspace(-2.0, 2.0, 20))
"""
AFTER_DYNAMO = """
@torch.compile(backend={backend!r})
def inner(x):
    for _ in range(10):
        x = torch.sin(x)
    x = torch.relu(x)
    for _ in range(10):
        x = torch.cos(x)
    return x

inner(torch.randn(20, 20))
"""


@pytest.fixture
def _standing_in() -> Iterator[None]:
    with standing_in():
        yield


def ops_of(flow: Flow) -> list[str]:
    return [line.strip() for line in flow.module().splitlines() if " = torch." in line]


# ---- after Dynamo ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_standing_in")
@pytest.mark.parametrize(
    ("backend", "level", "error"),
    [
        ("relu_compile_error_TESTING_ONLY", 2, "ReluCompileError"),
        ("relu_runtime_error_TESTING_ONLY", 2, "ReluRuntimeError"),
        ("relu_accuracy_error_TESTING_ONLY", 4, "AccuracyError"),
    ],
)
def test_a_backend_that_fails_on_one_operator_ends_as_that_operator(
    tmp_path: Path, backend: str, level: int, error: str
) -> None:
    """Covers: S6b, S7, S12, S17, U5"""
    flow = Flow(tmp_path)
    program = flow.program(AFTER_DYNAMO.format(backend=backend), after="dynamo", level=level)
    assert program.code == 1
    assert error in program.stderr
    launcher = flow.launcher("--no-isolate")
    assert launcher.code == 0, launcher.stderr
    assert [line.split("(")[0] for line in ops_of(flow)] == ["x_10 = torch.relu"]
    repro = flow.repro()
    assert repro.code == 1
    assert error in repro.stderr


@pytest.mark.usefixtures("_standing_in")
def test_what_was_computed_stays_so_in_a_script(tmp_path: Path) -> None:
    """A backend may mind that an input is no leaf. Covers: S21"""
    flow = Flow(tmp_path)
    code = """
@torch.compile(backend="non_leaf_compile_error_TESTING_ONLY")
def inner(x):
    return x + 1

inner(torch.randn(20, 20, requires_grad=True) + 1)
"""
    assert "TestingOnlyCompileError" in flow.program(code, after="dynamo", level=2).stderr
    assert flow.launcher("--no-isolate").code == 0
    assert "TestingOnlyCompileError" in flow.repro().stderr


@pytest.mark.usefixtures("_standing_in")
@pytest.mark.parametrize("kind", ["compile", "runtime", "accuracy"])
@pytest.mark.parametrize("level", [1, 2, 4])
def test_a_program_without_fault_leaves_no_file(tmp_path: Path, kind: str, level: int) -> None:
    """Covers: S13"""
    flow = Flow(tmp_path)
    code = AFTER_DYNAMO.format(backend=f"relu_{kind}_error_TESTING_ONLY").replace("relu(x)", "tanh(x)")
    program = flow.program(code, after="dynamo", level=level)
    assert program.code == 0, program.stderr
    assert not list(tmp_path.rglob("*.py"))


CRASHING = """
import os
import torch


def crash_on_relu(gm, inputs):
    def run(*args):
        if any("relu" in str(node.target) for node in gm.graph.nodes):
            os.abort()
        return gm(*args)

    return run
"""


def test_a_backend_of_the_user_s_own_that_kills_the_process_is_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step in a process of its own; queries in workers that may die. Covers: S9, U19, U24"""
    (tmp_path / "crashing_backend.py").write_text(CRASHING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flow = Flow(tmp_path, apart=True)
    code = AFTER_DYNAMO.format(backend="").replace("backend=''", "backend=crash_on_relu")
    program = flow.program(f"from crashing_backend import crash_on_relu\n{code}", after="dynamo", level=3)
    assert program.code == -6
    launcher = flow.launcher()
    assert launcher.code == 0, launcher.stderr
    assert "reproduces: it was run in a fresh interpreter" in launcher.stderr
    assert len(ops_of(flow)) == 1
    assert "torch.relu" in ops_of(flow)[0]
    assert flow.repro().code == -6


# ---- after AOT -------------------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
def test_a_compile_error_in_this_process(tmp_path: Path) -> None:
    """Options stay as they are: torch would mix up what it found out under others. Covers: S7, S8, S26"""
    flow = Flow(tmp_path, options={RELU: "compile_error", "max_fusion_size": 63})
    program = flow.program(AFTER_AOT, after="aot", level=2)
    assert program.code == 1
    assert "CppCompileError" in program.stderr
    launcher = flow.launcher("--no-isolate")
    assert launcher.code == 0, launcher.stderr
    assert "reproduces: it was run in a fresh interpreter" in launcher.stderr
    assert "torch._inductor.config.max_fusion_size = 63" in (flow.home / "repro.py").read_text()
    assert flow.module() == (
        "class Repro(torch.nn.Module):\n"
        "    def __init__(self) -> None:\n"
        "        super().__init__()\n"
        "    def forward(self, sin):\n"
        "        relu = torch.ops.aten.relu.default(sin);  sin = None\n"
        "        return (relu,)"
    )
    repro = flow.repro()
    assert repro.code == 1
    assert "CppCompileError" in repro.stderr


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
def test_a_wrong_result_beside_a_constant(tmp_path: Path) -> None:
    """Covers: S12, S25, S29"""
    flow = Flow(tmp_path, options={RELU: "accuracy"})
    program = flow.program(CONSTANT, after="aot", level=4)
    assert program.code == 1
    assert "AccuracyError" in program.stderr
    assert flow.launcher("--no-isolate").code == 0
    assert ops_of(flow) == ["relu = torch.ops.aten.relu.default(arg0_1);  arg0_1 = None"]
    repro = flow.repro()
    assert repro.code == 1
    assert "AccuracyError: Bad accuracy detected" in repro.stderr


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
@pytest.mark.parametrize(("flags", "op"), [((), "relu"), (("--strict-accuracy",), "log1p")])
def test_strict_is_who_minds_a_wrong_bool_as_well(tmp_path: Path, flags: tuple[str, ...], op: str) -> None:
    """A wrong mask that does not matter to the end result: only strict accuracy ends there. Covers: S12, S34"""
    flow = Flow(tmp_path, options={RELU: "accuracy", LOG1P: "accuracy"})
    program = flow.program(WITH_MASK, after="aot", level=4)
    assert "AccuracyError" in program.stderr, program.stderr
    assert flow.launcher("--no-isolate", *flags).code == 0
    assert ops_of(flow) == [f"{op} = torch.ops.aten.{op}.default(arg0_1);  arg0_1 = None"]
    assert "AccuracyError" in flow.repro().stderr


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
def test_inductor_as_a_backend_of_dynamo_s(tmp_path: Path) -> None:
    """Torch on the CPU raises a ValueError instead. Covers: S6b, S12"""
    flow = Flow(tmp_path, options={RELU: "accuracy"})
    code = AFTER_AOT.replace("torch.compile()", 'torch.compile(backend="inductor")')
    right = flow.program(code.replace("relu(x)", "tanh(x)"), after="dynamo", level=4)
    assert right.code == 0, right.stderr
    assert "ValueError" not in right.stderr
    program = flow.program(code, after="dynamo", level=4)
    assert program.code == 1
    assert "AccuracyError" in program.stderr
    assert flow.launcher("--no-isolate").code == 0
    assert [line.split("(")[0] for line in ops_of(flow)] == ["x_1 = torch.relu"]
    assert "AccuracyError" in flow.repro().stderr


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
def test_generated_code_that_raises(tmp_path: Path) -> None:
    """Covers: S7, S21"""
    flow = Flow(tmp_path, options={RELU: "runtime_error"})
    program = flow.program(AFTER_AOT, after="aot", level=2)
    assert program.code == 1
    assert "RuntimeError: unhandled error" in program.stderr
    assert flow.launcher("--no-isolate").code == 0
    assert ops_of(flow) == ["relu = torch.ops.aten.relu.default(sin);  sin = None"]
    assert "RuntimeError: unhandled error" in flow.repro().stderr


@pytest.mark.inductor
def test_generated_code_that_kills_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is on the disk before the compiled function is called. Covers: S9, U19, U26"""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    flow = Flow(tmp_path, apart=True, options={RELU: "runtime_error"})
    program = flow.program(AFTER_AOT.replace("(20, 20)", "(300, 300)"), after="aot", level=3)
    assert program.code == -6  # thrown in a thread of OpenMP's
    launcher = flow.launcher()
    assert launcher.code == 0, launcher.stderr
    assert "reproduces: it was run in a fresh interpreter" in launcher.stderr
    assert len(ops_of(flow)) == 1
    assert "aten.relu" in ops_of(flow)[0]
    assert flow.repro().code == -6


@pytest.mark.inductor
@pytest.mark.usefixtures("_standing_in")
def test_what_cannot_be_made_smaller_is_run_in_a_fresh_interpreter_all_the_same(tmp_path: Path) -> None:
    """Covers: U26"""
    flow = Flow(tmp_path, options={RELU: "compile_error"})
    code = "torch.compile(lambda x: torch.relu(x))(torch.zeros(()))"
    assert "CppCompileError" in flow.program(code, after="aot", level=2).stderr
    launcher = flow.launcher("--no-isolate")
    assert launcher.code == 0, launcher.stderr
    assert "reproduces: it was run in a fresh interpreter" in launcher.stderr


# ---- the poison itself -----------------------------------------------------------------------------------


def test_torch_s_own_tool_does_raise_when_it_is_poisoned(tmp_path: Path) -> None:
    """Without that, the tests above would show nothing."""
    import torch._dynamo.debug_utils as theirs
    import torch._functorch.fx_minifier as minifier

    undo = dropin_poison.poison()
    try:
        with pytest.raises(dropin_poison.Leaked):
            theirs.generate_env_vars_string()
        with pytest.raises(dropin_poison.Leaked):
            minifier.minifier(None, None, None)
        with pytest.raises(dropin_poison.Leaked):
            theirs.InputWriter(None)
    finally:
        undo()
    assert "import os" in theirs.generate_env_vars_string()

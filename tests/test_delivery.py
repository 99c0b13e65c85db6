"""Handing over a script: what is said of it was seen in a fresh interpreter; a script that must not run is not run."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from script_samples import DYNAMO, FAILURES, calling, placeholders, recorded
from torchsleuth.case import schema
from torchsleuth.case.schema import Entry, Node, Ref
from torchsleuth.case.stores.store import Store
from torchsleuth.cli.main import app
from torchsleuth.config import After
from torchsleuth.errors import MissingTensor, StoreError
from torchsleuth.run import scripts
from torchsleuth.run.delivery import copy_to_folder, deliver, is_as_recorded, seen_in
from torchsleuth.run.scripts import Ran, run_script

SAME = "expected: x\nseen:     raises ValueError: no\nverdict:  fails as recorded\n"
NOT_HERE = "expected: x\nseen:     no failure\nverdict:  does not fail here\n"


class Scripted:
    """A runner that answers from a list, and keeps the text of what it was given."""

    def __init__(self, *answers: Ran) -> None:
        self.answers = list(answers)
        self.texts: list[str] = []
        self.environ: Mapping[str, str] = {}

    def __call__(self, script: Path, *, timeout: float, environ: Mapping[str, str]) -> Ran:
        self.texts.append(script.read_text())
        self.environ = environ
        return self.answers.pop(0)


def failing(*inputs: Any, kind: str = "raised", **changes: Any) -> tuple[schema.Case, Any]:
    return recorded(placeholders(len(inputs)), *inputs, failure=FAILURES[kind], **changes)


# ---- what is claimed -------------------------------------------------------------------------------------


def test_it_reproduces_only_after_it_was_seen_to(tmp_path: Path) -> None:
    """Covers: U26"""
    case, blobs = failing(torch.ones(2))
    runner = Scripted(Ran(1, stdout=SAME))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=runner)
    assert delivery.reproduces is True
    assert "reproduces" in delivery.describe()
    assert runner.texts == [(tmp_path / "repro.py").read_text()]
    written = deliver(blobs, case, tmp_path / "other.py", run=False, runner=Scripted())
    assert written.reproduces is None
    assert "not run" in written.describe()
    assert (tmp_path / "other.py").read_text() == runner.texts[0]


@pytest.mark.parametrize(
    "ran",
    [
        Ran(0, stdout=NOT_HERE),
        Ran(1, stdout="", stderr="Traceback\nModuleNotFoundError: No module named 'torch'"),
        Ran(2, stdout=SAME.replace("as recorded", "in another way")),
        Ran(None, signal=11, stdout="expected: x\n"),
        Ran(None, timed_out=True, stdout="expected: x\n", seconds=600.0),
    ],
)
def test_anything_else_is_told_as_it_was_seen(ran: Ran, tmp_path: Path) -> None:
    """Covers: U6, U26"""
    case, blobs = failing(torch.ones(2))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=Scripted(ran))
    assert delivery.reproduces is False
    assert delivery.seen == seen_in(ran) != ""
    assert delivery.describe().startswith("does not reproduce")


def test_a_crash_is_the_recorded_one_by_its_signal() -> None:
    """Covers: U19"""
    case, _ = failing(torch.ones(2), kind="crashed")
    assert is_as_recorded(case, Ran(None, signal=11, stdout="expected: dies of SIGSEGV\n"))
    assert not is_as_recorded(case, Ran(None, signal=6, stdout="expected: dies of SIGSEGV\n"))
    found_out = "free(): invalid pointer\nFatal Python error: Aborted\n"
    assert is_as_recorded(case, Ran(None, signal=6, stdout="expected: dies of SIGSEGV\n", stderr=found_out))
    assert not is_as_recorded(case, Ran(None, signal=15, stdout="expected: dies of SIGSEGV\n", stderr=found_out))
    assert not is_as_recorded(case, Ran(None, signal=11, stdout=""))  # before it had begun
    assert not is_as_recorded(case, Ran(1, stdout=SAME))


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_left_is_the_recorded_one_by_its_exit_code(code: int) -> None:
    """Covers: U19"""
    left = schema.Failure(schema.Signature("crashed", message=f"left with exit code {code}"))
    case = msgspec.structs.replace(failing(torch.ones(2))[0], failure=left)
    begun = f"expected: ends itself with exit code {code}\n"
    assert is_as_recorded(case, Ran(code, stdout=begun))
    assert not is_as_recorded(case, Ran(4, stdout=begun))
    assert not is_as_recorded(case, Ran(None, signal=9, stdout=begun))
    assert not is_as_recorded(case, Ran(code, stdout=""))  # before it had begun
    assert not is_as_recorded(case, Ran(code, stdout=NOT_HERE))  # it came to its own end


# ---- how inputs are written ------------------------------------------------------------------------------


def test_large_inputs_are_made_by_a_recipe_if_the_failure_does_not_need_their_values(tmp_path: Path) -> None:
    """Covers: U9"""
    case, blobs = failing(torch.randn(4000))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=Scripted(Ran(1, stdout=SAME)))
    assert (delivery.inputs, delivery.beside, delivery.reproduces) == ("by recipe", None, True)
    assert os.listdir(tmp_path) == ["repro.py"]


def test_large_inputs_go_beside_the_script_if_the_failure_needs_them(tmp_path: Path) -> None:
    """Covers: U9"""
    case, blobs = failing(torch.randn(4000))
    runner = Scripted(Ran(0, stdout=NOT_HERE), Ran(1, stdout=SAME))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=runner)
    assert (delivery.inputs, delivery.reproduces) == ("beside the script", True)
    assert delivery.beside == tmp_path / "repro.safetensors"
    assert delivery.beside.stat().st_size > 16000
    first, second = runner.texts
    assert "made(" in first
    assert 'Beside("repro.safetensors"' in second
    assert sorted(os.listdir(tmp_path)) == ["repro.py", "repro.safetensors"]


def test_a_missing_tensor_is_an_error_and_no_script(tmp_path: Path) -> None:
    """Covers: U9"""
    case, _ = failing(torch.randn(4000))
    _, empty = failing(torch.ones(1))
    with pytest.raises(MissingTensor):
        deliver(empty, case, tmp_path / "repro.py", runner=Scripted(Ran(1, stdout=SAME)))
    assert os.listdir(tmp_path) == []


# ---- what is not run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case_and_blobs",
    [
        calling(
            "torch.ops.sleuth_delivery.op.default",
            schema.Code("python op", "sleuth_delivery::op", source="import os\nos.abort()\ndef op(x):\n    return x\n"),
        ),
        calling("torch.ops.sleuth_delivery.op.default"),
        calling("os.system"),
        failing(torch.ones(1), compiler=schema.Compiler(After.DYNAMO, "mylib.backend")),
    ],
)
def test_code_of_the_users_own_is_run_only_with_trust(case_and_blobs: Any, tmp_path: Path) -> None:
    """Covers: U3"""
    case, blobs = case_and_blobs
    runner = Scripted(Ran(0, stdout=NOT_HERE))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=runner)
    assert runner.texts == []
    assert delivery.reproduces is None
    assert "--trust" in delivery.not_run
    assert (tmp_path / "repro.py").exists()
    deliver(blobs, case, tmp_path / "repro.py", runner=runner, trust=True)
    assert len(runner.texts) == 1


def test_what_cannot_be_a_script_is_a_notice(tmp_path: Path) -> None:
    """Covers: S20"""
    case, blobs = failing(torch.ones(1))
    case = msgspec.structs.replace(case, inputs=(schema.Noticed("BackwardState", "it belongs to a hook"),))
    delivery = deliver(blobs, case, tmp_path / "repro.py", runner=Scripted())
    assert delivery.notice
    assert "BackwardState" in (tmp_path / "repro.py").read_text()


def test_the_environment_of_a_run_is_the_scripts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S22"""
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    case, blobs = failing(torch.ones(1))
    runner = Scripted(Ran(1, stdout=SAME))
    deliver(blobs, case, tmp_path / "repro.py", runner=runner)
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" not in runner.environ
    assert runner.environ["PATH"] == os.environ["PATH"]


# ---- files -----------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    case, blobs = failing(torch.ones(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        deliver(blobs, case, tmp_path / "file" / "repro.py", runner=Scripted())
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        deliver(blobs, case, tmp_path / "folder", runner=Scripted())
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_script_is_copied_to_the_current_folder_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: S18"""
    script = tmp_path / "deep" / "7_nodes.py"
    script.parent.mkdir()
    script.write_bytes(b"# \xc3\xa9\r\n")
    monkeypatch.chdir(tmp_path)
    assert copy_to_folder(script) == tmp_path / "repro.py"
    assert (tmp_path / "repro.py").read_bytes() == script.read_bytes()
    assert copy_to_folder(tmp_path / "repro.py") == tmp_path / "repro.py"


def test_a_copy_that_fails_is_a_warning(tmp_path: Path) -> None:
    """Covers: S19"""
    script = tmp_path / "a.py"
    script.write_text("pass")
    with pytest.warns(UserWarning, match="could not be copied"):
        assert copy_to_folder(script, tmp_path / "a.py") is None
    with pytest.warns(UserWarning, match="could not be copied"):
        assert copy_to_folder(tmp_path / "gone.py", tmp_path) is None


# ---- a fresh interpreter ---------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_run_tells_exit_code_output_and_that_it_was_elsewhere(tmp_path: Path) -> None:
    script = written(tmp_path, "import os, sys\nprint(os.getcwd())\nprint('bad', file=sys.stderr)\nsys.exit(3)")
    ran = run_script(script, timeout=60)
    assert (ran.code, ran.signal, ran.timed_out) == (3, None, False)
    assert ran.stdout.strip() != str(tmp_path)
    assert ran.stderr == "bad\n"
    assert ran.describe() == "exit code 3"


def test_a_crash_is_an_answer(tmp_path: Path) -> None:
    """Covers: U19"""
    ran = run_script(written(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"), timeout=60)
    assert (ran.code, ran.signal) == (None, signal.SIGSEGV)
    assert ran.describe() == "died of SIGSEGV"


def test_a_hang_ends_at_the_deadline_with_everything_it_started(tmp_path: Path) -> None:
    """Covers: U19"""
    script = written(
        tmp_path,
        f"""
        import pathlib, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
        print("begun", flush=True)
        time.sleep(60)
        """,
    )
    began = time.monotonic()
    ran = run_script(script, timeout=2)
    assert ran.timed_out
    assert ran.stdout == "begun\n"
    assert time.monotonic() - began < 20
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child of a script that was killed is still alive")


def test_output_without_end_is_cut_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "MOST_OUTPUT", 1000)
    ran = run_script(written(tmp_path, "print('first')\nprint('x' * 100000)\nprint('last')"), timeout=60)
    assert len(ran.stdout) < 1100
    assert ran.stdout.startswith("first")
    assert ran.stdout.endswith("last\n")
    assert "bytes ..." in ran.stdout


def test_the_script_needs_torch_only_and_runs_from_any_folder(tmp_path: Path) -> None:
    """Covers: S21, U26, U30"""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import sys
            class Blocker:
                def find_spec(self, name, path=None, target=None):
                    if name.partition(".")[0] in ("torchsleuth", "msgspec", "safetensors", "blake3", "fsspec"):
                        raise ImportError(f"{name} is not installed here")
            sys.meta_path.insert(0, Blocker())
            """
        )
    )
    compiler = schema.Compiler(After.DYNAMO, "relu_runtime_error_TESTING_ONLY")
    failure = schema.Failure(
        schema.Signature("raised", types=("torch._dynamo.exc.BackendCompilerFailed", "builtins.AssertionError")),
        message="ReluRuntimeError",
    )
    big = torch.linspace(-1, 1, 5000)
    case, blobs = recorded(torch.relu, big, compiler=DYNAMO, failure=failure)
    relu = Node("relu", "call_function", "torch.relu", (Ref("x_1"),))
    x = Node("x_1", "placeholder", "x_1")
    end = Node("output", "output", "output", (schema.Tuple((Ref("relu"),)),))
    case = msgspec.structs.replace(case, graph=schema.Graph((x, relu, end)), compiler=compiler)

    def runner(script: Path, *, timeout: float, environ: Mapping[str, str]) -> Ran:
        return run_script(script, timeout=timeout, environ={**environ, "PYTHONPATH": str(tmp_path)})

    delivery = deliver(blobs, case, tmp_path / "out" / "repro.py", runner=runner, timeout=120)
    assert delivery.reproduces is True, (delivery, run_script(delivery.script).stderr)


# ---- with Inductor ---------------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("planted", "failure"),
    [
        ("accuracy", FAILURES["mismatched"]),
        ("no fault", FAILURES["mismatched"]),
        (
            "compile_error",
            schema.Failure(
                schema.Signature("raised", types=("torch._inductor.exc.InductorError",)),
                message="CppCompileError: C++ compile error",
            ),
        ),
    ],
)
def test_a_planted_fault_of_inductor_fails_as_recorded_in_a_fresh_process(
    planted: str, failure: schema.Failure, tmp_path: Path
) -> None:
    """Covers: S21, U26"""
    option = schema.Config("torch._inductor.config", "cpp.inject_relu_bug_TESTING_ONLY", planted)
    options = () if planted == "no fault" else (option,)
    compiler = schema.Compiler(After.AOT, "inductor", arguments=(Entry("is_inference", True),))
    case, blobs = recorded(
        lambda x: (x.relu(),),
        torch.linspace(-1, 1, 8),
        compiler=compiler,
        failure=failure,
        state=schema.State(config=options),
    )
    delivery = deliver(blobs, case, tmp_path / "repro.py")
    assert delivery.reproduces is (planted != "no fault"), delivery


# ---- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_a_script_and_says_what_is_known_of_it(tmp_path: Path) -> None:
    """Covers: U26, U28"""
    store = Store.open(tmp_path / "store")
    case, blobs = failing(torch.ones(2))
    for storage in case.storages:
        assert isinstance(storage.content, schema.Stored)
        store.blobs.put(blobs.get(storage.content.digest, storage.nbytes))
    entry = store.save(case)
    out = tmp_path / "repro.py"
    asked = ["export", entry.id, "-o", str(out), "--store", str(tmp_path / "store"), "--no-run"]
    answer = CliRunner().invoke(app, [*asked, "--json"])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.output)
    assert data["script"] == str(out)
    assert data["reproduces"] is None
    assert data["inputs"] == "in the script"
    compile(out.read_text(), str(out), "exec")
    answer = CliRunner().invoke(app, asked)
    assert "written, and not run" in answer.output
    assert answer.output.strip().splitlines()[-1] == f"Next: python {out}"


def test_this_python_is_the_one_that_runs_scripts(tmp_path: Path) -> None:
    ran = run_script(written(tmp_path, "import sys\nprint(sys.executable)"), timeout=60)
    assert ran.stdout.strip() == sys.executable

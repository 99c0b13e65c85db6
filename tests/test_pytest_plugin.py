"""`pytest --sleuth`: a failing test says where its case is, and the summary lists them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torchsleuth.case.stores.store import Store

SUITE = """
import os
import pytest
import torch

def broken(gm, inputs):
    def run(*args):
        raise RuntimeError("no such thing")
    return run

@pytest.fixture
def made():
    with pytest.raises(RuntimeError):
        torch.compile(lambda x: x * 3, backend=broken)(torch.zeros(3))

def test_fails():
    torch.compile(lambda x: x + 1, backend=broken)(torch.zeros(3))

def test_catches():
    with pytest.raises(RuntimeError):
        torch.compile(lambda x: x - 1, backend=broken)(torch.zeros(3))

def test_fails_after_its_fixture(made):
    assert False

def test_is_fine():
    assert torch.compile(lambda x: x + 2, backend="eager")(torch.zeros(1)).item() == 2

def test_fails_without_us():
    assert 1 == 2
"""
DIES = """
def deadly(gm, inputs):
    def run(*args):
        os._exit(9)
    return run

def test_kills_its_worker():
    torch.compile(lambda x: x + 4, backend=deadly)(torch.zeros(3))
"""


def run_pytest(folder: Path, suite: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(suite)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    plugin = [] if _is_registered() else ["-p", "torchsleuth.pytest_plugin"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *plugin,
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def _is_registered() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == "torchsleuth.pytest_plugin" for each in entry_points(group="pytest11"))


def check(said: str, store: Store, cases: int) -> None:
    """What the suite above has to show, wherever its tests ran."""
    names = [entry.id for entry in store.entries()]
    assert len(names) == cases
    reports, _, summary = said.partition("= torchsleuth =")
    assert reports.count("- torchsleuth -") == 2  # not under the failure that is not ours
    for name in names:
        assert summary.count(f"\n  {store.files.root}/cases/{name}\nNext: sleuth ") == 1
    for test in ("test_fails", "test_catches", "test_fails_after_its_fixture"):
        assert f"test_suite.py::{test}\n" in summary
    assert "test_is_fine" not in summary


def test_a_failing_test_says_where_its_case_is(tmp_path: Path) -> None:
    """Covers: U28"""
    ended = run_pytest(tmp_path, SUITE, "--sleuth", "--sleuth-after", "dynamo", "--sleuth-store", "store")
    assert "3 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    check(ended.stdout, Store.open(tmp_path / "store"), 3)
    assert ended.returncode == 1


def test_workers_send_what_they_kept_and_one_that_dies_leaves_its_case(tmp_path: Path) -> None:
    """Covers: S9, U28"""
    arguments = ("--sleuth", "--sleuth-level", "3", "--sleuth-store", "store", "-n", "1", "--max-worker-restart", "0")
    ended = run_pytest(tmp_path, SUITE + DIES, *arguments)
    assert "4 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    check(ended.stdout, Store.open(tmp_path / "store"), 4)


def test_without_the_option_nothing_is_imported(tmp_path: Path) -> None:
    suite = (
        "import sys\ndef test_it(): assert 'torch' not in sys.modules and 'torchsleuth.capture' not in sys.modules\n"
    )
    ended = run_pytest(tmp_path, suite)
    assert ended.returncode == 0, ended.stdout
    assert "= torchsleuth =" not in ended.stdout


def test_watching_alone_does_not_import_torch(tmp_path: Path) -> None:
    suite = "import sys\ndef test_it(): assert 'torch' not in sys.modules\n"
    ended = run_pytest(tmp_path, suite, "--sleuth")
    assert ended.returncode == 0, ended.stdout
    assert "= torchsleuth =" not in ended.stdout


def test_a_bad_setting_is_an_error_of_usage(tmp_path: Path) -> None:
    """Covers: S15"""
    ended = run_pytest(tmp_path, "def test_it(): pass\n", "--sleuth", "--sleuth-level", "9")
    assert ended.returncode == 4
    assert "the setting level cannot be '9'" in ended.stderr

"""`import torchsleuth.auto`: watching without a command."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from torchsleuth.case.stores.store import Store

PROGRAM = """
import atexit, os, sys, threading

def load():
    import torchsleuth.auto

threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import torchsleuth.auto
assert "torch" not in sys.modules
import torch

def fails(gm, inputs):
    raise RuntimeError("no such thing")

def attempt(f):
    try:
        torch.compile(f, backend=fails)(torch.zeros(2))
    except Exception as error:
        print("caught", type(error).__name__, flush=True)

attempt(lambda x: x + 1)
child = os.fork()
if child == 0:
    attempt(lambda x: x - 2)
    sys.exit(7)  # Python's own end: the exit handlers run here too
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
atexit.register(print, "the end")
sys.exit(3)
"""


def run(arguments: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_each_process_lists_its_own_cases_at_the_end(tmp_path: Path) -> None:
    """Covers: U28"""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ended = run([str(script)], SLEUTH_STORE=str(tmp_path / "store"), SLEUTH_AFTER="dynamo")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines() == ["caught BackendCompilerFailed"] * 2 + ["the end"]
    cases = Store.open(tmp_path / "store").case_names()
    assert len(cases) == 2
    assert ended.stderr.count("torchsleuth: 1 case was kept\n") == 2
    lines = ended.stderr.splitlines()
    assert lines[-1].startswith("Next: sleuth ")
    name = Path(lines[-1].split()[-1]).name
    assert name in cases
    assert lines[-2].strip() == str(tmp_path / "store" / "cases" / name)


def test_it_watches_after_aot_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.torchsleuth]\nlevel = 3\n")
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torchsleuth.auto as auto\n"
        "print(auto.WATCHING and auto.WATCHING._arguments, 'torch' in sys.modules)\n"
    )
    said = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "'after': <After.AOT: 'aot'>" in said
    assert "Level.ALWAYS" in said
    assert str(tmp_path / ".sleuth") in said
    assert said.endswith("False\n")
    assert run([str(script)], SLEUTH_AFTER="off").stdout == "None False\n"


def test_a_bad_setting_is_not_passed_over() -> None:
    """Covers: S15"""
    ended = run(["-c", "import torchsleuth.auto"], SLEUTH_LEVEL="9")
    assert ended.returncode == 1
    assert "the setting level cannot be '9'" in ended.stderr


def test_a_program_can_be_run_with_it(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent("import sys\nprint(__name__, sys.argv[1:])\nraise SystemExit(4)\n"))
    ended = run(["-m", "torchsleuth.auto", str(script), "--level", "9"])
    assert (ended.returncode, ended.stdout, ended.stderr) == (4, "__main__ ['--level', '9']\n", "")
    missing = run(["-m", "torchsleuth.auto", str(tmp_path / "nowhere.py")])
    assert missing.returncode == 2
    assert "there is no script" in missing.stderr


def test_nothing_of_ours_imports_it() -> None:
    code = (
        "import pkgutil, sys, importlib, torchsleuth\n"
        "for each in pkgutil.walk_packages(torchsleuth.__path__, 'torchsleuth.'):\n"
        "    if each.name not in ('torchsleuth.auto', 'torchsleuth.__main__'): importlib.import_module(each.name)\n"
        "sys.exit('torchsleuth.auto' in sys.modules)\n"
    )
    assert run(["-c", code]).returncode == 0

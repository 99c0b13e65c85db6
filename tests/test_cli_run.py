"""`sleuth run`: the program runs as under Python, its end is the exit code, and what was kept is told last."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchsleuth.capture.program import Program
from torchsleuth.capture.watching import plan
from torchsleuth.case.stores.store import Store
from torchsleuth.cli.main import app
from torchsleuth.cli.run import with_program_apart
from torchsleuth.config import After
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Stage

NOTHING = "torchsleuth: no failure was seen\n"
SLEUTH = [sys.executable, "-m", "torchsleuth", "run"]
SHOW = '''
"""A program that looks at itself."""
import os, pickle, sys, threading, time, atexit
class C: pass
def double(x): return 2 * x
def late():
    time.sleep(0.1)
    print("thread", flush=True)
def hook(*_): raise RuntimeError("in the hook")
if __name__ == "__main__":
    spec = __spec__ and (__spec__.name, __spec__.origin)
    print(sys.argv, sys.path[:2], __file__, spec, repr(__package__), type(__loader__).__name__, __doc__)
    print(sorted(name for name in globals() if name.startswith("__")), sys.flags.optimize, "torch" in sys.modules)
    print(type(pickle.loads(pickle.dumps(C()))) is C, sys.stdout.errors, sys.stderr.errors)
    match sys.argv[-1]:
        case "spawn":
            import multiprocessing
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        case "raise":
            error = ValueError("no")
            error.__notes__ = ["a note"]
            raise error from KeyError("behind it")
        case "hook":
            sys.excepthook = hook
            raise ValueError("no")
        case "interrupt":
            raise KeyboardInterrupt
        case "three":
            sys.exit(3)
        case "text":
            sys.exit("not a number")
        case "none":
            sys.exit(None)
        case "late":
            atexit.register(print, "exit handler")
            threading.Thread(target=late).start()
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs, and we are in it."""
    for place in ("show.py", "package/module.py", "package/sub/__main__.py", "folder/__main__.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(SHOW)
    for package in ("package", "package/sub"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "bad.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


# ---- as under Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "--isolate show.py --level 9 -m spawn",
        "--no-isolate show.py --level 9 -m spawn",
        "--isolate -m package.module --level 9 spawn",
        "--no-isolate -m package.module --level 9 spawn",
        "--isolate ./package/module.py raise",
        "--no-isolate ./package/module.py raise",
        "--isolate -m package.sub raise",
        "--isolate -m package",
        "--isolate folder raise",
        "--isolate bad.py",
        "--isolate show.py hook",
        "--isolate show.py three",
        "--no-isolate show.py text",
        "--no-isolate show.py none",
        "--no-isolate show.py late",
    ],
)
def test_a_program_runs_as_under_python(here: Path, words: str) -> None:
    """Covers: U28"""
    plain = run([sys.executable, *words.split()[1:]])
    watched = run([*SLEUTH, *words.split()])
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr + NOTHING
    assert watched.returncode == plain.returncode


@pytest.mark.parametrize("how", ["--isolate", "--no-isolate"])
def test_an_interrupt_that_nobody_caught_is_130(here: Path, how: str) -> None:
    plain = run([sys.executable, "show.py", "interrupt"])
    watched = run([*SLEUTH, how, "show.py", "interrupt"])
    assert (watched.stdout, watched.stderr) == (plain.stdout, plain.stderr + NOTHING)
    assert watched.returncode == 130


def test_the_child_has_our_options_of_python(here: Path) -> None:
    options = [sys.executable, "-O", "-X", "dev"]
    watched = run([*options, "-m", "torchsleuth", "run", "--isolate", "show.py"])
    assert watched.stdout == run([*options, "show.py"]).stdout


def test_afterwards_this_process_is_as_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    its = Program.parse(["show.py", "three"])
    with its.as_main():
        assert its.run() == 3
    assert (sys.argv, list(sys.path), sys.modules["__main__"]) == before
    assert "['show.py', 'three']" in capsys.readouterr().out


# ---- arguments -------------------------------------------------------------------------------------------


def test_what_follows_the_program_is_the_programs() -> None:
    takes_value = {"--level": True, "--isolate": False}
    apart = lambda text: " ".join(with_program_apart(text.split(), takes_value))  # noqa: E731
    assert apart("--level 3 -m a --level 9") == "--level 3 -- -m a --level 9"
    assert apart("--level=3 --isolate -ma x") == "--level=3 --isolate -- -ma x"
    assert apart("--level -m x.py") == "--level -m x.py"
    assert apart("x.py -m a") == "x.py -m a"
    assert apart("-- -m a") == "-- -m a"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["-m", "nowhere.at.all"], "there is no module 'nowhere.at.all'"),
        (["-m"], "no program was named"),
        (["--level", "7", "show.py"], "the setting level cannot be '7'"),
        (["--after", "lunch", "show.py"], "the setting after cannot be 'lunch'"),
        (["--store", "show.py", "show.py"], "this cannot be a store"),
        (["--timeout", "3", "--no-isolate", "show.py"], "a timeout needs a process of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_done_is_said_and_nothing_is_run(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["run", *words])
    assert isinstance(result.exception, SleuthError)
    assert said in str(result.exception)
    assert "show.py" not in capsys.readouterr().out


# ---- the end of a process --------------------------------------------------------------------------------

DIES = """
import ctypes, os, signal, sys, time
if sys.argv[1] == "deaf": signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.argv[1] == "polite": signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("begun", flush=True)
match sys.argv[1]:
    case "fault": ctypes.string_at(0)
    case "kill": os.kill(os.getpid(), signal.SIGKILL)
    case "_exit": os._exit(5)
    case "child": print(os.getpid(), flush=True)
time.sleep(60)
"""


def _can_be_interrupted() -> None:
    """What is started in the background by a shell ignores Ctrl-C, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begun(*words: str, stderr: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """The program, once it has said that it has begun."""
    process = subprocess.Popen(
        [*SLEUTH, *words], stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=_can_be_interrupted
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_the_death_of_a_program_is_told(tmp_path: Path) -> None:
    """Covers: S9"""
    path = program(tmp_path, DIES)
    died = run([*SLEUTH, "--level", "3", path, "fault"])
    assert died.returncode == 128 + signal.SIGSEGV
    assert died.stdout == "begun\n"
    assert "died of SIGSEGV, outside of every first run of a watched graph" in died.stderr
    assert f'File "{path}", line 7 in <module>\n' in died.stderr
    assert "torchsleuth/capture" not in died.stderr
    killed = run([*SLEUTH, "--isolate", path, "kill"])
    assert killed.returncode == 128 + signal.SIGKILL
    assert "died of SIGKILL, outside of every first run of a watched graph" in killed.stderr
    left = run([*SLEUTH, "--isolate", path, "_exit"])
    assert (left.returncode, left.stderr) == (5, NOTHING)


def test_a_program_that_is_out_of_time_leaves_its_stack(tmp_path: Path) -> None:
    """Covers: S9"""
    path = program(tmp_path, DIES)
    ended = run([*SLEUTH, "--timeout", "3", path, "hang"])
    assert ended.returncode == 124
    assert "was out of time after 3 s" in ended.stderr
    assert f'File "{path}", line 11 in <module>' in ended.stderr


def test_signals_are_passed_on(tmp_path: Path) -> None:
    path = program(tmp_path, DIES)
    polite = begun("--isolate", path, "polite")
    polite.send_signal(signal.SIGTERM)
    assert polite.communicate(timeout=30)[1] == NOTHING
    assert polite.returncode == 9
    interrupted = begun("--isolate", path, "hang")
    interrupted.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in interrupted.communicate(timeout=30)[1]
    assert interrupted.returncode == 130


def test_a_second_interrupt_asks_for_the_stack(tmp_path: Path) -> None:
    """Covers: S9"""
    path = program(tmp_path, DIES)
    deaf = begun("--isolate", path, "deaf")
    deaf.send_signal(signal.SIGINT)
    assert deaf.stderr is not None
    assert "another Ctrl-C asks for its stack" in deaf.stderr.readline()
    deaf.send_signal(signal.SIGINT)
    said = deaf.communicate(timeout=30)[1]
    assert "was stopped with SIGINT" in said
    assert f'File "{path}", line 11 in <module>' in said
    assert deaf.returncode == 130


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C reaches the program once, by way of the terminal."""
    path = program(
        tmp_path,
        """
        import signal, sys, time
        count = []
        signal.signal(signal.SIGINT, lambda *_: count.append(1))
        print("begun", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
        while not count: time.sleep(0.05)
        time.sleep(0.3)
        print("interrupts:", len(count))
        """,
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*SLEUTH, "--isolate", path])
    said, typed = b"", False
    while select.select([terminal], [], [], 60)[0]:
        try:
            said += os.read(terminal, 4096)
        except OSError:
            break
        if b"begun True True" in said and not typed:
            typed = True
            os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"begun True True" in said
    assert b"interrupts: 1" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_the_program_does_not_outlive_us(tmp_path: Path) -> None:
    process = begun("--isolate", program(tmp_path, DIES), "child", stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.stdout.read()  # to the end: the last one that had it open is gone
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in state_of(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_watching_can_be_switched_off(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_AFTER", "none")
    assert "nothing was watched: watching is switched off by SLEUTH_AFTER" in run([*SLEUTH, "show.py"]).stderr


# ---- with torch ------------------------------------------------------------------------------------------

COMPILES = """
import ctypes, os, sys, time
os.environ["A_VARIABLE_THAT_TORCH_READS"] = "torch" if "torch" in sys.modules else "no torch yet"
import torch
print(os.environ["A_VARIABLE_THAT_TORCH_READS"], flush=True)

def do(what):
    match what:
        case "fault": ctypes.string_at(0)
        case "hang":
            print("hanging", flush=True)
            time.sleep(60)
        case "raise": raise RuntimeError("no such thing")

def backend(gm, inputs):
    do(sys.argv[1] if sys.argv[2] == "compiling" else "")
    def compiled(*args):
        do(sys.argv[1] if sys.argv[2] == "running" else "")
        return gm(*args)
    return compiled

@torch.compile(backend=backend)
def f(x):
    return x.sin() + 1

print(f(torch.zeros(2)).tolist())
"""


def told(stderr: str) -> tuple[str, str]:
    """The path and the id that the last lines tell."""
    found = re.search(r"\n  (\S+)\nNext: sleuth \w+ (\S+)\n\Z", stderr)
    assert found, stderr
    return found[1], Path(found[2]).name


def test_a_clean_program_leaves_nothing(tmp_path: Path) -> None:
    """Covers: S9"""
    store = tmp_path / "store"
    ended = run([*SLEUTH, "--level", "3", "--store", str(store), program(tmp_path, COMPILES), "nothing", "at all"])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "no torch yet\n[1.0, 1.0]\n", NOTHING)
    assert Store.open(store).case_names() == []


@pytest.mark.parametrize("how", ["--isolate", "--no-isolate"])
def test_an_exception_is_the_programs_and_a_case(tmp_path: Path, how: str) -> None:
    """Covers: U28"""
    store = tmp_path / "store"
    ended = run([*SLEUTH, how, "--store", str(store), program(tmp_path, COMPILES), "raise", "running"])
    assert ended.returncode == 1
    assert "\nRuntimeError: no such thing\n" in ended.stderr
    path, name = told(ended.stderr)
    assert Store.open(store).case_names() == [name]
    assert (Path(path) / "repro.py").exists()


@pytest.mark.parametrize("when", ["compiling", "running"])
def test_a_death_is_a_case(tmp_path: Path, when: str) -> None:
    """Covers: S9, U28"""
    store = tmp_path / "store"
    path = program(tmp_path, COMPILES)
    ended = run([*SLEUTH, "--level", "3", "--store", str(store), path, "fault", when])
    assert ended.returncode == 128 + signal.SIGSEGV
    assert ended.stdout == "no torch yet\n"
    folder, name = told(ended.stderr)
    assert Store.open(store).case_names() == [name]
    failure = Store.open(store).load(name).failure
    assert failure is not None
    assert (failure.signature.kind, failure.signature.signal) == ("crashed", signal.SIGSEGV)
    assert (failure.signature.stage is Stage.RUN) == (when == "running")
    assert f'File "{path}"' in failure.traceback
    assert (Path(folder) / "repro.py").exists()


def test_a_hang_that_somebody_ends_is_a_case(tmp_path: Path) -> None:
    """Covers: S9"""
    store = tmp_path / "store"
    command = [*SLEUTH, "--level", "3", "--store", str(store), program(tmp_path, COMPILES), "hang", "running"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "hanging\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, name = told(process.communicate(timeout=60)[1])
    assert process.returncode == 128 + signal.SIGTERM
    failure = Store.open(store).load(name).failure
    assert failure is not None
    assert failure.signature.kind == "timed out"
    assert failure.signature.stage is Stage.RUN
    assert re.search(r"was stopped with SIGTERM after \d+ s in which it ran Dynamo's graph 0", failure.message)


SWAPPED = """
import torch
from torch._dynamo.backends.common import aot_autograd

def backend(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.cos  # before AOT: whoever compares the graphs after it sees nothing
    gm.recompile()
    return aot_autograd(fw_compiler=lambda gm, _: gm)(gm, inputs)

torch.compile(lambda x: torch.sin(x) + 1, backend=backend)(torch.ones(3))
"""


def test_what_is_wrong_before_aot_is_found_without_being_told_where(tmp_path: Path) -> None:
    """Covers: U21, U24."""
    path, store = program(tmp_path, SWAPPED), str(tmp_path / "store")
    ended = run([*SLEUTH, "--level", "accuracy", "--store", store, path])
    assert ended.returncode == 1
    assert "AccuracyError" in ended.stderr
    (found,) = (Store.open(store).load(entry.id) for entry in Store.open(store).entries())
    assert found.failure is not None
    assert (found.failure.signature.kind, found.compiler.after) == ("mismatched", After.DYNAMO)
    ended = run([*SLEUTH, "--level", "accuracy", "--after", "aot", "--store", str(tmp_path / "another"), path])
    assert ended.returncode == 0


def test_which_graphs_are_watched_if_nothing_is_said() -> None:
    """Covers: U21."""
    assert [plan(level=level).after for level in (1, 2, 3, 4)] == [After.AOT, After.AOT, After.AOT, After.BOTH]
    assert [plan(level=4, after=after).after for after in ("aot", "none")] == [After.AOT, None]

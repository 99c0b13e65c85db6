"""`sleuth witness`: what it prints, as words and as data, how it ends; and what becomes of a backend that kills."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from torchsleuth.cli import main, witness as command
from torchsleuth.cli.witness import Asked
from torchsleuth.frontend import witness as frontend
from torchsleuth.frontend.aligning import Described, DescribedGraph, Difference, Kind, Row, align
from torchsleuth.frontend.breaks import GraphBreak, Place
from torchsleuth.frontend.capturing import capture
from torchsleuth.frontend.testimony import Blame, Run, Standing, Testimony as Said, Way
from torchsleuth.outcome import Crashed, Outcome, TimedOut
from torchsleuth.report.witness import render_testimony, testimony_data as data_of

SCRIPT = '''
"""A script that computes."""
import sys
import torch

def step(x, scale=1.0):
    print("computing", x.shape[0])
    return torch.relu(x * scale) + x.shape[0]

class Net(torch.nn.Module):
    def forward(self, x):
        return x.sin()

net = Net()
if __name__ == "__main__":
    for rows in (1, 2):
        step(torch.ones(rows, 3), scale=float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
    torch.compile(net)(torch.ones(2))
    print("the end")
'''
BACKENDS = """
import ctypes, time

def wrong(gm, inputs):
    return lambda *inputs: tuple(each + 1 for each in gm(*inputs))

def refuses(gm, inputs):
    raise NotImplementedError("this is not lowered")

def dies(gm, inputs):
    return lambda *inputs: ctypes.string_at(0)

def hangs_or_dies(gm, inputs):
    is_dynamos = next(iter(gm.graph.nodes)).name.startswith("l_")
    return lambda *inputs: time.sleep(60) if is_dynamos else ctypes.string_at(0)
"""
NO_DIFFERENCE = Difference()
Sleuth = Callable[..., int]


@pytest.fixture
def sleuth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sleuth:
    """Runs the command in this process, in a folder with a script and backends, and gives its exit code."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "witness_backends.py").write_text(textwrap.dedent(BACKENDS))
    monkeypatch.delitem(sys.modules, "witness_backends", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")  # else the width of a file is taken

    def run(*arguments: str, width: int = 120) -> int:
        monkeypatch.setattr(main.out, "width", width)
        monkeypatch.setattr(sys, "argv", ["sleuth", "witness", "--no-isolate", *arguments])
        with pytest.raises(SystemExit) as left:
            main.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    return run


def squeezed(text: str) -> str:
    return " ".join(text.split())


# ---- the whole of it -----------------------------------------------------------------------------------------


def test_a_wrong_backend_is_named_first_with_the_runs_and_the_next_command(
    sleuth: Sleuth, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Covers: U21, U28"""
    assert sleuth("script.py:step", "--backend", "witness_backends:wrong") == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "step  call 1, backend wrong"
    assert lines[1] == " THE BACKEND IS AT FAULT   wrong: its own code"
    (case,) = (tmp_path / ".sleuth" / "cases").iterdir()
    assert lines[-1] == f"Next: sleuth minify {case.name}"
    assert "kept as a case: Dynamo's graph" in said.out
    words = squeezed(said.out)
    assert "Both front ends give the same wrong result with wrong, and ours is right with eager" in words
    assert "torchsleuth with wrong wrong at output" in words
    assert "node by node the same" in words
    assert said.err.count("computing 1") == 1  # the script's own words, once
    assert "the end" not in said.err


def test_where_nobody_is_wrong_the_exit_code_is_zero(sleuth: Sleuth, capsys: pytest.CaptureFixture[str]) -> None:
    assert sleuth("script.py:step", "--backend", "aot_eager", "--", "3.0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "NOBODY IS WRONG"
    assert lines[-1] == "Next: sleuth breaks script.py:step -- 3.0"  # it compiles nothing that could be watched
    assert sleuth("script.py", "--backend", "aot_eager") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: sleuth run --level accuracy script.py"


def test_without_a_name_it_is_what_the_script_compiles(sleuth: Sleuth, capsys: pytest.CaptureFixture[str]) -> None:
    assert sleuth("script.py", "--backend", "witness_backends:refuses", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["function"] == "Net"
    assert data["verdict"] == "the backend"
    assert [run["standing"] for run in data["runs"]] == ["right", "wrong", "wrong", "right"]
    (case,) = data["cases"]
    assert case["words"].endswith("while compiling: raises NotImplementedError: this is not lowered")
    assert data["runs"][1]["failure"].startswith("raised torch._dynamo.exc.BackendCompilerFailed")


def test_a_later_call_can_be_asked_for(sleuth: Sleuth, capsys: pytest.CaptureFixture[str]) -> None:
    assert sleuth("script.py:step", "--backend", "eager", "--call", "2", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["call"] == 2
    assert "computing 2" in said.err
    assert sleuth("script.py:step", "--backend", "eager", "--call", "3") == 2
    words = squeezed(capsys.readouterr().err)
    assert "script.py:step is called 2 times, so there is no call 3" in words
    assert "ask for an earlier one: --call 2" in words


def test_data_has_everything(sleuth: Sleuth, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert sleuth("script.py:step", "--backend", "eager", "--dynamic", "--json") in (0, 1)
    data = json.loads(capsys.readouterr().out)
    assert list(data) == [
        "script", "function", "call", "verdict", "reason", "backend", "part", "somebody_is_wrong", "no_witness", "runs",
        "graphs", "breaks", "notes", "records", "cases",
    ]  # fmt: skip
    assert data["breaks"][0]["source"] == 'print("computing", x.shape[0])'
    row = data["graphs"]["rows"][-1]
    assert row["place"]["file"] == str(tmp_path / "script.py")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.py",), "there is no script 'nothing.py'"),
        (("script.py:stop",), "did you mean script.py:step?"),
        (("script.py:step", "--backend", "inducto"), "did you mean 'inductor'?"),
        (("script.py:step", "--backend", "witness_backends:nothing"), "witness_backends:nothing"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    sleuth: Sleuth, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert sleuth(*arguments) == 2
    assert words in squeezed(capsys.readouterr().err)
    assert sleuth(*arguments, "--json") == 2
    assert list(json.loads(capsys.readouterr().out)) == ["error"]


def test_a_script_that_catches_everything_does_not_catch_the_answer(
    sleuth: Sleuth, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    careful = """
    import torch
    def step(x):
        return x + 1
    for _ in range(3):
        try:
            step(torch.ones(2))
        except BaseException:
            pass
    """
    (tmp_path / "careful.py").write_text(textwrap.dedent(careful))
    assert sleuth("careful.py:step", "--backend", "inducto") == 2
    assert "there is no backend 'inducto'" in capsys.readouterr().err
    assert sleuth("careful.py:step", "--backend", "eager") == 0


def test_where_eager_fails_nothing_can_be_said(
    sleuth: Sleuth, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("import torch\ndef step(x):\n    return x.view(7)\nstep(torch.ones(2))\n")
    assert sleuth("broken.py:step", "--backend", "eager") == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "UNCLEAR"
    assert next(line.split()[:2] for line in lines if line.startswith("eager ")) == ["eager", "fails"]
    assert lines[-1] == "Next: python broken.py"


@pytest.mark.parametrize(
    ("name", "headline", "next_command"),
    [
        ("with_dynamo", "THE FRONT END IS AT FAULT   Dynamo", "sleuth breaks script.py:net"),
        ("with_ours", "TORCHSLEUTH IS AT FAULT", "sleuth witness --backend eager --json script.py:net"),
    ],
)
def test_a_wrong_front_end_is_named(
    sleuth: Sleuth,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    headline: str,
    next_command: str,
) -> None:
    def wrong(fn: Any, backend: Any, dynamic: Any) -> Any:
        return capture(lambda x: fn(x) + 1, backend)

    monkeypatch.setattr(frontend, name, wrong)
    assert sleuth("script.py:net", "--backend", "eager") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == headline
    assert lines[-1] == f"Next: {next_command}"


# ---- in a process of its own ---------------------------------------------------------------------------------


def isolated(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsleuth", "witness", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("sleuth")
def test_a_backend_that_hangs_or_kills_the_process_is_at_fault(tmp_path: Path) -> None:
    """Covers: U19, U21"""
    ran = isolated("script.py:net", "--backend", "witness_backends:hangs_or_dies", "--deadline", "10", folder=tmp_path)
    assert ran.returncode == 1, ran.stderr
    words = squeezed(ran.stdout)
    assert "THE BACKEND IS AT FAULT hangs_or_dies" in words
    assert "Dynamo with hangs_or_dies wrong timed out after 10 s" in words
    assert "torchsleuth with hangs_or_dies wrong crashed with SIGSEGV" in words
    assert "but not alike" in words
    assert "node by node the same" in words
    assert ran.stdout.splitlines()[-1] == "Next: sleuth run --timeout 30 --level always script.py"
    assert "Dynamo with hangs_or_dies timed out after 10 s" in ran.stderr
    assert "(unknown)" not in ran.stderr


@pytest.mark.usefixtures("sleuth")
def test_a_backend_that_kills_the_process_leaves_a_case(tmp_path: Path) -> None:
    """Covers: U19, U28"""
    ran = isolated("script.py:net", "--backend", "witness_backends:dies", folder=tmp_path)
    assert ran.returncode == 1, ran.stderr
    (case,) = (tmp_path / ".sleuth" / "cases").iterdir()
    assert "kept as a case: Dynamo's graph 0, run: dies of SIGSEGV" in ran.stdout
    assert ran.stdout.splitlines()[-1] == f"Next: sleuth minify {case.name}"


@pytest.mark.usefixtures("sleuth")
def test_a_script_that_does_not_come_to_the_call_is_stopped(tmp_path: Path) -> None:
    """Covers: U19"""
    (tmp_path / "slow.py").write_text("import time\ndef step(x): pass\ntime.sleep(60)\nstep(1)\n")
    ran = isolated("slow.py:step", "--deadline", "2", "--json", folder=tmp_path)
    assert ran.returncode == 2, ran.stderr
    error = json.loads(ran.stdout)["error"]
    assert error["what"] == "slow.py:step does not come to the call in 2 s"
    assert error["cause"] == f"the script was stopped at {tmp_path / 'slow.py'}:3"
    assert "--deadline" in error["remedy"]


def test_what_to_watch_is_said_where_the_script_compiles_nothing() -> None:
    """Covers: U28"""
    hang = Run(Way.DYNAMO, "hangs", Standing.WRONG, "hangs", failure=TimedOut(deadline=3))
    said = dataclasses.replace(a_testimony(Blame.BACKEND), dynamo=hang)
    asked = Asked("train.py:step", ("--epochs", "2"), "my.backends:hangs")
    following = "sleuth run --timeout 1200 --level always train.py --epochs 2"
    added = "call torch.compile(step, backend=my.backends.hangs) in train.py, then: "
    assert command.next_command(asked, "step", said, compiles=True) == following
    assert command.next_command(asked, "step", said, compiles=False) == added + following
    quick = dataclasses.replace(asked, deadline=3)
    assert "--timeout 30 " in command.next_command(quick, "step", said, compiles=True)
    unclear = dataclasses.replace(
        a_testimony(Blame.UNCLEAR), dynamo=dataclasses.replace(hang, failure=Crashed(signal=6))
    )
    watched = "torch.compile(step, backend=torchsleuth.watch(my.backends.hangs, level=4))"
    assert command.next_command(asked, "step", unclear, compiles=False) == f"call {watched} in train.py, and run that"
    otherwise = dataclasses.replace(said, dynamo=dataclasses.replace(hang, failure=None, effect="it is a list"))
    again = "sleuth witness --backend my.backends:hangs --json train.py:step -- --epochs 2"
    assert command.next_command(asked, "step", otherwise, compiles=True) == again


def test_what_was_watched_in_vain_is_not_to_be_watched_again() -> None:
    """Covers: U28"""
    wrong = Run(Way.DYNAMO, "wrong", Standing.WRONG, "raises ValueError", failure=Crashed(signal=11))
    said = dataclasses.replace(a_testimony(Blame.BACKEND), dynamo=wrong)
    asked = Asked("train.py:step", backend="wrong", call=2, deadline=3)
    again = "sleuth witness --backend wrong --call 2 --deadline 3 --json train.py:step"
    for compiles in (False, True):
        assert command.next_command(asked, "step", said, compiles=compiles) == again


def test_what_does_not_end_in_eager_is_given_more_time() -> None:
    """Covers: U28"""
    hang = Run(Way.EAGER, "", Standing.WRONG, "hangs", failure=TimedOut(deadline=3))
    said = dataclasses.replace(a_testimony(Blame.UNCLEAR), eager=hang)
    asked = Asked("train.py:step", deadline=3)
    again = "sleuth witness --backend inductor --deadline 6 train.py:step"
    assert command.next_command(asked, "step", said, compiles=True) == again


# ---- outcomes of a process -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "stack", "kind", "words"),
    [
        ({"code": None, "signal": 11}, "", Crashed, "crashed with SIGSEGV"),
        ({"code": 7}, "", Crashed, "ended itself with exit code 7"),
        ({"code": 1}, "Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n", TimedOut, "timed out after 5 s"),
    ],
)
def test_how_a_process_ended_is_what_came_of_its_run(
    tmp_path: Path, ended: dict[str, Any], stack: str, kind: type[Outcome], words: str
) -> None:
    """Covers: U19"""
    log = command.StepLog(tmp_path, 5.0, lambda words: None)
    log.note(begin="eager")
    log.note(end="eager")
    log.note(begin="Dynamo with wrong")
    (tmp_path / "stack").write_text(stack)
    log.read()
    assert log.current == "Dynamo with wrong"
    log.note_death(command.Ended(pid=1, **ended))
    again = command.StepLog(tmp_path, 5.0, lambda words: None)
    found = again.died("Dynamo with wrong")
    assert isinstance(found, kind)
    assert words in found.describe()
    assert again.died("eager") is None
    assert (again.current, again.code) == (None, None)
    again.done(1)
    log.read()
    assert log.code == 1


def test_a_step_is_noted_when_it_begins_and_when_it_ends_however_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    log = command.StepLog(tmp_path, 60.0, said.append)
    with contextlib.suppress(ZeroDivisionError), log.at("Dynamo with wrong"):
        log.read()
        assert log.current == "Dynamo with wrong"
        raise ZeroDivisionError
    log.read()
    assert log.current is None
    assert said == ["running: Dynamo with wrong"]


def test_what_is_asked_of_the_child_is_what_was_asked() -> None:
    asked = Asked("train.py:Net.forward", ("--epochs", "2"), "aot_eager", 3, True, 20.0)
    assert asked.words(as_json=True) == [
        "--backend", "aot_eager", "--call", "3", "--deadline", "20.0", "--dynamic", "--json", "train.py:Net.forward",
        "--", "--epochs", "2",
    ]  # fmt: skip
    assert asked.path == "train.py"
    assert asked.next("breaks", function=True) == "sleuth breaks train.py:Net.forward -- --epochs 2"
    assert asked.next("run", "--level", "minify") == "sleuth run --level minify train.py --epochs 2"


# ---- the report ----------------------------------------------------------------------------------------------


def node(name: str, line: int = 1, target: str = "") -> Described:
    return Described(name, target or name, target or f"torch.{name}", ("x",), "f32[2]", Place("/far/net.py", line, "f"))


def run(way: Way, standing: Standing, words: str = "", backend: str = "inductor") -> Run:
    return Run(way, backend, standing, words)


def a_testimony(blame: Blame, difference: Difference = NO_DIFFERENCE, **more: Any) -> Said:
    return Said(
        blame,
        "this is why",
        "inductor",
        run(Way.EAGER, Standing.RIGHT, "the measure"),
        run(Way.DYNAMO, Standing.WRONG, "off by one"),
        run(Way.OURS, Standing.RIGHT, "as in eager"),
        difference=difference or Difference(),
        **more,
    )


def shown(said: Said, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in render_testimony(said):
        console.print(part, soft_wrap=isinstance(part, Text), highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("blame", list(Blame))
def test_every_verdict_has_words(blame: Blame) -> None:
    lines = shown(a_testimony(blame, part="AOT" if blame is Blame.BACKEND else "")).splitlines()
    assert lines[0].strip()
    assert lines[1] == "This is why."
    if blame is Blame.BACKEND:
        assert lines[0].endswith("inductor: AOT")
    json.dumps(data_of(a_testimony(blame)))


def test_only_where_graphs_differ_nodes_are_shown() -> None:
    same_nodes = [node(f"op_{number}", number) for number in range(20)]
    ours = [*same_nodes[:10], node("clone", 10), *same_nodes[10:]]
    difference = align([DescribedGraph(tuple(ours))], [DescribedGraph(tuple(same_nodes))])
    lines = shown(a_testimony(Blame.OURS, difference)).splitlines()
    assert "graphs: ours 1 graph (21 operations), Dynamo 1 graph (20 operations); 1 only ours" in lines
    shown_nodes = [line.strip() for line in lines if "torch." in line]
    assert shown_nodes == [
        "op_8: f32[2] = torch.op_8(x)",
        "op_9: f32[2] = torch.op_9(x)",
        "+ ours   clone: f32[2] = torch.clone(x)",
        "op_10: f32[2] = torch.op_10(x)",
        "op_11: f32[2] = torch.op_11(x)",
    ]
    assert [line.strip() for line in lines if "…" in line] == [
        "… 8 nodes that are the same",
        "… 8 nodes that are the same",
    ]
    assert "    # net.py:10 in f" in lines
    with_one_more = align([DescribedGraph(tuple(ours[7:]))], [DescribedGraph(tuple(same_nodes[7:13]))])
    assert "    … 1 node that is the same" in shown(a_testimony(Blame.OURS, with_one_more)).splitlines()


def test_what_is_not_known_of_a_failure_is_not_said() -> None:
    failed = Run(Way.EAGER, "", Standing.WRONG, "dies", failure=Crashed(signal=11))
    assert (failed.data()["failure"], failed.data()["standing"]) == ("crashed with SIGSEGV", "fails")
    assert Run(Way.DYNAMO, "", Standing.WRONG, "dies", failure=Crashed(signal=11)).data()["standing"] == "wrong"


def test_a_long_difference_is_cut_and_control_characters_do_nothing() -> None:
    rows = tuple(Row(Kind.DIFFERS, node(f"a{n}\x1b[31m", n), node(f"b{n}", n), "it is other") for n in range(100))
    breaks = tuple(GraphBreak("print(\x07)", Place("net.py", n, "f"), ()) for n in range(9))
    graphs = (DescribedGraph((node("a"),)),)
    text = shown(a_testimony(Blame.UNCLEAR, Difference(graphs, graphs, rows), breaks=breaks, notes=("a note",)))
    assert "60 more rows: `--json` has all of them" in text
    assert "… and 6 more breaks" in text
    assert "note: a note" in text
    assert "\x1b[31m" not in text
    assert "\x07" not in text


# ---- Inductor itself -----------------------------------------------------------------------------------------


@pytest.mark.inductor
def test_a_fault_that_a_script_plants_in_inductor_is_found(tmp_path: Path) -> None:
    """Covers: U21"""
    script = """
    import torch
    from torch._inductor import config
    config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"
    def step(x):
        return torch.relu(x) * 2
    step(torch.linspace(-1, 1, 8))
    """
    (tmp_path / "planted.py").write_text(textwrap.dedent(script))
    ran = isolated("planted.py:step", folder=tmp_path)
    assert ran.returncode == 1, ran.stderr
    assert "THE BACKEND IS AT FAULT   inductor: its own compiler, behind AOT" in ran.stdout

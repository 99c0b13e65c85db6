"""`sleuth replay` and `sleuth verify`: what they print, as words and as data, and how they end. Covers: U5, U6, U28."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from replay_samples import OTHER, PASSED, SAME, WRONG, kept, opened, with_origin
from torchsleuth.case.schema import Compiler, Earlier, Failure, Signature
from torchsleuth.case.stores.examining import Found
from torchsleuth.cli import replay as replay_command
from torchsleuth.cli.answers import Answer, give
from torchsleuth.cli.progress import shown as progress_shown
from torchsleuth.cli.replay import Asked, Where, make_runner, size_of
from torchsleuth.config import After
from torchsleuth.errors import BadValue, SleuthError
from torchsleuth.outcome import Broken, Crashed, Outcome, Stage, Symptom, TimedOut, Unrunnable, from_data
from torchsleuth.run.query import Query
from torchsleuth.run.runners.fresh import Fresh
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.scripted import Scripted
from torchsleuth.run.runners.warm import Warm

Answers = Sequence[Outcome] | Callable[[Query], Outcome]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    return kept(opened(tmp_path))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], Scripted]:
    def script(answers: Answers) -> Scripted:
        runner = Scripted(answers)
        monkeypatch.setattr(replay_command, "make_runner", lambda _: runner)
        return runner

    return script


def asked(found: Found, tmp_path: Path, **more: Any) -> Asked:
    return Asked(str(found.id), str(tmp_path / "store"), **more)


def shown(answer: Answer) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert give(console, lambda: answer, as_json=False) == answer.code
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


QUIET = Console(file=io.StringIO())


@pytest.mark.parametrize(
    ("outcome", "code", "words", "following"),
    [
        (SAME, 1, "the failure is there", "sleuth export {} -o repro.py"),
        (PASSED, 0, "the failure is not there", "sleuth verify {}"),
        (OTHER, 0, "ANOTHER FAILURE", "sleuth verify {}"),
        (
            Unrunnable(reason="it holds code of yours; run it with --trust"),
            2,
            "cannot be run",
            "sleuth replay {} --trust",
        ),
        (Unrunnable(reason="no such device"), 2, "no such device", "sleuth show {}"),
        (Broken(reason="ours", traceback="a line of it"), 3, "torchsleuth itself failed", "sleuth doctor"),
    ],
)
def test_the_exit_code_says_whether_the_failure_is_there(
    found: Found,
    tmp_path: Path,
    scripted: Callable[..., Scripted],
    outcome: Outcome,
    code: int,
    words: str,
    following: str,
) -> None:
    """Covers: U28"""
    runner = scripted([outcome])
    answer = replay_command.replay(QUIET, asked(found, tmp_path))
    told = shown(answer)
    assert answer.code == code
    assert words in told
    assert "expected  raises torch._inductor.exc.LoweringException: no lowering" in told
    last = following.format(found.id) + ("" if outcome.verb == "broken" else f" --store {tmp_path / 'store'}")
    assert told.rstrip().splitlines()[-1] == f"Next: {last}"
    assert runner.closed


def test_data_is_the_outcome_and_what_is_thought_of_it(
    found: Found, tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    scripted([SAME])
    data = replay_command.replay(QUIET, asked(found, tmp_path), as_json=True).data
    more = {name: data.pop(name) for name in ("case", "expected", "signature", "verdict", "matches", "rate")}
    assert from_data(data) == SAME
    assert (more["case"], more["verdict"], more["matches"], more["rate"]) == (found.id, "same", True, None)
    assert more["signature"]["types"] == ("torch._inductor.exc.LoweringException",)
    json.dumps(more)


def test_a_user_may_say_which_failure_counts(found: Found, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    """Covers: U5"""
    scripted(lambda _: OTHER)
    assert replay_command.replay(QUIET, asked(found, tmp_path, match="any")).code == 1
    assert replay_command.replay(QUIET, asked(found, tmp_path, match="regex:buf")).code == 1
    assert replay_command.replay(QUIET, asked(found, tmp_path, match="regex:nothing like it")).code == 0
    with pytest.raises(BadValue):
        replay_command.replay(QUIET, asked(found, tmp_path, match="vaguely"))


def test_a_failure_without_a_record_is_any_failure(tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    """Covers: S29"""
    found = kept(opened(tmp_path), failure=None)
    scripted([WRONG, WRONG])
    answer = replay_command.replay(QUIET, asked(found, tmp_path))
    assert answer.code == 1
    assert "BUG: all of it\n" in shown(answer)


def test_a_rate_is_measured_over_several_runs(found: Found, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    """Covers: U6"""
    runner = scripted([PASSED, SAME, PASSED, PASSED])
    answer = replay_command.replay(QUIET, asked(found, tmp_path), times=4)
    assert (answer.code, answer.data["rate"]["same"], answer.data["rate"]["runs"]) == (1, 1, 4)
    assert "fails in 1 of 4 runs (5–70 %)" in shown(answer)
    assert len(runner.queries) == 4


def test_what_was_asked_for_reaches_the_runner(found: Found, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    runner = scripted([PASSED])
    more: dict[str, Any] = {"compiler": "aot_eager", "accuracy": True, "trust": True, "deadline": 5.0, "memory": "2GiB"}
    replay_command.replay(QUIET, asked(found, tmp_path, **more))
    assert runner.queries == [
        Query(found.case, found.home, "aot_eager", True, trust=True, deadline=5.0, memory=2 * 1024**3)
    ]


def test_a_history_that_is_gone_is_said(tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    scripted([PASSED])
    found = kept(opened(tmp_path), origin=with_origin(history=(Earlier("forward graph 7", 3),)))
    answer = replay_command.replay(QUIET, asked(found, tmp_path, with_history=True))
    assert "note: not at hand: forward graph 7 (it was not kept)" in shown(answer)


def test_a_crash_shows_its_stack(found: Found, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
    scripted([Crashed(Stage.RUN, signal=11, stack='Fatal Python error\n  File "x.py", line 1 in f'), PASSED])
    told = shown(replay_command.replay(QUIET, asked(found, tmp_path)))
    assert "crashed with SIGSEGV (run)" in told
    assert 'File "x.py", line 1 in f' in told


@pytest.mark.parametrize(("text", "size"), [("4GiB", 4 * 1024**3), ("512MB", 512_000_000), ("1.5k", 1500), ("7", 7)])
def test_an_amount_of_memory_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "4 GiB of it"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(SleuthError, match="no amount of memory"):
        size_of(text)


def test_each_runner_has_a_name() -> None:
    for where, kind in ((Where.FRESH, Fresh), (Where.WARM, Warm), (Where.IN_PROCESS, InProcess)):
        with make_runner(where) as runner:
            assert isinstance(runner, kind)


def test_progress_is_shown_on_a_terminal_only() -> None:
    """Covers: S24"""
    with progress_shown(Console(file=io.StringIO())) as told:
        assert told is None
    file = io.StringIO()
    with progress_shown(Console(file=file, force_terminal=True, width=80)) as told:
        assert told is not None
        told(Stage.PREPARE, 1, 2)
        told(Stage.COMPILE, 0, 0)
    assert "compiling" in file.getvalue()


# ---- in earnest ------------------------------------------------------------------------------------------


BACKEND = """
def off_by_one(gm, example_inputs):
    return lambda *inputs: tuple(value + 1 for value in gm(*inputs))
"""


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(folder), "SLEUTH_STORE": str(folder / "store")}
    return subprocess.run(
        [sys.executable, "-m", "torchsleuth", *args], env=environ, capture_output=True, text=True, check=False
    )


def test_a_wrong_backend_is_replayed_and_verified_if_it_is_trusted(tmp_path: Path) -> None:
    """Covers: U26"""
    (tmp_path / "wrong_backend.py").write_text(BACKEND)
    wrong = Failure(Signature("mismatched", Stage.COMPARE, symptom=Symptom.VALUE), message="differs")
    found = kept(
        opened(tmp_path),
        compiler=Compiler(After.DYNAMO, "wrong_backend.off_by_one"),
        failure=wrong,
        origin=with_origin(torch=str(torch.__version__)),
    )
    name = str(found.id)
    here = asked(found, tmp_path)
    refused = replay_command.replay(QUIET, here, runner=Where.IN_PROCESS)
    assert (refused.code, refused.next) == (2, f"sleuth replay {name} --trust --store {tmp_path / 'store'}")
    here = asked(found, tmp_path, compiler="aot_eager")
    assert replay_command.replay(QUIET, here, runner=Where.IN_PROCESS).code == 0
    ran = run(tmp_path, "verify", name, "--trust", "--json")
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    data = json.loads(ran.stdout)
    assert (data["reproduces"], data["words"], data["findings"]) == (True, "reproduces", [])
    assert data["replay"]["outcome"] == "mismatched"
    assert data["script"]["reproduces"] is True


def test_the_next_command_trusts_whom_this_one_trusted(found: Found, tmp_path: Path) -> None:
    trusting = Asked(str(found.id), trust=True)
    assert trusting.command("replay", found, "--with-history") == f"sleuth replay {found.id} --with-history --trust"
    assert trusting.command("show", found) == f"sleuth show {found.id}"


def test_a_run_in_this_process_keeps_stdout_for_the_answer(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def prints(_query: Query) -> Outcome:
        os.write(1, b"hello from the graph\n")
        return SAME

    monkeypatch.setattr(replay_command, "make_runner", lambda _: Scripted(prints))
    replay_command.replay(QUIET, asked(found, tmp_path), runner=Where.IN_PROCESS)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "hello from the graph\n")
    with pytest.raises(SleuthError, match="cannot be stopped"):
        replay_command.replay(QUIET, asked(found, tmp_path, deadline=1.0), runner=Where.IN_PROCESS)


@pytest.mark.parametrize("text", ["99999999999GiB", "0", "-1", "1e9", "much"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(SleuthError, match="no amount of memory"):
        size_of(text)


def test_the_next_command_is_what_was_asked_with_trust(
    found: Found, tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    scripted([Unrunnable(Stage.PREPARE, reason="mine.backend is not torch's own; run it with --trust")])
    answer = replay_command.replay(QUIET, asked(found, tmp_path, compiler="mine.backend"))
    assert (answer.code, "--compiler mine.backend --trust" in answer.next) == (2, True)


def test_any_failure_counts_if_the_user_says_so(
    found: Found, tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    for match, code in (("any", 1), ("origin", 0)):
        scripted([TimedOut(Stage.RUN, deadline=1.0), PASSED])
        assert replay_command.replay(QUIET, asked(found, tmp_path, match=match)).code == code

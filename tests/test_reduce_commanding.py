"""A test of the user's own as the one who says whether a case still fails. Covers: U4, U5, U26."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from case_samples import small_case
from replay_samples import kept, opened
from torchsleuth.case import schema
from torchsleuth.case.stores.examining import check_tensors, open_path
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.commanding import Commanded, words_of
from torchsleuth.run.oracle import Verdict

Write = Callable[[str], tuple[str, ...]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Write:
    def write(text: str) -> tuple[str, ...]:
        path = tmp_path / "check.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return (str(path),)

    return write


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(("code", "verdict"), [(1, Verdict.SAME), (0, Verdict.PASSED), (125, Verdict.INVALID)])
def test_the_exit_code_is_the_answer(store: Store, script: Write, code: int, verdict: Verdict) -> None:
    case = kept(store).case
    with Commanded(script(f"exit {code}"), store) as tests:
        answer = tests.submit(case).result(60)
    assert (answer.verdict, answer.failure) == (verdict, None)
    assert f"exit code {code}" in answer.words


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("echo no such thing >&2; exit 2", "exit code 2"),
        ("exit 126", "exit code 126"),
        ("no-such-program", "exit code 127"),
        ("kill -SEGV $$", "SIGSEGV"),
    ],
)
def test_any_other_end_is_a_test_that_does_not_work(store: Store, script: Write, text: str, how: str) -> None:
    command = script(text)
    with Commanded(command, store) as tests, pytest.raises(SleuthError) as caught:
        tests.submit(kept(store).case).result(60)
    assert command[0] in caught.value.what
    assert how in caught.value.what
    if how == "exit code 2":
        assert "it said last: no such thing" in caught.value.cause


def test_the_command_gets_the_case_in_a_folder_of_its_own(store: Store, script: Write, tmp_path: Path) -> None:
    case = kept(store).case
    told = tmp_path / "told"
    command = script(
        f'cp -rL "$SLEUTH_CASE" {told}; echo "$1 $2 $SLEUTH_SCRIPT $SLEUTH_CASE $PWD" > {told}/args; exit 1'
    )
    with Commanded((*command, "--strictly"), store, folder=tmp_path / "work") as tests:
        assert tests.submit(case).result(60).verdict is Verdict.SAME
    first, second, path, folder, here = (told / "args").read_text().split()
    assert (first, second) == ("--strictly", path)
    assert (Path(folder), Path(here)) == (Path(path).parent, Path.cwd())
    assert "torch" in (told / "repro.py").read_text()
    found = open_path(told)
    assert found.case == case
    assert check_tensors(found) == 24
    assert not list((tmp_path / "work").iterdir())


def test_a_command_may_have_arguments_of_its_own(store: Store, tmp_path: Path) -> None:
    assert words_of("sh -c 'exit 1'") == ("sh", "-c", "exit 1")
    with Commanded(words_of("sh -c 'test -f \"$0\" && exit 1'"), store) as tests:
        assert tests.submit(kept(store).case).result(60).verdict is Verdict.SAME


def test_out_of_time_is_an_answer_and_all_of_it_is_killed(store: Store, script: Write, tmp_path: Path) -> None:
    """Covers: U16"""
    command = script(f"sleep 600 & echo $! > {tmp_path}/child; sleep 600")
    with Commanded(command, store, deadline=0.5, folder=tmp_path / "work") as tests:
        answer = tests.submit(kept(store).case).result(60)
    assert answer.verdict is Verdict.TIMEOUT
    assert is_gone(int((tmp_path / "child").read_text()))
    assert not list((tmp_path / "work").iterdir())


def test_what_it_leaves_in_the_background_goes_with_it(store: Store, script: Write, tmp_path: Path) -> None:
    with Commanded(script(f"sleep 600 & echo $! > {tmp_path}/child; exit 0"), store) as tests:
        assert tests.submit(kept(store).case).result(60).verdict is Verdict.PASSED
    until(lambda: is_gone(int((tmp_path / "child").read_text())))


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_one_that_nobody_waits_for_is_killed(store: Store, script: Write, tmp_path: Path, how: str) -> None:
    command = script(f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 600")
    with Commanded(command, store, folder=tmp_path / "work") as tests:
        running, waiting = tests.submit(kept(store).case), tests.submit(kept(store).case)
        until((tmp_path / "pid").exists)
        if how == "cancel":
            assert waiting.cancel()
            assert running.cancel()
        else:
            tests.close()
        pid = int((tmp_path / "pid").read_text())
        until(lambda: is_gone(pid) and not list((tmp_path / "work").iterdir()))
    assert running.cancelled()
    assert waiting.cancelled()
    with pytest.raises(SleuthError, match="closed"):
        tests.submit(kept(store).case)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # somebody has waited for it


def test_several_run_at_the_same_time(store: Store, script: Write, tmp_path: Path) -> None:
    """Each waits until the other is there."""
    wait = 'for i in $(seq 2000); do [ "$(ls | wc -l)" -ge 2 ] && exit 1; sleep 0.01; done; exit 0'
    (tmp_path / "here").mkdir()
    with Commanded(script(f"cd {tmp_path}/here; touch $$; {wait}"), store, workers=2) as tests:
        both = [tests.submit(kept(store).case) for _ in range(2)]
        assert [one.result(60).verdict for one in both] == [Verdict.SAME] * 2


def test_it_may_print_as_much_as_it_likes(store: Store, script: Write) -> None:
    command = script("head -c 3000000 /dev/zero; echo; echo the end; exit 3")
    with Commanded(command, store) as tests, pytest.raises(SleuthError) as caught:
        tests.submit(kept(store).case).result(60)
    assert "the end" in caught.value.cause
    assert len(caught.value.cause) < 1000


def test_answers_depend_on_what_is_in_the_script(store: Store, script: Write) -> None:
    """So that a test that was edited is asked again."""

    def terms(command: tuple[str, ...], deadline: float | None = None) -> bytes:
        with Commanded(command, store, deadline=deadline) as tests:
            return tests.terms

    first = terms(script("exit 1"))
    assert terms(script("exit 1")) == first
    assert terms((*script("exit 1"), "-v")) != first
    assert terms(script("exit 1"), 5.0) != first
    assert terms(("sh", *script("exit 1"))) != terms(("sh", *script("exit 0")))
    assert terms(script("exit 0")) != first


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("./no-such-file", "there is no program"),
        ("plain.txt", "say ./plain.txt"),
        ("./plain.txt", "chmod +x"),
        ("", "it is empty"),
        ("'", "quotation"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_at_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("exit 1\n")
    with pytest.raises(SleuthError) as caught:
        Commanded(words_of(command), store)
    assert said in str(caught.value)


def test_a_file_that_is_no_program_is_an_error_of_the_test(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    with Commanded((str(path),), store) as tests, pytest.raises(SleuthError, match="cannot be run as a test"):
        tests.submit(kept(store).case).result(60)


def test_what_cannot_be_a_script_is_left_out(store: Store, script: Write) -> None:
    odd = small_case(inputs=(schema.Noticed("m.Odd", "no place", "<odd>"),), storages=())
    with Commanded(script("exit 1"), store) as tests:
        assert tests.submit(odd).result(60).verdict is Verdict.INVALID


def test_an_interrupt_of_ours_does_not_reach_it(store: Store, script: Write) -> None:
    """It is in a session of its own: Ctrl-C is for us to hear."""
    command = script(f"cut -d' ' -f6 /proc/$$/stat | grep -qx {os.getsid(0)} && exit 0; exit 1")
    with Commanded(command, store) as tests:
        assert tests.submit(kept(store).case).result(60).verdict is Verdict.SAME


def test_what_leaves_the_session_is_not_waited_for(store: Store, script: Write, tmp_path: Path) -> None:
    """It lives on, and it holds the other end of what is read; the answer is there nevertheless."""
    pid = tmp_path / "pid"
    server = f"setsid sh -c 'echo $$ > {pid}; exec sleep 60' &"
    command = script(f"echo before\n{server}\nwhile [ ! -s {pid} ]; do sleep 0.01; done\nexit 9")
    case = kept(store).case
    try:
        with Commanded(command, store) as tests:
            future = tests.submit(case)
            until(pid.exists)
            began = time.monotonic()
            with pytest.raises(SleuthError) as raised:
                future.result(60)
        assert time.monotonic() - began < 4
        assert "it said last: before" in raised.value.cause
        assert not is_gone(int(pid.read_text()))
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)

"""`sleuth minify`: what it prints, as words and as data, how it ends, and how it goes on.

Covers: U4, U5, U16, U26, U28
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from minify_samples import LOWERING, asked, check, long_case, targets
from replay_samples import SAME, SCRIPT_PASSES, SCRIPT_SAME, kept, opened
from torchsleuth.capture.keeping import next_command
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.cli.answers import Answer, give
from torchsleuth.cli.minify import minify
from torchsleuth.cli.minify_wanted import Wanted, needs_of
from torchsleuth.cli.replay import Asked
from torchsleuth.cli.verify import verify as verify_command
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Broken, Outcome, Passed, Raised, Stage, Unrunnable
from torchsleuth.reduce import delivering
from torchsleuth.reduce.jobs import Job, started
from torchsleuth.run import fidelity
from torchsleuth.run.delivery import Delivery, deliver
from torchsleuth.run.oracle import Verdict
from torchsleuth.run.query import Query
from torchsleuth.run.repeating import Rate
from torchsleuth.run.runners import warm
from torchsleuth.run.runners.scripted import Scripted
from torchsleuth.run.scripts import Ran

QUIET = Console(file=io.StringIO())
WARM = warm.Warm
NO_VALUES = Unrunnable(reason="it is not run here")


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody computes values for a test of the user's: that takes longer than all the rest."""
    monkeypatch.setattr(warm, "Warm", lambda **_: Scripted(lambda _: NO_VALUES))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


@pytest.fixture
def found(store: Store) -> Found:
    return long_case(store)


def run(found: Found, tmp_path: Path, **more: Any) -> Answer:
    return minify(QUIET, Wanted(str(found.id), str(tmp_path / "store"), workers=1, **more), as_json=True)


def shown(answer: Answer) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert give(console, lambda: answer, as_json=False) == answer.code
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# ---- a test of the user's ------------------------------------------------------------------------------------------


def test_a_test_of_the_user_s_decides(
    found: Found, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From beginning to end, with values that workers compute. Covers: U4"""
    monkeypatch.setattr(warm, "Warm", WARM)
    out = tmp_path / "here" / "small.py"
    answer = run(found, tmp_path, test=check(tmp_path), output=out)
    told = shown(answer)
    small = store.load(answer.data["result"])
    assert (answer.code, sorted(targets(small))) == (0, ["cos", "tanh"])
    assert small.origin.parent == found.id
    assert answer.data["before"]["operators"] == 11
    assert answer.data["after"] | {"settings": 0} == {
        "operators": 2,
        "inputs": 1,
        "outputs": 1,
        "elements": 1,
        "data": 0,
        "settings": 0,
    }
    assert len(asked(tmp_path)) == len(set(asked(tmp_path))) == answer.data["queries"]
    assert "11 → 2 operators  your test says that it still fails" in told
    assert "aten.tanh.default(" in told
    assert "it raises" not in told
    assert answer.data["failure"] is None
    assert told.rstrip().splitlines()[-1] == f"Next: python {out}"
    assert out.read_bytes() == Path(answer.data["script"]).read_bytes()
    assert not list(tmp_path.glob("store/minify/*.work"))
    json.dumps(answer.data)


def test_what_was_answered_is_not_asked_again_unless_that_is_wanted(found: Found, tmp_path: Path) -> None:
    """Covers: U26"""
    test = check(tmp_path)
    first = run(found, tmp_path, test=test)
    before = len(asked(tmp_path))
    second = run(found, tmp_path, test=test)
    assert len(asked(tmp_path)) == before
    assert second.data["result"] == first.data["result"]
    assert (second.data["queries"], second.data["known"] > 0) == (0, True)
    third = run(found, tmp_path, test=test, again=True)
    assert len(asked(tmp_path)) == 2 * before
    assert third.data["result"] == first.data["result"]
    over = run(found, tmp_path, test=test, resume=True)
    assert (over.code, over.data["error"]["what"]) == (2, "there is nothing to resume")
    assert over.next == f"sleuth minify {found.id} --test {test} --store {tmp_path / 'store'}"


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        (0, 1, "your test says that the whole case does not fail"),
        (125, 2, "your test does not say that the whole case fails"),
    ],
)
def test_a_case_that_does_not_fail_is_not_minified(
    found: Found, tmp_path: Path, code: int, ends: int, says: str
) -> None:
    answer = run(found, tmp_path, test=f"sh -c 'exit {code}'")
    assert (answer.code, answer.data["error"]["what"]) == (ends, says)
    assert answer.data["error"]["cause"] == f"the test ended with exit code {code}"
    last = shown(answer).rstrip().splitlines()[-1]
    assert last == f"Next: sleuth export {found.id} -o repro.py --store {tmp_path / 'store'}"


def test_where_no_script_can_be_written_nothing_is_begun(found: Found, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "repro.py"):
        with pytest.raises(SleuthError, match="no script can be written"):
            run(found, tmp_path, test=check(tmp_path), output=out)
    assert not asked(tmp_path)


def test_a_script_that_cannot_be_copied_in_the_end_costs_nothing_else(found: Found, tmp_path: Path) -> None:
    out = tmp_path / "later" / "repro.py"
    answer = run(found, tmp_path, test=check(tmp_path, more=f"touch {out.parent}"), queries=3, output=out)
    assert (answer.code, answer.data["copy"], answer.data["result"] is None) == (0, None, False)
    assert "warning: there is no script at" in shown(answer)


def test_a_test_that_breaks_in_the_middle_stops_it_and_loses_nothing(found: Found, tmp_path: Path) -> None:
    test = check(tmp_path, more=f"[ -f {tmp_path}/breaks ] && [ $(wc -l < {tmp_path}/log) -ge 4 ] && exit 7")
    (tmp_path / "breaks").touch()
    broken = run(found, tmp_path, test=test)
    assert broken.code == 2
    assert "exit code 7" in shown(broken)
    assert broken.data["result"] is not None
    (tmp_path / "breaks").unlink()
    assert run(found, tmp_path, test=test, resume=True).code == 0
    assert len(asked(tmp_path)) == len(set(asked(tmp_path)))


def test_a_budget_ends_it_early_and_it_can_be_gone_on_with(found: Found, tmp_path: Path, store: Store) -> None:
    test = check(tmp_path)
    first = run(found, tmp_path, test=test, queries=5)
    assert (first.code, first.data["queries"], first.data["minimal"]) == (0, 5, False)
    assert "note: stopped before the end: 5 queries were asked" in shown(first)
    store_too = f"--store {tmp_path / 'store'}"
    assert first.next == f"sleuth minify {found.id} --resume --test {test} {store_too}"
    second = run(found, tmp_path, test=test, resume=True)
    assert (second.code, second.data["minimal"]) == (0, True)
    assert sorted(targets(store.load(second.data["result"]))) == ["cos", "tanh"]
    assert len(asked(tmp_path)) == len(set(asked(tmp_path)))


def test_an_interrupt_leaves_the_smallest_one_so_far(found: Found, tmp_path: Path, store: Store) -> None:
    """Covers: U26"""
    interrupt = f"[ -f {tmp_path}/log ] && [ $(wc -l < {tmp_path}/log) -eq 6 ] && kill -INT $PPID && sleep 600"
    before = signal.getsignal(signal.SIGINT)
    answer = run(found, tmp_path, test=check(tmp_path, more=f"[ -f {tmp_path}/calm ] || {{ {interrupt}; }}"))
    assert signal.getsignal(signal.SIGINT) is before
    assert (answer.code, answer.data["interrupted"], answer.data["minimal"]) == (130, True, False)
    assert len(targets(store.load(answer.data["result"]))) < 11
    assert " --resume --test " in shown(answer).rstrip().splitlines()[-1]
    (tmp_path / "calm").touch()
    assert run(found, tmp_path, test=str(tmp_path / "check.sh"), resume=True).code == 0
    assert len(asked(tmp_path)) == len(set(asked(tmp_path)))


def test_a_second_interrupt_ends_it_at_once(found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(delivering, "deliver", interrupted)
    answer = run(found, tmp_path, test=check(tmp_path))
    assert (answer.code, answer.data["interrupted"]) == (130, True)
    assert "what was found out is kept" in shown(answer)
    assert answer.next.startswith(f"sleuth minify {found.id} --resume ")


# ---- killed --------------------------------------------------------------------------------------------------------


def test_killed_and_resumed_it_asks_nothing_twice_and_finds_the_same(tmp_path: Path) -> None:
    """Covers: U26"""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    found = long_case(opened(whole))
    assert long_case(opened(killed)).id == found.id
    expected = run(found, whole, test=check(whole))
    child = _started(found, killed, check(killed, more="sleep 0.05"))
    try:
        end = time.monotonic() + 120
        while len(asked(killed)) < len(asked(whole)) // 2:
            assert child.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)
    finally:
        child.kill()
        child.wait()
    time.sleep(0.2)  # the last test outlives whom it was for
    before = len(asked(killed))
    answer = run(found, killed, test=str(killed / "check.sh"), resume=True)
    questions = asked(killed)
    assert before < len(asked(whole))
    assert answer.data["result"] == expected.data["result"]
    assert set(questions) == set(asked(whole))
    assert len(questions) - len(set(questions)) <= 1  # what was being answered when it was killed
    assert not list((killed / "store" / "minify").glob("*.work"))


def _started(found: Found, folder: Path, test: str) -> subprocess.Popen[bytes]:
    words = ["minify", str(found.id), "--store", str(folder / "store"), "--test", test, "--workers", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", _WITHOUT_WORKERS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


_WITHOUT_WORKERS = """
from torchsleuth.cli.main import main
from torchsleuth.outcome import Unrunnable
from torchsleuth.run.runners import warm
from torchsleuth.run.runners.scripted import Scripted
warm.Warm = lambda **_: Scripted(lambda _: Unrunnable(reason="it is not run here"))
main()
"""


# ---- the runner ----------------------------------------------------------------------------------------------------


def scripted(
    monkeypatch: pytest.MonkeyPatch, answers: Callable[[Query], Outcome], script: str = SCRIPT_SAME, code: int = 1
) -> Scripted:
    """In the place of warm workers, and of an interpreter for the script."""
    runner = Scripted(answers)
    monkeypatch.setattr(warm, "Warm", lambda **_: runner)
    ran = Ran(code, stdout=script)

    def delivered(*args: Any, **more: Any) -> Delivery:
        return deliver(*args, **{**more, "runner": lambda *_, **__: ran})

    monkeypatch.setattr(delivering, "deliver", delivered)
    return runner


def bug(query: Query) -> Outcome:
    """`tanh` beside `cos` is one bug, `cos` without `tanh` another."""
    names = targets(query.case)
    if "tanh" in names and "cos" in names:
        return Raised(Stage.LOWERING, 0.01, type_chain=(LOWERING,), message="no lowering")
    if "cos" in names:
        return Raised(Stage.CODEGEN, 0.01, type_chain=("builtins.KeyError",), message="'buf0'")
    return Passed(Stage.RUN, 0.01)


def test_a_result_was_run_before_it_is_told(
    found: Found, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: U5"""
    runner = scripted(monkeypatch, bug)
    answer = run(found, tmp_path)
    told = shown(answer)
    assert (answer.code, answer.data["verified"], runner.closed) == (0, True, True)
    assert sorted(targets(store.load(answer.data["result"]))) == ["cos", "tanh"]
    assert "reproduces: it was run in a fresh interpreter" in told
    assert told.rstrip().splitlines()[-1] == f"Next: python {answer.data['script']}"
    (other,) = answer.data["others"]
    assert targets(store.load(other["case"])) == ["cos"]
    assert other["case"] in told
    assert "KeyError" in told
    assert "this does not fail" in told


def test_a_result_whose_script_does_something_else_is_not_verified(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, bug, SCRIPT_PASSES, 0)
    answer = run(found, tmp_path)
    assert (answer.code, answer.data["verified"]) == (1, False)
    assert answer.next.startswith(f"sleuth verify {answer.data['result']} ")
    assert "does not reproduce" in shown(answer)


@pytest.mark.parametrize(
    ("outcome", "code", "following"),
    [
        (Passed(Stage.RUN), 1, "sleuth verify {} --store {}"),
        (Unrunnable(reason="it holds code of yours; run it with --trust"), 2, "sleuth minify {} --trust --store {}"),
        (Unrunnable(reason="no such device"), 2, "sleuth verify {} --store {}"),
        (Broken(reason="ours"), 3, "sleuth doctor"),
    ],
)
def test_the_exit_code_says_why_there_is_nothing_to_minify(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: int, following: str
) -> None:
    scripted(monkeypatch, lambda _: outcome)
    answer = run(found, tmp_path)
    assert answer.code == code
    assert answer.next == following.format(found.id, tmp_path / "store")


def test_what_cannot_become_smaller_is_told_so(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kept(store)
    seen: list[Query] = []

    def only_the_whole(query: Query) -> Outcome:
        seen.append(query)
        return bug(query) if len(seen) > 1 else SAME

    scripted(monkeypatch, only_the_whole)
    answer = run(found, tmp_path, output=tmp_path / "repro.py")
    assert (answer.code, answer.data["result"], answer.data["minimal"]) == (0, None, True)
    assert "it is as small as it gets" in shown(answer)
    assert (tmp_path / "repro.py").exists()
    assert answer.next.startswith(f"sleuth export {found.id} ")


# ---- what is asked for ---------------------------------------------------------------------------------------------


def test_terms_of_the_interrupted_one_hold_unless_others_are_given(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = scripted(monkeypatch, bug)
    first = run(found, tmp_path, queries=3, deadline=7.0, memory="2GiB", needs="1/2")
    assert not first.data["minimal"]
    del runner.queries[:]
    second = run(found, tmp_path, resume=True, queries=2)
    assert second.data["known"] >= 1
    assert {(query.deadline, query.memory) for query in runner.queries} == {(7.0, 2 * 2**30)}
    del runner.queries[:]
    third = run(found, tmp_path, resume=True, memory="3GiB", queries=2)
    assert third.data["known"] == 0
    assert {(query.deadline, query.memory) for query in runner.queries} == {(7.0, 3 * 2**30)}
    job = json.loads((tmp_path / "store" / "minify" / f"{found.id}.json").read_bytes())
    assert (job["needs"], job["why"]) == ([1, 2], "2 queries were asked")


def test_what_may_be_executed_is_never_taken_from_a_file(found: Found, tmp_path: Path) -> None:
    """Covers: U25"""
    test = check(tmp_path)
    run(found, tmp_path, test=test, queries=3, trust=True)
    before = len(asked(tmp_path))
    store = f"--store {tmp_path / 'store'}"
    for given, more in (({}, f"--test {test} --trust"), ({"test": test}, f"--test {test} --trust")):
        answer = run(found, tmp_path, resume=True, **given)
        assert (answer.code, answer.data["error"]["what"]) == (2, "what may be executed has to be said again")
        assert answer.next == f"sleuth minify {found.id} --resume {more} {store}"
    assert len(asked(tmp_path)) == before
    assert run(found, tmp_path, resume=True, test=test, trust=True).code == 0


@pytest.mark.parametrize(
    "given",
    [
        {"resume": True, "again": True},
        {"test": "true", "match": "any"},
        {"test": "true", "needs": "1/2"},
        {"test": "true", "memory": "1GiB"},
        {"needs": "3/2"},
        {"needs": "often"},
        {"match": "vaguely"},
        {"memory": "much"},
    ],
)
def test_what_makes_no_sense_is_refused(found: Found, tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(SleuthError):
        run(found, tmp_path, **given)


def test_k_of_n() -> None:
    """Covers: U6"""
    assert needs_of("2/5") == (2, 5)
    with pytest.raises(SleuthError, match="0/3"):
        needs_of("0/3")


def test_two_at_once_are_one_too_many(found: Found, tmp_path: Path) -> None:
    job = Job(str(found.id))
    with started(tmp_path / "store" / "minify", job), pytest.raises(SleuthError, match="is being minified already"):
        run(found, tmp_path, test=check(tmp_path))
    assert not asked(tmp_path)


# ---- how people come here ------------------------------------------------------------------------------------------


def test_a_case_that_is_marked_for_it_is_minified_next(found: Found, store: Store) -> None:
    """Covers: U28"""
    entry = store.entry(str(found.id))
    marked = msgspec.structs.replace(found.case, todo="minify")
    assert next_command(entry, store.files.root, marked) == f"sleuth minify {entry.path}"
    assert next_command(entry, store.files.root, found.case) == f"sleuth verify {entry.path}"


@pytest.mark.parametrize(
    ("given", "with_history", "verb"),
    [({}, False, "minify"), ({}, True, "export"), ({"failure": None}, False, "export")],
)
def test_what_reproduces_is_minified_next(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    with_history: bool,
    verb: str,
) -> None:
    """Not what needs other graphs before it, nor what has no failure."""
    found = kept(store, **given)
    fine = fidelity.Fidelity("raises", SAME, Verdict.SAME, True, Rate())
    monkeypatch.setattr(fidelity, "verify", lambda *_, **__: fine)
    wanted = Asked(str(found.id), str(tmp_path / "store"), with_history=with_history)
    answer = verify_command(QUIET, wanted, repeats=1)
    assert answer.next.startswith(f"sleuth {verb} {found.id} ")

"""Replaying a case: what is asked of a runner, and what becomes of its answers. Covers: S26, U6, U19."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import torchsleuth
from case_samples import small_case
from replay_samples import PASSED, SAME, kept, opened, with_failure, with_origin
from torchsleuth import config
from torchsleuth.case import schema
from torchsleuth.case.format import reading
from torchsleuth.case.schema import Earlier
from torchsleuth.config import After
from torchsleuth.errors import NotFound
from torchsleuth.outcome import (
    Crashed,
    Mismatched,
    Outcome,
    OutOfMemory,
    Passed,
    Stage,
    Symptom,
    TimedOut,
    Unrunnable,
)
from torchsleuth.run.query import Query
from torchsleuth.run.replay import ask, history_of, question, replay
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.scripted import Scripted

SEGFAULT = Crashed(Stage.RUN, 2.0, signal=11)
HANGS = TimedOut(Stage.RUN, 10.0, deadline=10.0)


def test_a_case_is_asked_about_as_it_was_asked_for(tmp_path: Path) -> None:
    found = kept(opened(tmp_path))
    runner = Scripted([SAME])
    assert replay(found, runner, compiler="aot_eager", accuracy=True, trust=True, deadline=7.0, memory=2**30) is SAME
    expected = Query(found.case, found.home, "aot_eager", True, trust=True, deadline=7.0, memory=2**30)
    assert runner.queries == [expected]
    assert not runner.closed  # it is the caller's


def test_a_case_is_found_by_its_name_or_path(tmp_path: Path) -> None:
    store = opened(tmp_path)
    found = kept(store)
    assert found.id is not None
    assert replay(tmp_path / "store" / "cases" / found.id, Scripted([PASSED])) is PASSED
    with config.patch(store=store.files.root):
        assert replay(found.id[:6], Scripted([PASSED])) is PASSED
        with pytest.raises(NotFound):
            replay("nothing-like-it", Scripted([]))


def test_a_case_of_a_newer_version_is_warned_of_and_still_replayed(tmp_path: Path) -> None:
    """Covers: S26"""
    found = kept(opened(tmp_path), failure=None)
    file = tmp_path / "store" / "cases" / str(found.id) / "case.json"
    body = msgspec.json.decode(reading.unseal(file.read_bytes()).body)
    file.write_bytes(reading.seal(msgspec.json.encode({**body, "mood": "of tomorrow"}), version=99))
    with pytest.warns(reading.NewerCaseWarning, match=r"version 99.*mood"):
        outcome = replay(file.parent, InProcess(), compiler="eager")
    assert isinstance(outcome, Passed), outcome


def test_after_a_wrong_result_the_operator_is_asked_for_and_the_answer_is_safe(tmp_path: Path) -> None:
    wrong = Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="output[0]")
    found = kept(opened(tmp_path))
    runner = Scripted([wrong, replace(wrong, op="aten.relu.default")])
    outcome = replay(found, runner)
    assert outcome == replace(wrong, op="aten.relu.default")
    assert [query.find_op for query in runner.queries] == [False, True]
    assert replay(found, Scripted([wrong, SEGFAULT])) == wrong
    assert ask(Scripted([wrong]), question(found), blame=False) == wrong


@pytest.mark.parametrize("kind", ["crashed", "timed out", "out of memory"])
def test_what_killed_a_process_is_asked_of_one_that_has_answered_nothing_yet(tmp_path: Path, kind: str) -> None:
    assert question(kept(opened(tmp_path), failure=with_failure(kind))).alone
    assert not question(kept(opened(tmp_path))).alone


def test_a_hang_has_the_time_that_the_case_says(tmp_path: Path) -> None:
    failure = with_failure("timed out", message="the process 7 was out of time after 25 s while it ran forward graph 0")
    found = kept(opened(tmp_path), failure=failure)
    assert question(found).deadline == 25.0
    assert question(found, deadline=3.0).deadline == 3.0
    assert question(kept(opened(tmp_path))).deadline is None


@pytest.mark.parametrize("dies", [SEGFAULT, HANGS, OutOfMemory(Stage.RUN, limit_bytes=10)])
def test_what_eager_does_not_survive_either_cannot_be_run(dies: Outcome) -> None:
    """Covers: U19"""
    runner = Scripted([dies, dies])
    outcome = ask(runner, Query(small_case(), deadline=10.0, memory=10))
    assert isinstance(outcome, Unrunnable)
    assert outcome.reason.startswith("eager fares no better: it ")
    eager = runner.queries[1]
    assert (eager.compiler, eager.accuracy, eager.alone) == ("eager", False, True)
    assert (eager.deadline, eager.memory) == (10.0, 10)


@pytest.mark.parametrize("eager", [PASSED, HANGS, Crashed(Stage.RUN, signal=6)])
def test_a_crash_that_eager_does_not_have_is_the_compiler_s(eager: Outcome) -> None:
    assert ask(Scripted([SEGFAULT, eager]), Query(small_case())) is SEGFAULT


def test_eager_is_not_asked_about_itself_nor_about_what_it_answered_already() -> None:
    assert ask(Scripted([SEGFAULT]), Query(small_case(), compiler="eager")) is SEGFAULT
    assert ask(Scripted([SAME]), Query(small_case())) is SAME


def test_the_graphs_of_before_go_first_if_that_is_asked_for(tmp_path: Path) -> None:
    """Covers: U6"""
    store = opened(tmp_path)
    before = kept(store, failure=None, origin=with_origin(graph="forward graph 9", earlier=True))
    assert before.id is not None
    listed = (
        Earlier("forward graph 9", 3, before.id),
        Earlier("forward graph 8", 3, "0123456789"),
        Earlier("forward graph 7", 3),
    )
    found = kept(store, origin=with_origin(history=listed))
    assert question(found).history == ()
    query = question(found, with_history=True)
    assert query.history == (before.case,)
    assert query.alone
    missing = history_of(found).missing
    assert [words.split(" (")[0] for words in missing] == ["forward graph 8", "forward graph 7"]
    assert "there is no case '0123456789'" in missing[0]
    by_path = store.find(tmp_path / "store" / "cases" / str(found.id))
    assert history_of(by_path).cases == (before.case,)


def test_the_front_door_replays_in_a_fresh_interpreter(tmp_path: Path) -> None:
    case = small_case(failure=None, compiler=schema.Compiler(After.AOT, "aot_eager"))
    found = kept(opened(tmp_path), failure=None, compiler=case.compiler)
    outcome = torchsleuth.replay(found, deadline=120.0)
    assert isinstance(outcome, Passed), outcome
    assert outcome.stage is Stage.COMPARE
    broken = msgspec.structs.replace(found.case.graph.nodes[1], target="torch.ops.aten.no_such_operator.default")
    graph = schema.Graph((found.case.graph.nodes[0], broken, found.case.graph.nodes[2]))
    outcome = torchsleuth.replay(kept(opened(tmp_path), failure=None, graph=graph), InProcess())
    assert isinstance(outcome, Unrunnable), outcome
    assert "no_such_operator" in outcome.reason

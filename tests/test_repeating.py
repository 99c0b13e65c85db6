"""Failures that do not show each time: how often they do, and an oracle that asks more than once. Covers: U6."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from case_samples import small_case
from replay_samples import OTHER, PASSED, SAME
from torchsleuth.case.schema import Signature
from torchsleuth.case.signatures import ANY, EXACT, Match
from torchsleuth.outcome import Broken, Crashed, Mismatched, Outcome, Stage, Symptom, TimedOut, Unrunnable
from torchsleuth.run.observing.signatures import signature_of
from torchsleuth.run.oracle import Oracle, Verdict, as_wanted, verdict_of
from torchsleuth.run.query import Query
from torchsleuth.run.repeating import Rate, add, measure
from torchsleuth.run.runners.scripted import Scripted

CASE = small_case()
assert CASE.failure is not None
SIGNATURE = CASE.failure.signature
QUERY = Query(CASE)
HANGS = TimedOut(Stage.COMPILE, deadline=10.0)


def rate_of(same: int, passed: int, other: int = 0) -> Rate:
    rate = Rate()
    for outcome in (*[SAME] * same, *[PASSED] * passed, *[OTHER] * other):
        rate = add(rate, outcome, SIGNATURE)
    return rate


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (SAME, Verdict.SAME),
        (OTHER, Verdict.OTHER),
        (Crashed(Stage.RUN, signal=11), Verdict.OTHER),
        (PASSED, Verdict.PASSED),
        (HANGS, Verdict.TIMEOUT),
        (Unrunnable(reason="eager fails"), Verdict.INVALID),
        (Broken(reason="ours"), Verdict.BROKEN),
    ],
)
def test_an_outcome_says_one_thing_about_the_failure_that_is_looked_for(outcome: Outcome, verdict: Verdict) -> None:
    assert verdict_of(outcome, SIGNATURE) is verdict


def test_a_hang_is_the_failure_if_a_hang_is_looked_for() -> None:
    assert verdict_of(HANGS, Signature("timed out", Stage.COMPILE)) is Verdict.SAME
    assert verdict_of(PASSED, Signature("timed out", Stage.COMPILE)) is Verdict.PASSED


def test_whoever_looks_for_no_failure_takes_any_and_a_user_may_say_what_counts() -> None:
    assert verdict_of(OTHER, None) is Verdict.SAME
    assert verdict_of(HANGS, None) is Verdict.SAME
    assert verdict_of(PASSED, None) is Verdict.PASSED
    assert verdict_of(OTHER, SIGNATURE, ANY) is Verdict.SAME
    known = dataclasses.replace(SAME, op="aten.mul.Tensor")
    assert verdict_of(known, SIGNATURE) is Verdict.SAME
    assert verdict_of(known, SIGNATURE, EXACT) is Verdict.OTHER
    assert verdict_of(OTHER, SIGNATURE, Match.parse("regex:buf\\d")) is Verdict.SAME
    assert verdict_of(SAME, SIGNATURE, Match.parse("regex:buf\\d")) is Verdict.OTHER


@pytest.mark.parametrize(
    ("answers", "needs", "verdict", "runs"),
    [
        ([SAME], (1, 1), Verdict.SAME, 1),
        ([PASSED, PASSED, SAME], (1, 5), Verdict.SAME, 3),
        ([SAME, PASSED, SAME], (2, 5), Verdict.SAME, 3),
        ([PASSED, PASSED], (2, 3), Verdict.PASSED, 2),  # a third could not change it
        ([OTHER, PASSED, OTHER], (1, 3), Verdict.OTHER, 3),
        ([SAME, PASSED, PASSED], (2, 3), Verdict.PASSED, 3),
        ([HANGS, HANGS], (1, 2), Verdict.TIMEOUT, 2),
        ([Unrunnable(reason="eager fails")], (1, 5), Verdict.INVALID, 1),
        ([Broken(reason="ours"), SAME], (1, 2), Verdict.SAME, 2),
    ],
)
def test_an_oracle_asks_until_the_answer_is_known(
    answers: Sequence[Outcome], needs: tuple[int, int], verdict: Verdict, runs: int
) -> None:
    """Covers: U6"""
    runner = Scripted(answers)
    oracle = Oracle(runner, SIGNATURE, needs=needs)
    assert oracle(QUERY) is verdict
    assert len(runner.queries) == oracle.runs == runs


def test_an_oracle_keeps_the_other_failures_that_it_met() -> None:
    oracle = Oracle(Scripted([OTHER, PASSED, SAME]), SIGNATURE, needs=(1, 3))
    assert oracle(QUERY) is Verdict.SAME
    assert oracle.others == [(QUERY, OTHER)]


@pytest.mark.parametrize("needs", [(0, 1), (2, 1)])
def test_an_oracle_that_could_never_say_yes_is_refused(needs: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be needed"):
        Oracle(Scripted([]), SIGNATURE, needs=needs)


def test_a_rate_is_told_with_its_interval() -> None:
    assert rate_of(3, 17).describe() == "fails in 3 of 20 runs (5–36 %)"
    assert rate_of(5, 0).describe() == "fails in 5 of 5 runs (57–100 %)"
    assert rate_of(0, 5).describe() == "fails in 0 of 5 runs (0–43 %)"
    assert rate_of(1, 1, 2).describe() == "fails in 1 of 4 runs (5–70 %), in another way in 2"
    assert (rate_of(3, 17).is_flaky, rate_of(5, 0).is_flaky, rate_of(0, 5).is_flaky) == (True, False, False)


def test_runs_that_could_not_be_made_do_not_count() -> None:
    rate = add(add(rate_of(1, 1), Broken(reason="ours"), SIGNATURE), HANGS, SIGNATURE)
    assert (rate.n, rate.same, rate.passed, rate.other) == (3, 1, 1, 1)
    assert Rate().interval() == (0.0, 1.0)


def test_so_many_runs_miss_a_failure_once_in_a_hundred_times() -> None:
    """Covers: U6"""
    rate = rate_of(3, 17)
    needed, low = rate.runs_needed(), rate.interval()[0]
    assert needed is not None
    assert (1 - low) ** needed <= 0.01 < (1 - low) ** (needed - 1)
    assert rate_of(5, 0).runs_needed() == 1
    assert rate_of(0, 5).runs_needed() is None


def test_measuring_asks_as_often_as_said_unless_it_is_enough() -> None:
    told: list[Rate] = []
    runner = Scripted([SAME, PASSED, OTHER, SAME])
    rate = measure(runner, QUERY, SIGNATURE, 4, told=told.append)
    assert (rate.same, rate.passed, rate.other, rate.n) == (2, 1, 1, 4)
    assert rate.outcomes == (SAME, PASSED, OTHER, SAME)
    assert [one.n for one in told] == [1, 2, 3, 4]
    runner = Scripted([PASSED, SAME])
    assert measure(runner, QUERY, SIGNATURE, 9, enough=lambda one: one.same > 0).n == 2


def test_a_failure_is_there_whatever_else_is_wrong_beside_it() -> None:
    """Covers: U5. A smaller graph returns what was an intermediate result: that differs, too, and comes first."""
    wanted = signature_of(Mismatched(Stage.COMPARE, path="inputs[3]"))
    both = Mismatched(Stage.COMPARE, path="output[0]", also=("nan at output[1]", "value at inputs[0]"))
    other = Mismatched(Stage.COMPARE, path="output[0]", also=("nan at inputs[0]",))
    assert verdict_of(both, wanted) is Verdict.SAME
    told = as_wanted(both, wanted)
    assert isinstance(told, Mismatched)
    assert (told.symptom, told.path) == (Symptom.VALUE, "inputs[0]")
    assert verdict_of(other, wanted) is Verdict.OTHER
    assert as_wanted(other, wanted) is other


def test_an_oracle_that_knows_the_wrong_operator_asks_for_it() -> None:
    """Covers: U5"""
    relu = Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="output[0]", op="aten.relu.default")
    signature = signature_of(relu)
    assert signature is not None
    runner = Scripted([relu, dataclasses.replace(relu, op="aten.log1p.default")])
    oracle = Oracle(runner, signature)
    assert [oracle(QUERY), oracle(QUERY)] == [Verdict.SAME, Verdict.OTHER]
    assert all(query.find_op for query in runner.queries)

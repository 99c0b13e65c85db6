"""Outcomes: a closed union, never a bool, one line for people, and a clear answer to "did it fail?"."""

from __future__ import annotations

import pickle
import signal
from dataclasses import FrozenInstanceError
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from torchsleuth import outcome
from torchsleuth.outcome import (
    Broken,
    Crashed,
    Mismatched,
    Outcome,
    OutOfMemory,
    Passed,
    Raised,
    Stage,
    Symptom,
    TimedOut,
    Unrunnable,
    is_failure,
)

KINDS = get_args(Outcome)


def test_the_union_is_closed() -> None:
    """A new kind of outcome has to be put into the union, or whoever matches on it will miss it."""
    assert set(outcome._Run.__subclasses__()) == set(KINDS)
    assert [kind for kind in KINDS if kind.__subclasses__()] == []
    drawn = next(line for line in (outcome.__doc__ or "").splitlines() if "Outcome = " in line)
    assert drawn.split("= ")[1].split(" | ") == [kind.__name__ for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_is_not_a_bool(kind: type[Outcome]) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} is not a bool; use is_failure"):
        bool(kind())


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Passed, False),
        (Raised, True),
        (Mismatched, True),
        (Crashed, True),
        (TimedOut, True),
        (OutOfMemory, True),
        (Unrunnable, False),
        (Broken, False),
    ],
)
def test_only_the_compilers_own_failures_are_failures(kind: type[Outcome], failed: bool) -> None:
    assert is_failure(kind()) is failed


def test_every_kind_was_asked_whether_it_is_a_failure() -> None:
    (mark,) = test_only_the_compilers_own_failures_are_failures.pytestmark
    assert [kind for kind, _ in mark.args[1]] == list(KINDS)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (Passed(Stage.RUN), "passed (run)"),
        (
            Raised(Stage.LOWERING, type_chain=("a.LoweringError", "KeyError"), message="no such op\nlong story"),
            "raised a.LoweringError (lowering): no such op",
        ),
        (Raised(), "raised an exception (unknown): no message"),
        (Mismatched(symptom=Symptom.NAN, path="result[0]"), "mismatched: nan at result[0]"),
        (Mismatched(), "mismatched: value at the result"),
        (Crashed(Stage.RUN, signal=signal.SIGSEGV), "crashed with SIGSEGV (run)"),
        (Crashed(Stage.RUN, signal=1000), "crashed with signal 1000 (run)"),
        (TimedOut(Stage.CPP_COMPILE, deadline=1.5), "timed out after 1.5 s (C++ compile)"),
        (OutOfMemory(Stage.CODEGEN), "ran out of memory (codegen)"),
        (Unrunnable(reason="eager fails too"), "cannot be run: eager fails too"),
        (Unrunnable(), "cannot be run: no reason recorded"),
        (
            Broken(reason="the worker would not start"),
            "torchsleuth itself failed: the worker would not start",
        ),
        (Broken(), "torchsleuth itself failed: no reason recorded"),
    ],
)
def test_an_outcome_in_one_line(what: Outcome, line: str) -> None:
    assert what.describe() == line


@given(
    what=st.one_of(
        st.builds(Passed, stage=st.sampled_from(Stage), seconds=st.floats(allow_nan=False)),
        st.builds(Raised, type_chain=st.lists(st.text()).map(tuple), message=st.text(), traceback=st.text()),
        st.builds(Mismatched, symptom=st.sampled_from(Symptom), path=st.text(), explanation=st.text()),
        st.builds(Crashed, signal=st.integers(), stack=st.text()),
        st.builds(TimedOut, deadline=st.floats(allow_nan=False)),
        st.builds(OutOfMemory, limit_bytes=st.integers()),
        st.builds(Unrunnable, reason=st.text()),
        st.builds(Broken, reason=st.text(), traceback=st.text()),
    )
)
def test_any_outcome_can_be_described_compared_hashed_and_sent(what: Outcome) -> None:
    assert isinstance(what.describe(), str)
    back = pickle.loads(pickle.dumps(what))  # noqa: S301
    assert back == what
    assert hash(back) == hash(what)


def test_outcomes_of_different_kinds_are_different() -> None:
    assert len({kind() for kind in KINDS}) == len(KINDS)


def test_results_that_differ_in_several_ways_can_be_told_by_each() -> None:
    """Covers: U5. An operator that is to blame for one need not be for the others."""
    wrong = Mismatched(path="output[0]", op="aten.relu.default", also=("nan at output[2]", "value at inputs[0]"))
    first, *others = wrong.readings
    assert first is wrong
    assert [(one.symptom, one.path, one.op) for one in others] == [
        (Symptom.NAN, "output[2]", None),
        (Symptom.VALUE, "inputs[0]", None),
    ]
    assert outcome.from_data(outcome.to_data(wrong)) == wrong
    with pytest.raises(ValueError, match="odd"):
        outcome.from_data({**outcome.to_data(wrong), "also": ["odd at output[0]"]})


def test_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Passed().seconds = 1.0


@pytest.mark.parametrize("word", [*Stage, *Symptom])
def test_stages_and_symptoms_are_their_words(word: Stage | Symptom) -> None:
    assert str(word) == f"{word}" == word.value == word
    assert type(word)(str(word)) is word


def test_the_stages_are_in_the_order_of_the_way() -> None:
    stages = list(Stage)
    way = [Stage.PREPARE, Stage.DYNAMO, Stage.AOT, Stage.LOWERING, Stage.CODEGEN, Stage.LOAD, Stage.RUN]
    assert [stage for stage in stages if stage in way] == way
    assert stages[-1] is Stage.UNKNOWN

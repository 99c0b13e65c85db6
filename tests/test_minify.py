"""Minifying from a case in a store to a smaller one: by a scripted runner, and a few times in earnest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from minify_samples import FAILURE, LOWERING, long_case, longer_one, targets
from torchsleuth.case import schema
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import DoesNotFail
from torchsleuth.outcome import Crashed, Mismatched, Outcome, Passed, Raised, Stage, Symptom, TimedOut, Unrunnable
from torchsleuth.reduce.minifying import Reduction, Terms, minify
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.problem import Budget
from torchsleuth.run.checking.isolating import TOGETHER
from torchsleuth.run.query import Query
from torchsleuth.run.runners.scripted import Scripted
from torchsleuth.run.scripts import Ran

A = Raised(Stage.LOWERING, type_chain=(LOWERING,), message="no lowering")
B = Raised(Stage.CODEGEN, type_chain=("builtins.KeyError",), message="'buf0'")
PASSED = Passed(Stage.RUN)
Answers = Callable[[set[str]], Outcome]


def scripted(answers: Answers) -> Scripted:
    """Answers by the operators of the case. Eager is fine, and records nothing."""

    def answer(query: Query) -> Outcome:
        if query.record:
            return Unrunnable(reason="nothing is recorded here")
        return PASSED if query.compiler == "eager" else answers(set(targets(query.case)))

    return Scripted(answer)


def as_expected(script: Path, *, timeout: float, environ: Mapping[str, str] | None = None) -> Ran:
    """Whatever the failure is, the script dies of it as far as anybody can tell."""
    return Ran(1, stdout="expected: that\nseen: that\nverdict: fails as recorded\n")


def not_at_all(script: Path, *, timeout: float, environ: Mapping[str, str] | None = None) -> Ran:
    return Ran(0, stdout="expected: that\nseen: no failure\nverdict: does not fail here\n")


def minified(tmp_path: Path, answers: Answers, run_script: Any = as_expected, **more: Any) -> Reduction:
    store = Store.open(tmp_path / "store")
    failure = more.pop("failure", FAILURE)
    return minify(
        long_case(store, failure), runner=scripted(answers), store=store, run_script=run_script, terms=Terms(**more)
    )


def test_the_result_is_saved_and_its_script_was_run(tmp_path: Path) -> None:
    """Covers: U26."""
    result = minified(tmp_path, lambda found: A if "tanh" in found else PASSED)
    assert targets(result.after) == ["tanh"]
    assert result.is_verified
    assert result.script is not None
    assert "tanh" in result.script.read_text()
    assert result.entry is not None
    kept = Store.open(tmp_path / "store").load(result.entry.id)
    assert kept.graph == result.after.graph
    assert kept.origin.parent is not None
    assert size_of(kept).elements == 1
    assert size_of(kept).data == 0


def test_two_bugs_stay_apart(tmp_path: Path) -> None:
    """Covers: U5. A's smallest graph is A's, and B is listed, as a case of its own."""

    def answers(found: set[str]) -> Outcome:
        return A if "tanh" in found else B if "exp" in found else PASSED

    result = minified(tmp_path, answers)
    assert targets(result.after) == ["tanh"]
    assert [answer.failure.signature.types for _, answer in result.others if answer.failure] == [("builtins.KeyError",)]
    other = Store.open(tmp_path / "store").load(result.others[0][0].id)
    assert "exp" in targets(other)
    assert "tanh" not in targets(other)
    assert other.failure is not None
    assert other.failure.signature.types == ("builtins.KeyError",)


def wrong(symptom: Symptom, op: str | None = None) -> Mismatched:
    return Mismatched(Stage.COMPARE, symptom=symptom, path="output[0]", op=op)


def mismatch(symptom: Symptom) -> schema.Failure:
    signature = schema.Signature("mismatched", Stage.COMPARE, message="the output differs", symptom=symptom)
    return schema.Failure(signature, path="output[0]")


@pytest.mark.parametrize("other", [wrong(Symptom.INTEGER), wrong(Symptom.NAN), A, Crashed(Stage.RUN, signal=11)])
def test_a_wrong_value_never_becomes_something_else(tmp_path: Path, other: Outcome) -> None:
    """Covers: U5, S30. Not a wrong integer, not a NaN, no exception and no crash, though these are easier to have."""

    def answers(found: set[str]) -> Outcome:
        return wrong(Symptom.VALUE) if found >= {"tanh", "cos"} else other if found & {"tanh", "cos"} else PASSED

    result = minified(tmp_path, answers, failure=mismatch(Symptom.VALUE))
    assert targets(result.after) == ["tanh", "cos"]
    assert result.others


def test_of_two_wrong_operators_the_first_one_that_was_seen_is_followed(tmp_path: Path) -> None:
    """Covers: U5. Once a run has said who is to blame, it is that one and no other; the other one is listed.

    What is closest to the wrong result is looked at first.
    """

    def answers(found: set[str]) -> Outcome:
        op = next((name for name in ("relu", "cos") if name in found), None)
        return PASSED if op is None else wrong(Symptom.VALUE, f"aten.{op}.default")

    result = minified(tmp_path, answers, failure=mismatch(Symptom.VALUE))
    assert targets(result.after) == ["cos"]
    blamed = [answer.failure.signature.op for _, answer in result.others if answer.failure is not None]
    assert blamed == ["aten.relu.default"]


def test_who_is_to_blame_is_learnt_as_soon_as_a_part_is_small_enough_to_tell(tmp_path: Path) -> None:
    """Covers: U5. Of a large graph nobody knows the operator; of a smaller one it is, and then it is no other."""

    def answers(found: set[str]) -> Outcome:
        wrongs = [name for name in ("relu", "cos") if name in found]
        known = len(found) < 6
        return wrong(Symptom.VALUE, f"aten.{wrongs[0]}.default" if known else None) if wrongs else PASSED

    result = minified(tmp_path, answers, failure=msgspec.structs.replace(mismatch(Symptom.VALUE), path=""))
    assert targets(result.after) == ["cos"]
    ((other, _),) = result.others
    left = targets(Store.open(tmp_path / "store").load(other.id))
    assert "relu" in left
    assert "cos" not in left


def test_if_no_operator_of_the_whole_is_wrong_alone_only_small_parts_are_asked_for_one(tmp_path: Path) -> None:
    """To try each operator of a large graph by itself takes longer than the question does."""
    asked: list[tuple[int, bool]] = []

    def answer(query: Query) -> Outcome:
        if query.record:
            return Unrunnable(reason="nothing is recorded here")
        names = targets(query.case)
        asked.append((len(names), query.find_op))
        several = TOGETHER if query.find_op else None
        fails = {"tanh", "cos"} <= set(names) and names.count("sin") >= 3
        return wrong(Symptom.VALUE, several) if fails else PASSED

    store = Store.open(tmp_path / "store")
    found = long_case(store, mismatch(Symptom.VALUE), program=longer_one)
    result = minify(found, runner=Scripted(answer), store=store, run_script=as_expected)
    assert sorted(targets(result.after)) == ["cos", "sin", "sin", "sin", "tanh"]
    assert sum(find for count, find in asked if count > 16) <= 2  # a guess, and the whole
    assert sum(count > 16 for count, _ in asked) > 2
    assert all(find for count, find in asked if count <= 16)


@pytest.mark.parametrize(
    ("outcome", "signature"),
    [
        (Crashed(Stage.RUN, signal=11), schema.Signature("crashed", Stage.RUN, signal=11)),
        (TimedOut(Stage.LOWERING, deadline=20), schema.Signature("timed out", Stage.LOWERING)),
    ],
)
def test_crashes_and_hangs(tmp_path: Path, outcome: Outcome, signature: schema.Signature) -> None:
    """Covers: U19."""
    failure = schema.Failure(signature, message="timed out after 20 s")
    result = minified(tmp_path, lambda found: outcome if {"sin", "exp"} <= found else PASSED, failure=failure)
    assert targets(result.after) == ["sin", "exp"]


def test_what_wrecks_its_memory_dies_of_one_thing_or_another(tmp_path: Path) -> None:
    """Covers: U19. The program died of SIGABRT, and the whole case of SIGSEGV: either will do, nothing else."""
    failure = schema.Failure(schema.Signature("crashed", Stage.RUN, signal=6))

    def answers(found: set[str]) -> Outcome:
        if {"sin", "exp"} <= found:
            return Crashed(Stage.RUN, signal=11 if "cos" in found else 6)
        return Crashed(Stage.RUN, signal=15) if "exp" in found else PASSED

    result = minified(tmp_path, answers, failure=failure)
    assert targets(result.after) == ["sin", "exp"]
    with pytest.raises(DoesNotFail):
        minified(tmp_path / "other", lambda _: Crashed(Stage.RUN, signal=15), failure=failure)


def test_what_is_slow_rather_than_endless(tmp_path: Path) -> None:
    """Covers: U19. Each operator takes a fifth longer than all before it: none of them is to blame by itself.

    The result lasts as long as one that is taken to hang has to, and it was found without many questions that take that
    long.
    """
    long: list[float] = []

    def seconds(case: schema.Case) -> float:
        return 0.2 * 1.2 ** len(targets(case))

    def answer(query: Query) -> Outcome:
        if query.record or query.compiler == "eager":
            return PASSED
        assert query.deadline is not None
        taken = min(seconds(query.case), query.deadline)
        long.extend([taken] if taken > 5.0 else [])
        return TimedOut(Stage.LOWERING, deadline=taken) if taken == query.deadline else replaced(PASSED, seconds=taken)

    store = Store.open(tmp_path / "store")
    failure = schema.Failure(schema.Signature("timed out", Stage.LOWERING), message="timed out after 90 s")
    found = long_case(store, failure, longer_one)
    assert seconds(found.case) > 90.0
    result = minify(found, runner=Scripted(answer), store=store, run_script=as_expected)
    assert result.is_verified
    assert not result.unverified
    assert 60.0 <= seconds(result.after) < 60.0 * 1.2**2
    assert result.size.elements <= 3
    assert "operators: it ends after" in result.slow
    assert not result.why
    assert len(long) < 30


def test_what_eager_does_not_survive_does_not_count(tmp_path: Path) -> None:
    """Covers: U25. A crash of eager's own is none of the compiler's."""
    crash = Crashed(Stage.RUN, signal=11)

    def answer(query: Query) -> Outcome:
        found = set(targets(query.case))
        if query.record:
            return Unrunnable()
        if query.compiler == "eager":
            return PASSED if "relu" in found else crash
        return crash if "sin" in found else PASSED

    store = Store.open(tmp_path / "store")
    failure = schema.Failure(schema.Signature("crashed", Stage.RUN, signal=11))
    result = minify(long_case(store, failure), runner=Scripted(answer), store=store, run_script=as_expected)
    assert set(targets(result.after)) == {"sin", "relu"}


def test_a_failure_that_shows_now_and_then(tmp_path: Path) -> None:
    """Two of five runs are enough, if that is what was asked for."""
    runs: dict[str, int] = {}

    def answer(query: Query) -> Outcome:
        if query.record:
            return Unrunnable()
        digest = size_of(query.case).digest
        runs[digest] = runs.get(digest, 0) + 1
        return A if "tanh" in targets(query.case) and runs[digest] % 2 == 0 else PASSED

    store = Store.open(tmp_path / "store")
    found = long_case(store)
    result = minify(found, runner=Scripted(answer), store=store, run_script=as_expected, terms=Terms(needs=(2, 5)))
    assert targets(result.after) == ["tanh"]


def test_a_case_that_does_not_fail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFail, match="does not show its failure"):
        minified(tmp_path, lambda _: PASSED)


def test_a_result_that_does_not_verify_is_not_handed_over_as_if_it_did(tmp_path: Path) -> None:
    """Covers: U26. The smallest one whose script fails is; if there is none, that is said."""

    smallest: list[bytes] = []

    def not_the_smallest(script: Path, *, timeout: float, environ: Mapping[str, str] | None = None) -> Ran:
        smallest[:] = smallest or [script.read_bytes()]
        run = not_at_all if script.read_bytes() == smallest[0] else as_expected
        return run(script, timeout=timeout, environ=environ)

    def answers(found: set[str]) -> Outcome:
        return A if "tanh" in found else PASSED

    large = minified(tmp_path / "one", answers, run_script=not_the_smallest)
    assert large.is_verified
    assert [size_of(one) < large.size for one in large.unverified] == [True]
    none = minified(tmp_path / "two", answers, run_script=not_at_all)
    assert not none.is_verified
    assert none.delivery is not None
    assert none.delivery.reproduces is False


def test_the_twin_is_the_largest_neighbour_that_passes(tmp_path: Path) -> None:
    result = minified(tmp_path, lambda found: A if {"tanh", "cos"} <= found else PASSED)
    assert result.twin is not None
    assert not {"tanh", "cos"} <= set(targets(result.twin))
    assert len(targets(result.twin)) >= 1


def test_of_a_single_operator_the_twin_is_found_among_settings(tmp_path: Path) -> None:
    """The bug hangs on an option, so the same program without it is what passes."""
    option = schema.Config("torch._inductor.config", "max_autotune", True)

    def answer(query: Query) -> Outcome:
        if query.record:
            return Unrunnable()
        return A if "tanh" in targets(query.case) and option in query.case.state.config else PASSED

    store = Store.open(tmp_path / "store")
    plain = long_case(store)
    case = msgspec.structs.replace(plain.case, state=schema.State(config=(option,)))
    found = store.find(store.save(case).id)
    result = minify(found, runner=Scripted(answer), store=store, run_script=as_expected)
    assert targets(result.after) == ["tanh"]
    assert result.after.state.config == (option,)
    assert result.twin is not None
    assert result.twin.graph == result.after.graph
    assert result.twin.state.config == ()


def test_stopped_early_leaves_the_best_so_far(tmp_path: Path) -> None:
    result = minified(tmp_path, lambda found: A if "tanh" in found else PASSED, budget=Budget(queries=3))
    assert "3 queries" in result.why
    assert result.size < result.was
    assert result.is_verified


def test_going_on_asks_nothing_twice(tmp_path: Path) -> None:
    def answers(found: set[str]) -> Outcome:
        return A if {"tanh", "sigmoid"} <= found else PASSED

    store, runner = Store.open(tmp_path / "store"), scripted(answers)
    found = long_case(store)
    minify(found, runner=runner, store=store, run_script=as_expected, terms=Terms(budget=Budget(queries=6)))
    result = minify(found, runner=runner, store=store, run_script=as_expected)
    other = minified(tmp_path / "whole", answers)
    assert result.after == other.after
    asked = [size_of(query.case).digest for query in runner.queries if not query.record]
    assert len(asked) == len(set(asked))


def test_sorts_that_were_seen_to_be_right_are_not_asked_about_again(tmp_path: Path) -> None:
    """In the end one operator of each sort is tried that is not to blame: of a large graph, only those nobody knows."""

    def answers(found: set[str]) -> Outcome:
        return wrong(Symptom.VALUE, "aten.cos.default") if "cos" in found else PASSED

    store, runner = Store.open(tmp_path / "store"), scripted(answers)
    found = long_case(store, mismatch(Symptom.VALUE), program=longer_one)
    result = minify(found, runner=runner, store=store, run_script=as_expected)
    assert targets(result.after) == ["cos"]
    asked = [set(targets(query.case)) for query in runner.queries if not query.record]
    right = [names for names in asked if "cos" not in names]
    assert right[:2] == [{"mm"}, {"exp"}]  # each by itself: what the others are given is not known
    assert right[-1] == {"tanh", "sin", "add", "sum"}


@pytest.mark.parametrize("op", [None, "aten.relu.default"])
def test_an_overload_of_the_guilty_operator_is_no_other_failure(tmp_path: Path, op: str | None) -> None:
    """Covers: U5. `relu_` beside `relu`, `sum` of all beside `sum` of a dimension: it is the same bug."""

    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu_(torch.sin(x @ w)).sum() + torch.relu(torch.cos(x)).sum(0).sum() + b.sum()

    def answer(query: Query) -> Outcome:
        if query.record:
            return Unrunnable(reason="nothing is recorded here")
        found = {name for name in targets(query.case) if name.startswith("relu")}
        return wrong(Symptom.VALUE, op) if found else PASSED

    store = Store.open(tmp_path / "store")
    found = long_case(store, mismatch(Symptom.VALUE), program=program)
    result = minify(found, runner=Scripted(answer), store=store, run_script=as_expected)
    assert len(targets(result.after)) == 1
    assert result.others == ()

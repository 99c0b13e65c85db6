"""Asking: nothing twice, as much as the budget allows, and with the same result however many answer."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from reduce_samples import recorded
from torchsleuth.case import schema
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Stage
from torchsleuth.reduce.events import Answered, Event, Improved, Met
from torchsleuth.reduce.executors import Answer, Predicate
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.patches import Material
from torchsleuth.reduce.problem import Budget, Problem, Stopped
from torchsleuth.reduce.restricting import Whole
from torchsleuth.reduce.rounds import reduce_with
from torchsleuth.reduce.verdicts import Verdicts, key_of
from torchsleuth.run.oracle import Verdict


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen operators or so, two results."""
    a = torch.relu(x @ w) + 1
    b = torch.sin(a) * a
    c = torch.cat([b, torch.exp(-b)], 1)
    left, right = c.split(3, 1)
    d = torch.tanh(left).sum(0) + torch.cos(right).mean(0)
    return d.exp() - 1, torch.sigmoid(b).t()


def sample() -> tuple[schema.Case, MemoryBlobs]:
    torch.manual_seed(0)
    return recorded(program, torch.randn(4, 5), torch.randn(5, 3))


def names(case: schema.Case) -> set[str]:
    return {node.target.split(".")[3] for node in case.graph.nodes if node.target.startswith("torch.ops.")}


class Needs(Predicate):
    """Operators; and whoever asks for the same ones asks the same."""

    def __init__(self, wanted: tuple[str, ...]) -> None:
        super().__init__(lambda case: names(case).issuperset(wanted))
        self._wanted = wanted

    @property
    def terms(self) -> bytes:
        return repr(self._wanted).encode()


def needs(*wanted: str) -> Predicate:
    return Needs(wanted)


class Threads:
    """Several at a time, each as long as chance will have it."""

    def __init__(self, inner: Predicate, workers: int, seed: int = 0) -> None:
        self._inner = inner
        self._pool = ThreadPoolExecutor(workers)
        self._draw = random.Random(seed)
        self.workers = workers
        self.terms = inner.terms

    def submit(self, case: schema.Case) -> Future[Answer]:
        pause = self._draw.random() * 0.004

        def answer() -> Answer:
            time.sleep(pause)
            return self._inner.submit(case).result()

        return self._pool.submit(answer)


def test_the_result_does_not_depend_on_the_number_of_workers() -> None:
    """The same case, whatever is asked ahead of time and whoever is quick."""
    found = []
    for workers, seed in ((1, 0), (2, 1), (5, 2)):
        case, blobs = sample()
        problem = Problem(case, Threads(needs("tanh", "cos"), workers, seed))
        reduce_with(problem, Material(blobs))
        found.append((problem.best, [one.digest for one in (size_of(case) for case, _ in problem.trail)]))
    assert all(one == found[0] for one in found)
    assert names(found[0][0]) == {"tanh", "cos"}


@pytest.mark.parametrize(
    "wanted", [("mm",), ("sin", "sigmoid"), ("split", "exp"), ("cat", "mean", "tanh"), ("t", "relu")]
)
def test_what_is_left_is_one_minimal(wanted: tuple[str, ...]) -> None:
    """Covers: U25. No operator can be left out by itself, neither bypassed nor for an input in its place."""
    case, blobs = sample()
    executor = needs(*wanted)
    problem = Problem(case, executor)
    reduce_with(problem, Material(blobs))
    best = problem.best
    assert names(best) == set(wanted)
    whole = Whole(best)
    for name in whole.operators:
        for bypass in (True, False):
            rest = whole.only({one for one in whole.operators if one != name}, bypass=bypass)
            assert rest is None or not names(rest).issuperset(wanted)
    assert problem.size.elements <= 8
    assert executor.asked <= 80


def test_no_question_is_asked_twice() -> None:
    case, blobs = sample()
    seen: list[str] = []

    def holds(case: schema.Case) -> bool:
        seen.append(size_of(case).digest)
        return "tanh" in names(case)

    problem = Problem(case, Predicate(holds))
    reduce_with(problem, Material(blobs))
    assert len(seen) == len(set(seen)) == problem.spent.queries


def test_each_step_is_smaller_and_legal() -> None:
    case, blobs = sample()
    events: list[Event] = []
    problem = Problem(case, needs("exp", "cos"), observers=[events.append])
    reduce_with(problem, Material(blobs))
    sizes = [size_of(case), *(event.size for event in events if isinstance(event, Improved))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes) == len(problem.trail)


# ---- budgets ---------------------------------------------------------------------------------------------


def test_a_budget_of_queries_leaves_the_best_so_far() -> None:
    case, blobs = sample()
    executor = needs("tanh", "cos")
    problem = Problem(case, executor, budget=Budget(queries=5))
    with pytest.raises(Stopped, match="5 queries"):
        reduce_with(problem, Material(blobs))
    assert executor.asked == problem.spent.queries == 5
    assert size_of(problem.best) < size_of(case)


def test_a_budget_of_time_does_not_wait_for_an_answer() -> None:
    case, blobs = sample()

    class Never:
        workers = 2
        terms = b"never"

        def submit(self, case: schema.Case) -> Future[Answer]:
            return Future()

    problem = Problem(case, Never(), budget=Budget(seconds=0.2))
    with pytest.raises(Stopped, match="time"):
        reduce_with(problem, Material(blobs))
    assert problem.best is case


# ---- what was answered -------------------------------------------------------------------------------------


def test_answers_survive(tmp_path: Path) -> None:
    """The second time nothing is asked, and the result is the same."""
    results, asked = [], []
    for _ in range(2):
        case, blobs = sample()
        executor = needs("tanh", "cos")
        with Verdicts.at(tmp_path / "verdicts.sqlite") as verdicts:
            problem = Problem(case, executor, verdicts)
            reduce_with(problem, Material(blobs))
        results.append(problem.best)
        asked.append(executor.asked)
    assert results[0] == results[1]
    assert asked[0] > 10
    assert asked[1] == 0


@pytest.mark.parametrize("stop_after", [1, 9])
def test_stopped_and_gone_on_with_is_as_never_stopped(tmp_path: Path, stop_after: int) -> None:
    def reduced(path: Path, executor: Predicate, budget: Budget) -> schema.Case:
        case, blobs = sample()
        with Verdicts.at(path) as verdicts:
            problem = Problem(case, executor, verdicts, budget=budget)
            with contextlib.suppress(Stopped):
                reduce_with(problem, Material(blobs))
            return problem.best

    whole = needs("tanh", "cos")
    expected = reduced(tmp_path / "whole", whole, Budget())
    executor = needs("tanh", "cos")
    reduced(tmp_path / "parts", executor, Budget(queries=stop_after))
    assert executor.asked == stop_after
    assert reduced(tmp_path / "parts", executor, Budget()) == expected
    assert executor.asked == whole.asked


def test_what_is_answered_ahead_of_time_is_kept_though_nobody_came_for_it(tmp_path: Path) -> None:
    """A kill loses what is being worked on, and nothing that was answered."""
    case, _ = sample()
    others = [case_of for name in ("relu", "sin") if (case_of := Whole(case).only({name})) is not None]
    slow: Future[Answer] = Future()
    futures = iter([slow, _done(), _done()])

    class Slow:
        workers = 3
        terms = b"slow"

        def submit(self, case: schema.Case) -> Future[Answer]:
            return next(futures)

    with Verdicts.at(tmp_path / "verdicts.sqlite") as verdicts:
        problem = Problem(case, Slow(), verdicts, budget=Budget(seconds=0.3))
        first = Whole(case).only({"tanh"})
        problem.ahead([first, *others])
        with pytest.raises(Stopped):
            problem.holds(first)
        assert all(verdicts.get(problem.key(one)) is not None for one in others)


def _done() -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(Answer(Verdict.PASSED))
    return future


def test_a_table_that_is_no_table_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"this is no table" * 500)
    with Verdicts.at(path) as verdicts:
        verdicts.put(b"key", Answer(Verdict.SAME))
    with Verdicts.at(path) as verdicts:
        assert verdicts.get(b"key") == Answer(Verdict.SAME)
    assert "put aside" in caplog.text
    assert [one.read_bytes() for one in tmp_path.glob("*.broken-*")] == [b"this is no table" * 500]


def test_answers_that_make_no_sense_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    with Verdicts.at(path) as verdicts:
        verdicts.put(b"key", Answer(Verdict.SAME))
    table = sqlite3.connect(path)
    with table:
        table.execute("UPDATE answers SET answer = ?", (b'{"verdict": "perhaps"}',))
    table.close()
    with Verdicts.at(path) as verdicts:
        assert verdicts.get(b"key") is None


def test_a_place_that_cannot_be_written_to_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Verdicts.at(tmp_path / "file" / "verdicts.sqlite") as verdicts:
        verdicts.put(b"key", Answer(Verdict.SAME))
        assert verdicts.get(b"key") == Answer(Verdict.SAME)


def test_what_our_own_machinery_failed_to_answer_is_not_kept() -> None:
    verdicts = Verdicts()
    verdicts.put(b"key", Answer(Verdict.BROKEN))
    assert verdicts.get(b"key") is None


def test_the_key_has_all_that_an_answer_depends_on() -> None:
    case, _ = sample()
    other = schema.State(grad=False)
    digest = size_of(case).digest
    assert key_of(digest, b"one") != key_of(digest, b"another")
    assert size_of(schema.Case(**{**_fields(case), "state": other})).digest != digest
    told = schema.Case(**{**_fields(case), "todo": "minify"})
    assert size_of(told).digest == digest


def _fields(case: schema.Case) -> dict[str, object]:
    return {name: getattr(case, name) for name in case.__struct_fields__}


# ---- other failures ----------------------------------------------------------------------------------------


def test_other_failures_are_kept_once_each_with_the_smallest_case() -> None:
    """Covers: U5."""
    case, _ = sample()
    events: list[Event] = []

    class Two:
        workers = 1
        terms = b"two"

        def submit(self, case: schema.Case) -> Future[Answer]:
            future: Future[Answer] = Future()
            found = names(case)
            verdict, kind = Verdict.PASSED, None
            if "tanh" in found:
                verdict = Verdict.SAME
            elif "sigmoid" in found:
                verdict, kind = Verdict.OTHER, "builtins.KeyError"
            failure = None if kind is None else schema.Failure(schema.Signature("raised", Stage.CODEGEN, (kind,)))
            future.set_result(Answer(verdict, failure=failure))
            return future

    problem = Problem(case, Two(), observers=[events.append])
    whole = Whole(case)
    assert not problem.holds(whole.only({"sin", "sigmoid", "relu"}))
    assert not problem.holds(whole.only({"sigmoid"}))
    assert not problem.holds(whole.only({"relu", "sigmoid"}))
    assert [names(other.case) for other in problem.others] == [{"sigmoid"}]
    assert sum(isinstance(event, Met) for event in events) == 1


def test_a_fault_of_whoever_answers_is_raised() -> None:
    case, blobs = sample()

    class Faulty:
        workers = 1
        terms = b"faulty"

        def submit(self, case: schema.Case) -> Future[Answer]:
            future: Future[Answer] = Future()
            future.set_exception(SleuthError("the test is broken", cause="exit code 2", remedy="mend it"))
            return future

    problem = Problem(case, Faulty())
    with pytest.raises(SleuthError, match="the test is broken"):
        reduce_with(problem, Material(blobs))


def test_whoever_watches_sees_each_answer() -> None:
    case, blobs = sample()
    events: list[Event] = []
    problem = Problem(case, needs("tanh"), observers=[events.append])
    reduce_with(problem, Material(blobs))
    answered = [event for event in events if isinstance(event, Answered)]
    assert sum(event.asked for event in answered) == problem.spent.queries
    assert len(answered) == problem.spent.queries + problem.spent.known

"""What minifying came to, and how far it is, in words and as data. Covers: U28."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from case_samples import small_case
from torchsleuth.case import schema
from torchsleuth.case.schema import Case, Node, Ref
from torchsleuth.case.stores.store import Listed
from torchsleuth.cli.minify_progress import Sofar, shown
from torchsleuth.reduce.events import Answered, Began, Ended, Entered, Improved, Met
from torchsleuth.reduce.executors import Answer
from torchsleuth.reduce.minifying import Reduction
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.problem import Budget, Spent
from torchsleuth.report.reduction import input_lines, reduction_data, render_reduction, time_words, twin_diff
from torchsleuth.run.delivery import Delivery
from torchsleuth.run.oracle import Verdict

FAKE = schema.Fake("float32", (2, 3), (3, 1))


def chain(*ops: str, evil: str = "") -> Case:
    """The small case with these operators one after another."""
    nodes = [Node("x", "placeholder", "x", meta=schema.Meta(val=FAKE))]
    for place, op in enumerate(ops):
        target = f"torch.ops.aten.{op}.default"
        nodes.append(
            Node(f"n{place}{evil}", "call_function", target, (Ref(nodes[-1].name),), meta=schema.Meta(val=FAKE))
        )
    out = Node("output", "output", "output", (schema.Tuple((Ref(nodes[-1].name),)),))
    return small_case(graph=schema.Graph((*nodes, out)))


BEFORE, AFTER, TWIN = chain("sin", "tanh", "cos"), chain("tanh"), chain("relu")
REDUCTION = Reduction(
    BEFORE,
    AFTER,
    size_of(BEFORE),
    size_of(AFTER),
    Spent(queries=1234, known=5, wasted=1, seconds=10.0),
    75.4,
    entry=Listed("3f9a1c07be", "/store/cases/3f9a1c07be"),
    delivery=Delivery(Path("/store/cases/3f9a1c07be/repro.py"), reproduces=True),
    others=((Listed("0123456789", "/store/cases/0123456789"), Answer(Verdict.OTHER, words="raised KeyError: 'buf0'")),),
    twin=TWIN,
    steps=2,
)


def rendered(reduction: Reduction, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    part: RenderableType
    for part in render_reduction(reduction, **more):
        console.print(part, highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_all_of_it_is_told() -> None:
    told = rendered(REDUCTION)
    assert told.startswith("3 → 1 operators  reproduces: it was run in a fresh interpreter, and fails as recorded")
    assert "  n0: f32[2, 3] = aten.tanh.default(x)" in told
    assert "  x: f32[2, 3]  stored, 24 B" in told
    assert "it raises torch._inductor.exc.LoweringException: no lowering" in told
    assert "  -n0: f32[2, 3] = aten.tanh.default(x)\n  +n0: f32[2, 3] = aten.relu.default(x)" in told
    assert "0123456789  raised KeyError: 'buf0'" in told
    assert "1,234 queries (5 more answers were known) in 1:15, 2 steps" in told
    assert "kept as /store/cases/3f9a1c07be" in told
    assert "note" not in told


def test_the_same_as_data() -> None:
    data = reduction_data(REDUCTION)
    json.dumps(data)
    assert (data["result"], data["verified"], data["minimal"], data["queries"]) == ("3f9a1c07be", True, True, 1234)
    assert (data["before"]["operators"], data["after"]["operators"], data["after"]["elements"]) == (3, 1, 6)
    assert data["graph"][1] == "n0: f32[2, 3] = aten.tanh.default(x)"
    assert data["passes"][:2] == ["--- fails", "+++ passes"]
    assert data["others"][0]["case"] == "0123456789"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"why": "its time is over"}, "note: stopped before the end: its time is over"),
        ({"unverified": (TWIN,)}, "note: 1 smaller one failed while minifying, but not as a script"),
        (
            {"unverified": (TWIN,), "delivery": Delivery(Path("x"), reproduces=False)},
            "note: it failed while minifying, but none of the scripts that were tried failed in a fresh interpreter",
        ),
        (
            {"delivery": Delivery(Path("x"), reproduces=False, expected="raises", seen="exit code 0")},
            "does not reproduce: expected that it raises; seen: exit code 0",
        ),
        ({"delivery": Delivery(Path("x"), not_run="it holds code of yours")}, "not run: it holds code of yours"),
        ({"slow": "26 of 53 operators: it ends"}, "note: it is slow rather than endless (26 of 53 operators: it ends)"),
        (
            {"entry": None, "delivery": None, "slow": "2 of 3: it ends"},
            "nothing smaller was found so far",
        ),
        ({"entry": None, "delivery": None}, "it is as small as it gets"),
        ({"entry": None, "delivery": None, "why": "it was interrupted"}, "nothing smaller was found so far"),
    ],
)
def test_only_what_was_seen_is_claimed(changes: dict[str, Any], said: str) -> None:
    changed = replace(REDUCTION, **changes)
    assert said in rendered(changed)
    assert reduction_data(changed)["minimal"] == (not {"why", "slow"} & changes.keys())


def test_a_test_of_the_user_s_has_the_last_word() -> None:
    told = rendered(replace(REDUCTION, delivery=Delivery(Path("x"), not_run="without a run")), by_test=True)
    assert told.count("your test says that it still fails") == 2
    assert "it raises" not in told


def test_without_a_twin_there_is_no_diff() -> None:
    alone = replace(REDUCTION, twin=None)
    assert twin_diff(alone) == []
    assert "this does not fail" not in rendered(alone)


def test_a_setting_that_makes_the_difference_is_in_the_diff() -> None:
    state = msgspec.structs.replace(AFTER.state, deterministic="error")
    twin = msgspec.structs.replace(AFTER, state=state)
    assert "+deterministic algorithms required" in twin_diff(replace(REDUCTION, twin=twin))


def test_a_case_cannot_speak_to_the_terminal() -> None:
    evil = chain("tanh", evil="\x1b[31m[bold]")
    told = rendered(replace(REDUCTION, after=evil, size=size_of(evil)))
    assert "\x1b" not in told
    assert "[bold]" in told
    assert all("\x1b" not in line for line in (*input_lines(evil), *reduction_data(REDUCTION)["passes"]))


def test_many_inputs_are_not_all_told() -> None:
    many = msgspec.structs.replace(AFTER, inputs=AFTER.inputs * 40)
    told = rendered(replace(REDUCTION, after=many))
    assert "… 16 inputs more" in told


def test_times() -> None:
    assert [time_words(one) for one in (0.04, 59.0, 75.4, 3729.2)] == ["0.0 s", "59.0 s", "1:15", "1:02:09"]


# ---- how far it is -------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def answered(asked: bool = True) -> Answered:
    return Answered("without n1", Answer(Verdict.PASSED), asked)


def sofar(clock: Clock, **more: Any) -> Sofar:
    found = Sofar("3f9a", clock=clock, **more)
    found(Began(BEFORE, size_of(BEFORE)))
    found(Began(TWIN, size_of(TWIN)))  # whatever comes later: the first is what it was before
    return found


def test_events_become_a_few_lines() -> None:
    clock = Clock()
    told = sofar(clock, passes=3)
    assert "does the whole case fail?" in told.lines()[0]
    told(Entered("operators", "fewer operators"))
    for asked in (True, True, False):
        told(answered(asked))
    told(Improved(AFTER, size_of(AFTER), "without n1"))
    told(Met(Answer(Verdict.OTHER), TWIN))
    clock.now += 30
    assert told.lines() == [
        "minifying 3f9a  fewer operators (pass 1 of 3, round 1)",
        "  1 of 3 operators, 1 of 1 inputs, 6 of 6 elements",
        "  2 queries + 1 known, 4 a minute, 1 other failures  without n1: passed",
        "  30.0 s",
    ]
    told(Ended(""))
    assert "nothing is left to try" in told.line()


def test_nobody_says_how_long_it_takes_who_does_not_know() -> None:
    """Covers: U28"""
    clock = Clock()
    told = sofar(clock)
    for took, name in ((500, "once"), (10, "a"), (20, "b"), (30, "c")):
        told(Entered(name, name))
        assert "more" not in told.lines()[-1]
        clock.now += took
    told(Entered("a", "a"))
    assert told.lines()[0].endswith("(pass 1 of 3, round 2)")
    assert told.lines()[-1].endswith("about 1:00 more in this round")
    clock.now += 4
    told(Entered("b", "b"))
    clock.now += 5
    assert told.lines()[-1].endswith("about 45.0 s more in this round")


def test_a_budget_says_how_long_it_takes_at_most() -> None:
    clock = Clock()
    timed, counted = sofar(clock, budget=Budget(seconds=100.0)), sofar(clock, budget=Budget(queries=10))
    for _ in range(4):
        timed(answered())
        counted(answered())
    clock.now += 20
    assert timed.lines()[-1] == "  20.0 s, at most 1:20 more"
    assert counted.lines()[-1] == "  20.0 s, about 30.0 s more at most"


def test_where_lines_stay_there_are_few_and_the_last_one_is_the_end() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), width=40)
    with shown(console, Sofar("3f9a", clock=clock)) as observer:
        observer(Began(BEFORE, size_of(BEFORE)))
        for _ in range(100):
            observer(Improved(AFTER, size_of(AFTER), ""))
            clock.now += 0.05
        observer(Ended("it was interrupted"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert 3 <= len(lines) <= 5
    assert "1 of 3 operators" in lines[0]
    assert "stopped" in lines[-1]


def test_on_a_terminal_lines_are_replaced_and_gone_at_the_end() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False)
    with shown(console, Sofar("3f9a")) as observer:
        observer(Began(BEFORE, size_of(BEFORE)))
        observer(Entered("operators", "fewer operators"))
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "minifying 3f9a" in told
    assert "fewer operators" in told
    assert told.endswith("\x1b[2K")
    quiet = Console(file=io.StringIO(), force_terminal=True)
    with shown(quiet, Sofar("3f9a"), quiet=True) as observer:
        observer(Began(BEFORE, size_of(BEFORE)))
    assert isinstance(quiet.file, io.StringIO)
    assert not quiet.file.getvalue()

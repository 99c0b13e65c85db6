"""What is found out about graph breaks: where, why, what to change, and what Dynamo says. Covers: F12"""

from __future__ import annotations

import linecache
import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from breaks_samples import SEVERAL, WHOLE, finding, lines_of, opinion, surveyed, written
from torchsleuth import torch_compat
from torchsleuth.errors import NeverCalled, UnsupportedPython
from torchsleuth.frontend import second_opinion, surveying
from torchsleuth.frontend.advising import ALWAYS, advice_for_break, advice_for_miss
from torchsleuth.frontend.annotating import WHOLE as SHOWN_WHOLE, Listing, Row, listings_of
from torchsleuth.frontend.breaks import GraphBreak, Place
from torchsleuth.frontend.scripts import Call, Script
from torchsleuth.frontend.second_opinion import Objection, Question
from torchsleuth.frontend.surveying import MOST_OBJECTS, Failure, Survey, Surveyed, home_of, survey_script

Surveying = Callable[..., Survey]


@pytest.fixture
def looked_at(tmp_path: Path) -> Surveying:
    """Surveys a script, given as text."""

    def survey(text: str, function: str = "", *arguments: str, **options: Any) -> Survey:
        options.setdefault("dynamo", False)
        path = written(tmp_path, textwrap.dedent(text))
        return survey_script(Script(path, function, arguments), **options)

    return survey


def only(survey: Survey) -> Surveyed:
    (surveyed,) = survey.functions
    return surveyed


# ---- breaks ----------------------------------------------------------------------------------------------------


def test_each_break_has_its_line_the_source_the_reason_and_advice(looked_at: Surveying) -> None:
    """Covers: F12"""
    several = only(looked_at(SEVERAL, "step"))
    branch, array, printing = lines_of(SEVERAL, "if hidden", "np.linspace", "print(")
    by_line = {each.place.line: each for each in several.findings}
    assert list(dict.fromkeys(each.place.line for each in several.findings)) == [branch, array, printing]
    assert [each.number for each in several.findings] == list(range(1, len(several.findings) + 1))
    assert by_line[branch].place.source == "if hidden.mean() > -1:"
    assert (by_line[branch].place.function, by_line[branch].natively) == ("Net.forward", False)
    assert "value of a tensor" in by_line[branch].reason
    assert "torch.where" in by_line[branch].advice
    assert "numpy" in by_line[array].reason
    assert "torch instead of numpy" in by_line[array].advice
    assert all(each.advice for each in several.findings)
    assert all(Path(each.place.file).name == "script.py" for each in several.findings)
    assert several.breaks
    assert several.opinion is None


def test_a_break_in_an_inlined_function_says_how_it_got_there(looked_at: Surveying) -> None:
    several = only(looked_at(SEVERAL, "step"))
    calling, printing = lines_of(SEVERAL, "    report(loss)", "print(")
    last = several.findings[-1]
    assert [(place.line, place.function) for place in last.stack] == [(calling, "step"), (printing, "report")]
    assert last.home == last.place


def test_the_line_to_look_at_is_the_users() -> None:
    mine = Place("/home/me/train.py", 3, "step")
    package = Place(torch.nn.modules.linear.__file__, 30, "Linear.forward")
    library = Place(subprocess.__file__, 40, "run")
    ours = Place(surveying.__file__, 1, "look")
    assert home_of((mine, package, library, ours)) == mine
    assert home_of((package, library)) == library
    assert home_of((mine, Place("<frozen os>", 1, "walk"))) == mine
    installed = Place(re.__file__.replace("re/__init__", "site-packages/model/part"), 2, "forward")
    assert home_of((mine, Place(pytest.__file__, 2, "forward"), package)).file == pytest.__file__
    assert home_of((installed,)) == installed


def test_what_runs_natively_to_its_end_is_marked(looked_at: Surveying) -> None:
    survey = looked_at(
        """
        import sys, torch
        def step(x):
            name = sys._getframe().f_code.co_name
            return x + len(name)
        assert step(torch.ones(())) == 5
        """,
        "step",
    )
    assert [each.natively for each in only(survey).findings] == [True]
    assert only(survey).graphs == ()


def test_a_function_that_is_one_graph_has_nothing_to_tell(looked_at: Surveying) -> None:
    whole = only(looked_at(WHOLE, "step", dynamo=True))
    assert (whole.findings, whole.breaks, whole.settled) == ((), False, True)
    assert (whole.calls, whole.hits, whole.recordings, whole.graphs) == (3, 2, 1, (2,))
    assert whole.opinion == opinion(graphs=(2,))


def test_what_breaks_in_several_objects_is_told_once(looked_at: Surveying) -> None:
    survey = looked_at(
        """
        import torch
        class Block(torch.nn.Module):
            def forward(self, x):
                print("in a block")
                return x + 1
        for block in [Block() for _ in range(20)] * 3:
            block(torch.ones(3))
        """,
        "Block.forward",
        limit=2,
    )
    blocks = only(survey)
    assert (blocks.objects, blocks.calls, blocks.looked_at) == (MOST_OBJECTS, 20 + MOST_OBJECTS, 2 * MOST_OBJECTS)
    assert (len(blocks.findings), blocks.hits, survey.stopped) == (1, MOST_OBJECTS, True)


def test_what_begins_with_a_break_is_placed_where_it_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None: ...

    ours = Place(surveying.__file__, 1, "_call")
    found = surveying._users_stack(GraphBreak("step is a coroutine", ours, (ours,)), step)
    assert [(place.file, place.function) for place in found] == [(__file__, step.__qualname__)]
    assert surveying._users_stack(GraphBreak("no", ours, (ours,)), len) == (Place("", 0, "len"),)


# ---- how far a script is run -----------------------------------------------------------------------------------


def test_a_script_is_stopped_when_the_named_function_was_looked_at(
    looked_at: Surveying, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
    import torch
    def step(x): return x + 1
    for number in range(9):
        step(torch.ones(3))
        print(number)
    """
    survey = looked_at(text, "step", limit=3)
    assert (only(survey).calls, only(survey).looked_at, survey.stopped) == (3, 3, True)
    assert capsys.readouterr().out == "0\n1\n"
    survey = looked_at(text, "step", limit=10)
    assert (only(survey).calls, survey.stopped) == (9, False)


def test_a_script_without_a_name_is_run_to_its_end(looked_at: Surveying) -> None:
    """It may compile something yet."""
    told: list[str] = []
    survey = looked_at(
        """
        import torch
        first = torch.compile(lambda x: x + 1)
        for _ in range(5):
            first(torch.ones(3))
        @torch.compile
        def second(x):
            print("second")
        second(torch.ones(3))
        never = torch.compile(torch.nn.ReLU())
        """,
        limit=2,
        told=told.append,
    )
    assert [(each.name, each.calls, each.looked_at) for each in survey.functions] == [
        ("<lambda>", 5, 2),
        ("second", 1, 1),
    ]
    assert told == ["2 calls of <lambda> were looked at; from now on it runs natively"]
    assert survey.ended.uncalled == ("ReLU",)
    assert not survey.stopped


def test_an_error_of_the_script_is_told_with_what_is_known(looked_at: Surveying) -> None:
    text = """
    import torch
    def step(x):
        print("here")
        raise ValueError("no more")
    step(torch.ones(3))
    """
    survey = looked_at(text, "step", dynamo=True)
    assert survey.ended.words.startswith("the script stops with ValueError: no more")
    assert [each.reason for each in only(survey).findings] == ["print"]
    failure = "it was not asked, since the call raises ValueError: no more"
    assert only(survey).opinion == second_opinion.Opinion(failure=failure)


def test_what_cannot_be_done_is_raised(looked_at: Surveying, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeverCalled):
        looked_at("def step(x): return x", "step")

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedPython("this Python is not known", cause="why", remedy="what to do")

    text = "import torch\ndef step(x): return x\ntry:\n    step(1)\nexcept Exception: pass\n"
    monkeypatch.setattr(surveying, "Captured", refuse)
    with pytest.raises(UnsupportedPython):  # even from inside of a script that handles everything
        looked_at(text, "step")
    monkeypatch.setattr(surveying, "require_known_python", refuse)
    with pytest.raises(UnsupportedPython):
        looked_at("raise AssertionError('it is not run')", "step")


# ---- what is not settled ---------------------------------------------------------------------------------------


def test_a_guard_that_does_not_hold_is_named_with_the_calls(looked_at: Surveying) -> None:
    """Covers: F7, F12"""
    survey = looked_at(
        """
        import torch
        class Counter:
            count = 0
        counter = Counter()
        def step(x):
            return x + counter.count
        for counter.count in range(3):
            step(torch.ones(3))
        step(torch.ones(4))
        """,
        "step",
    )
    counting, *others = only(survey).misses
    assert (counting.found, counting.calls) == ("it is 1 now", (2, 3, 4) if not others else (2, 3))
    assert counting.guard.endswith("count is 0")
    assert "count outside" in counting.advice
    assert not only(survey).settled
    assert only(survey).hits == 0


def test_sizes_that_change_have_advice_of_their_own(looked_at: Surveying) -> None:
    survey = looked_at(
        "import torch\ndef step(x): return x + 1\nfor size in (3, 4, 4, 5):\n    step(torch.ones(size))", "step"
    )
    (miss,) = only(survey).misses
    assert (miss.calls, "dynamic=True" in miss.advice) == ((2, 4), True)


def test_what_runs_natively_under_a_mode_is_counted(looked_at: Surveying) -> None:
    survey = looked_at(
        "import torch\ndef step(x): return x + 1\nwith torch.device('cpu'):\n    step(torch.ones(3))", "step"
    )
    assert (only(survey).natives, only(survey).recordings, only(survey).settled) == (1, 0, False)


def test_faults_of_ours_and_recordings_that_were_lost_are_told(
    looked_at: Surveying, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = surveying.Captured
    places = (Place("/home/me/script.py", 3, "step"), Place(surveying.__file__, 1, "ours"))

    class Failing(real):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.crashes.append(SimpleNamespace(error=KeyError("what"), stack=places, path="a record"))
            self.uncacheable += ["a value that lives on refers to itself"]
            return self.fn(*args, **kwargs)

    monkeypatch.setattr(surveying, "Captured", Failing)
    step = only(looked_at(WHOLE, "step", limit=2))
    assert step.failures == (Failure("KeyError: 'what'", places[0], "a record"),) * 2
    assert step.uncacheable == {"a value that lives on refers to itself": 2}
    assert not step.settled


# ---- Dynamo ----------------------------------------------------------------------------------------------------


def test_dynamo_is_heard_beside_us(looked_at: Surveying, capfd: pytest.CaptureFixture[str]) -> None:
    """Covers: F12"""
    several = only(looked_at(SEVERAL, "step", "4", dynamo=True))
    assert several.opinion is not None
    assert several.opinion.failure == ""
    branch, printing = lines_of(SEVERAL, "if hidden", "print(")
    against = {each.home.line: [one.headline for one in each.objections] for each in several.findings}
    assert against[branch] == ["Data-dependent branching"]
    assert against[printing][0].startswith("Unsupported Tensor.item()")
    assert len(several.opinion.graphs) >= 3
    said = capfd.readouterr()
    assert said.out.count("loss ") == 1  # what it prints for Dynamo is not heard, and nor is Dynamo
    assert "Graph break" not in said.err


def test_what_only_dynamo_breaks_at_is_told_apart(looked_at: Surveying, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\ndef step(x):\n    y = x + 1\n    print('here')\n    return y\nstep(torch.ones(3))\n"

    def explain(fn: Any, *_: Any, **__: Any) -> torch_compat.Explained:
        file = getattr(fn, "__code__", torch_compat.explain.__code__).co_filename
        breaks = [torch_compat.DynamoBreak(f"line {line}", ((file, line, "step"),)) for line in (3, 4)]
        return torch_compat.Explained([], [*breaks, torch_compat.DynamoBreak("somewhere")])

    monkeypatch.setattr(torch_compat, "explain", explain)
    step = only(looked_at(text, "step", dynamo=True))
    assert [each.reason for each in step.dynamo_alone] == ["line 3", "somewhere"]
    assert [each.headline for each in step.findings[0].objections] == ["line 4"]
    assert [
        (row.number, [note.words for note in row.notes]) for row in listings_of(step)[0].rows if row and row.notes
    ] == [(3, ["line 3"]), (4, ["print"])]


def test_a_failure_of_dynamo_is_told_and_not_raised(looked_at: Surveying, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch_compat.explain

    def explain(fn: Any, *args: Any, **kwargs: Any) -> torch_compat.Explained:
        if fn is torch.neg:
            return real(fn, *args, **kwargs)
        raise RuntimeError("Dynamo is ill\nvery much so")

    monkeypatch.setattr(torch_compat, "explain", explain)
    step = only(looked_at(WHOLE, "step", dynamo=True))
    assert step.opinion == second_opinion.Opinion(failure="it raises RuntimeError: Dynamo is ill")
    assert step.looked_at == 3


def test_arguments_that_cannot_be_copied_keep_dynamo_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise TypeError("not this one")

    monkeypatch.setattr(second_opinion, "clone_inputs", refuse)
    question = Question.of(Call("step", len, ([],)))
    assert question.ask().failure == "its arguments cannot be copied (TypeError: not this one)"


TRAINING = """
import random, torch
from torch import nn
random.seed(3)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
model[3].tied = model[3].weight
scale, later = torch.ones(()), torch.ones(1, requires_grad=True)
optimizer = torch.optim.Adam([*model.parameters(), later])
def step(x):
    scale.add_(0.5)
    x.mul_(2)
    random.random()
    return model(x) * later * scale
for _ in range(4):
    x = torch.randn(4, 8)
    loss = step(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = [*model.parameters(), *model.buffers(), later, scale, x]
print([tensor.tolist() for tensor in state], torch.rand(3).tolist(), random.random())
"""


def test_a_script_computes_what_it_computes_without_us(
    looked_at: Surveying, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking Dynamo changes no arguments, state, gradients or random numbers. Covers: F11"""
    assert Script(written(tmp_path, TRAINING), "step").run(Call.go).words == ""
    plain = capsys.readouterr().out
    survey = looked_at(TRAINING, "step", dynamo=True, limit=9)
    trained = only(survey)
    assert survey.ended.words == ""
    assert capsys.readouterr().out == plain
    assert trained.opinion is not None
    assert trained.opinion.failure == ""
    assert len(trained.opinion.graphs) > 0
    assert trained.looked_at == 4


def test_dynamo_finds_the_arguments_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def explain(fn: Any, args: Any, kwargs: Any, **_: Any) -> torch_compat.Explained:
        seen.extend([args[0].clone(), kwargs["more"][0].clone()])
        fn(*args, **kwargs)
        return torch_compat.Explained()

    monkeypatch.setattr(torch_compat, "explain", explain)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.same, self.count = weight, weight, 0

        def forward(self, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
            x.add_(1)
            more[0].add_(1)
            self.count += 1
            (self.weight * x).sum().backward()
            with torch.no_grad():
                self.weight.add_(1)
            self.same = torch.nn.Parameter(torch.zeros(2))
            return x

    net, x, more = Net(), torch.zeros(2), torch.zeros(2)
    call = Call("net", net, (x,), {"more": [more]})
    question = Question.of(call)
    call.go()
    net.same = weight
    frozen = net.frozen = torch.inference_mode()(torch.ones)(2)
    grad, version = weight.grad, weight._version
    assert question.ask().failure == ""
    assert [tensor.tolist() for tensor in seen] == [[0, 0], [0, 0]]
    assert (x.tolist(), more.tolist(), net.count) == ([1, 1], [1, 1], 1)
    assert (net.weight is weight, net.same is weight, net.frozen is frozen) == (True, True, True)
    assert (weight.tolist(), weight._version, frozen.tolist()) == ([2, 2], version, [1, 1])
    assert weight.grad is grad
    assert weight.grad.tolist() == [2, 2]


LONG = """Data-dependent branching
  Explanation: Detected data-dependent branching.

      More of it.
  Hint: Use `torch.cond`.
  Hint: Or nothing.

  Developer debug context: attempted to jump
"""


def test_what_dynamo_says_is_taken_apart() -> None:
    objection = Objection(LONG)
    assert objection.headline == "Data-dependent branching"
    assert objection.explanation == "Detected data-dependent branching."
    assert objection.hints == ("Use `torch.cond`.", "Or nothing.")
    assert (Objection("generic_jump").headline, Objection("").headline) == ("generic_jump", "")
    assert Objection("generic_jump TensorVariable()").headline == "Data-dependent branching"
    assert (Objection("generic_jump").explanation, Objection("generic_jump").hints) == ("", ())


def test_what_dynamo_says_twice_of_a_line_is_told_once() -> None:
    here, there = (("a.py", 3, "step"),), (("a.py", 4, "step"),)
    breaks = [torch_compat.DynamoBreak(*each) for each in ((LONG, here), ("jump", here), (LONG, here), ("jump", there))]
    told = list(second_opinion._told_once(breaks))
    assert [(each.headline, each.stack[-1].line) for each in told] == [("Data-dependent branching", 3), ("jump", 4)]


# ---- listings --------------------------------------------------------------------------------------------------


def listed(tmp_path: Path, text: str, *lines: int) -> list[Listing]:
    file = written(tmp_path, text, "listed.py")
    linecache.checkcache(file)
    return listings_of(surveyed(findings=tuple(finding(Place(file, line, "f")) for line in lines)))


def numbers(listing: Listing) -> list[int | None]:
    return [None if row is None else row.number for row in listing.rows]


def test_a_short_function_is_shown_whole_with_its_decorators(tmp_path: Path) -> None:
    text = "import os\n\n@cached\ndef f(x):\n    y = x\n    return y\n\nf(1)\n"
    (listing,) = listed(tmp_path, text, 5)
    assert (listing.function, numbers(listing)) == ("f", [3, 4, 5, 6])
    noted = [row for row in listing.rows if row is not None and row.notes]
    assert [(row.text, row.notes[0].words, row.notes[0].number) for row in noted] == [("    y = x", "why", 1)]


def test_a_long_function_is_shortened_around_its_breaks(tmp_path: Path) -> None:
    text = "def f(x):\n" + "".join(f"    x{number} = {number}\n" for number in range(2, SHOWN_WHOLE + 40))
    (listing,) = listed(tmp_path, text, 6, 40)
    assert numbers(listing) == [*range(1, 10), None, *range(37, 44), None]


def test_functions_are_known_by_where_they_are(tmp_path: Path) -> None:
    inner = "class A:\n    def f(self):\n        def g():\n            print()\n        g()\n"
    text = f"{inner}\nclass B:\n    def f(self):\n        print()\n"
    assert [each.function for each in listed(tmp_path, text, 4, 9)] == ["A.f.g", "B.f"]
    assert [each.function for each in listed(tmp_path, text, 4, 5)] == ["A.f"]  # the inner one is in it


def test_outside_of_functions_what_is_around_a_line_is_shown(tmp_path: Path) -> None:
    text = "".join(f"x{number} = {number}\n" for number in range(20))
    assert [numbers(each) for each in listed(tmp_path, text, 2)] == [[1, 2, 3, 4, 5]]


def test_what_has_no_source_has_no_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if Python remembers a text under that name: it may be any."""
    lines = ["one\n", "two\n", "three\n", "four\n"]
    monkeypatch.setitem(linecache.cache, "<string>", (30, None, lines, "<string>"))
    assert Place("<string>", 3, "f").source == ""
    assert listings_of(surveyed(findings=(finding(Place("<string>", 3, "f")), finding(Place("", 0, "len"))))) == []
    (listing,) = listed(tmp_path, "this is no\nPython\n", 1)
    assert [row.text for row in listing.rows if isinstance(row, Row)] == ["this is no", "Python"]


# ---- advice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("calling a numpy.ufunc", "torch instead of numpy's"),
        ("torch.from_numpy is not known to be free of hidden state", "beforehand"),
        ("torch.optim.adam.step is not known to be free of hidden state", "step the optimizer outside"),
        ("the native function my.clock is not known to be free of hidden state", "custom_op"),
        ("nonzero() depends on the data", "torch.where"),
        ("with a my.Timer", "enter the context outside"),
        ("the next value of a zip from before the graph", "mend the break before it"),
        ("the next value of a Loader", "make a list"),
        ("a module is made (Linear)", "make it once"),
        ("a buffer is set (count)", "set it outside"),
        ("main.<locals>.go is a coroutine", "await outside"),
        ("something that nobody has thought of", ALWAYS),
    ],
)
def test_there_is_advice_for_each_reason(reason: str, advice: str) -> None:
    """Covers: F12"""
    assert advice in advice_for_break(reason)


def test_there_is_advice_for_some_guards() -> None:
    assert "keep it a tensor" in advice_for_miss("the result of a break is 1.5", "it is 2.5 now")
    assert "count outside" in advice_for_miss("model.calls is 0", "it is 1 now")
    assert "of one kind" in advice_for_miss("the tensors are of the same kind", "tensor 'x' dtype mismatch")
    assert advice_for_miss("model is the same Net", "it is a Net now") == ""

"""`sleuth breaks`: what it prints, as words and as data, and how it ends. Covers: F12"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from breaks_samples import SEVERAL, WHOLE, finding, lines_of, opinion, survey, surveyed, written
from torchsleuth.cli import breaks as breaks_command, main
from torchsleuth.cli.answers import give
from torchsleuth.cli.breaks import Asked
from torchsleuth.errors import NeverCalled
from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.scripts import Ended
from torchsleuth.frontend.second_opinion import Objection, Opinion
from torchsleuth.frontend.surveying import Failure, Miss, Survey, Surveyed
from torchsleuth.report.breaks import render_survey

Sleuth = Callable[..., int]


@pytest.fixture
def notes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command is told in its child: so it runs the script in this process."""
    folder = str(tmp_path_factory.mktemp("notes"))
    monkeypatch.setenv(breaks_command.NOTES, folder)
    return folder


@pytest.fixture
def sleuth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: str) -> Sleuth:
    """Runs the command in this process, in a folder of its own, and gives its exit code."""

    def run(*arguments: str, width: int = 120) -> int:
        monkeypatch.setenv(breaks_command.NOTES, notes)
        monkeypatch.setattr(main.out, "width", width)
        monkeypatch.setattr(sys, "argv", ["sleuth", "breaks", *arguments])
        with pytest.raises(SystemExit) as left:
            main.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")  # else the width of a file is taken
    return run


def shown(survey: Survey, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in render_survey(survey, width=width):
        console.print(part, soft_wrap=isinstance(part, Text), highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def squeezed(text: str) -> str:
    return " ".join(text.split())


# ---- the whole of it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_breaks_are_shown_with_line_source_reason_advice_and_dynamos_view(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """Covers: F12"""
    written(tmp_path, SEVERAL)
    assert sleuth("script.py:step", width=width) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == "Next: sleuth breaks script.py:step"
    words = squeezed(said.out)
    branch, printing, calling = lines_of(SEVERAL, "if hidden", "print(", "    report(loss)")
    for part in (
        "3 calls looked at; none ran from what was recorded before",
        f"script.py:{branch} in Net.forward",
        f"script.py:{printing} in report",
        f"from script.py:{calling} in step",
        f"{branch} ✂ if hidden.mean() > -1: │ ╰─ 1: a branch on the value of a tensor",
        f"{printing} ✂ print(",
        "script.py, Net.forward",
        "script.py, report",
        "not settled recorded again, since a guard did not hold:",
        "calls is 0: it is 1 now",
        "in calls 2 and 3",
    ):
        assert part in words, part
    if width == 80:  # else they stand side by side
        assert "why a branch on the value of a tensor change choose with torch.where" in words
        assert "is there Dynamo Data-dependent branching" in words
        assert "use the function of torch instead of numpy's" in words
    assert not re.search(r"loss \d", said.out)
    assert len(re.findall(r"loss \d", said.err)) == 3  # the script's own words


def test_a_function_without_breaks_is_well(sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, WHOLE)
    assert sleuth("script.py:step", "--no-dynamo", "--", "--epochs", "2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "step   no breaks ",
        "3 calls looked at; 2 ran from what was recorded before",
        "first call: 1 graph (2 operations)",
        "",
        "Next: sleuth witness script.py:step -- --epochs 2",
    ]


def test_a_limit_is_heeded_and_arguments_reach_the_script(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, SEVERAL)
    assert sleuth("script.py:step", "--json", "--limit", "2", "--no-dynamo", "--", "3", "3", "5", "-7") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["arguments"] == ["3", "3", "5", "-7"]
    assert (data["functions"][0]["looked_at"], data["stopped"]) == (2, True)
    assert sleuth("script.py:step", "--limit", "0") == 2


def test_data_is_printed_alone(sleuth: Sleuth, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the script prints, by whatever way."""
    text = SEVERAL + "\nimport os\nos.write(1, b'by hand')\nimport warnings\nwarnings.warn('of the script')\n"
    written(tmp_path, text)
    assert sleuth("script.py:step", "--json", "--limit", "9", "--", "4") == 1
    said = capfd.readouterr()
    data = json.loads(said.out)
    assert "by hand" in said.err
    assert "of the script" in said.err
    assert (data["script"], data["function"], data["ended"], data["stopped"]) == ("script.py", "step", "", False)
    assert "warnings" not in data
    (function,) = data["functions"]
    assert (function["name"], function["calls"], function["looked_at"]) == ("step", 1, 1)
    first = function["breaks"][0]
    (branch,) = lines_of(SEVERAL, "if hidden")
    assert (first["file"], first["line"]) == (str(tmp_path / "script.py"), branch)
    assert (first["function"], first["source"]) == ("Net.forward", "if hidden.mean() > -1:")
    assert (first["natively"], first["dynamo"]) == (False, ["Data-dependent branching"])
    assert [place["function"] for place in first["stack"]] == ["step", "Net.forward"]
    assert all(each["reason"] and each["advice"] for each in function["breaks"])
    assert function["dynamo"]["failure"] == ""
    assert function["dynamo"]["breaks"][0]["stack"][-1]["line"] == branch
    assert len(function["graphs"]["first_call"]) == function["graphs"]["all"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing.py", "there is no script 'nothing.py'"),
        ("script.py:stop", "did you mean script.py:step?"),
        ("script.py", "script.py gives nothing to torch.compile"),
        ("script.py:unused", "script.py never calls unused"),
    ],
)
def test_what_cannot_be_done_is_told_with_a_remedy(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    written(tmp_path, WHOLE + "def unused(x): pass\n")
    assert sleuth(words, "--no-dynamo") == 2
    told = capsys.readouterr()
    assert (told.out, said in told.err) == ("", True)
    assert sleuth(words, "--no-dynamo", "--json") == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error"}


def test_a_script_that_goes_on_says_so(sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "import torch\n@torch.compile\ndef step(x): return x + 1\nfor _ in range(5):\n    step(torch.ones(2))\nboom()\n"
    )
    written(tmp_path, text)
    assert sleuth("script.py", "--no-dynamo") == 0
    told = capsys.readouterr()
    assert "torchsleuth: 4 calls of step were looked at; from now on it runs natively" in told.err
    assert "4 of 5 calls looked at" in told.out
    assert "note: the script stops with NameError: name 'boom' is not defined (script.py:6)" in told.out
    assert told.out.splitlines()[-1] == "Next: python script.py"


def test_nothing_to_look_at_is_exit_code_two(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, WHOLE.replace("    step(", "    with torch.device('cpu'): step("))
    assert sleuth("script.py:step", "--no-dynamo") == 2
    told = capsys.readouterr().out
    assert "NOT LOOKED AT" in told
    assert "a mode of torch was on" in told


def test_the_command_works_by_itself(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    command = [sys.executable, "-m", "torchsleuth", "breaks", "script.py:step", "--no-dynamo"]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[0] == "step   no breaks "


def by_itself(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it is typed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", breaks_command.NOTES)}
    command = [sys.executable, "-m", "torchsleuth", "breaks", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("os._exit(5)", "left with exit code 5, past Python's own end"),
        ("os.kill(os.getpid(), 15)", "died of SIGTERM"),
        ("import ctypes; ctypes.string_at(0)", "died of SIGSEGV"),
    ],
)
def test_what_is_known_of_a_script_that_kills_its_process_is_told(tmp_path: Path, death: str, words: str) -> None:
    """Covers: F12"""
    written(tmp_path, f"import os\n{WHOLE}\nprint('before')\n{death}\n")
    ran = by_itself(tmp_path, "script.py:step", "--no-dynamo")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].rstrip() == "step   no breaks"
    assert any(line.startswith(f"note: its process {words}") for line in lines)
    assert lines[-1] == "Next: python script.py"
    assert "before" in ran.stderr


def test_a_script_that_dies_in_the_call_is_one_clear_error(tmp_path: Path) -> None:
    """Covers: F12"""
    written(tmp_path, "import ctypes\ndef step(x):\n    return ctypes.string_at(x)\nstep(0)\n")
    ran = by_itself(tmp_path, "script.py:step", "--no-dynamo", "--json")
    assert ran.returncode == 2, ran.stderr
    error = json.loads(ran.stdout)["error"]
    assert error["what"] == "script.py:step could not be looked at"
    assert error["cause"].startswith("its process died of SIGSEGV in call 1 of step")
    assert error["remedy"].startswith("see that it runs by itself first: python script.py")
    ran = by_itself(tmp_path, "script.py:step", "--no-dynamo")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, "Next: python script.py")


def test_what_a_script_prints_at_its_end_is_not_in_the_answer(tmp_path: Path) -> None:
    """Covers: F12"""
    at_the_end = "import atexit, os\natexit.register(lambda: (print('leaving'), os.write(1, b'raw')))\n"
    written(tmp_path, at_the_end + WHOLE)
    ran = by_itself(tmp_path, "script.py:step", "--no-dynamo", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["functions"][0]["name"] == "step"
    assert "leaving" in ran.stderr
    assert "raw" in ran.stderr


def test_an_interrupted_command_leaves_as_shells_know_it(tmp_path: Path) -> None:
    """Covers: F12"""
    written(tmp_path, "import os, signal\ndef step(x): pass\nos.kill(os.getpid(), signal.SIGINT)\n")
    assert by_itself(tmp_path, "script.py:step", "--no-dynamo").returncode in (130, -signal.SIGINT)


# ---- how it ends -----------------------------------------------------------------------------------------------


HERE = Place("/home/me/script.py", 7, "step")
FAULT = Failure("KeyError: 'what'", HERE)


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize(
    ("function", "code", "following"),
    [
        (surveyed(), 0, "sleuth witness my.py:step -- 1"),
        (surveyed(findings=(finding(HERE),)), 1, "sleuth breaks my.py:step -- 1"),
        (surveyed(findings=(finding(HERE),), failures=(FAULT,)), 1, "sleuth breaks my.py:step -- 1"),
        (surveyed(dynamo_alone=(Objection("why"),)), 1, "sleuth breaks my.py:step -- 1"),
        (surveyed(failures=(FAULT,)), 3, "sleuth doctor"),
        (surveyed(failures=(FAULT, Failure("TypeError", None, "a record"))), 3, "sleuth replay 'a record' --trust"),
        (surveyed(recordings=0, natives=1), 2, "python my.py 1"),
    ],
)
def test_the_exit_code_says_whether_there_are_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Surveyed, code: int, following: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "", "my.py")
    made: dict[str, Any] = {}

    def survey_script(script: Any, **options: Any) -> Survey:
        made.update(options)
        return Survey(script, Ended(1), False, (function,))

    monkeypatch.setattr("torchsleuth.frontend.surveying.survey_script", survey_script)
    asked = Asked("my.py:step", ("1",), limit=7, dynamo=False)
    answer = breaks_command.breaks(Console(file=io.StringIO()), asked, width=100)
    assert (answer.code, answer.next) == (code, following)
    assert (made["limit"], made["dynamo"]) == (7, False)
    console = Console(file=io.StringIO(), width=100)
    assert give(console, lambda: answer, as_json=False) == code


def test_warnings_of_the_script_are_not_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(breaks_command, "_FILTERS", (("default", None, UserWarning, None, 0),))
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with breaks_command._warnings_as_usual():
            for _ in range(2):
                warnings.warn("of the script", UserWarning, stacklevel=1)
        assert recorded == []
    assert capsys.readouterr().err.count("UserWarning: of the script") == 1


# ---- how it looks ----------------------------------------------------------------------------------------------


def test_everything_that_is_not_settled_is_told() -> None:
    misses = (
        Miss("model.calls is 0", "it is 1 now", "count outside", (2, 3, 4)),
        Miss("kinds", "size mismatch", "be dynamic", (3,)),
        Miss("model.steps is 0", "it is 1 now", "count outside", (2,)),
    )
    one = surveyed(
        misses=misses,
        uncacheable={"a later call could not make a generator anew": 2},
        natives=3,
        failures=(FAULT, Failure("TypeError", None, "/tmp/records/1")),
    )
    told = shown(survey(one))
    assert told.count("count outside") == 1  # what is to be done is said once
    words = squeezed(told[told.index("not settled") :])
    assert words == squeezed(
        """
        not settled
        recorded again, since a guard did not hold:
        · model.calls is 0: it is 1 now
            in calls 2, 3 and 4
        · model.steps is 0: it is 1 now
            in call 2
            count outside
        · kinds: size mismatch
            in call 3
            be dynamic
        · a recording could not be kept
            a later call could not make a generator anew (2 times)
        · run natively
            so many recordings were made at one place that no more are kept, or a mode of torch was on (3 times)
        · a fault of torchsleuth itself
            KeyError: 'what' at /home/me/script.py:7; the call went on natively. Please report it
        · a fault of torchsleuth itself
            TypeError; the call went on natively. Please report it
            record: /tmp/records/1
        """
    )


def test_places_that_are_too_long_for_a_column_are_not_folded() -> None:
    long = Place(f"/a/{'very/' * 12}long/path.py", 7, "step")
    assert "what to change" in shown(survey(surveyed(findings=(finding(HERE),))))
    assert f"{long.file}:7 in step\n" in shown(survey(surveyed(findings=(finding(long),))))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_break_in_a_library_shows_the_users_line(tmp_path: Path, width: int) -> None:
    file = written(tmp_path, "def step(x):\n    return inner(x)\n")
    home, inner = Place(file, 2, "step"), Place("/usr/lib/torch/inner.py", 90, "inner")
    objections = (Objection("Dynamo's reason"), Objection("another one"))
    one = finding(inner, "hidden state", home=home, stack=(home, inner), natively=True, objections=objections)
    two = finding(inner, "more of it", home=home, stack=(home, inner), number=2, objections=objections)
    told = shown(survey(surveyed(findings=(one, two))), width=width)
    words = squeezed(told.replace("│", ""))
    assert "/usr/lib/torch/inner.py:90 in inner" in words
    assert words.count("return inner(x)") == 3  # with each of the breaks, and in the listing
    assert words.count("Dynamo's reason") == words.count("another one") == 1
    assert words.count("natively") == 2  # with the break, and in the listing
    assert "1: hidden state (in inner)" in words


def test_what_only_dynamo_says_has_a_place_of_its_own(tmp_path: Path) -> None:
    file = written(tmp_path, "def step(x):\n    return x.tolist()\n")
    reason = "Unsupported tolist\n  Explanation: It is not known.\n  Hint: Do without.\n  Hint: Or not."
    told = Objection(reason, (Place(file, 2, "step"),))
    one = surveyed(dynamo_alone=(told, Objection("lost")), opinion=opinion(told, graphs=(1, 2)))
    words = squeezed(shown(survey(one)))
    for part in (
        "2 breaks of Dynamo's",
        "Dynamo: 2 graphs (1 and 2 operations), breaks at 1 line",
        "where only Dynamo breaks",
        "return x.tolist() Unsupported tolist It is not known. Do without.",
        "Dynamo names no line; it is in step, or in what that calls lost",
        "✂ return x.tolist() │ ╰─ Dynamo: Unsupported tolist",
    ):
        assert part in words, part
    assert "Or not." not in words


def test_a_failure_of_dynamo_is_one_line() -> None:
    told = shown(survey(surveyed(opinion=Opinion(failure="it raises RuntimeError: [bold]ill[/]\x1b[2J"))))
    assert "Dynamo:     it raises RuntimeError: [bold]ill[/]\\x1b[2J\n" in told


def test_several_functions_are_counted_and_kept_apart() -> None:
    one, two = surveyed(findings=(finding(HERE),)), surveyed(name="Net", objects=3, looked_at=6, calls=7, hits=3)
    told = shown(survey(one, two, ended=Ended(8, uncalled=("a", "b")), stopped=True), width=100)
    assert told.startswith("script.py: 2 functions, 1 break\n")
    assert "─" * 100 in told
    assert (
        "6 of 7 calls of 3 objects looked at; 3 ran from what was recorded before; then the script was stopped" in told
    )
    assert "note: given to torch.compile, and not called by itself: a, b" in told


def test_graphs_are_counted_and_long_lists_of_them_cut() -> None:
    assert "first call: no graph\n" in shown(survey(surveyed(graphs=(), all_graphs=0, findings=(finding(HERE),))))
    assert "first call: 1 graph (1 operation), 2 more later\n" in shown(survey(surveyed(graphs=(1,), all_graphs=3)))
    lost = surveyed(graphs=(2,), uncacheable={"why": 1})
    assert "first call: 1 graph (2 operations); others could not be kept\n" in shown(survey(lost))
    many = shown(survey(surveyed(graphs=(5,) * 30, all_graphs=30)))
    assert f"first call: 30 graphs ({'5, ' * 11}5 and … operations)\n" in many


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "since it calls nothing of torch that computes"),
        (
            {"uncacheable": {"a later call could not make x anew": 1}},
            "could not be kept: a later call could not make x",
        ),
        ({"natives": 1}, "since it ran natively"),
        ({"failures": (FAULT,)}, "since our own translator failed"),
    ],
)
def test_why_there_is_no_graph_is_said(known: dict[str, Any], why: str) -> None:
    """Covers: F12"""
    told = squeezed(shown(survey(surveyed(graphs=(), all_graphs=0, **known)), width=200))
    assert f"first call: no graph, {why}" in told or f"no graph, since what was recorded {why}" in told


def test_what_the_script_compiles_can_be_watched(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers: U28"""
    written(tmp_path, WHOLE + "torch.compile(step)(torch.ones(3))\n")
    assert sleuth("script.py", "--no-dynamo") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: sleuth run script.py"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import time\ndef step(x): pass\ntime.sleep(60)\nstep(1)\n", "script.py never calls step"),
        ("import time\ntime.sleep(60)\ndef step(x): pass\nstep(1)\n", "script.py stops before it defines step"),
    ],
)
def test_a_script_that_takes_too_long_is_stopped(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """Covers: F12"""
    written(tmp_path, text)
    assert sleuth("script.py:step", "--deadline", "0.2", "--no-dynamo", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"] == said
    assert error["cause"].startswith("the script was stopped after 0.2 s (script.py:")
    assert "--deadline" in error["remedy"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_known_when_the_time_is_up_is_told(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers: F12"""
    written(tmp_path, WHOLE + "import time\ntime.sleep(60)\n")
    assert sleuth("script.py:step", "--deadline", "2", "--no-dynamo") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step   no breaks "
    assert "note: the script was stopped after 2 s (script.py:8)" in lines


def test_text_of_the_program_is_neither_markup_nor_a_command_to_the_terminal(tmp_path: Path) -> None:
    file = written(tmp_path, "def step(x):\n    print('[red]x[/]', '\x1b[2J')\n\n\n    return x\n")
    one = surveyed(findings=(finding(Place(file, 2, "[b]step[/b]"), "[i]why[/i]\x1b[0m", advice="[u]do[/u]"),))
    for width in (80, 120):
        told = shown(survey(one), width=width)
        assert "\x1b" not in told
        for part in ("[b]step[/b]", "[i]why[/i]", "[u]do[/u]", "print('[red]x[/]', '\\x1b[2J')", "   5 │     return x"):
            assert part in told, part


def test_an_interrupted_script_still_tells_what_is_known(
    sleuth: Sleuth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, WHOLE + "raise KeyboardInterrupt\n")
    assert sleuth("script.py:step", "--no-dynamo") == 130
    assert "note: the script was interrupted" in capsys.readouterr().out


@pytest.mark.usefixtures("notes")
def test_an_error_has_the_parts_of_all_our_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "def step(x): pass\n")
    with pytest.raises(NeverCalled) as raised:
        breaks_command.breaks(Console(file=io.StringIO()), Asked("script.py:step", dynamo=False), width=80)
    assert raised.value.cause
    assert raised.value.remedy

"""The command `sleuth`: what it prints and how it exits, on good input and bad."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchsleuth import __version__, torch_compat
from torchsleuth.cli import demo, doctor, main
from torchsleuth.torch_compat import Missing, PrivateName, Report


def sleuth(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process and give its exit code."""
    monkeypatch.setattr(sys, "argv", ["sleuth", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert isinstance(left.value.code, int)
    return left.value.code


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sleuth("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"torchsleuth {__version__}\n"


def test_help_lists_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sleuth("--help", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "demo" in told
    assert "doctor" in told


@pytest.mark.parametrize("command", [(), ("show",), ("gc",)])
def test_help_says_nothing_of_the_type_of_a_switch(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sleuth(*command, "--help", monkeypatch=monkeypatch) == 0
    assert "bool" not in capsys.readouterr().out


def test_help_does_not_wait_for_torch() -> None:
    """Importing torch takes seconds; whoever asks for help should not pay for it."""
    code = "import sys; import torchsleuth.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_python_dash_m_is_the_same_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "torchsleuth", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"torchsleuth {__version__}\n"


def test_a_bad_setting_is_told_with_cause_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers: S15"""
    monkeypatch.setenv("SLEUTH_LEVEL", "[bold]9[/]")
    assert sleuth("doctor", monkeypatch=monkeypatch) == 2
    told = capsys.readouterr()
    assert "level" in told.err
    assert "[bold]9[/]" in told.err  # shown as it was typed, not taken for markup
    assert "SLEUTH_LEVEL" in told.err
    assert "4 or accuracy" in " ".join(told.err.split())
    assert "Traceback" not in told.err


def test_a_fault_of_our_own_is_owned_up_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[doctor.Finding]:
        raise RuntimeError("[red]what happened[/]")

    monkeypatch.setattr(doctor, "examine", broken)
    assert sleuth("doctor", monkeypatch=monkeypatch) == 3
    told = capsys.readouterr().err
    assert "RuntimeError: [red]what happened[/]" in told
    assert "fault of torchsleuth itself" in told


def test_doctor_says_that_all_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLEUTH_TOLERANCE", "0.25")
    monkeypatch.setenv("CXX", sys.executable)  # something that is there
    monkeypatch.setattr(torch_compat, "report", lambda: Report("2.13.0", True, 12, ()))
    assert sleuth("doctor", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "✗" not in told
    assert "SLEUTH_TOLERANCE" in told
    assert "0.25" in told
    assert told.rstrip().endswith("sleuth demo")  # the last line is the next command


def test_doctor_says_what_stops_working(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Missing(PrivateName("torch._gone", "away", "counting sheep"), "no module named torch._gone")
    monkeypatch.setattr(torch_compat, "report", lambda: Report("3.0.0", False, 12, (lost,)))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    monkeypatch.setenv("COLUMNS", "200")
    assert sleuth("doctor", monkeypatch=monkeypatch) == 1
    told = capsys.readouterr().out
    assert "not among the tested versions" in told
    assert "torch._gone.away" in told
    assert "counting sheep" in told
    assert "no-such-compiler" in told
    assert told.rstrip().endswith("sleuth doctor")


def test_the_demo_without_a_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert sleuth("demo", monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert "no-such-compiler" in told
    assert "install g++" in told


@pytest.mark.parametrize("arguments", [["demo", "--fault", "gelu"], ["demo", "--dropout", "2"], ["nonsense"]])
def test_bad_arguments_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sleuth(*arguments, monkeypatch=monkeypatch) == 2
    assert "Usage" in capsys.readouterr().err


@pytest.mark.inductor
def test_the_demo_finds_the_planted_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U12"""
    assert sleuth("demo", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "BUG" in told
    assert told.rstrip().endswith("Next: sleuth demo --fault none")


@pytest.mark.inductor
def test_the_demo_finds_no_fault_where_none_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers: U12"""
    assert sleuth("demo", "--fault", "none", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "NOISE" in told
    assert "BUG" not in told


def test_the_demo_admits_an_unexpected_judgement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a compiler that ignores the fault there is nothing to find, and the demo must not claim otherwise."""
    import torch

    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    assert sleuth("demo", "--fault", "relu", monkeypatch=monkeypatch) == 1
    assert "Expected bug" in capsys.readouterr().out


def test_the_demo_always_names_a_next_command() -> None:
    for fault in demo.Fault:
        for dropout in (0.0, 0.1):
            assert demo._next(fault, dropout).startswith("sleuth ")

"""The bisector's drop-in: torch's names, calls and commands, a session on the disk, and processes that take part."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchsleuth import torch_compat
from torchsleuth.analyse import sessions
from torchsleuth.analyse.commanding import bisect_command, run_once
from torchsleuth.analyse.parts import select
from torchsleuth.analyse.searching import Answer, Seen, Tried
from torchsleuth.analyse.sessions import Session, default_folder
from torchsleuth.analyse.taking_part import invitation
from torchsleuth.dropin.bisect import BACKENDS, BisectionResult, CompilerBisector, do_bisect, main
from torchsleuth.errors import NoSession, SessionError, SleuthError, UnknownPart

CLI = [sys.executable, "-m", "torchsleuth.dropin.bisect"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a session lies."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sleuth-bisect"


def planted(number: int = 1, total: int = 3) -> Callable[[], bool]:
    """A function that is at fault in one decomposition. It asks as torch asks."""

    def fn() -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        if asked.get_backend() in ("eager", "aot_eager"):
            return True
        applied = {
            each
            for each in range(total)
            if not asked.disable_subsystem(
                "aot_eager_decomp_partition", "decomposition", lambda each=each: f"op {each}"
            )
        }
        return number not in applied

    return fn


FOUND = BisectionResult("aot_eager_decomp_partition", "decomposition", 1, "op 1")


# ---- the same as torch's -----------------------------------------------------------------------------------------


def test_names_parts_and_fields_are_torchs() -> None:
    """Covers: U22"""
    from torch._inductor import compiler_bisector as theirs

    ours = {backend: [part.name for part in parts] for backend, parts in BACKENDS.items()}
    assert ours == {backend: [part.name for part in parts] for backend, parts in theirs.BACKENDS.items()}
    for each in (each for parts in theirs.BACKENDS.values() for each in parts):
        if isinstance(each, theirs.ConfigChange):
            part = next(part for parts in BACKENDS.values() for part in parts if part.name == each.name)
            assert (part.option, part.value) == (each.config_field, each.config_value)
    names = [field.name for field in dataclasses.fields(theirs.BisectionResult)]
    assert [field.name for field in dataclasses.fields(BisectionResult)] == names
    assert repr(BisectionResult("eager")) == repr(theirs.BisectionResult("eager"))
    accepted = list(inspect.signature(theirs.CompilerBisector.do_bisect).parameters)
    assert list(inspect.signature(CompilerBisector.do_bisect).parameters)[: len(accepted)] == accepted


def test_it_finds_what_torch_finds_and_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U22"""
    from torch._inductor.compiler_bisector import CompilerBisector as theirs

    peer = theirs.do_bisect(planted())
    capsys.readouterr()
    assert do_bisect(planted()) == CompilerBisector.do_bisect(planted(), False) == FOUND
    assert repr(peer) == repr(FOUND)
    told = capsys.readouterr().out
    assert "good  aot_eager_decomp_partition without decomposition\n" in told
    assert f"{FOUND}\n" in told
    assert "  bad   TORCH_BISECT_BACKEND=aot_eager_decomp_partition TORCH_BISECT_SUBSYSTEM=decomposition " in told
    assert do_bisect(lambda: True) is None
    assert capsys.readouterr().out.endswith("No backend fails.\n")


def test_parts_can_be_chosen() -> None:
    calls: list[str | None] = []

    def fn() -> bool:
        calls.append(CompilerBisector.get_backend())
        return True

    assert do_bisect(fn, backends=["inductor"]) is None
    assert calls == ["inductor"]
    with pytest.raises(UnknownPart):
        do_bisect(fn, subsystems=["nonesuch"])


def test_the_class_answers_what_torchs_would() -> None:
    """So a program that asks it by itself gets an answer."""
    answered: list[tuple[Any, ...]] = []

    def fn() -> bool:
        answered.append(
            (
                CompilerBisector.bisection_enabled,
                CompilerBisector.get_backend(),
                CompilerBisector.get_subsystem(),
                CompilerBisector.get_config_change("inductor"),
                CompilerBisector.disable_subsystem("inductor", "inductor_fallback_random"),
            )
        )
        return False

    do_bisect(fn, subsystems=["inductor_fallback_random"])
    assert answered == [
        (True, "inductor", None, None, False),
        (True, "inductor", "inductor_fallback_random", {"fallback_random": True}, True),
    ]
    assert not CompilerBisector.bisection_enabled
    assert CompilerBisector.get_backend() is None
    assert CompilerBisector.get_subsystem() is None
    assert CompilerBisector.get_config_change("inductor") is None
    assert not CompilerBisector.disable_subsystem("inductor", "lowerings")


def test_the_graphs_come_first_if_torch_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U23"""
    from torch._inductor.compiler_bisector import CompilerBisector as theirs

    def fn() -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        if asked.get_backend() != "inductor":
            return True
        return [asked.disable_subsystem("inductor", "pre_grad_graph") for _ in range(3)][1]

    with torch_compat.inductor_config_patch(**{"test_configs.bisect_pre_grad_graph": True}):
        assert repr(do_bisect(fn)) == repr(theirs.do_bisect(fn))
        assert do_bisect(fn) == BisectionResult("inductor", "pre_grad_graph", 1, None)
    result = do_bisect(fn)
    assert result == BisectionResult("inductor")


# ---- one step a process ------------------------------------------------------------------------------------------


def test_with_the_command_line_in_mind_each_call_is_one_step(folder: Path) -> None:
    """Covers: U22"""
    calls = 0
    fn = planted()

    def counted() -> bool:
        nonlocal calls
        calls += 1
        return fn()

    codes: list[object] = []
    result = None
    while result is None:
        try:
            result = do_bisect(counted, cli_interface=True)
        except SystemExit as leaving:
            codes.append(leaving.code)
            assert folder.is_dir()
    assert set(codes) == {0}
    assert result == FOUND
    assert calls == len(codes) + 1
    assert not folder.exists()


def test_an_exception_of_the_functions_leaves_the_session_where_it_was(folder: Path) -> None:
    with pytest.raises(SystemExit):
        do_bisect(lambda: True, cli_interface=True)
    before = (folder / "session.json").read_bytes()
    error = FileExistsError("of my own")

    def fn() -> bool:
        raise error

    with pytest.raises(FileExistsError) as caught:
        do_bisect(fn, cli_interface=True)
    assert caught.value is error
    assert (folder / "session.json").read_bytes() == before


def test_a_session_does_not_affect_a_search_within_a_process(folder: Path) -> None:
    """torch's is removed by it."""
    assert main(["start"]) == 0
    before = (folder / "session.json").read_bytes()
    assert do_bisect(planted()) == FOUND
    assert (folder / "session.json").read_bytes() == before


# ---- the command line --------------------------------------------------------------------------------------------


def torchs_trajectory(verdicts: str) -> list[tuple[str | None, str | None]]:
    """Where torch's bisector is after each verdict."""
    from torch._inductor.compiler_bisector import CompilerBisector as theirs

    theirs.delete_bisect_status()
    theirs.initialize_system()
    passed = [(theirs.get_backend(), theirs.get_subsystem())]
    try:
        for verdict in verdicts:
            try:
                theirs.do_bisect(lambda verdict=verdict: verdict == "g", cli_interface=True)
            except SystemExit:
                passed.append((theirs.get_backend(), theirs.get_subsystem()))
            else:
                break
    finally:
        theirs.delete_bisect_status()
    return passed


@pytest.mark.parametrize(
    "verdicts", ["ggggg", "b", "gb", "ggb", "ggbb", "ggbbb", "ggggb", "ggggbbbb", "gggb", "ggggbbg"]
)
def test_good_and_bad_lead_where_torchs_lead(verdicts: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U22"""
    session = Session(default_folder())
    assert main(["start"]) == 0
    passed = [(session.state.step.backend, session.state.step.subsystem)]
    for verdict in verdicts:
        if main(["good" if verdict == "g" else "bad"]) or session.find() is None:
            break
        passed.append((session.state.step.backend, session.state.step.subsystem))
    main(["end"])
    assert passed == torchs_trajectory(verdicts)


def test_a_session_ends_with_what_was_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["start", "--backend", "aot_eager", "--backend", "inductor", "--subsystem", "inductor_fallback_random"])
        == 0
    )
    for verdict in ("good", "bad", "good"):
        capsys.readouterr()
        assert main([verdict]) == 0
    told = capsys.readouterr()
    assert "BisectionResult(backend='inductor', subsystem='inductor_fallback_random', bisect_number=0" in told.out
    assert "in 3 of 3 steps nobody took part" in told.err
    assert not folder.exists()


def test_without_a_session_there_is_nothing_to_judge(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["good"], ["bad"], ["try", "true"]):
        assert main(command) == 1
        told = capsys.readouterr().err
        assert told.startswith("error: there is no session to continue\n  cause: ")
        assert "`start`" in told
        assert not folder.exists()
    assert issubclass(NoSession, ValueError)
    assert main(["end"]) == 0
    assert "no session" in capsys.readouterr().out


def test_start_begins_anew_and_end_removes_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U22"""
    main(["start"])
    main(["good"])
    main(["start"])
    state = Session(folder).state
    assert (state.step.backend, state.taken) == ("eager", 0)
    main(["end"])
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "COMMAND"),
        (["fine"], "fine"),
        (["good", "bad"], "bad"),
        (["run"], "no command"),
        (["try", "--"], "no command"),
    ],
)
def test_what_makes_no_sense_leaves_with_one_as_torchs_does(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    assert code == 1
    assert word in capsys.readouterr().err


def test_the_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U22"""
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    for backend, parts in BACKENDS.items():
        assert f"{backend}\n" in told
        assert all(part.name in told and part.what in told for part in parts)


def test_an_unknown_part_is_said_to_be_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--subsystem", "lowering"]) == 1
    assert "lowerings" in capsys.readouterr().err
    assert not folder.exists()


def test_saying_how_it_went_does_not_wait_for_torch() -> None:
    code = "import sys; from torchsleuth.dropin.bisect import main; main(['start']); main(['good']); main(['end'])"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)


# ---- the session on the disk -------------------------------------------------------------------------------------


def test_the_folder_is_in_torchs_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    assert default_folder().parent == Path(cache_dir())
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert default_folder().parent == Path(default_cache_dir())


def test_a_truncated_session_is_one_clear_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["start"])
    file = folder / "session.json"
    whole = file.read_bytes()
    for length in range(len(whole.rstrip()) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(SessionError, match="damaged") as caught:
            Session(folder).find()
        assert "`start`" in caught.value.remedy
    capsys.readouterr()
    for command in (["good"], ["try", "true"]):
        assert main(command) == 1
        assert capsys.readouterr().err.startswith(f"error: {file} is damaged\n")
    with pytest.raises(SessionError):
        do_bisect(lambda: True, cli_interface=True)
    assert main(["start"]) == 0
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"format": "torchsleuth bisection 2"},
        {"format": 1},
        {"parts": {}},
        {"parts": {"eager": ["lowerings"]}},
        {"parts": {"eager": [], "mine": ["lowerings"]}},
        {"parts": None},
        {"step": {}},
        {"step": {"phase": "backend", "backend": "mine"}},
        {"step": {"phase": "dancing", "backend": "eager"}},
        {"step": {"phase": "backend", "backend": "eager", "subsystem": "lowerings"}},
        {"step": {"phase": "without", "backend": "inductor"}},
        {"step": {"phase": "without", "backend": "inductor", "subsystem": "decomposition"}},
        {"step": {"phase": "bisecting", "backend": "inductor", "subsystem": "lowerings", "low": 3, "high": 2}},
        {"step": {"phase": "bisecting", "backend": "inductor", "subsystem": "lowerings", "low": -1, "high": 2}},
        {"taken": -1},
        {"taken": "many"},
    ],
    ids=str,
)
def test_a_session_that_makes_no_sense_is_one_clear_error(folder: Path, change: dict[str, Any]) -> None:
    main(["start"])
    file = folder / "session.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(SessionError, match="damaged"):
        Session(folder).find()
    assert main(["end"]) == 0
    assert not folder.exists()


@pytest.mark.parametrize("garbage", [b"", b"\0" * 100, b"backend=eager\nsubsystem=\n", b"[]", b"\xff\xfe{}"])
def test_garbage_in_its_place_is_one_clear_error(folder: Path, garbage: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / "session.json").write_bytes(garbage)
    with pytest.raises(SessionError, match="damaged"):
        Session(folder).find()


def test_two_processes_cannot_go_on_at_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 0.05)
    main(["start"])
    before = (folder / "session.json").read_bytes()
    with Session(folder).alone(new=True):
        capsys.readouterr()
        for command in ("good", "bad", "start"):
            assert main([command]) == 1
            assert capsys.readouterr().err.startswith("error: another process is at work in this session\n")
        with pytest.raises(SessionError, match="another process"):
            do_bisect(lambda: True, cli_interface=True)
    assert (folder / "session.json").read_bytes() == before
    assert main(["good"]) == 0


def test_a_folder_that_cannot_be_written_to_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "a file"))
    for command in ("start", "good"):
        assert main([command]) == 1
        told = capsys.readouterr().err
        assert "cannot be read or written" in told
        assert "TORCHINDUCTOR_CACHE_DIR" in told


def test_what_a_process_could_not_finish_telling_is_left_out(folder: Path) -> None:
    session = Session(folder)
    state = session.begin(select())
    session.file_of(state, 1).write_text('\n[0, null]\n[1, "a"]\n[2')
    session.file_of(state, 2).write_bytes(b'\n[0, "b"]\nnonsense\n{}\n[[], 1]\n\xff')
    tried = session.tried(False)
    assert tried == Tried(state.step, False, Seen(2, {0: "b", 1: "a"}), attended=True)


def test_counting_needs_a_process_that_takes_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["start", "--subsystem", "lowerings"])
    main(["bad"])
    main(["good"])
    before = (folder / "session.json").read_bytes()
    capsys.readouterr()
    assert main(["bad"]) == 1
    assert "nobody knows how often lowerings is applied" in capsys.readouterr().err
    assert (folder / "session.json").read_bytes() == before


# ---- processes that take part ------------------------------------------------------------------------------------

ASKING = """
import sys
from torch._inductor.compiler_bisector import CompilerBisector as asked

assert "torchsleuth" in type(asked).__module__
applied = [
    number
    for number in range(2)
    if not asked.disable_subsystem("aot_eager_decomp_partition", "decomposition", lambda: f"op {number}")
]
print(asked.get_backend(), applied, flush=True)
sys.exit(1 in applied and asked.get_backend() == "aot_eager_decomp_partition")
"""
"""A program that fails as `planted` does."""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(ASKING)
    return [sys.executable, str(tmp_path / "program.py")]


def test_a_command_is_bisected(folder: Path, program: list[str]) -> None:
    """Covers: U21, U22"""
    run = subprocess.run(
        [*CLI, "run", "--subsystem", "decomposition", *program], capture_output=True, text=True, check=True
    )
    assert [line for line in run.stdout.splitlines() if line.startswith(("good", "bad"))] == [
        "bad   aot_eager_decomp_partition",
        "good  aot_eager_decomp_partition without decomposition",
        "bad   aot_eager_decomp_partition again, to count decomposition",
        "good  aot_eager_decomp_partition, decomposition 0 to 0 only (looking in 0 to 1)",
    ]
    assert f"{FOUND}\n" in run.stdout
    assert run.stderr == ""
    assert not folder.exists()


COMPILING = """
import sys
import torch
import torch._inductor.compile_fx as home

table = home.select_decomp_table
home.select_decomp_table = lambda: {**table(), torch.ops.aten.addcmul.default: lambda self, a, b, value=1: self}

@torch.compile
def compiled(x):
    return torch.nn.functional.silu(x).addcmul(x, x)

x = torch.arange(4.0)
sys.exit(not torch.allclose(compiled(x), torch.nn.functional.silu(x) + x * x))
"""


def test_a_program_that_compiles_takes_part_in_a_session(folder: Path, tmp_path: Path) -> None:
    """Covers: U22"""
    (tmp_path / "train.py").write_text(COMPILING)
    command = [sys.executable, str(tmp_path / "train.py")]
    session = Session(folder)
    session.begin(select(subsystems=["decomposition"]))
    tried = session.tried(run_once(session, command) == 0)
    assert (tried.passed, tried.attended) == (False, True)
    session.judge(tried)
    session.judge(session.tried(passed=True))
    tried = session.tried(run_once(session, command) == 0)
    assert not tried.passed
    assert tried.seen.count > 2
    assert not isinstance(session.judge(tried), Answer)


def test_processes_that_a_process_starts_take_part(folder: Path, program: list[str]) -> None:
    session = Session(folder)
    session.begin(select(backends=["aot_eager_decomp_partition"]))
    words = [sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.call({program!r}))"]
    assert run_once(session, words) == 1
    assert session.tried(False).attended


def test_programs_that_were_not_invited_are_not_affected(folder: Path) -> None:
    """torch's session affects every program of the user's.

    Covers: U22
    """
    Session(folder).begin(select(backends=["aot_eager"]))
    code = "from torch._inductor.compiler_bisector import CompilerBisector as b; print(b.get_backend(), type(b))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "None <class 'type'>\n"


def test_a_command_in_which_nobody_takes_part_is_said_to_be_one(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Tried] = []
    assert bisect_command(["false"], select(), told.append) == BisectionResult("eager")
    assert [each.attended for each in told] == [False]
    assert main(["run", "--", "false"]) == 0
    seen = capfd.readouterr()
    assert "BisectionResult(backend='eager'" in seen.out
    assert "no process took part" in seen.err


def test_a_command_that_is_not_there_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nonesuch-of-sleuth"]) == 1
    assert "'nonesuch-of-sleuth' cannot be run" in capsys.readouterr().err


def test_try_leaves_with_the_code_of_the_command(folder: Path, program: list[str]) -> None:
    main(["start"])
    assert main(["try", "sh", "-c", "exit 7"]) == 7
    assert main(["try", "sh", "-c", "kill -9 $$"]) == 128 + 9
    assert main(["try", "sh", "-c", 'test "$TORCH_COMPILE_BACKEND" = eager']) == 0


def test_a_process_that_cannot_take_part_is_an_error(folder: Path) -> None:
    """What it would say of the program would not be true."""
    session = Session(folder)
    session.begin(select())
    losing = f"import os; os.remove({str(folder / 'session.json')!r})"
    asking = "from torch._inductor.compiler_bisector import CompilerBisector; assert CompilerBisector.do_bisect"
    with pytest.raises(SleuthError, match="could not take part") as caught:
        run_once(session, [sys.executable, "-c", f"{losing}\n{asking}"])
    assert "NoSession" in caught.value.cause


def test_a_process_begins_as_it_would_without_us(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is the usual one, and the user's own `sitecustomize` is run."""
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    code = "import sys, sitecustomize; print(sys.path, sitecustomize.__file__, 'torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    session = Session(folder)
    session.begin(select())
    for there in (None, str(tmp_path)):
        if there is not None:
            monkeypatch.setenv("PYTHONPATH", there)
        usual = subprocess.run([sys.executable, "-c", "import sys; print(sys.path)"], capture_output=True, check=True)
        with open(tmp_path / "out", "w") as out:
            subprocess.run(words, env=invitation(session, "eager"), stdout=out, check=True)
        told = (tmp_path / "out").read_text()
        assert usual.stdout.decode().replace("mine\n", "").strip() in told
        assert ("mine" in told) is (there is not None)
        assert told.endswith("False\n")

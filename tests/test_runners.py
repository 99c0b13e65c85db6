"""Runners: one protocol, four ways. What is asked, told, cancelled, closed and cleaned up.

Covers: U19
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from hostile import folder_of, processes_of, query, soon
from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import (
    Broken,
    Crashed,
    Mismatched,
    Passed,
    Raised,
    Stage,
    TimedOut,
    Unrunnable,
    from_data,
    to_data,
)
from torchsleuth.run import memory
from torchsleuth.run.printed import MOST
from torchsleuth.run.query import Query
from torchsleuth.run.runners import folders, processes, template, wire
from torchsleuth.run.runners.deadlines import LONGEST, SHORTEST, Deadlines
from torchsleuth.run.runners.fresh import Fresh
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.making import Maker
from torchsleuth.run.runners.output import Output
from torchsleuth.run.runners.slate import SIZE, Slate, Spoilt
from torchsleuth.run.runners.supervision import Ending
from torchsleuth.run.runners.warm import Warm


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Started in a folder that nobody else is in."""
    here = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("current"))
    with Warm(workers=1, deadline=60) as runner:
        try:
            assert runner.how == "fork", runner.why
        finally:
            os.chdir(here)
        yield runner


# ---- the slate ---------------------------------------------------------------------------------------------


def test_a_slate_says_where_a_worker_is_and_what_it_found() -> None:
    server = Slate()
    worker = Slate(os.dup(server.fd))
    assert server.is_blank
    assert server.answer() is None
    worker.enter(Stage.PREPARE, 3, 7)
    assert server.progress() == (Stage.PREPARE, 3, 7)
    assert server.answer() is None
    worker.write({"outcome": to_data(Passed(Stage.RUN, stdout="\ud800")), "clean": True})
    answer = server.answer()
    assert answer is not None
    assert answer["outcome"]["stdout"] == "\ud800"
    server.wipe()
    assert server.answer() is None
    worker.close()
    server.close()


@pytest.mark.parametrize("place", [0, 24, 32, 45])
def test_a_slate_that_was_written_over_is_no_answer(place: int) -> None:
    """State, length, checksum, text."""
    slate = Slate()
    slate.write({"outcome": to_data(Passed()), "clean": True})
    slate._memory[place] ^= 0x55
    with pytest.raises(Spoilt):
        slate.answer()
    slate.close()


def test_an_answer_that_is_too_long_is_cut() -> None:
    slate = Slate()
    slate.write({"outcome": to_data(Raised(message="the end", code="é" * SIZE, traceback="t" * SIZE)), "clean": True})
    answer = slate.answer()
    assert answer is not None
    assert answer["outcome"]["message"] == "the end"
    assert len(answer["outcome"]["code"]) < SIZE / 2
    assert "characters" in answer["outcome"]["traceback"]
    slate.close()


def test_an_answer_fits_whatever_is_long_in_it() -> None:
    slate = Slate()
    long = "\U0001f600" * 200_000
    notes = tuple(f"{number} {long[:1000]}" for number in range(200))
    texts = dict.fromkeys(("stdout", "stderr", "code", "message", "cause", "traceback", "op", "node"), long)
    slate.write({"outcome": to_data(Raised(Stage.RUN, notes=notes, frames=notes, **texts)), "clean": True})
    answer = slate.answer()
    assert answer is not None
    outcome = from_data(answer["outcome"])
    assert (outcome.stage, outcome.notes[0][:3]) == (Stage.RUN, "0 \U0001f600")
    assert "more" in outcome.notes[-1]
    slate.close()


def test_a_fork_of_a_worker_does_not_write_on_its_slate() -> None:
    slate = Slate()
    slate.enter(Stage.RUN)
    child = os.fork()
    if child == 0:
        slate.enter(Stage.PREPARE)
        os._exit(0)
    os.waitpid(child, 0)
    assert slate.progress()[0] is Stage.RUN
    slate.close()


# ---- parts -------------------------------------------------------------------------------------------------


def test_messages_come_whole_however_they_were_cut() -> None:
    messages = [wire.Ask(1, bytes(range(256)) * 100), wire.Cancel(1), wire.Told(2, "run", 1, 2)]
    text = b"".join(map(wire.encoded, messages))
    incoming = wire.Incoming()
    found = [message for place in range(0, len(text), 7) for message in incoming.add(text[place : place + 7])]
    assert found == messages


def test_a_channel_never_waits() -> None:
    ours, theirs = (wire.Channel(end) for end in socket.socketpair())
    big = wire.Ask(1, b"x" * 10_000_000)
    ours.send(big)
    assert ours.has_more_to_send
    found: list[wire.Message] = []
    while not found:
        found += theirs.receive()
        ours.flush()
    assert found == [big]
    ours.sock.close()
    assert theirs.receive() == []
    assert theirs.closed
    theirs.sock.close()


def test_of_much_output_the_beginning_and_the_end_are_kept() -> None:
    reading, writing = os.pipe()
    output = Output(reading)
    os.write(writing, b"first")
    for _ in range(20):
        os.write(writing, b"x" * 60_000)
        output.read()
    os.write(writing, b"last")
    os.close(writing)
    output.read()
    text = output.text()
    assert text.startswith("first")
    assert text.endswith("last")
    assert len(text) < MOST + 100
    assert output.ended
    output.forget()
    assert output.text() == ""
    output.close()


def test_deadlines() -> None:
    automatic = Deadlines()
    assert automatic.of(None) == LONGEST
    assert automatic.of(3.0) == 3.0
    for no_run in (Unrunnable(Stage.RUN), Raised(Stage.LOWERING), Crashed(Stage.RUN), Broken()):
        automatic.learn(no_run)
        assert automatic.of(None) == LONGEST
    automatic.learn(Raised(Stage.RUN, 2.0))
    automatic.learn(Passed(Stage.RUN, 50.0))
    assert automatic.of(None) == 20.0
    quick, slow = Deadlines(), Deadlines()
    quick.learn(Passed(Stage.RUN, 0.01))
    slow.learn(Mismatched(Stage.COMPARE, 500.0))
    assert (quick.of(None), slow.of(None)) == (SHORTEST, LONGEST)
    explicit = Deadlines(7.0)
    explicit.learn(Passed(Stage.COMPARE, 100.0))
    assert (explicit.of(None), explicit.of(1.0)) == (7.0, 1.0)


def test_how_much_memory_there_is() -> None:
    free = memory.available()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.grew(1, 2)
    assert not memory.grew(2, 2)
    assert not memory.grew(None, 2)


def test_where_forking_is_not_safe_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "LINUX", False)
    begin = wire.Begin("auto", 1, 1, str(tmp_path), os.getpid(), None, None)
    maker = Maker(begin)
    assert (maker.how, maker.why_not) == ("spawn", "")
    assert "Linux" in maker.why
    assert "forked" in Maker(msgspec.structs.replace(begin, start="fork")).why_not
    with Warm() as runner:
        runner._hear(wire.Started(maker.how, maker.why))
        assert "Linux" in caplog.text
        assert runner._started.result() == wire.Started(maker.how, maker.why)


@pytest.mark.parametrize(
    ("outcome", "is_believed"),
    [
        (Passed(), True),
        (Raised(), True),
        (Unrunnable(), True),
        (Crashed(signal=11), False),
        (TimedOut(), False),
        (Mismatched(), False),
        (Broken(), False),
    ],
)
def test_what_an_earlier_query_may_have_caused_is_asked_again(outcome: Any, is_believed: bool) -> None:
    ask = wire.Ask(1, b"")
    assert Ending(ask, outcome, True, earlier=0).is_believed
    assert Ending(ask, outcome, True, earlier=1).is_believed is is_believed


def test_whole_headers_and_probes_are_lent_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    variables = folders.make(first)
    cache = Path(variables["TORCHINDUCTOR_CACHE_DIR"])
    headers = folders.headers_in(first)
    (headers / "a.h").write_text("text")
    (headers / "a.h.gch").write_text("compiled")
    (headers / "half.h").write_text("text")
    (cache / "xx").mkdir()
    for name in ("probe.cpp", "probe.so", "probe.so.loads-1", "kernel.main.cpp", "kernel.main.so", "half.cpp"):
        (cache / "xx" / name).write_text(name)
    (Path(variables["TMPDIR"]) / "rubbish").write_text("")
    folders.empty(first)
    assert sorted(path.name for path in cache.rglob("*")) == ["probe.cpp", "probe.so", "probe.so.loads-1", "xx"]
    folders.give_back(first)
    folders.remove(first)
    folders.make(second)
    lent = {str(path.relative_to(second)) for path in Path(second).rglob("*") if path.is_file()}
    assert {Path(path).name for path in lent} == {"a.h", "a.h.gch", "probe.cpp", "probe.so", "probe.so.loads-1"}
    assert (folders.headers_in(second) / "a.h.gch").read_text() == "compiled"


# ---- here --------------------------------------------------------------------------------------------------


def test_in_process_everything_is_as_before() -> None:
    before = (torch.get_default_dtype(), os.getcwd(), dict(os.environ), random.getstate(), torch.get_rng_state())
    with InProcess() as runner:
        told: list[Stage] = []
        assert isinstance(runner.run(query("mess", accuracy=False), lambda stage, *_: told.append(stage)), Passed)
        assert told[0] is Stage.PREPARE
        assert isinstance(runner.submit(query("tidy", accuracy=False)).result(), Passed)
        assert isinstance(runner.run(query("raise_unpicklable", accuracy=False)), Raised)
    after = (torch.get_default_dtype(), os.getcwd(), dict(os.environ), random.getstate(), torch.get_rng_state())
    assert before[:4] == after[:4]
    assert torch.equal(before[4], after[4])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---- new interpreters --------------------------------------------------------------------------------------


def _with_variables(asked: Query, **variables: str) -> Query:
    state = schema.State(environment=tuple(variables.items()))
    return msgspec.structs.replace(asked, case=msgspec.structs.replace(asked.case, state=state))


@pytest.mark.inductor
def test_fresh_is_a_new_interpreter_each_time(warm: Warm) -> None:
    """Another runner beside it is none of its business."""
    with Fresh(workers=2, deadline=120) as runner:
        told: list[tuple[Stage, int, int]] = []
        elsewhere = warm.submit(query("whoami", accuracy=False))
        other = runner.submit(_with_variables(query("capability", accuracy=False), ATEN_CPU_CAPABILITY="default"))
        outcome = runner.run(query("whoami", accuracy=False), lambda *how: told.append(how))
        assert isinstance(outcome, Passed), outcome
        pids = {int(one.stdout.split()[0]) for one in (outcome, other.result(), elsewhere.result())}
        assert len(pids) == 3
        assert other.result().stdout.split()[1] == "DEFAULT"  # torch looks at the variable once, while it is imported
        assert {stage for stage, _, _ in told} <= {Stage.PREPARE, Stage.COMPILE, Stage.RUN}
        assert told
        folder = folder_of(runner)
        assert soon(lambda: os.listdir(folder) == [])
    assert not os.path.exists(folder)


def test_where_nothing_is_forked_workers_are_interpreters_that_stay() -> None:
    """And when the server is killed, it is started anew, and asked again."""
    with Warm(workers=1, start="spawn", deadline=60) as runner:
        assert (runner.how, runner.why) == ("spawn", "")
        first = runner.run(query("whoami", accuracy=False))
        again = runner.run(query("whoami", accuracy=False))
        assert first.stdout == again.stdout != ""
        left = processes_of(runner)
        assert len(left) == 2
        server = runner.server_pid
        assert server is not None
        owed = runner.submit(query("hanging_child", accuracy=False, deadline=3))
        assert soon(lambda: len(processes_of(runner)) == 3)
        left = processes_of(runner)
        folder = folder_of(runner)
        os.kill(server, signal.SIGKILL)
        outcome = owed.result(timeout=120)
        assert isinstance(outcome, TimedOut)
        assert runner.server_pid not in (None, server)
        assert not [pid for pid in left if os.path.exists(f"/proc/{pid}")]
        assert not os.path.exists(folder)


# ---- forked workers ----------------------------------------------------------------------------------------


def worker_of(runner: Warm) -> int:
    """The process that answers, if there is one worker."""
    outcome = runner.run(query("whoami", accuracy=False))
    assert isinstance(outcome, Passed), outcome
    return int(outcome.stdout.split()[0])


@pytest.mark.inductor
def test_a_worker_answers_many_queries_and_those_who_want_to_be_alone_are(warm: Warm) -> None:
    pid = worker_of(warm)
    assert worker_of(warm) == pid
    alone = warm.run(query("whoami", accuracy=False, alone=True))
    assert int(alone.stdout.split()[0]) != pid
    assert worker_of(warm) == int(alone.stdout.split()[0])


@pytest.mark.inductor
def test_for_those_who_want_to_be_alone_a_worker_is_ready_before_they_ask() -> None:
    """Forked while the one before them was answered: they do not wait for it."""
    with Warm(workers=2, deadline=60) as runner:
        assert runner.how == "fork", runner.why
        assert isinstance(runner.run(query("whoami", accuracy=False, alone=True)), Passed)
        assert soon(lambda: len(processes_of(runner)) == 4)  # with the server and the template
        there = processes_of(runner)
        assert int(runner.run(query("whoami", accuracy=False, alone=True)).stdout.split()[0]) in there


@pytest.mark.inductor
def test_a_worker_has_the_usual_threads_and_a_folder_of_its_own(warm: Warm) -> None:
    _, threads, folder = warm.run(query("whoami", accuracy=False)).stdout.split()
    assert int(threads) == torch.get_num_threads()
    assert folder.startswith(folder_of(warm))


@pytest.mark.inductor
def test_inductor_compiles_in_a_worker(warm: Warm) -> None:
    outcome = warm.run(query("inductor", nodes=3))
    assert isinstance(outcome, Passed), outcome
    assert "cpp_fused" in outcome.code


@pytest.mark.inductor
def test_after_a_mess_the_same_worker_is_tidy(warm: Warm) -> None:
    pid = worker_of(warm)
    assert isinstance(warm.run(query("mess", accuracy=False)), Passed)
    outcome = warm.run(query("tidy", accuracy=False))
    assert isinstance(outcome, Passed), outcome
    assert worker_of(warm) == pid


@pytest.mark.inductor
def test_what_was_left_running_is_ended_and_its_worker_replaced(warm: Warm) -> None:
    pid = worker_of(warm)
    count = len(processes_of(warm))
    assert isinstance(warm.run(query("fork_bomb", accuracy=False)), Passed)
    assert worker_of(warm) != pid
    assert isinstance(warm.run(query("daemon", accuracy=False)), Passed)
    assert soon(lambda: len(processes_of(warm)) == count)


@pytest.mark.inductor
def test_a_fork_that_comes_back_answers_nothing(warm: Warm) -> None:
    outcome = warm.run(query("come_back_twice", accuracy=False))
    assert isinstance(outcome, Passed), outcome
    assert outcome.seconds >= 1  # which the worker slept, and its fork did not
    assert isinstance(warm.run(query("raise_unpicklable", accuracy=False)), Raised)
    assert isinstance(warm.run(query("right", accuracy=False)), Passed)


@pytest.mark.inductor
def test_exceptions_that_are_not_meant_to_be_caught(warm: Warm) -> None:
    pid = worker_of(warm)
    for name, kind in (("raise_outlandish", "hostile.Outlandish"), ("raise_interrupt", "builtins.KeyboardInterrupt")):
        outcome = warm.run(query(name, accuracy=False))
        assert isinstance(outcome, Raised), outcome
        assert (outcome.type_chain[0], outcome.stage) == (kind, Stage.RUN)
    assert worker_of(warm) == pid


@pytest.mark.inductor
def test_the_current_folder_is_removed(warm: Warm) -> None:
    """The query has its answer, and the next worker has a folder to be in."""
    pid = worker_of(warm)
    outcome = warm.run(query("remove_folder", accuracy=False))
    assert isinstance(outcome, Passed), outcome
    outcome = warm.run(query("tidy", accuracy=False))
    assert isinstance(outcome, Passed), outcome
    assert worker_of(warm) != pid


@pytest.mark.inductor
def test_a_worker_that_is_killed_while_it_waits_is_replaced(warm: Warm) -> None:
    pid = worker_of(warm)
    os.kill(pid, signal.SIGKILL)
    assert worker_of(warm) != pid


@pytest.mark.inductor
def test_a_query_that_nobody_waits_for_is_stopped(warm: Warm) -> None:
    pid = worker_of(warm)
    future = warm.submit(query("sleep", accuracy=False))
    assert soon(lambda: future.cancel() if _is_asleep(pid) else False)
    assert worker_of(warm) != pid

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm.run(query("sleep", accuracy=False), interrupted)
    assert isinstance(warm.run(query("right")), Passed)


def _is_asleep(pid: int) -> bool:
    return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text() or "hrtimer" in Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.inductor
def test_garbage_from_a_worker_is_our_fault(warm: Warm) -> None:
    outcome = warm.run(query("scribble", accuracy=False))
    assert isinstance(outcome, Broken)
    assert "spoilt" in outcome.reason
    assert isinstance(warm.run(query("right")), Passed)


@pytest.mark.inductor
def test_what_was_said_before_a_crash(warm: Warm) -> None:
    outcome = warm.run(query("speak_and_die", accuracy=False))
    assert isinstance(outcome, Crashed)
    assert outcome.stdout == "the last words\n"


def test_a_server_that_does_not_live_is_our_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mortal = tmp_path / "python"
    mortal.write_text("#!/bin/sh\necho its last words >&2\nexit 1\n")
    mortal.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(mortal))
    with Warm() as runner:
        outcome = runner.submit(query("right")).result(timeout=60)
        assert isinstance(outcome, Broken)
        assert "its last words" in outcome.reason
        assert capfd.readouterr().err == ""
        folder = folder_of(runner) if runner._link is not None else "/nowhere"
    assert not os.path.exists(folder)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Warm() as runner, pytest.raises(SleuthError, match="cannot be started"):
        runner.submit(query("right"))


@pytest.mark.inductor
def test_several_threads_and_big_queries(warm: Warm) -> None:
    big = query("right", accuracy=False)
    noted = msgspec.structs.replace(big.case.graph.nodes[0], meta=schema.Meta(stack_trace="x" * 10**7))
    graph = msgspec.structs.replace(big.case.graph, nodes=(noted, *big.case.graph.nodes[1:]))
    big = msgspec.structs.replace(big, case=msgspec.structs.replace(big.case, graph=graph))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(warm.run, [big, *(query("right", float(number)) for number in range(7))]))
    assert [type(answer) for answer in answers] == [Passed] * 8


@pytest.mark.inductor
def test_a_fork_of_the_program_cannot_use_it(warm: Warm) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            warm.close()
            warm.submit(query("right"))
        except SleuthError as error:
            os.write(writing, error.cause.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert b"fork" in os.read(reading, 1000)
    os.close(reading)
    assert isinstance(warm.run(query("right")), Passed)


@pytest.mark.inductor
def test_closing_while_queries_are_answered(warm: Warm) -> None:
    """The last one: the runner is closed."""
    running, waiting = (warm.submit(query("sleep", accuracy=False)) for _ in range(2))
    folder, server = folder_of(warm), warm.server_pid
    left = processes_of(warm)
    threading.Timer(0.3, warm.close).start()
    assert isinstance(running.result(30), Broken)
    assert "closed" in waiting.result(30).describe()
    assert soon(lambda: not [pid for pid in (*left, server) if os.path.exists(f"/proc/{pid}")])
    assert not os.path.exists(folder)
    warm.close()
    with pytest.raises(SleuthError, match="closed"):
        warm.submit(query("right"))


def test_all_children_and_their_children_are_found() -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pause()
        signal.pause()
    assert soon(lambda: len(processes.descendants(child)) == 1)
    (grandchild,) = processes.descendants(child)
    assert child in processes.children(os.getpid())
    assert processes.resident(grandchild) > 0
    processes.kill_all_of(child)
    os.waitpid(child, 0)
    assert soon(lambda: not os.path.exists(f"/proc/{grandchild}") or processes.resident(grandchild) == 0)


WARMING = """
import os
from torchsleuth.run.runners import template
print([template.warm_up(compile) for compile in (template._compile_graph, template._compile_program)], flush=True)
os._exit(0)  # as a template ends
"""


@pytest.mark.inductor
def test_nothing_goes_wrong_while_a_template_warms_up(tmp_path: Path) -> None:
    """What fails there is only printed, since the queries will say it: nobody else would notice."""
    environ = {**os.environ, **template.VARIABLES, **folders.make(str(tmp_path))}
    said = subprocess.run([sys.executable, "-c", WARMING], env=environ, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["['', '']"]
    assert "Traceback" not in said.stderr


@pytest.mark.inductor
def test_a_probe_that_was_loaded_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what did load is noted, and a note is good for the machine as it was started."""
    tried: list[str] = []

    def probe(_feature: Any, library: str) -> bool:
        tried.append(library)
        return library.endswith("good.so")

    feature: Any = torch_compat.names.resolve("processor_feature")
    monkeypatch.setattr(feature, "_probe_load", probe)
    torch_compat.processor_probe(".loads-")
    good, bad = str(tmp_path / "good.so"), str(tmp_path / "bad.so")
    assert [feature()._probe_load(one) for one in (good, good, bad, bad)] == [True, True, False, False]
    assert tried == [good, bad, bad]
    (note,) = tmp_path.iterdir()
    assert note.name.startswith("good.so.loads-")
    note.rename(tmp_path / "good.so.loads-of-another-start")
    assert feature()._probe_load(good)
    assert tried.count(good) == 2

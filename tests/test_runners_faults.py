"""What goes wrong around runners: no room, no server, no sense. Somebody who waits always gets an answer.

Covers: U19
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostile import query, soon
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Broken, Outcome, Passed, Raised, Stage, from_data, to_data
from torchsleuth.run import performing
from torchsleuth.run.query import to_bytes
from torchsleuth.run.runners import client, folders, wire
from torchsleuth.run.runners.files import Files
from torchsleuth.run.runners.known import Known
from torchsleuth.run.runners.making import Maker
from torchsleuth.run.runners.server import Server, _Waiting
from torchsleuth.run.runners.slate import Slate
from torchsleuth.run.runners.starting import start
from torchsleuth.run.runners.supervision import Worker
from torchsleuth.run.runners.warm import Warm
from torchsleuth.run.runners.worker import Answering


def no_room(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"queries": 0}, {"deadline": 0.0}, {"deadline": float("nan")}, {"memory": -1}, {"start": "magic"}],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(SleuthError, match=next(iter(options))):
        Warm(**options)


def test_how_a_closed_runner_makes_workers() -> None:
    runner = Warm()
    runner.close()
    with pytest.raises(SleuthError, match="closed"):
        _ = runner.how


# ---- no server ---------------------------------------------------------------------------------------------


def test_a_server_dies_and_there_is_no_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with Warm(start="spawn") as runner:
        owed = runner.submit(query("sleep", accuracy=False))
        assert runner.how == "spawn"
        monkeypatch.setattr("tempfile.mkdtemp", no_room)
        before = opened()
        assert runner.server_pid is not None
        os.kill(runner.server_pid, signal.SIGKILL)
        outcome = owed.result(timeout=30)
        assert isinstance(outcome, Broken)
        assert "No space left on device" in outcome.reason
        assert opened() <= before


def test_a_server_to_which_nobody_can_listen_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []

    def remembered(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        made.append(start(*given, **options))
        return made[0]

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("torchsleuth.run.runners.link.start", remembered)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    before = opened()
    with Warm(start="spawn") as runner, pytest.raises(SleuthError) as raised:
        runner.submit(query("right"))
    assert "new thread" in raised.value.cause
    assert made[0].returncode is not None
    assert opened() == before


class FakeLink:
    """A server that answers when the test says so."""

    made: list[FakeLink]
    process: Any = None
    has_spoken = True
    last_words = "killed"

    def __init__(self, *_: Any) -> None:
        self.made.append(self)
        self.asked: list[int] = []

    def send(self, message: wire.Message) -> None:
        if isinstance(message, wire.Ask):
            self.asked.append(message.id)

    def end(self) -> None:
        pass


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[FakeLink]:
    FakeLink.made = []
    monkeypatch.setattr(client, "Link", FakeLink)
    return FakeLink.made


def test_only_the_query_that_kills_the_server_is_to_blame(links: list[FakeLink]) -> None:
    passed = to_data(Passed())
    with Warm() as runner:
        futures = [runner.submit(query("right")) for _ in range(3)]
        runner._lost(links[0])  # type: ignore[arg-type]
        futures.append(runner.submit(query("right")))
        assert links[1].asked == [1]
        runner._hear(wire.Answered(1, passed))
        assert links[1].asked == [1, 2]
        runner._lost(links[1])  # type: ignore[arg-type]
        assert links[2].asked == [3]
        outcome = futures[1].result(0)
        assert isinstance(outcome, Broken)
        assert "killed" in outcome.reason
        runner._hear(wire.Answered(3, passed))
        assert links[2].asked == [3, 4]
        runner._hear(wire.Answered(4, passed))
        assert [type(one.result(0)) for one in futures] == [Passed, Broken, Passed, Passed]


def test_a_suspect_that_nobody_waits_for_makes_room(links: list[FakeLink]) -> None:
    with Warm() as runner:
        futures = [runner.submit(query("right")) for _ in range(3)]
        runner._lost(links[0])  # type: ignore[arg-type]
        assert futures[1].cancel()
        assert futures[0].cancel()
        assert links[1].asked == [1, 3]


def test_servers_that_cannot_do_anything_are_nobodys_fault(
    links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLink, "has_spoken", False)
    with Warm() as runner:
        futures = [runner.submit(query("right")) for _ in range(3)]
        runner._lost(links[0])  # type: ignore[arg-type]
        assert links[1].asked == [1, 2, 3]
        runner._lost(links[1])  # type: ignore[arg-type]
        assert [type(one.result(0)) for one in futures] == [Broken] * 3


# ---- the server --------------------------------------------------------------------------------------------


def begin(folder: Path, how: str = "spawn") -> wire.Begin:
    return wire.Begin(how, 1, 1, str(folder), os.getppid(), None, None)


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[tuple[Server, wire.Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Server(theirs, begin(tmp_path)), wire.Channel(ours)


def only_answer(channel: wire.Channel) -> Outcome:
    (answered,) = channel.receive()
    assert isinstance(answered, wire.Answered)
    return from_data(answered.outcome)


@pytest.mark.parametrize("where", ["folders.make", "files.dump_file", "making.start"])
def test_there_is_no_room_for_a_worker(
    answers: tuple[Server, wire.Channel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    server, channel = answers
    server._waiting.append(_Waiting(wire.Ask(1, b""), False))
    monkeypatch.setattr(f"torchsleuth.run.runners.{where}", no_room)
    before = opened()
    server._hand_out()
    outcome = only_answer(channel)
    assert isinstance(outcome, Broken)
    assert "No space left on device" in outcome.reason
    assert (opened(), os.listdir(tmp_path)) == (before, [])


@pytest.mark.parametrize("where", ["folders.make", "making.start"])
def test_there_is_no_room_for_a_template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    monkeypatch.setattr(f"torchsleuth.run.runners.{where}", no_room)
    before = opened()
    maker = Maker(begin(tmp_path, "fork"))
    assert "No space left on device" in maker.why_not
    assert (opened(), os.listdir(tmp_path)) == (before, [])


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """Somebody who has been asked. The test writes the answer."""
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    files = Files()
    files.close_worker_s()
    found = Worker(files, str(tmp_path / "worker"), process)
    found.pid = process.pid
    found.ask(wire.Ask(1, b""), 100.0, None)
    return found


@pytest.mark.parametrize("outcome", [[], "passed", None, {"outcome": []}, {"outcome": "passed", "notes": 3}])
def test_an_answer_that_is_none(worker: Worker, monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    try:
        monkeypatch.setattr(worker._files.slate, "answer", lambda: {"outcome": outcome, "clean": True})
        ending = worker.look(0.0)
        assert ending is not None
        assert isinstance(ending.outcome, Broken)
        assert "spoilt" in ending.outcome.reason
    finally:
        worker.end()


def test_what_cannot_be_dealt_with_ends_a_worker_and_not_the_server(
    answers: tuple[Server, wire.Channel], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, channel = answers
    pid = worker.pid
    server._workers.append(worker)
    server._given[worker] = _Waiting(wire.Ask(1, b""), False)
    monkeypatch.setattr(worker, "look", lambda _: {}["unexpected"])
    server._see_to(worker)
    outcome = only_answer(channel)
    assert isinstance(outcome, Broken)
    assert "unexpected" in outcome.reason
    assert (server._workers, server._given) == ([], {})
    assert soon(lambda: not os.path.exists(f"/proc/{pid}"))


# ---- a worker ----------------------------------------------------------------------------------------------


@pytest.fixture
def slate() -> Iterator[Slate]:
    found = Slate()
    yield found
    found.close()
    gc.unfreeze()  # a worker's answering has frozen what there was


@pytest.mark.parametrize(("stage", "kind"), [(Stage.RUN, Raised), (Stage.PREPARE, Broken)])
def test_an_interrupt_is_the_query_s_or_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slate: Slate, stage: Stage, kind: type[Any]
) -> None:
    def interrupted(_: Any, progress: Any) -> Outcome:
        progress(stage, 0, 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(performing, "perform", interrupted)
    answer = Answering(str(tmp_path), []).answer(to_bytes(query("right")), 0, slate)
    assert isinstance(from_data(answer["outcome"]), kind)


def test_an_answer_is_not_lost_because_its_worker_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slate: Slate
) -> None:
    monkeypatch.setattr(performing, "perform", lambda *_: Passed(Stage.RUN))
    monkeypatch.setattr(Known, "differences", no_room)
    answer = Answering(str(tmp_path), []).answer(to_bytes(query("right")), 0, slate)
    assert isinstance(from_data(answer["outcome"]), Passed)
    assert not answer["clean"]


def test_where_the_current_folder_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is started is somewhere, and what was known before is not there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    (tmp_path / "somewhere.py").write_text("import os, sys\ndef main(_): print(os.getcwd())\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(gone)
    monkeypatch.syspath_prepend("")
    known = Known()
    gone.rmdir()
    assert folders.current() is None
    assert "the current folder" in known.differences()
    with Known().kept():
        pass
    process = start("somewhere", [], [], variables={}, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == b"/\n"

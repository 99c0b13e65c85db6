"""A watched process died: which case stays, and what it says. The journal and the process are scripted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from script_samples import DYNAMO, PLAIN, placeholders
from torchsleuth.capture.deaths import Death, death_of, settle
from torchsleuth.capture.journal import InFlight, Kept, Log
from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.script.expected import deadline_of
from torchsleuth.case.stores.store import Store
from torchsleuth.outcome import Stage
from torchsleuth.run.child import Ended

PID = 4711
MAIN, OTHER = 0x7F00, 0x7F01
STACK = """Fatal Python error: Segmentation fault

Thread 0x0000000000007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x0000000000007f00 (most recent call first):
  File "/site-packages/torch/_inductor/graph.py", line 1300 in run_node
  File "train.py", line 4 in <module>
"""


class Flights:
    """A store with cases that were written ahead, and the log that tells of them."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder)
        self.flights: list[InFlight] = []
        self.kept: list[Kept] = []

    def ahead(self, *, pid: int = PID, thread: int = MAIN, doing: Any = "run", parent: str | None = None) -> InFlight:
        recording = Recording(placeholders(1), self.store.blobs)
        stage = Stage.RUN if doing == "run" else Stage.COMPILE
        failure = schema.Failure(schema.Signature("crashed", stage), message=f"died: {len(self.flights)}")
        case = recording.case([torch.ones(2)], DYNAMO, state=PLAIN, stable=True, failure=failure)
        case = msgspec.structs.replace(case, origin=msgspec.structs.replace(case.origin, parent=parent))
        entry = self.store.save(case)
        flight = InFlight(
            pid, thread, self.store.files.root, entry.id, entry.path, doing, "forward graph 0", time.time() - 12.2
        )
        self.flights.append(flight)
        return flight

    def settle(self, death: Death | None, *, alive: tuple[int, ...] = (), both: bool = False) -> list[Kept]:
        log = Log(tuple(self.kept), tuple(self.flights))
        return settle(log, PID, death, both=both, is_alive=alive.__contains__)

    def names(self) -> set[str]:
        return set(self.store.case_names())


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    return Flights(tmp_path / "store")


def failure_of(flights: Flights, kept: Kept) -> schema.Failure:
    failure = flights.store.load(kept.case).failure
    assert failure is not None
    return failure


SEGV = death_of(Ended(PID, None, signal.SIGSEGV), stack=STACK)


# ---- what it died of -------------------------------------------------------------------------------------


def test_an_orderly_end_is_no_death() -> None:
    assert death_of(Ended(PID, 0), orderly=True) is None
    assert death_of(Ended(PID, 3), orderly=True) is None


def test_each_end_has_its_kind_and_words() -> None:
    """Covers: S9"""
    seen = [
        death_of(ended)
        for ended in (
            Ended(PID, None, signal.SIGSEGV),
            Ended(PID, None, signal.SIGABRT, out_of_time=30.0),
            Ended(PID, None, signal.SIGKILL, out_of_memory=True),
            Ended(PID, None, signal.SIGKILL),
            Ended(PID, None, signal.SIGABRT, stopped_by=signal.SIGINT),
            Ended(PID, 5),
        )
    ]
    assert [(death.kind, death.words) for death in seen if death] == [
        ("crashed", "died of SIGSEGV"),
        ("timed out", "was out of time after 30 s"),
        ("out of memory", "was killed for want of memory"),
        ("crashed", "died of SIGKILL"),
        ("timed out", "was stopped with SIGINT"),
        ("crashed", "left with exit code 5, past Python's own end"),
    ]


def test_of_several_stacks_the_last_is_the_death() -> None:
    death = death_of(Ended(PID, None, signal.SIGSEGV), stack=STACK.replace("7f00", "7f0f") + STACK)
    assert death is not None
    assert death.stack == STACK
    assert death.thread == MAIN


def test_a_thread_that_is_not_pythons_is_not_known() -> None:
    stack = "Current thread 0x0000000000007f05 (most recent call first):\n  <no Python frame>\n"
    assert Death("crashed", "died of SIGSEGV", 11, stack=stack).thread is None


# ---- what becomes of the cases ---------------------------------------------------------------------------


def test_the_innermost_step_of_the_thread_that_died_is_the_case(flights: Flights) -> None:
    """Covers: S9, U28"""
    flights.ahead(doing="compile")
    inner = flights.ahead()
    (kept,) = flights.settle(SEGV)
    failure = failure_of(flights, kept)
    assert failure.signature.kind == "crashed"
    assert failure.signature.signal == signal.SIGSEGV
    assert failure.signature.stage is Stage.RUN
    assert failure.message == "the process 4711 died of SIGSEGV while it ran forward graph 0"
    assert "graph.py" in failure.traceback
    assert kept.case != inner.case
    assert kept.words == "forward graph 0, run: dies of SIGSEGV"
    assert kept.next.endswith(kept.case)
    assert flights.names() == {kept.case}
    assert (Path(kept.path) / "repro.py").read_text()


def test_while_compiling_the_stack_tells_the_stage(flights: Flights) -> None:
    """Covers: S8"""
    flights.ahead(doing="compile")
    (kept,) = flights.settle(SEGV)
    assert failure_of(flights, kept).signature.stage is Stage.LOWERING


def test_a_step_that_another_case_came_from_stays(flights: Flights) -> None:
    outer = flights.ahead(doing="compile")
    flights.ahead(parent=outer.case)
    (kept,) = flights.settle(SEGV)
    assert flights.names() == {outer.case, kept.case}


def test_the_step_around_it_stays_as_its_parent_if_both_are_watched(flights: Flights) -> None:
    flights.ahead()
    flights.ahead()
    (kept,) = flights.settle(SEGV, both=True)
    parent = flights.store.load(kept.case).origin.parent
    assert parent is not None
    assert flights.names() == {parent, kept.case}
    failure = flights.store.load(parent).failure
    assert failure is not None
    assert failure.signature.signal == signal.SIGSEGV


def test_other_threads_keep_their_cases_as_they_are(flights: Flights) -> None:
    other = flights.ahead(thread=OTHER)
    flights.ahead(thread=MAIN)
    kept = flights.settle(SEGV)
    assert [failure_of(flights, one).signature.signal for one in kept] == [None, signal.SIGSEGV]
    assert kept[0].case == other.case


def test_a_death_in_other_code_is_not_blamed_on_a_graph(flights: Flights) -> None:
    other = flights.ahead(thread=OTHER)
    (kept,) = flights.settle(SEGV)
    assert kept.case == other.case
    assert failure_of(flights, kept).signature.signal is None


def test_without_a_stack_the_last_step_is_to_blame(flights: Flights) -> None:
    flights.ahead(thread=OTHER)
    flights.ahead(thread=MAIN)
    kept = flights.settle(Death("crashed", "died of SIGKILL", signal.SIGKILL))
    assert [failure_of(flights, one).signature.signal for one in kept] == [None, signal.SIGKILL]


def test_a_timeout_says_after_how_long(flights: Flights) -> None:
    """Covers: S9"""
    flights.ahead(thread=OTHER, doing="run")
    ended = Ended(PID, None, signal.SIGABRT, out_of_time=7.5)
    (kept,) = flights.settle(death_of(ended, stack=STACK))  # the main thread got the request; the other one hangs
    failure = failure_of(flights, kept)
    assert failure.signature.kind == "timed out"
    assert failure.signature.signal is None
    assert deadline_of(failure) == 7.5


def test_whoever_was_stopped_had_been_busy_for_a_while(flights: Flights) -> None:
    """Covers: S9"""
    flights.ahead()
    (kept,) = flights.settle(death_of(Ended(PID, None, signal.SIGABRT, stopped_by=signal.SIGINT)))
    failure = failure_of(flights, kept)
    assert failure.signature.kind == "timed out"
    assert failure.message == "the process 4711 was stopped with SIGINT after 12 s in which it ran forward graph 0"
    assert deadline_of(failure) == 12


def test_threads_that_an_orderly_end_left_behind_are_no_failure(flights: Flights) -> None:
    flights.ahead()
    assert flights.settle(None) == []
    assert flights.names() == set()


def test_forked_processes_are_settled_when_they_are_dead(flights: Flights) -> None:
    dead = flights.ahead(pid=5001)
    alive = flights.ahead(pid=5002)
    (kept,) = flights.settle(None, alive=(5002,))
    assert kept.case == dead.case
    assert failure_of(flights, kept).signature.signal is None
    assert flights.names() == {dead.case, alive.case}
    assert (Path(kept.path) / "repro.py").exists()


def test_processes_are_asked_whether_they_live(flights: Flights) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        gone_pid = gone.pid
    flights.ahead(pid=gone_pid)
    flights.ahead(pid=os.getpid())
    kept = settle(Log((), tuple(flights.flights)), PID, None)
    assert [one.pid for one in kept] == [gone_pid]


def test_a_broken_store_is_a_warning(flights: Flights) -> None:
    flight = flights.ahead()
    Path(flight.path, "case.json").write_bytes(b"{}")
    with pytest.warns(UserWarning, match="could not be completed"):
        assert flights.settle(SEGV) == []


def test_a_store_that_takes_nothing_more_still_has_what_was_written_ahead(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = flights.ahead()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "save", full)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        (kept,) = flights.settle(SEGV)
    assert kept.case == flight.case
    assert any("No space left" in str(each.message) for each in told)

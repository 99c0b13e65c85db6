"""Whatever a query does, it gets its right outcome, and nobody else notices.

Covers: U19
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hostile import folder_of, processes_of, query, soon
from torchsleuth.outcome import (
    Broken,
    Crashed,
    Mismatched,
    Outcome,
    OutOfMemory,
    Passed,
    Raised,
    Stage,
    TimedOut,
)
from torchsleuth.run.printed import MOST
from torchsleuth.run.runners import processes
from torchsleuth.run.runners.server import mark
from torchsleuth.run.runners.warm import Warm

pytestmark = [
    pytest.mark.inductor,
]
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm(workers=2, deadline=60, memory=MEMORY) as runner:
        yield runner


# ---- the battery -------------------------------------------------------------------------------------------


def is_crash(number: int) -> Callable[[Outcome], bool]:
    return lambda outcome: isinstance(outcome, Crashed) and outcome.signal == number


def is_hang(function: str = "") -> Callable[[Outcome], bool]:
    return lambda outcome: isinstance(outcome, TimedOut) and function in outcome.stack


def is_raised(kind: str) -> Callable[[Outcome], bool]:
    return lambda outcome: isinstance(outcome, Raised) and outcome.type_chain[0] == kind


def is_kind(kind: type[Any]) -> Callable[[Outcome], bool]:
    return lambda outcome: isinstance(outcome, kind)


def left_with_zero(outcome: Outcome) -> bool:
    return isinstance(outcome, Crashed) and (outcome.signal, outcome.exit_code) == (0, 0)


def printed_much(outcome: Outcome) -> bool:
    ends = outcome.stdout.startswith("xxx") and outcome.stdout.endswith("the last line\n")
    return isinstance(outcome, Passed) and ends and len(outcome.stdout) < MOST + 100


def stopped_in_c_compiler(outcome: Outcome) -> bool:
    return isinstance(outcome, TimedOut) and outcome.stage is Stage.CPP_COMPILE


def too_much_memory(outcome: Outcome) -> bool:
    return isinstance(outcome, OutOfMemory) and outcome.limit_bytes == MEMORY


def broke_memory(outcome: Outcome) -> bool:
    return isinstance(outcome, Crashed) and outcome.signal in (signal.SIGABRT, signal.SIGSEGV)


SHORT = {"deadline": 2.0}
BATTERY: list[tuple[int, str, dict[str, Any], Callable[[Outcome], bool]]] = [
    (3, "segfault", {}, is_crash(signal.SIGSEGV)),
    (1, "segfault_compiling", {}, is_crash(signal.SIGSEGV)),
    (2, "abort", {}, is_crash(signal.SIGABRT)),
    (2, "kill", {}, is_crash(signal.SIGKILL)),
    (3, "leave", {}, left_with_zero),
    (2, "loop", SHORT, is_hang("in _loop")),
    (1, "loop_in_c", SHORT, is_hang("in _loop_in_c")),
    (2, "loop_with_gil", SHORT, is_hang("in _loop_in_c")),
    (2, "stop", SHORT, is_hang()),
    (1, "hanging_compiler", {"deadline": 8.0}, stopped_in_c_compiler),
    (2, "fork_bomb", {}, is_kind(Passed)),
    (2, "daemon", {}, is_kind(Passed)),
    (2, "take_memory", {}, too_much_memory),
    (2, "take_all_memory", {}, too_much_memory),
    (2, "print_much", {}, printed_much),
    (2, "corrupt_heap", {}, broke_memory),
    (2, "double_free", {}, broke_memory),
    (3, "close_files", {}, is_kind(Passed)),
    (2, "raise_unpicklable", {}, is_raised("hostile.Unpicklable")),
    (2, "raise_unprintable", {}, is_raised("hostile.Unprintable")),
    (2, "mess", {}, is_kind(Passed)),
    (3, "wrong", {"accuracy": True}, is_kind(Mismatched)),
    (6, "tidy", {}, is_kind(Passed)),
    (8, "right", {"accuracy": True}, is_kind(Passed)),
    (1, "inductor", {"accuracy": True}, is_kind(Passed)),
]


def test_sixty_hostile_queries_in_one_go(warm: Warm) -> None:
    """Each gets its outcome, the clean ones stay right, the server survives, and nothing is left."""
    assert sum(count for count, *_ in BATTERY) == 60
    assert warm.how == "fork"
    server = warm.server_pid
    folder = folder_of(warm)
    asked = [(name, options, is_right) for count, name, options, is_right in BATTERY for _ in range(count)]
    seed = random.randrange(1000)
    random.Random(seed).shuffle(asked)
    futures = [warm.submit(query(name, **{"accuracy": False, **options})) for name, options, _ in asked]
    answers = [future.result(timeout=300) for future in futures]
    wrong = [f"{name}: {answer}" for (name, _, ok), answer in zip(asked, answers, strict=True) if not ok(answer)]
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
    assert warm.server_pid == server
    # The server, its template, and at most two workers that wait.
    assert soon(lambda: len(processes_of(warm)) <= 4), processes_of(warm)
    assert len([name for name in os.listdir(folder) if name.startswith("worker-")]) <= 2


def test_what_a_crash_says(warm: Warm) -> None:
    outcome = warm.run(query("segfault", accuracy=False, alone=True))
    assert isinstance(outcome, Crashed)
    assert outcome.signal_name == "SIGSEGV"
    assert "Segmentation fault" in outcome.stack
    assert "hostile.py" in outcome.stack
    assert outcome.stage is Stage.RUN
    assert outcome.seconds > 0
    outcome = warm.run(query("segfault_compiling", accuracy=False))
    assert outcome.stage is Stage.COMPILE


def test_no_file_is_left_open_by_many_queries(warm: Warm) -> None:
    def opened() -> int:
        return len(os.listdir(f"/proc/{warm.server_pid}/fd"))

    def some() -> None:
        for name in ("right", "right", "leave"):
            futures = [warm.submit(query(name, accuracy=False)) for _ in range(4)]
            assert not [one for future in futures if isinstance(one := future.result(60), Broken)]

    some()
    before, ours = opened(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        some()
    assert soon(lambda: opened() <= before + 12)  # a worker more or less has six
    assert len(os.listdir("/proc/self/fd")) == ours


# ---- the parent is killed ----------------------------------------------------------------------------------

PARENT = """
import sys, time
from hostile import folder_of, processes_of, query, soon
from torchsleuth.run.runners.fresh import Fresh
from torchsleuth.run.runners.warm import Warm
runner = {runner}
runner.submit(query("hanging_child", accuracy=False))
print(runner._link.folder, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("runner", ["Warm()", "Fresh()"])
def test_nothing_remains_when_the_parent_is_killed(runner: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(runner=runner)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        folder = parent.stdout.readline().strip()

        def commands() -> Iterator[str]:
            for pid in processes.marked(mark(folder)):
                with contextlib.suppress(OSError):
                    yield Path(f"/proc/{pid}/comm").read_text().strip()

        assert soon(lambda: "sleep" in commands(), seconds=120)
    finally:
        parent.kill()
        parent.wait()
    assert soon(lambda: not processes.marked(mark(folder)), seconds=5)
    assert soon(lambda: not os.path.exists(folder), seconds=5)

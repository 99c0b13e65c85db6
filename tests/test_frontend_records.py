"""Execution records: a crash of the translator is written down, and replayed: the same failure, or mended."""

from __future__ import annotations

import errno
import functools
import gc
import importlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from torchsleuth import __version__, config
from torchsleuth.cli import main, records as command
from torchsleuth.errors import BadRecord

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

if sys.version_info[:2] == (3, 11):
    from torchsleuth.frontend import capture, pickling
    from torchsleuth.frontend.copying import Copies
    from torchsleuth.frontend.opcodes import Interpreter
    from torchsleuth.frontend.record_file import encode, read_record
    from torchsleuth.frontend.records import Crash, Entry
    from torchsleuth.frontend.replaying import Verdict, replay_record


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Plants a bug in the translator: the instruction of that name can't be dealt with."""

    def plant(name: str = "BINARY_SUBSCR", error: type[Exception] = KeyError, words: str = "planted") -> None:
        def broken(self: Any, frame: Any, instruction: Any) -> None:
            raise error(words)

        monkeypatch.setattr(Interpreter, name, broken)

    return plant


def first(pair: Any) -> Any:
    return pair[0] + 1


def writes_first(x: torch.Tensor, log: list[Any], *, table: dict[str, Any]) -> torch.Tensor:
    x.add_(1)
    log.append(x)
    table["n"] = table["n"] + 1 if "n" in table else 1
    return first((x, log))


def crash_of(fn: Any, folder: Path, *args: Any, **kwargs: Any) -> tuple[Any, Crash]:
    captured = capture(fn, records=str(folder))
    result = captured(*args, **kwargs)
    assert len(captured.crashes) == 1
    return result, captured.crashes[0]


def state_of(crash: Crash) -> dict[str, Any]:
    assert crash.path is not None
    return pickling.load(Path(crash.path) / "state.pt")  # type: ignore[no-any-return]


# ---- what is written ---------------------------------------------------------------------------------------


def test_a_crash_leaves_a_record_and_the_call_goes_on(
    tmp_path: Path, planted: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Covers: F8"""
    planted()
    with caplog.at_level(logging.WARNING, "torchsleuth"):
        result, crash = crash_of(writes_first, tmp_path, torch.zeros(2), [], table={})
    assert torch.equal(result, torch.full((2,), 2.0))
    assert crash.path is not None
    record, folder = read_record(crash.path)
    assert folder.parent == tmp_path
    assert folder.name.startswith("writes_first-")
    assert (record.failure.type, record.failure.message) == ("KeyError", "'planted'")
    assert record.failure.place.function == "broken"
    assert "in broken" in record.failure.traceback
    assert [line.function for line in record.stack] == ["writes_first", "first"]
    assert record.stack[-1].source == "return pair[0] + 1"
    assert crash.instruction == record.instruction == "BINARY_SUBSCR 0"
    assert crash.stack[-1].source == "return pair[0] + 1"
    assert (record.function.module, record.function.name) == (__name__, "writes_first")
    assert os.path.samefile(record.function.file, __file__)
    assert "add_" in record.graph
    assert any("args[1] is a list" in words for words in record.read)
    assert crash.path in caplog.text
    assert f"sleuth replay {crash.path}" in caplog.text


def test_the_record_has_the_arguments_as_they_were_before_the_call(
    tmp_path: Path, planted: Callable[..., None]
) -> None:
    """Covers: F8"""
    planted()
    x, log, table = torch.zeros(2), ["before"], {"a": [1]}
    _, crash = crash_of(writes_first, tmp_path, x, log, table=table)
    assert torch.equal(x, torch.ones(2))
    assert len(log) == 2
    state = state_of(crash)
    kept, kept_log = state["args"]
    assert torch.equal(kept, torch.zeros(2))
    assert kept_log == ["before"]
    assert state["kwargs"] == {"table": {"a": [1]}}
    assert state["fn"] is writes_first


def test_what_a_call_returns_has_an_article(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted()
    _, crash = crash_of(first, tmp_path, (1, 2))
    monkeypatch.undo()
    assert replay_record(crash.path, trust=True).outcome == "returns an int"


class Counting(torch.nn.Module):
    """Fails to be translated in its first call alone: it counts its calls, and in many ways."""

    calls = 0

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(size))
        self.settings = {"n": 0, "gone": True}
        self.log: list[int] = []
        self.random = random.Random(0)

    def forward(self, x: Any) -> Any:
        self.steps.add_(1)  # type: ignore[operator]
        self.settings["n"] += 1
        self.settings.pop("gone", None)
        self.log.append(self.settings["n"])
        self.last = x
        Counting.calls += 1
        self.random.random()
        return [x][0] if self.settings["n"] == 1 else x


class CountingTwice(torch.nn.Module):
    """The same, behind a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Any) -> Any:
        self.n += 1
        print("a break")
        return [x][0] if self.n == 1 else x


def test_the_record_has_the_state_of_before_the_call(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what has counted its calls would pass a replay, though nothing was mended. Covers: F8"""
    planted()
    monkeypatch.setattr(Counting, "calls", 0)
    net = Counting()
    _, crash = crash_of(net, tmp_path, torch.ones(2))
    after = net.random.getstate()
    assert (net.settings, net.log, Counting.calls) == ({"n": 1}, [1], 1), (
        "the program's own state is as the call left it"
    )
    assert torch.equal(net.last, torch.ones(2))
    assert torch.equal(net.steps, torch.ones(1))
    kept = state_of(crash)["fn"]
    assert (kept.settings, kept.log, hasattr(kept, "last")) == ({"n": 0, "gone": True}, [], False)
    assert torch.equal(kept.steps, torch.zeros(1))
    assert kept.random.getstate() != after
    assert read_record(crash.path)[0].kept == ()
    assert replay_record(crash.path, trust=True).verdict is Verdict.SAME
    monkeypatch.undo()
    mended = replay_record(crash.path, trust=True)
    assert (mended.verdict, mended.doubt) == (Verdict.PASSED, "")


def test_the_state_of_before_a_graph_break_is_kept_too(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Covers: F8"""
    planted()
    net = CountingTwice()
    _, crash = crash_of(net, tmp_path, torch.ones(2))
    assert (net.n, state_of(crash)["fn"].n) == (1, 0)
    assert replay_record(crash.path, trust=True).verdict is Verdict.SAME


def test_state_that_could_not_be_put_back_leaves_a_replay_in_doubt(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large tensor is not copied beforehand: that it was written to is known, not what was in it. Covers: F8"""
    planted()
    net = Counting(size=100_000)
    _, crash = crash_of(net, tmp_path, torch.ones(2))
    assert read_record(crash.path)[0].kept == ("Counting.steps, a tensor",)
    assert replay_record(crash.path, trust=True).doubt == "", "it fails: there is nothing to doubt"
    monkeypatch.undo()
    replayed = replay_record(crash.path, trust=True)
    assert replayed.verdict is Verdict.PASSED
    assert "does not fail from what was kept" in str(replayed)
    answer = command.replay(str(crash.path), trust=True)
    assert answer.code == 2
    assert "not that of then" in "\n".join(map(str, answer.shown))
    assert "Counting.steps, a tensor" in answer.data["replayed"]["doubt"]


def test_what_a_program_drops_is_not_kept_alive_by_the_note_of_its_state() -> None:
    class Dropped:
        pass

    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Dropped()

    net = Holding()
    alive = weakref.ref(net.child)
    entry = Entry(net, (), {})
    net.child = None  # type: ignore[assignment]
    assert alive() is None
    with entry.state_put_back() as left:
        assert len(left) == 1
    assert net.child is None


def test_state_that_cannot_be_looked_at_is_no_reason_to_have_no_record(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()

    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("torchsleuth.frontend.records.Remembered", broken)
    _, crash = crash_of(first, tmp_path, (1, 2))
    (kept,) = read_record(crash.path)[0].kept
    assert "could not be noted (MemoryError: no room)" in kept


def test_a_crash_that_is_known_is_not_written_again(
    tmp_path: Path, planted: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Covers: F8"""
    planted()
    _, crash = crash_of(first, tmp_path, (1,))
    fault = KeyError("planted")

    def again(known: tuple[Crash, ...]) -> Crash:
        try:
            raise fault
        except KeyError as error:
            return Crash.of([], error, Entry(first, ((1,),), {}), str(tmp_path), known)

    one = again(())
    assert one.path is not None
    caplog.clear()
    assert again((crash, one)).path == one.path, "the one at the same line of the program"
    assert not caplog.text
    for file in Path(one.path).iterdir():
        file.unlink()
    Path(one.path).rmdir()
    assert again((one,)).path not in (one.path, None)


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.myself = self


class Slotted:
    __slots__ = ("value",)


def test_copies_are_like_their_originals(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Strides, shared memory, gradients, objects that occur twice or hold themselves. Covers: F8"""
    planted()
    base = torch.arange(12.0).reshape(3, 4)
    view, weight = base.t()[1:], torch.ones(2, requires_grad=True)
    box, slotted = Box([base]), Slotted()
    slotted.value = view
    computed, frozen = weight * 2, frozenset([1])
    parameter = torch.nn.Parameter(torch.ones(1))

    def program(*given: Any) -> Any:
        base.mul_(0)
        box.value.append(None)
        return first([1])

    _, crash = crash_of(program, tmp_path, base, view, weight, box, slotted, computed, frozen, parameter, (box,))
    got = state_of(crash)["args"]
    assert torch.equal(got[0], torch.arange(12.0).reshape(3, 4))
    assert got[1].stride() == view.stride()
    assert got[1].untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()
    assert got[2].is_leaf
    assert got[2].requires_grad
    assert got[3].value == [got[0]]
    assert got[3].myself is got[3]
    assert got[4].value is got[1]
    assert got[5].grad_fn is not None
    assert torch.equal(got[5], computed)
    assert got[6] == frozen
    assert type(got[7]) is torch.nn.Parameter
    assert got[8][0] is got[3]


def test_what_cannot_be_copied_is_kept_and_said(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Covers: F8"""
    planted()

    def program(pair: Any, more: Any) -> Any:
        return first(pair)

    _, crash = crash_of(program, tmp_path, (1, 2), {"ones": weakref.WeakSet, "lock": [threading.Lock()]})
    assert crash.path is not None
    record, _ = read_record(crash.path)
    assert record.kept == ("args[1]['lock'][0], a lock",)
    assert record.state is None
    assert "args[1] cannot be kept" in record.why_no_state
    assert "can be read, but not replayed" in str(crash)
    assert f"sleuth show {crash.path}" in str(crash)
    with pytest.raises(BadRecord, match=r"args\[1\] cannot be kept"):
        replay_record(crash.path, trust=True)


def test_an_object_that_does_something_at_its_end_is_not_copied() -> None:
    class Closing:
        def __del__(self) -> None:
            pass

    closing = Closing()
    copies = Copies()
    assert copies.of("args[0]", [closing])[0] is closing
    (kept,) = copies.kept
    assert kept.startswith("args[0][0], a ")
    assert kept.endswith("Closing")


def test_a_crash_keeps_no_tensor_alive(tmp_path: Path, planted: Callable[..., None]) -> None:
    planted()
    x = torch.zeros(2)
    alive = weakref.ref(x)
    _, crash = crash_of(writes_first, tmp_path, x, [], table={})
    del x
    gc.collect()
    assert alive() is None
    assert crash.failure.traceback
    assert crash.error.__traceback__ is None


def test_records_go_to_the_store_unless_told_otherwise(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Covers: F8"""
    planted()
    with config.patch(store=str(tmp_path / "store")):
        captured = capture(first)
        captured((1,))
    assert Path(captured.crashes[0].path).parent == tmp_path / "store" / "frontend"


@pytest.mark.parametrize("trouble", ["a file is in its place", "the disk is full"])
def test_a_record_that_cannot_be_written_does_not_disturb_the_call(
    tmp_path: Path,
    planted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    """Covers: F8"""
    planted()
    folder = tmp_path / "records"
    if trouble == "the disk is full":

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
    else:
        folder.write_text("in the way")
    with caplog.at_level(logging.WARNING, "torchsleuth"):
        result, crash = crash_of(first, folder, (1, 2))
    assert result == 2
    assert crash.path is None
    assert crash.why_no_record
    assert "no record could be written" in caplog.text
    assert crash.why_no_record in caplog.text
    assert not folder.is_dir() or not os.listdir(folder)


def test_crashes_at_the_same_time_do_not_overwrite_each_other(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Covers: F8"""
    planted()
    captured = [capture(first, records=str(tmp_path)) for _ in range(6)]
    threads = [threading.Thread(target=each, args=((number,),)) for number, each in enumerate(captured)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [each.crashes[0].path for each in captured]
    assert sorted(paths) == sorted(str(path) for path in tmp_path.iterdir())
    assert len(set(paths)) == 6
    assert [state_of(each.crashes[0])["args"] for each in captured] == [((number,),) for number in range(6)]


def test_an_entry_that_cannot_be_copied_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Copies, "of", broken)
    entry = Entry(first, ((1,),), {})
    assert entry.args is None
    assert "no room" in entry.why_unknown


# ---- replaying -----------------------------------------------------------------------------------------------


def test_a_replay_tells_the_same_crash_from_another_and_from_a_mended_one(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()
    x = torch.zeros(2)
    _, crash = crash_of(writes_first, tmp_path, x, [], table={})
    before = sorted(tmp_path.iterdir())
    replayed = replay_record(crash.path, trust=True)
    assert replayed.verdict is Verdict.SAME
    assert replayed.crashes
    assert "fails as it did" in str(replayed)
    planted("BINARY_SUBSCR", TypeError, "another")
    replayed = replay_record(crash.path, trust=True)
    assert replayed.verdict is Verdict.OTHER
    assert "TypeError: another" in str(replayed)
    monkeypatch.undo()
    replayed = replay_record(crash.path, trust=True)
    assert replayed.verdict is Verdict.PASSED
    assert replayed.outcome == "returns a Tensor"
    assert sorted(tmp_path.iterdir()) == before, "a replay writes no records"
    assert torch.equal(x, torch.ones(2))


def test_a_replay_ends_at_the_crash(tmp_path: Path, planted: Callable[..., None]) -> None:
    """Covers: F8"""
    planted()
    went_on: list[int] = []

    def program(pair: Any) -> Any:
        result = first(pair)
        went_on.append(1)
        return result

    _, crash = crash_of(program, tmp_path, (1,))
    assert went_on == [1]
    assert replay_record(crash.path, trust=True).verdict is Verdict.SAME
    assert went_on == [1]


def by_chance(pair: Any) -> Any:
    return pair[0] if random.random() < 0.5 and torch.rand(()) < 0.5 else 0


def test_a_replay_draws_the_random_numbers_of_then(tmp_path: Path, planted: Callable[..., None]) -> None:
    planted()
    random.seed(0)
    torch.manual_seed(0)
    for _ in range(40):
        captured = capture(by_chance, records=str(tmp_path))
        captured((1,))
        if captured.crashes:
            break
    for _ in range(5):
        assert replay_record(captured.crashes[0].path, trust=True).verdict is Verdict.SAME


def test_what_the_program_raises_itself_is_no_crash(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted()

    def program(pair: Any) -> Any:
        raise ValueError(pair[0])

    captured = capture(program, records=str(tmp_path))
    with pytest.raises(ValueError, match="7"):
        captured((7,))
    monkeypatch.undo()
    replayed = replay_record(captured.crashes[0].path, trust=True)
    assert replayed.verdict is Verdict.PASSED
    assert replayed.outcome == "raises ValueError: 7"


def test_a_crash_with_symbolic_sizes_is_replayed_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F8, F10"""
    handler = Interpreter.BINARY_SUBSCR

    def broken(self: Any, frame: Any, instruction: Any) -> None:
        if self.recorder.dynamic:
            raise KeyError("planted")
        handler(self, frame, instruction)

    monkeypatch.setattr(Interpreter, "BINARY_SUBSCR", broken)
    captured = capture(first, dynamic=True, records=str(tmp_path))
    captured((torch.ones(3),))
    replayed = replay_record(captured.crashes[0].path, trust=True)
    assert (replayed.verdict, replayed.dynamic) == (Verdict.SAME, True)


def counter(start: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    count = start

    def add(pair: Any) -> Any:
        nonlocal count
        count += 1
        return add if pair is None else pair[0] * count

    return add, lambda: count


def test_functions_without_a_name_are_kept_with_what_they_close_over(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()
    add, count = counter(10)

    def program(pair: Any, *, by: Any = 2) -> Any:
        return add(pair), count(), by

    _, crash = crash_of(functools.partial(program, by=3), tmp_path, (1,))
    monkeypatch.undo()
    fn = state_of(crash)["fn"]
    assert fn((2,)) == (22, 11, 3), "both functions see one variable, as it was before the call"
    assert count() == 11
    assert add.__globals__ is fn.func.__globals__


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, pair: Any) -> Any:
        return self.linear(pair[0])


def test_modules_and_methods_are_replayed(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()
    net = Net()
    for fn in (net, net.forward):
        _, crash = crash_of(fn, tmp_path, (torch.ones(1, 2),))
        assert read_record(crash.path)[0].function.name == "Net.forward"
        assert replay_record(crash.path, trust=True).verdict is Verdict.SAME
    monkeypatch.undo()
    assert replay_record(crash.path, trust=True).verdict is Verdict.PASSED


# ---- records that are not as they should be --------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _changed(field: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "record.json"
        data = json.loads(file.read_text())
        data[field] = value
        file.write_text(json.dumps(data))

    return change


@pytest.mark.parametrize(
    ("damage", "what", "cause"),
    [
        (lambda folder: _cut(folder / "record.json"), "is damaged", "truncated"),
        (lambda folder: (folder / "record.json").write_bytes(b"\xff\x00 nonsense"), "is damaged", "malformed"),
        (lambda folder: (folder / "record.json").write_text("[]"), "is damaged", "Expected `object`"),
        (lambda folder: (folder / "record.json").unlink(), "is no execution record", "cannot be read"),
        (_changed("format", "a letter"), "is no execution record", "its format is 'a letter'"),
        (_changed("version", 99), "this version of torchsleuth", "version 99"),
        (_changed("failure", "yes"), "is damaged", "failure"),
        (_changed("surroundings", {"default_dtype": "float33"}), "is damaged", "float33"),
        (lambda folder: (folder / "state.pt").unlink(), "is not there", "state.pt"),
        (lambda folder: _cut(folder / "state.pt"), "is damaged", "not the ones that were written"),
        (_changed("state", None), "can only be read", "no arguments"),
    ],
    ids=[
        *("truncated", "garbage", "not a record", "no file", "another format", "newer", "another shape"),
        *("nonsense", "no state", "truncated state", "without state"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, planted: Callable[..., None], damage: Callable[[Path], None], what: str, cause: str
) -> None:
    """Covers: F8"""
    planted()
    _, crash = crash_of(first, tmp_path, (1,))
    damage(Path(crash.path))
    with pytest.raises(BadRecord) as raised:
        replay_record(crash.path, trust=True)
    assert what in raised.value.what
    assert cause in raised.value.cause
    assert raised.value.remedy


def test_a_state_that_cannot_be_loaded_here_is_one_clear_error(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted()
    _, crash = crash_of(writes_first, tmp_path, torch.zeros(2), [], table={})
    monkeypatch.delattr(sys.modules[__name__], "writes_first")
    with pytest.raises(BadRecord, match="cannot be loaded here") as raised:
        replay_record(crash.path, trust=True)
    assert "writes_first" in raised.value.cause


def test_nothing_of_a_record_is_loaded_without_trust(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()
    _, crash = crash_of(first, tmp_path, (1,))

    def loaded(_: Any) -> None:
        pytest.fail("it was loaded")

    monkeypatch.setattr(pickling, "load", loaded)
    monkeypatch.setattr(torch, "load", loaded)
    with pytest.raises(BadRecord, match="is not trusted"):
        replay_record(crash.path)
    answer = command.replay(crash.path, trust=False)
    assert (answer.code, answer.next) == (2, f"sleuth replay {crash.path} --trust")
    answer = command.show(crash.path, whole=True, traceback=True)
    assert (answer.code, answer.next) == (0, f"sleuth replay {crash.path} --trust")
    text = "\n".join(str(part) for part in answer.shown)
    assert "KeyError: 'planted'" in text
    assert "return pair[0] + 1" in text
    assert "instruction: BINARY_SUBSCR 0" in text


def test_a_path_that_leads_to_a_record_is_one(tmp_path: Path, planted: Callable[..., None]) -> None:
    planted()
    _, crash = crash_of(first, tmp_path, (1,))
    assert command.is_record(crash.path)
    assert command.is_record(os.path.join(crash.path, "record.json"))
    assert not any(map(command.is_record, (str(tmp_path), "3f9a", "a\0b", "x" * 5000, str(tmp_path / "record.json"))))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--times", "3"], "--times"),
        (["--compiler", "eager"], "--compiler"),
        (["--deadline", "3", "--memory", "4GiB"], "--deadline, --memory"),
    ],
)
def test_what_is_for_cases_cannot_be_asked_of_a_record(
    tmp_path: Path,
    planted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    named: str,
) -> None:
    """Covers: F8"""
    planted()
    _, crash = crash_of(first, tmp_path, (1,))
    monkeypatch.setattr(sys, "argv", ["sleuth", "replay", str(crash.path), "--trust", "--json", *options])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"] == f"{crash.path} is an execution record, and {named} cannot be asked of one"
    assert error["remedy"] == f"sleuth replay {crash.path} --trust"


def test_a_folder_with_neither_a_case_nor_a_record_is_told_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sleuth", "replay", str(tmp_path), "--store", str(tmp_path / "s"), "--json"])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"] == f"there is no case and no execution record in {tmp_path}"
    assert error["cause"] == "it has neither case.json nor record.json"


def test_a_replay_tells_what_has_changed_since(
    tmp_path: Path, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F8"""
    planted()
    module = tmp_path / "changes_since.py"
    module.write_text("def step(pair):\n    return pair[0] + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    step = importlib.import_module("changes_since").step
    _, crash = crash_of(step, tmp_path / "records", (1,))
    assert replay_record(crash.path, trust=True).changes == ()
    module.write_text("def step(pair):\n    first, _ = pair\n    return first + 1\n")
    importlib.invalidate_caches()
    importlib.reload(sys.modules["changes_since"])
    record, folder = read_record(str(crash.path))
    (folder / "record.json").write_bytes(encode(msgspec.structs.replace(record, torch="1.0", torchsleuth="0.0")))
    replayed = replay_record(crash.path, trust=True)
    assert replayed.verdict is Verdict.PASSED
    assert replayed.changes == (
        f"torchsleuth is {__version__}, it was 0.0",
        f"torch is {torch.__version__}, it was 1.0",
        "the code of step is another one",
        f"line 2 of {module} reads otherwise",
    )
    assert str(replayed).endswith(f"Since then: line 2 of {module} reads otherwise.")
    shown = "\n".join(str(part) for part in command.replay(str(folder), trust=True).shown)
    assert "note: since the record was written, the code of step is another one" in shown


# ---- in another process ----------------------------------------------------------------------------------------

PLANTED = """
from torchsleuth.frontend.opcodes import Interpreter

def broken(self, frame, instruction):
    raise ZeroDivisionError("a bug of the translator")

Interpreter.BINARY_SUBSCR = broken
"""

SCRIPT = """
import planted
import torch
from torchsleuth.frontend import capture

class Settings:
    def __init__(self, by):
        self.by = by

@capture(records="records")
def step(x, settings, log, double):
    log.append("step")
    x.mul_(settings.by)
    return double([x, x][0])

if __name__ == "__main__":
    print("the main part")
    by = 3
    log = []
    x = torch.ones(2)
    print(step(x, Settings(by), log, lambda y: y * 2 + by).tolist(), x.tolist(), log)
"""


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def test_a_record_is_replayed_in_another_process_and_passes_once_mended(tmp_path: Path) -> None:
    """Covers: F8"""
    program = tmp_path / "program"
    program.mkdir()
    (program / "planted.py").write_text(PLANTED)
    (program / "script.py").write_text(SCRIPT)
    code, out, err = run(program, sys.executable, "script.py")
    assert code == 0, err
    assert out.splitlines() == ["the main part", "[9.0, 9.0] [3.0, 3.0] ['step']"]
    assert "the translator failed" in err
    (record,) = (program / "records").iterdir()
    sleuth = [sys.executable, "-m", "torchsleuth", "replay", str(record)]

    code, out, err = run(tmp_path, *sleuth, "--trust")
    assert code == 1, err
    assert "the translator fails as it did" in out
    assert "the main part" not in out + err
    assert out.rstrip().splitlines()[-1].startswith("Next: sleuth show")

    (program / "planted.py").write_text("# mended")
    code, out, err = run(tmp_path, *sleuth, "--trust", "--json")
    assert code == 0, err
    replayed = json.loads(out)["replayed"]
    assert (replayed["verdict"], replayed["outcome"]) == ("passed", "returns a Tensor")

    (program / "script.py").unlink()
    code, out, err = run(tmp_path, *sleuth, "--trust")
    assert code == 2
    assert "cannot be loaded here" in err
    assert "script.py" in err

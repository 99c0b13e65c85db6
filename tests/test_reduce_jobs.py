"""What is known of a minification that was interrupted. Covers: U26."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from replay_samples import kept, opened
from torchsleuth.case.stores.examining import open_path
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.executors import Answer
from torchsleuth.reduce.jobs import Job, folder_of, last, name_of, started, to_resume
from torchsleuth.reduce.verdicts import Verdicts
from torchsleuth.run.oracle import Verdict


def test_what_is_going_on_is_written_down_and_so_is_its_end(tmp_path: Path) -> None:
    job = Job("abc", match="exact", deadline=3.0, memory=2**30, needs=(2, 5), workers=2)
    with started(tmp_path, job) as ledger:
        begun = last(tmp_path, "abc")
        assert begun is not None
        assert (begun.match, begun.deadline, begun.memory, begun.needs) == ("exact", 3.0, 2**30, (2, 5))
        assert (begun.pid, begun.ended, begun.is_done) == (os.getpid(), "", False)
        ledger.finish(result="def")
    over = last(tmp_path, "abc")
    assert over is not None
    assert (over.result, over.is_done, over.started) == ("def", True, begun.started)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".json", ".lock"]


def test_only_what_has_no_end_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match="nothing to resume"):
        to_resume(tmp_path, "abc")
    with started(tmp_path, Job("abc", match="any")):
        pass  # killed
    assert to_resume(tmp_path, "abc").match == "any"
    with started(tmp_path, Job("abc")) as ledger:
        ledger.finish(why="its time is over", result="def")
    assert to_resume(tmp_path, "abc").result == "def"
    with started(tmp_path, Job("abc")) as ledger:
        ledger.finish(result="def")
    with pytest.raises(SleuthError, match="nothing to resume") as caught:
        to_resume(tmp_path, "abc")
    assert "its result is def" in caught.value.cause


def test_a_file_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_bytes(b'{"case": 7}')
    assert last(tmp_path, "abc") is None
    (tmp_path / "abc.json").write_bytes(b"\0" * (2 << 20))
    assert last(tmp_path, "abc") is None


def test_the_second_at_the_same_case_is_told_who_is_at_it(tmp_path: Path) -> None:
    with started(tmp_path, Job("abc")):
        with pytest.raises(SleuthError, match="is being minified already") as caught, started(tmp_path, Job("abc")):
            pass
        assert f"process {os.getpid()}" in caught.value.cause
        with started(tmp_path, Job("another")):
            pass
    with started(tmp_path, Job("abc")):
        pass


def _hang(folder: Path, told: Any) -> None:
    with started(folder, Job("abc", deadline=7.0)) as ledger:
        ledger.work.mkdir()
        (ledger.work / "rest").touch()
        told.send("begun")
        signal.pause()


def test_one_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    """Covers: U26"""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_hang, args=(tmp_path, there))
    child.start()
    try:
        assert here.poll(60)
    finally:
        child.kill()
        child.join()
    assert to_resume(tmp_path, "abc").deadline == 7.0
    assert (tmp_path / "abc.work" / "rest").exists()
    with started(tmp_path, to_resume(tmp_path, "abc")) as ledger:
        assert not ledger.work.exists()


def test_who_asks_anew_is_not_told_what_was_answered_before_and_keeps_what_is_answered_now(tmp_path: Path) -> None:
    key, path = b"k" * 32, tmp_path / "verdicts.sqlite"
    with Verdicts.at(path) as verdicts:
        verdicts.put(key, Answer(Verdict.PASSED))
        verdicts.put(b"other", Answer(Verdict.PASSED))
        verdicts.forget()
        assert verdicts.get(key) is None
        verdicts.put(key, Answer(Verdict.SAME))
    with Verdicts.at(path) as verdicts:
        found = verdicts.get(key), verdicts.get(b"other")
    assert [one and one.verdict for one in found] == [Verdict.SAME, Verdict.PASSED]


def test_a_case_outside_of_a_store_has_the_name_that_it_would_have_there(tmp_path: Path) -> None:
    found = kept(opened(tmp_path))
    assert name_of(open_path(Path(found.path))) == name_of(found) == found.id


def test_beside_a_store_far_away_is_nothing_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of(Store.open("memory://cases")) == tmp_path / "torchsleuth" / "minify"
    assert folder_of(opened(tmp_path)) == tmp_path / "store" / "minify"

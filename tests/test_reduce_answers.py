"""Whoever answers, and where answers are kept: nothing is mixed up, nothing hangs, no table is lost.

Covers: U26
"""

from __future__ import annotations

import resource
import sqlite3
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from case_samples import small_case
from torchsleuth.case.schema import Case
from torchsleuth.outcome import Outcome
from torchsleuth.reduce import verdicts as module
from torchsleuth.reduce.executors import Answer, Oracular, Predicate
from torchsleuth.reduce.verdicts import Verdicts, key_of
from torchsleuth.run.oracle import Verdict
from torchsleuth.run.query import AtOnce, Query

SAME = Answer(Verdict.SAME)


def test_two_functions_do_not_use_each_other_s_answers() -> None:
    one, other = Predicate(lambda _: True), Predicate(lambda _: False)
    assert one.terms == one.terms
    assert key_of("content", one.terms) != key_of("content", other.terms)


def test_a_question_that_the_runner_gives_up_is_given_up() -> None:
    class Closed(AtOnce):
        def submit(self, query: Query) -> Future[Outcome]:
            future: Future[Outcome] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    def question(case: Case) -> Query:
        return Query(case, "")

    future = Oracular(Closed(), question, None).submit(small_case())
    assert future.cancelled()


# ---- tables --------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "verdicts.sqlite"
    with Verdicts.at(path) as verdicts:
        verdicts.put(b"key", SAME)
    return path


@pytest.mark.parametrize(
    "words",
    [
        "disk I/O error",
        "database or disk is full",
        "attempt to write a readonly database",
        "unable to open database file",
        "database is locked",
    ],
)
def test_a_table_stays_where_it_is_if_it_is_not_to_blame(
    table: Path, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError(words)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_connected", refused)
        with Verdicts.at(table) as verdicts:
            assert verdicts.get(b"key") is None
            verdicts.put(b"other", SAME)
            assert verdicts.get(b"other") == SAME
    assert words in caplog.text
    assert not list(table.parent.glob("*.broken-*"))
    with Verdicts.at(table) as verdicts:
        assert verdicts.get(b"key") == SAME


def test_a_file_that_holds_something_else_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    other = sqlite3.connect(path)
    with other:
        other.execute("CREATE TABLE answers (something TEXT)")
    other.close()
    with Verdicts.at(path) as verdicts:
        verdicts.put(b"key", SAME)
    with Verdicts.at(path) as verdicts:
        assert verdicts.get(b"key") == SAME
    assert len(list(tmp_path.glob("verdicts.sqlite.broken-*"))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a limit on file sizes may end the process")
def test_a_full_disk_costs_no_table(table: Path) -> None:
    before = table.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with Verdicts.at(table) as verdicts:
            verdicts.put(b"other", SAME)
            assert verdicts.get(b"other") == SAME
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(table.parent.glob("*.broken-*"))
    assert table.read_bytes() == before
    with Verdicts.at(table) as verdicts:
        assert verdicts.get(b"key") == SAME

"""What was answered once, kept for good: a table of answers by what was asked.

    with Verdicts.at(folder / "verdicts.sqlite") as verdicts:
        verdicts.get(key)               an `Answer`, or None
        verdicts.put(key, answer)

The key is a digest of all that an answer depends on (`key_of`): what is in the case, whom it was asked from, the
machine and its software. So an interrupted reduction goes on where it stopped, simply by being asked to do the same
again; two that run at once use each other's answers. Answers that our own machinery failed to give are not kept.

A file that is no table is put aside, and a table that cannot be written to is done without: it saves time, no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from torchsleuth import __version__
from torchsleuth.case.surroundings.machine import machine
from torchsleuth.reduce.executors import Answer
from torchsleuth.run.oracle import Verdict

log = logging.getLogger("torchsleuth.reduce")

_MADE: Final = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
)
_PATIENCE: Final = 30.0
"""Seconds to wait while others write."""
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Answer)


def key_of(content: str, terms: bytes) -> bytes:
    """What an answer depends on: the digest of what is in a case (`Size.digest`), and whom it was asked from."""
    digest = hashlib.sha256(content.encode())
    for part in (terms, _here()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


@cache
def _here() -> bytes:
    import torch

    return repr((str(torch.__version__), __version__, machine())).encode()


class Verdicts:
    """Answers that were given. Without a place to keep them, they are kept as long as it lives."""

    def __init__(self, table: sqlite3.Connection | None = None) -> None:
        self._table = table
        self._known: dict[bytes, Answer] = {}
        self._since = 0.0

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Iterator[Verdicts]:
        """The table in a file, which is made if it is not there."""
        table = _opened(path)
        try:
            yield cls(table)
        finally:
            if table is not None:
                table.close()

    def get(self, key: bytes) -> Answer | None:
        """The answer, if there is one."""
        if key in self._known:
            return self._known[key]
        if self._table is None:
            return None
        try:
            row = self._table.execute(
                "SELECT answer FROM answers WHERE key = ? AND at >= ?", (key, self._since)
            ).fetchone()
            answer = None if row is None else _DECODER.decode(row[0])
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            log.warning("an answer that was kept cannot be read: %s", error)
            return None
        if answer is not None:
            self._known[key] = answer
        return answer

    def put(self, key: bytes, answer: Answer) -> None:
        """Keep an answer, unless it is none."""
        if answer.verdict is Verdict.BROKEN:
            return
        self._known[key] = answer
        if self._table is None:
            return
        try:
            with self._table:
                self._table.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, _ENCODER.encode(answer), time.time())
                )
        except sqlite3.Error as error:  # a full disk, a folder that is gone
            log.warning("answers can no longer be kept (%s); interrupting would lose those that come now", error)
            with contextlib.suppress(sqlite3.Error):
                self._table.close()
            self._table = None

    def forget(self) -> None:
        """Begin anew: what was answered before is not believed. What is answered from now on is kept as ever."""
        self._known.clear()
        self._since = time.time()


def _opened(path: Path) -> sqlite3.Connection | None:
    for attempt in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _connected(path)
        except sqlite3.DatabaseError as error:
            if attempt or not _is_no_table(error):
                log.warning("answers cannot be kept in %s: %s", path, error)
                return None
            aside = path.with_name(f"{path.name}.broken-{os.getpid()}")
            log.warning("%s is no table (%s); it is put aside as %s", path, error, aside.name)
            with contextlib.suppress(OSError):
                os.replace(path, aside)
        except OSError as error:
            log.warning("answers cannot be kept in %s: %s", path, error)
            return None
    return None


_NO_TABLE: Final = ("not a database", "malformed", "no such column")


def _is_no_table(error: sqlite3.Error) -> bool:
    """Whether the file is to blame, and not the disk, its rights or others who use it."""
    return any(words in str(error) for words in _NO_TABLE)


def _connected(path: Path) -> sqlite3.Connection:
    table = sqlite3.connect(path, timeout=_PATIENCE)
    try:
        table.execute("PRAGMA journal_mode = WAL")
        table.execute("PRAGMA synchronous = NORMAL")
        table.execute(_MADE)
        table.commit()
        table.execute("SELECT key, answer, at FROM answers LIMIT 1").fetchone()
    except sqlite3.Error:
        table.close()
        raise
    return table

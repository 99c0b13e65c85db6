"""What is known of the last minification of a case: so that one that was interrupted can be gone on with.

    with started(folder_of(store), job) as ledger:      one at a time for each case
        ...
        ledger.finish(result="3f9a…")
    to_resume(folder, case)                             the terms of the one that has no end

The answers themselves are in the verdict store, by what was asked: going on is to ask the same again, under the same
terms. Those are here, in a small file beside it: `minify/<case>.json`. Nothing in such a file is ever executed: it may
have come with a store from somebody else. So the user's test and `--trust` are not taken from it; they have to be
said again, and whoever asks is told how.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from torchsleuth.case.disk import told
from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import PREFIX
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.files import LocalFiles, read_local, write_local
from torchsleuth.case.stores.locking import locked
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import BadCase, SleuthError, StoreError
from torchsleuth.run.runners import folders

_MOST: Final = 1 << 20
_DIGITS: Final = 10


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A minification: of which case, under which terms, and what became of it."""

    case: str
    """The case's id."""
    match: str = "origin"
    deadline: float | None = None
    memory: int | None = None
    needs: tuple[int, int] = (1, 1)
    workers: int | None = None
    test: tuple[str, ...] = ()
    trust: bool = False
    pid: int = 0
    started: str = ""
    """When, in ISO 8601."""
    ended: str = ""
    """When; "" if it was killed, or still runs."""
    why: str = ""
    """Why it was stopped before there was nothing left to try."""
    result: str = ""
    """The id of the smallest case."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to go on with."""
        return bool(self.ended) and not self.why


def folder_of(store: Store) -> Path:
    """Where minifying keeps what it needs between two runs: in the store, or for one far away in the user's cache."""
    if isinstance(store.files, LocalFiles):
        return store.files.folder / "minify"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "torchsleuth" / "minify"


def name_of(found: Found) -> str:
    """The id of a case; of one that is in no store, the one that it would have."""
    if found.id is not None:
        return found.id
    return reading.unseal(reading.encode(found.case)).digest.removeprefix(PREFIX)[:_DIGITS]


class Ledger:
    """The entry of a minification that is going on."""

    def __init__(self, path: Path, job: Job) -> None:
        self._path = path
        self.job = job
        self.work = path.with_suffix(".work")
        """A folder for what it needs meanwhile."""

    def write(self) -> None:
        with told("write it", self._path):
            write_local(self._path, msgspec.json.encode(self.job))

    def finish(self, *, why: str = "", result: str = "") -> None:
        """It is over. `why`: it was stopped before the end."""
        self.job = replace(self.job, ended=_now(), why=why, result=result)
        self.write()


@contextmanager
def started(folder: Path, job: Job) -> Iterator[Ledger]:
    """A minification while the block lasts. A `SleuthError` if somebody else is at the same case."""
    ledger = Ledger(_path(folder, job.case), replace(job, pid=os.getpid(), started=_now(), ended="", why="", result=""))
    with ExitStack() as stack:
        with told("use the store", folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(ledger.work.with_suffix(".lock"), alone=True, patience=0.0))
            except StoreError as error:
                raise _busy(folder, job.case) from error
        stack.callback(folders.remove, str(ledger.work))
        folders.remove(str(ledger.work))  # of one that was killed
        ledger.write()
        yield ledger


def last(folder: Path, case: str) -> Job | None:
    """The last minification of a case, if there was one. A file that makes no sense is none."""
    try:
        return msgspec.json.decode(read_local(_path(folder, case), _MOST), type=Job)
    except (FileNotFoundError, BadCase, msgspec.MsgspecError):
        return None


def to_resume(folder: Path, case: str) -> Job:
    """The last minification of a case, if it has something left to do."""
    job = last(folder, case)
    if job is None:
        raise SleuthError(
            "there is nothing to resume",
            cause=f"no minification of {case} was begun here",
            remedy="leave out --resume",
        )
    if job.is_done:
        result = f", and its result is {job.result}" if job.result else ""
        raise SleuthError(
            "there is nothing to resume",
            cause=f"the last minification of {case} came to its end at {job.ended}{result}",
            remedy="look at the result, or begin anew: --again instead of --resume",
        )
    return job


def _busy(folder: Path, case: str) -> SleuthError:
    job = last(folder, case)
    who = "by another process" if job is None else f"by process {job.pid} since {job.started}"
    return SleuthError(
        f"the case {case} is being minified already",
        cause=f"{who}; two at once would ask the same questions",
        remedy="wait for it, or stop it (Ctrl-C there) and go on here with --resume: no answer is lost",
    )


def _path(folder: Path, case: str) -> Path:
    return folder / f"{case}.json"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

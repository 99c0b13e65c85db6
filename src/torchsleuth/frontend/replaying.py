"""Replaying an execution record: does the translator still fail as it did?

    replayed = replay_record("…/frontend/step-20260102-130501-3f9a1c7e", trust=True)
    replayed.verdict                 "same", "other", or "passed": mended

The function is captured anew and called with the arguments of then, with its random numbers and modes of torch. The
first crash ends the call. That imports the user's modules and runs the user's code, and the state is a pickle: so it
is done only for those who trust the record. What the user's program itself raises is no crash.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth import __version__
from torchsleuth.case.surroundings import state as surroundings
from torchsleuth.errors import BadRecord, CaseError, SleuthError, in_words
from torchsleuth.frontend import pickling
from torchsleuth.frontend.breaks import source_lines
from torchsleuth.frontend.capturing import Captured
from torchsleuth.frontend.copying import Copies
from torchsleuth.frontend.record_file import Failure, Record, check_state, read_record
from torchsleuth.frontend.records import CrashMet, Replay, failure_of, function_of, loop_in
from torchsleuth.outcome import Word


class Verdict(Word):
    """What has become of a crash."""

    SAME = "same"
    OTHER = "other"
    PASSED = "passed"


@dataclass(frozen=True)
class Replayed:
    """What a replay has shown."""

    record: Record
    folder: Path
    verdict: Verdict
    failure: Failure | None
    """How the translator failed this time."""
    outcome: str
    """What the call did, if the translator did not fail."""
    dynamic: bool
    """Whether sizes were symbolic."""
    changes: tuple[str, ...] = ()
    """What is not as it was when the record was written: it may be why the verdict is what it is."""

    @property
    def crashes(self) -> bool:
        return self.failure is not None

    @property
    def doubt(self) -> str:
        """Why it means little that the translator does not fail. Empty, if it means that it is mended."""
        if self.verdict is not Verdict.PASSED or not self.record.kept:
            return ""
        return f"the record does not have the state of then, but what the crash left of {'; '.join(self.record.kept)}"

    def __str__(self) -> str:
        return "\n".join((self._verdict_words(), *(f"Since then: {each}." for each in self.changes)))

    def _verdict_words(self) -> str:
        then = f"{self.record.failure.type}: {self.record.failure.message}"
        if self.failure is None:
            if self.doubt:
                return f"The translator does not fail from what was kept; the call {self.outcome}. But {self.doubt}."
            return f"The translator does not fail any more; the call {self.outcome}. Then it was {then}."
        if self.verdict is Verdict.SAME:
            return f"The translator fails as it did: {then} ({self.failure.place})."
        now = f"{self.failure.type}: {self.failure.message} ({self.failure.place})"
        return f"The translator fails in another way: {now}. Then it was {then}."


def replay_record(path: str | os.PathLike[str], *, trust: bool = False) -> Replayed:
    """Makes the call of a record again. A `BadRecord` if that cannot be done, or nobody said that it is trusted."""
    record, folder = read_record(path)
    if not trust:
        raise BadRecord(
            f"the record {folder} is not trusted",
            cause="replaying it imports the modules that it names and runs code that it holds",
            remedy="if you trust whoever made it: sleuth replay --trust, or replay_record(path, trust=True)",
        )
    state = check_state(record, folder)
    found: Replayed | None = None
    with _modules_found(record):
        for dynamic in (False, True) if record.dynamic is None else (record.dynamic,):
            replayed = _replayed(record, folder, _loaded(state, folder), dynamic)
            if replayed.verdict is Verdict.SAME:
                return replayed
            if found is None or (replayed.crashes and not found.crashes):
                found = replayed
    assert found is not None
    return found


@contextlib.contextmanager
def _modules_found(record: Record) -> Iterator[None]:
    """Modules are looked for where the program has looked for them, too."""
    before = list(sys.path)
    sys.path += [each for each in record.path if each not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def _loaded(file: Path, folder: Path) -> dict[str, Any]:
    # A script that calls what it captures while it is imported writes no records.
    with Replay(strict=False).open(), torch.enable_grad():
        try:
            state = pickling.load(file)
            copies = Copies(computed_again=True)  # what lies in memory of torch.load's can't be resized
            state.update((name, copies.of(name, state[name])) for name in ("args", "kwargs"))
            return {name: state[name] for name in ("fn", "args", "kwargs", "random")}
        except SleuthError:
            raise
        except (Exception, SystemExit) as error:
            raise BadRecord(
                f"the state of the record {folder} cannot be loaded here",
                cause=in_words(error),
                remedy="see to it that the program's own modules and scripts are where they were, with the names that "
                "they had; what stands at the top level of a script is run, so its main part belongs under "
                'if __name__ == "__main__":',
            ) from error


def _replayed(record: Record, folder: Path, state: dict[str, Any], dynamic: bool) -> Replayed:
    captured = Captured(state["fn"], dynamic=dynamic)
    replay = Replay(strict=True)
    outcome, failure = "", None
    with _as_it_was(record, folder), replay.open():
        state["random"].restore()
        try:
            value = captured.run(state["args"], state["kwargs"])
            kind = type(value).__qualname__
            outcome = f"returns {'an' if kind[0] in 'aeiouAEIO' else 'a'} {kind}"
        except CrashMet:
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 - most likely it is what the program raises
            outcome = f"raises {in_words(error)}"
            failure = failure_of(error) if loop_in(error) is not None else None  # it has come through our own loop
    if replay.crashes:
        failure = replay.crashes[0].failure
    verdict = Verdict.PASSED
    if failure is not None:
        verdict = Verdict.SAME if failure.is_like(record.failure) else Verdict.OTHER
    changes = tuple(_changes(record, state["fn"]))
    return Replayed(record, folder, verdict, failure, outcome, dynamic, changes)


def _changes(record: Record, fn: Any) -> Iterator[str]:
    """What is another one than in the record: versions, the code of the function, the lines that it was at."""
    versions = (
        ("torchsleuth", record.torchsleuth, __version__),
        ("torch", record.torch, str(torch.__version__)),
        ("Python", record.python, platform.python_version()),
    )
    yield from (f"{name} is {now}, it was {then}" for name, then, now in versions if then != now)
    then, now = record.function.code, function_of(fn).code
    if then and now and then != now:
        yield f"the code of {record.function.name} is another one"
    for line in record.stack:
        linecache.checkcache(line.file)
        lines = source_lines(line.file)
        now = lines[line.line - 1].strip() if 0 < line.line <= len(lines) else ""
        if lines and line.source and now != line.source:
            yield f"line {line.line} of {line.file} reads otherwise"


@contextlib.contextmanager
def _as_it_was(record: Record, folder: Path) -> Iterator[None]:
    """Torch's modes as they were at the beginning of the call."""
    with contextlib.ExitStack() as stack:
        if record.surroundings is not None:
            try:
                stack.enter_context(surroundings.restored(record.surroundings, trust=True))
            except CaseError as error:
                raise BadRecord(
                    f"the record {folder} is damaged", cause=f"{error.what} ({error.cause})", remedy=error.remedy
                ) from error
        yield

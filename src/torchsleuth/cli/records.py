"""`sleuth replay` and `sleuth show`, where they are given an execution record of the front end instead of a case."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.text import Text

from torchsleuth.case.words.wording import clean
from torchsleuth.cli.answers import Answer, stdout_apart
from torchsleuth.errors import SleuthError

if TYPE_CHECKING:
    from torchsleuth.frontend.record_file import Record
    from torchsleuth.frontend.replaying import Replayed

_FILE: Final = "record.json"
_HOLD_CASES: Final = ("case.json", "cases")
_MOST_LINES: Final = 40
_SAID: Final = {
    "same": ("the translator fails as it did", "bold red"),
    "other": ("ANOTHER FAILURE of the translator: not the one that is recorded", "bold magenta"),
    "passed": ("the translator does not fail any more", "bold green"),
}
_DOUBTFUL: Final = (
    "the translator does not fail from the state that was kept, which is not that of then",
    "bold yellow",
)


def is_record(name: str) -> bool:
    """Whether a name leads to an execution record. (Asked for each case: the front end would import torch.)"""
    try:
        return os.path.isfile(name if os.path.basename(name) == _FILE else os.path.join(name, _FILE))
    except ValueError:  # no path at all
        return False


def refuse_options(name: str, given: Mapping[str, bool]) -> None:
    """A record is one call that our own translator fails at: most of what a case can be asked means nothing to it."""
    meant = [option for option, is_given in given.items() if is_given]
    if meant:
        raise SleuthError(
            f"{name} is an execution record, and {', '.join(meant)} cannot be asked of one",
            cause="a record is replayed once, in this process, and no compiler has a part in it",
            remedy=shlex.join(["sleuth", "replay", name, "--trust"]),
        )


def refuse_other_folders(name: str) -> None:
    """Refuses a folder that has neither a record nor cases in it."""
    if os.path.isdir(name) and not any(os.path.exists(os.path.join(name, file)) for file in _HOLD_CASES):
        raise SleuthError(
            f"there is no case and no execution record in {name}",
            cause=f"it has neither case.json nor {_FILE}",
            remedy="give the folder of a case, or the one that the log of a crash names",
        )


def replay(name: str, *, trust: bool, given: Mapping[str, bool] | None = None) -> Answer:
    """1: the translator still fails. 0: it does not. 2: it cannot be replayed here, or is not trusted; or it does not
    fail, but not from the state of then.

    `given`: options that are for cases, and whether they were given.
    """
    from torchsleuth.frontend.record_file import read_record
    from torchsleuth.frontend.replaying import replay_record

    refuse_options(name, given or {})
    record, folder = read_record(name)
    if not trust:
        words = "Replaying imports the modules that the record names, and runs code that it holds: say --trust."
        shown = [*_summary(record, folder), Text(words, "bold yellow")]
        following = shlex.join(["sleuth", "replay", str(folder), "--trust"])
        return Answer(_data(record, folder, None), shown, following, 2)
    with stdout_apart():
        replayed = replay_record(name, trust=True)
    shown = [*_summary(record, folder), Text(*(_DOUBTFUL if replayed.doubt else _SAID[replayed.verdict.value]))]
    shown += [Text(f"note: {clean(replayed.doubt)}", "yellow")] if replayed.doubt else []
    shown += [Text(f"note: since the record was written, {clean(each)}", "yellow") for each in replayed.changes]
    if replayed.failure is None:
        shown.append(Text(f"the call {clean(replayed.outcome)}"))
    elif replayed.verdict.value == "other":
        failure = replayed.failure
        shown.append(Text(clean(f"{failure.type}: {failure.message}\n  raised at {failure.place}")))
    following = (
        _again(record) if replayed.failure is None else shlex.join(["sleuth", "show", str(folder), "--traceback"])
    )
    code = 2 if replayed.doubt else int(replayed.crashes)
    return Answer(_data(record, folder, replayed), shown, following, code)


def show(name: str, *, whole: bool, traceback: bool) -> Answer:
    """One record, to read. Nothing of it is run."""
    from torchsleuth.frontend.record_file import read_record

    record, folder = read_record(name)
    shown = [*_summary(record, folder), *_details(record, whole=whole)]
    if traceback:
        shown += [Text("\nThe translator's own traceback", "bold"), Text(clean(record.failure.traceback.rstrip()))]
    following = _again(record)
    if record.state is not None:
        following = shlex.join(["sleuth", "replay", str(folder), "--trust"])
    return Answer(_data(record, folder, None), shown, following)


def _summary(record: Record, folder: Path) -> Iterator[Text]:
    failure, function = record.failure, record.function
    yield Text.assemble("Execution record ", (clean(str(folder)), "bold"))
    yield Text(clean(f"  {record.created}, torch {record.torch}, Python {record.python}"), "dim")
    place = f" ({function.file}:{function.line})" if function.file else ""
    yield Text(clean(f"  captured: {function.module}.{function.name}{place}"))
    yield Text(clean(f"  failure:  {failure.type}: {failure.message}"))
    yield Text(clean(f"            raised at {failure.place}"), "dim")


def _details(record: Record, *, whole: bool) -> Iterator[Text]:
    yield Text("\nWhat the translator was at", "bold")
    for line in record.stack:
        yield Text.assemble(clean(f"  {line}"), (clean(f"\n      {line.source}") if line.source else "", "dim"))
    if record.instruction:
        yield Text(clean(f"  instruction: {record.instruction}"))
    for title, lines in (
        ("The graph so far", record.graph.splitlines()),
        ("What it had read, and taken for granted", record.read),
        ("Not as before the call: it could not be copied or put back", record.kept),
        ("It cannot be replayed", (record.why_no_state,) if record.state is None else ()),
    ):
        if lines:
            yield Text(f"\n{title}", "bold")
            kept = lines if whole else lines[:_MOST_LINES]
            yield from (Text(clean(f"  {line}")) for line in kept)
            if len(kept) < len(lines):
                yield Text(f"  … {len(lines) - len(kept):,} more (--all)", "dim")


def _again(record: Record) -> str:
    """What to do with a function that is captured, or cannot be."""
    name = record.function.name
    if os.path.isfile(record.function.file) and all(part.isidentifier() for part in name.split(".")):
        return shlex.join(["sleuth", "breaks", f"{record.function.file}:{name}"])
    return "sleuth doctor"


def _data(record: Record, folder: Path, replayed: Replayed | None) -> dict[str, Any]:
    data = {"path": str(folder), "record": msgspec.to_builtins(record)}
    if replayed is not None:
        data["replayed"] = {
            "verdict": replayed.verdict.value,
            "crashes": replayed.crashes,
            "failure": msgspec.to_builtins(replayed.failure),
            "outcome": replayed.outcome,
            "dynamic": replayed.dynamic,
            "changes": list(replayed.changes),
            "doubt": replayed.doubt,
        }
    return data

"""`sleuth replay`: a case is compiled and run again, and what happens is held against what is recorded."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text

from torchsleuth.case.script import expected
from torchsleuth.case.signatures import Match
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.cli import progress, records
from torchsleuth.cli.answers import Answer, stdout_apart
from torchsleuth.errors import NotFound, SleuthError
from torchsleuth.outcome import Broken, Outcome, Unrunnable, Word, to_data
from torchsleuth.report.outcome import render_outcome

if TYPE_CHECKING:
    from torchsleuth.run.oracle import Verdict
    from torchsleuth.run.query import Query, Runner
    from torchsleuth.run.repeating import Rate


class Where(Word):
    """Where queries are answered."""

    FRESH = "fresh"
    WARM = "warm"
    IN_PROCESS = "in-process"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[KMGT]i?)B?", re.IGNORECASE)
_RUNNING = ("replay", "verify", "minify", "export")
_MOST_MEMORY = 2**60
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Asked:
    """What a command that runs a case was asked for."""

    name: str
    store: str | None = None
    compiler: str | None = None
    accuracy: bool | None = None
    trust: bool = False
    deadline: float | None = None
    memory: str | None = None
    with_history: bool = False
    match: str = "origin"

    def found(self) -> Found:
        if self.trust and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # where the backend of somebody's own is likely to be
        try:
            return Store.open(self.store).find(self.name)
        except NotFound:
            records.refuse_other_folders(self.name)
            raise

    def matching(self) -> Match:
        return Match.parse(self.match)

    def limit(self) -> int | None:
        return None if self.memory is None else size_of(self.memory)

    def command(self, verb: str, found: Found, *more: str) -> str:
        """Another command on the same case."""
        name = found.labels[0] if found.labels else found.id or self.name
        words = ["sleuth", verb, name, *more]
        if self.trust and verb in _RUNNING:
            words.append("--trust")
        return shlex.join(words if self.store is None else [*words, "--store", self.store])


def size_of(text: str) -> int:
    """The bytes that somebody means by `4GiB` or `512MB`."""
    found = _SIZE.fullmatch(text.strip())
    size = 0.0
    if found is not None:
        unit = found[2].lower()
        size = float(found[1]) * (1024 if unit.endswith("i") else 1000) ** _UNITS[unit[:1]]
    if not 1 <= size <= _MOST_MEMORY:
        raise SleuthError(
            f"{text!r:.40} is no amount of memory", cause="it is a number and a unit", remedy="say 4GiB, or 512MB"
        )
    return int(size)


def replay(err: Console, asked: Asked, *, runner: Where = Where.FRESH, times: int = 1, as_json: bool = False) -> Answer:
    """1: the failure is there. 0: it is not. 2: the case cannot be run here. 3: it is our own fault."""
    from torchsleuth.run.oracle import verdict_of
    from torchsleuth.run.replay import ask, history_of, question

    found, match, memory = asked.found(), asked.matching(), asked.limit()
    failure = found.case.failure
    signature = None if failure is None else failure.signature
    query = question(
        found,
        compiler=asked.compiler,
        accuracy=asked.accuracy,
        trust=asked.trust,
        deadline=asked.deadline,
        memory=memory,
        with_history=asked.with_history,
    )
    if runner is Where.IN_PROCESS and (asked.deadline is not None or memory is not None):
        raise SleuthError(
            "a run in this process cannot be stopped",
            cause="--deadline and --memory need a process of its own",
            remedy="leave them out, or leave out --runner in-process",
        )
    with make_runner(runner) as running, stdout_apart() if runner is Where.IN_PROCESS else nullcontext():
        with progress.shown(err, quiet=as_json) as told:
            outcome = ask(running, query, told)
        verdict = verdict_of(outcome, signature, match)
        rate = None
        if times > 1 and not isinstance(outcome, (Unrunnable, Broken)):
            rate = _measured(running, query, found, match, outcome, times)
    shown = [*render_outcome(outcome, found.case, _words(verdict, rate), expected=expected.in_words(failure))]
    if asked.with_history:
        shown[:0] = [Text(f"note: not at hand: {one}", "yellow") for one in history_of(found).missing]
    if rate is not None:
        shown.append(Text(rate.describe()))
    there = rate.same > 0 if rate is not None else verdict.value == "same"
    code = 3 if isinstance(outcome, Broken) else 2 if isinstance(outcome, Unrunnable) else int(there)
    return Answer(_data(outcome, verdict, rate, found), shown, _next(asked, found, outcome, code), code)


def make_runner(kind: Where) -> Runner:
    """Where the queries are answered."""
    if kind is Where.WARM:
        from torchsleuth.run.runners.warm import Warm

        return Warm(workers=1)
    if kind is Where.IN_PROCESS:
        from torchsleuth.run.runners.in_process import InProcess

        return InProcess()
    from torchsleuth.run.runners.fresh import Fresh

    return Fresh(workers=1)


def _measured(runner: Runner, query: Query, found: Found, match: Match, first: Outcome, times: int) -> Rate:
    from torchsleuth.run.repeating import Rate, add, measure

    signature = None if found.case.failure is None else found.case.failure.signature
    more = measure(runner, query, signature, times - 1, match)
    rate = add(Rate(), first, signature, match)
    return Rate((*rate.outcomes, *more.outcomes), (*rate.verdicts, *more.verdicts))


def _words(verdict: Verdict, rate: Rate | None) -> Text:
    """What is to be thought of an outcome, in a word."""
    words, style = _SAID[verdict.value]
    if rate is not None and rate.is_flaky:
        words, style = "it does not fail each time", "bold yellow"
    return Text(words, style)


_SAID = {
    "same": ("the failure is there", "bold red"),
    "other": ("ANOTHER FAILURE: not the one that is recorded", "bold magenta"),
    "passed": ("the failure is not there", "bold green"),
    "invalid": ("the case cannot be run here", "bold yellow"),
    "timeout": ("it did not end in time, and that is not the failure that is recorded", "bold magenta"),
    "broken": ("torchsleuth itself failed; please report it", "bold red"),
}


def _data(outcome: Outcome, verdict: Verdict, rate: Rate | None, found: Found) -> dict[str, Any]:
    from torchsleuth.run.observing.signatures import signature_of

    return {
        **to_data(outcome),
        "case": found.id or found.path,
        "expected": expected.in_words(found.case.failure),
        "signature": msgspec.to_builtins(signature_of(outcome)),
        "verdict": verdict.value,
        "matches": verdict.value == "same",
        "rate": None if rate is None else rate_data(rate),
    }


def rate_data(rate: Rate) -> dict[str, Any]:
    """A rate as data."""
    return {
        "runs": rate.n,
        "same": rate.same,
        "other": rate.other,
        "passed": rate.passed,
        "interval": list(rate.interval()),
        "runs_needed": rate.runs_needed(),
    }


def _next(asked: Asked, found: Found, outcome: Outcome, code: int) -> str:
    if isinstance(outcome, Broken):
        return "sleuth doctor"
    if isinstance(outcome, Unrunnable):
        if "--trust" not in outcome.reason:
            return asked.command("show", found)
        compiler = [] if asked.compiler is None else ["--compiler", asked.compiler]
        return asked.command("replay", found, *compiler, "--trust")
    return asked.command("export", found, "-o", "repro.py") if code == 1 else asked.command("verify", found)

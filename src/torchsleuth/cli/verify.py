"""`sleuth verify`: does a case reproduce its failure from a fresh process? If not, what differs?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from torchsleuth.case.stores.examining import Found
from torchsleuth.cli import progress
from torchsleuth.cli.answers import Answer
from torchsleuth.cli.replay import Asked, rate_data
from torchsleuth.outcome import Broken, Unrunnable, to_data

if TYPE_CHECKING:
    from torchsleuth.run.fidelity import Fidelity


def verify(err: Console, asked: Asked, *, repeats: int, as_json: bool = False) -> Answer:
    """0: it reproduces. 1: something differs. 2: the case cannot be run here. 3: it is our own fault."""
    from torchsleuth.report.fidelity import render_fidelity
    from torchsleuth.run import fidelity

    found = asked.found()
    with progress.shown(err, quiet=as_json) as told:
        result = fidelity.verify(
            found,
            repeats=repeats,
            trust=asked.trust,
            with_history=asked.with_history,
            deadline=asked.deadline,
            memory=asked.limit(),
            match=asked.matching(),
            progress=told,
        )
    return Answer(_data(result, found), render_fidelity(result), _next(result, asked, found), result.exit_code)


def _data(result: Fidelity, found: Found) -> dict[str, Any]:
    from torchsleuth.run.observing.signatures import signature_of

    script = result.delivery
    return {
        "case": found.id or found.path,
        "reproduces": result.reproduces,
        "words": result.describe(),
        "expected": result.expected,
        "replay": {**to_data(result.outcome), "signature": msgspec.to_builtins(signature_of(result.outcome))},
        "verdict": result.verdict.value,
        "rate": rate_data(result.rate),
        "script": None
        if script is None
        else {"reproduces": script.reproduces, "seen": script.seen, "not_run": script.not_run, "inputs": script.inputs},
        "findings": [{**dataclasses.asdict(one), "kind": one.kind.value} for one in result.findings],
        "notes": result.notes,
    }


def _next(result: Fidelity, asked: Asked, found: Found) -> str:
    """By the first finding, which is the likeliest reason."""
    outcome = result.outcome
    if isinstance(outcome, Broken):
        return "sleuth doctor"
    if isinstance(outcome, Unrunnable):
        return (
            asked.command("verify", found, "--trust") if "--trust" in outcome.reason else asked.command("show", found)
        )
    if result.reproduces:
        if found.case.failure is not None and not asked.with_history:
            return asked.command("minify", found)
        return asked.command("export", found, "-o", "repro.py")
    first = result.findings[0] if result.findings else None
    if first is None:
        return asked.command("show", found)
    if "--trust" in first.remedy:
        return asked.command("verify", found, "--trust")
    match first.kind.value:
        case "history" if first.certain:
            return asked.command("replay", found, "--with-history")
        case "nondeterminism":
            return asked.command("replay", found, "--times", str(result.rate.runs_needed() or 20))
        case "script":
            verb = "replay" if result.verdict.value == "same" else "export"
            return asked.command(verb, found)
    return asked.command("show", found)

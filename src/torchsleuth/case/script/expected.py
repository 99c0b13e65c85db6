"""What went wrong, in a script: in words at its top, as data to recognise it by, and the `main` that looks for it.

    expected: ...      what is in the case
    seen: ...          what this run did
    verdict: ...       one of `VERDICTS`; the exit code says the same

A crash cannot speak for itself: its verdict is the signal that the process dies of, or the exit code that it leaves
with before there is a verdict.
"""

from __future__ import annotations

import re
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.script.layout import Page, tidy
from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.running import ALARM, RAISED, SAY
from torchsleuth.case.script.source import items_source, text_source
from torchsleuth.case.signatures import exit_code_of
from torchsleuth.outcome import signal_name

SAME: Final = "fails as recorded"
OTHER: Final = "fails, but not as recorded"
PASSED: Final = "does not fail here"
VERDICTS: Final = {1: SAME, 2: OTHER, 0: PASSED}
"""What a script says last, by its exit code."""

DEADLINE: Final = 300.0
"""Seconds after which a run counts as hanging, where the case does not say."""


def in_words(failure: schema.Failure | None) -> str:
    """The failure in one line."""
    if failure is None:
        return "no failure is recorded"
    signature = failure.signature
    said = first_line(failure.message or signature.message)
    match signature.kind:
        case "raised" | "out of memory":
            name = signature.types[0] if signature.types else "an exception"
            words = f"raises {name.removeprefix('builtins.')}"
            return f"{words}: {said}" if said else words
        case "mismatched":
            words = f"computes something else than eager ({signature.symptom or 'value'})"
            return f"{words}: {said}" if said else words
        case "crashed":
            code = exit_code_of(signature)
            return f"dies of {signal_name(signature.signal)}" if code is None else f"ends itself with exit code {code}"
        case "timed out":
            return f"does not finish within {deadline_of(failure):g} s"


def first_line(message: str) -> str:
    """The first line that says something, without what does not print."""
    lines = (tidy(line) for line in message.splitlines())
    return next((line for line in lines if line), "")[:300]


def deadline_of(failure: schema.Failure) -> float:
    """After how many seconds the run was given up: what the message says, or a while."""
    found = re.search(r"after (\d+(?:\.\d+)?) ?s\b", failure.message)
    return float(found[1]) if found and 0 < float(found[1]) <= 86400 else DEADLINE


def write_expected(page: Page, failure: schema.Failure | None) -> None:
    """`EXPECTED`: what `main` looks for."""
    page.blank(2 if str(page).strip() else 0)
    signature = failure.signature if failure else None
    kind = signature.kind if signature else "nothing"
    fields = {"kind": text_source(kind), "words": text_source(in_words(failure))}
    if failure and signature and kind in ("raised", "out of memory"):
        fields["types"] = items_source(map(text_source, signature.types), "()")
        fields["message"] = text_source(first_line(failure.message or signature.message))
    if signature and kind == "mismatched":
        fields["symptom"] = repr(signature.symptom and str(signature.symptom)).replace("'", '"')
    if failure and kind == "timed out":
        fields["seconds"] = repr(deadline_of(failure))
    if signature and kind == "crashed":
        code = exit_code_of(signature)
        fields |= {"signal": repr(signature.signal)} if code is None else {"exit_code": repr(code)}
    with page.block("EXPECTED = {"):
        for key, value in fields.items():
            page.line(f'"{key}": {value},')
    page.line("}")


_MAIN: Final = f'''
def main():
    """Run it, and say whether it fails as recorded: 1, in another way: 2, or not at all: 0."""
    say("expected", EXPECTED["words"])
    # before
    try:
        # run
    except Exception as error:
        say("seen", f"raises {{type(error).__module__}}.{{type(error).__qualname__}}: {{first_line(error)}}")
        # recorded
        traceback.print_exc()
        return verdict(2, "{OTHER}")
    # found
    say("seen", "no failure")
    return verdict(0, "{PASSED}")


if __name__ == "__main__":
    sys.exit(main())
'''
_RUN: Final = """
        with state():
            found = attempt()
"""
_RECORDED: Final = f'''
        if as_recorded(error):
            say("verdict", "{SAME}")
            raise
'''
_FOUND: Final = f'''
    for _, words in found[:10]:
        say("seen", words)
    if found:
        return verdict(2, "{OTHER}")
'''
_MISMATCHED: Final = f'''
    for _, words in found[:10]:
        say("seen", words)
    if found and EXPECTED["symptom"] in (None, *(symptom for symptom, _ in found)):
        say("verdict", "{SAME}")
        raise AssertionError(f"compiled and eager disagree: {{found[0][1]}}")
    if found:
        return verdict(2, "{OTHER}")
'''


def write_main(page: Page, failure: schema.Failure | None, *, has_state: bool) -> list[Piece]:
    """`main` and the guard; returns the pieces that it calls."""
    kind = failure.signature.kind if failure else "nothing"
    run = _RUN if has_state else "\n        found = attempt()\n"
    parts = {"run": run, "before": "", "recorded": "", "found": ""}
    pieces = [SAY]
    match kind:
        case "raised" | "out of memory":
            pieces.append(RAISED)
            parts["recorded"] = _RECORDED
        case "mismatched":
            parts["found"] = _MISMATCHED
        case "nothing":
            parts["found"] = _FOUND
        case "timed out":
            pieces.append(ALARM)
            parts["before"] = '\n    alarm(EXPECTED["seconds"])\n'
    text = _MAIN
    for name, part in parts.items():
        text = re.sub(rf"\n +# {name}\n", lambda _, part=part: part or "\n", text)  # type: ignore[misc]
    page.blank(2)
    page.text(text)
    return pieces

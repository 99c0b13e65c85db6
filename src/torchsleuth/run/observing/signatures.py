"""The signature of an outcome: what of it tells one failure from another.

    signature_of(outcome)       None for what is no failure
    failure_of(outcome)         with all that was observed, for a case
    said(outcome)               its words, for a pattern to look at

Replaying makes its signatures here, and so does capturing, so that they can be compared. Three are made elsewhere, as
there is no outcome to make them of: of an exception that a user hands over, of an interrupt, of a process that may die.
"""

from __future__ import annotations

import re
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.normalising import normalised
from torchsleuth.case.plain import printable
from torchsleuth.case.schema import Signature
from torchsleuth.case.signatures import HEAP_CORRUPT, PLACES, exit_words
from torchsleuth.outcome import Crashed, Mismatched, Outcome, OutOfMemory, Raised, TimedOut

_LONGEST: Final = 100_000
_FIRST_NAME: Final = re.compile(r"\.?(\w+)")
_ALLOCATOR: Final = re.compile(
    r"^(?:(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): |double free or corruption|corrupted )", re.M
)
"""What the C library says when it finds its heap in disorder."""


def signature_of(outcome: Outcome) -> Signature | None:
    """What makes a failure the one that it is; None for `Passed`, `Unrunnable` and `Broken`."""
    match outcome:
        case Raised():
            return Signature(
                "raised",
                outcome.stage,
                outcome.type_chain,
                normalised(outcome.cause or outcome.message),
                op=outcome.op,
                frames=outcome.frames,
            )
        case Mismatched():
            return Signature(
                "mismatched", outcome.stage, message=_place(outcome.path), symptom=outcome.symptom, op=outcome.op
            )
        case Crashed():
            signal = outcome.signal or None
            return Signature("crashed", outcome.stage, message=_end(outcome), signal=signal, frames=outcome.frames)
        case TimedOut():
            return Signature("timed out", outcome.stage, frames=outcome.frames)
        case OutOfMemory():
            return Signature("out of memory", outcome.stage)
    return None


def failure_of(outcome: Outcome) -> schema.Failure:
    """A failing outcome as a case keeps it."""
    signature = signature_of(outcome)
    match outcome:
        case Raised() if signature is not None:
            return schema.Failure(
                signature,
                message=outcome.message,
                traceback=outcome.traceback,
                node=outcome.node,
                kernel=printable(outcome.kernel),
            )
        case Mismatched() if signature is not None:
            said = _bounded(outcome.explanation)
            return schema.Failure(signature, message=said, path=printable(outcome.path), node=outcome.node)
        case Crashed() | TimedOut() if signature is not None:
            return schema.Failure(signature, message=outcome.describe(), traceback=_bounded(outcome.stack))
        case OutOfMemory() if signature is not None:
            return schema.Failure(signature, message=_bounded(outcome.message or outcome.describe()))
    raise ValueError(f"{outcome.describe()}: that is no failure")


def said(outcome: Outcome) -> str:
    """What a pattern of the user's may look at beside the signature: the message, and the end of the traceback."""
    match outcome:
        case Raised():
            last = outcome.traceback.strip().splitlines()[-1:]
            return "\n".join((outcome.message, outcome.cause, *last))
        case Mismatched():
            return f"{outcome.describe()}\n{outcome.explanation}"
        case OutOfMemory():
            return f"{outcome.describe()}\n{outcome.message}"
    return outcome.describe()


def _place(path: str) -> str:
    """Which kind of result differs. Without a path, or with one of a result that has no parts: the output."""
    name = _FIRST_NAME.match(path)
    return PLACES.get(name[1] if name else "output", PLACES["output"])


def _end(outcome: Crashed) -> str:
    """What else is known of a process's end."""
    if not outcome.signal:
        return exit_words(outcome.exit_code)
    return HEAP_CORRUPT if _ALLOCATOR.search(outcome.stderr) else ""


def _bounded(text: str) -> str:
    return printable(text[:_LONGEST])

"""What a replay did, in a few lines: what was expected, what was seen, and whether that is the same."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torchsleuth.case import schema
from torchsleuth.case.words.listing import frame_words, frames, target_words
from torchsleuth.case.words.wording import clean, one_line
from torchsleuth.outcome import Broken, Crashed, Mismatched, Outcome, OutOfMemory, Raised, TimedOut

_LAST_OF_A_STACK = 12


def render_outcome(outcome: Outcome, case: schema.Case, verdict: Text, *, expected: str) -> Iterator[Text]:
    """The lines of one outcome. `verdict` is what is to be thought of it."""
    yield _row("expected", one_line(expected, 400))
    yield _row("seen", one_line(outcome.describe(), 400))
    for line in _details(outcome, case):
        yield _row("", line)
    for note in outcome.notes:
        yield _row("note", one_line(note, 600), "yellow")
    stack = _stack(outcome)
    if stack:
        yield Text(stack, "dim")
    yield verdict.append(f"  {outcome.seconds:.1f} s", "dim")


def _row(word: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{word:<10}", "dim"), (text, style))


def _details(outcome: Outcome, case: schema.Case) -> Iterator[str]:
    op = outcome.op if isinstance(outcome, (Raised, Mismatched)) else None
    node = outcome.node if isinstance(outcome, Raised) else None
    parts = [f"in {one_line(target_words(op))}"] if op else []
    parts += [f"node {one_line(node)}"] if node else []
    if parts:
        yield ", ".join(parts)
    frame = None if node is None else _line_of(case, node)
    if frame is not None:
        yield frame_words(frame)
    if isinstance(outcome, Mismatched) and outcome.explanation:
        yield one_line(outcome.explanation.splitlines()[0], 400)
    if isinstance(outcome, OutOfMemory) and outcome.message:
        yield one_line(outcome.message, 400)


def _line_of(case: schema.Case, name: str) -> schema.Frame | None:
    """The user's line that made a node."""
    for node in case.graph.nodes:
        if node.name == name or any(source.name == name for source in node.meta.from_node):
            return next(reversed(frames(node.meta.stack_trace)), None)
    return None


def _stack(outcome: Outcome) -> str:
    if isinstance(outcome, (Crashed, TimedOut)):
        text = outcome.stack
    elif isinstance(outcome, Broken):
        text = outcome.traceback
    else:
        return ""
    lines = clean(text).strip().splitlines()
    kept = lines[-_LAST_OF_A_STACK:] if isinstance(outcome, Broken) else lines[:_LAST_OF_A_STACK]
    return "\n".join(f"  {line}" for line in kept)

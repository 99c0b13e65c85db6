"""What minifying came to: before and after, the smallest graph as code, its inputs, what else was met, what passes.

First as data (`reduction_data`, which is what `--json` prints), then as something to look at. All text of a case goes
through `wording`: nothing in it is markup, or a command to the terminal.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchsleuth.case.schema import Case
from torchsleuth.case.script import expected
from torchsleuth.case.words import listing
from torchsleuth.case.words.wording import clean, one_line, value_words
from torchsleuth.reduce.minifying import Reduction
from torchsleuth.reduce.order import Size, outputs_of
from torchsleuth.report.case import render_code, state_rows

_MOST_INPUTS: Final = 24
_LINES_OF_A_DIFF: Final = 60
_AROUND: Final = 3
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


# ---- as data -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One thing that became less."""

    name: str
    before: int
    after: int

    def words(self, count: int) -> str:
        return listing.byte_words(count) if self.name == "data" else f"{count:,}"


def rows(reduction: Reduction) -> list[Row]:
    """What there was before and what there is now."""
    return [
        Row(name, was, now)
        for (name, was), (_, now) in zip(
            _counts(reduction.before, reduction.was), _counts(reduction.after, reduction.size), strict=True
        )
    ]


def _counts(case: Case, size: Size) -> list[tuple[str, int]]:
    return [
        ("operators", size.operators),
        ("inputs", len(case.inputs)),
        ("outputs", len(outputs_of(case.graph))),
        ("elements", size.elements),
        ("data", size.data),
        ("settings", size.settings),
    ]


def reduction_data(reduction: Reduction, *, by_test: bool = False) -> dict[str, Any]:
    """Everything, by its name."""
    spent, delivery, entry = reduction.spent, reduction.delivery, reduction.entry
    return {
        "result": None if entry is None else entry.id,
        "path": None if entry is None else entry.path,
        "script": None if reduction.script is None else str(reduction.script),
        "beside": None if delivery is None or delivery.beside is None else str(delivery.beside),
        "verified": reduction.is_verified,
        "by_test": by_test,
        "words": verified_words(reduction, by_test=by_test),
        "failure": None if by_test else expected.in_words(reduction.after.failure),
        "minimal": not reduction.why and not reduction.slow,
        "stopped": reduction.why,
        "slow": reduction.slow,
        "before": {row.name: row.before for row in rows(reduction)},
        "after": {row.name: row.after for row in rows(reduction)},
        "graph": [line.text for line in listing.graph_lines(reduction.after.graph)],
        "inputs": input_lines(reduction.after),
        "others": [{"case": other.id, "path": other.path, "words": answer.words} for other, answer in reduction.others],
        "passes": twin_diff(reduction),
        "steps": reduction.steps,
        "queries": spent.queries,
        "known": spent.known,
        "wasted": spent.wasted,
        "seconds": round(reduction.seconds, 3),
        "not_verified": [line.text for case in reduction.unverified for line in listing.graph_lines(case.graph)],
    }


def verified_words(reduction: Reduction, *, by_test: bool = False) -> str:
    """What is known of the result. Nothing is claimed that was not seen."""
    delivery = reduction.delivery
    if reduction.entry is None:
        if reduction.why or reduction.slow:
            return "nothing smaller was found so far"
        return "it is as small as it gets: whatever is left out, it no longer fails in this way"
    if by_test:
        return "your test says that it still fails"
    if delivery is None:
        return "its script was not written"
    return delivery.describe()


def input_lines(case: Case) -> list[str]:
    """A line for each input: name, type, shape, values."""
    return [
        " ".join(filter(None, (f"{row.name}:", row.dtype + row.shape, row.stride and f"strides {row.stride}")))
        + "".join(f"  {part}" for part in (row.memory, row.content) if part)
        for row in listing.input_rows(case)
    ]


def twin_diff(reduction: Reduction) -> list[str]:
    """What makes the difference: from the smallest that fails to its largest neighbour that does not, as a diff."""
    if reduction.twin is None:
        return []
    return list(
        difflib.unified_diff(
            _described(reduction.after), _described(reduction.twin), "fails", "passes", n=_AROUND, lineterm=""
        )
    )


def _described(case: Case) -> list[str]:
    """All that a run depends on, line by line."""
    code = [line.text for line in listing.graph_lines(case.graph) if line.spans[0].kind != "comment"]
    options = [f"option {one_line(entry.name)} = {value_words(entry.value)}" for entry in case.compiler.options]
    state = [f"{name} {value}".strip() for name, value in state_rows(case.state)]
    return [*code, *input_lines(case), *options, *state]


# ---- to look at ----------------------------------------------------------------------------------------------


def render_reduction(reduction: Reduction, *, width: int = 100, by_test: bool = False) -> Iterator[RenderableType]:
    """The parts, to be printed one after another."""
    yield _headline(reduction, by_test)
    yield from _warnings(reduction)
    yield _table(reduction)
    yield _title("the smallest program that still fails" if not reduction.why else "the smallest one so far")
    op = reduction.after.failure.signature.op if reduction.after.failure is not None else None
    yield render_code(listing.graph_lines(reduction.after.graph, width=width - 2), op, whole=False)
    inputs = input_lines(reduction.after)
    for line in inputs[:_MOST_INPUTS]:
        yield Text(f"  {line}", "cyan")
    if len(inputs) > _MOST_INPUTS:
        yield Text(f"  … {len(inputs) - _MOST_INPUTS:,} inputs more", "dim")
    said = "your test says that it still fails" if by_test else f"it {expected.in_words(reduction.after.failure)}"
    yield Text(one_line(said, 400), "red")
    yield from _twin(reduction)
    yield from _others(reduction)
    yield _title("")
    yield _effort(reduction)
    if reduction.entry is not None:
        yield Text(f"kept as {one_line(reduction.entry.path)}", "dim")


def _headline(reduction: Reduction, by_test: bool) -> Text:
    was, now = reduction.was.operators, reduction.size.operators
    is_good = reduction.is_verified or by_test or (reduction.entry is None and not reduction.why)
    head = Text.assemble((f"{was:,} → {now:,} operators", "bold"))
    head.append("  " + clean(verified_words(reduction, by_test=by_test)), "green" if is_good else "yellow")
    return head


def _warnings(reduction: Reduction) -> Iterator[Text]:
    if reduction.why:
        yield Text(f"note: stopped before the end: {one_line(reduction.why)}", "yellow")
    if reduction.slow:
        said = f"it is slow rather than endless ({reduction.slow}), so operators were not left out one by one"
        yield Text(f"note: {one_line(said)}", "yellow")
    if reduction.unverified:
        count = len(reduction.unverified)
        if reduction.is_verified:
            said = (
                f"{count:,} smaller {'one' if count == 1 else 'ones'} failed while minifying, but not as a script in "
                "a fresh interpreter; this is the smallest of which that was tried and seen"
            )
        else:
            said = "it failed while minifying, but none of the scripts that were tried failed in a fresh interpreter"
        yield Text(f"note: {said}", "yellow")


def _table(reduction: Reduction) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for row in rows(reduction):
        if row.before or row.after:
            table.add_row(_NAMES.get(row.name, row.name), row.words(row.before), Text(row.words(row.after), "bold"))
    return table


_NAMES: Final = {
    "elements": "elements of inputs",
    "data": "data file beside the script",
    "settings": "settings that are not torch's own",
}


def _twin(reduction: Reduction) -> Iterator[Text]:
    lines = twin_diff(reduction)
    if not lines:
        return
    yield _title("this does not fail")
    for line in lines[2 : 2 + _LINES_OF_A_DIFF]:
        yield Text(f"  {line}", _COLOURS.get(line[:1], "dim"))
    if len(lines) > 2 + _LINES_OF_A_DIFF:
        yield Text(f"  … {len(lines) - 2 - _LINES_OF_A_DIFF:,} lines more", "dim")


def _others(reduction: Reduction) -> Iterator[Text]:
    if not reduction.others:
        return
    yield _title("other failures that were met, each kept as a case")
    for other, answer in reduction.others:
        yield Text.assemble("  ", (other.id, "bold"), f"  {one_line(answer.words, 200)}")


def _effort(reduction: Reduction) -> Text:
    spent = reduction.spent
    known = f" ({spent.known:,} more answers were known)" if spent.known else ""
    steps = f", {reduction.steps:,} steps" if reduction.steps else ""
    return Text(f"{spent.queries:,} queries{known} in {time_words(reduction.seconds)}{steps}", "dim")


def time_words(seconds: float) -> str:
    """`4.2 s`, `3:07`, `1:02:09`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _title(text: str) -> Text:
    return Text(f"\n{text}" if text else "", "bold underline")

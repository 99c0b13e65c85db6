"""What a witness says, on the terminal: the verdict, the runs, and the graphs where they differ; or all of it as data.

All of the text comes from the user's program or from torch, so it goes through `wording` first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchsleuth.case.words.wording import one_line
from torchsleuth.frontend.aligning import Described, DescribedGraph, Difference, Kind, Row
from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.testimony import Blame, Run, Standing, Testimony

_HEADLINES: Final = {
    Blame.NOBODY: ("NOBODY IS WRONG", "green"),
    Blame.FRONT_END: ("THE FRONT END IS AT FAULT", "red"),
    Blame.BACKEND: ("THE BACKEND IS AT FAULT", "red"),
    Blame.OURS: ("TORCHSLEUTH IS AT FAULT", "magenta"),
    Blame.UNCLEAR: ("UNCLEAR", "yellow"),
}
_COLOURS: Final = {
    Standing.RIGHT: "green",
    Standing.NOISE: "green",
    Standing.WRONG: "bold red",
    Standing.UNKNOWN: "yellow",
}
_AROUND: Final = 2
"""Rows that are shown before and after one in which the graphs differ."""
_MOST_ROWS: Final = 40
_MOST_BREAKS: Final = 3
_LONGEST: Final = 400
_COUNTED: Final = ((Kind.DIFFERS, "differ"), (Kind.ONLY_OURS, "only ours"), (Kind.ONLY_DYNAMO, "only Dynamo's"))
_MARKS: Final = {
    Kind.SAME: ("         ", "dim"),
    Kind.ALIKE: ("         ", "dim"),
    Kind.ONLY_OURS: ("+ ours   ", "cyan"),
    Kind.ONLY_DYNAMO: ("+ Dynamo ", "yellow"),
}


def render_testimony(testimony: Testimony) -> Iterator[RenderableType]:
    """All that is to be said, in parts to be printed one after another."""
    headline, colour = _HEADLINES[testimony.blame]
    who = {Blame.FRONT_END: "Dynamo", Blame.BACKEND: testimony.backend}.get(testimony.blame, "")
    if who and testimony.part:
        who += f": {testimony.part}"
    yield Text.assemble((f" {headline} ", f"bold white on {colour}"), f"  {one_line(who)}" if who else "")
    yield Text(_sentence(one_line(testimony.reason, 3 * _LONGEST)))
    yield Text("")
    yield _runs(testimony.runs)
    yield Text("")
    yield from _difference(testimony.difference)
    for number, each in enumerate(testimony.breaks):
        if number == _MOST_BREAKS:
            yield Text(f"… and {len(testimony.breaks) - number} more breaks: `sleuth breaks` lists them", "dim")
            break
        yield Text(f"ours breaks at {_place_words(each.place)}: {one_line(each.reason, _LONGEST)}", "dim")
    if testimony.no_witness and testimony.no_witness not in testimony.reason:
        yield Text(f"note: our own front end is no witness here: {one_line(testimony.no_witness, _LONGEST)}", "yellow")
    for note in testimony.notes:
        yield Text(f"note: {one_line(note, _LONGEST)}", "yellow")
    for record in testimony.records:
        yield Text(f"record of our own fault: {one_line(record, _LONGEST)}")
    for case in testimony.cases:
        yield Text(f"kept as a case: {one_line(case.words, _LONGEST)}\n  {one_line(case.path, _LONGEST)}")


def _runs(runs: Sequence[Run]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("run", overflow="fold")
    table.add_column("held against eager", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    for run in runs:
        table.add_row(
            Text(one_line(run.name)),
            Text(run.stands, _COLOURS[run.standing]),
            Text(one_line(run.words, _LONGEST), "dim" if run.standing.is_right else ""),
        )
    return table


# ---- the graphs ----------------------------------------------------------------------------------------------


def _difference(difference: Difference) -> Iterator[Text]:
    ours, dynamo = _graphs(difference.ours), _graphs(difference.dynamo)
    if not difference.ours or not difference.dynamo:
        yield Text(f"graphs: ours {ours}, Dynamo {dynamo}")
        return
    alike = difference.count(Kind.ALIKE)
    spelled = f", {alike} of them spelled otherwise" if alike else ""
    if difference.alike:
        yield Text(f"graphs: ours {ours}, Dynamo {dynamo}; node by node the same{spelled}")
    else:
        said = ", ".join(f"{difference.count(kind)} {words}" for kind, words in _COUNTED if difference.count(kind))
        yield Text(f"graphs: ours {ours}, Dynamo {dynamo}; {said}{f', {alike} spelled otherwise' if alike else ''}")
    yield from _rows(difference.rows)


def _rows(rows: Sequence[Row]) -> Iterator[Text]:
    """The rows that are not the same, with some around them."""
    wanted = [number for number, row in enumerate(rows) if row.kind is not Kind.SAME]
    shown = sorted({near for number in wanted for near in range(number - _AROUND, number + _AROUND + 1)})
    shown = [number for number in shown if 0 <= number < len(rows)]
    before, told = -1, None
    for count, number in enumerate(shown):
        if count == _MOST_ROWS:
            yield Text(f"    … {len(shown) - count} more rows: `--json` has all of them", "dim")
            return
        if number != before + 1:
            yield _left_out(number - before - 1)
        row, before = rows[number], number
        if row.place is not None and row.place != told:
            yield Text(f"    # {_place_words(row.place)}{_source(row.place)}", "dim")
            told = row.place
        yield from _row(row)
    left = len(rows) - before - 1
    if shown and left:
        yield _left_out(left)


def _left_out(nodes: int) -> Text:
    return Text(f"    … {nodes} nodes that are the same" if nodes > 1 else "    … 1 node that is the same", "dim")


def _row(row: Row) -> Iterator[Text]:
    if row.kind is Kind.DIFFERS:
        yield _line("≠ ours   ", row.ours, "cyan")
        yield _line("  Dynamo ", row.dynamo, "yellow")
        yield Text(f"             {one_line(row.why, _LONGEST)}", "red")
        return
    mark, style = _MARKS[row.kind]
    line = _line(mark, row.ours or row.dynamo, style)
    if row.kind is Kind.ALIKE and row.dynamo is not None:
        line.append(f"   (Dynamo: {one_line(row.dynamo.target)})", "dim italic")
    yield line


def _line(mark: str, node: Described | None, style: str) -> Text:
    return Text(f"    {mark}{one_line(str(node), _LONGEST)}", style)


def _graphs(graphs: Sequence[DescribedGraph]) -> str:
    """`2 graphs (12 and 3 operations)`"""
    if not graphs:
        return "none"
    sizes = [str(len(graph.nodes)) for graph in graphs]
    listed = sizes[0] if len(sizes) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    operations = "operation" if sizes == ["1"] else "operations"
    return f"{len(graphs)} graph{'s' if len(graphs) > 1 else ''} ({listed} {operations})"


def _place_words(place: Place) -> str:
    where = f"{os.path.basename(place.file)}:{place.line}"
    return one_line(f"{where} in {place.function}" if place.function else where, 120)


def _source(place: Place) -> str:
    source = place.source
    return f": {one_line(source, 160)}" if source else ""


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}."


# ---- as data -------------------------------------------------------------------------------------------------


def testimony_data(testimony: Testimony) -> dict[str, Any]:
    """Everything, by its name."""
    return {
        "verdict": testimony.blame.value,
        "reason": testimony.reason,
        "backend": testimony.backend,
        "part": testimony.part,
        "somebody_is_wrong": testimony.somebody_is_wrong,
        "no_witness": testimony.no_witness,
        "runs": [run.data() for run in testimony.runs],
        "graphs": {
            "ours": [len(graph.nodes) for graph in testimony.difference.ours],
            "dynamo": [len(graph.nodes) for graph in testimony.difference.dynamo],
            "alike": testimony.difference.alike,
            "rows": [_row_data(row) for row in testimony.difference.rows],
        },
        "breaks": [{**_place_data(each.place), "reason": each.reason} for each in testimony.breaks],
        "notes": list(testimony.notes),
        "records": list(testimony.records),
        "cases": [{"path": case.path, "words": case.words} for case in testimony.cases],
    }


def _row_data(row: Row) -> dict[str, Any]:
    return {
        "kind": row.kind.value,
        "ours": None if row.ours is None else str(row.ours),
        "dynamo": None if row.dynamo is None else str(row.dynamo),
        "why": row.why,
        "place": None if row.place is None else _place_data(row.place),
    }


def _place_data(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "function": place.function, "source": place.source}

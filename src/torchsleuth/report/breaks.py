"""The graph breaks of a script on the terminal: a table, the source with notes, what is not settled, and Dynamo's view.

All of the text comes from the user's program or from Dynamo, so it goes through `wording` first.
"""

from __future__ import annotations

import os
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from torchsleuth.case.words.wording import clean, one_line
from torchsleuth.frontend.annotating import Listing, Note, Row, listings_of
from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.second_opinion import Objection, Opinion
from torchsleuth.frontend.surveying import Finding, Survey, Surveyed, home_of

_ROOM_FOR_A_TABLE: Final = 100
_PARTS: Final = (5, 4, 4)
"""Of the width of a table, what each column gets."""
_BETWEEN_COLUMNS: Final = 9
_NARROWEST_NOTE: Final = 30
_MOST_GRAPHS: Final = 12
_INSTALLED: Final = tuple({sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib")})
_NATIVELY: Final = "the rest of the call runs natively"


def render_survey(survey: Survey, *, width: int) -> Iterator[RenderableType]:
    """All that is known of a script, in parts to be printed one after another."""
    functions = survey.functions
    if len(functions) > 1:
        found = sum(len(each.findings) for each in functions)
        yield Text(f"{one_line(str(survey.script))}: {_count(len(functions), 'function')}, {_count(found, 'break')}\n")
    for number, surveyed in enumerate(functions):
        if number:
            yield Text(f"\n{'─' * width}\n", "dim")
        yield from _function(surveyed, width, stopped=survey.stopped)
    for number, note in enumerate(_notes_on_the_script(survey)):
        yield Text(f"{'' if number else chr(10)}note: {one_line(note, 400)}", "yellow")


def _function(surveyed: Surveyed, width: int, *, stopped: bool) -> Iterator[RenderableType]:
    yield _headline(surveyed)
    yield Text(_facts(surveyed, stopped=stopped), "dim")
    if surveyed.opinion is not None:
        yield Text(_dynamo_in_a_line(surveyed, surveyed.opinion), "dim")
    if surveyed.findings:
        yield Text("")
        if _fit_in_a_table(surveyed.findings, width):
            yield _table(surveyed.findings)
        else:
            blocks = [_block(*each, width) for each in _with_objections(surveyed.findings)]
            yield Text("\n\n").join(blocks)
    if surveyed.dynamo_alone:
        yield from _dynamo_alone(surveyed, width)
    for listing in listings_of(surveyed):
        yield from _listing(listing, width)
    if not surveyed.settled:
        yield from _unsettled(surveyed, width)


# ---- in a few words --------------------------------------------------------------------------------------------


def _headline(surveyed: Surveyed) -> Text:
    found, alone = len(surveyed.findings), len(surveyed.dynamo_alone)
    if found:
        badge, style = _count(found, "break"), "bold white on red"
    elif surveyed.failures:
        badge, style = "OUR FAULT", "bold white on magenta"
    elif not surveyed.recordings:
        badge, style = "NOT LOOKED AT", "bold white on yellow"
    elif alone:
        badge, style = f"{_count(alone, 'break')} of Dynamo's", "bold white on yellow"
    else:
        badge, style = "no breaks", "bold white on green"
    return Text.assemble((one_line(surveyed.name), "bold"), "  ", (f" {badge} ", style))


def _facts(surveyed: Surveyed, *, stopped: bool) -> str:
    """How many calls were looked at, and what came of them."""
    calls = _count(surveyed.looked_at, "call")
    if surveyed.calls > surveyed.looked_at:
        calls = f"{surveyed.looked_at} of {_count(surveyed.calls, 'call')}"
    of = f" of {surveyed.objects} objects" if surveyed.objects > 1 else ""
    known = f"; {surveyed.hits or 'none'} ran from what was recorded before" if surveyed.looked_at > 1 else ""
    enough = "; then the script was stopped" if stopped else ""
    later = surveyed.all_graphs - len(surveyed.graphs)
    more = f", {later} more later" if later else ""
    more += "; others could not be kept" if surveyed.uncacheable else ""
    why = "" if surveyed.graphs else _why_no_graph(surveyed)
    return f"{calls}{of} looked at{known}{enough}\nfirst call: {_graphs(surveyed.graphs)}{why}{more}"


def _why_no_graph(surveyed: Surveyed) -> str:
    """Why nothing was put into a graph, where no break says it."""
    if surveyed.failures:
        return ", since our own translator failed"
    if surveyed.uncacheable:
        return f", since what was recorded could not be kept: {one_line(next(iter(surveyed.uncacheable)), 200)}"
    if surveyed.natives:
        return ", since it ran natively"
    if surveyed.findings or not surveyed.recordings:
        return ""
    return ", since it calls nothing of torch that computes"


def _graphs(sizes: Sequence[int]) -> str:
    """`3 graphs (12, 1 and 4 operations)`"""
    if not sizes:
        return "no graph"
    shown = [f"{size:,}" for size in sizes[:_MOST_GRAPHS]] + ["…"] * (len(sizes) > _MOST_GRAPHS)
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{_count(len(sizes), 'graph')} ({listed} operation{'' if list(sizes) == [1] else 's'})"


def _dynamo_in_a_line(surveyed: Surveyed, opinion: Opinion) -> str:
    if opinion.failure:
        return f"Dynamo:     {one_line(opinion.failure, 300)}"
    alone = len(surveyed.dynamo_alone)
    lines = len({_line(home_of(each.stack)) for each in opinion.objections if each.stack})
    where = f"breaks at {_count(lines, 'line')}" if opinion.objections else "no breaks"
    if alone and surveyed.findings:
        where += f", {alone} of them not among ours" if alone < lines else ", none of them among ours"
    return f"Dynamo:     {_graphs(opinion.graphs)}, {where}"


def _notes_on_the_script(survey: Survey) -> Iterator[str]:
    if survey.ended.words:
        yield survey.ended.words
    if survey.ended.uncalled:
        yield f"given to torch.compile, and not called by itself: {', '.join(survey.ended.uncalled)}"


# ---- the breaks ------------------------------------------------------------------------------------------------


def _fit_in_a_table(findings: Sequence[Finding], width: int) -> bool:
    """Whether there is room for columns, and no place has to be folded."""
    where = (width - _BETWEEN_COLUMNS) * _PARTS[0] // sum(_PARTS)
    places = (_place_words(place) for finding in findings for place in (finding.place, finding.home))
    return width >= _ROOM_FOR_A_TABLE and all(len(words) <= where for words in places)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("", justify="right", no_wrap=True, style="bold red")
    for heading, part in zip(("where", "why", "what to change"), _PARTS, strict=True):
        table.add_column(heading, overflow="fold", ratio=part)
    for finding, objections in _with_objections(findings):
        if finding.number > 1:
            table.add_row()
        where = Text("\n").join(_where(finding))
        why = Text(one_line(finding.reason, 300))
        if finding.natively:
            why.append(f"\n{_NATIVELY}", "bold magenta")
        for objection in objections:
            why.append(f"\nDynamo: {one_line(objection.headline, 120)}", "dim")
        table.add_row(str(finding.number), where, why, Text(one_line(finding.advice, 300), "green"))
    return table


def _block(finding: Finding, objections: Sequence[Objection], width: int) -> Text:
    """A break as a few lines, where there is no room for a table."""
    block = Text.assemble((f"{finding.number:>2}  ", "bold red"))
    for at, part in enumerate(_where(finding, max(width - 4, _NARROWEST_NOTE))):
        block.append("\n    " if at else "").append(part)
    rows = [("why", finding.reason, ""), ("change", finding.advice, "green")]
    rows += [("", _NATIVELY, "bold magenta")] * finding.natively
    rows += [("Dynamo", objection.headline, "dim") for objection in objections]
    for label, words, style in rows:
        for at, line in enumerate(_wrapped(one_line(words, 300), width - 12)):
            block.append(f"\n    {label if not at else '':<8}", "dim").append(line, style)
    return block


def _with_objections(findings: Sequence[Finding]) -> Iterator[tuple[Finding, Sequence[Objection]]]:
    """Each break with what Dynamo says of its line, which is said once."""
    said: set[tuple[str, int]] = set()
    for finding in findings:
        yield finding, () if _line(finding.home) in said else finding.objections
        said.add(_line(finding.home))


def _where(finding: Finding, longest: int = 200) -> Iterator[Text]:
    """The place, where that was called from, and the source line, which may be cut."""
    place, home = finding.place, finding.home
    yield Text.assemble((_place_words(place), "cyan"), (f" in {one_line(place.function)}", "dim"))
    caller = home if home != place else home_of(finding.stack[:-1]) if len(finding.stack) > 1 else None
    if caller is not None:
        yield Text(f"from {_place_words(caller)} in {one_line(caller.function)}", "dim")
    source = home.source or place.source
    if source:
        yield Text(one_line(source, longest), "bold")


def _dynamo_alone(surveyed: Surveyed, width: int) -> Iterator[Text]:
    yield _title("where only Dynamo breaks")
    for objection in surveyed.dynamo_alone:
        home = home_of(objection.stack) if objection.stack else None
        nowhere = f"Dynamo names no line; it is in {one_line(surveyed.name)}, or in what that calls"
        where = nowhere if home is None else f"{_place_words(home)} in {one_line(home.function)}"
        lines = Text.assemble(("  " + where, "cyan"))
        if home is not None and home.source:
            lines.append(f"\n  {one_line(home.source, max(width - 2, _NARROWEST_NOTE))}", "bold")
        said = (objection.headline, objection.explanation, *objection.hints[:1])
        for words, style in zip(said, ("", "dim", "green"), strict=False):
            for line in _wrapped(one_line(words, 400), width - 4) if words else ():
                lines.append(f"\n    {line}", style)
        yield lines


# ---- the source ------------------------------------------------------------------------------------------------


def _listing(listing: Listing, width: int) -> Iterator[Text]:
    yield _title(f"{_file_words(listing.file)}, {one_line(listing.function)}")
    last = next(row.number for row in reversed(listing.rows) if row is not None)
    digits = max(4, len(str(last)))
    shown = [row for row in listing.rows if row is not None]
    texts = dict(zip((row.number for row in shown), _coloured([row.text for row in shown]), strict=True))
    for row in listing.rows:
        if row is None:
            yield Text(f"{'⋮':>{digits}} ", "dim")
            continue
        yield _source_line(row, texts[row.number], digits, width)
        for note in row.notes:
            corner = "╰─ " if note is row.notes[-1] else "├─ "
            yield from _note_lines(note, corner, _indentation(row.text), digits, width)


def _source_line(row: Row, text: Text, digits: int, width: int) -> Text:
    ours = any(note.number for note in row.notes)
    mark, style = ("✂", "bold red") if ours else ("✂", "yellow") if row.notes else ("│", "dim")
    line = Text.assemble((f"{row.number:>{digits}} ", style if row.notes else "dim"), (mark, style), " ", text)
    line.truncate(max(width, _NARROWEST_NOTE), overflow="ellipsis")
    return line


def _note_lines(note: Note, corner: str, indentation: int, digits: int, width: int) -> Iterator[Text]:
    """The note under its line, beginning where the code does, if that leaves room for it."""
    before = digits + 3
    indentation = max(0, min(indentation, width - before - _NARROWEST_NOTE - 4))
    said = f"{note.number}: {note.words}" if note.number else f"Dynamo: {note.words}"
    if note.natively:
        said += f"; {_NATIVELY}"
    style = "yellow" if not note.number else "magenta" if note.natively else "red"
    for at, line in enumerate(_wrapped(one_line(said, 300), width - before - indentation - 3)):
        margin = Text.assemble((f"{'':>{digits}} │ ", "dim"), " " * indentation)
        rest = "   " if corner.startswith("╰") else "│  "
        yield margin.append(rest if at else corner, "dim").append(line, style)


def _coloured(lines: Sequence[str]) -> list[Text]:
    """Lines of Python in the colours of the terminal."""
    code = "\n".join(clean(line).expandtabs(4) for line in lines)
    highlighted = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(code)
    found = list(highlighted.split("\n", allow_blank=True))
    # Highlighting drops empty lines at the end, and adds one.
    return [found[at] if at < len(found) else Text("") for at in range(len(lines))]


def _indentation(text: str) -> int:
    expanded = text.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())


# ---- what is not settled ---------------------------------------------------------------------------------------


def _unsettled(surveyed: Surveyed, width: int) -> Iterator[Text]:
    yield _title("not settled")
    if surveyed.misses:
        yield Text("recorded again, since a guard did not hold:")
    for advice in dict.fromkeys(miss.advice for miss in surveyed.misses):
        for miss in surveyed.misses:
            if miss.advice == advice:
                yield from _item(f"{miss.guard}: {miss.found}", _in_calls(miss.calls), width)
        yield from _paragraph(advice, "green", width, 4)
    for why, times in surveyed.uncacheable.items():
        yield from _item("a recording could not be kept", f"{why}{_times(times)}", width)
    if surveyed.natives:
        mode = "a mode of torch was on (`with torch.device(...)` is one), and nothing can be recorded then"
        why = "so many recordings were made at one place that no more are kept, or a mode of torch was on"
        why = why if surveyed.recordings else mode
        yield from _item("run natively", f"{why}{_times(surveyed.natives)}", width)
    for failure in surveyed.failures:
        where = f" at {_place_words(failure.place)}" if failure.place is not None else ""
        why = f"{failure.words}{where}; the call went on natively. Please report it"
        yield from _item("a fault of torchsleuth itself", why, width)
        if failure.record:
            yield Text(f"    record: {one_line(failure.record)}", "dim")


def _item(title: str, words: str, width: int) -> Iterator[Text]:
    first, *more = _wrapped(one_line(title, 400), width - 2)
    yield Text.assemble(("· ", "dim"), first)
    yield from (Text(f"  {line}") for line in more)
    yield from _paragraph(words, "dim", width, 4)


def _paragraph(words: str, style: str, width: int, indentation: int) -> Iterator[Text]:
    for line in _wrapped(one_line(words, 400), width - indentation) if words else ():
        yield Text(f"{' ' * indentation}{line}", style)


def _in_calls(calls: Sequence[int]) -> str:
    if len(calls) == 1:
        return f"in call {calls[0]}"
    return f"in calls {', '.join(map(str, calls[:-1]))} and {calls[-1]}"


def _times(times: int) -> str:
    return "" if times == 1 else f" ({times} times)"


# ---- words -----------------------------------------------------------------------------------------------------


def _place_words(place: Place) -> str:
    return f"{_file_words(place.file)}:{place.line}" if place.file else one_line(place.function)


def _file_words(file: str) -> str:
    """The file from where we are, or from where packages are installed; else as it is."""
    here = os.getcwd() + os.sep
    inside = next((folder for folder in (here, *_INSTALLED) if file.startswith(folder)), "")
    return one_line(file.removeprefix(inside))


def _line(place: Place) -> tuple[str, int]:
    return place.file, place.line


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, max(width, _NARROWEST_NOTE), break_on_hyphens=False) or [""]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _title(text: str) -> Text:
    return Text(f"\n{text}", "bold underline")

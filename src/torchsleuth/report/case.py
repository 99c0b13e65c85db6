"""Cases on the terminal: the list of a store, and one case with its graph, inputs, failure and circumstances.

A case comes from anywhere, so all of its text goes through `wording` first: nothing in it is markup to rich, or a
command to the terminal.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchsleuth.case import schema
from torchsleuth.case.schema import Case, State
from torchsleuth.case.stores.store import Listed
from torchsleuth.case.words import listing
from torchsleuth.case.words.wording import clean, one_line, value_words
from torchsleuth.outcome import Stage

_STYLES = {
    "plain": "",
    "name": "bold",
    "type": "cyan",
    "target": "magenta",
    "comment": "green",
    "keyword": "blue",
}
_COLOURS = {
    "raised": "red",
    "mismatched": "magenta",
    "crashed": "red",
    "timed out": "yellow",
    "out of memory": "yellow",
}
_MODULES = re.compile(r"\b(?:\w+\.)+([A-Z]\w*)")
"""The modules in front of the name of an exception."""
_FIRST_LINES, _LAST_LINES = 240, 60
_SHORT_TRACEBACK = 8
_ROOM_FOR_A_TABLE = 72
_MOST_ROWS = 60


# ---- a store ---------------------------------------------------------------------------------------------


def render_entries(entries: Sequence[Listed], *, width: int = 100) -> RenderableType:
    """A row for each case, the oldest first; where there is no room for a table, a few lines for each."""
    if width < _ROOM_FOR_A_TABLE:
        return Text("\n").join(_entry_lines(entry) for entry in entries)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("case", no_wrap=True, style="bold")
    table.add_column("when", no_wrap=True)
    table.add_column("graph", overflow="fold")
    table.add_column("nodes", justify="right")
    table.add_column("tensors", justify="right")
    table.add_column("what failed", overflow="fold", ratio=1)
    for entry in entries:
        name = Text(one_line(entry.id, 24))
        for label in entry.labels:
            name.append(f"\n  {one_line(label, 32)}", "cyan")
        about = entry.summary
        known = entry.error is None
        table.add_row(
            name,
            when_words(entry.created),
            Text(one_line(about.graph, 60)),
            f"{about.nodes:,}" if known else "",
            listing.byte_words(about.nbytes) if about.nbytes else "",
            _what_failed(entry),
        )
    return table


def _entry_lines(entry: Listed) -> Text:
    lines = Text.assemble((one_line(entry.id), "bold"))
    for label in entry.labels:
        lines.append(f" {one_line(label)}", "cyan")
    facts = (one_line(entry.summary.graph, 60), str(when_words(entry.created)))
    lines.append("\n  " + ", ".join(filter(None, facts)), "dim")
    failed = _what_failed(entry)
    return lines.append("\n  ").append(failed) if failed else lines


def _what_failed(entry: Listed) -> Text:
    if entry.error is not None:
        return Text.assemble(("broken: ", "bold red"), one_line(entry.error.cause, 200))
    return Text(_MODULES.sub(r"\1", one_line(entry.summary.failure, 200)))


def when_words(created: str | None) -> Text:
    """`2026-11-16 03:31`, as it is written in the case: in UTC, unless it says otherwise."""
    return Text(one_line(created or "", 40)[:16].replace("T", " "))


# ---- one case --------------------------------------------------------------------------------------------


def render_case(
    case: Case,
    lines: Sequence[listing.Line],
    *,
    name: str,
    labels: Sequence[str] = (),
    whole: bool = False,
    traceback: bool = False,
) -> Iterator[RenderableType]:
    """The parts of a case, to be printed one after another; `lines` is its graph. `whole`: however long that is."""
    yield _header(case, name, labels)
    if case.failure is not None:
        yield from _failure(case.failure, whole=traceback)
    if case.origin.frames:
        yield _title("where in the program")
        yield Text("\n").join(Text(f"  {listing.frame_words(frame)}", "green") for frame in case.origin.frames[-10:])
    yield _title(f"graph of {len(case.graph.nodes):,} nodes")
    op = case.failure.signature.op if case.failure is not None else None
    yield render_code(lines, op, whole=whole)
    yield from _tables(case, whole=whole)


def _header(case: Case, name: str, labels: Sequence[str]) -> Text:
    origin, compiler = case.origin, case.compiler
    head = Text.assemble(("case ", "dim"), (one_line(name), "bold"))
    for label in labels:
        head.append(f"  {one_line(label)}", "cyan")
    if case.failure is not None:
        kind = case.failure.signature.kind
        head.append("  ").append(f" {kind.upper()} ", f"bold white on {_COLOURS[kind]}")
    facts = [
        origin.graph or origin.phase,
        f"{compiler.backend} (after {compiler.after.value})",
        *([f"mode {compiler.mode}"] if compiler.mode else []),
        f"torch {origin.torch}",
        f"Python {origin.python}",
        origin.platform,
        str(when_words(origin.created)),
    ]
    head.append("\n" + one_line(" · ".join(filter(None, facts))), "dim")
    for entry in compiler.options:
        head.append(f"\noption {one_line(entry.name)} = {value_words(entry.value)}", "dim")
    if origin.parent:
        head.append(f"\nmade from {one_line(origin.parent)}", "dim")
    if origin.earlier:
        head.append("\nkept for the history of other cases", "dim")
    if origin.history:
        head.append(f"\ncompiled before it in its process: {_graphs(origin.history)}", "dim")
    if case.todo:
        head.append(f"\nto do: {case.todo}", "dim")
    return head


def _graphs(history: Sequence[schema.Earlier]) -> str:
    """The last ones by name."""
    last = ", ".join(one_line(one.graph, 40) for one in history[-3:])
    return last if len(history) <= 3 else f"{len(history) - 3} graphs, {last}"


def _failure(failure: schema.Failure, *, whole: bool) -> Iterator[RenderableType]:
    signature = failure.signature
    what = [one_line(signature.types[0])] if signature.types else []
    if signature.signal is not None:
        what.append(_signal_words(signature.signal))
    if signature.symptom is not None:
        what.append(f"{signature.symptom.value} differs" + (f" at {one_line(failure.path)}" if failure.path else ""))
    if signature.op:
        what.append(f"in {one_line(listing.target_words(signature.op))}")
    yield _title("failure" if signature.stage is Stage.UNKNOWN else f"failure, stage: {signature.stage.value}")
    if failure.node:
        what.append(f"node {one_line(failure.node)}")
    told = Text("  " if what else " ")
    told.append(", ".join(what), "bold red")
    if failure.frame is not None:
        told.append(f"\n  {listing.frame_words(failure.frame)}", "green")
    message = clean(failure.message or signature.message).strip().splitlines()
    shown = message if whole else message[:6]
    for line in shown:
        told.append(f"\n  {line}")
    if len(shown) < len(message):
        told.append(f"\n  … {len(message) - len(shown)} lines more (--traceback)", "dim")
    yield told
    lines = clean(failure.traceback).rstrip().splitlines()
    if lines:
        kept = lines if whole else lines[-_SHORT_TRACEBACK:]
        trace = Text("\n").join(Text(f"  {line}", "dim") for line in kept)
        if len(kept) < len(lines):
            trace = Text.assemble((f"  … {len(lines) - len(kept)} lines before (--traceback)\n", "dim"), trace)
        yield trace


def _signal_words(number: int) -> str:
    try:
        return f"signal {number} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def render_code(lines: Sequence[listing.Line], op: str | None, *, whole: bool) -> Text:
    """The lines of the graph in colours; of a long one the beginning and the end."""
    hidden = 0 if whole else max(0, len(lines) - _FIRST_LINES - _LAST_LINES)
    code = Text()
    for position, line in enumerate(lines):
        if hidden and position == _FIRST_LINES:
            code.append(f"\n  … {hidden:,} lines more (--all) …", "dim")
        if hidden and _FIRST_LINES <= position < _FIRST_LINES + hidden:
            continue
        code.append(("\n" if position else "") + " " * (line.indent + 2))
        for span in line.spans:
            guilty = op is not None and span.kind == "target" and span.text == listing.target_words(op)
            code.append(span.text, "bold red" if guilty else _STYLES[span.kind])
    return code


def _tables(case: Case, *, whole: bool) -> Iterator[RenderableType]:
    most = None if whole else _MOST_ROWS
    inputs = listing.input_rows(case)
    if inputs:
        size = sum(storage.nbytes for storage in case.storages)
        yield _title(f"{len(inputs):,} input{'s'[: len(inputs) > 1]}, {listing.byte_words(size)} with constants")
        rows = [(row.name, row.dtype, row.shape, row.stride, row.memory, row.content) for row in inputs]
        yield _table(("name", "type", "shape", "strides", "memory", "values"), rows, most)
    symbols = listing.symbol_rows(case.symbols)
    if symbols:
        yield _title("symbolic sizes")
        rows_of_symbols = [(row.name, row.hint, row.bounds, row.source) for row in symbols]
        yield _table(("name", "was", "range", "stands for"), rows_of_symbols, most)
    state = state_rows(case.state)
    if state:
        yield _title("state, where it is not torch's default")
        yield _table(("", ""), state, most)
    if case.code:
        yield _title("code of the user's own that the graph calls (runs only if it is trusted)")
        code = [(each.kind, one_line(each.name), _place(each)) for each in case.code]
        yield _table(("kind", "name", "from"), code, most)
    noticed = listing.noticed(case)
    if noticed:
        yield _title("not in the case")
        missing = [
            (one_line(where), one_line(what.text or what.type, 80), one_line(what.reason)) for where, what in noticed
        ]
        yield _table(("where", "what", "why"), missing, most)


def state_rows(state: State) -> list[tuple[str, str]]:
    """What differs from a freshly imported torch, in words."""
    plain = State()
    rows = []
    if not state.grad:
        rows.append(("gradients", "off"))
    if state.inference:
        rows.append(("inference mode", "on"))
    for cast in state.autocast:
        rows.append((f"autocast on {one_line(cast.device)}", f"to {one_line(cast.dtype)}" if cast.enabled else "off"))
    if not state.autocast_cache:
        rows.append(("autocast cache", "off"))
    if state.deterministic != "off":
        rows.append(
            ("deterministic algorithms", "required" if state.deterministic == "error" else "wanted, or a warning")
        )
    if not state.fill_uninitialised:
        rows.append(("uninitialised memory", "is not filled"))
    for title, field in (
        ("default dtype", "default_dtype"),
        ("default device", "default_device"),
        ("matmul precision", "matmul_precision"),
    ):
        if getattr(state, field) != getattr(plain, field):
            rows.append((title, one_line(getattr(state, field))))
    rows += [(f"torch.backends.{one_line(entry.name)}", value_words(entry.value)) for entry in state.flags]
    if state.threads is not None:
        rows.append(("threads", str(state.threads)))
    rows += [(one_line(f"{option.module}.{option.name}"), value_words(option.value)) for option in state.config]
    rows += [(f"${one_line(name)}", one_line(value, 200)) for name, value in state.environment]
    return rows


def _place(code: schema.Code) -> str:
    found = [f"import {code.module}"] if code.module else []
    if code.file:
        found.append(code.file if code.line is None else f"{code.file}:{code.line}")
    if code.source:
        found.append(f"{len(code.source.splitlines())} lines in the case")
    return one_line(", ".join(found))


def _title(text: str) -> Text:
    return Text(f"\n{text}", "bold underline")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], most: int | None) -> Table:
    """The rows, without columns that are empty throughout."""
    used = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    for column in used:
        table.add_column(headings[column], overflow="fold")
    for row in rows[:most]:
        table.add_row(*(Text(row[column]) for column in used))
    if most is not None and len(rows) > most:
        table.add_row(Text(f"… {len(rows) - most:,} more (--all)", "dim"), *([""] * (len(used) - 1)))
    return table

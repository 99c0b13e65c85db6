"""A judgement as a panel for the terminal."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torchsleuth.compare import Judgement, LeafEvidence, Verdict

COLOURS = {
    Verdict.BUG: "red",
    Verdict.NOISE: "green",
    Verdict.NONDETERMINISTIC: "yellow",
    Verdict.UNKNOWN: "magenta",
}
_MEANING = {
    Verdict.BUG: "rounding does not explain this",
    Verdict.NOISE: "rounding explains every difference",
    Verdict.NONDETERMINISTIC: "the program does not repeat itself",
    Verdict.UNKNOWN: "there is no telling, and this is why",
}


def render_judgement(judgement: Judgement, *, title: str = "judgement", rows: int = 6) -> Panel:
    """The verdict, the reason, the worst leaves as a table, and the evidence."""
    colour = COLOURS[judgement.verdict]
    headline = Text.assemble(
        (f" {judgement.verdict.value.upper()} ", f"bold white on {colour}"), "  ", _MEANING[judgement.verdict]
    )
    parts: list[RenderableType] = [headline, "", Text(_sentence(judgement.reason))]
    measured = [leaf for leaf in judgement.leaves if leaf.path]
    if measured:
        parts += ["", _leaf_table(measured, rows)]
    parts += ["", *(Text(f"· {said}", style="dim") for said in judgement.evidence())]
    return Panel(Group(*parts), title=Text(title), border_style=colour, padding=(1, 2))


def _leaf_table(leaves: list[LeafEvidence], rows: int) -> Table:
    order = {Verdict.BUG: 0, Verdict.UNKNOWN: 1}
    ranked = sorted(leaves, key=lambda leaf: order.get(leaf.verdict, 2))  # else in the order of the result
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("where", overflow="fold", ratio=1)
    for heading in ("eager off", "compiled off", "× noise", "verdict"):
        table.add_column(heading, justify="right", no_wrap=True)
    for leaf in ranked[:rows]:
        noise = leaf.noise
        table.add_row(
            Text(leaf.path),
            f"{noise.eager_max:.2g}" if noise else "",
            f"{noise.result_max:.2g}" if noise else "",
            _ratio(leaf),
            Text(leaf.verdict.value, style=COLOURS[leaf.verdict]),
        )
    if len(ranked) > rows:
        hidden = ranked[rows:]
        bugs = sum(leaf.verdict is Verdict.BUG for leaf in hidden)
        table.add_row(Text(f"… and {len(hidden)} more, {bugs} of them wrong", style="dim"), "", "", "", "")
    return table


def _ratio(leaf: LeafEvidence) -> str:
    if leaf.distribution is not None:
        return f"p = {leaf.distribution.p_value:.1g}"
    if math.isinf(leaf.ratio):
        return "∞"
    return f"{leaf.ratio:.2g}"


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}."

"""What `sleuth doctor` found, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Finding:
    """One line of the examination. `ok` is None for what is only told."""

    subject: str
    told: str
    ok: bool | None = None


def render_findings(findings: Sequence[Finding], settings: Sequence[tuple[str, str, str]]) -> Group:
    """The findings, then the settings with the place each value comes from."""
    examined = Table(box=None, pad_edge=False, show_header=False)
    examined.add_column(no_wrap=True)
    examined.add_column(style="bold", no_wrap=True)
    examined.add_column(overflow="fold")
    for finding in findings:
        examined.add_row(_mark(finding.ok), Text(finding.subject), Text(finding.told))
    table = Table(title="settings", title_justify="left", box=None, pad_edge=False, header_style="dim")
    for heading in ("name", "value", "from"):
        table.add_column(heading, overflow="fold")
    for row in settings:
        table.add_row(*map(Text, row))
    return Group(examined, "", table)


def _mark(ok: bool | None) -> Text:
    if ok is None:
        return Text(" ")
    return Text("✓", style="green") if ok else Text("✗", style="red")

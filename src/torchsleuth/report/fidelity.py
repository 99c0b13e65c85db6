"""Whether a case reproduces, in one line; if it does not, what differs, the likeliest reason first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torchsleuth.case.words.wording import clean, one_line
from torchsleuth.run.differences import Finding
from torchsleuth.run.fidelity import Fidelity

_COLOURS = {0: "green", 1: "red", 2: "yellow", 3: "bold red"}
_LINES_OF_A_DIFF = 12


def render_fidelity(fidelity: Fidelity) -> Iterator[Text]:
    """One line; what was run for it, or what differs."""
    yield Text(clean(fidelity.describe()), _COLOURS[fidelity.exit_code])
    if fidelity.delivery is not None and fidelity.delivery.reproduces and fidelity.reproduces:
        times = f"{fidelity.outcome.seconds:.1f} s and {fidelity.delivery.seconds:.1f} s"
        yield Text(f"the replay, and the exported script, each in an interpreter of its own ({times})", "dim")
    for note in fidelity.notes:
        yield Text(f"note: {clean(note)}", "yellow")
    if fidelity.exit_code != 1:
        return
    if not fidelity.findings:
        yield Text("nothing was found that differs from when it was recorded")
    for finding in fidelity.findings:
        yield from _lines(finding)


def _lines(finding: Finding) -> Iterator[Text]:
    possible = "" if finding.certain else "possible: "
    yield Text.assemble(("· ", "dim"), (f"{finding.kind}: ", "bold"), possible, one_line(finding.words, 600))
    for line in finding.detail.splitlines()[2 : 2 + _LINES_OF_A_DIFF]:
        yield Text(f"    {clean(line)}", "dim")
    yield Text(f"    {one_line(finding.remedy, 300)}", "dim")

"""How far a run has come, on the terminal: inputs that are loaded, then the stage. Nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn, TimeElapsedColumn

from torchsleuth.outcome import Stage

if TYPE_CHECKING:
    from torchsleuth.run.query import Progress

_WORDS = {
    Stage.PREPARE: "loading inputs",
    Stage.COMPILE: "compiling",
    Stage.RUN: "running",
    Stage.COMPARE: "comparing with eager",
}


@contextmanager
def shown(console: Console, *, quiet: bool = False) -> Iterator[Progress | None]:
    """A bar while the block lasts, if the console is a terminal; what it yields is told how far things are."""
    if quiet or not console.is_terminal:
        yield None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(stage: Stage, done: int, of: int) -> None:
            bar.update(task, description=_WORDS.get(stage, str(stage)), completed=done, total=of or None)

        yield tell

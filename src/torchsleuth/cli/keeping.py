"""Cases of what a backend fails at, for `sleuth witness`: made in its child, settled by its parent if it dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsleuth.capture.deaths import death_of, settle
from torchsleuth.capture.journal import Journal, read
from torchsleuth.report.watched import each_once

if TYPE_CHECKING:
    from torchsleuth.frontend.testimony import KeptCase
    from torchsleuth.run.child import Ended


class Keeping:
    """Watches a backend, and knows what was kept of it. `folder`: where parent and child hear of each other."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "journal"
        self._journal = Journal(self._path)

    def watched(self, backend: str | Callable[..., Any]) -> Callable[..., Any]:
        """The backend under watch, at its own graphs and at those after AOT; results are compared."""
        from torchsleuth.capture.backends import WatchedBackend
        from torchsleuth.capture.watching import Watch, settings_for
        from torchsleuth.config import After, Level

        base = replace(settings_for(level=Level.ACCURACY), after=After.BOTH)
        return WatchedBackend(backend, Watch(base, self._journal))

    def kept(self) -> tuple[KeptCase, ...]:
        from torchsleuth.frontend.testimony import KeptCase

        known = self._journal.kept if self._path is None else read(self._path).kept
        return tuple(KeptCase(each.path, each.words, each.next) for each in each_once(known))

    def settle(self, ended: Ended, stack: str) -> None:
        """The child has died: what it had written ahead is told in full."""
        if self._path is not None:
            for each in settle(read(self._path), ended.pid, death_of(ended, stack=stack), both=True):
                self._journal.keep(each)

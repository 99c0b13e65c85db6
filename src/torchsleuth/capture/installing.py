"""Watching a program that knows nothing of it: inside, every backend that torch.compile is given is watched.

with installed(level=3) as watching:
    program()
watching.kept
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchsleuth import torch_compat
from torchsleuth.capture.backends import WatchedBackend
from torchsleuth.capture.journal import Journal, Kept
from torchsleuth.capture.watching import JOURNAL, Watch, settings_for
from torchsleuth.config import After, Level


@dataclass(frozen=True)
class Watching:
    """What is being watched, and what was kept so far."""

    watch: Watch

    @property
    def kept(self) -> list[Kept]:
        """The cases that this process kept, in order; also those of backends that the program itself has watched."""
        return self.watch.journal.kept

    def wrap(self, backend: Any) -> Any:
        """A backend, as torch.compile hands it to Dynamo; watched, unless the program has seen to that itself."""
        if isinstance(getattr(backend, "compiler_fn", backend), WatchedBackend) or not _is_backend(backend):
            return backend
        return WatchedBackend(backend, self.watch)


def _is_backend(backend: Any) -> bool:
    return isinstance(backend, str) or callable(backend)


@contextmanager
def installed(
    *,
    after: After | str | None = "aot",
    level: Level | int | str | None = None,
    store: str | None = None,
    journal: Path | None = None,
    **settings: Any,
) -> Iterator[Watching]:
    """Inside, in all threads, what torch.compile compiles is watched; afterwards it is not.

    What was compiled inside stays watched for as long as it lives. `journal` is a file that is told of every case.
    """
    base = replace(settings_for(level=level, store=store, **settings), after=after)  # type: ignore[arg-type]
    watching = Watching(Watch(base, Journal(journal)))
    wrap = watching.wrap  # bound once: it is told from others by what it is
    with JOURNAL.told_to(watching.watch.journal), torch_compat.dynamo_backends_wrapped(wrap):
        yield watching

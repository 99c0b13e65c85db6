"""The runner that has the final word: each query in a new interpreter."""

from __future__ import annotations

from torchsleuth.run.runners.client import Served


class Fresh(Served):
    """Asks a new interpreter each time, so that nothing of an earlier query can matter. Takes seconds for each.

    `workers`, `deadline` and `memory` are as for `Warm`.
    """

    def __init__(self, *, workers: int | None = None, deadline: float | None = None, memory: int | None = None) -> None:
        super().__init__(how="spawn", queries=1, workers=workers, deadline=deadline, memory=memory)

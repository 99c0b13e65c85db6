"""A case written ahead of a step that the process may not survive, and discarded when the step is over.

    ahead = write_ahead(watch, settings, graph, inputs, "run")
    ...
    ahead.drop()

It has the failure that it will have if the process dies now; so nobody has to come and complete it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchsleuth import torch_compat
from torchsleuth.capture.graphs import Graph
from torchsleuth.capture.guarding import guarded
from torchsleuth.capture.journal import Doing, InFlight
from torchsleuth.capture.keeping import save
from torchsleuth.capture.watching import Watch
from torchsleuth.case import schema
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.config import Settings
from torchsleuth.outcome import Stage


class _Tensors:
    """The tensors of all cases that this process has written ahead, and when it last asked for each.

    Steps are nested, and share tensors. What none but ourselves has asked for goes with the last of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[int, float]] = {}

    def take(self, root: str, times: Mapping[str, float]) -> None:
        with self._lock:
            for digest, when in times.items():
                holders, _ = self._known.get((root, digest), (0, 0.0))
                self._known[root, digest] = (holders + 1, when)

    def give_back(self, root: str, digests: Iterable[str]) -> dict[str, float]:
        """When each of them was last asked for by us."""
        times = {}
        with self._lock:
            for digest in digests:
                holders, times[digest] = self._known.pop((root, digest))
                if holders > 1:
                    self._known[root, digest] = (holders - 1, times[digest])
        return times


_tensors = _Tensors()


class Ahead:
    """A case that is on the disk for as long as a step takes, and stays there if the process does not survive it."""

    def __init__(
        self, watch: Watch, settings: Settings, store: Store, entry: Listed, case: schema.Case, flight: InFlight
    ) -> None:
        self._watch = watch
        self._settings = settings
        self._store = store
        self._entry = entry
        times = store.tensor_times(case)
        self._digests = tuple(times)
        _tensors.take(store.files.root, times)
        self._flight = flight

    def drop(self) -> None:
        """The step is over, however it went."""
        guarded(self._settings, None, self._drop)

    def _drop(self) -> None:
        self._store.discard(self._entry, _tensors.give_back(self._store.files.root, self._digests))
        self._watch.journal.drop(self._flight)


def write_ahead(watch: Watch, settings: Settings, graph: Graph, inputs: Sequence[Any], doing: Doing) -> Ahead | None:
    """Put the case on the disk that tells of this process's death, in case it dies now."""
    return guarded(settings, None, lambda: _write_ahead(watch, settings, graph, inputs, doing))


def _write_ahead(watch: Watch, settings: Settings, graph: Graph, inputs: Sequence[Any], doing: Doing) -> Ahead:
    store = Store.open(settings.store)
    stage = Stage.RUN if doing == "run" else Stage.UNKNOWN
    did = "ran" if doing == "run" else "compiled"
    failure = schema.Failure(
        schema.Signature("crashed", stage, message=f"the process died while it {did} the graph"),
        # The token keeps this case apart from that of another process or thread with the same graph and inputs.
        message=f"the process {os.getpid()} died while it {did} {graph.name} ({secrets.token_hex(4)})",
    )
    state = graph.state if doing == "compile" else graph.state_now()
    with torch_compat.plain_torch():
        entry, case = save(store, settings, graph, inputs, failure, state)
    flight = InFlight(
        os.getpid(), threading.get_ident(), store.files.root, entry.id, entry.path, doing, graph.name, time.time()
    )
    watch.journal.ahead(flight)
    return Ahead(watch, settings, store, entry, case, flight)

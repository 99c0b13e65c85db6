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
from torchsleuth.capture.history import PROCESS
from torchsleuth.capture.journal import Doing, InFlight
from torchsleuth.capture.keeping import save
from torchsleuth.capture.watching import Watch
from torchsleuth.case import schema
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.config import Settings
from torchsleuth.locks import ForkableLock
from torchsleuth.outcome import Stage
from torchsleuth.run.observing.marks import mark


class _Tensors:
    """The tensors that this process has put into stores for cases written ahead, and when it last asked for each.

    Steps are nested, and share tensors. What none but ourselves has asked for goes with the step that put it there.
    """

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._ours: dict[tuple[str, str], float] = {}

    def take(self, root: str, times: Mapping[str, float], new: Iterable[str]) -> None:
        """A case was saved whose tensors were last asked for at these times; some were not there before."""
        with self._lock:
            for digest, when in times.items():
                if digest in new or (root, digest) in self._ours:
                    self._ours[root, digest] = when

    def give_back(self, root: str, digests: Iterable[str]) -> dict[str, float]:
        """When each of them was last asked for by us."""
        with self._lock:
            return {digest: self._ours.pop((root, digest)) for digest in digests if (root, digest) in self._ours}


_tensors = _Tensors()


class Ahead:
    """A case that is on the disk for as long as a step takes, and stays there if the process does not survive it."""

    def __init__(self, watch: Watch, settings: Settings, graph: Graph, doing: Doing) -> None:
        self._watch = watch
        self._settings = settings
        self._graph = graph
        self._doing: Doing = doing
        self._store = Store.open(settings.store)
        with self._store.files.lock(alone=False):  # makes the store, if there is none
            self._since = self._store.files.now()
            self._before = frozenset(self._store.tensor_digests())
        self._entry: Listed | None = None
        self._new: tuple[str, ...] = ()
        self._flight: InFlight | None = None

    @property
    def is_whole(self) -> bool:
        return self._flight is not None

    def write(self, inputs: Sequence[Any]) -> None:
        stage = Stage.RUN if self._doing == "run" else Stage.COMPILE
        did = "ran" if self._doing == "run" else "compiled"
        failure = schema.Failure(
            schema.Signature("crashed", stage, message=f"the process died while it {did} the graph"),
            # The token keeps this case apart from that of another process or thread with the same graph and inputs.
            message=f"the process {os.getpid()} died while it {did} {self._graph.name} ({secrets.token_hex(4)})",
        )
        state = self._graph.state if self._doing == "compile" else self._graph.state_now()
        with torch_compat.plain_torch():
            # By name only: a case for each would have to go again when this step is over. See `deaths.settle`.
            history = PROCESS.before(self._graph)
            self._entry, case = save(self._store, self._settings, self._graph, inputs, failure, state, history=history)
        times = self._store.tensor_times(case)
        self._new = tuple(times.keys() - self._before)
        _tensors.take(self._store.files.root, times, self._new)
        self._flight = InFlight(
            os.getpid(),
            threading.get_ident(),
            self._store.files.root,
            self._entry.id,
            self._entry.path,
            self._doing,
            self._graph.name,
            time.time(),
        )
        self._watch.journal.ahead(self._flight)

    def drop(self) -> None:
        """The step is over, however it went."""
        try:
            guarded(self._settings, None, self._drop)
        except BaseException as error:  # interrupted: without a second try, a case would tell of a death that never was
            mark(error)
            guarded(self._settings, None, self._drop)
            raise

    def _drop(self) -> None:
        if self._entry is not None:
            tensors = _tensors.give_back(self._store.files.root, self._new)
            self._store.discard(self._entry, tensors, self._since)
            self._entry = None
        if self._flight is not None:
            self._watch.journal.drop(self._flight)
            self._flight = None


def write_ahead(watch: Watch, settings: Settings, graph: Graph, inputs: Sequence[Any], doing: Doing) -> Ahead | None:
    """Put the case on the disk that tells of this process's death, in case it dies now."""
    ahead = guarded(settings, None, lambda: Ahead(watch, settings, graph, doing))
    if ahead is None:
        return None
    try:
        guarded(settings, None, lambda: ahead.write(inputs))
    finally:
        if not ahead.is_whole:
            ahead.drop()
    return ahead if ahead.is_whole else None

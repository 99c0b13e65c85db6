"""The graphs that this process has compiled so far: a failure may need what they left behind.

    PROCESS.add(graph, examples)            it was compiled
    PROCESS.before(graph)                   what was compiled besides it, in words
    PROCESS.keep(store, graph)              the same, each kept as a case of its own, without inputs of the user's

A graph that was compiled is held as the data that its case would be, with recipes in the place of its inputs; the last
few of them, and no more nodes and constants than are cheap to hold. Nothing is written until something fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from torchsleuth.capture.graphs import Graph, without_values
from torchsleuth.capture.held import HeldBlobs
from torchsleuth.capture.journal import Journal
from torchsleuth.case import schema
from torchsleuth.case.format import reading
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import CaseError
from torchsleuth.locks import ForkableLock

log = logging.getLogger("torchsleuth.capture")

MOST: Final = 20
"""How many graphs a case lists."""
MOST_NODES: Final = 10_000
"""How many nodes are held together; the oldest graphs go first."""
MOST_BYTES: Final = 2**20
"""Constants that are held for one graph. One with more is known by name only."""


@dataclass(frozen=True)
class _Past:
    """A graph that was compiled."""

    graph: str
    nodes: int
    number: int
    """Which of the graphs of this process."""
    parent: int | None
    case: schema.Case | None
    blobs: HeldBlobs
    ids: dict[str, str] = field(default_factory=dict)
    """By store: the id that its case got there."""

    def saved(self, store: Store) -> schema.Earlier:
        """Put its case into a store; if that cannot be done, its name has to do."""
        try:
            return schema.Earlier(self.graph, self.nodes, self._save(store))
        except CaseError as error:
            log.debug("%s is in the history by name only: %s", self.graph, error)
            return self.named()

    def _save(self, store: Store) -> str | None:
        root = store.files.root
        if self.case is None or (root in self.ids and store.has(self.ids[root])):
            return self.ids.get(root)
        with self.blobs.written_to(store.blobs):
            self.ids[root] = store.save(self.case).id
        return self.ids[root]

    def named(self) -> schema.Earlier:
        return schema.Earlier(self.graph, self.nodes)


class History:
    """What one process has compiled. A forked child goes on from what its parent had compiled, as torch does."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._past: deque[_Past] = deque(maxlen=MOST + 2)  # the graph that fails and its parent may be among them
        self._parents: set[int] = set()

    def add(self, graph: Graph, examples: Sequence[Any], journal: Journal | None = None) -> None:
        """A graph was compiled for these examples. One of Dynamo's counts if no graphs after AOT came of it.

        `journal`: where its case is written for whoever outlives this process.
        """
        if graph.number in self._parents:
            return
        past = _past_of(graph, examples)
        with self._lock:
            self._past.append(past)
            if past.parent is not None:
                self._parents.add(past.parent)
            while sum(one.nodes for one in self._past if one.case is not None) > MOST_NODES:
                self._past.popleft()
            self._parents &= {one.parent for one in self._past if one.parent is not None}
        if journal is not None and past.case is not None and not past.blobs.nbytes:
            journal.compile(past.graph, past.nodes, reading.encode(past.case))

    def before(self, graph: Graph) -> tuple[schema.Earlier, ...]:
        """What was compiled besides a graph, by name."""
        return tuple(past.named() for past in self._besides(graph))

    def keep(self, store: Store, graph: Graph) -> tuple[schema.Earlier, ...]:
        """The same, with a case for each in the store."""
        return tuple(past.saved(store) for past in self._besides(graph))

    def _besides(self, graph: Graph) -> list[_Past]:
        with self._lock:
            others = [past for past in self._past if graph.number not in (past.number, past.parent)]
        return others[-MOST:]

    def clear(self) -> None:
        """Forget everything, as when torch's compilers are reset."""
        with self._lock:
            self._past.clear()
            self._parents.clear()


def _past_of(graph: Graph, examples: Sequence[Any]) -> _Past:
    nodes = graph.recording.nodes
    parent = None if graph.parent is None else graph.parent.number
    case = None
    if nodes <= MOST_NODES and graph.blobs.nbytes <= MOST_BYTES:
        case = graph.recording.case(
            without_values(examples), graph.compiler, where=graph.identity.where, state=graph.state
        )
        case = msgspec.structs.replace(case, origin=msgspec.structs.replace(case.origin, earlier=True))
    return _Past(graph.name, nodes, graph.number, parent, case, graph.blobs if case is not None else HeldBlobs())


PROCESS: Final = History()
"""That of this process."""

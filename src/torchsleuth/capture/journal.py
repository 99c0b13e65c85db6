"""What watching has kept: in this process, and if a file is named, also there, for whoever outlives us.

    journal = Journal(path)                 the process that is watched writes
    log = read(path)                        its parent reads, when it is dead
    log.in_flight                           cases that were written ahead, for a step that never ended

The file has one JSON value a line. Each line is appended by one call, so that forked children may share the file.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

Doing = Literal["compile", "run"]

log = logging.getLogger("torchsleuth.capture")

_MOST_KEPT: Final = 10_000
MOST_COMPILED: Final = 25
"""How many graphs' cases lie beside a journal."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Kept:
    """A case that was kept."""

    pid: int
    store: str
    case: str
    path: str
    graph: str
    words: str
    """What went wrong, in a line."""
    next: str
    """The next command to type."""


@dataclass(frozen=True)
class InFlight:
    """A case that was written ahead: it stays if the step does not end."""

    pid: int
    thread: int
    store: str
    case: str
    path: str
    doing: Doing
    graph: str
    time: float
    """When it was written."""


@dataclass(frozen=True)
class Compiled:
    """A graph that was compiled, and the file that its case is in."""

    graph: str
    nodes: int
    file: str


@dataclass(frozen=True)
class Log:
    """What a journal says: the cases that were kept, and those that were in flight, outermost step first."""

    kept: tuple[Kept, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    compiled: tuple[Compiled, ...] = ()
    """For the history of the process; the last ones of them."""


class Journal:
    """Remembers the cases of this process. Forked children go on with a list of their own."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._kept: list[Kept] = []
        self._pid = os.getpid()
        self._listeners: tuple[Journal, ...] = ()

    def __deepcopy__(self, _: object) -> Journal:
        """Models are copied with what they were compiled by; there is still one list."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """They are pickled with it as well; there, it begins anew."""
        return Journal, (self.path,)

    @contextmanager
    def told_to(self, listener: Journal) -> Iterator[None]:
        """Inside, `listener` hears of everything as well; where several are open, the one that was opened last."""
        self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

    @property
    def kept(self) -> list[Kept]:
        """The cases that this very process kept, in order."""
        return list(self._kept) if os.getpid() == self._pid else []

    def keep(self, kept: Kept) -> None:
        if os.getpid() != self._pid:
            self._pid, self._kept = os.getpid(), []
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(kept)
        self._write("kept", asdict(kept))
        for listener in self._listeners[-1:]:
            listener.keep(kept)

    @property
    def outlives(self) -> bool:
        """Whether somebody reads it when this process is dead."""
        return self.path is not None or any(listener.outlives for listener in self._listeners[-1:])

    def compile(self, graph: str, nodes: int, case: bytes) -> None:
        """A graph was compiled. Its case lies beside the journal, for the event that a later one kills the process."""
        if self.path is not None:
            number = next(_numbers) % MOST_COMPILED
            file = self.path.with_name(f"{self.path.name}-compiled-{os.getpid()}-{number}")
            try:
                file.write_bytes(case)
            except OSError as error:
                log.debug("%s cannot be written: %s", file, error)
                return
            self._write("compiled", asdict(Compiled(graph, nodes, str(file))))
        for listener in self._listeners[-1:]:
            listener.compile(graph, nodes, case)

    def ahead(self, flight: InFlight) -> None:
        self._write("ahead", asdict(flight))
        for listener in self._listeners[-1:]:
            listener.ahead(flight)

    def drop(self, flight: InFlight) -> None:
        self._write("dropped", {"pid": flight.pid, "store": flight.store, "case": flight.case})
        for listener in self._listeners:
            listener.drop(flight)

    def _write(self, event: str, data: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = json.dumps({"event": event, **data}).encode() + b"\n"
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:  # whoever reads it is gone; the cases are none the worse for it
            log.debug("the journal %s cannot be written: %s", self.path, error)


def read(path: Path) -> Log:
    """What a journal says. A line that was cut off, or is none of ours, is passed over."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Log()
    return _summed_up(_parsed(line) for line in text.splitlines())


def _parsed(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _summed_up(events: Iterable[dict[str, Any]]) -> Log:
    kept: list[Kept] = []
    flights: dict[tuple[Any, Any, Any], InFlight] = {}
    compiled: dict[str, Compiled] = {}
    for event in events:
        what = event.pop("event", None)
        key = (event.get("pid"), event.get("store"), event.get("case"))
        try:
            if what == "kept":
                kept.append(Kept(**event))
            elif what == "ahead":
                flights[key] = InFlight(**event)
            elif what == "dropped":
                flights.pop(key, None)
            elif what == "compiled":
                one = Compiled(**event)
                compiled[one.file] = one
        except TypeError:
            continue
    return Log(tuple(kept), tuple(flights.values()), tuple(compiled.values()))

"""A watched process is dead: what it died of, and what becomes of the cases that it had written ahead.

    death = death_of(ended, stack=..., orderly=...)         None if it came to its own end
    kept = settle(read(journal), pid, death)

At level 3 a case is written before each step, for the event that the process dies in it, and says no more than that.
Now more is known. The innermost step of the thread that died gets its failure told in full; the steps around it are
not cases of their own. What other threads were doing stays as it was written. A step of another process of the program,
one that it forked, stays too if that process is dead, though nobody knows what it died of.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from torchsleuth.capture import program
from torchsleuth.capture.journal import InFlight, Kept, Log
from torchsleuth.case import schema
from torchsleuth.case.format import reading
from torchsleuth.case.plain import printable
from torchsleuth.case.script import expected
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import CaseError, NotFound, in_words
from torchsleuth.outcome import Crashed, Outcome, OutOfMemory, Stage, TimedOut, signal_name
from torchsleuth.run.child import Ended

_LONGEST: Final = 100_000
_NO_FRAME: Final = "<no Python frame>"
_FATAL: Final = re.compile(r"^Fatal Python error: ", re.MULTILINE)
_THREAD: Final = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)[^\n]*\n(?:  [^\n]*\n?)*", re.MULTILINE)
_OURS: Final = re.compile(
    rf'(?:^  File "{re.escape(program.__file__)}", line [^\n]*\n)+(?:^  File "<string>", line [^\n]*\n)?', re.MULTILINE
)
"""The frames of the child's that are below the program's."""
_DID: Final = {"compile": "compiled", "run": "ran"}


@dataclass(frozen=True)
class Death:
    """The end of a process that was none of its own choosing."""

    kind: Literal["crashed", "timed out", "out of memory"]
    words: str
    """How it ended: "died of SIGSEGV"."""
    signal: int | None = None
    exit_code: int | None = None
    stopped: bool = False
    """Somebody stopped it. How long it had been busy says why."""
    stack: str = ""
    """What Python's fault handler wrote."""
    time: float = field(default_factory=time.time)

    @property
    def is_violent(self) -> bool:
        """It did not leave by a call of its own."""
        return self.kind != "crashed" or self.signal is not None

    @property
    def thread(self) -> int | None:
        """The thread that died; None if it is not known, or was no thread of Python's."""
        for found in _THREAD.finditer(self.stack):
            if found[1] == "Current thread" and _NO_FRAME not in found[0]:
                return int(found[2], 16)
        return None

    def stack_of(self, thread: int) -> str:
        """The part of the stack that is one thread's; all of it, if that thread is not in it."""
        parts = (found[0] for found in _THREAD.finditer(self.stack) if int(found[2], 16) == thread)
        return next(parts, self.stack)


def death_of(ended: Ended, *, stack: str = "", orderly: bool = False) -> Death | None:
    """What a process died of. `orderly`: Python came to its own end, by an exception or without one."""
    starts = [found.start() for found in _FATAL.finditer(stack)]
    stack = _OURS.sub("", stack[starts[-1] if starts else 0 :])  # a process that it forked may have left one as well
    if ended.out_of_time is not None:
        return Death("timed out", f"was out of time after {ended.out_of_time:g} s", ended.signal, stack=stack)
    if ended.stopped_by is not None and ended.signal is not None:
        words = f"was stopped with {signal_name(ended.stopped_by)}"
        return Death("timed out", words, ended.signal, stopped=True, stack=stack)
    if ended.out_of_memory:
        return Death("out of memory", "was killed for want of memory", ended.signal, stack=stack)
    if ended.signal is not None:
        return Death("crashed", f"died of {signal_name(ended.signal)}", ended.signal, stack=stack)
    if orderly:
        return None
    return Death("crashed", f"left with exit code {ended.code}, past Python's own end", exit_code=ended.code)


def settle(
    log: Log, pid: int, death: Death | None, *, both: bool = False, is_alive: Callable[[int], bool] | None = None
) -> list[Kept]:
    """Bring the cases in flight to what is known now that the process `pid` has ended; return those that stay.

    `both`: the step around the one that it died in stays too, as the case that the other one came from.
    """
    is_alive = is_alive or _is_alive
    kept: list[Kept] = []
    for process in dict.fromkeys(flight.pid for flight in log.in_flight):
        flights = [flight for flight in log.in_flight if flight.pid == process]
        if process != pid and is_alive(process):
            continue
        settling = _Settling(log, flights, death if process == pid else _UNKNOWN, both)
        kept += settling.abandoned() if process == pid and death is None else settling.kept()
    return kept


_UNKNOWN: Final = Death("crashed", "died", time=0.0)
"""Of a process that was not our child, that is all."""


def _is_alive(pid: int) -> bool:
    """A process that is only waiting for its parent to ask after it is dead."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return not Path("/proc/self/stat").exists()


class _Settling:
    """The steps that one process was in when it ended."""

    def __init__(self, log: Log, flights: list[InFlight], death: Death | None, both: bool) -> None:
        self._log = log
        self._flights = flights
        self._death = death or _UNKNOWN
        self._both = both

    def abandoned(self) -> list[Kept]:
        """It came to its own end, and left threads behind that were busy: that is no failure."""
        self._remove(self._flights)
        return []

    def kept(self) -> list[Kept]:
        by_thread: dict[int, list[InFlight]] = {}
        for flight in self._flights:
            by_thread.setdefault(flight.thread, []).append(flight)
        guilty = self._guilty(by_thread)
        kept = []
        for flights in by_thread.values():
            innermost = flights[-1]
            with _told(f"the case {innermost.path} could not be completed"):
                if innermost is guilty:
                    kept.append(self._completed(flights))
                else:
                    kept.append(_complete(innermost, None, self._log))
        self._remove((flight for flights in by_thread.values() for flight in flights[:-1]), kept)
        return kept

    def _completed(self, flights: list[InFlight]) -> Kept:
        """The innermost of nested steps, and the one around it as its parent, if that is wanted."""
        parent = None
        if self._both and len(flights) > 1:
            with _told(f"the case {flights[-2].path} could not be completed"):
                parent = _complete(flights[-2], self._death, self._log).case
        return _complete(flights[-1], self._death, self._log, parent)

    def _guilty(self, by_thread: dict[int, list[InFlight]]) -> InFlight | None:
        """The step that the process died in."""
        if self._death is _UNKNOWN:
            return None
        thread = self._death.thread
        if thread in by_thread:
            return by_thread[thread][-1]
        # A request for the stack reaches any thread, mostly one that waits for another.
        asked = self._death.kind == "timed out"
        return self._flights[-1] if thread is None or asked else None

    def _remove(self, flights: Iterable[InFlight], kept: Iterable[Kept] = ()) -> None:
        flights = list(flights)
        parents = set(self._parents(kept)) if flights else set()
        for flight in flights:
            if flight.case not in parents:
                with _told(f"the case {flight.path} could not be removed"), contextlib.suppress(NotFound):
                    Store.open(flight.store).remove(flight.case)

    def _parents(self, kept: Iterable[Kept]) -> Iterator[str]:
        """The cases that others name as what they came from."""
        known: list[Kept | InFlight] = [*kept, *self._log.kept, *self._log.in_flight]
        for one in known:
            with contextlib.suppress(Exception):
                parent = Store.open(one.store).load(one.case).origin.parent
                if parent is not None:
                    yield parent


def _complete(flight: InFlight, death: Death | None, log: Log, parent: str | None = None) -> Kept:
    """The case with what is known of the death, and with its script beside it."""
    from torchsleuth.capture.keeping import next_command, write_script

    store = Store.open(flight.store)
    case, listed = store.load(flight.case), store.entry(flight.case)
    if death is not None:
        with _told(f"what is known of the death could not be added to the case {flight.path}"):
            history = tuple(_kept_earlier(store, one, log) for one in case.origin.history)
            origin = msgspec.structs.replace(case.origin, parent=parent or case.origin.parent, history=history)
            complete = msgspec.structs.replace(case, failure=_failure(flight, death, case.failure), origin=origin)
            listed, case = store.save(complete), complete
    with _told(f"the script of the case {listed.path} could not be written"):
        write_script(store, listed, case)
    if listed.id != flight.case:
        with _told(f"the case {flight.path} could not be removed"):
            store.remove(flight.case)
    stage = case.failure.signature.stage if case.failure else Stage.UNKNOWN
    words = f"{flight.graph}, {stage}: {expected.in_words(case.failure)}"
    following = next_command(listed, flight.store, case)
    return Kept(flight.pid, flight.store, listed.id, listed.path, flight.graph, words, following)


def _kept_earlier(store: Store, earlier: schema.Earlier, log: Log) -> schema.Earlier:
    """A graph that the process had compiled before, with a case of its own, if it left that beside its journal."""
    for one in log.compiled:
        if (one.graph, one.nodes) == (earlier.graph, earlier.nodes):
            with contextlib.suppress(OSError, CaseError):
                case = reading.decode(Path(one.file).read_bytes(), file=one.file)
                return msgspec.structs.replace(earlier, case=store.save(case).id)
    return earlier


def _failure(flight: InFlight, death: Death, before: schema.Failure | None) -> schema.Failure:
    stack = death.stack_of(flight.thread)
    signature = _signature(death, _stage(flight, stack, before), stack)
    busy = max(death.time - flight.time, 1.0)
    did = f"{_DID[flight.doing]} {flight.graph}"
    if death.stopped:
        message = f"the process {flight.pid} {death.words} after {busy:.0f} s in which it {did}"
    else:
        message = f"the process {flight.pid} {death.words} while it {did}"
    return schema.Failure(signature, message=message, traceback=printable(death.stack)[:_LONGEST])


def _signature(death: Death, stage: Stage, stack: str) -> schema.Signature:
    from torchsleuth.run.observing.signatures import failure_of
    from torchsleuth.run.observing.stacks import frames_of_dump

    frames = frames_of_dump(stack)
    found: Outcome
    match death.kind:
        case "timed out":
            found = TimedOut(stage, frames=frames)
        case "out of memory":
            found = OutOfMemory(stage)
        case "crashed":
            found = Crashed(stage, signal=death.signal or 0, exit_code=death.exit_code, frames=frames)
    return failure_of(found).signature


def _stage(flight: InFlight, stack: str, before: schema.Failure | None) -> Stage:
    if flight.doing == "run":
        return Stage.RUN
    from torchsleuth.run.observing.stages import locate_stack

    return locate_stack(stack, default=before.signature.stage if before else Stage.UNKNOWN)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """The exit code is the program's, whatever happens to the store: our trouble is a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"{what}: {in_words(error)}", stacklevel=2)

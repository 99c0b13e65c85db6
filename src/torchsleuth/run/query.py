"""A question about a case, and whoever answers it.

    query = Query(found.case, tensors=found.home)
    with Warm() as runner:
        outcome = runner.run(query)

    Runner ── InProcess     here: fast, and a crash takes us along
           ├─ Fresh         a new interpreter for each query: the final word
           ├─ Warm          workers forked from a server that has imported everything: as safe, and fast
           └─ Scripted      what a test says

A query is data: it goes to another process as it is. Whatever happens there is an `Outcome`; `run` never raises because
of what the query did.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from torchsleuth.case import schema
from torchsleuth.outcome import Outcome, Stage

Progress: TypeAlias = Callable[[Stage, int, int], None]
"""Is told which stage begins, and how much of it is done: (stage, done, of how much). 0 of 0: nobody knows."""

_T = TypeVar("_T", bound="Runner")


class Checks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How results are compared."""

    tolerance: float = 1e-3
    fp64: bool = True
    ignore_non_fp: bool = False
    forward_only: bool = False
    judged: bool = True
    """What differs is a failure only if rounding does not explain it. False: the tolerance alone decides, as in torch's
    own tool."""
    require_fp64: bool = False
    """Where the tolerance alone decides: without an fp64 reference nothing is known."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Compile and run this, and say what happens."""

    case: schema.Case
    tensors: str = ""
    """Where its tensors are (`Found.home`). Not needed by a case that has none."""
    compiler: str | None = None
    """Another compiler than the case's own: a backend of torch's, or (trusted only) `module:function`."""
    accuracy: bool | None = None
    """Compare with eager. None: if the recorded failure is a wrong result, or there is none."""
    checks: Checks = Checks()
    find_op: bool = False
    """Look for the operator to blame for a wrong result, by one more compilation."""
    record: str = ""
    """A file to which is written what eager computes at each node; the tensors go to where those of the case are.
    Nothing is compiled."""
    strict: bool = False
    """Eager has to run on inputs that were made up as well: where it does not, a failure to compile does not count."""
    trust: bool = False
    """Code that is not torch's own may run: custom operators, backends."""
    history: tuple[schema.Case, ...] = ()
    """Graphs that are compiled and run before it in the same process (their tensors are in the same place)."""
    alone: bool = False
    """Only a process that has answered nothing yet may answer it."""
    deadline: float | None = None
    """Seconds. None: as the runner has it."""
    memory: int | None = None
    """Bytes. None: as the runner has it."""


class Runner(Protocol):
    """Answers queries. To be closed when it is no longer needed."""

    def run(self, query: Query, progress: Progress | None = None) -> Outcome:
        """The outcome of a query."""

    def submit(self, query: Query) -> Future[Outcome]:
        """The same, for those who have more than one thing to do."""

    def close(self) -> None:
        """End whatever was started. May be called twice."""

    def __enter__(self: _T) -> _T: ...

    def __exit__(self, *raised: object) -> None: ...


class Closing:
    """A runner that is closed at the end of a `with`."""

    def start(self) -> None:
        """Begin to get ready, for those in a hurry. Whoever asks does so by itself."""

    def close(self) -> None:
        """End whatever was started."""

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


_C = TypeVar("_C", bound=Closing)


class AtOnce(Closing):
    """A runner that answers while it is asked."""

    def run(self, query: Query, progress: Progress | None = None) -> Outcome:
        """The outcome of a query."""
        raise NotImplementedError

    def submit(self, query: Query) -> Future[Outcome]:
        """The future has its result already."""
        future: Future[Outcome] = Future()
        try:
            future.set_result(self.run(query))
        except Exception as error:  # noqa: BLE001 - it is the future's to raise
            future.set_exception(error)
        return future


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Query)


def to_bytes(query: Query) -> bytes:
    """A query on its way to another process."""
    return _ENCODER.encode(query)


def from_bytes(data: bytes) -> Query:
    return _DECODER.decode(data)

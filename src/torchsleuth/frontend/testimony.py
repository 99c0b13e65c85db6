"""What a witness says: who is at fault, why, and the runs that this goes by. Data; `witness` makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchsleuth.compare import Judgement, Results
from torchsleuth.frontend.aligning import Difference
from torchsleuth.frontend.breaks import GraphBreak
from torchsleuth.outcome import Outcome, Stage, Word


class Blame(Word):
    """Who is at fault."""

    NOBODY = "nobody"
    FRONT_END = "the front end"
    """Dynamo: what turns the program into graphs."""
    BACKEND = "the backend"
    """Whatever compiles the graphs: AOT, or the backend's own compiler."""
    OURS = "torchsleuth"
    """Our own front end: a bug to report to us."""
    UNCLEAR = "unclear"


class Way(Word):
    """A way to run the function."""

    EAGER = "eager"
    DYNAMO = "Dynamo"
    OURS = "torchsleuth"
    GRAPHS = "Dynamo's graphs alone"
    """The graphs that Dynamo made, given to the backend without Dynamo."""


class Standing(Word):
    """What a run is, held against eager."""

    RIGHT = "right"
    NOISE = "right, up to rounding"
    WRONG = "wrong"
    UNKNOWN = "no telling"

    @property
    def is_right(self) -> bool:
        return self in (Standing.RIGHT, Standing.NOISE)


def described(failure: Outcome) -> str:
    """A failure in words, with its stage if that is known."""
    return failure.describe().replace(f" ({Stage.UNKNOWN})", "", 1)


@dataclass(frozen=True, eq=False)
class Run:
    """One way to run the function, and what came of it."""

    way: Way
    backend: str
    standing: Standing
    words: str
    failure: Outcome | None = None
    """How it failed, if there is no result: `Raised`, `Crashed` or `TimedOut`."""
    effect: str = ""
    """What it has done otherwise to objects of Python's, or gives in another form, if that is what is wrong."""
    judgement: Judgement | None = field(default=None, repr=False)
    """What the difference was weighed by, if there was one to weigh."""
    results: Results | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return str(self.way) if self.way is Way.EAGER else f"{self.way} with {self.backend}"

    @property
    def stands(self) -> str:
        """The standing in words. Eager is not held against itself: it fails, or it does not."""
        return "fails" if self.way is Way.EAGER and self.failure is not None else self.standing.value

    def data(self) -> dict[str, Any]:
        return {
            "run": self.way.value,
            "backend": self.backend,
            "standing": self.stands,
            "words": self.words,
            "failure": None if self.failure is None else described(self.failure),
        }


@dataclass(frozen=True)
class KeptCase:
    """A case that was made of a backend's failure."""

    path: str
    words: str
    """What goes wrong, in a line."""
    next: str
    """The next command to type."""


@dataclass(frozen=True, eq=False)
class Testimony:
    """The verdict, and all that it goes by."""

    blame: Blame
    reason: str
    backend: str
    eager: Run
    dynamo: Run
    ours: Run
    further: tuple[Run, ...] = ()
    """What was measured besides: with simpler backends, or of Dynamo's graphs without Dynamo."""
    difference: Difference = field(default_factory=Difference, repr=False)
    """The graphs of the two front ends, node by node."""
    breaks: tuple[GraphBreak, ...] = ()
    """Where our own front end broke the graph."""
    no_witness: str = ""
    """Why our run says nothing of the backend, though it may be right: it was not the compiled graphs that ran."""
    part: str = ""
    """Which part of the backend it is, if that is known."""
    notes: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    """Where our own translator has left records of its faults."""
    cases: tuple[KeptCase, ...] = ()
    """What was kept of the backend's failure, as cases in the store."""

    @property
    def somebody_is_wrong(self) -> bool:
        """Whether one of the two compiled runs is wrong, whoever is to blame for it."""
        compiled = self.dynamo, self.ours
        if self.eager.failure is not None:
            return False
        if not self.eager.standing.is_right:  # values tell nothing, but eager has come to an end
            return any(run.failure is not None for run in compiled)
        return any(run.standing is Standing.WRONG for run in compiled)

    @property
    def we_failed(self) -> bool:
        """Whether all that is wrong is that our own translator has failed, and gone on natively."""
        return self.blame is Blame.OURS and not self.somebody_is_wrong

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.eager, self.dynamo, self.ours, *self.further

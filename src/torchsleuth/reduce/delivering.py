"""The last step: of the cases that a reduction went through, the smallest whose script fails in a fresh interpreter.

It is saved, and its script lies beside it. One that does not fail there is of no use to anybody: then a larger one is
looked for, by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace as replaced
from pathlib import Path
from typing import Protocol

from torchsleuth.case.schema import Case, Failure
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.stores.store import Listed
from torchsleuth.reduce.executors import Answer
from torchsleuth.reduce.graphs import replace
from torchsleuth.reduce.places import Place
from torchsleuth.run import delivery as deliveries
from torchsleuth.run.delivery import Delivery, deliver


@dataclass(frozen=True)
class Delivered:
    """A case that was saved, and what its script did."""

    case: Case
    entry: Listed
    delivery: Delivery
    is_new: bool

    @property
    def failed(self) -> bool:
        """Whether the script was run and did something else."""
        return self.delivery.reproduces is False


class Deliver(Protocol):
    """Writes the script of a case, and runs it: `run.delivery.deliver`, or somebody else's."""

    def __call__(
        self, blobs: Blobs, case: Case, out: Path, *, trust: bool, run: bool, runner: deliveries.Runner
    ) -> Delivery: ...


@dataclass(frozen=True)
class Delivering:
    """Saves cases that came of another one."""

    place: Place
    parent: str | None
    """The id of that one."""
    trust: bool
    run_script: deliveries.Runner
    lasting: Callable[[Case, Failure], Failure | None]
    """How a case fails if it is given as much time as it takes to be sure. None: it does not."""
    deliver: Deliver | None = None
    """Who writes and runs scripts. None: the engine itself."""

    def smallest(self, trail: Sequence[tuple[Case, Answer | None]]) -> tuple[Delivered, list[Delivered]]:
        """The smallest that reproduces, or else the smallest; and those that were tried and do not.

        `trail`: from the whole case to the smallest one, each with how it failed.
        """
        best = self._deliver(*trail[-1])
        failed = [best] if best.failed else []
        low, high = 0, len(trail) - 1
        while failed and high - low > 1:
            middle = (low + high) // 2
            tried = self._deliver(*trail[middle])
            if tried.failed:
                high = middle
                failed.append(tried)
            else:
                low, best = middle, tried
        failed = [one for one in failed if one is not best]
        for one in failed:
            if one.is_new:
                self.place.store.remove(one.entry.id)
        return best, failed

    def save(self, case: Case, failure: Failure | None) -> Listed:
        """Keep a case as one of its own."""
        return self.place.store.save(self._descended(case, failure))

    def _deliver(self, case: Case, answer: Answer | None) -> Delivered:
        store = self.place.store
        seen = None if answer is None else answer.failure
        lasting = None if seen is None else self.lasting(case, seen)
        before = set(store.case_names())
        entry = self.save(case, lasting or seen)
        delivery = (self.deliver or deliver)(
            store.blobs,
            self._descended(case, lasting or seen),
            self.place.script(entry),
            trust=self.trust,
            run=lasting is not None,
            runner=self.run_script,
        )
        if seen is not None and lasting is None:
            delivery = replaced(delivery, reproduces=False, seen="it ends after all, if it is given more time")
        return Delivered(case, entry, delivery, entry.id not in before)

    def _descended(self, case: Case, failure: Failure | None) -> Case:
        origin = replace(case.origin, parent=self.parent, history=(), earlier=False)
        return replace(case, failure=failure or case.failure, origin=origin, todo=None)

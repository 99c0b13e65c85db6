"""Round by round: the search for fewer operators, then each pass, as long as something helps.

reduce_with(problem, material)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import partial

from torchsleuth.errors import SleuthError
from torchsleuth.reduce.events import Entered
from torchsleuth.reduce.operators import fewer_operators
from torchsleuth.reduce.patches import Material
from torchsleuth.reduce.problem import Problem, Stopped
from torchsleuth.reduce.restricting import Values
from torchsleuth.reduce.scheduling import run_pass
from torchsleuth.reduce.tiers import OPERATORS, TIERS, Tier

log = logging.getLogger("torchsleuth.reduce")


def reduce_with(
    problem: Problem,
    material: Material,
    values: Callable[[], Values | None] = lambda: None,
    *,
    tiers: Sequence[Tier] = TIERS,
) -> list[str]:
    """Make the best case of a problem as small as it can be, round by round until a whole round was in vain.

    In the end none of the operators can be left out by itself, and no pass has anything new to say. `values` is asked
    for what eager computes at each node of the best case. What is returned are the passes that failed: that is a fault
    of ours, and no reason to lose what the others have found.
    """
    rounds = _Rounds(problem)
    while True:
        before = problem.best
        stirred = frozenset[str]() if problem.at_edge else rounds.changed
        rounds.run(OPERATORS, "fewer operators", OPERATORS, stirred, lambda: fewer_operators(problem, values()))
        for tier in tiers:
            attempt = partial(run_pass, problem, tier.proposes, material, tier.way)
            rounds.run(tier.name, tier.words, tier.group, tier.stirred, attempt)
        if problem.best is before:
            return rounds.failed


class _Rounds:
    """Knows what has changed since a pass was run."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._changes: Counter[str] = Counter()
        self._seen: dict[str, Counter[str]] = {}
        self.failed: list[str] = []

    @property
    def changed(self) -> Set[str]:
        """The groups of which something has changed."""
        return self._changes.keys()

    def run(self, name: str, words: str, group: str, stirred: Set[str], attempt: Callable[[], object]) -> None:
        """Run a pass, if it was not yet, or if something has changed that may give it a new chance."""
        if name in self._seen and not any(self._changes[one] > self._seen[name][one] for one in stirred):
            return
        self._problem.tell(Entered(name, words))
        before = self._problem.best
        try:
            attempt()
        except (SleuthError, Stopped):
            raise
        except Exception:
            log.exception("the pass %s failed", name)
            if name not in self.failed:
                self.failed.append(name)
        self._seen[name] = Counter(self._changes)  # what it changed itself may give it another chance
        self._changes[group] += self._problem.best is not before

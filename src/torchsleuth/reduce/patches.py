"""What a pass proposes: edits of a case that can be put together.

    Patch       one edit: takes a case, and gives another, or None where it cannot be applied (any more)
    Site        edits of one place that exclude each other, the best first
    Pass        looks at a case and yields sites

A pass is a plain function, and a list of passes is data. It never asks whether a case still fails: whoever tries the
patches does (`scheduling`), in which order, how many at a time, and which of them together.

The contract of a pass:

- It is a function of the case and the material alone. The same case gives the same sites in the same order.
- Sites are independent as far as the pass can tell: the patches of two sites may both be applied, in either order.
  Patches find what they change by name, so that one can be applied to a case that others have changed.
- What a patch makes is legal: every reference has its node, inputs and placeholders agree, and what nodes are known to
  produce (`Meta.val`) is what they do produce (`propagating.propagated`).
- What a patch makes is smaller (`order.size_of`). Whoever tries it makes sure, so a pass may propose what turns out
  not to be; it only costs time.
- It looks at the case once. Whether to look again at what came of it is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torchsleuth.case.schema import Case
from torchsleuth.case.storages.blobs import Blobs


@dataclass(frozen=True)
class Patch:
    """One edit of a case."""

    words: str
    """What it does, for people: "x: zeros"."""
    apply: Callable[[Case], Case | None]
    """None: there is nothing to change here."""

    def __call__(self, case: Case) -> Case | None:
        return self.apply(case)


Site: TypeAlias = Sequence[Patch]
"""Ways to change one place, the best first. At most one of them is taken."""


@dataclass(frozen=True)
class Material:
    """What passes may use besides the case."""

    blobs: Blobs
    """Where the bytes of its tensors are, and where new ones are put."""
    values_matter: bool = True
    """Whether the failure may depend on the values of inputs: not if it is the compiler that fails."""


Pass: TypeAlias = Callable[[Case, Material], Iterable[Site]]


def combined(patches: Sequence[Patch]) -> Patch:
    """All of them, one after another. One that has nothing left to change is no obstacle, unless none has anything."""

    def apply(case: Case) -> Case | None:
        found: Case | None = None
        for patch in patches:
            changed = patch(case if found is None else found)
            found = found if changed is None else changed
        return found

    return Patch(f"{len(patches)} at once" if len(patches) > 1 else patches[0].words, apply)

"""The passes, in the order in which they are run: from what makes the most of it to what is mere neatness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchsleuth.reduce.patches import Pass


@dataclass(frozen=True)
class Tier:
    """A pass, and what it is called."""

    name: str
    words: str
    """What it does, for people."""
    proposes: Pass


TIERS: Final[tuple[Tier, ...]] = ()

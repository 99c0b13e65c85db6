"""The passes, in the order in which they are run: from what makes the most of it to what is mere neatness.

What makes a query cheaper comes early (no gradients, fewer results), what other passes may still change comes late
(values after sizes, settings after the graph).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchsleuth.reduce.passes import (
    arguments,
    bodies,
    bypassing,
    dtypes,
    inlining,
    inputs,
    layouts,
    replacing,
    shapes,
    simplifying,
    surroundings,
    symbols,
    values,
)
from torchsleuth.reduce.patches import Pass


@dataclass(frozen=True)
class Tier:
    """A pass, and what it is called."""

    name: str
    words: str
    """What it does, for people."""
    proposes: Pass
    likely: bool = False
    """Whether most of what it proposes will do."""


TIERS: Final[tuple[Tier, ...]] = (
    Tier("outputs", "fewer results", inputs.outputs),
    Tier("plain inputs", "inputs without gradients", inputs.plain_inputs),
    Tier("inlining", "nested graphs in place of their calls", inlining.inlined),
    Tier("bodies", "smaller nested graphs", bodies.shrunk_bodies),
    Tier("operands", "fewer operands of nested graphs", inlining.unused_operands),
    Tier("bypassing", "values in place of calls", bypassing.bypassed),
    Tier("replacing", "inputs and constants in place of calls", replacing.replaced),
    Tier("unused inputs", "no unused inputs", inputs.unused_inputs),
    Tier("merging", "one input in place of several", inputs.merged_inputs),
    Tier("simplifying", "simpler operators", simplifying.simplified),
    Tier("arguments", "simpler arguments", arguments.arguments),
    Tier("concrete sizes", "numbers in place of symbolic sizes", symbols.concrete),
    Tier("symbolic sizes", "smaller symbolic sizes", shapes.symbols),
    Tier("lengths", "smaller sizes", shapes.lengths),
    Tier("dimensions", "smaller dimensions", shapes.dimensions),
    Tier("ranks", "fewer dimensions", layouts.ranks),
    Tier("strides", "plain strides", layouts.strides),
    Tier("dtypes", "simpler dtypes", dtypes.dtypes),
    Tier("constants", "constants without data", inputs.plain_constants),
    Tier("values", "simpler values", values.values),
    Tier("numbers", "simpler numbers", values.numbers),
    Tier("settings", "settings as they are by default", surroundings.settings, likely=True),
    Tier("facts", "no facts about sizes that nobody needs", symbols.unused_facts),
    Tier("code", "no code that nobody calls", surroundings.unused_code),
    Tier("notes", "no notes of compilers", surroundings.notes),
)

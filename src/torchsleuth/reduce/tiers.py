"""The passes, in the order in which they are run: from what makes the most of it to what is mere neatness.

What makes a query cheaper comes early (no gradients), and so does what changes nothing for other passes (settings);
what others may still change comes late (values after sizes). A pass is run again when something has changed that may
give it a new chance: sizes after the graph, or after values (of drawn numbers the first few may all be negative), but
hardly the graph after values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torchsleuth.case.schema import Case
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
from torchsleuth.reduce.patches import Material, Pass, Site
from torchsleuth.reduce.scheduling import Way


@dataclass(frozen=True)
class Tier:
    """A pass, what it is called, and when it is worth another try."""

    name: str
    words: str
    """What it does, for people."""
    proposes: Pass
    group: str
    """What it changes."""
    stirred: frozenset[str]
    """What has to have changed, so that it may find something new: groups."""
    way: Way = "each"
    """How what it proposes is tried."""


OPERATORS: Final = "operators"
"""The group of whatever the search for fewer operators changes."""
_GRAPH: Final = frozenset({OPERATORS, "graph"})
_SIZES: Final = _GRAPH | {"sizes"}
_VALUES: Final = _SIZES | {"values"}


def _around(name: str, words: str, proposes: Pass, way: Way = "each") -> Tier:
    return Tier(name, words, proposes, "surroundings", _GRAPH, way)


def _graph(name: str, words: str, proposes: Pass, stirred: frozenset[str] = _GRAPH) -> Tier:
    return Tier(name, words, proposes, "graph", stirred)


def _sizes(name: str, words: str, proposes: Pass, stirred: frozenset[str] = _SIZES) -> Tier:
    return Tier(name, words, proposes, "sizes", stirred)


def _values(name: str, words: str, proposes: Pass) -> Tier:
    return Tier(name, words, proposes, "values", _VALUES)


def _tidied(case: Case, material: Material) -> Iterator[Site]:
    """Whatever is said besides the graph and the options: it hardly ever matters."""
    for proposes in (surroundings.notes, surroundings.unused_code, symbols.unused_facts, surroundings.settings):
        yield from proposes(case, material)


def _defaults(case: Case, material: Material) -> Iterator[Site]:
    """All of that, and the options: most often none of it is of any importance."""
    yield from _tidied(case, material)
    yield from surroundings.options(case, material)


def _facts(case: Case, material: Material) -> Iterator[Site]:
    """Of cases with symbolic sizes: there may be fewer now."""
    return symbols.unused_facts(case, material) if case.symbols.symbols else iter(())


TIERS: Final[tuple[Tier, ...]] = (
    _graph("plain inputs", "inputs without gradients", inputs.plain_inputs),
    _around("defaults", "everything around it as it is by default", _defaults, "together"),
    _around("settings", "settings as they are by default", _tidied, "halves"),
    _around("options", "options as they are by default", surroundings.options, "halves"),
    _around("concrete sizes", "numbers in place of symbolic sizes", symbols.concrete),
    _around("facts", "no facts about sizes that nobody needs", _facts),
    _graph("outputs", "fewer results", inputs.outputs),
    _graph("inlining", "nested graphs in place of their calls", inlining.inlined),
    _graph("bodies", "smaller nested graphs", bodies.shrunk_bodies),
    _graph("operands", "fewer operands of nested graphs", inlining.unused_operands),
    _graph("bypassing", "values in place of calls", bypassing.bypassed),
    _graph("replacing", "inputs and constants in place of calls", replacing.replaced),
    _graph("unused inputs", "no unused inputs", inputs.unused_inputs),
    _graph("merging", "one input in place of several", inputs.merged_inputs, _SIZES),
    _graph("simplifying", "simpler operators", simplifying.simplified),
    _graph("arguments", "simpler arguments", arguments.arguments, _SIZES),
    _sizes("one number", "one whole number all over", values.uniform),
    _sizes("symbolic sizes", "smaller symbolic sizes", shapes.symbols, _VALUES),
    _sizes("lengths", "smaller sizes", shapes.lengths, _VALUES),
    _sizes("dimensions", "smaller dimensions", shapes.dimensions, _VALUES),
    _sizes("ranks", "fewer dimensions", layouts.ranks),
    _sizes("strides", "plain strides", layouts.strides),
    _sizes("dtypes", "simpler dtypes", dtypes.dtypes),
    _values("constants", "constants without data", inputs.plain_constants),
    _values("values", "simpler values", values.values),
    _values("numbers", "simpler numbers", values.numbers),
)

"""Where to look first: what the failure itself says, and what a small sample of the graph may show.

    for guess in guesses(whole, failure): ...

Each guess is a set of operators that may be enough, small ones first. One that is right saves most of the search, and
one that is wrong costs a question about a small graph, the cheapest there is: so there are few of them.

A wrong result that names no operator is most often that of one alone. So the first of each sort is tried by itself,
many in one graph: which of its results is wrong says which operator it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torchsleuth.case.schema import Case, Failure, Fake, Graph, List, Node, Ref, Tuple, Value
from torchsleuth.case.signatures import operator_name
from torchsleuth.reduce.graphs import is_call, name_of, output_of, placeholders, produced, refs_of, users_of
from torchsleuth.reduce.restricting import Whole
from torchsleuth.reduce.writing import written_by

_STEPS: Final = (1, 2)
"""How far around a node that is named."""
_NO_WORK: Final = frozenset(
    "view reshape _unsafe_view permute transpose t expand unsqueeze squeeze clone detach alias getitem".split()
)
"""What kernels do on the way, named with the rest, and hardly ever at fault."""
_FEW: Final = 4
"""So few that are named are tried one by one: most bugs are of one operator."""
_PART: Final = 4
"""One part in so many of the whole is the most that is tried of what led to a wrong result."""
_PATH: Final = re.compile(r"(?P<what>output|inputs)(?P<places>(\[\d+\])*)")
_FRACTION: Final = 2
"""A sample is of use if it is at most one part in so many of the whole."""


@dataclass(frozen=True)
class Guess:
    """Operators that may be enough: as they hang together, or each by itself."""

    names: frozenset[str]
    apart: bool = False

    def of(self, whole: Whole) -> Case | None:
        return whole.apart(self.names) if self.apart else whole.only(self.names, outputs=False)


def guesses(whole: Whole, failure: Failure | None) -> Iterator[Guess]:
    """Sets of operators that may be enough to fail like that."""
    seen: set[Guess] = set()
    for guess in (*_alone(whole, failure), *(Guess(frozenset(names)) for names in _all(whole, failure))):
        if guess.names and guess not in seen and len(guess.names) < len(whole.operators):
            seen.add(guess)
            yield guess


def _alone(whole: Whole, failure: Failure | None) -> Iterator[Guess]:
    """The first of each sort by itself, in two graphs, if a wrong result names no operator.

    Of those that led to it, if that is known: others may be wrong in a way that nobody has noticed.
    """
    if failure is None or failure.signature.kind != "mismatched" or failure.signature.op is not None:
        return
    suspects = _leading_to(whole, failure.path) or whole.operators
    found = [name for name in _of_each_sort(whole, suspects) if name_of(whole.known[name]) not in _NO_WORK]
    if len(found) > 1:
        yield from (Guess(frozenset(found[half::2]), apart=True) for half in (0, 1))


def _all(whole: Whole, failure: Failure | None) -> Iterator[Iterable[str]]:
    if failure is not None:
        if failure.node in set(whole.operators):
            yield {failure.node}
            yield from _around(whole, failure.node)
        named = _named(whole, failure.signature.op or failure.kernel)
        working = [name for name in named if name_of(whole.known[name]) not in _NO_WORK]
        yield from _parts(_firsts(whole, working))
        yield working
        yield named
        yield from _behind(whole, failure.path)
    yield sample(whole, whole.operators)


def _firsts(whole: Whole, names: Iterable[str]) -> list[str]:
    """The first of each sort."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name_of(whole.known[name]), name)
    return list(found.values())


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Each by itself, or thirds of many: if one of them is to blame, that is the fastest way to it."""
    size = 1 if len(names) <= _FEW else -(-len(names) // 3)
    return (names[start : start + size] for start in range(0, len(names), size))


def likely_needed(whole: Whole) -> dict[str, float]:
    """How likely each operator is to be needed, when a search has left it: those that only look at values, less."""
    return {node.name: 0.25 if name_of(node) in _NO_WORK else 0.75 for node in _operators(whole)}


def _around(whole: Whole, node: str) -> Iterator[set[str]]:
    """The operators in so many steps from one."""
    users = users_of(whole.case.graph)
    operators = set(whole.operators)
    reached = {node}
    for step in range(1, max(_STEPS) + 1):
        for name in list(reached):
            reached.update(users[name])
            reached.update(refs_of(whole.known[name]))
        if step in _STEPS:
            yield reached & operators


def _behind(whole: Whole, path: str) -> Iterator[list[str]]:
    """The operators that are closest to where results differ, of those that led to it: two, four, eight..."""
    found = _leading_to(whole, path)
    size = 2
    while size < len(found) and size * _PART <= len(whole.operators):
        yield found[:size]
        size *= 2


def _leading_to(whole: Whole, path: str) -> list[str]:
    """The operators that led to a result, the closest first; none of them, if it is not known which that is."""
    start, operators = _place_of(whole.case.graph, path), set(whole.operators)
    if start is None:
        return []
    order, at = {start: None}, {node.name: number for number, node in enumerate(whole.case.graph.nodes)}
    near = [start]
    while near:
        near = sorted({name for one in near for name in refs_of(whole.known[one])} - order.keys(), key=lambda n: -at[n])
        order.update(dict.fromkeys(near))
    return [name for name in order if name in operators]


def _place_of(graph: Graph, path: str) -> str | None:
    """The node that computes a result: `output[3]`, or what is written to `inputs[0]`."""
    match = _PATH.match(path)
    if match is None:
        return None
    places = [int(number) for number in re.findall(r"\d+", match["places"])]
    if match["what"] == "inputs":
        inputs = placeholders(graph)
        if len(places) != 1 or places[0] >= len(inputs):
            return None
        name = inputs[places[0]].name
        return next((node.name for node in reversed(graph.nodes) if is_call(node) and name in written_by(node)), None)
    value: Value = output_of(graph).args[0]
    for place in places:
        if isinstance(value, (Tuple, List)) and place < len(value.items):
            value = value.items[place]
    return value.name if isinstance(value, Ref) else None


def _named(whole: Whole, words: str) -> list[str]:
    """The operators that a failure names: one by its name, or those of a kernel, joined as kernels join them."""
    if not words:
        return []
    name = operator_name(words)
    exact = [node.name for node in _operators(whole) if _plain(node) == name]
    if exact:
        return exact
    joined = f"_{words}_"
    return [node.name for node in _operators(whole) if f"_{_plain(node)}_" in joined]


def _plain(node: Node) -> str:
    return re.sub(r"(?<=\w)_$", "", name_of(node))


def sample(whole: Whole, names: Iterable[str]) -> set[str]:
    """Of these operators, one of each sort: the first. Nothing, if that would be most of them."""
    wanted = set(names)
    found = _of_each_sort(whole, wanted)
    return set(found) if len(found) * _FRACTION <= len(wanted) else set()


def _of_each_sort(whole: Whole, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    found: dict[tuple[object, ...], str] = {}
    for node in _operators(whole):
        if node.name in wanted:
            value = produced(node)
            kind = (value.dtype, len(value.size)) if isinstance(value, Fake) else ()
            found.setdefault((node.target, *kind), node.name)
    return list(found.values())


def _operators(whole: Whole) -> Iterator[Node]:
    wanted = set(whole.operators)
    return (node for node in whole.case.graph.nodes if is_call(node) and node.name in wanted)

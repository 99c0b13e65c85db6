"""Simpler arguments of calls: left out, fewer, rounder, or another value that is there already.

arguments       one site for each argument of each call
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from torchsleuth.case.schema import Case, Entry, Fake, Float, Graph, List, Node, Ref, Size, Tuple, Value
from torchsleuth.reduce.graphs import picks_one, produced, refs_of, replace
from torchsleuth.reduce.passes.editing import Edit, calls, is_higher_order, node_named, patch, with_node
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.repairing import argument_at, argument_name

_Place: TypeAlias = int | str
"""Which argument: by position, or by name."""
_POSITIVE: Final = frozenset({"stride", "dilation", "groups", "kernel_size"})
"""Arguments that make no sense as zero, though some operators do not say so."""


_ARITHMETIC: Final = frozenset(f"torch.ops.aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))


def arguments(case: Case, material: Material) -> Iterator[Site]:
    """What each call is given."""
    known = {node.name: node for node in case.graph.nodes}
    for node in calls(case.graph):
        if picks_one(node, known) or is_higher_order(node):
            continue
        places: list[_Place] = [entry.name for entry in node.kwargs if not _always_there(node, entry)]
        if len(places) > 1:
            yield [_changed(node.name, _with_few_names, "nothing by name that may be left out", material)]
        places += reversed(range(len(node.args)))
        for place in places:
            site = list(_for_one(case.graph, node, place, material))
            if site:
                yield site


def _always_there(node: Node, entry: Entry) -> bool:
    """Whether compilers rely on an argument, since AOT never leaves it out: the dtype of what is made from nothing."""
    return entry.name == "dtype" and node.target.startswith("torch.ops.") and not any(refs_of(node))


def _with_few_names(node: Node) -> Node:
    return replace(node, kwargs=tuple(entry for entry in node.kwargs if _always_there(node, entry)))


def _for_one(graph: Graph, node: Node, place: _Place, material: Material) -> Iterator[Patch]:
    if isinstance(place, str) or place == len(node.args) - 1:
        yield _changed(node.name, lambda one: _without(one, place), f"{_name(place)} left out", material)
    value = _argument(node, place)
    for other in dict.fromkeys(_simpler(graph, node, value)):
        if not _makes_sense(node, place, other):
            continue
        yield _changed(
            node.name,
            lambda one, other=other: _with(one, place, value, other),  # type: ignore[misc]
            f"{_name(place)} {_words(other)}",
            material,
        )


def _name(place: _Place) -> str:
    return place if isinstance(place, str) else f"argument {place + 1}"


def _makes_sense(node: Node, place: _Place, value: Value) -> bool:
    """Whether a value may stand there, as far as that is known: operators on fakes take some that eager does not."""
    if value is None:
        argument = argument_at(node, place)
        return argument is None or argument.optional
    items = value.items if isinstance(value, (List, Tuple, Size)) else (value,)
    has_zero = any(type(item) is int and item == 0 for item in items)
    return not has_zero or argument_name(node, place) not in _POSITIVE


def _words(value: Value) -> str:
    match value:
        case Ref(name):
            return name
        case List(items) | Tuple(items) | Size(items):
            return f"[{', '.join(map(_words, items))}]"
    return repr(value)


# ---- what could stand there --------------------------------------------------------------------------------


def _simpler(graph: Graph, node: Node, value: Value) -> Iterator[Value]:
    """Simpler values, the simplest first. Whether the operator takes them is found out later."""
    match value:
        case bool():
            yield from [False] if value else []
        case int():
            yield from (number for number in (0, 1, value // 2) if abs(number) < abs(value) or value < 0)
        case float():
            yield from (number for number in (0.0, 1.0, float(f"{value:.1g}")) if number != value)
        case Float():
            yield from (0.0, 1.0)
        case Ref():
            yield from _instead_of(graph, node, value)
        case List(items) | Tuple(items) | Size(items):
            yield from _of_items(graph, node, value, items)


def _instead_of(graph: Graph, node: Node, value: Ref) -> Iterator[Value]:
    """A tensor that the call is given anyway, none at all, or a number."""
    known = {one.name: one for one in graph.nodes}
    if not isinstance(produced(known[value.name]), Fake):
        return
    for name in dict.fromkeys(refs_of(node)):
        if name != value.name and isinstance(produced(known[name]), Fake):
            yield Ref(name)
            break
    if len(list(refs_of(node))) > 1:
        yield None
        if _takes_numbers(node):
            yield 1


def _takes_numbers(node: Node) -> bool:
    """Whether a number may stand for a tensor. Operators take one for any; AOT leaves it to arithmetic alone, so that
    compilers need not know what to do with others."""
    return not node.target.startswith("torch.ops.") or node.target in _ARITHMETIC


def _of_items(
    graph: Graph, node: Node, value: List | Tuple | Size, items: tuple[Value, ...]
) -> Iterator[List | Tuple | Size]:
    """Fewer items, or simpler ones."""
    if not items:
        return
    numbers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if len(numbers) == len(items):
        for number in (0, 1):
            simple = (number,) * len(items)
            if simple != items:
                yield replace(value, items=simple)
        yield from (replace(value, items=fewer) for fewer in (items[:1], items[:-1]) if 0 < len(fewer) < len(items))
        return
    for fewer in (items[:1], items[-1:], items[: len(items) // 2], items[:-1], items[1:]):
        if 0 < len(fewer) < len(items):
            yield replace(value, items=fewer)
    for at, item in enumerate(items):
        for other in list(_simpler(graph, node, item))[:1]:
            yield replace(value, items=(*items[:at], other, *items[at + 1 :]))


# ---- a call with another argument --------------------------------------------------------------------------


def _argument(node: Node, place: _Place) -> Value:
    if isinstance(place, int):
        return node.args[place]
    return next(entry.value for entry in node.kwargs if entry.name == place)


def _without(node: Node, place: _Place) -> Node | None:
    if isinstance(place, str):
        return replace(node, kwargs=tuple(entry for entry in node.kwargs if entry.name != place))
    return replace(node, args=node.args[:-1]) if place == len(node.args) - 1 else None


def _with(node: Node, place: _Place, value: Value, other: Value) -> Node | None:
    """The call with another value in a place, if it is still the same one that stands there."""
    if isinstance(place, str):
        kwargs = tuple(Entry(place, other) if entry == Entry(place, value) else entry for entry in node.kwargs)
        return replace(node, kwargs=kwargs)
    if place >= len(node.args) or node.args[place] != value:
        return None
    return replace(node, args=(*node.args[:place], other, *node.args[place + 1 :]))


def _changed(name: str, change: Callable[[Node], Node | None], words: str, material: Material) -> Patch:
    def edit(case: Case) -> Edit | None:
        node = node_named(case.graph, name)
        made = None if node is None else change(node)
        if made is None or made == node or not _are_there(case.graph, made):
            return None
        return Edit(with_node(case.graph, made))

    return patch(f"{name}: {words}", material, edit)


def _are_there(graph: Graph, node: Node) -> bool:
    """Whether what a call is given comes before it."""
    names = [one.name for one in graph.nodes]
    return set(names[: names.index(node.name)]).issuperset(refs_of(node))

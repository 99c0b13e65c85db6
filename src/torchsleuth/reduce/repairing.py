"""Arguments that follow when inputs get smaller: `view(x, [64, 128])` of an x that has become (1, 4, 8).

    propagated(changed, blobs, Follow(case, {32: 1}))

Graphs have sizes as numbers all over. Where they come from is not written anywhere, but what a node made of which
shapes before tells most of it: how a view put dimensions together or took them apart, which lengths have become which.
`Follow` is a `propagating.Repair`: it says how a node could be called now, the likeliest first, and what runs is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from torchsleuth import torch_compat
from torchsleuth.case.graphs import targets
from torchsleuth.case.schema import Case, Entry, Fake, List, Node, Ref, Size, Tuple, Value
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.graphs import map_arguments, map_values, name_of, placeholders, produced, refs_of, replace

_VIEWS: Final = frozenset("view reshape _unsafe_view _reshape_alias view_copy".split())
_EXPANDS: Final = frozenset("expand expand_copy broadcast_to".split())
_SPLITS: Final = frozenset("split unsafe_split split_with_sizes split_with_sizes_copy unsafe_split_with_sizes".split())
_PICKS: Final = frozenset("slice slice_copy select select_copy narrow".split())
_TAKES_LENGTHS: Final = (
    _VIEWS
    | _EXPANDS
    | frozenset(
        """
    zeros ones full empty rand randn randint arange new_zeros new_ones new_full new_empty repeat tile unflatten split
    narrow layer_norm rms_norm one_hot adaptive_avg_pool1d adaptive_avg_pool2d interpolate eye tril_indices triu_indices
    """.split()
    )
)
_NO_LENGTHS: Final = tuple(
    "dim ax index stride pad dilation groups kernel correction ord diagonal offset permutation alpha beta value".split()
)
"""Parts of the names of arguments that hold no lengths."""
_WEIGHT, _PADDING = 2, 5
"""Where `convolution_backward` has them."""
_Shape: TypeAlias = tuple[int, ...]
_Change: TypeAlias = tuple[_Shape | None, _Shape | None]


class Follow:
    """What nodes could be where some lengths have become others."""

    def __init__(self, before: Case, lengths: Mapping[int, int], *, everywhere: bool = True) -> None:
        """`before`: the case whose inputs have changed. `lengths`: what has become of them.

        `everywhere`: whether numbers in arguments that are one of them follow, even if the node could do without.
        """
        self._inputs = {node.name: produced(node) for node in placeholders(before.graph)}
        self._lengths = dict(lengths)
        self._given = dict(lengths)
        self._everywhere = everywhere

    def __call__(self, node: Node, nodes: Mapping[str, Node], now: Mapping[str, Value]) -> Iterator[Node]:
        shapes = {name: self._shapes(name, nodes, now) for name in refs_of(node)}
        self._learn(shapes.values())
        seen: list[Node] = []
        for candidate in self._candidates(node, shapes):
            if candidate not in seen:
                seen.append(candidate)
                yield candidate

    def _shapes(self, name: str, nodes: Mapping[str, Node], now: Mapping[str, Value]) -> _Change:
        """What shape an argument had, and has now."""
        before = self._inputs.get(name) if nodes[name].op == "placeholder" else None
        return _shape(produced(nodes[name]) if before is None else before), _shape(now.get(name))

    def _learn(self, shapes: Iterable[_Change]) -> None:
        """Which lengths have become which, as far as the arguments show it."""
        for before, after in shapes:
            if before is not None and after is not None and len(before) == len(after):
                for old, new in zip(before, after, strict=True):
                    if old != new:
                        self._lengths.setdefault(old, new)

    def _candidates(self, node: Node, shapes: Mapping[str, _Change]) -> Iterator[Node]:
        first = node.args[0] if node.args else None
        before, after = shapes[first.name] if isinstance(first, Ref) else (None, None)
        if before is not None and after is not None and before != after:
            yield from self._of_one(node, before, after)
            if len(before) != len(after):
                yield from _of_lower_rank(node)
        if name_of(node) == "convolution_backward" and _has_points_only(node, shapes):
            yield _with_lengths(_with_argument(node, _PADDING, List((0,))), self._length)
        followed = _with_lengths(node, self._length)
        scaled = _with_lengths(node, self._multiple)
        yield from (followed, scaled, node) if self._everywhere else (node, followed, scaled)

    def _length(self, value: Value) -> Value:
        return self._lengths.get(value, value) if type(value) is int else value

    def _multiple(self, value: Value) -> Value:
        """A length, or a multiple of one."""
        if type(value) is not int or value in self._lengths:
            return self._length(value)
        for old, new in self._given.items():
            if old > 1 and value > old and value % old == 0:
                return value // old * new
        return value

    def _of_one(self, node: Node, before: _Shape, after: _Shape) -> Iterator[Node]:
        """What a node could be that depends on the shape of its first argument."""
        name, made = name_of(node), _shape(produced(node))
        axis, given = _axis(node, 2), node.args[1] if len(node.args) > 1 else None
        has_axis = -len(after) <= axis < len(after)
        if name in _VIEWS and made is not None:
            for shape in reshaped(before, after, made, self._lengths):
                yield _with_sizes(node, shape)
        elif name in _EXPANDS and made is not None:
            yield _with_sizes(node, self._expanded(before, after, made))
        elif name in _SPLITS and has_axis and (parts := _numbers(given)):
            yield _with_argument(node, 1, _listed(given, _shared_out(after[axis], parts)))
        elif name in _SPLITS and has_axis and isinstance(given, int):
            results = produced(node)
            if isinstance(results, (Tuple, List)):
                yield _with_argument(node, 1, -(-after[axis] // max(len(results.items), 1)))
        elif name in _PICKS:
            yield from _picked(node, before, after)

    def _expanded(self, before: _Shape, after: _Shape, made: _Shape) -> _Shape:
        """Dimensions that were as long as those of what is expanded still are; others are lengths of their own."""
        found = [self._lengths.get(length, length) for length in made]
        for place in range(1, min(len(before), len(after), len(made)) + 1):
            if before[-place] == made[-place] or after[-place] != 1:
                found[-place] = after[-place]
        return tuple(found)


# ---- shapes ------------------------------------------------------------------------------------------------


def reshaped(before: _Shape, after: _Shape, made: _Shape, lengths: Mapping[int, int]) -> Iterator[_Shape]:
    """What a view that made `made` of `before` could make of `after`, the likeliest first."""
    if len(before) == len(after):
        solved: list[int] = []
        for old, new, out in _blocks(before, after, made):
            solved += _block(old, new, out, lengths)
        if math.prod(solved) == math.prod(after) and len(solved) == len(made):
            yield tuple(solved)
    followed = tuple(lengths.get(length, length) for length in made)
    if math.prod(followed) == math.prod(after):
        yield followed
    if len(before) > len(after):
        dropped = made[len(before) - len(after) :]
        if math.prod(dropped) == math.prod(after):
            yield dropped
    yield tuple(_divided(math.prod(after), made))


def _blocks(before: _Shape, after: _Shape, made: _Shape) -> Iterator[tuple[_Shape, _Shape, _Shape]]:
    """The least groups of dimensions, one after another, that a view puts together or takes apart."""
    i = j = 0
    while i < len(before) or j < len(made):
        a, b = i, j
        here = there = 1
        while True:
            if here <= there and i < len(before):
                here *= before[i]
                i += 1
            elif j < len(made):
                there *= made[j]
                j += 1
            else:
                here *= math.prod(before[i:])
                i = len(before)
            if (here == there and i > a and j > b) or (i == len(before) and j == len(made)):
                break
        yield before[a:i], after[a:i], made[b:j]


def _block(old: _Shape, new: _Shape, out: _Shape, lengths: Mapping[int, int]) -> _Shape:
    if old == new:
        return out
    if len(out) == 1:
        return (math.prod(new),)
    followed = tuple(lengths.get(length, length) for length in out)
    if math.prod(followed) == math.prod(new):
        return followed
    return tuple(_divided(math.prod(new), out))


def _divided(count: int, like: Sequence[int]) -> list[int]:
    """That many elements in as many dimensions, each as long as before if it can be, and shorter if not."""
    found = []
    for place, length in enumerate(like):
        rest = len(like) - place - 1
        part = count if not rest else max(part for part in range(1, max(length, 1) + 1) if count % part == 0)
        found.append(part)
        count //= max(part, 1)
    return found


def _shared_out(length: int, parts: Sequence[int]) -> list[int]:
    """A length in as many parts, in about the proportions of these, none of them empty."""
    whole = max(sum(parts), 1)
    found = [max(1, part * length // whole) if part else 0 for part in parts]
    place = len(found) - 1
    while sum(found) != length and place >= 0:
        found[place] = max(1, found[place] + length - sum(found))
        place -= 1
    return found


def _shape(value: Value) -> _Shape | None:
    """The sizes of a fake, if they are numbers."""
    if not isinstance(value, Fake):
        return None
    sizes = tuple(size for size in value.size if isinstance(size, int))
    return sizes if len(sizes) == len(value.size) else None


# ---- arguments ---------------------------------------------------------------------------------------------


def _numbers(value: Value) -> list[int] | None:
    if not isinstance(value, (List, Tuple, Size)):
        return None
    found = [item for item in value.items if type(item) is int]
    return found if len(found) == len(value.items) else None


def _listed(like: Value, numbers: Sequence[int]) -> Value:
    """A list of numbers in the place of another; where that has no number (-1, a node), it keeps what it has."""
    kind = type(like) if isinstance(like, (List, Tuple, Size)) else List
    items: tuple[Value, ...] = tuple(numbers)
    if isinstance(like, (List, Tuple, Size)) and len(like.items) == len(items):
        items = tuple(
            old if type(old) is not int or old == -1 else new for old, new in zip(like.items, items, strict=True)
        )
    return kind(items)


def _axis(node: Node, place: int) -> int:
    given = node.args[place] if len(node.args) > place else next((e.value for e in node.kwargs if e.name == "dim"), 0)
    return given if isinstance(given, int) else 0


def _with_argument(node: Node, place: int, value: Value) -> Node:
    return replace(node, args=(*node.args[:place], value, *node.args[place + 1 :]))


def _with_sizes(node: Node, shape: Sequence[int]) -> Node:
    """The node with another shape to make: a list, or one number after another."""
    if len(node.args) > 1 and type(node.args[1]) is int:
        listed = _listed(List(node.args[1:]), shape)
        assert isinstance(listed, List)
        return replace(node, args=(*node.args[:1], *listed.items))
    return _with_argument(node, 1, _listed(node.args[1], shape)) if len(node.args) > 1 else node


def _picked(node: Node, before: _Shape, after: _Shape) -> Iterator[Node]:
    """The same part of a dimension that has become shorter."""
    axis = _axis(node, 1)
    if len(before) != len(after) or not -len(after) <= axis < len(after) or before[axis] in (0, after[axis]):
        return
    old, new = before[axis], after[axis]
    scaled, kept = node, node
    for place in (2,) if name_of(node).startswith("select") else (2, 3):
        at = node.args[place] if len(node.args) > place else None
        if type(at) is int and 0 <= at <= old:
            end = place == 3
            scaled = _with_argument(scaled, place, -(-at * new // old) if end else at * new // old)
            kept = _with_argument(kept, place, max(min(at, new if end else new - 1), int(end)))
    yield from (scaled, kept)


def _has_points_only(node: Node, shapes: Mapping[str, _Change]) -> bool:
    """Whether the kernel of a convolution has become a single point. Then there is nothing to pad for."""
    weight = node.args[_WEIGHT] if len(node.args) > _PADDING else None
    before, after = shapes[weight.name] if isinstance(weight, Ref) else (None, None)
    return before is not None and after is not None and before != after and set(after[2:]) == {1}


def _with_lengths(node: Node, change: Callable[[Value], Value]) -> Node:
    """The node with its numbers changed, where they may be lengths."""

    def argument(place: int, value: Value) -> Value:
        return map_values(value, change) if _may_be_length(node, place) else value

    def keyword(entry: Entry) -> Entry:
        return entry if _is_other(entry.name) else Entry(entry.name, map_values(entry.value, change))

    if name_of(node) == "getitem":
        return node
    args = tuple(argument(place, value) for place, value in enumerate(node.args))
    return replace(node, args=args, kwargs=tuple(map(keyword, node.kwargs)))


def _may_be_length(node: Node, place: int) -> bool:
    """Whether an argument may hold lengths: by the name it has with its operator; of other functions by theirs."""
    if not node.target.startswith("torch.ops."):
        return name_of(node) in _TAKES_LENGTHS
    name = argument_name(node, place)
    return bool(name) and not _is_other(name)


def argument_name(node: Node, place: int | str) -> str:
    """What an argument of a call is called; "" if that is not known."""
    found = argument_at(node, place)
    return place if isinstance(place, str) else "" if found is None else found.name


def argument_at(node: Node, place: int | str) -> torch_compat.Argument | None:
    """An argument of a call, as its operator has it; None if that is not known."""
    if not node.target.startswith("torch.ops."):
        return None
    given = {entry.name: entry.value for entry in node.kwargs}
    try:
        arguments = torch_compat.op_arguments(targets.resolve(node.target), node.args, given)
    except (SleuthError, TypeError, AttributeError):
        return None
    if isinstance(place, str):
        return next((one for one in arguments if one.name == place), None)
    return arguments[place] if place < len(node.args) and place < len(arguments) else None


def _is_other(name: str) -> bool:
    """Whether what an argument is called says that no length is meant."""
    return any(part in name for part in _NO_LENGTHS)


def _of_lower_rank(node: Node) -> Iterator[Node]:
    """The node where a leading dimension is gone: lists without their first, dimensions counted from one less."""

    def shorter(value: Value) -> Value:
        if isinstance(value, (List, Tuple, Size)) and value.items and not any(isinstance(i, Ref) for i in value.items):
            return replace(value, items=value.items[1:])
        return value

    def lower(value: Value) -> Value:
        return value - 1 if type(value) is int and value > 0 else value

    less = replace(node, args=(*node.args[:1], *map(shorter, node.args[1:])))
    yield from (less, map_arguments(node, lower), map_arguments(less, lower))

"""Sizes that stay symbolic: an int for whoever computes with it, and a node of the graph for whoever records it.

With `dynamic=True`, reading a size gives a `Symbolic`: its node stands where it was read, for the tensor may get
another shape later on. Arithmetic on it makes another one; the node that computes that is made when somebody needs it,
and not before (F1). What nobody needs is erased in the end. Comparing it with something asks a question whose answer
the recording depends on: the question is kept (`Sizes.questions`) and becomes a guard. Whatever is done with it that
cannot stay symbolic (hashing it, handing it to a native function) makes it a plain int, and its value a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsleuth.frontend.kinds import is_a


@dataclass(frozen=True)
class Question:
    """`compare(left, right)` was asked, and `answer` was the answer. Either side may be the node of a tensor, too."""

    compare: Callable[[Any, Any], Any]
    left: Any
    right: Any
    answer: bool


class Sizes:
    """The symbolic sizes of one segment."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.questions: list[Question] = []
        self.known: dict[tuple[fx.Node, int], Symbolic] = {}
        self.closed = False

    def of(self, node: fx.Node, dimension: int, value: int) -> Symbolic:
        """The size of a tensor in one dimension, as it is now: the tensor may get another shape later on."""
        found = self.known.get((node, dimension))
        if found is None:
            size = self.graph.call_method("size", (node, dimension))
            found = self.known[node, dimension] = Symbolic(value, self, lambda: size)
        return found

    def ask(self, compare: Callable[[Any, Any], Any], left: Symbolic, right: Any) -> bool:
        answer = bool(compare(int.__int__(left), int(right)))
        if not self.closed and left is not right:
            self.questions.append(Question(compare, left, right, answer))
        return answer

    def ask_tensor(self, fact: Callable[[Any], Any], node: fx.Node, answer: Any) -> None:
        """A tensor's strides, say, were asked for, and are a number each: that they are so is a guard on sizes."""
        self.questions.append(Question(lambda tensor, _: fact(tensor) == answer, node, None, True))


class Symbolic(int):
    """An int that remembers how it came about."""

    _sizes: Sizes
    _make: Callable[[], fx.Node]
    _node: fx.Node | None

    def __new__(cls, value: int, sizes: Sizes, make: Callable[[], fx.Node]) -> Symbolic:
        self = int.__new__(cls, value)
        self._sizes, self._make, self._node = sizes, make, None
        return self

    def node(self) -> fx.Node:
        """The node that computes it; made now, if nobody needed it before."""
        if self._node is None:
            self._node = self._make()
        return self._node

    def plain(self) -> int:
        """The int. Its value is guarded."""
        self._sizes.ask(operator.eq, self, int.__int__(self))
        return int.__int__(self)

    def _binary(self, other: Any, function: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
        if type(other) not in (int, Symbolic):
            return NotImplemented
        mine, yours = int.__int__(self), int.__int__(other)
        value = function(yours, mine) if swapped else function(mine, yours)
        if self._sizes.closed:
            return value
        if type(other) is int:
            if (other == 1 and function is operator.mul) or (other == 0 and function is operator.add):
                return self
            if not swapped and (
                (other == 1 and function is operator.floordiv) or (other == 0 and function is operator.sub)
            ):
                return self
            if other == 0 and function is operator.mul:
                return 0
        graph = self._sizes.graph

        def make() -> fx.Node:
            there = other.node() if type(other) is Symbolic else other
            return graph.call_function(function, (there, self.node()) if swapped else (self.node(), there))

        return Symbolic(value, self._sizes, make)

    def _compare(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        if not is_a(other, int):
            return NotImplemented
        return self._sizes.ask(function, self, int(other) if type(other) is bool else other)

    def __hash__(self) -> int:
        return hash(self.plain())

    def __bool__(self) -> bool:
        return self._sizes.ask(operator.ne, self, 0)

    def __neg__(self) -> Any:
        return self._binary(-1, operator.mul)

    def __pos__(self) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int.__int__(self),)


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def forward(self: Symbolic, other: Any) -> Any:
        return self._binary(other, function)

    def backward(self: Symbolic, other: Any) -> Any:
        return self._binary(other, function, True)

    return forward, backward


def _comparison(function: Callable[[Any, Any], Any]) -> Any:
    def compare(self: Symbolic, other: Any) -> Any:
        return self._compare(other, function)

    return compare


_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod")
SYMBOLIC_OPERATORS = frozenset(getattr(operator, prefix + name) for name in _ARITHMETIC for prefix in ("", "i"))
"""Operators whose results stay symbolic, if both sides are ints."""

for _name in _ARITHMETIC:
    _forward, _backward = _arithmetic(getattr(operator, _name))
    setattr(Symbolic, f"__{_name}__", _forward)
    setattr(Symbolic, f"__r{_name}__", _backward)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Symbolic, f"__{_name}__", _comparison(getattr(operator, _name)))


def product(sizes: Iterable[int]) -> int:
    """The number of elements: constants are multiplied at once, symbolic factors when the product is needed.

    A factor of 0 needs no symbolic one, and a factor of 1 no multiplication.
    """
    constant, factors = 1, []
    for each in sizes:
        if type(each) is Symbolic:
            factors.append(each)
        else:
            constant *= each
    if constant == 0 or not factors:
        return constant
    result: Any = factors[0]
    for factor in factors[1:]:
        result = result * factor
    product_of_all: int = result if constant == 1 else result * constant
    return product_of_all


def has_symbolic(value: Any) -> bool:
    """Whether a value is symbolic, or a list, a tuple, a slice or a dict that holds such a value."""
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if type(each) is Symbolic:
            return True
        if is_a(each, (list, tuple, dict, slice)) and id(each) not in seen:
            seen.add(id(each))
            waiting += _held(each)
    return False


def _held(value: Any) -> Iterable[Any]:
    if is_a(value, dict):
        return dict.values(value)
    return (value.start, value.stop, value.step) if type(value) is slice else value


def as_plain(value: Any) -> Any:
    """The int, if this is a symbolic one; its value is guarded. Anything else as it is, whatever it holds."""
    return value.plain() if type(value) is Symbolic else value


def as_number(value: Any) -> Any:
    """A number for what is symbolic; anything else as it is."""
    return int.__int__(value) if type(value) is Symbolic else value


def as_numbers(value: Any) -> Any:
    """The same value with numbers for symbolic ints. For who records the symbols as well: nothing is guarded."""
    if type(value) is Symbolic:
        return int.__int__(value)
    if type(value) is dict:
        return {key: as_numbers(each) for key, each in value.items()}
    if type(value) is slice:
        return slice(as_numbers(value.start), as_numbers(value.stop), as_numbers(value.step))
    if type(value) in (tuple, list, torch.Size) and value:
        return type(value)(as_numbers(each) for each in value)
    return value


def made_plain(value: Any, around: tuple[int, ...] = ()) -> Any:
    """The same value without symbolic ints; what they are is guarded. Lists and dicts are changed in place.

    `around`: the containers that it lies in, by their ids.
    """
    if type(value) is Symbolic:
        return value.plain()
    if not has_symbolic(value) or id(value) in around:
        return value
    around = (*around, id(value))
    if type(value) in (list, dict):
        for key, each in list(enumerate(value) if type(value) is list else value.items()):
            if (plain := made_plain(each, around)) is not each:
                value[key] = plain
        return value
    if is_a(value, tuple):
        parts = [made_plain(each, around) for each in value]
        return tuple.__new__(type(value), parts) if type(value) is not torch.Size else torch.Size(parts)
    if type(value) is slice:
        return slice(*(made_plain(each, around) for each in _held(value)))
    return value

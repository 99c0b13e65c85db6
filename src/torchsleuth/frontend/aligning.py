"""The graphs of two front ends, side by side: each node with the line of the program that it comes from.

    ours, dynamo = [described(gm, inputs), ...], [described(gm, inputs), ...]
    difference = align(ours, dynamo)
    difference.alike            they do the same, if here and there in another spelling
    difference.rows             node by node: the same, spelled otherwise, different, on one side only

Two nodes are of one kind if what they call has the same name (`x.add(y)`, `torch.add`, `x + y`) and gives a value of
the same shape. Nodes of one kind are brought together in order; then their arguments are compared: constants as they
are, other nodes by whom they were brought together with. What is written at one line and fits nothing better is one
pair, too.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from torchsleuth import torch_compat
from torchsleuth.case.words import listing
from torchsleuth.case.words.wording import dtype_words
from torchsleuth.frontend.breaks import Place
from torchsleuth.outcome import Word

_OTHER_NAMES: Final = {
    "truediv": "div", "divide": "div", "true_divide": "div", "floordiv": "floor_divide", "multiply": "mul",
    "subtract": "sub", "negative": "neg", "absolute": "abs", "and_": "bitwise_and", "or_": "bitwise_or",
    "xor": "bitwise_xor", "invert": "bitwise_not", "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_",
    "ifloordiv": "floor_divide_", "ipow": "pow_", "imatmul": "matmul_", "iand": "bitwise_and_", "ior": "bitwise_or_",
    "ixor": "bitwise_xor_",
}  # fmt: skip
"""Operators of Python and second names of torch's functions, by the name that the function has as well."""
_LONGEST: Final = 60
_NOT_THE_USERS: Final = tuple(
    f"{os.path.dirname(os.path.abspath(file))}{os.sep}" for file in (torch.__file__, os.path.dirname(__file__))
)
"""Where the files of torch are, and our own."""
_SLICE: Final = "slice("
BETWEEN: Final = "graph break"
"""What stands between two graphs."""


class Kind(Word):
    """How the two sides of a row stand to each other."""

    SAME = "same"
    ALIKE = "spelled otherwise"
    DIFFERS = "differs"
    ONLY_OURS = "only ours"
    ONLY_DYNAMO = "only Dynamo"


@dataclass(frozen=True)
class Ref:
    """An argument that is another node: the graph's number, and the node's name."""

    graph: int
    name: str


@dataclass(frozen=True)
class Described:
    """A node, as far as it is compared and shown."""

    name: str
    name_of_call: str
    """What it calls, whoever spells it: `add` for `x.add`, `torch.add` and `operator.add`."""
    target: str
    """What it calls, as it is spelled."""
    arguments: tuple[str | Ref, ...] = ()
    shape: str = ""
    """The dtype and shape of its value, if that is known: `f32[2, 3]`."""
    place: Place | None = None
    """The line of the program that it comes from."""

    @property
    def writes_to(self) -> Ref | None:
        """What it writes to and gives back: `x` for `x.add_(1)`."""
        first = self.arguments[0] if self.arguments else None
        in_place = self.name_of_call.endswith("_") and not self.name_of_call.endswith("__")
        return first if in_place and isinstance(first, Ref) else None

    def __str__(self) -> str:
        if self.target == BETWEEN:
            return f"--- {BETWEEN} ---"
        given = _listed(self.arguments)
        head = f"{self.name}: {self.shape}" if self.shape else self.name
        return f"{head} = {self.target}({given})"


@dataclass(frozen=True)
class DescribedGraph:
    """A graph, as far as it is compared and shown."""

    nodes: tuple[Described, ...]
    inputs: tuple[str, ...] = ()
    """The names of its inputs."""

    @property
    def operations(self) -> tuple[tuple[str, ...], ...]:
        """What it does, whatever constants it does that with, and whichever in a row of graphs it is."""
        return tuple(
            (node.target, node.shape, *(each.name for each in node.arguments if isinstance(each, Ref)))
            for node in self.nodes
        )


@dataclass(frozen=True)
class Row:
    """One node of one of them or of both."""

    kind: Kind
    ours: Described | None = None
    dynamo: Described | None = None
    why: str = ""
    """In what they differ."""

    @property
    def place(self) -> Place | None:
        """The line that it comes from, if one of them knows it: rather one of the user's than one of torch's."""
        places = [each.place for each in (self.ours, self.dynamo) if each is not None and each.place is not None]
        return next((place for place in places if _is_users(place)), places[0] if places else None)


@dataclass(frozen=True)
class Difference:
    """What the alignment shows."""

    ours: tuple[DescribedGraph, ...] = ()
    dynamo: tuple[DescribedGraph, ...] = ()
    rows: tuple[Row, ...] = field(default=(), repr=False)

    @property
    def alike(self) -> bool:
        """Whether both do the same, in the same number of graphs."""
        return all(row.kind in (Kind.SAME, Kind.ALIKE) for row in self.rows)

    def count(self, kind: Kind) -> int:
        return sum(row.kind is kind for row in self.rows)


# ---- nodes ---------------------------------------------------------------------------------------------------


def described(gm: fx.GraphModule, inputs: Sequence[Any] = (), number: int = 0) -> DescribedGraph:
    """A graph as it is now: a compiler may change it afterwards. `number`: of how many graphs before it.

    Where the graph itself does not say what shapes its values have, it is run on fake copies of `inputs` to find out.
    """
    shapes = _shapes(gm, inputs)
    names = {node: Ref(number, node.name) for node in gm.graph.nodes}
    nodes = [_described(node, names, shapes) for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    return DescribedGraph(tuple(nodes), tuple(node.name for node in gm.graph.nodes if node.op == "placeholder"))


def _described(node: fx.Node, names: dict[fx.Node, Ref], shapes: dict[str, str]) -> Described:
    name = _name_of_call(node)
    return Described(
        name=node.name,
        name_of_call=name,
        target=_spelled(node, name),
        arguments=tuple(_arguments((*node.args, *(node.kwargs[each] for each in sorted(node.kwargs))), names)),
        shape=shapes.get(node.name, ""),
        place=_place_of(node),
    )


def _name_of_call(node: fx.Node) -> str:
    if node.op == "call_function":
        name = torch_compat.op_name(node.target)
    elif node.op == "call_module":
        return type(node.graph.owning_module.get_submodule(str(node.target))).__name__  # type: ignore[union-attr]
    elif node.op == "get_attr":
        return "an attribute"
    else:
        name = str(node.target)
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        name = {"and": "and_", "or": "or_"}.get(name, name)
    return _OTHER_NAMES.get(name, name)


def _spelled(node: fx.Node, name: str) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    if node.op != "call_function":
        return f"{node.op} {node.target}"
    if torch_compat.is_op_overload(node.target):
        return str(node.target)
    home = getattr(node.target, "__module__", None) or "torch"
    if home == operator.add.__module__:
        home = "operator"
    elif home == "torch.nn.functional":
        home = "F"
    elif home.startswith("torch._C"):
        home = "torch"
    return f"{home}.{torch_compat.op_name(node.target) or name}"


def _arguments(value: Any, names: dict[fx.Node, Ref]) -> Iterator[str | Ref]:
    """Constants as words, nodes as references, containers flat between brackets."""
    if isinstance(value, fx.Node):
        yield names[value]
    elif isinstance(value, slice):
        yield _SLICE
        yield from _arguments((value.start, value.stop, value.step), names)
        yield ")"
    elif isinstance(value, (tuple, list)):
        for each in value:
            if isinstance(each, (tuple, list)):
                yield "("
                yield from _arguments(each, names)
                yield ")"
            else:
                yield from _arguments(each, names)
    elif isinstance(value, dict):
        for key in value:
            yield f"{key}:"
            yield from _arguments(value[key], names)
    else:
        words = repr(value)
        yield words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _place_of(node: fx.Node) -> Place | None:
    """Our own nodes say it themselves; Dynamo's have a stack."""
    where = node.meta.get("loc")
    if isinstance(where, str):
        file, _, line = where.rpartition(":")
        return Place(file, int(line), str(node.meta.get("function", ""))) if line.isdigit() else None
    frames = listing.frames(node.meta.get("stack_trace"))
    return Place(frames[-1].file, frames[-1].line, frames[-1].function) if frames else None


def _is_users(place: Place) -> bool:
    return not place.file.startswith(_NOT_THE_USERS)


def _shapes(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, str]:
    """The shapes of a graph's values, by the node's name; as many as can be known."""
    graph = gm.graph
    is_known = any("example_value" in node.meta or "val" in node.meta for node in graph.nodes if node.op != "output")
    if not is_known and inputs and not any(map(torch_compat.is_fake, inputs)):
        copied = fx.GraphModule(gm, copy.deepcopy(graph))
        grad = torch.is_grad_enabled()
        try:
            with torch_compat.quiet_fakes(), contextlib.suppress(Exception):  # then less is known: that is all
                FakeTensorProp(copied).propagate(*inputs)
        finally:
            torch.set_grad_enabled(grad)  # a node of the graph may have changed it
        graph = copied.graph
    values = ((node.name, node.meta.get("example_value", node.meta.get("val"))) for node in graph.nodes)
    return {name: _shape(value) for name, value in values if isinstance(value, torch.Tensor)}


def _shape(value: torch.Tensor) -> str:
    # Each side has names of its own for symbolic sizes.
    sizes = [str(size) if isinstance(size, int) else "s" for size in value.shape]
    return f"{dtype_words(str(value.dtype).removeprefix('torch.'))}[{', '.join(sizes)}]"


# ---- aligning ------------------------------------------------------------------------------------------------


def align(ours: Sequence[DescribedGraph], dynamo: Sequence[DescribedGraph]) -> Difference:
    """The graphs of one call by our front end and by Dynamo, node by node, in their order."""
    return Difference(tuple(ours), tuple(dynamo), tuple(_Alignment(ours, dynamo).rows()))


class _Alignment:
    """The nodes of all graphs of each side in one line, and who belongs to whom."""

    def __init__(self, ours: Sequence[DescribedGraph], dynamo: Sequence[DescribedGraph]) -> None:
        self._ours, self._dynamo = _in_one_line(ours), _in_one_line(dynamo)
        self._inputs = tuple(
            {Ref(number, name) for number, graph in enumerate(graphs) for name in graph.inputs}
            for graphs in (ours, dynamo)
        )
        self._as_many = len(ours) == len(dynamo)
        self._written = tuple(
            {Ref(number, node.name): node.writes_to for number, node in nodes} for nodes in (self._ours, self._dynamo)
        )
        """What is another name for which value."""
        self._partner: dict[Ref, Ref] = {}
        self._taken: set[Ref] = set()

    def rows(self) -> Iterator[Row]:
        pairs = list(self._pairs())
        for (graph, one), (other_graph, other) in ((a, b) for a, b in pairs if a is not None and b is not None):
            self._bring_together(Ref(graph, one.name), Ref(other_graph, other.name))
        for ours, dynamo in pairs:
            if ours is None or dynamo is None:
                kind = Kind.ONLY_DYNAMO if ours is None else Kind.ONLY_OURS
                yield Row(kind, ours and ours[1], dynamo and dynamo[1])
            else:
                yield self._row(ours[1], dynamo[1])

    def _row(self, ours: Described, dynamo: Described) -> Row:
        why = "; ".join(self._differences(ours, dynamo))
        if why:
            return Row(Kind.DIFFERS, ours, dynamo, why)
        return Row(Kind.SAME if ours.target == dynamo.target else Kind.ALIKE, ours, dynamo)

    def _differences(self, ours: Described, dynamo: Described) -> Iterator[str]:
        if ours.name_of_call != dynamo.name_of_call:
            yield f"ours calls {ours.target}, Dynamo {dynamo.target}"
            return
        if ours.shape and dynamo.shape and ours.shape != dynamo.shape:
            yield f"ours is {ours.shape}, Dynamo's {dynamo.shape}"
        given = _given(ours.arguments), _given(dynamo.arguments)
        if len(given[0]) != len(given[1]):
            yield f"ours has {_count(given[0])}, Dynamo {_count(given[1])}"
            return
        if len(ours.arguments) != len(dynamo.arguments):
            longer = next(pair for pair in zip(*given, strict=True) if len(pair[0]) != len(pair[1]))
            yield f"ours takes {_listed(longer[0])}, Dynamo {_listed(longer[1])}"
            return
        for one, other in zip(ours.arguments, dynamo.arguments, strict=True):
            if not self._same_argument(one, other):
                yield f"ours takes {_words(one)}, Dynamo {_words(other)}"

    def _same_argument(self, one: str | Ref, other: str | Ref) -> bool:
        if not isinstance(one, Ref) or not isinstance(other, Ref):
            return one == other
        one, other = self._value(one, 0), self._value(other, 1)
        given = one in self._inputs[0], other in self._inputs[1]
        if given == (True, True):  # inputs have other names on each side: the first use brings two together
            if one not in self._partner and other not in self._taken:
                self._bring_together(one, other)
            return self._partner.get(one) == other
        if any(given):
            return not self._as_many  # what one side has computed, the other gets from its graph before
        return self._partner.get(one) == other

    def _value(self, ref: Ref, side: int) -> Ref:
        """`x.add_(1)` gives `x` back: who goes on with the one goes on with the other."""
        while (written := self._written[side].get(ref)) is not None:
            ref = written
        return ref

    def _bring_together(self, one: Ref, other: Ref) -> None:
        self._partner[one] = other
        self._taken.add(other)

    # -- who belongs to whom

    def _pairs(self) -> Iterator[tuple[_Numbered | None, _Numbered | None]]:
        """All nodes, each once: by name and shape, then by name alone, then by the line that they come from."""
        for found in _matched(self._ours, self._dynamo, _by_name_and_shape):
            if not isinstance(found, _Left):
                yield found
                continue
            for nearer in _matched(found.ours, found.dynamo, _by_name):
                if isinstance(nearer, _Left):
                    yield from _by_line(nearer)
                else:
                    yield nearer


_Numbered = tuple[int, Described]
"""A node, and the number of its graph."""


@dataclass(frozen=True)
class _Left:
    """What is between two pairs, and fits nothing so far."""

    ours: Sequence[_Numbered]
    dynamo: Sequence[_Numbered]


def _in_one_line(graphs: Sequence[DescribedGraph]) -> list[_Numbered]:
    found: list[_Numbered] = []
    for number, graph in enumerate(graphs):
        if number:
            found.append((number, Described(f"{BETWEEN} {number}", BETWEEN, BETWEEN)))
        found += [(number, node) for node in graph.nodes]
    return found


def _by_name_and_shape(node: Described) -> tuple[str, str]:
    return node.name_of_call, node.shape


def _by_name(node: Described) -> tuple[str, str]:
    return node.name_of_call, ""


def _matched(
    ours: Sequence[_Numbered], dynamo: Sequence[_Numbered], key: Callable[[Described], tuple[str, str]]
) -> Iterator[tuple[_Numbered, _Numbered] | _Left]:
    """Pairs of nodes that have the same key, and what is left between them."""
    sides = [[key(node) for _, node in nodes] for nodes in (ours, dynamo)]
    matcher = difflib.SequenceMatcher(None, sides[0], sides[1], autojunk=False)
    for what, begin, end, other_begin, other_end in matcher.get_opcodes():
        if what == "equal":
            yield from zip(ours[begin:end], dynamo[other_begin:other_end], strict=True)
        else:
            yield _Left(ours[begin:end], dynamo[other_begin:other_end])


def _by_line(left: _Left) -> Iterator[tuple[_Numbered | None, _Numbered | None]]:
    """What fits nothing better: two of one line are a pair, in their order; the others are by themselves."""
    waiting = list(left.dynamo)
    for one in left.ours:
        at = next((number for number, other in enumerate(waiting) if _of_one_line(one[1], other[1])), None)
        if at is None:
            yield one, None
            continue
        yield from ((None, each) for each in waiting[:at])
        yield one, waiting[at]
        del waiting[: at + 1]
    yield from ((None, each) for each in waiting)


def _of_one_line(one: Described, other: Described) -> bool:
    here, there = one.place, other.place
    return here is not None and there is not None and (here.file, here.line) == (there.file, there.line)


def _given(arguments: Sequence[str | Ref]) -> list[list[str | Ref]]:
    """The arguments as they were given: what stands between brackets is one of them."""
    found: list[list[str | Ref]] = []
    depth = 0
    for each in arguments:
        if depth:
            found[-1].append(each)
        else:
            found.append([each])
        depth += {"(": 1, _SLICE: 1, ")": -1}.get(each, 0) if isinstance(each, str) else 0
    return found


def _listed(arguments: Sequence[str | Ref]) -> str:
    return ", ".join(map(_words, arguments)).replace("(, ", "(").replace(", )", ")")


def _count(arguments: Sequence[Any]) -> str:
    return "1 argument" if len(arguments) == 1 else f"{len(arguments)} arguments"


def _words(argument: str | Ref) -> str:
    return argument.name if isinstance(argument, Ref) else argument

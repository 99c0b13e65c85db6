"""Other inputs for a case: wherever an input is described, it is changed alike.

    with_input(case, name, tensor)              another tensor for a placeholder
    with_attribute(case, name, tensor)          another tensor for a constant of the graph
    resized(case, tensor, size, blobs)          the tensor with its leading part alone, in memory of its own
    with_hints(case, {"s0": 2}, blobs)          other values for symbols, and inputs that have these sizes

An input is described three times: by what the graph is called with, by what is known of its placeholder, and by what
the compiler is given. Sizes that were symbolic and have not changed stay symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchsleuth.case.format.tensor_checks import bytes_needed
from torchsleuth.case.graphs import symbols as rebuilding
from torchsleuth.case.graphs.expressions import decode_expr, encode_expr
from torchsleuth.case.schema import (
    Case,
    Entry,
    Fake,
    Node,
    Storage,
    Stored,
    Symbol,
    Symbolic,
    Symbols,
    Tensor,
    Term,
    Value,
)
from torchsleuth.case.storages.blobs import Blobs, allocate
from torchsleuth.case.storages.tensors import TensorReader
from torchsleuth.reduce.graphs import add_storage, map_arguments, map_values, placeholders, produced, replace
from torchsleuth.reduce.sizes import Hints, symbols_of


def tensor_inputs(case: Case) -> Iterator[tuple[Node, Tensor]]:
    """The placeholders that take a tensor, and what they are called with."""
    for node, value in zip(placeholders(case.graph), case.inputs, strict=True):
        if isinstance(value, Tensor):
            yield node, value


def input_of(case: Case, name: str) -> Value:
    """What the placeholder of that name is called with; None if there is none."""
    found = (value for node, value in zip(placeholders(case.graph), case.inputs, strict=True) if node.name == name)
    return next(found, None)


def tensor_attributes(case: Case) -> Iterator[tuple[str, Tensor]]:
    """The constants of the graph that are tensors."""
    for entry in case.graph.attributes:
        if isinstance(entry.value, Tensor):
            yield entry.name, entry.value


def with_input(
    case: Case, name: str, value: Tensor, axes: Sequence[int] | None = None, *, shares: bool | None = None
) -> Case:
    """The case with another tensor as the input of a placeholder.

    `axes` says which dimension of the old tensor each of the new one is, if it has others than before. `shares`:
    whether it goes on sharing memory with what it shared memory with, though its storage is another one.
    """
    nodes = placeholders(case.graph)
    place = next(place for place, node in enumerate(nodes) if node.name == name)
    old, node = case.inputs[place], nodes[place]
    if shares is None:
        shares = isinstance(old, Tensor) and old.storage == value.storage
    shape = _Shape(case.symbols, value, axes, shares)
    meta = replace(node.meta, val=shape(node.meta.val), example=shape(node.meta.example))
    graph = _with_node(case, replace(node, meta=meta))
    examples = case.examples
    if examples is not None:
        examples = (*examples[:place], shape(examples[place]), *examples[place + 1 :])
    inputs = (*case.inputs[:place], value, *case.inputs[place + 1 :])
    return replace(case, graph=graph, inputs=inputs, examples=examples)


def with_attribute(case: Case, name: str, value: Value) -> Case:
    """The case with another constant in its graph."""
    attributes = tuple(Entry(name, value) if entry.name == name else entry for entry in case.graph.attributes)
    return replace(case, graph=replace(case.graph, attributes=attributes))


def _with_node(case: Case, node: Node) -> Any:
    nodes = tuple(node if one.name == node.name else one for one in case.graph.nodes)
    return replace(case.graph, nodes=nodes)


class _Shape:
    """Gives fakes the shape of a tensor."""

    def __init__(self, symbols: Symbols, tensor: Tensor, axes: Sequence[int] | None, same_memory: bool) -> None:
        self._symbols = symbols
        self._hints = Hints(symbols)
        self._tensor = tensor
        self._axes = axes
        self._same_memory = same_memory

    def __call__(self, fake: Value) -> Value:
        if not isinstance(fake, Fake):
            return fake
        tensor = self._tensor
        axes = self._axes
        if axes is None:
            axes = range(len(fake.size)) if len(fake.size) == len(tensor.size) else [-1] * len(tensor.size)
        size = self._kept([fake.size[axis] if axis >= 0 else -1 for axis in axes], tensor.size)
        stride = self._kept([fake.stride[axis] if axis >= 0 else -1 for axis in axes], tensor.stride)
        if size != fake.size and tensor.stride == ordinary_strides(tensor.size):
            stride = tuple(self._product(size[place + 1 :]) for place in range(len(size)))
        (offset,) = self._kept([fake.offset], [tensor.offset])
        return replace(
            fake,
            dtype=tensor.dtype,
            size=size,
            stride=stride,
            offset=offset,
            requires_grad=fake.requires_grad and tensor.requires_grad,
            leaf=fake.leaf or not tensor.requires_grad,
            conj=tensor.conj,
            neg=tensor.neg,
            memory=fake.memory if self._same_memory else None,
        )

    def _kept(self, terms: Sequence[Term], numbers: Sequence[int]) -> tuple[Term, ...]:
        return tuple(
            term if self._hints.number(term) == number else number for term, number in zip(terms, numbers, strict=True)
        )

    def _product(self, terms: Sequence[Term]) -> Term:
        if all(isinstance(term, int) for term in terms):
            return math.prod(term for term in terms if isinstance(term, int))
        known = rebuilding.rebuild(self._symbols).symbols
        product = decode_expr(1, known)
        for term in terms:
            product = product * decode_expr(term, known)
        return encode_expr(product)


# ---- smaller tensors ---------------------------------------------------------------------------------------


def ordinary_strides(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(max(length, 1) for length in size[place + 1 :]) for place in range(len(size)))


def is_plain(tensor: Tensor) -> bool:
    """Whether its shape can be changed: it is strided, not quantised, and has values."""
    return tensor.layout == "strided" and tensor.quantiser is None and tensor.storage is not None


def resized(
    case: Case,
    tensor: Tensor,
    size: Sequence[int],
    blobs: Blobs,
    stride: Sequence[int] | None = None,
    offset: int | None = None,
) -> tuple[Case, Tensor]:
    """The tensor with the leading part of its values, in memory of its own. Its dimensions lie in the same order."""
    strides = tuple(stride) if stride is not None else _strides_like(tensor, size)
    offset = tensor.offset if offset is None else offset
    made = replace(tensor, size=tuple(size), stride=strides, offset=offset, base=None)
    assert tensor.storage is not None
    old = case.storages[tensor.storage]
    nbytes = bytes_needed(made)
    content = old.content
    if isinstance(content, Stored):
        content = Stored(blobs.put(_leading_part(case, tensor, made, nbytes, blobs)))
    case, number = add_storage(case, Storage(nbytes, content, old.device))
    made = replace(made, storage=number)
    if tensor.grad is not None:
        case, grad = resized(case, tensor.grad, size, blobs)
        made = replace(made, grad=grad)
    return case, made


def _strides_like(tensor: Tensor, size: Sequence[int]) -> tuple[int, ...]:
    """Strides of the same order: without gaps if there were none, else as they were."""
    order = sorted(range(len(size)), key=lambda axis: (-tensor.stride[axis], axis))
    if _packed(tensor.size, tensor.stride, order) != tensor.stride:
        return tensor.stride
    return _packed(size, tensor.stride, order)


def _packed(size: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Dimensions one after another in that order, the innermost last; those that repeat one value go on doing so."""
    found = [0] * len(size)
    step = 1
    for axis in reversed(order):
        if stride[axis] or size[axis] <= 1:
            found[axis] = step
            step *= max(size[axis], 1)
    return tuple(found)


def _leading_part(case: Case, tensor: Tensor, made: Tensor, nbytes: int, blobs: Blobs) -> torch.UntypedStorage:
    here = tuple(replace(storage, device="cpu") for storage in case.storages)
    plain = Tensor(tensor.dtype, tensor.size, tensor.stride, tensor.offset, tensor.storage)
    source = TensorReader(blobs, here).get(plain)
    size = [1 if step == 0 else length for length, step in zip(made.size, made.stride, strict=True)]
    for axis, length in enumerate(size):
        source = source.narrow(axis, 0, length)
    storage = allocate(nbytes)
    torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
    torch.empty(0, dtype=source.dtype).set_(storage, made.offset, size, made.stride).copy_(source)
    return storage


# ---- symbols -----------------------------------------------------------------------------------------------


def with_hints(case: Case, hints: Mapping[str, int], blobs: Blobs) -> Case | None:
    """The case with other values for its symbols, and inputs of these sizes. None if they cannot have these values."""
    symbols = _with_values(case.symbols, hints)
    if symbols is None:
        return None
    now = Hints(symbols)

    def leaf(value: Value) -> Value:
        if isinstance(value, Symbolic) and value.hint is not None and set(symbols_of(value)):
            found = now.number(value.expr)
            return value if found is None else replace(value, hint=found)
        return value

    nodes = tuple(
        replace(
            map_arguments(node, leaf),
            meta=replace(node.meta, val=map_values(node.meta.val, leaf), example=map_values(node.meta.example, leaf)),
        )
        for node in case.graph.nodes
    )
    examples = None if case.examples is None else tuple(map_values(value, leaf) for value in case.examples)
    before = case
    case = replace(case, symbols=symbols, graph=replace(case.graph, nodes=nodes), examples=examples)
    inputs = list(case.inputs)
    for place, node in enumerate(placeholders(before.graph)):
        value, known = inputs[place], produced(node)
        if isinstance(value, Tensor) and isinstance(known, Fake) and is_plain(value) and set(symbols_of(known)):
            size, stride = now.numbers(known.size), now.numbers(known.stride)
            if size is None or stride is None:
                return None
            if size != value.size:
                if any(new > old for new, old in zip(size, value.size, strict=True)):
                    return None
                case, inputs[place] = resized(case, value, size, blobs, stride)
        elif isinstance(known, Symbolic) and isinstance(value, int) and not isinstance(value, bool):
            found = now.number(known.expr)
            inputs[place] = value if found is None else int(found)
    return replace(case, inputs=tuple(inputs))


def _with_values(symbols: Symbols, hints: Mapping[str, int]) -> Symbols | None:
    """The symbols with these values, and what follows from them. None if something known of them would not hold."""
    changed = tuple(replace(one, hint=hints[one.name]) if one.name in hints else one for one in symbols.symbols)
    now = Hints(replace(symbols, symbols=changed))
    follow = {name: now.number(term) for name, term in symbols.replacements}
    changed = tuple(_following(one, follow.get(one.name)) for one in changed)
    symbols = replace(symbols, symbols=changed)
    return symbols if _holds(symbols) else None


def _following(symbol: Symbol, value: bool | int | float | None) -> Symbol:
    return symbol if value is None or symbol.hint is None else replace(symbol, hint=value)


def _holds(symbols: Symbols) -> bool:
    """Whether ranges, guards and whatever else is known hold for the values of the symbols."""
    environment = rebuilding.rebuild(symbols)
    values = {environment.symbols[one.name]: one.hint for one in symbols.symbols if isinstance(one.hint, (int, float))}
    for one in symbols.symbols:
        bounds = environment.shape_env.var_to_range.get(environment.symbols[one.name])
        if isinstance(one.hint, (int, float)) and bounds is not None and not bounds.lower <= one.hint <= bounds.upper:
            return False
    known = [(term, True) for term in symbols.guards]
    known += [(one.expr, True) for one in symbols.asserts]
    known += list(symbols.axioms or ())
    for term, truth in known:
        found = environment.expr(term).subs(values)
        if found in (True, False) and bool(found) != truth:
            return False
    return all(environment.expr(term).subs(values) == 0 for term in symbols.divisible)

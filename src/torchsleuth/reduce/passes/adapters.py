"""One call that makes a value of one type from a value of another: a cast, a view, a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from torchsleuth.case.schema import Fake, List, Node, Ref, Term, Torch, Value
from torchsleuth.reduce.passes.editing import meta_like

_SUMMED: Final = ("float", "complex", "int64")
"""Dtypes that a sum keeps."""


def adapters(node: Node, wanted: Fake, source: str, given: Fake, *, methods: bool) -> Iterator[Node]:
    """Calls that could stand in the place of a node, and take another value. `methods`: as Dynamo writes them."""
    if wanted.device != given.device or wanted.layout != given.layout:
        return
    make = _Methods(node, wanted, source) if methods else _Operators(node, wanted, source)
    if wanted.size == given.size:
        if wanted.dtype != given.dtype:
            yield make.cast(wanted.dtype)
        return
    if wanted.dtype != given.dtype:
        return
    summed = _summed(given.size, wanted.size) if wanted.dtype.startswith(_SUMMED) else None
    if summed is not None:
        yield make.sum(*summed)
    if not all(isinstance(term, int) for term in (*wanted.size, *given.size)):
        return
    size, old = _numbers(wanted.size), _numbers(given.size)
    if len(size) == 2 and size == old[::-1]:
        yield make.transpose()
    if prod(size) == prod(old):
        yield make.view(size)
    elif _expands(old, size):
        yield make.expand(size)


class _Operators:
    """As AOT writes them: operators that compilers take as they are, none that AOT would have decomposed."""

    def __init__(self, node: Node, wanted: Fake, source: str) -> None:
        self._node = node
        self._meta = meta_like(node, wanted)
        self._source = Ref(source)

    def _call(self, name: str, *args: Value) -> Node:
        return Node(self._node.name, "call_function", f"torch.ops.{name}", (self._source, *args), (), self._meta)

    def cast(self, dtype: str) -> Node:
        return self._call("prims.convert_element_type.default", Torch(dtype))

    def sum(self, dims: Sequence[int], keep: bool) -> Node:
        return self._call("aten.sum.dim_IntList", List(tuple(dims)), *((True,) if keep else ()))

    def transpose(self) -> Node:
        return self._call("aten.permute.default", List((1, 0)))

    def view(self, size: Sequence[int]) -> Node:
        return self._call("aten.view.default", List(tuple(size)))

    def expand(self, size: Sequence[int]) -> Node:
        return self._call("aten.expand.default", List(tuple(size)))


class _Methods(_Operators):
    """As Dynamo writes them."""

    def _call(self, name: str, *args: Value) -> Node:
        plain = name.split(".")[1]
        method = {"convert_element_type": "to", "view": "reshape"}.get(plain, plain)
        return Node(self._node.name, "call_method", method, (self._source, *args), (), self._meta)


def _numbers(terms: Sequence[Term]) -> list[int]:
    return [term for term in terms if isinstance(term, int)]


def _expands(old: Sequence[int], new: Sequence[int]) -> bool:
    return len(old) <= len(new) and all(
        one in (1, other) for one, other in zip(reversed(old), reversed(new), strict=False)
    )


def _summed(old: Sequence[Term], new: Sequence[Term]) -> tuple[list[int], bool] | None:
    """The dimensions that a sum over leads from one size to the other, and whether they stay as ones."""
    if len(old) == len(new):
        dims = [at for at, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
        return (dims, True) if dims and all(new[at] == 1 for at in dims) else None
    if len(old) < len(new):
        return None
    kept: list[int] = []
    for term in new:
        start = kept[-1] + 1 if kept else 0
        at = next((place for place in range(start, len(old)) if old[place] == term), None)
        if at is None:
            return None
        kept.append(at)
    return [at for at in range(len(old)) if at not in kept], False

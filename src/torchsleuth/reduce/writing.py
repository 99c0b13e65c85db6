"""What the calls of a graph write to, and where results come from memory that nobody wrote to.

    writes_in_place(node)       whether a call writes to what it is given
    is_unwritten(node)          whether it makes memory that has yet to be written to
    shows_unwritten(graph)      whether such memory reaches what a graph returns or changes

Whatever takes a value of chance makes another one. Memory stops being one of chance when all of it is written to. For
that, writes by slices are counted, element by element. Of writes by indices, and of those of operators that are not
torch's own, it is believed that they leave nothing out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from torchsleuth import torch_compat
from torchsleuth.case.graphs import targets
from torchsleuth.case.schema import Fake, Graph, Node
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.graphs import GETITEM, is_call, name_of, output_of, produced, refs_in, refs_of

_UNWRITTEN: Final = frozenset(
    "empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided".split()
)
_OVERWRITES: Final = frozenset(
    """fill zero copy uniform normal normal_functional random exponential geometric cauchy log_normal
    _foreach_copy _foreach_zero setitem
    scatter index_put _unsafe_index_put _index_put_impl index_copy index_fill masked_scatter put""".split()
)
"""Operators (or, with a `_` at the end, those in place) that overwrite the first argument."""
_SLICES: Final = frozenset("slice_scatter select_scatter diagonal_scatter as_strided_scatter".split())
"""Operators that overwrite as much of the first argument as the second one has."""
_SHAPES: Final = frozenset(
    "sym_size sym_stride sym_numel sym_storage_offset size stride numel dim storage_offset shape getattr".split()
)
"""Operators that look at no value."""
_SCALED: Final = frozenset("addmm baddbmm addbmm addmv addr".split())
"""Operators that leave the first argument alone if `beta` is 0."""
_VIEWS: Final = frozenset(
    """view reshape t transpose permute squeeze unsqueeze expand narrow select chunk split unbind flatten unflatten
    detach swapaxes movedim view_as expand_as contiguous alias""".split()
)
"""Functions and methods whose result shares memory with the first argument; operators say so themselves."""
_BELIEVED: Final = ("triton_kernel_wrapper", "auto_functionalized")


def is_unwritten(node: Node) -> bool:
    """Whether a call makes memory that has yet to be written to."""
    return is_call(node) and name_of(node) in _UNWRITTEN


def writes_in_place(node: Node) -> bool:
    """Whether a call writes to what it is given."""
    if _is_overload(node):
        return _is_mutable(node.target)
    name = name_of(node)
    if (name.endswith("_") and not name.endswith("__")) or node.target == "operator.setitem":
        return True
    return any(one.name == "out" or (one.name == "inplace" and one.value is True) for one in node.kwargs)


def written_by(node: Node) -> list[str]:
    """The nodes to whose results a call writes."""
    if _is_believed(node):
        return list(refs_of(node))
    if not writes_in_place(node):
        return []
    if _is_overload(node):
        given = {one.name: one.value for one in node.kwargs}
        arguments = torch_compat.op_arguments(_resolved(node.target), node.args, given)
        return [name for one in arguments if one.written for name in refs_in(one.value)]
    outs = [name for one in node.kwargs if one.name == "out" for name in refs_in(one.value)]
    return outs or (list(refs_in(node.args[0])) if node.args else [])


def shows_unwritten(graph: Graph) -> bool:
    """Whether something of chance is returned by a graph, or written to its inputs."""
    if not any(map(is_unwritten, graph.nodes)):
        return False
    memory = _Memory(graph)
    for node in graph.nodes:
        if is_call(node):
            memory.call(node)
    ends = [*refs_of(output_of(graph)), *(node.name for node in graph.nodes if node.op in ("placeholder", "get_attr"))]
    return any(map(memory.is_chance, ends))


class _Memory:
    """How much of what each node stands for was never written to, while the calls are gone through one by one."""

    def __init__(self, graph: Graph) -> None:
        self._known = {node.name: node for node in graph.nodes}
        self._owners: dict[str, str] = {}
        """Whose memory a result lies in, if it is no memory of its own."""
        self._missing: dict[str, int] = {}
        """How many elements of it are those of chance."""

    def is_chance(self, name: str) -> bool:
        return self._missing.get(self._owner(name), 0) > 0

    def call(self, node: Node) -> None:
        if is_unwritten(node):
            self._missing[node.name] = self._elements(node.name)
            return
        written = written_by(node)
        replaced = set(_overwritten(node, written))
        is_chance = any(self.is_chance(name) for name in _looked_at(node) if name not in replaced)
        for name in written:
            if is_chance:
                self._spoil(name)
            elif name in replaced:
                self._fill(name)
        name = name_of(node)
        if written and name.endswith("_"):
            self._owners[node.name] = self._owner(written[0])
        elif _is_view(node):
            self._owners[node.name] = self._owner(next(refs_of(node), node.name))
        elif name in _SLICES:
            self._slice(node)
        elif is_chance:
            self._spoil(node.name)

    def _slice(self, node: Node) -> None:
        whole, *rest = refs_of(node)
        if any(map(self.is_chance, rest)):
            self._spoil(node.name)
        elif rest and self.is_chance(whole):
            missing = self._missing[self._owner(whole)] - self._elements(rest[0])
            self._missing[node.name] = max(missing, 0)

    def _owner(self, name: str) -> str:
        return self._owners.get(name, name)

    def _spoil(self, name: str) -> None:
        owner = self._owner(name)
        self._missing[owner] = self._elements(owner)

    def _fill(self, name: str) -> None:
        owner = self._owner(name)
        self._missing[owner] = max(self._missing.get(owner, 0) - self._elements(name), 0)

    def _elements(self, name: str) -> int:
        """How many elements the result of a node has; 1 if that is not known before it runs."""
        value = produced(self._known[name])
        count = 1
        for length in value.size if isinstance(value, Fake) else ():
            if not isinstance(length, int):
                return 1
            count *= length
        return count


def _looked_at(node: Node) -> Iterator[str]:
    """The nodes whose values a call looks at."""
    name = name_of(node)
    if name in _SHAPES or name.endswith("_like") or name.startswith("new_") or _is_believed(node):
        return
    ignored = name.rstrip("_") in _SCALED and any(one.name == "beta" and one.value == 0 for one in node.kwargs)
    for value in node.args[1:] if ignored else node.args:
        yield from refs_in(value)
    for one in node.kwargs:
        yield from refs_in(one.value)


def _overwritten(node: Node, written: list[str]) -> Iterator[str]:
    """The nodes of which a call overwrites all, without a look at it."""
    if _is_believed(node) or not _is_torch_s(node.target):
        yield from written
        return
    for one in node.kwargs:  # `out=`, whatever it is called
        yield from (name for name in refs_in(one.value) if name in written)
    if node.args and _ignores_first(node):
        yield from refs_in(node.args[0])


def _ignores_first(node: Node) -> bool:
    """Whether it is all the same to a call what the first argument held."""
    name = name_of(node)
    if name.rstrip("_") == "bernoulli":
        return name.endswith("_") or len(node.args) > 1  # it has chances, or else the argument is them
    return name in _SLICES or (name.rstrip("_") in _OVERWRITES and not _accumulates(node))


def _accumulates(node: Node) -> bool:
    is_put = "index_put" in name_of(node) and len(node.args) > 3 and node.args[3] is True
    return is_put or any(one.name in ("accumulate", "reduce") and one.value not in (None, False) for one in node.kwargs)


def _is_believed(node: Node) -> bool:
    return node.target.startswith("torch.ops.higher_order.") and name_of(node).startswith(_BELIEVED)


def _is_view(node: Node) -> bool:
    if _is_overload(node):
        return _shares(node.target)
    return node.target == GETITEM or name_of(node) in _VIEWS


# ---- what is known of a target -----------------------------------------------------------------------------


def _is_overload(node: Node) -> bool:
    return node.op == "call_function" and torch_compat.is_op_overload(_resolved(node.target))


def _is_torch_s(target: str) -> bool:
    return not target.startswith("torch.ops.") or target.startswith(("torch.ops.aten.", "torch.ops.prims."))


@functools.lru_cache(maxsize=4096)
def _resolved(target: str) -> object | None:
    try:
        return targets.resolve(target)
    except SleuthError:
        return None


@functools.lru_cache(maxsize=4096)
def _is_mutable(target: str) -> bool:
    return torch_compat.op_is_mutable(_resolved(target))


@functools.lru_cache(maxsize=4096)
def _shares(target: str) -> bool:
    return torch_compat.op_is_view(_resolved(target))

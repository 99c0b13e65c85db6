"""Whether there is any use in asking about a case: it can be run, computes something, and returns what is defined.

    legal(case)      nothing is run for it

A reducer that is given a free hand ends with graphs that fail for no reason of the compiler's: memory that nobody wrote
to, or nothing computed at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

import torch

from torchsleuth import torch_compat
from torchsleuth.case.graphs import targets
from torchsleuth.case.schema import Case, Fake, Graph, Node, Ref, Symbolic
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.graphs import (
    is_call,
    is_number,
    operators,
    output_of,
    placeholders,
    produced,
    refs_in,
    refs_of,
)
from torchsleuth.reduce.order import graphs_in, outputs_of
from torchsleuth.reduce.sizes import symbols_of

_UNWRITTEN: Final = frozenset(
    "empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided".split()
)
_CONSTANT: Final = frozenset(
    "full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor".split()
)
_HANDS_ON: Final = frozenset("clone _to_copy convert_element_type contiguous to float half double".split())
_WRITES: Final = ("fill", "zero", "copy", "scatter", "bernoulli", "normal", "uniform", "random", "_put")


def legal(case: Case) -> bool:
    """Whether a case can be asked about."""
    graph = case.graph
    if len(placeholders(graph)) != len(case.inputs) or (
        case.examples is not None and len(case.examples) != len(case.inputs)
    ):
        return False
    whole = all(_is_whole(one) and _is_balanced(one) and _has_conditions(one) for one in graphs_in(graph))
    return whole and _computes(graph) and _returns(graph) and _knows_its_symbols(case)


def name_of(node: Node) -> str:
    """What a call is called without namespace and overload: `torch.ops.aten.add.Tensor` is "add"."""
    parts = node.target.split(".")
    return parts[3] if node.target.startswith("torch.ops.") and len(parts) > 3 else parts[-1]


def is_constant(node: Node) -> bool:
    """Whether a call makes a tensor of one value, or of none, from nothing."""
    return is_call(node) and (name_of(node) in _CONSTANT or name_of(node) in _UNWRITTEN)


def results(graph: Graph) -> list[bool]:
    """Of each thing that a graph returns, whether it was computed by it: no input, no constant."""
    made = {node.name for node in graph.nodes if is_call(node) and not is_constant(node)}
    return [any(name in made for name in refs_in(value)) for value in outputs_of(graph)]


# ---- parts -------------------------------------------------------------------------------------------------


def _is_whole(graph: Graph) -> bool:
    """Each node refers to earlier ones only, and the output comes last."""
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen or not seen.issuperset(refs_of(node)):
            return False
        seen.add(node.name)
    return [node.op for node in graph.nodes].count("output") == 1 and output_of(graph).op == "output"


_PAIRS: Final = (("increment_nesting", "decrement_nesting"), ("_enter_", "_exit_"), ("_hooks_disable", "_hooks_enable"))
"""Calls that change the mode of the whole process until another call."""


def _is_balanced(graph: Graph) -> bool:
    """Whether every mode that a graph enters is left again: or else whatever runs after it would be in that mode."""
    names = [name_of(node) for node in graph.nodes if node.op == "call_function" and node.target.startswith("torch.")]
    for begin, end in _PAIRS:
        entered: list[str] = []
        for name in names:
            if begin in name:
                entered.append(name.replace(begin, end))
            elif end in name and (not entered or entered.pop() != name):
                return False
        if entered:
            return False
    return True


def _has_conditions(graph: Graph) -> bool:
    """Whether what decides between branches is one truth value. On fakes, operators take anything for one."""
    known = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if not node.target.startswith("torch.ops.higher_order.") or name_of(node) != "cond" or not node.args:
            continue
        condition = node.args[0]
        value = produced(known[condition.name]) if isinstance(condition, Ref) else condition
        if isinstance(value, Fake) and (value.dtype != "bool" or any(length != 1 for length in value.size)):
            return False
        if isinstance(value, Symbolic) and value.type != "bool":
            return False
    return True


def _computes(graph: Graph) -> bool:
    return any(not is_constant(node) and not is_number(produced(node)) for node in operators(graph))


def _returns(graph: Graph) -> bool:
    """Something that was computed, and nothing that nobody wrote to."""
    if not any(results(graph)):
        return False
    if not any(is_call(node) and name_of(node) in _UNWRITTEN for node in graph.nodes):
        return True
    return set(_unwritten(graph)).isdisjoint(refs_of(output_of(graph)))


def _unwritten(graph: Graph) -> Iterator[str]:
    """The nodes whose result is whatever was in memory: fresh memory, looked at or computed with."""
    found: set[str] = set()
    written = {name for node in graph.nodes if is_call(node) and _writes_in_place(node) for name in refs_of(node)}
    for node in graph.nodes:
        if not is_call(node) or node.name in written:
            continue
        if name_of(node) in _UNWRITTEN or (found.intersection(refs_of(node)) and _hands_on(node)):
            found.add(node.name)
            yield node.name


def _function(node: Node) -> object | None:
    return _resolved(node.target) if node.op == "call_function" else None


@functools.lru_cache(maxsize=1024)
def _resolved(target: str) -> object | None:
    try:
        return targets.resolve(target)
    except SleuthError:
        return None


def _writes_in_place(node: Node) -> bool:
    function = _function(node)
    if torch_compat.is_op_overload(function):
        return torch_compat.op_is_mutable(function)
    name = name_of(node)
    return (name.endswith("_") and not name.endswith("__")) or any(one.name == "out" for one in node.kwargs)


def _hands_on(node: Node) -> bool:
    """Whether a result made of nothing but chance is one of chance again."""
    name = name_of(node)
    if name in _HANDS_ON:
        return True
    if any(part in name for part in _WRITES) or name.endswith("_like"):
        return False
    function = _function(node)
    if not torch_compat.is_op_overload(function):
        return False
    return torch_compat.op_is_view(function) or torch.Tag.pointwise in torch_compat.op_tags(function)


def _knows_its_symbols(case: Case) -> bool:
    """Whether each symbol that the sizes of results mention is told by an input, or found out by a node."""
    if not case.symbols.symbols:
        return True
    replaced = {name for name, _ in case.symbols.replacements}
    told = {name for node in placeholders(case.graph) for name in symbols_of(produced(node))} | replaced
    told |= {one.name for one in case.symbols.symbols if not one.backed}
    return all(told.issuperset(symbols_of(produced(node))) for node in case.graph.nodes if is_call(node))

"""Whether there is any use in asking about a case: it can be run, computes something, and returns what is defined.

    legal(case)      nothing is run for it

A reducer that is given a free hand ends with graphs that fail for no reason of the compiler's: memory that nobody wrote
to, or nothing computed at all.
"""

from __future__ import annotations

from typing import Final

from torchsleuth.case.schema import Case, Fake, Graph, Node, Ref, Symbolic
from torchsleuth.reduce.graphs import (
    is_call,
    is_number,
    name_of,
    operators,
    output_of,
    placeholders,
    produced,
    refs_in,
    refs_of,
)
from torchsleuth.reduce.order import graphs_in, outputs_of
from torchsleuth.reduce.sizes import symbols_of
from torchsleuth.reduce.writing import is_unwritten, shows_unwritten

_CONSTANT: Final = frozenset(
    "full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor".split()
)


def legal(case: Case) -> bool:
    """Whether a case can be asked about."""
    graph = case.graph
    if len(placeholders(graph)) != len(case.inputs) or (
        case.examples is not None and len(case.examples) != len(case.inputs)
    ):
        return False
    whole = all(_is_whole(one) and _is_balanced(one) and _has_conditions(one) for one in graphs_in(graph))
    return whole and _computes(graph) and _returns(graph) and _knows_its_symbols(case)


def is_constant(node: Node) -> bool:
    """Whether a call makes a tensor of one value, or of none, from nothing."""
    return is_unwritten(node) or (is_call(node) and name_of(node) in _CONSTANT)


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
    return any(results(graph)) and not shows_unwritten(graph)


def _knows_its_symbols(case: Case) -> bool:
    """Whether each symbol that the sizes of results mention is told by an input, or found out by a node."""
    if not case.symbols.symbols:
        return True
    replaced = {name for name, _ in case.symbols.replacements}
    told = {name for node in placeholders(case.graph) for name in symbols_of(produced(node))} | replaced
    told |= {one.name for one in case.symbols.symbols if not one.backed}
    return all(told.issuperset(symbols_of(produced(node))) for node in case.graph.nodes if is_call(node))

"""Symbolic sizes: numbers in their place, and no facts that nothing needs.

concrete        a symbol is the number that it was: all of them at once, then one after another
unused_facts    what is known of symbols that nothing mentions; what compiling found out about the others
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from torchsleuth.case.graphs.expressions import decode_expr, encode_expr
from torchsleuth.case.schema import (
    Apply,
    Case,
    Entry,
    Fake,
    Graph,
    Meta,
    Node,
    Symbol,
    Symbolic,
    Symbols,
    Tensor,
    Term,
    Value,
)
from torchsleuth.errors import SleuthError
from torchsleuth.reduce.graphs import is_call, map_arguments, map_values, placeholders, produced, replace
from torchsleuth.reduce.order import graphs_in, outputs_of
from torchsleuth.reduce.passes.editing import Edit, completed, smaller, with_outputs, with_uses
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.sizes import mentioned, symbols_in, symbols_of

Numbers: TypeAlias = Mapping[str, int | float]


# ---- numbers in the place of symbols -----------------------------------------------------------------------


def concrete(case: Case, material: Material) -> Iterator[Site]:
    """Sizes that are numbers."""
    names = list(values_of(case))
    if not names:
        return
    yield [_concrete(names, "all sizes: numbers", material)]
    if len(names) > 1:
        for name in names:
            yield [_concrete([name], f"{name}: a number", material)]


def _concrete(names: Iterable[str], words: str, material: Material) -> Patch:
    def apply(case: Case) -> Case | None:
        numbers = {name: number for name, number in values_of(case).items() if name in names}
        if not numbers:
            return None
        try:
            return _with_numbers(case, _followed(numbers, case.symbols), material)
        except SleuthError:
            return None

    return Patch(words, apply)


def values_of(case: Case) -> dict[str, int | float]:
    """What each symbol was when the graph was called; its hint, if no input tells."""
    found: dict[str, int | float] = {}
    for symbol in case.symbols.symbols:
        if symbol.backed and isinstance(symbol.hint, (int, float)):
            found[symbol.name] = symbol.hint
    for node, given in zip(placeholders(case.graph), case.inputs, strict=False):
        value = produced(node)
        if isinstance(value, Fake) and isinstance(given, Tensor):
            told = dict(zip(value.size, given.size, strict=False))
        elif isinstance(value, Symbolic) and isinstance(given, (int, float)):
            told = {value.expr: given}  # type: ignore[dict-item]
        else:
            continue
        found.update((term, number) for term, number in told.items() if isinstance(term, str) and term in found)
    return found


def _followed(numbers: Numbers, symbols: Symbols) -> dict[str, int | float]:
    """Also those symbols that are replaced by what is a number now."""
    known = dict(numbers)
    for _ in symbols.replacements:
        for name, term in symbols.replacements:
            number = substituted(term, known)
            if isinstance(number, (int, float)) and name not in known:
                known[name] = number
    return known


def _with_numbers(case: Case, numbers: Numbers, material: Material) -> Case | None:
    graph = _in_graph(case.graph, numbers)
    fixed = {
        node.name: value
        for node in graph.nodes
        if (is_call(node) or node.op == "placeholder") and isinstance(value := produced(node), (bool, int, float))
    }
    used = with_uses(graph, fixed)
    outputs = [value for value in outputs_of(used) if not isinstance(value, (bool, int, float))]
    if outputs and len(outputs) < len(outputs_of(used)):
        used = with_outputs(used, outputs)
    for node, given in zip(placeholders(graph), case.inputs, strict=False):
        value = produced(node)
        if isinstance(value, Fake) and isinstance(given, Tensor) and not _may_be(value.size, given.size):
            return None
    changed = replace(
        case,
        graph=graph,
        symbols=_in_symbols(case.symbols, numbers),
        examples=None if case.examples is None else tuple(_in_value(one, numbers) for one in case.examples),
    )
    return smaller(case, completed(changed, Edit(used), material))


def _may_be(terms: tuple[Term, ...], size: tuple[int, ...]) -> bool:
    return all(term == length for term, length in zip(terms, size, strict=True) if isinstance(term, int))


def _in_graph(graph: Graph, numbers: Numbers) -> Graph:
    return replace(
        graph,
        nodes=tuple(_in_node(node, numbers) for node in graph.nodes),
        attributes=tuple(
            Entry(one.name, _in_graph(one.value, numbers)) if isinstance(one.value, Graph) else one
            for one in graph.attributes
        ),
    )


def _in_node(node: Node, numbers: Numbers) -> Node:
    node = map_arguments(node, lambda value: _in_leaf(value, numbers))
    return replace(node, meta=_in_meta(node.meta, numbers))


def _in_meta(meta: Meta, numbers: Numbers) -> Meta:
    return replace(
        meta,
        val=_in_value(meta.val, numbers),
        example=_in_value(meta.example, numbers),
        bindings=tuple(one for one in meta.bindings if not set(symbols_in(one.symbol)) & numbers.keys()),
        more=tuple(Entry(one.name, _in_value(one.value, numbers)) for one in meta.more),
    )


def _in_value(value: Value, numbers: Numbers) -> Value:
    return map_values(value, lambda leaf: _in_leaf(leaf, numbers))


def _in_leaf(value: Value, numbers: Numbers) -> Value:
    match value:
        case Fake():
            return replace(
                value,
                size=tuple(substituted(term, numbers) for term in value.size),
                stride=tuple(substituted(term, numbers) for term in value.stride),
                offset=substituted(value.offset, numbers),
            )
        case Symbolic():
            term = substituted(value.expr, numbers)
            return replace(value, expr=term) if isinstance(term, (str, Apply)) else term
    return value


def substituted(term: Term, numbers: Numbers) -> Term:
    """The term with numbers for symbols, worked out as far as that goes."""
    if isinstance(term, str):
        return numbers.get(term, term)
    if not isinstance(term, Apply) or not numbers.keys() & set(symbols_in(term)):
        return term
    import sympy  # type: ignore[import-untyped]

    known = {name: sympy.Symbol(name, integer=True, positive=True) for name in symbols_in(term)}
    found = decode_expr(term, known)
    return encode_expr(found.subs({known[name]: number for name, number in numbers.items() if name in known}))


def _in_symbols(symbols: Symbols, numbers: Numbers) -> Symbols:
    """What is left to be said of the other symbols. What follows from facts is found out anew."""

    def still_open(term: Term) -> bool:
        return isinstance(term, (str, Apply))

    others = tuple(one for one in symbols.symbols if one.name not in numbers)
    return replace(
        symbols,
        symbols=others,
        replacements=tuple((n, substituted(term, numbers)) for n, term in symbols.replacements if n not in numbers),
        renamings=tuple(pair for pair in symbols.renamings if not numbers.keys() & set(pair)),
        divisible=tuple(filter(still_open, (substituted(term, numbers) for term in symbols.divisible))),
        guards=tuple(filter(still_open, (substituted(term, numbers) for term in symbols.guards))),
        asserts=tuple(
            replace(one, expr=term)
            for one in symbols.asserts
            if still_open(term := substituted(one.expr, numbers)) and one.symbol not in numbers
        ),
        axioms=None,
        **({} if others else {"settings": (), "unbacked_ints": 0, "unbacked_floats": 0}),
    )


# ---- facts that nothing needs ------------------------------------------------------------------------------


def unused_facts(case: Case, material: Material) -> Iterator[Site]:
    """Symbols that nothing mentions; guards, divisors and assertions over the others."""
    del material
    if case.symbols == Symbols():
        return
    yield [
        Patch("sizes that nothing mentions: left out, with all that is said of them", _without_unused),
        Patch("sizes that have nothing to do with others: left out", lambda one: _without_unused(one, related=True)),
    ]
    yield [Patch("facts about sizes: left out", _without_facts)]
    for term in case.symbols.guards:
        yield [Patch("one guard: left out", lambda one, term=term: _without_guard(one, term))]  # type: ignore[misc]


def _without_unused(case: Case, *, related: bool = False) -> Case | None:
    """`related`: what a fact connects with a symbol that is mentioned stays as well."""
    symbols = case.symbols
    used = _all_mentioned(case)
    links = [{name, *symbols_in(term)} for name, term in symbols.replacements]
    links += [set(pair) for pair in symbols.renamings]
    if related:
        facts = (*symbols.divisible, *symbols.guards, *(one.expr for one in symbols.asserts))
        links += [set(symbols_in(term)) for term in (*facts, *(term for term, _ in symbols.axioms or ()))]
    before = -1
    while before != len(used):
        before = len(used)
        used = used.union(*(link for link in links if link & used))
    made = _only(symbols, used)
    return None if made == symbols else smaller(case, replace(case, symbols=made))


def _all_mentioned(case: Case) -> set[str]:
    found: set[str] = set()
    for graph in graphs_in(case.graph):
        found |= mentioned(graph.nodes)
        for node in graph.nodes:
            found.update(name for one in node.meta.bindings for name in symbols_in(one.symbol))
            found.update(name for one in node.meta.more for name in symbols_of(one.value))
    for value in case.examples or ():
        found.update(symbols_of(value))
    return found


def _only(symbols: Symbols, used: set[str]) -> Symbols:
    def kept(term: Term) -> bool:
        return used.issuperset(symbols_in(term))

    left: tuple[Symbol, ...] = tuple(one for one in symbols.symbols if one.name in used)
    if not left:
        return Symbols()
    return replace(
        symbols,
        symbols=left,
        replacements=tuple((name, term) for name, term in symbols.replacements if name in used and kept(term)),
        renamings=tuple(pair for pair in symbols.renamings if used.issuperset(pair)),
        divisible=tuple(filter(kept, symbols.divisible)),
        guards=tuple(filter(kept, symbols.guards)),
        asserts=tuple(one for one in symbols.asserts if kept(one.expr) and (one.symbol is None or one.symbol in used)),
        axioms=None if symbols.axioms is None else tuple(pair for pair in symbols.axioms if kept(pair[0])),
    )


def _without_facts(case: Case) -> Case | None:
    made = replace(case.symbols, divisible=(), guards=(), asserts=(), axioms=None)
    return None if made == case.symbols else smaller(case, replace(case, symbols=made))


def _without_guard(case: Case, term: Term) -> Case | None:
    made = replace(case.symbols, guards=tuple(one for one in case.symbols.guards if one != term))
    return None if made == case.symbols else smaller(case, replace(case, symbols=made))

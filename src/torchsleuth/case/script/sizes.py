"""Symbolic sizes in a script: the symbols, what is known of them, and what is made of them.

    s77 = sympy.Symbol("s77", positive=True, integer=True)

    def symbols():
        env = ShapeEnv()
        know(env, s77, hint=8, bounds=(2, int_oo), source="L['x'].size()[0]")
        env.replacements[s27] = s77
        return finish(env)

    def fakes(args):
        return [
            size_of(s77),
            fake(torch.float32, (s77, 4), (4, 1)),
        ]

The same tables of the ShapeEnv are filled as when a case is loaded (`case.symbols`): nothing is traced or solved.
"""

from __future__ import annotations

from collections import Counter

from torchsleuth.case import schema
from torchsleuth.case.format.symbol_checks import SETTINGS
from torchsleuth.case.schema import Term
from torchsleuth.case.script.inputs import write_list
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.shapes import shape_of
from torchsleuth.case.script.source import call_source, text_source
from torchsleuth.case.script.terms import Terms, expr_source, fake_source, symbolic_source


def write_symbols(page: Page, symbols: schema.Symbols, terms: Terms) -> set[str]:
    """The symbols, and `symbols()`; returns what has to be imported for it."""
    imports: set[str] = set()
    page.blank(1)
    for symbol in symbols.symbols:
        page.line(f"{symbol.name} = {_definition(symbol)}")
    page.blank(2)
    with page.block("def symbols():"):
        page.line('"""What the compiler knew of the symbolic sizes."""')
        page.line(f"env = ShapeEnv({settings_source(symbols)})")
        for symbol in symbols.symbols:
            page.line(_known(symbol, terms))
        for name, term in symbols.replacements:
            page.line(f"env.replacements[{name}] = {expr_source(term, terms)}")
            page.line(f"env.replacements_slocs[{name}] = SLoc(None, None)")
        for old, new in symbols.renamings:
            page.line(f"env.unbacked_renamings[{old}] = {new}")
        for term in symbols.divisible:
            page.line(f"env.divisible.add({expr_source(term, terms)})")
        for term in symbols.guards:
            imports.add("from torch._guards import ShapeGuard")
            page.line(f"env.guards.append(ShapeGuard({expr_source(term, terms)}, SLoc(None, None), False))")
        for one in symbols.asserts:
            imports.add("from torch.fx.experimental.symbolic_shapes import RuntimeAssert")
            made = f"RuntimeAssert({expr_source(one.expr, terms)}, {text_source(one.message)}, CapturedTraceback(None))"
            page.line(f"env.deferred_runtime_asserts.setdefault({one.symbol}, []).append({made})")
        if symbols.unbacked_ints:
            page.line(f"env.unbacked_symint_counter = max(env.unbacked_symint_counter, {symbols.unbacked_ints})")
        if symbols.unbacked_floats:
            page.line(f"env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, {symbols.unbacked_floats})")
        axioms = ""
        if symbols.axioms is not None:
            pairs = ", ".join(f"{expr_source(term, terms)}: {truth!r}" for term, truth in symbols.axioms)
            axioms = f", {{{pairs}}}"
        page.line(f"return finish(env{axioms})")
    return imports


def settings_source(symbols: schema.Symbols) -> str:
    """The settings of the ShapeEnv, as arguments."""
    return ", ".join(f"{name}={truth!r}" for name, truth in symbols.settings if name in SETTINGS)


def _definition(symbol: schema.Symbol) -> str:
    return call_source(
        "sympy.Symbol",
        text_source(symbol.name),
        positive=None if symbol.positive is None else repr(symbol.positive),
        nonnegative=None if symbol.nonnegative is None else repr(symbol.nonnegative),
        integer="True" if symbol.type == "int" else None,
        real="True" if symbol.type == "float" and symbol.backed else None,
    )


def _known(symbol: schema.Symbol, terms: Terms) -> str:
    def said(term: Term | None) -> str | None:
        return None if term is None else terms.source(term)

    bounds = None
    if symbol.lower is not None and symbol.upper is not None:
        bounds = f"({terms.source(symbol.lower)}, {terms.source(symbol.upper)})"
    return call_source(
        "know",
        "env",
        symbol.name,
        hint=said(symbol.hint),
        bounds=bounds,
        source=None if symbol.source is None else text_source(symbol.source),
        size_like="True" if symbol.size_like else None,
        given="True" if symbol.input else None,
        override=None if symbol.override is None else repr(symbol.override),
        observed=said(symbol.observed),
    )


def examples_differ(case: schema.Case) -> bool:
    """Whether the compiler was given something else than follows from the inputs: other strides, say."""
    pairs = zip(case.examples or (), case.inputs, strict=False)
    return any(
        isinstance(one, schema.Fake)
        and isinstance(other, schema.Tensor)
        and (one.size, one.stride) != (other.size, other.stride)
        for one, other in pairs
    )


def write_fakes(page: Page, case: schema.Case, terms: Terms) -> None:
    """`fakes(args)`: the inputs as the compiler got them, without values and with symbolic sizes."""
    placeholders = [node for node in case.graph.nodes if node.op == "placeholder"]
    known = [node.meta.val if node.meta.val is not None else node.meta.example for node in placeholders]
    if case.examples is not None and len(case.examples) == len(known):
        known = list(case.examples)
    users = Counter(value.memory for value in known if isinstance(value, schema.Fake))
    items = []
    for place, value in enumerate(known):
        match value:
            case schema.Fake(layout="strided"):
                items.append(fake_source(value, terms, shared=users[value.memory] > 1))
            case schema.Symbolic():
                items.append(symbolic_source(value, terms))
            case _:
                items.append(f"as_fake(args[{place}])")
    numbers = _numbers_in(case.graph)
    items = [
        f"with_item({item}, {symbolic_source(numbers[node.name], terms)})" if node.name in numbers else item
        for node, item in zip(placeholders, items, strict=True)
    ]
    page.blank(2)
    with page.block("def fakes(args):"):
        page.line('"""The inputs as the compiler got them: no values, sizes that may be symbolic."""')
        write_list(page, items, (_label(node, value) for node, value in zip(placeholders, known, strict=True)))


def _numbers_in(graph: schema.Graph) -> dict[str, schema.Symbolic]:
    """Inputs that are tensors here and numbers in the user's program, and the symbol that `item()` of each gives."""
    found = {}
    for node in graph.nodes:
        value = node.meta.val if node.meta.val is not None else node.meta.example
        asked = (node.op == "call_method" and node.target == "item") or node.target == "torch.ops.aten.item.default"
        if not (asked and len(node.args) == 1 and isinstance(node.args[0], schema.Ref)):
            continue
        if isinstance(value, schema.Symbolic) and isinstance(value.expr, str) and value.hint is not None:
            found[node.args[0].name] = value
    return found


def _label(node: schema.Node, value: schema.Value) -> str:
    return f"{node.name}: {shape_of(value)}" if isinstance(value, schema.Fake) else node.name

"""Symbolic sizes as data: what a `ShapeEnv` knows of its symbols, and a fresh one that knows the same.

    record_symbols(shape_env)       everything that compilers ask a ShapeEnv, as `Symbols`
    encode_sym(x), encode_size(n)   a SymInt, SymFloat or SymBool; the size of a dimension
    rebuild(symbols)                an `Environment`: a fresh ShapeEnv with the same names, hints, ranges and facts
        .value(symbolic)            the SymInt, SymFloat or SymBool
        .size(term)                 the size of a dimension: an int, or a SymInt
    check_symbols(symbols)          whether they can be rebuilt, without torch

A ShapeEnv answers from a handful of tables: hints, ranges, replacements, divisibility, guards, asserts that wait for
running, and the axioms that follow from those. The tables are copied as they are; nothing is traced or solved again.
Where torch derives a table from others (the axioms), it is written only if deriving it again gives another one: torch
derives them as it goes, and what it knew at the time may have been less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from torchsleuth import torch_compat
from torchsleuth.case.format.symbol_checks import NAME, SETTINGS, check_symbols
from torchsleuth.case.graphs.expressions import decode_expr, encode_expr
from torchsleuth.case.schema import Assert, Symbol, Symbolic, Symbols, Term
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold, CaseError, in_words

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    SymbolicValue: TypeAlias = torch.SymInt | torch.SymFloat | torch.SymBool
    Value = TypeVar("Value", torch.SymInt, torch.SymFloat, torch.SymBool, SymbolicValue)

__all__ = ["SETTINGS", "Environment", "check_symbols", "encode_size", "encode_sym", "rebuild", "record_symbols"]

_STATIC = "capture the failure with static sizes (dynamic=False) if it still occurs"


# ---- recording -------------------------------------------------------------------------------------------


def record_symbols(shape_env: ShapeEnv, used: Iterable[sympy.Symbol] | None = None) -> Symbols:
    """What the ShapeEnv knows of these symbols, and of all that these have to do with (None: of all it has).

    Reads the ShapeEnv and does not ask it anything, so that it stays as it is.
    """
    kept = _Kept(shape_env, used)
    symbols = Symbols(
        symbols=tuple(_record_symbol(shape_env, symbol) for symbol in kept.symbols),
        replacements=tuple((a.name, encode_expr(b)) for a, b in shape_env.replacements.items() if kept(a)),
        renamings=tuple((a.name, b.name) for a, b in shape_env.unbacked_renamings.items() if kept(a)),
        divisible=tuple(sorted((encode_expr(e) for e in shape_env.divisible if kept(e)), key=msgspec.json.encode)),
        guards=tuple(encode_expr(guard.expr) for guard in shape_env.guards if kept(guard.expr)),
        asserts=tuple(
            Assert(encode_expr(each.expr), _plain(each.msg), symbol.name if symbol is not None else None)
            for symbol, waiting in shape_env.deferred_runtime_asserts.items()
            for each in waiting
            if kept(each.expr)
        ),
        settings=tuple(
            (name, bool(getattr(shape_env.settings, name)))
            for name, default in SETTINGS.items()
            if getattr(shape_env.settings, name) != default
        ),
        unbacked_ints=shape_env.unbacked_symint_counter,
        unbacked_floats=shape_env.unbacked_symfloat_counter,
    )
    axioms = {expr: bool(truth) for expr, truth in shape_env.axioms.items() if kept(expr)}
    try:
        derived = rebuild(symbols).shape_env.axioms
    except BadCase as error:
        raise CannotHold("the symbols cannot be written", cause=error.cause, remedy=_STATIC) from error
    if axioms != {expr: bool(truth) for expr, truth in derived.items()}:
        written = [(encode_expr(expr), truth) for expr, truth in axioms.items()]
        symbols = msgspec.structs.replace(symbols, axioms=tuple(written))
    return symbols


class _Kept:
    """Which symbols to keep: those used, and whatever a fact connects with them."""

    def __init__(self, shape_env: ShapeEnv, used: Iterable[sympy.Symbol] | None) -> None:
        facts: list[set[Any]] = [
            *({a, *b.free_symbols} for a, b in shape_env.replacements.items()),
            *({a, b} for a, b in shape_env.unbacked_renamings.items()),
            *(set(expr.free_symbols) for expr in shape_env.divisible),
            *(set(guard.expr.free_symbols) for guard in shape_env.guards),
            *(
                set(each.expr.free_symbols)
                for waiting in shape_env.deferred_runtime_asserts.values()
                for each in waiting
            ),
            *(set(expr.free_symbols) for expr in shape_env.axioms),
        ]
        known = dict.fromkeys((*shape_env.var_to_range, *shape_env.backed_var_to_val))
        known |= dict.fromkeys(sorted(set().union(*facts) - known.keys(), key=str))
        if used is None:
            kept = set(known)
        else:
            kept = set(used)
            known |= dict.fromkeys(sorted(kept - known.keys(), key=str))
            before = -1
            while len(kept) != before:
                before = len(kept)
                kept.update(*(fact for fact in facts if fact & kept))
        self.symbols = [symbol for symbol in known if symbol in kept]
        self._kept = kept

    def __call__(self, expr: sympy.Basic) -> bool:
        return bool(expr.free_symbols) and expr.free_symbols <= self._kept


def _record_symbol(shape_env: ShapeEnv, symbol: sympy.Symbol) -> Symbol:
    found = NAME.fullmatch(symbol.name)
    prefix = found[1] if found else ""
    given = symbol.assumptions0
    bounds = shape_env.var_to_range.get(symbol)
    sources = shape_env.var_to_sources.get(symbol, [])
    record = Symbol(
        name=symbol.name,
        backed=prefix in ("s", "zf"),
        type="float" if prefix in ("zf", "zuf") else "int",
        positive=given.get("positive"),
        nonnegative=None if given.get("positive") is not None else given.get("nonnegative"),
        hint=_constant(shape_env.backed_var_to_val.get(symbol)),
        override=_whole(shape_env.var_to_hint_override.get(symbol)),
        observed=_constant(shape_env.real_tensor_prop_unbacked_vals.get(symbol)),
        lower=_constant(bounds.lower) if bounds is not None else None,
        upper=_constant(bounds.upper) if bounds is not None else None,
        size_like=symbol in shape_env.size_like,
        input=symbol in shape_env.unbacked_inputs,
        ephemeral=bool(sources) and all(source.is_ephemeral() for source in sources),
        source=_plain(sources[0].name) if sources else None,
    )
    if not prefix or _make_symbol(record) != symbol or (record.backed and record.hint is None):
        raise CannotHold(
            f"the symbol {symbol.name} cannot be written",
            cause=f"it is not one that torch makes for sizes, or has no hint (sympy knows it as {given})",
            remedy=_STATIC,
        )
    return record


def _constant(value: Any) -> Term | None:
    return None if value is None else encode_expr(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _plain(text: object) -> str:
    """Text that UTF-8 has bytes for."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def encode_size(size: int | torch.SymInt) -> Term:
    """The size, stride or offset of a dimension."""
    return int(size) if isinstance(size, int) else _encode_node(size)


def encode_sym(value: SymbolicValue) -> Symbolic:
    """A symbolic value, and the value it had."""
    import torch

    expr = _encode_node(value)
    hint = value.node.hint
    if isinstance(value, torch.SymBool):
        return Symbolic("bool", expr, bool(hint) if isinstance(hint, (bool, int)) else None)
    if isinstance(value, torch.SymInt):
        return Symbolic("int", expr, int(hint) if isinstance(hint, (bool, int)) else None)
    finite = isinstance(hint, (int, float)) and abs(hint) < float("inf")  # JSON has no word for others
    return Symbolic("float", expr, float(hint) if finite else None)


def _encode_node(value: SymbolicValue) -> Term:
    expr = torch_compat.symbolic_expr(value)
    if expr is None:
        raise CannotHold(
            f"the symbolic value {value} cannot be written",
            cause="it has no expression over sizes (the ragged size of a nested tensor has none)",
            remedy="capture the failure without nested tensors",
        )
    return encode_expr(expr)


# ---- rebuilding ------------------------------------------------------------------------------------------


def rebuild(symbols: Symbols, *, field: str = "symbols") -> Environment:
    """A fresh ShapeEnv that knows what these symbols say. `BadCase` if it cannot be."""
    check_symbols(symbols, field=field)
    with _torch_says_no("the symbols cannot be rebuilt", field):
        return _Builder(symbols, field).build()


class Environment:
    """A rebuilt ShapeEnv and its symbols by name, and whatever is made of them.

    A value has a hint if it had one; it is the one that follows from the hints of the symbols. A size of backed symbols
    always has one, a size of unbacked symbols never, even if these were found to be equal to backed ones later on.
    """

    def __init__(self, shape_env: ShapeEnv, symbols: Mapping[str, sympy.Symbol]) -> None:
        self.shape_env = shape_env
        self.symbols = symbols
        self._made: dict[tuple[type, sympy.Basic, bool], Any] = {}

    def expr(self, term: Term, *, field: str = "") -> sympy.Basic:
        """The expression that the term describes."""
        return decode_expr(term, self.symbols, field=field)

    def size(self, term: Term, *, field: str = "") -> int | torch.SymInt:
        """The size, stride or offset that the term describes."""
        import torch

        if isinstance(term, int) and not isinstance(term, bool):
            return term
        expr = decode_expr(term, self.symbols, sort="number", field=field)
        backed = expr.free_symbols <= self.shape_env.backed_var_to_val.keys()
        return self._make(torch.SymInt, expr, backed, field)

    def value(self, record: Symbolic, *, field: str = "") -> SymbolicValue:
        """The SymInt, SymFloat or SymBool, even if it is a constant."""
        import torch

        kinds: dict[str, type[SymbolicValue]] = {"int": torch.SymInt, "float": torch.SymFloat, "bool": torch.SymBool}
        expr = decode_expr(record.expr, self.symbols, sort="truth" if record.type == "bool" else "number", field=field)
        return self._make(kinds[record.type], expr, record.hint is not None, field)

    def _make(self, kind: type[Value], expr: sympy.Basic, hinted: bool, field: str) -> Value:
        key = (kind, expr, hinted)
        if key not in self._made:
            with _torch_says_no(f"a {kind.__name__} cannot be made", field):
                self._made[key] = torch_compat.symbolic_value(kind, expr, self.shape_env, hinted)
        made: Value = self._made[key]
        return made


class _Builder:
    def __init__(self, symbols: Symbols, field: str) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.record = symbols
        self.field = field
        settings: dict[str, Any] = {**SETTINGS, **dict(symbols.settings)}
        self.env = ShapeEnv(**settings)
        self.symbols = {symbol.name: _make_symbol(symbol) for symbol in symbols.symbols}

    def build(self) -> Environment:
        for number, symbol in enumerate(self.record.symbols):
            self._add_symbol(symbol, f"{self.field}.symbols[{number}]")
        self._add_facts()
        self._add_axioms()
        torch_compat.forget_derived(self.env)
        return Environment(self.env, self.symbols)

    def _add_symbol(self, record: Symbol, field: str) -> None:
        from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc

        env, symbol = self.env, self.symbols[record.name]
        number = int(record.name.lstrip("szuf"))
        if record.hint is not None:
            env.backed_var_to_val[symbol] = self._number(record.hint, f"{field}.hint")
        if record.observed is not None:
            env.real_tensor_prop_unbacked_vals[symbol] = self._number(record.observed, f"{field}.observed")
        if record.override is not None:
            env.var_to_hint_override[symbol] = record.override
        if record.lower is not None and record.upper is not None:
            lower, upper = self._number(record.lower, f"{field}.lower"), self._number(record.upper, f"{field}.upper")
            env.var_to_range[symbol] = torch_compat.value_range(lower, upper)
            env.var_to_range_sloc[symbol] = ValueRangesSLoc(torch_compat.nowhere(), torch_compat.nowhere())
        if record.size_like:
            env.size_like.add(symbol)
        if record.source is not None:
            env.var_to_sources[symbol] = [torch_compat.named_source(record.source, record.ephemeral)]
        if record.backed:
            env.unique_ids.add(number)
            return
        env.var_to_stack[symbol] = torch_compat.no_traceback()
        if record.input:
            env.unbacked_inputs.add(symbol)
        if record.type == "int":
            env.unbacked_symint_counter = max(env.unbacked_symint_counter, number + 1)
        else:
            env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, number + 1)

    def _add_facts(self) -> None:
        from torch.fx.experimental.symbolic_shapes import RuntimeAssert

        env, record = self.env, self.record
        env.unbacked_symint_counter = max(env.unbacked_symint_counter, record.unbacked_ints)
        env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, record.unbacked_floats)
        for number, (name, term) in enumerate(record.replacements):
            env.replacements[self.symbols[name]] = self._expr(term, f"replacements[{number}]")
            env.replacements_slocs[self.symbols[name]] = torch_compat.nowhere()
        env.unbacked_renamings.update((self.symbols[old], self.symbols[new]) for old, new in record.renamings)
        env.divisible.update(self._expr(term, f"divisible[{number}]") for number, term in enumerate(record.divisible))
        for number, term in enumerate(record.guards):
            env.guards.append(torch_compat.shape_guard(self._expr(term, f"guards[{number}]")))
        for number, each in enumerate(record.asserts):
            waits_for = self.symbols[each.symbol] if each.symbol is not None else None
            expr = self._expr(each.expr, f"asserts[{number}].expr")
            made = RuntimeAssert(expr, each.message, torch_compat.no_traceback())
            env.deferred_runtime_asserts.setdefault(waits_for, []).append(made)
        env.num_deferred_runtime_asserts = len(record.asserts)
        torch_compat.forget_derived(env)

    def _add_axioms(self) -> None:
        import sympy

        env = self.env
        if self.record.axioms is not None:
            for number, (term, truth) in enumerate(self.record.axioms):
                env.axioms[self._expr(term, f"axioms[{number}]")] = sympy.true if truth else sympy.false
            return
        waiting = (each.expr for each in chain(*env.deferred_runtime_asserts.values()))
        for expr in (*(guard.expr for guard in env.guards), *waiting):
            implied = env.get_implications(env.simplify(expr))
            env.axioms.update((known, truth) for known, truth in implied if known.free_symbols)

    def _number(self, term: Term, field: str) -> sympy.Basic:
        return decode_expr(term, {}, field=field)

    def _expr(self, term: Term, field: str) -> sympy.Basic:
        return decode_expr(term, self.symbols, field=f"{self.field}.{field}")


def _make_symbol(record: Symbol) -> sympy.Symbol:
    """The symbol as sympy knows it: two of the same name are equal only if the same is assumed of them."""
    import sympy

    assumed: dict[str, bool | None] = {"positive": record.positive, "nonnegative": record.nonnegative}
    if record.type == "int":
        assumed["integer"] = True
    elif record.backed:
        assumed["real"] = True
    return sympy.Symbol(record.name, **{name: truth for name, truth in assumed.items() if truth is not None})


@contextmanager
def _torch_says_no(what: str, field: str) -> Iterator[None]:
    """Whatever torch and sympy say of facts that contradict one another is said of the case."""
    try:
        yield
    except CaseError:
        raise
    except Exception as error:
        raise BadCase(what, cause=in_words(error), remedy=GET_IT_AGAIN, field=field) from error

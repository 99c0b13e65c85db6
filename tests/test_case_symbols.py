"""Symbolic sizes: a ShapeEnv rebuilt from data knows what the one knew that a compiler really had."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pytest
import sympy
import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.sizevars import SizeVarAllocator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from torchsleuth import torch_compat
from torchsleuth.case.graphs.symbols import Environment, check_symbols, encode_size, encode_sym, rebuild, record_symbols
from torchsleuth.case.schema import Apply, Assert, Symbol, Symbolic, Symbols
from torchsleuth.errors import BadCase, CannotHold

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


def captured(program: Program, args: tuple[Any, ...], aot: bool, **options: Any) -> tuple[torch.fx.GraphModule, Any]:
    """The graph that a backend gets, and the ShapeEnv behind it."""
    seen: list[tuple[torch.fx.GraphModule, Any]] = []

    def record(gm: torch.fx.GraphModule, inputs: list[Any]) -> Program:
        mode = detect_fake_mode(inputs) or TracingContext.get().fake_mode
        seen.append((gm, mode.shape_env))
        return gm.forward

    torch.compile(program, backend=aot_autograd(fw_compiler=record) if aot else record, **options)(*args)
    return seen[0]


def through_a_file(symbols: Symbols) -> Symbols:
    return msgspec.json.decode(msgspec.json.encode(symbols), type=Symbols)


# ---- programs with each kind of knowledge ----------------------------------------------------------------


def matmul(x: Any, y: Any) -> Any:
    return (x @ y).relu()


def divisible(x: Any) -> Any:
    return x.view(-1, 2) + x.shape[0] // 2


def shared(x: Any, y: Any) -> Any:
    return torch.cat([x, y]) + x.shape[0]


def expressions(x: Any, y: Any) -> Any:
    doubled = torch.cat([x, x]).reshape(-1)
    return doubled[: x.shape[0] // 2 + 1].sum() + y.sum() * (x.shape[0] * y.shape[1])


def branching(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if x.shape[0] > y.shape[0] and x.shape[1] % 3 == 0 else x.sum()


def equal(x: Any, y: Any) -> Any:
    return x.reshape(-1) + y


def strided(x: Any, w: Any) -> Any:
    return torch.nn.functional.conv2d(x, w, stride=2, padding=1)


def asked(x: Any) -> Any:
    n = x.item()
    torch._check(n >= 2)
    torch._check(n < 100)
    return torch.zeros(n) * 2


def found(x: Any, y: Any) -> Any:
    where = x.nonzero()
    torch._check(where.shape[0] == y.shape[0] + 1)
    return where.sum(1) * 2


def split(x: Any) -> Any:
    a, b = x.tolist()
    torch._check(a >= 0)
    torch._check(b >= 0)
    torch._check(a + b <= 10)
    return torch.zeros(a), torch.zeros(b)


def scaled(x: Any, by: float) -> Any:
    return x * by + by * 2


def unbacked_float(x: Any) -> Any:
    return x * x.sum().item()


def flattened(x: Any) -> Any:
    return x.reshape(-1) * 2


def rand(*size: int) -> torch.Tensor:
    return torch.rand(*size)


def marked(**bounds: int) -> torch.Tensor:
    x = rand(8, 4)
    torch._dynamo.mark_dynamic(x, 0, **bounds)
    return x


def unbacked_input() -> torch.Tensor:
    x = rand(8, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    return x


PROGRAMS: dict[str, Callable[[], tuple[Program, tuple[Any, ...], dict[str, Any]]]] = {
    "two dynamic inputs": lambda: (matmul, (rand(4, 6), rand(6, 8)), {"dynamic": True}),
    "a view that divides": lambda: (divisible, (rand(6, 4),), {"dynamic": True}),
    "inputs that share a size": lambda: (shared, (rand(6, 4), rand(6, 4)), {"dynamic": True}),
    "sizes that are expressions": lambda: (expressions, (rand(6, 4), rand(5, 7)), {"dynamic": True}),
    "guards": lambda: (branching, (rand(9, 6), rand(4, 5)), {"dynamic": True}),
    "sizes found equal": lambda: (equal, (rand(4, 3), rand(12)), {"dynamic": True}),
    "a convolution": lambda: (strided, (rand(2, 3, 33, 17), rand(4, 3, 3, 3)), {"dynamic": True}),
    "an item with bounds": lambda: (asked, (torch.tensor(7),), {}),
    "nonzero": lambda: (found, (torch.tensor([1.0, 1, 0, 1, 1]), rand(3)), {"dynamic": True}),
    "asserts that wait": lambda: (split, (torch.tensor([4, 5]),), {}),
    "a dynamic float": lambda: (scaled, (rand(3), 1.5), {"dynamic": True}),
    "an unbacked float": lambda: (unbacked_float, (rand(3),), {}),
    "a range from the user": lambda: (flattened, (marked(min=4, max=64),), {}),
    "an unbacked input": lambda: (flattened, (unbacked_input(),), {}),
}

every_program = pytest.mark.parametrize("aot", [False, True], ids=["dynamo", "aot"])
TABLES = (
    "backed_var_to_val var_to_range var_to_hint_override replacements unbacked_renamings divisible size_like "
    "unbacked_inputs unbacked_symint_counter unbacked_symfloat_counter num_deferred_runtime_asserts settings"
).split()


def predicates(symbols: list[sympy.Symbol]) -> Iterator[sympy.Basic]:
    """Questions of the kind that Inductor asks."""
    whole = [symbol for symbol in symbols if symbol.is_integer]
    for a in whole:
        yield from (a >= 0, a > 1, sympy.Eq(a, 1), a < 64, sympy.Eq(Mod(a, 2), 0), sympy.Ge(FloorDiv(a, 2), 1))
    for a, b in itertools.permutations(whole, 2):
        yield from (sympy.Eq(a, b), sympy.Lt(a, b), a + b >= 4, sympy.Eq(Mod(a * b, 2), 0), sympy.Le(a + b, 10))


def same_knowledge(original: Any, again: Any) -> None:
    for table in TABLES:
        assert getattr(original, table) == getattr(again, table), table
    assert list(original.replacements) == list(again.replacements)
    assert [guard.expr for guard in original.guards] == [guard.expr for guard in again.guards]
    waiting, still = original.deferred_runtime_asserts, again.deferred_runtime_asserts
    assert [*waiting] == [*still]
    assert [[(each.expr, each.msg) for each in asserts] for asserts in waiting.values()] == [
        [(each.expr, each.msg) for each in asserts] for asserts in still.values()
    ]
    told = {expr: truth for expr, truth in original.axioms.items() if expr.free_symbols}
    assert told == again.axioms


@every_program
@pytest.mark.parametrize("name", [*PROGRAMS])
def test_a_rebuilt_environment_knows_what_the_real_one_knew(name: str, aot: bool) -> None:
    """Covers: U4."""
    program, args, options = PROGRAMS[name]()
    gm, original = captured(program, args, aot, **options)
    symbols = record_symbols(original)
    assert symbols.symbols
    environment = rebuild(through_a_file(symbols))
    again = environment.shape_env
    assert isinstance(again, ShapeEnv)
    assert again is not original
    same_knowledge(original, again)
    assert record_symbols(again) == symbols

    here = [*original.var_to_range]
    assert here == [*environment.symbols.values()]
    asked, answer = SizeVarAllocator(original), SizeVarAllocator(again)
    for question in predicates(here):
        assert asked.statically_known_true(question) == answer.statically_known_true(question), question
    for a, b in itertools.product([s for s in here if s.is_integer], repeat=2):
        for expr in (a + b, a * b, FloorDiv(a * b, 2), FloorDiv(a, 2) * 2, Max(1, a) + Max(0, b), FloorDiv(a + 1, 2)):
            assert original.bound_sympy(expr) == again.bound_sympy(expr)
            assert original.simplify(expr) == again.simplify(expr)
            assert original.optimization_hint(expr, fallback=8192) == again.optimization_hint(expr, fallback=8192)
    same_values(gm, environment)

    fresh = [again.create_unbacked_symint().node.expr, again.create_unbacked_symfloat().node.expr]
    assert not {symbol.name for symbol in fresh} & environment.symbols.keys()
    assert fresh == [original.create_unbacked_symint().node.expr, original.create_unbacked_symfloat().node.expr]


def same_values(gm: torch.fx.GraphModule, environment: Environment) -> None:
    """Every symbolic value and every size of the graph is made again as it was."""
    for node in gm.graph.nodes:
        for value in tree_leaves(node.meta.get("example_value", node.meta.get("val"))):
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                made = environment.value(encode_sym(value))
                assert type(made) is type(value)
                assert made.node.expr == value.node.expr
                assert made.node.hint == value.node.hint
                assert made.node.shape_env is environment.shape_env
            elif isinstance(value, torch.Tensor):
                for size in (*value.size(), *value.stride(), value.storage_offset()):
                    made = environment.size(encode_size(size))
                    assert type(made) is type(size)
                    assert isinstance(size, int) or made.node.expr == size.node.expr


@pytest.mark.parametrize("name", ["two dynamic inputs", "guards", "asserts that wait", "sizes that are expressions"])
def test_both_learn_the_same_from_more_guards(name: str) -> None:
    program, args, options = PROGRAMS[name]()
    _, original = captured(program, args, True, **options)
    again = rebuild(record_symbols(original)).shape_env
    backed = [symbol for symbol in original.backed_var_to_val if symbol not in original.replacements]
    for question in predicates(backed):
        assert original.evaluate_expr(question) == again.evaluate_expr(question)
    for unbacked in [symbol for symbol in original.var_to_range if symbol not in original.backed_var_to_val]:
        for env in (original, again):
            assert env.guard_or_defer_runtime_assert(sympy.Ge(unbacked, 1), "not empty")
    same_knowledge(original, again)


def test_recording_leaves_the_environment_as_it_was() -> None:
    program, args, options = PROGRAMS["a view that divides"]()
    _, env = captured(program, args, True, **options)
    before = env._version_counter, len(env.guards), len(env.axioms), len(env.replacements), env._get_key()
    record_symbols(env)
    assert before == ((env._version_counter, len(env.guards), len(env.axioms), len(env.replacements), env._get_key()))


def test_axioms_that_follow_from_the_guards_are_not_written() -> None:
    program, args, options = PROGRAMS["guards"]()
    _, env = captured(program, args, True, **options)
    symbols = record_symbols(env)
    assert symbols.guards
    assert symbols.axioms is None
    forgotten = next(expr for expr in env.axioms if expr.free_symbols)
    del env.axioms[forgotten]  # as if torch had not yet known it when it derived them
    less = record_symbols(env)
    assert less.axioms is not None
    assert forgotten not in rebuild(through_a_file(less)).shape_env.axioms


# ---- environments made by hand ---------------------------------------------------------------------------


def environment_of(*sizes: int, **options: Any) -> tuple[ShapeEnv, list[Any]]:
    env = ShapeEnv(**options)
    sources = [torch_compat.named_source(f"L['x'].size()[{i}]", False) for i in range(len(sizes))]
    symbols = [env.create_symbol(n, source, DimDynamic.DYNAMIC) for n, source in zip(sizes, sources, strict=True)]
    return env, [env.create_symintnode(symbol, hint=n) for symbol, n in zip(symbols, sizes, strict=True)]


def test_only_what_the_used_symbols_have_to_do_with_is_kept() -> None:
    env, (a, b, c, d) = environment_of(4, 6, 8, 10)
    assert a < b
    assert c < d
    kept = record_symbols(env, used=[a.node.expr])
    assert {symbol.name for symbol in kept.symbols} == {a.node.expr.name, b.node.expr.name}
    assert len(kept.guards) == 1
    assert rebuild(kept).shape_env.axioms.items() <= env.axioms.items()
    assert len(record_symbols(env).symbols) == 4
    assert record_symbols(env, used=[]).symbols == ()


def test_settings_hints_and_marks_survive() -> None:
    env, (a, b) = environment_of(4, 6, duck_shape=False, specialize_zero_one=False, trace_asserts=True)
    env.var_to_hint_override[a.node.expr] = 4096
    u = env.create_unbacked_symint().node.expr
    env.size_like.add(u)
    env.unbacked_inputs.add(u)
    env.set_real_tensor_prop_unbacked_vals(u, 5)
    env.var_to_sources[b.node.expr] = [torch_compat.named_source("gone", True)]
    env.pending_fresh_unbacked_symbols.clear()
    again = rebuild(through_a_file(record_symbols(env))).shape_env
    same_knowledge(env, again)
    assert (again.duck_shape, again.specialize_zero_one, again.settings.trace_asserts) == (False, False, True)
    assert again.var_to_hint_override == {a.node.expr: 4096}
    assert again.real_tensor_prop_unbacked_vals == {u: 5}
    assert [source.is_ephemeral() for symbol in (a, b) for source in again.var_to_sources[symbol.node.expr]] == [
        False,
        True,
    ]
    assert again.var_to_sources[a.node.expr][0].name == "L['x'].size()[0]"


def test_a_new_symbol_of_an_input_gets_a_name_of_its_own() -> None:
    env, _ = environment_of(*range(2, 40))
    environment = rebuild(record_symbols(env))
    source = torch_compat.named_source("L['x'].size()[0]", False)
    fresh = environment.shape_env.create_symbol(77, source, DimDynamic.DYNAMIC)
    assert fresh.name not in environment.symbols


def test_asking_about_an_unbacked_symbol_is_torchs_own_error() -> None:
    env = ShapeEnv()
    u = env.create_unbacked_symint()
    environment = rebuild(record_symbols(env))
    again = environment.value(encode_sym(u))
    with pytest.raises(torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode):
        bool(again == 3)


def test_an_unbacked_size_has_no_hint_even_if_its_value_became_known() -> None:
    env, (a,) = environment_of(6)
    u = env.create_unbacked_symint()
    torch._check(u == a + 1)
    environment = rebuild(record_symbols(env))
    assert environment.size(encode_size(u)).node.expr == a.node.expr + 1
    assert environment.size(encode_size(u)).node.hint is None is u.node.hint
    assert environment.size(encode_size(a + 1)).node.hint == 7


def test_symbolic_values_keep_their_type() -> None:
    env, (a, b) = environment_of(4, 6)
    environment = rebuild(record_symbols(env))
    for value in (a + b, a * 1.5, a / b, a < b, torch.sym_float(a), torch.sym_ite(a < b, a, b), torch.sym_max(a, 5)):
        record = encode_sym(value)
        made = environment.value(msgspec.json.decode(msgspec.json.encode(record), type=Symbolic))
        assert type(made) is type(value)
        assert (made.node.expr, made.node.hint) == (value.node.expr, value.node.hint)
    assert environment.size(5) == 5
    assert environment.size(encode_size(a + b)) is environment.size(encode_size(b + a))


def test_a_hint_that_json_has_no_word_for_is_left_to_be_computed() -> None:
    env = ShapeEnv()
    source = torch_compat.named_source("L['by']", False)
    symbol = env.create_unspecified_symbol(float("inf"), source, DimDynamic.DYNAMIC)
    value = env.create_symfloatnode(symbol, hint=float("inf"))
    assert encode_sym(value).hint is None
    assert rebuild(through_a_file(record_symbols(env))).shape_env.backed_var_to_val == {symbol: sympy.oo}


def test_messages_with_any_characters_survive() -> None:
    env = ShapeEnv()
    u = env.create_unbacked_symint()
    env.guard_or_defer_runtime_assert(sympy.Ge(u.node.expr, 3), "caf\u00e9 \ud800 \x00")
    [[each]] = rebuild(through_a_file(record_symbols(env))).shape_env.deferred_runtime_asserts.values()
    assert each.msg == "caf\u00e9 \\ud800 \x00"


def test_symbols_that_torch_did_not_make_are_not_written() -> None:
    env, _ = environment_of(4)
    no_hint = sympy.Symbol("s99", integer=True, positive=True)
    assumed = sympy.Symbol("u1", integer=True, even=True)
    for stranger in (sympy.Symbol("x", integer=True), sympy.Symbol("s5"), assumed, no_hint):
        with pytest.raises(CannotHold, match=stranger.name):
            record_symbols(env, used=[stranger])


def test_facts_that_could_not_be_rebuilt_are_not_written() -> None:
    env, sizes = environment_of(*range(2, 80))
    symbols = [size.node.expr for size in sizes]
    env.replacements.update(itertools.pairwise(symbols))
    with pytest.raises(CannotHold, match="chain"):
        record_symbols(env)


def test_the_ragged_size_of_a_nested_tensor_is_not_written() -> None:
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged)
    with pytest.raises(CannotHold, match="nested"):
        encode_size(nested.size(1))


# ---- what is refused -------------------------------------------------------------------------------------

S3 = Symbol("s3", hint=4, lower=2, upper=Apply("int_oo"), positive=True)
S4 = Symbol("s4", hint=6, lower=2, upper=Apply("int_oo"), positive=True)
U0 = Symbol("u0", backed=False, lower=Apply("-int_oo"), upper=Apply("int_oo"))

BAD: dict[str, tuple[Symbols, str]] = {
    "a name of no kind": (Symbols((Symbol("x", hint=4),)), r"symbols\[0\]\.name"),
    "code for a name": (Symbols((Symbol("__import__('os')", hint=4),)), r"symbols\[0\]\.name"),
    "a name of another kind": (Symbols((Symbol("u3", hint=4),)), r"symbols\[0\]\.name"),
    "a name of another type": (Symbols((Symbol("s3", type="float", hint=4.0),)), r"symbols\[0\]\.name"),
    "a name twice": (Symbols((S3, S3)), "symbols"),
    "no hint": (Symbols((Symbol("s3"),)), r"symbols\[0\]\.hint"),
    "a hint that is a symbol": (Symbols((S4, Symbol("s3", hint="s4"))), r"symbols\[1\]\.hint"),
    "a hint that is a truth": (Symbols((Symbol("s3", hint=True),)), r"symbols\[0\]\.hint"),
    "a hint that is a float": (Symbols((Symbol("s3", hint=4.0),)), r"symbols\[0\]\.hint"),
    "a hint that is computed": (Symbols((Symbol("s3", hint=Apply("Add", (1, 2))),)), r"symbols\[0\]\.hint"),
    "a hint beyond all sizes": (Symbols((Symbol("s3", hint=2**70),)), r"symbols\[0\]\.hint"),
    "half a range": (Symbols((Symbol("s3", hint=4, lower=2),)), r"symbols\[0\]\.lower"),
    "a range upside down": (Symbols((Symbol("s3", hint=4, lower=9, upper=2),)), "symbols"),
    "what no symbol can be": (Symbols((msgspec.structs.replace(S3, positive=True, nonnegative=False),)), "symbols"),
    "a replacement of nothing": (Symbols((S3,), replacements=(("s9", 4),)), r"replacements\[0\]"),
    "a replacement by nothing": (Symbols((S3,), replacements=(("s3", "s9"),)), r"replacements\[0\]"),
    "two replacements": (Symbols((S3,), replacements=(("s3", 4), ("s3", 5))), r"replacements\[1\]"),
    "a circle": (Symbols((S3, S4), replacements=(("s3", "s4"), ("s4", Apply("Add", (1, "s3"))))), "replacements"),
    "a chain without end": (
        Symbols(
            tuple(Symbol(f"s{n}", hint=4) for n in range(1000)),
            replacements=tuple((f"s{n}", f"s{n + 1}") for n in range(999)),
        ),
        "replacements",
    ),
    "a renaming of nothing": (Symbols((U0,), renamings=(("u0", "u9"),)), r"renamings\[0\]"),
    "a guard of nothing": (Symbols((S3,), guards=(Apply("Lt", ("s9", 4)),)), r"guards\[0\]"),
    "a guard that is a number": (Symbols((S3,), guards=(Apply("Add", ("s3", 4)),)), r"guards\[0\]"),
    "an axiom that is a number": (Symbols((S3,), axioms=((4, True),)), r"axioms\[0\]"),
    "a replacement by a truth": (Symbols((S3,), replacements=(("s3", True),)), r"replacements\[0\]"),
    "an assert for nothing": (
        Symbols((U0,), asserts=(Assert(Apply("Lt", ("u0", 4)), symbol="u9"),)),
        r"asserts\[0\]\.symbol",
    ),
    "an unknown setting": (Symbols(settings=(("co_fields", True),)), r"settings\[0\]"),
    "a division by zero": (Symbols((S3,), divisible=(Apply("Mod", ("s3", 0)),)), r"divisible\[0\]"),
    "a negative counter": (Symbols(unbacked_ints=-5), "unbacked_ints"),
}


@pytest.mark.parametrize("what", [*BAD])
def test_what_cannot_be_rebuilt_is_refused_and_says_where(what: str) -> None:
    """Covers: S21."""
    symbols, where = BAD[what]
    with pytest.raises(BadCase, match=where) as caught:
        rebuild(symbols, field="symbols")
    assert caught.value.field.startswith("symbols")


def test_a_check_names_the_file() -> None:
    with pytest.raises(BadCase, match=r"case\.json: symbols\.symbols\[0\]\.name"):
        check_symbols(Symbols((Symbol("x", hint=4),)), file="case.json")


def test_a_value_that_cannot_be_made_says_where() -> None:
    environment = rebuild(Symbols((S3, U0)))
    hostile = (
        Symbolic("int", Apply("FloorDiv", ("s3", Apply("Add", ("s3", -4)))), 3),
        Symbolic("int", "s9", 3),
        Symbolic("int", Apply("Lt", ("s3", 3)), 1),
        Symbolic("bool", "s3", True),
    )
    for record in hostile:
        with pytest.raises(BadCase) as caught:
            environment.value(record, field="inputs[2]")
        assert caught.value.field == "inputs[2]"
    with pytest.raises(BadCase):
        environment.size(True, field="inputs[2].size")


def test_a_fresh_symbol_does_not_collide_even_if_the_counter_is_wrong() -> None:
    float_too = Symbol("zuf4", backed=False, type="float", lower=Apply("-oo"), upper=Apply("oo"))
    env = rebuild(Symbols((U0, float_too), unbacked_ints=0, unbacked_floats=0)).shape_env
    assert str(env.create_unbacked_symint().node.expr) == "u1"
    assert str(env.create_unbacked_symfloat().node.expr) == "zuf5"


WHOLE = Symbols(
    symbols=(S3, S4, Symbol("s5", hint=12, lower=2, upper=Apply("int_oo"), positive=True, source="L['x']"), U0),
    replacements=(("s5", Apply("Mul", (2, "s4"))),),
    divisible=(Apply("Mod", (Apply("Mul", ("s3", "s4")), 2)),),
    guards=(Apply("Lt", ("s3", "s4")), Apply("Eq", (Apply("Mod", (Apply("Mul", ("s3", "s4")), 2)), 0))),
    asserts=(Assert(Apply("Le", ("u0", Apply("FloorDiv", ("s4", 2)))), "too many", "u0"),),
    settings=(("duck_shape", False),),
    unbacked_ints=1,
)
JUNK = (None, True, 0, -1, 1.5, 10**9, 2**64, "s3", "u0", "", [], {}, ["Add", [1, 2]], ["Pow", [10, 10**9]], ["nan"])
JUNK_TEXT = ("s3", "u0", "s99", "x", "FloorDiv", "Pow", "Piecewise", "PowByNatural", "LShift", "int_oo", "Mod", "Not")


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in the file."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_damaged_symbols_are_refused_or_rebuilt_and_nothing_else() -> None:
    """Covers: S21."""
    whole = msgspec.json.decode(msgspec.json.encode(WHOLE))
    rebuild(WHOLE)
    random = Random(7)
    refused = 0
    for path in [*places(whole)] * 4:
        damaged = msgspec.json.decode(msgspec.json.encode(whole))
        *way, last = path
        inside = functools.reduce(lambda tree, key: tree[key], way, damaged)
        inside[last] = random.choice(JUNK_TEXT if isinstance(inside[last], str) else JUNK)
        try:
            symbols = msgspec.convert(damaged, Symbols)
        except msgspec.ValidationError:
            continue  # told by whoever reads the file
        try:
            environment = rebuild(symbols)
            environment.size(Apply("Add", ("s3", "s4")))
        except BadCase:
            refused += 1
    assert refused > 50


# ---- Inductor --------------------------------------------------------------------------------------------


def inductor_code(monkeypatch: pytest.MonkeyPatch, compile: Callable[[], Any]) -> list[str]:
    """What Inductor writes meanwhile, without comments (they quote what has no place in this test)."""
    written: list[str] = []
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(written.append))
    with torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1):
        compile()
    return [line for code in written for line in code.splitlines() if not line.lstrip().startswith("#")]


def moved(value: Any, environment: Environment, mode: FakeTensorMode) -> Any:
    """What a node produces, in the rebuilt environment."""
    if isinstance(value, torch.Tensor):
        sizes, strides = ([environment.size(encode_size(n)) for n in of] for of in (value.size(), value.stride()))
        with mode:
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return environment.value(encode_sym(value))
    return value


@pytest.mark.inductor
@pytest.mark.parametrize("name", ["a convolution", "asserts that wait"])
def test_inductor_writes_the_same_code_for_a_rebuilt_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U4."""
    program, args, options = PROGRAMS[name]()
    seen: list[tuple[torch.fx.GraphModule, Symbols, list[Any], dict[str, Any]]] = []

    def record(gm: torch.fx.GraphModule, inputs: list[Any], **arguments: Any) -> Any:
        kept = torch.fx.Graph()
        kept.output(kept.graph_copy(gm.graph, {})).meta = dict(next(iter(reversed(gm.graph.nodes))).meta)
        symbols = record_symbols(detect_fake_mode(inputs).shape_env)
        seen.append((torch.fx.GraphModule(gm, kept), symbols, [*inputs], arguments))
        return compile_fx_inner(gm, inputs, **arguments)

    def first() -> None:
        backend = functools.partial(compile_fx, inner_compile=record)
        torch.compile(program, backend=backend, **options)(*args)

    original = inductor_code(monkeypatch, first)
    [(gm, symbols, inputs, arguments)] = seen
    environment = rebuild(through_a_file(symbols))
    mode = FakeTensorMode(shape_env=environment.shape_env)
    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(lambda value: moved(value, environment, mode), node.meta["val"])

    def second() -> None:
        with tracing(TracingContext(mode)):
            compile_fx_inner(gm, [moved(value, environment, mode) for value in inputs], **arguments)

    assert inductor_code(monkeypatch, second) == original

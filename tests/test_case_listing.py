"""A case as something to read: code with shapes and the user's lines, inputs with their memory, words for values."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from torchsleuth.case import schema
from torchsleuth.case.schema import (
    Apply,
    Case,
    Compiler,
    Entry,
    Fake,
    Generated,
    Graph,
    Meta,
    Node,
    Noticed,
    Origin,
    Ref,
    Storage,
    Stored,
    Symbol,
    Symbolic,
    Symbols,
    Tensor,
)
from torchsleuth.case.words import listing
from torchsleuth.case.words.wording import (
    clean,
    dtype_words,
    one_line,
    tensor_words,
    term_words,
    type_words,
    value_words,
)
from torchsleuth.config import After

TRACE = '  File "/home/me/model.py", line 12, in forward\n    y = F.relu(x)\n'
ROWS = ("s77", 4)


def placeholder(name: str, val: schema.Value = None) -> Node:
    return Node(name, "placeholder", name, meta=Meta(val=val))


def call(name: str, target: str, *args: schema.Value, meta: Meta | None = None, **kwargs: schema.Value) -> Node:
    entries = tuple(Entry(key, value) for key, value in kwargs.items())
    return Node(name, "call_function", target, args, entries, meta or Meta())


def output(*results: schema.Value) -> Node:
    return Node("output", "output", "output", (schema.Tuple(results),))


def case_of(graph: Graph, **fields: Any) -> Case:
    return Case(graph, Compiler(After.AOT, "inductor"), Origin("2.13.0", "3.11.7", "0.1.0"), **fields)


def text(graph: Graph, width: int = 100) -> list[str]:
    return [line.text for line in listing.graph_lines(graph, width=width)]


# ---- the graph -------------------------------------------------------------------------------------------


def test_a_graph_reads_as_code_with_shapes_and_the_users_lines() -> None:
    """Covers: U14, U29"""
    meta = Meta(val=Fake("float32", ("s77", 4), (4, 1)), stack_trace=TRACE)
    graph = Graph(
        (
            placeholder("s77", Symbolic("int", "s77", 8)),
            placeholder("x", Fake("float32", ("s77", 4), (4, 1))),
            call("relu", "torch.ops.aten.relu.default", Ref("x"), meta=meta),
            call(
                "t",
                "torch.ops.aten.t.default",
                Ref("relu"),
                meta=Meta(Fake("float32", (4, "s77"), (1, 4)), None, TRACE),
            ),
            call("sum_1", "torch.ops.aten.sum.dim_IntList", Ref("t"), schema.List((0,)), dtype=schema.Torch("float64")),
            output(Ref("sum_1"), None),
        )
    )
    assert text(graph) == [
        "input s77: Sym(s77)",
        "input x: f32[s77, 4]",
        "# model.py:12 in forward: y = F.relu(x)",
        "relu: f32[s77, 4] = aten.relu.default(x)",
        "t: f32[4, s77][1, 4] = aten.t.default(relu)",
        "sum_1 = aten.sum.dim_IntList(t, [0], dtype=float64)",
        "return (sum_1, None)",
    ]


def test_a_nested_graph_is_an_indented_body_under_its_name() -> None:
    """Covers: U1"""
    body = Graph((placeholder("a"), call("sin", "torch.ops.aten.sin.default", Ref("a")), output(Ref("sin"))))
    graph = Graph(
        (
            placeholder("x"),
            Node("true_graph_0", "get_attr", "true_graph_0"),
            call("cond", "torch.ops.higher_order.cond", True, Ref("true_graph_0"), schema.Tuple((Ref("x"),))),
            call("getitem", "operator.getitem", Ref("cond"), 0),
            output(Ref("getitem")),
        ),
        (Entry("true_graph_0", body), Entry("never_fetched", body)),
    )
    assert text(graph)[1:8] == [
        "graph true_graph_0:",
        "    input a",
        "    sin = aten.sin.default(a)",
        "    return (sin,)",
        "cond = higher_order.cond(True, true_graph_0, (x,))",
        "getitem = cond[0]",
        "return (getitem,)",
    ]
    assert text(graph)[8] == "graph never_fetched:"


def test_methods_modules_constants_and_indices_read_as_python() -> None:
    index = schema.Tuple((schema.Ellipsis_(), schema.Slice(None, 2), schema.Slice(0, None, 2)))
    graph = Graph(
        (
            placeholder("x"),
            Node("view", "call_method", "view", (Ref("x"), -1, 2)),
            Node("linear", "call_module", "layers.0", (Ref("view"),)),
            Node("w", "get_attr", "weight"),
            call("getitem", "operator.getitem", Ref("linear"), index),
            Node("output", "output", "output", (Ref("getitem"),)),
        ),
        (
            Entry("weight", Tensor("float16", (2, 2), (2, 1), storage=0)),
            Entry("layers.0", schema.Module("torch.nn.modules.linear.Linear")),
        ),
    )
    assert text(graph)[1:] == [
        "view = x.view(-1, 2)",
        "linear = self.layers.0(view)  # <torch.nn.modules.linear.Linear>",
        "w = self.weight  # f16[2, 2]",
        "getitem = linear[..., :2, 0::2]",
        "return getitem",
    ]


def test_a_line_of_the_user_is_said_once_for_the_nodes_it_made() -> None:
    other = TRACE.replace("12", "13")
    metas = [Meta(stack_trace=trace) for trace in (TRACE, TRACE, other, None, TRACE)]
    graph = Graph(tuple(call(f"n{i}", "torch.relu", meta=meta) for i, meta in enumerate(metas)))
    said = [line for line in text(graph) if line.startswith("#")]
    assert [line.split(" in ")[0] for line in said] == ["# model.py:12", "# model.py:13", "# model.py:12"]


@pytest.mark.parametrize("width", [1, 40, 60, 100])
def test_long_calls_go_on_in_the_next_line(width: int) -> None:
    args = tuple(Ref(f"an_argument_{i}") for i in range(20))
    graph = Graph((call("cat", "torch.ops.aten.cat.default", *args), output(*args)))
    lines = text(graph, width)
    assert all(len(line) <= max(width, 40) for line in lines)
    assert len(lines) > 2
    assert " ".join(line.strip() for line in lines).count("an_argument_") == 40
    assert lines[0].startswith("cat = aten.cat.default(")
    assert lines[1].startswith("    an_argument_")


def test_the_user_s_line_is_found_in_both_notations_of_torch() -> None:
    outside_in = '  File "a.py", line 1, in <module>\n    f(x)\n  File "C:\\\\b.py", line 22, in f\n    g(x)\n'
    assert listing.users_line(outside_in) == "b.py:22 in f: g(x)"
    assert listing.users_line('File "/x/c.py", line 3, in h, code: return x + 1') == "c.py:3 in h: return x + 1"
    assert listing.users_line("no trace at all") == ""
    assert listing.users_line(None) == ""
    assert listing.users_line(f'  File "a.py", line {"9" * 5000}, in f') == "a.py:999999999 in f"


# ---- inputs, symbols, what is missing --------------------------------------------------------------------


def test_inputs_say_who_shares_memory_and_where_values_come_from() -> None:
    """Covers: S21"""
    graph = Graph((placeholder("x"), placeholder("y"), placeholder("i"), placeholder("n"), placeholder("s"), output()))
    inputs = (
        Tensor("float32", (3, 2), (1, 3), 2, storage=0),
        Tensor("float32", (4,), (1,), storage=0, requires_grad=True, parameter=True),
        Tensor("int64", (8,), (1,), storage=1, device="cuda:0"),
        7,
        Noticed("my.Thing", "a case has no word for it"),
        Tensor("float32", (), storage=2, device="meta"),
    )
    storages = (
        Storage(40, Stored("b3-" + "0" * 64)),
        Storage(64, Generated("integers", "int64", 0, 30522, why="indexes a dimension of size 30522")),
        Storage(4, schema.Nothing()),
    )
    rows = listing.input_rows(case_of(graph, inputs=inputs, storages=storages))
    x, y, i, n, s, unnamed = rows
    assert (x.dtype, x.shape, x.stride, x.memory) == ("f32", "[3, 2]", "[1, 3]", "shares memory with y, from element 2")
    assert (y.stride, y.memory, y.content) == ("", "shares memory with x, parameter, grad", "stored, 40 B")
    assert (i.shape, i.content) == (
        "[8] cuda:0",
        "made: integers [0, 30522); indexes a dimension of size 30522",
    )
    assert (n.name, n.dtype, n.content) == ("n", "int", "7")
    assert s.content == "not in the case: a case has no word for it"
    assert (unnamed.name, unnamed.content) == ("#5", "no values")


def test_symbols_say_the_value_they_had_and_their_range() -> None:
    """Covers: U4"""
    symbols = Symbols(
        (
            Symbol("s77", hint=6, lower=2, upper=Apply("int_oo"), source="L['x'].size()[0]"),
            Symbol("u0", backed=False),
        )
    )
    backed, unbacked = listing.symbol_rows(symbols)
    assert (backed.name, backed.hint, backed.bounds, backed.source) == ("s77", "6", "2 … ∞", "L['x'].size()[0]")
    assert (unbacked.hint, unbacked.bounds, unbacked.source) == ("", "", "known only when it runs")


def test_what_is_missing_is_found_wherever_it_is() -> None:
    """Covers: S20"""
    missing = Noticed("torch.BackwardState", "it lives in the process that made it")
    inner = Graph((call("f", "torch.relu", schema.Dict((("key", missing),))),))
    graph = Graph(
        (call("g", "torch.relu", schema.List((missing,)), x=missing),),
        (Entry("body", inner), Entry("layer", schema.Module("M", (Entry("f", missing),)))),
    )
    case = case_of(graph, inputs=(missing,), state=schema.State(config=(schema.Config("m", "n", missing),)))
    assert [where for where, _ in listing.noticed(case)] == [
        "inputs[0]",
        "graph.body.f",
        "graph.layer.f",
        "graph.g",
        "graph.g",
        "m.n",
    ]


# ---- words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("float32", "f32"),
        ("bfloat16", "bf16"),
        ("bool", "b8"),
        ("uint8", "u8"),
        ("float8_e4m3fn", "f8e4m3fn"),
        ("qint8", "qint8"),
    ],
)
def test_dtypes_are_short(name: str, words: str) -> None:
    assert dtype_words(name) == words


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (Apply("Add", (Apply("Mul", (4, "s77")), 1)), "4*s77 + 1"),
        (Apply("Mul", (2, Apply("Add", ("s0", "s1")))), "2*(s0 + s1)"),
        (Apply("FloorDiv", (Apply("Add", ("s0", 1)), 2)), "(s0 + 1)//2"),
        (Apply("Pow", ("s0", 2)), "s0**2"),
        (Apply("Max", (1, "u0")), "Max(1, u0)"),
        (Apply("-int_oo"), "-∞"),
        (
            Apply("Add", tuple("abcdefghijklmnopqrstuvw")),
            "a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p + …",
        ),
    ],
)
def test_expressions_read_as_arithmetic(term: schema.Term, words: str) -> None:
    assert term_words(term) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        (2**300, "<an integer of 301 bits>"),
        (schema.Float(struct.pack(">d", -math.inf).hex()), "-inf"),
        (schema.Float("nonsense"), "<no float>"),
        ("it's", '"it\'s"'),
        ("x" * 500, "'" + "x" * 57 + "……"),
        (schema.List(tuple(range(100))), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, … 84 more]"),
        (schema.Dict(((1, "a"),)), "{1: 'a'}"),
        (schema.Device("cuda", 1), "cuda:1"),
        (schema.Bytes(b"12345"), "<5 bytes>"),
        (Noticed("print", "", "<built-in function print>"), "<built-in function print>"),
        (Noticed("my.Thing", ""), "<my.Thing>"),
        (Symbolic("int", Apply("Mul", (4, "s0"))), "4*s0"),
    ],
)
def test_values_are_short(value: schema.Value, words: str) -> None:
    assert value_words(value) == words


def test_strides_are_said_only_if_they_are_unusual() -> None:
    assert tensor_words(Tensor("float32", (2, 3), (3, 1))) == "f32[2, 3]"
    assert tensor_words(Tensor("float32", (2, 1, 3), (3, 99, 1))) == "f32[2, 1, 3]"
    assert tensor_words(Tensor("float32", (0, 3), (1, 1))) == "f32[0, 3]"
    assert tensor_words(Tensor("float32", (2, 3), (0, 1))) == "f32[2, 3][0, 1]"
    assert (
        tensor_words(Tensor("float32", (2, 3), layout="sparse_coo", device="cuda:0")) == "f32[2, 3] sparse_coo cuda:0"
    )


def test_types_of_nested_results() -> None:
    fake = Fake("float32", (2,), (1,))
    assert type_words(schema.Tuple((fake, None, 3, schema.List((fake,))))) == "(f32[2], None, int, [f32[2]])"
    assert type_words(schema.Tuple((fake,))) == "(f32[2],)"
    assert type_words(None) == ""


# ---- whatever a case holds -------------------------------------------------------------------------------

EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.exe\u2028\x9b31m\ud800"
_BAD = set(map(chr, [*range(32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xD800]))


def test_nothing_in_a_case_acts_on_the_terminal() -> None:
    evil = Noticed(EVIL, EVIL, EVIL)
    node = Node(EVIL, "call_function", EVIL, (EVIL, Ref(EVIL), evil, schema.Torch(EVIL)), (Entry(EVIL, EVIL),))
    trace = f'  File "{EVIL}", line 3, in {EVIL}\n    {EVIL}\n'
    fake = Fake(EVIL, (EVIL,), (1,), device=EVIL, layout=EVIL)
    graph = Graph((node, Node(EVIL, "get_attr", EVIL, meta=Meta(fake, stack_trace=trace))), (Entry(EVIL, Graph(())),))
    case = case_of(graph, inputs=(fake, evil), symbols=Symbols((Symbol(EVIL, source=EVIL, lower=EVIL, upper=EVIL),)))
    shown = [line.text for line in listing.graph_lines(graph)]
    shown += [str(vars(row)) for row in (*listing.input_rows(case), *listing.symbol_rows(case.symbols))]
    assert not _BAD & set("".join(shown))


@given(st.text(st.characters()))
def test_clean_text_keeps_what_is_harmless_and_one_line_is_one(text: str) -> None:
    assert not (_BAD - {"\n", "\t"}) & set(clean(text))
    assert len(one_line(text).splitlines()) <= 1
    if text.isascii() and text.isprintable():
        assert clean(text) == text
    clean(text).encode()


def test_deep_nesting_is_cut() -> None:
    deep: schema.Value = 0
    term: schema.Term = "s0"
    graph = Graph(())
    for _ in range(300):
        deep, term, graph = schema.List((deep,)), Apply("Abs", (term,)), Graph((), (Entry("g", graph),))
    assert "…" in value_words(deep)
    assert "…" in term_words(term)
    assert "…" in type_words(deep)
    assert "nodes" in text(graph)[-1]
    assert listing.noticed(case_of(graph)) == []


def test_reading_needs_no_torch() -> None:
    program = (
        "import sys, torchsleuth.case.words.listing, torchsleuth.case.stores.examining; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

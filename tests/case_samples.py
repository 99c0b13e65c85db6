"""Cases for the tests of reading, storing and packing: made of data alone, without torch."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from torchsleuth.case import schema
from torchsleuth.case.format.digests import digest
from torchsleuth.case.schema import Entry, Node, Ref
from torchsleuth.case.stores.examining import check_tensors
from torchsleuth.case.stores.store import Store
from torchsleuth.config import After
from torchsleuth.outcome import Stage

DIGEST = digest(b"\0" * 24)


def checked(store: Store, name: str | os.PathLike[str]) -> schema.Case:
    """A case of a store, or at a path, every byte of its tensors read and found right."""
    found = store.find(name)
    check_tensors(found)
    return found.case


def output(*names: str) -> Node:
    return Node("output", "output", "output", (schema.Tuple(tuple(map(Ref, names))),))


def small_case(**changes: Any) -> schema.Case:
    """x * 2, with one input of six floats."""
    fake = schema.Fake("float32", (2, 3), (3, 1))
    nodes = (
        Node("x", "placeholder", "x", meta=schema.Meta(val=fake)),
        Node("y", "call_function", "torch.ops.aten.mul.Tensor", (Ref("x"), 2.0), meta=schema.Meta(val=fake)),
        output("y"),
    )
    case = schema.Case(
        graph=schema.Graph(nodes),
        compiler=schema.Compiler(After.AOT, "inductor"),
        origin=schema.Origin("2.13.0", "3.11.9", "0.1.0", graph="forward graph 0"),
        inputs=(schema.Tensor("float32", (2, 3), (3, 1), storage=0),),
        storages=(schema.Storage(24, schema.Stored(DIGEST)),),
        failure=schema.Failure(
            schema.Signature("raised", Stage.LOWERING, ("torch._inductor.exc.LoweringException",), "no lowering"),
            message="no lowering\nfor aten.mul",
        ),
    )
    return msgspec.structs.replace(case, **changes)


def with_args(*args: schema.Value) -> schema.Case:
    """The small case with these values as more arguments of its one call."""
    case = small_case()
    x, y, out = case.graph.nodes
    y = msgspec.structs.replace(y, args=(*y.args, *args))
    return msgspec.structs.replace(case, graph=schema.Graph((x, y, out)))


def rich_case() -> schema.Case:
    """A case with something of everything that a case can hold."""
    size = (schema.Apply("Mul", (2, "s0")), 3)
    fake = schema.Fake("float32", size, (3, 1), memory=0)
    branch = schema.Graph(
        (
            Node("a", "placeholder", "a"),
            Node("w", "get_attr", "w"),
            Node("b", "call_function", "torch.ops.aten.mul.Tensor", (Ref("a"), Ref("w"))),
            output("b"),
        ),
        (Entry("w", schema.Tensor("float32", (), (), storage=0)),),
    )
    plain = (
        True,
        2**70,
        0.5,
        "ünïcode \0 \u2028",
        None,
        schema.Float("7ff8000000000001"),
        schema.Complex(1.0, schema.Float("fff0000000000000")),
        schema.Text("d800"),
        schema.Bytes(b"\0\xff"),
        schema.Ellipsis_(),
        schema.Torch("channels_last"),
        schema.Device("cuda", 1),
        schema.Function("torch.nn.functional.gelu"),
        schema.Size((1, schema.Symbolic("int", "s0", 2))),
        schema.Set((1, "a"), frozen=True),
        schema.Slice(None, Ref("x"), 2),
        schema.Range(0, 4, 2),
        schema.Dict((("k", schema.List((1,))), (schema.Tuple((1, 2)), None))),
        schema.Noticed("m.Odd", "no place", "<odd>"),
    )
    more = (
        Entry("seq_nr", 3),
        Entry("mutates", Ref("z")),
        Entry("generator", schema.Generator("cpu", b"\1" * 16)),
        Entry("graph", schema.Graph((output(),))),
    )
    meta = schema.Meta(
        val=schema.Tuple((fake, schema.Symbolic("bool", schema.Apply("Gt", ("s0", 1)), True))),
        stack_trace="File 'model.py', line 3, in forward\n    return x * 2",
        original_aten="aten.mul.Tensor",
        source_fns=(("mul", "_operator.mul"),),
        modules=(("L['self']", "", "m.Model"),),
        bindings=(schema.Binding("s0", (schema.Step("index", 0),)),),
        from_node=(schema.Provenance("x", "x", origins=(schema.Provenance("y", "y"),)),),
        more=more,
        dropped=("hook",),
    )
    nodes = (
        Node("x", "placeholder", "x", meta=schema.Meta(val=fake)),
        Node("s", "placeholder", "s"),
        Node("body", "get_attr", "body"),
        Node("y", "call_function", "torch.ops.aten.mul.Tensor", (Ref("x"), *plain), (Entry("alpha", 1),), meta),
        Node("z", "call_method", "__add__", (Ref("y"), schema.Tuple((Ref("x"), Ref("body"))))),
        output("z"),
    )
    sparse = schema.Tensor(
        "float32",
        (4, 4),
        layout="sparse_coo",
        parts=(schema.Tensor("int64", (2, 1), (1, 1), storage=0), schema.Tensor("float32", (1,), (1,), storage=0)),
    )
    module = schema.Module("torch.nn.modules.linear.Identity", (Entry("training", True),))
    attributes = (Entry("body", branch), Entry("layers.0.sparse", sparse), Entry("layers.my-layer", module))
    return schema.Case(
        graph=schema.Graph(nodes, attributes, "Model"),
        compiler=schema.Compiler(After.AOT, "inductor", options=(Entry("max_autotune", True),), donated=(0,)),
        origin=schema.Origin("2.13.0", "3.11.9", "0.1.0", created="2030-01-02T03:04:05+00:00"),
        inputs=(schema.Tensor("float32", (2, 3), (3, 1), storage=0, requires_grad=True), 2),
        examples=(fake, schema.Symbolic("int", "s0", 2)),
        storages=(
            schema.Storage(24, schema.Stored(DIGEST)),
            schema.Storage(64, schema.Generated("integers", "int64", 0, 8, why="an index")),
            schema.Storage(1 << 40, schema.Nothing(), "meta"),
        ),
        symbols=schema.Symbols(
            (schema.Symbol("s0", hint=2, lower=2, upper=schema.Apply("int_oo")),),
            guards=(schema.Apply("Eq", (schema.Apply("Mod", ("s0", 2)), 0)),),
        ),
        state=schema.State(
            autocast=(schema.Autocast("cpu", True, "bfloat16"),),
            rng=(schema.Rng("cpu", b"\2" * 32),),
            flags=(Entry("mkldnn.enabled", False),),
            config=(schema.Config("torch._inductor.config", "cpp.threads", 2),),
            environment=(("OMP_NUM_THREADS", "1"),),
            threads=2,
        ),
        failure=schema.Failure(schema.Signature("crashed", signal=11)),
        code=(schema.Code("python op", "mylib::foo", "mylib.ops", source="def foo(): ...", line=3),),
    )

"""Cases as bytes: what is written is what is read, and what is not right is refused with its place."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from case_samples import DIGEST, rich_case, small_case, with_args
from torchsleuth.case import names, schema
from torchsleuth.case.format.reading import NewerCaseWarning, VersionWarning, decode, encode, seal, unseal
from torchsleuth.case.schema import Apply, Entry, Node, Ref
from torchsleuth.errors import BadCase, CannotHold, CaseError, HashMismatch, NewerCase

replace = msgspec.structs.replace


def refused(data: bytes, kind: type[CaseError] = BadCase) -> CaseError:
    with pytest.raises(kind) as caught:
        decode(data, file="some/case.json")
    assert caught.value.file == "some/case.json"
    assert "some/case.json" in str(caught.value)
    return caught.value


def body_of(case: schema.Case) -> Any:
    return msgspec.json.decode(unseal(encode(case)).body)


def resealed(body: Any, **header: Any) -> bytes:
    return seal(msgspec.json.encode(body), **header)


# ---- what is written is what is read -----------------------------------------------------------------------


@pytest.mark.parametrize("case", [small_case(), rich_case()], ids=["small", "rich"])
def test_a_case_is_read_back_as_it_was_written(case: schema.Case) -> None:
    data = encode(case)
    assert decode(data) == case
    assert encode(decode(data)) == data


def test_equal_cases_are_the_same_bytes_whatever_the_environment() -> None:
    """Covers: S22"""
    program = (
        "import sys; sys.path.insert(0, 'tests'); from case_samples import DIGEST, rich_case; "
        "from torchsleuth.case.format.reading import encode; sys.stdout.buffer.write(encode(rich_case()))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "7", "LANG": "tr_TR", "TZ": "Asia/Tokyo"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert other.stdout == encode(rich_case())


def test_the_file_has_a_line_for_each_node() -> None:
    lines = encode(small_case()).splitlines()
    assert sum(line.startswith(b'{"name":') for line in lines) == 3
    assert lines[0].startswith(b'{"format":"torchsleuth.case","version":1,"digest":"b3-')


def test_any_program_can_read_it_as_json() -> None:
    import json

    document = json.loads(encode(rich_case()))
    assert document["format"] == "torchsleuth.case"
    assert document["case"]["graph"]["nodes"][0]["name"] == "x"


def test_reading_and_storing_need_no_torch() -> None:
    program = (
        "import sys, torchsleuth.case.stores.store as s; s.Store.open('/nowhere').entries(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ten_thousand_nodes_are_written_and_read_in_about_a_second() -> None:
    case = small_case()
    x, y, _ = case.graph.nodes
    many = [replace(y, name=f"n{index}") for index in range(10_000)]
    case = small_case(graph=schema.Graph((x, *many, replace(case.graph.nodes[2], args=(Ref("n0"),)))))
    data = encode(case)
    assert len(data) < 4_000_000
    assert decode(data) == case


# ---- damage ------------------------------------------------------------------------------------------------


def test_every_single_changed_byte_is_noticed() -> None:
    data = encode(small_case())
    for position in range(len(data)):
        for bit in (0, 5, 7):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(CaseError):
                decode(bytes(changed))


def test_every_shortened_or_lengthened_file_is_refused() -> None:
    data = encode(small_case())
    for length in range(len(data)):
        with pytest.raises(CaseError):
            decode(data[:length])
    for more in (b" ", b"\n", b"\0", b"{}", data):
        refused(data + more, CaseError)


@pytest.mark.parametrize(
    "other_form",
    [
        lambda data: data.replace(b'"version":1', b'"version": 1'),
        lambda data: data.replace(b'{"format"', b'{ "format"'),
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b'"version":1', b'"version":1,"version":1'),
        lambda data: data.replace(b'"version":1,', b'"version":1,"extra":0,'),
        lambda data: data.replace(b'"torchsleuth.case"', b'"torchsleuth\\u002ecase"'),
    ],
)
def test_the_header_has_one_form_only(other_form: Callable[[bytes], bytes]) -> None:
    refused(other_form(encode(small_case())), HashMismatch)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"not json", "not JSON"),
        (b"[" * 100_000, "not a case"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"\xff\xfe", "not JSON"),
        (b'{"format":"\xff"}', "not JSON"),
        (b"[]", "not a case"),
        (b'{"format":"torchsleuth.case"}', "digest"),
        (seal(b"{}", format="somebody.else"), "somebody.else"),
        (b"1" * 100_000, "not"),
    ],
)
def test_what_is_no_case_at_all_is_said_to_be_none(data: bytes, says: str) -> None:
    assert says in str(refused(data))


def test_a_file_that_is_too_large_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsleuth.case.format.reading.MAX_BYTES", 100)
    assert "at most 100" in str(refused(b"x" * 101))
    with pytest.raises(CannotHold, match="bytes without its tensors"):
        encode(small_case())


# ---- versions ----------------------------------------------------------------------------------------------


def test_a_newer_case_is_read_and_says_what_is_left_out() -> None:
    """Covers: S26"""
    body = body_of(small_case())
    body["graph"]["nodes"][1]["hue"] = "blue"
    body["mood"] = {"of": "tomorrow"}
    body["graph"]["nodes"][1]["args"].append({"is": "quantum", "spin": 1})
    body["graph"]["nodes"][1]["meta"]["val"]["size"][1] = ["Mul", [3, 1], {"mod": 5}]
    body["graph"]["nodes"][1]["meta"]["source_fns"] = [["mul", "operator.mul", "tomorrow"]]
    with pytest.warns(NewerCaseWarning) as caught:
        case = decode(resealed(body, version=7), file="f")
    said = str(caught[0].message)
    assert all(
        word in said
        for word in ("version 7", "nodes[1].hue", "mood", "nodes[1].args[2]", "quantum", "size[1]", "fns[0]")
    )
    assert case.graph.nodes[1].args[:2] == small_case().graph.nodes[1].args
    assert isinstance(case.graph.nodes[1].args[2], schema.Noticed)
    assert caught[0].filename == __file__


def test_a_newer_case_with_nothing_new_in_it_loses_nothing() -> None:
    with pytest.warns(NewerCaseWarning, match="nothing of it is left out"):
        assert decode(resealed(body_of(small_case()), version=2)) == small_case()


def test_a_newer_case_that_makes_no_sense_here_says_to_update() -> None:
    body = body_of(small_case())
    body["graph"]["nodes"][1]["op"] = "call_tomorrow"
    body["mood"] = 1
    error = refused(resealed(body, version=9), NewerCase)
    assert "version 9" in str(error)
    assert "mood" in error.cause
    assert "update" in error.remedy


def test_a_newer_case_with_a_term_of_tomorrow_names_its_field() -> None:
    body = body_of(small_case())
    body["graph"]["nodes"][1]["meta"]["val"]["size"][0] = ["Entangle", [1]]
    assert refused(resealed(body, version=2), NewerCase).field == "graph.nodes[1].meta.val.size"


def test_a_newer_case_with_another_kind_of_digest_says_to_update() -> None:
    data = encode(small_case()).replace(b'"version":1', b'"version":2').replace(b'"digest":"b3-', b'"digest":"b9-')
    assert "update" in refused(data, NewerCase).remedy


@pytest.mark.parametrize("version", [0, -1, "one", None, msgspec.UNSET])
def test_an_unknown_or_missing_version_is_a_warning_and_still_tried(version: Any) -> None:
    """Covers: S26"""
    with pytest.warns(VersionWarning, match="version") as caught:
        assert decode(resealed(body_of(small_case()), version=version)) == small_case()
    assert not any(isinstance(each.message, NewerCaseWarning) for each in caught)


def test_a_case_of_today_is_read_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(encode(rich_case()))


# ---- types: every error names its field --------------------------------------------------------------------


def edit(path: str, value: Any) -> Callable[[Any], None]:
    """Set what stands at `a.b[0].c`."""
    steps = [
        int(step[:-1]) if step.endswith("]") else step for step in path.replace("[", ".[").replace(".[", ".").split(".")
    ]

    def apply(body: Any) -> None:
        for step in steps[:-1]:
            body = body[step]
        body[steps[-1]] = value

    return apply


ARG = "graph.nodes[1].args[0]"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("graph.nodes[1].name", 3, "graph.nodes[1].name"),
        ("graph.nodes[2].op", "jump", "graph.nodes[2].op"),
        ("graph.nodes[1].args[0]", {"is": "node"}, ARG),
        ("graph.nodes[1].args[0]", {"is": "spell"}, ARG + ".is"),
        ("graph.nodes[1].args[0]", {"is": "list", "items": [1, {"is": "set", "items": 3}]}, ARG + ".items[1].items"),
        ("graph.nodes[1].args[0]", [1], ARG),
        ("graph.nodes[1].color", "blue", "graph.nodes[1]"),
        ("graph.nodes[1].meta.val.size[0]", ["Mul", 1], "graph.nodes[1].meta.val.size[0][1]"),
        ("storages[0].nbytes", 1.5, "storages[0].nbytes"),
        ("storages[0].content.is", "magic", "storages[0].content.is"),
        ("inputs[0].size", [2, "three"], "inputs[0].size[1]"),
        ("compiler.after", "lunch", "compiler.after"),
        ("failure.signature.stage", "fright", "failure.signature.stage"),
        ("graph", 3, "graph"),
        ("state", [], "state"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_with_its_field(path: str, value: Any, field: str) -> None:
    body = body_of(small_case())
    edit(path, value)(body)
    assert refused(resealed(body)).field == field


def test_a_missing_part_is_refused_with_its_field() -> None:
    body = body_of(small_case())
    del body["storages"][0]["nbytes"]
    error = refused(resealed(body))
    assert error.field == "storages[0]"
    assert "nbytes" in error.cause


def test_values_nested_too_deep_are_refused() -> None:
    value: Any = 1
    for _ in range(150):
        value = {"is": "list", "items": [value]}
    body = body_of(small_case())
    body["graph"]["nodes"][1]["args"].append(value)
    assert "too deep" in str(refused(resealed(body)))
    text = b'{"is":"list","items":[' * 20_000
    start, end = msgspec.json.encode(body).split(msgspec.json.encode(value))
    assert "too deep" in str(refused(seal(start + text + b"1" + b"]}" * 20_000 + end)))


# ---- sense: what types cannot say --------------------------------------------------------------------------


def fake(*size: schema.Term, **fields: Any) -> schema.Fake:
    return schema.Fake(**{"dtype": "float32", "size": size, "stride": size, **fields})


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (Ref("y"), ""),
        (Ref("z"), ""),
        (2**8192, ""),
        (schema.Float("7ff0"), "bits"),
        (schema.Float("zzzzzzzzzzzzzzzz"), "bits"),
        (schema.Complex("1", 2.0), "real"),
        (schema.Complex(1.0, schema.Float("")), "imag.bits"),
        (schema.Text("d8"), "utf16"),
        (schema.Text("nothex!!"), "utf16"),
        (schema.Torch("float33"), "name"),
        (schema.Torch("nn.Module"), "name"),
        (schema.Device("gpu"), "type"),
        (schema.Device("cuda", -1), "type"),
        (schema.Device("cuda", 10**30), "type"),
        (schema.Function("os system"), "name"),
        (schema.Function("torch.Tensor.__class__.__base__"), "name"),
        (schema.Function(".torch.add"), "name"),
        (schema.Function(""), "name"),
        (schema.Generator("cpu", b"\0" * (1 << 21)), "state"),
        (schema.Range(0, 4, 0), "step"),
        (schema.Range(0, "4", 1), "stop"),
        (schema.Dict(((schema.List(), 1),)), "items[0][0]"),
        (schema.Dict(((schema.Tuple((schema.Dict(),)), 1),)), "items[0][0]"),
        (schema.Set((schema.Set(),)), "items[0]"),
        (schema.Slice(Ref("nobody")), "start"),
        (schema.List((1, schema.Tuple((Ref("nobody"),)))), "items[1].items[0]"),
        (schema.Symbolic("int", "s99"), "expr"),
        (schema.Symbolic("int", Apply("__import__", ("os",))), "expr"),
        (schema.Symbolic("int", 1, 2**80), "hint"),
        (fake(1, dtype="float33"), "dtype"),
        (fake(1, device="nowhere"), "device"),
        (fake(1, layout="spiral"), "layout"),
        (fake(1, 2, stride=(1,)), "stride"),
        (fake(1, 2, stride=()), "stride"),
        (schema.List((0,) * 1_000_001), "items"),
        (fake(Apply("Pow", (2, 10**9))), "size"),
        (fake(*[1] * 2000), "size"),
        (schema.Tensor("float32", (7,), (1,), storage=0), "size"),
        (schema.Tensor("float32", (2, 3), (3, 1), offset=1, storage=0), "size"),
        (schema.Tensor("float32", (2**62, 2**62), (0, 0), storage=0), "size"),
        (schema.Tensor("float32", (2, 2), (2**62, 2**62), storage=0), "size"),
        (schema.Tensor("float32", (-1,), (1,), storage=0), "size"),
        (schema.Tensor("float32", (2,), (-1,), offset=1, storage=0), "stride"),
        (schema.Tensor("float32", (2,), (1,), storage=1), "storage"),
        (schema.Tensor("float32", (2,), (1,), storage=-1), "storage"),
        (schema.Tensor("float32", (2,), (1,)), "storage"),
        (schema.Tensor("float32", (2,), (1, 1), storage=0), "stride"),
        (schema.Tensor("float32", (2,), layout="sparse_coo"), "parts"),
        (schema.Module("os path"), "type"),
        (schema.Module("m.M", children=(Entry("__class__", 1),)), "children[0].name"),
        (schema.Module("m.M", children=(Entry("a", Ref("x")),)), "children[0].value"),
        (schema.Graph(()), "nodes"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_with_its_field(value: schema.Value, part: str) -> None:
    alone = isinstance(value, (schema.Generator, schema.Fake, schema.Tensor, schema.Module, schema.Graph))
    case, place = (small_case(inputs=(value,)), "inputs[0]") if alone else (with_args(value), "graph.nodes[1].args[2]")
    with pytest.raises(CannotHold) as caught:
        encode(case)
    assert caught.value.field == ".".join(filter(None, (place, part)))
    assert refused(resealed(msgspec.to_builtins(case))).field == caught.value.field


NODE = "graph.nodes[0]"
END = Node("o", "output", "output", (None,))


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ((Node("1x", "placeholder", "x"), END), "graph.nodes[0].name"),
        ((Node("lambda", "placeholder", "x"), END), "graph.nodes[0].name"),
        ((Node("a.b", "placeholder", "x"), END), "graph.nodes[0].name"),
        ((Node("x", "placeholder", "../x"), END), "graph.nodes[0].target"),
        ((Node("x", "placeholder", "x"), Node("x", "output", "output", (None,))), "graph.nodes[1].name"),
        ((Node("x", "placeholder", "x"),), "graph.nodes[0].op"),
        ((END, Node("x", "placeholder", "x"), replace(END, name="p")), "graph.nodes[0].op"),
        ((Node("x", "placeholder", "x"), Node("o", "output", "elsewhere")), "graph.nodes[1].target"),
        ((Node("x", "get_attr", "missing"), END), "graph.nodes[0].target"),
        ((Node("x", "get_attr", "__class__"), END), "graph.nodes[0].target"),
        ((Node("x", "call_module", "missing"), END), "graph.nodes[0].target"),
        ((Node("x", "call_method", "add"), END), "graph.nodes[0].args"),
        ((Node("x", "call_function", "a.b", kwargs=(Entry("lambda"),)), END), NODE + ".kwargs[0].name"),
        ((Node("x", "call_method", "a.b"), END), "graph.nodes[0].target"),
        ((Node("x", "call_method", "__reduce__"), END), "graph.nodes[0].target"),
        ((Node("x", "call_function", "eval('1')"), END), "graph.nodes[0].target"),
        ((Node("x", "call_function", "a.b", kwargs=(Entry("a b"),)), END), NODE + ".kwargs[0].name"),
        ((Node("x", "call_function", "a.b", kwargs=(Entry("a"), Entry("a"))), END), NODE + ".kwargs[1]"),
        ((END,), "inputs"),
        ((Node("o", "output", "output"),), "graph.nodes[0].args"),
        ((Node("o", "output", "output", (1, 2)),), "graph.nodes[0].args"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_be_is_refused_with_its_field(nodes: tuple[Node, ...], field: str) -> None:
    with pytest.raises(CannotHold) as caught:
        encode(small_case(graph=schema.Graph(nodes)))
    assert caught.value.field == field


def test_attributes_have_names_that_modules_can_have() -> None:
    graph = small_case().graph
    for name in ("", "a..b", "../x", "__dict__", "a.__class__", "a b", "a" * 5000):
        with pytest.raises(CannotHold) as caught:
            encode(small_case(graph=replace(graph, attributes=(Entry(name, 1),))))
        assert caught.value.field == "graph.attributes[0].name"
    for name in ("weight", "layers.0.weight", "0a", "my-layer", "größe.0", "a" * 2000):
        encode(small_case(graph=replace(graph, attributes=(Entry(name, 1),))))
    with pytest.raises(CannotHold, match="lies within a plain value"):
        encode(small_case(graph=replace(graph, attributes=(Entry("a", 1), Entry("a.b", 2)))))


def test_an_attribute_may_lie_within_a_module_that_is_one() -> None:
    """`self.lin(x) + self.lin.weight`: the graph asks for the module as a whole, and for a part of it."""
    weight = schema.Tensor("float32", (2, 3), (3, 1), storage=0, requires_grad=True, parameter=True)
    module = schema.Module("torch.nn.modules.linear.Linear", parameters=(Entry("weight", weight),))
    nodes = (
        Node("x", "placeholder", "x"),
        Node("y", "call_module", "lin", (Ref("x"),)),
        Node("w", "get_attr", "lin.weight"),
        Node("o", "output", "output", (Ref("y"),)),
    )
    case = small_case(graph=schema.Graph(nodes, (Entry("lin", module), Entry("lin.weight", weight))))
    assert decode(encode(case)) == case


@pytest.mark.parametrize("target", ["x", "*args", "**kwargs", "größe", "_"])
def test_inputs_have_names_that_parameters_can_have(target: str) -> None:
    case = small_case(graph=schema.Graph((Node("x", "placeholder", target), END)))
    assert decode(encode(case)) == case


@pytest.mark.parametrize("target", ["***x", "*", "", "lambda", "*if", "a b", "x=1", "a.b", "1"])
def test_what_no_parameter_can_be_called_is_refused(target: str) -> None:
    with pytest.raises(CannotHold) as caught:
        encode(small_case(graph=schema.Graph((Node("x", "placeholder", target), END))))
    assert caught.value.field == "graph.nodes[0].target"


@pytest.mark.parametrize(
    ("predicate", "good", "bad"),
    [
        (names.is_identifier, ["x", "größe", "_0"], ["", "0", "a-b", "if", "ﬁ", "x" * 5000]),
        (names.is_path, ["torch.add", "größe.f", "__main__.f"], ["", "a..b", "a b", "x.__class__", "ﬁ.f", "a;b", "ö."]),
        (names.is_module, ["my-script", "a.b", "__main__"], ["", "../lib", "a b", "a;b", "a..b", "a/b"]),
        (names.is_attribute, ["0a", "my-layer", "größe"], ["a.b", "", "a b", "__dict__"]),
        (
            names.is_attribute_path,
            ["0", "a.0.b", "my-layer.w", "__x"],
            ["a..b", 'a"b', "a\n", "a[0]", "a.__class__", "＿＿class＿＿", "a'", "a\\b", "a\u202eb"],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_names_are_such_as_python_and_modules_can_have(
    predicate: Callable[[str], bool], good: list[str], bad: list[str]
) -> None:
    assert [name for name in good if not predicate(name)] == []
    assert [name for name in bad if predicate(name)] == []


NO_ARGUMENTS = [
    schema.Generator("cpu", b""),
    schema.Fake("float32", (2, 3), (3, 1)),
    schema.Tensor("float32", (2, 3), (3, 1), storage=0),
    schema.Module("torch.nn.modules.linear.Identity"),
    schema.Graph((Node("o", "output", "output", (None,)),)),
]


@pytest.mark.parametrize("value", NO_ARGUMENTS, ids=lambda value: type(value).__name__)
def test_what_fx_would_write_into_code_as_it_prints_is_no_argument(value: schema.Value) -> None:
    """Arguments become source by their repr; of these kinds that is anybody's text."""
    for case, field in (
        (with_args(value), "graph.nodes[1].args[2]"),
        (with_args(schema.List((1, value))), "graph.nodes[1].args[2].items[1]"),
        (with_args(schema.Dict((("k", schema.Slice(value)),))), "graph.nodes[1].args[2].items[0][1].start"),
    ):
        assert refused(resealed(msgspec.to_builtins(case))).field == field
    x, y, out = small_case().graph.nodes
    nodes = (x, replace(y, kwargs=(Entry("k", value),)), out)
    error = refused(resealed(msgspec.to_builtins(small_case(graph=schema.Graph(nodes)))))
    assert error.field == "graph.nodes[1].kwargs[0].value"
    decode(encode(small_case(inputs=(value,))))


def test_what_cannot_be_written_is_not_said_to_be_a_changed_file() -> None:
    with pytest.raises(CannotHold) as caught:
        encode(small_case(inputs=()))
    assert caught.value.field == "inputs"
    assert str(caught.value).count("inputs:") == 1
    assert "changed" not in caught.value.remedy


def test_graphs_within_graphs_have_their_own_nodes_and_a_limit() -> None:
    def around(inner: schema.Graph) -> schema.Graph:
        return schema.Graph((Node("o", "output", "output", (None,)),), (Entry("body", inner),))

    with pytest.raises(CannotHold) as caught:
        encode(small_case(inputs=(), graph=around(schema.Graph((Node("o", "output", "output", (Ref("x"),)),)))))
    assert caught.value.field == "graph.attributes[0].value.nodes[0].args[0]"
    graph = schema.Graph((Node("o", "output", "output", (None,)),))
    for _ in range(40):
        graph = around(graph)
    with pytest.raises(CannotHold, match="too deep"):
        encode(small_case(inputs=(), graph=graph))


def test_a_view_within_a_nested_graph_is_found_by_its_dotted_name() -> None:
    inner = schema.Graph((Node("o", "output", "output", (None,)),), (Entry("w", 1),))
    node = Node("x", "get_attr", "body.w")
    graph = schema.Graph((node, Node("o", "output", "output", (None,))), (Entry("body", inner),))
    encode(small_case(graph=graph, inputs=()))
    with pytest.raises(CannotHold, match="no attribute"):
        encode(small_case(graph=replace(graph, nodes=(replace(node, target="body.v"), graph.nodes[1])), inputs=()))


STORED = schema.Stored(DIGEST)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"state": schema.State(default_dtype="float33")}, "state.default_dtype"),
        ({"state": schema.State(default_device="")}, "state.default_device"),
        ({"state": schema.State(matmul_precision="low")}, "state.matmul_precision"),
        ({"state": schema.State(threads=0)}, "state.threads"),
        ({"state": schema.State(autocast=(schema.Autocast("cpu", True, "half"),))}, "state.autocast[0].dtype"),
        ({"state": schema.State(rng=(schema.Rng("cpux", b""),))}, "state.rng[0].device"),
        ({"state": schema.State(environment=(("A=B", "c"),))}, "state.environment[0]"),
        ({"state": schema.State(environment=(("A", "c\0"),))}, "state.environment[0]"),
        ({"state": schema.State(config=(schema.Config("os; x", "y"),))}, "state.config[0].module"),
        ({"state": schema.State(config=(schema.Config("os", "y", Ref("x")),))}, "state.config[0].value"),
        ({"state": schema.State(flags=(Entry("a"), Entry("a")))}, "state.flags[1]"),
        ({"compiler": schema.Compiler("aot", "b", options=(Entry("a", Ref("x")),))}, "compiler.options[0].value"),
        ({"code": (schema.Code("library", "x", module="../lib"),)}, "code[0].module"),
        ({"code": (schema.Code("library", "x", index=-1),)}, "code[0].index"),
        ({"storages": (schema.Storage(-1, schema.Nothing()),)}, "storages[0].nbytes"),
        ({"storages": (schema.Storage(2**63, schema.Nothing()),)}, "storages[0].nbytes"),
        ({"storages": (schema.Storage(24, schema.Stored("../../etc/passwd")),)}, "storages[0].content.digest"),
        ({"storages": (schema.Storage(24, schema.Stored("b3-" + "A" * 64)),)}, "storages[0].content.digest"),
        ({"storages": (schema.Storage(24, STORED), schema.Storage(25, STORED))}, "storages[1].nbytes"),
        ({"storages": (schema.Storage(24, schema.Generated("normal", "x")),)}, "storages[0].content.dtype"),
        ({"storages": (schema.Storage(24, schema.Generated("normal", "int8", 2**70)),)}, "storages[0].content.low"),
        ({"symbols": schema.Symbols((schema.Symbol("s0"),))}, "symbols.symbols[0].hint"),
        ({"inputs": (Ref("x"),)}, "inputs[0]"),
        ({"inputs": ()}, "inputs"),
        ({"state": schema.State(threads=4097)}, "state.threads"),
        ({"examples": (Ref("x"),)}, "examples[0]"),
        ({"examples": (1, 2)}, "examples"),
        ({"examples": ()}, "examples"),
        ({"examples": (schema.Tensor("float32", (2,), (1,), storage=7),)}, "examples[0].storage"),
        ({"examples": (2**9000,)}, "examples[0]"),
        ({"examples": (fake(1, dtype="nodtype"),)}, "examples[0].dtype"),
        ({"examples": (fake(2, 3, stride=(1,)),)}, "examples[0].stride"),
        ({"examples": (schema.Symbolic("int", "s0", 2),)}, "examples[0].expr"),
        ({"compiler": schema.Compiler("aot", "b", donated=(0, 1))}, "compiler.donated[1]"),
        ({"compiler": schema.Compiler("aot", "b", donated=(-1,))}, "compiler.donated[0]"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_circumstances_that_cannot_be_are_refused_with_their_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CannotHold) as caught:
        encode(small_case(**changes))
    assert caught.value.field == field


@pytest.mark.parametrize("symbol", [schema.Symbol("s0", hint=2), schema.Symbol("u0", backed=False)])
def test_a_symbol_without_a_range_is_no_size(symbol: schema.Symbol) -> None:
    symbols = schema.Symbols((symbol,))
    with pytest.raises(CannotHold, match=f"symbol {symbol.name} has no range") as caught:
        encode(small_case(symbols=symbols, examples=(fake(Apply("Mul", (2, symbol.name))),)))
    assert caught.value.field == "examples[0].size"
    encode(small_case(symbols=symbols, examples=(schema.Symbolic("int", symbol.name),)))
    ranged = schema.Symbols((replace(symbol, lower=2, upper=Apply("int_oo")),))
    encode(small_case(symbols=ranged, examples=(fake(symbol.name),)))


def test_an_infinity_is_not_written_as_null() -> None:
    for value in (float("inf"), float("nan")):
        with pytest.raises(CannotHold, match="JSON has no number"):
            encode(with_args(value))


def test_a_lone_surrogate_in_a_text_is_refused_with_a_remedy() -> None:
    with pytest.raises(CannotHold, match="backslashreplace"):
        encode(small_case(origin=schema.Origin("2", "3", "\ud800")))


# ---- torch's words -----------------------------------------------------------------------------------------


def test_the_tables_of_names_are_those_of_the_torch_that_is_installed() -> None:
    import torch

    def named(kind: type) -> dict[str, Any]:
        return {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, kind)}

    dtypes = named(torch.dtype)
    assert set(names.DTYPE_BITS) == set(dtypes)
    packed = {"quint4x2", "quint2x4"}
    assert all(names.DTYPE_BITS[name] == 8 * dtype.itemsize for name, dtype in dtypes.items() if name not in packed)
    assert set(names.LAYOUT_PARTS) == set(named(torch.layout))
    assert set(named(torch.memory_format)) == names.MEMORY_FORMATS
    assert set(named(torch.qscheme)) == names.QUANTISATION_SCHEMES
    with pytest.raises(RuntimeError) as caught:
        torch.device("nonsense")
    offered = str(caught.value).split("one of ")[1].split(" device type")[0]
    assert set(offered.split(", ")) == names.DEVICE_TYPES


@pytest.mark.parametrize("name", ["cpu", "cuda:0", "meta", "cuda:15"])
def test_devices_are_known_by_their_names(name: str) -> None:
    assert names.is_device(name)


@pytest.mark.parametrize("name", ["", "cpu:", "cuda:-1", "cuda:01", "CPU", "cuda:99999", "cpu\n", "cpu:0:1"])
def test_what_is_no_device_is_not_taken_for_one(name: str) -> None:
    assert not names.is_device(name)

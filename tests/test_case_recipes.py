"""Made-up values for inputs that never had any: the same every time, and such as the graph can use."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchsleuth.case import schema
from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.script.pieces.tensors import MADE
from torchsleuth.case.storages import recipes
from torchsleuth.case.storages.blobs import MemoryBlobs, memory
from torchsleuth.case.storages.recipes import make, recipe_for
from torchsleuth.case.storages.sinks import GUESS, size_hint
from torchsleuth.case.storages.tensors import TensorReader, TensorWriter
from torchsleuth.case.storages.uses import limits_of
from torchsleuth.errors import BadCase, CannotHold, CaseError

HOWS = ("uniform", "normal", "integers", "constant", "arange")


def values(recipe: schema.Generated, count: int) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, recipe.dtype)
    storage = make(recipe, count * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,))


# ---- making ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_recipe_makes_every_dtype(how: Any, dtype: str) -> None:
    recipe = schema.Generated(how, dtype, 0, 2, seed=3)
    one, other = make(recipe, 67), make(recipe, 67)
    assert one.nbytes() == 67
    assert bytes(memory(one)) == bytes(memory(other))
    rest = 67 % getattr(torch, dtype).itemsize
    assert not any(bytes(memory(one))[67 - rest :])


def test_uniform_numbers_lie_between_their_bounds() -> None:
    drawn = values(schema.Generated("uniform", "float32", -2, 5), 1000)
    assert drawn.min() >= -2
    assert drawn.max() < 5
    assert drawn.std() > 1.5


def test_normal_numbers_have_their_mean_and_deviation() -> None:
    drawn = values(schema.Generated("normal", "float64", 10, 3), 10000)
    assert abs(drawn.mean() - 10) < 0.2
    assert abs(drawn.std() - 3) < 0.2


@pytest.mark.parametrize("dtype", ["complex64", "complex32", "bfloat16", "float8_e4m3fn", "float16"])
def test_numbers_of_small_and_complex_dtypes_are_finite_and_differ(dtype: str) -> None:
    drawn = values(schema.Generated("normal", dtype), 100)
    wide = torch.view_as_real(drawn.to(torch.complex128)) if drawn.is_complex() else drawn.to(torch.float64)
    assert torch.isfinite(wide).all()
    assert wide.unique().numel() > 20


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint16", "uint64", "float32", "bool", "qint8"])
def test_integers_take_every_value_of_their_range_and_no_other(dtype: str) -> None:
    high = 2 if dtype == "bool" else 5
    drawn = make(schema.Generated("integers", dtype, 0, high), 800)
    kind: torch.dtype = {"qint8": torch.int8}.get(dtype, getattr(torch, dtype))
    found = torch.empty(0, dtype=kind).set_(drawn, 0, (800 // kind.itemsize,), (1,))
    assert set(found.to(torch.int64).tolist()) == set(range(high))


def test_constants_and_counting() -> None:
    assert values(schema.Generated("constant", "float32", 2.5), 3).tolist() == [2.5] * 3
    assert values(schema.Generated("constant", "bool", True), 3).tolist() == [True] * 3
    assert values(schema.Generated("arange", "int64", 5, -2), 4).tolist() == [5, 3, 1, -1]
    assert values(schema.Generated("arange", "float32", 0, 0.5), 3).tolist() == [0, 0.5, 1]
    assert values(schema.Generated("constant", "int64", 2**62 + 1), 1).tolist() == [2**62 + 1]


def test_another_seed_makes_other_values() -> None:
    one, other = (values(schema.Generated("normal", "float32", seed=seed), 50) for seed in (0, 1))
    assert not torch.equal(one, other)


def test_the_programs_random_numbers_are_not_touched() -> None:
    state = torch.get_rng_state()
    values(schema.Generated("normal", "float32"), 50)
    values(schema.Generated("integers", "int64", 0, 9), 50)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"), FakeTensorMode(), torch.inference_mode():
        values_inside = make(schema.Generated("normal", "float32"), 200)
    assert bytes(memory(values_inside)) == bytes(memory(make(schema.Generated("normal", "float32"), 200)))


@given(
    how=st.sampled_from(HOWS),
    dtype=st.sampled_from([*sorted(DTYPE_BITS), "nn", ""]),
    low=st.one_of(st.booleans(), st.integers(), st.floats()),
    high=st.one_of(st.booleans(), st.integers(), st.floats()),
    seed=st.integers(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_recipe_says_it_makes_memory_or_an_error_of_ours(
    how: Any, dtype: str, low: float, high: float, seed: int
) -> None:
    with contextlib.suppress(CaseError):
        assert make(schema.Generated(how, dtype, low, high, seed), 40).nbytes() == 40


LONG = 2 * recipes.AT_A_TIME + 9
"""Elements that take more than one slice, and do not come out even."""


def drawn_at_once(how: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    match how:
        case "uniform":
            return torch.empty(LONG).uniform_(0, 2, generator=generator)
        case "normal":
            return torch.empty(LONG).normal_(0, 2, generator=generator)
        case "integers":
            return torch.randint(0, 2, (LONG,), generator=generator)
        case "constant":
            return torch.zeros(LONG)
        case _:
            return torch.arange(LONG, dtype=torch.float64) * 2


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", ["bool", "float8_e5m2"])
def test_what_is_drawn_in_slices_is_the_same_as_drawn_at_once_here_and_in_scripts(how: Any, dtype: str) -> None:
    """Covers: U9"""
    kind: torch.dtype = getattr(torch, dtype)
    expected = drawn_at_once(how, 3).to(kind).view(torch.uint8)
    names: dict[str, Any] = {"torch": torch}
    exec(MADE.text, names)
    for made in (
        make(schema.Generated(how, dtype, 0, 2, seed=3), LONG),
        names["made"](LONG, how, kind, 0, 2, 3),
    ):
        assert torch.equal(torch.empty(0, dtype=torch.uint8).set_(made), expected)


def test_drawing_takes_little_more_memory_than_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = torch.randint

    def spy(low: int, high: int, size: tuple[int], **options: Any) -> torch.Tensor:
        drawn.append(size[0])
        return draw(low, high, size, **options)

    monkeypatch.setattr(torch, "randint", spy)
    count = 5 * recipes.AT_A_TIME + 1
    make(schema.Generated("integers", "bool", 0, 2), count)
    assert sum(drawn) == count
    assert max(drawn) <= 2 * recipes.AT_A_TIME


def test_what_no_machine_has_room_for_is_refused_before_it_is_filled() -> None:
    with pytest.raises(CannotHold, match="memory"):
        make(schema.Generated("normal", "float32"), 2**55)


def test_an_empty_range_is_an_error_that_names_the_field() -> None:
    with pytest.raises(BadCase, match="storages") as caught:
        make(schema.Generated("integers", "int64", 3, 3), 8, file="c", field="storages[1].content")
    assert caught.value.file == "c"


# ---- choosing: what the graph does with an input ---------------------------------------------------------


class _Describe(fx.Interpreter):
    """Writes down what each node produces, as Dynamo does."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["example_value"] = result
        return result


def traced(program: Callable[..., Any], *inputs: torch.Tensor, level: str) -> fx.GraphModule:
    if level == "aten":
        return make_fx(program, tracing_mode="fake")(*inputs)
    graph = fx.symbolic_trace(program)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        _Describe(graph).run(*map(mode.from_tensor, inputs))
    return graph


def placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def fake_of(node: fx.Node) -> torch.Tensor:
    fake = node.meta.get("val", node.meta.get("example_value"))
    assert isinstance(fake, torch.Tensor)
    return fake


def recipe_of(graph: fx.GraphModule, number: int) -> schema.Generated:
    node = placeholders(graph)[number]
    return recipe_for(fake_of(node), limits_of(node))


def made_inputs(graph: fx.GraphModule) -> list[torch.Tensor]:
    writer = TensorWriter(MemoryBlobs())
    records = [writer.add_fake(fake_of(node), limits_of(node)) for node in placeholders(graph)]
    reader = TensorReader(MemoryBlobs(), writer.storages)
    return [reader.get(record) for record in records if isinstance(record, schema.Tensor)]


IDS = torch.zeros(4, 3, dtype=torch.int64)
TABLE = torch.zeros(30, 8)
ROWS = torch.zeros(5, dtype=torch.int64)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = {
    "embedding": (lambda ids, table: F.embedding(ids, table), (IDS, TABLE), 30),
    "embedding of torch": (lambda ids, table: torch.embedding(table, ids), (IDS, TABLE), 30),
    "through views and casts": (
        lambda ids, table: F.embedding(ids.t().reshape(2, 6).unsqueeze(0).to(torch.int32).long().clone(), table),
        (IDS, TABLE),
        30,
    ),
    "through slices": (lambda ids, table: F.embedding(ids[:, 1:].contiguous(), table), (IDS, TABLE), 30),
    "through cat": (lambda ids, table: F.embedding(torch.cat([ids, ids]), table), (IDS, TABLE), 30),
    "plus two": (lambda ids, table: F.embedding(ids + 2, table), (IDS, TABLE), 28),
    "two plus": (lambda ids, table: F.embedding(torch.add(2, ids), table), (IDS, TABLE), 28),
    "times three": (lambda ids, table: F.embedding(ids * 3 + 1, table), (IDS, TABLE), 10),
    "the smaller of two tables": (
        lambda ids, table: F.embedding(ids, table).sum() + F.embedding(ids, table[:7]).sum(),
        (IDS, TABLE),
        7,
    ),
    "index_select": (lambda rows, x: torch.index_select(x, 1, rows), (ROWS, TABLE), 8),
    "index_select as a method": (lambda rows, x: x.index_select(-2, rows), (ROWS, TABLE), 30),
    "index_select by name": (lambda rows, x: torch.index_select(x, dim=1, index=rows), (ROWS, TABLE), 8),
    "gather": (lambda ids, x: torch.gather(x, 1, ids), (IDS, TABLE), 8),
    "gather as a method": (lambda ids, x: x.gather(0, ids), (IDS, TABLE), 30),
    "scatter": (lambda ids, x: x.scatter(1, ids, 1.0), (IDS, TABLE), 8),
    "scatter_add": (lambda ids, x: x.clone().scatter_add_(1, ids, x), (IDS, TABLE), 8),
    "scatter_reduce": (lambda ids, x: x.scatter_reduce(0, ids, x, "sum"), (IDS, TABLE), 30),
    "index_add": (lambda rows, x: x.index_add(0, rows, torch.ones(5, 8)), (ROWS, TABLE), 30),
    "index_copy": (lambda rows, x: x.index_copy(0, rows, torch.ones(5, 8)), (ROWS, TABLE), 30),
    "index_fill": (lambda rows, x: x.index_fill(1, rows, 0.0), (ROWS, TABLE), 8),
    "take": (lambda rows, x: torch.take(x, rows), (ROWS, TABLE), 240),
    "subscript": (lambda rows, x: x[rows], (ROWS, TABLE), 30),
    "second subscript": (lambda rows, x: x[:, rows], (ROWS, TABLE), 8),
    "subscript after dots": (lambda rows, x: x.unsqueeze(0)[..., rows], (ROWS, TABLE), 8),
    "subscript after a new axis": (lambda rows, x: x[None, rows], (ROWS, TABLE), 30),
    "two subscripts": (lambda rows, x: x[rows, rows], (ROWS, TABLE), 8),
    "index_put": (lambda rows, x: x.index_put((rows,), torch.ones(5, 8)), (ROWS, TABLE), 30),
    "index_put, accumulated": (
        lambda rows, x: torch.index_put(x, (rows, rows), torch.ones(5), accumulate=True),
        (ROWS, TABLE),
        8,
    ),
    "cross_entropy": (lambda rows, x: F.cross_entropy(x[:5], rows), (ROWS, TABLE), 8),
    "cross_entropy of images": (
        lambda target, x: F.cross_entropy(x, target),
        (torch.zeros(2, 4, 4).long(), torch.zeros(2, 3, 4, 4)),
        3,
    ),
    "nll_loss": (lambda rows, x: F.nll_loss(x[:5].log_softmax(1), rows), (ROWS, TABLE), 8),
    "embedding_bag": (
        lambda ids, table: F.embedding_bag(ids, table, mode="sum"),
        (IDS, TABLE),
        30,
    ),
}


@pytest.mark.parametrize("level", ["aten", "torch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_indices_are_in_range_and_not_all_the_same(name: str, level: str) -> None:
    program, inputs, high = PROGRAMS[name]
    graph = traced(program, *inputs, level=level)
    recipe = recipe_of(graph, 0)
    assert (recipe.how, recipe.low, recipe.high) == ("integers", 0, high), recipe
    assert recipe.why
    graph(*made_inputs(graph))  # which would fail on an index out of range


def test_backward_graphs_respect_their_indices_too() -> None:
    def backward(ids: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten.embedding_dense_backward(grad, ids, 30, -1, False)
        return made

    graph = traced(backward, IDS, torch.zeros(4, 3, 8), level="aten")
    assert recipe_of(graph, 0).high == 30
    assert recipe_of(graph, 1).how == "normal"
    graph(*made_inputs(graph))


def test_the_table_itself_is_not_taken_for_an_index() -> None:
    for level in ("aten", "torch"):
        program, inputs, _ = PROGRAMS["embedding"]
        assert recipe_of(traced(program, *inputs, level=level), 1).how == "normal"


def test_where_bags_begin_is_the_beginning() -> None:
    def program(ids: torch.Tensor, table: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(ids, table, offsets, mode="sum")

    inputs = (torch.zeros(6).long(), TABLE, torch.zeros(3).long())
    for level in ("aten", "torch"):
        graph = traced(program, *inputs, level=level)
        recipe = recipe_of(graph, 2)
        assert (recipe.how, recipe.low) == ("constant", 0)
        assert "begins" in recipe.why
        graph(*made_inputs(graph))


def test_the_table_may_belong_to_a_module() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(11, 4)
            self.table = torch.nn.Parameter(torch.ones(13, 4))

        def forward(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return self.words(ids).sum() + F.embedding(rows, self.table).sum()

    graph = fx.symbolic_trace(Model())
    fake = FakeTensorMode().from_tensor(IDS)
    one, other = (recipe_for(fake, limits_of(node)) for node in placeholders(graph))
    assert (one.high, other.high) == (11, 13)


def test_indices_are_followed_into_nested_graphs() -> None:
    inner = make_fx(lambda rows, x: x[rows + 1], tracing_mode="fake")(ROWS, TABLE)
    outer = torch.nn.Module()
    outer.inner = inner
    graph = fx.Graph(outer)
    rows, x = graph.placeholder("rows"), graph.placeholder("x")
    for node, example in ((rows, ROWS), (x, TABLE)):
        node.meta["val"] = FakeTensorMode().from_tensor(example)
    target = torch.ops.higher_order.invoke_subgraph
    graph.output(graph.call_function(target, (graph.get_attr("inner"), "inner", rows, x)))
    assert recipe_for(fake_of(rows), limits_of(rows)).high == 29


def test_other_inputs_get_values_that_suit_their_use() -> None:
    def program(mask: Any, p: Any, variance: Any, count: Any, divisor: Any, x: Any, classes: Any) -> Any:
        y = torch.where(mask, x, torch.bernoulli(p)) * torch.rsqrt(variance + 1e-5)
        return y + count // divisor + F.one_hot(classes, 6).sum()

    four = torch.zeros(4)
    whole = torch.ones(4).long()
    graph = traced(program, torch.zeros(4, dtype=torch.bool), four, four, whole, whole, four, whole, level="torch")
    mask, p, variance, count, divisor, x, classes = (recipe_of(graph, number) for number in range(7))
    assert (classes.how, classes.low, classes.high) == ("integers", 0, 6)
    assert (mask.how, mask.low, mask.high) == ("integers", 0, 2)
    assert (p.how, p.low, p.high) == ("uniform", 0, 1)
    assert variance.how == "uniform"
    assert variance.low > 0
    assert (count.how, count.low) == ("integers", 0)
    assert divisor.low > 0
    assert x.how == "normal"
    assert torch.isfinite(graph(*made_inputs(graph))).all()


def test_a_mask_among_indices_stands_for_all_of_its_dimensions() -> None:
    graph = fx.Graph()
    x, mask, rows = (graph.placeholder(name) for name in ("x", "mask", "rows"))
    for node, example in ((x, torch.zeros(30, 8, 5)), (mask, torch.zeros(30, 8, dtype=torch.bool)), (rows, ROWS)):
        node.meta["val"] = FakeTensorMode().from_tensor(example)
    graph.call_function(torch.ops.aten.index.Tensor, (x, [mask, rows]))
    assert recipe_for(fake_of(rows), limits_of(rows)).high == 5


def test_operators_that_aten_spells_out_are_known_by_their_names_as_well() -> None:
    along = traced(lambda ids, x: torch.take_along_dim(x, ids, 1), torch.zeros(30, 3).long(), TABLE, level="torch")
    assert recipe_of(along, 0).high == 8
    flat = traced(lambda ids, x: x.take_along_dim(ids), ROWS, TABLE, level="torch")
    assert recipe_of(flat, 0).high == 240


def test_uses_that_leave_no_choice_are_met_with_zeros() -> None:
    shifted = traced(lambda rows, x: x[rows - 100], ROWS, TABLE, level="aten")
    recipe = recipe_of(shifted, 0)
    assert (recipe.low, recipe.high) == (100, 130)
    both = traced(lambda rows, x: x[rows - 100] + x[rows], ROWS, TABLE, level="aten")
    recipe = recipe_of(both, 0)
    assert (recipe.how, recipe.low) == ("constant", 0)


def test_a_graph_of_many_nodes_is_no_burden() -> None:
    def program(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(400):
            rows = torch.cat([rows, rows])[: rows.shape[0]] + 0
        return x[rows]

    assert recipe_of(traced(program, ROWS, TABLE, level="torch"), 0).high == 30


def test_scalars_that_are_read_as_numbers_are_positive() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("item", (x,)))
    for dtype in (torch.float64, torch.int64):
        recipe = recipe_for(FakeTensorMode().from_tensor(torch.zeros((), dtype=dtype)), limits_of(x))
        assert recipe.low > 0


# ---- symbolic sizes and memory ---------------------------------------------------------------------------


def symbolic(example: torch.Tensor, dynamic: DimDynamic = DimDynamic.DYNAMIC) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[dynamic] * example.dim())
    return mode.from_tensor(example, symbolic_context=context)


def test_symbolic_sizes_are_their_hints_and_leave_no_guards() -> None:
    fake = symbolic(torch.zeros(6, 10)).t()
    environment = fake.fake_mode.shape_env  # type: ignore[attr-defined]
    before = len(environment.guards)
    writer = TensorWriter(MemoryBlobs())
    record = writer.add_fake(fake)
    assert isinstance(record, schema.Tensor)
    assert (record.size, record.stride) == ((10, 6), (1, 10))
    assert writer.storages[0].nbytes == 240
    assert len(environment.guards) == before
    assert TensorReader(MemoryBlobs(), writer.storages).get(record).shape == (10, 6)


def test_sizes_that_only_running_tells_are_small_and_said_to_be() -> None:
    fake = symbolic(torch.zeros(6, 10), DimDynamic.UNBACKED)
    writer = TensorWriter(MemoryBlobs())
    record = writer.add_fake(fake)
    assert isinstance(record, schema.Tensor)
    assert record.size == (4, 4)
    content = writer.storages[0].content
    assert isinstance(content, schema.Generated)
    assert "only running tells" in content.why
    assert TensorReader(MemoryBlobs(), writer.storages).get(record).shape == (4, 4)


def test_guesses_that_do_not_go_together_still_make_a_size() -> None:
    fake = symbolic(torch.zeros(6, 10), DimDynamic.UNBACKED)
    rows: Any = fake.shape[0]
    assert size_hint(rows * 3 + 1) == 13
    assert size_hint(rows - 10) == 0
    assert size_hint(100 // (rows - 4)) == GUESS


def test_a_symbolic_table_counts_with_its_hint() -> None:
    graph = make_fx(lambda rows, x: x[rows], tracing_mode="symbolic")(ROWS, TABLE)
    assert recipe_of(graph, 0).high == 30


def test_fakes_that_share_memory_share_what_is_made() -> None:
    mode = FakeTensorMode()
    base = mode.from_tensor(torch.zeros(10, dtype=torch.int64))
    with mode:
        view = base[4:]
    writer = TensorWriter(MemoryBlobs())
    records = [writer.add_fake(view), writer.add_fake(base)]
    assert len(writer.storages) == 1
    assert writer.storages[0].nbytes == 80
    reader = TensorReader(MemoryBlobs(), writer.storages)
    one, other = (reader.get(record) for record in records if isinstance(record, schema.Tensor))
    other[4] = 77
    assert one[0] == 77


def test_the_tighter_use_of_shared_memory_counts() -> None:
    mode = FakeTensorMode()
    base = mode.from_tensor(torch.zeros(10, dtype=torch.int64))
    with mode:
        view = base[4:]
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("a", "b", "small", "large")]
    for node, example in zip(nodes, (base, view, torch.zeros(3), torch.zeros(90)), strict=True):
        node.meta["val"] = example
    graph.call_function(operator.getitem, (nodes[3], nodes[0]))
    graph.call_function(operator.getitem, (nodes[2], nodes[1]))
    for order in ((0, 1), (1, 0)):
        writer = TensorWriter(MemoryBlobs())
        for number in order:
            writer.add_fake((base, view)[number], limits_of(nodes[number]))
        content = writer.storages[0].content
        assert isinstance(content, schema.Generated)
        assert content.high == 3
        assert content.why.endswith("size 3")


def test_what_else_a_fake_is_survives() -> None:
    mode = FakeTensorMode()
    parameter = mode.from_tensor(torch.nn.Parameter(torch.randn(3)))
    leaf = torch.randn(3, requires_grad=True)
    writer = TensorWriter(MemoryBlobs())
    records = [
        writer.add_fake(each)
        for each in (
            parameter,
            mode.from_tensor(leaf * 2),
            mode.from_tensor(torch.randn(3, dtype=torch.complex64).conj()),
            mode.from_tensor(torch.empty(3, device="meta")),
        )
    ]
    reader = TensorReader(MemoryBlobs(), writer.storages)
    one, two, three, four = (reader.get(record) for record in records if isinstance(record, schema.Tensor))
    assert isinstance(one, torch.nn.Parameter)
    assert two.requires_grad
    assert not two.is_leaf
    assert three.is_conj()
    assert four.device.type == "meta"


def test_fakes_that_no_values_are_made_up_for_are_noticed() -> None:
    record = TensorWriter(MemoryBlobs()).add_fake(FakeTensorMode().from_tensor(torch.eye(3).to_sparse()))
    assert isinstance(record, schema.Noticed)
    assert "sparse" in record.reason


def test_each_input_has_a_seed_of_its_own() -> None:
    mode = FakeTensorMode()
    writer = TensorWriter(MemoryBlobs())
    for _ in range(3):
        writer.add_fake(mode.from_tensor(torch.zeros(3)))
    seeds = {entry.content.seed for entry in writer.storages if isinstance(entry.content, schema.Generated)}
    assert len(seeds) == 3
    assert msgspec.json.encode(writer.storages)
    assert recipes.geometry_of(mode.from_tensor(torch.zeros(0, 3))).nbytes == 0

"""What every node of a case produces, worked out anew. Covers: U25."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from reduce_samples import programs, recorded, recorded_after_dynamo, runs
from torchsleuth.case import schema
from torchsleuth.case.schema import Case, Fake, Node, Tensor
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.reduce.graphs import placeholders, produced, replace
from torchsleuth.reduce.inputs import resized, with_hints, with_input
from torchsleuth.reduce.propagating import propagated
from torchsleuth.reduce.repairing import Follow, reshaped


def node(case: Case, name: str) -> Node:
    return next(one for one in case.graph.nodes if one.name == name)


def size_of(case: Case, name: str) -> tuple[object, ...]:
    found = produced(node(case, name))
    assert isinstance(found, Fake)
    return found.size


def smaller_input(case: Case, blobs: MemoryBlobs, name: str, size: tuple[int, ...]) -> Case:
    place = [one.name for one in placeholders(case.graph)].index(name)
    tensor = case.inputs[place]
    assert isinstance(tensor, Tensor)
    case, made = resized(case, tensor, size, blobs)
    return with_input(case, name, made)


@pytest.mark.parametrize("name", programs())
def test_what_was_recorded_is_what_is_found(name: str) -> None:
    """Covers: U25. A graph that nobody changed produces what it did, memory that is shared included."""
    function, inputs = programs()[name]
    case, blobs = recorded(function, *inputs)
    assert propagated(case, blobs) == case


@pytest.mark.parametrize("name", ["linear", "embedding", "epilogue"])
def test_symbols_stay_the_symbols_they_were(name: str) -> None:
    """Covers: U25."""
    function, inputs = programs()[name]
    case, blobs = recorded(function, *inputs, dynamic=True)
    assert case.symbols.symbols
    assert propagated(case, blobs) == case


def test_symbols_that_only_running_tells_keep_their_names() -> None:
    """Covers: U25. Running the graph again makes new ones."""
    case, blobs = recorded(lambda x: x.nonzero().sum(1) * 2, torch.eye(3), dynamic=True)
    assert "u0" in size_of(case, "nonzero")
    assert propagated(case, blobs) == case


def _with_branches(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
    return found


def _with_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    with torch.no_grad():
        y = y * 2
    return y.float() + x


def test_dynamo_graphs_with_modes_and_branches() -> None:
    """Covers: U25. What a graph enters it leaves, and graphs nested in it are worked out as well."""
    case, blobs = recorded_after_dynamo(_with_autocast, torch.randn(4, 4, requires_grad=True))
    assert propagated(case, blobs) == case
    assert any(isinstance(one := produced(each), Fake) and one.dtype == "bfloat16" for each in case.graph.nodes)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")

    case, blobs = recorded_after_dynamo(_with_branches, torch.randn(4, 6))
    (name,) = (one.name for one in placeholders(case.graph))
    small = propagated(smaller_input(case, blobs, name, (2, 6)), blobs)
    assert small is not None
    inner = [entry.value for entry in small.graph.attributes]
    assert inner
    assert all(isinstance(graph, schema.Graph) for graph in inner)
    sizes = {
        found.size
        for graph in inner
        if isinstance(graph, schema.Graph)
        for one in graph.nodes
        if isinstance(found := produced(one), Fake)
    }
    assert sizes == {(2, 6)}


def test_what_an_operator_refuses_is_none() -> None:
    """Covers: U25."""
    case, blobs = recorded(lambda x, w: x @ w, torch.randn(4, 6), torch.randn(6, 3))
    assert propagated(smaller_input(case, blobs, "w_1", (5, 3)), blobs) is None
    small = propagated(smaller_input(case, blobs, "w_1", (6, 2)), blobs)
    assert small is not None
    assert size_of(small, "mm") == (4, 2)
    assert [tuple(one.shape) for one in runs(small, blobs)] == [(4, 2)]


def test_a_symbol_that_would_become_a_number_is_refused() -> None:
    """Covers: U25."""
    case, blobs = recorded(lambda x, y: x.sin() + y.cos(), torch.randn(4, 3), torch.randn(4, 3), dynamic=True)
    y = case.inputs[1]
    assert isinstance(y, Tensor)
    fixed = replace(case, graph=replace(case.graph, nodes=tuple(map(_of_numbers, case.graph.nodes))))
    assert propagated(case, blobs) == case
    assert propagated(fixed, blobs) is None


def _of_numbers(one: Node) -> Node:
    if one.name != "y_1":
        return one
    assert isinstance(one.meta.val, Fake)
    return replace(one, meta=replace(one.meta, val=replace(one.meta.val, size=(4, 3), stride=(3, 1))))


def test_neither_the_case_nor_random_numbers_are_touched() -> None:
    """Covers: U25."""
    case, blobs = recorded(lambda x: torch.rand_like(x) + x, torch.randn(4))
    before = torch.get_rng_state()
    assert propagated(case, blobs) == case
    assert torch.equal(torch.get_rng_state(), before)


def _mapped(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.vmap(lambda y: y.sin() @ y)(x)
    return found


def _differentiated(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.grad(lambda y: y.sin().sum())(x)
    return found


def _transforms() -> tuple[object, ...]:
    """What graphs of torch.func change in the process."""
    functorch = torch._C._functorch
    return (
        functorch.get_dynamic_layer_stack_depth(),
        functorch.get_inplace_requires_grad_allowed(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch._C._is_fwd_grad_enabled(),
        torch.autograd.forward_ad._current_level,
    )


@pytest.mark.parametrize("program", [_mapped, _differentiated, torch.func.jacfwd(torch.sin)])
def test_transforms_that_a_graph_has_entered_are_left(program: Callable[..., Any]) -> None:
    """Covers: U25. Whatever is refused in the middle of it."""
    case, blobs = recorded_after_dynamo(program, torch.randn(4, 3))
    before = _transforms()
    assert propagated(case, blobs) is not None
    inside = next(one for one in case.graph.nodes if "sin" in one.target)
    wrong = replace(inside, op="call_method", target="no_such_method")
    nodes = tuple(wrong if one is inside else one for one in case.graph.nodes)
    assert propagated(replace(case, graph=replace(case.graph, nodes=nodes)), blobs) is None
    assert _transforms() == before
    assert propagated(case, blobs) is not None


def test_the_number_in_an_input_keeps_its_symbol() -> None:
    """Covers: U25. Dynamo asks an input for it, where running on fakes could not tell."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
    case, blobs = recorded_after_dynamo(model, torch.randn(3, 4), dynamic=True)
    (item,) = (one for one in case.graph.nodes if one.target == "item")
    assert isinstance(produced(item), schema.Symbolic)
    made = propagated(case, blobs)
    assert made is not None
    assert produced(node(made, item.name)) == produced(item)


def test_operators_that_walk_over_nested_graphs_tell_what_is_inside() -> None:
    """Covers: U25. Checkpointing does not call its graph, but runs it node by node."""
    layer = torch.nn.Linear(6, 3)

    def region(x: torch.Tensor) -> torch.Tensor:
        return layer(x).tanh()

    case, blobs = recorded_after_dynamo(lambda x: checkpoint(region, x, use_reentrant=False) * 2, torch.randn(4, 6))
    (name,) = (
        one.name
        for one, given in zip(placeholders(case.graph), case.inputs, strict=True)
        if isinstance(given, Tensor) and given.size == (4, 6)
    )
    small = propagated(smaller_input(case, blobs, name, (2, 6)), blobs)
    assert small is not None
    (inner,) = (entry.value for entry in small.graph.attributes if isinstance(entry.value, schema.Graph))
    sizes = [found.size for one in inner.nodes if isinstance(found := produced(one), Fake)]
    assert sizes == [(2, 6), (3, 6), (3,), (2, 3), (2, 3)]


# ---- inputs ------------------------------------------------------------------------------------------------


def test_an_input_is_changed_wherever_it_is_described() -> None:
    """Covers: U19. Dimensions that have not changed stay symbolic."""
    case, blobs = recorded(lambda x: x * 2, torch.arange(24.0).reshape(4, 6), dynamic=True)
    small = smaller_input(case, blobs, "x_1", (4, 2))
    assert small.examples is not None
    fake = produced(node(small, "x_1"))
    assert isinstance(fake, Fake)
    assert isinstance(small.examples[0], Fake)
    first = fake.size[0]
    assert isinstance(first, str)
    assert fake.size == small.examples[0].size == (first, 2)
    assert fake.stride == small.examples[0].stride == (2, 1)
    assert runs(small, blobs)[0].tolist() == [[0.0, 2.0], [12.0, 14.0], [24.0, 26.0], [36.0, 38.0]]


def test_hints_are_changed_within_what_is_known_of_their_symbols() -> None:
    """Covers: U19."""
    case, blobs = recorded(lambda x, y: (x @ y).flatten(), torch.randn(4, 6), torch.randn(6, 3), dynamic=True)
    first, *_ = case.symbols.symbols
    small = with_hints(case, {first.name: 2}, blobs)
    assert small is not None
    assert [one.size for one in small.inputs if isinstance(one, Tensor)] == [(2, 6), (6, 3)]
    made = propagated(small, blobs)
    assert made is not None
    assert produced(node(made, "mm")) == produced(node(case, "mm"))
    assert [tuple(one.shape) for one in runs(made, blobs)] == [(6,)]
    bounded = replace(case.symbols, symbols=(replace(first, lower=3), *case.symbols.symbols[1:]))
    assert with_hints(replace(case, symbols=bounded), {first.name: 2}, blobs) is None


# ---- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "made", "lengths", "expected"),
    [
        ((2, 32, 128), (2, 1, 128), (64, 128), {32: 1}, (2, 128)),
        ((64, 128), (2, 128), (2, 32, 128), {32: 1}, (2, 1, 128)),
        ((2, 32, 128), (2, 32, 8), (2, 32, 4, 32), {128: 8}, (2, 32, 4, 2)),
        ((4, 6, 3), (1, 6, 3), (8, 9), {4: 1}, (6, 3)),
        ((4, 1), (2, 1), (4,), {4: 2}, (2,)),
    ],
)
def test_views_follow(
    before: tuple[int, ...],
    after: tuple[int, ...],
    made: tuple[int, ...],
    lengths: dict[int, int],
    expected: tuple[int, ...],
) -> None:
    """Covers: U19."""
    assert next(reshaped(before, after, made, lengths)) == expected


def test_dimensions_are_no_lengths() -> None:
    """Covers: U19. A length of 2 becomes 1; that dimension 2 is summed over stays."""
    case, blobs = recorded(lambda x: x.view(2, 3, 20).sum(2) + torch.zeros(2, 3), torch.randn(2, 3, 4, 5))
    changed = smaller_input(case, blobs, "x_1", (1, 3, 4, 5))
    small = propagated(changed, blobs, Follow(case, {2: 1}))
    assert small is not None
    assert [tuple(one.shape) for one in runs(small, blobs)] == [(1, 3)]
    assert node(small, "sum_1").args == node(case, "sum_1").args

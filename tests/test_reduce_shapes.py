"""Smaller shapes: what passes propose is legal, and leads to a handful of elements. Covers: U19, U25."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from reduce_samples import programs, recorded, recorded_after_dynamo, runs
from torchsleuth.case.format import reading
from torchsleuth.case.schema import Case, Tensor
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.passes import layouts, shapes
from torchsleuth.reduce.patches import Material, Pass
from torchsleuth.reduce.propagating import propagated

PASSES: tuple[Pass, ...] = (shapes.symbols, shapes.lengths, shapes.dimensions, layouts.ranks, layouts.strides)

FAKES_ALLOW_IT = ("w_1: dimension 0 of length 1",)
"""A bias of 8 for results of 1: on fakes `addmm` takes it, in eager it does not."""


def sizes(case: Case) -> list[tuple[int, ...]]:
    return [value.size for value in case.inputs if isinstance(value, Tensor)]


def driven(case: Case, blobs: MemoryBlobs, fails: Callable[[Case], bool], passes: tuple[Pass, ...]) -> tuple[Case, int]:
    """What is left when every patch is taken that keeps the case failing, and how often that was asked."""
    asked: dict[str, bool] = {}
    before = None
    while before != case:
        before = case
        for each in passes:
            for site in list(each(case, Material(blobs))):
                for patch in site:
                    made = patch(case)
                    if made is None or not size_of(made) < size_of(case):
                        continue
                    key = size_of(made).digest
                    if key not in asked:
                        asked[key] = fails(made)
                    if asked[key]:
                        case = made
                        break
    return case, len(asked)


def is_valid(case: Case, blobs: MemoryBlobs) -> bool:
    try:
        runs(case, blobs)
    except (RuntimeError, IndexError):
        return False
    return True


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [*((name, False) for name in programs()), ("elementwise", True), ("embedding", True), ("epilogue", True)],
)
def test_what_is_proposed_is_legal(name: str, dynamic: bool) -> None:
    """Covers: U25. It can be written and read, says what its nodes produce, and runs."""
    function, inputs = programs()[name]
    recorded_case, blobs = recorded(function, *inputs, dynamic=dynamic)
    case = propagated(recorded_case, blobs)
    assert case is not None
    written = reading.encode(case)
    for each in PASSES:
        sites = [list(site) for site in each(case, Material(blobs))]
        again = [[patch.words for patch in site] for site in each(case, Material(blobs))]
        assert [[patch.words for patch in site] for site in sites] == again
        for patch in (patch for site in sites for patch in {id(one): one for one in (site[0], site[-1])}.values()):
            made = patch(case)
            if made is None:
                continue
            assert reading.decode(reading.encode(made)) == made
            assert propagated(made, blobs) == made, patch.words
            assert size_of(made) < size_of(case), patch.words
            assert is_valid(made, blobs) or patch.words in FAKES_ALLOW_IT
    assert reading.encode(case) == written


@pytest.mark.parametrize(
    ("name", "expected"),
    [("linear", 3), ("reshapes", 1), ("embedding", 2), ("slices", 1), ("convolution", 2), ("attention", 3)],
)
def test_with_nothing_in_the_way_one_element_is_left(name: str, expected: int) -> None:
    """Covers: U19. Of each input, in a few questions."""
    function, inputs = programs()[name]
    case, blobs = recorded(function, *inputs)
    small, asked = driven(case, blobs, lambda made: is_valid(made, blobs), PASSES)
    assert size_of(small).elements == expected, sizes(small)
    assert asked <= 16


def _linear_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, b).relu()


@pytest.mark.parametrize(("least", "dynamic"), [(5, False), (23, False), (5, True)])
def test_the_least_length_that_fails_is_found(least: int, dynamic: bool) -> None:
    """Covers: U19. Exactly that, and everything else as small as it gets."""
    inputs = (torch.randn(2, 32, 128), torch.randn(64, 128), torch.randn(64))
    case, blobs = recorded(_linear_relu, *inputs, dynamic=dynamic)

    def fails(made: Case) -> bool:
        return is_valid(made, blobs) and max(map(max, sizes(made)), default=0) >= least

    small, asked = driven(case, blobs, fails, PASSES[:3])
    lengths = {length for size in sizes(small) for length in size}
    assert lengths == ({2, least} if dynamic else {1, least})
    assert asked <= 60


def test_symbols_stay_symbols_and_within_what_is_known() -> None:
    """Covers: U19."""
    case, blobs = recorded(_linear_relu, torch.randn(4, 8), torch.randn(6, 8), torch.randn(6), dynamic=True)
    small, _ = driven(case, blobs, lambda made: is_valid(made, blobs), (shapes.symbols,))
    assert sizes(small) == [(2, 2), (2, 2), (2,)]
    assert len(small.symbols.symbols) == len(case.symbols.symbols)
    assert [node.args for node in small.graph.nodes] == [node.args for node in case.graph.nodes]


def test_bytes_are_written_for_what_is_legal_only() -> None:
    """Covers: U25."""
    case, blobs = recorded(lambda x, w: x @ w, torch.randn(4, 6), torch.randn(6, 3))
    before = set(blobs.kept)
    of_lengths = [patch for site in shapes.dimensions(case, Material(blobs)) for patch in site]
    refused = [patch for patch in of_lengths if patch.words.startswith(("x_1: dimension 1", "w_1: dimension 0"))]
    assert refused
    assert [patch(case) for patch in refused] == [None] * len(refused)
    assert set(blobs.kept) == before
    assert next(iter(shapes.lengths(case, Material(blobs))))[0](case) is not None
    assert set(blobs.kept) > before


def test_indices_stay_within_what_they_index() -> None:
    """Covers: U25. Recorded ones and made-up ones."""
    function, inputs = programs()["embedding"]
    for made_up in (False, True):
        case, blobs = recorded(function, *inputs, made_up=made_up)
        site = next(site for site in shapes.lengths(case, Material(blobs)) if site[0].words.startswith("length 10"))
        made = [patch(case) for patch in site]
        assert all(one is not None and is_valid(one, blobs) for one in made)


def test_strides_become_plain() -> None:
    """Covers: U19. With the values that there were."""
    function, inputs = programs()["strides"]
    case, blobs = recorded(function, *inputs)
    small, _ = driven(case, blobs, lambda _: True, (layouts.strides,))
    assert [(one.stride, one.offset) for one in small.inputs if isinstance(one, Tensor)] == [((6, 1), 0)] * 2
    assert torch.equal(runs(small, blobs)[0], runs(case, blobs)[0])


def _heads(x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, 4, width // 4).transpose(1, 2).reshape(batch, 4 * length, width // 4)[:, : length // 2]


def test_graphs_of_dynamo() -> None:
    """Covers: U19. Sizes are given one by one there, and methods are called."""
    case, blobs = recorded_after_dynamo(_heads, torch.randn(2, 6, 16))
    small, _ = driven(case, blobs, lambda made: is_valid(made, blobs), PASSES)
    assert size_of(small).elements == 1

"""Simpler dtypes and values. Covers: U19, U25."""

from __future__ import annotations

import pytest
import torch

from reduce_samples import programs, recorded, runs
from torchsleuth.case.format import reading
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.schema import Case, Generated, Storage, Stored, Tensor
from torchsleuth.reduce.executors import Predicate
from torchsleuth.reduce.graphs import replace
from torchsleuth.reduce.order import elements_of, size_of
from torchsleuth.reduce.passes import dtypes, values
from torchsleuth.reduce.patches import Material, Patch
from torchsleuth.reduce.problem import Problem
from torchsleuth.reduce.propagating import propagated
from torchsleuth.reduce.rounds import reduce_with


def contents(case: Case) -> list[object]:
    return [storage.content for storage in case.storages]


def words(site: list[Patch]) -> list[str]:
    return [patch.words.partition(": ")[2] for patch in site]


@pytest.mark.parametrize("name", ["linear", "embedding", "casts", "mask", "constant", "strides", "complex"])
def test_what_is_proposed_is_legal(name: str) -> None:
    """Covers: U25. Dtypes and values: it can be written and read, and says what its nodes produce."""
    function, inputs = programs()[name]
    case, blobs = recorded(function, *inputs)
    for each in (dtypes.dtypes, values.uniform, values.values, values.numbers):
        for site in each(case, Material(blobs)):
            for patch in site:
                made = patch(case)
                if made is None:
                    continue
                assert reading.decode(reading.encode(made)) == made
                assert propagated(made, blobs) == made, patch.words
                assert "digit" in patch.words or size_of(made) < size_of(case), patch.words
                if each in (values.uniform, values.values):
                    runs(made, blobs)


# ---- dtypes ------------------------------------------------------------------------------------------------


def test_all_of_one_dtype_at_once_and_arguments_with_them() -> None:
    """Covers: U19."""
    function, inputs = programs()["casts"]
    case, blobs = recorded(function, *inputs)
    for _ in range(2):
        for site in dtypes.dtypes(case, Material(blobs)):
            made = next((made for patch in site if (made := patch(case)) is not None), None)
            case = case if made is None else made
    assert [one.dtype for one in case.inputs if isinstance(one, Tensor)] == ["float32", "float32"]
    x, y = inputs
    expected = x.float() @ y.float()
    assert torch.allclose(runs(case, blobs)[0].float(), expected)


def test_whole_numbers_stay_whole_where_they_have_to_be() -> None:
    """Covers: U25. An embedding takes no float for a place."""
    function, _ = programs()["embedding"]
    case, blobs = recorded(function, torch.tensor([[0, 3]], dtype=torch.int32), torch.randn(10, 4))
    (site,) = (list(site) for site in dtypes.dtypes(case, Material(blobs)) if site)
    made = [patch(case) for patch in site]
    assert made[0] is None
    assert made[1] is not None
    assert isinstance(made[1].inputs[0], Tensor)
    assert made[1].inputs[0].dtype == "int64"
    assert torch.equal(runs(made[1], blobs)[0], runs(case, blobs)[0])


def test_inputs_that_share_memory_go_on_sharing_it() -> None:
    """Covers: U25."""
    whole = torch.arange(6, dtype=torch.float64)
    case, blobs = recorded(lambda x, y: x * y, whole[:3], whole[3:])
    site = next(iter(dtypes.dtypes(case, Material(blobs))))
    made = site[0](case)
    assert made is not None
    x, y = made.inputs
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    assert x.storage == y.storage
    assert (x.offset, y.offset) == (0, 3)
    assert made.storages[x.storage or 0].nbytes == 24
    assert runs(made, blobs)[0].tolist() == [0.0, 4.0, 10.0]


# ---- values ------------------------------------------------------------------------------------------------


def test_the_simplest_values_come_first() -> None:
    """Covers: U19."""
    case, blobs = recorded(lambda x, i: x[i], torch.tensor([1.234, 5.678, 9.1]), torch.tensor([2, 1]))
    of_floats, of_places = (list(site) for site in values.values(case, Material(blobs)))
    assert words(of_floats) == ["zeros", "ones", "counting", "uniform", "normal", "1 digit", "2 digits", "3 digits"]
    assert words(of_places) == ["zeros", "ones", "counting", "drawn"]
    assert all((made := patch(case)) is not None and len(runs(made, blobs)) == 1 for patch in of_places)
    rounded = of_floats[-2](case)
    assert rounded is not None
    assert runs(rounded, blobs)[0].tolist() == pytest.approx([9.1, 5.7])


def test_places_are_never_beyond_those_there_were() -> None:
    """Covers: U25. More places than there are to count to; one place only."""
    case, blobs = recorded(lambda x, i: x[i], torch.randn(3), torch.tensor([2, 1, 0, 1]))
    *_, of_places = (list(site) for site in values.values(case, Material(blobs)))
    assert words(of_places) == ["zeros", "ones", "drawn"]
    case, blobs = recorded(lambda x, i: x[i], torch.randn(1), torch.tensor([0, 0]))
    *_, of_places = (list(site) for site in values.values(case, Material(blobs)))
    assert words(of_places) == ["zeros", "drawn"]


def test_where_values_do_not_matter_the_simplest_are_enough() -> None:
    """Covers: U19."""
    case, blobs = recorded(lambda x, i: x[i], torch.randn(3), torch.tensor([2, 1]))
    sites = [words(list(site)) for site in values.values(case, Material(blobs, values_matter=False))]
    assert sites == [["zeros", "ones"], ["zeros"]]


def test_no_data_is_left_and_seeds_are_0() -> None:
    """Covers: U19."""
    case, blobs = recorded(lambda x, y: x + y, torch.randn(3), torch.randn(3))
    case = replace(case, storages=(case.storages[0], Storage(12, Generated("normal", "float32", 0, 1, 7, "any"))))
    sites = [list(site) for site in values.values(case, Material(blobs))]
    drawn = [next(patch for patch in site if patch.words.endswith("normal")) for site in sites]
    for patch in drawn:
        made = patch(case)
        assert made is not None
        case = made
    assert contents(case) == [Generated("normal", "float32", 0, 1)] * 2
    assert size_of(case).data == 0
    assert all(patch(case) is None for site in sites for patch in site)


def test_what_others_have_changed_is_left_alone() -> None:
    """Covers: U25. A patch knows its memory by what was in it."""
    case, blobs = recorded(lambda x: x + 1, torch.randn(3))
    (site,) = (list(site) for site in values.values(case, Material(blobs)))
    other = replace(case, storages=(Storage(12, Stored(blobs.put(torch.ones(3).untyped_storage()))),))
    assert [patch(other) for patch in site] == [None] * len(site)


def test_numbers_become_simpler() -> None:
    """Covers: U19."""
    case, blobs = recorded(lambda x: x + 1, torch.randn(3))
    (x, *rest) = case.graph.nodes
    number = replace(x, name="n", target="n", meta=replace(x.meta, val=9))
    case = replace(
        case,
        graph=replace(case.graph, nodes=(x, number, *rest)),
        inputs=(*case.inputs, 9),
        examples=(*(case.examples or ()), 9),
    )
    (site,) = (list(site) for site in values.numbers(case, Material(blobs)))
    made = [patch(case) for patch in site]
    assert [one.inputs[1] for one in made if one is not None] == [0, 1, 2, 4]
    assert all(one.examples is not None and one.examples[1] == one.inputs[1] for one in made if one is not None)


def test_one_whole_number_all_over() -> None:
    """Covers: U19. Only such as are there: they may be places. Where values do not matter, there is nothing to do."""
    case, blobs = recorded(lambda x, i: x[i], torch.randn(9), torch.tensor([4, 7, 1, 1]))
    (site,) = values.uniform(case, Material(blobs))
    assert words(list(site)) == ["1 all over", "7 all over"]
    made = site[1](case)
    assert made is not None
    assert Generated("constant", "int64", 7) in contents(made)
    assert list(values.uniform(made, Material(blobs))) == []
    assert list(values.uniform(case, Material(blobs, values_matter=False))) == []


def test_places_that_are_written_to_are_never_given_twice() -> None:
    """Covers: U25. Which of two values is there afterwards is not said, so that eager and a compiler may differ."""
    case, blobs = recorded(
        lambda x, at: torch.index_put(x, (at,), x * 2), torch.arange(4.0), torch.tensor([2, 0, 3, 1])
    )
    material = Material(blobs)
    for proposes in (values.values, values.uniform):
        for site in proposes(case, material):
            for patch in site:
                made = patch(case)
                given = None if made is None else GraphReader(made, blobs).inputs()[1]
                assert given is None or len(set(given.tolist())) == 4, patch.words


def test_sizes_have_another_chance_when_values_are_simple() -> None:
    """Of drawn numbers the first few may all be harmless; of those that are counted they are not."""

    def fails(case: Case) -> bool:
        tensor = case.inputs[0]
        assert isinstance(tensor, Tensor)
        (content,) = contents(case)
        enough = 8 if isinstance(content, Stored) else 2 if content == Generated("arange", "float32") else 9
        return elements_of(tensor) >= enough

    case, blobs = recorded(lambda x: x.acosh(), torch.randn(8))
    problem = Problem(case, Predicate(fails))
    reduce_with(problem, Material(blobs))
    (tensor,) = (one for one in problem.best.inputs if isinstance(one, Tensor))
    assert tensor.size == (2,)

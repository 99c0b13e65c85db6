"""The passes on nested graphs: branches, loops, regions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as control_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from corpus import Program, capture
from reduce_driving import NOT_BY_FAKES, calls, check_patch, driven, randn, sampled, targets
from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.schema import Case, Graph
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.reduce.graphs import placeholders
from torchsleuth.reduce.passes import arguments, bodies, bypassing, inlining, inputs, replacing, simplifying
from torchsleuth.reduce.patches import Material, Pass

INSIDE: list[Pass] = [inlining.inlined, bodies.shrunk_bodies, inlining.unused_operands]
ALL: list[Pass] = [
    inputs.outputs,
    *INSIDE,
    bypassing.bypassed,
    replacing.replaced,
    inputs.merged_inputs,
    simplifying.simplified,
    arguments.arguments,
]


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).relu() + 1


def _branches(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a, b: (a.sin() * 2 + 1).relu(), lambda a, b: a.cos() - 1, (x, y))


def _loop(x: torch.Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, (a.sin() * 2).relu()), (torch.tensor(0), x))


def _scan(x: torch.Tensor) -> Any:
    return scan(lambda c, a: (c + a.sin(), (c * a).relu()), torch.zeros(4), x)


def _checkpoint(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(lambda a: (a.sin() * 2).relu(), x, use_reentrant=False).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "branches": (_branches, (randn(3, 4), randn(3))),
    "loop": (_loop, (randn(3, 4),)),
    "scan": (_scan, (randn(3, 4),)),
    "map": (lambda x, y: control_map(lambda a, b: (a * b).sin() + 1, x, y), (randn(3, 4), randn(4) + 1)),
    "region": (lambda x: region(x) + region(x * 2), (randn(3, 4),)),
    "checkpoint": (_checkpoint, (randn(3, 4),)),
}


def captured(name: str, after: After = After.AOT) -> tuple[Case, MemoryBlobs]:
    """The graph of one of the programs."""
    function, given = PROGRAMS[name]
    blobs = MemoryBlobs()
    found: list[Recording] = []
    made: list[Case] = []
    capture(
        name,
        Program(function, given),
        lambda one: found.append(Recording(one.gm, blobs, one.example_inputs)),
        lambda one, args: made.append(found[-1].case(args, schema.Compiler(after, "inductor"), stable=True)),
        after=after.value,
    )
    return made[0], blobs


def nested(graph: Graph) -> dict[str, Graph]:
    return {entry.name: entry.value for entry in graph.attributes if isinstance(entry.value, Graph)}


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("branches", After.AOT),
        ("branches", After.DYNAMO),
        ("loop", After.AOT),
        ("scan", After.AOT),
        ("map", After.AOT),
        ("region", After.AOT),
        ("region", After.DYNAMO),
        ("checkpoint", After.DYNAMO),
    ],
)
def test_what_every_patch_promises(name: str, after: After) -> None:
    """Legal, smaller, the same each time, written and read, and it runs. Covers: U19, U25"""
    case, blobs = captured(name, after)
    made = 0
    for patch in sampled(case, Material(blobs), ALL, 4):
        try:
            made += check_patch(patch, case, blobs) is not None
        except (RuntimeError, IndexError) as error:
            if not re.search(NOT_BY_FAKES, str(error)):
                raise
    assert made >= 2


@pytest.mark.parametrize("wanted", ["relu", "cos"])
@pytest.mark.parametrize("after", [After.AOT, After.DYNAMO])
def test_a_branch_takes_the_place_of_the_condition(wanted: str, after: After) -> None:
    """What matters is in one of the branches: there is no condition any more. Covers: U19"""
    case, blobs = captured("branches", after)
    found, _ = driven(case, blobs, ALL, calls(wanted))
    assert targets(found) == [wanted]
    assert not found.graph.attributes


def test_a_region_takes_the_place_of_its_call() -> None:
    """The body of a region, of a checkpoint: an ordinary graph."""
    for name, after in (("region", After.AOT), ("checkpoint", After.DYNAMO)):
        case, blobs = captured(name, after)
        found, _ = driven(case, blobs, ALL, calls("relu"))
        assert targets(found) == ["relu"]


@pytest.mark.parametrize(
    ("name", "operator", "operators"),
    [("branches", "cond", 3), ("map", "map_impl", 2), ("region", "invoke_subgraph", 2), ("scan", "scan", 3)],
)
def test_bodies_shrink_from_inside(name: str, operator: str, operators: int) -> None:
    """The higher-order operator matters: its graphs have one operator for each result. Covers: U19"""
    case, blobs = captured(name)
    found, asked = driven(case, blobs, ALL, calls(operator))
    assert len([one for one in targets(found) if one != "getitem"]) == operators
    assert asked <= 40


def test_what_a_body_does_not_use_is_not_given_to_it() -> None:
    """The second operand of the branches is used by neither."""
    case, blobs = captured("branches")
    found, _ = driven(case, blobs, [inlining.unused_operands], calls("cond"))
    assert [len(placeholders(graph)) for graph in nested(found.graph).values()] == [1, 1]
    assert len(found.inputs) == 1


def test_a_loop_still_ends() -> None:
    """What the condition depends on stays as it is, whatever is proposed."""
    case, blobs = captured("loop")
    found, _ = driven(case, blobs, [bodies.shrunk_bodies], calls("while_loop"))
    condition, body = nested(found.graph).values()
    assert [node.target for node in condition.nodes if node.op == "call_function"] == ["torch.ops.aten.lt.Scalar"]
    assert [node.target.split(".")[3] for node in body.nodes if node.op == "call_function"] in (
        ["add", "sin"],
        ["add", "relu"],
    )


def test_what_is_used_twice_is_not_copied() -> None:
    """Two calls of one region: a body in the place of both would be more, not less."""
    case, blobs = captured("region")
    assert all(patch(case) is None for site in inlining.inlined(case, Material(blobs)) for patch in site)

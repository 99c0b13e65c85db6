"""Driving passes in tests: what holds of every patch, and what a list of passes makes of a case."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth.case.format import reading
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.schema import Case
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.reduce.legality import legal
from torchsleuth.reduce.order import graphs_in, size_of
from torchsleuth.reduce.patches import Material, Pass, Patch

NOT_BY_FAKES = "bounds|memory location|dtype|dilation|primitive|not implemented|out of range|assertion"
"""What eager may say of a case that is fine on fakes: it depends on values, on memory, on what kernels there are."""


def sampled(case: Case, material: Material, passes: Sequence[Pass], most: int) -> list[Patch]:
    """Some patches of each pass, always the same."""
    chosen: list[Patch] = []
    for one in passes:
        found = [patch for site in one(case, material) for patch in site]
        chosen += random.Random(0).sample(found, min(most, len(found)))
    return chosen


def check_patch(patch: Patch, case: Case, blobs: MemoryBlobs) -> Case | None:
    """What the patch makes of the case, if it can be applied: then everything that a patch promises holds."""
    made = patch(case)
    if made is None:
        return None
    assert legal(made), patch.words
    assert size_of(made) < size_of(case), patch.words
    assert reading.decode(reading.encode(made)) == made, patch.words
    assert patch(case) == made, patch.words
    reader = GraphReader(made, blobs)
    gm = reader.read()
    gm.graph.lint()
    with torch.no_grad():
        gm(*reader.inputs())
    return made


def driven(case: Case, blobs: MemoryBlobs, passes: Sequence[Pass], holds: Callable[[Case], bool]) -> tuple[Case, int]:
    """The smallest case that the passes lead to, one patch after another, and how many questions were asked."""
    material = Material(blobs)
    asked, before = 0, None
    while before is not case:
        before = case
        for one in passes:
            for site in one(case, material):
                for patch in site:
                    made = patch(case)
                    if made is None:
                        continue
                    asked += 1
                    if holds(made):
                        case = made
                        break
    return case, asked


def targets(case: Case) -> list[str]:
    """What a case calls, nested graphs included, without namespaces."""
    return [
        node.target.removeprefix("torch.ops.").removeprefix("aten.").split(".")[0]
        if node.target.startswith("torch.ops.aten")
        else node.target.rpartition(".")[2]
        for graph in graphs_in(case.graph)
        for node in graph.nodes
        if node.op.startswith("call_")
    ]


def calls(*names: str) -> Callable[[Case], bool]:
    """Whether a case calls all of these."""
    return lambda case: set(names) <= set(targets(case))


def randn(*size: int, **options: Any) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0), **options)

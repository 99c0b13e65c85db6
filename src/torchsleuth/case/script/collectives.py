"""Graphs with collectives in a script: one process, and process groups that talk to nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.script.graphs import graphs_in
from torchsleuth.case.script.source import call_source, text_source

_COLLECTIVES: Final = tuple(
    f"torch.ops.{namespace}."
    for namespace in (
        "_c10d_functional",
        "_c10d_functional_autograd",
        "c10d_functional",
        "c10d",
        "_dtensor",
        "symm_mem",
    )
)


@dataclass(frozen=True)
class ProcessGroups:
    """How many processes the largest group had, and what the groups are called."""

    size: int
    names: tuple[str, ...]

    def source(self) -> str:
        return call_source("one_process", repr(self.size), *map(text_source, self.names))


def process_groups(graph: schema.Graph) -> ProcessGroups | None:
    """The process groups that a graph takes part in; None if it has no collectives."""
    calls = [
        node
        for _, one in graphs_in(graph, "")
        for node in one.nodes
        if node.op == "call_function" and node.target.startswith(_COLLECTIVES)
    ]
    if not calls:
        return None
    names: dict[str, None] = {}
    size = 2
    for node in calls:
        values = (*node.args, *(entry.value for entry in node.kwargs))
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            names[texts[-1]] = None  # the group is always the last one
        if "gather" in node.target or "scatter" in node.target:
            size = max([size, *(value for value in values if type(value) is int)])
    return ProcessGroups(size, tuple(names))

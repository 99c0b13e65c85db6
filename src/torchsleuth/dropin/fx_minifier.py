"""The fewest operators of a graph with which a function of yours still says that it fails.

    smallest, inputs = minifier(gm, inputs, module_fails)

Torch's name and calling convention. The search is the engine's (`reduce`): for k operators that are needed of n it asks
about 2 k log₂ n times, leaves out any of them, not only those at the ends, and ends where none can be left out by
itself. Tensors stay as they are: `sleuth minify` is what makes those smaller, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.hub import tqdm  # type: ignore[attr-defined]

from torchsleuth.case.schema import Case, Node, Ref, Tuple
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.dropin.live import InMemory, Intermediates, Live, OnDisk
from torchsleuth.dropin.models import clones_like
from torchsleuth.reduce.events import Event, Improved
from torchsleuth.reduce.executors import Predicate
from torchsleuth.reduce.graphs import output_of, placeholders, pruned, replace, with_inputs
from torchsleuth.reduce.order import outputs_of
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.problem import Problem, Stopped
from torchsleuth.reduce.rounds import reduce_with
from torchsleuth.reduce.tiers import OPERATORS, TIERS, Tier


def _bare(case: Case, _material: Material) -> Iterator[Site]:
    """An input that is returned, and nothing else. The engine's passes keep a graph that computes something."""
    inputs = {node.name: node for node in placeholders(case.graph)}
    for value in dict.fromkeys(outputs_of(case.graph)):
        if isinstance(value, Ref) and value.name in inputs and len(case.graph.nodes) > 2:
            yield [Patch(f"nothing but the input {value.name}", functools.partial(_returning, inputs[value.name]))]


def _returning(node: Node, case: Case) -> Case:
    output = replace(output_of(case.graph), args=(Tuple((Ref(node.name),)),))
    return pruned(with_inputs(case, replace(case.graph, nodes=(node, output)), {}, {}))


_TIERS: Final = (
    *(tier for tier in TIERS if tier.name in ("outputs", "unused inputs")),
    Tier("bare", "an input that is returned", _bare, "graph", frozenset({OPERATORS, "graph"})),
)
"""Passes that only take something away."""


def dump_state(fx_g: fx.GraphModule, inps: Sequence[Any]) -> None:
    """Print a graph and what its inputs are like."""
    known = [(tuple(one.shape), one.dtype, str(one.device)) if isinstance(one, torch.Tensor) else one for one in inps]
    print(
        f"\n# {len(fx_g.graph.nodes)} nodes that still fail\n"
        f"inps = {known}\n"
        "inps = [torch.ones(x[0], dtype=x[1], device=x[2]) if isinstance(x, tuple) else x for x in inps]\n"
        f"{fx_g.code}"
    )


def minifier(
    fail_f: fx.GraphModule,
    inps: Sequence[Any],
    module_fails: Callable[[fx.GraphModule, Sequence[Any]], Any],
    dump_state: Callable[[fx.GraphModule, Sequence[Any]], Any] = dump_state,
    *,
    save_dir: str | None = None,
    offload_to_disk: bool = False,
    skip_offload: bool = False,
    skip_sanity: bool = False,
    max_granularity: int | None = None,
) -> tuple[fx.GraphModule, Sequence[Any]]:
    """The smallest part of a graph for which `module_fails(gm, inputs)` is true, and its inputs.

    `dump_state` is called with each better one, and with the result. `offload_to_disk` keeps intermediate results in
    `save_dir` instead of memory; with `skip_offload` they are there from an earlier time. `skip_sanity` believes that
    the whole graph fails. `max_granularity` has to be a power of two, and is of no other use: the search finds its own
    steps.
    """
    if max_granularity is not None and (max_granularity < 1 or max_granularity & (max_granularity - 1)):
        raise RuntimeError(f"max_granularity {max_granularity} not power of two")
    reducing = _Reducing(fail_f, inps, module_fails, dump_state, _place(save_dir, offload_to_disk, skip_offload))
    if not skip_sanity and not module_fails(fail_f, clones_like(inps)):
        raise RuntimeError("Input graph did not fail the tester")
    _say(f"Started off with {len(fail_f.graph.nodes)} nodes")
    return reducing.run()


def _place(save_dir: str | None, offload: bool, skip: bool) -> Intermediates:
    if not offload:
        return InMemory()
    if save_dir is None:
        raise AssertionError("to keep intermediate results on the disk, a save_dir is needed")
    return OnDisk(save_dir, written=skip)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class _TheirOwn(Stopped):
    """What a function of the caller's has raised: the search ends, and it is raised again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Reducing:
    """One call of the minifier."""

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        fails: Callable[[fx.GraphModule, Sequence[Any]], Any],
        dump: Callable[[fx.GraphModule, Sequence[Any]], Any],
        kept: Intermediates,
    ) -> None:
        self._fails = fails
        self._dump = dump
        total = len(gm.graph.nodes)
        with tqdm(desc="Saving intermediates", total=total, disable=isinstance(kept, InMemory)) as bar:
            self._live = Live(gm, inputs, kept, progress=lambda: bar.update(1))
        self._whole = (gm, inputs)

    def run(self) -> tuple[fx.GraphModule, Sequence[Any]]:
        self._dump(*self._whole)
        asking = Predicate(self._still_fails)
        problem = Problem(self._live.case, asking, observers=(self._observe,), is_legal=_is_legal)
        try:
            failed = reduce_with(problem, Material(MemoryBlobs()), tiers=_TIERS)
        except _TheirOwn as own:
            raise own.error from None
        if failed:
            _say(f"torchsleuth itself failed in: {', '.join(failed)}; there may be something smaller")
        best = self._whole if problem.best is problem.original else self._live.back(problem.best)
        if not self._fails(best[0], clones_like(best[1])):
            raise RuntimeError("the smallest graph that failed does not fail any more: it fails only now and then")
        _say(f"Made {asking.asked} queries")
        self._dump(*best)
        return best

    def _still_fails(self, case: Case) -> bool:
        gm, inputs = self._live.back(case)
        gm.graph.lint()
        try:
            return bool(self._fails(gm, clones_like(inputs)))  # the function may write to them
        except Exception as error:
            raise _TheirOwn(error) from error

    def _observe(self, event: Event) -> None:
        if isinstance(event, Improved):
            _say(f"Went to {len(event.case.graph.nodes)} nodes: {event.words}")
            try:
                self._dump(*self._live.back(event.case))
            except Exception as error:
                raise _TheirOwn(error) from error


def _is_legal(case: Case) -> bool:
    """Any graph that returns something. What else it has to be, the function that is asked knows."""
    return bool(outputs_of(case.graph)) and len(placeholders(case.graph)) == len(case.inputs)

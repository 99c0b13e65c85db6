"""How many questions a reduction asks, beside torch's minifier and what information theory allows.

    python benchmarks/reduce_synthetic.py [--most 5000] [--peer-cap 120] [--seed 0]

A graph of N operators, of which k are `sin`; the failure is there as long as all k are. As a chain, and with branches
that come together again. There is no hint, and no compiler: the oracle counts. Goal: exactly k operators, and at most
6 · log₂ C(N, k) + 20 questions.

torch's minifier (the peer) is asked the same about the same graph. When it has taken as many seconds as --peer-cap
says, it is stopped: then its questions are only known to be more (">"), and its operators are those that were left.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchsleuth.case.recording import Recording
from torchsleuth.case.schema import Case, Compiler
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.reduce.executors import Predicate
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.patches import Material
from torchsleuth.reduce.problem import Problem
from torchsleuth.reduce.rounds import reduce_with
from torchsleuth.torch_compat import as_fake, fake_mode

aten = torch.ops.aten
SIN = aten.sin.default
OTHERS = (aten.cos.default, aten.neg.default, aten.relu.default, aten.exp.default)


def chain(count: int, guilty: set[int]) -> fx.Graph:
    """One operator after another."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for at in range(count):
        value = graph.call_function(SIN if at in guilty else OTHERS[at % len(OTHERS)], (value,))
    graph.output((value,))
    return graph


def branchy(count: int, guilty: set[int]) -> fx.Graph:
    """Each operator takes one or two of those shortly before it."""
    graph, draw = fx.Graph(), random.Random(count)
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for at in range(count):
        one, other = draw.choices(values[-8:], k=2)
        if at in guilty:
            values.append(graph.call_function(SIN, (one,)))
        elif at % 3 == 0:
            values.append(graph.call_function(OTHERS[at % len(OTHERS)], (one,)))
        else:
            values.append(graph.call_function((aten.add.Tensor, aten.mul.Tensor)[at % 2], (one, other)))
    used = {argument for node in graph.nodes for argument in node.all_input_nodes}
    graph.output(tuple(value for value in values if value not in used))
    return graph


def guilty_of(count: int, k: int, seed: int) -> set[int]:
    """Which operators are `sin`: evenly spread, or drawn."""
    if seed < 0:
        return {(2 * at + 1) * count // (2 * k) for at in range(k)}
    return set(random.Random(seed).sample(range(count), k))


def recorded(graph: fx.Graph) -> tuple[Case, MemoryBlobs]:
    """The graph as a case; each value is a small vector."""
    gm, mode, blobs = fx.GraphModule({}, graph), fake_mode(None), MemoryBlobs()
    inputs = [torch.zeros(4) for node in gm.graph.nodes if node.op == "placeholder"]
    for node in gm.graph.nodes:
        if node.op != "output":
            node.meta["val"] = as_fake(mode, torch.zeros(4))
    return Recording(gm, blobs).case(inputs, Compiler(After.AOT, "inductor"), stable=True), blobs


def ours(graph: fx.Graph, k: int) -> tuple[int, int, float]:
    """Questions, operators that are left, seconds."""
    case, blobs = recorded(graph)
    name = "torch.ops.aten.sin.default"

    def holds(case: Case) -> bool:
        return sum(node.target == name for node in case.graph.nodes) >= k

    executor = Predicate(holds)
    began = time.perf_counter()
    problem = Problem(case, executor)
    problem.answer(case)
    reduce_with(problem, Material(blobs, values_matter=False))
    return executor.asked, size_of(problem.best).operators, time.perf_counter() - began


class Capped(BaseException):
    """The peer has had its time."""


def peers(graph: fx.Graph, k: int, cap: float) -> tuple[int, int, float, bool]:
    """The same of torch's minifier, and whether it came to an end."""
    from functorch.compile import minifier  # type: ignore[import-untyped]

    asked = left = 0
    began = time.perf_counter()

    def count(gm: fx.GraphModule, *_: Any) -> None:
        nonlocal left
        left = sum(node.op == "call_function" for node in gm.graph.nodes)

    def fails(gm: fx.GraphModule, _inputs: Any) -> bool:
        nonlocal asked
        if time.perf_counter() - began > cap:
            raise Capped
        asked += 1
        return sum(node.target is SIN for node in gm.graph.nodes) >= k

    gm = fx.GraphModule({}, graph)
    inputs = [torch.zeros(4) for node in gm.graph.nodes if node.op == "placeholder"]
    count(gm)
    ended = False
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with contextlib.suppress(Capped), quiet[0], quiet[1]:
        count(minifier(gm, inputs, fails, dump_state=count)[0])
        ended = True
    return asked, left, time.perf_counter() - began, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=5000)
    parser.add_argument("--peer-cap", type=float, default=120.0, help="seconds for the peer; 0: it is not asked")
    parser.add_argument("--seed", type=int, default=-1, help="-1: evenly spread")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print("| graph | N | k | log₂ C(N, k) | goal | questions | ops | seconds | peer: questions | ops | seconds |")
    print("| --- " * 11 + "|")
    shapes: tuple[Callable[[int, set[int]], fx.Graph], ...] = (chain, branchy)
    missed = 0
    for make in shapes:
        for count in (50, 200, 1000, 5000):
            if count > options.most:
                continue
            for k in (1, 2, 4):
                guilty = guilty_of(count, k, options.seed)
                bound = math.log2(math.comb(count, k))
                goal = 6 * bound + 20
                asked, left, seconds = ours(make(count, guilty), k)
                missed += asked > goal or left != k
                row = (
                    f"| {make.__name__} | {count} | {k} | {bound:.1f} | {goal:.0f} | {asked} | {left} | {seconds:.1f} |"
                )
                if options.peer_cap:
                    theirs, remain, took, ended = peers(make(count, guilty), k, options.peer_cap)
                    more = "" if ended else "> "
                    row += f" {more}{theirs:,} | {remain:,} | {more}{took:.1f} |"
                else:
                    row += " – | – | – |"
                print(row, flush=True)
    print(f"\ngoals missed: {missed}")


if __name__ == "__main__":
    main()

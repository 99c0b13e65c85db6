"""Twelve programs, six of them compiled rightly and six wrongly: what `judge` says, and what torch's level 4 says.

Faults come from three places: Inductor's own test faults, a real bug of torch 2.13 (ldexp), and compilers written
here that break one thing. The peer runs on the same graphs: `TORCHDYNAMO_REPRO_AFTER=aot`, level 4, which
raises AccuracyError where it sees a difference and stays silent where it sees none.

    python benchmarks/judge.py [NAME ...]
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines announce AMX and do not have it

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.repro.after_aot import wrap_compiler_debug
from torch._inductor import config as inductor_config

from torchsleuth import Verdict, judge
from torchsleuth.cli.demo import build_block

GraphCompiler = Callable[..., Any]
Faults = dict[str, Any]
RELU: Faults = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}
NO_CACHES: Faults = {"force_disable_caches": True}
LOG1P: Faults = {"cpp.inject_log1p_bug_TESTING_ONLY": "accuracy"}


@dataclass(frozen=True)
class Program:
    """A program, its inputs, and the compiler under test: Inductor (with a fault), or one written here."""

    right: bool
    model: Callable[..., Any]
    inputs: Sequence[Any]
    faults: Faults | None = None
    compiler: GraphCompiler | None = None


def programs() -> dict[str, Program]:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 64)
    million = torch.randn(10**6)
    index = torch.randint(64, (20_000,))
    words = torch.randint(100, (4, 32))
    return {
        "fp32": Program(True, build_block("relu", 0.0), [x]),
        "bf16": Program(True, build_block("relu", 0.0).bfloat16(), [x.bfloat16()]),
        "fp16": Program(True, build_block("relu", 0.0).half(), [x.half()]),
        "dropout": Program(True, dropped_relu, [x]),
        "atomics-like": Program(
            True, lambda v, i: torch.zeros(64).index_add(0, i, v), [torch.randn(20_000), index], compiler=any_order
        ),
        "large reductions": Program(
            True, lambda v: (v.sum(), v.mean(), v.var(), v.exp().sum(), (v * v).sum().sqrt()), [torch.rand(10**7)]
        ),
        "relu fault": Program(False, build_block("relu", 0.0), [x], RELU),
        "log1p fault": Program(False, build_block("log1p", 0.0), [x], LOG1P),
        "off-by-one index": Program(False, nn.Embedding(101, 16), [words], compiler=off_by_one),
        "dropout + wrong op": Program(False, dropped_relu, [x], RELU),
        "wrong dtype": Program(False, torch.ldexp, [torch.ones(3, 4, dtype=torch.bool), torch.randn(3, 4).half()]),
        "NaN in 1 of 10^6": Program(False, lambda v: v.sin() * 2, [million], compiler=one_nan),
    }


def dropped_relu(x: torch.Tensor) -> torch.Tensor:
    return x + nn.functional.dropout(nn.functional.relu(x), 0.5)


# ── compilers that break one thing ───────────────────────────────────────────────────────────────────────


class Broken:
    """A boxed callable that runs a graph as it is and then, or on the way, does something else."""

    def __init__(self, graph: torch.fx.GraphModule, twist: Callable[[torch.fx.GraphModule, list[Any]], Any]) -> None:
        self.graph = graph
        self.twist = twist
        self._boxed_call = True  # on the instance: torch copies it from there

    def __call__(self, args: list[Any]) -> Any:
        return self.twist(self.graph, args)


def any_order(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Broken:
    """Sums in another order at each call, as atomics on an accelerator do. Not a fault."""
    generator = torch.Generator().manual_seed(0)

    def twist(graph: torch.fx.GraphModule, args: list[Any]) -> Any:
        order = torch.randperm(len(args[0]), generator=generator)
        return graph(*(value[order] for value in args))

    return Broken(graph, twist)


def off_by_one(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Broken:
    """Reads the last index one too far."""

    def twist(graph: torch.fx.GraphModule, args: list[Any]) -> Any:
        moved = [value.clone() if not value.is_floating_point() else value for value in args]
        for value in moved:
            if not value.is_floating_point():
                value[-1, -1] += 1
        return graph(*moved)

    return Broken(graph, twist)


def one_nan(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Broken:
    """Loses one element of a million."""

    def twist(graph: torch.fx.GraphModule, args: list[Any]) -> Any:
        results = [value.clone() for value in graph(*args)]
        results[0].view(-1)[123_456] = torch.nan
        return results

    return Broken(graph, twist)


# ── the two judges ───────────────────────────────────────────────────────────────────────────────────────


def backend_of(program: Program, wrap: Callable[[GraphCompiler], GraphCompiler] = lambda compiler: compiler) -> Any:
    if program.compiler is None:
        return "inductor"
    compiler = wrap(program.compiler)
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)


def ask_judge(program: Program) -> str:
    torch.compiler.reset()
    with inductor_config.patch({**NO_CACHES, **(program.faults or {})}):
        compiled = torch.compile(program.model, backend=backend_of(program))
        return judge(program.model, compiled, program.inputs).verdict.value


def ask_peer(program: Program) -> str:
    """Level 4 of torch itself: forward and, where there is one, backward graph, checked at the call."""
    torch.compiler.reset()
    with (
        tempfile.TemporaryDirectory() as folder,
        _working_in(folder),
        _silence(),
        dynamo_config.patch(repro_after="aot", repro_level=4, debug_dir_root=folder),
        inductor_config.patch({**NO_CACHES, **(program.faults or {})}),
    ):
        backend = backend_of(program, lambda compiler: wrap_compiler_debug(compiler, "inductor"))
        try:
            output = torch.compile(program.model, backend=backend)(*program.inputs)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.float().sum().backward()
        except Exception as error:  # noqa: BLE001 - whatever the peer raises is its answer
            return "bug" if "Accuracy" in f"{type(error).__name__} {error}" else type(error).__name__
        return "silent"


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """The peer drops files where it is started."""
    home = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(home)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The peer logs and prints pages; its answer is all that is wanted."""
    logging.disable(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    wanted = sys.argv[1:]
    table = Table(title="bug or noise?")
    for heading in ("program", "truth", "judge", "", "torch level 4", "", "seconds (judge / peer)"):
        table.add_column(heading)
    mistakes = [0, 0]
    for name, program in programs().items():
        if wanted and name not in wanted:
            continue
        began = time.perf_counter()
        ours = ask_judge(program)
        middle = time.perf_counter()
        theirs = ask_peer(program)
        right = [(answer == Verdict.BUG.value) != program.right for answer in (ours, theirs)]
        mistakes = [count + (not good) for count, good in zip(mistakes, right, strict=True)]
        marks = ["[green]✓[/]" if good else "[red]✗[/]" for good in right]
        truth = "right" if program.right else "wrong"
        spent = f"{middle - began:.1f} / {time.perf_counter() - middle:.1f}"
        table.add_row(name, truth, ours, marks[0], theirs, marks[1], spent)
    Console(width=120).print(table)
    print(f"mistakes: judge {mistakes[0]}, torch level 4 {mistakes[1]}")


if __name__ == "__main__":
    main()

"""What watching costs: the time of a call, watched over unwatched, and the memory that is left after a thousand calls.

    python benchmarks/watch_overhead.py [--rounds 400]

Every program is compiled by Inductor once for each way of watching, and runs on one thread. In each round every way is
called once, in an order that is drawn anew, so that whatever else the machine does hits them alike. A row is the ratio
of the medians over all rounds, with its 95 % interval (rounds drawn again and again). "again" is a second unwatched
copy: how far it is from 1 is what this machine can tell apart. Level 4 is called a hundred times between hundreds of
unwatched calls, since one call in a hundred is slow; its row is the median of those ratios.

Goals: levels 1 to 3 at most 1.02 (level 3 after its first call), level 4 with one call in 100 checked at most 1.10, and
no memory kept. The peer is torch's own wrapper (`torch._dynamo.config.repro_after = "aot"`) at its levels 1 and 2; its
level 3 writes a file at each call, and its level 4 runs everything twice each time, so these are called less often.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from rich.console import Console
from rich.table import Table

from torchsleuth.capture.backends import watch

Call = Callable[[], Any]
AT_PEER = "peer, level "
SAMPLED = "level 4, 1 in 100"


@dataclass(frozen=True)
class Program:
    """Something to compile, and how to call it."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: tuple[torch.Tensor, ...]
    train: bool = False
    share: float = 1.0
    """Of the rounds: a slow program has fewer."""


def mlp() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(512, 512), torch.nn.GELU()]
    return torch.nn.Sequential(*layers[:-1])


class Gpt2Block(torch.nn.Module):
    """One block of GPT-2 in its original size, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block

        config = GPT2Config(n_layer=1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
        config._attn_implementation = "sdpa"
        self.block = GPT2Block(config, layer_idx=0)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> Any:
        out = self.block(x)
        return out[0] if isinstance(out, tuple) else out


def programs() -> list[Program]:
    torch.manual_seed(0)
    x, tokens = torch.randn(128, 512), torch.randn(1, 128, 768)
    return [
        Program("3-layer MLP", mlp, (x,)),
        Program("3-layer MLP, forward and backward", mlp, (x,), train=True, share=0.5),
        Program("GPT-2 block", Gpt2Block, (tokens,), share=0.5),
        Program("GPT-2 block, forward and backward", Gpt2Block, (tokens,), train=True, share=0.25),
    ]


WAYS: dict[str, dict[str, Any] | None] = {
    "unwatched": None,
    "again": None,
    "level 1": {"level": 1},
    "level 2": {"level": 2},
    "level 3": {"level": 3},
    "level 3, after Dynamo": {"level": 3, "after": "dynamo"},
    SAMPLED: {"level": 4, "check_every": 100},
    f"{AT_PEER}1": None,
    f"{AT_PEER}2": None,
}


def prepared(program: Program, way: str, store: str) -> Call:
    """The program, compiled and called often enough to be in its stride."""
    torch.manual_seed(0)
    model = program.make().train(program.train)
    options = WAYS[way]
    backend: Any = "inductor" if options is None else watch("inductor", store=store, **options)
    # By default, all that is compiled from one function shares one list, which has a limit.
    compile_alone: Any = torch.compile  # whose overloads do not know the option yet
    compiled = compile_alone(model, backend=backend, isolate_recompiles=True)

    def call() -> Any:
        if not program.train:
            with torch.no_grad():
                return compiled(*program.inputs)
        result = compiled(*program.inputs).sum()
        result.backward()
        return result

    with at_peer(way):
        for _ in range(10):
            call()
    return call


@contextlib.contextmanager
def at_peer(way: str) -> Iterator[None]:
    if not way.startswith(AT_PEER):
        yield
        return
    with dynamo_config.patch(repro_after="aot", repro_level=int(way[-1])):
        yield


def measured(program: Program, rounds: int, store: str) -> dict[str, list[float]]:
    """By way, round by round: seconds of a call."""
    calls = {way: prepared(program, way, store) for way in WAYS}
    found: dict[str, list[float]] = {way: [] for way in calls}
    order = list(calls)
    draw = random.Random(0)
    for _ in range(rounds):
        draw.shuffle(order)
        for way in order:
            with at_peer(way):
                found[way].append(timed(calls[way], 1))
    return found


def ratio(watched: list[float], plain: list[float]) -> tuple[float, float, float]:
    """Of the medians, and its 95 % interval."""
    one, other = torch.tensor(watched, dtype=torch.float64), torch.tensor(plain, dtype=torch.float64)
    drawn = torch.randint(len(plain), (1000, len(plain)), generator=torch.Generator().manual_seed(0))
    ratios = one[drawn].median(1).values / other[drawn].median(1).values
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return statistics.median(watched) / statistics.median(plain), low, high


def timed(call: Call, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - began


def sampled(program: Program, rounds: int, store: str) -> tuple[float, float, float]:
    """Level 4 with one call in 100 checked, over unwatched: the median of the rounds, and their quartiles."""
    watched, plain = (prepared(program, way, store) for way in (SAMPLED, "unwatched"))
    ratios = []
    for _ in range(rounds):
        before, seconds, after = timed(plain, 100), timed(watched, 100), timed(plain, 100)
        ratios.append(2 * seconds / (before + after))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def kept_memory(program: Program, store: str) -> dict[str, tuple[int, int, int]]:
    """What 1,000 calls leave behind, by way: bytes of Python, objects, tensors."""
    found = {}
    for way in ("unwatched", "level 2", "level 3", SAMPLED):
        call = prepared(program, way, store)
        for _ in range(100):
            call()
        tracemalloc.start()
        call()
        before = _held()
        for _ in range(1000):
            call()
        after = _held()
        tracemalloc.stop()
        found[way] = (after[0] - before[0], after[1] - before[1], after[2] - before[2])
    return found


def _held() -> tuple[int, int, int]:
    gc.collect()
    objects = gc.get_objects()
    tensors = sum(issubclass(type(each), torch.Tensor) for each in objects)
    return tracemalloc.get_traced_memory()[0], len(objects), tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    console = Console(width=120)
    store = tempfile.mkdtemp(prefix="sleuth-bench-")
    os.chdir(store)  # the peer writes into the current folder
    try:
        for program in programs():
            its = max(20, int(rounds * program.share))
            seconds = measured(program, its, store)
            table = Table(title=f"{program.name}: time of a call, watched / unwatched ({its} rounds)", width=110)
            for head in ("", "ratio", "from – to", "µs a call"):
                table.add_column(head, justify="right" if head else "left")
            plain = seconds.pop("unwatched")
            for way, times in seconds.items():
                middle, low, high = sampled(program, 7, store) if way == SAMPLED else ratio(times, plain)
                each = statistics.median(times) * 1e6
                table.add_row(way, f"{middle:.3f}", f"{low:.3f} – {high:.3f}", f"{each:,.0f}")
            console.print(table)
        program = programs()[0]
        table = Table(title=f"{program.name}: what 1,000 calls leave behind", width=110)
        for head in ("", "bytes of Python", "objects", "tensors"):
            table.add_column(head, justify="right" if head else "left")
        for way, (nbytes, objects, tensors) in kept_memory(program, store).items():
            table.add_row(way, f"{nbytes:,}", f"{objects:,}", f"{tensors:,}")
        console.print(table)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    main()

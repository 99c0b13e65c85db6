"""Time and memory of `same` on 10^8 float32 elements, as ratios to one `torch.allclose` of the same tensors.

Both are measured in one run, alternating, because absolute seconds on a shared machine mean little. Memory is the
growth of the peak resident size during one call, each in a process of its own. Goal: time ratio ≤ 3.

    python benchmarks/compare.py [--elements N] [--rounds N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchsleuth import same

Call = Callable[[], object]


def scenarios(elements: int) -> dict[str, tuple[Call, Call]]:
    """For each situation: our call, and the call of torch that it is measured against."""
    generator = torch.Generator().manual_seed(0)
    ref = torch.randn(elements, generator=generator)
    near = ref + 1e-6
    far = ref + 1e-3
    exact = ref.double()
    side = int(elements**0.5)
    turned, turned_near = ref[: side * side].view(side, side).t(), near[: side * side].view(side, side).t()

    def allclose(one: torch.Tensor, other: torch.Tensor) -> Call:
        return lambda: torch.allclose(one, other, rtol=1e-4, atol=1e-4)

    return {
        "agree within tolerance": (lambda: same(ref, near), allclose(ref, near)),
        "agree bit for bit": (lambda: same(ref, ref.view(-1)), allclose(ref, ref.view(-1))),
        "differ": (lambda: same(ref, far), allclose(ref, far)),
        "differ, with an fp64 reference": (lambda: same(ref, far, exact), allclose(ref, far)),
        "not contiguous": (lambda: same(turned, turned_near), allclose(turned, turned_near)),
    }


def seconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def peak_growth(name: str, ours: bool, elements: int) -> float:
    """MiB by which the resident size grew at its peak during one call, measured in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_growth_here, (name, ours, elements))


def _peak_growth_here(name: str, ours: bool, elements: int) -> float:
    mine, peers = scenarios(elements)[name]
    small = torch.ones(8)
    same(small, small + 1e-6)  # what loads on first use is not the comparison's
    torch.allclose(small, small)
    start = peak = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.0005):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    (mine if ours else peers)()
    done.set()
    watcher.join()
    return max(0, peak - start) / 2**20


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=10**8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"{options.elements:,} float32 elements a side ({options.elements * 4 / 2**20:.0f} MiB)")
    for heading in ("", "same / allclose", "over rounds", "extra MiB: same", "extra MiB: allclose"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (mine, peers) in scenarios(options.elements).items():
        mine(), peers()
        ratios = [seconds(mine) / seconds(peers) for _ in range(options.rounds)]
        table.add_row(
            name,
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} – {max(ratios):.2f}",
            f"{peak_growth(name, True, options.elements):.0f}",
            f"{peak_growth(name, False, options.elements):.0f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

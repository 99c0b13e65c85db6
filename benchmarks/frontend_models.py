"""Models from transformers, captured: bit for bit what eager gives, and from how many recordings?

    python benchmarks/frontend_models.py [--only NAME ...] [--reasons]

All are tiny, with random weights, on one thread, with the backend "eager". A model is called three times with one
input and then twice with others of the same shapes; each result is compared with eager's as a whole: classes, keys,
types, strides, shared memory, bits, and the state of the random numbers.

The four main ones are also trained: three steps of SGD with momentum, dropout on; compared after each step are the
loss, all gradients, parameters and buffers, and the random state.

Goals: all right; GPT2 and Llama one graph each; nothing is recorded anew for new data; the third call comes from the
cache. `--reasons` lists every break with its line and reason.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from frontend_transformers import ARCHITECTURES, MAIN, STEPS, Architecture, check, train  # type: ignore[import-not-found]
from torchsleuth.frontend import capture


def judged(name: str, architecture: Architecture) -> tuple[Any, float]:
    """What `check` says, and seconds."""
    began = time.perf_counter()
    found = check(architecture, capture)
    return found, time.perf_counter() - began


def row(found: Any, seconds: float) -> list[str]:
    captured = found.captured
    return [
        "yes" if found.right else "NO",
        "yes" if found.settled else "no",
        str(len(captured.graphs)),
        str(len(captured.breaks)),
        f"{found.recordings} + {found.recordings_on_new_data}",
        f"{seconds:.1f}",
    ]


def table_of(title: str, *heads: str) -> Table:
    table = Table(title=title, width=110)
    for head in ("", *heads):
        table.add_column(head, justify="right" if head else "left")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--reasons", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    console = Console(width=120)
    chosen = {name: each for name, each in ARCHITECTURES.items() if not options.only or name in options.only}
    heads = ("right", "settled", "graphs", "breaks", "recordings, + on new data", "s")
    results: dict[str, Any] = {}
    for title, names in (
        ("The main models: three calls, and two on new data", [name for name in chosen if name in MAIN]),
        ("Other architectures: three calls, and two on new data", [name for name in chosen if name not in MAIN]),
    ):
        table = table_of(title, *heads)
        for name in names:
            try:
                found, seconds = judged(name, chosen[name])
            except Exception as error:  # noqa: BLE001 - a line of the table, with its reason
                table.add_row(name, "NO", *[""] * 5)
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            results[name] = found
            table.add_row(name, *row(found, seconds))
            for words in found.differences:
                print(f"{name}: {words[:300]}", flush=True)
            for crash in found.captured.crashes:
                print(f"{name}: the translator crashed: {type(crash.error).__name__}: {crash.error}", flush=True)
        console.print(table)
        _sum_up(names, results)
    if options.reasons:
        _reasons(results)
    table = table_of(f"Training: {STEPS} steps of SGD with dropout", "parameters", "right", "graphs", "from the cache")
    for name in [name for name in chosen if name in MAIN]:
        found = train(chosen[name], capture)
        hits = f"{found.captured.hits} of {STEPS - 1}"
        right = "yes" if found.right else "NO"
        table.add_row(name, f"{found.parameters:,}", right, str(len(found.captured.graphs)), hits)
        for words in found.differences[:5]:
            print(f"{name}, training: {words}", flush=True)
    console.print(table)


def _sum_up(names: list[str], results: dict[str, Any]) -> None:
    found = [results[name] for name in names if name in results]
    right = sum(each.right for each in found)
    settled = sum(each.settled for each in found)
    whole = sum(not each.captured.breaks and len(each.captured.graphs) == 1 for each in found)
    anew = sum(each.recordings_on_new_data > 0 for each in found)
    crashed = sum(bool(each.captured.crashes) for each in found)
    print(
        f"{len(names)} models: {right} right, {settled} settled, {whole} one graph; {anew} recorded anew for new data, "
        f"{crashed} crashed the translator",
        flush=True,
    )


def _reasons(results: dict[str, Any]) -> None:
    reasons: Counter[str] = Counter()
    for name, found in results.items():
        for each in found.captured.breaks:
            reasons[each.reason] += 1
            print(f"{name}: {Path(each.file).name}:{each.line}: {each.reason}")
        for words in sorted(set(found.captured.uncacheable)):
            print(f"{name}: not kept: {words}")
    for reason, times in reasons.most_common():
        print(f"{times:4}  {reason}")


if __name__ == "__main__":
    main()

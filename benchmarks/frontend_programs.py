"""Thousands of random programs, captured and in eager: do they do the same, bit for bit, and do they settle?

    python benchmarks/frontend_programs.py [--count 2000] [--seed 0] [--only NUMBER] [--dynamic] [--shown 20]

Each program is executed twice, afresh: once as it is, once captured. Seven calls each, some with other arguments or
after a global was changed; the last three repeat the first. Compared after each call: the result, the arguments, the
globals, what earlier calls returned, what was printed or raised, gradients, and the state of the random generators.
A disagreement is printed as a program made smaller. `--only` runs one of them, and prints it as it is. Goal: all agree.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from frontend_programs import Program, compared, reduced, time_limit, write  # type: ignore[attr-defined]
from torchsleuth.frontend import capture


def kind_of(words: str) -> str:
    """What sort of disagreement it is: while it is made smaller it must stay one of these."""
    what = words.split(": ", 1)[1]
    return (
        " ".join(what.split(" ")[:2]) if what.startswith("raises") else what.split(" ")[0].split("[")[0].split(".")[0]
    )


def judged(program: Any, capturing: Callable[[Any], Any]) -> tuple[str | None, Any]:
    """What is not the same, in words, and what the captured run was."""
    try:
        with time_limit():
            words, _, found = compared(program, capturing)
    except TimeoutError as error:
        return f"call 0: raises nothing  !=  {error}", None
    except Exception as error:  # noqa: BLE001 - a line of the table, with its reason
        return f"call 0: raises nothing  !=  {type(error).__name__}: {error} (from capturing)", None
    return words, found


def made_smaller(program: Any, kind: str, capturing: Callable[[Any], Any]) -> Any:
    def still(candidate: Any) -> bool:
        try:
            words, _ = judged(candidate, capturing)
        except SystemError:
            return False
        return words is not None and "call 0" not in words and kind_of(words) == kind

    return reduced(program, still)


def without_head(program: Any) -> str:
    """Without what every program begins with."""
    text = str(program.source)
    return text[text.find("\n\n", text.find("SEEN = ")) :].strip("\n") if "SEEN = " in text else text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--shown", type=int, default=20, help="how many disagreements are made smaller and printed")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def capturing(function: Any) -> Any:
        return capture(function, dynamic=options.dynamic)

    numbers = range(options.count) if options.only is None else [options.only]
    agreed = settled = natives = recordings = breaks = crashes = 0
    reasons: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    crashed: Counter[str] = Counter()
    began = time.perf_counter()
    for number in numbers:
        program: Program = write(random.Random(f"{options.seed}/{number}"))
        words, found = judged(program, capturing)
        if options.only is not None:
            print(program)
            print(words or "agreed")
        agreed += words is None
        if found is not None:
            settled += found.settled
            natives += found.captured.natives
            recordings += found.captured.recordings
            breaks += len(found.captured.breaks)
            reasons.update(each.reason for each in found.captured.breaks)
            crashes += bool(found.captured.crashes)
            crashed.update(str(number) for _ in found.captured.crashes[:1])
        if words is None:
            continue
        kinds[kind_of(words)] += 1
        print(f"\nprogram {number}: {words}", flush=True)
        if found is not None and sum(kinds.values()) <= options.shown and options.only is None:
            small = made_smaller(program, kind_of(words), capturing)
            print(judged(small, capturing)[0])
            print("    " + without_head(small).replace("\n", "\n    "), flush=True)
    count = len(numbers)
    print(f"\n{count:,} programs, seed {options.seed}, {time.perf_counter() - began:,.0f} s")
    print(f"agreed: {agreed:,} of {count:,}")
    print(f"settled (the last call came from the cache): {settled:,}")
    print(f"recordings: {recordings:,}, calls that ended natively: {natives:,}, graph breaks: {breaks:,}")
    print(f"programs in which the translator crashed (and went on natively): {crashes:,} {list(crashed)[:10]}")
    for kind, times in kinds.most_common():
        print(f"    disagreement in {kind}: {times}")
    for reason, times in reasons.most_common(12):
        print(f"    break: {times:5}  {reason}")


if __name__ == "__main__":
    main()

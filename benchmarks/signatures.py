"""The table of signatures: bugs × sizes, each failure held against each other one.

    python benchmarks/signatures.py [--write] [--runner warm|fresh] [--deadline 40] [BUG...]

Every bug of `tests/bug_samples.py` is met on three programs, which differ in the number of operators around it and in
the sizes of tensors. Each program is recorded as a case and replayed; the signature is that of the outcome. Two
signatures of one bug have to match, those of two bugs must not: the exit code is 1 if the matrix is not block diagonal.
`--write` keeps the signatures for `tests/test_signatures.py`, which checks the matrix without a compiler.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import fx

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from bug_samples import BUGS, SIZES, Bug  # type: ignore[import-not-found]  # noqa: E402
from torchsleuth import torch_compat  # noqa: E402
from torchsleuth.case.recording import Recording  # noqa: E402
from torchsleuth.case.schema import Case, Compiler, Signature  # noqa: E402
from torchsleuth.case.stores.store import Store  # noqa: E402
from torchsleuth.config import After  # noqa: E402
from torchsleuth.outcome import Outcome, to_data  # noqa: E402
from torchsleuth.run.observing.signatures import signature_of  # noqa: E402
from torchsleuth.run.query import Query, Runner  # noqa: E402
from torchsleuth.run.runners.fresh import Fresh  # noqa: E402
from torchsleuth.run.runners.warm import Warm  # noqa: E402

RECORDED = TESTS / "data" / "signatures.json"


class Recorder:
    """A backend that keeps Dynamo's graph with what it is called with, and runs it eagerly."""

    def __init__(self, store: Store, backend: str) -> None:
        self.store = store
        self.backend = backend
        self.case: Case | None = None

    def __call__(self, gm: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        recording = Recording(gm, self.store.blobs, examples)

        def run(*inputs: Any) -> Any:
            self.case = recording.case(inputs, Compiler(After.DYNAMO, self.backend))
            self.store.save(self.case)
            return gm(*inputs)

        return run


def record(bug: Bug, size: int, store: Store) -> Case:
    """The program of this size as a case."""
    torch.manual_seed(0)
    torch.compiler.reset()
    function, arguments = bug.make(size)
    recorder = Recorder(store, bug.backend)
    with torch.no_grad(), torch_compat.config_patch("torch._inductor.config", dict(bug.options)):
        compiled: Any = torch.compile(function, backend=recorder, fullgraph=True)
        compiled(*arguments)
    if recorder.case is None:
        raise RuntimeError("nothing was recorded")
    return recorder.case


def query_of(bug: Bug, size: int, store: Store, deadline: float) -> Query:
    return Query(
        record(bug, size, store),
        tensors=store.home,
        accuracy=bug.kind == "mismatched",
        find_op=True,
        deadline=deadline if bug.kind == "timed out" else 300.0,
    )


def runner_of(name: str) -> Runner:
    return Fresh() if name == "fresh" else Warm()


def shown(name: str, size: int, outcome: Outcome, signature: Signature | None) -> None:
    said = str(to_data(outcome).get("reason", "")) if signature is None else ""
    words = msgspec.json.encode(signature).decode() if signature is not None else said
    print(f"{name:<20} {size}  {outcome.seconds:5.1f} s  {outcome.describe()[:100]}\n    {words[:600]}", flush=True)


def table(signatures: list[tuple[str, int, Signature | None]]) -> int:
    """Print the matrix: `#` where two match. The number of places in which it is not block diagonal."""
    print("\nmatches(origin):")
    wrong = 0
    for name, size, one in signatures:
        row = ""
        for column, (other_name, _, other) in enumerate(signatures):
            match = one is not None and other is not None and one.matches(other)
            expected = name == other_name
            wrong += match != expected
            row += (" " if column % len(SIZES) == 0 else "") + (
                "#" if match and expected else "X" if match else "!" if expected else "."
            )
        print(f"{name:<20} {size} {row}")
    total = len(signatures)
    print(f"\n{total} × {total}: {wrong} wrong (X: two bugs match; !: one bug does not)")
    return wrong


def write(found: list[tuple[str, int, Signature | None]]) -> None:
    """Keep the signatures, in place of those that were kept of the same bugs."""
    known = msgspec.json.decode(RECORDED.read_bytes()) if RECORDED.exists() else []
    names = {name for name, _, _ in found}
    data = [row for row in known if row["bug"] not in names]
    data += [{"bug": name, "size": size, "signature": one} for name, size, one in found if one is not None]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="The table of signatures.")
    parser.add_argument("bugs", nargs="*", help="only these")
    parser.add_argument("--write", action="store_true", help=f"keep the signatures in {RECORDED.name}")
    parser.add_argument("--runner", default="warm", choices=("warm", "fresh"))
    parser.add_argument("--deadline", type=float, default=40.0, help="seconds, for the bugs that hang (default 40)")
    options = parser.parse_args()
    found: list[tuple[str, int, Signature | None]] = []
    with tempfile.TemporaryDirectory(prefix="sleuth-signatures-") as folder, runner_of(options.runner) as runner:
        store = Store.open(Path(folder) / "store")
        asked = [
            (name, size, runner.submit(query_of(BUGS[name], size, store, options.deadline)))
            for name in options.bugs or BUGS
            for size in SIZES
        ]
        for name, size, answer in asked:
            outcome = answer.result()
            found.append((name, size, signature_of(outcome)))
            shown(name, size, outcome, found[-1][2])
    if options.write:
        write(found)
    return 1 if table(found) else 0


if __name__ == "__main__":
    sys.exit(main())

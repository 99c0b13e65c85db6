"""Real bugs of torch.compile, each met by `sleuth run`: does it yield a case, and of which kind?

    python benchmarks/real_bugs.py FOLDER [--export] [--verify] [--minify] [--buried] [--timeout 90] [--level 4]
                                          [--after aot] [PROGRAM...]

Every `*.py` in the folder has `make() -> (function, arguments)`; a line `# kind: ...` in it says what is known of the
bug. A driver of ten lines compiles the function and calls it once, under `sleuth run`, with a store of its own and no
compiler caches from before. The table has one line for each case that `sleuth run` names; `--export` also runs
`sleuth export` on it, which runs the script in a fresh interpreter; `--verify` runs `sleuth verify`, which replays it
in another one, too, and says what differs; `--minify` makes it small. `--buried` puts each into the middle of a
transformer of two layers first. The exit code is 1 if a program left no case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torchsleuth.case.schema import Case, Failure
from torchsleuth.case.stores.store import Store

DRIVER = """\
import importlib.util
import sys

import torch

spec = importlib.util.spec_from_file_location({name!r}, {path!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
function, arguments = module.make()
with torch.no_grad():
    torch.compile(function)(*arguments)
"""
BURIED = """\
import importlib.util
import sys

import torch
from torch import nn
from torch.nn import functional as F

spec = importlib.util.spec_from_file_location({name!r}, {path!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
function, arguments = module.make()


class Layer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def buried(hidden, *arguments):
    hidden = first(hidden)
    nothing = hidden.sum() * 0
    result = function(*(one + nothing.to(one.dtype) if tied else one for one, tied in zip(arguments, ties)))
    return second(hidden + result.float().mean().nan_to_num()), result


torch.manual_seed(0)
first, second = Layer(), Layer()
hidden = torch.randn(2, 8, 32)
function(*arguments)
ties = [one.dtype != torch.bool and one._version == 0 for one in arguments]  # unless it is written to
_, arguments = module.make()
with torch.no_grad():
    torch.compile(buried)(hidden, *arguments)
"""
HEAD = "program", "known as", "exit code", "seconds", "kind", "stage", "op", "user's line", "symptom", "graph"
SLEUTH = (sys.executable, "-m", "torchsleuth")


@dataclass(frozen=True)
class Ran:
    """What `sleuth run` did with one program."""

    program: Path
    code: int
    seconds: float
    store: str
    said: str

    def rows(self, trials: Sequence[Trial]) -> Iterator[tuple[str, ...]]:
        """A line of the table for each case, with what else was tried; one that says so, if there is none."""
        store = Store.open(self.store)
        start = self.program.stem, known_as(self.program), str(self.code), f"{self.seconds:.0f}"
        cases = {entry.id: store.load(entry.id) for entry in store.entries()}
        around = {case.origin.parent for case in cases.values()}  # of a case and what it came from, it is named alone
        for id, case in cases.items():
            if id not in around:
                tried = (trial(id, self.store) for trial in trials)
                yield (*start, *described(case, self.program.parent), *tried)
        if not cases:
            yield (*start, "no case", *[""] * (len(HEAD) - len(start) - 1 + len(trials)))


@dataclass(frozen=True)
class Trial:
    """Runs a command on a case, and says in a few words what became of it."""

    head: ClassVar[str]
    timeout: float
    environ: Mapping[str, str]

    def __call__(self, case: str, store: str) -> str:
        asked = [*SLEUTH, *self.command(case, store), "--store", store, "--json"]
        began = time.monotonic()
        ran = subprocess.run(asked, capture_output=True, text=True, env=self.environ)
        try:
            told = json.loads(ran.stdout)
        except ValueError:
            return f"failed: {(ran.stderr.strip().splitlines() or ['exit code ' + str(ran.returncode)])[0]}"
        if "error" in told:
            return f"failed: {told['error']['what']}"
        return f"{self.words(told)}, {time.monotonic() - began:.0f} s"

    def command(self, case: str, store: str) -> tuple[str, ...]:
        raise NotImplementedError

    def words(self, told: dict[str, Any]) -> str:
        raise NotImplementedError


class Exported(Trial):
    head = "exported script"

    def command(self, case: str, store: str) -> tuple[str, ...]:
        script = Path(store).parent / "exported" / f"{case}.py"
        script.parent.mkdir(exist_ok=True)
        return "export", case, "--output", str(script), "--timeout", f"{self.timeout:g}"

    def words(self, told: dict[str, Any]) -> str:
        if told.get("reproduces"):
            return f"reproduces (inputs {told['inputs']})"
        return "no: " + (told.get("not_run") or f"{told.get('seen')}")


class Minified(Trial):
    head = "sleuth minify"

    def command(self, case: str, store: str) -> tuple[str, ...]:
        return "minify", case

    def words(self, told: dict[str, Any]) -> str:
        before, after = told["before"], told["after"]
        verified = "verified" if told["verified"] else "NOT verified"
        size = f"{after['operators']} ops, {after['inputs']} inputs, {after['elements']} elements"
        return f"{before['operators']} ops → {size}, {told['queries']} queries, {verified}"


class Verified(Trial):
    head = "sleuth verify"

    def command(self, case: str, store: str) -> tuple[str, ...]:
        return "verify", case

    def words(self, told: dict[str, Any]) -> str:
        found = [f"{one['kind']}: {one['words']}" for one in told["findings"]]
        return "; ".join((told["words"], *told["notes"], *found))


def known_as(program: Path) -> str:
    lines = program.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("# kind:").strip() for line in lines if line.startswith("# kind:")), "")


def described(case: Case, folder: Path) -> tuple[str, ...]:
    failure, graph = case.failure, case.origin.graph
    if failure is None:
        return "no failure", "", "", "", "", graph
    found = failure.signature
    kind = found.kind if found.signal is None else f"{found.kind} (signal {found.signal})"
    return kind, str(found.stage), found.op or "", line_of(failure, folder), symptom_of(failure), graph


def line_of(failure: Failure, folder: Path) -> str:
    """The user's line, by the name that the file has in the folder."""
    frame = failure.frame
    if frame is None:
        return ""
    file = Path(frame.file)
    return f"{file.relative_to(folder) if file.is_relative_to(folder) else file.name}:{frame.line}"


def symptom_of(failure: Failure) -> str:
    """In what it differs, and where; or the type of the exception."""
    found = failure.signature
    if found.symptom is not None:
        return f"{found.symptom} at {failure.path}" if failure.path else str(found.symptom)
    return found.types[-1].rpartition(".")[2] if found.types else ""


def run(program: Path, folder: Path, options: argparse.Namespace, environ: Mapping[str, str]) -> Ran:
    driver, store = folder / "driver.py", folder / "store"
    folder.mkdir()
    driver.write_text(
        (BURIED if options.buried else DRIVER).format(name=program.stem, path=str(program)), encoding="utf-8"
    )
    watched = ("--after", options.after) if options.after else ()
    asked = ("--level", options.level, *watched, "--timeout", f"{options.timeout:g}")
    began = time.monotonic()
    ran = subprocess.run(
        [*SLEUTH, "run", *asked, "--store", str(store), str(driver)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environ,
    )
    return Ran(program, ran.returncode, time.monotonic() - began, str(store), ran.stderr)


def show(cells: tuple[str, ...]) -> None:
    print("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run `sleuth run` on a folder of real bugs.")
    parser.add_argument("folder", nargs="?", type=Path, help="programs with make() -> (function, arguments)")
    parser.add_argument("programs", nargs="*", help="only these, by name")
    parser.add_argument("--export", action="store_true", help="also: does the exported script reproduce it?")
    parser.add_argument("--verify", action="store_true", help="also: what does `sleuth verify` say?")
    parser.add_argument("--minify", action="store_true", help="also: what does `sleuth minify` make of it?")
    parser.add_argument("--buried", action="store_true", help="each in the middle of a transformer of two layers")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for each run (default 90)")
    parser.add_argument("--level", default="4")
    parser.add_argument("--after", help="what is watched; by default what `sleuth run` watches by default")
    parser.add_argument("--verbose", action="store_true", help="also print the end of what `sleuth run` said")
    options = parser.parse_intermixed_args()
    if options.folder is None:
        print("no folder was named, so there is nothing to do: real_bugs.py FOLDER")
        return 0
    programs = sorted(path.resolve() for path in options.folder.glob("*.py"))
    if options.programs:
        programs = [path for path in programs if path.stem in options.programs]
    with tempfile.TemporaryDirectory(prefix="sleuth-real-bugs-") as name:
        folder = Path(name)
        environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        kinds = (Exported, options.export), (Verified, options.verify), (Minified, options.minify)
        wanted = [kind for kind, asked in kinds if asked]
        trials = [kind(options.timeout, environ) for kind in wanted]
        head = (*HEAD, *(trial.head for trial in trials))
        show(head)
        show(("---",) * len(head))
        without = []
        for program in programs:
            ran = run(program, folder / program.stem, options, environ)
            if options.verbose:
                print("\n".join(ran.said.strip().splitlines()[-12:]), file=sys.stderr, flush=True)
            for row in ran.rows(trials):
                show(row)
                if "no case" in row:
                    without.append(program.stem)
    print(f"\n{len(programs) - len(without)} of {len(programs)} programs left a case", *without)
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())

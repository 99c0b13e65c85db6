"""The command analyze: each intermediate result of compiled code beside what eager and fp64 compute there.

Inductor's code tells what it computes, by the name of the node, where it can: not out of the kernels that it generates
for the CPU. What it does not tell is taken from a second compilation, in which everything that is computed is returned.
All of it is kept in the folder of the script; then eager runs node by node, and each is compared. What does not repeat
itself from one run to the next is told as well, since then a difference says little.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.hub import tqdm  # type: ignore[attr-defined]

from torchsleuth import torch_compat
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.compare.rng import preserved
from torchsleuth.dropin.accuracy import same
from torchsleuth.dropin.content_store import ContentStoreReader, ContentStoreWriter
from torchsleuth.dropin.debug_utils import cast_to_fp64

Compile = Callable[[fx.GraphModule], Callable[[list[Any]], Any]]
"""Makes a function of a graph that takes one list."""


def analyse(gm: fx.GraphModule, args: Sequence[Any], compile: Compile, options: Any) -> None:
    """Print a line for whatever differs, and for whatever does not repeat itself."""
    if options.save_dir is None:
        raise AssertionError("analyze keeps intermediate results on the disk: name a folder with --save-dir")
    _Analysis(gm, args, compile, options).run()


class _Analysis:
    def __init__(self, gm: fx.GraphModule, args: Sequence[Any], compile: Compile, options: Any) -> None:
        self._gm = gm
        self._args = args
        self._compile = compile
        self._options = options
        self._writer = ContentStoreWriter(options.save_dir, stable_hash=options.stable_hash)
        self._reader = ContentStoreReader(options.save_dir)
        self._told: dict[str, Any] = {}
        """What was told of each node: its metadata."""

    def run(self) -> None:
        before = torch_compat.intermediates_told()
        shown, names = _showing_all(self._gm)
        with tqdm(desc="Compiling"):
            telling, returning = self._compile(self._gm), self._compile(shown)
        total = torch_compat.intermediates_told() - before + len(names)
        with preserved() as start:
            self._run_compiled("Saving inductor intermediates", total, telling, returning, names, self._save)
            if not self._options.skip_check_deterministic:
                start.restore()
                self._run_compiled("Checking inductor determinism", total, telling, returning, names, self._repeat)
            start.restore()
            fp64 = self._in_fp64(len(self._told))
            if fp64 is not None and not self._options.skip_check_deterministic:
                start.restore()
                self._repeat_fp64(fp64, len(self._told))
            start.restore()
            self._compare(fp64, len(self._told))

    # ---- compiled --------------------------------------------------------------------------------------------

    def _run_compiled(
        self,
        words: str,
        total: int,
        telling: Callable[[list[Any]], Any],
        returning: Callable[[list[Any]], Any],
        names: Sequence[str],
        look: Callable[[Any, str, torch.Tensor], None],
    ) -> None:
        """Show each result: as the code tells it, or else as it is returned."""
        seen: set[str] = set()
        with tqdm(desc=words, total=total) as bar:

            def told(name: str, value: Any) -> None:
                bar.update(1)
                if isinstance(value, torch.Tensor) and name not in seen:
                    seen.add(name)
                    look(bar, name, value)

            with torch_compat.intermediate_hook(told):
                telling(clone_inputs(self._args))
            for name, value in zip(names, returning(clone_inputs(self._args)), strict=True):
                told(name, value)

    def _save(self, _bar: Any, name: str, value: torch.Tensor) -> None:
        self._told[name] = self._writer.compute_tensor_metadata(value)
        if not self._options.skip_saving_inductor_intermediates:  # then they are there from an earlier time
            self._writer.write_tensor(f"inductor/{name}", value)

    def _repeat(self, bar: Any, name: str, value: torch.Tensor) -> None:
        reason = _difference(self._writer.compute_tensor_metadata(value), self._told[name])
        if reason:
            bar.write(f"NONDETERMINISTIC INDUCTOR at {name} ({reason})")

    # ---- fp64 ------------------------------------------------------------------------------------------------

    def _in_fp64(self, total: int) -> dict[str, Any] | None:
        """What each node is in fp64: its metadata. None if that is not wanted, or cannot be had."""
        if self._options.skip_saving_float64_intermediates:
            return None
        found: dict[str, Any] = {}

        def keep(name: str, value: torch.Tensor) -> None:
            found[name] = self._writer.compute_tensor_metadata(value)
            self._writer.write_tensor(f"float64/{name}", value)

        with tqdm(desc="Saving float64 intermediates", total=total) as bar:
            try:
                self._run_fp64(keep, bar)
            except Exception as error:  # noqa: BLE001 - then eager is all that there is to compare with
                bar.write(f"NO FLOAT64 REFERENCE ({type(error).__name__}: {error})")
                return None
        return found

    def _repeat_fp64(self, known: dict[str, Any], total: int) -> None:
        with tqdm(desc="Checking float64 determinism", total=total) as bar:

            def look(name: str, value: torch.Tensor) -> None:
                reason = _difference(self._writer.compute_tensor_metadata(value), known[name])
                if reason:
                    bar.write(f"NONDETERMINISTIC FLOAT64 at {name} ({reason})")

            self._run_fp64(look, bar)

    def _run_fp64(self, look: Callable[[str, torch.Tensor], None], bar: Any) -> None:
        wide, inputs = cast_to_fp64(copy.deepcopy(self._gm), clone_inputs(self._args))
        _Looking(wide, self._told, look, bar).run(*inputs)

    # ---- eager -----------------------------------------------------------------------------------------------

    def _compare(self, fp64: dict[str, Any] | None, total: int) -> None:
        with tqdm(desc="Checking divergence", total=total) as bar:

            def look(name: str, value: torch.Tensor) -> None:
                inductor = self._reader.read_tensor(f"inductor/{name}")
                exact = self._reader.read_tensor(f"float64/{name}") if fp64 and name in fp64 else None

                def differs(message: str, *details: Any) -> None:
                    bar.write(f"DIVERGED at {name}: {message % details}")

                tolerance = torch_compat.dynamo_config().repro_tolerance
                same(value, inductor, exact, tol=tolerance, equal_nan=True, log_error=differs)

            _Looking(self._gm, self._told, look, bar).run(*clone_inputs(self._args))


def _showing_all(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[str]]:
    """The graph, returning every tensor that it computes; and the names of those, in order."""
    shown = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    nodes = [node for node in shown.graph.nodes if node.op == "call_function" and _is_tensor(node)]
    output = next(node for node in shown.graph.nodes if node.op == "output")
    output.args = (tuple(nodes),)
    shown.recompile()
    return shown, [node.name for node in nodes]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


class _Looking(fx.Interpreter):
    """Runs a graph, and shows what nodes compute of which something is known."""

    def __init__(
        self, gm: torch.nn.Module, known: dict[str, Any], look: Callable[[str, torch.Tensor], None], bar: Any
    ) -> None:
        super().__init__(gm)
        self._known = known
        self._look = look
        self._bar = bar

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self._known and isinstance(result, torch.Tensor):
            self._bar.update(1)
            self._look(n.name, result)
        return result


def _difference(one: Sequence[Any], other: Sequence[Any]) -> str:
    return " and ".join(f"{a} != {b}" for a, b in zip(one, other, strict=True) if a != b)

"""Graphs of the corpus, kept as cases by one process and taken up again by another.

    python round_trip.py write FOLDER PROGRAM...     run the programs, keep each graph as a case
    python round_trip.py read FOLDER                 in a fresh process: a line of JSON for each case

Beside each case the writer leaves what the original graph computed and the code that Inductor made of the original; the
reader holds its own against that. Only the code is wanted, so g++ is never called.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # see conftest.py

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx_inner

import corpus
from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording, Where, arguments
from torchsleuth.case.stores.store import Store
from torchsleuth.case.surroundings.state import restored
from torchsleuth.config import After


def write(folder: Path, names: list[str], after: str = "aot") -> None:
    """Keep every graph of the programs as a case in a store in the folder."""
    store = Store.open(folder / "store")

    def on_graph(found: corpus.Captured) -> None:
        found.extra["recording"] = Recording(found.gm, store.blobs, found.example_inputs)
        if after == "aot":
            found.extra["code"] = generated(found.gm, found.example_inputs, found.arguments)

    def on_call(found: corpus.Captured, args: list[Any]) -> None:
        compiler = schema.Compiler(After(after), "inductor", arguments=arguments(found.arguments))
        case = found.extra["recording"].case(args, compiler, where=Where(found.phase))
        entry = store.save(case, label=found.name)
        (folder / f"{found.name}.code").write_text(found.extra.get("code", ""))
        found.extra["id"] = entry.id

    def on_result(found: corpus.Captured, result: Any) -> None:
        torch.save(result, folder / f"{found.name}.results")

    for name in names:
        corpus.capture(name, corpus.PROGRAMS[name](), on_graph, on_call, on_result, after=after)


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Take up every case again, run it and compile it; say what is as it was."""
    store = Store.open(folder / "store")
    for entry in store.entries():
        (name,) = entry.labels
        try:
            yield {"name": name, **_compared(store, name, folder)}
        except Exception as error:  # noqa: BLE001 - a line of the table, with its reason
            yield {"name": name, "error": f"{type(error).__name__}: {error}"}


def _compared(store: Store, name: str, folder: Path) -> dict[str, Any]:
    case = store.load(name)
    reader = GraphReader(case, store.blobs)
    gm = reader.read()
    args = reader.inputs()
    expected = torch.load(folder / f"{name}.results", weights_only=False)
    fakes = reader.examples(gm)
    with restored(case.state):
        ran = gm(*args)
    code = (folder / f"{name}.code").read_text()
    again = ""
    if case.compiler.after is After.AOT:
        given = {each.name: reader.values.decode(each.value, each.name) for each in case.compiler.arguments}
        with restored(case.state), torch_compat.tracing(reader.fakes.mode, case.origin.aot_name, case.compiler.donated):
            again = generated(gm, fakes, given)
    return {
        "nodes": len(case.graph.nodes),
        "bitwise": bitwise(expected, (ran, args)),
        "code": normalised(code) == normalised(again),
        "lines": code.count("\n"),
        "canonical": encode(decode(encode(case))) == encode(case),
        "difference": "" if normalised(code) == normalised(again) else _first_difference(code, again),
    }


def _first_difference(one: str, other: str) -> str:
    for left, right in zip(normalised(one).splitlines(), normalised(other).splitlines(), strict=False):
        if left != right:
            return f"{left.strip()!r} became {right.strip()!r}"
    return "one is longer than the other"


def bitwise(one: Any, other: Any) -> bool:
    """Whether two nests of tensors are the same, bit for bit, strides included."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.stride() == other.stride()
            and _bytes(one) == _bytes(other)
        )
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(bitwise, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(
        tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    )
    return flat.view(torch.uint8).numpy().tobytes()


# ---- Inductor's code without the compiler ----------------------------------------------------------------


def generated(gm: torch.fx.GraphModule, inputs: list[Any], given: dict[str, Any]) -> str:
    """The code that Inductor generates for a graph, or why it does not."""
    given = {name: value for name, value in given.items() if name not in ("cudagraphs", "boxed_forward_device_index")}
    with torch.utils._python_dispatch._disable_current_modes():
        gm = copy.deepcopy(gm)
    with _nothing_compiled():
        try:
            made = compile_fx_inner(gm, inputs, **given)
        except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same again
            return f"{type(error).__name__}: {error}"
    return str(getattr(made, "source_code", made))


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    def skip(self: Any, *args: Any, **kwargs: Any) -> Any:
        return lambda *a, **k: None

    names = ("cpp_pybinding", "cpp")
    before = {name: getattr(AsyncCompile, name) for name in names}
    for name in names:
        setattr(AsyncCompile, name, skip)
    try:
        with inductor_config.patch(fx_graph_cache=False, force_disable_caches=True):
            yield
    finally:
        for name, function in before.items():
            setattr(AsyncCompile, name, function)


def normalised(code: str) -> str:
    """The code without what differs from process to process: paths of temporary files and of caches, and addresses.

    One kind of address has no 0x before it: the end of a comment on a constant, its device, dtype, size and stride.
    """
    code = re.sub(r"^(\w+ = None  # device\(.*\) )[0-9a-f]+$", r"\1…", code, flags=re.MULTILINE)
    return re.sub(r"(/tmp|/var)/[\w./-]*|kernel path: .*|0x[0-9a-f]+", "…", code)


if __name__ == "__main__":
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "write":
        write(where, sys.argv[4:], after=sys.argv[3])
    else:
        for row in read(where):
            print(json.dumps(row), flush=True)

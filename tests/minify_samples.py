"""A case to minify, and a test for it that looks at the script and runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.config import After
from torchsleuth.outcome import Stage

LOWERING = "torch._inductor.exc.LoweringException"
FAILURE = schema.Failure(schema.Signature("raised", Stage.LOWERING, (LOWERING,), "no lowering"), message="no lowering")


def long_one(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eleven operators; `tanh` and `cos` are the ones that matter in most tests."""
    a = torch.relu(x @ w)
    c = torch.sin(a) + b
    d = torch.tanh(c) * torch.exp(b)
    return torch.cos(d).sum(0), torch.sigmoid(c) - b


def longer_one(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """With `tanh` at the beginning, `cos` at the end, and a good deal between them."""
    a = torch.tanh(x @ w)
    for _ in range(20):
        a = torch.sin(a) + torch.exp(b)
    return torch.cos(a).sum(0)


def long_case(
    store: Store, failure: schema.Failure | None = FAILURE, program: Callable[..., object] = long_one
) -> Found:
    torch.manual_seed(0)
    inputs = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
    gm = make_fx(program, tracing_mode="fake")(*inputs)
    fakes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    recording = Recording(gm, store.blobs, fakes)
    compiler = schema.Compiler(After.AOT, "aot_eager")
    case = recording.case(inputs, compiler, state=schema.State(), failure=failure, stable=True)
    return store.find(store.save(case).id)


def targets(case: schema.Case) -> list[str]:
    """The operators of a case, without their namespace."""
    return [node.target.split(".")[3] for node in case.graph.nodes if node.op == "call_function"]


def check(folder: Path, more: str = "", found: str = "1") -> str:
    """A test that fails if `tanh` and `cos` are in the script. It writes down what it was asked about in `log`."""
    path = folder / "check.sh"
    path.write_text(
        f"""#!/bin/sh
{more}
code=0
grep -q aten.tanh "$1" && grep -q aten.cos "$1" && code={found}
cksum "$SLEUTH_CASE/case.json" | cut -d' ' -f1,2 >> {folder}/log
exit $code
"""
    )
    path.chmod(0o755)
    return str(path)


def asked(folder: Path) -> list[str]:
    """What the test was asked about, case by case."""
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []

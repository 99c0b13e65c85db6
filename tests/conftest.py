"""What every test shares."""

from __future__ import annotations

import os
import sys

import pytest

# Some virtual machines announce AMX and then do not execute it: bf16 matrix products of eager torch die there of
# an illegal instruction. oneDNN reads this when it is first used, so it must be set before any test runs.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Tests run side by side, a process a core. With a pool of threads in each, they would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _without_history() -> None:
    """Each test begins as a process does that has compiled nothing: a failure lists what was compiled before it."""
    history = sys.modules.get("torchsleuth.capture.history")
    if history is not None:
        history.PROCESS.clear()

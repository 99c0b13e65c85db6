"""The machine that something was recorded on, in a few words: what code is generated depends on it."""

from __future__ import annotations

import platform

import torch


def machine() -> str:
    """System, architecture, and the vector instructions that torch uses on it: "Linux x86_64 AVX512"."""
    return f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"

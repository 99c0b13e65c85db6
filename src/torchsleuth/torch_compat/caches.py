"""What Inductor keeps in a process and on the disk besides what `torch.compiler.reset` forgets."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Final

from torchsleuth.torch_compat.names import NAMES, resolve

_HEADERS: Final = "header_folder"


def forget_compiled() -> None:
    """Forget the code that Inductor has loaded into this process, if it was ever used."""
    if NAMES["clear_inductor_caches"].module in sys.modules:
        resolve("clear_inductor_caches")()


def keep_headers_in(folder: str) -> None:
    """From now on, Inductor keeps headers that it precompiles there. It decides that once, when it is imported."""
    name = NAMES[_HEADERS]
    for key, value in ((_HEADERS, folder), ("header_locks", os.path.join(folder, "locks"))):
        resolve(key)
        setattr(sys.modules[name.module], NAMES[key].attribute, value)


def import_inductor() -> None:
    """All of Inductor that a first graph would have imported."""
    resolve("inductor_main")


def processor_probe() -> Callable[[], object]:
    """How Inductor finds out what the processor can do, which it does once in a process, by means of others.

    What it needs for that is imported now, so that it may be called beside an import of more.
    """
    resolve("header_folder")
    importlib.import_module("torch.utils.cpp_extension")
    probe: Callable[[], object] = resolve("probe_processor")
    return probe

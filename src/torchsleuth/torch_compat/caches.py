"""What Inductor keeps in a process and on the disk besides what `torch.compiler.reset` forgets."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

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


def import_dynamo() -> None:
    """All of Dynamo, which fakes need as soon as sizes are looked at: for those who would have to wait anyway."""
    resolve("dynamo_optimize")


def processor_probe(note: str) -> Callable[[], object]:
    """How Inductor finds out what the processor can do, which it does once in a process, by means of others.

    What it needs for that is imported now, so that it may be called beside an import of more. That a library can be
    loaded on this machine is noted in a file beside it (its name, `note`, and which start of the machine it was), and
    not tried again until the machine is started anew.
    """
    resolve("header_folder")
    importlib.import_module("torch.utils.cpp_extension")
    feature, start = resolve("processor_feature"), _start_of_machine()
    tried: Callable[[Any, str], bool] | None = getattr(feature, "_probe_load", None)
    if tried is not None and start:

        def loads(self: Any, library: str) -> bool:
            noted = Path(f"{library}{note}{start}")
            if noted.exists():
                return True
            found = tried(self, library)
            if found:
                with suppress(OSError):
                    noted.touch()
            return found

        feature._probe_load = loads
    probe: Callable[[], object] = resolve("probe_processor")
    return probe


def _start_of_machine() -> str:
    """What tells this start of this machine from any other; "" where nobody knows."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

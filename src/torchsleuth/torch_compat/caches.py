"""What Inductor keeps in a process and on the disk besides what `torch.compiler.reset` forgets."""

from __future__ import annotations

import os
import sys
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

"""An exception as an outcome. Nothing here raises, whatever the exception is."""

from __future__ import annotations

import re
from typing import Final

import torch

from torchsleuth.case.failures import frames_of, links, message_of, root_words, traceback_of, type_names
from torchsleuth.outcome import Raised, Stage
from torchsleuth.run.observing.stages import Located, locate

_NO_MEMORY: Final = re.compile(
    r"can't allocate memory|not enough memory|Cannot allocate memory|std::bad_alloc|virtual memory exhausted"
    r"|error: out of memory|\bout of memory\b[^\n]*\b(?:allocat|bytes)",
    re.IGNORECASE,
)
"""How allocators say it that have no type of their own for it: torch's on the CPU, C++, the C++ compiler, fork."""


def raised(error: BaseException, default: Stage) -> Raised:
    """The outcome that an exception is. `default` is the stage, if the exception itself does not tell."""
    return raised_at(error, locate(error, default=default))


def raised_at(error: BaseException, found: Located) -> Raised:
    """The same, for those who know already where it came from."""
    return Raised(
        found.stage,
        type_chain=type_names(error),
        message=message_of(error),
        cause=root_words(error),
        traceback=traceback_of(error),
        frames=frames_of(error),
        op=found.op,
        node=found.node,
        kernel=found.kernel,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, says that there is no memory left."""
    if type_names(error)[-1].endswith("MemoryError"):  # also one that was raised in another process
        return True
    for one in links(error):
        if isinstance(one, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(one, (RuntimeError, OSError)) and _NO_MEMORY.search(message_of(one)):
            return True
    return False

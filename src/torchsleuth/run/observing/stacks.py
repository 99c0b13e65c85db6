"""Stacks as text: what faulthandler wrote of a process that died or was stopped.

stacks_of(dump)         the stacks of the threads, innermost call first
frames_of_dump(dump)    the functions of torch on the one that failed
"""

from __future__ import annotations

import re
from typing import Final

from torchsleuth.case.failures import ALL_FRAMES
from torchsleuth.torch_compat.stages import calls_in, phase_of

_LINE: Final = re.compile(r'File "(?P<file>[^"\n]+)", line (?:\d+|\?\?\?) in (?P<function>[^\n]+)')
_THREAD: Final = re.compile(
    r"^(?P<current>Current t|T)hread 0x[0-9a-f]+ .*$|^Stack \(most recent call first\).*$", re.M
)

Stack = list[tuple[str, str]]
"""(file, function), innermost first."""


def is_dump(text: str) -> bool:
    """Whether this is faulthandler's work, and not a traceback."""
    return _LINE.search(text) is not None


def stacks_of(dump: str) -> list[Stack]:
    """The stack of the thread that failed. If it had no Python, or is not named, those of all threads."""
    heads = list(_THREAD.finditer(dump))
    ends = [*(head.start() for head in heads), len(dump)][1:]
    stacks = [
        (head["current"] == "Current t", _read(dump[head.end() : end])) for head, end in zip(heads, ends, strict=True)
    ]
    failed = [stack for is_current, stack in stacks if is_current and stack]
    return failed or [stack for _, stack in stacks if stack] or [_read(dump)]


def frames_of_dump(dump: str) -> tuple[str, ...]:
    """The functions of torch that were being called, innermost first, each once, as `module:function`."""
    # Threads of torch's own that wait for work are in no stage.
    stacks = sorted(stacks_of(dump), key=lambda stack: all(phase_of(*call) is None for call in stack))
    found = (calls_in(stack, ALL_FRAMES) for stack in stacks)
    return next((frames for frames in found if frames), ())


def _read(text: str) -> Stack:
    return [(line["file"], line["function"].strip()) for line in _LINE.finditer(text)]

"""Where in the compiler a failure came from: the stage, and as far as known the operator and the user's line.

    locate(error, default=Stage.UNKNOWN)          from an exception
    locate_stack(dump, default=Stage.UNKNOWN)     from text: what faulthandler wrote, or a traceback

Both walk the stack from outside in and note every phase of the compiler that begins on the way
(`torch_compat.stages`): the last one is the stage. An exception is followed to those behind it, since torch raises its
own in the place of the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from traceback import walk_tb
from typing import Final

from torchsleuth.case.failures import chain, is_aside
from torchsleuth.case.schema import Frame
from torchsleuth.outcome import Stage
from torchsleuth.run.observing.stacks import is_dump, stacks_of
from torchsleuth.torch_compat.stages import DECISIVE, ERROR_STAGES, REMOTE_TRACEBACKS, phase_of, place

_IN_TRACEBACK: Final = re.compile(r'File "(?P<file>[^"\n]+)", line \d+, in (?P<function>[^\n]+)')
_BEHIND: Final = re.compile(r"^[ |]*(?P<cause>The above exception was the direct cause)|^[ |]*During handling of", re.M)


@dataclass(frozen=True)
class Located:
    """Where a failure came from."""

    stage: Stage
    op: str | None = None
    """The guilty operator: `aten.cumsum.default`, or a function's name in a graph of Dynamo's."""
    node: str | None = None
    """The name of the guilty node in the graph that was being compiled."""
    frame: Frame | None = None
    """The user's own line."""
    kernel: str = ""
    """The operators of the kernel that is at fault, as its name has them."""


def locate(error: BaseException, *, default: Stage) -> Located:
    """Where an exception came from. Never raises: what cannot be found out stays unsaid."""
    stage = default
    try:
        stage = _stage_of(error) or default
        from torchsleuth.run.observing.guilty import find

        guilty = find(error, stage)
        return Located(stage, guilty.op, guilty.node, guilty.frame, guilty.kernel)
    except Exception:  # noqa: BLE001 - the user's error is what counts, and it is being handled
        return Located(stage)


def locate_stack(text: str, *, default: Stage) -> Stage:
    """The stage in which a process was, by faulthandler's dump (most recent call first) or a traceback (last)."""
    if is_dump(text):
        return _stage_of_dump(text) or default
    return _stage_of_traceback(text) or default


# ---- exceptions ------------------------------------------------------------------------------------------


def _stage_of(error: BaseException) -> Stage | None:
    """The innermost phase. What was merely being handled when an exception was raised counts if nothing else does."""
    stage: Stage | None = None
    by_type: Stage | None = None
    before: BaseException | None = None
    for one in chain(error):
        if stage is not None and before is not None and is_aside(one, before):
            break
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(one).__mro__]
        for name in names:
            if name in DECISIVE:
                return DECISIVE[name]
        stage = _deepest(_calls(one), stage)
        if names[0] in REMOTE_TRACEBACKS:
            stage = _deepest(_read(str(one)), stage)
        if by_type is None:
            by_type = next((ERROR_STAGES[name] for name in names if name in ERROR_STAGES), None)
        before = one
    return stage or by_type


def _calls(error: BaseException) -> Iterator[tuple[str, str]]:
    for frame, _ in walk_tb(error.__traceback__):
        yield place(frame)


def _deepest(calls: Iterable[tuple[str, str]], stage: Stage | None = None) -> Stage | None:
    """The last phase that begins in these calls, from outside in. `stage` is where they begin."""
    for file, function in calls:
        phase = phase_of(file, function)
        if phase is not None and (phase.within is None or stage in phase.within):
            stage = phase.stage
    return stage


# ---- text ------------------------------------------------------------------------------------------------


def _read(text: str) -> Iterator[tuple[str, str]]:
    for match in _IN_TRACEBACK.finditer(text):
        yield match["file"], match["function"].strip()


def _stage_of_dump(text: str) -> Stage | None:
    """The stage of the thread that failed; if the dump does not say which, of one that was compiling or running."""
    stages = (_deepest(reversed(stack)) for stack in stacks_of(text))
    return next((stage for stage in stages if stage is not None), None)


def _stage_of_traceback(text: str) -> Stage | None:
    """As for exceptions. Python prints the innermost exception first."""
    breaks = list(_BEHIND.finditer(text))
    starts = [0, *(found.end() for found in breaks)]
    ends = [*(found.start() for found in breaks), len(text)]
    causes = [*(found["cause"] is not None for found in breaks), True]
    stage: Stage | None = None
    for start, end, is_cause in reversed(list(zip(starts, ends, causes, strict=True))):
        if stage is not None and not is_cause:
            break
        stage = _deepest(_read(text[start:end]), stage)
    return stage

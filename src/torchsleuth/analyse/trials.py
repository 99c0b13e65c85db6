"""One step of a search, tried: torch is told what to leave out, and it is noted what torch says on the way.

trial = Trial(step)
with torch_compat.bisector_answers(trial):
    passed = fn()
trial.seen
"""

from __future__ import annotations

from collections.abc import Callable

from torchsleuth.analyse.parts import Option, find_part
from torchsleuth.analyse.searching import Seen, Step


class Trial:
    """What torch is told at one step (see `torch_compat.Answers`)."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._count = 0
        self._infos: dict[int, str] = {}
        last = step.last
        self._described = (0,) if last is None else (last, last + 1)
        """Whatever this step says, the number that is looked for can be no other, if this is the last step."""

    @property
    def seen(self) -> Seen:
        return Seen(self._count, dict(self._infos))

    @property
    def backend(self) -> str:
        return self.step.backend

    @property
    def subsystem(self) -> str | None:
        return self.step.subsystem

    def config_change(self, backend: str) -> dict[str, object] | None:
        if backend != self.step.backend or self.step.subsystem is None:
            return None
        part = find_part(backend, self.step.subsystem)
        return {part.option: part.value} if isinstance(part, Option) else None

    def disables(self, backend: str, subsystem: str, debug_info: Callable[[], str] | None) -> bool:
        if (backend, subsystem) != (self.step.backend, self.step.subsystem):
            return False
        number = self._count
        self._count += 1
        self.noted(number, debug_info() if debug_info is not None and number in self._described else None)
        return self.step.last is not None and number > self.step.last

    def noted(self, number: int, info: str | None) -> None:
        """An application of the subsystem that is looked at, and what it is about, if that may matter."""
        if info is not None:
            self._infos[number] = info

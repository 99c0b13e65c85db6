"""torchsleuth: find out what torch.compile did to your program.

    from torchsleuth import judge

    print(judge(model, torch.compile(model), [x]))

Names are loaded when they are first used, because importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchsleuth.compare import (
        Comparison as Comparison,
        Judgement as Judgement,
        Tolerance as Tolerance,
        Verdict as Verdict,
        judge as judge,
        same as same,
        same_two_models as same_two_models,
    )
    from torchsleuth.errors import AccuracyError as AccuracyError, SleuthError as SleuthError

__version__ = "0.1.0"

_HOMES = {
    "AccuracyError": "errors",
    "Comparison": "compare",
    "Judgement": "compare",
    "SleuthError": "errors",
    "Tolerance": "compare",
    "Verdict": "compare",
    "judge": "compare",
    "same": "compare",
    "same_two_models": "compare",
}

__all__ = [
    "AccuracyError",
    "Comparison",
    "Judgement",
    "SleuthError",
    "Tolerance",
    "Verdict",
    "__version__",
    "judge",
    "same",
    "same_two_models",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchsleuth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"torchsleuth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""torchsleuth: find out what torch.compile did to your program.

    from torchsleuth import judge, watch

    model = torch.compile(model, backend=watch("inductor"))     what fails is kept as a case
    print(judge(model, torch.compile(model), [x]))              a bug, or noise?

Names are loaded when they are first used, because importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchsleuth.capture.backends import watch as watch
    from torchsleuth.capture.compilers import wrap_compiler_debug as wrap_compiler_debug
    from torchsleuth.capture.installing import installed as installed
    from torchsleuth.case.failures import raised as raised
    from torchsleuth.case.recording import Recording as Recording
    from torchsleuth.case.schema import Case as Case, Compiler as Compiler, Failure as Failure
    from torchsleuth.case.stores.store import Store as Store
    from torchsleuth.compare import (
        Comparison as Comparison,
        Judgement as Judgement,
        Tolerance as Tolerance,
        Verdict as Verdict,
        judge as judge,
        same as same,
        same_two_models as same_two_models,
    )
    from torchsleuth.config import After as After
    from torchsleuth.errors import (
        AccuracyError as AccuracyError,
        CaseError as CaseError,
        SleuthError as SleuthError,
    )
    from torchsleuth.frontend.testimony import Testimony as Testimony
    from torchsleuth.frontend.witness import witness as witness
    from torchsleuth.reduce.minifying import Reduction as Reduction, Terms as Terms, minify as minify
    from torchsleuth.reduce.problem import Budget as Budget
    from torchsleuth.run.fidelity import Fidelity as Fidelity, verify as verify
    from torchsleuth.run.replay import replay as replay
    from torchsleuth.run.runners.fresh import Fresh as Fresh
    from torchsleuth.run.runners.in_process import InProcess as InProcess
    from torchsleuth.run.runners.warm import Warm as Warm

__version__ = "0.1.0"

_HOMES = {
    "AccuracyError": "errors",
    "After": "config",
    "Budget": "reduce.problem",
    "Case": "case.schema",
    "CaseError": "errors",
    "Comparison": "compare",
    "Compiler": "case.schema",
    "Failure": "case.schema",
    "Fidelity": "run.fidelity",
    "Fresh": "run.runners.fresh",
    "InProcess": "run.runners.in_process",
    "Judgement": "compare",
    "Recording": "case.recording",
    "Reduction": "reduce.minifying",
    "SleuthError": "errors",
    "Store": "case.stores.store",
    "Terms": "reduce.minifying",
    "Testimony": "frontend.testimony",
    "Tolerance": "compare",
    "Verdict": "compare",
    "Warm": "run.runners.warm",
    "installed": "capture.installing",
    "judge": "compare",
    "minify": "reduce.minifying",
    "raised": "case.failures",
    "replay": "run.replay",
    "same": "compare",
    "same_two_models": "compare",
    "verify": "run.fidelity",
    "watch": "capture.backends",
    "witness": "frontend.witness",
    "wrap_compiler_debug": "capture.compilers",
}

__all__ = [
    "AccuracyError",
    "After",
    "Budget",
    "Case",
    "CaseError",
    "Comparison",
    "Compiler",
    "Failure",
    "Fidelity",
    "Fresh",
    "InProcess",
    "Judgement",
    "Recording",
    "Reduction",
    "SleuthError",
    "Store",
    "Terms",
    "Testimony",
    "Tolerance",
    "Verdict",
    "Warm",
    "__version__",
    "installed",
    "judge",
    "minify",
    "raised",
    "replay",
    "same",
    "same_two_models",
    "verify",
    "watch",
    "witness",
    "wrap_compiler_debug",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchsleuth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"torchsleuth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

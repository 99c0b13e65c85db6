"""Which part of torch.compile makes a function fail: which backend, which subsystem of it, which application of that.

    def fn() -> bool:                                   true if all is well
        return torch.allclose(torch.compile(f)(x), f(x))

    bisect(fn)              BisectionResult("inductor", "lowerings", bisect_number=2, debug_info="relu"), or None
    bisect(fn, backends=["inductor"], subsystems=["lowerings", "post_grad_passes"])
    BACKENDS                what there is to choose from

The function is called again and again. Each time it begins alike: nothing is compiled yet (what was compiled before is
forgotten), and random numbers are the same. So it need not reset anything, and may use a function that was compiled
elsewhere. Whatever backend it asks for, it gets the one that is being tried. Torch's caches on the disk are not used.

Afterwards, however it ends, everything is as before, but that what was compiled is compiled again when it is next
needed: it may lack the part that was left out. No files are written. An exception of the function's is the caller's;
only a false result means that it failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from torchsleuth import torch_compat
from torchsleuth.analyse.parts import BACKENDS as BACKENDS, select
from torchsleuth.analyse.searching import Answer, BisectionResult, Plan, Step, Tried
from torchsleuth.analyse.trials import Trial
from torchsleuth.compare.rng import RngState


def bisect(
    fn: Callable[[], object],
    *,
    backends: Iterable[str] | None = None,
    subsystems: Iterable[str] | None = None,
    graphs: bool = False,
    observe: Callable[[Tried], None] | None = None,
) -> BisectionResult | None:
    """Find the part that makes `fn` return something false; None if no backend does.

    `backends`, `subsystems`, `graphs`: what to try, if not everything (see `select`). `observe` is told of each step.
    """
    plan = Plan(select(backends, subsystems, graphs=graphs))
    step = plan.first
    while True:
        tried = attempt(fn, step)
        if observe is not None:
            observe(tried)
        following = plan.after(tried)
        if isinstance(following, Answer):
            return following.result
        step = following


def attempt(fn: Callable[[], object], step: Step) -> Tried:
    """Call the function once, with what this step leaves out."""
    trial = Trial(step)
    with _as_before(), torch_compat.bisector_answers(trial):
        passed = bool(fn())
    return Tried(step, passed, trial.seen)


@contextmanager
def _as_before() -> Iterator[None]:
    """Inside, nothing is compiled yet; afterwards nothing tells of what was done inside."""
    numbers = RngState.capture()
    variables = _variables()
    _forget()
    try:
        with torch_compat.counters_kept():
            yield
    finally:
        _forget()
        numbers.restore()
        _restore(variables)


def _forget() -> None:
    if "torch._dynamo" in sys.modules:  # if not, nobody has compiled yet; loading it takes seconds
        torch.compiler.reset()


_SET_BY_TORCH = ("TORCH", "TRITON", "DISABLE_CUPTI", "TEARDOWN_CUPTI")
"""How the variables begin that torch sets while it compiles. (`_TORCH...` is for kernels that any thread may load.)"""


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SET_BY_TORCH)}


def _restore(variables: dict[str, str]) -> None:
    now = _variables()
    for name in now.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if now.get(name) != value})

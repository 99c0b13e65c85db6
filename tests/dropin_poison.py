"""Torch's own tool, made to raise when it is called: whoever passes with it does not lean on what we replace.

    undo = poison()

The code of its functions is replaced, so that it does not matter who holds them under which name. What torch calls at
each compilation, whether its tool is wanted or not, stays: a question to the bisector, for one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

MODULES = (
    "torch._dynamo.repro.after_aot",
    "torch._dynamo.repro.after_dynamo",
    "torch._dynamo.debug_utils",
    "torch._functorch.fx_minifier",
    "torch.utils._content_store",
)
NAMED = (
    ("torch._dynamo.utils", "same"),
    ("torch._dynamo.testing", "reduce_to_scalar_loss"),
    ("torch._dynamo.testing", "requires_bwd_pass"),
    ("torch._dynamo.testing", "collect_results"),
    ("torch._inductor.compiler_bisector", "CompilerBisector.do_bisect"),
    ("torch._inductor.compiler_bisector", "CompilerBisector.process_subsystem"),
    ("torch._inductor.compiler_bisector", "CompilerBisector.advance_subsystem"),
    ("torch._inductor.compiler_bisector", "CompilerBisector.advance_backend"),
)


class Leaked(AssertionError):
    """What we replace was called."""


def _raises(*args: Any, **kwargs: Any) -> Any:
    from dropin_poison import Leaked

    raise Leaked("torch's own repro tool was called")


def functions() -> Iterator[FunctionType]:
    """Every function of the tool."""
    for name in MODULES:
        module = importlib.import_module(name)
        for value in list(vars(module).values()):
            if inspect.isfunction(value) and value.__module__ == name:
                yield value
            elif inspect.isclass(value) and value.__module__ == name:
                yield from _methods(value)
    for name, path in NAMED:
        value: Any = importlib.import_module(name)
        for part in path.split("."):
            value = getattr(value, part)
        yield getattr(value, "__func__", value)


def _methods(kind: type) -> Iterator[FunctionType]:
    for value in vars(kind).values():
        inner = getattr(value, "__func__", value)
        if inspect.isfunction(inner):
            yield inner


def poison() -> Callable[[], None]:
    """From now on they raise. What is returned undoes it."""
    before: list[tuple[FunctionType, CodeType]] = []
    for function in functions():
        function = inspect.unwrap(function)
        if isinstance(function, FunctionType) and not function.__code__.co_freevars:
            before.append((function, function.__code__))
            function.__code__ = _raises.__code__.replace(co_name=function.__code__.co_name)

    def undo() -> None:
        for function, code in reversed(before):
            function.__code__ = code

    return undo

"""What Dynamo does to a function, asked of Dynamo itself; and functions that torch.compile was given, without it.

explained = explain(fn, args, kwargs)      its graphs, and where and why it breaks them
plain_function(compiled)                   what torch.compile was given, if it is something that it made
call_instead(module, function)             from now on, calling the module calls the function
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from torchsleuth.torch_compat.names import NAMES, resolve

if TYPE_CHECKING:
    import torch

_CALL: Final = "_compiled_call_impl"
"""Where a module keeps what `module.compile()` made: if there is something, that is what is called."""


@dataclass(frozen=True)
class DynamoBreak:
    """Why Dynamo broke a graph, in its own words, and the user's stack as (file, line, function), outermost first."""

    reason: str
    stack: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True)
class Explained:
    """What Dynamo made of one call."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[DynamoBreak] = field(default_factory=list)


def explain(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, dynamic: bool | None = None
) -> Explained:
    """Run `fn` once under Dynamo, and tell what it did. Whatever it raises propagates. Dynamo is reset after it.

    Not by `torch._dynamo.explain`: that knows only of breaks that end a graph, so it says nothing of a function that
    begins with `print`. Where Dynamo gives up a frame without a word, it is asked again with `fullgraph`, for the word.
    """
    import torch

    reasons = resolve("graph_break_reasons")
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compiler.reset()
    try:
        torch.compile(fn, backend=keep, dynamic=dynamic)(*args, **kwargs)
        breaks = [DynamoBreak(str(one.reason), _stack(one.user_stack)) for one in reasons]
        if not graphs and not breaks:
            torch.compiler.reset()
            breaks = _asked_for_one_graph(fn, args, kwargs)
    finally:
        torch.compiler.reset()
    return Explained(graphs, breaks)


def _asked_for_one_graph(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[DynamoBreak]:
    import torch

    try:
        torch.compile(fn, backend="eager", fullgraph=True)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - this is what was asked for
        return [DynamoBreak(str(error), _stack(getattr(error, "real_stack", None) or ()))]
    return []


def _stack(frames: Iterable[Any]) -> tuple[tuple[str, int, str], ...]:
    return tuple((str(frame.filename), int(frame.lineno or 0), str(frame.name)) for frame in frames)


def plain_function(fn: Any) -> Any:
    """What torch.compile was given, if `fn` is something that it made; else `fn`. Of a compiled module, the module."""
    if NAMES["innermost_fn"].module not in sys.modules:
        return fn  # nobody has compiled anything
    if isinstance(fn, resolve("OptimizedModule")):
        return fn._orig_mod
    return resolve("innermost_fn")(fn)


def is_compiled_module(value: object) -> bool:
    """Whether it is what torch.compile makes of a module."""
    return NAMES["OptimizedModule"].module in sys.modules and isinstance(value, resolve("OptimizedModule"))


def call_instead(module: torch.nn.Module, function: Callable[..., Any]) -> None:
    """From now on, calling the module calls the function, as it would call what `module.compile()` made."""
    resolve("compiled_call")
    setattr(module, _CALL, function)


@contextmanager
def called_plainly(module: torch.nn.Module) -> Iterator[None]:
    """Inside, calling the module calls the module, whatever is to be called instead."""
    resolve("compiled_call")
    instead = vars(module).pop(_CALL, None)
    try:
        yield
    finally:
        if instead is not None:
            setattr(module, _CALL, instead)


def module_call() -> Any:
    """The method by which modules are called."""
    return resolve("module_call")


def module_of_call(fn: Any) -> torch.nn.Module | None:
    """The module, if `fn` is what `module.compile()` gives to torch.compile: the method by which modules are called."""
    import torch

    owner = getattr(fn, "__self__", None)
    is_call = getattr(fn, "__func__", None) is resolve("module_call")
    return owner if is_call and isinstance(owner, torch.nn.Module) else None

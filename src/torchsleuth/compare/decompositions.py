"""Fused operators written out in simpler ones: what a compiler does, and how to see the roundings inside a kernel.

torch has the texts, and Inductor compiles by them. Not each is the operator's equal (some leave out what a
compiler does not need), so a text is used only if it agrees with its operator in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import SleuthError

from .fp64 import widen_call
from .kinds import widen
from .rng import is_random

_CLOSE = 1e-9
"""Two ways to compute the same in fp64 differ by less than this, as a fraction of the numbers involved."""


_LARGER = 8
"""An intermediate may be this many times as large as all arguments together."""


class Decompositions:
    """Finds the text of an operator, and remembers which texts can be trusted."""

    def __init__(self) -> None:
        self.trusted: dict[tuple[Any, str], bool] = {}

    def find(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """The operator written out, if it consists of several operators and they compute the same."""
        written = torch_compat.decomposition(operator)
        if written is None or is_random(operator) or "out" in kwargs or torch_compat.op_name(operator).endswith("_"):
            return None
        call = (operator, repr(torch_compat.tree_map(_describe, (args, kwargs))))
        if call not in self.trusted:
            self.trusted[call] = _is_worth_it(written, operator, args, kwargs)
        return written if self.trusted[call] else None


def _is_worth_it(written: Callable[..., Any], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    steps: list[Any] = []
    room = sum(tensor.numel() for tensor in _tensors((args, tuple(kwargs.values()))))

    def count(step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = step(*args, **kwargs)
        if not torch_compat.op_is_view(step):
            steps.append(step)
            if any(tensor.numel() > _LARGER * room for tensor in _tensors(result)):
                raise RuntimeError("a text for compilers, which never make these intermediates")
        return result

    try:
        operator, args, kwargs = widen_call(operator, args, kwargs)
        ours, theirs = (torch_compat.tree_map(_widened_copy, args) for _ in range(2))
        expected = operator(*theirs, **kwargs)
        with torch_compat.dispatch_mode(count):
            got = written(*ours, **kwargs)
        scale = max((_size(tensor) for tensor in _tensors((theirs, expected))), default=0.0)
        return len(steps) > 1 and _agree((expected, theirs), (got, ours), _CLOSE * scale)
    except (RuntimeError, TypeError, ValueError, AssertionError, LookupError, NotImplementedError, SleuthError):
        return False  # it does not run in double precision, so nothing is known of it


def _agree(expected: Any, got: Any, margin: float) -> bool:
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and got.shape == expected.shape
            and got.dtype == expected.dtype
            and torch.allclose(got, expected, rtol=1e-6, atol=margin, equal_nan=True)
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(got, (list, tuple))
            and len(got) == len(expected)
            and all(_agree(one, other, margin) for one, other in zip(expected, got, strict=True))
        )
    return bool(expected == got)


def _describe(value: Any) -> Any:
    return (*value.shape, value.dtype, value.layout) if isinstance(value, torch.Tensor) else value


def _widened_copy(value: Any) -> Any:
    return widen(value).clone() if isinstance(value, torch.Tensor) else value


def _size(tensor: torch.Tensor) -> float:
    finite = tensor.detach().abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return float(finite.max()) if tensor.numel() else 0.0


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() or value.is_complex() else []
    if isinstance(value, (list, tuple)):
        return [tensor for child in value for tensor in _tensors(child)]
    return []

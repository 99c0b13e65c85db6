"""Inductor's random numbers, in eager: a function of a seed, as in the code that it generates.

Inductor's graphs may hold random operators of its own. Run eagerly as they are, they draw from torch's generator:
other numbers than compiled, even in a backward graph that should make the forward's mask once more from the seed that
was kept. The functions here compute what Inductor's code computes on the CPU, bit for bit up to the last rounding of
a logarithm, so that a dropout can be compared element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat

_HALF: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_UNIFORM: Final = 4.6566127342e-10
"""The constants of Philox 4x32, and the step between the uniform numbers that are made of 31 bits."""


def inductor_seeds(count: int, device: torch.device) -> torch.Tensor:
    """Seeds as Inductor's code draws them (its operator, run eagerly, draws from half that range)."""
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, [count], device=device)


def inductor_random(size: Sequence[int], seed: torch.Tensor, mode: str, *, drawn_here: bool) -> torch.Tensor:
    """Uniform ("rand") or normal ("randn") numbers, as Inductor's code makes them of a seed on the CPU."""
    if seed.device.type != "cpu":
        _refuse_a_kept_seed(drawn_here)
        drawn: torch.Tensor = getattr(torch, mode)(size, device=seed.device, dtype=torch.float32)
        return drawn
    words = _philox(size, seed)
    uniform = [(word & 0x7FFFFFFF).to(torch.float32) * _UNIFORM for word in words[:2]]
    if mode == "rand":
        return uniform[0]
    radius = (-2.0 * (1 - uniform[0]).log().to(torch.float64)).sqrt()
    return (radius * (2.0 * torch.pi * (1 - uniform[1]).to(torch.float64)).cos()).to(torch.float32)


def inductor_randint(low: int, high: int, size: Sequence[int], seed: torch.Tensor, *, drawn_here: bool) -> torch.Tensor:
    """Integers from `low` up to `high`, as Inductor's code makes them of a seed on the CPU."""
    if seed.device.type != "cpu":
        _refuse_a_kept_seed(drawn_here)
        return torch.randint(low, high, list(size), device=seed.device)
    span = high - low
    if span >= 2**31:
        raise NotImplementedError("Inductor's random integers from so wide a range cannot be followed")
    first, second, *_ = _philox(size, seed)
    return ((second % span) * (2**32 % span) + first) % span + low


_SEEDED: Final = {
    f"prims.{function.__name__}.default": function for function in (inductor_seeds, inductor_random, inductor_randint)
}


def stand_in(node: fx.Node) -> Callable[..., torch.Tensor] | None:
    """What computes here what this random operator of Inductor's computes when it is compiled."""
    if node.op != "call_function" or not torch_compat.is_op_overload(node.target):
        return None
    found = _SEEDED.get(str(node.target))
    return None if node.kwargs.get("align_dtype") is not None else found


def is_stand_in(target: Any) -> bool:
    return target in _SEEDED.values()


def _refuse_a_kept_seed(drawn_here: bool) -> None:
    if not drawn_here:
        raise NotImplementedError("the graph makes random numbers of a seed that it was given, as only Inductor can")


def _philox(size: Sequence[int], seed: torch.Tensor) -> list[torch.Tensor]:
    """Four words of 32 bits for each element, by Philox 4x32 with ten rounds; the counter is the element's place."""
    low = torch.arange(_numel(size), dtype=torch.int64).reshape(list(size))
    zero = torch.zeros((), dtype=torch.int64)
    words = [low & _HALF, zero, zero, zero]
    keys = [seed & _HALF, zero]
    for _ in range(_ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _product(factor, word) for factor, word in zip(_MULTIPLIERS, words[::2], strict=True)
        )
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [(key + step) & _HALF for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def _product(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and the lower 32 bits of a product of two numbers of 32 bits (int64 would overflow into its sign)."""
    lower = (word & 0xFFFF) * factor
    upper = (word >> 16) * factor + (lower >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (lower & 0xFFFF)


def _numel(size: Sequence[int]) -> int:
    total = 1
    for extent in size:
        total *= extent
    return total

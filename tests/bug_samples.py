"""Bugs of torch's compilers, each as programs of several sizes: `BUGS[name].make(size)`.

A larger size has more operators around the bug, and larger tensors. Real ones have the number of their issue; planted
ones are switched on by an option of torch's own that is there for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.nn import functional as F

SIZES: Final = (0, 1, 2)
Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Bug:
    """One bug. It fails with this backend, under these options of Inductor's."""

    make: Callable[[int], Program]
    kind: str
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    backend: str = "inductor"


def around(x: torch.Tensor, size: int) -> torch.Tensor:
    """Harmless work on a tensor: three operators for each step of size."""
    for step in range(size):
        x = torch.sin(x) * (step + 2) + 0.25
    return x


# ---- real ------------------------------------------------------------------------------------------------


def cumsum_0dim(size: int) -> Program:
    """pytorch#193265: a post-grad pass looks for a dimension that is not there."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return around(torch.tensor(5.0 + size).cumsum(0) + around(x, size), size)

    return f, (torch.zeros([size + 2] * size),)


def fib_hang(size: int) -> Program:
    """pytorch#148073: the time to compile doubles with each step."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        known = [around(a, size), b]
        for _ in range(26 + 3 * size):
            known += [known[-1] + known[-2], known[-1] * known[-2]]
        return known[-2] + known[-1]

    return f, (torch.zeros(4 + size), torch.zeros(4 + size))


def heap_2dtile(size: int) -> Program:
    """pytorch#196681: a kernel writes past the end of its buffer."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x = around(x, size)
        v = (x * 0.5) * (torch.erf(x * 0.7071067811865476) + 1)
        wide = F.pad(v.permute(3, 2, 1, 0), (0, 0, 0, side - 8), value=0.5)
        return torch.matmul(F.pad(v, (0, 0, 0, 0, 0, side - 8), value=0.5), wide)

    side = 34 + 16 * size
    return f, (torch.randn(1, 8, side, side).contiguous(memory_format=torch.channels_last),)


def indexput_flip(size: int) -> Program:
    """pytorch#198270: what is written in place is read too late."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x.index_put_((torch.arange(x.size(0)),), x * 2.0)
        x.add_(x.flip(0))
        return around(x, size)

    return f, (torch.rand(4 + 2 * size, 8 + size),)


def jacfwd_cpp(size: int) -> Program:
    """pytorch#194706: the C++ that is generated does not compile."""

    def g(x: torch.Tensor) -> torch.Tensor:
        x = around(x, size)
        return torch.sum(torch.mm(torch.mm(torch.prod(x) + x, torch.sum(x) + x), torch.sum(x) + x))

    side = 3 + size
    return torch.func.jacfwd(g), ((torch.arange(side * side, dtype=torch.float16) / 10).reshape(side, side),)


def ldexp_dtype(size: int) -> Program:
    """pytorch#197091: the result has another dtype."""

    def f(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.ldexp(x, around(other, size))

    return f, (torch.ones(3 + size, 4, dtype=torch.bool), torch.randn(3 + size, 4).half())


def patmatch_take(size: int) -> Program:
    """pytorch#188223: a pattern's replacement lacks one of its inputs."""

    def f(x: torch.Tensor) -> torch.Tensor:
        taken = torch.take(torch.sigmoid(around(x, size)), torch.randperm(10 + size))
        return taken.sum() * 0

    return f, (torch.rand(4 + size, 32),)


def uint8_min(size: int) -> Program:
    """pytorch#191499: the smallest of some bytes is another one."""
    values = [5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80]

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(size):
            x = x.bitwise_and(127).bitwise_or(0)
        return torch.min(x)

    return f, (torch.tensor(values + [100] * 16 * size, dtype=torch.uint8),)


# ---- planted ---------------------------------------------------------------------------------------------


def relu(size: int) -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        return around(torch.relu(around(x, size)), size)

    return f, (torch.randn(8 + 5 * size, 3 + size),)


def log1p(size: int) -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        return around(torch.log1p(around(x, size).abs()), size)

    return f, (torch.rand(8 + 5 * size, 3 + size),)


def _planted(operator: str, how: str) -> Mapping[str, object]:
    return MappingProxyType({f"cpp.inject_{operator}_bug_TESTING_ONLY": how})


BUGS: Final[Mapping[str, Bug]] = MappingProxyType(
    {
        "cumsum_0dim": Bug(cumsum_0dim, "raised"),
        "fib_hang": Bug(fib_hang, "timed out"),
        "heap_2dtile": Bug(heap_2dtile, "crashed"),
        "indexput_flip": Bug(indexput_flip, "mismatched"),
        "jacfwd_cpp": Bug(jacfwd_cpp, "raised"),
        "ldexp_dtype": Bug(ldexp_dtype, "mismatched"),
        "patmatch_take": Bug(patmatch_take, "raised"),
        "uint8_min": Bug(uint8_min, "mismatched"),
        "relu_compile_error": Bug(relu, "raised", _planted("relu", "compile_error")),
        "relu_runtime_error": Bug(relu, "raised", _planted("relu", "runtime_error")),
        "relu_accuracy": Bug(relu, "mismatched", _planted("relu", "accuracy")),
        "log1p_accuracy": Bug(log1p, "mismatched", _planted("log1p", "accuracy")),
        "sleep_hang": Bug(relu, "timed out", MappingProxyType({"sleep_sec_TESTING_ONLY": 3600})),
        "relu_backend": Bug(relu, "raised", backend="relu_compile_error_TESTING_ONLY"),
        "relu_backend_run": Bug(relu, "raised", backend="relu_runtime_error_TESTING_ONLY"),
    }
)

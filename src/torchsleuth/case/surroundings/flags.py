"""The switches of torch's backends: cuDNN, cuBLAS, oneDNN, attention kernels, the precision of float32.

All of them are public settings under `torch.backends`, global to the process. A flag has the name of what one sets
there: an attribute (`cudnn.benchmark`), or a function that takes the value (`cuda.enable_flash_sdp`). A case keeps
those that do not have their default; what it does not name has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, Final

from torchsleuth.case.plain import decode_plain, encode_plain
from torchsleuth.case.schema import Entry

_ATTRIBUTES: Final[dict[str, object]] = {
    # The precision of everything stands first: libraries and operations inherit it.
    "fp32_precision": "none",
    "cuda.matmul.fp32_precision": "none",
    "cudnn.conv.fp32_precision": "tf32",
    "cudnn.rnn.fp32_precision": "tf32",
    "mkldnn.matmul.fp32_precision": "none",
    "mkldnn.conv.fp32_precision": "none",
    "mkldnn.rnn.fp32_precision": "none",
    "cuda.matmul.allow_fp16_accumulation": False,
    "cudnn.enabled": True,
    "cudnn.benchmark": False,
    "cudnn.deterministic": False,
    "mkldnn.enabled": True,
    "mkldnn.deterministic": False,
}
_FUNCTIONS: Final = {
    "cuda.enable_flash_sdp": ("cuda.flash_sdp_enabled", True),
    "cuda.enable_mem_efficient_sdp": ("cuda.mem_efficient_sdp_enabled", True),
    "cuda.enable_math_sdp": ("cuda.math_sdp_enabled", True),
    "cuda.enable_cudnn_sdp": ("cuda.cudnn_sdp_enabled", True),
    "cuda.allow_fp16_bf16_reduction_math_sdp": ("cuda.fp16_bf16_reduction_math_sdp_allowed", False),
    "mha.set_fastpath_enabled": ("mha.get_fastpath_enabled", True),
}
_REDUCTIONS: Final = (
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
)
_FOLLOWS_MATMUL_PRECISION: Final = {
    "cuda.matmul.fp32_precision": {"high": "tf32", "medium": "tf32"},
    "mkldnn.matmul.fp32_precision": {"high": "tf32", "medium": "bf16"},
}
"""What `torch.set_float32_matmul_precision` makes of other flags. "highest" leaves "ieee", the same as "none"."""


@dataclass(frozen=True)
class Flag:
    """One switch: how it is by default, and how to read and to set it."""

    default: Any
    get: Callable[[], Any]
    set: Callable[[Any], object]


@cache
def flags() -> dict[str, Flag]:
    """The switches of the installed torch, in the order in which they have to be set."""
    import torch

    found: dict[str, Flag] = {name: _attribute(name, default) for name, default in _ATTRIBUTES.items()}
    for name, (getter, default) in _FUNCTIONS.items():
        found[name] = Flag(default, _under_backends(getter), _under_backends(name))
    for name in _REDUCTIONS:
        found[name] = _reduction(name)
    has_einsum = torch.backends.opt_einsum.is_available()
    found["opt_einsum.enabled"] = _attribute("opt_einsum.enabled", has_einsum)
    found["opt_einsum.strategy"] = _attribute("opt_einsum.strategy", "auto" if has_einsum else None)
    return {name: flag for name, flag in found.items() if _read(flag) is not _ABSENT}


def observe_flags(matmul_precision: str) -> tuple[Entry, ...]:
    """Every switch that does not have its default, and that the precision of matrix products does not explain."""
    now = _now(matmul_precision)
    return tuple(
        Entry(name, encode_plain(now[name]))
        for name, flag in flags().items()
        if now[name] != _default(name, flag, matmul_precision)
    )


@contextmanager
def flags_restored(entries: Iterable[Entry], matmul_precision: str) -> Iterator[None]:
    """The switches of a case, and the precision of matrix products, which sets some of them; afterwards as before.

    A switch that this torch does not have, or a value that it does not take, is a warning.
    """
    import torch

    given = {
        entry.name: decode_plain(entry.value, field=f"state.flags[{place}]") for place, entry in enumerate(entries)
    }
    before = {name: _read(flag) for name, flag in flags().items()}
    precision_before = observe_matmul_precision()
    failed = [f"{name} (this torch does not have it)" for name in given if name not in before]
    try:
        if matmul_precision != precision_before:
            torch.set_float32_matmul_precision(matmul_precision)
        wanted = {name: given.get(name, _default(name, flag, matmul_precision)) for name, flag in flags().items()}
        failed += _set(wanted, _now(matmul_precision))
        if failed:
            warnings.warn(f"not all switches of torch's backends are as in the case: {'; '.join(failed)}", stacklevel=4)
        yield
    finally:
        if observe_matmul_precision() != precision_before:
            torch.set_float32_matmul_precision(precision_before)
        _set(before, {name: _read(flag) for name, flag in flags().items()})


def observe_matmul_precision() -> str:
    """`torch.get_float32_matmul_precision()`; its default where the newer settings per library are in use."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to sum up what the newer settings say; those are flags
        return "highest"


def _set(wanted: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Set what is different, and say what could not be."""
    failed = []
    for name, value in wanted.items():
        flag = flags()[name]
        if value == now[name] and type(value) is type(now[name]):
            continue
        try:
            flag.set(value)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            failed.append(f"{name} = {value!r} ({str(error).partition(chr(10))[0]})")
    return failed


def _now(matmul_precision: str) -> dict[str, Any]:
    now = {name: _read(flag) for name, flag in flags().items()}
    if matmul_precision == "highest" and now.get("fp32_precision") == "none":
        for name in _FOLLOWS_MATMUL_PRECISION:
            if now.get(name) == "ieee":
                now[name] = "none"
    return now


def _default(name: str, flag: Flag, matmul_precision: str) -> Any:
    return _FOLLOWS_MATMUL_PRECISION.get(name, {}).get(matmul_precision, flag.default)


_ABSENT: Final = object()


def _read(flag: Flag) -> Any:
    try:
        return flag.get()
    except (AttributeError, RuntimeError):
        return _ABSENT


def _under_backends(path: str) -> Callable[..., Any]:
    """The function at a path under `torch.backends`, looked up when it is called."""
    return lambda *args: _at(path.split("."))(*args)


def _attribute(path: str, default: object) -> Flag:
    *above, leaf = path.split(".")
    return Flag(default, lambda: getattr(_at(above), leaf), lambda value: setattr(_at(above), leaf, value))


def _at(path: Iterable[str]) -> Any:
    import torch

    backends: Any = torch.backends
    return reduce(getattr, path, backends)


def _reduction(path: str) -> Flag:
    """Whether sums may be made in low precision: yes or no, or a pair that says also whether they may be split."""
    whole, split = _attribute(path, True), _attribute(f"{path}_split_k", True)

    def get() -> bool | tuple[bool, bool]:
        return whole.get() if split.get() else (whole.get(), False)

    return Flag(True, get, whole.set)

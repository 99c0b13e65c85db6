"""Waiting for accelerators: their errors come late, or never, unless somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


def accelerators_of(values: Iterable[Any]) -> list[str]:
    """The kinds of devices besides the CPU that these tensors are on."""
    kinds = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return sorted(kinds - {"cpu", "meta"})


def synchroniser(devices: Sequence[str]) -> Callable[[], None] | None:
    """Waits for the work on these kinds of devices; None if there are none."""
    waits = [getattr(getattr(torch, kind, None), "synchronize", None) for kind in devices]
    found = [wait for wait in waits if wait is not None]
    return None if not found else _Synchroniser(found)


class _Synchroniser:
    def __init__(self, waits: Sequence[Callable[[], None]]) -> None:
        self._waits = waits

    def __call__(self) -> None:
        for wait in self._waits:
            wait()

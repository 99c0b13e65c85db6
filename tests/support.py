"""What several test files need."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


class Output(OrderedDict):  # type: ignore[type-arg]
    """What Hugging Face's outputs look like from outside: a mapping whose items are attributes as well."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        for name, value in fields.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


def elsewhere(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program on other random numbers than eager gets: a compiler with a generator of its own."""

    def run(*args: torch.Tensor) -> Any:
        torch.rand(3)
        return program(*args)

    return run

"""Backends: any that torch.compile takes, by name or as a function of a graph and example inputs."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from torch import fx

from torchsleuth import torch_compat
from torchsleuth.errors import SleuthError


def eager(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The graph as it is."""
    return gm.forward


def found(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The backend of that name, or the function itself."""
    if backend == "eager":
        return eager
    if isinstance(backend, str):
        known = torch_compat.backend_names()
        if backend not in known:
            near = difflib.get_close_matches(backend, known, n=1)
            raise SleuthError(
                f"there is no backend {backend!r}",
                cause=f"torch.compile knows {', '.join(known)}",
                remedy=f"did you mean {near[0]!r}?" if near else "name one of these, or give a function",
            )
        return torch_compat.find_backend(backend)
    if not callable(backend):
        raise SleuthError(
            f"{backend!r:.60} is no backend",
            cause="a backend is a name, or a function that takes a graph and example inputs",
            remedy='name one ("inductor"), or give the function',
        )
    return backend

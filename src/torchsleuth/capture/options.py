"""Torch's configuration around a compiler: what the user set, what the backend sets for its compiler, what we set.

A backend may set options for its compiler alone (`torch.compile(options=...)`), also long after, when a backward graph
is compiled. A case needs these, and must not have what we set ourselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.surroundings.options import observe_options

Observed = dict[tuple[str, str], schema.Config]

_AOT: Final = "torch._functorch.config"
_OURS: Final = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}
"""A hit in AOTAutograd's cache would call no compiler: there would be no graph, and so no case. Inductor's own cache,
under it, is used as ever."""


def observed() -> Observed:
    """Every option that does not have its default."""
    return {(option.module, option.name): option for option in observe_options()}


def in_order(options: Observed) -> tuple[schema.Config, ...]:
    return tuple(options[key] for key in sorted(options))


@contextmanager
def without_aot_cache() -> Iterator[None]:
    """Inside, in this thread, AOTAutograd calls its compilers each time."""
    known = torch_compat.config_values(_AOT)
    with torch_compat.config_patch(_AOT, {name: value for name, value in _OURS.items() if name in known}):
        yield


class Options:
    """What a backend sets for its compiler: the difference between `before` it was called, and `inside`."""

    def __init__(self, before: Observed, inside: Observed) -> None:
        self._ours = {(_AOT, name) for name in _OURS}
        self._before = {key: option for key, option in before.items() if key in self._ours}
        self._set = {
            key: option for key, option in inside.items() if key not in self._ours and before.get(key) != option
        }

    def in_place_of(self, now: Observed) -> Observed:
        """The options under which the compiler works, when these are the process's."""
        theirs = {key: option for key, option in now.items() if key not in self._ours}
        return {**theirs, **self._before, **self._set}

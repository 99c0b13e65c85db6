"""The parts of torch.compile that can be left out, to see whether a failure goes with them.

    BACKENDS                                     every backend, from the one that does least, and its subsystems
    select(backends=["inductor"])                those that a search is to go through
    select(subsystems=["lowerings"])             this one, and the backend that has it

The order is the order of the search: a backend does what those before it do, and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torchsleuth.errors import UnknownPart


@dataclass(frozen=True)
class Subsystem:
    """A part of a backend that can be left out."""

    name: str
    what: str
    """What it does, in words."""


@dataclass(frozen=True)
class Counted(Subsystem):
    """It is applied many times, and torch asks before each: so it can be told which one matters."""


@dataclass(frozen=True)
class Option(Subsystem):
    """It is left out by setting an option."""

    option: str
    value: bool


Parts = Mapping[str, tuple[Subsystem, ...]]
"""Backends, and those of their subsystems that are to be tried."""

_DECOMPOSED: Final = "aot_eager_decomp_partition"
_INDUCTOR: Final = "inductor"


def _option(backend: str, option: str, value: bool, what: str) -> Option:
    return Option(f"{backend}_{option}", what, option, value)


BACKENDS: Final[Parts] = MappingProxyType(
    {
        "eager": (),
        "aot_eager": (),
        _DECOMPOSED: (
            _option(_DECOMPOSED, "cse", False, "computing equal subexpressions once"),
            Counted("decomposition", "writing an operator out in simpler ones"),
        ),
        "aot_eager_decomp_partition_crossref": (),
        _INDUCTOR: (
            Counted("pre_grad_passes", "rewriting the graph before AOTAutograd gets it"),
            Counted("joint_graph_passes", "rewriting the graph of forward and backward together"),
            Counted("post_grad_passes", "rewriting the graphs of forward and backward, each by itself"),
            _option(_INDUCTOR, "fallback_random", True, "random numbers of Inductor's own"),
            _option(_INDUCTOR, "emulate_precision_casts", True, "keeping more precision than eager between operators"),
            _option(_INDUCTOR, "layout_optimization", False, "choosing other memory layouts"),
            _option(_INDUCTOR, "comprehensive_padding", False, "padding tensors"),
            Counted("cudagraphs", "replaying kernels as one CUDA graph"),
            Counted("lowerings", "generating code for an operator, rather than calling it"),
        ),
    }
)
"""Every backend and its subsystems."""

GRAPHS: Final = Counted("pre_grad_graph", "compiling a graph at all")
"""Of Inductor as well, tried first, if that is wished: which of many graphs is it?"""

_ALL: Final[Parts] = MappingProxyType({**BACKENDS, _INDUCTOR: (GRAPHS, *BACKENDS[_INDUCTOR])})


def select(
    backends: Iterable[str] | None = None, subsystems: Iterable[str] | None = None, *, graphs: bool = False
) -> dict[str, tuple[Subsystem, ...]]:
    """The parts to go through: all, or those that are named. Subsystems alone bring their backends with them.

    No subsystems (`[]`): only the backend is looked for. `graphs`: the graphs one by one, before the rest of Inductor.
    """
    chosen, wanted = _listed(backends), _listed(subsystems)
    _refuse_unknown("backend", chosen, list(_ALL))
    found = {name: parts for name, parts in _ALL.items() if chosen is None or name in chosen}
    _refuse_unknown("subsystem", wanted, [part.name for parts in found.values() for part in parts])
    if not found:
        raise UnknownPart(
            "no backend was named", cause="the list of backends is empty", remedy=f"choose among {', '.join(_ALL)}"
        )
    if wanted is None:
        return {name: tuple(part for part in parts if graphs or part is not GRAPHS) for name, parts in found.items()}
    narrow = {name: tuple(part for part in parts if part.name in wanted) for name, parts in found.items()}
    return {name: parts for name, parts in narrow.items() if parts or chosen is not None or not wanted}


def find_part(backend: str, subsystem: str) -> Subsystem | None:
    """A subsystem by its name."""
    return next((part for part in _ALL.get(backend, ()) if part.name == subsystem), None)


def _listed(names: Iterable[str] | None) -> list[str] | None:
    return [names] if isinstance(names, str) else None if names is None else list(names)


def _refuse_unknown(what: str, names: list[str] | None, known: list[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UnknownPart(
                f"there is no {what} {name!r} to try",
                cause=f"the {what}s are {', '.join(known)}"
                if known
                else f"the backends that were named have no {what}s",
                remedy="name one of them, or none to try all"
                if known
                else f"leave out the {what}, or name its backend",
            )

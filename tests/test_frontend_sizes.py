"""With `dynamic=True` sizes stay symbolic, and every program does what it does in eager, whatever the sizes are."""

from __future__ import annotations

import collections
import functools
import gc
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import frontend_cases_containers
import frontend_cases_functions
import frontend_cases_outside
import frontend_cases_protocols
import frontend_cases_sizes
import frontend_cases_tensors
from frontend_differential import CASES, differences, run

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

FILES = (
    frontend_cases_containers,
    frontend_cases_functions,
    frontend_cases_outside,
    frontend_cases_protocols,
    frontend_cases_sizes,
    frontend_cases_tensors,
)
OF_SIZES = [name for name, maker in CASES.items() if maker.__module__ == frontend_cases_sizes.__name__]


@pytest.fixture(scope="module", autouse=True)
def _symbols_are_loaded() -> None:
    """What torch imports for its first symbol adds a filter of warnings."""
    from torchsleuth.frontend import capture

    capture(lambda x: x * x.shape[0], "aot_eager", dynamic=True)(torch.ones(2))


def agree(name: str, backend: str) -> None:
    from torchsleuth.frontend import capture

    eager = run(CASES[name])
    ours = run(CASES[name], lambda fn: capture(fn, backend, dynamic=True))
    assert differences(eager, ours) == []
    assert not ours.wrapped.crashes


@pytest.mark.parametrize("name", CASES)
def test_a_program_with_symbolic_sizes_does_what_it_does_in_eager(name: str) -> None:
    """Covers: F1, F6, F10"""
    agree(name, "eager")


@pytest.mark.parametrize("name", OF_SIZES)
def test_so_it_does_behind_a_compiler(name: str) -> None:
    """Covers: F9, F10"""
    agree(name, "aot_eager")


# ---- no symbol leaves a recording -------------------------------------------------------------------------


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def get(self) -> int:
        return self.size


def generating(size: int) -> Iterator[int]:
    yield size
    yield size + 1


def waiting(x: torch.Tensor) -> Iterator[int]:
    generator = generating(x.shape[0])
    next(generator)
    return generator


def a_function_with_an_attribute(x: torch.Tensor) -> Any:
    def made(y: torch.Tensor) -> torch.Tensor:
        return y

    made.size = x.shape[0]
    return made


def a_cell(x: torch.Tensor) -> Any:
    size = x.shape[0]
    return lambda: size


def a_long_list(x: torch.Tensor) -> Any:
    held: Any = None
    for _ in range(900):
        held = (held, x.shape[0])
    return held


TAKE_SIZES_ALONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "a cell": a_cell,
    "a default": lambda x: lambda size=x.shape[0]: size,
    "a keyword default": lambda x: lambda *, size=x.shape[0]: size,
    "an attribute of a function": a_function_with_an_attribute,
    "a partial": lambda x: functools.partial(operator.mul, x.shape[0]),
    "a bound method": lambda x: Slotted(x.shape[0]).get,
    "a slot": lambda x: Slotted(x.shape[0]),
    "a namespace": lambda x: types.SimpleNamespace(size=[x.shape[0], (x.shape[1],)]),
    "a dict that nobody may change": lambda x: types.MappingProxyType({"size": x.shape[0]}),
    "sets": lambda x: ({x.shape[0]}, frozenset([x.shape[1]])),
    "dicts": lambda x: ({x.shape[0]: x.shape[1]}, collections.defaultdict(int, a=x.shape[0])),
    "iterators": lambda x: (
        iter([x.shape[0]]), map(abs, [x.shape[1]]), enumerate((x.shape[0],)), reversed([x.shape[0]]),
    ),
    "ranges": lambda x: (range(x.shape[0]), slice(x.shape[0])),
    "an exception": lambda x: ValueError(x.shape[0]),
    "a generator": lambda x: (each * x.shape[0] for each in [x.shape[1]]),
    "a generator that waits": waiting,
    "what a getter gets": lambda x: operator.itemgetter(x.shape[0]),
    "what is nested deep": a_long_list,
}  # fmt: skip


def reached(value: Any) -> Iterator[Any]:
    """A value and what it holds, functions and frames of generators included."""
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (types.ModuleType, type, torch.Tensor, types.CodeType)):
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each, types.FunctionType):
            waiting += [each.__defaults__, each.__kwdefaults__, each.__dict__, *(each.__closure__ or ())]
        elif isinstance(each, types.GeneratorType):
            waiting.append(each.gi_frame.f_locals)
        else:
            waiting += gc.get_referents(each)


@pytest.mark.parametrize("name", TAKE_SIZES_ALONG)
def test_no_symbol_leaves_a_recording(name: str) -> None:
    """What comes back holds plain ints, wherever it holds them, from the recording and from the cache.

    Covers: F1, F6
    """
    from torchsleuth.frontend import capture

    fast = capture(TAKE_SIZES_ALONG[name], dynamic=True)
    for _ in range(2):
        kinds = {type(each) for each in reached(fast(torch.ones(3, 4))) if isinstance(each, int)}
        assert kinds <= {int, bool}
    assert int in kinds or name in ("a generator", "ranges")
    assert not fast.crashes


def test_a_recording_ends_without_a_look_at_the_whole_process() -> None:
    """Frames hold globals, and globals hold everything: whoever looked into them would need minutes.

    Covers: F6, F10
    """
    from torchsleuth.frontend import capture
    from torchsleuth.frontend.replacing import Replacing

    looked_at: list[Any] = []

    def put(self: Replacing, value: Any, put: Any = Replacing.put) -> Any:
        looked_at.append(value)
        return put(self, value)

    def fn(x: torch.Tensor) -> Any:
        for each in generating(x.shape[0]):
            print(each)
        return [x * each for each in generating(x.shape[0])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replacing, "put", put)
        capture(fn, dynamic=True)(torch.ones(2))
    assert 0 < len(looked_at) < 500

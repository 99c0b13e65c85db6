"""With `dynamic=True` sizes stay symbolic, and every program does what it does in eager, whatever the sizes are."""

from __future__ import annotations

import sys

import pytest
import torch

import frontend_cases_containers
import frontend_cases_functions
import frontend_cases_outside
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

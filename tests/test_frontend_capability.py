"""Small programs that use the language in every way do, captured, what they do in eager, call after call.

`benchmarks/frontend_capability.py` prints the score, and Dynamo's beside it.
"""

from __future__ import annotations

import sys

import pytest
import torch

import frontend_cases_containers
import frontend_cases_functions
import frontend_cases_outside
import frontend_cases_protocols
import frontend_cases_sizes
import frontend_cases_tensors
from frontend_differential import CASES, Case, differences, repeat, run

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
"""Importing them puts their cases among `CASES`."""


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_captured_what_it_does_in_eager(name: str) -> None:
    """Made afresh for each side, called four times; compared after each call.

    Covers: F2, F3, F4, F6, F7
    """
    from torchsleuth.frontend import capture

    eager = run(CASES[name])
    ours = run(CASES[name], capture)
    assert differences(eager, ours) == []
    assert not ours.wrapped.crashes


def test_there_are_cases_of_every_file() -> None:
    for file in FILES:
        assert any(maker.__module__ == file.__name__ for maker in CASES.values())


# ---- the comparison itself --------------------------------------------------------------------------------


def appends_to_a_list() -> Case:
    log: list[float] = []

    def fn(x):
        log.append(float(x.sum()))
        return x + len(log)

    return Case(fn, repeat(torch.ones(2)), state=lambda: log)


def test_the_comparison_sees_a_program_that_is_not_called_again() -> None:
    """A stand-in that gives the first call's result for ever differs from eager, and so does one that copies."""

    def only_once(fn):
        kept: list[object] = []

        def call(*args):
            if not kept:
                kept.append(fn(*args))
            return kept[0]

        return call

    assert differences(run(appends_to_a_list), run(appends_to_a_list)) == []
    found = differences(run(appends_to_a_list), run(appends_to_a_list, only_once))
    assert found
    assert found[0].startswith("call 2")
    assert any("state" in words for words in found)

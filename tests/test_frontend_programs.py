"""Random programs do, captured, what they do in eager: bit for bit, at the first call and at every later one.

`benchmarks/frontend_programs.py` runs thousands of them.
"""

from __future__ import annotations

import random
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from frontend_programs import Program, Run, compared, programs, reduced, run, time_limit, write

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

HEAD = "import torch\n\n\ndef tensor(seed):\n    return torch.full((2,), float(seed))\n\n\n"
TAIL = "\n\nCALLS = [lambda: ((tensor(1),), {}), lambda: ((tensor(2),), {})]\n"


def captured(**options: object):
    from torchsleuth.frontend import capture

    return lambda function: capture(function, **options)


def agree(program: Program, **options: object) -> Run:
    words, _, found = compared(program, captured(**options))
    assert words is None, f"{words}\n{program}"
    assert not found.captured.crashes, f"the translator crashed\n{program}"
    return found


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_random_program_does_what_it_does_in_eager(program: Program) -> None:
    """Results, changed arguments and globals, output, exceptions, gradients and random numbers; on seven calls.

    Covers: F3, F4, F6, F7
    """
    with time_limit():
        agree(program)


@pytest.mark.parametrize("number", range(40))
def test_a_longer_random_program_does_what_it_does_in_eager(number: int) -> None:
    """Covers: F3, F4, F6, F7"""
    with time_limit():
        agree(write(random.Random(f"longer/{number}")))


@pytest.mark.parametrize("number", range(15))
def test_a_random_program_captured_with_dynamic_sizes_does_what_it_does_in_eager(number: int) -> None:
    """Covers: F6, F10"""
    with time_limit():
        agree(write(random.Random(f"dynamic/{number}")), dynamic=True)


# ---- the comparison itself --------------------------------------------------------------------------------


def body(*lines: str) -> Program:
    return Program(HEAD + "\n".join(lines) + TAIL)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["def program(x):", "    return x + 1"], "result"),
        (["SEEN = []", "def program(x):", "    SEEN.append(1)"], "SEEN"),
        (["def program(x):", "    x.add_(1)"], "args"),
        (["def program(x):", "    print(x.sum())"], "prints"),
        (["def program(x):", "    raise ValueError(x.sum().item())"], "raises"),
        (["def program(x):", "    return torch.rand(2)"], "result"),
        (["class Box:", "    n = 0", "def program(x):", "    Box.n += 1"], "['Box'].n"),
        (["def program(x, n=[]):", "    n.append(1)"], "__defaults__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_comparison_sees_a_function_that_is_not_called_again(lines: list[str], what: str) -> None:
    """A stand-in that gives the first call's result for ever differs from eager in what a program does."""

    def only_once(function):
        kept: list[object] = []

        def call(*args, **kwargs):
            if not kept:
                kept.append(None)
                kept[0] = function(*args, **kwargs)
            return kept[0]

        return call

    words, expected, _ = compared(body(*lines), only_once)
    assert words is not None
    assert what in words
    assert words.startswith("call 2")
    assert compared(body(*lines), lambda function: function)[0] is None
    assert len(expected.seen) == 5


def test_the_comparison_sees_a_result_that_is_the_same_list_at_each_call() -> None:
    program = body("def program(x):", "    return [x.shape]")
    kept = [[torch.Size([2])]]
    words, _, _ = compared(program, lambda function: lambda x: kept[0])
    assert words is not None
    assert "the same as" in words


def test_the_comparison_sees_a_view_that_became_a_copy() -> None:
    program = body("def program(x):", "    return x.view(-1)")
    words, _, _ = compared(program, lambda function: lambda x: function(x).clone())
    assert words is not None
    assert "storage" in words


def test_a_program_shrinks_to_the_statement_that_matters() -> None:
    program = next(
        each
        for each in (write(random.Random(f"shrink/{i}")) for i in range(200))
        if "print(" in each.source and any(seen.printed for seen in run(each).seen)
    )

    def prints(candidate: Program) -> bool:
        try:
            return any(seen.printed for seen in run(candidate, repeats=0).seen)
        except Exception:  # noqa: BLE001 - it is not a program any more
            return False

    small = reduced(program, prints, attempts=2000)
    assert prints(small)
    assert len(small.source.splitlines()) < 25, small

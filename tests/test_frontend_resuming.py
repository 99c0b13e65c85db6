"""Native continuation: wherever the interpreter is left, the call comes to the same end.

Each program is captured with a budget of 1, 2, 3, ... instructions; behind that, what is left runs natively: in the
middle of an expression, a loop, a `try`, a `with`, a generator, a call.
"""

from __future__ import annotations

import dis
import sys
from typing import Any

import pytest
import torch

from frontend_differential import CASES, Case, differences, repeat, run

if sys.version_info[:2] == (3, 11):
    import frontend_cases_containers
    import frontend_cases_functions
    import frontend_cases_tensors

    LOADED = (frontend_cases_containers, frontend_cases_functions, frontend_cases_tensors)

from torchsleuth.frontend import capture, machine
from torchsleuth.frontend.bytecode import decode

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

PROGRAMS = (
    "every_kind_of_parameter comprehensions generator_sent_to generators_delegate generator_thrown_into "
    "generator_left_early dict_changed_during_iteration unbound_variables attributes"
).split()
"""With what can be in the middle of something: handlers, cells, iterators, several frames, `super()`."""
MOST = 90


def with_budget(monkeypatch: pytest.MonkeyPatch, name: str, budget: int) -> tuple[list[str], int]:
    monkeypatch.setattr(machine, "MOST_STEPS", budget)
    kept = []

    def wrap(fn):
        kept.append(capture(fn))
        return kept[0]

    found = differences(run(CASES[name]), run(CASES[name], wrap))
    return found, sum(each.natively for each in kept[0].breaks)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_comes_to_the_same_end_wherever_it_goes_on_natively(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F4, F8"""
    left = 0
    for budget in range(1, MOST):
        found, natively = with_budget(monkeypatch, name, budget)
        assert found == [], f"behind {budget} instructions"
        left += natively > 0
    assert left > MOST // 2


def a_long_loop() -> Case:
    """Its jumps are so long that their instructions have a prefix."""
    body = "\n".join(f"        count = (count * 3 + number + {each}) % 11" for each in range(60))
    names: dict[str, Any] = {}
    lines = ["def program(x):", "    count = 0", "    for number in range(3):", body, "        if count > 20:"]
    lines += [body.replace("        ", "            "), "        x = x + count", "    return x, count"]
    exec("\n".join(lines), names)
    return Case(names["program"], repeat(torch.ones(2)))


def test_a_long_jump_goes_on_natively_with_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the jump led anywhere: the process died, or never came to an end.

    Covers: F4, F8
    """
    monkeypatch.setitem(CASES, "a_long_loop", a_long_loop)
    code = a_long_loop().fn.__code__
    prefixed = {each.offset for each in dis.get_instructions(code) if each.opname == "EXTENDED_ARG"}
    instructions = [
        each for each in decode(code).instructions if each.name in ("FOR_ITER", "POP_JUMP_FORWARD_IF_FALSE")
    ]
    assert all(each.begin in prefixed for each in instructions)
    first, last = (decode(code).instructions.index(each) for each in instructions)
    one_turn = last - first + 8
    before = first + 2
    for budget in (*range(before, before + 12), *range(before + one_turn - 12, before + one_turn + 12)):
        found, natively = with_budget(monkeypatch, "a_long_loop", budget)
        assert found == [], f"behind {budget} instructions"
        assert natively

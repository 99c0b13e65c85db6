"""Native continuation: wherever the interpreter is left, the call comes to the same end.

Each program is captured with a budget of 1, 2, 3, ... instructions; behind that, what is left runs natively: in the
middle of an expression, a loop, a `try`, a `with`, a generator, a call.
"""

from __future__ import annotations

import sys

import pytest

from frontend_differential import CASES, differences, run

if sys.version_info[:2] == (3, 11):
    import frontend_cases_containers
    import frontend_cases_functions
    import frontend_cases_tensors

    LOADED = (frontend_cases_containers, frontend_cases_functions, frontend_cases_tensors)

from torchsleuth.frontend import capture, machine

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

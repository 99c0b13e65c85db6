"""Whatever a captured program reads may change under it: it notices. And changing everything notices if it does not.

`benchmarks/frontend_guards.py` makes thousands of changes, to transformers among others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import frontend_fuzz
from frontend_changes import Impossible, Subject
from frontend_fuzz import describe, first_difference, fuzz
from frontend_guard_programs import PROGRAMS
from frontend_perturbations import perturbations, sampled
from frontend_transformers import ARCHITECTURES

needs_python_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> Iterator[None]:
    """One thread: sums of floats depend on how many share them, and small ones are slow with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def capturing(program: Any) -> Any:
    from torchsleuth.frontend import capture

    return capture(program, limit=10**6)


def agree(subject: Subject, most: int, seed: int = 0) -> None:
    found = fuzz(subject, capturing, most=most, seed=seed)
    assert not found.why_not
    assert not found.found, "\n".join(map(str, found.found))
    assert not found.unexplained
    assert not found.crashes
    assert found.changes > most * 0.8
    assert found.different > found.changes * 0.3


@needs_python_3_11
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_captured_program_notices_what_has_changed_under_it(name: str) -> None:
    """With each change, and after each was taken back, it does what the program itself does.

    Covers: F6, F7
    """
    agree(PROGRAMS[name](), 45)


@needs_python_3_11
def test_a_captured_transformer_notices_what_has_changed_under_it() -> None:
    """Covers: F6, F7"""
    agree(Subject(ARCHITECTURES["llama"].model(), [], ARCHITECTURES["llama"].inputs()), 30)


# ---- the fuzz itself --------------------------------------------------------------------------------------


class Net(nn.Module):
    by = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scale = 1.5
        self.names = ["a", "b"]

    def forward(self, x: torch.Tensor, more: int = 2) -> torch.Tensor:
        y = self.linear(x) * self.scale * self.by * len(self.names) + more + OFFSET
        return y * 2 if self.training else y


OFFSET = 3


def net() -> Subject:
    return Subject(Net(), [torch.ones(1, 2)])


def only_once(program: Callable[..., Any]) -> Callable[..., Any]:
    """A cache without guards: it gives for ever what the first call gave, or raises what that raised."""
    kept: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            try:
                kept.append((program(*args, **kwargs), None))
            except Exception as error:  # noqa: BLE001 - raised again at each call
                kept.append((None, error))
        result, error = kept[0]
        if error is not None:
            raise error
        return result

    return call


def itself(program: Callable[..., Any]) -> Callable[..., Any]:
    return program


def test_a_cache_without_guards_is_found_out() -> None:
    found = fuzz(net(), only_once, most=200)
    assert found.different > 80
    assert len(found.stale) > found.different * 0.85  # what is kept follows hooks of gradients without any guard
    assert not found.wrong


@pytest.mark.parametrize(
    "change",
    [
        "program.scale: a half more",
        "program.names: an element is added",
        "program.linear.weight: its values change",
        "program.linear.weight: doubles",
        "program.linear: frozen",
        "program.linear: a forward hook",
        "program.linear: the identity for a module",
        "program.linear: a backward pre-hook",
        "program: the other mode",
        "class Net.forward: a function that gives other results",
        "class Net.forward: default 0: one more",
        "class Net.by: one more",
        "class Net.scale: a property",
        "test_frontend_guards.OFFSET: one more",
        "argument 0: doubles",
        "argument 0: gradients wanted",
        "call: an argument more",
        "torch: no gradients",
        "torch: autocast",
        "torch: a forward hook of all modules",
    ],
)
def test_what_may_be_changed(change: str) -> None:
    """Each of these is found to be stale in a cache without guards."""
    found = fuzz(net(), only_once, only=change)
    assert found.changes
    assert found.stale


def test_a_program_that_is_called_as_it_is_is_never_found_stale() -> None:
    found = fuzz(net(), itself, most=200)
    assert found.found == []
    assert found.changes > 150
    assert found.raised > 20


def test_a_guard_that_is_missing_is_named_by_what_was_changed() -> None:
    """A cache that looks at everything but one global."""
    kept: dict[Any, Any] = {}

    def capturing(program: Any) -> Callable[..., Any]:
        kept.clear()

        def call(*args: Any) -> Any:
            global OFFSET
            if OFFSET != 3 and kept:
                before, OFFSET = OFFSET, 3
                try:
                    return program(*args)
                finally:
                    OFFSET = before
            kept["called"] = True
            return program(*args)

        return call

    found = fuzz(net(), capturing, most=200)
    assert {each.change.where for each in found.stale} == {"test_frontend_guards.OFFSET"}


def test_what_goes_wrong_only_after_a_change_was_taken_back_is_found() -> None:
    """A cache that takes greater scales for new, and smaller ones for known."""

    def capturing(program: Net) -> Callable[..., Any]:
        kept: dict[str, Any] = {"scale": 0.0}

        def call(x: torch.Tensor) -> Any:
            if program.scale > kept["scale"]:
                kept.update(scale=program.scale, result=program(x))
            return kept["result"]

        return call

    found = fuzz(net(), capturing, only="program.scale: a half more")
    assert [each.when for each in found.found] == ["after it was taken back"]


def test_what_is_recorded_wrongly_is_told_from_what_is_stale() -> None:
    """A front end that never looks at hooks."""
    found = fuzz(net(), lambda program: lambda *args: program.forward(*args), only="program: a forward hook")
    assert found.wrong
    assert not found.stale


def test_a_change_that_makes_a_program_endless_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_fuzz, "MOST_SECONDS", 0.2)
    steps = {"by": 1}

    def program(x: torch.Tensor) -> torch.Tensor:
        left = 3
        while left:  # by two, it never is zero
            left -= steps["by"]
        return x + left

    found = fuzz(Subject(program, [torch.ones(2)], outside=[steps]), itself)
    assert found.changes
    assert found.found == []


def test_of_many_changes_some_of_every_kind_are_drawn() -> None:
    changes = perturbations(net())
    kinds = {each.what for each in changes}
    chosen = sampled(changes, len(kinds) + 20)
    assert len(chosen) == len(kinds) + 20 < len(changes)
    assert {each.what for each in chosen} == kinds
    assert chosen == sampled(changes, len(kinds) + 20)


@pytest.mark.parametrize("name", ["an mlp", "an object", "closures", "containers", "globals and builtins"])
def test_every_change_is_taken_back(name: str) -> None:
    subject = PROGRAMS[name]()
    world = {"program": subject.program, "args": subject.args, "kwargs": subject.kwargs}
    changes = sampled(perturbations(subject), 500)
    before = describe(world)
    for change in changes:
        try:
            with change.made():
                pass
        except Impossible:
            pass
        assert first_difference(before, describe(world)) is None, change

"""Transformers, captured: the results, gradients and parameters of eager, bit for bit, from recordings that are reused.

`benchmarks/frontend_models.py` does the same with many more architectures.
"""

from __future__ import annotations

import sys

import pytest
import torch

from frontend_transformers import ARCHITECTURES, MAIN, STEPS, Architecture, check, train

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums of floats depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def captured(model):
    from torchsleuth.frontend import capture

    return capture(model)


@pytest.mark.parametrize("name", MAIN)
def test_a_model_gives_what_it_gives_in_eager(name: str) -> None:
    """Three calls and two with other data; the recording of the first call serves them all.

    Covers: F3, F6, F7
    """
    found = check(ARCHITECTURES[name], captured)
    assert found.differences == []
    assert not found.captured.crashes
    assert found.settled
    assert found.recordings_on_new_data == 0


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_model_is_one_graph(name: str) -> None:
    """Hundreds of calls of user functions are inlined.

    Covers: F3
    """
    found = check(ARCHITECTURES[name], captured)
    assert len(found.captured.graphs) == 1
    assert found.captured.breaks == []
    assert found.recordings == 1


def test_a_branch_on_a_mask_breaks_the_graph_and_the_model_is_right() -> None:
    """BERT looks whether its mask masks anything.

    Covers: F4
    """
    found = check(ARCHITECTURES["bert"], captured)
    assert found.right
    assert any("a branch on the value of a tensor" in each.reason for each in found.captured.breaks)
    assert len(found.captured.graphs) >= 2


def test_without_a_mask_it_is_one_graph() -> None:
    """Covers: F3"""
    found = check(Architecture("bert"), captured)
    assert found.right
    assert (len(found.captured.graphs), found.captured.breaks) == (1, [])


@pytest.mark.parametrize("name", MAIN)
def test_training_with_dropout_gives_the_parameters_of_eager(name: str) -> None:
    """Losses, gradients, parameters and random numbers after each of three steps.

    Covers: F6, F9
    """
    found = train(ARCHITECTURES[name], captured)
    assert found.differences == []
    assert not found.captured.crashes
    assert found.captured.hits == STEPS - 1


# ---- the comparison itself --------------------------------------------------------------------------------


def test_the_comparison_sees_results_that_are_a_little_off() -> None:
    def off(model):
        def call(**inputs):
            result = model(**inputs)
            result.last_hidden_state = result.last_hidden_state * (1 + 2**-23)
            return result

        return call

    found = check(ARCHITECTURES["llama"], off)
    assert found.differences[0].startswith("call 1: ")
    assert "last_hidden_state" in found.differences[0]


def test_the_comparison_sees_random_numbers_that_were_not_drawn() -> None:
    def without_dropout(model):
        return lambda **inputs: model.eval()(**inputs)

    found = train(ARCHITECTURES["gpt2"], without_dropout)
    assert "step 1: loss" in found.differences
    assert "step 1: random state" in found.differences

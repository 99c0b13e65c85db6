"""Where reducing looks first: what the failure itself says of who is to blame."""

from __future__ import annotations

import pytest
import torch

from reduce_samples import recorded
from torchsleuth.case import schema
from torchsleuth.outcome import Stage
from torchsleuth.reduce.guiding import guesses
from torchsleuth.reduce.restricting import Whole

LENGTH = 40


def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two chains that never meet; the second one is of other operators, and shorter."""
    for _ in range(LENGTH):
        x = torch.sin(x)
    for _ in range(4):
        y = torch.cos(y)
    return x, torch.exp(y)


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(LENGTH):
        y = torch.sin(y)
    x.copy_(torch.tanh(torch.cos(x)))
    return y


def guessed(function: object, **known: object) -> list[list[str]]:
    """The guesses about a failure of which so much is known, in the order in which they are made."""
    case, _ = recorded(function, torch.ones(3), torch.ones(3))  # type: ignore[arg-type]
    signature = schema.Signature("mismatched", Stage.COMPARE, op=known.pop("op", None))  # type: ignore[arg-type]
    found = guesses(Whole(case), schema.Failure(signature, **known))  # type: ignore[arg-type]
    return [sorted(guess) for guess in found]


def test_the_node_that_is_named_comes_first_by_itself_then_with_its_neighbours() -> None:
    first, second, third, *_ = guessed(chain, node="sin_20")
    assert first == ["sin_20"]
    assert second == ["sin_19", "sin_20", "sin_21"]
    assert third == ["sin_18", "sin_19", "sin_20", "sin_21", "sin_22"]


def test_what_is_closest_to_the_wrong_output_is_tried_in_growing_parts() -> None:
    """Nothing of what does not lead to it, and never most of the graph."""
    parts = guessed(chain, path="output[0][2]")[:3]
    assert [len(part) for part in parts] == [2, 4, 8]
    assert parts[0] == ["sin_38", "sin_39"]
    assert parts[1] == ["sin_36", "sin_37", "sin_38", "sin_39"]
    assert guessed(chain, path="output[1]")[0] == ["cos_3", "exp"]


def test_a_wrong_input_is_one_that_was_written_to() -> None:
    assert guessed(writes, path="inputs[0]")[0] == ["copy_", "tanh"]


@pytest.mark.parametrize("path", ["", "output[7]", "inputs[1]", "inputs[9]", "grads[0]", "logits"])
def test_a_path_that_leads_nowhere_is_no_guess(path: str) -> None:
    """What is left is one operator of each sort."""
    assert guessed(chain, path=path) == [["cos", "exp", "sin"]]


def test_guesses_are_few_and_small() -> None:
    """A wrong one must cost little: about log₂ n of them, all but one of at most a quarter of the graph."""
    found = guessed(chain, path="output[0]", node="sin_20", op="aten.sin.default")
    assert len(found) == len({tuple(one) for one in found})
    assert len(found) <= 3 + 4 + 3 + 1
    assert sum(len(one) > (LENGTH + 5) // 4 for one in found) <= 1

"""Where reducing looks first: what the failure itself says of who is to blame."""

from __future__ import annotations

import msgspec
import pytest
import torch

from reduce_driving import targets
from reduce_samples import recorded, runs
from torchsleuth.case import schema
from torchsleuth.case.schema import Tensor
from torchsleuth.case.storages.tensors import TensorWriter
from torchsleuth.outcome import Stage
from torchsleuth.reduce.guiding import guesses
from torchsleuth.reduce.legality import legal
from torchsleuth.reduce.restricting import Whole
from torchsleuth.run.values import Recorded

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
    """The guesses about a failure of which so much is known, in the order in which they are made; without those of
    operators that are tried each by itself."""
    case, _ = recorded(function, torch.ones(3), torch.ones(3))  # type: ignore[arg-type]
    signature = schema.Signature("mismatched", Stage.COMPARE, op=known.pop("op", None))  # type: ignore[arg-type]
    found = guesses(Whole(case), schema.Failure(signature, **known))  # type: ignore[arg-type]
    return [sorted(guess.names) for guess in found if not guess.apart]


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


def test_a_wrong_result_of_nobody_s_is_looked_for_in_one_operator_of_each_sort_by_itself() -> None:
    """In two graphs, without those that only look at values; not if the operator is known already."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(torch.sin(x.view(3, 1)).view(3) + y)
        return x

    def apart(op: str | None) -> list[list[str]]:
        case, _ = recorded(program, torch.ones(3), torch.ones(3))
        failure = schema.Failure(schema.Signature("mismatched", Stage.COMPARE, op=op))
        return [sorted(one.names) for one in guesses(Whole(case), failure) if one.apart]

    assert apart(None) == [["relu", "sin"], ["add"]]
    assert apart("aten.sin.default") == []


def test_only_those_that_led_to_a_wrong_result_are_suspected() -> None:
    """Covers: U5. Others may be wrong as well, but not in the way that was recorded."""
    case, _ = recorded(chain, torch.ones(3), torch.ones(3))
    failure = schema.Failure(schema.Signature("mismatched", Stage.COMPARE), path="output[1]")
    assert [sorted(one.names) for one in guesses(Whole(case), failure) if one.apart] == [["cos"], ["exp"]]


def test_operators_apart_are_given_what_eager_computed() -> None:
    """Covers: U25. Each returns what it returns in the whole; what eager computed of nobody knows is left out."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        top, _ = torch.relu(x.sin()).max(0)
        return (top + y).tanh()

    x, y = torch.randn(4, 3), torch.randn(3)
    case, blobs = recorded(program, x, y)
    writer = TensorWriter(blobs)
    known = {}
    for name, value in {"sin": x.sin(), "relu": x.sin().relu(), "add": x.sin().relu().amax(0) + y}.items():
        tensor = writer.add(value)
        assert isinstance(tensor, Tensor)
        known[name] = Recorded(msgspec.structs.replace(tensor, storage=0), writer.storages[-1])
    made = Whole(case, known).apart({"sin", "relu", "max_1", "add", "tanh"})
    assert made is not None
    assert legal(made)
    assert targets(made) == ["sin", "relu", "max", "getitem", "getitem", "tanh"]
    expected = x.sin(), x.sin().relu(), *x.sin().relu().max(0), (x.sin().relu().amax(0) + y).tanh()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(runs(made, blobs), expected, strict=True))
    assert Whole(case).apart({"relu"}) is None


def test_what_a_library_computes_comes_last_among_operators_apart() -> None:
    """Covers: U16. A product between others keeps them from sharing a kernel, and each kernel takes as long again."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, x.sin(), torch.addmm(x, x, y), *y.max(0)

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    case, blobs = recorded(program, x, y)
    made = Whole(case).apart({"mm", "sin", "addmm", "max_1"})
    assert made is not None
    assert legal(made)
    assert targets(made) == ["sin", "max", "getitem", "getitem", "mm", "addmm"]
    expected = x.sin(), *y.max(0), x @ y, torch.addmm(x, x, y)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(runs(made, blobs), expected, strict=True))

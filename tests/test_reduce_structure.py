"""The passes on the structure of a graph: what every patch promises, and what a list of passes leads to."""

from __future__ import annotations

import re

import msgspec
import pytest
import torch

from case_samples import output, small_case
from reduce_driving import NOT_BY_FAKES, calls, check_patch, driven, randn, sampled, targets
from reduce_samples import programs, recorded, recorded_after_dynamo, runs
from torchsleuth.case.schema import Case, Entry, Fake, Generated, Graph, List, Meta, Node, Ref, Tensor, Torch
from torchsleuth.reduce.graphs import placeholders, produced
from torchsleuth.reduce.legality import legal
from torchsleuth.reduce.order import outputs_of
from torchsleuth.reduce.passes import arguments, bypassing, inputs, replacing, simplifying
from torchsleuth.reduce.patches import Material, Pass, combined
from torchsleuth.reduce.restricting import Whole

functional = torch.nn.functional

PASSES: list[Pass] = [
    inputs.outputs,
    inputs.plain_inputs,
    inputs.unused_inputs,
    bypassing.bypassed,
    replacing.replaced,
    inputs.merged_inputs,
    inputs.plain_constants,
    simplifying.simplified,
    arguments.arguments,
]


def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = functional.gelu(torch.addmm(b, x, w))
    z = torch.native_layer_norm(y, [5], g, b, 1e-5)[0]
    return z, torch.softmax(y, -1).sum(0), torch.cat([y, z]).view(-1), x


MODEL_INPUTS = (randn(4, 3), randn(3, 5), randn(5), randn(5))


def check_all(case: Case, blobs: object, most: int) -> int:
    made = 0
    for patch in sampled(case, Material(blobs), PASSES, most):  # type: ignore[arg-type]
        try:
            made += check_patch(patch, case, blobs) is not None  # type: ignore[arg-type]
        except (RuntimeError, IndexError) as error:
            if not re.search(NOT_BY_FAKES, str(error)):
                raise
    return made


@pytest.mark.parametrize("name", programs())
def test_what_every_patch_promises(name: str) -> None:
    """A patch makes nothing, or a case that is legal, smaller, the same each time, written and read, and runs.

    Covers: U19, U25
    """
    function, given = programs()[name]
    case, blobs = recorded(function, *given)
    assert check_all(case, blobs, 2) >= 2


@pytest.mark.parametrize("name", ["linear", "elementwise", "split"])
def test_what_every_patch_promises_with_symbolic_sizes(name: str) -> None:
    """The same where sizes are symbols. Covers: U4, U25"""
    function, given = programs()[name]
    case, blobs = recorded(function, *given, dynamic=True)
    assert check_all(case, blobs, 2) >= 2


@pytest.mark.parametrize("name", ["linear", "attention", "convolution"])
def test_what_every_patch_promises_after_dynamo(name: str) -> None:
    """The same on torch's functions and methods. Covers: U19, U25"""
    function, given = programs()[name]
    case, blobs = recorded_after_dynamo(function, *given)
    assert check_all(case, blobs, 2) >= 2


def test_patches_of_several_sites_go_together() -> None:
    """All sites of a pass at once, each with its best patch, make a legal case."""
    case, blobs = recorded(model, *MODEL_INPUTS)
    for one in PASSES:
        sites = [site for site in one(case, Material(blobs)) if site]
        if sites:
            made = combined([site[0] for site in sites])(case)
            assert made is None or (legal(made) and runs(made, blobs))


# ---- where it leads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_product_in_a_model(dynamic: bool) -> None:
    """addmm, gelu, a norm and more around it: what is left is one mm on plain inputs. Covers: U19"""
    case, blobs = recorded(model, *MODEL_INPUTS, dynamic=dynamic)
    found, asked = driven(case, blobs, PASSES, lambda one: bool({"mm", "addmm"} & set(targets(one))))
    assert targets(found) == ["mm"]
    assert len(placeholders(found.graph)) == 2
    assert len(outputs_of(found.graph)) == 1
    assert asked <= 25


@pytest.mark.parametrize(
    ("wanted", "ends", "most"),
    [(("native_layer_norm",), 2, 30), (("cat", "sum"), 3, 60), (("gelu", "view"), 2, 40), (("_softmax",), 2, 20)],
)
def test_what_is_needed_is_what_is_left(wanted: tuple[str, ...], ends: int, most: int) -> None:
    """Whatever does not matter is gone, in the middle as well as at the ends. Covers: U19"""
    case, blobs = recorded(model, *MODEL_INPUTS)
    found, asked = driven(case, blobs, PASSES, calls(*wanted))
    assert set(targets(found)) - {"getitem"} == set(wanted)
    assert len(found.inputs) + len(outputs_of(found.graph)) == ends
    assert asked <= most
    assert runs(found, blobs)


def test_has_mul_is_two_nodes() -> None:
    """A graph with a multiplication somewhere: an input, the multiplication, the output."""
    case, blobs = recorded(lambda x, y: ((x.sin() + y) * y.cos()).relu().sum(), randn(4, 3), randn(4, 3))
    found, _ = driven(case, blobs, PASSES, calls("mul"))
    assert [node.op for node in found.graph.nodes] == ["placeholder", "call_function", "output"]
    assert targets(found) == ["mul"]


def test_after_dynamo_as_well() -> None:
    """Functions, methods and gradients: one operator on a plain input is left."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, w)).tanh().sum(0)

    case, blobs = recorded_after_dynamo(program, randn(4, 3, requires_grad=True), randn(5, 3, requires_grad=True))
    found, _ = driven(case, blobs, PASSES, calls("gelu"))
    assert targets(found) == ["gelu"]
    assert [value.requires_grad for value in found.inputs] == [False]  # type: ignore[union-attr]
    assert produced(placeholders(found.graph)[0]).requires_grad is False  # type: ignore[union-attr]


def test_gradients_stay_if_they_are_needed() -> None:
    """Nothing is taken away that the failure needs."""
    case, blobs = recorded_after_dynamo(lambda x, y: x.sin() * y, randn(3, requires_grad=True), randn(3))

    def holds(one: Case) -> bool:
        return any(getattr(value, "requires_grad", False) for value in one.inputs)

    found, _ = driven(case, blobs, PASSES, holds)
    assert [value.requires_grad for value in found.inputs] == [True]  # type: ignore[union-attr]


# ---- one pass at a time --------------------------------------------------------------------------------------


def test_outputs_that_are_no_results_go_at_once() -> None:
    """Inputs that are handed through, and what is returned twice."""
    case, blobs = recorded(lambda x: (x, x.sin(), x, x.cos()), randn(3))
    first = next(iter(inputs.outputs(case, Material(blobs))))[0](case)
    assert first is not None
    assert [getattr(one, "name", None) for one in outputs_of(first.graph)] == ["sin", "cos"]


def test_an_output_that_becomes_an_input_is_no_output() -> None:
    """Stepping over an operator never leaves a graph that hands its input through."""
    case, blobs = recorded(lambda x: (x.sin(), x.cos()), randn(3))
    for site in bypassing.bypassed(case, Material(blobs)):
        for patch in site:
            made = patch(case)
            assert made is not None
            assert len(outputs_of(made.graph)) == 1


def test_a_call_that_is_there_for_what_it_does_can_go() -> None:
    """Nobody uses the result of a copy into an input."""
    function, given = programs()["epilogue"]
    case, blobs = recorded(function, *given)
    found, _ = driven(case, blobs, [bypassing.bypassed], calls("add"))
    assert targets(found) == ["add"]


def test_an_adapter_that_is_simpler() -> None:
    """What has another shape is replaced by a sum of what it was computed from."""
    case, blobs = recorded(lambda x: (x.var(1).sin(), x), randn(4, 3))
    made = [patch(case) for site in bypassing.bypassed(case, Material(blobs)) for patch in site]
    assert any(one is not None and "sum" in targets(one) and "var" not in targets(one) for one in made)


def test_a_result_as_an_input_has_a_recipe() -> None:
    """No data is made up: numbers that are drawn for floats, zeros for integers, which may be indices."""
    case, blobs = recorded(lambda x: (x.sin().cos(), torch.argsort(x) + 1), randn(4))
    found, _ = driven(case, blobs, [replacing.replaced], lambda one: {"cos", "add"} <= set(targets(one)))
    assert sorted(targets(found)) == ["add", "cos"]
    made = {one.content.dtype: one.content.how for one in found.storages if isinstance(one.content, Generated)}
    assert made == {"float32": "normal", "int64": "constant"}


def test_a_result_as_a_constant() -> None:
    """Where nothing else will do, a constant is simpler than what was computed."""
    case, blobs = recorded(lambda x: torch.erfinv(x) * x, randn(3))
    patches = [patch for site in replacing.replaced(case, Material(blobs)) for patch in site if "1" in patch.words]
    made = [one for one in (patch(case) for patch in patches) if one is not None]
    assert any(targets(one) == ["full", "mul"] for one in made)


def test_arguments_become_simple() -> None:
    """Left out, rounder, fewer."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.cat([x, y, x, y], 1), 0.123456, alpha=3)

    case, blobs = recorded(program, randn(2, 3), randn(2, 3))
    found, _ = driven(case, blobs, [arguments.arguments, inputs.unused_inputs], calls("cat", "add"))
    cat, add = (node for node in found.graph.nodes if node.op == "call_function")
    assert isinstance(cat.args[0], List)
    assert len(cat.args[0].items) == 1
    assert add.kwargs == ()
    assert add.args[1] in (0.0, 1)


def test_a_number_stands_for_a_tensor_in_arithmetic_only() -> None:
    """Covers: U25. Eager takes one for any tensor, but no compiler is ever given `copy_(x, 1)`."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.maximum(x, y) * y)
        return x

    case, blobs = recorded(program, randn(2, 3), randn(2, 3))
    words = [patch.words for site in arguments.arguments(case, Material(blobs)) for patch in site]
    assert [one for one in words if one.endswith(" 1")] == ["mul: argument 2 1", "mul: argument 1 1"]


# ---- what is legal -------------------------------------------------------------------------------------------


def _with(*nodes: Node, **changes: object) -> Case:
    x = small_case().graph.nodes[0]
    return msgspec.structs.replace(small_case(**changes), graph=Graph((x, *nodes)))


def _call(name: str, target: str, *args: object, kwargs: tuple[Entry, ...] = ()) -> Node:
    meta = Meta(val=Fake("float32", (2, 3), (3, 1)))
    return Node(name, "call_function", f"torch.ops.aten.{target}", args, kwargs, meta)  # type: ignore[arg-type]


EMPTY = _call("e", "empty.memory_format", List((2, 3)), kwargs=(Entry("dtype", Torch("float32")),))
FULL = _call("f", "full.default", List((2, 3)), 1)
RELU = _call("r", "relu.default", Ref("x"))


@pytest.mark.parametrize(
    ("case", "is_legal"),
    [
        (small_case(), True),
        (_with(RELU, output("r")), True),
        (_with(RELU, output("r", "x")), True),
        (_with(output("x")), False),
        (_with(FULL, output("f")), False),
        (_with(RELU, output("x")), False),
        (_with(RELU, FULL, output("f")), False),
        (_with(RELU, EMPTY, output("r", "e")), False),
        (_with(EMPTY, _call("v", "view.default", Ref("e"), List((6,))), RELU, output("r", "v")), False),
        (_with(EMPTY, _call("a", "add.Tensor", Ref("e"), Ref("x")), output("a")), False),
        (_with(EMPTY, _call("c", "copy.default", Ref("e"), Ref("x")), output("c")), True),
        (_with(EMPTY, _call("z", "zeros_like.default", Ref("e")), RELU, output("r", "z")), True),
        (_with(_call("r", "relu.default", Ref("gone")), output("r")), False),
        (_with(RELU, output("r"), inputs=()), False),
        (_with(RELU, output("r"), examples=()), False),
    ],
)
def test_what_is_legal(case: Case, is_legal: bool) -> None:
    """Something is computed, and nothing is returned that nobody wrote. Covers: U25"""
    assert legal(case) is is_legal


def test_a_mode_that_is_entered_is_left() -> None:
    """A graph may not leave the process that runs it in another state."""
    enter = Node("e", "call_function", "torch.amp.autocast_mode._enter_autocast", ("cpu", None, True, None))
    leave = Node("l", "call_function", "torch.amp.autocast_mode._exit_autocast", (Ref("e"),))
    assert legal(_with(enter, RELU, leave, output("r")))
    assert not legal(_with(enter, RELU, output("r")))
    assert not legal(_with(RELU, leave, output("r")))


# ---- arguments that operators take on fakes only ---------------------------------------------------------------


def _backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward.default(
        g, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return found[:2]


def test_a_gradient_is_still_asked_for() -> None:
    """What an operator is told not to compute is None, and no result. Covers: U25"""
    case, blobs = recorded(_backward, randn(2, 8, 4, 4), randn(2, 3, 4, 4), randn(8, 3, 3, 3))
    found, _ = driven(case, blobs, [arguments.arguments, inputs.outputs], calls("convolution_backward"))
    returned = [produced(node) for node in found.graph.nodes if node.target == "operator.getitem"]
    assert len(returned) == 1
    assert isinstance(returned[0], Fake)
    (call,) = (node for node in found.graph.nodes if "convolution" in node.target)
    assert call.args[4] == call.args[6] == List((1,))
    assert call.args[9] == 1


def test_none_stands_only_where_it_may() -> None:
    """Operators take None for any tensor on fakes, and do nothing with it. Covers: U25"""
    case, blobs = recorded(lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), randn(3, 4), randn(4))
    words = [one.words for site in arguments.arguments(case, Material(blobs)) for one in site]
    assert "native_layer_norm: argument 3 None" in words
    assert "native_layer_norm: argument 1 None" not in words


def test_an_input_that_is_written_to_requires_no_gradient() -> None:
    """Torch refuses a leaf that does. Covers: U25"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x * 2, inplace=True).sin().relu_().cos()

    case, _ = recorded_after_dynamo(program, randn(3, requires_grad=True))
    whole = Whole(case)
    for names in (("relu", "cos"), ("relu_", "cos"), ("cos",)):
        kept = {node.name for node in case.graph.nodes if node.target.rpartition(".")[2] in names}
        cut = whole.only(kept)
        assert cut is not None
        (given,) = cut.inputs
        (node,) = placeholders(cut.graph)
        fake = produced(node)
        assert isinstance(given, Tensor)
        assert isinstance(fake, Fake)
        assert given.requires_grad == fake.requires_grad == (len(names) == 1)

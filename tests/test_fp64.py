"""The fp64 reference: the same program in double precision, however it spells its casts and wherever it comes from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.compare import cast_to_fp64, run_fwd_maybe_bwd, same_two_models
from torchsleuth.compare.models import run_in_fp64
from torchsleuth.compare.rng import RngState, Tape, TapeMismatch, preserved
from torchsleuth.compare.tree import map_tensors
from torchsleuth.errors import NoReference

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

aten, prims = torch.ops.aten, torch.ops.prims
F64 = torch.float64
Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> Any:
    with preserved():
        torch.manual_seed(0)
        yield


# ---- ways of getting at a program ------------------------------------------------------------------------


def by_symbolic_trace(program: Program, *inputs: Any) -> Any:
    return torch.fx.symbolic_trace(program)


def by_make_fx(program: Program, *inputs: Any) -> Any:
    return make_fx(program)(*inputs)


def by_dynamo(program: Program, *inputs: Any) -> Any:
    """The graph that Dynamo hands to a backend; it takes the same inputs, for the programs below."""
    captured = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        captured.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(program, backend=backend, fullgraph=True)(*inputs)
    assert len(captured) == 1
    return captured[0]


def as_it_is(program: Program, *inputs: Any) -> Any:
    return program


def as_a_module(program: Program, *inputs: Any) -> Any:
    class Program(nn.Module):
        def forward(self, *args: Any) -> Any:
            return program(*args)

    return Program()


EVERY_WAY = [by_symbolic_trace, by_make_fx, by_dynamo, as_it_is, as_a_module]


def in_fp64(model: Any, *inputs: Any) -> Any:
    wide, wide_inputs = cast_to_fp64(model, list(inputs))
    result = wide(*wide_inputs)
    return result[0] if isinstance(result, tuple) and len(result) == 1 else result


def is_exact(result: torch.Tensor, expected: torch.Tensor) -> None:
    """The result is in double precision and is what was computed there by hand."""
    assert expected.dtype in (F64, torch.complex128)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


X = torch.tensor([[0.1, -0.7, 1.3], [2.7, 0.3, -1.9]])
EXACT_X = X.double()

# Each spelling of a cast, and what is left of it in double precision.
CASTS: dict[str, tuple[Program, Program]] = {
    "float": (lambda x: x.float() / 3, lambda x: x / 3),
    "half": (lambda x: x.half() / 3, lambda x: x / 3),
    "bfloat16": (lambda x: x.bfloat16() / 3, lambda x: x / 3),
    "half and back": (lambda x: (x.half() / 3).float() * 7, lambda x: x / 3 * 7),
    "to": (lambda x: x.to(torch.float16) / 3, lambda x: x / 3),
    "to dtype=": (lambda x: x.to(dtype=torch.bfloat16) / 3, lambda x: x / 3),
    "to device, dtype": (lambda x: x.to("cpu", torch.float16) / 3, lambda x: x / 3),
    "to eight bits": (lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) / 3, lambda x: x / 3),
    "to other": (lambda x: x.to(torch.zeros(1, dtype=torch.float16)) / 3, lambda x: x / 3),
    "type": (lambda x: x.type(torch.float16) / 3, lambda x: x / 3),
    "type of text": (lambda x: x.type("torch.HalfTensor") / 3, lambda x: x / 3),
    "type_as": (lambda x: x.type_as(x.half()) / 3, lambda x: x / 3),
    "zeros": (lambda x: torch.zeros(3, dtype=torch.float32) + x / 3, lambda x: x / 3),
    "full": (lambda x: torch.full((3,), 0.25, dtype=torch.float16) * x / 3, lambda x: 0.25 * x / 3),
    "ones_like": (lambda x: torch.ones_like(x, dtype=torch.float16) / 3 * x, lambda x: torch.ones_like(x) / 3 * x),
    "new_full": (lambda x: x.new_full((3,), 0.5, dtype=torch.bfloat16) / 3 + x, lambda x: 0.5 / 3 + x),
    "arange": (lambda x: torch.arange(3, dtype=torch.float32) * x / 3, lambda x: torch.arange(3) * x / 3),
    "linspace": (lambda x: torch.linspace(0, 1, 3) * x, lambda x: torch.linspace(0, 1, 3, dtype=F64) * x),
    "sum": (lambda x: x.half().sum(dtype=torch.float32) / 3, lambda x: x.sum() / 3),
    "softmax": (lambda x: F.softmax(x, -1, dtype=torch.float32) / 3, lambda x: F.softmax(x, -1) / 3),
    "softmax half": (lambda x: x.half().softmax(-1), lambda x: x.softmax(-1)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1, dtype=torch.float32), lambda x: torch.log_softmax(x, -1)),
    "cumsum": (lambda x: x.cumsum(0, dtype=torch.float16), lambda x: x.cumsum(0)),
    "integers stay": (lambda x: x.to(torch.int64).float() / 3 + x, lambda x: x.long().double() / 3 + x),
    "bools stay": (lambda x: (x > 0).half() / 3, lambda x: (x > 0).double() / 3),
    "argmax stays": (lambda x: x.half().argmax(-1).to(torch.float16) / 3, lambda x: x.argmax(-1).double() / 3),
    "aten._to_copy": (lambda x: aten._to_copy(x, dtype=torch.float16) / 3, lambda x: x / 3),
    "aten.to": (lambda x: aten.to.dtype(x, torch.float16) / 3, lambda x: x / 3),
    "prims": (lambda x: prims.convert_element_type(x, torch.float16) / 3, lambda x: x / 3),
    "torch.Tensor.half": (lambda x: torch.Tensor.half(x) / 3, lambda x: x / 3),
    "matmul": (lambda x: (x.half() @ x.half().T).float(), lambda x: x @ x.T),
    "cfloat": (lambda x: x.to(torch.complex64) / 3, lambda x: x.cdouble() / 3),
    "complex": (lambda x: torch.complex(x.float(), x.float()).abs(), lambda x: torch.complex(x, x).abs()),
    "fft": (lambda x: torch.fft.fft(x.float()).real, lambda x: torch.fft.fft(x).real),
}

CANNOT_BE_TRACED = {(by_symbolic_trace, "torch.Tensor.half"), (by_make_fx, "quantise")}


def in_every_way(names: Any) -> Any:
    """Each name with each way of getting at a program; some tracers do not take some programs."""
    pairs = [(way, name) for name in names for way in EVERY_WAY if (way, name) not in CANNOT_BE_TRACED]
    return pytest.mark.parametrize(("capture", "name"), pairs, ids=[f"{way.__name__}-{name}" for way, name in pairs])


@in_every_way(CASTS)
def test_a_hard_coded_cast_becomes_fp64(capture: Any, name: str) -> None:
    """Covers: U11"""
    program, exact = CASTS[name]
    model = capture(program, X)
    is_exact(in_fp64(model, X), exact(EXACT_X))


def test_a_cast_that_stays_would_be_noticed() -> None:
    """So that the tests above can fail: fp16 is not exact."""
    with pytest.raises(AssertionError):
        is_exact((X.half() / 3).double(), EXACT_X / 3)


# ---- programs with more to them --------------------------------------------------------------------------


class Mixed(nn.Module):
    """Parameters, a buffer, a tied weight, plain tensors, and casts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(0.1))
        self.register_buffer("count", torch.tensor(3))
        self.constant = torch.tensor([0.1, 0.2, 0.3])
        self.table = [torch.tensor(0.7), {"k": torch.tensor(0.9)}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.float()).to(torch.float16).tanh()
        x = self.second(x.float()) * self.scale + self.constant
        return (x * self.table[0] + self.table[1]["k"]).float() / self.count


def exactly(model: Mixed, x: torch.Tensor) -> torch.Tensor:
    weight = model.first.weight.double()
    x = (x @ weight.T + model.first.bias.double()).tanh()
    x = (x @ weight.T + model.second.bias.double()) * model.scale.double() + model.constant.double()
    return (x * model.table[0].double() + model.table[1]["k"].double()) / model.count


@pytest.mark.parametrize("capture", [as_it_is, by_symbolic_trace])
def test_a_module_runs_in_fp64_with_its_ties_and_tensors(capture: Any) -> None:
    """Covers: U11"""
    torch.manual_seed(1)
    model = Mixed()
    wide, (x,) = cast_to_fp64(capture(model, X), [X])
    is_exact(wide(x), exactly(model, EXACT_X))
    parameters = dict(wide.named_parameters())
    assert {p.dtype for p in parameters.values()} == {F64}
    assert list(parameters) == ["first.weight", "first.bias", "second.bias"], "tied: listed once"
    assert wide.model.first.weight is wide.model.second.weight
    buffers = dict(wide.named_buffers())
    assert (buffers["scale"].dtype, buffers["count"].dtype) == (F64, torch.int64)


def test_gradients_of_tied_weights_are_those_of_fp64() -> None:
    """Covers: U11"""
    torch.manual_seed(1)
    model = Mixed()
    results = run_in_fp64(model, [X.clone().requires_grad_()], False, None, RngState.capture())
    exact_x = EXACT_X.clone().requires_grad_()
    exactly(model, exact_x).mean().backward()
    is_exact(results.input_grads[0], exact_x.grad)
    torch.testing.assert_close(results.grads["first.weight"].float(), model.first.weight.grad)
    assert results.grads["first.weight"].dtype == F64


@pytest.mark.parametrize("capture", EVERY_WAY)
def test_what_was_given_stays_as_it_was(capture: Any) -> None:
    """Covers: S36, U11"""
    torch.manual_seed(1)
    model = Mixed() if capture in (as_it_is, by_symbolic_trace) else None
    given = capture(model or CASTS["half and back"][0], X)
    inputs = [X.clone().requires_grad_(), {"y": X.clone()}, 3, torch.tensor([1])][: 1 if model is None else 4]
    before = copy.deepcopy((given.state_dict() if isinstance(given, nn.Module) else None, inputs))
    code = given.code if isinstance(given, torch.fx.GraphModule) else None
    version = inputs[0]._version
    wide, wide_inputs = cast_to_fp64(given, inputs)
    wide(wide_inputs[0])
    assert torch.get_default_dtype() == torch.float32
    state, kept = before
    if isinstance(given, nn.Module):
        assert all(torch.equal(value, state[name]) for name, value in given.state_dict().items())
        assert all(value.dtype == state[name].dtype for name, value in given.state_dict().items())
    if model is not None and capture is as_it_is:
        assert given.constant.dtype == given.table[0].dtype == torch.float32
    assert code is None or given.code == code
    assert torch.equal(inputs[0], kept[0])
    assert inputs[0].dtype == torch.float32
    assert inputs[0]._version == version
    assert wide_inputs[0].requires_grad
    assert wide_inputs[0].is_leaf


def test_the_default_dtype_comes_back_when_the_program_raises() -> None:
    """Covers: U11"""

    def broken(x: torch.Tensor) -> None:
        assert torch.get_default_dtype() == F64
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_fp64(broken, X)
    assert torch.get_default_dtype() == torch.float32


def test_inputs_are_widened_wherever_they_are() -> None:
    """Covers: U11"""
    given = [X, {"a": [X.half()]}, torch.tensor([1]), torch.tensor([1j]), "text", X.bfloat16(), X.to_sparse(), None]
    _, wide = cast_to_fp64(lambda *args: None, given)
    assert wide[0].dtype == wide[1]["a"][0].dtype == wide[5].dtype == wide[6].dtype == F64
    assert (wide[2].dtype, wide[3].dtype) == (torch.int64, torch.complex128)
    assert wide[4] == "text"
    assert wide[2] is not given[2], "copies, not the caller's own"
    assert wide[7] is None
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
    assert cast_to_fp64(lambda x: x, [nested])[1][0].dtype == F64


def test_inputs_that_share_memory_still_do() -> None:
    """Covers: U11. A program that writes to one and reads the other must find what it wrote."""

    def program(x: torch.Tensor, y: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        row.mul_(2)
        return y / 3

    x = X.clone()
    wide, (a, b, row) = cast_to_fp64(program, [x, x, x[1]])
    assert a is b
    expected = EXACT_X + 1
    expected[1] *= 2
    is_exact(wide(a, b, row), expected / 3)
    assert torch.equal(x, X)


def test_strides_of_inputs_are_kept() -> None:
    """Covers: U11. Graphs address memory by them (as_strided)."""
    given = [X.T, X.expand(2, 2, 3), torch.arange(12.0).reshape(3, 4)[:, ::2]]
    _, wide = cast_to_fp64(lambda *args: None, given)
    assert [tensor.stride() for tensor in wide] == [tensor.stride() for tensor in given]

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2,), (1,), 1) / 3

    for capture in (by_make_fx, by_dynamo, as_it_is):
        base = torch.arange(12.0).reshape(3, 4)[:, ::2]
        is_exact(in_fp64(capture(program, base), base), torch.tensor([1.0, 2.0], dtype=F64) / 3)


@pytest.mark.parametrize("capture", [by_dynamo, as_it_is, as_a_module])
def test_autocast_regions_stay_and_do_nothing(capture: Any) -> None:
    """Covers: U11"""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x @ w
            with torch.autocast("cpu", enabled=False):
                x = x.float() @ w
        return x @ w

    w = torch.tensor([[0.1, 0.2, 0.3], [1.1, 0.4, 0.7], [0.9, -0.3, 0.2]])
    model = capture(program, X, w)
    exact_w = w.double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of an autocast to fp64
        result = in_fp64(model, X, w)
    is_exact(result, EXACT_X @ exact_w @ exact_w @ exact_w)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("capture", [by_make_fx, by_dynamo])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_graphs_within_graphs_are_widened(capture: Any, sign: float) -> None:
    """Covers: U11"""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x[0, 0] > 0, lambda x: x.half().sin().float(), lambda x: (x.bfloat16() / 3).float(), (x,))
        return y / 7

    x = X * sign
    exact = (x.double().sin() if sign > 0 else x.double() / 3) / 7
    is_exact(in_fp64(capture(program, x), x), exact)


def test_what_a_graph_calls_of_the_users_own_is_widened_too() -> None:
    """Covers: U11. Modules and functions that a tracer leaves as one node have casts of their own inside."""

    class Narrow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half() / 3

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = Narrow()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.narrow(x) * 7

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, Narrow)

    outer = Outer()
    is_exact(in_fp64(torch.fx.GraphModule(outer, Tracer().trace(outer)), X), EXACT_X / 3 * 7)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(lambda x: x.half() / 3, (x,)))
    is_exact(in_fp64(torch.fx.GraphModule({}, graph), X), EXACT_X / 3)


def test_a_module_that_holds_a_graph_is_widened() -> None:
    """Covers: U11"""
    model = nn.Sequential(torch.fx.symbolic_trace(lambda x: x.half() / 3), nn.Linear(3, 2))
    exact = F.linear(EXACT_X / 3, model[1].weight.double(), model[1].bias.double())
    with pytest.raises(RuntimeError):
        model(X)  # fp16 times fp32; in double precision it just works
    is_exact(in_fp64(model, X), exact)


def test_constants_of_a_graph_are_widened() -> None:
    """Covers: U11"""
    constant = torch.tensor([0.1, 0.2, 0.3])
    model = make_fx(lambda x: x * constant + torch.tensor([0.7, 0.8, 0.9]))(X)
    assert [node for node in model.graph.nodes if node.op == "get_attr"]
    exact = EXACT_X * constant.double() + torch.tensor([0.7, 0.8, 0.9]).double()
    is_exact(in_fp64(model, X), exact)


def test_checks_of_dtypes_in_a_graph_do_not_fail() -> None:
    """Covers: U11. Exported graphs assert the dtypes that they were traced with."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.half()
        aten._assert_tensor_metadata(x, dtype=torch.float16)
        return x / 3

    is_exact(in_fp64(by_make_fx(program, X), X), EXACT_X / 3)
    is_exact(in_fp64(program, X), EXACT_X / 3)


WEIGHT = torch.tensor([[0.1, 0.2, 0.3], [1.1, 0.4, 0.7], [0.9, -0.3, 0.2]])


def test_a_function_may_close_over_tensors_and_modules() -> None:
    """Covers: U11. Forward and backward, although nothing but the inputs was widened."""
    linear, norm = nn.Linear(3, 3), nn.LayerNorm(3)
    shift = torch.tensor([0.1, 0.2, 0.3])

    def program(x: torch.Tensor) -> torch.Tensor:
        return (norm(linear(x.half().float()) @ WEIGHT) + shift) * torch.tensor(0.5)

    def exact(x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, linear.weight.double(), linear.bias.double()) @ WEIGHT.double()
        return (F.layer_norm(x, (3,), norm.weight.double(), norm.bias.double()) + shift.double()) * 0.5

    results = run_in_fp64(program, [X.clone().requires_grad_()], False, None, RngState.capture())
    exact_x = EXACT_X.clone().requires_grad_()
    expected = exact(exact_x)
    is_exact(results.output, expected.detach())
    expected.mean().backward()
    is_exact(results.input_grads[0], exact_x.grad)
    assert linear.weight.dtype == WEIGHT.dtype == torch.float32


def test_second_derivatives_are_those_of_fp64() -> None:
    """Covers: U11"""
    linear = nn.Linear(3, 1)

    def penalty(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        y = F.linear(x, weight, bias).tanh().sum()
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        return grad.pow(2).sum() + y

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return penalty(x, self.linear.weight, self.linear.bias)

    leaves = [t.detach().double().requires_grad_() for t in (X, linear.weight, linear.bias)]
    expected = penalty(*leaves)
    expected.backward()
    for program in (Model(), lambda x: penalty(x, linear.weight, linear.bias)):
        results = run_in_fp64(program, [X.clone().requires_grad_()], False, None, RngState.capture())
        is_exact(results.output, expected.detach())
        is_exact(results.input_grads[0], leaves[0].grad)


def test_a_boxed_program_stays_boxed() -> None:
    """Covers: S36, U11"""

    def boxed(args: list[torch.Tensor]) -> torch.Tensor:
        (x,) = args
        args.clear()
        return x.half() / 3

    boxed._boxed_call = True  # type: ignore[attr-defined]
    results = run_in_fp64(boxed, [X], False, None, RngState.capture())
    is_exact(results.output, EXACT_X / 3)


def test_gradients_that_were_there_are_not_carried_over() -> None:
    """Covers: S36, U11"""
    model = nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), 100.0)
    results = run_in_fp64(model, [X], False, None, RngState.capture())
    assert results.grads["weight"].abs().max() < 10
    assert model.weight.grad.eq(100).all()


# ---- programs that have no fp64 form ---------------------------------------------------------------------


def view_bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32) + 1


def quantise(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


NARROW: dict[str, tuple[Program, str]] = {
    "view": (view_bits, "view reinterprets the bits of a tensor"),
    "view dtype=": (lambda x: x.view(dtype=torch.int32), "view reinterprets the bits of a tensor"),
    "aten.view": (lambda x: aten.view.dtype(x, torch.int32), "view reinterprets the bits of a tensor"),
    "quantise": (quantise, "quantize_per_tensor works on packed or quantised numbers"),
    "packed": (lambda x: torch.empty(3, dtype=torch.float4_e2m1fn_x2), "packed"),
}


@in_every_way(NARROW)
def test_a_program_that_depends_on_narrow_bits_has_no_reference(capture: Any, name: str) -> None:
    """Covers: S31, U11"""
    program, reason = NARROW[name]
    model = capture(program, X)
    with pytest.raises(NoReference, match=reason):
        in_fp64(model, X)
    assert torch.get_default_dtype() == torch.float32


def test_a_graph_is_found_wanting_before_it_runs() -> None:
    """Covers: S31, U11"""
    for capture in (by_symbolic_trace, by_make_fx, by_dynamo):
        graph = capture(view_bits, X)
        with pytest.raises(NoReference):
            cast_to_fp64(graph, [X])


def test_quantised_inputs_have_no_reference() -> None:
    """Covers: S31, U11"""
    quantised = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    with pytest.raises(NoReference, match="an input is packed or quantised"):
        cast_to_fp64(lambda x: x[0].dequantize(), [[quantised]])
    packed = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(NoReference, match="an input is packed or quantised"):
        cast_to_fp64(lambda x: x, [packed])


def test_an_operator_that_takes_no_fp64_is_the_reason() -> None:
    """Covers: S31, U11"""

    def program(x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor(1.0)
        narrow = torch.ones(16, 16).to(torch.float8_e4m3fn)
        return torch._scaled_mm(narrow, narrow.T, scale, scale, out_dtype=torch.float32) + x[0, 0]

    with pytest.raises(NoReference, match="_scaled_mm works on packed or quantised numbers"):
        run_in_fp64(program, [X], True, None, RngState.capture())


# ---- random programs -------------------------------------------------------------------------------------


def draw_everything(x: torch.Tensor) -> torch.Tensor:
    """Some of every way to draw; what is drawn decides the result."""
    y = F.dropout(x.half().float(), 0.4) + torch.rand(2, 3) + torch.randn_like(x) * 0.1
    y = y + torch.bernoulli(torch.sigmoid(x)) + torch.empty_like(x).normal_() + torch.native_dropout(x, 0.3, True)[0]
    y = y + torch.randperm(3) + torch.multinomial(x.abs(), 3) + torch.randint(0, 9, (2, 3))
    return (y + F.rrelu(x, training=True)).float() / 3


@pytest.mark.parametrize("capture", EVERY_WAY)
def test_the_reference_draws_eagers_numbers(capture: Any) -> None:
    """Covers: U10, U11"""
    model = capture(draw_everything, X)
    start = RngState.capture()
    tape = Tape()
    with tape.recording():
        eager = run_fwd_maybe_bwd(model, [X], only_fwd=True)
    exact = run_in_fp64(model, [X], True, tape, start)
    eager, exact = (side[0] if isinstance(side, tuple) else side for side in (eager, exact))
    assert exact.dtype == F64
    # fp16 in between is the only difference; other random numbers would be off by much more.
    torch.testing.assert_close(exact, eager.double(), rtol=0, atol=2e-3)
    assert not torch.equal(exact, eager.double())
    assert len(tape.operators) >= 7  # symbolic_trace draws some while it traces


def test_without_the_tape_the_numbers_would_be_others() -> None:
    """Covers: U10. So that the test above can fail."""
    start = RngState.capture()
    eager = draw_everything(X)
    exact = run_in_fp64(draw_everything, [X], True, None, start)
    assert (exact - eager).abs().max() > 0.1


@pytest.mark.parametrize("capture", EVERY_WAY)
def test_a_random_model_is_compared_with_its_reference(capture: Any) -> None:
    """Covers: U10, U11. And the generators are afterwards as they were."""
    model = capture(draw_everything, X)
    state = RngState.capture()
    found = same_two_models(model, model, [X], require_fp64=True)
    assert found, found
    assert found.notes == ()
    assert state.same_as(RngState.capture())
    wrong = same_two_models(model, lambda x: map_tensors(lambda y: y * 1.1, model(x)), [X], only_fwd=True)
    assert not wrong


def test_draws_in_the_backward_are_played_too() -> None:
    """Covers: U10"""

    class Stochastic(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * torch.rand_like(grad)

    x = X.clone().requires_grad_()
    start, tape = RngState.capture(), Tape()
    with tape.recording():
        eager = run_fwd_maybe_bwd(Stochastic.apply, [x])
    exact = run_in_fp64(Stochastic.apply, [x], False, tape, start)
    torch.testing.assert_close(exact.input_grads[0], eager.input_grads[0].double())


def test_another_way_through_the_program_is_no_reference() -> None:
    """Covers: U10, U11. The reason is the mismatch, not a wrong number."""

    def program(x: torch.Tensor) -> torch.Tensor:
        # 2049 is not an fp16 number, so eager and the reference part here.
        return x + (torch.rand(3) if (x * 0 + 2049).half().double().max() == 2048 else torch.rand(4)[:3])

    start, tape = RngState.capture(), Tape()
    with tape.recording():
        program(X)
    with pytest.raises(NoReference, match="TapeMismatch") as error:
        run_in_fp64(program, [X], True, tape, start)
    assert isinstance(error.value.__cause__, TapeMismatch)

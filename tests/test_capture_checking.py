"""Checking what was compiled against its graph: planted faults are found, noise is not one, nothing else changes."""

from __future__ import annotations

import gc
import logging
import operator
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from torchsleuth import config
from torchsleuth.compare import Verdict
from torchsleuth.compare.rng import RngState, Tape, is_random, random_ops_in
from torchsleuth.outcome import Symptom
from torchsleuth.run.checking.check import Checked, run_checked
from torchsleuth.run.checking.reference import reference_of, surely_writes_nothing

aten = torch.ops.aten
SETTINGS = config.Settings()
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def no_cache_of_aot() -> Iterator[None]:
    """A graph that AOT finds in its cache is not given to the compiler, and these tests stand where that is."""
    with functorch_config.patch(enable_autograd_cache=False):
        yield


class Boxed:
    """A compiled function, as AOT calls it: it takes the list, empties it, and runs a program."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program
        self.calls = 0

    def __call__(self, inputs: list[Any]) -> Any:
        self.calls += 1
        args = list(inputs)
        inputs.clear()
        return self.program(*args)


def traced(program: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """A graph of operators, as AOT has them."""
    return make_fx(program)(*inputs)


def check_boxed(
    program: Callable[..., Any], inputs: Sequence[Any], compiled: Callable[..., Any], **options: Any
) -> Checked:
    graph = traced(program, *(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
    with torch.no_grad():
        return run_checked(
            Boxed(compiled), reference_of(graph), list(inputs), boxed=True, settings=config.Settings(**options)
        )


def check_plain(
    program: Callable[..., Any], inputs: Sequence[Any], compiled: Callable[..., Any], **options: Any
) -> Checked:
    """As after Dynamo: a graph of torch functions, with gradients."""
    graph = fx.symbolic_trace(program)
    return run_checked(compiled, reference_of(graph), inputs, boxed=False, settings=config.Settings(**options))


# ---- the copy of a graph ----------------------------------------------------------------------------------


def test_a_reference_stays_as_it_was_when_a_compiler_changes_the_graph_and_what_is_nested() -> None:
    """Covers: S11."""

    def branch(flag: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.cond(flag, lambda x: x.sin(), lambda x: x.cos(), (x,))

    graph = traced(branch, torch.tensor(True), X)
    reference = reference_of(graph)
    before = (reference.code, [m.code for m in reference.modules() if isinstance(m, fx.GraphModule)])
    for module in list(graph.modules()):
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function" and node.target in (aten.sin.default, aten.cos.default):
                    node.target = aten.exp.default
            module.recompile()
    assert before == (reference.code, [m.code for m in reference.modules() if isinstance(m, fx.GraphModule)])
    assert torch.equal(reference(torch.tensor(False), X), X.cos())
    assert len(before[1]) == 3


def test_a_reference_copies_no_tensor_and_no_meta() -> None:
    """Covers: S11."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    graph = fx.symbolic_trace(model)
    constant = traced(lambda x: x + torch.arange(8), X)
    reference, copied = reference_of(graph), reference_of(constant)
    assert dict(reference.named_parameters()).keys() == dict(graph.named_parameters()).keys()
    for name, parameter in graph.named_parameters():
        assert reference.get_parameter(name) is parameter
    assert reference.get_submodule("1") is not graph.get_submodule("1")
    assert reference.get_submodule("1").running_mean is graph.get_submodule("1").running_mean
    assert all(node.meta == {} for node in copied.graph.nodes)
    assert any(node.meta for node in constant.graph.nodes)
    assert torch.equal(copied(X), constant(X))
    assert torch.equal(reference.eval()(X), graph.eval()(X))


def test_what_surely_writes_nothing() -> None:
    """Covers: S13."""
    assert surely_writes_nothing(traced(lambda x: (x.sin() + 1, x.shape), X))
    assert not surely_writes_nothing(traced(lambda x: x.add_(1), X.clone()))
    for program in (lambda x: x.add_(1), nn.ReLU()):
        assert not surely_writes_nothing(fx.symbolic_trace(program))
    batch_norm = traced(lambda x, m: aten.native_batch_norm(x, None, None, m, m, True, 0.1, 1e-5), X, torch.ones(8))
    assert not surely_writes_nothing(batch_norm)
    for target, writes in ((operator.iadd, True), (operator.add, False), (operator.setitem, True)):
        graph = fx.Graph()
        graph.output(graph.call_function(target, (graph.placeholder("x"), 1, 1)))
        assert surely_writes_nothing(fx.GraphModule(nn.Module(), graph)) != writes


# ---- the result that the user gets ----------------------------------------------------------------------


def test_the_compiled_function_runs_once_on_the_real_inputs_and_its_own_result_comes_back() -> None:
    """Covers: S13."""
    seen: list[Any] = []

    def compiled(x: torch.Tensor) -> Any:
        seen.append(x)
        return result

    result = (X.sin(),)
    found = check_boxed(lambda x: (x.sin(),), [X], compiled)
    assert found.agrees
    assert found.comparison
    assert found.judgement is None
    assert found.result is result
    assert len(seen) == 1
    assert seen[0] is X
    assert (found.symptom, found.path) == (None, "")


def test_a_boxed_function_gets_the_list_itself_and_the_inputs_are_free_when_it_has_emptied_it() -> None:
    """Covers: S13."""
    graph = reference_of(traced(lambda x: (x.sin(),), X))
    gone: list[bool] = []

    def compiled(args: list[Any]) -> Any:
        (x,) = args
        args.clear()
        result, there = (x.sin(),), weakref.ref(x)
        del x
        gone.append(there() is None)
        return result

    inputs = [X.clone()]
    with torch.no_grad():
        assert run_checked(compiled, graph, inputs, boxed=True, settings=SETTINGS).agrees
    assert inputs == []
    assert gone == [True]


def test_random_state_is_as_the_compiled_run_left_it() -> None:
    """Covers: S13, U7."""

    def compiled(x: torch.Tensor) -> Any:
        torch.rand(17)
        random.random()
        return (x.sin(),)

    for faulty in (False, True):
        torch.manual_seed(3)
        random.seed(3)
        compiled(X)
        expected = RngState.capture()
        torch.manual_seed(3)
        random.seed(3)
        check_boxed(lambda x: (x.sin(),), [X], (lambda x: (compiled(x)[0] + 1,)) if faulty else compiled)
        assert RngState.capture().same_as(expected)


def test_what_the_compiled_function_raises_propagates_untouched() -> None:
    """Covers: S9."""
    error = ValueError("from the kernel")

    def compiled(x: torch.Tensor) -> Any:
        torch.rand(5)
        raise error

    torch.manual_seed(1)
    torch.rand(5)
    expected = RngState.capture()
    torch.manual_seed(1)
    with pytest.raises(ValueError, match="from the kernel") as caught:
        check_boxed(lambda x: (x.sin(),), [X], compiled)
    assert caught.value is error
    assert RngState.capture().same_as(expected)


def test_a_graph_that_cannot_be_run_eagerly_leaves_it_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """Covers: U11."""

    def only_compiled(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("there is no kernel for eager")

    graph = fx.Graph()
    graph.output(graph.call_function(only_compiled, (graph.placeholder("x"),)))
    reference = reference_of(fx.GraphModule(nn.Module(), graph))
    with caplog.at_level(logging.WARNING, "torchsleuth"):
        found = run_checked(lambda x: x.sin(), reference, [X], boxed=False, settings=SETTINGS)
    assert found.agrees
    assert torch.equal(found.result, X.sin())
    assert found.unknown
    assert "there is no kernel for eager" in found.unknown
    assert "there is no kernel for eager" in caplog.text
    assert isinstance(found.comparison.raised, NotImplementedError)


def test_inputs_that_cannot_be_copied_leave_it_unknown() -> None:
    """Covers: S13."""

    class NotToBeCopied(torch.Tensor):
        def detach(self) -> Any:
            raise TypeError("not to be copied")

    odd = X.clone().as_subclass(NotToBeCopied)
    found = run_checked(
        lambda x: (x,), reference_of(fx.symbolic_trace(lambda x: (x,))), [odd], boxed=False, settings=SETTINGS
    )
    assert found.agrees
    assert found.result[0] is odd
    assert found.unknown
    assert "not to be copied" in found.unknown


def test_an_interrupt_stops_the_check_and_leaves_random_numbers_as_they_were() -> None:
    """Covers: S13."""

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        raise KeyboardInterrupt

    graph = fx.Graph()
    graph.output(graph.call_function(interrupted, (graph.placeholder("x"),)))
    before = RngState.capture()
    with pytest.raises(KeyboardInterrupt):
        run_checked(lambda x: x, reference_of(fx.GraphModule(nn.Module(), graph)), [X], boxed=False, settings=SETTINGS)
    assert RngState.capture().same_as(before)


def test_modes_are_as_they_were_and_the_reference_of_aot_runs_without_autocast() -> None:
    """Covers: S13, U7."""
    modes: list[Any] = []
    graph = fx.Graph()

    def noted(x: torch.Tensor) -> torch.Tensor:
        modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return x @ x.T

    graph.output(graph.call_function(noted, (graph.placeholder("x"),)))
    reference = reference_of(fx.GraphModule(nn.Module(), graph))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_checked(
            Boxed(lambda x: aten.mm.out(x, x.T, out=torch.empty(6, 6))), reference, [X], boxed=True, settings=SETTINGS
        ).agrees
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
        assert run_checked(lambda x: x @ x.T, reference, [X], boxed=False, settings=SETTINGS).agrees
    assert modes == [(False, False), (True, True)]


def test_nothing_of_the_inputs_is_kept() -> None:
    """Covers: U27."""
    reference = reference_of(traced(lambda x: (x.sin(),), X))
    for fault in (0.0, 1.0):
        x = X.clone()
        there = weakref.ref(x)
        before = _tensors_alive()
        found = run_checked(Boxed(lambda x: (x.sin() + fault,)), reference, [x], boxed=True, settings=SETTINGS)  # noqa: B023
        agrees = found.agrees
        del x, found
        gc.collect()
        assert agrees == (not fault)
        assert there() is None
        assert _tensors_alive() <= before


def _tensors_alive() -> int:
    gc.collect()
    return sum(type(one) is torch.Tensor for one in gc.get_objects())


# ---- planted faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiled", "symptom"),
    [
        (lambda x: (x.cos(), (x > 0).long()), Symptom.VALUE),
        (lambda x: (x.sin().double(), (x > 0).long()), Symptom.DTYPE),
        (lambda x: (x.sin()[:, :4], (x > 0).long()), Symptom.SHAPE),
        (lambda x: (x.sin().masked_fill(x > 1, float("nan")), (x > 0).long()), Symptom.NAN),
        (lambda x: (x.sin(), (x >= -9).long()), Symptom.INTEGER),
        (lambda x: (x.sin(),), Symptom.STRUCTURE),
        (lambda x: (x.sin(), None), Symptom.TYPE),
    ],
)
def test_a_planted_fault_is_found_by_its_symptom(compiled: Callable[..., Any], symptom: Symptom) -> None:
    """Covers: S12, U24."""
    found = check_boxed(lambda x: (x.sin(), (x > 0).long()), [X], compiled)
    assert not found.agrees
    assert not found.comparison
    assert found.symptom is symptom
    assert found.path in ("output[0]", "output[1]", "output")
    assert found.judgement is not None
    assert found.judgement.verdict is Verdict.BUG
    assert found.words.startswith("BUG: ")


def test_integers_are_passed_over_on_request() -> None:
    """Covers: S13."""

    def fault(x: torch.Tensor) -> Any:
        return x.sin(), (x >= -9).long()

    program = lambda x: (x.sin(), (x > 0).long())  # noqa: E731
    assert check_boxed(program, [X], fault, ignore_non_fp=True).agrees
    assert not check_boxed(program, [X], lambda x: (x.cos(), (x >= -9).long()), ignore_non_fp=True).agrees


def test_an_input_that_the_graph_writes_to_is_compared_and_written_once() -> None:
    """Covers: S12, S13."""

    def step(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        buffer.copy_(buffer * 0.9 + x.mean(0))
        return (x - buffer,)

    def fault(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        (result,) = step(x, buffer)
        buffer.add_(0.5)
        return (result.clone(),)

    expected = torch.zeros(8)
    step(X, expected)
    buffer = torch.zeros(8)
    assert check_boxed(step, [X, buffer], step).agrees
    assert torch.equal(buffer, expected)
    buffer = torch.zeros(8)
    found = check_boxed(step, [X, buffer], fault)
    assert (found.agrees, found.symptom, found.path) == (False, Symptom.VALUE, "inputs[1]")
    assert torch.equal(buffer, expected + 0.5)


def test_an_input_that_only_the_compiled_function_overwrites_is_scratch_memory() -> None:
    """Covers: S13."""

    def scratch(x: torch.Tensor, saved: torch.Tensor) -> Any:
        result = x * saved + 1e-2
        saved.fill_(7)
        return (result,)

    assert check_boxed(lambda x, saved: (x * saved + 1e-2,), [X, X.clone()], scratch).agrees
    found = check_boxed(lambda x, saved: (x * saved,), [X, X.clone()], scratch)
    assert (found.agrees, found.path) == (False, "output[0]")


def test_views_of_inputs_and_aliased_expanded_empty_inputs() -> None:
    """Covers: S13."""
    base = torch.randn(12)

    def program(a: torch.Tensor, b: torch.Tensor, wide: torch.Tensor, none: torch.Tensor, n: int) -> Any:
        a.mul_(2)
        return a.view(2, 5), b + wide.sum(), none * 2, n, None

    def inputs() -> list[Any]:
        memory = base.clone()
        return [memory[:10], memory[2:], torch.ones(1).expand(5), torch.empty(0, 3), 7]

    reference = reference_of(fx.symbolic_trace(lambda a, b, w, e, n: program(a, b, w, e, n)))
    for boxed in (True, False):
        args = inputs()
        call = Boxed(program) if boxed else program
        found = run_checked(call, reference, args, boxed=boxed, settings=SETTINGS)
        assert found.agrees
        assert not found.unknown
        assert torch.equal(found.result[1][:8], base[2:10] * 2 + 5)
        wrong = run_checked(
            Boxed(lambda *v: (*program(*v)[:3], 8, None)) if boxed else lambda *v: (*program(*v)[:3], 8, None),
            reference,
            inputs(),
            boxed=boxed,
            settings=SETTINGS,
        )
        assert (wrong.agrees, wrong.path) == (False, "output[3]")


def test_a_graph_without_outputs_and_one_that_only_writes() -> None:
    """Covers: S13."""
    graph = fx.Graph()
    graph.placeholder("x")
    graph.output(())
    reference = reference_of(fx.GraphModule(nn.Module(), graph))
    assert run_checked(Boxed(lambda x: ()), reference, [X], boxed=True, settings=SETTINGS).agrees
    only = fx.symbolic_trace(lambda x: (x.add_(1), None)[1])
    assert run_checked(
        lambda x: (x.add_(1), None)[1],
        reference_of(only),
        [X.clone()],
        boxed=False,
        settings=SETTINGS,
    ).agrees


def test_inference_tensors_and_inference_mode() -> None:
    """Covers: S13, U7."""
    with torch.inference_mode():
        x = X * 2
        for fault in (0.0, 0.5):
            buffer = torch.zeros(8)

            def program(x: torch.Tensor, buffer: torch.Tensor) -> Any:
                buffer.copy_(x.mean(0))
                return (x.sin(),)

            def compiled(x: torch.Tensor, buffer: torch.Tensor) -> Any:
                buffer.copy_(x.mean(0) + fault)  # noqa: B023
                return (x.sin(),)

            for boxed in (True, False):
                found = run_checked(
                    Boxed(compiled) if boxed else compiled,
                    reference_of(fx.symbolic_trace(program)),
                    [x, buffer],
                    boxed=boxed,
                    settings=SETTINGS,
                )
                assert found.agrees == (not fault)
                assert not found.unknown
                assert found.result[0].is_inference()
        assert torch.is_inference_mode_enabled()


def test_without_fp64_the_tolerance_alone_decides() -> None:
    """Covers: S13."""

    def noisy(x: torch.Tensor) -> Any:
        return (x.sin() * (1 + 3e-3),)

    found = check_boxed(lambda x: (x.sin(),), [X], noisy, fp64=False)
    assert not found.agrees
    assert found.judgement is None
    assert found.symptom is Symptom.VALUE
    assert "rtol 0.001" in found.words
    assert check_boxed(lambda x: (x.sin(),), [X], noisy, fp64=False, tolerance=1e-2).agrees


def test_noise_beyond_the_tolerance_is_no_finding() -> None:
    """Covers: U12."""
    half = X.to(torch.bfloat16)

    def program(x: torch.Tensor) -> Any:
        return (((x * 3).exp() + 1).log(), x.float())

    def fused(x: torch.Tensor) -> Any:
        wide = x.float()
        return (((wide * 3).exp() + 1).log().to(torch.bfloat16), wide)

    found = check_boxed(program, [half], fused)
    assert found.agrees
    assert not found.comparison
    assert found.judgement is not None
    assert found.judgement.verdict is Verdict.NOISE
    # Within the tolerance anything goes, also beside a leaf that is judged.
    slightly = check_boxed(program, [half], lambda x: (fused(x)[0], fused(x)[1] * (1 + 1e-5)))
    assert slightly.agrees
    assert slightly.judgement is not None
    assert slightly.judgement.verdict is Verdict.BUG
    wrong = check_boxed(program, [half], lambda x: (fused(x)[0], fused(x)[1] * 1.01))
    assert (wrong.agrees, wrong.path) == (False, "output[1]")


def test_a_difference_that_copies_of_the_inputs_do_not_show_is_one() -> None:
    """Covers: S12."""
    calls = []

    def once(x: torch.Tensor) -> Any:
        calls.append(1)
        return (x.sin() + (len(calls) == 1),)

    found = check_boxed(lambda x: (x.sin(),), [X], once)
    assert not found.agrees
    assert found.path == "output[0]"
    assert "On copies of the inputs" in found.words


# ---- gradients ------------------------------------------------------------------------------------------


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad * 1.5


def test_a_fault_in_the_gradient_only_is_found_after_dynamo_unless_forward_only() -> None:
    """Covers: S12, S13."""
    weight = nn.Parameter(torch.randn(8, 8))
    weight.grad = torch.full_like(weight, 5.0)
    kept = weight.grad
    x = X.clone().requires_grad_()

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return (torch.softmax(x @ weight, -1),)

    def fault(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return (torch.softmax(WrongGradient.apply(x @ weight), -1),)

    found = check_plain(program, [x, weight], fault)
    assert (found.agrees, found.path) == (False, "input_grads[0]")
    assert check_plain(program, [x, weight], fault, forward_only=True).agrees
    correct = check_plain(program, [x, weight], program)
    assert correct.agrees
    assert correct.comparison
    assert weight.grad is kept
    assert bool((kept == 5).all())
    assert x.grad is None
    correct.result[0].square().sum().backward()  # its autograd graph is as it was, and leads to the real leaves
    expected = torch.autograd.grad(program(x, weight)[0].square().sum(), [x, weight])
    assert torch.equal(x.grad, expected[0])
    assert torch.allclose(weight.grad, expected[1] + 5)


def test_parameters_and_buffers_that_the_graph_holds() -> None:
    """Covers: S12, S13."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    graph = fx.symbolic_trace(model)
    reference = reference_of(graph)
    unwatched = {name: value.clone() for name, value in model.named_buffers()}
    torch.nn.functional.batch_norm(model[0](X), unwatched["1.running_mean"], unwatched["1.running_var"], training=True)
    found = run_checked(graph, reference, [X], boxed=False, settings=SETTINGS)
    assert found.agrees
    assert not found.unknown
    assert model[1].num_batches_tracked == 1
    assert torch.equal(model[1].running_mean, unwatched["1.running_mean"])
    assert all(parameter.grad is None for parameter in model.parameters())
    found.result.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    def forgets(x: torch.Tensor) -> Any:
        mean = model[1].running_mean.clone()
        result = graph(x)
        model[1].running_mean.copy_(mean)
        return result

    found = run_checked(forgets, reference, [X], boxed=False, settings=SETTINGS)
    assert (found.agrees, found.symptom) == (False, Symptom.VALUE)
    assert found.path == "buffers['1.running_mean']"


def test_an_input_that_an_earlier_graph_computed_may_be_written_to() -> None:
    """Covers: S13."""
    leaf = X.clone().requires_grad_()

    def program(x: torch.Tensor) -> Any:
        x.mul_(2)
        return (x - 1,)

    def forgets(x: torch.Tensor) -> Any:
        return (x * 2 - 1,)

    def misleads(x: torch.Tensor) -> Any:
        return (WrongGradient.apply(program(x)[0]),)

    x = leaf * 3
    found = check_plain(program, [x], program)
    assert found.agrees
    assert not found.unknown
    found.result[0].sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 6))
    assert torch.equal(x, leaf * 6)
    assert check_plain(program, [leaf * 3], forgets).path == "inputs[0]"
    assert check_plain(program, [leaf * 3], misleads).path == "input_grads[0]"


def test_a_compiled_function_whose_backward_raises_on_copies_leaves_only_the_gradients_unknown() -> None:
    """Covers: S13."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            raise RuntimeError("no backward here")

    x = X.clone().requires_grad_()
    found = check_plain(lambda x: (x.sin(),), [x], lambda x: (Once.apply(x.sin()),))
    assert found.agrees
    assert "no backward here" in str(found.unknown)
    assert not check_plain(lambda x: (x.sin(),), [x], lambda x: (Once.apply(x.cos()),)).agrees


# ---- random numbers -------------------------------------------------------------------------------------


def inductor_graph(program: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """The graph that Inductor gets after its joint-graph passes; nothing is compiled."""
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        found.append(gm)
        return gm

    torch.compile(program, backend=lambda gm, args: compile_fx(gm, args, inner_compile=keep), dynamic=False)(*inputs)
    return found[0]


def test_random_operators_of_inductor_count_as_random_and_are_played_again() -> None:
    """Covers: U10."""
    torch._dynamo.reset()
    graph = inductor_graph(lambda x: F.dropout(x, 0.5) + torch.randint(3, x.shape), X)
    targets = {str(node.target) for node in graph.graph.nodes if node.op == "call_function" and is_random(node.target)}
    assert targets == {
        "prims.inductor_seeds.default",
        "prims.inductor_random.default",
        "prims.inductor_randint.default",
    }
    assert len(random_ops_in(reference_of(graph))) == len(random_ops_in(graph)) == 3
    tape = Tape()
    with tape.recording():
        expected = graph(X)
    assert len(tape.entries) == 3
    with tape.playing():
        assert torch.equal(graph(X)[0], expected[0])


def test_a_reference_makes_random_numbers_of_the_seed_as_inductor_does() -> None:
    """The first words of Philox 4x32-10 for the key and the counter zero, as its authors give them. Covers: U10."""
    from torchsleuth.run.checking.seeded import inductor_randint, inductor_random

    first, second = 0x6627E8D5, 0xE169C58D
    zero = torch.zeros((), dtype=torch.int64)
    drawn = inductor_random([1], zero, "rand", drawn_here=False)
    assert drawn.item() == pytest.approx((first & 0x7FFFFFFF) / 2**31, rel=1e-6)
    value = inductor_randint(0, 1000, [1], zero, drawn_here=False)
    assert value.item() == (first | second << 32) % 1000
    many = inductor_random([200, 100], torch.tensor(7), "randn", drawn_here=False)
    assert abs(many.mean()) < 0.05
    assert abs(many.std() - 1) < 0.05
    assert torch.equal(many, inductor_random([200, 100], torch.tensor(7), "randn", drawn_here=False))
    assert not torch.equal(many, inductor_random([200, 100], torch.tensor(8), "randn", drawn_here=False))


def test_a_dropout_that_draws_elsewhere_agrees_and_a_wrong_operator_beside_it_is_found() -> None:
    """Covers: U10."""

    def program(x: torch.Tensor) -> Any:
        return (torch.ops.aten.native_dropout(x.sin(), 0.5, True)[0] + x,)

    def elsewhere(x: torch.Tensor) -> Any:
        torch.rand(3)
        return program(x)

    found = check_boxed(program, [X], elsewhere)
    assert found.agrees
    assert not found.comparison
    assert found.judgement is not None
    assert found.judgement.rng.eager_drew
    wrong = check_boxed(
        program, [X], lambda x: (torch.ops.aten.native_dropout(elsewhere(x)[0] * 0 + x.cos(), 0.5, True)[0] + x,)
    )
    assert (wrong.agrees, wrong.path) == (False, "output[0]")


# ---- graphs of real compilers -----------------------------------------------------------------------------


class CheckedCompiler:
    """A compiler of graphs after AOT, each call of which is checked."""

    def __init__(self, compiler: Callable[..., Any], **options: Any) -> None:
        self.compiler = compiler
        self.settings = config.Settings(**options)
        self.checked: list[Checked] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        reference = reference_of(gm)
        compiled = self.compiler(gm, example_inputs, **kwargs)

        def call(inputs: list[Any]) -> Any:
            found = run_checked(compiled, reference, inputs, boxed=True, settings=self.settings)
            self.checked.append(found)
            return found.result

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


def interpret(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A compiler that changes the graph it got, and computes the same."""
    compiled = reference_of(gm)
    for node in gm.graph.nodes:
        node.args = () if node.op == "call_function" else node.args
    call = Boxed(compiled)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def steps(model: nn.Module, compiled: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Two steps of training from one seed: losses and gradients."""
    found = []
    torch.manual_seed(0)
    for x in inputs:
        loss = compiled(x).square().mean()
        model.zero_grad()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, torch.get_rng_state(), *(buffer.clone() for buffer in model.buffers())]


def block(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8), nn.LayerNorm(8)
    )


def test_forward_and_backward_graphs_of_aot_are_checked_and_training_goes_on_as_unwatched() -> None:
    """Covers: S11, S13, U7."""
    results = []
    for checks in (False, True):
        torch._dynamo.reset()
        model = block(0.3)
        compiler = CheckedCompiler(interpret) if checks else interpret
        compiled = torch.compile(model, backend=aot_autograd(fw_compiler=compiler), dynamic=True)
        results.append(steps(model, compiled, [X, X[:4], X[:5]]))
    assert isinstance(compiler, CheckedCompiler)
    assert len(compiler.checked) == 6
    assert all(found.agrees and found.comparison.agree and not found.unknown for found in compiler.checked)
    assert all(map(torch.equal, *results))


def inductor(**options: Any) -> tuple[CheckedCompiler, Callable[..., Any]]:
    checker = CheckedCompiler(compile_fx_inner, **options)
    return checker, lambda gm, args: compile_fx(gm, args, inner_compile=checker)


def recomputing(model: nn.Module) -> Callable[..., Any]:
    """The backward makes the dropout's mask once more, from the seed."""
    return lambda x: checkpoint(model, x, use_reentrant=False)


@pytest.mark.inductor
def test_inductors_training_graphs_agree_dropout_and_checkpoints_included() -> None:
    """Covers: S13, U7, U10."""
    results = []
    checker, backend = inductor()
    for chosen in (backend, "inductor"):
        torch._dynamo.reset()
        model = block(0.3)
        results.append(steps(model, torch.compile(recomputing(model), backend=chosen), [X, X + 1]))
    assert len(checker.checked) == 4
    for found in checker.checked:
        assert found.comparison.agree
        assert found.judgement is None
        assert not found.unknown
    assert all(map(torch.equal, *results))


@pytest.mark.inductor
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_fault_of_inductors_is_found_beside_a_dropout_too(dropout: float) -> None:
    """Covers: S12, U10."""
    torch._dynamo.reset()
    checker, backend = inductor()
    model = block(dropout)
    with inductor_config.patch("cpp.inject_relu_bug_TESTING_ONLY", "accuracy"), torch.no_grad():
        torch.compile(model, backend=backend)(X)
    (found,) = checker.checked
    assert not found.agrees
    assert found.symptom is Symptom.VALUE
    assert found.judgement is not None
    assert found.judgement.verdict is Verdict.BUG


@pytest.mark.inductor
def test_half_precision_is_noise() -> None:
    """Covers: U12."""
    torch._dynamo.reset()
    checker, backend = inductor(tolerance=1e-5)
    torch.manual_seed(0)
    x = torch.randn(32, 64).to(torch.bfloat16)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.softmax(F.layer_norm(x * 2 + x.sin(), (64,)), -1) * x
        return x

    torch.compile(program, backend=backend)(x)
    (found,) = checker.checked
    assert not found.comparison
    assert found.agrees
    assert found.judgement is not None
    assert found.judgement.verdict is Verdict.NOISE


@pytest.mark.inductor
def test_after_dynamo_gradients_of_inductor_agree_and_parameters_are_left_alone() -> None:
    """Covers: S11, S13, U10."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5))
    checked: list[Checked] = []

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Any:
        reference, compiled = reference_of(gm), compile_fx(gm, example_inputs)

        def call(*inputs: Any) -> Any:
            checked.append(run_checked(compiled, reference, inputs, boxed=False, settings=SETTINGS))
            return checked[-1].result

        return call

    loss = torch.compile(model, backend=backend)(X).sum()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [found.agrees for found in checked] == [True]
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch._dynamo.reset()
    torch.compile(model.eval(), backend=backend)(X)
    assert checked[-1].comparison.agree

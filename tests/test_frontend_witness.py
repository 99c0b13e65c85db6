"""`witness`: three runs of one call, and who is at fault; with faults planted in each of those who can be."""

from __future__ import annotations

import collections
import contextlib
import operator
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config as inductor_config

from torchsleuth import torch_compat
from torchsleuth.compare import Tolerance, same
from torchsleuth.compare.weighing import Grounds, weigh_leaf
from torchsleuth.errors import SleuthError
from torchsleuth.frontend import witness as module
from torchsleuth.frontend.aligning import Difference, Kind, align, described
from torchsleuth.frontend.capturing import capture
from torchsleuth.frontend.deciding import AOT, BEHIND_AOT, ITSELF
from torchsleuth.frontend.opcodes import Interpreter
from torchsleuth.frontend.testimony import Blame, KeptCase, Standing, Way
from torchsleuth.frontend.traits import Owners, other_traits, traits_of
from torchsleuth.frontend.ways import Kept, Settling
from torchsleuth.frontend.witness import Untold, witness
from torchsleuth.outcome import Crashed, Outcome, Raised, Stage, TimedOut

if TYPE_CHECKING:
    from torchsleuth.frontend.testimony import Testimony

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)
Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def step(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 2


# ---- backends and front ends with faults ---------------------------------------------------------------------


def off_by(amount: float) -> Backend:
    """A backend whose first output is wrong."""

    def wrong(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            first, *others = gm(*inputs)
            return (first + amount, *others)

        return run

    return wrong


def refuses(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    raise NotImplementedError("relu is not lowered")


def stumbles(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        raise ZeroDivisionError("the kernel divides by zero")

    return run


def is_dynamos(gm: fx.GraphModule) -> bool:
    return next(node.name for node in gm.graph.nodes if node.op == "placeholder").startswith("l_")


def stumbles_over_dynamos(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return off_by(1.0)(gm, example_inputs) if is_dynamos(gm) else gm.forward


def plain(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return gm.forward


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def dynamo_is(wrap: Wrap, monkeypatch: pytest.MonkeyPatch, *, but_with_eager: bool = False) -> None:
    """From now on, what Dynamo gives is wrapped."""
    compiled = module.with_dynamo

    def with_dynamo(fn: Any, backend: Any, dynamic: bool | None) -> Callable[..., Any]:
        right = compiled(fn, backend, dynamic)
        return right if but_with_eager and backend.__name__ == "eager" else wrap(right)

    monkeypatch.setattr(module, "with_dynamo", with_dynamo)


def ours_is(wrap: Wrap, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """From now on, our own front end captures something else."""

    def with_ours(fn: Any, backend: Any, dynamic: bool | None) -> Any:
        return capture(wrap(fn), backend, **options)

    monkeypatch.setattr(module, "with_ours", with_ours)


def ours_runs_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, our own front end records nothing."""

    def with_ours(fn: Any, backend: Any, dynamic: bool | None) -> Any:
        captured = capture(fn, backend)
        captured.limit = 0
        return captured

    monkeypatch.setattr(module, "with_ours", with_ours)


def plus(amount: float) -> Wrap:
    return lambda fn: lambda *args, **kwargs: fn(*args, **kwargs) + amount


def standings(testimony: Testimony) -> list[tuple[str, str]]:
    return [(run.name, run.standing.value) for run in testimony.runs]


# ---- verdicts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", plain])
def test_nobody_is_wrong(backend: Any) -> None:
    found = witness(step, (X,), backend)
    assert found.blame is Blame.NOBODY, found.reason
    assert [run.standing for run in found.runs] == [Standing.RIGHT] * 3
    assert not found.somebody_is_wrong
    assert not found.no_witness
    assert found.difference.alike


def test_a_backend_that_computes_something_else_is_at_fault() -> None:
    """Covers: U21, F9"""
    found = witness(step, (X,), off_by(0.5))
    assert found.blame is Blame.BACKEND, found.reason
    assert found.part == ITSELF
    assert found.somebody_is_wrong
    assert standings(found)[1:] == [
        ("Dynamo with wrong", "wrong"),
        ("torchsleuth with wrong", "wrong"),
        ("torchsleuth with eager", "right"),
    ]
    assert "give the same wrong result" in found.reason
    assert "no AOT is at work in it: it computes this itself" in found.reason


@pytest.mark.parametrize(
    ("backend", "words"), [(refuses, "relu is not lowered"), (stumbles, "the kernel divides by zero")]
)
def test_a_backend_that_raises_is_at_fault(backend: Backend, words: str) -> None:
    """Covers: U21, F5"""
    found = witness(step, (X,), backend)
    assert found.blame is Blame.BACKEND, found.reason
    assert words in found.dynamo.words
    assert words in found.ours.words
    assert "fail alike" in found.reason
    assert (found.part, "it raises this itself" in found.reason) == (ITSELF, True)


def with_aot(compiler: Backend) -> Backend:
    """A backend of somebody's own, whose compiler is behind AOT."""

    def compiled_behind_aot(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler)(gm, example_inputs)
        return compiled

    return compiled_behind_aot


def test_aot_is_spoken_of_where_it_was_seen() -> None:
    """Covers: U21"""
    found = witness(step, (X,), with_aot(off_by(1.0)))
    assert (found.blame, found.part) == (Blame.BACKEND, BEHIND_AOT), found.reason


def test_what_is_wrong_with_aot_eager_too_is_in_aot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U21"""
    wrong = {"aot_eager": off_by(1.0), "cudagraphs": off_by(1.0), "aot_ts": off_by(2.0)}
    find = torch_compat.find_backend
    monkeypatch.setattr(torch_compat, "find_backend", lambda name: wrong.get(name) or find(name))
    behind = witness(step, (X,), "cudagraphs")
    itself = witness(step, (X,), "aot_eager")
    other = witness(step, (X,), "aot_ts")
    assert (behind.blame, behind.part) == (Blame.BACKEND, AOT)
    assert (itself.blame, itself.part) == (Blame.BACKEND, AOT)
    assert (other.blame, other.part) == (Blame.BACKEND, "")  # two faults: which one it is, nobody knows


def test_a_wrong_dynamo_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U21"""
    dynamo_is(plus(1.0), monkeypatch)
    found = witness(step, (X,), "aot_eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert "with no compiler behind it" in found.reason
    assert "our own front end is right" in found.reason
    assert standings(found)[1:] == [
        ("Dynamo with aot_eager", "wrong"),
        ("torchsleuth with aot_eager", "right"),
        ("Dynamo with eager", "wrong"),
    ]


def test_a_dynamo_that_raises_while_compiling_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U21"""

    def cannot(fn: Any) -> Any:
        raise RuntimeError("this bytecode is not known")

    dynamo_is(cannot, monkeypatch)
    found = witness(step, (X,), "eager")
    assert found.blame is Blame.FRONT_END
    assert "raises RuntimeError: this bytecode is not known" in found.reason


def test_a_dynamo_that_gives_a_right_graph_wrongly_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "eager" it is right, and the backend is right with its graphs: there is only one left."""
    dynamo_is(plus(1.0), monkeypatch, but_with_eager=True)
    found = witness(step, (X,), "aot_eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert "it is in what goes with them" in found.reason
    assert [run.way for run in found.further] == [Way.DYNAMO, Way.GRAPHS]


def test_a_backend_that_stumbles_over_dynamos_graphs_alone_is_at_fault() -> None:
    """Covers: U21"""
    found = witness(step, (X,), stumbles_over_dynamos)
    assert found.ours.standing is Standing.RIGHT
    assert found.blame is Blame.BACKEND, found.reason
    assert "our graphs do not set it off" in found.reason
    assert standings(found)[3:] == [
        ("Dynamo with eager", "right"),
        ("Dynamo's graphs alone with stumbles_over_dynamos", "wrong"),
    ]


def test_graphs_that_fail_otherwise_without_dynamo_prove_nothing() -> None:
    """What we do to them may be at fault, so nobody is accused."""
    seen: list[fx.GraphModule] = []

    def changes_its_mind(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.extend([gm] * is_dynamos(gm))
        return refuses(gm, example_inputs) if len(seen) > 1 else stumbles_over_dynamos(gm, example_inputs)

    found = witness(step, (X,), changes_its_mind)
    assert found.blame is Blame.UNCLEAR, found.reason
    assert "given Dynamo's graphs without Dynamo, changes_its_mind raises NotImplementedError" in found.reason


@pytest.mark.parametrize(("stage", "blame"), [(Stage.AOT, Blame.BACKEND), (Stage.UNKNOWN, Blame.UNCLEAR)])
def test_a_backend_that_fails_in_its_own_stages_with_dynamo_and_without_is_at_fault(stage: Stage, blame: Blame) -> None:
    """Covers: U21"""
    told = Told(Dynamo_with_plain=Raised(stage, type_chain=("AttributeError",), message="no attribute"))
    told.deaths["Dynamo's graphs alone with plain"] = Raised(stage, type_chain=("KeyError",), message="no key")
    found = witness(step, (X,), plain, steps=told)
    assert found.blame is blame, found.reason


def test_our_own_fault_is_said_to_be_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours_is(plus(1.0), monkeypatch)
    found = witness(step, (X,), "aot_eager")
    assert found.blame is Blame.OURS
    assert "a bug of torchsleuth" in found.reason
    assert found.somebody_is_wrong


def test_our_fault_with_one_backend_alone_is_ours_as_well() -> None:
    def stumbles_over_ours(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return gm.forward if is_dynamos(gm) else off_by(1.0)(gm, example_inputs)

    found = witness(step, (X,), stumbles_over_ours)
    assert found.blame is Blame.OURS
    assert "Run as they are, our graphs are right" in found.reason


def test_two_that_are_wrong_in_two_ways_make_it_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo_is(plus(1.0), monkeypatch)
    ours_is(plus(2.0), monkeypatch)
    found = witness(step, (X,), "aot_eager")
    assert found.blame is Blame.UNCLEAR
    assert "not alike" in found.reason
    assert found.somebody_is_wrong


def test_two_that_are_wrong_alike_without_a_compiler_make_it_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo_is(plus(1.0), monkeypatch)
    ours_is(plus(1.0), monkeypatch)
    for backend in ("eager", "aot_eager"):
        found = witness(step, (X,), backend)
        assert found.blame is Blame.UNCLEAR, found.reason


def test_a_backend_whose_wrong_results_are_never_the_same_is_at_fault() -> None:
    """With "eager" both are right, so it is what they share, though they do not fail alike."""
    amounts = iter(range(1, 10_000))
    found = witness(step, (X,), lambda gm, inputs: off_by(float(next(amounts)))(gm, inputs))
    assert found.blame is Blame.BACKEND
    assert "not alike" in found.reason
    assert "and right with eager" in found.reason


def test_who_runs_natively_is_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo_is(plus(1.0), monkeypatch, but_with_eager=True)
    ours_runs_natively(monkeypatch)
    found = witness(step, (X,), "aot_eager")
    assert found.ours.standing is Standing.RIGHT
    assert found.blame is Blame.UNCLEAR
    assert "no witness: it ran natively" in found.reason


def test_a_wrong_dynamo_is_at_fault_without_a_witness_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend "eager" there is nobody else."""
    dynamo_is(plus(1.0), monkeypatch)
    ours_runs_natively(monkeypatch)
    found = witness(step, (X,), "aot_eager")
    assert found.blame is Blame.FRONT_END
    assert "no witness: it ran natively" in found.reason


# ---- eager is the measure ------------------------------------------------------------------------------------


def test_where_eager_fails_there_is_nothing_to_go_by() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(7)

    found = witness(fails, (X,), "eager")
    assert found.blame is Blame.UNCLEAR
    assert "eager itself fails" in found.reason
    assert "shape '[7]' is invalid for input of size 6" in found.reason
    assert not found.somebody_is_wrong


def test_what_does_not_repeat_itself_is_no_measure() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + int.from_bytes(os.urandom(2), "big")

    found = witness(noisy, (X,), "eager")
    assert found.blame is Blame.UNCLEAR
    assert "does not repeat itself" in found.reason


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: lambda y: x + y, "what it returns cannot be compared: it is a function"),
        (lambda x: (each for each in [x]), "what it returns cannot be compared: it is a generator"),
        (lambda x: {"a": x + 1, "b": object()}, "output['b'] cannot be compared: it is an object"),
    ],
)
def test_what_nobody_can_compare_is_said_to_be_that(make: Callable[[torch.Tensor], Any], words: str) -> None:
    testimony = witness(make, (torch.ones(2),), "eager")
    assert testimony.blame is Blame.UNCLEAR
    assert testimony.eager.words.startswith(words)
    assert {run.standing for run in testimony.runs} == {Standing.UNKNOWN}
    assert all(" at 0x" not in run.words for run in testimony.runs)


def test_arguments_are_counted_as_they_were_given() -> None:
    def graph(*given: Any) -> Any:
        made = fx.Graph()
        made.output(made.call_function(nn.functional.pad, (made.placeholder("x"), *given)))
        return described(fx.GraphModule({}, made))

    def why(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
        return align([graph(*one)], [graph(*other)]).rows[0].why

    assert why(((1, 1),), ((1, 1), "constant", None)) == "ours has 2 arguments, Dynamo 4 arguments"
    assert why(((1, 1), None), ((1, 1, 0, 0), None)) == "ours takes (1, 1), Dynamo (1, 1, 0, 0)"
    assert why((slice(2),), (2,)) == "ours takes slice(None, 2, None), Dynamo 2"


def test_rounding_is_nobodys_fault() -> None:
    """Covers: U12"""

    def rounds_otherwise(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *inputs: [gm.double()(*(each.double() for each in inputs))[0].float()]

    x = torch.randn(64, 64)
    found = witness(lambda x: torch.softmax(x @ x, 0).sum(1), (x,), rounds_otherwise)
    assert found.dynamo.standing is Standing.NOISE, found.dynamo.words
    assert found.blame is Blame.NOBODY
    assert "up to rounding" in found.reason


def test_random_numbers_are_the_same_in_each_run() -> None:
    """Covers: U10"""
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
    states = torch.get_rng_state(), random.getstate()
    for backend in ("eager", "aot_eager"):
        found = witness(net, (X,), backend)
        assert found.blame is Blame.NOBODY, found.reason
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    found = witness(net, (X,), off_by(0.5), backward=False)
    assert found.blame is Blame.BACKEND


@pytest.mark.parametrize("end", [TimedOut(Stage.RUN, deadline=3), Crashed(Stage.RUN, signal=11)])
def test_where_eager_never_ends_nothing_else_is_run(end: Outcome) -> None:
    """Covers: U19"""
    told = Told(eager=end)
    found = witness(step, (X,), "eager", steps=told)
    assert found.blame is Blame.UNCLEAR
    assert "eager itself does not come to an end" in found.reason
    assert told.steps == []
    assert not found.somebody_is_wrong


def test_numbers_that_differ_are_shown_as_such() -> None:
    """Covers: U28"""
    one = torch.tensor([2213.2314, 2.0])
    said = str(same(one, one * (1 + 1e-6), tolerance=Tolerance.exact()))
    assert "expected 2213.2314453125, got 2213.233642578125, first at element [0]" in said
    above = one.nextafter(one + 1)
    grounds = Grounds(fp64={"x": one.double()}, perturbed=[{"x": above}], tried=1)
    assert weigh_leaf("x", [above], [one], grounds).reason == "compiled is as far from fp64 as rounding may lead"


def clock(x: torch.Tensor) -> torch.Tensor:
    return x * int.from_bytes(os.urandom(2), "big")


def test_values_that_do_not_repeat_themselves_excuse_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U10, U19"""
    dynamo_is(lambda fn: stumbles(fn, ()), monkeypatch)
    found = witness(clock, (X,), "eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert "failures alone count, since eager's values are no measure" in found.reason
    assert found.somebody_is_wrong


def test_a_backend_that_fails_is_at_fault_whatever_values_do() -> None:
    """Covers: U10, U19"""
    found = witness(clock, (X,), refuses)
    assert found.blame is Blame.BACKEND, found.reason
    assert found.somebody_is_wrong
    assert not witness(clock, (X,), "aot_eager").somebody_is_wrong


# ---- results, and what is put back ---------------------------------------------------------------------------


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        self.calls += 1
        x.mul_(2)
        return self.linear(x) + self.seen


def test_each_run_begins_with_the_same_state_and_nothing_is_left_changed() -> None:
    """Covers: F6"""
    net, x = Counts(), X.clone()
    net.linear.weight.grad = torch.ones(3, 3)
    found = witness(net, (x,), "aot_eager")
    assert found.blame is Blame.NOBODY, found.reason
    assert found.eager.results is not None
    assert torch.equal(found.eager.results.buffers["seen"], torch.tensor(1.0))
    assert torch.equal(found.eager.results.inputs[0], X * 2)
    assert torch.equal(x, X)
    assert (net.seen.item(), net.calls) == (0.0, 0)
    assert torch.equal(net.linear.weight.grad, torch.ones(3, 3))


def test_a_backend_that_loses_a_write_is_at_fault() -> None:
    def on_copies(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *inputs: gm(*(each.clone() for each in inputs))

    def doubles(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum()

    found = witness(doubles, (X.clone(),), on_copies)
    assert found.blame is Blame.BACKEND
    assert "inputs[0]" in found.dynamo.words


def test_a_gradient_that_is_wrong_is_wrong() -> None:
    def doubles_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(2 * each - each.detach() for each in gm(*inputs))

    x = X.clone().requires_grad_()
    found = witness(torch.sin, (x,), doubles_gradients)
    assert found.blame is Blame.BACKEND
    assert "input_grads[0]" in found.dynamo.words
    assert witness(torch.sin, (x,), doubles_gradients, backward=False).blame is Blame.NOBODY


def test_where_only_the_backward_fails_in_eager_gradients_are_left_out() -> None:
    def spoilt(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        z = y * 1
        y.add_(1)
        return y.sum() + z.sum()

    found = witness(spoilt, (X.clone().requires_grad_(),), "eager")
    assert found.blame is Blame.NOBODY, found.reason
    assert "gradients are not compared" in found.notes[0]


def test_what_python_code_changes_is_put_back_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F6"""
    log: list[Any] = []

    def logs(x: torch.Tensor) -> torch.Tensor:
        log.append(x.shape[0])
        return x + 1

    assert witness(logs, (X,), "eager").blame is Blame.NOBODY
    assert log == []
    dynamo_is(lambda fn: lambda x: x + 1, monkeypatch)
    found = witness(logs, (X,), "eager")
    assert found.blame is Blame.FRONT_END
    assert found.dynamo.words == "log[0] is left as it was; eager makes it 2"
    assert log == []


def test_the_order_of_keys_is_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F6"""
    cache = collections.OrderedDict(a=1, b=2, c=3)

    def touch(cache: collections.OrderedDict[str, int], x: torch.Tensor) -> torch.Tensor:
        cache.move_to_end("a")
        return x + 1

    dynamo_is(lambda fn: lambda cache, x: x + 1, monkeypatch)
    found = witness(touch, (cache, X), "eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert found.dynamo.words == "the order of args[0] is left as it was; eager makes it ['b', 'c', 'a']"
    assert list(cache) == ["a", "b", "c"]


def test_an_effect_of_another_type_is_another_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F6"""
    seen: dict[str, Any] = {}

    def note(x: torch.Tensor) -> torch.Tensor:
        seen["sizes"] = list(x.shape)
        return x + 1

    def note_otherwise(x: torch.Tensor) -> torch.Tensor:
        seen["sizes"] = tuple(x.shape)
        return x + 1

    dynamo_is(lambda fn: note_otherwise, monkeypatch)
    found = witness(note, (X,), "eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert found.dynamo.words == "seen['sizes'] is a tuple; eager gives a list"


def test_what_comes_back_may_be_what_is_put_back() -> None:
    log: list[Any] = []
    seen = torch.zeros(3)

    def logs(x: torch.Tensor, table: dict[str, Any]) -> Any:
        log.append(x)
        table["sum"] = x.sum()
        seen.add_(1)
        return log, table, seen

    found = witness(logs, (X, {"a": 1}), "eager")
    assert found.blame is Blame.NOBODY, found.reason
    assert found.eager.results is not None
    output = found.eager.results.output
    assert (len(output[0]), list(output[1]), output[2].tolist()) == (1, ["a", "sum"], [1.0, 1.0, 1.0])
    assert log == []
    assert seen.tolist() == [0.0, 0.0, 0.0]


def test_graphs_tell_who_fails_where_values_do_not_repeat_themselves() -> None:
    """Covers: U10, U21"""

    def refuses_dynamos(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return refuses(gm, example_inputs) if is_dynamos(gm) else gm.forward

    found = witness(lambda x: (x + 1).mul(int.from_bytes(os.urandom(2), "big")), (X,), refuses_dynamos)
    assert found.blame is Blame.BACKEND, found.reason
    assert found.runs[-1].way is Way.GRAPHS


def test_what_is_printed_is_heard_once(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        print("here")
        return x + 1

    assert witness(prints, (X,), "eager").blame is Blame.NOBODY
    assert capsys.readouterr().out == "here\n"


def test_it_takes_keyword_arguments_and_what_was_compiled_already() -> None:
    @torch.compile(backend=refuses)
    def scaled(x: torch.Tensor, *, by: float, and_add: torch.Tensor) -> torch.Tensor:
        return x * by + and_add

    found = witness(scaled, (X,), "aot_eager", kwargs={"by": 3.0, "and_add": X})
    assert found.blame is Blame.NOBODY, found.reason


def test_sizes_can_be_symbolic() -> None:
    found = witness(lambda x: x.view(-1) * x.shape[0], (X,), "aot_eager", dynamic=True)
    assert found.blame is Blame.NOBODY, found.reason
    assert any("[s" in node.shape for graph in found.difference.dynamo for node in graph.nodes)


def test_a_function_that_was_compiled_before_can_be_compiled_afterwards() -> None:
    """Covers: F11"""
    compiled = torch.compile(step, backend="eager")
    before = compiled(X)
    witness(step, (X,), off_by(1.0))
    assert torch.equal(compiled(X), before)


def test_a_backend_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(SleuthError, match="there is no backend 'inducto'"):
        witness(step, (X,), "inducto")


# ---- traits: what values do not tell ---------------------------------------------------------------------------

T = torch.ones(2)


@pytest.mark.parametrize(
    ("eager", "compiled", "words"),
    [
        ([T], (T,), "output is a tuple; eager gives a list"),
        ({"a": 1}, collections.OrderedDict(a=1), "output is a collections.OrderedDict, with the keys 'a'; eager gives"),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, "with the keys 'a', 'b'; eager gives a dict, with the keys 'b', 'a'"),
        (torch.Size([2]), (2,), "output is a tuple; eager gives a torch.Size"),
        (T, nn.Parameter(T), "which requires a gradient"),
        (T, T.clone().requires_grad_(), "which requires a gradient"),
        (np.float32(2), np.array(2, dtype=np.float32), "output is a numpy.ndarray; eager gives a numpy.float32"),
    ],
)
def test_what_is_of_another_kind_is_not_the_same(eager: Any, compiled: Any, words: str) -> None:
    assert bool(same(eager, compiled)) or "numpy" in words
    assert words in other_traits(traits_of("output", eager), traits_of("output", compiled))
    assert not other_traits(traits_of("output", eager), traits_of("output", eager))


def test_whose_memory_and_which_object_it_is_counts() -> None:
    x = torch.ones(4)
    owners = Owners([("args[0]", [x])])
    twice = traits_of("output", [x + 1] * 2, owners)
    assert twice["output[1]"] == "a torch.Tensor, the same object as output[0]"
    for each in (x, x[1:]):
        assert traits_of("output", each, owners) == {"output": "a torch.Tensor, in the memory of args[0][0]"}
    assert traits_of("output", [x, x], owners) == traits_of("output", [x, x.view(4)], owners)
    given = {"a": 1}
    owners = Owners([("args[0]", given)])
    assert traits_of("output", given, owners)["output"] == "a dict, with the keys 'a', the very object args[0]"
    owners = Owners([("args[0]", x)])
    base = x + 1
    assert traits_of("output", [base, base[1:]], owners) == traits_of("output", [base, base[1:].clone()], owners)
    assert traits_of("output", x.t().contiguous().clone(), owners) == {"output": "a torch.Tensor, in new memory"}


def test_what_contains_itself_has_traits() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert traits_of("output", endless, Owners())["output[1]"] == "a list, the same object as output"
    doubled: list[Any] = []
    for _ in range(100):
        doubled = [doubled, doubled]
    assert len(traits_of("output", doubled)) == 201


def test_a_result_of_another_type_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U21"""
    dynamo_is(lambda fn: lambda x: tuple(fn(x)), monkeypatch)
    found = witness(lambda x: [x + 1, x.sum()], (X,), "eager")
    assert found.blame is Blame.FRONT_END, found.reason
    assert found.dynamo.words == "output is a tuple; eager gives a list"


def clones(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return lambda *inputs: tuple(each.clone() for each in gm(*inputs))


def test_a_backend_whose_results_are_no_longer_views_of_inputs_is_at_fault() -> None:
    """Covers: U21"""
    found = witness(lambda x: (x.view(-1), x + 1), (X,), clones)
    assert (found.blame, found.part) == (Blame.BACKEND, ITSELF), found.reason
    assert "in new memory; eager gives a torch.Tensor, in the memory of args[0]" in found.dynamo.words
    assert witness(lambda x: x.sin(), (X,), clones).blame is Blame.NOBODY


def test_a_backend_that_copies_dynamos_views_alone_is_at_fault() -> None:
    """Covers: U21"""

    def copies(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return clones(gm, example_inputs) if is_dynamos(gm) else gm.forward

    found = witness(lambda x: (x.view(-1), x + 1), (X,), copies)
    assert found.blame is Blame.BACKEND, found.reason
    assert "our graphs do not set it off" in found.reason


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_traits_accuse_nobody_who_is_right(backend: str) -> None:
    """What AOT gives as one object are two views of an input in eager."""
    weight = torch.ones(3, requires_grad=True)
    x = X.clone().requires_grad_()
    assert witness(lambda x: (x.chunk(2), torch.split(x, 1), x[0]), (x,), backend).blame is Blame.NOBODY

    def shares(x: torch.Tensor, more: dict[str, Any]) -> Any:
        y = x * weight
        more["new"] = x
        same = [y, y, x, x[0], weight, weight[1:], y.view(-1), y.detach(), x.t()]
        return same, more, (x.shape, x.sum().item()), x.expand(2, *x.shape), {"b": same, "a": torch.max(y, 0)}

    found = witness(shares, (X, {"a": X}), backend)
    assert found.blame is Blame.NOBODY, found.reason


# ---- faults of ours, and cases ---------------------------------------------------------------------------------


def test_a_fault_of_our_translator_is_ours_though_the_call_went_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Covers: F8"""

    def planted(self: Any, frame: Any, instruction: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Interpreter, "BINARY_SUBSCR", planted)
    ours_is(lambda fn: fn, monkeypatch, records=str(tmp_path))
    found = witness(lambda x, d: x * d["k"], (X, {"k": 3}), "eager")
    assert (found.blame, found.we_failed) == (Blame.OURS, True), found.reason
    assert "our own translator failed, and the call went on natively: KeyError: 'planted'" in found.reason
    assert found.records == tuple(map(str, tmp_path.iterdir()))
    assert len(found.records) == 1


def test_a_backend_that_gives_no_compiled_graph_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: F9"""
    for gives in (None, lambda *inputs: ()):
        found = witness(step, (X,), lambda gm, inputs, gives=gives: gives)
        assert found.blame is Blame.BACKEND, found.reason
    dynamo_is(lambda fn: step, monkeypatch)  # who puts up with it
    found = witness(step, (X,), lambda gm, inputs: None)
    assert (found.blame, found.part) == (Blame.BACKEND, ITSELF), found.reason
    assert "what <lambda> gives is no compiled graph" in found.reason


class Keeper:
    """Watches nothing, and keeps one case."""

    def __init__(self) -> None:
        self.backends: list[Any] = []

    def watched(self, backend: Any) -> Backend:
        self.backends.append(backend)
        return refuses

    def kept(self) -> tuple[KeptCase, ...]:
        return (KeptCase("here", "it fails", "sleuth minify here"),)


class FromTheThirdCallOn(Keeper):
    """Keeps a case if it is asked often enough."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def watched(self, backend: Any) -> Backend:
        return plain

    def kept(self) -> tuple[KeptCase, ...]:
        self.asked += 1
        return super().kept() if self.asked > 2 else ()


def test_a_failure_of_the_backend_is_met_once_more_to_be_kept() -> None:
    """Covers: F5, U28"""
    for backend, times in ((refuses, 1), (off_by(1.0), 1), ("eager", 0)):
        keeper, told = Keeper(), Told()
        found = witness(step, (X,), backend, keeper=keeper, steps=told)
        assert keeper.backends == [backend] * times
        assert found.cases == keeper.kept()[:times]
        assert told.steps.count(module.KEEPING) == times


def test_what_fails_in_a_later_call_is_kept_as_well() -> None:
    """Covers: U28"""
    keeper = FromTheThirdCallOn()
    assert len(witness(step, (X,), refuses, keeper=keeper).cases) == 1
    assert keeper.asked == 4


def test_what_kills_or_hangs_is_not_met_once_more() -> None:
    """Covers: U19"""
    died = Crashed(Stage.RUN, signal=11)
    keeper = Keeper()
    told = Told(Dynamo_with_plain=died, torchsleuth_with_plain=died)
    told.deaths[module.KEEPING] = died
    assert witness(step, (X,), plain, steps=told, keeper=keeper).cases == keeper.kept()
    hang = TimedOut(Stage.RUN, deadline=3)
    told = Told(Dynamo_with_plain=hang, torchsleuth_with_plain=hang)
    found = witness(step, (X,), plain, steps=told, keeper=keeper)
    assert (found.blame, found.cases, keeper.backends) == (Blame.BACKEND, (), [])


def test_a_call_that_never_settles_says_why_and_its_graph_is_shown_once() -> None:
    """Covers: F7"""

    calls = {"number": 0}

    def counts(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if calls["number"] else x.cos()

    kept = Kept(plain)
    settling = Settling(kept)
    settling.captured = capture(counts, kept)

    def again() -> Any:
        settling.captured.forget()
        calls["number"] += 1
        return settling.captured(X)

    assert kept.is_later is False
    settling.captured.misses.append(("calls['number'] is 0", "it is 1 now"))
    settling.settled(again, settling.captured(X))
    assert settling.no_witness == (
        "each call is recorded anew, so none runs what was compiled: the guard \"calls['number'] is 0\" does not hold"
        " (it is 1 now)"
    )
    assert [[node.name_of_call for node in graph.nodes] for graph in kept.graphs] == [["cos"], ["sin"]]


# ---- steps ---------------------------------------------------------------------------------------------------


class Told(Untold):
    """Notes the steps, and knows of deaths."""

    def __init__(self, **deaths: Outcome) -> None:
        self.steps: list[str] = []
        self.deaths = {name.replace("_", " "): outcome for name, outcome in deaths.items()}

    def died(self, step: str) -> Outcome | None:
        return self.deaths.get(step)

    @contextlib.contextmanager
    def at(self, step: str) -> Iterator[None]:
        self.steps.append(step)
        yield


def test_a_run_in_which_the_process_died_is_not_made_again() -> None:
    """Covers: U19"""
    died = Crashed(Stage.RUN, signal=11)
    told = Told(Dynamo_with_plain=died, torchsleuth_with_plain=died)
    found = witness(step, (X,), plain, steps=told)
    assert found.blame is Blame.BACKEND, found.reason
    assert found.part == ""  # whoever has seen AOT in it is dead
    assert found.dynamo.words == "crashed with SIGSEGV"
    assert told.steps == ["eager", "torchsleuth with eager", "Dynamo with eager"]
    assert found.difference.alike  # the graphs are known all the same, from the runs with "eager"
    assert found.difference.ours


def test_a_hang_of_one_front_end_alone_is_its_own() -> None:
    """Covers: U19"""
    hang = TimedOut(Stage.DYNAMO, deadline=3)
    told = Told(Dynamo_with_plain=hang, Dynamo_with_eager=hang)
    found = witness(step, (X,), plain, steps=told)
    assert found.blame is Blame.FRONT_END
    assert "timed out after 3 s (dynamo)" in found.reason


# ---- the graphs ----------------------------------------------------------------------------------------------


def aligned(ours: Callable[..., Any], dynamo: Callable[..., Any], *inputs: torch.Tensor) -> Difference:
    return align(*([described(fx.symbolic_trace(fn), inputs)] for fn in (ours, dynamo)))


def kinds(difference: Difference) -> list[str]:
    return [row.kind.value for row in difference.rows]


def test_another_spelling_of_an_operation_is_alike() -> None:
    def methods(x: Any, y: Any) -> Any:
        return x.add(y).mul(2).div(3).relu()

    def functions(x: Any, y: Any) -> Any:
        return torch.relu(operator.truediv(torch.multiply(x + y, 2), 3))

    difference = aligned(methods, functions, X, X)
    assert difference.alike
    assert kinds(difference) == ["spelled otherwise"] * 4
    assert kinds(aligned(methods, methods, X, X)) == ["same"] * 4


def test_in_place_is_another_operation_and_gives_back_what_it_wrote_to() -> None:
    def returned(x: Any) -> Any:
        return x.add_(1).mul(2)

    def dropped(x: Any) -> Any:
        x.add_(1)
        return x.mul(2)

    assert aligned(returned, dropped, X).alike
    assert not aligned(returned, lambda x: x.add(1).mul(2), X).alike


def test_what_differs_is_said() -> None:
    difference = aligned(lambda x: (x.sum(0) + 1).relu(), lambda x: (x.sum(1) + 2).relu(), X)
    assert [row.why for row in difference.rows] == [
        "ours is f32[3], Dynamo's f32[2]; ours takes 0, Dynamo 1",
        "ours is f32[3], Dynamo's f32[2]; ours takes 1, Dynamo 2",
        "ours is f32[3], Dynamo's f32[2]",
    ]
    swapped = aligned(lambda x, y: (x - y, x), lambda x, y: (y - x, y), X, X)
    assert kinds(swapped) == ["same"]  # inputs have no names that count
    twice = aligned(lambda x, y: (x + y) - x, lambda x, y: (x + y) - y, X, X)
    assert [row.why for row in twice.rows] == ["", "ours takes x, Dynamo y"]


def test_what_one_of_them_has_alone_stands_alone() -> None:
    difference = aligned(lambda x: x.sin().clone().cos(), lambda x: x.sin().cos().float(), X)
    assert kinds(difference) == ["same", "only ours", "differs", "only Dynamo"]
    assert difference.count(Kind.ONLY_OURS) == 1
    assert difference.rows[2].why == "ours takes clone, Dynamo sin"


def test_graphs_of_both_front_ends_have_the_users_lines() -> None:
    found = witness(step, (X,), "eager")
    assert [row.place.source for row in found.difference.rows if row.place] == ["return torch.relu(x + 1) * 2"] * 3
    assert [str(row.ours) for row in found.difference.rows] == [
        "add: f32[2, 3] = operator.add(input_0, 1)",
        "relu: f32[2, 3] = torch.relu(add)",
        "mul: f32[2, 3] = operator.mul(relu, 2)",
    ]


def test_a_line_of_torch_gives_way_to_the_users() -> None:
    net = nn.Sequential(nn.Linear(3, 3))

    def calls(x: torch.Tensor) -> torch.Tensor:
        return net(x)

    (row,) = witness(calls, (X,), "eager").difference.rows
    assert row.place is not None
    assert row.place.source == "return net(x)"


def test_a_break_stands_between_two_graphs() -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("here")
        return y.relu()

    found = witness(prints, (X,), "eager")
    assert found.blame is Blame.NOBODY
    assert kinds(found.difference) == ["same"] * 3
    assert str(found.difference.rows[1].ours) == "--- graph break ---"
    assert [each.place.source for each in found.breaks] == ['print("here")']


def test_a_break_of_one_of_them_is_its_alone() -> None:
    def one(x: Any) -> Any:
        return x.sin().cos()

    two = (lambda x: x.sin(), lambda x: x.cos())
    halves = [described(fx.symbolic_trace(half), (X,), number) for number, half in enumerate(two)]
    difference = align([described(fx.symbolic_trace(one), (X,))], halves)
    assert len(difference.rows) == 3
    assert difference.rows[1].kind is Kind.ONLY_DYNAMO
    assert not difference.alike


# ---- Inductor itself -----------------------------------------------------------------------------------------


@pytest.mark.inductor
def test_a_fault_that_is_planted_in_inductor_is_found_in_inductor() -> None:
    """Covers: U21, U12"""
    with inductor_config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        found = witness(step, (X,))
    assert (found.blame, found.part) == (Blame.BACKEND, BEHIND_AOT), found.reason


@pytest.mark.inductor
def test_inductor_without_a_fault_is_not_accused() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    found = witness(net, (torch.randn(16, 3),))
    assert found.blame is Blame.NOBODY, found.reason

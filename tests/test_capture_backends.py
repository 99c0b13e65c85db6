"""`watch` and `installed`: every kind of backend, every way to call torch.compile, and what stays as it was."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter

from backend_samples import (
    Boxed,
    GraphCompiler,
    aot_backend,
    ended,
    ended_forked,
    inputs_of,
    listed,
    off_by_one,
    only,
    plain_backend,
    raises,
    values_of,
)
from torchsleuth import config
from torchsleuth.capture.backends import WatchedBackend, watch
from torchsleuth.capture.installing import installed
from torchsleuth.case.schema import Case
from torchsleuth.errors import AccuracyError, BadValue, SleuthError, UnknownSetting
from torchsleuth.outcome import Stage

AFTER = ("aot", "dynamo", "both")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def watched(store: Path) -> Any:
    """`watched(backend, level=4)`: that backend, watched into the store of the test."""

    def make(backend: Any, **settings: Any) -> WatchedBackend:
        return watch(backend, store=str(store), **settings)

    return make


@pytest.fixture(autouse=True)
def from_the_beginning() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2).sum(0)


def picks(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Fails when it runs, if the index is out of range."""
    return x.sin()[index]


class Model(nn.Module):
    """One of the user's own: those of torch.nn are not compiled by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()  # type: ignore[no-any-return]


def graph_ops(case: Case) -> list[str]:
    return [node.target.removeprefix("torch.ops.") for node in case.graph.nodes if node.op.startswith("call_")]


def signature(case: Case) -> tuple[str, Stage]:
    assert case.failure is not None
    return case.failure.signature.kind, case.failure.signature.stage


def train(model: Callable[[torch.Tensor], torch.Tensor], *parameters: torch.Tensor) -> list[torch.Tensor]:
    """Two steps: the losses, the gradients, and the next random number."""
    torch.manual_seed(3)
    found = []
    for _ in range(2):
        loss = model(torch.randn(4, 3)).square().sum()
        gradients = torch.autograd.grad(loss, parameters)
        found += [loss.detach(), *gradients]
    return [*found, torch.rand(1)]


def is_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- kinds of backends -----------------------------------------------------------------------------------------


def simplified(gm: fx.GraphModule, inputs: Any) -> Any:
    """A backend that calls AOTAutograd by itself."""
    from torch._functorch.aot_autograd import aot_module_simplified

    return aot_module_simplified(gm, inputs, fw_compiler=GraphCompiler())


KINDS = {
    "eager": "eager",
    "aot_eager": "aot_eager",
    "partitioned": "aot_eager_decomp_partition",
    "function": plain_backend(),
    "AotAutograd": aot_backend(),
    "calls AOT": simplified,
}


@pytest.mark.parametrize("level", [1, 3, 4])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("kind", KINDS)
def test_any_backend_computes_the_same_watched(watched: Any, store: Path, kind: str, after: str, level: int) -> None:
    """Covers: U24"""
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.4), nn.Tanh(), nn.Linear(5, 2))
    parameters = tuple(model.parameters())
    unwatched = train(torch.compile(model, backend=KINDS[kind]), *parameters)
    torch._dynamo.reset()
    seen = train(torch.compile(model, backend=watched(KINDS[kind], after=after, level=level)), *parameters)
    assert is_same(unwatched, seen)
    assert listed(store) == []


@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        ("eager", {"dynamo": "eager"}),
        ("aot_eager", {"dynamo": "aot_eager", "inference": "torch._dynamo.backends.debugging.boxed_nop"}),
        ("function", {"dynamo": "backend_samples.plain_backend.<locals>.backend"}),
        ("calls AOT", {"dynamo": f"{__name__}.simplified", "inference": "backend_samples.GraphCompiler"}),
    ],
)
def test_a_case_says_which_backend_and_which_compiler(
    watched: Any, store: Path, kind: str, phases: dict[str, str]
) -> None:
    """Covers: S6b, U23, U24"""
    compiled = torch.compile(picks, backend=watched(KINDS[kind], after="both"))
    with pytest.raises(IndexError) as caught:
        compiled(torch.randn(3), torch.tensor([7]))
    torch._dynamo.reset()
    with pytest.raises(IndexError) as plain:
        torch.compile(picks, backend=KINDS[kind])(torch.randn(3), torch.tensor([7]))
    assert str(caught.value) == str(plain.value)
    found = {case.origin.phase: case for _, case in listed(store)}
    assert {phase: case.compiler.backend for phase, case in found.items()} == phases
    for phase, case in found.items():
        assert signature(case) == ("raised", Stage.RUN)
        assert str(case.compiler.after) == ("dynamo" if phase == "dynamo" else "aot")
        assert inputs_of(case) == "values"
    if "inference" in found:
        (parent,) = (folder for folder, case in listed(store) if case.origin.phase == "dynamo")
        assert found["inference"].origin.parent == parent.name


def test_one_backend_compiles_several_graphs(watched: Any, store: Path) -> None:
    """From its second graph on, torch has a backend's compiler of backward graphs point to itself."""

    def run() -> list[float]:
        compiled = torch.compile(in_parts, backend=watched(aot_backend()))
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()  # type: ignore[no-any-return]

    x = torch.ones(3, requires_grad=True)
    in_parts(x).sum().backward()
    assert x.grad is not None
    assert ended_forked(run).result == x.grad.tolist()
    assert listed(store) == []


def test_a_backend_without_graphs_after_aot_is_watched_as_a_whole(watched: Any, store: Path) -> None:
    """Covers: U24"""
    compiled = torch.compile(program, backend=watched(plain_backend(then=off_by_one), after="aot", level=4))
    with pytest.raises(AccuracyError, match=r"Dynamo's graph \d+ computes something else than eager"):
        compiled(torch.randn(3))
    assert only(store).origin.phase == "dynamo"


def test_what_is_watched_already_is_not_watched_twice(watched: Any, store: Path) -> None:
    backend = plain_backend(then=raises)
    twice = watch(watched(backend), store=str(store))
    assert twice.backend is backend
    with pytest.raises(ZeroDivisionError):
        torch.compile(program, backend=twice)(torch.randn(3))
    assert len(listed(store)) == 1


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["torch.compile", "watch"])
@pytest.mark.parametrize("given", [{}, {"mode": "fast"}, {"options": {"depth": 3, "names": ["a"]}}])
def test_mode_and_options_reach_the_backend(watched: Any, store: Path, where: str, given: dict[str, Any]) -> None:
    """Covers: U24"""
    seen: list[dict[str, Any]] = []

    def backend(gm: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        seen.append(options)
        return raises

    def compiled(backend: Any, **options: Any) -> Any:
        return torch.compile(program, backend=backend, **copy.deepcopy(options))

    made = compiled(watched(backend), **given) if where == "torch.compile" else compiled(watched(backend, **given))
    with pytest.raises(ZeroDivisionError):
        made(torch.randn(3))
    torch._dynamo.reset()
    with pytest.raises(ZeroDivisionError):
        compiled(backend, **given)(torch.randn(3))
    watched_options, plain_options = seen
    assert watched_options == plain_options == given
    case = only(store)
    assert case.compiler.mode == given.get("mode")
    assert [entry.name for entry in case.compiler.options] == list(given.get("options", {}))


def test_torch_compile_s_options_count_before_those_of_watch(watched: Any) -> None:
    seen: list[dict[str, Any]] = []

    def backend(gm: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        seen.append(options)
        return gm

    torch.compile(program, backend=watched(backend, mode="slow"), mode="fast")(torch.randn(3))
    assert seen == [{"mode": "fast"}]


def test_dynamic_shapes(watched: Any, store: Path) -> None:
    """Covers: U24"""
    calls: list[int] = []

    def then(inputs: list[Any], gm: fx.GraphModule) -> Any:
        calls.append(1)
        return raises() if len(calls) == 2 else gm(*inputs)

    compiled = torch.compile(program, backend=watched(aot_backend(then=then), level=3), dynamic=True, fullgraph=True)
    one, other = torch.randn(4, 3), torch.randn(7, 3)
    assert torch.equal(compiled(one), program(one))
    with pytest.raises(ZeroDivisionError):
        compiled(other)
    case = only(store)
    assert case.symbols.symbols
    assert any(torch.equal(each, other) for each in _tensors(store, case))


def _tensors(store: Path, case: Case) -> list[torch.Tensor]:
    from msgspec.structs import replace

    return values_of(store, replace(case, inputs=tuple(each for each in case.inputs if hasattr(each, "storage"))))


@pytest.mark.parametrize("after", AFTER)
def test_fullgraph_is_as_strict_as_unwatched(watched: Any, store: Path, after: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    plain = ended(lambda: torch.compile(broken, backend="aot_eager", fullgraph=True)(torch.ones(2)))
    torch._dynamo.reset()
    seen = ended(
        lambda: torch.compile(broken, backend=watched("aot_eager", after=after), fullgraph=True)(torch.ones(2))
    )
    assert plain.error is not None
    assert (seen.error, seen.message, seen.notes) == (plain.error, plain.message, plain.notes)
    assert listed(store) == []


# ---- ways to call torch.compile ----------------------------------------------------------------------------------


def test_a_module_compiles_itself(watched: Any, store: Path) -> None:
    """Covers: U24"""
    model = Model()
    model.compile(backend=watched(aot_backend(then=raises)))
    with pytest.raises(ZeroDivisionError):
        model(torch.randn(4, 3))
    assert only(store).origin.phase == "forward"


def test_as_a_decorator(watched: Any, store: Path) -> None:
    """Covers: U24"""

    @torch.compile(backend=watched(aot_backend(compiling=raises)))
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        decorated(torch.randn(3))
    assert graph_ops(only(store)) == ["aten.add.Tensor"]


def test_disabled_it_is_not_called(watched: Any, store: Path) -> None:
    compiled = torch.compile(program, backend=watched(aot_backend(compiling=raises)), disable=True)
    assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))
    assert not store.exists()


def test_two_of_equal_settings_compile_once(store: Path) -> None:
    """A backend that is another one makes Dynamo compile anew."""
    counter = CompileCounter()

    def run(**settings: Any) -> int:
        torch.compile(program, backend=watch(counter, store=str(store), **settings))(torch.ones(3))
        return int(counter.frame_count)

    assert [run(), run(), run(after="aot"), run(level=4), run(level=4), run(after="dynamo", level=4)] == [
        1,
        1,
        1,
        2,
        2,
        3,
    ]
    assert watch("eager", store="s") == watch("eager", store="s")
    assert hash(watch("eager", store="s")) == hash(watch("eager", store="s"))
    assert watch("eager", store="s") != watch("aot_eager", store="s")
    assert watch("eager", store="s") != "eager"


def test_reset_reaches_the_backend(watched: Any) -> None:
    calls = []
    backend = plain_backend()
    backend.reset = lambda: calls.append("reset")
    torch.compile(program, backend=watched(backend))(torch.ones(3))
    torch._dynamo.reset()
    assert calls == ["reset"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])  # noqa: S301
def test_a_compiled_module_can_be_copied(watched: Any, copied: Callable[[Any], Any]) -> None:
    """As it can be unwatched."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    for backend in ("eager", watched("eager"), watched("aot_eager", after="both", level=3)):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend)
        before = compiled(x)
        assert torch.equal(copied(compiled)(x), before)
        assert torch.equal(copied(model)(x), before)


# ---- states ------------------------------------------------------------------------------------------------------


STATES = {
    "grad": (torch.enable_grad, (True, False, False)),
    "no_grad": (torch.no_grad, (False, False, False)),
    "inference_mode": (torch.inference_mode, (False, True, False)),
    "autocast": (lambda: torch.autocast("cpu"), (True, False, True)),
}


@pytest.mark.parametrize("fails", ["compiling", "then"])
@pytest.mark.parametrize("after", ["dynamo", "both"])
@pytest.mark.parametrize("state", STATES)
def test_the_modes_of_the_caller_are_in_the_case(watched: Any, store: Path, state: str, after: str, fails: str) -> None:
    """Covers: U15"""
    mode, (grad, inference, autocast) = STATES[state]
    inference = inference and fails == "then"  # Dynamo turns it off while it compiles
    weight = torch.randn(3, 3, requires_grad=True)
    backend = watched(aot_backend(**{fails: raises}), after=after)
    with mode(), pytest.raises((ZeroDivisionError, torch._dynamo.exc.BackendCompilerFailed)):
        torch.compile(lambda x: x @ weight, backend=backend)(torch.randn(3, 3))
    case = next(case for _, case in listed(store) if case.origin.phase == "dynamo")
    on = any(each.device == "cpu" and each.enabled for each in case.state.autocast)
    assert (case.state.grad, case.state.inference, on) == (grad, inference, autocast)


@pytest.mark.parametrize(
    ("state", "phase", "dtype"),
    [
        ("grad", "forward", "float32"),
        ("no_grad", "inference", "float32"),
        ("inference_mode", "inference", "float32"),
        ("autocast", "forward", "bfloat16"),
    ],
)
def test_after_aot_the_modes_are_in_the_graph(watched: Any, store: Path, state: str, phase: str, dtype: str) -> None:
    """Covers: U15"""
    weight = torch.randn(3, 3, requires_grad=True)
    with STATES[state][0](), pytest.raises(ZeroDivisionError):
        torch.compile(lambda x: x @ weight, backend=watched(aot_backend(then=raises)))(torch.randn(3, 3))
    case = only(store)
    assert case.origin.phase == phase
    (product,) = [node for node in case.graph.nodes if node.target == "torch.ops.aten.mm.default"]
    assert product.meta.val.dtype == dtype  # type: ignore[union-attr]
    assert case.state.inference == (state == "inference_mode")


# ---- forward and backward ----------------------------------------------------------------------------------------


def loss(x: torch.Tensor) -> torch.Tensor:
    return x.tanh().square().sum()


@pytest.mark.parametrize("after", ["aot", "both"])
@pytest.mark.parametrize(("fails", "stage"), [("compiling", Stage.COMPILE), ("then", Stage.RUN)])
def test_a_bug_in_the_backward_gives_the_backward_graph(
    watched: Any, store: Path, fails: str, stage: Stage, after: str
) -> None:
    """Covers: S16, U23"""
    backend = aot_backend(bw_compiler=GraphCompiler(**{fails: raises}))
    x = torch.randn(5, requires_grad=True)
    found = ended(lambda: torch.compile(loss, backend=backend)(x).backward())
    torch._dynamo.reset()
    seen = ended(lambda: torch.compile(loss, backend=watched(backend, after=after))(x).backward())
    assert (seen.error, seen.message) == (found.error, found.message)
    case = next(case for _, case in listed(store) if case.origin.phase == "backward")
    assert signature(case) == ("raised", stage)
    assert "aten.tanh.default" not in graph_ops(case)
    assert f"backward graph {case.origin.number}" in seen.notes[0]
    assert len(listed(store)) == (2 if after == "both" else 1)


def test_a_wrong_gradient_is_found_in_the_backward_graph(watched: Any, store: Path) -> None:
    """Covers: S12, S16"""
    backend = watched(aot_backend(bw_compiler=GraphCompiler(then=off_by_one)), level=4)
    result = torch.compile(loss, backend=backend)(torch.randn(5, requires_grad=True))
    with pytest.raises(AccuracyError, match=r"backward graph \d+ computes something else"):
        result.backward()
    assert only(store).origin.phase == "backward"


@pytest.mark.parametrize("fails", ["compiling", "then"])
def test_a_bug_in_the_forward_has_no_backward(watched: Any, store: Path, fails: str) -> None:
    """Covers: U16"""
    backend = watched(aot_backend(**{fails: raises}))
    with pytest.raises((ZeroDivisionError, torch._dynamo.exc.BackendCompilerFailed)):
        torch.compile(loss, backend=backend)(torch.randn(5, requires_grad=True))
    case = only(store)
    assert case.origin.phase == "forward"
    assert graph_ops(case)[:1] == ["aten.tanh.default"]
    (folder,) = (folder for folder, _ in listed(store))
    script = (folder / "repro.py").read_text()
    assert ".backward()" not in script
    assert "autograd.grad" not in script


class Picky:
    """A backend that cannot compile graphs with a certain operator, or not run them."""

    def __init__(self, op: Any, fails: str) -> None:
        self.op = op
        self.fails = fails

    def __call__(self, gm: fx.GraphModule, inputs: Any) -> Boxed:
        has_op = any(node.target == self.op for node in gm.graph.nodes)
        if has_op and self.fails == "compiling":
            raises()
        return Boxed(gm, raises if has_op else None)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_compiled_autograd_trains(watched: Any, store: Path, level: int) -> None:
    """Covers: U24"""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))

    def gradients(backend: Any) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model.zero_grad()
        torch.manual_seed(1)
        with torch._dynamo.config.patch(compiled_autograd=True):

            @torch.compile(backend=backend)
            def step(x: torch.Tensor) -> None:
                model(x).square().sum().backward()

            for _ in range(2):
                step(torch.randn(4, 3))
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients("aot_eager")
    assert len(plain) == 4
    assert is_same(plain, gradients(watched("aot_eager", level=level)))
    assert listed(store) == []


@pytest.mark.parametrize("fails", ["compiling", "then"])
def test_compiled_autograd_that_fails_in_the_backward_is_kept(watched: Any, store: Path, fails: str) -> None:
    """Covers: S16"""
    backward = torch.ops.aten.tanh_backward.default
    picky = Picky(backward, fails)
    x = torch.randn(5, requires_grad=True)

    def run(backend: Any) -> Any:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(compiled_autograd=True):

            @torch.compile(backend=backend)
            def step(x: torch.Tensor) -> None:
                x.tanh().sum().backward()

            return ended(lambda: step(x))

    make = lambda: aot_backend(fw_compiler=picky, bw_compiler=picky, inference_compiler=picky)  # noqa: E731
    plain, seen = run(make()), run(watched(make()))
    assert plain.error in ("ZeroDivisionError", "BackendCompilerFailed")
    assert (seen.error, seen.message) == (plain.error, plain.message)
    assert "torchsleuth kept this failure" in seen.notes[0]
    assert "aten.tanh_backward.default" in graph_ops(only(store))


def test_activation_checkpointing(watched: Any, store: Path) -> None:
    """Covers: S16"""
    from torch.utils.checkpoint import checkpoint

    weight = torch.randn(3, 3, requires_grad=True)

    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.sigmoid(y @ weight).sin(), x, use_reentrant=False)  # type: ignore[no-any-return]

    plain = train(torch.compile(model, backend=aot_backend()), weight)
    for level in (1, 4):
        torch._dynamo.reset()
        assert is_same(plain, train(torch.compile(model, backend=watched(aot_backend(), level=level)), weight))
    assert listed(store) == []
    torch._dynamo.reset()
    fails = watched(aot_backend(bw_compiler=GraphCompiler(then=raises)))
    with pytest.raises(ZeroDivisionError):
        train(torch.compile(model, backend=fails), weight)
    assert only(store).origin.phase == "backward"


# ---- which graph ---------------------------------------------------------------------------------------------------


def in_parts(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    x = x.cos()
    torch._dynamo.graph_break()
    return x.exp()


@pytest.mark.parametrize("after", ["aot", "dynamo"])
@pytest.mark.parametrize("fails", ["compiling", "then"])
def test_the_message_says_which_graph_of_many(watched: Any, store: Path, after: str, fails: str) -> None:
    """Covers: U23"""
    op = torch.ops.aten.cos.default
    picky = Picky(op, fails)
    backend = aot_backend(fw_compiler=picky, inference_compiler=picky)
    seen = ended(lambda: torch.compile(in_parts, backend=watched(backend, after=after))(torch.randn(3)))
    case = only(store)
    assert case.origin.graph in seen.notes[0]
    assert len(graph_ops(case)) == 1
    assert "cos" in graph_ops(case)[0]


def test_graphs_of_one_program_have_names_of_their_own(watched: Any, store: Path) -> None:
    """Covers: U23"""
    compiled = torch.compile(in_parts, backend=watched(aot_backend(then=off_by_one), level=4))
    names = set()
    for _ in range(3):
        with pytest.raises(AccuracyError) as caught:
            compiled(torch.randn(3))
        names.add(str(caught.value).split(" computes")[0])
        torch._dynamo.reset()
    assert names == {case.origin.graph for _, case in listed(store)}


# ---- between Dynamo and the compiler -------------------------------------------------------------------------------


def bad_partition(*_: Any, **__: Any) -> Any:
    raise KeyError("a node has no partition")


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize(
    ("more", "stage"),
    [
        ({"partition_fn": bad_partition}, Stage.AOT),
        ({"decompositions": {torch.ops.aten.tanh.default: raises}}, Stage.DECOMPOSITION),
    ],
    ids=["partitioner", "decomposition"],
)
def test_what_fails_before_any_compiler_is_a_case_of_dynamo_s_graph(
    watched: Any, store: Path, more: dict[str, Any], stage: Stage, after: str, level: int
) -> None:
    """Covers: S8, S16"""
    x = torch.randn(5, requires_grad=True)
    plain = ended(lambda: torch.compile(loss, backend=aot_backend(**more))(x))
    torch._dynamo.reset()
    seen = ended(lambda: torch.compile(loss, backend=watched(aot_backend(**more), after=after, level=level))(x))
    assert plain.error == "BackendCompilerFailed"
    assert (seen.error, seen.message) == (plain.error, plain.message)
    case = only(store)
    assert case.origin.phase == "dynamo"
    assert signature(case) == ("raised", stage)
    assert len(seen.notes) == 1


@pytest.mark.parametrize("level", [1, 4])
def test_torch_s_own_way_through_a_program_is_no_failure(watched: Any, store: Path, level: int) -> None:
    """Covers: S8"""
    exc = torch._dynamo.exc
    for make in (exc.TensorifyScalarRestartAnalysis, lambda: exc.SkipFrame("not this one")):
        torch._dynamo.reset()
        calls: list[int] = []

        def compiling(make: Any = make, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise make()

        compiled = torch.compile(program, backend=watched(aot_backend(compiling), level=level))
        x = torch.randn(3)
        assert torch.equal(compiled(x), program(x))
        assert calls
    assert listed(store) == []


# ---- what the user sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("fails", ["compiling", "then"])
def test_the_traceback_ends_with_the_path_and_the_next_command(
    watched: Any, store: Path, after: str, fails: str
) -> None:
    """Covers: U28"""
    compiled = torch.compile(program, backend=watched(aot_backend(**{fails: raises}), after=after))
    with pytest.raises((ZeroDivisionError, torch._dynamo.exc.BackendCompilerFailed)) as caught:
        compiled(torch.randn(3))
    text = "".join(traceback.format_exception(caught.value))
    parents = {case.origin.parent for _, case in listed(store)}
    (folder,) = (folder for folder, _ in listed(store) if folder.name not in parents)
    assert str(folder) in text
    assert text.rstrip().splitlines()[-1].startswith("Next: sleuth ")


def test_the_user_s_line_is_in_the_message_and_in_the_case(watched: Any, store: Path) -> None:
    """Covers: U29"""
    backend = aot_backend(decompositions={torch.ops.aten.tanh.default: raises})
    seen = ended(lambda: torch.compile(loss, backend=watched(backend))(torch.randn(5)))
    frame = only(store).failure.frame  # type: ignore[union-attr]
    assert frame is not None
    assert frame.file == __file__
    assert frame.line == loss.__code__.co_firstlineno + 1
    assert f"{frame.file}:{frame.line}" in seen.notes[0]


# ---- threads, processes, nesting -----------------------------------------------------------------------------------


def test_threads_keep_their_own_failures(tmp_path: Path) -> None:
    """Four threads compile and run at once, each with its own settings."""

    def work(number: int) -> str | None:
        backend = aot_backend(then=raises) if number % 2 else aot_backend(compiling=raises)

        def mine(x: torch.Tensor) -> torch.Tensor:
            return x + number

        watched = watch(backend, store=str(tmp_path / str(number)))
        return ended(lambda: torch.compile(mine, backend=watched, dynamic=False)(torch.ones(3))).error

    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(work, range(8)))
    assert errors == ["BackendCompilerFailed", "ZeroDivisionError"] * 4
    for number in range(8):
        case = only(tmp_path / str(number))
        assert case.origin.phase == "inference"
        assert signature(case) == ("raised", Stage.RUN if number % 2 else Stage.COMPILE)
        (node,) = [node for node in case.graph.nodes if node.op == "call_function"]
        assert node.args[1] == number


def test_a_thread_that_does_not_watch_is_not_watched(watched: Any, store: Path) -> None:
    """While one thread compiles under watch, another one compiles without."""
    inside, over = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert over.wait(30)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(lambda: torch.compile(program, backend=watched(aot_backend(wait)))(torch.ones(3)))
        assert inside.wait(30)
        # Dynamo itself lets one thread compile at a time, so this is AOTAutograd alone.
        from torch._functorch.aot_autograd import aot_function

        seen: list[Any] = []

        def compiler(gm: fx.GraphModule, inputs: Any) -> Any:
            seen.append(gm)
            return Boxed(gm, raises)

        other = pool.submit(lambda: ended(lambda: aot_function(program, fw_compiler=compiler)(torch.ones(3))))
        assert other.result(30).error == "ZeroDivisionError"
        over.set()
        one.result(30)
    assert len(seen) == 1
    assert other.result().notes == ()
    assert listed(store) == []


def test_a_forked_child_keeps_its_failure(watched: Any, store: Path) -> None:
    """What was compiled before the fork fails after it."""
    fails: list[bool] = []

    def then(inputs: list[Any], gm: fx.GraphModule) -> Any:
        return raises() if fails else gm(*inputs)

    compiled = torch.compile(program, backend=watched(aot_backend(then=then), level=3))
    compiled(torch.ones(3))

    def child() -> Any:
        fails.append(True)
        return compiled(torch.ones(3))

    seen = ended_forked(child)
    assert seen.error == "ZeroDivisionError"
    assert str(listed(store)[0][0]) in seen.notes[0]
    assert signature(only(store)) == ("raised", Stage.RUN)


class Compiled(torch.utils.data.Dataset[Any]):
    """Its items are made by a compiled function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.function(torch.full((3,), float(index)))


def test_workers_of_a_data_loader(watched: Any, store: Path) -> None:
    def load(backend: Any) -> Any:
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=backend)
        loader = torch.utils.data.DataLoader(Compiled(compiled), num_workers=1, multiprocessing_context="fork")
        return ended(lambda: [item.tolist() for item in loader])

    assert load(watched(aot_backend(), level=4)).result == load(aot_backend()).result
    assert listed(store) == []
    seen = load(watched(aot_backend(then=raises)))
    assert seen.error == "ZeroDivisionError"
    case = only(store)
    assert signature(case) == ("raised", Stage.RUN)
    assert listed(store)[0][0].name in seen.message


def test_a_compiled_function_inside_of_another_one(watched: Any, store: Path) -> None:
    inner = torch.compile(lambda x: x.sin(), backend=watched("aot_eager"))

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = inner(x).cos()
        torch._dynamo.graph_break()
        return inner(y)

    x = torch.randn(3)
    compiled = torch.compile(outer, backend=watched("aot_eager", after="both", level=4))
    assert torch.equal(compiled(x), x.sin().cos().sin())
    assert listed(store) == []


def test_what_a_compiled_graph_compiles_is_not_watched(watched: Any, store: Path) -> None:
    """Covers: S3"""
    inner = torch.compile(lambda x: x.exp(), backend=watched(aot_backend(compiling=raises)))

    def then(inputs: list[Any], gm: fx.GraphModule) -> Any:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            inner(torch.ones(2))
        return gm(*inputs)

    torch.compile(program, backend=watched(aot_backend(then=then)))(torch.ones(3))
    assert listed(store) == []


# ---- settings ------------------------------------------------------------------------------------------------------


def test_a_patch_around_a_call_counts_more_than_arguments(watched: Any, store: Path) -> None:
    """Covers: S2"""
    compiled = torch.compile(program, backend=watched(aot_backend(then=raises)))
    for after, kept in ((None, 0), ("aot", 1), (None, 1)):
        with config.patch(after=after), pytest.raises(ZeroDivisionError) as caught:
            compiled(torch.ones(3))
        assert hasattr(caught.value, "__notes__") == (after is not None)
        assert len(listed(store)) == kept
        if after is None and kept == 0:
            # It was compiled while nothing was watched, so there is nothing to watch: compile it again.
            torch._dynamo.reset()


def test_patched_off_around_a_call_of_what_is_watched(watched: Any, store: Path) -> None:
    """Covers: S2"""
    fails: list[int] = []

    def then(inputs: list[Any], gm: fx.GraphModule) -> Any:
        return raises() if fails else gm(*inputs)

    compiled = torch.compile(program, backend=watched(aot_backend(then=then)))
    compiled(torch.ones(3))
    fails.append(1)
    with config.patch(after=None), pytest.raises(ZeroDivisionError) as caught:
        compiled(torch.ones(3))
    assert not hasattr(caught.value, "__notes__")
    assert listed(store) == []
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(3))
    assert len(listed(store)) == 1


@pytest.mark.parametrize("given", [{"after": "inductor"}, {"level": 5}, {"level": "loud"}, {"store": 3}])
def test_bad_settings_are_rejected_at_once(given: dict[str, Any]) -> None:
    """Covers: S15"""
    with pytest.raises(BadValue, match=next(iter(given))):
        watch("eager", **given)
    with pytest.raises(BadValue, match=next(iter(given))), installed(**given):
        pass


def test_unknown_settings_and_what_is_no_backend_are_rejected() -> None:
    """Covers: S15"""
    with pytest.raises(UnknownSetting, match="check_evry"):
        watch("eager", check_evry=3)
    with pytest.raises(SleuthError, match="cannot be watched"):
        watch(3)  # type: ignore[arg-type]


BAD = {
    "name": ({"backend": "indutcor"}, {}),
    "options": ({"backend": "inductor"}, {"options": {"max_autotoon": True}}),
    "mode": ({"backend": "inductor"}, {"mode": "fastest"}),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("how", ["watch", "installed"])
def test_torch_rejects_what_it_would_have_rejected_when_it_would_have(bad: str, how: str, store: Path) -> None:
    """Not only when the compiled function is first called."""
    backend, options = BAD[bad]

    def make() -> Any:
        if how == "watch":
            return torch.compile(program, backend=watch(**backend, **options, store=str(store)))
        with installed(store=str(store)):
            return torch.compile(program, **backend, **options)

    plain = ended(lambda: torch.compile(program, **backend, **options))
    seen = ended(make)
    assert plain.error is not None
    assert (seen.error, seen.message) == (plain.error, plain.message)


@pytest.mark.parametrize("bad", ["options", "mode"])
def test_bad_options_of_torch_compile_are_torch_s_error_and_no_case(bad: str, store: Path) -> None:
    """Torch hands them to a backend that is an object when it compiles, not before."""
    backend, options = BAD[bad]
    plain = ended(lambda: torch.compile(program, **backend, **options))
    compiled = torch.compile(program, backend=watch(**backend, store=str(store)), **options)
    seen = ended(lambda: compiled(torch.ones(3)))
    assert plain.message in seen.message
    assert listed(store) == []


# ---- installed -----------------------------------------------------------------------------------------------------


def patched_names() -> tuple[Any, ...]:
    return torch.compile, torch._dynamo.optimize, torch._dynamo.optimize_assert, nn.Module.compile


def test_what_is_compiled_inside_is_watched_and_torch_is_put_back(store: Path) -> None:
    """Covers: U24"""
    before = patched_names()
    with installed(store=str(store), level=3) as watching:
        with pytest.raises(ZeroDivisionError):
            torch.compile(program, backend=aot_backend(then=raises))(torch.ones(3))
        assert len(watching.kept) == 1
    assert patched_names() == before
    assert watching.kept[0].path == str(listed(store)[0][0])
    assert watching.kept[0].pid == os.getpid()
    torch._dynamo.reset()
    with pytest.raises(ZeroDivisionError) as caught:
        torch.compile(program, backend=aot_backend(then=raises))(torch.ones(3))
    assert not hasattr(caught.value, "__notes__")
    assert len(listed(store)) == 1


def test_every_way_to_compile_is_watched(store: Path) -> None:
    """Covers: U24"""
    model = Model()
    ways: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "torch.compile": lambda backend: torch.compile(program, backend=backend),
        "decorator": lambda backend: torch.compile(backend=backend)(program),
        "fullgraph": lambda backend: torch.compile(program, backend=backend, fullgraph=True),
        "nn.Module.compile": lambda backend: model.compile(backend=backend) or model,  # type: ignore[func-returns-value]
        "torch._dynamo.optimize": lambda backend: torch._dynamo.optimize(backend)(program),
        "optimize with a keyword": lambda backend: torch._dynamo.optimize(backend=backend, nopython=True)(program),
    }
    with installed(store=str(store)) as watching:
        for number, (name, way) in enumerate(ways.items(), 1):
            torch._dynamo.reset()
            with pytest.raises(ZeroDivisionError):
                way(aot_backend(then=raises))(torch.randn(3, 3))
            assert len(watching.kept) == number, name


def test_after_the_end_what_was_compiled_stays_watched(store: Path) -> None:
    with installed(store=str(store)) as watching:
        compiled = torch.compile(program, backend=aot_backend(then=raises))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(3))
    assert len(watching.kept) == len(listed(store)) == 1


def test_torch_is_put_back_after_an_exception_and_after_nesting(store: Path) -> None:
    before = patched_names()
    with pytest.raises(KeyError), installed(store=str(store)), installed(store=str(store / "inner")):
        raise KeyError
    assert patched_names() == before


def test_a_nested_installation_watches_once(store: Path) -> None:
    with (
        installed(store=str(store / "outer")) as outer,
        installed(store=str(store / "inner")) as inner,
        pytest.raises(ZeroDivisionError),
    ):
        torch.compile(program, backend=aot_backend(then=raises))(torch.ones(3))
    assert len(inner.kept) + len(outer.kept) == 1
    assert len(listed(store / "inner")) + len(listed(store / "outer")) == 1


def test_installations_that_end_in_the_order_in_which_they_began(store: Path) -> None:
    """Two threads: the first one ends while the second one still watches."""
    before = patched_names()
    first, second = installed(store=str(store)), installed(store=str(store))
    first.__enter__()
    watching = second.__enter__()
    first.__exit__(None, None, None)
    try:
        with pytest.raises(ZeroDivisionError):
            torch.compile(program, backend=aot_backend(then=raises))(torch.ones(3))
        kept = len(watching.kept)
    finally:
        second.__exit__(None, None, None)
    after = patched_names()
    torch._dynamo.optimize = before[1]  # whatever comes out, the other tests are not to notice
    assert kept == 1
    assert after == before


def test_installed_in_two_threads_at_once(tmp_path: Path) -> None:
    before = patched_names()
    barrier = threading.Barrier(2)

    def work(number: int) -> int:
        for _ in range(20):
            barrier.wait(30)
            with installed(store=str(tmp_path / str(number))):
                barrier.wait(30)
        return number

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [0, 1]
    after = patched_names()
    torch._dynamo.optimize = before[1]
    assert after == before


def test_a_program_s_own_watch_is_left_alone(store: Path) -> None:
    with installed(store=str(store / "theirs"), level=4) as watching:
        own = watch(aot_backend(then=raises), store=str(store / "own"), level=1)
        with pytest.raises(ZeroDivisionError):
            torch.compile(program, backend=own)(torch.ones(3))
        torch._dynamo.reset()
        with pytest.raises(ZeroDivisionError):
            torch._dynamo.optimize(own)(program)(torch.ones(3))
    assert [kept.store for kept in watching.kept] == [str(store / "own")] * 2
    assert len(listed(store / "own")) == 2
    assert listed(store / "theirs") == []


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("after", AFTER)
def test_results_gradients_and_random_numbers_are_the_same_inside(store: Path, level: int, after: str) -> None:
    """Covers: U7"""
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.3), nn.GELU(), nn.Linear(5, 2))
    parameters = tuple(model.parameters())
    plain = train(torch.compile(model, backend="aot_eager"), *parameters)
    torch._dynamo.reset()
    with installed(store=str(store), level=level, after=after) as watching:
        seen = train(torch.compile(model, backend="aot_eager"), *parameters)
    assert is_same(plain, seen)
    assert watching.kept == []
    assert listed(store) == []


def test_with_nothing_to_watch_it_changes_nothing(store: Path) -> None:
    with installed(after=None, store=str(store)) as watching, pytest.raises(ZeroDivisionError) as caught:
        torch.compile(program, backend=aot_backend(then=raises))(torch.ones(3))
    assert not hasattr(caught.value, "__notes__")
    assert watching.kept == []


def test_disabled_inside_it_is_not_called(store: Path) -> None:
    with installed(store=str(store)):
        compiled = torch.compile(program, backend=aot_backend(compiling=raises), disable=True)
        assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))
    assert not store.exists()


def test_a_context_of_the_backend_s_own_is_entered(store: Path) -> None:
    """Dynamo asks a backend for `backend_ctx_ctor`, and enters it around each call."""
    import contextlib

    entered: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        entered.append("entered")
        yield

    backend = plain_backend()
    backend.backend_ctx_ctor = around
    torch._dynamo.optimize(backend)(program)(torch.ones(3))
    unwatched, entered[:] = list(entered), []
    torch._dynamo.reset()
    with installed(store=str(store)):
        torch._dynamo.optimize(backend)(program)(torch.ones(3))
    assert entered == unwatched == ["entered"]


def test_equal_backends_compile_once_inside_as_well(store: Path) -> None:
    counter = CompileCounter()
    with installed(store=str(store)):
        for _ in range(3):
            torch.compile(program, backend=counter)(torch.ones(3))
    assert counter.frame_count == 1


# ---- Inductor ------------------------------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.parametrize("how", ["watch", "installed"])
def test_a_hit_in_the_caches_still_yields_a_case(
    store: Path, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: U27"""
    import torch._inductor.config as inductor_config
    from torch._dynamo.utils import counters
    from torch._inductor.output_code import CompiledFxGraph

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    x = torch.arange(5.0)

    def run() -> Any:
        torch._dynamo.reset()
        if how == "watch":
            return ended(lambda: torch.compile(program, backend=watch("inductor", store=str(store)))(x))
        with installed(store=str(store)):
            return ended(lambda: torch.compile(program)(x))

    with inductor_config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=True):
        assert torch.equal(run().result, program(x))
        counters.clear()
        monkeypatch.setattr(CompiledFxGraph, "__call__", raises)
        seen = run()
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert seen.error == "ZeroDivisionError"
    case = only(store)
    assert case.compiler.backend == "inductor"
    assert (case.origin.phase, signature(case)) == ("inference", ("raised", Stage.RUN))
    assert torch.equal(values_of(store, case)[0], x)


@pytest.mark.inductor
def test_inductor_failing_in_the_backward_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S16, U29"""
    from torch._inductor.lowering import lowerings

    monkeypatch.setitem(lowerings, torch.ops.aten.sign.default, raises)  # the derivative of abs

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.abs().sum()

    x = torch.randn(5, requires_grad=True)
    compiled = torch.compile(program, backend=watch("inductor", store=str(store)), options={"max_fusion_size": 8})
    result = compiled(x)
    with pytest.raises(Exception, match="divides by zero") as caught:
        result.backward()
    case = only(store)
    assert (case.origin.phase, signature(case)) == ("backward", ("raised", Stage.LOWERING))
    assert "aten.sign.default" in graph_ops(case)
    assert case.failure.signature.op == "aten.sign.default"  # type: ignore[union-attr]
    assert f"backward graph {case.origin.number}" in "".join(traceback.format_exception(caught.value))


@pytest.mark.inductor
def test_a_backend_that_calls_inductor_inside(watched: Any, store: Path) -> None:
    """Covers: U24"""
    from torch._inductor.compile_fx import compile_fx

    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        def inner(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
            seen.append(gm)
            return Boxed(gm, raises)

        return compile_fx(gm, inputs, inner_compile=inner, config_patches={"max_fusion_size": 8})

    with pytest.raises(ZeroDivisionError):
        torch.compile(program, backend=watched(backend))(torch.randn(4))
    case = only(store)
    assert len(seen) == 1
    assert (case.origin.phase, signature(case)) == ("inference", ("raised", Stage.RUN))
    assert [option.value for option in case.state.config if option.name == "max_fusion_size"] == [8]


# ---- both graphs, every check ------------------------------------------------------------------------------


class _WrongAboveAHundred:
    """A compiled graph that is wrong for large inputs."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        mine = list(inputs)
        inputs.clear()
        result = self.gm(*mine)
        return (result[0] + 1, *result[1:]) if mine[0].flatten()[0] > 100 else result


def _wrong_above_a_hundred() -> Any:
    compiler = lambda gm, inputs: _WrongAboveAHundred(gm)  # noqa: E731
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler)


@pytest.mark.parametrize("after", ["aot", "dynamo", "both"])
def test_the_runs_of_a_check_are_no_steps(after: str, tmp_path: Path) -> None:
    """Covers: U13, S3"""
    weight = torch.randn(3, 3, requires_grad=True)
    watched = watch(_wrong_above_a_hundred(), after=after, level=4, store=str(tmp_path))
    f = torch.compile(lambda x: (x * weight).sin(), backend=watched)
    for _ in range(3):
        f(torch.randn(3, 3)).sum().backward()
    with pytest.raises(AccuracyError, match=r"in step 4 \(step 3 was right\)"):
        f(torch.full((3, 3), 1000.0)).sum().backward()


@pytest.mark.parametrize("level", [3, 4])
def test_of_a_clean_run_with_both_graphs_watched_no_tensor_is_left(level: int, tmp_path: Path) -> None:
    """Covers: S9"""
    weight = torch.randn(3, 3, requires_grad=True)
    watched = watch(_wrong_above_a_hundred(), after="both", level=level, store=str(tmp_path))
    torch.compile(lambda x: (x * weight).sin(), backend=watched)(torch.randn(3, 3)).sum().backward()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_backward_graph_that_a_check_compiles_is_watched_when_the_user_runs_it(tmp_path: Path) -> None:
    """Covers: S16"""
    runs: list[int] = []

    class FailsLater(_WrongAboveAHundred):
        def __call__(self, inputs: list[Any]) -> Any:
            runs.append(1)
            if len(runs) > 1:
                raise ZeroDivisionError("the second backward")
            return super().__call__(inputs)

    backend = aot_autograd(
        fw_compiler=lambda gm, inputs: _WrongAboveAHundred(gm), bw_compiler=lambda gm, inputs: FailsLater(gm)
    )
    weight = torch.randn(3, 3, requires_grad=True)
    f = torch.compile(lambda x: (x * weight).sin(), backend=watch(backend, after="both", level=4, store=str(tmp_path)))
    result = f(torch.randn(3, 3)).sum()
    assert len(runs) == 1
    with pytest.raises(ZeroDivisionError) as caught:
        result.backward()
    assert "backward graph" in caught.value.__notes__[0]

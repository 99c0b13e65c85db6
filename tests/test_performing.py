"""The repro run: what happens when the graph of a case is compiled and run here."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.capture.backends import watch
from torchsleuth.case import schema
from torchsleuth.case.recording import Recording
from torchsleuth.case.stores.store import Store
from torchsleuth.case.surroundings import state as states
from torchsleuth.config import After
from torchsleuth.outcome import (
    Broken,
    Mismatched,
    Outcome,
    OutOfMemory,
    Passed,
    Raised,
    Stage,
    Symptom,
    Unrunnable,
)
from torchsleuth.run import performing
from torchsleuth.run.compiling import Compiler
from torchsleuth.run.performing import perform, prepare
from torchsleuth.run.query import Checks, Query, from_bytes, to_bytes

HERE = Path(__file__).stem
RAISED = schema.Failure(schema.Signature("raised"))
WRONG = schema.Failure(schema.Signature("mismatched", symptom=Symptom.VALUE))

seen: list[Any] = []


# ---- backends for Dynamo's graphs, and compilers of graphs after AOT -------------------------------------


def plain(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    seen.append([node.target for node in gm.graph.nodes])
    return gm


def refuses(gm: fx.GraphModule, inputs: list[Any]) -> Any:
    raise NotImplementedError("no lowering for aten.sin")


def fails_when_run(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        raise RuntimeError("the kernel is bad")

    return run


def leaves(gm: fx.GraphModule, inputs: list[Any]) -> Any:
    sys.exit(3)


def wrong_all_over(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        first, second, third = gm(*inputs)
        inputs[0].add_(1)
        return first + 1, second + 1, third / 0

    return run


def off_by_one(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return lambda *inputs: tuple(one + 1 for one in gm(*inputs))


def boxed(gm: fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
    seen.append(fakes)

    def run(inputs: list[Any]) -> Any:
        result = gm(*inputs)
        inputs.clear()
        return result

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def greedy(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return lambda *inputs: torch.empty(1 << 60)


def bad_backward(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise RuntimeError("the backward is bad")

    return lambda *inputs: tuple(Bad.apply(one) for one in gm(*inputs))  # type: ignore[no-untyped-call]


def unset(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Looks at the state that it is called in."""
    seen.append((torch.is_grad_enabled(), torch.get_default_dtype(), os.environ.get("MKL_CBWR")))
    return gm


# ---- cases -----------------------------------------------------------------------------------------------


def sine(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.sin(x) * 2,)


class Kept:
    """A case in a store, and queries about it."""

    def __init__(self, folder: Path, program: Any, *inputs: Any, after: After = After.AOT, **changes: Any) -> None:
        self.store = Store.open(folder / "store")
        gm = program if isinstance(program, fx.GraphModule) else make_fx(program)(*inputs)
        compiler = changes.pop("compiler", schema.Compiler(after, "eager"))
        state = changes.pop("state", schema.State())
        case = Recording(gm, self.store.blobs, changes.pop("examples", None)).case(
            list(inputs), compiler, state=state, stable=True
        )
        self.case = msgspec.structs.replace(case, **changes)
        self.store.save(self.case)

    def __call__(self, compiler: str | None = None, **asked: Any) -> Outcome:
        name = f"{HERE}.{compiler}" if compiler in globals() else compiler
        query = Query(self.case, self.store.home, name, **{"trust": True, **asked})
        return perform(from_bytes(to_bytes(query)))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, sine, torch.randn(3, 4))


# ---- preparing -------------------------------------------------------------------------------------------


def test_preparing_gives_the_graph_and_its_inputs_and_tells_how_far_it_is(tmp_path: Path) -> None:
    """Covers: S24"""
    inputs = [torch.randn(2, 3), torch.arange(6)]
    kept = Kept(tmp_path, lambda x, y: (x * 2, y + 1), *inputs)
    told: list[tuple[Stage, int, int]] = []
    prepared = prepare(Query(kept.case, kept.store.home), lambda *one: told.append(one))
    assert isinstance(prepared.gm, fx.GraphModule)
    assert all(map(torch.equal, prepared.inputs, inputs))
    assert told == [(Stage.PREPARE, 1, 2), (Stage.PREPARE, 2, 2)]


def test_a_graph_after_aot_with_parameters_is_refused(tmp_path: Path) -> None:
    """Covers: S24"""
    gm = fx.symbolic_trace(torch.nn.Linear(3, 2))
    after_aot = Kept(tmp_path, gm, torch.randn(4, 3))
    outcome = after_aot("eager")
    assert isinstance(outcome, Unrunnable)
    assert "parameters of its own" in outcome.reason
    of_dynamo = Kept(tmp_path, gm, torch.randn(4, 3), after=After.DYNAMO)
    assert isinstance(of_dynamo("eager"), Passed)


def test_a_large_constant_is_the_one_that_was_recorded(tmp_path: Path) -> None:
    """Covers: S25"""
    table = torch.randn(300, 300)
    kept = Kept(tmp_path, lambda x: (x @ table,), torch.randn(2, 300))
    prepared = prepare(Query(kept.case, kept.store.home))
    assert torch.equal(prepared.gm(*prepared.inputs)[0], prepared.inputs[0] @ table)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda case: msgspec.structs.replace(case, inputs=()), "takes 1 inputs, and the case has 0"),
        (
            lambda case: msgspec.structs.replace(
                case, storages=(schema.Storage(48, schema.Stored("0" * len(case.storages[0].content.digest))),)
            ),
            "tensor",
        ),
    ],
    ids=["an input is missing", "a tensor is missing"],
)
def test_a_case_that_lacks_something_cannot_be_run(kept: Kept, spoil: Any, reason: str) -> None:
    """Covers: U9"""
    outcome = perform(Query(spoil(kept.case), kept.store.home, "eager"))
    assert isinstance(outcome, Unrunnable), outcome
    assert reason in outcome.reason


# ---- the way ---------------------------------------------------------------------------------------------


def test_the_stages_come_in_their_order(kept: Kept) -> None:
    """Covers: S28"""
    told: list[Stage] = []

    def tell(stage: Stage, done: int, of: int) -> None:
        if told[-1:] != [stage]:
            told.append(stage)

    outcome = perform(Query(kept.case, kept.store.home, accuracy=True), tell)
    assert isinstance(outcome, Passed)
    assert told == [Stage.PREPARE, Stage.COMPILE, Stage.RUN, Stage.COMPARE]
    told.clear()
    perform(Query(kept.case, kept.store.home, accuracy=False), tell)
    assert told == [Stage.PREPARE, Stage.COMPILE, Stage.RUN]


@pytest.mark.parametrize("after", [After.AOT, After.DYNAMO])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "aot_eager_decomp_partition", "plain"])
def test_it_can_be_given_to_another_compiler(tmp_path: Path, after: After, compiler: str) -> None:
    kept = Kept(tmp_path, sine, torch.randn(3, 4), after=after)
    outcome = kept(compiler, accuracy=True)
    assert isinstance(outcome, Passed), outcome
    assert outcome.seconds > 0


def test_wrong_results_are_found_where_that_is_asked_for_or_was_the_failure(tmp_path: Path) -> None:
    """Covers: S28, S29"""
    kept = Kept(tmp_path, sine, torch.randn(3, 4), after=After.DYNAMO, failure=RAISED)
    assert isinstance(kept("off_by_one"), Passed)
    outcome = kept("off_by_one", accuracy=True)
    assert isinstance(outcome, Mismatched)
    assert (outcome.symptom, outcome.path, outcome.stage) == (Symptom.VALUE, "output[0]", Stage.COMPARE)
    assert "bug" in outcome.explanation.lower()
    wrong = Kept(tmp_path, sine, torch.randn(3, 4), after=After.DYNAMO, failure=WRONG)
    assert isinstance(wrong("off_by_one"), Mismatched)
    assert isinstance(wrong("off_by_one", accuracy=False), Passed)
    assert isinstance(wrong("off_by_one", checks=Checks(tolerance=10.0)), Passed)


def test_all_the_ways_in_which_results_differ_are_told_each_once(tmp_path: Path) -> None:
    """Covers: U5"""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return x.sin(), x.cos(), x.sinh()

    outcome = Kept(tmp_path, program, torch.randn(3, 4), after=After.DYNAMO, failure=WRONG)("wrong_all_over")
    assert isinstance(outcome, Mismatched)
    assert (outcome.symptom, outcome.path) == (Symptom.VALUE, "output[0]")
    assert outcome.also == ("nan at output[2]", "value at inputs[0]")


def test_a_compiler_of_graphs_after_aot_gets_fakes_and_may_empty_its_list(tmp_path: Path) -> None:
    """Covers: S4"""
    compiler = schema.Compiler(After.AOT, f"{HERE}.boxed")
    kept = Kept(tmp_path, sine, torch.randn(3, 4), compiler=compiler)
    seen.clear()
    assert isinstance(kept(accuracy=True), Passed)
    assert all(type(fake).__name__ == "FakeTensor" for fakes in seen for fake in fakes)
    assert seen


def test_the_backward_of_dynamos_graph_runs_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path, sine, torch.randn(3, 4, requires_grad=True), after=After.DYNAMO, failure=RAISED)
    outcome = kept("bad_backward")
    assert isinstance(outcome, Raised), outcome
    assert outcome.message == "the backward is bad"
    without = msgspec.structs.replace(kept.case, state=schema.State(grad=False))
    assert isinstance(perform(Query(without, kept.store.home, f"{HERE}.bad_backward", trust=True)), Passed)


def test_accelerators_are_waited_for_and_the_cpu_is_not(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S39"""
    waited: list[Any] = []
    monkeypatch.setattr(performing, "accelerators_of", lambda values: ["cuda"])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    assert isinstance(kept("eager"), Passed)
    assert waited == ["cuda"]
    assert isinstance(kept("fails_when_run", accuracy=False), Raised)
    assert waited == ["cuda"]
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    assert isinstance(kept("eager"), Passed)
    assert waited == ["cuda"]


# ---- failures --------------------------------------------------------------------------------------------


def test_what_the_compiler_raises_is_an_outcome(kept: Kept) -> None:
    outcome = kept("refuses")
    assert isinstance(outcome, Raised)
    assert outcome.stage is Stage.COMPILE
    assert outcome.type_chain == ("builtins.NotImplementedError",)
    assert outcome.message == "no lowering for aten.sin"
    assert "refuses" in outcome.traceback


def test_what_the_compiled_graph_raises_is_an_outcome(kept: Kept) -> None:
    outcome = kept("fails_when_run", accuracy=False)
    assert isinstance(outcome, Raised)
    assert (outcome.stage, outcome.message) == (Stage.RUN, "the kernel is bad")
    compared = kept("fails_when_run", accuracy=True)
    assert isinstance(compared, Raised), "a compiled function that raises is never a wrong result"


def test_a_compiler_that_leaves_has_raised(kept: Kept) -> None:
    outcome = kept("leaves")
    assert isinstance(outcome, Raised)
    assert outcome.type_chain == ("builtins.SystemExit",)


def test_an_allocation_that_cannot_be_is_out_of_memory(kept: Kept) -> None:
    """Covers: U19"""
    outcome = kept("greedy", accuracy=False)
    assert isinstance(outcome, OutOfMemory), outcome
    assert outcome.stage is Stage.RUN


def test_a_program_that_fails_in_eager_too_cannot_be_run(tmp_path: Path) -> None:
    def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_select.default(table, 0, at)

    gm = make_fx(look_up)(torch.randn(4, 2), torch.tensor([3]))
    kept = Kept(tmp_path, gm, torch.randn(4, 2), torch.tensor([99]))
    for accuracy in (True, False):
        outcome = kept("aot_eager", accuracy=accuracy)
        assert isinstance(outcome, Unrunnable), outcome
        assert "eager" in outcome.reason
    assert isinstance(kept("refuses"), Unrunnable)


def test_made_up_inputs_are_no_evidence_against_a_compile_error(tmp_path: Path) -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.tensor([3]))
    gm = make_fx(lambda table, at: torch.ops.aten.index_select.default(table, 0, at))(
        torch.randn(4, 2), torch.tensor([3])
    )
    for node in gm.graph.nodes:  # so that nothing says how large an index may be
        node.meta.clear()
    kept = Kept(tmp_path, gm, torch.randn(0, 2), fake)
    assert isinstance(kept("eager"), Unrunnable)
    assert isinstance(kept("refuses"), Raised)


def test_a_fault_of_ours_is_no_failure_of_the_compiler(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(performing, "reference_of", fault)
    outcome = kept("eager")
    assert isinstance(outcome, Broken)
    assert "ours" in outcome.reason
    assert "fault" in outcome.traceback


# ---- trust -----------------------------------------------------------------------------------------------


def test_nobody_s_backend_is_imported_without_trust(kept: Kept) -> None:
    seen.clear()
    outcome = kept("plain", trust=False)
    assert isinstance(outcome, Unrunnable)
    assert "--trust" in outcome.reason
    assert not seen
    outcome = kept("no_such_module.backend")
    assert isinstance(outcome, Unrunnable)
    assert "no_such_module" in outcome.reason


def test_a_custom_operator_is_defined_from_its_source_for_those_who_trust_it(tmp_path: Path) -> None:
    """Covers: U3"""
    source = (
        '@torch.library.custom_op("performing::twice", mutates_args=())\n'
        "def twice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
    )
    code = schema.Code("python op", "performing::twice", source=source)
    kept = Kept(tmp_path, sine, torch.randn(3, 4), code=(code,))
    x, *_, output = kept.case.graph.nodes
    call = schema.Node("y", "call_function", "torch.ops.performing.twice.default", (schema.Ref(x.name),))
    end = msgspec.structs.replace(output, args=(schema.Tuple((schema.Ref("y"),)),))
    case = msgspec.structs.replace(kept.case, graph=schema.Graph((x, call, end)))
    assert isinstance(perform(Query(case, kept.store.home)), Unrunnable)
    assert not hasattr(torch.ops.performing, "twice")
    for _ in range(2):  # the second time it is there already
        assert isinstance(perform(Query(case, kept.store.home, trust=True)), Passed)


# ---- state -----------------------------------------------------------------------------------------------


def test_it_runs_in_the_state_of_the_case_and_leaves_none_of_it_behind(tmp_path: Path) -> None:
    """Covers: U15, U17"""
    state = schema.State(grad=False, default_dtype="float64", environment=(("MKL_CBWR", "COMPATIBLE"),))
    kept = Kept(tmp_path, sine, torch.randn(3, 4), after=After.DYNAMO, state=state)
    before, environ = states.observe(), dict(os.environ)
    seen.clear()
    for compiler in ("unset", "refuses", "fails_when_run", "off_by_one"):
        kept(compiler, accuracy=True)
    assert seen[0] == (False, torch.float64, "COMPATIBLE")
    assert states.observe() == before
    assert dict(os.environ) == environ


def test_random_numbers_are_those_that_were_drawn(tmp_path: Path) -> None:
    """Covers: U10"""
    state = states.observe(stable=True)
    kept = Kept(tmp_path, lambda x: (x + torch.rand_like(x),), torch.zeros(5), state=state, after=After.DYNAMO)
    drawn: list[torch.Tensor] = []
    globals()["keeps"] = lambda gm, inputs: lambda *given: drawn.append(gm(*given)[0]) or (drawn[-1],)
    for _ in range(2):
        torch.rand(7)
        assert isinstance(kept("keeps", accuracy=False), Passed)
    assert torch.equal(*drawn)
    assert isinstance(kept("aot_eager", accuracy=True), Passed)


def test_symbolic_sizes_stay_symbolic(tmp_path: Path) -> None:
    """Covers: U4"""
    x = torch.randn(5, 3)
    gm = make_fx(lambda x: (x.sum(0) * x.size(0),), tracing_mode="symbolic")(x)
    kept = Kept(tmp_path, gm, x, compiler=schema.Compiler(After.AOT, f"{HERE}.boxed"))
    seen.clear()
    assert isinstance(kept(accuracy=True), Passed)
    assert isinstance(seen[0][0].size(0), torch.SymInt)


def test_sizes_that_dynamo_made_symbolic_stay_symbolic(tmp_path: Path) -> None:
    """Dynamo hands real tensors to a backend, and a number of the program as a tensor. Covers: U4"""
    store = Store.open(tmp_path / "store")
    cases: list[schema.Case] = []

    def record(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        compiler = schema.Compiler(After.DYNAMO, f"{HERE}.boxed")
        cases.append(Recording(gm, store.blobs, inputs).case(inputs, compiler, state=schema.State(), stable=True))
        return gm

    with torch.no_grad():
        scale = 0.3
        compiled = torch.compile(lambda x, scale: x.sum(0) * x.size(0) * scale, backend=record, dynamic=True)
        compiled(torch.randn(5, 3), scale)
    store.save(cases[-1])
    seen.clear()
    globals()["looks"] = lambda gm, inputs: seen.append(_placeholders(gm)) or gm
    assert isinstance(perform(Query(cases[-1], store.home, f"{HERE}.looks", trust=True)), Passed)
    assert any(isinstance(size, torch.SymInt) for fake in seen[0] for size in fake.shape)
    outcome = perform(Query(cases[-1], store.home, "aot_eager", accuracy=True))
    assert isinstance(outcome, Passed), outcome


def _placeholders(gm: fx.GraphModule) -> list[torch.Tensor]:
    """What a backend finds its inputs known as."""
    known = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
    return [value for value in known if isinstance(value, torch.Tensor)]


def test_an_option_that_this_torch_does_not_have_is_noted(tmp_path: Path) -> None:
    """Covers: U6"""
    option = schema.Config("torch._inductor.config", "no_such_option", True)
    kept = Kept(tmp_path, sine, torch.randn(3), state=schema.State(config=(option,)))
    outcome = kept("eager")
    assert isinstance(outcome, Passed)
    assert any("no_such_option" in note for note in outcome.notes)


def test_collectives_run_on_one_process_and_are_not_trusted(tmp_path: Path) -> None:
    """Covers: U20"""
    graph = fx.Graph()
    x = graph.placeholder("x")
    ops = torch.ops._c10d_functional
    reduced = graph.call_function(ops.all_reduce.default, (x, "sum", "0"))
    graph.output((graph.call_function(ops.wait_tensor.default, (reduced,)),))
    kept = Kept(tmp_path, fx.GraphModule({}, graph), torch.ones(4), after=After.DYNAMO)
    outcome = kept("eager", accuracy=True)
    assert isinstance(outcome, Passed), outcome
    assert any("not to be trusted" in note for note in outcome.notes)
    assert not torch.distributed.is_initialized()


def test_the_history_of_a_process_comes_first(tmp_path: Path) -> None:
    earlier = Kept(tmp_path, lambda x: (torch.cos(x),), torch.ones(2), after=After.DYNAMO)
    earlier = msgspec.structs.replace(earlier.case, compiler=schema.Compiler(After.DYNAMO, f"{HERE}.plain"))
    kept = Kept(tmp_path, sine, torch.ones(2), after=After.DYNAMO)
    seen.clear()
    outcome = kept("plain", history=(earlier,))
    assert isinstance(outcome, Passed)
    assert [torch.ops.aten.cos.default in targets for targets in seen] == [True, False]
    assert any(note.startswith("before it") for note in outcome.notes)


@pytest.mark.inductor
def test_inductor_compiles_it_for_real_and_its_code_is_kept(tmp_path: Path) -> None:
    """Covers: U8"""
    option = schema.Config("torch._inductor.config", "cpp.inject_relu_bug_TESTING_ONLY", "accuracy")
    wrong = Kept(
        tmp_path,
        lambda x: (torch.relu(x) + 1,),
        torch.randn(3, 4),
        compiler=schema.Compiler(After.AOT, "inductor", arguments=(schema.Entry("is_inference", True),)),
        state=schema.State(config=(option,)),
        failure=WRONG,
    )
    outcome = wrong(trust=False)
    assert isinstance(outcome, Mismatched), outcome
    assert "cpp_fused" in outcome.code
    assert isinstance(wrong("aot_eager", trust=False), Passed)
    right = msgspec.structs.replace(wrong.case, state=schema.State())
    assert isinstance(perform(Query(right, wrong.store.home)), Passed)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_graphs_of_aot_eager_are_replayed_by_torchs_own_compiler(tmp_path: Path, phase: str) -> None:
    """The compiler of a graph after AOT is named so that it can be found again, without trust. Covers: U24"""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + _beyond(x) if phase == "forward" else x.sin()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] + _beyond(grads[0]) if phase == "backward" else grads[0]

    x = torch.randn(4, 3, requires_grad=True)
    backend = watch("aot_eager", after="aot", level=1, store=str(tmp_path / "store"))
    with pytest.raises(IndexError):
        torch.compile(lambda x: Fails.apply(x).sum(), backend=backend)(x).backward()  # type: ignore[no-untyped-call]
    store = Store.open(tmp_path / "store")
    (entry,) = store.entries()
    found = store.find(entry.id)
    assert found.case.origin.phase == phase
    outcome = perform(Query(found.case, found.home))
    assert isinstance(outcome, Unrunnable), outcome
    assert "eager fails as well: IndexError" in outcome.reason


def _beyond(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.index_select(x, 0, torch.tensor([99]))[:1]


class _Odd(BaseException):
    """An exception that is no `Exception`."""


def odd(gm: fx.GraphModule, inputs: list[Any]) -> Any:
    raise _Odd("neither fish nor fowl")


def gives_up(gm: fx.GraphModule, inputs: list[Any]) -> Any:
    raise KeyboardInterrupt


def test_any_exception_of_the_compiler_s_is_an_outcome_and_ctrl_c_is_not(kept: Kept) -> None:
    outcome = kept("odd")
    assert isinstance(outcome, Raised)
    assert outcome.message == "neither fish nor fowl"
    with pytest.raises(KeyboardInterrupt):
        kept("gives_up")


@pytest.mark.parametrize("name", ["no_such_backend", "tvm"])
def test_a_compiler_that_is_not_there_is_no_failure_of_a_compiler(kept: Kept, name: str) -> None:
    outcome = kept(name)
    assert isinstance(outcome, Unrunnable), outcome
    assert name in outcome.reason


def test_options_of_a_backend_that_cannot_be_had_are_noted_and_a_mode_is_needed(tmp_path: Path) -> None:
    """Covers: U6"""
    entries = (schema.Entry("no_such_option", True), schema.Entry("cpp.cxx", "/bin/true"))
    options = Kept(tmp_path, sine, torch.ones(3), compiler=schema.Compiler(After.DYNAMO, "inductor", options=entries))
    compiler = Compiler(options.case)
    compiler._backend()
    assert "no_such_option (this torch does not have it)" in compiler.notes[0]
    assert "cpp.cxx (it could reach a command line" in compiler.notes[0]
    mode = Kept(tmp_path, sine, torch.ones(3), compiler=schema.Compiler(After.DYNAMO, "inductor", mode="nonsense"))
    outcome = mode()
    assert isinstance(outcome, Unrunnable), outcome
    assert "nonsense" in outcome.reason


def test_what_a_query_lacks_is_not_blamed_on_the_compiler(kept: Kept) -> None:
    case = msgspec.structs.replace(kept.case, examples=())
    outcome = perform(Query(case, kept.store.home, "aot_eager"))
    assert isinstance(outcome, Unrunnable), outcome
    assert "describes 0 to the compiler" in outcome.reason


def test_eager_has_the_memory_that_the_compiled_graph_had(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []

    def watched(query: Query, *progress: Any) -> Any:
        alive.append([reference() is not None for reference in references])
        prepared = prepare(query, *progress)
        references.extend(weakref.ref(one) for one in prepared.inputs)
        return prepared

    references: list[Any] = []
    monkeypatch.setattr(performing, "prepare", watched)
    assert isinstance(kept("fails_when_run", accuracy=False), Raised)
    assert alive == [[], [False]]


def test_too_little_memory_for_eager_says_nothing_about_the_compiler(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(performing, "_eager", no_memory)
    assert isinstance(kept("refuses"), Raised)

"""Where a failure came from. Traps are set inside torch's own functions, so that a renamed one is noticed."""

from __future__ import annotations

import ast
import faulthandler
import gc
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.backends.common
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
import torch._inductor.graph
import torch._inductor.lowering
from torch._inductor.compile_worker.subproc_pool import SubprocException
from torch._inductor.exc import CppCompileError
from torch._inductor.runtime import triton_heuristics
from torch._inductor.select_algorithm import extern_kernels
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.case.failures import raised
from torchsleuth.outcome import Stage
from torchsleuth.run.observing.stages import Located, locate, locate_stack
from torchsleuth.torch_compat.stages import PHASES

aten = torch.ops.aten


class Planted(Exception):
    pass


class Trap:
    """Raises when it is called, and keeps what faulthandler says at that moment."""

    def __init__(self) -> None:
        self.dump = ""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            self.dump = file.read().decode()
        raise Planted("planted")

    def uuid(self) -> None:
        """A pass of the user's own needs one; None: do not cache."""


def program(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    return y.cos() @ y  # the last line


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No cache of an earlier test's, and no compiling in other processes."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True, compile_threads=1):
        yield
    torch._dynamo.reset()


def failing(function: Callable[..., Any], *args: Any, **options: Any) -> BaseException:
    with pytest.raises(Exception) as found:  # noqa: PT011 - torch wraps what was raised in one of its own
        torch.compile(function, **options)(*args)
    return found.value


def located(function: Callable[..., Any], *args: Any, **options: Any) -> Located:
    return locate(failing(function, *args, **options), default=Stage.UNKNOWN)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


# ---- every stage, by a trap in one of its functions ------------------------------------------------------

IN_TORCH = [
    ("torch._dynamo.output_graph.OutputGraph.compile_and_call_fx_graph", Stage.DYNAMO),
    ("torch._functorch._aot_autograd.graph_compile.aot_dispatch_base_graph", Stage.AOT),
    ("torch._functorch.aot_autograd.run_functionalized_fw_and_collect_metadata", Stage.AOT),
    ("torch._inductor.compile_fx.pre_grad_passes", Stage.PRE_GRAD),
    ("torch._inductor.compile_fx.joint_graph_passes", Stage.JOINT_GRAPH),
    ("torch._inductor.fx_passes.joint_graph.lazy_init", Stage.JOINT_GRAPH),
    ("torch._inductor.compile_fx.fake_tensor_prop", Stage.POST_GRAD),
    ("torch._inductor.compile_fx.post_grad_passes", Stage.POST_GRAD),
    ("torch._inductor.graph.GraphLowering.decide_layout_opt", Stage.LOWERING),
    ("torch._inductor.graph.GraphLowering.output", Stage.LOWERING),
    ("torch._inductor.scheduler.Scheduler.fuse_nodes", Stage.SCHEDULING),
    ("torch._inductor.codegen.cpp.CppScheduling.codegen_node", Stage.CODEGEN),
    ("torch._inductor.codegen.wrapper.PythonWrapperCodegen.generate", Stage.CODEGEN),
    ("torch._inductor.cpp_builder.CppBuilder.build", Stage.CPP_COMPILE),
    ("torch._inductor.codecache.PyCodeCache.write", Stage.CODEGEN),
    ("torch._inductor.codecache._reload_python_module", Stage.LOAD),
]


@pytest.mark.inductor
@pytest.mark.parametrize(("name", "stage"), IN_TORCH, ids=lambda value: str(value).removeprefix("torch."))
def test_a_failure_is_found_in_its_stage(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the exception, by its traceback in print, and by what faulthandler writes. Covers: S6"""
    trap = Trap()
    monkeypatch.setattr(name, trap)
    error = failing(program, torch.ones(3, 3))
    assert "planted" in str(error)
    assert locate(error, default=Stage.UNKNOWN).stage is stage
    assert locate_stack("".join(traceback.format_exception(error)), default=Stage.UNKNOWN) is stage
    assert locate_stack(trap.dump, default=Stage.UNKNOWN) is stage


@pytest.mark.inductor
def test_a_partitioner_is_part_of_aot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.min_cut_rematerialization_partition", Trap())
    assert located(program, torch.ones(3, 3, requires_grad=True)).stage is Stage.AOT


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("option", "stage"),
    [
        ("pre_grad_custom_pass", Stage.PRE_GRAD),
        ("joint_custom_pre_pass", Stage.JOINT_GRAPH),
        ("joint_custom_post_pass", Stage.JOINT_GRAPH),
        ("post_grad_custom_pre_pass", Stage.POST_GRAD),
        ("post_grad_custom_post_pass", Stage.POST_GRAD),
    ],
)
def test_a_pass_of_the_users_own_counts_as_one_of_the_passes(option: str, stage: Stage) -> None:
    with torch._inductor.config.patch({option: Trap()}):
        assert located(program, torch.ones(3, 3)).stage is stage


def decomposes(trap: Trap) -> None:
    make_fx(torch.nn.functional.softplus, decomposition_table={aten.softplus.default: trap})(torch.ones(3))


def traces_with_aot(trap: Trap) -> None:
    torch._functorch.aot_autograd.aot_function(torch.cos, fw_compiler=trap)(torch.ones(3))


@pytest.mark.inductor
@pytest.mark.parametrize("helper", [decomposes, traces_with_aot])
def test_what_a_pass_traces_for_itself_is_still_the_pass(helper: Callable[[Trap], None]) -> None:
    class Pass(Trap):
        def __call__(self, *args: object, **kwargs: object) -> Any:
            helper(trap)

    trap = Trap()
    with torch._inductor.config.patch(post_grad_custom_post_pass=Pass()):
        assert located(program, torch.ones(3, 3)).stage is Stage.POST_GRAD
    assert locate_stack(trap.dump, default=Stage.UNKNOWN) is Stage.POST_GRAD


@pytest.mark.inductor
def test_a_library_that_cannot_be_loaded_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.codecache.CppPythonBindingsCodeCache._load_library_inner", Trap())
    assert located(torch.cos, torch.ones(3)) == Located(Stage.LOAD, "aten.cos")


def test_triton_compiles_when_its_kernels_are_prepared() -> None:
    with pytest.raises(AttributeError) as found:
        triton_heuristics.CachingAutotuner.precompile(object())
    assert locate(found.value, default=Stage.UNKNOWN).stage is Stage.TRITON_COMPILE


def test_every_function_of_the_table_is_there() -> None:
    """A torch that renamed one of them would have failures put down to the stage before."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent.parent
    defined = {
        (file, node.name)
        for file in {file for file, _ in PHASES}
        for node in ast.walk(ast.parse((root / file).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(PHASES) - defined == set()


# ---- the guilty node -------------------------------------------------------------------------------------


@pytest.mark.inductor
def test_an_operator_that_cannot_be_lowered_is_named_with_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S6"""
    monkeypatch.setitem(torch._inductor.lowering.lowerings, aten.cos.default, Trap())
    found = located(program, torch.ones(3, 3))
    assert (found.stage, found.op, found.node) == (Stage.LOWERING, "aten.cos.default", "cos")
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == (__file__, line_of("# the last line"))
    assert found.frame.code == "return y.cos() @ y  # the last line"


@pytest.mark.inductor
def test_a_backward_graph_is_compiled_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 3, requires_grad=True)
    loss = torch.compile(lambda x: torch.relu(x).sum())(x)
    monkeypatch.setitem(torch._inductor.lowering.lowerings, aten.where.self, Trap())
    with pytest.raises(Exception, match="planted") as found:
        loss.backward()
    where = locate(found.value, default=Stage.RUN)
    assert (where.stage, where.op) == (Stage.LOWERING, "aten.where.self")


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("torch._inductor.scheduler.SchedulerNode._compute_attrs", Stage.SCHEDULING),
        ("torch._inductor.codegen.cpp.CppKernelProxy.codegen_nodes", Stage.CODEGEN),
        ("torch._inductor.codegen.wrapper.PythonWrapperCodegen.generate_extern_kernel_out", Stage.CODEGEN),
    ],
)
def test_a_step_of_the_schedule_leads_back_to_its_node(
    name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, Trap())
    extern = "extern" in name
    found = located((lambda x: x.cos() @ x) if extern else torch.cos, torch.ones(3, 3))
    assert (found.stage, found.op) == (stage, "aten.mm.default" if extern else "aten.cos.default")


@pytest.mark.inductor
def test_the_compilers_own_little_graphs_are_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor keeps the body of a loop as a graph too."""
    for kernel in ("CppKernel", "CppVecKernel"):
        monkeypatch.setattr(f"torch._inductor.codegen.cpp.{kernel}.store", Trap())
    found = located(torch.cos, torch.ones(3))
    assert (found.stage, found.op, found.node) == (Stage.CODEGEN, "aten.cos.default", "cos")


@pytest.mark.inductor
def test_what_was_fused_from_several_operators_accuses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.codegen.cpp.CppKernelProxy.codegen_nodes", Trap())
    found = located(lambda x: (x.relu() + 1).sum(0), torch.ones(3, 3))
    assert (found.stage, found.op, found.node) == (Stage.CODEGEN, None, None)


@pytest.mark.inductor
def test_a_decomposition_is_named_by_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**torch._inductor.compile_fx.select_decomp_table(), aten.softplus.default: Trap()}
    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=lambda graph, _: graph, decompositions=table)
    found = located(lambda x: torch.nn.functional.softplus(x.exp()), torch.ones(3), backend=backend)
    assert (found.stage, found.op, found.node) == (Stage.DECOMPOSITION, "aten.softplus.default", "softplus")
    assert found.frame is not None
    assert found.frame.file == __file__


@pytest.mark.inductor
def test_a_replacement_is_traced_but_the_pattern_that_matched_is_named() -> None:
    """pytorch/pytorch#193265. Covers: S6"""
    found = located(lambda x: torch.tensor(5.0).cumsum(0) + x, torch.zeros(()))
    assert (found.stage, found.op, found.node) == (Stage.POST_GRAD, "aten.cumsum.default", "cumsum")
    assert found.frame is not None
    assert "cumsum(0)" in found.frame.code


@pytest.mark.inductor
def test_the_nodes_of_a_replacement_are_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.fx.Interpreter.fetch_args_kwargs_from_env

    def fetch(interpreter: torch.fx.Interpreter, node: torch.fx.Node) -> Any:
        replaces = type(interpreter).__name__ == "Replacer" and node.op == "call_function"
        return Trap()() if replaces else plain(interpreter, node)

    monkeypatch.setattr(torch.fx.Interpreter, "fetch_args_kwargs_from_env", fetch)
    found = located(lambda x: torch.ones(5).cumsum(0) + x, torch.zeros(5))
    assert (found.stage, found.op, found.node) == (Stage.POST_GRAD, "aten.cumsum.default", "cumsum")


@pytest.mark.inductor
def test_a_pattern_matcher_may_fail_before_the_inner_compiler_is_called() -> None:
    """pytorch/pytorch#188223. Covers: S6"""
    found = located(lambda x: torch.take(torch.sigmoid(x), torch.randperm(10)).sum() * 0, torch.rand(4, 32))
    assert (found.stage, found.op) == (Stage.JOINT_GRAPH, "aten.index.Tensor")


def test_an_operator_without_a_fake_is_dynamos() -> None:
    @torch.library.custom_op("sleuth_test::no_fake", mutates_args=())
    def no_fake(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def calls_it(x: torch.Tensor) -> torch.Tensor:
        return no_fake(x) + 1  # no fake here

    found = located(calls_it, torch.ones(3), backend="aot_eager", fullgraph=True)
    assert found.stage is Stage.DYNAMO
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == (__file__, line_of("# no fake here"))


def test_a_fake_that_fails_only_when_aot_traces_is_named_with_the_users_line() -> None:
    """Covers: S6"""
    calls: list[torch.Tensor] = []

    @torch.library.custom_op("sleuth_test::fails_later", mutates_args=())
    def fails_later(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @fails_later.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x.clone() if len(calls) == 1 else Trap()()

    def calls_it(x: torch.Tensor) -> torch.Tensor:
        return fails_later(x.cos()) + 1  # fails later

    found = located(calls_it, torch.ones(3), backend="aot_eager")
    assert (found.stage, found.node) == (Stage.AOT, "fails_later_default")
    assert found.op == "sleuth_test.fails_later.default"
    assert found.frame is not None
    assert found.frame.line == line_of("# fails later")


def test_a_graph_break_where_none_is_allowed_is_dynamos() -> None:
    """torch takes away its traceback."""

    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()  # here it breaks
        return x + 1

    found = located(breaks, torch.ones(3), backend="eager", fullgraph=True)
    assert found.stage is Stage.DYNAMO
    assert found.frame is not None
    assert found.frame.line == line_of("# here it breaks")


@pytest.mark.inductor
@pytest.mark.parametrize("threads", [1, 2])
def test_code_that_does_not_compile_is_cpp_whoever_compiled_it(threads: int) -> None:
    """Covers: S6"""
    with torch._inductor.config.patch(
        {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error", "compile_threads": threads}
    ):
        error = failing(torch.relu, torch.ones(3))
    assert raised(error).signature.types[:2] == (
        "torch._inductor.exc.InductorError",
        "torch._inductor.exc.CppCompileError",
    )
    found = locate(error, default=Stage.UNKNOWN)
    assert (found.stage, found.op) == (Stage.CPP_COMPILE, "aten.relu")


@pytest.mark.inductor
def test_generated_code_that_fails_tells_where_its_call_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S6"""
    compiled = torch.compile(lambda x: (x.relu() @ x).relu())
    compiled(torch.ones(3, 3))
    monkeypatch.setattr(extern_kernels, "mm", Trap())
    with pytest.raises(Planted) as found:
        compiled(torch.ones(3, 3))
    where = locate(found.value, default=Stage.UNKNOWN)
    assert (where.stage, where.op, where.node) == (Stage.RUN, "aten.mm", "matmul")


class TrapOnCall:
    """Raises when it is called for the n-th time; calls what it stands for until then."""

    def __init__(self, plain: Callable[..., Any], number: int) -> None:
        self.plain, self.left = plain, number

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        return self.plain(*args) if self.left else Trap()()


@pytest.mark.inductor
def test_the_comment_of_one_call_says_nothing_about_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: (x @ x).sum(0))
    compiled(torch.ones(3, 3))
    module = next(found for name, found in reversed(sys.modules.items()) if "compile_tasks." in name)
    kernel = next(name for name in vars(module) if name.startswith("cpp_fused_sum"))
    for name, number, op in (("empty_strided_cpu", 2, None), (kernel, 1, "aten.sum")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, TrapOnCall(getattr(module, name), number))
            with pytest.raises(Planted) as found:
                compiled(torch.ones(3, 3))
        assert locate(found.value, default=Stage.UNKNOWN) == Located(Stage.RUN, op)


# ---- what is not known -----------------------------------------------------------------------------------


def test_a_backend_of_the_users_own_has_the_stage_that_the_caller_gives_it() -> None:
    for backend in (Trap(), torch._dynamo.backends.common.aot_autograd(fw_compiler=Trap())):
        error = failing(program, torch.ones(3, 3), backend=backend)
        assert locate(error, default=Stage.LOWERING).stage is Stage.LOWERING


def test_an_exception_from_elsewhere_has_the_stage_that_the_caller_gives_it() -> None:
    assert locate(ValueError("never raised"), default=Stage.RUN) == Located(Stage.RUN)
    assert locate(CppCompileError(["g++"], "never raised"), default=Stage.RUN) == Located(Stage.CPP_COMPILE)
    assert locate_stack("", default=Stage.RUN) is Stage.RUN
    assert locate_stack('  File "my/torch/model.py", line 3 in run', default=Stage.RUN) is Stage.RUN
    assert locate_stack('  File "/my/torch/_inductor/graph.py", line 3 in run', default=Stage.RUN) is Stage.LOWERING


def test_what_was_merely_being_handled_does_not_count() -> None:
    def fail_twice() -> None:
        try:
            triton_heuristics.CachingAutotuner.precompile(object())
        except AttributeError:
            torch._inductor.graph.GraphLowering.run_node(Held(), Held())

    with pytest.raises(Planted) as found:
        fail_twice()
    assert isinstance(found.value.__context__, AttributeError)
    assert locate(found.value, default=Stage.UNKNOWN).stage is Stage.LOWERING
    printed = "".join(traceback.format_exception(found.value))
    assert locate_stack(printed, default=Stage.UNKNOWN) is Stage.LOWERING


def test_of_several_threads_the_one_that_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    trap = Trap()
    monkeypatch.setattr("torch._dynamo.output_graph.OutputGraph.compile_and_call_fx_graph", trap)
    failing(program, torch.ones(3, 3), backend="eager")
    asleep = 'Thread 0x0000000000000007 (most recent call first):\n  File "/x/threading.py", line 331 in wait\n\n'
    assert locate_stack(asleep + trap.dump, default=Stage.RUN) is Stage.DYNAMO
    compiling = trap.dump.replace("Current thread", "Thread")
    assert locate_stack(asleep + compiling, default=Stage.RUN) is Stage.DYNAMO
    assert locate_stack(compiling + "\nCurrent t" + asleep[1:], default=Stage.RUN) is Stage.RUN


def test_what_a_worker_says_about_itself_counts() -> None:
    with pytest.raises(AttributeError) as found:
        triton_heuristics.CachingAutotuner.precompile(object())
    text = "".join(traceback.format_exception(found.value))
    assert locate(SubprocException(text), default=Stage.UNKNOWN).stage is Stage.TRITON_COMPILE


class Hostile:
    """Answers nothing."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemError(name)


def test_trouble_on_the_way_leaves_what_is_known() -> None:
    with pytest.raises(SystemError) as found:
        torch._inductor.graph.GraphLowering.run_node(Hostile(), Hostile())
    assert locate(found.value, default=Stage.UNKNOWN) == Located(Stage.LOWERING)


class Held:
    def __getattr__(self, name: str) -> Any:
        raise Planted(name)


def test_nothing_of_the_exception_is_kept() -> None:
    def compile_it() -> BaseException:
        held = Held()
        alive.append(weakref.ref(held))
        try:
            torch._inductor.graph.GraphLowering.run_node(held, held)
        except Planted as error:
            return error
        raise AssertionError

    alive: list[weakref.ref[Held]] = []
    error: BaseException | None = compile_it()
    gc.collect()
    gc.disable()
    try:
        assert error is not None
        locate(error, default=Stage.UNKNOWN)
        assert alive[0]() is not None
        error.__traceback__ = None
        assert alive[0]() is None
    finally:
        gc.enable()

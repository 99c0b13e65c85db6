"""Where the phases of torch's compilers begin, and how their own objects lead back to a graph's nodes.

    PHASES          (file, function) → the phase that begins when this function is called
    ERROR_STAGES    exceptions that are raised in one stage only
    origins(value)  the nodes that an object of the compiler (a match, a piece of IR, a step of the schedule) stands for
    calls_in(stack) the functions of torch on a stack, as a signature names them

A phase may trace, lower or compile in passing: a pattern matcher traces its replacement with the same machinery that
AOT traces with. So helpers are no phases, and `within` says what a phase must be inside of to count. Functions that
only hand the graph on to the next compiler have the stage None: from there on nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from torchsleuth.outcome import Stage

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass(frozen=True)
class Phase:
    """What calling a function begins. It counts inside these stages only; None: inside all."""

    stage: Stage | None
    within: frozenset[Stage | None] | None = None


_OUTSIDE: Final = frozenset({None, Stage.PREPARE, Stage.DYNAMO, Stage.AOT, Stage.RUN, Stage.UNKNOWN})

_BACKEND: Final = Phase(None, _OUTSIDE)
_INNER_COMPILER: Final = Phase(None)
_DYNAMO: Final = Phase(Stage.DYNAMO, _OUTSIDE)
_AOT: Final = Phase(Stage.AOT, _OUTSIDE)
_DECOMPOSITION: Final = Phase(Stage.DECOMPOSITION, frozenset({None, Stage.AOT, Stage.UNKNOWN}))
_RUN: Final = Phase(Stage.RUN, _OUTSIDE)
_PRE_GRAD: Final = Phase(Stage.PRE_GRAD)
_JOINT_GRAPH: Final = Phase(Stage.JOINT_GRAPH)
_POST_GRAD: Final = Phase(Stage.POST_GRAD)
_LOWERING: Final = Phase(Stage.LOWERING)
_SCHEDULING: Final = Phase(Stage.SCHEDULING)
_CODEGEN: Final = Phase(Stage.CODEGEN)
_CPP: Final = Phase(Stage.CPP_COMPILE)
_TRITON: Final = Phase(Stage.TRITON_COMPILE)
_LOAD: Final = Phase(Stage.LOAD)

_BY_FILE: Final[Mapping[str, Mapping[str, Phase]]] = {
    "torch/_dynamo/convert_frame.py": {
        "__call__": _DYNAMO,
        "_compile": _DYNAMO,
        "compile_frame": _DYNAMO,
        "trace_frame": _DYNAMO,
    },
    "torch/_dynamo/output_graph.py": {"_call_user_compiler": _BACKEND},
    "torch/_functorch/aot_autograd.py": {
        "aot_module_simplified": _AOT,
        "prepare_aot_module_simplified": _AOT,
        "create_aot_state": _AOT,
        "aot_export_module": _AOT,
        "aot_export_joint_with_descriptors": _AOT,
    },
    "torch/_functorch/_aot_autograd/graph_compile.py": {
        "aot_stage1_graph_capture": _AOT,
        "aot_stage2_compile": _AOT,
        "_aot_stage2a_partition": _AOT,
        "_aot_stage2b_compile_forward_or_inference": _BACKEND,
        "_aot_stage2b_bw_compile": _BACKEND,
    },
    "torch/_functorch/_aot_autograd/runtime_wrappers.py": {"get_or_compile": _BACKEND},
    "torch/_functorch/partitioners.py": {
        "default_partition": _AOT,
        "min_cut_rematerialization_partition": _AOT,
    },
    "torch/fx/experimental/proxy_tensor.py": {"maybe_handle_decomp": _DECOMPOSITION},
    "torch/_ops.py": {"decompose": _DECOMPOSITION},
    "torch/_inductor/compile_fx.py": {
        "run_pre_grad_passes": _PRE_GRAD,
        "_recursive_pre_grad_passes": _PRE_GRAD,
        "_recursive_joint_graph_passes": _JOINT_GRAPH,
        "fw_compiler_freezing": _JOINT_GRAPH,
        "_compile_fx_inner": _INNER_COMPILER,
        "codegen_and_compile": _POST_GRAD,
        "_recursive_post_grad_passes": _POST_GRAD,
    },
    "torch/_inductor/fx_passes/pre_grad.py": {"pre_grad_passes": _PRE_GRAD},
    "torch/_inductor/fx_passes/joint_graph.py": {"joint_graph_passes": _JOINT_GRAPH},
    "torch/_inductor/fx_passes/post_grad.py": {"post_grad_passes": _POST_GRAD},
    "torch/_inductor/graph.py": {
        "__init__": _LOWERING,
        "run": _LOWERING,
        "run_node": _LOWERING,
        "_update_scheduler": _SCHEDULING,
        "codegen": _CODEGEN,
        "codegen_subgraph": _CODEGEN,
        "codegen_with_cpp_wrapper": _CODEGEN,
        "_compile_to_module": _CODEGEN,
    },
    "torch/_inductor/scheduler.py": {
        "_init": _SCHEDULING,
        "codegen": _CODEGEN,
        "_codegen": _CODEGEN,
        "_codegen_partitions": _CODEGEN,
    },
    "torch/_inductor/codecache.py": {
        "load_by_key_path": _LOAD,
        "load_async": _CPP,
        "load_fn": _CPP,
        "_worker_compile_cpp": _CPP,
        "_load_library": _LOAD,
        "load_with_key": _LOAD,
    },
    "torch/_inductor/cpp_builder.py": {"build": _CPP, "run_compile_cmd": _CPP},
    "torch/_inductor/async_compile.py": {"triton": _TRITON},
    "torch/_inductor/runtime/compile_tasks.py": {"_worker_compile_triton": _TRITON},
    "torch/_inductor/runtime/triton_heuristics.py": {
        "precompile": _TRITON,
        "_precompile_worker": _TRITON,
        "_precompile_config": _TRITON,
        "_make_launchers": _TRITON,
    },
    "torch/_inductor/output_code.py": {"__call__": _RUN, "after_deserialization": _LOAD},
}

PHASES: Final[Mapping[tuple[str, str], Phase]] = MappingProxyType(
    {(file, function): phase for file, functions in _BY_FILE.items() for function, phase in functions.items()}
)

DECISIVE: Final[Mapping[str, Stage]] = MappingProxyType({"torch._inductor.exc.CppCompileError": Stage.CPP_COMPILE})
"""Exceptions that say more than the place where they were met: a worker raised them, and we only heard of it."""

ERROR_STAGES: Final[Mapping[str, Stage | None]] = MappingProxyType(
    {
        "torch._dynamo.exc.ShortenTraceback": None,
        "torch._dynamo.exc.TorchDynamoException": Stage.DYNAMO,
        "torch._inductor.exc.OperatorIssue": Stage.LOWERING,
        "torch._inductor.exc.SubgraphLoweringException": Stage.LOWERING,
        "torch._inductor.exc.CppWrapperCodegenError": Stage.CODEGEN,
        "torch._inductor.exc.InvalidCxxCompiler": Stage.CPP_COMPILE,
    }
)
"""Exceptions that belong to one stage, for those whose traceback torch took away."""

REMOTE_TRACEBACKS: Final = frozenset(
    {"torch._inductor.compile_worker.subproc_pool.SubprocException", "concurrent.futures.process._RemoteTraceback"}
)
"""Exceptions whose text is the traceback of another process."""

# Inductor names a module after its content, and its folder after the name.
_GENERATED: Final = re.compile(r"(?:^|/)(\w\w)/c\1\w{20,}\.py$")
_TORCH_FILE: Final = re.compile(r".*/(torch/.+)$")
_GRAPH_CODE: Final = re.compile(r"<eval_with_key>")
_HANDS_ON: Final = frozenset(
    {
        ("torch/__init__.py", "__call__"),
        ("torch/_compile.py", "inner"),
        ("torch/_dynamo/eval_frame.py", "_fn"),
        ("torch/_dynamo/repro/after_dynamo.py", "__call__"),
        ("torch/nn/modules/module.py", "_call_impl"),
        ("torch/nn/modules/module.py", "_wrapped_call_impl"),
        ("torch/utils/_contextlib.py", "decorate_context"),
    }
)
"""Functions that only call another one. Whether they are on a stack depends on who called."""
GENERATED_CALL: Final = "<generated>"
GRAPH_CALL: Final = "<graph>"


def phase_of(file: str, function: str) -> Phase | None:
    """The phase that a call of this function begins, if it begins one."""
    file = file.replace("\\", "/")
    if is_generated(file):
        return _LOAD if function == "<module>" else _RUN
    match = _TORCH_FILE.match(file)
    return PHASES.get((match[1], function)) if match else None


def place(frame: FrameType) -> tuple[str, str]:
    """The file and the function of a frame."""
    return frame.f_code.co_filename, frame.f_code.co_name


def is_generated(file: str) -> bool:
    """Whether this is a Python module that Inductor wrote."""
    return _GENERATED.search(file.replace("\\", "/")) is not None


def calls_in(stack: Iterable[tuple[str, str]], most: int) -> tuple[str, ...]:
    """The functions of torch on a stack of (file, function), innermost first, as `module:function`, each once.

    It ends where the stage begins, or generated code or a graph is entered: what is outside is the way there, and that
    is another one in each program. Of the code that was generated, only that it was is said.
    """
    found: dict[str, None] = {}
    for file, function in stack:
        if len(found) == most:
            break
        phase = phase_of(file, function)
        name = _call_name(file, function)
        if name is not None:
            found[name] = None
        ends = phase is not None and phase.stage is not Stage.DECOMPOSITION
        if ends or (name is not None and name.startswith(GRAPH_CALL)):
            break
    return tuple(found)


def _call_name(file: str, function: str) -> str | None:
    file = file.replace("\\", "/")
    if is_generated(file):
        return f"{GENERATED_CALL}:{function}"
    if _GRAPH_CODE.match(file):
        return f"{GRAPH_CALL}:{function}"
    match = _TORCH_FILE.match(file)
    if match is None or (match[1], function) in _HANDS_ON:
        return None
    module = match[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}:{function}"


def origins(value: Any) -> list[Node]:
    """The nodes that one of the compiler's objects was made from: a node, a match, IR, a step of the schedule.

    Empty for any other object, and for what computes several operators at once: any of them may be to blame.
    """
    from torch.fx import Node

    if isinstance(value, Node):
        return [value]
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    if "torch._inductor.pattern_matcher.Match" in kinds:
        return [node for node in value.nodes if isinstance(node, Node)][-1:]
    if "torch._inductor.scheduler.BaseSchedulerNode" in kinds:
        steps = value.get_nodes()
        return origins(steps[0].node) if len(steps) == 1 else []
    if "torch._inductor.ir.IRNode" not in kinds:
        return []
    found = [node for node in value.origins if isinstance(node, Node) and node.op.startswith("call_")]
    if len(found) > 1 and "torch._inductor.ir.ExternKernel" in kinds:
        # One call; the others are what led to its arguments.
        return [node for node in found if node is value.origin_node]
    return found if len(found) == 1 else []

"""The table of private names, and looking them up."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from torchsleuth.errors import MissingTorchName

if TYPE_CHECKING:
    pass


TESTED: Final = ("2.13",)
"""The torch versions (major.minor) that the tests of torchsleuth have passed on."""


@dataclass(frozen=True)
class PrivateName:
    """One private name of torch: `attribute` (dotted if it lies deeper) of `module`."""

    module: str
    attribute: str
    feature: str
    """What stops working without it, in the user's words."""
    since: str = "2.13"
    """The first torch version it is known on."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.attribute}"


# What hangs on an object, not on a class (is_view, _schema), is probed on an operator that is always there.
_AN_OPERATOR = "ops.aten.add.Tensor"

NAMES: Final[Mapping[str, PrivateName]] = MappingProxyType(
    {
        "TensorGuards": PrivateName(
            "torch._C._dynamo.guards",
            "TensorGuards",
            "checking quickly that a recorded graph fits the tensors of a call",
        ),
        "GlobalStateGuard": PrivateName(
            "torch._C._dynamo.guards",
            "GlobalStateGuard",
            "checking that a recorded graph fits torch's global state",
        ),
        "set_grad_mode": PrivateName(
            "torch._C",
            "_set_grad_enabled",
            "recording graphs in which gradients are switched on and off",
        ),
        "set_code_exec_strategy": PrivateName(
            "torch._C._dynamo.eval_frame",
            "set_code_exec_strategy",
            "keeping Dynamo away from our own front end",
        ),
        "FrameExecStrategy": PrivateName(
            "torch._C._dynamo.eval_frame",
            "_FrameExecStrategy",
            "keeping Dynamo away from our own front end",
        ),
        "FrameAction": PrivateName(
            "torch._C._dynamo.eval_frame",
            "_FrameAction",
            "keeping Dynamo away from our own front end",
        ),
        "function_modes": PrivateName(
            "torch._C",
            "_len_torch_function_stack",
            "noticing that somebody else's mode is in the way of recording a graph",
        ),
        "dispatch_modes": PrivateName(
            "torch._C",
            "_len_torch_dispatch_stack",
            "noticing that somebody else's mode is in the way of recording a graph",
        ),
        "tracing_state": PrivateName(
            "torch._C",
            "_get_tracing_state",
            "noticing that a trace is in the way of recording a graph",
        ),
        "peek_transform": PrivateName(
            "torch._C._functorch",
            "peek_interpreter_stack",
            "noticing that a transform (vmap, grad) is in the way of recording a graph",
        ),
        "is_torch_function_enabled": PrivateName(
            "torch._C",
            "_is_torch_function_enabled",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "has_torch_function_unary": PrivateName(
            "torch._C",
            "_has_torch_function_unary",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "has_torch_function_variadic": PrivateName(
            "torch._C",
            "_has_torch_function_variadic",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "log_api_usage_once": PrivateName(
            "torch._C",
            "_log_api_usage_once",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "functorch_active": PrivateName(
            "torch._C",
            "_are_functorch_transforms_active",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "global_buffer_hooks": PrivateName(
            "torch.nn.modules.module",
            "_global_buffer_registration_hooks",
            "recording graphs of modules with hooks",
        ),
        "global_pre_hooks": PrivateName(
            "torch.nn.modules.module",
            "_global_forward_pre_hooks",
            "recording graphs of modules with hooks",
        ),
        "global_hooks": PrivateName(
            "torch.nn.modules.module",
            "_global_forward_hooks",
            "recording graphs of modules with hooks",
        ),
        "global_backward_hooks": PrivateName(
            "torch.nn.modules.module",
            "_global_backward_hooks",
            "recording graphs of modules with hooks",
        ),
        "global_backward_pre_hooks": PrivateName(
            "torch.nn.modules.module",
            "_global_backward_pre_hooks",
            "recording graphs of modules with hooks",
        ),
        "DimDynamic": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "DimDynamic",
            "recording graphs with symbolic sizes",
        ),
        "StatelessSymbolicContext": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "StatelessSymbolicContext",
            "recording graphs with symbolic sizes",
        ),
        "ConstantSource": PrivateName(
            "torch._dynamo.source",
            "ConstantSource",
            "recording graphs with symbolic sizes",
        ),
        "SYMPY_INTERP": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "SYMPY_INTERP",
            "recording graphs with symbolic sizes",
        ),
        "tracing": PrivateName(
            "torch._guards",
            "tracing",
            "recording graphs with symbolic sizes",
        ),
        "ShapeEnv": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "ShapeEnv",
            "recording graphs with symbolic sizes",
        ),
        "list_backends": PrivateName(
            "torch._dynamo.backends.registry",
            "list_backends",
            "naming the backends that there are",
        ),
        "canonical_mask": PrivateName(
            "torch.nn.functional",
            "_canonical_mask",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "none_or_dtype": PrivateName(
            "torch.nn.functional",
            "_none_or_dtype",
            "interpreting torch's own Python code while a graph is recorded",
        ),
        "TensorBase": PrivateName(
            "torch._C",
            "TensorBase",
            "telling methods of tensors from other functions while a graph is recorded",
        ),
        "is_fake": PrivateName(
            "torch._subclasses.fake_tensor",
            "is_fake",
            "telling a fake tensor (a shape without values) from a real one, before values are compared",
        ),
        "TorchDispatchMode": PrivateName(
            "torch.utils._python_dispatch",
            "TorchDispatchMode",
            "seeing each operator of a run as it is executed",
        ),
        "tree_map": PrivateName(
            "torch.utils._pytree",
            "tree_map",
            "reading arguments and results that are nested in lists, tuples and dicts",
        ),
        "OpOverload": PrivateName(
            "torch._ops",
            "OpOverload",
            "recognising the operators in a graph",
        ),
        "HigherOrderOperator": PrivateName(
            "torch._ops",
            "HigherOrderOperator",
            "recognising control flow and other operators that take functions in a graph",
        ),
        "is_mutable": PrivateName(
            "torch",
            f"{_AN_OPERATOR}._schema.is_mutable",
            "knowing which operators write to their inputs",
        ),
        "is_view": PrivateName(
            "torch",
            f"{_AN_OPERATOR}.is_view",
            "knowing which operators return a view of their input",
        ),
        "arguments": PrivateName(
            "torch",
            f"{_AN_OPERATOR}._schema.arguments",
            "knowing the arguments of an operator by name, and which of them it writes to",
        ),
        "tags": PrivateName(
            "torch",
            f"{_AN_OPERATOR}.tags",
            "knowing which operators are random, pointwise or otherwise special",
        ),
        "operator_schemas": PrivateName(
            "torch._C",
            "_jit_get_schemas_for_operator",
            "finding the operators that a graph calls",
        ),
        "OpOverloadPacket": PrivateName(
            "torch._ops",
            "OpOverloadPacket",
            "recognising operators without an overload in a graph",
        ),
        "higher_order_ops": PrivateName(
            "torch._ops",
            "_higher_order_ops",
            "finding control flow and other operators that take functions by name",
        ),
        "FakeTensorMode": PrivateName(
            "torch._subclasses.fake_tensor",
            "FakeTensorMode",
            "giving a stored graph to a compiler, which works on fake tensors",
        ),
        "enable_python_dispatcher": PrivateName(
            "torch._dispatch.python",
            "enable_python_dispatcher",
            "computing the sizes of a graph's values with symbols",
        ),
        "FakeTensor": PrivateName(
            "torch._subclasses.fake_tensor",
            "FakeTensor",
            "telling fake tensors from other tensor subclasses",
        ),
        "TracingContext": PrivateName(
            "torch._guards",
            "TracingContext",
            "compiling a stored graph in the surroundings that Inductor expects",
        ),
        "BackwardState": PrivateName(
            "torch.fx.experimental._backward_state",
            "BackwardState",
            "noticing a graph that takes the state of a backward hook",
        ),
        "pytree": PrivateName(
            "torch.utils",
            "_pytree",
            "knowing where in a result an unbacked symbol first appears",
        ),
        "codegen": PrivateName(
            "torch.fx",
            "Graph.set_codegen",
            "noticing graphs that take and return nested values",
        ),
        "custom_ops": PrivateName(
            "torch._library.custom_ops",
            "OPDEFS",
            "finding the source of operators that are defined in Python",
        ),
        "triton_kernels": PrivateName(
            "torch._higher_order_ops.triton_kernel_wrap",
            "kernel_side_table",
            "finding the source of Triton kernels that a graph calls",
        ),
        "tensor_metadata": PrivateName(
            "torch.fx.passes.shape_prop",
            "_extract_tensor_metadata",
            "giving the nodes of a stored graph the metadata that some passes look for",
        ),
        "decomposition_table": PrivateName(
            "torch._decomp",
            "decomposition_table",
            "knowing how a fused operator is written out in simpler ones",
        ),
        "size_functions": PrivateName(
            "torch.utils._sympy.functions",
            "__dict__",
            "reading and writing the expressions of symbolic sizes",
        ),
        "integer_infinity": PrivateName(
            "torch.utils._sympy.numbers",
            "int_oo",
            "reading and writing the ranges of symbolic sizes",
        ),
        "ValueRanges": PrivateName(
            "torch.utils._sympy.value_ranges",
            "ValueRanges",
            "rebuilding the ranges of symbolic sizes",
        ),
        "ShapeGuard": PrivateName(
            "torch._guards",
            "ShapeGuard",
            "rebuilding what compiling relied on about symbolic sizes",
        ),
        "SLoc": PrivateName(
            "torch._guards",
            "SLoc",
            "rebuilding what is known of symbolic sizes",
        ),
        "Source": PrivateName(
            "torch._guards",
            "Source",
            "rebuilding what symbolic sizes stand for",
        ),
        "no_hint": PrivateName(
            "torch.fx.experimental.sym_node",
            "_NO_HINT",
            "rebuilding symbolic values that only running tells",
        ),
        "update_version_counter": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "ShapeEnv._update_version_counter",
            "rebuilding what is known of symbolic sizes",
        ),
        "CapturedTraceback": PrivateName(
            "torch.utils._traceback",
            "CapturedTraceback",
            "rebuilding the runtime asserts about symbolic sizes",
        ),
        "config_unset": PrivateName(
            "torch.utils._config_module",
            "_UNSET_SENTINEL",
            "knowing which options of torch's configuration were changed",
        ),
        "config_patcher": PrivateName(
            "torch.utils._config_module",
            "ConfigModule._make_closure_patcher",
            "running a case with the configuration that it was recorded with",
        ),
        "dynamo_config": PrivateName(
            "torch._dynamo.config", "_config", "keeping the configuration of Dynamo with a case"
        ),
        "inductor_config": PrivateName(
            "torch._inductor.config", "_config", "keeping the configuration of Inductor with a case"
        ),
        "functorch_config": PrivateName(
            "torch._functorch.config", "_config", "keeping the configuration of AOT with a case"
        ),
        "fx_config": PrivateName(
            "torch.fx.experimental._config", "_config", "keeping the configuration of symbolic shapes with a case"
        ),
        "compiler_config": PrivateName(
            "torch.compiler.config", "_config", "keeping the configuration of torch.compiler with a case"
        ),
        "inductor_config_patch": PrivateName(
            "torch._inductor.config",
            "patch",
            "compiling with other options of Inductor for a while",
        ),
        "clear_inductor_caches": PrivateName(
            "torch._inductor.utils",
            "clear_caches",
            "answering many queries in one process, none of which knows of the others",
        ),
        "probe_processor": PrivateName(
            "torch._inductor.cpu_vec_isa",
            "pick_vec_isa",
            "starting workers fast",
        ),
        "processor_feature": PrivateName(
            "torch._inductor.cpu_vec_isa",
            "VecISA",
            "starting workers fast",
        ),
        "header_folder": PrivateName(
            "torch._inductor.codecache",
            "_HEADER_DIR",
            "giving each worker its own folder for precompiled headers",
        ),
        "header_locks": PrivateName(
            "torch._inductor.codecache",
            "_HEADER_LOCK_DIR",
            "giving each worker its own folder for precompiled headers",
        ),
        "disable_current_modes": PrivateName(
            "torch.utils._python_dispatch",
            "_disable_current_modes",
            "keeping and making tensors while torch is tracing",
        ),
        "DisableTorchFunction": PrivateName(
            "torch._C",
            "DisableTorchFunction",
            "keeping and making tensors inside of a torch-function mode, such as a default device",
        ),
        "storage_key": PrivateName(
            "torch",
            "UntypedStorage._cdata",
            "knowing which tensors share their memory",
        ),
        "storage_again": PrivateName(
            "torch",
            "UntypedStorage._new_with_weak_ptr",
            "reading tensors that share their memory from a content store",
        ),
        "tensor_flags": PrivateName(
            "torch._utils",
            "get_tensor_metadata",
            "writing tensors that are conjugated or negated when they are read to a content store",
        ),
        "set_tensor_flags": PrivateName(
            "torch._utils",
            "set_tensor_metadata",
            "reading tensors that are conjugated or negated when they are read from a content store",
        ),
        "times_written": PrivateName(
            "torch",
            "Tensor._version",
            "seeing which inputs a graph writes to, when compiled results are checked",
        ),
        "preserve_version_counter": PrivateName(
            "torch",
            "autograd._unsafe_preserve_version_counter",
            "running a graph again that writes to its own buffers, when compiled results are checked",
        ),
        "view_base": PrivateName(
            "torch",
            "Tensor._base",
            "knowing which tensor another one is a view of",
        ),
        "sparse_indices": PrivateName(
            "torch",
            "Tensor._indices",
            "keeping sparse tensors that are not coalesced",
        ),
        "sparse_values": PrivateName(
            "torch",
            "Tensor._values",
            "keeping sparse tensors that are not coalesced",
        ),
        "neg_view": PrivateName(
            "torch",
            "_neg_view",
            "making tensors that are negated when they are read (the imaginary part of a conjugate)",
        ),
        "empty_quantised": PrivateName(
            "torch",
            "_empty_affine_quantized",
            "making quantised tensors",
        ),
        "empty_quantised_by_channel": PrivateName(
            "torch",
            "_empty_per_channel_affine_quantized",
            "making tensors that are quantised channel by channel",
        ),
        "is_functional": PrivateName(
            "torch",
            "_is_functional_tensor",
            "telling a tensor from the wrapper that torch traces mutations with",
        ),
        "is_functorch_wrapper": PrivateName(
            "torch._C",
            "_functorch.is_functorch_wrapped_tensor",
            "telling a tensor from the wrapper that vmap and grad work on",
        ),
        "inductor_main": PrivateName(
            "torch._inductor.compile_fx",
            "_compile_fx_main",
            "watching the graphs that Inductor compiles",
        ),
        "inductor_inner": PrivateName(
            "torch._inductor.compile_fx",
            "compile_fx_inner",
            "replaying the graphs that Inductor compiles",
        ),
        "FakeStore": PrivateName(
            "torch.testing._internal.distributed.fake_pg",
            "FakeStore",
            "replaying graphs with collectives",
        ),
        "register_group": PrivateName(
            "torch._C._distributed_c10d",
            "_register_process_group",
            "replaying graphs with collectives in a group that has a name",
        ),
        "unregister_groups": PrivateName(
            "torch._C._distributed_c10d",
            "_unregister_all_process_groups",
            "repro scripts whose graphs have collectives",
        ),
        "resolve_group": PrivateName(
            "torch.distributed.distributed_c10d",
            "_resolve_process_group",
            "repro scripts whose graphs have collectives",
        ),
        "debug_dir": PrivateName(
            "torch._dynamo.utils",
            "get_debug_dir",
            "the drop-in: putting its files where torch's own tool puts them",
        ),
        "counters": PrivateName(
            "torch._dynamo.utils",
            "counters",
            "the drop-in: the command analyze",
        ),
        "intermediate_hook": PrivateName(
            "torch._inductor.hooks",
            "intermediate_hook",
            "the drop-in: the command analyze",
        ),
        "dtype_abbreviations": PrivateName(
            "torch.utils._dtype_abbrs",
            "dtype_abbrs",
            "the drop-in: inputs for a graph that was printed",
        ),
        "mark_dynamic": PrivateName(
            "torch._dynamo",
            "mark_dynamic",
            "the drop-in: inputs with symbolic sizes for a graph that was printed",
        ),
        "metrics_of_thread": PrivateName(
            "torch._dynamo.utils",
            "_metrics_context_tls",
            "the drop-in: trying out what a backend made while Dynamo is compiling",
        ),
        "MetricsContext": PrivateName(
            "torch._dynamo.metrics_context",
            "MetricsContext",
            "the drop-in: trying out what a backend made while Dynamo is compiling",
        ),
        "registered_backends": PrivateName(
            "torch._dynamo.backends.registry",
            "_COMPILER_FNS",
            "the drop-in: its backends under torch's names",
        ),
        "aot_compile": PrivateName(
            "torch._functorch.aot_autograd",
            "aot_stage2_compile",
            "watching the graphs that backends on AOTAutograd compile",
        ),
        "lookup_backend": PrivateName(
            "torch._dynamo.backends.registry",
            "lookup_backend",
            "watching a backend by its name",
        ),
        "inductor_backend": PrivateName(
            "torch",
            "_TorchCompileInductorWrapper",
            "watching Inductor with a mode and options",
        ),
        "other_backend": PrivateName(
            "torch",
            "_TorchCompileWrapper",
            "watching backends with a mode and options",
        ),
        "dynamo_optimize": PrivateName(
            "torch._dynamo",
            "optimize",
            "watching a program that was not changed for it",
        ),
        "CompileContext": PrivateName(
            "torch._guards",
            "CompileContext",
            "counting the calls of a frame over its recompilations",
        ),
        "RestartAnalysis": PrivateName(
            "torch._dynamo.exc",
            "RestartAnalysis",
            "telling a failure from torch's own starting over",
        ),
        "SkipFrame": PrivateName(
            "torch._dynamo.exc",
            "SkipFrame",
            "telling a failure from a frame that a backend skips",
        ),
        "fallback_exceptions": PrivateName(
            "torch._dynamo.exc",
            "exceptions_allowed_to_be_fallback",
            "telling a failure from a graph break",
        ),
        "OutputCode": PrivateName(
            "torch._inductor.output_code",
            "OutputCode",
            "standing in the place of what Inductor compiled",
        ),
        "BackendCompilerFailed": PrivateName(
            "torch._dynamo.exc",
            "BackendCompilerFailed",
            "telling the user where the case is when compiling fails",
        ),
        "transform_depth": PrivateName(
            "torch._C._functorch",
            "get_dynamic_layer_stack_depth",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "undo_transforms": PrivateName(
            "torch._C._functorch",
            "pop_dynamic_layer_stack_and_undo_to_depth",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "inplace_requires_grad_allowed": PrivateName(
            "torch._C._functorch",
            "get_inplace_requires_grad_allowed",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "allow_inplace_requires_grad": PrivateName(
            "torch._C._functorch",
            "set_inplace_requires_grad_allowed",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "saved_hooks_enabled": PrivateName(
            "torch._C._autograd",
            "_saved_tensors_hooks_is_enabled",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "enable_saved_hooks": PrivateName(
            "torch._C._autograd",
            "_saved_tensors_hooks_enable",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "forward_grad_enabled": PrivateName(
            "torch._C",
            "_is_fwd_grad_enabled",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "set_forward_grad_enabled": PrivateName(
            "torch._C",
            "_set_fwd_grad_enabled",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "dual_level": PrivateName(
            "torch.autograd.forward_ad",
            "_current_level",
            "reducing graphs of torch.func: leaving what a graph entered before an operator refused",
        ),
        "graph_break_reasons": PrivateName(
            "torch._dynamo.utils",
            "graph_break_reasons",
            "telling where Dynamo breaks graphs, beside our own breaks",
        ),
        "innermost_fn": PrivateName(
            "torch._dynamo.eval_frame",
            "innermost_fn",
            "finding the function that torch.compile was given",
        ),
        "OptimizedModule": PrivateName(
            "torch._dynamo.eval_frame",
            "OptimizedModule",
            "finding the module that torch.compile was given",
        ),
        "module_call": PrivateName(
            "torch.nn",
            "Module._call_impl",
            "knowing a module again that was compiled by its own method",
        ),
        "compiled_call": PrivateName(
            "torch.nn",
            "Module._compiled_call_impl",
            "seeing the calls of a module in a script",
        ),
    }
)


# ---- looking names up -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Missing:
    """A name that this torch does not have, and the `reason` the lookup gave."""

    name: PrivateName
    reason: str


@dataclass(frozen=True)
class Report:
    """How well torchsleuth knows the torch that is installed. `str` gives the text of it."""

    torch_version: str
    tested: bool
    checked: int
    missing: tuple[Missing, ...]

    def __str__(self) -> str:
        known = "tested" if self.tested else f"not tested; tested are {', '.join(TESTED)}"
        lines = [
            f"torch {self.torch_version} ({known}): "
            f"{self.checked - len(self.missing)} of {self.checked} private names found"
        ]
        for each in self.missing:
            lines += [
                f"  missing: {each.name.path} (known since torch {each.name.since})",
                f"    stops working: {each.name.feature}",
                f"    reason: {each.reason}",
            ]
        return "\n".join(lines)


class TorchNames:
    """Looks up a table of private names in one torch; `importer` says which torch that is."""

    def __init__(
        self,
        names: Mapping[str, PrivateName] = NAMES,
        importer: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        self.names = names
        self._import = importer
        self._found: dict[str, Any] = {}

    def version(self) -> str:
        """The version of torch, for messages too: "(not importable)" if there is none."""
        try:
            return str(self._import("torch").__version__)
        except Exception:  # noqa: BLE001 - a broken install may raise anything; `missing` keeps what
            return "(not importable)"

    def is_tested(self) -> bool:
        """Whether the tests of torchsleuth have passed on this torch (by major.minor version)."""
        return ".".join(self.version().split("+")[0].split(".")[:2]) in TESTED

    def resolve(self, key: str) -> Any:
        """The object that `key` stands for in the table."""
        if key in self._found:
            return self._found[key]
        name = self.names[key]
        try:
            found = reduce(getattr, name.attribute.split("."), self._import(name.module))
        except Exception as error:
            raise MissingTorchName(
                f"torch {self.version()} has no {name.path}, so this does not work: {name.feature}",
                cause=f"{_in_words(error)} (the name is private to torch, and known since {name.since})",
                remedy=f"install a torch that torchsleuth was tested on ({', '.join(TESTED)}); "
                "`sleuth doctor` lists every missing name",
            ) from error
        return self._found.setdefault(key, found)

    def missing(self) -> list[Missing]:
        """Every name of the table that this torch does not have. Imports all of them, which takes seconds."""
        gone = []
        for key, name in self.names.items():
            try:
                self.resolve(key)
            except MissingTorchName as error:
                gone.append(Missing(name, _in_words(error.__cause__)))
        return gone

    def report(self) -> Report:
        """The check of the whole table as data; `str` of it is for people."""
        return Report(self.version(), self.is_tested(), len(self.names), tuple(self.missing()))


def _in_words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


_TORCH = TorchNames()


def resolve(key: str) -> Any:
    """The private object of the installed torch that `key` stands for in `NAMES`, or `MissingTorchName`."""
    return _TORCH.resolve(key)


def missing() -> list[Missing]:
    """Every private name that the installed torch does not have. Imports all of them: seconds, not less."""
    return _TORCH.missing()


def report() -> Report:
    """How well torchsleuth knows the installed torch."""
    return _TORCH.report()


def is_tested() -> bool:
    """Whether the tests of torchsleuth have passed on the installed torch (by major.minor version)."""
    return _TORCH.is_tested()

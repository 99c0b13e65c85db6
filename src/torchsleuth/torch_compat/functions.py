"""What graphs may call: finding operators by name, and the functions that Dynamo emits."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import reduce
from typing import Any, Final

from torchsleuth.torch_compat.names import resolve
from torchsleuth.torch_compat.operators import is_higher_order_op, is_op_overload


def find_operator(namespace: str, name: str, overload: str | None) -> Any:
    """A registered operator, or None. Nothing is loaded for the asking but modules of torch that register some."""
    import torch

    if namespace == "higher_order":
        _load_higher_order_ops()
        return resolve("higher_order_ops").get(name) if overload is None else None
    if not _is_registered(namespace, name):
        return None  # asking `torch.ops` itself would leave an empty namespace behind
    space = getattr(torch.ops, namespace, None)
    if not isinstance(space, type(torch.ops.aten)):
        return None
    packet = getattr(space, name, None)
    if not isinstance(packet, resolve("OpOverloadPacket")):
        return None
    if overload is None:
        return packet
    found = getattr(packet, overload, None)
    return found if is_op_overload(found) else None


def _is_registered(namespace: str, name: str) -> bool:
    schemas = resolve("operator_schemas")
    if schemas(f"{namespace}::{name}"):
        return True
    for module in _REGISTERING.get(namespace, ()):
        try:
            importlib.import_module(module)
        except ImportError:  # a torch without distributed, or one that has moved it: the operator is not to be had
            continue
    return bool(schemas(f"{namespace}::{name}"))


_REGISTERING: Final = {
    "_c10d_functional": ("torch.distributed._functional_collectives",),
    "_dtensor": ("torch.distributed.tensor._collective_utils",),
    "_inductor_test": ("torch._inductor.test_operators",),
    "bucketing": ("torch._inductor.fx_passes.bucketing",),
    "c10d_functional": ("torch.distributed._functional_collectives",),
    "flex_lib": ("torch._dynamo._trace_wrapped_higher_order_op",),
    "fsdp": (
        "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "torch.distributed.fsdp._fully_shard._fsdp_param",
    ),
    "prims": ("torch._inductor.inductor_prims",),
    "quantized_decomposed": ("torch.ao.quantization.fx._decomposed",),
    "streams": ("torch._dynamo.variables.streams",),
    "symm_mem": ("torch.distributed._symmetric_memory",),
    "torch_attn": ("torch.nn.attention.varlen",),
}
"""Modules of torch that register operators when they are imported, by namespace (known on 2.13).

Whoever captured a graph had them. Whoever opens a case may not: importing torch alone does not bring them.
"""


def operator_path(op: object) -> str | None:
    """The path of an operator below `torch.ops`, or None for anything else."""
    if is_op_overload(op):
        return f"torch.ops.{op}"
    if isinstance(op, resolve("OpOverloadPacket")):
        return f"torch.ops.{op!s}"
    if is_higher_order_op(op):
        return f"torch.ops.higher_order.{op.name()}"  # type: ignore[attr-defined]
    return None


def _load_higher_order_ops() -> None:
    # They register themselves when their modules are imported.
    importlib.import_module("torch._higher_order_ops")
    importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")


_FUNCTIONS_IN_GRAPHS: Final = (
    ("torch._C._nn", "*"),
    ("torch._C._linalg", "*"),
    ("torch._C._fft", "*"),
    ("torch._C._special", "*"),
    ("torch._C._sparse", "*"),
    ("torch._C._nested", "*"),
    ("torch._lowrank", "get_approximate_basis svd_lowrank pca_lowrank"),
    ("torch._linalg_utils", "basis bform matmul qform"),
    (
        "torch.masked._ops",
        "amax amin argmax argmin cumprod cumsum log_softmax logaddexp logsumexp mean median norm "
        "normalize prod softmax softmin std sum var",
    ),
    (
        "torch.signal.windows.windows",
        "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann kaiser nuttall",
    ),
    (
        "torch._C",
        "_set_grad_enabled _set_fwd_grad_enabled _is_fwd_grad_enabled _autograd_function_apply "
        "_log_api_usage_once set_autocast_enabled _set_deterministic_algorithms",
    ),
    ("torch._C._autograd", "_get_data_attr _saved_tensors_hooks_disable _saved_tensors_hooks_enable"),
    ("torch.autograd.grad_mode", "_enter_inference_mode _exit_inference_mode"),
    ("torch.nn.attention", "_backend_from_string _cur_sdpa_kernel_backends _sdpa_kernel _sdpa_kernel_variadic"),
    (
        "torch._C._functorch",
        "_add_batch_dim _remove_batch_dim _vmap_increment_nesting _vmap_decrement_nesting _grad_increment_nesting "
        "_grad_decrement_nesting _jvp_increment_nesting _jvp_decrement_nesting _wrap_for_grad _unwrap_for_grad "
        "set_inplace_requires_grad_allowed get_inplace_requires_grad_allowed _unwrap_batched is_batchedtensor "
        "get_unwrapped",
    ),
    ("torch._functorch.predispatch", "*"),
    ("torch._functorch.vmap", "lazy_load_decompositions"),
    (
        "torch._functorch.eager_transforms",
        "_create_differentiable _autograd_grad _jvp_treespec_compare _vjp_treespec_compare enter_jvp_nesting "
        "exit_jvp_nesting _is_differentiable _any_differentiable assert_flat_tuple_of_tensors "
        "_set_tensor_requires_grad _assert_wrapped_functional set_inplace_requires_grad_allowed",
    ),
    (
        "torch.autograd.forward_ad",
        "enter_dual_level exit_dual_level make_dual unpack_dual _set_fwd_grad_enabled _maybe_load_decompositions",
    ),
    ("torch.amp.autocast_mode", "_enter_autocast _exit_autocast"),
    ("torch.autograd.function", "FunctionCtx"),
    ("torch", "_check _check_is_size _check_value _check_index _check_type _check_not_implemented _check_tensor_all"),
    ("torch", "_assert _assert_async _assert_scalar _sym_sqrt _sym_cos _sym_sin _sym_log2 _sym_float _shape_as_tensor"),
    (
        "torch",
        "_sym_acos _sym_asin _sym_atan _sym_cosh _sym_exp _sym_log10 _sym_sinh _sym_tan _sym_tanh _sym_abs _sym_ceil",
    ),
    ("torch._prims_common", "check_same_device suggest_memory_format"),
    ("torch._dynamo._trace_wrapped_higher_order_op", "from_getitem zeros_and_scatter"),
    ("torch._dynamo.utils", "call_size call_stride call_storage_offset numpy_to_tensor"),
    (
        "torch.fx.experimental.symbolic_shapes",
        "guard_size_oblivious guard_or_false guard_or_true sym_eq sym_or sym_and",
    ),
)
"""What Dynamo puts into graphs besides torch's public functions. "*" is every callable of the module."""


_NOT_IN_GRAPHS: Final = frozenset({"from_file", "from_dlpack", "frombuffer", "set_"})
"""Functions of torch that reach beyond tensors: to files, and to memory that torch does not own."""


def functions_in_graphs() -> Iterator[tuple[str, Any]]:
    """(dotted path, function) of everything in that table that this torch has."""
    torch = importlib.import_module("torch")
    for name in dir(torch._C._VariableFunctions):  # the operators that have a function of their own in `torch`
        if (
            name not in _NOT_IN_GRAPHS
            and not name.startswith("__")
            and callable(function := getattr(torch, name, None))
        ):
            yield f"torch.{name}", function
    for module, names in _FUNCTIONS_IN_GRAPHS:
        try:
            home = importlib.import_module(module)
        except ImportError:  # parts of torch._C are attributes, not modules that can be imported
            home = reduce(getattr, module.split(".")[1:], importlib.import_module("torch"))
        for name in (each for each in vars(home) if not each.startswith("__")) if names == "*" else names.split():
            function = getattr(home, name, None)
            own = (
                names != "*" or getattr(function, "__module__", None) in (None, module) or module.startswith("torch._C")
            )
            if callable(function) and own and not isinstance(function, type):
                yield f"{module}.{name}", function

"""What the front end knows about torch's functions: which go into a graph, which only tell facts, which break it.

A function that is not known here breaks the graph: it might have a state that nobody can see (`manual_seed`), or give a
result that depends on the data. Known are

- **leaves**: functions that torch itself lists as overridable, operators, and factories. They become nodes.
- **facts**: what follows from dtypes, shapes and settings that are guarded anyway. They are called, and leave no trace.
- torch's own Python code that is **interpreted** like the user's: modules, grad modes, distributions.
"""

from __future__ import annotations

import functools
import types
import warnings
from types import FunctionType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend.kinds import is_a

TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that can stand in a graph."""
_LAYOUTS: Final = (torch.strided, torch.sparse_coo)
"""And their layouts. Compilers have no stand-ins for others."""

RECORDED_ATTRIBUTES: Final = frozenset(["T", "mT", "H", "mH", "real", "imag", "data"])
"""Attributes of tensors that are tensors, computed by an operator."""

FACTS: Final = frozenset(
    [
        *(
            "shape",
            "dtype",
            "device",
            "ndim",
            "requires_grad",
            "layout",
            "is_quantized",
            "names",
            "itemsize",
        ),
        *("nbytes", "is_sparse", "is_sparse_csr", "is_meta", "is_nested", "is_mkldnn", "is_mps", "is_xpu", "is_cpu"),
        *("is_cuda", "is_hpu", "is_mtia", "is_xla", "is_ipu", "is_maia", "is_vulkan"),
    ]
)
"""Attributes of tensors that guards on their kind cover."""

OWN_FACTS: Final = frozenset(["is_leaf", "output_nr"])
"""Attributes in which tensors of one kind differ. Those of what the graph computes follow from its inputs."""

FACT_METHODS: Final = frozenset(
    [
        *("__len__", "__hash__", "size", "dim", "ndimension", "stride", "numel", "nelement", "is_floating_point"),
        *("is_complex", "is_contiguous", "element_size", "get_device", "is_signed", "is_same_size"),
        *("is_inference", "has_names", "is_neg", "is_conj", "sym_size", "sparse_dim", "dense_dim"),
    ]
)
"""Methods of tensors that guards on their kind cover."""

DATA_DEPENDENT: Final = frozenset(
    [
        *(
            "item",
            "__bool__",
            "tolist",
            "numpy",
            "__int__",
            "__float__",
            "__index__",
            "__complex__",
            "__array__",
            "equal",
        ),
        *("allclose", "is_nonzero", "__contains__", "__repr__", "__str__", "__format__", "data_ptr", "cpu_data"),
    ]
)
UNFIT: Final = frozenset(
    [
        *("backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "set_"),
        *("storage", "untyped_storage", "_typed_storage", "share_memory_", "pin_memory", "__reduce_ex__", "__reduce__"),
        *(
            "__deepcopy__",
            "__setstate__",
            "__dir__",
            "is_shared",
            "is_pinned",
            "reinforce",
            "rename_",
            "rename",
            "refine_names",
        ),
        *(
            "align_to",
            "align_as",
            "unflatten_names",
            "apply_",
            "map_",
            "map2_",
            "new",
            "resize_",
            "resize_as_",
            "_make_subclass",
        ),
        *(
            "as_subclass",
            "__dlpack__",
            "__dlpack_device__",
            "to_mkldnn",
            "detach_",
            "swap_tensors",
            "_version",
            "grad_fn",
        ),
        *(
            "manual_seed",
            "seed",
            "set_rng_state",
            "initial_seed",
            "get_rng_state",
            "_is_view",
            "_base",
            "_make_wrapper_subclass",
        ),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "random_"),  # no compiler takes these whole
        *("__setattr__", "module_load", "type", "sparse_resize_", "cuda", "xpu", "mtia"),
    ]
)
"""Methods and functions with an effect that no graph can hold."""

_FACTORIES: Final = (
    "zeros ones empty full arange rand randn randint randperm tensor as_tensor linspace logspace eye scalar_tensor "
    "empty_strided complex polar normal bernoulli multinomial tril_indices triu_indices hann_window hamming_window "
    "blackman_window bartlett_window kaiser_window range asarray vander sparse_coo_tensor zeros_like ones_like "
    "empty_like full_like rand_like randn_like randint_like einsum cat stack where broadcast_tensors meshgrid "
    "block_diag cartesian_prod atleast_1d atleast_2d atleast_3d tensordot split chunk"
).split()

_PURE: Final = (
    "is_grad_enabled is_inference_mode_enabled is_tensor is_storage is_floating_point is_complex is_same_size "
    "is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype "
    "is_autocast_cache_enabled _is_any_autocast_enabled get_default_dtype broadcast_shapes promote_types result_type "
    "can_cast typename is_deterministic_algorithms_enabled are_deterministic_algorithms_enabled is_anomaly_enabled "
    "get_num_threads get_float32_matmul_precision is_deterministic_algorithms_warn_only_enabled"
).split()

_INTERPRETED: Final = (
    "torch.nn.modules.", "torch.nn.parameter", "torch.nn.init", "torch.autograd.grad_mode", "torch.utils._contextlib",
    "torch._jit_internal", "torch.distributions", "torch.nn.utils.parametrize", "torch.nn.parallel",
)  # fmt: skip


@functools.cache
def _leaves() -> frozenset[int]:
    """ids of the functions that torch lists as overridable, and of factories."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = torch.overrides.get_overridable_functions()
    found = [function for functions in listed.values() for function in functions]
    found += [getattr(torch, name) for name in _FACTORIES if hasattr(torch, name)]
    _KEPT.extend(found)
    return frozenset(map(id, found))


_KEPT: list[Any] = []


@functools.cache
def _facts() -> frozenset[int]:
    """ids of functions that only tell facts."""
    jit: Any = torch.jit
    functional: Any = torch.nn.functional
    found: list[Any] = [getattr(torch, name) for name in _PURE if hasattr(torch, name)]
    found += [
        torch.finfo, torch.iinfo, torch.device, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling,
        torch.compiler.is_exporting, jit.is_scripting, jit.is_tracing, torch.cuda.is_available,
        torch.overrides.has_torch_function, torch.overrides.is_tensor_like, torch.overrides.handle_torch_function,
        functional.has_torch_function_unary, functional.has_torch_function_variadic,
        torch.backends.mha.get_fastpath_enabled, torch.xpu.is_available, torch.backends.mps.is_available,
        torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing, torch.cuda.device_count,
        torch.accelerator.is_available,
    ]  # fmt: skip
    found += torch_compat.fact_functions(_PURE)
    _KEPT.extend(found)
    return frozenset(map(id, found))


@functools.cache
def _looked_into() -> frozenset[int]:
    """ids of single functions that are interpreted."""
    return frozenset(map(id, torch_compat.interpreted_functions()))


def is_torch(function: Any) -> bool:
    """Whether a function of Python's, or a native one, belongs to torch."""
    module = getattr(function, "__module__", None)
    if not isinstance(module, str):
        owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
        module = getattr(owner if isinstance(owner, type) else type(owner), "__module__", "")
    return isinstance(module, str) and (module == "torch" or module.startswith("torch."))


def is_leaf(function: Any) -> bool:
    """Whether it is called, rather than interpreted."""
    return is_torch(function) and not is_interpreted(function)


def is_interpreted(function: Any) -> bool:
    """Whether it is one of torch's own functions that are interpreted like the user's."""
    if type(function) is not FunctionType or id(function) in _leaves() or id(function) in _facts():
        return False
    module = function.__globals__.get("__name__", "")
    return (isinstance(module, str) and module.startswith(_INTERPRETED)) or id(function) in _looked_into()


def is_fact(function: Any) -> bool:
    """Whether it only tells what is guarded anyway."""
    return id(function) in _facts()


def goes_into_graphs(function: Any) -> bool:
    """Whether torch says that this function may be seen by others (`__torch_function__`), or it is an operator."""
    if is_a(function, torch_compat.operator_kinds()):
        return True
    if id(function) in _leaves():
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and owner.__name__ == "_VariableFunctionsClass":
        return True
    if is_a(function, types.BuiltinFunctionType):
        return getattr(function, "__module__", None) in torch_compat.operator_modules()
    return is_a(function, (types.MethodDescriptorType, types.WrapperDescriptorType)) and issubclass(
        function.__objclass__, torch_compat.tensor_base()
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is of a class, and of a kind, that graphs hold."""
    return type(tensor) in TENSORS and not tensor.is_nested and tensor.layout in _LAYOUTS


def can_stand_in_graph(value: Any, depth: int = 0) -> bool:
    """Whether an argument can be written into a graph."""
    if is_a(value, torch.Tensor):
        return is_plain(value)
    if value is None or value is Ellipsis or is_a(value, (bool, int, float, complex, str)):
        return True
    if is_a(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return True
    if is_a(value, (list, tuple)):
        return depth < 8 and all(can_stand_in_graph(each, depth + 1) for each in value)
    if type(value) is dict:
        return depth < 8 and all(is_a(k, str) and can_stand_in_graph(v, depth + 1) for k, v in value.items())
    if is_a(value, slice):
        return all(can_stand_in_graph(each, depth + 1) for each in (value.start, value.stop, value.step))
    return False


def buffers_are_hooked() -> bool:
    """Whether somebody wants to know of each buffer that a module gets."""
    return torch_compat.buffer_hooks()


@functools.cache
def _not_in_state() -> frozenset[int]:
    return frozenset(
        map(
            id,
            (
                torch.is_anomaly_enabled,
                torch.backends.mha.get_fastpath_enabled,
                torch.get_float32_matmul_precision,
                torch.is_inference_mode_enabled,
            ),
        )
    )


def is_asked_again(function: Any) -> bool:
    """Whether a fact is about a setting that is not part of the global state that each segment guards."""
    return id(function) in _not_in_state()


def advice_for(name: str) -> str:
    """What a user may do about a tensor's method or attribute that breaks graphs."""
    if name in ("item", "__int__", "__float__", "__index__", "tolist", "__complex__"):
        return "keep it a tensor: compute with it instead of with its value"
    if name in ("__bool__", "is_nonzero"):
        return "choose with torch.where(condition, a, b), or branch before the data is there"
    if name in ("__repr__", "__str__", "__format__"):
        return "print it outside, or print its shape"
    if name in ("numpy", "__array__"):
        return "use the function of torch instead of numpy's"
    if name == "grad":
        return "take gradients outside of what is captured"
    if name in ("backward", "register_hook"):
        return "call it outside of what is captured"
    return ""

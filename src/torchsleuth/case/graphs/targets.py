"""What a graph may call: a closed table from names to functions, and back.

A case names the target of a node by a dotted path ("torch.ops.aten.add.Tensor", "operator.getitem",
"torch.nn.functional.gelu"). The path is looked up here, and nowhere else: nothing is imported because a case names it,
and what is not in the table cannot be called. In it are

    operators          every overload and packet that is registered, except those that touch files
    higher-order ops   whatever `torch.ops.higher_order` has
    torch's functions  those that torch itself lists as functions on tensors, factories, and what Dynamo emits
    Python's           `operator`, `math`, and a handful of builtins
    methods            of tensors, of symbolic numbers, of sizes

Operators of the user's own are found if they are registered in this process; a case says what would register them
(`schema.Code`), and whoever opens it decides.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import BadCase, CannotHold, NeedsTrust

BUILTINS: Final = frozenset(
    "abs bool complex dict divmod enumerate float getattr int isinstance len list max min pow range reversed round "
    "set slice sorted str sum tuple zip".split()
)
"""Builtins that graphs call. `getattr` only with the name of one of `PROPERTIES`."""

_NOT_FROM_OPERATOR: Final = frozenset("attrgetter itemgetter methodcaller call".split())
_NOT_FROM_MATH: Final = frozenset("factorial perm comb prod".split())

PROPERTIES: Final = frozenset(
    "H T data device dtype grad imag is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_mtia is_nested is_quantized "
    "is_sparse is_sparse_csr is_xla is_xpu itemsize layout mH mT names nbytes ndim real requires_grad retains_grad "
    "shape _version start stop step".split()
) | frozenset(name for kind in vars(torch.return_types).values() for name in getattr(kind, "__match_args__", ()))
"""What `getattr` may ask of a tensor."""

_WITH_FILES: Final = frozenset({"aten.from_file", "aten.save", "aten.set_data"})
_CLOSED_NAMESPACES: Final = frozenset({"debugprims", "prim", "profiler", "export", "triton"})
_OPEN_IN_CLOSED: Final = frozenset({"prim.device"})

TORCHS_NAMESPACES: Final = frozenset(
    "aten prims prim quantized quantized_decomposed _quantized inductor higher_order rngprims mkl mkldnn onednn "
    "mkldnn_prepacked xnnpack sparse sparseml prepacked _c10d_functional _c10d_functional_autograd c10d_functional "
    "c10d _dtensor symm_mem fsdp torchao streams air internal bucketing flex_lib torch_attn _inductor_test "
    "triton_kernel static_runtime profiler debugprims cuda metal vulkan mps".split()
)
"""Where torch's own operators live. Any other namespace is somebody's library."""

_DANGEROUS_METHODS: Final = frozenset(
    "__reduce_ex__ __reduce__ __setstate__ __deepcopy__ __class__ apply_ map_ map2_ module_load numpy register_hook "
    "register_post_accumulate_grad_hook share_memory_ storage_type type storage untyped_storage".split()
)

_MORE_METHODS: Final = frozenset(
    # Of symbolic numbers, of sizes, of strings that stand in a graph, and of the context of an autograd function.
    "__bool__ __index__ __neg__ __pos__ __invert__ __sym_float__ __sym_int__ __floor__ __ceil__ __round__ __trunc__ "
    "bit_length conjugate is_integer numel count index save_for_backward mark_non_differentiable mark_dirty "
    "set_materialize_grads copy get keys values items new new_empty new_zeros new_ones new_full new_tensor "
    "new_empty_strided backward type_as to_dense to_sparse requires_grad_ detach detach_ retain_grad size stride dim "
    "storage_offset data_ptr element_size is_contiguous is_floating_point is_complex item tolist".split()
)

_FACTORIES: Final = (
    "arange as_strided as_tensor asarray autocast bartlett_window blackman_window complex cudnn_affine_grid_generator "
    "device dtype empty empty_like empty_permuted empty_quantized empty_strided eye from_numpy full full_like "
    "get_default_dtype get_rng_state hamming_window hann_window is_autocast_enabled is_grad_enabled "
    "is_inference_mode_enabled kaiser_window linspace logspace manual_seed normal ones ones_like polar promote_types "
    "rand rand_like randint randint_like randn randn_like randperm range result_type scalar_tensor set_rng_state "
    "sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor "
    "sparse_csr_tensor sym_constrain_range sym_constrain_range_for_size sym_float sym_fresh_size sym_int sym_ite "
    "sym_max sym_min sym_not sym_sqrt sym_sum tensor tril_indices triu_indices vander zeros zeros_like Size Tensor "
    "is_tensor is_floating_point is_complex is_storage numel finfo iinfo can_cast"
).split()

_FROM_MODULES: Final[tuple[tuple[str, str], ...]] = (
    # (module, which names of it: "*" for all callables without a leading underscore, or a list)
    ("torch", " ".join(_FACTORIES)),
    ("torch.nn.functional", "*"),
    ("torch.nn.init", "*"),
    ("torch.linalg", "*"),
    ("torch.fft", "*"),
    ("torch.special", "*"),
    ("torch.sparse", "sum softmax log_softmax mm addmm spdiags spsolve sampled_addmm as_sparse_gradcheck"),
    ("torch.functional", "*"),
    ("torch.amp", "custom_fwd custom_bwd is_autocast_available"),
    ("torch.nn.attention.flex_attention", "flex_attention create_block_mask"),
    ("torch.autograd.graph", "saved_tensors_hooks"),
    ("torch.random", "fork_rng get_rng_state set_rng_state manual_seed initial_seed"),
)

_TORCHS_MODULES: Final = frozenset({"torch", "operator", "math", "builtins", "functorch"})

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


# ---- names to functions ----------------------------------------------------------------------------------


def resolve(name: str, *, file: str = "", field: str = "") -> Callable[..., Any]:
    """The function that a case calls `name`. A `CaseError` if it is not in the table."""
    if not _PATH.fullmatch(name):
        raise _unknown(name, "it is not a dotted name", file, field)
    if name.startswith("torch.ops."):
        return _operator(name, file, field)
    found = _of_python().get(name) or _table().get(name)
    if found is not None:
        return found
    if name.split(".")[0] in _TORCHS_MODULES:
        raise _unknown(name, "the table of functions that a graph may call does not have it", file, field)
    raise NeedsTrust(
        f"the graph calls {_short(name)}, a function of the user's own",
        cause="a case says what such a function is called and where it came from, and never runs it by itself",
        remedy="export the case as a script, which imports the function, and run that if you trust its author",
        file=file,
        field=field,
    )


def resolve_operator(name: str, *, file: str = "", field: str = "") -> Callable[..., Any]:
    """An operator that stands as an argument."""
    if not name.startswith("torch.ops."):
        raise _unknown(name, "only an operator can be an argument", file, field)
    return resolve(name, file=file, field=field)


def resolve_value(name: str, *, file: str = "", field: str = "") -> Callable[..., Any]:
    """A function that something else may call: an operator, or one of torch's own on tensors.

    Not `getattr` and its like: handed to what calls functions, they would lead out of the table.
    """
    if not name.startswith("torch.") or name.startswith("torch.Tensor."):
        raise _unknown(name, "it is not a function of torch's on tensors", file, field)
    return resolve(name, file=file, field=field)


def method(name: str, *, file: str = "", field: str = "") -> str:
    """The name of a method, if graphs may call it."""
    if name in method_names():
        return name
    raise _unknown(name, "it is not a method that graphs may call", file, field)


def _operator(name: str, file: str, field: str) -> Callable[..., Any]:
    parts = name.split(".")[2:]
    namespace = parts[0]
    if len(parts) < 2 or len(parts) > 3 or any(part.startswith("__") and part.endswith("__") for part in parts[:1]):
        raise _unknown(name, "an operator has a namespace, a name and an overload", file, field)
    base = ".".join(parts[:2])
    closed = namespace in _CLOSED_NAMESPACES and base not in _OPEN_IN_CLOSED
    if base in _WITH_FILES or closed:
        raise _unknown(name, "graphs have no business with this operator (it reaches beyond tensors)", file, field)
    overload = parts[2] if len(parts) == 3 else None
    found: Callable[..., Any] | None = torch_compat.find_operator(namespace, parts[1], overload)
    if found is not None:
        return found
    if namespace in TORCHS_NAMESPACES:
        raise _unknown(name, f"torch {torch.__version__} has no such operator", file, field)
    raise NeedsTrust(
        f"the graph calls the operator {'::'.join(parts[:2])}, which is not torch's own",
        cause="nothing in this process has registered it",
        remedy="import the library that defines it first, or let the case do it with --trust, if you trust its author",
        file=file,
        field=field,
    )


def _unknown(name: str, cause: str, file: str, field: str) -> BadCase:
    return BadCase(
        f"there is no {_short(name)} to call",
        cause=cause,
        remedy="if this case is what torchsleuth wrote, report it, and name the function; otherwise do not trust it",
        file=file,
        field=field,
    )


def _short(name: str) -> str:
    return repr(name if len(name) <= 120 else f"{name[:117]}...")


# ---- functions to names ----------------------------------------------------------------------------------


def function_name(function: object, *, field: str = "") -> str:
    """The name under which `resolve` finds the function again; `CannotHold` if it has none."""
    name = torch_compat.operator_path(function) or _name_in_table(function)
    if name is not None:
        try:
            # Torch makes some operators more than once; two with one name are the same.
            if resolve(name) == function or torch_compat.operator_path(function) == name:
                return name
        except (BadCase, NeedsTrust):
            pass
    raise CannotHold(
        f"the graph calls {_described(function)}",
        cause="a case names what it calls, and this function is not in the table of what graphs may call",
        remedy="make it a custom operator (torch.library.custom_op) to keep it in a case",
        field=field,
    )


def target_name(function: object) -> str:
    """What the target of a node is called in a case: as `function_name`, or a name that says where it came from.

    A function of the user's own (Dynamo keeps some on request, whole) is not found again under its name, but known.
    """
    try:
        return function_name(function)
    except CannotHold:
        path = _described(function)
        return (
            ".".join(re.sub(r"\W", "_", part) or "_" for part in path.split(".") if part)
            if "." in path
            else f"unknown.{type(function).__name__}"
        )


def is_unknown(name: str) -> bool:
    """Whether a target is a function of somebody's own: neither an operator nor in the table."""
    return not name.startswith("torch.ops.") and name not in _table()


def _described(function: object) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return f"{module}.{name}" if module and name else repr(function)[:120]


def is_custom(name: str) -> bool:
    """Whether a target is an operator of somebody's own library."""
    return name.startswith("torch.ops.") and name.split(".")[2] not in TORCHS_NAMESPACES


# ---- the table -------------------------------------------------------------------------------------------


@functools.cache
def _table() -> Mapping[str, Callable[..., Any]]:
    return {**_of_python(), **dict(_of_torch())}


@functools.cache
def _of_python() -> Mapping[str, Callable[..., Any]]:
    """The part that is at hand. A graph after AOT calls nothing else but operators, and the rest takes long to load."""
    found: dict[str, Callable[..., Any]] = {f"builtins.{name}": getattr(builtins, name) for name in sorted(BUILTINS)}
    for home, left_out in ((operator, _NOT_FROM_OPERATOR), (math, _NOT_FROM_MATH)):
        for name, function in vars(home).items():
            if callable(function) and not name.startswith("_") and name not in left_out:
                found[f"{home.__name__}.{name}"] = function
    return found


@functools.cache
def _names() -> Mapping[Any, list[str]]:
    """All names by function. Two of torch's functions are equal if they call the same operator: `mm` and `spmm`."""
    names: dict[Any, list[str]] = {}
    for name, function in _table().items():
        try:
            names.setdefault(function, []).append(name)
        except TypeError:
            continue
    return names


def _name_in_table(function: Any) -> str | None:
    """The name that ends as the function calls itself; else the first, and public names come first."""
    try:
        known = _names().get(function, [])
    except TypeError:  # unhashable, so not a function of ours
        return None
    own = [name for name in known if name.rpartition(".")[2] == getattr(function, "__name__", "")]
    return next(iter(own or known), None)


def _of_torch() -> Iterator[tuple[str, Callable[..., Any]]]:
    overridable = {id(function) for function in torch.overrides.get_testing_overrides()}
    for name, function in vars(torch).items():
        if id(function) in overridable and not name.startswith("__"):
            yield f"torch.{name}", function
    for module, names in _FROM_MODULES:
        yield from _from_module(module, names)
    yield from torch_compat.functions_in_graphs()
    for name in sorted(method_names()):
        function = getattr(torch.Tensor, name, None)
        if callable(function):
            yield f"torch.Tensor.{name}", function


def _from_module(module: str, names: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    home = importlib.import_module(module)
    if names == "*":
        for name, function in vars(home).items():
            ours = getattr(function, "__module__", None) in (None, module, "torch._C._nn", "torch.nn.functional")
            if callable(function) and not name.startswith("_") and ours and not isinstance(function, type):
                yield f"{module}.{name}", function
        return
    for name in names.split():
        if hasattr(home, name):
            yield f"{module}.{name}", getattr(home, name)


@functools.cache
def method_names() -> frozenset[str]:
    """Every method that a `call_method` node may call."""
    overridable = {id(function) for function in torch.overrides.get_testing_overrides()}
    of_tensors = {
        name
        for name in dir(torch.Tensor)
        if id(getattr(torch.Tensor, name, None)) in overridable or (not name.startswith("_") and _is_method(name))
    }
    return frozenset((of_tensors | _MORE_METHODS | {"type", "contiguous"}) - (_DANGEROUS_METHODS - {"type"}))


def _is_method(name: str) -> bool:
    return callable(getattr(torch.Tensor, name, None))

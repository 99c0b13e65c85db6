"""The fp64 reference: the same program in double precision, hard-coded casts and all.

A graph is rewritten: every floating-point dtype it names becomes fp64, every `.half()` a `.double()`. A
Python function or module has no graph to rewrite, so its operators are rewritten as they are called. Both
go through `widen_call`. Where a program depends on the bits of a narrow float (a bitcast, packed or quantised
numbers), there is no fp64 version of it, and `NoReference` says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import NoReference

from .clones import clone_inputs
from .kinds import widen
from .tree import map_tensors, tensors_in

_METHODS = {
    "float": "double",
    "half": "double",
    "bfloat16": "double",
    "cfloat": "cdouble",
    "chalf": "cdouble",
}
_TYPE_NAMES = {
    f"torch.{prefix}{name}Tensor": f"torch.{prefix}DoubleTensor"
    for prefix in ("", "cuda.")
    for name in ("Float", "Half", "BFloat16")
}
_KEEP = frozenset({"_enter_autocast", "wrap_with_autocast"})
"""Calls whose dtype is a policy, not a cast. Autocast leaves fp64 tensors alone, so it may stay."""
_KNOWN_HOMES = frozenset({"torch", "_operator", "builtins", "math", "None"})
"""Modules whose functions hide no casts (builtins of torch have none at all)."""
_BITS = frozenset({"view_element_type", "view_as_bits"})
_NARROW_ONLY = frozenset(
    {"_scaled_mm", "quantize_per_tensor", "quantize_per_channel", "_weight_int4pack_mm", "_scaled_grouped_mm"}
)


def cast_to_fp64(model: Any, inputs: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """`model` and its inputs in double precision. Neither argument is changed.

    Raises `NoReference`, with the reason, for a graph that cannot be widened. A program that is not a graph
    shows only when it runs whether it can be.
    """
    if not all(map(_has_wide_form, {tensor.dtype for tensor in tensors_in(inputs)})):
        raise _no_reference("an input is packed or quantised")
    wide_inputs = clone_inputs(inputs, _widen_dtype)
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)
        widen_module(model)
    return DoublePrecision(model, is_graph=_is_all_graph(model)), wide_inputs


def widen_module(module: torch.nn.Module) -> None:
    """Make a module double precision, in place: its state, other tensors that it holds, and the casts in its graphs."""
    parts = list(module.modules())
    for part in parts:
        _widen_state(part)
    for part in parts:
        _widen_attributes(part)
    for part in parts:
        if isinstance(part, torch.fx.GraphModule):
            _widen_graph(part)


class DoublePrecision:
    """A program that runs in double precision: by a rewritten graph, or operator by operator."""

    def __init__(self, model: Any, *, is_graph: bool) -> None:
        self.model = model
        self.is_graph = is_graph
        self._boxed_call = bool(getattr(model, "_boxed_call", False))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        default = torch.get_default_dtype()
        with ExitStack() as stack:
            stack.callback(torch.set_default_dtype, default)
            torch.set_default_dtype(torch.float64)
            if not self.is_graph:
                stack.enter_context(torch_compat.dispatch_mode(_call_widened))
            if not isinstance(self.model, torch.nn.Module):
                # What a function closes over is not widened, and autograd keeps arguments as they were given.
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, widen))
            return self.model(*args, **kwargs)

    def named_parameters(self) -> Any:
        return self.model.named_parameters() if isinstance(self.model, torch.nn.Module) else ()

    def named_buffers(self) -> Any:
        return self.model.named_buffers() if isinstance(self.model, torch.nn.Module) else ()


def widen_call(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """One call with every floating-point dtype it names made fp64 (complex128)."""
    name = target if isinstance(target, str) else torch_compat.op_name(target)
    if name in _KEEP:
        return target, args, kwargs
    overload = str(getattr(target, "_overloadname", ""))
    named = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.dtype)]
    if name in _BITS or (name == "view" and (overload == "dtype" or named)):
        raise _no_reference(f"{name} reinterprets the bits of a tensor, and an fp64 tensor has other bits")
    if name in _NARROW_ONLY or any(not _has_wide_form(dtype) for dtype in named):
        raise _no_reference(f"{name} works on packed or quantised numbers, which have no fp64 form")
    if isinstance(target, str):
        target = _METHODS.get(target, target)
    elif name in _METHODS and target is getattr(torch.Tensor, name, None):
        target = getattr(torch.Tensor, _METHODS[name])
    return target, _widen_dtypes(args), _widen_dtypes(kwargs)


def _is_all_graph(model: Any) -> bool:
    """Whether every operator of `model` is a node that can be rewritten: no code of the user's is called."""
    if not isinstance(model, torch.fx.GraphModule):
        return False
    for node in model.graph.nodes:
        called = model.get_submodule(node.target) if node.op == "call_module" else node.target
        home = type(called).__module__ if isinstance(called, torch.nn.Module) else getattr(called, "__module__", None)
        if node.op == "call_module" and isinstance(called, torch.fx.GraphModule):
            if not _is_all_graph(called):
                return False
        elif node.op in ("call_module", "call_function") and str(home).partition(".")[0] not in _KNOWN_HOMES:
            return False
    return True


def _widen_graph(graph_module: torch.fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            node.target, node.args, node.kwargs = widen_call(node.target, node.args, node.kwargs)
    graph_module.recompile()


def _call_widened(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operator of a Python program, in double precision."""
    operator, args, kwargs = widen_call(operator, args, kwargs)
    if not (torch_compat.op_is_mutable(operator) or torch_compat.op_is_view(operator)):
        # Tensors that did not come in through the inputs: closures, globals, constants made of numpy arrays.
        args, kwargs = torch_compat.tree_map(_widen_leaf, (args, kwargs))
    return operator(*args, **kwargs)


def _widen_state(module: torch.nn.Module) -> None:
    """A module's own parameters and buffers, in place, so that ties are kept."""
    with torch.no_grad():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.data = _widen(tensor.data)
        for parameter in module.parameters(recurse=False):
            parameter.grad = None


def _widen_attributes(module: torch.nn.Module) -> None:
    """A module's plain tensors, in lists and dicts too (its state comes first: that stays the same objects)."""
    for name, value in list(vars(module).items()):
        wide = map_tensors(_widen, value) if name != "meta" else value
        if wide is not value:
            setattr(module, name, wide)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() and not _has_wide_form(tensor.dtype):
        raise _no_reference(f"a parameter, buffer or constant is packed ({tensor.dtype})")
    return widen(tensor)


def _widen_leaf(value: Any) -> Any:
    return widen(value) if isinstance(value, torch.Tensor) else value


def _widen_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float64
    return torch.complex128 if dtype.is_complex else dtype


def _widen_dtypes(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _widen_dtype(value)
    if isinstance(value, str):
        return _TYPE_NAMES.get(value, value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        children = [_widen_dtypes(child) for child in value]
        unchanged = all(new is old for new, old in zip(children, value, strict=True))
        return value if unchanged else type(value)(children)
    if isinstance(value, dict):
        return {key: _widen_dtypes(child) for key, child in value.items()}
    return value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for child in value for leaf in _leaves(child)]
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in _leaves(child)]
    return [value]


def _has_wide_form(dtype: torch.dtype) -> bool:
    return not any(mark in str(dtype) for mark in ("qint", "quint", "bits", "float4"))


def _no_reference(cause: str) -> NoReference:
    return NoReference(
        "an fp64 reference of this program cannot be made",
        cause=cause,
        remedy="compare without it (fp64=False); whether a difference is noise then stays unknown",
    )

"""What graphs hold besides calls: modules, custom code, keys into results, metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
from torchsleuth.torch_compat.names import resolve


def is_backward_state(x: object) -> bool:
    """Whether x is the object in which backward hooks keep their state."""
    return isinstance(x, resolve("BackwardState"))


def is_script_object(x: object) -> bool:
    """Whether x is an object of a TorchScript class, or the fake of one."""
    import torch

    return isinstance(x, torch.ScriptObject) or type(x).__name__ in ("FakeScriptObject", "OpaqueObject")


def takes_nested_values(graph: torch.fx.Graph) -> bool:
    """Whether the code of a graph packs and unpacks nested arguments around the nodes."""
    from torch.fx.graph import CodeGen

    resolve("codegen")
    return type(graph._codegen) is not CodeGen


@dataclass(frozen=True)
class CustomOp:
    """An operator that is defined in Python: its function, and the further functions registered for it by name."""

    function: Callable[..., Any]
    parts: dict[str, Callable[..., Any]]


def custom_op_definition(name: str) -> CustomOp | None:
    """The Python functions behind an operator ("mylib::foo"), or None if it is defined elsewhere."""
    defined = resolve("custom_ops").get(name)
    if defined is None:
        return None
    parts = {
        "fake": defined._abstract_fn,
        "backward": defined._backward_fn,
        "setup_context": defined._setup_context_fn,
        "vmap": defined._vmap_fn,
    }
    return CustomOp(defined._init_fn, {part: function for part, function in parts.items() if function is not None})


def triton_kernel(number: int) -> Any:
    """The Triton kernel that graphs call by that number."""
    return resolve("triton_kernels").get_kernel(number)


def unboxed(value: Any) -> Any:
    """What is in one of Inductor's boxes (a flag or a device that a callee may change); anything else as it is."""
    return value.value if type(value).__name__ in ("BoxedBool", "BoxedDeviceIndex") else value


@dataclass(frozen=True)
class ModuleParts:
    """What a module holds besides its class."""

    attributes: dict[str, Any]
    parameters: dict[str, Any]
    buffers: dict[str, Any]
    transient: frozenset[str]
    """The buffers that are not part of its state dict."""
    children: dict[str, Any]
    hooked: bool = False


def module_parts(module: torch.nn.Module) -> ModuleParts:
    """The parts of a module; `hooked` if it carries hooks."""
    import torch

    base = set(vars(torch.nn.Module()))
    if isinstance(module, torch.nn.RNNBase):
        base |= {"_flat_weights", "_flat_weight_refs"}  # the parameters once more; `new_module` gathers them again
    own = {name: value for name, value in vars(module).items() if name not in base or name == "training"}
    hooks = (name for name in vars(torch.nn.Module()) if name.endswith("_hooks"))
    return ModuleParts(
        own,
        dict(module._parameters),
        dict(module._buffers),
        frozenset(module._non_persistent_buffers_set),
        dict(module._modules),
        any(vars(module)[name] for name in hooks),
    )


def new_module(kind: type[torch.nn.Module], parts: ModuleParts) -> torch.nn.Module:
    """A module of that class with those parts. Its own constructor does not run."""
    import torch

    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    vars(module).update(parts.attributes)
    module._parameters.update(parts.parameters)
    module._buffers.update(parts.buffers)
    module._non_persistent_buffers_set.update(parts.transient)
    module._modules.update(parts.children)
    if isinstance(module, torch.nn.RNNBase):
        torch.nn.RNNBase._init_flat_weights(module)
    return module


def module_classes() -> dict[str, type[torch.nn.Module]]:
    """Every module class that torch.nn itself defines, by its name."""
    import torch

    homes = [torch.nn.modules, *(each for each in vars(torch.nn.modules).values() if isinstance(each, ModuleType))]
    return {
        name: kind
        for home in homes
        for name, kind in vars(home).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.nn.Module)
        and kind.__module__.startswith("torch.nn.modules.")
    }


def path_key(how: str, what: int | str) -> Any:
    """One step on the way from a node's result to a symbol in it, as torch writes it."""
    from torch.fx.experimental import symbolic_shapes

    pytree = resolve("pytree")
    match how:
        case "index":
            return pytree.SequenceKey(what)
        case "key":
            return pytree.MappingKey(what)
        case "method":
            return symbolic_shapes.CallMethodKey(str(what))
        case "divide":
            return symbolic_shapes.DivideByKey(int(what))
        case "inner":
            return symbolic_shapes.InnerTensorKey(str(what))
    return symbolic_shapes.ConvertIntKey()


def tensor_metadata(tensor: torch.Tensor) -> Any:
    """A tensor's `tensor_meta`, as passes over graphs know it."""
    return resolve("tensor_metadata")(tensor)

"""What recording a graph needs of torch's inside: seeing operators, guarding tensors and global state, its own kinds.

operator_mode(handler)         each operator comes through the handler
tensor_check(tensors, ...)     a fast check that tensors are still of this kind
state_check()                  a fast check that torch's global state is still what it is now
hide_from_dynamo(function)     Dynamo leaves it alone
modes_active()                 whether somebody else's modes are in the way of recording
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torchsleuth.torch_compat.names import resolve

if TYPE_CHECKING:
    import torch


def operator_mode(
    handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> AbstractContextManager[Any]:
    """Inside, each operator is called as `handler(operator, args, kwargs)`, and nothing else changes."""

    mode: AbstractContextManager[Any] = _mode_class()(handler)
    return mode


@functools.cache
def _mode_class() -> Callable[[Any], AbstractContextManager[Any]]:
    class Mode(resolve("TorchDispatchMode")):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self, handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
            super().__init__()
            self.handler = handler

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """False: or else torch imports all of Dynamo for a wrapper that nobody here needs."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.handler(func, args, kwargs or {})

    return Mode


def tensor_check(
    tensors: Sequence[torch.Tensor], sizes: list[list[int | None]], strides: list[list[int | None]]
) -> tuple[Callable[..., bool], Callable[..., str]]:
    """Two functions of as many tensors: are they of the same kind and all different? and if not, why not?

    Kind: class, dtype, device, whether it requires grad, layout, dispatch keys, and the sizes and strides that are
    given (None: any).
    """
    guards = resolve("TensorGuards")(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)

    def why(*now: torch.Tensor, names: list[str]) -> str:
        return str(guards.check_verbose(*now, tensor_check_names=names))

    return guards.check, why


def state_check() -> tuple[Callable[[], bool], Callable[[], str]]:
    """Is torch's global state (grad mode, autocast, default dtype, ...) what it is now? And if not, what is?"""
    guard = resolve("GlobalStateGuard")()
    return guard.check, guard.reason


def set_grad_mode() -> Callable[[bool], None]:
    """The function that switches gradients on and off, as it stands in graphs."""
    found: Callable[[bool], None] = resolve("set_grad_mode")
    return found


def modes_active() -> bool:
    """Whether modes of functions or operators, a trace or a transform (vmap, grad) are at work in this thread."""
    return bool(
        resolve("function_modes")()
        or resolve("dispatch_modes")()
        or resolve("tracing_state")() is not None
        or resolve("peek_transform")() is not None
    )


def hide_from_dynamo(function: Any) -> None:
    """From now on Dynamo does not look into the function, nor into what it calls, whoever compiles what calls it."""
    skip = resolve("FrameAction").SKIP
    resolve("set_code_exec_strategy")(function.__code__, resolve("FrameExecStrategy")(skip, skip))
    function._torchdynamo_disable = True


def tensor_base() -> type:
    """The class in which tensors have their native methods."""
    found: type = resolve("TensorBase")
    return found


def operator_kinds() -> tuple[type, ...]:
    """The classes of operators: overloads, and packets of them."""
    return resolve("OpOverload"), resolve("OpOverloadPacket")


def operator_modules() -> tuple[str, ...]:
    """The names of modules whose native functions are operators under a friendlier name."""
    return (
        "torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special", "torch._C._sparse", "torch._VF",
        "torch._C._VariableFunctions",
    )  # fmt: skip


def fact_functions(public: Sequence[str]) -> list[Any]:
    """Private functions that only tell what is guarded anyway, and those behind public ones of these names."""
    import torch

    inner = [getattr(torch._C, name) for name in public if hasattr(torch._C, name)]
    inner += [resolve(name) for name in _FACT_FUNCTIONS]
    return inner


_FACT_FUNCTIONS = (
    "tracing_state", "is_torch_function_enabled", "has_torch_function_unary", "has_torch_function_variadic",
    "log_api_usage_once", "functorch_active", "none_or_dtype",
)  # fmt: skip


def interpreted_functions() -> list[Any]:
    """Private functions of torch's that compute with tensors, or not, depending on what they are given."""
    return [resolve("canonical_mask")]


def buffer_hooks() -> bool:
    """Whether somebody has asked to be told of each buffer that is registered with any module."""
    return bool(resolve("global_buffer_hooks"))


def module_hooks() -> tuple[Any, ...]:
    """The hooks that are called for each module of the process."""
    return tuple(map(resolve, _MODULE_HOOKS))


_MODULE_HOOKS = ("global_pre_hooks", "global_hooks", "global_backward_hooks", "global_backward_pre_hooks")


def backend_names() -> list[str]:
    """The backends that torch.compile knows, those for experts included."""
    return sorted(resolve("list_backends")(exclude_tags=()))


def plain_init(function: Any) -> Any:
    """The `__init__` of modules as it is written: once Dynamo is imported, it stands in a wrapper of Dynamo's."""
    if getattr(function, "__module__", None) == "torch._dynamo.mutation_guard":
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return next((each for each in cells if getattr(each, "__name__", "") == "__init__"), function)
    return function

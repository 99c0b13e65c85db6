"""What torch keeps to itself about tensors: what kind they are, which memory they have, modes that see their use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
from torchsleuth.torch_compat.names import resolve
from torchsleuth.torch_compat.operators import is_higher_order_op


def is_fake(x: object) -> bool:
    """Whether x is a tensor without values: a fake one, or a wrapper (functional, subclass) around one."""
    try:
        return bool(resolve("is_fake")(x))
    except AssertionError:
        # torch will not judge a subclass with real and fake parts. Some of its values are not there.
        return True


def dispatch_mode(
    handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    higher_order: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
) -> AbstractContextManager[Any]:
    """Inside, each operator overload is called as `handler(operator, args, kwargs)`; what that returns counts.

    Operators that take functions (cond, map, ...) are called as they are, or as `higher_order` calls them; what the
    functions run comes through the handler as well. Nothing is compiled inside: Dynamo would give up on each frame
    it meets, and for good.
    """

    class Mode(resolve("TorchDispatchMode")):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not is_higher_order_op(func):
                return handler(func, args, kwargs or {})
            args = tuple(self._seen(value) for value in args)
            kwargs = {name: self._seen(value) for name, value in (kwargs or {}).items()}
            return higher_order(func, args, kwargs) if higher_order is not None else func(*args, **kwargs)

        def _seen(self, value: Any) -> Any:
            """A graph or a function that runs under this mode again; any other argument as it is."""
            if not (isinstance(value, FunctionType) or (callable(value) and hasattr(value, "graph"))):
                return value

            @wraps(value)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return value(*args, **kwargs)

            return run

    return _without_compiling(Mode())


@contextmanager
def _without_compiling(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """The mode, and inside it `torch.compile` compiles nothing (torch.cond and its like use that in eager, too)."""
    import torch

    loaded = "torch._dynamo" in sys.modules  # if not, nobody has compiled yet; loading it takes seconds
    with torch.compiler.set_stance("force_eager") if loaded else nullcontext(), mode:
        yield


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside, torch does what it says: no mode traces or changes it, no gradients, ordinary (not inference) tensors."""
    import torch

    with (
        resolve("disable_current_modes")(),
        resolve("DisableTorchFunction")(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def storage_key(storage: torch.UntypedStorage) -> int:
    """What is equal for two objects of Python that stand for one storage, for as long as one of them is there."""
    resolve("storage_key")
    return int(storage._cdata)


def storage_again(weak: StorageWeakRef) -> torch.UntypedStorage | None:
    """The storage that a weak reference stands for, if it is still there."""
    found: torch.UntypedStorage | None = resolve("storage_again")(weak.cdata)
    return found


def tensor_flags(x: torch.Tensor) -> dict[str, bool]:
    """What is done to the memory when the tensor is read: `conj`, `neg`. Only what is."""
    return dict(resolve("tensor_flags")(x))


def set_tensor_flags(x: torch.Tensor, flags: Mapping[str, bool]) -> None:
    """Have them done. In place."""
    resolve("set_tensor_flags")(x, dict(flags))


def times_written(x: torch.Tensor) -> int:
    """A number that grows with each operator that writes to the tensor, or to a view of it. (Kernels may not tell.)"""
    resolve("times_written")
    return int(x._version)


def not_counting_writes(tensors: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
    """Afterwards autograd takes the tensors for untouched. Only for who puts back what was written inside."""
    context: AbstractContextManager[Any] = resolve("preserve_version_counter")(tuple(tensors))
    return context


def view_base(x: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of, as far as autograd knows."""
    resolve("view_base")
    return x._base


def sparse_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a COO tensor as they lie there, coalesced or not."""
    return resolve("sparse_indices")(x), resolve("sparse_values")(x)


def negated(x: torch.Tensor) -> torch.Tensor:
    """The same memory, read with the other sign (the "neg" bit)."""
    view: torch.Tensor = resolve("neg_view")(x)
    return view


def empty_quantised(dtype: torch.dtype, scale: float, zero_point: int) -> torch.Tensor:
    """A quantised tensor with one scale and no elements."""
    made: torch.Tensor = resolve("empty_quantised")([0], scale=scale, zero_point=zero_point, dtype=dtype, device="cpu")
    return made


def empty_quantised_by_channel(
    dtype: torch.dtype, size: Sequence[int], scales: torch.Tensor, zero_points: torch.Tensor, axis: int
) -> torch.Tensor:
    """A quantised tensor with a scale for each channel, its values not set."""
    made: torch.Tensor = resolve("empty_quantised_by_channel")(
        size, scales=scales, zero_points=zero_points, axis=axis, dtype=dtype, device="cpu"
    )
    return made


def is_wrapper(x: torch.Tensor) -> bool:
    """Whether it is no tensor of its own but what tracing, `vmap` or `grad` have put around one."""
    return bool(resolve("is_functional")(x) or resolve("is_functorch_wrapper")(x))


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The same nesting with `fn(leaf)` in the place of each leaf."""
    return resolve("tree_map")(fn, tree)

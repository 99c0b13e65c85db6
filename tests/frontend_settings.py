"""Changes that are not made to what a program holds: other arguments, hooks, and torch's and Python's own settings."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from frontend_changes import Change, Subject, Undo
from frontend_others import altered, raising


def calls(subject: Subject) -> Iterator[Change]:
    """Other numbers and kinds of arguments."""
    args, kwargs = subject.args, subject.kwargs
    yield Change("call", "an argument more", args, partial(args.append, 1))
    yield Change("call", "an unknown keyword", kwargs, partial(kwargs.__setitem__, "unknown", 1))
    if args:
        yield Change("call", "an argument less", args, args.pop)
        code = getattr(getattr(subject.program, "forward", subject.program), "__code__", None)
        if code is not None and code.co_argcount > code.co_posonlyargcount:
            names = [each for each in code.co_varnames[: code.co_argcount] if each != "self"]
            if len(names) >= len(args):
                yield Change(
                    "call", "the last argument by name", subject, partial(_by_name, subject, names[len(args) - 1])
                )
    if len(args) > 1:
        yield Change("call", "arguments are exchanged", args, args.reverse)
        tensors = [number for number, each in enumerate(args) if isinstance(each, torch.Tensor)]
        for one, other in pairwise(tensors):
            yield Change(
                "call", f"arguments {one} and {other} are the same", args, partial(args.__setitem__, other, args[one])
            )
            yield Change(
                "call", f"arguments {one} and {other} share memory", args,
                lambda one=one, other=other: args.__setitem__(other, args[one].view(args[one].shape)),
            )  # fmt: skip
    for name in list(kwargs):
        yield Change("call", f"without {name}", kwargs, partial(kwargs.pop, name))


def _by_name(subject: Subject, name: str) -> None:
    subject.args, subject.kwargs = subject.args[:-1], {**subject.kwargs, name: subject.args[-1]}


class Counting(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Adding(TorchFunctionMode):
    """A mode that changes what `add` and `linear` give."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            return result + 1 if func in (torch.nn.functional.linear, torch.Tensor.add, torch.relu) else result


class Dispatching(TorchDispatchMode):
    """A mode that changes what products of matrices give."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default) else result


def settings(subject: Subject) -> Iterator[Change]:
    """What torch and Python keep for the whole process or thread."""
    contexts: list[tuple[str, Callable[[], Any]]] = [
        ("no gradients", torch.no_grad),
        ("gradients switched off", lambda: torch.set_grad_enabled(False)),
        ("inference", torch.inference_mode),
        ("autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
        ("autocast, then not", lambda: torch.autocast("cpu", enabled=False)),
        ("autocast to half", lambda: torch.autocast("cpu", dtype=torch.float16)),
        ("a mode of functions that changes nothing", Counting),
        ("a mode of functions that changes results", Adding),
        ("a mode of operators that changes results", Dispatching),
        ("no modes of functions", torch._C.DisableTorchFunction),
        ("no functions of subclasses", torch._C.DisableTorchFunctionSubclass),
        ("anomalies are looked for", lambda: torch.autograd.set_detect_anomaly(True)),
        ("saved tensors are changed", lambda: torch.autograd.graph.saved_tensors_hooks(doubled, itself)),
        ("no oneDNN", lambda: torch.backends.mkldnn.flags(enabled=False)),
        ("attention by its definition", lambda: sdpa_kernel(SDPBackend.MATH)),
        ("another device", lambda: torch.device("meta")),
        ("the same device, said aloud", lambda: torch.device("cpu")),
        ("warnings are errors", _warnings_are_errors),
    ]
    for words, context in contexts:
        yield Change("torch", words, None, partial(_entered, context))
    switches: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        (
            "doubles by default",
            lambda: torch.set_default_dtype(torch.float64),
            partial(torch.set_default_dtype, torch.get_default_dtype()),
        ),
        (
            "deterministic algorithms",
            lambda: torch.use_deterministic_algorithms(True),
            partial(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()),
        ),
        (
            "products less exact",
            lambda: torch.set_float32_matmul_precision("medium"),
            partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        ),
        (
            "another limit of recursion",
            lambda: sys.setrecursionlimit(3000),
            partial(sys.setrecursionlimit, sys.getrecursionlimit()),
        ),
        ("a profiler is at work", lambda: sys.setprofile(_profile), lambda: sys.setprofile(None)),
    ]
    for words, make, undo in switches:
        yield Change("torch", words, None, partial(_switched, make, undo))
    hooks: list[tuple[str, Callable[[], Any]]] = [
        ("a forward hook of all modules", lambda: nn.modules.module.register_module_forward_hook(_after)),
        ("a forward pre-hook of all modules", lambda: nn.modules.module.register_module_forward_pre_hook(_before)),
        ("a backward hook of all modules", lambda: nn.modules.module.register_module_full_backward_hook(_backward)),
    ]
    for words, register in hooks:
        yield Change("torch", words, None, partial(registered, register))
    yield Change("call", "other random numbers", subject, partial(setattr, subject, "seed", 5))
    yield Change("call", "in another thread", subject, partial(setattr, subject, "through", _in_a_thread))
    yield Change("call", "from a deep stack", subject, partial(setattr, subject, "through", partial(_deep, 60)))
    yield Change("call", "while an exception is handled", subject, partial(setattr, subject, "through", _handling))


def _entered(context: Callable[[], Any]) -> Undo:
    made = context()
    made.__enter__()
    return Undo(partial(made.__exit__, None, None, None))


def _switched(make: Callable[[], Any], undo: Callable[[], Any]) -> Undo:
    make()
    return Undo(undo)


@contextlib.contextmanager
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _profile(frame: Any, event: str, argument: Any) -> None:
    return None


def _in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _deep(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else _deep(depth - 1, call)


def _handling(call: Callable[[], Any]) -> Any:
    try:
        raise KeyError("on the way")
    except KeyError:
        return call()


# ---- hooks --------------------------------------------------------------------------------------------------


def hooks_of(value: nn.Module) -> list[tuple[str, Callable[[], Any]]]:
    """Hooks that a module may get, and what registers them."""
    return [
        ("a forward hook", lambda: value.register_forward_hook(_after)),
        ("a forward hook with keywords", lambda: value.register_forward_hook(_after_keywords, with_kwargs=True)),
        ("a forward hook that only looks", lambda: value.register_forward_hook(_looks)),
        ("a forward hook that raises", lambda: value.register_forward_hook(raising(_looks))),
        ("a forward pre-hook", lambda: value.register_forward_pre_hook(_before)),
        (
            "a forward pre-hook with keywords",
            lambda: value.register_forward_pre_hook(_before_keywords, with_kwargs=True),
        ),
        ("a backward hook", lambda: value.register_full_backward_hook(_backward)),
        ("a backward pre-hook", lambda: value.register_full_backward_pre_hook(_backward_before)),
    ]


def itself(value: Any) -> Any:
    return value


def registered(register: Callable[[], Any]) -> Undo:
    return Undo(register().remove)


def _after(module: Any, args: Any, result: Any) -> Any:
    return altered(result)


def _after_keywords(module: Any, args: Any, kwargs: Any, result: Any) -> Any:
    return altered(result)


def _looks(module: Any, args: Any, result: Any) -> None:
    return None


def _before(module: Any, args: Any) -> Any:
    return tuple(altered(each) for each in args)


def _before_keywords(module: Any, args: Any, kwargs: Any) -> Any:
    return tuple(altered(each) for each in args), kwargs


def _backward(module: Any, grads: Any, given: Any) -> Any:
    return tuple(each if each is None else each * 2 for each in grads)


def _backward_before(module: Any, given: Any) -> Any:
    return tuple(each if each is None else each * 2 for each in given)


def doubled(grad: torch.Tensor) -> torch.Tensor:
    return grad * 2

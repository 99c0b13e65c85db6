"""What a backend or a compiler is called in a case, so that a script can find it again."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.recording import arguments
from torchsleuth.config import After

_DEEPEST: Final = 20
"""Torch's wrapper of a backward compiler may refer to itself."""


def name_of(backend: str | Callable[..., Any]) -> str:
    """What messages call a backend."""
    if isinstance(backend, str):
        return backend
    for attribute in ("compiler_name", "__name__"):
        name = getattr(backend, attribute, None)
        if isinstance(name, str):
            return name
    return type(backend).__name__


def describe_backend(
    backend: str | Callable[..., Any], chosen: Mapping[str, Any], dynamic: bool | None
) -> schema.Compiler:
    """A backend of torch.compile with its mode and options."""
    mode, options = chosen.get("mode"), chosen.get("options") or {}
    if torch_compat.is_inductor_backend(backend):
        return schema.Compiler(
            After.DYNAMO,
            "inductor",
            dynamic=backend.dynamic,  # type: ignore[union-attr]
            options=arguments(backend.config),  # type: ignore[union-attr]
        )
    if torch_compat.is_named_backend(backend):
        inner: Any = backend
        return describe_backend(_registered(inner), inner.kwargs, inner.dynamic)
    return schema.Compiler(
        After.DYNAMO,
        backend if isinstance(backend, str) else path_of(backend),
        mode=mode if isinstance(mode, str) else None,
        dynamic=dynamic,
        options=arguments(options) if isinstance(options, Mapping) else (),
    )


def _registered(wrapper: Any) -> str | Callable[..., Any]:
    """What the user named: a name that torch knows, or the function itself."""
    try:
        known = torch_compat.find_backend(wrapper.compiler_name)
    except Exception:  # noqa: BLE001 - any kind of "no"
        known = None
    if known is not None and known == wrapper.compiler_fn:
        return str(wrapper.compiler_name)
    function: Callable[..., Any] = wrapper.compiler_fn
    return function


def describe_compiler(compiler: Callable[..., Any]) -> schema.Compiler:
    """A compiler of graphs after AOT."""
    path = path_of(compiler)
    return schema.Compiler(After.AOT, "inductor" if path == torch_compat.INDUCTOR_COMPILER else path)


def path_of(function: Callable[..., Any]) -> str:
    """Where a function can be imported from; if it cannot, still what it is called."""
    for _ in range(_DEEPEST):
        if isinstance(function, functools.partial):
            function = function.func
        else:
            inside = getattr(function, "__dict__", {})
            function = inside.get("__wrapped__", inside.get("compiler_fn", torch_compat.inner_compiler(function)))
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "?"
    return f"{_main() if module == '__main__' else module}.{named.__qualname__}"


def _main() -> str:
    """What the program that was started is called when it is imported."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return os.path.splitext(os.path.basename(file))[0] if file else "__main__"

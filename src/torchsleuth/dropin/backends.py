"""Which backend a script is to use: by its name, by an import, or by its source.

chosen = Chosen.of(backend)
chosen.before       lines that a script needs before it
chosen.source       the expression that is the backend
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torchsleuth import torch_compat
from torchsleuth.capture.naming import describe_backend
from torchsleuth.case import schema
from torchsleuth.case.graphs.code import describe_function
from torchsleuth.case.script.code import defined_by, missing_from, write_code
from torchsleuth.case.script.layout import Page, tidy
from torchsleuth.errors import SleuthError


@dataclass(frozen=True)
class Chosen:
    """A backend as a script says it."""

    source: str
    before: str = ""
    name: str | None = None
    """What other processes can find it by: a name that torch knows, or `module.function`."""

    @classmethod
    def of(cls, backend: str | Callable[..., Any] | None) -> Chosen:
        """The backend that torch.compile was given, or one of torch's wrappers around it."""
        if backend is None or isinstance(backend, str):
            return cls(repr(backend), name=backend)
        described = describe_backend(backend, {}, None)
        if _is_registered(described.backend):
            return cls(repr(described.backend), name=described.backend)
        return _of_function(_function_in(backend), described)


def _is_registered(name: str) -> bool:
    if "." in name:
        return False
    try:
        torch_compat.find_backend(name)
    except Exception:  # noqa: BLE001 - any kind of "no"
        return False
    return True


def _function_in(backend: Callable[..., Any]) -> Callable[..., Any]:
    return backend.compiler_fn if torch_compat.is_named_backend(backend) else backend  # type: ignore[attr-defined]


def _of_function(function: Callable[..., Any], described: schema.Compiler) -> Chosen:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and name and module != "__main__" and _found(module, name) is function:
        path = f"{module}.{name}"
        return Chosen(path, f"import {module}\n", path)
    why = "its source is not there"
    try:
        if not inspect.isfunction(function):
            raise KeyError("it is no plain function, and belongs to an object")
        code = describe_function(function)
        imports = {name: _import_of(name, function) for name in sorted(missing_from(code))}
        lost = [name for name, said in imports.items() if said is None]
        if code.source is not None and not lost:
            page = Page()
            write_code(page, (code,), imports.keys())
            return Chosen(defined_by((code,))[code.name], "\n".join([*filter(None, imports.values()), str(page)]))
        why = f"it needs {', '.join(lost)}" if lost else why
    except (SleuthError, KeyError) as error:
        why = str(error.args[0] if error.args else error)
    said = f"the backend {described.backend} could not be brought along: {why}. Import it, and put it in place of None"
    return Chosen("None", f"# {tidy(said)}\n")


def _import_of(name: str, user: Callable[..., Any]) -> str | None:
    """What brings a name into a script that a function of the user's refers to; None if nothing does."""
    value = getattr(user, "__globals__", {}).get(name)
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and own and module != "__main__" and _found(module, own) is value:
        return f"import {module}\n{name} = {module}.{own}"
    return None


def _found(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None

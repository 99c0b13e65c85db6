"""Code that is not torch's own, for those who trust it: defined from its source in the case, or imported by name."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.script.code import defined_by, write_code
from torchsleuth.case.script.layout import Page
from torchsleuth.errors import CannotHold, in_words


def define(codes: Iterable[schema.Code]) -> dict[str, Callable[..., Any]]:
    """Run what a case has of the user's own code. Returns its functions, by what graphs call them.

    Operators are registered with torch by that; one that is there already stays as it is.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for code in codes:
        if code.kind in ("python op", "library") and _is_registered(code.name):
            continue
        names = _execute(code)
        if code.kind == "function":
            defined = defined_by((code,))
            functions[code.name] = names[defined[code.name]] if code.name in defined else find(code.name)
    return functions


def find(path: str) -> Callable[..., Any]:
    """What `module.function` or `module:function` names. Imports the module."""
    plain = path.replace(":", ".")
    parts = plain.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
                continue
            raise _cannot(path, in_words(error)) from error
        except Exception as error:  # whatever somebody's module does while it is imported
            raise _cannot(path, in_words(error)) from error
        try:
            for name in parts[length:]:
                found = getattr(found, name)
        except AttributeError as error:
            raise _cannot(path, in_words(error)) from error
        if not callable(found):
            raise _cannot(path, f"it is no function but {type(found).__name__}")
        return found  # type: ignore[no-any-return]
    raise _cannot(path, f"there is no module {parts[0]}")


def _cannot(path: str, cause: str) -> CannotHold:
    return CannotHold(
        f"{path} cannot be imported",
        cause=cause,
        remedy="see to it that its package is installed, or on PYTHONPATH",
    )


def _is_registered(name: str) -> bool:
    namespace, _, op = name.partition("::")
    return torch_compat.find_operator(namespace, op, None) is not None


def _execute(code: schema.Code) -> dict[str, Any]:
    """The names that the code defines."""
    page = Page()
    write_code(page, (code,))
    text = str(page)
    file = f"<{code.kind} {code.name}>"
    # Triton reads the source of its kernels.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch, "__name__": "torchsleuth case"}
    try:
        exec(compile(text, file, "exec"), names)
    except SystemExit as error:  # the script's way to say what is missing
        raise _undefined(code, str(error)) from error
    except Exception as error:
        raise _undefined(code, in_words(error)) from error
    return names


def _undefined(code: schema.Code, cause: str) -> CannotHold:
    return CannotHold(
        f"the {code.kind} {code.name} cannot be defined here",
        cause=cause,
        remedy="install or import what defines it",
    )

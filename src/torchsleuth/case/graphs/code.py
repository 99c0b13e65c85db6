"""Code of the user's own that a graph calls: custom operators and Triton kernels, found and described.

A case never runs any of it. It says what there is, where it came from, and, where Python has the source, the source,
so that a script can define it again or ask for it by name.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs import targets
from torchsleuth.case.graphs.meta import is_noticed
from torchsleuth.case.plain import encode_plain, printable


def find_code(gm: fx.GraphModule) -> tuple[schema.Code, ...]:
    """Everything of the user's own that the graph, or a graph inside it, calls. Each thing once, in order."""
    found: dict[tuple[str, str], schema.Code] = {}
    for node in _all_nodes(gm):
        for code in _called_by(node):
            found.setdefault((code.kind, code.name), code)
    return tuple(found.values())


def _all_nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _called_by(node: fx.Node) -> Iterator[schema.Code]:
    for called in (node.target, *node.args, *node.kwargs.values()):
        path = torch_compat.operator_path(called)
        if path is not None and targets.is_custom(path):
            yield _custom_op(path)
    if node.op == "call_function" and targets.is_unknown(name := targets.target_name(node.target)):
        yield describe_function(node.target, name)  # type: ignore[arg-type]
    number = node.kwargs.get("kernel_idx")
    if "triton_kernel_wrapper" in str(node.target) and isinstance(number, int):
        yield _triton_kernel(number)


def describe_function(function: Callable[..., Any], name: str | None = None) -> schema.Code:
    """A function of the user's own: where it is from, its source, and what that refers to. `name`: what it is called
    in a graph."""
    module, file, line, source = _described(function)
    return schema.Code(
        "function",
        targets.target_name(function) if name is None else name,
        module=module,
        file=file,
        line=line,
        source=source,
        constants=tuple(_helpers(function)),
    )


# ---- custom operators ------------------------------------------------------------------------------------


def _custom_op(path: str) -> schema.Code:
    name = "::".join(path.split(".")[2:4])
    defined = torch_compat.custom_op_definition(name)
    if defined is None:
        libraries = sorted(str(library) for library in torch.ops.loaded_libraries)
        return schema.Code("library", name, file=printable(libraries[0]) if len(libraries) == 1 else None)
    module, file, line, source = _described(defined.function)
    return schema.Code(
        "python op",
        name,
        module=module,
        file=file,
        line=line,
        source=source,
        constants=_parts(defined),
    )


def _parts(defined: torch_compat.CustomOp) -> tuple[schema.Entry, ...]:
    """The sources of what is registered for the operator, and whatever all of them refer to."""
    found: dict[str, schema.Entry] = {}
    for function in (defined.function, *defined.parts.values()):
        found.update((entry.name, entry) for entry in _helpers(function))
    sources = {part: _described(function)[3] for part, function in sorted(defined.parts.items())}
    found.update((part, schema.Entry(part, source)) for part, source in sources.items() if source is not None)
    return tuple(found.values())


def _described(function: Callable[..., Any]) -> tuple[str | None, str | None, int | None, str | None]:
    """Module, file, line and source of a function, as far as Python can tell."""
    module = getattr(function, "__module__", None)
    try:
        file = inspect.getsourcefile(function)
        lines, line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return module, None, None, None
    return module, None if file is None else printable(os.path.basename(file)), line, textwrap.dedent("".join(lines))


# ---- Triton kernels --------------------------------------------------------------------------------------


def _triton_kernel(number: int) -> schema.Code:
    kernel = torch_compat.triton_kernel(number)
    function = getattr(kernel, "fn", kernel)
    while hasattr(function, "fn"):  # an autotuner around a kernel around a function
        function = function.fn
    module, file, line, source = _described(function)
    source = source or getattr(kernel, "src", None)
    return schema.Code(
        "triton kernel",
        getattr(function, "__name__", f"kernel_{number}"),
        module=module,
        file=file,
        line=line,
        source=source,
        index=number,
        constants=tuple(_helpers(function)),
    )


def _helpers(function: Any, seen: frozenset[str] = frozenset()) -> Iterator[schema.Entry]:
    """What a source refers to by name: other functions of the user's by their source, constants by their value."""
    for name in dict.fromkeys(_names_in(getattr(function, "__code__", None))):
        value = getattr(function, "__globals__", {}).get(name)
        if value is None or name in seen or inspect.ismodule(value):
            continue
        if isinstance(value, type) and value.__module__ == getattr(function, "__module__", None):
            source = _described(value)[3]
            if source is not None:
                yield schema.Entry(name, source)
            continue
        inner = _function_in(value, function)
        if inner is not None and (source := _described(inner)[3]) is not None:
            yield from _helpers(inner, seen | {name})
            yield schema.Entry(name, source)
        elif inner is None and not is_noticed(written := encode_plain(getattr(value, "value", value))):
            yield schema.Entry(name, written)


def _names_in(code: Any) -> Iterator[str]:
    """The names that code refers to, and those that functions inside it do."""
    yield from getattr(code, "co_names", ())
    for constant in getattr(code, "co_consts", ()):
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _function_in(value: Any, user: Any) -> Any:
    """The Python function in a kernel, or a function of the same module as its user; None if it is neither."""
    inner = getattr(value, "fn", value)
    return inner if inspect.isfunction(inner) and inner.__module__ == getattr(user, "__module__", None) else None

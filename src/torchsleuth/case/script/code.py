"""The user's own code in a script: the source of custom operators and Triton kernels, or the import that brings them.

Source is written as it was found, with a comment on where that was. What it refers to by name is written before it,
as far as the case knows; well-known names are imported. Nothing of it is looked at more closely than parsing it, and
nothing is run here: a script with code in it is run only for those who trust the case.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Set
from typing import Final

from torchsleuth.case import names, schema
from torchsleuth.case.script.graphs import can_be_said, plain_name
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.source import text_source, value_source
from torchsleuth.errors import CannotHold

_WELL_KNOWN: Final = {
    "Tensor": "from torch import Tensor",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "custom_op": "from torch.library import custom_op",
    "library": "from torch import library",
    "np": "import numpy as np",
    "math": "import math",
    "triton": "import triton",
    "tl": "import triton.language as tl",
    "functools": "import functools",
    **{name: f"from typing import {name}" for name in ("Any", "List", "Optional", "Sequence", "Tuple", "Union")},
}


def write_code(page: Page, codes: tuple[schema.Code, ...], brought: Set[str] = frozenset()) -> None:
    """Everything that has to be there before the graph can call it. `brought`: names that are there already."""
    written: set[str] = set()
    for code in codes:
        page.blank(2)
        page.comment(f"{code.kind} {code.name}{_where(code)}")
        if code.kind == "library":
            _write_library(page, code)
        elif code.source is None:
            _write_import(page, code)
        else:
            _write_source(page, code, written, brought)
        if code.kind == "triton kernel":
            _write_index(page, code)


def defined_by(codes: tuple[schema.Code, ...]) -> dict[str, str]:
    """The functions that the source in a case defines: their names in its graphs, and the names they have there."""
    return {
        code.name: _defined(code.source, code)
        for code in codes
        if code.kind == "function" and code.source is not None and not _is_imported(code)
    }


def missing_from(code: schema.Code) -> set[str]:
    """The names that the source of a piece of code refers to, and that nothing in the case explains."""
    return _looked_through(code)[2] - _WELL_KNOWN.keys()


def _where(code: schema.Code) -> str:
    place = code.file or code.module
    if not place:
        return ""
    return f", from {place}" + (f":{code.line}" if code.line is not None else "")


def _write_library(page: Page, code: schema.Code) -> None:
    if code.file is not None:
        page.line(f"torch.ops.load_library({text_source(code.file)})")
    elif code.module is not None:
        _write_import(page, code)
    namespace, _, name = code.name.partition("::")
    if not plain_name(namespace) or not plain_name(name):
        raise _no_name(code)
    with page.block(f"if not hasattr(torch.ops.{namespace}, {text_source(name)}):"):
        words = f"{code.name} is not registered: import or load here what defines it"
        page.line(f"raise SystemExit({text_source(words)})")


def _write_import(page: Page, code: schema.Code) -> None:
    if not _can_be_imported(code):
        words = f"{code.name}: its source was not found; define it here"
        page.line(f"raise SystemExit({text_source(words)})")
        return
    page.line(f"import {code.module}")
    if code.kind == "triton kernel":
        if not plain_name(code.name):
            raise _no_name(code)
        page.line(f"{code.name} = {code.module}.{code.name}")


def _write_source(page: Page, code: schema.Code, written: set[str], brought: Set[str]) -> None:
    assert code.source is not None
    parts, known, free = _looked_through(code)
    missing = sorted(free - _WELL_KNOWN.keys() - brought)
    if _is_imported(code):
        page.comment(f"its source needs what is not in the case ({', '.join(missing)}), so it is imported")
        _write_import(page, code)
        return
    if missing:
        page.comment(f"not in the case, define it here: {', '.join(missing)}")
    for name in sorted(free & _WELL_KNOWN.keys() - written):
        page.line(_WELL_KNOWN[name])
        written.add(name)
    for entry in code.constants:
        if entry.name in known and plain_name(entry.name):
            page.line(f"{entry.name} = {value_source(entry.value)}")
    for text in [code.source, *parts.values()] if code.kind == "python op" else [*parts.values(), code.source]:
        page.blank(2)
        page.text(_parsed(text, code))
    if code.kind == "python op":
        page.blank(2)
        _write_registrations(page, code, parts)


def _looked_through(code: schema.Code) -> tuple[dict[str, str], set[str], set[str]]:
    """The sources that belong to it, the names of constants that are known, and the names that are left."""
    parts = {entry.name: str(entry.value) for entry in code.constants if _is_source(entry.value)}
    known = {entry.name for entry in code.constants if entry.name not in parts and can_be_said(entry.value)}
    return parts, known, _free_names([code.source or "", *parts.values()]) - known


def _is_imported(code: schema.Code) -> bool:
    """Whether its source is of no use by itself, and there is something to import instead."""
    return _can_be_imported(code) and not _looked_through(code)[2] <= _WELL_KNOWN.keys()


def _write_registrations(page: Page, code: schema.Code, parts: dict[str, str]) -> None:
    """What makes functions an operator, where decorators in the source do not."""
    assert code.source is not None
    op = _defined(code.source, code)
    if "custom_op" not in code.source:
        mutates = "()" if "backward" in parts else '"unknown"'  # what has a gradient changes nothing
        page.line(f"{op} = torch.library.custom_op({text_source(code.name)}, {op}, mutates_args={mutates})")
    for part, register in (("fake", "register_fake"), ("vmap", "register_vmap")):
        if part in parts and register not in parts[part]:
            page.line(f"{op}.{register}({_defined(parts[part], code)})")
    if "backward" in parts:
        context = _defined(parts["setup_context"], code) if "setup_context" in parts else "None"
        page.line(f"{op}.register_autograd({_defined(parts['backward'], code)}, setup_context={context})")


def _defined(text: str, code: schema.Code) -> str:
    """The name of the function that the text defines last."""
    defined = _definitions(ast.parse(_parsed(text, code)))
    if not defined:
        raise _no_name(code)
    return defined[-1]


def _definitions(tree: ast.Module) -> list[str]:
    return [one.name for one in tree.body if isinstance(one, (ast.FunctionDef, ast.ClassDef))]


def _can_be_imported(code: schema.Code) -> bool:
    return code.module is not None and code.module != "__main__" and names.is_path(code.module)


def _is_source(value: schema.Value) -> bool:
    if not isinstance(value, str) or "\n" not in value:
        return False
    if "class " not in value or "def " in value or "lambda" in value:
        return "def " in value or "lambda" in value
    try:
        return any(isinstance(one, ast.ClassDef) for one in ast.parse(value).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _parsed(text: str, code: schema.Code) -> str:
    """The text, if it is Python: a script always parses."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotHold(
            f"the source of {code.name} is not Python by itself",
            cause=f"{type(error).__name__}: {error}",
            remedy="define the operator or kernel in a module of its own, and capture the failure again",
        ) from error
    return text


def _free_names(texts: Iterable[str]) -> set[str]:
    """Names that are used and not defined anywhere in the texts."""
    used: set[str] = set()
    made: set[str] = {"torch", *dir(builtins)}
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # `_parsed` says so
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used.add(name)
                case ast.Name(id=name) | ast.arg(arg=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    made.add(name)
                case ast.alias(name=name, asname=other):
                    made.add(other or name.partition(".")[0])
    return used - made


def _write_index(page: Page, code: schema.Code) -> None:
    """Graphs call kernels by number: give this one its own."""
    if code.index is None:
        return
    if not plain_name(code.name):
        raise _no_name(code)
    page.blank(1)
    page.line("from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table")
    page.blank(1)
    page.line(f"kernel_side_table.id_to_kernel[{code.index}] = {code.name}")
    page.line(f"kernel_side_table.kernel_to_id[{code.name}] = {code.index}")


def _no_name(code: schema.Code) -> CannotHold:
    return CannotHold(
        f"{code.name[:80]!r} is no name that a script could use",
        cause="it has to be a name of Python",
        remedy="the case was not written by torchsleuth, or was changed since: capture the failure again",
    )

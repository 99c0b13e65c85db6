"""What a node produces, in a few characters for people: `f32[8, s77]`, and the user's line that it comes from."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.schema import Term, Value
from torchsleuth.case.script.source import term_source

_SHORT: Final = {"bool": "b8", "bfloat16": "bf16", "uint8": "u8", "complex64": "c64", "complex128": "c128"}
_OF_TORCH = re.compile(r"site-packages[/\\]torch[/\\]")
_FILE = re.compile(r'\s*File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?')


def shape_of(value: Value) -> str:
    """The kind of value in short; empty if nothing is known of it."""
    match value:
        case schema.Fake() | schema.Tensor():
            return _tensor(value)
        case schema.Symbolic(expr=expr):
            return term_source(expr)
        case schema.List(items) | schema.Tuple(items):
            inside = ", ".join(shape_of(item) or "None" for item in items)
            return f"({inside})"
        case None | schema.Graph() | schema.Noticed():
            return ""
        case bool() | int() | float():
            return repr(value)
    return type(value).__name__.lower()


def short_dtype(dtype: str) -> str:
    """The name of a dtype as compilers abbreviate it: `f32`, `i64`, `b8`."""
    if dtype in _SHORT:
        return _SHORT[dtype]
    return re.sub(r"^(u?)(float|int)", lambda name: f"{name[1]}{name[2][0]}", dtype)


def _tensor(value: schema.Fake | schema.Tensor) -> str:
    size = ", ".join(map(term_source, value.size))
    stride = "" if _is_contiguous(value.size, value.stride) else f"[{', '.join(map(term_source, value.stride))}]"
    device = "" if value.device == "cpu" else f" {value.device}"
    layout = "" if value.layout == "strided" else f" {value.layout}"
    return f"{short_dtype(value.dtype)}[{size}]{stride}{device}{layout}"


def _is_contiguous(size: tuple[Term, ...], stride: tuple[Term, ...]) -> bool:
    """Whether the strides are the ordinary ones; True where they are symbolic and nobody can tell at a glance."""
    if not stride or not all(type(number) is int for number in (*size, *stride)):
        return True
    numbers = [int(number) for number in size if isinstance(number, int)]
    if 0 in numbers:
        return True
    expected = [math.prod(numbers[i + 1 :]) for i in range(len(numbers))]
    pairs = zip(numbers, stride, expected, strict=False)
    return all(length == 1 or found == wanted for length, found, wanted in pairs)


def line_of(stack_trace: str | None) -> str:
    """The user's line that a node comes from: `model.py:12, in forward: y = F.relu(x)`; empty if there is none.

    That is the innermost line which is not in torch itself.
    """
    if not stack_trace:
        return ""
    found = None
    code = ""
    lines = stack_trace.splitlines()
    for number, line in enumerate(lines):
        if (match := _FILE.match(line)) and not (found and _OF_TORCH.search(match["file"])):
            found = match
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
    if found is None:
        return ""
    function, _, beside = (found["function"] or "").partition(", code:")
    where = f"{base_name(found['file'])}:{found['line']}" + (f", in {function.strip()}" if function else "")
    code = beside.strip() or code
    return f"{where}: {code}" if code else where


def base_name(file: str) -> str:
    """The name of a file without its folders, which are nobody else's business."""
    path = PureWindowsPath(file) if "\\" in file else PurePosixPath(file)
    return path.name or file

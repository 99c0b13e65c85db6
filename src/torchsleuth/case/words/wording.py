"""Values of a case as short words for people: `f32[8, s77]`, `4*s77`, `'a long te…'`. Knows no torch.

This is for reading: long things are cut, and nothing here parses (`source` writes Python). Whatever a case holds, what
comes out is one line that does nothing to a terminal: no control characters, no text that runs backwards.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from torchsleuth.case import schema
from torchsleuth.case.schema import Apply, Term, Value

_SHORT_DTYPES: Final = {
    "bool": "b8",
    "bfloat16": "bf16",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
}
_NUMBERED = re.compile(r"(float|int|uint)(\d+)(.*)")
_UNSEEMLY = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_INFIX: Final = {
    "Add": (" + ", 1),
    "Mul": ("*", 2),
    "FloorDiv": ("//", 2),
    "Mod": (" % ", 2),
    "PythonMod": (" % ", 2),
    "Pow": ("**", 3),
    "PowByNatural": ("**", 3),
    "Eq": (" == ", 0),
    "Ne": (" != ", 0),
    "Lt": (" < ", 0),
    "Le": (" <= ", 0),
    "Gt": (" > ", 0),
    "Ge": (" >= ", 0),
    "And": (" and ", 0),
    "Or": (" or ", 0),
}
_CONSTANTS: Final = {"oo": "∞", "int_oo": "∞", "-oo": "-∞", "-int_oo": "-∞"}
_DEEPEST = 12
_MOST_ITEMS = 16
_LONGEST = 60


def clean(text: str) -> str:
    """The text with every character spelled out that a terminal would act on. Line ends and tabs are left."""
    return _UNSEEMLY.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def one_line(text: str, longest: int = 0) -> str:
    """The text on one line, cut if `longest` is given."""
    line = clean(text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", " "))
    return line if not longest or len(line) <= longest else f"{line[: longest - 1]}…"


# ---- types and sizes -------------------------------------------------------------------------------------


def dtype_words(name: str) -> str:
    """`float32` → `f32`, `float8_e4m3fn` → `f8e4m3fn`."""
    if name in _SHORT_DTYPES:
        return _SHORT_DTYPES[name]
    match = _NUMBERED.fullmatch(name)
    return one_line(f"{match[1][0]}{match[2]}{match[3].replace('_', '')}" if match else name, _LONGEST)


def size_words(size: Iterable[Term]) -> str:
    return f"[{', '.join(map(term_words, size))}]"


def tensor_words(tensor: schema.Fake | schema.Tensor) -> str:
    """`f32[8, s77]`; with strides if they are not the usual ones, with the device if it is not the CPU."""
    words = dtype_words(tensor.dtype) + size_words(tensor.size)
    if tensor.layout != "strided":
        words += f" {one_line(tensor.layout, _LONGEST)}"
    elif not is_contiguous(tensor):
        words += size_words(tensor.stride)
    return words if tensor.device == "cpu" else f"{words} {one_line(tensor.device, _LONGEST)}"


def is_contiguous(tensor: schema.Fake | schema.Tensor) -> bool:
    """Whether the strides are those of a dense tensor in order; sizes that are symbols are taken for that."""
    if len(tensor.stride) != len(tensor.size) or 0 in tensor.size:
        return True
    expected = 1
    for size, stride in zip(reversed(tensor.size), reversed(tensor.stride), strict=True):
        if not isinstance(stride, int):
            return True
        if size != 1 and stride != expected:
            return False
        if not isinstance(size, int):
            return True
        expected *= size
    return True


def type_words(value: Value) -> str:
    """What a node is known to produce: `f32[8, 4]`, `(f32[8], i64[])`, `Sym(4*s77)`. Nothing known: nothing said."""
    return _type_words(value, 0)


def _type_words(value: Value, depth: int) -> str:
    match value:
        case schema.Fake() | schema.Tensor():
            return tensor_words(value)
        case schema.Symbolic(_, expr):
            return f"Sym({term_words(expr)})"
        case schema.Tuple(items) | schema.List(items) | schema.Size(items):
            inner = "…" if depth > _DEEPEST else _joined(items, lambda item: _type_words(item, depth + 1))
            return f"[{inner}]" if isinstance(value, schema.List) else f"({inner}{',' if len(items) == 1 else ''})"
        case None:
            return "" if depth == 0 else "None"
        case bool() | int() | float() | str():
            return type(value).__name__
        case schema.Noticed(kind):
            return one_line(kind, _LONGEST)
        case _:
            return type(value).__name__.lower().rstrip("_")


# ---- expressions -----------------------------------------------------------------------------------------


def term_words(term: Term) -> str:
    """`4*s77`, `Mod(s77, 8)`, `∞`. Long ones are cut."""
    return one_line(_term(term, 0, 0), 2 * _LONGEST)


def _term(term: Term, outside: int, depth: int) -> str:
    if not isinstance(term, Apply):
        return str(term) if not isinstance(term, int) else _int_words(term)
    if term.op in _CONSTANTS:
        return _CONSTANTS[term.op]
    if depth > _DEEPEST:
        return "…"
    if term.op in _INFIX and len(term.args) > 1:
        sign, rank = _INFIX[term.op]
        joined = sign.join(_term(arg, rank + 1, depth + 1) for arg in term.args[:_MOST_ITEMS])
        joined += f"{sign}…" if len(term.args) > _MOST_ITEMS else ""
        return f"({joined})" if rank < outside else joined
    return f"{term.op}({', '.join(_term(arg, 0, depth + 1) for arg in term.args[:_MOST_ITEMS])})"


# ---- values ----------------------------------------------------------------------------------------------


def value_words(value: Value, target: Callable[[str], str] = lambda name: name) -> str:
    """The value, short: a reference is its node's name, a string is quoted and cut, a tensor is its type."""
    return _Words(target).value(value, 0)


class _Words:
    def __init__(self, target: Callable[[str], str]) -> None:
        self._target = target

    def value(self, value: Value, depth: int) -> str:
        if depth > _DEEPEST:
            return "…"
        match value:
            case None | bool():
                return str(value)
            case int():
                return _int_words(value)
            case float():
                return repr(value)
            case str():
                return _quoted(value)
            case schema.Ref(name):
                return one_line(name, 2 * _LONGEST)
            case schema.List(items):
                return f"[{self._joined(items, depth)}]"
            case schema.Size(items):
                return f"Size([{self._joined(items, depth)}])"
            case schema.Tuple(items):
                return f"({self._joined(items, depth)}{',' if len(items) == 1 else ''})"
            case schema.Dict(items):
                pairs = _joined(items, lambda item: ": ".join(self.value(part, depth + 1) for part in item))
                return f"{{{pairs}}}"
            case schema.Set(items):
                return f"{{{self._joined(items, depth)}}}" if items else "set()"
            case schema.Slice(start, stop, step):
                ends = ":".join("" if end is None else self.value(end, depth + 1) for end in (start, stop))
                return ends if step is None else f"{ends}:{self.value(step, depth + 1)}"
            case schema.Range(start, stop, step):
                return f"range({self._joined((start, stop, step), depth)})"
        return self._scalar(value, depth)

    def _scalar(self, value: Value, depth: int) -> str:
        match value:
            case schema.Ellipsis_():
                return "..."
            case schema.Float(bits):
                return _bits_words(bits)
            case schema.Complex(real, imag):
                return f"complex({self._joined((real, imag), depth)})"
            case schema.Text():
                return "'… (not printable)'"
            case schema.Bytes(data):
                return f"<{len(data):,} bytes>"
            case schema.Torch(name) | schema.Function(name):
                return one_line(self._target(name), _LONGEST)
            case schema.Device(kind, index):
                return one_line(kind if index is None else f"{kind}:{index}", _LONGEST)
            case schema.Generator(device):
                return f"<generator of {one_line(device, _LONGEST)}>"
            case schema.Symbolic(_, expr):
                return term_words(expr)
            case schema.Fake() | schema.Tensor():
                return tensor_words(value)
            case schema.Module(kind):
                return f"<{one_line(kind, _LONGEST)}>"
            case schema.Noticed(kind, _, text):
                return _in_angles(text or kind)
            case schema.Graph(nodes):
                return f"<graph of {len(nodes)} nodes>"
        return f"<{type(value).__name__.lower()}>"

    def _joined(self, items: tuple[Value, ...], depth: int) -> str:
        return _joined(items, lambda item: self.value(item, depth + 1))


def _joined(items: Sequence[Any], words: Callable[[Any], str]) -> str:
    shown = [words(item) for item in items[:_MOST_ITEMS]]
    if len(items) > _MOST_ITEMS:
        shown.append(f"… {len(items) - _MOST_ITEMS:,} more")
    return ", ".join(shown)


def _in_angles(text: str) -> str:
    line = one_line(text, _LONGEST)
    return line if line.startswith("<") else f"<{line}>"


def _quoted(text: str) -> str:
    quoted = repr(text[: 2 * _LONGEST])
    return one_line(quoted, _LONGEST) if len(text) <= 2 * _LONGEST else f"{one_line(quoted, _LONGEST - 1)}…"


def _int_words(number: int) -> str:
    return str(number) if number.bit_length() <= 256 else f"<an integer of {number.bit_length():,} bits>"


def _bits_words(bits: str) -> str:
    try:
        (number,) = struct.unpack(">d", bytes.fromhex(bits))
    except (ValueError, struct.error):
        return "<no float>"
    return repr(number)

"""Values of a case as Python source: what `sleuth show` prints and what an exported script is written with.

    value_source(value)     an expression that makes the value: `torch.float32`, `[x, slice(None, 2, None)]`
    target_source(name)     an expression that is the function: `torch.ops.aten.add.Tensor`
    term_source(term)       an expression over symbolic sizes, in sympy's words: `4 * s77 + 1`
    text_source(text)       a string, quoted as the formatter would quote it

Whatever is in a case, the result parses, and holds no code of the case's making: strings go through `repr`, names
are checked to be names. A reference to another node is that node's name, a tensor is a call of `view`, and so on;
who writes a whole script says otherwise by giving its own `Spelling`.
"""

from __future__ import annotations

import base64
import keyword
import math
import struct
from collections.abc import Iterable
from typing import Final

from torchsleuth.case import names, schema
from torchsleuth.case.format.terms import OPERATIONS
from torchsleuth.case.schema import Apply, Term, Value
from torchsleuth.errors import BadCase


def value_source(value: Value) -> str:
    """A Python expression that makes the value. A `Ref` is its node's name."""
    return Spelling().value(value)


def term_source(term: Term) -> str:
    """The expression in Python, with the operators that sympy's symbols understand: `4 * s77`, `Mod(s77, 8)`."""
    return _term(term, 0)


def text_source(text: str) -> str:
    """The string as a literal: in double quotes, unless single ones need fewer escapes."""
    body = repr(text + '"')[1:-1]  # repr chooses single quotes whenever there is a double one, and so escapes these
    body = body[:-1].replace("\\'", "'")
    if body.count('"') > body.count("'"):
        return "'" + body.replace("'", "\\'") + "'"
    return '"' + body.replace('"', '\\"') + '"'


def float_source(number: float) -> str:
    """An expression for exactly this float: every bit of a NaN, the sign of a zero."""
    if math.isfinite(number):
        return repr(number)
    if math.isinf(number):
        return 'float("inf")' if number > 0 else 'float("-inf")'
    bits = struct.pack(">d", number).hex()
    if bits == "7ff8000000000000":
        return 'float("nan")'
    return f'struct.unpack(">d", bytes.fromhex("{bits}"))[0]'


def target_source(name: str) -> str:
    """An expression for a function by its name; modules are expected to be imported."""
    if not names.is_path(name):
        raise _bad_name(name, "a function or operator")
    parts = name.split(".")
    source = parts[0]
    for part in parts[1:]:
        source = f'getattr({source}, "{part}")' if keyword.iskeyword(part) else f"{source}.{part}"
    return source


def device_source(device: schema.Device | str) -> str:
    if isinstance(device, str):
        return f"torch.device({text_source(device)})"
    where = device.type if device.index is None else f"{device.type}:{device.index}"
    return f"torch.device({text_source(where)})"


def torch_source(name: str) -> str:
    """One of torch's constants by its name: "float32" is `torch.float32`."""
    if name not in names.CONSTANTS:
        raise _bad_name(name, "a constant of torch")
    return f"torch.{name}"


def items_source(items: Iterable[str], brackets: str) -> str:
    """A list or tuple of expressions; a tuple of one has its comma."""
    inner = list(items)
    comma = "," if brackets == "()" and len(inner) == 1 else ""
    return f"{brackets[0]}{', '.join(inner)}{comma}{brackets[1]}"


def call_source(function: str, *args: str, **kwargs: str | None) -> str:
    """A call; keywords whose value is None are left out."""
    named = (f"{key}={value}" for key, value in kwargs.items() if value is not None)
    return f"{function}({', '.join((*args, *named))})"


class Spelling:
    """How each kind of value is written. A script overrides what it has a shorter word for."""

    def value(self, value: Value) -> str:
        match value:
            case None | bool() | int():
                return repr(value)
            case float():
                return float_source(value)
            case str():
                return text_source(value)
        return self.record(value)

    def record(self, value: Value) -> str:
        match value:
            case schema.Ref(name):
                return self.ref(name)
            case schema.List(items):
                return self.sequence(items, "[]")
            case schema.Tuple(items):
                return self.sequence(items, "()")
            case schema.Size(items):
                return f"torch.Size({self.sequence(items, '[]')})"
            case schema.Dict(items):
                pairs = (f"{self.value(key)}: {self.value(item)}" for key, item in items)
                return "{" + ", ".join(pairs) + "}"
            case schema.Set():
                return self.set(value)
            case schema.Slice(start, stop, step):
                return f"slice({', '.join(map(self.value, (start, stop, step)))})"
            case schema.Range(start, stop, step):
                return f"range({', '.join(map(self.value, (start, stop, step)))})"
            case schema.Ellipsis_():
                return "..."
        return self.scalar(value)

    def scalar(self, value: Value) -> str:
        match value:
            case schema.Float(bits):
                return float_source(_float_of(bits))
            case schema.Complex(real, imag):
                return f"complex({self.value(real)}, {self.value(imag)})"
            case schema.Text(utf16):
                return text_source(_text_of(utf16))
            case schema.Bytes(data):
                return repr(data)
            case schema.Torch(name):
                return torch_source(name)
            case schema.Device():
                return device_source(value)
            case schema.Function(name):
                return self.function(name)
            case schema.Generator(device, state):
                return f'generator({text_source(device)}, "{base64.b64encode(state).decode()}")'
        return self.object(value)

    def object(self, value: Value) -> str:
        match value:
            case schema.Symbolic():
                return self.symbolic(value)
            case schema.Fake():
                return self.fake(value)
            case schema.Tensor():
                return self.tensor(value)
            case schema.Noticed():
                return self.noticed(value)
            case schema.Graph():
                return self.graph(value)
            case schema.Module():
                return self.module(value)
        raise TypeError(f"{type(value).__name__} is not a value of a case")

    def sequence(self, items: Iterable[Value], brackets: str) -> str:
        return items_source(map(self.value, items), brackets)

    def set(self, value: schema.Set) -> str:
        inside = ", ".join(map(self.value, value.items))
        if value.frozen:
            return f"frozenset({{{inside}}})" if inside else "frozenset()"
        return f"{{{inside}}}" if inside else "set()"

    def ref(self, name: str) -> str:
        return name

    def function(self, name: str) -> str:
        return target_source(name)

    def symbolic(self, value: schema.Symbolic) -> str:
        return term_source(value.expr)

    def fake(self, value: schema.Fake) -> str:
        size = items_source(map(term_source, value.size), "()")
        return call_source(
            "fake",
            torch_source(value.dtype),
            size,
            *([items_source(map(term_source, value.stride), "()")] if value.stride else []),
            offset=term_source(value.offset) if value.offset != 0 else None,
            device=text_source(value.device) if value.device != "cpu" else None,
            layout=torch_source(value.layout) if value.layout != "strided" else None,
            requires_grad="True" if value.requires_grad else None,
            parameter="True" if value.parameter else None,
            conj="True" if value.conj else None,
            neg="True" if value.neg else None,
            memory=repr(value.memory) if value.memory is not None else None,
        )

    def tensor(self, value: schema.Tensor) -> str:
        if value.parts:
            inside = items_source(map(self.tensor, value.parts), "()")
            return call_source(
                "sparse",
                torch_source(value.layout),
                inside,
                repr(value.size),
                coalesced="True" if value.coalesced else None,
                **self.tensor_flags(value),
            )
        return call_source(
            "view",
            "None" if value.storage is None else f"storage_{value.storage}",
            torch_source(value.dtype),
            repr(value.size),
            *([repr(value.stride)] if value.stride else []),
            offset=repr(value.offset) if value.offset else None,
            quantiser=self.quantiser(value.quantiser) if value.quantiser else None,
            **self.tensor_flags(value),
        )

    def tensor_flags(self, value: schema.Tensor) -> dict[str, str | None]:
        """What is said of a tensor by name, where it is not the ordinary."""
        return {
            "device": text_source(value.device) if value.device != "cpu" else None,
            "requires_grad": "True" if value.requires_grad else None,
            "leaf": "False" if not value.leaf else None,
            "parameter": "True" if value.parameter else None,
            "conj": "True" if value.conj else None,
            "neg": "True" if value.neg else None,
        }

    def quantiser(self, value: schema.Quantiser) -> str:
        scales = items_source(map(float_source, value.scales), "()")
        zero_points = items_source(map(float_source, value.zero_points), "()")
        return f"({torch_source(value.scheme)}, {scales}, {zero_points}, {value.axis!r})"

    def noticed(self, value: schema.Noticed) -> str:
        return f"noticed({text_source(value.type)}, {text_source(value.reason)})"

    def module(self, value: schema.Module) -> str:
        return f"torch.nn.{value.type}" if value.type.isidentifier() else f"module({text_source(value.type)})"

    def graph(self, value: schema.Graph) -> str:
        return value.name if value.name.isidentifier() else f"graph({text_source(value.name)})"


# ---- pieces ----------------------------------------------------------------------------------------------


def _bad_name(name: str, kind: str) -> BadCase:
    return BadCase(
        f"{name[:80]!r} is not the name of {kind}",
        cause="a name is made of letters, digits, underscores and dots; anything else would be code of the case's own",
        remedy="the case was not written by torchsleuth, or was changed since: capture the failure again",
    )


def _float_of(bits: str) -> float:
    try:
        (number,) = struct.unpack(">d", bytes.fromhex(bits))
    except (ValueError, struct.error) as error:
        raise BadCase(
            f"{bits[:40]!r} are not the bits of a float",
            cause=str(error),
            remedy="a float is written as 16 hex digits: capture the failure again",
        ) from error
    return float(number)


def _text_of(utf16: str) -> str:
    try:
        return bytes.fromhex(utf16).decode("utf-16-be", "surrogatepass")
    except ValueError as error:
        raise BadCase(
            f"{utf16[:40]!r} is no text in UTF-16",
            cause=str(error),
            remedy="the text is written as the hex digits of UTF-16, high byte first: capture the failure again",
        ) from error


_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = 4, 5, 6, 7, 8
_RELATIONS: Final = {"Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">="}


def _term(term: Term, around: int) -> str:
    """The term, in brackets if what is `around` binds more tightly."""
    if isinstance(term, Apply):
        source, strength = _apply(term)
    elif isinstance(term, str):
        if not term.isidentifier() or keyword.iskeyword(term):
            raise _bad_name(term, "a symbol")
        source, strength = term, _ATOM
    else:
        source = float_source(term) if isinstance(term, float) else repr(term)
        strength = _SIGN if source.startswith("-") else _ATOM
    return f"({source})" if strength < around else source


def _apply(term: Apply) -> tuple[str, int]:
    match term.op, term.args:
        case "Add", (first, *rest) if rest:
            return _term(first, _SUM) + "".join(map(_addend, rest)), _SUM
        case "Mul", (-1, *rest) if rest:
            return "-" + " * ".join(_term(factor, _POWER) for factor in rest), _PRODUCT
        case "Mul", (_, _, *_):
            return " * ".join(_term(factor, _SIGN) for factor in term.args), _PRODUCT
        case "Pow", (base, exponent):
            return f"{_term(base, _ATOM)}**{_term(exponent, _ATOM)}", _POWER
        case relation, (left, right) if relation in _RELATIONS and isinstance(left, (str, Apply)):
            return f"{_term(left, _SUM)} {_RELATIONS[relation]} {_term(right, _SUM)}", 0
        case "Float", (int(mantissa), int(exponent), int(precision)):
            sign = int(mantissa < 0)
            parts = f"({sign}, {abs(mantissa)}, {exponent}, {abs(mantissa).bit_length()})"
            return f"sympy.Float({parts}, precision={precision})", _ATOM
        case "Piecewise", (_, _, *_):
            pairs = zip(term.args[::2], term.args[1::2], strict=False)
            inside = ", ".join(f"({_term(value, 0)}, {_term(condition, 0)})" for value, condition in pairs)
            return f"Piecewise({inside})", _ATOM
    if term.op not in OPERATIONS:
        raise _bad_name(term.op, "an operation")
    if not OPERATIONS[term.op].most and not term.args:
        return term.op, _SIGN if term.op.startswith("-") else _ATOM
    return f"{term.op}({', '.join(_term(arg, 0) for arg in term.args)})", _ATOM


def _addend(term: Term) -> str:
    source = _term(term, _SUM)
    return f" - {source[1:]}" if source.startswith("-") else f" + {source}"


def values_in(value: Value) -> Iterable[Value]:
    """The value and every value inside it, outermost first; a nested graph is not entered."""
    yield value
    inside: Iterable[Value] = ()
    match value:
        case schema.List(items) | schema.Tuple(items) | schema.Size(items) | schema.Set(items):
            inside = items
        case schema.Dict(items):
            inside = (one for pair in items for one in pair)
        case schema.Slice(start, stop, step) | schema.Range(start, stop, step):
            inside = (start, stop, step)
        case schema.Complex(real, imag):
            inside = (real, imag)
        case schema.Tensor(parts=parts, base=base):
            inside = parts if base is None else (base, *parts)
        case schema.Module(_, attributes, parameters, buffers, _, children):
            inside = (entry.value for entry in (*attributes, *parameters, *buffers, *children))
    for one in inside:
        yield from values_in(one)

"""Plain Python values as values of a case: numbers, text, containers, and torch's constants.

    encode_plain(x)     the `Value` that says x; what cannot be said is `Noticed`, in its place
    decode_plain(v)     the object again: same type, same bits

Whoever has values of other types as well (graphs, tensors) gives a function for those, and lets this module do the
containers. Subclasses are not plain: an `IntEnum` is not the int that it looks like.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from torchsleuth.case import names, schema
from torchsleuth.case.schema import Value
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold

if TYPE_CHECKING:
    import torch

DEEPEST: Final = 90
"""How deep containers may be nested. JSON readers give up soon after."""

LARGEST_INT_BITS: Final = 8192
"""Python itself will not read an integer from text that is much longer."""

_LONGEST_TEXT = 200


def encode_plain(x: object, other: Callable[[object], Value] | None = None) -> Value:
    """The value that says x. `other` is asked for everything that is not plain; by default that is `Noticed`."""
    return _Encoder(other or (lambda leaf: notice(leaf, "only plain values can be kept here"))).encode(x, ())


def decode_plain(
    value: Value, other: Callable[[Value], object] | None = None, *, file: str = "", field: str = ""
) -> Any:
    """The object that the value says. `other` is asked for every record that is not plain."""
    return _Decoder(other, file, field).decode(value, 0)


def notice(x: object, reason: str) -> schema.Noticed:
    """A note that something is missing: what it is, why it cannot be held, and what it prints as."""
    kind = type(x)
    return schema.Noticed(type=printable(f"{kind.__module__}.{kind.__qualname__}"), reason=reason, text=_shown(x))


def printable(text: str) -> str:
    """The text with every character that UTF-8 has no bytes for spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def torch_constant(name: str) -> Any:
    """The dtype, layout, memory format or quantisation scheme of that name; None if torch has no such thing."""
    import torch

    return getattr(torch, name, None) if name in names.CONSTANTS else None


def constant_name(x: object) -> str | None:
    """The name of one of torch's constants; None if x is none."""
    import torch

    if not isinstance(x, (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)):
        return None
    name = torch_name(x)
    return name if name in names.CONSTANTS else None


def torch_name(constant: object) -> str:
    """What torch calls one of its constants, without `torch.` before it."""
    return str(constant).removeprefix("torch.")


def encode_device(device: torch.device) -> schema.Device:
    return schema.Device(device.type, device.index)


def encode_float(x: float) -> float | schema.Float:
    return x if math.isfinite(x) else schema.Float(struct.pack(">d", x).hex())


def encode_text(x: str) -> str | schema.Text:
    try:
        x.encode("utf-8")
    except UnicodeEncodeError:
        return schema.Text(x.encode("utf-16-be", "surrogatepass").hex())
    return x


class _Encoder:
    def __init__(self, other: Callable[[object], Value]) -> None:
        self._other = other

    def encode(self, x: object, above: tuple[int, ...]) -> Value:
        kind = type(x)
        if x is None or kind is bool:
            return x  # type: ignore[return-value]
        if kind in _SCALARS:
            return _SCALARS[kind](x)
        if kind in _CONTAINERS or (kind is not tuple and _is_size(x)):
            if id(x) in above:
                return notice(x, "it contains itself")
            if len(above) >= DEEPEST:
                return notice(x, f"it is nested more than {DEEPEST} deep")
            return self._container(x, (*above, id(x)))
        return self._torch(x)

    def _container(self, x: Any, above: tuple[int, ...]) -> Value:
        kind = type(x)
        if kind is dict:
            pairs = ((self.encode(key, above), self.encode(value, above)) for key, value in x.items())
            return schema.Dict(tuple(pairs))
        if kind is slice:
            return schema.Slice(*(self.encode(part, above) for part in (x.start, x.stop, x.step)))
        if kind is range:
            return schema.Range(*(self.encode(part, above) for part in (x.start, x.stop, x.step)))
        items = tuple(self.encode(item, above) for item in x)
        if kind in (set, frozenset):
            # A set has no order that means anything, and the one it has depends on the hashes of this process.
            return schema.Set(tuple(sorted(items, key=msgspec.json.encode)), frozen=kind is frozenset)
        if kind is list:
            return schema.List(items)
        return schema.Tuple(items) if kind is tuple else schema.Size(items)

    def _torch(self, x: object) -> Value:
        if type(x).__module__ != "torch":
            return self._other(x)
        name = constant_name(x)
        if name is not None:
            return schema.Torch(name)
        import torch

        return encode_device(x) if isinstance(x, torch.device) else self._other(x)


def _encode_int(x: int) -> Value:
    if x.bit_length() > LARGEST_INT_BITS:
        return schema.Noticed("int", f"it is an integer of {x.bit_length()} bits, more than {LARGEST_INT_BITS}")
    return x


_SCALARS: Final[dict[type, Callable[[Any], Value]]] = {
    int: _encode_int,
    float: encode_float,
    str: encode_text,
    bytes: schema.Bytes,
    complex: lambda x: schema.Complex(encode_float(x.real), encode_float(x.imag)),
    type(...): lambda _: schema.Ellipsis_(),
}
_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset, slice, range})


def _is_size(x: object) -> bool:
    return type(x).__qualname__ == "Size" and type(x).__module__ == "torch" and isinstance(x, tuple)


def _shown(x: object) -> str:
    try:
        text = repr(x)
    except Exception:  # noqa: BLE001 - what cannot be held may not be printable either
        return ""
    return printable(text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…")


class _Decoder:
    def __init__(self, other: Callable[[Value], object] | None, file: str, field: str) -> None:
        self._other = other
        self._file = file
        self._field = field

    def decode(self, value: Value, depth: int) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if depth > DEEPEST:
            raise self._bad(f"values are nested more than {DEEPEST} deep")
        match value:
            case schema.List(items):
                return self._all(items, depth)
            case schema.Tuple(items):
                return tuple(self._all(items, depth))
            case schema.Size(items):
                return self._size(items, depth)
            case schema.Dict(items):
                return self._dict(items, depth)
            case schema.Set(items, frozen):
                return self._set(items, frozen, depth)
            case schema.Slice(start, stop, step):
                return slice(*self._all((start, stop, step), depth))
            case schema.Range(start, stop, step):
                return self._range((start, stop, step), depth)
            case _:
                return self._scalar(value)

    def _scalar(self, value: Value) -> Any:
        match value:
            case schema.Ellipsis_():
                return ...
            case schema.Float(bits):
                return self._float(bits)
            case schema.Complex(real, imag):
                parts = [self.decode(part, 0) for part in (real, imag)]
                if not all(type(part) in (int, float) for part in parts):
                    raise self._bad("the parts of a complex number are not numbers")
                return complex(*parts)
            case schema.Text(utf16):
                return self._text(utf16)
            case schema.Bytes(data):
                return data
            case schema.Torch(name):
                return self._constant(name)
            case schema.Device(kind, index):
                return self._device(kind, index)
            case _ if self._other is not None:
                return self._other(value)
            case schema.Noticed(kind, reason, text):
                raise CannotHold(
                    f"the value is not in the case: {text or kind}",
                    cause=f"when the case was written, this {kind} could not be kept: {reason}",
                    remedy="set it by hand where the case is used",
                    file=self._file,
                    field=self._field,
                )
            case _:
                raise self._bad(f"a {type(value).__name__.lower()} cannot stand here")

    def _all(self, items: Iterable[Value], depth: int) -> list[Any]:
        return [self.decode(item, depth + 1) for item in items]

    def _dict(self, items: tuple[tuple[Value, Value], ...], depth: int) -> dict[Any, Any]:
        made = {}
        for key, value in items:
            made[self._hashable(self.decode(key, depth + 1))] = self.decode(value, depth + 1)
        return made

    def _set(self, items: tuple[Value, ...], frozen: bool, depth: int) -> set[Any] | frozenset[Any]:
        made = {self._hashable(item) for item in self._all(items, depth)}
        return frozenset(made) if frozen else made

    def _hashable(self, x: Any) -> Any:
        try:
            hash(x)
        except TypeError as error:
            raise self._bad(f"a {type(x).__name__} cannot be a key or a member of a set") from error
        return x

    def _size(self, items: tuple[Value, ...], depth: int) -> Any:
        import torch

        made = self._all(items, depth)
        try:
            return torch.Size(made)
        except (TypeError, RuntimeError, OverflowError) as error:
            raise self._bad("the parts of a size are not integers") from error

    def _range(self, parts: tuple[Value, ...], depth: int) -> range:
        try:
            return range(*self._all(parts, depth))
        except (TypeError, ValueError) as error:
            raise self._bad("the parts of a range are not integers, or its step is 0") from error

    def _float(self, bits: str) -> float:
        try:
            (number,) = struct.unpack(">d", bytes.fromhex(bits))
        except (ValueError, struct.error) as error:
            raise self._bad("the bits of a float are not 16 hex digits") from error
        return float(number)

    def _text(self, utf16: str) -> str:
        try:
            return bytes.fromhex(utf16).decode("utf-16-be", "surrogatepass")
        except ValueError as error:
            raise self._bad("a text is not UTF-16 in hex digits") from error

    def _constant(self, name: str) -> Any:
        found = torch_constant(name)
        if found is None:
            raise self._bad(f"torch has no constant {name!r}")
        return found

    def _device(self, kind: str, index: int | None) -> torch.device:
        import torch

        try:
            return torch.device(kind) if index is None else torch.device(kind, index)
        except (RuntimeError, OverflowError, ValueError, TypeError) as error:
            raise self._bad(f"torch has no device {kind!r} {'' if index is None else index}".rstrip()) from error

    def _bad(self, cause: str) -> BadCase:
        return BadCase(
            "a value is not what it has to be",
            cause=cause,
            remedy=GET_IT_AGAIN,
            file=self._file,
            field=self._field,
        )

"""Whether values make sense: what the types of the schema alone cannot say of one. `checking` does the rest of a case.

`ValueCheck` goes through a value and everything in it, and raises a `Fault` at the first thing that is wrong: a
reference to a node that is not there, a tensor that reaches beyond its storage, a dtype that torch does not have.
Values may be nested only so deep that code which walks them by recursion is safe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any, Final

from torchsleuth.case import names, schema
from torchsleuth.case.format.symbol_checks import symbols_of
from torchsleuth.case.format.tensor_checks import check_tensor
from torchsleuth.case.format.terms import check_term
from torchsleuth.case.plain import LARGEST_INT_BITS
from torchsleuth.errors import BadCase

MAX_DEPTH: Final = 100
"""How deep values may be nested in one another."""
MAX_ITEMS: Final = 1_000_000
"""How many values one list, or one graph, may hold."""
MAX_DIMENSIONS: Final = 1024
MAX_STATE: Final = 1 << 20
"""The longest state of a random generator, in bytes."""
END: Final = 1 << 63
"""Torch counts elements and bytes in 63 bits."""

NO_NODES: Final[frozenset[str]] = frozenset()
DOTTED: Final = "names are made of letters, digits and underscores, joined by dots"

_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_UNHASHABLE: Final = (schema.List, schema.Dict, schema.Slice, schema.Graph, schema.Module)
_NUMBERS: Final = (int, float, schema.Float)
_INTEGERS: Final = (int, schema.Symbolic, schema.Ref)
_PLAIN: Final = frozenset({bool, str, type(None)})
_ENDS: Final = ("start", "stop", "step")
_NO_ARGUMENTS: Final = (schema.Generator, schema.Fake, schema.Tensor, schema.Module, schema.Graph)
"""What is no argument of a node: FX writes arguments into the code of a graph as they print."""


class Fault(Exception):
    """What is wrong, and where: each level on the way out adds its part of the field."""

    def __init__(self, what: str, cause: str, field: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.field = field

    def under(self, part: str) -> Fault:
        """The same fault, seen from one level further out."""
        joint = "." if self.field and not self.field.startswith("[") else ""
        return Fault(self.what, self.cause, f"{part}{joint}{self.field}")


def require(condition: bool, field: str, what: str, cause: str) -> None:
    """Raise a `Fault` at that field if the condition does not hold."""
    if not condition:
        raise Fault(what, cause, field)


def shown(value: object) -> str:
    """A value of a stranger's file for a message, however long it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def within(field: str, action: Callable[..., None], *arguments: Any) -> None:
    """Check a part, and say in which field it was if there is a fault in it."""
    try:
        action(*arguments)
    except Fault as fault:
        raise fault.under(field) from None


def borrowed(action: Callable[..., None], *arguments: Any) -> None:
    """Check a part by a function of another module, which raises a `BadCase` with a field of its own."""
    try:
        action(*arguments)
    except BadCase as error:
        raise Fault(error.what.removeprefix(f"{error.field}: "), error.cause, error.field.removeprefix(".")) from None


class ValueCheck:
    """Checks values against the storages and symbols of their case.

    `nodes` is everywhere the names of the nodes that a `Ref` may mean where it stands; `graph` checks a graph that is
    a value. `arguments`: the values are those that nodes are called with, and some kinds cannot be among them.
    `unbounded`: symbols without a range, which cannot be sizes.
    """

    def __init__(
        self,
        storages: Sequence[schema.Storage],
        symbols: Container[str],
        graph: Callable[[schema.Graph, Collection[str], int], None],
        *,
        unbounded: Collection[str] = (),
        arguments: bool = False,
    ) -> None:
        self._storages = storages
        self._symbols = symbols
        self._unbounded = unbounded
        self._of_kind: dict[type, Callable[[Any, Collection[str], int], None]] = {
            int: _integer,
            float: _finite,
            schema.Ref: _ref,
            schema.List: self._items,
            schema.Tuple: self._items,
            schema.Size: self._items,
            schema.Dict: self._dict,
            schema.Set: self._set,
            schema.Slice: self._slice,
            schema.Range: self._range,
            schema.Float: _float,
            schema.Complex: _complex,
            schema.Text: _text,
            schema.Torch: _constant,
            schema.Device: _device,
            schema.Function: _function,
            schema.Generator: generator,
            schema.Symbolic: self._symbolic,
            schema.Fake: self._fake,
            schema.Tensor: self._tensor,
            schema.Module: self._module,
            schema.Graph: graph,
        }
        if arguments:
            self._of_kind |= dict.fromkeys(_NO_ARGUMENTS, _no_argument)

    # ---- the ways in ---------------------------------------------------------------------------------------

    def value(self, value: schema.Value, nodes: Collection[str] = NO_NODES, depth: int = 0) -> None:
        """Check one value."""
        if depth > MAX_DEPTH:
            raise Fault("a value is nested too deep", f"values may hold values {MAX_DEPTH} times, no deeper")
        action = self._of_kind.get(type(value))
        if action is not None:
            action(value, nodes, depth + 1)

    def values(
        self, field: str, values: Sequence[schema.Value], nodes: Collection[str] = NO_NODES, depth: int = 0
    ) -> None:
        """Check the values of a field."""
        require(len(values) <= MAX_ITEMS, field, f"there are {len(values):,}", f"there may be {MAX_ITEMS:,}")
        for index, value in enumerate(values):
            if type(value) in _PLAIN:
                continue
            try:
                self.value(value, nodes, depth)
            except Fault as fault:
                raise fault.under(f"{field}[{index}]") from None

    def entries(
        self, field: str, entries: Iterable[schema.Entry], nodes: Collection[str] = NO_NODES, depth: int = 0
    ) -> None:
        """Check the named values of a field, whose names must differ."""
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            where = f"{field}[{index}]"
            require(entry.name not in seen, where, f"the name {shown(entry.name)} is there twice", "names are unique")
            seen.add(entry.name)
            within(f"{where}.value", self.value, entry.value, nodes, depth)

    def term(self, term: schema.Term) -> None:
        """Check an expression over the symbols of the case."""
        if type(term) is int and 0 <= term < END:
            return
        borrowed(check_term, term, self._symbols)

    # ---- containers ----------------------------------------------------------------------------------------

    def _items(self, value: Any, nodes: Collection[str], depth: int) -> None:
        self.values("items", value.items, nodes, depth)

    def _dict(self, value: schema.Dict, nodes: Collection[str], depth: int) -> None:
        for index, pair in enumerate(value.items):
            self.values(f"items[{index}]", pair, nodes, depth)
            within(f"items[{index}][0]", _hashable, pair[0])

    def _set(self, value: schema.Set, nodes: Collection[str], depth: int) -> None:
        self.values("items", value.items, nodes, depth)
        for index, item in enumerate(value.items):
            within(f"items[{index}]", _hashable, item)

    def _slice(self, value: schema.Slice | schema.Range, nodes: Collection[str], depth: int) -> None:
        for field in _ENDS:
            within(field, self.value, getattr(value, field), nodes, depth)

    def _range(self, value: schema.Range, nodes: Collection[str], depth: int) -> None:
        self._slice(value, nodes, depth)
        for field in _ENDS:
            part = getattr(value, field)
            require(isinstance(part, _INTEGERS), field, f"a range cannot have {shown(part)}", "it counts in integers")
        require(value.step != 0, "step", "a range cannot have step 0", "it would never end")

    def _module(self, value: schema.Module, nodes: Collection[str], depth: int) -> None:
        require(names.is_path(value.type), "type", f"{shown(value.type)} is no class of a module", DOTTED)
        for field in ("attributes", "parameters", "buffers", "children"):
            entries = getattr(value, field)
            for index, entry in enumerate(entries):
                fits = names.is_attribute(entry.name)
                require(fits, f"{field}[{index}].name", f"{shown(entry.name)} is no name of an attribute", DOTTED)
            self.entries(field, entries, NO_NODES, depth)

    # ---- tensors -------------------------------------------------------------------------------------------

    def _symbolic(self, value: schema.Symbolic, _nodes: Collection[str], _depth: int) -> None:
        within("expr", self.term, value.expr)
        number("hint", value.hint)

    def _fake(self, value: schema.Fake, _nodes: Collection[str], _depth: int) -> None:
        _kind_of_fake(value)
        require(
            len(value.stride) == (len(value.size) if value.layout == "strided" else 0),
            "stride",
            f"it has {len(value.stride)} strides and {len(value.size)} sizes",
            "there is a stride for each dimension, if the layout is strided",
        )
        for field, terms in (("size", value.size), ("stride", value.stride), ("offset", (value.offset,))):
            for term in terms:
                if type(term) is not int or not 0 <= term < END:
                    within(field, self._size, term)

    def _size(self, term: schema.Term) -> None:
        self.term(term)
        without = (
            next((name for name in symbols_of(term) if name in self._unbounded), None) if self._unbounded else None
        )
        require(without is None, "", f"the symbol {without} has no range", "torch asks for the range of a size")

    def _tensor(self, value: schema.Tensor, nodes: Collection[str], depth: int) -> None:
        borrowed(check_tensor, value, self._storages, "")
        self.values("parts", value.parts, nodes, depth)
        within("base", self.value, value.base, nodes, depth)
        within("grad", self.value, value.grad, nodes, depth)


# ---- kinds of values that stand alone --------------------------------------------------------------------


def _integer(value: int, _nodes: Collection[str], _depth: int) -> None:
    if value.bit_length() > LARGEST_INT_BITS:
        raise Fault("an integer is too long", f"the longest has {LARGEST_INT_BITS} bits")


def _finite(value: float, _nodes: Collection[str], _depth: int) -> None:
    if not math.isfinite(value):
        raise Fault(f"JSON has no number {value}", "infinities and NaN are written by their bits")


def number(field: str, value: bool | int | float | None) -> None:
    """Check a number of at most 64 bits."""
    fits = value is None or (math.isfinite(value) if isinstance(value, float) else -END <= value < 2 * END)
    require(fits, field, "a number is not finite, or too large", "it has 64 bits")


def _ref(value: schema.Ref, nodes: Collection[str], _depth: int) -> None:
    if value.name not in nodes:
        raise Fault(f"there is no node {shown(value.name)} here", "a node may refer to earlier ones of its own graph")


def _no_argument(value: schema.Value, _nodes: Collection[str], _depth: int) -> None:
    kind = type(value).__name__.lower()
    raise Fault(f"a {kind} is no argument", "nodes take plain values and the results of other nodes")


def _hashable(value: schema.Value) -> None:
    unhashable = isinstance(value, _UNHASHABLE) or (isinstance(value, schema.Set) and not value.frozen)
    require(not unhashable, "", f"a {type(value).__name__.lower()} is a key", "Python cannot hash it")
    if isinstance(value, (schema.Tuple, schema.Size, schema.Set)):
        for item in value.items:
            _hashable(item)


def _hex(field: str, text: str, digits: int | None = None) -> None:
    right = _HEX.fullmatch(text) is not None and digits in (None, len(text))
    require(right, field, f"{shown(text)} are no bytes", f"they are {digits or 'pairs of'} hexadecimal digits")


def _float(value: schema.Float, _nodes: Collection[str], _depth: int) -> None:
    _hex("bits", value.bits, 16)


def _complex(value: schema.Complex, nodes: Collection[str], depth: int) -> None:
    for field in ("real", "imag"):
        part = getattr(value, field)
        require(isinstance(part, _NUMBERS), field, f"{shown(part)} is no part of a complex number", "it is a number")
        if isinstance(part, schema.Float):
            within(field, _float, part, nodes, depth)
        else:
            number(field, part)


def _text(value: schema.Text, _nodes: Collection[str], _depth: int) -> None:
    _hex("utf16", value.utf16)
    require(len(value.utf16) % 4 == 0, "utf16", "half a character is missing", "UTF-16 has two bytes for each unit")


def _constant(value: schema.Torch, _nodes: Collection[str], _depth: int) -> None:
    require(value.name in names.CONSTANTS, "name", f"torch has no {shown(value.name)}", "it is none of its constants")


def _device(value: schema.Device, _nodes: Collection[str], _depth: int) -> None:
    device_name("type", value.type if value.index is None else f"{value.type}:{value.index}")


def _function(value: schema.Function, _nodes: Collection[str], _depth: int) -> None:
    require(names.is_path(value.name), "name", f"{shown(value.name)} is no function", DOTTED)


def generator(value: schema.Generator | schema.Rng, _nodes: Collection[str], _depth: int) -> None:
    """Check the state of a random generator."""
    device_name("device", value.device)
    require(len(value.state) <= MAX_STATE, "state", "the state is too long", f"it has at most {MAX_STATE} bytes")


def dtype(field: str, name: str) -> None:
    """Check the name of a dtype."""
    require(name in names.DTYPE_BITS, field, f"torch has no dtype {shown(name)}", "it is none of torch's")


def device_name(field: str, name: str) -> None:
    """Check the name of a device."""
    require(names.is_device(name), field, f"torch has no device {shown(name)}", "it is none of torch's")


def _kind_of_fake(value: schema.Fake) -> None:
    dtype("dtype", value.dtype)
    device_name("device", value.device)
    require(value.layout in names.LAYOUT_PARTS, "layout", f"torch has no layout {shown(value.layout)}", "none of its")
    require(len(value.size) <= MAX_DIMENSIONS, "size", f"it has {len(value.size)} dimensions", "no tensor has so many")

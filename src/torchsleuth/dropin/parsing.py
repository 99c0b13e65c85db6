"""Inputs for a graph that somebody has printed: `forward(self, x: "f32[8, s0]", n: "Sym(s0)")`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from torchsleuth import torch_compat

_TENSOR: Final = re.compile(r"\b([a-z]+\d+[a-z0-9_]*|[a-z]+\d*)\[([^\]]*)\]")
_SYMBOL: Final = re.compile(r"Sym\((.*)\)")


def aot_graph_input_parser(
    func: Callable[..., Any],
    device: str = "cuda",
    sym_shapes: dict[str, int] | None = None,
    default_sym_shape: int | None = None,
) -> dict[str, Any]:
    """Keyword arguments with which a printed graph can be called: tensors, sizes, and `self` with its constants.

    `sym_shapes`: values of symbolic sizes; those that are not there have `default_sym_shape`. Floating-point tensors
    have random data, others zeros. Dimensions with symbolic sizes are marked as dynamic.
    """
    maker = _Maker(device, sym_shapes or {}, default_sym_shape)
    found: dict[str, Any] = {}
    for name, annotation in getattr(func, "__annotations__", {}).items():
        if name != "return" and isinstance(annotation, str) and (value := maker.made(annotation)) is not None:
            found[name] = value
    if "self" in inspect.signature(func).parameters:
        found["self"] = _Holder()
        for name, annotation in _constants(func):
            if (value := maker.made(annotation)) is not None:
                setattr(found["self"], name, value)
    return found


class _Holder:
    """Has the constants of a graph as attributes."""


def _constants(func: Callable[..., Any]) -> list[tuple[str, str]]:
    """What the body asks `self` for, with the annotation of the variable that it goes to."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(func)))
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=annotation, value=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                found.append((name, ast.unparse(annotation)))
    return found


class _Maker:
    """Makes what an annotation describes."""

    def __init__(self, device: str, sizes: Mapping[str, int], default: int | None) -> None:
        self._device = device
        self._sizes = sizes
        self._default = default
        self._dtypes = torch_compat.dtype_abbreviations()

    def made(self, annotation: str) -> Any:
        """A tensor or a number; None if the annotation describes neither."""
        symbol = _SYMBOL.search(annotation)
        if symbol is not None:
            return self._length(symbol[1])
        tensor = _TENSOR.search(annotation)
        if tensor is None or tensor[1] not in self._dtypes:
            return None
        return self._tensor(self._dtypes[tensor[1]], [one.strip() for one in tensor[2].split(",") if one.strip()])

    def _tensor(self, dtype: torch.dtype, lengths: list[str]) -> torch.Tensor:
        make = torch.randn if dtype.is_floating_point or dtype.is_complex else torch.zeros
        found = make([self._length(one) for one in lengths], dtype=dtype, device=self._device)
        for dim, length in enumerate(lengths):
            if not length.isdigit():
                torch_compat.mark_dynamic(found, dim)
        return found

    def _length(self, expression: str) -> int:
        """The value of a size: a number, a symbol, or sums, differences, products and quotients of such."""
        if expression.strip() in self._sizes:
            return self._sizes[expression.strip()]
        try:
            return int(self._value(ast.parse(expression.strip(), mode="eval").body))
        except SyntaxError as error:
            raise RuntimeError(f"{expression!r} is no size that could be computed") from error

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                known = self._sizes.get(name, self._default)
                if known is None:
                    raise RuntimeError(f"{name} is not in sym_shapes, and there is no default_sym_shape")
                return known
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._value(inner)
            case ast.BinOp(left=left, op=how, right=right) if type(how) in _HOW:
                return _HOW[type(how)](self._value(left), self._value(right))
        raise RuntimeError(f"{ast.unparse(node)!r} is no size that could be computed")


_HOW: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: lambda one, other: one % other,
    ast.Pow: lambda one, other: int(one**other),
}

"""Symbolic sizes: the parts that a ShapeEnv is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
from torchsleuth.torch_compat.names import resolve


def size_functions() -> Mapping[str, Any]:
    """torch's own functions in expressions over symbolic sizes (FloorDiv, ModularIndexing, ...), by name."""
    found: Mapping[str, Any] = resolve("size_functions")
    return found


def integer_infinity() -> Any:
    """What torch says for "no bound" on an integer: `int_oo`, which is not sympy's `oo`."""
    return resolve("integer_infinity")


def value_range(lower: Any, upper: Any) -> Any:
    """The range of a symbol, as torch keeps it."""
    return resolve("ValueRanges")(lower, upper)


def nowhere() -> Any:
    """The place in a program, for torch's notes on where something became known, if nobody knows the place."""
    return resolve("SLoc")(None, None)


def no_traceback() -> Any:
    """The stack of calls that nobody knows any more."""
    return resolve("CapturedTraceback")(None)


def shape_guard(expr: Any) -> Any:
    """A condition on symbols that compiling relied on, as a ShapeEnv keeps it."""
    return resolve("ShapeGuard")(expr, nowhere(), False)


def named_source(name: str, ephemeral: bool) -> Any:
    """What a symbol stands for, as a ShapeEnv keeps it, if only its name is known."""

    class NamedSource(resolve("Source")):  # type: ignore[misc]
        @property
        def _name_template(self) -> str:
            return name

        def is_ephemeral(self) -> bool:
            return ephemeral

    return NamedSource()


def symbolic_expr(x: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The expression of a symbolic value as it was made, without the replacements found since; None if it has none."""
    return getattr(x.node, "_expr", None)


def symbolic_value(kind: Any, expr: Any, shape_env: Any, hinted: bool) -> Any:
    """A SymInt, SymFloat or SymBool of this ShapeEnv; its hint, if it is to have one, is computed."""
    import torch
    from torch.fx.experimental.sym_node import SymNode

    plain: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kind(SymNode(expr, shape_env, plain[kind], None if hinted else resolve("no_hint")))


def forget_derived(shape_env: Any) -> None:
    """Make a ShapeEnv that was filled by hand compute anew what it derives from its facts."""
    resolve("update_version_counter")(shape_env)
    shape_env._version_counter += 1
    shape_env._replacements_version_counter += 1

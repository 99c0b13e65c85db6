"""The operators that care about the values of what they are given: indices, probabilities, variances, ...

`limits(use)` says what one use of a value allows. Each operator is known by its name without namespace, overload and
the underscore of in-place ones; most have the same arguments as an operator of ATen, as a function of torch and as
a method. Where they do not, the function here that knows the operator says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from torchsleuth import torch_compat

GUESS: Final = 4
"""What a size is taken to be that only running the program tells."""


@dataclass(frozen=True)
class Limit:
    """Which values one use allows: those in [low, high). `zero`: only zeros are safe."""

    kind: Literal["index", "positive", "fraction", "zero", "number"]
    low: int = 0
    high: int = 1
    why: str = ""


def size_hint(size: Any) -> int:
    """The value that a size had; where it had none yet, a small one that its range allows."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    environment, symbols = torch_compat.symbols_of(size)
    values = {symbol: _value_of(environment, symbol) for symbol in symbols}
    try:
        return max(0, int(size.node.expr.xreplace(values)))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):  # the guesses do not go together
        return GUESS


def number_hint(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> bool | int | float:
    """The value that a symbolic number had; where it had none yet, the one that fits the guesses of `size_hint`."""
    hint = number.node.hint
    if isinstance(number, torch.SymInt):
        return size_hint(number) if hint is None else int(hint)
    kind: type[bool | float] = bool if isinstance(number, torch.SymBool) else float
    if hint is not None:
        return kind(hint)
    environment, symbols = torch_compat.symbols_of(number)
    values = {symbol: _value_of(environment, symbol) for symbol in symbols}
    try:
        return kind(number.node.expr.xreplace(values))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return kind(GUESS)


def is_guess(size: Any) -> bool:
    """Whether `size_hint` had to make up a value."""
    if not isinstance(size, torch.SymInt):
        return False
    environment, symbols = torch_compat.symbols_of(size)
    return any(symbol not in environment.backed_var_to_val for symbol in symbols)


def _value_of(environment: Any, symbol: Any) -> Any:
    known = environment.backed_var_to_val.get(symbol)
    if known is not None:
        return known
    allowed = environment.var_to_range.get(symbol)
    guess = sympy.Integer(GUESS)
    return guess if allowed is None else min(max(guess, allowed.lower), allowed.upper)


# ---- a value and its use ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracked:
    """What a node produces, if the input is x: times * x + plus."""

    node: fx.Node
    times: int = 1
    plus: int = 0

    def at(self, node: fx.Node) -> Tracked:
        return Tracked(node, self.times, self.plus)

    def index(self, size: int, what: str) -> Limit:
        """x, so that this is a valid index into something of a size."""
        low = -(self.plus // self.times)
        high = (size - 1 - self.plus) // self.times + 1
        return Limit("index", low, high, f"{what} of size {size}")


@dataclass(frozen=True)
class Use:
    """One node that takes the value."""

    user: fx.Node
    value: Tracked

    @cached_property
    def name(self) -> str:
        """The operator without namespace, overload and the underscore of in-place ones: `index_add`."""
        target = self.user.target
        name = target if isinstance(target, str) else torch_compat.op_name(target)
        if name.startswith("__") and name.endswith("__"):
            return name.strip("_")
        return name.rstrip("_").removeprefix("_unsafe_") if name != "_unsafe_view" else name

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by name, where names are known; otherwise by position."""
        user = self.user
        if torch_compat.is_op_overload(user.target):
            return {each.name: each.value for each in torch_compat.op_arguments(user.target, user.args, user.kwargs)}
        return {**{str(position): each for position, each in enumerate(user.args)}, **user.kwargs}

    def argument(self, position: int, *names: str) -> Any:
        if position < len(self.user.args):
            return self.user.args[position]
        return next((self.user.kwargs[name] for name in names if name in self.user.kwargs), None)

    def is_at(self, position: int, *names: str) -> bool:
        """Whether the value is the argument at a position, or under a name."""
        return self.argument(position, *names) is self.value.node

    @property
    def is_first(self) -> bool:
        return bool(self.user.args) and self.user.args[0] is self.value.node


def limits(use: Use) -> Iterator[Limit]:
    if use.user.op == "call_module":
        yield from _of_module(use)
        return
    find = _SINKS.get(use.name)
    if find is not None:
        yield from find(use)
    for name, argument in use.arguments.items():
        if name in _BOUNDARIES and argument is use.value.node:
            yield Limit("zero", why=f"{name} of {use.name}: where each piece begins")


# ---- what is known of other nodes ------------------------------------------------------------------------


def attribute_of(node: Any) -> Any:
    """What a `get_attr` finds."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def _size(node: Any) -> tuple[int, ...] | None:
    """The size of what a node produces."""
    if not isinstance(node, fx.Node):
        return None
    known = node.meta.get("val", node.meta.get("example_value"))
    known = attribute_of(node) if known is None else known
    return tuple(size_hint(each) for each in known.shape) if isinstance(known, torch.Tensor) else None


def _dtype(node: Any) -> torch.dtype | None:
    if not isinstance(node, fx.Node):
        return None
    known = node.meta.get("val", node.meta.get("example_value"))
    return known.dtype if isinstance(known, torch.Tensor) else None


def _may_index(node: fx.Node) -> bool:
    """Whether what a node produces could be indices, as far as is known."""
    dtype = _dtype(node)
    return dtype is None or not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _dimension(size: Sequence[int] | None, dim: Any) -> int | None:
    if size is None or not isinstance(dim, int) or not -len(size) <= dim < len(size):
        return None
    return size[dim]


# ---- the operators that care -----------------------------------------------------------------------------


def _of_table(use: Use) -> Iterator[Limit]:
    """embedding, embedding_bag: torch's own have the table first, the functions of torch.nn have it second."""
    if use.is_at(2, "offsets"):
        yield Limit("zero", why=f"offsets of {use.name}: where each bag begins")
        return
    if not _may_index(use.value.node):
        return
    pair = [use.argument(0, "input", "indices"), use.argument(1, "weight", "indices")]
    if use.value.node in pair:
        table = pair[1 - pair.index(use.value.node)]
        size = _size(table)
        if size and _dtype(table) not in (torch.int64, torch.int32):
            yield use.value.index(size[0], "indexes an embedding")


def _of_dim(use: Use) -> Iterator[Limit]:
    """gather, scatter, index_select, ...: (tensor, dim, index, ...)."""
    size = _dimension(_size(use.argument(0, "input", "self")), use.argument(1, "dim"))
    if size is not None and use.is_at(2, "index"):
        yield use.value.index(size, "indexes a dimension")


def _of_flat(use: Use) -> Iterator[Limit]:
    """take, put: (tensor, index)."""
    size = _size(use.argument(0, "input", "self"))
    if size is not None and use.is_at(1, "index"):
        yield use.value.index(math.prod(size), "indexes all elements")


def _of_take_along(use: Use) -> Iterator[Limit]:
    size = _size(use.argument(0, "input", "self"))
    if size is not None and use.is_at(1, "indices"):
        dim = use.argument(2, "dim")
        extent = math.prod(size) if dim is None else _dimension(size, dim)
        if extent is not None:
            yield use.value.index(extent, "indexes a dimension")


def _of_index(use: Use) -> Iterator[Limit]:
    """index, index_put, subscripts: each of the indices stands for a dimension."""
    size = _size(use.argument(0, "input", "self"))
    indices = use.argument(1, "indices")
    if size is None or indices is None:
        return
    listed = list(indices) if isinstance(indices, (list, tuple)) else [indices]
    subscript = use.name in ("getitem", "setitem")
    dim = 0
    for number, index in enumerate(listed):
        if index is Ellipsis:
            dim = len(size) - sum(_dimensions_of(each, subscript) for each in listed[number + 1 :])
            continue
        if index is use.value.node and dim < len(size) and _dtype(index) not in (torch.bool, torch.uint8):
            yield use.value.index(size[dim], "indexes a dimension")
        dim += _dimensions_of(index, subscript)


def _dimensions_of(index: Any, subscript: bool) -> int:
    """How many dimensions one of several indices stands for."""
    if index is None:
        return 0 if subscript else 1
    if isinstance(index, bool):
        return 0
    if _dtype(index) in (torch.bool, torch.uint8):
        return len(_size(index) or ())
    return 1


def _of_classes(use: Use) -> Iterator[Limit]:
    """nll_loss, cross_entropy: (input, target); the backward has the gradient before them."""
    shift = 1 if use.name.endswith("backward") else 0
    size = _size(use.argument(shift, "input", "self"))
    if size and use.is_at(shift + 1, "target") and _may_index(use.value.node):
        yield use.value.index(size[1] if len(size) > 1 else size[0], "names one of the classes, a dimension")


def _of_count(index: int, count: int, *names: str) -> Callable[[Use], Iterator[Limit]]:
    """one_hot, the backward of embeddings: the number of possible values is an argument, too."""

    def find(use: Use) -> Iterator[Limit]:
        extent = use.argument(count, *names)
        if isinstance(extent, fx.Node):
            extent = extent.meta.get("val", extent.meta.get("example_value"))
        if use.is_at(index, "input", "indices") and isinstance(extent, (int, torch.SymInt)) and size_hint(extent) > 0:
            yield use.value.index(size_hint(extent), "names a row of a table")

    return find


def _of_pooled(use: Use) -> Iterator[Limit]:
    """The backward of max pooling: the indices count the elements of an image."""
    size = _size(use.argument(1, "self"))
    dims = 3 if "3d" in use.name else 2
    if size is not None and use.user.args[-1] is use.value.node:
        yield use.value.index(math.prod(size[-dims:]), "indexes an image")


def _positive(use: Use) -> Iterator[Limit]:
    if use.is_first and use.value.plus >= 0:
        yield Limit("positive", why=f"goes into {use.name}, so it is positive")


def _variance(use: Use) -> Iterator[Limit]:
    """batch_norm: torch's own have weight and bias before the statistics, the function of torch.nn after them."""
    of_nn = getattr(use.user.target, "__module__", "") == "torch.nn.functional"
    if use.is_at(2 if of_nn else 4, "running_var"):
        yield Limit("positive", why="is a variance, so it is positive")


def _fraction(use: Use) -> Iterator[Limit]:
    if use.is_first or use.name.startswith("binary_cross_entropy"):
        yield Limit("fraction", why=f"goes into {use.name}, which takes probabilities")


def _divisor(use: Use) -> Iterator[Limit]:
    if use.is_at(1, "other") and not use.is_first:
        yield Limit("number", 1, 3, f"divides in {use.name}, so it is not 0")


def _number(use: Use) -> Iterator[Limit]:
    known = use.user.meta.get("val", use.user.meta.get("example_value"))
    if isinstance(known, torch.SymInt):
        number = (size_hint(known) - use.value.plus) // use.value.times
        yield Limit(
            "number", number, number + 1, f"is read as a number, {known}, whose range allows {size_hint(known)}"
        )
    else:
        yield Limit("number", 1, 3, "is read as a number")


_BOUNDARIES: Final = frozenset(
    "offsets cum_seq_q cum_seq_k cu_seqlens_q cu_seqlens_k cu_seqlens seqstart_q seqstart_k".split()
)
"""Arguments that say where pieces begin. They may not decrease, and end within the data: zeros do neither."""

_SINKS: Final[Mapping[str, Callable[[Use], Iterator[Limit]]]] = {
    **dict.fromkeys(("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _of_table),
    **dict.fromkeys(
        "gather scatter scatter_add scatter_reduce index_select index_add index_copy index_fill index_reduce".split(),
        _of_dim,
    ),
    **dict.fromkeys(("take", "put"), _of_flat),
    "take_along_dim": _of_take_along,
    **dict.fromkeys(("index", "index_put", "getitem", "setitem", "_index_put_impl"), _of_index),
    **dict.fromkeys(
        (
            "nll_loss nll_loss_forward nll_loss_backward nll_loss_nd nll_loss2d nll_loss2d_forward nll_loss2d_backward "
            "cross_entropy cross_entropy_loss multi_margin_loss"
        ).split(),
        _of_classes,
    ),
    "one_hot": _of_count(0, 1, "num_classes"),
    "embedding_dense_backward": _of_count(1, 2, "num_weights"),
    "embedding_backward": _of_count(1, 2, "num_weights"),
    "max_pool2d_with_indices_backward": _of_pooled,
    "max_pool3d_with_indices_backward": _of_pooled,
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "lgamma", "poisson"), _positive),
    **dict.fromkeys(
        (
            "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
            "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm"
        ).split(),
        _variance,
    ),
    **dict.fromkeys(("bernoulli", "multinomial", "binary_cross_entropy"), _fraction),
    **dict.fromkeys(
        "div divide floor_divide floordiv ifloordiv truediv remainder fmod mod true_divide".split(), _divisor
    ),
    **dict.fromkeys(("item", "_local_scalar_dense", "tolist"), _number),
}


def _of_module(use: Use) -> Iterator[Limit]:
    module: Any = use.user.graph.owning_module
    for name in str(use.user.target).split("."):
        module = getattr(module, name, None)
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        if use.is_first:
            yield use.value.index(module.num_embeddings, "indexes an embedding")
        else:
            yield Limit("zero", why="says where bags begin")

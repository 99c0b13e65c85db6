"""The auditor: sees every operator that runs while a segment is recorded, and every Python function behind our back.

The interpreter knows what it calls; it does not know what the called does. So while it records,

- each ATen operator comes through the auditor. Inside a call that goes into the graph it notes facts: random numbers
  drawn, tensors written to, results whose shape or value depends on data. Anywhere else an operator must not run at
  all: it would be missing in the graph.
- Python code that starts inside a native function (`sorted` calling a `__lt__`) is noticed by a profile function. Code
  of the user's that ran like that was not interpreted: nobody knows what it read.

Whatever is found makes the recording unfit to be kept; the call itself is as right as ever.

What the garbage collector runs (finalizers, callbacks of weak references, whoever wants to know when it is at work) is
no part of the program: it may come at any time, or never. The auditor looks away until the collector is done.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend import tracebacks
from torchsleuth.frontend.bytecode import qualified

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_KNOWN = (
    os.path.dirname(torch.__file__) + os.sep,
    sysconfig.get_paths()["stdlib"] + os.sep,
    "<frozen",
    "<string>",
    "<attrs generated",
    "<__array_function__",
)
_PACKAGES = (sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep)


_MAY_FAIL: Final = frozenset(
    (
        "index index_put index_put_ index_select index_add index_add_ index_copy index_copy_ index_fill index_fill_ "
        "index_reduce index_reduce_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
        "take put put_ masked_scatter masked_scatter_ embedding embedding_bag _embedding_bag nll_loss_forward "
        "_embedding_bag_forward_only nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward _ctc_loss "
        "multinomial bernoulli poisson binomial bincount histc repeat_interleave segment_reduce _assert_async cholesky "
        "cholesky_inverse cholesky_solve linalg_cholesky_ex linalg_inv_ex _linalg_check_errors _linalg_solve_ex "
        "_linalg_svd _linalg_eigh _linalg_eigvals linalg_eig linalg_lu linalg_lu_factor_ex linalg_qr linalg_lstsq "
        "_linalg_det _linalg_slogdet lu_unpack geqrf triangular_solve linalg_solve_triangular max_unpool2d "
        "max_unpool3d binary_cross_entropy linalg_lu_solve lu_solve linalg_pinv linalg_pinv_atol_rtol_tensor "
        "linalg_eigh fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask"
    ).split()
)
"""Operators that raise, or not, depending on the values they are given."""
_MAY_FAIL_ON_INTEGERS: Final = frozenset(
    "floor_divide floor_divide_ remainder remainder_ fmod fmod_ pow pow_ div div_".split()
)
_WRITES_SILENTLY: Final = frozenset(
    (
        "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats batch_norm_gather_stats "
        "batch_norm_gather_stats_with_counts"
    ).split()
)
"""Operators that write to running statistics, though torch does not say so of them."""
_OF_TORCH: Final = ("aten", "prims", "quantized", "higher_order")


@dataclass
class Facts:
    """What the operators of one recorded call did."""

    random: bool = False
    written: list[torch.Tensor] = field(default_factory=list)
    data_dependent: str = ""
    may_fail: bool = False
    """With other data, an operator would raise (an index out of range)."""
    silent: bool = False
    """Something was written to of which torch does not count that it was."""
    opaque: bool = False
    """An operator of somebody's own ran: nobody knows what it does besides."""
    operators: int = 0


class Auditor:
    """Watches one thread while a segment is recorded. `complain` is called with what it finds."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.facts: Facts | None = None
        self.quiet = False
        """Something is run that is not recorded, on purpose (the instruction of a graph break, a backend)."""
        self._mode = torch_compat.operator_mode(self._operator)
        self._thread = threading.get_ident()
        self._collecting = False

    def __enter__(self) -> Auditor:
        self._thread = threading.get_ident()
        gc.callbacks.insert(0, self._collection_begins)
        gc.callbacks.append(self._collection_ends)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(None, None, None)
        for each in (self._collection_begins, self._collection_ends):
            with contextlib.suppress(ValueError):  # the program may have emptied the list
                gc.callbacks.remove(each)

    def _collection_begins(self, phase: str, info: dict[str, Any]) -> None:
        """The first callback of all: what the others do is seen by nobody, either."""
        if phase == "start" and threading.get_ident() == self._thread:
            self._collecting = True

    def _collection_ends(self, phase: str, info: dict[str, Any]) -> None:
        """The last one."""
        if phase == "stop" and threading.get_ident() == self._thread:
            self._collecting = False

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Facts]:
        """Operators that run inside belong to the call that is being recorded."""
        before, self.facts = self.facts, Facts()
        try:
            yield self.facts
        finally:
            self.facts = before

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What runs inside is nobody's business."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def _operator(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self.quiet or self._collecting):
            self._note(operator, args, kwargs)
        try:
            return operator(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = tracebacks.of_operator(error)
            raise

    def _note(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        facts = self.facts
        if facts is None:
            self.complain(f"{operator} ran inside a native function that is not in the graph")
            return
        facts.operators += 1
        tags = torch_compat.op_tags(operator)
        if torch.Tag.nondeterministic_seeded in tags:
            facts.random = True
        if torch.Tag.data_dependent_output in tags or (
            torch.Tag.dynamic_output_shape in tags and _shape_depends_on_data(operator, args)
        ):
            facts.data_dependent = str(operator)
        facts.may_fail = facts.may_fail or _may_fail(torch_compat.op_name(operator), args)
        if torch_compat.op_is_mutable(operator):
            facts.written += _written(operator, args, kwargs)
        elif torch_compat.op_name(operator) in _WRITES_SILENTLY:
            statistics = _statistics(operator, args, kwargs)
            facts.written += statistics
            facts.silent = facts.silent or bool(statistics)
        facts.opaque = facts.opaque or operator.namespace not in _OF_TORCH

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a native function and notices Python code that it calls."""
        if self.quiet:
            return function(*args, **kwargs)
        before = sys.getprofile()
        if before is not None and not callable(before):
            # A profiler written in C (cProfile) is at work, and could not be put back. This net is the second one: what
            # is called here is known to be harmless.
            return function(*args, **kwargs)
        sys.setprofile(self._profile)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" or self._collecting:
            return
        name = frame.f_code.co_filename
        if name.startswith(_OWN) or (name.startswith(_KNOWN) and not name.startswith(_PACKAGES[0])):
            return
        if name.startswith(_KNOWN[0]):
            return
        self.complain(f"{qualified(frame.f_code)} ({name}:{frame.f_lineno}) ran inside a native function")


def _may_fail(name: str, args: tuple[Any, ...]) -> bool:
    """Whether other values would make an operator raise."""
    if name in _MAY_FAIL_ON_INTEGERS:
        return not any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in args)
    return name in _MAY_FAIL


def _shape_depends_on_data(operator: Any, args: tuple[Any, ...]) -> bool:
    """`index` is tagged as if its shape always depended on data; it does with masks only."""
    if str(operator) != "aten.index.Tensor":
        return True
    indices = args[1] if len(args) > 1 else ()
    return any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that this operator writes to."""
    found: list[torch.Tensor] = []
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, torch.Tensor):
                found.append(each)
    return found


def _statistics(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The running statistics among the arguments, if they are written to: in evaluation they are only read."""
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("training", given.get("train", True)):
        return []
    found = (given.get(name) for name in ("running_mean", "running_var"))
    return [each for each in found if isinstance(each, torch.Tensor)]

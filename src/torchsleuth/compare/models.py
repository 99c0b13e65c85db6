"""Running a model forward and, where it can, backward, and comparing two models that way.

The names and the calling conventions are those of the peer's debugging helpers, so that who knows one knows
the other; what comes back is richer (`Results` has names where the peer has list positions).
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import Unpack

from torchsleuth import config
from torchsleuth.errors import CannotReduce, NoReference

from .agree import same
from .comparison import Comparison, Tolerance, ToleranceOptions
from .fp64 import cast_to_fp64
from .rng import RngState, Tape, preserved
from .tree import map_tensors, tensors_in

log = logging.getLogger("torchsleuth.compare")

_CONSTANTS = (type(None), str, bytes, bool, int, float, complex)


@dataclass(frozen=True)
class Results:
    """Everything a run leaves behind that another run must leave as well."""

    output: Any
    loss: Any = None
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    input_grads: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    """The inputs as the run left them (it may write into them)."""


def run_fwd_maybe_bwd(
    model: Callable[..., Any], args: Sequence[Any], only_fwd: bool = False, disable_clone: bool = False
) -> Any:
    """Run `model` on `args` and, if its output depends on something that requires grad, backward.

    The model is deep-copied and the inputs are cloned (with their `requires_grad`), so nothing of the
    caller's changes; with `disable_clone` the inputs are used as they are. Returns the output when
    `only_fwd`, else `Results`. A boxed callable (`_boxed_call`) gets its arguments as one list.
    """
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)
        model.zero_grad(set_to_none=True)
    args = args if disable_clone else clone_inputs(args)
    before = list(args)  # a boxed callable may empty its list
    output = call(model, args)
    if only_fwd:
        return output
    if requires_bwd_pass(output):
        reduce_to_scalar_loss(output).backward()
    return collect_results(model, output, None, before)


def call(model: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call `model` by its own convention: boxed callables take one list and may empty it."""
    if getattr(model, "_boxed_call", False):
        return model(list(args))
    return model(*args)


def collect_results(model: Any, output: Any, loss: Any, inputs: Sequence[Any]) -> Results:
    """What a run left behind. A gradient that is None counts as zero: compilers differ in that."""
    params = _named(model, "named_parameters")
    return Results(
        output=output,
        loss=loss,
        grads={name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in params.items()},
        params=params,
        buffers=_named(model, "named_buffers"),
        input_grads=[map_tensors(_grad_or_zero, value) for value in inputs],
        inputs=list(inputs),
    )


def requires_bwd_pass(output: Any) -> bool:
    """Whether any tensor in `output`, however deep, requires grad."""
    return any(tensor.requires_grad for tensor in tensors_in(output))


def reduce_to_scalar_loss(output: Any) -> Any:
    """One number from a model's output: the mean of its elements, over nested outputs the mean of means.

    Outputs with `.logits` give those, a distribution its mean. None, text and plain numbers inside a
    container are passed over.
    """
    if isinstance(output, torch.Tensor):
        return _mean(output)
    logits = getattr(output, "logits", None)
    if isinstance(logits, torch.Tensor) and not isinstance(output, torch.distributions.Distribution):
        return _mean(logits)
    if isinstance(output, torch.distributions.Distribution) or type(output).__name__ == "SquashedNormal":
        return output.mean.sum()
    children: list[Any] | None = None
    if isinstance(output, (list, tuple)):
        children = list(output)
    elif isinstance(output, dict):
        children = list(output.values())
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        children = [getattr(output, f.name) for f in dataclasses.fields(output)]
    present = [child for child in children or () if not isinstance(child, _CONSTANTS)]
    if not present:
        raise CannotReduce(
            f"a {type(output).__qualname__} cannot be reduced to a scalar loss",
            cause="it holds no tensor that could be averaged"
            if children is not None
            else "it is no tensor or container",
            remedy="return tensors (in lists, tuples, dicts or dataclasses), or compare forward only",
        )
    return sum(reduce_to_scalar_loss(child) for child in present) / len(present)


def same_two_models(
    model: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    tolerance: Tolerance | None = None,
    **options: Unpack[ToleranceOptions],
) -> Comparison:
    """Whether two models give the same results on the same inputs, from the same random state.

    Gradients, buffers and written-to inputs count too, unless `only_fwd`. The tolerance and whether to make an
    fp64 reference come from the settings unless given. A `compiled` that raises is another failure, not a
    divergence: it is logged, and the comparison is truthy with `raised` set. Neither the inputs nor the
    random state of the caller are changed.
    """
    settings = config.current()
    if tolerance is None:
        tolerance = Tolerance(tol=settings.tolerance, ignore_non_fp=settings.ignore_non_fp)
    tolerance = tolerance.replace(**options)
    with preserved() as start:
        ref, tape = _run_recorded(model, inputs, only_fwd, start)
        fp64_ref, notes = None, []
        if settings.fp64 or require_fp64:
            try:
                fp64_ref = run_in_fp64(model, inputs, only_fwd, tape, start)
            except NoReference as missing:
                if require_fp64:
                    raise
                log.warning("no fp64 reference: %s", missing.cause)
                notes.append(f"There was no fp64 reference: {missing.cause}.")
        start.restore()
        try:
            res = run_fwd_maybe_bwd(compiled, inputs, only_fwd)
        except Exception as error:
            log.exception("while comparing results, the compiled model raised; that is another failure")
            said = f"The compiled model raised {type(error).__qualname__}, so there was nothing to compare."
            return Comparison(True, notes=(said,), raised=error, tolerance=tolerance)
    found = same(ref, res, fp64_ref, tolerance=tolerance)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def run_in_fp64(
    model: Callable[..., Any], inputs: Sequence[Any], only_fwd: bool, tape: Tape | None, start: RngState
) -> Any:
    """The fp64 reference of a run, with the random numbers on `tape`. Raises `NoReference` with the reason."""
    start.restore()
    wide, wide_inputs = None, None
    try:
        wide, wide_inputs = cast_to_fp64(model, inputs)
        if tape is None:
            return run_fwd_maybe_bwd(wide, wide_inputs, only_fwd, disable_clone=True)
        with tape.playing():
            return run_fwd_maybe_bwd(wide, wide_inputs, only_fwd, disable_clone=True)
    except NoReference:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise NoReference(
            "the fp64 reference could not be computed",
            cause=f"in double precision the program raises {type(error).__qualname__}: {first_line}",
            remedy="compare without it (SLEUTH_FP64=0), or mend the operator that does not take fp64",
        ) from error


def clone_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs as leaves: values, strides and `requires_grad` kept; what shared memory still does.

    Tensors are copied inside lists, tuples, dicts and dataclasses too. Anything else is passed on as it is.
    """
    return list(_Cloner(tensors_in(inputs)).clone(list(inputs)))


class _Cloner:
    """Clones tensors; those that overlap themselves or share a storage are laid out on one copied storage."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.clones: dict[int, torch.Tensor] = {}
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.owners: dict[int, int] = {}
        for tensor in {id(t): t for t in tensors}.values():
            if _has_plain_storage(tensor):
                key = tensor.untyped_storage().data_ptr()
                self.owners[key] = self.owners.get(key, 0) + 1

    def clone(self, value: Any) -> Any:
        return map_tensors(self._clone_tensor, value)

    def _clone_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.clones:
            copied = self._copy(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=tensor.requires_grad)
            elif tensor.requires_grad:
                copied = copied.requires_grad_(True)
            self.clones[id(tensor)] = copied
        return self.clones[id(tensor)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _has_plain_storage(tensor) or tensor.is_conj() or tensor.is_neg():
            return tensor.clone()
        storage = tensor.untyped_storage()
        shared = self.owners.get(storage.data_ptr(), 0) > 1 or _overlaps_itself(tensor)
        if not shared:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
                tensor
            )
        if storage.data_ptr() not in self.storages:
            self.storages[storage.data_ptr()] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self.storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride())


def _has_plain_storage(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return (
        plain
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory (an expanded tensor, a sliding window)."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _run_recorded(
    model: Callable[..., Any], inputs: Sequence[Any], only_fwd: bool, start: RngState
) -> tuple[Any, Tape | None]:
    """A run and, if it drew random numbers, the tape of them (the run is then repeated to record it)."""
    result = run_fwd_maybe_bwd(model, inputs, only_fwd)
    if start.same_as(RngState.capture()):
        return result, None
    tape = Tape()
    start.restore()
    with tape.recording():
        result = run_fwd_maybe_bwd(model, inputs, only_fwd)
    return result, tape


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        parts = tensor.unbind()
        return sum((_mean(part) for part in parts), torch.zeros((), device=tensor.device)) / max(1, len(parts))
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    total = torch.sparse.sum(tensor) if tensor.is_sparse else tensor.sum()
    return total / max(1, math.prod(tensor.shape))


def _named(model: Any, method: str) -> dict[str, torch.Tensor]:
    return {_plain_name(name): value for name, value in getattr(model, method, tuple)()}


def _plain_name(name: str) -> str:
    """A parameter's name without what torch.compile put in front of it."""
    return name.replace("_orig_mod.", "")


def _grad_or_zero(tensor: torch.Tensor) -> Any:
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad

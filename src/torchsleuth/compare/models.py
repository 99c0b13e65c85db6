"""Running a model forward and, where it can, backward, and comparing two models that way.

The names and the calling conventions are those of the peer's debugging helpers, so that who knows one knows
the other; what comes back is richer (`Results` has names where the peer has list positions).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import Unpack

from torchsleuth import config, torch_compat
from torchsleuth.errors import CannotReduce, NoReference, in_words

from .agree import same
from .clones import clone_inputs
from .comparison import Comparison, Tolerance, ToleranceOptions
from .fp64 import cast_to_fp64
from .rng import RngState, Tape, preserved
from .tree import map_tensors, tensors_in

log = logging.getLogger("torchsleuth.compare")

DRAWN_DIFFERENTLY = "The two sides drew random numbers differently, which may be all there is to it: ask `judge`."
"""A note of a comparison that says little."""
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

    Outputs with `.logits` give those, a distribution its mean. None, text, plain numbers and containers without
    a tensor are passed over.
    """
    if isinstance(output, torch.Tensor):
        return _mean(output)
    if isinstance(output, torch.distributions.Distribution) or type(output).__name__ == "SquashedNormal":
        return output.mean.sum()
    logits = getattr(output, "logits", None)
    if isinstance(logits, torch.Tensor):
        return _mean(logits)
    children = _children(output)
    present = [child for child in children or () if not _is_constant(child)]
    if not present:
        raise CannotReduce(
            f"a {type(output).__qualname__} cannot be reduced to a scalar loss",
            cause="it holds no tensor that could be averaged"
            if children is not None
            else "it is no tensor or container",
            remedy="return tensors (in lists, tuples, dicts or dataclasses), or compare forward only",
        )
    return sum(reduce_to_scalar_loss(child) for child in present) / len(present)


def _children(output: Any) -> list[Any] | None:
    if isinstance(output, (list, tuple, collections.deque)):
        return list(output)
    if isinstance(output, Mapping):
        return list(output.values())
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, f.name) for f in dataclasses.fields(output)]
    return None


def _is_constant(value: Any) -> bool:
    """None, text, a plain number, or a container of nothing else."""
    children = _children(value)
    return isinstance(value, _CONSTANTS) if children is None else all(map(_is_constant, children))


def same_two_models(
    model: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    only_fwd: bool | None = None,
    *,
    require_fp64: bool = False,
    written: bool = False,
    tolerance: Tolerance | None = None,
    **options: Unpack[ToleranceOptions],
) -> Comparison:
    """Whether two models give the same results on the same inputs, from the same random state.

    Gradients, buffers and written-to inputs count too, unless `only_fwd` (those of a function cannot be seen: then
    the gradients of the inputs are what counts). With `written`, inputs that the model writes to count even so. The
    tolerance and whether to make an fp64 reference come from the settings unless given. A `compiled` that raises is
    another failure, not a divergence: it is logged, and the comparison is truthy with `raised` set. Neither the inputs
    nor the random state of the caller are changed.
    """
    settings = config.current()
    only_fwd = settings.forward_only if only_fwd is None else only_fwd
    if tolerance is None:
        tolerance = Tolerance(tol=settings.tolerance, ignore_non_fp=settings.ignore_non_fp)
    tolerance = tolerance.replace(**options)
    with preserved() as start:
        ref, tape = _run_recorded(model, inputs, only_fwd, start)
        eager_end = RngState.capture()
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
        left = clone_inputs(inputs)
        try:
            res = run_fwd_maybe_bwd(compiled, left, only_fwd, disable_clone=True)
        except Exception as error:
            log.exception("while comparing results, the compiled model raised; that is another failure")
            said = f"The compiled model raised {type(error).__qualname__}, so there was nothing to compare."
            return Comparison(True, notes=(said,), raised=error, tolerance=tolerance)
        if not eager_end.same_as(RngState.capture()):
            notes.append(DRAWN_DIFFERENTLY)
    if not only_fwd and isinstance(model, torch.nn.Module) != isinstance(compiled, torch.nn.Module):
        ref, res = _without_state(ref), _without_state(res)
        fp64_ref = fp64_ref and _without_state(fp64_ref)
        notes.append("Only one of the two is a module: parameters, their gradients and buffers were not compared.")
    found = same(ref, res, fp64_ref, tolerance=tolerance)
    if found and only_fwd and written:
        with preserved():
            start.restore()
            differs = _same_inputs(model, inputs, left, tolerance)
        found = found if differs is None else differs
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _same_inputs(
    model: Callable[..., Any], inputs: Sequence[Any], left: Sequence[Any], tolerance: Tolerance
) -> Comparison | None:
    """How inputs differ that the model writes to, if they do. What only the other side writes to is its scratch memory.

    `left`: the inputs as the other side left them.
    """
    if not _may_write(model):
        return None
    ours = clone_inputs(inputs)
    before = [_times_written(one) for one in ours]
    run_fwd_maybe_bwd(model, ours, only_fwd=True, disable_clone=True)
    for at, one in enumerate(ours):
        if _times_written(one) != before[at] and not (found := same(one, left[at], tolerance=tolerance)):
            return dataclasses.replace(found, path=f"inputs[{at}]{found.path}")
    return None


def _may_write(model: Any) -> bool:
    """Whether a graph may write to its inputs. Of other models nobody knows."""
    if not isinstance(model, torch.fx.GraphModule):
        return True
    calls = [node for node in model.graph.nodes if node.op.startswith("call")]
    plain = (node.op == "call_function" and torch_compat.is_op_overload(node.target) for node in calls)
    return not all(plain) or any(torch_compat.op_is_mutable(node.target) for node in calls)


def _times_written(value: Any) -> int | None:
    return torch_compat.times_written(value) if isinstance(value, torch.Tensor) and not value.is_inference() else None


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
        raise NoReference(
            "the fp64 reference could not be computed",
            cause=f"in double precision the program raises {in_words(error)}",
            remedy="compare without it (SLEUTH_FP64=0), or mend the operator that does not take fp64",
        ) from error


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
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()  # neither eight-bit floats nor complex halves can be summed
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    total = torch.sparse.sum(tensor) if tensor.is_sparse else tensor.sum()
    numel = math.prod(tensor.shape)
    if tensor.is_complex():  # the real and the imaginary parts, as so many numbers more
        total, numel = total.real + total.imag, 2 * numel
    return total / max(1, numel)


def _without_state(results: Results) -> Results:
    return dataclasses.replace(results, grads={}, params={}, buffers={})


def _named(model: Any, method: str) -> dict[str, torch.Tensor]:
    return {_plain_name(name): value for name, value in getattr(model, method, tuple)()}


def _plain_name(name: str) -> str:
    """A parameter's name without what torch.compile put in front of it."""
    return name.replace("_orig_mod.", "")


def _grad_or_zero(tensor: torch.Tensor) -> Any:
    if not tensor.requires_grad or not (tensor.is_leaf or tensor.retains_grad):  # one that was computed keeps none
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad

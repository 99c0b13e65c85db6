"""Running and comparing models by the names and the settings of torch's own tool.

The settings are those of `torch._dynamo.config` (`repro_tolerance`, `same_two_models_use_fp64`), read at each call.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsleuth import config, torch_compat
from torchsleuth.compare import models
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.compare.comparison import Tolerance
from torchsleuth.compare.fp64 import widen_module
from torchsleuth.compare.judgement import Verdict
from torchsleuth.compare.kinds import widen
from torchsleuth.compare.trial import judge
from torchsleuth.dropin.accuracy import as_list
from torchsleuth.errors import NoReference

log = logging.getLogger("torch._dynamo.debug_utils")


class AccuracyError(Exception):
    """Compiled and eager compute different results."""


def clone_inputs_retaining_gradness(example_inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs as leaves, each with the `requires_grad` that it had."""
    return clone_inputs(example_inputs)


def clones_like(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs. One that was computed is so again: backends may mind that it is no leaf."""
    with torch.enable_grad():
        return [
            one.clone(memory_format=torch.preserve_format) if _is_computed(was) else one
            for was, one in zip(inputs, clone_inputs(inputs), strict=True)
        ]


def _is_computed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


def run_fwd_maybe_bwd(
    gm: Callable[..., Any], args: Sequence[Any], only_fwd: bool = False, disable_clone: bool = False
) -> Any:
    """Run a model forward and, if its output asks for it, backward.

    Returns the output if `only_fwd`; otherwise a list: the output, None, gradients, parameters, buffers, and the
    gradients of the inputs.
    """
    found = models.run_fwd_maybe_bwd(gm, args, only_fwd, disable_clone)
    return found if only_fwd else as_list(found)


def same_two_models(
    gm: Callable[..., Any],
    opt_gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
    written: bool = False,
) -> bool:
    """Whether two models compute the same. One that raises is another failure: it is logged, and this is True.

    Where the two draw random numbers differently, they have to draw from the same distributions.

    `require_fp64`: a RuntimeError if there can be no fp64 reference, unless the settings want none at all. `written`:
    inputs that the model writes to count, too, forward only as well.
    """
    settings = torch_compat.dynamo_config()
    uses_fp64 = bool(settings.same_two_models_use_fp64)
    tolerance = Tolerance(tol=settings.repro_tolerance, ignore_non_fp=ignore_non_fp)
    with config.patch(fp64=uses_fp64, after=None):
        try:
            found = models.same_two_models(
                gm,
                opt_gm,
                example_inputs,
                only_fwd,
                require_fp64=require_fp64 and uses_fp64,
                written=written,
                tolerance=tolerance,
            )
        except NoReference as error:
            raise RuntimeError(
                f"fp64 outputs could not be generated: {error.cause}; "
                "torch._dynamo.config.same_two_models_use_fp64 = False compares without them"
            ) from error
    if found:
        return True
    if models.DRAWN_DIFFERENTLY in found.notes:  # no two runs would agree: do they draw from one distribution?
        with config.patch(after=None):
            judgement = judge(gm, opt_gm, example_inputs, backward=not only_fwd)
        if judgement.verdict is not Verdict.BUG:
            return True
        log.error("%s", judgement)
        return False
    log.error("%s", found)
    return False


def cast_to_fp64(model: torch.nn.Module, inputs: Any) -> tuple[torch.nn.Module, Any]:
    """The model in double precision, in place, with the casts in its graph; and the inputs, nested as they are."""
    widen_module(model)
    return model, torch_compat.tree_map(_widened, inputs)


def _widened(value: Any) -> Any:
    return widen(value) if isinstance(value, torch.Tensor) else value


def backend_accuracy_fails(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler_fn: Callable[..., Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
    written: bool = False,
) -> bool:
    """Whether what a compiler makes of a graph computes something else. Whatever raises is another failure: logged."""
    try:
        compiled = compiler_fn(copy.deepcopy(gm), clones_like(example_inputs))
        return not same_two_models(
            gm,
            compiled,
            example_inputs,
            only_fwd,
            require_fp64=require_fp64,
            ignore_non_fp=ignore_non_fp,
            written=written,
        )
    except Exception:
        log.exception("an exception where wrong results were looked for: that is another failure, and does not count")
        return False

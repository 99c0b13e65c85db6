"""Do two results agree? By the names and the conventions of torch's own helpers, answered by `torchsleuth.compare`.

    same(eager, compiled, fp64_ref, tol=1e-3)                  # True or False; a difference is logged, with its place
    reduce_to_scalar_loss(model(x)).backward()
    collect_results(model, prediction, loss, example_inputs)   # what `same` compares, as a list

`_Conventions` has what torch does differently: what is a container, which values count as tensors, what is an
AssertionError rather than a difference. The comparing itself is the engine's, and so are its answers where torch's are
wrong: shapes have to agree, integers have to be equal, one NaN does not hide what else is wrong.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import torch
from torch.distributions import Distribution

from torchsleuth import torch_compat
from torchsleuth.compare import models
from torchsleuth.compare.agree import compare_pairs
from torchsleuth.compare.comparison import Comparison, Tolerance
from torchsleuth.compare.kinds import SPARSE, is_floating
from torchsleuth.compare.leaves import array_as_tensor, metadata_difference
from torchsleuth.compare.objects import equal, is_numpy_array
from torchsleuth.compare.tree import (
    ABSENT,
    SEQUENCES,
    Leaves,
    Misfit,
    Opened,
    is_numpy,
    open_container,
    tensors_in,
    walk,
)
from torchsleuth.errors import CannotReduce
from torchsleuth.outcome import Symptom

log = logging.getLogger("torch._dynamo.utils")

_LOOSE: Final = 4e-2
"""How far from fp64 a result may be where eager is NaN. Torch's figure."""
_LARGEST: Final = 10.0
"""The multiplier of `force_max_multiplier`."""
_ANSWERS: Final = "QuestionAnsweringModelOutput"
_BY_NAME: Final = frozenset(
    "MaskedLMOutput Seq2SeqLMOutput CausalLMOutputWithCrossAttentions LongformerMaskedLMOutput Instances "
    f"SquashedNormal Boxes Normal TanhTransform Foo Variable {_ANSWERS}".split()
)
"""Classes that torch compares attribute by attribute."""
_LOGITS: Final = frozenset({"MaskedLMOutput", "Seq2SeqLMOutput", "CausalLMOutputWithCrossAttentions"})
"""Outputs whose logits stand for all of it in a loss."""
_PLAIN = (str, bytes, int, complex, type(None), torch.device, torch.dtype, torch.layout, torch.memory_format)
"""What is equal or not, as Python says: 1, 1.0 and True are."""


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = False,
    exact_dtype: bool = True,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    log_error: Callable[..., None] = log.error,
    use_larger_multiplier_for_smaller_tensor: bool = False,
    force_max_multiplier: bool = False,
    use_iou_for_bool: bool = False,
    iou_threshold: float = 0.99,
) -> bool:
    """Whether `res` is what was expected. If not, `log_error(message, *args)` is told where and how it differs.

    Containers that do not fit at all (a list against none, other keys, other sets), fake tensors, and a sparse tensor
    against a dense one raise an AssertionError; a type that cannot be compared, a RuntimeError.
    """
    tolerance = Tolerance(
        tol=tol,
        cos_similarity=cos_similarity,
        equal_nan=equal_nan or cos_similarity,
        exact_dtype=exact_dtype,
        relax_numpy_equality=relax_numpy_equality,
        ignore_non_fp=ignore_non_fp,
        multiplier=_LARGEST if force_max_multiplier else None,
        use_larger_multiplier_for_smaller_tensor=use_larger_multiplier_for_smaller_tensor,
        loose_tol=_LOOSE,
        iou_threshold=iou_threshold if use_iou_for_bool else None,
    )
    conventions = _Conventions(tolerance, no_reference=fp64_ref is None)
    pairs = walk(ref, res, ABSENT if fp64_ref is None else fp64_ref, opener=_open)
    found = compare_pairs(map(conventions.apply, pairs), tolerance)
    if not found:
        log_error("Accuracy failed: %s", found)
    return found.agree


def requires_bwd_pass(out: Any) -> bool:
    """Whether a tensor in the output of a model, however deep, requires grad."""
    for pair in walk(out, out, opener=_open):
        value = pair.ref
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif not isinstance(value, (*_PLAIN, float)) and not is_numpy(value):
            raise CannotReduce(
                f"whether a {type(value).__qualname__} at {_where(pair.path)} requires grad is not known",
                cause="it is no tensor, number or container",
                remedy="return tensors (in lists, tuples, dicts or dataclasses), or compare forward only",
            )
    return False


def reduce_to_scalar_loss(out: Any) -> Any:
    """The mean of an output; of lists and dicts the mean of means; of outputs with logits those, of a distribution its
    mean. A NotImplementedError that names the type for whatever else it may be."""
    return models.reduce_to_scalar_loss(_without_attributes(out))


def collect_results(model: Any, prediction: Any, loss: Any, example_inputs: Any) -> list[Any]:
    """What a run of a model leaves behind, as a list: see `as_list`."""
    return as_list(models.collect_results(model, prediction, loss, list(example_inputs)))


def as_list(results: models.Results) -> list[Any]:
    """The prediction, the loss, gradients by `name.grad`, parameters and buffers by name, the gradient of each input.

    A parameter without a gradient has one of zeros here, an input has None.
    """
    grads = {f"{name}.grad": grad for name, grad in results.grads.items()}
    inputs = tensors_in(results.inputs)
    input_grads = [one.grad if one.is_leaf or one.retains_grad else None for one in inputs]
    return [results.output, results.loss, grads, results.params, results.buffers, *input_grads]


def _open(value: Any) -> Opened | None:
    """The children of what torch takes for a container (and of dataclasses and distributions, whatever their name)."""
    name = type(value).__name__
    if name == _ANSWERS and getattr(value, "loss", None) is not None:
        return Opened(name, {".loss": value.loss})  # as torch has it: the loss stands for the logits
    containers = (*SEQUENCES, Mapping, torch.nn.ParameterDict, Distribution)
    if isinstance(value, containers) or dataclasses.is_dataclass(value) or name in _BY_NAME:
        return open_container(value)
    return None


@dataclass(frozen=True)
class _Conventions:
    """Pairs as the engine finds them, brought into the form in which torch would compare them."""

    tolerance: Tolerance
    no_reference: bool
    """Then double precision is a reference for itself."""

    def apply(self, pair: Leaves | Misfit) -> Leaves | Misfit:
        if isinstance(pair, Misfit):
            return self._misfit(pair)
        ref = pair.ref
        if not _is_known(ref):
            _not_supported(pair.path, ref)
        if isinstance(ref, set):
            return pair if equal(ref, pair.res) else _refuse(pair.path, f"expected {ref}, got {pair.res}")
        if isinstance(ref, _PLAIN):
            return replace(pair, res=ref) if equal(ref, pair.res) else pair
        if isinstance(ref, (torch.Tensor, float)) or is_numpy_array(ref):
            return self._tensors(self._as_tensors(pair))
        return pair

    def _misfit(self, pair: Misfit) -> Misfit:
        """A list that is too long is a difference, and so is a container in the place of a leaf. Others are errors."""
        ref, res = pair.sides
        if _open(ref) is None and not _is_known(ref):
            _not_supported(pair.path, ref)
        opened = isinstance(ref, set) or _open(ref) is not None
        if opened and not (isinstance(ref, SEQUENCES) and isinstance(res, SEQUENCES)):
            keys = pair.symptom is Symptom.STRUCTURE
            _refuse(pair.path, pair.message if keys else f"expected a {pair.ref}, got a {pair.res}")
        return pair

    def _as_tensors(self, pair: Leaves) -> Leaves:
        """Tensors, where torch would make some: of arrays, of numbers of unlike types, of what stands against one."""
        ref, res = pair.ref, pair.res
        if isinstance(ref, float) and not isinstance(res, torch.Tensor):
            if type(ref) is type(res) or self.tolerance.relax_numpy_equality:
                return pair  # two numbers, which as tensors would lose half of their digits
        elif is_numpy_array(ref) and not is_numpy_array(res):
            return pair
        return replace(pair, ref=_as_tensor(ref), res=_as_tensor(res), fp64=_as_tensor(pair.fp64))

    def _tensors(self, pair: Leaves) -> Leaves | Misfit:
        ref, res, fp64 = pair.ref, pair.res, pair.fp64
        if not isinstance(ref, torch.Tensor):
            return pair
        if any(map(torch_compat.is_fake, (ref, res, fp64))):
            _refuse(pair.path, "a fake tensor has no values to compare")
        layouts = {side.layout for side in (ref, res) if isinstance(side, torch.Tensor)}
        if len(layouts) == 2 and not layouts.isdisjoint(SPARSE):
            _refuse(pair.path, f"expected a tensor with the layout {ref.layout}, got {res.layout}")
        if self.tolerance.ignore_non_fp and not is_floating(ref):
            differs = metadata_difference(pair, self.tolerance)  # the values are ignored, not what kind they are
            return pair if differs is None else _as_misfit(pair, differs)
        if (self.no_reference or fp64 is None) and ref.dtype == torch.float64:
            fp64 = ref
        if not self.tolerance.exact_dtype and isinstance(res, torch.Tensor) and _are_of_one_kind(ref, res):
            ref = ref.to(res.dtype)
        return replace(pair, ref=ref, fp64=fp64)


def _is_known(value: Any) -> bool:
    known = (torch.Tensor, set, float, *_PLAIN)
    return isinstance(value, known) or is_numpy(value) or type(value).__name__ in _BY_NAME


def _as_tensor(value: Any) -> Any:
    """A number or an array as a tensor; anything else as it is (and what torch has no dtype for)."""
    try:
        if is_numpy_array(value):
            return array_as_tensor(value)
        number = isinstance(value, (int, float, complex)) or is_numpy(value)
        return torch.tensor(value) if number else value
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return value


def _are_of_one_kind(ref: torch.Tensor, res: torch.Tensor) -> bool:
    """Whether one can be rounded to the dtype of the other, and loses nothing but digits."""
    both_real = ref.is_floating_point() and res.is_floating_point()
    return both_real or (ref.is_complex() and res.is_complex())


def _as_misfit(pair: Leaves, found: Comparison) -> Misfit:
    return Misfit(pair.path, found.symptom or Symptom.TYPE, found.ref, found.res, found.message, (pair.ref, pair.res))


def _refuse(path: str, why: str) -> NoReturn:
    raise AssertionError(f"the results do not fit at {_where(path)}: {why}")


def _not_supported(path: str, value: object) -> NoReturn:
    raise RuntimeError(f"unsupported type: {type(value).__name__} at {_where(path)}")


def _where(path: str) -> str:
    return path or "the result itself"


def _without_attributes(out: Any) -> Any:
    """An output as plain lists and dicts, as torch reads it: only of a few classes the `logits` stand for all."""
    if type(out).__name__ in _LOGITS:
        return out
    if isinstance(out, (list, tuple)):
        children = map(_without_attributes, out)
        return tuple(children) if isinstance(out, tuple) else list(children)
    if isinstance(out, Mapping):
        return {key: _without_attributes(child) for key, child in out.items()}
    return out

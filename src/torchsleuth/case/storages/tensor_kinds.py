"""What there is to know about kinds of tensors: which ones a case can hold, what they are made of, how to make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.format.tensor_checks import SPARSE
from torchsleuth.case.names import DTYPE_BITS, is_device
from torchsleuth.case.storages.memory import address_to_read
from torchsleuth.errors import CannotHold, in_words


def name_of(constant: torch.dtype | torch.layout | torch.qscheme) -> str:
    """What torch calls one of its constants, without "torch."."""
    return str(constant).removeprefix("torch.")


def type_of(tensor: torch.Tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def in_text(tensor: torch.Tensor) -> str:
    """Size, dtype and device for people. Not `repr`: a subclass may run anything there, and values may be many."""
    try:
        return f"{list(tensor.shape)} {name_of(tensor.dtype)} {tensor.device}"
    except Exception:  # noqa: BLE001 - whatever a broken subclass raises, the notice is worth having without it
        return ""


def why_not(tensor: torch.Tensor) -> str | None:
    """Why a case cannot hold this tensor, if that is so."""
    if torch_compat.is_fake(tensor):
        return "a fake tensor has a shape but no values"
    if torch_compat.is_wrapper(tensor):
        return "it is a wrapper that torch traces with (functionalisation, vmap, grad), not a tensor of its own"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return "a tensor subclass: only its own code knows what it is made of"
    if tensor.is_nested:
        return "a nested tensor: its shape is not that of one tensor"
    layout = name_of(tensor.layout)
    if layout not in SPARSE and layout != "strided":
        return f"its layout is {layout}, and only its kernels know how its bytes lie"
    if name_of(tensor.dtype) not in DTYPE_BITS or not is_device(str(tensor.device)):
        return f"dtype {tensor.dtype} on {tensor.device} is not known here"
    if layout == "strided" and tensor.device.type != "meta":
        try:
            address_to_read(tensor.untyped_storage())
        except (RuntimeError, NotImplementedError) as error:
            return f"its memory cannot be reached: {in_words(error)}"
    return None


def why_no_recipe(fake: torch.Tensor) -> str | None:
    """Why no values are made up for a fake tensor, if that is so."""
    if torch_compat.subclass_name(fake) is not None:
        return "a tensor subclass: only its own code knows what it is made of"
    if fake.layout != torch.strided or fake.is_quantized or name_of(fake.dtype) not in DTYPE_BITS:
        return f"it never had values, and none are made up for {fake.layout} of {fake.dtype}"
    return None


# ---- tensors that are made of others ---------------------------------------------------------------------


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that a sparse one is made of."""
    match name_of(tensor.layout):
        case "sparse_coo":
            return torch_compat.sparse_parts(tensor)
        case "sparse_csr" | "sparse_bsr":
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        case _:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def quantiser_of(tensor: torch.Tensor) -> schema.Quantiser:
    scheme = name_of(tensor.qscheme())
    if not scheme.startswith("per_channel"):
        return schema.Quantiser(scheme, (tensor.q_scale(),), (float(tensor.q_zero_point()),))
    return schema.Quantiser(
        scheme,
        tuple(tensor.q_per_channel_scales().tolist()),
        tuple(map(float, tensor.q_per_channel_zero_points().tolist())),
        tensor.q_per_channel_axis(),
    )


def empty_like_record(record: schema.Tensor) -> torch.Tensor:
    """A tensor of the record's kind, without its elements: it has yet to be pointed at its memory."""
    dtype: torch.dtype = getattr(torch, record.dtype)
    quantiser = record.quantiser
    if quantiser is None:
        return torch.empty(0, dtype=dtype, device=record.device)
    if quantiser.axis is None:
        return torch_compat.empty_quantised(dtype, quantiser.scales[0], int(quantiser.zero_points[0]))
    real = quantiser.scheme.endswith("float_qparams")
    scales = torch.tensor(quantiser.scales, dtype=torch.float32 if real else torch.float64, device="cpu")
    zero_points = torch.tensor(quantiser.zero_points, dtype=torch.float64, device="cpu")
    return torch_compat.empty_quantised_by_channel(
        dtype,
        [len(scales) if axis == quantiser.axis else 1 for axis in range(len(record.size))],
        scales,
        zero_points.to(torch.float32 if real else torch.int64),
        quantiser.axis,
    )


def moved(storage: torch.UntypedStorage, device: str, file: str, field: str) -> torch.UntypedStorage:
    """The same bytes on another device."""
    try:
        there: torch.UntypedStorage = storage.to(device=torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError, AttributeError) as error:
        raise CannotHold(
            f"a tensor of the case lives on {device}, and that is not here",
            cause=in_words(error),
            remedy=f"run it on a machine with {device}",
            file=file,
            field=field,
        ) from error
    return there


# ---- results of computations -----------------------------------------------------------------------------


class _Result(torch.autograd.Function):
    """Gives out a tensor as if it had been computed. Unlike a view of a leaf, it may be written to."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, give: Callable[[], torch.Tensor]) -> torch.Tensor:
        return give()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


def as_result(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one that needs a gradient and is no leaf, in the same memory."""
    apply: Callable[..., torch.Tensor] = _Result.apply
    with torch.enable_grad():
        return apply(torch.zeros((), device="cpu", requires_grad=True), lambda: tensor)

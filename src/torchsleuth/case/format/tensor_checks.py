"""What has to hold of a tensor's record before torch hears of it. Knows no torch.

torch trusts what it is told about memory, and answers nonsense with whatever error its innermost function has. So each
claim of a record is checked here first, and one that does not hold is a `BadCase` that names the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.names import DTYPE_BITS, LAYOUT_PARTS, QUANTISATION_SCHEMES, is_device
from torchsleuth.errors import GET_IT_AGAIN, BadCase

SPARSE: Final = frozenset({"sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"})
_BIGGEST: Final = 2**63 - 1
_MOST_DIMENSIONS: Final = 1024

Claim = tuple[bool, str, str]
"""Whether it holds, the field it is about, and what is wrong if it does not."""


def bytes_needed(record: schema.Tensor) -> int:
    """How many bytes of its storage a strided tensor reaches over, from the storage's beginning."""
    if 0 in record.size:
        return 0
    last = record.offset + sum((n - 1) * step for n, step in zip(record.size, record.stride, strict=True))
    return -(-(last + 1) * DTYPE_BITS[record.dtype] // 8)


def bad(field: str, cause: str, file: str = "") -> BadCase:
    """The error for a record that is not right."""
    return BadCase(
        "a tensor is not what it has to be",
        cause=cause,
        remedy=GET_IT_AGAIN,
        file=file,
        field=field,
    )


def check_tensor(record: schema.Tensor, storages: Sequence[schema.Storage], field: str, file: str = "") -> None:
    """Raise a `BadCase` for the first claim of a record that does not hold."""
    for holds, where, cause in _claims(record, storages):
        if not holds:
            raise bad(f"{field}.{where}", cause, file)


def check_storage(entry: schema.Storage, field: str, file: str = "") -> None:
    """The same for an entry of `storages`."""
    claims: tuple[Claim, ...] = (
        (0 <= entry.nbytes <= _BIGGEST, "nbytes", f"there are no {entry.nbytes} bytes"),
        (is_device(entry.device), "device", f"there is no device {entry.device[:80]!r}"),
        (
            isinstance(entry.content, schema.Nothing) == (entry.device == "meta"),
            "content",
            "memory on the meta device has no values, and no other memory has none",
        ),
    )
    for holds, where, cause in claims:
        if not holds:
            raise bad(f"{field}.{where}", cause, file)


def _claims(record: schema.Tensor, storages: Sequence[schema.Storage]) -> Iterator[Claim]:
    strided = record.layout == "strided"
    yield record.dtype in DTYPE_BITS, "dtype", f"there is no dtype {record.dtype[:80]!r}"
    yield strided or record.layout in SPARSE, "layout", f"no case holds layout {record.layout[:80]!r}"
    yield is_device(record.device), "device", f"there is no device {record.device[:80]!r}"
    yield len(record.size) <= _MOST_DIMENSIONS, "size", f"{len(record.size)} dimensions"
    yield all(0 <= n <= _BIGGEST for n in record.size), "size", "a size is negative or beyond 2^63"
    yield math.prod(max(n, 1) for n in record.size) <= _BIGGEST, "size", "more than 2^63 elements"
    yield record.requires_grad or record.leaf, "leaf", "what needs no gradient is a leaf"
    yield record.leaf or not record.parameter, "leaf", "a parameter is a leaf"
    yield not record.conj or record.dtype.startswith("complex"), "conj", f"{record.dtype} has no conjugate"
    yield not record.neg or record.dtype != "bool", "neg", "bool has no sign"
    differentiable = record.dtype.startswith(("float", "bfloat", "complex"))
    yield not record.requires_grad or differentiable, "requires_grad", f"{record.dtype} has no gradient"
    if strided:
        yield from _claims_of_a_view(record, storages)
    else:
        yield from _claims_of_a_sparse_one(record)


def _claims_of_a_view(record: schema.Tensor, storages: Sequence[schema.Storage]) -> Iterator[Claim]:
    yield not record.parts, "parts", "a strided tensor has none"
    yield not record.coalesced, "coalesced", "only a COO tensor can be"
    yield len(record.stride) == len(record.size), "stride", "there is one for each size"
    yield all(0 <= n <= _BIGGEST for n in record.stride), "stride", "a stride is negative or beyond 2^63"
    yield 0 <= record.offset <= _BIGGEST, "offset", "it is negative or beyond 2^63"
    number, known = record.storage, len(storages)
    if number is None or not 0 <= number < known:
        yield False, "storage", f"the case has {known} storages, and this is number {number}"
        return
    entry = storages[number]
    yield entry.device == record.device, "device", f"its storage is on {entry.device[:80]!r}"
    needed = bytes_needed(record)
    # A storage that was emptied (FSDP does that between uses) still has its tensors.
    fits = needed <= entry.nbytes or entry.nbytes == 0
    yield fits and needed <= _BIGGEST, "size", f"it needs {needed:,} bytes of a storage that has {entry.nbytes:,}"
    yield (
        (record.quantiser is not None) == ("qint" in record.dtype or "quint" in record.dtype),
        "quantiser",
        (f"{record.dtype} {'has none' if record.quantiser else 'needs one'}"),
    )
    if record.quantiser is not None:
        yield from _claims_of_a_quantiser(record.quantiser, record)
    if record.base is not None:
        base = record.base
        yield base.base is None, "base.base", "a base is nobody's view"
        yield base.layout == "strided" and base.storage == number, "base.storage", "it is not the memory of its view"
        yield base.dtype == record.dtype and base.quantiser is None, "base.dtype", f"its view is {record.dtype}"
        yield not (base.conj or base.neg), "base.conj", "a base is what it is"


def _claims_of_a_quantiser(quantiser: schema.Quantiser, record: schema.Tensor) -> Iterator[Claim]:
    known = quantiser.scheme in QUANTISATION_SCHEMES
    by_channel = quantiser.scheme.startswith("per_channel")
    yield known, "quantiser.scheme", f"there is no scheme {quantiser.scheme[:80]!r}"
    yield by_channel == (quantiser.axis is not None), "quantiser.axis", "there is one if each channel has its scale"
    channels = 1
    if quantiser.axis is not None:
        yield 0 <= quantiser.axis < len(record.size), "quantiser.axis", f"the tensor has {len(record.size)}"
        channels = record.size[quantiser.axis]
    yield len(quantiser.scales) == channels, "quantiser.scales", f"the tensor needs {channels}"
    yield len(quantiser.zero_points) == channels, "quantiser.zero_points", f"the tensor needs {channels}"
    yield all(map(math.isfinite, quantiser.zero_points)), "quantiser.zero_points", "one is not finite"
    yield all(abs(zero) < 2**31 for zero in quantiser.zero_points), "quantiser.zero_points", "one is beyond 2^31"


def _claims_of_a_sparse_one(record: schema.Tensor) -> Iterator[Claim]:
    wanted = LAYOUT_PARTS[record.layout]
    yield len(record.parts) == wanted, "parts", f"{record.layout} has {wanted}, not {len(record.parts)}"
    yield record.storage is None, "storage", "only a strided tensor has one"
    yield record.quantiser is None, "quantiser", "only a strided tensor has one"
    yield record.base is None, "base", "only a strided tensor has one"
    yield not record.coalesced or record.layout == "sparse_coo", "coalesced", "only a COO tensor can be"
    yield not (record.conj or record.neg), "conj", "only a strided tensor is read in another way than it is kept"
    values = record.parts[-1]
    yield values.dtype == record.dtype, "parts", f"its values are {values.dtype[:80]}, and it is {record.dtype}"
    for index, part in enumerate(record.parts):
        where = f"parts[{index}]"
        yield part.layout == "strided", f"{where}.layout", "a part is strided"
        yield part.base is None, f"{where}.base", "a part has none"
        yield part.quantiser is None, f"{where}.quantiser", "a part has none"
        whole = index == wanted - 1 or part.dtype in ("int64", "int32")
        yield whole, f"{where}.dtype", f"indices are int64 or int32, not {part.dtype[:80]}"

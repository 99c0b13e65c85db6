"""Smaller tensors: lengths, one after another, over the whole graph; then single dimensions of single inputs.

    symbols         the value of a symbolic size
    lengths         every dimension of one length at once, and what follows from it in the graph
    dimensions      one dimension of one input
    (ranks and strides are in `layouts`)

A length that occurs in several inputs is most likely one length of the user's program: a batch, a hidden size. So all
of its dimensions are changed together, and numbers in arguments follow (`repairing`). What cannot be worked out that
way is not proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch

from torchsleuth.case.schema import Case, Fake, Generated, Storage, Stored, Tensor
from torchsleuth.case.storages.blobs import Blobs, allocate
from torchsleuth.reduce.graphs import produced, replace
from torchsleuth.reduce.inputs import (
    input_of,
    is_plain,
    resized,
    tensor_attributes,
    tensor_inputs,
    with_attribute,
    with_hints,
    with_input,
)
from torchsleuth.reduce.passes.waiting import patch
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.propagating import propagated
from torchsleuth.reduce.repairing import Follow

_SMALL: Final = (1, 2, 4, 8)
_NEARER: Final = (1, 2, 3, 5)
_WHOLE: Final = frozenset({"int64", "int32", "int16", "int8", "uint8"})


def symbols(case: Case, material: Material) -> Iterator[Site]:
    """Smaller values for symbolic sizes. They stay symbolic: 0 and 1, which torch takes for numbers, are left out."""
    follow = {name for name, _ in case.symbols.replacements}
    for one in case.symbols.symbols:
        if one.backed and one.name not in follow and isinstance(one.hint, int) and one.hint > 2:
            yield [_symbol(one.name, value, material) for value in _smaller(one.hint) if value >= 2]


def lengths(case: Case, material: Material) -> Iterator[Site]:
    """One length wherever it occurs, the longest first."""
    found = {
        length for tensor, free in _free(case) for length, is_free in zip(tensor.size, free, strict=True) if is_free
    }
    for length in sorted(found, reverse=True):
        if length > 1:
            yield [_everywhere(length, value, material) for value in _smaller(length)]


def dimensions(case: Case, material: Material) -> Iterator[Site]:
    """One dimension of one input, for lengths that several dimensions have by chance."""
    for node, tensor in tensor_inputs(case):
        for axis, free in enumerate(_free_axes(node.meta.val or node.meta.example, tensor)):
            if free and tensor.size[axis] > 1:
                yield [_one(node.name, axis, value, material) for value in _smaller(tensor.size[axis])]


def _smaller(length: int) -> list[int]:
    """Lengths to try instead, the best first: small ones, then those nearer and nearer to what it is.

    They are few, since each may cost a compilation, and such that looking again soon leads to the least there is.
    """
    found = {*_SMALL, length - 1, *(length - (length >> bits) for bits in _NEARER)}
    return sorted(value for value in found if 0 < value < length)


def _free(case: Case) -> Iterator[tuple[Tensor, list[bool]]]:
    """The tensors whose shape can be changed, and which of their dimensions."""
    for node, tensor in tensor_inputs(case):
        yield tensor, _free_axes(produced(node), tensor)
    for _, tensor in tensor_attributes(case):
        yield tensor, [is_plain(tensor)] * len(tensor.size)


def _free_axes(known: object, tensor: Tensor) -> list[bool]:
    """Which dimensions are numbers: symbolic ones are changed by their symbols."""
    if not is_plain(tensor) or not isinstance(known, Fake) or len(known.size) != len(tensor.size):
        return [is_plain(tensor) and known is None] * len(tensor.size)
    return [isinstance(size, int) for size in known.size]


# ---- patches -----------------------------------------------------------------------------------------------


def _symbol(name: str, value: int, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        old = next((one.hint for one in case.symbols.symbols if one.name == name), None)
        if not isinstance(old, int) or old <= value:
            return None
        changed = with_hints(case, {name: value}, blobs)
        follow = Follow(case, {old: value}, everywhere=False)
        return None if changed is None else _legal(changed, old, value, blobs, follow)

    return patch(f"{name}: {value}", material, edit)


def _everywhere(length: int, value: int, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        changed = _each(case, blobs, lambda size: value if size == length else size)
        return None if changed is None else _legal(changed, length, value, blobs, Follow(case, {length: value}))

    return patch(f"length {length}: {value}", material, edit)


def _one(name: str, axis: int, value: int, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        tensor = input_of(case, name)
        if not isinstance(tensor, Tensor) or not is_plain(tensor) or axis >= len(tensor.size):
            return None
        length = tensor.size[axis]
        if length <= value:
            return None
        changed, made = resized(case, tensor, (*tensor.size[:axis], value, *tensor.size[axis + 1 :]), blobs)
        follow = Follow(case, {length: value}, everywhere=False)
        return _legal(with_input(changed, name, made), length, value, blobs, follow)

    return patch(f"{name}: dimension {axis} of length {value}", material, edit)


def _each(case: Case, blobs: Blobs, change: Callable[[int], int]) -> Case | None:
    """The case with other lengths in every tensor; None if there is none to change."""
    found = case
    for node, tensor in tensor_inputs(case):
        axes = _free_axes(produced(node), tensor)
        size = tuple(change(n) if free else n for n, free in zip(tensor.size, axes, strict=True))
        if size != tensor.size:
            found, made = resized(found, tensor, size, blobs)
            found = with_input(found, node.name, made)
    for name, tensor in tensor_attributes(case):
        size = tuple(map(change, tensor.size)) if is_plain(tensor) else tensor.size
        if size != tensor.size:
            found, made = resized(found, tensor, size, blobs)
            found = with_attribute(found, name, made)
    return None if found is case else found


def _legal(case: Case, old: int, new: int, blobs: Blobs, follow: Follow) -> Case | None:
    """The case with all that follows; whole numbers that were below the old length are below the new one."""
    made = propagated(case, blobs, follow)
    return None if made is None else _within(made, old, new, blobs)


# ---- indices -----------------------------------------------------------------------------------------------


def _within(case: Case, old: int, new: int, blobs: Blobs) -> Case:
    """Whole numbers that may be places in a dimension that was longer, brought within it."""
    storages = list(case.storages)
    for tensor in (*(one for _, one in tensor_inputs(case)), *(one for _, one in tensor_attributes(case))):
        if is_plain(tensor) and tensor.dtype in _WHOLE and tensor.storage is not None:
            storages[tensor.storage] = _storage_within(storages[tensor.storage], tensor.dtype, old, new, blobs)
    return replace(case, storages=tuple(storages))


def _storage_within(storage: Storage, dtype: str, old: int, new: int, blobs: Blobs) -> Storage:
    content = storage.content
    drawn = isinstance(content, Generated) and content.how == "integers" and content.dtype == dtype
    if isinstance(content, Generated) and drawn and new < content.high <= old:
        return replace(storage, content=replace(content, low=min(content.low, new - 1), high=new))
    if isinstance(content, Stored) and storage.device == "cpu":
        held = blobs.get(content.digest, storage.nbytes)
        values = torch.empty(0, dtype=getattr(torch, dtype)).set_(held)
        if values.numel() and new <= int(values.max()) < old and int(values.min()) >= 0:
            made = allocate(storage.nbytes)
            torch.empty(0, dtype=values.dtype).set_(made).copy_(values % new)
            return replace(storage, content=Stored(blobs.put(made)))
    return storage

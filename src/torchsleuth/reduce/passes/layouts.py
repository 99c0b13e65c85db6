"""Fewer dimensions, and tensors that lie in memory as they are read.

ranks       a leading dimension of all inputs that have the most; a dimension of one input
strides     contiguous tensors; memory that begins where the tensor does
"""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.case.schema import Case, Fake, Tensor
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.reduce.graphs import produced, replace
from torchsleuth.reduce.inputs import input_of, is_plain, ordinary_strides, resized, tensor_inputs, with_input
from torchsleuth.reduce.passes.waiting import patch
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.propagating import propagated
from torchsleuth.reduce.repairing import Follow

# ---- ranks -------------------------------------------------------------------------------------------------


def ranks(case: Case, material: Material) -> Iterator[Site]:
    """Inputs without one of their dimensions."""
    plain = [(node, tensor) for node, tensor in tensor_inputs(case) if is_plain(tensor) and tensor.size]
    if len(plain) > 1:
        rank = max(len(tensor.size) for _, tensor in plain)
        names = tuple(node.name for node, tensor in plain if len(tensor.size) == rank)
        yield [_without_axis(names, 0, material)]
    for node, tensor in plain:
        axes = [axis for axis, length in enumerate(tensor.size) if length == 1 or axis in (0, len(tensor.size) - 1)]
        for axis in reversed(axes):  # so that several can go together: those before one keep their numbers
            yield [_without_axis((node.name,), axis, material)]


def _without_axis(names: tuple[str, ...], axis: int, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        found = case
        for name in names:
            tensor = input_of(case, name)
            if isinstance(tensor, Tensor) and is_plain(tensor) and axis < len(tensor.size):
                if not _is_number(case, name, axis):
                    return None
                found = _dropped(found, name, tensor, axis, blobs)
        return None if found is case else propagated(found, blobs, Follow(case, {}, everywhere=False))

    return patch(f"{', '.join(names)}: without dimension {axis}", material, edit)


def _is_number(case: Case, name: str, axis: int) -> bool:
    """Whether the length of a dimension is a number, and not symbolic."""
    known = next((produced(node) for node, _ in tensor_inputs(case) if node.name == name), None)
    return not isinstance(known, Fake) or (axis < len(known.size) and isinstance(known.size[axis], int))


def _dropped(case: Case, name: str, tensor: Tensor, axis: int, blobs: Blobs) -> Case:
    size = (*tensor.size[:axis], min(tensor.size[axis], 1), *tensor.size[axis + 1 :])
    case, made = resized(case, tensor, size, blobs)
    made = replace(
        made,
        size=(*made.size[:axis], *made.size[axis + 1 :]),
        stride=(*made.stride[:axis], *made.stride[axis + 1 :]),
        grad=None,
    )
    return with_input(case, name, made, [other for other in range(len(size)) if other != axis])


# ---- strides -----------------------------------------------------------------------------------------------


def strides(case: Case, material: Material) -> Iterator[Site]:
    """Inputs that are contiguous; where that is too much, such that begin where their memory does."""
    for node, tensor in tensor_inputs(case):
        if not is_plain(tensor):
            continue
        odd = tensor.stride != ordinary_strides(tensor.size)
        if odd or tensor.offset:
            site = [_laid_out(node.name, True, material)] if odd else []
            yield [*site, _laid_out(node.name, False, material)] if tensor.offset else site


def _laid_out(name: str, contiguous: bool, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        tensor = input_of(case, name)
        if not isinstance(tensor, Tensor) or not is_plain(tensor):
            return None
        stride = ordinary_strides(tensor.size) if contiguous else tensor.stride
        if (stride, 0) == (tensor.stride, tensor.offset):
            return None
        changed, made = resized(case, tensor, tensor.size, blobs, stride, 0)
        return propagated(with_input(changed, name, made), blobs)

    return patch(f"{name}: {'contiguous' if contiguous else 'from the start of its memory'}", material, edit)

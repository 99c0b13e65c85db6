"""Simpler dtypes: float32 in the place of other floats, and of whole numbers where nothing needs those to be whole.

dtypes      all inputs of one dtype at once, then single ones
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from torchsleuth.case.schema import Case, Generated, Graph, Nothing, Storage, Stored, Tensor, Torch, Value
from torchsleuth.case.storages.blobs import Blobs, allocate
from torchsleuth.reduce.graphs import map_arguments, replace
from torchsleuth.reduce.inputs import is_plain, tensor_inputs, with_input
from torchsleuth.reduce.order import dtype_rank
from torchsleuth.reduce.passes.waiting import patch
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.propagating import propagated

_SIMPLE: Final = ("float32", "int64")


def dtypes(case: Case, material: Material) -> Iterator[Site]:
    """Inputs of simpler dtypes."""
    by_dtype: dict[str, list[str]] = {}
    for node, tensor in tensor_inputs(case):
        if is_plain(tensor):
            by_dtype.setdefault(tensor.dtype, []).append(node.name)
    for dtype, names in sorted(by_dtype.items(), key=lambda item: -dtype_rank(item[0])):
        yield list(_all_of(case.graph, dtype, names, material))
    for dtype, names in by_dtype.items():
        if len(names) > 1:
            for name in names:
                yield list(_all_of(case.graph, dtype, [name], material))


def _all_of(graph: Graph, dtype: str, names: Sequence[str], material: Material) -> Iterator[Patch]:
    named = any(map_arguments(node, _InArguments(dtype, "")) != node for node in graph.nodes)
    for simpler in _SIMPLE:
        if dtype_rank(simpler) < dtype_rank(dtype):
            if named:
                yield _patch(dtype, simpler, names, True, material)
            yield _patch(dtype, simpler, names, False, material)


def _patch(dtype: str, simpler: str, names: Sequence[str], arguments: bool, material: Material) -> Patch:
    def edit(case: Case, blobs: Blobs) -> Case | None:
        found = _Converted(case, blobs).inputs(dtype, simpler, names)
        if found is None:
            return None
        if arguments:
            nodes = tuple(map_arguments(node, _InArguments(dtype, simpler)) for node in found.graph.nodes)
            found = replace(found, graph=replace(found.graph, nodes=nodes))
        return propagated(found, blobs)

    which = names[0] if len(names) == 1 else f"{len(names)} inputs"
    return patch(f"{which}: {simpler} for {dtype}{', in arguments too' if arguments else ''}", material, edit)


class _InArguments:
    """Another dtype wherever one is named."""

    def __init__(self, dtype: str, simpler: str) -> None:
        self._dtype = dtype
        self._simpler = simpler

    def __call__(self, value: Value) -> Value:
        return Torch(self._simpler) if isinstance(value, Torch) and value.name == self._dtype else value


class _Converted:
    """A case with inputs of another dtype. Those that shared memory go on sharing it."""

    def __init__(self, case: Case, blobs: Blobs) -> None:
        self._case = case
        self._blobs = blobs
        self._storages = list(case.storages)
        self._new: dict[int, int] = {}

    def inputs(self, dtype: str, simpler: str, names: Sequence[str]) -> Case | None:
        made = {}
        for node, tensor in tensor_inputs(self._case):
            if node.name in names and tensor.dtype == dtype and is_plain(tensor):
                converted = self._tensor(tensor, simpler)
                if converted is None:
                    return None
                made[node.name] = converted
        found = replace(self._case, storages=tuple(self._storages))
        for name, tensor in made.items():
            found = with_input(found, name, tensor, shares=True)
        return found if made else None

    def _tensor(self, tensor: Tensor, dtype: str) -> Tensor | None:
        number = self._number(tensor, dtype)
        base, grad = (None if one is None else self._tensor(one, dtype) for one in (tensor.base, tensor.grad))
        if number is None:
            return None
        differentiable = dtype.startswith("float") and tensor.requires_grad
        return replace(
            tensor,
            dtype=dtype,
            storage=number,
            base=base,
            grad=grad,
            conj=False,
            requires_grad=differentiable,
            leaf=tensor.leaf or not differentiable,
        )

    def _number(self, tensor: Tensor, dtype: str) -> int | None:
        """Where the values of the storage are, as another dtype; None if its bytes are not of the tensor's own."""
        assert tensor.storage is not None
        if tensor.storage not in self._new:
            made = self._storage(self._case.storages[tensor.storage], tensor.dtype, dtype)
            if made is None:
                return None
            self._storages.append(made)
            self._new[tensor.storage] = len(self._storages) - 1
        return self._new[tensor.storage]

    def _storage(self, storage: Storage, old: str, new: str) -> Storage | None:
        before, after = getattr(torch, old), getattr(torch, new)
        count = storage.nbytes // before.itemsize
        nbytes = count * after.itemsize
        content = storage.content
        match content:
            case Nothing():
                return replace(storage, nbytes=nbytes)
            case Generated():
                if content.dtype != old:
                    return None
                return replace(storage, nbytes=nbytes, content=replace(content, dtype=new))
            case Stored(digest):
                values = torch.empty(0, dtype=before).set_(self._blobs.get(digest, storage.nbytes), 0, (count,), (1,))
                made = allocate(nbytes)
                into = torch.empty(0, dtype=after).set_(made, 0, (count,), (1,))
                into.copy_(values.real if before.is_complex else values)
                return replace(storage, nbytes=nbytes, content=Stored(self._blobs.put(made)))

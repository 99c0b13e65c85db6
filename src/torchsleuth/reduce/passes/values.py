"""Simpler values, so that no file with data has to lie beside the script.

uniform     one whole number all over a memory, so that any part of it is as good as another
values      one memory after another: zeros, ones, counting, drawn with seed 0; or numbers of few digits
numbers     inputs that are numbers
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.schema import Case, Generated, Nothing, Stored, Tensor
from torchsleuth.case.storages.blobs import Blobs, allocate
from torchsleuth.case.storages.tensors import TensorReader
from torchsleuth.reduce.graphs import name_of, placeholders, replace, tensors_of
from torchsleuth.reduce.order import graphs_in
from torchsleuth.reduce.passes.editing import smaller
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.reduce.propagating import propagated

_FLOATS: Final = frozenset("float64 float32 float16 bfloat16".split())
_WHOLE: Final = frozenset("int64 int32 int16 int8 uint8".split())
_DIGITS: Final = (1, 2, 3)
_MOST_TO_ROUND: Final = 2**16
"""With more elements than that, fewer digits are no help to anybody."""


# ---- memory ------------------------------------------------------------------------------------------------


def values(case: Case, material: Material) -> Iterator[Site]:
    """Simpler values for each memory."""
    dtypes = _dtypes(case)
    for number, storage in enumerate(case.storages):
        content = storage.content
        if isinstance(content, Nothing) or number not in dtypes or not storage.nbytes:
            continue
        spread = _spread(case, number, dtypes[number], material.blobs)
        recipes = _recipes(spread, material)
        if _may_be_places(case, spread):
            recipes = ((words, recipe) for words, recipe in recipes if recipe.how == "arange")
        site = [_patch(number, content, words, recipe) for words, recipe in recipes]
        if isinstance(content, Stored) and material.values_matter and spread.dtype in _FLOATS:
            site += [_rounded(number, content, spread, digits, material.blobs) for digits in _DIGITS]
        yield site


def uniform(case: Case, material: Material) -> Iterator[Site]:
    """Of whole numbers, all of which may matter, only one: before sizes, which keep what comes first of a memory."""
    if not material.values_matter or _writes_at_places(case):
        return
    dtypes = _dtypes(case)
    for number, storage in enumerate(case.storages):
        content, dtype = storage.content, dtypes.get(number, "")
        constant = isinstance(content, Generated) and content.how == "constant"
        if dtype not in _WHOLE or isinstance(content, Nothing) or constant or not storage.nbytes:
            continue
        held = _held(case, number, dtype, material.blobs)
        numbers = dict.fromkeys(one for one in (0, 1, int(held.max()), int(held.min())) if bool((held == one).any()))
        yield [_patch(number, content, f"{one} all over", Generated("constant", dtype, one)) for one in numbers]


_WRITES_AT_PLACES: Final = frozenset(
    f"{name}{end}" for name in ("index_put", "scatter", "index_copy", "put", "_unsafe_index_put") for end in ("", "_")
)


def _writes_at_places(case: Case) -> bool:
    """Whether the graph writes to places that are given as numbers. If one is given twice, it is not said what is
    there afterwards: eager and a compiler may differ, and both be right."""
    return any(name_of(node) in _WRITES_AT_PLACES for graph in graphs_in(case.graph) for node in graph.nodes)


def _may_be_places(case: Case, spread: _Spread) -> bool:
    return spread.dtype in _WHOLE and spread.count > 1 and _writes_at_places(case)


def _held(case: Case, number: int, dtype: str, blobs: Blobs) -> torch.Tensor:
    """What is in a memory."""
    kind: torch.dtype = getattr(torch, dtype)
    count = case.storages[number].nbytes // kind.itemsize
    here = tuple(replace(storage, device="cpu") for storage in case.storages)
    return TensorReader(blobs, here).get(Tensor(dtype, (count,), (1,), 0, number))


@dataclass(frozen=True)
class _Spread:
    """What is known of the values in a memory."""

    dtype: str
    count: int
    low: int | float = 0
    high: int | float = 1
    """Below which they are, if they are whole; as in recipes."""
    how: str = "stored"
    seed: int = 0


def _dtypes(case: Case) -> dict[int, str]:
    """The dtype of what is in each memory: of the first tensor there."""
    found: dict[int, str] = {}
    for tensor in tensors_of(case):
        if tensor.storage is not None:
            found.setdefault(tensor.storage, tensor.dtype)
    return found


def _spread(case: Case, number: int, dtype: str, blobs: Blobs) -> _Spread:
    storage = case.storages[number]
    count = storage.nbytes * 8 // DTYPE_BITS[dtype]
    content = storage.content
    if isinstance(content, Generated):
        return _Spread(dtype, count, content.low, content.high, content.how, content.seed)
    if dtype not in _WHOLE or not isinstance(content, Stored):
        return _Spread(dtype, count)
    held = _held(case, number, dtype, blobs)
    return _Spread(dtype, count, int(held.min()), int(held.max()) + 1)


def _recipes(spread: _Spread, material: Material) -> Iterator[tuple[str, Generated]]:
    """What could be there instead, the simplest first. Whole numbers may be places: they stay within what there is."""
    dtype, low, high = spread.dtype, spread.low, spread.high
    is_whole, is_float = dtype in _WHOLE, dtype in _FLOATS or dtype.startswith("complex")
    yield "zeros", Generated("constant", dtype, 0)
    fits = not is_whole or high > 1 or not _is_range(spread)
    if is_float or (fits and material.values_matter):
        yield "ones", Generated("constant", dtype, 1)
    if not material.values_matter:
        return
    if is_float or (is_whole and _is_range(spread) and low >= 0 and spread.count <= high):
        yield "counting", Generated("arange", dtype, 0, 1)
    if is_float:
        if spread.how == "uniform":
            yield "uniform in the same range", Generated("uniform", dtype, low, high)
        yield "uniform", Generated("uniform", dtype, 0, 1)
        yield "normal", Generated("normal", dtype, 0, 1)
    elif is_whole and _is_range(spread) and low < high < 2**63:
        yield "drawn", Generated("integers", dtype, int(low), int(high))
    elif dtype == "bool":
        yield "drawn", Generated("integers", dtype, 0, 2)


def _is_range(spread: _Spread) -> bool:
    """Whether `low` and `high` are what the values lie between."""
    return spread.how in ("stored", "integers")


def _patch(number: int, content: object, words: str, recipe: Generated) -> Patch:
    def apply(case: Case) -> Case | None:
        return smaller(case, _with_content(case, number, content, recipe))

    return Patch(f"memory {number}: {words}", apply)


def _with_content(case: Case, number: int, old: object, new: Generated | Stored) -> Case | None:
    """The case with other values in a memory, if that is still the one that was looked at."""
    if number >= len(case.storages) or case.storages[number].content != old or old == new:
        return None
    storages = list(case.storages)
    storages[number] = replace(storages[number], content=new)
    return replace(case, storages=tuple(storages))


def _rounded(number: int, content: Stored, spread: _Spread, digits: int, blobs: Blobs) -> Patch:
    def apply(case: Case) -> Case | None:
        if number >= len(case.storages) or spread.count > _MOST_TO_ROUND:
            return None
        nbytes = case.storages[number].nbytes
        if case.storages[number].content != content or 0 < content.digits <= digits:
            return None
        made = _with_digits(blobs.get(content.digest, nbytes), spread.dtype, digits)
        return _with_content(case, number, content, Stored(blobs.put(made), digits))

    return Patch(f"memory {number}: {digits} digit{'s' * (digits > 1)}", apply)


def _with_digits(storage: torch.UntypedStorage, dtype: str, digits: int) -> torch.UntypedStorage:
    """The same numbers with so many significant digits. What is not finite stays as it is."""
    kind: torch.dtype = getattr(torch, dtype)
    count = storage.nbytes() // kind.itemsize
    before = torch.empty(0, dtype=kind).set_(storage, 0, (count,), (1,))
    rounded = [float(f"{number:.{digits}g}") for number in before.tolist()]
    made = allocate(storage.nbytes())
    torch.empty(0, dtype=torch.uint8).set_(made).zero_()
    torch.empty(0, dtype=kind).set_(made, 0, (count,), (1,)).copy_(torch.tensor(rounded, dtype=torch.float64))
    return made


# ---- numbers -----------------------------------------------------------------------------------------------


def numbers(case: Case, material: Material) -> Iterator[Site]:
    """Simpler numbers for inputs that are one. (Sizes that are symbolic are changed with their symbols.)"""
    for node, value in zip(placeholders(case.graph), case.inputs, strict=True):
        known = node.meta.val if node.meta.val is not None else node.meta.example
        if isinstance(value, (int, float)) and not isinstance(value, bool) and known in (None, value):
            simple = [type(value)(one) for one in (0, 1, 2) if abs(one) < abs(value)]
            halves = [type(value)(value // 2)] if abs(value) > 4 else []
            yield [_number(node.name, one, material) for one in (*simple, *halves)]


def _number(name: str, number: int | float, material: Material) -> Patch:
    def apply(case: Case) -> Case | None:
        names = [node.name for node in placeholders(case.graph)]
        if name not in names:
            return None
        place = names.index(name)
        old = case.inputs[place]
        if not isinstance(old, (int, float)) or old == number:
            return None
        nodes = tuple(
            replace(
                node,
                meta=replace(
                    node.meta,
                    val=number if node.meta.val == old else node.meta.val,
                    example=number if node.meta.example == old else node.meta.example,
                ),
            )
            if node.name == name
            else node
            for node in case.graph.nodes
        )
        examples = case.examples
        if examples is not None and examples[place] == old:
            examples = (*examples[:place], number, *examples[place + 1 :])
        inputs = (*case.inputs[:place], number, *case.inputs[place + 1 :])
        changed = replace(case, graph=replace(case.graph, nodes=nodes), inputs=inputs, examples=examples)
        return propagated(changed, material.blobs)

    return Patch(f"{name}: {number}", apply)

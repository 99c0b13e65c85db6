"""How the bytes of each memory of a case are written into a script.

    literal      `torch.tensor([[1.0, 2.0]])`: few elements, in no memory that others share, each exact in decimal
    bytes        base64 of a few kilobytes
    recipe       `made(4096, "normal", torch.float32, seed=0)`
    beside       in the `.safetensors` file next to the script

`choose` picks a way for each storage; what is large goes beside unless the caller has a recipe for it. Whatever the
way, the bytes are the case's own: nothing is rounded, and what is missing stays an error.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import torch

from torchsleuth.case import schema
from torchsleuth.case.script.graphs import graphs_in
from torchsleuth.case.script.layout import wrap
from torchsleuth.case.script.source import float_source, torch_source, values_in
from torchsleuth.case.storages.blobs import Blobs, memory

MOST_ELEMENTS: Final = 64
"""How many elements a tensor may have that is written as numbers."""
MOST_BYTES: Final = 4096
"""How many bytes of one memory are written into the script. More goes beside it."""
MOST_ALTOGETHER: Final = 32 * 1024
"""How many bytes of all of them. If it is more, then of each only `FEW`."""
FEW: Final = 256
_MOST_LINES: Final = 24
_CHUNK: Final = 4 * 2**20
_SAMPLE: Final = 2**20
"""How many elements tell enough of how the values are spread."""
_DIGITS: Final = (3, 6, 9, 17)
_READABLE: Final = frozenset("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split())


# ---- how the bytes of a storage are written --------------------------------------------------------------


@dataclass(frozen=True)
class Literal:
    """As numbers, where the tensor stands."""

    source: str


@dataclass(frozen=True)
class InText:
    """As base64, in the script."""

    text: str


@dataclass(frozen=True)
class Recipe:
    """Made by the script."""

    recipe: schema.Generated


@dataclass(frozen=True)
class Beside:
    """In the file next to the script, under the number of the storage."""


@dataclass(frozen=True)
class Nothing:
    """No values at all."""


Way: TypeAlias = Literal | InText | Recipe | Beside | Nothing


def most_bytes(case: schema.Case) -> int:
    """How large a storage may be to be written into the script."""
    small = sum(storage.nbytes for storage in case.storages if storage.nbytes <= MOST_BYTES)
    return MOST_BYTES if small <= MOST_ALTOGETHER else FEW


def choose(case: schema.Case, blobs: Blobs, instead: Mapping[int, schema.Generated] | None = None) -> dict[int, Way]:
    """A way for each storage; `instead` has recipes for those that need not have their own values."""
    alone = _alone(case)
    most = most_bytes(case)
    ways: dict[int, Way] = {}
    for number, storage in enumerate(case.storages):
        match storage.content:
            case schema.Nothing():
                ways[number] = Nothing()
            case schema.Generated() as recipe:
                ways[number] = Recipe(recipe)
            case schema.Stored() if instead and number in instead:
                ways[number] = Recipe(instead[number])
            case schema.Stored(digest):
                if storage.nbytes > most:
                    ways[number] = Beside()
                    continue
                held = blobs.get(digest, storage.nbytes)
                data = bytes(memory(held))
                source = literal(alone[number], data) if number in alone else None
                ways[number] = Literal(source) if source else InText(base64.b64encode(data).decode())
    return ways


def recipes_for(case: schema.Case, blobs: Blobs) -> dict[int, schema.Generated]:
    """Recipes that give every large storage values of the same kind: the same range, the same spread."""
    found: dict[int, schema.Generated] = {}
    most = most_bytes(case)
    dtypes = {record.storage: record.dtype for record in tensors_of(case) if record.storage is not None}
    for number, storage in enumerate(case.storages):
        if not isinstance(storage.content, schema.Stored) or storage.nbytes <= most or number not in dtypes:
            continue
        recipe = _alike(dtypes[number], blobs.get(storage.content.digest, storage.nbytes), seed=number)
        if recipe is None:
            return {}  # one that cannot be made sends all of them to the file
        found[number] = msgspec.structs.replace(recipe, why="not the recorded values, but of their kind")
    return found


def _alike(dtype: str, storage: torch.UntypedStorage, seed: int) -> schema.Generated | None:
    kind: torch.dtype = getattr(torch, dtype)
    if dtype not in _READABLE:
        return None
    values = torch.empty(0, dtype=kind).set_(storage, 0, (storage.nbytes() // kind.itemsize,), (1,))
    if not kind.is_floating_point:
        low, high = int(values.min()), int(values.max())
        if high >= 2**63 - 1:
            return None
        return schema.Generated("constant" if low == high else "integers", dtype, low, high + 1, seed)
    deviation, mean = torch.std_mean(values[:_SAMPLE].double(), correction=0)
    if not (torch.isfinite(mean) and torch.isfinite(deviation)):
        return None
    if float(deviation) == 0.0:
        return schema.Generated("constant", dtype, float(mean))
    return schema.Generated("normal", dtype, _rounded(float(mean)), _rounded(float(deviation)), seed)


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def tensors_of(case: schema.Case) -> Iterator[schema.Tensor]:
    """Every tensor with values that the script has to make."""
    for _, graph in graphs_in(case.graph, ""):
        for entry in graph.attributes:
            yield from _tensors_in(entry.value)
        for node in graph.nodes:
            for value in (*node.args, *(entry.value for entry in node.kwargs)):
                yield from _tensors_in(value)
    for value in case.inputs:
        yield from _tensors_in(value)


def _tensors_in(value: schema.Value) -> Iterator[schema.Tensor]:
    for one in values_in(value):
        if isinstance(one, schema.Tensor):
            yield one
            if one.grad is not None:
                yield from _tensors_in(one.grad)


def _alone(case: schema.Case) -> dict[int, schema.Tensor]:
    """The storages that have a single tensor in them, which takes all of it, in order."""
    records = [record for record in tensors_of(case) if record.storage is not None]
    users = Counter(record.storage for record in records)
    return {
        record.storage: record
        for record in records
        if record.storage is not None and users[record.storage] == 1 and _is_whole(record, case.storages)
    }


def _is_whole(record: schema.Tensor, storages: tuple[schema.Storage, ...]) -> bool:
    assert record.storage is not None
    storage = storages[record.storage]
    plain = not (
        record.base
        or record.inference
        or record.offset
        or record.conj
        or record.neg
        or record.quantiser
        or record.device != "cpu"
    )
    if not plain or storage.device != "cpu" or record.dtype not in _READABLE:
        return False
    count = math.prod(record.size)
    itemsize: int = getattr(torch, record.dtype).itemsize
    return record.stride == ordinary_strides(record.size) and count * itemsize == storage.nbytes


def is_view(record: schema.Tensor) -> bool:
    """Whether a view of its base can be like this tensor."""
    base = record.base
    if base is None or record.parameter or record.inference:
        return False
    return base.requires_grad or record.leaf or not record.requires_grad


def ordinary_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor as torch makes it."""
    return tuple(math.prod(max(length, 1) for length in size[place + 1 :]) for place in range(len(size)))


def literal(record: schema.Tensor, data: bytes) -> str | None:
    """`torch.tensor(...)` for exactly these bytes; None where numbers cannot say them, or would be too many."""
    count = math.prod(record.size)
    if not 0 < count <= MOST_ELEMENTS:
        return None if count else f"torch.empty({record.size!r}, dtype={torch_source(record.dtype)})"
    dtype: torch.dtype = getattr(torch, record.dtype)
    values = torch.frombuffer(bytearray(data), dtype=dtype).reshape(record.size)
    digits = _DIGITS if dtype.is_floating_point else (0,)
    for number in digits:
        listed = _rounded_to(values.tolist(), number)
        again = torch.tensor(listed, dtype=dtype)
        if torch.equal(again.flatten().view(torch.uint8), values.flatten().view(torch.uint8)):
            source = f"torch.tensor({_listed(listed)}, dtype={torch_source(record.dtype)})"
            return source if len(wrap(source, " " * 8)) <= _MOST_LINES else None
    return None


def _rounded_to(values: Any, digits: int) -> Any:
    if isinstance(values, list):
        return [_rounded_to(value, digits) for value in values]
    return float(f"{values:.{digits}g}") if digits and isinstance(values, float) else values


def _listed(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_listed, values))}]"
    return float_source(values) if isinstance(values, float) else repr(values)


# ---- the file next to the script ------------------------------------------------------------------------


def write_beside(case: schema.Case, ways: Mapping[int, Way], blobs: Blobs) -> Iterator[bytes]:
    """The file next to the script, piece by piece: a safetensors file with a tensor of bytes for each storage."""
    header: dict[str, Any] = {"__metadata__": {"case": identity(case)}}
    offset = 0
    numbers = [number for number, way in ways.items() if isinstance(way, Beside)]
    for number in numbers:
        nbytes = case.storages[number].nbytes
        header[str(number)] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-(len(text) + 8) % 64)
    yield len(text).to_bytes(8, "little") + text
    for number in numbers:
        storage = case.storages[number]
        assert isinstance(storage.content, schema.Stored)
        held = blobs.get(storage.content.digest, storage.nbytes)
        for start in range(0, storage.nbytes, _CHUNK):
            yield bytes(memory(held)[start : start + _CHUNK])


def identity(case: schema.Case) -> str:
    """What tells the file beside one script from that of another: the digests of what both were written from."""
    digests = [storage.content.digest for storage in case.storages if isinstance(storage.content, schema.Stored)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]

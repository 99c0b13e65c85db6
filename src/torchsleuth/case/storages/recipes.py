"""Values that are made by a recipe, for memory that never had any (a failure while compiling) or does not need its own.

    recipe_for(fake, limits, seed)     a recipe for an input that never had values, from what its uses allow
    make(recipe, nbytes)               the memory, always the same for the same recipe

Drawing has a generator of its own; the program's random state is neither used nor changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from torchsleuth import torch_compat
from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.schema import Generated, Nothing, Storage
from torchsleuth.case.storages.memory import allocate
from torchsleuth.case.storages.sinks import Limit, is_guess, size_hint
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold, CaseError, in_words

_DRAWN_DIRECTLY: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_MADE_OF: Final = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}
"""What the memory of these dtypes is filled as."""
_WHOLE: Final = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
)
_PACKED: Final = frozenset(
    getattr(torch, name)
    for name in (
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
        *"bits8 bits16 bits1x8 bits2x4 bits4x2 quint2x4 quint4x2 float4_e2m1fn_x2".split(),
    )
)
"""There are no single values to draw for these: any byte will do."""
AT_A_TIME: Final = 2**20
"""How many elements are drawn before they are put where they belong: they may be wider than these are kept.

A multiple of 16, and no slice is shorter than it: torch draws normal numbers by 16, so slices give the same numbers.
"""


# ---- choosing --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """How a fake tensor lies in memory, in numbers: symbolic sizes are their hints."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int
    """Of the whole storage."""


def geometry_of(fake: torch.Tensor) -> Geometry:
    size = tuple(map(size_hint, fake.shape))
    stride = tuple(map(size_hint, fake.stride()))
    offset = size_hint(fake.storage_offset())
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    needed = 0 if 0 in size else (last + 1) * fake.dtype.itemsize
    return Geometry(size, stride, offset, max(needed, size_hint(fake.untyped_storage().nbytes())))


def recipe_for(fake: torch.Tensor, limits: Iterable[Limit] = (), seed: int = 0) -> Generated:
    """A recipe for values that fit a fake tensor; `limits` are what its uses allow (`uses.limits_of`)."""
    recipe = _choose(fake.dtype, tuple(limits))
    guessed = "; a size that only running tells was taken to be small" if any(map(is_guess, fake.shape)) else ""
    dtype = str(fake.dtype).removeprefix("torch.")
    return msgspec.structs.replace(recipe, dtype=dtype, seed=seed, why=recipe.why + guessed)


def _choose(dtype: torch.dtype, limits: Sequence[Limit]) -> Generated:
    """The dtype is filled in by the caller."""
    if dtype == torch.bool:
        return Generated("integers", "", 0, 2, why="true and false")
    by_kind = {limit.kind: limit for limit in limits}
    if "zero" in by_kind:
        return Generated("constant", "", 0, why=by_kind["zero"].why)
    if "index" in by_kind:
        return _within([limit for limit in limits if limit.kind == "index"])
    if not dtype.is_floating_point and not dtype.is_complex:
        number = by_kind.get("number", Limit("number", 0, 2, "small numbers, since nothing is known of their use"))
        return Generated("integers", "", number.low, number.high, why=number.why)
    if "fraction" in by_kind:
        return Generated("uniform", "", 0, 1, why=by_kind["fraction"].why)
    if positive := by_kind.get("positive", by_kind.get("number")):
        return Generated("uniform", "", 0.5, 1.5, why=positive.why)
    return Generated("normal", "", 0, 1, why="any numbers")


def _within(limits: Sequence[Limit]) -> Generated:
    """Indices that every use allows. Where there are none, zeros are the best guess."""
    low = max(0, *(limit.low for limit in limits)) if len(limits) > 1 else max(0, limits[0].low)
    tightest = min(limits, key=lambda limit: limit.high)
    if low >= tightest.high:
        return Generated("constant", "", 0, why=f"{tightest.why}, which allows nothing else")
    return Generated("integers", "", low, tightest.high, why=tightest.why)


def joined(entry: Storage, nbytes: int, content: Generated | Nothing) -> Storage:
    """The entry of a storage that another tensor uses as well: with room for both, and values that suit both."""
    kept = entry.content
    if isinstance(kept, Generated) and isinstance(content, Generated) and kept.dtype == content.dtype:
        kept = _both(kept, content)
    return msgspec.structs.replace(entry, nbytes=max(entry.nbytes, nbytes), content=kept)


def _both(one: Generated, other: Generated) -> Generated:
    """A recipe whose values suit two uses."""
    if one.how != "integers" or other.how != "integers":
        strictness = ("normal", "uniform", "integers", "arange", "constant")
        return max(one, msgspec.structs.replace(other, seed=one.seed), key=lambda each: strictness.index(each.how))
    low, high = max(one.low, other.low), min(one.high, other.high)
    why = one.why if one.high <= other.high else other.why
    if low >= high:
        return msgspec.structs.replace(one, how="constant", low=0, high=1, why=f"{why}, which allows nothing else")
    return msgspec.structs.replace(one, low=low, high=high, why=why)


# ---- making ----------------------------------------------------------------------------------------------


def make(recipe: Generated, nbytes: int, *, file: str = "", field: str = "content") -> torch.UntypedStorage:
    """Memory on the CPU, filled as the recipe says. Bytes too few for one more element are zero."""
    if recipe.dtype not in DTYPE_BITS:
        raise _bad(f"there is no dtype {recipe.dtype[:80]!r}", file, f"{field}.dtype")
    check_memory(nbytes, file, field)
    with torch_compat.plain_torch():
        storage = allocate(nbytes)
        try:
            _fill(storage, recipe)
        except CaseError:
            raise
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise _bad(in_words(error), file, field) from error
    return storage


def _fill(storage: torch.UntypedStorage, recipe: Generated) -> None:
    dtype: torch.dtype = getattr(torch, recipe.dtype)
    filled = storage.nbytes() // dtype.itemsize * dtype.itemsize
    dtype = _MADE_OF.get(dtype, dtype)
    if dtype in _PACKED and recipe.how != "constant":
        recipe = msgspec.structs.replace(recipe, how="integers", low=0, high=256)
    dtype = torch.uint8 if dtype in _PACKED else dtype
    count = filled // dtype.itemsize
    torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)[filled:].zero_()
    into = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (count,), (1,))
    generator = torch.Generator(device="cpu").manual_seed(recipe.seed)
    if recipe.how in ("uniform", "normal") and dtype in _DRAWN_DIRECTLY:
        draw = into.uniform_ if recipe.how == "uniform" else into.normal_
        draw(float(recipe.low), float(recipe.high), generator=generator)
        return
    for begin in range(0, max(count - AT_A_TIME, 1), AT_A_TIME):
        end = begin + AT_A_TIME if count - begin > 2 * AT_A_TIME else count
        into[begin:end].copy_(_drawn(recipe, begin, end, generator, whole=dtype in _WHOLE))


def _drawn(recipe: Generated, begin: int, end: int, generator: torch.Generator, *, whole: bool) -> torch.Tensor:
    """The elements from `begin` to `end`. They are drawn in order."""
    low, high, count = recipe.low, recipe.high, end - begin
    exact = torch.int64 if whole else torch.float64
    match recipe.how:
        case "uniform":
            return torch.empty(count, dtype=torch.float32, device="cpu").uniform_(low, high, generator=generator)
        case "normal":
            return torch.empty(count, dtype=torch.float32, device="cpu").normal_(low, high, generator=generator)
        case "integers":
            return torch.randint(int(low), int(high), (count,), generator=generator, dtype=torch.int64, device="cpu")
        case "constant":
            return torch.full((count,), low, dtype=exact, device="cpu")
        case "arange":
            return torch.arange(begin, end, dtype=exact, device="cpu").mul_(high).add_(low)


def check_memory(nbytes: int, file: str, field: str) -> None:
    """Recipes are short and what they make may be large: refuse what this machine has no room for before making it."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if nbytes > there:
        raise CannotHold(
            f"recipes of the case make {nbytes:,} bytes",
            cause=f"this machine has {there:,} bytes of memory",
            remedy="run it where there is more memory",
            file=file,
            field=field,
        )


def _bad(cause: str, file: str, field: str) -> BadCase:
    return BadCase(
        "a recipe makes no values",
        cause=cause,
        remedy=GET_IT_AGAIN,
        file=file,
        field=field,
    )

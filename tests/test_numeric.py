"""The numeric kernel: chunks, the measure against a naive one, and how much memory a comparison takes."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchsleuth.compare import numeric, same
from torchsleuth.compare.numeric import Measure, chunks, global_index, measure, spoiled, unequal

inf, nan = math.inf, math.nan

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


def indices(box: numeric.Slices) -> list[tuple[int, ...]]:
    """Every index in a box, in row-major order."""
    return list(itertools.product(*(range(part.start, part.stop) for part in box)))


# ---- chunks ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(shapes, st.integers(1, 40))
def test_chunks_cover_every_element_once_in_order(shape: tuple[int, ...], limit: int) -> None:
    """Covers: S34"""
    boxes = list(chunks(shape, limit))
    assert [index for box in boxes for index in indices(box)] == list(itertools.product(*map(range, shape)))
    assert all(0 < len(indices(box)) <= limit for box in boxes)


@settings(deadline=None)
@given(shapes, st.integers(1, 40))
def test_the_place_in_a_chunk_gives_the_index_in_the_whole(shape: tuple[int, ...], limit: int) -> None:
    """Covers: S34"""
    for box in chunks(shape, limit):
        assert [global_index(spot, box) for spot in range(len(indices(box)))] == indices(box)


def test_chunks_are_as_few_as_whole_rows_allow() -> None:
    """So that a small limit on the wrong dimension does not cut a tensor into single elements."""
    assert len(list(chunks((1000, 1000), 100_000))) == 10
    assert len(list(chunks((3, 1 << 20), 1 << 18))) == 12
    assert list(chunks((), 5)) == [()]
    assert list(chunks((3, 0, 2), 5)) == []


# ---- measure ---------------------------------------------------------------------------------------------


def naive(a: torch.Tensor, b: torch.Tensor, rtol: float, atol: float, equal_nan: bool) -> Measure:
    """The same as `measure`, element by element, with nothing but Python's floats."""
    outside = nonfinite = 0
    first = first_nonfinite = None
    max_abs = max_rel = squares = dot = a_norm = b_norm = 0.0
    finite = 0
    for index in itertools.product(*map(range, a.shape)):
        x, y = complex(a[index].item()), complex(b[index].item())
        if all(map(math.isfinite, (x.real, x.imag, y.real, y.imag))):
            finite += 1
            error = abs(x - y)
            bound = atol + rtol * abs(x)
            bad, strange = error > bound, False
            squares += error**2
            dot += (x.conjugate() * y).real
            a_norm += abs(x) ** 2
            b_norm += abs(y) ** 2
            max_abs = max(max_abs, error)
            max_rel = max(max_rel, error / abs(x) if x else 0.0)
        else:
            bad = strange = not (x == y or (equal_nan and x != x and y != y))
        outside += bad
        nonfinite += strange
        if bad and first is None:
            first = index
        if strange and first_nonfinite is None:
            first_nonfinite = index
    norms = math.sqrt(a_norm) * math.sqrt(b_norm)
    return Measure(
        numel=a.numel(),
        outside=outside,
        nonfinite=nonfinite,
        first=first,
        first_nonfinite=first_nonfinite,
        max_abs=max_abs,
        max_rel=max_rel,
        rmse=math.sqrt(squares / finite) if finite else 0.0,
        cosine=(dot / norms) if norms else (1.0 if a_norm == b_norm else 0.0),
    )


def assert_alike(found: Measure, expected: Measure) -> None:
    exact = ("numel", "outside", "nonfinite", "first", "first_nonfinite")
    assert [getattr(found, name) for name in exact] == [getattr(expected, name) for name in exact]
    for name in ("max_abs", "max_rel", "rmse", "cosine"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-12), name


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]


@st.composite
def pairs(draw: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of one shape and dtype, equal in places, often far apart in few, sometimes not finite."""
    shape = draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    a = torch.randn(shape, generator=generator)
    b = torch.where(torch.rand(shape, generator=generator) < 0.5, a, a + 0.1 * torch.randn(shape, generator=generator))
    for side in (a, b):
        for value in draw(st.lists(st.sampled_from([nan, inf, -inf, 0.0]), max_size=2)):
            side.view(-1)[draw(st.integers(0, a.numel() - 1))] = value
    a, b = a.to(dtype), b.to(dtype)
    if draw(st.booleans()):
        a = a.mT.contiguous().mT if a.ndim > 1 else a
    return a, b


@settings(deadline=None, max_examples=150)
@given(pairs(), st.sampled_from([1, 2, 3, 7, 1 << 18]), st.sampled_from([0.0, 1e-3, 0.1]), st.booleans())
def test_the_measure_is_that_of_a_naive_computation(
    pair: tuple[torch.Tensor, torch.Tensor], chunk: int, tol: float, equal_nan: bool
) -> None:
    """Covers: S34. Whatever the size of the chunks."""
    a, b = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numeric, "CHUNK", chunk)
        found = measure(a, b, rtol=tol, atol=tol, equal_nan=equal_nan)
    assert_alike(found, naive(a, b, tol, tol, equal_nan))


def test_dtypes_may_differ() -> None:
    """Covers: S34"""
    a, b = torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.5, 3.0])
    assert_alike(measure(a, b, rtol=0.0, atol=0.1), naive(a, b, 0.0, 0.1, True))
    c = torch.tensor([1.0, 2.0 + 1j, 3.0])
    assert_alike(measure(b, c, rtol=0.0, atol=0.1), naive(b, c, 0.0, 0.1, True))


def test_nothing_has_no_distance() -> None:
    assert measure(torch.zeros(0, 3), torch.zeros(0, 3), rtol=0.0, atol=0.0) == Measure()


@pytest.mark.parametrize("place", [0, 1, 6, 7, 8, 13, 14, 20])
@pytest.mark.parametrize("chunk", [1, 7, 8, 100])
def test_the_first_element_outside_is_named_across_chunk_borders(
    place: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: S34"""
    monkeypatch.setattr(numeric, "CHUNK", chunk)
    for dtype in (torch.float32, torch.int32, torch.bool):
        ref = torch.zeros(3, 7, dtype=dtype)
        res = ref.clone()
        res.view(-1)[place] = 1
        res.view(-1)[20] = 1
        found = same(ref, res)
        assert found.index == (place // 7, place % 7)
        assert found.outside == (1 if place == 20 else 2)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.integers(1, 9), st.integers(0, 2**32))
def test_unequal_counts_what_differs(shape: tuple[int, ...], chunk: int, seed: int) -> None:
    """Covers: S34"""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(0, 3, shape, generator=generator) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numeric, "CHUNK", chunk)
        count, first = unequal(a, b)
    bad = [index for index in itertools.product(*map(range, shape)) if a[index] != b[index]]
    assert (count, first) == (len(bad), bad[0] if bad else None)


def test_spoiled_counts_what_only_the_result_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S34"""
    monkeypatch.setattr(numeric, "CHUNK", 3)
    ref = torch.tensor([1.0, nan, inf, 1.0, 1.0, inf, inf, nan])
    res = torch.tensor([nan, nan, inf, inf, 1.0, nan, -inf, 1.0])
    fp64 = torch.tensor([1.0, 1.0, 1.0, inf, nan, inf, inf, 1.0], dtype=torch.float64)
    assert [spoiled(*(side[i : i + 1] for side in (ref, res, fp64))) for i in range(8)] == [1, 0, 0, 0, 0, 1, 1, 0]
    assert spoiled(ref, res, fp64) == 3


# ---- memory ----------------------------------------------------------------------------------------------

MEASURE_MEMORY = """
import resource, sys, torch
from torchsleuth.compare import same

def peak():  # in MiB
    if sys.platform == "linux":  # where the figure of getrusage starts with the parent's
        return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)

def make(megabytes):
    count = megabytes * 2**20 // torch.empty(0, dtype=torch.{dtype}).element_size()
    a = torch.ones(count, dtype=torch.{dtype}).reshape(-1, 1024)
    b = torch.ones(count, dtype=torch.{dtype}).reshape(-1, 1024)
    b[-1, -1] = 0
    return {view}

torch.set_num_threads(1)
a, b = make(4)
same(a, b, {options})  # the buffers and the lazy imports of a first time
a, b = make({megabytes})
before = peak()
found = same(a, b, {options})
assert not found and found.index is not None, found
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("dtype", "view", "options", "megabytes"),
    [
        ("float32", "a, b", "", 200),
        ("float16", "a.T, b.T", "", 64),
        ("float64", "a[0].expand(len(a), 1024), b", "fp64_ref=a[0].expand(len(a), 1024)", 64),
        ("bool", "a.T, b.T", "", 64),
        ("uint8", "a, b.view(torch.int8)", "exact_dtype=False", 64),
    ],
)
def test_comparing_large_tensors_takes_little_memory(dtype: str, view: str, options: str, megabytes: int) -> None:
    """Covers: S34. However large they are, and whatever their strides: nothing of their size is made."""
    script = MEASURE_MEMORY.format(dtype=dtype, view=view, options=options, megabytes=megabytes)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 40

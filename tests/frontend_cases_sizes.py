"""Cases for the front end: what programs do with sizes. Called with several shapes, so that symbolic ones show."""

from __future__ import annotations

import collections
import copy
import functools
import math
import operator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from frontend_differential import Call, Case, case


def shapes(*sizes: tuple[int, ...]) -> list[Call]:
    def filled(size: tuple[int, ...]) -> torch.Tensor:
        return torch.arange(math.prod(size), dtype=torch.float32).reshape(size) / 8 - 1

    return [Call((filled(size),)) for size in sizes]


def sizes(program):
    """A case of a function of one matrix; and another one, with sizes that are more special."""

    @functools.wraps(program)
    def usual():
        return Case(program, shapes((4, 3), (5, 3), (6, 2), (4, 7)))

    @functools.wraps(program)
    def special():
        return Case(program, shapes((3, 4), (3, 3), (1, 3), (2, 2)))

    special.__name__ = f"{program.__name__}_of_special_sizes"
    case(usual)
    case(special)
    return program


# ---- numbers -------------------------------------------------------------------------------------------------


@sizes
def arithmetic_with_a_size(x):
    n, m = x.shape
    return x * (n + 1), n - m, 1 - n, n * m, n % 3, (2 * n) % m, n // m, 10 % n, 100 // n, divmod(n, 2), n * True


@sizes
def floats_of_a_size(x):
    n = x.shape[0]
    return x * (n * 0.5 + 1), 0.1 * n, n - 0.5, n / 2, n**0.5, n**2, 2**n, x.shape[-1] ** -0.5, float(n), n == 4.0


@sizes
def bits_of_a_size(x):
    n = x.shape[0]
    return x * (n << 1), n >> 1, n & 3, n | 8, n ^ 1, ~n, -n, +n, abs(-n), n.bit_length(), n.__add__(1)


@sizes
def a_size_is_rounded(x):
    n = x.shape[0]
    return x * int(n * 1.5), int(n / 3), math.ceil(n / 2), math.floor(n / 2), -(-n // 2), math.log2(n), round(n)


@sizes
def a_size_as_text(x):
    n = x.shape[0]
    return x * 1, f"{n:03d} {x.shape} {n!r} {n / 3:.2f}", str(n), repr(x.shape), "%d" % n, "{:>5}".format(n)


@sizes
def the_hash_of_a_size(x):
    return x * hash(x.shape[0]), hash((1, x.shape[1]))


@sizes
def the_class_of_a_size(x):
    n = x.shape[0]
    return x * (2 if type(n) is int else 3), type(n), isinstance(n, int), isinstance(n, (float, bool)), type(x.shape)


@sizes
def operators_as_functions_of_sizes(x):
    n, m = x.shape
    return x * operator.add(n, 1), operator.mul(n, m), math.sqrt(m), math.prod(x.shape), sum(x.shape), complex(n, 1)


@sizes
def the_largest_of_sizes(x):
    n, m = x.shape
    return x * min(n, m), max(x.shape), min(n, 4), max(n, 4.5), max(2.5, n, m), sorted(x.shape, key=lambda each: -each)


# ---- decisions -----------------------------------------------------------------------------------------------


@sizes
def a_branch_on_one_size(x):
    return x * (2 if x.shape[0] == 4 else 3)


@sizes
def branches_on_sizes(x):
    n, m = x.shape
    return x * (2 if 2 < n < 6 else 3), x + (1 if n == m else 0), n > 4.5, n != m, not n, bool(m), n in (3, 4)


@sizes
def shapes_are_compared(x):
    return x * (2 if x.shape == (4, 3) else 3), x.shape == x.t().shape, x.shape == (4, 3), x.shape != torch.Size([4, 3])


@sizes
def a_shape_is_matched(x):
    match x.shape:
        case (4, n):
            return x * n
        case (n, 3):
            return x + n
        case _:
            return x - 1


@sizes
def a_size_that_is_too_large_is_an_error(x):
    if x.shape[0] > 4:
        raise ValueError(f"too long: {x.shape[0]}", x.shape[0])
    return x * 2


@sizes
def a_loop_over_a_size(x):
    for number in range(x.shape[0]):
        x = x + number
    count = 0
    while count < x.shape[1]:
        x, count = x * 2, count + 2
    return x, count, len(x), [row * 2 for row in x]


# ---- containers ----------------------------------------------------------------------------------------------


@sizes
def sizes_that_come_back(x):
    return x * 1, x.shape, x.shape[0], x.size(), x.numel(), list(x.shape), (x.shape[1], [x.shape[0]]), {"n": len(x)}


@sizes
def a_shape_is_taken_apart(x):
    n, m = x.shape
    *first, last = x.shape
    return x.reshape(m * n), first, last, x.shape[:1] + (2,), (1,) + tuple(x.shape), x.shape * 2, x.shape[::-1]


@sizes
def sizes_in_comprehensions(x):
    return (
        x * 1,
        [a + b for a, b in zip(x.shape, x.shape[1:])],
        list(enumerate(x.shape)),
        list(map(lambda each: each + 1, x.shape)),
        [each for each in x.shape if each > 3],
        any(each == 3 for each in x.shape),
        functools.reduce(operator.mul, x.shape),
    )


@sizes
def a_size_as_a_key(x):
    table = {x.shape[0]: 2, 5: 7}
    return x * table.get(5, 1), table, len({x.shape[0], x.shape[1], 3}), 3 in x.shape, x.shape.index(x.shape[1])


@sizes
def a_size_as_an_index(x):
    numbers = list(range(20))
    n = x.shape[0]
    return x * numbers[n], numbers[n:], numbers[-n], torch.arange(20)[n], "a" * n, [0] * n, n * (1,)


@dataclass
class Extent:
    rows: int
    columns: int = 0


Pair = collections.namedtuple("Pair", "first second")


@sizes
def sizes_in_objects(x):
    extent, pair = Extent(*x.shape), Pair(*x.shape)
    return x * extent.rows, extent, extent == Extent(4, 3), pair, copy.copy(x.shape), copy.deepcopy([x.shape[0]])


@case
def a_size_is_kept_outside():
    """In a list, a dict, an attribute, a cell, and a generator that is left half-way."""
    log, table, extent, last = [], {}, Extent(0), 0

    def fn(x):
        nonlocal last
        last = x.shape[0]
        log.append(x.shape)
        table["rows"] = [x.shape[0]]
        extent.rows = x.shape[0] + 1
        waiting = (each * x.shape[1] for each in x.shape)
        next(waiting)
        return x * last, waiting

    return Case(fn, shapes((4, 3), (5, 3), (6, 2), (4, 3)), state=lambda: (log, table, extent, last))


@functools.lru_cache
def doubled(n):
    return n * 2


@sizes
def a_size_goes_into_a_cached_function(x):
    return x * doubled(x.shape[0])


# ---- tensors -------------------------------------------------------------------------------------------------


@sizes
def views_by_sizes(x):
    n, m = x.shape
    return x.view(m, n).reshape(-1, n) * 2, x[: n // 2], x[n // 2 :], x[..., -m // 2 :], x.expand(m, n, m), x.t()[m - 1]


@sizes
def parts_by_sizes(x):
    n, m = x.shape
    return x.chunk(2), x.split(n // 2 + 1), torch.tensor_split(x, 2), torch.stack([x] * m), x.repeat(1, n)


@sizes
def tensors_made_of_sizes(x):
    n, m = x.shape
    return (
        torch.arange(n), torch.zeros(x.shape), torch.ones(n, 3), torch.full((m,), n), torch.tensor([n, m]),
        torch.tensor(x.shape), torch.tril(torch.ones(n, n)) * m, x.new_zeros(x.shape), torch.zeros(*x.shape, 2),
        torch.cat([x, torch.zeros(2, m)]), torch.where(torch.arange(n)[:, None] < 2, x, x * 2),
    )  # fmt: skip


@sizes
def functions_that_take_sizes(x):
    n, m = x.shape
    query = x[None, None]
    return (
        F.pad(x, (0, 8 - m % 8)),
        F.interpolate(query, size=(n * 2, m + 1)),
        F.scaled_dot_product_attention(query, query, query, is_causal=True),
        x[:, list(range(0, m, 2))],
    )


@sizes
def strides_of_a_view(x):
    view = x[:, :2]
    return view * view.stride(0), view.stride(), view.is_contiguous(), view.is_same_size(x), x[None].is_contiguous()


@sizes
def the_offset_of_a_view(x):
    behind = torch.ones(x.shape[0] * 2)[x.shape[0] :]
    return behind * behind.storage_offset(), x[1:] * x[1:].storage_offset()

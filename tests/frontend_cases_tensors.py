"""Cases for the front end: tensors, sizes, views and aliases, values that decide where to go, random numbers."""

from __future__ import annotations

import contextlib
import copy
import math
import random

import numpy as np
import torch
import torch.nn.functional as F

from frontend_differential import Call, Case, call, case, each, fresh, repeat


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


# ---- arithmetic and methods ----------------------------------------------------------------------------------


@case
def arithmetic():
    """Every binary and unary operator of a tensor, with numbers on both sides."""

    def fn(x, y):
        a = (x + y * 2 - 1) / 3 // 0.5 % 2
        b = 2 ** x.abs() - 3 + (1 - y) * (2 / (y.abs() + 1)) + 5 // (y.abs() + 1) + 7 % (x.abs() + 1)
        return a, b, -x, +y, abs(x), x**2, (x > y) & (x < 1) | ~(y > 0) ^ (x == y), x @ y.T, x != 0

    return Case(fn, repeat(floats(3, 4), floats(3, 4)))


@case
def operators_on_integers():
    """Shifts, bits and floor division."""

    def fn(x):
        x = x << 2
        x |= 1
        x ^= 3
        return x >> 1, x // 3, x % 5, ~x, x & 6, divmod(x, 3), round(x / 3)

    return Case(fn, repeat(torch.arange(-3, 5)))


@case
def methods_and_functions():
    """The same operation as a method, a function, and from torch.nn.functional."""

    def fn(x):
        return x.relu(), torch.relu(x), F.relu(x), x.softmax(-1), torch.softmax(x, dim=-1), F.layer_norm(x, (4,))

    return Case(fn, repeat(floats(3, 4)))


@case
def several_results():
    """Operations that return tuples, by index, by name and unpacked."""

    def fn(x):
        values, places = x.max(dim=1)
        found = torch.topk(x, 2)
        first, *others = x.unbind(0)
        return values, places, found.values, found[1], torch.sort(x), first, others, x.split(2), torch.aminmax(x).min

    return Case(fn, repeat(floats(3, 4)))


@case
def creation():
    """New tensors: constants, like another, from lists and numbers."""

    def fn(x):
        made = torch.zeros(3), torch.ones_like(x), torch.full((2,), 7), torch.arange(4), torch.eye(2), x.new_zeros(2)
        return *made, torch.tensor([[1.0, 2.0]]), torch.tensor(3), torch.as_tensor([1, 2]), torch.linspace(0, 1, 3)

    return Case(fn, repeat(floats(3, 4)))


@case
def tensor_from_a_list_of_numbers():
    """The numbers are arguments, and others at the second call."""

    def fn(x, numbers):
        return x + torch.tensor(numbers)

    x = floats(3)
    return Case(fn, each((x, [1.0, 2.0, 3.0]), (x, [1.0, 2.0, 4.0])))


@case
def indexing():
    """Integers, slices, None, Ellipsis, masks, and lists as an index."""

    def fn(x):
        return x[0], x[-1, 2], x[1:, ::2], x[..., 0], x[None], x[:, None, 1], x[x > 0], x[[0, 2]], x[torch.tensor([1])]

    return Case(fn, repeat(floats(3, 4)))


@case
def writing_by_index():
    """Into a tensor made here."""

    def fn(x):
        y = x.clone()
        y[0] = 1
        y[1:, ::2] += 5
        y[y < 0] = 0
        y[..., -1] = x[..., 0]
        return y

    return Case(fn, repeat(floats(3, 4)))


@case
def types_of_elements():
    """Casts, and results whose type follows from the arguments."""

    def fn(x, n):
        return x.half() + n, x.to(torch.float64), n.float() / 2, n + 1.5, x.bool(), x.long(), torch.result_type(x, n)

    return Case(fn, repeat(floats(3), torch.arange(3)))


@case
def attributes():
    """What a tensor says about itself."""

    def fn(x):
        said = x.dtype, x.device, x.ndim, x.is_contiguous(), x.requires_grad, x.is_floating_point(), x.T.stride()
        return said, x.mT, x.real, x.itemsize, x.layout, x.is_leaf, x.dim(), len(x), x.element_size()

    return Case(fn, repeat(floats(3, 4)))


@case
def einsum_and_friends():
    """Functions which take lists of tensors."""

    def fn(x, y):
        made = torch.einsum("ij,kj->ik", x, y), torch.cat([x, y]), torch.stack((x, y), 1), torch.broadcast_tensors(x, y)
        return made, torch.meshgrid(x[0], y[0], indexing="ij"), torch.block_diag(x, y), torch.where(x > y, x, y)

    return Case(fn, repeat(floats(3, 4), floats(3, 4)))


@case
def complex_numbers():
    """Tensors of complex numbers, and a complex constant."""

    def fn(x):
        z = torch.complex(x, x + 1) * (1 + 2j)
        return z, z.abs(), z.conj(), torch.view_as_real(z), z.imag

    return Case(fn, repeat(floats(4)))


@case
def a_chain_of_shapes():
    """Reshapes, most of them views."""

    def fn(x):
        y = x.view(4, 3).permute(1, 0).unsqueeze(0).expand(2, 3, 4).reshape(2, -1)
        return y, y.unflatten(1, (3, 4)).flatten(), x.squeeze(), x.narrow(0, 1, 2).transpose(0, 1).contiguous()

    return Case(fn, repeat(floats(3, 4)))


@case
def negative_zero_and_nan():
    """Constants which are equal and not the same, and one that is not equal to itself."""

    def fn(x):
        return x * 0.0, x * -0.0, x + math.nan, torch.tensor(-0.0), -0.0, 0.0, math.nan, [math.inf, -math.inf]

    return Case(fn, repeat(torch.tensor([1.0, -1.0])))


# ---- sizes ---------------------------------------------------------------------------------------------------


@case
def number_of_elements():
    """numel of tensors and of sizes."""

    def fn(x):
        return x * x.numel(), x.shape.numel(), x.shape[1:].numel(), torch.numel(x), x[0:0].shape.numel(), x.nelement()

    return Case(fn, each((floats(3, 4),), (floats(5, 4),)))


@case
def size_searched():
    """index, count and `in` of a size."""

    def fn(x):
        s = x.shape
        return 4 in s, 7 in s, s.index(4), s.index(3, 1), s.count(3), x + s.index(4), max(s), sum(s)

    return Case(fn, repeat(floats(4, 3, 3)))


@case
def size_unpacked():
    """Unpacked, sliced, put together with others."""

    def fn(x):
        b, *rest, d = x.shape
        c = x.shape[:-1] + (2, d // 2)
        return (
            x.view(c),
            c,
            b,
            rest,
            x.size(),
            x.size(-1),
            x.shape + x.shape,
            x.shape * 2,
            type(x.shape[1:]),
            (*x.shape, 1),
        )

    return Case(fn, each((floats(3, 5, 4),), (floats(2, 5, 4),)))


@case
def size_compared():
    """Sizes against tuples, lists and each other."""

    def fn(x, y):
        same = x.shape == y.shape, x.shape == (3, 4), x.shape != y.shape, x.shape < (9,), tuple(x.shape), list(y.shape)
        return x.sum() if x.shape == y.shape else y.sum(), same, hash(x.shape) == hash((3, 4)), repr(x.shape)

    return Case(fn, each((floats(3, 4), floats(3, 4)), (floats(3, 4), floats(4, 4))))


@case
def arithmetic_on_sizes():
    """Sizes in arithmetic: as a factor, as a divisor, in a loop, in a comparison."""

    def fn(x):
        n, m = x.shape
        y = x / math.sqrt(m) + n * m
        for i in range(n):
            y = y + i
        return (
            y.view(n * m // 2, -1) if n > 2 else y.view(-1),
            -n,
            n**2,
            n / m,
            float(n),
            str(n),
            n % 2 == 0,
            divmod(n, m),
        )

    return Case(fn, each((floats(3, 4),), (floats(2, 4),)))


@case
def another_shape_each_time():
    """No two calls have the same shape."""

    def fn(x):
        return x.reshape(-1) * x.shape[0], x.shape

    return Case(fn, each((floats(3, 4),), (floats(5, 4),), (floats(1, 4),), (floats(0, 4),)))


@case
def another_rank_each_time():
    """No two calls have the same number of dimensions."""

    def fn(x):
        return x.sum(dim=tuple(range(x.dim()))[1:]) if x.dim() > 1 else x * 2

    return Case(fn, each((floats(3),), (floats(3, 4),), (floats(3, 4, 2),), (floats(3),)))


@case
def sizes_as_arguments():
    """Integers used as a shape; 0 and 1 among them."""

    def fn(x, n):
        return x.new_ones(n, 2) * n, torch.zeros(n).shape, [n] * n

    x = floats(3)
    return Case(fn, each((x, 3), (x, 1), (x, 0), (x, 3)))


# ---- writing in place, views, aliases ------------------------------------------------------------------------


@case
def argument_written_in_place():
    """The caller sees it."""

    def fn(x):
        x.add_(1)
        x[0] = 7
        return x * 2

    return Case(fn, repeat(floats(3)))


@case
def argument_given_back():
    """The result is the argument itself, or a view of it, or its detached twin."""

    def fn(x):
        return x, x[0], x.view(-1), x.detach(), x.data, x.contiguous(), x.to(torch.float32), x.T

    return Case(fn, repeat(floats(3, 4)))


@case
def in_place_result_is_the_argument():
    """add_ returns its argument; so do relu_ and the in-place operators."""

    def fn(x):
        y = x.add_(1).relu_()
        y += 1
        return y, y is x

    return Case(fn, repeat(floats(3)))


@case
def view_written_in_place():
    """A write through a view is seen in the base and in other views."""

    def fn(x):
        a, b = x[0], x.view(-1)
        a.mul_(2)
        b[5] = 1
        return a, b, x.sum()

    return Case(fn, repeat(floats(3, 4)))


@case
def aliased_on_a_later_call():
    """The same tensor comes twice, but not at the first call."""

    def fn(x, y):
        x.add_(1)
        return y * 2

    a, b = floats(3), floats(3)
    return Case(fn, each((a, b), (a, a)))


@case
def overlapping_on_a_later_call():
    """The arguments are views of one memory, but not at the first call."""

    def fn(x, y):
        x.mul_(3)
        return y + 1

    a = floats(6)
    return Case(fn, each((floats(3), floats(3)), (a[:3], a[2:5])))


@case
def argument_is_an_outside_tensor():
    """The argument is the tensor that the closure holds, but not at the first call."""
    held = floats(3)

    def fn(x):
        x.add_(1)
        return held * 2, x is held

    return Case(fn, each((floats(3),), (held,)), state=lambda: held)


@case
def same_tensor_twice_in_the_result():
    """What is one object stays one."""

    def fn(x):
        y = x + 1
        return [y, y, [y], {"y": y}, y.view(-1)]

    return Case(fn, repeat(floats(3)))


@case
def given_memory():
    """out= writes into what is given, and resizes it if need be."""

    def fn(x, out, empty):
        y = torch.add(x, 1, out=out)
        torch.mul(x, 2, out=empty)
        return y is out, out * 2

    return Case(fn, fresh(lambda: (floats(3), torch.zeros(3), torch.empty(0))))


@case
def memory_replaced():
    """x.data = ..., set_ and resize_ give a tensor other memory."""

    def fn(x, y):
        x.data = y * 2
        y.resize_(2)
        return x + 1

    return Case(fn, fresh(lambda: (floats(3), floats(3))))


@case
def copied_into():
    """copy_, fill_, zero_ and index_put_ on what is outside."""
    buffer = torch.zeros(2, 3)

    def fn(x):
        buffer[0].copy_(x)
        buffer[1].fill_(x.numel())
        buffer.index_put_((torch.tensor([1]), torch.tensor([2])), x[0])
        return buffer.sum(0)

    return Case(fn, repeat(floats(3)), state=lambda: buffer)


@case
def deep_copies_of_tensors():
    """copy.copy shares memory, copy.deepcopy and clone do not."""

    def fn(x):
        a, b, c = copy.copy(x), copy.deepcopy(x), x.clone()
        a[0] = 9
        return a, b, c

    return Case(fn, repeat(floats(3)))


@case
def strides_change():
    """The same shape laid out in another way."""

    def fn(x):
        return x.view(-1) if x.is_contiguous() else x.flatten(), x.stride(), x.add(1)

    return Case(fn, each((floats(3, 3),), (floats(3, 3).T,)))


@case
def dtype_changes():
    """Another type of elements at the second call."""

    def fn(x):
        return x / 2, x.dtype, x * 2 if x.dtype == torch.float32 else x * 3

    return Case(fn, each((floats(3),), (torch.arange(3),)))


@case
def requires_grad_changes():
    """Gradients are wanted at the second call and not at the first."""

    def fn(x):
        return (x * 2, "wanted") if x.requires_grad else (x * 3, "not")

    return Case(fn, each((floats(3),), (floats(3).requires_grad_(),)), backward=True)


@case
def detached_and_switched_on():
    """requires_grad_ and detach in the middle."""

    def fn(x):
        y = x.detach().requires_grad_()
        z = (y * 2).sum()
        return y, z, x.detach_() is x, z.requires_grad

    return Case(fn, repeat(floats(3)))


@case
def none_in_the_place_of_a_tensor():
    """An argument that may be missing."""

    def fn(x, mask=None):
        if mask is not None:
            x = x.masked_fill(mask, 0)
        return x + 1

    x = floats(3)
    return Case(fn, each((x,), (x, x > 0)))


# ---- values decide -------------------------------------------------------------------------------------------


@case
def branch_on_a_value():
    """if on a tensor, each way in turn."""

    def fn(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    x = floats(3).abs()
    return Case(fn, each((x,), (-x,)))


@case
def loop_on_a_value():
    """while on a tensor."""

    def fn(x):
        steps = 0
        while x.sum() < 100:
            x = x * 2 + 1
            steps += 1
        return x, steps

    x = torch.ones(3)
    return Case(fn, each((x,), (x * 7,)))


@case
def values_as_numbers():
    """item, tolist, int, float, bool, and numbers that go back into tensors."""

    def fn(x):
        a, b = x.sum().item(), x.long().tolist()
        return x * a, b, int(x[0]), float(x[1]), bool(x[2] > 0), x + b[0], complex(x[0]), x[0].__index__ is not None

    return Case(fn, each((torch.tensor([1.5, 2.5, 3.5]),), (torch.tensor([4.5, 0.5, -1.5]),)))


@case
def value_used_after_the_tensor_changed():
    """item is read before and after a write in place."""

    def fn(x):
        before = x[0].item()
        x.add_(1)
        return before, x[0].item(), x.sum()

    return Case(fn, repeat(torch.zeros(3)))


@case
def shapes_that_depend_on_values():
    """nonzero, masked_select and unique, whose sizes are read afterwards."""

    def fn(x):
        found, kept = x.nonzero(), x[x > 0]
        if kept.shape[0] > 1:
            return found.shape, kept * kept.numel(), torch.unique(x)
        return kept

    return Case(fn, each((torch.tensor([1.0, 0.0, 2.0]),), (torch.tensor([0.0, 0.0, 2.0]),)))


@case
def list_indexed_by_a_tensor():
    """A list takes any integer; a constant tensor is one, and so is one that is not constant."""

    def fn(x, i):
        things = [x, x + 1, x + 2]
        return things[torch.tensor(1)], things[i], (10, 20, 30)[i], "abc"[i], x.shape[torch.tensor(0)]

    x = floats(3)
    return Case(fn, each((x, torch.tensor(0)), (x, torch.tensor(2))))


@case
def range_of_a_tensor():
    """range and slices over values of a tensor."""

    def fn(x, n):
        total = x
        for i in range(n):
            total = total + i
        return total, x[:n], [0] * n.item()

    x = floats(3)
    return Case(fn, each((x, torch.tensor(2)), (x, torch.tensor(3))))


@case
def tensor_in_a_list():
    """`in` compares a tensor by value: by identity first, and by == after that."""

    def fn(x):
        one = torch.tensor(1.0)
        return (
            one in [torch.tensor(2.0), one],
            x[0] in x,
            [one, one].index(one),
            x in [x],
            [x, 2].count(2) if False else 0,
        )

    return Case(fn, repeat(floats(3)))


@case
def iteration_over_a_tensor():
    """for over rows, zip, enumerate, unpacking, len and reversed."""

    def fn(x):
        total = 0
        for row in x:
            total = total + row
        a, b, c = x
        pairs = [i * t.sum() for i, t in enumerate(x)]
        return total, a - b + c, pairs, [p @ q for p, q in zip(x, reversed(x), strict=True)], list(map(torch.sum, x))

    return Case(fn, repeat(floats(3, 4)))


@case
def tensor_in_a_format():
    """f-strings, str, repr and % of tensors."""

    def fn(x):
        return f"{x}", f"{x[0]:.2f}", str(x), repr(x.shape), "%.1f" % x[1], f"{x.dtype}", x + len(str(x[0]))

    return Case(fn, each((floats(2),), (floats(2),)))


@case
def truth_of_tensors():
    """and, or, not, any, all and ternaries on tensors of one element."""

    def fn(x):
        a, b = x[0] > 0, x[1] > 0
        return a and b, a or b, not a, any(t > 0 for t in x), all(t > 0 for t in x), x if a else -x, (a or x) is a

    return Case(fn, each((torch.tensor([1.0, -1.0]),), (torch.tensor([-1.0, 1.0]),)))


@case
def minimum_of_tensors():
    """min, max, sorted and sum from builtins."""

    def fn(x):
        rows = list(x)
        return max(rows), min(rows), sorted(rows, key=lambda t: -t), sum(rows), sum(rows, torch.tensor(5.0))

    return Case(fn, each((torch.tensor([2.0, 1.0, 3.0]),), (torch.tensor([1.0, 2.0, 3.0]),)))


@case
def set_membership_of_tensors():
    """Tensors are hashed by identity."""

    def fn(x, y):
        known = {x: "x", y: "y"}
        return known[x], known[y], x in known, len({x, y, x}), (x + 1) in known

    a, b = floats(3), floats(3)
    return Case(fn, each((a, b), (a, a)))


# ---- random numbers ------------------------------------------------------------------------------------------


@case
def dropout():
    """Other elements are dropped at each call."""

    def fn(x):
        return F.dropout(x, 0.5) + torch.nn.functional.dropout(x, 0.5, training=False)

    return Case(fn, repeat(floats(4, 4)))


@case
def random_tensors():
    """rand, randn, randint, randperm, bernoulli, multinomial and the in-place ones."""

    def fn(x):
        made = (
            torch.rand(2),
            torch.randn_like(x),
            torch.randint(9, (3,)),
            torch.randperm(4),
            torch.bernoulli(x.sigmoid()),
        )
        return made, torch.multinomial(x.softmax(0), 2), torch.empty(2).uniform_(), torch.zeros(2).normal_()

    return Case(fn, repeat(floats(3)))


@case
def seed_set_inside():
    """Every call draws the same, and the generator stands elsewhere afterwards."""

    def fn(x):
        torch.manual_seed(5)
        return x + torch.rand(3)

    return Case(fn, repeat(floats(3)))


@case
def random_numbers_of_python():
    """random.random, choice, shuffle, and sample, in arithmetic and in control."""

    def fn(x):
        order = [0, 1, 2]
        random.shuffle(order)
        if random.random() < 0.5:
            x = x + 1
        return x * random.random(), order, random.choice([1, 2, 3]), random.sample(range(9), 2), random.randint(0, 5)

    return Case(fn, repeat(floats(3)))


@case
def random_numbers_of_an_instance():
    """A random.Random of one's own, and a torch.Generator."""
    own, generator = random.Random(3), torch.Generator().manual_seed(3)

    def fn(x):
        return x * own.random() + torch.rand(3, generator=generator)

    return Case(fn, repeat(floats(3)), state=lambda: (own, generator))


@case
def random_numbers_of_numpy():
    """np.random, old and new."""
    generator = np.random.default_rng(1)

    def fn(x):
        return x * float(np.random.rand()) + generator.integers(9)

    return Case(fn, repeat(floats(3)))


@case
def state_of_the_generator_saved():
    """get_rng_state and set_rng_state: two draws that are alike. fork_rng leaves no trace."""

    def fn(x):
        state = torch.get_rng_state()
        a = torch.rand(2)
        torch.set_rng_state(state)
        with torch.random.fork_rng():
            c = torch.rand(2)
        return x.sum() + a, torch.rand(2), c

    return Case(fn, repeat(floats(3)))


@case
def random_branch():
    """A branch on a random tensor."""

    def fn(x):
        if torch.rand(()) < 0.5:
            return x + torch.rand(3)
        return x

    return Case(fn, repeat(floats(3)))


# ---- numpy, scripts, transforms ------------------------------------------------------------------------------


@case
def to_numpy_and_back():
    """An array shares memory with its tensor."""

    def fn(x):
        array = x.numpy()
        array[0] = 5
        return torch.from_numpy(array * 2), array.sum(), x + 1, np.asarray(x).shape

    return Case(fn, repeat(floats(3)))


@case
def scripted_function():
    """A function that torch.jit.script compiled, in the middle."""

    with torch.jit.optimized_execution(False):
        scripted = torch.jit.trace(lambda t: t * 2 + 1, floats(3))

    def fn(x):
        y = x.sin()
        return scripted(y).cos()

    return Case(fn, repeat(floats(3)))


@case
def mapped_function():
    """torch.vmap and torch.func.grad over a function of the user's."""

    def inner(t):
        return (t * t).sum()

    def fn(x):
        return torch.vmap(inner)(x), torch.func.grad(inner)(x[0]), torch.func.vmap(torch.func.grad(inner))(x + 1)

    return Case(fn, repeat(floats(3, 4)))


@case
def tensor_of_a_subclass():
    """A subclass of Tensor with its own __torch_function__."""

    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            print(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def fn(x):
        return x + 1, (x * 2).sum()

    return Case(fn, repeat(floats(3).as_subclass(Tagged)))


@case
def default_device_and_compile_checks():
    """Questions to torch about its own state."""

    def fn(x):
        asked = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_tensor(x), torch.is_floating_point(x)
        return x + 1, asked, torch.is_inference_mode_enabled(), torch.compiler.is_compiling(), torch.jit.is_scripting()

    return Case(fn, repeat(floats(3)))


@case
def default_dtype_changes():
    """The default dtype is another one at the second call."""

    def fn(x):
        return torch.zeros(2), x + torch.tensor(1.5), torch.arange(3) / 2

    x = floats(1)
    double, single = (lambda: torch.set_default_dtype(torch.float64)), (lambda: torch.set_default_dtype(torch.float32))
    return Case(fn, each(call(x), call(x, before=double), call(x, before=single), call(x, before=double)))


@case
def the_dictionary_of_a_tensor():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.tag = "t"

    def fn(x):
        return x + weight, vars(weight), vars(weight)["tag"], weight.tag

    return Case(fn, repeat(torch.ones(2)), state=lambda: weight.tag)


@case
def a_mode_is_entered():
    """What is recorded outside of the mode is not what runs in it."""
    modes = [torch.device("meta")] * 2 + [contextlib.nullcontext()] * 2

    def fn(x, mode):
        y = x + 1
        with mode:
            made = torch.zeros(2)
            if made.is_meta:
                y = y * 2
        return y, made.is_meta, torch.zeros(1).is_meta

    return Case(fn, [Call((torch.ones(2), mode)) for mode in modes])


@case
def statistics_of_batches():
    """They are written to, though torch does not say so of the operator."""
    torch.manual_seed(0)
    norm, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).eval()
    mean, variance = torch.zeros(3), torch.ones(3)

    def fn(x):
        norm(x)
        other(x)
        F.batch_norm(x, mean, variance, training=True)
        return x + mean, norm(x).shape

    state = [*norm.buffers(), *other.buffers(), mean, variance]
    return Case(fn, repeat(torch.arange(12.0).reshape(4, 3)), state=lambda: state)


@case
def statistics_before_an_operator_that_fails():
    norm, weight = torch.nn.BatchNorm1d(3), torch.ones(3, 2)

    def fn(x, index):
        y = norm(x)
        try:
            return y, F.embedding(index, weight)
        except IndexError:
            return y, "out of range"

    x = torch.arange(12.0).reshape(4, 3)
    return Case(fn, each(*[(x, torch.tensor([index])) for index in (0, 1, 7, 2)]), state=lambda: [*norm.buffers()])


@case
def a_write_behind_an_operator_that_fails():
    count, log = torch.zeros(1), []

    def fn(weight, index):
        try:
            y = F.embedding(index, weight)
        except IndexError:
            return "out of range"
        finally:
            log.append("finally")
        count.add_(1)
        return y

    calls = each(*[(torch.ones(3, 2), torch.tensor([index])) for index in (0, 1, 7, 2)])
    return Case(fn, calls, state=lambda: (count, log))


@case
def integers_are_divided_by_zero():
    def fn(a, b, mode):
        try:
            torch.div(a, b, rounding_mode=mode)
        except RuntimeError:
            return "failed"
        return a + b

    a = torch.tensor([4])
    calls = [(a, torch.tensor([2]), "floor"), (a, torch.tensor([0]), "floor")]
    return Case(fn, each(*calls, (a, torch.tensor([2]), "trunc"), (a, torch.tensor([0]), "trunc")))


@case
def a_size_is_read_before_it_changes():
    def fn(x):
        y = x + 1
        size, shape = y.shape[0], y.shape
        y.t_()
        made = torch.empty(0)
        before = made.shape[0]
        torch.add(x, 1, out=made)
        return torch.arange(size), y, list(shape), before, made

    return Case(fn, each((torch.ones(2, 3),), (torch.ones(4, 5),)))


@case
def classes_of_torch_with_a_state():
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)

    def fn(x):
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5)
        with torch.autograd.set_detect_anomaly(True):
            anomaly = torch.is_anomaly_enabled()
        return x + 1, anomaly, torch.is_anomaly_enabled()

    return Case(fn, repeat(torch.ones(2)), state=lambda: optimizer.param_groups[0]["lr"])


@case
def operators_of_somebody_s_own():
    log = []
    library = torch.library.Library("frontend_cases", "FRAGMENT")
    name = f"noted_{len(_LIBRARIES)}"
    library.define(f"{name}(Tensor x) -> ()")
    library.impl(name, lambda x: log.append(float(x.sum())), "CompositeExplicitAutograd")
    _LIBRARIES.append(library)

    def fn(x):
        getattr(torch.ops.frontend_cases, name)(x)
        return x + 1

    return Case(fn, repeat(torch.ones(2)), state=lambda: log)


_LIBRARIES = []


@case
def random_numbers_with_bounds():
    return Case(
        lambda x: (x.clone().random_(3, 9), x.clone().random_(4), torch.randint_like(x, 3)), repeat(torch.ones(4))
    )


@case
def effects_before_a_write_and_an_operator_that_fails():
    log = []

    def fn(x, index):
        log.append(len(log))
        x.add_(1)
        return torch.ones(3)[index]

    return Case(fn, each(*[(torch.ones(3), torch.tensor([index])) for index in (0, 1, 9, 2)]), state=lambda: log)


@case
def numbers_of_numpy():
    scale = np.float64(3.0)

    def fn(x, other):
        x.add_(1)
        return x / scale, x / np.sqrt(x.shape[-1]), x.clamp(0, other), other == 2

    numbers = [np.float64(2.0), np.float64(-0.0), np.float64("nan"), np.float64(2.0)]
    return Case(fn, each(*[(torch.ones(3), number) for number in numbers]))


@case
def a_matrix_that_cannot_be_inverted():
    log = []

    def fn(matrix):
        try:
            return torch.linalg.inv(matrix), torch.linalg.cholesky(matrix)
        except RuntimeError:
            return "failed"
        finally:
            log.append(matrix.shape)

    return Case(fn, each((torch.eye(2),), (torch.zeros(2, 2),)), state=lambda: log)


@case
def masks_of_attention():
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    padding, causal = torch.tensor([[False, True, False]]), torch.ones(3, 3, dtype=torch.bool).triu(1)

    def fn(x):
        return attention(x, x, x, key_padding_mask=padding)[0], attention(x, x, x, attn_mask=causal)

    return Case(fn, repeat(torch.arange(12.0).reshape(1, 3, 4) / 12))


@case
def a_tensor_without_dimensions_is_iterated_over():
    def fn(x):
        try:
            return list(x)
        except TypeError as error:
            return str(error)

    return Case(fn, each((torch.tensor(1.0),), (torch.ones(2),)))

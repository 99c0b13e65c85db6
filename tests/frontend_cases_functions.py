"""Cases for the front end: calls, closures, generators, decorators, functools."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable

import torch

from frontend_differential import Case, call, case, each, fresh, repeat


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


# ---- arguments -----------------------------------------------------------------------------------------------


@case
def every_kind_of_parameter():
    """Positional-only, defaults, *args, keyword-only, **kwargs."""

    def inner(a, b=2, /, c=3, *rest, d, e=5, **others):
        return a * b + c + sum(rest) + d + e + sum(others.values()), rest, others

    def fn(x):
        return inner(x, d=1), inner(x, 1, 2, 3, 4, d=5, e=6, f=7), inner(x, *[1, 2, 3], d=1, a=9)

    return Case(fn, repeat(floats(2)))


@case
def unpacking_calls():
    """Several * and ** in one call; order of evaluation."""

    def note(item):
        print("evaluated", item)
        return item

    def inner(*args, **kwargs):
        return args, kwargs

    def fn(x, more):
        return inner(note(x), *more, note(2), *(3, 4), k=note(5), z=6, **dict(y=note(7))), print(*more, sep="-")

    x = floats(2)
    return Case(fn, each((x, [1, 2]), (x, ())))


@case
def wrong_number_of_arguments():
    """A TypeError that the user catches."""

    def two(a, b, *, c=1):
        return a + b + c

    def fn(x):
        caught = []
        for attempt in (
            lambda: two(x),
            lambda: two(x, 1, 2),
            lambda: two(x, 1, d=3),
            lambda: two(x, a=1),
            lambda: two(),
        ):
            try:
                attempt()
            except TypeError as error:
                caught.append(str(error))
        return x + len(caught), caught

    return Case(fn, repeat(floats(2)))


@case
def wrong_number_of_arguments_outside():
    """A TypeError that nobody catches, from an inner call."""

    def two(a, b):
        return a + b

    def fn(x):
        y = x + 1
        return two(y)

    return Case(fn, repeat(floats(2)))


@case
def called_wrongly():
    """The captured function itself gets too few arguments, and then too many."""

    def fn(x, y):
        return x + y

    x = floats(2)
    return Case(fn, each((x, x), (x,), (x, x, x), (x, x)))


@case
def keywords_of_the_captured_function():
    """Given in another order, by position, by name, left out."""

    def fn(x, scale=2.0, *, shift=1.0, **others):
        return x * scale + shift + len(others)

    x = floats(2)
    return Case(
        fn, each(call(x), call(x, shift=3.0, scale=4.0), call(x, 5.0, other=1), call(scale=4.0, x=x, shift=3.0))
    )


@case
def variable_arguments_of_the_captured_function():
    """Their number changes."""

    def fn(*xs, **named):
        return sum(xs), sorted(named), len(xs)

    x = floats(2)
    return Case(fn, each(call(x, x), call(x, x, x), call(x, a=1), call(x, x)))


@case
def mutable_default():
    """A default list that keeps what was put into it."""

    def inner(item, log=[]):
        log.append(item)
        return len(log)

    def fn(x):
        return x * inner(1) + inner(x)

    return Case(fn, repeat(floats(2)), state=lambda: inner.__defaults__)


@case
def defaults_of_lambdas():
    """Defaults are evaluated where the lambda is made."""

    def fn(x):
        made = [lambda t, i=i: t * i for i in range(3)]
        return [f(x) for f in made], (lambda *a, k=x: a + (k,))(1), made[1].__defaults__

    return Case(fn, repeat(floats(2)))


@case
def defaults_replaced():
    """A function's __defaults__ and __kwdefaults__ change between the calls."""

    def inner(x, scale=2, *, shift=0):
        return x * scale + shift

    def fn(x):
        return inner(x)

    def become(scale, shift):
        inner.__defaults__, inner.__kwdefaults__ = (scale,), {"shift": shift}

    x = floats(2)
    return Case(fn, each(call(x, before=lambda: become(2, 0)), call(x, before=lambda: become(3, 1))))


@case
def code_replaced():
    """A function's __code__ changes between the calls."""

    def inner(x):
        return x + 1

    def other(x):
        return x * 5

    def fn(x):
        return inner(x)

    codes = inner.__code__, other.__code__

    def swap():
        inner.__code__ = codes[inner.__code__ is codes[0]]

    x = floats(2)
    return Case(fn, each(call(x), call(x, before=swap), call(x, before=swap), call(x, before=swap)))


@case
def functions_as_arguments():
    """Functions, classes and bound methods come in and are called."""

    class Scale:
        def __init__(self, by):
            self.by = by

        def go(self, x):
            return x * self.by

    def fn(x, f):
        return f(x)

    x = floats(2)
    return Case(fn, each((x, torch.sin), (x, lambda t: t + 1), (x, Scale(2).go), (x, Scale(3).go)))


@case
def arguments_of_other_types():
    """1, True and 1.0 are equal and not the same; so are 0.0 and -0.0."""

    def fn(x, n):
        return x * n, n, isinstance(n, bool), type(n).__name__, n + n

    x = floats(2)
    return Case(fn, each((x, 1), (x, True), (x, 1.0), (x, 1)))


@case
def zeros_of_either_sign():
    """A guard that compares with == takes -0.0 for 0.0."""

    def fn(x, f):
        return x * f, 1 / torch.tensor(f), str(f), f == 0

    x = torch.ones(2)
    return Case(fn, each((x, 0.0), (x, -0.0)))


@case
def nan_as_an_argument():
    """A guard that compares with == never holds for NaN."""

    def fn(x, f):
        return x + f, f != f, [f].count(f)

    return Case(fn, repeat(floats(2), float("nan")))


@case
def text_as_an_argument():
    """Modes given by name, None among them."""

    def fn(x, how=None):
        match how:
            case "relu":
                return x.relu()
            case None:
                return x
        raise ValueError(f"unknown: {how}")

    x = floats(2)
    return Case(fn, each((x, "relu"), (x,), (x, "what"), (x, "relu")))


# ---- closures ------------------------------------------------------------------------------------------------


@case
def nonlocal_counter():
    """A cell that is written in an inner function, read in the outer one."""

    def fn(x):
        total = 0

        def bump(y):
            nonlocal total
            total += 1
            return y * total

        a, b = bump(x), bump(x)
        return a + b, total

    return Case(fn, repeat(floats(2)))


@case
def counter_outside():
    """A cell outside of the captured function counts its calls."""
    count = 0

    def fn(x):
        nonlocal count
        count += 1
        return x * count

    return Case(fn, repeat(floats(2)), state=lambda: count)


@case
def cell_shared_by_two_functions():
    """One writes it, the other one reads it; both go out."""

    def fn(x):
        value = x

        def put(new):
            nonlocal value
            value = new

        def get():
            return value

        put(x + 1)
        return put, get, get() * 2

    return Case(fn, repeat(floats(2)))


@case
def closures_outlive_the_call():
    """A pair of functions from one call is used in the next."""
    kept = []

    def fn(x):
        value = x

        def put(new):
            nonlocal value
            value = value + new

        def get():
            return value

        kept.append((put, get))
        kept[0][0](1)
        return kept[0][1]() * 2, get()

    return Case(fn, repeat(floats(2)), state=lambda: kept)


@case
def late_binding():
    """Functions made in a loop see its last value."""

    def fn(x):
        made = []
        for i in range(3):
            made.append(lambda: x * i)
        i = 10
        return [f() for f in made]

    return Case(fn, repeat(floats(2)))


@case
def closure_cell_changes():
    """What the closure holds is rebound between the calls."""
    scale = 2

    def fn(x):
        return x * scale

    def become(value):
        nonlocal scale
        scale = value

    x = floats(2)
    return Case(fn, each(call(x, before=lambda: become(2)), call(x, before=lambda: become(3.5))))


@case
def unbound_variables():
    """UnboundLocalError and NameError, caught: a variable before it is bound, and after del."""

    def fn(x):
        said = []

        def inner():
            return later

        try:
            inner()
        except NameError as error:
            said.append((type(error).__name__, str(error), error.name))
        later = x + 1
        value = inner()
        del later
        try:
            later
        except NameError as error:
            said.append((type(error).__name__, str(error)))
        try:
            no_such_name
        except NameError as error:
            said.append(str(error))
        return said, value

    return Case(fn, repeat(floats(2)))


@case
def locals_and_globals():
    """locals() and globals(), read."""

    def fn(x):
        a, b = 1, x + 1
        here = locals()
        return sorted(here), here["a"], here["b"] is b, "floats" in globals(), [name for name in dir() if name in "ab"]

    return Case(fn, repeat(floats(2)))


@case
def recursion():
    """A function that calls itself, through its cell and with a list it fills."""

    def fn(x, n):
        visited = []

        def down(t, left):
            visited.append(left)
            return t if left == 0 else down(t + left, left - 1) * 2

        def fibonacci(k):
            return k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)

        return down(x, n), visited, fibonacci(6)

    x = floats(2)
    return Case(fn, each((x, 3), (x, 2)))


@case
def recursion_without_end():
    """RecursionError, caught."""

    def forever(n):
        return forever(n + 1)

    def fn(x):
        try:
            forever(0)
        except RecursionError:
            return x + 1
        return x

    return Case(fn, repeat(floats(2)))


@case
def function_defined_inside():
    """Its name, attributes, annotations and defaults are looked at."""

    def fn(x, n):
        def inner(a: int, b=n) -> int:
            """Says."""
            return a * b

        inner.mark = n
        return (
            inner(x),
            inner.__name__,
            inner.__doc__,
            inner.mark,
            inner.__defaults__,
            callable(inner),
            inner.__annotations__,
        )

    x = floats(2)
    return Case(fn, each((x, 2), (x, 3)))


@case
def function_given_back():
    """The caller gets a closure over tensors, a partial and a method."""

    def fn(x):
        y = x + 1

        def inner(z, k=y):
            return y * z + k

        return inner, functools.partial(inner, k=2), x.add, inner(1)

    return Case(fn, repeat(floats(2)))


@case
def attributes_of_functions():
    """A function that counts on itself."""

    def inner(x):
        inner.calls += 1
        return x * inner.calls

    inner.calls = 0

    def fn(x):
        return inner(x) + inner(x)

    return Case(fn, repeat(floats(2)), state=lambda: vars(inner))


# ---- generators ----------------------------------------------------------------------------------------------


@case
def generator_consumed():
    """for, list, sum, tuple, unpacking, join, any over generators."""

    def count(x, n):
        for i in range(n):
            yield x + i

    def fn(x):
        a, b = count(x, 2)
        total = sum(count(x, 3))
        for t in count(x, 2):
            total = total + t
        return (
            total,
            a,
            b,
            list(count(x, 1)),
            [*count(x, 2)],
            dict(enumerate(count(x, 2))),
            "".join(str(i) for i in range(3)),
        )

    return Case(fn, repeat(floats(2)))


@case
def generator_with_prints():
    """A print inside of a generator, and one between its items."""

    def talk(x):
        print("starts")
        try:
            for i in range(2):
                print("gives", i)
                yield x * i
        finally:
            print("ends")

    def fn(x):
        total = x
        for t in talk(x):
            print("got one")
            total = total + t
        return total

    return Case(fn, repeat(floats(2)))


@case
def generator_sent_to():
    """send, and what yield gives back."""

    def running():
        total = 0
        while True:
            got = yield total
            if got is None:
                return "done"
            total = total + got

    def fn(x):
        g = running()
        seen = [next(g), g.send(x), g.send(1)]
        try:
            g.send(None)
        except StopIteration as stop:
            seen.append(stop.value)
        return seen

    return Case(fn, repeat(floats(2)))


@case
def generator_thrown_into():
    """throw: caught inside, answered with a yield; not caught; and close runs finally."""

    def careful(x, log):
        try:
            yield x
        except ValueError as error:
            yield x + len(error.args)
        finally:
            log.append("closed")

    def fn(x):
        log = []
        g = careful(x, log)
        seen = [next(g), g.throw(ValueError("a", "b"))]
        g.close()
        other = careful(x, log)
        next(other)
        try:
            other.throw(KeyError("k"))
        except KeyError as error:
            seen.append(error.args)
        closed = careful(x, log)
        closed.close()
        return seen, log

    return Case(fn, repeat(floats(2)))


@case
def generators_delegate():
    """yield from: values, sends and the returned value pass through."""

    def inner(x):
        got = yield x
        yield got
        return "inner is done"

    def outer(x):
        result = yield from inner(x)
        yield result
        yield from [1, 2]
        return (yield from ())

    def fn(x):
        g = outer(x)
        return next(g), g.send(x * 2), list(g)

    return Case(fn, repeat(floats(2)))


@case
def generator_left_early():
    """break out of one, which runs its finally, and next with a default."""

    def numbers(log):
        try:
            yield from itertools.count()
        finally:
            log.append("left")

    def fn(x):
        log = []
        for n in numbers(log):
            if n == 2:
                break
        g = numbers(log)
        taken = list(itertools.islice(g, 2)), [a + b for a, b in zip(g, [10, 20], strict=False)], next(iter([]), None)
        g.close()
        return x * n, taken, log

    return Case(fn, repeat(floats(2)))


@case
def generator_given_back():
    """The caller consumes it, after the call."""

    def fn(x):
        def inner():
            for i in range(3):
                print("gives", i)
                yield x * i

        g = inner()
        next(g)
        return g, (t + 1 for t in [x, x])

    return Case(fn, repeat(floats(2)))


@case
def captured_generator_function():
    """The captured function is a generator function itself."""

    def fn(x):
        for i in range(3):
            x = x + i
            yield x
        return "done"

    return Case(fn, repeat(floats(2)))


@case
def generator_raises():
    """An exception in a generator; it is finished afterwards. StopIteration inside becomes a RuntimeError."""

    def bad(x):
        yield x
        raise ValueError("inside")

    def worse():
        yield 1
        raise StopIteration("no")

    def fn(x):
        g, seen = bad(x), []
        for attempt in range(3):
            try:
                seen.append(next(g))
            except (ValueError, StopIteration) as error:
                seen.append(type(error).__name__)
        try:
            list(worse())
        except RuntimeError as error:
            seen.append((str(error), type(error.__cause__).__name__))
        return seen

    return Case(fn, repeat(floats(2)))


@case
def generator_across_calls():
    """A generator of the outside is advanced by each call."""

    def steps():
        scale = 1.0
        while True:
            yield scale
            scale *= 2

    source = steps()

    def fn(x):
        return x * next(source)

    return Case(fn, repeat(floats(2)), state=lambda: source)


@case
def generator_expressions_are_lazy():
    """What it sees is what there is when it runs; only the first iterable is evaluated at once."""

    def fn(x):
        things, scale = [1, 2], 1
        lazy = (x * t * scale for t in things)
        things.append(3)
        scale = 10
        first = next(lazy)
        return first, list(lazy), inspect.isgenerator(lazy)

    return Case(fn, repeat(floats(2)))


@case
def generators_in_step():
    """Two generators which take turns, and share a list."""

    def producer(x, log):
        for i in range(3):
            log.append(f"made {i}")
            yield x + i

    def consumer(source, log):
        for item in source:
            log.append("used")
            yield item * 2

    def fn(x):
        log = []
        return sum(consumer(producer(x, log), log)), log

    return Case(fn, repeat(floats(2)))


@case
def coroutines():
    """An async function, driven by hand."""

    class Later:
        def __await__(self):
            got = yield "waiting"
            return got

    async def work(x):
        got = await Later()
        return x * got

    def fn(x):
        c = work(x)
        said = c.send(None)
        try:
            c.send(3)
        except StopIteration as stop:
            return said, stop.value
        return None

    return Case(fn, repeat(floats(2)))


# ---- decorators and functools --------------------------------------------------------------------------------


@case
def decorators():
    """With and without arguments, stacked, with wraps."""

    def loud(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            print("calls", f.__name__)
            return f(*args, **kwargs)

        return inner

    def times(n):
        def decorate(f):
            return lambda x: f(x) * n

        return decorate

    @times(3)
    @loud
    def add(x):
        return x + 1

    def fn(x):
        return add(x), loud(lambda t: t)(x)

    return Case(fn, repeat(floats(2)))


@case
def decorated_function_captured():
    """The function that is captured has a wrapper around it, and __wrapped__."""

    def twice(f):
        @functools.wraps(f)
        def inner(x, *, shift=1):
            return f(x) * 2 + shift

        return inner

    @twice
    def fn(x):
        return x.sin()

    x = floats(2)
    return Case(fn, each(call(x), call(x, shift=2)))


@case
def partials():
    """functools.partial: positions, keywords, nested, partialmethod."""

    class Thing:
        def scale(self, x, by, plus=0):
            return x * by + plus

        double = functools.partialmethod(scale, by=2)

    def fn(x, f):
        g = functools.partial(functools.partial(torch.add, x), alpha=3)
        return f(x), g(x), Thing().double(x, plus=1), f.keywords, f.func is torch.clamp

    x = floats(2)
    return Case(fn, each((x, functools.partial(torch.clamp, min=0)), (x, functools.partial(torch.clamp, max=0))))


@case
def reduction():
    """functools.reduce over tensors with functions of the user's."""

    def fn(x):
        return functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, x + 2]), functools.reduce(
            torch.maximum, [x, -x], x * 0
        )

    return Case(fn, repeat(floats(2)))


@case
def cached_functions():
    """lru_cache and cache: the function runs once, and keeps what it made."""
    ran = []

    @functools.lru_cache(maxsize=2)
    def table(n):
        ran.append(n)
        return torch.arange(n)

    @functools.cache
    def name(n):
        return f"n{n}"

    def fn(x, n):
        return x + table(n).sum(), table(n), name(n)

    x = floats(2)
    return Case(fn, each((x, 3), (x, 4), (x, 5), (x, 3)), state=lambda: (ran, table.cache_info()))


@case
def cached_property_on_an_object():
    """functools.cached_property writes to the object when it is first read."""

    class Thing:
        @functools.cached_property
        def table(self):
            print("computes")
            return torch.arange(3.0)

    def fn(thing, x):
        return x * thing.table.sum(), thing.table

    old, x = Thing(), floats(2)
    return Case(fn, each((old, x), (old, x), (Thing(), x), (Thing(), x)))


@case
def single_dispatch():
    """functools.singledispatch by the type of the argument."""

    @functools.singledispatch
    def describe(value):
        return "object"

    @describe.register
    def _(value: int):
        return "int"

    @describe.register(list)
    def _(value):
        return [describe(item) for item in value]

    def fn(x, value):
        return x + len(describe(value)), describe([1, "a", [2]])

    x = floats(2)
    return Case(fn, each((x, 1), (x, "text"), (x, [1]), (x, True)))


@case
def inspection():
    """inspect.signature, getattr of a name, callable."""

    def inner(a, b=2, *c, d=None):
        return a

    def fn(x):
        return (
            inner(x),
            list(inspect.signature(inner).parameters),
            inspect.isfunction(inner),
            inner.__code__.co_argcount,
        )

    return Case(fn, repeat(floats(2)))


@case
def skipped_by_nobody():
    """Functions that live in other modules of Python: textwrap, statistics, string."""
    import statistics
    import string
    import textwrap

    def fn(x, numbers):
        return x * statistics.mean(numbers), textwrap.shorten("a b c d", 5), string.Template("$a").substitute(a=1)

    x = floats(2)
    return Case(fn, each((x, [1, 2, 3]), (x, [1.5, 2.5])))


@case
def callback_from_native_code():
    """User functions called by C: sorted, map, re.sub, reduce, all with effects."""
    log = []

    def key(item):
        log.append(item)
        return -item

    def fn(x):
        return x * sorted([1, 3, 2], key=key)[0], list(map(key, [5, 6])), max([1, 2], key=key)

    return Case(fn, repeat(floats(2)), state=lambda: log)


@case
def typed_functions():
    """Annotations, Callable from collections.abc, and isinstance against it."""

    def apply(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = f(x)
        return result

    def fn(x):
        return apply(torch.sin, x), isinstance(apply, Callable), isinstance(3, Callable)

    return Case(fn, fresh(lambda: (floats(2),)))


@case
def a_context_manager_that_breaks_on_its_way():
    """Before its `yield`, between, and behind: the generator is at work in one graph, and waits in the next."""

    @contextlib.contextmanager
    def noted(name):
        print("in", name)
        try:
            yield name + "!"
        finally:
            print("out", name)

    def fn(x):
        with noted("first") as name:
            x = x + 1
            print("body of", name)
            with noted("second"):
                x = x * 2
                print("inner body")
        return x

    return Case(fn, repeat(torch.ones(2)))


@case
def a_generator_that_breaks_between_its_values():
    def numbers(count):
        for number in range(count):
            print("next is", number)
            yield number
            print("behind", number)

    def fn(x):
        for number in numbers(3):
            x = x + number
            print("got", number)
        return x

    return Case(fn, repeat(torch.ones(2)))


@case
def a_module_with_hooks():
    linear, log = torch.nn.Linear(2, 2), []
    linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    linear.register_forward_hook(lambda module, args, output: (log.append(output.shape), output * 2)[1])
    return Case(lambda x: linear(x), repeat(torch.ones(2, 2)), state=lambda: log)

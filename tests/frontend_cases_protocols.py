"""Cases: what CPython asks objects and classes for, in which order, and what it makes of their answers."""

from __future__ import annotations

import abc
import contextlib
import datetime
import decimal
import functools
import itertools
import sys
import threading
import traceback
import types
import weakref
from typing import Protocol, runtime_checkable

import torch

from frontend_differential import Case, call, case, each, repeat

X = torch.ones(2)


def told(function, *args):
    """What a call gives, or what it raises."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error).__name__, str(error)


# ---- generators ----------------------------------------------------------------------------------------------


def handling(log):
    try:
        yield 1
    except ValueError as error:
        log.append(str(error))
        yield 2
    finally:
        log.append("finally")
    return "returned"


def delegating(log):
    got = yield from handling(log)
    yield got


@case
def exceptions_are_thrown_into_delegates():
    log = []

    class Delegate:
        def __iter__(self):
            return self

        def __next__(self):
            return "next"

        def throw(self, *error):
            log.append("thrown")
            return "caught"

        def close(self):
            log.append("closed")

    def over_an_object():
        yield from Delegate()

    def over_a_list():
        try:
            yield from [1, 2]
        except ValueError:
            yield "from a list"

    def fn(x):
        generator = delegating(log)
        found = [next(generator), generator.throw(ValueError("in")), next(generator)]
        closed = delegating(log)
        next(closed)
        closed.close()
        objects = over_an_object()
        found += [next(objects), objects.throw(ValueError())]
        objects.close()
        lists = over_a_list()
        found += [next(lists), lists.throw(ValueError())]
        escaping = delegating(log)
        next(escaping)
        return x + 1, found, told(escaping.throw, KeyError("out"))

    return Case(fn, repeat(X), state=lambda: log)


@case
def so_they_are_behind_a_break():
    log = []

    def noisy(log):
        got = yield from handling(log)
        print("delegate has ended")
        yield got

    def fn(x):
        generator = noisy(log)
        found = [next(generator)]
        print("between")
        found += [generator.throw(ValueError("in")), next(generator)]
        other = noisy(log)
        next(other)
        print("again")
        other.close()
        return x * 2, found

    return Case(fn, repeat(X), state=lambda: log)


@case
def a_generator_that_nobody_needs_is_closed():
    log = []
    weight = torch.ones(2, requires_grad=True)

    def without_gradients(x, name):
        try:
            with torch.no_grad():
                yield x * weight
                yield x
        finally:
            log.append((name, torch.is_grad_enabled()))

    def early(x):
        generator = without_gradients(x, "early")
        found = next(generator)
        print("the generator waits")
        return found

    def replaced(x):
        generator = without_gradients(x, "replaced")
        next(generator)
        print("the generator waits")
        generator = None
        log.append("behind it")
        return (x * weight).requires_grad

    def left(x):
        for _ in without_gradients(x, "left"):
            print("in the loop")
            break
        log.append("behind the loop")
        return (x * weight).requires_grad

    def fn(x):
        return early(x), replaced(x), left(x), torch.is_grad_enabled()

    return Case(fn, repeat(X), state=lambda: log)


@case
def what_a_dropped_generator_raises_is_ignored():
    ignored = []

    @contextlib.contextmanager
    def listening():
        before, sys.unraisablehook = (
            sys.unraisablehook,
            lambda each: ignored.append((repr(each.exc_value), str(each.object)[:25])),
        )
        try:
            yield
        finally:
            sys.unraisablehook = before

    def failing():
        try:
            yield 1
        finally:
            raise KeyError("while it is closed")

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def around():
        try:
            yield from stubborn()
        except RuntimeError as error:
            yield str(error)

    def fn(x):
        dropped = failing()
        next(dropped)
        dropped = None
        closed = around()
        next(closed)
        return x + 1, told(closed.close)

    return Case(fn, [call(X, under=listening) for _ in range(4)], state=lambda: ignored)


# ---- attributes ----------------------------------------------------------------------------------------------


@case
def attributes_that_are_computed_and_missing():
    """An AttributeError from a property leads to `__getattr__`, as if there were none."""

    class Falling:
        __slots__ = ("__dict__", "empty")

        @property
        def computed(self):
            raise AttributeError("inner")

        @functools.cached_property
        def cached(self):
            raise AttributeError("inner")

        @property
        def other(self):
            raise KeyError("no attribute error")

        def __getattr__(self, name):
            return f"instead of {name}"

    class Net(torch.nn.Module):
        @property
        def broken(self):
            return self.missing

        def forward(self, x):
            return x + 1, told(getattr, self, "broken")

    class Slotted:
        __slots__ = ("empty",)

    falling, net = Falling(), Net()

    def fn(x):
        error = None
        try:
            Slotted().empty
        except AttributeError as raised:
            error = raised.name, str(raised)
        return (
            falling.computed,
            falling.cached,
            falling.empty,
            falling.none,
            told(getattr, falling, "other"),
            error,
            net(x),
        )

    return Case(fn, repeat(X))


@case
def descriptors_with_a_state():
    class Counting:
        asked = 0

        def __get__(self, owner, kind=None):
            self.asked += 1
            return self.asked

        def __set__(self, owner, value):
            self.kept = value

    class Holder:
        count = Counting()

    holder = Holder()

    def fn(x):
        holder.count = x.shape
        return x + holder.count, Holder.count, Holder.__dict__["count"].kept

    return Case(fn, repeat(X))


@case
def attributes_of_classes():
    class Meta(type):
        made = types.SimpleNamespace(items=[])

        def helper(cls):
            return f"helper of {cls.__name__}"

        @property
        def noted(cls):
            cls.made.items.append(cls.__name__)
            return len(cls.made.items)

        def __getattr__(cls, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return f"no {name}"

    class Thing(metaclass=Meta):
        pass

    def shadow():
        Thing.helper = staticmethod(lambda: "its own")

    def fn(x):
        return x + Thing.noted, Thing.helper(), Thing.nothing, Meta.made.items

    return Case(fn, each(call(X), call(X), call(X, before=shadow), call(X)))


@case
def attributes_into_which_nobody_looks():
    local = threading.local()

    class Target:
        value = 0

    target = Target()
    proxy = weakref.proxy(target)

    def fn(x):
        local.value = x.shape[0]
        proxy.value += 1
        return x + local.value, target.value

    return Case(fn, repeat(X), state=lambda: target.value)


@case
def methods_of_c_that_heirs_override():
    class Loud(str):
        def upper(self):
            return "LOUD " + super().upper()

        def both(self):
            method = super().upper
            print("between")
            return method()

    class Logged(list):
        def append(self, value):
            super().append(("logged", value))

    def fn(x):
        logged = Logged()
        plain = super(Logged, logged).append
        print("made")
        plain(1)
        logged.append(2)
        return x + 1, Loud("a").upper(), Loud("a").both(), list(logged)

    return Case(fn, repeat(X))


@case
def nobody_asks_an_object_for_its_class():
    """An object that looks up each attribute itself is asked for those alone that the program asks for."""
    log = []

    class Config:
        def __init__(self):
            self.map = {"old": "new"}
            self.new = 3

        def __getattribute__(self, name):
            log.append(name)
            if name != "map" and name in super().__getattribute__("map"):
                name = super().__getattribute__("map")[name]
            return super().__getattribute__(name)

    config = Config()

    def fn(x):
        values = [config, 1]
        return x * config.old, config.new, len(values), config is values[0], told(getattr, config, "none")

    def take_away():
        object.__setattr__(config, "map", None)

    calls = each(call(X), call(X), call(X, before=take_away), call(X))
    for number in (2, 3):
        calls[number].under = lambda: contextlib.suppress(TypeError)
    return Case(fn, calls, state=lambda: log)


# ---- truth, equality, text -----------------------------------------------------------------------------------


@case
def truth_of_objects_of_c():
    def fn(x, value):
        return (x + 1 if value else x - 1), not value, [each for each in (value,) if each]

    values = [datetime.timedelta(1), datetime.timedelta(0), decimal.Decimal(0), decimal.Decimal(2)]
    return Case(fn, each(*[(X, value) for value in values]))


@case
def truth_of_an_array_of_bytes():
    data = bytearray(b"a")
    return Case(
        lambda x: (x + 1 if data else x - 1, not data),
        each(call(X), call(X, before=data.clear), call(X), call(X, before=lambda: data.append(1))),
        state=lambda: data,
    )


@case
def namespaces_are_compared():
    held = types.SimpleNamespace(value=1, inner=types.SimpleNamespace(other=[1]))

    def fn(x):
        same = held == types.SimpleNamespace(value=1, inner=types.SimpleNamespace(other=[1]))
        return (x + 1 if same else x - 1), [held] == [types.SimpleNamespace(value=1)], f"{held}", "%s" % held.inner

    def change():
        held.value = 2

    return Case(fn, each(call(X), call(X, before=change), call(X, before=lambda: held.inner.other.append(2)), call(X)))


@case
def special_methods_are_replaced():
    class Thing:
        def __str__(self):
            return "old"

        def __repr__(self):
            return "old repr"

        def __format__(self, spec):
            return "old format"

        def __hash__(self):
            return 1

        def __int__(self):
            return 1

        def __float__(self):
            return 1.5

        def __reversed__(self):
            return iter([1])

        def __next__(self):
            return "old next"

    thing = Thing()

    def replace():
        Thing.__str__ = lambda self: "new"
        Thing.__repr__ = lambda self: "new repr"
        Thing.__format__ = lambda self, spec: "new format"
        Thing.__hash__ = lambda self: 2
        Thing.__int__ = lambda self: 2
        Thing.__float__ = lambda self: 2.5
        Thing.__reversed__ = lambda self: iter([2])
        Thing.__next__ = lambda self: "new next"

    def fn(x):
        return (
            x + int(thing),
            str(thing),
            repr(thing),
            f"{thing}",
            hash(thing),
            float(thing),
            [*reversed(thing)],
            next(thing),
        )

    return Case(fn, each(call(X), call(X), call(X, before=replace), call(X)))


@case
def answers_of_special_methods_are_judged():
    class Odd:
        def __str__(self):
            return 3

        def __format__(self, spec):
            return 5

        def __hash__(self):
            return 2**70

        def __index__(self):
            return "s"

        __repr__ = __str__
        __int__ = __float__ = __index__

    class Init:
        def __init__(self):
            return 3

    class Minus:
        def __hash__(self):
            return -1

    def fn(x):
        odd = Odd()
        attempts = [str, repr, int, float, lambda o: f"{o}", lambda o: [1, 2][o], lambda o: Init()]
        return x + 1, [told(each, odd) for each in attempts], hash(odd), hash(Minus())

    return Case(fn, repeat(X))


@case
def classes_that_answer_for_others():
    class Base(abc.ABC):
        pass

    @runtime_checkable
    class HasName(Protocol):
        name: str

    class Thing:
        pass

    class Meta(type):
        def __instancecheck__(cls, value):
            return 5

    class Everything(metaclass=Meta):
        pass

    class Caught(Exception, metaclass=type("Lenient", (type,), {"__instancecheck__": lambda cls, value: True})):
        pass

    thing = Thing()

    def fn(x):
        try:
            raise KeyError("k")
        except Caught:
            caught = "by a class that takes all for its instances"
        except KeyError:
            caught = "rightly"
        return x + 1, isinstance(thing, Base), isinstance(thing, (int, HasName)), isinstance(3, Everything), caught

    def register():
        Base.register(Thing)

    def name():
        thing.name = "named"

    return Case(fn, each(call(X), call(X, before=register), call(X, before=name), call(X)))


# ---- operators -----------------------------------------------------------------------------------------------


class Reflecting:
    """Adds to whatever stands on its left."""

    def __radd__(self, other):
        return f"radd of {type(other).__name__}"

    def __rmul__(self, other):
        return f"rmul of {type(other).__name__}"

    def __iter__(self):
        return iter([1])


@case
def sequences_on_the_left():
    def fn(x):
        held = [1]
        grown = held
        grown += Reflecting()
        added = [told(lambda: left + Reflecting()) for left in ([1], (1,), "a", b"a", 1, 2.0)]
        times = [told(lambda: left * Reflecting()) for left in ([1], "a", 3)]
        return x + 1, grown, held, added, times, told(lambda: "a" + object()), told(lambda: [1] + (2,))

    return Case(fn, repeat(X))


@case
def in_place_comes_before_reflected():
    class Base:
        def __iadd__(self, other):
            return "iadd"

        def __add__(self, other):
            return "add"

    class Heir(Base):
        def __radd__(self, other):
            return "radd"

    def fn(x):
        left = Base()
        left += Heir()
        return x, left, Base() + Heir(), Base() + Base()

    return Case(fn, repeat(X))


@case
def comparisons_that_fail_ask_once():
    log = []

    class Undecided:
        def __lt__(self, other):
            log.append("lt")
            return NotImplemented

        def __gt__(self, other):
            log.append("gt")
            return NotImplemented

    def fn(x):
        return x, told(lambda: Undecided() < Undecided()), told(lambda: Undecided() >= 3), told(lambda: 1 in 5)

    return Case(fn, repeat(X), state=lambda: log)


@case
def subclasses_of_containers_that_iterate_otherwise():
    class Doubled(list):
        def __iter__(self):
            return (2 * value for value in super().__iter__())

    class Hidden(dict):
        def __iter__(self):
            return iter(["shown"])

        def keys(self):
            return ["shown"]

        def __getitem__(self, key):
            return f"value of {key}"

    class Index(int):
        def __index__(self):
            return 0

    def fn(x):
        doubled = Doubled([1, 2])
        return (
            x,
            4 in doubled,
            1 in doubled,
            list(doubled),
            dict(Hidden(real=1)),
            [10, 20, 30][Index(2)],
            {**Hidden(a=1)},
        )

    return Case(fn, repeat(X))


# ---- calls ---------------------------------------------------------------------------------------------------


@case
def what_is_taken_from_iterators():
    class Equal:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value == other.value

    def fn(x):
        short, long = iter([1]), iter([1, 2, 3])
        pairs = list(map(lambda a, b: (a, b), short, long))
        return (
            x,
            pairs,
            next(long),
            len(list(map(lambda value: value, [Equal(1), Equal(2)]))),
            list(itertools.pairwise("abc")),
        )

    return Case(fn, repeat(X))


@case
def names_that_are_also_ours():
    class Named:
        def __new__(cls, function, **more):
            made = super().__new__(cls)
            made.all = {"function": function, **more}
            return made

    def fn(x):
        return (
            x, dict(self=1, function=2), "{self} {function}".format(self=1, function=2), types.SimpleNamespace(function=1),
            functools.partial(dict, self=1)(function=2), Named(function=3, self_=4).all, told(lambda: len()),
            told(lambda: sorted([1], None)), told(lambda: max([1], bad=2)), list(enumerate(iterable="ab", start=2)),
            complex(real=1, imag=2), told(sum, ["a"], ""), told(lambda: max(1, 2, default=3)), told(lambda: print(*5)),
        )  # fmt: skip

    return Case(fn, repeat(X))


@case
def a_cache_is_filled_with_effects():
    log = []

    @functools.lru_cache
    def noted(number):
        log.append(number)
        return number * 2

    @functools.lru_cache
    def failing(number):
        log.append("failing")
        raise ValueError(number)

    def fn(x):
        log.append("before")
        found = noted(1) + noted(2)
        log.append("after")
        return x + found, told(failing, 3)

    return Case(fn, repeat(X), state=lambda: log)


@case
def tracebacks_name_the_program_alone():
    def failing(values):
        return sorted(values, key=lambda value: value["key"])

    def fn(x):
        texts = []
        for attempt in (lambda: {}["k"], lambda: failing([{}]), lambda: int("x"), lambda: [].pop()):
            try:
                attempt()
            except Exception:  # noqa: BLE001 - it is compared
                texts.append([line.strip() for line in traceback.format_exc().splitlines()])
        return x, texts

    return Case(fn, repeat(X))

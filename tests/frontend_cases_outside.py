"""Cases for the front end: what lies outside of a program changes between its calls, in ways that are easily missed."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import enum
import functools
import inspect
import sys
import threading
import types
import weakref

import torch
from torch import nn

from frontend_differential import Call, Case, call, case, each, repeat

X = torch.arange(4.0)


def changing(program, *changes, state=None):
    """Four calls on the same tensor: before the third and the fourth of them something is changed."""
    first, second = (*changes, *changes)[:2]
    return Case(program, [call(X), call(X), call(X, before=first), call(X, before=second)], state=state)


# ---- tensors that differ in what is no matter of their kind --------------------------------------------------


@case
def a_leaf_or_not():
    def leaf():
        return torch.ones(3, requires_grad=True)

    return Case(lambda x: x * 2 if x.is_leaf else x * 3, each((leaf(),), (leaf() * 1,)))


@case
def the_offset_in_memory():
    return Case(lambda x: x * 2 if x.storage_offset() else x * 3, each((torch.ones(3),), (torch.ones(4)[1:],)))


@case
def the_number_among_results():
    def one(number):
        return torch.ones(2, 3, requires_grad=True).mul(1).unbind(0)[number]

    return Case(lambda x: x * 2 if x.output_nr else x * 3, each((one(0),), (one(1),)))


@case
def gradients_that_come_with_a_write():
    """Whether it required gradients was asked before it did."""
    weight = torch.ones(3, requires_grad=True)

    def fn(x):
        asked = x.requires_grad
        x.add_(weight)
        return x * 2 if asked else x * 3

    calls = [
        Call((made,)) for made in (torch.ones(3), torch.ones(3), weight.detach().requires_grad_() * 1, torch.ones(3))
    ]
    return Case(fn, calls)


# ---- errors that depend on the data ---------------------------------------------------------------------------

FIRST, NOWHERE = torch.tensor([0]), torch.tensor([9])


def failing(program, state=None):
    return Case(program, each((FIRST,), (FIRST,), (NOWHERE,), (FIRST,)), state=state)


@case
def an_operator_that_fails_is_handled():
    def fn(i):
        try:
            return X[i]
        except IndexError as error:
            return str(error)

    return failing(fn)


@case
def an_operator_that_fails_while_something_is_handled():
    def fn(i):
        try:
            return {}["missing"]
        except KeyError:
            return X[i]

    return failing(fn)


@case
def an_operator_that_fails_without_gradients():
    """They are on again behind it."""
    weight = torch.arange(3.0, requires_grad=True)

    def fn(i):
        with torch.no_grad():
            return weight[i]

    return failing(fn)


@case
def an_operator_that_fails_under_autocast():
    def fn(i):
        with torch.autocast("cpu", torch.bfloat16):
            return X[i][:, None] @ X[i][None]

    return failing(fn)


@case
def effects_before_an_operator_that_fails():
    log = []

    def fn(i):
        log.append("before")
        y = X[i] + torch.rand(1)
        log.append("behind")
        return y

    return failing(fn, state=lambda: log)


@case
def cleaning_up_behind_an_operator_that_fails():
    log = []

    @contextlib.contextmanager
    def noted():
        try:
            yield
        except IndexError as error:
            log.append(type(error.__context__))
            raise
        finally:
            log.append("done")

    def fn(i):
        try:
            with noted():
                return X[i] * 2
        finally:
            log.append("left")

    return failing(fn, state=lambda: log)


@case
def a_write_before_an_operator_that_fails():
    """Nothing is written twice."""
    total = torch.zeros(4)

    def fn(i):
        total.add_(1)
        try:
            return X[i] + total
        except IndexError:
            return total * 2

    return failing(fn, state=lambda: total)


@case
def random_numbers_before_an_operator_that_fails():
    def fn(i):
        drawn = torch.rand(2)
        try:
            return X[i], drawn
        except IndexError:
            return torch.rand(2), drawn

    return failing(fn)


@case
def a_result_that_nobody_needs_fails():
    def fn(i):
        X[i]
        return X + 1

    return failing(fn)


# ---- modes -----------------------------------------------------------------------------------------------------


@case
def inference_mode_inside():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
            if x.shape[0] > 9:
                return y
        return x + 1, y.is_inference(), torch.is_inference_mode_enabled()

    return Case(fn, repeat(X))


@torch.inference_mode()
def doubled(x):
    return x * 2


@case
def a_function_decorated_with_inference_mode():
    return Case(lambda x: (doubled(x).is_inference(), torch.ones(2) + 1), repeat(X))


@case
def settings_that_are_asked_for():
    def fn(x):
        return x * (2 if torch.is_anomaly_enabled() else 3), torch.backends.mha.get_fastpath_enabled()

    def flip():
        torch.autograd.set_detect_anomaly(not torch.is_anomaly_enabled())
        torch.backends.mha.set_fastpath_enabled(not torch.backends.mha.get_fastpath_enabled())

    return changing(fn, flip)


# ---- enums, modules, classes -----------------------------------------------------------------------------------


@case
def an_attribute_of_an_enum():
    class Mode(enum.Enum):
        FAST = 1
        SLOW = [1, 2]  # noqa: RUF012

    Mode.FAST.count = 0

    def fn(x):
        Mode.FAST.count += 1
        return x * Mode.FAST.count, sum(Mode.SLOW.value)

    return changing(fn, lambda: Mode.SLOW.value.append(7), state=lambda: Mode.FAST.count)


@case
def a_name_that_a_module_gets():
    settings = types.ModuleType("settings")
    return changing(
        lambda x: (x * 2 if hasattr(settings, "flag") else x, getattr(settings, "scale", 1)),
        lambda: setattr(settings, "flag", True),
        lambda: setattr(settings, "scale", 3),
    )


@case
def an_attribute_that_modules_of_torch_get():
    linear = nn.Linear(2, 2)

    def change():
        nn.Linear.extra = getattr(nn.Linear, "extra", 1) + 4

    return changing(lambda x: x * getattr(linear, "extra", 1), change, lambda: delattr(nn.Linear, "extra"))


@case
def special_methods_that_a_class_gets():
    class Thing:
        pass

    thing, other = Thing(), Thing()

    def change():
        Thing.__bool__ = lambda self: False
        Thing.__eq__ = lambda self, other: True
        Thing.__hash__ = object.__hash__

    return changing(lambda x: (x * 2 if thing else x, not thing, thing == other, [thing] == [other]), change)


@case
def an_index_that_a_class_gives():
    class Place:
        def __index__(self):
            return 1

    place = Place()
    return changing(lambda x: x * [2, 3, 4, 5][place], lambda: setattr(Place, "__index__", lambda self: 2))


@case
def what_a_metaclass_knows():
    class Meta(type):
        level = 1

        def __contains__(cls, item):
            return item == cls.level

    class Kind(metaclass=Meta):
        pass

    return changing(lambda x: (x * Kind.level, 2 in Kind), lambda: setattr(Meta, "level", 2))


@case
def names_of_parameters():
    """Sets of modules: they can be iterated over, and are elements all the same."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))

    def fn(x):
        seen = set()
        seen.add(model)
        seen.discard(model[0])
        return (
            [name for name, _ in model.named_parameters()],
            len(list(model.modules())),
            (model, model).count(model),
            len(seen),
        )

    return Case(fn, repeat(X))


# ---- containers ------------------------------------------------------------------------------------------------


@case
def the_order_of_a_set():
    elements = {0, 8}

    def change():
        last, first = elements
        elements.clear()
        elements.update([first, 16, last])
        elements.discard(16)

    return changing(lambda x: (x * 1, list(elements), str(elements)), change)


@case
def the_order_of_an_ordered_dict():
    table = collections.OrderedDict(a=1, b=2)
    return changing(lambda x: (x * 1, list(table.items())), lambda: table.move_to_end("a"))


@case
def the_factory_of_a_default_dict():
    table = collections.defaultdict(list)

    def fn(x):
        found = table["key"]
        del table["key"]
        return x * 1, found

    return changing(
        fn, lambda: setattr(table, "default_factory", lambda: [1, 2]), lambda: setattr(table, "default_factory", None)
    )


@case
def the_length_of_a_chain_of_dicts():
    last = {"b": 1}
    chain = collections.ChainMap({"a": 1}, last)
    return changing(lambda x: x * len(chain), lambda: last.update(z=3), lambda: last.update(y=3))


@case
def equal_values_in_constants():
    return Case(
        lambda x, y: (x, [type(each) for each in y], [str(each) for each in y]),
        each((1, (1, 0.0)), (1, (True, -0.0)), (range(0, 3, 2), frozenset([1])), (range(0, 4, 2), frozenset([True]))),
    )


@case
def the_end_of_a_range():
    return Case(lambda x, y: x * y.stop, each((X, range(0, 3, 2)), (X, range(0, 4, 2))))


@case
def whether_equal_values_are_one():
    def large():
        return int("1000000")

    one = large()
    return Case(lambda x, a, b: (x * 1, a is b), each((X, one, one), (X, large(), large())))


@case
def a_list_is_filled_as_it_was():
    numbers, pending, kept = [1, 2], collections.deque([1, 2]), {1}

    def fn(x):
        numbers.clear()
        numbers.extend([1, 2])
        pending.popleft()
        pending.appendleft(1)
        kept.discard(1)
        kept.add(True)
        return x * 1

    def change():
        numbers[0] = 9
        pending[0] = 9

    return changing(fn, change, state=lambda: (numbers, pending, kept))


@case
def into_what_nobody_can_look():
    raw, local = {"scale": 2}, threading.local()
    view, data = types.MappingProxyType(raw), bytearray(b"ab")
    local.scale = 2

    def change():
        raw["scale"] += 1
        local.scale += 1
        data.append(1)

    return changing(lambda x: (x * view["scale"], local.scale, len(data), bytes(data)), change)


@case
def deeply_nested():
    nested: list[object] = [1]
    deepest = nested
    for _ in range(80):
        nested = [nested]
    return changing(lambda x: (x * 1, str(nested)), lambda: deepest.append(2))


@case
def what_weak_references_stand_for():
    class Thing:
        scale = 2

    held = [Thing()]
    reference = weakref.ref(held[0])

    def fn(x):
        thing, again = reference(), weakref.ref(held[0]) if held else None
        return x * (thing.scale if thing is not None else 0), again is reference, again and again() is thing

    return changing(fn, lambda: setattr(held[0], "scale", 3), held.clear)


@case
def recurrent_modules():
    """They keep weak references to their weights."""
    lstm, cell = nn.LSTM(3, 4, batch_first=True), nn.GRUCell(3, 4)

    def fn(x):
        hidden = cell(x[:, 0], cell(x[:, 1]))
        return lstm(x)[0], hidden

    return Case(fn, repeat(torch.randn(2, 5, 3)))


# ---- functions -------------------------------------------------------------------------------------------------


@case
def a_cache_that_is_emptied():
    scale, log = [1], []

    @functools.lru_cache(maxsize=2)
    def looked_up(number):
        log.append(number)
        return number * scale[0]

    def change():
        looked_up.cache_clear()
        scale[0] += 1

    return changing(lambda x: x * looked_up(3), change, state=lambda: log)


@case
def calls_that_a_cache_counts():
    @functools.lru_cache
    def looked_up(number):
        return number * 2

    return Case(lambda x: x * looked_up(3), repeat(X), state=looked_up.cache_info)


@case
def a_small_cache():
    log = []

    @functools.lru_cache(maxsize=1)
    def looked_up(number):
        log.append(number)
        return number * 2

    return Case(lambda x, n: x * looked_up(n), each((X, 1), (X, 2)), state=lambda: log)


@case
def the_signature_of_a_function():
    def helper(a, b=1):
        return a

    return changing(
        lambda x: x * inspect.signature(helper).parameters["b"].default, lambda: setattr(helper, "__defaults__", (7,))
    )


@case
def what_is_imported_and_is_not_there():
    def fn(x, name):
        y = x + 1
        try:
            if name:
                from math import nowhere

                return nowhere
            import no_such_module

            return no_such_module
        except ImportError as error:
            return y, type(error), error.name, str(error).partition(" (")[0]

    return Case(fn, each((X, 0), (X, 1)))


@case
def an_exception_with_a_file():
    kept = []

    class Refused(OSError):
        def __init__(self, reason):
            super().__init__(13, reason)
            self.why = reason

    def fn(x):
        kept.append(FileNotFoundError(2, "no", "file"))
        kept.append(Refused("because"))
        return x * 1

    return Case(fn, repeat(X), state=lambda: [(str(one), one.errno, one.filename, one.args) for one in kept])


@case
def a_partial_with_an_attribute():
    kept = []

    def fn(x):
        made = functools.partial(max, 1)
        made.note = 3
        kept.append(made)
        return x * 1

    return Case(fn, repeat(X), state=lambda: [one.note for one in kept])


@case
def an_object_that_says_when_it_is_dropped():
    log = []

    class Held:
        def __del__(self):
            log.append("dropped")

    def fn(x):
        Held()
        return x + 1

    return Case(fn, repeat(X), state=lambda: log)


@case
def objects_that_say_when_they_are_dropped_before_the_end():
    log = []

    class Held:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(self.name)

    def inside():
        held = Held("a local")
        return held.name

    def fn(x):
        one = Held("deleted")
        del one
        x = x + len(log)
        two = Held("replaced")
        two = None
        x = x * len(log)
        held = [Held("cleared"), Held("popped")]
        held.pop()
        x = x - len(log)
        held.clear()
        inside()
        weakref.finalize(held := Held("finalized"), log.append, "finalizer")
        held = two
        return x + len(log)

    return Case(fn, repeat(X), state=lambda: log)


@case
def an_error_of_the_caller_s_is_raised_again():
    def inside(x):
        y = x + 1
        if y.shape[0]:
            raise
        return y

    @contextlib.contextmanager
    def handling():
        try:
            raise KeyError("outside")
        except KeyError:
            yield

    return Case(inside, [Call((X,), under=handling) for _ in range(4)])


@case
def arguments_that_make_no_sense():
    def fn(x):
        found = []

        def unpack(value):
            if x.shape[0] > 9:
                first, *_ = value
            first, _ = value
            return first

        for attempt in (lambda: slice(), lambda: torch.Size(["a"]), lambda: unpack(5), lambda: range("a")):
            try:
                found.append(attempt())
            except TypeError as error:
                found.append(str(error))
        return x * 1, found

    return Case(fn, repeat(X))


@case
def classes_that_a_class_inherits_from():
    class First:
        def scaled(self, x):
            return x * 2

    class Second:
        def scaled(self, x):
            return x * 3

    class Thing(First):
        pass

    thing = Thing()
    return changing(
        lambda x: (thing.scaled(x), isinstance(thing, Second)), lambda: setattr(Thing, "__bases__", (Second,))
    )


@case
def keys_that_cannot_be_hashed():
    def fn(x, key):
        found = []
        for attempt in (lambda: {1: 2}[key], lambda: {}.setdefault(key, 1), lambda: key in {1}, lambda: frozenset(key)):
            try:
                found.append(attempt())
            except TypeError as error:
                found.append(str(error))
        return x * 1, found

    return Case(fn, repeat(X, [[]]))


@case
def equal_strings_in_a_list():
    """Whether they are one object is of no interest there: one graph."""
    names = ["".join(("sca", "le")), "bias"]

    def fn(x, name):
        return x * 2 if name in names else x, names.index(name), names.count(name)

    return Case(fn, each((X, "scale"), (X, "bias")))


@case
def context_variables_and_their_tokens():
    """Set and reset in one graph, across breaks, one in another, and out of order."""
    variable = contextvars.ContextVar("variable")
    level = contextvars.ContextVar("level", default=0)

    def collecting(x, breaks):
        token = variable.set([])
        try:
            variable.get().append(x.shape)
            if breaks:
                print("collecting")
            return x + len(variable.get())
        finally:
            variable.reset(token)

    def fn(x):
        outer = variable.set(["outer"])
        try:
            x = collecting(x, True)
            x = collecting(x, False) * collecting(x, True)
        finally:
            variable.reset(outer)
        seen = [variable.get("nothing")]
        token = variable.set(1)
        print("set")
        variable.reset(token)
        again, twice = variable.set(2), variable.set(3)
        print("set twice")
        seen.append(variable.get())
        variable.reset(twice)
        seen.append(variable.get())
        variable.reset(again)
        early, late = variable.set(4), variable.set(5)
        variable.reset(early)
        variable.reset(late)
        try:
            variable.reset(late)
        except RuntimeError:
            seen.append("used already")
        level.set(level.get() + 1)
        return x, seen, variable.get("nothing"), level.get()

    return Case(fn, repeat(X), state=lambda: (variable.get("nothing"), level.get()))


@case
def calls_are_watched_from_within():
    seen = []

    def watch(frame, event, arg):
        if event == "call" and frame.f_code.co_name in ("inside", "other"):
            seen.append(frame.f_code.co_name)

    def inside(x):
        return x + 1

    def other(x):
        return inside(x) * 2

    def fn(x):
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            return other(x)
        finally:
            sys.setprofile(before)

    return Case(fn, repeat(X), state=lambda: seen)

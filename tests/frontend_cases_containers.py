"""Cases for the front end: lists, tuples, dicts, sets and their relatives, comprehensions, builtins, itertools, text."""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
import itertools
import json
import math
import operator
import re
import string
from fractions import Fraction

import torch

from frontend_differential import Case, call, case, each, fresh, repeat


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


SHARED_LIST: list = []
SHARED_DICT: dict = {}


# ---- lists and tuples ----------------------------------------------------------------------------------------


@case
def list_read():
    """Everything that reads a list."""

    def fn(x, things):
        read = things[0], things[-1], things[1:], things[::-1], len(things), 2 in things, 9 not in things
        return x * things[0], read, things.index(3), things.count(2), things + [4], things * 2, things == [2, 3, 2]

    x = floats(3)
    return Case(fn, each((x, [2, 3, 2]), (x, [5, 3, 2])))


@case
def list_written():
    """Every method that writes a list, on an argument."""

    def fn(x, things):
        things.append(x + 1)
        things.extend([1, 2])
        things.insert(0, "first")
        last = things.pop()
        second = things.pop(1)
        things.remove(1)
        things[0] = x
        things[1:1] = [7, 8]
        things += (9,)
        things *= 2
        things.reverse()
        del things[0], things[1:3]
        return last, second, len(things)

    return Case(fn, fresh(lambda: (floats(2), [0, "a"])))


@case
def list_cleared_and_copied():
    """clear, copy, slice assignment that changes the length."""

    def fn(x, things):
        kept = things.copy()
        things[:] = [x, x * 2]
        other = list(things)
        things.clear()
        things[0:0] = kept
        return other, kept, kept is things, kept == things

    return Case(fn, fresh(lambda: (floats(2), [1, 2, 3])))


@case
def list_sorted():
    """sort and sorted, with key and in reverse; stable."""

    def fn(x, words):
        words.sort(key=len)
        first = list(words)
        words.sort(key=lambda word: (-len(word), word), reverse=True)
        return x, first, words, sorted(words), sorted([3, 1, 2], reverse=True), sorted({"b": 1, "a": 2})

    return Case(fn, fresh(lambda: (floats(2), ["pear", "fig", "kiwi", "apple"])))


@case
def sort_raises():
    """A key that raises leaves the list as it was; one that prints prints."""

    def key(item):
        print("key", item)
        if item == 3:
            raise ValueError(item)
        return -item

    def fn(x, things):
        try:
            things.sort(key=key)
        except ValueError as error:
            return x + 1, error.args, things
        return x

    return Case(fn, each((floats(2), [1, 2]), (floats(2), [2, 3, 4])))


@case
def list_in_a_global():
    """A global list grows."""
    SHARED_LIST.clear()

    def fn(x):
        SHARED_LIST.append(x.sum())
        return x + len(SHARED_LIST)

    return Case(fn, repeat(floats(2)), state=lambda: SHARED_LIST)


@case
def list_in_a_closure():
    """A list in a closure grows, and is read while it does."""
    log = []

    def fn(x):
        log.append(len(log))
        log.append(x * log[-1])
        return log[-1], sum(item for item in log if isinstance(item, int))

    return Case(fn, repeat(floats(2)), state=lambda: log)


@case
def list_only_appended_to():
    """A log that nobody reads: its length is no reason to record again."""
    log = []

    def fn(x):
        y = x + 1
        log.append("called")
        return y

    return Case(fn, repeat(floats(2)), state=lambda: log)


@case
def aliased_lists_on_a_later_call():
    """The same list comes twice, but not at the first call."""

    def fn(x, a, b):
        a.append(1)
        return x * len(b), a is b

    x, one = floats(2), [0]
    return Case(fn, [call(x, [0], [0]), call(x, [0], [0]), call(x, one, one), call(x, one, one)])


@case
def nested_lists():
    """A list in a list in a dict, written at the bottom, and one inner list put in two places."""

    def fn(x, tree):
        inner = tree["a"][1]
        inner.append(x + 1)
        tree["b"] = [inner, inner]
        tree["a"][0]["deep"] = (inner, x)
        return inner, tree["b"][0] is inner

    return Case(fn, fresh(lambda: (floats(2), {"a": [{}, []]})))


@case
def list_that_holds_itself():
    """A cycle that is made here, and one that comes in."""

    def fn(x, ring):
        own = [x * 2]
        own.append(own)
        ring.append(ring)
        return own, ring[-1] is ring, x + len(own)

    return Case(fn, fresh(lambda: (floats(2), [])))


@case
def tuples():
    """Concatenation, repetition, comparison, unpacking, nested."""

    def fn(x, pair):
        (a, b), *rest = pair, x, x + 1
        return pair + (x,), pair * 2, pair < (2, 0), pair[::-1], a * rest[0] + b, pair.index(b), pair is pair, (x,) + ()

    x = floats(2)
    return Case(fn, each((x, (1, 2)), (x, (2, 1))))


@case
def tuple_given_back():
    """A tuple that comes in goes out as the object that it is."""

    def fn(x, pair):
        a, b = pair
        return pair, a + b, (pair, [pair])

    return Case(fn, fresh(lambda: (floats(2), (floats(2), floats(2)))))


@case
def list_of_tensors_as_an_argument():
    """Its length changes between the calls."""

    def fn(xs):
        total = xs[0]
        for x in xs[1:]:
            total = total * x
        return total, torch.stack(xs)

    a, b, c = floats(2), floats(2), floats(2)
    return Case(fn, each(([a, b],), ([a, b, c],)))


@case
def list_lookup_errors():
    """IndexError, ValueError and TypeError from lists, caught."""

    def fn(x, things):
        caught = []
        for attempt in (lambda: things[9], lambda: things.index(9), lambda: things.remove(9), lambda: things["a"]):
            try:
                attempt()
            except (IndexError, ValueError, TypeError) as error:
                caught.append((type(error).__name__, str(error)))
        return x + len(caught), caught

    return Case(fn, repeat(floats(2), [1, 2]))


@case
def bytes_and_bytearrays():
    """Read and written."""

    def fn(x, data):
        data.extend(b"yz")
        data[0] = 65
        return (
            x * data[1],
            bytes(data),
            b"a,b".split(b","),
            data.find(b"y"),
            memoryview(b"abc")[1],
            b"%d" % 3,
            int.from_bytes(b"\x01\x02", "big"),
        )

    return Case(fn, fresh(lambda: (floats(2), bytearray(b"abc"))))


# ---- dicts ---------------------------------------------------------------------------------------------------


@case
def dict_read():
    """Everything that reads a dict."""

    def fn(x, table):
        pairs = [(name, value) for name, value in table.items()]
        read = table["a"], table.get("b"), table.get("z", 5), "a" in table, "z" in table, len(table), list(table)
        return (
            x * table["a"],
            read,
            pairs,
            list(table.values()),
            list(reversed(table)),
            table == {"b": 2, "a": 1},
            table | {"c": 3},
        )

    x = floats(2)
    return Case(fn, each((x, {"a": 1, "b": 2}), (x, {"b": 2, "a": 3})))


@case
def dict_written():
    """Every method that writes a dict, on an argument."""

    def fn(x, table):
        table["x"] = x + 1
        table.update(b=2, c=3)
        table.update({"d": 4})
        table |= {"e": 5}
        first = table.setdefault("a", 9), table.setdefault("new", [])
        first[1].append(x)
        gone = table.pop("b"), table.pop("missing", None), table.popitem()
        del table["c"]
        table["d"] += 10
        return first, gone, list(table)

    return Case(fn, fresh(lambda: (floats(2), {"a": 1})))


@case
def dict_reordered():
    """A key that is taken out and put back goes to the end."""

    def fn(x, table):
        table["a"] = table.pop("a") * 2
        return x, [name for name in table], next(iter(table))

    return Case(fn, fresh(lambda: (floats(2), {"a": 1, "b": 2})))


@case
def dict_cleared():
    """clear, copy, and a dict rebuilt in place."""

    def fn(x, table):
        kept = table.copy()
        table.clear()
        for name, value in sorted(kept.items()):
            table[name.upper()] = x * value
        return kept, len(table)

    return Case(fn, fresh(lambda: (floats(2), {"b": 1, "a": 2})))


@case
def dict_in_a_global():
    """A global dict counts calls."""
    SHARED_DICT.clear()

    def fn(x):
        SHARED_DICT["calls"] = SHARED_DICT.get("calls", 0) + 1
        return x * SHARED_DICT["calls"]

    return Case(fn, repeat(floats(2)), state=lambda: SHARED_DICT)


@case
def dict_with_odd_keys():
    """Numbers that are equal, tuples, None, types, functions and tensors as keys."""

    def fn(x, t):
        table = {
            1: "int",
            True: "bool",
            1.0: "float",
            (1, 2): "pair",
            None: "none",
            int: "type",
            len: "len",
            t: "tensor",
        }
        return x + len(table), table[1], table[(1, 2)], table[t], table[int], 1.0 in table, list(table)[:3]

    return Case(fn, repeat(floats(2), floats(1)))


@case
def dict_views():
    """keys and items are sets; views follow the dict."""

    def fn(x, table):
        names = table.keys()
        before = len(names)
        table["z"] = x
        return (
            before,
            len(names),
            names & {"a", "z"},
            {"a"} <= names,
            ("a", 1) in table.items(),
            "q" in names,
            names - {"a"},
        )

    return Case(fn, fresh(lambda: (floats(2), {"a": 1, "b": 2})))


@case
def dict_changed_during_iteration():
    """A RuntimeError of the loop, and a KeyError."""

    def fn(x, table):
        try:
            for name in table:
                table[name + "!"] = x
        except RuntimeError as error:
            said = str(error)
        try:
            table["nothing"]
        except KeyError as error:
            return said, error.args, len(table)
        return None

    return Case(fn, fresh(lambda: (floats(2), {"a": 1, "b": 2})))


@case
def dict_of_functions():
    """Dispatch by name, the name is an argument."""
    table = {"sin": torch.sin, "twice": lambda t: t * 2, "relu": torch.nn.functional.relu}

    def fn(x, name):
        return table[name](x) if name in table else table.get("other", torch.cos)(x)

    x = floats(2)
    return Case(fn, each((x, "sin"), (x, "twice"), (x, "unknown"), (x, "twice")))


@case
def dict_merges():
    """** in a literal, dict() with keywords, fromkeys, zip into a dict."""

    def fn(x, one):
        return {**one, "x": x, "a": 5}, dict(one, b=2), dict.fromkeys("ab", 0), dict(zip("ab", [x, x * 2], strict=True))

    return Case(fn, repeat(floats(2), {"a": 1}))


# ---- sets and relatives --------------------------------------------------------------------------------------


@case
def set_read():
    """Algebra of sets."""

    def fn(x, a, b):
        both = a & b, a | b, a - b, a ^ b, a <= b, a.isdisjoint(b), a.union([9]), a.intersection(b), 2 in a, a == {1, 2}
        return x * len(a & b), both, frozenset(a) == a, sorted(a.symmetric_difference(b)), {1} < a, a.issuperset({1})

    x = floats(2)
    return Case(fn, each((x, {1, 2}, {2, 3}), (x, {1, 2}, {3, 4})))


@case
def set_written():
    """Every method that writes a set."""

    def fn(x, known):
        known.add(3)
        known.update([4, 5], {6})
        known.discard(1)
        known.discard(100)
        known.remove(4)
        known |= {7}
        known -= {5}
        known &= {2, 3, 6, 7}
        known ^= {2, 8}
        known.difference_update({8})
        popped = {11}.pop()
        return x + len(known), popped, known

    return Case(fn, fresh(lambda: (floats(2), {1, 2})))


@case
def set_of_objects():
    """Objects that hash by identity, seen before or not."""
    seen = set()

    class Token:
        pass

    one, two = Token(), Token()

    def fn(x, token):
        new = token not in seen
        seen.add(token)
        return x + 1 if new else x - 1

    x = floats(2)
    return Case(fn, each((x, one), (x, two)), state=lambda: seen)


@case
def deques():
    """Every method of a deque, with and without a limit."""
    window = collections.deque(maxlen=2)

    def fn(x, line):
        window.append(x + len(window))
        line.append(1)
        line.appendleft(x)
        line.extend([2, 3])
        line.extendleft("ab")
        line.rotate(1)
        taken = line.pop(), line.popleft()
        line.remove(2)
        line.insert(1, "in")
        line[0] = "first"
        return taken, len(line), line[-1], "in" in line, list(window), line.index("in"), line.count(1), sum(window)

    return Case(fn, fresh(lambda: (floats(2), collections.deque([0]))), state=lambda: window)


@case
def ordered_dicts():
    """move_to_end, popitem from either end, comparison that minds the order."""

    def fn(x, table):
        table["c"] = x
        table.move_to_end("a")
        table.move_to_end("c", last=False)
        other = collections.OrderedDict(b=1, a=2)
        return (
            table.popitem(),
            other == collections.OrderedDict(a=2, b=1),
            other == {"a": 2, "b": 1},
            list(table),
            other,
        )

    return Case(fn, fresh(lambda: (floats(2), collections.OrderedDict(a=1, b=2))))


@case
def default_dicts():
    """A missing key makes its value; get does not."""
    counts = collections.defaultdict(int)

    def fn(x, groups):
        groups["new"].append(x)
        counts["calls"] += 1
        counts.get("nothing")
        table = collections.defaultdict(lambda: x * 2)
        return groups["new"], counts["calls"], table["any"], "other" in groups, groups, len(table)

    return Case(fn, fresh(lambda: (floats(2), collections.defaultdict(list))), state=lambda: counts)


@case
def counters():
    """Counting, arithmetic of counters, most_common."""
    total = collections.Counter()

    def fn(x, letters):
        here = collections.Counter(letters)
        total.update(here)
        total["q"] += 1
        return (
            x * here["a"],
            here.most_common(1),
            here + here,
            here - collections.Counter("a"),
            here["zz"],
            sorted(here.elements()),
            total.total(),
        )

    x = floats(2)
    return Case(fn, each((x, "abca"), (x, "bb")), state=lambda: total)


@case
def chain_maps_and_user_dicts():
    """Containers of collections which are written in Python."""

    def fn(x, table):
        chained = collections.ChainMap({"a": 1}, table)
        chained["new"] = x
        own = collections.UserDict(table, z=3)
        own["y"] = 2
        line = collections.UserList([1, 2])
        line.append(x)
        return chained["b"], chained.maps[0], dict(own), list(line), "z" in own, x + len(chained)

    return Case(fn, repeat(floats(2), {"b": 2}))


@case
def heaps_and_bisection():
    """heapq and bisect write lists from C."""

    def fn(x, heap):
        heapq.heapify(heap)
        heapq.heappush(heap, 0)
        least = heapq.heappop(heap)
        bisect.insort(heap, 4)
        return x + least, heap, bisect.bisect(heap, 4), heapq.nsmallest(2, heap)

    return Case(fn, fresh(lambda: (floats(2), [5, 3, 9])))


@case
def subclasses_of_containers():
    """A list, a dict and a tuple with methods and attributes of their own."""

    class Stack(list):
        def push(self, item):
            self.append(item)
            self.pushed = len(self)
            return self

    class Table(dict):
        def __missing__(self, key):
            self[key] = made = key * 2
            return made

        def __setitem__(self, key, value):
            print("set", key)
            super().__setitem__(key, value)

    class Point(tuple):
        __slots__ = ()

        def __new__(cls, a, b):
            return super().__new__(cls, (a, b))

        @property
        def total(self):
            return self[0] + self[1]

    def fn(x, stack, table):
        stack.push(x).push(1)
        return stack.pushed, table["ab"], table.get("zz"), Point(x, x).total, Point(1, 2), len(table), stack

    return Case(fn, fresh(lambda: (floats(2), Stack(), Table(a=1))))


# ---- comprehensions and builtins -----------------------------------------------------------------------------


@case
def comprehensions():
    """List, set, dict and generator, nested, with conditions and a closure."""

    def fn(x, n):
        squares = [x * i for i in range(n) if i % 2 == 0]
        grid = [(i, j) for i in range(n) for j in range(i)]
        table = {i: [x + j for j in range(i)] for i in range(3)}
        kept = {i % 3 for i in range(9)}
        return (
            squares,
            grid,
            table,
            kept,
            sum(i * n for i in range(4)),
            [y for y in [n * 2]],
            tuple(x[i] for i in range(2)),
        )

    x = floats(2)
    return Case(fn, each((x, 4), (x, 3)))


@case
def comprehension_with_effects():
    """A function that prints and writes, called in a comprehension."""
    log = []

    def note(item):
        print("note", item)
        log.append(item)
        return item * 2

    def fn(x):
        return [x * note(i) for i in range(3)], {i: note(i) for i in (7, 8)}, any(note(i) > 2 for i in range(5))

    return Case(fn, repeat(floats(2)), state=lambda: log)


@case
def iterator_builtins():
    """zip, enumerate, map, filter, reversed, range: consumed and half consumed."""

    def fn(x):
        pairs = zip([1, 2, 3], "abc", strict=True)
        first = next(pairs)
        numbers = enumerate([x, x + 1], start=5)
        doubled = map(lambda a, b: a * b, [1, 2], [x, x])
        odd = filter(lambda n: n % 2, range(6))
        r = range(1, 20, 3)
        return (
            first,
            list(pairs),
            [i * t for i, t in numbers],
            list(doubled),
            list(odd),
            list(reversed([1, 2])),
            r[2:],
            7 in r,
            len(r),
            r.index(4),
        )

    return Case(fn, repeat(floats(2)))


@case
def iterators_given_back():
    """Iterators that the caller finishes."""

    def fn(x):
        made = [x, x + 1, x + 2]
        started = iter(made)
        next(started)
        return (
            map(torch.sum, made),
            zip(made, "abc", strict=False),
            enumerate(made),
            started,
            reversed(made),
            filter(None, [0, 1]),
        )

    return Case(fn, repeat(floats(2)))


@case
def iterator_as_an_argument():
    """Taken from, a bit at each call."""
    source, names = iter(range(100)), (letter for letter in string.ascii_lowercase)

    def fn(x, numbers):
        return x * next(numbers), next(names), next(iter([]), "default")

    return Case(fn, repeat(floats(2), source), state=lambda: names)


@case
def strict_zip_fails():
    """zip(strict=True) raises in the middle; next without a default raises StopIteration."""

    def fn(x):
        seen = []
        try:
            for a, b in zip([1, 2], [3], strict=True):
                seen.append(a + b)
        except ValueError as error:
            seen.append(str(error))
        try:
            next(iter(()))
        except StopIteration as stop:
            seen.append(stop.value)
        return x, seen

    return Case(fn, repeat(floats(2)))


@case
def minimum_and_maximum():
    """min, max and sum with keys, defaults and starts; any, all."""

    def fn(x, numbers):
        low = (
            min(numbers),
            max(numbers, key=lambda n: -n),
            min([], default=7),
            max(1, 2.0, True),
            min("ab", "c", key=len),
        )
        return x * sum(numbers, start=1), low, all(numbers), any(n > 2 for n in numbers), sum([[1], [2]], [])

    x = floats(2)
    return Case(fn, each((x, [3, 1, 2]), (x, [0, 5])))


@case
def numbers():
    """Methods and functions of numbers."""

    def fn(x, n, f):
        ints = (
            n.bit_length(),
            divmod(n, 3),
            pow(n, 2, 5),
            abs(-n),
            int("12", 3),
            hex(n),
            bin(n),
            ~n,
            n.to_bytes(2, "big"),
        )
        reals = (
            f.is_integer(),
            f.hex(),
            round(f, 1),
            round(f),
            float("1e3"),
            f.as_integer_ratio(),
            int(f),
            f // 1,
            -f % 3,
        )
        return (
            x * n / f,
            ints,
            reals,
            complex(n, f).conjugate(),
            Fraction(n, 7) + 1,
            chr(n + 60),
            ord("a"),
            True + n,
            10**n,
        )

    x = floats(2)
    return Case(fn, each((x, 5, 2.5), (x, 6, -0.25)))


@case
def maths():
    """math and operator."""

    def fn(x, v):
        done = (
            math.sqrt(v),
            math.floor(v),
            math.isclose(v, 2.25),
            math.gcd(12, 18),
            math.prod([1, 2, 3]),
            math.log(v, 2),
            math.pi,
        )
        get = operator.itemgetter(1, 0)([1, 2]), operator.attrgetter("shape")(x), operator.methodcaller("sum")(x)
        return (
            done,
            get,
            operator.add(x, v),
            operator.mul(2, 3),
            operator.contains([1], 1),
            operator.iadd([1], [2]),
            math.nan,
        )

    x = floats(2)
    return Case(fn, each((x, 2.25), (x, 7.0)))


@case
def iteration_tools():
    """itertools, finite and endless."""

    def fn(x):
        endless = itertools.count(3, 2)
        taken = list(itertools.islice(endless, 3)), next(endless)
        groups = [(key, list(group)) for key, group in itertools.groupby("aabc")]
        chained = list(itertools.chain([x], (x + 1,))), list(itertools.chain.from_iterable([[1], [2]]))
        rest = (
            list(itertools.accumulate([x, x, x])),
            list(itertools.product("ab", [1])),
            list(itertools.pairwise("abc")),
        )
        more = list(itertools.zip_longest("a", "bc")), list(itertools.takewhile(lambda n: n < 3, itertools.count()))
        return (
            taken,
            groups,
            chained,
            rest,
            more,
            list(itertools.permutations([1, 2])),
            list(itertools.starmap(pow, [(2, 3)])),
            itertools.repeat(1, 2),
        )

    return Case(fn, repeat(floats(2)))


@case
def tee_and_cycle():
    """Two iterators over one, and a ring."""

    def fn(x):
        a, b = itertools.tee([x, x + 1])
        ring = itertools.cycle("ab")
        return next(a), list(b), list(a), [next(ring) for _ in range(5)], list(itertools.compress("abc", [1, 0, 1]))

    return Case(fn, repeat(floats(2)))


# ---- text ----------------------------------------------------------------------------------------------------


@case
def text():
    """Methods of str."""

    def fn(x, s):
        cut = (
            s.split(","),
            s.rsplit(",", 1),
            s.partition(","),
            s.strip(),
            s.upper(),
            s.title(),
            s.replace("a", "b"),
            s[::-1],
        )
        asked = (
            s.startswith(("a", "b")),
            s.endswith("c"),
            s.find("b"),
            s.count(","),
            "b" in s,
            s.isdigit(),
            s.encode(),
            s < "b",
        )
        return (
            x * len(s),
            cut,
            asked,
            "-".join(["x", s]),
            s.zfill(9),
            s.center(11, "*"),
            "%s=%d" % (s, 3),
            f"{1}{2}",
            s * 2,
        )

    x = floats(2)
    return Case(fn, each((x, " a,b,c "), (x, "12")))


@case
def formatted_text():
    """f-strings with every conversion, nested formats, and =."""

    class Money:
        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "Money()"

        def __str__(self):
            return "money"

    def fn(x, n, f):
        m = Money()
        return (
            f"{n}{n:>5}{n:05d}{f:.2f}{f:e}{n:x}{n:,}",
            f"{m}{m!r}{m!s}{m:abc}{'é'!a}",
            f"{n=} {f!r:>8}",
            f"{f:{n}.{2}f}",
            f"{{}}{x.shape}",
        )

    x = floats(2)
    return Case(fn, each((x, 12, 3.14159), (x, 9, -0.0)))


@case
def regular_expressions():
    """re: search, sub with a function, compiled patterns, named groups."""
    pattern = re.compile(r"(?P<name>\w+)=(?P<value>\d+)")

    def fn(x, s):
        found = pattern.search(s)
        if found is None:
            return x
        return (
            x * int(found["value"]),
            found.groupdict(),
            found.span(),
            re.sub(r"\d", lambda m: m.group() * 2, s),
            re.findall(r"\w", s),
        )

    x = floats(2)
    return Case(fn, each((x, "abc=12;"), (x, "nothing")))


@case
def json_and_back():
    """json with a hook of the user's."""

    def fn(x, text):
        data = json.loads(text, object_hook=lambda table: {**table, "seen": True})
        return x * data["a"], data, json.dumps(data, sort_keys=True), json.dumps({"x": x.tolist()})

    x = torch.tensor([1.0, 2.0])
    return Case(fn, each((x, '{"a": 2}'), (x, '{"a": 3, "b": {"c": null}}')))


@case
def copies():
    """copy and deepcopy of nested containers: which objects are shared."""

    def fn(x, tree):
        shallow, deep = copy.copy(tree), copy.deepcopy(tree)
        shallow["list"].append(x)
        deep["list"].append(1)
        return shallow, deep, shallow["list"] is tree["list"], deep["a"] is deep["b"]

    def make():
        shared = [1]
        return floats(2), {"list": [], "a": shared, "b": shared}

    return Case(fn, fresh(make))


@case
def dicts_with_attributes():
    """The methods of dict, under the names by which attributes are read, set and deleted."""

    class Attributes(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    class Lenient(dict):
        __getattr__ = dict.get

    kept = Attributes(scale=2.0)

    def fn(x):
        made = Attributes(a=1)
        made.b = x * kept.scale
        made.c = made.a + 1
        del made.a
        kept.calls = kept.get("calls", 0) + 1
        try:
            made.missing
        except KeyError as error:
            words = repr(error)
        return made, made.b + made.c, words, Lenient(z=1).z, Lenient().nothing, vars(made)

    return Case(fn, repeat(torch.ones(2)), state=lambda: kept)


class Countdown:
    """An iterator of its own: it ends by raising StopIteration itself."""

    def __init__(self, begin, log):
        self.now = begin
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        if self.now <= 0:
            self.log.append("over")
            raise StopIteration
        self.now -= 1
        return self.now


@case
def iterators_of_the_user_s():
    log = []

    def stopping(number):
        if number > 2:
            raise StopIteration
        return number * 2

    def fn(x):
        total = 0
        for number in Countdown(3, log):
            total += number
        first, *rest = Countdown(4, log)
        pairs = list(zip(Countdown(2, log), Countdown(3, log)))
        rows = [x * number for number in Countdown(2, log)]
        generated = list(number + 1 for number in Countdown(3, log))
        until = [each for each in map(stopping, [1, 2, 3, 4])]
        held = Countdown(1, log)
        taken = [next(held), next(held, "nothing")]
        try:
            next(held)
        except StopIteration as error:
            taken.append(repr(error))
        for number in Countdown(0, log):
            total += 100
        else:
            total += 1
        return (
            total,
            first,
            rest,
            pairs,
            rows,
            generated,
            until,
            taken,
            sum(Countdown(3, log)),
            max(Countdown(3, log)),
            1 in Countdown(3, log),
            dict(enumerate(Countdown(2, log))),
            sorted(Countdown(3, log)),
            {*Countdown(2, log)},
        )

    return Case(fn, repeat(torch.ones(2)), state=lambda: log)


@case
def iterators_of_the_user_s_that_break():
    def noisy(begin):
        class Noisy(Countdown):
            def __next__(self):
                print("next", self.now)
                return super().__next__()

        return Noisy(begin, [])

    def delegating(begin):
        yield from noisy(begin)
        yield "end"

    def fn(x):
        total = x
        for number in noisy(3):
            print("in the loop")
            total = total + number
        return total, list(noisy(2)), [x + number for number in noisy(2)], list(delegating(2))

    return Case(fn, repeat(torch.ones(2)))


@case
def elements_are_counted_before_they_are_taken():
    log = []

    class Counted:
        def __len__(self):
            log.append("len")
            return 2

        def __iter__(self):
            log.append("iter")
            return iter([1, 2])

    class Hinting(Countdown):
        def __length_hint__(self):
            log.append("hint")
            return 5

    def fn(x):
        held = [0]
        held.extend(Counted())
        held += Counted()
        a, *b = Counted()
        return (
            [*Counted()],
            list(Counted()),
            tuple(Counted()),
            sorted(Counted()),
            {*Counted()},
            set(Counted()),
            held,
            a,
            b,
            list(Hinting(2, log)),
            [*Hinting(1, log)],
            x + len(Counted()),
        )

    return Case(fn, repeat(torch.ones(2)), state=lambda: log)


@case
def what_is_no_iterator():
    class Wrong:
        def __iter__(self):
            return 5

    def looped():
        for _ in Wrong():
            pass

    def unpacked():
        _, *_ = Wrong()

    def raised(function, *args):
        try:
            return function(*args)
        except TypeError as error:
            return str(error)

    def fn(x):
        attempts = [looped, unpacked, lambda: [*Wrong()], lambda: list(Wrong()), lambda: [each for each in Wrong()]]
        return x + 1, [raised(each) for each in attempts], raised(sum, Wrong()), raised(lambda: 1 in Wrong())

    return Case(fn, repeat(torch.ones(2)))

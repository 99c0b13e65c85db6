"""Random Python programs over tensors, as source text, and what becomes of them in eager and captured.

A program is a module: classes and helpers, a function, method or module called `program`, and four functions that make
the arguments of four calls (some of them change a global first). All of them end; most of them do not raise.

Programs are written by throwing dice. `programs()` lets hypothesis throw them, which shrinks what it finds;
`write(random.Random(7))` needs no hypothesis; and `reduced` makes a program smaller by dropping statements.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import random
import re
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from hypothesis import strategies as st

from frontend_fuzz import WRITTEN_HERE, Seen, observe

Item = TypeVar("Item")
Lines = list[str]

# ---- pieces that a program may use ------------------------------------------------------------------------

HEADER = """\
import contextlib
import contextvars
import functools
import random
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum

import torch
import torch.nn.functional as F
from torch import nn

COUNT = 0
SCALE = 2
LOG = []
TABLE = {"k": 1}
SEEN = set()


def tensor(seed, rows, **options):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), **options)
"""

PIECES = {
    "Oops": """
class Oops(Exception):
    pass
""",
    "Box": """
class Box:
    total = 0

    def __init__(self, count, items=()):
        self.count = count
        self.items = list(items)

    @property
    def double(self):
        return self.count * 2

    @double.setter
    def double(self, value):
        self.count = value // 2

    def scale(self, x, by=1):
        self.count = (self.count + by) % 7
        return x * self.count

    @classmethod
    def noted(cls, n):
        cls.total = (cls.total + n) % 7
        return cls.total

    @staticmethod
    def halved(x):
        return x / 2

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, item):
        return item in self.items

    def __call__(self, x):
        return x + self.count

    def __eq__(self, other):
        return isinstance(other, Box) and self.count == other.count

    def __add__(self, other):
        return type(self)((self.count + other) % 7, self.items)


class Crate(Box):
    kind = "crate"

    def scale(self, x, by=2):
        return super().scale(x, by=by) - 1

    def __getattr__(self, name):
        if name == "missing":
            return 3
        raise AttributeError(name)
""",
    "Managed": """
class Managed:
    def __init__(self, n, swallow=False):
        self.n = n
        self.swallow = swallow

    def __enter__(self):
        LOG.append(("in", self.n))
        return self

    def __exit__(self, kind, value, traceback):
        LOG.append(("out", kind.__name__ if kind else None))
        return self.swallow
""",
    "scaled": """
@contextlib.contextmanager
def scaled(n):
    global SCALE
    before, SCALE = SCALE, n
    try:
        yield SCALE + 1
    finally:
        SCALE = before
""",
    "fact": """
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)
""",
    "halves": """
def halves(x, depth):
    if depth <= 0:
        return x
    return halves(x * 0.5, depth - 1) + depth
""",
    "count_up": """
def count_up(n, step=1):
    for i in range(n):
        yield i * step
    return n
""",
    "around": """
def around(n):
    try:
        got = yield n
        yield from count_up(n % 3)
        yield got
    finally:
        LOG.append(n)
""",
    "Countdown": """
class Countdown:
    def __init__(self, n, step=1):
        self.left = n
        self.step = step

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            LOG.append("over")
            raise StopIteration
        self.left -= self.step
        return self.left + 1
""",
    "downward": """
def downward(n):
    yield from Countdown(n)
    for i in Countdown(n % 3, 2):
        yield i * 2
""",
    "Namespace": """
class Namespace(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
""",
    "Level": """
class Level:
    level = contextvars.ContextVar("level", default=0)

    def __init__(self, n):
        self.n = n

    def __enter__(self):
        self.token = self.level.set(self.level.get() + self.n)
        return self.level.get()

    def __exit__(self, *_):
        LOG.append(self.level.get() % 9)
        self.level.reset(self.token)
""",
    "rows_of": """
def rows_of(x):
    for i, row in enumerate(x):
        yield row * i
""",
    "logged": """
def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        LOG.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper
""",
    "adder": """
def adder(n):
    total = n

    def add(m=1):
        nonlocal total
        total = (total + m) % 9
        return total

    return add
""",
    "variadic": """
def variadic(x, *rest, by=2, **named):
    for each in rest:
        x = x + each
    for name, value in named.items():
        x = x * value if name == "times" else x - value
    return x * by
""",
    "remembered": """
@functools.lru_cache(maxsize=None)
def remembered(n):
    return n * n % 5
""",
    "Pair": """
Pair = namedtuple("Pair", "left right")
""",
    "Record": """
@dataclass
class Record:
    x: object
    n: int = 1
    items: list = field(default_factory=list)

    def __post_init__(self):
        self.size = self.n + 1
""",
    "Color": """
class Color(Enum):
    RED = 0
    GREEN = 1
    BLUE = 2
""",
    "LAYER": """
torch.manual_seed(1)
LAYER = nn.Linear(4, 4)
""",
    "NET": """
torch.manual_seed(2)
NET = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.25))
""",
}
DEFINES = {name: rf"\b({name}|Crate)\b" if name == "Box" else rf"\b{name}\b" for name in PIECES}


# ---- dice -------------------------------------------------------------------------------------------------


class Dice(Protocol):
    """Something that decides. A lower number should be the simpler program."""

    def integer(self, low: int, high: int) -> int: ...


class RandomDice:
    """Decides by a random generator of Python's."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def integer(self, low: int, high: int) -> int:
        return self._generator.randint(low, high)


class DrawnDice:
    """Lets hypothesis decide."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@dataclass(frozen=True)
class Program:
    """A program's text. Shown as it is, not in quotes."""

    source: str

    def __repr__(self) -> str:
        return f"\n{self.source}"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """For hypothesis: a program."""
    return Writer(DrawnDice(draw)).program()


def write(generator: random.Random) -> Program:
    """A program from a random generator of Python's."""
    return Writer(RandomDice(generator)).program()


# ---- writing ----------------------------------------------------------------------------------------------

# Kinds of values: t a tensor with the shape of x, z a tensor without dimensions, n a small integer, b a bool, s a short
# text, l a list of integers, q a list of tensors, d a dict from texts to integers, o a Box, f a function of a tensor.
KINDS = "tznbslqdof"
ARGUMENTS = {"x": "t", "y": "t", "n": "n", "flag": "b", "items": "l", "table": "d", "box": "o", "word": "s"}


@dataclass
class Scope:
    """The variables that are certain to be there, by kind, and what may be done at this place."""

    names: dict[str, list[str]]
    depth: int = 0
    looping: bool = False
    quiet: bool = False
    """Containers must not change: one of them is being iterated over."""
    leaving: bool = True
    """A return may stand here."""
    fixed: frozenset[str] = frozenset()
    """Names that must not be assigned to: what a loop counts with, and what belongs to a function around this one."""

    def inner(self, **changes: Any) -> Scope:
        values = {
            "names": {kind: list(names) for kind, names in self.names.items()},
            "depth": self.depth + 1,
            "looping": self.looping,
            "quiet": self.quiet,
            "leaving": self.leaving,
            "fixed": self.fixed,
        }
        return Scope(**{**values, **changes})


class Writer:
    """Writes one program. A method `<kind>_…` gives an expression of a kind, `do_…` the lines of a statement."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.helpers: dict[str, str] = {}
        """Functions written so far: name, what they take."""
        self.budget = 16
        self.numbers = itertools.count(1)
        self.globals_written: list[str] = []
        self.statements = [getattr(self, name) for name in STATEMENTS]
        self.expressions = {
            kind: [getattr(Writer, name) for name in vars(Writer) if name.startswith(f"{kind}_")] for kind in KINDS
        }

    # throwing

    def choose(self, items: Sequence[Item]) -> Item:
        return items[self.dice.integer(0, len(items) - 1)]

    def one_in(self, times: int) -> bool:
        return self.dice.integer(0, times - 1) == times - 1

    def new(self, kind: str) -> str:
        return f"{kind}{next(self.numbers)}"

    # the whole

    def program(self) -> Program:
        helpers = [self.helper() for _ in range(self.dice.integer(0, 2))]
        taken = ["x", *(name for name in ARGUMENTS if name != "x" and not self.one_in(3))]
        written = ["\n".join(each) for each in [*helpers, self.main(taken)]]
        written.append("\n".join(self.makers(taken, " ".join(written))))
        pieces = _pieces("\n".join(written))
        return Program("\n\n\n".join([HEADER.strip("\n"), *pieces, *written]) + "\n")

    def scope_of(self, names: Sequence[str]) -> Scope:
        found: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name in names:
            found[ARGUMENTS[name]].append(name)
        return Scope(found)

    def main(self, taken: list[str]) -> Lines:
        form = self.choose(["function", "module", "method"]) if self.one_in(3) else "function"
        defaults = {"n": "=1", "flag": "=True", "items": "=()", "table": "=None", "box": "=None", "word": "='w'"}
        signature, keywords = [], False
        for name in taken:
            if name in ("n", "flag", "word"):
                signature.append(name + defaults[name])
                keywords = True
            else:
                signature.append(f"{name}=None" if keywords else name)
        if form == "function":
            body = self.body(self.scope_of(taken))
            return [f"def program({', '.join(signature)}):", *_indented(body)]
        scope = self.scope_of(taken)
        if form == "method":
            scope.names["n"].append("self.size")
            scope.names["l"].append("self.kept")
            body = self.body(scope)
            return [
                *"class Owner:\n    size = 3\n\n    def __init__(self):\n        self.kept = [1, 2]\n".split("\n"),
                f"    def run(self, {', '.join(signature)}):",
                *_indented(body, 2),
                *["", "", "program = Owner().run"],
            ]
        scope.names["n"].append("self.calls")
        scope.names["l"].append("self.kept")
        scope.names["b"].append("self.training")
        body = self.body(scope)
        return [
            "class Net(nn.Module):",
            *_indented(["def __init__(self):"]),
            *_indented(
                [
                    "super().__init__()",
                    "torch.manual_seed(3)",
                    "self.layer = nn.Linear(4, 4)",
                    "self.drop = nn.Dropout(0.25)",
                    "self.register_buffer('steps', torch.zeros(()))",
                    "self.calls = 0",
                    "self.kept = [1, 2]",
                ],
                2,
            ),
            "",
            *_indented([f"def forward(self, {', '.join(signature)}):"]),
            *_indented(["x = self.drop(self.layer(x))", "self.steps += 1", "self.calls = (self.calls + 1) % 3"], 2),
            *_indented(body, 2),
            *["", "", "program = Net()"],
        ]

    def body(self, scope: Scope) -> Lines:
        """A function's lines: the globals it writes, statements, and a return of most of what there is."""
        self.globals_written = []
        lines = self.block(scope, 12)
        lines = [f"global {', '.join(sorted(set(self.globals_written)))}", *lines] if self.globals_written else lines
        results = [name for kind in "tznqld" for name in scope.names[kind][-2:] if kind in "tz" or self.one_in(2)]
        return [*lines, f"return {', '.join(dict.fromkeys(results))}"]

    def helper(self) -> Lines:
        """A function at module level: takes a tensor and an integer, gives a tensor."""
        name, saved = self.new("helper"), self.budget
        self.budget = 5
        decorated = ["@logged"] if self.one_in(4) else []
        scope = self.scope_of(["x", "n"])
        scope.leaving = False
        self.globals_written = []
        body = self.block(scope, 4)
        if self.globals_written:
            body = [f"global {', '.join(sorted(set(self.globals_written)))}", *body]
        lines = [*decorated, f"def {name}(x, n=2):", *_indented([*body, f"return {self.expression('t', scope)}"])]
        self.helpers[name], self.budget = "tn", saved
        return lines

    def makers(self, taken: list[str], text: str) -> Lines:
        """The four functions that give the arguments of the four calls."""
        values = {
            "x": ["tensor(1, 3)"],
            "y": ["tensor(2, 3)"],
            "n": [str(self.dice.integer(0, 4))],
            "flag": ["True"],
            "items": [self.choose(["[3, 1, 2]", "[]", "[5]"])],
            "table": [self.choose(['{"a": 1, "b": 2}', '{"a": 4}', "{}"])],
            "box": [self.choose(["Box(1, [4, 5])", "Crate(2)"])] if "box" in taken else ["None"],
            "word": ['"w"'],
        }
        first = {name: values[name][0] for name in taken}
        lines: Lines = []
        for number in range(4):
            now, before = dict(first), []
            if number in (1, 2, 3) and self.one_in(2):
                now, before = self.varied(now, text)
            keywords = [name for name in taken if name not in ("x", "y") and self.one_in(2)]
            by_name = ", ".join(f'"{name}": {now[name]}' for name in keywords)
            positional, named = [], False
            for name in taken:
                named = named or name in keywords
                if not named:
                    positional.append(now[name])
                elif name not in keywords:
                    by_name += f', "{name}": {now[name]}'
            args = f"({', '.join(positional)},)"
            lines += [f"def arguments_{number + 1}():", *_indented([*before, f"return {args}, {{{by_name}}}"]), "", ""]
        return [*lines, "CALLS = [arguments_1, arguments_2, arguments_3, arguments_4]"]

    def varied(self, values: dict[str, str], text: str) -> tuple[dict[str, str], Lines]:
        """Other arguments, and statements that come before them."""
        changed, before = dict(values), []
        ways: list[Callable[[], Any]] = [
            lambda: changed.update(x="tensor(5, 3)"),
            lambda: changed.update({name: f"tensor({i}, 2)" for i, name in enumerate("xy", 6) if name in values}),
            lambda: changed.update(
                x="tensor(1, 3).double()", **({"y": "tensor(2, 3).double()"} if "y" in values else {})
            ),
            lambda: changed.update(x="tensor(1, 3, requires_grad=True)"),
            lambda: changed.update(x="tensor(1, 4)[:3]"),
            lambda: changed.update(x="torch.ones(4, 3).t()"),
            lambda: changed.update(x="-tensor(1, 3).abs()"),
            lambda: before.extend(["global SCALE", "SCALE = 3"]),
            lambda: before.append('TABLE["k"] = 2'),
            lambda: before.append("LOG.clear()"),
        ]
        if "y" in values:
            ways.append(lambda: (before.append("x = tensor(3, 3)"), changed.update(x="x", y="x")))
        if "n" in values:
            ways.append(lambda: changed.update(n=str(self.dice.integer(0, 5))))
            ways.append(lambda: changed.update(n="True"))
        if "flag" in values:
            ways.append(lambda: changed.update(flag="False"))
        if "items" in values:
            ways.append(lambda: changed.update(items=self.choose(["[2, 1]", "[]", "[1, 1, 1, 4]", "LOG[:0]"])))
        if "table" in values:
            ways.append(lambda: changed.update(table=self.choose(['{"b": 2, "a": 1}', '{"c": 0}', "{}"])))
        if "box" in values:
            ways.append(lambda: changed.update(box=self.choose(["Box(3)", "Crate(1, [1, 2])", "Box(0, [7])"])))
            ways.append(lambda: before.append("Box.total = 4"))
            ways.append(lambda: before.append("Box.halved = staticmethod(lambda x: x / 3)"))
        if "LAYER" in text:
            ways.append(lambda: before.append("LAYER.weight.data.mul_(2)"))
            ways.append(lambda: before.append("LAYER.weight = nn.Parameter(torch.eye(4))"))
            ways.append(lambda: before.append("LAYER.bias.requires_grad_(False)"))
        if "NET" in text:
            ways.append(lambda: before.append("NET.eval()"))
        for name in self.helpers:
            ways.append(lambda name=name: before.append(f"{name}.__defaults__ = (3,)") if not before else None)  # type: ignore[misc]
        self.choose(ways)()
        return changed, before

    # blocks

    def block(self, scope: Scope, most: int) -> Lines:
        lines: Lines = []
        while most > 0 and self.budget > 0 and not self.one_in(8):
            most -= 1
            self.budget -= 1
            lines += self.choose(self.statements)(scope) or []
            if lines and lines[-1].split(" ")[0] in ("return", "break", "continue", "raise"):
                break
        return lines or ["pass"]

    def expression(self, kind: str, scope: Scope, depth: int = 0) -> str:
        """Text of an expression of a kind; in brackets if it needs them."""
        names = scope.names[kind]
        if names and (depth > 2 or not self.one_in(2)):
            return names[-1 - self.dice.integer(0, len(names) - 1)]
        if depth > 2:
            return {
                "t": "x" if "x" in scope.names["t"] else "torch.ones(3, 4)",
                "z": f"{self.expression('t', scope, 3)}.sum()",
                "n": str(self.dice.integer(0, 4)),
                "b": self.choose(["True", "False"]),
                "s": self.choose(['"a"', '"b"', '"zz"']),
                "l": f"[{self.dice.integer(0, 3)}, 2]",
                "q": f"[{self.expression('t', scope, 3)}]",
                "d": '{"a": 1}',
                "o": "Box(1, [2])",
                "f": "torch.relu",
            }[kind]
        return self.choose(self.expressions[kind])(self, scope, depth + 1)

    def t(self, scope: Scope, depth: int) -> str:
        return self.expression("t", scope, depth)

    def n(self, scope: Scope, depth: int) -> str:
        return self.expression("n", scope, depth)

    def of(self, pattern: str, scope: Scope, depth: int) -> str:
        """The pattern, with each <k> replaced by an expression of the kind k."""
        parts = pattern.split("<")
        text = parts[0]
        for part in parts[1:]:
            kind, rest = part.split(">", 1) if len(part) > 1 and part[1] == ">" and part[0] in KINDS else ("", part)
            text += self.expression(kind, scope, depth) + rest if kind else "<" + rest
        return text

    def one(self, scope: Scope, depth: int, *patterns: str) -> str:
        return self.of(self.choose(patterns), scope, depth)

    # tensors

    def t_literal(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "(<t> + 1)", "(<t> * <n>)", "(2 - <t>)", "(-<t>)", "(<t> / 2)", "(<t> ** 2)")

    def t_two(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "(<t> + <t>)", "(<t> - <t>)", "(<t> * <t>)", "torch.maximum(<t>, <t>)")

    def t_function(self, scope: Scope, depth: int) -> str:
        patterns = [
            "torch.relu(<t>)",
            "torch.tanh(<t>)",
            "<t>.abs()",
            "<t>.clamp(-1, <n>)",
            "F.gelu(<t>)",
            "<t>.softmax(-1)",
            "torch.add(<t>, <t>, alpha=<n>)",
            "<t>.masked_fill(<t> > 0, <n>)",
            "F.layer_norm(<t>, (4,))",
            "torch.where(<t> > <n>, <t>, <t>)",
            "<t>.cumsum(0)",
        ]
        return self.of(self.choose(patterns), scope, depth)

    def t_shape(self, scope: Scope, depth: int) -> str:
        patterns = [
            "<t>.flip(0)",
            "<t>.reshape(-1).view(x.shape)",
            "(<t>[:, :1] * <t>)",
            "torch.stack([<t>, <t>]).mean(0)",
            "torch.cat([<t>, <t>])[: x.shape[0]]",
            "<t>.t().contiguous().t()",
            "(<t> @ <t>.t() @ <t> / 8)",
            "<t>[..., [3, 2, 1, 0]]",
            "torch.zeros_like(<t>)",
            "torch.full(x.shape, <n>).to(x.dtype)",
            "<t>.unsqueeze(0).expand(2, -1, -1)[<n> % 2]",
            "<t>.unflatten(1, (2, 2)).flatten(1)",
            "torch.cat(<t>.split(1), 0)",
            "torch.stack(list(<t>))",
            "torch.arange(x.numel(), dtype=x.dtype).view_as(x)",
        ]
        if "x" not in scope.names["t"]:
            patterns = [each for each in patterns if "x." not in each and "(x)" not in each]
        return self.of(self.choose(patterns), scope, depth)

    def t_branch(self, scope: Scope, depth: int) -> str:
        return self.of("(<t> if <b> else <t>)", scope, depth)

    def t_call(self, scope: Scope, depth: int) -> str:
        patterns = [f"{name}(<t>)" for name in self.helpers] + [f"{name}(<t>, n=<n>)" for name in self.helpers]
        patterns += ["<f>(<t>)", "halves(<t>, <n> % 4)"]
        patterns += ["variadic(<t>, <n>, <t>, by=<n>)", "variadic(*[<t>, <n>], **{'times': <n>, 'less': 1})"]
        patterns.append("functools.partial(variadic, by=<n>)(<t>)")
        return self.of(self.choose(patterns), scope, depth)

    def t_object(self, scope: Scope, depth: int) -> str:
        if scope.quiet:
            return self.t(scope, depth)
        return self.one(scope, depth, "<o>.scale(<t>)", "<o>(<t>)", "<o>.halved(<t>)")

    def t_layer(self, scope: Scope, depth: int) -> str:
        layer = self.choose(["LAYER", "NET"])
        return f"{layer}({self.t(scope, depth)}.float())"

    def t_random(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "torch.rand_like(<t>)", "F.dropout(<t>, 0.5)", "F.dropout(<t>, 0.5, <b>)")

    def t_of_list(self, scope: Scope, depth: int) -> str:
        if not scope.names["q"]:
            return self.t(scope, depth)
        patterns = ["sum(<q>, <t>)", "(<q> or [<t>])[-1]", "max(<q> + [<t>], key=lambda v: v.sum())"]
        return self.one(scope, depth, *patterns, "functools.reduce(torch.add, <q>, <t>)")

    def t_global(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "(<t> * SCALE)", '(<t> + TABLE["k"])', "(<t> + len(LOG))")

    def t_in_place(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "<t>.clone().add_(<t>)", "<t>.clone().mul_(<n>)", "<t>.neg().clamp_(min=0)")

    def z_reduce(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "<t>.sum()", "<t>.mean()", "<t>.max()", "<t>[0, 0]", "torch.linalg.norm(<t>)")

    def z_arithmetic(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "(<z> + <n>)", "(<z> * <z>)", "torch.tensor(<n>) * <z>")

    # numbers

    def n_literal(self, scope: Scope, depth: int) -> str:
        return str(self.dice.integer(0, 5))

    def n_arithmetic(self, scope: Scope, depth: int) -> str:
        patterns = ["(<n> + <n>) % 7", "<n> * <n> % 5", "<n> - <n>", "-<n> % 4", "<n> // 2", "<n> & 3", "(<n> ^ 1)"]
        patterns += ["abs(<n>)", "min(<n>, <n>)", "max(<n>, <n>, 1)", "divmod(<n>, 3)[1]", "int(<b>)", "round(<n> / 2)"]
        return f"({self.of(self.choose(patterns), scope, depth)})"

    def n_shape(self, scope: Scope, depth: int) -> str:
        patterns = ["<t>.shape[0]", "<t>.dim()", "<t>.size(-1)", "<t>.numel() % 5", "len(<t>)", "<t>.stride(0)"]
        return f"({self.of(self.choose(patterns), scope, depth)})"

    def n_list(self, scope: Scope, depth: int) -> str:
        patterns = ["len(<l>)", "sum(<l>) % 9", "max(<l>, default=<n>)", "next(iter(<l>), <n>)", "[*<l>, <n>][0]"]
        patterns += ["sum(i for i in <l> if i > <n>) % 9", "<l>.count(<n>)", "min([<n>, *<l>])", "len(set(<l>))"]
        return f"({self.of(self.choose(patterns), scope, depth)})"

    def n_dict(self, scope: Scope, depth: int) -> str:
        patterns = ["len(<d>)", '<d>.get("a", <n>)', "sum(<d>.values()) % 9", "len([k for k in <d>])", "len(<s>)"]
        return f"({self.of(self.choose(patterns), scope, depth)})"

    def n_branch(self, scope: Scope, depth: int) -> str:
        return self.of("(<n> if <b> else <n>)", scope, depth)

    def n_object(self, scope: Scope, depth: int) -> str:
        patterns = ["<o>.count", "<o>.double", "len(<o>)", "sum(<o>)", "(<o> + <n>).count", "<o>.total"]
        return f"({self.of(self.choose(patterns), scope, depth)} % 9)"

    def n_call(self, scope: Scope, depth: int) -> str:
        piece = self.choose(["fact", "remembered", "count_up", "Color", "adder", "Countdown", "Level"])
        return {
            "fact": self.of("fact(<n> % 4)", scope, depth),
            "remembered": self.of("remembered(<n>)", scope, depth),
            "count_up": self.of("sum(count_up(<n> % 4, <n>)) % 9", scope, depth),
            "Color": self.of("Color(<n> % 3).value", scope, depth),
            "adder": self.of("adder(<n>)(<n>)", scope, depth),
            "Countdown": self.of("(sum(Countdown(<n> % 4)) + next(Countdown(<n> % 2), <n>)) % 9", scope, depth),
            "Level": "(Level.level.get() % 9)",
        }[piece]

    def n_global(self, scope: Scope, depth: int) -> str:
        return self.choose(["SCALE", 'TABLE["k"]', "len(LOG)", "COUNT", "len(SEEN)"])

    def n_item(self, scope: Scope, depth: int) -> str:
        return f"(int({self.expression('z', scope, depth)}.item() * 10) % 5)"

    def n_random(self, scope: Scope, depth: int) -> str:
        return "random.randint(0, 3)"

    def b_compare(self, scope: Scope, depth: int) -> str:
        patterns = ["(<n> > <n>)", "(<n> % 2 == 0)", "(<n> != <n>)", "(0 < <n> <= 3)", "(<l> is None)", "(<s> == <s>)"]
        return self.of(self.choose(patterns), scope, depth)

    def b_logic(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "(<b> and <b>)", "(<b> or <b>)", "(not <b>)", "bool(<l>)", "(<b> == <b>)")

    def b_contains(self, scope: Scope, depth: int) -> str:
        patterns = ["(<n> in <l>)", '("a" in <d>)', "(<n> not in (1, 2))", "any(i > <n> for i in <l>)", "all(<l>)"]
        return self.of(self.choose(patterns), scope, depth)

    def b_tensor(self, scope: Scope, depth: int) -> str:
        patterns = ["(<t>.shape[0] > <n>)", "(<t> is <t>)", "<t>.requires_grad", "(<t>.dtype == torch.float32)"]
        patterns += [
            "(<t>.shape == <t>.shape)",
            "<t>.is_contiguous()",
            "torch.is_grad_enabled()",
            "isinstance(<t>, list)",
        ]
        return self.of(self.choose(patterns), scope, depth)

    def b_data(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "bool(<z> > <n>)", "bool((<t> > 0).all())", "torch.equal(<t>, <t>)")

    def b_object(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, 'hasattr(<o>, "extra")', "(<n> in <o>)", "(<o> == <o>)", "isinstance(<o>, Crate)")

    def s_text(self, scope: Scope, depth: int) -> str:
        patterns = ['"a"', '"ab"', "str(<n>)", 'f"{<n>}"', 'f"{<n>:03d}-{<l>!r}"[:8]', "(<s> + <s>)[:5]", "<s>.upper()"]
        pattern = self.choose([*patterns, '",".join(map(str, <l>))[:9]', '"%d!" % <n>', "<s>[::-1]"])
        return self.of(pattern, scope, 3 if "{" in pattern else depth)  # no quotes within quotes

    # containers and objects

    def l_display(self, scope: Scope, depth: int) -> str:
        patterns = [
            "[<n>, <n>]",
            "[*<l>, <n>][-6:]",
            "(<l> + <l>)[:6]",
            "<l>[1:]",
            "<l>[::-1]",
            "list(x.shape)",
            "list(<l>)",
        ]
        return self.of(self.choose(patterns if "x" in scope.names["t"] else patterns[:5]), scope, depth)

    def l_comprehension(self, scope: Scope, depth: int) -> str:
        patterns = [
            "[i * <n> % 7 for i in range(<n> % 4)]",
            "[i for i in <l> if i > <n>]",
            "[a + b for a, b in zip(<l>, <l>)]",
            "[i for i, v in enumerate(<l>) if v]",
            "[i + j for i in range(2) for j in <l>[:2]]",
            "list({i % 3 for i in <l>})",
        ]
        return self.of(self.choose(patterns), scope, depth)

    def l_builtin(self, scope: Scope, depth: int) -> str:
        patterns = [
            "sorted(<l>)",
            "sorted(<l>, key=lambda v: -v, reverse=<b>)",
            "list(map(lambda v: v + <n>, <l>))",
            "list(filter(lambda v: v > <n>, <l>))",
            "list(<d>.values())",
            "list(reversed(<l>))",
            "list(count_up(<n> % 4))",
            "[int(v) for v in <s> if v.isdigit()]",
            "list(Countdown(<n> % 4))",
            "[v % 7 for v in Countdown(<n> % 4)]",
            "sorted(downward(<n> % 3))",
            "[*Countdown(<n> % 3), <n>]",
        ]
        return self.of(self.choose(patterns), scope, depth)

    def q_display(self, scope: Scope, depth: int) -> str:
        patterns = ["[<t>]", "[<t>, <t>]", "[<t> * i for i in range(<n> % 3)]", "[v + 1 for v in <q>]", "<q>[:1]"]
        return self.of(self.choose(patterns), scope, depth)

    def d_display(self, scope: Scope, depth: int) -> str:
        patterns = [
            '{"a": <n>}',
            '{**<d>, "b": <n>}',
            "{k: v + 1 for k, v in <d>.items()}",
            "dict(a=<n>, c=<n>)",
            'dict(zip("abc", <l>))',
            '<d> | {"e": <n>}',
            "dict(sorted(<d>.items()))",
            "{<s>: <n>}",
        ]
        return self.of(self.choose(patterns), scope, depth)

    def o_new(self, scope: Scope, depth: int) -> str:
        return self.one(scope, depth, "Box(<n>)", "Box(<n>, <l>)", "Crate(<n>, items=<l>)")

    def f_function(self, scope: Scope, depth: int) -> str:
        patterns = ["torch.relu", "(lambda v: v + 1)", "(lambda v, k=<n>: v * k)", "(lambda v: v + <t>)", "torch.sin"]
        return self.one(scope, depth, *patterns, *self.helpers)

    # statements

    def assign(self, scope: Scope, kind: str, text: str) -> Lines:
        """To a new name, or to one that is there."""
        olds = [name for name in scope.names[kind] if name not in scope.fixed and "." not in name]
        if olds and self.one_in(3):
            return [f"{self.choose(olds)} = {text}"]
        name = self.new(kind)
        scope.names[kind].append(name)
        return [f"{name} = {text}"]

    def do_tensor(self, scope: Scope) -> Lines:
        return self.assign(scope, "t", self.choose(self.expressions["t"])(self, scope, 1))

    def do_value(self, scope: Scope) -> Lines:
        kind = self.choose("nzlqdsbof")
        return self.assign(scope, kind, self.choose(self.expressions[kind])(self, scope, 1))

    def do_augment(self, scope: Scope) -> Lines:
        olds = [name for name in scope.names["n"] if name not in scope.fixed]
        if olds and self.one_in(2):
            name, change = self.choose(olds), self.choose(["+=", "*=", "-=", "//=", "%=", "|="])
            if change in ("//=", "%="):
                return [f"{name} {change} 3"]
            return [f"{name} {change} {self.n(scope, 2)}", f"{name} %= 9"]
        olds = [name for name in scope.names["t"] if name not in scope.fixed]
        return [f"{self.choose(olds)} {self.choose(['+=', '*=', '-='])} {self.t(scope, 2)}"] if olds else []

    def do_in_place(self, scope: Scope) -> Lines:
        target = self.t(scope, 3)
        patterns = [
            ".add_(<n>)",
            ".mul_(<t>)",
            "[0] = <n>",
            "[:, 0] += <n>",
            ".copy_(<t>)",
            ".zero_()",
            "[<t> > 0] = <n>",
        ]
        return [target + self.of(self.choose(patterns), scope, 2)]

    def do_change_list(self, scope: Scope) -> Lines:
        if scope.quiet or not scope.names["l"]:
            return []
        name = self.choose(scope.names["l"])
        patterns = [".append(<n>)", ".extend([<n>, <n>])", ".insert(0, <n>)", ".sort()", ".reverse()", "[:1] = [<n>]"]
        if self.one_in(3):
            last = self.choose([".pop()", "[0] += 1", "[-1] = <n>", ".remove(@[0])"]).replace("@", name)
            return [f"if {name}:", f"    {name}{self.of(last, scope, 2)}"]
        if self.one_in(6):
            return [f"del {name}[1:]"]
        return [name + self.of(self.choose(patterns), scope, 2)]

    def do_change_dict(self, scope: Scope) -> Lines:
        if scope.quiet or not scope.names["d"]:
            return []
        name = self.choose(scope.names["d"])
        patterns = [
            '["a"] = <n>',
            ".update(b=<n>, c=1)",
            '.pop("a", None)',
            '.setdefault("c", <n>)',
            "[<s>] = <n>",
            ".clear()",
        ]
        if self.one_in(5):
            return [f'if "b" in {name}:', f'    del {name}["b"]']
        return [name + self.of(self.choose(patterns), scope, 2)]

    def do_change_tensors(self, scope: Scope) -> Lines:
        if scope.quiet or not scope.names["q"]:
            return []
        name = self.choose(scope.names["q"])
        return [name + self.one(scope, 2, ".append(<t>)", "[:1] = [<t>, <t>]", ".insert(0, <t>)", ".clear()")]

    def do_change_object(self, scope: Scope) -> Lines:
        if scope.quiet or not scope.names["o"]:
            return []
        name = self.choose(scope.names["o"])
        patterns = [
            ".count += 1",
            ".count = <n>",
            ".items.append(<n>)",
            ".extra = <n>",
            ".double = <n>",
            ".state = <t>",
        ]
        if self.one_in(4):
            other = [f'setattr({name}, "extra", 1)', f"{name}.noted({self.n(scope, 2)})", "Box.total += 1"]
            other += [f'if hasattr({name}, "extra"):\n    del {name}.extra', f"{name}.__dict__['seen'] = 1"]
            return self.choose(other).split("\n")
        return [name + self.of(self.choose(patterns), scope, 2)]

    def do_change_global(self, scope: Scope) -> Lines:
        way = self.choose(["log", "table", "seen", "count", "scale"])
        if way == "log":
            return [f"LOG.append({self.n(scope, 2)})"]
        if way == "table":
            return [f'TABLE["{self.choose("km")}"] = {self.n(scope, 2)}']
        if way == "seen":
            return [f"SEEN.{self.choose(['add', 'discard'])}({self.n(scope, 2)})"]
        self.globals_written.append("COUNT" if way == "count" else "SCALE")
        return ["COUNT += 1" if way == "count" else f"SCALE = {self.n(scope, 2)}"]

    def do_print(self, scope: Scope) -> Lines:
        patterns = [
            "print(<n>)",
            'print("at", <s>, <l>)',
            'print(f"{<n>=}", end=";")',
            "print(<t>.shape)",
            "print(<z>)",
        ]
        pattern = self.choose(patterns)
        return [self.of(pattern, scope, 3 if "{" in pattern else 2)]

    def compound(self, head: str, scope: Scope, most: int = 3, **changes: Any) -> Lines:
        return [head, *_indented(self.block(scope.inner(**changes), most))]

    def do_if(self, scope: Scope) -> Lines:
        if scope.depth > 2:
            return []
        lines = self.compound(f"if {self.expression('b', scope, 1)}:", scope)
        while self.one_in(4):
            lines += self.compound(f"elif {self.expression('b', scope, 1)}:", scope)
        return lines + (self.compound("else:", scope) if self.one_in(2) else [])

    def do_if_data(self, scope: Scope) -> Lines:
        if scope.depth > 2:
            return []
        test = self.one(scope, 2, "<z> > <n>", "(<t> > 0).any()", "<t>.sum() < 1 and <b>")
        return self.compound(f"if {test}:", scope) + (self.compound("else:", scope) if self.one_in(2) else [])

    def do_walrus(self, scope: Scope) -> Lines:
        name = self.new("n")
        lines = [f"if ({name} := {self.n(scope, 2)}) > {self.dice.integer(0, 3)}:"]
        scope.names["n"].append(name)
        return [*lines, *_indented(self.block(scope.inner(), 2))]

    def do_for(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        i, v = self.new("n"), self.new("n")
        inner = scope.inner(looping=True)
        way = self.choose(
            ["range", "list", "enumerate", "zip", "items", "tensors", "rows", "generator", "own", "plain"]
        )
        inner.fixed |= {i, v}
        if way in ("enumerate", "zip"):
            inner.names["n"] += [i, v]
        elif way not in ("tensors", "rows", "items"):
            inner.names["n"].append(i)
        if way == "items":
            key = self.new("s")
            inner.names["s"].append(key)
            inner.names["n"].append(v)
            head = f"for {key}, {v} in list({self.expression('d', scope, 2)}.items()):"
        elif way == "tensors":
            i = self.new("t")
            inner.names["t"].append(i)
            head = f"for {i} in {self.expression('q', scope, 2)}[:3]:"
        elif way == "rows":
            i = self.new("z")
            inner.names["z"].append(f"{i}.sum()")
            rows = self.choose(["<t>", "<t>.unbind(0)", "rows_of(<t>)"])
            head = f"for {i} in {self.of(rows, scope, 2)}:"
        elif way == "plain":
            inner.quiet = True
            inner.names["f"] = []  # a closure may change the list all the same
            head = f"for {i} in {self.expression('l', scope, 2)}:"
        else:
            text = {
                "range": "range(<n> % 4)",
                "list": "list(<l>)[:4]",
                "enumerate": "enumerate(<l>[:4], 1)",
                "zip": "zip(<l>[:4], range(3))",
                "generator": "count_up(<n> % 3)",
                "own": self.choose(["Countdown(<n> % 3)", "downward(<n> % 3)"]),
            }[way]
            head = f"for {f'{i}, {v}' if way in ('enumerate', 'zip') else i} in {self.of(text, scope, 2)}:"
        lines = [head, *_indented(self.block(inner, 3))]
        return lines + (self.compound("else:", scope, 1) if self.one_in(6) else [])

    def do_while(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        name = self.new("n")
        inner = scope.inner(looping=True, fixed=scope.fixed | {name})
        inner.names["n"].append(name)
        lines = [f"{name} = {self.n(scope, 2)} % 4", f"while {name} > 0:", f"    {name} -= 1"]
        return [*lines, *_indented(self.block(inner, 3))]

    def do_leave_loop(self, scope: Scope) -> Lines:
        if not scope.looping:
            return []
        return [f"if {self.expression('b', scope, 2)}:", f"    {self.choose(['break', 'continue'])}"]

    def do_return(self, scope: Scope) -> Lines:
        if not scope.leaving:
            return []
        return [f"if {self.expression('b', scope, 2)}:", f"    return {self.of('<t>, <n>', scope, 2)}"]

    def do_try(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        inner = scope.inner()
        lines = ["try:", *_indented(self.block(inner, 2))]
        lines += [] if _leaves(lines) else _indented(self.raising(inner))
        handler = scope.inner()
        caught = self.choose(
            ["except Oops as error:", "except (Oops, LookupError) as error:", "except Exception as error:"]
        )
        body = ["LOG.append(str(error))"] if self.one_in(2) else []
        if not self.one_in(4):
            lines += [caught, *_indented([*body, *self.block(handler, 2)])]
            if self.one_in(6) and not _leaves(lines):
                lines += ["    raise"]
            if self.one_in(4):
                lines += self.compound("else:", scope, 1)
            if self.one_in(3):
                lines += self.compound("finally:", scope, 2, looping=False, leaving=False)
        else:
            lines += self.compound("finally:", scope, 2, looping=False, leaving=False)
        return lines

    def raising(self, scope: Scope) -> Lines:
        """Something that raises, if."""
        what = self.choose(
            [
                "raise Oops(<n>)",
                "raise Oops('no', <n>) from None",
                '{}["none"]',
                "[][<n>]",
                "1 // 0",
                "assert not <b>, 'told'",
                "<t> @ torch.ones(7, 7)",
                "int('x')",
                "<o>.nothing",
            ]
        )
        if what.startswith("assert"):
            return [self.of(what, scope, 2)]
        return [f"if {self.expression('b', scope, 2)}:", f"    {self.of(what, scope, 2)}"]

    def do_raise(self, scope: Scope) -> Lines:
        return self.raising(scope) if self.one_in(4) else []

    def do_with(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        managed = "Managed(<n>, swallow=True) as manager"
        heads = ["torch.no_grad()", "torch.enable_grad()", managed, "torch.set_grad_enabled(<b>)"]
        heads += ["contextlib.suppress(Oops)", "scaled(<n>)", f"{managed}, torch.no_grad()", "Level(<n>)"]
        inner = scope.inner()
        lines = [f"with {self.of(self.choose(heads), scope, 2)}:", *_indented(self.block(inner, 3))]
        return lines + (_indented(self.raising(inner)) if self.one_in(4) and not _leaves(lines) else [])

    def do_closure(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        name, cell = self.new("f"), self.new("n")
        inner = scope.inner(looping=False, leaving=False, fixed=frozenset(itertools.chain(*scope.names.values())))
        inner.names["t"].append("v")
        inner.names["n"].append(cell)
        saved, self.globals_written = self.globals_written, []
        body = self.block(inner, 3)
        result = self.t(inner, 2)
        body = [f"global {', '.join(sorted(set(self.globals_written)))}", *body] if self.globals_written else body
        self.globals_written = saved
        start = f"{cell} = {self.n(scope, 2)}"
        nonlocal_ = [f"nonlocal {cell}", f"{cell} = ({cell} + 1) % 5"]
        lines = [start, f"def {name}(v):", *_indented([*nonlocal_, *body, f"return {result}"])]
        scope.names["n"].append(cell)
        scope.names["f"].append(name)
        return lines + self.assign(scope, "t", f"{name}({self.t(scope, 2)})")

    def do_unpack(self, scope: Scope) -> Lines:
        one, two = self.new("n"), self.new("n")
        rest = self.new("l")
        patterns = [
            (f"{one}, {two} = <n>, <n>", "nn"),
            (f"{one}, *{rest} = [<n>, *<l>]", "nl"),
            (f"*{rest}, {one} = (<n>, <n>, <n>)", "nl"),
            (f"({one}, {two}), {rest} = [<n>, <n>], [<n>]", "nnl"),
            (f"{one} = {two} = <n>", "nn"),
            (f"{one}, {two} = <t>.shape", "nn"),
        ]
        pattern, kinds = self.choose(patterns)
        text = self.of(pattern, scope, 2)
        scope.names["n"] += [one, two] if kinds != "nl" else [one]
        scope.names["l"] += [rest] if "l" in kinds else []
        return [text]

    def do_match(self, scope: Scope) -> Lines:
        if scope.depth > 1:
            return []
        name = self.new("n")
        subject, cases = self.choose(
            [
                ("<n>", ["0 | 1", name + f" if {name} > 2"]),
                ("(<n>, <n>)", [f"(0, {name})", f"({name}, 1)"]),
                ("<l>", [f"[{name}]", f"[{name}, *_]"]),
                ("<d>", [f'{{"a": {name}}}', f'{{"b": {name}, **rest}}']),
                ("<o>", [f"Crate(count={name})", f"Box(count={name})"]),
                ("<s>", ["'a' | 'ab'", f"str({name})"]),
            ]
        )
        lines = [f"match {self.of(subject, scope, 2)}:"]
        for case in cases:
            inner = scope.inner()
            inner.names["n"] += [name] if name in case and "str(" not in case else []
            lines += [f"    case {case}:", *_indented(self.block(inner, 2), 2)]
        return [*lines, "    case _:", *_indented(self.block(scope.inner(), 1), 2)]

    def do_generator(self, scope: Scope) -> Lines:
        if scope.quiet:
            return []
        name = self.new("g")
        value = self.new("n")
        steps = [f"{name} = around({self.n(scope, 2)})", f"{value} = next({name})", f"LOG.extend({name})"]
        if self.one_in(2):
            steps[2:] = [f"{value} = {name}.send({value})", f"{name}.close()"]
        scope.names["n"].append(value)
        return [*steps, f"{value} = ({value} or 0) % 9"]

    def do_records(self, scope: Scope) -> Lines:
        way = self.choose(["Pair", "Record", "Color", "Namespace"])
        name = self.new(way.lower())
        if way == "Pair":
            text = self.of(f"{name} = Pair(<t>, right=<n>)", scope, 2)
            scope.names["t"].append(f"{name}.left")
            scope.fixed |= {f"{name}.left"}
            return [text]
        if way == "Record":
            text = self.of(f"{name} = Record(<t>, <n>)", scope, 2)
            scope.names["n"].append(f"{name}.size")
            scope.names["l"].append(f"{name}.items")
            scope.fixed |= {f"{name}.size", f"{name}.items"}
            return [text]
        if way == "Namespace":
            text = self.of(f"{name} = Namespace(a=<n>)\n{name}.b = <n>\n{name}.a = ({name}.a + {name}.b) % 9", scope, 2)
            scope.names["n"] += [f"{name}.a", f"{name}['b']"]
            scope.fixed |= {f"{name}.a", f"{name}['b']"}
            return text.split("\n")
        lines = [self.of(f"{name} = Color(<n> % 3)", scope, 2)]
        return [*lines, *self.compound(f"if {name} is Color.{self.choose(['RED', 'GREEN'])}:", scope, 2)]

    def do_delete(self, scope: Scope) -> Lines:
        name = self.new("n")
        return [f"{name} = {self.n(scope, 2)}", f"LOG.append({name})", f"del {name}"]

    def do_import(self, scope: Scope) -> Lines:
        name = self.new("t")
        lines = ["import math", self.of(f"{name} = <t> * math.sqrt(<n> % 4)", scope, 2)]
        scope.names["t"].append(name)
        return lines

    def do_class(self, scope: Scope) -> Lines:
        if scope.depth > 0:
            return []
        name = self.new("Local")
        result = self.new("t")
        lines = [
            f"class {name}:",
            f"    by = {self.n(scope, 2)}",
            "    def __call__(self, v):",
            "        return v * self.by",
        ]
        lines.append(f"{result} = {name}()({self.t(scope, 2)})")
        scope.names["t"].append(result)
        return lines


STATEMENTS = [name for name in vars(Writer) if name.startswith("do_")]
# Some are worth more than one in so many.
STATEMENTS += (
    "do_tensor do_tensor do_tensor do_if do_for do_value do_print do_change_list do_closure do_with do_try".split()
)


def _indented(lines: Sequence[str], by: int = 1) -> Lines:
    return ["    " * by + line if line else line for line in lines]


def _pieces(text: str) -> list[str]:
    """The pieces that a text uses, and those that they use."""
    used: set[str] = set()
    while True:
        more = {name for name in PIECES if name not in used and re.search(DEFINES[name], text)}
        if not more:
            return [piece.strip("\n") for name, piece in PIECES.items() if name in used]
        used |= more
        text += "".join(PIECES[name] for name in more)


def _leaves(lines: Sequence[str]) -> bool:
    return lines[-1].strip().split(" ")[0] in ("return", "break", "continue", "raise")


# ---- running ----------------------------------------------------------------------------------------------

REPEATS = 3
"""How often the first call is made again at the end: by then it should come from the cache."""
SECONDS = 20
_numbers = itertools.count(1)


@dataclass
class Run:
    """What the calls of a program did."""

    seen: list[Seen]
    captured: Any = None
    settled: bool = False
    """The last call came from the cache."""


def run(program: Program, capture: Callable[[Any], Any] | None = None, *, repeats: int = REPEATS) -> Run:
    """Execute the program's text afresh and make its calls, through `capture` or as they are."""
    module = types.ModuleType(WRITTEN_HERE)
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = (len(program.source), None, program.source.splitlines(keepends=True), name)
    seen: list[Seen] = []
    results: list[Any] = []
    hits = 0
    try:
        with _fresh_surroundings():
            sys.modules[WRITTEN_HERE] = module  # dataclasses look there
            exec(compile(program.source, name, "exec"), vars(module))
            captured = None if capture is None else capture(module.program)
            call = module.program if captured is None else captured
            for make in [*module.CALLS, *[module.CALLS[0]] * repeats]:
                args, kwargs = make()
                held = {key: value for key, value in vars(module).items() if not key.startswith("__")}
                hits = getattr(captured, "hits", 0)
                seen.append(
                    observe(
                        lambda args=args, kwargs=kwargs: call(*args, **kwargs),  # type: ignore[misc]
                        lambda _, args=args, kwargs=kwargs, held=held: {  # type: ignore[misc]
                            "args": args,
                            "kwargs": kwargs,
                            "globals": {key: getattr(module, key, "gone") for key in held},
                            "earlier results": list(results),
                        },
                    )
                )
                results.append(seen[-1].value)
    finally:
        del linecache.cache[name]
        sys.modules.pop(WRITTEN_HERE, None)
    return Run(seen, captured, getattr(captured, "hits", 0) > hits)


@contextlib.contextmanager
def _fresh_surroundings() -> Iterator[None]:
    before, python = torch.get_rng_state(), random.getstate()
    torch.manual_seed(0)
    random.seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        random.setstate(python)


def disagreement(expected: Run, found: Run) -> str | None:
    """In words, the first thing that a call did otherwise than in eager."""
    for number, (one, other) in enumerate(zip(expected.seen, found.seen, strict=True), 1):
        words = one.differs(other)
        if words:
            return f"call {number}: {words}"
    return None


def compared(program: Program, capture: Callable[[Any], Any], *, repeats: int = REPEATS) -> tuple[str | None, Run, Run]:
    """Run it both ways: what is not the same, in words, and both runs."""
    expected = run(program, repeats=repeats)
    found = run(program, capture, repeats=repeats)
    return disagreement(expected, found), expected, found


@contextlib.contextmanager
def time_limit(seconds: int = SECONDS) -> Iterator[None]:
    """TimeoutError if it takes longer. Only in the main thread."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- making smaller ---------------------------------------------------------------------------------------


def reduced(program: Program, still_fails: Callable[[Program], bool], attempts: int = 600) -> Program:
    """A smaller program of which the same holds: statements dropped, blocks opened, expressions replaced by a part."""
    while attempts > 0:
        for candidate in _smaller(program):
            attempts -= 1
            if attempts < 0:
                break
            if still_fails(candidate):
                program = candidate
                break
        else:
            break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs that are smaller by one step, the largest steps first."""
    tree = ast.parse(program.source)
    steps: list[tuple[int, int, Callable[[ast.AST], None]]] = []
    for number, node in enumerate(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                for index, statement in enumerate(block):
                    weight = sum(1 for _ in ast.walk(statement))
                    if _may_go(statement):
                        steps.append((weight, number, _dropping(name, index)))
                    if isinstance(getattr(statement, "body", None), list) and _may_open(statement):
                        steps.append((weight // 2, number, _opening(name, index)))
        for part, position, value in _expressions(node):
            for inner in _parts(value):
                weight = sum(1 for _ in ast.walk(value)) - sum(1 for _ in ast.walk(inner))
                if weight > 0:
                    steps.append((min(weight, 3), number, _replacing(part, position, inner)))
    for _, number, step in sorted(steps, key=lambda each: -each[0]):
        copied = ast.parse(program.source)
        node = next(itertools.islice(ast.walk(copied), number, None))
        step(node)
        try:
            source = ast.unparse(ast.fix_missing_locations(copied)) + "\n"
            compile(source, "<smaller>", "exec")
        except (SyntaxError, ValueError):
            continue
        yield Program(source)


def _may_go(statement: ast.AST) -> bool:
    if isinstance(statement, ast.FunctionDef) and statement.name.startswith("arguments_"):
        return False
    return not isinstance(statement, ast.Pass)


def _may_open(statement: ast.AST) -> bool:
    return not isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.match_case, ast.ExceptHandler))


def _dropping(name: str, index: int) -> Callable[[Any], None]:
    def step(node: Any) -> None:
        block = getattr(node, name)
        del block[index]
        if not block and name == "body":
            block.append(ast.Pass())

    return step


def _opening(name: str, index: int) -> Callable[[Any], None]:
    def step(node: Any) -> None:
        block = getattr(node, name)
        block[index : index + 1] = block[index].body

    return step


def _replacing(name: str, position: int | None, inner: ast.expr) -> Callable[[Any], None]:
    def step(node: Any) -> None:
        if position is None:
            setattr(node, name, inner)
        else:
            getattr(node, name)[position] = inner

    return step


def _expressions(node: ast.AST) -> Iterator[tuple[str, int | None, ast.expr]]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            yield name, None, value
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, ast.expr):
                    yield name, index, each


OPENED = (ast.BinOp, ast.Call, ast.IfExp, ast.BoolOp, ast.Subscript, ast.UnaryOp, ast.Compare, ast.Tuple)


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be replaced by: one of its own parts, or a constant."""
    if isinstance(
        value, (ast.BinOp, ast.Call, ast.IfExp, ast.BoolOp, ast.Subscript, ast.UnaryOp, ast.Compare, ast.Tuple)
    ):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store):
                yield child
    if isinstance(value, ast.Tuple) and len(value.elts) > 1 and isinstance(value.ctx, ast.Load):
        for index in range(len(value.elts)):
            yield ast.Tuple([each for i, each in enumerate(value.elts) if i != index], ast.Load())
    if not isinstance(value, (ast.Constant, ast.Name, ast.Tuple)):
        yield ast.Constant(True)

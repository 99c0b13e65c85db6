"""Programs that read the outside in every way there is, for changing it under them.

`PROGRAMS` names makers; each gives a `Subject`: a program with its arguments, made afresh.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from frontend_changes import Subject

SCALE = 1.5
OPTIONS: dict[str, Any] = {"shift": 0.25, "clip": None, "order": ["one", "two"]}
STAGES = ["norm", "scale"]
KNOWN = {"relu", "tanh"}


class Way(enum.Enum):
    RELU = "relu"
    TANH = "tanh"


class Bounds(NamedTuple):
    low: float
    high: float


@dataclasses.dataclass
class Settings:
    bounds: Bounds
    repeats: int = 2
    names: tuple[str, ...] = ("a", "b")
    weights: dict[str, float] = dataclasses.field(default_factory=lambda: {"a": 0.5, "b": 2.0})


class Slotted:
    __slots__ = ("by", "table")

    def __init__(self) -> None:
        self.by = 2
        self.table = {"k": 3}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by + self.table["k"]


class Doubling:
    """A descriptor that gives twice what it was given."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return getattr(owner, self.name) * 2

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner, self.name, value)


class Scaler:
    power = 2
    seen: list[int] = []  # noqa: RUF012 - one for all of them is the point
    doubled = Doubling()

    def __init__(self) -> None:
        self.offset = 1
        self.doubled = 3

    @property
    def reach(self) -> int:
        return self.offset + self.power

    @classmethod
    def raised(cls, x: torch.Tensor) -> torch.Tensor:
        return x**cls.power

    @staticmethod
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.halved(self.raised(x)) * self.reach + self.doubled

    def __len__(self) -> int:
        return self.offset + 2

    def __getitem__(self, index: int) -> int:
        return index + self.offset

    def __contains__(self, item: int) -> bool:
        return item == self.offset

    def __bool__(self) -> bool:
        return self.offset > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and self.offset == other.offset

    __hash__ = None  # type: ignore[assignment]


class Steeper(Scaler):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return super().scale(x) + 1

    def __getattr__(self, name: str) -> int:
        if name == "computed":
            return self.offset * 10
        raise AttributeError(name)


def helper(x: torch.Tensor, by: float = 2.0, *, shift: float = 0.5) -> torch.Tensor:
    return x * by + shift


def stepped(n: int) -> Any:
    for each in range(n):
        yield each + OPTIONS["shift"]


def adding(amount: float) -> Callable[[torch.Tensor], torch.Tensor]:
    count = 3

    def add(x: torch.Tensor, more: float = 1.0) -> torch.Tensor:
        return x + amount * count + more

    return add


class Block(nn.Module):
    def __init__(self, size: int, drop: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.drop = nn.Dropout(drop)
        self.gain = nn.Parameter(torch.ones(size))
        self.register_buffer("offset", torch.full((size,), 0.1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.residual = True
        self.way = Way.RELU
        self.limits = [-2.0, 2.0]

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = self.inner(x)
        y = F.relu(y) if self.way is Way.RELU else y.tanh()
        y = self.norm(y) * self.gain * scale + self.offset
        y = y.clamp(*self.limits)
        y = self.drop(y)
        return x + y if self.residual else y


class Mlp(nn.Module):
    """Layers in lists, dicts and attributes; settings in objects, containers and globals."""

    activations: dict[str, Any] = {"relu": torch.relu, "tanh": torch.tanh}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(4), Block(4, drop=0.5)])
        self.heads = nn.ModuleDict({"main": nn.Linear(4, 3), "other": nn.Linear(4, 3, bias=False)})
        self.scales = nn.ParameterList([torch.ones(3), torch.full((3,), 2.0)])
        self.stack = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), act=nn.GELU(), last=nn.Linear(3, 2)))
        self.active = "relu"
        self.count = 2
        self.rates = (0.5, 2.0)
        self.table = {"main": 1.0, "other": 0.5}
        self.kept: set[str] = {"main", "other"}
        self.queue = deque([1, 2, 3], maxlen=4)
        self.settings = Settings(Bounds(-1.0, 1.0))
        self.scaler = Steeper()
        self.add = adding(0.5)
        self.part = functools.partial(helper, by=3.0)
        self.nothing = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> dict[str, Any]:
        for number, layer in enumerate(self.layers):
            x = layer(x, scale=self.rates[number % len(self.rates)])
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        x = self.activations[self.active](x) * SCALE
        if self.nothing is None and self.active in KNOWN:
            x = self.add(x) + sum(self.queue)
        outputs = {}
        for name, head in self.heads.items():
            if name in self.kept:
                outputs[name] = head(x) * self.table[name]
        total = functools.reduce(torch.add, outputs.values())
        for each in self.scales:
            total = total * each
        total = self.stack(total.clamp(*self.settings.bounds)) * scale
        for name in self.settings.names[: self.count]:
            total = total * self.settings.weights[name]
        return {"total": self.part(self.scaler.scale(total)), "count": self.count, **outputs}


Maker = Callable[[], Subject]
PROGRAMS: dict[str, Maker] = {}


def program(maker: Maker) -> Maker:
    PROGRAMS[maker.__name__.replace("_", " ")] = maker
    return maker


@program
def an_mlp() -> Subject:
    return Subject(Mlp(), [torch.randn(2, 4)], {"mask": torch.tensor([[True, False, False, False]] * 2), "scale": 2.0})


@program
def an_mlp_in_evaluation() -> Subject:
    model = Mlp().eval()
    model.layers[0].register_forward_hook(lambda module, args, result: result * 1.5)
    model.requires_grad_(False)
    return Subject(model, [torch.randn(2, 4)])


@program
def a_module_with_buffers() -> Subject:
    """Normalising in training changes buffers; so does a counter."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.sum().detach()
            self.seen.clamp_(-3, 3)
            self.calls = (self.calls + 1) % 3
            return self.norm(x) + self.calls

    return Subject(Counts(), [torch.randn(4, 3)])


@program
def globals_and_builtins() -> Subject:
    def fn(x: torch.Tensor) -> Any:
        y = helper(x) * SCALE
        for stage in STAGES:
            y = y + 1 if stage == "norm" else y * len(stage)
        if OPTIONS["clip"] is not None:
            y = y.clamp(-OPTIONS["clip"], OPTIONS["clip"])
        y = y + OPTIONS["shift"] + max(1, int(SCALE)) + sum(stepped(2))
        return y, sorted(KNOWN), list(OPTIONS), isinstance(y, torch.Tensor), abs(-3)

    return Subject(fn, [torch.randn(3)])


@program
def closures() -> Subject:
    scale, table, nothing = 2.0, {"a": torch.ones(2), "b": 3}, None
    steps = [adding(1.0), adding(2.0)]
    count = 1

    def inner(x: torch.Tensor, by: float = 1.5, *, names: tuple[str, ...] = ("a", "b")) -> torch.Tensor:
        for name in names:
            x = x * by + table[name]
        return x

    def fn(x: torch.Tensor) -> Any:
        nonlocal count
        count = 3 - count
        for step in steps:
            x = step(x)
        if nothing is None:
            x = x * scale
        made = [lambda t, each=each: t + each for each in range(count)]
        return inner(x), [each(x) for each in made], count

    return Subject(fn, [torch.randn(2)])


@program
def an_object() -> Subject:
    scaler, other = Steeper(), Steeper()
    slotted = Slotted()

    def fn(x: torch.Tensor) -> Any:
        y = scaler.scale(x) + scaler.computed + scaler[2]
        if scaler == other and 1 in scaler and scaler:
            y = slotted(y)
        return y * len(scaler), scaler.reach, getattr(scaler, "missing", 5), hasattr(other, "extra")

    return Subject(fn, [torch.randn(3)])


@program
def containers() -> Subject:
    held: dict[str, Any] = {
        "list": [1, 2.5, torch.ones(2)],
        "nested": {"deep": [{"x": 1}, (1, [2, 3])]},
        "set": {1, 2, 3},
        "deque": deque([1, 2, 3]),
        "ordered": OrderedDict(a=1, b=2),
        "default": collections.defaultdict(int, {"a": 1}),
        "counter": collections.Counter("aab"),
        "bounds": Bounds(0.0, 1.0),
        "frozen": frozenset({"a", 1}),
    }

    def fn(x: torch.Tensor, more: list[Any]) -> Any:
        first, second, third = held["list"]
        y = x * first + second + third
        deep = held["nested"]["deep"]
        y = y * deep[0]["x"] + sum(deep[1][1])
        y = y + len(held["set"]) + (2 in held["set"]) + held["deque"][-1] + held["deque"].count(2)
        for key, value in held["ordered"].items():
            y = y + value * len(key)
        y = y.clamp(*held["bounds"]) + held["default"]["a"] + held["counter"]["a"] + ("a" in held["frozen"])
        for each in more:
            y = y * each if isinstance(each, float) else y + each
        return y, [*more, y], {**held["nested"]}, more[::-1], more.index(2)

    return Subject(fn, [torch.randn(2), [2, 0.5]])


@program
def changed_containers() -> Subject:
    log: list[Any] = []
    table: dict[str, Any] = {"calls": 0, "last": None}

    def fn(x: torch.Tensor, names: list[str]) -> Any:
        log.append(x.sum())
        if len(log) > 3:
            log.clear()
        table["last"] = x * 2
        table.setdefault("first", x)
        names.sort()
        return x + len(names), log, table["last"]

    return Subject(fn, [torch.randn(2), ["b", "a", "c"]], outside=[log, table])


@program
def tensors() -> Subject:
    weight = torch.randn(4, 3, requires_grad=True)
    table = torch.randn(5, 3)

    def fn(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, flag: bool = True) -> Any:
        h = x @ weight + y
        if x.requires_grad and torch.is_grad_enabled():
            h = h * 2
        if x.is_contiguous() and x.dtype is torch.float32 and x.stride(0) > 1:
            h = h + x.shape[0]
        h = h + table[index].to(h.dtype) if flag else h
        y.mul_(1.5)
        return h, h.numel(), x.dtype, h.T, torch.empty(0).dtype, y is x

    return Subject(fn, [torch.randn(2, 4), torch.randn(2, 3), torch.tensor([0, 3])])


@program
def modes() -> Subject:
    layer = nn.Linear(3, 3)

    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = layer(x)
        z = layer(x) * y
        if torch.is_grad_enabled():
            z = z + 1
        if torch.is_autocast_enabled("cpu"):
            z = z * 2
        return z, torch.ones(2), torch.get_default_dtype(), z.requires_grad, torch.rand(2)

    return Subject(fn, [torch.randn(2, 3)])


@program
def a_break_in_the_middle() -> Subject:
    scale = {"by": 2.0}

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.loud = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            if self.loud:
                print("so far", tuple(y.shape))
            return y * scale["by"]

    inner = Inner()

    def fn(x: torch.Tensor) -> Any:
        out = []
        for number in range(2):
            x = inner(x) + number
            out.append(x)
        if x.sum() > 0:
            return out, SCALE
        return out, -SCALE

    return Subject(fn, [torch.randn(2, 3)])


@program
def errors() -> Subject:
    limit = {"most": 3}

    class TooMany(ValueError):
        pass

    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > limit["most"]:
            raise TooMany(x.shape[0])
        return x + 1

    def fn(x: torch.Tensor, names: dict[str, int]) -> Any:
        try:
            y = checked(x)
        except TooMany as error:
            return error.args, names["late"]
        try:
            return y * names["missing"]
        except KeyError:
            y = y + len(names)
        finally:
            limit["most"] = 4
        return y @ torch.ones(x.shape[-1])

    return Subject(fn, [torch.randn(2, 3), {"late": 1}])

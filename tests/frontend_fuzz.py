"""What a call did, bit for bit; and whether a captured program still does it when something else has changed.

`describe` turns whatever is reachable from a value into lines of text, equal if and only if the states are. `Memory`
puts a state back. `perturbations` (see `frontend_perturbations.py`) walks over what a call reads (modules, attributes,
containers, functions, classes, the arguments, torch's own settings) and offers every change that it can think of.
`fuzz` makes these changes under a captured program that has settled, and looks whether it still does what the program
itself does, with the change and after it was taken back.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import io
import random
import re
import signal
import sys
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from frontend_changes import Change, Impossible, Name, Subject, attributes_of, is_a, is_ours, keep, slots_of
from frontend_perturbations import perturbations, sampled, watch

# ---- what a state is --------------------------------------------------------------------------------------

PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis))
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, types.BuiltinFunctionType, types.ModuleType)
WRITTEN_HERE = "program"
"""The module of generated programs. Its functions and classes, and those of other modules of ours (`is_ours`), are
described with what they hold; others by name alone."""

Lines = list[tuple[str, str]]


def describe(value: Any, name: str = "") -> Lines:
    """Lines (path, what is there). Objects that are met twice are said to be the same, and so are storages."""
    return _Describer().run(value, name)


def first_difference(expected: Lines, found: Lines) -> str | None:
    """In words, where two descriptions part; None if they are the same."""
    if expected == found:
        return None
    for (path, one), (other_path, other) in zip(expected, found, strict=False):
        if (path, one) != (other_path, other):
            return f"{path}: {one}  !=  {other}" if path == other_path else f"{path}: {one}  !=  {other_path}: {other}"
    extra, whose = (expected, "eager") if len(expected) > len(found) else (found, "ours")
    path, text = extra[min(len(expected), len(found))]
    return f"{path}: {text} only in {whose}"


class _Describer:
    def __init__(self) -> None:
        self.lines: Lines = []
        self.seen: dict[int, str] = {}
        self.storages: dict[int, int] = {}
        self.kept: list[Any] = []  # an id is good only while its object lives

    def run(self, value: Any, name: str) -> Lines:
        todo = [(name, value)]
        while todo:
            path, each = todo.pop()
            inside = self.one(path, each)
            todo.extend(reversed([(path + step, held) for step, held in inside]))
        return self.lines

    def one(self, path: str, value: Any) -> list[tuple[str, Any]]:
        kind = type(value)
        if kind in PLAIN or is_a(value, enum.Enum):
            self.lines.append((path, f"{kind.__name__} {value!r}"))
            return []
        if is_a(value, NAMED) or kind is torch.Size:
            self.lines.append((path, _without_addresses(repr(value))))
            return []
        if kind is not tuple:  # which tuple it is cannot matter
            if id(value) in self.seen:
                self.lines.append((path, f"the same as {self.seen[id(value)]}"))
                return []
            self.seen[id(value)] = path
            self.kept.append(value)
        if is_a(value, torch.Tensor):
            return self.tensor(path, value)
        if is_a(value, type):
            return self.holder(path, value, f"class {value.__qualname__}", value.__module__)
        if is_a(value, types.FunctionType):
            return self.function(path, value)
        if is_a(value, (list, tuple, deque)):
            self.lines.append((path, f"{kind.__name__} of {len(value)}"))
            return [(f"[{i}]", each) for i, each in enumerate(value)]
        if is_a(value, (set, frozenset)):
            self.lines.append((path, f"{kind.__name__} {sorted(map(repr, value))}"))
            return []
        if is_a(value, (dict, types.MappingProxyType)):
            self.lines.append((path, f"{kind.__name__} of {len(value)}"))
            inside = [(f"[{key!r}]", each) for key, each in value.items()]
            return inside + self.attributes(value)
        if is_a(value, types.MethodType):
            self.lines.append((path, f"method {value.__func__.__qualname__}"))
            return [(".__self__", value.__self__)]
        if is_a(value, BaseException):
            self.lines.append((path, f"{kind.__name__}{value.args!r}"))
            return []
        self.lines.append(
            (path, kind.__qualname__ if attributes_of(value) is not None else f"{kind.__qualname__} object")
        )
        return self.attributes(value)

    def attributes(self, value: Any) -> list[tuple[str, Any]]:
        slots = [(f".{name}", object.__getattribute__(value, name)) for name in slots_of(value)]
        held = attributes_of(value) or {}
        return slots + [(f".{name}", each) for name, each in held.items() if _is_state(name)]

    def tensor(self, path: str, value: torch.Tensor) -> list[tuple[str, Any]]:
        words = [type(value).__name__, str(value.dtype).removeprefix("torch."), str(list(value.shape))]
        if value.layout is torch.strided and value.device.type == "cpu":
            number = self.storages.setdefault(value.untyped_storage()._cdata, len(self.storages))
            words.append(f"strides {list(value.stride())} at {value.storage_offset()} of storage {number}")
            words.append(_bits(value))
        words.append("requires grad" if value.requires_grad else "no grad")
        words.append("leaf" if value.is_leaf else "not a leaf")
        self.lines.append((path, " ".join(words)))
        inside = [(".grad", value.grad)] if value.is_leaf and value.grad is not None else []
        return inside + [(f".{key}", each) for key, each in vars(value).items()]

    def function(self, path: str, value: types.FunctionType) -> list[tuple[str, Any]]:
        self.lines.append((path, f"function {value.__qualname__}"))
        if not is_ours(value.__module__):
            return []
        cells = [
            (f".{name}", cell.cell_contents if _is_full(cell) else "an empty cell")
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        ]
        held = [(".__defaults__", value.__defaults__), (".__kwdefaults__", value.__kwdefaults__)]
        return held + cells + self.attributes(value)

    def holder(self, path: str, value: Any, words: str, module: str) -> list[tuple[str, Any]]:
        self.lines.append((path, words))
        if not is_ours(module):
            return []
        return [(f".{name}", each) for name, each in vars(value).items() if _is_state(name) and _is_plain(each)]


def _is_state(name: str) -> bool:
    return not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl"


def _is_plain(value: Any) -> bool:
    """Whether an attribute of a class is state, and no part of how it works."""
    return not callable(value) and not isinstance(
        value, (property, classmethod, staticmethod, types.MemberDescriptorType)
    )


def _is_full(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _bits(value: torch.Tensor) -> str:
    plain = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    first = ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in plain.flatten()[:3].tolist())
    return f"({first}{', …' if plain.numel() > 3 else ''}) {hashlib.blake2b(data, digest_size=6).hexdigest()}"


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


# ---- what a call did --------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What one call returned or raised, printed, and left behind."""

    raised: str | None
    message: str
    printed: str
    after: Lines
    value: Any = None
    """What was returned."""

    @property
    def effect(self) -> Any:
        """What it did, whatever it was done with: not what the world looks like around it."""
        return self.raised, self.printed, [each for each in self.after if each[0].startswith(("['result']", "['grad"))]

    def differs(self, other: Seen, *, messages: bool = True) -> str | None:
        """In words, how the other call was not the same; with or without what the exceptions say."""
        if self.raised != other.raised:
            return f"raises {self.raised or 'nothing'}  !=  {other.raised or 'nothing'}: {other.message[:200]}"
        if messages and self.message != other.message:
            return f"{self.raised} says {self.message!r}  !=  {other.message!r}"
        if self.printed != other.printed:
            return f"prints {self.printed!r}  !=  {other.printed!r}"
        return first_difference(self.after, other.after)


def observe(call: Callable[[], Any], state: Callable[[Any], Any], *, backward: bool = True) -> Seen:
    """Make the call. `state` says, given the result, what to describe: the result itself is described in any case.

    Where the result has gradients to give, what they are is looked at as well, without leaving them anywhere.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, raised, message, handled = next(_attempt(call))
    if isinstance(result, types.GeneratorType):
        result = list(result)
    held = {"result": result, **state(result), "surroundings": surroundings() | {"handled": handled}}
    if backward:
        held["gradients"] = gradients(held)
    return Seen(raised, message, printed.getvalue(), describe(held), result)


def _attempt(call: Callable[[], Any]) -> Iterator[tuple[Any, str | None, str, str]]:
    """What is returned, what is raised, what that says, and which exception is said to be handled afterwards.

    A generator has a place of its own for the last of these: what a call leaves there does not reach the next one.
    """
    result, raised, message = None, None, ""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - whatever the program raises
        raised, message = _chain(error), _without_addresses(repr(error.args))
    yield result, raised, message, type(sys.exc_info()[1]).__name__


def _chain(error: BaseException | None) -> str:
    """The types of an exception and of those that it came from."""
    names = []
    while error is not None and len(names) < 5:
        names.append(type(error).__name__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " from ".join(names)


def surroundings() -> dict[str, Any]:
    """The state that every program shares."""
    return {
        "torch.random": torch.get_rng_state().clone(),
        "random": hash(random.getstate()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "profile and trace": (sys.getprofile() is None, sys.gettrace() is None),
    }


def gradients(held: dict[str, Any]) -> list[torch.Tensor | None]:
    """Of the sum of the results, for every leaf that is in sight."""
    results = [each for each in tensors_in(held["result"]) if each.requires_grad and each.is_floating_point()]
    leaves = [each for each in tensors_in(held) if each.requires_grad and each.is_leaf]
    results = [each for each in results if not each.is_leaf]
    if not results or not leaves or torch.is_inference_mode_enabled():
        return []
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            total = sum((each.sum() for each in results), torch.zeros((), dtype=results[0].dtype))
            return list(torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True))
        except RuntimeError as error:  # e.g. something that backward needs was changed in place
            return [str(error)]  # type: ignore[list-item]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor that can be reached through containers and attributes, each once, in a fixed order."""
    return [each for each in reachable([value]) if is_a(each, torch.Tensor)]


def reachable(roots: Sequence[Any]) -> list[Any]:
    """The objects that hold something or have a content, in the order in which they are met."""
    seen: set[int] = set()
    found: list[Any] = []
    todo = deque(roots)
    while todo:
        value = todo.popleft()
        if is_a(value, (*PLAIN, *NAMED, enum.Enum, enum.EnumMeta)) or id(value) in seen:
            continue
        if is_a(value, type) and not is_ours(value.__module__):
            continue
        seen.add(id(value))
        found.append(value)
        if is_ours(type(value).__module__):
            todo.append(type(value))
        if is_a(value, type):
            todo.extend(each for name, each in vars(value).items() if _is_state(name) and _is_plain(each))
        elif is_a(value, (list, tuple, set, frozenset, deque)):
            todo.extend(value)
        elif is_a(value, dict):
            todo.extend(value.values())
        elif is_a(value, types.CellType):
            todo.extend([value.cell_contents] if _is_full(value) else [])
        elif is_a(value, types.FunctionType):
            todo.extend([value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__])
        elif is_a(value, types.MethodType):
            todo.extend([value.__self__, value.__func__])
        else:
            todo.append(attributes_of(value))
        todo.extend(object.__getattribute__(value, name) for name in slots_of(value))
    return found


class Memory:
    """The content of everything that can be changed and is reachable from some objects, to be put back later."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._objects = reachable(roots)
        self._put_back = [keep(each) for each in self._objects]

    def restore(self) -> None:
        for put_back in self._put_back:
            put_back()


# ---- changes under a captured program -----------------------------------------------------------------------

CALLS = 3
"""A recording, a call from the cache, and one more: by then a program has settled, if it does."""
MOST_SECONDS = 2.0
"""A changed program that takes longer has no end."""
TOGETHER = 24
"""So many changes are made under one captured program; then it is captured anew."""


WITH_IT = "with the change"


@dataclass
class Finding:
    """A change after which the captured program did not do what the program does."""

    change: Change
    when: str
    words: str
    stale: bool
    """A program that is captured anew does it right: a guard is missing. Otherwise it is recorded wrongly."""
    earlier: Change | None = None
    """The change under which was recorded what the cache then gave, if that was not the first recording."""

    def __str__(self) -> str:
        kind = "stale" if self.stale else "wrong"
        earlier = f" (from the cache since: {self.earlier})" if self.earlier is not None else ""
        return f"{kind}, {self.when}: {self.change}{earlier}\n        {self.words}"


@dataclass
class Fuzzed:
    """What came of changing everything under a program."""

    changes: int = 0
    different: int = 0
    """After so many of them the program did something else than before."""
    raised: int = 0
    hits: int = 0
    """After so many of them were taken back, the next call came from the cache."""
    unclear: int = 0
    """The program itself did not do the same twice: nothing can be said."""
    found: list[Finding] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    """Changes for which no guard was named, although the cache was not used."""
    crashes: list[str] = field(default_factory=list)
    settled: bool = False
    why_not: str = ""
    """Why nothing was changed at all."""
    seconds: float = 0.0

    @property
    def stale(self) -> list[Finding]:
        return [each for each in self.found if each.stale]

    @property
    def wrong(self) -> list[Finding]:
        return [each for each in self.found if not each.stale]


def fuzz(
    subject: Subject,
    capturing: Callable[[Any], Any],
    *,
    most: int | None = None,
    seed: int = 0,
    only: str = "",
) -> Fuzzed:
    """Changes one thing after the other (at most so many; `only` those whose words hold this) and compares."""
    began = time.perf_counter()
    fuzzer = _Fuzzer(subject, capturing)
    found = fuzzer.found
    if fuzzer.is_repeatable():
        changes = [each for each in perturbations(subject, fuzzer.watched) if only in str(each)]
        fuzzer.run(sampled(changes, most, seed))
    found.seconds = time.perf_counter() - began
    return found


class _Fuzzer:
    def __init__(self, subject: Subject, capturing: Callable[[Any], Any]) -> None:
        self.subject = subject
        self.capturing = capturing
        self.found = Fuzzed()
        self.globals: list[tuple[dict[str, Any], str]] = []
        """Those of ours that are read in a call: namespace and name."""
        self.memory = Memory(self.roots())
        self.observe(subject.program)  # at its first call a program may import, and what not
        with _seeded(subject), contextlib.redirect_stdout(io.StringIO()):
            self.watched = watch(subject)
        self.memory.restore()
        self.globals = [(names, name) for names, name in self.watched.globals if is_ours(names.get("__name__"))]
        self.memory = Memory(self.roots())

    def roots(self) -> list[Any]:
        subject = self.subject
        held = [names.get(name) for names, name in self.globals]
        return [subject.program, subject.args, subject.kwargs, subject.outside, *held]

    def state(self, _: Any) -> dict[str, Any]:
        subject = self.subject
        held = {name: names.get(name, "gone") for names, name in self.globals}
        return {
            "args": subject.args, "kwargs": subject.kwargs, "program": subject.program, "outside": subject.outside,
            "globals": held,
        }  # fmt: skip

    def observe(self, program: Callable[..., Any], memory: Memory | None = None) -> Seen:
        """One call, on the same random numbers as any other, after which everything is as before."""
        put_back = [keep(Name(names, name)) for names, name in self.globals]
        with _seeded(self.subject):
            seen = observe(lambda: self.subject.call(program), self.state)
        for each in put_back:
            each()
        (memory or self.memory).restore()
        seen.value = None
        return seen

    def is_repeatable(self) -> bool:
        """Whether the program does the same twice, when everything was put back."""
        self.before = self.observe(self.subject.program)
        words = self.before.differs(self.observe(self.subject.program))
        if words:
            self.found.why_not = f"it does not do the same twice: {words}"
        return not words

    def settle(self) -> Any:
        captured = self.capturing(self.subject.program)
        hits = 0
        for number in range(CALLS):
            hits = getattr(captured, "hits", 0)
            words = self.before.differs(self.observe(captured), messages=False)
            if words:
                self.found.why_not = f"call {number + 1} is wrong without any change: {words}"
                return None
        self.found.settled = getattr(captured, "hits", 0) > hits
        return captured

    def run(self, changes: list[Change]) -> None:
        captured: Any = None
        together: list[Change] = []
        for change in changes:
            if captured is None or len(together) == TOGETHER:
                self.notice_crashes(captured)
                captured, together = self.settle(), []
                if captured is None:
                    return
            finding = self.one(change, captured)
            if finding is None:
                together.append(change)
                continue
            self.found.found.append(finding)
            captured = None
            if finding.stale and finding.when == WITH_IT:
                finding.earlier = self.culprit(change, together)
        self.notice_crashes(captured)

    def culprit(self, change: Change, together: list[Change]) -> Change | None:
        """Which of the changes before left in the cache what this one gets wrongly."""
        for earlier in [None, *together]:
            captured = self.settle()
            with contextlib.suppress(Impossible):
                if captured is not None and earlier is not None:
                    with earlier.made():
                        self.observe(captured, Memory(self.roots()))
                with change.made():
                    memory = Memory(self.roots())
                    expected = self.observe(self.subject.program, memory)
                    if expected.differs(self.observe(captured, memory), messages=False):
                        return earlier
        return None

    def one(self, change: Change, captured: Any) -> Finding | None:
        """Makes a change and takes it back."""
        try:
            with change.made():
                words, stale = self.compare(change, captured)
        except Impossible:
            return None
        self.found.changes += 1
        when = WITH_IT
        if not words:
            when = "after it was taken back"
            hits = getattr(captured, "hits", 0)
            words, stale = self.before.differs(self.observe(captured), messages=False), True
            if words:
                again = self.observe(self.subject.program)
                if self.before.differs(again, messages=False):
                    raise RuntimeError(f"taking back did not: {change}: {self.before.differs(again)}")
            self.found.hits += getattr(captured, "hits", 0) > hits
        return Finding(change, when, words, stale) if words else None

    def compare(self, change: Change, captured: Any) -> tuple[str | None, bool]:
        """With a change made: what is not the same in words, and whether the cache is to blame."""
        memory = Memory(self.roots())
        with _ends_in_time() as endless:
            expected = self.observe(self.subject.program, memory)
        if endless:
            raise Impossible
        self.found.different += expected.effect != self.before.effect
        self.found.raised += expected.raised is not None
        misses = len(getattr(captured, "misses", ()))
        words = expected.differs(self.observe(captured, memory), messages=False)
        for miss in getattr(captured, "misses", ())[misses:]:
            if miss.guard == "all guards hold":
                self.found.unexplained.append(str(change))
        if not words:
            return None, False
        if expected.differs(self.observe(self.subject.program, memory), messages=False):
            self.found.unclear += 1
            return None, False
        anew = expected.differs(self.observe(self.capturing(self.subject.program), memory), messages=False)
        return words, anew is None

    def notice_crashes(self, captured: Any) -> None:
        for crash in getattr(captured, "crashes", ()):
            words = f"{type(crash.error).__name__}: {crash.error}"
            if words not in self.found.crashes:
                self.found.crashes.append(words)


@contextlib.contextmanager
def _ends_in_time() -> Iterator[list[Any]]:
    """What runs inside is stopped after a while, again and again until it has stopped; then there is something in what
    is given: an iterator that was changed may have no end."""
    stopped: list[Any] = []

    def stop(*_: Any) -> None:
        stopped.append(True)
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS, 0.5)
    try:
        yield stopped
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _seeded(subject: Subject) -> Iterator[None]:
    before, python = torch.get_rng_state(), random.getstate()
    torch.manual_seed(subject.seed)
    random.seed(subject.seed)
    np.random.seed(subject.seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        random.setstate(python)

"""A script, run with a function of its captured, and everything written down that keeps it from being one graph.

    survey = survey_script(Script.parse("train.py:step"), limit=4)
    survey.functions[0].findings           its graph breaks: where, why, and what to change
    survey.functions[0].misses             which guards did not hold, so that it was recorded again
    survey.functions[0].opinion            what Dynamo says of the same call

The script's own calls are made by our front end, on the script's own arguments, and the script goes on with what they
return: that is what eager would return. Dynamo is asked after the first of these calls, on copies (`second_opinion`).
Objects of one class whose method was named are captured each by itself, and told together.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Final

import torch

from torchsleuth.errors import SleuthError, in_words
from torchsleuth.frontend.advising import advice_for_break, advice_for_miss
from torchsleuth.frontend.breaks import GraphBreak, Place
from torchsleuth.frontend.bytecode import require_known_python
from torchsleuth.frontend.capturing import Captured
from torchsleuth.frontend.records import Crash
from torchsleuth.frontend.scripts import Call, Ended, Enough, Script
from torchsleuth.frontend.second_opinion import Objection, Opinion, Question, operations_in, prepare

CALLS: Final = 4
"""So many calls of a function are looked at, unless somebody says otherwise: the later ones may not fit the first."""
MOST_OBJECTS: Final = 16
"""So many objects whose method was named are looked at."""

_NUMBERS: Final = re.compile(r"\b(expected|actual) \S+")
"""What differs from call to call in the words on a tensor."""
_OWN: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY: Final = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED: Final = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


@dataclass(frozen=True)
class Finding:
    """A graph break."""

    number: int
    reason: str
    advice: str
    """What to change. There is always something."""
    natively: bool
    """Whatever is left of the call runs natively."""
    place: Place
    """Where the graph breaks: it may be in a library."""
    home: Place
    """The line to look at: the innermost one that is neither torch's nor Python's."""
    stack: tuple[Place, ...]
    """How it got there, outermost first."""
    objections: tuple[Objection, ...] = ()
    """What Dynamo has against the same line."""


@dataclass(frozen=True)
class Miss:
    """A guard that did not hold in later calls: each time something was recorded again."""

    guard: str
    found: str
    """What was found instead, the first time."""
    advice: str
    calls: tuple[int, ...]
    """In which calls, counted from 1."""


@dataclass(frozen=True)
class Failure:
    """A fault of our own translator. The call went on natively."""

    words: str
    place: Place | None
    record: str | None = None
    """Where the record is, from which it can be made to fail again."""


@dataclass(frozen=True)
class Surveyed:
    """What is known of one function."""

    name: str
    calls: int
    """How often the script called it, as far as it was run."""
    looked_at: int
    objects: int
    """How many objects' method it is, if it is a method."""
    graphs: tuple[int, ...]
    """How many operations each graph of the first call has."""
    all_graphs: int
    hits: int
    """Calls that recorded nothing."""
    recordings: int
    natives: int
    """Calls, or ends of calls, that ran natively since a limit was reached or a mode of torch was on."""
    findings: tuple[Finding, ...]
    misses: tuple[Miss, ...]
    uncacheable: dict[str, int]
    """Why recordings could not be kept, and how often."""
    failures: tuple[Failure, ...]
    opinion: Opinion | None
    """What Dynamo says. None: it was not asked."""
    dynamo_alone: tuple[Objection, ...]
    """What only Dynamo has something against."""

    @property
    def breaks(self) -> bool:
        """Whether its graph breaks, as we see it or as Dynamo does."""
        return bool(self.findings or self.dynamo_alone)

    @property
    def settled(self) -> bool:
        """Whether a call like those that were seen would run from what is recorded."""
        return not (self.misses or self.uncacheable or self.natives or self.failures)


@dataclass(frozen=True)
class Survey:
    """What is known of a script."""

    script: Script
    ended: Ended
    stopped: bool
    """We have stopped the script: there was nothing more to be known."""
    functions: tuple[Surveyed, ...]


class Progress:
    """Hears how far a survey is: what is known may be all that ever will, if the script ends its process."""

    def begins(self, call: str) -> None:
        """A call is about to be looked at: `call 2 of step`."""

    def knows(self, functions: tuple[Surveyed, ...]) -> None:
        """It has come to its end, and so much is known by now."""


def survey_script(
    script: Script,
    *,
    limit: int = CALLS,
    dynamo: bool = True,
    told: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> Survey:
    """Run a script, and look at the first `limit` calls of each function that it names or compiles.

    A script with a named function is stopped as soon as all has been looked at. One without runs to its end, since
    it may compile something yet; `told` hears when it goes on natively. Raises a `SleuthError` if there is nothing to
    look at, or if this Python's bytecode is not known.
    """
    require_known_python()
    if dynamo:
        prepare()
    surveyor = _Surveyor(limit, dynamo, told, progress or Progress(), stop=bool(script.function))
    ended = script.run(surveyor)
    if surveyor.refused is not None:
        raise surveyor.refused
    return Survey(script, ended, surveyor.stopped, surveyor.functions())


class _Surveyor:
    """Gets the calls of a script, makes them, and keeps what is captured."""

    def __init__(
        self, limit: int, dynamo: bool, told: Callable[[str], None], progress: Progress, *, stop: bool
    ) -> None:
        self.groups: dict[str, _Group] = {}
        self.stopped = False
        self.refused: SleuthError | None = None
        """What cannot be captured at all. The script must not handle that."""
        self._limit = limit
        self._dynamo = dynamo
        self._told = told
        self._progress = progress
        self._stop = stop

    def functions(self) -> tuple[Surveyed, ...]:
        """What is known by now."""
        return tuple(group.surveyed() for group in self.groups.values() if group.is_known)

    def __call__(self, call: Call) -> Any:
        group = self.groups.setdefault(call.name, _Group(call.name))
        group.calls += 1
        try:
            one = group.one(call)
        except SleuthError as refused:
            self.refused = refused
            raise Enough from refused
        if one is None or one.looked_at >= self._limit:
            self._tell(group)
            return call.go()
        self._progress.begins(f"call {group.calls} of {group.name}")
        asking = self._dynamo and group.opinion is None
        question = Question.of(call) if asking else None
        group.opinion = Opinion(failure="the call was not finished") if asking else group.opinion
        try:
            result = one.run(call)
        except BaseException as error:
            if asking:
                group.opinion = Opinion(failure=f"it was not asked, since the call raises {in_words(error)}")
            self._progress.knows(self.functions())
            raise
        if question is not None:
            group.opinion = question.ask()
        self._progress.knows(self.functions())
        if self._stop and all(each.looked_at >= self._limit for group in self.groups.values() for each in group.ones):
            self.stopped = True
            raise Enough
        return result

    def _tell(self, group: _Group) -> None:
        if not group.told:
            group.told = True
            self._told(f"{group.looked_at} calls of {group.name} were looked at; from now on it runs natively")


class _One:
    """One captured function, method or module."""

    def __init__(self, call: Call) -> None:
        self.captured = Captured(call.fn, "eager", dynamic=bool(call.dynamic))
        self.looked_at = 0
        self.graphs: tuple[int, ...] = ()
        self.missed_in: list[int] = []
        """For each miss, the call."""

    def run(self, call: Call) -> Any:
        self.looked_at += 1
        try:
            return self.captured(*call.args, **call.kwargs)
        finally:
            new = len(self.captured.misses) - len(self.missed_in)
            self.missed_in += [self.looked_at] * new
            if self.looked_at == 1:
                self.graphs = tuple(map(operations_in, self.captured.graphs))


@dataclass
class _Group:
    """What has one name: a function, or the methods of several objects."""

    name: str
    calls: int = 0
    told: bool = False
    opinion: Opinion | None = None
    _ones: dict[tuple[int, ...], _One] = field(default_factory=dict)

    @property
    def ones(self) -> list[_One]:
        return list(self._ones.values())

    @property
    def is_known(self) -> bool:
        """Whether anything of it was looked at, or is to be told."""
        return bool(self._ones)

    @property
    def looked_at(self) -> int:
        return sum(each.looked_at for each in self.ones)

    def one(self, call: Call) -> _One | None:
        """What captures this call. None if there are enough of them."""
        found = self._ones.get(call.key)
        if found is None and len(self._ones) < MOST_OBJECTS:
            found = self._ones[call.key] = _One(call)
        return found

    def surveyed(self) -> Surveyed:
        captured = [each.captured for each in self.ones]
        objections = self.opinion.objections if self.opinion is not None else ()
        findings = tuple(_findings(captured, objections))
        lines = {_line(each.home) for each in findings}
        return Surveyed(
            name=self.name,
            calls=self.calls,
            looked_at=self.looked_at,
            objects=sum(isinstance(each.fn, MethodType) for each in captured),
            graphs=self.ones[0].graphs,
            all_graphs=sum(len(each.graphs) for each in captured),
            hits=sum(each.hits for each in captured),
            recordings=sum(each.recordings for each in captured),
            natives=sum(each.natives for each in captured),
            findings=findings,
            misses=tuple(_misses(self.ones)),
            uncacheable=dict(Counter(why for each in captured for why in each.uncacheable)),
            failures=tuple(_failure(crash) for each in captured for crash in each.crashes),
            opinion=self.opinion,
            dynamo_alone=tuple(
                each for each in objections if not each.stack or _line(home_of(each.stack)) not in lines
            ),
        )


# ---- breaks ----------------------------------------------------------------------------------------------------


def _findings(captured: list[Captured], objections: Iterable[Objection]) -> Iterator[Finding]:
    """The breaks in the order in which they were met, those of several objects once."""
    against: dict[tuple[str, int], list[Objection]] = {}
    for objection in objections:
        if objection.stack:
            against.setdefault(_line(home_of(objection.stack)), []).append(objection)
    seen: set[tuple[str, Place, bool]] = set()
    for one in captured:
        for each in one.breaks:
            key = each.reason, each.place, each.natively
            if key in seen:
                continue
            seen.add(key)
            stack = _users_stack(each, one.fn)
            home = home_of(stack)
            yield Finding(
                number=len(seen),
                reason=each.reason,
                advice=each.advice or advice_for_break(each.reason),
                natively=each.natively,
                place=stack[-1],
                home=home,
                stack=stack,
                objections=tuple(against.get(_line(home), ())),
            )


def _users_stack(found: GraphBreak, fn: Any) -> tuple[Place, ...]:
    """How it got there, without the frames that are ours. Never empty: at least it is in the function itself."""
    return tuple(place for place in found.stack if not place.file.startswith(_OWN)) or (_definition_of(fn),)


def _definition_of(fn: Any) -> Place:
    plain = getattr(fn, "forward", fn) if isinstance(fn, torch.nn.Module) else fn
    code = getattr(plain, "__code__", None)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return Place("", 0, name) if code is None else Place(code.co_filename, code.co_firstlineno, code.co_qualname)


def home_of(stack: tuple[Place, ...]) -> Place:
    """The innermost line that is neither torch's nor Python's nor ours; the innermost one, if there is no such line."""
    return next((place for place in reversed(stack) if _is_users(place.file)), stack[-1])


def _is_users(file: str) -> bool:
    if file.startswith(("<", _OWN, _TORCH)):
        return False
    return not file.startswith(_LIBRARY) or file.startswith(_INSTALLED)


def _line(place: Place) -> tuple[str, int]:
    return place.file, place.line


# ---- what is not settled ---------------------------------------------------------------------------------------


def _misses(ones: Iterable[_One]) -> Iterator[Miss]:
    """The guards that did not hold; what differs in numbers only is one."""
    met: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for one in ones:
        for call, (guard, found) in zip(one.missed_in, one.captured.misses, strict=True):
            subject, _, expected = guard.partition(" is ")
            key = (subject, "") if expected and found.startswith("it is ") else (guard, _NUMBERS.sub("", found))
            met.setdefault(key, []).append((call, guard, found))
    for each in met.values():
        _, guard, found = each[0]
        calls = tuple(sorted({call for call, _, _ in each}))
        yield Miss(guard, found, advice_for_miss(guard, found), calls)


def _failure(crash: Crash) -> Failure:
    users = [place for place in crash.stack if not place.file.startswith(_OWN)]
    return Failure(in_words(crash.error), users[-1] if users else None, crash.path)

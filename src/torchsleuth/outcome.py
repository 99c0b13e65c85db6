"""What one run did: a closed union, so that no caller ever has to guess from an exit code.

    Outcome = Passed | Raised | Mismatched | Crashed | TimedOut | OutOfMemory | Unrunnable | Broken

An outcome is never a bool: `if outcome:` is an error, because "did it fail?" has more than two
answers. Ask `is_failure(outcome)`, or match on the type. `Unrunnable` (the program is at fault) and
`Broken` (we are at fault) say nothing about the compiler under test, so they are not failures.

`to_data` and `from_data` turn one into plain data and back: so it comes out of a worker, and so `--json` shows it.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, get_args


class Word(str, Enum):
    """One of a closed set of words. It prints as the word."""

    def __str__(self) -> str:
        return str(self.value)


class Stage(Word):
    """Where in its way through the compiler a program was. The order is the order of the way."""

    PREPARE = "prepare"
    COMPILE = "compile"
    """Somewhere in the compiler: more is not known."""
    DYNAMO = "dynamo"
    AOT = "aot"
    DECOMPOSITION = "decomposition"
    PRE_GRAD = "pre-grad passes"
    JOINT_GRAPH = "joint-graph passes"
    POST_GRAD = "post-grad passes"
    LOWERING = "lowering"
    SCHEDULING = "scheduling"
    CODEGEN = "codegen"
    CPP_COMPILE = "C++ compile"
    TRITON_COMPILE = "Triton compile"
    LOAD = "load"
    RUN = "run"
    COMPARE = "compare"
    UNKNOWN = "unknown"


class Symptom(Word):
    """How two results differ. The words are part of a failure's signature."""

    TYPE = "type"
    STRUCTURE = "structure"
    SHAPE = "shape"
    DTYPE = "dtype"
    LAYOUT = "layout"
    DEVICE = "device"
    NAN = "nan"
    VALUE = "value"
    INTEGER = "integer"
    OBJECT = "object"


def signal_name(number: int | None) -> str:
    """SIGSEGV for 11; "a signal" if nobody knows which."""
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}" if number else "a signal"


@dataclass(frozen=True)
class _Run:
    """What every outcome carries: how far the run came, and how long it took."""

    verb: ClassVar[str]
    stage: Stage = Stage.UNKNOWN
    """How far it came: where it failed, or the last stage that it entered."""
    seconds: float = 0.0
    stdout: str = ""
    """What it printed: the beginning and the end, if it was much."""
    stderr: str = ""
    code: str = ""
    """What the compiler generated, if it got so far."""
    notes: tuple[str, ...] = ()
    """What else there is to know: options that could not be set, values that are not to be trusted."""

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the outcome {type(self).__name__} is not a bool; use is_failure(outcome) or match on its type"
        )

    def describe(self) -> str:
        """One line for people."""
        return f"{self.verb} ({self.stage})"


@dataclass(frozen=True)
class Passed(_Run):
    """The run finished, and where results were compared they agreed."""

    verb: ClassVar[str] = "passed"


@dataclass(frozen=True)
class Raised(_Run):
    """The compiler, or what it made, raised an exception."""

    verb: ClassVar[str] = "raised"
    type_chain: tuple[str, ...] = ()
    """Qualified exception types, outermost first, along `__cause__` / `__context__`."""
    message: str = ""
    cause: str = ""
    """What the innermost exception says, in short."""
    traceback: str = ""
    frames: tuple[str, ...] = ()
    """The innermost functions of torch that were being called, innermost first, as `module:function`."""
    op: str | None = None
    """The guilty operator, if it is known."""
    node: str | None = None
    """The node of the graph at which it happened, if that is known."""
    kernel: str = ""
    """The operators of the generated kernel that is at fault, as its name has them, if it is one of several."""

    def describe(self) -> str:
        first_line = self.message.splitlines()[0] if self.message else "no message"
        return f"raised {self.type_chain[0] if self.type_chain else 'an exception'} ({self.stage}): {first_line}"


AT: Final = " at "
"""Between how something differs and where."""


@dataclass(frozen=True)
class Mismatched(_Run):
    """Both sides ran, and their results differ."""

    verb: ClassVar[str] = "mismatched"
    symptom: Symptom = Symptom.VALUE
    path: str = ""
    explanation: str = ""
    op: str | None = None
    """The guilty operator, if it is known."""
    node: str | None = None
    """Its node of the graph, if that is."""
    also: tuple[str, ...] = ()
    """Where else they differ in some other way: `nan at output[2]`, `value at inputs[0]`. One of each sort."""

    @property
    def readings(self) -> tuple[Mismatched, ...]:
        """This, and the same as whoever had looked elsewhere first would tell it: who is to blame there is unknown."""
        others = (one.partition(AT) for one in self.also)
        plain = replace(self, op=None, node=None, also=())
        return self, *(replace(plain, symptom=Symptom(how), path=path) for how, _, path in others)

    def describe(self) -> str:
        return f"mismatched: {self.symptom} at {self.path or 'the result'}"


@dataclass(frozen=True)
class Crashed(_Run):
    """The process died of a signal, or left without an answer."""

    verb: ClassVar[str] = "crashed"
    signal: int = 0
    """0 if it was none: then it ended itself, with `exit_code`."""
    exit_code: int | None = None
    stack: str = ""
    """What faulthandler said of the Python that was being executed."""
    frames: tuple[str, ...] = ()
    """The innermost functions of torch on that stack, innermost first, as `module:function`."""

    @property
    def signal_name(self) -> str:
        return signal_name(self.signal)

    def describe(self) -> str:
        if self.signal == 0 and self.exit_code is not None:
            return f"ended itself with exit code {self.exit_code} ({self.stage})"
        return f"crashed with {self.signal_name} ({self.stage})"


@dataclass(frozen=True)
class TimedOut(_Run):
    """The run was stopped at its deadline."""

    verb: ClassVar[str] = "timed out"
    deadline: float = 0.0
    stack: str = ""
    """The Python that was being executed at the deadline."""
    frames: tuple[str, ...] = ()
    """The functions of torch on that stack, innermost first, each once, as `module:function`."""

    def describe(self) -> str:
        return f"timed out after {self.deadline:g} s ({self.stage})"


@dataclass(frozen=True)
class OutOfMemory(_Run):
    """The run needed more memory than it was allowed."""

    verb: ClassVar[str] = "ran out of memory"
    limit_bytes: int = 0
    """What it was allowed; 0 if it was the machine that had no more."""
    message: str = ""


@dataclass(frozen=True)
class Unrunnable(_Run):
    """The program itself cannot run: eager fails too, or the graph is not legal."""

    verb: ClassVar[str] = "cannot be run"
    reason: str = ""

    def describe(self) -> str:
        return f"cannot be run: {self.reason or 'no reason recorded'}"


@dataclass(frozen=True)
class Broken(_Run):
    """Our own machinery failed; the verdict on the program is open."""

    verb: ClassVar[str] = "broken"
    reason: str = ""
    traceback: str = ""

    def describe(self) -> str:
        return f"torchsleuth itself failed: {self.reason or 'no reason recorded'}"


Outcome: TypeAlias = Passed | Raised | Mismatched | Crashed | TimedOut | OutOfMemory | Unrunnable | Broken

_FAILURES = (Raised, Mismatched, Crashed, TimedOut, OutOfMemory)


def is_failure(outcome: Outcome) -> bool:
    """True when the compiler under test failed. `Unrunnable` and `Broken` say nothing about it."""
    return isinstance(outcome, _FAILURES)


def to_data(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data: its kind under "outcome", and every field that it has."""
    data: dict[str, Any] = {"outcome": outcome.verb}
    for field in fields(outcome):
        value = getattr(outcome, field.name)
        data[field.name] = (
            list(value) if isinstance(value, tuple) else value.value if isinstance(value, Word) else value
        )
    return data


def from_data(data: Mapping[str, Any]) -> Outcome:
    """The outcome that `to_data` made this of. A ValueError says what is wrong with it."""
    kind = _BY_VERB.get(data.get("outcome"))  # type: ignore[arg-type]
    if kind is None:
        raise ValueError(f"there is no outcome {data.get('outcome')!r}")
    known = {field.name: field for field in fields(kind)}
    if unknown := data.keys() - known.keys() - {"outcome"}:
        raise ValueError(f"{kind.__name__} has no {sorted(unknown)[0]!r}")
    given: dict[str, Any] = {name: value for name, value in data.items() if name in known}
    for name, value in given.items():
        if not _fits(value, known[name].type):
            raise ValueError(f"{kind.__name__}.{name} cannot be {value!r}")
        given[name] = tuple(value) if isinstance(value, list) else value
    if "stage" in given:
        given["stage"] = Stage(given["stage"])
    if "symptom" in given:
        given["symptom"] = Symptom(given["symptom"])
    for one in given.get("also", ()):
        Symptom(one.partition(AT)[0])
    return kind(**given)


_BY_VERB: Mapping[str, type[Outcome]] = {kind.verb: kind for kind in get_args(Outcome)}
_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "Stage": (str,),
    "Symptom": (str,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
}


def _fits(value: object, annotation: Any) -> bool:
    if annotation == "tuple[str, ...]":
        return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
    return isinstance(value, _PLAIN[annotation]) and not isinstance(value, bool)

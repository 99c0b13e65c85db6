"""What one run did: a closed union, so that no caller ever has to guess from an exit code.

    Outcome = Passed | Raised | Mismatched | Crashed | TimedOut | OutOfMemory | Unrunnable | Broken

An outcome is never a bool: `if outcome:` is an error, because "did it fail?" has more than two
answers. Ask `is_failure(outcome)`, or match on the type. `Unrunnable` (the program is at fault) and
`Broken` (we are at fault) say nothing about the compiler under test, so they are not failures.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NoReturn, TypeAlias


class Word(str, Enum):
    """One of a closed set of words. It prints as the word."""

    def __str__(self) -> str:
        return str(self.value)


class Stage(Word):
    """Where in its way through the compiler a program was. The order is the order of the way."""

    PREPARE = "prepare"
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


@dataclass(frozen=True)
class _Run:
    """What every outcome carries: how far the run came, and how long it took."""

    verb: ClassVar[str]
    stage: Stage = Stage.UNKNOWN
    seconds: float = 0.0

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
    traceback: str = ""

    def describe(self) -> str:
        first_line = self.message.splitlines()[0] if self.message else "no message"
        return f"raised {self.type_chain[0] if self.type_chain else 'an exception'} ({self.stage}): {first_line}"


@dataclass(frozen=True)
class Mismatched(_Run):
    """Both sides ran, and their results differ."""

    verb: ClassVar[str] = "mismatched"
    symptom: Symptom = Symptom.VALUE
    path: str = ""
    explanation: str = ""

    def describe(self) -> str:
        return f"mismatched: {self.symptom} at {self.path or 'the result'}"


@dataclass(frozen=True)
class Crashed(_Run):
    """The process died of a signal."""

    verb: ClassVar[str] = "crashed"
    signal: int = 0
    stack: str = ""

    @property
    def signal_name(self) -> str:
        try:
            return signals.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"

    def describe(self) -> str:
        return f"crashed with {self.signal_name} ({self.stage})"


@dataclass(frozen=True)
class TimedOut(_Run):
    """The run was stopped at its deadline."""

    verb: ClassVar[str] = "timed out"
    deadline: float = 0.0
    stack: str = ""

    def describe(self) -> str:
        return f"timed out after {self.deadline:g} s ({self.stage})"


@dataclass(frozen=True)
class OutOfMemory(_Run):
    """The run needed more memory than it was allowed."""

    verb: ClassVar[str] = "ran out of memory"
    limit_bytes: int = 0


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

"""Every error torchsleuth raises itself. Each one says what happened, the cause, and what to do about it.

    SleuthError
    ├── ConfigError            a setting cannot be used            (also a ValueError)
    │   ├── UnknownSetting     no setting has that name
    │   ├── BadValue           the setting exists, the value does not fit it
    │   └── BadConfigFile      pyproject.toml cannot be read or parsed
    ├── MissingTorchName       this torch lacks a private name that a feature stands on
    ├── CompareError           two values cannot be compared at all
    │   ├── FakeTensorGiven    a fake tensor has no values to compare
    │   ├── NoReference        the fp64 reference was required and could not be made
    │   └── CannotReduce       no scalar loss for a type     (also a NotImplementedError)
    ├── CaseError              a case cannot be read, written or used (names the file and the field)
    │   ├── BadCase            it is no case, or a part of it is not what it has to be
    │   ├── NewerCase          a newer torchsleuth wrote it, and this one cannot make sense of it
    │   ├── HashMismatch       its bytes are not the ones that were written
    │   ├── MissingTensor      a tensor's bytes are not there
    │   ├── NotFound           the store has no such case, or more than one
    │   ├── NeedsTrust         it calls code of the user's own, and nobody said that is trusted
    │   ├── CannotHold         a value has no place in a case, or was noticed in one and is needed now
    │   └── StoreError         the store itself cannot be read or written
    ├── DoesNotFail            a case was to fail as recorded, and does not
    ├── BisectError            the search for the guilty part of a compiler cannot go on
    │   ├── UnknownPart        no backend or subsystem has that name   (also a ValueError)
    │   ├── Unsteady           what failed passes now, with nothing left out   (also a RuntimeError)
    │   ├── NobodyTookPart     a step was to be counted, and no process has told   (also a RuntimeError)
    │   ├── SessionError       its state on the disk is damaged, in use, or cannot be written
    │   └── NoSession          there is none to go on with       (also a ValueError)
    ├── ScriptError            a script cannot be examined as asked
    │   ├── NoSuchFunction     nothing in the script has that name
    │   └── NeverCalled        the script does not call it, so there are no arguments to call it with
    ├── FrontEndError          the front end cannot do what it was asked
    │   ├── UnsupportedPython  it does not know this version's bytecode
    │   └── BadRecord          an execution record cannot be read, or is not trusted
    └── AccuracyError          two runs were compared and disagree

An exception of the user's program, or of a compiler under test, is never wrapped in one of these:
it is data (an `outcome.Raised`), or it propagates as it was.
"""

from __future__ import annotations

from typing import Final


class SleuthError(Exception):
    """Base of all errors of torchsleuth: `what` happened, its `cause`, and the `remedy`."""

    def __init__(self, what: str, *, cause: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  cause: {self.cause}\n  remedy: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries; keyword-only arguments need this to survive pickling.
        return (_rebuild, (type(self), self.what, self.cause, self.remedy), self.__dict__)


def _rebuild(kind: type[SleuthError], what: str, cause: str, remedy: str) -> SleuthError:
    error = kind.__new__(kind)
    SleuthError.__init__(error, what, cause=cause, remedy=remedy)
    return error


class ConfigError(SleuthError, ValueError):
    """A setting cannot be used."""


class UnknownSetting(ConfigError):
    """No setting has that name; the remedy lists the ones there are."""


class BadValue(ConfigError):
    """The setting exists, but the value does not fit it; the remedy lists what does."""


class BadConfigFile(ConfigError):
    """A `pyproject.toml` cannot be read or parsed; the message names the file."""


class MissingTorchName(SleuthError):
    """This torch lacks a private name; the message says which, and what stops working."""


class CompareError(SleuthError):
    """Two values cannot be compared at all (not: they were compared and differ)."""


class FakeTensorGiven(CompareError):
    """A fake tensor has a shape but no values, so there is nothing to compare."""


class NoReference(CompareError):
    """The fp64 reference was required (`require_fp64=True`) and could not be made."""


class CannotReduce(CompareError, NotImplementedError):
    """No scalar loss can be made from a value of this type."""


class CaseError(SleuthError):
    """A case cannot be read, written or used. `file` and `field` say where, if there is a where."""

    def __init__(self, what: str, *, cause: str, remedy: str, file: str = "", field: str = "") -> None:
        where = ": ".join(part for part in (file, field) if part)
        super().__init__(f"{where}: {what}" if where else what, cause=cause, remedy=remedy)
        self.file = file
        self.field = field


GET_IT_AGAIN: Final = "if it was edited or damaged, get it again from where it came from"
"""What to do about nearly every `BadCase` and `HashMismatch`."""


class BadCase(CaseError):
    """It is no case, or a part of it is not what it has to be."""


class NewerCase(CaseError):
    """A newer torchsleuth wrote it, and this one cannot make sense of it."""


class HashMismatch(CaseError):
    """The bytes are not the ones that were written: damaged on the way, or changed since."""


class MissingTensor(CaseError):
    """The bytes of a tensor are not there. Nothing is ever put in their place."""


class NotFound(CaseError):
    """The store has no such case, or more than one that the name could mean."""


class NeedsTrust(CaseError):
    """The case calls code of the user's own, and nobody said that it is trusted."""


class CannotHold(CaseError):
    """A value has no place in a case; or one that was only noticed is needed now."""


class StoreError(CaseError):
    """The store itself cannot be read or written: no such folder, no room, no permission."""


class DoesNotFail(SleuthError):
    """A case was to fail as recorded, and does not. `verdict`: what a run says instead, in a word."""

    def __init__(self, what: str, *, cause: str, remedy: str, verdict: str = "") -> None:
        super().__init__(what, cause=cause, remedy=remedy)
        self.verdict = verdict


class FrontEndError(SleuthError):
    """The front end cannot do what it was asked."""


class UnsupportedPython(FrontEndError):
    """The front end knows the bytecode of one version of Python, and this is another."""


class BadRecord(FrontEndError):
    """An execution record cannot be read, or nobody said that it is trusted."""


class BisectError(SleuthError):
    """The search for the guilty part of a compiler cannot go on."""


class UnknownPart(BisectError, ValueError):
    """No backend, or no subsystem, has that name; the remedy lists those there are."""


class Unsteady(BisectError, RuntimeError):
    """What failed a moment ago passes now, with nothing left out: no search can make sense of that."""


class NobodyTookPart(BisectError, RuntimeError):
    """How often a subsystem is applied was to be counted, and no process has told."""


class SessionError(BisectError):
    """The session cannot be used: damaged, in use, or its folder cannot be written to."""


class NoSession(BisectError, ValueError):
    """There is no session to continue."""


class ScriptError(SleuthError):
    """A script cannot be examined as asked: it is not there, or nothing in it can be."""


class NoSuchFunction(ScriptError):
    """Nothing in the script has the name that was asked for; the remedy lists names that are near."""


class NeverCalled(ScriptError):
    """The script does not call the function that was asked for, so there are no arguments to call it with."""


class AccuracyError(SleuthError):
    """Two runs were compared and disagree; `cause` is the comparison, in words."""


def in_words(error: BaseException) -> str:
    """Anybody's exception in one line: its type and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__qualname__}: {said}" if said else type(error).__qualname__

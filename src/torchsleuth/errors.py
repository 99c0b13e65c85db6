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
    └── AccuracyError          two runs were compared and disagree

An exception of the user's program, or of a compiler under test, is never wrapped in one of these:
it is data (an `outcome.Raised`), or it propagates as it was.
"""

from __future__ import annotations


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
        return (_rebuild, (type(self), self.what, self.cause, self.remedy))


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


class AccuracyError(SleuthError):
    """Two runs were compared and disagree; `cause` is the comparison, in words."""


def in_words(error: BaseException) -> str:
    """Anybody's exception in one line: its type and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__qualname__}: {said}" if said else type(error).__qualname__

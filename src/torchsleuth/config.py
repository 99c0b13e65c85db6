"""The settings: what they are, where their values come from, and how to change them for a while.

A setting is declared in one place, a field of `Settings`; its metadata says how a value is read, which
values are valid, and what it is for. A later source wins over an earlier one:

    the default  <  [tool.torchsleuth] of the nearest pyproject.toml that has it  <  SLEUTH_*  <  arguments

    load(level="always")          read all sources, give a `Settings`
    explain()                     the same, and for each setting which source won (for `sleuth doctor`)
    configure(after="aot")        make that the settings of this process, for all threads
    current()                     the settings that hold here and now
    with patch(after=None): ...   other settings in this thread or task only; also a decorator

Every source is checked, also where a later one wins: a typo in `pyproject.toml` or in a variable's name
is an error (`UnknownSetting`, `BadValue`, `BadConfigFile`), never a setting that silently has no effect.
`Settings` is immutable and always valid. This module must stay cheap to import, so it never imports torch.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from torchsleuth.errors import BadConfigFile, BadValue, ConfigError, UnknownSetting
from torchsleuth.outcome import Word

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_P = ParamSpec("_P")
_R = TypeVar("_R")

ENV_PREFIX: Final = "SLEUTH_"
DEFAULT: Final = "default"
ARGUMENT: Final = "argument"


# ---- what a setting may be -------------------------------------------------------------------------------


class After(Word):
    """After which stage the graph is watched."""

    DYNAMO = "dynamo"
    AOT = "aot"
    BOTH = "both"

    @property
    def sees_dynamo(self) -> bool:
        """Whether the graph that Dynamo made is watched while it runs."""
        return self is not After.AOT

    @property
    def sees_aot(self) -> bool:
        """Whether the graphs that AOTAutograd made are."""
        return self is not After.DYNAMO


class Level(IntEnum):
    """When the watcher looks and what it keeps: the four policies, by number or by name."""

    DUMP = 1
    MINIFY = 2
    ALWAYS = 3
    ACCURACY = 4

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        # Without this, f"{level}" is the number on some Pythons and the name on others.
        return format(str(self), spec)


class _DoesNotFit(Exception):
    """A parser's no; whoever knows the setting's name and source turns it into a `BadValue`."""


_LEVELS = {form: level for level in Level for form in (str(level.value), level.name.lower())}
_BYTES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kmgt])i?b?")
_BOOLS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def _parse_after(value: object) -> After | None:
    if value is None or (isinstance(value, str) and value in ("", "none", "off")):
        return None
    if isinstance(value, str):
        try:
            return After(value)
        except ValueError:
            raise _DoesNotFit from None
    raise _DoesNotFit


def _parse_level(value: object) -> Level:
    # By exact type: a bool, a float or another enum's member may equal 1 and still not be a level.
    if type(value) is int and value in Level.__members__.values():
        return Level(value)
    if isinstance(value, Level):
        return value
    if isinstance(value, str) and value.lower() in _LEVELS:
        return _LEVELS[value.lower()]
    raise _DoesNotFit


def _parse_tolerance(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _DoesNotFit
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _DoesNotFit from None
    if not math.isfinite(number) or number <= 0:
        raise _DoesNotFit
    return number


def _parse_store(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise _DoesNotFit
    return value


def _parse_count(value: object, least: int = 1) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if type(value) is not int or not least <= value < 2**63:
        raise _DoesNotFit
    return value


def _parse_count_or_zero(value: object) -> int:
    return _parse_count(value, 0)


def _parse_limit(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("none", "off")):
        return None
    return _parse_count(value)


def _parse_bytes(value: object) -> int:
    found = _BYTES.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        return _parse_count_or_zero(value)
    return _parse_count_or_zero(int(float(found[1]) * 1024 ** "kmgt".index(found[2]) * 1024))


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLS:
        return _BOOLS[value.lower()]
    raise _DoesNotFit


# ---- the table of settings -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """How one setting is read (`parse`), which values are `valid` in words, and what it is for (`help`)."""

    parse: Callable[[object], Any]
    valid: str
    help: str


_A_BOOL = "true or false (as text also yes / no, on / off, 1 / 0)"


def _about(parse: Callable[[object], Any], *, valid: str, help: str) -> dict[str, Setting]:
    return {"setting": Setting(parse, valid, help)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, each one valid: values are parsed on construction, so `Settings(level="3")` works too."""

    after: After | None = field(
        default=None,
        metadata=_about(
            _parse_after,
            valid='"dynamo", "aot", "both", or None ("none", "off")',
            help="Which graph is watched: the one Dynamo made, those AOTAutograd made, both, or none.",
        ),
    )
    level: Level = field(
        default=Level.MINIFY,
        metadata=_about(
            _parse_level,
            valid="1 or dump, 2 or minify, 3 or always, 4 or accuracy",
            help="When the watcher looks and what it keeps.",
        ),
    )
    store: str = field(
        default=".sleuth",
        metadata=_about(
            _parse_store,
            valid="a folder, or a URL that fsspec knows (memory://cases, s3://bucket/cases)",
            help="Where cases are kept.",
        ),
    )
    tolerance: float = field(
        default=1e-3,
        metadata=_about(
            _parse_tolerance,
            valid="a finite number greater than 0",
            help="How far two floating-point results may be apart and still agree.",
        ),
    )
    fp64: bool = field(
        default=True,
        metadata=_about(
            _parse_bool,
            valid=_A_BOOL,
            help="Compute a float64 reference, to tell a bug from rounding noise.",
        ),
    )
    ignore_non_fp: bool = field(
        default=False,
        metadata=_about(
            _parse_bool,
            valid=_A_BOOL,
            help="Leave outputs that are not floating point out of the comparison.",
        ),
    )
    forward_only: bool = field(
        default=False,
        metadata=_about(
            _parse_bool,
            valid=_A_BOOL,
            help="Compare the forward results only, not the gradients.",
        ),
    )

    check_every: int = field(
        default=1,
        metadata=_about(
            _parse_count,
            valid="a whole number from 1",
            help="At level accuracy, each so-many-th call of a graph is checked.",
        ),
    )
    check_first: int = field(
        default=1,
        metadata=_about(
            _parse_count_or_zero,
            valid="a whole number from 0",
            help="At level accuracy, so many calls of each graph are checked before counting begins.",
        ),
    )
    max_checks: int | None = field(
        default=None,
        metadata=_about(
            _parse_limit,
            valid='a whole number from 1, or None ("none", "off")',
            help="At level accuracy, at most so many calls of each graph are checked.",
        ),
    )
    max_cases: int = field(
        default=3,
        metadata=_about(
            _parse_count,
            valid="a whole number from 1",
            help="At most so many cases are kept of each graph.",
        ),
    )
    max_dump: int = field(
        default=16 * 2**30,
        metadata=_about(
            _parse_bytes,
            valid="a number of bytes (4096, 500 MB, 16 GiB)",
            help="Inputs larger than this together are described by recipes instead of being kept.",
        ),
    )

    def __post_init__(self) -> None:
        for name in SETTINGS:
            object.__setattr__(self, name, _parse(name, getattr(self, name), ARGUMENT))


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {each.name: each.metadata["setting"] for each in fields(Settings)}
)
"""The table: setting by name, in the order of declaration."""


def _parse(name: str, value: object, source: str) -> Any:
    setting = SETTINGS[name]
    try:
        return setting.parse(value)
    except _DoesNotFit:
        giver = "an argument" if source == ARGUMENT else source
        raise BadValue(
            f"the setting {name} cannot be {_shown(value)}",
            cause=f"that value was given by {giver}, and it is none of the valid ones",
            remedy=f"set {name} to {setting.valid}",
        ) from None


def _shown(value: object) -> str:
    """The value for an error message, whatever it is: also with a broken or an endless `repr`."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value we are about to reject must not choose the error
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _parse_all(values: Mapping[str, object], source: str) -> dict[str, Any]:
    for name in values:
        if name not in SETTINGS:
            raise _unknown(name, SETTINGS, given_by="an argument" if source == ARGUMENT else source)
    return {name: _parse(name, value, source) for name, value in values.items()}


def _unknown(name: str, known: Iterable[str], *, given_by: str) -> UnknownSetting:
    known = list(known)
    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    return UnknownSetting(
        f"there is no setting {name!r}",
        cause=f"the name was given by {given_by}, and torchsleuth has no such setting",
        remedy=f"{hint}the names are: {', '.join(known)}",
    )


# ---- where values come from ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explained:
    """One setting's value and the `source` it came from: default, a file, a variable, or argument."""

    name: str
    value: Any
    source: str


def load(*, start: Path | None = None, environ: Mapping[str, str] | None = None, **arguments: object) -> Settings:
    """Read the settings from all sources.

    `start` is the folder from which a `pyproject.toml` is searched upward (the working folder if not
    given); `environ` stands in for the environment. An argument that is given counts, also when it is None.
    """
    return Settings(**{each.name: each.value for each in explain(start=start, environ=environ, **arguments)})


def explain(
    *, start: Path | None = None, environ: Mapping[str, str] | None = None, **arguments: object
) -> tuple[Explained, ...]:
    """What `load` would give with the same arguments, and for each setting the source that won."""
    found = {each.name: Explained(each.name, each.default, DEFAULT) for each in fields(Settings)}
    for source, values in (
        *_from_file(start),
        *_from_environment(os.environ if environ is None else environ),
        (ARGUMENT, arguments),
    ):
        for name, value in _parse_all(values, source).items():
            found[name] = Explained(name, value, source)
    return tuple(found.values())


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, dict[str, object]]]:
    """Each `SLEUTH_*` variable that is set; an empty one counts as not set."""
    variables = {ENV_PREFIX + name.upper(): name for name in SETTINGS}
    found: list[tuple[str, dict[str, object]]] = []
    for variable in sorted(each for each in environ if each.startswith(ENV_PREFIX)):
        text = environ[variable].strip()
        if not text:
            continue
        if variable not in variables:
            raise _unknown(variable, variables, given_by="the environment")
        found.append((variable, {variables[variable]: text}))
    return found


def _from_file(start: Path | None) -> list[tuple[str, dict[str, object]]]:
    """The table of the nearest `pyproject.toml` that has one, at or above `start`."""
    try:
        folder = Path(os.path.abspath("." if start is None else start))
    except FileNotFoundError:
        return []  # the working folder was deleted under us: then no file is near
    for each in (folder, *folder.parents):
        path = each / "pyproject.toml"
        table = _read_table(path)
        if table is not None:
            return [(str(path), table)]
    return []


def _read_table(path: Path) -> dict[str, object] | None:
    """`[tool.torchsleuth]` of the file; None if there is no such file or no such table in it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if not os.path.exists(path):  # also where the folder may not be looked into: nobody's mistake
            return None
        raise _bad_file(path, f"it cannot be read: {error.strerror or error}", "make it readable") from error
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _bad_file(path, f"line {line} is not UTF-8", "save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError, and says the line
        raise _bad_file(path, f"it is not valid TOML: {error}", "correct the file") from error
    tool = document.get("tool", {})
    table = tool.get("torchsleuth") if isinstance(tool, dict) else tool
    if table is None or isinstance(table, dict):
        return table
    raise _bad_file(
        path,
        f"tool{'.torchsleuth' if isinstance(tool, dict) else ''} is {_shown(table)}, not a table",
        "write the settings below a line [tool.torchsleuth]",
    )


def _bad_file(path: Path, cause: str, remedy: str) -> BadConfigFile:
    return BadConfigFile(f"the settings in {path} cannot be used", cause=cause, remedy=remedy)


# ---- which settings hold now -----------------------------------------------------------------------------

# The settings of the process, under the one key "settings" once they are known. A dict, because `setdefault`
# is atomic: the first use may come from several threads at once, and a lock could be held at a fork.
_PROCESS: dict[str, Settings] = {}


class _Patched:
    """The patches that are open in one thread or task (outermost first), and what they add up to."""

    def __init__(self, outside: Settings, patches: tuple[Patch, ...]) -> None:
        self.outside = outside
        self.patches = patches
        self._over: dict[int, tuple[Settings, Settings]] = {}
        self.settings = self.over(outside)

    def over(self, base: Settings) -> Settings:
        """What the patches make of other settings than the process's."""
        known = self._over.get(id(base))
        if known is None or known[0] is not base:
            changes: dict[str, Any] = {}
            for each in self.patches:
                changes.update(each._changes)
            known = self._over[id(base)] = (base, replace(base, **changes))
        return known[1]


_PATCHED: ContextVar[_Patched | None] = ContextVar("torchsleuth.settings", default=None)


def current(base: Settings | None = None) -> Settings:
    """The settings that hold here and now: the innermost patch of this thread or task, or the process's.

    `base` stands in the place of the process's: what somebody was told by arguments. Patches change that as well.
    """
    patched = _PATCHED.get()
    if patched is None:
        return _of_process() if base is None else base
    return patched.settings if base is None else patched.over(base)


def _of_process() -> Settings:
    settings = _PROCESS.get("settings")
    return _PROCESS.setdefault("settings", load()) if settings is None else settings


def configure(*, start: Path | None = None, environ: Mapping[str, str] | None = None, **arguments: object) -> Settings:
    """Load the settings with these arguments and make them the process's own, in all threads.

    A second call replaces what the first one set; it does not add to it. A patch that is open goes on
    holding where it is open.
    """
    settings = load(start=start, environ=environ, **arguments)
    _PROCESS["settings"] = settings
    return settings


def patch(**changes: object) -> Patch:
    """Other settings for a while, in this thread or task only. Bad names and values are rejected here.

    As a context manager, `with patch(after=None): ...`; as a decorator, `@patch(after="aot", level=3)`.
    Inside another patch it changes what it names and inherits the rest.
    """
    return Patch(_parse_all(changes, ARGUMENT))


class Patch:
    """What `patch` returns: a context manager and a decorator that can be entered any number of times.

    Nothing of an entry is kept in this object, so that threads and tasks may share it. What is open is kept
    in the context (`_Patched`), and leaving takes *this* patch out of it, wherever it stands: two
    generators that leave in the order in which they entered end up with what was there before.
    """

    def __init__(self, changes: Mapping[str, Any]) -> None:
        self._changes = dict(changes)

    def __repr__(self) -> str:
        return f"patch({', '.join(f'{name}={value!r}' for name, value in self._changes.items())})"

    def __enter__(self) -> Settings:
        patched = _PATCHED.get()
        if patched is None:
            _open(_of_process(), (self,))
        else:
            _open(patched.outside, (*patched.patches, self))
        return current()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patched = _PATCHED.get()
        if patched is not None and self in patched.patches:
            innermost = len(patched.patches) - 1 - patched.patches[::-1].index(self)
            _open(patched.outside, patched.patches[:innermost] + patched.patches[innermost + 1 :])
        elif error is None:  # never hide the exception that is on its way
            raise ConfigError(
                f"{self!r} was left in a thread or task that never entered it",
                cause="the with block was entered in one thread, task or context and left in another one, "
                "or it was left twice; the settings here are as they were",
                remedy="keep the whole with block in one thread or task: do not hold it open across a yield "
                "of a generator that is resumed elsewhere",
            )

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function, plain or async: the patch holds during each call."""
        _reject_undecoratable(function)
        if _is(inspect.iscoroutinefunction, function):

            @functools.wraps(function)
            async def call_async(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with self:
                    return await function(*args, **kwargs)  # type: ignore[misc]

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return call


def _open(outside: Settings, patches: tuple[Patch, ...]) -> None:
    _PATCHED.set(_Patched(outside, patches) if patches else None)


# ---- watching less, for the time of one call -----------------------------------------------------------------

_LESS: dict[tuple[int, After | None], tuple[object, _Patched]] = {}
_MOST_LESS: Final = 256


def watch_less(after: After | None) -> Token[_Patched | None]:
    """From here to `watch_again`, in this thread or task, that is what is watched. For what runs a million times:
    it is `patch(after=after)`, made once."""
    patched = _PATCHED.get()
    outer: Settings | _Patched = _of_process() if patched is None else patched
    key = (id(outer), after)
    known = _LESS.get(key)
    if known is None or known[0] is not outer:
        if len(_LESS) >= _MOST_LESS:
            _LESS.clear()
        less = patch(after=after)
        made = (
            _Patched(outer, (less,)) if isinstance(outer, Settings) else _Patched(outer.outside, (*outer.patches, less))
        )
        known = _LESS[key] = (outer, made)
    return _PATCHED.set(known[1])


def watch_again(token: Token[_Patched | None]) -> None:
    """What was watched before `watch_less` is watched again."""
    _PATCHED.reset(token)


def _is(test: Callable[[object], bool], function: object) -> bool:
    """Ask a test of `inspect` about a function, or about the `__call__` of an object that acts as one."""
    return test(function) or test(getattr(type(function), "__call__", None))  # noqa: B004


def _reject_undecoratable(function: object) -> None:
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        cause = "it is a generator: its body runs between the caller's own steps, not during one call"
        remedy = "use `with patch(...)` inside it, around a part without a yield"
    elif isinstance(function, (staticmethod, classmethod)):
        cause = f"it is a {type(function).__name__} object, not yet a function"
        remedy = f"put @{type(function).__name__} above the patch, not below it"
    elif isinstance(function, type):
        cause = "it is a class"
        remedy = "decorate the methods that need it"
    elif not callable(function):
        cause = "it is not a function"
        remedy = "decorate a function, or use `with patch(...)`"
    else:
        return
    raise ConfigError(f"patch cannot decorate {_shown(function)}", cause=cause, remedy=remedy)

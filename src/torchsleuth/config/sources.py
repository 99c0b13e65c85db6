"""Where the values of settings come from: defaults, a file, the environment, arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from torchsleuth.config.table import ARGUMENT, SETTINGS, Settings, parse_all, shown, unknown_setting
from torchsleuth.errors import BadConfigFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

ENV_PREFIX: Final = "SLEUTH_"
DEFAULT: Final = "default"


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
        for name, value in parse_all(values, source).items():
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
            raise unknown_setting(variable, variables, given_by="the environment")
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
        f"tool{'.torchsleuth' if isinstance(tool, dict) else ''} is {shown(table)}, not a table",
        "write the settings below a line [tool.torchsleuth]",
    )


def _bad_file(path: Path, cause: str, remedy: str) -> BadConfigFile:
    return BadConfigFile(f"the settings in {path} cannot be used", cause=cause, remedy=remedy)

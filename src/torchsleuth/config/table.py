"""The settings themselves: `Settings`, one field each, with how it is read, which values are valid, what it is for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from torchsleuth.config.kinds import (
    After,
    DoesNotFit,
    Level,
    parse_after,
    parse_bool,
    parse_bytes,
    parse_count,
    parse_count_or_zero,
    parse_level,
    parse_limit,
    parse_store,
    parse_tolerance,
)
from torchsleuth.errors import BadValue, UnknownSetting

ARGUMENT: Final = "argument"


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
            parse_after,
            valid='"dynamo", "aot", "both", or None ("none", "off")',
            help="Which graph is watched: the one Dynamo made, those AOTAutograd made, both, or none.",
        ),
    )
    level: Level = field(
        default=Level.MINIFY,
        metadata=_about(
            parse_level,
            valid="1 or dump, 2 or minify, 3 or always, 4 or accuracy",
            help="When the watcher looks and what it keeps.",
        ),
    )
    store: str = field(
        default=".sleuth",
        metadata=_about(
            parse_store,
            valid="a folder, or a URL that fsspec knows (memory://cases, s3://bucket/cases)",
            help="Where cases are kept.",
        ),
    )
    tolerance: float = field(
        default=1e-3,
        metadata=_about(
            parse_tolerance,
            valid="a finite number greater than 0",
            help="How far two floating-point results may be apart and still agree.",
        ),
    )
    fp64: bool = field(
        default=True,
        metadata=_about(
            parse_bool,
            valid=_A_BOOL,
            help="Compute a float64 reference, to tell a bug from rounding noise.",
        ),
    )
    ignore_non_fp: bool = field(
        default=False,
        metadata=_about(
            parse_bool,
            valid=_A_BOOL,
            help="Leave outputs that are not floating point out of the comparison.",
        ),
    )
    forward_only: bool = field(
        default=False,
        metadata=_about(
            parse_bool,
            valid=_A_BOOL,
            help="Compare the forward results only, not the gradients.",
        ),
    )

    check_every: int = field(
        default=1,
        metadata=_about(
            parse_count,
            valid="a whole number from 1",
            help="At level accuracy, each so-many-th call of a graph is checked.",
        ),
    )
    check_first: int = field(
        default=1,
        metadata=_about(
            parse_count_or_zero,
            valid="a whole number from 0",
            help="At level accuracy, so many calls of each graph are checked before counting begins.",
        ),
    )
    max_checks: int | None = field(
        default=None,
        metadata=_about(
            parse_limit,
            valid='a whole number from 1, or None ("none", "off")',
            help="At level accuracy, at most so many calls of each graph are checked.",
        ),
    )
    max_cases: int = field(
        default=3,
        metadata=_about(
            parse_count,
            valid="a whole number from 1",
            help="At most so many cases are kept of each graph.",
        ),
    )
    max_dump: int = field(
        default=16 * 2**30,
        metadata=_about(
            parse_bytes,
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
    except DoesNotFit:
        giver = "an argument" if source == ARGUMENT else source
        raise BadValue(
            f"the setting {name} cannot be {shown(value)}",
            cause=f"that value was given by {giver}, and it is none of the valid ones",
            remedy=f"set {name} to {setting.valid}",
        ) from None


def shown(value: object) -> str:
    """The value for an error message, whatever it is: also with a broken or an endless `repr`."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value we are about to reject must not choose the error
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_all(values: Mapping[str, object], source: str) -> dict[str, Any]:
    for name in values:
        if name not in SETTINGS:
            raise unknown_setting(name, SETTINGS, given_by="an argument" if source == ARGUMENT else source)
    return {name: _parse(name, value, source) for name, value in values.items()}


def unknown_setting(name: str, known: Iterable[str], *, given_by: str) -> UnknownSetting:
    known = list(known)
    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    return UnknownSetting(
        f"there is no setting {name!r}",
        cause=f"the name was given by {given_by}, and torchsleuth has no such setting",
        remedy=f"{hint}the names are: {', '.join(known)}",
    )

"""What was asked to be watched: the settings, where cases are written down, and how often each frame was called."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from torchsleuth import config
from torchsleuth.capture.journal import Journal
from torchsleuth.config import After, Level, Settings

JOURNAL = Journal()
"""Where those write who were not told of another one."""


@dataclass
class Steps:
    """How often a frame of the user's program was called, over all its recompilations: the number of the step."""

    count: int = 0


@dataclass
class Watch:
    """Asked by everything that watches. `base` are settings by argument; without, those of the process hold."""

    base: Settings | None = None
    journal: Journal = field(default_factory=lambda: JOURNAL)
    _steps: dict[tuple[str | None, ...], Steps] = field(default_factory=dict)

    def settings(self) -> Settings:
        """The settings that hold here and now."""
        return config.current(self.base)

    def steps(self, frame: str | None, begin: str, phase: str) -> Steps:
        """The counter of a frame of the user's program, shared by all that was compiled from it."""
        return self._steps.setdefault((frame, begin, phase), Steps())


def settings_for(**given: Any) -> Settings:
    """The process's settings with what was given besides. A folder for cases stays where it is if the program moves."""
    with config.patch(**{name: value for name, value in given.items() if value is not None}) as settings:
        return replace(settings, store=anchored(settings.store))


@dataclass(frozen=True)
class Plan:
    """What somebody is asked who watches a whole program."""

    after: After | None
    level: Level
    store: str
    off: str = ""
    """What switched watching off, if something did."""


def plan(**given: Any) -> Plan:
    """As the settings say, with what was given besides.

    If they do not say which graphs: those after AOT; at level 4 both, since what goes wrong before AOT (or between the
    two) raises nothing by which it could be noticed.
    """
    found = {each.name: each for each in config.explain(**given)}
    after, level, store = found["after"], found["level"].value, anchored(found["store"].value)
    if after.source == config.DEFAULT:
        return Plan(After.BOTH if level >= Level.ACCURACY else After.AOT, level, store)
    return Plan(after.value, level, store, after.source if after.value is None else "")


def anchored(store: str) -> str:
    """The store, independent of the current folder."""
    return store if "://" in store or "::" in store else os.path.abspath(store)


def writes_ahead(settings: Settings) -> bool:
    return settings.level >= Level.ALWAYS


def minifies(settings: Settings) -> bool:
    return settings.level >= Level.MINIFY


def inside(after: After) -> After | None:
    """What is watched while a graph of Dynamo's runs that is watched itself."""
    return After.AOT if after is After.BOTH else None

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
`Settings` is immutable and always valid. This package must stay cheap to import, so it never imports torch.
"""

from __future__ import annotations

from torchsleuth.config.kinds import After as After, Level as Level
from torchsleuth.config.live import (
    Patch as Patch,
    configure as configure,
    current as current,
    patch as patch,
    watch_again as watch_again,
    watch_less as watch_less,
)
from torchsleuth.config.sources import (
    DEFAULT as DEFAULT,
    ENV_PREFIX as ENV_PREFIX,
    Explained as Explained,
    explain as explain,
    load as load,
)
from torchsleuth.config.table import (
    ARGUMENT as ARGUMENT,
    SETTINGS as SETTINGS,
    Setting as Setting,
    Settings as Settings,
)

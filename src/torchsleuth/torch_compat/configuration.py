"""Torch's configuration: what it is, what it would be by default, and other options for a while."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from types import FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    pass
from torchsleuth.torch_compat.names import resolve


def inductor_config_patch(**options: Any) -> AbstractContextManager[Any]:
    """Other options of Inductor for a while, in this thread; dotted ones as `**{"triton.cudagraphs": True}`.

    An option that this Inductor does not have raises an AttributeError on entering.
    """
    patch: AbstractContextManager[Any] = resolve("inductor_config_patch")(options)
    return patch


CONFIG_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch._dynamo.config": "dynamo_config",
        "torch._inductor.config": "inductor_config",
        "torch._functorch.config": "functorch_config",
        "torch.fx.experimental._config": "fx_config",
        "torch.compiler.config": "compiler_config",
    }
)
"""The modules that hold torch's configuration, and what they are called in `NAMES`."""

_A_VARIABLE = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["']""")
_pristine = Lock()


def config_is_loaded(module: str) -> bool:
    """Whether one of `CONFIG_MODULES` was imported by anybody. If not, nothing can have depended on it."""
    return module in sys.modules


def config_values(module: str) -> dict[str, Any]:
    """Every option of one of `CONFIG_MODULES`, by its dotted name. Values are torch's own: not to be changed."""
    unset = resolve("config_unset")
    return {name: _config_value(entry, unset) for name, entry in _config_entries(module).items()}


def config_set_by_program(module: str) -> frozenset[str]:
    """The options that the program itself has set, whatever came from the environment."""
    unset = resolve("config_unset")
    # Torch copies lists and their like on reading, as if they had been set.
    return frozenset(
        name
        for name, entry in _config_entries(module).items()
        if (value := entry.user_override.get()) is not unset
        and not (isinstance(value, (list, dict, set)) and value == entry.default)
    )


def _config_module(module: str) -> Any:
    resolve(CONFIG_MODULES[module])  # imports it
    return sys.modules[module]


def _config_value(entry: Any, unset: object) -> Any:
    for value in (entry.env_value_force, entry.user_override.get(), entry.env_value_default):
        if value is not unset:
            return value
    return entry.default


def _config_entries(module: str) -> dict[str, Any]:
    """The options without their aliases: an alias is another name, often in another module."""
    config: dict[str, Any] = resolve(CONFIG_MODULES[module])
    return {name: entry for name, entry in config.items() if entry.alias is None}


@cache
def config_defaults(module: str) -> Mapping[str, Any]:
    """What every option would be if no environment variable and no program had changed it.

    Most options are read from the environment while torch is imported, and torch takes what it read for the default.
    So its own text is run once more, in a module of its own, without the variables that it asks for.
    """
    config = _config_module(module)
    name = f"torchsleuth pristine {module}"
    spec = importlib.util.spec_from_file_location(name, config.__file__)
    try:
        asked = set(_A_VARIABLE.findall(Path(config.__file__).read_text(encoding="utf-8")))
    except OSError:  # torch without its source: what it takes for the default is the best there is
        spec = None
    if spec is None or spec.loader is None:
        return {option: entry.default for option, entry in _config_entries(module).items()}
    pristine = importlib.util.module_from_spec(spec)
    _without_variables(pristine, asked)
    with _pristine:
        sys.modules[name] = pristine
        try:
            spec.loader.exec_module(pristine)
        finally:
            del sys.modules[name]
    return {option: entry.default for option, entry in pristine._config.items() if entry.alias is None}


class _StandIn(ModuleType):
    """A module with a few names of its own; the others are those of another module."""

    def __init__(self, other: ModuleType, **own: Any) -> None:
        super().__init__(other.__name__)
        self.__dict__.update(own)
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def _without_variables(module: ModuleType, asked: Set[str]) -> None:
    """Let a module that is about to be executed see an environment without these variables.

    The module alone sees it, through what its `import` gives it: other threads write to `os.environ` meanwhile.
    """
    kept = {key: value for key, value in os.environ.items() if key not in asked}
    operating_system = _StandIn(os, environ=kept, getenv=kept.get)
    home = sys.modules[resolve("config_patcher").__module__]  # has functions that ask on behalf of the module
    asking = {
        name: FunctionType(function.__code__, {**vars(home), "os": operating_system}, argdefs=function.__defaults__)
        for name, function in vars(home).items()
        if isinstance(function, FunctionType) and "environ" in function.__code__.co_names
    }
    given: dict[str, ModuleType] = {"os": operating_system, home.__name__: _StandIn(home, **asking)}

    def importing(name: str, *details: Any) -> ModuleType:
        return given[name] if name in given else __import__(name, *details)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": importing}


@contextmanager
def config_patch(module: str, changes: Mapping[str, Any]) -> Iterator[None]:
    """Other values of some options for a while, in this thread. Afterwards each is as it was: unset, if it was unset.

    An option that this torch does not have raises a KeyError on entering, and nothing is changed.
    """
    revert = resolve("config_patcher")(_config_module(module), **changes)()
    try:
        yield
    finally:
        revert()

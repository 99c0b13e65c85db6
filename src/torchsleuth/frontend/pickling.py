"""What a record keeps of a program: its functions by name where they have one, by their bytecode where they have not.

    save(state, file, computed)        raises what cannot be pickled
    load(file)                         imports modules and runs code: for those who trust it

A function or class of an importable module is imported when it is loaded, so a change in its file counts. What was
defined in the script itself (`__main__`) is looked up in that script, imported under another name: what stands under
`if __name__ == "__main__":` is not run. The globals that the script's functions use have the values that they had, as
far as those can be pickled. Lambdas and functions inside of functions are kept as bytecode, with the variables that
they close over; the globals they use are those of their module.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import marshal
import os
import pickle
import sys
import types
from collections.abc import Collection
from types import CellType, FunctionType, ModuleType
from typing import Any, BinaryIO, Final, NamedTuple

import torch

from torchsleuth.frontend.undoing import named_by

MAIN: Final = "__main__"
_AGAIN: Final = "sleuth_main_"


def save(state: Any, file: BinaryIO | Any, computed: Collection[torch.Tensor] = ()) -> None:
    """Writes a value as torch does. Tensors in `computed` will be results of an operator when they are loaded."""
    torch.save(state, file, pickle_module=_PickleModule(_Plan({id(each) for each in computed})))


def load(file: Any) -> Any:
    """Reads what `save` wrote. Imports what it names, and runs code that it holds."""
    return torch.load(file, weights_only=False)


# ---- where code lives ----------------------------------------------------------------------------------------


class Home(NamedTuple):
    """A module: its name, and its file, if it has one."""

    module: str
    file: str

    @classmethod
    def of(cls, module: str) -> Home:
        """The home of that name, as far as it can be found again. Otherwise its file is ""."""
        there = sys.modules.get(module)
        spec = getattr(there, "__spec__", None)
        if module == MAIN and isinstance(spec, importlib.machinery.ModuleSpec) and spec.name != MAIN:
            module = spec.name  # python -m
        file = getattr(there, "__file__", None)
        return cls(module, os.path.abspath(file) if isinstance(file, str) and os.path.exists(file) else "")

    def enter(self) -> Any:
        """The module itself, imported."""
        return script(self.file) if self.module == MAIN else importlib.import_module(self.module)


def script(file: str) -> ModuleType:
    """A script as a module: the one that is running, or imported under another name, once."""
    main = sys.modules[MAIN]
    running = getattr(main, "__file__", None)
    if running is not None and os.path.exists(running) and os.path.samefile(running, file):
        return main
    name = _AGAIN + os.path.splitext(os.path.basename(file))[0]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no script of Python's", path=file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    arguments, sys.argv = sys.argv, [file]
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.argv = arguments
    return module


def find(home: Home, path: str, wrappers: int = 0) -> Any:
    """What has that name in a module; or what is inside, so many wrappers deep."""
    found: Any = functools.reduce(getattr, path.split("."), home.enter())
    for _ in range(wrappers):
        found = found.__wrapped__
    return found


def _wrappers_around(value: Any) -> int | None:
    """How many wrappers deep a function or class is found under its name. None, if it is not."""
    module, path = str(value.__module__), value.__qualname__
    if "<" in path or (module == MAIN and not Home.of(module).file):
        return None
    try:
        found: Any = functools.reduce(getattr, path.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return None
    for wrappers in range(20):
        if found is value:
            return wrappers
        found = getattr(found, "__wrapped__", None)
    return None


# ---- pickling ------------------------------------------------------------------------------------------------


class _Plan:
    """What was decided while a state is pickled."""

    def __init__(self, computed: set[int]) -> None:
        self.computed = computed
        self._names: dict[FunctionType, dict[str, Any]] = {}
        self._good: dict[int, bool] = {}

    def names_for(self, function: FunctionType) -> dict[str, Any]:
        """The globals that this function uses and that can be pickled."""
        if function not in self._names:
            self._names[function] = kept = {}  # a function that uses itself finds what was decided so far
            theirs = function.__globals__
            for name in named_by(function.__code__):
                if name in theirs and self._is_good(theirs[name]):
                    kept[name] = theirs[name]
        return self._names[function]

    def _is_good(self, value: Any) -> bool:
        if id(value) not in self._good:
            self._good[id(value)] = True  # as long as nobody knows better
            try:
                with torch.serialization.skip_data():
                    torch.save(value, io.BytesIO(), pickle_module=_PickleModule(self))
            except Exception:  # noqa: BLE001 - whatever it is, it says that it cannot be pickled
                self._good[id(value)] = False
        return self._good[id(value)]


class _PickleModule:
    """What torch takes for the module `pickle`."""

    __name__ = "pickle"

    def __init__(self, plan: _Plan) -> None:
        self.Pickler = type("Pickler", (_Pickler,), {"plan": plan})


class _Pickler(pickle.Pickler):
    plan: _Plan

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return _function_reduced(value, self.plan)
        if isinstance(value, type):
            return _class_reduced(value)
        if isinstance(value, CellType):
            content = () if value == CellType() else (value.cell_contents,)
            return _new_cell, (), content, None, None, _fill_cell
        if isinstance(value, ModuleType):
            return Home.enter, (Home.of(value.__name__),)
        if isinstance(value, types.MappingProxyType):
            return _read_only, (dict(value),)
        if getattr(type(value), "is_captured", False) is True:
            return _capture_again, (value.fn, value.dynamic)
        if id(value) in self.plan.computed:
            return computed, (value.detach().requires_grad_(),)
        return NotImplemented


def computed(leaf: torch.Tensor) -> torch.Tensor:
    """The tensor as a result of an operator, not as a leaf."""
    with torch.enable_grad():
        return leaf.clone()


def _class_reduced(value: type) -> Any:
    if value.__module__ != MAIN:
        return NotImplemented
    if _wrappers_around(value) is None:
        raise pickle.PicklingError(f"the class {value.__qualname__} cannot be found again: no file defines it")
    return find, (Home.of(MAIN), value.__qualname__)


def _capture_again(fn: Any, dynamic: bool) -> Any:
    from torchsleuth.frontend.capturing import Captured

    return Captured(fn, dynamic=dynamic)


def _read_only(value: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(value)


def _new_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


# ---- functions -----------------------------------------------------------------------------------------------


def _function_reduced(function: FunctionType, plan: _Plan) -> Any:
    home, wrappers = Home.of(str(function.__module__)), _wrappers_around(function)
    if wrappers is not None and function.__module__ != MAIN:
        return (find, (home, function.__qualname__, wrappers)) if wrappers else NotImplemented
    code = importlib.util.MAGIC_NUMBER, marshal.dumps(function.__code__)
    names = plan.names_for(function) if function.__module__ == MAIN or not home.file else {}
    state = (function.__defaults__, function.__kwdefaults__, function.__dict__, names)
    made = (home, function.__qualname__, wrappers, code, function.__closure__)
    return get_function, made, state, None, None, _fill_function


_NAMESPACES: dict[str, dict[str, Any]] = {}
"""The globals of functions whose module is in no file."""


def get_function(
    home: Home, name: str, wrappers: int | None, code: tuple[bytes, bytes], cells: tuple[CellType, ...] | None
) -> FunctionType:
    """A function by its name, if it has one that is there; or else from its bytecode, in its module."""
    if wrappers is not None:
        try:
            found = find(home, name, wrappers)
        except AttributeError:
            found = None  # it was defined in the main part
        if isinstance(found, FunctionType):
            return found
    magic, bytecode = code
    if magic != importlib.util.MAGIC_NUMBER:
        raise ValueError(f"the bytecode of {name} is that of another version of Python")
    if home.file:
        names = vars(home.enter())
    else:
        names = _NAMESPACES.setdefault(home.module, {"__name__": home.module, "__builtins__": builtins})
    made = FunctionType(marshal.loads(bytecode), names, closure=cells)
    made.__qualname__ = name
    made.__module__ = home.module
    return made


def _fill_function(function: FunctionType, state: Any) -> None:
    defaults, keyword_defaults, attributes, names = state
    if function.__defaults__ is None and function.__kwdefaults__ is None:
        function.__defaults__, function.__kwdefaults__ = defaults, keyword_defaults
    function.__dict__.update(attributes)
    known = function.__globals__
    running = known is vars(sys.modules[MAIN])  # a replay in the program itself leaves it as it is
    for name, value in names.items():
        if name not in known or not (running or isinstance(value, (type, FunctionType, ModuleType))):
            known[name] = value

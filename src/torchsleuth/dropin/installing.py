"""The drop-in in the places of torch that call its own tool; and out of them again.

    install()                   from now on, in this process
    uninstall()
    install_when_needed()       the same as the program imports torch's: it may set variables before that

Torch's modules stay the ones that they are. Those of their names that the drop-in serves are ours meanwhile: so scripts
that torch wrote, and programs that call its functions, get ours.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.capture.lazily import WhenImported
from torchsleuth.errors import in_words
from torchsleuth.locks import ForkableLock

_OURS: Final = "torchsleuth.dropin"
_AFTER_AOT: Final = (
    "wrap_compiler_debug save_graph_repro generate_compiler_repro_string generate_standalone_repro dump_to_minify "
    "dump_compiler_graph_state repro_common repro_run repro_minify repro_analyze repro_get_args repro_minifier_query "
    "run_repro isolate_fails inductor_fails inductor_accuracy_fails backend_aot_accuracy_fails ACCURACY_FAILS "
    "InputReader InputWriter NopInputReader setup_fake_process_groups _get_compile_args _extract_distributed_info "
    "AccuracyError same_two_models backend_accuracy_fails helper_for_dump_minify minifier_dir"
).split()
_AFTER_DYNAMO: Final = (
    "wrap_backend_debug WrapBackendDebug generate_dynamo_fx_repro_string dump_backend_repro_as_file dump_backend_state "
    "dump_to_minify_after_dynamo dynamo_minifier_backend dynamo_accuracy_minifier_backend backend_fails run_repro "
    "repro_run repro_minify run_load_args AccuracyError same_two_models run_fwd_maybe_bwd backend_accuracy_fails "
    "helper_for_dump_minify"
).split()
_DEBUG_UTILS: Final = (
    "same_two_models run_fwd_maybe_bwd cast_to_fp64 backend_accuracy_fails AccuracyError NNModuleToString "
    "generate_config_string generate_env_vars_string aot_graph_input_parser minifier_dir get_minifier_repro_path "
    "helper_for_dump_minify InputReader InputWriter NopInputReader clone_inputs_retaining_gradness "
    "UnsupportedNNModuleError"
).split()


@dataclass(frozen=True)
class _Place:
    """A module of torch's, and those of its names that are to be ours."""

    theirs: str
    ours: str
    names: list[str]


_PLACES: Final = (
    _Place("torch._dynamo.repro.after_aot", "after_aot", _AFTER_AOT),
    _Place("torch._inductor.compile_fx", "after_aot", ["wrap_compiler_debug"]),
    _Place("torch._inductor.debug", "after_aot", ["save_graph_repro"]),
    _Place("torch._dynamo.repro.after_dynamo", "after_dynamo", _AFTER_DYNAMO),
    _Place("torch._dynamo.debug_utils", "debug_utils", _DEBUG_UTILS),
    _Place("torch._functorch.fx_minifier", "fx_minifier", ["minifier", "dump_state"]),
    _Place("functorch.compile", "fx_minifier", ["minifier"]),
)
_BACKENDS: Final = ("dynamo_minifier_backend", "dynamo_accuracy_minifier_backend")
"""What torch registers under these names when it imports its own."""


class _Installation:
    """What stands where, and what stood there before."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._before: dict[tuple[str, str], tuple[Any, Any]] = {}
        """By module and name: what was there, what is there now."""
        self._originals: dict[int, Any] = {}
        """What each of ours stands for: modules that are imported late have ours from the beginning."""
        self._backends: dict[str, Any] = {}
        self._waiting: list[WhenImported] = []
        self._users = 0
        """How many have it installed for a while."""
        self._is_for_good = False

    def enter(self) -> None:
        """For a while: one more who needs it."""
        with self._lock:
            self._users += 1
            stands = bool(self._before or self._waiting)
            self._is_for_good = self._is_for_good or (stands and self._users == 1)
        if not stands:
            self._take_all()

    def leave(self) -> None:
        """One fewer."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0 and not self._is_for_good
        if is_last:
            self.uninstall()

    def install(self) -> None:
        """Everywhere, now, until it is undone."""
        self._is_for_good = True
        self._take_all()

    def _take_all(self) -> None:
        """Torch is made to import what it has not yet."""
        torch_compat.load_repro_tools()
        for place in _PLACES:
            self._take(place)
        self._stop_waiting()

    def install_when_needed(self) -> None:
        """In each module as soon as it is imported. Those that import from it later get ours."""
        self._is_for_good = True
        self._stop_waiting()
        for place in _PLACES:
            if place.theirs in sys.modules:
                self._take(place)
            else:
                waiting = WhenImported(place.theirs, partial(self._take_or_warn, place))
                self._waiting.append(waiting)
                sys.meta_path.insert(0, waiting)

    def uninstall(self) -> None:
        self._is_for_good = False
        self._stop_waiting()
        with self._lock:
            for (module, name), (was, ours) in self._before.items():
                home = sys.modules.get(module)
                if home is not None and getattr(home, name, None) is ours:  # nobody else has taken its place meanwhile
                    setattr(home, name, was)
            self._before.clear()
            self._originals.clear()
            table = torch_compat.registered_backends() if self._backends else {}
            for name, was in self._backends.items():
                if isinstance(table.get(name), _Tagged):
                    table[name] = was
            self._backends.clear()

    def _take(self, place: _Place) -> None:
        home = sys.modules.get(place.theirs)
        if home is None:
            return
        served = importlib.import_module(f"{_OURS}.{place.ours}")
        with self._lock:
            for name in place.names:
                if hasattr(home, name) and (place.theirs, name) not in self._before:
                    ours, was = getattr(served, name), getattr(home, name)
                    if was is not ours:
                        self._originals.setdefault(id(ours), was)
                    else:  # it was imported from a module in which ours stands already
                        was = self._originals.get(id(ours), was)
                    self._before[place.theirs, name] = (was, ours)
                    setattr(home, name, ours)
            if place.ours == "after_dynamo":
                self._take_backends(served)

    def _take_backends(self, served: ModuleType) -> None:
        table = torch_compat.registered_backends()
        for name in _BACKENDS:
            if name in table and not isinstance(table[name], _Tagged):
                self._backends[name] = table[name]
                table[name] = _Tagged(getattr(served, name))

    def _take_or_warn(self, place: _Place) -> None:
        try:
            self._take(place)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on without us
            warnings.warn(f"torchsleuth does not stand in for {place.theirs}: {in_words(error)}", stacklevel=2)

    def _stop_waiting(self) -> None:
        for waiting in self._waiting:
            waiting.leave()
        self._waiting.clear()


class _Tagged:
    """A backend as torch's table has it."""

    _tags = ("debug",)

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


_INSTALLATION: Final = _Installation()


def install() -> None:
    """Serve torch's repro interface from now on. Twice is once."""
    _INSTALLATION.install()


def uninstall() -> None:
    """Leave everything as it was before."""
    _INSTALLATION.uninstall()


@contextmanager
def installed() -> Iterator[None]:
    """Inside, torch's repro interface is served; afterwards as before, once nobody else needs it."""
    _INSTALLATION.enter()
    try:
        yield
    finally:
        _INSTALLATION.leave()


def install_when_needed() -> None:
    """Serve it as soon as the program imports what would call it; torch itself is not imported for that."""
    _INSTALLATION.install_when_needed()

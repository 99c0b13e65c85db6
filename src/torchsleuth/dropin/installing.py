"""The drop-in in the places of torch that call its own tool; and out of them again.

    install()                   from now on, in this process
    uninstall()
    install_when_needed()       the same as soon as the program imports Dynamo: it may set variables before that

Torch's modules stay the ones that they are. Those of their names that the drop-in serves are ours meanwhile: so scripts
that torch wrote, and programs that call its functions, get ours.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.capture.lazily import WhenImported
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
    "helper_for_dump_minify InputReader InputWriter NopInputReader clone_inputs_retaining_gradness"
).split()
_PLACES: Final[tuple[tuple[str, str, list[str]], ...]] = (
    # (the module of torch's, ours, which names)
    ("torch._dynamo.repro.after_aot", "after_aot", _AFTER_AOT),
    ("torch._inductor.compile_fx", "after_aot", ["wrap_compiler_debug"]),
    ("torch._inductor.debug", "after_aot", ["save_graph_repro"]),
    ("torch._dynamo.repro.after_dynamo", "after_dynamo", _AFTER_DYNAMO),
    ("torch._dynamo.debug_utils", "debug_utils", _DEBUG_UTILS),
    ("torch._functorch.fx_minifier", "fx_minifier", ["minifier", "dump_state"]),
    ("functorch.compile", "fx_minifier", ["minifier"]),
)
_BACKENDS: Final = ("dynamo_minifier_backend", "dynamo_accuracy_minifier_backend")


class _Installation:
    """What stands where, and what stood there before."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._before: list[tuple[ModuleType, str, Any, Any]] = []
        """(module, name, what was there, what is there now)"""
        self._backends: dict[str, Any] = {}

    def install(self) -> None:
        with self._lock:
            if self._before:
                return
            for home, name, ours in _all():
                self._before.append((home, name, getattr(home, name), ours))
                setattr(home, name, ours)
            self._install_backends()

    def _install_backends(self) -> None:
        table = torch_compat.registered_backends()
        for name in _BACKENDS:
            ours = _Tagged(getattr(importlib.import_module(f"{_OURS}.after_dynamo"), name))
            self._backends[name] = table.get(name)
            table[name] = ours

    def uninstall(self) -> None:
        with self._lock:
            for home, name, was, ours in self._before:
                if getattr(home, name, None) is ours:  # not if somebody else has taken its place meanwhile
                    setattr(home, name, was)
            self._before.clear()
            table = torch_compat.registered_backends() if self._backends else {}
            for name, was in self._backends.items():
                if isinstance(table.get(name), _Tagged):
                    table[name] = was
            self._backends.clear()


class _Tagged:
    """A backend as torch's table has it."""

    _tags = ("debug",)

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def _all() -> Iterator[tuple[ModuleType, str, Any]]:
    """Every name that is to be ours: the module of torch's that has it, and what it is to be."""
    torch_compat.load_repro_tools()
    for theirs, ours, names in _PLACES:
        home = sys.modules.get(theirs)
        if home is None:
            continue
        served = importlib.import_module(f"{_OURS}.{ours}")
        for name in names:
            if hasattr(home, name):
                yield home, name, getattr(served, name)


_INSTALLATION: Final = _Installation()


def install() -> None:
    """Serve torch's repro interface from now on. Twice is once."""
    _INSTALLATION.install()


def uninstall() -> None:
    """Leave everything as it was before."""
    _INSTALLATION.uninstall()


def install_when_needed() -> None:
    """Serve it from the moment on when Dynamo is imported, which is now, if it was already."""
    if "torch._dynamo" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, WhenImported("torch._dynamo", install))

"""What the drop-in needs to stand where torch's own repro tool stands: its settings, its folder, its hooks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from torchsleuth.torch_compat.names import NAMES, resolve


def dynamo_config() -> ModuleType:
    """Dynamo's configuration as torch's own tool reads it: `repro_after`, `repro_level` and so on, live."""
    resolve("dynamo_config")  # imports it
    return sys.modules[NAMES["dynamo_config"].module]


def debug_dir() -> str:
    """The folder that torch keeps for what this process writes about its failures. No other process has the same."""
    return str(resolve("debug_dir")())


def intermediate_hook(hook: Callable[[str, Any], None]) -> AbstractContextManager[None]:
    """Inside, `hook` is told what generated code computes, by the name of its node."""
    found: AbstractContextManager[None] = resolve("intermediate_hook")(hook)
    return found


def intermediates_told() -> int:
    """How many intermediate results Inductor's generated code has been made to tell so far."""
    return int(resolve("counters")["inductor"]["intermediate_hooks"])


def dtype_abbreviations() -> dict[str, Any]:
    """Dtypes by what they are called in printed graphs: `f32`, `i64`."""
    return {name: dtype for dtype, name in resolve("dtype_abbreviations").items()}


def mark_dynamic(tensor: Any, dim: int) -> None:
    """Have torch.compile take a size of a tensor for symbolic."""
    resolve("mark_dynamic")(tensor, dim)


@contextmanager
def not_measured() -> Iterator[None]:
    """Inside, what this thread compiles does not count for the compilation that is going on.

    Torch measures each compilation once, and raises if something is measured twice in one.
    """
    thread, kind = resolve("metrics_of_thread"), resolve("MetricsContext")
    before = getattr(thread, "metrics_context", None)
    thread.metrics_context = kind(on_exit=lambda *measured: None)
    try:
        yield
    finally:
        if before is None:
            del thread.metrics_context
        else:
            thread.metrics_context = before


def registered_backends() -> dict[str, Any]:
    """Torch's own table of backends by name. None: known, but not loaded yet."""
    found: dict[str, Any] = resolve("registered_backends")
    return found


def group_of(name: str) -> tuple[int, int]:
    """How many processes a process group has, and which of them this one is."""
    group = resolve("resolve_group")(name)
    return group.size(), group.rank()


def fake_groups(groups: Mapping[str, Mapping[str, int]]) -> None:
    """Process groups of these names and sizes, in this process alone. What collectives compute is not to be trusted.

    They stay until `torch.distributed.destroy_process_group()`.
    """
    from torch import distributed

    if not groups:
        return
    store, register, unregister = (resolve(key) for key in ("FakeStore", "register_group", "unregister_groups"))
    size = max(each["size"] for each in groups.values())
    rank = next(each["rank"] for each in groups.values() if each["size"] == size)
    distributed.init_process_group(backend="fake", rank=rank, world_size=size, store=store())
    world = distributed.group.WORLD
    unregister()
    for name, each in groups.items():
        register(name, world if each["size"] == size else distributed.new_group(list(range(each["size"]))))


def compile_inner() -> Callable[..., Any]:
    """Inductor's compiler of graphs after AOT as it stands now: somebody may have put another in its place."""
    name = NAMES["inductor_inner"]
    found: Callable[..., Any] = getattr(importlib.import_module(name.module), name.attribute)
    return found


def keep_intermediate_hooks() -> None:
    """From now on, Inductor's generated code tells what it computes to whoever listens (`intermediate_hook`)."""
    resolve("inductor_config")  # imports it
    sys.modules[NAMES["inductor_config"].module].generate_intermediate_hooks = True  # type: ignore[attr-defined]


def triton_constants(number: int) -> dict[str, Any]:
    """Arguments of a Triton kernel that graphs refer to by number."""
    table = resolve("triton_kernels")
    found: dict[str, Any] = table.constant_args.get(number, {})
    return found


def load_repro_tools() -> None:
    """Have torch import what it brings along for failures: with Inductor, and with its list of backends."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing Inductor warns; that is none of the user's doing
        resolve("inductor_inner")
        torch.compiler.list_backends()

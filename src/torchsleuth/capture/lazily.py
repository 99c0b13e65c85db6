"""Watching that begins when the program compiles something for the first time, and not before.

    with Lazily(after=After.AOT, level=Level.MINIFY, store=".sleuth") as watching: ...
    watching.kept                the cases so far

A program may set variables that torch reads when it is imported, or when Dynamo is; or never import torch at all. So
whoever watches a whole program (`sleuth run`, `torchsleuth.auto`, the pytest plugin) imports neither in its place, but
waits for the program to import Dynamo, as torch.compile does. If watching cannot begin, that is a warning and `failed`:
importing must not fail because of us.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from torchsleuth.capture.journal import Kept
from torchsleuth.config import After, Level, current
from torchsleuth.errors import in_words


def unwatched(journal: Path) -> Path:
    """The file beside a journal that says why nothing was watched, if nothing was."""
    return journal.with_name(f"{journal.name}-unwatched")


_DYNAMO: Final = "torch._dynamo"


class Lazily:
    """`installed`, from the moment on when Dynamo is there."""

    def __init__(self, *, after: After, level: Level, store: str, journal: Path | None = None) -> None:
        self.failed = ""
        """Why nothing is watched."""
        self._arguments: dict[str, Any] = {"after": after, "level": level, "store": store, "journal": journal}
        self._installed: AbstractContextManager[Any] | None = None
        self._watch: Any = None
        self._finder = WhenImported(_DYNAMO, self._begin)

    @property
    def kept(self) -> list[Kept]:
        """The cases that this process kept."""
        return [] if self._watch is None else list(self._watch.kept)

    def __enter__(self) -> Lazily:
        current()  # the settings are those of now, wherever the program goes
        if _DYNAMO in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, self._finder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finder.leave()
        if self._installed is not None:
            installed, self._installed = self._installed, None
            installed.__exit__(kind, error, trace)

    def _begin(self) -> None:
        try:
            from torchsleuth.capture.installing import installed

            context = installed(**self._arguments)
            self._watch = context.__enter__()
            self._installed = context
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on without us
            self.failed = in_words(error)
            if self._arguments["journal"] is not None:
                with contextlib.suppress(OSError):
                    unwatched(self._arguments["journal"]).write_text(self.failed, encoding="utf-8", errors="replace")
            warnings.warn(f"torchsleuth does not watch this program: {self.failed}", stacklevel=2)


class WhenImported(MetaPathFinder):
    """Calls somebody once a module has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _AndThen(spec.loader, self._then)
        return spec

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _AndThen(Loader):
    """Loads a module as its own loader does, and then calls somebody."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # nobody is to see that we were here
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        package, _, name = module.__name__.rpartition(".")
        if package:
            setattr(sys.modules[package], name, module)  # as the import would do, but only after us
        self._then()

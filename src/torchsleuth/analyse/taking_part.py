"""A process that takes part in a session: torch is told what to leave out, and the session what torch says.

    environment = invitation(session, state.step.backend)      for a command; each Python process that it starts joins
    begin(folder)                                              a process joins

It joins when torch first asks its bisector, and not before: until then nothing of torch is imported, and a process that
compiles nothing is left alone. `child_path` is put on PYTHONPATH; Python runs the file there when it starts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from torchsleuth.errors import in_words

if TYPE_CHECKING:
    from torchsleuth.analyse.sessions import Session, State
    from torchsleuth.torch_compat import Answers

INVITED: Final = "TORCHSLEUTH_BISECT"
"""The variable that names the folder of the session."""
CHILD_PATH: Final = Path(__file__).with_name("child_path")
_BACKEND: Final = "TORCH_COMPILE_BACKEND"
"""Where torch's own tool tells a program which backend is tried, for those that choose one by themselves."""


def invitation(session: Session, backend: str) -> dict[str, str]:
    """The environment of a command that is to take part."""
    paths = [str(CHILD_PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, INVITED: str(session.folder), "PYTHONPATH": os.pathsep.join(paths), _BACKEND: backend}


def begin(folder: str) -> None:
    """Join the session as soon as torch asks."""
    sys.meta_path.insert(0, _WhenAsked(folder))


class _WhenAsked(MetaPathFinder):
    """Waits for torch to import its bisector, and gives it one that answers as the session has it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("torch.") or "bisect" not in fullname:
            return None  # most modules; torch may not be there yet
        try:
            from torchsleuth import torch_compat

            if fullname != torch_compat.bisector_module():
                return None
            sys.meta_path.remove(self)
            module = torch_compat.answer_bisector(_answers(self._folder))
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on without us
            with suppress(OSError):
                Path(self._folder, "trouble").write_text(in_words(error), encoding="utf-8", errors="replace")
            return None
        return importlib.util.spec_from_loader(fullname, _Given(module))


class _Given(Loader):
    """Loads a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _answers(folder: str) -> Answers:
    from torchsleuth.analyse.sessions import Session
    from torchsleuth.analyse.trials import Trial

    session = Session(Path(folder))
    state = session.state

    class Telling(Trial):
        """Tells the session at once: nobody knows how a process will end."""

        def noted(self, number: int, info: str | None) -> None:
            _tell(session, state, json.dumps([number, info]))

    _tell(session, state, "")
    return Telling(state.step)


def _tell(session: Session, state: State, line: str) -> None:
    with suppress(OSError), open(session.file_of(state, os.getpid()), "ab", buffering=0) as file:  # it may be over
        file.write(f"{line}\n".encode())

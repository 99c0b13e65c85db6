"""What Python runs when it starts a process of a command that is bisected: the process joins the session.

Then it is as if this file had not been there: the folder is off the path, and the `sitecustomize` that Python would
have run is run.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from contextlib import suppress


def _take_part() -> None:
    folder = os.environ.get("TORCHSLEUTH_BISECT")
    if folder and os.path.isdir(folder):
        with suppress(ImportError):  # a Python without torchsleuth may have nothing to do with torch either
            from torchsleuth.analyse.taking_part import begin

            begin(folder)


def _step_aside() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _take_part()
    _step_aside()

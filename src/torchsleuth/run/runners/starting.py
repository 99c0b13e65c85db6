"""Starting an interpreter that finds the same modules as this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torchsleuth.run.runners import folders

_CODE: Final = (
    "import json, sys; path, main, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "import importlib; importlib.import_module(main).main([json.dumps(arguments)])"
)


def start(
    module: str,
    arguments: Any,
    fds: Sequence[int],
    *,
    variables: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """A new interpreter, in a session of its own, that calls `main` of a module with these arguments.

    It keeps these files and has no input; it has these variables besides ours, or besides those of `environ`.
    """
    here = folders.current()
    path = [os.path.abspath(entry) for entry in sys.path if here is not None or os.path.isabs(entry)]
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _CODE, json.dumps([path, module, arguments])],
        pass_fds=tuple(fds),
        env={**(os.environ if environ is None else environ), **variables},
        cwd=None if here is not None else "/",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )

"""Where torch's users look for files: the debug folder, the launcher, the checkpoints, `repro.py` where they are.

    <debug folder>/run_…-pid_…/minifier/minifier_launcher.py
    <debug folder>/run_…-pid_…/minifier/checkpoints/<node count>.py, and storages/ beside it
    ./repro.py

The debug folder is torch's own (`torch._dynamo.config.debug_dir_root`); each process has one to itself. A file appears
whole or not at all. Scripts name the folder of their data; if they were moved, it is looked for beside them.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from torchsleuth import torch_compat
from torchsleuth.case.disk import temporary_name

log = logging.getLogger("torch._dynamo.debug_utils")
"""Where torch's own tool says such things."""

LAUNCHER = "minifier_launcher.py"
CHECKPOINTS = "checkpoints"
STORAGES = "storages"


def minifier_dir() -> str:
    """The folder for what is written about failures of this process. It is there when this returns."""
    path = os.path.join(torch_compat.debug_dir(), "minifier")
    os.makedirs(path, exist_ok=True)
    return path


def checkpoints_dir() -> str:
    """The folder for graphs and their data."""
    path = os.path.join(minifier_dir(), CHECKPOINTS)
    os.makedirs(path, exist_ok=True)
    return path


def get_minifier_repro_path() -> str:
    """Where the launcher is."""
    return os.path.join(minifier_dir(), LAUNCHER)


def helper_for_dump_minify(contents: str) -> None:
    """Write the launcher, and say where it is. If that cannot be done, a NotImplementedError, as torch has it."""
    path = get_minifier_repro_path()
    log.warning("The failure can be made smaller by running\n%s", path)
    try:
        write_whole(path, contents)
    except OSError as error:
        log.exception("the launcher could not be written")
        raise NotImplementedError(f"{path} cannot be written: {error}") from error


def write_whole(path: str | os.PathLike[str], contents: str) -> None:
    """A file with this text, on the disk; or no change at all."""
    there = Path(os.path.realpath(path))
    if there.exists() and not there.is_file():
        raise IsADirectoryError(f"{there} is no file that could be written anew")
    temporary = there.with_name(temporary_name())
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, there)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def found_again(save_dir: str, script: str | None = None) -> str:
    """The folder of a script's data: where the script says, or beside it, if both were moved.

    `script`: where it is; by default the file that Python was started with.
    """
    if os.path.isdir(os.path.join(save_dir, STORAGES)):
        return save_dir
    main = script or getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return save_dir
    home = os.path.dirname(os.path.abspath(main))
    beside = (os.path.join(home, os.path.basename(os.path.normpath(save_dir))), os.path.join(home, CHECKPOINTS), home)
    return next((one for one in beside if os.path.isdir(os.path.join(one, STORAGES))), save_dir)

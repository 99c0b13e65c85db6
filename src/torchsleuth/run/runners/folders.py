"""The folder of a worker: its temporary files and Inductor's cache. Nobody shares it, and it goes with the worker.

A compiler that is killed leaves half a library behind, and Inductor takes what is there for whole. But two things that
it makes once for a user take many seconds: precompiled headers (150 MB each), and libraries by which it finds out what
the processor can do ("probes"). Those that are there are lent to each worker, as links. New ones are put there when
the worker that made them has answered: then they are whole. A template is lent the kernels of the one before as well,
which were the same.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEADERS: Final = "precompiled_headers"
_PROBES: Final = "sleuth_probes"
_KERNELS: Final = "sleuth_kernels"
_WHOLE: Final = (".gch", ".pch")
LOADS: Final = ".loads-"
"""Stands in the name of a note that a library can be loaded, after the name of the library."""


def current() -> str | None:
    """The current folder; None if somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return None


def make(folder: str, *, kernels: bool = False) -> dict[str, str]:
    """Make the folder of a worker, with the kernels of a template if it is one. Returns the variables of one who uses
    it."""
    temporary, cache = Path(folder, "tmp"), Path(folder, "cache")
    for one in (temporary, cache, headers_in(folder)):
        one.mkdir(parents=True, exist_ok=True)
    home = _torch_s_folder(tempfile.gettempdir())
    _link(_headers(home / _HEADERS), headers_in(folder))
    _link(_probes(home / _PROBES), cache)
    if kernels:
        _link(_kernels(home / _KERNELS), cache)
    return {
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more would be processes that outlive a query
    }


def give_back(folder: str, *, kernels: bool = False) -> None:
    """Put headers and probes that a worker has made where the next one finds them, if there is such a place; kernels
    as well if it was a template."""
    with contextlib.suppress(OSError):
        home = _torch_s_folder(tempfile.gettempdir())
        _link(_headers(headers_in(folder)), home / _HEADERS)
        _link(_probes(Path(folder, "cache")), home / _PROBES)
        if kernels:
            _link(_kernels(Path(folder, "cache")), home / _KERNELS)


def headers_in(folder: str) -> Path:
    """Where torch keeps precompiled headers in a worker with this folder."""
    return _torch_s_folder(os.path.join(folder, "tmp")) / _HEADERS


def empty(folder: str) -> None:
    """As it was made, apart from headers and probes: they are named by what is in them."""
    cache, kept = Path(folder, "cache"), headers_in(folder).parent
    probes = {path for pair in _probes(cache) for path in pair}
    for place, keep in ((cache, {path.parent for path in probes}), (kept.parent, {kept})):
        for path in _entries(place):
            if path not in keep:
                _remove(path)
    for path in (inner for folder_ in {probe.parent for probe in probes} for inner in _entries(folder_)):
        if path not in probes:
            _remove(path)


def remove(folder: str) -> None:
    """All of it, whatever a program did to the permissions."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):
        for place, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(place, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove(str(path))
    else:
        with contextlib.suppress(OSError):
            path.unlink()


# ---- what is lent ----------------------------------------------------------------------------------------------


def _headers(folder: Path) -> Iterator[tuple[Path, ...]]:
    """Headers that are compiled: the text, and what was made of it."""
    for path in _entries(folder):
        if path.suffix in _WHOLE:
            yield path.with_suffix(""), path


def _probes(folder: Path) -> Iterator[tuple[Path, ...]]:
    """Libraries that are no kernels, and notes that they can be loaded."""
    for text, library in _libraries(folder):
        if not _is_kernel(library):
            yield text, library, *sorted(library.parent.glob(f"{library.name}{LOADS}*"))


def _kernels(folder: Path) -> Iterator[tuple[Path, ...]]:
    return (pair for pair in _libraries(folder) if _is_kernel(pair[-1]))


def _is_kernel(library: Path) -> bool:
    """Those have a second suffix."""
    return "." in library.stem


def _libraries(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Libraries in a cache of Inductor's: the text, and what was made of it."""
    for part in _entries(folder):
        for path in _entries(part) if len(part.name) == 2 else ():
            if path.suffix == ".so" and path.with_suffix(".cpp").is_file():
                yield path.with_suffix(".cpp"), path


def _link(found: Iterator[tuple[Path, ...]], target: Path) -> None:
    """Link files, the text first, so that nobody finds the compiled one alone. Probes keep their inner folder."""
    for pair in found:
        with contextlib.suppress(OSError):  # the file system has no links, or no room: it is made anew
            for path in pair:
                inner = target if pair[-1].suffix in _WHOLE else target / path.parent.name
                inner.mkdir(parents=True, exist_ok=True)
                if not (inner / path.name).exists():
                    os.link(path, inner / path.name)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _torch_s_folder(temporary: str) -> Path:
    """Where torch keeps its own for a user."""
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return Path(temporary, "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))

"""What lies in a store and no case needs: tensors of cases that were removed, and what killed writers left behind.

A tensor is written before the case that refers to it, so that one without a case is not garbage at once. Therefore
nothing young is removed, and a writer that finds its tensor in the store makes it young again (`Store.blobs`). What is
young only when its turn comes is put back: see `LocalFiles.remove`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torchsleuth.case.format.digests import PREFIX, is_digest
from torchsleuth.case.stores.files import TEMPORARY, told

if TYPE_CHECKING:
    from torchsleuth.case.stores.store import Store

CASE_FILE: Final = "case.json"
SUFFIX: Final = ".safetensors"

_DIGESTS = re.compile(PREFIX.encode() + rb"[0-9a-f]{64}")
_CHUNK: Final = 1 << 24


@dataclass(frozen=True)
class Freed:
    """What a collection of garbage removed."""

    tensors: int = 0
    strays: int = 0
    """Files and folders that a killed writer left behind, and labels of cases that are gone."""
    nbytes: int = 0
    """How many bytes the tensors had."""


def collect(store: Store, older_than: float) -> Freed:
    """Remove what no case needs, and nothing younger than that (seconds)."""
    files = store.files
    if not files.names("tensors") and not files.names("cases"):
        return Freed()  # there is no store, and none should come into being
    with files.lock(alone=True):
        before = files.now() - older_than
        tensors = [name for name in files.names("tensors") if _is_tensor(name)]
        used = _used(store)
        removed, nbytes = 0, 0
        for name in tensors:
            size = files.size(f"tensors/{name}") or 0
            unused = name.removesuffix(SUFFIX) not in used
            if unused and files.remove(f"tensors/{name}", unless_after=before):
                removed, nbytes = removed + 1, nbytes + size
        strays = sum(files.remove(name, unless_after=before) for name in list(_strays(store)))
    return Freed(removed, strays, nbytes)


def _is_tensor(name: str) -> bool:
    return name.endswith(SUFFIX) and is_digest(name.removesuffix(SUFFIX))


def _used(store: Store) -> set[str]:
    """Every digest that stands in the file of a case, also of a broken one, or one of a newer version."""
    used: set[str] = set()
    for case in store.case_names():
        name = f"cases/{case}/{CASE_FILE}"
        if store.files.size(name) is None:
            continue
        with told("read it", store.files.path(name), Exception), store.files.open(name) as file:
            end = b""
            while piece := file.read(_CHUNK):
                used.update(found.decode() for found in _DIGESTS.findall(end + piece))
                end = (end + piece)[1 - len(PREFIX) - 64 :]
    return used


def _strays(store: Store) -> Iterator[str]:
    for folder in ["", "tensors/", "cases/", "labels/", *(f"cases/{name}/" for name in store.case_names())]:
        yield from (f"{folder}{name}" for name in store.files.names(folder) if name.endswith(TEMPORARY))
    for label, case in store.labels():
        if not store.has(case):
            yield f"labels/{label}"

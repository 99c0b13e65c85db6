"""What lies in a store and no case needs: tensors of cases that were removed, and what killed writers left behind.

A tensor is written before the case that refers to it, so that one without a case is not garbage at once. Therefore
nothing young is removed, and a writer that finds its tensor in the store makes it young again (`Store.blobs`). What is
young only when its turn comes is put back: see `LocalFiles.remove`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from torchsleuth.case.disk import TEMPORARY, told
from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import PREFIX, is_digest
from torchsleuth.case.format.tensor_files import SUFFIX
from torchsleuth.case.stores.files import CASE_FILE
from torchsleuth.errors import BadCase

if TYPE_CHECKING:
    from torchsleuth.case.stores.store import Store

YOUNG: Final = 3600.0
"""How many seconds a tensor is left alone, unless somebody says otherwise."""

_DIGESTS = re.compile(PREFIX.encode() + rb"[0-9a-f]{64}")
_CHUNK: Final = 1 << 24


@dataclass(frozen=True)
class Freed:
    """What a collection of garbage removed."""

    tensors: int = 0
    strays: int = 0
    """Files and folders that a killed writer left behind, labels of cases that are gone, and graphs that were kept for
    the history of such."""
    nbytes: int = 0
    """How many bytes the tensors had."""
    young: int = 0
    """Tensors that no case refers to, and that stay for now."""


def collect(store: Store, older_than: float) -> Freed:
    """Remove what no case needs, and nothing younger than that (seconds)."""
    files = store.files
    if not files.names("tensors") and not files.names("cases"):
        return Freed()  # there is no store, and none should come into being
    with files.lock(alone=True):
        before = files.now() - older_than
        strays = sum(files.remove(name, unless_after=before) for name in list(_unlisted(store)))
        tensors = [name for name in files.names("tensors") if _is_tensor(name)]
        used = _used(store)
        removed, nbytes, young = 0, 0, 0
        for name in tensors:
            if name.removesuffix(SUFFIX) in used:
                continue
            size = files.size(f"tensors/{name}") or 0
            if files.remove(f"tensors/{name}", unless_after=before):
                removed, nbytes = removed + 1, nbytes + size
            else:
                young += 1
        strays += sum(files.remove(name, unless_after=before) for name in list(_strays(store)))
    return Freed(removed, strays, nbytes, young)


_SLACK: Final = 2.0
"""Seconds by which the times of two files may be apart the wrong way."""


def discard(store: Store, case: str, tensors: Mapping[str, float], since: float) -> None:
    """Remove a case, and those tensors that no other case has, nor anybody asked for after the moment given with each.

    The tensors were not there before `since`, so that no case from before that can have them.
    """
    with store.files.lock(alone=True):
        store.files.remove(f"cases/{case}")
        used = _used(store, since - _SLACK) if tensors else set()
        for digest, asked in tensors.items():
            if digest not in used:
                store.files.remove(f"tensors/{digest}{SUFFIX}", unless_after=asked)


def _is_tensor(name: str) -> bool:
    return name.endswith(SUFFIX) and is_digest(name.removesuffix(SUFFIX))


class _Content(msgspec.Struct):
    digest: str = ""


class _Storage(msgspec.Struct):
    content: _Content


class _Body(msgspec.Struct):
    storages: list[_Storage] = []


class _File(msgspec.Struct):
    case: _Body


def _used(store: Store, since: float | None = None) -> set[str]:
    """Every digest that a case refers to, also a broken one, or one of a newer version. `since`: cases written then or
    later."""
    used: set[str] = set()
    for case in store.case_names():
        name = f"cases/{case}/{CASE_FILE}"
        if since is not None and (store.files.modified(name) or since) < since:
            continue
        if store.files.size(name) is not None:
            used |= _digests(store, name)
    return used


def _digests(store: Store, name: str) -> set[str]:
    try:
        data = store.files.read(name, reading.MAX_BYTES)
        file = msgspec.json.decode(data, type=_File)
    except (BadCase, msgspec.MsgspecError, UnicodeError, RecursionError):
        return _digests_in_bytes(store, name)
    # A newer version may have digests elsewhere as well. One too many keeps a file; one too few would lose it.
    return {storage.content.digest for storage in file.case.storages} | {
        found.decode() for found in _DIGESTS.findall(data)
    }


def _digests_in_bytes(store: Store, name: str) -> set[str]:
    """All that looks like a digest in a file that is no case."""
    used: set[str] = set()
    with told("read it", store.files.path(name), Exception), store.files.open(name) as file:
        end = b""
        while piece := file.read(_CHUNK):
            used.update(found.decode() for found in _DIGESTS.findall(end + piece))
            end = (end + piece)[1 - len(PREFIX) - 64 :]
    return used


def _unlisted(store: Store) -> Iterator[str]:
    """Cases that are there only for others' history, and are in nobody's. A broken case may list any of them."""
    entries = store.entries(earlier=True)
    if any(entry.error is not None for entry in entries):
        return
    listed = {case for entry in entries for case in entry.summary.history}
    labelled = {case for _, case in store.labels()}
    for entry in entries:
        if entry.summary.earlier and entry.id not in listed | labelled:
            yield f"cases/{entry.id}"


def _strays(store: Store) -> Iterator[str]:
    for folder in ["", "tensors/", "cases/", "labels/", *(f"cases/{name}/" for name in store.case_names())]:
        yield from (f"{folder}{name}" for name in store.files.names(folder) if name.endswith(TEMPORARY))
    for label, case in store.labels():
        if not store.has(case):
            yield f"labels/{label}"

"""Where cases are kept: a folder, or any place that fsspec reaches.

    .sleuth/
        cases/3f9a1c07be/case.json          a case, under the first digits of its digest; beside it what was made of it
        tensors/b3-….safetensors            the bytes under its tensors, shared by all cases that have the same
        labels/bert-backward                a name that somebody gave to a case: a file with the case's id

    store = Store.open()                    where the settings say
    tensors = TensorWriter(store.blobs)     first the tensors,
    entry = store.save(case)                then the case
    store.load("3f9a")                      by id, by the beginning of it, by label, or by a path to a case anywhere

A case is there as a whole or not at all, whenever whoever writes it is killed, and however many write at once; equal
cases are one. Listing reads cases without torch. Tensors that no case refers to stay until `collect_garbage`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchsleuth import config
from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import PREFIX
from torchsleuth.case.format.tensor_files import START, SUFFIX
from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.stores.examining import Found, exists, in_pieces, open_path
from torchsleuth.case.stores.files import CASE_FILE, Files, LocalFiles, open_files
from torchsleuth.case.stores.garbage import YOUNG, Freed, collect, discard
from torchsleuth.case.stores.remote_files import RemoteFiles
from torchsleuth.case.words.summary import Summary, summarise
from torchsleuth.errors import BadCase, CaseError, HashMismatch, MissingTensor, NotFound, StoreError

if TYPE_CHECKING:
    import torch

    from torchsleuth.case.storages.blobs import Blobs, FolderBlobs


__all__ = ["Found", "Freed", "Listed", "Store"]

_UNKNOWN: Final = Summary()
_ID = re.compile(r"[0-9a-f]{10,64}")
_LENGTHS: Final = (10, 16, 24, 40, 64)
_SHORTEST: Final = 4
_PREFIX = re.compile(rf"[0-9a-f]{{{_SHORTEST},64}}")
_DIGITS = re.compile(rf"[0-9a-f]{{1,{_SHORTEST - 1}}}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")


@dataclass(frozen=True)
class Listed:
    """One case of a store, as far as a list needs it. If it is broken, `error` says how, and the rest is not known."""

    id: str
    path: str
    labels: tuple[str, ...] = ()
    created: str = ""
    """When, in ISO 8601."""
    summary: Summary = _UNKNOWN
    error: CaseError | None = None


class Store:
    """A place for cases. Making one touches nothing: folders are made when something is saved."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None = None) -> Store:
        """The store at a folder or URL; without one, where the settings say."""
        files = open_files(config.current().store if where is None else where)
        if isinstance(files, LocalFiles) and files.folder.exists() and not files.folder.is_dir():
            raise StoreError(
                "this cannot be a store",
                cause="it is a file, and a store is a folder",
                remedy="name a folder (SLEUTH_STORE, or the setting store)",
                file=files.root,
            )
        return cls(files)

    def __repr__(self) -> str:
        return f"Store({self.files.root!r})"

    @property
    def home(self) -> str:
        """Where the tensors of this store are, in one word that `examining.blobs_at` understands."""
        files = self.files
        return str(files.folder.absolute() / "tensors") if isinstance(files, LocalFiles) else files.root

    @cached_property
    def blobs(self) -> Blobs:
        """Where the tensors of this store are. Imports torch."""
        from torchsleuth.case.storages.blobs import FileSystemBlobs, FolderBlobs

        files = self.files
        if isinstance(files, LocalFiles):
            return _Fresh(FolderBlobs(files.folder / "tensors"), files)
        assert isinstance(files, RemoteFiles)
        return FileSystemBlobs(files.fs, files.at("tensors"))

    # ---- writing -------------------------------------------------------------------------------------------

    def save(self, case: Case, label: str | None = None) -> Listed:
        """Keep a case, whose tensors have to be there already. The same case twice is one case."""
        return self.save_bytes(reading.encode(case), case, label)

    def save_bytes(self, data: bytes, case: Case, label: str | None = None) -> Listed:
        """Keep a case as the bytes that it was read from."""
        if label is not None:
            _check_label(label)
        digest = reading.unseal(data).digest
        self._require_tensors(case)
        self._settle_tensors(case)  # outside of the lock: a slow disk is not to hold up others
        with self.files.lock(alone=False):
            self._require_tensors(case)
            name = self._add(digest.removeprefix(PREFIX), data)
            if not isinstance(self.files, LocalFiles):
                self._require_tensors(case)  # nothing there can be locked: somebody may have collected garbage
        if label is not None:
            self.label(name, label)
        return self.entry(name)

    def _require_tensors(self, case: Case) -> None:
        for index, storage in enumerate(case.storages):
            if isinstance(storage.content, Stored):
                name = _tensor(storage.content.digest)
                size = self.files.size(name)
                if size != START + storage.nbytes:
                    raise MissingTensor(
                        "the bytes of a tensor are not in the store",
                        cause="there is no such file" if size is None else f"the file has {size:,} bytes",
                        remedy="write the tensors with this store's `blobs` first, then save the case",
                        file=self.files.path(name),
                        field=f"storages[{index}]",
                    )

    def _settle_tensors(self, case: Case) -> None:
        """A case comes to the disk after its tensors."""
        stored = {
            storage.content.digest: storage.nbytes for storage in case.storages if isinstance(storage.content, Stored)
        }
        if stored and isinstance(self.blobs, _Fresh):
            self.blobs.settle(stored.items())

    def _add(self, digits: str, data: bytes) -> str:
        for length in _LENGTHS:
            name = digits[:length]
            folder = f"cases/{name}"
            if self.files.add_folder(folder, {CASE_FILE: data}):
                return name
            try:
                if self.files.read(f"{folder}/{CASE_FILE}", reading.MAX_BYTES) == data:
                    return name
            except (FileNotFoundError, BadCase):
                continue  # something else, or something broken, has that name
        raise StoreError(
            "the case cannot be saved",
            cause="folders of that name are there, and what they hold is something else",
            remedy=f"look into cases/{digits[:10]}*, and remove what is broken",
            file=self.files.root,
        )

    def label(self, name: str, label: str) -> None:
        """Give a case a name of your own. A label that another case has is refused."""
        _check_label(label)
        case = self._resolve(name)
        with self.files.lock(alone=True):
            self._require_case(case)
            holder = self._labelled(label)
            if holder == case:
                return
            if holder is not None and self.has(holder):
                raise StoreError(
                    f"the label {label!r} is taken",
                    cause=f"the case {holder} has it; yours is saved as {case}",
                    remedy="choose another label, or remove that case first",
                    file=self.files.path(f"labels/{label}"),
                )
            self.files.put(f"labels/{label}", f"{case}\n".encode())

    def put_file(self, entry: Listed | str, name: str, data: bytes) -> str:
        """Put a file beside a case (`repro.py`), and return its path."""
        if not _NAME.fullmatch(name) or name == CASE_FILE:
            raise StoreError(
                f"a file beside a case cannot be called {name!r:.80}",
                cause="its name is made of letters, digits, dots, dashes and underscores, and case.json is the case",
                remedy="choose another name",
            )
        case = entry.id if isinstance(entry, Listed) else self._resolve(entry)
        with self.files.lock(alone=False):
            self._require_case(case)
            self.files.put(f"cases/{case}/{name}", data)
        return self.files.path(f"cases/{case}/{name}")

    def remove(self, name: str) -> None:
        """Remove a case and its labels. Its tensors go with the next collection of garbage."""
        case = self._resolve(name)
        with self.files.lock(alone=True):
            for label, holder in self.labels():
                if holder == case:
                    self.files.remove(f"labels/{label}")
            self.files.remove(f"cases/{case}")

    def tensor_times(self, case: Case) -> dict[str, float]:
        """When each tensor of a case was last written or asked for, by digest."""
        digests = {storage.content.digest for storage in case.storages if isinstance(storage.content, Stored)}
        times = {digest: self.files.modified(_tensor(digest)) for digest in digests}
        return {digest: time for digest, time in times.items() if time is not None}

    def tensor_digests(self) -> list[str]:
        """What the store has of tensors."""
        return [name.removesuffix(SUFFIX) for name in self.files.names("tensors") if name.endswith(SUFFIX)]

    def discard(self, entry: Listed, tensors: Mapping[str, float], since: float) -> None:
        """Remove a case that was saved just now, and tensors of it, unless another case has them.

        The tensors came with it, after the moment `since`; whoever else has asked for one did so after the time that
        is given with it (`tensor_times`, after it was saved).
        """
        discard(self, entry.id, tensors, since)

    # ---- reading -------------------------------------------------------------------------------------------

    def entries(self, *, earlier: bool = False) -> list[Listed]:
        """The cases, the oldest first. One that is broken is among them, with its error.

        `earlier`: also those that are there only because others have them in their history.
        """
        labels: dict[str, list[str]] = {}
        for label, case in self.labels():
            labels.setdefault(case, []).append(label)
        found = (self._entry(name, tuple(labels.get(name, ()))) for name in self.case_names())
        wanted = (entry for entry in found if entry is not None and (earlier or not entry.summary.earlier))
        return sorted(wanted, key=lambda entry: (entry.created, entry.id))

    def entry(self, name: str) -> Listed:
        """One case, by its id, the beginning of that, or a label."""
        case = self._resolve(name)
        entry = self._entry(case, self._labels_of(case))
        if entry is None:
            raise self._not_found(name, "it was removed just now")
        return entry

    def _entry(self, name: str, labels: tuple[str, ...]) -> Listed | None:
        file = f"cases/{name}/{CASE_FILE}"
        summary, error = _UNKNOWN, None
        try:
            sealed = reading.unseal(self.files.read(file, reading.MAX_BYTES), file=self.files.path(file))
            summary = summarise(sealed, self.files.path(file))
            self._check_id(name, sealed.digest)
        except FileNotFoundError:
            return None
        except CaseError as its:
            error = its
        created = summary.created
        if created is None:
            when = self.files.modified(file)
            created = "" if when is None else datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
        return Listed(name, self.files.path(f"cases/{name}"), labels, created, summary, error)

    def _check_id(self, name: str, digest: str) -> None:
        if not _ID.fullmatch(name) or not digest.startswith(PREFIX + name):
            raise HashMismatch(
                "the case is not the one that its folder is named after",
                cause=f"it has the digest {digest}",
                remedy="rename the folder to the first ten digits of that, or take the case from where it was written",
                file=self.files.path(f"cases/{name}"),
            )

    def load(self, name: str | os.PathLike[str]) -> Case:
        """A case, by its id, the beginning of that, its label, or a path."""
        return self.find(name).case

    def find(self, name: str | os.PathLike[str]) -> Found:
        """A case and its tensors, by its id, the beginning of that, its label, or a path.

        The path may lead to an archive, a case's folder or its `case.json`, in this store, in another one, or alone.
        """
        text = os.fspath(name)
        try:
            case = self._resolve(text)
        except NotFound:
            if not exists(text):
                raise
            return open_path(Path(text))
        file = f"cases/{case}/{CASE_FILE}"
        try:
            data = self.files.read(file, reading.MAX_BYTES)
        except FileNotFoundError:
            raise self._not_found(text, "it was removed just now") from None
        return Found(
            reading.decode(data, file=self.files.path(file)),
            self.files.path(file),
            partial(in_pieces, lambda digest: self.files.open(_tensor(digest))),
            self.home,
            lambda: self.blobs,
            case,
            self._labels_of(case),
        )

    def _labels_of(self, case: str) -> tuple[str, ...]:
        return tuple(label for label, holder in self.labels() if holder == case)

    # ---- names ---------------------------------------------------------------------------------------------

    def _resolve(self, name: str) -> str:
        """The id of the case in this store that somebody means."""
        known = self.case_names()
        if name in known:
            return name
        if _NAME.fullmatch(name):
            labelled = self._labelled(name)
            if labelled is not None:
                if labelled in known:
                    return labelled
                raise self._not_found(name, f"it is the label of {labelled}, a case that is gone")
        if not _PREFIX.fullmatch(name):
            short = _DIGITS.fullmatch(name) is not None
            more = f"; the beginning of an id has at least {_SHORTEST} digits" if short else ""
            raise self._not_found(name, f"no case has that id or label{more}")
        candidates = [case for case in known if case.startswith(name)]
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            raise self._not_found(name, "no case has an id that begins so, nor such a label")
        raise self._not_found(name, f"{len(candidates)} cases have an id that begins so: {', '.join(candidates[:5])}")

    def _not_found(self, name: str, cause: str) -> NotFound:
        return NotFound(
            f"there is no case {name!r:.200}",
            cause=f"{cause} (in {self.files.root})",
            remedy="`sleuth list` shows what there is; another store is named with SLEUTH_STORE",
        )

    def case_names(self) -> list[str]:
        """The folders of cases, whatever is in them."""
        return [name for name in self.files.names("cases") if not name.startswith(".")]

    def has(self, name: str) -> bool:
        """Whether there is a case of that id."""
        return self.files.size(f"cases/{name}/{CASE_FILE}") is not None

    def _require_case(self, name: str) -> None:
        if not self.has(name):
            raise self._not_found(name, "it was removed just now")

    def labels(self) -> Iterator[tuple[str, str]]:
        """Every label, and the id that it stands for."""
        for label in self.files.names("labels"):
            case = self._labelled(label) if _NAME.fullmatch(label) else None
            if case is not None:
                yield label, case

    def _labelled(self, label: str) -> str | None:
        """The id that a label names; None if there is no such label, or what it holds is no id."""
        try:
            text = self.files.read(f"labels/{label}", 100).decode("ascii", "replace").strip()
        except (FileNotFoundError, BadCase):
            return None
        return text if _ID.fullmatch(text) else None

    def collect_garbage(self, older_than: float = YOUNG) -> Freed:
        """Remove tensors that no case refers to, and what killed writers left; nothing younger than that (seconds).

        The age keeps what somebody has written just now for a case that is not saved yet.
        """
        return collect(self, older_than)


class _Fresh:
    """The tensors of a local store. One that is there already is made to look new, so that it is not collected
    before the case that needs it is saved."""

    def __init__(self, blobs: FolderBlobs, files: LocalFiles) -> None:
        self._blobs = blobs
        self._files = files
        self.settle = blobs.settle

    def put(self, storage: torch.UntypedStorage) -> str:
        while True:
            digest = self._blobs.put(storage)
            try:
                self._files.touch(_tensor(digest), digest)
            except FileNotFoundError:
                continue  # collected in this very moment
            return digest

    def get(self, digest: str, nbytes: int) -> torch.UntypedStorage:
        return self._blobs.get(digest, nbytes)


def _tensor(digest: str) -> str:
    return f"tensors/{digest}{SUFFIX}"


def _check_label(label: str) -> None:
    if not _NAME.fullmatch(label) or _ID.fullmatch(label):
        raise StoreError(
            f"{label!r:.120} cannot be a label",
            cause="a label is made of letters, digits, dots, dashes and underscores, up to 100 of them, and does not "
            "look like the id of a case",
            remedy="choose another label, such as bert-backward",
        )

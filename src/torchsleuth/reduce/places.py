"""Where a reduction keeps its things: in the store, or, if that is far away, beside the user's other caches."""

from __future__ import annotations

from pathlib import Path

from torchsleuth.case.schema import Stored
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.files import LocalFiles
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.errors import BadCase
from torchsleuth.reduce.jobs import folder_of
from torchsleuth.reduce.order import Size
from torchsleuth.reduce.restricting import Values
from torchsleuth.run.values import read_values


class Place:
    """The files of a reduction."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._folder = folder_of(store)
        self._recorded: set[Path] = set()

    @property
    def verdicts(self) -> Path:
        return self._folder / "verdicts.sqlite"

    def script(self, entry: Listed) -> Path:
        """Where the script of a case goes."""
        if isinstance(self.store.files, LocalFiles):
            return Path(entry.path) / "repro.py"
        return self._folder / entry.id / "repro.py"

    def values(self, size: Size) -> Path:
        """What eager computed for a case of this size."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"values-{size.digest[:24]}.json"
        self._recorded.add(path)
        return path

    def read(self, path: Path) -> Values | None:
        """What was recorded there, if it was and its tensors are still in the store."""
        if not path.exists():
            return None
        try:
            values = read_values(path)
        except BadCase:
            return None
        known = set(self.store.tensor_digests())
        contents = (one.storage.content for one in values.values() if one.storage is not None)
        return values if all(one.digest in known for one in contents if isinstance(one, Stored)) else None

    def clear(self) -> None:
        """What was recorded is no longer needed."""
        for path in self._recorded:
            path.unlink(missing_ok=True)

    def bring(self, found: Found) -> None:
        """See that the tensors of a case are in the store."""
        if found.home == self.store.home:
            return
        for storage in found.case.storages:
            if isinstance(storage.content, Stored):
                self.store.blobs.put(found.blobs.get(storage.content.digest, storage.nbytes))

"""The commands on cases: `list`, `show`, `pack`, `unpack`, `check-file`, `remove`, `gc`.

Each makes an `Answer`. Nothing of a case is run, and nothing here but packing and unpacking needs torch.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from torchsleuth.case.stores import archive, examining
from torchsleuth.case.stores.files import Files
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.case.words import listing
from torchsleuth.case.words.wording import clean, one_line
from torchsleuth.cli.answers import Answer, error_data
from torchsleuth.errors import CaseError, NotFound, StoreError
from torchsleuth.report.case import render_case, render_entries


def list_cases(where: str | None, *, width: int, hidden_too: bool = False) -> Answer:
    """The cases of a store; with `hidden_too` also those of others' histories. 1: one of them is broken."""
    store = Store.open(where)
    everything = store.entries(earlier=True)
    entries = [entry for entry in everything if hidden_too or not entry.summary.earlier]
    hidden = len(everything) - len(entries)
    data = {"store": store.files.root, "cases": [_entry_data(entry) for entry in entries]}
    if not entries:
        said = Text(f"There is no case in {clean(store.files.root)}.").append(_hidden(hidden))
        return Answer(data, [said], "sleuth demo")
    broken = [entry for entry in entries if entry.error is not None]
    count = Text(f"\n{_count(len(entries), 'case')} in {clean(store.files.root)}", "dim")
    if broken:
        count.append(f", {len(broken)} of them broken")
    count.append(_hidden(hidden))
    whole = [entry for entry in entries if entry.error is None]
    following = f"sleuth show {_name(whole[-1])}" if whole else f"sleuth check-file {shlex.quote(broken[0].path)}"
    return Answer(
        data, [render_entries(entries, width=width), count], _with_store(following, where), 1 if broken else 0
    )


def _hidden(count: int) -> str:
    """What is not in the list, and how it would be."""
    return f"; and {_count(count, 'graph')} that such had compiled before (--all)" if count else ""


def show(name: str, where: str | None, *, width: int, whole: bool, traceback: bool) -> Answer:
    """One case, to read."""
    store = Store.open(where)
    found = store.find(name)
    case = found.case
    lines = listing.graph_lines(case.graph, width=width - 2)
    data = {
        "id": found.id,
        "labels": found.labels,
        "path": found.path,
        "origin": case.origin,
        "compiler": case.compiler,
        "failure": case.failure,
        "graph": [line.text for line in lines],
        "nodes": len(case.graph.nodes),
        "inputs": [dataclasses.asdict(row) for row in listing.input_rows(case)],
        "symbols": [dataclasses.asdict(row) for row in listing.symbol_rows(case.symbols)],
        "state": case.state,
        "code": case.code,
        "missing": [
            {"where": where, "type": what.type, "reason": what.reason} for where, what in listing.noticed(case)
        ],
    }
    name_shown = found.id or found.path
    shown = render_case(case, lines, name=name_shown, labels=found.labels, whole=whole, traceback=traceback)
    return Answer(data, shown, _with_store(f"sleuth export {_asked(found, name)} -o repro.py", where))


def pack(name: str, where: str | None, out: Path | None) -> Answer:
    """A case as one file."""
    store = Store.open(where)
    store, name = _its_store(store, name)
    path = archive.pack(store, name, out)
    size = path.stat().st_size
    data = {"path": str(path), "bytes": size}
    said = Text(f"{clean(str(path))}: {listing.byte_words(size)}, with everything that the case needs.")
    return Answer(data, [said], f"sleuth check-file {shlex.quote(str(path))}")


def unpack(path: Path, where: str | None, label: str | None) -> Answer:
    """An archive into a store."""
    store = Store.open(where)
    entry = archive.unpack(path, store, label)
    said = Text(f"{clean(str(path))} is the case {entry.id} in {clean(store.files.root)}.")
    return Answer(_entry_data(entry), [said], _with_store(f"sleuth show {_name(entry)}", where))


def check_files(paths: Sequence[Path]) -> Answer:
    """Read cases and every byte of their tensors. 1: something is wrong with one of them."""
    results = []
    shown = []
    good = None
    for path in paths:
        try:
            found = examining.open_path(path)
            checked = examining.check_tensors(found)
        except CaseError as error:
            results.append({"path": str(path), "ok": False, "error": error_data(error)})
            shown.append(_bad_file(path, error))
            continue
        good = good or path
        size = listing.byte_words(checked)
        nodes = len(found.case.graph.nodes)
        results.append({"path": str(path), "ok": True, "nodes": nodes, "tensor_bytes": checked})
        shown.append(
            Text.assemble(("whole  ", "green"), clean(str(path)), (f"  {nodes:,} nodes, {size} of tensors", "dim"))
        )
    bad = sum(not result["ok"] for result in results)
    following = f"sleuth show {shlex.quote(str(good))}" if good is not None else "sleuth list"
    return Answer({"files": results}, shown, following, 1 if bad else 0)


def remove(names: Sequence[str], where: str | None) -> Answer:
    """Remove cases from a store; all of them have to be there."""
    store = Store.open(where)
    ids = list(dict.fromkeys(store.entry(name).id for name in names))
    for each in ids:
        store.remove(each)
    said = Text(
        f"Removed {_count(len(ids), 'case')}. Tensors that no other case has go with `sleuth gc`, "
        "when they are an hour old."
    )
    return Answer({"removed": ids}, [said], _with_store("sleuth gc", where))


def collect_garbage(where: str | None, *, dry_run: bool, older_than: float) -> Answer:
    """Remove what no case refers to."""
    store = Store.open(where)
    if dry_run:
        store = Store(_Untouched(store.files))
    freed = store.collect_garbage(older_than)
    data = {
        "dry_run": dry_run,
        "tensors": freed.tensors,
        "strays": freed.strays,
        "bytes": freed.nbytes,
        "young": freed.young,
    }
    verb = "Would remove" if dry_run else "Removed"
    said = Text(
        f"{verb} {_count(freed.tensors, 'tensor')} that no case refers to ({listing.byte_words(freed.nbytes)}), "
        f"and {_count(freed.strays, 'leftover')} of interrupted writing."
    )
    if freed.young:
        stay = f"\n{_count(freed.young, 'tensor')} that no case refers to may belong to a case that is being written: "
        said.append(f"{stay}left alone for {older_than:g} seconds.")
    following = "sleuth gc" if dry_run and (freed.tensors or freed.strays) else "sleuth list"
    if freed.young and not freed.tensors and older_than:
        following = "sleuth gc --older-than 0"
    return Answer(data, [said], _with_store(following, where))


class _Untouched:
    """The files of a store, of which none is removed: what would be is only counted."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def remove(self, name: str, *, unless_after: float | None = None) -> bool:
        modified = self._files.modified(name)
        return modified is not None and (unless_after is None or modified <= unless_after)


def _its_store(store: Store, name: str) -> tuple[Store, str]:
    """The store that a case lies in, and its id there: the one that was asked, or the one that a path leads into."""
    try:
        return store, store.entry(name).id
    except NotFound:
        path = Path(name)
        if not examining.exists(name):
            raise
    folder = (path if path.is_dir() else path.parent).absolute()
    if archive.is_archive(path) or folder.parent.name != "cases":
        raise StoreError(
            "only a case that lies in a store can be packed",
            cause="it is an archive already" if archive.is_archive(path) else "this folder is not in a store",
            remedy="name a case of a store: `sleuth list` shows what there is",
            file=str(path),
        )
    return Store.open(folder.parent.parent), folder.name


def _entry_data(entry: Listed) -> dict[str, Any]:
    return {
        "id": entry.id,
        "path": entry.path,
        "labels": entry.labels,
        "created": entry.created,
        **{key: value for key, value in dataclasses.asdict(entry.summary).items() if key not in ("created", "history")},
        "error": None if entry.error is None else error_data(entry.error),
    }


def _bad_file(path: Path, error: CaseError) -> Text:
    return Text.assemble(
        ("bad    ", "bold red"),
        clean(str(path)),
        f"\n       {clean(error.what)}",
        (f"\n       cause:  {one_line(error.cause)}", "dim"),
        (f"\n       remedy: {one_line(error.remedy)}", "dim"),
    )


def _asked(found: examining.Found, name: str) -> str:
    return found.labels[0] if found.labels else found.id or shlex.quote(name)


def _name(entry: Listed) -> str:
    return entry.labels[0] if entry.labels else shlex.quote(entry.id)


def _with_store(command: str, where: str | None) -> str:
    return command if where is None else f"{command} --store {shlex.quote(where)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

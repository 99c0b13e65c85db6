"""Where cases are kept: found again by any of their names, whole or not at all, and never in each other's way."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
import torch

from case_samples import checked, small_case
from torchsleuth import config
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode, seal, unseal
from torchsleuth.case.stores import files as places
from torchsleuth.case.stores.locking import locked
from torchsleuth.case.stores.store import Freed, Listed, Store
from torchsleuth.errors import BadCase, CaseError, HashMismatch, MissingTensor, NotFound, StoreError


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield Store.open(tmp_path / "store")
        return
    place = f"memory://{tmp_path}/cases"
    yield Store.open(place)
    fs = fsspec.filesystem("memory")
    with contextlib.suppress(FileNotFoundError):
        fs.rm(f"{tmp_path}/cases", recursive=True)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def made(store: Store, number: float = 0.0) -> schema.Case:
    """A case with one tensor of its own, which is put into the store."""
    digest = store.blobs.put(torch.full((6,), number).untyped_storage())
    return small_case(storages=(schema.Storage(24, schema.Stored(digest)),))


def tensor_file(store: Store, case: schema.Case) -> str:
    content = case.storages[0].content
    assert isinstance(content, schema.Stored)
    return f"tensors/{content.digest}.safetensors"


def age(store: Store, name: str, seconds: float = 10_000) -> None:
    """Make a file of a local store look old."""
    path = Path(store.files.path(name))
    when = path.stat().st_mtime - seconds
    os.utime(path, (when, when))


# ---- saving and finding ------------------------------------------------------------------------------------


def test_a_case_is_found_by_id_prefix_label_and_path(store: Store) -> None:
    case = made(store)
    entry = store.save(case, "bert-backward")
    assert entry.labels == ("bert-backward",)
    for name in (entry.id, entry.id[:4], "bert-backward"):
        assert store.load(name) == case
        assert store.find(name).id == entry.id
        assert checked(store, name) == case


def test_a_store_that_is_not_there_is_empty_and_is_not_made_by_looking(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none")
    assert store.entries() == []
    assert store.collect_garbage().nbytes == 0
    with pytest.raises(NotFound):
        store.load("abcd")
    assert not (tmp_path / "none").exists()


def test_saving_makes_the_folders_it_needs_and_two_runs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Covers: S17"""
    first, second = Store.open(tmp_path / "a" / "b"), Store.open(tmp_path / "a" / "b")
    one = first.save(made(first, 1.0))
    two = second.save(made(second, 2.0))
    assert one.id != two.id
    assert {entry.id for entry in first.entries()} == {one.id, two.id}


def test_the_same_case_twice_is_one_case(store: Store) -> None:
    case = made(store)
    first = store.save(case, "a")
    second = store.save(case, "b")
    assert first.id == second.id
    assert [entry.labels for entry in store.entries()] == [("a", "b")]


def test_two_cases_whose_ids_begin_alike_are_both_kept(local: Store, tmp_path: Path) -> None:
    case = made(local)
    entry = local.save(case)
    folder = Path(entry.path)
    (folder / "case.json").write_bytes(encode(made(local, 1.0)))  # as if another case had these ten digits
    second = local.save(case)
    assert second.id != entry.id
    assert second.id.startswith(entry.id)
    assert local.load(second.id) == case


def test_the_list_says_what_happened(store: Store) -> None:
    (entry,) = [store.save(made(store))]
    assert store.entries() == [entry]
    summary = entry.summary
    assert summary.failure == "raised torch._inductor.exc.LoweringException (lowering): no lowering"
    assert (summary.graph, summary.nodes, summary.nbytes) == ("forward graph 0", 3, 24)
    assert entry.created.startswith("20")
    assert entry.path.endswith(f"cases/{entry.id}")


def test_the_list_is_in_the_order_of_creation(store: Store) -> None:
    saved = []
    for day in (3, 1, 2):
        origin = schema.Origin("2.13", "3.11", "0.1", created=f"2030-01-0{day}T00:00:00+00:00")
        saved.append(store.save(msgspec.structs.replace(made(store), origin=origin)).created)
    assert [entry.created for entry in store.entries()] == sorted(saved)


def test_a_case_without_its_tensors_is_not_saved(store: Store) -> None:
    """Covers: U9"""
    with pytest.raises(MissingTensor) as caught:
        store.save(small_case())
    assert caught.value.field == "storages[0]"
    assert store.entries() == []
    digest = store.blobs.put(torch.zeros(1000).untyped_storage())
    with pytest.raises(MissingTensor, match="the file has"):
        store.save(small_case(storages=(schema.Storage(24, schema.Stored(digest)),)))


def test_the_settings_say_where_the_store_is(tmp_path: Path) -> None:
    with config.patch(store=str(tmp_path / "mine")):
        assert Store.open().files.root == str(tmp_path / "mine")
    assert Store.open(f"file://{tmp_path}/other").files.root == f"{tmp_path}/other"


def test_an_id_can_be_shortened_while_it_is_plain_which_case_is_meant(local: Store) -> None:
    ids = [local.save(made(local, float(number))).id for number in range(40)]
    for case in ids:
        same = [other for other in ids if other.startswith(case[:4])]
        if len(same) == 1:
            assert local.find(case[:4]).id == case
    with pytest.raises(NotFound, match="at least 4 digits"):
        local.load(ids[0][:3])
    with pytest.raises(NotFound, match=r"no case has that id or label \(in"):
        local.load("xyz")
    twin = Path(local.files.path(f"cases/{ids[0][:6]}{'0' * 4}"))
    twin.mkdir()
    (twin / "case.json").write_bytes(b"")
    with pytest.raises(NotFound, match="2 cases"):
        local.load(ids[0][:5])


@pytest.mark.parametrize("name", ["", "nobody", "0123456789", "../etc", "/", "a\0b", "..", "x" * 5000, "nö"])
def test_a_name_that_nothing_has_is_not_found(store: Store, name: str) -> None:
    store.save(made(store))
    with pytest.raises(NotFound) as caught:
        store.find(name)
    assert "sleuth list" in caught.value.remedy or "case.json" in caught.value.remedy


# ---- labels and files beside a case ------------------------------------------------------------------------

BAD_NAMES = ["", ".", "..", "../x", "a/b", "/abs", ".hidden", "a\\b", "a\0", "a\n", "x" * 101, "ä", "a.", "a b", "-x"]


@pytest.mark.parametrize("label", [*BAD_NAMES, "0123456789", "deadbeef00"])
def test_a_label_that_could_lead_elsewhere_or_be_mistaken_is_refused(store: Store, label: str) -> None:
    case = made(store)
    with pytest.raises(StoreError, match="cannot be a label"):
        store.save(case, label)
    assert store.entries() == []


@pytest.mark.parametrize("name", [*BAD_NAMES, "case.json"])
def test_a_file_beside_a_case_cannot_lead_elsewhere(store: Store, name: str) -> None:
    entry = store.save(made(store))
    with pytest.raises(StoreError, match="beside a case"):
        store.put_file(entry, name, b"")


def test_a_file_can_be_put_beside_a_case_and_replaced(store: Store) -> None:
    entry = store.save(made(store))
    for data in (b"print(1)\n", b"print(2)\n"):
        path = store.put_file(entry, "repro.py", data)
        assert path == f"{entry.path}/repro.py"
        assert store.files.read(f"cases/{entry.id}/repro.py", 100) == data
    assert checked(store, entry.id)


def test_a_label_belongs_to_one_case(store: Store) -> None:
    first = store.save(made(store, 1.0), "mine")
    with pytest.raises(StoreError, match="is taken") as caught:
        store.save(made(store, 2.0), "mine")
    (second,) = [entry for entry in store.entries() if entry.id != first.id]
    assert second.id in caught.value.cause  # nothing is lost: it is saved, and only has no label
    assert store.find("mine").id == first.id
    store.remove("mine")
    store.label(second.id, "mine")
    assert store.find("mine").id == second.id


def test_a_label_that_looks_like_the_beginning_of_an_id_is_the_label(local: Store) -> None:
    entries = [local.save(made(local, float(number))) for number in range(3)]
    local.label(entries[0].id, entries[1].id[:4])
    assert local.find(entries[1].id[:4]).id == entries[0].id


def test_a_removed_case_is_gone_with_its_labels(store: Store) -> None:
    keep, drop = store.save(made(store, 1.0), "keep"), store.save(made(store, 2.0), "drop")
    store.put_file(drop, "repro.py", b"")
    store.remove("drop")
    assert [entry.id for entry in store.entries()] == [keep.id]
    for name in ("drop", drop.id):
        with pytest.raises(NotFound):
            store.load(name)
    with pytest.raises(NotFound):
        store.put_file(drop, "late.py", b"")
    with pytest.raises(NotFound):
        store.remove("drop")


# ---- garbage -----------------------------------------------------------------------------------------------


def test_garbage_is_what_no_case_refers_to(store: Store) -> None:
    kept = store.save(made(store, 1.0))
    dropped = store.save(made(store, 2.0))
    store.remove(dropped.id)
    assert store.collect_garbage().tensors == 0  # too young
    freed = store.collect_garbage(older_than=-1)
    assert (freed.tensors, freed.nbytes) == (1, 128 + 24)
    assert checked(store, kept.id)
    assert store.collect_garbage(older_than=-1).tensors == 0


def test_a_tensor_that_a_broken_case_refers_to_is_kept(store: Store) -> None:
    entry = store.save(made(store))
    data = store.files.read(f"cases/{entry.id}/case.json", 1 << 20)
    store.files.put(f"cases/{entry.id}/case.json", data[:-3])
    assert store.collect_garbage(older_than=-1).tensors == 0


def test_a_digest_across_two_pieces_of_a_large_case_counts(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = local.save(made(local))
    path = Path(local.files.path(f"cases/{entry.id}/case.json"))
    path.write_bytes(path.read_bytes()[:-1])  # no case any more: its bytes are searched
    for chunk in (64, 66, 67, 68, 100):
        monkeypatch.setattr("torchsleuth.case.stores.garbage._CHUNK", chunk)
        assert local.collect_garbage(older_than=-1).tensors == 0


def test_a_digest_in_another_spelling_of_json_counts(store: Store) -> None:
    """A program of somebody's own may write `b\\u0033-` for `b3-`: the same text, in other bytes."""
    case = made(store)
    body = bytes(unseal(encode(case)).body)
    for number, data in enumerate(
        (seal(body.replace(b'"b3-', b'"b\\u0033-')), seal(body.replace(b'"b3-', b'"\\u00623-'), 2))
    ):
        store.files.put(f"cases/{number}123456789/case.json", data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert decode(data) == case
        assert store.collect_garbage(older_than=-1).tensors == 0
        store.files.remove(f"cases/{number}123456789")
    assert store.collect_garbage(older_than=-1).tensors == 1


def test_what_is_garbage_and_too_young_is_counted(store: Store) -> None:
    store.remove(store.save(made(store)).id)
    store.save(made(store, 1.0))
    assert store.collect_garbage() == Freed(young=1)
    assert store.collect_garbage(older_than=-1) == Freed(tensors=1, nbytes=128 + 24)


def test_what_a_killed_writer_left_behind_is_removed_when_it_is_old(local: Store) -> None:
    entry = local.save(made(local))
    strays = [".w.tmp", "tensors/.x.tmp", "labels/.0.tmp", f"cases/{entry.id}/.y.tmp", "cases/.z.tmp/case.json"]
    for stray in strays:
        path = Path(local.files.path(stray))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    assert local.collect_garbage().strays == 0
    for stray in [*strays[:4], "cases/.z.tmp"]:
        age(local, stray)
    assert local.collect_garbage().strays == 5
    assert local.collect_garbage(older_than=-1).strays == 0
    assert [each.id for each in local.entries()] == [entry.id]
    assert checked(local, entry.id)


def test_a_label_of_a_case_that_is_gone_is_removed(local: Store) -> None:
    local.save(made(local), "mine")
    local.files.put("labels/lost", b"0123456789\n")
    with pytest.raises(NotFound, match="a case that is gone"):
        local.load("lost")
    assert local.collect_garbage(older_than=-1).strays == 1
    assert local.load("mine")


def test_an_old_tensor_that_is_put_again_is_young(local: Store) -> None:
    """A writer that finds its tensor in the store counts on it, although it has written nothing."""
    case = made(local)
    age(local, tensor_file(local, case))
    made(local)
    assert local.collect_garbage().tensors == 0
    local.save(case)


def test_a_tensor_that_is_put_again_while_garbage_is_collected_stays(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(local)
    name = tensor_file(local, case)
    age(local, name)
    rename = os.rename

    def rename_late(source: Any, target: Any) -> None:
        if str(source).endswith(".safetensors"):
            monkeypatch.setattr(os, "rename", rename)
            made(local)  # somebody else, between the look at its age and its removal
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    assert local.collect_garbage().tensors == 0
    local.save(case)
    assert checked(local, local.entries()[0].id)


def test_a_tensor_that_is_collected_while_it_is_put_is_written_again(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(local)
    name = tensor_file(local, case)
    touch = places.LocalFiles.touch

    def touch_late(self: places.LocalFiles, which: str, digest: str) -> None:
        monkeypatch.setattr(places.LocalFiles, "touch", touch)
        os.unlink(self.path(which))
        touch(self, which, digest)

    monkeypatch.setattr(places.LocalFiles, "touch", touch_late)
    made(local)
    assert local.files.size(name) is not None


# ---- broken stores -----------------------------------------------------------------------------------------


def test_a_broken_case_is_listed_with_its_error_and_hides_nothing(store: Store) -> None:
    entries = [store.save(made(store, float(number))) for number in range(5)]
    damage = [b"", b"{}", encode(made(store, 9.0)), seal(b"[]"), None]
    for entry, data in zip(entries, damage, strict=True):
        if data is not None:
            store.files.put(f"cases/{entry.id}/case.json", data)
    found = {entry.id: entry for entry in store.entries()}
    assert found.keys() == {entry.id for entry in entries}
    errors = [found[entry.id].error for entry in entries]
    assert [type(error) for error in errors] == [BadCase, BadCase, HashMismatch, BadCase, type(None)]
    assert all(entry.id in str(error) for entry, error in zip(entries, errors, strict=True) if error)
    for entry in (entries[0], entries[1], entries[3]):
        with pytest.raises(BadCase):
            store.load(entry.id)


def test_a_folder_without_a_case_and_a_stray_file_are_no_cases(local: Store) -> None:
    entry = local.save(made(local))
    Path(local.files.path("cases/empty")).mkdir()
    Path(local.files.path("cases/README")).write_text("hello")
    assert [each.id for each in local.entries()] == [entry.id]
    assert local.collect_garbage(older_than=-1).tensors == 0


def test_a_pipe_in_the_place_of_a_case_holds_nobody_up(local: Store) -> None:
    entry = local.save(made(local))
    path = Path(entry.path) / "case.json"
    path.unlink()
    os.mkfifo(path)
    (found,) = local.entries()
    assert isinstance(found.error, StoreError)


def test_a_changed_tensor_is_found_by_checking(store: Store) -> None:
    entry = store.save(made(store))
    name = tensor_file(store, store.load(entry.id))
    data = bytearray(store.files.read(name, 1000))
    data[-1] ^= 1
    store.files.put(name, bytes(data))
    assert store.load(entry.id)
    with pytest.raises(HashMismatch):
        checked(store, entry.id)
    store.files.remove(name)
    with pytest.raises(MissingTensor):
        checked(store, entry.id)


def test_checking_heeds_no_seal(local: Store) -> None:
    """A large file that was changed, and whose times were put back."""
    digest = local.blobs.put(torch.zeros(2**19).untyped_storage())
    entry = local.save(small_case(storages=(schema.Storage(2**21, schema.Stored(digest)),)))
    path = Path(local.files.path(f"tensors/{digest}.safetensors"))
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(4000)
        file.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(HashMismatch):
        checked(local, entry.id)


@pytest.mark.parametrize("url", ["nosuchthing://x", "s3://bucket/x", "http://", " ", "a\0b"])
def test_a_place_that_cannot_be_a_store_is_refused_with_what_can(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(url).entries()
    assert "fsspec" in caught.value.remedy or caught.value.file.startswith("http")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    with pytest.raises(StoreError, match="a store is a folder"):
        Store.open(path)
    store = Store.open(path / "below")
    with pytest.raises(StoreError):
        made(store)
    with pytest.raises(StoreError, match="cannot"):
        store.save(small_case(storages=(), inputs=(1,)))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_what_the_disk_says_is_told_and_nothing_is_left_behind(
    local: Store, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(local)
    local.save(made(local, 1.0))

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=os.strerror(number)) as caught:
        local.save(case)
    assert caught.value.remedy
    monkeypatch.undo()
    assert [name for name in local.files.names("cases") if name.startswith(".")] == []
    assert len(local.entries()) == 1


def test_a_case_comes_to_the_disk_after_its_tensors(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S9"""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename
    case = made(local)

    def noted_fsync(fd: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def noted_rename(source: Any, target: Any) -> None:
        done.append(f"rename to {target}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    entry = local.save(case)
    tensors = Path(local.files.root) / "tensors"
    assert done[:2] == [local.files.path(tensor_file(local, case)), str(tensors)]
    assert f"rename to {local.files.path(f'cases/{entry.id}')}" in done[2:]


def test_a_store_that_can_only_be_read_can_be_read(local: Store) -> None:
    entry = local.save(made(local), "mine")
    Path(local.files.path(".lock")).unlink()
    before = sorted(str(path) for path in Path(local.files.root).rglob("*"))
    assert local.load("mine")
    assert local.entries() == [entry]
    assert checked(local, "mine")
    assert sorted(str(path) for path in Path(local.files.root).rglob("*")) == before


# ---- two at once -------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_many_or_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        locked(path, alone=False),
        locked(path, alone=False),
        pytest.raises(StoreError, match="holds the store"),
        locked(path, alone=True, patience=0.01),
    ):
        pass
    with locked(path, alone=True), pytest.raises(StoreError), locked(path, alone=False, patience=0.01):
        pass
    with locked(path, alone=True):
        pass


def test_threads_that_save_the_same_cases_at_once_end_up_with_each_once(local: Store) -> None:
    cases = [made(local, float(number)) for number in range(5)]
    errors: list[BaseException] = []

    def save(label: str) -> None:
        try:
            for number, case in enumerate(cases):
                local.save(case, f"{label}-{number}")
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=save, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    entries = local.entries()
    assert len(entries) == 5
    assert all(len(entry.labels) == 4 for entry in entries)


def test_a_case_that_is_removed_while_the_list_is_made_is_not_in_it(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, drop = local.save(made(local, 1.0)), local.save(made(local, 2.0))
    entry = Store._entry

    def removed(self: Store, name: str, labels: tuple[str, ...]) -> Listed | None:
        if name == drop.id:
            self.files.remove(f"cases/{name}")
        return entry(self, name, labels)

    monkeypatch.setattr(Store, "_entry", removed)
    assert [each.id for each in local.entries()] == [keep.id]


# ---- moved elsewhere ---------------------------------------------------------------------------------------


def test_a_case_is_read_wherever_its_folder_is(local: Store, tmp_path: Path) -> None:
    """Covers: U30"""
    case = made(local)
    entry = local.save(case)
    other = Store.open(tmp_path / "other")
    for path in (Path(entry.path), Path(entry.path) / "case.json", str(Path(entry.path) / "case.json")):
        assert checked(other, path) == case
    Path(local.files.root).rename(tmp_path / "moved")
    assert checked(other, tmp_path / "moved" / "cases" / entry.id) == case
    assert str(tmp_path).encode() not in (tmp_path / "moved" / "cases" / entry.id / "case.json").read_bytes()
    with pytest.raises(CaseError):
        other.load(tmp_path / "moved")


def test_a_missing_tensor_is_an_error_and_nothing_is_put_in_its_place(local: Store, tmp_path: Path) -> None:
    """Covers: U9"""
    entry = local.save(made(local))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "case.json").write_bytes((Path(entry.path) / "case.json").read_bytes())
    opened = Store.open(tmp_path / "other").find(alone)
    with pytest.raises(MissingTensor):
        opened.blobs.get(opened.case.storages[0].content.digest, 24)  # type: ignore[union-attr]

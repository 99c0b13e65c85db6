"""Writers that are killed at any moment, and writers that get in each other's way: what is listed is whole."""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from case_samples import checked, small_case
from torchsleuth.case import schema
from torchsleuth.case.stores.archive import Archive, pack
from torchsleuth.case.stores.store import Store
from torchsleuth.errors import NotFound

KILLS = 200
SIZES = (0, 1, 6, 1000, 60_000, 1_500_000)  # the largest is mapped, and hashed by a second thread


def forked(action: Callable[[], None]) -> int:
    """Run the action in a child of this process, which has all modules loaded; returns the child's id."""
    child = os.fork()
    if child:
        return child
    try:
        action()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - nothing of the child may reach pytest
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def made(store: Store, *fillings: tuple[int, int], number: int = 0) -> schema.Case:
    """A case with tensors of these sizes and contents, all put into the store."""
    storages = []
    for size, content in fillings:
        digest = store.blobs.put(torch.full((size,), content, dtype=torch.int32).untyped_storage())
        storages.append(schema.Storage(4 * size, schema.Stored(digest)))
    origin = schema.Origin("2.13.0", "3.11.9", "0.1.0", number=number)
    return small_case(inputs=(number,), storages=tuple(storages), origin=origin)


def write(folder: Path, seed: int, turns: int, saving: mmap.mmap) -> None:
    """Everything that changes a store, in any order. `saving` says whether a case is being saved."""
    store = Store.open(folder / "store")
    rng = random.Random(seed)
    for _ in range(turns):
        fillings = [(rng.choice(SIZES), rng.randrange(50)) for _ in range(rng.randrange(1, 4))]
        label = f"label-{rng.randrange(10**9)}" if rng.random() < 0.5 else None
        saving[0] = 1
        entry = store.save(made(store, *fillings, number=rng.randrange(10**6)), label)
        saving[0] = 0
        match rng.randrange(8):
            case 0:
                store.put_file(entry, "repro.py", b"print('hello')\n" * 1000)
            case 1:
                store.remove(entry.id)
            case 2:
                store.collect_garbage(older_than=0)
            case 3:
                pack(store, entry.id, folder / f"{entry.id}.sleuth.zip")
            case _:
                pass


def assert_whole(folder: Path, seen: set[str]) -> set[str]:
    """Every case of the store is there in full, every label leads to one; returns the cases that there are."""
    store = Store.open(folder / "store")
    entries = store.entries()
    for entry in entries:
        assert entry.error is None
        if entry.id not in seen:
            checked(store, entry.id)
        for label in entry.labels:
            assert store.find(label).id == entry.id
    known = {entry.id for entry in entries}
    assert {case for _, case in store.labels()} <= known
    for path in folder.glob("*.sleuth.zip"):
        archive = Archive.open(path)
        for storage in archive.case.storages:
            assert isinstance(storage.content, schema.Stored)
            archive.blobs.get(storage.content.digest, storage.nbytes)
        path.unlink()
    return known


def left_behind(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def test_a_writer_killed_at_any_moment_leaves_only_whole_cases(tmp_path: Path) -> None:
    """Covers: S17"""
    saving = mmap.mmap(-1, 1)  # shared with children
    write(tmp_path, -1, 20, saving)  # here, so that children find everything loaded
    start = time.monotonic()
    write(tmp_path, -2, 20, saving)
    turn = (time.monotonic() - start) / 20
    rng = random.Random(3)
    seen: set[str] = set()
    interrupted = left = 0
    for number in range(KILLS):
        before = len(left_behind(tmp_path))
        saving[0] = 0
        child = forked(lambda seed=number: write(tmp_path, seed, 10**6, saving))  # type: ignore[misc]
        time.sleep(rng.uniform(0, 2.5 * turn))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer failed by itself"
        interrupted += saving[0]
        left += len(left_behind(tmp_path)) > before
        seen = assert_whole(tmp_path, seen)
    assert interrupted > KILLS // 2  # or else they were not killed while writing
    assert left > 0  # some of them a file
    assert len(seen) > KILLS // 8
    assert_whole(tmp_path, set())
    store = Store.open(tmp_path / "store")
    store.collect_garbage(older_than=-1)
    assert left_behind(tmp_path / "store") == []
    assert assert_whole(tmp_path, set()) == seen


def write_for_a_while(folder: Path, seed: int, seconds: float) -> None:
    """Save cases made of few contents, so that writers meet."""
    store = Store.open(folder / "store")
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fillings = [(600, rng.randrange(60)) for _ in range(2)]
        case = made(store, *fillings, number=rng.randrange(20))
        store.save(case)


def collect_for_a_while(folder: Path, seconds: float) -> None:
    store = Store.open(folder / "store")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        store.collect_garbage(older_than=60)


def test_writers_and_a_collector_at_once_never_corrupt_a_store(tmp_path: Path) -> None:
    """Covers: S17"""
    store = Store.open(tmp_path / "store")
    for round_ in range(4):
        for content in range(60):  # tensors that no case refers to and that are old: garbage, until somebody needs them
            digest = store.blobs.put(torch.full((600,), content, dtype=torch.int32).untyped_storage())
            os.utime(store.files.path(f"tensors/{digest}.safetensors"), (1e9, 1e9))
        for entry in store.entries():
            store.remove(entry.id)
        children = [
            forked(lambda seed=seed: write_for_a_while(tmp_path, seed, 0.7))  # type: ignore[misc]
            for seed in range(10 * round_, 10 * round_ + 4)
        ]
        children.append(forked(lambda: collect_for_a_while(tmp_path, 0.7)))
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert statuses == [0] * 5
        assert len(assert_whole(tmp_path, set())) > 4
    assert left_behind(tmp_path) == []


def test_writers_that_remove_each_others_cases_leave_a_store_that_is_whole(tmp_path: Path) -> None:
    def write_and_remove(seed: int) -> None:
        store = Store.open(tmp_path / "store")
        rng = random.Random(seed)
        for _ in range(60):
            case = made(store, (6, rng.randrange(3)), number=rng.randrange(3))
            try:
                entry = store.save(case, f"label-{seed}-{rng.randrange(10**9)}" if rng.random() < 0.5 else None)
                store.put_file(entry, "repro.py", b"print()\n")
                store.remove(entry.id)
            except NotFound:
                pass  # somebody else removed it: that is what this is about

    children = [forked(lambda seed=seed: write_and_remove(seed)) for seed in range(4)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert_whole(tmp_path, set())
    assert left_behind(tmp_path) == []


def test_a_store_in_which_a_write_stopped_half_way_is_as_it_was(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    entry = store.save(made(store, (6, 1)))
    half = Path(store.files.path("cases/.0123.tmp"))
    half.mkdir()
    (half / "case.json").write_bytes(msgspec.json.encode({"half": True})[:5])
    assert [each.id for each in store.entries()] == [entry.id]

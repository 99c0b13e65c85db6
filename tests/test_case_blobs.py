"""Storages as files: written whole or not at all, read back byte for byte or not at all."""

from __future__ import annotations

import errno
import json
import mmap
import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import safetensors.torch
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings, strategies as st

from torchsleuth.case.disk import TEMPORARY
from torchsleuth.case.format import seals, tensor_files
from torchsleuth.case.format.digests import Hasher, digest, is_digest
from torchsleuth.case.storages import blobs as blobs_module, memory as memory_module
from torchsleuth.case.storages.blobs import (
    Blobs,
    FileSystemBlobs,
    FolderBlobs,
    MemoryBlobs,
    digest_of,
    memory,
)
from torchsleuth.errors import BadCase, CaseError, HashMismatch, MissingTensor, StoreError

HEADER = b'{"data":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}'
LARGE = 3 * 2**20 + 5  # above what is mapped, and no multiple of anything


def storage_of(data: bytes) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(len(data), device="cpu")
    memory(storage)[:] = data
    return storage


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    return bytes(memory(storage))


def file_of(data: bytes, header: bytes | None = None) -> bytes:
    header = HEADER % (len(data), len(data)) if header is None else header
    return len(header).to_bytes(8, "little") + header + data


@pytest.fixture(params=["folder", "folder, not mapped", "memory", "fsspec memory", "fsspec local"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    match request.param:
        case "folder":
            return FolderBlobs(tmp_path / "not" / "there yet")
        case "folder, not mapped":
            return FolderBlobs(tmp_path, mapped=False)
        case "memory":
            return MemoryBlobs()
        case "fsspec memory":
            fs = MemoryFileSystem(global_store=False, skip_instance_cache=True)
            return FileSystemBlobs(fs, "/a store/tensors/")
        case _:
            return FileSystemBlobs(fsspec.filesystem("file"), str(tmp_path / "somewhere"))


# ---- digests ---------------------------------------------------------------------------------------------


def test_a_digest_is_the_blake3_hash_of_the_bytes() -> None:
    # The first test vector of BLAKE3's own: the hash of nothing.
    assert digest(b"") == "b3-af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@given(st.lists(st.binary(max_size=3000), max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_digest_does_not_depend_on_the_pieces_the_bytes_come_in(pieces: list[bytes]) -> None:
    hasher = Hasher(sum(map(len, pieces)))
    for piece in pieces:
        hasher.update(piece)
    assert hasher.digest() == digest(b"".join(pieces))


def test_a_digest_does_not_depend_on_the_number_of_threads() -> None:
    data = bytes(range(256)) * 2**15
    one_thread = Hasher(0)
    one_thread.update(data)
    assert digest(data) == one_thread.digest()


@pytest.mark.parametrize(
    "text",
    ["", "b3-", "b3-" + "0" * 63, "b3-" + "0" * 65, "b3-" + "A" * 64, "b2-" + "0" * 64, f"b3-{'0' * 64}\n", "../" * 22],
)
def test_what_only_looks_like_a_digest_is_none(text: str) -> None:
    assert is_digest(digest(b"x"))
    assert not is_digest(text)


def _hash_in_child(pipe: Any, data: bytes) -> None:
    pipe.send(digest(data))


def test_a_process_that_was_forked_off_can_hash_what_its_parent_hashed() -> None:
    """A pool of threads that lives on in the parent would be missing in the child, which would wait for it."""
    data = bytes(8 * 2**20)
    expected = digest(data)
    context = multiprocessing.get_context("fork")
    ours, childs = context.Pipe(duplex=False)
    child = context.Process(target=_hash_in_child, args=(childs, data))
    child.start()
    try:
        assert ours.poll(30), "the child hangs"
        assert ours.recv() == expected
    finally:
        child.kill()
        child.join()


# ---- there and back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 4096, LARGE])
def test_what_was_put_is_what_one_gets(blobs: Blobs, size: int) -> None:
    """Covers: S21"""
    data = os.urandom(size)
    name = blobs.put(storage_of(data))
    assert name == digest(data)
    back = blobs.get(name, size)
    assert back.nbytes() == size
    assert bytes_of(back) == data
    assert back.data_ptr() % 64 == 0


def test_a_storage_that_one_gets_is_ones_own(blobs: Blobs) -> None:
    data = os.urandom(LARGE)
    name = blobs.put(storage_of(data))
    one, other = blobs.get(name, LARGE), blobs.get(name, LARGE)
    memory(one)[:] = bytes(LARGE)
    assert bytes_of(other) == data
    assert bytes_of(blobs.get(name, LARGE)) == data


def test_bytes_on_another_device_come_piece_by_piece() -> None:
    """There is no other device here; copying from this one has to give the same."""
    for size in (0, 5, 2 * memory_module.CHUNK, 2 * memory_module.CHUNK + 7):
        data = os.urandom(size)
        storage = storage_of(data)
        pieces = [bytes(piece) for piece in memory_module.copied_pieces(storage)]
        assert b"".join(pieces) == data
        assert max(map(len, pieces), default=0) <= memory_module.CHUNK


def test_other_tools_can_open_the_file(tmp_path: Path) -> None:
    data = os.urandom(1000)
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(data))
    found = safetensors.torch.load_file(tmp_path / f"{name}.safetensors")
    assert list(found) == ["data"]
    assert found["data"].dtype == torch.uint8
    assert bytes(found["data"].tolist()) == data


def test_a_file_that_another_tool_wrote_is_read(tmp_path: Path) -> None:
    data = os.urandom(LARGE)
    name = digest(data)
    path = tmp_path / f"{name}.safetensors"
    safetensors.torch.save_file({"data": torch.frombuffer(bytearray(data), dtype=torch.uint8)}, path)
    assert bytes_of(FolderBlobs(tmp_path).get(name, LARGE)) == data
    # Where its bytes begin is up to the tool: here at 8 + 59, and storages are aligned nevertheless.
    path.write_bytes(file_of(data))
    assert FolderBlobs(tmp_path).get(name, LARGE).data_ptr() % 64 == 0


def test_the_same_bytes_are_written_once(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(b"abc"))
    before = blobs.path(name).stat()
    assert blobs.put(storage_of(b"abc")) == name
    assert blobs.path(name).stat().st_ino == before.st_ino
    assert [each.name for each in tmp_path.iterdir()] == [f"{name}.safetensors"]


@pytest.mark.parametrize("size", [LARGE, 9 * 2**20])
@pytest.mark.parametrize("settled", [False, True])
def test_large_ones_that_are_there_are_not_written_again(size: int, settled: bool, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(size)))
    if settled:
        blobs.settle([(name, size)])
    before = blobs.path(name).stat().st_ino
    assert FolderBlobs(tmp_path).put(storage_of(bytes(size))) == name
    assert blobs.path(name).stat().st_ino == before


@pytest.mark.parametrize("size", [3000, LARGE, 9 * 2**20])
def test_large_ones_that_only_begin_alike_are_two(size: int, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    one, other = bytes(size), bytes(size - 1) + b"x"
    names = [blobs.put(storage_of(data)) for data in (one, other)]
    assert names == [digest(one), digest(other)]
    assert [bytes_of(blobs.get(name, size)) for name in names] == [one, other]


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    for data in (DATA, bytes(LARGE), bytes(9 * 2**20)):
        name = blobs.put(storage_of(data))
        blobs.settle([(name, len(data))])
        with open(blobs.path(name), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        assert blobs.put(storage_of(data)) == name
        assert bytes_of(blobs.get(name, len(data))) == data


def test_the_same_bytes_are_written_once_to_any_file_system() -> None:
    fs = MemoryFileSystem(global_store=False, skip_instance_cache=True)
    blobs = FileSystemBlobs(fs, "/s")
    name = blobs.put(storage_of(b"abc"))
    created = fs.info(blobs.path(name))["created"]
    blobs.put(storage_of(b"abc"))
    assert fs.info(blobs.path(name))["created"] == created
    assert fs.find("/s") == [f"/s/{name}.safetensors"]


def test_a_file_of_the_wrong_length_is_replaced(tmp_path: Path) -> None:
    """A disk that lost its tail must not keep the bytes from being written again."""
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(b"abcdef"))
    os.truncate(blobs.path(name), 130)
    assert blobs.put(storage_of(b"abcdef")) == name
    assert bytes_of(blobs.get(name, 6)) == b"abcdef"


def test_files_get_the_permissions_that_the_user_asked_for(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    old = os.umask(0o027)
    try:
        name = blobs.put(storage_of(b"abc"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(blobs.path(name).stat().st_mode) == 0o640


def test_a_mapped_storage_outlives_its_file(tmp_path: Path) -> None:
    """Garbage collection may take the file away while a tensor is in use."""
    data = os.urandom(LARGE)
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(data))
    storage = blobs.get(name, LARGE)
    blobs.path(name).unlink()
    assert bytes_of(storage) == data


def test_storages_can_be_resized_if_they_are_not_mapped(tmp_path: Path) -> None:
    name = FolderBlobs(tmp_path).put(storage_of(bytes(LARGE)))
    storage = FolderBlobs(tmp_path, mapped=False).get(name, LARGE)
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_a_file_that_cannot_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    data = os.urandom(LARGE)
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(data))
    monkeypatch.setattr(blobs_module.mmap, "mmap", refuse)
    assert bytes_of(blobs.get(name, LARGE)) == data


def test_no_file_stays_open(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    before = len(os.listdir("/proc/self/fd"))
    blobs.get(name, LARGE)
    with pytest.raises(HashMismatch):
        blobs.get(name, 5)
    assert len(os.listdir("/proc/self/fd")) == before


# ---- what is not there -----------------------------------------------------------------------------------


def test_missing_bytes_are_an_error_that_names_the_file(blobs: Blobs) -> None:
    """Covers: U9"""
    name = digest(b"never put")
    with pytest.raises(MissingTensor, match=name) as caught:
        blobs.get(name, 9)
    assert "take the file" in caught.value.remedy


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "b3-" + "/" * 64, "x" * 5000, "b3-\x00"])
def test_a_name_that_is_no_digest_reaches_no_file(blobs: Blobs, name: str) -> None:
    with pytest.raises(BadCase, match="digest"):
        blobs.get(name, 1)


def test_a_temporary_file_never_counts(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(b"abc"))
    blobs.path(name).rename(tmp_path / f".{name}.safetensors.0123{TEMPORARY}")
    with pytest.raises(MissingTensor):
        blobs.get(name, 3)
    assert blobs.put(storage_of(b"abc")) == name
    assert bytes_of(blobs.get(name, 3)) == b"abc"


# ---- what is not right -----------------------------------------------------------------------------------

DATA = bytes(range(200))
WRONG: dict[str, tuple[bytes, type[CaseError]]] = {
    "nothing": (b"", BadCase),
    "less than a length": (b"\x78\0\0", BadCase),
    "header cut off": (file_of(DATA)[:40], HashMismatch),
    "data cut off": (file_of(DATA)[:-1], HashMismatch),
    "one byte more": (file_of(DATA) + b"\0", HashMismatch),
    "one bit flipped": (file_of(DATA)[:-1] + bytes([DATA[-1] ^ 1]), HashMismatch),
    "huge header": (b"\xff" * 8 + b"x" * 300, BadCase),
    "header of a gigabyte": ((2**30).to_bytes(8, "little") + b"x" * 300, BadCase),
    "not JSON": (file_of(DATA, b"{'data': 1}"), BadCase),
    "not UTF-8": (file_of(DATA, b'{"data": "\xff"}'), BadCase),
    "deeply nested": (file_of(DATA, b"[" * 4000), BadCase),
    "no tensor": (file_of(DATA, b"{}"), BadCase),
    "another tensor": (file_of(DATA, HEADER.replace(b'"data":{', b'"date":{') % (200, 200)), BadCase),
    "two tensors": (file_of(DATA, HEADER.replace(b"}}", b'},"x":{}}') % (200, 200)), BadCase),
    "wrong dtype": (file_of(DATA, HEADER.replace(b"U8", b"I8") % (200, 200)), BadCase),
    "wrong shape": (file_of(DATA, HEADER.replace(b"[%d]", b"[%d,1]") % (200, 200)), BadCase),
    "no shape": (file_of(DATA, HEADER.replace(b"[%d]", b"[]") % 200), BadCase),
    "negative size": (file_of(DATA, HEADER % (-200, -200)), HashMismatch),
    "size beyond the file": (file_of(DATA, HEADER % (2**40, 2**40)), HashMismatch),
    "size beyond 64 bits": (file_of(DATA, HEADER % (2**70, 2**70)), HashMismatch),
    "size as a float": (file_of(DATA, HEADER.replace(b"%d", b"%s") % (b"200.5", b"200")), BadCase),
    "offset elsewhere": (file_of(DATA, HEADER.replace(b"[0,", b"[8,") % (200, 200)), BadCase),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("where", ["folder", "fsspec"])
def test_a_damaged_file_is_an_error_that_names_it(what: str, where: str, tmp_path: Path) -> None:
    content, error = WRONG[what]
    (tmp_path / f"{digest(DATA)}.safetensors").write_bytes(content)
    blobs: Blobs = (
        FolderBlobs(tmp_path) if where == "folder" else FileSystemBlobs(fsspec.filesystem("file"), str(tmp_path))
    )
    with pytest.raises(error, match=digest(DATA)) as caught:
        blobs.get(digest(DATA), len(DATA))
    assert type(caught.value) is error
    assert caught.value.remedy


def test_damage_in_a_large_file_is_found_at_every_place(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    content = bytearray(blobs.path(name).read_bytes())
    for place in (128, 128 + LARGE // 2, 127 + LARGE):
        content[place] ^= 0x10
        blobs.path(name).write_bytes(content)
        with pytest.raises(HashMismatch, match="not the ones that were written"):
            blobs.get(name, LARGE)
        content[place] ^= 0x10


# ---- seals -----------------------------------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each check had to hash."""
    sizes: list[int] = []

    def check(storage: torch.UntypedStorage, digest: str, file: str) -> torch.UntypedStorage:
        sizes.append(storage.nbytes())
        return original(storage, digest, file)

    original = blobs_module._check
    monkeypatch.setattr(blobs_module, "_check", check)
    return sizes


def test_a_large_file_is_not_hashed_again_by_the_machine_that_wrote_it(tmp_path: Path, hashed: list[int]) -> None:
    blobs = FolderBlobs(tmp_path)
    large, small = blobs.put(storage_of(bytes(LARGE))), blobs.put(storage_of(b"abc"))
    blobs.settle([(large, LARGE), (small, 3)])
    assert bytes_of(blobs.get(large, LARGE)) == bytes(LARGE)
    assert hashed == []
    blobs.get(small, 3)
    assert hashed == [3]


def test_a_large_file_from_elsewhere_is_hashed_once(tmp_path: Path, hashed: list[int]) -> None:
    there, here = FolderBlobs(tmp_path / "there"), FolderBlobs(tmp_path / "here")
    name = there.put(storage_of(bytes(LARGE)))
    there.settle([(name, LARGE)])
    here.folder.mkdir()
    shutil.copy2(there.path(name), here.path(name))  # with its times
    for _ in range(3):
        here.get(name, LARGE)
    assert hashed == [LARGE]


def test_hashing_a_file_does_not_make_it_look_new(tmp_path: Path) -> None:
    """Else nothing that anybody reads would ever be garbage."""
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    os.utime(blobs.path(name), (1_000_000, 1_000_000))
    blobs.get(name, LARGE)
    assert 1_000_000 - 1 < blobs.path(name).stat().st_mtime <= 1_000_000


def test_a_change_breaks_the_seal_however_soon_it_comes(tmp_path: Path) -> None:
    """Also within one tick of the clock that the system takes times from, and through a mapping."""
    blobs = FolderBlobs(tmp_path)
    data = bytearray(os.urandom(2**20))
    for turn in range(100):
        name = blobs.put(storage_of(data))
        blobs.settle([(name, len(data))])
        with open(blobs.path(name), "r+b", buffering=0) as file:
            if turn % 2:
                with mmap.mmap(file.fileno(), 0) as mapped:
                    mapped[-1] ^= 1
                    mapped.flush()
            else:
                file.seek(-1, os.SEEK_END)
                file.write(bytes([data[-1] ^ 1]))
        with pytest.raises(HashMismatch):
            blobs.get(name, len(data))
        data[turn] ^= 1


def test_damage_is_not_sealed(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    blobs.settle([(name, LARGE)])
    with open(blobs.path(name), "r+b") as file:
        file.seek(5000)
        file.write(b"x")
    for _ in range(2):
        with pytest.raises(HashMismatch):
            blobs.get(name, LARGE)


def test_a_file_that_changes_while_it_is_hashed_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[int]
) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    os.utime(blobs.path(name))
    check = blobs_module._check

    def check_and_change(*args: Any) -> torch.UntypedStorage:
        found = check(*args)
        os.utime(blobs.path(name), (1, 1))
        return found

    monkeypatch.setattr(blobs_module, "_check", check_and_change)
    blobs.get(name, LARGE)
    blobs.get(name, LARGE)
    assert hashed == [LARGE, LARGE]


def test_a_file_that_cannot_be_sealed_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[int]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "utime", refuse)
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    for _ in range(2):
        assert bytes_of(blobs.get(name, LARGE)) == bytes(LARGE)
    assert hashed == [LARGE, LARGE]


def test_a_file_made_young_again_keeps_its_seal(tmp_path: Path, hashed: list[int]) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    os.utime(blobs.path(name), (1_000_000, 1_000_000))
    blobs.get(name, LARGE)
    began = time.time()
    seals.touch(blobs.path(name), name)
    assert began - 0.1 < blobs.path(name).stat().st_mtime < time.time() + 1.1
    blobs.get(name, LARGE)
    assert hashed == [LARGE]


def test_touching_a_file_that_is_not_sealed_does_not_seal_it(tmp_path: Path, hashed: list[int]) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(LARGE)))
    os.utime(blobs.path(name))
    seals.touch(blobs.path(name), name)
    blobs.get(name, LARGE)
    assert hashed == [LARGE]


def test_the_case_and_the_file_have_to_agree_on_the_length(blobs: Blobs) -> None:
    name = blobs.put(storage_of(b"abc"))
    with pytest.raises(HashMismatch):
        blobs.get(name, 4)
    with pytest.raises(HashMismatch):
        blobs.get(name, 2**62)


def test_nothing_is_allocated_on_the_word_of_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "allocate", lambda nbytes: pytest.fail(f"{nbytes} bytes are allocated"))
    claimed = 2**45
    (tmp_path / f"{digest(DATA)}.safetensors").write_bytes(file_of(DATA, HEADER % (claimed, claimed)))
    with pytest.raises(HashMismatch):
        FolderBlobs(tmp_path).get(digest(DATA), claimed)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_change_to_a_file_goes_unnoticed(data: st.DataObject) -> None:
    content = bytearray(tensor_files.head(len(DATA)) + DATA)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    fs = MemoryFileSystem(global_store=False, skip_instance_cache=True)
    blobs = FileSystemBlobs(fs, "/s")
    with fs.open(blobs.path(digest(DATA)), "wb") as file:
        file.write(bytes(content))
    # Spaces in the header mean nothing: what is read there is right, or an error.
    try:
        assert bytes_of(blobs.get(digest(DATA), len(DATA))) == DATA
        assert place < 128
    except CaseError:
        pass


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_an_error_and_not_a_wait(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{digest(DATA)}.safetensors"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(CaseError, match=digest(DATA)):
        FolderBlobs(tmp_path).get(digest(DATA), len(DATA))


# ---- what goes wrong while writing -----------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk with room for three megabytes a file."""
    write = os.write
    written: dict[int, int] = {}

    def limited(fd: int, data: Any) -> int:
        if written.get(fd, 0) + len(data) > 3 * 2**20 and len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written[fd] = written.get(fd, 0) + len(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", limited)
    return


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(StoreError, match="No space left") as caught:
        FolderBlobs(tmp_path).put(storage_of(bytes(9 * 2**20)))
    assert "make room" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["replace", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("size", [200, 9 * 2**20])
def test_a_disk_that_refuses_is_an_error_and_leaves_nothing_behind(
    call: str, code: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreError, match=re.escape(os.strerror(code))) as caught:
            FolderBlobs(tmp_path).put(storage_of(bytes(size)))
    assert str(tmp_path) in caught.value.file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [200, 9 * 2**20])
def test_what_the_disk_does_not_take_is_not_settled(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path)
    name = blobs.put(storage_of(bytes(size)))

    def refuse(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        for _ in range(2):
            with pytest.raises(StoreError, match=re.escape(os.strerror(errno.EIO))) as caught:
                blobs.settle([(name, size)])
            assert name in caught.value.file
            assert bytes_of(blobs.get(name, size)) == bytes(size)  # which does not seal it either
    blobs.settle([(name, size)])
    assert seals.is_sealed(blobs.path(name).stat(), name)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="File exists") as caught:
        FolderBlobs(tmp_path / "file").put(storage_of(DATA))
    assert "a store is a folder" in caught.value.remedy


def test_a_folder_that_goes_away_while_it_is_written_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FolderBlobs(tmp_path / "tensors")
    has_alike = FolderBlobs._has_alike

    def and_gone(self: FolderBlobs, storage: torch.UntypedStorage) -> bool:
        found = has_alike(self, storage)
        self.folder.rmdir()
        return found

    monkeypatch.setattr(FolderBlobs, "_has_alike", and_gone)
    with pytest.raises(StoreError, match="cannot write"):
        blobs.put(storage_of(bytes(9 * 2**20)))


@pytest.mark.parametrize("size", [200, 9 * 2**20])
def test_an_interrupt_while_writing_leaves_nothing_behind(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def interrupt(fd: int, data: Any) -> int:
        write(fd, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            FolderBlobs(tmp_path).put(storage_of(bytes(size)))
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:100]))
    blobs = FolderBlobs(tmp_path)
    assert bytes_of(blobs.get(blobs.put(storage_of(DATA * 5)), 1000)) == DATA * 5


def test_settling_puts_bytes_and_names_on_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, seal = os.fsync, seals.seal

    def noted_fsync(fd: int) -> None:
        done.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        fsync(fd)

    def noted_seal(fd: int, name: str) -> None:
        done.append("seal")
        seal(fd, name)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(seals, "seal", noted_seal)
    blobs = FolderBlobs(tmp_path)
    tensors = [(blobs.put(storage_of(bytes(size))), size) for size in (200, 9 * 2**20)]
    assert done == []
    blobs.settle(tensors)
    assert done == ["sync file", "seal", "sync file", "seal", "sync folder"]
    blobs.settle(tensors)
    assert done[5:] == ["sync folder"]


@pytest.mark.parametrize("size", [200, 9 * 2**20])
def test_a_tensor_that_changes_meanwhile_is_an_error(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file lies under a name that is not its own; that does not keep the right one from being written."""
    storage = storage_of(bytes(size))
    blobs = FolderBlobs(tmp_path)
    write = os.write

    def meanwhile(fd: int, data: Any) -> int:
        written = write(fd, bytes([1] * len(data)))
        assert written == len(data)
        return written

    write_head = tensor_files.head(size)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data) if data == write_head else meanwhile(fd, data))
        name = blobs.put(storage)
    assert name == digest(bytes(size))
    with pytest.raises(StoreError, match="changed"):
        blobs.settle([(name, size)])
    with pytest.raises(HashMismatch):
        blobs.get(name, size)
    assert blobs.put(storage) == name
    blobs.settle([(name, size)])
    assert bytes_of(blobs.get(name, size)) == bytes(size)
    assert [path.name for path in tmp_path.iterdir()] == [tensor_files.file_name(name)]


def test_a_case_can_be_written_while_the_interpreter_goes_down(tmp_path: Path) -> None:
    """When no more threads can be started."""
    program = f"""
import atexit, pathlib, torch
from torchsleuth.case.storages.blobs import FolderBlobs

def write():
    blobs = FolderBlobs(pathlib.Path({str(tmp_path)!r}))
    blobs.settle([(blobs.put(torch.zeros(9 * 2**18).untyped_storage()), 9 * 2**20)])
    print("written")

atexit.register(write)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "written\n", done.stderr
    assert bytes_of(FolderBlobs(tmp_path).get(digest(bytes(9 * 2**20)), 9 * 2**20)) == bytes(9 * 2**20)


def test_a_file_system_may_raise_what_it_likes() -> None:
    class Odd(MemoryFileSystem):  # type: ignore[misc]
        def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
            raise KeyError("no such bucket")

    blobs = FileSystemBlobs(Odd(global_store=False, skip_instance_cache=True), "/s")
    with pytest.raises(StoreError, match="no such bucket"):
        blobs.put(storage_of(DATA))
    blobs.fs.store["/s/" + digest(DATA) + ".safetensors"] = MemoryBlobs  # something that is not even a file
    with pytest.raises(StoreError):
        blobs.get(digest(DATA), len(DATA))


def test_two_that_write_the_same_blob_at_once_do_not_meet(tmp_path: Path) -> None:
    storage = storage_of(os.urandom(LARGE))
    barrier = threading.Barrier(4)
    failed: list[BaseException] = []

    def put() -> None:
        barrier.wait()
        try:
            for _ in range(5):
                name = FolderBlobs(tmp_path).put(storage)
                FolderBlobs(tmp_path).get(name, LARGE)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [each.name for each in tmp_path.iterdir()] == [f"{digest_of(storage)}.safetensors"]


def test_the_header_is_read_by_any_reader_of_json() -> None:
    head = tensor_files.head(2**63 - 1)
    assert len(head) == 128
    assert json.loads(head[8:])["data"]["shape"] == [2**63 - 1]


def test_no_memory_is_an_error_of_ours() -> None:
    with pytest.raises(StoreError, match="no memory"):
        memory_module.allocate(2**62)
    with pytest.raises(StoreError, match="no memory"):
        memory_module.allocate(2**80)

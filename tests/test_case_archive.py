"""A case as one file: it goes anywhere and comes back the same, and nothing that a stranger sends gets through."""

from __future__ import annotations

import os
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from case_samples import checked, rich_case, small_case
from torchsleuth.case import schema
from torchsleuth.case.format import tensor_files
from torchsleuth.case.format.digests import digest
from torchsleuth.case.format.reading import encode, seal, unseal
from torchsleuth.case.stores import zip_form
from torchsleuth.case.stores.archive import Archive, pack, unpack
from torchsleuth.case.stores.store import Store
from torchsleuth.case.stores.zip_form import DEFLATED, STORED, Member, directory, local_header, placed
from torchsleuth.errors import CaseError, HashMismatch, MissingTensor, NotFound, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def case(store: Store) -> schema.Case:
    """A case with two tensors, saved as `mine`."""
    digests = [store.blobs.put(torch.arange(number).float().untyped_storage()) for number in (6, 5000)]
    case = small_case(
        storages=tuple(
            schema.Storage(nbytes, schema.Stored(name)) for nbytes, name in zip((24, 20000), digests, strict=True)
        )
    )
    store.save(case, "mine")
    return case


@pytest.fixture
def packed(store: Store, case: schema.Case, tmp_path: Path) -> Path:
    return pack(store, "mine", tmp_path / "mine.sleuth.zip")


def read_all(path: Path) -> schema.Case:
    """Read a case and every byte of its tensors, straight from the archive."""
    archive = Archive.open(path)
    for storage in archive.case.storages:
        assert isinstance(storage.content, schema.Stored)
        archive.blobs.get(storage.content.digest, storage.nbytes)
    return archive.case


def refused(path: Path, data: bytes, kind: type[CaseError] = CaseError) -> CaseError:
    path = path.with_name("changed.sleuth.zip")
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        read_all(path)
    assert "changed.sleuth.zip" in str(caught.value)
    store = Store.open(path.parent / "other")
    with pytest.raises(CaseError):
        unpack(path, store)
    assert store.entries() == []
    return caught.value


# ---- there and back ----------------------------------------------------------------------------------------


def test_a_case_goes_into_an_archive_and_comes_out_the_same(
    packed: Path, case: schema.Case, store: Store, tmp_path: Path
) -> None:
    """Covers: U30"""
    other = Store.open(tmp_path / "elsewhere")
    entry = unpack(packed, other, "theirs")
    assert entry.id == store.entry("mine").id
    assert checked(other, "theirs") == case
    assert read_all(packed) == case
    assert checked(other, packed) == case
    content = case.storages[1].content
    assert isinstance(content, schema.Stored)
    found = other.find(packed).blobs.get(content.digest, 20000)
    assert torch.equal(torch.frombuffer(bytearray(bytes(found)), dtype=torch.float32), torch.arange(5000).float())


def test_an_archive_works_through_any_kind_of_store(packed: Path, case: schema.Case, tmp_path: Path) -> None:
    memory = Store.open(f"memory://{tmp_path}")
    entry = unpack(packed, memory, "theirs")
    assert checked(memory, "theirs") == case
    again = pack(memory, entry.id[:5], tmp_path / "again.zip")
    assert again.read_bytes() == packed.read_bytes()


def test_the_same_case_is_packed_into_the_same_bytes(packed: Path, case: schema.Case, tmp_path: Path) -> None:
    """Covers: S22"""
    other = Store.open(tmp_path / "elsewhere")
    unpack(packed, other)
    os.utime(packed)
    assert pack(other, other.entries()[0].id, tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_an_archive_says_nothing_of_where_it_was_packed(packed: Path, tmp_path: Path) -> None:
    """Covers: U30"""
    data = packed.read_bytes()
    assert str(tmp_path).encode() not in data
    assert os.environ.get("USER", "nobody-at-all").encode() not in data


def test_any_program_can_open_it(packed: Path, case: schema.Case, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as file:
        assert file.testzip() is None
        assert file.namelist()[0] == "case.json"
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist()[1:])
        file.extractall(tmp_path / "by-hand")
    assert checked(Store.open(tmp_path / "other"), tmp_path / "by-hand") == case


def test_an_archive_is_named_after_the_label_or_the_id(
    store: Store, case: schema.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack(store, "mine") == Path("mine.sleuth.zip")
    entry = store.entry("mine")
    assert pack(store, entry.id) == Path("mine.sleuth.zip")
    (tmp_path / "folder").mkdir()
    assert pack(store, "mine", tmp_path / "folder") == tmp_path / "folder" / "mine.sleuth.zip"
    Path(store.files.path("labels/mine")).unlink()
    assert pack(store, entry.id[:4]) == Path(f"{entry.id}.sleuth.zip")


def test_a_tensor_that_two_storages_share_is_packed_once(store: Store, tmp_path: Path) -> None:
    name = store.blobs.put(torch.zeros(6).untyped_storage())
    store.save(small_case(storages=(schema.Storage(24, schema.Stored(name)),) * 2), "twice")
    assert len(zipfile.ZipFile(pack(store, "twice", tmp_path / "a.zip")).namelist()) == 2


def test_what_is_not_there_or_not_right_is_not_packed(store: Store, case: schema.Case, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pack(store, "nobody", tmp_path / "a.zip")
    with pytest.raises(StoreError, match="folder"):
        pack(store, "mine", tmp_path / "none" / "a.zip")
    content = case.storages[1].content
    assert isinstance(content, schema.Stored)
    file = Path(store.files.path(f"tensors/{content.digest}.safetensors"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x")
    with pytest.raises(HashMismatch):
        pack(store, "mine", tmp_path / "a.zip")
    file.unlink()
    with pytest.raises(MissingTensor):
        pack(store, "mine", tmp_path / "a.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_case_that_cannot_be_unpacked_in_full_is_not_in_the_store(packed: Path, tmp_path: Path) -> None:
    data = bytearray(packed.read_bytes())
    with zipfile.ZipFile(packed) as file:
        (large,) = [info for info in file.infolist() if info.file_size == 128 + 20000]
    data[large.header_offset + 500] ^= 1
    assert refused(packed, bytes(data), HashMismatch)


def test_the_head_of_a_tensor_file_is_the_one_that_blobs_write(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    digest = store.blobs.put(torch.arange(10, dtype=torch.uint8).untyped_storage())
    data = Path(store.files.path(f"tensors/{tensor_files.file_name(digest)}")).read_bytes()
    assert data == tensor_files.head(10) + bytes(range(10))
    assert tensor_files.find_data(data, len(data), 10, "") == tensor_files.START


def test_a_tensor_file_with_a_damaged_head_is_not_packed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    digest = store.blobs.put(torch.zeros(6).untyped_storage())
    store.save(small_case(), "mine")
    path = Path(store.files.path(f"tensors/{tensor_files.file_name(digest)}"))
    path.write_bytes(path.read_bytes().replace(b"data", b"beta", 1))
    with pytest.raises(CaseError) as caught:
        pack(store, "mine", tmp_path / "mine.sleuth.zip")
    assert caught.value.file == str(path)
    assert not (tmp_path / "mine.sleuth.zip").exists()


def test_nothing_is_put_into_an_archive(packed: Path) -> None:
    with pytest.raises(StoreError, match="cannot be added to"):
        Archive.open(packed).blobs.put(torch.zeros(1).untyped_storage())


def test_an_archive_of_a_newer_version_keeps_what_this_version_does_not_know(store: Store, tmp_path: Path) -> None:
    body = msgspec.json.decode(unseal(encode(small_case(storages=(), inputs=(1,)))).body)
    body["mood"] = "tomorrow's"
    path = tmp_path / "newer.sleuth.zip"
    path.write_bytes(archive_of(seal(msgspec.json.encode(body), version=2)))
    with pytest.warns(UserWarning, match="mood"):
        entry = unpack(path, store)
    assert b"tomorrow's" in store.files.read(f"cases/{entry.id}/case.json", 1 << 20)
    with pytest.warns(UserWarning, match="mood"):
        assert pack(store, entry.id, tmp_path / "again.zip").read_bytes() == path.read_bytes()


# ---- zip64 -------------------------------------------------------------------------------------------------


def test_members_beyond_four_gigabytes_are_written_as_other_programs_expect(
    store: Store, case: schema.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (0x200, 0x3000, 0x5000):
        with monkeypatch.context() as patch:
            patch.setattr(zip_form, "_LIMIT_FROM", limit)
            path = pack(store, "mine", tmp_path / f"{limit}.zip")
            assert read_all(path) == case
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
            assert file.infolist()[-1].file_size in (128 + 24, 128 + 20000)


def test_an_archive_beyond_four_gigabytes_is_packed_and_read(tmp_path: Path) -> None:
    """By its headers: the bytes are a hole in a sparse file."""
    path = tmp_path / "large.zip"
    size = 5 << 30
    data = b"0123456789"
    members = list(placed([Member("hole", size, 0, STORED, size), Member("after", 10, zlib.crc32(data), STORED, 10)]))
    with open(path, "wb") as file:
        file.write(local_header(members[0]))
        file.seek(members[1].offset)
        file.write(local_header(members[1]) + data + directory(members, b""))
    with open(path, "rb") as file:
        found, _ = zip_form.read_directory(file, "large.zip", 0)
        assert found == members
        assert b"".join(zip_form.unpacked(file, found[1], "large.zip")) == data
    with zipfile.ZipFile(path) as other:
        assert other.infolist()[0].file_size == size
        assert other.read("after") == data


def test_more_tensors_than_a_zip_can_count_are_not_packed(
    store: Store, case: schema.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_form, "MAX_MEMBERS", 2)
    with pytest.raises(StoreError, match="2 tensors"):
        pack(store, "mine", tmp_path / "a.zip")


# ---- what strangers send -----------------------------------------------------------------------------------


def archive_of(case_json: bytes, *more: tuple[str, bytes], first: str = "case.json") -> bytes:
    """An archive in the right form, with any content."""
    squeezed = zlib.compressobj(6, zlib.DEFLATED, -15)
    deflated = squeezed.compress(case_json) + squeezed.flush()
    parts = [(Member(first, len(case_json), zlib.crc32(case_json), DEFLATED, len(deflated)), deflated)]
    parts += [(Member(name, len(data), zlib.crc32(data), STORED, len(data)), data) for name, data in more]
    members = list(placed(member for member, _ in parts))
    bodies = b"".join(local_header(member) + data for member, (_, data) in zip(members, parts, strict=True))
    return bodies + directory(members, digest(deflated).encode())


def without_tensors() -> bytes:
    return encode(small_case(storages=(), inputs=(1,)))


def test_the_helper_makes_archives_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(archive_of(without_tensors()))
    assert read_all(path).inputs == (1,)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "/etc/passwd",
        "C:\\evil.py",
        "..\\evil.py",
        "tensors/../../evil",
        "tensors/b3-" + "0" * 64 + ".safetensors/../x",
        "tensors/b3-" + "0" * 63 + ".safetensors",
        "tensors/b3-" + "A" * 64 + ".safetensors",
        "repro.py",
        "case.json",
        "tensors/",
        "",
        "__MACOSX/case.json",
    ],
)
def test_a_member_of_any_other_name_is_refused(name: str, tmp_path: Path) -> None:
    """Covers: U30"""
    error = refused(tmp_path / "a", archive_of(without_tensors(), (name, b"print('gotcha')")))
    assert "member" in error.cause
    assert not list(tmp_path.rglob("evil*"))


def test_a_first_member_that_is_not_the_case_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "a", archive_of(without_tensors(), first="case2.json"))


def test_a_member_that_is_there_twice_is_refused(packed: Path) -> None:
    with zipfile.ZipFile(packed) as file:
        data, name = file.read("case.json"), file.namelist()[1]
        tensor = file.read(name)
    assert "twice" in str(refused(packed, archive_of(data, (name, tensor), (name, tensor))))


def test_a_tensor_that_is_missing_or_that_nobody_needs_is_refused(packed: Path) -> None:
    with zipfile.ZipFile(packed) as file:
        data = file.read("case.json")
        tensors = [(name, file.read(name)) for name in file.namelist()[1:]]
    packed.write_bytes(archive_of(data, *tensors))
    read_all(packed)
    refused(packed, archive_of(data, tensors[0]), MissingTensor)
    extra = (f"tensors/{digest(b'x')}.safetensors", b"\0" * 128 + b"x")
    assert "does not refer to" in str(refused(packed, archive_of(data, *tensors, extra)))
    swapped = [(tensors[0][0], tensors[1][1]), (tensors[1][0], tensors[0][1])]
    refused(packed, archive_of(data, *swapped))
    changed = (tensors[0][0], tensors[0][1][:-1] + b"x")
    refused(packed, archive_of(data, changed, tensors[1]), HashMismatch)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    for text in (b" " * (20 << 20), b"[" * (20 << 20)):
        assert "claim to unpack" in str(refused(tmp_path / "a", archive_of(text)))


def test_a_bomb_that_lies_about_its_size_is_not_unpacked(tmp_path: Path) -> None:
    data = without_tensors()
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    deflated = squeezed.compress(b" " * (30 << 20)) + squeezed.flush()
    for size in (0, 10, len(deflated)):
        (member,) = placed([Member("case.json", size, zlib.crc32(data), DEFLATED, len(deflated))])
        whole = local_header(member) + deflated + directory([member], digest(deflated).encode())
        assert "more or fewer bytes" in str(refused(tmp_path / "a", whole, HashMismatch))


def test_a_size_that_nothing_could_have_is_refused_at_once(tmp_path: Path) -> None:
    data = without_tensors()
    for size, packed in ((1 << 62, len(data)), (len(data), 1 << 62), (1 << 62, 1 << 62), (300 << 20, 4 << 20)):
        member = Member("case.json", size, 0, DEFLATED, packed)
        refused(tmp_path / "a", local_header(member) + data + directory([member], digest(data).encode()))


def by_another_program(packed: Path, **options: Any) -> bytes:
    """The same content in a zip as Python would write it."""
    out = packed.with_name("other.zip")
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(out, "w", **options) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return out.read_bytes()


def with_a_link(packed: Path) -> bytes:
    info = zipfile.ZipInfo("tensors/link")
    info.external_attr = 0o120777 << 16
    out = packed.with_name("link.zip")
    out.write_bytes(packed.read_bytes())
    with zipfile.ZipFile(out, "a") as file:
        file.writestr(info, "/etc/passwd")
    return out.read_bytes()


def encrypted(packed: Path) -> bytes:
    data = bytearray(packed.read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


def overlapping(packed: Path) -> bytes:
    data = packed.read_bytes()
    with zipfile.ZipFile(packed) as file:
        begin = file.start_dir
        infos = file.infolist()
    members = [Member(i.filename, i.file_size, i.CRC, i.compress_type, i.compress_size, i.header_offset) for i in infos]
    members[2] = Member(members[2].name, members[1].size, members[1].crc, STORED, members[1].packed, members[1].offset)
    return data[:begin] + directory(members, data[-67:])


@pytest.mark.parametrize(
    "change",
    [
        lambda path: b"",
        lambda path: b"PK\5\6" + b"\0" * 18,
        lambda path: b"x" + path.read_bytes(),
        lambda path: path.read_bytes() + b"x",
        lambda path: path.read_bytes()[:-67] + b"x" * 67,
        lambda path: path.read_bytes().replace(b"case.json", b"case.JSON"),
        by_another_program,
        lambda path: by_another_program(path, compression=zipfile.ZIP_BZIP2),
        lambda path: by_another_program(path, compression=zipfile.ZIP_DEFLATED),
        with_a_link,
        encrypted,
        overlapping,
    ],
)
def test_a_zip_of_another_form_is_refused(packed: Path, change: Callable[[Path], bytes]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = change(packed)
    refused(packed, data)


def test_every_changed_byte_outside_and_inside_of_members_is_noticed(packed: Path) -> None:
    data = packed.read_bytes()
    with zipfile.ZipFile(packed) as file:
        (large,) = [info for info in file.infolist() if info.file_size == 128 + 20000]
    skip = range(large.header_offset + 300, large.header_offset + 20_000)
    positions = [each for each in range(len(data)) if each not in skip]
    random.Random(0).shuffle(positions)
    path = packed.with_name("changed.zip")
    for position in positions[:700]:
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        with pytest.raises(CaseError):
            read_all(path)


def test_a_truncated_archive_is_refused(packed: Path) -> None:
    data = packed.read_bytes()
    path = packed.with_name("changed.zip")
    for length in [*range(0, len(data), 397), *range(len(data) - 300, len(data))]:
        path.write_bytes(data[:length])
        with pytest.raises(CaseError):
            Archive.open(path)


def test_an_archive_with_a_nonsense_directory_is_refused(packed: Path) -> None:
    data = packed.read_bytes()
    end = len(data) - 67 - 22
    for count, size, begin in ((0xFFFF, 1, 1), (0, 0, 0), (3, 0xFFFFFFFF, 0xFFFFFFFF), (3, 0, 0), (60_000, 100, 0)):
        tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, begin, 67)
        refused(packed, data[:end] + tail + data[-67:])


def test_a_pipe_or_a_folder_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sleuth.zip")
    (tmp_path / "folder.sleuth.zip").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StoreError, match="not a file"):
            Archive.open(tmp_path / f"{name}.sleuth.zip")
    with pytest.raises(NotFound):
        Archive.open(tmp_path / "none.sleuth.zip")


def test_a_case_that_makes_no_sense_is_refused_with_the_archive_and_the_field(tmp_path: Path) -> None:
    body = msgspec.json.decode(unseal(without_tensors()).body)
    body["graph"]["nodes"][0]["name"] = "not a name"
    error = refused(tmp_path / "a", archive_of(seal(msgspec.json.encode(body))))
    assert error.field == "graph.nodes[0].name"
    assert error.file.endswith("changed.sleuth.zip/case.json")


def test_everything_that_a_case_can_hold_survives(store: Store, tmp_path: Path) -> None:
    store.blobs.put(torch.zeros(6).untyped_storage())
    store.save(rich_case(), "rich")
    assert Archive.open(pack(store, "rich", tmp_path / "rich.zip")).case == rich_case()

"""The drop-in's content store: torch reads it and writes it too, and nothing in it is half a file or random data."""

from __future__ import annotations

import hashlib
import inspect
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._content_store as theirs
from blake3 import blake3
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from torchsleuth.dropin import content_store as ours
from torchsleuth.dropin.content_store import ContentStoreReader, ContentStoreWriter, hash_storage
from torchsleuth.errors import BadValue, CannotHold, HashMismatch, StoreError

BOTH_WAYS = [(ours, theirs), (theirs, ours), (ours, ours)]


def storage_of(data: bytes) -> torch.UntypedStorage:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


def numbers(count: int = 24) -> torch.Tensor:
    return torch.arange(float(count))


def files_in(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def written(folder: Path, tensor: torch.Tensor, name: str = "x") -> Path:
    """The file of the bytes of a tensor that was written."""
    ContentStoreWriter(str(folder)).write_tensor(name, tensor)
    return folder / "storages" / hash_storage(tensor.untyped_storage())


# ---- both sides ------------------------------------------------------------------------------------------

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.uint64, torch.bfloat16, torch.float8_e5m2, torch.complex64]
TENSORS = {
    "plain": lambda: numbers(),
    "a scalar": lambda: torch.tensor(3.0),
    "empty": lambda: torch.ones(0, 3),
    "a part": lambda: numbers()[5:9],
    "transposed": lambda: numbers().view(4, 6).t(),
    "expanded": lambda: torch.ones(1).expand(4),
    "with gaps": lambda: numbers().view(4, 6)[1:3, ::2],
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j]).conj().imag,
    "a parameter": lambda: torch.nn.Parameter(numbers()),
    **{str(dtype): lambda dtype=dtype: torch.ones(5).to(dtype) for dtype in DTYPES},
}


@pytest.mark.parametrize(("writing", "reading"), BOTH_WAYS, ids=["we write", "torch writes", "alone"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_whichever_side_wrote_it(writing: Any, reading: Any, name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]()
    writing.ContentStoreWriter(str(tmp_path), stable_hash=True).write_tensor("some/where", tensor)
    found = reading.ContentStoreReader(str(tmp_path)).read_tensor("some/where")
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (found.storage_offset(), found.is_conj(), found.is_neg()) == (
        tensor.storage_offset(),
        tensor.is_conj(),
        tensor.is_neg(),
    )
    assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage())
    assert not found.requires_grad


def test_the_files_are_those_of_torch(tmp_path: Path) -> None:
    for side, folder in ((ours, tmp_path / "ours"), (theirs, tmp_path / "theirs")):
        writer = side.ContentStoreWriter(str(folder), stable_hash=True)
        writer.write_tensor("a", numbers())
        writer.write_tensor("b/c", numbers()[3:])
        writer.write_tensor("d", numbers() + 1)
    assert files_in(tmp_path / "ours") == files_in(tmp_path / "theirs")
    assert len(files_in(tmp_path / "ours")) == 5
    for name in ("a", "b/c", "d"):
        found = [side.ContentStoreReader(str(tmp_path / "ours")).read_tensor_metadata(name) for side in (ours, theirs)]
        assert found[0] == found[1] == theirs.ContentStoreReader(str(tmp_path / "theirs")).read_tensor_metadata(name)


@pytest.mark.parametrize("side", [ours, theirs])
def test_what_is_computed_of_a_tensor_is_what_is_written_of_it(side: Any, tmp_path: Path) -> None:
    tensor = numbers().view(4, 6).t()
    writer = side.ContentStoreWriter(str(tmp_path), stable_hash=True)
    writer.write_tensor("x", tensor)
    sha1 = hashlib.sha1(bytes(tensor.untyped_storage())).hexdigest()
    expected = (torch.float32, sha1, 0, (6, 4), (1, 6), {})
    assert writer.compute_tensor_metadata(tensor) == expected
    assert writer.compute_tensor_metadata(tensor, h="other") == (torch.float32, "other", *expected[2:])
    assert ContentStoreReader(str(tmp_path)).read_tensor_metadata("x") == expected
    assert files_in(tmp_path) == [f"storages/{sha1}", "tensors/x"], "computing writes nothing"


def test_a_hash_that_is_torch_s_own_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is stable, nobody else can compute it."""
    monkeypatch.setattr(theirs, "hash_storage", lambda storage, *, stable_hash: "0123456789" * 4)
    theirs.ContentStoreWriter(str(tmp_path)).write_tensor("x", numbers())
    assert torch.equal(ContentStoreReader(str(tmp_path)).read_tensor("x"), numbers())


@pytest.mark.parametrize("name", ["ContentStoreWriter", "ContentStoreReader", "hash_storage"])
def test_names_order_and_defaults_of_the_arguments_are_those_of_torch(name: str) -> None:
    def arguments(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    mine, yours = getattr(ours, name), getattr(theirs, name)
    assert arguments(mine) == arguments(yours)
    methods = [method for method in vars(yours) if not method.startswith("_")] if inspect.isclass(yours) else []
    assert all(arguments(getattr(mine, method)) == arguments(getattr(yours, method)) for method in methods)


# ---- hashes ----------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 3


def test_a_stable_hash_is_sha1_and_torch_s() -> None:
    found = hash_storage(storage_of(DATA), stable_hash=True)
    assert found == hashlib.sha1(DATA).hexdigest() == theirs.hash_storage(storage_of(DATA), stable_hash=True)


def test_any_other_hash_is_the_beginning_of_blake3() -> None:
    found = hash_storage(storage_of(DATA))
    assert found == blake3(DATA).hexdigest()[:40] == "925dab75cad05386cab414deac2cb9fd5a86b880"


def test_no_bytes_have_a_hash_too(tmp_path: Path) -> None:
    empty = torch.UntypedStorage(0)
    assert hash_storage(empty) == blake3(b"").hexdigest()[:40]
    assert hash_storage(empty, stable_hash=True) == hashlib.sha1(b"").hexdigest()
    digest = ContentStoreWriter(str(tmp_path)).write_storage(empty)
    assert ContentStoreReader(str(tmp_path)).read_storage(digest).nbytes() == 0


def test_lengths_count() -> None:
    """torch fills up with zeros to a multiple of four."""
    assert hash_storage(storage_of(b"\x01")) != hash_storage(storage_of(b"\x01\x00"))


@settings(max_examples=200, deadline=None)
@given(one=st.binary(min_size=1, max_size=40), other=st.binary(min_size=1, max_size=40), stable=st.booleans())
def test_hashes_are_equal_if_the_bytes_are(one: bytes, other: bytes, stable: bool) -> None:
    hashes = [hash_storage(storage_of(data), stable_hash=stable) for data in (one, other, one)]
    assert hashes[0] == hashes[2]
    assert (hashes[0] == hashes[1]) == (one == other)
    assert all(len(found) == 40 and set(found) <= set("0123456789abcdef") for found in hashes)


def test_bytes_in_many_pieces_are_hashed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsleuth.case.storages.memory.CHUNK", 7)
    test_a_stable_hash_is_sha1_and_torch_s()
    test_any_other_hash_is_the_beginning_of_blake3()


def test_for_a_hash_nothing_is_compiled_drawn_or_copied() -> None:
    """torch compiles a kernel for it, and draws its numbers from a generator of the user's."""
    program = """
import sys, torch
from pathlib import Path
from torchsleuth.dropin.content_store import hash_storage

def peak():
    return int(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))

storage = torch.zeros(16 * 2**20, dtype=torch.int32).fill_(7).untyped_storage()
hash_storage(torch.ones(3).untyped_storage())
before, state = peak(), torch.get_rng_state()
print(hash_storage(storage), hash_storage(storage, stable_hash=True))
assert torch.equal(state, torch.get_rng_state()), "drawn"
assert "torch._dynamo" not in sys.modules, "compiled"
assert peak() - before < 16 * 1024, "copied"
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    same = torch.zeros(16 * 2**20, dtype=torch.int32).fill_(7).untyped_storage()
    assert found.stdout.split() == [hash_storage(same), hash_storage(same, stable_hash=True)], "another process"


def test_memory_that_is_copied_when_it_is_written_to_is_not_copied_for_a_hash() -> None:
    lazy = torch._lazy_clone(numbers())
    assert hash_storage(lazy.untyped_storage()) == hash_storage(numbers().untyped_storage())
    assert torch._C._is_cow_tensor(lazy)


# ---- sharing ---------------------------------------------------------------------------------------------


def test_equal_bytes_are_one_file(tmp_path: Path) -> None:
    writer = ContentStoreWriter(str(tmp_path))
    for number, tensor in enumerate((numbers(), numbers(), numbers().view(4, 6), numbers()[3:])):
        writer.write_tensor(str(number), tensor)
    assert len(list((tmp_path / "storages").iterdir())) == 1
    assert len(list((tmp_path / "tensors").iterdir())) == 4


@pytest.mark.parametrize("cache", [True, False])
def test_tensors_on_one_storage_share_it_again_if_there_is_a_cache(cache: bool, tmp_path: Path) -> None:
    tensor, writer = numbers(), ContentStoreWriter(str(tmp_path))
    writer.write_tensor("all", tensor)
    writer.write_tensor("part", tensor[3:5])
    reader = ContentStoreReader(str(tmp_path), cache=cache)
    whole, part = reader.read_tensor("all"), reader.read_tensor("part")
    whole.zero_()
    assert bool(part.any()) == (not cache)
    other = ContentStoreReader(str(tmp_path)).read_tensor("all")
    assert torch.equal(other, numbers()), "writing to it does not reach the file, or another reader"


def test_what_nobody_uses_is_not_kept(tmp_path: Path) -> None:
    written(tmp_path, numbers())
    reader = ContentStoreReader(str(tmp_path))
    reader.read_tensor("x").zero_()
    assert torch.equal(reader.read_tensor("x"), numbers())


def test_a_device_has_storages_of_its_own(tmp_path: Path) -> None:
    digest = written(tmp_path, numbers()).name
    reader = ContentStoreReader(str(tmp_path))
    here = reader.read_storage(digest)
    assert reader.read_storage(digest, device="cpu").data_ptr() != here.data_ptr()
    assert reader.read_storage(digest).data_ptr() == here.data_ptr()
    assert reader.read_tensor("x", device="meta").device.type == "meta"
    assert reader.read_tensor("x", device=torch.device("cpu")).equal(numbers())


def test_modes_of_the_caller_do_not_matter(tmp_path: Path) -> None:
    tensor = numbers()
    digest = hash_storage(tensor.untyped_storage())
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        ContentStoreWriter(str(tmp_path)).write_tensor("x", tensor)
        found = ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert type(found) is torch.Tensor
    assert not found.is_inference()
    assert found.equal(tensor)
    assert files_in(tmp_path) == [f"storages/{digest}", "tensors/x"]


# ---- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x", "..", "", ".", "a/", "a\0b"])
def test_a_name_that_is_none_or_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    writer, reader = ContentStoreWriter(str(store)), ContentStoreReader(str(store))
    for use in (
        lambda: writer.write_tensor(name, numbers()),
        lambda: reader.read_tensor(name),
        lambda: reader.read_tensor_metadata(name),
        lambda: reader.read_storage(name),
    ):
        with pytest.raises(BadValue, match="no name of a file in"):
            use()
    assert files_in(tmp_path) == [], "not even the bytes"


@pytest.mark.parametrize("name", ["x", "a/b/c", "..x", "a..b", "./x", "weird name*", "ü"])
def test_any_other_name_will_do(name: str, tmp_path: Path) -> None:
    ContentStoreWriter(str(tmp_path)).write_tensor(name, numbers())
    assert theirs.ContentStoreReader(str(tmp_path)).read_tensor(name).equal(numbers())
    assert ContentStoreReader(str(tmp_path)).read_tensor(name).equal(numbers())


def test_a_storage_elsewhere_is_not_read_for_a_tensor_that_names_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    torch.save(numbers().untyped_storage(), secret)
    store = tmp_path / "store"
    file = written(store, numbers())
    payload = (torch.float32, "../../secret", 0, (24,), (1,), {})
    torch.save(payload, store / "tensors" / "x")
    assert theirs.ContentStoreReader(str(store)).read_tensor("x").equal(numbers()), "torch does"
    with pytest.raises(BadValue):
        ContentStoreReader(str(store)).read_tensor("x")
    assert file.exists()


def test_a_name_can_be_written_again(tmp_path: Path) -> None:
    writer = ContentStoreWriter(str(tmp_path))
    for tensor in (numbers(), numbers() + 1):
        writer.write_tensor("x", tensor)
        assert ContentStoreReader(str(tmp_path)).read_tensor("x").equal(tensor)


# ---- what is not there, or not whole ---------------------------------------------------------------------


def test_what_is_missing_is_a_missing_file(tmp_path: Path) -> None:
    file = written(tmp_path, numbers())
    reader = ContentStoreReader(str(tmp_path))
    for side in (reader, theirs.ContentStoreReader(str(tmp_path))):
        with pytest.raises(FileNotFoundError):
            side.read_tensor("y")
        with pytest.raises(FileNotFoundError):
            side.read_tensor_metadata("y")
        with pytest.raises(FileNotFoundError):
            side.read_storage("0" * 40)
    file.unlink()
    with pytest.raises(FileNotFoundError) as error:
        reader.read_tensor("x")
    assert error.value.filename == str(file)


CUTS = [0, 1, 10, 300, 700, 900, -1]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("which", ["storage", "tensor"])
def test_a_file_that_was_cut_off_is_an_error_that_names_it(which: str, cut: int, tmp_path: Path) -> None:
    file = written(tmp_path, numbers())
    file = file if which == "storage" else tmp_path / "tensors" / "x"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(StoreError, match="it cannot be read") as error:
        ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert error.value.file == str(file)


@pytest.mark.parametrize("stable", [True, False])
def test_one_wrong_bit_is_noticed(stable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads it without a word."""
    tensor = numbers()
    ContentStoreWriter(str(tmp_path), stable_hash=stable).write_tensor("x", tensor)
    (file,) = (tmp_path / "storages").iterdir()
    damage(file, tensor)
    assert not theirs.ContentStoreReader(str(tmp_path)).read_tensor("x").equal(tensor)
    with pytest.raises(HashMismatch, match="not the ones that were written") as error:
        ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert error.value.file == str(file)


def test_one_wrong_bit_is_noticed_under_a_hash_that_is_torch_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theirs, "hash_storage", lambda storage, *, stable_hash: "0123456789" * 4)
    theirs.ContentStoreWriter(str(tmp_path)).write_tensor("x", numbers())
    damage(tmp_path / "storages" / ("0123456789" * 4), numbers())
    with pytest.raises(HashMismatch):
        ContentStoreReader(str(tmp_path)).read_tensor("x")


def damage(file: Path, tensor: torch.Tensor) -> None:
    """Turn one bit of the data in a file."""
    data = bytearray(file.read_bytes())
    data[data.index(bytes(tensor.untyped_storage())) + 5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "payload",
    [
        (torch.float32, None, 0, (25,), (1,), {}),
        (torch.float32, None, 1, (24,), (1,), {}),
        (torch.float64, None, 0, (13,), (1,), {}),
        (torch.float32, None, 0, (2,), (24,), {}),
        (torch.float32, None, -1, (2,), (1,), {}),
        (torch.float32, None, 0, (2,), (-1,), {}),
        (torch.float32, None, 0, (2, 2), (1,), {}),
        (torch.float32, None, 0, ("2",), (1,), {}),
        (torch.float32, None, 0, (2,), (1,)),
        pytest.param((torch.qint8, None, 0, (2,), (1,), {}), marks=pytest.mark.filterwarnings("ignore")),
        "text",
        None,
    ],
)
def test_a_tensor_that_reaches_out_of_its_storage_is_an_error_not_random_data(payload: Any, tmp_path: Path) -> None:
    digest = written(tmp_path, numbers()).name
    if isinstance(payload, tuple):
        payload = (payload[0], digest, *payload[2:])
    torch.save(payload, tmp_path / "tensors" / "x")
    with pytest.raises(StoreError, match="it cannot be read") as error:
        ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert error.value.file == str(tmp_path / "tensors" / "x")


def test_a_tensor_that_reaches_out_of_its_storage_is_an_error_where_torch_would_make_that_larger(
    tmp_path: Path,
) -> None:
    """On other devices than the CPU memory may grow, and what is new in it is random."""
    digest = written(tmp_path, numbers()).name
    torch.save((torch.float32, digest, 0, (1000,), (1,), {}), tmp_path / "tensors" / "x")
    assert theirs.ContentStoreReader(str(tmp_path)).read_tensor("x", device="meta").shape == (1000,)
    with pytest.raises(StoreError, match="reaches out of its storage"):
        ContentStoreReader(str(tmp_path)).read_tensor("x", device="meta")


@pytest.mark.parametrize("stable", [True, False])
def test_checksums_may_be_switched_off_where_the_hash_can_be_computed_again(stable: bool, tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        ContentStoreWriter(str(tmp_path), stable_hash=stable).write_tensor("x", numbers())
    finally:
        torch.serialization.set_crc32_options(before)
    (file,) = (tmp_path / "storages").iterdir()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is not None
    assert ContentStoreReader(str(tmp_path)).read_tensor("x").equal(numbers())


@pytest.mark.parametrize("value", [numbers(), {"a": 1}, "text"], ids=["a tensor", "a dict", "text"])
def test_a_file_that_holds_no_storage_is_an_error(value: Any, tmp_path: Path) -> None:
    file = written(tmp_path, numbers())
    torch.save(value, file)
    with pytest.raises(StoreError, match="not a storage") as error:
        ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert error.value.file == str(file)


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "was_here"),))

    for file in (written(tmp_path, numbers()), tmp_path / "tensors" / "x"):
        torch.save(Code(), file)
        with pytest.raises(StoreError):
            ContentStoreReader(str(tmp_path)).read_tensor("x")
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize("cut", CUTS)
def test_a_writer_does_not_trust_a_file_that_was_cut_off(cut: int, tmp_path: Path) -> None:
    """Such as another tool leaves behind that was killed. torch takes it for the real one."""
    file = written(tmp_path, numbers())
    file.write_bytes(file.read_bytes()[:cut])
    writer = ContentStoreWriter(str(tmp_path))
    writer.write_tensor("y", numbers())
    assert ContentStoreReader(str(tmp_path)).read_tensor("y").equal(numbers())


def test_a_file_with_other_bytes_is_not_the_one_that_is_to_be_written(tmp_path: Path) -> None:
    file = written(tmp_path, numbers())
    torch.save(numbers(3).untyped_storage(), file)
    ContentStoreWriter(str(tmp_path)).write_tensor("y", numbers())
    assert ContentStoreReader(str(tmp_path)).read_tensor("y").equal(numbers())


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    file = written(tmp_path, numbers())
    before = file.stat()
    for writer in (ContentStoreWriter(str(tmp_path)) for _ in range(2)):
        writer.write_tensor("y", numbers())
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


# ---- what cannot be written ------------------------------------------------------------------------------

WITHOUT_BYTES = {
    "meta": lambda: torch.ones(2, device="meta"),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(2)),
    "a wrapper": lambda: TwoTensor(torch.ones(2), torch.ones(2)),
    "functional": lambda: torch._to_functional_tensor(torch.ones(2)),
}
WITHOUT_PLACE = {
    **WITHOUT_BYTES,
    "a subclass": lambda: torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "compressed": lambda: torch.eye(2).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
    "opaque": lambda: torch.ones(2).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITHOUT_PLACE)
def test_a_tensor_that_is_not_plain_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    tensor = WITHOUT_PLACE[name]()
    writer = ContentStoreWriter(str(tmp_path))
    for use in (lambda: writer.write_tensor("x", tensor), lambda: writer.compute_tensor_metadata(tensor)):
        with pytest.raises(CannotHold, match=r"has no (place|bytes)"):
            use()
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", WITHOUT_BYTES)
@pytest.mark.parametrize("stable", [True, False])
def test_a_storage_without_bytes_is_refused(name: str, stable: bool, tmp_path: Path) -> None:
    storage = WITHOUT_BYTES[name]().untyped_storage()
    with pytest.raises(CannotHold, match="no bytes to hash"):
        hash_storage(storage, stable_hash=stable)
    with pytest.raises(CannotHold):
        ContentStoreWriter(str(tmp_path), stable_hash=stable).write_storage(storage)
    assert files_in(tmp_path) == []


def test_a_tensor_inside_of_vmap_is_refused(tmp_path: Path) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        ContentStoreWriter(str(tmp_path)).write_tensor("x", x)
        return x

    with pytest.raises(CannotHold):
        torch.vmap(write)(torch.ones(2, 2))


@contextmanager
def little_room(nbytes: int) -> Iterator[None]:
    """Inside, no file may be larger: as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_there_is_an_error_that_says_so_and_no_half_file(tmp_path: Path) -> None:
    writer = ContentStoreWriter(str(tmp_path))
    large = torch.ones(200_000)
    with little_room(50_000), pytest.raises(StoreError, match="it cannot be written") as error:
        writer.write_tensor("x", large)
    assert error.value.file == str(tmp_path / "storages" / hash_storage(large.untyped_storage()))
    assert error.value.cause.startswith("OSError: [Errno 27]")
    assert "make room" in error.value.remedy
    assert files_in(tmp_path) == []
    writer.write_tensor("x", large)
    assert ContentStoreReader(str(tmp_path)).read_tensor("x").equal(large), "and later there is room"


@pytest.mark.parametrize("stage", ["while writing", "before the name"])
def test_whatever_interrupts_a_writer_leaves_no_half_file(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        if stage == "while writing":
            args[1].write(b"half a file")
        raise KeyboardInterrupt

    place = (torch, "save") if stage == "while writing" else (os, "replace")
    with monkeypatch.context() as patched:
        patched.setattr(*place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ContentStoreWriter(str(tmp_path)).write_tensor("x", numbers())
    assert files_in(tmp_path) == []


def test_a_folder_that_is_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="it cannot be written") as error:
        ContentStoreWriter(str(tmp_path / "file")).write_tensor("x", numbers())
    assert error.value.file.startswith(str(tmp_path / "file"))


def test_a_name_that_is_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    writer = ContentStoreWriter(str(tmp_path))
    writer.write_tensor("a/b", numbers())
    for use in (
        lambda: writer.write_tensor("a", numbers()),
        lambda: ContentStoreReader(str(tmp_path)).read_tensor("a"),
    ):
        with pytest.raises(StoreError) as error:
            use()
        assert error.value.file == str(tmp_path / "tensors" / "a")
    assert [file for file in files_in(tmp_path) if file.startswith("tensors")] == ["tensors/a/b"]


# ---- several at once -------------------------------------------------------------------------------------


def test_writers_and_readers_may_work_at_once(tmp_path: Path) -> None:
    tensors = [torch.full((20_000,), float(i)) for i in range(4)]

    def write(number: int) -> None:
        for turn in range(20):
            writer = ContentStoreWriter(str(tmp_path))
            writer.write_tensor(f"own/{number}", tensors[turn % 4])
            writer.write_tensor("common", tensors[turn % 4])

    def read() -> None:
        for _ in range(40):
            found = ContentStoreReader(str(tmp_path)).read_tensor("common")
            assert any(found.equal(tensor) for tensor in tensors)

    ContentStoreWriter(str(tmp_path)).write_tensor("common", tensors[0])
    with ThreadPoolExecutor(3) as threads:
        working = [threads.submit(write, 0), threads.submit(write, 1), threads.submit(read)]
    for one in working:
        one.result()
    assert len(list((tmp_path / "storages").iterdir())) == 4
    assert files_in(tmp_path / "tensors") == ["common", "own/0", "own/1"]


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    program = f"""
import torch
from torchsleuth.dropin.content_store import ContentStoreWriter
writer = ContentStoreWriter({str(tmp_path)!r})
for number in range(10**6):
    writer.write_tensor(f"x{{number}}", torch.full((500_000,), float(number)))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        try:
            deadline = time.monotonic() + 60
            while len(files_in(tmp_path)) < 8 and time.monotonic() < deadline and child.poll() is None:
                time.sleep(0.005)
        finally:
            child.send_signal(signal.SIGKILL)
    whole = [file for file in files_in(tmp_path) if not file.endswith(".tmp")]
    assert len(whole) >= 4
    reader = ContentStoreReader(str(tmp_path))
    for file in whole:
        folder, name = file.split("/", 1)
        if folder == "tensors":
            assert reader.read_tensor(name).eq(float(name[1:])).all()
        else:
            reader.read_storage(name)


def test_a_store_can_be_moved(tmp_path: Path) -> None:
    written(tmp_path / "here", numbers())
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert ContentStoreReader(str(tmp_path / "there")).read_tensor("x").equal(numbers())


def test_the_files_are_archives_that_anybody_can_check(tmp_path: Path) -> None:
    with zipfile.ZipFile(written(tmp_path, numbers())) as archive:
        assert archive.testzip() is None
        assert archive.read("archive/data/0") == bytes(numbers().untyped_storage())

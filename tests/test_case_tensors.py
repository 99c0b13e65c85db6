"""Tensors as data: what comes back is the same bit for bit, and shares memory with the same others."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.storages.blobs import MemoryBlobs, memory
from torchsleuth.case.storages.tensors import TensorReader, TensorWriter
from torchsleuth.errors import BadCase, CannotHold, CaseError, HashMismatch, MissingTensor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch announces the end of quantised tensors


def there_and_back(*tensors: torch.Tensor) -> list[torch.Tensor]:
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    records = [writer.add(tensor) for tensor in tensors]
    text = msgspec.json.encode((records, writer.storages))
    read, storages = msgspec.json.decode(text, type=tuple[list[schema.Tensor], tuple[schema.Storage, ...]])
    reader = TensorReader(blobs, storages)
    return [reader.get(record) for record in read]


def record_of(tensor: torch.Tensor) -> tuple[schema.Tensor, tuple[schema.Storage, ...], MemoryBlobs]:
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    record = writer.add(tensor)
    assert isinstance(record, schema.Tensor)
    return record, writer.storages, blobs


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(memory(tensor.untyped_storage()))


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert type(one) is type(other)
    for what in ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf", "is_quantized"):
        assert getattr(one, what) == getattr(other, what), what
    assert one.is_conj() == other.is_conj()
    assert one.is_neg() == other.is_neg()
    assert one.is_inference() == other.is_inference()
    if one.layout == torch.strided:
        assert one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset()
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
        if one.device.type != "meta":
            assert raw(one) == raw(other)


# ---- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in sorted(DTYPE_BITS) if not name.startswith("q")])
def test_every_dtype_comes_back_bit_for_bit(name: str) -> None:
    """Covers: S21"""
    dtype: torch.dtype = getattr(torch, name)
    storage = torch.UntypedStorage(96, device="cpu")
    memory(storage)[:] = bytes(range(96))
    tensor = torch.empty(0, dtype=dtype).set_(storage, 1, (2, 2), (2, 1))
    [back] = there_and_back(tensor)
    assert_same(tensor, back)


def test_nan_payloads_and_negative_zeros_survive() -> None:
    """Covers: S21"""
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1, -(2**31), 0x7FFFFFFF], dtype=torch.int32)
    [back] = there_and_back(bits.view(torch.float32))
    assert torch.equal(back.view(torch.int32), bits)


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3.0), torch.empty(0), torch.empty(3, 0, 5), torch.empty(0, 3)[:, 1:], torch.empty(2**40, 0)],
    ids=["0-dim", "no elements", "an empty dimension", "a view of nothing", "a huge empty dimension"],
)
def test_small_and_empty_tensors_come_back(tensor: torch.Tensor) -> None:
    [back] = there_and_back(tensor)
    assert_same(tensor, back)


def test_more_than_2_to_the_31_elements_come_back() -> None:
    wide = torch.arange(3.0).unsqueeze(1).expand(3, 2**31 + 7)
    overlapping = torch.arange(10.0).as_strided((2**32, 3), (0, 1), 4)
    one, other = there_and_back(wide, overlapping)
    assert_same(wide, one)
    assert_same(overlapping, other)
    assert one.numel() > 2**32
    assert one[2, -1] == 2


def test_a_view_far_into_its_storage_comes_back() -> None:
    """Elements beyond 2^31, in memory that nobody touches: it is of the meta device."""
    far = torch.empty(2**33, dtype=torch.int8, device="meta")[2**32 + 3 :: 2**20]
    [back] = there_and_back(far)
    assert_same(far, back)


def test_a_storage_is_kept_whole() -> None:
    tensor = torch.arange(1000)[5:7]
    [back] = there_and_back(tensor)
    assert raw(back) == raw(tensor)


# ---- views and memory ------------------------------------------------------------------------------------


def test_tensors_that_share_memory_still_do() -> None:
    """Covers: S21"""
    base = torch.arange(12.0).view(3, 4)
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    views = [base, base.t(), base[1:, ::2], base.view(torch.int32), base.flatten()[3:9].as_strided((4, 3), (1, 1), 2)]
    records = [writer.add(view) for view in views]
    assert len(writer.storages) == 1
    reader = TensorReader(blobs, writer.storages)
    back = [reader.get(record) for record in records if isinstance(record, schema.Tensor)]
    for one, other in zip(views, back, strict=True):
        assert_same(one, other)
    back[0][1, 2] = 99
    assert back[1][2, 1] == 99
    assert back[2][0, 1] == 99


def test_equal_tensors_are_kept_once_and_do_not_share_memory() -> None:
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    one, other = torch.ones(5), torch.ones(5)
    records = [writer.add(one), writer.add(other), writer.add(one)]
    assert len(writer.storages) == 2
    assert len(blobs.kept) == 1
    reader = TensorReader(blobs, writer.storages)
    a, b, c = (reader.get(record) for record in records if isinstance(record, schema.Tensor))
    a.zero_()
    assert b.sum() == 5
    assert c.sum() == 0


def test_a_storage_that_was_freed_is_not_taken_for_the_next_one_at_its_address() -> None:
    writer = TensorWriter(MemoryBlobs())
    for number in range(50):
        writer.add(torch.full((1000,), float(number)))
    assert len(writer.storages) == 50


def test_views_of_one_tensor_have_it_as_their_base_again() -> None:
    """Compilers ask a view for its base where inputs share memory."""
    base = torch.zeros(10)
    one, other = base[2:5], base[4:8]
    a, b = there_and_back(one, other)
    assert a._base is b._base is not None
    assert a._base.shape == (10,)
    back, c = there_and_back(base, one)
    assert c._base is back
    c2, back2 = there_and_back(one, base)
    assert c2._base is back2


def test_a_write_through_a_view_is_seen_by_the_version_of_its_base() -> None:
    base = torch.zeros(10)
    back, view = there_and_back(base, base[2:])
    before = back._version
    view.add_(1)
    assert back._version == before + 1


@pytest.mark.parametrize("how", ["real", "conj", "imag"])
def test_a_view_in_another_dtype_or_sign_keeps_its_memory(how: str) -> None:
    base = torch.randn(6, dtype=torch.complex64)
    view = {"real": base.real, "conj": base.conj(), "imag": base.conj().imag}[how]
    back, other = there_and_back(base, view)
    assert_same(view, other)
    assert torch.equal(view, other)
    back.zero_()
    assert not other.any()


def test_storages_that_were_emptied_come_back_empty() -> None:
    tensor = torch.ones(100)
    view = tensor[10:]
    tensor.untyped_storage().resize_(0)
    one, other = there_and_back(tensor, view)
    assert one.shape == (100,)
    assert other.storage_offset() == 10
    assert one.untyped_storage().nbytes() == 0
    one.untyped_storage().resize_(400)
    one.fill_(2)
    assert other[0] == 2


SIZES = st.lists(st.integers(0, 4), max_size=4)
DTYPES = st.sampled_from(
    [torch.float32, torch.int8, torch.bool, torch.complex64, torch.bfloat16, torch.float8_e5m2, torch.uint64]
)


@st.composite
def views(draw: st.DrawFn) -> list[torch.Tensor]:
    """Tensors over a few storages, at random: any strides that fit, overlapping ones among them."""
    storages = []
    for _ in range(draw(st.integers(1, 3))):
        storage = torch.UntypedStorage(draw(st.integers(0, 600)), device="cpu")
        memory(storage)[:] = bytes(draw(st.integers(0, 255)) for _ in range(1)) * storage.nbytes()
        storages.append(storage)
    tensors = []
    for _ in range(draw(st.integers(1, 5))):
        storage = draw(st.sampled_from(storages))
        dtype = draw(DTYPES)
        size = draw(SIZES)
        stride = [draw(st.integers(0, 9)) for _ in size]
        room = storage.nbytes() // dtype.itemsize - 1 - sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 not in size and room < 0:
            continue
        offset = draw(st.integers(0, 50 if 0 in size else room))
        tensors.append(torch.empty(0, dtype=dtype).set_(storage, offset, size, stride))
    return tensors


@given(views(), st.data())
@settings(max_examples=80, deadline=None)
def test_any_views_come_back_as_they_were(tensors: list[torch.Tensor], data: st.DataObject) -> None:
    """Covers: S21"""
    if tensors and data.draw(st.booleans()):  # and views of views, which know their base
        tensors += [tensors[0].unsqueeze(0), tensors[0].flatten()[:1], tensors[0].detach()]
    back = there_and_back(*tensors)
    keys = [torch_compat.storage_key(tensor.untyped_storage()) for tensor in tensors]
    back_keys = [torch_compat.storage_key(tensor.untyped_storage()) for tensor in back]
    for i, (one, other) in enumerate(zip(tensors, back, strict=True)):
        assert_same(one, other)
        assert (one._base is None) == (other._base is None)
        for j in range(i):
            assert (keys[i] == keys[j]) == (back_keys[i] == back_keys[j])


# ---- autograd --------------------------------------------------------------------------------------------


def test_leaves_come_back_as_leaves() -> None:
    tensor = torch.randn(3, requires_grad=True)
    [back] = there_and_back(tensor)
    assert_same(tensor, back)
    (back * 2).sum().backward()
    assert back.grad is not None


def test_results_that_need_gradients_come_back_as_results() -> None:
    leaf = torch.randn(3, requires_grad=True)
    result = leaf * 2
    [back] = there_and_back(result)
    assert_same(result, back)
    assert back._base is None
    (gradient,) = torch.autograd.grad((back * 3).sum(), back)
    assert torch.equal(gradient, torch.full((3,), 3.0))
    back.add_(1)  # which a view of a leaf would refuse
    back.sum().backward()


def test_results_that_share_memory_still_do() -> None:
    result = torch.randn(4, requires_grad=True) * 2
    plain = result.detach()
    one, other, view = there_and_back(result, plain, result[1:])
    assert one.requires_grad
    assert not other.requires_grad
    assert view.requires_grad
    assert not view.is_leaf
    assert view._base is one
    with torch.no_grad():
        one.zero_()
    assert not other.any()


def test_parameters_come_back_as_parameters() -> None:
    one, other = torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.arange(3), requires_grad=False)
    for tensor, back in zip((one, other), there_and_back(one, other), strict=True):
        assert_same(tensor, back)


def test_a_buffer_is_a_plain_tensor() -> None:
    [back] = there_and_back(torch.nn.Buffer(torch.ones(3)))
    assert type(back) is torch.Tensor


def test_inference_tensors_come_back_as_inference_tensors() -> None:
    with torch.inference_mode():
        tensor = torch.randn(3, 2)
        view = tensor.t()
        one, other = there_and_back(tensor, view)
    assert one.is_inference()
    assert other.is_inference()
    assert_same(view, other)


# ---- other layouts ---------------------------------------------------------------------------------------


def coo(values: torch.Tensor, coalesced: bool) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]]) if coalesced else torch.tensor([[0, 1, 1], [2, 0, 0]])
    return torch.sparse_coo_tensor(indices, values, (2, 3, *values.shape[1:]), is_coalesced=coalesced)


SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "coalesced": lambda: coo(torch.randn(3), True),
    "not coalesced": lambda: coo(torch.randn(3), False),
    "hybrid": lambda: coo(torch.randn(3, 4), False),
    "with a gradient": lambda: coo(torch.randn(3), True).requires_grad_(),
    "no elements": lambda: torch.zeros(2, 3).to_sparse(),
    "values that are a view": lambda: coo(torch.randn(9)[2:8:2], True),
    "values that are conjugate": lambda: coo(torch.randn(3, dtype=torch.complex64).conj(), True),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csr of 32 bits": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2), (2, 2)
    ),
    "csr in a batch": lambda: torch.eye(4).expand(2, 4, 4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_tensors_come_back(kind: str) -> None:
    tensor = SPARSE[kind]()
    [back] = there_and_back(tensor)
    assert_same(tensor, back)
    assert torch.equal(tensor.to_dense(), back.to_dense())
    if tensor.layout == torch.sparse_coo:
        assert tensor.is_coalesced() == back.is_coalesced()
        assert torch.equal(tensor._indices(), back._indices())


def test_a_sparse_tensor_shares_the_memory_of_its_values() -> None:
    values = torch.randn(3)
    tensor = coo(values, True)
    back, other = there_and_back(tensor, values)
    other.zero_()
    assert not back.to_dense().any()


def quantised(by_channel: bool, dtype: torch.dtype, real: bool = False) -> torch.Tensor:
    values = torch.randn(4, 6)
    if not by_channel:
        return torch.quantize_per_tensor(values, 0.1, 3, dtype)
    zeros = torch.rand(6) if real else torch.arange(6)
    return torch.quantize_per_channel(values, torch.rand(6) + 0.1, zeros, 1, dtype)


QUANTISED: dict[str, Callable[[], torch.Tensor]] = {
    "per tensor": lambda: quantised(False, torch.quint8),
    "per tensor, signed": lambda: quantised(False, torch.qint8),
    "per tensor, 32 bits": lambda: quantised(False, torch.qint32),
    "a view": lambda: quantised(False, torch.quint8)[1:3].t(),
    "per channel": lambda: quantised(True, torch.qint8),
    "per channel, real zero points": lambda: quantised(True, torch.quint8, real=True),
    "4 bits": lambda: torch.quantize_per_channel(torch.randn(4, 8), torch.rand(4), torch.rand(4), 0, torch.quint4x2),
    "2 bits": lambda: torch.quantize_per_channel(torch.randn(4, 8), torch.rand(4), torch.rand(4), 0, torch.quint2x4),
    "no elements": lambda: torch.quantize_per_tensor(torch.empty(0, 3), 0.1, 3, torch.quint8),
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors_come_back(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = QUANTISED[kind]()
    [back] = there_and_back(tensor)
    assert_same(tensor, back)
    assert tensor.qscheme() == back.qscheme()
    assert torch.equal(tensor.dequantize(), back.dequantize())


def test_tensors_of_the_meta_device_have_no_values_to_keep() -> None:
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    tensor = torch.empty(3, 4, device="meta").t()
    record = writer.add(tensor)
    assert isinstance(record, schema.Tensor)
    assert not blobs.kept
    assert_same(tensor, TensorReader(blobs, writer.storages).get(record))


# ---- what a case cannot hold -----------------------------------------------------------------------------


class Own(torch.Tensor):
    def __repr__(self, *, tensor_contents: object = None) -> str:
        raise AssertionError("nobody's code runs here")


def test_a_subclass_is_noticed_and_its_code_is_not_run() -> None:
    record = TensorWriter(MemoryBlobs()).add(torch.ones(2, 3).as_subclass(Own))
    assert isinstance(record, schema.Noticed)
    assert record.type.endswith(".Own")
    assert "subclass" in record.reason
    assert record.text == "[2, 3] float32 cpu"


def functional() -> torch.Tensor:
    made: torch.Tensor = torch._to_functional_tensor(torch.ones(2))
    return made


NOTICED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(2)), "fake"),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "layout"),
    "functional": (functional, "traces"),
    "uninitialised parameter": (lambda: torch.nn.UninitializedParameter(), "subclass"),
}


@pytest.mark.parametrize("kind", NOTICED)
def test_what_a_case_cannot_hold_is_noticed_with_a_reason(kind: str) -> None:
    make, reason = NOTICED[kind]
    record = TensorWriter(MemoryBlobs()).add(make())
    assert isinstance(record, schema.Noticed)
    assert reason in record.reason


def test_what_vmap_puts_around_tensors_is_noticed() -> None:
    records = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        records.append(TensorWriter(MemoryBlobs()).add(x))
        return x

    torch.vmap(spy)(torch.ones(3, 2))
    assert isinstance(records[0], schema.Noticed)


# ---- watching changes nothing ----------------------------------------------------------------------------


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


@pytest.mark.parametrize(
    "mode",
    [
        contextlib.nullcontext,
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        FakeTensorMode,
        default_device,
        lambda: torch_compat.dispatch_mode(lambda op, _args, _kwargs: pytest.fail(f"{op} is seen")),
    ],
    ids=["none", "no_grad", "grad", "inference", "fake", "default device", "dispatch mode"],
)
def test_tensors_are_kept_and_made_inside_of_any_mode(mode: Callable[[], Any]) -> None:
    """Covers: U15"""
    leaf = torch.randn(3, 2, requires_grad=True)
    tensors = [
        leaf,
        leaf * 2,
        leaf.detach().t(),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        quantised(True, torch.qint8),
        torch.nn.Parameter(torch.ones(3)),
    ]
    with mode():
        back = there_and_back(*tensors)
    for one, other in zip(tensors, back, strict=True):
        assert_same(one, other)


def test_keeping_a_tensor_changes_neither_it_nor_random_numbers() -> None:
    base = torch.randn(10, requires_grad=True)
    tensors = [base, base.detach()[2:], (base * 2), torch.eye(3).to_sparse(), quantised(False, torch.quint8)]
    before = [(tensor._version, tensor.requires_grad, tensor.grad_fn) for tensor in tensors]
    state = torch.get_rng_state()
    there_and_back(*tensors)
    assert [(tensor._version, tensor.requires_grad, tensor.grad_fn) for tensor in tensors] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_copy_on_write_memory_is_kept_without_being_copied() -> None:
    """Covers: S21"""
    tensor = torch.arange(10.0)
    clone = tensor._lazy_clone()
    [back] = there_and_back(clone)
    assert torch._C._is_cow_tensor(clone)
    assert torch._C._is_cow_tensor(tensor)
    assert torch.equal(back, tensor)


# ---- reading believes nothing ----------------------------------------------------------------------------

HUGE = 2**62
GRADIENT = schema.Tensor("float32", (3, 4), (4, 1), storage=0)
LIES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown dtype": ({"dtype": "float33"}, "dtype"),
    "dtype that is something else of torch": ({"dtype": "nn"}, "dtype"),
    "unknown layout": ({"layout": "sparse_xyz"}, "layout"),
    "layout that no case holds": ({"layout": "jagged"}, "layout"),
    "unknown device": ({"device": "toaster:3"}, "device"),
    "another device": ({"device": "cuda:0"}, "device"),
    "negative size": ({"size": (-1, 4)}, "size"),
    "size beyond 64 bits": ({"size": (2**64, 4)}, "size"),
    "too large": ({"size": (3, 5)}, "size"),
    "too many elements": ({"size": (HUGE, HUGE), "stride": (0, 0)}, "size"),
    "too many dimensions": ({"size": (1,) * 5000, "stride": (1,) * 5000}, "size"),
    "negative stride": ({"stride": (-4, 1)}, "stride"),
    "stride too large": ({"stride": (HUGE, 1)}, "size"),
    "stride beyond 64 bits": ({"stride": (2**64, 1)}, "stride"),
    "too few strides": ({"stride": (1,)}, "stride"),
    "negative offset": ({"offset": -1}, "offset"),
    "offset too large": ({"offset": 1}, "size"),
    "offset far too large": ({"offset": HUGE}, "size"),
    "wider dtype": ({"dtype": "float64"}, "size"),
    "no storage": ({"storage": None}, "storage"),
    "storage that is not there": ({"storage": 7}, "storage"),
    "negative storage": ({"storage": -1}, "storage"),
    "result without a gradient": ({"leaf": False}, "leaf"),
    "parameter that is a result": ({"leaf": False, "requires_grad": True, "parameter": True}, "leaf"),
    "conjugate of real numbers": ({"conj": True}, "conj"),
    "gradient of integers": ({"dtype": "int32", "requires_grad": True}, "requires_grad"),
    "quantised without a quantiser": ({"dtype": "qint32"}, "quantiser"),
    "quantiser of floats": ({"quantiser": schema.Quantiser("per_tensor_affine", (0.1,), (0.0,))}, "quantiser"),
    "unknown scheme": ({"dtype": "qint32", "quantiser": schema.Quantiser("by_mood", (1.0,), (0.0,))}, "scheme"),
    "too few scales": (
        {"dtype": "qint32", "quantiser": schema.Quantiser("per_channel_affine", (1.0,), (0.0,), 0)},
        "scales",
    ),
    "axis that is not there": (
        {"dtype": "qint32", "quantiser": schema.Quantiser("per_channel_affine", (1.0,), (0.0,), 5)},
        "axis",
    ),
    "zero point too large": (
        {"dtype": "qint32", "quantiser": schema.Quantiser("per_tensor_affine", (1.0,), (1e300,))},
        "zero_points",
    ),
    "parts of a strided tensor": ({"parts": (schema.Tensor("float32", (1,)),)}, "parts"),
    "sparse without parts": ({"layout": "sparse_coo", "storage": None}, "parts"),
    "coalesced and strided": ({"coalesced": True}, "coalesced"),
    "base of a base": (
        {"base": schema.Tensor("float32", (1,), (1,), storage=0, base=schema.Tensor("float32", (1,)))},
        "base",
    ),
    "base elsewhere": ({"base": schema.Tensor("float32", (1,), (1,), storage=1)}, "base"),
    "base too large": ({"base": schema.Tensor("float32", (99,), (1,), storage=0)}, "base"),
    "gradient of a result": ({"requires_grad": True, "leaf": False, "grad": GRADIENT}, "grad"),
    "gradient of another shape": ({"grad": msgspec.structs.replace(GRADIENT, size=(4, 3), stride=(3, 1))}, "inputs"),
    "gradient too large": ({"grad": msgspec.structs.replace(GRADIENT, size=(3, 5))}, "grad.size"),
    "gradient elsewhere": ({"grad": msgspec.structs.replace(GRADIENT, storage=1)}, "grad.storage"),
    "gradient of a gradient": ({"grad": msgspec.structs.replace(GRADIENT, grad=GRADIENT)}, "grad"),
    "base of another dtype": ({"base": schema.Tensor("int8", (1,), (1,), storage=0)}, "base"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_cannot_be_is_an_error_that_names_the_field(lie: str) -> None:
    changes, field = LIES[lie]
    record, storages, blobs = record_of(torch.randn(3, 4))
    reader = TensorReader(blobs, storages, file="x.sleuth")
    with pytest.raises(BadCase, match=field) as caught:
        reader.get(msgspec.structs.replace(record, **changes), "inputs[3]")
    assert caught.value.field.startswith("inputs[3]")
    assert caught.value.file == "x.sleuth"


STORAGE_LIES: dict[str, tuple[dict[str, Any], type[CaseError], str]] = {
    "fewer bytes": ({"nbytes": 3}, BadCase, "inputs"),
    "more bytes": ({"nbytes": 4000}, HashMismatch, ""),
    "negative bytes": ({"nbytes": -5}, BadCase, "inputs"),
    "no values": ({"content": schema.Nothing()}, BadCase, "storages[0].content"),
    "a path for a digest": ({"content": schema.Stored("../../x")}, BadCase, "digest"),
    "bytes that are not there": ({"content": schema.Stored("b3-" + "0" * 64)}, MissingTensor, ""),
    "more bytes than there are": (
        {"nbytes": 2**60, "content": schema.Generated("normal", "float32")},
        CannotHold,
        "storages[0].content",
    ),
    "unknown dtype": ({"content": schema.Generated("normal", "float99")}, BadCase, "storages[0].content.dtype"),
    "no range": ({"content": schema.Generated("integers", "int64", 5, 5)}, BadCase, "storages[0].content"),
}


@pytest.mark.parametrize("lie", STORAGE_LIES)
def test_a_storage_that_cannot_be_is_an_error_that_names_the_field(lie: str) -> None:
    changes, error, field = STORAGE_LIES[lie]
    record, storages, blobs = record_of(torch.randn(3, 4))
    reader = TensorReader(blobs, [msgspec.structs.replace(storages[0], **changes)])
    with pytest.raises(error) as caught:
        reader.get(record, "inputs[3]")
    assert type(caught.value) is error
    assert field in caught.value.field


def test_storages_that_only_together_have_no_room_are_refused_before_one_is_made() -> None:
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    large = schema.Storage(there // 8 * 6, schema.Generated("constant", "uint8"))
    small = schema.Storage(48, schema.Generated("normal", "float32"))
    record = schema.Tensor("float32", (3, 4), (4, 1), storage=0)
    reader = TensorReader(MemoryBlobs(), [small, large, large], file="x.sleuth")
    with pytest.raises(CannotHold, match="memory") as caught:
        reader.get(record)
    assert caught.value.file == "x.sleuth"
    assert TensorReader(MemoryBlobs(), [small, large]).get(record).shape == (3, 4)


def test_a_device_that_is_not_here_is_an_error_that_says_so() -> None:
    record, storages, blobs = record_of(torch.randn(3))
    moved = msgspec.structs.replace(storages[0], device="xpu:3")
    with pytest.raises(CannotHold, match="xpu:3"):
        TensorReader(blobs, [moved]).get(msgspec.structs.replace(record, device="xpu:3"))


@pytest.mark.parametrize(
    ("indices", "coalesced"),
    [([[0, 5], [0, 1]], False), ([[0, -1], [0, 1]], False), ([[1, 0], [0, 0]], True)],
    ids=["too large", "negative", "not in order"],
)
def test_indices_that_no_kernel_should_see_are_an_error(indices: list[list[int]], coalesced: bool) -> None:
    blobs = MemoryBlobs()
    writer = TensorWriter(blobs)
    parts = [writer.add(torch.tensor(indices)), writer.add(torch.ones(2))]
    record = schema.Tensor("float32", (2, 2), layout="sparse_coo", parts=tuple(parts), coalesced=coalesced)  # type: ignore[arg-type]
    with pytest.raises(BadCase):
        TensorReader(blobs, writer.storages).get(record)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_whatever_a_record_says_it_is_a_tensor_or_an_error_of_ours(data: st.DataObject) -> None:
    numbers = st.one_of(st.integers(-2, 20), st.sampled_from([2**31, 2**62, 2**63, 2**70]))
    shapes = st.lists(numbers, max_size=3).map(tuple)
    record = schema.Tensor(
        dtype=data.draw(st.sampled_from(sorted(DTYPE_BITS))),
        size=data.draw(shapes),
        stride=data.draw(shapes),
        offset=data.draw(numbers),
        storage=data.draw(st.sampled_from([0, 1, None])),
        requires_grad=data.draw(st.booleans()),
        leaf=data.draw(st.booleans()),
        parameter=data.draw(st.booleans()),
        conj=data.draw(st.booleans()),
        neg=data.draw(st.booleans()),
        inference=data.draw(st.booleans()),
    )
    _, storages, blobs = RECORDED
    try:
        tensor = TensorReader(blobs, storages).get(record)
    except CaseError:
        return
    assert tuple(tensor.shape) == record.size
    assert tensor.untyped_storage().nbytes() == storages[0].nbytes


RECORDED = record_of(torch.randn(16))

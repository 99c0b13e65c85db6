"""Tensors as data: each is a view of a storage, and the bytes of storages go to blobs.

    writer = TensorWriter(blobs)           reader = TensorReader(blobs, case.storages)
    record = writer.add(tensor)            tensor = reader.get(record)
    writer.storages                        # goes into the case

What comes back is the same bit for bit: values (NaN payloads, -0.0), sizes, strides, offsets, and what shares memory
with what. Two tensors of one storage refer to one entry; two storages that are only equal are two entries with the
same digest, and their bytes are kept once. A storage is kept whole, even if its tensors show only a part of it.

Writing looks at a tensor and changes nothing: not the tensor, its version, nor any random state; it works inside of
any mode. Reading believes nothing: a record that does not fit its storage is a `BadCase` which names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import msgspec
import torch

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.format.tensor_checks import bad, bytes_needed, check_storage, check_tensor
from torchsleuth.case.storages import recipes
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.storages.sinks import Limit
from torchsleuth.case.storages.tensor_kinds import (
    as_result,
    empty_like_record,
    in_text,
    moved,
    name_of,
    parts_of,
    quantiser_of,
    type_of,
    why_no_recipe,
    why_not,
)
from torchsleuth.errors import CannotHold, CaseError, in_words

# ---- writing ---------------------------------------------------------------------------------------------


class TensorWriter:
    """Turns tensors into records, and gives the bytes under them to `blobs`, each storage once.

    It holds on to the storages that it has seen: that is how it knows them again. Each has the bytes that it had when
    it was first seen; after `fork`, those that it had when it is first seen again.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._entries: list[schema.Storage] = []
        self._numbers: dict[int, int] = {}
        self._seen: list[torch.UntypedStorage] = []
        self._from_before: set[int] = set()
        self.gradients = False
        """Whether the gradients of tensors (`.grad`) are kept as well."""

    def fork(self) -> TensorWriter:
        """A writer that goes on from here by itself, later on: it knows all storages that this one has seen."""
        other = TensorWriter(self._blobs)
        other._entries = list(self._entries)
        other._numbers = dict(self._numbers)
        other._seen = list(self._seen)
        other._from_before = set(self._numbers)
        other.gradients = self.gradients
        return other

    @property
    def storages(self) -> tuple[schema.Storage, ...]:
        """The memory under all tensors that were added."""
        return tuple(self._entries)

    def add(self, tensor: torch.Tensor) -> schema.Tensor | schema.Noticed:
        """The record of a tensor; or, of one that a case cannot hold, a notice of what it was."""
        with torch_compat.plain_torch():
            reason = self._why_not(tensor)
            if reason is not None:
                return schema.Noticed(type=type_of(tensor), reason=reason, text=in_text(tensor))
            return self._record(tensor)

    def _gradient(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor.grad if self.gradients and tensor.is_leaf else None

    def _why_not(self, tensor: torch.Tensor) -> str | None:
        """Why a case cannot hold this tensor, or its gradient where that is kept."""
        reason = why_not(tensor)
        gradient = self._gradient(tensor) if reason is None else None
        if gradient is None:
            return reason
        reason = why_not(gradient)
        return None if reason is None else f"the graph asks for its gradient, and that cannot be held: {reason}"

    def _record(self, tensor: torch.Tensor) -> schema.Tensor:
        layout = name_of(tensor.layout)
        strided = layout == "strided"
        return schema.Tensor(
            dtype=name_of(tensor.dtype),
            size=tuple(tensor.shape),
            stride=tensor.stride() if strided else (),
            offset=int(tensor.storage_offset()) if strided else 0,
            storage=self._storage(tensor.untyped_storage()) if strided else None,
            device=str(tensor.device),
            layout=layout,
            requires_grad=tensor.requires_grad,
            leaf=tensor.is_leaf,
            parameter=isinstance(tensor, torch.nn.Parameter),
            conj=tensor.is_conj(),
            neg=tensor.is_neg(),
            inference=tensor.is_inference(),
            base=self._base(tensor) if strided else None,
            parts=() if strided else tuple(self._part(part) for part in parts_of(tensor)),
            coalesced=layout == "sparse_coo" and tensor.is_coalesced(),
            quantiser=quantiser_of(tensor) if tensor.is_quantized else None,
            grad=None if (gradient := self._gradient(tensor)) is None else self._part(gradient),
        )

    def _part(self, part: torch.Tensor) -> schema.Tensor:
        """The record of a tensor that belongs to another one. Only its values count."""
        return msgspec.structs.replace(self._record(part.detach()), base=None, inference=False)

    def _base(self, tensor: torch.Tensor) -> schema.Tensor | None:
        """The record of what it is a view of. Kept where the view can be made again from it."""
        base = torch_compat.view_base(tensor)
        if base is None or base.dtype != tensor.dtype or base.is_quantized or base.is_conj() or base.is_neg():
            return None
        if self._why_not(base) is not None or base.layout != torch.strided or base.is_inference():
            return None
        shared = torch_compat.storage_key(base.untyped_storage()) == torch_compat.storage_key(tensor.untyped_storage())
        return self._record(base) if shared else None

    def _storage(self, storage: torch.UntypedStorage) -> int:
        def entry() -> schema.Storage:
            device = str(storage.device)
            content = schema.Nothing() if device == "meta" else schema.Stored(self._blobs.put(storage))
            return schema.Storage(storage.nbytes(), content, device)

        key = torch_compat.storage_key(storage)
        number = self._enter(storage, entry)
        if key in self._from_before:  # it may have been written to meanwhile
            now = entry()
            before = self._entries[number].nbytes
            if 0 < now.nbytes < before:
                raise CannotHold(
                    "an input shares memory with a constant of the graph, and the memory has become smaller",
                    cause=f"it had {before:,} bytes when the graph was recorded, and has {now.nbytes:,} now",
                    remedy="record the graph again before the call",
                )
            self._entries[number] = now
            self._from_before.remove(key)
        return number

    def _enter(self, storage: torch.UntypedStorage, entry: Callable[[], schema.Storage]) -> int:
        """The number of a storage; of a new one, `entry` says what it is."""
        key = torch_compat.storage_key(storage)
        if key not in self._numbers:
            self._entries.append(entry())
            self._numbers[key] = len(self._entries) - 1
            self._seen.append(storage)
        return self._numbers[key]

    def add_fake(self, fake: torch.Tensor, limits: Iterable[Limit] = ()) -> schema.Tensor | schema.Noticed:
        """A record of values that fit a fake tensor, which has none itself. A recipe makes them when it is read.

        `limits` are what the graph's uses of it allow (`uses.limits_of`).
        """
        with torch_compat.plain_torch():
            reason = why_no_recipe(fake)
            if reason is not None:
                return schema.Noticed(type=type_of(fake), reason=reason, text=in_text(fake))
            geometry = recipes.geometry_of(fake)
            recipe = recipes.recipe_for(fake, limits, seed=len(self._entries))
            meta = fake.device.type == "meta"
            content = schema.Nothing() if meta else recipe
            number = self._enter(fake.untyped_storage(), lambda: schema.Storage(0, content, str(fake.device)))
            self._entries[number] = recipes.joined(self._entries[number], geometry.nbytes, content)
            return schema.Tensor(
                dtype=name_of(fake.dtype),
                size=geometry.size,
                stride=geometry.stride,
                offset=geometry.offset,
                storage=number,
                device=str(fake.device),
                requires_grad=fake.requires_grad,
                leaf=fake.is_leaf,
                parameter=isinstance(fake, torch.nn.Parameter),
                conj=fake.is_conj(),
                neg=fake.is_neg(),
            )


# ---- reading ---------------------------------------------------------------------------------------------


class TensorReader:
    """Makes tensors of records. Those of one storage entry share their memory."""

    def __init__(self, blobs: Blobs, storages: Sequence[schema.Storage], *, file: str = "") -> None:
        self._blobs = blobs
        self._storages = storages
        self._file = file
        self._made: dict[int, torch.UntypedStorage] = {}
        self._bases: dict[schema.Tensor, torch.Tensor] = {}
        self._unclaimed: set[schema.Tensor] = set()
        made = (entry.nbytes for entry in storages if isinstance(entry.content, schema.Generated))
        self._made_by_recipes = sum(max(0, nbytes) for nbytes in made)

    def get(self, record: schema.Tensor, field: str = "tensor") -> torch.Tensor:
        """The tensor of a record; `field` says where in the case the record stands."""
        with torch_compat.plain_torch(), self._as_bad_case(field):
            check_tensor(record, self._storages, field, self._file)
            if record in self._unclaimed:  # a view of it came first
                self._unclaimed.remove(record)
                return self._bases[record]
            tensor = self._view_of_base(record, field) if record.base is not None else None
            if tensor is None:
                tensor = self._alone(record, field)
                self._bases.setdefault(record, tensor)
            return tensor

    def _alone(self, record: schema.Tensor, field: str) -> torch.Tensor:
        """The tensor, as nobody's view."""
        return self._with_gradient(self._without_gradient(record, field), record, field)

    def _with_gradient(self, tensor: torch.Tensor, record: schema.Tensor, field: str) -> torch.Tensor:
        if record.grad is not None:
            field = f"{field}.grad"
            check_tensor(record.grad, self._storages, field, self._file)
            if not record.leaf or record.grad.requires_grad or record.grad.base or record.grad.grad:
                raise bad(field, "only a leaf has a gradient, and of that only the values count", self._file)
            tensor.grad = self._without_gradient(record.grad, field)
        return tensor

    def _without_gradient(self, record: schema.Tensor, field: str) -> torch.Tensor:
        with torch.inference_mode() if record.inference else nullcontext():
            tensor = self._with_signs(self._over_memory(record, field), record)
        if record.parameter:
            return torch.nn.Parameter(tensor, requires_grad=record.requires_grad)
        if record.requires_grad:
            return tensor.requires_grad_() if record.leaf else as_result(tensor)
        return tensor

    def _view_of_base(self, record: schema.Tensor, field: str) -> torch.Tensor | None:
        """The tensor, as a view of its base. None if no view of this base can be like that; then it is nobody's."""
        described = record.base
        assert described is not None
        check_tensor(described, self._storages, f"{field}.base", self._file)
        computed = record.requires_grad and not record.leaf
        needed = max(bytes_needed(record), bytes_needed(described))
        emptied = needed > 0 and self._storages[record.storage or 0].nbytes == 0
        if emptied or record.parameter or record.inference or (computed and not described.requires_grad):
            return None
        if described not in self._bases:
            self._bases[described] = self._alone(described, f"{field}.base")
            self._unclaimed.add(described)
        with torch.enable_grad() if computed else nullcontext():
            view = self._bases[described].as_strided(record.size, record.stride, record.offset)
            view = self._with_signs(view, record)
        view = view.requires_grad_() if record.requires_grad and record.leaf else view
        return self._with_gradient(view, record, field)

    def _over_memory(self, record: schema.Tensor, field: str) -> torch.Tensor:
        if record.layout != "strided":
            return self._sparse(record, field)
        assert record.storage is not None
        storage = self._storage(record.storage)
        needed = bytes_needed(record)
        emptied = storage.nbytes() == 0 and needed > 0
        if emptied:  # torch makes no view of too little memory; but it lets go of memory under a view
            storage.resize_(needed)
        tensor = empty_like_record(record).set_(storage, record.offset, record.size, record.stride)
        if emptied:
            storage.resize_(0)
        return tensor

    @staticmethod
    def _with_signs(tensor: torch.Tensor, record: schema.Tensor) -> torch.Tensor:
        tensor = tensor.conj() if record.conj else tensor
        return torch_compat.negated(tensor) if record.neg else tensor

    def _sparse(self, record: schema.Tensor, field: str) -> torch.Tensor:
        parts = []
        for index, part in enumerate(record.parts):
            check_tensor(part, self._storages, f"{field}.parts[{index}]", self._file)
            parts.append(self._with_signs(self._over_memory(part, f"{field}.parts[{index}]"), part))
        # Kernels trust the indices of a sparse tensor, so they are checked here.
        if record.layout == "sparse_coo":
            return torch.sparse_coo_tensor(
                parts[0], parts[1], record.size, is_coalesced=record.coalesced, check_invariants=True
            )
        layout: torch.layout = getattr(torch, record.layout)
        make: Callable[..., torch.Tensor] = torch.sparse_compressed_tensor
        return make(*parts, record.size, layout=layout, check_invariants=True)

    def _storage(self, number: int) -> torch.UntypedStorage:
        if number not in self._made:
            self._made[number] = self._make(self._storages[number], f"storages[{number}]")
        return self._made[number]

    def _make(self, entry: schema.Storage, field: str) -> torch.UntypedStorage:
        check_storage(entry, field, self._file)
        match entry.content:
            case schema.Nothing():
                return torch.UntypedStorage(entry.nbytes, device="meta")
            case schema.Stored(digest=digest):
                here = self._blobs.get(digest, entry.nbytes)
            case schema.Generated() as recipe:
                recipes.check_memory(self._made_by_recipes, self._file, f"{field}.content")
                here = recipes.make(recipe, entry.nbytes, file=self._file, field=f"{field}.content")
        return here if entry.device == "cpu" else moved(here, entry.device, self._file, field)

    @contextmanager
    def _as_bad_case(self, field: str) -> Iterator[None]:
        """What torch still objects to is the fault of the record."""
        try:
            yield
        except CaseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
            raise bad(field, in_words(error), self._file) from error

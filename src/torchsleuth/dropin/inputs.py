"""The inputs of a script: `InputWriter` writes `load_args(reader)`, and a reader makes them again.

    writer = InputWriter(save_dir)              the bytes go to the content store in `save_dir`
    writer.tensor("x", x)
    writer.lines()                              def load_args(reader): ...

    reader = InputReader(save_dir)
    load_args(reader)
    reader.args                                 the inputs, views of one memory sharing it

The lines and their meaning are torch's, version 0, so that each side reads the scripts of the other. What torch gets
wrong is right here: bytes that a script names and that are not there are an error, never random numbers. Random
numbers there are only where a script has none to name (its inputs were fakes), or where somebody says that data is not
wanted (`--no-save-dir`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.multiprocessing.reductions import StorageWeakRef

from torchsleuth import torch_compat
from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.schema import Generated
from torchsleuth.case.storages.recipes import make
from torchsleuth.case.storages.sinks import size_hint
from torchsleuth.dropin.content_store import ContentStoreReader, ContentStoreWriter
from torchsleuth.dropin.places import found_again
from torchsleuth.errors import MissingTensor, SleuthError, StoreError

if TYPE_CHECKING:
    from torch.hub import tqdm  # type: ignore[attr-defined]

log = logging.getLogger("torch._dynamo.debug_utils")

_DTYPE: Final = torch.float32
_DEVICE: Final = torch.device("cpu")


def _contiguous(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a contiguous tensor; sizes may be symbolic."""
    strides: list[Any] = []
    step: Any = 1
    for length in reversed(shape):
        strides.append(step)
        step = step * (length if not isinstance(length, int) or length > 1 else 1)
    return tuple(reversed(strides))


class NopInputReader:
    """Counts what there is to be read."""

    def __init__(self) -> None:
        self.total = 0

    def storage(self, storage_hash: str | None, nbytes: int, *, device: Any = None, dtype_hint: Any = None) -> None:
        self.total += 1

    def tensor(self, *args: Any, **kwargs: Any) -> None:
        """Of no size: its storage counts."""

    def symint(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to be read."""

    def const(self, name: str) -> None:
        """Nothing to be read."""

    def unsupported(self, name: str) -> None:
        """Nothing to be read."""

    def generator(self, device_type: str, device_index: int | None) -> None:
        """Nothing to be read."""

    def opaque(self, script_class_name: str) -> None:
        self.total += 1


class InputReader:
    """Makes the inputs of a script. `args` are those so far, `made_up` the numbers of those with random data."""

    def __init__(self, save_dir: str | None = None, *, pbar: tqdm | None = None) -> None:
        if save_dir is None:
            log.warning("there is no save_dir: inputs get random data")
        self.store = None if save_dir is None else ContentStoreReader(found_again(save_dir))
        self.args: list[Any] = []
        self.pbar = pbar
        self.made_up: list[int] = []
        self.symint_exprs: dict[int, str] = {}
        self._random: set[StorageWeakRef] = set()

    def storage(
        self, storage_hash: str | None, nbytes: int, *, device: Any = None, dtype_hint: torch.dtype | None = None
    ) -> torch.UntypedStorage:
        """The memory that a hash stands for. Without a hash, or without a store, random numbers of the dtype."""
        if self.pbar is not None:
            self.pbar.update(1)
        wanted = _DEVICE if device is None else torch.device(device)
        if self.store is None or storage_hash is None:
            return self._made_up(nbytes, dtype_hint or _DTYPE, wanted)
        try:
            found: torch.UntypedStorage = self.store.read_storage(storage_hash)
        except FileNotFoundError as error:
            raise MissingTensor(
                f"the bytes of an input are not there: {storage_hash}",
                cause=f"{error.filename or error} does not exist",
                remedy="bring the folder along with the script; or, if any data will do, run it with --no-save-dir",
            ) from error
        if found.device != wanted:
            log.warning("an input was written on %s, and belongs on %s: it is brought there", found.device, wanted)
            moved = torch.empty(0, dtype=torch.uint8, device=found.device).set_(found).to(wanted)
            return moved.untyped_storage()
        return found

    def _made_up(self, nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.UntypedStorage:
        name = str(dtype).removeprefix("torch.")
        fractional = dtype.is_floating_point or dtype.is_complex
        seed = len(self._random)  # no two alike
        recipe = Generated("normal", name, 0, 1, seed) if fractional else Generated("integers", name, 0, 2, seed)
        recipe = recipe if name in DTYPE_BITS else Generated("integers", "uint8", 0, 256, seed)
        found = make(recipe, int(nbytes))
        if device.type != "cpu":
            found = torch.empty(0, dtype=torch.uint8).set_(found).to(device).untyped_storage()
        self._random.add(StorageWeakRef(found))
        return found

    def tensor(
        self,
        storage: torch.UntypedStorage,
        shape: Sequence[int],
        stride: Sequence[int] | None = None,
        *,
        storage_offset: int | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool | None = None,
        is_leaf: bool | None = None,
        **metadata: Any,
    ) -> torch.Tensor:
        """A view of a storage. One that is no leaf has a history, though not the one that it had."""
        place = (storage_offset or 0, tuple(shape), tuple(_contiguous(shape) if stride is None else stride))
        found = torch.empty(0, dtype=dtype or _DTYPE, device=storage.device, requires_grad=bool(requires_grad))
        with torch.no_grad():
            found.set_(storage, *place)
        if not is_leaf and requires_grad:
            with torch.enable_grad():
                found = found.clone(memory_format=torch.preserve_format)
            with torch.no_grad():
                found.set_(storage, *place)
        torch_compat.set_tensor_flags(found, metadata)
        if StorageWeakRef(storage) in self._random:
            self.made_up.append(len(self.args))
        self.args.append(found)
        return found

    def symint(self, val: Any, *, expr: str | None = None) -> Any:
        if expr is not None:
            self.symint_exprs[len(self.args)] = expr
        self.args.append(val)
        return val

    def const(self, name: str) -> None:
        self.args.append(None)

    def unsupported(self, name: str) -> None:
        self.args.append(None)

    def generator(self, device_type: str, device_index: int | None) -> torch.Generator:
        found = torch.Generator(torch.device(device_type, device_index) if device_index is not None else device_type)
        self.args.append(found)
        return found

    def opaque(self, script_class_name: str) -> None:
        self.args.append(None)


class InputWriter:
    """Writes the lines of `load_args`, and the bytes that they name to the store in `save_dir`, if there is one."""

    def __init__(self, save_dir: str | None, *, stable_hash: bool = False) -> None:
        self._lines: list[str] = []
        self.storage_counter = itertools.count()
        self.save_dir = save_dir
        self.store = None if save_dir is None else ContentStoreWriter(save_dir, stable_hash=stable_hash)
        self.seen_storages: dict[StorageWeakRef, str] = {}
        self.symbols: dict[str, int] = {}
        """Symbolic sizes that the lines name, and their values."""

    def lines(self) -> list[str]:
        """The function, ready to be written."""
        body = [f"    {line}" for line in self._lines] or ["    pass"]
        return ["def load_args(reader):", *body, "load_args._version = 0"]

    def any(self, name: str, value: Any) -> None:
        """An input, whatever it is."""
        if isinstance(value, (int, float, torch.SymInt)):
            self.symint(name, value)
        elif isinstance(value, torch.Tensor):
            self._tensor_or_notice(name, value)
        elif value is None:
            self.const(name)
        elif torch_compat.is_script_object(value):
            self.opaque(name, getattr(value, "script_class_name", type(value).__name__))
        elif isinstance(value, torch.Generator):
            self.generator(name, value)
        else:
            self.unsupported(name, value)

    def storage(self, untyped_storage: torch.UntypedStorage, *, device_hint: Any = None, dtype_hint: Any = None) -> str:
        """The name of a memory in the script. One that has no bytes here (a fake's) is named without a hash."""
        key = StorageWeakRef(untyped_storage)
        if key in self.seen_storages:
            return self.seen_storages[key]
        name = f"buf{next(self.storage_counter)}"
        device = untyped_storage.device
        digest = None
        if device.type == "meta":
            if device_hint is None:
                raise AssertionError("a storage without bytes needs a device_hint")
            device = torch.device(device_hint)
        elif self.store is not None:
            digest = self.store.write_storage(untyped_storage)
        more = [f"device={device!r}"] if device != _DEVICE else []
        more += [f"dtype_hint={dtype_hint!r}"] if dtype_hint not in (None, _DTYPE) else []
        said = ", ".join([repr(digest), repr(size_hint(untyped_storage.nbytes())), *more])
        self._lines.append(f"{name} = reader.storage({said})")
        self.seen_storages[key] = name
        return name

    def tensor(self, name: str, t: torch.Tensor) -> None:
        storage = self.storage(t.untyped_storage(), dtype_hint=t.dtype, device_hint=t.device)
        shape, stride, offset = tuple(t.shape), tuple(t.stride()), t.storage_offset()
        more = [] if statically_known_true(sym_eq(_contiguous(shape), stride)) else [self._sizes(stride)]
        more += [f"dtype={t.dtype!r}"] if t.dtype != _DTYPE else []
        more += [] if statically_known_true(offset == 0) else [f"storage_offset={size_hint(offset)!r}"]
        more += [f"{key}={value!r}" for key, value in torch_compat.tensor_flags(t).items()]
        more += ["requires_grad=True"] if t.requires_grad else []
        more += ["is_leaf=True"] if _is_leaf(t) else []
        self._lines.append(f"reader.tensor({', '.join([storage, self._sizes(shape), *more])})  # {name}")

    def _tensor_or_notice(self, name: str, value: torch.Tensor) -> None:
        """A tensor, if it is one that these lines can say: not a sparse, nested or quantised one."""
        plain = value.layout == torch.strided and not value.is_nested and not value.is_quantized
        try:
            if plain:
                self.tensor(name, value)
                return
        except StoreError:
            raise
        except (RuntimeError, NotImplementedError, TypeError, SleuthError) as error:
            log.warning("the input %s cannot be written: %s", name, error)
        self.unsupported(name, value)

    def _sizes(self, sizes: tuple[Any, ...]) -> str:
        """A tuple of sizes. A symbol is said by its name, which has to stand for its value (`symbols`)."""
        said = []
        for size in sizes:
            name = symbol_of(size)
            if name is not None:
                self.symbols[name] = size_hint(size)
            said.append(name or repr(size_hint(size)))
        return f"({', '.join(said)}{',' if len(said) == 1 else ''})"

    def unsupported(self, name: str, arg: Any) -> None:
        """Something that a script cannot have; what is in it is told, for who wants to mend the script."""
        self._lines.append(f"reader.unsupported({name!r})  # a {type(arg).__qualname__} cannot be written here")
        if not isinstance(arg, (list, tuple)):
            return
        inside = InputWriter(None)
        for at, each in enumerate(arg):
            inside.any(f"{name}[{at}]", each)
        self._lines += [f"#   {line}" for line in inside._lines]

    def const(self, name: str) -> None:
        self._lines.append(f"reader.const({name!r})  # {name}: the compiler left it out, it is None")

    def symint(self, name: str, val: Any) -> None:
        if isinstance(val, torch.SymInt):
            symbol = symbol_of(val)
            if symbol is not None:
                self.symbols[symbol] = size_hint(val)
            self._lines.append(f"reader.symint({size_hint(val)!r}, expr={str(val.node.expr)!r})  # {name}")
        else:
            self._lines.append(f"reader.symint({val!r})  # {name}")

    def generator(self, name: str, arg: torch.Generator) -> None:
        self._lines.append(f"reader.generator({arg.device.type!r}, {arg.device.index!r})  # {name}")

    def opaque(self, name: str, script_class_name: str) -> None:
        self._lines.append(f"reader.opaque({script_class_name!r})  # {name}")


def symbol_of(size: Any) -> str | None:
    """The name of a size that is a symbol by itself, and no expression of such."""
    expr = torch_compat.symbolic_expr(size) if isinstance(size, torch.SymInt) else None
    return str(expr) if expr is not None and expr.is_Symbol and str(expr).isidentifier() else None


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # an inference tensor outside of its mode has no history to ask about
        return False

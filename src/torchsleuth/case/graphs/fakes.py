"""Fake tensors as data, and back: what a node produces, without values.

A compiler works on fakes: sizes, strides, dtypes, which tensors share memory. In a case each node has a record of what
it produced (`schema.Fake`). `rebuild_vals` makes the fakes of a graph again in one fresh `FakeTensorMode`: the
operators that make views run on fakes, so that it is known who is a view of whom, and are held against the record;
everything else is made from the record alone. Where the two say different things, the record counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs import symbols
from torchsleuth.case.plain import notice
from torchsleuth.errors import GET_IT_AGAIN, BadCase, in_words

_MOST_PARTS = 20_000

VAL = "val"
EXAMPLE = "example_value"


class FakeWriter:
    """Turns fake tensors and symbolic numbers into data."""

    def __init__(self) -> None:
        self._memories: dict[int, int] = {}
        self._alive: list[Any] = []  # storages are told apart by address, so none may go away meanwhile
        self.used: set[Any] = set()
        """The symbols (of sympy) that were met."""
        self.shape_env: Any = None
        """The ShapeEnv that they belong to, once one was met."""

    def encode(self, fake: torch.Tensor) -> schema.Fake | schema.Noticed:
        """What the tensor is."""
        if torch_compat.is_wrapper(fake):
            return notice(fake, "it is what a transform of torch.func has put around a tensor")
        if torch_compat.subclass_name(fake) is not None:
            return notice(fake, "it is a tensor of a class of its own")
        try:
            return self._described(fake)
        except Exception as error:  # noqa: BLE001 - sizes of nested tensors and other new kinds of number
            return notice(fake, f"its sizes cannot be told: {in_words(error)}")

    def _described(self, fake: torch.Tensor) -> schema.Fake:
        self.shape_env = self.shape_env or torch_compat.shape_env_of(fake)
        strided = fake.layout == torch.strided
        return schema.Fake(
            dtype=_name(fake.dtype),
            size=tuple(self._size(size) for size in fake.shape),
            stride=tuple(self._size(stride) for stride in fake.stride()) if strided else (),
            offset=self._size(fake.storage_offset()) if strided else 0,
            device=str(fake.device),
            layout=_name(fake.layout),
            requires_grad=fake.requires_grad,
            leaf=fake.is_leaf,
            parameter=isinstance(fake, torch.nn.Parameter),
            conj=fake.is_conj(),
            neg=fake.is_neg(),
            memory=self._memory(fake) if strided else None,
        )

    def encode_symbolic(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> schema.Symbolic | schema.Noticed:
        """A symbolic number."""
        try:
            self._note(value)
            return symbols.encode_sym(value)
        except Exception as error:  # noqa: BLE001 - as above
            return notice(value, f"it is not made of symbols: {in_words(error)}")

    def _size(self, size: int | torch.SymInt) -> schema.Term:
        if isinstance(size, torch.SymInt):
            self._note(size)
        return symbols.encode_size(size)

    def _note(self, value: Any) -> None:
        env, used = torch_compat.symbols_of(value)
        self.used |= used
        self.shape_env = self.shape_env or env

    def _memory(self, fake: torch.Tensor) -> int | None:
        storage = fake.untyped_storage()
        address = torch_compat.storage_key(storage)
        if address not in self._memories:
            self._alive.append(storage)
        return self._memories.setdefault(address, len(self._memories))


class FakeReader:
    """Makes fake tensors and symbolic numbers again, all in one fake mode over one shape environment."""

    def __init__(self, record: schema.Symbols, file: str = "") -> None:
        self._file = file
        self.environment = symbols.rebuild(record)
        self.mode = torch_compat.fake_mode(self.environment.shape_env)
        self._bases: dict[int, torch.Tensor] = {}
        self.parts_left = _MOST_PARTS
        """How many parts may still be split off by running operators; then the record is gone by."""

    def decode(self, record: schema.Fake | schema.Symbolic, field: str) -> Any:
        """The fake tensor or symbolic number."""
        if isinstance(record, schema.Symbolic):
            return self.environment.value(record)
        with torch_compat.quiet_shapes(self.environment.shape_env):
            try:
                return self._tensor(record)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise BadCase(
                    f"no tensor is like this: {record.dtype}{list(record.size)}",
                    cause=f"{type(error).__name__}: {str(error).strip()[:300]}",
                    remedy=GET_IT_AGAIN,
                    file=self._file,
                    field=field,
                ) from error

    def _tensor(self, record: schema.Fake) -> torch.Tensor:
        if record.layout != "strided":
            raise ValueError(f"a fake of layout {record.layout} is made from its real counterpart only")
        size = [self.environment.size(term) for term in record.size]
        stride = [self.environment.size(term) for term in record.stride]
        offset = self.environment.size(record.offset)
        dtype = _dtype(record.dtype)
        with self.mode, torch.no_grad():
            fake = self._view(record.memory, dtype, size, stride, offset, record.device)
            if record.conj:
                fake = fake.conj()
            if record.neg:
                fake = torch_compat.negated(fake)
        if record.parameter:
            return torch.nn.Parameter(fake, requires_grad=record.requires_grad)
        if not record.requires_grad:
            return fake
        fake.requires_grad_()
        if record.leaf:
            return fake
        with self.mode, torch.enable_grad():
            return fake.view_as(fake)

    def _view(
        self, memory: int | None, dtype: torch.dtype, size: Any, stride: Any, offset: Any, device: str
    ) -> torch.Tensor:
        """A tensor of that geometry; in memory that others have been made in before, if it has the number of one."""
        base = self._bases.get(memory) if memory is not None else None
        if base is not None and base.dtype == dtype and str(base.device) == device:
            return torch.as_strided(base, size, stride, offset)
        if isinstance(offset, int) and offset == 0:
            made = torch.empty_strided(size, stride, dtype=dtype, device=device)
        else:
            room = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1
            made = torch.as_strided(torch.empty([room], dtype=dtype, device=device), size, stride, offset)
        if memory is not None:
            self._bases[memory] = made
        return made

    def same(self, value: Any, record: schema.Value) -> bool:
        """Whether a value that running an operator gave is what the record says."""
        match record:
            case schema.Fake():
                return isinstance(value, torch.Tensor) and self._alike(value, record)
            case schema.Tuple(items) | schema.List(items):
                return (
                    isinstance(value, (tuple, list))
                    and len(value) == len(items)
                    and all(self.same(one, other) for one, other in zip(value, items, strict=True))
                )
            case None:
                return value is None
        return False

    @staticmethod
    def _alike(value: torch.Tensor, record: schema.Fake) -> bool:
        if value.layout != torch.strided or _name(value.dtype) != record.dtype or str(value.device) != record.device:
            return False
        encode = symbols.encode_size
        return (
            tuple(map(encode, value.shape)) == record.size
            and tuple(map(encode, value.stride())) == record.stride
            and encode(value.storage_offset()) == record.offset
            and value.is_conj() == record.conj
            and value.is_neg() == record.neg
        )


def rebuild_vals(
    gm: fx.GraphModule,
    record: schema.Graph,
    reader: FakeReader,
    decode: Callable[[schema.Value, str], Any],
    field: str,
) -> None:
    """Give each node of `gm` the fakes that its record tells of."""
    views = _Views(gm, reader)
    for number, (node, written) in enumerate(zip(gm.graph.nodes, record.nodes, strict=True)):
        where = f"{field}.nodes[{number}].meta"
        for key, described in ((VAL, written.meta.val), (EXAMPLE, written.meta.example)):
            if described is None:
                continue
            if written.meta.bindings or not any(_fakes_in(described)) or node.op in ("placeholder", "output"):
                node.meta[key] = decode(described, f"{where}.{key}")
            else:
                ran = views.run(node, key)
                node.meta[key] = ran if reader.same(ran, described) else decode(described, f"{where}.{key}")


class _Views:
    """Runs the nodes that make views, on the fakes of their arguments. No other operator is ever run for a case."""

    def __init__(self, gm: fx.GraphModule, reader: FakeReader) -> None:
        self._gm = gm
        self._reader = reader

    def run(self, node: fx.Node, key: str) -> Any:
        """What the node gives on fakes; None if it makes no view, or if that cannot be told."""
        try:
            if node.op == "get_attr":
                return self._constant(str(node.target))
            if node.op != "call_function" or not _makes_views(node.target):
                return None
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta[key])
            if not self._is_worth_it(args, torch_compat.op_returns_list(node.target)):
                return None
            shape_env = self._reader.environment.shape_env
            with self._reader.mode, torch.no_grad(), torch_compat.quiet_shapes(shape_env):
                return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # noqa: BLE001 - anything an operator may raise; then the record is what we go by
            return None

    def _is_worth_it(self, args: Any, several: bool) -> bool:
        """Whether it is a tensor that is looked at, and not split into more parts than anybody has use for."""
        if not args or not isinstance(args[0], torch.Tensor) or not torch_compat.is_fake(args[0]):
            return False
        if several:
            self._reader.parts_left -= max((n for n in (*args[0].shape, *args[1:]) if isinstance(n, int)), default=0)
        return self._reader.parts_left >= 0

    def _constant(self, name: str) -> torch.Tensor | None:
        found: Any = self._gm
        for part in name.split("."):
            found = getattr(found, part)
        return torch_compat.as_fake(self._reader.mode, found) if isinstance(found, torch.Tensor) else None


def _makes_views(target: Any) -> bool:
    is_aten = torch_compat.is_op_overload(target) and target.namespace == "aten"
    return is_aten and torch_compat.op_is_view(target) and not torch_compat.op_is_mutable(target)


def _fakes_in(value: schema.Value) -> Iterator[schema.Fake]:
    if isinstance(value, schema.Fake):
        yield value
    elif isinstance(value, (schema.Tuple, schema.List)):
        for item in value.items:
            yield from _fakes_in(item)


def _name(constant: object) -> str:
    return str(constant).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found

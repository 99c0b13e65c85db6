"""The values of a graph (arguments, constants, what nodes produce) as data, and back.

`plain` knows Python's own values and the containers; here are the ones that belong to a graph: nodes, tensors,
symbolic numbers, functions, nested graphs and modules. What a case cannot hold becomes a `Noticed` with its reason:
writing a case never fails because of one odd value. Reading it back is where that counts, and where `CannotHold` is
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs import modules, targets
from torchsleuth.case.plain import decode_plain, encode_plain, notice
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold

if TYPE_CHECKING:
    from torchsleuth.case.graphs.fakes import FakeReader, FakeWriter
    from torchsleuth.case.storages.tensors import TensorReader, TensorWriter


class ValueWriter:
    """Turns values into data. `tensors` and `fakes` keep what tensors refer to; `graph` writes nested graphs."""

    def __init__(
        self,
        tensors: TensorWriter,
        fakes: FakeWriter,
        graph: Callable[[fx.GraphModule], schema.Graph],
    ) -> None:
        self._tensors = tensors
        self._fakes = fakes
        self._graph = graph

    def encode(self, value: object) -> schema.Value:
        """The value as data, with a `Noticed` for each part that cannot be."""
        return encode_plain(value, self._other)

    def argument(self, value: object) -> schema.Value:
        """The same for an argument of a node. FX writes arguments into code, so not everything may be read as one."""
        return encode_plain(value, self._argument)

    def _argument(self, value: Any) -> schema.Value:
        if isinstance(value, (torch.Tensor, torch.nn.Module, torch.Generator)):
            return notice(
                value, "it stands as an argument in a graph, where only what can be written as code may stand"
            )
        if isinstance(value, (tuple, list, dict)):  # subclasses, as below
            return self.argument(next(kind for kind in (tuple, list, dict) if isinstance(value, kind))(value))
        return self._other(value)

    def _other(self, value: Any) -> schema.Value:
        if isinstance(value, fx.Node):
            return schema.Ref(value.name)
        if isinstance(value, torch.Tensor):
            return self._fakes.encode(value) if torch_compat.is_fake(value) else self._tensors.add(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._fakes.encode_symbolic(value)
        if isinstance(value, tuple):  # torch's and other named tuples: graphs use them by position
            return self.encode(tuple(value))
        if isinstance(value, list):  # FX makes its arguments immutable by subclasses
            return self.encode(list(value))
        if isinstance(value, dict):
            return self.encode(dict(value))
        if isinstance(value, fx.GraphModule):
            return self._graph(value)
        if isinstance(value, torch.nn.Module):
            return modules.encode(value, self.encode)
        if isinstance(value, torch.Generator):
            return schema.Generator(str(value.device), value.get_state().numpy().tobytes())
        if torch_compat.is_backward_state(value):
            return notice(value, "it is the state of a backward hook, which lives in the process that made it")
        if torch_compat.is_script_object(value):
            return notice(value, "it is a script object, whose state only its own library can read")
        if callable(value):
            return self._function(value)
        return notice(value, "a case has no word for it")

    def _function(self, function: Any) -> schema.Function | schema.Noticed:
        try:
            return schema.Function(targets.function_name(function))
        except CannotHold as error:
            return notice(function, error.cause)


class ValueReader:
    """Turns data into values. Fakes and symbolic numbers are made by `fakes`, where there may be any."""

    def __init__(
        self,
        tensors: TensorReader,
        fakes: FakeReader | None,
        graph: Callable[[schema.Graph, str], fx.GraphModule],
        file: str = "",
    ) -> None:
        self._tensors = tensors
        self._fakes = fakes
        self._graph = graph
        self._file = file

    def decode(self, value: schema.Value, field: str, nodes: Mapping[str, fx.Node] | None = None) -> Any:
        """The value that the data stands for. References mean `nodes`; `field` is where it stands in the file."""

        def other(record: schema.Value) -> object:
            return self._other(record, field, nodes or {})

        return decode_plain(value, other, file=self._file, field=field)

    def argument(self, value: schema.Value, field: str, nodes: Mapping[str, fx.Node]) -> Any:
        """The same for an argument of a node. FX writes arguments into code, so only what it can write may be one."""

        def other(record: schema.Value) -> object:
            match record:
                case schema.Function(name):
                    return targets.resolve_operator(name, file=self._file, field=field)
                case schema.Ref() | schema.Symbolic() | schema.Noticed():
                    return self._other(record, field, nodes)
            raise self._bad(f"a {type(record).__name__.lower()} cannot be an argument", field)

        return decode_plain(value, other, file=self._file, field=field)

    def _other(self, record: schema.Value, field: str, nodes: Mapping[str, fx.Node]) -> object:
        match record:
            case schema.Ref(name):
                if name not in nodes:
                    raise self._bad(f"there is no node {name!r} before this one", field)
                return nodes[name]
            case schema.Tensor():
                return self._tensors.get(record, field)
            case schema.Fake() | schema.Symbolic() if self._fakes is not None:
                return self._fakes.decode(record, field)
            case schema.Function(name):
                return targets.resolve_value(name, file=self._file, field=field)
            case schema.Generator():
                return self._generator(record, field)
            case schema.Graph():
                return self._graph(record, field)
            case schema.Module():
                return modules.decode(record, lambda value, at: self.decode(value, f"{field}.{at}"), self._file, field)
            case schema.Noticed(kind, reason):
                raise CannotHold(
                    f"the graph needs a {kind}, and the case could not hold it",
                    cause=reason,
                    remedy="reproduce the failure with the original program; `sleuth show` says what is known of it",
                    file=self._file,
                    field=field,
                )
        raise self._bad(f"a {type(record).__name__.lower()} cannot stand here", field)

    def _generator(self, record: schema.Generator, field: str) -> torch.Generator:
        try:
            generator = torch.Generator(device=record.device)
            generator.set_state(torch.frombuffer(bytearray(record.state), dtype=torch.uint8))
        except (RuntimeError, ValueError, TypeError) as error:
            raise self._bad(f"this is not the state of a generator: {error}", field) from error
        return generator

    def _bad(self, cause: str, field: str) -> BadCase:
        return BadCase(
            "a value is not what it has to be",
            cause=cause,
            remedy=GET_IT_AGAIN,
            file=self._file,
            field=field,
        )

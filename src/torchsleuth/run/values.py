"""What eager computes at each node of a graph, as data: so that a graph that begins in the middle has real inputs.

    runner.run(Query(case, home, record=file))      writes it
    read_values(file)                               {name of a node: Recorded}

Each tensor lies in memory of its own, with the strides that it had.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch import fx

from torchsleuth.case.schema import Record, Storage, Tensor
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.storages.tensors import TensorWriter
from torchsleuth.case.stores.examining import blobs_at
from torchsleuth.errors import GET_IT_AGAIN, BadCase, in_words

if TYPE_CHECKING:
    from torchsleuth.run.query import Query

_MOST_BYTES: Final = 2**30
"""So much is kept of one run. What comes after it is not recorded."""


class Recorded(Record, frozen=True):
    """What was computed at a node: a tensor of a storage of its own, or a number."""

    value: Tensor | bool | int | float
    storage: Storage | None = None


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Recorded])


def record_values(gm: fx.GraphModule, inputs: list[Any], query: Query) -> None:
    """Run a graph in eager, and write what its nodes compute."""
    recorder = _Recorder(gm, blobs_at(query.tensors))
    with torch.no_grad():
        recorder.run(*inputs)
    path = Path(query.record)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(_ENCODER.encode(recorder.found))
    os.replace(temporary, path)


def read_values(path: Path) -> dict[str, Recorded]:
    """What was written."""
    try:
        return _DECODER.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise BadCase(
            "what eager computed cannot be read", cause=in_words(error), remedy=GET_IT_AGAIN, file=str(path)
        ) from error


class _Recorder(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule, blobs: Blobs) -> None:
        super().__init__(gm)
        self.found: dict[str, Recorded] = {}
        self._blobs = blobs
        self._left = _MOST_BYTES

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op.startswith("call_"):
            recorded = self._recorded(result)
            if recorded is not None:
                self.found[n.name] = recorded
        return result

    def _recorded(self, value: Any) -> Recorded | None:
        if isinstance(value, (bool, int, float)):
            return Recorded(value)
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            return None
        own = _apart(value)
        self._left -= own.untyped_storage().nbytes()
        if self._left < 0:
            return None
        writer = TensorWriter(self._blobs)
        tensor = writer.add(own)
        return Recorded(tensor, writer.storages[0]) if isinstance(tensor, Tensor) else None


def _apart(value: torch.Tensor) -> torch.Tensor:
    """The same tensor in memory of its own, which begins with it."""
    plain = value.detach().resolve_conj().resolve_neg()
    if 0 in plain.shape:
        return plain.clone()
    needed = 1 + sum((length - 1) * stride for length, stride in zip(plain.shape, plain.stride(), strict=True))
    memory = plain.as_strided((needed,), (1,), plain.storage_offset()).clone()
    own = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return own.set_(memory.untyped_storage(), 0, plain.shape, plain.stride())  # no view of `memory`, to autograd

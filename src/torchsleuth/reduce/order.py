"""The order in which cases are smaller than others. It is total, and stated once: whatever way a reduction takes, what
it holds is the smallest that it has seen.

    size_of(case) < size_of(other)

From what counts most:

1. `operators`   A reader asks "which operators?" first, and so does whoever mends the compiler.
2. `ends`        Inputs and outputs are what has to be set up and looked at.
3. `complexity`  `add` says more than `addmm`, and an argument that is left out more than one that is given.
4. `elements`    Small tensors can be read; `rank` and `layout` likewise: few dimensions, no odd strides.
5. `dtypes`      float32 before bfloat16 before complex64.
6. `values`      Zeros before ones before counting before drawn numbers before numbers of the program's own, of which
                 few are better than many, and such with few digits better than others.
7. `data`        Bytes that have to lie in a file beside the script.
8. `settings`    Options, variables and modes that are not as they are by default; symbolic sizes; gradients.
9. `text`        What is written about it. The last word has the digest, so that two different cases are never equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.schema import (
    Case,
    Float,
    Graph,
    List,
    Node,
    Nothing,
    Origin,
    Ref,
    Size as SizeValue,
    State,
    Storage,
    Stored,
    Tensor,
    Tuple,
    Value,
)
from torchsleuth.case.script.ways import most_bytes
from torchsleuth.reduce.graphs import is_call, operators, output_of, replace, tensors_of

_DEFAULT: Final = State()


class Size(NamedTuple):
    """How large a case is, field by field from what counts most."""

    operators: int
    ends: int
    complexity: int
    elements: int
    rank: int
    layout: int
    dtypes: int
    values: int
    data: int
    settings: int
    text: int
    digest: str

    @property
    def in_words(self) -> str:
        """For people."""
        return f"{self.operators:,} ops, {self.elements:,} input elements"


def size_of(case: Case) -> Size:
    """How large a case is."""
    tensors = list(tensors_of(case))
    described = content_of(case)
    return Size(
        operators=sum(len(operators(graph)) for graph in graphs_in(case.graph)),
        ends=len(case.inputs) + len(outputs_of(case.graph)),
        complexity=sum(complexity(node) for graph in graphs_in(case.graph) for node in graph.nodes if is_call(node)),
        elements=sum(elements_of(tensor) for tensor in tensors),
        rank=sum(len(tensor.size) for tensor in tensors),
        layout=sum(map(_layout, tensors)),
        dtypes=sum(dtype_rank(tensor.dtype) for tensor in tensors),
        values=sum(map(_value_rank, case.storages)) + sum(map(_number_rank, case.inputs)),
        data=_data(case),
        settings=_settings(case),
        text=len(described),
        digest=hashlib.sha256(described).hexdigest(),
    )


def content_of(case: Case) -> bytes:
    """What a run of a case depends on, as bytes: not what is told about its past."""
    return _ENCODER.encode(replace(case, origin=_NOWHERE, failure=None, todo=None))


_ENCODER: Final = msgspec.json.Encoder()
_NOWHERE: Final = Origin("", "", "")


# ---- parts -------------------------------------------------------------------------------------------------


def graphs_in(graph: Graph) -> Iterator[Graph]:
    """The graph, and those that are nested in it."""
    yield graph
    for entry in graph.attributes:
        if isinstance(entry.value, Graph):
            yield from graphs_in(entry.value)


def outputs_of(graph: Graph) -> tuple[Value, ...]:
    """What the graph returns, one by one."""
    args = output_of(graph).args
    if len(args) == 1 and isinstance(args[0], (List, Tuple)):
        return args[0].items
    return args


def elements_of(tensor: Tensor) -> int:
    count = 1
    for length in tensor.size:
        count *= length
    return count + sum(map(elements_of, tensor.parts))


_SIMPLE: Final[Mapping[str, int]] = {
    name: rank
    for rank, names in enumerate(
        (
            "clone alias detach",
            "neg abs relu sin cos exp",
            "add sub mul div",
            "sum amax mean",
            "view reshape expand permute transpose unsqueeze squeeze t full",
            "mm bmm addmm matmul",
        ),
        start=1,
    )
    for name in names.split()
}
_OTHERS: Final = 12


def complexity(node: Node) -> int:
    """How much there is to say about a call: the operator, and its arguments."""
    parts = node.target.removeprefix("torch.ops.").split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    weight = _SIMPLE.get(name, _OTHERS) * 4
    return weight + sum(_weight(value) for value in node.args) + sum(1 + _weight(one.value) for one in node.kwargs)


def _weight(value: Value) -> int:
    match value:
        case None | Ref():
            return 1
        case bool():
            return 1 + value
        case int():
            return 1 + min(abs(value).bit_length(), 40) + (value < 0)
        case float():
            return 2 + (len(repr(value)) if value not in (0.0, 1.0) else int(value))
        case Float():
            return 8
        case List(items) | Tuple(items) | SizeValue(items):
            return 1 + sum(map(_weight, items))
    return 4


_DTYPES: Final = "float32 int64 bool float64 int32 float16 bfloat16 uint8 int8 int16".split()


def dtype_rank(name: str) -> int:
    """How simple a dtype is: 0 for the simplest."""
    return _DTYPES.index(name) if name in _DTYPES else len(_DTYPES) + DTYPE_BITS.get(name, 0) // 8


def _layout(tensor: Tensor) -> int:
    """0 for what lies in memory as it is read."""
    odd = (tensor.layout != "strided") * 8 + tensor.conj + tensor.neg + (tensor.base is not None) + (tensor.offset > 0)
    expected = 1
    for length, stride in zip(reversed(tensor.size), reversed(tensor.stride), strict=False):
        odd += length != 1 and stride != expected
        expected *= max(length, 1)
    return odd


def _data(case: Case) -> int:
    """The bytes that have to lie in a file beside the script."""
    most = most_bytes(case)
    return sum(
        storage.nbytes for storage in case.storages if isinstance(storage.content, Stored) and storage.nbytes > most
    )


_FEW_BYTES: Final = 512
_FEW_VALUES, _MANY_VALUES, _ALL_DIGITS = 10, 30, 18


def _value_rank(storage: Storage) -> int:
    content = storage.content
    if isinstance(content, Nothing):
        return 0
    if isinstance(content, Stored):
        return (_FEW_VALUES if storage.nbytes <= _FEW_BYTES else _MANY_VALUES) + (content.digits or _ALL_DIGITS)
    match content.how:
        case "constant":
            return 0 if content.low == 0 else 1 if content.low == 1 else 2
        case "arange":
            return 3
        case _:
            return 4 + (content.seed != 0)


def _number_rank(value: Value) -> int:
    return _weight(value) if isinstance(value, (bool, int, float)) else 0


def _settings(case: Case) -> int:
    state, compiler = case.state, case.compiler
    odd: int = sum(
        getattr(state, name) != getattr(_DEFAULT, name)
        for name in state.__struct_fields__
        if name not in ("autocast", "rng", "flags", "config", "environment", "grad")
    )
    odd += len(state.flags) + len(state.config) + len(state.environment) + len(state.rng)
    odd += sum(one.enabled for one in state.autocast)
    odd += len(compiler.options) + (compiler.mode is not None) + (compiler.dynamic is not None)
    odd += len(case.symbols.symbols) + len(case.symbols.guards) + len(case.symbols.asserts)
    odd += sum(tensor.requires_grad + tensor.parameter for tensor in tensors_of(case))
    return odd + len(compiler.arguments) + len(case.code)

"""The tensors of a case in a script: `memory()`, and `inputs(m)`, which are views of it.

How the bytes of each memory are written is decided in `ways`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchsleuth.case import schema
from torchsleuth.case.script.graphs import cannot_write
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.tensors import BESIDE, BYTES, MADE, META, QUANTISED, SPARSE, VIEW, VIEW_OF
from torchsleuth.case.script.source import Spelling, call_source, float_source, text_source, torch_source
from torchsleuth.case.script.ways import Beside, InText, Literal, Nothing, Recipe, Way, is_view, ordinary_strides


class Tensors:
    """Writes tensors as views of `m`, the memory of the script; remembers which pieces of the runtime that takes."""

    def __init__(self, ways: Mapping[int, Way]) -> None:
        self._ways = ways
        self._flags = Spelling().tensor_flags
        self.pieces: list[Piece] = []
        self._bases: dict[schema.Tensor, str] = {}

    def write_bases(self, page: Page, inputs: Iterable[schema.Value]) -> None:
        """The tensors that inputs are views of, as variables, for the inputs to refer to."""
        found = [value.base for value in inputs if isinstance(value, schema.Tensor) and is_view(value)]
        for number, base in enumerate(dict.fromkeys(base for base in found if base is not None)):
            page.line(f"base_{number} = {self._alone(base)}")
            self._bases[base] = f"base_{number}"

    def forget_bases(self) -> None:
        """What follows is in another function."""
        self._bases.clear()

    def source(self, record: schema.Tensor) -> str:
        """An expression for the tensor."""
        if record in self._bases:
            return self._bases[record]
        if record.base is not None and record.base in self._bases and is_view(record):
            self.pieces.append(VIEW_OF)
            place = (self._bases[record.base], repr(record.size), repr(record.stride))
            offset = repr(record.offset) if record.offset else None
            return call_source("view_of", *place, offset=offset, **self._flags_of(record))
        return self._alone(record)

    def _flags_of(self, record: schema.Tensor) -> dict[str, str | None]:
        flags = self._flags(record)
        flags.pop("device")  # it follows from the memory
        flags["grad"] = None if record.grad is None else self._alone(record.grad)
        return flags

    def _alone(self, record: schema.Tensor) -> str:
        """The tensor as nobody's view."""
        flags = self._flags_of(record)
        if record.layout != "strided":
            self.pieces += (SPARSE, VIEW)
            inside = ", ".join(map(self._alone, record.parts))
            coalesced = "True" if record.coalesced else None
            return call_source(
                "sparse", torch_source(record.layout), f"({inside})", repr(record.size), coalesced=coalesced, **flags
            )
        if record.storage is None:
            raise cannot_write(schema.Noticed("Tensor", "the case does not say where its values are"))
        way = self._ways[record.storage]
        if isinstance(way, Literal):
            return self._literal(way, flags)
        self.pieces.append(VIEW)
        if isinstance(way, Nothing):
            self.pieces.append(META)
            place = (torch_source(record.dtype), repr(record.size), repr(record.stride))
            return call_source("no_memory", *place, **flags)
        place = (f"m[{record.storage}]", torch_source(record.dtype), repr(record.size))
        stride = None if record.stride == ordinary_strides(record.size) else repr(record.stride)
        offset = repr(record.offset) if record.offset else None
        if record.quantiser is not None:
            self.pieces.append(QUANTISED)
            quantiser = Spelling().quantiser(record.quantiser)
            return call_source("quantised", *place, stride=stride, offset=offset, quantiser=quantiser, **flags)
        inference = "True" if record.inference else None
        return call_source("view", *place, stride=stride, offset=offset, inference=inference, **flags)

    def _literal(self, way: Literal, flags: Mapping[str, str | None]) -> str:
        if not any(flags.values()):
            return way.source
        self.pieces.append(VIEW)
        return call_source("with_flags", way.source, **flags)

    def write_memory(self, page: Page, storages: tuple[schema.Storage, ...], file: str, case: str) -> None:
        """`memory()`: the storages by number."""
        written = [number for number, way in self._ways.items() if not isinstance(way, (Literal, Nothing))]
        if not written:
            return
        page.blank(2)
        with page.block("def memory():"):
            page.line('"""The memory under the tensors. Tensors that share some are views of the same."""')
            if any(isinstance(self._ways[number], Beside) for number in written):
                self.pieces.append(BESIDE)
                page.line(f"beside = Beside({text_source(file)}, {text_source(case)})")
            with page.block("return {"):
                for number in written:
                    self._write_storage(page, number, storages[number])
            page.line("}")

    def _write_storage(self, page: Page, number: int, storage: schema.Storage) -> None:
        way = self._ways[number]
        place = "" if storage.device == "cpu" else f".to(device={text_source(storage.device)})"
        match way:
            case InText(text):
                self.pieces.append(BYTES)
                page.line(f"{number}: raw({storage.nbytes}, {in_lines(text)}){place},")
            case Recipe(recipe):
                self.pieces.append(MADE)
                page.line(f"{number}: {_made(recipe, storage.nbytes)}{place},", recipe.why)
            case Beside():
                page.line(f'{number}: beside.storage("{number}"){place},', f"{storage.nbytes:,} bytes")

    @property
    def has_memory(self) -> bool:
        return any(not isinstance(way, (Literal, Nothing)) for way in self._ways.values())


def in_lines(text: str) -> str:
    """A long string as arguments, each short enough for a line."""
    return ", ".join(text_source(text[start : start + 96]) for start in range(0, max(len(text), 1), 96))


def _made(recipe: schema.Generated, nbytes: int) -> str:
    def number(value: bool | int | float) -> str:
        return float_source(value) if isinstance(value, float) else repr(value)

    return call_source(
        "made",
        repr(nbytes),
        text_source(recipe.how),
        torch_source(recipe.dtype),
        low=number(recipe.low) if recipe.low != 0 else None,
        high=number(recipe.high) if recipe.high != 1 else None,
        seed=repr(recipe.seed) if recipe.seed else None,
    )


def write_inputs(page: Page, case: schema.Case, spelling: Spelling, tensors: Tensors) -> None:
    """`inputs(m)`: what the graph was called with. Inputs that share memory are views of one tensor."""
    names = [node.name for node in case.graph.nodes if node.op == "placeholder"]
    page.blank(2)
    with page.block("def inputs(m):"):
        page.line('"""What the graph was called with."""')
        tensors.write_bases(page, case.inputs)
        write_list(page, (spelling.value(value) for value in case.inputs), (*names, *[""] * len(case.inputs)))
        tensors.forget_bases()


def write_list(page: Page, items: Iterable[str], comments: Iterable[str]) -> None:
    """`return [...]`, an item a line."""
    items = list(items)
    if not items:
        page.line("return []")
        return
    with page.block("return ["):
        for item, comment in zip(items, comments, strict=False):
            page.line(f"{item},", comment)
    page.line("]")

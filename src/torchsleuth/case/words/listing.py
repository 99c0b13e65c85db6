"""A case as something to read: its graph as lines of code with shapes and the user's own lines, its inputs as rows.

    # model.py:12 in forward: y = F.relu(x)
    relu: f32[8, s77] = aten.relu.default(x)

Everything here is data (lines of spans, rows of words); `report` gives it colours. Knows no torch and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from torchsleuth.case import schema
from torchsleuth.case.schema import Case, Graph, Node, Storage, Value
from torchsleuth.case.words.wording import (
    dtype_words,
    is_contiguous,
    one_line,
    size_words,
    term_words,
    type_words,
    value_words,
)

Kind = Literal["plain", "name", "type", "target", "comment", "keyword"]

_INDENT = 4
_DEEPEST = 16
_FRAME = re.compile(r'^\s*File "(?P<file>[^\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)$', re.MULTILINE)
_GETITEM: Final = ("operator.getitem", "_operator.getitem")


@dataclass(frozen=True)
class Span:
    """A piece of a line, and what it is."""

    text: str
    kind: Kind = "plain"


@dataclass(frozen=True)
class Line:
    """One line, `indent` columns from the left. `node` is the name of the node that it belongs to, if to one."""

    indent: int
    spans: tuple[Span, ...]
    node: str = ""

    @property
    def text(self) -> str:
        return " " * self.indent + "".join(span.text for span in self.spans)


# ---- the graph -------------------------------------------------------------------------------------------


def graph_lines(graph: Graph, *, width: int = 100) -> list[Line]:
    """The graph as code. Calls that are longer than `width` go on in the next line."""
    return list(_Writer(width).body(graph, 0, 0))


class _Writer:
    def __init__(self, width: int) -> None:
        self._width = max(width, 40)

    def body(self, graph: Graph, indent: int, depth: int) -> Iterator[Line]:
        attributes = {entry.name: entry.value for entry in graph.attributes}
        fetched: set[str] = set()
        told = ""
        for node in graph.nodes:
            said = users_line(node.meta.stack_trace)
            if said and said != told and node.op not in ("placeholder", "output"):
                yield Line(indent, (Span(f"# {said}", "comment"),), node.name)
                told = said
            value = attributes.get(node.target) if node.op in ("get_attr", "call_module") else None
            if isinstance(value, Graph) and node.op == "get_attr":
                fetched.add(node.target)
                yield from self._nested(node.name, value, indent, depth)
            else:
                yield from self._node(node, value, indent)
        for name, value in attributes.items():
            if isinstance(value, Graph) and name not in fetched:
                yield from self._nested(name, value, indent, depth)

    def _nested(self, name: str, graph: Graph, indent: int, depth: int) -> Iterator[Line]:
        head = (Span("graph ", "keyword"), Span(one_line(name), "name"), Span(":"))
        yield Line(indent, head, name)
        if depth >= _DEEPEST:
            yield Line(indent + _INDENT, (Span(f"… {len(graph.nodes)} nodes", "comment"),), name)
        else:
            yield from self.body(graph, indent + _INDENT, depth + 1)

    def _node(self, node: Node, value: Value, indent: int) -> Iterator[Line]:
        produced = type_words(node.meta.val if node.meta.val is not None else node.meta.example)
        if node.op == "output":
            yield from self._return(node, indent)
            return
        head = [Span(one_line(node.name), "name")]
        if produced:
            head += [Span(": "), Span(produced, "type")]
        if node.op == "placeholder":
            yield Line(indent, (Span("input ", "keyword"), *head), node.name)
            return
        head.append(Span(" = "))
        if node.op == "get_attr":
            yield Line(indent, (*head, Span(f"self.{one_line(node.target)}", "target"), *_constant(value)), node.name)
            return
        yield from self._call(node, value, indent, head)

    def _return(self, node: Node, indent: int) -> Iterator[Line]:
        result = node.args[0] if node.args else None
        head = Span("return ", "keyword")
        if not isinstance(result, (schema.Tuple, schema.List)):
            yield Line(indent, (head, Span(value_words(result, target_words))), node.name)
            return
        opening, closing = "()" if isinstance(result, schema.Tuple) else "[]"
        words = [value_words(item, target_words) for item in result.items]
        closing = f",{closing}" if len(words) == 1 and opening == "(" else closing
        yield from self._filled(node, indent, [head, Span(opening)], words, closing)

    def _call(self, node: Node, module: Value, indent: int, head: list[Span]) -> Iterator[Line]:
        words = [value_words(arg, target_words) for arg in node.args]
        words += [f"{one_line(entry.name)}={value_words(entry.value, target_words)}" for entry in node.kwargs]
        if node.target in _GETITEM and len(words) == 2 and node.op == "call_function":
            index = words[1][1:-1] if words[1].startswith("(") and len(words[1]) > 2 else words[1]
            yield Line(indent, (*head, Span(f"{words[0]}[{index}]")), node.name)
            return
        if node.op == "call_method" and words:
            head = [*head, Span(f"{words.pop(0)}."), Span(one_line(node.target), "target")]
        elif node.op == "call_module":
            head = [*head, Span(f"self.{one_line(node.target)}", "target")]
        else:
            head = [*head, Span(one_line(target_words(node.target)), "target")]
        *lines, last = self._filled(node, indent, [*head, Span("(")], words, ")")
        yield from lines
        yield last if module is None else Line(last.indent, (*last.spans, *_constant(module)), last.node)

    def _filled(self, node: Node, indent: int, head: list[Span], words: list[str], end: str) -> Iterator[Line]:
        """The head and as many words as fit in a line, then lines with the rest."""
        line = Line(indent, tuple(head), node.name)
        used = len(line.text)
        spans = list(head)
        for position, word in enumerate(words):
            last = position == len(words) - 1
            piece = word + (end if last else ", ")
            if used + len(piece.rstrip()) > self._width and spans:
                yield Line(indent, _stripped(spans), node.name)
                indent, spans, used = line.indent + _INDENT, [], line.indent + _INDENT
            spans.append(Span(piece))
            used += len(piece)
        if not words:
            spans.append(Span(end))
        yield Line(indent, tuple(spans), node.name)


def _stripped(spans: list[Span]) -> tuple[Span, ...]:
    *rest, last = spans
    return (*rest, Span(last.text.rstrip(), last.kind))


def _constant(value: Value) -> tuple[Span, ...]:
    if value is None:
        return ()
    return (Span(f"  # {value_words(value)}", "comment"),)


def target_words(name: str) -> str:
    """The name of a function without what is always the same: `torch.ops.aten.add.Tensor` → `aten.add.Tensor`."""
    return name.removeprefix("torch.ops.")


# ---- the user's lines ------------------------------------------------------------------------------------


def frames(stack_trace: str | None) -> list[schema.Frame]:
    """The frames of a traceback as torch writes it, from outside in."""
    if not stack_trace:
        return []
    found = list(_FRAME.finditer(stack_trace))
    if not found:
        return []
    ends = [match.start() for match in found[1:]] + [len(stack_trace)]
    return [
        schema.Frame(
            match["file"],
            int(match["line"][:9]),
            match["function"].split(", code: ")[0],
            _code_of(match["function"], stack_trace[match.end() : end]),
        )
        for match, end in zip(found, ends, strict=True)
    ]


def _code_of(function: str, after: str) -> str:
    """The line of code: behind the function's name in one notation of torch's, on the next line in the other."""
    if ", code: " in function:
        return function.split(", code: ", 1)[1].strip()
    lines = [line.strip() for line in after.splitlines() if line.strip()]
    return lines[0] if lines else ""


def users_line(stack_trace: str | None) -> str:
    """The innermost line of the user's program: `model.py:12 in forward: y = F.relu(x)`."""
    all_frames = frames(stack_trace)
    return frame_words(all_frames[-1]) if all_frames else ""


def frame_words(frame: schema.Frame) -> str:
    name = re.split(r"[/\\]", frame.file)[-1]
    where = f"{name}:{frame.line}" + (f" in {frame.function}" if frame.function else "")
    return one_line(f"{where}: {frame.code}" if frame.code else where, 160)


# ---- inputs, memory, symbols -----------------------------------------------------------------------------


@dataclass(frozen=True)
class InputRow:
    """One input. `type` is None for a tensor's, whose dtype and shape stand by themselves."""

    name: str
    dtype: str
    shape: str
    stride: str
    """Only if it is not contiguous."""
    memory: str
    """The storage it lies in, and who else does."""
    content: str
    """Where its values come from: stored, made by a recipe, nothing."""


def input_rows(case: Case) -> list[InputRow]:
    """A row for each input; with the name of its placeholder, as far as the graph has one."""
    names = [node.name for node in case.graph.nodes if node.op == "placeholder"]
    shared: dict[int, list[str]] = {}
    labelled = [(names[place] if place < len(names) else f"#{place}", value) for place, value in enumerate(case.inputs)]
    for name, value in labelled:
        if isinstance(value, schema.Tensor) and value.storage is not None:
            shared.setdefault(value.storage, []).append(name)
    return [_row(name, value, case.storages, shared) for name, value in labelled]


def _row(name: str, value: Value, storages: tuple[Storage, ...], shared: dict[int, list[str]]) -> InputRow:
    if not isinstance(value, (schema.Tensor, schema.Fake)):
        kind = type_words(value) or "None"
        return InputRow(
            one_line(name), kind if not isinstance(value, schema.Noticed) else "noticed", "", "", "", _said(value)
        )
    shape = size_words(value.size) + (f" {one_line(value.device)}" if value.device != "cpu" else "")
    stride = "" if is_contiguous(value) else size_words(value.stride)
    marks = [mark for mark, on in (("parameter", value.parameter), ("grad", value.requires_grad)) if on]
    memory = []
    content = "shape only" if isinstance(value, schema.Fake) else ""
    if isinstance(value, schema.Tensor) and value.storage is not None:
        others = [other for other in shared[value.storage] if other != name]
        if others:
            memory.append(f"shares memory with {one_line(', '.join(others), 60)}")
        if value.storage < len(storages):
            content = content_words(storages[value.storage])
    elif isinstance(value, schema.Tensor) and value.parts:
        content = f"in {len(value.parts)} parts"
    if value.offset != 0:
        memory.append(f"from element {term_words(value.offset)}")
    return InputRow(one_line(name), dtype_words(value.dtype), shape, stride, ", ".join(memory + marks), content)


def _said(value: Value) -> str:
    if isinstance(value, schema.Noticed):
        return f"not in the case: {one_line(value.reason, 100)}"
    return value_words(value)


def content_words(storage: Storage) -> str:
    """Where the values of a storage come from: `stored, 1.5 MB`, `made: uniform [0, 1)`."""
    match storage.content:
        case schema.Stored():
            return f"stored, {byte_words(storage.nbytes)}"
        case schema.Generated(how, _, low, high, _, why):
            ends = {
                "constant": f"{low}",
                "arange": f"from {low} in steps of {high}",
                "normal": f"mean {low}, deviation {high}",
            }.get(how, f"[{low}, {high})")
            return f"made: {how} {ends}" + (f"; {one_line(why, 60)}" if why else "")
        case _:
            return "no values"


def byte_words(count: int) -> str:
    """`1.5 MB`: powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


@dataclass(frozen=True)
class SymbolRow:
    name: str
    hint: str
    bounds: str
    source: str


def symbol_rows(symbols: schema.Symbols) -> list[SymbolRow]:
    """A row for each symbolic size: the value it had, the range it is known to lie in, what it stands for."""
    rows = []
    for symbol in symbols.symbols:
        hint = symbol.hint if symbol.hint is not None else symbol.observed
        known = symbol.lower is not None and symbol.upper is not None
        bounds = f"{_end(symbol.lower)} … {_end(symbol.upper)}" if known else ""
        source = one_line(symbol.source or ("known only when it runs" if not symbol.backed else ""), 80)
        rows.append(SymbolRow(one_line(symbol.name), "" if hint is None else term_words(hint), bounds, source))
    return rows


def _end(term: schema.Term | None) -> str:
    return "" if term is None else term_words(term)


def noticed(case: Case) -> list[tuple[str, schema.Noticed]]:
    """What the case cannot hold, and where it is missing."""
    found: list[tuple[str, schema.Noticed]] = []
    for place, value in enumerate(case.inputs):
        _collect(value, f"inputs[{place}]", found, 0)
    _collect(case.graph, "graph", found, 0)
    for option in case.state.config:
        _collect(option.value, f"{option.module}.{option.name}", found, 0)
    for entry in (*case.compiler.options, *case.compiler.arguments):
        _collect(entry.value, f"compiler {entry.name}", found, 0)
    return found


def _collect(value: Value, where: str, found: list[tuple[str, schema.Noticed]], depth: int) -> None:
    if depth > 4 * _DEEPEST:
        return
    match value:
        case schema.Noticed():
            found.append((where, value))
        case schema.List(items) | schema.Tuple(items) | schema.Size(items) | schema.Set(items):
            for item in items:
                _collect(item, where, found, depth + 1)
        case schema.Dict(items):
            for pair in items:
                for part in pair:
                    _collect(part, where, found, depth + 1)
        case schema.Module():
            for entry in (*value.attributes, *value.parameters, *value.buffers, *value.children):
                _collect(entry.value, f"{where}.{entry.name}", found, depth + 1)
        case Graph(nodes, attributes):
            for entry in attributes:
                _collect(entry.value, f"{where}.{entry.name}", found, depth + 1)
            for node in nodes:
                for arg in (*node.args, *(entry.value for entry in node.kwargs)):
                    _collect(arg, f"{where}.{node.name}", found, depth + 1)

"""Puts a script together: the sections in the order in which people read them, and below them what they call."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.script.code import defined_by, write_code
from torchsleuth.case.script.collectives import process_groups
from torchsleuth.case.script.compilers import write_attempt
from torchsleuth.case.script.expected import in_words, write_expected, write_main
from torchsleuth.case.script.graphs import Called, GraphSpelling, write_graphs
from torchsleuth.case.script.inputs import Tensors, write_inputs
from torchsleuth.case.script.layout import Page, tidy
from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.running import PACKED
from torchsleuth.case.script.pieces.sizes import AS_FAKE, FAKE, SYMBOLS, static
from torchsleuth.case.script.shapes import base_name
from torchsleuth.case.script.sizes import examples_differ, settings_source, write_fakes, write_symbols
from torchsleuth.case.script.source import text_source
from torchsleuth.case.script.states import modules_of, write_environment, write_state
from torchsleuth.case.script.terms import Terms
from torchsleuth.case.script.ways import Way, identity
from torchsleuth.errors import CannotHold

_FRAMES: Final = 8
_RULE: Final = "---- from here on, nothing is particular to this failure " + "-" * 60


def build(case: schema.Case, ways: Mapping[int, Way], *, beside: str = "", trust: bool = False) -> str:
    """The whole script. `beside` is the name of the file next to it, if there is one."""
    called, tensors, terms = Called(defined_by(case.code)), Tensors(ways), Terms()
    spelling = GraphSpelling(called, tensors.source, terms)
    symbolic = bool(case.symbols.symbols)
    imports: set[str] = set()
    body = Page()
    write_expected(body, case.failure)
    write_code(body, case.code)
    if symbolic:
        imports |= write_symbols(body, case.symbols, terms)
    tensors.write_memory(body, case.storages, beside, identity(case))
    write_inputs(body, case, spelling, tensors)
    own_fakes = symbolic or examples_differ(case)
    if own_fakes:
        spelling.pieces.append(FAKE)
        write_fakes(body, case, terms)
    write_graphs(body, case.graph, spelling, described=case.compiler.after == "aot")
    has_state = write_state(body, case, trust=trust)
    groups = process_groups(case.graph)
    attempt = write_attempt(body, case, groups, own_fakes=own_fakes, has_memory=tensors.has_memory, trust=trust)
    end = Page()
    main = write_main(end, case.failure, has_state=has_state)
    pieces = _with_needs((*spelling.pieces, *tensors.pieces, *attempt.pieces, *main), case)
    text = str(body)
    if "packed(" in text:
        pieces.append(PACKED)
    imports |= {line for piece in pieces for line in piece.imports} | attempt.imports | called.modules
    imports |= modules_of(case.state) | terms.imports()
    imports |= {name for name in ("contextlib", "struct") if f"{name}." in text}
    page = Page()
    _write_head(page, case, imports, beside)
    page.blank(1)
    for line in sorted(called.aliases):
        page.line(line)
    page.blank(1)
    page.text(text)
    page.blank(2)
    page.comment(_RULE)
    for piece in pieces:
        page.blank(2)
        page.text(piece.text)
    page.blank(2)
    page.text(str(end))
    return str(page)


def notice(case: schema.Case, error: CannotHold) -> str:
    """What is written instead of a script, where there cannot be one: it says why, and fails when it is run."""
    page = Page()
    _write_title(page, case, [])
    page.blank(1)
    words = f"There is no script for this failure: {tidy(error.what)}. {tidy(error.cause)}. {tidy(error.remedy)}."
    page.line(f"raise SystemExit({text_source(words)})")
    return str(page)


def _with_needs(pieces: Iterable[Piece], case: schema.Case) -> list[Piece]:
    """Each piece once, with those that it calls, in order of first need."""
    found: dict[Piece, None] = {}

    def add(piece: Piece) -> None:
        if piece not in found:
            found[piece] = None
            for other in piece.needs:
                add(other)

    for piece in pieces:
        add(piece)
    if case.symbols.symbols:
        add(SYMBOLS)
    elif AS_FAKE in found or FAKE in found:
        add(static(settings_source(case.symbols)))
    return list(found)


def _write_head(page: Page, case: schema.Case, imports: set[str], beside: str) -> None:
    _write_docstring(page, case, beside)
    lines = Page()
    has_environment = write_environment(lines, case.state)
    if str(lines).strip():
        page.blank(1)
        if has_environment:
            page.line("import os")
            page.blank(1)
        page.comment("Torch reads these while it is imported.")
        page.text(str(lines))
        if has_environment:
            imports.discard("os")
    page.blank(1)
    standard = sorted(name for name in imports if _is_standard(name))
    for name in standard:
        page.line(f"import {name}")
    if standard:
        page.blank(1)
    plain = {
        name.removeprefix("import ") for name in imports if not name.startswith("from ") and not _is_standard(name)
    }
    for name in sorted({"torch", *plain}):
        page.line(f"import {name}")
    for line in _merged(line for line in imports if line.startswith("from ")):
        page.line(line)


def _merged(lines: Iterable[str]) -> list[str]:
    """`from ... import ...`, one line for each module."""
    found: dict[str, set[str]] = {}
    for line in lines:
        module, _, names = line.removeprefix("from ").partition(" import ")
        found.setdefault(module, set()).update(names.split(", "))
    return [f"from {module} import {', '.join(sorted(found[module]))}" for module in sorted(found)]


def _is_standard(name: str) -> bool:
    return " " not in name and name.partition(".")[0] in sys.stdlib_module_names


def _write_docstring(page: Page, case: schema.Case, beside: str) -> None:
    usage = [
        "",
        "    python repro.py",
        "",
        "builds the graph as the compiler got it, node by node, compiles and runs it. It needs torch and nothing else.",
        "Exit code 1: it fails as recorded. 0: it does not fail here. 2: it fails in another way.",
    ]
    if beside:
        usage += ["", f"The larger inputs are in {tidy(beside)}, which has to lie next to this file."]
    _write_title(page, case, usage)


def _write_title(page: Page, case: schema.Case, usage: list[str]) -> None:
    origin = case.origin
    title = tidy(f"{case.compiler.backend}, {origin.graph or 'the graph'}: {in_words(case.failure)}")
    recorded = f"Recorded on torch {origin.torch}, Python {origin.python}"
    if origin.platform:
        recorded += f", {origin.platform}"
    paragraphs = [_cut(title, 110), *usage, "", _cut(tidy(f"{recorded}, by torchsleuth {origin.sleuth}."), 118)]
    frames = [f"{base_name(one.file)}:{one.line}, in {one.function}: {one.code}" for one in origin.frames[:_FRAMES]]
    if frames:
        paragraphs += ["", "The lines of the user's program:", "", *(_cut("    " + tidy(line), 118) for line in frames)]
    if len(origin.frames) > _FRAMES:
        paragraphs.append("    ...")
    text = "\n".join(paragraphs).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    page.text(f'"""{text}\n"""')


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"

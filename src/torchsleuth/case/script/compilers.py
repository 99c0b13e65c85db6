"""How a script gives its graph to the compiler: `attempt()` compiles and runs it, and compares where that is asked for.

After AOT, Inductor takes fake inputs and returns a function that takes a list of real ones and empties it. After
Dynamo, a backend takes real inputs and returns a function like the graph; what requires gradients is differentiated.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from typing import Final

from torchsleuth.case import names, schema
from torchsleuth.case.script.collectives import ProcessGroups
from torchsleuth.case.script.graphs import can_be_said, plain_name
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.running import BACKWARD, CLOSE, ONE_PROCESS
from torchsleuth.case.script.pieces.sizes import AS_FAKE, FAKES, KNOWN_FAKES
from torchsleuth.case.script.source import text_source, value_source
from torchsleuth.case.script.states import draws_random_numbers
from torchsleuth.case.surroundings.options import may_be_set
from torchsleuth.errors import CannotHold

KNOWN: Final = frozenset(
    "eager eager_noexcept eager_debug pre_dispatch_eager aot_eager aot_eager_decomp_partition "
    "aot_eager_default_partitioner aot_eager_decomp_partition_with_mode aot_eager_decomp_partition_crossref "
    "inductor ts cudagraphs tvm onnxrt "
    "openxla non_leaf_compile_error_TESTING_ONLY relu_compile_error_TESTING_ONLY relu_runtime_error_TESTING_ONLY "
    "relu_accuracy_error_TESTING_ONLY test_subclasses".split()
)
"""Backends that torch itself brings along, by name."""

COMPILERS: Final = frozenset(
    {
        "torch._dynamo.backends.debugging.boxed_nop",
        "torch._dynamo.backends.debugging.boxed_nop_with_mode",
        "torch._functorch.compilers.nop",
    }
)
"""Compilers of graphs after AOT that torch itself brings along, besides Inductor's."""

ARGUMENTS: Final = frozenset(
    "static_input_idxs is_backward graph_id cpp_wrapper fx_wrapper is_inference layout_opt compile_region_name "
    "aot_mode".split()
)
"""What is handed on to Inductor as it was. The rest are objects that one compilation shares with the next."""


_WITHOUT_COMPARING: Final = '"""Compile the graph and run it."""'


@dataclass
class Attempt:
    """What the function needs besides its own lines."""

    trust: bool = False
    pieces: list[Piece] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


def is_foreign(backend: str) -> bool:
    """Whether a backend or a compiler is code of the user's own."""
    return backend not in KNOWN and backend not in COMPILERS


def write_attempt(
    page: Page,
    case: schema.Case,
    groups: ProcessGroups | None,
    *,
    own_fakes: bool,
    has_memory: bool,
    trust: bool = False,
) -> Attempt:
    """`attempt()`: compile and run the graph, and return what is different from eager."""
    needs = Attempt(trust=trust)
    compare = case.failure is None or case.failure.signature.kind == "mismatched"
    page.blank(2)
    with page.block("def attempt():"):
        page.line('"""Compile the graph, run it, and compare with eager."""' if compare else _WITHOUT_COMPARING)
        if groups is not None:
            needs.pieces.append(ONE_PROCESS)
            page.line(groups.source())
        page.line("m = memory()" if has_memory else "m = {}")
        if case.state.inference:
            with page.block("with torch.inference_mode(False):"):
                page.line("gm, args = graph(m), inputs(m)")
        else:
            page.line("gm, args = graph(m), inputs(m)")
        if case.compiler.after == "aot":
            _after_aot(page, case, needs, own_fakes)
        else:
            _after_dynamo(page, case, needs, own_fakes)
        if compare:
            needs.pieces.append(CLOSE)
            _compare(page, case, has_memory)
        else:
            page.line("return []")
    return needs


def _after_aot(page: Page, case: schema.Case, needs: Attempt, own_fakes: bool) -> None:
    needs.pieces.append(FAKES)
    page.line("given = fakes(args)" if own_fakes else "given = [as_fake(arg) for arg in args]")
    page.line("propagate(gm, given)")
    call = _compiler_of_aot(page, case.compiler, needs)
    page.line("context = TracingContext(fake_mode())")
    if case.compiler.donated is not None:
        needs.imports.add("from types import SimpleNamespace")
        donated = f"SimpleNamespace(bw_donated_idxs={list(case.compiler.donated)!r})"
        page.line(f"context.fw_metadata = {donated}", "inputs that the compiler may overwrite")
    with page.block("with tracing(context):"):
        page.line(f"compiled = {call}")
    needs.imports.add("from torch._guards import TracingContext, tracing")
    page.line("result = compiled(list(args))", "takes a list, and may empty it")


def _compiler_of_aot(page: Page, compiler: schema.Compiler, needs: Attempt) -> str:
    kept = [
        f"{entry.name}={value_source(entry.value)}"
        for entry in compiler.arguments
        if entry.name in ARGUMENTS and can_be_said(entry.value)
    ]
    if compiler.backend == "inductor":
        needs.imports.add("from torch._inductor.compile_fx import compile_fx_inner")
        return f"compile_fx_inner({', '.join(('gm', 'given', *kept))})"
    return f"{_foreign(page, compiler, needs)}(gm, given)"


def _after_dynamo(page: Page, case: schema.Case, needs: Attempt, own_fakes: bool) -> None:
    backend = _backend(page, case.compiler, needs)
    needs.pieces += (AS_FAKE, KNOWN_FAKES)
    needs.imports.add("from torch._guards import TracingContext, tracing")
    page.line("given = fakes(args)" if own_fakes else "given = [as_fake(arg) for arg in args]")
    with page.block("with tracing(TracingContext(fake_mode())):"):
        page.line(f"compiled = {backend}(gm, known(args, given))")
    page.line("result = compiled(*args)")
    if _differentiates(case):
        needs.pieces.append(BACKWARD)
        page.line("gradients = backward(result, args)")


def _differentiates(case: schema.Case) -> bool:
    return case.compiler.after == "dynamo" and case.state.grad and not case.state.inference


def _backend(page: Page, compiler: schema.Compiler, needs: Attempt) -> str:
    needs.imports.add("import torch._dynamo")
    chosen_options = []
    for entry in compiler.options:
        option = schema.Config("torch._inductor.config", entry.name, entry.value)
        if can_be_said(entry.value) and (needs.trust or may_be_set(option)):
            chosen_options.append(f"{text_source(entry.name)}: {value_source(entry.value)}")
        else:
            page.comment(f"not set here, it could name a program or a place: the option {entry.name}")
    options = ", ".join(chosen_options)
    chosen = f"{_text_or_none(compiler.mode)}, {{{options}}}, {compiler.dynamic!r}"
    if compiler.backend == "inductor" and (compiler.mode or options):
        return f"torch._TorchCompileInductorWrapper({chosen})"
    if compiler.backend in KNOWN and (compiler.mode or options):
        return f"torch._TorchCompileWrapper({text_source(compiler.backend)}, {chosen})"
    if compiler.backend in KNOWN:
        return f"torch._dynamo.lookup_backend({text_source(compiler.backend)})"
    return _foreign(page, compiler, needs)


def _text_or_none(text: str | None) -> str:
    return "None" if text is None else text_source(text)


def _foreign(page: Page, compiler: schema.Compiler, needs: Attempt) -> str:
    """A backend of the user's own, by the path it can be imported under or by the name it is registered with."""
    name = compiler.backend.replace(":", ".")
    module, _, function = name.rpartition(".")
    if not module:
        needs.imports.add("import torch._dynamo")
        page.comment("a backend that is not torch's own: the package that registers it has to be installed")
        return f"torch._dynamo.lookup_backend({text_source(compiler.backend)})"
    if not names.is_path(name) or any(map(keyword.iskeyword, name.split("."))) or not plain_name(function):
        raise CannotHold(
            f"the backend {compiler.backend[:120]!r} has no name that a script could import",
            cause="it is a function of its own, not one of a module",
            remedy="move it to a module that can be imported, or register it (torch._dynamo.register_backend)",
        )
    if is_foreign(compiler.backend):
        page.comment(f"a backend that is not torch's own: {module} has to be importable")
    needs.imports.add(f"import {module}")
    return name


def _compare(page: Page, case: schema.Case, has_memory: bool) -> None:
    fresh = "memory()" if has_memory else "{}"
    page.blank()
    page.line(f"m = {fresh}", "the same once more: running may have changed its inputs")
    if case.state.inference:
        with page.block("with torch.inference_mode(False):"):
            page.line("eager, others = graph(m), inputs(m)")
    else:
        page.line("eager, others = graph(m), inputs(m)")
    page.line("expected = eager(*others)")
    if draws_random_numbers(case.graph):
        page.line('say("note", "it draws random numbers; compiled and eager may draw different ones")')
    if _differentiates(case):
        page.line("wanted = backward(expected, others)")
    page.line(f"m = {fresh}")
    page.line("exact = in_float64(graph(m), inputs(m))")
    page.line("found = differences(result, expected, exact)")
    page.line('found += differences(args, others, path="args")')
    if _differentiates(case):
        page.line('found += differences(gradients, wanted, path="gradients")')
    page.line("return found")

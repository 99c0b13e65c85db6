"""What is around a graph: modes, configuration, environment, options, and what is noted about its nodes.

settings        one thing after another as it is by default
options         the same of what the user chose for the compiler
notes           what compilers have noted about nodes, and nobody reads: all nodes at once
unused_code     code of the user's own that nothing calls any more
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from torchsleuth.case.schema import Case, Code, Compiler, Config, Entry, Function, Graph, Meta, State
from torchsleuth.case.script.compilers import ARGUMENTS
from torchsleuth.case.script.states import draws_random_numbers
from torchsleuth.config import After
from torchsleuth.reduce.graphs import replace, tensors_in
from torchsleuth.reduce.order import graphs_in
from torchsleuth.reduce.passes.editing import smaller
from torchsleuth.reduce.patches import Material, Patch, Site
from torchsleuth.run.compiling import CACHES

_DEFAULT: Final = State()
_SINGLE: Final = (
    "autocast_cache deterministic fill_uninitialised default_dtype default_device matmul_precision threads".split()
)
"""The fields of a state that are one setting each."""


# ---- settings ----------------------------------------------------------------------------------------------


def settings(case: Case, material: Material) -> Iterator[Site]:
    """State as it is by default. What hardly ever matters comes first.

    Whoever tries them does so by halves: so what can go together stands together.
    """
    if case.state.rng and not (material.values_matter and draws_random_numbers(case.graph)):
        yield [_patch("random state: none", lambda one: _with_state(one, rng=()))]
    yield from _of_surroundings(case.state)
    yield from (_without_config(one) for one in case.state.config if _is_of_caches(one))
    yield from _of_arguments(case.compiler)
    yield from _of_modes(case.state)


def _patch(words: str, change: Callable[[Case], Case]) -> Patch:
    def apply(case: Case) -> Case | None:
        made = change(case)
        return None if made == case else smaller(case, made)

    return Patch(words, apply)


def _gradients(case: Case) -> bool:
    """Whether gradients are on where they are as by default, or as near to it as they can be."""
    return _may_have_gradients(case) or (case.state.grad and not case.state.inference)


def _may_have_gradients(case: Case) -> bool:
    """Whether gradients may be on. What is compiled after AOT refuses inputs that require them then."""
    required = any(tensor.requires_grad for value in case.inputs for tensor in tensors_in(value))
    return not required or case.compiler.after is not After.AOT


def _with_state(case: Case, **changes: Any) -> Case:
    return replace(case, state=replace(case.state, **changes))


def _of_surroundings(state: State) -> Iterator[Site]:
    for variable in state.environment:
        yield [_without_item("environment", variable, f"{variable[0]}: not set")]
    for flag in state.flags:
        yield [_without_item("flags", flag, f"torch.backends.{flag.name}: as by default")]
    for name in _SINGLE:
        if getattr(state, name) != getattr(_DEFAULT, name):
            yield [_patch(f"{name.replace('_', ' ')}: as by default", _defaulted(name))]


def _of_modes(state: State) -> Iterator[Site]:
    if state.grad != _DEFAULT.grad or state.inference:
        yield [_patch("gradients, inference mode: as by default", _without_modes)]
    for cast in state.autocast:
        yield [_without_item("autocast", cast, f"autocast on {cast.device}: off")]


def _without_modes(case: Case) -> Case:
    return _with_state(case, grad=_gradients(case), inference=False)


def _defaulted(name: str) -> Callable[[Case], Case]:
    return lambda case: _with_state(case, **{name: getattr(_DEFAULT, name)})


def _without_item(name: str, item: object, words: str) -> Patch:
    """The state without one item of one of its lists."""

    def change(case: Case) -> Case:
        return _with_state(case, **{name: tuple(one for one in getattr(case.state, name) if one != item)})

    return _patch(words, change)


# ---- the compiler ------------------------------------------------------------------------------------------


def _is_needed(argument: Entry) -> bool:
    """Whether an argument is handed on to the compiler, and says something."""
    return argument.name in ARGUMENTS and argument.value not in (None, False)


def _of_arguments(compiler: Compiler) -> Iterator[Site]:
    if any(not _is_needed(one) for one in compiler.arguments):
        yield [_patch("arguments that say nothing: not given", _without_idle_arguments)]
    for argument in filter(_is_needed, compiler.arguments):
        yield [_without_entry("arguments", argument.name, f"argument {argument.name}: not given")]
    if compiler.donated is not None:
        yield [_patch("donated inputs: none", lambda case: _with_compiler(case, donated=None))]


def options(case: Case, material: Material) -> Iterator[Site]:
    """What the user chose for the compiler, as it is by default."""
    del material
    compiler = case.compiler
    if compiler.dynamic is not None:
        yield [_patch(f"dynamic={compiler.dynamic}: not given", lambda case: _with_compiler(case, dynamic=None))]
    if compiler.mode is not None:
        yield [_patch(f"mode {compiler.mode}: not given", lambda case: _with_compiler(case, mode=None))]
    yield from (_without_config(one) for one in case.state.config if not _is_of_caches(one))
    for option in compiler.options:
        yield [_without_entry("options", option.name, f"option {option.name}: not given")]


def _without_config(one: Config) -> Site:
    return [_without_item("config", one, f"{one.module}.{one.name}: as by default")]


def _is_of_caches(one: Config) -> bool:
    """Whether it switches a cache on or off. Queries use none."""
    return one.name in CACHES.get(one.module, {})


def _with_compiler(case: Case, **changes: Any) -> Case:
    return replace(case, compiler=replace(case.compiler, **changes))


def _without_idle_arguments(case: Case) -> Case:
    return _with_compiler(case, arguments=tuple(filter(_is_needed, case.compiler.arguments)))


def _without_entry(kind: str, name: str, words: str) -> Patch:
    def change(case: Case) -> Case:
        return _with_compiler(case, **{kind: tuple(one for one in getattr(case.compiler, kind) if one.name != name)})

    return _patch(words, change)


# ---- what is noted -----------------------------------------------------------------------------------------


def notes(case: Case, material: Material) -> Iterator[Site]:
    """What is noted about nodes and graphs, all of it at once; or only what says where a node came from."""
    del case, material
    yield [
        _patch("notes about nodes: none", lambda one: replace(one, graph=_without_notes(one.graph, all_of_it=True))),
        _patch("where nodes came from: left out", lambda one: replace(one, graph=_without_notes(one.graph))),
    ]


def _without_notes(graph: Graph, *, all_of_it: bool = False) -> Graph:
    nodes = tuple(replace(node, meta=_short(node.meta, all_of_it)) for node in graph.nodes)
    attributes = tuple(
        Entry(one.name, _without_notes(one.value, all_of_it=all_of_it)) if isinstance(one.value, Graph) else one
        for one in graph.attributes
    )
    graph = replace(graph, nodes=nodes, attributes=attributes)
    return replace(graph, meta=(), name=Graph(()).name) if all_of_it else graph


def _short(meta: Meta, all_of_it: bool) -> Meta:
    short = replace(meta, original_aten=None, source_fns=None, modules=None, from_node=(), dropped=())
    return replace(short, more=()) if all_of_it else short


# ---- code of the user's own --------------------------------------------------------------------------------


def unused_code(case: Case, material: Material) -> Iterator[Site]:
    """Code that nothing calls."""
    del material
    if case.code:
        yield [_patch("code that nothing calls: left out", _without_unused_code)]


def _without_unused_code(case: Case) -> Case:
    called: set[str] = set()
    kernels: set[object] = set()
    for graph in graphs_in(case.graph):
        for node in graph.nodes:
            called.add(node.target)
            called |= {one.name for one in node.args if isinstance(one, Function)}
            for entry in node.kwargs:
                if isinstance(entry.value, Function):
                    called.add(entry.value.name)
                if entry.name == "kernel_idx":
                    kernels.add(entry.value)
    operators = {"::".join(name.split(".")[2:4]) for name in called if name.startswith("torch.ops.")}

    def is_called(code: Code) -> bool:
        if code.kind == "triton kernel":
            return code.index in kernels
        return code.name in called or code.name in operators

    return replace(case, code=tuple(filter(is_called, case.code)))

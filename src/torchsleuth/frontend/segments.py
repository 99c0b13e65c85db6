"""A segment: guards, a compiled graph, and what to make of its results; compiled once, run at each call that fits.

    segment = compile_segment(machine, tail, live, ...)       at the end of a recording
    values = segment.run(live)                                later: `MISS`, or the live values at its end

The code of a segment is Python that is written here, line by line:

    def segment(L):
        try:
            s1 = L[0]                             where things lie, and checks of them, in the order of reading
            if not (type(s1) is K3): return MISS
        except GUARD_ERRORS: return MISS
        if not STATE(): return MISS               torch's global state
        if not TENSORS(s2, s7): return MISS       shapes, dtypes, ... of the graph's inputs
        o0, o1 = GRAPH(s2, s7)
        v0 = [o0]                                 what lives on
        s4.append(o1)                             what happened to the outside
        return [v0, o1]
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.frontend import guards as guarding
from torchsleuth.frontend.frames import ABSENT, Generator
from torchsleuth.frontend.generators import HandedOver, real_generator
from torchsleuth.frontend.guards import GUARD_ERRORS, MISS, Explained, Line, exactly
from torchsleuth.frontend.machine import Machine
from torchsleuth.frontend.moving import Operation, note
from torchsleuth.frontend.outside import cell_content, lookup, read, same_elements, same_keys, slot_of
from torchsleuth.frontend.positions import parts
from torchsleuth.frontend.rebuilding import Rebuilder, advanced
from torchsleuth.frontend.recorder import Input, Recorder, arrangement_of

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


@dataclass
class Segment:
    """One recording, ready to be run again."""

    run: Callable[[list[Any]], Any]
    """Gets the live values at its beginning. Gives those at its end (or what is returned), or `MISS`."""
    source: str
    names: dict[str, Any]
    lines: list[Line]
    graph: fx.GraphModule | None
    graph_name: str
    returns: bool = False
    """What `run` gives is what the call returns."""
    operation: Operation | None = None
    """What runs natively behind it. None, if it does not return: the rest of the call runs natively."""
    operands: int = 0
    """So many live values the operation takes."""
    layout: Any = None
    """The frames at its end."""
    generators: bool = False
    """Generators are at work in the frames at its end."""
    handling: int | None = None
    """Which live value is the exception that is being handled at its end."""
    raises: bool = False
    """The last live value is an exception that nobody in these frames handles."""
    next: Any = None
    """Where it goes on, if the operation pushes values and does not jump."""
    next_when_jumped: Any = None
    tensors: list[str] = field(default_factory=list)
    why_not: list[Callable[..., str]] = field(default_factory=list)

    def ends_at(self, code: Any, place: int) -> bool:
        """Whether what runs natively behind it is this instruction."""
        return (
            bool(self.layout)
            and self.operation is not None
            and (self.layout[-1].code is code and self.layout[-1].place - 1 == place)
        )

    def explain(self, live: list[Any]) -> Explained:
        """Which guard does not hold for these live values."""
        found = guarding.explain(self.lines, self.names, live)
        if found is not None:
            return found
        if not self.names["STATE"]():
            return Explained("torch's global state is the same", self.names["STATE_REASON"]())
        scope = {**self.names, "L": live}
        with contextlib.suppress(*GUARD_ERRORS):
            for line in self.lines:
                if line.target:
                    scope[line.target] = eval(line.code, scope)  # noqa: S307 - our own generated code
            tensors = [eval(code, scope) for code in self.tensors]  # noqa: S307 - our own generated code
            for why in self.why_not:
                words = why(*tensors)
                if words:
                    return Explained("the tensors are of the same kind", words)
        return Explained("all guards hold", "nothing has changed")


def at_work() -> Generator:
    """A generator whose frame is about to be made, by whoever makes the frames."""
    generator = Generator.__new__(Generator)
    generator.frame = generator.native = generator.dropped = None
    generator.running = True
    return generator


def finished(generator: Generator) -> None:
    generator.frame, generator.running = None, False


_NAMES: dict[str, Any] = {
    "MISS": MISS,
    "GUARD_ERRORS": GUARD_ERRORS,
    "ABSENT": ABSENT,
    "EXACTLY": exactly,
    "READ": read,
    "SLOT": slot_of,
    "CELL": cell_content,
    "LOOKUP": lookup,
    "SAME_KEYS": same_keys,
    "SAME_ELEMENTS": same_elements,
    "CellType": CellType,
    "FunctionType": FunctionType,
    "MethodType": MethodType,
    "partial": functools.partial,
    "Generator": Generator,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "FINISH": finished,
    "AT_WORK": at_work,
    "REAL_GENERATOR": real_generator,
    "ADVANCED": advanced,
    "ARRANGED": arrangement_of,
    "PARTS": parts,
    "SET_GRAD": torch_compat.set_grad_mode(),
}


def compile_segment(
    machine: Machine, live: list[Any], handed_over: HandedOver, *, backend: Backend, name: str, returns: bool
) -> Segment:
    """Compiles what a machine has recorded. `live`: the values that live on, or what is returned.

    Raises `CannotRebuild` if a later call could not make them. What the backend raises goes through.
    """
    recorder = machine.recorder
    recorder.sizes.closed = False
    rebuilder = Rebuilder(machine, handed_over)
    values = [rebuilder.value(each) for each in live]
    rebuilder.all_effects()
    graph = _Graph(recorder, rebuilder.outputs)
    compiled, module = graph.compiled(backend, name)
    return _written(recorder, rebuilder, graph, compiled, module, values, name, returns)


class _Graph:
    """The graph of a segment on its way to the backend."""

    def __init__(self, recorder: Recorder, outputs: list[fx.Node]) -> None:
        self.recorder = recorder
        self.graph = recorder.graph
        self.questions = [
            (each, each.left.node(), each.right.node() if hasattr(each.right, "node") else each.right)
            for each in recorder.sizes.questions
        ]
        asked = {node for _, left, right in self.questions for node in (left, right) if isinstance(node, fx.Node)}
        self.outputs = outputs
        self.graph.output(tuple(outputs))
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node not in asked and not _does_something(node):
                self.graph.erase_node(node)
        kept = set(self.graph.nodes)  # what was asked about sizes is answered first: see `_symbolic`
        self.inputs: list[Input] = [each for each in recorder.inputs if each.node in kept]
        self.shapes: Callable[..., bool] | None = None
        self.shape_words = ""

    @property
    def is_empty(self) -> bool:
        return all(node.op in ("placeholder", "output") for node in self.graph.nodes) and not self.outputs

    def compiled(self, backend: Backend, name: str) -> tuple[Callable[..., Any] | None, fx.GraphModule | None]:
        if self.is_empty and not self.recorder.dynamic:
            return None, None
        module = fx.GraphModule(torch.nn.Module(), self.graph, class_name=name)
        examples: list[Any] = [each.tensor for each in self.inputs]
        with contextlib.ExitStack() as stack:
            if self.recorder.dynamic:
                examples = self._symbolic(module, stack)
                if self.is_empty:
                    return None, None
            stack.enter_context(torch.set_grad_enabled(self.recorder.grad_at_start))
            try:
                compiled = backend(module, examples)
            except Exception as error:
                note(error, f"the backend was given the graph {name}:\n{module.code.strip()}")
                raise
        return compiled, module

    def _symbolic(self, module: fx.GraphModule, stack: contextlib.ExitStack) -> list[Any]:
        """Fake inputs with symbolic sizes; what was asked about sizes becomes a guard."""
        sizes = [_changing(each) for each in self.inputs]
        fakes = torch_compat.symbolic_inputs([each.tensor for each in self.inputs], sizes)
        asked = [(question.compare, left, right, question.answer) for question, left, right in self.questions]
        fakes.propagate(module, asked)
        for node in reversed(list(module.graph.nodes)):
            if not node.users and not _does_something(node) and node.op != "placeholder":
                module.graph.erase_node(node)
        module.recompile()
        self.shapes, self.shape_words = fakes.guard()
        stack.enter_context(fakes.tracing())
        return list(fakes.inputs)


def _changing(each: Input) -> list[bool]:
    """Which sizes of an input may be others in a later call."""
    fixed = isinstance(each.tensor, torch.nn.Parameter)
    return [not fixed and size not in (0, 1) for size in each.kind.size]


def _does_something(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return node.op == "output"
    return bool(node.meta.get("effect")) or node.target is torch_compat.set_grad_mode()


def _written(
    recorder: Recorder,
    rebuilder: Rebuilder,
    graph: _Graph,
    compiled: Callable[..., Any] | None,
    module: fx.GraphModule | None,
    values: list[str],
    name: str,
    returns: bool,
) -> Segment:
    """The code of the segment, and the segment."""
    recorder.outside.check_kinds(each.tensor for each in recorder.inputs)
    lines = recorder.guards.lines
    names = {**_NAMES, **recorder.guards.names(), "STATE": recorder.state_holds, "STATE_REASON": recorder.state_reason}
    code = ["def segment(L):"]
    if lines:
        code += ["    try:", *(f"        {line.python()}" for line in lines), "    except GUARD_ERRORS: return MISS"]
    code.append("    if not STATE(): return MISS")
    tensors = [each.source.code for each in recorder.inputs]
    why_not: list[Callable[..., str]] = []
    if tensors:
        code.append(f"    if not TENSORS({', '.join(tensors)}): return MISS")
        names["TENSORS"], why = _tensor_check(recorder)
        said = [each.source.words for each in recorder.inputs]
        why_not.append(lambda *now: why(*now, names=said))
    if recorder.dynamic:
        for number, each in enumerate(recorder.inputs):
            if any(_changing(each)):
                names[f"A{number}"] = each.kind.arrangement
                code.append(f"    if ARRANGED({each.source.code}) != A{number}: return MISS")
    if graph.shapes is not None:
        names["SHAPES"] = graph.shapes
        shaped = ", ".join(each.source.code for each in graph.inputs)
        code.append(f"    if not SHAPES({shaped}): return MISS")
        words = graph.shape_words
        why_not.append(lambda *now: f"sizes must fulfil {words}")
    if compiled is not None:
        names["GRAPH"] = compiled
        taken = ", ".join(each.source.code for each in graph.inputs)
        given = "".join(f"o{number}, " for number in range(len(graph.outputs)))
        code.append(f"    {given}{'= ' if given else ''}GRAPH({taken})")
    code += [f"    {line}" for line in (*rebuilder.body, *rebuilder.effects, *rebuilder.last)]
    grad = torch.is_grad_enabled()
    if grad is not recorder.grad_at_start or recorder.grad_in_graph is not recorder.grad_at_start:
        code.append(f"    SET_GRAD({grad})")
    code.append(f"    return {values[0]}" if returns else f"    return [{', '.join(values)}]")
    text = "\n".join(code)
    exec(compile(text, f"<{name}>", "exec"), names)
    run = names.pop("segment")
    return Segment(run, text, names, lines, module, name, returns=returns, tensors=tensors, why_not=why_not)


def _tensor_check(recorder: Recorder) -> tuple[Callable[..., bool], Callable[..., str]]:
    kinds = [each.kind for each in recorder.inputs]
    changing = [_changing(each) for each in recorder.inputs]
    dynamic = recorder.dynamic
    sizes: list[list[int | None]] = [
        [None if dynamic and free else size for size, free in zip(kind.size, changing[number], strict=True)]
        for number, kind in enumerate(kinds)
    ]
    strides: list[list[int | None]] = [
        [None] * len(kind.size) if kind.stride is None or (dynamic and any(changing[number])) else list(kind.stride)
        for number, kind in enumerate(kinds)
    ]
    return torch_compat.tensor_check([each.tensor for each in recorder.inputs], sizes, strides)

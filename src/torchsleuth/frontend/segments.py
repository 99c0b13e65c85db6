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
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.compare import clone_inputs
from torchsleuth.errors import SleuthError
from torchsleuth.frontend import guards as guarding
from torchsleuth.frontend.backends import eager
from torchsleuth.frontend.frames import ABSENT, Generator
from torchsleuth.frontend.generators import HandedOver, real_generator
from torchsleuth.frontend.guards import GUARD_ERRORS, MISS, Explained, Line, exactly
from torchsleuth.frontend.iterating import a_
from torchsleuth.frontend.machine import Machine
from torchsleuth.frontend.moving import Operation, note
from torchsleuth.frontend.outside import cell_content, lookup, read, same_keys, slot_of
from torchsleuth.frontend.positions import parts
from torchsleuth.frontend.rebuilding import Rebuilder, advanced
from torchsleuth.frontend.recorder import Input, Recorder, arrangement_of
from torchsleuth.frontend.sharing import Sharing

log = logging.getLogger("torchsleuth.frontend")

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


class BackendMisbehaved(SleuthError):
    """A backend did not keep to what backends are for."""


class GraphFailed(Exception):
    """Carries what a graph has raised, and what it was given."""

    def __init__(
        self,
        error: Exception,
        inputs: tuple[torch.Tensor, ...],
        random: torch.Tensor | None,
        versions: list[int] | None,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.inputs = inputs
        self.random = random
        """The state of random numbers before it."""
        self.has_written = versions != [] and (versions is None or versions != versions_of(*inputs))
        """Whether something was written to inputs before it has failed, or may have been."""


class BackendRaised(Exception):
    """Carries what the backend has raised: it is the user's to know of, and no fault of ours."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True)
class Check:
    """What has to hold for several tensors together."""

    name: str
    """Of the function, in the code of the segment."""
    holds: Callable[..., bool]
    tensors: list[str]
    """Expressions for its arguments."""
    why_not: Callable[..., str]
    """What does not hold, in words."""


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
    checks: list[Check] = field(default_factory=list)
    grad: bool = True
    """Whether gradients were on at its beginning."""
    repeatable: bool = True
    """The graph may be run once more, on copies: it does nothing but compute."""

    def ends_at(self, code: Any, place: int) -> bool:
        """Whether what runs natively behind it is this instruction."""
        return (
            bool(self.layout)
            and self.operation is not None
            and (self.layout[-1].code is code and self.layout[-1].place - 1 == place)
        )

    def fails_in_eager(self, failed: GraphFailed) -> bool:
        """Whether the program itself fails on this data, whatever the backend: nothing but its graph is run.

        Random numbers, and whether gradients are on, are as they were before.
        """
        if failed.random is not None:
            torch.set_rng_state(failed.random)
        torch_compat.set_grad_mode()(self.grad)
        if self.graph is None or failed.has_written or not self.repeatable:
            return False
        try:
            self.graph.forward(*clone_inputs(failed.inputs))
        except Exception:  # noqa: BLE001 - that is the question
            return True
        finally:
            torch_compat.set_grad_mode()(self.grad)
            if failed.random is not None:
                torch.set_rng_state(failed.random)
        return False

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
            for each in self.checks:
                tensors = [eval(code, scope) for code in each.tensors]  # noqa: S307 - our own generated code
                if not each.holds(*tensors):
                    return Explained("the tensors are of the same kind", each.why_not(*tensors))
        return Explained("all guards hold", "nothing has changed")


def versions_of(*tensors: torch.Tensor) -> list[int] | None:
    """How often each was written to. None if that is not known of one of them."""
    try:
        return [each._version for each in tensors]
    except RuntimeError:  # tensors of inference mode do not count
        return None


def wrong_results(backend: Backend, results: Any, wanted: int) -> BackendMisbehaved:
    """A compiled graph has returned what is no tuple of so many results."""
    found = a_(type(results))
    if isinstance(results, (tuple, list)):
        found = f"{len(results)} result{'s' * (len(results) != 1)}"
    return BackendMisbehaved(
        f"what {_name_of(backend)} compiled returned {found}",
        cause=f"the graph has {wanted} result{'s' * (wanted != 1)}, and a backend's function returns a tuple of them",
        remedy="mend the backend",
    )


def _name_of(backend: Backend) -> str:
    return f"the backend {getattr(backend, '__qualname__', None) or type(backend).__qualname__}"


def at_work() -> Generator:
    """A generator whose frame is about to be made, by whoever makes the frames."""
    generator = Generator.__new__(Generator)
    generator.frame = generator.native = generator.dropped = None
    generator.name, generator.running = "", True
    return generator


def goes_on(generator: Generator, natively: Any) -> None:
    """A generator was at work, and does now what a real one does; or nothing, if it has come to its end."""
    generator.frame, generator.native, generator.running = None, natively, False


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
    "CellType": CellType,
    "FunctionType": FunctionType,
    "MethodType": MethodType,
    "partial": functools.partial,
    "Generator": Generator,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "GOES_ON": goes_on,
    "AT_WORK": at_work,
    "REAL_GENERATOR": real_generator,
    "ADVANCED": advanced,
    "PARTS": parts,
    "RANDOM": torch.get_rng_state,
    "VERSIONS": versions_of,
    "FAILED": GraphFailed,
    "MISBEHAVED": wrong_results,
    "SET_GRAD": torch_compat.set_grad_mode(),
}


def compile_segment(
    machine: Machine, live: list[Any], handed_over: HandedOver, *, backend: Backend, name: str, returns: bool
) -> Segment:
    """Compiles what a machine has recorded. `live`: the values that live on, or what is returned.

    Raises `CannotRebuild` if a later call could not make them, and `BackendRaised`.
    """
    recorder = machine.recorder
    recorder.sizes.closed = False
    rebuilder = Rebuilder(machine, handed_over)
    values = [rebuilder.value(each) for each in live]
    rebuilder.all_effects()
    graph = _Graph(recorder, rebuilder.outputs, backend)
    compiled, module = graph.compiled(name)
    return _written(recorder, rebuilder, graph, compiled, module, values, name, returns)


class _Graph:
    """The graph of a segment on its way to the backend."""

    def __init__(self, recorder: Recorder, outputs: list[fx.Node], backend: Backend) -> None:
        self.recorder = recorder
        self.backend = backend
        self.graph = recorder.graph
        self.questions = [
            (each, *(side.node() if hasattr(side, "node") else side for side in (each.left, each.right)))
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
        self.sharing = None if backend is eager else Sharing.of([each.tensor for each in self.inputs], recorder.mutated)
        self.dynamic = recorder.dynamic and not (recorder.opaque or (self.sharing and self.sharing.found))
        """Of tensors that lie in one another, compilers get no sizes that may change; nor do operators of which nobody
        knows whether they can be run on stand-ins."""

    @property
    def is_empty(self) -> bool:
        return all(node.op in ("placeholder", "output") for node in self.graph.nodes) and not self.outputs

    def changing(self, each: Input) -> list[bool]:
        """Which sizes of an input may be others in a later call."""
        fixed = not self.dynamic or isinstance(each.tensor, torch.nn.Parameter)
        return [not fixed and size not in (0, 1) for size in each.kind.size]

    def compiled(self, name: str) -> tuple[Callable[..., Any] | None, fx.GraphModule | None]:
        if self.is_empty and not self.dynamic:
            return None, None
        module = fx.GraphModule(torch.nn.Module(), self.graph, class_name=name)
        examples: list[Any] = [each.tensor for each in self.inputs]
        with contextlib.ExitStack() as stack:
            fakes = self._symbolic(module) if self.dynamic else None
            if fakes is not None:
                examples = list(fakes.inputs)
                stack.enter_context(fakes.tracing())
            stack.enter_context(torch.set_grad_enabled(self.recorder.grad_at_start))
            compiled = None
            try:
                if not self.is_empty:
                    compiled = self.backend(module, examples)
            except Exception as error:  # noqa: BLE001 - it is raised again, where it is told from faults of ours
                note(error, f"the backend was given the graph {name}:\n{module.code.strip()}")
                raise BackendRaised(error) from None
            if not (self.is_empty or callable(compiled)):
                raise BackendRaised(
                    BackendMisbehaved(
                        f"{_name_of(self.backend)} returned {a_(type(compiled))}",
                        cause="a backend returns a function that computes what the graph does",
                        remedy="mend the backend",
                    )
                )
            if fakes is not None:
                self.shapes, self.shape_words = fakes.guard()  # the backend may have asked about sizes, too
        return compiled, module if compiled is not None else None

    def _symbolic(self, module: fx.GraphModule) -> torch_compat.SymbolicInputs | None:
        """Fake inputs with symbolic sizes, of which was asked what the recording has asked.

        None if the graph can't be run on such: then it is one for the sizes that were recorded, and no others.
        """
        sizes = [self.changing(each) for each in self.inputs]
        asked = [(question.compare, left, right, question.answer) for question, left, right in self.questions]
        try:
            fakes = torch_compat.symbolic_inputs([each.tensor for each in self.inputs], sizes)
            fakes.propagate(module, asked)
        except Exception as error:  # noqa: BLE001 - torch has no rule for some operator, or ours disagree with its
            log.debug("the sizes of %s can't stay symbolic: %s", module, error)
            self.dynamic = False
            for node in module.graph.nodes:
                node.meta.pop("example_value", None)
            return None
        for node in reversed(list(module.graph.nodes)):
            if not node.users and not _does_something(node) and node.op != "placeholder":
                module.graph.erase_node(node)
        module.recompile()
        return fakes


def _does_something(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return node.op == "output"
    return bool(node.meta.get("effect") or node.meta.get("may_fail")) or node.target is torch_compat.set_grad_mode()


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
    checks = _checks(recorder, graph)
    for each in checks:
        names[each.name] = each.holds
        code.append(f"    if not {each.name}({', '.join(each.tensors)}): return MISS")
    if compiled is not None:
        names["GRAPH"], names["BACKEND"] = compiled, graph.backend
        taken = "".join(f"{each.source.code}, " for each in graph.inputs)
        given = "".join(f"o{number}, " for number in range(len(graph.outputs)))
        code += [
            f"    random = {'RANDOM()' if recorder.draws else 'None'}",
            f"    versions = {_versions(recorder, taken)}",
            f"    try: results = GRAPH({taken})",
            f"    except Exception as error: raise FAILED(error, ({taken}), random, versions) from None",
        ]
        if given:
            code += [
                f"    try: {given}*_ = results",
                "    except (TypeError, ValueError):",
                f"        raise MISBEHAVED(BACKEND, results, {len(graph.outputs)}) from None",
            ]
    code += [f"    {line}" for line in (*rebuilder.body, *rebuilder.effects, *rebuilder.last)]
    grad = torch.is_grad_enabled()
    if grad is not recorder.grad_at_start or recorder.grad_in_graph is not recorder.grad_at_start:
        code.append(f"    SET_GRAD({grad})")
    code.append(f"    return {values[0]}" if returns else f"    return [{', '.join(values)}]")
    text = "\n".join(code)
    exec(compile(text, f"<{name}>", "exec"), names)
    run = names.pop("segment")
    return Segment(
        run,
        text,
        names,
        lines,
        module,
        name,
        returns=returns,
        checks=checks,
        grad=recorder.grad_at_start,
        repeatable=not recorder.opaque,
    )


def _versions(recorder: Recorder, taken: str) -> str:
    """Code for what tells, if the graph fails, whether it has written to its inputs before. `None`: nobody can tell."""
    if recorder.writes_silently:
        return "None"
    return f"VERSIONS({taken})" if recorder.writes_to_inputs else "[]"


def _checks(recorder: Recorder, graph: _Graph) -> list[Check]:
    """What has to hold for tensors, all together."""
    met = recorder.inputs
    checks = []
    if met:
        checks.append(_kinds(met, graph))
    moving = [each for each in met if any(graph.changing(each))]
    if moving:
        arranged = [each.kind.arrangement for each in moving]
        checks.append(
            Check(
                "ARRANGED",
                lambda *now: list(map(arrangement_of, now)) == arranged,
                _codes(moving),
                lambda *now: "the elements lie in memory in another order",
            )
        )
    if graph.sharing:
        checks.append(
            Check(
                "SHARING",
                graph.sharing.holds,
                _codes(graph.inputs),
                lambda *now: "tensors share memory in another way, and the graph writes to it",
            )
        )
    if graph.shapes is not None:
        words = f"sizes must fulfil {graph.shape_words}"
        checks.append(Check("SHAPES", graph.shapes, _codes(graph.inputs), lambda *now: words))
    return checks


def _codes(inputs: list[Input]) -> list[str]:
    return [each.source.code for each in inputs]


def _kinds(inputs: list[Input], graph: _Graph) -> Check:
    kinds = [each.kind for each in inputs]
    changing = [graph.changing(each) for each in inputs]
    sizes: list[list[int | None]] = [
        [None if free else size for size, free in zip(kind.size, frees, strict=True)]
        for kind, frees in zip(kinds, changing, strict=True)
    ]
    strides: list[list[int | None]] = [
        [None] * len(kind.size) if kind.stride is None or any(frees) else list(kind.stride)
        for kind, frees in zip(kinds, changing, strict=True)
    ]
    holds, why = torch_compat.tensor_check([each.tensor for each in inputs], sizes, strides)
    names = [each.source.words for each in inputs]
    return Check("TENSORS", holds, _codes(inputs), lambda *now: why(*now, names=names))

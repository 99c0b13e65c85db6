"""The recorder: writes one segment's graph while the interpreter runs the real thing.

    recorder.call(target, args, kwargs, run)     runs `run(*args, **kwargs)` and writes it down as a node
    recorder.node(tensor)                        the node that stands for a tensor
    recorder.size(tensor)                        the shape: numbers, or symbolic

A tensor is known by its identity for as long as it lives; the recorder does not keep intermediate tensors alive.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.frontend.auditing import Auditor, Facts
from torchsleuth.frontend.guards import Guards, Source
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.outside import Outside
from torchsleuth.frontend.sharing import memory
from torchsleuth.frontend.symbolic import Sizes, Symbolic, as_numbers, has_symbolic, product


@dataclass(frozen=True)
class Kind:
    """What guards check of a tensor, as it was when the segment first met it."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Kind:
        strided = tensor.layout is torch.strided
        return cls(
            tuple(tensor.shape), tensor.stride() if strided else None, tensor.dtype, tensor.device, tensor.requires_grad
        )

    @property
    def arrangement(self) -> Any:
        """How the elements lie in memory, whatever the sizes: the order of dimensions, or, with gaps, the strides."""
        return arrangement(self.size, self.stride)


def arrangement(size: Sequence[int], stride: Sequence[int] | None) -> Any:
    """What two tensors of different sizes have in common if they lie in memory in the same way."""
    if stride is None:
        return None
    order = sorted((number for number, each in enumerate(size) if each != 1), key=lambda number: -stride[number])
    expected = 1
    for number in reversed(order):
        if stride[number] != expected:
            return tuple(stride)
        expected *= size[number]
    return order


def arrangement_of(tensor: torch.Tensor) -> Any:
    return arrangement(tensor.shape, tensor.stride() if tensor.layout is torch.strided else None)


@dataclass(frozen=True)
class Input:
    """A tensor of the outside that the graph takes."""

    node: fx.Node
    source: Source
    tensor: torch.Tensor
    kind: Kind


class OperatorRaised(Exception):
    """What an operator has raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Recorder:
    """The graph of one segment, its guards, and what it knows of the outside."""

    def __init__(
        self,
        *,
        dynamic: bool,
        where: Callable[[], tuple[str, str]],
        handled: Callable[[], bool],
        spoiled: Callable[[str], None],
    ) -> None:
        self.graph = fx.Graph()
        self.guards = Guards()
        self.outside = Outside(self.guards)
        self.sizes = Sizes(self.graph)
        self.dynamic = dynamic
        self.inputs: list[Input] = []
        self.auditor = Auditor(self.spoil)
        self.why_spoiled = ""
        self.grad_at_start = self._grad = torch.is_grad_enabled()
        self.state_holds, self.state_reason = torch_compat.state_check()
        self._where = where
        self._handled = handled
        self._on_spoil = spoiled
        self._nodes: dict[int, fx.Node | tuple[Any, int]] = {}
        self._alive: dict[int, Any] = {}
        self.draws = False
        """Random numbers are drawn."""
        self.writes_silently = False
        """Something is written to, and its version does not tell."""
        self.opaque = False
        """Something is done of which nobody knows what it is: it must not be done twice."""
        self.mutated: list[torch.Tensor] = []
        """What operators have written to."""

    def release(self) -> None:
        """Lets go of all tensors and objects, once the segment is compiled."""
        self.inputs, self._nodes, self._alive, self.mutated = [], {}, {}, []
        self.guards, self.graph = Guards(), fx.Graph()
        self.outside = Outside(self.guards)
        self.sizes = Sizes(self.graph)

    def spoil(self, why: str) -> None:
        """The recording cannot be kept. The call itself goes on, and is right."""
        if not self.why_spoiled:
            self.why_spoiled = why
            self._on_spoil(why)

    def lose(self, why: str) -> None:
        """The same, though nobody could have known, and next time it may be otherwise: nothing is learned of it."""
        self.why_spoiled = self.why_spoiled or why

    # -- tensors and nodes

    def node(self, tensor: torch.Tensor) -> fx.Node:
        """The node that stands for this tensor. One of the outside becomes an input of the graph."""
        known = self._nodes.get(id(tensor))
        if isinstance(known, tuple):
            parent, number = known
            known = self._nodes[id(tensor)] = self.graph.call_function(
                operator.getitem, (self._resolve(parent), number)
            )
        if known is not None:
            return known
        source = self.outside.tensors.get(id(tensor))
        if source is None:
            self.spoil("a tensor is used that came from nowhere: native code made it, or keeps it")
            source = Source("ABSENT", "a tensor that came from nowhere")
        with self._at_the_front():
            node = self.graph.placeholder(f"input_{len(self.inputs)}")
        self.inputs.append(Input(node, source, tensor, Kind.of(tensor)))
        self._nodes[id(tensor)] = node
        return node

    def _resolve(self, parent: Any) -> fx.Node:
        if isinstance(parent, fx.Node):
            return parent
        above, number = parent
        return self.graph.call_function(operator.getitem, (self._resolve(above), number))

    def _at_the_front(self) -> Any:
        if self.inputs:
            return self.graph.inserting_after(self.inputs[-1].node)
        first = next(iter(self.graph.nodes), None)
        return nullcontext() if first is None else self.graph.inserting_before(first)

    def knows_kind(self, tensor: torch.Tensor) -> None:
        """Something was asked that follows from the kind of a tensor: one of the outside is guarded from now on."""
        if id(tensor) in self.outside.tensors:
            self.node(tensor)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a node computes this tensor, or is an input for it."""
        return id(tensor) in self._nodes

    def _bind(self, result: Any, node: Any) -> None:
        """From now on `node` stands for this result; if there are several, an element of `node` for each."""
        if is_a(result, torch.Tensor):
            key = id(result)
            self._nodes[key] = node
            if key not in self._alive and key not in self.outside.tensors:
                nodes, alive = self._nodes, self._alive

                def forget(_: Any) -> None:
                    nodes.pop(key, None)
                    alive.pop(key, None)

                alive[key] = weakref.ref(result, forget)
        elif is_a(result, (tuple, list)):
            for number, each in enumerate(result):
                if is_a(each, (torch.Tensor, tuple, list)):
                    self._bind(each, (node, number))

    def is_computed_from_constants(self, tensor: torch.Tensor) -> bool:
        """Whether the graph makes this tensor out of nothing but numbers: then its value never changes."""
        if not self.knows(tensor):
            return False
        todo, seen = [self.node(tensor)], set()
        while todo:
            node = todo.pop()
            if node.op == "placeholder" or node.meta.get("effect"):
                return False
            if node not in seen:
                seen.add(node)
                todo += node.all_input_nodes
        return not any(memory(each) == memory(tensor) for each in self.mutated)

    # -- calls

    def call(self, target: Any, method: bool, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        """Runs a call of torch's and writes it down: as a method of that name, or as a function."""
        fx_args, fx_kwargs = self._argument(tuple(args)), self._argument(dict(kwargs))
        before = [(each, Kind.of(each)) for each in _tensors_in((args, kwargs)) if id(each) in self.outside.tensors]
        if self.dynamic:
            args, kwargs = as_numbers(tuple(args)), as_numbers(dict(kwargs))
        with self.auditor.recorded() as facts:
            try:
                result = run(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it goes where the program handles it
                raise OperatorRaised(error) from None
        if facts.written and any(Kind.of(tensor) != kind for tensor, kind in before):
            self.spoil("an operator changed the shape of a tensor from before the graph, or that it requires gradients")
        try:
            self._write(target, method, fx_args, fx_kwargs, result, facts)
        except Exception as fault:  # noqa: BLE001 - the operator has run: the call has to go on
            self.spoil(f"writing down {target} failed: {type(fault).__name__}: {fault}")
        return result

    def _write(self, target: Any, method: bool, args: Any, kwargs: Any, result: Any, facts: Facts) -> None:
        self.graph_mode(torch.is_grad_enabled())
        node = (self.graph.call_method if method else self.graph.call_function)(target, args, kwargs)
        self._note(node, facts)
        if not (is_a(result, torch.Tensor) or result is None or _only_tensors(result)):
            self.spoil(f"{node.name} returned something else than tensors")
        self._bind(result, node)

    def graph_mode(self, grad: bool) -> None:
        """The next node runs with gradients on, or off."""
        if grad is not self._grad:
            self.graph.call_function(torch_compat.set_grad_mode(), (grad,))
            self._grad = grad

    @property
    def grad_in_graph(self) -> bool:
        """The grad mode that the graph leaves behind."""
        return self._grad

    def _note(self, node: fx.Node, facts: Facts) -> None:
        node.meta["loc"], node.meta["function"] = self._where()
        if facts.data_dependent:
            self.spoil(f"{facts.data_dependent}: its result depends on the data")
        self.draws = self.draws or facts.random
        if facts.random or facts.written or facts.opaque:
            node.meta["effect"] = True
        self.opaque = self.opaque or facts.opaque
        self.writes_silently = self.writes_silently or facts.silent
        node.meta["may_fail"] = facts.may_fail
        if facts.may_fail and self.writes_to_inputs and (self._handled() or self._has_effects()):
            self.spoil("an operator that may fail, where that is seen, behind one that writes to what is outside")
        self.mutated += facts.written

    def _has_effects(self) -> bool:
        """Whether the program has done more by now than a graph does: a graph that fails would lose that."""
        return torch.is_grad_enabled() is not self.grad_at_start or self.outside.has_changed()

    def _argument(self, value: Any) -> Any:
        if is_a(value, torch.Tensor):
            return self.node(value)
        if type(value) is Symbolic:
            return value.node()
        if type(value) not in (float, complex) and is_a(value, (float, complex)):
            return float(value) if is_a(value, float) else complex(value)  # of numpy, say: no code of a graph knows it
        if is_a(value, torch.Size):
            return tuple(self._argument(each) for each in value) if has_symbolic(value) else value
        if is_a(value, tuple):
            return tuple(self._argument(each) for each in value)
        if is_a(value, list):
            return [self._argument(each) for each in value]
        if is_a(value, dict):
            return {key: self._argument(each) for key, each in value.items()}
        if is_a(value, slice):
            return slice(self._argument(value.start), self._argument(value.stop), self._argument(value.step))
        return value

    @property
    def writes_to_inputs(self) -> bool:
        """Whether an operator has written to memory that was there before the graph."""
        written = set(map(memory, self.mutated))
        return any(memory(each.tensor) in written for each in self.inputs)

    # -- sizes

    def size(self, tensor: torch.Tensor) -> torch.Size:
        """The shape: of numbers, or, in dynamic recordings, with symbolic sizes where they may change."""
        shape = tuple.__getitem__(tensor.shape, slice(None))
        self.knows_kind(tensor)
        if not self.dynamic:
            return torch.Size(shape)
        node = self.node(tensor)
        given = node.op == "placeholder"
        if given and is_a(tensor, torch.nn.Parameter):
            return torch.Size(shape)
        return torch.Size(
            size if given and size in (0, 1) else self.sizes.of(node, number, size) for number, size in enumerate(shape)
        )

    def elements(self, tensor: torch.Tensor) -> int:
        return product(self.size(tensor))


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if is_a(value, torch.Tensor):
        return [value]
    if is_a(value, dict):
        value = value.values()
    elif not is_a(value, (tuple, list)):
        return []
    return [tensor for each in value for tensor in _tensors_in(each)]


def _only_tensors(value: Any) -> bool:
    if is_a(value, (tuple, list)):
        return all(each is None or is_a(each, torch.Tensor) or _only_tensors(each) for each in value)
    return False

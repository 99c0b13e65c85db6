"""Which operator computes something wrong, by one more compilation.

    guilty_op(reference, inputs, compile)
    op_at(reference, path)                  without one, if there is only one that it can be

Every call of the graph is taken out of it: its operands become inputs that hold what eager computed for them, its
result becomes an output. This graph of single calls is compiled as the whole was, and run; the first result that
differs from eager's is that of an operator which is wrong by itself. If there is none, the operators are only wrong
together: fused, or in the memory that they share.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.compare import Tolerance, same
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.compare.rng import is_random_call
from torchsleuth.compare.tree import tensors_in
from torchsleuth.run.checking.reference import surely_writes_nothing
from torchsleuth.run.observing.guilty import target_name

log = logging.getLogger("torchsleuth.run")

Compile = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""Takes a graph and real inputs, and returns a function that takes such inputs one by one."""

TOGETHER: Final = "no operator alone"
"""In the place of an operator: each was tried, and each is right by itself."""
_OUTPUT: Final = re.compile(r"output(?:\[(\d+)\]|$)")
_MOST_NODES: Final = 300
_MOST_BYTES: Final = 2**28
_PLAIN: Final = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class _Untold(Exception):
    """The graph cannot be taken apart."""


@dataclass(frozen=True)
class _Call:
    """One call, as eager made it."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def guilty_op(
    reference: fx.GraphModule, inputs: Sequence[Any], compile: Compile, tolerance: Tolerance | None = None
) -> tuple[str, str | None] | None:
    """The operator that is wrong by itself, and its node. `TOGETHER`, if none is. None, if that cannot be told.

    The inputs are not changed. Nothing is raised: what goes wrong here is no part of the failure.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return _search(reference, inputs, compile, tolerance or Tolerance())
    except Exception as error:  # noqa: BLE001
        log.debug("the operators could not be tried one by one: %s", error)
        return None


def op_at(reference: fx.GraphModule, path: str) -> tuple[str, str | None] | None:
    """The operator that computes this result, and its node, if it has nothing to do with any other.

    Then nobody else can be to blame, and nothing has to be compiled to know.
    """
    calls = [node for node in reference.graph.nodes if node.op.startswith("call_") and not _picks(node)]
    node = _node_at(reference, path)
    if node is None or node not in calls or (len(calls) > 1 and not surely_writes_nothing(reference)):
        return None
    if node.op == "call_module" or torch_compat.is_higher_order_op(node.target):
        return None
    returned = reference.graph.find_nodes(op="output")
    for given in node.all_input_nodes:
        if given.op not in ("placeholder", "get_attr") or not given.users.keys() <= {node, *returned}:
            return None
    name = target_name(node.target)
    return None if name is None else (name, node.name)


def _node_at(reference: fx.GraphModule, path: str) -> fx.Node | None:
    """The call whose result this is; of one that has several results, the call itself."""
    found = _OUTPUT.match(path)
    (returned,) = reference.graph.find_nodes(op="output")
    value: Any = returned.args[0]
    if found is None or isinstance(value, (tuple, list)) is (found[1] is None):
        return None
    if isinstance(value, (tuple, list)):
        place = int(found[1])
        value = value[place] if place < len(value) else None
    if not isinstance(value, fx.Node):
        return None
    return value.all_input_nodes[0] if _picks(value) else value


def _picks(node: fx.Node) -> bool:
    """Whether it only picks one of several results."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return isinstance(node.args[1], int) and torch_compat.is_op_overload(node.args[0].target)


def _search(
    reference: fx.GraphModule, inputs: Sequence[Any], compile: Compile, tolerance: Tolerance
) -> tuple[str, str | None] | None:
    if len(reference.graph.nodes) > _MOST_NODES:
        return None
    recorder = _Recorder(reference)
    recorder.run(*clone_inputs(list(inputs)))
    apart = _Apart()
    tried = [call for call in recorder.calls if apart.add(call)]
    if not tried:
        return None
    given = apart.inputs
    got = compile(apart.graph_module(), clone_inputs(given))(*clone_inputs(given))
    for call, result in zip(tried, apart.regrouped(got), strict=True):
        if not same(tensors_in(call.result), result, tolerance=tolerance):
            name = target_name(call.node.target)
            return None if name is None else (name, call.node.name)
    return None if recorder.left_out or len(tried) < len(recorder.calls) else (TOGETHER, None)


class _Recorder(fx.Interpreter):
    """Runs a graph, and keeps what each call was given and returned."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.calls: list[_Call] = []
        self.left_out = False
        """A call was made that cannot be tried by itself."""
        self._bytes = 0

    def run_node(self, n: fx.Node) -> Any:
        if not n.op.startswith("call_"):
            return super().run_node(n)
        if n.op == "call_module" or torch_compat.is_higher_order_op(n.target) or is_random_call(n.op, n.target):
            self.left_out = True
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        kept = clone_inputs([args, kwargs])
        result = super().run_node(n)
        if tensors_in(result) and not (n.target is operator.getitem and not isinstance(args[0], torch.Tensor)):
            copied = clone_inputs([result])[0]
            self._count(kept, copied)
            self.calls.append(_Call(n, kept[0], kept[1], copied))
        return result

    def _count(self, *values: Any) -> None:
        self._bytes += sum(tensor.nbytes for tensor in tensors_in(list(values)))
        if self._bytes > _MOST_BYTES:
            raise _Untold(f"its values take more than {_MOST_BYTES:,} bytes")


class _Apart:
    """The graph of single calls."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs: list[torch.Tensor] = []
        self._results: list[list[fx.Node]] = []
        self._last: fx.Node | None = None

    def add(self, call: _Call) -> bool:
        """Add a call with inputs of its own; False if it takes or returns what a graph cannot."""
        if not all(isinstance(value, _PLAIN) for value in _leaves([call.args, call.kwargs])):
            return False
        shape = call.result if isinstance(call.result, (tuple, list)) else [call.result]
        if not all(isinstance(value, (torch.Tensor, type(None))) for value in shape):
            return False
        args, kwargs = self._given(call.args), self._given(call.kwargs)
        made = self.graph.create_node(call.node.op, call.node.target, args, kwargs)
        if isinstance(call.result, torch.Tensor):
            self._results.append([made])
        else:
            places = [place for place, value in enumerate(shape) if isinstance(value, torch.Tensor)]
            self._results.append([self.graph.call_function(operator.getitem, (made, place)) for place in places])
        return True

    def graph_module(self) -> fx.GraphModule:
        self.graph.output(tuple(node for nodes in self._results for node in nodes))
        gm = fx.GraphModule({}, self.graph)
        gm.graph.lint()
        return gm

    def regrouped(self, results: Sequence[Any]) -> list[list[Any]]:
        """The results of each call."""
        rest = iter(results)
        return [[next(rest) for _ in nodes] for nodes in self._results]

    def _given(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.inputs.append(value)
            return self._placeholder(f"given_{len(self.inputs)}")
        if isinstance(value, (tuple, list)):
            return (
                type(value)(map(self._given, value)) if type(value) in (tuple, list) else tuple(map(self._given, value))
            )
        if isinstance(value, dict):
            return {key: self._given(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self._given(value.start), self._given(value.stop), self._given(value.step))
        return value

    def _placeholder(self, name: str) -> fx.Node:
        """Inputs come first, in the order in which they are asked for."""
        here = self.graph.inserting_before() if self._last is None else self.graph.inserting_after(self._last)
        with here:
            self._last = self.graph.placeholder(name)
        return self._last


def _leaves(value: Any) -> list[Any]:
    """What is in a value, tensors apart."""
    if isinstance(value, torch.Tensor):
        return []
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, slice):
        return _leaves([value.start, value.stop, value.step])
    return [value] if value is not Ellipsis else []

"""A graph kept to be run later: what the compiled function is compared with.

Compilers rewrite the graph that they are given in place, and graphs nested in it. So the graph is copied, with
its nested graphs and modules, before the compiler gets it. Tensors are not copied: parameters and constants are
the user's own.

Random operators of Inductor's are replaced by functions that compute what its code computes (`seeded`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.compare.rng import is_random
from torchsleuth.run.checking.seeded import inductor_seeds, is_stand_in, stand_in


def reference_of(gm: fx.GraphModule, *, as_inductor_draws: bool = True) -> fx.GraphModule:
    """The graph as it is now, to be run later: own nodes and own copies of nested graphs, shared tensors.

    No tensor is copied. What the nodes know beyond their calls (`node.meta`) is dropped: running needs none of it.
    Random operators of Inductor's draw as its code does; if that is not wanted, as they do when they are run eagerly.
    """
    return _Copier({}, as_inductor_draws).copy_graph(gm)


def frozen_copy(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph as it is now, to be written down later: own nodes, with what they know, and own nested graphs."""
    return _Copier({}, as_inductor_draws=False, keeps_meta=True).copy_graph(gm)


def with_tensors(gm: fx.GraphModule, swaps: Mapping[int, torch.Tensor]) -> fx.GraphModule:
    """The graph once more, with other tensors in place of its parameters, buffers and constants (by their `id`)."""
    return _Copier(swaps).copy_graph(gm)


def surely_writes_nothing(gm: fx.GraphModule) -> bool:
    """Whether no operator of the graph writes to a tensor. False also where that cannot be seen from its names."""
    return _all_calls(gm, _writes_nothing)


def surely_draws_nothing(gm: fx.GraphModule) -> bool:
    """Whether no operator of the graph draws random numbers. False also where that cannot be seen from its names."""
    return _all_calls(gm, _draws_nothing)


def _all_calls(gm: fx.GraphModule, has: Callable[[Any], bool]) -> bool:
    known = gm.meta.setdefault("torchsleuth", {})  # a reference does not change, and is asked at each call
    if has not in known:
        graphs = [module for module in gm.modules() if isinstance(module, fx.GraphModule)]
        calls = (node for graph in graphs for node in graph.graph.nodes if node.op.startswith("call"))
        known[has] = all(node.op == "call_function" and has(node.target) for node in calls)
    return bool(known[has])


def _writes_nothing(target: Any) -> bool:
    if torch_compat.is_op_overload(target):
        hidden = torch_compat.op_name(target) in _WRITE_UNSAID
        return not hidden and not torch_compat.op_is_mutable(target)
    name = torch_compat.op_name(target)
    writes = name in ("setitem", "delitem") or (name.startswith("i") and name[1:] in _IN_PLACE)
    return is_stand_in(target) or (_is_about_numbers(target) and not writes)


def _draws_nothing(target: Any) -> bool:
    return _is_about_numbers(target) or (torch_compat.is_op_overload(target) and not is_random(target))


def _is_about_numbers(target: Any) -> bool:
    """Whether it is of Python's `operator` or `math`, as calls on symbolic sizes are."""
    return getattr(target, "__module__", None) in ("_operator", "math")


_WRITE_UNSAID: Final = frozenset(
    "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm instance_norm _batch_norm_impl_index".split()
)
"""Operators that write to running averages, though their schemas do not say so."""
_IN_PLACE: Final = frozenset(
    "add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()
)  # operator.iadd and its like


class _Copier:
    """Copies graphs and the modules in them, each once, with some tensors swapped."""

    def __init__(
        self, swaps: Mapping[int, torch.Tensor], as_inductor_draws: bool = True, keeps_meta: bool = False
    ) -> None:
        self.swaps = swaps
        self.as_inductor_draws = as_inductor_draws
        self.keeps_meta = keeps_meta
        self.copies: dict[int, torch.nn.Module] = {}

    def copy_graph(self, gm: fx.GraphModule) -> fx.GraphModule:
        graph = copy.deepcopy(gm.graph)
        draws = any(stand_in(node) is inductor_seeds for node in graph.nodes)
        attributes: dict[str, Any] = {}
        for node in graph.nodes:
            node.meta = dict(node.meta) if self.keeps_meta else {}
            if node.op in ("get_attr", "call_module"):
                attributes[node.target] = self._copy(functools.reduce(getattr, node.target.split("."), gm))
            function = stand_in(node) if self.as_inductor_draws else None
            if function is not None:
                node.target = function
                node.kwargs = {} if function is inductor_seeds else {"drawn_here": draws}
        copied = fx.GraphModule(attributes, graph, type(gm).__name__)
        copied.training = gm.training
        if self.keeps_meta:
            copied.meta.update(gm.meta)
        return copied

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.swaps.get(id(value), value)
        if not isinstance(value, torch.nn.Module):
            return value
        if id(value) not in self.copies:
            self.copies[id(value)] = (
                self.copy_graph(value) if isinstance(value, fx.GraphModule) else self._copy_module(value)
            )
        return self.copies[id(value)]

    def _copy_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A module of the user's that a graph calls: its methods and attributes, with tables of its own."""
        copied = object.__new__(type(module))
        vars(copied).update({name: self._copy(value) for name, value in vars(module).items()})
        for name in {name for kind in type(module).__mro__ for name in getattr(kind, "__slots__", ())}:
            if hasattr(module, name):
                setattr(copied, name, self._copy(getattr(module, name)))
        for table in ("_parameters", "_buffers", "_modules"):
            vars(copied)[table] = {name: self._copy(value) for name, value in vars(module)[table].items()}
        return copied

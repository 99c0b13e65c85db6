"""Calls of torch: a node of the graph, a fact, or a break.

`torch_calls.py` says which function is what; this is what is done about it while a segment is recorded.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.frontend import torch_calls
from torchsleuth.frontend.iterating import Iterating, a_
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import Break
from torchsleuth.frontend.recorder import OperatorRaised
from torchsleuth.frontend.sharing import memory
from torchsleuth.frontend.symbolic import made_plain


class Operators(Iterating):
    # -- torch

    def call_torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function of torch's: recorded, or asked for a fact, or a break."""
        name = str(getattr(function, "__name__", ""))
        if torch_calls.is_fact(function):
            return self._fact(function, args, kwargs)
        if function is torch_compat.set_grad_mode():
            return self.native(function, *args)
        if name in torch_calls.DATA_DEPENDENT:
            raise Break(f"{name}() depends on the data", torch_calls.advice_for(name))
        if name in torch_calls.UNFIT:
            raise Break(f"{name}() can't be part of a graph", torch_calls.advice_for(name))
        if not torch_calls.goes_into_graphs(function):
            where = getattr(function, "__module__", None) or type(function).__module__
            raise Break(f"{where}.{name or type(function).__qualname__} is not known to be free of hidden state")
        if type(function) is FunctionType:
            self._guard_names(function)
        method = _is_method(function, name)
        if method and args and is_a(args[0], torch.Tensor):
            return self._tensor_method(args[0], name, args[1:], kwargs)
        return self.torch_call(function, False, tuple(args), kwargs)

    def _guard_names(self, function: FunctionType) -> None:
        """A leaf that is written in Python calls others by their names: that these are the same ones is guarded."""
        if not self.outside.once("names", function):
            return
        names, namespace = function.__code__.co_names, function.__globals__
        for name in names:
            if name in namespace:
                self.outside.global_(namespace, name)
            if "torch" in names and name in vars(torch) and callable(vars(torch)[name]):
                self.outside.module_attribute(torch, name)

    def _tensor_method(self, tensor: torch.Tensor, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name in torch_calls.DATA_DEPENDENT:
            raise Break(f"Tensor.{name}() depends on the data", torch_calls.advice_for(name))
        if name in torch_calls.UNFIT:
            raise Break(f"Tensor.{name}() can't be part of a graph", torch_calls.advice_for(name))
        if not torch_calls.is_plain(tensor):
            raise Break(f"a tensor of the class {type(tensor).__qualname__}")
        if name in torch_calls.FACT_METHODS:
            return self._tensor_fact(tensor, name, args, kwargs)
        if name == "storage_offset":
            return self._storage_offset(tensor)
        if name == "__getitem__":
            return self.torch_call(operator.getitem, False, (tensor, *args), kwargs)
        if name == "__setitem__":
            return self.torch_call(operator.setitem, False, (tensor, *args), kwargs)
        if name == "__iter__":
            return iter(self.unbound(tensor))
        if name.startswith("__") and name.endswith("__") and name not in _OPERATORS:
            raise Break(f"Tensor.{name} is called")
        return self.torch_call(name, True, (tensor, *args), kwargs)

    def _tensor_fact(self, tensor: torch.Tensor, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name in ("size", "__len__", "numel", "nelement") and not kwargs:
            if name in ("numel", "nelement"):
                return self.recorder.elements(tensor)
            shape = self.recorder.size(tensor)
            if name == "__len__" and shape:
                return made_plain(shape[0])
            if name == "size" and not args:
                return shape
            if name == "size" and type(args[0]) is int and -len(shape) <= args[0] < len(shape):
                return shape[args[0]]
        self.recorder.knows_kind(tensor)
        answer = self._fact(getattr(tensor, name), args, kwargs)
        self._guard_sizes(tensor, operator.methodcaller(name, *args, **kwargs), answer)
        return answer

    def _guard_sizes(self, tensor: torch.Tensor, fact: Callable[[Any], Any], answer: Any) -> None:
        """In a dynamic recording, what was answered may depend on sizes."""
        if self.recorder.dynamic and self.recorder.knows(tensor):
            self.recorder.sizes.ask_tensor(fact, self.recorder.node(tensor), answer)

    def _storage_offset(self, tensor: torch.Tensor) -> int:
        if self.outside.is_ours(tensor) and memory(tensor) in {memory(each.tensor) for each in self.recorder.inputs}:
            raise Break("storage_offset() of a view: it depends on what it is a view of")
        offset: int = self.look(tensor.storage_offset)
        self.outside.tensor_fact(tensor, ".storage_offset()", offset)
        if self.outside.is_ours(tensor):
            self._guard_sizes(tensor, torch.Tensor.storage_offset, offset)
        return offset

    def _fact(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        for each in (*args, *kwargs.values()):
            if is_a(each, torch.Tensor):
                self.recorder.knows_kind(each)
            else:
                self.outside.deep(each)
        args = [made_plain(each) for each in args]
        with self.recorder.auditor.unrecorded():
            answer = self.look(functools.partial(function, *args, **kwargs))
        if torch_calls.is_asked_again(function) and not (args or kwargs):
            self.outside.guards.exactly(f"{self.outside.guards.constant(function)}()", answer, f"{function.__name__}()")
        return answer

    def torch_call(self, target: Any, method: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that becomes a node."""
        for each in (*args, *kwargs.values()):
            if not torch_calls.can_stand_in_graph(each):
                name = target if is_a(target, str) else getattr(target, "__name__", target)
                raise Break(f"an argument of {name} is {a_(type(each))}")
            self.outside.deep(each)
        if target is operator.getitem and _is_mask(args[1]):
            raise Break(
                "indexing with a mask: the shape of the result depends on the data",
                "multiply by the mask, or torch.where",
            )
        run = functools.partial(_call_method, target) if method else target
        try:
            result = self.recorder.call(target, method, args, kwargs, run)
            self.acted = True
            return result
        except OperatorRaised as raised:
            caught = raised.error
        self.recorder.spoil(f"an operator raised {type(caught).__name__}")
        return self.raises(caught)


def _call_method(name: str, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return getattr(tensor, name)(*args, **kwargs)


_OPERATORS: Final = frozenset(
    f"__{prefix}{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"),
        *("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "div"),
    )
    for prefix in ("", "r", "i")
)


def _is_method(function: Any, name: str) -> bool:
    """Whether it is a method of tensors."""
    if is_a(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return True
    return type(function) is FunctionType and getattr(torch.Tensor, name, None) is function


def _is_mask(index: Any) -> bool:
    if is_a(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    return is_a(index, (tuple, list)) and any(map(_is_mask, index))

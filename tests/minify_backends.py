"""Backends that fail for one operator, importable by name, so that cases of theirs can be run again anywhere.

refuse__NAME        raises while compiling a graph that calls NAME, nested graphs included
symbolic__NAME      the same, but only if an input has a symbolic size
wrong__NAME         computes NAME in a wrong way (`_WRONG`)

`aot("refuse__mm")` is a backend on AOTAutograd whose compilers do that; `getattr(minify_backends, "refuse__mm")` one
that takes Dynamo's graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


def aot(name: str) -> Any:
    compiler = __getattr__(name)
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler)


def __getattr__(name: str) -> Compiler:
    kind, _, operator = name.partition("__")
    if kind not in _KINDS:
        raise AttributeError(name)
    compiler = globals().setdefault(name, _KINDS[kind](operator))
    compiler.__module__, compiler.__qualname__, compiler.__name__ = __name__, name, name
    return compiler  # type: ignore[no-any-return]


def _name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return getattr(target, "__name__", str(target))


def _calls(gm: fx.GraphModule) -> Iterator[str]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from (_name(node) for node in module.graph.nodes if node.op.startswith("call_"))


def _is_symbolic(gm: fx.GraphModule) -> bool:
    inputs = (
        node.meta.get("val", node.meta.get("example_value")) for node in gm.graph.nodes if node.op == "placeholder"
    )
    return any(isinstance(size, torch.SymInt) for one in inputs if isinstance(one, torch.Tensor) for size in one.shape)


def _refuses(operator: str, when: Callable[[fx.GraphModule], bool] = lambda gm: True) -> Compiler:
    def compiler(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if operator in _calls(gm) and when(gm):
            raise NotImplementedError(f"no lowering for {operator}")
        return gm

    return compiler


def _computes_wrong(operator: str) -> Compiler:
    class Wrong(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if n.op.startswith("call_") and _name(n) == operator:
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                return _WRONG[operator](result, *args, **kwargs)
            return result

    return lambda gm, inputs: lambda *given: Wrong(gm).run(*given)


_KINDS: dict[str, Callable[[str], Compiler]] = {
    "refuse": _refuses,
    "symbolic": lambda operator: _refuses(operator, _is_symbolic),
    "wrong": _computes_wrong,
}


def _at_three(result: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Off by one wherever the index is three."""
    mask = (index == 3).reshape(*index.shape, *[1] * (result.dim() - index.dim()))
    return torch.where(mask, result + 1, result)


_WRONG: dict[str, Callable[..., Any]] = {
    "relu_": lambda result, *_, **__: result.add_(1),
    "gather": lambda result, x, dim, index: _at_three(result, index),
    "embedding": lambda result, weight, index, *_: _at_three(result, index),
}

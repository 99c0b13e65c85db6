"""Graphs with symbolic sizes: fake inputs whose sizes may change, and the guards that follow from a graph.

fakes = symbolic_inputs(tensors, changing)
fakes.propagate(gm, questions)          runs the graph on them, and asks what was asked while it was recorded
check, words = fakes.guard()            check(*tensors): do their sizes fulfil all that was assumed?
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torchsleuth.torch_compat.names import resolve

if TYPE_CHECKING:
    import torch
    from torch import fx


class SymbolicInputs:
    """Fakes of a graph's inputs in an environment of symbols of their own."""

    def __init__(self, tensors: Sequence[torch.Tensor], changing: Sequence[Sequence[bool]]) -> None:
        environment = resolve("ShapeEnv")()
        self.mode = resolve("FakeTensorMode")(shape_env=environment, allow_non_fake_inputs=True)
        dynamic = resolve("DimDynamic")
        context, source = resolve("StatelessSymbolicContext"), resolve("ConstantSource")

        def symbols(tensor: torch.Tensor, free: Sequence[bool]) -> Any:
            base = tensor._base
            return context(
                dynamic_sizes=[dynamic.DYNAMIC if each else dynamic.STATIC for each in free],
                # No input tells the sizes of what an input is a view of.
                view_base_context=None if base is None else symbols(base, [False] * base.dim()),
            )

        self.inputs = [
            self.mode.from_tensor(
                tensor, symbolic_context=symbols(tensor, changing[number]), source=source(f"t{number}")
            )
            for number, tensor in enumerate(tensors)
        ]

    def propagate(self, gm: fx.GraphModule, questions: Sequence[tuple[Callable[..., Any], Any, Any, bool]]) -> None:
        """Run the graph on the fakes: each node gets its value, and each question about sizes its answer.

        A question is (compare, left, right, the answer that was given); either side is a node or a number.
        """
        import torch

        values: dict[Any, Any] = {}

        class Propagation(torch.fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                result = super().run_node(n)
                if n.op != "output":
                    n.meta["example_value"] = values[n] = result
                return result

        grad = torch.is_grad_enabled()
        try:
            with _silent("torch._subclasses.fake_tensor"), resolve("enable_python_dispatcher")(), self.mode:
                Propagation(gm).run(*self.inputs)
        finally:
            torch.set_grad_enabled(grad)
        for compare, left, right, answer in questions:
            if bool(compare(values.get(left, left), values.get(right, right))) is not answer:
                raise ValueError("a symbolic size disagrees with the real one")

    def guard(self) -> tuple[Callable[..., bool], str]:
        """A function of as many tensors, and what it checks, in words."""
        words = self.mode.shape_env.produce_guards_expression(self.inputs, ignore_static=False)
        if not words:
            return _always, "nothing"
        code = str(words)
        names = [f"t{number}" for number in range(len(self.inputs))]
        for name in names:
            code = code.replace(f"L['{name}']", name)
        check = eval(f"lambda {', '.join(names)}: {code}", dict(resolve("SYMPY_INTERP")))  # noqa: S307 - torch's own words
        return check, code

    def tracing(self) -> AbstractContextManager[Any]:
        """Inside, a backend sees these fakes as those of the graph."""
        context: AbstractContextManager[Any] = resolve("tracing")(resolve("TracingContext")(self.mode))
        return context


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Without the tracebacks that torch logs of what it then raises."""
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _always(*tensors: Any) -> bool:
    return True


def symbolic_inputs(tensors: Sequence[torch.Tensor], changing: Sequence[Sequence[bool]]) -> SymbolicInputs:
    """Fakes of these tensors. `changing`: for each size of each of them, whether it is symbolic."""
    return SymbolicInputs(tensors, changing)

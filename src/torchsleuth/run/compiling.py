"""How the graph of a case is given to a compiler: as it was when the case was recorded, or to another one.

After AOT, Inductor takes fake inputs and returns a function that takes one list and may empty it. After Dynamo, a
backend takes real inputs, known by their fakes, and returns a function like the graph. Backends take graphs from after
AOT, too, if that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.plain import decode_plain
from torchsleuth.case.script.compilers import ARGUMENTS, KNOWN, is_foreign
from torchsleuth.case.surroundings.options import may_be_set
from torchsleuth.config import After
from torchsleuth.run import own_code

_CACHES: Final = {
    "torch._inductor.config": {"fx_graph_cache": False, "fx_graph_remote_cache": False},
    "torch._functorch.config": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
}


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a graph."""

    function: Callable[..., Any]
    boxed: bool
    """It takes one list, which it may empty; otherwise its inputs one by one."""

    def __call__(self, inputs: list[Any]) -> Any:
        return self.function(inputs) if self.boxed else self.function(*inputs)

    @property
    def code(self) -> str:
        """What was generated; "" if that is not known."""
        return torch_compat.output_code_of(self.function) or ""


@dataclass(frozen=True)
class Compiler:
    """Compiles the graph of a case. `name`: with another compiler than its own."""

    case: schema.Case
    name: str | None = None
    trust: bool = False

    @property
    def backend(self) -> str:
        return self.case.compiler.backend if self.name is None else self.name

    def __call__(self, reader: GraphReader, gm: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile it. Whatever the compiler raises propagates."""
        case, mode = self.case, reader.fakes.mode
        fakes = reader.examples(gm)
        if self.backend == "eager":
            return Compiled(gm, False)
        with _really_compiled(), torch_compat.tracing(mode, case.origin.aot_name, case.compiler.donated):
            if case.compiler.after is After.AOT:
                if self.backend == "inductor":
                    given = {one.name: one.value for one in case.compiler.arguments if one.name in ARGUMENTS}
                    arguments = {name: decode_plain(value) for name, value in given.items()}
                    return Compiled(torch_compat.inductor_compiler()(gm, fakes, **arguments), True)
                if self.name is None and self.backend not in KNOWN:
                    function = own_code.find(self.backend)(gm, fakes)
                    return Compiled(function, bool(getattr(function, "_boxed_call", False)))
            return Compiled(self._backend()(gm, _known(mode, inputs, fakes)), False)

    def apart(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile another graph as that of the case: one that nobody has traced, called with its inputs one by one."""
        if self.backend == "eager":
            return gm
        mode = torch_compat.fake_mode(None)
        fakes = [torch_compat.as_fake(mode, one) if isinstance(one, torch.Tensor) else one for one in inputs]
        with _really_compiled(), torch_compat.tracing(mode):
            function: Callable[..., Any] = self._backend()(gm, _known(mode, inputs, fakes))
            return function

    def _backend(self) -> Callable[..., Any]:
        if is_foreign(self.backend) and ("." in self.backend or ":" in self.backend):
            return own_code.find(self.backend)
        mode, dynamic, options = None, None, {}
        if self.name is None:
            mode, dynamic = self.case.compiler.mode, self.case.compiler.dynamic
            options = {one.name: decode_plain(one.value) for one in self.case.compiler.options if self._may_set(one)}
        if self.backend == "inductor":
            return torch_compat.inductor_backend(mode, options, dynamic)
        if mode or options:
            return torch_compat.other_backend(self.backend, mode, options, dynamic)
        return torch_compat.find_backend(self.backend)

    def _may_set(self, option: schema.Entry) -> bool:
        return self.trust or may_be_set(schema.Config("torch._inductor.config", option.name, option.value))


def _known(mode: Any, inputs: Sequence[Any], fakes: Sequence[Any]) -> list[Any]:
    """The inputs as Dynamo hands them on: tensors are real, but known by their fakes; sizes are symbolic."""
    for value, fake in zip(inputs, fakes, strict=True):
        if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor):
            torch_compat.know_as(mode, value, fake)
    return [value if isinstance(value, torch.Tensor) else fake for value, fake in zip(inputs, fakes, strict=True)]


@contextmanager
def _really_compiled() -> Iterator[None]:
    """Inside, nobody takes a compiled graph out of a cache."""
    with ExitStack() as stack:
        for module, wanted in _CACHES.items():
            known = torch_compat.config_values(module)
            changes = {name: value for name, value in wanted.items() if name in known}
            stack.enter_context(torch_compat.config_patch(module, changes))
        yield

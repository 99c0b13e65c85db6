"""How the graph of a case is given to a compiler: as it was when the case was recorded, or to another one.

After AOT, Inductor takes fake inputs and returns a function that takes one list and may empty it. After Dynamo, a
backend takes real inputs, known by their fakes, and returns a function like the graph. Backends take graphs from after
AOT, too, if that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.plain import decode_plain
from torchsleuth.case.script.compilers import ARGUMENTS, KNOWN, is_foreign
from torchsleuth.case.surroundings.options import NOT_ALL, may_be_set
from torchsleuth.config import After
from torchsleuth.errors import CannotHold, in_words
from torchsleuth.run import own_code

_INDUCTOR: Final = "torch._inductor.config"
CACHES: Final = {
    _INDUCTOR: {"fx_graph_cache": False, "fx_graph_remote_cache": False},
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


class Boxed:
    """What was compiled, as a function that takes one list."""

    _boxed_call = True

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    def __call__(self, inputs: list[Any]) -> Any:
        return self._compiled(inputs)


@dataclass(frozen=True)
class Compiler:
    """Compiles the graph of a case. `name`: with another compiler than its own."""

    case: schema.Case
    name: str | None = None
    trust: bool = False
    notes: list[str] = field(default_factory=list)
    """What of the backend's options could not be had."""

    @property
    def backend(self) -> str:
        return self.case.compiler.backend if self.name is None else self.name

    def ready(self, reader: GraphReader, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[], Compiled]:
        """What compiles the graph when it is called, and does nothing else: whatever it raises is the compiler's.

        What is wrong with the case or missing here is a `SleuthError` now.
        """
        case, mode = self.case, reader.fakes.mode
        fakes = reader.examples(gm)
        if len(fakes) != len(inputs):
            raise CannotHold(
                "the graph cannot be compiled",
                cause=f"the case has {len(inputs)} inputs, and describes {len(fakes)} to the compiler",
                remedy="record the case again",
            )
        if self.backend == "eager":
            return lambda: Compiled(gm, False)
        of_aot = case.compiler.after is After.AOT  # the compiler takes fakes, and what it makes may take one list
        if of_aot and self.backend == "inductor":
            given = {one.name: decode_plain(one.value) for one in case.compiler.arguments if one.name in ARGUMENTS}
            compile = partial(torch_compat.inductor_compiler(), gm, fakes, **given)
        elif of_aot and self.name is None and self.backend not in KNOWN:
            compile = partial(own_code.find(self.backend), gm, fakes)
        else:
            of_aot = False
            compile = partial(self._backend(), gm, _known(mode, inputs, fakes))

        def run(_kept: Sequence[Any] = fakes) -> Compiled:  # the mode knows them for as long as they live
            with really_compiled(), torch_compat.tracing(mode, case.origin.aot_name, case.compiler.donated):
                function = compile()
            return Compiled(function, of_aot and bool(getattr(function, "_boxed_call", False)))

        return run

    def apart(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile another graph as that of the case: one that nobody has traced, called with its inputs one by one."""
        if self.backend == "eager":
            return gm
        mode = torch_compat.fake_mode(None)
        fakes = [torch_compat.as_fake(mode, one) if isinstance(one, torch.Tensor) else one for one in inputs]
        function: Callable[..., Any]
        with really_compiled(), torch_compat.tracing(mode):
            if self.case.compiler.after is After.AOT and self.backend == "inductor":
                function = torch_compat.inductor_compiler()(gm, fakes)
                return lambda *given: function(list(given))
            function = self._backend()(gm, _known(mode, inputs, fakes))
            return function

    def _backend(self) -> Callable[..., Any]:
        if is_foreign(self.backend) and ("." in self.backend or ":" in self.backend):
            return own_code.find(self.backend)
        mode, dynamic, options = None, None, {}
        if self.name is None:
            mode, dynamic, options = self.case.compiler.mode, self.case.compiler.dynamic, self._options()
        try:
            if self.backend == "inductor":
                return torch_compat.inductor_backend(mode, options, dynamic)
            if mode or options:
                return torch_compat.other_backend(self.backend, mode, options, dynamic)
            return torch_compat.find_backend(self.backend)
        except Exception as error:  # torch's ways to say that it knows no such backend, mode or option
            chosen = f" with mode {mode!r}" if mode else ""
            raise CannotHold(
                f"torch has no backend {self.backend}{chosen}",
                cause=in_words(error)[:300],
                remedy="install the package that registers it, or name another: --compiler",
            ) from error

    def _options(self) -> dict[str, Any]:
        """What the user chose for the backend, as far as it may be set and this torch has it."""
        known = torch_compat.config_values(_INDUCTOR) if self.case.compiler.options else {}
        found: dict[str, Any] = {}
        skipped = []
        for one in self.case.compiler.options:
            name = f"{_INDUCTOR}.{one.name}"
            if self.backend == "inductor" and one.name.replace("-", "_") not in known:
                skipped.append(f"{name} (this torch does not have it)")
            elif self.trust or may_be_set(schema.Config(_INDUCTOR, one.name, one.value)):
                found[one.name] = decode_plain(one.value)
            else:
                skipped.append(f"{name} (it could reach a command line; set only if the case is trusted)")
        if skipped:
            self.notes.append(f"{NOT_ALL}: {'; '.join(skipped)}")
        return found


def _known(mode: Any, inputs: Sequence[Any], fakes: Sequence[Any]) -> list[Any]:
    """The inputs as Dynamo hands them on: tensors are real, but known by their fakes; sizes are symbolic."""
    for value, fake in zip(inputs, fakes, strict=True):
        if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor):
            torch_compat.know_as(mode, value, fake)
    return [value if isinstance(value, torch.Tensor) else fake for value, fake in zip(inputs, fakes, strict=True)]


@contextmanager
def really_compiled() -> Iterator[None]:
    """Inside, nobody takes a compiled graph out of a cache."""
    with ExitStack() as stack:
        for module, wanted in CACHES.items():
            known = torch_compat.config_values(module)
            changes = {name: value for name, value in wanted.items() if name in known}
            stack.enter_context(torch_compat.config_patch(module, changes))
        yield

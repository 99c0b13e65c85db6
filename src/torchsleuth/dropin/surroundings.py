"""The configuration and the environment of a process, as lines of a script. Whatever the values are, they parse."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.case.plain import encode_plain
from torchsleuth.case.script.graphs import can_be_said
from torchsleuth.case.script.layout import tidy
from torchsleuth.case.script.source import value_source
from torchsleuth.case.surroundings.environment import is_secret
from torchsleuth.case.surroundings.options import equal

_IN_NAMES: Final = ("TORCH", "DYNAMO", "INDUCTOR", "TRITON")
"""What the name of a variable contains that a script sets."""
_OF_THE_MACHINE: Final = frozenset({"TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH"})
_STARTS_US: Final = ("TORCHDYNAMO_REPRO_AFTER", "TORCHDYNAMO_REPRO_LEVEL")
"""What would make a script write scripts itself."""

_MODULES: Final = (
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
)
_NOT_SET: Final = re.compile(
    r"repro_(after|level)|aot_inductor\.(repro_level|dump_aoti_minifier)|trace\.upload_tar"
    r"|enable_(remote_)?autograd_cache"
)
"""Options that would make a script write scripts itself; and a cache that we pass over, and no script comes to."""


def generate_env_vars_string(*, stable_output: bool = False) -> str:
    """Lines that set the variables of this environment that matter to torch.compile, each value exactly as it is.

    Secrets are left out. The variables that start the drop-in are removed instead: a script writes no scripts.
    """
    if stable_output:
        return "# no environment variables: the output is stable"
    lines = ["import os"]
    for name, value in os.environ.items():
        if name in _STARTS_US or name in _OF_THE_MACHINE or not any(part in name for part in _IN_NAMES):
            continue
        lines.append(f"# not set here, it may be a secret: {name}" if is_secret(name) else _assigned(name, value))
    lines += [f"os.environ.pop({name!r}, None)" for name in _STARTS_US]
    return "\n".join(lines) + "\n"


def _assigned(name: str, value: str) -> str:
    return f"os.environ[{name!r}] = {value!r}"


def generate_config_string(*, stable_output: bool = False) -> str:
    """Lines that set every option of torch's that is not as it is by default. One that cannot be said is a comment."""
    if stable_output:
        return "# no configuration: the output is stable"
    lines = [f"import {module}" for module in _MODULES]
    for module in _MODULES:
        defaults = torch_compat.config_defaults(module)
        for name, value in torch_compat.config_values(module).items():
            if not _NOT_SET.fullmatch(name) and not equal(value, defaults.get(name, value)):
                lines.append(_option(f"{module}.{name}", value))
    return "\n".join(lines) + "\n"


class Options:
    """Torch's options as they are now, to be set again for a while."""

    def __init__(self) -> None:
        self._values = {module: torch_compat.config_values(module) for module in _MODULES}

    @contextmanager
    def set(self) -> Iterator[None]:
        """Inside, they are as they were; but for those that say what is debugged."""
        with ExitStack() as stack:
            for module, values in self._values.items():
                now = torch_compat.config_values(module)
                changes = {
                    name: value
                    for name, value in values.items()
                    if not _NOT_SET.fullmatch(name) and not equal(value, now.get(name, value))
                }
                stack.enter_context(torch_compat.config_patch(module, changes))
            yield


def _option(name: str, value: object) -> str:
    for source in _sources(value):
        return f"{name} = {source}"
    return f"# not set here, it cannot be said in a script: {name} = {tidy(repr(value))[:200]}"


def _sources(value: Any) -> Iterator[str]:
    """Expressions for the value, the plainest first."""
    try:
        if equal(ast.literal_eval(repr(value)), value):
            yield repr(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    written = encode_plain(value)
    if can_be_said(written):
        yield value_source(written)

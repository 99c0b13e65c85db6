"""The text of a script in torch's form: imports, settings, `class Repro`, `load_args`, and the call of `run_repro`.

Both kinds are put together here: of graphs after AOT, and of Dynamo's. What torch's users rely on is kept word for
word: the names of classes and functions, and the lines that make inputs. Whatever is in the graph, the script parses.
"""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from torchsleuth import torch_compat
from torchsleuth.case.graphs.code import find_code
from torchsleuth.case.script.code import write_code
from torchsleuth.case.script.layout import Page
from torchsleuth.dropin.inputs import InputWriter
from torchsleuth.dropin.modules import Constants, module_source
from torchsleuth.dropin.surroundings import generate_config_string, generate_env_vars_string

_IMPORTS: Final = """\
import torch
from torch import tensor, device
import torch.fx as fx
from torch._dynamo.testing import rand_strided
from math import inf, nan
"""
_AOT_IMPORTS: Final = "import torch._inductor.inductor_prims\n"
_DYNAMO_IMPORTS: Final = "import torch._dynamo\nfrom torchsleuth.dropin.debug_utils import run_fwd_maybe_bwd\n"
_KNOW_SOURCE: Final = """
if "__compile_source__" in globals():  # it was not read from a file: let tracebacks find its lines
    import inspect, linecache

    _here = inspect.currentframe().f_code.co_filename
    linecache.cache[_here] = (len(__compile_source__), None, __compile_source__.splitlines(True), _here)
"""


def aot_script(
    gm: fx.GraphModule,
    args: Sequence[Any],
    *,
    stable_output: bool = False,
    save_dir: str | None = None,
    stable_hash: bool = False,
    distributed: bool = False,
) -> str:
    """Everything of a script for a graph after AOT up to `mod = Repro()`."""
    constants = Constants(save_dir, stable_hash=stable_hash)
    module = module_source(gm, constants, allow_unsafe_repr=True)
    writer = _inputs(gm, args, save_dir, stable_hash)
    parts = [
        _symbols(writer),
        generate_env_vars_string(stable_output=stable_output),
        _IMPORTS + _AOT_IMPORTS,
        "import torch.distributed as dist\n" if distributed else "",
        generate_config_string(stable_output=stable_output),
        _KNOW_SOURCE,
        "" if stable_output else _versions(),
        _own_code(gm),
        module,
        "\n".join(writer.lines()) + "\n",
        "mod = Repro()\n",
    ]
    return checked("\n".join(part for part in parts if part))


def dynamo_script(
    gm: fx.GraphModule,
    args: Sequence[Any],
    run: Iterable[str],
    *,
    stable_output: bool = False,
    save_dir: str | None = None,
    before: str = "",
) -> str:
    """A whole script for a graph of Dynamo's. `run`: what it does when it is run; `before`: what that needs."""
    constants = Constants(save_dir, stable_hash=True)
    module = module_source(gm, constants)
    writer = _inputs(gm, args, save_dir, True)
    parts = [
        _symbols(writer),
        generate_env_vars_string(stable_output=stable_output),
        _IMPORTS + _DYNAMO_IMPORTS,
        generate_config_string(stable_output=stable_output),
        "" if stable_output else _versions(),
        _own_code(gm),
        module,
        "mod = Repro()\n",
        "\n".join(writer.lines()) + "\n",
        before,
        "\n".join(["if __name__ == '__main__':", *(f"    {line}" for line in run)]) + "\n",
    ]
    return checked("\n" + "\n".join(part for part in parts if part))


def is_symbolic(gm: fx.GraphModule, args: Iterable[Any]) -> bool:
    """Whether sizes of a graph are symbolic: by what it is called with, or by what is known of its inputs."""
    inputs = (node for node in gm.graph.nodes if node.op == "placeholder")
    known = (node.meta.get("val", node.meta.get("example_value")) for node in inputs)
    return any(has_symbols(value) for value in (*args, *known))


def has_symbols(value: Any) -> bool:
    if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return bool(has_free_symbols(value))


def _inputs(gm: fx.GraphModule, args: Sequence[Any], save_dir: str | None, stable_hash: bool) -> InputWriter:
    writer = InputWriter(save_dir, stable_hash=stable_hash)
    names = [str(node.target) for node in gm.graph.nodes if node.op == "placeholder"]
    for name, value in zip(names, args, strict=False):
        writer.any(name, value)
    return writer


def _symbols(writer: InputWriter) -> str:
    return "".join(f"{name} = {value}\n" for name, value in sorted(writer.symbols.items()))


def _versions() -> str:
    cuda = "no GPU" if not torch.cuda.is_available() else f"CUDA {torch.version.cuda}"
    return f"# torch {torch.__version__} ({torch.version.git_version}), Python {platform.python_version()}, {cuda}\n"


def _own_code(gm: fx.GraphModule) -> str:
    """Operators and kernels of the user's own that the graph calls: their source, or how to find them."""
    codes = find_code(gm)
    if not codes:
        return ""
    page = Page()
    write_code(page, codes)
    return str(page)


def checked(text: str) -> str:
    """The text, if it is Python. It always is; whatever is not would be a fault of ours, and is not handed over."""
    ast.parse(text)
    return text


def is_script_with_state(args: Iterable[Any]) -> bool:
    """Whether an input holds the state of a backward pass, which exists only while that is compiled."""
    return any(torch_compat.is_backward_state(arg) for arg in args)

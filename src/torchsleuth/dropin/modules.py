"""A graph module as the text of a class: `class Repro(torch.nn.Module)` with `forward`.

    NNModuleToString.convert(gm)                        the class; larger constants get random data, as torch has it
    module_source(gm, Constants(save_dir))              the same, with every constant as it is

Graphs that are nested in it (`cond`, `while_loop`, checkpoints) become classes of their own before it. Modules of
torch's become calls of their constructors. What the code refers to by name is imported. The text always parses: what
cannot be said is an `UnsupportedNNModuleError`, or, where that is wanted (`allow_unsafe_repr`), a line that raises.
"""

from __future__ import annotations

import ast
import base64
import builtins
import inspect
import keyword
import logging
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import reduce
from types import ModuleType
from typing import Any, Final

import torch
from torch import fx

from torchsleuth.case.plain import encode_plain
from torchsleuth.case.script.graphs import can_be_said
from torchsleuth.case.script.source import value_source
from torchsleuth.case.storages.memory import memory
from torchsleuth.dropin import constructors
from torchsleuth.dropin.content_store import ContentStoreReader, ContentStoreWriter
from torchsleuth.dropin.places import found_again

log = logging.getLogger("torch._dynamo.debug_utils")

MAX_CONSTANT_NUMEL_INLINE: Final = 4
"""So many numbers are written as such."""
_MOST_BYTES: Final = 4096
"""So many bytes are written into a script that has no folder for its data."""
_TAB: Final = "    "
_KNOWN: Final = frozenset({"torch", "tensor", "device", "inf", "nan", "fx", "fx_pytree", "pytree"})
"""Names that the beginning of a script has brought in, or that only signatures of pytrees need."""
_RANDOM: Final = ("torch.randn(", "torch.randint(")
"""How it begins, if the data of a tensor is made up."""
_STORED: Final = "_sleuth_stored"
"""Marks a tensor whose data is what it was."""


class UnsupportedNNModuleError(AssertionError):
    """A module that cannot be written as text."""


# ---- constants -------------------------------------------------------------------------------------------


class Constants:
    """How tensors that belong to a graph are written: small ones as numbers, others by their bytes in a store.

    Without a folder, a few kilobytes go into the script; of the rest only size and dtype are kept, as torch has it.
    """

    def __init__(self, save_dir: str | None = None, *, stable_hash: bool = False, keep: bool = True) -> None:
        """`keep`: data is kept as well as it can be. Otherwise only numbers that can be written out are."""
        self._store = None if save_dir is None else ContentStoreWriter(save_dir, stable_hash=stable_hash)
        self.keep = keep
        self.save_dir = save_dir
        self.used = False
        """Whether the script needs the function that reads constants."""

    def source(self, tensor: torch.Tensor) -> str:
        """An expression for the tensor."""
        plain = tensor.detach()
        numbers = self._numbers(plain)
        if numbers is not None:
            return numbers
        if self.keep and plain.layout == torch.strided and plain.device.type != "meta" and not plain.is_quantized:
            kept = self._kept(plain)
            if kept is not None:
                self.used = True
                return kept
        return _random(plain)

    def _numbers(self, tensor: torch.Tensor) -> str | None:
        if tensor.numel() > MAX_CONSTANT_NUMEL_INLINE or tensor.layout != torch.strided or tensor.is_quantized:
            return None
        if tensor.device.type == "meta":
            return None
        if tensor.numel() == 0:
            return _on(f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype})", tensor.device)
        told = tensor.dtype in (torch.float32, torch.int64, torch.bool)
        said = f"tensor({_listed(tensor.tolist())}{'' if told else f', dtype={tensor.dtype}'})"
        if _makes(said, tensor.cpu()) or not self.keep:
            return _on(said, tensor.device)
        return None

    def _kept(self, tensor: torch.Tensor) -> str | None:
        place = f"{tuple(tensor.shape)}, {tuple(tensor.stride())}, {tensor.dtype}, {tensor.storage_offset()}"
        storage = tensor.untyped_storage()
        where = "" if tensor.device.type == "cpu" else f", device={str(tensor.device)!r}"
        if self._store is not None:
            digest = self._store.write_storage(storage)
            return f"stored_constant({digest!r}, {place}, save_dir={self.save_dir!r}{where})"
        if storage.nbytes() > _MOST_BYTES:
            return None
        text = base64.b64encode(bytes(memory(storage.cpu()))).decode()
        return f"stored_constant(None, {place}, data={text!r}{where})"


def stored_constant(
    digest: str | None,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    offset: int = 0,
    *,
    save_dir: str | None = None,
    data: str = "",
    device: str = "cpu",
) -> torch.Tensor:
    """A constant of a script, bit for bit: from the store in `save_dir`, or from the text of the script."""
    if digest is not None:
        storage = ContentStoreReader(found_again(save_dir or "")).read_storage(digest, device=device)
    else:
        raw = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.uint8)
        storage = raw.to(device).untyped_storage()
    found = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)
    setattr(found, _STORED, True)
    return found


def with_state(module: torch.nn.Module, state: dict[str, torch.Tensor], *, training: bool = True) -> torch.nn.Module:
    """A module of a script, with the parameters and buffers that it had."""
    module.load_state_dict(state, strict=False)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if name in state:
            setattr(value, _STORED, True)
    return module.train(training)


def has_its_data(tensor: torch.Tensor) -> bool:
    """Whether a constant has the values that it had: it was stored, or it is small enough to be written out."""
    return tensor.numel() <= MAX_CONSTANT_NUMEL_INLINE or getattr(tensor, _STORED, False) is True


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_listed, value))}]"
    if isinstance(value, complex):
        return f"complex({_listed(value.real)}, {_listed(value.imag)})"
    return repr(value)


def _makes(source: str, tensor: torch.Tensor) -> bool:
    """Whether an expression of numbers gives exactly this tensor, NaN payloads and the signs of zeros included."""
    names: dict[str, Any] = {"tensor": torch.tensor, "torch": torch, "nan": math.nan, "inf": math.inf}
    made: torch.Tensor = eval(source, names)  # noqa: S307 - of our own making: numbers alone
    if (made.dtype, made.shape, made.stride()) != (tensor.dtype, tensor.shape, tensor.stride()):
        return False
    ours, theirs = (one.contiguous().flatten().view(torch.uint8) for one in (made, tensor))
    return torch.equal(ours, theirs)


def _random(tensor: torch.Tensor) -> str:
    """What stands for a tensor whose data is not kept: the words by which torch's own tool says so."""
    shape = list(tensor.shape)
    if tensor.is_floating_point():
        return _on(f"torch.randn({shape}, dtype={tensor.dtype})", tensor.device)
    return _on(f"torch.randint(1, size={shape}, dtype={tensor.dtype})", tensor.device)


def _on(source: str, device: torch.device) -> str:
    return source if device.type == "cpu" else f'{source}.to("{device}")'


# ---- the class -------------------------------------------------------------------------------------------


class NNModuleToString:
    """Torch's name for it."""

    safe_reprs: Final = constructors.SAFE

    @staticmethod
    def can_convert_to_string(gm: fx.GraphModule) -> bool:
        """Whether every module in the graph module can be written. Those that cannot are logged."""
        lost = [module for _, module in gm.named_children() if not _is_sayable(module)]
        if lost:
            log.warning("these modules cannot be written as text: %s", lost)
        return not lost

    @staticmethod
    def convert(gm: fx.GraphModule, *, allow_unsafe_repr: bool = False) -> str:
        """The class `Repro`. Larger constants get random data: there is no folder to keep them in."""
        return module_source(gm, Constants(keep=False), allow_unsafe_repr=allow_unsafe_repr)


def module_source(gm: fx.GraphModule, constants: Constants, *, allow_unsafe_repr: bool = False) -> str:
    """The class `Repro` for a graph module, with what has to come before it."""
    text = _Classes(constants, allow_unsafe_repr).written(gm)
    head = "\nfrom torch.nn import *\n"
    if constants.used:
        head += "from torchsleuth.dropin.debug_utils import stored_constant\n"
    return head + text


class _Classes:
    """The classes for a graph and those inside it."""

    def __init__(self, constants: Constants, allow_unsafe_repr: bool) -> None:
        self._constants = constants
        self._unsafe = allow_unsafe_repr
        self._imports: dict[str, None] = {}
        self._before: list[str] = []
        self._names: dict[int, str] = {}
        self._taken: set[str] = {"Repro", *vars(torch.nn)}

    def written(self, gm: fx.GraphModule) -> str:
        top = self._class(gm, "Repro")
        imports = "".join(f"{line}\n" for line in self._imports)
        return imports + "".join(self._before) + top

    def _class(self, gm: fx.GraphModule, name: str) -> str:
        lines = [line for path, value in _attributes(gm) for line in self._attribute(path, value)]
        body = "".join(f"{_TAB * 2}{line}\n" for line in lines)
        head = f"class {name}(torch.nn.Module):\n{_TAB}def __init__(self) -> None:\n{_TAB * 2}super().__init__()\n"
        return f"{head}{body}\n{self._forward(gm)}\n"

    def _forward(self, gm: fx.GraphModule) -> str:
        written = gm.graph.python_code("self")
        for name, value in written.globals.items():
            if re.search(rf"\b{re.escape(name)}\b", written.src):
                self._bring(name, value)
        code = written.src
        if name := _unsayable(code):
            raise UnsupportedNNModuleError(f"the code of the graph cannot be written: {name}")
        lines = [line.rstrip() for line in code.strip().splitlines()]
        return textwrap.indent("\n".join(lines), _TAB) + "\n"

    def _bring(self, name: str, value: Any) -> None:
        """See that a name means in the script what it means in the graph."""
        if name in _KNOWN or getattr(builtins, name, None) is value:
            return
        if isinstance(value, ModuleType):
            said = f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
            self._imports[said] = None
            return
        module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module and own and _found(module, own) is value and module != "__main__":
            self._imports[f"import {module}"] = None
            self._imports[f"{name} = {module}.{own}"] = None
        elif value is type(None):
            self._imports[f"{name} = type(None)"] = None
        elif inspect.isfunction(value) and is_name(value.__name__):  # its source comes before the class
            self._imports[f"{name} = {value.__name__}"] = None
        elif callable(value) and not isinstance(value, type):
            self._imports["from torchsleuth.dropin.debug_utils import lost_module"] = None
            self._imports[f"{name} = lost_module({repr(value)!r})"] = None
        else:  # of an annotation
            self._imports[f"{name} = None"] = None

    # ---- what the graph refers to ----------------------------------------------------------------------------

    def _attribute(self, path: str, value: Any) -> Iterator[str]:
        *parents, name = path.split(".")
        home = "self"
        for parent in parents:
            yield f"if not hasattr({home}, {parent!r}): {_set(home, parent, 'Module()')}"
            home = _get(home, parent)
        if isinstance(value, torch.nn.Module):
            yield _set(home, name, self._module(value))
        elif isinstance(value, torch.nn.Parameter):
            yield _set(home, name, f"torch.nn.Parameter({self._parameter(value)})")
        elif isinstance(value, torch.Tensor):
            yield f"{home}.register_buffer({name!r}, {self._constants.source(value)})"
        elif can_be_said(written := encode_plain(value)):
            yield _set(home, name, value_source(written))
        else:
            yield from self._lost(home, name, value)

    def _parameter(self, value: torch.nn.Parameter) -> str:
        grad = "" if value.requires_grad else ", requires_grad=False"
        kept = self._constants.source(value)
        if kept.startswith(_RANDOM) and value.device.type != "cpu":
            kept = f'torch.randn({list(value.shape)}, dtype={value.dtype}, device="{value.device}")'
        return f"{kept}{grad}"

    def _module(self, module: torch.nn.Module) -> str:
        if isinstance(module, fx.GraphModule):
            return f"{self._nested(module)}()"
        source = constructors.source_of(module)
        if source is None:
            if not self._unsafe:
                raise UnsupportedNNModuleError(f"this module cannot be written as text: {module!r}")
            if _parses(repr(module)):
                return repr(module)
            self._imports["from torchsleuth.dropin.debug_utils import lost_module"] = None
            return f"lost_module({repr(module)!r})"
        device = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        return self._with_state(module, _on(source, device))

    def _with_state(self, module: torch.nn.Module, source: str) -> str:
        """The call of a constructor, with the state that the module has, if that can be kept."""
        tensors = module.state_dict() if self._constants.keep else {}
        kept = {name: self._constants.source(value) for name, value in tensors.items()}
        kept = {name: said for name, said in kept.items() if not said.startswith(_RANDOM)}
        if not self._constants.keep or (not kept and module.training):
            return source
        self._imports["from torchsleuth.dropin.debug_utils import with_state"] = None
        state = ", ".join(f"{name!r}: {said}" for name, said in kept.items())
        return f"with_state({source}, {{{state}}}, training={module.training})"

    def _nested(self, gm: fx.GraphModule) -> str:
        if id(gm) not in self._names:
            wanted = f"graph_{len(self._names)}"
            while wanted in self._taken:
                wanted += "_"
            self._taken.add(wanted)
            self._names[id(gm)] = wanted
            self._before.append(self._class(gm, wanted) + "\n")
        return self._names[id(gm)]

    def _lost(self, home: str, name: str, value: Any) -> Iterator[str]:
        kind = type(value).__qualname__
        if not self._unsafe:
            raise UnsupportedNNModuleError(f"{home}.{name} is a {kind}, which cannot be written as text")
        yield f"{_set(home, name, 'None')}  # it was a {kind}, which cannot be written here"


class _Lost(torch.nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedNNModuleError(f"put here what printed as {self._text}")


def lost_module(text: str) -> torch.nn.Module:
    """Stands in a script for what could not be written and is called, until somebody puts the right thing there."""
    return _Lost(text)


def _attributes(gm: fx.GraphModule) -> Iterator[tuple[str, Any]]:
    """What the module of a graph has: its children, buffers and parameters in torch's order, then what else is used.

    A path into a child that is written as a whole is the child's own.
    """
    whole = {name: child for name, child in gm.named_children() if _is_written_whole(child)}
    seen: set[str] = set()
    for name, child in whole.items():
        seen.add(name)
        yield name, child
    for table in (gm._buffers, gm._parameters):
        for name, value in table.items():
            if value is not None:
                seen.add(name)
                yield name, value
    for node in gm.graph.nodes:
        path = str(node.target)
        if node.op in ("get_attr", "call_module") and path not in seen and path.split(".")[0] not in whole:
            seen.add(path)
            yield path, reduce(getattr, path.split("."), gm)


def _is_written_whole(module: torch.nn.Module) -> bool:
    return type(module) is not torch.nn.Module  # those only hold what the graph asks for by a path


def _is_sayable(module: torch.nn.Module) -> bool:
    whole = _is_written_whole(module) and not isinstance(module, fx.GraphModule)
    return not whole or constructors.source_of(module) is not None


def _found(module: str, name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


_OBJECT = re.compile(r"<[\w.]+( [^<>]*)?>")


def _unsayable(code: str) -> str:
    """What in the code of a graph is no Python; "" if all of it is."""
    if _parses(code):
        return ""
    found = _OBJECT.search(code)
    return found[0] if found is not None else "it does not parse"


def _parses(code: str) -> bool:
    try:
        ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _set(home: str, name: str, source: str) -> str:
    """A statement that gives an object an attribute, whatever it is called: `nn.Sequential` counts its children."""
    return f"{home}.{name} = {source}" if is_name(name) else f"setattr({home}, {name!r}, {source})"


def _get(home: str, name: str) -> str:
    return f"{home}.{name}" if is_name(name) else f"getattr({home}, {name!r})"


def is_name(text: str) -> bool:
    """Whether the text can be a name in a script."""
    return text.isidentifier() and not keyword.iskeyword(text)

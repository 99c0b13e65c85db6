"""Modules of torch.nn that a graph calls as a whole, as data, and back.

A module is its class (of `torch.nn`, nothing else), the plain attributes that its constructor set, its parameters,
buffers and children. It is made again without running a constructor. Modules of the user's own, and modules with
hooks, are code; they are noticed instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.plain import notice
from torchsleuth.errors import BadCase


def encode(module: torch.nn.Module, value: Callable[[object], schema.Value]) -> schema.Module | schema.Noticed:
    """The module as data; `value` writes what it holds."""
    name = type(module).__qualname__
    if _classes().get(name) is not type(module):
        return notice(module, "it is a module of the user's own, called as a whole")
    parts = torch_compat.module_parts(module)
    if parts.hooked:
        return notice(module, "it has hooks, which are code of the user's own")

    def entries(those: dict[str, Any]) -> tuple[schema.Entry, ...]:
        return tuple(schema.Entry(key, value(each)) for key, each in those.items())

    return schema.Module(
        name,
        entries(parts.attributes),
        entries(parts.parameters),
        entries(parts.buffers),
        tuple(sorted(parts.transient)),
        entries(parts.children),
    )


def decode(record: schema.Module, value: Callable[[schema.Value, str], Any], file: str, field: str) -> torch.nn.Module:
    """The module again. No constructor runs; `value` reads what it holds."""
    kind = _classes().get(record.type)

    def entries(those: tuple[schema.Entry, ...], name: str, type_: type) -> dict[str, Any]:
        made = {each.name: value(each.value, f"{name}.{each.name}") for each in those}
        for key, each in made.items():
            if not isinstance(each, (type_, type(None))) or (not key.isidentifier() and not key.isdigit()):
                raise _bad(f"{name} has {key!r}, which does not belong there", file, field)
        return made

    if kind is None:
        raise _bad(f"{record.type} is not a module of torch.nn", file, field)
    return torch_compat.new_module(
        kind,
        torch_compat.ModuleParts(
            entries(record.attributes, "attributes", object),
            entries(record.parameters, "parameters", torch.nn.Parameter),
            entries(record.buffers, "buffers", torch.Tensor),
            frozenset(record.transient),
            entries(record.children, "children", torch.nn.Module),
        ),
    )


@functools.cache
def _classes() -> Mapping[str, type[torch.nn.Module]]:
    return torch_compat.module_classes()


def _bad(cause: str, file: str, field: str) -> BadCase:
    return BadCase(
        "a module is not what it has to be",
        cause=cause,
        remedy="if the file was edited or damaged, get it again from where it came from",
        file=file,
        field=field,
    )

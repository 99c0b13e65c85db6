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
from torchsleuth.errors import GET_IT_AGAIN, BadCase, in_words


def encode(module: torch.nn.Module, value: Callable[[object], schema.Value]) -> schema.Module | schema.Noticed:
    """The module as data; `value` writes what it holds."""
    name = type(module).__qualname__
    if _classes().get(name) is not type(module):
        return notice(module, "it is a module of the user's own, called as a whole")
    parts = torch_compat.module_parts(module)
    if any(_is_taken(type(module), key) for key in parts.attributes):
        return notice(module, "an attribute of the user's own stands before one of its class")
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
    kind = check(record, file, field)

    def entries(those: tuple[schema.Entry, ...], name: str, type_: type) -> dict[str, Any]:
        made = {each.name: value(each.value, f"{name}.{each.name}") for each in those}
        for key, each in made.items():
            if not isinstance(each, (type_, type(None))):
                raise _bad(f"{name} has {key!r}, which does not belong there", file, field)
        return made

    parts = torch_compat.ModuleParts(
        entries(record.attributes, "attributes", object),
        entries(record.parameters, "parameters", torch.nn.Parameter),
        entries(record.buffers, "buffers", torch.Tensor),
        frozenset(record.transient),
        entries(record.children, "children", torch.nn.Module),
    )
    try:
        return torch_compat.new_module(kind, parts)
    except Exception as error:  # a class may look at its parts, and stumble over what is not like its own
        raise _bad(f"{record.type} cannot be made of these parts: {in_words(error)}", file, field) from error


def check(record: schema.Module, file: str = "", field: str = "") -> type[torch.nn.Module]:
    """The class of a module, if it is torch's own and nothing in the record stands before what the class defines."""
    kind = _classes().get(record.type)
    if kind is None:
        raise _bad(f"{record.type} is not a module of torch.nn", file, field)
    for entry in (*record.attributes, *record.parameters, *record.buffers, *record.children):
        if _is_taken(kind, entry.name):
            raise _bad(f"{entry.name!r} is a name that {record.type} has a use for", file, field)
    return kind


def _is_taken(kind: type[torch.nn.Module], name: str) -> bool:
    """Whether an attribute of that name would change what the module does, or hide a part of it."""
    return name != "training" and (hasattr(kind, name) or name in _of_every_module() or name.startswith("__"))


@functools.cache
def _of_every_module() -> frozenset[str]:
    return frozenset(vars(torch.nn.Module()))


@functools.cache
def _classes() -> Mapping[str, type[torch.nn.Module]]:
    return torch_compat.module_classes()


def _bad(cause: str, file: str, field: str) -> BadCase:
    return BadCase(
        "a module is not what it has to be",
        cause=cause,
        remedy=GET_IT_AGAIN,
        file=file,
        field=field,
    )

"""What of a JSON document the types of the schema do not have: what a newer version of the format has added to it.

`prune` goes through a document with the types in hand, takes that out, and says what it was. It is called for cases of
newer versions only.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec

from torchsleuth.case import schema


def prune(value: Any, kind: Any, lost: list[str], path: str = "") -> Any:
    """The value without the fields that its type does not have; what was taken out is added to `lost`.

    A value of a case that is of an unknown sort becomes a `Noticed`: the case is still good for what does not need it.
    """
    if isinstance(value, dict):
        struct = _struct_for(value, kind)
        if struct is not None:
            return _prune_fields(value, struct, lost, path)
        if kind == schema.Value:
            sort = str(value.get("is"))[:80]
            lost.append(f"{path.removeprefix('.')} (a value of the sort {sort!r})")
            return {"is": "noticed", "type": sort, "reason": "it is of a sort that only a newer torchsleuth knows"}
    elif isinstance(value, list):
        kinds = _kinds_of_items(value, kind)
        if kinds is not None:
            if len(value) > len(kinds):
                lost.append(f"{path.removeprefix('.')} (more than the {len(kinds)} parts it should have)")
            return [
                prune(part, part_kind, lost, f"{path}[{index}]") if isinstance(part, (dict, list)) else part
                for index, (part, part_kind) in enumerate(zip(value, kinds, strict=False))
            ]
    return value


def _prune_fields(value: dict[str, Any], struct: type[msgspec.Struct], lost: list[str], path: str) -> dict[str, Any]:
    fields = _fields(struct)
    tag = struct.__struct_config__.tag_field
    lost.extend(f"{path}.{name}".removeprefix(".")[:200] for name in value if name not in fields and name != tag)
    return {
        name: prune(part, fields[name], lost, f"{path}.{name}") if name in fields else part
        for name, part in value.items()
        if name in fields or name == tag
    }


def _kinds_of_items(value: list[Any], kind: Any) -> Sequence[Any] | None:
    """The types of the items of a list, if the list is a struct or a tuple."""
    struct = _struct_for(value, kind)
    if struct is not None:
        return list(_fields(struct).values())
    for each in _members(kind):
        if typing.get_origin(each) is tuple:
            kinds = typing.get_args(each)
            many = len(kinds) == 2 and kinds[1] is Ellipsis
            return [kinds[0]] * len(value) if many else kinds
    return None


def _struct_for(value: Any, kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a value is meant to be: the type itself, or the member of a union that its tag names."""
    for each in _members(kind):
        config = getattr(each, "__struct_config__", None)
        if config is None:
            continue
        if config.array_like:
            if isinstance(value, list):
                return typing.cast("type[msgspec.Struct]", each)
        elif isinstance(value, dict) and (config.tag is None or value.get(config.tag_field) == config.tag):
            return typing.cast("type[msgspec.Struct]", each)
    return None


@functools.lru_cache(maxsize=256)
def _members(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, typing.ForwardRef):
        kind = vars(schema)[kind.__forward_arg__]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(member for each in typing.get_args(kind) for member in _members(each))
    return (kind,)


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(struct)

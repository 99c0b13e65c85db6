"""What a list says about a case: a few fields of it, read without the rest being looked at."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from torchsleuth.case.format.reading import Sealed
from torchsleuth.errors import BadCase, in_words

_LONGEST = 200


@dataclass(frozen=True)
class Summary:
    """A case in a few words."""

    failure: str = ""
    """What went wrong, in one line. Nothing, if nothing is recorded."""
    graph: str = ""
    """What messages call the graph."""
    nodes: int = 0
    nbytes: int = 0
    """How many bytes its tensors have."""
    created: str | None = None
    earlier: bool = False
    """It is there only because another case has it in its history."""
    history: tuple[str, ...] = ()
    """The ids of the cases that it has in its own."""


class _Signature(msgspec.Struct):
    kind: str
    stage: str = ""
    types: tuple[str, ...] = ()
    message: str = ""
    symptom: str | None = None


class _Failure(msgspec.Struct):
    signature: _Signature
    message: str = ""


class _Graph(msgspec.Struct):
    nodes: list[msgspec.Raw]
    name: str = ""


class _Earlier(msgspec.Struct):
    case: str | None = None


class _Origin(msgspec.Struct):
    graph: str = ""
    created: str | None = None
    earlier: bool = False
    history: tuple[_Earlier, ...] = ()


class _Storage(msgspec.Struct):
    nbytes: int


class _Case(msgspec.Struct):
    graph: _Graph
    origin: _Origin
    storages: list[_Storage] = []
    failure: _Failure | None = None


def summarise(sealed: Sealed, file: str) -> Summary:
    """The few fields that a list shows. Other fields may be wrong, or of a newer version: that is found on reading."""
    try:
        case = msgspec.json.decode(sealed.body, type=_Case)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadCase(
            "a part of the case is not what it has to be",
            cause=in_words(error),
            remedy="`sleuth check-file` says more",
            file=file,
        ) from error
    return Summary(
        failure=_failure(case.failure) if case.failure else "",
        graph=case.origin.graph or case.graph.name,
        nodes=len(case.graph.nodes),
        nbytes=sum(storage.nbytes for storage in case.storages),
        created=case.origin.created,
        earlier=case.origin.earlier,
        history=tuple(one.case for one in case.origin.history if one.case is not None),
    )


def _failure(failure: _Failure) -> str:
    signature = failure.signature
    what = " ".join(filter(None, (signature.kind, signature.types[0] if signature.types else signature.symptom)))
    where = f" ({signature.stage})" if signature.stage else ""
    said = next((line.strip() for line in (failure.message or signature.message).splitlines() if line.strip()), "")
    line = f"{what}{where}: {said}" if said else what + where
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."

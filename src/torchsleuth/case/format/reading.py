"""Cases as bytes and back: the file `case.json`.

    encode(case) -> bytes       the same bytes for the same case, wherever it is written
    decode(data) -> Case        a `CaseError` that names the file and the field, if anything is wrong with it
    unseal(data) -> Sealed      only that the bytes are the ones that were written; for listing many cases

The file is one JSON object, one line a node:

    {"format":"torchsleuth.case","version":1,"digest":"b3-<64 hex digits>","case":{
    "graph":{"is":"graph","nodes":[
    {"name":"x","op":"placeholder","target":"x"},
    ...

The digest covers the other two fields of the header and every byte of the body. The header has exactly one way to be
written, so that no byte of the file can change unnoticed; it is the same in every version of the format.

A case of a newer version is read as far as it can be: what this version does not know is left out, and a
`NewerCaseWarning` says what that is. Reading a case executes nothing and imports nothing, and needs no torch.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from torchsleuth.case.format.checking import check
from torchsleuth.case.format.digests import Hasher, is_digest
from torchsleuth.case.format.pruning import prune
from torchsleuth.case.schema import FORMAT, VERSION, Case
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CannotHold, HashMismatch, NewerCase, in_words

MAX_BYTES: Final = 256 * 2**20
"""The largest file that is read as a case."""

_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, MemoryError)
_PLACE = re.compile(r" - at `\$\.([^`]+)`")

__all__ = ["MAX_BYTES", "NewerCaseWarning", "Sealed", "VersionWarning", "check", "decode", "encode", "seal", "unseal"]


Version: TypeAlias = int | str | msgspec.UnsetType | None
"""What can stand where the version does. UNSET: nothing does."""


class VersionWarning(UserWarning):
    """A case has no version, or one that never was; it was read as one of today's."""


class NewerCaseWarning(VersionWarning):
    """A newer torchsleuth wrote a case; the message says what of it this one leaves out."""


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    format: str
    digest: str
    case: msgspec.Raw
    version: Version = msgspec.UNSET


class _Start(msgspec.Struct, frozen=True):
    """The header as it is written: its fields in their order, the body left empty."""

    format: str
    version: Version
    digest: str


@dataclass(frozen=True)
class Sealed:
    """A case whose bytes are the ones that were written. What they say has not been looked at."""

    version: int | str | None
    digest: str
    body: msgspec.Raw


# ---- writing ---------------------------------------------------------------------------------------------


def encode(case: Case) -> bytes:
    """The bytes of a case. It is checked first: what cannot be read back is not written."""
    try:
        check(case)
    except BadCase as error:
        raise CannotHold(
            error.what.removeprefix(f"{error.field}: "),
            cause=error.cause,
            remedy="report this with the message: torchsleuth would not read back what it writes here",
            field=error.field,
        ) from error
    try:
        body = _in_lines(case)
    except UnicodeEncodeError as error:
        raise CannotHold(
            "a text of the case has no UTF-8 form",
            cause=f"it holds a lone surrogate: {error.object[max(0, error.start - 20) : error.end]!r}",
            remedy="escape it where the case is made: text.encode(errors='backslashreplace').decode()",
        ) from error
    data = seal(body)
    if len(data) > MAX_BYTES:
        raise CannotHold(
            f"the case has {len(data):,} bytes without its tensors",
            cause=f"a case has at most {MAX_BYTES:,}",
            remedy="compile a smaller part of the program, or report this with the size of the graph",
        )
    return data


def seal(body: bytes, version: Version = VERSION, format: str = FORMAT) -> bytes:
    """Put the header around a body."""
    return b"%s%s}\n" % (_start(format, version, _digest(format, version, body)), body)


def _start(format: str, version: Version, digest: str) -> bytes:
    return msgspec.json.encode(_Start(format, version, digest))[:-1] + b',"case":'


def _digest(format: str, version: Version, body: bytes | memoryview) -> str:
    hasher = Hasher(memoryview(body).nbytes)
    hasher.update(msgspec.json.encode([format, "" if version is msgspec.UNSET else [version]]))
    hasher.update(body)
    return hasher.digest()


def _in_lines(case: Case) -> bytes:
    """The body: a line for each node, and for each item of what else there are many of."""
    nodes = b",\n".join(map(msgspec.json.encode, case.graph.nodes))
    without = msgspec.structs.replace(case, graph=msgspec.structs.replace(case.graph, nodes=()))
    fields = msgspec.json.decode(msgspec.json.encode(without), type=dict[str, msgspec.Raw])
    lines = []
    for name, value in fields.items():
        if name == "graph":
            before, after = bytes(value).split(b'"nodes":[]', 1)
            text = b'%s"nodes":[\n%s\n]%s' % (before, nodes, after)
        elif bytes(value).startswith(b"["):
            text = b"[\n%s\n]" % b",\n".join(map(bytes, msgspec.json.decode(value, type=list[msgspec.Raw])))
        else:
            text = bytes(value)
        lines.append(b'"%s":%s' % (name.encode(), text))
    return b"{\n%s\n}" % b",\n".join(lines)


# ---- reading ---------------------------------------------------------------------------------------------


def decode(data: bytes, *, file: str = "") -> Case:
    """The case that these bytes are. Everything about it is checked, except that its tensors are there."""
    sealed = unseal(data, file=file)
    version = sealed.version
    if isinstance(version, int) and version > VERSION:
        case, lost = _read_newer(sealed, file)
        what = f"it has {_listed(lost)}, which is left out" if lost else "nothing of it is left out"
        warnings.warn(
            f"{file or 'the case'} is of version {version}, from a newer torchsleuth than this one "
            f"(version {VERSION}): {what}; update torchsleuth to read all of it",
            NewerCaseWarning,
            stacklevel=2,
        )
        return case
    if version != VERSION:
        said = "no version" if version is None else f"the version {version!r:.80}"
        warnings.warn(
            f"{file or 'the case'} has {said}, which this torchsleuth does not know; it is read as version {VERSION}",
            VersionWarning,
            stacklevel=2,
        )
    try:
        case = msgspec.json.decode(sealed.body, type=Case)
    except _UNREADABLE as error:
        raise _bad(error, file) from error
    check(case, file=file)
    return case


def unseal(data: bytes, *, file: str = "") -> Sealed:
    """Check that these are the bytes of a case, every one as it was written. What they say is not looked at."""
    if len(data) > MAX_BYTES:
        raise BadCase(
            f"the file has {len(data):,} bytes",
            cause=f"a case has at most {MAX_BYTES:,} without its tensors",
            remedy=GET_IT_AGAIN,
            file=file,
        )
    try:
        header = msgspec.json.decode(data, type=_Header)
    except _UNREADABLE as error:
        raise _bad_header(data, error, file) from error
    if header.format != FORMAT:
        raise BadCase(
            "this is not a case",
            cause=f"its format is {header.format[:80]!r}, not {FORMAT!r}",
            remedy="give a case.json, a case's folder, or a .sleuth.zip",
            file=file,
            field="format",
        )
    version = header.version
    _check_digest(data, header, file)
    return Sealed(None if version is msgspec.UNSET else version, header.digest, header.case)


def _check_digest(data: bytes, header: _Header, file: str) -> None:
    known = is_digest(header.digest)
    if not known and isinstance(header.version, int) and header.version > VERSION:
        raise NewerCase(
            f"a newer torchsleuth wrote this case: it is of version {header.version}",
            cause=f"this one knows version {VERSION}, and no digest like {header.digest[:80]!r}",
            remedy="update torchsleuth",
            file=file,
            field="digest",
        )
    body = header.case
    start = _start(header.format, header.version, header.digest)
    whole = len(data) == len(start) + len(memoryview(body)) + 2 and data.startswith(start) and data.endswith(b"}\n")
    if not known or not whole or _digest(header.format, header.version, memoryview(body)) != header.digest:
        raise HashMismatch(
            "its bytes are not the ones that were written",
            cause="the header is not as torchsleuth writes it" if not whole else "they do not have the digest it names",
            remedy="get it again from where it came from; a case that is changed has to be written by torchsleuth",
            file=file,
            field="digest" if whole else "",
        )


def _bad_header(data: bytes, error: BaseException, file: str) -> BadCase:
    if not data:
        cause = "it is empty"
    elif isinstance(error, RecursionError):
        cause = "it is nested too deep"
    elif isinstance(error, msgspec.ValidationError):
        cause = f"it is JSON, but not a case: {error}"
    else:
        cause = f"it is not JSON, or only the beginning of it: {error}"
    return BadCase("this is not a case", cause=cause, remedy=GET_IT_AGAIN, file=file)


def _bad(error: BaseException, file: str) -> BadCase:
    if isinstance(error, RecursionError):
        return BadCase("it is nested too deep", cause=in_words(error), remedy=GET_IT_AGAIN, file=file, field="case")
    place = _PLACE.search(str(error))
    return BadCase(
        "a part of the case is not what it has to be",
        cause=_PLACE.sub("", str(error)),
        remedy="get it again from where it came from, or write the case again",
        file=file,
        field=place[1] if place else "case",
    )


def _read_newer(sealed: Sealed, file: str) -> tuple[Case, list[str]]:
    """A case of a newer version, without the fields that this one does not know; and which ones those are."""
    lost: list[str] = []
    try:
        case = msgspec.convert(prune(msgspec.json.decode(sealed.body), Case, lost), Case)
        check(case, file=file)
    except (*_UNREADABLE, BadCase) as error:
        listed = f"; besides, it has {_listed(lost)}" if lost else ""
        raise NewerCase(
            f"a newer torchsleuth wrote this case: it is of version {sealed.version}",
            cause=f"this one knows version {VERSION}, and cannot make sense of it: {in_words(error)}{listed}",
            remedy="update torchsleuth",
            file=file,
            field=error.field if isinstance(error, BadCase) else "",
        ) from error
    return case, lost


def _listed(fields: list[str], most: int = 20) -> str:
    more = f" and {len(fields) - most} more" if len(fields) > most else ""
    return ", ".join(fields[:most]) + more

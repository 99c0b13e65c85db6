"""The one form that an archive has: a plain zip, of which every byte outside its members' own is determined.

Any program can open it. Here it is read more strictly than zips usually are: its directory is taken for what it
claims, written again from that, and compared with the file byte for byte. What is not exactly as `write` makes it is
refused. So names that lead elsewhere, links, encryption, members that overlap or hide, comments, gaps and bytes before
or after are not dealt with one by one: they have no place. Members are stored, but `deflated` ones may be compressed.

Members and offsets beyond 4 GiB are in zip64, as any program expects.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from torchsleuth.errors import GET_IT_AGAIN, BadCase, CaseError, HashMismatch

STORED: Final = 0
DEFLATED: Final = 8
MAX_MEMBERS: Final = 0xFFFE
"""The most that a zip can count without further ado."""

_LIMIT: Final = 0xFFFFFFFF
_LIMIT_FROM = _LIMIT
"""From here on a number is written in eight bytes, and `_LIMIT` in its place. Tests lower it."""
_DATE: Final = 0x0021  # the first day that a zip knows, 1 January 1980
_MODE: Final = 0o100644 << 16
_UNIX: Final = 3 << 8
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_LONGEST_NAME: Final = 200


@dataclass(frozen=True)
class Member:
    """One file in an archive. `offset` is where its header begins, `size` is how many bytes it unpacks to."""

    name: str
    size: int
    crc: int
    method: int = STORED
    packed: int = 0
    offset: int = 0

    @property
    def begin(self) -> int:
        """Where its bytes begin."""
        return self.offset + len(local_header(self))

    @property
    def end(self) -> int:
        return self.begin + self.packed


# ---- writing ---------------------------------------------------------------------------------------------


def local_header(member: Member) -> bytes:
    """What stands before the bytes of a member."""
    large = max(member.size, member.packed) >= _LIMIT_FROM
    extra = struct.pack("<2H2Q", 1, 16, member.size, member.packed) if large else b""
    sizes = (_LIMIT, _LIMIT) if large else (member.packed, member.size)
    name = member.name.encode()
    version = 45 if large else 20
    return _LOCAL.pack(b"PK\3\4", version, 0, member.method, 0, _DATE, member.crc, *sizes, len(name), len(extra)) + (
        name + extra
    )


def _central_header(member: Member) -> bytes:
    large = max(member.size, member.packed) >= _LIMIT_FROM
    numbers = [member.size, member.packed] if large else []
    far = member.offset >= _LIMIT_FROM
    numbers += [member.offset] if far else []
    extra = struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""
    sizes = (_LIMIT, _LIMIT) if large else (member.packed, member.size)
    name = member.name.encode()
    version = 45 if numbers else 20
    return _CENTRAL.pack(
        b"PK\1\2",
        _UNIX | version,
        version,
        0,
        member.method,
        0,
        _DATE,
        member.crc,
        *sizes,
        len(name),
        len(extra),
        0,
        0,
        0,
        _MODE,
        _LIMIT if far else member.offset,
    ) + (name + extra)


def directory(members: Sequence[Member], comment: bytes) -> bytes:
    """What stands after all members: what there is and where, and the end."""
    begin = members[-1].end if members else 0
    headers = b"".join(map(_central_header, members))
    count, size = len(members), len(headers)
    large = size >= _LIMIT_FROM or begin >= _LIMIT_FROM
    if large:
        headers += _END64.pack(b"PK\6\6", 44, _UNIX | 45, 45, 0, 0, count, count, size, begin)
        headers += _LOCATOR.pack(b"PK\6\7", 0, begin + size, 1)
    ends = (_LIMIT, _LIMIT) if large else (size, begin)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, *ends, len(comment))
    return headers + end + comment


def placed(members: Iterable[Member]) -> Iterator[Member]:
    """The members one after the other, each with the offset that it then has."""
    offset = 0
    for member in members:
        member = replace(member, offset=offset)
        offset = member.end
        yield member


# ---- reading ---------------------------------------------------------------------------------------------


def read_directory(file: BinaryIO, name: str, comment_size: int) -> tuple[list[Member], bytes]:
    """The members of an archive and its comment, if it is in the one form that an archive has."""
    file.seek(0, 2)
    length = file.tell()
    try:
        members, begin, comment = _claimed(file, length, comment_size)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise damaged(name, f"its directory cannot be read ({error})") from error
    if list(placed(members)) != members:
        raise damaged(name, "its members overlap, or there are gaps between them")
    file.seek(begin)
    if begin != (members[-1].end if members else 0) or file.read() != directory(members, comment):
        raise damaged(name, "its directory is not as `sleuth pack` writes it")
    for member in members:
        header = local_header(member)
        file.seek(member.offset)
        if file.read(len(header)) != header:
            raise damaged(name, f"what stands before {member.name} is not what its directory says")
    return members, comment


def _claimed(file: BinaryIO, length: int, comment_size: int) -> tuple[list[Member], int, bytes]:
    """What the directory says, taken at its word. ValueError if it says nothing sensible."""
    at = length - _END.size - comment_size
    if at < 0:
        raise ValueError("it is too short")
    file.seek(at)
    mark, _, _, _, count, size, begin, _ = _END.unpack(file.read(_END.size))
    comment = file.read(comment_size)
    if mark != b"PK\5\6":
        raise ValueError("its end is not there")
    if _LIMIT in (size, begin):
        at -= _LOCATOR.size + _END64.size
        file.seek(max(at, 0))
        *_, size, begin = _END64.unpack(file.read(_END64.size))
    if count > MAX_MEMBERS or begin + size > length or size > count * (_CENTRAL.size + _LONGEST_NAME):
        raise ValueError("its end is nonsense")
    file.seek(begin)
    data = file.read(size)
    members = []
    at = 0
    for _ in range(count):
        member, at = _claimed_member(data, at)
        members.append(member)
    return members, begin, comment


def _claimed_member(data: bytes, at: int) -> tuple[Member, int]:
    fields = _CENTRAL.unpack_from(data, at)
    method, crc, packed, size, name_size, extra_size, offset = (*fields[4:5], *fields[7:12], fields[16])
    at += _CENTRAL.size
    name = data[at : at + name_size].decode("ascii")
    numbers = (
        list(struct.unpack_from(f"<{max(extra_size - 4, 0) // 8}Q", data, at + name_size + 4)) if extra_size else []
    )
    if _LIMIT in (packed, size):
        size, packed = numbers.pop(0), numbers.pop(0)
    if offset == _LIMIT:
        offset = numbers.pop(0)
    return Member(name, size, crc, method, packed, offset), at + name_size + extra_size


def unpacked(file: BinaryIO, member: Member, name: str, chunk: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a member, piece by piece, never more than it claims to have. The last check is its checksum."""
    file.seek(member.begin)
    crc, size = 0, 0
    fault = ""
    try:
        for piece in _inflated(file, member, chunk) if member.method == DEFLATED else _raw(file, member.packed, chunk):
            size += len(piece)
            if size > member.size:
                break
            crc = zlib.crc32(piece, crc)
            yield piece
    except zlib.error as error:
        fault = f"it cannot be unpacked ({error})"
    if size != member.size:
        fault = fault or "it has more or fewer bytes than it says"
    elif crc != member.crc:
        fault = fault or "its checksum does not fit"
    if fault:
        raise HashMismatch(
            f"{member.name} is not what was packed",
            cause=fault,
            remedy=GET_IT_AGAIN,
            file=name,
            field=member.name,
        )


def _raw(file: BinaryIO, left: int, chunk: int) -> Iterator[bytes]:
    while left > 0:
        piece = file.read(min(left, chunk))
        if not piece:
            return
        left -= len(piece)
        yield piece


def _inflated(file: BinaryIO, member: Member, chunk: int) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    for packed in _raw(file, member.packed, chunk):
        piece = inflate.decompress(packed, chunk)
        while piece:
            yield piece
            piece = inflate.decompress(inflate.unconsumed_tail, chunk)
    if not inflate.eof or inflate.unused_data:
        raise zlib.error("it goes on after its end, or has none")


def damaged(name: str, cause: str) -> CaseError:
    """The error for an archive that is not in its form."""
    return BadCase(
        "this is not an archive of a case, or it is damaged",
        cause=cause,
        remedy="get it again from where it came from; if another program packed it, unpack it and give the folder",
        file=name,
    )

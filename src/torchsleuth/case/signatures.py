"""When two failures are the same failure.

    recorded.matches(seen)          the same bug, on whatever graph it showed
    Match.parse("exact")            what else a user may ask for
    Match.parse("regex:out of range")(recorded, seen, said)

A smaller graph with the same bug fails with other sizes and other names, at another node, and was called from
elsewhere: none of that counts. What is not known of one of them (a case that an older version wrote, a crash without a
stack) does not count against it either.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from torchsleuth.case.normalising import normalised
from torchsleuth.case.schema import Signature
from torchsleuth.errors import BadValue
from torchsleuth.outcome import Stage

Mode = Literal["origin", "exact", "kind", "any", "regex"]

_DEPTH: Final = 3
"""So many of the innermost functions tell where something was raised."""
_OVERLAP: Final = 0.5
"""Two stacks of one hang, each as it was at a deadline, share at least so many of the shorter one's functions."""
_INSIDE: Final = frozenset(
    {
        Stage.COMPILE,
        Stage.DYNAMO,
        Stage.AOT,
        Stage.DECOMPOSITION,
        Stage.PRE_GRAD,
        Stage.JOINT_GRAPH,
        Stage.POST_GRAD,
        Stage.LOWERING,
        Stage.SCHEDULING,
        Stage.CODEGEN,
        Stage.CPP_COMPILE,
        Stage.TRITON_COMPILE,
        Stage.LOAD,
    }
)
"""The stages that are the compiler's."""
_BUILDING: Final = frozenset({Stage.LOWERING, Stage.SCHEDULING, Stage.CODEGEN})
"""The stages in which one thing is built out of all operators. What is too much for one is too much for the others."""
_TOOLCHAIN: Final = frozenset({Stage.CPP_COMPILE, Stage.TRITON_COMPILE})
"""Here the message tells it all: the functions are those that call the other compiler."""
_BY_OPERATOR: Final = frozenset({Stage.DECOMPOSITION, Stage.LOWERING, Stage.RUN})
"""Here one operator at a time is dealt with, so that the one at hand is the one to blame."""
_LEFT: Final = "left with exit code "
HEAP_CORRUPT: Final = "the heap is corrupt"
"""What the signature of a crash says if the allocator noticed."""
_WRECKED: Final = frozenset({signals.SIGABRT, signals.SIGBUS, signals.SIGFPE, signals.SIGILL, signals.SIGSEGV})
"""What a process may die of that has written where it must not: it depends on what was there."""
PLACES: Final[Mapping[str, str]] = {
    "output": "the output differs",
    "inputs": "an input that is written to differs",
    "input_grads": "a gradient differs",
    "grads": "a gradient differs",
    "buffers": "a buffer differs",
}
"""What a mismatch says of where it is, by the first name of the path to it."""


@dataclass(frozen=True)
class Match:
    """How alike two failures have to be."""

    mode: Mode = "origin"
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str) -> Match:
        """`origin`, `exact`, `kind`, `any` or `regex:...`, as a user writes it."""
        mode, colon, pattern = text.partition(":")
        mode = mode.strip()
        if mode == "regex" and pattern:
            try:
                return cls("regex", re.compile(pattern))
            except (re.error, RecursionError, OverflowError) as error:
                raise _unusable(text, f"{pattern!r} is not a regular expression: {error}") from error
        if colon or mode not in _MODES:
            raise _unusable(text, "there is no such way to match failures")
        return _MODES[mode]

    def __call__(self, recorded: Signature, seen: Signature, said: str = "") -> bool:
        """Whether what was seen is what was recorded. `said`: the words of what was seen, for a pattern to look at."""
        match self.mode:
            case "any":
                return True
            case "kind":
                return recorded.kind == seen.kind
            case "exact":
                return recorded == seen or _equal_but_for_operator(recorded, seen)
            case "regex":
                words = "\n".join((*seen.types, seen.message, said))
                return self.pattern is not None and self.pattern.search(words) is not None
            case "origin":
                return _same_origin(recorded, seen)

    def __str__(self) -> str:
        return self.mode if self.pattern is None else f"{self.mode}:{self.pattern.pattern}"


ORIGIN: Final = Match()
EXACT: Final = Match("exact")
KIND: Final = Match("kind")
"""Any exception for an exception, any wrong result for a wrong result."""
ANY: Final = Match("any")
_MODES: Final[Mapping[str, Match]] = {"origin": ORIGIN, "exact": EXACT, "kind": KIND, "any": ANY}


def _unusable(text: str, cause: str) -> BadValue:
    return BadValue(
        f"failures cannot be matched by {text!r}",
        cause=cause,
        remedy="use `origin` (the same bug, the default), `exact`, `any`, or `regex:` and a pattern of Python's",
    )


def exit_words(code: int | None) -> str:
    """What the signature of a process says that left by a call of its own."""
    return "" if code is None else f"{_LEFT}{code}"


def exit_code_of(signature: Signature) -> int | None:
    """The code that such a process left with."""
    found = re.fullmatch(rf"{_LEFT}(\d{{1,10}})", signature.message)
    return int(found[1]) if found and signature.kind == "crashed" and not signature.signal else None


# ---- the same origin ---------------------------------------------------------------------------------------


def _equal_but_for_operator(one: Signature, other: Signature) -> bool:
    """Whether two wrong results are equal, and one does not know its operator: it is looked for in a replay only."""
    if one.kind != "mismatched" or (one.op is not None and other.op is not None):
        return False
    return msgspec.structs.replace(one, op=None) == msgspec.structs.replace(other, op=None)


def _same_origin(one: Signature, other: Signature) -> bool:
    if one.kind != other.kind or not _stages_agree(one, other):
        return False
    return _ALIKE[one.kind](one, other)


def _stages_agree(one: Signature, other: Signature) -> bool:
    stages = {one.stage, other.stage}
    if len(stages) == 1 or Stage.UNKNOWN in stages:
        return True
    if Stage.COMPILE in stages:
        return stages <= _INSIDE
    if one.kind == "timed out":
        return stages <= _BUILDING
    # What a kernel destroys may be met when its results are looked at.
    return one.kind == "crashed" and stages == {Stage.RUN, Stage.COMPARE}


def _raised_alike(one: Signature, other: Signature) -> bool:
    if one.types and other.types and one.types[-1] != other.types[-1]:
        return False
    said = normalised(one.message)
    if said != normalised(other.message):
        return False
    stages = {one.stage, other.stage}
    if not stages & _TOOLCHAIN and not _same_place(one, other, _DEPTH if said else None):
        return False
    return not stages & _BY_OPERATOR or _same_operator(one, other)


def _same_place(one: Signature, other: Signature, depth: int | None) -> bool:
    """Whether the innermost functions are the same, as far as both are known."""
    known = min(len(one.frames), len(other.frames))
    depth = known if depth is None else min(known, depth)
    return one.frames[:depth] == other.frames[:depth]


def _same_operator(one: Signature, other: Signature) -> bool:
    """Whether the operators are the same, as far as both are known.

    Operators that are wrong only together ("no operator alone") are not the same as one that is wrong by itself, even
    if a smaller graph has come down to that one: else a graph with two such bugs could lead from the one to the other.
    """
    return one.op is None or other.op is None or operator_name(one.op) == operator_name(other.op)


def operator_name(op: str) -> str:
    """The operator alone: `relu` for `aten.relu.default`, `torch.ops.aten.relu_`, `relu`."""
    parts = op.removeprefix("torch.ops.").split(".")
    name = parts[1] if len(parts) > 1 and parts[0] not in ("torch", "math", "operator") else parts[-1]
    return name if name.startswith("__") else name.rstrip("_") or name


def _crashed_alike(one: Signature, other: Signature) -> bool:
    if one.signal and other.signal:
        if one.signal != other.signal and not may_be_one_wreck(one, other):
            return False
    elif one.message.startswith(_LEFT) and (other.signal or other.message.startswith(_LEFT)):
        return one.message == other.message
    elif other.message.startswith(_LEFT) and one.signal:
        return False
    compiling = one.stage in _INSIDE and other.stage in _INSIDE
    return not compiling or _same_place(one, other, _DEPTH)


def may_be_one_wreck(one: Signature, other: Signature) -> bool:
    """Whether two processes may have died of the same, by different signals: of memory that was written over."""
    return HEAP_CORRUPT in (one.message, other.message) and {one.signal, other.signal} <= _WRECKED


def wrecked(recorded: Signature, seen: Signature) -> Signature:
    """What is recorded, if the same program died differently when it was run again.

    What has written where it must not dies of one thing or another, and a program that ends itself always of the same.
    """
    is_wreck = recorded.kind == seen.kind == "crashed" and {recorded.signal, seen.signal} <= _WRECKED
    is_at_run = not {recorded.stage, seen.stage} & _INSIDE
    differs = recorded.signal != seen.signal
    return msgspec.structs.replace(recorded, message=HEAP_CORRUPT) if is_wreck and is_at_run and differs else recorded


def _timed_out_alike(one: Signature, other: Signature) -> bool:
    """A stack at a deadline is a sample. Its outer functions stay, if it is the same that never ends; the inner ones
    come and go. A deep stack may lack the outer end: then what both have in common is all there is to go by.

    What grows beyond all bounds while it is built is slow wherever somebody looks at it: the same case, stopped a
    second later, is somewhere else, or in the next stage. There the stack does not count.
    """
    ours, theirs = one.frames, other.frames
    if not ours or not theirs or {one.stage, other.stage} <= _BUILDING:
        return True
    outer = min(_DEPTH, len(ours), len(theirs))
    if ours[-1] == theirs[-1] and ours[-outer:] != theirs[-outer:]:
        return False
    return len({*ours} & {*theirs}) >= _OVERLAP * min(len(ours), len(theirs))


def _mismatched_alike(one: Signature, other: Signature) -> bool:
    if None not in (one.symptom, other.symptom) and one.symptom != other.symptom:
        return False
    known = PLACES.values()
    if one.message in known and other.message in known and one.message != other.message:
        return False
    return _same_operator(one, other)


def _always(_one: Signature, _other: Signature) -> bool:
    return True


_ALIKE: Final[Mapping[str, Callable[[Signature, Signature], bool]]] = {
    "raised": _raised_alike,
    "mismatched": _mismatched_alike,
    "crashed": _crashed_alike,
    "timed out": _timed_out_alike,
    "out of memory": _always,
}

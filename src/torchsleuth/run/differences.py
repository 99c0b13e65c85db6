"""What is not here as it was when a case was recorded: facts, and what may be behind it if a failure does not show.

    for finding in differences(found, outcome): ...

A finding that is `certain` is a difference that was seen. The others are possible: the case cannot tell. Whether a
difference is the reason is for whoever tries it out (`fidelity`).
"""

from __future__ import annotations

import difflib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from torchsleuth.case import schema
from torchsleuth.case.graphs import targets
from torchsleuth.case.script.graphs import graphs_in
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.surroundings.machine import machine
from torchsleuth.case.surroundings.options import NOT_ALL
from torchsleuth.case.words.listing import target_words
from torchsleuth.compare.rng import is_random_call
from torchsleuth.errors import SleuthError
from torchsleuth.outcome import Outcome, Stage, Word


class Kind(Word):
    """What kind of thing differs."""

    CONFIGURATION = "configuration"
    VERSIONS = "versions"
    STATE = "state"
    DATA = "data"
    RNG = "random numbers"
    NONDETERMINISM = "nondeterminism"
    CODE = "generated code"
    HISTORY = "history"
    SCRIPT = "script"


@dataclass(frozen=True)
class Finding:
    """One thing that differs, or may."""

    kind: Kind
    words: str
    remedy: str
    """What to do about it."""
    certain: bool = True
    """It was seen. Otherwise it is possible, and was not tested."""
    detail: str = ""
    """More to read: a diff."""


def differences(found: Found, outcome: Outcome) -> Iterator[Finding]:
    """What differs between the recorded run and this one, the likeliest reasons first."""
    case = found.case
    yield from _configuration(case, outcome)
    yield from _versions(case.origin)
    code = code_differs(found, outcome)
    if code is not None:
        yield code
    yield from _state(case, outcome)
    if needs_values(case.failure):
        yield from _data(case)
        yield from _random(case.graph)


def needs_values(failure: schema.Failure | None) -> bool:
    """Whether a failure may depend on the values of inputs. A compiler sees none."""
    return failure is None or failure.signature.stage in (Stage.RUN, Stage.COMPARE, Stage.UNKNOWN)


# ---- configuration and state -----------------------------------------------------------------------------

_CONFIGURATION: Final = (
    NOT_ALL,
    "not all switches of torch's backends are as in the case",
    "these environment variables of the case are not set",
)
"""How warnings of `surroundings` begin."""
_STATE: Final = ("the random state of these devices is not set", "collectives run on one process here")


def _configuration(case: schema.Case, outcome: Outcome) -> Iterator[Finding]:
    for note in outcome.notes:
        if note.startswith(_CONFIGURATION):
            yield Finding(Kind.CONFIGURATION, note, _remedy(note, case.origin))


def _remedy(note: str, origin: schema.Origin) -> str:
    if "trusted" in note:
        return "--trust sets it, if you trust whoever wrote the case"
    if "this torch does not have it" in note:
        return f"replay it with torch {origin.torch}"
    if "a variable of this environment forces it" in note:
        return "take that variable out of the environment"
    return "set it yourself, and export the case: the script can be changed"


def _state(case: schema.Case, outcome: Outcome) -> Iterator[Finding]:
    for note in outcome.notes:
        if note.startswith(_STATE):
            yield Finding(Kind.STATE, note, "replay it on a machine like the one where it was recorded")
    threads, cores = case.state.threads, _cores()
    if threads is not None and threads > cores:
        words = f"it ran with {threads} threads, and there are {cores} cores here"
        yield Finding(Kind.STATE, words, "replay it where there are as many")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- versions --------------------------------------------------------------------------------------------


def _versions(origin: schema.Origin) -> Iterator[Finding]:
    here = str(torch.__version__)
    if origin.torch != here:
        words = f"it was recorded with torch {origin.torch}, and this is {here}"
        yield Finding(Kind.VERSIONS, words, f"replay it with torch {origin.torch}; or the failure is gone since")
    if _minor(origin.python) != _minor(platform.python_version()):
        words = f"it was recorded with Python {origin.python}, and this is {platform.python_version()}"
        yield Finding(Kind.VERSIONS, words, f"replay it with Python {_minor(origin.python)}")
    if origin.platform and origin.platform != machine():
        words = f"it was recorded on {origin.platform}, and this is {machine()}"
        yield Finding(Kind.VERSIONS, words, "replay it on such a machine")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# ---- generated code --------------------------------------------------------------------------------------

CODE_FILE: Final = "output_code.py"
_LONGEST: Final = 20_000
_VARIES: Final = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}"), "/…"),
    (re.compile(r"\b[a-z2-7]{50,}\b|\b[0-9a-f]{32,}\b"), "…"),
)
"""Addresses, paths and hashes."""
_COUNTED: Final = "# AOT ID:"
"""How many graphs the process had compiled before."""


def code_differs(found: Found, outcome: Outcome) -> Finding | None:
    """The difference between the code that was generated now and the code that lies beside the case, if both exist."""
    kept = _code_beside(found)
    if not kept or not outcome.code:
        return None
    before, now = _normalised(kept), _normalised(outcome.code)
    if before == now:
        return None
    lines = list(difflib.unified_diff(before, now, "recorded", "here", lineterm="", n=1))
    changed = [line for line in lines[2:] if line[:1] in "+-"]
    count = sum(line[0] == "-" for line in changed), sum(line[0] == "+" for line in changed)
    words = f"the compiler generates other code here: {count[0]} lines less, {count[1]} more"
    return Finding(
        Kind.CODE,
        words,
        "compare it with output_code.py beside the case",
        detail="\n".join(lines)[:_LONGEST],
    )


def _code_beside(found: Found) -> str:
    try:
        return (Path(found.path).parent / CODE_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _normalised(code: str) -> list[str]:
    for pattern, word in _VARIES:
        code = pattern.sub(word, code)
    return [line.rstrip() for line in code.splitlines() if line.strip() and not line.startswith(_COUNTED)]


# ---- values ----------------------------------------------------------------------------------------------


def _data(case: schema.Case) -> Iterator[Finding]:
    made = sum(isinstance(storage.content, schema.Generated) for storage in case.storages)
    if made:
        words = f"{made} of {len(case.storages)} tensors are made by a recipe, since the real values were not kept"
        limited = case.failure is not None and "(max_dump)" in case.failure.message
        remedy = (
            "watch it again with a larger max_dump"
            if limited
            else "watch it again: a failure at run time is kept with its inputs"
        )
        yield Finding(Kind.DATA, words, remedy)
    failure = case.failure
    if failure is not None and failure.signature.kind == "raised" and failure.signature.stage is Stage.RUN:
        written = _written(case.graph)
        if written:
            words = f"the graph writes to its inputs ({', '.join(written[:3])}), which were kept after it had failed"
            yield Finding(Kind.DATA, words, "watch it again at level always: it keeps them before", certain=False)


def _written(graph: schema.Graph) -> list[str]:
    """The inputs that a graph writes to."""
    inputs = {node.name for node in graph.nodes if node.op == "placeholder"}
    names = []
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if isinstance(first, schema.Ref) and first.name in inputs and _writes(node):
            names.append(first.name)
    return list(dict.fromkeys(names))


def _writes(node: schema.Node) -> bool:
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    if node.op != "call_function":
        return False
    parts = node.target.split(".")  # torch.ops.aten.copy_.default
    return parts[3].endswith("_") if len(parts) == 5 else parts[-1] == "setitem"


def _random(graph: schema.Graph) -> Iterator[Finding]:
    drawing = dict.fromkeys(
        target_words(node.target) for _, each in graphs_in(graph, "") for node in each.nodes if _draws(node)
    )
    if drawing:
        words = f"the graph draws random numbers ({', '.join(list(drawing)[:3])}); another seed may be needed"
        yield Finding(Kind.RNG, words, "fix the seed in the program, and watch it again", certain=False)


def _draws(node: schema.Node) -> bool:
    if node.op == "call_method":
        return is_random_call(node.op, node.target)
    if node.op != "call_function":
        return False
    try:
        return is_random_call(node.op, targets.resolve(node.target))
    except SleuthError:
        return False

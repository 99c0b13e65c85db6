"""Handing over a script: written, run in a fresh interpreter, and only then said to reproduce the failure.

    delivery = deliver(blobs, case, Path("repro.py"))
    delivery.reproduces        True: it was run, and failed as recorded. False: it did something else. None: not run

Large inputs are first replaced by recipes of the same kind, since a single file is worth a try; if the failure needs
its own numbers, they go to a `.safetensors` file beside the script. Which of the two it is, a run decides.

A case that calls code of the user's own is written but not run, unless the caller trusts it. A case that lacks what
its graph needs becomes a plain notice that says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from torchsleuth.case import schema
from torchsleuth.case.schema import Generated
from torchsleuth.case.script import expected
from torchsleuth.case.script.builder import build, notice
from torchsleuth.case.script.ways import Beside, Recipe, Way, choose, recipes_for, write_beside
from torchsleuth.case.signatures import exit_code_of, may_be_one_wreck
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.surroundings import environment
from torchsleuth.errors import CannotHold, StoreError, in_words
from torchsleuth.outcome import Crashed
from torchsleuth.run.observing.signatures import signature_of
from torchsleuth.run.scripts import TIMEOUT, Ran, run_script
from torchsleuth.run.trusting import needs_trust

Inputs = Literal["in the script", "by recipe", "beside the script"]

_CLOSE_TO_DEADLINE: Final = 60.0


class Runner(Protocol):
    """Something that runs a script; `run_script` in earnest, a fake in tests."""

    def __call__(self, script: Path, *, timeout: float, environ: Mapping[str, str]) -> Ran: ...


@dataclass(frozen=True)
class Delivery:
    """What was handed over, and what is known of it."""

    script: Path
    beside: Path | None = None
    """The file with the larger inputs, if there is one."""
    reproduces: bool | None = None
    """None if it was not run, or there is no failure that it could reproduce."""
    expected: str = ""
    seen: str = ""
    """What the run did."""
    not_run: str = ""
    """Why it was not run."""
    inputs: Inputs = "in the script"
    notice: bool = False
    """There is no script, only a notice why not."""
    seconds: float = 0.0

    def describe(self) -> str:
        """One line for people: nothing is claimed that was not seen."""
        if self.notice:
            return f"a notice instead of a script: {self.not_run}"
        if self.not_run:
            return f"written, and not run: {self.not_run}"
        if self.reproduces:
            return "reproduces: it was run in a fresh interpreter, and fails as recorded"
        if self.reproduces is False:
            return f"does not reproduce: expected that it {self.expected}; seen: {self.seen}"
        return f"it was run in a fresh interpreter: {self.seen}"


def deliver(
    blobs: Blobs,
    case: schema.Case,
    out: Path,
    *,
    trust: bool = False,
    run: bool = True,
    timeout: float = TIMEOUT,
    runner: Runner = run_script,
) -> Delivery:
    """Write the script of a case to `out`, and run it, unless it must not be."""
    words = expected.in_words(case.failure)
    try:
        build(case, choose(case, blobs), beside="x", trust=trust)
    except CannotHold as error:
        _write(out, [notice(case, error).encode()])
        return Delivery(out, expected=words, not_run=error.what, notice=True)
    delivering = _Delivering(blobs, case, out, trust)
    reason = "it was asked for without a run" if not run else needs_trust(case) if not trust else None
    if reason is not None:
        ways = delivering.write()
        return Delivery(out, delivering.beside(ways), expected=words, not_run=reason, inputs=_inputs(ways))
    run_it = _running(case, timeout, runner)
    recipes = recipes_for(case, blobs) if case.failure is not None else {}
    if recipes:
        ways = delivering.write(recipes)
        ran = run_it(out)
        if is_as_recorded(case, ran):
            return _delivered(case, out, delivering.beside(ways), ways, ran)
    ways = delivering.write()
    return _delivered(case, out, delivering.beside(ways), ways, run_it(out))


def is_as_recorded(case: schema.Case, ran: Ran) -> bool:
    """Whether a run of the script did what the case says."""
    if case.failure is None:
        return False
    signature = case.failure.signature
    begun = "expected:" in ran.stdout
    code = exit_code_of(signature)
    if code is not None:
        return begun and ran.code == code and not _said(ran, "verdict")
    if signature.kind == "crashed":
        if not begun or ran.signal is None:
            return False
        died = signature_of(Crashed(signature.stage, signal=ran.signal, stderr=ran.stderr))
        return signature.signal in (None, ran.signal) or (died is not None and may_be_one_wreck(signature, died))
    if signature.kind == "out of memory" and ran.signal == 9:
        return begun
    return ran.code == 1 and expected.SAME in _said(ran, "verdict")


def seen_in(ran: Ran) -> str:
    """What a run did, in words: its own, if it got so far."""
    said = _said(ran, "seen")
    if said and ran.code is not None:
        return said
    last = ran.stderr.strip().splitlines()[-1:] if ran.code else []
    return ", ".join([ran.describe(), *last])


def _said(ran: Ran, what: str) -> str:
    """What the script printed under a word; the first time, for there may be more."""
    lines = (line.partition(":") for line in ran.stdout.splitlines())
    return next((text.strip() for word, _, text in lines if word == what), "")


def copy_to_folder(script: Path, folder: Path | None = None) -> Path | None:
    """The script as `repro.py` in a folder (the current one), byte for byte. If that fails, it is only a warning."""
    there = (Path.cwd() if folder is None else folder) / "repro.py"
    try:
        if not (there.exists() and there.samefile(script)):
            _write(there, [script.read_bytes()])
    except (OSError, StoreError) as error:
        said = error.cause if isinstance(error, StoreError) else in_words(error)
        warnings.warn(f"the script could not be copied to {there}: {said}; it is in {script}", stacklevel=2)
        return None
    return there


# ---- pieces ----------------------------------------------------------------------------------------------


class _Delivering:
    """Writes the files of one delivery."""

    def __init__(self, blobs: Blobs, case: schema.Case, out: Path, trust: bool) -> None:
        self._blobs = blobs
        self._case = case
        self._out = out
        self._trust = trust

    def write(self, recipes: Mapping[int, Generated] | None = None) -> dict[int, Way]:
        """The script, and what lies beside it, before it."""
        ways = choose(self._case, self._blobs, recipes)
        beside = self.beside(ways)
        if beside is not None:
            _write(beside, write_beside(self._case, ways, self._blobs))
        text = build(self._case, ways, beside=beside.name if beside else "", trust=self._trust)
        _write(self._out, [text.encode()])
        return ways

    def beside(self, ways: Mapping[int, Way]) -> Path | None:
        """The file for the larger inputs, if these ways need one."""
        return self._out.with_suffix(".safetensors") if any(isinstance(way, Beside) for way in ways.values()) else None


def _inputs(ways: Mapping[int, Way]) -> Inputs:
    kinds = {type(way) for way in ways.values()}
    return "beside the script" if Beside in kinds else "by recipe" if Recipe in kinds else "in the script"


def _delivered(case: schema.Case, out: Path, beside: Path | None, ways: Mapping[int, Way], ran: Ran) -> Delivery:
    return Delivery(
        out,
        beside,
        reproduces=None if case.failure is None else is_as_recorded(case, ran),
        expected=expected.in_words(case.failure),
        seen=seen_in(ran),
        inputs=_inputs(ways),
        seconds=ran.seconds,
    )


def _running(case: schema.Case, timeout: float, runner: Runner) -> Callable[[Path], Ran]:
    if case.failure is not None and case.failure.signature.kind == "timed out":
        timeout = max(timeout, expected.deadline_of(case.failure) + _CLOSE_TO_DEADLINE)
    # Variables that a case would keep are the script's to set: those of this process are not the case's.
    environ = environment.for_child((), os.environ)

    def run(script: Path) -> Ran:
        return runner(script, timeout=timeout, environ=environ)

    return run


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """A file with this content, or no change at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
        raise StoreError(
            f"{path} cannot be written",
            cause=in_words(error),
            remedy=f"name a place that can be written to ({free:,} bytes are free there)",
        ) from error

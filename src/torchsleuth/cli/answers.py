"""How a command answers: with something to look at, or with `--json` as data on stdout and nothing else.

    {"...": ...}                                                     what the command found
    {"error": {"what", "cause", "remedy", "file", "field"}}          it cannot be done as asked (exit code 2)

A command makes an `Answer`; `give` prints it in the form that was asked for.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from torchsleuth.case.words.wording import clean
from torchsleuth.errors import CaseError, ConfigError, MissingTorchName, NotFound, SleuthError, StoreError, in_words

_COMMAND: Final = re.compile(r"(?:see [^:;]*: )?((?:sleuth|python) [^;]+)")
"""A remedy that is a command, or that has something to be seen by one."""


@dataclass(frozen=True)
class Answer:
    """What a command found: as data, and as something to look at."""

    data: Any
    shown: Iterable[RenderableType]
    next: str
    """The next command to type."""
    code: int = 0


def give(console: Console, command: Callable[[], Answer], *, as_json: bool) -> int:
    """Run the command, print its answer, and return the exit code."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            answer = command()
        except SleuthError as error:
            if not as_json:
                raise
            return _print(console, partial(_print_json, {"error": error_data(error)}), 2)
        except Exception as error:
            if as_json:  # our fault: the words go here, and the traceback where it always goes
                _print(console, partial(_print_json, {"error": _fault(error)}), 3)
            raise
    notes = [str(note.message) for note in told if issubclass(note.category, UserWarning)]
    if as_json:
        data = answer.data if not notes else {**answer.data, "warnings": notes}
        return _print(console, partial(_print_json, data), answer.code)

    def show() -> None:
        for note in notes:
            console.print(Text(f"note: {clean(note)}", "yellow"), soft_wrap=True)
        for part in answer.shown:
            # The terminal breaks long lines of text by itself; rich would cut them into words.
            console.print(part, soft_wrap=isinstance(part, Text), highlight=False)
        console.print(Text.assemble("\nNext: ", (clean(answer.next), "bold")), soft_wrap=True, highlight=False)

    return _print(console, show, answer.code)


@contextmanager
def stdout_apart() -> Iterator[None]:
    """What is printed in this process goes to stderr: stdout is for the answer.

    So does what is printed when the process ends: what runs inside may leave handlers for that.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
        sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        atexit.unregister(_stdout_to_stderr)
        atexit.register(_stdout_to_stderr)  # the last one is called first


def _stdout_to_stderr() -> None:
    with suppress(OSError, ValueError):  # somebody has closed them
        sys.stdout.flush()
        os.dup2(2, 1)


def after(error: SleuthError) -> str:
    """The next command to type when something cannot be done."""
    if isinstance(error, NotFound):
        return "sleuth list"
    if isinstance(error, (ConfigError, MissingTorchName, StoreError)):
        return "sleuth doctor"
    if isinstance(error, CaseError) and error.file:
        return f"sleuth check-file {shlex.quote(error.file)}"
    named = _COMMAND.match(error.remedy)
    return named[1].strip() if named is not None else "sleuth --help"


def error_data(error: SleuthError) -> dict[str, str]:
    """The parts of an error, by their names."""
    return {name: str(getattr(error, name, "")) for name in ("what", "cause", "remedy", "file", "field")}


def _fault(error: Exception) -> dict[str, str]:
    what = "this is a fault of torchsleuth itself"
    return {"what": what, "cause": in_words(error), "remedy": "please report it", "file": "", "field": ""}


def _print(console: Console, show: Callable[[], None], code: int) -> int:
    try:
        show()
        console.file.flush()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        _silence_stdout()
        return 0  # whoever read has seen enough (`| head`); rich makes that a SystemExit
    except OSError as error:
        _silence_stdout()
        raise SleuthError(
            "the answer cannot be written",
            cause=in_words(error),
            remedy="see to the disk or the terminal that it goes to",
        ) from error
    return code


def _silence_stdout() -> None:
    """What is still in the buffer must not fail again when Python leaves."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(data: Any) -> None:
    """One JSON value, in ASCII: it can be printed whatever the terminal's encoding is."""
    print(json.dumps(_finite(msgspec.to_builtins(data)), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    """JSON has no word for infinities and NaN: they become text."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(item) for item in data] if isinstance(data, (list, tuple)) else data

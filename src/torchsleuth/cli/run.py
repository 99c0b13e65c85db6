"""`sleuth run`: an unchanged program under watch, in this process or in one of its own.

Input, output and exit code are the program's. Ours goes to stderr, after everything that the program has to say: so it
is printed when Python leaves, after the program's own threads and exit handlers. A program that calls `os._exit` in
this process takes us along; in a process of its own it does not.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from torchsleuth.capture import journal
from torchsleuth.capture.deaths import Death, death_of, settle
from torchsleuth.capture.lazily import unwatched
from torchsleuth.capture.program import Errand, Program
from torchsleuth.capture.watching import plan
from torchsleuth.case.stores.store import Store
from torchsleuth.case.words.wording import clean
from torchsleuth.config import After, Level
from torchsleuth.errors import SleuthError
from torchsleuth.report.watched import NOTHING, watched_lines
from torchsleuth.run.child import interpreter, run_child

_LINES_OF_STACK = 12


@dataclass(frozen=True)
class Asked:
    """What `sleuth run` was asked for; None where it was not asked."""

    words: tuple[str, ...]
    after: str | None = None
    level: str | None = None
    store: str | None = None
    isolate: bool | None = None
    timeout: float | None = None

    def settings(self) -> dict[str, Any]:
        given = {"after": self.after, "level": self.level, "store": self.store}
        return {name: value for name, value in given.items() if value is not None}


def run(err: Console, asked: Asked) -> int:
    """Run the program, and return its exit code."""
    program = Program.parse(asked.words)
    planned = plan(**asked.settings())
    level = planned.level
    if asked.timeout is not None and asked.isolate is False:
        raise SleuthError(
            "a timeout needs a process of its own",
            cause="--timeout and --no-isolate were both given, and a process cannot be counted on to stop itself",
            remedy="leave out one of the two",
        )
    isolate = asked.isolate
    if isolate is None:
        isolate = level >= Level.ALWAYS or asked.timeout is not None
    if isolate:  # what would be the use of surviving the program, and having nothing of it?
        level = max(level, Level.ALWAYS)
    store = Store.open(planned.store).files.root
    if isolate and store.startswith("memory:"):
        raise SleuthError(
            "cases in memory do not outlive the program",
            cause=f"the store is {store}, and the program runs in a process of its own",
            remedy="name a folder (--store), or run it in this process (--no-isolate)",
        )
    folder = tempfile.mkdtemp(prefix="sleuth-run-")
    errand = Errand(folder, None if planned.after is None else str(planned.after), int(level), store)
    telling = _Telling(err, errand, program, asked, planned.off)
    return _in_child(telling) if isolate else _here(telling)


def _in_child(telling: _Telling) -> int:
    try:
        command = [*interpreter(), *telling.errand.command(telling.program)]
        ended = run_child(command, timeout=telling.asked.timeout, say=telling.say)
        stack = _read(telling.errand.stack)
        telling.pid = ended.pid
        telling.death = death_of(ended, stack=stack, orderly=telling.errand.orderly.exists())
        telling.tell()
        return ended.exit_code
    finally:
        telling.clean_up()


def _here(telling: _Telling) -> int:
    """In this process, which has nothing else to do: it is the program's until it ends."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdin is not None:
        sys.stdout.reconfigure(errors=sys.stdin.errors)  # as Python has it; `main` makes it lenient for our own words
    opened = ExitStack()
    telling.pid = os.getpid()
    atexit.register(telling.at_exit, opened)
    watching = telling.errand.watching()
    if watching is not None:
        opened.enter_context(watching)
    opened.enter_context(telling.program.as_main())
    return telling.program.run()


class _Telling:
    """Says last what was kept, and how the program died."""

    def __init__(self, err: Console, errand: Errand, program: Program, asked: Asked, off: str) -> None:
        self.err = err
        self.errand = errand
        self.program = program
        self.asked = asked
        self.pid = 0
        self.death: Death | None = None
        self._off = off
        """What switched watching off."""

    def say(self, line: str) -> None:
        self.err.print(Text(f"torchsleuth: {clean(line)}" if line else ""), soft_wrap=True, highlight=False)

    def at_exit(self, opened: ExitStack) -> None:
        if os.getpid() != self.pid:
            return  # a process that the program forked, which leaves as we would
        opened.close()
        sys.stdout.flush()
        self.tell()
        self.clean_up()

    def tell(self) -> None:
        log = journal.read(self.errand.journal)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settled = settle(log, self.pid, self.death, both=self.errand.after == After.BOTH)
        for line in self._lines([*log.kept, *settled], [str(each.message) for each in told], bool(settled)):
            bold = line.startswith("Next: ")
            text = Text.assemble("Next: ", (line[6:], "bold")) if bold else Text(line)
            self.err.print(text, soft_wrap=True, highlight=False)

    def _lines(self, kept: Sequence[journal.Kept], warned: Iterable[str], settled: bool) -> Iterator[str]:
        for warning in warned:
            yield f"torchsleuth: warning: {clean(warning)}"
        if self.death is not None and (settled or self.death.is_violent):
            yield from self._of_death(self.death, settled)
        why_not = self._off or _read(unwatched(self.errand.journal))
        if kept:
            first, *rest = watched_lines(kept)
            yield f"torchsleuth: {first}"
            yield from rest
        elif why_not:
            switched = f"watching is switched off by {why_not}" if self._off else clean(why_not)
            yield f"torchsleuth: nothing was watched: {switched}"
            yield "Next: sleuth doctor"
        elif self.death is None or not self.death.is_violent:
            yield f"torchsleuth: {NOTHING}"
        else:
            yield "Next: sleuth doctor"

    def _of_death(self, death: Death, settled: bool) -> Iterator[str]:
        words = f"torchsleuth: the program {death.words}"
        if settled:
            yield words
            return
        yield f"{words}, outside of every first run of a watched graph; only those are kept"
        lines = death.stack.splitlines()
        if lines:
            yield from (clean(line) for line in lines[:_LINES_OF_STACK])
            if len(lines) > _LINES_OF_STACK:
                yield f"  ... {len(lines) - _LINES_OF_STACK} more lines"

    def clean_up(self) -> None:
        shutil.rmtree(self.errand.folder, ignore_errors=True)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def with_program_apart(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """The arguments with `--` before `-m MODULE`: what follows that is the program's, also what looks like ours."""
    found = list(arguments)
    index = 0
    while index < len(found):
        word = found[index]
        if word == "--" or not word.startswith("-") or word == "-":
            break
        if word.startswith("-m"):
            return [*found[:index], "--", *found[index:]]
        index += 2 if takes_value.get(word, False) else 1
    return found

"""`sleuth minify`: the smallest program that still shows a failure.

Exit codes: 0 there is a smallest one, and it was seen to fail in a fresh interpreter (or by the user's test); 1 the
failure does not show here, or what was found could not be verified; 2 it cannot be done as asked; 3 our own fault; 130
it was interrupted (what was found until then is kept and told).
"""

from __future__ import annotations

import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.case.words.wording import clean, one_line
from torchsleuth.cli.answers import Answer, error_data
from torchsleuth.cli.minify_wanted import Wanted, check, job_of, terms_of
from torchsleuth.cli.replay import Asked
from torchsleuth.errors import DoesNotFail, SleuthError, in_words

if TYPE_CHECKING:
    from torchsleuth.reduce.commanding import Commanded
    from torchsleuth.reduce.jobs import Job, Ledger
    from torchsleuth.reduce.minifying import Reduction, Terms
    from torchsleuth.run.delivery import Delivery
    from torchsleuth.run.query import Runner

INTERRUPTED: Final = 130
_CODES: Final = {"passed": 1, "other": 1, "timeout": 1, "invalid": 2, "broken": 3}
"""If the whole case answers so."""


def minify(err: Console, wanted: Wanted, *, width: int = 100, as_json: bool = False) -> Answer:
    """Make a case as small as it can be. The exit codes are above."""
    from torchsleuth.reduce.jobs import folder_of, last, name_of, started

    check(wanted)
    asked = Asked(wanted.name, wanted.store, trust=wanted.trust)
    found = asked.found()
    store = Store.open(wanted.store)
    folder = folder_of(store)
    try:
        job = job_of(wanted, folder, name_of(found))
    except SleuthError as error:
        if not wanted.resume:
            raise
        return _refused(error, _instead(wanted, asked, found, last(folder, name_of(found))), 2)
    with started(folder, job) as ledger, _running(job) as runner:
        terms = terms_of(wanted, job)  # imports torch, which takes long: the workers do the same meanwhile
        return _Minifying(err, wanted, asked, found, store, ledger, terms, runner, quiet=as_json).answer(width)


@contextmanager
def _running(job: Job) -> Iterator[Runner]:
    """Who runs cases, or computes values for the user's test."""
    from torchsleuth.run.runners.warm import Warm

    with Warm(workers=1 if job.test else job.workers, memory=job.memory) as runner:
        if not job.test:
            runner.start()
        yield runner


class _Minifying:
    """One run of the command."""

    def __init__(
        self,
        err: Console,
        wanted: Wanted,
        asked: Asked,
        found: Found,
        store: Store,
        ledger: Ledger,
        terms: Terms,
        runner: Runner,
        *,
        quiet: bool,
    ) -> None:
        from torchsleuth.cli.minify_progress import Sofar

        self._err = err
        self._wanted = wanted
        self._asked = asked
        self._found = found
        self._store = store
        self._ledger = ledger
        self._quiet = quiet
        self._terms = terms
        self._runner = runner
        self._sofar = Sofar(ledger.job.case, passes=len(terms.tiers) + 1, budget=terms.budget)

    def answer(self, width: int) -> Answer:
        interrupted = _Interrupts()
        try:
            with interrupted.counted():
                reduction = self._reduced()
        except KeyboardInterrupt:
            return self._left()
        except DoesNotFail as error:
            return self._not_there(error)
        self._ledger.finish(why=reduction.why, result=reduction.entry.id if reduction.entry is not None else "")
        return self._told(reduction, width, interrupted.count > 0)

    def _reduced(self) -> Reduction:
        from torchsleuth.cli.minify_progress import shown
        from torchsleuth.reduce.minifying import minify

        with ExitStack() as stack:
            oracle = stack.enter_context(self._test()) if self._ledger.job.test else None
            observer = stack.enter_context(shown(self._err, self._sofar, quiet=self._quiet))
            return minify(
                self._found,
                oracle=oracle,
                runner=self._runner,
                store=self._store,
                terms=self._terms,
                observers=[observer],
            )

    def _test(self) -> Commanded:
        """The user's own."""
        from torchsleuth.reduce.commanding import Commanded
        from torchsleuth.run.runners.client import cores

        job = self._ledger.job
        return Commanded(
            job.test,
            self._store,
            workers=job.workers or cores(),
            deadline=job.deadline,
            trust=job.trust,
            folder=self._ledger.work,
        )

    # ---- how it ended ----------------------------------------------------------------------------------------

    def _not_there(self, error: DoesNotFail) -> Answer:
        self._ledger.finish()
        following = self._asked.command("verify", self._found)
        if error.verdict == "broken":
            following = "sleuth doctor"
        elif "--trust" in error.cause and not self._wanted.trust:
            following = self._asked.command("minify", self._found, "--trust", *self._test_again())
        elif self._ledger.job.test:
            following = self._asked.command("export", self._found, "-o", "repro.py")
            error = _said_by_test(error, self._ledger.job.test)
        return _refused(error, following, _CODES[error.verdict], case=self._ledger.job.case, verdict=error.verdict)

    def _left(self) -> Answer:
        """Interrupted before there was a result, or while its script was run."""
        self._ledger.finish(why="it was interrupted")
        sofar = self._sofar
        shown = [Text("interrupted; what was found out is kept", "bold yellow"), Text(sofar.line(), "dim")]
        data = {"case": self._ledger.job.case, "verified": False, "interrupted": True, "queries": sofar.asked}
        return Answer(data, shown, self._to_go_on(), INTERRUPTED)

    def _told(self, reduction: Reduction, width: int, interrupted: bool) -> Answer:
        from torchsleuth.report.reduction import reduction_data, render_reduction

        by_test = bool(self._ledger.job.test)
        script, failed = self._copied(reduction)
        data: dict[str, Any] = {
            "case": self._ledger.job.case,
            **reduction_data(reduction, by_test=by_test),
            "copy": None if script is None else str(script),
            "copy_failed": failed,
            "interrupted": interrupted,
        }
        shown = [*render_reduction(reduction, width=width, by_test=by_test)]
        if failed:
            shown.append(Text(f"warning: there is no script at {clean(str(self._wanted.output))}: {failed}", "yellow"))
        where = script or reduction.script
        if where is not None:
            shown.append(Text(clean(str(where)), "bold"))
        is_good = reduction.is_verified or (by_test and reduction.entry is not None)
        code = 0 if is_good or _is_minimal_already(reduction) else 1
        code = INTERRUPTED if interrupted else 2 if reduction.is_broken else code
        return Answer(data, shown, self._next(reduction, where, is_good), code)

    def _copied(self, reduction: Reduction) -> tuple[Path | None, str]:
        """The script, and what lies beside it, where the user wants it; or why it is not there."""
        out = self._wanted.output
        if out is None:
            return None, ""
        try:
            return self._copy(reduction.delivery, out), ""
        except SleuthError as error:
            return None, one_line(f"{error.what}: {error.cause}")
        except OSError as error:
            return None, one_line(in_words(error))

    def _copy(self, delivery: Delivery | None, out: Path) -> Path:
        if delivery is None:
            from torchsleuth.run.delivery import deliver

            return deliver(self._found.blobs, self._found.case, out, trust=self._wanted.trust, run=False).script
        out.parent.mkdir(parents=True, exist_ok=True)
        with suppress(shutil.SameFileError):
            if delivery.beside is not None:
                shutil.copyfile(delivery.beside, out.parent / delivery.beside.name)
            shutil.copyfile(delivery.script, out)
        return out

    def _next(self, reduction: Reduction, script: Path | None, is_good: bool) -> str:
        if reduction.why:
            return self._to_go_on()
        if reduction.entry is None:
            return self._asked.command("export", self._found, "-o", "repro.py")
        if is_good and script is not None:
            return f"python {shlex.quote(str(script))}"
        store = [] if self._wanted.store is None else ["--store", self._wanted.store]
        return shlex.join(["sleuth", "verify", reduction.entry.id, *store])

    def _to_go_on(self) -> str:
        return self._asked.command("minify", self._found, "--resume", *self._test_again())

    def _test_again(self) -> list[str]:
        return [] if self._wanted.test is None else ["--test", self._wanted.test]


def _is_minimal_already(reduction: Reduction) -> bool:
    return reduction.entry is None and not reduction.why


class _Interrupts:
    """Ctrl-C, or a polite request to end: the first stops minifying, the next one everything."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        raise KeyboardInterrupt


# ---- what there is to say instead ----------------------------------------------------------------------------


def _said_by_test(error: DoesNotFail, test: tuple[str, ...]) -> DoesNotFail:
    """That the whole case does not fail, if it is the user's test that says so."""
    says = "your test says that the whole case does not fail"
    if error.verdict != "passed":
        says = "your test does not say that the whole case fails"
    return DoesNotFail(
        says,
        cause=error.cause.rpartition("; seen: ")[2],
        remedy=f"write the script of the case, and try the test on it: {shlex.join([*test, 'repro.py'])}; it has to "
        "end with exit code 1 if the failure is there",
        verdict=error.verdict,
    )


def _refused(error: SleuthError, following: str, code: int, **more: str) -> Answer:
    """An error after which something better can be typed than what all errors have in common."""
    shown = [
        Text.assemble(("error: ", "bold red"), clean(error.what)),
        Text.assemble(("  cause:  ", "dim"), clean(error.cause)),
        Text.assemble(("  remedy: ", "dim"), clean(error.remedy)),
    ]
    return Answer({**more, "verified": False, "error": error_data(error)}, shown, following, code)


def _instead(wanted: Wanted, asked: Asked, found: Found, before: Job | None) -> str:
    """What to type where `--resume` is not enough."""
    if before is None or before.is_done:
        return asked.command("minify", found, *([] if wanted.test is None else ["--test", wanted.test]))
    test = wanted.test or shlex.join(before.test)
    words = [*(["--test", test] if test else []), *(["--trust"] if before.trust and not wanted.trust else [])]
    return asked.command("minify", found, "--resume", *words)

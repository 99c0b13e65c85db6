"""`pytest --sleuth`: every test is watched, and a failing test's report says where its case is.

    pytest --sleuth [--sleuth-after aot|dynamo|both] [--sleuth-level LEVEL] [--sleuth-store PLACE]

Cases that were kept while a test passed, since it caught the exception, are in the summary at the end; so are those of
processes that a test forked, and at level 3 those of a worker of pytest-xdist that died. Under pytest-xdist the workers
watch, and the main process sums up.

pytest imports this module in every run, so it imports nothing of ours, and no torch, unless it is asked to watch.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchsleuth.capture.lazily import Lazily

_KEPT = "torchsleuth_kept"
"""What a report carries, also from a worker to the main process: the cases of its test, as JSON has them."""
_JOURNAL = "torchsleuth_journal"
"""What a worker is told: the file of the main process in which all write down what they keep."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchsleuth", "what torch.compile got wrong")
    group.addoption("--sleuth", action="store_true", help="Watch torch.compile in every test; failures become cases.")
    group.addoption(
        "--sleuth-after",
        metavar="STAGE",
        help="Which graphs are watched: aot (default), dynamo or both (default at level 4).",
    )
    group.addoption("--sleuth-level", metavar="LEVEL", help="dump, minify, always, accuracy; or 1 to 4.")
    group.addoption("--sleuth-store", metavar="PLACE", help="A folder or URL for the cases.")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("sleuth"):
        return
    told = getattr(config, "workerinput", {}).get(_JOURNAL)
    journal = Path(told) if told else Path(tempfile.mkdtemp(prefix="sleuth-pytest-"), "journal")
    watching = _watching(config, journal)
    if watching is not None:
        plugin = _Worker(watching) if told else _Main(watching, journal)
        if told or config.getoption("dist", "no") == "no":
            watching.__enter__()
        config.pluginmanager.register(plugin, "torchsleuth-watching")


def _watching(config: pytest.Config, journal: Path) -> Lazily | None:
    """What the options and the settings ask for."""
    from torchsleuth.capture.lazily import Lazily
    from torchsleuth.capture.watching import plan
    from torchsleuth.errors import ConfigError

    given = {name: config.getoption(f"sleuth_{name}") for name in ("after", "level", "store")}
    try:
        asked = plan(**{name: value for name, value in given.items() if value is not None})
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    if asked.after is None:
        return None
    return Lazily(after=asked.after, level=asked.level, store=asked.store, journal=journal)


@dataclass(frozen=True)
class _Case:
    """What is told of a case."""

    path: str
    words: str
    next: str

    @classmethod
    def of(cls, kept: Any) -> _Case:
        return cls(kept.path, kept.words, kept.next)


class _Worker:
    """Where tests run: puts the cases of a test into its reports."""

    def __init__(self, watching: Lazily) -> None:
        self._watching = watching
        self._before = 0
        """How many cases there were when this test began."""

    def pytest_runtest_logstart(self) -> None:
        self._before = len(self._watching.kept)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        outcome: Any = yield
        self._add_to(outcome.get_result())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        self._before = len(self._watching.kept)
        outcome: Any = yield
        self._add_to(outcome.get_result())

    def _add_to(self, report: Any) -> None:
        cases = [_Case.of(kept) for kept in self._watching.kept[self._before :]]
        if not cases:
            return
        setattr(report, _KEPT, [asdict(case) for case in cases])
        if report.failed:
            report.sections.append(("torchsleuth", "\n".join(_blocks(cases))))

    def pytest_unconfigure(self) -> None:
        self._watching.__exit__(None, None, None)


class _Main(_Worker):
    """Where pytest was started: also sums up what was kept, here and elsewhere."""

    def __init__(self, watching: Lazily, journal: Path) -> None:
        super().__init__(watching)
        self._journal = journal
        self._tests: dict[_Case, str] = {}
        """The cases that came with a report, and the test."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """pytest-xdist starts a worker."""
        node.workerinput[_JOURNAL] = str(self._journal)

    def pytest_runtest_logreport(self, report: Any) -> None:
        for data in getattr(report, _KEPT, ()):
            self._tests.setdefault(_Case(**data), report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        cases = dict.fromkeys(self._tests)
        cases.update(dict.fromkeys(self._unreported()))
        failed = self._why_unwatched()
        if not cases and not failed:
            return
        terminalreporter.section("torchsleuth", yellow=True)
        if failed:
            terminalreporter.write_line(f"nothing was watched: {failed}")
        for number, case in enumerate(cases):
            if number:
                terminalreporter.write_line("")
            if case in self._tests:
                terminalreporter.write_line(self._tests[case], bold=True)
            for line in _blocks([case]):
                terminalreporter.write_line(line)

    def _unreported(self) -> Iterator[_Case]:
        """The cases of which only the journal tells: those of forked processes, and of workers that died."""
        from torchsleuth.capture.deaths import settle
        from torchsleuth.capture.journal import read

        log = read(self._journal)
        for kept in (*log.kept, *settle(log, 0, None)):
            yield _Case.of(kept)

    def _why_unwatched(self) -> str:
        from torchsleuth.capture.lazily import unwatched

        with contextlib.suppress(OSError):
            return unwatched(self._journal).read_text(encoding="utf-8")
        return ""

    def pytest_unconfigure(self) -> None:
        super().pytest_unconfigure()
        shutil.rmtree(self._journal.parent, ignore_errors=True)


def _blocks(cases: Iterable[_Case]) -> Iterator[str]:
    """Lines for people."""
    from torchsleuth.report.watched import block

    for number, case in enumerate(cases):
        if number:
            yield ""
        yield from block(case)

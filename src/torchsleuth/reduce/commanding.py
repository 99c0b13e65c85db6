"""A command of the user's that says whether a case still fails: `sleuth minify CASE --test ./check.sh`.

    exit code 1     it still fails
    exit code 0     it does not
    exit code 125   nobody can say: this one is left out

Each case comes in a folder of its own: `repro.py`, `case.json`, its tensors. The command gets the path of the script as
its last argument, and finds the two in its environment, as SLEUTH_SCRIPT and SLEUTH_CASE. It runs where sleuth was
started, in a session of its own. When it is over, out of time, or no longer needed, whatever is left in that session is
killed, and the folder goes; what has left the session of a test that is over (a server that it started, say) lives on.
Any other exit code, or a death, is a test that does not work: that is an error, not an answer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

import msgspec

from torchsleuth.case.format import reading
from torchsleuth.case.format.digests import Hasher
from torchsleuth.case.format.tensor_files import SUFFIX
from torchsleuth.case.schema import Case, Stored
from torchsleuth.case.storages.blobs import FolderBlobs
from torchsleuth.case.stores.files import CASE_FILE, LocalFiles
from torchsleuth.case.stores.store import Store
from torchsleuth.case.words.wording import one_line
from torchsleuth.errors import BadCase, CannotHold, SleuthError, in_words
from torchsleuth.outcome import signal_name
from torchsleuth.reduce.executors import Answer
from torchsleuth.run.delivery import deliver
from torchsleuth.run.oracle import Verdict
from torchsleuth.run.printed import Printed
from torchsleuth.run.runners import folders
from torchsleuth.run.runners.processes import kill_all_of
from torchsleuth.run.scripts import TIMEOUT

CODES: Final = {1: Verdict.SAME, 0: Verdict.PASSED, 125: Verdict.INVALID}
"""What the exit codes of a test mean."""
_MEANING: Final = "1: it still fails, 0: it does not, 125: nobody can say"
_LAST_LINES: Final = 3
_CHUNK: Final = 1 << 16
_CHUNKS_AFTERWARDS: Final = 64
"""How many are read of a command that is over."""
_LONGEST_PAUSE: Final = 0.02


def words_of(command: str) -> tuple[str, ...]:
    """The words of a command as somebody types it. A `SleuthError` if there is no such program."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise _no_test(command, in_words(error), "close the quotation mark") from error
    if not words:
        raise _no_test(command, "it is empty", "name a program: --test ./check.sh")
    _check_program(words[0], command)
    return words


class Commanded:
    """Answers by a command. Several at a time, each in a thread that waits for its process. To be closed."""

    def __init__(
        self,
        command: Sequence[str],
        store: Store,
        *,
        workers: int = 1,
        deadline: float | None = None,
        trust: bool = False,
        folder: Path | None = None,
    ) -> None:
        """`store`: where the tensors of the cases are. `folder`: where those of the cases go (a temporary one)."""
        self._command = tuple(command)
        self._said = shlex.join(self._command)
        _check_program(self._command[0], self._said)
        self._store = store
        self._deadline = TIMEOUT if deadline is None else deadline
        self._trust = trust
        self._folder = folder
        self.workers = workers
        self.terms = _terms(self._command, self._deadline)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sleuth-test")
        self._lock = threading.Lock()
        self._open: set[Future[Answer]] = set()
        self._closed = False

    def __enter__(self) -> Commanded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End whatever runs. No test is left when this returns."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        for future in left:
            future.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def submit(self, case: Case) -> Future[Answer]:
        """Ask. The future can be cancelled until it is answered."""
        future: Future[Answer] = Future()
        stop = threading.Event()
        with self._lock:
            if self._closed:
                raise SleuthError("this test is closed", cause="its `with` is over", remedy="make a new one")
            self._open.add(future)
            future.add_done_callback(lambda done: self._over(done, stop))
            self._threads.submit(self._answer, case, future, stop)
        return future

    def _over(self, future: Future[Answer], stop: threading.Event) -> None:
        self._open.discard(future)
        if future.cancelled():
            stop.set()

    # ---- in a thread -----------------------------------------------------------------------------------------

    def _answer(self, case: Case, future: Future[Answer], stop: threading.Event) -> None:
        if stop.is_set():
            return
        try:
            answer = self._asked(case, stop)
        except BaseException as error:  # noqa: BLE001 - it is the waiting side's to raise
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if answer is not None and future.set_running_or_notify_cancel():
            future.set_result(answer)

    def _asked(self, case: Case, stop: threading.Event) -> Answer | None:
        """None: nobody wants to know any more."""
        began = time.monotonic()
        with _emptied(self._folder) as folder:
            script = folder / "repro.py"
            try:
                written = deliver(self._store.blobs, case, script, trust=self._trust, run=False)
                self._write_case(case, folder)
            except (BadCase, CannotHold) as error:
                return Answer(Verdict.INVALID, words=f"it is no case: {error.what}")
            if written.notice:
                return Answer(Verdict.INVALID, words=f"there is no script of it: {written.not_run}")
            ended, printed = self._run(script, stop)
        seconds = time.monotonic() - began
        if stop.is_set():
            return None
        if ended is None:
            return Answer(Verdict.TIMEOUT, seconds, f"the test had no end within {self._deadline:g} s")
        if ended not in CODES:
            raise self._broken(ended, printed)
        return Answer(CODES[ended], seconds, f"the test ended with exit code {ended}")

    def _write_case(self, case: Case, folder: Path) -> None:
        """The case beside its script, so that any other command of sleuth takes the folder."""
        tensors = folder / "tensors"
        tensors.mkdir()
        files = self._store.files
        for storage in case.storages:
            if not isinstance(storage.content, Stored):
                continue
            name = f"{storage.content.digest}{SUFFIX}"
            if isinstance(files, LocalFiles):
                with contextlib.suppress(FileExistsError):
                    (tensors / name).symlink_to(files.folder.absolute() / "tensors" / name)
            else:
                FolderBlobs(tensors).put(self._store.blobs.get(storage.content.digest, storage.nbytes))
        (folder / CASE_FILE).write_bytes(reading.encode(case))

    def _run(self, script: Path, stop: threading.Event) -> tuple[int | None, str]:
        """The exit code of the command, below 0 for a signal, None if it had no end; and what it printed."""
        process = self._start(script)
        assert process.stdout is not None
        output = _Output(process.stdout)
        try:
            in_time = _wait(process, self._deadline, stop)
        finally:
            _end(process)
        return process.returncode if in_time else None, output.text()

    def _start(self, script: Path) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*self._command, str(script)],
                env={**os.environ, "SLEUTH_CASE": str(script.parent), "SLEUTH_SCRIPT": str(script)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _no_test(
                self._said, in_words(error), "see that it can be executed, and that its first line is #!/bin/sh or so"
            ) from error

    def _broken(self, code: int, printed: str) -> SleuthError:
        how = f"died of {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        last = [one_line(line, 160) for line in printed.splitlines() if line.strip()][-_LAST_LINES:]
        said = f"; it said last: {' / '.join(last)}" if last else ""
        return SleuthError(
            f"the test `{self._said}` does not work: it {how}",
            cause=f"a test ends with one of these ({_MEANING}){said}",
            remedy="try it by hand on the repro.py beside the case; what it has answered is kept until it is edited",
        )


# ---- pieces --------------------------------------------------------------------------------------------------


class _Output:
    """Reads what a command prints, and keeps the beginning and the end of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._printed = Printed()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        left = _CHUNKS_AFTERWARDS
        with self._stream, selectors.DefaultSelector() as ready:
            ready.register(self._stream, selectors.EVENT_READ)
            while left:
                is_over = self._over.is_set()
                if ready.select(_LONGEST_PAUSE):
                    chunk = os.read(self._stream.fileno(), _CHUNK)
                    if not chunk:
                        return
                    self._printed.add(chunk)
                elif is_over:
                    return
                left -= is_over

    def text(self) -> str:
        """What there is, once the command is over: a process that left the session may hold the other end for long."""
        self._over.set()
        self._thread.join()
        return self._printed.text()


def _wait(process: subprocess.Popen[bytes], deadline: float, stop: threading.Event) -> bool:
    """Whether a process came to its end before the deadline, and before it was told to stop."""
    end = time.monotonic() + deadline
    pause = 0.001
    while process.poll() is None:
        if stop.wait(pause) or time.monotonic() > end:
            return False
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started; of one that is over already, only what is still in its session."""
    if process.poll() is None:
        kill_all_of(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has left in the background
    process.wait()


@contextlib.contextmanager
def _emptied(inside: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    if inside is not None:
        inside.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="sleuth-test-", dir=inside)
    try:
        yield Path(folder)
    finally:
        folders.remove(folder)


def _check_program(program: str, said: str) -> None:
    if shutil.which(program) is not None:
        return
    if os.path.isfile(program) and not os.path.dirname(program):
        raise _no_test(said, f"{program} is not on the PATH", f"say ./{program}")
    if os.path.isfile(program):
        raise _no_test(said, f"{program} may not be executed", f"chmod +x {shlex.quote(program)}")
    raise _no_test(said, f"there is no program {program}", "give its path: --test ./check.sh")


def _no_test(command: str, cause: str, remedy: str) -> SleuthError:
    return SleuthError(f"`{one_line(command, 200)}` cannot be run as a test", cause=cause, remedy=remedy)


def _terms(command: Sequence[str], deadline: float) -> bytes:
    """What the answers depend on: the words, and what is in the files that they name."""
    return msgspec.json.encode(("command", command, [_digest(word) for word in command], deadline))


def _digest(word: str) -> str:
    path = shutil.which(word) or word
    hasher = Hasher()
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                hasher.update(piece)
    except (OSError, ValueError):
        return ""
    return hasher.digest()

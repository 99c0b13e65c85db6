"""A Python script in an interpreter of its own: what it printed, and how it ended. It cannot take us along.

    ran = run_script(path, timeout=60)
    ran.code, ran.signal, ran.timed_out        exactly one of these says how it ended
    ran.stdout, ran.stderr                     at most `MOST_OUTPUT` characters each: the beginning and the end

The script runs in a folder that is not its own, in a session of its own. When it is over, or out of time, or we are
interrupted, whatever it started is killed with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from torchsleuth.errors import StoreError, in_words
from torchsleuth.outcome import signal_name
from torchsleuth.run.printed import MOST, Printed

MOST_OUTPUT: Final = MOST
"""How much is kept of each stream."""
TIMEOUT: Final = 600.0
_CHUNK: Final = 64 * 1024


@dataclass(frozen=True)
class Ran:
    """What a run of a script did."""

    code: int | None
    """Its exit code, if it came to an end by itself."""
    signal: int | None = None
    """What it died of."""
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    def describe(self) -> str:
        """How it ended, in words."""
        if self.timed_out:
            return f"no end within {self.seconds:.0f} s"
        if self.signal is not None:
            return f"died of {signal_name(self.signal)}"
        return f"exit code {self.code}"


def run_script(script: Path, *, timeout: float = TIMEOUT, environ: Mapping[str, str] | None = None) -> Ran:
    """Run a script with this Python, far from its own folder, for at most `timeout` seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sleuth-", ignore_cleanup_errors=True) as elsewhere:
        process = _start(script.resolve(), elsewhere, environ)
        streams = [_Kept(stream) for stream in (process.stdout, process.stderr) if stream is not None]
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill(process)
        stdout, stderr = (stream.text() for stream in streams)
    code = process.returncode
    return Ran(
        code=None if timed_out or code < 0 else code,
        signal=-code if code < 0 and not timed_out else None,
        timed_out=timed_out,
        stdout=stdout,
        stderr=stderr,
        seconds=time.monotonic() - began,
    )


def _start(script: Path, folder: str, environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, str(script)],
            cwd=folder,
            env=dict(os.environ if environ is None else environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{script} cannot be run",
            cause=in_words(error),
            remedy="see to it that Python can be started here, or do without: --no-run",
        ) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Kept:
    """Reads a stream to its end, and keeps the beginning and the end of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._printed = Printed(MOST_OUTPUT)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), _CHUNK):
            self._printed.add(chunk)

    def text(self) -> str:
        self._thread.join(timeout=5.0)  # a process that left the session may still hold the other end
        return self._printed.text()

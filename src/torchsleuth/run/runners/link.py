"""A server process as its runner sees it: started, spoken to, listened to, ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import Final, Protocol

from torchsleuth.errors import SleuthError, in_words
from torchsleuth.run.runners import folders, processes, server, wire
from torchsleuth.run.runners.slate import dump_file
from torchsleuth.run.runners.starting import start

log = logging.getLogger("torchsleuth.run")

_GRACE: Final = 5.0
"""Seconds that a server has to end."""
_MOST_WORDS: Final = 100_000


class Owner(Protocol):
    """Who is told what the server says, in the thread that listens to it."""

    def _hear(self, message: wire.Message) -> None: ...

    def _lost(self, link: Link) -> None:
        """It has died."""


class Link:
    """A server process, and the thread that listens to it."""

    def __init__(
        self, owner: Owner, how: str, workers: int, queries: int, deadline: float | None, memory: int | None
    ) -> None:
        if os.name != "posix":
            raise SleuthError(
                "queries cannot be given to other processes here",
                cause=f"that needs Linux or macOS, and this is {sys.platform}",
                remedy="run queries in this process: InProcess()",
            )
        self._owner = weakref.ref(owner)
        self._sending = threading.Lock()
        self._ending = False
        self._pid = os.getpid()
        self.has_spoken = False
        self.last_words = ""
        """What is known of its death."""
        try:
            with contextlib.ExitStack() as made:
                self._start(made)
                self.send(wire.Begin(how, workers, queries, self.folder, os.getpid(), deadline, memory))
                self._thread = threading.Thread(target=self._listen, name="torchsleuth runner", daemon=True)
                self._thread.start()
                made.pop_all()
        except (OSError, RuntimeError) as error:  # also: no more threads
            raise SleuthError(
                "a process for queries cannot be started",
                cause=in_words(error),
                remedy="see to it that Python can be started here, or run queries in this process: InProcess()",
            ) from error

    def _start(self, made: contextlib.ExitStack) -> None:
        self.folder = tempfile.mkdtemp(prefix="sleuth-runner-")
        made.callback(folders.remove, self.folder)
        self._words = dump_file()
        made.callback(os.close, self._words)
        self._ours, theirs = socket.socketpair()
        made.enter_context(self._ours)
        with theirs:
            self.process: subprocess.Popen[bytes] = start(
                "torchsleuth.run.runners.server",
                [theirs.fileno()],
                [theirs.fileno()],
                variables={server.MARK: self.folder},
                stderr=self._words,
            )
        made.callback(self.process.wait)
        made.callback(self.process.kill)

    def send(self, message: wire.Message) -> None:
        with contextlib.suppress(OSError), self._sending:  # if it is gone, the thread will notice
            self._ours.sendall(wire.encoded(message))

    def _listen(self) -> None:
        incoming = wire.Incoming()
        while True:
            try:
                data = self._ours.recv(1 << 20)
            except OSError:
                data = b""
            owner = self._owner()
            if not data or owner is None:
                break
            self.has_spoken = True
            try:
                for message in incoming.add(data):
                    owner._hear(message)
            except Exception:  # a thread that ends without a word leaves everybody waiting
                log.exception("the server of the workers makes no sense")
                break
            del owner
        if owner is not None and not self._ending:
            owner._lost(self)

    def end(self) -> None:
        """Have the server end everything; end it ourselves if it does not. May be called twice."""
        if self._ending or os.getpid() != self._pid:
            return
        self._ending = True
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self.sweep()
        if threading.current_thread() is not self._thread:
            self._thread.join(_GRACE)
        self._ours.close()
        self.last_words = self._said() or f"it ended with {self.process.returncode}"
        os.close(self._words)

    def _said(self) -> str:
        lines = os.pread(self._words, _MOST_WORDS, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def sweep(self) -> None:
        """Wait for the server, and end what it may have left behind."""
        try:
            self.process.wait(_GRACE)
            clean = self.process.returncode == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            clean = False
        if not clean:
            processes.kill(processes.marked(server.mark(self.folder)), signal.SIGKILL)
        folders.remove(self.folder)

"""How a server comes by workers: forked off a template, or as new interpreters."""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Final

from torchsleuth.case.surroundings import environment
from torchsleuth.errors import in_words
from torchsleuth.run.runners import folders, processes, wire
from torchsleuth.run.runners.deadlines import START
from torchsleuth.run.runners.files import Files
from torchsleuth.run.runners.output import Output
from torchsleuth.run.runners.starting import start
from torchsleuth.run.runners.supervision import Worker
from torchsleuth.run.runners.template import VARIABLES

_MOST_FAILURES: Final = 3


class Maker:
    """Makes workers. `how` is "" until that is known, then "fork" or "spawn"; `why` it is not as it was asked for."""

    def __init__(self, begin: wire.Begin) -> None:
        self._begin = begin
        self._template: _Template | None = None
        self._numbers = itertools.count(1)
        self._failures = 0
        self.how = ""
        self.why = ""
        self.why_not = ""
        """Why no worker can be made at all, if that is so."""
        if begin.start == "spawn":
            self.how = "spawn"
        elif not processes.LINUX:
            self._spawn("processes are forked on Linux only")
        else:
            self._warm_up()

    def _warm_up(self) -> None:
        """Have a template."""
        self.how = ""
        try:
            folder = os.path.join(self._begin.folder, f"template-{next(self._numbers)}")
            self._template = _Template(folder, kernels=not self._failures)
        except OSError as error:
            self._spawn(f"the process that workers are forked off cannot be started: {in_words(error)}")

    def _spawn(self, why: str) -> None:
        if self._template is not None:
            self._template.end()
            self._template = None
        if self._begin.start == "fork":
            self.why_not = f"workers cannot be forked here: {why}"
        self.how, self.why = "spawn", why

    @property
    def is_ready(self) -> bool:
        return bool(self.how)

    @property
    def is_at_work(self) -> bool:
        return not self.how

    def readable(self) -> list[int]:
        return [] if self._template is None else self._template.readable()

    def pids(self) -> set[int]:
        """The processes that are ours, without workers."""
        return set() if self._template is None else {self._template.pid}

    def look(self) -> None:
        """See how the template is."""
        template = self._template
        if template is None:
            return
        template.read()
        if template.warmed is not None and template.warmed.unsafe:
            self._spawn(template.warmed.unsafe)
        elif template.warmed is not None and not self.how:
            folders.give_back(template.folder, kernels=True)
            self.how = "fork"
        elif template.has_died or (template.warmed is None and time.monotonic() - template.started > START):
            said = template.last_words()
            template.end()
            self._template = None
            self._failures += 1
            if self._failures < _MOST_FAILURES:
                self._warm_up()
            else:
                self._spawn(f"the process that workers are forked off does not live: {said}")

    def failed(self) -> None:
        """A worker that we made did not come to be."""
        if self._template is not None:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self._spawn("forked workers do not start")

    def make(self, given: Mapping[str, str], *, whole: bool = True) -> Worker:
        """A worker, which will say when it is ready. One that is a new interpreter has the variables that are given,
        and none of ours that a case would have. `whole`: it will need all of torch.compile. An OSError says what there
        is too little of."""
        with contextlib.ExitStack() as made:
            folder = os.path.join(self._begin.folder, f"worker-{next(self._numbers)}")
            made.callback(folders.remove, folder)
            variables = folders.make(folder)
            files = Files()
            made.callback(files.close_ours)
            try:
                process = self._process(files, folder, variables, given, whole)
            finally:
                files.close_worker_s()
            made.pop_all()
        return Worker(files, folder, process, None if process is None else given)

    def _process(
        self, files: Files, folder: str, variables: Mapping[str, str], given: Mapping[str, str], whole: bool
    ) -> subprocess.Popen[bytes] | None:
        """None if it is forked."""
        if self._template is not None:
            usual = {name: os.environ.get(name) for name in VARIABLES}
            self._template.cast(wire.Cast(os.getpid(), folder, {**usual, **variables}, whole), files.of_worker())
            return None
        fds = files.of_worker()
        return start(
            "torchsleuth.run.runners.worker",
            [os.getpid(), folder, fds],
            fds,
            variables=variables,
            environ={**environment.for_child((), os.environ), **given},
            stdout=files.stdout_end,
            stderr=files.stderr_end,
        )

    def end(self) -> None:
        if self._template is not None:
            self._template.end()


class _Template:
    """A template process, seen from outside. `kernels`: those of an earlier one may be used."""

    def __init__(self, folder: str, *, kernels: bool) -> None:
        self.folder = folder
        self.warmed: wire.Warmed | None = None
        self.started = time.monotonic()
        with contextlib.ExitStack() as made:
            made.callback(folders.remove, folder)
            variables = {**VARIABLES, **folders.make(folder, kernels=kernels)}
            ours, theirs = socket.socketpair()
            made.enter_context(ours)
            with theirs:
                said, saying = os.pipe()
                made.callback(os.close, said)
                try:
                    self._process = start(
                        "torchsleuth.run.runners.template",
                        [os.getpid(), theirs.fileno()],
                        [theirs.fileno()],
                        variables=variables,
                        stdout=saying,
                        stderr=saying,
                    )
                finally:
                    os.close(saying)
            made.pop_all()
        self._channel = wire.Channel(ours)
        self._said = Output(said)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_died(self) -> bool:
        return self._process.poll() is not None

    def readable(self) -> list[int]:
        found = [] if self._channel.closed else [self._channel.sock.fileno()]
        return found if self._said.ended else [*found, self._said.fd]

    def read(self) -> None:
        self._said.read()
        for message in self._channel.receive():
            if isinstance(message, wire.Warmed):
                self.warmed = message

    def last_words(self) -> str:
        lines = self._said.text().strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._process.poll()}"

    def cast(self, message: wire.Cast, fds: list[int]) -> None:
        """Have a worker made. A template that is gone will be noticed when the worker does not come."""
        rights = array.array("i", fds).tobytes()
        with contextlib.suppress(OSError):
            self._channel.sock.sendmsg([wire.encoded(message)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def end(self) -> None:
        if self._process.poll() is None:
            processes.kill_all_of(self._process.pid)
            self._process.wait()
        self._channel.sock.close()
        self._said.close()
        folders.remove(self.folder)

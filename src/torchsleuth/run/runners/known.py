"""The state in which a worker begins, and to which it goes back after each query.

    known = Known()
    with known.kept():           whatever the query does to modes, configuration, random numbers, environment, ...
        ...
    known.differences()          what is not as it was, in words; nothing, as a rule

Modules that a query imported stay imported, and what it wrote into torch's own functions stays written: those who
cannot live with that ask to be `alone`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from torchsleuth import torch_compat
from torchsleuth.case.surroundings import state as states
from torchsleuth.run.runners import folders, processes


class Known:
    """How things were when this was made."""

    def __init__(self) -> None:
        self._children = frozenset(processes.children(os.getpid()))
        self._environment = dict(os.environ)
        self._folder = folders.current()
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._random = random.getstate()
        self._numpy = _numpy_state()
        self._path = list(sys.path)
        self._temporary = tempfile.tempdir
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._mask = _umask()
        self._state = states.observe()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, do as you like. Afterwards everything is as it was before, as far as that can be done."""
        with warnings.catch_warnings():
            try:
                with states.restored(self._state, trust=True):
                    yield
            finally:
                self._put_back()

    def _put_back(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._streams
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError, ValueError, TypeError):
                    signal.signal(number, handler)
        sys.path[:] = self._path
        tempfile.tempdir = self._temporary
        os.umask(self._mask)
        torch.compiler.reset()
        torch_compat.forget_compiled()
        gc.collect()
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def differences(self) -> list[str]:
        """What could not be put back."""
        found = []
        now = states.observe()
        if now != self._state:
            fields = msgspec.structs.fields(now)
            found += [one.name for one in fields if getattr(now, one.name) != getattr(self._state, one.name)]
        if dict(os.environ) != self._environment:
            found.append("environment variables")
        if folders.current() != self._folder:
            found.append("the current folder")
        if not self._children.issuperset(processes.children(os.getpid())):
            found.append("child processes")
        return found


def _umask() -> int:
    """Asked of the kernel where it tells: the other way to learn it is to set it, which other threads would notice."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _numpy_state() -> Any:
    return sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

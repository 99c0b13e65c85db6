"""A lock that a forked child does not inherit: the thread that held it in the parent does not exist in the child."""

from __future__ import annotations

import os
import threading


class ForkableLock:
    """`with lock: ...`, as `threading.Lock`. In a forked child it begins anew, unlocked."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

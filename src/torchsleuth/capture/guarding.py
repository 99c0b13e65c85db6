"""Our own failures stay ours: they are logged, kept beside the cases, and the user's program does not notice.

kept = guarded(settings, error, lambda: ...)      None if it failed; `error` gets a note that says so
"""

from __future__ import annotations

import logging
import os
import secrets
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from torchsleuth import config
from torchsleuth.case.stores.store import Store
from torchsleuth.config import Settings
from torchsleuth.errors import in_words
from torchsleuth.run.observing.marks import is_the_user_s

log = logging.getLogger("torchsleuth.capture")

_T = TypeVar("_T")


def guarded(settings: Settings, error: BaseException | None, do: Callable[[], _T]) -> _T | None:
    """Do something of ours, with watching off. If it fails, the user's program does not notice: None."""
    token = config.watch_less(None)
    try:
        return do()
    except Exception as trouble:
        if is_the_user_s(trouble):
            raise
        log.exception("torchsleuth itself failed; the program goes on as it would have without it")
        where = _keep_trouble(settings, trouble)
        if error is not None:
            beside = f" (see {where})" if where else ""
            add_note(error, f"torchsleuth could not keep this failure as a case: {in_words(trouble)}{beside}")
        return None
    finally:
        config.watch_again(token)


def _keep_trouble(settings: Settings, trouble: Exception) -> str | None:
    """The traceback of a failure of ours, in a file of its own in the store, if that can be written."""
    text = "".join(traceback.format_exception(trouble))
    name = f"trouble-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(2)}.txt"
    try:
        store = Store.open(settings.store)
        store.files.put(name, text.encode("utf-8", "backslashreplace"))
        return store.files.path(name)
    except Exception:  # noqa: BLE001 - it is in the log already
        return None


def add_note(error: BaseException, note: str) -> None:
    """A line under the traceback."""
    try:
        if hasattr(error, "add_note"):
            error.add_note(note)
        else:  # Python 3.10 does not print it; those who look for it find it
            error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001
        log.debug("%s takes no notes", type(error).__qualname__)

"""Exceptions that are not what they seem: those of the user's own signal handlers, and those that were dealt with."""

from __future__ import annotations

import logging
import signal
from typing import Final

log = logging.getLogger("torchsleuth.run")

_MARK: Final = "__torchsleuth_case__"


def is_the_user_s(error: BaseException) -> bool:
    """Whether an exception in the middle of our work is none of ours: a signal handler of the program's raised it."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers if callable(one)} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def mark(error: BaseException, case: str = "") -> None:
    """From now on an exception counts as dealt with; `case` is what was made of it."""
    try:
        setattr(error, _MARK, case)
    except Exception:  # noqa: BLE001 - an exception of the user's own that takes no attributes
        log.debug("%s takes no attributes", type(error).__qualname__)


def is_marked(error: BaseException) -> bool:
    return getattr(error, _MARK, None) is not None

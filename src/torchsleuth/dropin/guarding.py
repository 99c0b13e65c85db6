"""What is done beside the user's program: our own failures stay ours, and the user's exception says where to look."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import TypeVar

from torchsleuth.capture.guarding import add_note
from torchsleuth.compare.rng import preserved
from torchsleuth.dropin.places import get_minifier_repro_path

T = TypeVar("T")


def safely(log: logging.Logger, do: Callable[[], T]) -> T | None:
    """Do something beside the program. What goes wrong with it is logged; random numbers are as before."""
    try:
        with preserved():
            return do()
    except Exception:
        log.exception("torchsleuth itself failed, and the program goes on without it")
        return None


def done(log: logging.Logger, do: Callable[[], object]) -> bool:
    """Whether something could be done beside the program."""

    def tried() -> bool:
        do()
        return True

    return safely(log, tried) or False


def point_to_launcher(error: BaseException) -> None:
    """Have an exception say what to run next: torch prints `minifier_path` at the end of its own message."""
    path = get_minifier_repro_path()
    with contextlib.suppress(AttributeError, TypeError):  # some exceptions take no attributes
        error.minifier_path = path  # type: ignore[attr-defined]
    add_note(error, f"torchsleuth: to make it smaller, run: python {path}")


def point_to_script(error: BaseException) -> None:
    """Have an exception say where its script is."""
    add_note(error, f"torchsleuth: to see it fail again, run: python {os.path.join(os.getcwd(), 'repro.py')}")

"""A command that fails, or not, is bisected: it is run again and again, and its Python processes take part.

bisect_command(["python", "train.py"], select())        exit code 0: all is well
run_once(session, ["python", "train.py"])               one step of a session, judged by somebody else
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torchsleuth.analyse.parts import Parts
from torchsleuth.analyse.searching import Answer, BisectionResult, Tried
from torchsleuth.analyse.sessions import Session
from torchsleuth.analyse.taking_part import invitation
from torchsleuth.errors import SleuthError, in_words


def bisect_command(
    words: Sequence[str], parts: Parts, observe: Callable[[Tried], None] | None = None
) -> BisectionResult | None:
    """Find the part that makes a command fail; None if it never does. `observe` is told of each step.

    It has a session of its own, which is gone in the end.
    """
    with tempfile.TemporaryDirectory(prefix="sleuth-bisect-") as folder:
        session = Session(Path(folder, "session"))
        session.begin(parts)
        while True:
            tried = session.tried(run_once(session, words) == 0)
            if observe is not None:
                observe(tried)
            following = session.judge(tried)
            if isinstance(following, Answer):
                return following.result


def run_once(session: Session, words: Sequence[str]) -> int:
    """Run the command at the step of now, and return its exit code; negative: the signal that it died of."""
    environment = invitation(session, session.state.step.backend)
    try:
        code = subprocess.run(words, env=environment, check=False).returncode
    except OSError as error:
        raise SleuthError(
            f"{words[0]!r} cannot be run",
            cause=in_words(error),
            remedy="name a program that is there, and its arguments",
        ) from error
    _refuse_trouble(session)
    return code


def _refuse_trouble(session: Session) -> None:
    try:
        trouble = session.trouble.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    raise SleuthError(
        "a process of the command could not take part",
        cause=trouble,
        remedy="install torchsleuth where the command finds it: for the Python that it runs",
    )

"""Watching without a command: `import torchsleuth.auto`, and every torch.compile from then on is watched.

    SLEUTH_AFTER=both SLEUTH_LEVEL=3 SLEUTH_STORE=/tmp/cases python -c "import torchsleuth.auto, train"
    python -m torchsleuth.auto train.py --epochs 3

What is watched, and where cases go, is what the settings say (`SLEUTH_*`, `pyproject.toml`); if they do not say what,
it is the graphs after AOT; if they say none, nothing happens. When Python leaves, the cases that this process kept are
listed on stderr. torch is not imported here: watching begins when the program first compiles something.

`sleuth run` does the same for a program that may not be changed, and survives its death.
"""

from __future__ import annotations

import atexit
import sys

from torchsleuth.capture.lazily import Lazily
from torchsleuth.capture.watching import plan
from torchsleuth.report.watched import watched_lines


def _begin() -> Lazily | None:
    asked = plan()
    if asked.after is None:
        return None
    watching = Lazily(after=asked.after, level=asked.level, store=asked.store)
    atexit.register(_tell, watching)
    return watching.__enter__()  # to the end of the process


def _tell(watching: Lazily) -> None:
    """List the cases, after everything that the program has to say."""
    watching.__exit__(None, None, None)
    kept = watching.kept
    if kept and sys.stderr is not None:
        if sys.stdout is not None:
            sys.stdout.flush()
        first, *rest = watched_lines(kept)
        print("\n".join([f"torchsleuth: {first}", *rest]), file=sys.stderr)


def _main() -> int:
    """`python -m torchsleuth.auto SCRIPT|-m MODULE [ARGS]`"""
    from torchsleuth.capture.program import Program
    from torchsleuth.errors import SleuthError

    try:
        program = Program.parse(sys.argv[1:])
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    program.become_main()
    return program.run()


WATCHING = _begin()
"""None if the settings say that nothing is to be watched."""

if __name__ == "__main__":
    sys.exit(_main())

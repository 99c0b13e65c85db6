"""`python -m torchsleuth.dropin SCRIPT|-m MODULE [ARGS]`: a program with the drop-in installed."""

from __future__ import annotations

import sys

from torchsleuth.capture.program import Program
from torchsleuth.dropin.installing import install_when_needed
from torchsleuth.errors import SleuthError


def main() -> int:
    """Run the program to its end. Its exit code is ours."""
    try:
        program = Program.parse(sys.argv[1:])
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    install_when_needed()
    program.become_main()
    return program.run()


if __name__ == "__main__":
    sys.exit(main())

"""Does a case keep everything? Graphs of real models and odd operators, written by one process, read by another.

Each graph is captured by a plain recording backend, kept as a case, taken up again in a fresh process and run there.
Are the outputs the same bits? Does Inductor generate the same code for it, byte for byte, paths and addresses aside?
The programs are the corpus of the tests.

    python benchmarks/round_trip.py [PROGRAM...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
SCRIPT = TESTS / "round_trip.py"


def main(names: list[str]) -> int:
    names = names or _run("-c", "import corpus; print(*corpus.PROGRAMS)").split()
    with tempfile.TemporaryDirectory() as folder:
        _run(str(SCRIPT), "write", folder, "aot", *names)
        rows = [json.loads(line) for line in _run(str(SCRIPT), "read", folder).splitlines() if line.startswith("{")]
    print(
        "| graph | nodes | outputs bitwise | lines of code | code identical | |\n| --- | --- | --- | --- | --- | --- |"
    )
    for row in rows:
        print(_line(row))
    good = [row for row in rows if row.get("bitwise") and row.get("code")]
    print(f"\n{len(good)} of {len(rows)} graphs of {len(names)} programs come back whole")
    return 0 if len(good) == len(rows) else 1


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"| {row['name']} | | ✗ | | ✗ | {row['error'].splitlines()[0]} |"
    bitwise, code = ("✓" if row[key] else "✗" for key in ("bitwise", "code"))
    cells = (row["name"], row["nodes"], bitwise, row["lines"] or "(refused)", code, row["difference"][:120])
    return f"| {' | '.join(map(str, cells))} |"


def _run(*command: str) -> str:
    ran = subprocess.run([sys.executable, *command], cwd=TESTS, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

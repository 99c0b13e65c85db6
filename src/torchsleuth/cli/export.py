"""`sleuth export`: a case as a script, tried out before anything is said of it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.text import Text

from torchsleuth.case.stores.store import Store
from torchsleuth.case.words.wording import clean
from torchsleuth.cli.answers import Answer


def export(
    name: str, where: str | None, out: Path, *, trust: bool = False, run: bool = True, timeout: float = 600.0
) -> Answer:
    """Write the script and run it. 0: it reproduces, or was not to be run. 1: it does something else."""
    from torchsleuth.run.delivery import deliver

    found = Store.open(where).find(name)
    delivery = deliver(found.blobs, found.case, out, trust=trust, run=run, timeout=timeout)
    data = {
        "script": str(delivery.script),
        "beside": None if delivery.beside is None else str(delivery.beside),
        "reproduces": delivery.reproduces,
        "expected": delivery.expected,
        "seen": delivery.seen,
        "not_run": delivery.not_run,
        "inputs": delivery.inputs,
        "notice": delivery.notice,
        "seconds": round(delivery.seconds, 3),
    }
    style = "green" if delivery.reproduces else "red" if delivery.reproduces is False else ""
    files = clean(str(delivery.script)) + (f" and {clean(str(delivery.beside))}" if delivery.beside else "")
    shown = [
        Text(f"{files} (inputs {delivery.inputs})"),
        Text(clean(delivery.describe()), style),
    ]
    following = f"python {shlex.quote(str(out))}"
    return Answer(data, shown, following, 1 if delivery.reproduces is False or delivery.notice else 0)

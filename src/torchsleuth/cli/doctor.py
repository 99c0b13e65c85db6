"""`sleuth doctor`: is everything here that torchsleuth needs, and if not, what stops working?"""

from __future__ import annotations

import os
import platform
import shutil

from rich.console import Console

from torchsleuth import config, torch_compat
from torchsleuth.report.doctor import Finding, render_findings


def run(console: Console) -> int:
    """Print the examination. 0: all is well, 1: something is missing."""
    findings = examine()
    settings = [(one.name, str(one.value), one.source) for one in config.explain()]
    console.print(render_findings(findings, settings))
    console.print()
    sick = any(finding.ok is False for finding in findings)
    console.print("Next: [bold]sleuth demo[/]" if not sick else "Mend what is marked ✗, then: [bold]sleuth doctor[/]")
    return 1 if sick else 0


def examine() -> list[Finding]:
    """What was found, a line each."""
    report = torch_compat.report()
    tested = ", ".join(torch_compat.TESTED)
    age = "tested" if report.tested else f"not among the tested versions ({tested}); it may work all the same"
    compiler = os.environ.get("CXX") or "g++"
    found = shutil.which(compiler.split()[0])
    return [
        Finding("Python", platform.python_version(), True),
        Finding("torch", f"{report.torch_version}: {age}", True if report.tested else None),
        Finding(
            "C++ compiler",
            f"{compiler}" if found else f"{compiler} is not there: Inductor cannot compile for the CPU; install g++",
            found is not None,
        ),
        Finding(
            "private names",
            f"all {report.checked} found" if not report.missing else f"{len(report.missing)} missing",
            not report.missing,
        ),
        *(
            Finding(lost.name.path, f"{lost.reason}; without it there is no {lost.name.feature}", False)
            for lost in report.missing
        ),
    ]

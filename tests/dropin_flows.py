"""The three steps that torch's users know: a program that fails, its launcher, and `repro.py`. Torch's own tool raises.

    flow = Flow(tmp_path)                       in this process; Flow(tmp_path, apart=True): each step in a new one
    flow.program(CODE, after="aot", level=2)
    flow.launcher("--no-isolate")
    flow.repro()

Each step gives its exit code and what it said on stderr.
"""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import torch._inductor.config

import dropin_poison
from torchsleuth import dropin

TESTS = Path(__file__).parent
FASTER = {"compile_threads": 1}
"""Options of Inductor's that make a new process start faster."""
_APART = """\
import sys
sys.path.insert(0, {tests!r})
import dropin_poison
dropin_poison.poison()
"""
_INSTALLED = "import torchsleuth.dropin\ntorchsleuth.dropin.install()\n"


@dataclass(frozen=True)
class Ended:
    """How a step ended."""

    code: int
    stderr: str


class Flow:
    """A folder, and what was written there."""

    def __init__(self, folder: Path, *, apart: bool = False, options: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.apart = apart
        self.options = {**FASTER, **(options or {})}
        self.home = folder

    def program(self, code: str, *, after: str, level: int) -> Ended:
        """Run a program with the drop-in installed. Where the launcher is, is taken from what it says."""
        lines = [f"torch._inductor.config.{name} = {value!r}" for name, value in self.options.items()]
        lines += [
            f"torch._dynamo.config.repro_after = {after!r}",
            f"torch._dynamo.config.repro_level = {level}",
            f"torch._dynamo.config.debug_dir_root = {str(self.folder)!r}",
        ]
        ended = self._run("\n".join(["import torch, torch._dynamo, torch._inductor.config", *lines, code]), ["-c"])
        found = re.search(r"(\S+)minifier_launcher\.py", ended.stderr)
        if found is not None:
            self.home = Path(found[1])
        return ended

    def launcher(self, *flags: str) -> Ended:
        path = self.home / "minifier_launcher.py"
        return self._run(path.read_text(), [str(path), "minify", *flags], file=path)

    def repro(self, *words: str) -> Ended:
        path = self.home / "repro.py"
        return self._run(path.read_text(), [str(path), *words], file=path)

    def module(self) -> str:
        """The class in `repro.py`, without empty lines."""
        text = (self.home / "repro.py").read_text()
        found = re.search(r"class Repro\(torch\.nn\.Module\):\n((?: .*)?\n)+", text)
        assert found is not None
        return "\n".join(line for line in found[0].splitlines() if line.strip())

    def _run(self, code: str, argv: list[str], file: Path | None = None) -> Ended:
        return self._in_child(code, argv, file) if self.apart else self._here(code, argv)

    def _in_child(self, code: str, argv: list[str], file: Path | None) -> Ended:
        before = _APART.format(tests=str(TESTS))
        if file is None:
            text = before + _INSTALLED + code
        else:
            text = f"{before}import runpy\nsys.argv = {argv!r}\nrunpy.run_path({str(file)!r}, run_name='__main__')"
        ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=self.home, check=False)
        return Ended(ran.returncode, ran.stderr)

    def _here(self, code: str, argv: list[str]) -> Ended:
        said = io.StringIO()
        with _captured(said), _as_before(), patch("sys.argv", argv), _in(self.home):
            try:
                exec(code, {"__name__": "__main__", "__compile_source__": code})
                return Ended(0, said.getvalue())
            except SystemExit as leaving:
                return Ended(int(leaving.code or 0), said.getvalue())
            except Exception:  # noqa: BLE001 - as an interpreter does at its end
                traceback.print_exc(file=said)
                return Ended(1, said.getvalue())


@contextmanager
def _captured(said: io.StringIO) -> Iterator[None]:
    """What is printed on stderr, and what torch's loggers say."""
    handler = logging.StreamHandler(said)
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch")]
    loggers[0].addHandler(handler)
    try:
        with redirect_stderr(said):
            yield
    finally:
        loggers[0].removeHandler(handler)


@contextmanager
def _as_before() -> Iterator[None]:
    """Configuration and environment are as before afterwards, and nothing stays compiled."""
    environment = dict(os.environ)
    configs = [(module, module.get_config_copy()) for module in (torch._dynamo.config, torch._inductor.config)]
    configs.append((torch._functorch.config, torch._functorch.config.get_config_copy()))
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some options only warn when they are set
            for module, values in configs:
                module.load_config(values)
        os.environ.clear()
        os.environ.update(environment)
        torch._dynamo.reset()


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def standing_in() -> Iterator[None]:
    """The drop-in is installed, and torch's own tool raises."""
    with ExitStack() as stack:
        stack.callback(dropin_poison.poison())
        stack.callback(dropin.uninstall)
        dropin.install()
        yield

"""An unchanged Python program, run in this process as `python SCRIPT` or `python -m MODULE` would run it.

    program = Program.parse(["train.py", "--epochs", "3"])       or ["-m", "package", ...]
    with program.as_main():
        code = program.run()                 its exit code; what Python would print at its end has been printed

The program has its own `__main__`, `sys.argv` and `sys.path[0]`. The traceback of an exception that nobody caught shows
no frame of ours.

`in_child` is where the child process of `sleuth run --isolate` begins: it is watched, and its journal and the stack
that it leaves behind when it dies go to files of its parent's (`Errand`).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final

from torchsleuth.capture.lazily import Lazily
from torchsleuth.config import After, Level
from torchsleuth.errors import SleuthError

INTERRUPTED: Final = 130
CHILD: Final = (
    "import sys; getattr(sys.flags, 'safe_path', 0) or sys.path.pop(0); "
    "from torchsleuth.capture.program import in_child; in_child()"
)
"""What the child is given to do. Its `sys.path[0]` is not the program's, and must not be where we import from."""


@dataclass(frozen=True)
class Program:
    """A script, a folder or archive with a `__main__.py`, or a module; and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> Program:
        """SCRIPT ARGS, or -m MODULE ARGS. Refuses what is not there."""
        first, rest = (words[0], tuple(words[1:])) if words else ("", ())
        if first == "-m" and rest:
            first, rest = f"-m{rest[0]}", rest[1:]
        if first.startswith("-m") and first != "-m":
            return cls._module(first[2:], rest)
        if first in ("", "-m"):
            raise SleuthError(
                "no program was named",
                cause=f"after {first!r} nothing follows" if first else "there is nothing to run",
                remedy="name a script, or a module after -m: sleuth run train.py --epochs 3",
            )
        if not os.path.exists(first):
            raise SleuthError(
                f"there is no script {first!r}",
                cause=f"{os.path.abspath(first)} does not exist",
                remedy="name a script that does, or a module after -m: sleuth run -m package",
            )
        if not os.access(first, os.R_OK):
            raise SleuthError(
                f"the script {first!r} cannot be read",
                cause=f"you have no permission to read {os.path.abspath(first)}",
                remedy="make it readable (chmod +r)",
            )
        return cls(first, rest)

    @classmethod
    def _module(cls, name: str, rest: tuple[str, ...]) -> Program:
        top = name.partition(".")[0]
        with _first_on_path(_working_folder()):
            there = top in sys.modules or importlib.machinery.PathFinder.find_spec(top) or _frozen_or_builtin(top)
        if not there:
            raise SleuthError(
                f"there is no module {name!r}",
                cause=f"nothing on sys.path has the name {top!r}",
                remedy="name a module that is installed, or lies in the working folder",
            )
        return cls(name, rest, is_module=True)

    def words(self) -> list[str]:
        """What `parse` takes."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    @contextlib.contextmanager
    def as_main(self) -> Iterator[None]:
        """`__main__`, `sys.argv` and `sys.path` are the program's, inside."""
        before = sys.argv, list(sys.path), sys.modules["__main__"]
        self.become_main()
        try:
            yield
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = before

    def become_main(self) -> None:
        """`__main__`, `sys.argv` and `sys.path[0]` are the program's from now on."""
        sys.argv = ["-m" if self.is_module else self.name, *self.arguments]
        sys.modules["__main__"] = _new_main()
        if self.is_module:
            folder = _working_folder()
        elif self._is_script():
            folder = os.path.dirname(os.path.realpath(self.name))
        else:
            folder = self._path()
        _put_first_on_path(folder)

    def run(self) -> int:
        """Run it to its end, print what Python would print there, and give the exit code."""
        error: BaseException
        try:
            if self.is_module:
                runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]
            elif self._is_script():
                self._run_script()
            else:
                runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
            return 0
        except SystemExit as leaving:
            return _code_of(leaving)
        except BaseException as uncaught:  # noqa: BLE001 - this is where the program ends, whatever ends it
            error = uncaught
        return _uncaught(error)

    def _is_script(self) -> bool:
        return pkgutil.get_importer(self._path()) is None

    def _path(self) -> str:
        return os.path.join(_working_folder(), self.name)

    def _run_script(self) -> None:
        path = self._path()
        main = sys.modules["__main__"]
        compiled = path.endswith(".pyc")
        loader = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
        vars(main).update(__file__=path, __cached__=None, __loader__=loader("__main__", path))
        exec(_code(path), vars(main))


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={})
    return main


def _code(path: str) -> CodeType:
    with io.open_code(path) as file:
        compiled: CodeType | None = pkgutil.read_code(file)
    if compiled is not None:
        return compiled
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


# ---- where modules are found ------------------------------------------------------------------------------


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _put_first_on_path(folder: str) -> None:
    """As Python does it before it runs something, in place of what it did for us."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    before = list(sys.path)
    _put_first_on_path(folder)
    try:
        yield
    finally:
        sys.path[:] = before


def _frozen_or_builtin(name: str) -> bool:
    finders: tuple[Any, ...] = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
    return any(finder.find_spec(name) is not None for finder in finders)


# ---- the end ----------------------------------------------------------------------------------------------


def _code_of(leaving: SystemExit) -> int:
    """The exit code that Python makes of it; anything but a number is printed."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        print(leaving.code, file=sys.stderr)
    return 1


def _uncaught(error: BaseException) -> int:
    """Shows an exception that nobody caught as Python would."""
    error.__traceback__ = _from_the_program_on(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _code_of(leaving)
    except BaseException as another:  # noqa: BLE001 - the program's own hook: it may raise anything
        another.__traceback__ = another.__traceback__ and another.__traceback__.tb_next
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(another)
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _from_the_program_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that are ours."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    return trace


# ---- in a process of its own ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errand:
    """What the child is told by its parent, and the files in which it answers."""

    folder: str
    after: str | None
    level: int
    store: str

    @property
    def journal(self) -> Path:
        return Path(self.folder, "journal")

    @property
    def stack(self) -> Path:
        """Where Python's fault handler writes."""
        return Path(self.folder, "stack")

    @property
    def orderly(self) -> Path:
        """There if Python came to its own end: nobody called `_exit`, and nothing died."""
        return Path(self.folder, "orderly")

    def command(self, program: Program) -> list[str]:
        """The arguments for Python."""
        return ["-c", CHILD, json.dumps(asdict(self)), *program.words()]

    def watching(self) -> Lazily | None:
        """What watches; None if nothing is to be watched."""
        if self.after is None:
            return None
        return Lazily(after=After(self.after), level=Level(self.level), store=self.store, journal=self.journal)


def in_child() -> None:
    """The child: `sys.argv` has the errand and the program."""
    errand = Errand(**json.loads(sys.argv[1]))
    words = sys.argv[2:]
    is_module = words[0] == "-m"
    program = Program(words[is_module], tuple(words[is_module + 1 :]), is_module)
    stack = open(errand.stack, "wb", buffering=0)  # noqa: SIM115 - it has to be open when we die
    faulthandler.enable(stack, all_threads=True)
    atexit.register(_orderly, errand.orderly, os.getpid())
    watching = errand.watching()
    if watching is not None:
        atexit.register(watching.__enter__().__exit__, None, None, None)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")  # to be replaced by the program's
    program.become_main()
    sys.exit(program.run())


def _orderly(file: Path, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            file.touch()

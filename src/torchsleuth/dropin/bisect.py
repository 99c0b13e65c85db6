"""torch's `CompilerBisector`, served by torchsleuth: the same calls and commands, the same answers.

    from torchsleuth.dropin.bisect import BACKENDS, BisectionResult, CompilerBisector

    CompilerBisector.do_bisect(fn)                   fn() is true if all is well; None: it never failed

    python -m torchsleuth.dropin.bisect run python train.py
    python -m torchsleuth.dropin.bisect start, then `try python train.py` and `good` or `bad` in turns, or `end`

Where it is different, it is for the better (`torchsleuth.analyse.bisecting` says how it is done):

- `fn` need not reset Dynamo, and may use what was compiled elsewhere.
- Nothing stays behind: no files, no settings, whatever ends the search. What a session has on the disk affects only
  programs that take part in it: those that `run` and `try` start. torch's affects every program of the user's.
- A backend is not gone through anew for each of its subsystems when none of them is to blame.
- It says how to see the failure by hand. `list` shows the parts, `--backend` and `--subsystem` choose among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from torchsleuth.analyse.commanding import bisect_command, run_once
from torchsleuth.analyse.parts import BACKENDS as BACKENDS, GRAPHS, select
from torchsleuth.analyse.searching import Answer, BisectionResult as BisectionResult, Tried
from torchsleuth.analyse.sessions import Session, State, default_folder
from torchsleuth.errors import SleuthError

if TYPE_CHECKING:
    from torchsleuth.torch_compat import Bisector

COMMAND: Final = "python -m torchsleuth.dropin.bisect"


class _Switch(type):
    """`CompilerBisector.bisection_enabled` is what it is in the thread that asks."""

    @property
    def bisection_enabled(cls) -> bool:
        return _asked().bisection_enabled


class CompilerBisector(metaclass=_Switch):
    """Finds the part of torch.compile that makes a function fail, and says what is left out meanwhile."""

    @classmethod
    def do_bisect(
        cls,
        fn: Callable[[], object],
        cli_interface: bool = False,
        *,
        backends: Iterable[str] | None = None,
        subsystems: Iterable[str] | None = None,
    ) -> BisectionResult | None:
        """Find out what makes `fn` return something false.

        With `cli_interface` one step is taken, the state kept on the disk, and the process left with `sys.exit(0)`; the
        next process goes on from there. The last one gets the result.
        """
        from torchsleuth.analyse.bisecting import bisect

        if cli_interface:
            return _one_step(fn, backends, subsystems)
        result = bisect(fn, backends=backends, subsystems=subsystems, graphs=_graphs_wanted(), observe=_say)
        _say_result(result)
        return result

    @classmethod
    def get_backend(cls) -> str | None:
        """The backend that is being tried, if one is."""
        return _asked().get_backend()

    @classmethod
    def get_subsystem(cls) -> str | None:
        """The subsystem that is being looked at, if one is."""
        return _asked().get_subsystem()

    @classmethod
    def get_config_change(cls, config_name: str) -> dict[str, object] | None:
        """The options that a backend is to be given, if any are."""
        return _asked().get_config_change(config_name)

    @classmethod
    def disable_subsystem(cls, backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        """Whether to leave out what is about to be applied."""
        return _asked().disable_subsystem(backend, subsystem, debug_info)


do_bisect = CompilerBisector.do_bisect


def _asked() -> Bisector:
    from torchsleuth import torch_compat

    return torch_compat.Bisector()


def _graphs_wanted() -> bool:
    """Whether the program has told torch to go through the graphs one by one."""
    from torchsleuth import torch_compat

    module = "torch._inductor.config"
    wanted = torch_compat.config_is_loaded(module) and torch_compat.config_values(module)
    return bool(wanted and wanted.get("test_configs.bisect_pre_grad_graph"))


def _one_step(
    fn: Callable[[], object], backends: Iterable[str] | None, subsystems: Iterable[str] | None
) -> BisectionResult | None:
    from torchsleuth.analyse.bisecting import attempt

    session = Session(default_folder())
    with session.alone(new=True):
        state = session.find() or session.begin(select(backends, subsystems, graphs=_graphs_wanted()))
        tried = attempt(fn, state.step)
        _say(tried)
        following = session.judge(tried)
    if isinstance(following, Answer):
        _say_result(following.result)
        return following.result
    print(f"next: {following.step}")
    sys.exit(0)


# ---- what is said ------------------------------------------------------------------------------------------------

_UNATTENDED: Final = (
    "warning: no process took part in this step, so nothing was left out. torch.compile was not reached; or the "
    f"program was not started with `{COMMAND} try`, or by a Python without torchsleuth, or with -E, -I or -S"
)


def _say(tried: Tried) -> None:
    print(f"{'good' if tried.passed else 'bad':4}  {tried.step}", flush=True)
    if not tried.attended:
        print(_UNATTENDED, file=sys.stderr)


def _say_result(result: BisectionResult | None) -> None:
    if result is None:
        print("No backend fails.")
        return
    print(result)
    for verdict, settings in result.by_hand:
        print(f"  {verdict:4}  {settings}")


# ---- the command line --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: arguments in, exit code out."""
    asked = _parser().parse_args(arguments)
    try:
        return int(_COMMANDS[asked.command](asked))
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Leaves with 1 if it cannot make sense of what it is given, as torch's does."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"error: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(prog=COMMAND, description="Finds the part of torch.compile that makes a program fail.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="begin a session; one that is there is given up")
    run = commands.add_parser("run", help="run a command again and again until it is found; exit code 0 is good")
    for each in (start, run):
        each.add_argument("--backend", action="append", help="only this backend (again for more)")
        each.add_argument("--subsystem", action="append", help="only this subsystem (again for more)")
    attempt = commands.add_parser("try", help="run a command at the step of now, and say yourself how it went")
    for each in (run, attempt):
        each.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the command and its arguments")
    commands.add_parser("good", help="at the step of now all was well")
    commands.add_parser("bad", help="at the step of now it failed")
    commands.add_parser("end", help="give up the session")
    commands.add_parser("list", help="show the backends and their subsystems")
    return parser


def _start(asked: argparse.Namespace) -> int:
    parts = select(asked.backend, asked.subsystem)
    session = Session(default_folder())
    with session.alone(new=True):
        _say_next(session.begin(parts))
    return 0


def _good(asked: argparse.Namespace) -> int:
    session = Session(default_folder())
    with session.alone():
        before = session.state
        tried = session.tried(asked.command == "good")
        following = session.judge(tried)
    _say(tried)
    if isinstance(following, Answer):
        _say_result(following.result)
        unattended = before.alone + (not tried.attended)
        if unattended:
            print(f"warning: in {unattended} of {before.taken + 1} steps nobody took part", file=sys.stderr)
    else:
        _say_next(following)
    return 0


def _say_next(state: State) -> None:
    print(f"next: {state.step}\n  {COMMAND} try ...\n  {COMMAND} good, or bad")


def _end(_: argparse.Namespace) -> int:
    print("The session is given up." if Session(default_folder()).end() else "There is no session.")
    return 0


def _try(asked: argparse.Namespace) -> int:
    code = run_once(Session(default_folder()), _words(asked))
    return code if code >= 0 else 128 - code


def _run(asked: argparse.Namespace) -> int:
    _say_result(bisect_command(_words(asked), select(asked.backend, asked.subsystem), _say))
    return 0


def _words(asked: argparse.Namespace) -> list[str]:
    words: list[str] = asked.words[1:] if asked.words[:1] == ["--"] else asked.words
    if not words:
        raise SleuthError(
            "no command was named",
            cause=f"after {asked.command!r} nothing follows",
            remedy=f"name the program that fails: {COMMAND} {asked.command} python train.py",
        )
    return words


def _list(_: argparse.Namespace) -> int:
    for backend, parts in BACKENDS.items():
        print(backend)
        for part in (GRAPHS, *parts) if backend == "inductor" else parts:
            print(f"  {part.name:34}{part.what}{' (if it is named)' if part is GRAPHS else ''}")
    return 0


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "start": _start,
    "good": _good,
    "bad": _good,
    "end": _end,
    "try": _try,
    "run": _run,
    "list": _list,
}

if __name__ == "__main__":
    sys.exit(main())

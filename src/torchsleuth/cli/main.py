"""The command `sleuth` and its sub-commands.

Exit codes: 0 all is well, 1 something was found, 2 it cannot be done as asked, 3 torchsleuth itself is at fault.
The last line a command prints is the next command to type.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from torchsleuth import __version__
from torchsleuth.case.stores.garbage import YOUNG
from torchsleuth.case.words.wording import clean
from torchsleuth.cli import (
    breaks as breaks_command,
    cases,
    demo as demo_command,
    doctor as doctor_command,
    export as export_command,
    minify as minify_command,
    records,
    replay as replay_command,
    run as run_command,
    verify as verify_command,
    witness as witness_command,
)
from torchsleuth.cli.answers import Answer, after, give
from torchsleuth.cli.minify_wanted import Wanted
from torchsleuth.cli.replay import Asked, Where as Runner
from torchsleuth.errors import SleuthError


class _Help:
    """Help that says nothing of the type of a switch: nobody types `--json true`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(param, "is_flag", False):
                param.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Group(_Help, TyperGroup):
    pass


class _Command(_Help, TyperCommand):
    pass


class _RunCommand(_Command):
    """What follows the program's name is the program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        return super().parse_args(ctx, run_command.with_program_apart(args, takes_value))


app = typer.Typer(
    name="sleuth",
    cls=_Group,
    help="Find out what torch.compile did to your program: a bug, or noise?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = partial(app.command, cls=_Command)
WIDTH_OF_A_FILE = 120
out = Console()
err = Console(stderr=True)

Case = Annotated[str, typer.Argument(metavar="CASE", help="An id, the beginning of one, a label, or a path.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data, and nothing else.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="PLACE", help="A folder or URL with cases. Default: the setting.")
]


Trust = Annotated[bool, typer.Option("--trust", help="Run it even if it holds code of the user's own.")]
Deadline = Annotated[
    float | None, typer.Option(min=0.1, metavar="SECONDS", help="Stop a run then. Default: as the case says.")
]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="What a run may take: 4GiB, 512MB.")]
WithHistory = Annotated[
    bool, typer.Option("--with-history", help="First the graphs that the program had compiled before.")
]
Matching = Annotated[
    str, typer.Option("--match", metavar="HOW", help="Which failure it is: origin, exact, kind, any, regex:…")
]


def _show_version(asked: bool) -> None:
    if asked:
        out.print(f"torchsleuth {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@command()
def demo(
    fault: Annotated[
        demo_command.Fault, typer.Option(help="Which of Inductor's own test faults to switch on.")
    ] = demo_command.Fault.RELU,
    dropout: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Probability of dropout in the block: results become random.")
    ] = 0.0,
) -> None:
    """Compile a small transformer block with a fault planted in the compiler, and judge what comes out."""
    raise typer.Exit(demo_command.run(out, fault=fault, dropout=dropout))


@command()
def doctor() -> None:
    """Examine this machine: Python, torch, the C++ compiler, and where each setting comes from."""
    raise typer.Exit(doctor_command.run(out))


@app.command("run", cls=_RunCommand, context_settings={"allow_interspersed_args": False})
def run_program(
    program: Annotated[
        list[str], typer.Argument(metavar="SCRIPT|-m MODULE [ARGS]", help="The program, and all that is its own.")
    ],
    after: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE", help="Which graphs are watched: aot, dynamo or both. Default: aot; both at level 4."
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="dump, minify, always, accuracy, or 1 to 4. Default: the setting."),
    ] = None,
    store: StoreOption = None,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="In a process of its own, so that its death is a case too. Default: from level always on.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Stop it then; what it was doing is kept. Isolates."),
    ] = None,
) -> None:
    """Run a program under watch: each failure of torch.compile becomes a case. Its exit code is the program's."""
    asked = run_command.Asked(tuple(program), after, level, store, isolate, timeout)
    raise typer.Exit(run_command.run(err, asked))


@command()
def breaks(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT[:FUNCTION]",
            help="A script, and a function, Class.method or module in it. Without: whatever it compiles.",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="What the script is given. Put -- before options.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many calls of each function are looked at. Default: 4.")
    ] = None,
    dynamo: Annotated[bool, typer.Option("--dynamo/--no-dynamo", help="Ask Dynamo, too.")] = True,
    deadline: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Stop the script then, and tell what is known.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Run a script, and say where its graphs break, why, and what to change. 0: nowhere. 1: there are breaks."""
    asked = breaks_command.Asked(script, tuple(arguments or ()), limit, dynamo, deadline)
    raise typer.Exit(give(out, lambda: breaks_command.breaks(err, asked, width=out.width, as_json=json), as_json=json))


@command()
def witness(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT[:FUNCTION]",
            help="A script, and a function, Class.method or module in it; or the first that it compiles.",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The arguments of the script.")
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="A backend of torch.compile, or module:function.")
    ] = "inductor",
    call: Annotated[int, typer.Option(min=1, metavar="N", help="Which call of the function is examined.")] = 1,
    dynamic: Annotated[
        bool | None, typer.Option("--dynamic/--no-dynamic", help="Sizes are symbolic. Default: as the script compiles.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Stop a run then; that is its outcome. Isolated only.")
    ] = witness_command.DEADLINE,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="In a process of its own, so that its death is an outcome.")
    ] = True,
    steps: Annotated[str | None, typer.Option(hidden=True)] = None,
    json: AsJson = False,
) -> None:
    """Dynamo, the backend, or we? Run one call in eager, by torch.compile, and by our own front end, and compare."""
    asked = witness_command.Asked(script, tuple(arguments or ()), backend, call, dynamic, deadline, isolate, steps)
    raise typer.Exit(witness_command.run(out, err, asked, as_json=json))


@command("list")
def list_cases(
    whole: Annotated[bool, typer.Option("--all", help="Also graphs that are there only for others' history.")] = False,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """List the cases of a store."""
    raise typer.Exit(give(out, lambda: cases.list_cases(store, width=out.width, hidden_too=whole), as_json=json))


@command()
def show(
    case: Case,
    whole: Annotated[bool, typer.Option("--all", help="However long the graph is.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="All of the message and the traceback.")] = False,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Show a case: its graph as code, inputs, failure, and circumstances. Nothing of it is run."""

    def answer() -> Answer:
        if records.is_record(case):
            return records.show(case, whole=whole, traceback=traceback)
        return cases.show(case, store, width=out.width, whole=whole, traceback=traceback)

    raise typer.Exit(give(out, answer, as_json=json))


@command()
def replay(
    case: Case,
    compiler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another compiler: eager, aot_eager, aot_eager_decomp_partition, inductor, module:function.",
        ),
    ] = None,
    runner: Annotated[
        Runner, typer.Option(help="Where it runs: in a new interpreter, in a warmed-up worker, or here.")
    ] = Runner.FRESH,
    times: Annotated[int, typer.Option(min=1, help="Run it so many times, and say how often it fails.")] = 1,
    accuracy: Annotated[
        bool | None,
        typer.Option("--accuracy/--no-accuracy", help="Compare with eager. Default: if the case is about results."),
    ] = None,
    with_history: WithHistory = False,
    deadline: Deadline = None,
    memory: Memory = None,
    match: Matching = "origin",
    trust: Trust = False,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Compile and run a case again. 1: the failure is there, 0: it is not, 2: it cannot be run here, 3: our fault."""
    asked = Asked(case, store, compiler, accuracy, trust, deadline, memory, with_history, match)
    answer = lambda: replay_command.replay(err, asked, runner=runner, times=times, as_json=json)  # noqa: E731
    if records.is_record(case):
        given = {
            "--compiler": compiler is not None,
            "--runner": runner is not Runner.FRESH,
            "--times": times != 1,
            "--accuracy": accuracy is not None,
            "--with-history": with_history,
            "--deadline": deadline is not None,
            "--memory": memory is not None,
            "--match": match != "origin",
            "--store": store is not None,
        }
        answer = lambda: records.replay(case, trust=trust, given=given)  # noqa: E731
    raise typer.Exit(give(out, answer, as_json=json))


@command()
def verify(
    case: Case,
    repeats: Annotated[
        int, typer.Option(min=1, help="Replay it so many times before it is said that it does not fail.")
    ] = 5,
    with_history: WithHistory = False,
    deadline: Deadline = None,
    memory: Memory = None,
    match: Matching = "origin",
    trust: Trust = False,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Replay a case and run its script, each in a new interpreter: does it reproduce? If not (1), what differs?"""
    asked = Asked(case, store, None, None, trust, deadline, memory, with_history, match)
    answer = lambda: verify_command.verify(err, asked, repeats=repeats, as_json=json)  # noqa: E731
    raise typer.Exit(give(out, answer, as_json=json))


@command()
def minify(
    case: Case,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Your own test, given the script. Exit code 1: still fails, 0: does not, 125: skip."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the one that was interrupted.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Ask everything anew, whatever is known already.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=1.0, metavar="SECONDS", help="Stop then, with the smallest one so far.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many queries, with the smallest one so far.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the script there.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many queries at a time. Default: one a core.")
    ] = None,
    needs: Annotated[
        str | None, typer.Option(metavar="K/N", help="It fails now and then: K of at most N runs have to show it.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="Stop a run then: 180 s, or at most 20 s for a hang, unless given."
        ),
    ] = None,
    memory: Memory = None,
    match: Annotated[
        str | None,
        typer.Option("--match", metavar="HOW", help="Which failure it is: origin, exact, kind, any, regex:…"),
    ] = None,
    trust: Trust = False,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Make a case as small as it can be. 0: done and verified, 1: it does not show, 2, 3: as ever, 130: interrupted."""
    wanted = Wanted(
        case, store, test, resume, again, timeout, queries, deadline, memory, workers, needs, match, trust, to
    )
    answer = lambda: minify_command.minify(err, wanted, width=out.width, as_json=json)  # noqa: E731
    raise typer.Exit(give(out, answer, as_json=json))


@command()
def export(
    case: Case,
    to: Annotated[Path, typer.Option("--output", "-o", help="The script to write.")] = Path("repro.py"),
    trust: Annotated[bool, typer.Option("--trust", help="Run it even if it holds code of the user's own.")] = False,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run it, and say whether it reproduces.")] = True,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that a run may take.")] = 600.0,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Write a case as one script that needs torch only, run it, and say whether it reproduces the failure."""
    answer = lambda: export_command.export(case, store, to, trust=trust, run=run, timeout=timeout)  # noqa: E731
    raise typer.Exit(give(out, answer, as_json=json))


@command()
def pack(
    case: Case,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file or folder. Default: here, by label or id.")
    ] = None,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Write a case and its tensors as one file that can be mailed: CASE.sleuth.zip."""
    raise typer.Exit(give(out, lambda: cases.pack(case, store, to), as_json=json))


@command()
def unpack(
    archive: Annotated[Path, typer.Argument(metavar="ZIP", help="What `sleuth pack` wrote.")],
    label: Annotated[str | None, typer.Option(help="A name of your own for the case.")] = None,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Put a packed case into a store."""
    raise typer.Exit(give(out, lambda: cases.unpack(archive, store, label), as_json=json))


@command("check-file")
def check_file(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Folders of cases, case.json, or archives.")],
    json: AsJson = False,
) -> None:
    """Check cases and every byte of their tensors, without running anything. Exit code 1: one is bad."""
    raise typer.Exit(give(out, lambda: cases.check_files(paths), as_json=json))


@command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="CASE...", help="Ids, beginnings of ids, or labels.")],
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Remove cases from a store."""
    raise typer.Exit(give(out, lambda: cases.remove(names, store), as_json=json))


@command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0.0, help="Leave what is younger than this, in seconds: it may belong to a new case.")
    ] = YOUNG,
    store: StoreOption = None,
    json: AsJson = False,
) -> None:
    """Remove tensors that no case refers to, and what interrupted writers left behind."""
    answer = lambda: cases.collect_garbage(store, dry_run=dry_run, older_than=older_than)  # noqa: E731
    raise typer.Exit(give(out, answer, as_json=json))


def main() -> NoReturn:
    """Run the command; turn our errors into words and exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no … still shows the rest
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = WIDTH_OF_A_FILE
    try:
        app()
    except SleuthError as error:
        for part in (
            Text.assemble(("error: ", "bold red"), clean(error.what)),
            Text.assemble(("  cause:  ", "dim"), clean(error.cause)),
            Text.assemble(("  remedy: ", "dim"), clean(error.remedy)),
            Text.assemble("\nNext: ", (clean(after(error)), "bold")),
        ):
            err.print(part, soft_wrap=True, highlight=False)
        sys.exit(2)
    except BaseException as error:  # the outermost frame: nobody else can say whose fault it is
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        err.print(traceback.format_exc(), markup=False, highlight=False)
        err.print("[bold red]This is a fault of torchsleuth itself.[/] Please report it with the lines above.")
        sys.exit(3)
    sys.exit(0)

"""The command `sleuth` and its sub-commands.

Exit codes: 0 all is well, 1 something was found, 2 it cannot be done as asked, 3 torchsleuth itself is at fault.
The last line a command prints is the next command to type.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from torchsleuth import __version__
from torchsleuth.cli import demo as demo_command, doctor as doctor_command
from torchsleuth.errors import SleuthError

app = typer.Typer(
    name="sleuth",
    help="Find out what torch.compile did to your program: a bug, or noise?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)


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


@app.command()
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


@app.command()
def doctor() -> None:
    """Examine this machine: Python, torch, the C++ compiler, and where each setting comes from."""
    raise typer.Exit(doctor_command.run(out))


def main() -> NoReturn:
    """Run the command; turn our errors into words and exit codes."""
    try:
        app()
    except SleuthError as error:
        err.print(Text.assemble(("error: ", "bold red"), error.what))
        err.print(Text.assemble(("  cause:  ", "dim"), error.cause))
        err.print(Text.assemble(("  remedy: ", "dim"), error.remedy))
        sys.exit(2)
    except Exception:  # noqa: BLE001 - the outermost frame: nobody else can say whose fault it is
        err.print(traceback.format_exc(), markup=False, highlight=False)
        err.print("[bold red]This is a fault of torchsleuth itself.[/] Please report it with the lines above.")
        sys.exit(3)
    sys.exit(0)

"""The command line of a script: `python repro.py [run|minify|analyze|minifier-query|get_args] [flags]`.

Without arguments a script does what it was written for. The sub-commands and flags are those of torch's own tool.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("torch._dynamo.repro")


def accuracy_word(accuracy: bool | str) -> str:
    """ "" for no comparison, "accuracy", or "strict_accuracy"."""
    if isinstance(accuracy, bool):
        return "accuracy" if accuracy else ""
    return accuracy


def warn_unknown(given: Mapping[str, Any]) -> None:
    """Say of arguments that nobody knows that they are passed over: the script may be of a newer torch."""
    for name in given:
        log.warning("the script says %s, which this version does not know: it is passed over", name)


def aot_parser(command: str, accuracy: str, save_dir: str | None, tracing_mode: Any, check_str: Any) -> Any:
    """For scripts of graphs after AOT."""
    settings = {"accuracy": accuracy, "tracing_mode": tracing_mode, "save_dir": save_dir, "check_str": check_str}
    parser = _parser("a graph after AOT, which a compiler (Inductor, most often) fails on", command, settings)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,minify,analyze}")
    for name, words in (
        ("run", "compile it and run it"),
        ("minify", "make it as small as it can be, while it fails in the same way"),
        ("get_args", "load its inputs, and do nothing else"),
        ("analyze", "say where compiled and eager first differ"),
        ("minifier-query", "exit code 1 if it fails, 0 if it does not"),
    ):
        one = commands.add_parser(name, help=words)
        _accuracy_flags(one, accuracy, strict=True)
        _folder_flags(one, save_dir)
        one.add_argument(
            "--tracing-mode",
            metavar="{real,fake,symbolic}",
            default=tracing_mode,
            help="how the module is traced: symbolic keeps sizes symbolic",
        )
        if name in ("minify", "minifier-query"):
            one.add_argument("--check-str", default=check_str, help="what fails has to say this")
        if name == "minify":
            _minify_flags(one)
        if name == "analyze":
            _analyze_flags(one)
    return parser


def dynamo_parser(command: str, accuracy: str, save_dir: str | None, autocast: bool, backend: Any) -> Any:
    """For scripts of Dynamo's graphs."""
    settings = {"accuracy": accuracy, "save_dir": save_dir}
    parser = _parser("a graph of Dynamo's, which a backend fails on", command, settings)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,minify}")
    for name, words in (
        ("run", "compile it and run it"),
        ("minify", "make it as small as it can be, while it fails in the same way"),
    ):
        one = commands.add_parser(name, help=words)
        _accuracy_flags(one, accuracy, strict=False)
        _folder_flags(one, save_dir)
        _isolate_flags(one)
        one.add_argument("--autocast", action="store_true", default=autocast, help="with torch.autocast")
        one.add_argument("--no-autocast", dest="autocast", action="store_false", help="without it")
        one.add_argument("--backend", default=backend, metavar="BACKEND", help="another backend of torch.compile")
        if name == "run":
            one.add_argument("--only-fwd", action="store_true", help="no backward pass")
    return parser


def parsed(parser: argparse.ArgumentParser, command: str) -> argparse.Namespace:
    """What the command line says; if it says nothing, what the script was written for."""
    return parser.parse_args([command] if len(sys.argv) <= 1 else None)


def _parser(what: str, command: str, settings: Mapping[str, Any]) -> argparse.ArgumentParser:
    said = "\n".join(f"  {name}={value!r}" for name, value in settings.items())
    return argparse.ArgumentParser(
        description=f"{what[0].upper()}{what[1:]}.\nWithout arguments: {command}. Its settings:\n{said}",
        formatter_class=argparse.RawTextHelpFormatter,
    )


def _accuracy_flags(parser: argparse.ArgumentParser, default: str, *, strict: bool) -> None:
    group = parser.add_mutually_exclusive_group()
    flags = [
        ("--no-accuracy", "", "do not compare results: only what raises or crashes is a failure"),
        ("--accuracy", "accuracy", "wrong floating-point results are the failure (against fp64 where there is one)"),
    ]
    if strict:
        flags.append(("--strict-accuracy", "strict_accuracy", "and so are wrong integers and bools"))
    for flag, value, words in flags:
        group.add_argument(flag, dest="accuracy", action="store_const", const=value, default=default, help=words)


def _folder_flags(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument("--save-dir", default=default, metavar="DIR", help="where the data of the inputs is")
    parser.add_argument(
        "--no-save-dir", dest="save_dir", action="store_const", const=None, help="any data will do: make it up"
    )


def _isolate_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--isolate",
        action="store_true",
        default=True,
        help="in processes of their own: a crash or a hang is one answer more (default)",
    )
    group.add_argument("--no-isolate", dest="isolate", action="store_false", help="in this process")


def _minify_flags(parser: argparse.ArgumentParser) -> None:
    _isolate_flags(parser)
    parser.add_argument(
        "--skip-saving-eager-intermediates",
        action="store_true",
        help="accepted; what eager computes is kept on the disk, and not computed twice, in any case",
    )
    parser.add_argument(
        "--offload-to-disk", action="store_true", help="accepted; intermediate results are on the disk in any case"
    )
    parser.add_argument("--skip-sanity", action="store_true", help="do not begin with a run of the whole graph")
    parser.add_argument("--max-granularity", type=int, default=None, help="accepted; the search finds its own steps")


def _analyze_flags(parser: argparse.ArgumentParser) -> None:
    for flag, words in (
        ("--skip-saving-inductor-intermediates", "do not keep what compiled code computes"),
        ("--skip-saving-float64-intermediates", "do not keep what is computed in fp64, and compare with eager alone"),
        ("--skip-check-deterministic", "do not run anything twice"),
        ("--stable-hash", "name data by SHA-1"),
    ):
        parser.add_argument(flag, action="store_true", help=words)

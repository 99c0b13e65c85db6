"""Torch's own configuration (of Dynamo, Inductor, AOT, symbolic shapes): what differs from its defaults, and back.

`defaults` means what torch would do if nobody had changed anything: an option that an environment variable set while
torch was imported counts as changed, so that it reaches a process in which torch is imported already.

A case is data from anywhere. Only the modules of a closed list can be named; programs, places and whatever else
belongs to one machine are neither kept nor set; and text that could become part of a compiler's command line is set
only for those who trust the case.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from torchsleuth import torch_compat
from torchsleuth.case.plain import decode_plain, encode_plain, notice
from torchsleuth.case.schema import Config, Noticed
from torchsleuth.errors import GET_IT_AGAIN, BadCase

_OF_THE_MACHINE = re.compile(
    r"(\w+\.)?(\w*_)?(dir|dir_root|path|logpath|root|home|cxx|libs|library|file_name|job_id|id_prefix)"
    r"|profile_bandwidth_output|trace\.log_url_for_graph_xform|compile_threads|worker_start_method"
)
"""Options that say where something is or how fast this machine may work, not what is computed."""

_OF_THE_PEER = frozenset(
    {
        ("torch._dynamo.config", "repro_after"),
        ("torch._dynamo.config", "repro_level"),
        ("torch._inductor.config", "aot_inductor.repro_level"),
        ("torch._inductor.config", "aot_inductor.dump_aoti_minifier"),
    }
)
"""Options that start torch's own tools for failures. Two at once would be in each other's way."""

_HARMLESS = re.compile(r"-O[0-3sz]?|([\w.,:+|*][\w.,:+|*-]*)?", re.ASCII)
"""Text that can be a name, a list of names or a level, but not a path, a flag with a value, or two words."""


NOT_ALL = "not all of the configuration is as in the case"
"""How it begins, when what could not be set is said."""


def observe_options(*, stable: bool = False) -> tuple[Config, ...]:
    """Every option of the loaded modules that does not have its default, in a fixed order.

    `stable` leaves out what depends on the machine or the run: options that only the environment has changed, and
    what a value that could not be kept prints as.
    """
    found = []
    for module in torch_compat.CONFIG_MODULES:
        if not torch_compat.config_is_loaded(module):
            continue
        by_program = torch_compat.config_set_by_program(module)
        for name, value in sorted(_changed(module).items()):
            if stable and name not in by_program:
                continue
            found.append(Config(module, name, encode_plain(value, _noticed_briefly if stable else None)))
    return tuple(found)


@contextmanager
def options_restored(options: Iterable[Config], *, trust: bool = False) -> Iterator[None]:
    """The configuration of a case: its options as it has them, all others at their defaults; afterwards as before.

    What cannot be set (an option that this torch does not have, a value that was only noticed) is a warning.
    """
    wanted: dict[str, dict[str, Any]] = {module: {} for module in torch_compat.CONFIG_MODULES}
    with ExitStack() as stack:
        skipped: list[str] = []
        for place, option in enumerate(options):
            _want(option, wanted, skipped, trust=trust, field=f"state.config[{place}]")
        for module, values in wanted.items():
            if values or torch_compat.config_is_loaded(module):
                here = torch_compat.config_values(module)
                unknown = values.keys() - here.keys()
                skipped += [f"{module}.{name} (this torch does not have it)" for name in sorted(unknown)]
                defaults = torch_compat.config_defaults(module)
                for name in _changed(module).keys() - values.keys():
                    values[name] = defaults[name]
                changes = {
                    name: value
                    for name, value in values.items()
                    if name not in unknown and not equal(value, here[name])
                }
                stack.enter_context(torch_compat.config_patch(module, changes))
                now = torch_compat.config_values(module)
                forced = [name for name, value in changes.items() if not equal(value, now[name])]
                skipped += [f"{module}.{name} (a variable of this environment forces it)" for name in sorted(forced)]
        if skipped:
            warnings.warn(f"{NOT_ALL}: {'; '.join(skipped)}", stacklevel=4)
        yield


def _noticed_briefly(x: object) -> Noticed:
    noticed = notice(x, "only plain values can be kept here")
    return Noticed(noticed.type, noticed.reason)


def _want(option: Config, wanted: dict[str, dict[str, Any]], skipped: list[str], *, trust: bool, field: str) -> None:
    name = f"{option.module}.{option.name}"
    if option.module not in wanted:
        raise BadCase(
            f"{option.module!r} is no configuration of torch's",
            cause=f"a case may only set options of {', '.join(wanted)}",
            remedy=GET_IT_AGAIN,
            field=field,
        )
    if not _is_kept(option.module, option.name):
        skipped.append(f"{name} (it belongs to the machine where the case was written)")
    elif isinstance(option.value, Noticed):
        skipped.append(f"{name} (the case does not hold it: {option.value.reason})")
    else:
        value = decode_plain(option.value, field=field)
        if trust or _is_harmless(value):
            wanted[option.module][option.name] = value
        else:
            skipped.append(f"{name} = {value!r} (it could reach a command line; set only if the case is trusted)")


def _changed(module: str) -> dict[str, Any]:
    defaults = torch_compat.config_defaults(module)
    return {
        name: value
        for name, value in torch_compat.config_values(module).items()
        if _is_kept(module, name) and not equal(value, defaults.get(name, value))
    }


def may_be_set(option: Config) -> bool:
    """Whether an option may be set from a case that nobody said is trusted."""
    return _is_kept(option.module, option.name) and _is_harmless(decode_plain(option.value))


@cache
def _is_kept(module: str, name: str) -> bool:
    return (module, name) not in _OF_THE_PEER and _OF_THE_MACHINE.fullmatch(name) is None


def equal(one: object, other: object) -> bool:
    """Whether two values of an option are one. Those of the user's own may compare in any way they like."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - as they like
        return False


def _is_harmless(value: object) -> bool:
    if isinstance(value, str):
        return _HARMLESS.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(_is_harmless(key) and _is_harmless(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_harmless, value))
    return not isinstance(value, bytes)

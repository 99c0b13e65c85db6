"""What a run depends on besides its graph and inputs: modes, random numbers, precision, configuration, environment.

    state = observe()           where the caller stands: a compiler's own modes are not those of the user's program
    with restored(state):       all of it as it was then, and afterwards everything as before
        ...

The parts have files of their own: `flags` (switches of torch's backends), `options` (torch's configuration) and
`environment`. As in torch itself, modes and configuration belong to the thread; random state, precision, switches,
threads and environment belong to the process, so two threads cannot have two states of those at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

from torchsleuth import torch_compat
from torchsleuth.case.format.checking import MAX_THREADS
from torchsleuth.case.plain import torch_constant, torch_name
from torchsleuth.case.schema import Autocast, Rng, State
from torchsleuth.case.surroundings import environment, flags, options
from torchsleuth.errors import GET_IT_AGAIN, BadCase, in_words

_AUTOCAST_DTYPES: Final = {
    "cpu": "bfloat16",
    "cuda": "float16",
    "xpu": "float16",
    "mps": "float16",
    "hpu": "bfloat16",
    "mtia": "float16",
    "xla": "bfloat16",
}
"""The devices that autocast knows, and the dtype that each casts to by default."""

_ACCELERATORS: Final = ("cuda", "xpu", "mps", "mtia")
_DETERMINISTIC: Final = {0: "off", 1: "warn", 2: "error"}


def observe(*, stable: bool = False) -> State:
    """The state of the calling thread, now. Nothing is changed by looking.

    `stable` leaves out what belongs to the machine rather than to the program (environment variables, the number of
    threads), so that the same program gives the same bytes wherever it runs.
    """
    import torch

    precision = flags.observe_matmul_precision()
    return State(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        autocast=observe_autocast(),
        autocast_cache=torch.is_autocast_cache_enabled(),
        rng=_observe_rng(),
        deterministic=_DETERMINISTIC[torch.get_deterministic_debug_mode()],  # type: ignore[arg-type]
        fill_uninitialised=_deterministic().fill_uninitialized_memory,
        default_dtype=torch_name(torch.get_default_dtype()),
        default_device=_observe_device(),
        matmul_precision=precision,
        flags=flags.observe_flags(precision),
        threads=None if stable else torch.get_num_threads(),
        config=options.observe_options(stable=stable),
        environment=() if stable else environment.observe_environment(),
    )


@contextmanager
def restored(state: State, *, trust: bool = False) -> Iterator[None]:
    """Everything as the state says; afterwards, also after an exception, as before.

    What this machine or this torch cannot do (a device that is not there, an option it does not have) is a warning
    that names it. `trust` is for text that could reach a compiler's command line: without it, such options and
    variables are left out.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(environment.applied(state.environment))
        stack.enter_context(flags.flags_restored(state.flags, _known_precision(state.matmul_precision)))
        stack.enter_context(_globals_restored(state))
        stack.enter_context(options.options_restored(state.config, trust=trust))
        stack.enter_context(_device_restored(state.default_device))
        stack.enter_context(_autocast_restored(state))
        stack.enter_context(_rng_restored(state.rng))
        stack.enter_context(torch.inference_mode(state.inference))
        stack.enter_context(torch.set_grad_enabled(state.grad))
        yield


# ---- autocast --------------------------------------------------------------------------------------------


def observe_autocast() -> tuple[Autocast, ...]:
    """What autocast does in the calling thread, where that is not the default."""
    import torch

    found = []
    for device, usual in _AUTOCAST_DTYPES.items():  # asked at each call of a watched graph: no more than that
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        if enabled or dtype is not getattr(torch, usual):
            found.append(Autocast(device, enabled, torch_name(dtype)))
    return tuple(found)


@contextmanager
def _autocast_restored(state: State) -> Iterator[None]:
    import torch

    given = {one.device: one for one in state.autocast}
    for place, device in enumerate(given):
        if device not in _AUTOCAST_DTYPES:
            raise _bad(f"autocast knows no device {device!r}", f"state.autocast[{place}].device")
    wanted = {
        device: (given[device].enabled, _dtype(given[device].dtype, "state.autocast"))
        if device in given
        else (False, _dtype(default, "state.autocast"))
        for device, default in _AUTOCAST_DTYPES.items()
    }
    before = {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in wanted}
    cached = torch.is_autocast_cache_enabled()
    torch.autocast_increment_nesting()
    try:
        _set_autocast(wanted)
        torch.set_autocast_cache_enabled(state.autocast_cache)
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        _set_autocast(before)
        torch.set_autocast_cache_enabled(cached)


def _set_autocast(wanted: dict[str, tuple[bool, Any]]) -> None:
    import torch

    for device, (enabled, dtype) in wanted.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


# ---- random numbers --------------------------------------------------------------------------------------


def _observe_rng() -> tuple[Rng, ...]:
    import torch

    # Compilers call from under fake tensors. The state is asked for as a real one.
    with torch_compat.plain_torch():
        seen = [Rng("cpu", bytes(torch.get_rng_state().tolist()))]
        for kind in _ACCELERATORS:
            for device in _devices(kind):
                seen.append(Rng(device, bytes(getattr(torch, kind).get_rng_state(*_place(device)).tolist())))
    return tuple(seen)


@contextmanager
def _rng_restored(wanted: tuple[Rng, ...]) -> Iterator[None]:
    """Random numbers go on from the case's state; afterwards from where they were."""
    before = _observe_rng()
    try:
        missing = _set_rng(wanted)
        if missing:
            warnings.warn(f"the random state of these devices is not set: {', '.join(missing)}", stacklevel=4)
        yield
    finally:
        _set_rng(before)


def _set_rng(states: tuple[Rng, ...]) -> list[str]:
    import torch

    missing = []
    for place, one in enumerate(states):
        kind = one.device.partition(":")[0]
        if kind != "cpu" and (kind not in _ACCELERATORS or one.device not in _devices(kind)):
            missing.append(one.device)
            continue
        try:
            with torch_compat.plain_torch():
                state = torch.tensor(list(one.state), dtype=torch.uint8, device="cpu")
                if kind == "cpu":
                    torch.set_rng_state(state)
                else:
                    getattr(torch, kind).set_rng_state(state, *_place(one.device))
        except (RuntimeError, TypeError) as error:
            raise _bad(
                f"the random state of {one.device} cannot be set: {in_words(error)}", f"state.rng[{place}].state"
            ) from error
    return missing


def _devices(kind: str) -> tuple[str, ...]:
    """The devices of a kind that are in use: asking one that is not would start it."""
    import torch

    module: Any = getattr(torch, kind, None)
    if module is None or not hasattr(module, "get_rng_state"):
        return ()
    if kind == "mps":
        return ("mps",) if torch.backends.mps.is_available() else ()
    if not (module.is_available() and module.is_initialized()):
        return ()
    return tuple(f"{kind}:{index}" for index in range(module.device_count()))


def _place(device: str) -> tuple[str, ...]:
    return () if device == "mps" else (device,)


# ---- the rest --------------------------------------------------------------------------------------------


@contextmanager
def _globals_restored(state: State) -> Iterator[None]:
    import torch

    dtype = _dtype(state.default_dtype, "state.default_dtype")
    if not (dtype.is_floating_point or dtype.is_complex):
        raise _bad(f"{state.default_dtype} cannot be the default dtype", "state.default_dtype")
    if state.threads is not None and not 1 <= state.threads <= MAX_THREADS:
        raise _bad(f"{state.threads} is no number of threads", "state.threads")
    words = {word: number for number, word in _DETERMINISTIC.items()}
    before = (
        torch.get_deterministic_debug_mode(),
        _deterministic().fill_uninitialized_memory,
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    try:
        _set_globals(words[state.deterministic], state.fill_uninitialised, dtype, state.threads or before[3])
        yield
    finally:
        _set_globals(*before)


def _set_globals(deterministic: int, fill: bool, dtype: Any, threads: int) -> None:
    import torch

    # Not `use_deterministic_algorithms`, which changes an option of Inductor's as well. That is in the configuration.
    torch.set_deterministic_debug_mode(deterministic)
    _deterministic().fill_uninitialized_memory = fill
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _deterministic() -> Any:
    import torch

    return torch.utils.deterministic


def _observe_device() -> str:
    import torch

    try:
        return str(torch.get_default_device())
    except (RuntimeError, AssertionError):  # a default device that is not there: torch tries it, to learn its number
        return "cpu"


def _device_restored(wanted: str) -> Any:
    import torch

    if wanted == _observe_device():
        return nullcontext()
    try:
        return torch.device(wanted)
    except (RuntimeError, ValueError) as error:
        raise _bad(f"torch knows no device {wanted!r}", "state.default_device") from error


def _known_precision(word: str) -> str:
    if word not in ("highest", "high", "medium"):
        raise _bad(f"{word!r} is no precision of matrix products", "state.matmul_precision")
    return word


def _dtype(name: str, field: str) -> Any:
    import torch

    found = torch_constant(name)
    if not isinstance(found, torch.dtype):
        raise _bad(f"torch has no dtype {name!r}", field)
    return found


def _bad(cause: str, field: str) -> BadCase:
    return BadCase(
        "the state of the case cannot be restored",
        cause=cause,
        remedy=GET_IT_AGAIN,
        field=field,
    )

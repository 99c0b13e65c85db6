"""The state of a case in a script: environment variables before torch is imported, everything else around the run.

What a case may set is decided by `environment`, `options` and `flags`, here as everywhere: nothing that names a
program or a place reaches the script as a statement; it is a comment there.
"""

from __future__ import annotations

import base64
import functools
import re
import warnings
import zlib
from collections.abc import Iterator
from typing import Final

import torch

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs import targets
from torchsleuth.case.script.graphs import can_be_said, graphs_in, plain_name
from torchsleuth.case.script.inputs import in_lines
from torchsleuth.case.script.layout import Page
from torchsleuth.case.script.source import Spelling, text_source, torch_source, value_source
from torchsleuth.case.surroundings import environment, options
from torchsleuth.case.surroundings.flags import flags
from torchsleuth.errors import GET_IT_AGAIN, BadCase, CaseError

_RANDOM: Final = re.compile(
    r"rand|dropout|bernoulli|multinomial|normal|poisson|rrelu|gumbel|exponential|geometric|cauchy|seed|attention|noise"
    r"|rng|philox|fractional_max_pool|binomial|uniform"
)


def write_environment(page: Page, state: schema.State) -> bool:
    """Variables that torch reads while it is imported. True if there are any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = environment.for_child(state.environment, {})
    for name, value in sorted(wanted.items()):
        page.line(f"os.environ[{text_source(name)}] = {text_source(value)}")
    for name, value in state.environment:
        if name not in wanted:
            page.comment(f"not set here, it belongs to another machine: {name}={text_source(value)}")
    return bool(wanted)


def write_state(page: Page, case: schema.Case, *, trust: bool) -> bool:
    """`state()`, a context manager. False if there is nothing to be set, and so no function."""
    lines = list(_statements(case, trust))
    if not lines:
        return False
    page.blank(2)
    page.line("@contextlib.contextmanager")
    with page.block("def state():"):
        page.line('"""Modes, configuration and random numbers as they were."""')
        with page.block("with contextlib.ExitStack() as stack:"):
            for statement, comment in lines:
                page.line(statement, comment) if statement else page.comment(comment)
            page.line("yield")
    return True


def _statements(case: schema.Case, trust: bool) -> Iterator[tuple[str, str]]:
    """(statement, comment); outermost first."""
    state = case.state
    yield from _globals(state)
    yield from _options(state, trust)
    if state.default_device != "cpu":
        yield f"stack.enter_context(torch.device({text_source(state.default_device)}))", ""
    for one in state.autocast if case.compiler.after != "aot" else ():
        place = f"{text_source(one.device)}, dtype={torch_source(one.dtype)}, enabled={one.enabled}"
        cache = "" if state.autocast_cache else ", cache_enabled=False"
        yield f"stack.enter_context(torch.autocast({place}{cache}))", ""
    if draws_random_numbers(case.graph):
        yield from _random(state)
    if state.inference:
        yield "stack.enter_context(torch.inference_mode())", ""
    if not state.grad or case.compiler.after == "aot":
        why = "graphs after AOT are below autograd" if state.grad else ""
        yield "stack.enter_context(torch.no_grad())", why


def _globals(state: schema.State) -> Iterator[tuple[str, str]]:
    if state.threads is not None:
        yield f"torch.set_num_threads({state.threads})", ""
    if state.default_dtype != "float32":
        yield f"torch.set_default_dtype({torch_source(state.default_dtype)})", ""
    if state.deterministic != "off":
        yield f"torch.set_deterministic_debug_mode({text_source(state.deterministic)})", ""
    if not state.fill_uninitialised:
        yield "torch.utils.deterministic.fill_uninitialized_memory = False", ""
    if state.matmul_precision != "highest":
        yield f"torch.set_float32_matmul_precision({text_source(state.matmul_precision)})", ""
    known = flags()
    for entry in state.flags:
        flag = known.get(entry.name)
        if flag is None or not can_be_said(entry.value):
            yield "", f"not set here, torch has no such switch: {entry.name}"
        elif callable(functools.reduce(getattr, entry.name.split("."), torch.backends)):
            yield f"torch.backends.{entry.name}({value_source(entry.value)})", ""
        else:
            yield f"torch.backends.{entry.name} = {value_source(entry.value)}", ""


def _options(state: schema.State, trust: bool) -> Iterator[tuple[str, str]]:
    for option in state.config:
        name = f"{option.module}.{option.name}"
        if option.module not in torch_compat.CONFIG_MODULES or not all(map(plain_name, option.name.split("."))):
            raise _no_option(name)
        if not can_be_said(option.value):
            yield "", f"not set here, the case does not hold its value: {name}"
        elif not trust and not options.may_be_set(option):
            yield "", f"not set here, it could name a program or a place: {name} = {Spelling().value(option.value)}"
        else:
            yield f"{name} = {value_source(option.value)}", ""


def _no_option(name: str) -> BadCase:
    return BadCase(
        f"{name[:120]!r} is no option of torch's configuration",
        cause=f"a case may only set options of {', '.join(torch_compat.CONFIG_MODULES)}",
        remedy=GET_IT_AGAIN,
        field="state.config",
    )


def modules_of(state: schema.State) -> set[str]:
    """The configuration modules that a script has to import."""
    return {option.module for option in state.config if can_be_said(option.value)}


# ---- random numbers --------------------------------------------------------------------------------------


def draws_random_numbers(graph: schema.Graph) -> bool:
    """Whether a run of the graph may depend on the state of a generator. When in doubt, it does."""
    return any(_is_random(node) for _, one in graphs_in(graph, "") for node in one.nodes)


def _is_random(node: schema.Node) -> bool:
    if node.op == "call_module" or (node.op == "call_method" and _RANDOM.search(node.target)):
        return True
    if node.op != "call_function":
        return False
    try:
        function = targets.resolve(node.target)
    except CaseError:
        return True  # an operator of the user's own: nobody knows
    if torch_compat.is_op_overload(function):
        return torch.Tag.nondeterministic_seeded in torch_compat.op_tags(function)
    return bool(_RANDOM.search(node.target)) or targets.is_custom(node.target)


def _random(state: schema.State) -> Iterator[tuple[str, str]]:
    for one in state.rng:
        seed = seed_of(one) if one.device == "cpu" else None
        if seed is not None:
            yield f"torch.manual_seed({seed})", ""
            continue
        text = base64.b64encode(zlib.compress(one.state, 9)).decode()
        setter = "torch" if one.device == "cpu" else f"torch.{one.device.partition(':')[0]}"
        place = "" if one.device in ("cpu", "mps") else f", {text_source(one.device)}"
        yield f"{setter}.set_rng_state(packed({in_lines(text)}){place})", ""


def seed_of(rng: schema.Rng) -> int | None:
    """The seed after which the generator has this state, if it has drawn nothing since."""
    seed = int.from_bytes(rng.state[:8], "little")
    fresh = torch.Generator("cpu")
    try:
        state = fresh.manual_seed(seed).get_state()
    except RuntimeError:
        return None
    return seed if bytes(state.tolist()) == rng.state else None

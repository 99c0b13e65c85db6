"""Graphs after AOT, by the names of torch's own tool: a compiler under debugging, dumps, and the scripts that run them.

    compiler = wrap_compiler_debug(compile_fx_inner, "inductor")    as `torch._dynamo.config` says, at each call
    save_graph_repro(file, gm, args, "inductor", save_dir=folder)   a script
    run_repro(mod, load_args, command="minify", ...)                what a script calls

The three steps that torch's users know: a program that fails writes `minifier_launcher.py`; running that writes
`repro.py`; running that fails. What is behind the names is the engine: graphs are compared by `compare`, asked about in
the workers of `run`, and made smaller by `reduce`.
"""

from __future__ import annotations

import copy
import functools
import io
import logging
import operator
import os
import shutil
import sys
import textwrap
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.hub import tqdm  # type: ignore[attr-defined]

from torchsleuth import torch_compat
from torchsleuth.case.schema import Compiler
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.config import After
from torchsleuth.dropin import analysing, scripts
from torchsleuth.dropin.debug_utils import (
    AccuracyError as AccuracyError,
    InputReader as InputReader,
    InputWriter as InputWriter,
    NopInputReader as NopInputReader,
    backend_accuracy_fails,
    helper_for_dump_minify,
    minifier_dir as minifier_dir,
    same_two_models,
)
from torchsleuth.dropin.guarding import done, point_to_launcher, point_to_script, safely
from torchsleuth.dropin.installing import installed
from torchsleuth.dropin.minifying import NOT_FAILING as NOT_FAILING, Reducing, Wanted
from torchsleuth.dropin.modules import has_its_data
from torchsleuth.dropin.options import accuracy_word, aot_parser, parsed, warn_unknown
from torchsleuth.dropin.places import checkpoints_dir, write_whole
from torchsleuth.dropin.settings import checked_after
from torchsleuth.dropin.surroundings import Options
from torchsleuth.run.checking.reference import frozen_copy, reference_of
from torchsleuth.run.scripts import run_script
from torchsleuth.run.synchronising import accelerators_of, synchroniser

log = logging.getLogger("torch._dynamo.repro.after_aot")
"""Where torch's own tool says such things."""

_ISOLATED: Final = 300.0
"""Seconds for a run in a process of its own."""
_ASKED, _FAILS, _PASSES = "minifier-query: asked", "minifier-query: fails", "minifier-query: does not fail"
_CANNOT_SAY: Final = 125


# ---- watching a compiler ---------------------------------------------------------------------------------


def wrap_compiler_debug(unconfigured_compiler_fn: Callable[..., Any], compiler_name: str) -> Callable[..., Any]:
    """The compiler, debugged as `torch._dynamo.config` says each time that it, or what it made, is called.

    With `repro_after` other than "aot" the compiler's own object is returned.
    """
    return _DebuggedCompiler(unconfigured_compiler_fn, compiler_name)


class _DebuggedCompiler:
    """Takes a graph and example inputs; whatever else it is given is passed on."""

    def __init__(self, compiler: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, compiler)
        self._compiler = compiler
        self._name = name

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], *more: Any, **kwargs: Any) -> Any:
        if checked_after() != "aot":
            return self._compiler(gm, example_inputs, *more, **kwargs)
        level = torch_compat.dynamo_config().repro_level
        graph = safely(log, lambda: frozen_copy(gm)) or gm
        if level == 3:  # the compiler itself may take the process along
            safely(log, lambda: dump_to_minify(graph, example_inputs, self._name))
        try:
            compiled = self._compiler(gm, example_inputs, *more, **kwargs)
        except Exception as error:
            _dump(error, level, graph, example_inputs, self._name)
            log.error("CompilerError")
            raise
        if not callable(compiled):  # files, to be loaded by somebody else
            return compiled
        deferred = _Deferred(compiled, graph, self._name, accelerators_of(example_inputs))
        return safely(log, deferred.remember) or deferred


class _Deferred:
    """A compiled graph that waits for real inputs."""

    def __init__(self, compiled: Callable[..., Any], graph: fx.GraphModule, name: str, devices: Sequence[str]) -> None:
        self._boxed_call = True  # its own: torch hands on what is in `__dict__`
        self._compiled = compiled
        self._graph = graph
        self._name = name
        self._graph_name = ""
        self._written: Sequence[int] | None = None
        self._options: Options | None = None
        self._synchronise = synchroniser(devices)

    def remember(self) -> _Deferred:
        """Note what is only known while it is compiled: torch.compile's own options are set until then."""
        self._graph_name = torch_compat.aot_name() or ""
        self._options = Options()
        self._written = written_inputs(self._graph)
        return self

    def __call__(self, real_inputs: list[Any]) -> Any:
        settings = torch_compat.dynamo_config()
        if settings.repro_after != "aot":
            return self._compiled(real_inputs)
        with settings.patch(repro_after=None):  # nothing that this runs is debugged itself
            return self._debugged(real_inputs, settings.repro_level)

    def _debugged(self, real_inputs: list[Any], level: int) -> Any:
        inputs = list(real_inputs)  # what is compiled may empty the list that it is given
        if level == 4:
            return self._compared(real_inputs, inputs)
        if level == 3:
            with self._as_compiled():
                safely(log, lambda: dump_to_minify(self._graph, inputs, self._name))
        else:  # what it writes to before it raises is kept as it was
            inputs = self._copied(inputs)
        return self._called(real_inputs, inputs, level)

    def _called(self, real_inputs: list[Any], inputs: list[Any], level: int) -> Any:
        try:
            result = self._compiled(real_inputs)
            if self._synchronise is not None:
                self._synchronise()
        except Exception as error:
            with self._as_compiled():
                _dump(error, level, self._graph, inputs, self._name)
            raise
        return result

    def _copied(self, inputs: list[Any]) -> list[Any]:
        """The inputs, with copies of those that it writes to."""
        return safely(log, lambda: with_copies(inputs, self._written)) or inputs

    def _as_compiled(self) -> AbstractContextManager[None]:
        return nullcontext() if self._options is None else self._options.set()

    def _compared(self, real_inputs: list[Any], inputs: list[Any]) -> Any:
        if self._name != "inductor":
            raise NotImplementedError("Accuracy minification is supported for inductor only")
        ignore = torch_compat.dynamo_config().repro_ignore_non_fp
        compiled, reference = _Kept(self._compiled), reference_of(self._graph)
        if same_two_models(reference, compiled, inputs, only_fwd=True, ignore_non_fp=ignore, written=True):
            return self._called(real_inputs, self._copied(inputs), 4)
        log.warning("Accuracy failed for the AOT Autograd graph %s", self._graph_name)
        name = f"{self._name}_accuracy"
        error = AccuracyError("Bad accuracy detected")
        with self._as_compiled():
            safely(log, lambda: dump_compiler_graph_state(self._graph, inputs, name))
            if done(log, lambda: dump_to_minify(self._graph, inputs, name)):
                point_to_launcher(error)
        raise error


def _dump(error: Exception, level: int, graph: fx.GraphModule, inputs: Sequence[Any], name: str) -> None:
    """Write down what raised, as the level says; at level 3 it was written before."""
    if level == 1:
        if done(log, lambda: dump_compiler_graph_state(graph, inputs, name)):
            safely(log, lambda: point_to_script(error))
    elif level == 3 or (level in (2, 4) and done(log, lambda: dump_to_minify(graph, inputs, name))):
        safely(log, lambda: point_to_launcher(error))


def written_inputs(gm: fx.GraphModule) -> list[int] | None:
    """The places of inputs that a graph writes to. None: that cannot be seen from its operators."""
    places = {node: at for at, node in enumerate(node for node in gm.graph.nodes if node.op == "placeholder")}
    found: set[int] = set()
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module") or node.target is operator.getitem:
            continue
        if node.op != "call_function" or not torch_compat.is_op_overload(node.target):
            return None
        for one in torch_compat.op_arguments(node.target, node.args, node.kwargs):
            values = one.value if isinstance(one.value, (list, tuple)) else [one.value]
            if one.written and not all(value in places for value in values if isinstance(value, fx.Node)):
                return None
            found |= {places[value] for value in values if one.written and isinstance(value, fx.Node)}
    return sorted(found)


def with_copies(inputs: Sequence[Any], places: Sequence[int] | None) -> list[Any]:
    """The inputs, with copies of some of them, and of those that share their memory; None: of all."""
    if places is None:
        return clone_inputs(inputs)
    memories = {_memory(inputs[at]) for at in places}
    chosen = [at for at, one in enumerate(inputs) if isinstance(one, torch.Tensor) and _memory(one) in memories]
    found = list(inputs)
    for at, one in zip(chosen, clone_inputs([inputs[at] for at in chosen]), strict=True):
        found[at] = one
    return found


def _memory(tensor: torch.Tensor) -> int:
    """What is the same for tensors that share their memory."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


class _Kept:
    """A boxed function that is compared, and says so: not all of Inductor's do."""

    _boxed_call = True

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function

    def __call__(self, inputs: list[Any]) -> Any:
        return self._function(inputs)


# ---- writing scripts -------------------------------------------------------------------------------------


def generate_compiler_repro_string(
    gm: fx.GraphModule,
    args: Sequence[Any],
    *,
    stable_output: bool = False,
    save_dir: str | None = None,
    stable_hash: bool = False,
    has_distributed_ops: bool = False,
) -> str:
    """The script of a graph and its inputs, up to `mod = Repro()`. Data goes to `save_dir`, if there is one."""
    return scripts.aot_script(
        gm,
        args,
        stable_output=stable_output,
        save_dir=save_dir,
        stable_hash=stable_hash,
        distributed=has_distributed_ops,
    )


def save_graph_repro(
    fd: IO[Any],
    gm: fx.GraphModule,
    args: Sequence[Any],
    compiler_name: str,
    *,
    stable_output: bool = False,
    save_dir: str | None = None,
    command: str = "run",
    accuracy: str | bool | None = None,
    tracing_mode: str | None = None,
    check_str: str | None = None,
    stable_hash: bool = False,
) -> None:
    """Write a whole script to an open file.

    By default results are compared if the name of the compiler says so ("inductor_accuracy"), and sizes stay symbolic
    if any of the graph's are. A graph that takes the state of a backward pass becomes a plain notice.
    """
    if scripts.is_script_with_state(args):
        fd.write(
            "# There is no script: a BackwardState is among the inputs, which exists only while a graph is compiled"
        )
        return
    groups = _extract_distributed_info(gm)
    if accuracy is None:
        accuracy = "_accuracy" in compiler_name
    if tracing_mode is None:
        tracing_mode = "symbolic" if scripts.is_symbolic(gm, args) else "real"
    text = generate_compiler_repro_string(
        gm,
        args,
        stable_output=stable_output,
        save_dir=save_dir,
        stable_hash=stable_hash,
        has_distributed_ops=bool(groups),
    )
    rest = f"save_dir={save_dir!r}, tracing_mode={tracing_mode!r}, check_str={check_str!r})"
    lines = ["if __name__ == '__main__':", "    from torchsleuth.dropin.after_aot import run_repro"]
    if groups:
        lines += [
            "    from torchsleuth.dropin.after_aot import setup_fake_process_groups",
            f"    setup_fake_process_groups({groups!r})",
        ]
    lines += [
        "    with torch.no_grad():",
        f"        run_repro(mod, load_args, accuracy={accuracy!r}, command={command!r}, {rest}",
        "        # Only the graph and its inputs, to go on by hand:",
        f"        # mod, args = run_repro(mod, load_args, accuracy={accuracy!r}, command='get_args', {rest}",
        "        # mod(*args)",
    ]
    if groups:
        lines.append("    dist.destroy_process_group()")
    fd.write(scripts.checked(text + "\n".join(lines) + "\n"))


def generate_standalone_repro(gm: fx.GraphModule, args: Sequence[Any], *, save_path: str | None = None) -> str:
    """A script without a folder of data, as text; also written to `save_path`, if that is given."""
    out = io.StringIO()
    save_graph_repro(out, gm, args, "inductor", save_dir=None)
    if save_path is not None:
        write_whole(save_path, out.getvalue())
        log.info("the script is in %s", save_path)
    return out.getvalue()


def dump_compiler_graph_state(
    gm: fx.GraphModule, args: Sequence[Any], compiler_name: str, *, accuracy: str | bool | None = None
) -> None:
    """Write a script to `checkpoints/<node count>.py`, and the same to `repro.py` in the current folder."""
    folder = checkpoints_dir()
    count = len(gm.graph.nodes)
    path = os.path.join(folder, f"{count}.py")
    log.warning("Writing checkpoint with %s nodes to %s", count, path)
    out = io.StringIO()
    save_graph_repro(out, gm, args, compiler_name, save_dir=folder, accuracy=accuracy)
    write_whole(path, out.getvalue())
    copy_for_convenience(path)


def copy_for_convenience(path: str) -> None:
    """The script as `repro.py` in the current folder. If that cannot be, it is only a warning."""
    there = "repro.py"
    try:
        there = os.path.join(os.getcwd(), "repro.py")
        shutil.copyfile(path, there)
        log.warning("Copying repro file for convenience to %s", there)
    except OSError:
        log.warning("No write permissions for %s", there)


def dump_to_minify(gm: fx.GraphModule, args: Sequence[Any], compiler_name: str) -> None:
    """Write the launcher: a script that makes the failure smaller when it is run."""
    out = io.StringIO()
    save_graph_repro(out, gm, args, compiler_name, save_dir=checkpoints_dir(), command="minify")
    helper_for_dump_minify(out.getvalue())


def _extract_distributed_info(gm: fx.GraphModule) -> dict[str, dict[str, int]]:
    """The process groups that collectives of a graph name: {'tp': {'size': 4, 'rank': 0}}."""
    found: dict[str, dict[str, int]] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or not torch_compat.is_op_overload(node.target):
            continue
        if node.target.namespace not in ("_c10d_functional", "c10d_functional"):
            continue
        given = torch_compat.op_arguments(node.target, node.args, node.kwargs)
        name = next((one.value for one in given if one.name == "group_name"), None)
        if isinstance(name, str) and name not in found:
            size, rank = torch_compat.group_of(name)
            found[name] = {"size": size, "rank": rank}
    return found


def setup_fake_process_groups(group_info: Mapping[str, Mapping[str, int]]) -> None:
    """Process groups of these names, sizes and ranks, in this process alone."""
    torch_compat.fake_groups(group_info)


# ---- does it fail? ---------------------------------------------------------------------------------------


def isolate_fails(
    fx_g: fx.GraphModule,
    args: Sequence[Any],
    compiler_name: str,
    env: Mapping[str, Any] | None = None,
    save_dir: str | None = None,
    accuracy: bool | str | None = None,
    tracing_mode: str | None = None,
    check_str: str | None = None,
) -> bool:
    """Whether a graph fails in an interpreter of its own. What that prints is printed here, behind ">>  ".

    A crash is a failure; so is a hang, after a few minutes. Where wrong results are looked for, neither is.
    """
    folder = os.path.join(os.getcwd(), "isolate")
    os.makedirs(folder, exist_ok=True)
    script = Path(folder, f"{uuid.uuid4().hex[:8]}.py")
    out = io.StringIO()
    save_graph_repro(
        out,
        fx_g,
        args,
        compiler_name,
        save_dir=save_dir,
        command="minifier-query",
        accuracy=accuracy,
        tracing_mode=tracing_mode,
        check_str=check_str,
    )
    script.write_text(out.getvalue(), encoding="utf-8")
    ran = run_script(script, timeout=_ISOLATED, environ={**os.environ, **(env or {})})
    print(textwrap.indent(ran.stdout, ">>  "))
    print(textwrap.indent(ran.stderr, ">>  "), file=sys.stderr)
    if ran.code is not None:
        return ran.code == 1 and _FAILS in ran.stdout
    compares = ("_accuracy" in compiler_name) if accuracy is None else accuracy_word(accuracy) != ""
    if compares or _ASKED not in ran.stdout:  # before that, it is not the graph that is run
        return False
    return check_str is None or check_str in ran.stderr


def inductor_fails(fx_g: fx.GraphModule, args: Sequence[Any], check_str: str | None = None) -> bool:
    """Whether Inductor raises on a graph, compiling or running it, where eager does not."""
    wait = synchroniser(accelerators_of(args))
    try:
        result = fx_g(*clone_inputs(args))
        if not isinstance(result, (tuple, list)) or any(isinstance(one, (tuple, list)) for one in result):
            return False  # no graph that AOT could have made
    except Exception:  # noqa: BLE001 - whatever it is, it is not Inductor's
        return False
    if wait is not None:
        wait()
    try:
        compiled = _compiled(fx_g, args)
        compiled(clone_inputs(args))
        if wait is not None:
            wait()
    except Exception as error:  # noqa: BLE001 - that is what was asked for
        if check_str is not None and check_str not in repr(error):
            return False
        print(repr(error))
        return True
    return False


def _compiled(gm: fx.GraphModule, args: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """What Inductor makes of a copy of the graph."""
    own = copy.deepcopy(gm)
    given = _get_compile_args(own, args)
    with ExitStack() as stack:
        if given is args and any(isinstance(child, fx.GraphModule) for child in own.children()):
            # Graphs with graphs in them are compiled as AOT hands them over: with fakes that may have new symbols.
            mode = torch_compat.fake_mode(ShapeEnv())
            given = [torch_compat.as_fake(mode, one) if isinstance(one, torch.Tensor) else one for one in args]
            stack.enter_context(torch_compat.tracing(mode))
        compiled = torch_compat.compile_inner()(own, given)
    if isinstance(compiled, str):
        raise AssertionError("Inductor wrote files instead of a function: it compiles ahead of time")
    return compiled  # type: ignore[no-any-return]


def inductor_accuracy_fails(
    fx_g: fx.GraphModule,
    args: Sequence[Any],
    check_str: str | None = None,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
) -> bool:
    """Whether Inductor computes something else than the graph. What raises is another failure, and logged."""
    return backend_aot_accuracy_fails(
        reference_of(fx_g),  # draws random numbers as Inductor's code does
        args,
        lambda _reference, inputs: _Kept(_compiled(fx_g, inputs)),
        require_fp64=require_fp64,
        ignore_non_fp=ignore_non_fp,
    )


backend_aot_accuracy_fails = functools.partial(backend_accuracy_fails, only_fwd=True, written=True)

ACCURACY_FAILS: Final[Mapping[str, Callable[..., bool]]] = {
    "": inductor_fails,
    "accuracy": functools.partial(inductor_accuracy_fails, require_fp64=True, ignore_non_fp=True),
    "strict_accuracy": inductor_accuracy_fails,
}
"""Who answers, by what is looked for. Strict is who minds a wrong bool as well."""


# ---- running scripts -------------------------------------------------------------------------------------


def repro_common(options: Any, mod: torch.nn.Module, load_args: Any) -> tuple[fx.GraphModule, list[Any]]:
    """Load the inputs of a script, and trace its module. The inputs are as they were loaded: tracing has copies."""
    if any(True for _ in mod.named_parameters()):
        raise AssertionError("Repro graph should not have any parameters")
    for name, buffer in mod.named_buffers():
        if not has_its_data(buffer):
            log.warning(
                "Constant %s was not serialized: it has random data, which may be why a failure does not show", name
            )
    args = load_inputs(options, load_args)
    mode: Any = getattr(options, "tracing_mode", None) or "real"
    traced: fx.GraphModule = make_fx(mod, tracing_mode=mode)(*clone_inputs(args))
    torch_compat.keep_intermediate_hooks()
    return traced, args


def load_inputs(options: Any, load_args: Any) -> list[Any]:
    """What `load_args` gives a reader, with a bar that shows how far it is."""
    version = getattr(load_args, "_version", None)
    if version is None:
        log.warning("load_args has no _version: nobody knows which form the script has; it is tried nevertheless")
    elif version > 0:
        log.warning("load_args has version %s, newer than 0, which is known here; it is tried nevertheless", version)
    counter = NopInputReader()
    load_args(counter)
    with tqdm(desc="Loading inputs", total=counter.total) as bar:
        reader = InputReader(save_dir=getattr(options, "save_dir", None), pbar=bar)
        load_args(reader)
    return list(reader.args)


def _get_compile_args(mod: fx.GraphModule, args: Sequence[Any]) -> Sequence[Any]:
    """What a compiler is given: where sizes are symbolic, what the graph knows of its inputs; else the inputs."""
    known = [node.meta.get("val") for node in mod.graph.nodes if node.op == "placeholder"]
    if not any(scripts.has_symbols(value) for value in known):
        return args
    return [arg if value is None else value for value, arg in zip(known, args, strict=False)]


def repro_run(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Compile the graph and run it; where accuracy is on, compare it with eager. An AccuracyError if they differ."""
    gm, args = repro_common(options, mod, load_args)
    compiled = _compiled(gm, args)
    if options.accuracy == "":
        compiled(list(args))
        wait = synchroniser(accelerators_of(args))
        if wait is not None:
            wait()
        return
    ignore = torch_compat.dynamo_config().repro_ignore_non_fp
    if not same_two_models(reference_of(gm), _Kept(compiled), args, only_fwd=True, ignore_non_fp=ignore, written=True):
        raise AccuracyError("Bad accuracy detected")


def repro_minify(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Make the graph as small as it can be, while it fails in the same way: `repro.py` in the current folder."""
    granularity = getattr(options, "max_granularity", None)
    if granularity is not None and (granularity < 1 or granularity & (granularity - 1)):
        raise RuntimeError(f"max_granularity {granularity} not power of two")
    gm, args = repro_common(options, mod, load_args)
    name = "inductor_accuracy" if options.accuracy != "" else "inductor"
    wanted = Wanted(options.accuracy, options.check_str, options.isolate, options.skip_sanity)
    compile_args = _get_compile_args(gm, args)
    with torch_compat.dynamo_config().patch(repro_after=None):
        Reducing(
            gm,
            args,
            Compiler(After.AOT, "inductor"),
            wanted,
            dump=functools.partial(dump_compiler_graph_state, compiler_name=name, accuracy=options.accuracy),
            text=functools.partial(_script_of, name, options.accuracy),
            examples=None if compile_args is args else compile_args,
        ).run()


def _script_of(name: str, accuracy: str, gm: fx.GraphModule, args: Sequence[Any], folder: str) -> str:
    out = io.StringIO()
    save_graph_repro(out, gm, args, name, save_dir=folder, accuracy=accuracy)
    return out.getvalue()


def repro_analyze(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Say of each intermediate result where compiled and eager differ, and what does not repeat itself."""
    gm, args = repro_common(options, mod, load_args)
    analysing.analyse(gm, args, lambda graph: _compiled(graph, args), options)


def repro_get_args(options: Any, mod: torch.nn.Module, load_args: Any) -> tuple[fx.GraphModule, list[Any]]:
    """The graph and its inputs, to go on by hand."""
    return repro_common(options, mod, load_args)


def repro_minifier_query(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Leave with 1 if the graph fails, with 0 if it does not, and with 125 if that cannot be said."""
    try:
        gm, args = repro_common(options, mod, load_args)
    except Exception:  # noqa: BLE001 - whatever it is, the graph was not run
        traceback.print_exc()
        sys.exit(_CANNOT_SAY)
    print(_ASKED, flush=True)
    fails = ACCURACY_FAILS[options.accuracy](gm, args, check_str=options.check_str)
    print(_FAILS if fails else _PASSES, flush=True)
    sys.exit(1 if fails else 0)


_COMMANDS: Final[Mapping[str, str]] = {
    "run": "repro_run",
    "minify": "repro_minify",
    "analyze": "repro_analyze",
    "get_args": "repro_get_args",
    "minifier-query": "repro_minifier_query",
}


def run_repro(
    mod: torch.nn.Module,
    load_args: Any,
    *,
    command: str = "run",
    accuracy: bool | str = "",
    save_dir: str | None = None,
    tracing_mode: str | None = None,
    patch_code: str | None = None,
    check_str: str | None = None,
    **kwargs: Any,
) -> Any:
    """What a script calls: does what the command line says, or else `command`."""
    warn_unknown(kwargs)
    if patch_code is not None:
        log.warning("patch_code is of an older torch, and passed over")
    parser = aot_parser(command, accuracy_word(accuracy), save_dir, tracing_mode, check_str)
    options = parsed(parser, command)
    with installed():  # what is compiled in here is not torch's own tool's to look at
        return globals()[_COMMANDS[options.command]](options, mod, load_args)

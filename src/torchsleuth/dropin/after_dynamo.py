"""Dynamo's graphs, by the names of torch's own tool: a backend under debugging, and the scripts that run its graphs.

    backend = wrap_backend_debug(backend, "inductor")       as `torch._dynamo.config` says, each time that it is called
    run_repro(mod, load_args, backend="inductor", ...)      what a script calls

The backend may be any: one of torch's by its name, or a function of yours, which a script imports, or brings along.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.capture.options import without_aot_cache
from torchsleuth.case.failures import raised
from torchsleuth.case.normalising import normalised
from torchsleuth.case.schema import Compiler, Signature
from torchsleuth.case.storages.sinks import number_hint
from torchsleuth.compare.rng import preserved
from torchsleuth.config import After
from torchsleuth.dropin import scripts
from torchsleuth.dropin.after_aot import copy_for_convenience, load_inputs
from torchsleuth.dropin.backends import Chosen
from torchsleuth.dropin.debug_utils import (
    AccuracyError as AccuracyError,
    NNModuleToString,
    backend_accuracy_fails,
    helper_for_dump_minify,
    run_fwd_maybe_bwd,
    same_two_models,
)
from torchsleuth.dropin.fx_minifier import minifier
from torchsleuth.dropin.guarding import done, point_to_launcher, point_to_script, safely
from torchsleuth.dropin.installing import installed
from torchsleuth.dropin.minifying import NOT_FAILING, Reducing, Wanted
from torchsleuth.dropin.models import clones_like
from torchsleuth.dropin.options import accuracy_word, dynamo_parser, parsed, warn_unknown
from torchsleuth.dropin.places import CHECKPOINTS, checkpoints_dir, write_whole
from torchsleuth.dropin.settings import checked_after
from torchsleuth.run.checking.reference import frozen_copy

log = logging.getLogger("torch._dynamo.repro.after_dynamo")
"""Where torch's own tool says such things."""

Backend = Callable[..., Any]


# ---- watching a backend ----------------------------------------------------------------------------------


def wrap_backend_debug(unconfigured_compiler_fn: Backend, compiler_name: str | None) -> WrapBackendDebug:
    """The backend, debugged as `torch._dynamo.config` says each time that it is called."""
    return WrapBackendDebug(unconfigured_compiler_fn, compiler_name)


class WrapBackendDebug:
    """A backend of torch.compile. To Dynamo it looks like the one that it calls."""

    def __init__(self, unconfigured_compiler_fn: Backend, compiler_name: str | None) -> None:
        functools.update_wrapper(self, unconfigured_compiler_fn)
        self._torchdynamo_orig_backend = unconfigured_compiler_fn
        self._compiler_name = compiler_name
        self.__name__: str = getattr(
            unconfigured_compiler_fn, "compiler_name", getattr(unconfigured_compiler_fn, "__name__", "")
        )
        if hasattr(unconfigured_compiler_fn, "get_compiler_config"):
            self.get_compiler_config = unconfigured_compiler_fn.get_compiler_config

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        backend = functools.partial(self._torchdynamo_orig_backend, **kwargs)
        after = checked_after()
        if after == "dynamo":
            return self._debugged(backend, gm, example_inputs)
        if after == "aot":
            with without_aot_cache():  # what is found there is not compiled, and so is not seen
                return backend(gm, example_inputs)
        return backend(gm, example_inputs)

    def _debugged(self, backend: Backend, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        settings = torch_compat.dynamo_config()
        level = settings.repro_level
        graph = safely(log, lambda: frozen_copy(gm)) or gm
        named = self._compiler_name if safely(log, self._is_named) else self._torchdynamo_orig_backend
        with settings.patch(repro_after=None):  # nothing that this runs is debugged itself
            written = level == 3 and done(log, lambda: dump_to_minify_after_dynamo(graph, inputs, named))
            try:
                compiled = backend(gm, inputs)
                if not any(torch_compat.is_fake(one) for one in inputs):
                    with preserved(), torch_compat.not_measured():
                        run_fwd_maybe_bwd(as_dynamo_calls(compiled), _numbers(inputs))
                    if level == 4:
                        self._compare(graph, compiled, inputs, named)
            except AccuracyError:
                raise
            except Exception as error:
                log.warning("What the backend made of the graph failed. Writing a script of it.")
                if level == 1 and done(log, lambda: dump_backend_state(graph, inputs, named)):
                    safely(log, functools.partial(point_to_script, error))
                if level in (2, 4):
                    written = done(log, lambda: dump_to_minify_after_dynamo(graph, inputs, named, accuracy=False))
                if written:
                    safely(log, functools.partial(point_to_launcher, error))
                raise
        return compiled

    def _is_named(self) -> bool:
        """Whether torch finds the backend by its name: that of a function is not one."""
        found = Chosen.of(self._torchdynamo_orig_backend)
        return self._compiler_name is not None and found.name == self._compiler_name

    def _compare(self, graph: fx.GraphModule, compiled: Any, inputs: Sequence[Any], named: Any) -> None:
        settings = torch_compat.dynamo_config()
        with preserved(), torch_compat.not_measured():
            same = same_two_models(
                graph,
                as_dynamo_calls(compiled),
                _numbers(inputs),
                only_fwd=settings.repro_forward_only,
                ignore_non_fp=settings.repro_ignore_non_fp,
            )
        if same:
            return
        log.warning("Accuracy failed for the TorchDynamo produced graph. Writing a script of it.")
        error = AccuracyError("Bad accuracy detected.")
        if done(log, lambda: dump_to_minify_after_dynamo(graph, inputs, named, accuracy=True)):
            point_to_launcher(error)
        raise error


def as_dynamo_calls(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What a backend made, as a function that takes its inputs one by one: so does Dynamo call it.

    That of Inductor says that it takes one list, as the graphs inside it do; torch's own tool believes that, and what
    comes of it takes the place of the user's error.
    """
    return compiled if isinstance(compiled, torch.nn.Module) else _OneByOne(compiled)


class _OneByOne:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def _numbers(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with numbers in the place of symbolic sizes."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return [number_hint(one) if isinstance(one, kinds) else one for one in inputs]


# ---- writing scripts -------------------------------------------------------------------------------------


def generate_dynamo_fx_repro_string(
    gm: fx.GraphModule,
    args: Sequence[Any],
    compiler_name: str | Backend | None,
    check_accuracy: bool = False,
    *,
    stable_output: bool = False,
    save_dir: str | None = None,
    command: str = "run",
) -> str:
    """The script of a graph of Dynamo's, its inputs, and a backend: a name, or a function."""
    for arg in args:
        if not isinstance(arg, (int, torch.SymInt, torch.Tensor)):
            raise TypeError(f"an input is neither a tensor nor an int: {type(arg).__qualname__}")
    chosen = Chosen.of(compiler_name)
    call = (
        f"run_repro(mod, load_args, accuracy={check_accuracy!r}, command={command!r},",
        f"    save_dir={save_dir!r}, {_autocast()}, backend={chosen.source})",
    )
    run = ["from torchsleuth.dropin.after_dynamo import run_repro"]
    mode = "torch.inference_mode()" if torch.is_inference_mode_enabled() else "torch.no_grad()"
    if torch.is_grad_enabled():
        run += call
    else:
        run += [f"with {mode}:", *(f"    {line}" for line in call)]
    return scripts.dynamo_script(gm, args, run, stable_output=stable_output, save_dir=save_dir, before=chosen.before)


def _autocast() -> str:
    """Whether autocast is on, for whichever device; and its dtype, where that is not the usual one."""
    for device, usual in (("cuda", torch.float16), ("xpu", torch.float16), ("cpu", torch.bfloat16)):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            return "autocast=True" if dtype is usual else f"autocast=True, autocast_dtype={dtype}"
    return "autocast=False"


def dump_backend_repro_as_file(
    gm: fx.GraphModule, args: Sequence[Any], compiler_name: str | Backend | None, check_accuracy: bool = False
) -> None:
    """Write a script to `checkpoints/minified_<node count>_nodes.py` and to `repro.py`, both in the current folder."""
    try:
        folder = os.path.join(os.getcwd(), CHECKPOINTS)
        os.makedirs(folder, exist_ok=True)
    except OSError:  # nothing can be written here
        folder = checkpoints_dir()
    count = len(gm.graph.nodes)
    path = os.path.join(folder, f"minified_{count}_nodes.py")
    log.warning("Writing checkpoint with %s nodes to %s", count, path)
    write_whole(path, generate_dynamo_fx_repro_string(gm, args, compiler_name, check_accuracy, save_dir=folder))
    copy_for_convenience(path)


def dump_backend_state(
    gm: fx.GraphModule, args: Sequence[Any], compiler_name: str | Backend | None, check_accuracy: bool = False
) -> None:
    """The same, if every module in the graph can be written; otherwise an AssertionError."""
    if not NNModuleToString.can_convert_to_string(gm):
        raise AssertionError("the graph has modules that cannot be written as text")
    dump_backend_repro_as_file(gm, args, compiler_name, check_accuracy)


def dump_to_minify_after_dynamo(
    gm: fx.GraphModule, args: Sequence[Any], compiler_name: str | Backend | None, *, accuracy: bool | None = None
) -> None:
    """Write the launcher: a script that makes the failure smaller when it is run."""
    checks = torch_compat.dynamo_config().repro_level == 4 if accuracy is None else accuracy
    helper_for_dump_minify(
        generate_dynamo_fx_repro_string(gm, args, compiler_name, checks, save_dir=checkpoints_dir(), command="minify")
    )


# ---- minifying in this process ---------------------------------------------------------------------------


def dynamo_minifier_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: str | Backend
) -> fx.GraphModule:
    """Make a graph smaller that another backend fails on, in this process. A ValueError if it does not fail."""
    backend = _found(compiler_name)
    inputs = _numbers(example_inputs)
    signature = _signature(frozen_copy(gm), inputs, backend)
    if signature is None:
        raise ValueError("No issue was detected")
    dump = functools.partial(dump_backend_state, compiler_name=compiler_name)

    def fails(part: fx.GraphModule, given: Sequence[Any]) -> bool:
        return backend_fails(part, given, backend, signature)

    minifier(gm, inputs, fails, dump)
    return gm


def dynamo_accuracy_minifier_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: str | Backend
) -> fx.GraphModule:
    """Make a graph smaller that another backend computes wrong results for, in this process."""
    backend = _found(compiler_name)
    gm.eval()
    inputs = _numbers(example_inputs)
    if not _accuracy_fails(gm, inputs, backend):
        log.error("Input graph does not fail accuracy testing")
        return gm
    log.warning("Accuracy failed for the TorchDynamo produced graph")
    dump = functools.partial(dump_backend_state, compiler_name=compiler_name, check_accuracy=True)
    minifier(gm, inputs, functools.partial(_accuracy_fails, compiler_fn=backend), dump)
    return gm


def _found(backend: str | Backend | None) -> Backend:
    if backend is None:
        raise RuntimeError("a backend has to be named, or given as a function")
    return torch_compat.find_backend(backend) if isinstance(backend, str) else backend


def _accuracy_fails(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_fn: Backend) -> bool:
    settings = torch_compat.dynamo_config()
    return backend_accuracy_fails(
        gm,
        example_inputs,
        lambda part, inputs: as_dynamo_calls(compiler_fn(part, inputs)),
        only_fwd=settings.repro_forward_only,
        ignore_non_fp=settings.repro_ignore_non_fp,
    )


def backend_fails(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_fn: Backend, orig_failure: Signature | str
) -> bool:
    """Whether a backend fails on a graph as it did before: in the same place, and in the same words but for sizes and
    names. A text has to be in what it says now."""
    try:
        run_fwd_maybe_bwd(gm, example_inputs)
    except Exception:  # noqa: BLE001 - eager fails, too: not the backend's
        return False
    error = _error(gm, example_inputs, compiler_fn)
    if error is None:
        return False
    if isinstance(orig_failure, str):
        return normalised(orig_failure) in normalised(str(error))
    return orig_failure.matches(raised(error).signature)


def _error(gm: fx.GraphModule, inputs: Sequence[Any], backend: Backend) -> Exception | None:
    try:
        compiled = backend(copy.deepcopy(gm), clones_like(inputs))
        run_fwd_maybe_bwd(as_dynamo_calls(compiled), inputs)
    except Exception as error:  # noqa: BLE001 - that is what was asked for
        return error
    return None


def _signature(gm: fx.GraphModule, inputs: Sequence[Any], backend: Backend) -> Signature | None:
    error = _error(gm, inputs, backend)
    return None if error is None else raised(error).signature


# ---- running scripts -------------------------------------------------------------------------------------


def run_load_args(options: Any, mod: torch.nn.Module, load_args: Any) -> list[Any]:
    """The inputs of a script."""
    return load_inputs(options, load_args)


def repro_minify(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Make the graph as small as it can be, while the backend fails in the same way: `repro.py` in this folder."""
    if options.backend is None:
        raise RuntimeError(
            "the script names no backend: it was a function that cannot be found from here. "
            "Import it, and give it to run_repro: backend=my_function"
        )
    args = run_load_args(options, mod, load_args)
    name = Chosen.of(options.backend).name
    minify: Callable[..., Any]
    with _autocast_as(options, args):
        if name is None or not getattr(options, "isolate", True):
            backend = dynamo_accuracy_minifier_backend if options.accuracy else dynamo_minifier_backend
            minify = functools.partial(backend, compiler_name=options.backend)
        else:
            minify = functools.partial(_minify_apart, options, name)
        captured = _Captured()
        torch.compile(mod, backend=captured)(*args)
        if not captured.graphs:
            raise RuntimeError(f"{NOT_FAILING}: there is nothing to compile in it")
        for gm, inputs in captured.graphs:
            minify(gm, inputs)


class _Captured:
    """A backend that only takes notes."""

    def __init__(self) -> None:
        self.graphs: list[tuple[fx.GraphModule, list[Any]]] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append((frozen_copy(gm), clones_like(inputs)))
        return gm.forward


def _minify_apart(options: Any, name: str, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """In processes of their own, where a crash is one answer more."""
    accuracy = options.accuracy
    Reducing(
        gm,
        _numbers(inputs),
        Compiler(After.DYNAMO, name),
        Wanted(accuracy),
        dump=functools.partial(dump_backend_state, compiler_name=options.backend, check_accuracy=bool(accuracy)),
        text=functools.partial(_script_of, options.backend, bool(accuracy)),
        examples=inputs,
    ).run()


def _script_of(backend: Any, accuracy: bool, gm: fx.GraphModule, args: Sequence[Any], folder: str) -> str:
    return generate_dynamo_fx_repro_string(gm, args, backend, accuracy, save_dir=folder)


@contextmanager
def _autocast_as(options: Any, args: Sequence[Any]) -> Iterator[None]:
    """Autocast for the device of the inputs, as the script says."""
    devices = (one.device.type for one in args if isinstance(one, torch.Tensor))
    device = next((one for one in devices if one != "cpu"), "cpu")
    dtype = getattr(options, "autocast_dtype", None)
    more = {} if dtype is None else {"dtype": dtype}
    with torch.amp.autocast(device, enabled=options.autocast, **more):
        yield


def repro_run(options: Any, mod: torch.nn.Module, load_args: Any) -> None:
    """Run the module eagerly and compiled. An AccuracyError if they are compared and differ."""
    compiled: Any = torch.compile(mod, backend=options.backend)
    settings = torch_compat.dynamo_config()
    args = run_load_args(options, mod, load_args)
    with _autocast_as(options, args):
        if options.accuracy == "":
            run_fwd_maybe_bwd(mod, args, only_fwd=options.only_fwd, disable_clone=True)
            del args
            again = run_load_args(options, mod, load_args)
            run_fwd_maybe_bwd(compiled, again, only_fwd=options.only_fwd, disable_clone=True)
            return
        mod.eval()
        compiled.eval()
        if not same_two_models(mod, mod, args):
            raise AssertionError("Eager itself failed")
        if not same_two_models(
            mod,
            compiled,
            args,
            only_fwd=settings.repro_forward_only,
            ignore_non_fp=settings.repro_ignore_non_fp,
        ):
            raise AccuracyError("Dynamo failed")


_COMMANDS: Final = {"run": "repro_run", "minify": "repro_minify"}


def run_repro(
    mod: torch.nn.Module,
    load_args: Any,
    *,
    command: str = "run",
    accuracy: bool | str = "",
    save_dir: str | None = None,
    autocast: bool = False,
    backend: str | Backend | None = "inductor",
    autocast_dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> None:
    """What a script calls: does what the command line says, or else `command`."""
    warn_unknown(kwargs)
    parser = dynamo_parser(command, accuracy_word(accuracy), save_dir, autocast, backend)
    options = parsed(parser, command)
    options.autocast_dtype = autocast_dtype
    with installed():  # what is compiled in here is not torch's own tool's to look at
        globals()[_COMMANDS[options.command]](options, mod, load_args)

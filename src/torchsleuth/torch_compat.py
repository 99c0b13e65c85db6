"""The one place that knows torch's private names: which ones, on which versions, and what each is good for.

Private names move between torch versions without notice. All of them stand in one table, `NAMES`; nothing
else in torchsleuth imports from a private module of torch. They are looked up on first use, so importing
this module is cheap and one lost name takes away one feature, not the program:

    resolve("OpOverload")        the object, or `MissingTorchName` that says what stops working
    missing(), report()          check the whole table without raising (for `sleuth doctor`)
    is_fake(x), tree_map(...)    what the rest of torchsleuth calls: one small function for each need

To follow a new torch: run `sleuth doctor`, correct the entries, run the tests, extend `TESTED`.
To try out a torch that does not exist, give `TorchNames` another importer, as the tests do.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, reduce, wraps
from pathlib import Path
from threading import Lock
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from torchsleuth.errors import MissingTorchName

if TYPE_CHECKING:
    import torch

TESTED: Final = ("2.13",)
"""The torch versions (major.minor) that the tests of torchsleuth have passed on."""


@dataclass(frozen=True)
class PrivateName:
    """One private name of torch: `attribute` (dotted if it lies deeper) of `module`."""

    module: str
    attribute: str
    feature: str
    """What stops working without it, in the user's words."""
    since: str = "2.13"
    """The first torch version it is known on."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.attribute}"


# What hangs on an object, not on a class (is_view, _schema), is probed on an operator that is always there.
_AN_OPERATOR = "ops.aten.add.Tensor"

NAMES: Final[Mapping[str, PrivateName]] = MappingProxyType(
    {
        "is_fake": PrivateName(
            "torch._subclasses.fake_tensor",
            "is_fake",
            "telling a fake tensor (a shape without values) from a real one, before values are compared",
        ),
        "TorchDispatchMode": PrivateName(
            "torch.utils._python_dispatch",
            "TorchDispatchMode",
            "seeing each operator of a run as it is executed",
        ),
        "tree_map": PrivateName(
            "torch.utils._pytree",
            "tree_map",
            "reading arguments and results that are nested in lists, tuples and dicts",
        ),
        "OpOverload": PrivateName(
            "torch._ops",
            "OpOverload",
            "recognising the operators in a graph",
        ),
        "HigherOrderOperator": PrivateName(
            "torch._ops",
            "HigherOrderOperator",
            "recognising control flow and other operators that take functions in a graph",
        ),
        "is_mutable": PrivateName(
            "torch",
            f"{_AN_OPERATOR}._schema.is_mutable",
            "knowing which operators write to their inputs",
        ),
        "is_view": PrivateName(
            "torch",
            f"{_AN_OPERATOR}.is_view",
            "knowing which operators return a view of their input",
        ),
        "arguments": PrivateName(
            "torch",
            f"{_AN_OPERATOR}._schema.arguments",
            "knowing the arguments of an operator by name, and which of them it writes to",
        ),
        "tags": PrivateName(
            "torch",
            f"{_AN_OPERATOR}.tags",
            "knowing which operators are random, pointwise or otherwise special",
        ),
        "operator_schemas": PrivateName(
            "torch._C",
            "_jit_get_schemas_for_operator",
            "finding the operators that a graph calls",
        ),
        "OpOverloadPacket": PrivateName(
            "torch._ops",
            "OpOverloadPacket",
            "recognising operators without an overload in a graph",
        ),
        "higher_order_ops": PrivateName(
            "torch._ops",
            "_higher_order_ops",
            "finding control flow and other operators that take functions by name",
        ),
        "FakeTensorMode": PrivateName(
            "torch._subclasses.fake_tensor",
            "FakeTensorMode",
            "giving a stored graph to a compiler, which works on fake tensors",
        ),
        "FakeTensor": PrivateName(
            "torch._subclasses.fake_tensor",
            "FakeTensor",
            "telling fake tensors from other tensor subclasses",
        ),
        "TracingContext": PrivateName(
            "torch._guards",
            "TracingContext",
            "compiling a stored graph in the surroundings that Inductor expects",
        ),
        "BackwardState": PrivateName(
            "torch.fx.experimental._backward_state",
            "BackwardState",
            "noticing a graph that takes the state of a backward hook",
        ),
        "pytree": PrivateName(
            "torch.utils",
            "_pytree",
            "knowing where in a result an unbacked symbol first appears",
        ),
        "codegen": PrivateName(
            "torch.fx",
            "Graph.set_codegen",
            "noticing graphs that take and return nested values",
        ),
        "custom_ops": PrivateName(
            "torch._library.custom_ops",
            "OPDEFS",
            "finding the source of operators that are defined in Python",
        ),
        "triton_kernels": PrivateName(
            "torch._higher_order_ops.triton_kernel_wrap",
            "kernel_side_table",
            "finding the source of Triton kernels that a graph calls",
        ),
        "tensor_metadata": PrivateName(
            "torch.fx.passes.shape_prop",
            "_extract_tensor_metadata",
            "giving the nodes of a stored graph the metadata that some passes look for",
        ),
        "decomposition_table": PrivateName(
            "torch._decomp",
            "decomposition_table",
            "knowing how a fused operator is written out in simpler ones",
        ),
        "size_functions": PrivateName(
            "torch.utils._sympy.functions",
            "__dict__",
            "reading and writing the expressions of symbolic sizes",
        ),
        "integer_infinity": PrivateName(
            "torch.utils._sympy.numbers",
            "int_oo",
            "reading and writing the ranges of symbolic sizes",
        ),
        "ValueRanges": PrivateName(
            "torch.utils._sympy.value_ranges",
            "ValueRanges",
            "rebuilding the ranges of symbolic sizes",
        ),
        "ShapeGuard": PrivateName(
            "torch._guards",
            "ShapeGuard",
            "rebuilding what compiling relied on about symbolic sizes",
        ),
        "SLoc": PrivateName(
            "torch._guards",
            "SLoc",
            "rebuilding what is known of symbolic sizes",
        ),
        "Source": PrivateName(
            "torch._guards",
            "Source",
            "rebuilding what symbolic sizes stand for",
        ),
        "no_hint": PrivateName(
            "torch.fx.experimental.sym_node",
            "_NO_HINT",
            "rebuilding symbolic values that only running tells",
        ),
        "update_version_counter": PrivateName(
            "torch.fx.experimental.symbolic_shapes",
            "ShapeEnv._update_version_counter",
            "rebuilding what is known of symbolic sizes",
        ),
        "CapturedTraceback": PrivateName(
            "torch.utils._traceback",
            "CapturedTraceback",
            "rebuilding the runtime asserts about symbolic sizes",
        ),
        "config_unset": PrivateName(
            "torch.utils._config_module",
            "_UNSET_SENTINEL",
            "knowing which options of torch's configuration were changed",
        ),
        "config_patcher": PrivateName(
            "torch.utils._config_module",
            "ConfigModule._make_closure_patcher",
            "running a case with the configuration that it was recorded with",
        ),
        "dynamo_config": PrivateName(
            "torch._dynamo.config", "_config", "keeping the configuration of Dynamo with a case"
        ),
        "inductor_config": PrivateName(
            "torch._inductor.config", "_config", "keeping the configuration of Inductor with a case"
        ),
        "functorch_config": PrivateName(
            "torch._functorch.config", "_config", "keeping the configuration of AOT with a case"
        ),
        "fx_config": PrivateName(
            "torch.fx.experimental._config", "_config", "keeping the configuration of symbolic shapes with a case"
        ),
        "compiler_config": PrivateName(
            "torch.compiler.config", "_config", "keeping the configuration of torch.compiler with a case"
        ),
        "inductor_config_patch": PrivateName(
            "torch._inductor.config",
            "patch",
            "compiling with other options of Inductor for a while",
        ),
        "disable_current_modes": PrivateName(
            "torch.utils._python_dispatch",
            "_disable_current_modes",
            "keeping and making tensors while torch is tracing",
        ),
        "DisableTorchFunction": PrivateName(
            "torch._C",
            "DisableTorchFunction",
            "keeping and making tensors inside of a torch-function mode, such as a default device",
        ),
        "storage_key": PrivateName(
            "torch",
            "UntypedStorage._cdata",
            "knowing which tensors share their memory",
        ),
        "view_base": PrivateName(
            "torch",
            "Tensor._base",
            "knowing which tensor another one is a view of",
        ),
        "sparse_indices": PrivateName(
            "torch",
            "Tensor._indices",
            "keeping sparse tensors that are not coalesced",
        ),
        "sparse_values": PrivateName(
            "torch",
            "Tensor._values",
            "keeping sparse tensors that are not coalesced",
        ),
        "neg_view": PrivateName(
            "torch",
            "_neg_view",
            "making tensors that are negated when they are read (the imaginary part of a conjugate)",
        ),
        "empty_quantised": PrivateName(
            "torch",
            "_empty_affine_quantized",
            "making quantised tensors",
        ),
        "empty_quantised_by_channel": PrivateName(
            "torch",
            "_empty_per_channel_affine_quantized",
            "making tensors that are quantised channel by channel",
        ),
        "is_functional": PrivateName(
            "torch",
            "_is_functional_tensor",
            "telling a tensor from the wrapper that torch traces mutations with",
        ),
        "is_functorch_wrapper": PrivateName(
            "torch._C",
            "_functorch.is_functorch_wrapped_tensor",
            "telling a tensor from the wrapper that vmap and grad work on",
        ),
    }
)


# ---- looking names up ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Missing:
    """A name that this torch does not have, and the `reason` the lookup gave."""

    name: PrivateName
    reason: str


@dataclass(frozen=True)
class Report:
    """How well torchsleuth knows the torch that is installed. `str` gives the text of it."""

    torch_version: str
    tested: bool
    checked: int
    missing: tuple[Missing, ...]

    def __str__(self) -> str:
        known = "tested" if self.tested else f"not tested; tested are {', '.join(TESTED)}"
        lines = [
            f"torch {self.torch_version} ({known}): "
            f"{self.checked - len(self.missing)} of {self.checked} private names found"
        ]
        for each in self.missing:
            lines += [
                f"  missing: {each.name.path} (known since torch {each.name.since})",
                f"    stops working: {each.name.feature}",
                f"    reason: {each.reason}",
            ]
        return "\n".join(lines)


class TorchNames:
    """Looks up a table of private names in one torch; `importer` says which torch that is."""

    def __init__(
        self,
        names: Mapping[str, PrivateName] = NAMES,
        importer: Callable[[str], Any] = importlib.import_module,
    ) -> None:
        self.names = names
        self._import = importer
        self._found: dict[str, Any] = {}

    def version(self) -> str:
        """The version of torch, for messages too: "(not importable)" if there is none."""
        try:
            return str(self._import("torch").__version__)
        except Exception:  # noqa: BLE001 - a broken install may raise anything; `missing` keeps what
            return "(not importable)"

    def is_tested(self) -> bool:
        """Whether the tests of torchsleuth have passed on this torch (by major.minor version)."""
        return ".".join(self.version().split("+")[0].split(".")[:2]) in TESTED

    def resolve(self, key: str) -> Any:
        """The object that `key` stands for in the table."""
        if key in self._found:
            return self._found[key]
        name = self.names[key]
        try:
            found = reduce(getattr, name.attribute.split("."), self._import(name.module))
        except Exception as error:
            raise MissingTorchName(
                f"torch {self.version()} has no {name.path}, so this does not work: {name.feature}",
                cause=f"{_in_words(error)} (the name is private to torch, and known since {name.since})",
                remedy=f"install a torch that torchsleuth was tested on ({', '.join(TESTED)}); "
                "`sleuth doctor` lists every missing name",
            ) from error
        return self._found.setdefault(key, found)

    def missing(self) -> list[Missing]:
        """Every name of the table that this torch does not have. Imports all of them, which takes seconds."""
        gone = []
        for key, name in self.names.items():
            try:
                self.resolve(key)
            except MissingTorchName as error:
                gone.append(Missing(name, _in_words(error.__cause__)))
        return gone

    def report(self) -> Report:
        """The check of the whole table as data; `str` of it is for people."""
        return Report(self.version(), self.is_tested(), len(self.names), tuple(self.missing()))


def _in_words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


_TORCH = TorchNames()


def resolve(key: str) -> Any:
    """The private object of the installed torch that `key` stands for in `NAMES`, or `MissingTorchName`."""
    return _TORCH.resolve(key)


def missing() -> list[Missing]:
    """Every private name that the installed torch does not have. Imports all of them: seconds, not less."""
    return _TORCH.missing()


def report() -> Report:
    """How well torchsleuth knows the installed torch."""
    return _TORCH.report()


def is_tested() -> bool:
    """Whether the tests of torchsleuth have passed on the installed torch (by major.minor version)."""
    return _TORCH.is_tested()


# ---- tensors and modules ---------------------------------------------------------------------------------


def is_fake(x: object) -> bool:
    """Whether x is a tensor without values: a fake one, or a wrapper (functional, subclass) around one."""
    try:
        return bool(resolve("is_fake")(x))
    except AssertionError:
        # torch will not judge a subclass with real and fake parts. Some of its values are not there.
        return True


def dispatch_mode(
    handler: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    higher_order: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
) -> AbstractContextManager[Any]:
    """Inside, each operator overload is called as `handler(operator, args, kwargs)`; what that returns counts.

    Operators that take functions (cond, map, ...) are called as they are, or as `higher_order` calls them; what the
    functions run comes through the handler as well. Nothing is compiled inside: Dynamo would give up on each frame
    it meets, and for good.
    """

    class Mode(resolve("TorchDispatchMode")):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not is_higher_order_op(func):
                return handler(func, args, kwargs or {})
            args = tuple(self._seen(value) for value in args)
            kwargs = {name: self._seen(value) for name, value in (kwargs or {}).items()}
            return higher_order(func, args, kwargs) if higher_order is not None else func(*args, **kwargs)

        def _seen(self, value: Any) -> Any:
            """A graph or a function that runs under this mode again; any other argument as it is."""
            if not (isinstance(value, FunctionType) or (callable(value) and hasattr(value, "graph"))):
                return value

            @wraps(value)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return value(*args, **kwargs)

            return run

    return _without_compiling(Mode())


@contextmanager
def _without_compiling(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """The mode, and inside it `torch.compile` compiles nothing (torch.cond and its like use that in eager, too)."""
    import torch

    loaded = "torch._dynamo" in sys.modules  # if not, nobody has compiled yet; loading it takes seconds
    with torch.compiler.set_stance("force_eager") if loaded else nullcontext(), mode:
        yield


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside, torch does what it says: no mode traces or changes it, no gradients, ordinary (not inference) tensors."""
    import torch

    with (
        resolve("disable_current_modes")(),
        resolve("DisableTorchFunction")(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def storage_key(storage: torch.UntypedStorage) -> int:
    """What is equal for two objects of Python that stand for one storage, for as long as one of them is there."""
    resolve("storage_key")
    return int(storage._cdata)


def view_base(x: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of, as far as autograd knows."""
    resolve("view_base")
    return x._base


def sparse_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a COO tensor as they lie there, coalesced or not."""
    return resolve("sparse_indices")(x), resolve("sparse_values")(x)


def negated(x: torch.Tensor) -> torch.Tensor:
    """The same memory, read with the other sign (the "neg" bit)."""
    view: torch.Tensor = resolve("neg_view")(x)
    return view


def empty_quantised(dtype: torch.dtype, scale: float, zero_point: int) -> torch.Tensor:
    """A quantised tensor with one scale and no elements."""
    made: torch.Tensor = resolve("empty_quantised")([0], scale=scale, zero_point=zero_point, dtype=dtype, device="cpu")
    return made


def empty_quantised_by_channel(
    dtype: torch.dtype, size: Sequence[int], scales: torch.Tensor, zero_points: torch.Tensor, axis: int
) -> torch.Tensor:
    """A quantised tensor with a scale for each channel, its values not set."""
    made: torch.Tensor = resolve("empty_quantised_by_channel")(
        size, scales=scales, zero_points=zero_points, axis=axis, dtype=dtype, device="cpu"
    )
    return made


def is_wrapper(x: torch.Tensor) -> bool:
    """Whether it is no tensor of its own but what tracing, `vmap` or `grad` have put around one."""
    return bool(resolve("is_functional")(x) or resolve("is_functorch_wrapper")(x))


# ---- nested values ---------------------------------------------------------------------------------------


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The same nesting with `fn(leaf)` in the place of each leaf."""
    return resolve("tree_map")(fn, tree)


# ---- operators -------------------------------------------------------------------------------------------


def is_op_overload(x: object) -> bool:
    """Whether x is an operator with one schema: `torch.ops.aten.add.Tensor`, but not `torch.ops.aten.add`."""
    return isinstance(x, resolve("OpOverload"))


def is_higher_order_op(x: object) -> bool:
    """Whether x is an operator that takes functions (`torch.ops.higher_order.cond`). It has no schema."""
    return isinstance(x, resolve("HigherOrderOperator"))


def op_name(op: object) -> str:
    """The name of an operator or function without namespace and overload: `aten.add_.Tensor` → `add_`."""
    return str(getattr(op, "__name__", op)).partition(".")[0]


def op_tags(op: object) -> frozenset[torch.Tag]:
    """What torch says of an overload, as `torch.Tag`s: random, pointwise, core, ..."""
    resolve("tags")
    return frozenset(_overload(op).tags)


def op_is_mutable(op: object) -> bool:
    """Whether an overload writes to one of its inputs (in place, or into `out=`)."""
    resolve("is_mutable")
    return bool(_overload(op)._schema.is_mutable)


@dataclass(frozen=True)
class Argument:
    """An argument in a call of an operator: the name it has there, what was given, and whether it is written to."""

    name: str
    value: Any
    written: bool


def op_arguments(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Argument]:
    """The arguments that a call of an overload gives, in the operator's order. Those left to default are not there."""
    resolve("arguments")
    given = []
    for position, argument in enumerate(_overload(op)._schema.arguments):
        written = bool(argument.alias_info and argument.alias_info.is_write)
        if position < len(args) and not argument.kwarg_only:
            given.append(Argument(argument.name, args[position], written))
        elif argument.name in kwargs:
            given.append(Argument(argument.name, kwargs[argument.name], written))
    return given


def op_is_view(op: object) -> bool:
    """Whether what an overload returns may share memory with an input that it does not write to.

    So it is true for `reshape` and `contiguous`, which copy only if they must, and false for `transpose_`.
    """
    resolve("is_view")
    return bool(_overload(op).is_view)


def op_returns_list(op: object) -> bool:
    """Whether an overload returns a list of tensors, of a length that its arguments decide."""
    resolve("arguments")
    return any(str(returned.type).startswith("List[") for returned in _overload(op)._schema.returns)


def decomposition(op: object) -> Callable[..., Any] | None:
    """The same computation as an overload's, written out in simpler operators; None where torch has no such text."""
    table: Mapping[Any, Callable[..., Any]] = resolve("decomposition_table")
    return table.get(_overload(op))


def _overload(op: object) -> Any:
    # Asked about anything else (a packet, a higher-order operator, a Python function) there is no answer,
    # and "no" would be a wrong one.
    if not is_op_overload(op):
        raise TypeError(f"{op!r} is not an operator overload; ask is_op_overload first")
    return op


# ---- symbolic sizes --------------------------------------------------------------------------------------


def size_functions() -> Mapping[str, Any]:
    """torch's own functions in expressions over symbolic sizes (FloorDiv, ModularIndexing, ...), by name."""
    found: Mapping[str, Any] = resolve("size_functions")
    return found


def integer_infinity() -> Any:
    """What torch says for "no bound" on an integer: `int_oo`, which is not sympy's `oo`."""
    return resolve("integer_infinity")


def value_range(lower: Any, upper: Any) -> Any:
    """The range of a symbol, as torch keeps it."""
    return resolve("ValueRanges")(lower, upper)


def nowhere() -> Any:
    """The place in a program, for torch's notes on where something became known, if nobody knows the place."""
    return resolve("SLoc")(None, None)


def no_traceback() -> Any:
    """The stack of calls that nobody knows any more."""
    return resolve("CapturedTraceback")(None)


def shape_guard(expr: Any) -> Any:
    """A condition on symbols that compiling relied on, as a ShapeEnv keeps it."""
    return resolve("ShapeGuard")(expr, nowhere(), False)


def named_source(name: str, ephemeral: bool) -> Any:
    """What a symbol stands for, as a ShapeEnv keeps it, if only its name is known."""

    class NamedSource(resolve("Source")):  # type: ignore[misc]
        @property
        def _name_template(self) -> str:
            return name

        def is_ephemeral(self) -> bool:
            return ephemeral

    return NamedSource()


def symbolic_expr(x: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The expression of a symbolic value as it was made, without the replacements found since; None if it has none."""
    return getattr(x.node, "_expr", None)


def symbolic_value(kind: Any, expr: Any, shape_env: Any, hinted: bool) -> Any:
    """A SymInt, SymFloat or SymBool of this ShapeEnv; its hint, if it is to have one, is computed."""
    import torch
    from torch.fx.experimental.sym_node import SymNode

    plain: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kind(SymNode(expr, shape_env, plain[kind], None if hinted else resolve("no_hint")))


def forget_derived(shape_env: Any) -> None:
    """Make a ShapeEnv that was filled by hand compute anew what it derives from its facts."""
    resolve("update_version_counter")(shape_env)
    shape_env._version_counter += 1
    shape_env._replacements_version_counter += 1


# ---- Inductor --------------------------------------------------------------------------------------------


def inductor_config_patch(**options: Any) -> AbstractContextManager[Any]:
    """Other options of Inductor for a while, in this thread; dotted ones as `**{"triton.cudagraphs": True}`.

    An option that this Inductor does not have raises an AttributeError on entering.
    """
    patch: AbstractContextManager[Any] = resolve("inductor_config_patch")(options)
    return patch


# ---- what graphs call ------------------------------------------------------------------------------------


def find_operator(namespace: str, name: str, overload: str | None) -> Any:
    """A registered operator, or None. Looks only at what is registered: nothing is loaded for the asking."""
    import torch

    if namespace == "higher_order":
        _load_higher_order_ops()
        return resolve("higher_order_ops").get(name) if overload is None else None
    if not resolve("operator_schemas")(f"{namespace}::{name}"):
        return None  # asking `torch.ops` itself would leave an empty namespace behind
    space = getattr(torch.ops, namespace, None)
    if not isinstance(space, type(torch.ops.aten)):
        return None
    packet = getattr(space, name, None)
    if not isinstance(packet, resolve("OpOverloadPacket")):
        return None
    if overload is None:
        return packet
    found = getattr(packet, overload, None)
    return found if is_op_overload(found) else None


def operator_path(op: object) -> str | None:
    """The path of an operator below `torch.ops`, or None for anything else."""
    if is_op_overload(op):
        return f"torch.ops.{op}"
    if isinstance(op, resolve("OpOverloadPacket")):
        return f"torch.ops.{op!s}"
    if is_higher_order_op(op):
        return f"torch.ops.higher_order.{op.name()}"  # type: ignore[attr-defined]
    return None


def _load_higher_order_ops() -> None:
    # They register themselves when their modules are imported.
    importlib.import_module("torch._higher_order_ops")
    importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")


_FUNCTIONS_IN_GRAPHS: Final = (
    ("torch._C._nn", "*"),
    ("torch._C._linalg", "*"),
    ("torch._C._fft", "*"),
    ("torch._C._special", "*"),
    ("torch._C._sparse", "*"),
    ("torch._C._nested", "*"),
    ("torch._lowrank", "get_approximate_basis svd_lowrank pca_lowrank"),
    ("torch._linalg_utils", "basis bform matmul qform"),
    (
        "torch.masked._ops",
        "amax amin argmax argmin cumprod cumsum log_softmax logaddexp logsumexp mean median norm "
        "normalize prod softmax softmin std sum var",
    ),
    (
        "torch.signal.windows.windows",
        "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann kaiser nuttall",
    ),
    (
        "torch._C",
        "_set_grad_enabled _set_fwd_grad_enabled _is_fwd_grad_enabled _autograd_function_apply "
        "_log_api_usage_once set_autocast_enabled _set_deterministic_algorithms",
    ),
    ("torch._C._autograd", "_get_data_attr _saved_tensors_hooks_disable _saved_tensors_hooks_enable"),
    ("torch.autograd.grad_mode", "_enter_inference_mode _exit_inference_mode"),
    ("torch.nn.attention", "_backend_from_string _cur_sdpa_kernel_backends _sdpa_kernel _sdpa_kernel_variadic"),
    (
        "torch._C._functorch",
        "_add_batch_dim _remove_batch_dim _vmap_increment_nesting _vmap_decrement_nesting _grad_increment_nesting "
        "_grad_decrement_nesting _jvp_increment_nesting _jvp_decrement_nesting _wrap_for_grad _unwrap_for_grad "
        "set_inplace_requires_grad_allowed get_inplace_requires_grad_allowed _unwrap_batched is_batchedtensor "
        "get_unwrapped",
    ),
    ("torch._functorch.predispatch", "*"),
    ("torch._functorch.vmap", "lazy_load_decompositions"),
    (
        "torch._functorch.eager_transforms",
        "_create_differentiable _autograd_grad _jvp_treespec_compare _vjp_treespec_compare enter_jvp_nesting "
        "exit_jvp_nesting _is_differentiable _any_differentiable assert_flat_tuple_of_tensors "
        "_set_tensor_requires_grad _assert_wrapped_functional set_inplace_requires_grad_allowed",
    ),
    (
        "torch.autograd.forward_ad",
        "enter_dual_level exit_dual_level make_dual unpack_dual _set_fwd_grad_enabled _maybe_load_decompositions",
    ),
    ("torch.amp.autocast_mode", "_enter_autocast _exit_autocast"),
    ("torch.autograd.function", "FunctionCtx"),
    ("torch", "_check _check_is_size _check_value _check_index _check_type _check_not_implemented _check_tensor_all"),
    ("torch", "_assert _assert_async _assert_scalar _sym_sqrt _sym_cos _sym_sin _sym_log2 _sym_float _shape_as_tensor"),
    (
        "torch",
        "_sym_acos _sym_asin _sym_atan _sym_cosh _sym_exp _sym_log10 _sym_sinh _sym_tan _sym_tanh _sym_abs _sym_ceil",
    ),
    ("torch._prims_common", "check_same_device suggest_memory_format"),
    ("torch._dynamo._trace_wrapped_higher_order_op", "from_getitem zeros_and_scatter"),
    ("torch._dynamo.utils", "call_size call_stride call_storage_offset numpy_to_tensor"),
    (
        "torch.fx.experimental.symbolic_shapes",
        "guard_size_oblivious guard_or_false guard_or_true sym_eq sym_or sym_and",
    ),
)
"""What Dynamo puts into graphs besides torch's public functions. "*" is every callable of the module."""


_NOT_IN_GRAPHS: Final = frozenset({"from_file", "from_dlpack", "frombuffer", "set_"})
"""Functions of torch that reach beyond tensors: to files, and to memory that torch does not own."""


def functions_in_graphs() -> Iterator[tuple[str, Any]]:
    """(dotted path, function) of everything in that table that this torch has."""
    torch = importlib.import_module("torch")
    for name in dir(torch._C._VariableFunctions):  # the operators that have a function of their own in `torch`
        if (
            name not in _NOT_IN_GRAPHS
            and not name.startswith("__")
            and callable(function := getattr(torch, name, None))
        ):
            yield f"torch.{name}", function
    for module, names in _FUNCTIONS_IN_GRAPHS:
        try:
            home = importlib.import_module(module)
        except ImportError:  # parts of torch._C are attributes, not modules that can be imported
            home = reduce(getattr, module.split(".")[1:], importlib.import_module("torch"))
        for name in (each for each in vars(home) if not each.startswith("__")) if names == "*" else names.split():
            function = getattr(home, name, None)
            own = (
                names != "*" or getattr(function, "__module__", None) in (None, module) or module.startswith("torch._C")
            )
            if callable(function) and own and not isinstance(function, type):
                yield f"{module}.{name}", function


# ---- torch's own configuration ---------------------------------------------------------------------------

CONFIG_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch._dynamo.config": "dynamo_config",
        "torch._inductor.config": "inductor_config",
        "torch._functorch.config": "functorch_config",
        "torch.fx.experimental._config": "fx_config",
        "torch.compiler.config": "compiler_config",
    }
)
"""The modules that hold torch's configuration, and what they are called in `NAMES`."""

_A_VARIABLE = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["']""")
_pristine = Lock()


def config_is_loaded(module: str) -> bool:
    """Whether one of `CONFIG_MODULES` was imported by anybody. If not, nothing can have depended on it."""
    return module in sys.modules


def config_values(module: str) -> dict[str, Any]:
    """Every option of one of `CONFIG_MODULES`, by its dotted name. Values are torch's own: not to be changed."""
    unset = resolve("config_unset")
    return {name: _config_value(entry, unset) for name, entry in _config_entries(module).items()}


def config_set_by_program(module: str) -> frozenset[str]:
    """The options that the program itself has set, whatever came from the environment."""
    unset = resolve("config_unset")
    # Torch copies lists and their like on reading, as if they had been set.
    return frozenset(
        name
        for name, entry in _config_entries(module).items()
        if (value := entry.user_override.get()) is not unset
        and not (isinstance(value, (list, dict, set)) and value == entry.default)
    )


def _config_module(module: str) -> Any:
    resolve(CONFIG_MODULES[module])  # imports it
    return sys.modules[module]


def _config_value(entry: Any, unset: object) -> Any:
    for value in (entry.env_value_force, entry.user_override.get(), entry.env_value_default):
        if value is not unset:
            return value
    return entry.default


def _config_entries(module: str) -> dict[str, Any]:
    """The options without their aliases: an alias is another name, often in another module."""
    config: dict[str, Any] = resolve(CONFIG_MODULES[module])
    return {name: entry for name, entry in config.items() if entry.alias is None}


@cache
def config_defaults(module: str) -> Mapping[str, Any]:
    """What every option would be if no environment variable and no program had changed it.

    Most options are read from the environment while torch is imported, and torch takes what it read for the default.
    So its own text is run once more, in a module of its own, without the variables that it asks for.
    """
    config = _config_module(module)
    name = f"torchsleuth pristine {module}"
    spec = importlib.util.spec_from_file_location(name, config.__file__)
    try:
        asked = set(_A_VARIABLE.findall(Path(config.__file__).read_text(encoding="utf-8")))
    except OSError:  # torch without its source: what it takes for the default is the best there is
        spec = None
    if spec is None or spec.loader is None:
        return {option: entry.default for option, entry in _config_entries(module).items()}
    pristine = importlib.util.module_from_spec(spec)
    _without_variables(pristine, asked)
    with _pristine:
        sys.modules[name] = pristine
        try:
            spec.loader.exec_module(pristine)
        finally:
            del sys.modules[name]
    return {option: entry.default for option, entry in pristine._config.items() if entry.alias is None}


class _StandIn(ModuleType):
    """A module with a few names of its own; the others are those of another module."""

    def __init__(self, other: ModuleType, **own: Any) -> None:
        super().__init__(other.__name__)
        self.__dict__.update(own)
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def _without_variables(module: ModuleType, asked: Set[str]) -> None:
    """Let a module that is about to be executed see an environment without these variables.

    The module alone sees it, through what its `import` gives it: other threads write to `os.environ` meanwhile.
    """
    kept = {key: value for key, value in os.environ.items() if key not in asked}
    operating_system = _StandIn(os, environ=kept, getenv=kept.get)
    home = sys.modules[resolve("config_patcher").__module__]  # has functions that ask on behalf of the module
    asking = {
        name: FunctionType(function.__code__, {**vars(home), "os": operating_system}, argdefs=function.__defaults__)
        for name, function in vars(home).items()
        if isinstance(function, FunctionType) and "environ" in function.__code__.co_names
    }
    given: dict[str, ModuleType] = {"os": operating_system, home.__name__: _StandIn(home, **asking)}

    def importing(name: str, *details: Any) -> ModuleType:
        return given[name] if name in given else __import__(name, *details)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": importing}


@contextmanager
def config_patch(module: str, changes: Mapping[str, Any]) -> Iterator[None]:
    """Other values of some options for a while, in this thread. Afterwards each is as it was: unset, if it was unset.

    An option that this torch does not have raises a KeyError on entering, and nothing is changed.
    """
    revert = resolve("config_patcher")(_config_module(module), **changes)()
    try:
        yield
    finally:
        revert()


# ---- what graphs hold ------------------------------------------------------------------------------------


def is_backward_state(x: object) -> bool:
    """Whether x is the object in which backward hooks keep their state."""
    return isinstance(x, resolve("BackwardState"))


def is_script_object(x: object) -> bool:
    """Whether x is an object of a TorchScript class, or the fake of one."""
    import torch

    return isinstance(x, torch.ScriptObject) or type(x).__name__ in ("FakeScriptObject", "OpaqueObject")


def takes_nested_values(graph: torch.fx.Graph) -> bool:
    """Whether the code of a graph packs and unpacks nested arguments around the nodes."""
    from torch.fx.graph import CodeGen

    resolve("codegen")
    return type(graph._codegen) is not CodeGen


@dataclass(frozen=True)
class CustomOp:
    """An operator that is defined in Python: its function, and the further functions registered for it by name."""

    function: Callable[..., Any]
    parts: dict[str, Callable[..., Any]]


def custom_op_definition(name: str) -> CustomOp | None:
    """The Python functions behind an operator ("mylib::foo"), or None if it is defined elsewhere."""
    defined = resolve("custom_ops").get(name)
    if defined is None:
        return None
    parts = {
        "fake": defined._abstract_fn,
        "backward": defined._backward_fn,
        "setup_context": defined._setup_context_fn,
        "vmap": defined._vmap_fn,
    }
    return CustomOp(defined._init_fn, {part: function for part, function in parts.items() if function is not None})


def triton_kernel(number: int) -> Any:
    """The Triton kernel that graphs call by that number."""
    return resolve("triton_kernels").get_kernel(number)


def unboxed(value: Any) -> Any:
    """What is in one of Inductor's boxes (a flag or a device that a callee may change); anything else as it is."""
    return value.value if type(value).__name__ in ("BoxedBool", "BoxedDeviceIndex") else value


@dataclass(frozen=True)
class ModuleParts:
    """What a module holds besides its class."""

    attributes: dict[str, Any]
    parameters: dict[str, Any]
    buffers: dict[str, Any]
    transient: frozenset[str]
    """The buffers that are not part of its state dict."""
    children: dict[str, Any]
    hooked: bool = False


def module_parts(module: torch.nn.Module) -> ModuleParts:
    """The parts of a module; `hooked` if it carries hooks."""
    import torch

    base = set(vars(torch.nn.Module()))
    if isinstance(module, torch.nn.RNNBase):
        base |= {"_flat_weights", "_flat_weight_refs"}  # the parameters once more; `new_module` gathers them again
    own = {name: value for name, value in vars(module).items() if name not in base or name == "training"}
    hooks = (name for name in vars(torch.nn.Module()) if name.endswith("_hooks"))
    return ModuleParts(
        own,
        dict(module._parameters),
        dict(module._buffers),
        frozenset(module._non_persistent_buffers_set),
        dict(module._modules),
        any(vars(module)[name] for name in hooks),
    )


def new_module(kind: type[torch.nn.Module], parts: ModuleParts) -> torch.nn.Module:
    """A module of that class with those parts. Its own constructor does not run."""
    import torch

    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    vars(module).update(parts.attributes)
    module._parameters.update(parts.parameters)
    module._buffers.update(parts.buffers)
    module._non_persistent_buffers_set.update(parts.transient)
    module._modules.update(parts.children)
    if isinstance(module, torch.nn.RNNBase):
        torch.nn.RNNBase._init_flat_weights(module)
    return module


def module_classes() -> dict[str, type[torch.nn.Module]]:
    """Every module class that torch.nn itself defines, by its name."""
    import torch

    homes = [torch.nn.modules, *(each for each in vars(torch.nn.modules).values() if isinstance(each, ModuleType))]
    return {
        name: kind
        for home in homes
        for name, kind in vars(home).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.nn.Module)
        and kind.__module__.startswith("torch.nn.modules.")
    }


def path_key(how: str, what: int | str) -> Any:
    """One step on the way from a node's result to a symbol in it, as torch writes it."""
    from torch.fx.experimental import symbolic_shapes

    pytree = resolve("pytree")
    match how:
        case "index":
            return pytree.SequenceKey(what)
        case "key":
            return pytree.MappingKey(what)
        case "method":
            return symbolic_shapes.CallMethodKey(str(what))
        case "divide":
            return symbolic_shapes.DivideByKey(int(what))
        case "inner":
            return symbolic_shapes.InnerTensorKey(str(what))
    return symbolic_shapes.ConvertIntKey()


def tensor_metadata(tensor: torch.Tensor) -> Any:
    """A tensor's `tensor_meta`, as passes over graphs know it."""
    return resolve("tensor_metadata")(tensor)


# ---- fake tensors ----------------------------------------------------------------------------------------


def fake_mode(shape_env: Any) -> Any:
    """A fresh fake mode over a shape environment."""
    return resolve("FakeTensorMode")(shape_env=shape_env)


def shape_env_of(fake: torch.Tensor) -> Any:
    """The ShapeEnv in which a fake tensor was made; None if there is none."""
    return getattr(getattr(fake, "fake_mode", None), "shape_env", None)


def as_fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake of a real tensor, with its sizes as numbers."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def subclass_name(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's own class; None for plain tensors, parameters and their fakes."""
    import torch

    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, resolve("FakeTensor")):
        return None
    return f"{kind.__module__}.{kind.__qualname__}"


def symbols_of(value: Any) -> tuple[Any, frozenset[Any]]:
    """The ShapeEnv of a symbolic number, and the symbols it is made of."""
    node = value.node
    as_made = symbolic_expr(value)
    made_of = frozenset() if as_made is None else frozenset(as_made.free_symbols)
    return getattr(node, "shape_env", None), made_of | node.expr.free_symbols


@contextmanager
def quiet_shapes(shape_env: Any) -> Iterator[None]:
    """Inside, decisions on symbolic sizes are taken on their hints, and leave no guard behind."""
    with shape_env.suppress_guards(), shape_env.ignore_fresh_unbacked_symbols():
        yield


@contextmanager
def tracing(mode: Any, name: str | None = None, donated: Sequence[int] | None = None) -> Iterator[None]:
    """The surroundings in which Inductor expects to be called: a tracing context with that fake mode.

    `name` is what AOTAutograd called the graph; generated code says it in its first line. `donated` are the inputs of a
    backward graph whose memory may be used for something else.
    """
    context = resolve("TracingContext")(mode)
    context.aot_graph_name = None if name is None else [name]
    if donated is not None:
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated))
    with importlib.import_module("torch._guards").tracing(context):
        yield


def donated_inputs() -> tuple[int, ...] | None:
    """Which inputs of the backward graph that is being compiled may be overwritten; None if nobody said."""
    context = resolve("TracingContext").try_get()
    found = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None)
    return None if found is None else tuple(int(index) for index in found)


def aot_name() -> str | None:
    """What AOTAutograd calls the graph that is being compiled ("0_forward"); None if there is none."""
    context = resolve("TracingContext").try_get()
    names = None if context is None else context.aot_graph_name
    return str(names[0]) if isinstance(names, list) and len(names) == 1 else None

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

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce, wraps
from types import FunctionType, MappingProxyType
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
        "decomposition_table": PrivateName(
            "torch._decomp",
            "decomposition_table",
            "knowing how a fused operator is written out in simpler ones",
        ),
        "inductor_config_patch": PrivateName(
            "torch._inductor.config",
            "patch",
            "compiling with other options of Inductor for a while",
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


# ---- Inductor --------------------------------------------------------------------------------------------


def inductor_config_patch(**options: Any) -> AbstractContextManager[Any]:
    """Other options of Inductor for a while, in this thread; dotted ones as `**{"triton.cudagraphs": True}`.

    An option that this Inductor does not have raises an AttributeError on entering.
    """
    patch: AbstractContextManager[Any] = resolve("inductor_config_patch")(options)
    return patch

"""A case as data: every noun of a case file, as immutable values that msgspec reads, checks and writes.

    Case ── graph      nodes, attributes, what each node is known to produce      (Graph, Node, Meta)
         ├─ inputs     what the graph was called with                             (Value)
         ├─ examples   what the compiler was given in their place                 (Value)
         ├─ storages   the memory under every tensor of the case                  (Storage)
         ├─ symbols    symbolic sizes: names, hints, ranges, what is known        (Symbols)
         ├─ state      modes, random state, configuration, environment            (State)
         ├─ compiler   which graph of which backend, with which options           (Compiler)
         ├─ failure    what went wrong, and how to recognise it                   (Failure)
         ├─ origin     where it came from                                         (Origin)
         └─ code       code of the user's own that the graph calls                (Code)

This module knows neither torch nor files. `reading` turns bytes into a `Case`, and refuses what is not one; the
codecs beside it (`graph`, `tensors`, `symbols`, `state`) turn parts of a case into torch's objects and back.

The rules of the format: unknown fields are refused; a field that has its default is not written; what torch names
is written by its name ("float32", "aten.add.Tensor") and found again through a closed table; what a case cannot hold
is `Noticed` in its place, so that it is known to be missing. A change that an older reader would misunderstand raises
`VERSION`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from torchsleuth.config import After
from torchsleuth.outcome import Stage, Symptom

FORMAT: Final = "torchsleuth.case"
VERSION: Final = 1


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every noun of the format."""


# ---- expressions over symbolic sizes ---------------------------------------------------------------------


class Apply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An operation on terms, written as an array: `["Mul", [4, "s77"]]`. `expressions` has the table of operations."""

    op: str
    args: tuple[Term, ...] = ()


Term: TypeAlias = bool | int | float | str | Apply
"""A constant, a symbol by its name, or an operation."""


# ---- values: arguments, inputs, constants, what a node produces ------------------------------------------


class Ref(Record, frozen=True, tag_field="is", tag="node"):
    """The result of a node of the same graph."""

    name: str


class List(Record, frozen=True, tag_field="is", tag="list"):
    items: tuple[Value, ...] = ()


class Tuple(Record, frozen=True, tag_field="is", tag="tuple"):
    items: tuple[Value, ...] = ()


class Size(Record, frozen=True, tag_field="is", tag="size"):
    """A `torch.Size`."""

    items: tuple[Value, ...] = ()


class Dict(Record, frozen=True, tag_field="is", tag="dict"):
    """A dict, in order. Keys may be any value that can be one in Python."""

    items: tuple[tuple[Value, Value], ...] = ()


class Set(Record, frozen=True, tag_field="is", tag="set"):
    items: tuple[Value, ...] = ()
    frozen: bool = False


class Slice(Record, frozen=True, tag_field="is", tag="slice"):
    start: Value = None
    stop: Value = None
    step: Value = None


class Range(Record, frozen=True, tag_field="is", tag="range"):
    start: Value
    stop: Value
    step: Value


class Ellipsis_(Record, frozen=True, tag_field="is", tag="ellipsis"):
    """`...`"""


class Float(Record, frozen=True, tag_field="is", tag="float"):
    """A float that JSON has no word for: infinities and NaN, by the 16 hex digits of its bits."""

    bits: str


class Complex(Record, frozen=True, tag_field="is", tag="complex"):
    real: Value
    imag: Value


class Text(Record, frozen=True, tag_field="is", tag="text"):
    """A string that UTF-8 has no bytes for (it holds lone surrogates), as UTF-16 in hex."""

    utf16: str


class Bytes(Record, frozen=True, tag_field="is", tag="bytes"):
    data: bytes


class Torch(Record, frozen=True, tag_field="is", tag="torch"):
    """One of torch's constants: a dtype, layout, memory format or quantisation scheme ("float32", "channels_last")."""

    name: str


class Device(Record, frozen=True, tag_field="is", tag="device"):
    type: str
    index: int | None = None


class Function(Record, frozen=True, tag_field="is", tag="function"):
    """A function or operator that is itself an argument, by the name that `targets` has for it."""

    name: str


class Generator(Record, frozen=True, tag_field="is", tag="generator"):
    device: str
    state: bytes


class Symbolic(Record, frozen=True, tag_field="is", tag="symbolic"):
    """A SymInt, SymFloat or SymBool, and the value it had."""

    type: Literal["int", "float", "bool"]
    expr: Term
    hint: bool | int | float | None = None


class Fake(Record, frozen=True, tag_field="is", tag="fake"):
    """What a tensor is, without its values. Two with the same `memory` share a storage."""

    dtype: str
    size: tuple[Term, ...]
    stride: tuple[Term, ...] = ()
    offset: Term = 0
    device: str = "cpu"
    layout: str = "strided"
    requires_grad: bool = False
    leaf: bool = True
    parameter: bool = False
    conj: bool = False
    neg: bool = False
    memory: int | None = None


class Tensor(Record, frozen=True, tag_field="is", tag="tensor"):
    """A tensor with values: a view of one of the case's storages.

    A tensor that is not strided has no storage of its own but `parts`: (indices, values) for COO, (outer, inner,
    values) for the compressed layouts.
    """

    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    offset: int = 0
    storage: int | None = None
    """Which of `Case.storages`."""
    device: str = "cpu"
    layout: str = "strided"
    requires_grad: bool = False
    leaf: bool = True
    parameter: bool = False
    conj: bool = False
    neg: bool = False
    inference: bool = False
    """Made in inference mode: it has no version, and autograd may not save it."""
    base: Tensor | None = None
    """The tensor that autograd knows it to be a view of. Compilers ask for it where inputs share memory."""
    parts: tuple[Tensor, ...] = ()
    coalesced: bool = False
    quantiser: Quantiser | None = None
    grad: Tensor | None = None
    """Its gradient so far (`.grad`). Kept where the graph asks for it."""


class Quantiser(Record, frozen=True):
    """How the integers of a quantised tensor are read. `axis` is there if each channel has its own scale."""

    scheme: str
    scales: tuple[float, ...]
    zero_points: tuple[float, ...]
    axis: int | None = None


class Module(Record, frozen=True, tag_field="is", tag="module"):
    """A module of torch.nn that a graph calls: its class, its plain attributes, parameters, buffers and children."""

    type: str
    attributes: tuple[Entry, ...] = ()
    parameters: tuple[Entry, ...] = ()
    buffers: tuple[Entry, ...] = ()
    transient: tuple[str, ...] = ()
    """The buffers that are not part of its state dict."""
    children: tuple[Entry, ...] = ()


class Noticed(Record, frozen=True, tag_field="is", tag="noticed"):
    """Something a case cannot hold. What needs it cannot be run, and says so with this reason."""

    type: str
    reason: str
    text: str = ""
    """What it prints as, for people."""


class Graph(Record, frozen=True, tag_field="is", tag="graph"):
    """An FX graph with everything it owns. A graph may be a value of another one: the body of a loop, a branch."""

    nodes: tuple[Node, ...]
    attributes: tuple[Entry, ...] = ()
    """What `get_attr` finds, by its (dotted) name."""
    name: str = "GraphModule"
    flattened: bool = False
    """Whether it took and returned nested values (as torch.export makes it). What is kept is the flat graph inside."""
    meta: tuple[Entry, ...] = ()
    """What compilers have put in the module's own `meta`."""


Value: TypeAlias = (
    bool
    | int
    | float
    | str
    | Ref
    | List
    | Tuple
    | Size
    | Dict
    | Set
    | Slice
    | Range
    | Ellipsis_
    | Float
    | Complex
    | Text
    | Bytes
    | Torch
    | Device
    | Function
    | Generator
    | Symbolic
    | Fake
    | Tensor
    | Module
    | Noticed
    | Graph
    | None
)
"""Anything that can stand in a graph or be given to it."""


class Entry(Record, frozen=True):
    """A value under a name."""

    name: str
    value: Value = None


# ---- the graph -------------------------------------------------------------------------------------------


class Step(Record, frozen=True):
    """One step on the way from a node's result to a symbol in it: an index, a key, a method, a division."""

    how: Literal["index", "key", "method", "divide", "inner", "convert"]
    what: int | str = 0


class Provenance(Record, frozen=True):
    """One of the nodes that a node was made from (`from_node`), and what that was made from in turn."""

    name: str
    target: str
    made_by: str = ""
    """The pass."""
    actions: tuple[str, ...] = ()
    graph: int = -1
    """Which graph it was in; a number that only tells graphs apart."""
    origins: tuple[Provenance, ...] = ()


class Binding(Record, frozen=True):
    """Where in a node's result an unbacked symbol first appears."""

    symbol: Term
    path: tuple[Step, ...] = ()


class Meta(Record, frozen=True):
    """What is known of a node, as far as compilers and people need it."""

    val: Value = None
    """What it produces, as AOT and Inductor know it (`meta["val"]`). Fakes, symbols, or a nest of them."""
    example: Value = None
    """The same as Dynamo knows it (`meta["example_value"]`)."""
    stack_trace: str | None = None
    """The user's lines."""
    original_aten: str | None = None
    source_fns: tuple[tuple[str, str], ...] | None = None
    """`source_fn_stack`: (name in the graph, the function or class) from outside in."""
    modules: tuple[tuple[str, str, str], ...] | None = None
    """`nn_module_stack`: (key, path, class) from outside in."""
    bindings: tuple[Binding, ...] = ()
    from_node: tuple[Provenance, ...] = ()
    tensor_meta: bool = False
    """Whether the node has `tensor_meta`, which follows from `val`."""
    more: tuple[Entry, ...] = ()
    """Everything else that can be said as a value: recompute tags, sequence numbers, exact strides, ..."""
    dropped: tuple[str, ...] = ()
    """Keys whose values cannot."""


class Node(Record, frozen=True):
    """One node of a graph. `args` and `kwargs` refer to other nodes by name."""

    name: str
    op: Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    target: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[Entry, ...] = ()
    meta: Meta = Meta()


# ---- memory ----------------------------------------------------------------------------------------------


class Stored(Record, frozen=True, tag_field="is", tag="stored"):
    """Bytes that lie beside the case, under their own hash."""

    digest: str
    digits: int = 0
    """If they are numbers that were rounded: to so many significant digits."""


class Generated(Record, frozen=True, tag_field="is", tag="generated"):
    """Values that are made by a recipe: there never were real ones, or the failure does not need them.

    `uniform` and `integers` draw from [low, high) with `seed`; `normal` has mean `low` and deviation `high`; `constant`
    is `low` everywhere; `arange` counts from `low` in steps of `high`.
    """

    how: Literal["uniform", "normal", "integers", "constant", "arange"]
    dtype: str
    low: bool | int | float = 0
    high: bool | int | float = 1
    seed: int = 0
    why: str = ""
    """What the range respects, in words: "indexes a dimension of size 30522"."""


class Nothing(Record, frozen=True, tag_field="is", tag="nothing"):
    """No values at all: a tensor on the meta device."""


class Storage(Record, frozen=True):
    """One piece of memory. Tensors that share it refer to the same entry; two that are only equal do not."""

    nbytes: int
    content: Stored | Generated | Nothing
    device: str = "cpu"


# ---- symbolic sizes --------------------------------------------------------------------------------------


class Symbol(Record, frozen=True):
    """One symbol: "s77" stands for a size of an input (backed), "u0" for one that only running tells (unbacked).

    Floats are "zf3" and "zuf0". What is written of a symbol besides its name are facts about it, not its definition.
    """

    name: str
    backed: bool = True
    type: Literal["int", "float"] = "int"
    positive: bool | None = None
    nonnegative: bool | None = None
    hint: Term | None = None
    """The value it had."""
    override: int | None = None
    """The value that the user told compilers to reckon with."""
    observed: Term | None = None
    """The value that an unbacked symbol had, where real tensors are propagated beside the fake ones."""
    lower: Term | None = None
    upper: Term | None = None
    """Both or none."""
    size_like: bool = False
    input: bool = False
    """An unbacked symbol that stands for a size of an input (`mark_unbacked`)."""
    ephemeral: bool = False
    """It stands for something that is gone when the graph runs; torch prefers to eliminate such symbols."""
    source: str | None = None
    """What it stands for in the user's program, for people: `L['x'].size()[0]`."""


class Assert(Record, frozen=True):
    """Something to be checked when the graph runs, because compiling could not know it."""

    expr: Term
    message: str = ""
    symbol: str | None = None
    """The unbacked symbol it waits for."""


class Symbols(Record, frozen=True):
    """All that is known of the symbols of a case."""

    symbols: tuple[Symbol, ...] = ()
    replacements: tuple[tuple[str, Term], ...] = ()
    """What a symbol was found to be equal to, and is replaced by."""
    renamings: tuple[tuple[str, str], ...] = ()
    """Unbacked symbols that were found to be others seen before."""
    divisible: tuple[Term, ...] = ()
    """Remainders that are 0."""
    guards: tuple[Term, ...] = ()
    """What compiling found out on the hints and relied on."""
    asserts: tuple[Assert, ...] = ()
    axioms: tuple[tuple[Term, bool], ...] | None = None
    """Conditions that are known to be true or false, if they are others than follow from guards and asserts."""
    settings: tuple[tuple[str, bool], ...] = ()
    """Settings of the ShapeEnv that do not have their default."""
    unbacked_ints: int = 0
    unbacked_floats: int = 0
    """The number that the next unbacked symbol will get."""


# ---- state, compiler, failure, origin --------------------------------------------------------------------


class Autocast(Record, frozen=True):
    device: str
    enabled: bool
    dtype: str


class Rng(Record, frozen=True):
    """The state of the default generator of a device."""

    device: str
    state: bytes


class Config(Record, frozen=True):
    """One option of torch's own configuration that does not have its default."""

    module: str
    name: str
    value: Value = None


class State(Record, frozen=True):
    """What a run depends on besides its graph and inputs."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[Autocast, ...] = ()
    autocast_cache: bool = True
    rng: tuple[Rng, ...] = ()
    deterministic: Literal["off", "warn", "error"] = "off"
    fill_uninitialised: bool = True
    default_dtype: str = "float32"
    default_device: str = "cpu"
    matmul_precision: str = "highest"
    flags: tuple[Entry, ...] = ()
    """Switches under `torch.backends` that do not have their default: an attribute (cudnn.benchmark, mkldnn.enabled),
    or a function that takes the value (cuda.enable_flash_sdp)."""
    threads: int | None = None
    config: tuple[Config, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that torch and the libraries under it read: (name, value), sorted by name."""


class Compiler(Record, frozen=True):
    """What the graph was given to."""

    after: After
    backend: str
    mode: str | None = None
    dynamic: bool | None = None
    options: tuple[Entry, ...] = ()
    """What the user chose: `torch.compile(options=...)`."""
    arguments: tuple[Entry, ...] = ()
    """What the compiler was called with besides graph and inputs (`is_backward=True`, `static_input_idxs`, ...)."""
    donated: tuple[int, ...] | None = None
    """The inputs of a backward graph whose memory the compiler may use for something else."""


class Signature(Record, frozen=True):
    """What makes two failures the same failure."""

    kind: Literal["raised", "mismatched", "crashed", "timed out", "out of memory"]
    stage: Stage = Stage.UNKNOWN
    types: tuple[str, ...] = ()
    """Qualified exception types, outermost first."""
    message: str = ""
    """Normalised: no addresses, sizes or made-up names."""
    symptom: Symptom | None = None
    signal: int | None = None
    op: str | None = None
    frames: tuple[str, ...] = ()
    """The innermost functions of torch that were being called, innermost first, as `module:function`."""

    def matches(self, other: Signature) -> bool:
        """Whether both are of one failure, on whatever graph it showed. The only test of sameness."""
        from torchsleuth.case.signatures import ORIGIN

        return ORIGIN(self, other)


class Failure(Record, frozen=True):
    """What was observed."""

    signature: Signature
    message: str = ""
    traceback: str = ""
    path: str = ""
    """Where in the results they differ."""
    node: str | None = None
    """The node of the graph at which it happened, if that is known."""
    frame: Frame | None = None
    """The line of the user's program that made that node."""
    kernel: str = ""
    """The operators of the generated kernel at which it happened, as its name has them, if they are several."""


class Frame(Record, frozen=True):
    """One line of the user's program."""

    file: str
    line: int
    function: str = ""
    code: str = ""


class Earlier(Record, frozen=True):
    """A graph that the same process had compiled before."""

    graph: str
    """What messages call it."""
    nodes: int = 0
    case: str | None = None
    """The id of its case in the same store, if it was kept."""


class Origin(Record, frozen=True):
    """Where a case came from."""

    torch: str
    python: str
    sleuth: str
    platform: str = ""
    graph: str = ""
    """What messages call the graph: "forward graph 0"."""
    phase: Literal["forward", "backward", "inference", "joint", "dynamo"] = "inference"
    number: int = 0
    aot_name: str | None = None
    """What AOTAutograd called the graph: "0_forward". Generated code has it in its first line."""
    frames: tuple[Frame, ...] = ()
    parent: str | None = None
    history: tuple[Earlier, ...] = ()
    """The graphs that the process had compiled before the failure, the last ones of them, in order."""
    earlier: bool = False
    """It is kept only because another case has it in its history: nothing went wrong in it."""
    created: str | None = None
    """When, in ISO 8601. Not there if the case was asked to be the same bytes wherever it is written."""


class Code(Record, frozen=True):
    """Code of the user's own that the graph calls. It is never run unless the user says that it is trusted."""

    kind: Literal["python op", "library", "triton kernel", "function"]
    name: str
    """The operator ("mylib::foo"), the kernel's function, or the target of the nodes that call a function."""
    module: str | None = None
    """What to import so that it is there."""
    file: str | None = None
    """Where it was found, for people; or the library to load."""
    line: int | None = None
    source: str | None = None
    index: int | None = None
    """The number under which graphs call a kernel."""
    constants: tuple[Entry, ...] = ()
    """What its source refers to by name."""


class Case(Record, frozen=True):
    """A failure as data."""

    graph: Graph
    compiler: Compiler
    origin: Origin
    inputs: tuple[Value, ...] = ()
    examples: tuple[Value, ...] | None = None
    """What the compiler was given in the place of the inputs (fakes, symbolic numbers), if it was given anything."""
    storages: tuple[Storage, ...] = ()
    symbols: Symbols = Symbols()
    state: State = State()
    failure: Failure | None = None
    code: tuple[Code, ...] = ()
    todo: Literal["minify"] | None = None
    """What whoever recorded it wants done with it."""

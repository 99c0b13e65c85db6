"""A case with some of its operators only: any of them.

    whole = Whole(case, values)
    whole.operators                 what may be left out, in order
    whole.only({"relu_3", "mm_1"})  the case with these alone; None if that cannot be

Whatever uses an operator that is left out uses something else. If what the operator was computed from leads back to one
that is kept, and that has a result of the same type, it is used: the operator is *bypassed*, and what is kept stays
connected. Otherwise its result becomes an input that has the value which eager computed (`values`), or, where values do
not matter, one that fits. So there is no order in which operators have to go, and one in the middle can go first.

What the graph returned and still has is returned, and so is whatever nobody uses now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, TypeAlias

from torchsleuth.case.names import DTYPE_BITS
from torchsleuth.case.schema import (
    Case,
    Fake,
    Generated,
    Graph,
    List,
    Meta,
    Node,
    Ref,
    Storage,
    Symbolic,
    Tensor,
    Tuple,
    Value,
)
from torchsleuth.reduce.graphs import (
    is_call,
    map_arguments,
    name_of,
    operators,
    output_of,
    picks_one,
    placeholders,
    produced,
    pruned,
    refs_in,
    refs_of,
    replace,
    with_inputs,
)
from torchsleuth.reduce.order import outputs_of
from torchsleuth.reduce.sizes import Hints, mentioned
from torchsleuth.reduce.writing import writes_in_place
from torchsleuth.run.values import Recorded

_Type: TypeAlias = tuple[object, ...]


Values: TypeAlias = Mapping[str, Recorded]

_BY_LIBRARY: Final = frozenset("mm addmm bmm baddbmm convolution".split())
"""What compilers leave to a library. Each returns one tensor, so that nothing is picked out of its result."""
_GIVEN: Final = "_given"
"""What the result of an operator is called when it is given to another one, and computed as well."""


class _Impossible(Exception):
    """There is no such case."""


class Whole:
    """A case that is to be cut down."""

    def __init__(self, case: Case, values: Values | None = None) -> None:
        self.case = case
        self.values: Values = values or {}
        self.known = {node.name: node for node in case.graph.nodes}
        self.operators = tuple(node.name for node in operators(case.graph))
        self.hints = Hints(case.symbols)
        self.types = {node.name: type_of(produced(node)) for node in case.graph.nodes}
        self.picks = {node.name for node in case.graph.nodes if picks_one(node, self.known)}
        self.returned = tuple(dict.fromkeys(name for value in outputs_of(case.graph) for name in refs_in(value)))

    def only(self, names: Set[str], *, outputs: bool = True, bypass: bool = True) -> Case | None:
        """The case with these operators alone.

        `outputs`: what was returned still is; otherwise only what nobody uses. `bypass`: what is left out may be
        replaced by what it was computed from; otherwise it always becomes an input.
        """
        try:
            return _Cut(self, names, outputs, bypass).case()
        except _Impossible:
            return None

    def apart(self, names: Set[str]) -> Case | None:
        """The case with these operators, each by itself: it is given what eager computed, and its result is returned.

        Those of which that is not known are left out. None if there is nothing left, or if sizes depend on values.
        """
        if not all(symbol.backed for symbol in self.case.symbols.symbols):
            return None
        known = {name for name in names if all(map(self._is_known, refs_of(self.known[name])))}
        try:
            return _Apart(self, known).case()
        except _Impossible:
            return None

    def _is_known(self, name: str) -> bool:
        """Whether the value of a node can be given to somebody."""
        node = self.known[name]
        if not is_call(node):
            return True
        has_type = isinstance(produced(node), (Fake, Symbolic, bool, int, float))
        return has_type and name in self.values and f"{name}{_GIVEN}" not in self.known


def type_of(value: Value) -> _Type | None:
    """What has to agree if one value is to take the place of another. None: there is nothing to go by."""
    match value:
        case Fake():
            return (value.dtype, value.size, value.stride, value.device, value.layout, value.conj, value.neg)
        case Symbolic():
            return (value.type, value.expr)
    return None


class _Cut:
    """One way of cutting it down."""

    def __init__(self, whole: Whole, kept: Set[str], outputs: bool, bypass: bool) -> None:
        self._whole = whole
        self._kept = kept
        self._outputs = outputs
        self._bypass = bypass
        self._now: dict[str, Value] = {}
        """What stands for each node of the whole graph."""
        self._ancestors: dict[str, dict[_Type, Ref]] = {}
        """The nearest results of kept operators that a node was computed from, by type."""
        self._nodes: list[Node] = []
        self._new: dict[str, tuple[Node, Value, Storage | None]] = {}
        """The nodes that become inputs."""
        self._used: set[str] = set()

    def case(self) -> Case:
        whole = self._whole
        for node in self._in_order():
            if node.op in ("placeholder", "get_attr"):
                self._now[node.name] = Ref(node.name)
            elif node.name in self._kept or (node.name in whole.picks and self._source_is_there(node)):
                self._keep(node)
            else:
                self._leave_out(node)
        returned = self._returned()
        if not returned:
            raise _Impossible
        self._used.update(returned)
        return self._put_together(returned)

    def _in_order(self) -> Sequence[Node]:
        return self._whole.case.graph.nodes[:-1]

    def _source_is_there(self, node: Node) -> bool:
        source = node.args[0]
        assert isinstance(source, Ref)
        return self._now.get(source.name) == Ref(source.name)

    # ---- one node after another ------------------------------------------------------------------------------

    def _keep(self, node: Node) -> None:
        made = map_arguments(node, self._in_its_place)
        self._used.update(refs_of(made))
        self._nodes.append(made)
        self._now[node.name] = Ref(node.name)
        kind = self._whole.types[node.name]
        if kind is not None:
            self._ancestors[node.name] = {kind: Ref(node.name)}

    def _in_its_place(self, value: Value) -> Value:
        if not isinstance(value, Ref):
            return value
        if value.name not in self._now:
            self._now[value.name] = self._as_input(self._whole.known[value.name])
        return self._now[value.name]

    def _leave_out(self, node: Node) -> None:
        """Find out what it was computed from. What stands for it is decided when somebody uses it."""
        found: dict[_Type, Ref] = {}
        if self._bypass:
            for name in refs_of(node):
                for kind, ref in self._ancestors.get(name, {}).items():
                    found.setdefault(kind, ref)
        if found:
            self._ancestors[node.name] = found
        wanted = self._whole.types[node.name]
        if wanted is not None and wanted in found:
            self._now[node.name] = found[wanted]

    def _as_input(self, node: Node, recorded_as: str = "") -> Value:
        value = produced(node)
        if isinstance(value, (bool, int, float)):
            return value
        if not isinstance(value, (Fake, Symbolic)):
            raise _Impossible
        given, storage = self._given(recorded_as or node.name, value)
        val, example = (_of_input(one) for one in (node.meta.val, node.meta.example))
        meta = Meta(val=val, example=example, tensor_meta=node.meta.tensor_meta, stack_trace=node.meta.stack_trace)
        self._new[node.name] = (Node(node.name, "placeholder", node.name, meta=meta), given, storage)
        return Ref(node.name)

    def _given(self, name: str, value: Fake | Symbolic) -> tuple[Value, Storage | None]:
        recorded = self._whole.values.get(name)
        if recorded is not None:
            given = recorded.value
            if isinstance(given, Tensor) and isinstance(value, Fake):
                given = replace(given, requires_grad=value.requires_grad)
            return given, recorded.storage
        if isinstance(value, Symbolic):
            number = value.hint if value.hint is not None else self._whole.hints.number(value.expr)
            if number is None:
                raise _Impossible
            return number, None
        tensor = made_up(value, self._whole.hints)
        if tensor is None:
            raise _Impossible
        return tensor

    # ---- what comes out --------------------------------------------------------------------------------------

    def _returned(self) -> list[str]:
        """What the new graph returns: results of kept operators."""
        whole = self._whole
        found = []
        if self._outputs:
            found = [name for name in whole.returned if self._now.get(name) == Ref(name) and self._is_made(name)]
        for node in self._nodes:
            if node.name not in self._used and node.name not in found and whole.types[node.name] is not None:
                found.append(node.name)
        return [name for name in found if isinstance(produced(whole.known[name]), Fake)] or found

    def _is_made(self, name: str) -> bool:
        return is_call(self._whole.known[name])

    def _without_gradients(self) -> None:
        """What is written to has to be a result, or an input that requires no gradient: torch refuses anything else."""
        firsts = [node.args[0] for node in self._nodes if node.args and writes_in_place(node)]
        written = {first.name for first in firsts if isinstance(first, Ref)}
        for name in written & self._new.keys():
            node, given, storage = self._new[name]
            val, example = (_without_gradient(one) for one in (node.meta.val, node.meta.example))
            node = replace(node, meta=replace(node.meta, val=val, example=example))
            self._new[name] = (node, _without_gradient(given), storage)

    def _put_together(self, returned: list[str]) -> Case:
        whole = self._whole
        self._without_gradients()
        graph = whole.case.graph
        last = output_of(graph)
        refs = tuple(Ref(name) for name in returned)
        kind = type(last.args[0]) if last.args and isinstance(last.args[0], (List, Tuple)) else Tuple
        output = replace(last, args=(kind(refs),), meta=Meta())
        body = [*(node for node in graph.nodes if node.op == "get_attr" and node.name in self._used), *self._nodes]
        inputs = [node for node in placeholders(graph) if node.name in self._used]
        inputs += [node for node, _, _ in self._new.values() if node.name in self._used]
        inputs = [*self._symbols_for([*inputs, *body], inputs), *inputs]
        return self._with(replace(graph, nodes=(*inputs, *body, output)))

    def _symbols_for(self, mentioning: list[Node], inputs: list[Node]) -> list[Node]:
        """Inputs for the symbols that the nodes mention, if no other input tells their values."""
        whole = self._whole
        if not whole.case.symbols.symbols:
            return []
        needed = mentioned(mentioning)
        for node in self._nodes:
            needed -= {str(binding.symbol) for binding in node.meta.bindings}
        told = {term for node in inputs for term in _plain_symbols(produced(node))}
        unbacked = {one.name for one in whole.case.symbols.symbols if not one.backed}
        if (needed - told) & unbacked:
            raise _Impossible
        found = []
        present = {node.name for node in inputs}
        for name in sorted(needed):
            holder = next((n for n in placeholders(whole.case.graph) if _is_symbol(produced(n), name)), None)
            if holder is not None and holder.name not in present:
                found.append(holder)
            elif holder is None and name not in told:
                found.append(self._symbol_input(name))
        return found

    def _symbol_input(self, name: str) -> Node:
        hint = self._whole.hints.number(name)
        if not isinstance(hint, int):
            raise _Impossible
        label = f"size_{name}"
        in_val = any(node.meta.val is not None for node in placeholders(self._whole.case.graph))
        value = Symbolic("int", name, hint)
        meta = Meta(val=value) if in_val else Meta(example=value)
        node = Node(label, "placeholder", label, meta=meta)
        self._new[label] = (node, hint, None)
        return node

    def _with(self, graph: Graph) -> Case:
        """The case with the new graph and what it is called with."""
        case = self._whole.case
        storages = list(case.storages)
        inputs: dict[str, Value] = {}
        examples: dict[str, Value] = {}
        for name, (node, given, storage) in self._new.items():
            if storage is not None and isinstance(given, Tensor):
                given = replace(given, storage=len(storages))
                storages.append(storage)
            inputs[name] = given
            examples[name] = produced(node)
        return pruned(with_inputs(replace(case, storages=tuple(storages)), graph, inputs, examples))


class _Apart(_Cut):
    """One in which no operator uses the result of another."""

    def __init__(self, whole: Whole, kept: Set[str]) -> None:
        super().__init__(whole, kept, outputs=False, bypass=False)
        self._given_now: dict[str, Value] = {}

    def _in_order(self) -> Sequence[Node]:
        """What a library computes comes last: then all others can share a kernel, which is compiled much faster."""
        return sorted(super()._in_order(), key=lambda node: is_call(node) and name_of(node) in _BY_LIBRARY)

    def _keep(self, node: Node) -> None:
        picks = node.name in self._whole.picks
        made = node if picks else map_arguments(node, self._as_given)
        self._used.update(refs_of(made))
        self._nodes.append(made)
        self._now[node.name] = Ref(node.name)

    def _as_given(self, value: Value) -> Value:
        if not isinstance(value, Ref) or not is_call(self._whole.known[value.name]):
            return self._in_its_place(value)
        if value.name not in self._given_now:
            node = self._whole.known[value.name]
            self._given_now[value.name] = self._as_input(
                replace(node, name=f"{node.name}{_GIVEN}"), recorded_as=node.name
            )
        return self._given_now[value.name]


def _of_input(value: Value) -> Value:
    """What is known of a result, when it is an input: it begins where its memory begins, which is its own."""
    return replace(value, offset=0, memory=None, leaf=True, conj=False, neg=False) if isinstance(value, Fake) else value


def _without_gradient(value: Value) -> Value:
    if not isinstance(value, (Fake, Tensor)) or not value.requires_grad:
        return value
    return replace(value, requires_grad=False, leaf=True)


def _is_symbol(value: Value, name: str) -> bool:
    return isinstance(value, Symbolic) and value.expr == name


def _plain_symbols(value: Value) -> list[str]:
    """The symbols whose values an input tells at once."""
    if isinstance(value, Symbolic):
        return [value.expr] if isinstance(value.expr, str) else []
    return [term for term in value.size if isinstance(term, str)] if isinstance(value, Fake) else []


def made_up(fake: Fake, hints: Hints) -> tuple[Tensor, Storage] | None:
    """A tensor that is like a fake, with values that fit: drawn numbers, or zeros where they may be indices."""
    size, stride = hints.numbers(fake.size), hints.numbers(fake.stride)
    bits = DTYPE_BITS.get(fake.dtype)
    if size is None or stride is None or bits is None or fake.layout != "strided":
        return None
    last = 0 if 0 in size else 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    floats = fake.dtype in _FLOATS
    content = Generated("normal" if floats else "constant", fake.dtype, 0, 1)
    tensor = Tensor(
        fake.dtype,
        size,
        stride,
        device=fake.device,
        requires_grad=fake.requires_grad,
    )
    return tensor, Storage(last * bits // 8, content, fake.device)


_FLOATS = frozenset("float16 bfloat16 float32 float64 complex32 complex64 complex128".split())

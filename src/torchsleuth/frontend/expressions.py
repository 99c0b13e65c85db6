"""Expressions: operators, comparisons and subscripts, as CPython does them.

Numbers are computed, tensors become nodes, methods of the user's are interpreted in the order in which CPython asks
them; everything else is native, and guarded as far as it is read.
"""

from __future__ import annotations

import collections.abc
import operator
from typing import Any, Final

import torch

from torchsleuth.frontend import polyfills
from torchsleuth.frontend.attributes import is_python
from torchsleuth.frontend.builtin_calls import answering
from torchsleuth.frontend.bytecode import Instruction
from torchsleuth.frontend.calls import Calls
from torchsleuth.frontend.frames import ABSENT, DISCARD, Frame, Generator
from torchsleuth.frontend.guards import identity, is_constant
from torchsleuth.frontend.iterating import CONTAINERS, ITERATORS, VIEWS
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, UserError
from torchsleuth.frontend.operations import BINARY, BINARY_FUNCTIONS, COMPARE
from torchsleuth.frontend.outside import lookup
from torchsleuth.frontend.symbolic import SYMBOLIC_OPERATORS, Symbolic, as_plain, made_plain

_SWAPPED: Final = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}
_NUMBERS: Final = (int, float, bool, complex)
SIMPLE: Final = (int, float, bool, complex, str, bytes, type(None))


class Expressions(Calls):
    def push(self, frame: Frame, result: Any) -> None:
        if result is not PUSHED:
            frame.stack.append(result)

    # -- operators

    def _unary(self, frame: Frame, name: str) -> None:
        value = frame.stack.pop()
        function = getattr(operator, name)
        if is_a(value, torch.Tensor):
            frame.stack.append(self.torch_call(function, False, (value,), {}))
            return
        if type(value) is Symbolic:
            frame.stack.append(self.look(function, made_plain(value) if name == "invert" else value))
            return
        found = lookup(type(value), f"__{name}__")
        if is_python(found):
            self.outside.class_attribute(type(value), f"__{name}__", found)
            self.push(frame, self.call(found, [value], {}))
        elif is_constant(value):
            frame.stack.append(self.look(function, value))
        else:
            self._must_be_known(value)
            frame.stack.append(self.look(function, self._for_native(value)))

    def UNARY_NEGATIVE(self, frame: Frame, instruction: Instruction) -> None:
        self._unary(frame, "neg")

    def UNARY_POSITIVE(self, frame: Frame, instruction: Instruction) -> None:
        self._unary(frame, "pos")

    def UNARY_INVERT(self, frame: Frame, instruction: Instruction) -> None:
        self._unary(frame, "invert")

    def _must_be_known(self, value: Any) -> None:
        """Breaks for what computes natively in a way that nobody knows (an array of numpy's)."""
        kind = type(value)
        if is_constant(value) or kind is Symbolic or kind is Generator or kind in ITERATORS or kind in VIEWS:
            return
        if is_a(value, (*CONTAINERS, BaseException, type)) or kind.__flags__ & (1 << 9):
            return
        if kind in (bytearray, memoryview) or kind.__module__ not in ("builtins", "collections", "types", "torch"):
            raise Break(f"an operator of a {kind.__module__}.{kind.__qualname__}")

    def BINARY_OP(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        right, left = stack.pop(), stack.pop()
        function = BINARY_FUNCTIONS[instruction.arg]
        kinds = type(left), type(right)
        if kinds[0] in SIMPLE and kinds[1] in SIMPLE:
            stack.append(self.look(function, left, right))
            return
        has_tensor = is_a(left, torch.Tensor) or is_a(right, torch.Tensor)
        if has_tensor and not self._has_python_operator(right if is_a(left, torch.Tensor) else left):
            if not is_a(left, (torch.Tensor, *_NUMBERS)):
                raise Break(f"an operator of a {kinds[0].__qualname__} and a tensor")
            if not is_a(left, torch.Tensor):
                function = BINARY_FUNCTIONS[instruction.arg % len(BINARY)]  # a number can't be changed in place
            stack.append(self.torch_call(function, False, (left, right), {}))
            return
        if Symbolic in kinds:
            if function not in SYMBOLIC_OPERATORS or not all(kind in (int, Symbolic) for kind in kinds):
                left, right = made_plain(left), made_plain(right)
            if all(issubclass(kind, _NUMBERS) for kind in kinds):
                stack.append(self.look(function, left, right))
                return
        self.push(frame, self._binary(function, instruction.arg, left, right))

    def _has_python_operator(self, value: Any) -> bool:
        return not is_a(value, (torch.Tensor, Symbolic)) and any(
            is_python(lookup(type(value), name))
            for name in (
                "__add__",
                "__radd__",
                "__mul__",
                "__rmul__",
                "__matmul__",
                "__rsub__",
                "__sub__",
                "__rtruediv__",
            )
        )

    def _binary(self, function: Any, number: int, left: Any, right: Any) -> Any:
        name = BINARY[number % len(BINARY)].rstrip("_")
        in_place, plain, swapped = f"__i{name}__", f"__{name}__", f"__r{name}__"
        candidates = []
        if number >= len(BINARY) and lookup(type(left), in_place) is not ABSENT:
            candidates.append((left, in_place, right))
        candidates.append((left, plain, right))
        theirs = (right, swapped, left)
        if (
            type(right) is not type(left)
            and is_a(right, type(left))
            and lookup(type(right), swapped) is not lookup(type(left), swapped)
        ):
            candidates.insert(len(candidates) - 1, theirs)
        elif type(right) is not type(left):
            candidates.append(theirs)
        if not any(is_python(lookup(type(owner), method)) for owner, method, _ in candidates):
            return self._native_binary(function, left, right)
        if name in ("add", "mul"):
            candidates.sort(key=_is_of_sequence)
        for owner, method, other in candidates:
            found = lookup(type(owner), method)
            if found is ABSENT:
                continue
            self.outside.class_attribute(type(owner), method, found)
            if is_python(found):
                result = self.call_now(found, owner, other)
            elif is_a(owner, torch.Tensor):
                continue
            else:
                self._for_native(owner)
                result = self.look(found, owner, other)
            if result is not NotImplemented:
                return result
        return self._unsupported(function, left, right)

    def _unsupported(self, function: Any, left: Any, right: Any) -> Any:
        sign = _SIGNS[function]
        return self.raises(
            TypeError(f"unsupported operand type(s) for {sign}: '{type(left).__name__}' and '{type(right).__name__}'")
        )

    def _native_binary(self, function: Any, left: Any, right: Any) -> Any:
        for each in (left, right):
            self._must_be_known(each)
            if is_a(each, (dict, set)) or type(each) in VIEWS:
                for inside in each:
                    if not self._is_plain_key(inside):
                        raise Break("an operator of a set or a dict whose keys have a hash of their own")
        in_place = function in BINARY_FUNCTIONS[len(BINARY) :]
        if in_place and is_a(left, list) and function is operator.iadd:
            right = self.native_iterable(right, counts=is_a(left, list))
            return self.native(function, left, right)
        if in_place and is_a(left, dict):
            self.outside.shallow(right)
            self._updates(left, [right], {})
            return self.native(function, left, right)
        if is_a(left, (list, tuple)) and function in (operator.add, operator.mul, operator.iadd, operator.imul):
            self.outside.shallow(left)
            self.outside.shallow(right)
            return self.native(function, left, right if is_a(right, (list, tuple)) else made_plain(right))
        left, right = self._for_native(left), self._for_native(right)
        return self.native(function, left, right)

    def COMPARE_OP(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        right, left = stack.pop(), stack.pop()
        name = COMPARE[instruction.value]
        function = getattr(operator, name)
        if Symbolic in (type(left), type(right)):
            if is_a(left, int) and is_a(right, int):
                stack.append(self.look(function, left, right))
                return
            if not (is_a(left, torch.Tensor) or is_a(right, torch.Tensor)):
                left, right = made_plain(left), made_plain(right)
        if type(left) in SIMPLE and type(right) in SIMPLE:
            stack.append(self.look(function, left, right))
        elif is_a(left, torch.Tensor) or is_a(right, torch.Tensor):
            if not (is_a(left, (torch.Tensor, *_NUMBERS)) and is_a(right, (torch.Tensor, *_NUMBERS))):
                if name in ("eq", "ne") and (left is None or right is None or is_a(left, str) or is_a(right, str)):
                    stack.append(name == "ne")
                    return
                raise Break("a comparison of a tensor with what is none")
            stack.append(self.torch_call(function, False, (left, right), {}))
        else:
            self.push(frame, self._compare(name, function, left, right))

    def _compare(self, name: str, function: Any, left: Any, right: Any) -> Any:
        mine, theirs = f"__{name}__", f"__{_SWAPPED[name]}__"
        pairs = [(left, mine, right), (right, theirs, left)]
        if type(left) is not type(right) and is_a(right, type(left)):
            pairs.reverse()
        python = [is_python(lookup(type(owner), method)) for owner, method, _ in pairs]
        if name == "ne":
            python = [
                each or (lookup(type(owner), "__ne__") is object.__ne__ and is_python(lookup(type(owner), "__eq__")))
                for each, (owner, _, _) in zip(python, pairs, strict=True)
            ]
        if not any(python):
            return self._native_compare(function, left, right)
        for is_theirs, (owner, method, other) in zip(python, pairs, strict=True):
            found = lookup(type(owner), method)
            if is_theirs:
                negate = name == "ne" and not is_python(found)
                if negate:
                    method = "__eq__"
                    found = lookup(type(owner), method)
                self.outside.class_attribute(type(owner), method, found)
                result = self.call_now(found, owner, other)
                if negate and result is not NotImplemented:
                    result = not self.truth(result)
            elif found is ABSENT:
                continue
            else:
                self.outside.same(owner, other)
                result = self.look(found, owner, other)
            if result is not NotImplemented:
                return result
        if name in ("eq", "ne"):
            self.outside.same(left, right)
            return (left is right) is (name == "eq")
        sign, kinds = _COMPARED[name], (type(left).__name__, type(right).__name__)
        return self.raises(TypeError(f"'{sign}' not supported between instances of '{kinds[0]}' and '{kinds[1]}'"))

    def _native_compare(self, function: Any, left: Any, right: Any) -> Any:
        self._must_be_known(left)
        self._must_be_known(right)
        if (is_a(left, CONTAINERS) and is_a(right, CONTAINERS)) or type(left) in VIEWS or type(right) in VIEWS:
            self._must_compare_natively(left)
            self._must_compare_natively(right)
            left, right = self._for_native(left), self._for_native(right)
        elif not is_constant(left) or not is_constant(right):
            self.outside.same(left, right)
            for each in (left, right):
                if is_constant(each):
                    continue
                if is_a(each, CONTAINERS):
                    self.outside.length(each)
                elif lookup(type(each), "__eq__") is not object.__eq__:
                    self._must_be_seen_into(each)
                    self.outside.deep(each)
        return self.look(function, left, right)

    def _must_compare_natively(self, value: Any, depth: int = 0) -> None:
        """Breaks if comparing the elements of a container runs code of the user's, or needs the values of tensors."""
        if is_constant(value) or type(value) is Symbolic or depth > 8:
            return
        inside: Any = ()
        if is_a(value, dict):
            inside = [*value.keys(), *value.values()]
        elif is_a(value, (list, tuple, set, frozenset, *VIEWS)):
            inside = [*value]
        elif is_a(value, torch.Tensor):
            raise Break("a comparison of containers compares tensors")
        elif is_python(lookup(type(value), "__eq__")):
            raise Break(f"a comparison of containers compares objects of the class {type(value).__qualname__}")
        else:
            self._must_be_seen_into(value)
        for each in inside:
            self._must_compare_natively(each, depth + 1)

    def IS_OP(self, frame: Frame, instruction: Instruction) -> None:
        right, left = as_plain(frame.stack.pop()), as_plain(frame.stack.pop())
        ours = frame.globals is vars(polyfills)  # there it is a short way to "equal"
        if not ours and _is_told_by_chance(left, right):
            raise Break("it is asked whether two equal values are one object", "compare them with ==")
        self.outside.same(left, right)
        frame.stack.append((left is right) ^ bool(instruction.arg))

    def CONTAINS_OP(self, frame: Frame, instruction: Instruction) -> None:
        container, value = frame.stack.pop(), frame.stack.pop()
        frame.stack.append(self._contains(container, value) ^ bool(instruction.arg))

    def _contains(self, container: Any, value: Any) -> bool:
        found = lookup(type(container), "__contains__")
        if is_a(container, torch.Tensor):
            raise Break("whether a tensor contains something depends on the data")
        if is_python(found):
            self.outside.class_attribute(type(container), "__contains__", found)
            return self.truth(self.call_now(found, container, value))
        if is_a(container, dict) and self._is_plain_key(value):
            value = made_plain(value)
            self.outside.key(container, value)
            return bool(self.look(operator.contains, container, value))
        if is_a(container, (set, frozenset)) and self._is_plain_key(value):
            value = made_plain(value)
            self.outside.membership(container, value)
            return bool(self.look(operator.contains, container, value))
        if is_constant(container) and is_constant(value):
            return bool(self.look(operator.contains, container, value))
        if found is ABSENT and all(lookup(type(container), name) is ABSENT for name in ("__iter__", "__getitem__")):
            return bool(self.raises(TypeError(f"argument of type '{type(container).__name__}' is not iterable")))
        if is_a(container, (list, tuple)) and type(container) not in (list, tuple):
            base: Any = list if is_a(container, list) else tuple
            self.outside.shallow(container)
            container = [*base.__iter__(container)]  # whatever it gives if it is iterated over
        if found is ABSENT and is_python(lookup(type(container), "__iter__")):
            try:
                container = self.iterate_now(container)
            except UserError as raised:
                if not isinstance(raised.error, TypeError):
                    raise
                what = type(container).__name__
                return bool(self.raises(TypeError(f"argument of type '{what}' is not iterable")))
        if (
            found is ABSENT
            or is_a(container, (list, tuple))
            or type(container) in VIEWS
            or type(container) in ITERATORS
        ):
            return bool(self.call_now(polyfills.contains, container, value))
        self._must_be_known(container)
        return bool(self.look(operator.contains, self._for_native(container), self._for_native(value)))

    # -- subscripts

    def BINARY_SUBSCR(self, frame: Frame, instruction: Instruction) -> None:
        index, owner = frame.stack.pop(), frame.stack.pop()
        self.push(frame, self.subscript(owner, index))

    def subscript(self, owner: Any, index: Any) -> Any:
        """`owner[index]`, or `PUSHED`."""
        if is_a(owner, torch.Tensor):
            return self.torch_call(operator.getitem, False, (owner, index), {})
        found = lookup(type(owner), "__getitem__")
        if is_python(found):
            self.outside.class_attribute(type(owner), "__getitem__", found)
            return self.call(found, [owner, index], {})
        if is_a(owner, type):
            return self.look(operator.getitem, owner, index)
        if is_a(owner, dict):
            return self._dict_item(owner, index)
        if is_a(owner, (list, tuple, collections.deque)):
            if is_a(index, torch.Tensor):
                return self._by_tensor(owner, index)
            index = made_plain(index)
            if type(index) is int:
                self.outside.item(owner, index)
            elif type(index) is slice:
                self.outside.shallow(owner)
            elif not is_a(index, int) and is_python(lookup(type(index), "__index__")):
                self.outside.class_attribute(type(index), "__index__", lookup(type(index), "__index__"))
                answer = self.call_now(lookup(type(index), "__index__"), index)
                index = self.look(operator.index, answering("__index__", answer))
                self.outside.item(owner, index)
            return self.look(operator.getitem, owner, index)
        self._must_be_known(owner)
        return self.look(operator.getitem, self._for_native(owner), self._for_native(index))

    def _by_tensor(self, owner: Any, index: torch.Tensor) -> Any:
        """A list or a tuple, indexed by a tensor: its value has to be known. It is if it was made of constants."""
        if self.recorder.is_computed_from_constants(index) and not index.is_floating_point():
            with self.recorder.auditor.unrecorded():
                number = self.look(operator.index, index)
            return self.subscript(owner, number)
        raise Break(
            "a list is indexed by the value of a tensor", "make one tensor of the list (torch.stack), and index that"
        )

    def _dict_item(self, owner: Any, key: Any) -> Any:
        if not self._is_plain_key(key):
            raise Break(f"a key of a dict is a {type(key).__qualname__}")
        key = made_plain(key)
        self.outside.key(owner, key)
        if not dict.__contains__(owner, key):
            missing = lookup(type(owner), "__missing__")
            self.outside.class_attribute(type(owner), "__missing__", missing)
            if is_python(missing):
                return self.call(missing, [owner, key], {})
            factory = getattr(owner, "default_factory", None) if is_a(owner, collections.defaultdict) else None
            if is_a(owner, collections.defaultdict):
                self.outside.field(owner, "default_factory", factory)
            if factory is not None and not (
                is_a(factory, type) and factory in (list, dict, set, int, float, str, tuple, bool)
            ):
                self.outside.writes(owner)
                value = owner[key] = self.call_now(factory)
                return value
        return self.native(operator.getitem, owner, key)

    def STORE_SUBSCR(self, frame: Frame, instruction: Instruction) -> None:
        index, owner, value = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
        self._store(owner, index, value)

    def _store(self, owner: Any, index: Any, value: Any) -> None:
        if is_a(owner, torch.Tensor):
            self.torch_call(operator.setitem, False, (owner, index, value), {})
            return
        found = lookup(type(owner), "__setitem__")
        if is_python(found):
            self.outside.class_attribute(type(owner), "__setitem__", found)
            self.push_frame(found, [owner, index, value], {}, DISCARD)
            return
        self._changed_at(owner, index)
        if is_a(owner, dict):
            self.outside.wrote(owner, made_plain(index))
        elif type(index) is int and is_a(owner, (list, collections.deque)):
            self.outside.wrote(owner, index % len(owner) if owner else index)
        else:
            self.outside.shallow(owner)
        if is_a(owner, list) and type(index) is slice:
            value = self.native_iterable(value)
        self.native(operator.setitem, owner, made_plain(index), value)

    def _changed_at(self, owner: Any, index: Any) -> None:
        if is_a(owner, dict):
            if not self._is_plain_key(index):
                raise Break(f"a key of a dict is a {type(index).__qualname__}")
        elif is_a(owner, (list, collections.deque)):
            if is_a(index, torch.Tensor):
                raise Break("a list is indexed by the value of a tensor")
            self.outside.length(owner)
        elif self.outside.source(owner) is not None or type(owner).__module__ != "builtins":
            raise Break(f"an item of a {type(owner).__qualname__} is set")

    def DELETE_SUBSCR(self, frame: Frame, instruction: Instruction) -> None:
        index, owner = frame.stack.pop(), frame.stack.pop()
        found = lookup(type(owner), "__delitem__")
        if is_python(found):
            self.outside.class_attribute(type(owner), "__delitem__", found)
            self.push_frame(found, [owner, index], {}, DISCARD)
            return
        self._changed_at(owner, index)
        if is_a(owner, dict):
            index = made_plain(index)
            self.outside.key(owner, index)
        self.native(operator.delitem, owner, made_plain(index))


def _is_told_by_chance(left: Any, right: Any) -> bool:
    """Whether two values are equal constants of which Python may keep one, or two."""
    kind = type(left)
    if kind is not type(right) or kind not in (int, float, complex, str, bytes, tuple, frozenset, range, slice):
        return False
    if not (is_constant(left) and is_constant(right)) or identity(left) != identity(right):
        return False
    return not (kind is int and -5 <= left <= 256) and not (kind in (tuple, str, bytes) and len(left) == 0)


_SIGNS: Final = dict(
    zip(
        BINARY_FUNCTIONS,
        [
            *("+", "&", "//", "<<", "@", "*", "%", "|", "** or pow()", ">>", "-", "/", "^"),
            *("+=", "&=", "//=", "<<=", "@=", "*=", "%=", "|=", "**=", ">>=", "-=", "/=", "^="),
        ],
        strict=True,
    )
)
_COMPARED: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _is_of_sequence(candidate: tuple[Any, str, Any]) -> bool:
    """Whether it is what native sequences have for `+` and `*`: CPython asks them after all that is for numbers."""
    owner, method, _ = candidate
    return is_a(owner, _SEQUENCES) and not is_python(lookup(type(owner), method))


_SEQUENCES: Final = (list, tuple, str, bytes, bytearray, collections.deque)

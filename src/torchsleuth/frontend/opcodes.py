"""The interpreter: a method for each opcode of CPython 3.11, named like it.

A handler gets the frame and the instruction, `frame.place` being one behind it already. It works on the frame's stack
as CPython does. `operations.py` says, for each instruction that can break a graph, how it is run natively.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any, Final

import torch

from torchsleuth.frontend import torch_calls
from torchsleuth.frontend.attributes import is_python
from torchsleuth.frontend.builtin_calls import Sized, Truthful, answering, type_of
from torchsleuth.frontend.bytecode import GROUPS, Instruction
from torchsleuth.frontend.expressions import SIMPLE, Expressions
from torchsleuth.frontend.frames import ABSENT, NULL, PUSH, SEND, Frame, Generator, Handled, Untouched, plain
from torchsleuth.frontend.guards import is_constant
from torchsleuth.frontend.iterating import EXHAUSTED, ITERATORS, VIEWS
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, UserError
from torchsleuth.frontend.moving import Operation, handled_now, jump, set_context
from torchsleuth.frontend.operations import OPERATIONS, in_messages, looks_at_frame
from torchsleuth.frontend.outside import cell_content, lookup
from torchsleuth.frontend.symbolic import Symbolic, made_plain

_KEEPS_UNTOUCHED: Final = frozenset(
    [
        *(
            "LOAD_FAST",
            "STORE_FAST",
            "DELETE_FAST",
            "LOAD_CONST",
            "LOAD_GLOBAL",
            "LOAD_DEREF",
            "PUSH_NULL",
            "PRECALL",
            "KW_NAMES",
        ),
        *(
            "POP_TOP",
            "NOP",
            "RESUME",
            "JUMP_FORWARD",
            "JUMP_BACKWARD",
            "COPY",
            "SWAP",
            "CALL",
            "RETURN_VALUE",
            "COPY_FREE_VARS",
        ),
        *("LOAD_CLOSURE", "JUMP_BACKWARD_NO_INTERRUPT", "LOAD_ASSERTION_ERROR", "YIELD_VALUE"),
        *("BUILD_TUPLE", "BUILD_LIST", "BUILD_CONST_KEY_MAP"),
    ]
)
"""Instructions that don't look at values."""
_LOOKS_AT_TOP: Final = {
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, "GET_ITER": 1, "FOR_ITER": 1, "UNARY_NOT": 1, "STORE_ATTR": 2, "BEFORE_WITH": 1,
    "POP_JUMP_FORWARD_IF_FALSE": 1, "POP_JUMP_FORWARD_IF_TRUE": 1, "POP_JUMP_BACKWARD_IF_FALSE": 1,
    "POP_JUMP_BACKWARD_IF_TRUE": 1, "POP_JUMP_FORWARD_IF_NONE": 1, "POP_JUMP_FORWARD_IF_NOT_NONE": 1,
    "BINARY_OP": 2, "COMPARE_OP": 2, "IS_OP": 2, "CONTAINS_OP": 2, "BINARY_SUBSCR": 2, "STORE_SUBSCR": 3,
    "FORMAT_VALUE": 2, "UNPACK_SEQUENCE": 1, "STORE_DEREF": 1, "STORE_GLOBAL": 1,
    "IMPORT_NAME": 2, "IMPORT_FROM": 1, "MAKE_CELL": 0,
}  # fmt: skip
"""How many values the others look at, if not at all of the stack."""


class Interpreter(Expressions):
    def execute(self, frame: Frame, instruction: Instruction) -> Any:
        name = instruction.name
        if name not in _KEEPS_UNTOUCHED:
            stack = frame.stack
            for number in range(max(len(stack) - _LOOKS_AT_TOP.get(name, len(stack)), 0), len(stack)):
                if type(stack[number]) is Untouched:
                    stack[number] = self.outside.settle(stack[number])
        handler = getattr(self, name, None)
        if handler is None:
            raise Break(f"the instruction {name} is not known", leave=True)
        return handler(frame, instruction)

    def operation(self, frame: Frame, instruction: Instruction) -> Operation | None:
        make = OPERATIONS.get(instruction.name)
        if make is None or self._looks_at_frame(frame, instruction):
            return None
        return make(self.frames, instruction)

    def _looks_at_frame(self, frame: Frame, instruction: Instruction) -> bool:
        """Whether what is called here finds out about the frame that calls it."""
        if instruction.name == "CALL":
            called = [each for each in frame.stack[len(frame.stack) - instruction.arg - 2 :] if each is not NULL]
            function, args = called[0], tuple(called[1:])
        elif instruction.name == "CALL_FUNCTION_EX":
            at = -2 - (instruction.arg & 1)
            function, args = frame.stack[at], frame.stack[at + 1]
            if not is_a(args, (tuple, list)):
                args = ()  # nobody has looked yet how many there are
        else:
            return False
        return looks_at_frame(self.outside.settle(function), args)

    # -- nothing to do

    def NOP(self, frame: Frame, instruction: Instruction) -> None:
        pass

    RESUME = PRECALL = CACHE = COPY_FREE_VARS = SETUP_ANNOTATIONS = NOP

    # -- the stack

    def POP_TOP(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.pop()

    def PUSH_NULL(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(NULL)

    def COPY(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(frame.stack[-instruction.arg])

    def SWAP(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        stack[-1], stack[-instruction.arg] = stack[-instruction.arg], stack[-1]

    def LOAD_CONST(self, frame: Frame, instruction: Instruction) -> None:
        value = instruction.value
        if type(value) is tuple or type(value) is frozenset:
            self.outside.literal(value)
        frame.stack.append(value)

    # -- names

    def LOAD_FAST(self, frame: Frame, instruction: Instruction) -> None:
        name = instruction.value
        if name not in frame.locals:
            self.raises(
                UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
            )
        frame.stack.append(frame.locals[name])

    def STORE_FAST(self, frame: Frame, instruction: Instruction) -> None:
        frame.locals[instruction.value] = frame.stack.pop()

    def DELETE_FAST(self, frame: Frame, instruction: Instruction) -> None:
        name = instruction.value
        if name not in frame.locals:
            self.raises(
                UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
            )
        del frame.locals[name]

    def LOAD_GLOBAL(self, frame: Frame, instruction: Instruction) -> None:
        if instruction.arg & 1:
            frame.stack.append(NULL)
        frame.stack.append(self.global_named(frame, instruction.value))

    def global_named(self, frame: Frame, name: str) -> Any:
        namespace = frame.globals
        self.outside.global_(namespace, name)
        if name in namespace:
            return namespace[name]
        found = namespace.get("__builtins__", builtins)
        inside = found if is_a(found, dict) else found.__dict__
        if name not in inside:
            self.raises(NameError(f"name '{name}' is not defined", name=name))
        self.outside.global_(inside, name)
        return inside[name]

    def STORE_GLOBAL(self, frame: Frame, instruction: Instruction) -> None:
        self.outside.writes_global(frame.globals)
        self.outside.wrote(frame.globals, instruction.value)
        frame.globals[instruction.value] = frame.stack.pop()

    def DELETE_GLOBAL(self, frame: Frame, instruction: Instruction) -> None:
        self.outside.global_(frame.globals, instruction.value)
        self.outside.writes_global(frame.globals)
        if instruction.value not in frame.globals:
            self.raises(NameError(f"name '{instruction.value}' is not defined", name=instruction.value))
        del frame.globals[instruction.value]

    # -- cells

    def MAKE_CELL(self, frame: Frame, instruction: Instruction) -> None:
        name = instruction.value
        cell = frame.cells[name] = CellType()
        self.made[id(cell)] = cell
        if name in frame.locals:
            cell.cell_contents = self.outside.settle(frame.locals.pop(name))

    def LOAD_CLOSURE(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(frame.cells[instruction.value])

    def LOAD_DEREF(self, frame: Frame, instruction: Instruction) -> None:
        cell = frame.cells[instruction.value]
        self.outside.cell(cell)
        value = cell_content(cell)
        if value is ABSENT:
            self._unbound(frame, instruction.value)
        frame.stack.append(value)

    def _unbound(self, frame: Frame, name: str) -> None:
        if name in frame.code.co_freevars:
            self.raises(
                NameError(
                    f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
                    name=name,
                )
            )
        self.raises(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))

    def STORE_DEREF(self, frame: Frame, instruction: Instruction) -> None:
        cell = frame.cells[instruction.value]
        self.outside.wrote(cell, "cell_contents")
        cell.cell_contents = frame.stack.pop()

    def DELETE_DEREF(self, frame: Frame, instruction: Instruction) -> None:
        cell = frame.cells[instruction.value]
        self.outside.cell(cell)
        if cell_content(cell) is ABSENT:
            self._unbound(frame, instruction.value)
        del cell.cell_contents

    # -- attributes

    def LOAD_ATTR(self, frame: Frame, instruction: Instruction) -> None:
        owner = frame.stack.pop()
        self.push(frame, self.load_attr(owner, instruction.value))

    def LOAD_METHOD(self, frame: Frame, instruction: Instruction) -> None:
        owner = frame.stack.pop()
        result = self.load_attr(owner, instruction.value)
        if result is PUSHED:
            frame.stack.append(NULL)
        elif type(result) is MethodType and result.__self__ is owner and type(owner) is not Generator:
            frame.stack += [result.__func__, owner]
        else:
            frame.stack += [NULL, result]

    def STORE_ATTR(self, frame: Frame, instruction: Instruction) -> None:
        owner = frame.stack.pop()
        self.store_attr(owner, instruction.value, frame.stack.pop())

    def DELETE_ATTR(self, frame: Frame, instruction: Instruction) -> None:
        self.delete_attr(frame.stack.pop(), instruction.value)

    # -- calls

    def KW_NAMES(self, frame: Frame, instruction: Instruction) -> None:
        frame.keywords = frame.code.co_consts[instruction.arg]

    def CALL(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        begin = len(stack) - instruction.arg - 2
        first, second = self.outside.settle(stack[begin]), self.outside.settle(stack[begin + 1])
        function, args = (second, stack[begin + 2 :]) if first is NULL else (first, [second, *stack[begin + 2 :]])
        keywords = frame.keywords
        kwargs = {}
        if keywords:
            kwargs = dict(zip(keywords, args[len(args) - len(keywords) :], strict=True))
            args = args[: len(args) - len(keywords)]
        result = self.call(function, args, kwargs)
        del stack[begin:]
        frame.keywords = ()
        self.push(frame, result)

    def CALL_FUNCTION_EX(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        kwargs: dict[str, Any] = {}
        if instruction.arg & 1:
            given = stack.pop()
            self.outside.deep_keys(given)
            kwargs = {key: self._lazily(given, key, value) for key, value in given.items()}
        packed = stack.pop()
        function = stack.pop()
        if type(packed) is tuple or type(packed) is list:
            self.outside.length(packed)
            args = [self._lazily(packed, number, value) for number, value in enumerate(packed)]
        else:
            if lookup(type(packed), "__iter__") is ABSENT and lookup(type(packed), "__getitem__") is ABSENT:
                named, kind = in_messages(plain(function)), type(packed).__name__
                self.raises(TypeError(f"{named} argument after * must be an iterable, not {kind}"))
            checkpoint = self.checkpoint
            args = self.items(packed, counts=True)
            checkpoint[len(stack) + 1] = tuple(args)  # they can be taken once
        if stack[-1] is NULL:
            stack.pop()
        self.push(frame, self.call(function, args, kwargs))

    def _lazily(self, container: Any, key: Any, value: Any) -> Any:
        """An element of a container of the outside that nobody has looked at."""
        source = self.outside.element_source(container, key, value)
        return value if source is None else Untouched(source, value)

    def MAKE_FUNCTION(self, frame: Frame, instruction: Instruction) -> None:
        stack = frame.stack
        code = stack.pop()
        flags = instruction.arg
        closure = stack.pop() if flags & 8 else None
        annotations = stack.pop() if flags & 4 else None
        keyword_defaults = stack.pop() if flags & 2 else None
        defaults = stack.pop() if flags & 1 else None
        function = FunctionType(code, frame.globals, code.co_name, defaults, closure)
        function.__kwdefaults__ = keyword_defaults
        if annotations is not None:
            pairs = iter(annotations)
            function.__annotations__ = (
                dict(zip(pairs, pairs, strict=True)) if type(annotations) is tuple else annotations
            )
        self.made[id(function)] = function
        stack.append(function)

    def RETURN_VALUE(self, frame: Frame, instruction: Instruction) -> Any:
        value = frame.stack.pop()
        self.frames.pop()
        if frame.generator is not None:
            frame.generator.frame = None
            frame.generator.running = False
            return self.returned(frame, self.outside.settle(value), ended=True)
        if frame.outcome != PUSH and type(value) is Untouched:
            value = self.outside.settle(value)
        return self.returned(frame, value)

    # -- generators

    def RETURN_GENERATOR(self, frame: Frame, instruction: Instruction) -> Any:
        self.frames.pop()
        for name, value in frame.locals.items():
            frame.locals[name] = self.outside.settle(value)
        generator = Generator(frame, self.to_close.append)
        self.generators.add(generator)
        return self.returned(frame, generator)

    def YIELD_VALUE(self, frame: Frame, instruction: Instruction) -> Any:
        value = self.outside.settle(frame.stack.pop())
        self.frames.pop()
        if frame.generator is not None:
            frame.generator.running = False
            frame.generator = None  # or they would keep each other alive
        return self.returned(frame, value)

    def GET_YIELD_FROM_ITER(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        if type(value) is Generator or is_a(value, types.GeneratorType):
            frame.stack.append(value)
        else:
            self.push(frame, self.iterate(value))

    def SEND(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        iterator = frame.stack[-1]
        if type(iterator) is Generator:
            if iterator.frame is None and iterator.native is None:
                frame.stack[-1] = None
                jump(frame)
                return
            if iterator.native is not None:
                raise Break("yield from a generator that goes on natively")
            self.resume(iterator, SEND, value)
            return
        if value is not None:
            raise Break("a value is sent to what is no generator")
        try:
            result = self.next_or_stop(iterator)
        except UserError as raised:
            if not isinstance(raised.error, StopIteration):
                raise
            stopped = raised.error.value
        else:
            frame.stack.append(result)
            return
        frame.stack[-1] = stopped
        jump(frame)

    def next_or_stop(self, iterator: Any) -> Any:
        result = self.next_of(iterator) if type(iterator) in ITERATORS else self._next(iterator)
        if result is PUSHED:
            raise Break("yield from an iterator of the user's")
        return self.raises(StopIteration()) if result is EXHAUSTED else result

    # -- iterating

    def GET_ITER(self, frame: Frame, instruction: Instruction) -> None:
        self.push(frame, self.iterate(frame.stack.pop()))

    def FOR_ITER(self, frame: Frame, instruction: Instruction) -> None:
        try:
            value = self.next_pushed(frame.stack[-1])
        except UserError as raised:
            if not isinstance(raised.error, StopIteration):
                raise
            value = EXHAUSTED  # `__next__` of the user's, or a function that `map` calls, says so
        if value is EXHAUSTED:
            frame.stack.pop()
            jump(frame)
        else:
            self.push(frame, value)

    def UNPACK_SEQUENCE(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        wanted = instruction.arg
        if type(value) is tuple or type(value) is list or type(value) is torch.Size:
            self.outside.shallow(value)
            found = list(value)
        elif is_a(value, torch.Tensor):
            found = list(self.unbound(value))
        else:
            self._must_be_unpacked(value)
            iterator = self.iterate_now(value)
            found = []
            while len(found) <= wanted and (each := self.next_of(iterator)) is not EXHAUSTED:
                found.append(each)
        if len(found) != wanted:
            few = f"not enough values to unpack (expected {wanted}, got {len(found)})"
            self.raises(ValueError(few if len(found) < wanted else f"too many values to unpack (expected {wanted})"))
        frame.stack += reversed(found)

    def _must_be_unpacked(self, value: Any) -> None:
        if all(lookup(type(value), name) is ABSENT for name in ("__iter__", "__getitem__")):
            self.raises(TypeError(f"cannot unpack non-iterable {type_of(value).__name__} object"))

    def UNPACK_EX(self, frame: Frame, instruction: Instruction) -> None:
        self._must_be_unpacked(frame.stack[-1])
        found = self.items(frame.stack.pop())
        before, after = instruction.arg & 255, instruction.arg >> 8
        if len(found) < before + after:
            self.raises(
                ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(found)})")
            )
        end = len(found) - after
        frame.stack += reversed([*found[:before], found[before:end], *found[end:]])

    # -- jumps

    def JUMP_FORWARD(self, frame: Frame, instruction: Instruction) -> None:
        jump(frame)

    JUMP_BACKWARD = JUMP_BACKWARD_NO_INTERRUPT = JUMP_FORWARD

    def truth(self, value: Any) -> bool:
        """What `bool` says. Waits for `__bool__`."""
        kind = type(value)
        if kind is bool or value is None:
            return bool(value)
        if is_a(value, torch.Tensor):
            raise Break("a branch on the value of a tensor", torch_calls.advice_for("__bool__"))
        if kind in SIMPLE or kind is Symbolic:
            return bool(value)
        for name in ("__bool__", "__len__"):
            found = lookup(kind, name)
            if is_python(found):
                self.outside.class_attribute(kind, name, found)
                answer = self.call_now(found, value)
                return bool(self.look(bool, Sized(answer) if name == "__len__" else Truthful(answer)))
            if found is not ABSENT:
                break
        if kind in VIEWS:
            self.view(value)
        else:
            self.outside.length(value)
        answer = bool(self.look(bool, value))
        if found is not ABSENT:
            self.outside.truth(value, answer)
        return answer

    def _jump_if(self, frame: Frame, wanted: bool) -> None:
        value = frame.stack.pop()
        if self.truth(value) is wanted:
            jump(frame)

    def POP_JUMP_FORWARD_IF_FALSE(self, frame: Frame, instruction: Instruction) -> None:
        self._jump_if(frame, False)

    def POP_JUMP_FORWARD_IF_TRUE(self, frame: Frame, instruction: Instruction) -> None:
        self._jump_if(frame, True)

    POP_JUMP_BACKWARD_IF_FALSE = POP_JUMP_FORWARD_IF_FALSE
    POP_JUMP_BACKWARD_IF_TRUE = POP_JUMP_FORWARD_IF_TRUE

    def POP_JUMP_FORWARD_IF_NONE(self, frame: Frame, instruction: Instruction) -> None:
        if frame.stack.pop() is None:
            jump(frame)

    def POP_JUMP_FORWARD_IF_NOT_NONE(self, frame: Frame, instruction: Instruction) -> None:
        if frame.stack.pop() is not None:
            jump(frame)

    POP_JUMP_BACKWARD_IF_NONE = POP_JUMP_FORWARD_IF_NONE
    POP_JUMP_BACKWARD_IF_NOT_NONE = POP_JUMP_FORWARD_IF_NOT_NONE

    def JUMP_IF_FALSE_OR_POP(self, frame: Frame, instruction: Instruction) -> None:
        if self.truth(frame.stack[-1]):
            frame.stack.pop()
        else:
            jump(frame)

    def JUMP_IF_TRUE_OR_POP(self, frame: Frame, instruction: Instruction) -> None:
        if self.truth(frame.stack[-1]):
            jump(frame)
        else:
            frame.stack.pop()

    def UNARY_NOT(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(not self.truth(frame.stack.pop()))

    # -- containers

    def _taken(self, frame: Frame, count: int) -> list[Any]:
        if not count:
            return []
        found = frame.stack[-count:]
        del frame.stack[-count:]
        return found

    def _built(self, frame: Frame, held: list[Any], make: Callable[[list[Any]], Any]) -> None:
        """Makes a container. What it holds is looked at, unless the container goes straight to the user."""
        returned = frame.instructions[frame.place].name == "RETURN_VALUE" and frame.generator is None
        if not returned or len(self.frames) != 2 or self.bases:
            frame.stack.append(make(self._settled(held)))
            return
        made = make([plain(each) for each in held])
        self.handed_on = (made, held)
        frame.stack.append(made)

    def BUILD_TUPLE(self, frame: Frame, instruction: Instruction) -> None:
        self._built(frame, self._taken(frame, instruction.arg), tuple)

    def BUILD_LIST(self, frame: Frame, instruction: Instruction) -> None:
        self._built(frame, self._taken(frame, instruction.arg), list)

    def BUILD_SET(self, frame: Frame, instruction: Instruction) -> None:
        found = self._taken(frame, instruction.arg)
        self._hashable(found)
        frame.stack.append(self.look(set, [made_plain(each) for each in found]))

    def _hashable(self, values: Sequence[Any]) -> None:
        for each in values:
            if not self._is_plain_key(each):
                raise Break(f"the hash of a {type(each).__qualname__} is its own")

    def BUILD_MAP(self, frame: Frame, instruction: Instruction) -> None:
        found = self._taken(frame, 2 * instruction.arg)
        keys = [made_plain(each) for each in found[::2]]
        self._hashable(keys)
        frame.stack.append(self.look(lambda: dict(zip(keys, found[1::2], strict=True))))

    def BUILD_CONST_KEY_MAP(self, frame: Frame, instruction: Instruction) -> None:
        keys = frame.stack.pop()
        self._built(frame, self._taken(frame, instruction.arg), lambda held: dict(zip(keys, held, strict=True)))

    def BUILD_STRING(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append("".join(self._taken(frame, instruction.arg)))

    def BUILD_SLICE(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(slice(*self._taken(frame, instruction.arg)))

    def LIST_APPEND(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        frame.stack[-instruction.arg].append(value)

    def SET_ADD(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        self._hashable([value])
        self.native(frame.stack[-instruction.arg].add, made_plain(value))

    def MAP_ADD(self, frame: Frame, instruction: Instruction) -> None:
        value, key = frame.stack.pop(), frame.stack.pop()
        self._hashable([key])
        self.native(operator.setitem, frame.stack[-instruction.arg], made_plain(key), value)

    def LIST_EXTEND(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        if (
            not is_a(value, torch.Tensor)
            and lookup(type(value), "__iter__") is ABSENT
            and lookup(type(value), "__getitem__") is ABSENT
        ):
            self.raises(TypeError(f"Value after * must be an iterable, not {type(value).__name__}"))
        target = frame.stack[-instruction.arg]
        self.one_by_one(target.extend, target.append, value, counts=True)

    def SET_UPDATE(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        target = frame.stack[-instruction.arg]
        if is_a(value, (list, tuple, set, frozenset, dict)):
            self._hashable(list(value))
        self.one_by_one(target.update, target.add, value, counts=False)

    def LIST_TO_TUPLE(self, frame: Frame, instruction: Instruction) -> None:
        self.outside.shallow(frame.stack[-1])
        frame.stack[-1] = tuple(frame.stack[-1])

    def DICT_UPDATE(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        if not is_a(value, dict):
            if not is_python(lookup(type(value), "keys")):
                raise Break(f"** of a {type(value).__qualname__}")
            value = self._dict(value)
        self.outside.shallow(value)
        self.native(frame.stack[-instruction.arg].update, value)

    def DICT_MERGE(self, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack[-1]
        target = frame.stack[-1 - instruction.arg]
        if not is_a(value, dict):
            raise Break(f"** of a {type(value).__qualname__}")
        twice = next((key for key in value if key in target), None)
        if twice is not None:
            self.outside.shallow(value)
            function = in_messages(plain(frame.stack[-3 - instruction.arg]))
            self.raises(TypeError(f"{function} got multiple values for keyword argument {twice!r}"))
        if any(type(key) is not str for key in value):
            raise Break("a keyword is no string")
        self.DICT_UPDATE(frame, instruction)

    # -- text

    def FORMAT_VALUE(self, frame: Frame, instruction: Instruction) -> None:
        flags = instruction.arg
        spec = frame.stack.pop() if flags & 4 else ""
        value = frame.stack.pop()
        conversion = flags & 3
        if conversion:
            value = self.call_now((str, str, repr, ascii)[conversion], value)
        if is_a(value, torch.Tensor):
            raise Break("the text of a tensor", "print it outside, or print its shape")
        found = self._method(value, "__format__")
        if is_python(found):
            answer = self.call_now(found, value, spec)
            frame.stack.append(self.look(format, answering("__format__", answer)))
        elif found is object.__format__ and not spec and not is_constant(value):
            frame.stack.append(self.call_now(str, value))
        else:
            self._must_be_spelled(value)
            frame.stack.append(self.look(format, self._for_native(value), spec))

    # -- imports and classes

    def IMPORT_NAME(self, frame: Frame, instruction: Instruction) -> None:
        names, level = frame.stack.pop(), frame.stack.pop()
        name = instruction.value
        package = frame.globals.get("__package__") or ""
        full = name
        if level:
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            full = f"{base}.{name}" if name else base
        found = sys.modules.get(full)
        if found is None or self._imports_more(found, names):
            raise Break(f"importing {full}", "import at the top of the file")
        top = sys.modules.get(full if names else full.partition(".")[0] if not level else full)
        if top is None:
            raise Break(f"importing {full}", "import at the top of the file")
        guards = self.outside.guards
        if self.outside.once("import", full):
            modules = guards.constant(sys.modules)
            guards.check(f"{modules}.get({full!r}) is {guards.constant(found)}", f"the module {full} is the same")
        frame.stack.append(top)

    def _imports_more(self, module: Any, names: Any) -> bool:
        return any(name != "*" and not hasattr(module, name) for name in names or ())

    def IMPORT_FROM(self, frame: Frame, instruction: Instruction) -> None:
        if not hasattr(frame.stack[-1], instruction.value):
            raise Break(f"importing {instruction.value}, which is not there")
        self.push(frame, self.load_attr(frame.stack[-1], instruction.value))

    def LOAD_ASSERTION_ERROR(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(AssertionError)

    def LOAD_BUILD_CLASS(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(builtins.__build_class__)

    # -- patterns

    def GET_LEN(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(self.call_now(len, frame.stack[-1]))

    def MATCH_MAPPING(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(bool(type(frame.stack[-1]).__flags__ & (1 << 6)))

    def MATCH_SEQUENCE(self, frame: Frame, instruction: Instruction) -> None:
        frame.stack.append(bool(type(frame.stack[-1]).__flags__ & (1 << 5)))

    def MATCH_KEYS(self, frame: Frame, instruction: Instruction) -> None:
        keys, subject = frame.stack[-1], frame.stack[-2]
        if type(subject) is not dict:
            raise Break(f"matching keys of a {type(subject).__qualname__}")
        for key in keys:
            self.outside.key(subject, key)
        there = all(key in subject for key in keys)
        frame.stack.append(tuple(subject[key] for key in keys) if there else None)

    def MATCH_CLASS(self, frame: Frame, instruction: Instruction) -> None:
        names, kind, subject = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
        if not self._isinstance(subject, kind):
            frame.stack.append(None)
            return
        found = []
        count = instruction.arg
        if count:
            try:
                positional = self.attr_now(kind, "__match_args__")
            except UserError as raised:
                if not is_a(raised.error, AttributeError):
                    raise
                positional = None
            if positional is None:
                if (
                    kind not in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
                    or count != 1
                ):
                    self.raises(TypeError(f"{kind.__name__}() accepts 0 positional sub-patterns ({count} given)"))
                found.append(subject)
                count = 0
            names = (*(positional or ())[:count], *names)
            if positional is not None and len(positional) < count:
                plural = "" if len(positional) == 1 else "s"
                self.raises(
                    TypeError(
                        f"{kind.__name__}() accepts {len(positional)} positional sub-pattern{plural} ({count} given)"
                    )
                )
        for name in names:
            try:
                found.append(self.attr_now(subject, name))
            except UserError as raised:
                if not is_a(raised.error, AttributeError):
                    raise
                frame.stack.append(None)
                return
        frame.stack.append(tuple(found))

    # -- with

    def BEFORE_WITH(self, frame: Frame, instruction: Instruction) -> None:
        manager = frame.stack.pop()
        kind = type(manager)
        enter, leave = lookup(kind, "__enter__"), lookup(kind, "__exit__")
        for name, found in (("__enter__", enter), ("__exit__", leave)):
            if found is ABSENT:
                extra = " (missed __exit__ method)" if name == "__exit__" else ""
                self.raises(TypeError(f"'{kind.__name__}' object does not support the context manager protocol{extra}"))
            if not is_python(found):
                raise Break(f"with a {kind.__module__}.{kind.__qualname__}")
            self.outside.class_attribute(kind, name, found)
        frame.stack.append(MethodType(leave, manager))
        self.push(frame, self.call(enter, [manager], {}))

    def WITH_EXCEPT_START(self, frame: Frame, instruction: Instruction) -> None:
        error, leave = frame.stack[-1], frame.stack[-4]
        self.push(frame, self.call(leave, [type(error), error, error.__traceback__], {}))

    # -- exceptions

    def PUSH_EXC_INFO(self, frame: Frame, instruction: Instruction) -> None:
        error = frame.stack.pop()
        frame.stack += [Handled(error), error]

    def POP_EXCEPT(self, frame: Frame, instruction: Instruction) -> None:
        over = frame.stack.pop()
        if over in frame.stack:  # a handler that is left by another exception pops a copy
            frame.stack[:] = [None if each is over else each for each in frame.stack]

    def CHECK_EXC_MATCH(self, frame: Frame, instruction: Instruction) -> None:
        kinds = frame.stack.pop()
        for each in kinds if is_a(kinds, tuple) else (kinds,):
            if not (is_a(each, type) and issubclass(each, BaseException)):
                self.raises(TypeError("catching classes that do not inherit from BaseException is not allowed"))
        frame.stack.append(_is_of(frame.stack[-1], kinds))

    def CHECK_EG_MATCH(self, frame: Frame, instruction: Instruction) -> None:
        kinds, error = frame.stack.pop(), frame.stack.pop()
        rest: Any
        if _is_of(error, kinds):
            match = error if is_a(error, GROUPS[0]) else GROUPS[1]("", (error,))
            frame.stack += [None, match]
            frame.stack[-1] = match
            self._now_handled(frame, match)
            return
        if is_a(error, GROUPS[0]):
            match, rest = error.split(kinds)
            frame.stack += [rest, match]
            if match is not None:
                self._now_handled(frame, match)
            return
        frame.stack += [error, None]

    def _now_handled(self, frame: Frame, error: BaseException) -> None:
        for number in range(len(frame.stack) - 1, -1, -1):
            if type(frame.stack[number]) is Handled:
                frame.stack[number] = Handled(error)
                return

    def PREP_RERAISE_STAR(self, frame: Frame, instruction: Instruction) -> None:
        raise Break("exceptions of a group are raised again", leave=True)

    def RERAISE(self, frame: Frame, instruction: Instruction) -> None:
        raise UserError(frame.stack.pop())

    def RAISE_VARARGS(self, frame: Frame, instruction: Instruction) -> None:
        count = instruction.arg
        cause = frame.stack.pop() if count == 2 else None
        if count == 0:
            handled = handled_now(self.frames)
            if handled is None:
                raise Break("what is handled outside of the call is raised again", leave=True)
            raise UserError(handled)
        error = frame.stack.pop()
        if is_a(error, type) and issubclass(error, BaseException):
            kind, error = error, self.call_now(error)
            if not is_a(error, BaseException):
                self.raises(
                    TypeError(
                        f"calling {kind!r} should have returned an instance of BaseException, not {type(error)!r}"
                    )
                )
        if not is_a(error, BaseException):
            self.raises(TypeError("exceptions must derive from BaseException"))
        if count == 2:
            if isinstance(cause, type) and issubclass(cause, BaseException):
                cause = self.call_now(cause)
            if cause is not None and not is_a(cause, BaseException):
                self.raises(TypeError("exception causes must derive from BaseException"))
            self.outside.writes(error)
            error.__cause__ = cause
        set_context(error, handled_now(self.frames))
        raise UserError(error)


def _is_of(error: BaseException, kinds: Any) -> bool:
    """Whether `except kinds` handles an exception: whom a class inherits from counts, and nothing else that it says."""
    order = type(error).__mro__
    return any(each is kind for kind in (kinds if is_a(kinds, tuple) else (kinds,)) for each in order)

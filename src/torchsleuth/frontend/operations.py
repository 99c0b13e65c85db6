"""How each instruction that can break a graph is run natively, between two graphs.

`OPERATIONS[name](frames, instruction)` is an `Operation`: so many operands off the stack, a function that gets them,
and what it returns onto the stack; a `Jump`, if the instruction jumps.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Final

from torchsleuth.frontend.bytecode import Instruction
from torchsleuth.frontend.frames import NULL, Frame, Untouched
from torchsleuth.frontend.iterating import EXHAUSTED
from torchsleuth.frontend.moving import Jump, Operation, called_from

BINARY: Final = (
    "add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift", "sub", "truediv", "xor",
)  # fmt: skip
BINARY_FUNCTIONS: Final = tuple(getattr(operator, name) for name in BINARY) + tuple(
    getattr(operator, "i" + name.rstrip("_")) for name in BINARY
)
Maker = Callable[[Sequence[Frame], Instruction], Operation]
COMPARE: Final = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


def _call(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    names = frames[-1].keywords
    count = len(names)
    call = called_from(frames)

    def run(function: Any, *args: Any) -> tuple[Any, ...]:
        if not count:
            return (call(function, args, {}),)
        return (call(function, args[:-count], dict(zip(names, args[-count:], strict=True))),)

    return Operation(instruction.arg + 2, run)


def _call_ex(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    call = called_from(frames)
    if instruction.arg & 1:
        return Operation(4, lambda function, args, kwargs: (call(function, args, kwargs),))
    return Operation(3, lambda function, args: (call(function, args, {}),))


def _pop_jump(wanted: bool) -> Maker:
    def run(value: Any) -> Sequence[Any]:
        return Jump() if bool(value) is wanted else ()

    operation = Operation(1, run)
    return lambda frames, instruction: operation


def _jump_or_pop(wanted: bool) -> Maker:
    def run(value: Any) -> Sequence[Any]:
        return Jump((value,)) if bool(value) is wanted else ()

    operation = Operation(1, run)
    return lambda frames, instruction: operation


def _for_iter(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    return _FOR_ITER


def _next_or_jump(iterator: Any) -> Sequence[Any]:
    value = next(iterator, EXHAUSTED)
    return Jump() if value is EXHAUSTED else (iterator, value)


_FOR_ITER: Final = Operation(1, _next_or_jump)


def _send_or_jump(iterator: Any, value: Any) -> Sequence[Any]:
    try:
        result = next(iterator) if value is None else iterator.send(value)
    except StopIteration as stop:
        return Jump((stop.value,))
    return (iterator, result)


def _with(manager: Any) -> Sequence[Any]:
    kind = type(manager)
    enter, leave = kind.__enter__, kind.__exit__
    return (MethodType(leave, manager), enter(manager))


def _simple(operands: int, function: Callable[..., Any]) -> Maker:
    """An instruction that pushes one value."""
    operation = Operation(operands, lambda *values: (function(*values),))
    return lambda frames, instruction: operation


def _named(operands: int, function: Callable[..., Sequence[Any]]) -> Maker:
    """An instruction with a name: the function gets it first."""
    return lambda frames, instruction: Operation(operands, functools.partial(function, instruction.value))


def _load_attr(name: str, owner: Any) -> Sequence[Any]:
    return (getattr(owner, name),)


def _load_method(name: str, owner: Any) -> Sequence[Any]:
    return (NULL, getattr(owner, name))


def _store_attr(name: str, value: Any, owner: Any) -> Sequence[Any]:
    setattr(owner, name, value)
    return ()


def _delete_attr(name: str, owner: Any) -> Sequence[Any]:
    delattr(owner, name)
    return ()


def _store_subscr(value: Any, owner: Any, index: Any) -> Sequence[Any]:
    owner[index] = value
    return ()


def _delete_subscr(owner: Any, index: Any) -> Sequence[Any]:
    del owner[index]
    return ()


def _format(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    convert = (None, str, repr, ascii)[instruction.arg & 3]

    def run(value: Any, spec: str = "") -> Sequence[Any]:
        return (format(value if convert is None else convert(value), spec),)

    return Operation(2 if instruction.arg & 4 else 1, run)


def _unpack(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    wanted = instruction.arg

    def run(value: Any) -> Sequence[Any]:
        found = []
        for each in value:
            found.append(each)
            if len(found) > wanted:
                raise ValueError(f"too many values to unpack (expected {wanted})")
        if len(found) < wanted:
            raise ValueError(f"not enough values to unpack (expected {wanted}, got {len(found)})")
        return tuple(reversed(found))

    return Operation(1, run)


def _unpack_ex(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    before, after = instruction.arg & 255, instruction.arg >> 8

    def run(value: Any) -> Sequence[Any]:
        found = list(value)
        if len(found) < before + after:
            raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(found)})")
        end = len(found) - after
        return tuple(reversed([*found[:before], found[before:end], *found[end:]]))

    return Operation(1, run)


def _import(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    namespace = frames[-1].globals

    def run(level: int, names: Any) -> Sequence[Any]:
        return (__import__(instruction.value, namespace, None, names, level),)

    return Operation(2, run)


def _import_from(name: str, module: Any) -> Sequence[Any]:
    return (module, import_from(module, name))


def import_from(module: Any, name: str) -> Any:
    """What `from module import name` gives."""
    try:
        return getattr(module, name)
    except AttributeError:
        called = getattr(module, "__name__", None)
    found = sys.modules.get(f"{called}.{name}")
    if found is not None:
        return found
    file = getattr(module, "__file__", None)
    where = file if isinstance(file, str) else "unknown location"
    raise ImportError(f"cannot import name {name!r} from {called!r} ({where})", name=called, path=file)


def _into_container(method: str) -> Maker:
    def make(frames: Sequence[Frame], instruction: Instruction) -> Operation:
        def run(container: Any, *rest: Any) -> Sequence[Any]:
            *between, value = rest
            getattr(container, method)(value)
            return (container, *between)

        return Operation(instruction.arg + 1, run)

    return make


def _map_add(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    def run(container: Any, *rest: Any) -> Sequence[Any]:
        *between, key, value = rest
        container[key] = value
        return (container, *between)

    return Operation(instruction.arg + 2, run)


def _merge(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    def run(function: Any, args: Any, container: Any, *rest: Any) -> Sequence[Any]:
        *between, value = rest
        wrong = _merge_keywords(container, value)
        if wrong:
            raise TypeError(f"{in_messages(function)} {wrong}")
        if any(type(key) is not str for key in container):
            raise TypeError("keywords must be strings")
        return (function, args, container, *between)

    return Operation(instruction.arg + 3, run)


def _merge_keywords(container: Any, value: Any) -> str | None:
    """Puts what a mapping holds into the keywords of a call. What is wrong, in the words of Python."""
    try:
        for key in list(value.keys()):
            if key in container:
                return f"got multiple values for keyword argument {key!r}"
            container[key] = value[key]
    except AttributeError:
        return f"argument after ** must be a mapping, not {type(value).__name__}"
    return None


def in_messages(function: Any) -> str:
    """What Python calls a function whose arguments are wrong."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def _build_map(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    return Operation(2 * instruction.arg, lambda *values: (dict(zip(values[::2], values[1::2], strict=True)),))


def _contains(frames: Sequence[Frame], instruction: Instruction) -> Operation:
    negate = bool(instruction.arg)
    return Operation(2, lambda value, container: ((value in container) ^ negate,))


def looks_at_frame(function: Any, args: Sequence[Any]) -> bool:
    """Whether a function finds out, or may find out, about the frame that calls it: only a real one will do."""
    while type(function) is functools.partial:
        function, args = function.func, (*function.args, *args)
    if any(function is each for each in _LOOK_WITHOUT_NAMESPACE):
        return len(args) < 2 or args[1] is None or type(args[1]) is Untouched
    if any(function is each for each in _LOOK_WITHOUT_ARGUMENTS):
        return not args
    return any(function is each for each in _LOOK_AT_FRAMES)


_LOOK_AT_FRAMES: Final = (locals, globals, sys._getframe, inspect.currentframe, inspect.stack, sys.exc_info)
_LOOK_WITHOUT_ARGUMENTS: Final = (super, vars, dir)
_LOOK_WITHOUT_NAMESPACE: Final = (eval, exec)

OPERATIONS: Final[dict[str, Maker]] = {
    "CALL": _call,
    "CALL_FUNCTION_EX": _call_ex,
    "POP_JUMP_FORWARD_IF_FALSE": _pop_jump(False),
    "POP_JUMP_BACKWARD_IF_FALSE": _pop_jump(False),
    "POP_JUMP_FORWARD_IF_TRUE": _pop_jump(True),
    "POP_JUMP_BACKWARD_IF_TRUE": _pop_jump(True),
    "JUMP_IF_FALSE_OR_POP": _jump_or_pop(False),
    "JUMP_IF_TRUE_OR_POP": _jump_or_pop(True),
    "FOR_ITER": _for_iter,
    "SEND": lambda frames, instruction: Operation(2, _send_or_jump),
    "BEFORE_WITH": lambda frames, instruction: Operation(1, _with),
    "GET_ITER": _simple(1, iter),
    "GET_YIELD_FROM_ITER": _simple(1, iter),
    "UNARY_NOT": _simple(1, operator.not_),
    "UNARY_NEGATIVE": _simple(1, operator.neg),
    "UNARY_POSITIVE": _simple(1, operator.pos),
    "UNARY_INVERT": _simple(1, operator.invert),
    "BINARY_SUBSCR": _simple(2, operator.getitem),
    "BINARY_OP": lambda frames, instruction: Operation(2, lambda a, b: (BINARY_FUNCTIONS[instruction.arg](a, b),)),
    "COMPARE_OP": lambda frames, instruction: Operation(
        2, lambda a, b: (getattr(operator, COMPARE[instruction.value])(a, b),)
    ),
    "CONTAINS_OP": _contains,
    "LOAD_ATTR": _named(1, _load_attr),
    "LOAD_METHOD": _named(1, _load_method),
    "STORE_ATTR": _named(2, _store_attr),
    "DELETE_ATTR": _named(1, _delete_attr),
    "STORE_SUBSCR": lambda frames, instruction: Operation(3, _store_subscr),
    "DELETE_SUBSCR": lambda frames, instruction: Operation(2, _delete_subscr),
    "FORMAT_VALUE": _format,
    "UNPACK_SEQUENCE": _unpack,
    "UNPACK_EX": _unpack_ex,
    "IMPORT_NAME": _import,
    "IMPORT_FROM": _named(1, _import_from),
    "LIST_EXTEND": _into_container("extend"),
    "SET_UPDATE": _into_container("update"),
    "DICT_UPDATE": _into_container("update"),
    "DICT_MERGE": _merge,
    "SET_ADD": _into_container("add"),
    "MAP_ADD": _map_add,
    "BUILD_SET": lambda frames, instruction: Operation(instruction.arg, lambda *values: (set(values),)),
    "BUILD_MAP": _build_map,
    "GET_LEN": lambda frames, instruction: Operation(1, lambda value: (value, len(value))),
}

"""Which operator a failure is about, and on which line of the user's program it stands.

While the compiler works, the node at hand is a local variable of the functions that were called: the traceback still
has them, and the innermost is the best witness. When generated code fails, the code itself tells: Inductor
names its kernels after operators, and writes above calls of others which nodes they come from.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass, replace
from traceback import FrameSummary, walk_tb
from types import FrameType
from typing import Any, Final

import torch
from torch.fx import Node

from torchsleuth.case.failures import chain, links
from torchsleuth.case.schema import Frame
from torchsleuth.case.words.listing import frames
from torchsleuth.outcome import Stage
from torchsleuth.torch_compat import is_op_overload
from torchsleuth.torch_compat.stages import is_generated, origins, phase_of, place

_AT_HAND: Final = ("match", "m", "n", "node", "snode", "fx_node")
_KEPT: Final = ("current_node", "node")
"""Where an object keeps the node that it works on."""
_KNOWN: Final = ("val", "example_value", "stack_trace", "tensor_meta")
"""A node of a program has one of these. One that the compiler made for its own use has none."""
_PASSES: Final = (Stage.PRE_GRAD, Stage.JOINT_GRAPH, Stage.POST_GRAD)
_GENERATED_CODE: Final = (Stage.CPP_COMPILE, Stage.TRITON_COMPILE, Stage.LOAD, Stage.RUN)

_SOURCES: Final = re.compile(r"#.* Source Nodes: \[(?P<nodes>[^\]]*)\], Original ATen: \[(?P<ops>[^\]]*)\]")
_KERNEL: Final = re.compile(r"^\s*(?:cpp|triton_\w{3})_fused_(?P<ops>\w+)_\d+(?:\.run)?(?: = |\()")
_ANOTHER_STEP: Final = re.compile(r"= empty_strided|args\.clear\(\)|, 'input'\)")


@dataclass(frozen=True)
class Guilty:
    """As much as could be found."""

    op: str | None = None
    node: str | None = None
    frame: Frame | None = None
    kernel: str = ""
    """The kernel's own word for its operators, if it has several of them: "addmm_relu"."""


def find(error: BaseException, stage: Stage) -> Guilty:
    """The guilty node of an exception that came from a stage. Keeps nothing of the exception."""
    kernel = ""
    for one in reversed(links(error)):
        guilty = _by_code(one) if stage in _GENERATED_CODE else _by_locals(one, stage)
        if guilty is not None:
            if guilty.op is not None:
                return guilty
            kernel = kernel or guilty.kernel
    return replace(_of_message(error), kernel=kernel)


# ---- nodes in the hands of the compiler ------------------------------------------------------------------


def _by_locals(error: BaseException, stage: Stage) -> Guilty | None:
    inside = _inside(error)
    found = [seen for frame in inside for seen in _seen_in(frame) if _of_program(seen[1], stage)]
    op = next((target_name(frame.f_locals.get("op")) for frame in inside if _decomposes(frame)), None)
    if not found:
        return Guilty(op) if op else None
    # What a pattern is replaced by is traced too: its nodes are not in the graph, those that matched are.
    matched = [node for value, node in found if not isinstance(value, Node)] if stage in _PASSES else []
    node = matched[0] if matched else found[0][1]
    lines = frames(node.meta.get("stack_trace"))
    return Guilty(op or target_name(node.target), node.name, lines[-1] if lines else None)


def _inside(error: BaseException) -> list[FrameType]:
    """The frames inside the compiler, innermost first. Those of the program that called it are left alone."""
    stack = [frame for frame, _ in walk_tb(error.__traceback__)]
    while stack and phase_of(*place(stack[0])) is None:
        stack.pop(0)
    return stack[::-1]


def _seen_in(frame: FrameType) -> list[tuple[Any, Node]]:
    """The nodes that a function works on, each with the object that stands for it."""
    try:
        return [(value, node) for value in _at_hand(frame) for node in origins(value)]
    except Exception:  # noqa: BLE001 - an object in the middle of a failure; the other frames may know more
        return []


def _at_hand(frame: FrameType) -> list[Any]:
    """What a function works on, by the names that such things have."""
    if not any(name in frame.f_code.co_varnames for name in (*_AT_HAND, "self")):
        return []
    held = frame.f_locals
    values = [held[name] for name in _AT_HAND if name in held]
    if "self" in held:
        # Not getattr: some of the compiler's objects make an operator of any name that they are asked for.
        kept = getattr(held["self"], "__dict__", {})
        values += [held["self"], *(kept[name] for name in _KEPT if name in kept)]
    return values


def _decomposes(frame: FrameType) -> bool:
    phase = phase_of(*place(frame))
    return phase is not None and phase.stage is Stage.DECOMPOSITION


def _of_program(node: Node, stage: Stage) -> bool:
    return node.op.startswith("call_") and (stage is Stage.DYNAMO or any(key in node.meta for key in _KNOWN))


def target_name(target: object) -> str | None:
    """What a node calls, as failures name it."""
    if isinstance(target, str):
        return target
    if is_op_overload(target):
        return str(target)
    name = getattr(target, "__name__", None)
    return name if isinstance(name, str) else None


# ---- generated code --------------------------------------------------------------------------------------


def _by_code(error: BaseException) -> Guilty | None:
    """By the innermost line of a generated module, or by the kernel that was being waited for."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if frame.f_code.co_name == "_wait_futures":
            return _of_kernel(f"{frame.f_locals.get('key')}(")
        if is_generated(frame.f_code.co_filename):
            kernel = _of_kernel(linecache.getline(frame.f_code.co_filename, line))
            return kernel if kernel and kernel.op else _of_call(frame, line) or kernel
    return None


def _of_kernel(code: str) -> Guilty | None:
    """A kernel has the names of its operators in its own. One name is an operator, several are a guess."""
    match = _KERNEL.match(code)
    if match is None:
        return None
    return Guilty(f"aten.{match['ops']}") if hasattr(torch.ops.aten, match["ops"]) else Guilty(kernel=match["ops"])


def _of_call(frame: FrameType, line: int) -> Guilty | None:
    """By the comment above a call that is no kernel. Of the nodes that it names, the last is the call, the others led
    to it. Between the call and the line there may be checks of what it returned, but nothing else.
    """
    for number in range(line, frame.f_code.co_firstlineno, -1):
        code = linecache.getline(frame.f_code.co_filename, number)
        match = _SOURCES.search(code)
        if match:
            return Guilty(_last(match["ops"]), _last(match["nodes"]))
        if _ANOTHER_STEP.search(code) or (number < line and _KERNEL.match(code)):
            return None
    return None


def _last(names: str) -> str | None:
    return names.split(", ")[-1].strip() or None


# ---- Dynamo ----------------------------------------------------------------------------------------------


def _of_message(error: BaseException) -> Guilty:
    """What torch's own exceptions say: the operator that is not supported, the line that was being traced."""
    op: str | None = None
    frame: Frame | None = None
    for one in chain(error):
        said = vars(one)
        op = op or (target_name(said.get("func")) if is_op_overload(said.get("func")) else None)
        stack = said.get("real_stack")
        last = stack[-1] if stack else None
        if frame is None and isinstance(last, FrameSummary):
            frame = Frame(last.filename, last.lineno or 0, last.name, last.line or "")
    return Guilty(op, None, frame)

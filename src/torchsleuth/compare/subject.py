"""A program under judgement: it can be run again and again, each time from the same state.

Deep copies would do, but a compiled module that is copied is compiled anew. So the parameters and buffers a
program can reach are saved once, and what a run changed is noted and put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .models import Results, call, clone_inputs, requires_bwd_pass
from .rng import RngState
from .tree import map_tensors, tensors_in


@dataclass(frozen=True)
class Observation:
    """One run of a subject."""

    results: Results
    start: RngState
    end: RngState

    @property
    def drew(self) -> bool:
        """Whether the run drew random numbers from torch's, numpy's or Python's generators."""
        return not self.start.same_as(self.end)


class Subject:
    """A callable with its inputs. Nothing of the caller's is changed once `close` was called (or `with` left)."""

    def __init__(self, program: Callable[..., Any], inputs: Sequence[Any], *, backward: bool = True) -> None:
        self.program = program
        self.inputs = list(inputs)
        self.backward = backward
        self.slots = [slot for module in modules_of(program) for slot in _slots(module)]
        self.saved = {slot.name: slot.tensor.detach().clone() for slot in self.slots}
        self.grads = [(slot.tensor, slot.tensor.grad) for slot in self.slots if slot.tensor.is_leaf]

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put back what running may have changed: parameters, buffers, gradients."""
        self._take_changes()
        for tensor, grad in self.grads:
            tensor.grad = grad

    def run(self, start: RngState, around: AbstractContextManager[Any] | None = None) -> Observation:
        """Run once from `start`, inside the context `around`, forward and (where it applies) backward."""
        for tensor, _ in self.grads:
            tensor.grad = None
        args = clone_inputs(self.inputs)
        start.restore()
        try:
            with around or nullcontext():
                output = call(self.program, args)
                if self.backward and requires_bwd_pass(output):
                    probe_loss(output).backward()
            end = RngState.capture()
            grads = {
                slot.name: torch.zeros_like(slot.tensor) if slot.tensor.grad is None else slot.tensor.grad.detach()
                for slot in self.slots
                if slot.tensor.requires_grad
            }
            results = Results(
                output=map_tensors(_detached, output),
                grads=grads if self.backward else {},
                input_grads=[map_tensors(_grad, value) for value in args] if self.backward else [],
                inputs=[self._written(old, new) for old, new in zip(self.inputs, args, strict=True)],
                buffers=self._take_changes(),
            )
        finally:
            self._take_changes()
        return Observation(results, start, end)

    def _take_changes(self) -> dict[str, torch.Tensor]:
        """What the program can reach and has changed, by name; put back on the way."""
        changed = {}
        with torch.no_grad():
            for slot in self.slots:
                now, saved = slot.current(), self.saved[slot.name]
                if now is slot.tensor and _identical(now, saved):
                    continue
                changed[slot.name] = now.detach().clone()
                slot.tensor.copy_(saved)
                slot.put_back()
        return changed

    def _written(self, old: Any, new: Any) -> Any:
        """The input after the run; the caller's own object where nothing was written (it costs no memory)."""
        before, after = tensors_in(old), tensors_in(new)
        untouched = len(before) == len(after) and all(map(_identical, after, before))
        return map_tensors(_detached, old if untouched else new)


@dataclass(frozen=True)
class _Slot:
    """A parameter or buffer, where it hangs."""

    name: str
    module: torch.nn.Module
    attribute: str
    tensor: torch.Tensor

    def current(self) -> torch.Tensor:
        value = getattr(self.module, self.attribute, None)
        return value if isinstance(value, torch.Tensor) else self.tensor

    def put_back(self) -> None:
        if self.current() is not self.tensor:
            setattr(self.module, self.attribute, self.tensor)


def modules_of(program: Any) -> list[torch.nn.Module]:
    """The modules a program can reach: itself, what its method is bound to, what its closure holds."""
    found: dict[int, torch.nn.Module] = {}
    for value in _reachable(program):
        if isinstance(value, torch.nn.Module):
            found.setdefault(id(value), value)
    return list(found.values())


def _reachable(program: Any, depth: int = 3) -> Iterator[Any]:
    yield program
    if depth == 0 or isinstance(program, torch.nn.Module):
        return
    held = [
        getattr(program, "__self__", None),
        getattr(program, "__wrapped__", None),
        getattr(program, "model", None),
    ]
    if isinstance(program, functools.partial):
        held += [program.func, *program.args, *program.keywords.values()]
    for cell in getattr(program, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue  # an empty cell
    for value in held:
        if isinstance(value, torch.nn.Module) or callable(value):
            yield from _reachable(value, depth - 1)


def _slots(module: torch.nn.Module) -> Iterator[_Slot]:
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        own = (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
        for attribute, tensor in own:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                name = f"{prefix}.{attribute}" if prefix else attribute
                yield _Slot(name.replace("_orig_mod.", ""), owner, attribute, tensor)


def probe_loss(output: Any) -> torch.Tensor:
    """A scalar whose gradient reaches every element with a weight of its own.

    A plain mean is blind to much: the gradient of a softmax's sum is zero, whatever the backward computes.
    """
    total: torch.Tensor | None = None
    for tensor in tensors_in(output):
        if not tensor.requires_grad:
            continue
        parts = tensor.unbind() if tensor.is_nested else [tensor]
        for part in parts:
            flat = (part.to_dense() if part.layout != torch.strided else part).reshape(-1)
            flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
            weights = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).mul_(0.7).cos_()
            term = (flat * weights.to(flat.dtype)).sum() / max(1.0, flat.numel() ** 0.5)
            total = term if total is None else total + term.to(total.dtype)
    assert total is not None  # the caller asked requires_bwd_pass
    return total


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    try:
        if torch.equal(one, other):
            return True
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    except (RuntimeError, NotImplementedError):
        return False


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _grad(tensor: torch.Tensor) -> Any:
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.detach()

"""A program under judgement: it can be run again and again, each time from the same state.

Deep copies would do, but a compiled module that is copied is compiled anew. So the state that a program can reach
is noted once (`reach`), and what a run changed is taken down as part of its results and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .clones import clone_inputs
from .kinds import widen
from .models import Results, call, requires_bwd_pass
from .reach import find_state
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
        self.slots, self.snapshots = find_state(program)
        self.saved = {slot.name: slot.tensor.detach().clone() for slot in self.slots}
        self.grads = [(slot.tensor, slot.tensor.grad) for slot in self.slots if slot.tensor.is_leaf]
        self.strays: dict[str, torch.Tensor] = {}
        """Leaves that got a gradient though nothing was known of them."""

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put back what running may have changed: parameters, buffers, attributes, gradients."""
        self._take_changes()
        for tensor, grad in self.grads:
            tensor.grad = grad

    def align(self, other: Subject) -> None:
        """Make both subjects report the same state: one name for one tensor, and what only one of them reaches."""
        names = {id(slot.tensor): slot.name for slot in other.slots}
        for number, slot in enumerate(self.slots):
            name = names.get(id(slot.tensor), slot.name)
            if name != slot.name and name not in self.saved:
                self.slots[number] = slot.named(name)
                self.saved[name] = self.saved.pop(slot.name)
        for one, two in ((self, other), (other, self)):
            for slot in two.slots:
                if slot.name not in one.saved and all(slot.tensor is not known.tensor for known in one.slots):
                    one.slots.append(slot)
                    one.saved[slot.name] = two.saved[slot.name]
        self.strays = other.strays

    def run(self, start: RngState, around: AbstractContextManager[Any] | None = None) -> Observation:
        """Run once from `start`, inside the context `around`, forward and (where it applies) backward."""
        for slot in self.slots:
            if slot.tensor.is_leaf:
                slot.tensor.grad = None
        args = clone_inputs(self.inputs)
        start.restore()
        stray_grads: dict[str, torch.Tensor] = {}
        try:
            with around or nullcontext():
                output = call(self.program, args)
                if self.backward and requires_bwd_pass(output):
                    loss = probe_loss(output)
                    with self._catching_strays(loss, args, stray_grads):
                        loss.backward()
            end = RngState.capture()
            grads = {
                slot.name: _grad(slot.tensor)
                for slot in self.slots
                if slot.tensor.is_leaf and slot.tensor.requires_grad
            }
            missing = {name: torch.zeros_like(leaf) for name, leaf in self.strays.items() if name not in stray_grads}
            results = Results(
                output=map_tensors(_detached, output),
                grads={**grads, **stray_grads, **missing} if self.backward else {},
                input_grads=[map_tensors(_grad, value) for value in args] if self.backward else [],
                inputs=[self._written(old, new) for old, new in zip(self.inputs, args, strict=True)],
                buffers=self._take_changes(),
            )
        finally:
            self._take_changes()
        return Observation(results, start, end)

    @contextmanager
    def widened(self) -> Iterator[None]:
        """The state in double precision, for a program that is run so but holds its parameters in a closure."""
        state = [*(slot.tensor for slot in self.slots), *self.strays.values()]
        kept = [(tensor, tensor.data) for tensor in state if tensor.is_leaf]
        saved, self.saved = self.saved, {name: widen(value) for name, value in self.saved.items()}
        try:
            for tensor, data in kept:
                tensor.grad, tensor.data = None, widen(data)
            yield
        finally:
            self.saved = saved
            for tensor, data in kept:
                tensor.grad, tensor.data = None, data

    @contextmanager
    def _catching_strays(self, loss: torch.Tensor, args: list[Any], grads: dict[str, torch.Tensor]) -> Iterator[None]:
        """Leaves of the graph that nothing was known of: their gradients go to `grads`, what they had is put back."""
        known = {id(tensor) for tensor in (*tensors_in(args), *(slot.tensor for slot in self.slots))}
        found = [(leaf, leaf.grad) for leaf in _graph_leaves(loss) if id(leaf) not in known]
        names = {id(leaf): name for name, leaf in self.strays.items()}
        try:
            for leaf, _ in found:
                leaf.grad = None
            yield
            for leaf, _ in found:
                name = names.get(id(leaf), f"leaf {len(self.strays)} of the graph")
                grads[name] = _grad(leaf)
                self.strays.setdefault(name, leaf)
        finally:
            for leaf, grad in found:
                leaf.grad = grad

    def _take_changes(self) -> dict[str, torch.Tensor]:
        """What the program can reach and has changed, by name; put back on the way."""
        changed = {}
        with torch.no_grad():
            for slot in self.slots:
                now, saved = slot.current(), self.saved[slot.name]
                if not _identical(now, saved):
                    changed[slot.name] = now.detach().clone()
                if not _identical(slot.tensor, saved):
                    _overwrite(slot.tensor, saved)
        for snapshot in self.snapshots:
            snapshot.put_back()
        return changed

    def _written(self, old: Any, new: Any) -> Any:
        """The input after the run; the caller's own object where nothing was written (it costs no memory)."""
        before, after = tensors_in(old), tensors_in(new)
        untouched = len(before) == len(after) and all(map(_identical, after, before))
        return map_tensors(_detached, old if untouched else new)


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


def _graph_leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """The leaves that a backward from here gives gradients to."""
    found: list[torch.Tensor] = []
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(getattr(node, "variable", None), torch.Tensor):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


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


def _overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.shape == value.shape and tensor.dtype == value.dtype:
        tensor.copy_(value)
    else:
        tensor.data = value.clone()  # it was resized, or swapped for another


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _grad(tensor: torch.Tensor) -> Any:
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.detach()

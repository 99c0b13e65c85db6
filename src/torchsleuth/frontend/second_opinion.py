"""What Dynamo says of a call that we have looked at ourselves, asked so that nothing of the program's is spoiled.

    question = Question.of(call)      before our own run, which may write into the arguments: it has copies of them
    ...                               our own run
    opinion = question.ask()          what Dynamo makes of the same call

Dynamo runs the function for real. It gets copies of the tensors among the arguments. The tensors that the function can
reach otherwise, the parameters and buffers of modules above all, are put back, and so are gradients, attributes of
modules, and random numbers; autograd, which may wait with a backward pass, hears nothing of it, and nobody hears what
is printed. A change that Python code makes to other objects of its own, such as a list that grows or the state of an
optimizer, cannot be taken back: so our own run goes first.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth import torch_compat
from torchsleuth.compare.clones import clone_inputs
from torchsleuth.compare.reach import find_state
from torchsleuth.compare.rng import preserved
from torchsleuth.errors import in_words
from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.scripts import Call

_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_BRANCHING = "Data-dependent branching"
_JUMP = re.compile(r"generic_jump TensorVariable\(")
_HINT = re.compile(r"^\s*Hint: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Objection:
    """A graph break of Dynamo's."""

    reason: str
    """In its own words, which are many."""
    stack: tuple[Place, ...] = ()
    """How it got there, outermost first."""

    @property
    def headline(self) -> str:
        """The first line of it; of a branch on a tensor, which Dynamo words in two ways, the one that can be read."""
        first = next((line.strip() for line in self.reason.splitlines() if line.strip()), "")
        return _BRANCHING if _JUMP.match(first) else first

    @property
    def explanation(self) -> str:
        found = _EXPLANATION.search(self.reason)
        return "" if found is None else found[1].strip()

    @property
    def hints(self) -> tuple[str, ...]:
        return tuple(found.strip() for found in _HINT.findall(self.reason))


@dataclass(frozen=True)
class Opinion:
    """What Dynamo makes of a call."""

    graphs: tuple[int, ...] = ()
    """How many operations each of its graphs has."""
    objections: tuple[Objection, ...] = ()
    failure: str = ""
    """Why it could not be asked, or what it raised."""


def prepare() -> None:
    """Let Dynamo compile something: the first time, it changes `torch.nn.Module`, which guards of ours would notice."""
    with preserved(), _unheard():
        torch_compat.explain(torch.neg, (torch.ones(1),), {})


@dataclass(frozen=True)
class Question:
    """A call with copies of its arguments."""

    call: Call
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    """None if they could not be copied."""
    failure: str = ""

    @classmethod
    def of(cls, call: Call) -> Question:
        try:
            args, kwargs = clone_inputs([call.args, call.kwargs])
        except Exception as error:  # noqa: BLE001 - whatever is among the user's arguments may refuse
            return cls(call, failure=f"its arguments cannot be copied ({in_words(error)})")
        return cls(call, tuple(args), dict(kwargs))

    def ask(self) -> Opinion:
        """What Dynamo makes of the call. What it raises is told, not raised."""
        if self.kwargs is None:
            return Opinion(failure=self.failure)
        call = self.call
        try:
            with preserved(), _unheard(), _put_back(call.fn):
                explained = torch_compat.explain(call.fn, self.args, self.kwargs, dynamic=call.dynamic)
        except Exception as error:  # noqa: BLE001 - its failure is its opinion
            return Opinion(failure=f"it raises {in_words(error)}")
        return Opinion(tuple(operations_in(graph) for graph in explained.graphs), tuple(_told_once(explained.breaks)))


def operations_in(graph: torch.fx.GraphModule) -> int:
    """How many operations a graph has."""
    return sum(node.op.startswith("call_") for node in graph.graph.nodes)


def _told_once(breaks: list[torch_compat.DynamoBreak]) -> Iterator[Objection]:
    """Its breaks, each once. Of one line Dynamo may tell twice: with an explanation, and again when it gives up."""
    seen: set[tuple[Any, ...]] = set()
    explained = {each.stack[-1:] for each in breaks if _EXPLANATION.search(each.reason)}
    for each in breaks:
        objection = Objection(each.reason, tuple(Place(*place) for place in each.stack))
        key = (objection.headline, objection.explanation, each.stack[-1:])
        if key in seen or (not objection.explanation and each.stack[-1:] in explained):
            continue
        seen.add(key)
        yield objection


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What Python code prints, warns of or logs inside is not heard: it has been said once already."""
    before = logging.root.manager.disable
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)


@contextlib.contextmanager
def _put_back(fn: Any) -> Iterator[None]:
    """Afterwards, the tensors and modules that a function can reach are as they were."""
    slots, snapshots = find_state(fn)
    tensors = [slot.tensor for slot in slots]
    contents = [tensor.detach().clone() for tensor in tensors]
    grads = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf]
    with torch_compat.not_counting_writes([tensor for tensor in tensors if not tensor.is_inference()]):
        try:
            for tensor, grad in grads:
                tensor.grad = None if grad is None else grad.detach().clone()
            yield
        finally:
            for snapshot in snapshots:
                snapshot.put_back()
            for tensor, content in zip(tensors, contents, strict=True):
                _overwrite(tensor, content)
            for tensor, grad in grads:
                tensor.grad = grad


def _overwrite(tensor: torch.Tensor, content: torch.Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()):
        if tensor.shape == content.shape and tensor.dtype == content.dtype:
            tensor.data.copy_(content)
        else:
            tensor.data = content

"""Random numbers: saving and restoring every generator, and playing the same numbers again.

Two runs of a random model can be compared only if they drew the same numbers. `RngState` brings all
generators back to one state. That is not enough for an fp64 reference, because `torch.rand` draws other
numbers in fp64 than in fp32; so a `Tape` writes down what eager's random operators returned, and plays it to
the reference run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsleuth import torch_compat


@dataclass(frozen=True)
class RngState:
    """The state of Python's, numpy's and torch's generators at one moment."""

    cpu: torch.Tensor
    accelerators: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any

    @classmethod
    def capture(cls) -> RngState:
        numpy = sys.modules.get("numpy")
        torch_alone = cls.of_torch()
        return cls(
            torch_alone.cpu,
            torch_alone.accelerators,
            python=random.getstate(),
            numpy=numpy.random.get_state() if numpy is not None else None,
        )

    @classmethod
    def of_torch(cls) -> RngState:
        """Torch's generators alone: a graph draws from no others, and it takes a thirtieth of the time."""
        accelerators = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        return cls(torch.get_rng_state(), accelerators, python=None, numpy=None)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.accelerators:
            torch.cuda.set_rng_state_all(list(self.accelerators))
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def same_as(self, other: RngState) -> bool:
        return (
            torch.equal(self.cpu, other.cpu)
            and len(self.accelerators) == len(other.accelerators)
            and all(map(torch.equal, self.accelerators, other.accelerators))
            and self.python == other.python
            and _same_numpy(self.numpy, other.numpy)
        )


@contextmanager
def preserved() -> Iterator[RngState]:
    """Whatever happens inside, the generators are afterwards as they were before."""
    state = RngState.capture()
    try:
        yield state
    finally:
        state.restore()


def reseed(seed: int) -> None:
    """Seed every generator. Call it inside `preserved()`."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def is_random(operator: Any) -> bool:
    """Whether an operator draws from a generator (or may: attention does only with dropout)."""
    return torch_compat.is_op_overload(operator) and (
        torch.Tag.nondeterministic_seeded in torch_compat.op_tags(operator)
        or torch_compat.op_name(operator) in _UNTAGGED
    )


_UNTAGGED = frozenset({"inductor_random", "inductor_randint"})
"""Operators of Inductor's that draw when they are run eagerly, though nothing marks them."""


def random_ops_in(model: Any) -> tuple[str, ...]:
    """Names of the random operators in an FX graph and the graphs inside it; empty for anything else."""
    if not isinstance(model, torch.fx.GraphModule):
        return ()
    names = []
    for module in model.modules():
        if isinstance(module, torch.fx.GraphModule):
            names += [str(node.target) for node in module.graph.nodes if _is_random_node(node)]
    return tuple(names)


_RANDOM_FUNCTIONS = frozenset(
    "rand rand_like randn randn_like randint randint_like randperm bernoulli multinomial normal poisson dropout "
    "alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d rrelu gumbel_softmax "
    "fractional_max_pool2d fractional_max_pool3d native_dropout inductor_random inductor_seed inductor_seeds "
    "inductor_randint "
    "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_".split()
)


def _is_random_node(node: torch.fx.Node) -> bool:
    return is_random_call(node.op, node.target)


def is_random_call(op: str, target: Any) -> bool:
    """Whether a node with this `op` and `target` draws from a generator."""
    if op == "call_method":
        return target in _RANDOM_FUNCTIONS
    if op != "call_function":
        return False
    return is_random(target) or torch_compat.op_name(target) in _RANDOM_FUNCTIONS


class TapeMismatch(RuntimeError):
    """A run asked for other random numbers than the tape holds: it took another way than the recording."""


@dataclass(frozen=True)
class Draw:
    """One call of a random operator: its name, what it returned, and the state of the generators before it."""

    operator: str
    value: Any
    before: RngState


@dataclass
class Tape:
    """The calls of random operators in one run, in order."""

    entries: list[Draw] = field(default_factory=list)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(draw.operator for draw in self.entries)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.entries.clear()
        with torch_compat.dispatch_mode(self._record):
            yield

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Random operators inside return what was recorded, in the dtype that is asked of them.

        Raises `TapeMismatch` when they are others than were recorded, more, fewer, or of other shapes.
        """
        remaining = list(reversed(self.entries))

        def play(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not is_random(operator):
                return operator(*args, **kwargs)
            expected = remaining[-1].operator if remaining else "nothing more"
            if expected == str(operator):
                return _replay(operator, remaining.pop(), args, kwargs)
            if _draws_for_sure(operator):
                raise TapeMismatch(f"the run asks for {operator} where the recording has {expected}")
            return operator(*args, **kwargs)

        with torch_compat.dispatch_mode(play):
            yield
        if remaining:
            raise TapeMismatch(f"the run ends where the recording has {remaining[-1].operator}")

    def _record(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_random(operator):
            return operator(*args, **kwargs)
        before = RngState.capture()
        result = operator(*args, **kwargs)
        if _draws_for_sure(operator) or not before.same_as(RngState.capture()):
            kept = result[1] if torch_compat.op_name(operator) == "native_dropout" else result
            self.entries.append(Draw(str(operator), _copy(kept), before))
        return result


def _replay(operator: Any, draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = torch_compat.op_name(operator)
    if name == "native_dropout":
        value, probability = args[0], args[1]
        mask = draw.value
        _check_shape(operator, mask, value)
        scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
        return value * mask * scale if mask.dtype == torch.bool else value * mask, mask.clone()
    draw.before.restore()
    asked = operator(*args, **kwargs)
    if not _draws_only(name):
        # The numbers are mixed with data (gamma, rrelu): the same state of the generator is all that can be shared.
        return asked
    _check_shape(operator, draw.value, asked)
    # In-place and `out=` operators return what they wrote to, so this writes the recorded numbers there.
    return asked.copy_(draw.value)


def _check_shape(operator: Any, recorded: torch.Tensor, asked: torch.Tensor) -> None:
    if recorded.shape != asked.shape:
        shapes = f"{tuple(asked.shape)} where the recording has {tuple(recorded.shape)}"
        raise TapeMismatch(f"the run asks {operator} for the shape {shapes}")


def _draws_for_sure(operator: Any) -> bool:
    """Attention and its like are marked random, but draw only if they are told to drop something."""
    return torch_compat.op_is_mutable(operator) or _draws_only(torch_compat.op_name(operator))


_DRAWS = frozenset(
    "rand randn randint randperm normal bernoulli multinomial poisson binomial rand_like randn_like randint_like "
    "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_ "
    "inductor_seed inductor_seeds inductor_random inductor_randint".split()
)


def _draws_only(name: str) -> bool:
    """Whether what is returned is nothing but random numbers, through which no gradient flows."""
    return name in _DRAWS


def _copy(value: Any) -> Any:
    return torch_compat.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _same_numpy(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return all(bool((a == b).all()) if hasattr(a, "all") else a == b for a, b in zip(one, other, strict=True))

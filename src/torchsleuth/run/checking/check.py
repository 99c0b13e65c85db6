"""Level 4: a compiled function runs on the user's inputs, as it would unwatched, and is held against its graph.

    copies of the inputs, the random state
    compiled, on the real inputs                   → the result, which the user gets
    the graph, on the copies, from the same state  → do outputs and written-to inputs agree?
    both once more, forward and backward           → do the gradients? (after Dynamo; AOT's graphs return theirs)
    `judge`, where they do not                     → is it a bug, or is it noise?

Whatever the check does, the user's program goes on as if it had not been made: generators, gradients and modes are
as `compiled` left them, and an error in the check itself is logged, and means that nothing is known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchsleuth import config, torch_compat
from torchsleuth.compare import (
    Comparison,
    Judgement,
    Results,
    Tolerance,
    clone_inputs,
    judge,
    requires_bwd_pass,
    same,
)
from torchsleuth.compare.comparison import ALLCLOSE
from torchsleuth.compare.reach import find_state
from torchsleuth.compare.rng import RngState, preserved, random_ops_in
from torchsleuth.compare.subject import Subject
from torchsleuth.compare.tree import tensors_in
from torchsleuth.errors import in_words
from torchsleuth.outcome import Symptom
from torchsleuth.run.checking.again import Again, Hidden, Lending, may_be_lent, scratch_inputs
from torchsleuth.run.checking.findings import Finding, by_tolerance, weighed
from torchsleuth.run.checking.reference import surely_draws_nothing, surely_writes_nothing, with_tensors
from torchsleuth.run.observing.marks import is_the_user_s, mark

log = logging.getLogger("torchsleuth.run")


@dataclass(frozen=True)
class Checked:
    """A compiled function's result, and whether it is what the graph computes."""

    result: Any
    """What the compiled function returned."""
    comparison: Comparison
    """By the tolerance alone; truthy if the two sides agree, or could not be compared (then its notes say why)."""
    judgement: Judgement | None = None
    """Bug or noise; made only if the comparison failed."""
    finding: Finding | None = None
    """What is wrong; None if nothing is, or nothing is known."""
    inputs: Sequence[Any] | None = None
    """The inputs as they were before the run, where something is wrong."""
    start: RngState | None = None
    """The generators as they were then."""

    @property
    def agrees(self) -> bool:
        return self.finding is None

    @property
    def unknown(self) -> str | None:
        """Why nothing is known of the result; None if it was compared."""
        return self.comparison.notes[0] if self.comparison.raised is not None else None

    @property
    def symptom(self) -> Symptom | None:
        return self.finding.symptom if self.finding is not None else None

    @property
    def path(self) -> str:
        return self.finding.path if self.finding is not None else ""

    @property
    def words(self) -> str:
        """The finding in words; else why there is none."""
        if self.finding is not None:
            return self.finding.words
        return str(self.comparison if self.judgement is None else self.judgement)


def run_checked(
    compiled: Callable[..., Any],
    reference: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    boxed: bool,
    settings: config.Settings,
) -> Checked:
    """Run `compiled` once on `inputs`, as an unwatched program would, and check its result against `reference`.

    `boxed`: the graph is one of AOT's. Then `compiled` is called with the list itself, which it may empty, it may use
    inputs as scratch memory, and gradients are outputs. Otherwise it is called with `*inputs`, and gradients are
    compared unless the settings say `forward_only`. What `compiled` raises propagates. Nothing else does.
    """
    try:
        check = _Check(compiled, reference, inputs, boxed, settings)
    except Exception as error:
        if is_the_user_s(error):
            raise
        unchecked = _unknown("the inputs could not be copied", error)
        return Checked(compiled(inputs) if boxed else compiled(*inputs), unchecked)
    real = list(inputs) if check.may_write else []
    result = compiled(inputs) if boxed else compiled(*inputs)
    token = config.watch_less(None)  # the user's call may be watched inside; what follows is not it
    try:
        checked = check.check(result, real)
        return checked if checked.agrees else replace(checked, inputs=check.inputs, start=check.start)
    except Exception as error:
        if is_the_user_s(error):
            mark(error)
            raise
        return Checked(result, _unknown("the check failed", error))
    except BaseException as error:
        mark(error)  # what the user interrupts here is not the compiled graph
        raise
    finally:
        config.watch_again(token)


class _ReferenceRaised(Exception):
    """The graph itself raises when run eagerly (the cause), so there is nothing to compare with."""


class _Check:
    """One check: what was copied before the run, and the comparisons after it."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        reference: fx.GraphModule,
        inputs: Sequence[Any],
        boxed: bool,
        settings: config.Settings,
    ) -> None:
        self.compiled = compiled
        self.reference = reference
        self.boxed = boxed
        self.settings = settings
        self.tolerance = Tolerance(tol=settings.tolerance, ignore_non_fp=settings.ignore_non_fp)
        self.may_write = not surely_writes_nothing(reference)
        self.state = find_state(reference)[0] if self.may_write and not boxed else []
        """Tensors that the graph holds and may write to. (AOT's graphs write to inputs only.)"""
        self.lent = frozenset(
            number for number, value in enumerate(inputs) if self.may_write and not boxed and may_be_lent(value)
        )
        """Inputs that an earlier graph computed: their copies are leaves, and those cannot be written to."""
        with torch_compat.plain_torch():
            self.copies = clone_inputs([*inputs, *(slot.tensor for slot in self.state)])
        self.inputs = self.copies[: len(inputs)]
        """As they were before the run; nothing may change these."""
        self.start = RngState.capture()

    def check(self, result: Any, real: list[Any]) -> Checked:
        """Compare `result` (and what became of the real inputs) with what the reference makes of the copies."""
        try:
            expected, written = self._run_reference()
        except _ReferenceRaised as raised:
            return Checked(result, _unknown("the graph raises when it is run eagerly", raised.__cause__))
        held = {slot.name: slot.current() for slot in self.state}
        got = Results(
            result,
            inputs=[real[number] if number in written else None for number in range(len(expected.inputs))],
            buffers={name: held[name] for name in expected.buffers},
        )
        with self._state_untouched():
            if self._has_gradients(expected, result):
                try:
                    expected, got = self._with_gradients(expected, got)
                except Exception as error:  # noqa: BLE001 - then the outputs are all that can be compared
                    if self._compare(expected, got):
                        return Checked(result, _unknown("the gradients cannot be computed on copies", error))
            found = self._compare(expected, got)
            if found:
                return Checked(result, found)
            if not self.settings.fp64 and not random_ops_in(self.reference):
                return Checked(result, found, finding=by_tolerance(found))
            judgement = self._judge(written)
        return Checked(result, found, judgement, weighed(judgement, expected, got, found))

    def _compare(self, expected: Results, got: Results) -> Comparison:
        parts = [(getattr(expected, name), getattr(got, name)) for name in ("output", "inputs", "input_grads")]
        if not expected.buffers and not expected.grads:
            with torch.no_grad():
                close = all(_are_close(*pair, self.tolerance) for pair in parts)
            if close:
                leaves = sum(len(ours) for ours, _ in parts)
                return Comparison(True, rule=ALLCLOSE, leaves=leaves, tolerance=self.tolerance)
        return same(expected, got, tolerance=self.tolerance)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────────

    def _run_reference(self) -> tuple[Results, frozenset[int]]:
        """What the graph computes, and which inputs it writes to."""
        program: Callable[..., Any] = self.reference
        inputs, count = self.inputs, len(self.inputs)
        held: dict[str, torch.Tensor] = {}
        if self.may_write:
            with torch_compat.plain_torch():
                copies = clone_inputs(self.copies)
            inputs = copies[:count]
            held = {slot.name: copied for slot, copied in zip(self.state, copies[count:], strict=True)}
            swaps = {id(slot.tensor): held[slot.name] for slot in self.state}
            program = with_tensors(self.reference, swaps) if swaps else self.reference
            program = Lending(program, self.lent) if self.lent else program
        watched = [*enumerate(inputs), *held.items()] if self.may_write else []
        before = [_times_written(value) for _, value in watched]
        try:
            with self._surroundings(), nullcontext() if surely_draws_nothing(self.reference) else self._from_start():
                output = program(*inputs)
        except Exception as error:
            raise _ReferenceRaised from error
        if not self.may_write:
            return Results(output), frozenset()
        earlier = zip(watched, before, self.copies, strict=True)
        written = frozenset(
            key
            for (key, value), times, copied in earlier
            if _times_written(value) != times or (not self.boxed and not _is_equal(value, copied))
        )
        left = [value if number in written else None for number, value in enumerate(inputs)]
        buffers = {name: value for name, value in held.items() if name in written}
        return Results(output, inputs=left, buffers=buffers), frozenset(range(count)) & written

    def _has_gradients(self, expected: Results, result: Any) -> bool:
        if self.boxed or self.settings.forward_only or not torch.is_grad_enabled():
            return False
        return requires_bwd_pass(expected.output) or requires_bwd_pass(result)

    def _with_gradients(self, expected: Results, got: Results) -> tuple[Results, Results]:
        """Both results with their gradients of a probe loss, which come from two more runs, on copies of the inputs."""
        eager_program, compiled_program = self._programs(frozenset())
        with (
            self._from_start(),
            Subject(eager_program, self.inputs) as eager,
            Subject(compiled_program, self.inputs) as compiled,
        ):
            compiled.align(eager)
            ours, theirs = (subject.run(self.start).results for subject in (eager, compiled))
        return (
            replace(expected, grads=ours.grads, input_grads=ours.input_grads),
            replace(got, grads=theirs.grads, input_grads=theirs.input_grads),
        )

    def _judge(self, written: frozenset[int]) -> Judgement:
        eager, compiled = self._programs(written)
        backward = not self.boxed and not self.settings.forward_only
        with self._surroundings(), self._from_start():
            return judge(eager, compiled, self.inputs, backward=backward)

    def _programs(self, written: frozenset[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both sides as functions of the inputs that can be run again and again."""
        if self.boxed:
            return self.reference, Again(self.compiled, scratch_inputs(self.inputs, written))
        if self.lent:
            return Lending(self.reference, self.lent), Hidden(Lending(self.compiled, self.lent))
        return self.reference, Hidden(self.compiled)

    @contextmanager
    def _from_start(self) -> Iterator[None]:
        """Inside, random numbers come as they came to the compiled run; afterwards they go on from where it ended."""
        with preserved():
            self.start.restore()
            yield

    def _state_untouched(self) -> AbstractContextManager[Any]:
        """Runs inside put back what they write to the graph's own tensors; autograd need not know that they did."""
        counted = [slot.tensor for slot in self.state if not slot.tensor.is_inference()]
        return torch_compat.not_counting_writes(counted) if counted else nullcontext()

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """AOT's graphs compute gradients and casts themselves; others run in the caller's modes."""
        with ExitStack() as stack:
            if self.boxed:
                stack.enter_context(torch.no_grad())
                for device in {"cpu", *(tensor.device.type for tensor in tensors_in(self.inputs))}:
                    stack.enter_context(_no_autocast(device))
            yield


def _are_close(expected: Any, got: Any, tolerance: Tolerance) -> bool:
    """A cheap yes for lists of tensors that agree, as most do. A no decides nothing."""
    if not isinstance(expected, (list, tuple)) or not isinstance(got, (list, tuple)) or len(expected) != len(got):
        return False
    return all(ours is theirs or _is_close(ours, theirs, tolerance) for ours, theirs in zip(expected, got, strict=True))


def _is_close(expected: Any, got: Any, tolerance: Tolerance) -> bool:
    if type(expected) is not torch.Tensor or type(got) is not torch.Tensor:
        return type(expected) is type(got) is int and expected == got
    alike = expected.shape == got.shape and expected.dtype == got.dtype and expected.device == got.device
    if not alike or expected.layout != torch.strided or got.layout != torch.strided or expected.device.type == "meta":
        return False
    try:
        if not expected.is_floating_point() or expected.numel() == 0:
            return torch.equal(expected, got)
        return float(torch.dist(expected, got, float("inf"))) <= tolerance.atol_or_default / 2  # no, where NaN is
    except (RuntimeError, NotImplementedError):
        return False


def _is_equal(value: Any, earlier: Any) -> bool:
    """Whether a tensor still has its values. (Batch normalisation writes to running averages and does not say so.)"""
    if value is earlier or not isinstance(value, torch.Tensor):
        return True
    try:
        return torch.equal(value, earlier)
    except (RuntimeError, NotImplementedError):
        return True  # of a kind that has no equality: what is known of its version counts


def _times_written(value: Any) -> int:
    counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return torch_compat.times_written(value) if counted else 0


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _unknown(what: str, error: BaseException | None) -> Comparison:
    why = f"{what}: {in_words(error)}" if error is not None else what
    log.warning("a result was not checked, because %s", why)
    log.debug("the error was", exc_info=error)
    if error is not None:
        error = error.with_traceback(None)  # its frames hold the inputs
    return Comparison(True, notes=(f"Nothing is known of this result, because {why}.",), raised=error)

"""The repro run, in this process: prepare → compile → run, compared with eager where that is asked for → synchronise.

    outcome = perform(Query(found.case, tensors=found.home))

Whatever the compiler or what it made raises is an outcome. What kills the process is not answered here: that is what
runners are for.
"""

from __future__ import annotations

import dataclasses
import gc
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from torchsleuth import config, torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.script.collectives import process_groups
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.case.stores.examining import blobs_at
from torchsleuth.case.surroundings.state import restored
from torchsleuth.compare.comparison import Tolerance
from torchsleuth.compare.models import DRAWN_DIFFERENTLY, requires_bwd_pass, same_two_models
from torchsleuth.compare.subject import probe_loss
from torchsleuth.compare.tree import tensors_in
from torchsleuth.config import After, Settings
from torchsleuth.errors import NoReference, SleuthError, in_words
from torchsleuth.outcome import Broken, Mismatched, Outcome, OutOfMemory, Passed, Stage, Symptom, Unrunnable
from torchsleuth.run import own_code
from torchsleuth.run.checking.check import run_checked
from torchsleuth.run.checking.isolating import guilty_op, op_at
from torchsleuth.run.checking.reference import reference_of
from torchsleuth.run.compiling import Boxed, Compiled, Compiler
from torchsleuth.run.observing.raising import is_out_of_memory, raised
from torchsleuth.run.query import Progress, Query
from torchsleuth.run.synchronising import accelerators_of, synchroniser
from torchsleuth.run.trusting import needs_trust
from torchsleuth.run.values import record_values

_STARTS_OVER: Final = "torch does not go on with this graph: it would trace the program once more"
_NOT_TRUSTED: Final = "collectives run on one process here; what they compute is not to be trusted"


def no_progress(_stage: Stage, _done: int, _of: int) -> None:
    """For those whom nobody watches."""


def perform(query: Query, progress: Progress = no_progress) -> Outcome:
    """What happens when a query is answered here."""
    began = time.monotonic()
    notes: list[str] = []
    try:
        for earlier in query.history:
            said = _perform(_of_history(query, earlier), no_progress, [])
            notes.append(f"before it, {earlier.origin.graph or 'a graph'}: {said.describe()}")
        outcome = _perform(query, progress, notes)
    except Exception as error:  # noqa: BLE001 - a fault of ours, which says nothing of the compiler
        outcome = Broken(reason=in_words(error), traceback="".join(traceback.format_exception(error)))
    return dataclasses.replace(outcome, seconds=time.monotonic() - began, notes=(*notes, *outcome.notes))


def _of_history(query: Query, earlier: schema.Case) -> Query:
    return Query(earlier, query.tensors, accuracy=False, trust=query.trust)


def _perform(query: Query, progress: Progress, notes: list[str]) -> Outcome:
    case = query.case
    progress(Stage.PREPARE, 0, len(case.inputs))
    reason = None if query.trust else needs_trust(case, query.compiler)
    if reason is not None:
        return Unrunnable(Stage.PREPARE, reason=reason)
    groups = process_groups(case.graph)
    if groups is not None:
        notes.append(_NOT_TRUSTED)
    try:
        with nullcontext() if groups is None else torch_compat.one_process(groups.size, groups.names):
            return _Run(query, prepare(query, progress), progress, notes).run()
    except SleuthError as error:  # of the case: what it lacks, or what cannot be had here
        return Unrunnable(Stage.PREPARE, reason=f"{error.what}: {error.cause}")
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return OutOfMemory(Stage.PREPARE, message=in_words(error))


# ---- preparing -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A graph and what it is called with, as they were recorded."""

    reader: GraphReader
    gm: fx.GraphModule
    inputs: list[Any]


def prepare(query: Query, progress: Progress = no_progress) -> Prepared:
    """The graph, checked, and its inputs. A `SleuthError` says what is wrong with the case, or missing here."""
    case = query.case
    functions = own_code.define(case.code) if query.trust else {}
    blobs = blobs_at(query.tensors) if query.tensors else MemoryBlobs()
    reader = GraphReader(case, blobs, own=functions)
    gm = reader.read()
    try:
        gm.graph.lint()
    except Exception as error:
        raise _illegal("the graph is not legal", in_words(error)) from error
    if case.compiler.after is After.AOT and (names := [name for name, _ in gm.named_parameters()]):
        raise _illegal(
            "the graph has parameters of its own", f"after AOT everything is an input; these are not: {names[:3]}"
        )
    taken = sum(node.op == "placeholder" for node in gm.graph.nodes)
    if taken != len(case.inputs):
        raise _illegal("the graph cannot be called", f"it takes {taken} inputs, and the case has {len(case.inputs)}")
    return Prepared(reader, gm, reader.inputs(lambda count: progress(Stage.PREPARE, count, len(case.inputs))))


def _illegal(what: str, cause: str) -> SleuthError:
    return SleuthError(what, cause=cause, remedy="record the case again, or report how it was made")


# ---- running ---------------------------------------------------------------------------------------------


class _Run:
    """One prepared query."""

    def __init__(self, query: Query, prepared: Prepared, progress: Progress, notes: list[str]) -> None:
        self._query = query
        self._case = query.case
        self._prepared: Prepared | None = prepared
        self._progress = progress
        self._notes = notes
        self._stage = Stage.PREPARE
        self._code = ""

    def run(self) -> Outcome:
        try:
            outcome = self._in_state(self._attempt)
        except BaseException as error:
            # Before the compiler begins, it is the case or ourselves; and whoever presses Ctrl-C wants us to stop.
            if self._stage is Stage.PREPARE or isinstance(error, KeyboardInterrupt):
                raise
            outcome = self._failed(error)
        return dataclasses.replace(outcome, code=self._code)

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._progress(stage, 0, 0)

    def _in_state(self, do: Callable[[], Outcome]) -> Outcome:
        """Do it in the state of the case. What of that cannot be had here is noted."""
        with ExitStack() as stack:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                stack.enter_context(restored(self._case.state, trust=self._query.trust))
            self._notes += [str(one.message) for one in told]
            return do()

    def _attempt(self) -> Outcome:
        case, prepared = self._case, self._prepared
        assert prepared is not None
        if self._query.record:
            self._enter(Stage.RUN)
            record_values(prepared.gm, prepared.inputs, self._query)
            return Passed(Stage.RUN)
        compiler = Compiler(case, self._query.compiler, self._query.trust, self._notes)
        reference = reference_of(prepared.gm, as_inductor_draws=compiler.backend == "inductor")
        compile = compiler.ready(prepared.reader, prepared.gm, prepared.inputs)
        self._enter(Stage.COMPILE)
        compiled = compile()
        self._code = compiled.code
        self._enter(Stage.RUN)
        if self._compares():
            outcome = self._compared(compiler, compiled, reference, prepared.inputs)
        else:
            _differentiated(case, compiled(list(prepared.inputs)), prepared.inputs)
            outcome = Passed(Stage.RUN)
        wait = synchroniser(accelerators_of(prepared.inputs))
        if wait is not None:
            wait()
        return outcome

    def _compares(self) -> bool:
        failure = self._case.failure
        if self._query.accuracy is not None:
            return self._query.accuracy
        return failure is None or failure.signature.kind == "mismatched"

    def _compared(
        self, compiler: Compiler, compiled: Compiled, reference: fx.GraphModule, inputs: list[Any]
    ) -> Outcome:
        if not self._query.checks.judged:
            return self._by_tolerance(compiler, compiled, reference, inputs)
        return self._judged(compiler, compiled, reference, inputs)

    def _judged(self, compiler: Compiler, compiled: Compiled, reference: fx.GraphModule, inputs: list[Any]) -> Outcome:
        """Compare, and ask of what differs whether rounding, or chance, explains it."""
        boxed = self._case.compiler.after is After.AOT

        def noted(*inputs: Any) -> Any:
            result = compiled(*inputs) if boxed else compiled(list(inputs))
            self._enter(Stage.COMPARE)
            return result

        settings = dataclasses.replace(_SETTINGS, **{n: getattr(self._query.checks, n) for n in _CHECKED})
        checked = run_checked(noted, reference, inputs, boxed=boxed, settings=settings)
        if checked.unknown is not None:
            return Unrunnable(Stage.COMPARE, reason=checked.unknown)
        if checked.finding is None:
            return Passed(Stage.COMPARE)
        found = checked.finding
        guilty = None
        if self._query.find_op:
            guilty = op_at(reference, found.path) or guilty_op(reference, checked.inputs or (), compiler.apart)
        return Mismatched(
            Stage.COMPARE,
            symptom=found.symptom,
            path=found.path,
            explanation=found.words,
            op=None if guilty is None else guilty[0],
            node=None if guilty is None else guilty[1],
            also=found.also,
        )

    def _by_tolerance(
        self, compiler: Compiler, compiled: Compiled, reference: fx.GraphModule, inputs: list[Any]
    ) -> Outcome:
        """Compare as torch's own tool does: eager, compiled and fp64 by their distances."""
        checks = self._query.checks
        boxed = self._case.compiler.after is After.AOT
        tolerance = Tolerance(tol=checks.tolerance, ignore_non_fp=checks.ignore_non_fp)
        self._enter(Stage.COMPARE)
        with config.patch(fp64=checks.fp64, after=None):
            try:
                found = same_two_models(
                    reference,
                    Boxed(compiled),
                    inputs,
                    boxed or checks.forward_only,
                    require_fp64=checks.require_fp64 and checks.fp64,
                    written=boxed,
                    tolerance=tolerance,
                )
            except NoReference as error:
                return Unrunnable(Stage.COMPARE, reason=error.cause)
        if found.raised is not None:
            self._enter(Stage.RUN)
            raise found.raised
        if found:
            return Passed(Stage.COMPARE)
        if DRAWN_DIFFERENTLY in found.notes:
            self._enter(Stage.RUN)
            return self._judged(compiler, compiled, reference, inputs)
        path = found.path.removeprefix(".")
        if (boxed or checks.forward_only) and not path.startswith("inputs"):
            path = f"output{found.path}"
        guilty = None
        if self._query.find_op:
            guilty = op_at(reference, path) or guilty_op(reference, inputs, compiler.apart)
        return Mismatched(
            Stage.COMPARE,
            symptom=found.symptom or Symptom.VALUE,
            path=path,
            explanation=str(found),
            op=None if guilty is None else guilty[0],
            node=None if guilty is None else guilty[1],
        )

    # ---- failures ------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> Outcome:
        if torch_compat.is_control_flow(error):
            return Unrunnable(self._stage, reason=f"{_STARTS_OVER} ({type(error).__name__})")
        if is_out_of_memory(error):
            return OutOfMemory(self._stage, message=in_words(error))
        outcome = raised(error, self._stage)
        if isinstance(error, ImportError) and self._stage is Stage.COMPILE and self._backend in _OPTIONAL:
            return Unrunnable(self._stage, reason=f"the backend {self._backend} is not installed: {in_words(error)}")
        # Eager needs the memory as well.
        traceback.clear_frames(error.__traceback__)
        self._prepared = None
        gc.collect()
        reason = self._why_not_in_eager()
        return outcome if reason is None else Unrunnable(outcome.stage, reason=reason)

    @property
    def _backend(self) -> str:
        return self._query.compiler or self._case.compiler.backend

    def _why_not_in_eager(self) -> str | None:
        """What eager raises on the same graph and inputs, if it does: then it is not the compiler that is to blame.

        Inputs that were made by a recipe may not be what the program needs. They are no evidence against a compiler's
        failure, which does not depend on them.
        """
        made_up = any(isinstance(storage.content, schema.Generated) for storage in self._case.storages)
        if made_up and self._stage is Stage.COMPILE and not self._query.strict:
            return None
        try:
            again = prepare(self._query)
            self._in_state(lambda: _eager(self._case, again))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the answer
            return None if is_out_of_memory(error) else f"eager fails as well: {in_words(error)}"
        return None


_OPTIONAL: Final = ("tvm", "onnxrt", "openxla", "cudagraphs")
"""Backends of torch's that need a package, or a device, of their own."""
_CHECKED: Final = ("tolerance", "fp64", "ignore_non_fp", "forward_only")
_SETTINGS: Final[Settings] = config.Settings()


def _eager(case: schema.Case, prepared: Prepared) -> Outcome:
    reference = reference_of(prepared.gm)
    if case.compiler.after is After.AOT:
        with torch.no_grad():
            reference(*prepared.inputs)
    else:
        _differentiated(case, reference(*prepared.inputs), prepared.inputs)
    return Passed(Stage.RUN)


def _differentiated(case: schema.Case, result: Any, inputs: list[Any]) -> None:
    """After Dynamo, what requires gradients gets them: the backward graph is compiled and run by that."""
    if case.compiler.after is After.AOT or not torch.is_grad_enabled():
        return
    leaves = [one for one in tensors_in(inputs) if one.requires_grad]
    if leaves and requires_bwd_pass(result):
        torch.autograd.grad(probe_loss(result), leaves, allow_unused=True)

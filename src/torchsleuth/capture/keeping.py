"""Keeping a failure: the case, its script, what the compiler made, and telling the user where it all is.

if is_failure(error, "run", seconds):
    keep_error(watch, settings, error, lambda: evidence)
"""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from msgspec.structs import replace

from torchsleuth import config, torch_compat
from torchsleuth.capture.graphs import Graph, without_values
from torchsleuth.capture.guarding import add_note, guarded
from torchsleuth.capture.history import PROCESS
from torchsleuth.capture.journal import Doing, Kept
from torchsleuth.capture.watching import Watch, anchored, minifies
from torchsleuth.case import schema
from torchsleuth.case.failures import ALL_FRAMES, frames_of
from torchsleuth.case.script.expected import first_line, in_words as failure_in_words
from torchsleuth.case.stores.files import LocalFiles
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.config import Settings
from torchsleuth.errors import MissingTensor, SleuthError
from torchsleuth.outcome import Stage
from torchsleuth.run.delivery import deliver
from torchsleuth.run.observing.marks import is_marked, is_the_user_s, mark
from torchsleuth.run.observing.raising import is_out_of_memory, raised_at
from torchsleuth.run.observing.signatures import failure_of as failure_of_outcome
from torchsleuth.run.observing.stages import locate

log = logging.getLogger("torchsleuth.capture")

_TRIES: Final = 3
HANG: Final = 1.0
"""Seconds that a run has to last, so that interrupting it tells of a hang."""


def next_command(entry: Listed, store: str, case: schema.Case) -> str:
    """What to type when a case was kept. Its id is enough where the command would look by itself."""
    verb = "verify" if case.todo is None else case.todo
    try:
        found = anchored(config.load().store) == store
    except SleuthError:
        found = False
    return f"sleuth {verb} {entry.id if found else shlex.quote(entry.path)}"


# ---- failures --------------------------------------------------------------------------------------------


def failure_of(error: BaseException, doing: Doing, seconds: float) -> schema.Failure:
    """What an exception says went wrong, and where."""
    found = locate(error, default=Stage.RUN if doing == "run" else Stage.COMPILE)
    outcome = raised_at(error, found)
    failure = replace(failure_of_outcome(outcome), frame=found.frame)
    if _is_interrupt(error):
        what = "the compiler was" if doing == "compile" else "the compiled graph was"
        frames = frames_of(error, ALL_FRAMES)
        signature = schema.Signature(
            "timed out", found.stage, message=f"{what} interrupted", op=found.op, frames=frames
        )
        return replace(failure, signature=signature, message=f"{what} interrupted after {seconds:.1f} s")
    if is_out_of_memory(error):
        return replace(failure, signature=replace(failure.signature, kind="out of memory"))
    return failure


def is_failure(error: BaseException, doing: Doing, seconds: float) -> bool:
    """Whether an exception tells of a failure: not of torch's own way through the program, nor of its end."""
    if is_marked(error) or torch_compat.is_control_flow(error):
        return False
    if _is_interrupt(error):
        return doing == "compile" or seconds >= HANG
    return isinstance(error, Exception)


def _is_interrupt(error: BaseException) -> bool:
    """Whether somebody lost patience: the user, or an alarm of the program's own."""
    return isinstance(error, KeyboardInterrupt) or is_the_user_s(error)


# ---- keeping -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outer:
    """A call of Dynamo's graph that is going on, and in which modes the user's program made it."""

    inputs: Sequence[Any]
    grad: bool
    inference: bool
    autocast: tuple[schema.Autocast, ...]

    def in_place_of(self, state: schema.State) -> schema.State:
        """The state, with these modes."""
        return replace(state, grad=self.grad, inference=self.inference, autocast=self.autocast)


@dataclass(frozen=True)
class Evidence:
    """What is kept of a graph's failure."""

    graph: Graph
    inputs: Sequence[Any]
    failure: schema.Failure
    state: schema.State
    """In which it failed."""
    outer: Outer | None = None
    """The call of Dynamo's graph, if that is going on."""
    code: str | None = None
    """What the compiler generated."""


def keep_error(watch: Watch, settings: Settings, error: BaseException, make: Callable[[], Evidence]) -> Kept | None:
    """Keep what an exception tells of, and say so in its notes. The caller raises it again."""
    kept = guarded(settings, error, lambda: _keep(watch, settings, make()))
    mark(error, "" if kept is None else kept.case)
    if kept is not None:
        add_note(error, f"torchsleuth kept this failure as a case: {kept.path}\n  {kept.words}\nNext: {kept.next}")
    return kept


def _keep(watch: Watch, settings: Settings, evidence: Evidence) -> Kept | None:
    graph = evidence.graph
    if graph.cases >= settings.max_cases:
        log.warning("%s failed again; %d cases of it were kept already (max_cases)", graph.name, graph.cases)
        return None
    graph.cases += 1
    store = Store.open(settings.store)
    with torch_compat.plain_torch():  # compilers call from under fake tensors
        parent = None
        if graph.parent is not None and graph.parent.sketch is not None:
            parent = _save_parent(store, settings, graph.parent, evidence)
        history = guarded(settings, None, lambda: PROCESS.keep(store, graph)) or ()
        entry, case = save(store, settings, graph, evidence.inputs, evidence.failure, evidence.state, parent, history)
        guarded(settings, None, lambda: _put_beside(store, entry, case, evidence.code))
    words = _words(graph, evidence.failure)
    following = next_command(entry, store.files.root, case)
    kept = Kept(os.getpid(), store.files.root, entry.id, entry.path, graph.name, words, following)
    watch.journal.keep(kept)
    log.warning("%s: %s\n  kept as %s\n  Next: %s", _kind(evidence.failure), words, kept.path, kept.next)
    return kept


def _save_parent(store: Store, settings: Settings, parent: Graph, evidence: Evidence) -> str:
    """Dynamo's graph: with what it is called with or compiled for, if that is at hand, or else with inputs that fit."""
    outer = evidence.outer
    inputs, state = parent.examples, parent.state
    if outer is not None:
        inputs, state = outer.inputs, outer.in_place_of(state)
    entry, case = save(store, settings, parent, inputs, evidence.failure, state)
    guarded(settings, None, lambda: _put_beside(store, entry, case, None))
    return entry.id


def save(
    store: Store,
    settings: Settings,
    graph: Graph,
    inputs: Sequence[Any] | None,
    failure: schema.Failure,
    state: schema.State,
    parent: str | None = None,
    history: tuple[schema.Earlier, ...] = (),
) -> tuple[Listed, schema.Case]:
    """Make the case of a graph, and save it with its tensors."""
    inputs, left_out = _affordable(inputs, settings.max_dump)
    if left_out:
        failure = replace(failure, message=f"{failure.message}\n{left_out}".strip())
        log.warning("%s: %s", graph.name, left_out)
    failure = _placed(graph, failure)
    tries = 0
    while True:
        case = graph.case(
            inputs, failure, state, store.blobs, parent=parent, minify=minifies(settings), history=history
        )
        try:
            return store.save(case), case
        except MissingTensor:  # another process has just dropped a case with the same tensor
            tries += 1
            if tries == _TRIES:
                raise


def _affordable(inputs: Sequence[Any] | None, limit: int) -> tuple[Sequence[Any] | None, str]:
    """The inputs; if they are too large together, fakes in the place of tensors, and a sentence that says so."""
    sizes = {}
    for value in inputs or ():
        if isinstance(value, torch.Tensor) and not torch_compat.is_fake(value) and value.layout == torch.strided:
            storage = value.untyped_storage()
            sizes[torch_compat.storage_key(storage)] = storage.nbytes()
    total = sum(sizes.values())
    if total <= limit:
        return inputs, ""
    left_out = f"its inputs have {total:,} bytes and were not kept: the limit is {limit:,} (max_dump)"
    return without_values(inputs or ()), left_out


def _placed(graph: Graph, failure: schema.Failure) -> schema.Failure:
    """The failure with the user's line, from the graph as it was recorded, if only the node is known."""
    if failure.frame is not None or failure.node is None:
        return failure
    return replace(failure, frame=graph.recording.frame_of(failure.node))


def _put_beside(store: Store, entry: Listed, case: schema.Case, code: str | None) -> None:
    if code is not None:
        store.put_file(entry, "output_code.py", code.encode("utf-8", "backslashreplace"))
    write_script(store, entry, case)


def write_script(store: Store, entry: Listed, case: schema.Case) -> None:
    """Put `repro.py` beside a case. It is not run here: the program under watch has other things to do."""
    if isinstance(store.files, LocalFiles):
        deliver(store.blobs, case, Path(entry.path) / "repro.py", run=False)
        return
    with tempfile.TemporaryDirectory(prefix="sleuth-") as folder:
        delivery = deliver(store.blobs, case, Path(folder) / "repro.py", run=False)
        for file in (delivery.script, delivery.beside):
            if file is not None:
                store.put_file(entry, file.name, file.read_bytes())


def _kind(failure: schema.Failure) -> str:
    if failure.signature.kind == "mismatched":
        return "wrong result"
    return "error in a compiled graph" if failure.signature.stage is Stage.RUN else "compiler error"


def _words(graph: Graph, failure: schema.Failure) -> str:
    """One line: which graph, where, what."""
    if failure.signature.kind == "mismatched":
        return first_line(failure.message)
    stage = failure.signature.stage
    where = [graph.name, "while compiling" if stage in (Stage.UNKNOWN, Stage.COMPILE) else str(stage)]
    if failure.signature.op:
        where.append(failure.signature.op)
    if failure.frame is not None:
        where.append(f"{failure.frame.file}:{failure.frame.line}")
    return f"{', '.join(where)}: {failure_in_words(failure)}"

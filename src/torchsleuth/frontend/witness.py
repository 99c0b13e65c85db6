"""The independent witness: is it Dynamo, the backend, or we ourselves?

    testimony = witness(fn, (x,), backend="inductor")
    testimony.blame, testimony.reason

One call of a function is made in three ways: in eager, by torch.compile (Dynamo and the backend), and by our own front
end with the same backend. Eager is the measure. Dynamo and our front end share no code, so:

    Dynamo    ours     who is at fault
    right     right    nobody
    wrong     right    the front end, Dynamo
    wrong     wrong    the backend, if both are wrong alike
    right     wrong    we are

That alone could be chance: our graphs may be spelled otherwise, and not set off a bug of the backend. So, before
anybody is accused, it is measured without what is suspected: Dynamo with the backend "eager", which runs the graphs as
they are; the graphs of Dynamo given to the backend without Dynamo; ours with "eager" and "aot_eager", which tells AOT
from what is behind it.

Each run begins with the same inputs, parameters, buffers, random numbers, and Python objects as far as they can be put
back (`undoing` says how far). Differences are weighed (`judge`): rounding is nobody's fault. Gradients, and what is
written to, are results too; so is what eager changes in lists, dicts and attributes. What runs print is heard once,
from eager.

Our front end records its first call by really running it in eager. So it is called again until it runs what was
recorded, and only such a call counts. Where it had to go on natively it is no witness, and that is said.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Protocol

import torch

from torchsleuth import torch_compat
from torchsleuth.compare import Comparison, Results, Tolerance, Verdict, clone_inputs, judge, same
from torchsleuth.compare.rng import preserved
from torchsleuth.compare.subject import Subject
from torchsleuth.errors import in_words
from torchsleuth.frontend import backends
from torchsleuth.frontend.aligning import DescribedGraph, align
from torchsleuth.frontend.capturing import Captured, capture
from torchsleuth.frontend.deciding import EAGER, Decision, decide, ends_the_process, fail_alike, failed
from torchsleuth.frontend.testimony import Blame, KeptCase, Run, Standing, Testimony, Way
from torchsleuth.frontend.traits import Owners, kind_of, other_traits, traits_of
from torchsleuth.frontend.ways import SETTLED, Heard, Kept, Program, Settling, Whole, World, name_of
from torchsleuth.outcome import Outcome, Stage, Symptom, TimedOut
from torchsleuth.run.observing.raising import raised

log = logging.getLogger("torchsleuth.frontend")

_BEHIND_AOT: Final = ("inductor", "cudagraphs", "openxla", "openxla_eval")
"""Backends of torch's own that compile what AOT gives them; besides those that have it in their names."""
KEEPING: Final = "the failure once more, to keep it as a case"
_BIT_FOR_BIT: Final = "as in eager, bit for bit"
_FAILURES = (Exception, SystemExit)


class Steps(Protocol):
    """Who is told of each step, and may know of steps that have ended a process before."""

    def died(self, step: str) -> Outcome | None:
        """How the process died in that step, when it was tried before. Then it is not tried again."""

    def at(self, step: str) -> AbstractContextManager[None]:
        """Entered when a step begins, left when it is over."""


class Untold:
    """Nobody is told, and nothing is known."""

    def died(self, step: str) -> Outcome | None:
        return None

    def at(self, step: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


class Keeper(Protocol):
    """Makes cases of what a backend fails at."""

    def watched(self, backend: str | Callable[..., Any]) -> Callable[..., Any]:
        """The backend, under watch."""

    def kept(self) -> tuple[KeptCase, ...]:
        """What was kept; also by a process before this one, which has died of it."""


def witness(
    fn: Any,
    args: Sequence[Any] = (),
    backend: str | Callable[..., Any] = "inductor",
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    backward: bool = True,
    steps: Steps | None = None,
    keeper: Keeper | None = None,
) -> Testimony:
    """Run `fn(*args, **kwargs)` in three ways, and say who is at fault.

    `dynamic` is given to torch.compile; ours has symbolic sizes only if it is true. Without `backward`, gradients are
    not compared. A `keeper` makes a case of what the backend fails at. Nothing of the caller's is changed, but for what
    `undoing` cannot put back, and that Dynamo forgets what it has compiled. A backend that kills or hangs the process
    does so here, too: `sleuth witness` survives it.
    """
    plain = fn.fn if isinstance(fn, Captured) else torch_compat.plain_function(fn)
    with _Bench(plain, args, kwargs or {}, backend, dynamic, backward, steps or Untold(), keeper) as bench:
        return bench.testimony()


def with_dynamo(fn: Any, backend: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    """The function as torch.compile has it."""
    compiled: Callable[..., Any] = torch.compile(fn, backend=backend, dynamic=dynamic)
    return compiled


def with_ours(fn: Any, backend: Callable[..., Any], dynamic: bool | None) -> Any:
    """The function as our own front end has it."""
    return capture(fn, backend, dynamic=bool(dynamic))


# ---- the three runs, and more --------------------------------------------------------------------------------


class _Bench:
    """One call under examination: it is run in one way after the other, each time from the same state."""

    def __init__(
        self,
        fn: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        backend: str | Callable[..., Any],
        dynamic: bool | None,
        backward: bool,
        steps: Steps,
        keeper: Keeper | None,
    ) -> None:
        self.fn = fn
        self.inputs = [*args, *kwargs.values()]
        self.backend = backends.found(backend)
        self._backend_as_given = backend
        self.backend_name = backend if isinstance(backend, str) else name_of(backend)
        self._is_known_for_aot = isinstance(backend, str) and (backend in _BEHIND_AOT or backend.startswith("aot_"))
        self.dynamic = dynamic
        self.backward = backward
        self.steps = steps
        self.keeper = keeper
        self.notes: list[str] = []
        self.further: list[Run] = []
        self.without_compiler = self.backend is backends.eager
        self._kept_of_dynamo = Kept(self.backend)
        self._whole: list[Whole] = []
        """Dynamo's graphs with their inputs, to be run again."""
        self._our_graphs: list[DescribedGraph] = []
        self._kept_of_ours = Kept(self.backend)
        self._settling = Settling(self._kept_of_ours)
        self._simpler: dict[str, Run] = {}
        self._incomparable = ""
        """Why results cannot be compared, whoever gives them."""
        self._names = tuple(kwargs)
        self._world = World(fn, args, kwargs)
        self._printed = io.StringIO()
        self._opened = ExitStack()

    def __enter__(self) -> _Bench:
        self.start = self._opened.enter_context(preserved())
        self._opened.callback(self._world.put_back)
        self._plainly = self._program(self.fn, without_dynamo=True)
        self._subject = self._opened.enter_context(Subject(self._plainly, self.inputs, backward=self.backward))
        self._opened.callback(torch.compiler.reset)
        if self._world.why_not:
            self.notes.append(f"lists, dicts and attributes were not put back between runs: {self._world.why_not}")
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def testimony(self) -> Testimony:
        decision = decide(self)
        if self.dynamo.failure is not None and not self._kept_of_dynamo.graphs:
            _ = self.dynamo_with_eager  # for its graphs
        captured = self._settling.captured
        crashes = () if captured is None else captured.crashes
        return Testimony(
            decision.blame,
            decision.reason,
            self.backend_name,
            self.eager,
            self.dynamo,
            self.ours,
            tuple(self.further),
            difference=align(self._our_graphs, self._kept_of_dynamo.graphs),
            breaks=() if captured is None else tuple(captured.breaks),
            no_witness=self.no_witness,
            part=decision.part,
            notes=tuple(self.notes),
            records=tuple(dict.fromkeys(crash.path for crash in crashes if crash.path is not None)),
            cases=() if self.keeper is None else self._cases(decision, self.keeper),
        )

    # -- eager

    @cached_property
    def eager(self) -> Run:
        """The measure. Twice, since what does not repeat itself is no measure."""
        died = self.steps.died(str(Way.EAGER))
        if died is not None:
            return failed(Way.EAGER, "", died)
        try:
            with self.steps.at(str(Way.EAGER)):
                first, heard = self._eagerly()
                with self._quietly():
                    second, heard_again = self._run(self._subject)
        except _FAILURES as error:
            return failed(Way.EAGER, "", raised(error, Stage.UNKNOWN))
        self._world.expect(heard, heard_again)
        repeats = same(first, second, tolerance=Tolerance.exact())
        self._incomparable = _incomparable(repeats)
        if self._incomparable:
            return Run(Way.EAGER, "", Standing.UNKNOWN, self._incomparable, results=first)
        if not repeats:
            return Run(Way.EAGER, "", Standing.UNKNOWN, f"it does not repeat itself: {repeats}", results=first)
        return Run(Way.EAGER, "", Standing.RIGHT, "this is what the others are held against", results=first)

    def _eagerly(self) -> tuple[Results, Heard]:
        """The first run. If only its backward fails, nobody will ever call that: then it is left out."""
        try:
            return self._run(self._subject)
        except _FAILURES as error:
            if not self.backward:
                raise
            self._subject.backward = self.backward = False
            with self._quietly():
                found = self._run(self._subject)
            self.notes.append(f"gradients are not compared: in eager, the backward raises {in_words(error)}")
            return found

    # -- Dynamo

    @cached_property
    def dynamo(self) -> Run:
        if ends_the_process(self.eager):
            return self._not_made(Way.DYNAMO)
        kept = self._kept_of_dynamo
        return self._measured(Way.DYNAMO, self.backend_name, lambda: with_dynamo(self.fn, kept, self.dynamic))

    @cached_property
    def dynamo_with_eager(self) -> Run:
        """Dynamo's graphs as they are: no compiler is at work."""
        if self.without_compiler:
            return self.dynamo
        kept = Kept(backends.eager, whole=True)
        run = self._measured(Way.DYNAMO, EAGER, lambda: with_dynamo(self.fn, kept, self.dynamic))
        self._whole = kept.whole
        if not self._kept_of_dynamo.graphs:  # the other run could not be made
            self._kept_of_dynamo.graphs += kept.graphs
        self.further.append(run)
        return run

    @cached_property
    def graphs_alone(self) -> Run | None:
        """Dynamo's graphs, given to the backend without Dynamo. None if they cannot be had."""
        plain = self.dynamo_with_eager
        if plain.failure is not None or plain.standing is Standing.WRONG:
            return None
        run: Run | None = None
        for number, whole in enumerate(self._whole, 1):
            if whole.graph is None or whole.inputs is None:
                continue
            name = self.backend_name if len(self._whole) == 1 else f"{self.backend_name}, graph {number}"
            run = self._graph_alone(whole.graph, whole.inputs, name)
            if not run.standing.is_right:
                break
        if run is not None:
            self.further.append(run)
        return run

    def _graph_alone(self, graph: torch.fx.GraphModule, inputs: list[Any], name: str) -> Run:
        step = f"{Way.GRAPHS} with {name}"
        died = self.steps.died(step)
        if died is not None:
            return failed(Way.GRAPHS, name, died)
        self.start.restore()
        with self.steps.at(step), self._quietly():
            try:
                compiled = self.backend(copy.deepcopy(graph), clone_inputs(inputs))
            except _FAILURES as error:
                return failed(Way.GRAPHS, name, raised(error, Stage.UNKNOWN))
            # As Dynamo calls it, whatever it says of how it wants to be called.
            run = self._judged(Way.GRAPHS, name, graph, lambda *values: compiled(*values), inputs)
            if not run.standing.is_right:
                return run
            effect = other_traits(_traits_of_graph(graph, inputs), _traits_of_graph(compiled, inputs))
            return replace(run, standing=Standing.WRONG, words=effect, effect=effect) if effect else run

    # -- ours

    @cached_property
    def ours(self) -> Run:
        if ends_the_process(self.eager):
            return self._not_made(Way.OURS)
        self._our_graphs = self._kept_of_ours.graphs
        return self._of_ours(self.backend_name, self._settling)

    @property
    def no_witness(self) -> str:
        return self._settling.no_witness

    @property
    def our_fault(self) -> str:
        return "".join(in_words(crash.error) for crash in self._settling.crashes[:1])

    @property
    def has_aot(self) -> bool:
        return self._is_known_for_aot or self._kept_of_dynamo.has_aot or self._kept_of_ours.has_aot

    def ours_with(self, backend: str) -> Run:
        if backend not in self._simpler:
            kept = Kept(backends.found(backend))
            self._simpler[backend] = self._of_ours(backend, Settling(kept))
            self.further.append(self._simpler[backend])
            self._our_graphs = self._our_graphs or kept.graphs  # the other run may not have been made
        return self._simpler[backend]

    def _of_ours(self, backend: str, settling: Settling) -> Run:
        def make() -> Any:
            settling.captured = with_ours(self.fn, settling.kept, self.dynamic)
            return settling.captured

        return self._measured(Way.OURS, backend, make, settling)

    # -- the case

    def _cases(self, decision: Decision, keeper: Keeper) -> tuple[KeptCase, ...]:
        """The failure of the backend as a case: it is met once more, under watch. A hang is not waited for again."""
        if decision.blame is not Blame.BACKEND or isinstance(self.dynamo.failure, TimedOut):
            return ()
        if self.steps.died(KEEPING) is None:
            torch.compiler.reset()
            of_ours = self.dynamo.standing.is_right
            make = with_ours if of_ours else with_dynamo
            with self.steps.at(KEEPING), self._quietly(), contextlib.suppress(*_FAILURES):
                watched = keeper.watched(self._backend_as_given)
                program = self._program(make(self.fn, watched, self.dynamic), without_dynamo=of_ours)
                with Subject(program, self.inputs, backward=self.backward) as subject:
                    for _ in range(
                        SETTLED
                    ):  # it may take a later call: ours records in the first, Dynamo again in some
                        self._run(subject)
                        if keeper.kept():
                            break
        return keeper.kept()

    # -- running it

    def _measured(
        self,
        way: Way,
        backend: str,
        make: Callable[[], Callable[..., Any]],
        settling: Settling | None = None,
    ) -> Run:
        """One way to run it, held against eager. What it raises is part of the answer."""
        step = f"{way} with {backend}"
        died = self.steps.died(step)
        if died is not None:
            return failed(way, backend, died)
        torch.compiler.reset()
        with self.steps.at(step), self._quietly():
            try:
                program = self._program(make(), without_dynamo=settling is not None)
                with Subject(program, self.inputs, backward=self.backward) as subject:
                    subject.align(self._subject)
                    results, heard = self._run(subject)
                    if settling is not None:
                        results, heard = settling.settled(lambda: self._run(subject), (results, heard))
            except _FAILURES as error:
                return self._held_against_eager(failed(way, backend, raised(error, Stage.UNKNOWN)))
            return self._weighed(way, backend, program, results, heard)

    def _held_against_eager(self, run: Run) -> Run:
        """A run that has raised something. Eager may have, too."""
        if fail_alike(run, self.eager):
            return replace(run, standing=Standing.RIGHT, words=f"as eager: {run.words}")
        return run

    def _weighed(self, way: Way, backend: str, program: Callable[..., Any], results: Results, heard: Heard) -> Run:
        expected = self.eager.results
        if expected is None:
            words = "it returns something, and eager does not"
            return Run(way, backend, Standing.UNKNOWN, words, results=results)
        if self._incomparable:
            return Run(way, backend, Standing.UNKNOWN, "what it returns cannot be compared", results=results)
        if same(expected, results, tolerance=Tolerance.exact()):
            run = Run(way, backend, Standing.RIGHT, _BIT_FOR_BIT, results=results)
        else:
            run = self._judged(way, backend, self._plainly, program, self.inputs)
            run = replace(run, results=results)
        effect = self._world.difference(heard) if run.standing.is_right else ""
        return replace(run, standing=Standing.WRONG, words=effect, effect=effect) if effect else run

    def _judged(
        self, way: Way, backend: str, expected: Callable[..., Any], program: Callable[..., Any], inputs: list[Any]
    ) -> Run:
        """Two programs that differ: a bug, or rounding?"""
        self.start.restore()
        try:
            judgement = judge(expected, program, inputs, backward=self.backward)
        except _FAILURES as error:
            return self._compared(way, backend, expected, program, inputs, error)
        if judgement.raised is not None and judgement.reason.startswith("compiled"):
            return failed(way, backend, raised(judgement.raised, Stage.UNKNOWN))
        agrees = judgement.comparison is not None and judgement.comparison.agree
        words = (
            judgement.reason if not agrees or judgement.verdict is not Verdict.NOISE else "as in eager, up to rounding"
        )
        return Run(way, backend, _STANDINGS[judgement.verdict], words, judgement=judgement)

    def _compared(
        self,
        way: Way,
        backend: str,
        expected: Callable[..., Any],
        program: Callable[..., Any],
        inputs: list[Any],
        error: BaseException,
    ) -> Run:
        """What cannot be weighed is compared."""
        log.warning("a difference could not be weighed, so it is compared", exc_info=error)
        pair = []
        for each in (expected, program):
            with Subject(each, inputs, backward=self.backward) as subject:
                pair.append(subject.run(self.start).results)
        comparison = same(*pair)
        return Run(way, backend, Standing.NOISE if comparison else Standing.WRONG, str(comparison))

    def _run(self, subject: Subject) -> tuple[Results, Heard]:
        """Once, from the start. Also what it has changed in objects of Python's."""
        with self._world.listening() as heard:
            results = subject.run(self.start).results
        return replace(results, output=heard.output), heard

    def _not_made(self, way: Way) -> Run:
        return Run(way, self.backend_name, Standing.UNKNOWN, "not run, since eager does not come to an end")

    def _program(self, call: Callable[..., Any], *, without_dynamo: bool) -> Program:
        return Program(self.fn, self.inputs, call, self._names, self._world, without_dynamo=without_dynamo)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """What is printed inside has been heard from eager."""
        with contextlib.redirect_stdout(self._printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


def _incomparable(found: Comparison) -> str:
    """Why two results of one program differ, if it is only that nobody can compare what they hold: a function, say."""
    kind: Any = type(found.ref)
    if found or found.symptom is not Symptom.OBJECT or kind.__eq__ is not object.__eq__:
        return ""
    where = "what it returns" if found.path in ("output", ".output") else found.path.lstrip(".")
    return f"{where} cannot be compared: it is {kind_of(found.ref)}, and two of them are never equal"


def _traits_of_graph(graph: Callable[..., Any], inputs: list[Any]) -> dict[str, str]:
    """What values do not tell of a graph's outputs. Whether they come in a list or in a tuple is all one."""
    values = clone_inputs(inputs)
    owners = Owners((f"inputs[{number}]", value) for number, value in enumerate(values))
    return traits_of("outputs", [*graph(*values)], owners)


_STANDINGS: Final = {
    Verdict.BUG: Standing.WRONG,
    Verdict.NOISE: Standing.NOISE,
    Verdict.NONDETERMINISTIC: Standing.UNKNOWN,
    Verdict.UNKNOWN: Standing.UNKNOWN,
}

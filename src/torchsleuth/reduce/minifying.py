"""The smallest program that still shows a failure.

    reduction = minify("3f9a")
    reduction.after             the smallest case that was found, saved in the store
    reduction.script            a script that was seen to fail in a fresh interpreter
    reduction.others            other failures that were met on the way, as cases of their own

First fewer operators, then a simpler and smaller rest, round by round until nothing helps any more; the last round
shows that nothing can be left out. Whatever was answered is kept: asking for the same again goes on where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace as replaced
from itertools import islice
from pathlib import Path
from typing import Final

from torchsleuth import torch_compat
from torchsleuth.case.schema import Case, Failure, Graph, Node
from torchsleuth.case.script import expected
from torchsleuth.case.signatures import ORIGIN, Match, operator_name, wrecked
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Listed, Store
from torchsleuth.errors import DoesNotFail, SleuthError
from torchsleuth.outcome import Passed, Stage, is_failure
from torchsleuth.reduce.delivering import Deliver, Delivering
from torchsleuth.reduce.events import Answered, Ended, Entered, Event, Improved, Observer
from torchsleuth.reduce.executors import Answer, Executor, Oracular
from torchsleuth.reduce.graphs import operators, refs_of, replace
from torchsleuth.reduce.guiding import sample
from torchsleuth.reduce.legality import legal
from torchsleuth.reduce.operators import shortcut
from torchsleuth.reduce.order import Size, graphs_in, size_of
from torchsleuth.reduce.patches import Material
from torchsleuth.reduce.places import Place
from torchsleuth.reduce.problem import Budget, Problem, Spent, Stopped
from torchsleuth.reduce.restricting import Values, Whole
from torchsleuth.reduce.rounds import reduce_with
from torchsleuth.reduce.tiers import TIERS, Tier
from torchsleuth.reduce.verdicts import Verdicts
from torchsleuth.run import delivery as deliveries
from torchsleuth.run.checking.isolating import TOGETHER
from torchsleuth.run.delivery import Delivery
from torchsleuth.run.observing.signatures import failure_of
from torchsleuth.run.oracle import Verdict, verdict_of
from torchsleuth.run.query import Checks, Query, Runner
from torchsleuth.run.runners.client import cores
from torchsleuth.run.runners.warm import Warm
from torchsleuth.run.scripts import run_script

_HANG: Final = 20.0
"""Seconds after which a part of a program that hangs is taken to hang, too."""
_SURE: Final = 60.0
"""Seconds that the result has to hang for, if what is recorded is at least as long."""
_EDGE: Final = 0.5
"""What takes this part of its time, and ends, says that the rest is slow rather than endless."""
_NEIGHBOURS: Final = 4
"""So many neighbours of the result are asked about, to find one that passes."""
_FEW: Final = 16
"""So few operators are always tried one by one, if a wrong result is looked for."""
_MANY: Final = 60
"""More operators than that are not asked about for the sake of completeness."""
_USUAL: Final = 180.0
"""Seconds for a query of anything else."""
_RUNNING: Final = frozenset({Stage.RUN, Stage.COMPARE, Stage.UNKNOWN})
_ALONE: Final = frozenset({"crashed", "timed out", "out of memory", "mismatched"})
"""Failures that are believed only of a process that has done nothing else."""


@dataclass(frozen=True)
class Terms:
    """How a reduction goes about it."""

    match: Match = ORIGIN
    trust: bool = False
    deadline: float | None = None
    """Seconds for a query. None: for a hang, at most 20; otherwise 180."""
    memory: int | None = None
    needs: tuple[int, int] = (1, 1)
    """How many of how many runs have to show the failure."""
    workers: int | None = None
    budget: Budget = field(default_factory=Budget)
    again: bool = False
    """Ask everything again, whatever is known from before."""
    tiers: Sequence[Tier] = TIERS
    accuracy: bool | None = None
    """Compare with eager. None: if the recorded failure is a wrong result, or there is none."""
    checks: Checks = field(default_factory=Checks)
    """How, if so."""
    find_op: bool = True
    """Find out which operator is to blame for a wrong result, and have it be that one from then on."""


@dataclass(frozen=True)
class Reduction:
    """What came of it."""

    before: Case
    after: Case
    was: Size
    size: Size
    spent: Spent
    seconds: float
    why: str = ""
    """Why it was stopped before the end; "" if it was not."""
    is_broken: bool = False
    """Whether that is because whoever was asked could not go on: a test of the user's that is broken."""
    entry: Listed | None = None
    """Where the result is kept."""
    delivery: Delivery | None = None
    """What is known of its script."""
    others: tuple[tuple[Listed, Answer], ...] = ()
    """Other failures, each as a case."""
    twin: Case | None = None
    """The largest neighbour of the result that does not fail."""
    steps: int = 0
    """How often it became smaller."""
    slow: str = ""
    """What was seen to end, but late, if a hang turned out to be slow rather than endless. Then operators were not left
    out one by one."""
    unverified: tuple[Case, ...] = field(default=(), repr=False)
    """Smaller ones that did not fail in a fresh interpreter."""

    @property
    def is_verified(self) -> bool:
        return self.delivery is not None and self.delivery.reproduces is True

    @property
    def script(self) -> Path | None:
        return None if self.delivery is None else self.delivery.script


def minify(
    case: Found | str | os.PathLike[str],
    *,
    oracle: Executor | None = None,
    runner: Runner | None = None,
    store: Store | None = None,
    terms: Terms = Terms(),  # noqa: B008 - immutable
    observers: Sequence[Observer] = (),
    run_script: deliveries.Runner = run_script,
    deliver: Deliver | None = None,
) -> Reduction:
    """Make a case as small as it can be, while it fails in the same way.

    `case` is a `Found`, or the id, the label or the path of one. `oracle`: whoever answers whether a case still fails;
    by default a runner of warmed workers, and the signature of the case; a runner beside an oracle is asked for values
    of eager only. What is found is saved in the store. `deliver` writes the script of a case, and runs it.
    """
    store = store or Store.open()
    found = case if isinstance(case, Found) else store.find(case)
    with ExitStack() as stack:
        place = Place(store)
        verdicts = stack.enter_context(Verdicts.at(place.verdicts))
        if terms.again:
            verdicts.forget()
        place.bring(found)
        if oracle is None and runner is None:
            workers = terms.workers or cores()
            served = runner = stack.enter_context(Warm(workers=workers, memory=terms.memory))
            served.start()
        torch_compat.import_dynamo()  # while workers get ready: passes need it
        return _Reducing(found, place, verdicts, oracle, runner, terms, observers, run_script, deliver).run()


def _incomplete(problem: Problem, failed: Sequence[str]) -> str:
    """Why it cannot be said that nothing can be left out; "" if it can."""
    if failed:
        return f"torchsleuth itself failed in: {', '.join(failed)}"
    if problem.unanswered:
        return f"torchsleuth itself could not answer {problem.unanswered} of its questions"
    return ""


def _names_in(node: Node, graph: Graph) -> set[str]:
    """What a call calls, in graphs that are nested in it as well."""
    nested = {entry.name: entry.value for entry in graph.attributes if isinstance(entry.value, Graph)}
    used = {one.target for one in graph.nodes if one.op == "get_attr" and one.name in set(refs_of(node))}
    inner = (one for name in used & nested.keys() for body in graphs_in(nested[name]) for one in operators(body))
    return {operator_name(one.target) for one in (node, *inner)}


class _Slow(Stopped):
    """A hang has turned out to be slow rather than endless."""


class _Reducing:
    def __init__(
        self,
        found: Found,
        place: Place,
        verdicts: Verdicts,
        oracle: Executor | None,
        runner: Runner | None,
        terms: Terms,
        observers: Sequence[Observer],
        run_script: deliveries.Runner,
        deliver: Deliver | None,
    ) -> None:
        self._found = found
        self._place = place
        self._verdicts = verdicts
        self._oracle = oracle
        self._runner = runner
        self._terms = terms
        self._observers = observers
        self._run_script = run_script
        self._deliver = deliver
        self._began = time.monotonic()
        failure = found.case.failure
        self._signature = None if failure is None else failure.signature
        self._strict = True
        self._slow = ""
        self._is_reducing = False

    # ---- from beginning to end -------------------------------------------------------------------------------

    def run(self) -> Reduction:
        def learn(event: Event) -> None:
            if isinstance(event, Improved):
                self._sharpen(problem, problem.seen)
            elif isinstance(event, Answered):
                self._look_at_time(problem, event)

        problem = Problem(
            self._found.case,
            self._executor(),
            self._verdicts,
            budget=self._terms.budget,
            observers=(*self._observers, learn),
        )
        why, is_broken = "", False
        try:
            why = _incomplete(problem, self._reduced(problem))
        except Stopped as stopped:
            why = str(stopped)
        except KeyboardInterrupt:
            why = "it was interrupted"
        except DoesNotFail:
            raise
        except SleuthError as error:  # whoever is asked has failed: the user's own test, for one
            if problem.best is problem.original:
                raise
            why, is_broken = f"{error.what}: {error.cause}", True
        problem.cancel()
        problem.tell(Ended(why))
        return replaced(self._concluded(problem, why), is_broken=is_broken)

    def _reduced(self, problem: Problem) -> list[str]:
        """Make it as small as it can be. What is returned are the passes that failed."""
        self._is_reducing = True
        try:
            self._look(problem)
            return self._in_rounds(problem)
        except _Slow:
            problem.at_edge = True
            problem.ask_instead(self._executor())
            problem.start_over()
            return self._in_rounds(problem)
        finally:
            self._is_reducing = False

    def _in_rounds(self, problem: Problem) -> list[str]:
        return reduce_with(problem, self._material(), lambda: self._values(problem), tiers=self._terms.tiers)

    def _look(self, problem: Problem) -> None:
        """See something fail as recorded: a promising part of the case, or the whole of it.

        A large graph takes long. If a part of it fails in the same way, nobody needs to know about the whole.
        """
        recorded = self._found.case.failure
        problem.tell(Entered("guess", "looking at what the failure points to"))
        if recorded is not None and shortcut(problem, self._values(problem), recorded):
            return
        answer = self._whole(problem)
        self._sharpen(problem, answer)
        shortcut(problem, self._values(problem), answer.failure)

    def _whole(self, problem: Problem) -> Answer:
        """How the whole case fails. It has to, in the way that is recorded."""
        answer = problem.answer(problem.best, "the whole case", anew=True)
        if answer.verdict is Verdict.INVALID and self._oracle is None and self._strict:
            self._strict = False  # its inputs are made up, and eager does not take them: the compiler fails before
            problem.ask_instead(self._executor())
            answer = problem.answer(problem.best, "the whole case", anew=True)
        if answer.verdict is Verdict.OTHER and self._is_wreck(answer):
            problem.ask_instead(self._executor())
            answer = problem.answer(problem.best, "the whole case", anew=True)
        if answer.verdict is not Verdict.SAME:
            wanted = expected.in_words(self._found.case.failure)
            raise DoesNotFail(
                "the case does not show its failure here",
                cause=f"expected that it {wanted}; seen: {answer.words or 'nothing'}",
                remedy="`sleuth verify` says what differs",
                verdict=answer.verdict.value,
            )
        return answer

    def _is_wreck(self, answer: Answer) -> bool:
        """Whether the whole case died in another way than recorded, as what writes over its memory does.

        From then on all such deaths are one.
        """
        known, seen = self._signature, answer.failure
        if known is None or seen is None or self._oracle is not None:
            return False
        self._signature = wrecked(known, seen.signature)
        return self._signature != known

    def _sharpen(self, problem: Problem, answer: Answer) -> None:
        """Once a run has said which operator computes the wrong result, it is that one and no other.

        If no failure is recorded, it is the one that was seen.
        """
        known, seen = self._signature, answer.failure
        if seen is None or self._oracle is not None:
            return
        if known is None:
            self._signature = seen.signature
        elif known.kind == "mismatched" and known.op is None and seen.signature.op is not None:
            self._signature = replace(known, op=seen.signature.op)
        else:
            return
        problem.ask_instead(self._executor())

    def _look_at_time(self, problem: Problem, answered: Answered) -> None:
        """What looks for a hang and meets something that ends, but late, is at the edge of what is slow.

        Then it is done once more from the beginning, and whatever is tried has to last as long as the result has to:
        otherwise one thing after another would go, each of which makes it a little faster.
        """
        answer, kind = answered.answer, None if self._signature is None else self._signature.kind
        if problem.at_edge or not self._is_reducing or self._oracle is not None or kind != "timed out":
            return
        if answer.verdict is not Verdict.PASSED or answer.seconds < _EDGE * self._time_for_one():
            return
        self._slow = f"{answered.words}: it ends after {answer.seconds:.0f} s"
        raise _Slow

    def _executor(self) -> Executor:
        return self._oracle or Oracular(
            self._need_runner(),
            self._question,
            self._signature,
            self._terms.match,
            also=(
                self._time_for_one(),
                self._strict,
                self._terms.trust,
                self._terms.memory,
                self._terms.accuracy,
                self._terms.checks,
            ),
            workers=self._terms.workers or cores(),
            needs=self._terms.needs,
        )

    def _need_runner(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def _question(self, case: Case) -> Query:
        signature = self._signature
        kind = None if signature is None else signature.kind
        return Query(
            case,
            self._place.store.home,
            accuracy=self._terms.accuracy,
            checks=self._terms.checks,
            find_op=self._terms.find_op and kind == "mismatched" and not self._is_known_to_be_several(case),
            strict=self._strict,
            trust=self._terms.trust,
            alone=kind in _ALONE,
            deadline=self._time_for_one(),
            memory=self._terms.memory,
        )

    def _is_known_to_be_several(self, case: Case) -> bool:
        """Whether no operator by itself is to blame for a wrong result, as none of the whole case is.

        To find out takes long for many operators. Of a few it is asked nevertheless: by then they may be others.
        """
        op = None if self._signature is None else self._signature.op
        return op == TOGETHER and len(operators(case.graph)) > _FEW

    def _time_for_one(self, *, sure: bool = False) -> float:
        """Seconds for a query. `sure`: as many as a hang has to last in the end."""
        if self._terms.deadline is not None:
            return self._terms.deadline
        failure = self._found.case.failure
        if failure is None or failure.signature.kind != "timed out":
            return _USUAL
        return min(expected.deadline_of(failure), _SURE if sure or self._slow else _HANG)

    # ---- what passes and searches need -----------------------------------------------------------------------

    def _material(self) -> Material:
        return Material(self._place.store.blobs, values_matter=self._values_matter)

    @property
    def _values_matter(self) -> bool:
        signature = self._signature
        if signature is None or self._oracle is not None:
            return True
        return signature.kind == "mismatched" or signature.stage in _RUNNING

    def _values(self, problem: Problem) -> Values | None:
        """What eager computes at each node of the best case, if the failure may depend on it."""
        if not self._values_matter or self._runner is None:
            return None
        path = self._place.values(problem.size)
        values = self._place.read(path)
        if values is None:
            query = Query(problem.best, self._place.store.home, record=str(path), trust=self._terms.trust, alone=True)
            if not isinstance(self._runner.run(query), Passed):
                return None
            values = self._place.read(path)
        return values

    # ---- the end ---------------------------------------------------------------------------------------------

    def _concluded(self, problem: Problem, why: str) -> Reduction:
        if not why and not problem.passed:
            self._look_for_twin(problem)
        twin = max(problem.passed, key=problem.measure, default=None)
        rest = None if why else self._rest(problem)
        if rest is not None:
            problem.begin(rest)  # while the script is run
        result = self._delivered(problem, self._reduction(problem, why, twin))
        try:
            if rest is not None:
                self._judge_rest(problem, rest)
        except (KeyboardInterrupt, SleuthError, Stopped):  # it would have been good to know
            problem.cancel()
        if not why:
            self._place.clear()
        save = self._delivering().save
        others = tuple((save(other.case, other.answer.failure), other.answer) for other in problem.others)
        return replaced(result, others=others, seconds=time.monotonic() - self._began)

    def _look_for_twin(self, problem: Problem) -> None:
        """Ask about a few neighbours of the result, if none of those that were asked about lately passes."""
        found = (
            patch(problem.best)
            for tier in self._terms.tiers
            for site in tier.proposes(problem.best, self._material())
            for patch in site
        )
        candidates = (case for case in found if case is not None and legal(case))
        try:
            for case in islice(candidates, _NEIGHBOURS):
                if problem.answer(case, "a neighbour").verdict is Verdict.PASSED:
                    return
        except (KeyboardInterrupt, SleuthError, Stopped):  # it would have been good to know
            problem.cancel()

    def _rest(self, problem: Problem) -> Case | None:
        """The case without the operators that are to blame: if it fails, too, that is another failure.

        Of a large case, one operator of each sort of which nothing is known: the whole would take longer than all the
        rest.
        """
        if self._oracle is not None or self._terms.budget != Budget():
            return None
        blamed = {operator_name(node.target) for graph in graphs_in(problem.best.graph) for node in operators(graph)}
        whole = Whole(problem.original)
        rest = {name for name in whole.operators if not blamed & _names_in(whole.known[name], problem.original.graph)}
        if len(rest) > _MANY:
            rest = (sample(whole, rest) or rest) - problem.cleared
        case = whole.only(rest, outputs=False)
        return case if case is not None and legal(case) else None

    @staticmethod
    def _judge_rest(problem: Problem, rest: Case) -> None:
        """If it computes something wrong as well, that is another failure, though nobody may know its operator."""
        answer = problem.answer(rest, "what else is wrong")
        failure = answer.failure
        if answer.verdict is not Verdict.SAME or failure is None or failure.signature.kind != "mismatched":
            return
        if failure.signature.op in (None, TOGETHER):
            problem.meet(rest, answer)

    def _reduction(self, problem: Problem, why: str, twin: Case | None) -> Reduction:
        return Reduction(
            problem.original,
            problem.best,
            size_of(problem.original),
            problem.size,
            problem.spent,
            0.0,
            why,
            twin=twin,
            steps=len(problem.trail) - 1,
            slow=self._slow,
        )

    def _delivered(self, problem: Problem, result: Reduction) -> Reduction:
        """Save the smallest case whose script fails in a fresh interpreter."""
        if problem.best is problem.original:
            return result
        best, failed = self._delivering().smallest(problem.trail)
        return replaced(
            result,
            after=best.case,
            size=problem.measure(best.case),
            entry=best.entry,
            delivery=best.delivery,
            twin=result.twin if best.case is problem.best and not best.failed else None,
            unverified=tuple(one.case for one in failed),
        )

    def _delivering(self) -> Delivering:
        return Delivering(
            self._place, self._found.id, self._terms.trust, self._run_script, self._lasting, self._deliver
        )

    def _lasting(self, case: Case, seen: Failure) -> Failure | None:
        """How a case fails if it is given as much time as it takes to be sure. None: it does not."""
        recorded = self._found.case.failure
        if recorded is None or seen.signature.kind != "timed out" or self._runner is None:
            return seen
        deadline = self._time_for_one(sure=True)
        if deadline <= self._time_for_one():
            return seen
        outcome = self._runner.run(replace(self._question(case), deadline=deadline))
        same = verdict_of(outcome, self._signature, self._terms.match) is Verdict.SAME
        return failure_of(outcome) if same and is_failure(outcome) else None

"""Who is at fault, by what was measured; where that is not enough to know it, more is measured.

decision = decide(bench)        `bench` makes the runs, each of them once, when it is asked for it
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from torchsleuth.case.signatures import ORIGIN
from torchsleuth.compare import same
from torchsleuth.errors import CompareError
from torchsleuth.frontend.testimony import Blame, Run, Standing, Way
from torchsleuth.outcome import Crashed, Outcome, Raised, Stage, TimedOut
from torchsleuth.run.observing.signatures import signature_of

AOT: Final = "AOT"
BEHIND_AOT: Final = "its own compiler, behind AOT"
ITSELF: Final = "its own code"
EAGER, AOT_EAGER = "eager", "aot_eager"
_FROM_AOT_ON: Final = frozenset(
    {
        Stage.AOT, Stage.DECOMPOSITION, Stage.JOINT_GRAPH, Stage.POST_GRAD, Stage.LOWERING, Stage.SCHEDULING,
        Stage.CODEGEN, Stage.CPP_COMPILE, Stage.TRITON_COMPILE, Stage.LOAD,
    }
)  # fmt: skip
"""Stages that a backend alone has."""
_MISBEHAVED: Final = "BackendMisbehaved"
"""What our front end raises if what a backend gives is no compiled graph."""


@dataclass(frozen=True)
class Decision:
    """The verdict and its reason."""

    blame: Blame
    reason: str
    part: str = ""
    """Which part of the backend it is, if it is the backend and that is known."""


class Bench(Protocol):
    """Where the runs are made."""

    backend_name: str
    without_compiler: bool
    """The backend compiles nothing: it is "eager"."""

    @property
    def eager(self) -> Run: ...
    @property
    def dynamo(self) -> Run: ...
    @property
    def ours(self) -> Run: ...
    @property
    def no_witness(self) -> str:
        """Why our run tells nothing of the backend; empty if it does."""

    @property
    def our_fault(self) -> str:
        """How our translator has failed, though the call went on; empty if it has not."""

    @property
    def has_aot(self) -> bool:
        """The backend is known to be one behind AOT, or AOT was seen at work in it."""

    @property
    def dynamo_with_eager(self) -> Run: ...
    @property
    def graphs_alone(self) -> Run | None:
        """Dynamo's graphs, given to the backend without Dynamo; None if they cannot be had."""

    def ours_with(self, backend: str) -> Run:
        """Ours with a simpler backend."""


def decide(bench: Bench) -> Decision:
    """Who is at fault."""
    eager = bench.eager
    if ends_the_process(eager):
        reason = f"eager itself does not come to an end, so there is nothing to go by: it {eager.words}"
        return Decision(Blame.UNCLEAR, f"{reason}; nothing else was run")
    if eager.standing.is_right:
        return _with_measure(bench)
    if eager.failure is None and (bench.dynamo.failure is not None or bench.ours.failure is not None):
        found = _with_measure(_FailuresAlone(bench))
        return replace(found, reason=f"{found.reason}; failures alone count, since eager's values are no measure")
    return _without_measure(eager, (bench.dynamo, bench.ours))


def ends_the_process(eager: Run) -> bool:
    """Whether eager hangs or kills the process: then whatever does the same is as it should be."""
    return isinstance(eager.failure, (Crashed, TimedOut))


def _with_measure(bench: Bench) -> Decision:
    dynamo, ours = bench.dynamo, bench.ours
    if dynamo.standing is Standing.UNKNOWN:
        return Decision(Blame.UNCLEAR, f"of {dynamo.name} there is no telling: {dynamo.words}")
    if dynamo.standing is Standing.WRONG:
        return _both_wrong(bench) if ours.standing is Standing.WRONG else _only_dynamo_wrong(bench)
    if ours.standing is Standing.WRONG:
        return _only_ours_wrong(bench)
    if bench.our_fault:
        reason = f"{dynamo.name} agrees with eager; our own translator failed, and the call went on natively"
        return Decision(Blame.OURS, f"{reason}: {bench.our_fault}")
    if ours.standing is Standing.UNKNOWN:
        reason = f"{dynamo.name} is right; of {ours.name} there is no telling: {ours.words}"
        return Decision(Blame.UNCLEAR, reason)
    if bench.no_witness:
        reason = f"{dynamo.name} agrees with eager; our own front end says nothing: {bench.no_witness}"
        return Decision(Blame.NOBODY, reason)
    noise = ", up to rounding" if Standing.NOISE in (dynamo.standing, ours.standing) else ""
    return Decision(Blame.NOBODY, f"all three agree{noise}")


def _without_measure(eager: Run, others: tuple[Run, ...]) -> Decision:
    if eager.failure is None:
        return Decision(Blame.UNCLEAR, f"eager is no measure: {eager.words}")
    alike = [run.name for run in others if run.standing.is_right]
    also = f"; so does {' and '.join(alike)}" if alike else ""
    return Decision(Blame.UNCLEAR, f"eager itself fails, so there is nothing to go by: it {eager.words}{also}")


class _FailuresAlone:
    """A bench where values are no measure: a run that has not failed is right, as far as can be known."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.backend_name = bench.backend_name
        self.without_compiler = bench.without_compiler

    @property
    def eager(self) -> Run:
        return _unless_failed(self._bench.eager)

    @property
    def dynamo(self) -> Run:
        return _unless_failed(self._bench.dynamo)

    @property
    def ours(self) -> Run:
        return _unless_failed(self._bench.ours)

    @property
    def no_witness(self) -> str:
        return self._bench.no_witness

    @property
    def our_fault(self) -> str:
        return self._bench.our_fault

    @property
    def has_aot(self) -> bool:
        return self._bench.has_aot

    @property
    def dynamo_with_eager(self) -> Run:
        return _unless_failed(self._bench.dynamo_with_eager)

    @property
    def graphs_alone(self) -> Run | None:
        run = self._bench.graphs_alone
        return None if run is None else _unless_failed(run)

    def ours_with(self, backend: str) -> Run:
        return _unless_failed(self._bench.ours_with(backend))


def _unless_failed(run: Run) -> Run:
    return run if run.failure is not None else replace(run, standing=Standing.RIGHT)


def _only_ours_wrong(bench: Bench) -> Decision:
    ours = bench.ours
    if _is_misbehaviour(ours.failure):
        return Decision(
            Blame.BACKEND,
            f"what {bench.backend_name} gives is no compiled graph, and Dynamo puts up with it: ours {ours.words}",
            ITSELF,
        )
    reason = f"Dynamo is right with the same backend, so this is a bug of torchsleuth: {ours.words}"
    if not bench.without_compiler and bench.ours_with(EAGER).standing.is_right:
        reason += (
            f". Run as they are, our graphs are right; {bench.backend_name} makes something else of them: they are not"
            " as it wants them, or they set off a bug of its own that Dynamo's do not"
        )
    return Decision(Blame.OURS, reason)


def _only_dynamo_wrong(bench: Bench) -> Decision:
    """Is it Dynamo? Or does Dynamo give right graphs to a backend that does not stumble over ours?"""
    dynamo, ours, plain = bench.dynamo, bench.ours, bench.dynamo_with_eager
    is_witnessed = ours.standing.is_right and not bench.no_witness
    witness = "our own front end is right with the same backend"
    if not is_witnessed:
        witness = f"our own front end is no witness: {bench.no_witness or ours.words}"
    if plain.standing is Standing.WRONG:
        also = "" if bench.without_compiler else "with the backend eager as well: "
        return Decision(Blame.FRONT_END, f"Dynamo is wrong with no compiler behind it, {also}{plain.words}; {witness}")
    if not plain.standing.is_right:
        return Decision(Blame.UNCLEAR, f"of {plain.name} there is no telling: {plain.words}; {witness}")
    graphs = bench.graphs_alone
    if graphs is not None and graphs.standing is Standing.WRONG:
        if graphs.failure is not dynamo.failure and not fail_alike(graphs, dynamo):
            said = f"{dynamo.words}; given Dynamo's graphs without Dynamo, {bench.backend_name} {graphs.words}"
            if graphs.failure is not None and _is_from_aot_on(dynamo.failure):
                reason = f"run as they are, Dynamo's graphs do not fail, and {bench.backend_name} fails over them"
                return Decision(Blame.BACKEND, f"{reason} with Dynamo and without, if not alike: it {said}; {witness}")
            return Decision(Blame.UNCLEAR, f"{dynamo.name} is wrong: {said}; {witness}")
        why_not_ours = "our graphs do not set it off (see where they differ)" if is_witnessed else witness
        return Decision(
            Blame.BACKEND,
            f"run as they are, Dynamo's graphs are right, and what {bench.backend_name} makes of them without Dynamo is"
            f" wrong: {graphs.words}; {why_not_ours}",
        )
    handed = "Dynamo's graphs are right as they are"
    if graphs is not None and graphs.standing.is_right:
        handed += f", and so is what {bench.backend_name} makes of them without Dynamo: it is in what goes with them"
    if not is_witnessed:
        return Decision(Blame.UNCLEAR, f"{dynamo.name} is wrong: {dynamo.words}; {handed}; {witness}")
    return Decision(Blame.FRONT_END, f"{witness}, and {dynamo.name} is not: {dynamo.words}; {handed}")


def _both_wrong(bench: Bench) -> Decision:
    """Is it what both share, the backend? Then both are right without it."""
    dynamo, ours = bench.dynamo, bench.ours
    alike = wrong_alike(dynamo, ours)
    how = f"both front ends {alike}" if alike else "both front ends are wrong, but not alike"
    said = dynamo.words if alike else f"{dynamo.words}; ours: {ours.words}"
    if bench.without_compiler:
        return Decision(Blame.UNCLEAR, f"{how}, and there is no compiler behind them: {said}")
    plain = bench.ours_with(EAGER)
    if plain.standing.is_right and (alike or bench.dynamo_with_eager.standing.is_right):
        part, where = _part(bench)
        reason = f"both front ends are wrong with {bench.backend_name}, but not alike ({said}), and right with eager"
        if alike:
            reason = f"both front ends {alike} with {bench.backend_name}, and ours is right with eager"
        return Decision(Blame.BACKEND, f"{reason}; {where}", part)
    return Decision(Blame.UNCLEAR, f"{how}: {said}; without a compiler ours is {plain.standing}: {plain.words}")


def _part(bench: Bench) -> tuple[str, str]:
    """Is it AOT, or what is behind it? Of a backend without AOT there is nothing to be told apart."""
    if bench.backend_name == AOT_EAGER:
        return AOT, "there is nothing but AOT in it"
    if not bench.has_aot and not _is_from_aot_on(bench.dynamo.failure):
        return _part_without_aot(bench.dynamo)
    aot = bench.ours_with(AOT_EAGER)
    if aot.standing.is_right:
        return BEHIND_AOT, "with aot_eager it is right too: it happens after AOT"
    if aot.standing is Standing.WRONG and wrong_alike(aot, bench.ours):
        return AOT, "with aot_eager it is as wrong: it happens in AOT"
    return "", f"with aot_eager it is {aot.standing}, though not alike: {aot.words}"


def _part_without_aot(run: Run) -> tuple[str, str]:
    if isinstance(run.failure, (Crashed, TimedOut)):  # whoever has seen AOT in it is dead
        return "", "whether AOT has a part in it is not known"
    does = "computes" if run.failure is None else "raises"
    return ITSELF, f"no AOT is at work in it: it {does} this itself"


def _is_from_aot_on(failure: Outcome | None) -> bool:
    """Whether the backend has failed in AOT, or behind it."""
    return failure is not None and failure.stage in _FROM_AOT_ON


def _is_misbehaviour(failure: Outcome | None) -> bool:
    """Whether our front end has raised it, but only since the backend gives what is no compiled graph."""
    return isinstance(failure, Raised) and any(name.rpartition(".")[2] == _MISBEHAVED for name in failure.type_chain)


# ---- alike ---------------------------------------------------------------------------------------------------


def wrong_alike(one: Run, other: Run) -> str:
    """What two wrong runs have in common, in words; empty if they are not wrong alike."""
    if one.failure is not None or other.failure is not None:
        return "fail alike" if fail_alike(one, other) else ""
    if one.results is None or other.results is None or one.effect != other.effect:
        return ""
    try:
        return "give the same wrong result" if same(one.results, other.results) else ""
    except CompareError:
        return ""


def fail_alike(one: Run, other: Run) -> bool:
    """Whether it is one failure that shows in both."""
    if one.failure is None or other.failure is None:
        return False
    first, second = signature_of(one.failure), signature_of(other.failure)
    return first is not None and second is not None and ORIGIN(first, second)


def failed(way: Way, backend: str, failure: Outcome) -> Run:
    """A run that has no result."""
    return Run(way, backend, Standing.WRONG, _failure_words(failure), failure=failure)


def _failure_words(failure: Outcome) -> str:
    where = "" if failure.stage in (Stage.UNKNOWN, Stage.RUN) else f" ({failure.stage})"
    if not isinstance(failure, Raised):
        return f"{failure.describe().removesuffix(f' ({failure.stage})')}{where}"
    kind = failure.type_chain[-1].rpartition(".")[2] if failure.type_chain else "an exception"
    said = (failure.cause or failure.message).strip().partition("\n")[0]
    return f"raises {kind}{f': {said}' if said else ''}{where}"

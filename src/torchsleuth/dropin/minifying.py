"""Making a script smaller: the engine's `minify`, told of in torch's form.

    reducing = Reducing(gm, args, Compiler(After.AOT, "inductor"), wanted, dump)
    reducing.run()

The graph becomes a case, and is asked about in warm workers, or in this process. Each better one is handed to `dump`,
so that whatever ends it, the best so far is there as a script. The last one was run in a fresh interpreter.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from torch import fx

from torchsleuth import torch_compat
from torchsleuth.case import schema
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.script import expected
from torchsleuth.case.signatures import KIND, ORIGIN, Match, exit_code_of, may_be_one_wreck
from torchsleuth.case.storages.blobs import Blobs
from torchsleuth.case.stores.store import Store
from torchsleuth.case.surroundings import environment
from torchsleuth.case.surroundings.state import restored
from torchsleuth.dropin.guarding import safely
from torchsleuth.dropin.places import minifier_dir
from torchsleuth.errors import DoesNotFail
from torchsleuth.outcome import Broken, Crashed, Outcome, is_failure
from torchsleuth.reduce.events import Event, Improved
from torchsleuth.reduce.minifying import Reduction, Terms, minify
from torchsleuth.reduce.tiers import TIERS
from torchsleuth.run.delivery import Delivery, Runner as ScriptRunner
from torchsleuth.run.observing.signatures import failure_of, signature_of
from torchsleuth.run.query import Checks, Query, Runner
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.warm import Warm
from torchsleuth.run.scripts import TIMEOUT, Ran, run_script

log = logging.getLogger("torch._dynamo.repro")

NOT_FAILING: Final = "Input graph did not fail the tester"
"""What torch says if there is nothing to make smaller."""
_OURS: Final = re.compile(
    r"repro_.*|same_two_models_use_fp64|debug_dir_root|assume_static_by_default|automatic_dynamic_shapes"
)
"""Settings of Dynamo that the run of a script depends on, whatever the compiler needs. Also which sizes are symbols."""
_DEADLINE: Final = 180.0
_OPTIONS: Final = ("defaults", "settings", "options")
"""Passes that are not for one process: torch remembers there what it found out under other options, and mixes it up."""
_OTHERS: Final = ("simplifying",)
"""Passes that put one operator in the place of another: not where any wrong result will do, for it may be another."""


@dataclass(frozen=True)
class Wanted:
    """Which failure is looked for, and where."""

    accuracy: str = ""
    """"": something raises or crashes; "accuracy", "strict_accuracy": something computes other results."""
    check_str: str | None = None
    isolate: bool = True
    skip_sanity: bool = False

    @property
    def match(self) -> Match:
        if self.check_str is not None:
            return Match("regex", re.compile(re.escape(self.check_str)))
        return KIND if self.accuracy == "strict_accuracy" else ORIGIN

    @property
    def checks(self) -> Checks:
        """How results are compared: as the settings of torch's own tool say, which `run` goes by as well."""
        settings = torch_compat.dynamo_config()
        lenient = self.accuracy == "accuracy"
        return Checks(
            tolerance=settings.repro_tolerance,
            fp64=bool(settings.same_two_models_use_fp64),
            ignore_non_fp=lenient or bool(settings.repro_ignore_non_fp),
            forward_only=bool(settings.repro_forward_only),
            judged=False,
            require_fp64=lenient,
        )

    def runner(self) -> Runner:
        return Warm() if self.isolate else InProcess()


Dump = Callable[[fx.GraphModule, Sequence[Any]], None]
"""Writes a graph and its inputs as a checkpoint, and as `repro.py`."""
Text = Callable[[fx.GraphModule, Sequence[Any], str], str]
"""The script of a graph and its inputs, with the folder for its data."""


class Reducing:
    """One run of the command minify."""

    def __init__(
        self,
        gm: fx.GraphModule,
        args: Sequence[Any],
        compiler: schema.Compiler,
        wanted: Wanted,
        *,
        dump: Dump,
        text: Text,
        examples: Sequence[Any] | None = None,
    ) -> None:
        self._wanted = wanted
        self._dump = dump
        self._text = text
        self._store = Store.open(os.path.join(minifier_dir(), "cases"))
        recording = Recording(gm, self._store.blobs, examples)
        self._case = recording.case(args, compiler)

    def run(self) -> Reduction:
        """Make it as small as it can be. A RuntimeError if the whole does not fail."""
        print(f"Started off with {len(self._case.graph.nodes)} nodes", file=sys.stderr)
        with self._wanted.runner() as runner:
            failure = None if self._wanted.skip_sanity else self._failure(runner)
            entry = self._store.save(msgspec.structs.replace(self._case, failure=failure))
            try:
                reduction = minify(
                    self._store.find(entry.id),
                    runner=runner,
                    store=self._store,
                    terms=self._terms(),
                    observers=(self._observe,),
                    deliver=self._deliver,
                )
            except DoesNotFail as error:
                raise RuntimeError(f"{NOT_FAILING}: {error.cause}") from error
        self._conclude(reduction, reduction.delivery or self._of_whole(Path(entry.path), failure))
        return reduction

    def _of_whole(self, folder: Path, failure: schema.Failure | None) -> Delivery:
        """The script of what could not be made any smaller: that is run, too."""
        case = msgspec.structs.replace(self._case, failure=failure)
        return self._deliver(self._store.blobs, case, folder / "repro.py", trust=True, run=True, runner=run_script)

    def _terms(self) -> Terms:
        wanted = self._wanted
        strict = wanted.accuracy == "strict_accuracy"
        return Terms(
            match=wanted.match,
            trust=True,  # it is the user's own process, and the user's own code
            accuracy=wanted.accuracy != "",
            checks=wanted.checks,
            find_op=not strict,
            tiers=[tier for tier in TIERS if tier.name not in (() if wanted.isolate else _OPTIONS) + _OTHERS * strict],
        )

    def _failure(self, runner: Runner) -> schema.Failure | None:
        """How the whole graph fails, in the way that is looked for."""
        query = Query(
            self._case,
            self._store.home,
            accuracy=self._wanted.accuracy != "",
            checks=self._wanted.checks,
            trust=True,
            deadline=_DEADLINE,
        )
        outcome = runner.run(query)
        if isinstance(outcome, Broken):
            raise RuntimeError(f"torchsleuth itself failed: {outcome.reason}\n{outcome.traceback}")
        if not is_failure(outcome) or not self._is_wanted(outcome):
            raise RuntimeError(f"{NOT_FAILING}: {outcome.describe()}")
        return failure_of(outcome)

    def _is_wanted(self, outcome: Outcome) -> bool:
        """Whether a failure is one that was asked for: what raises is no wrong result."""
        failure = failure_of(outcome)
        if failure is None:
            return False
        if self._wanted.accuracy:
            return failure.signature.kind == "mismatched"
        said = self._wanted.check_str
        return said is None or said in "\n".join((*failure.signature.types, outcome.describe(), failure.message))

    # ---- what comes of it ------------------------------------------------------------------------------------

    def _observe(self, event: Event) -> None:
        if isinstance(event, Improved):
            print(f"Went to {event.size.in_words}: {event.words}", file=sys.stderr)
            safely(log, lambda: self._dumped(event.case))

    def _dumped(self, case: schema.Case) -> None:
        with self._as_it_was(case):
            self._dump(*self._read(case))

    def _read(self, case: schema.Case) -> tuple[fx.GraphModule, list[Any]]:
        reader = GraphReader(case, self._store.blobs)
        return reader.read(), reader.inputs()

    @contextmanager
    def _as_it_was(self, case: schema.Case) -> Iterator[None]:
        """With the configuration that a case needs, and the settings of ours that its script depends on."""
        module = "torch._dynamo.config"
        ours = {name: value for name, value in torch_compat.config_values(module).items() if _OURS.fullmatch(name)}
        with ExitStack() as stack:
            stack.enter_context(restored(case.state, trust=True))
            stack.enter_context(torch_compat.config_patch(module, ours))
            yield

    def _deliver(
        self, blobs: Blobs, case: schema.Case, out: Path, *, trust: bool, run: bool, runner: ScriptRunner
    ) -> Delivery:
        """Write the script of a case in torch's form, and run it in a fresh interpreter."""
        with self._as_it_was(case):
            text = self._text(*self._read(case), str(out.parent))
        out.write_text(text, encoding="utf-8")
        words = expected.in_words(case.failure)
        if not run:
            return Delivery(out, expected=words, not_run="it was asked for without a run")
        ran = runner(out, timeout=TIMEOUT, environ=environment.for_child((), os.environ))
        return Delivery(
            out,
            reproduces=_is_as_seen(case.failure, ran, self._wanted.check_str),
            expected=words,
            seen=ran.describe(),
            seconds=ran.seconds,
        )

    def _conclude(self, reduction: Reduction, delivery: Delivery) -> None:
        self._dumped(reduction.after)
        spent = reduction.spent
        print(f"Made {spent.queries} queries ({spent.known} more answers were known)", file=sys.stderr)
        for entry, answer in reduction.others:
            print(f"Another failure was met, and kept as {entry.path}: {answer.words}", file=sys.stderr)
        if reduction.why:
            print(f"It was stopped before the end: {reduction.why}", file=sys.stderr)
        print(f"repro.py {delivery.describe()}", file=sys.stderr)
        if delivery.reproduces is False and self._wanted.isolate:
            raise RuntimeError(f"repro.py {delivery.describe()}")


def _is_as_seen(failure: schema.Failure | None, ran: Ran, check_str: str | None = None) -> bool:
    """Whether a run of a script failed as its case does."""
    if check_str is not None and check_str not in ran.stderr:
        return False
    if failure is None:
        return ran.code != 0
    signature = failure.signature
    if (code := exit_code_of(signature)) is not None:
        return ran.code == code and "Traceback" not in ran.stderr
    if signature.kind == "crashed":
        died = None if ran.signal is None else Crashed(signature.stage, signal=ran.signal, stderr=ran.stderr)
        seen = None if died is None else signature_of(died)
        return seen is not None and (signature.signal in (None, ran.signal) or may_be_one_wreck(signature, seen))
    if signature.kind == "timed out":
        return ran.timed_out
    if signature.kind == "mismatched":
        return ran.code == 1 and "AccuracyError" in ran.stderr
    names = [name.rpartition(".")[2] for name in signature.types]
    return ran.code not in (0, None) and (not names or any(name in ran.stderr for name in names))

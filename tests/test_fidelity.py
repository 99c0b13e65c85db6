"""Whether a case reproduces, and what differs if it does not. Covers: U6, U8."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from case_samples import small_case
from replay_samples import (
    OTHER,
    PASSED,
    SAME,
    SCRIPT_PASSES,
    SCRIPT_SAME,
    WRONG,
    kept,
    opened,
    with_failure,
    with_origin,
)
from torchsleuth import AccuracyError, watch
from torchsleuth.case import schema
from torchsleuth.case.schema import Earlier, Node, Ref
from torchsleuth.case.script.expected import SAME as SAME_VERDICT
from torchsleuth.case.stores.examining import Found
from torchsleuth.outcome import Broken, Outcome, Stage, Symptom, Unrunnable
from torchsleuth.run.differences import Kind
from torchsleuth.run.fidelity import Fidelity, verify
from torchsleuth.run.query import Query
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.runners.scripted import Scripted
from torchsleuth.run.scripts import Ran

HERE = with_origin(torch=str(torch.__version__), python=platform.python_version())
Answers = Sequence[Outcome] | Callable[[Query], Outcome]


class Script:
    """Takes the place of a run of the script."""

    def __init__(self, stdout: str = SCRIPT_SAME) -> None:
        self.ran = Ran(1 if "as recorded" in stdout else 0, stdout=stdout)
        self.runs = 0

    def __call__(self, script: Path, *, timeout: float, environ: Mapping[str, str]) -> Ran:
        assert script.exists()
        self.runs += 1
        return self.ran


def verified(
    tmp_path: Path, answers: Answers, script: str = SCRIPT_SAME, *, repeats: int = 5, **changes: Any
) -> Fidelity:
    found = kept(opened(tmp_path), **{"origin": HERE, **changes})
    return verify(found, runner=Scripted(answers), run_script=Script(script), repeats=repeats)


def kinds(fidelity: Fidelity) -> list[tuple[Kind, bool]]:
    return [(finding.kind, finding.certain) for finding in fidelity.findings]


def test_a_case_that_reproduces_says_so_in_one_word(tmp_path: Path) -> None:
    """Covers: U6"""
    fidelity = verified(tmp_path, [SAME])
    assert (fidelity.describe(), fidelity.exit_code, fidelity.findings, fidelity.notes) == ("reproduces", 0, (), ())
    assert fidelity.delivery is not None
    assert fidelity.delivery.reproduces


def test_what_differs_but_does_not_matter_is_not_told(tmp_path: Path) -> None:
    noted = dataclasses.replace(SAME, notes=("not all of the configuration is as in the case: x (no)",))
    fidelity = verified(tmp_path, [noted], origin=with_origin(torch="1.0"))
    assert (fidelity.describe(), fidelity.findings) == ("reproduces", ())


@pytest.mark.parametrize(("outcome", "code"), [(Unrunnable(reason="no such device"), 2), (Broken(reason="ours"), 3)])
def test_what_cannot_be_run_is_no_difference(tmp_path: Path, outcome: Outcome, code: int) -> None:
    fidelity = verified(tmp_path, [outcome])
    assert (fidelity.exit_code, fidelity.reproduces, fidelity.delivery) == (code, False, None)
    assert fidelity.describe() == outcome.describe()


def test_a_failure_that_does_not_show_each_time_is_measured(tmp_path: Path) -> None:
    """Covers: U6"""
    fidelity = verified(tmp_path, [PASSED, SAME, PASSED, SAME, PASSED], SCRIPT_PASSES)
    assert kinds(fidelity) == [(Kind.NONDETERMINISM, True)]
    assert "fails in 2 of 5 runs (12–77 %)" in fidelity.describe()
    assert fidelity.exit_code == 1


def test_a_failure_that_does_not_show_at_all_is_looked_for_again_before_that_is_said(tmp_path: Path) -> None:
    fidelity = verified(tmp_path, [PASSED] * 5, SCRIPT_PASSES)
    assert (fidelity.rate.n, fidelity.rate.same, fidelity.findings) == (5, 0, ())
    assert fidelity.describe().endswith("seen: passed (run)")
    fidelity = verified(tmp_path, [OTHER] * 2, SCRIPT_PASSES, repeats=2)
    assert "seen: raised builtins.KeyError" in fidelity.describe()


def test_the_script_is_to_blame_if_the_replay_shows_it_and_the_script_does_not(tmp_path: Path) -> None:
    fidelity = verified(tmp_path, [SAME] * 3, SCRIPT_PASSES)
    assert kinds(fidelity) == [(Kind.SCRIPT, True)]
    assert "no failure" in fidelity.findings[0].words
    assert (fidelity.exit_code, fidelity.rate.n) == (1, 3)


def test_the_replay_is_to_blame_if_only_the_script_shows_it(tmp_path: Path) -> None:
    fidelity = verified(tmp_path, [PASSED] * 5)
    assert kinds(fidelity) == [(Kind.SCRIPT, True)]
    assert "the replay does not" in fidelity.findings[0].words


def _with_history(tmp_path: Path, *listed: Earlier) -> Found:
    store = opened(tmp_path)
    before = kept(store, failure=None, origin=with_origin(graph="forward graph 9", earlier=True))
    history = (*listed, Earlier("forward graph 9", 3, before.id))
    return kept(store, origin=with_origin(torch=HERE.torch, python=HERE.python, history=history))


def test_a_failure_that_needs_the_graphs_of_before_is_found_out(tmp_path: Path) -> None:
    """Covers: U6"""
    runner = Scripted(lambda query: SAME if query.history else PASSED)
    fidelity = verify(_with_history(tmp_path), runner=runner, run_script=Script(SCRIPT_PASSES), repeats=2)
    assert kinds(fidelity) == [(Kind.HISTORY, True)]
    assert "--with-history" in fidelity.findings[0].remedy
    assert [len(query.history) for query in runner.queries] == [0, 0, 1]
    again = verify(_with_history(tmp_path), runner=runner, run_script=Script(SCRIPT_PASSES), with_history=True)
    assert again.describe().startswith("the replay reproduces, after the graphs that were compiled before it")
    assert "compiles no other graph first" in again.notes[0]


def test_graphs_of_before_that_are_gone_are_only_a_possibility(tmp_path: Path) -> None:
    found = _with_history(tmp_path, Earlier("forward graph 1", 3))
    fidelity = verify(found, runner=Scripted([PASSED] * 2), run_script=Script(SCRIPT_PASSES), repeats=1)
    assert kinds(fidelity) == [(Kind.HISTORY, False)]
    assert "forward graph 1 (it was not kept)" in fidelity.findings[0].words


@pytest.mark.parametrize(
    ("note", "remedy"),
    [
        ("cpp.cxx = 'g++ -x' (it could reach a command line; set only if the case is trusted)", "--trust sets it"),
        ("gone (this torch does not have it)", "replay it with torch"),
        ("hook (the case does not hold it: no word for it)", "set it yourself"),
    ],
)
def test_options_that_are_not_as_in_the_case_are_told(tmp_path: Path, note: str, remedy: str) -> None:
    """Covers: U6"""
    said = f"not all of the configuration is as in the case: torch._inductor.config.{note}"
    outcome = dataclasses.replace(PASSED, notes=(said, "before it, forward graph 0: passed (run)", "something else"))
    fidelity = verified(tmp_path, [outcome], SCRIPT_PASSES, repeats=1)
    (finding,) = fidelity.findings
    assert (finding.kind, finding.words, finding.certain) == (Kind.CONFIGURATION, said, True)
    assert finding.remedy.startswith(remedy)


def test_other_versions_and_another_machine_are_told(tmp_path: Path) -> None:
    origin = with_origin(torch="1.0", python="3.7.1", platform="Plan9 pdp11")
    fidelity = verified(tmp_path, [PASSED], SCRIPT_PASSES, repeats=1, origin=origin)
    assert [finding.kind for finding in fidelity.findings] == [Kind.VERSIONS] * 3
    assert [finding.words.split(",")[0] for finding in fidelity.findings] == [
        "it was recorded with torch 1.0",
        "it was recorded with Python 3.7.1",
        "it was recorded on Plan9 pdp11",
    ]


def test_devices_and_threads_that_are_not_here_are_told(tmp_path: Path) -> None:
    outcome = dataclasses.replace(PASSED, notes=("the random state of these devices is not set: cuda:0",))
    fidelity = verified(tmp_path, [outcome], SCRIPT_PASSES, repeats=1, state=schema.State(threads=4000))
    assert [finding.kind for finding in fidelity.findings] == [Kind.STATE, Kind.STATE]
    assert "4000 threads" in fidelity.findings[1].words


def _code(tmp_path: Path, recorded: str, now: str, script: str = SCRIPT_PASSES, outcome: Outcome = PASSED) -> Fidelity:
    store = opened(tmp_path)
    found = kept(store, origin=HERE)
    store.put_file(str(found.id), "output_code.py", recorded.encode())
    answer = dataclasses.replace(outcome, code=now)
    return verify(found, runner=Scripted([answer]), run_script=Script(script), repeats=1)


def test_code_that_is_generated_differently_is_shown(tmp_path: Path) -> None:
    """Covers: U8"""
    fidelity = _code(tmp_path, "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 4\nc = 3\n")
    (finding,) = fidelity.findings
    assert (finding.kind, finding.certain) == (Kind.CODE, True)
    assert "1 lines less, 1 more" in finding.words
    assert "-b = 2\n+b = 4" in finding.detail
    fidelity = _code(tmp_path, "a = 1\n", "a = 2\n", SCRIPT_SAME, SAME)
    assert fidelity.describe() == "reproduces"
    assert "other code" in fidelity.notes[0]


def test_paths_addresses_and_hashes_make_no_other_code(tmp_path: Path) -> None:
    """Covers: U8"""
    recorded = f"# kernel path: /tmp/me/ab/c{'a2' * 26}.py\nx = '{'c' + 'bz' * 25}'  # 0xdeadbeef\n\n"
    now = f"# kernel path: /var/you/cd/c{'d3' * 26}.py\nx = '{'c' + 'qr' * 25}'  # 0x7f00\n"
    assert _code(tmp_path, recorded, now).findings == ()


def test_values_that_were_not_kept_are_told_where_they_count(tmp_path: Path) -> None:
    """Covers: U6"""
    made = (schema.Storage(24, schema.Generated("uniform", "float32")),)
    wrong = with_failure("mismatched", Stage.COMPARE, "differs\nand so on (max_dump)", symptom=Symptom.VALUE)
    for failure, expected in ((wrong, [(Kind.DATA, True)]), (small_case().failure, [])):
        case = small_case(storages=made, failure=failure, origin=HERE)
        store = opened(tmp_path)
        found = store.find(store.save(case).id)
        fidelity = verify(found, runner=Scripted([PASSED]), run_script=Script(SCRIPT_PASSES), repeats=1)
        assert kinds(fidelity) == expected  # a compiler sees no values
    (finding,) = verify(
        store.find(store.save(small_case(storages=made, failure=wrong, origin=HERE)).id),
        runner=Scripted([PASSED]),
        run_script=Script(SCRIPT_PASSES),
        repeats=1,
    ).findings
    assert finding.words.startswith("1 of 1 tensors")
    assert "max_dump" in finding.remedy


def test_inputs_that_were_written_to_and_random_numbers_are_possibilities(tmp_path: Path) -> None:
    x, _, out = small_case().graph.nodes
    drawn = Node("y", "call_function", "torch.ops.aten.bernoulli.default", (Ref("x"),))
    written = Node("z", "call_function", "torch.ops.aten.copy_.default", (Ref("x"), Ref("y")))
    failure = with_failure("raised", Stage.RUN, "no")
    graph = schema.Graph((x, drawn, written, out))
    fidelity = verified(tmp_path, [PASSED], SCRIPT_PASSES, repeats=1, graph=graph, failure=failure)
    assert kinds(fidelity) == [(Kind.DATA, False), (Kind.RNG, False)]
    assert "(x)" in fidelity.findings[0].words
    assert "bernoulli" in fidelity.findings[1].words


def test_a_case_without_a_failure_has_none_to_show(tmp_path: Path) -> None:
    fidelity = verified(tmp_path, [PASSED], failure=None)
    assert (fidelity.describe(), fidelity.exit_code) == ("no failure is recorded, and none shows", 0)
    fidelity = verified(tmp_path, [WRONG], failure=None)
    assert fidelity.exit_code == 1
    assert "mismatched" in fidelity.describe()


def test_a_script_that_must_not_be_run_is_a_note(tmp_path: Path) -> None:
    script = Script()
    found = kept(opened(tmp_path), origin=HERE, code=(schema.Code("python op", "mylib::foo", module="mylib"),))
    fidelity = verify(found, runner=Scripted([SAME]), run_script=script)
    assert (fidelity.describe(), script.runs) == ("the replay reproduces; the script was not run", 0)
    assert fidelity.notes[0].startswith("the script was not run: it holds code of the user's own")


@pytest.mark.inductor
def test_inductor_generates_the_code_that_was_kept(tmp_path: Path) -> None:
    """Covers: U6, U8"""
    store = opened(tmp_path)
    fault = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}
    backend = watch("inductor", level=4, store=store.files.root, options=fault)
    with pytest.raises(AccuracyError):
        torch.compile(lambda x: torch.relu(x) + 1, backend=backend)(torch.ones(5))
    (entry,) = store.entries()
    assert (Path(entry.path) / "output_code.py").exists()
    wrong = f"expected: x\nseen: y\nverdict: {SAME_VERDICT}\n"
    fidelity = verify(store.find(entry.id), runner=InProcess(), run_script=Script(wrong))
    assert (fidelity.describe(), fidelity.notes) == ("reproduces", ())
    assert fidelity.outcome.code

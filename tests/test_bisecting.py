"""The bisector: it finds what torch's finds, and more, in fewer runs, and leaves nothing behind.

Most functions here compile nothing: they ask the bisector's class themselves, in the way that torch asks it. So the
same function can be given to torch's bisector, the peer.
"""

from __future__ import annotations

import ast
import functools
import math
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from torchsleuth import torch_compat
from torchsleuth.analyse.bisecting import attempt, bisect
from torchsleuth.analyse.parts import BACKENDS, GRAPHS, Counted, Option, find_part, select
from torchsleuth.analyse.searching import (
    Answer,
    BisectionResult,
    NobodyTookPart,
    Phase,
    Plan,
    Seen,
    Step,
    Tried,
    Unsteady,
)
from torchsleuth.analyse.trials import Trial
from torchsleuth.errors import MissingTorchName, SleuthError, UnknownPart

aten = torch.ops.aten
NAMES = list(BACKENDS)
BISECTOR = "torch._inductor.compiler_bisector"
COUNTED = [(name, part.name) for name, parts in BACKENDS.items() for part in parts if isinstance(part, Counted)]
OPTIONS = [(name, part) for name, parts in BACKENDS.items() for part in parts if isinstance(part, Option)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's bisector keeps its state on the disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture
def peer(capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[[], object]], tuple[Any, ...] | None]:
    """torch's own bisector: backend, subsystem, number and info of what it finds."""
    from torch._inductor.compiler_bisector import CompilerBisector

    def find(fn: Any) -> tuple[Any, ...] | None:
        found = CompilerBisector.do_bisect(fn)
        capsys.readouterr()
        return None if found is None else (found.backend, found.subsystem, found.bisect_number, found.debug_info)

    return find


Peer = Callable[[Callable[[], object]], tuple[Any, ...] | None]


def fields(found: BisectionResult | None) -> tuple[Any, ...] | None:
    return None if found is None else (found.backend, found.subsystem, found.bisect_number, found.debug_info)


@dataclass
class Planted:
    """A function that fails with a backend and those after it, if one application of one subsystem is let through."""

    backend: str
    subsystem: str | None = None
    number: int = 0
    total: int = 1
    calls: int = 0

    def __call__(self) -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        self.calls += 1
        if NAMES.index(asked.get_backend() or "inductor") < NAMES.index(self.backend):
            return True
        part = None if self.subsystem is None else find_part(self.backend, self.subsystem)
        if isinstance(part, Option):
            return asked.get_config_change(self.backend) == {part.option: part.value}
        if part is None:
            return False
        applied = [number for number in range(self.total) if not self._asks(asked, number)]
        return self.number not in applied

    def _asks(self, asked: Any, number: int) -> bool:
        return bool(asked.disable_subsystem(self.backend, self.subsystem, lambda: f"operator {number}"))


# ---- the search --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "subsystem"), COUNTED)
def test_every_application_of_every_subsystem_is_found_as_torch_finds_it(
    backend: str, subsystem: str, peer: Peer
) -> None:
    """Covers: U21, U22"""
    for total in (1, 2, 5):
        for number in range(total):
            found = fields(bisect(Planted(backend, subsystem, number, total)))
            assert found == (backend, subsystem, number, f"operator {number}")
            assert found == peer(Planted(backend, subsystem, number, total))


@pytest.mark.parametrize(("backend", "part"), OPTIONS)
def test_every_option_is_found_as_torch_finds_it(backend: str, part: Option, peer: Peer) -> None:
    """Covers: U22"""
    found = fields(bisect(Planted(backend, part.name)))
    assert found == (backend, part.name, 0, part.name)
    assert found == peer(Planted(backend, part.name))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_found_as_torch_finds_it(backend: str, peer: Peer) -> None:
    """Covers: U21"""
    found = fields(bisect(Planted(backend)))
    assert found == (backend, None, None, None)
    assert found == peer(Planted(backend))


def test_what_never_fails_is_nobodys_fault(peer: Peer) -> None:
    assert bisect(lambda: True) is None
    assert peer(lambda: True) is None


def test_what_always_fails_is_found_in_eager(peer: Peer) -> None:
    assert fields(bisect(lambda: False)) == peer(lambda: False) == ("eager", None, None, None)


def test_what_counts_is_whether_the_result_is_true() -> None:
    assert bisect(lambda: torch.tensor(True)) is None
    assert bisect(lambda: [0]) is None
    assert bisect(lambda: None) == BisectionResult("eager")


@pytest.mark.parametrize("total", [1, 2, 3, 100, 1000])
def test_it_takes_about_as_many_runs_as_the_number_has_digits(total: int) -> None:
    """Five backends, nine subsystems of Inductor, once more to count, and then bisecting."""
    for number in {0, total // 3, total - 1}:
        fn = Planted("inductor", "lowerings", number, total)
        assert bisect(fn) == BisectionResult("inductor", "lowerings", number, f"operator {number}")
        assert fn.calls <= 5 + 9 + 1 + math.ceil(math.log2(total))


def test_a_backend_is_gone_through_once_if_none_of_its_subsystems_is_to_blame(peer: Peer) -> None:
    """torch goes through the rest of them again for each: 50 runs of compiling a model instead of 14.

    Covers: U22
    """
    ours, theirs = Planted("inductor"), Planted("inductor")
    assert fields(bisect(ours)) == peer(theirs) == ("inductor", None, None, None)
    assert ours.calls == 5 + 9
    assert theirs.calls == 5 + sum(range(1, 10))


def test_two_that_fail_only_together_give_the_second() -> None:
    def fn() -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        if asked.get_backend() != "inductor":
            return True
        applied = {n for n in range(9) if not asked.disable_subsystem("inductor", "lowerings", lambda n=n: f"{n}")}
        return not {2, 6} <= applied

    assert bisect(fn) == BisectionResult("inductor", "lowerings", 6, "6")


def test_what_an_application_is_about_is_told_whole(peer: Peer) -> None:
    """torch keeps it in a file by lines, and loses all but the first."""

    def fn() -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        inductor = asked.get_backend() == "inductor"
        return not inductor or asked.disable_subsystem("inductor", "lowerings", lambda: "  one = 1\ntwo = 2 ")

    found = bisect(fn)
    assert found is not None
    assert found.debug_info == "  one = 1\ntwo = 2 "
    assert peer(fn) == ("inductor", "lowerings", 0, "  one = 1")


def test_without_anything_to_say_about_it_the_number_is_found(peer: Peer) -> None:
    def fn() -> bool:
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        if asked.get_backend() != "inductor":
            return True
        return [asked.disable_subsystem("inductor", "cudagraphs") for _ in range(4)][2]

    assert fields(bisect(fn)) == peer(fn) == ("inductor", "cudagraphs", 2, None)


def test_each_step_is_told() -> None:
    told: list[Tried] = []
    bisect(Planted("aot_eager_decomp_partition", "decomposition", 1, 3), observe=told.append)
    assert [(str(each.step), each.passed) for each in told] == [
        ("eager", True),
        ("aot_eager", True),
        ("aot_eager_decomp_partition", False),
        ("aot_eager_decomp_partition with cse = False", False),
        ("aot_eager_decomp_partition without decomposition", True),
        ("aot_eager_decomp_partition again, to count decomposition", False),
        ("aot_eager_decomp_partition, decomposition 0 to 1 only (looking in 0 to 2)", False),
        ("aot_eager_decomp_partition, decomposition 0 to 0 only (looking in 0 to 1)", True),
    ]


# ---- choosing ----------------------------------------------------------------------------------------------------


def steps_of(fn: Callable[[], object], **chosen: Any) -> list[str]:
    told: list[str] = []
    bisect(fn, observe=lambda tried: told.append(str(tried.step)), **chosen)
    return told


def test_backends_can_be_chosen() -> None:
    """Covers: U22"""
    assert steps_of(lambda: True, backends=["inductor", "eager"]) == ["eager", "inductor"]
    assert steps_of(lambda: True, backends="aot_eager") == ["aot_eager"]


def test_subsystems_can_be_chosen_and_bring_their_backends() -> None:
    """Covers: U22"""
    fn = Planted("aot_eager_decomp_partition")
    assert steps_of(fn, subsystems=["decomposition", "lowerings"]) == [
        "aot_eager_decomp_partition",
        "aot_eager_decomp_partition without decomposition",
    ]
    assert steps_of(lambda: True, subsystems=["decomposition", "lowerings"]) == [
        "aot_eager_decomp_partition",
        "inductor",
    ]
    chosen = {"backends": ["eager", "inductor"], "subsystems": ["lowerings"]}
    assert steps_of(lambda: True, **chosen) == ["eager", "inductor"]


def test_without_subsystems_only_the_backend_is_looked_for() -> None:
    fn = Planted("inductor", "lowerings")
    assert bisect(fn, subsystems=[]) == BisectionResult("inductor")
    assert fn.calls == 5


def test_graphs_one_by_one_come_first_if_they_are_wanted() -> None:
    """Covers: U23"""
    assert GRAPHS not in select()["inductor"]
    assert select(graphs=True)["inductor"][0] is GRAPHS
    assert select(subsystems=["pre_grad_graph"]) == {"inductor": (GRAPHS,)}
    fn = Planted("inductor", "pre_grad_graph", 1, 3)
    assert bisect(fn, graphs=True) == BisectionResult("inductor", "pre_grad_graph", 1, "operator 1")
    assert fn.calls == 5 + 1 + 1 + 2


@pytest.mark.parametrize(
    ("chosen", "word"),
    [
        ({"backends": ["inductr"]}, "inductr"),
        ({"backends": []}, "no backend was named"),
        ({"subsystems": ["lowering"]}, "lowering"),
        ({"backends": ["aot_eager"], "subsystems": ["lowerings"]}, "lowerings"),
    ],
)
def test_a_part_that_is_not_there_is_an_error_before_anything_runs(chosen: dict[str, Any], word: str) -> None:
    fn = Planted("eager")
    with pytest.raises(UnknownPart, match=word) as caught:
        bisect(fn, **chosen)
    assert caught.value.remedy
    assert isinstance(caught.value, ValueError)
    assert fn.calls == 0


def test_every_part_says_what_it_does() -> None:
    """Covers: U22"""
    parts = [part for parts in BACKENDS.values() for part in parts]
    assert all(part.what for part in parts)
    assert len({part.name for part in parts}) == len(parts)


# ---- functions that do not do the same each time -----------------------------------------------------------------


def test_a_function_that_fails_now_and_then_is_said_to_do_so(peer: Peer) -> None:
    """Covers: U22"""

    def unsteady() -> Callable[[], bool]:
        answers = iter([True, True, False, False, True, True])
        return lambda: next(answers)

    with pytest.raises(Unsteady, match="now and then") as caught:
        bisect(unsteady())
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, SleuthError)
    with pytest.raises(RuntimeError, match="find_max_bounds"):
        peer(unsteady())


def test_leaving_out_what_was_never_applied_cannot_have_helped(peer: Peer) -> None:
    def unsteady() -> Callable[[], bool]:
        answers = iter([True, True, False, False, True, False])
        return lambda: next(answers)

    with pytest.raises(Unsteady, match="none of it to leave out"):
        bisect(unsteady())
    with pytest.raises(RuntimeError):
        peer(unsteady())


def test_all_runs_begin_with_the_same_random_numbers_and_none_are_used_up() -> None:
    drawn: list[tuple[float, float]] = []

    def fn() -> bool:
        drawn.append((torch.rand(1).item(), random.random()))
        return len(drawn) < 3

    before = torch.get_rng_state(), random.getstate()
    bisect(fn)
    assert len(drawn) > 3
    assert len(set(drawn)) == 1
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_step_that_needs_counting_needs_somebody_who_counts() -> None:
    step = Step(Phase.COUNTING, "inductor", "lowerings")
    with pytest.raises(NobodyTookPart, match="how often lowerings"):
        Plan(select()).after(Tried(step, False, Seen(), attended=False))


# ---- nothing stays behind ----------------------------------------------------------------------------------------


OF_KERNELS = ("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",)
"""How torch tells an address to the kernels that it loads. Another thread may be loading one."""


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Everything of the process that a bisection might touch is the same afterwards."""

    def surroundings() -> dict[str, Any]:
        return {
            "module": sys.modules.get(BISECTOR),
            "modules like it": [name for name in sys.modules if "bisector" in name],
            "finders": list(sys.meta_path),
            "environment": {name: each for name, each in os.environ.items() if name not in OF_KERNELS},
            "backends": [
                vars(kind)["__call__"] for kind in (torch._TorchCompileInductorWrapper, torch._TorchCompileWrapper)
            ],
            **{
                f"{module}.{name}": repr(sorted(value) if isinstance(value, set) else value)
                for module in torch_compat.CONFIG_MODULES
                if torch_compat.config_is_loaded(module)
                for name, value in torch_compat.config_values(module).items()
            },
            "counters": {name: Counter(each) for name, each in torch._dynamo.utils.counters.items()},
            "answers": torch_compat.current_answers(),
        }

    import torch._dynamo
    import torch._inductor.compile_fx  # what compiling imports is none of the bisector's doing

    before = surroundings()
    yield
    after = surroundings()
    names = {*before, *after}
    assert {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)} == {}


class Interrupted(BaseException):
    """Nobody expects it."""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, Interrupted, StopIteration])
@pytest.mark.parametrize("run", [1, 4, 16, 17])
def test_an_exception_of_the_functions_is_the_callers_and_leaves_nothing(
    error: type[BaseException], run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: U22"""
    planted = Planted("inductor", "lowerings", 3, 9)
    raised = error("of my own")

    def fn() -> bool:
        if planted.calls == run:
            raise raised
        return planted()

    with nothing_left_behind():
        with pytest.raises(error) as caught:
            bisect(fn)
        assert caught.value is raised
    assert bisect(Planted("eager")) == BisectionResult("eager")


def test_torch_lets_an_exception_through_as_well_but_goes_on_bisecting_as_long_as_somebody_holds_it(
    peer: Peer,
) -> None:
    """Its state is cleared when the frame dies, which the exception keeps alive. Ours is cleared at once."""
    from torch._inductor.compiler_bisector import CompilerBisector

    def fn() -> bool:
        raise ValueError("of my own")

    held: list[BaseException] = []
    try:
        peer(fn)
    except ValueError as error:
        held.append(error)
    assert CompilerBisector.bisection_enabled
    held.clear()
    assert not CompilerBisector.bisection_enabled

    try:
        bisect(fn)
    except ValueError as error:
        held.append(error)
    assert torch_compat.current_answers() is None
    assert not torch_compat.Bisector().bisection_enabled


def test_no_file_is_written_and_a_session_of_torchs_is_left_alone(tmp_path: Path, peer: Peer) -> None:
    """torch's bisector begins by removing whatever session there was."""
    session = tmp_path / "cache" / "bisect" / "bisect_status.txt"
    session.parent.mkdir(parents=True)
    session.write_text("backend=eager\nsubsystem=\n")
    bisect(Planted("inductor", "lowerings", 1, 2))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [session]
    peer(lambda: True)
    assert not session.exists()


def test_torchs_bisector_is_not_imported_and_stands_in_its_place_again_if_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._inductor.compiler_bisector as theirs

    fn = Planted("inductor", "lowerings", 1, 2)
    with nothing_left_behind():
        assert bisect(fn) is not None
    assert sys.modules[BISECTOR] is theirs
    monkeypatch.delitem(sys.modules, BISECTOR)
    with nothing_left_behind():
        assert bisect(fn) is not None
    assert BISECTOR not in sys.modules


def test_other_names_of_torchs_module_are_there_while_ours_stands_for_it() -> None:
    import torch._inductor.compiler_bisector as theirs

    seen: list[object] = []

    def fn() -> bool:
        from torch._inductor.compiler_bisector import BisectionResult as result, CompilerBisector as asked

        seen.extend((result is theirs.BisectionResult, asked.do_bisect == theirs.CompilerBisector.do_bisect))
        return False

    bisect(fn)
    assert seen == [True, True]


def test_two_bisections_in_a_row_and_one_inside_another_find_the_same() -> None:
    """Covers: U22"""
    expected = BisectionResult("inductor", "lowerings", 3, "operator 3")

    def inside() -> bool:
        assert bisect(Planted("inductor", "lowerings", 3, 9)) == expected
        return Planted("aot_eager")()

    for _ in range(2):
        assert bisect(Planted("inductor", "lowerings", 3, 9)) == expected
    with nothing_left_behind():
        assert bisect(inside) == BisectionResult("aot_eager")


# ---- threads -----------------------------------------------------------------------------------------------------


def in_thread(run: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_bisection_in_a_thread_leaves_the_others_alone() -> None:
    """Covers: U22"""
    found: list[object] = []
    seen: list[object] = []
    waiting, going_on = threading.Event(), threading.Event()

    def fn() -> bool:
        waiting.set()
        assert going_on.wait(10)
        return Planted("inductor", "lowerings", 1, 3)()

    with nothing_left_behind():
        thread = in_thread(lambda: found.append(bisect(fn)))
        assert waiting.wait(10)
        from torch._inductor.compiler_bisector import CompilerBisector as asked

        seen += [asked.bisection_enabled, asked.get_backend(), asked.get_subsystem(), asked.get_config_change("x")]
        seen += [asked.disable_subsystem("inductor", "lowerings")]
        going_on.set()
        thread.join()
    assert found == [BisectionResult("inductor", "lowerings", 1, "operator 1")]
    assert seen == [False, None, None, None, False]


def test_threads_that_the_function_starts_take_part() -> None:
    """A backward pass is compiled in a thread of autograd's."""

    def fn() -> bool:
        passed: list[bool] = []
        in_thread(lambda: passed.append(Planted("inductor", "lowerings", 1, 3)())).join()
        return passed == [True]

    assert bisect(fn) == BisectionResult("inductor", "lowerings", 1, "operator 1")


def test_bisections_at_the_same_time_do_not_disturb_one_another() -> None:
    faults = [Planted("inductor", "lowerings", 7, 9), Planted("inductor", "post_grad_passes", 2, 5), Planted("eager")]
    found: dict[int, BisectionResult | None] = {}
    together = threading.Barrier(len(faults))

    def run(index: int) -> None:
        together.wait(10)
        found[index] = bisect(faults[index])

    with nothing_left_behind():
        threads = [in_thread(functools.partial(run, index)) for index in range(len(faults))]
        for thread in threads:
            thread.join()
    assert found == {
        0: BisectionResult("inductor", "lowerings", 7, "operator 7"),
        1: BisectionResult("inductor", "post_grad_passes", 2, "operator 2"),
        2: BisectionResult("eager"),
    }


# ---- what torch asks ---------------------------------------------------------------------------------------------


def test_torch_asks_nothing_that_has_no_answer() -> None:
    """Everything that torch's source takes from the class is there; so a new torch does not go unnoticed."""
    asked: set[str] = set()
    for file in Path(torch.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "CompilerBisector" not in text or file.stem == "compiler_bisector":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                asked |= {node.attr} if node.value.id == "CompilerBisector" else set()
    assert {"disable_subsystem", "get_backend", "get_config_change", "bisection_enabled"} <= asked
    assert all(hasattr(torch_compat.Bisector, name) for name in asked)


def test_where_torch_asks_is_read_off_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_compat.bisector_module() == BISECTOR
    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__init__", lambda self: None)
    with pytest.raises(MissingTorchName, match="bisector"):
        torch_compat.bisector_module()


def test_options_are_for_the_backend_that_they_belong_to() -> None:
    part = OPTIONS[-1][1]
    trial = Trial(Step(Phase.WITHOUT, "inductor", part.name))
    assert trial.config_change("inductor") == {part.option: part.value}
    assert trial.config_change("aot_eager_decomp_partition") is None


# ---- torch.compile -----------------------------------------------------------------------------------------------


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x).addcmul(x, x) + torch.nn.functional.hardswish(x)


def right(compiled: Callable[..., torch.Tensor], fn: Callable[..., torch.Tensor] = model) -> bool:
    x = torch.arange(4.0)
    return torch.allclose(compiled(x), fn(x))


@pytest.fixture
def wrong_addcmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the decompositions is wrong."""
    import torch._inductor.compile_fx as home

    table = home.select_decomp_table

    def wrong(self: Any, left: Any, right: Any, *, value: float = 1) -> Any:
        return self - value * left * right

    monkeypatch.setattr(home, "select_decomp_table", lambda: {**table(), aten.addcmul.default: wrong})


ADDCMUL = ("aot_eager_decomp_partition", "decomposition", 2, "<OpOverload(op='aten.addcmul', overload='default')>")


@pytest.mark.usefixtures("wrong_addcmul")
def test_a_wrong_decomposition_is_found_as_torch_finds_it(peer: Peer) -> None:
    """Covers: U21, U22"""

    def fn() -> bool:
        torch._dynamo.reset()
        return right(torch.compile(model))

    with nothing_left_behind():
        assert fields(bisect(fn)) == ADDCMUL
    assert peer(fn) == ADDCMUL


@pytest.mark.usefixtures("wrong_addcmul")
def test_a_function_that_resets_nothing_is_bisected_as_well(peer: Peer) -> None:
    """torch needs Dynamo to be reset in the function: it does not see what is left out if that was compiled before.

    Covers: U22
    """

    def fn() -> bool:
        return right(torch.compile(model))

    assert fields(bisect(fn)) == ADDCMUL
    torch._dynamo.reset()
    assert peer(fn) == ("aot_eager_decomp_partition", None, None, None)


@pytest.mark.usefixtures("wrong_addcmul")
def test_a_function_that_was_compiled_before_is_bisected_as_well(peer: Peer) -> None:
    """torch chooses the backend when torch.compile is called: here it sees Inductor fail, and blames eager for it.

    Covers: U21, U22
    """
    compiled = torch.compile(model, backend="aot_eager_decomp_partition")
    assert not right(compiled)
    assert fields(bisect(lambda: right(compiled))) == ADDCMUL

    def fn() -> bool:
        torch._dynamo.reset()
        return right(compiled)

    assert fields(bisect(fn)) == ADDCMUL
    assert peer(fn) == ("eager", None, None, None)


@pytest.mark.usefixtures("wrong_addcmul")
def test_what_is_compiled_meanwhile_has_the_backend_of_its_own_afterwards() -> None:
    """Covers: U22"""
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    @functools.cache
    def compiled() -> Any:
        return torch.compile(model, backend=backend)

    assert fields(bisect(lambda: right(compiled()), backends=NAMES[:4])) == ADDCMUL
    assert graphs == []
    assert right(compiled())
    assert len(graphs) == 1


@pytest.mark.usefixtures("wrong_addcmul")
def test_what_was_compiled_with_a_part_left_out_is_compiled_again() -> None:
    compiled = torch.compile(model, backend="aot_eager_decomp_partition")
    step = Step(Phase.WITHOUT, "aot_eager_decomp_partition", "decomposition")
    assert attempt(lambda: right(compiled), step).passed
    assert not right(compiled)


@pytest.mark.usefixtures("wrong_addcmul")
def test_a_compilation_in_a_thread_is_bisected() -> None:
    """Covers: U22"""
    found: list[object] = []
    in_thread(lambda: found.append(fields(bisect(lambda: right(torch.compile(model)))))).join()
    assert found == [ADDCMUL]


def test_a_decomposition_that_only_the_backward_pass_uses_is_found(monkeypatch: pytest.MonkeyPatch, peer: Peer) -> None:
    import torch._inductor.compile_fx as home

    table = home.select_decomp_table
    wrong = {aten.tanh_backward.default: lambda grad, out: grad}
    monkeypatch.setattr(home, "select_decomp_table", lambda: {**table(), **wrong})

    def gradient(fn: Callable[..., torch.Tensor]) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        fn(x).sum().backward()
        assert x.grad is not None
        return x.grad

    def fn() -> bool:
        torch._dynamo.reset()
        return torch.equal(gradient(torch.compile(torch.tanh)), gradient(torch.tanh))

    found = fields(bisect(fn))
    assert found == peer(fn)
    assert found is not None
    assert found[:2] == ("aot_eager_decomp_partition", "decomposition")
    assert "tanh_backward" in found[3]


def test_an_operator_that_is_not_what_its_fake_says_is_found_by_crossref(peer: Peer) -> None:
    with torch.library._scoped_library("sleuth_bisect", "FRAGMENT") as library:
        library.define("turned(Tensor x) -> Tensor")
        library.impl("turned", lambda x: x.clone(), "CPU")
        library.impl("turned", lambda x: x.new_empty(x.shape[::-1]).t(), "Meta")
        turned = torch.ops.sleuth_bisect.turned.default

        def fn() -> bool:
            torch._dynamo.reset()
            x = torch.ones(2, 3)
            try:
                return torch.equal(torch.compile(lambda x: turned(x) + 1)(x), x + 1)
            except Exception:  # noqa: BLE001 - that is how it fails
                return False

        assert fields(bisect(fn)) == peer(fn) == ("aot_eager_decomp_partition_crossref", None, None, None)


@dataclass
class FakeInductor:
    """Stands for `compile_fx`: runs the graph, and is wrong unless it was given an option."""

    option: str
    patches: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, gm: Any, inputs: Any, *, config_patches: dict[str, Any], **_: Any) -> Callable[..., Any]:
        self.patches.append(config_patches)
        right = self.option in config_patches
        return lambda *args: gm(*args) if right else tuple(each + 1 for each in gm(*args))


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_options_reach_inductor_also_in_a_function_that_was_compiled_before(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Covers: U22"""
    import torch._inductor.compile_fx as home

    inductor = FakeInductor("emulate_precision_casts")
    monkeypatch.setattr(home, "compile_fx", inductor)
    compiled = torch.compile(torch.sin, backend=backend, options={"max_autotune": True})

    def fn() -> bool:
        return right(compiled, torch.sin)

    name = "inductor_emulate_precision_casts"
    assert bisect(fn) == BisectionResult("inductor", name, 0, name)
    assert inductor.patches[-1] == {"max_autotune": True, "emulate_precision_casts": True}
    if backend == "inductor":
        assert not fn()
        assert inductor.patches[-1] == {"max_autotune": True}


def test_a_backend_of_the_programs_own_stays_if_torch_is_told_to_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        called.append(gm)
        return gm

    def fn() -> bool:
        return right(torch.compile(model, backend=backend))

    with torch_compat.inductor_config_patch(**{"test_configs.bisect_keep_custom_backend_for_inductor": True}):
        assert bisect(fn, backends=["aot_eager", "inductor"]) is None
    assert len(called) == 1


# ---- by hand -----------------------------------------------------------------------------------------------------

BY_HAND = """
import torch
import torch._inductor.compile_fx as home

table = home.select_decomp_table
wrong = lambda self, left, right, *, value=1: self - value * left * right
home.select_decomp_table = lambda: {**table(), torch.ops.aten.addcmul.default: wrong}

def model(x):
    return torch.nn.functional.silu(x).addcmul(x, x) + torch.nn.functional.hardswish(x)

x = torch.arange(4.0)
print("good" if torch.allclose(torch.compile(model)(x), model(x)) else "bad")
"""


@pytest.mark.parametrize("which", [0, 1])
def test_the_settings_that_are_told_show_the_failure_to_whoever_sets_them(which: int) -> None:
    """With torch's own bisector, which reads these variables.

    Covers: U22
    """
    told, settings = BisectionResult(*ADDCMUL).by_hand[which]
    variables = dict(word.split("=") for word in settings.split())
    run = subprocess.run(
        [sys.executable, "-c", BY_HAND], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [told]


def test_what_is_told_to_see_it_by_hand_is_what_was_found() -> None:
    assert BisectionResult("eager").by_hand == [("bad", "TORCH_BISECT_BACKEND=eager")]
    name = "inductor_fallback_random"
    assert BisectionResult("inductor", name, 0, name).by_hand == [
        ("bad", "TORCH_BISECT_BACKEND=inductor"),
        ("good", "TORCH_BISECT_BACKEND=inductor, with fallback_random = True in its configuration"),
    ]


# ---- Inductor ----------------------------------------------------------------------------------------------------


def activation(x: torch.Tensor) -> torch.Tensor:
    return ((x * -1) - 0.01).relu()


@pytest.mark.inductor
def test_a_wrong_lowering_is_found_as_torch_finds_it(peer: Peer) -> None:
    """Covers: U21, U22"""

    def fn() -> bool:
        torch._dynamo.reset()
        with torch_compat.inductor_config_patch(**{"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
            return right(torch.compile(activation), activation)

    with nothing_left_behind():
        assert fields(bisect(fn)) == ("inductor", "lowerings", 2, "relu")
    assert peer(fn) == ("inductor", "lowerings", 2, "relu")


def one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _two_more(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.args = (node.args[0], 2)


@pytest.mark.inductor
def test_a_wrong_pass_over_a_graph_is_found_as_torch_finds_it(peer: Peer) -> None:
    """Covers: U22"""

    def fn() -> bool:
        torch._dynamo.reset()
        return right(torch.compile(one_more), one_more)

    for option, subsystem in (
        ("post_grad_custom_pre_pass", "post_grad_passes"),
        ("joint_custom_post_pass", "joint_graph_passes"),
    ):
        with torch_compat.inductor_config_patch(**{option: _two_more}):
            found = fields(bisect(fn))
            assert found == peer(fn)
        assert found is not None
        assert (found[1], found[3]) == (subsystem, option)


def test_an_answer_is_the_end() -> None:
    plan = Plan(select(backends=["eager"]))
    assert plan.after(Tried(plan.first, True, Seen())) == Answer(None)
    assert plan.after(Tried(plan.first, False, Seen())) == Answer(BisectionResult("eager"))

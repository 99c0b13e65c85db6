"""`wrap_compiler_debug`: compiling on fakes, running on real inputs, and what is kept at each level."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from capture_samples import Boxed, Compiler, aot_graph, cases, files, program, raise_error, wrong
from torchsleuth import config
from torchsleuth.capture.compilers import WatchedCompiler, wrap_compiler_debug
from torchsleuth.capture.deferred import DeferredCall
from torchsleuth.case.schema import Generated, Stored
from torchsleuth.case.stores.store import Store
from torchsleuth.config import After
from torchsleuth.errors import AccuracyError, BadValue
from torchsleuth.outcome import Stage, Symptom
from torchsleuth.run.synchronising import synchroniser


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def at(store: Path) -> Any:
    """`with at(level=1): ...`: watching after AOT, into the store of the test."""

    def patch(**changes: Any) -> config.Patch:
        return config.patch(**{"after": "aot", "level": 1, "store": str(store), **changes})

    return patch


def test_with_watching_off_the_compiler_s_own_object_is_returned(store: Path) -> None:
    """Covers: S1"""
    gm, fakes, real = aot_graph()
    compiler = Compiler()
    for after in (None, "dynamo"):
        with config.patch(after=after, store=str(store)):
            made = wrap_compiler_debug(compiler, "mine")(gm, fakes)
        assert made is compiler.made[-1]
        made(list(real))
    assert not store.exists()


def test_the_setting_is_read_at_each_call(at: Any, store: Path) -> None:
    """Covers: S2"""
    gm, fakes, real = aot_graph()
    with at():
        made = wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)
    assert isinstance(made, DeferredCall)
    for after in (None, "dynamo"):
        with config.patch(after=after, store=str(store)), pytest.raises(ZeroDivisionError) as caught:
            made(list(real))
        assert not hasattr(caught.value, "__notes__")
    assert not store.exists()
    with at(), pytest.raises(ZeroDivisionError):
        made(list(real))
    assert len(cases(store)) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_during_a_call_nothing_is_watched(at: Any, fails: bool) -> None:
    """Covers: S3"""
    gm, fakes, real = aot_graph()
    seen = []

    def then(inputs: list[Any]) -> Any:
        seen.append(config.current().after)
        return raise_error() if fails else program(*inputs)

    with at():
        made = wrap_compiler_debug(Compiler(then, lambda gm: seen.append(config.current().after)), "mine")(gm, fakes)
        assert config.current().after is After.AOT
        if fails:
            with pytest.raises(ZeroDivisionError):
                made(list(real))
        else:
            made(list(real))
        assert config.current().after is After.AOT
    assert seen == [None, None]


def test_the_compiler_sees_fakes_and_the_compiled_graph_real_tensors(at: Any) -> None:
    """Covers: S4"""
    gm, fakes, real = aot_graph()
    compiler = Compiler()
    with at():
        wrap_compiler_debug(compiler, "mine")(gm, fakes)(list(real))
    assert compiler.examples == fakes
    assert all(one is other for one, other in zip(compiler.made[0].seen[0], real, strict=True))


def test_a_dump_is_right_though_the_callee_empties_its_list(at: Any, store: Path) -> None:
    """Covers: S5"""
    gm, fakes, real = aot_graph()
    with at():
        made = wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)
        other = [torch.randn(5, 4), torch.randn(5, 4).t().contiguous().t()]
        for inputs in (list(real), list(other)):
            with pytest.raises(ZeroDivisionError):
                made(inputs)
            assert inputs == []
    kept = [[(each.size, each.stride, each.dtype, each.device) for each in case.inputs] for case in cases(store)]
    wanted = [[(tuple(each.shape), each.stride(), "float32", "cpu") for each in inputs] for inputs in (real, other)]
    assert sorted(kept) == sorted(wanted)


@pytest.mark.parametrize(("level", "todo"), [(1, None), (2, "minify"), (3, "minify"), (4, "minify")])
def test_an_error_while_running(at: Any, store: Path, level: int, todo: str | None) -> None:
    """Covers: S6, S7, S9, S41"""
    gm, fakes, real = aot_graph()
    with at(level=level), pytest.raises(ZeroDivisionError, match="the compiled graph divides by zero") as caught:
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes, is_backward=True, graph_id=7)(list(real))
    (case,) = cases(store)
    assert case.failure is not None
    assert case.failure.signature.kind == "raised"
    assert case.failure.signature.stage is Stage.RUN
    assert case.failure.signature.types == ("builtins.ZeroDivisionError",)
    assert case.origin.graph == "backward graph 7"
    assert case.compiler.backend == "mine"
    assert case.todo == todo
    assert [type(each.content) for each in case.storages] == [Stored, Stored]
    (entry,) = Store.open(str(store)).entries()
    assert "repro.py" in files(store)
    (note,) = caught.value.__notes__
    assert entry.path in note
    assert note.splitlines()[-1].startswith("Next: sleuth ")


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_an_error_while_compiling(at: Any, store: Path, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S8, S10"""
    gm, fakes, _ = aot_graph()
    before = [node.name for node in gm.graph.nodes]

    def ruin(gm: fx.GraphModule) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        raise_error()

    with at(level=level), caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError) as caught:
        wrap_compiler_debug(Compiler(compiling=ruin), "mine")(gm, fakes)
    (case,) = cases(store)
    assert case.failure is not None
    assert [node.name for node in case.graph.nodes] == before
    assert case.failure.signature.types == ("builtins.ZeroDivisionError",)
    assert case.todo == (None if level == 1 else "minify")
    assert [type(each.content) for each in case.storages] == [Generated, Generated]
    assert "compiler error" in caplog.text
    assert "torchsleuth kept this failure" in caught.value.__notes__[0]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_nothing_is_left_of_a_clean_run(at: Any, store: Path, level: int) -> None:
    """Covers: S9, S13"""
    gm, fakes, real = aot_graph()
    with at(level=level):
        made = wrap_compiler_debug(Compiler(), "mine")(gm, fakes)
        for _ in range(3):
            assert torch.equal(made(list(real))[0], program(*real)[0])
    assert files(store) == []


def test_level_3_has_everything_on_the_disk_before_the_first_run(at: Any, store: Path) -> None:
    """Covers: S9"""
    gm, fakes, real = aot_graph()
    seen = []

    def look(*_: Any) -> Any:
        (case,) = cases(store)
        assert case.failure is not None
        seen.append((case.failure.signature.kind, case.failure.signature.stage))
        blobs = Store.open(str(store)).blobs
        for storage in case.storages:
            if isinstance(storage.content, Stored):
                blobs.get(storage.content.digest, storage.nbytes)
        return program(*real)

    with at(level=3):
        made = wrap_compiler_debug(Compiler(look, look), "mine")(gm, fakes)
        made(list(real))
        assert files(store) == []
        made._compiled.then = lambda inputs: seen.append(files(store))  # type: ignore[attr-defined]
        made(list(real))
    assert seen == [("crashed", Stage.COMPILE), ("crashed", Stage.RUN), []]


def test_the_tensors_of_others_stay_when_what_was_written_ahead_is_dropped(at: Any, store: Path) -> None:
    """Covers: S9"""
    gm, fakes, real = aot_graph()
    with at(level=3):
        with pytest.raises(ZeroDivisionError):
            wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(real))
        kept = files(store)
        wrap_compiler_debug(Compiler(), "mine")(gm, fakes)(list(real))
    assert files(store) == kept
    (case,) = cases(store)
    assert [Store.open(str(store)).blobs.get(each.content.digest, each.nbytes) for each in case.storages]  # type: ignore[union-attr]


def test_level_4_finds_wrong_results_of_any_compiler(at: Any, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Covers: S11, S12, U24"""
    gm, fakes, real = aot_graph()
    with at(level=4), pytest.raises(AccuracyError, match="inference graph 3 computes something else than eager"):
        wrap_compiler_debug(Compiler(wrong), "mine")(gm, fakes, is_inference=True, graph_id=3)(list(real))
    (case,) = cases(store)
    assert case.failure is not None
    assert (case.failure.signature.kind, case.failure.signature.symptom) == ("mismatched", Symptom.VALUE)
    assert case.failure.path == "output[0]"
    assert "inference graph 3" in caplog.text
    assert "repro.py" in files(store)
    for each, value in zip(case.storages, real, strict=True):
        assert isinstance(each.content, Stored)
        kept = Store.open(str(store)).blobs.get(each.content.digest, each.nbytes)
        assert bytes(kept.tolist()) == bytes(value.untyped_storage().tolist())


def test_level_4_returns_the_compiled_result_and_draws_no_random_numbers(at: Any) -> None:
    """Covers: S13"""
    gm, fakes, real = aot_graph()
    made: list[Any] = []

    def then(inputs: list[Any]) -> Any:
        torch.rand(2)
        made.append(program(*inputs))
        return made[-1]

    torch.manual_seed(5)
    torch.rand(2)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with at(level=4):
        assert wrap_compiler_debug(Compiler(then), "mine")(gm, fakes)(list(real)) is made[0]
    assert len(made) == 1
    assert torch.equal(torch.rand(3), expected)


def test_level_4_lets_pass_what_is_to_be_ignored(at: Any) -> None:
    """Covers: S13"""
    gm = fx.symbolic_trace(lambda x: (x.argmax(), x + 1))
    real = [torch.randn(8)]

    def other_index(inputs: list[Any]) -> Any:
        return inputs[0].argmax() + 1, inputs[0] + 1

    with at(level=4):
        with pytest.raises(AccuracyError):
            wrap_compiler_debug(Compiler(other_index), "mine")(gm, real)(list(real))
        with config.patch(ignore_non_fp=True):
            wrap_compiler_debug(Compiler(other_index), "mine")(gm, real)(list(real))


def test_arguments_pass_through_and_name_and_docstring_stay(at: Any, store: Path) -> None:
    """Covers: S14"""

    def compile_it(gm: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        """Compiles it."""
        seen.update(kwargs)
        return Boxed(gm, raise_error)

    seen: dict[str, Any] = {}
    gm, fakes, real = aot_graph()
    compiler = wrap_compiler_debug(compile_it, "mine")
    assert (compiler.__name__, compiler.__doc__) == ("compile_it", "Compiles it.")
    assert isinstance(compiler, WatchedCompiler)
    box = object()
    with at(), pytest.raises(ZeroDivisionError):
        compiler(gm, fakes, static_input_idxs=[0, 1], box=box)(list(real))
    assert seen == {"static_input_idxs": [0, 1], "box": box}
    (case,) = cases(store)
    assert [entry.name for entry in case.compiler.arguments] == ["static_input_idxs"]


def test_any_other_value_is_rejected_at_once() -> None:
    """Covers: S15"""
    with pytest.raises(BadValue, match="after"):
        config.patch(after="inductor")


def test_a_failing_compile_inside_of_a_call_dumps_nothing(at: Any, store: Path) -> None:
    """Covers: S38"""
    gm, fakes, real = aot_graph()

    def nested(inputs: list[Any]) -> Any:
        with pytest.raises(ZeroDivisionError):
            wrap_compiler_debug(Compiler(compiling=raise_error), "inner")(gm, fakes)
        return program(*inputs)

    with at():
        wrap_compiler_debug(Compiler(nested, lambda gm: nested(real) and None), "mine")(gm, fakes)(list(real))
    assert files(store) == []


def test_accelerators_are_waited_for_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch, at: Any) -> None:
    """Covers: S39"""
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    assert synchroniser(()) is None
    wait = synchroniser(("cuda",))
    assert wait is not None
    gm, fakes, real = aot_graph()
    with at():
        made = wrap_compiler_debug(Compiler(lambda inputs: waited.append("run")), "mine")(gm, fakes)
        made(list(real))
        assert waited == ["run"]
        made._synchronise = wait  # as if one of the inputs had been on it
        made._is_plain = False
        made(list(real))
        made(list(real))
        assert waited == ["run", "run", "cuda", "run", "cuda"]
        made._compiled.then = raise_error
        with pytest.raises(ZeroDivisionError):
            made(list(real))
    assert waited == ["run", "run", "cuda", "run", "cuda"]


def test_modes_of_the_caller_are_unwound_after_an_exception(at: Any) -> None:
    """Covers: S40"""
    gm, fakes, real = aot_graph()
    with at(level=4), torch.inference_mode(), torch.autocast("cpu"):
        for compiler in (Compiler(raise_error), Compiler(wrong), Compiler(compiling=raise_error)):
            with pytest.raises((ZeroDivisionError, AccuracyError)):
                wrap_compiler_debug(compiler, "mine")(gm, fakes)(list(real))
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert config.current().after is After.AOT
    assert not torch.is_inference_mode_enabled()


def test_inductor_compiles_in_its_own_surroundings_and_they_are_unwound(
    at: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: S40"""
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.virtualized import V
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    seen = []
    fresh: list[str] = []

    def fails(*_: Any, **__: Any) -> Any:
        seen.append((_get_current_dispatch_mode(), type(V.debug), list(fresh)))
        raise_error()

    @contextlib.contextmanager
    def fresh_cache() -> Iterator[None]:
        fresh.append("in")
        yield
        fresh.append("never")  # an exception goes past this

    monkeypatch.setattr(compile_fx, "_compile_fx_inner", fails)
    monkeypatch.setattr(compile_fx, "with_fresh_cache_if_config", fresh_cache)
    before = type(V.debug)
    gm, fakes, _ = aot_graph()
    with at(), FakeTensorMode() as mode:
        with pytest.raises(ZeroDivisionError):
            wrap_compiler_debug(compile_fx.compile_fx_inner, "inductor")(gm, fakes)
        assert _get_current_dispatch_mode() is mode
    assert seen == [(None, DebugContext, ["in"])]
    assert fresh == ["in"]
    assert type(V.debug) is before
    assert len(cases(store)) == 1


@pytest.mark.parametrize("during", ["record", "save", "script"])
def test_our_own_failure_never_takes_the_place_of_the_user_s(
    at: Any, store: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """Covers: S6, S19"""
    from torchsleuth.capture import graphs, keeping

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    if during == "record":
        monkeypatch.setattr(graphs.Recording, "__init__", broken)
    elif during == "save":
        monkeypatch.setattr(Store, "save", broken)
    else:
        monkeypatch.setattr(keeping, "deliver", broken)
    gm, fakes, real = aot_graph()
    with at(level=3), pytest.raises(ZeroDivisionError) as caught:
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(real))
    assert any(name.startswith("trouble-") for name in files(store))
    if during == "save":
        assert "could not keep this failure as a case: OSError" in caught.value.__notes__[0]
    assert len(cases(store)) == (1 if during == "script" else 0)


def test_a_store_that_cannot_be_written_is_only_a_note(at: Any, tmp_path: Path) -> None:
    """Covers: S6"""
    (tmp_path / "file").write_text("not a folder")
    gm, fakes, real = aot_graph()
    with at(level=3, store=str(tmp_path / "file")), pytest.raises(ZeroDivisionError) as caught:
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(real))
    assert "could not keep" in caught.value.__notes__[0]


def test_no_more_cases_of_a_graph_than_allowed(at: Any, store: Path) -> None:
    gm, fakes, _ = aot_graph()
    with at(max_cases=2):
        made = wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                made([torch.randn(3, 4), torch.randn(3, 4)])
    assert len(cases(store)) == 2


def test_inputs_that_are_too_large_are_described(at: Any, store: Path) -> None:
    gm, fakes, real = aot_graph()
    with at(max_dump=10), pytest.raises(ZeroDivisionError):
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(real))
    (case,) = cases(store)
    assert [type(each.content) for each in case.storages] == [Generated, Generated]
    assert case.failure is not None
    assert "were not kept: the limit is 10" in case.failure.message


@pytest.mark.parametrize(
    ("settings", "checked"),
    [
        ({}, list(range(1, 11))),
        ({"check_every": 4}, [1, 5, 9]),
        ({"check_every": 4, "check_first": 3}, [1, 2, 3, 7]),
        ({"check_every": 4, "check_first": 0}, [4, 8]),
        ({"max_checks": 2}, [1, 2]),
    ],
)
def test_which_calls_are_checked(at: Any, settings: dict[str, int], checked: list[int]) -> None:
    """Covers: U13"""
    gm, fakes, real = aot_graph()
    with at(level=4, **settings):
        made = wrap_compiler_debug(Compiler(), "mine")(gm, fakes)
        found = []
        for call in range(1, 11):
            before = made._judge.checks
            made(list(real))
            if made._judge.checks > before:
                found.append(call)
    assert found == checked


def test_the_first_bad_step_is_named(at: Any) -> None:
    """Covers: U13"""
    gm, fakes, real = aot_graph()
    calls: list[int] = []

    def later_wrong(inputs: list[Any]) -> Any:
        calls.append(1)
        return wrong(inputs) if len(calls) >= 7 else program(*inputs)

    with at(level=4, check_every=3):
        made = wrap_compiler_debug(Compiler(later_wrong), "mine")(gm, fakes)
        for _ in range(6):
            made(list(real))
        with pytest.raises(AccuracyError, match=r"in step 7 \(step 4 was right; those between were not checked\)"):
            made(list(real))


def test_threads_do_not_see_each_other_s_settings(at: Any, store: Path) -> None:
    """Covers: S2, S3"""
    gm, fakes, _ = aot_graph()
    with at():
        made = wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)
    raised = []

    def work(after: str | None, barrier: threading.Barrier) -> None:
        with config.patch(after=after, store=str(store), max_cases=100):
            for _ in range(10):
                barrier.wait()
                try:
                    made([torch.randn(3, 4), torch.randn(3, 4)])
                except ZeroDivisionError as error:
                    raised.append((after, hasattr(error, "__notes__")))

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(after, barrier)) for after in ("aot", None, "aot", None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(raised, key=str) == sorted([("aot", True)] * 20 + [(None, False)] * 20, key=str)
    assert len(cases(store)) == 20


def test_interrupting_a_hang_is_a_case_and_interrupting_a_moment_is_not(at: Any, store: Path) -> None:
    """Covers: U19"""
    import time

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def hangs(*_: Any) -> Any:
        time.sleep(1.05)
        raise KeyboardInterrupt

    gm, fakes, real = aot_graph()
    with at():
        with pytest.raises(KeyboardInterrupt):
            wrap_compiler_debug(Compiler(interrupted), "mine")(gm, fakes)(list(real))
        assert not store.exists()
        for compiler in (Compiler(hangs), Compiler(compiling=interrupted)):
            with pytest.raises(KeyboardInterrupt):
                wrap_compiler_debug(compiler, "mine")(gm, fakes)(list(real))
    kinds = {case.failure and case.failure.signature.kind for case in cases(store)}
    assert (len(cases(store)), kinds) == (2, {"timed out"})


def test_running_on_fakes_is_no_run(at: Any, store: Path) -> None:
    """Covers: S4"""
    gm, fakes, _ = aot_graph()
    with at(level=3), pytest.raises(ZeroDivisionError):
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(fakes))
    assert cases(store) == []

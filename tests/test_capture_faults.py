"""Watching where things go wrong on our side, or oddly on the user's: forks, signals, broken journals, odd backends."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from backend_samples import ended_forked
from capture_samples import Compiler, aot_graph, cases, files, program, raise_error
from torchsleuth import config, torch_compat
from torchsleuth.capture.backends import watch
from torchsleuth.capture.compilers import wrap_compiler_debug
from torchsleuth.capture.held import HeldBlobs
from torchsleuth.capture.installing import installed
from torchsleuth.capture.journal import Journal, read
from torchsleuth.errors import AccuracyError, MissingTorchName
from torchsleuth.run.checking import check as checking
from torchsleuth.torch_compat import names


@pytest.fixture
def store(tmp_path: Path) -> Path:
    torch._dynamo.reset()
    return tmp_path / "store"


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@pytest.mark.parametrize("level", [1, 3, 4])
def test_a_compiler_after_aot_that_returns_an_unboxed_function(store: Path, level: int) -> None:
    """Covers: U24"""
    backend = aot_autograd(fw_compiler=lambda gm, inputs: gm.forward)
    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch does not like it, and says so
        result = torch.compile(sine, backend=watch(backend, level=level, store=str(store)))(x)
        result.sum().backward()
    assert torch.equal(result, sine(x))
    assert x.grad is not None
    assert torch.allclose(x.grad, x.detach().cos())
    assert cases(store) == []


def test_an_unboxed_function_that_fails_is_kept_with_its_inputs(store: Path) -> None:
    """Covers: U24"""
    backend = aot_autograd(fw_compiler=lambda gm, inputs: raise_error)
    f = torch.compile(sine, backend=watch(backend, store=str(store)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ZeroDivisionError):
            f(torch.randn(3))
    (case,) = cases(store)
    assert [each.size for each in case.inputs] == [(3,)]


def test_a_torch_that_lacks_the_seam_is_watched_as_a_whole(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S6b"""
    real = names._TORCH.resolve

    def without(key: str) -> Any:
        if key == "aot_compile":
            raise MissingTorchName("gone", cause="a newer torch", remedy="none")
        return real(key)

    monkeypatch.setattr(names._TORCH, "resolve", without)
    before = torch._functorch.aot_autograd.aot_stage2_compile
    f = torch.compile(sine, backend=watch("aot_eager", store=str(store)))
    x = torch.randn(3)
    assert torch.equal(f(x), sine(x))
    assert torch._functorch.aot_autograd.aot_stage2_compile is before
    assert [name for name in files(store) if name.startswith("trouble-")]


def test_whoever_stood_in_torch_before_us_stands_there_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = torch._functorch.aot_autograd
    original = home.aot_stage2_compile
    calls = []

    def somebody(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    torch_compat.resolve("aot_compile")
    monkeypatch.setattr(home, "aot_stage2_compile", somebody)
    torch.compile(sine, backend=watch("aot_eager", store=str(store)))(torch.randn(3))
    assert calls == [1]
    assert home.aot_stage2_compile is somebody


def test_a_journal_that_is_gone_neither_loses_nor_invents_a_case(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with installed(level=3, store=str(store), journal=folder / "journal") as watching:
        shutil.rmtree(folder)
        torch.compile(sine, backend="aot_eager")(torch.randn(3))
        assert cases(store) == []
        backend = aot_autograd(fw_compiler=Compiler(raise_error))
        with pytest.raises(ZeroDivisionError) as caught:
            torch.compile(lambda x: x.cos(), backend=backend)(torch.randn(3))
    assert "kept this failure" in caught.value.__notes__[0]
    assert len(watching.kept) == len(cases(store)) == 1


def test_a_fork_while_another_thread_writes_a_case(store: Path) -> None:
    """Covers: S9"""
    blobs = HeldBlobs()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with blobs.written_to(HeldBlobs()):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)

    def child() -> str:
        with blobs.written_to(HeldBlobs()):
            return "not stuck"

    try:
        assert "not stuck" in str(ended_forked(child))
    finally:
        leave.set()
        thread.join()


def _alarm(*_: Any) -> None:
    raise TimeoutError("the user's own alarm")


def test_an_exception_of_the_user_s_signal_handler_is_the_user_s(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S3"""
    before = signal.signal(signal.SIGALRM, _alarm)

    def slow(self: Any, *_: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(5)

    monkeypatch.setattr(checking._Check, "check", slow)
    gm, fakes, real = aot_graph()
    try:
        with config.patch(after="aot", level=4, store=str(store)), pytest.raises(TimeoutError):
            wrap_compiler_debug(Compiler(), "mine")(gm, fakes)(list(real))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert cases(store) == []


def test_an_alarm_that_ends_a_hang_is_a_hang(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U19"""
    from torchsleuth.capture import keeping

    monkeypatch.setattr(keeping, "HANG", 0.02)
    before = signal.signal(signal.SIGALRM, _alarm)

    def hangs(*_: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(5)

    gm, fakes, real = aot_graph()
    try:
        with config.patch(after="aot", level=1, store=str(store)), pytest.raises(TimeoutError):
            wrap_compiler_debug(Compiler(hangs), "mine")(gm, fakes)(list(real))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (case,) = cases(store)
    assert case.failure is not None
    assert case.failure.signature.kind == "timed out"


def test_two_installations_with_equal_settings_keep_their_own_cases(store: Path) -> None:
    backend = aot_autograd(fw_compiler=Compiler(raise_error))
    kept = []
    for _ in range(2):
        with installed(level=1, store=str(store)) as watching:
            with pytest.raises(ZeroDivisionError):
                torch.compile(sine, backend=backend)(torch.randn(3))
            kept.append(len(watching.kept))
    assert kept == [1, 1]


def test_what_the_program_watches_itself_is_known_to_who_watches_the_program(store: Path, tmp_path: Path) -> None:
    """Covers: U28"""
    journal = tmp_path / "journal"
    backend = aot_autograd(fw_compiler=Compiler(raise_error))
    with installed(store=str(tmp_path / "other"), journal=journal) as watching:
        with pytest.raises(ZeroDivisionError):
            torch.compile(sine, backend=watch(backend, level=3, store=str(store)))(torch.randn(3))
        (kept,) = watching.kept
    assert Path(kept.path).parent.parent == store
    log = read(journal)
    assert [one.case for one in log.kept] == [kept.case]
    assert log.in_flight == ()
    Journal().keep(kept)
    assert len(watching.kept) == 1


def test_a_backend_that_answers_any_question(store: Path) -> None:
    """Covers: U24"""
    backend = Mock(side_effect=lambda gm, inputs: gm.forward)
    x = torch.randn(3)
    assert torch.equal(torch.compile(sine, backend=watch(backend, store=str(store)))(x), sine(x))


def test_a_backend_that_returns_nothing_gets_torch_s_own_error(store: Path) -> None:
    def nothing(gm: fx.GraphModule, inputs: Any) -> Any:
        return None

    with pytest.raises(Exception, match="did not return callable"):
        torch.compile(sine, backend=watch(nothing, store=str(store)))(torch.randn(3))


def test_one_check_that_came_to_nothing_is_not_the_last(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S12"""
    gm, fakes, real = aot_graph()
    trouble = [MemoryError("once")]
    check = checking._Check.check

    def sometimes(self: Any, *args: Any) -> Any:
        if trouble:
            raise trouble.pop()
        return check(self, *args)

    monkeypatch.setattr(checking._Check, "check", sometimes)
    with config.patch(after="aot", level=4, store=str(store)):
        made = wrap_compiler_debug(Compiler(lambda inputs: (program(*inputs)[0] + 1,)), "mine")(gm, fakes)
        made(list(real))
        with pytest.raises(AccuracyError):
            made(list(real))


def test_what_can_never_be_checked_is_said_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never(*_: Any) -> Any:
        raise MemoryError("always")

    monkeypatch.setattr(checking._Check, "check", never)
    gm, fakes, real = aot_graph()
    with config.patch(after="aot", level=4, store=str(store)):
        made = wrap_compiler_debug(Compiler(), "mine")(gm, fakes)
        for _ in range(10):
            made(list(real))
    assert caplog.text.count("is not checked any more") == 1
    assert made._judge.checks == 3


def test_a_full_store_does_not_slow_down_what_is_written_ahead(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S9"""
    from torchsleuth.case.stores import garbage

    gm, fakes, real = aot_graph()
    with config.patch(after="aot", level=1, store=str(store), max_cases=100):
        made = wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)
        for _ in range(10):
            with pytest.raises(ZeroDivisionError):
                made([torch.randn(3, 4), torch.randn(3, 4)])
    for path in store.rglob("case.json"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    looked_into: list[str] = []
    digests = garbage._digests

    def note(store: Any, name: str) -> set[str]:
        looked_into.append(name)
        return digests(store, name)

    monkeypatch.setattr(garbage, "_digests", note)
    with config.patch(after="aot", level=3, store=str(store)):
        wrap_compiler_debug(Compiler(), "mine")(gm, fakes)(list(real))
    assert looked_into == []
    assert len(cases(store)) == 10


def test_both_graphs_are_kept_after_the_parameters_have_changed(store: Path) -> None:
    """Covers: U9"""
    runs: list[int] = []

    def later(gm: fx.GraphModule) -> Any:
        def run(inputs: list[Any]) -> Any:
            runs.append(1)
            return raise_error() if len(runs) > 4 else gm(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = aot_autograd(fw_compiler=lambda gm, inputs: later(gm), bw_compiler=lambda gm, inputs: later(gm))
    layer = torch.nn.Linear(1024, 1024)  # too large to be copied at each step
    f = torch.compile(layer, backend=watch(backend, after="both", level=2, store=str(store)))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        f(torch.randn(4, 1024)).sum().backward()
        optimizer.step()
    with pytest.raises(ZeroDivisionError) as caught:
        f(torch.randn(4, 1024))
    assert "kept this failure" in caught.value.__notes__[0]
    assert {case.origin.phase for case in cases(store)} == {"dynamo", "forward"}


@pytest.mark.parametrize("missing", ["RestartAnalysis", "OutputCode", "tags"])
def test_a_torch_that_lacks_a_name_never_changes_the_user_s_exception(
    store: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Covers: S6"""
    real = names._TORCH.resolve

    def without(key: str) -> Any:
        if key == missing:
            raise MissingTorchName("gone", cause="a newer torch", remedy="none")
        return real(key)

    gm, fakes, real_inputs = aot_graph()
    monkeypatch.setattr(names._TORCH, "resolve", without)
    with config.patch(after="aot", level=2, store=str(store)), pytest.raises(ZeroDivisionError):
        wrap_compiler_debug(Compiler(raise_error), "mine")(gm, fakes)(list(real_inputs))

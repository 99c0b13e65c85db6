"""A case lists the graphs that its process had compiled before, and they are kept for it. Covers: U6."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from capture_samples import cases, files, kill
from case_samples import small_case
from replay_samples import with_origin
from torchsleuth import Store, installed, watch
from torchsleuth.capture import history as histories
from torchsleuth.capture.deaths import Death, settle
from torchsleuth.capture.history import MOST, PROCESS
from torchsleuth.capture.journal import read
from torchsleuth.case.schema import Case, Earlier, Generated, Origin
from torchsleuth.case.words import listing
from torchsleuth.cli import cases as commands
from torchsleuth.outcome import Passed
from torchsleuth.report.case import render_case
from torchsleuth.run.performing import perform
from torchsleuth.run.query import Query


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def refusing(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
    raise ZeroDivisionError("no such graph")


def fail(store: Path) -> Case:
    """Compile something that cannot be compiled; its case."""
    opened = Store.open(store)
    before = {entry.id for entry in opened.entries()}
    with pytest.raises(Exception, match="no such graph"):
        torch.compile(lambda x: x.tan(), backend=watch(refusing, store=str(store)))(torch.ones(3))
    (new,) = {entry.id for entry in opened.entries()} - before
    return opened.load(new)


def compile_well(store: Path, function: Callable[..., Any], *inputs: torch.Tensor, **settings: Any) -> Any:
    return torch.compile(function, backend=watch("aot_eager", store=str(store), **settings))(*inputs)


def test_a_case_lists_what_was_compiled_before_it_and_keeps_it(tmp_path: Path) -> None:
    """Covers: U6"""
    store = tmp_path / "store"
    compile_well(store, lambda x: x.sin(), torch.ones(2))
    y = torch.ones(4, requires_grad=True)
    compile_well(store, lambda x: x.cos() * 2, y).sum().backward()
    assert not store.exists()  # nothing failed
    case = fail(store)
    names = [one.graph for one in case.origin.history]
    assert [name.split()[0] for name in names] == ["inference", "forward", "backward"]
    opened = Store.open(store)
    for one in case.origin.history:
        kept = opened.load(str(one.case))
        assert kept.origin.earlier
        assert kept.failure is None
        assert (len(kept.graph.nodes), kept.origin.graph) == (one.nodes, one.graph)
        assert all(isinstance(storage.content, Generated) for storage in kept.storages)
        outcome = perform(Query(kept, opened.home, "aot_eager", accuracy=False))
        assert isinstance(outcome, Passed), outcome


def test_what_is_kept_for_a_history_is_not_in_the_way(tmp_path: Path) -> None:
    store = tmp_path / "store"
    compile_well(store, lambda x: x.sin(), torch.ones(2))
    case = fail(store)
    opened = Store.open(store)
    (entry,) = opened.entries()
    assert len(opened.entries(earlier=True)) == 2
    answer = commands.list_cases(str(store), width=100)
    assert [one["id"] for one in answer.data["cases"]] == [entry.id]
    assert "and 1 graph that such had compiled before (--all)" in str(list(answer.shown)[-1])
    assert len(commands.list_cases(str(store), width=100, hidden_too=True).data["cases"]) == 2
    # it goes with the last case that lists it, and not before
    assert opened.collect_garbage(0.0).strays == 0
    opened.remove(entry.id)
    assert opened.collect_garbage(0.0).strays == 1
    assert opened.entries(earlier=True) == []
    assert case.origin.history


def test_a_graph_is_not_in_its_own_history_nor_are_its_parts(tmp_path: Path) -> None:
    def divide(*_: Any) -> Any:
        raise ZeroDivisionError("no such graph")

    store = tmp_path / "store"
    compiled = torch.compile(
        lambda x: x.sin() + 1, backend=watch(lambda gm, _: divide, store=str(store), after="dynamo")
    )
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(2))
    (case,) = cases(store)
    assert case.origin.history == ()
    assert fail(store).origin.history[0].graph == case.origin.graph


def test_dynamo_s_graph_is_in_it_only_if_no_others_came_of_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    compile_well(store, lambda x: x.sin(), torch.ones(2), after="both")
    compile_well(store, lambda x: x.cos(), torch.ones(2), after="dynamo")
    assert [one.graph.split()[0] for one in fail(store).origin.history] == ["inference", "Dynamo's"]


def test_only_the_last_graphs_are_listed_and_large_ones_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr(histories, "MOST", 2)
    for function in (torch.sin, torch.cos, torch.exp, torch.neg):
        compile_well(store, lambda x, function=function: function(x), torch.ones(2))
    listed = [Store.open(store).load(str(one.case)) for one in fail(store).origin.history]
    assert [case.graph.nodes[1].target.split(".")[3] for case in listed] == ["exp", "neg"]
    assert len(PROCESS._past) <= MOST + 2
    PROCESS.clear()
    monkeypatch.setattr(histories, "MOST_NODES", 3)
    compile_well(store, lambda x: x.sin() * x.cos() * 3, torch.ones(2))
    (only,) = fail(store).origin.history
    assert (only.case, only.nodes > 3) == (None, True)


def test_constants_go_along_and_large_ones_do_not(tmp_path: Path) -> None:
    store = tmp_path / "store"
    small, large = torch.arange(4.0), torch.zeros(2**19)

    def backend(constant: torch.Tensor) -> Any:
        def compile_it(gm: fx.GraphModule, _: Any) -> Any:
            return gm

        def function(x: torch.Tensor) -> torch.Tensor:
            return x + constant

        gm = fx.symbolic_trace(function)
        return gm, watch(compile_it, store=str(store), after="dynamo")

    for constant in (small, large):
        gm, watched = backend(constant)
        watched(gm, [torch.ones(1)])
    first, second = fail(store).origin.history
    assert (first.case is not None, second.case) == (True, None)


def test_equal_histories_are_kept_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    compile_well(store, lambda x: x.sin(), torch.ones(2))
    first = fail(store)
    torch._dynamo.reset()
    second = fail(store)
    assert first.origin.history[0] == second.origin.history[0]
    assert files(store).count("case.json") == 3


def test_our_own_failure_is_not_the_program_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(histories, "_past_of", broken)
    assert compile_well(tmp_path / "store", lambda x: x.sin(), torch.ones(2)).shape == (2,)
    monkeypatch.undo()
    monkeypatch.setattr(type(PROCESS), "keep", broken)
    assert fail(tmp_path / "store").origin.history == ()


def test_threads_and_forked_children_go_on_from_what_was_compiled(tmp_path: Path) -> None:
    store = tmp_path / "store"
    compile_well(store, lambda x: x.sin(), torch.ones(2))
    threads = [
        threading.Thread(target=compile_well, args=(store, lambda x, n=n: x + n, torch.ones(n + 2))) for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if len(fail(store).origin.history) == 4 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(fail(store).origin.history) == 4


def test_a_process_that_dies_leaves_its_history_to_whoever_outlives_it(tmp_path: Path) -> None:
    store, journal = tmp_path / "store", tmp_path / "journal"
    child = os.fork()
    if child == 0:
        try:
            with installed(level=3, store=str(store), journal=journal):
                torch.compile(lambda x: x.sin(), backend="aot_eager")(torch.ones(2))
                torch.compile(lambda x: x.cos(), backend=lambda gm, _: kill)(torch.ones(2))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    opened = Store.open(store)
    (ahead,) = opened.entries(earlier=True)
    assert [one.case for one in opened.load(ahead.id).origin.history] == [None]
    (kept,) = settle(read(journal), child, Death("crashed", "died of SIGKILL", 9))
    (one,) = opened.load(kept.case).origin.history
    earlier = opened.load(str(one.case))
    assert earlier.origin.earlier
    assert any("sin" in node.target for node in earlier.graph.nodes)


def test_show_says_what_was_compiled_before() -> None:
    history = tuple(Earlier(f"forward graph {number}", 3) for number in range(5))
    told = [shown.plain for shown in _header_of(with_origin(history=history)) + _header_of(with_origin(earlier=True))]
    assert "compiled before it in its process: 2 graphs, forward graph 2, forward graph 3, forward graph 4" in told[0]
    assert "kept for the history of other cases" in told[1]


def _header_of(origin: Origin) -> list[Any]:
    case = small_case(origin=origin)
    return list(render_case(case, listing.graph_lines(case.graph), name="x"))[:1]

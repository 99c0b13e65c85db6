"""The passes on what is around a graph: settings, notes, code, symbolic sizes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from case_samples import rich_case, small_case
from reduce_driving import calls, check_patch, driven, randn, targets
from reduce_samples import recorded, recorded_after_dynamo, runs
from torchsleuth.case.schema import (
    Apply,
    Autocast,
    Case,
    Code,
    Config,
    Entry,
    Fake,
    Meta,
    Provenance,
    Rng,
    State,
    Symbolic,
    Symbols,
    Tensor,
)
from torchsleuth.case.storages.blobs import MemoryBlobs
from torchsleuth.config import After
from torchsleuth.reduce.executors import Predicate
from torchsleuth.reduce.graphs import placeholders, produced
from torchsleuth.reduce.order import size_of
from torchsleuth.reduce.passes import inputs, surroundings, symbols
from torchsleuth.reduce.patches import Material, Pass
from torchsleuth.reduce.problem import Problem
from torchsleuth.reduce.scheduling import run_pass
from torchsleuth.reduce.sizes import mentioned
from torchsleuth.reduce.tiers import TIERS

replace = msgspec.structs.replace
MATERIAL = Material(MemoryBlobs())

STATE = State(
    inference=True,
    autocast=(Autocast("cpu", True, "bfloat16"),),
    rng=(Rng("cpu", b"\1" * 16),),
    deterministic="warn",
    default_dtype="float64",
    flags=(Entry("mkldnn.enabled", False),),
    threads=3,
    config=(Config("torch._inductor.config", "cpp.threads", 2), Config("torch._inductor.config", "max_fusion_size", 8)),
    environment=(("OMP_NUM_THREADS", "1"), ("TORCH_LOGS", "+dynamo")),
)


def odd_case() -> Case:
    """A small case in odd circumstances."""
    compiler = replace(
        small_case().compiler,
        mode="max-autotune",
        dynamic=True,
        options=(Entry("max_autotune", True), Entry("shape_padding", True)),
        arguments=(Entry("cudagraphs", False), Entry("graph_id", 3), Entry("is_inference", True)),
    )
    return small_case(state=STATE, compiler=compiler)


AROUND: list[Pass] = [surroundings.settings, surroundings.options]


def reduced(case: Case, passes: list[Pass], holds: Any) -> tuple[Case, int]:
    return driven(case, MemoryBlobs(), passes, holds)


# ---- settings ------------------------------------------------------------------------------------------------


def asked_for(case: Case, holds: Any, *, at_edge: bool = False) -> tuple[Case, int]:
    """What is left of the settings of a case, and how many questions that takes as `minify` tries them."""
    executor = Predicate(holds)
    problem = Problem(case, executor)
    problem.at_edge = at_edge
    for tier in TIERS:
        if tier.name in ("defaults", "settings", "options"):
            run_pass(problem, tier.proposes, MATERIAL, tier.way)
    return problem.best, executor.asked


def test_everything_is_as_by_default_at_once() -> None:
    """Nothing of it matters: one question. Covers: U16"""
    found, asked = asked_for(odd_case(), lambda case: True)
    assert found.state == State()
    assert asked == 1
    assert (found.compiler.mode, found.compiler.dynamic, found.compiler.options) == (None, None, ())
    assert found.compiler.arguments == ()


def test_where_everything_makes_it_a_little_faster_settings_are_not_tried_one_by_one() -> None:
    """Of a hang that is slow rather than endless: each question would take a minute, and tell nothing. Covers: U19"""
    case = odd_case()
    found, asked = asked_for(case, lambda tried: tried == case, at_edge=True)
    assert found == case
    assert asked == 3


def test_what_the_user_chose_costs_little_if_it_matters() -> None:
    """All the rest goes at once. Covers: U16"""
    found, asked = asked_for(odd_case(), lambda case: "max_autotune" in {one.name for one in case.compiler.options})
    assert found.state == State()
    assert [one.name for one in found.compiler.options] == ["max_autotune"]
    assert asked <= 6


def test_switches_of_caches_are_no_options_of_the_user_s() -> None:
    """Queries use no cache, so they go with the rest: two questions, and the third was answered by the first."""
    bug = Config("torch._inductor.config", "cpp.threads", 1)
    caches = (
        Config("torch._inductor.config", "fx_graph_cache", False),
        Config("torch._functorch.config", "enable_autograd_cache", False),
    )
    case = small_case(state=State(config=(caches[0], bug, caches[1]), threads=3))
    found, asked = asked_for(case, lambda case: bug in case.state.config)
    assert found.state == State(config=(bug,))
    assert asked == 2


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (lambda case: ("OMP_NUM_THREADS", "1") in case.state.environment, State(environment=STATE.environment[:1])),
        (lambda case: STATE.config[1] in case.state.config, State(config=STATE.config[1:])),
        (lambda case: case.state.flags, State(flags=STATE.flags)),
        (lambda case: case.state.autocast, State(autocast=STATE.autocast)),
        (lambda case: case.state.default_dtype == "float64", State(default_dtype="float64")),
        (lambda case: case.state.deterministic != "off", State(deterministic="warn")),
        (lambda case: case.state.threads == 3, State(threads=3)),
        (lambda case: case.state.inference, State(inference=True)),
        (lambda case: case.compiler.mode, State()),
    ],
)
def test_only_the_setting_that_matters_is_left(what: Any, left: State) -> None:
    """Each by itself. Covers: U16"""
    found, _ = reduced(odd_case(), AROUND, what)
    assert found.state == left
    assert what(found)
    assert found.compiler.options == ()


def test_gradients_stay_off_where_inputs_require_them() -> None:
    """After AOT, gradients are off while a graph runs; with them on, its operators refuse inputs that require them."""
    case = small_case(state=State(grad=False, inference=True, threads=3))
    assert reduced(case, AROUND, lambda one: True)[0].state == State()
    required = replace(case, inputs=(replace(case.inputs[0], requires_grad=True),))  # type: ignore[type-var]
    assert reduced(required, AROUND, lambda one: True)[0].state == State(grad=False)
    dynamo = replace(required, compiler=replace(case.compiler, after=After.DYNAMO))
    assert reduced(dynamo, AROUND, lambda one: True)[0].state == State()


def test_options_and_arguments_one_by_one() -> None:
    """An option that matters stays, and alone."""

    def holds(case: Case) -> bool:
        names = {entry.name for entry in (*case.compiler.options, *case.compiler.arguments)}
        return {"shape_padding", "is_inference"} <= names

    found, _ = reduced(odd_case(), AROUND, holds)
    assert [entry.name for entry in found.compiler.options] == ["shape_padding"]
    assert [entry.name for entry in found.compiler.arguments] == ["is_inference"]
    assert found.state == State()


def test_random_numbers_keep_their_state() -> None:
    """A graph that draws random numbers is not the same without the state of its generator."""
    case, blobs = recorded(lambda x: x + torch.rand(3), randn(3))
    case = replace(case, state=STATE)
    found, _ = driven(case, blobs, AROUND, lambda one: True)
    assert found.state == State(rng=STATE.rng)


def test_each_patch_is_smaller() -> None:
    """Whatever is proposed for a case with something of everything."""
    for one in (*AROUND, surroundings.notes, surroundings.unused_code, symbols.unused_facts):
        for site in one(rich_case(), MATERIAL):
            for patch in site:
                made = patch(rich_case())
                assert made is None or size_of(made) < size_of(rich_case())
                assert patch(rich_case()) == made


# ---- notes and code ------------------------------------------------------------------------------------------


def test_notes_go_and_lines_stay() -> None:
    """Where nodes came from is not told any more, but the user's line is."""
    meta = Meta(
        val=Fake("float32", (2, 3), (3, 1)),
        stack_trace="File 'model.py', line 3",
        original_aten="aten.mul.Tensor",
        from_node=(Provenance("a", "b"),),
        more=(Entry("recompute", 1),),
    )
    case = small_case()
    x, y, out = case.graph.nodes
    graph = replace(case.graph, nodes=(x, replace(y, meta=meta), out), meta=(Entry("backend_id", "f"),), name="Model")
    case = replace(case, graph=graph)
    found, asked = reduced(case, [surroundings.notes], lambda one: True)
    assert found.graph.nodes[1].meta == Meta(val=meta.val, stack_trace=meta.stack_trace)
    assert found.graph.meta == ()
    assert asked == 1
    kept, _ = reduced(case, [surroundings.notes], lambda one: one.graph.nodes[1].meta.more)
    assert kept.graph.nodes[1].meta == Meta(val=meta.val, stack_trace=meta.stack_trace, more=meta.more)


def test_code_that_nothing_calls_goes() -> None:
    """An operator of the user's own stays as long as it is called."""
    case = small_case(code=(Code("python op", "mylib::foo"), Code("python op", "mylib::bar")))
    x, y, out = case.graph.nodes
    graph = replace(case.graph, nodes=(x, replace(y, target="torch.ops.mylib.bar.default"), out))
    found, _ = reduced(replace(case, graph=graph), [surroundings.unused_code], lambda one: True)
    assert [code.name for code in found.code] == ["mylib::bar"]


# ---- symbolic sizes ------------------------------------------------------------------------------------------


def reshaped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x]).view(-1, x.shape[1]) @ y[: x.shape[1]]


def test_symbols_become_numbers() -> None:
    """All at once, and nothing is left that reckons with them. Covers: U4"""
    case, blobs = recorded(reshaped, randn(4, 3), randn(3, 5), dynamic=True)
    assert case.symbols.symbols
    first = next(iter(symbols.concrete(case, Material(blobs))))[0]
    made = check_patch(first, case, blobs)
    assert made is not None
    assert made.symbols == Symbols()
    assert not mentioned(made.graph.nodes)
    assert not any(isinstance(produced(node), Symbolic) for node in made.graph.nodes)
    for one, other in zip(runs(case, blobs), runs(made, blobs), strict=True):
        torch.testing.assert_close(one, other)


def test_a_failure_that_needs_a_symbol_keeps_it() -> None:
    """The others become numbers. Covers: U4"""
    case, blobs = recorded(reshaped, randn(4, 3), randn(3, 5), dynamic=True)
    name = str(produced(placeholders(case.graph)[0]).size[0])  # type: ignore[union-attr]
    found, _ = driven(case, blobs, [symbols.concrete], lambda one: name in {each.name for each in one.symbols.symbols})
    assert [one.name for one in found.symbols.symbols] == [name]
    assert mentioned(found.graph.nodes) == {name}
    assert runs(found, blobs)


def test_symbols_are_what_the_inputs_say() -> None:
    """A graph that was compiled for one size and called with another: the call counts."""
    case, _ = recorded(lambda x: x.sin() + 1, randn(4, 3), dynamic=True)
    hints = tuple(replace(one, hint=7) for one in case.symbols.symbols)
    case = replace(case, symbols=replace(case.symbols, symbols=hints))
    assert sorted(symbols.values_of(case).values()) == [3, 4]


def test_symbols_become_numbers_after_dynamo() -> None:
    """Sizes that Dynamo hands on as inputs of their own are numbers in the calls."""
    case, blobs = recorded_after_dynamo(lambda x: x.sin().view(x.shape[0] * x.shape[1]), randn(4, 3), dynamic=True)
    found, _ = driven(case, blobs, [symbols.concrete, inputs.unused_inputs], lambda one: True)
    assert all(isinstance(value, Tensor) for value in found.inputs)
    assert targets(found) == ["sin", "view"]
    assert runs(found, blobs)[0].shape == (12,)


def test_terms_are_worked_out() -> None:
    """As far as that goes."""
    term = Apply("Add", (1, Apply("Mul", (2, "s0"))))
    assert symbols.substituted(term, {"s0": 4}) == 9
    assert symbols.substituted(term, {"s1": 4}) == term
    left = symbols.substituted(Apply("Mul", ("s0", "s1")), {"s0": 4})
    assert left == Apply("Mul", (4, "s1"))


def test_facts_about_nothing_go() -> None:
    """Symbols that no node mentions, and what is known of them."""
    case, blobs = recorded(reshaped, randn(4, 3), randn(3, 5), dynamic=True)
    extra = replace(case.symbols.symbols[0], name="s999")
    guard = Apply("Lt", ("s999", 100))
    more = replace(case.symbols, symbols=(*case.symbols.symbols, extra), guards=(*case.symbols.guards, guard))
    found, _ = driven(replace(case, symbols=more), blobs, [symbols.unused_facts], calls("mm"))
    assert {one.name for one in found.symbols.symbols} == mentioned(case.graph.nodes)
    assert found.symbols.guards == ()
    assert runs(found, blobs)

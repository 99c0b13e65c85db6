"""Watching changes nothing: Inductor's code, results, gradients, state and random numbers are as they would have been.

Everything here runs twice in one process, unwatched and watched, and is compared bit for bit. Inductor generates its
code each time: its cache and AOT's are on, as they are by default, and empty. Only what g++ made of equal code is used
again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import watch_samples
from torchsleuth.capture import judging
from torchsleuth.capture.backends import watch
from torchsleuth.run.checking.check import Checked
from watch_samples import SAMPLES, STEPS, Sample, Seen, observe

RANDOM = ("attention_with_dropout", "activation_checkpointing", "input_written_to")
"""After Dynamo a check of these is a test of distributions: many runs. One is enough."""


@dataclass
class Checks:
    """Counts the checks of level 4, and notes those that came to nothing."""

    run: Callable[..., Checked]
    count: int = 0
    unknown: list[str] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Checked:
        self.count += 1
        checked = self.run(*args, **kwargs)
        if checked.unknown is not None:
            self.unknown.append(checked.unknown)
        return checked


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    counted = Checks(judging.run_checked)
    monkeypatch.setattr(judging, "run_checked", counted)
    return counted


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def kept(store: Path) -> list[str]:
    """Cases, and what tells of trouble of our own."""
    return [str(path.relative_to(store)) for path in store.glob("*") if path.name.startswith("trouble")] + [
        str(path.relative_to(store)) for path in store.glob("cases/*/*")
    ]


# ---- the programs ------------------------------------------------------------------------------------------


@functools.cache
def unwatched(name: str) -> Seen:
    return observe(SAMPLES[name], "inductor")


@pytest.mark.inductor
@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_code_and_the_same_bits_after_both_at_level_4(name: str, tmp_path: Path, checks: Checks) -> None:
    """Covers: U7"""
    sample: Sample = SAMPLES[name]()
    most = 1 if name in RANDOM else None
    expected = unwatched(name)
    assert len(expected.code) == sample.compiled_graphs

    seen = observe(SAMPLES[name], watch("inductor", after="both", level=4, store=str(tmp_path), max_checks=most))

    assert seen.differences(expected) == []
    assert kept(tmp_path) == []
    assert checks.count == (sample.graphs + sample.compiled_graphs) * (1 if most else STEPS)
    assert checks.unknown == []


@pytest.mark.inductor
@pytest.mark.parametrize("name", ["mlp", "convolution_and_batch_norm", "input_written_to", "graph_break"])
@pytest.mark.parametrize("level", [1, 3])
def test_the_same_code_and_the_same_bits_after_aot(name: str, level: int, tmp_path: Path, checks: Checks) -> None:
    """Covers: U7"""
    seen = observe(SAMPLES[name], watch("inductor", after="aot", level=level, store=str(tmp_path)))

    assert seen.differences(unwatched(name)) == []
    assert kept(tmp_path) == []
    assert checks.count == 0


@pytest.mark.inductor
@pytest.mark.parametrize("name", RANDOM)
def test_random_programs_are_the_same_when_every_step_is_checked(name: str, tmp_path: Path, checks: Checks) -> None:
    """Covers: U7"""
    seen = observe(SAMPLES[name], watch("inductor", after="aot", level=4, store=str(tmp_path)))

    assert seen.differences(unwatched(name)) == []
    assert kept(tmp_path) == []
    assert checks.count == SAMPLES[name]().compiled_graphs * STEPS
    assert checks.unknown == []


# ---- would a difference be seen? ---------------------------------------------------------------------------


def draws(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    def run(*args: Any) -> Any:
        torch.rand(1)
        return gm(*args)

    return run


def rounds_otherwise(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return lambda *args: tuple(torch.nextafter(each, each + 1) for each in gm(*args))


def writes_to_an_input(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    def run(*args: Any) -> Any:
        result = gm(*args)
        with torch.no_grad():
            args[0].add_(1)
        return result

    return run


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (draws, {"torch's generator, step 0", "torch's generator, step 1"}),
        (rounds_otherwise, {"result 0, step 0", "result 0, step 1"}),
        (writes_to_an_input, {"input 0, step 0", "result 0, step 1"}),
    ],
)
def test_what_a_backend_changes_is_seen(backend: Any, expected: set[str]) -> None:
    def make() -> Sample:
        return Sample(lambda x: x.sin(), (torch.randn(4, 3),), trains=False)

    plain = observe(make, "eager")

    assert plain.differences(observe(make, "eager")) == []
    assert expected <= set(plain.differences(observe(make, backend)))


def test_other_code_is_seen() -> None:
    assert Seen(["a\nb\n", "c\n"]).differences(Seen(["c\n", "a\nb\n"])) == []
    assert "+d" in Seen(["a\nb\n", "c\n"]).differences(Seen(["c\n", "a\nd\n"]))
    assert Seen(["a\n"]).differences(Seen([])) != []


# ---- training ----------------------------------------------------------------------------------------------


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=1, n_head=2, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    model.loss_type = "ForCausalLM"  # without it there is a warning, and with that a break in the graph
    return model  # type: ignore[no-any-return]


def train(backend: Any) -> Seen:
    """Three steps of AdamW on random words, with dropout: the loss of each, and the parameters after."""
    seen = Seen()
    model = gpt2()
    with watch_samples.generated_code(seen.code):
        compiled = torch.compile(model, backend=backend)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        watch_samples.seed()
        for step in range(3):
            words = torch.randint(0, 128, (2, 16))
            loss = compiled(input_ids=words, labels=words).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen.values[f"loss of step {step}"] = loss.detach().clone()
    seen.values.update((name, value.detach().clone()) for name, value in model.named_parameters())
    seen.values["generators"] = (torch.get_rng_state(), random.getstate(), str(np.random.get_state()))
    return seen


@functools.cache
def trained(backend: str) -> Seen:
    seen = train(backend)
    losses = [seen.values[f"loss of step {step}"].item() for step in range(3)]
    assert len(set(losses)) == 3
    assert all(loss == loss for loss in losses)
    return seen


@pytest.mark.parametrize(("after", "level"), [("aot", 1), ("aot", 2), ("aot", 3), ("aot", 4), ("both", 4)])
def test_a_model_trains_the_same(after: str, level: int, tmp_path: Path, checks: Checks) -> None:
    """Covers: U7"""
    expected = trained("aot_eager")

    seen = train(watch("aot_eager", after=after, level=level, store=str(tmp_path)))

    assert seen.differences(expected) == []
    assert kept(tmp_path) == []
    assert checks.unknown == []
    assert checks.count == (0 if level < 4 else 3 * 2 if after == "aot" else 3 * 3)


@pytest.mark.inductor
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_model_trains_the_same_with_inductor(level: int, tmp_path: Path, checks: Checks) -> None:
    """Covers: U7"""
    expected = trained("inductor")
    assert len(expected.code) == 2

    seen = train(watch("inductor", level=level, store=str(tmp_path)))

    assert seen.differences(expected) == []
    assert kept(tmp_path) == []
    assert checks.unknown == []
    assert checks.count == (3 * 2 if level == 4 else 0)

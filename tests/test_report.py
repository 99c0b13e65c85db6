"""Rendering a judgement: what a person sees for each verdict."""

from __future__ import annotations

import pytest
from rich.console import Console

from torchsleuth.compare import Judgement, LeafEvidence, RngEvidence, Verdict
from torchsleuth.compare.distribution import DistributionReport
from torchsleuth.compare.noise import NoiseReport
from torchsleuth.report.judgement import render_judgement

NOISE = NoiseReport(
    worst=1234.5,
    unexplained=3,
    faint=0,
    astray=0,
    nonfinite=0,
    index=(0, 1),
    run=0,
    eager_max=1e-7,
    eager_rms=1e-8,
    result_max=0.5,
    result_rms=0.1,
    noise_rms=2e-7,
)


def shown(judgement: Judgement, width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render_judgement(judgement))
    return capture.get()


def test_the_table_fits_a_narrow_terminal() -> None:
    leaf = LeafEvidence("grads['encoder.layers.11.attention.output.weight']", Verdict.BUG, "off", noise=NOISE)
    told = shown(Judgement(Verdict.BUG, "off", leaves=(leaf,)), width=80)
    assert "verdict" in told
    assert "× noise" in told
    assert "1.2e+03" in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_verdict_can_be_shown(verdict: Verdict) -> None:
    told = shown(Judgement(verdict, "because it is so"))
    assert verdict.value.upper() in told
    assert "Because it is so." in told


def test_a_bug_shows_the_leaf_its_numbers_and_the_evidence() -> None:
    leaf = LeafEvidence(
        "output['logits']", Verdict.BUG, "off", noise=NOISE, index=(0, 1), numel=4096,
        eager_value=1.0, compiled_value=1.5, fp64_value=1.0,
    )  # fmt: skip
    told = shown(Judgement(Verdict.BUG, "off", leaf=leaf, leaves=(leaf,), rng=RngEvidence()))
    assert "output['logits']" in told
    assert "1.2e+03" in told
    assert "Worst at output['logits'][0, 1]: eager 1, compiled 1.5, fp64 1." in told
    assert "Neither side drew random numbers." in told


def test_wrong_leaves_come_first_and_the_rest_is_counted() -> None:
    fine = [LeafEvidence(f"grads[{i}]", Verdict.NOISE, "equal") for i in range(8)]
    wrong = [LeafEvidence(f"output[{i}]", Verdict.BUG, "off") for i in range(7)]
    told = shown(Judgement(Verdict.BUG, "off", leaves=(*fine, *wrong)))
    assert "output[0]" in told
    assert "grads" not in told
    assert "… and 9 more, 1 of them wrong" in told


def test_a_random_leaf_shows_its_probability() -> None:
    leaf = LeafEvidence("output", Verdict.BUG, "shifted", distribution=DistributionReport(0.003, "a shift", 0.01))
    assert "p = 0.003" in shown(Judgement(Verdict.BUG, "shifted", leaves=(leaf,)))


def test_brackets_in_paths_and_reasons_are_not_taken_for_markup() -> None:
    leaf = LeafEvidence("output['[red]x[/]']", Verdict.BUG, "off")
    told = shown(Judgement(Verdict.BUG, "at [bold]here[/]", leaves=(leaf,)))
    assert "output['[red]x[/]']" in told
    assert "[bold]here[/]" in told

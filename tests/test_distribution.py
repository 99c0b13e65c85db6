"""Do two programs draw from one distribution? Power and false alarms on synthetic samples, with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from torchsleuth.compare.distribution import SAMPLED, Scout, Sketcher, compare_distributions, varies

X = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
UNIT = torch.finfo(torch.float32).eps
Program = Callable[[torch.Generator], torch.Tensor]


def dropout(p: float, scale: float | None = None, x: torch.Tensor = X) -> Program:
    kept = 1 / (1 - p) if scale is None else scale
    return lambda g: x * (torch.rand(x.shape, generator=g, dtype=torch.float64) >= p) * kept


def sketches(program: Program, sketcher: Sketcher, stream: int, runs: int = 24) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(stream)
    return [sketcher.sketch(program(generator)) for _ in range(runs)]


def p_value(ours: Program, theirs: Program, *, stream: int = 0, runs: int = 24, quiet: float = 1e-6) -> float:
    sketcher = Sketcher(torch.full_like(ours(torch.Generator()), quiet))
    a, b = (sketches(program, sketcher, 2 * stream + side, runs) for side, program in enumerate((ours, theirs)))
    return compare_distributions(a, b, sketcher.dead_zone(), unit=UNIT).p_value


def differs(ours: Program, theirs: Program, **options: int) -> bool:
    sketcher = Sketcher(torch.full_like(ours(torch.Generator()), 1e-6))
    a, b = (sketches(program, sketcher, side, **options) for side, program in enumerate((ours, theirs)))
    return compare_distributions(a, b, sketcher.dead_zone(), unit=UNIT).differs


def frozen(p: float) -> Program:
    mask = torch.rand(X.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64) >= p
    return lambda g: X * mask / (1 - p)


def normal(mean: float, std: float) -> Program:
    return lambda g: X + torch.randn(X.shape, generator=g, dtype=torch.float64) * std + mean


def blocks(p: float) -> Program:
    """Whole groups of ten are dropped together: each element by itself looks the same."""
    return lambda g: X * (torch.rand(30, generator=g, dtype=torch.float64) >= p).repeat_interleave(10) / (1 - p)


def one_wrong(program: Program, value: float) -> Program:
    def run(g: torch.Generator) -> torch.Tensor:
        result = program(g)
        result[123] = value
        return result

    return run


WRONG: dict[str, tuple[Program, Program]] = {
    "another probability": (dropout(0.5), dropout(0.4)),
    "no scaling": (dropout(0.1), dropout(0.1, scale=1.0)),
    "a factor of 2 %": (dropout(0.5), dropout(0.5, scale=2.04)),
    "a mask that never changes": (dropout(0.5), frozen(0.5)),
    "nothing dropped": (dropout(0.1), lambda g: X.clone()),
    "a shift": (normal(0, 1), normal(0.2, 1)),
    "another spread": (normal(0, 1), normal(0, 1.2)),
    "one element": (dropout(0.5), one_wrong(dropout(0.5), 30.0)),
    "one NaN": (dropout(0.5), one_wrong(dropout(0.5), math.nan)),
    "one constant among the random": (one_wrong(dropout(0.5), 1.0), one_wrong(dropout(0.5), 1.0001)),
    "a coin with another bias": (
        lambda g: (torch.rand(300, generator=g) < 0.5).double(),
        lambda g: (torch.rand(300, generator=g) < 0.42).double(),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_found(name: str) -> None:
    """Covers: U10"""
    assert differs(*WRONG[name])


def test_neighbours_that_are_dropped_together_are_found() -> None:
    """Covers: U10. A dropout of channels for one of elements: no element by itself shows it, but the whole does."""
    assert differs(dropout(0.5), blocks(0.5), runs=72)


RIGHT: dict[str, Program] = {
    "dropout": dropout(0.5),
    "rare dropout": dropout(0.02),
    "heavy dropout": dropout(0.98),
    "normal": normal(0, 1),
    "groups": blocks(0.5),
    "integers": lambda g: torch.randint(0, 5, (200,), generator=g).double(),
    "one number": lambda g: torch.rand(1, generator=g).double(),
    "heavy tails": lambda g: torch.rand(100, generator=g).double().sub_(0.5).mul_(math.pi).tan_(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_false_alarms_are_as_rare_as_promised(name: str) -> None:
    """Covers: U10. 1 in 200 for one test; a judgement asks for two in a row."""
    program = RIGHT[name]
    found = [p_value(program, program, stream=stream) for stream in range(12)]
    assert sum(p < 0.005 for p in found) <= 1
    assert sum(p < 0.05 for p in found) <= 3


def test_rounding_alike_in_each_run_is_no_difference() -> None:
    """Covers: U10. A compiler's other rounding is systematic. It must not tell the sides apart."""
    off = torch.rand(X.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).sub_(0.5) * 1e-6

    for p in (0.03, 0.5, 0.97):
        ours, theirs = dropout(p), dropout(p, x=X + off)
        assert all(p_value(ours, theirs, stream=stream) > 0.005 for stream in range(4))


def test_beyond_the_dead_zone_it_is_one() -> None:
    """Covers: U10"""
    assert p_value(dropout(0.5), dropout(0.5, x=X + 1e-4)) < 0.005


def test_the_answer_does_not_hang_on_chance() -> None:
    first = p_value(dropout(0.5), dropout(0.45))
    assert p_value(dropout(0.5), dropout(0.45)) == first


def test_a_report_tells_the_statistic_and_the_resolution() -> None:
    sketcher = Sketcher(torch.full_like(X, 1e-6))
    a, b = (sketches(program, sketcher, side) for side, program in enumerate((dropout(0.5), dropout(0.5, scale=4.0))))
    report = compare_distributions(a, b, sketcher.dead_zone(), unit=UNIT)
    assert report.differs
    assert report.p_value == pytest.approx(9 / 2000)
    assert report.statistic.startswith("a ")
    assert 0 < report.resolution < 0.2


def test_programs_that_do_not_vary() -> None:
    sketcher = Sketcher(torch.full_like(X, 1e-6))
    same = [sketcher.sketch(X)] * 24
    assert not varies(same, sketcher.dead_zone())
    assert varies(sketches(dropout(0.5), sketcher, 0), sketcher.dead_zone())
    report = compare_distributions(same, same, sketcher.dead_zone(), unit=UNIT)
    assert (report.p_value, report.statistic) == (1.0, "no difference")


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (5, 6), (0, 0)])
def test_too_few_or_unequal_samples_are_refused(ours: int, theirs: int) -> None:
    sketch = torch.zeros(10)
    with pytest.raises(ValueError, match="equally long"):
        compare_distributions([sketch] * ours, [sketch] * theirs, torch.zeros(10), unit=UNIT)


# ── sketches ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sketch_keeps_small_tensors_whole_and_sums_up_the_rest() -> None:
    value = torch.tensor([[1.0, -3.0], [0.0, math.nan]])
    sketch = Sketcher(torch.full((2, 2), 0.1)).sketch(value)
    assert sketch[:4].tolist() == [1.0, -3.0, 0.0, 0.0]
    mean, rms, size, low, high, hushed, lost = sketch[4:].tolist()
    assert (mean, size, low, high) == (-0.5, 1.0, -3.0, 1.0)
    assert rms == pytest.approx(math.sqrt(2.5))
    assert (hushed, lost) == (0.5, 0.25)


def test_a_sketch_of_a_large_tensor_is_always_of_the_same_elements() -> None:
    large = torch.arange(50_000.0)
    one, two = (Sketcher(torch.zeros_like(large)).sketch(large) for _ in range(2))
    assert torch.equal(one, two)
    assert len(one) == SAMPLED + 7
    assert len(set(one[:-7].tolist())) > 0.9 * SAMPLED
    looked = Sketcher(torch.zeros_like(large), torch.tensor([49_999])).sketch(large)
    assert looked[SAMPLED] == 49_999.0


def test_complex_numbers_are_two_each() -> None:
    value = torch.complex(torch.ones(3), -torch.ones(3))
    sketch = Sketcher(torch.zeros(3, 2)).sketch(value)
    assert sketch[:6].tolist() == [1.0, -1.0] * 3


def test_a_scout_finds_the_one_element_to_look_at() -> None:
    """Covers: U10. Of 100,000, some 2,000 are kept: the wrong one has to be among them."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    shifted, steady = Scout(), Scout()
    for _ in range(12):
        for side in (0, 1):
            run = dropout(0.5, x=x)(generator)
            shifted.look(side, run if side == 0 else run.index_fill(0, torch.tensor([77_777]), 9.0))
            steady.look(side, run if side == 0 else run.index_copy(0, torch.tensor([55_555]), x[55_555:55_556]))
    assert 77_777 in shifted.suspicious().tolist()
    assert 55_555 in steady.suspicious().tolist()
    assert len(shifted.suspicious()) <= 128


def test_a_scout_is_not_blinded_by_nan() -> None:
    scout = Scout()
    for side in (0, 1):
        for _ in range(4):
            scout.look(side, torch.tensor([1.0, math.nan, 2.0 + side]))
    assert 2 in scout.suspicious().tolist()

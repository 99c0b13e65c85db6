"""Weighing a result against the noise of a program: synthetic runs, whose noise is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchsleuth.compare.noise import BLATANT, EXPLAINED, FlipReport, NoiseReport, weigh, weigh_integers

SIGMA = 1e-3
"""The noise of the runs below: far above the rounding of fp32."""


def true_values(shape: Sequence[int] = (200,), seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1


def runs(centre: torch.Tensor, count: int, seed: int, sigma: float = SIGMA) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.empty_like(centre).uniform_(-sigma, sigma, generator=generator) for _ in range(count)]
    return [(centre + one).float() for one in noise]


def weighed(
    centre: torch.Tensor,
    result: torch.Tensor,
    *,
    plain: torch.Tensor | None = None,
    perturbed: list[torch.Tensor] | None = None,
) -> NoiseReport:
    eager = runs(centre, 1, 1)[0] if plain is None else plain
    shaken = runs(centre, 12, 2) if perturbed is None else perturbed
    return weigh(centre, [eager], shaken, [result], torch.float32)


def test_a_run_like_the_others_is_explained() -> None:
    """Covers: U12"""
    centre = true_values()
    found = weighed(centre, runs(centre, 1, 3)[0])
    assert found.explained
    assert not found.blatant
    assert 0.5 < found.worst < EXPLAINED
    assert (found.unexplained, found.faint, found.astray, found.nonfinite) == (0, 0, 0, 0)


def test_what_is_doubtful_in_one_run_excuses_nothing_in_another() -> None:
    """Covers: U12. Compiled does not repeat itself: one run is plainly wrong, the other off by next to nothing."""
    centre = true_values()
    centre[0] = 1e-9
    eager = centre.float()
    wrong, faint = eager.clone(), eager.clone()
    wrong[1] += 1
    faint[0] += 1e-8
    shaken = [eager] * 6
    assert weigh(centre, [eager], shaken, [faint], torch.float32).faint == 1
    for results in ([wrong], [wrong, faint], [faint, wrong]):
        found = weigh(centre, [eager], shaken, results, torch.float32)
        assert found.blatant
        assert (found.unexplained, found.faint, found.index) == (1, 0, (1,))


def test_a_result_nearer_to_the_truth_is_explained() -> None:
    """Covers: U12. Wider intermediates."""
    centre = true_values()
    assert weighed(centre, centre.float()).worst < 0.1


@pytest.mark.parametrize(
    ("times", "explained", "blatant"),
    [(0.5 * EXPLAINED, True, False), (1.4 * EXPLAINED, False, False), (1.5 * BLATANT, False, True)],
)
def test_the_three_answers(times: float, explained: bool, blatant: bool) -> None:
    """Covers: U12"""
    centre = true_values()
    around = [(centre + SIGMA).float(), (centre - SIGMA).float()]
    found = weighed(centre, (centre + times * SIGMA).float(), perturbed=around)
    assert (found.explained, found.blatant) == (explained, blatant)
    assert found.worst == pytest.approx(times, rel=0.01)


@given(
    size=st.sampled_from([1, 8, 77, 1000, 1001, 65_535, 65_537, 200_000]),
    factor=st.sampled_from([0.3, 20.0]),
    spot=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=25, deadline=None)
def test_one_element_decides_whatever_the_size(size: int, factor: float, spot: float) -> None:
    """Covers: U12"""
    centre = true_values((size,))
    result = centre.float()
    place = int(spot * size)
    result[place] += factor * SIGMA
    found = weighed(centre, result, perturbed=[(centre + SIGMA).float(), (centre - SIGMA).float()])
    assert found.explained is (factor < 1)
    assert found.blatant is (factor > 1)
    assert found.index == (place,)
    assert found.unexplained == int(factor > 1)


def test_the_noise_of_an_element_is_its_own() -> None:
    """Covers: U12. Another element on the edge of a comparison excuses nothing here."""
    centre = true_values()
    perturbed = runs(centre, 12, 2)
    for run in perturbed[::3]:
        run[10] += 1.0
    tipped, wrong = centre.float(), centre.float()
    tipped[10] += 1.0
    wrong[11] += 1.0
    assert weighed(centre, tipped, perturbed=perturbed).explained
    assert weighed(centre, wrong, perturbed=perturbed).blatant
    assert weighed(centre, wrong, perturbed=perturbed).index == (11,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_rounding_to_the_dtype_is_always_allowed(dtype: torch.dtype) -> None:
    """Covers: U12. Where eager happens to be exact, one unit is still noise, and a hundred are not."""
    centre = torch.tensor([1.5, -3.0, 1.0], dtype=torch.float64)
    eps = torch.finfo(dtype).eps
    same = centre.to(dtype)
    close, far = centre * (1 + eps), centre * (1 + 100 * eps)
    assert weigh(centre, [same], [same], [close], dtype).explained
    assert weigh(centre, [same], [same], [far], dtype).blatant


def test_what_is_too_small_to_be_normal_may_be_flushed_to_zero() -> None:
    centre = torch.tensor([1e-39, 1e-41, 0.0], dtype=torch.float64)
    same = centre.float()
    assert weigh(centre, [same], [same], [torch.zeros(3)], torch.float32).explained
    centre16 = torch.tensor([3e-5, 1e-5], dtype=torch.float64)
    same16 = centre16.half()
    assert not weigh(centre16, [same16], [same16], [torch.zeros(2).half()], torch.float16).explained


KINDS = (1.0, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("ours", KINDS)
@pytest.mark.parametrize("theirs", KINDS)
def test_nan_and_the_infinities_are_not_the_same(ours: float, theirs: float) -> None:
    """Covers: U12"""
    centre = true_values((5,))
    centre[2] = ours
    result = centre.float()
    result[2] = theirs
    found = weighed(centre, result, plain=centre.float(), perturbed=[centre.float()] * 3)
    same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    assert found.explained is same
    assert found.blatant is not same
    assert found.nonfinite == int(not same)
    if not same:
        assert found.index == (2,)
        assert math.isinf(found.worst)


@pytest.mark.parametrize("who", ["fp64", "eager", "a perturbed run"])
def test_an_overflow_that_any_run_shows_is_excused(who: str) -> None:
    """Covers: U12. In fp16 eager overflows where a fused kernel does not, and the other way round."""
    centre = true_values((5,))
    exact, plain, perturbed, result = centre.clone(), centre.half(), centre.half(), centre.half()
    result[2] = math.inf
    if who == "fp64":
        exact[2] = 1e6  # more than fp16 can hold
    elif who == "eager":
        plain[2] = math.inf
    else:
        perturbed[2] = math.inf
    assert weigh(exact, [plain], [perturbed], [result], torch.float16).explained
    assert weigh(centre, [centre.half()], [centre.half()], [result], torch.float16).blatant


def test_where_all_is_lost_a_finite_value_is_suspicious() -> None:
    centre = torch.full((3,), math.nan, dtype=torch.float64)
    found = weighed(centre, torch.ones(3), plain=centre.float(), perturbed=[centre.float()])
    assert found.nonfinite == 3


def test_a_small_element_off_by_less_than_a_rounding_of_its_neighbours_is_in_doubt() -> None:
    """Covers: U12. Inductor computes expm1 as exp(x) - 1: many times the noise of a small element, and tiny."""
    centre = true_values()
    centre[7] = 1e-6
    same = centre.float()
    faint, wrong = same.clone(), same.clone()
    faint[7] += 1e-7
    wrong[7] += 1e-5
    found = weighed(centre, faint, plain=same, perturbed=[same])
    assert (found.explained, found.blatant) == (False, False)
    assert (found.unexplained, found.faint) == (1, 1)
    assert found.worst > 100
    assert weighed(centre, wrong, plain=same, perturbed=[same]).blatant


def test_doubt_about_one_element_does_not_hide_another() -> None:
    centre = true_values()
    centre[7] = 1e-6
    same = centre.float()
    result = same.clone()
    result[7] += 1e-7
    result[90] += 1e-3
    found = weighed(centre, result, plain=same, perturbed=[same])
    assert found.blatant
    assert found.index == (90,)
    assert (found.unexplained, found.faint) == (2, 1)


def test_a_reference_far_from_eager_is_no_licence() -> None:
    """Covers: U11. It drew other random numbers, say. Then a result must be near it, or near eager."""
    truth = true_values()
    centre = truth + 0.5  # the reference of some other program
    plain, *perturbed = runs(truth, 13, 1)

    def found(result: torch.Tensor) -> NoiseReport:
        return weigh(centre, [plain], perturbed, [result.float()], torch.float32)

    assert found(truth).explained
    assert found(centre).explained
    between = found(truth + 0.25)
    assert (between.explained, between.blatant) == (False, False)
    assert between.astray == between.unexplained == 200


def test_complex_numbers_by_their_distance() -> None:
    centre = torch.complex(true_values(), -true_values(seed=1))
    same = centre.to(torch.complex64)
    wrong = same.clone()
    wrong[5] = wrong[5].conj()
    assert weigh(centre, [same], [same], [same], torch.complex64).explained
    found = weigh(centre, [same], [same], [wrong], torch.complex64)
    assert found.blatant
    assert found.index == (5,)
    wrong[5] = complex(math.nan, 0)
    assert weigh(centre, [same], [same], [wrong], torch.complex64).nonfinite == 1


def test_the_worst_of_several_results_counts() -> None:
    centre = true_values()
    wrong = centre.float()
    wrong[3] = 9.0
    found = weigh(centre, [centre.float()], runs(centre, 6, 2), [centre.float(), wrong], torch.float32)
    assert found.blatant
    assert found.index == (3,)


def test_the_measures_that_are_reported() -> None:
    centre = torch.zeros(4, dtype=torch.float64)
    plain = torch.tensor([0.0, 0.0, 3.0, 4.0])
    result = torch.tensor([0.0, 6.0, 0.0, 8.0])
    found = weigh(centre, [plain], [plain], [result], torch.float32)
    assert (found.eager_max, found.result_max) == (4.0, 8.0)
    assert found.eager_rms == pytest.approx(2.5)
    assert found.result_rms == pytest.approx(5.0)
    assert found.noise_rms == pytest.approx(2.5)


def test_an_index_in_a_large_tensor_of_many_dimensions() -> None:
    centre = true_values((3, 70, 500))
    wrong = centre.float()
    wrong[2, 69, 7] += 1
    assert weighed(centre, wrong).index == (2, 69, 7)


def test_nothing_to_weigh() -> None:
    empty = torch.zeros(0, 3)
    found = weigh(empty.double(), [empty], [empty], [empty], torch.float32)
    assert found.explained
    assert found.index is None


# ── integers ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_eager_flips_too_is_explained() -> None:
    """Covers: U12"""
    eager, flipped, other = torch.zeros(3, 50, dtype=torch.int64)
    flipped[7], other[9] = 1, -1
    found = weigh_integers([eager], [flipped, other], [flipped])
    assert found == FlipReport(differing=1, unexplained=0, index=(7,))
    assert found.explained


def test_what_no_run_of_eager_flips_is_not() -> None:
    """Covers: U12"""
    eager, perturbed, result = torch.zeros(3, 10, 5, dtype=torch.bool)
    perturbed[:5] = True
    result[4, 0] = result[6, 2] = True
    found = weigh_integers([eager], [perturbed], [eager, result])
    assert found == FlipReport(differing=2, unexplained=1, index=(6, 2), run=1)
    assert not found.explained


@pytest.mark.parametrize("size", [1, 10, 1_000_000])
def test_one_flip_among_many_elements(size: int) -> None:
    """Covers: U12"""
    eager = torch.arange(size)
    perturbed, wrong = eager.clone(), eager.clone()
    perturbed[: size // 2] += 1
    wrong[-1] += 1
    assert weigh_integers([eager], [perturbed] * 3, [wrong]).unexplained == 1
    assert weigh_integers([eager], [perturbed] * 3, [perturbed]).explained


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.bool])
def test_integers_of_every_width(dtype: torch.dtype) -> None:
    eager = torch.tensor([0, 1, 1, 0]).to(dtype)
    wrong = torch.tensor([0, 1, 0, 0]).to(dtype)
    assert weigh_integers([eager], [eager], [wrong]).index == (2,)
    assert weigh_integers([eager], [eager], [eager]).index is None

"""That nine intervals of ten hold what was measured, of harnesses that were measured and of those that were not."""


from statistics import median

import pytest
from msgspec.structs import replace

from truth.coverage import coverage, held
from vramcast.estimate import interval
from vramcast.estimate.interval import FAR, Case, Traits, likeness, likest_runs, measured_cases, ratio_bounds

LEAST, MOST = 0.85, 0.95
WIDEST = 0.20
"""Median width of an interval of a harness that was measured, of the prediction."""


@pytest.mark.parametrize("purpose", ["training", "serving"])
@pytest.mark.parametrize("seen", [False, True])
def test_nine_of_ten_cases_lie_within(purpose: str, seen: bool) -> None:
    found = [one for one in held(measured_cases(), seen=seen) if one.purpose == purpose]
    assert LEAST <= coverage(found) <= MOST
    if seen:
        assert median(one.width for one in found) < WIDEST


def test_b200_runs_that_are_right_to_a_percent_are_said_to_be() -> None:
    found = [one for one in held(measured_cases(), seen=True) if one.harness == "simumax_b200_megatron"]
    assert median(one.width for one in found) < 0.1


def test_a_job_like_measured_ones_has_their_misses_and_one_unlike_all_has_everyones() -> None:
    near, far = Traits("megatron", "megatron", gpu="b200"), Traits("unsloth", "eager", gpu="t4", precision="fp16")
    exact = Case("training", "exact", near, (0.99, 1.0, 1.01) * 3, 9)
    loose = Case("training", "loose", far, (0.5, 1.0, 2.0) * 3, 9)
    low, high = ratio_bounds(near, [exact, loose])
    assert (low, high) == (0.99, 1.01)
    wild = replace(loose, ratios=(0.01, 1.0, 30.0) * 3)
    assert ratio_bounds(far, [wild]) == (0.5, 2.0)  # no more than a factor of two
    unlike = Traits("torchtune", "titan", adapters="adapters", experts="experts", gpu="h100", precision="bf16")
    assert ratio_bounds(unlike, [exact, loose]) == (0.5, 2.0)
    assert ratio_bounds(near, []) == (1.0, 1.0)


def test_an_answer_rests_on_the_likest_runs_of_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Traits("megatron", "megatron", gpu="b200")
    own = Case("training", "own", asked, (0.8, 1.0, 1.25) * 3, 30)  # of more runs nine quantiles are kept
    other = Case("training", "other", Traits("unsloth", "eager", gpu="t4"), (1.0,), 1)
    for cases, said in (([own, other], (30, 30, 0.2)), ([other], (1, 0, 0.0))):
        monkeypatch.setattr("vramcast.estimate.interval.measured_cases", lambda cases=cases: cases)
        interval.weighted_for.cache_clear()
        likest_runs.cache_clear()
        found = likest_runs(asked)
        assert found is not None
        assert (found.runs, found.own_engine, found.median_miss) == (*said[:2], pytest.approx(said[2]))
        assert likest_runs(asked, "serving") is None
    interval.weighted_for.cache_clear()
    likest_runs.cache_clear()


def test_likeness_falls_with_every_trait_that_differs() -> None:
    one = Traits("pytorch", "eager")
    other, third = replace(one, packed="packed"), replace(one, packed="packed", experts="experts")
    assert likeness(one, one) == 1.0 > likeness(one, other) > likeness(one, third) > 0.0
    assert likeness(one, third) == pytest.approx(likeness(one, other) ** 2) and FAR > 0

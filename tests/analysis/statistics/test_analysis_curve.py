"""Curves and surfaces: known laws come back, intervals hold what they promise, and ignorance is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from analysis.errors import AnalysisError
from analysis.statistics.curve import fit_curve
from analysis.statistics.lengths import fit_surface
from analysis.statistics.power_law import fit, interval

STEPS = np.array([300.0, 400.0, 600.0, 1200.0, 2200.0])
LOSSES = np.array([7.52, 6.92, 6.39, 5.39, 4.84])
PAIRS = np.array([(a, b) for a in (0, 25, 50, 100, 200) for b in (60, 120, 240, 480)], dtype=float)


def surface(stage1_9: np.ndarray, stage2: np.ndarray) -> np.ndarray:
    return 2.5 + 0.8 * (1 + stage1_9) ** -0.3 + 12 * (1 + stage2) ** -0.6


def test_the_length_sweeps_curve_is_scipys() -> None:
    curve = fit_curve(STEPS, LOSSES)
    assert [curve.holds(x) for x in (299, 300, 2200, 2201)] == [False, True, True, False]
    found = curve.parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference, _ = optimize.curve_fit(
            lambda s, a, b, c: a + b * s**-c, STEPS, LOSSES, p0=(2.6, 47.0, 0.4), maxfev=20_000
        )
    assert [value for value, _, _ in found.values()] == pytest.approx(reference, rel=1e-4)
    assert [round(value, 2) for value, _, _ in found.values()] == [2.60, 47.07, 0.40]


@settings(deadline=None, max_examples=15)  # the machine is shared
@given(st.floats(0.5, 8), st.floats(0.1, 500), st.floats(0.1, 2.5))
def test_a_law_without_noise_comes_back(a: float, b: float, c: float) -> None:
    x = np.geomspace(10, 1000, 7)
    y = a + b * (x / 100) ** -c
    curve = fit_curve(x, y, draws=20)
    value, low, high = curve.predict([50.0, 5000.0])
    truth = a + b * (np.array([50.0, 5000.0]) / 100) ** -c
    assert value == pytest.approx(truth, rel=1e-4, abs=1e-4 * np.ptp(y))
    assert (low <= value + 1e-9).all()
    assert (value <= high + 1e-9).all()
    assert curve.parameters()["c"][0] == pytest.approx(c, rel=1e-2)


def test_units_and_order_do_not_matter() -> None:
    ordered, shuffled = fit_curve(STEPS, LOSSES), fit_curve(STEPS[::-1], LOSSES[::-1])
    scaled = fit_curve(1e12 * STEPS, 1000 * LOSSES)
    at = np.array([350.0, 3000.0])
    assert shuffled.predict(at)[0] == pytest.approx(ordered.predict(at)[0], rel=1e-6)
    for mine, theirs in zip(scaled.predict(1e12 * at), ordered.predict(at), strict=True):
        assert mine == pytest.approx(1000 * theirs, rel=1e-5)


def test_a_score_that_rises_is_a_loss_that_falls() -> None:
    rising = fit_curve(STEPS, -LOSSES, goal="maximize", seed=3)
    assert rising.predict(800)[0] == pytest.approx([-5.924], abs=0.001)
    value, low, high = rising.predict(800)
    assert low < value < high


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(5)
    x = np.array([300.0, 400.0, 600.0, 1200.0, 2200.0, 3000.0])
    at = np.array([500.0, 1800.0, 6000.0])
    truth, held = 2 + 60 * at**-0.5, np.zeros(3)
    repeats = 60
    for seed in range(repeats):
        y = 2 + 60 * x**-0.5 + 0.05 * random.normal(size=6)
        _, low, high = fit_curve(x, y, draws=200, seed=seed).predict(at)
        held += (low <= truth) & (truth <= high)
    # 95 % promised. Of 60, fewer than 50 happens by chance once in 10,000 even at 93 %.
    assert (held >= 50).all(), held / repeats


def test_flat_law_has_the_weighted_means_error() -> None:
    sem = np.array([0.1, 0.2, 0.1, 0.2, 0.1, 0.2])
    s = np.ones((6, 1))  # nothing varies: only the offset can be told
    law = fit(s, np.full(6, 3.0), sem, draws=4000)
    total = law.values(np.ones((1, 1)))[:, 0]
    assert total[0] == pytest.approx(3.0)
    assert total[1:].std() == pytest.approx((sem**-2.0).sum() ** -0.5, rel=0.05)


def test_the_offset_of_a_straight_cloud_has_students_interval() -> None:
    random = np.random.default_rng(0)
    y = 3 + 0.1 * random.normal(size=6)
    law = fit(np.ones((6, 1)), y, draws=5000)
    low, high = interval(law.values(np.ones((1, 1)))[1:, 0])
    # Of the six values one mean was taken, but the law spends three parameters: 3 degrees of freedom.
    reach = stats.t.ppf(0.975, 3) * np.sqrt(((y - y.mean()) ** 2).sum() / 3 / 6)
    assert (low, high) == pytest.approx((y.mean() - reach, y.mean() + reach), rel=0.02)


def test_scatter_beyond_errors_widens_the_interval() -> None:
    narrow = fit_curve(STEPS, LOSSES, np.full(5, 1e-4))
    wide = fit_curve(STEPS, LOSSES, np.full(5, 0.3))
    reach = {name: c.predict(800)[2] - c.predict(800)[1] for name, c in (("n", narrow), ("w", wide))}
    assert 0.1 < reach["n"][0] < reach["w"][0]
    unknown = fit_curve(STEPS, LOSSES, [0.0, 0.3, 0.3, 0.3, 0.3])  # no point is exact
    assert unknown.predict(800) == fit_curve(STEPS, LOSSES).predict(800)


def test_a_loss_has_no_negative_floor() -> None:
    # These points lie on a law that falls below zero.
    y = 30 * STEPS**-0.1 - 12
    assert fit_curve(STEPS, y, draws=10).parameters()["a"][0] >= 0
    assert fit_curve(STEPS, y - 10, draws=10).parameters()["a"][0] < 0  # no loss: some are negative


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1, 2, 3], [3, 2, 1], id="three points"),
        pytest.param([1, 1, 2, 2, 3, 3], [3, 3, 2, 2, 1, 1], id="three places"),
        pytest.param([0, -1, 2, 3, 4], [5, 4, 3, 2, 1], id="no compute"),
        pytest.param([1, 2, 3, 4], [3, 2, float("nan"), 1], id="a hole"),
    ],
)
def test_too_little_for_a_curve_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(AnalysisError, match="4 different amounts"):
        fit_curve(x, y)


@pytest.mark.parametrize("loss", [3.0, 0.0, 1e200])
def test_equal_losses_are_a_flat_curve(loss: float) -> None:
    for values in fit_curve(STEPS[:4], np.full(4, loss), draws=20).predict([1.0, 1e6]):
        assert values == pytest.approx([loss, loss])


def test_a_surface_without_noise_comes_back_with_its_split() -> None:
    found = fit_surface(PAIRS[:, 0], PAIRS[:, 1], surface(*PAIRS.T), draws=5)
    assert found.law.offset[0] == pytest.approx(2.5, rel=1e-3)
    assert found.law.plain_factor()[0] == pytest.approx([0.8, 12.0], rel=1e-2)
    assert found.law.exponent[0] == pytest.approx([0.3, 0.6], rel=1e-2)
    for budget in (200, 600, 880):
        stage1_9 = np.arange(0, budget // 2)
        best = surface(stage1_9, budget - 2 * stage1_9).argmin()
        split = found.best_split(budget)
        assert split.stage1_9 == pytest.approx(stage1_9[best], abs=2)
        assert 2 * split.stage1_9 + split.stage2 == budget
        assert split.loss == pytest.approx(surface(stage1_9, budget - 2 * stage1_9).min(), rel=1e-4)


def test_a_noisy_surfaces_interval_holds_the_true_split() -> None:
    random = np.random.default_rng(1)
    losses = surface(*PAIRS.T) + 0.02 * random.normal(size=len(PAIRS))
    split = fit_surface(*PAIRS.T, losses, draws=100).best_split(600)
    assert split.stage1_9_low < 77 < split.stage1_9_high  # 77.25 by the law itself
    assert split.loss_low < surface(77.25, 445.5) < split.loss_high
    assert split.stage1_9_low < split.stage1_9 < split.stage1_9_high


def test_a_stage_that_buys_nothing_gets_nothing() -> None:
    losses = 2.5 + 12 * (1 + PAIRS[:, 1]) ** -0.6
    assert fit_surface(*PAIRS.T, losses, draws=2).best_split(400).stage1_9 == 0


def test_iso_compute_curves_cost_the_same_everywhere() -> None:
    found = fit_surface(*PAIRS.T, surface(*PAIRS.T), draws=2)
    stage1_9, stage2, loss = found.iso_compute(500)
    assert 2 * stage1_9 + stage2 == pytest.approx(np.full(len(loss), 500.0))
    assert loss == pytest.approx(surface(stage1_9, stage2), rel=1e-3)
    assert (stage1_9[0], stage2[-1]) == (0, 0)


def test_what_was_not_tried_is_named() -> None:
    found = fit_surface(*PAIRS.T, surface(*PAIRS.T), draws=2)
    assert found.beyond(100, 200) == []
    assert found.beyond(300, 500) == [
        "Stage 1.9: 300 steps lie outside the 0 to 200 that were tried",
        "Stage 2: 500 steps lie outside the 60 to 480 that were tried",
        "compute: 1100 effective steps lie outside the 60 to 880 that were tried",
    ]


def test_too_little_for_a_surface_is_refused() -> None:
    with pytest.raises(AnalysisError, match="1 of Stage 2"):
        fit_surface([0, 1, 2, 3, 4, 5, 6], [200] * 7, [3.0] * 7)
    with pytest.raises(AnalysisError, match="there are 6 pairs"):
        fit_surface([0, 1, 2, 0, 1, 2], [1, 2, 3, 2, 3, 1], [3.0] * 6)
    with pytest.raises(AnalysisError, match="budget is nan"):
        fit_surface(*PAIRS.T, surface(*PAIRS.T), draws=2).best_split(float("nan"))

"""The race of `sweep confirm`: who leaves, and how often the best does."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sweeps.search.confirm.race import Losses, dunnett, remaining

NAN = math.nan


def losses(table: npt.ArrayLike) -> dict[int, dict[int, float]]:
    """Losses of candidates 0, 1, … with seeds 0, 1, … from [K, rounds]; NaN is a missing one."""
    return {
        candidate: {seed: float(x) for seed, x in enumerate(row) if not math.isnan(x)}
        for candidate, row in enumerate(np.asarray(table, dtype=float))
    }


@st.composite
def tables(draw: st.DrawFn) -> npt.NDArray[np.float64]:
    """Tables of 2 to 6 candidates and 2 to 6 rounds, some of whose candidates are far apart."""
    shape = draw(st.tuples(st.integers(2, 6), st.integers(2, 6)))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    spread = draw(st.sampled_from((0.0, 1.0, 10.0)))
    return 3 + spread * rng.normal(size=(shape[0], 1)) + rng.normal(size=shape)


@given(tables(), st.integers(0, 10_000))
def test_what_a_seed_does_to_all_cancels(table: npt.NDArray[np.float64], seed: int) -> None:
    shift = 5 * np.random.default_rng(seed).normal(size=table.shape[1])
    assert remaining(losses(table), seeds=9) == remaining(losses(table + shift), seeds=9)


@given(tables(), st.randoms(use_true_random=False))
def test_names_and_order_do_not_matter(table: npt.NDArray[np.float64], random: Random) -> None:
    names = random.sample(range(100), len(table))
    renamed = [(names[c], runs) for c, runs in losses(table).items()]
    random.shuffle(renamed)
    found = remaining({name: dict(reversed(runs.items())) for name, runs in renamed}, seeds=9)
    assert found == {names[candidate] for candidate in remaining(losses(table), seeds=9)}


@given(tables())
def test_who_has_left_stays_out_and_the_leader_stays(table: npt.NDArray[np.float64]) -> None:
    sets = [remaining(losses(table[:, :rounds]), seeds=9) for rounds in range(1, table.shape[1] + 1)]
    assert all(later <= earlier for earlier, later in pairwise(sets))
    assert sets[0] == set(range(len(table)))
    staying = sorted(sets[-1])
    assert staying
    means = table.mean(axis=1)
    assert all(means[c] > means[staying].min() for c in set(range(len(table))) - sets[-1])


@given(tables(), st.floats(0.001, 0.4))
def test_a_smaller_error_rate_keeps_more(table: npt.NDArray[np.float64], rate: float) -> None:
    """In the first test; later ones depend on who is left."""
    first = losses(table[:, :2])
    assert remaining(first, seeds=9, error_rate=rate) <= remaining(first, seeds=9, error_rate=rate / 2)


def test_losses_of_who_has_left_no_longer_count() -> None:
    table = np.array([[1.0, 1.1, 1.0], [1.1, 1.0, 1.05], [9.0, 9.1, NAN]])
    again = table.copy()
    again[2, 2] = -99.0
    assert remaining(losses(table), seeds=6) == remaining(losses(again), seeds=6) == {0, 1}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param({}, set(), id="no candidate"),
        pytest.param({4: {}}, {4}, id="nothing measured"),
        pytest.param({4: {1: 2.0, 2: 2.1, 3: 2.0}}, {4}, id="one candidate"),
        pytest.param({1: {7: 1.0}, 2: {7: 99.0}}, {1, 2}, id="one seed"),
        pytest.param(losses([[2, 2], [3, 3], [2, 2]]), {0, 2}, id="no noise, and a tie"),
        pytest.param(losses([[2.1, 2.2], [2.1, 2.2]]), {0, 1}, id="equal"),
        pytest.param(losses([[0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3]]), {0, 1}, id="equal but for rounding"),
        pytest.param({1: {1: 1.0, 2: 1.0}, 2: {1: 2.0, 2: 2.0}, 3: {}}, {1, 3}, id="one without losses"),
        pytest.param({1: {1: 1.0, 2: 1.0}, 2: {1: 2.0, 2: 2.0}, 3: {1: NAN}}, {1, 3}, id="not a number"),
        pytest.param(
            {0: {1: 1.0, 2: 1.0}, 1: {1: 1.1, 2: 1.1}, 2: {3: 9.0}, 3: {3: 9.1}},
            {0, 2, 3},
            id="no shared seed",
        ),
        pytest.param({0: {1: 1.0, 2: NAN}, 1: {1: NAN, 2: 3.0}}, {0, 1}, id="no pair"),
        pytest.param(losses([[-1e308, 1e308], [0, 1]]), {0, 1}, id="the largest floats"),
    ],
)
def test_edge_cases(found: Losses, expected: set[int]) -> None:
    assert remaining(found, seeds=9) == expected


def test_nobody_leaves_when_no_run_can_be_saved() -> None:
    clear = losses([[1.0, 1.1, 1.0], [9.0, 9.1, 9.0], [9.0, 9.2, 9.1]])
    assert remaining({c: dict(list(runs.items())[:2]) for c, runs in clear.items()}, seeds=2) == {0, 1, 2}
    assert remaining(clear, seeds=3) == {0}  # by the test after round 2


@pytest.mark.parametrize(("seeds", "error_rate"), [(0, 0.05), (3, 0.0), (3, 1.0), (3, NAN)])
def test_impossible_plans_are_refused(seeds: int, error_rate: float) -> None:
    with pytest.raises(ValueError, match=r"seeds .*error_rate"):
        remaining({}, seeds=seeds, error_rate=error_rate)


@pytest.mark.parametrize("freedom", [1, 4, 30])
@pytest.mark.parametrize("rate", [0.05, 0.002])
def test_against_one_other_it_is_the_t_test(freedom: int, rate: float) -> None:
    assert dunnett(1, freedom, rate) == pytest.approx(stats.t.isf(rate, freedom), rel=2e-3)


@pytest.mark.parametrize(("others", "freedom", "value"), [(2, 5, 2.44), (4, 10, 2.47)])
def test_values_of_dunnetts_table(others: int, freedom: int, value: float) -> None:
    assert dunnett(others, freedom, 0.05) == pytest.approx(value, abs=0.006)


@pytest.mark.parametrize(("others", "freedom", "rate"), [(3, 4, 0.02), (9, 20, 0.01)])
def test_correlated_statistics_exceed_it_as_often_as_asked(others: int, freedom: int, rate: float) -> None:
    value = dunnett(others, freedom, rate)
    t = stats.multivariate_t(shape=(np.eye(others) + 1) / 2, df=freedom, seed=0)
    assert 1 - t.cdf(np.full(others, value)) == pytest.approx(rate, abs=3e-4)


def race(
    rng: np.random.Generator, means: npt.ArrayLike, sds: npt.ArrayLike, rounds: int
) -> tuple[bool, float]:
    """Return whether candidate 0 left, and the share of the runs that were done."""
    error = np.asarray(sds)[:, None] * rng.normal(size=(len(np.asarray(means)), rounds))
    table = np.asarray(means)[:, None] + 2 * rng.normal(size=rounds) + error
    found: dict[int, dict[int, float]] = {c: {} for c in range(len(table))}
    for seed in range(rounds):
        for candidate in remaining(found, seeds=rounds):
            found[candidate][seed] = float(table[candidate, seed])
    return 0 not in remaining(found, seeds=rounds), sum(map(len, found.values())) / table.size


@pytest.mark.parametrize(
    "sds", [pytest.param([1.0] * 4, id="one variance"), pytest.param([2.0, 1, 1, 0.5], id="the best noisier")]
)
def test_the_best_leaves_no_more_often_than_stated(sds: list[float]) -> None:
    """All equally good, so that any of them is the best. 0.2 of 200 is 40; the standard error is 5.7."""
    rng = np.random.default_rng(5)
    left = 0
    for _ in range(200):
        error = np.array(sds)[:, None] * rng.normal(size=(4, 5))
        left += 0 not in remaining(losses(3 + rng.normal(size=5) + error), seeds=6, error_rate=0.2)
    assert 2 <= left <= 40 + 2 * 5.7


def test_one_test_allows_for_all_candidates() -> None:
    """0.2 of 300 is 60, with a standard error of 6.9; a t-test of each pair makes it more than 100."""
    rng, left = np.random.default_rng(7), 0
    for _ in range(300):
        left += 0 not in remaining(losses(3 + rng.normal(size=(6, 2))), seeds=3, error_rate=0.2)
    assert 20 <= left <= 60 + 2 * 6.9


def test_a_noisy_candidate_is_judged_by_its_own_variance() -> None:
    """The other eight are so steady that with the pooled variance 0.67 would be too far behind."""
    quiet = 1 + 0.01 * np.random.default_rng(8).normal(size=(8, 3))
    assert remaining(losses([*quiet, [1.0, 2.4, 1.6]]), seeds=4, error_rate=0.1) == set(range(9))
    assert 8 not in remaining(losses([*quiet, [1.65, 1.7, 1.65]]), seeds=4, error_rate=0.1)


def test_clear_losers_save_runs() -> None:
    rng = np.random.default_rng(6)
    found = [race(rng, [0, 0.5, 6, 6, 6], [1] * 5, 6) for _ in range(40)]
    assert sum(left for left, _ in found) == 0
    assert np.mean([runs for _, runs in found]) < 0.72  # without the three losers after round 2 it is 0.6


@pytest.mark.parametrize("share", [0.999, 1.001])
def test_the_limit_is_dunnetts(share):
    """Three candidates in two of four rounds: the residuals' variance is 4 / 2, with two degrees of freedom."""
    limit = dunnett(2, 2, 0.05 / (4 - 2)) * math.sqrt(2.0 * (1 / 2 + 1 / 2))
    losses = {0: {1: 1.0, 2: -1.0}, 1: {1: -0.9, 2: 1.1}, 2: {1: share * limit, 2: share * limit}}
    assert remaining(losses, seeds=4) == ({0, 1, 2} if share < 1 else {0, 1})

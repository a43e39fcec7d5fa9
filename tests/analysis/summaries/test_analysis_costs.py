"""Dollars: rate tables, one trial, a whole sweep."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import golden_messages
import pytest

from analysis.errors import TableError
from analysis.summaries.costs import SHIPPED, cost, rate, usd


def record(status: str, seconds: float | None, **metrics: float) -> dict[str, Any]:
    return {"status": status, "seconds": seconds, "metrics": metrics, "generator": "sobol"}


def test_the_notebooks_figures_ship_with_their_dates() -> None:
    assert (rate("RunPod A100").usd_per_hour, rate("runpod h100").usd_per_hour) == (1.19, 2.89)
    assert str(rate("v6e-4", spot=True)) == "GCP v6e-4 at $1.70 an hour spot (2026-02)"
    assert rate("v5litepod-8").usd_per_hour == 6.12


def test_the_notebooks_sweep_costs_what_the_notebook_says() -> None:
    # 30 trials over 5 workers, 1.67 hours each, on H100s at 2.89: about 24 dollars.
    seconds = 5 * 1.67 * 3600 / 30
    found = cost([record("completed", seconds)] * 10, 30, rate("RunPod H100"))
    assert found.so_far == pytest.approx(24.13 / 3, abs=0.01)
    assert found.expected == pytest.approx(24.13, abs=0.01)


def test_expected_cost_includes_failed_and_open() -> None:
    hour = rate("RunPod A100")
    trials = [
        record("completed", 3600),
        record("completed", 7200),
        record("failed", 1800),
        record("running", 900),
        record("pending", None),
        {**record("completed", 36_000), "generator": "imported"},
    ]
    found = cost(trials, 6, hour)
    assert found.so_far == pytest.approx(1.19 * (1 + 2 + 0.5 + 0.25))
    assert found.expected == pytest.approx(1.19 * (3.5 + 3 * 1.5))
    assert (found.priced, found.unpriced) == (4, 0)


def test_without_a_device_the_trials_own_dollars_count() -> None:
    found = cost(
        [record("completed", 10, usd=0.5), record("failed", 10), record("completed", 10, usd=1.5)], 4
    )
    assert (found.so_far, found.expected, found.priced, found.unpriced) == (2.0, 3.0, 2, 1)
    assert "usd" in found.basis
    assert cost([], 4).expected is None
    assert cost([record("completed", 10, usd=0.5)], None).expected is None


def test_one_trials_dollars() -> None:
    price = rate("RunPod A100")
    assert usd(1800, 99.0, price) == pytest.approx(0.595)
    assert usd(1800, 99.0, None) == 99.0
    assert usd(None, 1.0, price) is usd(10, None, None) is usd(10, float("nan"), None) is None


def test_devices_that_cannot_be_told_are_refused_with_the_choice() -> None:
    with pytest.raises(TableError, match="'RunPod A100', 'Lambda A100'"):
        rate("A100")
    with pytest.raises(TableError, match=r"'B200'; .*'RunPod A100'"):
        rate("B200")
    with pytest.raises(TableError, match="no spot price"):
        rate("RunPod A100", spot=True)


WRONG = (
    "",
    "schema: 2\nrates: []",
    "schema: 1\nrates: []",
    "schema: 1\nrates: [3]",
    "schema: 1\nrates: [{on_demand: 1, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, on_demand: 1}]",
    "schema: 1\nrates: [{name: a, on_demand: 1, dated: yesterday}]",
    "schema: 1\nrates: [{name: a, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, on_demand: -1, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, spot: .nan, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, spot: cheap, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, usd: 1, dated: 2026-01}]",
    "schema: 1\nrates: [{name: a, spot: 1, dated: 2026-01}, {name: a, spot: 1, dated: 2026-01}]",
    "rates: [",
    "!!python/object:os.system {}",
)


def test_what_is_no_rate_table_is_refused_as_the_page_says(tmp_path: Path) -> None:
    calls = {}
    for nth, text in enumerate(WRONG):
        (tmp_path / f"{nth}.yaml").write_text(text)
        calls[repr(text)] = partial(rate, "a", file=tmp_path / f"{nth}.yaml")
    refused = golden_messages.compare_refusals("Tables of rates", TableError, calls, hide=f"{tmp_path}/")
    assert all(str(tmp_path) in str(error) for error in refused.values())


def test_ones_own_table_goes_before_ours(tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text("schema: 1\nrates: [{name: mine, on_demand: 7, dated: 2026-11-21}]")
    assert rate("mine", file=file).usd_per_hour == 7
    with pytest.raises(TableError, match="cannot be read"):
        rate("mine", file=tmp_path / "none.yaml")
    assert SHIPPED.is_file()


def test_fresh_runs_cost_but_are_none_of_the_planned_trials() -> None:
    hour = rate("RunPod A100")
    fresh = {**record("completed", 3600), "generator": "confirm"}
    found = cost([record("completed", 3600), fresh], 3, hour)
    assert found.so_far == pytest.approx(2 * 1.19)
    assert found.expected == pytest.approx(4 * 1.19)


def test_the_end_never_costs_less_than_what_was_paid() -> None:
    """A running trial that is dearer than the mean, and two fresh runs beyond the run cap."""
    hour = rate("RunPod A100")
    done, slow = record("completed", 3600), record("running", 3 * 3600)
    found = cost([done, slow], 2, hour)
    assert (found.so_far, found.expected) == (pytest.approx(4 * 1.19), pytest.approx(4 * 1.19))
    fresh = {**record("running", 1800), "generator": "confirm"}
    found = cost([done, done, fresh, fresh], 2, hour)
    assert (found.so_far, found.expected) == (pytest.approx(3 * 1.19), pytest.approx(4 * 1.19))


def test_all_attempts_on_all_hosts_are_paid_for() -> None:
    """Preempted twice after an hour, then half an hour, on two hosts: five hours of a machine."""
    hour = rate("RunPod A100")
    preempted = {**record("completed", 1800), "machine_seconds": 5 * 3600.0}
    waits = {**record("pending", None), "machine_seconds": 3600.0}
    found = cost([preempted, waits, record("completed", 3600)], 4, hour)
    assert found.so_far == pytest.approx((5 + 1 + 1) * 1.19)
    assert found.expected == pytest.approx((5 + 1 + 2 * 3) * 1.19)  # two more, at the mean of 5 and 1
    assert (found.priced, found.unpriced) == (3, 0)


def test_cheap_trials_below_the_target_are_none_of_the_planned() -> None:
    cheap = [{**record("completed", 10, usd=0.1), "generator": "fidelity"}] * 10
    waits = {**record("pending", None), "generator": "fidelity"}
    found = cost([*cheap, waits, record("completed", 10, usd=10.0)], 3)
    assert found.so_far == pytest.approx(11.0)
    assert found.expected == pytest.approx(11.0 + 0.1 + 2 * 10.0)
    assert cost(cheap, 3).expected is None

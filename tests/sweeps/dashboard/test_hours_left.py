"""Hours and dollars until the run cap: only trials that count towards it, with all of their attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from analysis.report.contents import contents
from analysis.summaries.costs import Rate
from sweeps.dashboard.reader import View
from sweeps.dashboard.summary import summary
from sweeps.export import table
from sweeps.space.space_file import loads
from sweeps.trials.control import Switch
from sweeps.trials.record import Attempt, Trial

SPACE = loads(
    """
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters:
  lr: {min: 0.0, max: 1.0}
  size: {values: [1, 2]}
fidelity: {size: {cost: [1, 10]}}
run_cap: 12
""",
    "space.yaml",
)


def trial(index: int, size: int, *hours: float, generator: Literal["enqueued"] | None = None) -> Trial:
    """A completed trial whose attempts took so many hours; it runs without any."""
    attempts = [
        Attempt(attempt=at + 1, worker="w", start=0.0, end=3600 * each, reason="completed")
        for at, each in enumerate(hours)
    ]
    return Trial(
        trial=index,
        status="completed" if hours else "running",
        attempt=max(len(hours), 1),
        worker=None if hours else "w",
        parameters={"lr": 0.5, "size": size},
        generator=generator or ("sobol" if size == 2 else "fidelity"),
        started=0.0,
        ended=3600 * hours[-1] if hours else None,
        history=tuple(attempts),
    )


def view(records: Sequence[Trial]) -> View:
    return View(
        number=1, url="case", space=SPACE, records=tuple(records), damaged=(), switch=Switch(state="running"),
        archived=False, changes=(), actions=(), confirmation=None, now=0.0,
    )  # fmt: skip


def test_hours_left_are_of_trials_at_the_target_with_all_attempts() -> None:
    """Two of twelve have ended, after 3 and 5 hours with their preempted attempts; two run: ten times 4 hours by two."""
    records = [trial(index, 1, 0.1) for index in range(8)]
    records += [trial(8, 2, 2.0, 1.0), trial(9, 2, 5.0), trial(10, 2), trial(11, 2)]
    assert summary(view(records))["hours_left"] == pytest.approx(10 * 4 / 2)


def test_expected_dollars_are_of_trials_at_the_target() -> None:
    """A user's own below the target are cheap, too, and not under the run cap."""
    records = [trial(index, 2, 1.0) for index in range(4)]
    records += [trial(index, 1, 0.1, generator="enqueued") for index in (4, 5)]
    rate = Rate(name="machine", usd_per_hour=10.0, kind="spot", dated="2026-01")
    cost = summary(view(records), rate)["cost"]
    assert (cost.so_far, cost.expected) == pytest.approx((42.0, 42.0 + 8 * 10.0))
    assert contents(table.document(SPACE, "case", records), rate=rate).cost == cost

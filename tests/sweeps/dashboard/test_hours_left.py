"""Hours and dollars until the run cap: only trials that count towards it, with all of their attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from views import view_of

from analysis.report.contents import contents
from analysis.summaries.costs import Rate
from sweeps.dashboard.summary import summary
from sweeps.export import table
from sweeps.space.space_file import loads
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


def trial(
    index: int, size: int, *hours: float, generator: Literal["enqueued", "grid"] | None = None
) -> Trial:
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


def test_hours_left_are_of_trials_at_the_target_with_all_attempts() -> None:
    """Two of twelve have ended, after 3 and 5 hours with their preempted attempts; two run: ten times 4 hours by two."""
    records = [trial(index, 1, 0.1) for index in range(8)]
    records += [trial(8, 2, 2.0, 1.0), trial(9, 2, 5.0), trial(10, 2), trial(11, 2)]
    assert summary(view_of(SPACE, records))["hours_left"] == pytest.approx(10 * 4 / 2)


def test_expected_dollars_are_of_trials_at_the_target() -> None:
    """A user's own below the target are cheap, too, and not under the run cap."""
    records = [trial(index, 2, 1.0) for index in range(4)]
    records += [trial(index, 1, 0.1, generator="enqueued") for index in (4, 5)]
    rate = Rate(name="machine", usd_per_hour=10.0, kind="spot", dated="2026-01")
    cost = summary(view_of(SPACE, records), rate)["cost"]
    assert (cost.so_far, cost.expected) == pytest.approx((42.0, 42.0 + 8 * 10.0))
    assert contents(table.document(SPACE, "case", records), rate=rate).cost == cost


GRID = loads(
    """
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters: {a: {values: [1, 2, 3]}, b: {values: [1, 2]}}
search: {method: grid}
run_cap: 20
""",
    "space.yaml",
)


def grid_trial(index: int, status: Literal["completed", "running"] = "completed") -> Trial:
    ended = status == "completed"
    attempt = Attempt(attempt=1, worker="w", start=0.0, end=3600.0, reason="completed")
    return replace(
        trial(index, 2, *([1.0] if ended else []), generator="grid"),
        parameters={"a": 1 + index // 2, "b": 1 + index % 2},
        metrics={"loss": 1.0, "usd": 2.0} if ended else {},
        history=(attempt,) if ended else (),
    )


@pytest.mark.parametrize("run_cap", [20, None])
def test_grid_ends_with_its_configurations(run_cap: int | None) -> None:
    """Six in all: no trial of a larger run cap is to be paid or waited for."""
    space = replace(GRID, run_cap=run_cap)
    part = [*(grid_trial(index) for index in range(3)), grid_trial(3, "running")]
    found = summary(view_of(space, part))
    assert (found["state"], found["hours_left"], found["cost"].expected) == ("open", 3.0, 12.0)
    assert (found["searched"], found["most_trials"]) == (4, 6)
    found = summary(view_of(space, [grid_trial(index) for index in range(6)]))
    assert (found["state"], found["hours_left"], found["cost"].expected) == ("done", None, 12.0)


def test_run_cap_may_end_a_grid_before() -> None:
    records = [grid_trial(index) for index in range(4)]
    found = summary(view_of(replace(GRID, run_cap=4), records))
    assert (found["state"], found["cost"].expected) == ("done", 8.0)

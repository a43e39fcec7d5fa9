"""The findings' lengths as sweeps with and without trunks, as `benchmarks.length_runs` compares them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.findings.runs import Run
from benchmarks.findings.setting import TINY
from benchmarks.length_runs import report, space
from benchmarks.reuse_runs import SEARCHES, Row
from sweeps.space import literals
from sweeps.space.space_problem import problem


def row(sweep: str, paid: float) -> Row:
    return {"sweep": sweep, "wall": 61.4, "trials": 25, "nominal": 5250.0, "paid": [paid], "losses": [3.0]}


def runs() -> list[Run]:
    """Runs in which every longer Stage 1.9 ends lower, by less and less a step."""
    losses = {0: 4.0, 25: 3.5, 50: 3.4, 100: 3.3, 200: 3.2}
    return [
        Run(
            condition=TINY.condition(steps),
            seed=seed,
            start=4.0,
            early=4.0,
            final=loss + seed / 64,
            sem=0.0,
            text_sem=0.0,
            by_sequence=(loss,),
            effective_steps=2 * steps + 60,
            seconds=1.0,
            device="CPU",
            torch="2",
        )
        for steps, loss in losses.items()
        for seed in range(5)
    ]


@pytest.mark.parametrize("reuse", SEARCHES)
def test_the_spaces_are_valid_grids_of_five_lengths_and_five_seeds(reuse: str):
    found = literals.space_of(space(reuse), "here")
    assert problem(found) is None
    assert (found.search.reuse, found.search.method) == (reuse, "grid")
    assert set(TINY.common) <= set(found.program.overrides)


def test_the_report_says_whether_losses_and_verdicts_agree():
    same = report([row("plain", 5250), row("shared", 3850)], [runs(), runs()])
    assert "| shared | 25 | 61 s | 3850 | 5250 |" in same
    assert "Largest difference of a loss: 0." in same
    assert "The verdicts are the same:" in same
    assert "- shared: 50 steps against 25: holds" in same
    worse = [replace(run, final=run.final + (run.effective_steps == 160)) for run in runs()]
    other = report([row("plain", 5250), row("shared", 3850)], [runs(), worse])
    assert "Largest difference of a loss: 1." in other
    assert "The verdicts are not the same:" in other

"""The ladder's cells are valid sweeps, and its page has the table of its rows."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

import sweeps
from benchmarks import ladder
from benchmarks.json_lines import read_lines

PAGE = Path(ladder.__file__).parents[1] / "docs" / "explanation" / "ladder.md"


@pytest.mark.parametrize("cell", [ladder.CELLS[0], ladder.CELLS[2]], ids=lambda cell: cell.name)
def test_cells_are_sweeps_that_the_trainer_takes(cell: ladder.Cell, tmp_path: Path) -> None:
    sweep = sweeps.create(cell.space(), storage=str(tmp_path))
    assert sweep.ask().parameters["stage2.optimizer.lr"] == ladder.RATES[0]


def test_best_rate_is_that_of_a_parabola() -> None:
    rates = [1.0, 2.0, 4.0, 8.0]
    assert ladder.best_rate(dict(zip(rates, [9.0, 1.0, 1.0, 9.0], strict=True))) == pytest.approx(8**0.5)
    assert ladder.best_rate(dict(zip(rates, [1.0, 2.0, 3.0, 4.0], strict=True))) == 1.0


def test_page_has_the_table_of_the_rows() -> None:
    lines = ladder.table(read_lines(ladder.ROWS)).splitlines()
    assert len(lines) > 2
    assert set(lines) <= set(PAGE.read_text(encoding="utf-8").splitlines())


def test_figure_has_the_mean_losses_and_best_rates_of_the_rows() -> None:
    rows = read_lines(ladder.ROWS)
    drawn = [row for data in ladder.figure(rows).data.values() for row in data]
    losses = defaultdict(list)
    for row in rows:
        if (row["stage1_9"], row["stage2"]) == (15, 60):
            losses[row["cell"], row["lr"]].append(row["loss"])
    assert set(map(fmean, losses.values())) <= {row.get("y") for row in drawn}
    assert len([row for row in drawn if "y" not in row]) == 5


@pytest.mark.parametrize("seed", ladder.SEEDS)
@pytest.mark.parametrize("rule", ["none", "mup"])
def test_plan_of_the_small_rungs_holds_the_large_ones_best(rule: str, seed: int) -> None:
    cells = ladder.plan(read_lines(ladder.ROWS), rule, seed=seed).split("|")
    (value, low, high), (best,) = (
        [float(number) for number in re.findall(r"[\d.]+", cell)] for cell in cells[4:6]
    )
    assert low < value < high < 3 * value
    assert low < best < high

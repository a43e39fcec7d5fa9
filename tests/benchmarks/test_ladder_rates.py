"""The ladder's cells are valid sweeps, and its page has the table of its rows."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import sweeps
from benchmarks import ladder
from benchmarks.json_lines import read_lines

pytestmark = pytest.mark.usefixtures("fewer_points")

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
    for cell in ladder.CELLS:
        if (cell.stage1_9, cell.stage2) == (15, 60):
            for row in ladder.of_whole_grids([row for row in rows if row["cell"] == cell.name]):
                losses[row["cell"], row["lr"]].append(row["loss"])
    assert set(map(fmean, losses.values())) <= {row.get("y") for row in drawn}
    assert len([row for row in drawn if "y" not in row]) == 6


def test_loss_between_rates_is_that_of_a_parabola() -> None:
    losses = {2.0**power: (power - 2.3) ** 2 for power in range(6)}
    assert ladder.loss_at(losses, 2**2.3) == pytest.approx(0)
    assert ladder.loss_at(losses, 8.0) == pytest.approx(losses[8.0])
    assert ladder.loss_at(losses, 2**4.6) == pytest.approx(2.3**2)


def test_exponent_is_that_between_two_lengths() -> None:
    """Best rates fall by 3^-0.5 and 3^-0.3 from short to long: -0.4, with Student's t of two pairs."""

    def grid(width: int, seed: int, steps: tuple[int, int], best: float) -> list[dict[str, Any]]:
        cell = {"width": width, "seed": seed, "rule": "none", "stage1_9": steps[0], "stage2": steps[1]}
        return [cell | {"lr": rate, "loss": math.log(rate / best) ** 2} for rate in ladder.RATES]

    rows = [
        row
        for width, exponent in ((64, -0.5), (128, -0.3))
        for steps, best in (((15, 60), 0.007), ((45, 180), 0.007 * 3**exponent))
        for row in grid(width, 0, steps, best)
    ]
    first, second, last = ladder.tokens(rows).splitlines()
    assert first.split(" | ")[4:] == ["-0.50", f"{(0.5 * math.log(3)) ** 2:.4f}", "0.0391 |"]
    assert second.split(" | ")[4] == "-0.30"
    assert last == "mean exponent -0.40 (-1.67 to 0.87)"  # 12.706 x 0.1


def test_page_has_the_exponents_of_the_rows() -> None:
    *lines, _ = ladder.tokens(read_lines(ladder.ROWS)).splitlines()
    assert len(lines) > 2
    assert set(lines) <= set(PAGE.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    "seed", [ladder.SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in ladder.SEEDS[1:])]
)
@pytest.mark.parametrize("rule", ["none", "mup"])
def test_plan_of_the_small_rungs_holds_the_large_ones_best(rule: str, seed: int) -> None:
    _holds_the_best(ladder.plan(read_lines(ladder.ROWS), rule, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", ladder.SEEDS)
def test_plan_of_three_rungs_holds_the_best_at_ten_million_parameters(seed: int) -> None:
    _holds_the_best(ladder.plan(read_lines(ladder.ROWS), "none", 288, seed=seed))


def _holds_the_best(line: str) -> None:
    cells = line.split("|")
    (value, low, high), (best,) = (
        [float(number) for number in re.findall(r"[\d.]+", cell)] for cell in cells[4:6]
    )
    assert low < value < high < 3 * value
    assert low < best < high

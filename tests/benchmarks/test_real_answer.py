"""benchmarks.real.answer: the page says what the records say, and the opposite where they do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.real.answer import PAGE, Lengths, Runs, read, text, verdict, write

FLOPS = {1: 1.0e12, 2: 0.75e12}
"""Of a step of Stage 1.9 and of Stage 2: 300 steps of Stage 1.9 cost as much as 400 of Stage 2."""

SEEDS = {0: 0.1, 1: -0.1, 2: 0.05}


def row(stage1_9: int, stage2: int, seed: int, loss: float) -> dict[str, object]:
    return {
        "status": "completed",
        "param.stage1_9.max_steps": stage1_9,
        "param.stage2.max_steps": stage2,
        "param.seed": seed,
        "final_loss": loss,
        "train_flops": FLOPS[1] * stage1_9 + FLOPS[2] * stage2,
        "effective_steps": 2 * stage1_9 + stage2,
        "stage2_start_loss": 7.0,
        "seconds": 3600.0,
        "cost_paid": 100.0,
        "cost_nominal": 400.0,
    }


def table(gain: float) -> pd.DataFrame:
    """Return records in which 300 steps of Stage 1.9 gain so much over Stage 2 alone with its FLOPs."""
    rows = []
    for seed, offset in SEEDS.items():
        rows += [row(0, 200, seed, 6.0 + offset), row(0, 600, seed, 5.0 + offset)]
        rows += [row(0, 800, seed, 4.5 + offset), row(300, 200, seed, 5.0 - gain + offset + seed * 0.001)]
    return pd.DataFrame(rows)


RATES = pd.DataFrame(
    [
        row(100, 200, 0, loss)
        | {"trial": 0, "param.stage1_9.optimizer.lr": first, "param.stage2.optimizer.lr": 4e-4}
        for loss, first in ((5.5, 1e-3), (5.2, 2e-3))
    ]
)
RATES["train_loss"] = 5.1


@pytest.mark.parametrize(("gain", "word"), [(0.2, "better"), (-0.2, "worse"), (-0.001, "not different")])
def test_the_verdict_is_that_of_the_intervals(gain: float, word: str) -> None:
    assert f"is {word} after 300 steps" in verdict(Runs([table(gain)]))


def test_one_seed_answers_nothing() -> None:
    one = table(0.2)
    assert verdict(Runs([one[one["param.seed"] == 0]])).startswith("Not answered yet")


def test_equal_compute_is_by_flops_and_by_effective_steps() -> None:
    runs = Runs([table(0.2)])
    both = Lengths(300, 200)
    assert runs.alone_with(both, "train_flops") == Lengths(0, 600)
    assert runs.alone_with(both, "effective_steps") == Lengths(0, 800)


def test_the_page_has_the_numbers_of_the_records() -> None:
    page = text(Runs([table(0.2)]), RATES, pictures="answer")
    # 4.9, 4.701 and 4.852 less 5.1, 4.9 and 5.05: -0.2, -0.199 and -0.198; t of 2 degrees of freedom 4.303
    assert (
        "| 300 | 200 | 4.5e+14 | 800 | 4.818 [4.701, 4.900] | -0.199 (-0.201 to -0.197), 600 steps |" in page
    )
    assert "+0.301 (+0.299 to +0.303), 800 steps |" in page
    assert "| 100 + 200 | 0.002 | 0.0004 | 5.100 | 5.200 |" in page
    assert "paid 1,400 of 5,600 effective steps (25%)" in page
    assert "14 completed trials took 14.0 hours" in page


def test_failed_trials_do_not_count(tmp_path: Path) -> None:
    failed = pd.DataFrame([row(300, 200, 0, 1.0) | {"status": "failed"}])
    assert Lengths(300, 200) not in Runs([failed, table(0.2).iloc[:2]]).lengths


def test_the_page_is_written_from_the_tables(tmp_path: Path) -> None:
    write(tmp_path / "answer.md")
    page = (tmp_path / "answer.md").read_text()
    assert page == Path(PAGE).read_text()
    assert "<svg" in (tmp_path / "answer" / "lengths.svg").read_text()
    runs = read()
    # by hand, of lengths.csv and alone.csv: 6.3591 - 5.8559, 6.3676 - 5.8964 and 6.3648 - 5.8370
    pair = runs.compare(Lengths(400, 200), Lengths(0, 733))
    assert pair is not None
    assert pair.mean == pytest.approx((0.5032 + 0.4712 + 0.5278) / 3, abs=2e-4)

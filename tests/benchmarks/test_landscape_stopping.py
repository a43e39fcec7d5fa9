"""What a stop at an expected gain would have saved and given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_landscape_calibration import bowl, landscape

from benchmarks.landscapes import stopping

pytestmark = pytest.mark.timeout(600)

__all__ = ["landscape"]


def line(gains: list[float], true: list[float]) -> dict[str, Any]:
    """A search of 42 trials, by what is stated after 30, 31, … of them."""
    return {
        "best": 3.0,
        "trials": [{}] * 42,
        "stated": [
            {"results": 30 + at, "gain": gain, "true": loss}
            for at, (gain, loss) in enumerate(zip(gains, true, strict=True))
        ],
    }


EARLY = line([0.02, 0.003, *[0.001] * 11], [3.02, 3.015, *[3.01] * 10, 3.012])
NEVER = line([0.02] * 13, [3.05] * 13)


def test_a_search_ends_where_little_is_expected_first() -> None:
    assert stopping.end(EARLY, 0.004)["results"] == 31
    assert stopping.end(EARLY, 0.001)["results"] == 32
    assert stopping.end(NEVER, 0.004) is None


def test_the_table_has_what_was_saved_and_given_up() -> None:
    table = stopping.table([EARLY, NEVER])
    # 31 and 42 of 42 trials; 3.015 - 3.012 and nothing are given up; chosen 0.015 and 0.05 above the best.
    assert "| 0.004 | 1 of 2 | 36.5 of 42 | 13 % | 0.0015 | 0.0030 | 0.0325, 0.0310 |" in table
    assert "| 30 | 2 | 0.0200 | 0.0040 |" in table


@pytest.mark.slow
def test_what_is_stated_follows_from_the_trials(landscape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "FEWEST", 13)
    x = np.linspace(0, 1, 14)
    told = bowl([{"x": each} for each in x]) + 0.02 * np.random.default_rng(0).standard_normal(14)
    rows = stopping.expectations(
        {
            "landscape": "bowl",
            "seed": 0,
            "trials": [
                {"parameters": {"x": float(a)}, "told": float(b), "true": float(bowl([{"x": a}])[0])}
                for a, b in zip(x, told, strict=True)
            ],
        }
    )
    assert [row["results"] for row in rows] == [13, 14]
    assert all(row["gain"] >= 0 and row["noise"] == pytest.approx(0.02, rel=1e-3) for row in rows)
    assert rows[0]["true"] == pytest.approx((x[int(rows[0]["trial"])] - 0.3) ** 2 + 3)


def test_searches_of_a_later_cap_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "stop.jsonl"
    path.write_text(json.dumps({"landscape": "bowl", "seed": 0, **EARLY}) + "\n")
    (found,) = stopping.runs(["bowl"], [0], 32, path, 1)
    assert len(found["trials"]) == 32
    assert [row["results"] for row in found["stated"]] == [30, 31, 32]

"""A task function's return value as the trial's result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from sweeps.hydra_app.callback import WriteResult, result

RETURNED = [
    (0.5, ["loss"], {"loss": 0.5}),
    (np.float32(0.5), ["loss"], {"loss": 0.5}),
    (3, ["loss"], {"loss": 3.0}),
    (float("nan"), ["loss"], {"loss": None}),
    ((0.5, 2), ["loss", "score"], {"loss": 0.5, "score": 2.0}),
    ([0.5], ["loss"], {"loss": 0.5}),
    ({"loss": 0.5, "note": "x", "extra": 1}, ["loss"], {"loss": 0.5, "extra": 1.0}),
]


@pytest.mark.parametrize(("returned", "metrics", "expected"), RETURNED, ids=[str(r[0]) for r in RETURNED])
def test_numbers_become_metrics(returned: Any, metrics: list[str], expected: dict[str, Any]) -> None:
    assert result(returned, metrics) == {"schema": 1, "metrics": expected}


@pytest.mark.parametrize(
    ("returned", "metrics", "why"),
    [
        (None, ["loss"], "returned None as loss; return a number"),
        ("low", ["loss"], "returned 'low' as loss"),
        (True, ["loss"], "returned True as loss"),
        ((1.0, 2.0), ["loss"], "2 values for 1 metric;"),
        (1.0, ["loss", "score"], "one value for the metrics loss, score"),
        ({"loss": None}, ["loss"], "returned None as loss"),
    ],
    ids=str,
)
def test_anything_else_fails_the_trial_with_words(returned: Any, metrics: list[str], why: str) -> None:
    document = result(returned, metrics)
    assert document["status"].startswith("failed: ")
    assert why in document["status"]


def test_a_task_that_raised_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_RUN_DIR", str(tmp_path))
    callback = WriteResult(OmegaConf.create(["loss"]))  # type: ignore[arg-type]  # as Hydra passes it
    returned = JobReturn(status=JobStatus.FAILED)
    returned.return_value = ValueError("no")
    callback.on_job_end(OmegaConf.create({}), returned)
    assert list(tmp_path.iterdir()) == []
    returned = JobReturn(status=JobStatus.COMPLETED)
    returned.return_value = 0.25
    callback.on_job_end(OmegaConf.create({}), returned)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == {"loss": 0.25}

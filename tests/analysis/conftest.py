"""Export documents for the tests of the analysis: small sweeps, finished and otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Build = Callable[..., dict[str, Any]]


@pytest.fixture
def length_sweep_file() -> Path:
    return Path(__file__).parents[2] / "analysis" / "examples" / "stage19_length_sweep.csv"


@pytest.fixture
def trial() -> Build:
    """One trial of an export document; what is not given is that of a completed one."""

    def build(
        index: int,
        loss: float | None = None,
        *,
        status: str = "completed",
        stage1_9: int = 50,
        stage2: int = 60,
        error: str | None = None,
        generator: str = "sobol",
        **metrics: Any,
    ) -> dict[str, Any]:
        told = {} if loss is None else {"final_loss": loss, "effective_steps": 2.0 * stage1_9 + stage2}
        return {
            "trial": index,
            "status": status,
            "attempt": 1,
            "generator": generator,
            "worker": None,
            "seconds": 12.5,
            "error": error,
            "parameters": {"stage1_9.max_steps": stage1_9, "stage2.max_steps": stage2},
            "metrics": told | metrics,
        }

    return build


@pytest.fixture
def document() -> Build:
    """An export document around some trials; other fields as keywords."""

    def build(*trials: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "name": "lengths",
            "url": "file:///sweeps/lengths",
            "objectives": [{"metric": "final_loss", "goal": "minimize"}],
            "run_cap": 20,
            "trials": list(trials),
        } | fields

    return build


@pytest.fixture
def sweep(trial: Build, document: Build) -> dict[str, Any]:
    """A sweep with a baseline, a front of four, a beaten trial, a failure and a running trial."""
    return document(
        trial(0, 4.00, stage1_9=0, generator="baseline", final_loss_sem=0.02),
        trial(1, 3.60, stage1_9=25, final_loss_sem=0.012),
        trial(2, 3.90, stage1_9=50, final_loss_sem=0.012),
        trial(3, status="failed", error="diverged at step 37: loss is nan\nlast words\nof the program"),
        trial(4, 3.40, stage1_9=100, generator="botorch", final_loss_sem=0.012),
        trial(5, 3.36, stage1_9=400, generator="botorch", final_loss_sem=0.012),
        trial(6, status="running", generator="botorch"),
        best_overrides=["model=tiny", "stage1_9.max_steps=400", "data.path='a b'"],
    )

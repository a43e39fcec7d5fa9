"""A configuration so small that a whole run takes well under a second, on the real text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.layers=2",
    "model.heads=2",
    "model.teacher.max_steps=4",
    "model.teacher.batch_size=4",
    "model.teacher.schedule.warmup_steps=1",
    "data.max_bytes=300000",
    "data.held_out_fraction=0.2",
    "data.vocab_size=300",
    "data.sequence_length=16",
    "stage1.calibration_batches=1",
    "stage1_9.max_steps=6",
    "stage1_9.batch_size=4",
    "stage1_9.schedule.warmup_steps=1",
    "stage2.max_steps=6",
    "stage2.batch_size=4",
    "stage2.schedule.warmup_steps=1",
    "stage2.lambda_warmup.warmup_steps=3",
    "eval.batches=2",
    "eval.batch_size=4",
    "device=cpu",
    "device.threads=1",
    "log_every=1",
)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole test session: corpus and teacher are built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(cache_folder))


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Overrides of a run of a fraction of a second."""
    return SMALL


@pytest.fixture
def run_small(small: tuple[str, ...], tmp_path: Path) -> Callable[..., object]:
    """Runs the pipeline in this process with further overrides; returns its `Outcome`."""
    from trainer import pipeline
    from trainer.api import METRICS_FILE, check
    from trainer.device import open_device
    from trainer.preemption import StopSignal
    from trainer.telemetry import Telemetry

    def run(*overrides: str, out: object = None) -> pipeline.Outcome:
        config = check([*small, *overrides])
        with Telemetry(tmp_path / METRICS_FILE, every=config.log_every, out=None) as telemetry:
            return pipeline.run(
                config,
                device=open_device(config.device),
                telemetry=telemetry,
                stop=StopSignal(),
                progress=lambda message, fraction: None,
            )

    return run

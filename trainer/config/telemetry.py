"""Configuration of logs and trackers. Read by `trainer.telemetry` and `trainer.memory_log`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Checked, FieldError, Positive, Text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TelemetryConfig:
    """Telemetry beyond the lines of `log_every`.

    Args:
        dense_steps: first steps of each stage that have a line each, as runs go wrong there.
        heartbeat_seconds: between two writes of `heartbeat.json`.
        tensorboard: event files in the run's folder, in `tensorboard/`.
    """

    dense_steps: Positive
    heartbeat_seconds: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)]
    tensorboard: bool


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WandbConfig:
    """One Weights & Biases run per training run.

    Args:
        mode: `offline` writes into the run's folder what `wandb sync` uploads.
        project: that the run belongs to.
        group: of runs; in a sweep, the sweep's name.
        name: of the run; in a sweep, the trial's.
        id: of the run, in the project; a run that goes on with the same id goes on there. null: one that is
            made and kept in the run's folder; in a sweep, the trial's, so that all its attempts are one run.
        tags: of the run.
    """

    mode: Literal["disabled", "offline", "online"]
    project: str
    group: str | None
    name: str | None
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MemoryLogConfig(Checked):
    """`memory.jsonl`, with a line for each point of a run that `trainer.memory_log.log` names.

    Args:
        level: null: no file. `basic`: used, free and total bytes. `tensors`: also the bytes of tensors, by
            their shapes. `metrics`: also the counters of allocator and compiler. `hlo`: also the sizes in
            the compiled graph; XLA only.
        phases: phases whose points are written.
        every: steps of a stage between two lines of the phase `train`.
        path: of the file; null: in the run's folder.
    """

    level: Literal["basic", "tensors", "metrics", "hlo"] | None
    phases: Annotated[tuple[Literal["init", "warmup", "train", "save"], ...], Field(min_length=1)]
    every: Positive
    path: Text | None

    def contradictions(self) -> Iterator[FieldError]:
        if len(set(self.phases)) < len(self.phases):
            yield FieldError("a phase is named twice; name each once", key="phases")

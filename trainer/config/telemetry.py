"""How much a run tells, and where beside its folder. Read by `trainer.telemetry`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, FieldError, Positive, Text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TelemetryConfig:
    """What is told beside the lines that `log_every` asks for.

    Args:
        dense_steps: the first so many steps of each stage have a line each: it is there that runs go wrong.
        heartbeat_seconds: between two writes of `heartbeat.json`.
        tensorboard: event files in the run's folder, in `tensorboard/`.
    """

    dense_steps: Positive
    heartbeat_seconds: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)]
    tensorboard: bool


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WandbConfig:
    """One Weights & Biases run per training run; `group` is the sweep, `name` the trial."""

    mode: Literal["disabled", "offline", "online"]
    project: str
    group: str | None
    name: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MemoryLogConfig:
    """`memory.jsonl`, a line for each point of a run that is named in `trainer.memory_log.log`.

    Args:
        level: null: there is none. `basic`: used, free and total bytes. `tensors`: and what tensors take, by
            their shapes. `metrics`: and what the allocator and the compiler count. `hlo`: and what the
            compiled graph says of itself; XLA only.
        phases: whose points are told.
        every: of `train`, each so many steps of a stage.
        path: of the file; null: in the run's folder. It, `phases` and `every` are read where there is one.
    """

    level: Literal["basic", "tensors", "metrics", "hlo"] | None
    phases: Annotated[tuple[Literal["init", "warmup", "train", "save"], ...], Field(min_length=1)]
    every: Positive
    path: Text | None

    def __post_init__(self) -> None:
        if len(set(self.phases)) < len(self.phases):
            raise FieldError("each phase is named once; leave out those that come again", key="phases")

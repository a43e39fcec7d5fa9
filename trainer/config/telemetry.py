"""How much a run tells, and where beside its folder. Read by `trainer.telemetry`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Positive


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

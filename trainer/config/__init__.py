"""Validated, frozen configuration of a run; `compose` makes it from Hydra overrides.

The dataclasses stand here, away from the components that they configure, because a configuration is checked
in processes that must not import torch. Pydantic checks types, ranges and unknown keys; `__post_init__`
checks fields against each other. One file per kind of component; `run` joins them.
"""

from __future__ import annotations

from trainer.config.data import DataConfig, HubConfig, ParquetConfig, StdlibConfig, StreamConfig, TextConfig
from trainer.config.distill import (
    CachedTeacherConfig,
    HttpTeacherConfig,
    InProcessTeacherConfig,
    Stage3Config,
)
from trainer.config.fields import FieldError
from trainer.config.losses import DistillScheduleConfig, Stage2DistillConfig
from trainer.config.model import (
    HfModelConfig,
    ScaleRuleConfig,
    TeacherConfig,
    TinyModelConfig,
    TrainedHereConfig,
)
from trainer.config.optimizer import OptimizerConfig, ScheduleConfig
from trainer.config.quant import LambdaWarmupConfig, QuantConfig, SaliencyConfig
from trainer.config.run import Config, DeviceConfig, EvalConfig, decisive, sha256
from trainer.config.stages import RecoveryConfig, Stage1Config, Stage2Config, Stage19Config
from trainer.config.telemetry import MemoryLogConfig, TelemetryConfig, WandbConfig
from trainer.config.training import AutoFreezeConfig, CheckpointConfig, SnapshotsConfig

"""The validated configuration of a run, as frozen values; `compose` makes it from Hydra overrides.

Every component's knobs stand in one dataclass in this package, away from the component, because a
configuration is checked in processes that must not import torch. A field that is out of its range, an
ill-typed value and an unknown key are refused by pydantic; what concerns several fields is refused in
`__post_init__`. One file per kind of component; `run` has the whole.
"""

from __future__ import annotations

from trainer.config.auto_freeze import AutoFreezeConfig
from trainer.config.checkpoint import CheckpointConfig
from trainer.config.data import DataConfig, HubConfig, ParquetConfig, StdlibConfig, StreamConfig, TextConfig
from trainer.config.distill import (
    CachedTeacherConfig,
    HttpTeacherConfig,
    InProcessTeacherConfig,
    Stage3Config,
)
from trainer.config.fields import FieldError
from trainer.config.losses import DistillScheduleConfig, Stage2DistillConfig
from trainer.config.model import HfModelConfig, TeacherConfig, TinyModelConfig
from trainer.config.optimizer import OptimizerConfig, ScheduleConfig
from trainer.config.quant import LambdaWarmupConfig, QuantConfig, SaliencyConfig
from trainer.config.run import Config, DeviceConfig, EvalConfig, decisive, sha256
from trainer.config.stages import Stage1Config, Stage2Config, Stage19Config
from trainer.config.telemetry import MemoryLogConfig, TelemetryConfig, WandbConfig

__all__ = [
    "AutoFreezeConfig",
    "CachedTeacherConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DeviceConfig",
    "DistillScheduleConfig",
    "EvalConfig",
    "FieldError",
    "HfModelConfig",
    "HttpTeacherConfig",
    "HubConfig",
    "InProcessTeacherConfig",
    "LambdaWarmupConfig",
    "MemoryLogConfig",
    "OptimizerConfig",
    "ParquetConfig",
    "QuantConfig",
    "SaliencyConfig",
    "ScheduleConfig",
    "Stage1Config",
    "Stage2Config",
    "Stage2DistillConfig",
    "Stage3Config",
    "Stage19Config",
    "StdlibConfig",
    "StreamConfig",
    "TeacherConfig",
    "TelemetryConfig",
    "TextConfig",
    "TinyModelConfig",
    "WandbConfig",
    "decisive",
    "sha256",
]

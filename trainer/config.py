"""The validated configuration of a run, as frozen values; `compose` makes a `Config` from Hydra overrides.

Every component's knobs stand in one dataclass here, away from the components, because a configuration is
checked in processes that must not import torch. A field that is out of its range, an ill-typed value and an
unknown key are refused by pydantic; what concerns several fields is refused in `__post_init__`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from trainer.data.config import DataConfig

_STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FieldError(ValueError):
    """Fields that do not go together. `key` is relative to the dataclass that raises it."""

    def __init__(self, problem: str, *, key: str) -> None:
        self.problem, self.key = problem, key
        super().__init__(f"{key}: {problem}")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class OptimizerConfig:
    """How parameters are updated. Learning rates mean the same for both types (see `trainer.optim.build`).

    Args:
        type: `muon`: Muon for the hidden matrices and AdamW for the rest; `adamw`: AdamW for everything.
        lr: peak learning rate.
        weight_decay: decoupled, times the learning rate; matrices only.
        momentum: of Muon; `adamw` has none.
        adamw_lr_ratio: learning rate of what is no hidden matrix (embeddings, head, norms), over `lr`.
        beta1, beta2: AdamW's decays.
        max_grad_norm: gradients are scaled down to this norm; 0 switches clipping off.
    """

    type: Literal["muon", "adamw"]
    lr: AboveZero
    weight_decay: NonNegative
    momentum: Decay
    adamw_lr_ratio: AboveZero
    beta1: Decay
    beta2: Decay
    max_grad_norm: NonNegative


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ScheduleConfig:
    """Warmup, stable, decay: linear up over `warmup_steps`, linear down over the last `decay_fraction` of the
    stage to `final_lr_ratio` of the peak."""

    warmup_steps: Count
    decay_fraction: Fraction
    final_lr_ratio: Fraction


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SaliencyConfig:
    """The share of weight columns kept in full precision, annealed from `initial_k` to `final_k`.

    Args:
        ema_decay: of the columns' L-infinity norms.
        update_interval: optimizer steps between two measurements of the norms.
    """

    enabled: bool
    initial_k: Fraction
    final_k: Fraction
    schedule_type: Literal["linear", "cosine"]
    ema_decay: Decay
    update_interval: Positive

    def __post_init__(self) -> None:
        if self.final_k > self.initial_k:
            raise FieldError(f"{self.final_k} is above initial_k ({self.initial_k})", key="final_k")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LambdaWarmupConfig:
    """Lambda in Stage 2: 0 → 1 over `warmup_steps`, then 1; always 1 where it is not `enabled`."""

    enabled: bool
    warmup_steps: Count
    schedule: Literal["linear", "cosine"]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Stage1Config:
    """Stage 1, which trains nothing.

    Args:
        subln: gain of the new SubLN layers: `calibrated`, the root mean square that each one's input has in
            the teacher, so that the network keeps its scales; or `ones`.
        calibration_batches: training batches over which it is measured.
    """

    subln: Literal["calibrated", "ones"]
    calibration_batches: Positive


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Stage19Config:
    """Stage 1.9. `max_steps` 0 leaves it out. `lm_loss_weight` a: (1-a)·distillation + a·(CE + KL)/2."""

    max_steps: Count
    batch_size: Positive
    loss_type: Literal["mse_normalized", "cosine", "mse"]
    layer_weights: Literal["progressive", "uniform", "exponential"]
    lm_loss_weight: Fraction
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    saliency: SaliencyConfig

    def __post_init__(self) -> None:
        _check_warmup(self.schedule.warmup_steps, self.max_steps, key="schedule.warmup_steps")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Stage2Config:
    """Stage 2. `max_steps` 0 leaves it out."""

    max_steps: Count
    batch_size: Positive
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    lambda_warmup: LambdaWarmupConfig

    def __post_init__(self) -> None:
        _check_warmup(self.schedule.warmup_steps, self.max_steps, key="schedule.warmup_steps")
        if self.lambda_warmup.enabled:
            _check_lambda_warmup(self.lambda_warmup.warmup_steps, self.max_steps)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TeacherConfig:
    """How the tiny model's full-precision teacher is trained, once for all runs that share it."""

    max_steps: Positive
    batch_size: Positive
    seed: Count
    optimizer: OptimizerConfig
    schedule: ScheduleConfig

    def __post_init__(self) -> None:
        _check_warmup(self.schedule.warmup_steps, self.max_steps, key="schedule.warmup_steps")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TinyModelConfig:
    """A small Llama, and its teacher."""

    kind: Literal["tiny"]
    hidden_size: Positive
    intermediate_size: Positive
    layers: Positive
    heads: Positive
    teacher: TeacherConfig

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise FieldError(
                f"{self.hidden_size} is not an even multiple of heads ({self.heads})", key="hidden_size"
            )


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class HfModelConfig:
    """A pretrained model: a folder, or a name on the Hugging Face hub. It brings its own tokenizer.

    `dtype` is that of the weights; `auto` keeps what the checkpoint was saved in, and refuses float16.
    """

    kind: Literal["hf"]
    name: Annotated[str, Field(min_length=1)]
    dtype: Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DeviceConfig:
    """Where to compute.

    Args:
        type: `auto` takes CUDA where there is one.
        threads: CPU threads of one process.
        dtype: of matrix products; the master weights of `model=tiny` are float32 either way. `float32` is
            refused for pretrained weights in bfloat16, whose products cannot be.
        usd_per_hour: price of the machine; null asks the table in `trainer.cost`.
    """

    type: Literal["auto", "cpu", "cuda"]
    threads: Annotated[int, Field(ge=1, le=1024)]
    dtype: Literal["float32", "bfloat16"]
    usd_per_hour: NonNegative | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class EvalConfig:
    """How much held-out text a loss is measured on. Two batches at least: one has no standard error."""

    batches: Annotated[int, Field(ge=2)]
    batch_size: Positive


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class WandbConfig:
    """One Weights & Biases run per training run; `group` is the sweep, `name` the trial."""

    mode: Literal["disabled", "offline", "online"]
    project: str
    group: str | None
    name: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Config:
    """One run of the trainer."""

    model: Annotated[TinyModelConfig | HfModelConfig, Field(discriminator="kind")]
    data: DataConfig
    stage1: Stage1Config
    stage1_9: Stage19Config
    stage2: Stage2Config
    device: DeviceConfig
    eval: EvalConfig
    wandb: WandbConfig
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    run_dir: Annotated[str, Field(min_length=1)] | None
    log_every: Positive


def sha256(config: Config) -> str:
    """Digest of everything that can change the result: not where it is written, nor where it is shown."""
    document: dict[str, Any] = asdict(config)  # pydantic dataclasses are dataclasses
    for key in ("run_dir", "wandb", "log_every"):
        del document[key]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _check_warmup(warmup: int, steps: int, *, key: str) -> None:
    """A warmup that outlasts its stage never reaches its end; a stage of no steps has no warmup to check."""
    if 0 < steps < warmup:
        raise FieldError(f"{warmup} is longer than the stage's max_steps ({steps})", key=key)


def _check_lambda_warmup(warmup: int, steps: int) -> None:
    """Lambda is 1 from step `warmup` on, counted from 0: at least the last step must be trained at 1."""
    if 0 < steps <= warmup:
        raise FieldError(
            f"{warmup} must be below the stage's max_steps ({steps}), or no step is trained at lambda 1",
            key="lambda_warmup.warmup_steps",
        )

"""How parameters are updated, and at which rate. Read by `trainer.optim`, `schedule` and `loop`."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, AboveZero, Count, Decay, Fraction, NonNegative


@dataclass(frozen=True, kw_only=True, config=STRICT)
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleConfig:
    """Warmup, stable, decay: linear up over `warmup_steps`, linear down over the last `decay_fraction` of the
    stage to `final_lr_ratio` of the peak."""

    warmup_steps: Count
    decay_fraction: Fraction
    final_lr_ratio: Fraction

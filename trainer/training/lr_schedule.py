"""The learning rate at every step. Used by `loop`, which sets and logs it."""

from __future__ import annotations

from trainer.config import ScheduleConfig


def lr_factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """Return the share of the peak learning rate in the zero-based `step` of a stage of `steps`.

    Linear up over the warmup, whose last step is at the peak; stable; linear down over the last
    `decay_fraction` of the stage, ending at `final_lr_ratio`. Where they overlap, the lower counts.
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    start = config.decay_start(steps)
    if step < start:
        return warmup
    decay_steps, left = steps - start, steps - 1 - step  # those that follow this one
    decay = config.final_lr_ratio + (1 - config.final_lr_ratio) * left / decay_steps
    return min(warmup, decay)
